package extender

import (
	"encoding/json"
	"iter"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// Pod is a pod as extenders are told of it. It is encoded once, when it is first sent in full, however many are asked.
// It is safe for concurrent use.
type Pod struct {
	object *corev1.Pod
	json   func() ([]byte, error)
}

// NewPod returns a Pod of an object that nobody changes any more. kube-scheduler sends pods without kind, apiVersion and managedFields.
func NewPod(object *corev1.Pod) *Pod { return &Pod{object, once(object)} }

// String is the pod's namespace and name.
func (p *Pod) String() string { return p.object.Namespace + "/" + p.object.Name }

// Node is one version of a node as extenders are told of it. It is encoded once, when it is first sent in full; who keeps a Node for as long as the
// node does not change saves most of what a request costs. It is safe for concurrent use.
type Node struct {
	object *corev1.Node
	json   func() ([]byte, error)
}

// NewNode returns a Node of an object that nobody changes any more. kube-scheduler sends nodes without kind and apiVersion, but with managedFields.
func NewNode(object *corev1.Node) *Node { return &Node{object, once(object)} }

// Name is the node's name.
func (n *Node) Name() string { return n.object.Name }

// Object is the node, which nobody changes: what NewNode was given, or what an extender has answered, which may be another object.
func (n *Node) Object() *corev1.Node { return n.object }

func once(object any) func() ([]byte, error) {
	return sync.OnceValues(func() ([]byte, error) { return json.Marshal(object) })
}

// ResourceNames returns the names of resources by which an extender is interested in a pod, some of them twice: those that containers and init
// containers request or are limited in, whatever the quantity. What the pod as a whole requests does not count, nor its overhead.
func ResourceNames(pod *corev1.Pod) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
			for i := range containers {
				for _, list := range []corev1.ResourceList{containers[i].Resources.Requests, containers[i].Resources.Limits} {
					for name := range list {
						if !yield(string(name)) {
							return
						}
					}
				}
			}
		}
	}
}

// question is what filters and prioritizers are asked: a pod, and nodes by name or in full. Each of the two bodies is made once, by whoever needs it
// first. They are what json.Marshal makes of an ExtenderArgs.
type question struct{ byName, inFull func() ([]byte, error) }

func ask(pod *Pod, nodes []*Node) *question {
	return &question{
		byName: sync.OnceValues(func() ([]byte, error) {
			list := make([]string, len(nodes))
			for i, n := range nodes {
				list[i] = n.Name()
			}
			names, err := json.Marshal(list)
			if err != nil {
				return nil, err
			}
			return body(pod, `,"Nodes":null,"NodeNames":`, [][]byte{names}, `}`)
		}),
		inFull: sync.OnceValues(func() ([]byte, error) {
			if len(nodes) == 0 {
				return body(pod, `,"Nodes":{"metadata":{},"items":null},"NodeNames":null}`, nil, "")
			}
			items := make([][]byte, len(nodes))
			for i, n := range nodes {
				var err error
				if items[i], err = n.json(); err != nil {
					return nil, err
				}
			}
			return body(pod, `,"Nodes":{"metadata":{},"items":[`, items, `]},"NodeNames":null}`)
		}),
	}
}

// body returns the body of a question: the pod, what comes behind it, items with commas between, and the end.
func body(pod *Pod, then string, items [][]byte, end string) ([]byte, error) {
	text, err := pod.json()
	if err != nil {
		return nil, err
	}
	const head = `{"Pod":`
	size := len(head) + len(text) + len(then) + len(end)
	for _, item := range items {
		size += len(item) + 1
	}
	out := slices.Grow([]byte(head), size-len(head))
	out = append(append(out, text...), then...)
	for i, item := range items {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, item...)
	}
	return append(out, end...), nil
}
