package kubetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// placed returns the pod number i on a node.
func placed(i int, node string, change func(*corev1.Pod)) corev1.Pod {
	pod := PlainPod(i)
	pod.Namespace, pod.UID, pod.Spec.NodeName = "default", types.UID(fmt.Sprint("uid-", i)), node
	if change != nil {
		change(pod)
	}
	return *pod
}

func named(i int) types.NamespacedName {
	return types.NamespacedName{Namespace: "default", Name: PlainPod(i).Name}
}

func TestCheckCountsPodsAgainstTheRoomForPods(t *testing.T) {
	node := *PlainNode(0)
	node.Status.Allocatable = node.Status.Allocatable.DeepCopy()
	node.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("1")
	ended := func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded }

	pods := []corev1.Pod{placed(0, node.Name, nil), placed(1, node.Name, ended)}
	if diff := cmp.Diff(Report{Nodes: 1, Bound: 1, Ended: 1, UsedNodes: 1, Zones: map[string]int{"zone-0": 1}}, check(objects{nodes: []corev1.Node{node}, pods: pods})); diff != "" {
		t.Errorf("one running pod and one that has ended (-want +got):\n%s", diff)
	}

	pods = append(pods, placed(2, node.Name, nil))
	over := check(objects{nodes: []corev1.Node{node}, pods: pods}).Overcommitted
	if len(over) != 1 || over[0].Resource != corev1.ResourcePods || over[0].Requested.Value() != 2 {
		t.Errorf("overcommits with two running pods = %v, want 2 pods of 1", over)
	}
}

func TestCheckFindsAResourceTheNodeDoesNotHave(t *testing.T) {
	gpu := placed(0, "node-00000", func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse("1")
	})
	problems := check(objects{nodes: []corev1.Node{*PlainNode(0)}, pods: []corev1.Pod{gpu}}).Problems()
	if diff := cmp.Diff([]string{"node node-00000: 1 of example.com/gpu requested, 0 allocatable"}, problems); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

func TestCheckFindsAPodOnANodeThatDoesNotExist(t *testing.T) {
	got := check(objects{pods: []corev1.Pod{placed(0, "gone", nil)}}).Homeless
	if diff := cmp.Diff([]Placement{{named(0), "gone"}}, got); diff != "" {
		t.Errorf("homeless (-want +got):\n%s", diff)
	}
}

func TestHostPortsCollide(t *testing.T) {
	port := func(ip string, n int32, protocol corev1.Protocol) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostIP: ip, HostPort: n, Protocol: protocol}}
		}
	}
	initPort := func(restart *corev1.ContainerRestartPolicy) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Spec.InitContainers = []corev1.Container{{
				RestartPolicy: restart,
				Ports:         []corev1.ContainerPort{{HostPort: 80, Protocol: corev1.ProtocolTCP}},
			}}
		}
	}
	always := corev1.ContainerRestartPolicyAlways
	for name, test := range map[string]struct {
		first, then func(*corev1.Pod)
		want        bool
	}{
		"same port":                   {port("", 80, "TCP"), port("", 80, "TCP"), true},
		"another port":                {port("", 80, "TCP"), port("", 81, "TCP"), false},
		"another protocol":            {port("", 80, "TCP"), port("", 80, "UDP"), false},
		"one address and all":         {port("10.0.0.1", 80, "TCP"), port("0.0.0.0", 80, "TCP"), true},
		"two addresses":               {port("10.0.0.1", 80, "TCP"), port("10.0.0.2", 80, "TCP"), false},
		"no host port":                {port("", 0, "TCP"), port("", 0, "TCP"), false},
		"sidecar":                     {port("", 80, "TCP"), initPort(&always), true},
		"init container that has run": {port("", 80, "TCP"), initPort(nil), false},
	} {
		t.Run(name, func(t *testing.T) {
			pods := []corev1.Pod{placed(0, "node-00000", test.first), placed(1, "node-00000", test.then)}
			var want []PortCollision
			if test.want {
				want = []PortCollision{{"node-00000", 80, corev1.ProtocolTCP, named(0), named(1)}}
			}
			if diff := cmp.Diff(want, check(objects{nodes: []corev1.Node{*PlainNode(0)}, pods: pods}).PortCollisions); diff != "" {
				t.Errorf("collisions (-want +got):\n%s", diff)
			}
			pods[1].Spec.NodeName = "node-00001"
			if got := check(objects{nodes: []corev1.Node{*PlainNode(0), *PlainNode(1)}, pods: pods}).PortCollisions; got != nil {
				t.Errorf("collisions on two nodes = %v, want none", got)
			}
		})
	}
}

func TestScheduledEventsAreComparedWithThePodsNode(t *testing.T) {
	event := func(pod int, node string, count int32) corev1.Event {
		return corev1.Event{
			InvolvedObject: corev1.ObjectReference{UID: types.UID(fmt.Sprint("uid-", pod))},
			Message:        fmt.Sprintf("Successfully assigned %s to %s", named(pod), node),
			Count:          count,
		}
	}
	pods := []corev1.Pod{
		placed(0, "node-00000", nil), // once
		placed(1, "node-00000", nil), // twice, same node
		placed(2, "node-00000", nil), // two nodes
		placed(3, "", nil),           // announced, not bound
	}
	events := []corev1.Event{
		event(0, "node-00000", 0),
		event(1, "node-00000", 2),
		event(2, "node-00000", 1), event(2, "node-00001", 1),
		event(3, "node-00001", 1),
		event(4, "node-00001", 9), // the pod is gone
	}
	got := check(objects{nodes: []corev1.Node{*PlainNode(0)}, pods: pods, events: events})
	want := []ScheduledTwice{
		{named(1), "node-00000", 2, []string{"node-00000"}},
		{named(2), "node-00000", 2, []string{"node-00000", "node-00001"}},
		{named(3), "", 1, []string{"node-00001"}},
	}
	if diff := cmp.Diff(want, got.ScheduledTwice); diff != "" {
		t.Errorf("scheduled twice (-want +got):\n%s", diff)
	}
	if problems := got.Problems(); len(problems) != 2 {
		t.Errorf("problems = %q, want those of pods 2 and 3", problems)
	}
}

func TestWatcherReportsAPodThatChangesItsNode(t *testing.T) {
	w := &Watcher{nodes: map[types.UID]string{}, at: map[types.UID]time.Time{}, waiters: map[chan<- struct{}]int{}}
	at := func(uid, node string, initial bool) {
		pod := placed(0, node, nil)
		pod.UID = types.UID(uid)
		w.observe(&pod, initial)
	}
	at("a", "", false)
	at("a", "node-00000", false)
	at("a", "node-00000", false) // an update of something else
	at("b", "node-00001", false) // the next pod of that name
	at("c", "node-00000", true)
	if n, _, _ := w.Bound(); n != 2 || w.BoundTwice() != nil {
		t.Errorf("Bound = %d, BoundTwice = %v, want 2 and none", n, w.BoundTwice())
	}
	at("c", "node-00002", false)
	if diff := cmp.Diff([]Rebinding{{named(0), "c", "node-00000", "node-00002"}}, w.BoundTwice()); diff != "" {
		t.Errorf("bound twice (-want +got):\n%s", diff)
	}
}
