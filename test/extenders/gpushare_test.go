//go:build extenders

package extenders

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// startGPUShare starts a gpushare-scheduler-extender, which keeps nodes and pods of the cluster itself.
func startGPUShare(t *testing.T, cp *kubetest.ControlPlane) string {
	t.Helper()
	programs, err := kubetest.Build(t.Context(), kubetest.GPUShare)
	if err != nil {
		t.Fatal(err)
	}
	address := freeAddress(t)
	_, port, _ := strings.Cut(address, ":")
	startProcess(t, "gpushare-scheduler-extender", filepath.Join(t.TempDir(), "log"),
		"env", "KUBECONFIG="+cp.Kubeconfig(), "PORT="+port, "LOG_LEVEL=info", programs[kubetest.GPUShare])
	serves(t, "http://"+address+"/version")
	return "http://" + address
}

// gpushareConfig is what gpushare's config/scheduler-policy-config.yaml has.
const gpushareConfig = `urlPrefix: "URL/gpushare-scheduler"
  filterVerb: filter
  bindVerb: bind
  enableHTTPS: false
  nodeCacheCapable: true
  managedResources:
  - name: aliyun.com/gpu-mem
    ignoredByScheduler: false
  ignorable: false`

// gpuNode is a node with so many GPUs, of so many GiB of memory each, as gpushare's device plugin says.
func gpuNode(name string, gpus, each int64) *corev1.Node {
	return node(name, 32, 128, func(n *corev1.Node) {
		n.Status.Capacity["aliyun.com/gpu-count"] = *resource.NewQuantity(gpus, resource.DecimalSI)
		n.Status.Capacity["aliyun.com/gpu-mem"] = *resource.NewQuantity(gpus*each, resource.DecimalSI)
	})
}

// gpuPod is a pod that wants so many GiB of one GPU's memory.
func gpuPod(name string, memory int64, change ...func(*corev1.Pod)) *corev1.Pod {
	return pod(name, "10m", "20Mi", func(p *corev1.Pod) {
		c := &p.Spec.Containers[0].Resources
		c.Requests["aliyun.com/gpu-mem"], c.Limits["aliyun.com/gpu-mem"] = *resource.NewQuantity(memory, resource.DecimalSI), *resource.NewQuantity(memory, resource.DecimalSI)
		for _, change := range change {
			change(p)
		}
	})
}

func gpushareScene() *scene {
	return &scene{
		nodes: []*corev1.Node{gpuNode("gpu-a", 2, 16), gpuNode("gpu-b", 4, 8), gpuNode("gpu-c", 1, 24), node("no-gpu", 64, 256, func(*corev1.Node) {})},
		pods: []*corev1.Pod{
			gpuPod("first-10", 10, prefers("gpu-a", 1)),
			gpuPod("second-10", 10, prefers("gpu-a", 1)),
			pod("plain", "10m", "20Mi", prefers("no-gpu", 1)),
			gpuPod("third-10", 10, prefers("gpu-a", 1)), // node gpu-a has 12 left, of which no GPU has 10
			gpuPod("fills-6", 6, prefers("gpu-a", 1)),
			gpuPod("whole-8", 8, prefers("gpu-b", 1)),
			gpuPod("part-5", 5, prefers("gpu-b", 1)),
			gpuPod("fits-3", 3, prefers("gpu-b", 1)), // into what part-5 has left of its GPU
			gpuPod("takes-12", 12, prefers("gpu-c", 1)),
			gpuPod("too-large", 9), // node gpu-b has 16 left, of which no GPU has more than 8
		},
		shows: func(p *corev1.Pod) string { // all that the extender has written, but for the time
			return fmt.Sprintf("GPU %s: %s of %s", or(p.Annotations["ALIYUN_COM_GPU_MEM_IDX"]), or(p.Annotations["ALIYUN_COM_GPU_MEM_POD"]), or(p.Annotations["ALIYUN_COM_GPU_MEM_DEV"]))
		},
		extender: startGPUShare, config: gpushareConfig, binds: true,
	}
}

// gpushare filters by what it has bound, is sent names of nodes, and binds.
func TestGPUShareIsAskedTheSameAndBindsItsPodsToTheSameNodes(t *testing.T) {
	s := gpushareScene()
	stored := s.stored(t)
	outcomes := make(map[string]*outcome)
	for _, who := range []string{theirs, ours} {
		t.Run(who, func(t *testing.T) {
			r := s.start(t, who, stored)
			outcomes[who] = r.outcome(t)
			// A pod goes, and the extender hears of it at some time after the scheduler. That it has is no event, and only another one has it asked again.
			client := r.cp.Client().CoreV1()
			if err := client.Pods(metav1.NamespaceDefault).Delete(t.Context(), "takes-12", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
				t.Fatal(err)
			}
			beats := 0
			berthtest.Await(t, berthtest.Patience, "the pod that was refused to be bound", func(ctx context.Context) error {
				beats++
				if _, err := client.Nodes().Patch(ctx, "no-gpu", "application/merge-patch+json",
					fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/beat":"%d"}}}`, beats), metav1.PatchOptions{}); err != nil {
					return err
				}
				pods, err := r.pods(ctx)
				if err != nil {
					return err
				}
				if last := pods["too-large"]; last.Spec.NodeName != "gpu-c" {
					return fmt.Errorf("it is on %q, and told %s", last.Spec.NodeName, whyNot(last))
				}
				return nil
			})
			for pod, by := range r.binders(t) {
				binder := who
				if pod != "plain" {
					binder = kubetest.GPUShare
				}
				if len(by) != 1 || !strings.HasPrefix(by[0], binder) {
					t.Errorf("with %s, %s is bound by %q, want %s", who, pod, by, binder)
				}
			}
		})
	}
	if !t.Failed() {
		compare(t, s, len(s.pods)-1, outcomes[theirs], outcomes[ours])
	}
}
