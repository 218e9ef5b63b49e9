package kube

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/source/sourcetest"
	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
)

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// testCluster is a control plane behind the contract.
type testCluster struct {
	plane  *kubetest.ControlPlane
	client kubernetes.Interface
}

func startCluster(t testing.TB) *testCluster {
	plane := kubetest.StartT(t, kubetest.Options{})
	return &testCluster{plane: plane, client: plane.Client()}
}

func (c *testCluster) config() Config {
	return Config{Kubeconfig: c.plane.Kubeconfig(), SchedulerNames: []string{sourcetest.Scheduler}, Instance: "test-host"}
}

func newSource(t testing.TB, cfg Config) *Source {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (c *testCluster) Source(t testing.TB) source.Source { return newSource(t, c.config()) }
func (c *testCluster) Fence(testing.TB) coord.Cond       { return coord.Cond{} }

func (c *testCluster) SetNode(t testing.TB, node *v1.Node) {
	t.Helper()
	nodes := c.client.CoreV1().Nodes()
	_, err := nodes.Create(within(t), node, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
			old, err := nodes.Get(within(t), node.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			update := node.DeepCopy()
			update.ResourceVersion, update.UID = old.ResourceVersion, old.UID
			if update, err = nodes.Update(within(t), update, metav1.UpdateOptions{}); err != nil {
				return err
			}
			update.Status = node.Status
			_, err = nodes.UpdateStatus(within(t), update, metav1.UpdateOptions{})
			return err
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (c *testCluster) DeleteNode(t testing.TB, name string) {
	t.Helper()
	if err := c.client.CoreV1().Nodes().Delete(within(t), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (c *testCluster) SetPod(t testing.TB, pod *v1.Pod) string {
	t.Helper()
	pods := c.client.CoreV1().Pods(pod.Namespace)
	created, err := pods.Create(within(t), pod, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
			created, err = pods.Get(within(t), pod.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			created.Labels, created.Spec.SchedulingGates = pod.Labels, pod.Spec.SchedulingGates
			created, err = pods.Update(within(t), created, metav1.UpdateOptions{})
			return err
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(created.UID)
}

func (c *testCluster) DeletePod(t testing.TB, namespace, name string) {
	t.Helper()
	if err := c.client.CoreV1().Pods(namespace).Delete(within(t), name, *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
}

func (c *testCluster) EndPod(t testing.TB, namespace, name string) {
	t.Helper()
	_, err := c.client.CoreV1().Pods(namespace).Patch(within(t), name, types.StrategicMergePatchType,
		[]byte(`{"status":{"phase":"Succeeded"}}`), metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
}

func (c *testCluster) SetNamespace(t testing.TB, namespace *v1.Namespace) {
	t.Helper()
	if _, err := c.client.CoreV1().Namespaces().Create(within(t), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// Reported counts the pod's events and the versions of the pod itself, which is written to for its condition.
func (c *testCluster) Reported(t testing.TB, namespace, name, uid string) (int64, string) {
	t.Helper()
	pod := c.pod(t, namespace, name)
	var version int64
	if _, err := fmt.Sscan(pod.ResourceVersion, &version); err != nil {
		t.Fatal(err)
	}
	writes := version
	for _, e := range c.events(t, uid) {
		if _, err := fmt.Sscan(e.ResourceVersion, &version); err != nil {
			t.Fatal(err)
		}
		writes = max(writes, version)
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == v1.PodScheduled && condition.Status == v1.ConditionFalse && condition.Reason == v1.PodReasonUnschedulable {
			return writes, condition.Message
		}
	}
	return writes, ""
}

func (c *testCluster) pod(t testing.TB, namespace, name string) *v1.Pod {
	t.Helper()
	pod, err := c.client.CoreV1().Pods(namespace).Get(within(t), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// events returns the events about a pod.
func (c *testCluster) events(t testing.TB, uid string) []eventsv1.Event {
	t.Helper()
	list, err := c.client.EventsV1().Events("").List(within(t), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var out []eventsv1.Event
	for _, e := range list.Items {
		if string(e.Regarding.UID) == uid {
			out = append(out, e)
		}
	}
	return out
}
