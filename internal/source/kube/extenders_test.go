package kube

import (
	"strconv"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-scheduler/berth/internal/source"
)

// What extenders are sent of nodes is what the watch has seen last, if it is to be kept.
func TestNodesAreKeptInFullIfTheyAreWanted(t *testing.T) {
	for _, keep := range []bool{false, true} {
		m := newMirror(&teller{left: 1, sink: func(source.Event) {}}, nodeKind(keep, false), func() {})
		s := &Source{mirrors: map[string]*mirror{nodesResource: m}}
		m.changes = &s.nodeChanges
		add := func(version, label string) *v1.Node {
			n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: version, Labels: map[string]string{"l": label}}}
			if err := m.Add(n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		add("1", "a")
		before := s.NodeChanges()
		is := add("2", "b")
		if s.NodeChanges() == before {
			t.Error("a change is not counted")
		}
		if got := s.Node("n"); keep && got != is || !keep && got != nil {
			t.Errorf("kept %v: %v", keep, got)
		}
		before = s.NodeChanges()
		if err := m.Delete(is); err != nil {
			t.Fatal(err)
		}
		if s.NodeChanges() == before {
			t.Error("that it goes is not counted")
		}
		if got := s.Node("n"); got != nil {
			t.Errorf("kept %v: %v is there though it is gone", keep, got)
		}
	}
	if got := new(Source).Node("n"); got != nil {
		t.Errorf("before the first watch there is %v", got)
	}
}

// What extenders are sent of victims is what the watch has seen last, without managedFields, if it is to be kept; of pods that Berth is told nothing of, nothing is.
func TestPodsAreKeptInFullIfTheyAreWanted(t *testing.T) {
	for _, keep := range []bool{false, true} {
		m := newMirror(&teller{left: 1, sink: func(source.Event) {}}, podKind(map[string]bool{"berth": true}, nil, nil, func(*v1.Pod) bool { return keep }), func() {})
		s := &Source{mirrors: map[string]*mirror{podsResource: m}}
		add := func(version, scheduler, node string, phase v1.PodPhase) *v1.Pod {
			p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "p", UID: "u", ResourceVersion: version, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}}}
			p.Spec.SchedulerName, p.Spec.NodeName, p.Status.Phase = scheduler, node, phase
			if err := m.Add(p); err != nil {
				t.Fatal(err)
			}
			return p
		}
		add("1", "berth", "", v1.PodPending)
		if is, got := add("2", "berth", "n", v1.PodRunning), s.LastPod("x", "p"); keep && (got != is || got.ManagedFields != nil) || !keep && got != nil {
			t.Errorf("kept %v: %v", keep, got)
		}
		if is, got := add("3", "other", "n", v1.PodRunning), s.LastPod("x", "p"); keep && got != is {
			t.Errorf("another scheduler's on a node: %v", got)
		}
		for version, p := range map[string][3]string{"4": {"other", "", "Pending"}, "5": {"berth", "n", "Failed"}} {
			if add(version, p[0], p[1], v1.PodPhase(p[2])); s.LastPod("x", "p") != nil {
				t.Errorf("kept %v: %v", p, s.LastPod("x", "p"))
			}
		}
		if err := m.Delete(add("6", "berth", "n", v1.PodRunning)); err != nil || s.LastPod("x", "p") != nil {
			t.Errorf("%v: %v is there though it is gone", err, s.LastPod("x", "p"))
		}
	}
	// Those that wait alone, for example.
	m := newMirror(&teller{left: 1, sink: func(source.Event) {}}, podKind(map[string]bool{"berth": true}, nil, nil, func(p *v1.Pod) bool { return p.Spec.NodeName == "" }), func() {})
	s := &Source{mirrors: map[string]*mirror{podsResource: m}}
	for version, node := range []string{"", "n"} {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "p", UID: "u", ResourceVersion: strconv.Itoa(version + 1)}, Spec: v1.PodSpec{SchedulerName: "berth", NodeName: node}}
		if err := m.Add(p); err != nil {
			t.Fatal(err)
		}
		if got := s.LastPod("x", "p"); (got != nil) != (node == "") {
			t.Errorf("on node %q, kept is %v", node, got)
		}
	}
	if got := new(Source).LastPod("x", "p"); got != nil {
		t.Errorf("before the first watch there is %v", got)
	}
}

func TestPodsWithoutANodeAreToldWithTheExtendersThatTheyInterest(t *testing.T) {
	for name, want := range map[string]uint64{"": 5, "n": 0} {
		var told []source.Event
		kind := podKind(map[string]bool{"berth": true}, nil, func(p *v1.Pod) uint64 {
			if len(p.Spec.Containers) != 1 {
				t.Errorf("asked about %v", p)
			}
			return 5
		}, nil)
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

// Of what only extenders read, that is an event which kube-scheduler tries pods again for: annotations, and the statuses of conditions. Heartbeats are not.
func TestANodeIsTouchedByWhatOnlyExtendersRead(t *testing.T) {
	for _, extenders := range []bool{false, true} {
		var told []source.Event
		m := newMirror(&teller{left: 1, sink: func(e source.Event) { told = append(told, e) }}, nodeKind(false, extenders), func() {})
		version := 0
		is := func(uid string, beat int64, ready v1.ConditionStatus, label string, annotations map[string]string) (touched bool) {
			t.Helper()
			version++
			n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: types.UID(uid), ResourceVersion: strconv.Itoa(version), Labels: map[string]string{"l": label}, Annotations: annotations}}
			n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: ready, LastHeartbeatTime: metav1.Unix(beat, 0)}}
			told = nil
			if err := m.Add(n); err != nil {
				t.Fatal(err)
			}
			return told[len(told)-1].Touched
		}
		yes, no := v1.ConditionTrue, v1.ConditionFalse
		for _, step := range []struct {
			what          string
			touched, want bool
		}{
			{"it comes", is("u", 1, yes, "a", nil), false},
			{"an annotation comes", is("u", 1, yes, "a", map[string]string{"k": "1", "l": "2"}), true},
			{"a heartbeat comes", is("u", 2, yes, "a", map[string]string{"k": "1", "l": "2"}), false},
			{"two annotations change their values", is("u", 2, yes, "a", map[string]string{"k": "2", "l": "1"}), true},
			{"a label changes", is("u", 2, yes, "b", map[string]string{"k": "2", "l": "1"}), false},
			{"a condition changes", is("u", 2, no, "b", map[string]string{"k": "2", "l": "1"}), true},
			{"annotations go", is("u", 2, no, "b", nil), true},
			{"another of the name comes", is("v", 2, no, "b", map[string]string{"k": "2"}), false},
		} {
			if want := step.want && extenders; step.touched != want {
				t.Errorf("extenders %v, %s: touched is %v, want %v", extenders, step.what, step.touched, want)
			}
		}
	}
}
