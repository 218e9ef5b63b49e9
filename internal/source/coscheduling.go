package source

import (
	"math"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Coscheduling has the scheduler names of the profiles with the plugin Coscheduling of sigs.k8s.io/scheduler-plugins: pods of these are of the PodGroup of scheduling.x-k8s.io that their label
// names. Nobody changes it.
type Coscheduling map[string]bool

// coschedulingLabel names the group of a pod.
const coschedulingLabel = "scheduling.x-k8s.io/pod-group"

// CoschedulingKind is Coscheduling's PodGroup, and CoschedulingPodGroups the resource.
var (
	CoschedulingKind      = schema.GroupVersionKind{Group: "scheduling.x-k8s.io", Version: "v1alpha1", Kind: "PodGroup"}
	CoschedulingPodGroups = CoschedulingKind.GroupVersion().WithResource("podgroups")
)

// ReducePod is the ReducePod of the package, and puts the pod into the group that its label names, if its scheduler is one of c. What spec.schedulingGroup says counts before the label.
func (c Coscheduling) ReducePod(pod *v1.Pod) Pod {
	p := ReducePod(pod)
	if name := pod.Labels[coschedulingLabel]; name != "" && p.Group == "" && c[pod.Spec.SchedulerName] {
		p.Group = cluster.CoschedulingGroup(name)
	}
	return p
}

// reduceCoscheduling reads of a PodGroup of Coscheduling what scheduling reads. One that wants no pods at least is no gang, as with the plugin. What else its spec says, minResources and
// scheduleTimeoutSeconds, is nothing to who tries the pods themselves, and holds nothing meanwhile.
func reduceCoscheduling(group *unstructured.Unstructured) *cluster.PodGroup {
	g := &cluster.PodGroup{Namespace: group.GetNamespace(), Name: cluster.CoschedulingGroup(group.GetName()), UID: string(group.GetUID())}
	if created := group.GetCreationTimestamp(); !created.IsZero() {
		g.Created = created.UnixNano()
	}
	minMember, there, err := unstructured.NestedInt64(group.Object, "spec", "minMember")
	switch {
	case err != nil: // an API server with the CustomResourceDefinition of scheduler-plugins has none such
		g.Untold = "spec.minMember of the PodGroup is no integer"
	case there && minMember > 0:
		g.Gang, g.MinCount = true, int32(min(minMember, math.MaxInt32))
	}
	return g
}

// CoschedulingReduction is how PodGroups of Coscheduling are told, as an API server has them.
var CoschedulingReduction = Reduction{
	Reduce: ObjectReduction(cluster.PodGroupKind, reduceCoscheduling).Reduce,
	Gone: func(namespace, name string) Event {
		return Event{Kind: ObjectGone, Key: cluster.ObjectKey{Kind: cluster.PodGroupKind, Namespace: namespace, Name: cluster.CoschedulingGroup(name)}}
	},
}
