package manifest

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The kinds of objects.
const (
	KindNode                  = "Node"
	KindPod                   = "Pod"
	KindNamespace             = "Namespace"
	KindService               = "Service"
	KindReplicationController = "ReplicationController"
	KindReplicaSet            = "ReplicaSet"
	KindStatefulSet           = "StatefulSet"
	KindPodDisruptionBudget   = "PodDisruptionBudget"
)

// kinds are the kinds in the order in which they are listed to people.
var kinds = []string{
	KindNode, KindPod, KindNamespace, KindService, KindReplicationController, KindReplicaSet, KindStatefulSet,
	KindPodDisruptionBudget,
}

// Kinds returns the kinds of objects.
func Kinds() []string { return slices.Clone(kinds) }

// Namespaced reports whether objects of a kind are in a namespace.
func Namespaced(kind string) bool {
	return slices.Contains(kinds, kind) && kind != KindNode && kind != KindNamespace
}

// apiVersion returns the API version of a kind.
func apiVersion(kind string) string {
	switch kind {
	case KindReplicaSet, KindStatefulSet:
		return appsv1.SchemeGroupVersion.String()
	case KindPodDisruptionBudget:
		return policyv1.SchemeGroupVersion.String()
	}
	return v1.SchemeGroupVersion.String()
}

// Object is an object of one of the kinds: exactly one of the pointers is set. Of services and controllers only the
// selector counts: nothing makes pods of their templates. Of a PodDisruptionBudget only the selector counts, and
// status.disruptionsAllowed and status.disruptedPods as the manifest says them: nothing computes them from the rest.
type Object struct {
	Node                  *v1.Node
	Pod                   *v1.Pod
	Namespace             *v1.Namespace
	Service               *v1.Service
	ReplicationController *v1.ReplicationController
	ReplicaSet            *appsv1.ReplicaSet
	StatefulSet           *appsv1.StatefulSet
	PodDisruptionBudget   *policyv1.PodDisruptionBudget

	// Document is the number, from 1, of the document of the input that the object is from. 0 if it is from none.
	Document int
}

// New returns an empty object of a kind, false if there is no such kind.
func New(kind string) (Object, bool) {
	var o Object
	switch kind {
	case KindNode:
		o.Node = &v1.Node{}
	case KindPod:
		o.Pod = &v1.Pod{}
	case KindNamespace:
		o.Namespace = &v1.Namespace{}
	case KindService:
		o.Service = &v1.Service{}
	case KindReplicationController:
		o.ReplicationController = &v1.ReplicationController{}
	case KindReplicaSet:
		o.ReplicaSet = &appsv1.ReplicaSet{}
	case KindStatefulSet:
		o.StatefulSet = &appsv1.StatefulSet{}
	case KindPodDisruptionBudget:
		o.PodDisruptionBudget = &policyv1.PodDisruptionBudget{}
	default:
		return o, false
	}
	return o, true
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
	case o.Service != nil:
		return o.Service
	case o.ReplicationController != nil:
		return o.ReplicationController
	case o.ReplicaSet != nil:
		return o.ReplicaSet
	case o.StatefulSet != nil:
		return o.StatefulSet
	case o.PodDisruptionBudget != nil:
		return o.PodDisruptionBudget
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
	switch o.Value().(type) {
	case *v1.Node:
		return KindNode
	case *v1.Pod:
		return KindPod
	case *v1.Namespace:
		return KindNamespace
	case *v1.Service:
		return KindService
	case *v1.ReplicationController:
		return KindReplicationController
	case *appsv1.ReplicaSet:
		return KindReplicaSet
	case *appsv1.StatefulSet:
		return KindStatefulSet
	case *policyv1.PodDisruptionBudget:
		return KindPodDisruptionBudget
	}
	return ""
}

// NamespaceName returns the namespace that the object is in, "" for nodes and namespaces.
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
