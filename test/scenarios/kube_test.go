package scenarios

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingapi "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// apiServer is a cluster of a real API server. Stories share it, one after the other.
type apiServer struct{ *kubernetes.Clientset }

// startOnAPIServer starts a Berth on the API server, from which it removes what earlier stories have left.
func startOnAPIServer(t testing.TB, cp *kubetest.ControlPlane, o berthtest.Options) (*berthtest.Berth, userCluster) {
	t.Helper()
	c := &apiServer{cp.Client()}
	berthtest.Await(t, berthtest.Patience, "an empty cluster", c.clear)
	o.Kubeconfig = cp.Kubeconfig()
	return berthtest.Start(t, o), c
}

// clear removes nodes, pods and budgets, and returns an error as long as there are pods that it has not seen gone.
func (c *apiServer) clear(ctx context.Context) error {
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	if err := c.CoreV1().Pods(namespace).DeleteCollection(ctx, now, metav1.ListOptions{}); err != nil {
		return err
	}
	if err := c.CoreV1().Nodes().DeleteCollection(ctx, now, metav1.ListOptions{}); err != nil {
		return err
	}
	if err := c.PolicyV1().PodDisruptionBudgets(namespace).DeleteCollection(ctx, now, metav1.ListOptions{}); err != nil {
		return err
	}
	pods, err := c.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err == nil && len(pods.Items) > 0 {
		err = fmt.Errorf("%d pods are left", len(pods.Items))
	}
	return err
}

// refused marks errors that say that a change is not allowed.
func refused(err error) error {
	if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	return err
}

func (c *apiServer) createNode(ctx context.Context, n *corev1.Node) error {
	_, err := c.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
	return err
}

// createPod creates the pod with the PriorityClass of its priority and preemption policy, which an API server insists on.
func (c *apiServer) createPod(ctx context.Context, p *corev1.Pod) error {
	if p.Spec.Priority != nil || p.Spec.PreemptionPolicy != nil {
		class := &schedulingapi.PriorityClass{PreemptionPolicy: p.Spec.PreemptionPolicy}
		if p.Spec.Priority != nil {
			class.Value = *p.Spec.Priority
		}
		class.Name = fmt.Sprintf("priority-%d", class.Value)
		if class.PreemptionPolicy != nil {
			class.Name += "-never-preempts"
		}
		if _, err := c.SchedulingV1().PriorityClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		p.Spec.Priority, p.Spec.PriorityClassName = nil, class.Name
	}
	// The API server knows a new PriorityClass only after a moment, and forbids the pod until then.
	unknown := func(err error) bool { return apierrors.IsForbidden(err) && p.Spec.PriorityClassName != "" }
	return retry.OnError(retry.DefaultBackoff, unknown, func() error {
		_, err := c.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{})
		return err
	})
}

// setBudget writes the status too, as the disruption controller would, which does not run.
func (c *apiServer) setBudget(ctx context.Context, b *policyv1.PodDisruptionBudget) error {
	budgets := c.PolicyV1().PodDisruptionBudgets(namespace)
	stored, err := budgets.Create(ctx, b, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		stored, err = budgets.Get(ctx, b.Name, metav1.GetOptions{})
	}
	if err != nil {
		return err
	}
	stored.Status.DisruptionsAllowed, stored.Status.ObservedGeneration = b.Status.DisruptionsAllowed, stored.Generation
	_, err = budgets.UpdateStatus(ctx, stored, metav1.UpdateOptions{})
	return err
}

func (c *apiServer) editNode(ctx context.Context, name string, edit func(*corev1.Node) error) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		n, err := c.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		before := n.DeepCopy()
		if err := edit(n); err != nil {
			return err
		}
		after := n.DeepCopy()
		if n, err = c.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{}); err != nil {
			return refused(err)
		}
		if slices.Equal(quantities(before.Status.Allocatable), quantities(after.Status.Allocatable)) {
			return nil
		}
		n.Status.Allocatable = after.Status.Allocatable
		_, err = c.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{})
		return refused(err)
	})
}

// quantities lists resources in a fixed order.
func quantities(list corev1.ResourceList) []string {
	var out []string
	for name, q := range list {
		out = append(out, string(name)+"="+q.String())
	}
	slices.Sort(out)
	return out
}

func (c *apiServer) editPod(ctx context.Context, name string, edit func(*corev1.Pod) error) error {
	return c.changePod(ctx, name, edit, func(p *corev1.Pod) error {
		_, err := c.CoreV1().Pods(namespace).Update(ctx, p, metav1.UpdateOptions{})
		return err
	})
}

func (c *apiServer) resizePod(ctx context.Context, name string, edit func(*corev1.Pod) error) error {
	return c.changePod(ctx, name, edit, func(p *corev1.Pod) error {
		_, err := c.CoreV1().Pods(namespace).UpdateResize(ctx, name, p, metav1.UpdateOptions{})
		return err
	})
}

func (c *apiServer) changePod(ctx context.Context, name string, edit, write func(*corev1.Pod) error) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		p, err := c.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if err := edit(p); err != nil {
			return err
		}
		return refused(write(p))
	})
}

func (c *apiServer) remove(ctx context.Context, kind, name string, now bool) error {
	o := metav1.DeleteOptions{}
	if now {
		o.GracePeriodSeconds = new(int64)
	}
	switch kind {
	case "Node":
		return c.CoreV1().Nodes().Delete(ctx, name, o)
	case "Pod":
		return c.CoreV1().Pods(namespace).Delete(ctx, name, o)
	case "PodDisruptionBudget":
		return c.PolicyV1().PodDisruptionBudgets(namespace).Delete(ctx, name, o)
	}
	return fmt.Errorf("delete %s %s: unknown kind", kind, name)
}

func (c *apiServer) bind(ctx context.Context, pod, node string) error {
	return c.CoreV1().Pods(namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: namespace}, Target: corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{})
}

func (c *apiServer) pods(ctx context.Context) (map[string]*corev1.Pod, error) {
	pods, err := c.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := make(map[string]*corev1.Pod, len(pods.Items))
	for i := range pods.Items {
		out[pods.Items[i].Name] = &pods.Items[i]
	}
	return out, nil
}

func (c *apiServer) events(ctx context.Context, uid string) ([]event, error) {
	all, err := c.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all.Items, func(a, b eventsv1.Event) int {
		return cmp.Or(a.EventTime.Compare(b.EventTime.Time), cmp.Compare(a.Name, b.Name))
	})
	var out []event
	for _, e := range all.Items {
		if string(e.Regarding.UID) == uid {
			out = append(out, event{e.Type, e.Reason, e.Note})
		}
	}
	return out, nil
}
