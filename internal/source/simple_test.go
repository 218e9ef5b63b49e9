package source

import (
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"
)

func TestSimpleRequestsAreThoseOfAnyPod(t *testing.T) {
	names := []v1.ResourceName{"cpu", "memory", "ephemeral-storage", "pods", "nvidia.com/gpu", "hugepages-2Mi", "storage"}
	amounts := []string{"0", "1", "2", "100m", "1500m", "500u", "1Gi", "300Mi", "1e3", "9Ei", "123456789012345678901234567890n"}
	list := rapid.MapOfN(rapid.SampledFrom(names), rapid.SampledFrom(amounts), 0, len(names))
	rapid.Check(t, func(t *rapid.T) {
		pod := &v1.Pod{}
		if rapid.Bool().Draw(t, "placed") {
			pod.Spec.NodeName = "n"
			pod.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "c"}}
		}
		for range rapid.IntRange(0, 3).Draw(t, "containers") {
			c := v1.Container{Name: "c", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{}}}
			for name, amount := range list.Draw(t, "requests") {
				c.Resources.Requests[name] = resource.MustParse(amount)
			}
			pod.Spec.Containers = append(pod.Spec.Containers, c)
		}
		if !simpleRequests(pod) {
			t.Fatal("the pod is not simple")
		}
		var simple, any cluster.ClassSpec
		reduceSimpleRequests(pod.Spec.Containers, &cluster.ClassSpec{}) // which leaves the pod as it is
		reduceSimpleRequests(pod.Spec.Containers, &simple)
		reduceAnyRequests(pod, &any)
		if diff := cmp.Diff(any, simple); diff != "" {
			t.Errorf("requests (-any pod +simple):\n%s", diff)
		}
	})
}

func TestNotEveryPodIsSimple(t *testing.T) {
	for name, change := range map[string]func(*v1.Pod){
		"init containers":     func(p *v1.Pod) { p.Spec.InitContainers = []v1.Container{{}} },
		"overhead":            func(p *v1.Pod) { p.Spec.Overhead = v1.ResourceList{"cpu": resource.MustParse("1")} },
		"pod-level resources": func(p *v1.Pod) { p.Spec.Resources = &v1.ResourceRequirements{} },
		"resources in the status": func(p *v1.Pod) {
			p.Spec.NodeName = "n"
			p.Status.ContainerStatuses = []v1.ContainerStatus{{}, {Resources: &v1.ResourceRequirements{}}}
		},
	} {
		pod := &v1.Pod{}
		if change(pod); simpleRequests(pod) {
			t.Errorf("a pod with %s is simple", name)
		}
	}
}
