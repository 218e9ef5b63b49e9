package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/manifest"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/google/uuid"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// maxTxnBytes keeps a transaction well below the size that etcd refuses.
	maxTxnBytes = 1 << 20
	// listAbove is how many objects are read by listing all keys rather than one by one.
	listAbove = 64
	// storeTries is how often an object is read and written when it keeps changing between the two.
	storeTries = 5
)

// ErrConflict: the object kept changing while it was being written.
var ErrConflict = errors.New("changed by someone else meanwhile")

// Result is what Apply did, or with dryRun would do, to an object.
type Result string

// The results of Apply.
const (
	Created    Result = "created"
	Configured Result = "configured"
	Unchanged  Result = "unchanged"
)

// Applied is one object that was applied.
type Applied struct {
	Kind, Namespace, Name string
	Result                Result
}

// Store gets manifests in and out of etcd. Its methods may be called concurrently, by several processes too.
type Store struct {
	etcd *coord.Client
	cfg  Config
}

// NewStore returns the store of the manifests that are kept in etcd.
func NewStore(etcd *coord.Client, cfg Config) *Store {
	return &Store{etcd: etcd, cfg: cfg.withDefaults()}
}

// write is an object on its way into etcd.
type write struct {
	object  manifest.Object
	key     string
	stored  *coord.KV // what it replaces, nil if nothing
	value   []byte
	result  Result
	applied *Applied
}

// Apply makes the stored objects equal to the given ones, which must be valid and of different names, and answers for
// each in order. With dryRun it writes nothing. Of a stored pod only labels, annotations, owners, the phase, the start time,
// the nominated node, fewer scheduling gates and more tolerations can be applied; if anything else differs the error is a *manifest.Error
// and nothing is written. A label that a matchLabelKeys or mismatchLabelKeys names is in the spec too, and cannot be changed.
//
// Objects are written in transactions of many, not in one. After any other error those before it may have been written
// and applying all again is safe.
func (s *Store) Apply(ctx context.Context, objects []manifest.Object, dryRun bool) ([]Applied, error) {
	// 1. What is there, and what has to be written?
	applied := make([]Applied, len(objects))
	writes := make([]*write, len(objects))
	for i, o := range objects {
		applied[i] = Applied{Kind: o.Kind(), Namespace: o.NamespaceName(), Name: o.Name()}
		key, ok := keyOf(o.Kind(), o.NamespaceName(), o.Name())
		if !ok {
			return nil, fmt.Errorf("apply object %d: it is of no kind", i)
		}
		writes[i] = &write{object: o, key: key, applied: &applied[i]}
	}
	if err := s.read(ctx, writes); err != nil {
		return nil, err
	}
	var violations []manifest.Violation
	for _, w := range writes {
		wrong, err := s.plan(w)
		if err != nil {
			return nil, err
		}
		violations = append(violations, wrong...)
	}
	if len(violations) > 0 {
		return nil, &manifest.Error{Violations: violations}
	}
	if dryRun {
		for _, w := range writes {
			w.applied.Result = w.result
		}
		return applied, nil
	}

	// 2. Write, many at a time.
	var batch []*write
	size := 0
	for _, w := range writes {
		w.applied.Result = w.result
		if w.result == Unchanged {
			continue
		}
		if len(batch) == coord.MaxTxnOps || len(batch) > 0 && size+len(w.value) > maxTxnBytes {
			if err := s.writeBatch(ctx, batch); err != nil {
				return nil, err
			}
			batch, size = nil, 0
		}
		batch = append(batch, w)
		size += len(w.value) + len(w.key)
	}
	if err := s.writeBatch(ctx, batch); err != nil {
		return nil, err
	}
	return applied, nil
}

// read finds what each of the writes would replace.
func (s *Store) read(ctx context.Context, writes []*write) error {
	if len(writes) <= listAbove {
		for _, w := range writes {
			kv, _, err := s.etcd.Get(ctx, w.key)
			if err != nil {
				return fmt.Errorf("read %s: %w", w.object, err)
			}
			w.stored = kv
		}
		return nil
	}
	byKey := make(map[string]*write, len(writes))
	prefixes := map[string]bool{}
	for _, w := range writes {
		prefix, _ := split(w.key)
		byKey[w.key], prefixes[prefix] = w, true
	}
	for prefix := range prefixes {
		kvs, _, err := s.etcd.List(ctx, prefix)
		if err != nil {
			return fmt.Errorf("read stored objects: %w", err)
		}
		for i := range kvs {
			if w := byKey[kvs[i].Key]; w != nil {
				w.stored = &kvs[i]
			}
		}
	}
	return nil
}

// writeBatch writes all in one transaction, and one by one if something has changed since it was read.
func (s *Store) writeBatch(ctx context.Context, batch []*write) error {
	if len(batch) == 0 {
		return nil
	}
	conds := make([]coord.Cond, len(batch))
	ops := make([]coord.Op, len(batch))
	for i, w := range batch {
		conds[i], ops[i] = w.unchanged(), coord.Put(w.key, w.value)
	}
	ok, _, err := s.etcd.Txn(ctx, conds, ops)
	if err != nil {
		return fmt.Errorf("write %s and %d more: %w", batch[0].object, len(batch)-1, err)
	}
	if ok {
		return nil
	}
	for _, w := range batch {
		if err := s.writeOne(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) writeOne(ctx context.Context, w *write) error {
	for range storeTries {
		kv, _, err := s.etcd.Get(ctx, w.key)
		if err != nil {
			return fmt.Errorf("read %s: %w", w.object, err)
		}
		w.stored = kv
		wrong, err := s.plan(w)
		if err != nil {
			return err
		}
		if len(wrong) > 0 {
			return &manifest.Error{Violations: wrong}
		}
		w.applied.Result = w.result
		if w.result == Unchanged {
			return nil
		}
		ok, _, err := s.etcd.Txn(ctx, []coord.Cond{w.unchanged()}, []coord.Op{coord.Put(w.key, w.value)})
		if err != nil {
			return fmt.Errorf("write %s: %w", w.object, err)
		}
		if ok {
			return nil
		}
	}
	return fmt.Errorf("write %s: %w", w.object, ErrConflict)
}

// unchanged holds while the stored object is the one that was read.
func (w *write) unchanged() coord.Cond {
	if w.stored == nil {
		return coord.IfAbsent(w.key)
	}
	return coord.IfModRevision(w.key, w.stored.ModRevision)
}

// plan finds what has to be written, given what is stored. It returns what may not be applied.
func (s *Store) plan(w *write) ([]manifest.Violation, error) {
	object := kept(w.object)
	meta := object.Meta()
	if w.stored == nil {
		w.result = Created
		meta.UID = types.UID(uuid.NewString())
		meta.CreationTimestamp = metav1.NewTime(s.cfg.Now().UTC())
	} else {
		w.result = Configured
		same, wrong, err := compare(w, object)
		if err != nil || len(wrong) > 0 {
			return wrong, err
		}
		if same {
			w.result = Unchanged
			return nil, nil
		}
	}
	var err error
	if w.value, err = encode(object); err != nil {
		return nil, fmt.Errorf("encode %s: %w", w.object, err)
	}
	return nil, nil
}

// kept returns a copy of an object with only what is kept of it. The two share what they have in common.
func kept(o manifest.Object) manifest.Object {
	var out manifest.Object
	var owners []metav1.OwnerReference
	switch {
	case o.Node != nil:
		node := *o.Node
		node.Status = v1.NodeStatus{
			Capacity: node.Status.Capacity, Allocatable: node.Status.Allocatable,
			Images: node.Status.Images, DeclaredFeatures: node.Status.DeclaredFeatures,
		}
		out.Node = &node
	case o.Pod != nil:
		pod := *o.Pod
		if source.Terminal(&pod) {
			pod.Status = v1.PodStatus{Phase: pod.Status.Phase}
		} else {
			pod.Status = v1.PodStatus{NominatedNodeName: pod.Status.NominatedNodeName, StartTime: pod.Status.StartTime}
		}
		out.Pod, owners = &pod, pod.OwnerReferences
	case o.Namespace != nil:
		namespace := *o.Namespace
		out.Namespace = &namespace
	default:
		out = o.Kept()
		if _, claim := o.Other.(*v1.PersistentVolumeClaim); claim {
			owners = o.Meta().OwnerReferences
		}
	}
	// What a server sets is not the manifest's to say.
	meta := o.Meta()
	*out.Meta() = metav1.ObjectMeta{
		Name: meta.Name, Namespace: meta.Namespace, Labels: meta.Labels, Annotations: meta.Annotations, OwnerReferences: owners,
	}
	return out
}

// encode returns the value that is stored of an object, which kept has returned. A node's has only the fields that kept keeps of
// its status: v1.NodeStatus encodes a dozen more, empty, which take half of the room of a node in etcd.
func encode(o manifest.Object) ([]byte, error) {
	if o.Node == nil {
		return json.Marshal(o.Value())
	}
	type status struct {
		Capacity         v1.ResourceList     `json:"capacity,omitempty"`
		Allocatable      v1.ResourceList     `json:"allocatable,omitempty"`
		Images           []v1.ContainerImage `json:"images,omitempty"`
		DeclaredFeatures []string            `json:"declaredFeatures,omitempty"`
	}
	now := &o.Node.Status
	return json.Marshal(struct {
		metav1.TypeMeta
		metav1.ObjectMeta `json:"metadata"`
		Spec              v1.NodeSpec `json:"spec"`
		Status            status      `json:"status"`
	}{o.Node.TypeMeta, o.Node.ObjectMeta, o.Node.Spec, status{now.Capacity, now.Allocatable, now.Images, now.DeclaredFeatures}})
}

// compare gives object the identity of the stored one and reports whether they are the same.
func compare(w *write, object manifest.Object) (same bool, wrong []manifest.Violation, err error) {
	stored, _ := manifest.New(object.Kind())
	if err := manifest.UnmarshalStored(w.stored.Value, stored.Value()); err != nil {
		return false, nil, fmt.Errorf("decode stored %s: %w", w.object, err)
	}
	meta, identity := object.Meta(), stored.Meta()
	meta.UID, meta.CreationTimestamp = identity.UID, identity.CreationTimestamp
	if object.Pod != nil {
		wrong, err = podChange(w.object, stored.Pod, object.Pod)
		if err != nil || len(wrong) > 0 {
			return false, wrong, err
		}
	}
	bound(stored.Value(), object.Value())
	return equality.Semantic.DeepEqual(stored.Value(), object.Value()), nil, nil
}

// Delete removes an object, a pod with its placement and its condition. The pods on a node that is removed, or in a
// namespace, stay. It returns ErrNotFound if there is no such object. Kind is one of package manifest's.
func (s *Store) Delete(ctx context.Context, kind, namespace, name string) error {
	key, ok := keyOf(kind, namespace, name)
	if !ok {
		return fmt.Errorf("delete %q %s/%s: unknown kind", kind, namespace, name)
	}
	if !manifest.Namespaced(kind) {
		namespace = ""
	}
	what := name
	if namespace != "" {
		what = namespace + "/" + name
	}
	for range storeTries {
		kv, _, err := s.etcd.Get(ctx, key)
		if err != nil {
			return fmt.Errorf("delete %s %s: %w", kind, what, err)
		}
		if kv == nil {
			return fmt.Errorf("delete %s %s: %w", kind, what, ErrNotFound)
		}
		ops := []coord.Op{coord.Delete(key)}
		if kind == manifest.KindPod {
			var pod metav1.PartialObjectMetadata
			if err := json.Unmarshal(kv.Value, &pod); err != nil {
				return fmt.Errorf("delete %s %s: decode: %w", kind, what, err)
			}
			ops = deletePod(key, string(pod.UID))
		}
		ok, _, err := s.etcd.Txn(ctx, []coord.Cond{coord.IfCreateRevision(key, kv.CreateRevision)}, ops)
		if err != nil {
			return fmt.Errorf("delete %s %s: %w", kind, what, err)
		}
		if ok {
			return nil
		}
	}
	return fmt.Errorf("delete %s %s: %w", kind, what, ErrConflict)
}
