package kubetest

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// bind places a pod as a scheduler does.
func bind(t *testing.T, c *ControlPlane, pod, node string) {
	t.Helper()
	err := c.Client().CoreV1().Pods("default").Bind(t.Context(), &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: pod},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("bind %s to %s: %v", pod, node, err)
	}
}

func report(t *testing.T, c *ControlPlane) Report {
	t.Helper()
	r, err := Check(t.Context(), c.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestCheckerFindsAnOvercommitThatWasPlanted(t *testing.T) {
	c := StartT(t, Options{})
	if err := c.CreateNodes(t.Context(), 3, PlainNode); err != nil {
		t.Fatal(err)
	}
	// Two of them fill a node's 4 CPUs exactly.
	half := func(i int) *corev1.Pod {
		pod := PlainPod(i)
		pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("2")
		return pod
	}
	if err := c.CreatePods(t.Context(), 4, half); err != nil {
		t.Fatal(err)
	}
	bind(t, c, "pod-000000", "node-00001")
	bind(t, c, "pod-000001", "node-00001")
	if diff := cmp.Diff(Report{Nodes: 3, Bound: 2, Pending: 2, UsedNodes: 1, Zones: map[string]int{"zone-0": 0, "zone-1": 2, "zone-2": 0}}, report(t, c)); diff != "" {
		t.Errorf("report of a full node (-want +got):\n%s", diff)
	}

	bind(t, c, "pod-000002", "node-00001")
	want := Report{Nodes: 3, Bound: 3, Pending: 1, Overcommitted: []Overcommit{{
		Node: "node-00001", Resource: corev1.ResourceCPU, Requested: resource.MustParse("6"), Allocatable: resource.MustParse("4"),
	}}, UsedNodes: 1, Zones: map[string]int{"zone-0": 0, "zone-1": 3, "zone-2": 0}}
	if diff := cmp.Diff(want, report(t, c)); diff != "" {
		t.Errorf("report of an overcommitted node (-want +got):\n%s", diff)
	}
}

func TestCheckerFindsBrokenConstraintsThatWerePlanted(t *testing.T) {
	c := StartT(t, Options{})
	if err := c.CreateNodes(t.Context(), 3, PlainNode); err != nil {
		t.Fatal(err)
	}
	inDefault := &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: metav1.NamespaceDefault}}
	choosy := without(corev1.PodAffinityTerm{LabelSelector: colored("green"), NamespaceSelector: inDefault, TopologyKey: hostname})
	template := []change{
		all(color("green"), choosy),
		all(color("green"), with(near("green", zone)), spread(apart("green", zone, 1)), func(pod *corev1.Pod) {
			pod.Spec.NodeSelector = map[string]string{zone: "zone-2"}
		}),
		color("green"),
	}
	if err := c.CreatePods(t.Context(), len(template), func(i int) *corev1.Pod {
		pod := PlainPod(i)
		template[i](pod)
		return pod
	}); err != nil {
		t.Fatal(err)
	}
	for i, node := range []string{"node-00000", "node-00001", "node-00000"} {
		bind(t, c, PlainPod(i).Name, node)
	}
	want := []Violation{
		{RuleNodeAffinity, Placement{named(1), "node-00001"}, "its required node affinity or node selector does not match the node"},
		{RulePodAntiAffinity, Placement{named(0), "node-00000"}, "default/pod-000002 is in kubernetes.io/hostname=node-00000 too, on node node-00000"},
	}
	if diff := cmp.Diff(want, report(t, c).Violations); diff != "" {
		t.Errorf("violations (-want +got):\n%s", diff)
	}
}

func TestWatcherCountsTheBindingsThatHappenWhileItWatches(t *testing.T) {
	c := StartT(t, Options{})
	if err := c.CreateNodes(t.Context(), 1, PlainNode); err != nil {
		t.Fatal(err)
	}
	if err := c.CreatePods(t.Context(), 3, PlainPod); err != nil {
		t.Fatal(err)
	}
	bind(t, c, "pod-000000", "node-00000") // before: not counted
	w, err := Watch(t.Context(), c.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	bind(t, c, "pod-000001", "node-00000")
	bind(t, c, "pod-000002", "node-00000")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := w.AwaitBound(ctx, 2); err != nil {
		t.Fatal(err)
	}
	if n, first, last := w.Bound(); n != 2 || !first.Before(last) {
		t.Errorf("Bound = %d from %v to %v, want 2 and an interval", n, first, last)
	}
	if twice := w.BoundTwice(); len(twice) > 0 {
		t.Errorf("BoundTwice = %v, want none", twice)
	}
}

func TestAPIServerComesBackAtTheSameAddressWithItsObjects(t *testing.T) {
	c := StartT(t, Options{Authorization: "RBAC"})
	url := c.URL()
	if err := c.CreateNodes(t.Context(), 2, PlainNode); err != nil {
		t.Fatal(err)
	}
	if err := c.StartAPIServer(); err == nil {
		t.Error("StartAPIServer of a running server succeeded")
	}
	c.StopAPIServer()
	if _, err := Check(t.Context(), c.Kubeconfig()); err == nil {
		t.Error("a stopped API server answered")
	}
	if err := c.StartAPIServer(); err != nil {
		t.Fatal(err)
	}
	if c.URL() != url {
		t.Errorf("URL = %s after the restart, was %s", c.URL(), url)
	}
	if r := report(t, c); r.Nodes != 2 {
		t.Errorf("nodes = %d after the restart, want 2", r.Nodes)
	}
}

func TestPausedAPIServerAnswersOnlyWhenItIsResumed(t *testing.T) {
	c := StartT(t, Options{})
	if err := c.PauseAPIServer(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := Check(ctx, c.Kubeconfig()); ctx.Err() == nil {
		t.Errorf("Check of a paused API server = %v before its deadline", err)
	}
	if err := c.ResumeAPIServer(); err != nil {
		t.Fatal(err)
	}
	report(t, c)
}

func TestStopEndsAPausedControlPlane(t *testing.T) {
	c := StartT(t, Options{})
	if err := c.PauseAPIServer(); err != nil {
		t.Fatal(err)
	}
	c.Stop()
	if !c.APIServer().ended() || !c.Etcd().Process().ended() {
		t.Error("a server runs after Stop")
	}
}

func TestAControlPlaneBeginsWithWhatAnotherHasStored(t *testing.T) {
	first := StartT(t, Options{})
	if err := first.CreatePods(t.Context(), 1, PlainPod); err != nil {
		t.Fatal(err)
	}
	get := func(c *ControlPlane) *corev1.Pod {
		pod, err := c.Client().CoreV1().Pods("default").Get(t.Context(), "pod-000000", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return pod
	}
	want := get(first)
	if _, err := Start(t.Context(), t.TempDir(), Options{Like: first}); err == nil {
		t.Error("a control plane begins with what one stores that is running")
	}
	first.Stop()
	if diff := cmp.Diff(want, get(StartT(t, Options{Like: first}))); diff != "" {
		t.Errorf("the pod of the second (-first +second):\n%s", diff)
	}
}
