package whatif

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/manifest"
	"github.com/berth-scheduler/berth/internal/source"
)

// Workload is pods that are not there yet, and what would be there with them.
type Workload struct {
	Pods []source.Pod
	// Objects are the selectors of the controllers that would make the pods, which PodTopologySpread's default constraints read, and what the
	// manifests say of volumes, and PodGroups.
	Objects []source.Event
	// Claims are those that would be made for the pods, by place, as far as some have any: of their ephemeral volumes, and of templates of a StatefulSet.
	// One that there is by that name stays as it is.
	Claims [][]*cluster.PersistentVolumeClaim
}

// workloadHead is what kinds that make pods have in common.
type workloadHead struct {
	Kind     string            `json:"kind"`
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Replicas    *int32           `json:"replicas"`    // of Deployments, ReplicaSets, StatefulSets, ReplicationControllers
		Parallelism *int32           `json:"parallelism"` // of Jobs
		Completions *int32           `json:"completions"`
		Selector    json.RawMessage  `json:"selector"`
		Template    *json.RawMessage `json:"template"`

		VolumeClaimTemplates []v1.PersistentVolumeClaim `json:"volumeClaimTemplates"` // of StatefulSets
	} `json:"spec"`
}

// ReadWorkload reads manifests, in YAML or JSON, of Pods, and of Deployments, ReplicaSets, StatefulSets, ReplicationControllers
// and Jobs, which stand for as many pods as would run at the same time; and of PodGroups and what volumes are made of, which is there before the pods. All pods are
// taken so many times, at least once. They are read strictly, with an API server's defaults: the error of one that is wrong is a *manifest.Error of it alone. At most
// limit pods are read.
func ReadWorkload(ctx context.Context, data []byte, times, limit int) (Workload, error) {
	r := workloadReader{times: max(times, 1), limit: limit}
	if err := r.read(ctx, data); err != nil {
		return Workload{}, err
	}
	return r.out, nil
}

// Namespaces are those of which there is something that matters to a workload, sorted.
type Namespaces struct {
	Claims []string // of claims in it, and of pods that have some
	Groups []string // of PodGroups in it, and of pods that name one: other pods of the group count
}

// NamespacesOf returns the namespaces that matter to manifests that ReadWorkload reads. It keeps nothing else, however many pods they stand for. It fails as
// ReadWorkload does.
func NamespacesOf(ctx context.Context, data []byte, times, limit int) (Namespaces, error) {
	about := &matter{claims: make(map[string]bool), groups: make(map[string]bool)}
	r := workloadReader{times: max(times, 1), limit: limit, about: about}
	err := r.read(ctx, data)
	return Namespaces{Claims: slices.Sorted(maps.Keys(about.claims)), Groups: slices.Sorted(maps.Keys(about.groups))}, err
}

// matter has the namespaces that matter to a workload.
type matter struct{ claims, groups map[string]bool }

// errNestedList is what becomes of a list in a list, which no tool writes.
var errNestedList = errors.New("a list in a list: give its items one by one")

type workloadReader struct {
	times, limit int
	pods, claims int // that the manifests stand for
	objects      int // what volumes are made of, and PodGroups
	bytes        int // of the label sets of pods that have claims for themselves
	out          Workload
	about        *matter // if not nil, out remains empty
}

func (r *workloadReader) read(ctx context.Context, data []byte) error {
	if len(data) > manifest.MaxInputBytes {
		return fmt.Errorf("%w: %d bytes, at most %d are possible", ErrTooMuch, len(data), manifest.MaxInputBytes)
	}
	err := eachDocument(ctx, data, asked, func(raw []byte) error { return r.object(raw, false) })
	if err == nil && r.pods == 0 && r.objects == 0 {
		err = errors.New("the manifests stand for no pod")
	}
	return err
}

// maxClaims bounds how many claims a workload stands for.
const maxClaims = 50_000

// maxSetBytes bounds how long the label sets of pods are together that a question makes and that have claims for themselves, as LabelSet.Key writes
// them: each has one of its own, with the names of all its claims, those that they share as well.
const maxSetBytes = 16 << 20

// object reads an object, or those of a list. An item of a list is no list: each level would be read once more.
func (r *workloadReader) object(raw []byte, item bool) error {
	var list struct {
		Kind  string            `json:"kind"`
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return err
	}
	switch list.Kind {
	case "List":
		if item {
			return errNestedList
		}
		for k, item := range list.Items {
			if err := r.object(item, true); err != nil {
				return fmt.Errorf("items[%d]: %w", k, err)
			}
		}
		return nil
	case manifest.KindPod:
		pod, own, err := parsePod(raw)
		if err != nil {
			return err
		}
		return r.add(pod, 1, own)
	case "Deployment", "Job", manifest.KindReplicaSet, manifest.KindStatefulSet, manifest.KindReplicationController:
	default:
		if list.Kind == manifest.KindPodGroup || ofVolumes(list.Kind) {
			objects, err := manifest.Parse(raw)
			if err != nil {
				return err
			}
			if r.objects++; r.objects > maxClaims {
				return fmt.Errorf("%w: there are more than %d objects", ErrTooMuch, maxClaims)
			}
			r.bring(objects[0])
			return nil
		}
		return fmt.Errorf("kind: %q makes no pods; want Pod, Deployment, ReplicaSet, StatefulSet, ReplicationController, Job or List, PodGroup, or what volumes are made of", list.Kind)
	}
	var head workloadHead
	if err := manifest.Unmarshal(raw, &head); err != nil {
		return err
	}
	head.Metadata.Namespace = cmp.Or(head.Metadata.Namespace, metav1.NamespaceDefault)
	if head.Spec.Template == nil {
		return fmt.Errorf("%s %s/%s: spec.template is missing", head.Kind, head.Metadata.Namespace, head.Metadata.Name)
	}
	pod, own, err := fromTemplate(&head)
	if err != nil {
		return fmt.Errorf("%s %s/%s: spec.template: %w", head.Kind, head.Metadata.Namespace, head.Metadata.Name, err)
	}
	if pod.Labels.Controller, err = r.controller(&head); err != nil {
		return fmt.Errorf("%s %s/%s: spec.selector: %w", head.Kind, head.Metadata.Namespace, head.Metadata.Name, err)
	}
	return r.add(pod, head.replicas(), own)
}

// ofVolumes reports whether volumes are made of objects of a kind.
func ofVolumes(kind string) bool {
	return slices.ContainsFunc(cluster.ObjectKinds(), func(k cluster.ObjectKind) bool { return k.String() == kind && k.OfVolumes() })
}

// replicas is how many pods run at the same time.
func (h *workloadHead) replicas() int {
	n := int32(1)
	switch {
	case h.Kind == "Job" && h.Spec.Parallelism != nil:
		n = *h.Spec.Parallelism
		if c := h.Spec.Completions; c != nil {
			n = min(n, *c)
		}
	case h.Kind != "Job" && h.Spec.Replicas != nil:
		n = *h.Spec.Replicas
	}
	return int(max(n, 0))
}

// fromTemplate returns a pod of a template, named as its controller, and the claims that each such pod has for itself.
func fromTemplate(head *workloadHead) (source.Pod, []ownClaim, error) {
	var pod map[string]any
	if err := json.Unmarshal(*head.Spec.Template, &pod); err != nil {
		return source.Pod{}, nil, err
	}
	meta, _ := pod["metadata"].(map[string]any)
	if meta == nil {
		meta = make(map[string]any)
	}
	delete(meta, "creationTimestamp") // null, in what clients write
	meta["name"], meta["namespace"] = head.Metadata.Name, head.Metadata.Namespace
	pod["apiVersion"], pod["kind"], pod["metadata"] = "v1", manifest.KindPod, meta
	// A StatefulSet's template of a claim is a volume of that name, in the stead of one that the pods' template has.
	own := templated(head)
	if spec, ok := pod["spec"].(map[string]any); ok && len(own) > 0 {
		volumes, _ := spec["volumes"].([]any)
		volumes = slices.DeleteFunc(volumes, func(v any) bool {
			volume, _ := v.(map[string]any)
			return slices.ContainsFunc(head.Spec.VolumeClaimTemplates, func(c v1.PersistentVolumeClaim) bool { return volume["name"] == c.Name })
		})
		for k := range own {
			claim := map[string]any{"claimName": own[k].name(head.Metadata.Name)}
			volumes = append(volumes, map[string]any{"name": head.Spec.VolumeClaimTemplates[k].Name, "persistentVolumeClaim": claim})
		}
		spec["volumes"] = volumes
	}
	raw, err := json.Marshal(pod)
	if err != nil {
		return source.Pod{}, nil, err
	}
	reduced, ephemeral, err := parsePod(raw)
	return reduced, append(own, ephemeral...), err
}

// parsePod reads one pod strictly, and the claims of its ephemeral volumes.
func parsePod(raw []byte) (source.Pod, []ownClaim, error) {
	objects, err := manifest.Parse(raw)
	if err != nil {
		return source.Pod{}, nil, err
	}
	pod := objects[0].Pod
	var own []ownClaim
	for k := range pod.Spec.Volumes {
		if e := pod.Spec.Volumes[k].Ephemeral; e != nil && e.VolumeClaimTemplate != nil {
			claim := &v1.PersistentVolumeClaim{Spec: e.VolumeClaimTemplate.Spec}
			own = append(own, ownClaim{suffix: "-" + pod.Spec.Volumes[k].Name, ephemeral: true, shape: *source.ReducePersistentVolumeClaim(claim)})
		}
	}
	reduced := source.ReducePod(pod)
	reduced.Object = pod
	return reduced, own, nil
}

// controller returns the controller that the pods would have, and notes its selector.
func (r *workloadReader) controller(head *workloadHead) (cluster.Controller, error) {
	meta := metav1.ObjectMeta{Namespace: head.Metadata.Namespace, Name: head.Metadata.Name}
	o, ok := manifest.New(head.Kind)
	switch {
	case head.Kind == "Deployment": // its pods are those of a new ReplicaSet
		meta.Name += "-what-if"
		o, _ = manifest.New(manifest.KindReplicaSet)
	case !ok:
		return cluster.Controller{}, nil
	}
	var selector any
	switch c := o.Other.(type) {
	case *appsv1.ReplicaSet:
		selector = &c.Spec.Selector
	case *appsv1.StatefulSet:
		selector = &c.Spec.Selector
	case *v1.ReplicationController:
		selector = &c.Spec.Selector
	}
	*o.Meta() = meta
	if len(head.Spec.Selector) > 0 {
		if err := json.Unmarshal(head.Spec.Selector, selector); err != nil {
			return cluster.Controller{}, err
		}
	}
	r.bring(o)
	return cluster.Controller{Kind: o.Kind(), Name: meta.Name}, nil
}

// bring notes what is there before the pods.
func (r *workloadReader) bring(o manifest.Object) {
	e, ok := eventOf(o)
	switch {
	case !ok:
		return
	case r.about == nil:
		r.out.Objects = append(r.out.Objects, e)
		return
	}
	switch of := e.Object.(type) {
	case *cluster.PersistentVolumeClaim:
		r.about.claims[of.Namespace] = true
	case *cluster.PodGroup:
		r.about.groups[of.Namespace] = true
	}
}

// add adds so many pods like one, as often as all are taken.
func (r *workloadReader) add(pod source.Pod, replicas int, own []ownClaim) error {
	if r.pods += replicas * r.times; r.pods > r.limit {
		return fmt.Errorf("%w: the manifests stand for more than %d pods", ErrTooMuch, r.limit)
	}
	if r.claims += len(own) * replicas * r.times; r.claims > maxClaims {
		return fmt.Errorf("%w: the manifests stand for more than %d claims", ErrTooMuch, maxClaims)
	}
	if len(own) > 0 {
		if r.bytes += len(pod.Labels.Key()) * replicas * r.times; r.bytes > maxSetBytes {
			return fmt.Errorf("%w: the manifests stand for pods whose labels and claims' names have more than %d MiB", ErrTooMuch, maxSetBytes>>20)
		}
	}
	if r.about != nil {
		if len(pod.Labels.Claims) > 0 && replicas > 0 {
			r.about.claims[pod.Namespace] = true
		}
		if pod.Group != "" && replicas > 0 {
			r.about.groups[pod.Namespace] = true
		}
		return nil
	}
	pod.Created = 0
	pod.UID = "new:" + pod.Namespace + "/" + pod.Name
	pods := []source.Pod{pod}
	if replicas != 1 || r.times != 1 || pod.Labels.Controller.Kind == cluster.KindStatefulSet && len(own) > 0 {
		pods = Copies(pod, replicas*r.times)
	}
	r.out.Pods = slices.Grow(r.out.Pods, len(pods))
	if len(own) > 0 { // so far no pod had any, maybe
		r.out.Claims = append(r.out.Claims, make([][]*cluster.PersistentVolumeClaim, len(r.out.Pods)-len(r.out.Claims))...)
		r.out.Claims = slices.Grow(r.out.Claims, len(pods))
	}
	for k := range pods {
		if len(own) > 0 {
			var claims []*cluster.PersistentVolumeClaim
			pods[k], claims = haveClaims(pods[k], pod.Name, pods[k].Name, own)
			r.out.Claims = append(r.out.Claims, claims)
		}
		r.out.Pods = append(r.out.Pods, pods[k])
	}
	return nil
}

// Copies returns so many pods like one, pending and new, with names and uids of their own.
func Copies(pod source.Pod, n int) []source.Pod {
	out := make([]source.Pod, n)
	for k := range out {
		c := Unbound(pod)
		c.Name = fmt.Sprintf("%s-%d", pod.Name, k)
		c.UID, c.Created = fmt.Sprintf("%s #%d", pod.UID, k), 0
		out[k] = c
	}
	return out
}

// Unbound returns the pod as its controller would make it again: pending, not started, nominated to no node.
func Unbound(pod source.Pod) source.Pod {
	pod.NodeName, pod.Nominated, pod.Deleting, pod.Preempted, pod.Started, pod.Attempt = "", "", false, false, 0, 0
	return pod
}

// Bring tells a World of the objects of a workload, claims after the others. Those that are in no namespace take the place of none that is there and
// otherwise: it would tell how that is, by what becomes of pods.
func (w *World) Bring(objects []source.Event) error {
	var claims []*cluster.PersistentVolumeClaim
	for _, e := range objects {
		if e.Kind == source.ObjectSet {
			if claim, is := e.Object.(*cluster.PersistentVolumeClaim); is {
				claims = append(claims, claim)
				continue
			}
			key := e.Object.Key()
			if known, ok := w.State().Object(key); ok && key.Namespace == "" && !known.Same(cluster.ObjectSet{Object: e.Object}) {
				return fmt.Errorf("%s %s: there is one of that name already: give it another", key.Kind, key.Name)
			}
		}
		if err := w.Observe(e); err != nil {
			return err
		}
	}
	for _, claim := range claims {
		if err := w.applyClaim(claim); err != nil {
			return err
		}
	}
	return nil
}

// Add tells a World of a workload and returns its pods, which are pending, in their order.
func (w *World) Add(load Workload) ([]cluster.PodID, error) {
	if err := w.Bring(load.Objects); err != nil {
		return nil, err
	}
	for _, claims := range load.Claims {
		if err := w.AddClaims(claims); err != nil {
			return nil, err
		}
	}
	if err := w.MayCompare(load.Pods); err != nil {
		return nil, err
	}
	for _, pod := range load.Pods {
		if _, known := w.State().Namespace(pod.Namespace); !known {
			if err := w.Observe(newNamespace(pod.Namespace)); err != nil {
				return nil, err
			}
		}
	}
	ids := make([]cluster.PodID, len(load.Pods))
	for k := range load.Pods {
		pod := &load.Pods[k]
		if _, twice := w.State().PodByUID(pod.UID); twice {
			return nil, fmt.Errorf("add pod %s/%s: it is there twice", pod.Namespace, pod.Name)
		}
		var err error
		if ids[k], err = w.AddPod(*pod); err != nil {
			return nil, err
		}
	}
	return ids, nil
}
