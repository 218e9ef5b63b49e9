package system

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// The API server takes an image name that is not valid UTF-8 from a client that speaks protobuf. Whoever sends one must stop
// nobody else, now or when Berth starts anew.
func TestAPodThatCannotBeToldStopsNobody(t *testing.T) {
	cp := kubetest.StartT(t, kubetest.Options{})
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	client := cp.Client() // which speaks protobuf
	if err := cp.CreateNodes(ctx, 20, kubetest.PlainNode); err != nil {
		t.Fatal(err)
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	full := nodes.Items[0].Name
	pictured := nodes.Items[1].DeepCopy()
	pictured.Status.Images = []corev1.ContainerImage{{Names: []string{"a\xffb"}, SizeBytes: 1 << 30}}
	if _, err := client.CoreV1().Nodes().UpdateStatus(ctx, pictured, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	create := func(name, node, cpu string) {
		t.Helper()
		pod := kubetest.PlainPod(0)
		pod.Name, pod.GenerateName, pod.Namespace, pod.Spec.NodeName = name, "", "default", node
		pod.Spec.Containers[0].Image = "a\xffb"
		pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse(cpu)
		if _, err := client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create("odd-there", full, "1000") // as much as no node has: it is full

	for _, when := range []string{"one", "two"} { // those of the first time are there already, the second time
		b := berthtest.Start(t, berthtest.Options{Kubeconfig: cp.Kubeconfig()})
		create("odd-"+when, "", "100m")
		if err := cp.CreatePods(ctx, 50, func(i int) *corev1.Pod {
			pod := kubetest.PlainPod(i)
			pod.Name, pod.GenerateName = fmt.Sprintf("plain-%s-%d", when, i), ""
			return pod
		}); err != nil {
			t.Fatal(err)
		}
		berthtest.Await(t, 3*time.Minute, "the plain pods to be bound, and the odd one to say why not", func(ctx context.Context) error {
			pods, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			waiting, why := 0, ""
			for _, p := range pods.Items {
				switch {
				case strings.HasPrefix(p.Name, "plain-") && p.Spec.NodeName == "":
					waiting++
				case strings.HasPrefix(p.Name, "plain-") && p.Spec.NodeName == full:
					t.Errorf("pod %s is on node %s, which is full", p.Name, full)
				case p.Name == "odd-"+when:
					for _, c := range p.Status.Conditions {
						if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
							why = c.Message
						}
					}
				}
			}
			if waiting > 0 || !strings.Contains(why, `Class.Images[0] is not valid UTF-8: "a\xffb:latest"`) {
				return fmt.Errorf("%d wait, and the odd pod says %q", waiting, why)
			}
			return nil
		})
		berthtest.Await(t, time.Minute, "the event of the odd pod", func(ctx context.Context) error {
			events, err := client.EventsV1().Events("default").List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, e := range events.Items {
				if e.Regarding.Name == "odd-"+when && e.Reason == "FailedScheduling" && strings.Contains(e.Note, "UTF-8") {
					return nil
				}
			}
			return fmt.Errorf("none of %d", len(events.Items))
		})
		b.Stop()
	}
}
