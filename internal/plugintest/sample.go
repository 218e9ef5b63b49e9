package plugintest

import (
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-scheduler/berth/internal/cluster"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/manifest"
	"github.com/berth-scheduler/berth/internal/source"
)

// sample is what plugins are asked about.
type sample struct {
	nodes []*v1.Node
	pods  []*v1.Pod

	objects, pod, annotations bool // plugins of the process depend on them
}

// maxKinds is how many pods of a sample are asked about: the first.
const maxKinds = 8

// take takes the nodes and pods of some objects, and makes up what there is none of.
func take(objects []manifest.Object) sample {
	var s sample
	for _, o := range objects {
		if o.Node != nil {
			s.nodes = append(s.nodes, o.Node)
		}
		if o.Pod != nil && len(s.pods) < maxKinds {
			s.pods = append(s.pods, o.Pod)
		}
	}
	if len(s.nodes) == 0 {
		s.nodes = madeUpNodes()
	}
	if len(s.pods) == 0 {
		s.pods = madeUpPods()
	}
	return s
}

// gpuModel is what the examples look at.
const gpuModel = "example.com/gpu-model"

func madeUpNodes() []*v1.Node {
	var nodes []*v1.Node
	for i := range 24 {
		node := &v1.Node{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i), UID: types.UID(fmt.Sprint("node-uid-", i)), Labels: map[string]string{
				v1.LabelHostname: fmt.Sprint("node-", i), v1.LabelTopologyZone: fmt.Sprint("zone-", i%3), v1.LabelArchStable: "amd64", v1.LabelOSStable: "linux",
				v1.LabelInstanceTypeStable: fmt.Sprint("large-", i%4),
			}},
			Status: v1.NodeStatus{Allocatable: v1.ResourceList{
				v1.ResourceCPU: resource.MustParse(fmt.Sprint(4 << (i % 4))), v1.ResourceMemory: resource.MustParse(fmt.Sprint(16<<(i%4), "Gi")),
				v1.ResourcePods: resource.MustParse("110"),
			}},
		}
		if i%2 == 0 {
			node.Labels[gpuModel] = []string{"a100", "h100", "l4"}[i%3]
			node.Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("8")
		}
		if i%5 == 0 {
			node.Spec.Taints = []v1.Taint{{Key: "dedicated", Value: "batch", Effect: v1.TaintEffectPreferNoSchedule}}
		}
		nodes = append(nodes, node)
	}
	return nodes
}

func madeUpPods() []*v1.Pod {
	pod := func(name string, priority int32, model string, requests v1.ResourceList) *v1.Pod {
		labels := map[string]string{"app": name}
		if model != "" {
			labels[gpuModel] = model
		}
		return &v1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name + "-uid"), Labels: labels},
			Spec: v1.PodSpec{SchedulerName: "default-scheduler", Priority: &priority, Containers: []v1.Container{{
				Name: "main", Image: "registry.k8s.io/pause:3.10", Resources: v1.ResourceRequirements{Requests: requests},
			}}},
		}
	}
	return []*v1.Pod{
		pod("small", 0, "", v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m"), v1.ResourceMemory: resource.MustParse("128Mi")}),
		pod("large", 100, "", v1.ResourceList{v1.ResourceCPU: resource.MustParse("3"), v1.ResourceMemory: resource.MustParse("12Gi")}),
		pod("train", 1000, "a100", v1.ResourceList{v1.ResourceCPU: resource.MustParse("2"), "nvidia.com/gpu": resource.MustParse("1")}),
	}
}

// spec returns node i of the sample as Berth tells it. Beyond the sample, nodes are those of the sample again, with names of their own.
func (s *sample) spec(i int) *pluginv1.NodeSpec {
	node := s.nodes[i%len(s.nodes)].DeepCopy()
	if i >= len(s.nodes) {
		node.Name = fmt.Sprint(node.Name, "-", i)
		node.UID = types.UID(fmt.Sprint(node.UID, "-", i))
	}
	reduced := source.ReduceNode(node)
	spec := &pluginv1.NodeSpec{Name: node.Name, Labels: node.Labels, Unschedulable: node.Spec.Unschedulable, Allocatable: amounts(reduced.Allocatable)}
	for _, taint := range reduced.Taints {
		spec.Taints = append(spec.Taints, &pluginv1.Taint{Key: taint.Key, Value: taint.Value, Effect: taint.Effect})
	}
	if s.objects {
		node.ManagedFields = nil
		spec.Object = encoded(node)
	}
	return spec
}

// kind returns what pod i of the sample is, as Berth tells it of a kind that is asked about.
func (s *sample) kind(i int) *pluginv1.Kind {
	pod := s.pods[i].DeepCopy()
	reduced := source.ReducePod(pod)
	kind := &pluginv1.Kind{
		Namespace: pod.Namespace, Labels: pod.Labels, Requested: amounts(reduced.Class.Requests), Priority: reduced.Priority, SchedulerName: pod.Spec.SchedulerName,
	}
	if s.annotations {
		kind.Annotations = pod.Annotations
	}
	if s.objects {
		pod.ManagedFields = nil
		if !s.pod {
			pod.Name, pod.GenerateName, pod.UID, pod.ResourceVersion, pod.Status = "", "", "", "", v1.PodStatus{}
			pod.CreationTimestamp, pod.DeletionTimestamp = metav1.Time{}, nil
		}
		kind.Object = encoded(pod)
	}
	return kind
}

func amounts(list []cluster.Quantity) map[string]int64 {
	out := make(map[string]int64, len(list))
	for _, q := range list {
		out[q.Name] = q.Value
	}
	return out
}

func encoded(object any) []byte {
	text, err := json.Marshal(object)
	if err != nil {
		panic(err) // it was decoded, or made up, as what it is
	}
	return text
}
