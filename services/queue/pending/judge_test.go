package pending

import (
	"slices"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// evaluating makes an Evaluator the Judge of a queue.
type evaluating struct{ *engine.Evaluator }

func (e evaluating) Feasible(st *cluster.State, s engine.Subject, self cluster.PodID, node cluster.NodeIndex) bool {
	verdict, known := e.Node(st, s, self, node)
	return known && verdict.Feasible()
}

// cpuJudge is a judge that anybody can follow. A pod fits a node that has enough free CPU and that no other pod of its
// priority or a higher one is nominated to. Besides, a pod with affinity needs some pod of 100m on any node, and a wary pod needs that no pod with
// anti-affinity is on any.
type cpuJudge struct{ *engine.Evaluator }

func newCPUJudge() cpuJudge { return cpuJudge{engine.NewEvaluator(engine.EvaluatorConfig{})} }

func withAffinity(c cluster.ClassSpec) cluster.ClassSpec {
	c.Affinity = []cluster.PodTerm{{TopologyKey: "zone"}}
	return c
}

func withAntiAffinity(c cluster.ClassSpec) cluster.ClassSpec {
	c.AntiAffinity = []cluster.PodTerm{{TopologyKey: "zone"}}
	return c
}

func wary(c cluster.ClassSpec) cluster.ClassSpec {
	c.Features = []string{"wary"}
	return c
}

func isWary(c *cluster.ClassSpec) bool { return len(c.Features) > 0 }

// eligible is what a node itself says.
func (cpuJudge) eligible(st *cluster.State, s engine.Subject, self cluster.PodID, n cluster.NodeIndex) bool {
	return st.Nodes.Live.Has(n) &&
		st.Nodes.Allocatable[cluster.CPU][n]-st.Nodes.Requested[cluster.CPU][n] >= st.Class(s.Class).Spec.Requests[0].Value &&
		!cpuJudge{}.taken(st, s, self, n)
}

// taken says that another is nominated there.
func (cpuJudge) taken(st *cluster.State, s engine.Subject, self cluster.PodID, n cluster.NodeIndex) bool {
	return slices.ContainsFunc(st.NominatedOn(st.Nodes.Spec[n].Name), func(id cluster.PodID) bool {
		return id != self && st.Pod(id).Priority >= s.Priority
	})
}

// allowed is what all nodes say together.
func (cpuJudge) allowed(st *cluster.State, class cluster.ClassID) bool {
	near, repelled := false, false
	for _, row := range st.Pods() {
		if row.Node != cluster.NoNode {
			other := &st.Class(row.Class).Spec
			near = near || other.Requests[0].Value == 100
			repelled = repelled || len(other.AntiAffinity) > 0
		}
	}
	spec := &st.Class(class).Spec
	return (near || len(spec.Affinity) == 0) && (!repelled || !isWary(spec))
}

func (j cpuJudge) Feasible(st *cluster.State, s engine.Subject, self cluster.PodID, n cluster.NodeIndex) bool {
	return j.eligible(st, s, self, n) && j.allowed(st, s.Class)
}

// Preemptable says that a pod fits a node of which all pods of lower priority are gone.
func (j cpuJudge) Preemptable(st *cluster.State, s engine.Subject, self cluster.PodID, n cluster.NodeIndex) bool {
	if !st.Nodes.Live.Has(n) || !j.allowed(st, s.Class) {
		return false
	}
	free, victims := st.Nodes.Allocatable[cluster.CPU][n], false
	for _, row := range st.PodsOn(n) {
		if row.Priority < s.Priority && !row.Victim {
			victims = true
		} else {
			free -= st.Class(row.Class).Spec.Requests[0].Value
		}
	}
	return victims && free >= st.Class(s.Class).Spec.Requests[0].Value && !j.taken(st, s, self, n)
}

// Preempts says that a pod may, unless it waits for victims on a node that is large enough and where it may go.
func (cpuJudge) Preempts(st *cluster.State, pod cluster.PodID) (why string, ok bool) {
	row := st.Pod(pod)
	n := st.Nodes.ByName(row.Nominated)
	return "", !row.NeverPreempts && (n == cluster.NoNode || row.RequiredNode != "" && row.RequiredNode != row.Nominated ||
		st.Nodes.Allocatable[cluster.CPU][n] < st.Class(row.Class).Spec.Requests[0].Value)
}

func (j cpuJudge) Possible(st *cluster.State, s engine.Subject, but cluster.NodeIndex) bool {
	for n := range cluster.NodeIndex(st.Nodes.Len()) {
		if n != but && j.Feasible(st, s, cluster.NoPod, n) {
			return true
		}
	}
	return false
}

func (j cpuJudge) CrossNode(st *cluster.State, s engine.Subject) bool {
	spec := &st.Class(s.Class).Spec
	return len(spec.Affinity) > 0 || isWary(spec) && slices.ContainsFunc(st.TermClasses(), func(id cluster.ClassID) bool {
		return len(st.Class(id).Spec.AntiAffinity) > 0
	})
}

// rejectedPod returns a queue with one pod of a class, id 0, that has been unschedulable on nodes n1 and n2, with what had been
// placed before.
func rejectedPod(t *testing.T, now time.Time, class cluster.ClassSpec, n1, n2 int64, before ...cluster.Delta) (*Queue, *cluster.State) {
	t.Helper()
	st := cluster.New(cluster.Version{Epoch: 1})
	q := NewQueue(0, newCPUJudge())
	apply(t, q, st, now,
		settings(1),
		cluster.ClassDefined{ID: 0, Spec: class},
		cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "n1", Allocatable: cpu(n1)}},
		cluster.NodeSet{Index: 1, Node: cluster.Node{Name: "n2", Allocatable: cpu(n2)}})
	apply(t, q, st, now, before...)
	apply(t, q, st, now, cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "u", Name: "p", Created: now.UnixNano()}})
	a := pop(t, q, now)
	if newCPUJudge().Possible(st, a.Subject, cluster.NoNode) {
		t.Fatal("the pod fits from the beginning")
	}
	crossNode := newCPUJudge().eligible(st, a.Subject, 0, 0) || newCPUJudge().eligible(st, a.Subject, 0, 1)
	q.Reject(now, st, a, Diagnosis{Version: st.Version(), CrossNode: crossNode})
	if got := place(t, q); got != Unschedulable {
		t.Fatalf("when it is waiting: %v, want unschedulable", got)
	}
	return q, st
}

// placed are the deltas that place a pod of a class of its own.
func placed(id cluster.PodID, class cluster.ClassSpec, node string) []cluster.Delta {
	return []cluster.Delta{
		cluster.ClassDefined{ID: cluster.ClassID(id), Spec: class},
		cluster.PodSet{ID: id, Pod: cluster.Pod{UID: string(rune('a' + id)), Class: cluster.ClassID(id), NodeName: node}},
	}
}

func TestUnschedulablePodWakesWhenAChangeOnAnotherNodeMakesItPossible(t *testing.T) {
	now := time.Unix(1000, 0)
	q, st := rejectedPod(t, now, withAffinity(cpuClass(500)), 50, 1000)
	apply(t, q, st, now, placed(1, cpuClass(200), "n1")...)
	if q.Recheck(now, st); place(t, q) != Unschedulable {
		t.Fatalf("when another pod came: %v, want unschedulable", place(t, q))
	}
	apply(t, q, st, now, cluster.ClassDefined{ID: 2, Spec: cpuClass(100)}, cluster.PodSet{ID: 2, Pod: cluster.Pod{UID: "friend", Class: 2}})
	apply(t, q, st, now, cluster.PodAssumed{ID: 2, Node: 0, Attempt: 1}) // on n1, where the unschedulable pod has no room
	if q.Recheck(now, st); place(t, q) != Backoff {
		t.Errorf("when the pod it wants near was placed: %v, want backoff", place(t, q))
	}
}

func TestPodIsNotUnschedulableForGoodWhenAnotherNodeChangedDuringItsAttempt(t *testing.T) {
	now := time.Unix(1000, 0)
	q, st := rejectedPod(t, now, withAffinity(cpuClass(500)), 50, 1000)
	apply(t, q, st, now, cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "u", Name: "p", Priority: 1}})
	a, evaluated := pop(t, q, now), st.Version()
	apply(t, q, st, now, placed(1, cpuClass(100), "n1")...)
	q.Recheck(now, st)
	q.Reject(now, st, a, Diagnosis{Version: evaluated, CrossNode: true})
	if q.Recheck(now, st); place(t, q) != Backoff {
		t.Errorf("the pod is %v, want backoff", place(t, q))
	}
}

func TestUnschedulablePodWakesWhenThePodInItsWayHasComeAndGone(t *testing.T) {
	now := time.Unix(1000, 0)
	grow := cluster.NodeSet{Index: 1, Node: cluster.Node{Name: "n2", Allocatable: cpu(1000)}}
	gone := cluster.PodRemoved{ID: 1}
	repel := placed(1, withAntiAffinity(cpuClass(10)), "n1")
	for name, c := range map[string]struct {
		n2     int64
		before []cluster.Delta
		after  []cluster.Delta
	}{
		"it was there first": {1000, repel, []cluster.Delta{gone}},
		// While it is there a node grows, unseen. When it goes, that node does not change.
		"it came later":              {100, nil, append(slices.Clone(repel), grow, gone)},
		"it came after the node did": {100, repel, []cluster.Delta{grow, gone}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, always := range []bool{false, true} {
				q, st := rejectedPod(t, now, wary(cpuClass(500)), 50, c.n2, c.before...)
				for _, d := range c.after {
					apply(t, q, st, now, d)
					if always {
						q.Recheck(now, st)
					}
				}
				if q.Recheck(now, st); place(t, q) != Backoff {
					t.Errorf("looking after each change: %v: the pod is %v, want backoff", always, place(t, q))
				}
			}
		})
	}
}

func TestUnschedulablePodIsCheckedAgainWhenAnyOtherThingChangesThatItIsJudgedBy(t *testing.T) {
	now := time.Unix(1000, 0)
	for name, d := range map[string]cluster.Delta{
		"node gone":      cluster.NodeRemoved{Index: 0},
		"namespace":      cluster.NamespaceSet{Name: "team"},
		"namespace gone": cluster.NamespaceRemoved{Name: "other"},
		"selector":       cluster.SelectorSet{Kind: cluster.KindService, Namespace: "team", Name: "web"},
		"selector gone":  cluster.SelectorRemoved{Kind: cluster.KindService, Namespace: "other", Name: "web"},
	} {
		t.Run(name, func(t *testing.T) {
			q, st := rejectedPod(t, now, withAffinity(cpuClass(500)), 50, 1000, cluster.NamespaceSet{Name: "other"},
				cluster.SelectorSet{Kind: cluster.KindService, Namespace: "other", Name: "web"})
			q.Recheck(now, st)
			q.judge = always{newCPUJudge()} // say, by this change
			if q.Recheck(now, st); place(t, q) != Unschedulable {
				t.Fatalf("without a change: %v", place(t, q))
			}
			apply(t, q, st, now, d)
			if q.Recheck(now, st); place(t, q) != Backoff {
				t.Errorf("the pod is %v, want backoff", place(t, q))
			}
		})
	}
}

// always finds everything possible.
type always struct{ cpuJudge }

func (always) Possible(*cluster.State, engine.Subject, cluster.NodeIndex) bool { return true }

func TestUnschedulablePodIsTriedAgainByAHigherPriorityAndWithoutItsNomination(t *testing.T) {
	now := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		change func(*cluster.Pod)
		want   Place
	}{
		"other labels":     {func(p *cluster.Pod) { p.Labels = 3 }, Unschedulable},
		"higher priority":  {func(p *cluster.Pod) { p.Priority = 7 }, Backoff},
		"lower priority":   {func(p *cluster.Pod) { p.Priority = -7 }, Unschedulable},
		"nomination":       {func(p *cluster.Pod) { p.Nominated = "n2" }, Unschedulable},
		"nomination taken": {func(p *cluster.Pod) { p.Nominated = "" }, Backoff},
	} {
		t.Run(name, func(t *testing.T) {
			q, st := rejectedPod(t, now, cpuClass(500), 50, 100)
			pod := st.Pod(0).Pod
			pod.Nominated = "n1"
			apply(t, q, st, now, cluster.LabelsDefined{ID: 3, Set: cluster.LabelSet{Namespace: "default"}}, cluster.PodSet{ID: 0, Pod: pod})
			if got := place(t, q); got != Unschedulable {
				t.Fatalf("when it was nominated: %v", got)
			}
			c.change(&pod)
			apply(t, q, st, now, cluster.PodSet{ID: 0, Pod: pod})
			q.Recheck(now, st)
			if got := place(t, q); got != c.want {
				t.Errorf("the pod is %v, want %v", got, c.want)
			}
		})
	}
}

func TestNominatedPodWakesWhenItsNodeFitsButForItsOwnNomination(t *testing.T) {
	now := time.Unix(1000, 0)
	q, st := rejectedPod(t, now, cpuClass(500), 50, 100)
	apply(t, q, st, now, cluster.PodNominated{ID: 0, Node: "n2"})
	q.Activate(now, 0)
	a := pop(t, q, now)
	if a.Nominated != "n2" {
		t.Errorf("the attempt is of a pod that is nominated to %q, want n2", a.Nominated)
	}
	q.Reject(now, st, a, Diagnosis{Version: st.Version()})
	apply(t, q, st, now,
		cluster.ClassDefined{ID: 1, Spec: cpuClass(800)},
		cluster.PodSet{ID: 1, Pod: cluster.Pod{UID: "other", Class: 1, Nominated: "n2"}},
		cluster.NodeSet{Index: 1, Node: cluster.Node{Name: "n2", Allocatable: cpu(1000)}})
	q.Recheck(now, st)
	if got := place(t, q); got != Unschedulable {
		t.Fatalf("while another is nominated too: %v, want unschedulable", got)
	}
	// The node is free for it alone: what is nominated there is itself.
	apply(t, q, st, now, cluster.PodAssumed{ID: 1, Node: 0, Attempt: 1})
	q.Recheck(now, st)
	if got := place(t, q); got != Backoff {
		t.Errorf("when the other went elsewhere: %v, want backoff", got)
	}
}

// welcoming judges as if a pod that is nominated to a node fitted there only as long as it is taken to be there already.
type welcoming struct{ cpuJudge }

func (welcoming) Feasible(_ *cluster.State, _ engine.Subject, self cluster.PodID, _ cluster.NodeIndex) bool {
	return self == cluster.NoPod
}

func TestANominatedPodIsNotTriedAgainByWhatItsNodeIsToOthers(t *testing.T) {
	now := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		changes string
		want    Place
	}{
		"its own node changes":     {"n1", Unschedulable},
		"another one changes":      {"n2", Backoff},
		"it is nominated no more":  {"", Backoff},
		"nothing changes for long": {"-", Unschedulable},
	} {
		t.Run(name, func(t *testing.T) {
			st := cluster.New(cluster.Version{Epoch: 1})
			q := NewQueue(0, welcoming{newCPUJudge()})
			nodes := map[string]cluster.NodeIndex{"n1": 0, "n2": 1}
			apply(t, q, st, now, settings(1), cluster.ClassDefined{ID: 0, Spec: cpuClass(100)})
			for name, i := range nodes {
				apply(t, q, st, now, cluster.NodeSet{Index: i, Node: cluster.Node{Name: name, Allocatable: cpu(100)}})
			}
			apply(t, q, st, now, cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "u", Name: "p", Created: now.UnixNano(), Nominated: "n1"}})
			a, judged := pop(t, q, now), st.Version()
			switch i, known := nodes[c.changes]; {
			case known:
				apply(t, q, st, now, cluster.NodeSet{Index: i, Node: cluster.Node{Name: c.changes, Allocatable: cpu(101)}})
			case c.changes == "":
				apply(t, q, st, now, cluster.PodNominated{ID: 0})
			}
			q.Reject(now, st, a, Diagnosis{Version: judged})
			if got := place(t, q); got != c.want {
				t.Errorf("it is %v, want %v", got, c.want)
			}
		})
	}
}

// outgoing judges as if only the nomination of the pod made it fit on its node, n0, and as if it could preempt on n1 once that has changed.
type outgoing struct{ cpuJudge }

func (outgoing) Feasible(st *cluster.State, _ engine.Subject, self cluster.PodID, n cluster.NodeIndex) bool {
	return self == cluster.NoPod && n == 0 && st.Pod(0).Nominated != ""
}

func (outgoing) Possible(st *cluster.State, _ engine.Subject, but cluster.NodeIndex) bool {
	return but != 0 && st.Pod(0).Nominated != ""
}

func (outgoing) Preemptable(st *cluster.State, _ engine.Subject, _ cluster.PodID, n cluster.NodeIndex) bool {
	return n == 1 && st.Nodes.Allocatable[cluster.CPU][1] > 100
}

func TestAPodWhoseNominationEndsIsWokenByANodeOnWhichItCouldPreempt(t *testing.T) {
	now := time.Unix(1000, 0)
	st := cluster.New(cluster.Version{Epoch: 1})
	q := NewQueue(0, outgoing{newCPUJudge()})
	apply(t, q, st, now, settings(1), cluster.ClassDefined{ID: 0, Spec: cpuClass(100)},
		cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "n0", Allocatable: cpu(100)}},
		cluster.NodeSet{Index: 1, Node: cluster.Node{Name: "n1", Allocatable: cpu(100)}},
		cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "u", Name: "p", Created: now.UnixNano(), Nominated: "n0"}})
	q.Reject(now, st, pop(t, q, now), Diagnosis{Version: st.Version(), Resigns: true})
	apply(t, q, st, now,
		cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "n0", Allocatable: cpu(101)}},
		cluster.NodeSet{Index: 1, Node: cluster.Node{Name: "n1", Allocatable: cpu(101)}})
	q.Recheck(now, st)
	apply(t, q, st, now, cluster.PodNominated{ID: 0})
	q.Recheck(now, st)
	if got := place(t, q); got != Backoff {
		t.Errorf("it is %v, want backoff: it could preempt on n1 since that has changed", got)
	}
}
