package kube

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/source"
)

// What extenders are sent of nodes is what the watch has seen last, if it is to be kept.
func TestNodesAreKeptInFullIfTheyAreWanted(t *testing.T) {
	for _, keep := range []bool{false, true} {
		m := newMirror(&teller{left: 1, sink: func(source.Event) {}}, nodeKind(keep), func() {})
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
