package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"
)

// BindVolumes writes the claims into the volumes that were chosen for them, and into claims for which a volume is to be provisioned the node that it is
// for: what kube-scheduler writes. The controllers of volumes and the provisioners do the rest.
//
// What is written is of one version of the object, the one that is known: a write that is late, of whatever binder, changes nothing
// that has been written since. The fence is the caller's: see the package comment.
func (s *Source) BindVolumes(ctx context.Context, _ coord.Cond, b source.VolumeBinding) source.Outcome {
	if b.Void {
		return s.voidVolumes(ctx, b)
	}
	var written []writtenVersion
	var refused error
	for k := range b.Choices {
		w := volumeWrite{Source: s, binding: &b, choice: &b.Choices[k]}
		version, err := w.run(ctx)
		switch {
		case err == nil:
			written = append(written, version)
		case w.unknown:
			return source.Outcome{Result: source.BindUnknown, Err: err}
		}
		if refused = err; err != nil {
			break
		}
	}
	wait, cancel := s.request(ctx)
	defer cancel()
	for _, version := range written {
		if err := version.told(wait); err != nil {
			return source.Outcome{Result: source.BindUnknown, Err: fmt.Errorf("bind the claims of %s/%s: %w", b.Namespace, b.Name, err)}
		}
	}
	if refused != nil {
		return source.Outcome{Result: source.BindRefused, Err: refused}
	}
	return source.Outcome{Result: source.BindDone}
}

// voided is the annotation of volumes and claims of which an earlier write was to come to nothing, with the time when that was. It means nothing else.
const voided = "scheduling.berth.dev/voided"

// voidVolumes makes sure that no write of an earlier call changes anything any more, by another write to the same objects: each write is of one version of
// its object. What has been written already stays.
func (s *Source) voidVolumes(ctx context.Context, b source.VolumeBinding) source.Outcome {
	unknown := func(err error) source.Outcome {
		return source.Outcome{Result: source.BindUnknown, Err: fmt.Errorf("void what may be under way for the claims of %s/%s: %w", b.Namespace, b.Name, err)}
	}
	now := s.cfg.Now().UTC().Format(time.RFC3339Nano)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{voided: now}}})
	if err != nil {
		return unknown(err)
	}
	var all []writtenVersion
	for _, c := range b.Choices {
		if source.Ended(ctx) {
			return unknown(errEnded)
		}
		resource, name := claimsResource, types.NamespacedName{Namespace: b.Namespace, Name: c.Claim}
		write := func(ctx context.Context) (metav1.Object, error) {
			return s.volumes.CoreV1().PersistentVolumeClaims(name.Namespace).Patch(ctx, name.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		}
		read := func(ctx context.Context) error {
			_, err := s.volumes.CoreV1().PersistentVolumeClaims(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
			return err
		}
		if c.Volume != "" {
			resource, name = volumesResource, types.NamespacedName{Name: c.Volume}
			write = func(ctx context.Context) (metav1.Object, error) {
				return s.volumes.CoreV1().PersistentVolumes().Patch(ctx, name.Name, types.MergePatchType, patch, metav1.PatchOptions{})
			}
			read = func(ctx context.Context) error {
				_, err := s.volumes.CoreV1().PersistentVolumes().Get(ctx, name.Name, metav1.GetOptions{})
				return err
			}
		}
		request, done := s.request(ctx)
		began := time.Now()
		written, err := write(request)
		done()
		s.observe(s.volumes, began, err)
		if apierrors.IsNotFound(err) { // a webhook may answer that, too
			request, done := s.request(ctx)
			missing := read(request)
			done()
			if apierrors.IsNotFound(missing) { // there is nothing to be written to
				continue
			}
		}
		if err == nil && written.GetAnnotations()[voided] != now { // somebody takes that away, and then nothing may have changed
			err = fmt.Errorf("%s cannot be changed", name)
		}
		if err != nil {
			return unknown(err)
		}
		if m := s.mirrorOf(resource); m != nil {
			all = append(all, writtenVersion{m, name, written.GetResourceVersion()})
		}
	}
	wait, cancel := s.request(ctx)
	defer cancel()
	for _, version := range all {
		if err := version.told(wait); err != nil {
			return unknown(err)
		}
	}
	return source.Outcome{Result: source.BindDone}
}

// writtenVersion is an object as it was written.
type writtenVersion struct {
	of      *mirror
	name    types.NamespacedName
	version string
}

// told waits until the watch has told an object as it was written, or as it was later.
func (w writtenVersion) told(ctx context.Context) error {
	if w.version == "" {
		return nil
	}
	return w.of.await(ctx, w.name, w.version)
}

// volumeWrite is what is to be written for one claim.
type volumeWrite struct {
	*Source
	binding *source.VolumeBinding
	choice  *cluster.VolumeChoice
	unknown bool // whether it has been written
}

// run writes it, if it is not there. It returns what was written, if anything was, or why it was not.
func (w *volumeWrite) run(ctx context.Context) (version writtenVersion, err error) {
	if w.choice.Volume == "" {
		return w.selectNode(ctx)
	}
	return w.bindVolume(ctx)
}

// tries is how often an object is written that somebody has changed meanwhile. Then it is refused: none of it has happened, as the answers say.
const tries = 2

// claim returns the claim as it is known, or as it is if fresh. Nil: there is none any more, or another one of the name.
func (w *volumeWrite) claim(ctx context.Context, fresh bool) (known[*cluster.PersistentVolumeClaim], error) {
	name := types.NamespacedName{Namespace: w.binding.Namespace, Name: w.choice.Claim}
	claim, err := objectOf[*cluster.PersistentVolumeClaim](w.Source, claimsResource, name, fresh, func() (metav1.Object, error) {
		ctx, cancel := w.request(ctx)
		defer cancel()
		return w.volumes.CoreV1().PersistentVolumeClaims(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	})
	if err == nil && claim.there && string(claim.uid) != w.choice.UID {
		claim.there = false
	}
	return claim, err
}

// selectNode says which node a volume is to be provisioned for.
func (w *volumeWrite) selectNode(ctx context.Context) (none writtenVersion, last error) {
	for try := range tries {
		claim, err := w.claim(ctx, try > 0)
		switch {
		case err != nil:
			w.unknown = true
			return none, err
		case !claim.there:
			return none, fmt.Errorf("persistentvolumeclaim %q not found", w.choice.Claim)
		case claim.object.HasSelectedNode && claim.object.SelectedNode == w.binding.Node:
			return claim.version(), nil
		case w.binding.Written:
			return none, fmt.Errorf("binding volumes: provisioning failed for PVC %q", w.choice.Claim)
		case claim.object.HasSelectedNode && claim.object.SelectedNode != "":
			return none, fmt.Errorf("a volume is to be provisioned for claim %q on node %q", w.choice.Claim, claim.object.SelectedNode)
		case claim.object.Volume != "":
			return none, fmt.Errorf("claim %q has been bound to volume %q", w.choice.Claim, claim.object.Volume)
		case source.Ended(ctx):
			w.unknown = true
			return none, errEnded
		}
		patch := map[string]any{"metadata": map[string]any{
			"uid": claim.uid, "resourceVersion": claim.resourceVersion,
			"annotations": map[string]string{volume.AnnSelectedNode: w.binding.Node},
		}}
		written, again, err := w.patch(ctx, patch, func(ctx context.Context, data []byte) (metav1.Object, error) {
			out := new(v1.PersistentVolumeClaim)
			return out, w.volumes.CoreV1().RESTClient().Patch(types.MergePatchType).Namespace(claim.name.Namespace).Resource(claimsResource).Name(claim.name.Name).
				MaxRetries(0).Body(data).Do(ctx).Into(out)
		})
		if last = err; again {
			continue
		}
		if err != nil {
			return none, said(err, "select node %s for claim %q", w.binding.Node, w.choice.Claim)
		}
		return claim.as(written), nil
	}
	return none, last // as kube-scheduler's first try
}

// said returns what an API server, or a webhook of its, has said, as kube-scheduler tells it: bare. Of other errors it is told what was not done.
func said(err error, format string, args ...any) error {
	if httpCode(err) != 0 {
		return err
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

// bindVolume writes the claim into the volume.
func (w *volumeWrite) bindVolume(ctx context.Context) (none writtenVersion, last error) {
	for try := range tries {
		claim, err := w.claim(ctx, try > 0)
		if err != nil {
			w.unknown = true
			return none, err
		}
		name := types.NamespacedName{Name: w.choice.Volume}
		v, err := objectOf[*cluster.PersistentVolume](w.Source, volumesResource, name, try > 0, func() (metav1.Object, error) {
			ctx, cancel := w.request(ctx)
			defer cancel()
			return w.volumes.CoreV1().PersistentVolumes().Get(ctx, name.Name, metav1.GetOptions{})
		})
		if err != nil {
			w.unknown = true
			return none, err
		}
		is := v.object
		kept := v.there && is.HasClaim && is.Claim.Namespace == w.binding.Namespace && is.Claim.Name == w.choice.Claim && (is.Claim.UID == "" || is.Claim.UID == w.choice.UID)
		switch {
		case !v.there:
			return none, fmt.Errorf("persistentvolume %q not found", w.choice.Volume)
		case kept && is.Claim.UID != "":
			return v.version(), nil
		case is.HasClaim && !kept:
			return none, fmt.Errorf("volume %q is bound to claim %q", w.choice.Volume, is.Claim.Namespace+"/"+is.Claim.Name)
		case w.binding.Written:
			return none, fmt.Errorf("binding volumes: ClaimRef got reset for pv %q", w.choice.Volume)
		case !claim.there:
			return none, fmt.Errorf("persistentvolumeclaim %q not found", w.choice.Claim)
		case claim.object.Volume != "" && claim.object.Volume != w.choice.Volume:
			return none, fmt.Errorf("claim %q has been bound to volume %q", w.choice.Claim, claim.object.Volume)
		case source.Ended(ctx):
			w.unknown = true
			return none, errEnded
		}
		metadata := map[string]any{"uid": v.uid, "resourceVersion": v.resourceVersion}
		if !kept { // who keeps a volume for a claim, and did not leave that to a controller, is not to lose it when the claim goes
			metadata["annotations"] = map[string]string{volume.AnnBoundByController: "yes"}
		}
		patch := map[string]any{"metadata": metadata, "spec": map[string]any{"claimRef": v1.ObjectReference{
			Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: w.binding.Namespace, Name: w.choice.Claim,
			UID: claim.uid, ResourceVersion: claim.resourceVersion,
		}}}
		written, again, err := w.patch(ctx, patch, func(ctx context.Context, data []byte) (metav1.Object, error) {
			out := new(v1.PersistentVolume)
			return out, w.volumes.CoreV1().RESTClient().Patch(types.MergePatchType).Resource(volumesResource).Name(name.Name).
				MaxRetries(0).Body(data).Do(ctx).Into(out)
		})
		if last = err; again {
			continue
		}
		if err != nil {
			return none, said(err, "bind volume %q to claim %q", w.choice.Volume, w.choice.Claim)
		}
		return v.as(written), nil
	}
	return none, last
}

// patch writes once: of a second try that the client makes by itself, nobody would know that the first one may still happen. True: the object is not what it was, or is gone.
func (w *volumeWrite) patch(ctx context.Context, patch any, write func(context.Context, []byte) (metav1.Object, error)) (written metav1.Object, again bool, err error) {
	data, err := json.Marshal(patch)
	if err != nil {
		return nil, false, err
	}
	ctx, cancel := w.request(ctx)
	defer cancel()
	began := time.Now()
	written, err = write(ctx, data)
	w.observe(w.volumes, began, err)
	switch code := httpCode(err); {
	case err == nil:
		return written, false, nil
	case code == http.StatusConflict, code == http.StatusNotFound:
		return nil, true, err
	case !refuses(code):
		w.unknown = true
	}
	return nil, false, err
}

// known is an object as it is known, or was read.
type known[O cluster.Object] struct {
	of              *mirror
	name            types.NamespacedName
	uid             types.UID
	resourceVersion string
	object          O
	there           bool
}

// version returns the version that an object is known as.
func (k known[O]) version() writtenVersion {
	return writtenVersion{k.of, k.name, k.resourceVersion}
}

// as returns the version that an object was written as.
func (k known[O]) as(written metav1.Object) writtenVersion {
	return writtenVersion{k.of, k.name, written.GetResourceVersion()}
}

// objectOf returns an object that is followed, as the watch has told it, or if fresh as get reads it.
func objectOf[O cluster.Object](s *Source, resource string, name types.NamespacedName, fresh bool, get func() (metav1.Object, error)) (known[O], error) {
	out := known[O]{of: s.mirrorOf(resource), name: name}
	if out.of == nil {
		return out, fmt.Errorf("%s are not followed yet", resource)
	}
	if !fresh {
		if seen := out.of.get(name); seen != nil {
			if out.object, out.there = seen.object.(O); out.there {
				out.uid, out.resourceVersion = seen.uid, seen.version
			}
		}
		return out, nil
	}
	object, err := get()
	if apierrors.IsNotFound(err) {
		return out, nil
	}
	if err != nil {
		return out, err
	}
	record, err := out.of.record(object)
	if err != nil {
		return out, err
	}
	out.uid, out.resourceVersion = record.UID, record.ResourceVersion
	out.object, out.there = record.object().(O)
	return out, nil
}
