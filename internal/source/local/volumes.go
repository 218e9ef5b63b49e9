package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/manifest"
	"github.com/berth-scheduler/berth/internal/source"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"
)

// BindVolumes binds claims to the volumes that were chosen for them, all in one transaction that holds only if the fence does. There is no controller
// that would, so it writes both sides. Nothing provisions volumes here.
func (s *Source) BindVolumes(ctx context.Context, fence coord.Cond, b source.VolumeBinding) source.Outcome {
	about := func(result source.Result, err error) source.Outcome {
		return source.Outcome{Result: result, Err: fmt.Errorf("bind the claims of %s/%s: %w", b.Namespace, b.Name, err)}
	}
	if b.Void {
		return source.Outcome{Result: source.BindDone} // what an earlier term has under way does not happen any more, by its fence
	}
	if most := (coord.MaxTxnOps - 1) / 2; len(b.Choices) > most {
		return source.Outcome{Result: source.BindRefused, Err: fmt.Errorf("%d claims wait for a consumer, at most %d can be bound together", len(b.Choices), most)}
	}
	for range podTries {
		conds, ops := []coord.Cond{fence}, []coord.Op(nil)
		for k := range b.Choices {
			w := volumeWrite{s, b.Namespace, &b.Choices[k]}
			toHold, toDo, err := w.plan(ctx)
			var refused refusedError
			if errors.As(err, &refused) {
				return source.Outcome{Result: source.BindRefused, Err: refused.error}
			}
			if err != nil {
				return about(source.BindUnknown, err)
			}
			conds, ops = append(conds, toHold...), append(ops, toDo...)
		}
		ok, revision, err := s.etcd.Txn(ctx, conds, ops)
		switch {
		case errors.Is(err, coord.ErrFenced):
			return about(source.BindRefused, err)
		case err != nil:
			return about(source.BindUnknown, err)
		case !ok:
			continue
		}
		if err := s.awaitTold(ctx, revision); err != nil {
			return about(source.BindUnknown, err)
		}
		return source.Outcome{Result: source.BindDone}
	}
	return about(source.BindUnknown, errors.New("the volumes or the claims keep changing"))
}

// refusedError is why something that was chosen is not carried out.
type refusedError struct{ error }

func refused(format string, args ...any) error { return refusedError{fmt.Errorf(format, args...)} }

// volumeWrite is what is to be written for one claim.
type volumeWrite struct {
	source    *Source
	namespace string
	choice    *cluster.VolumeChoice
}

// plan returns what has to hold, and what is to be written then.
func (w *volumeWrite) plan(ctx context.Context) (conds []coord.Cond, ops []coord.Op, err error) {
	var claim v1.PersistentVolumeClaim
	var v v1.PersistentVolume
	claimKV, err := w.source.readObject(ctx, manifest.KindPersistentVolumeClaim, w.namespace, w.choice.Claim, &claim)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case claimKV == nil || claim.UID != types.UID(w.choice.UID):
		return nil, nil, refused("persistentvolumeclaim %q not found", w.choice.Claim)
	case w.choice.Volume == "":
		return nil, nil, refused("nothing provisions volumes here: apply a PersistentVolume for claim %q", w.choice.Claim)
	case claim.Spec.VolumeName != "" && claim.Spec.VolumeName != w.choice.Volume:
		return nil, nil, refused("claim %q has been bound to volume %q", w.choice.Claim, claim.Spec.VolumeName)
	}
	volumeKV, err := w.source.readObject(ctx, manifest.KindPersistentVolume, "", w.choice.Volume, &v)
	if err != nil {
		return nil, nil, err
	}
	switch to := v.Spec.ClaimRef; {
	case volumeKV == nil:
		return nil, nil, refused("persistentvolume %q not found", w.choice.Volume)
	case to != nil && (to.Namespace != w.namespace || to.Name != w.choice.Claim || to.UID != "" && to.UID != claim.UID):
		return nil, nil, refused("volume %q is bound to claim %q", w.choice.Volume, to.Namespace+"/"+to.Name)
	}
	v.Spec.ClaimRef = &v1.ObjectReference{
		Kind: manifest.KindPersistentVolumeClaim, APIVersion: "v1", Namespace: w.namespace, Name: w.choice.Claim, UID: claim.UID,
	}
	v.Status.Phase = v1.VolumeBound
	claim.Spec.VolumeName, claim.Status.Phase = w.choice.Volume, v1.ClaimBound
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnBindCompleted, "yes")
	for _, o := range []struct {
		kv     *coord.KV
		object any
	}{{volumeKV, &v}, {claimKV, &claim}} {
		value, err := json.Marshal(o.object)
		if err != nil {
			return nil, nil, fmt.Errorf("encode %s: %w", o.kv.Key, err)
		}
		conds = append(conds, coord.IfModRevision(o.kv.Key, o.kv.ModRevision))
		ops = append(ops, coord.Put(o.kv.Key, value))
	}
	return conds, ops, nil
}

// toldTimeout bounds how long a bind waits until Watch has told what it has written.
const toldTimeout = 10 * time.Second

// saw notes that Watch has told everything up to a revision.
func (s *Source) saw(revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = revision
	if s.toldMore != nil {
		close(s.toldMore)
		s.toldMore = nil
	}
}

// awaitTold waits until Watch has told everything up to a revision.
func (s *Source) awaitTold(ctx context.Context, revision int64) error {
	ctx, cancel := context.WithTimeout(ctx, toldTimeout)
	defer cancel()
	for {
		s.mu.Lock()
		if s.told >= revision {
			s.mu.Unlock()
			return nil
		}
		if s.toldMore == nil {
			s.toldMore = make(chan struct{})
		}
		more := s.toldMore
		s.mu.Unlock()
		select {
		case <-more:
		case <-ctx.Done():
			return fmt.Errorf("wait until revision %d is told: %w", revision, context.Cause(ctx))
		}
	}
}

// readObject reads a stored object, nil if there is none.
func (s *Source) readObject(ctx context.Context, kind, namespace, name string, into any) (*coord.KV, error) {
	key, _ := keyOf(kind, namespace, name)
	kv, _, err := s.etcd.Get(ctx, key)
	if err != nil || kv == nil {
		return nil, err
	}
	if err := manifest.UnmarshalStored(kv.Value, into); err != nil {
		return nil, fmt.Errorf("decode %s: %w", key, err)
	}
	return kv, nil
}

// bound keeps of a stored volume or claim what it is bound to, which no manifest says.
func bound(stored, applied any) {
	switch from := stored.(type) {
	case *v1.PersistentVolume:
		to, is := applied.(*v1.PersistentVolume), from.Spec.ClaimRef
		if is == nil || is.UID == "" {
			return
		}
		if says := to.Spec.ClaimRef; says == nil || says.UID == "" && says.Namespace == is.Namespace && says.Name == is.Name {
			to.Spec.ClaimRef, to.Status.Phase = is, from.Status.Phase
		}
	case *v1.PersistentVolumeClaim:
		if to := applied.(*v1.PersistentVolumeClaim); from.Spec.VolumeName != "" && to.Spec.VolumeName == "" {
			to.Spec.VolumeName, to.Status.Phase = from.Spec.VolumeName, from.Status.Phase
			if value, ok := from.Annotations[volume.AnnBindCompleted]; ok {
				to.Annotations = maps.Clone(to.Annotations) // they are the manifest's
				metav1.SetMetaDataAnnotation(&to.ObjectMeta, volume.AnnBindCompleted, value)
			}
		}
	}
}
