package kube

import (
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/source"
)

// What extenders are sent of nodes is what the watch has seen last, if it is to be kept.
func TestNodesAreKeptInFullIfTheyAreWanted(t *testing.T) {
	for _, keep := range []bool{false, true} {
		m := newMirror(&teller{left: 1, sink: func(source.Event) {}}, nodeKind(false, keep), func() {})
		s := &Source{mirrors: map[string]*mirror{nodesResource: m}}
		add := func(version, label string) *v1.Node {
			n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: version, Labels: map[string]string{"l": label}}}
			if err := m.Add(n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		add("1", "a")
		is := add("2", "b")
		if got := s.Node("n"); keep && got != is || !keep && got != nil {
			t.Errorf("kept %v: %v", keep, got)
		}
		if err := m.Delete(is); err != nil {
			t.Fatal(err)
		}
		if got := s.Node("n"); got != nil {
			t.Errorf("kept %v: %v is there though it is gone", keep, got)
		}
	}
	if got := new(Source).Node("n"); got != nil {
		t.Errorf("before the first watch there is %v", got)
	}
}

// What no plugin reads of a node may be what an extender judges by.
func TestNodesAreToldWithWhatExtendersMayReadOfThem(t *testing.T) {
	is := func(annotation string, ready v1.ConditionStatus, seconds int64) *v1.Node {
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{"free": annotation, "other": ""}}}
		n.Status.Conditions = []v1.NodeCondition{
			{Type: "Ready", Status: ready, LastHeartbeatTime: metav1.Unix(seconds, 0)}, {Type: "DiskPressure", Status: v1.ConditionFalse},
		}
		return n
	}
	first := is("1", v1.ConditionTrue, 0)
	turned := is("1", v1.ConditionTrue, 0)
	slices.Reverse(turned.Status.Conditions)
	for name, c := range map[string]struct {
		other *v1.Node
		same  bool
	}{
		"a heartbeat": {is("1", v1.ConditionTrue, 1), true}, "the order of conditions": {turned, true},
		"an annotation": {is("2", v1.ConditionTrue, 0), false}, "a condition": {is("1", v1.ConditionFalse, 0), false}, "none": {new(v1.Node), false},
	} {
		for _, unread := range []bool{false, true} {
			var told []uint64
			m := newMirror(&teller{left: 1, sink: func(e source.Event) { told = append(told, e.Node.Unread) }}, nodeKind(unread, false), func() {})
			for version, n := range []*v1.Node{first, c.other} {
				n = n.DeepCopy()
				n.Name, n.ResourceVersion = "n", fmt.Sprint(version+1)
				if err := m.Add(n); err != nil {
					t.Fatal(err)
				}
			}
			if len(told) != 2 || (told[0] != 0) != unread || (told[0] == told[1]) != (c.same || !unread) {
				t.Errorf("%s, wanted %v: told %x", name, unread, told)
			}
		}
	}
}

func TestPodsWithoutANodeAreToldWithTheExtendersThatTheyInterest(t *testing.T) {
	for name, want := range map[string]uint64{"": 5, "n": 0} {
		var told []source.Event
		kind := podKind(map[string]bool{"berth": true}, func(p *v1.Pod) uint64 {
			if len(p.Spec.Containers) != 1 {
				t.Errorf("asked about %v", p)
			}
			return 5
		})
		m := newMirror(&teller{left: 1, sink: func(e source.Event) { told = append(told, e) }}, kind, func() {})
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "p", UID: "u", ResourceVersion: "1"}}
		p.Spec.SchedulerName, p.Spec.NodeName, p.Spec.Containers = "berth", name, []v1.Container{{Name: "c"}}
		if err := m.Add(p); err != nil {
			t.Fatal(err)
		}
		if len(told) != 1 || told[0].Pod.Extenders != want {
			t.Errorf("on node %q: told %v, want of extenders %b", name, told, want)
		}
	}
}
