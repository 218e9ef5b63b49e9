package oracle

import (
	"bytes"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/scheduler/metrics/resources"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/source/kube"
)

// drawList draws amounts of all kinds of resources that there are units of, and of others.
func drawList(t *rapid.T, name string) v1.ResourceList {
	list := make(v1.ResourceList)
	for _, r := range []v1.ResourceName{
		v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage, v1.ResourceStorage, v1.ResourceHugePagesPrefix + "2Mi", v1.ResourceAttachableVolumesPrefix + "x", "example.com/gpu", "pods",
	} {
		if rapid.IntRange(0, 2).Draw(t, name+" has "+string(r)) == 0 {
			list[r] = resource.MustParse(rapid.SampledFrom([]string{"0", "1", "100m", "1500m", "3", "1n", "0.5", "64Mi", "1Gi", "12345678901", "1e15", "9223372036854775807", "1e25"}).Draw(t, name+" "+string(r)))
		}
	}
	return list
}

func drawRequirements(t *rapid.T, name string) v1.ResourceRequirements {
	return v1.ResourceRequirements{Requests: drawList(t, name+" requests"), Limits: drawList(t, name+" limits")}
}

// drawUsingPod draws a pod with all that counts in what it requests and is limited to, and some that does not.
func drawUsingPod(t *rapid.T, i int) *v1.Pod {
	pod := new(v1.Pod)
	pod.Namespace, pod.Name = rapid.SampledFrom([]string{"a", "b", "kube-system"}).Draw(t, "namespace"), fmt.Sprintf("p%d", i)
	pod.Spec.NodeName = rapid.SampledFrom([]string{"", "n1", "n2"}).Draw(t, "node")
	pod.Spec.SchedulerName = rapid.SampledFrom([]string{"", "default-scheduler", "an \"other\"\\\n"}).Draw(t, "scheduler")
	pod.Status.Phase = rapid.SampledFrom([]v1.PodPhase{"", v1.PodPending, v1.PodRunning, v1.PodRunning, v1.PodSucceeded, v1.PodFailed}).Draw(t, "phase")
	if rapid.Bool().Draw(t, "priority") {
		pod.Spec.Priority = new(int32)
		*pod.Spec.Priority = rapid.Int32().Draw(t, "is")
	}
	always := v1.ContainerRestartPolicyAlways
	for k := range rapid.IntRange(0, 3).Draw(t, "containers") {
		name := fmt.Sprintf("c%d", k)
		pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Name: name, Resources: drawRequirements(t, name)})
		if rapid.Bool().Draw(t, "is resized") {
			r := drawRequirements(t, name+" status")
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, v1.ContainerStatus{Name: name, Resources: &r, AllocatedResources: drawList(t, name+" allocated")})
		}
	}
	for k := range rapid.IntRange(0, 3).Draw(t, "init containers") {
		name := fmt.Sprintf("i%d", k)
		c := v1.Container{Name: name, Resources: drawRequirements(t, name)}
		if rapid.Bool().Draw(t, "is a sidecar") {
			c.RestartPolicy = &always
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	}
	if rapid.IntRange(0, 2).Draw(t, "overhead") == 0 {
		pod.Spec.Overhead = drawList(t, "overhead")
	}
	if rapid.IntRange(0, 2).Draw(t, "pod level") == 0 {
		r, status := drawRequirements(t, "pod level"), drawRequirements(t, "pod level status")
		pod.Spec.Resources, pod.Status.Resources, pod.Status.AllocatedResources = &r, &status, drawList(t, "pod level allocated")
	}
	return pod
}

// What pods request, and are limited to, is told to the byte as by kube-scheduler at /metrics/resources, for pods of all kinds; terminal ones are left out.
func TestWhatPodsRequestIsToldAsByKubeScheduler(t *testing.T) {
	series, left := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		index := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
		all := new(kube.PodResources)
		for i := range rapid.IntRange(0, 6).Draw(t, "pods") {
			pod := drawUsingPod(t, i)
			before := pod.DeepCopy()
			all.Add(pod)
			if diff := cmp.Diff(before, pod); diff != "" {
				t.Fatalf("the pod has changed: %s", diff)
			}
			if err := index.Add(pod.DeepCopy()); err != nil { // which upstream's own sums may change
				t.Fatal(err)
			}
			if pod.Spec.NodeName != "" && (pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed) {
				left++
			}
		}
		upstream := httptest.NewRecorder()
		resources.Handler(corelisters.NewPodLister(index)).ServeHTTP(upstream, httptest.NewRequest("GET", "/metrics/resources", nil))
		var got bytes.Buffer
		n, err := all.WriteTo(&got)
		if err != nil || n != int64(got.Len()) {
			t.Fatalf("%d bytes written of %d: %v", n, got.Len(), err)
		}
		if diff := cmp.Diff(strings.Split(upstream.Body.String(), "\n"), strings.Split(got.String(), "\n")); diff != "" {
			t.Errorf("(-kube-scheduler +Berth):\n%s", diff)
		}
		series += strings.Count(got.String(), "\n")
	})
	if series < 1000 || left < 10 {
		t.Errorf("%d lines, and %d terminal pods: too few to say anything", series, left)
	}
}
