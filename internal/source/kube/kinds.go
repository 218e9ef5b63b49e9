package kube

import (
	"hash/maphash"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
	v1 "k8s.io/api/core/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// kind is how the objects of a resource are reduced, and their end told.
type kind struct {
	reduce func(any) *record // nil for an object of another type
	gone   func(types.NamespacedName, types.UID) source.Event
}

// record is an object, reduced as it arrives.
type record struct {
	metav1.ObjectMeta                     // only namespace, name, uid and resource version
	set               func() source.Event // returns what tells the object; nil if it is not to be told
	scheduler         string              // spec.schedulerName of a pod
	status            *podStatus          // of a pod that has no node
	node              *v1.Node            // as it is, if nodes are kept
	pod               *v1.Pod             // likewise, if it is told, without managedFields
	beyond            uint64              // hash of what only extenders read of a node, if there are any
	group             *groupStatus        // of a PodGroup
}

// object returns the object of cluster's that a record is told as, nil if it is not.
func (r *record) object() cluster.Object {
	if r.set == nil {
		return nil
	}
	return r.set().Object
}

// podStatus is what is kept of a pod that has no node, to know what need not be written.
type podStatus struct {
	generation int64
	scheduled  *v1.PodCondition // the PodScheduled condition, nil if it has none
	nominated  string           // the nominated node, "" for none
	unsure     bool             // it may be another: a write had no answer, and may come behind any that has one
	annotated  int              // how many bytes of annotations it has
	written    string           // the resource version that the last write had, "" if none is newer than what has been told
}

// groupStatus is what is kept of a PodGroup, to know what need not be written. It never changes.
type groupStatus struct {
	generation int64
	scheduled  *metav1.Condition // the PodGroupScheduled condition, nil if it has none
}

// reducing returns a reduction of objects of one type; fill says what there is besides the object's identity.
func reducing[O metav1.Object](fill func(O, *record)) func(any) *record {
	return func(obj any) *record {
		o, ok := obj.(O)
		if !ok {
			return nil
		}
		r := &record{ObjectMeta: metav1.ObjectMeta{
			Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
		}}
		fill(o, r)
		return r
	}
}

// nodeKind tells nodes, and keeps them in full if so told. Extenders says that there are some: then a node is touched if something changes that only they
// read.
func nodeKind(keep, extenders bool) kind {
	seed := maphash.MakeSeed()
	return kind{
		reduce: reducing(func(o *v1.Node, r *record) {
			if extenders {
				r.beyond = beyond(seed, o)
			}
			if keep {
				r.node = o
			}
			node := source.ReduceNode(o)
			r.set = func() source.Event { return source.Event{Kind: source.NodeSet, Node: node} }
		}),
		gone: func(name types.NamespacedName, _ types.UID) source.Event {
			e := source.Event{Kind: source.NodeGone}
			e.Node.Name = name.Name
			return e
		},
	}
}

// beyond returns a hash of those parts of a node that Berth does not read, and of which a change is an event in kube-scheduler all the same: annotations, and the
// statuses of conditions. Others, such as the times of heartbeats, change all the time.
func beyond(seed maphash.Seed, n *v1.Node) uint64 {
	statuses := make(map[string]string, len(n.Status.Conditions))
	for _, c := range n.Status.Conditions {
		statuses[string(c.Type)] = string(c.Status)
	}
	return maphash.Comparable(seed, [2]uint64{hashed(seed, n.Annotations), hashed(seed, statuses)})
}

// hashed returns a hash of a map, whatever its order.
func hashed(seed maphash.Seed, m map[string]string) (sum uint64) {
	for key, value := range m {
		sum += maphash.Comparable(seed, [2]string{key, value})
	}
	return sum
}

func namespaceKind() kind {
	return kind{
		reduce: reducing(func(o *v1.Namespace, r *record) {
			name, labels := source.ReduceNamespace(o)
			r.set = func() source.Event { return source.Event{Kind: source.NamespaceSet, Namespace: name, Labels: labels} }
		}),
		gone: func(name types.NamespacedName, _ types.UID) source.Event {
			return source.Event{Kind: source.NamespaceGone, Namespace: name.Name}
		},
	}
}

// podKind tells pods on a node, and those that wait for one of the schedulers. Of others only the identity is kept, for
// the day they are on a node. Coscheduling says which are of the group that their label names. Interest, if it is not nil, returns the extenders that a pod interests. Keep says which of those that are told are kept in full; nil: none.
func podKind(schedulers map[string]bool, coscheduling source.Coscheduling, interest func(*v1.Pod) uint64, keep func(*v1.Pod) bool) kind {
	return kind{
		reduce: reducing(func(o *v1.Pod, r *record) {
			r.scheduler = o.Spec.SchedulerName
			if source.Terminal(o) || o.Spec.NodeName == "" && !schedulers[o.Spec.SchedulerName] {
				return
			}
			if keep != nil && keep(o) {
				o.ManagedFields = nil
				r.pod = o
			}
			pod := coscheduling.ReducePod(o)
			if interest != nil && o.Spec.NodeName == "" {
				pod.Extenders = interest(o)
			}
			r.set = func() source.Event { return source.Event{Kind: source.PodSet, Pod: pod} }
			if o.Spec.NodeName == "" {
				r.status = &podStatus{
					generation: o.Generation, scheduled: conditionOf(o, v1.PodScheduled), nominated: o.Status.NominatedNodeName, annotated: annotated(o),
				}
			}
		}),
		gone: func(name types.NamespacedName, uid types.UID) source.Event {
			e := source.Event{Kind: source.PodGone}
			e.Pod.UID, e.Pod.Namespace, e.Pod.Name = string(uid), name.Namespace, name.Name
			return e
		},
	}
}

// conditionOf returns a copy of a pod's condition, nil if it has none of the type.
func conditionOf(pod *v1.Pod, is v1.PodConditionType) *v1.PodCondition {
	for _, c := range pod.Status.Conditions {
		if c.Type == is {
			return &c
		}
	}
	return nil
}

// podGroupKind tells PodGroups.
func podGroupKind() kind {
	reduced := source.Reductions[cluster.PodGroupKind.String()]
	k := reducedKind(reduced)
	k.reduce = reducing(func(o *schedulingv1alpha2.PodGroup, r *record) {
		r.set = reduced.Reduce(o)
		r.group = groupStatusOf(o)
	})
	return k
}

func groupStatusOf(o *schedulingv1alpha2.PodGroup) *groupStatus {
	is := &groupStatus{generation: o.Generation}
	if c := meta.FindStatusCondition(o.Status.Conditions, schedulingv1alpha2.PodGroupScheduled); c != nil {
		is.scheduled = c.DeepCopy()
	}
	return is
}

// reducedKind tells the objects of any other kind.
func reducedKind(r source.Reduction) kind {
	return kind{
		reduce: reducing(func(o metav1.Object, to *record) { to.set = r.Reduce(o) }),
		gone: func(object types.NamespacedName, _ types.UID) source.Event {
			return r.Gone(object.Namespace, object.Name)
		},
	}
}
