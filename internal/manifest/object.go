package manifest

import v1 "k8s.io/api/core/v1"

// The kinds of objects.
const (
	KindNode      = "Node"
	KindPod       = "Pod"
	KindNamespace = "Namespace"
)

// Object is a node, a pod or a namespace: exactly one of the fields is set.
type Object struct {
	Node      *v1.Node
	Pod       *v1.Pod
	Namespace *v1.Namespace

	// Document is the number, from 1, of the document of the input that the object is from. 0 if it is from none.
	Document int
}

// Kind returns Node, Pod or Namespace, "" for an object without any.
func (o Object) Kind() string {
	switch {
	case o.Node != nil:
		return KindNode
	case o.Pod != nil:
		return KindPod
	case o.Namespace != nil:
		return KindNamespace
	}
	return ""
}

// NamespaceName returns the namespace that the object is in, "" for nodes and namespaces.
func (o Object) NamespaceName() string {
	if o.Pod != nil {
		return o.Pod.Namespace
	}
	return ""
}

// Name returns the object's name.
func (o Object) Name() string {
	switch {
	case o.Node != nil:
		return o.Node.Name
	case o.Pod != nil:
		return o.Pod.Name
	case o.Namespace != nil:
		return o.Namespace.Name
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
