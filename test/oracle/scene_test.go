package oracle

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// scene is a cluster, and a pod to judge.
type scene struct {
	profiles   []config.KubeSchedulerProfile
	gates      gates
	nodes      []*v1.Node
	pods       []*v1.Pod // with a node
	waiting    []*v1.Pod // pending ones, besides the pod
	namespaces []*v1.Namespace
	owners     []metav1.Object // services and controllers
	kept       []metav1.Object // what Berth's ledger only keeps
	pod        *v1.Pod
}

// scene returns the world as it is, and the pod.
func (w *world) scene(pod *v1.Pod) *scene {
	s := &scene{profiles: w.profiles, gates: w.gates, pods: slices.Clone(w.pods), pod: pod}
	for _, name := range w.nodeNames() {
		s.nodes = append(s.nodes, w.nodes[name])
	}
	for _, id := range sortedKeys(w.pending) {
		if p := w.pending[id]; p.UID != pod.UID {
			s.waiting = append(s.waiting, p)
		}
	}
	for _, name := range sortedKeys(w.objects.namespaces) {
		s.namespaces = append(s.namespaces, w.objects.namespaces[name])
	}
	for _, key := range sortedKeys(w.objects.owners) {
		s.owners = append(s.owners, w.objects.owners[key])
	}
	s.kept = w.objects.kept.all()
	return s
}

// open makes a world of the scene and returns the pod's id in it.
func (s *scene) open(t failer, n *tally) (*world, cluster.PodID) {
	w := newWorld(t, s.profiles, s.gates, 1, n)
	for _, n := range s.namespaces {
		w.setNamespace(n)
	}
	for _, o := range s.owners {
		w.setOwner(o)
	}
	for _, o := range s.kept {
		w.keep(o)
	}
	for i, n := range s.nodes {
		w.setNode(n, cluster.NodeIndex(i*spread))
	}
	for _, p := range s.pods {
		w.run(p)
	}
	for _, p := range s.waiting {
		w.enter(p)
	}
	return w, w.enter(s.pod)
}

// difference returns how the schedulers differ about the scene, "" if they do not, or if it makes no sense to one of
// them or to this package: objects with fields missing may not.
func (s *scene) difference() (difference string) {
	t := &trial{}
	defer t.end()
	var w *world
	defer func() {
		if recover() != nil && w != nil {
			difference = w.broken
		}
	}()
	w, id := s.open(t, new(tally))
	_, difference = w.difference(id, []cluster.Range{{First: 0, End: cluster.MaxIndex}})
	return difference
}

// trial is a test that may fail: a failure ends it by a panic.
type trial struct{ cleanups []func() }

func (*trial) Helper()               {}
func (*trial) Fatalf(string, ...any) { panic("the trial has failed") }
func (t *trial) Cleanup(f func())    { t.cleanups = append(t.cleanups, f) }
func (t *trial) end() {
	for _, f := range t.cleanups {
		f()
	}
}

var minimizing = flag.Duration("minimize", 20*time.Second, "how long to look for a smaller cluster after a difference")

// minimize takes out of the scene what the difference does not need.
func (s *scene) minimize() {
	deadline := time.Now().Add(*minimizing)
	differs := func() bool { return time.Now().Before(deadline) && s.difference() != "" }
	for changed := true; changed; {
		changed = without(&s.waiting, differs)
		changed = without(&s.pods, differs) || changed
		changed = without(&s.nodes, differs) || changed
		changed = without(&s.owners, differs) || changed
		changed = without(&s.kept, differs) || changed
		changed = without(&s.namespaces, differs) || changed
		for _, list := range [][]*v1.Pod{s.pods, s.waiting} {
			for i := range list {
				changed = prune(&list[i], differs) || changed
			}
		}
		changed = prune(&s.pod, differs) || changed
		for i := range s.nodes {
			changed = prune(&s.nodes[i], differs) || changed
		}
		for i := range s.kept {
			changed = prune(&s.kept[i], differs) || changed
		}
	}
}

// without drops the elements of a list that what holds does not need, and reports whether there were any.
func without[T any](list *[]T, holds func() bool) (changed bool) {
	for i := len(*list) - 1; i >= 0; i-- {
		all := *list
		if *list = slices.Delete(slices.Clone(all), i, i+1); holds() {
			changed = true
		} else {
			*list = all
		}
	}
	return changed
}

// String returns the scene as YAML.
func (s *scene) String() string {
	var b strings.Builder
	show := func(what string, object any) {
		text, err := printed(object)
		if err != nil {
			text = err.Error()
		}
		fmt.Fprintf(&b, "--- # %s\n%s", what, text)
	}
	show("the pod", s.pod)
	for i, n := range s.nodes {
		show(fmt.Sprintf("node at index %d", i*spread), n)
	}
	for _, p := range s.pods {
		show("pod on "+p.Spec.NodeName, p)
	}
	for _, p := range s.waiting {
		show("pending pod", p)
	}
	for _, n := range s.namespaces {
		show("namespace", n)
	}
	for _, o := range s.owners {
		show(kindOf(o), o)
	}
	for _, o := range s.kept {
		show(reduceKept(o).Key().Kind.String(), o)
	}
	for i := range s.profiles {
		if p := s.gates.profile(&s.profiles[i]); p.SchedulerName == s.pod.Spec.SchedulerName && (p.SchedulerName != v1.DefaultSchedulerName || s.gates.any()) {
			show("profile", p)
		}
	}
	return b.String()
}
