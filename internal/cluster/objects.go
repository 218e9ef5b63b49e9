package cluster

import (
	"bytes"
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
)

// ObjectKind is the number of a kind of objects. It is part of digests and of the log, so it stays what it is, and is never given
// to another kind.
type ObjectKind int32

// The kinds of objects. Their numbers follow those of what else counts in digests.
const (
	BudgetKind ObjectKind = kindObject // PodDisruptionBudgets

	PersistentVolumeKind      ObjectKind = kindObject + 1
	PersistentVolumeClaimKind ObjectKind = kindObject + 2
	StorageClassKind          ObjectKind = kindObject + 3
	CSINodeKind               ObjectKind = kindObject + 4
	CSIDriverKind             ObjectKind = kindObject + 5
	CSIStorageCapacityKind    ObjectKind = kindObject + 6
	VolumeAttachmentKind      ObjectKind = kindObject + 7

	// UnservedKind is no kind of Kubernetes: its objects name resources that cannot be read.
	UnservedKind ObjectKind = kindObject + 8

	PodGroupKind ObjectKind = kindObject + 9
)

// objectKinds says of each kind how Kubernetes calls it, and returns an object that has its key and nothing else. One of a kind that
// is in no namespace has its key only if that names none.
var objectKinds = map[ObjectKind]objectKind{
	BudgetKind: {"PodDisruptionBudget", func(k ObjectKey) Object { return &Budget{Namespace: k.Namespace, Name: k.Name} }},

	PersistentVolumeKind: {"PersistentVolume", func(k ObjectKey) Object { return &PersistentVolume{Name: k.Name} }},
	PersistentVolumeClaimKind: {"PersistentVolumeClaim", func(k ObjectKey) Object {
		return &PersistentVolumeClaim{Namespace: k.Namespace, Name: k.Name}
	}},
	StorageClassKind: {"StorageClass", func(k ObjectKey) Object { return &StorageClass{Name: k.Name} }},
	CSINodeKind:      {"CSINode", func(k ObjectKey) Object { return &CSINode{Name: k.Name} }},
	CSIDriverKind:    {"CSIDriver", func(k ObjectKey) Object { return &CSIDriver{Name: k.Name} }},
	CSIStorageCapacityKind: {"CSIStorageCapacity", func(k ObjectKey) Object {
		return &CSIStorageCapacity{Namespace: k.Namespace, Name: k.Name}
	}},
	VolumeAttachmentKind: {"VolumeAttachment", func(k ObjectKey) Object { return &VolumeAttachment{Name: k.Name} }},
	PodGroupKind:         {"PodGroup", func(k ObjectKey) Object { return &PodGroup{Namespace: k.Namespace, Name: k.Name} }},
	UnservedKind:         {"Unserved", func(k ObjectKey) Object { return &Unserved{Name: k.Name} }},
}

type objectKind struct {
	name string
	zero func(ObjectKey) Object
}

// maxObjectKind bounds the numbers of kinds, those of later releases too: for each there is something in every State.
const maxObjectKind ObjectKind = 1<<10 - 1

// Possible reports whether a kind, perhaps of a later release, can have that number.
func (k ObjectKind) Possible() bool { return k >= kindObject && k <= maxObjectKind }

func (k ObjectKind) String() string {
	return cmp.Or(objectKinds[k].name, fmt.Sprintf("kind %d", int32(k)))
}

// OfKubernetes reports whether objects of the kind are Kubernetes', and not Berth's own.
func (k ObjectKind) OfKubernetes() bool { return k != UnservedKind }

// OfVolumes reports whether volumes are made of objects of the kind.
func (k ObjectKind) OfVolumes() bool { return k >= PersistentVolumeKind && k <= VolumeAttachmentKind }

// ObjectKinds returns the kinds that this release knows, by number.
func ObjectKinds() []ObjectKind { return slices.Sorted(maps.Keys(objectKinds)) }

// AddObjectKind makes one more kind known, until the function that it returns is called. It is for tests, which do it before
// anything else runs: those of the ledger are in objectKinds.
func AddObjectKind(k ObjectKind, name string, zero func(ObjectKey) Object) (remove func()) {
	objectKinds[k] = objectKind{name, zero}
	return func() { delete(objectKinds, k) }
}

// ObjectKey names an object. Namespace is "" if objects of the kind are in none.
type ObjectKey struct {
	Kind            ObjectKind
	Namespace, Name string
}

// Object is a Kubernetes object that the state only keeps, to be found by its key, reduced to what scheduling reads. It is a
// pointer to a struct whose fields are exported, and are texts, numbers, flags, structs or lists of these. It never changes once
// it is in a state.
//
// What it encodes is its digest, its equality and its body in the log. So a field that comes in a later release comes last, is
// written only if it or one behind it is not zero, and read only while there is More: a member of the release before keeps the
// rest as it is (see ObjectSet), and has the same digest.
type Object interface {
	// Key returns the name of the object.
	Key() ObjectKey
	// Encode writes all of it but the key.
	Encode(*Encoder)
	// Decode reads what Encode has written, into an object that has its key and nothing else.
	Decode(*Decoder)
	// Unsupported returns the object that is told instead of one that is too large to be told: a small one of the same name. Why
	// is for people.
	Unsupported(why string) Object
}

// Unread is an object of a kind that this release does not know: all that it says is in ObjectSet.More. It is kept, and counts in
// the digest.
type Unread struct{ ObjectKey }

// Key returns the name of the object.
func (u *Unread) Key() ObjectKey { return u.ObjectKey }

// Encode writes nothing.
func (u *Unread) Encode(*Encoder) {}

// Decode reads nothing.
func (u *Unread) Decode(*Decoder) {}

// Unsupported returns the object itself.
func (u *Unread) Unsupported(string) Object { return u }

// NewObject returns an object that has its key and nothing else. It is an Unread one if the kind is not known.
func NewObject(key ObjectKey) Object {
	if kind, known := objectKinds[key.Kind]; known {
		return kind.zero(key)
	}
	return &Unread{key}
}

// Body returns what the object says: all of it but its key.
func (d ObjectSet) Body() []byte {
	var e Encoder
	d.Object.Encode(&e)
	return append(e.b, d.More...)
}

// Same reports whether two objects say the same. A list that is empty is the same as one that is absent.
func (d ObjectSet) Same(other ObjectSet) bool {
	return d.Object.Key() == other.Object.Key() && bytes.Equal(d.Body(), other.Body())
}

// DecodeObject returns the object of that name whose Body it is given. It fails on bytes that are the Body of none, and on a name that no
// object of the kind has.
func DecodeObject(key ObjectKey, body []byte) (ObjectSet, error) {
	set := ObjectSet{Object: NewObject(key)}
	if set.Object.Key() != key {
		return ObjectSet{}, fmt.Errorf("decode %v %s/%s: objects of the kind are in no namespace", key.Kind, key.Namespace, key.Name)
	}
	d := Decoder{b: body}
	set.Object.Decode(&d)
	set.More = string(d.b)
	switch {
	case d.err != nil:
		return ObjectSet{}, fmt.Errorf("decode %v %s/%s: %w", key.Kind, key.Namespace, key.Name, d.err)
	case !bytes.Equal(set.Body(), body):
		return ObjectSet{}, fmt.Errorf("decode %v %s/%s: there is another encoding of it", key.Kind, key.Namespace, key.Name)
	}
	return set, nil
}

func (d ObjectSet) hash() uint64 {
	var e Encoder
	key := d.Object.Key()
	e.Int(int64(key.Kind))
	e.Text(key.Namespace)
	e.Text(key.Name)
	d.Object.Encode(&e)
	return hashBytes(append(e.b, d.More...))
}

// objects are the objects of a state.
type objects struct {
	kinds    []objectsOf // by ObjectKind, from kindObject on, as far as there has been any
	restored Seq         // of the snapshot that the state began with
}

// objectsOf are the objects of a kind.
type objectsOf struct {
	all      map[string]map[string]ObjectSet // by namespace and name; no namespace is empty
	modified Seq
}

func (o *objects) of(kind ObjectKind) objectsOf {
	if i := int(kind) - kindObject; i >= 0 && i < len(o.kinds) {
		return o.kinds[i]
	}
	return objectsOf{}
}

func (o *objects) at(key ObjectKey) ObjectSet { return o.of(key.Kind).all[key.Namespace][key.Name] }

func (o *objects) restore(at Seq) {
	o.restored = at
	for i := range o.kinds {
		o.kinds[i].modified = at
	}
}

func (o *objects) clone() objects {
	c := objects{kinds: slices.Clone(o.kinds), restored: o.restored}
	for i := range c.kinds {
		c.kinds[i].all = cloneMaps(c.kinds[i].all)
	}
	return c
}

// Object returns the delta that sets an object as it is. False: there is none of that name.
func (s *State) Object(key ObjectKey) (ObjectSet, bool) {
	set := s.objects.at(key)
	return set, set.Object != nil
}

// Objects yields the deltas that set all objects, by kind, namespace and name.
func (s *State) Objects() iter.Seq[ObjectSet] {
	return func(yield func(ObjectSet) bool) {
		for _, of := range s.objects.kinds {
			for _, namespace := range slices.Sorted(maps.Keys(of.all)) {
				for _, name := range slices.Sorted(maps.Keys(of.all[namespace])) {
					if !yield(of.all[namespace][name]) {
						return
					}
				}
			}
		}
	}
}

// ObjectsModified returns the seq of the last delta that changed an object of a kind.
func (s *State) ObjectsModified(kind ObjectKind) Seq {
	return max(s.objects.restored, s.objects.of(kind).modified)
}

// ObjectAt returns an object of the type of its kind, the zero value if there is none. Readers must not change it.
func ObjectAt[O Object](s *State, key ObjectKey) O {
	o, _ := s.objects.at(key).Object.(O)
	return o
}

// ObjectsIn yields the objects of a kind and a namespace, of the type of the kind, in no order. Readers must not change them.
func ObjectsIn[O Object](s *State, kind ObjectKind, namespace string) iter.Seq[O] {
	return func(yield func(O) bool) {
		for _, set := range s.objects.of(kind).all[namespace] {
			if o, ok := set.Object.(O); ok && !yield(o) {
				return
			}
		}
	}
}

// objectsOfKind yields the objects of a kind in all namespaces, as ObjectsIn does those of one.
func objectsOfKind[O Object](s *State, kind ObjectKind) iter.Seq[O] {
	return func(yield func(O) bool) {
		for namespace := range s.objects.of(kind).all {
			for o := range ObjectsIn[O](s, kind, namespace) {
				if !yield(o) {
					return
				}
			}
		}
	}
}

func (s *State) setObject(d ObjectSet) {
	key := d.Object.Key()
	s.removeObject(key)
	i := int(key.Kind) - kindObject
	if missing := i + 1 - len(s.objects.kinds); missing > 0 {
		s.objects.kinds = append(s.objects.kinds, make([]objectsOf, missing)...)
	}
	of := &s.objects.kinds[i]
	if of.all == nil {
		of.all = make(map[string]map[string]ObjectSet)
	}
	if of.all[key.Namespace] == nil {
		of.all[key.Namespace] = make(map[string]ObjectSet)
	}
	of.all[key.Namespace][key.Name] = d
	of.modified = s.version.Seq
	s.digest += d.hash()
}

func (s *State) removeObject(key ObjectKey) {
	was, ok := s.Object(key)
	if !ok {
		return
	}
	of := &s.objects.kinds[int(key.Kind)-kindObject]
	delete(of.all[key.Namespace], key.Name)
	if len(of.all[key.Namespace]) == 0 {
		delete(of.all, key.Namespace)
	}
	of.modified = s.version.Seq
	s.digest -= was.hash()
}
