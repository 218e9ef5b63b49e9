package kubetest

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestKubeletRemovesBoundPodsThatAreToldToGoAndRemembersThem(t *testing.T) {
	c := StartT(t, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := c.CreatePods(ctx, 4, func(i int) *corev1.Pod {
		pod := PlainPod(i)
		if i > 0 {
			pod.Spec.NodeName = "node-00000"
		}
		return pod
	}); err != nil {
		t.Fatal(err)
	}
	pods := c.Client().CoreV1().Pods("default")
	// One is told to go before the Kubelet starts.
	if err := pods.Delete(ctx, "pod-000001", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	k, err := PlayKubelets(ctx, c.Kubeconfig(), 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pod-000000", "pod-000002"} {
		if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// One is removed as only a kubelet may.
	if err := pods.Delete(ctx, "pod-000003", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		left, err := pods.List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatalf("%v; the pods are not gone", err)
		}
		if len(left.Items) == 0 && len(k.Evicted()) == 3 {
			break
		}
		<-tick.C
	}
	if err := k.Stop(); err != nil {
		t.Error(err)
	}
	names := map[string]bool{}
	for _, pod := range k.Evicted() {
		names[pod.Name] = pod.Spec.NodeName == "node-00000"
	}
	if len(names) != 3 || !names["pod-000001"] || !names["pod-000002"] || !names["pod-000003"] {
		t.Errorf("evicted: %v, want the three bound pods", names)
	}
	if _, err := pods.Get(ctx, "pod-000001", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get a removed pod: %v", err)
	}
}

func TestFailureIsToldByAConditionAndAnEvent(t *testing.T) {
	w := &FailureWatcher{which: func(pod types.NamespacedName) bool { return pod.Name != "other" }, conditions: map[types.NamespacedName]time.Time{}, events: map[types.NamespacedName]time.Time{}}
	pod := func(name string, status corev1.ConditionStatus, reason string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Status: corev1.PodStatus{
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: status, Reason: reason}},
		}}
	}
	event := func(name string) *corev1.Event {
		return &corev1.Event{InvolvedObject: corev1.ObjectReference{Namespace: "default", Name: name}}
	}
	w.observePod(pod("other", corev1.ConditionFalse, corev1.PodReasonUnschedulable))
	w.observeEvent(event("other"))
	w.observePod(pod("gated", corev1.ConditionFalse, corev1.PodReasonSchedulingGated))
	w.observeEvent(event("gated"))
	w.observePod(pod("bound", corev1.ConditionTrue, ""))
	w.observePod(pod("both", corev1.ConditionFalse, corev1.PodReasonUnschedulable))
	w.observeEvent(event("both"))
	w.observeEvent(event("both"))
	if f := w.Failures(); f.Conditions != 1 || f.Events != 2 || f.Both != 1 || f.LastCondition.After(f.LastEvent) {
		t.Errorf("failures: %+v, want a condition, two events and a pod with both", f)
	}
	if err := w.AwaitTold(t.Context(), 1); err != nil {
		t.Error(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.AwaitTold(ended, 2); err == nil {
		t.Error("a pod without an event was taken for one that is told of")
	}
}

func TestFailuresAreWatchedOnAnAPIServer(t *testing.T) {
	c := StartT(t, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	w, err := WatchFailures(ctx, c.Kubeconfig(), func(types.NamespacedName) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if err := c.CreatePods(ctx, 1, PlainPod); err != nil {
		t.Fatal(err)
	}
	pod, err := c.Client().CoreV1().Pods("default").Get(ctx, "pod-000000", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	if _, err := c.Client().CoreV1().Pods("default").UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Client().CoreV1().Events("default").Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "e-"}, Reason: "FailedScheduling",
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: pod.Name, UID: pod.UID},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := w.AwaitTold(ctx, 1); err != nil {
		t.Error(err)
	}
}
