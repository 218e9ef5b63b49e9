package manifest

import (
	"reflect"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Object is an object of one of the kinds: exactly one of the first four is set. Of services and controllers only the
// selector counts: nothing makes pods of their templates. Of a PodDisruptionBudget only the selector counts, and
// status.disruptionsAllowed and status.disruptedPods as the manifest says them: nothing computes them from the rest. Nor does anything
// provision volumes, or bind claims to them: of a PersistentVolume and a PersistentVolumeClaim, status.phase counts as the manifest says it.
type Object struct {
	Node      *v1.Node
	Pod       *v1.Pod
	Namespace *v1.Namespace
	Other     metav1.Object // of any other kind: a pointer to what it is in the API

	// Document is the number, from 1, of the document of the input that the object is from. 0 if it is from none.
	Document int
}

// Value returns the pointer that is set, for encoding and decoding; nil if none is.
func (o Object) Value() any {
	switch {
	case o.Node != nil:
		return o.Node
	case o.Pod != nil:
		return o.Pod
	case o.Namespace != nil:
		return o.Namespace
	case o.Other != nil:
		return o.Other
	}
	return nil
}

// Meta returns the object's metadata, to be read and written; nil if no pointer is set.
func (o Object) Meta() *metav1.ObjectMeta {
	if value, ok := o.Value().(metav1.ObjectMetaAccessor); ok {
		meta, _ := value.GetObjectMeta().(*metav1.ObjectMeta)
		return meta
	}
	return nil
}

// Kind returns one of the constants, "" for an object without any pointer.
func (o Object) Kind() string {
	switch {
	case o.Node != nil:
		return KindNode
	case o.Pod != nil:
		return KindPod
	case o.Namespace != nil:
		return KindNamespace
	}
	if k := o.otherKind(); k != nil {
		return k.name
	}
	return ""
}

// otherKind returns the kind of Other, nil if it is not set.
func (o Object) otherKind() *kind {
	for i := range kinds {
		if o.Other != nil && kinds[i].of == reflect.TypeOf(o.Other) {
			return &kinds[i]
		}
	}
	return nil
}

// Kept returns an object of the kind of Other with only what counts of that, and no metadata. The two share what they have in
// common.
func (o Object) Kept() Object {
	k := o.otherKind()
	out := k.zero()
	k.keep(o, out)
	return out
}

// NamespaceName returns the namespace that the object is in, "" if objects of its kind are in none.
func (o Object) NamespaceName() string {
	if Namespaced(o.Kind()) {
		return o.Meta().Namespace
	}
	return ""
}

// Name returns the object's name.
func (o Object) Name() string {
	if meta := o.Meta(); meta != nil {
		return meta.Name
	}
	return ""
}

// String returns kind and name, with the namespace if there is one: "Pod default/web".
func (o Object) String() string { return title(o.Kind(), o.NamespaceName(), o.Name()) }

// title names an object as far as it has a name.
func title(kind, namespace, name string) string {
	switch {
	case name == "":
		return kind
	case namespace == "":
		return kind + " " + name
	}
	return kind + " " + namespace + "/" + name
}
