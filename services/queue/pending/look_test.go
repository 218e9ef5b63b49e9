package pending

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// steps is when to stop a look: after each step.
func steps() bool { return true }

// nowhere finds nothing feasible, so that only hints bring pods back.
type nowhere struct{ cpuJudge }

func (nowhere) Feasible(*cluster.State, engine.Subject, cluster.PodID, cluster.NodeIndex) bool {
	return false
}

func (nowhere) Preemptable(*cluster.State, engine.Subject, cluster.PodID, cluster.NodeIndex) bool {
	return false
}

func (nowhere) Possible(*cluster.State, engine.Subject, cluster.NodeIndex) bool { return false }

// lateWorld is one log and two queues: eager looks after each delta, late one step at a time, at random.
type lateWorld struct {
	t           *testing.T
	rng         *rand.Rand
	now         time.Time
	st          *cluster.State
	eager, late *Queue
}

func newLateWorld(t *testing.T, seed uint64, judge Judge) *lateWorld {
	w := &lateWorld{t: t, rng: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1000, 0), st: cluster.New(cluster.Version{Epoch: 1})}
	w.eager, w.late = NewQueue(0, judge), NewQueue(0, judge)
	w.apply(settings(1))
	for k, spec := range lateClasses() {
		w.apply(cluster.ClassDefined{ID: cluster.ClassID(k), Spec: spec})
		w.apply(cluster.PodSet{ID: w.st.FreePod(), Pod: cluster.Pod{UID: fmt.Sprint("keeper-", k), Class: cluster.ClassID(k), NodeName: "elsewhere"}})
	}
	for k, app := range []string{"a", "b", "c"} {
		set := cluster.LabelSet{Namespace: "default", Labels: []cluster.Label{{Key: "app", Value: app}}}
		w.apply(cluster.LabelsDefined{ID: cluster.LabelsID(k + 1), Set: set})
		w.apply(cluster.PodSet{ID: w.st.FreePod(), Pod: cluster.Pod{
			UID: fmt.Sprint("labels-", k), Namespace: "default", Labels: cluster.LabelsID(k + 1), NodeName: "elsewhere"}})
	}
	return w
}

// lateClasses want pods near, or far, or spread, or more than there is.
func lateClasses() []cluster.ClassSpec {
	apps := func(app string) cluster.LabelSelector {
		return cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "app", Operator: "In", Values: []string{app}}}}
	}
	term := func(app string) []cluster.PodTerm {
		return []cluster.PodTerm{{TopologyKey: "zone", Namespaces: []string{"default"}, NamespaceSelector: cluster.LabelSelector{Nothing: true}, Selector: apps(app)}}
	}
	near, far, even := cpuClass(100), cpuClass(100), cpuClass(100)
	near.Affinity, far.AntiAffinity = term("a"), term("b")
	even.Spread = []cluster.SpreadConstraint{{TopologyKey: "zone", MaxSkew: 1, Hard: true, Selector: apps("c")}}
	return []cluster.ClassSpec{cpuClass(100), near, far, even, wary(cpuClass(300)), cpuClass(500), cpuClass(900)}
}

func (w *lateWorld) apply(d cluster.Delta) {
	w.t.Helper()
	if err := w.st.Apply(d); err != nil {
		w.t.Fatal(err)
	}
	w.eager.Apply(w.now, w.st, d)
	w.late.Apply(w.now, w.st, d)
	w.eager.Recheck(w.now, w.st)
	for range w.rng.IntN(4) {
		if w.rng.IntN(3) == 0 {
			w.late.RecheckUntil(w.now, w.st, steps)
		}
	}
}

// change makes one thing in the cluster another.
func (w *lateWorld) change() {
	n := cluster.NodeIndex(w.rng.IntN(3))
	placed := cluster.PodID(-1)
	for id, row := range w.st.Pods() {
		if row.Node != cluster.NoNode && w.rng.IntN(3) == 0 {
			placed = id
		}
	}
	switch k := w.rng.IntN(10); {
	case k < 4:
		w.apply(cluster.NodeSet{Index: n, Node: cluster.Node{
			Name: fmt.Sprint("n", n), Labels: []cluster.Label{{Key: "zone", Value: fmt.Sprint(w.rng.IntN(3))}},
			Allocatable: append(cpu(int64(200+w.rng.IntN(8)*100)), cluster.Quantity{Name: "pods", Value: 110}),
		}})
	case k == 4 && w.st.Nodes.Live.Has(n):
		w.apply(cluster.NodeRemoved{Index: n})
	case k < 7 && placed >= 0:
		w.apply(cluster.PodRemoved{ID: placed})
	case k == 7 && placed >= 0:
		pod := w.st.Pod(placed).Pod
		pod.Labels = cluster.LabelsID(1 + w.rng.IntN(3))
		w.apply(cluster.PodSet{ID: placed, Pod: pod})
	default:
		w.apply(cluster.PodSet{ID: w.st.FreePod(), Pod: cluster.Pod{
			UID: fmt.Sprint("placed-", w.st.Version().Seq), Namespace: "default", NodeName: fmt.Sprint("n", n),
			Class: cluster.ClassID(w.rng.IntN(4)), Labels: cluster.LabelsID(1 + w.rng.IntN(3)),
		}})
	}
}

// run has pods come, be tried and be rejected while the cluster changes. Both queues pop and reject the same pods.
func (w *lateWorld) run(fits func(Attempt) bool) {
	for k := range 12 {
		w.apply(cluster.PodSet{ID: w.st.FreePod(), Pod: cluster.Pod{
			UID: fmt.Sprint("waits-", k), Name: fmt.Sprint("waits-", k), Namespace: "default", Created: int64(k),
			Class: cluster.ClassID(k % len(lateClasses())), Labels: cluster.LabelsID(1 + k%3), RequiredNode: []string{"", "", "", "n1"}[w.rng.IntN(4)],
		}})
	}
	for range 4 {
		w.change()
	}
	w.late.Recheck(w.now, w.st)
	batch := w.eager.Pop(w.now, 100)
	w.late.Pop(w.now, 100)
	version := w.st.Version()
	var tried []Attempt
	for _, a := range batch {
		if !fits(a) {
			tried = append(tried, a)
		}
	}
	for _, a := range tried {
		if w.rng.IntN(3) > 0 {
			w.change()
		}
		d := Diagnosis{Version: version, CrossNode: w.rng.IntN(2) == 0}
		for _, plugin := range []string{engine.NodeResourcesFit, engine.PodTopologySpread, engine.InterPodAffinity} {
			if w.rng.IntN(2) == 0 {
				d.Verdicts = append(d.Verdicts, engine.VerdictCount{Plugin: plugin})
			}
		}
		w.eager.Reject(w.now, w.st, a, d)
		w.late.Reject(w.now, w.st, a, d)
	}
	for range w.rng.IntN(12) {
		w.change()
	}
	w.eager.Recheck(w.now, w.st)
	// A look that had begun ends, and the next sees the rest.
	for range 2 {
		for !w.late.RecheckUntil(w.now, w.st, steps) {
		}
	}
}

func TestHintsAreGivenForEveryEventHoweverLateTheLook(t *testing.T) {
	back := 0
	for seed := range uint64(1500) {
		w := newLateWorld(t, seed, nowhere{newCPUJudge()})
		if seed%2 == 1 {
			w.late.most = 1 // anything may have happened
		}
		w.run(func(Attempt) bool { return false })
		for e := range w.eager.Entries(w.eager.IDs()) {
			late, _ := w.late.Entry(e.ID)
			switch {
			case e.Place == late.Place:
			case w.late.most == mostEvents:
				t.Fatalf("seed %d: %s is %v where each delta is looked at, and %v where many are", seed, e.Pod.Name, e.Place, late.Place)
			case late.Place == Unschedulable:
				t.Fatalf("seed %d: %s is %v, and was to come back: not every event was kept", seed, e.Pod.Name, late.Place)
			}
			if e.Place == Backoff {
				back++
			}
		}
	}
	if back == 0 {
		t.Error("no pod came back")
	}
}

func TestNoPodThatFitsIsLeftBehindHoweverLateTheLook(t *testing.T) {
	judge := newCPUJudge()
	back := 0
	for seed := range uint64(1500) {
		w := newLateWorld(t, seed, judge)
		fits := func(id cluster.PodID) bool {
			row := w.st.Pod(id)
			for n := range cluster.NodeIndex(w.st.Nodes.Len()) {
				if (row.RequiredNode == "" || row.RequiredNode == w.st.Nodes.Spec[n].Name) && judge.Feasible(w.st, engine.SubjectOf(&row.Pod), id, n) {
					return true
				}
			}
			return false
		}
		w.run(func(a Attempt) bool { return fits(a.ID) })
		for e := range w.late.Entries(w.late.IDs()) {
			if e.Place == Unschedulable && fits(e.ID) {
				t.Fatalf("seed %d: %s fits and is unschedulable", seed, e.Pod.Name)
			}
			if e.Place == Backoff {
				back++
			}
		}
	}
	if back == 0 {
		t.Error("no pod came back")
	}
}

// Of many pods, groups, nodes and hints each step takes a few, and what is left comes with the next.
func TestLookInPartsBringsBackAll(t *testing.T) {
	for name, help := range map[string]cluster.Node{
		"a node that fits":      {Name: "n2", Allocatable: cpu(1000)},
		"a node that is larger": {Name: "n1", Allocatable: append(cpu(1000), cluster.Quantity{Name: "pods", Value: 110})},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			st := cluster.New(cluster.Version{Epoch: 1})
			q := NewQueue(0, newCPUJudge())
			apply(t, q, st, now, settings(1), cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "n1", Allocatable: cpu(100)}})
			const pods = 60
			for k := range cluster.PodID(pods) {
				if k < 6 {
					apply(t, q, st, now, cluster.ClassDefined{ID: cluster.ClassID(k), Spec: cpuClass(500 + int64(k))})
				}
				apply(t, q, st, now, cluster.PodSet{ID: k, Pod: cluster.Pod{UID: fmt.Sprint(k), Class: cluster.ClassID(k % 6), Created: now.UnixNano()}})
			}
			for _, a := range q.Pop(now, pods) {
				q.Reject(now, st, a, Diagnosis{Version: st.Version(), Verdicts: []engine.VerdictCount{{Plugin: engine.NodeResourcesFit}}})
			}
			index := st.Nodes.ByName(help.Name)
			if index == cluster.NoNode {
				index = st.Nodes.Free()
			}
			apply(t, q, st, now, cluster.NodeSet{Index: index, Node: help})
			if got := q.Count(Unschedulable); got != pods {
				t.Fatalf("%d of %d pods are unschedulable before the look", got, pods)
			}
			parts := 1
			for before := pods; !q.RecheckUntil(now, st, steps); parts++ {
				if got := q.Count(Unschedulable); before-got > 1 {
					t.Fatalf("one step brings %d pods back", before-got)
				}
				if before = q.Count(Unschedulable); !q.Looks() {
					t.Fatalf("after %d parts all has been looked at, it says, before the last", parts)
				}
			}
			if q.Looks() {
				t.Error("there is still something to look at, it says, after the last part")
			}
			if got := q.Count(Backoff); got != pods || parts < pods {
				t.Errorf("%d of %d pods have come back, in %d parts", got, pods, parts)
			}
		})
	}
}

// inParts looks one step at a time until all has been looked at.
func inParts(q *Queue, now time.Time, st *cluster.State) {
	for !q.RecheckUntil(now, st, steps) {
	}
}

func TestLookInPartsSeesEveryPodThatHasChanged(t *testing.T) {
	now := time.Unix(1000, 0)
	st := cluster.New(cluster.Version{Epoch: 1})
	q := NewQueue(0, newCPUJudge())
	apply(t, q, st, now, settings(1), cluster.ClassDefined{ID: 0, Spec: cpuClass(500)}, cluster.ClassDefined{ID: 1, Spec: cpuClass(200)},
		cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "n1", Allocatable: cpu(300)}})
	for k := range cluster.PodID(4) {
		apply(t, q, st, now, cluster.PodSet{ID: k, Pod: cluster.Pod{UID: fmt.Sprint(k), Created: now.UnixNano()}})
	}
	for _, a := range q.Pop(now, 4) {
		q.Reject(now, st, a, Diagnosis{Version: st.Version()})
	}
	for k := range cluster.PodID(4) {
		apply(t, q, st, now, cluster.PodSet{ID: k, Pod: cluster.Pod{UID: fmt.Sprint(k), Class: 1, Created: now.UnixNano()}})
	}
	if inParts(q, now, st); q.Count(Backoff) != 4 {
		t.Errorf("%d of 4 pods that fit by now have come back", q.Count(Backoff))
	}
}

func TestLookInPartsSeesEveryNodeWhereAPodCouldPreemptThatOtherNodesMatterTo(t *testing.T) {
	now := time.Unix(1000, 0)
	before := append(placed(1, cpuClass(100), "n1"), placed(2, cpuClass(300), "n2")...)
	q, st := rejectedPod(t, now, withAffinity(cpuClass(500)), 50, 600, before...)
	pod := st.Pod(0).Pod
	pod.Priority = 5
	apply(t, q, st, now, cluster.PodSet{ID: 0, Pod: pod})
	q.Reject(now, st, pop(t, q, now), Diagnosis{Version: st.Version(), CrossNode: true})
	q.looked = st.Version().Seq // what was there before is no news
	apply(t, q, st, now, cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "n1", Allocatable: cpu(60)}},
		cluster.NodeSet{Index: 1, Node: cluster.Node{Name: "n2", Allocatable: cpu(610)}})
	if inParts(q, now, st); place(t, q) != Backoff {
		t.Errorf("the pod is %v, want backoff", place(t, q))
	}
}

func TestReleasedPodIsLookedAtForWhatHasComeToMatterMeanwhile(t *testing.T) {
	now := time.Unix(1000, 0)
	q, st := rejectedPod(t, now, wary(cpuClass(500)), 50, 100)
	victim := placed(1, cpuClass(10), "n2")
	pod := victim[1].(cluster.PodSet)
	pod.Pod.Priority = -1
	apply(t, q, st, now, victim[0], pod, cluster.PreemptionStarted{ID: 0, Node: 1, Victims: []cluster.PodID{1}})
	apply(t, q, st, now, placed(2, withAntiAffinity(cpuClass(10)), "n1")...)
	apply(t, q, st, now, cluster.NodeSet{Index: 1, Node: cluster.Node{Name: "n2", Allocatable: cpu(1000)}})
	q.Recheck(now, st)
	apply(t, q, st, now, cluster.PreemptionEnded{ID: 0})
	if q.Recheck(now, st); place(t, q) != Unschedulable {
		t.Fatalf("while a pod that it may not be near is there: %v, want unschedulable", place(t, q))
	}
	apply(t, q, st, now, cluster.PodRemoved{ID: 2}) // of n1: what it fits, n2, does not change
	if q.Recheck(now, st); place(t, q) != Backoff {
		t.Errorf("when that has gone: %v, want backoff", place(t, q))
	}
}

func TestPodThatBecomesAnotherIsLookedAtForWhatHappensOnOtherNodes(t *testing.T) {
	now := time.Unix(1000, 0)
	q, st := rejectedPod(t, now, cpuClass(500), 50, 100, placed(1, withAffinity(cpuClass(500)), "elsewhere")...)
	apply(t, q, st, now, cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "u", Name: "p", Class: 1, Created: now.UnixNano()}})
	q.Recheck(now, st)
	apply(t, q, st, now, cluster.NodeSet{Index: 1, Node: cluster.Node{Name: "n2", Allocatable: cpu(1000)}})
	if q.Recheck(now, st); place(t, q) != Unschedulable {
		t.Fatalf("without the pod it wants near: %v, want unschedulable", place(t, q))
	}
	apply(t, q, st, now, cluster.ClassDefined{ID: 2, Spec: cpuClass(100)}, cluster.PodSet{ID: 2, Pod: cluster.Pod{UID: "friend", Class: 2}},
		cluster.PodAssumed{ID: 2, Node: 0, Attempt: 1})
	if q.Recheck(now, st); place(t, q) != Backoff {
		t.Errorf("with it, on another node: %v, want backoff", place(t, q))
	}
}

func TestPodThatBecomesAnotherDoesNotLoseWhatItHasNotHeard(t *testing.T) {
	now := time.Unix(1000, 0)
	st := cluster.New(cluster.Version{Epoch: 1})
	q := NewQueue(0, nowhere{newCPUJudge()})
	apply(t, q, st, now, settings(1))
	for k, spec := range lateClasses() {
		apply(t, q, st, now, cluster.ClassDefined{ID: cluster.ClassID(k), Spec: spec})
	}
	apply(t, q, st, now,
		cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "n1", Allocatable: cpu(100)}},
		cluster.LabelsDefined{ID: 1, Set: cluster.LabelSet{Namespace: "default", Labels: []cluster.Label{{Key: "app", Value: "a"}}}},
		cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "u", Namespace: "default", Class: 1, Created: now.UnixNano()}})
	a, version := pop(t, q, now), st.Version()
	apply(t, q, st, now,
		cluster.PodSet{ID: 1, Pod: cluster.Pod{UID: "near", Namespace: "default", Labels: 1, NodeName: "n1"}},
		cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "u", Namespace: "default", Created: now.UnixNano()}})
	q.Reject(now, st, a, Diagnosis{Version: version, Verdicts: []engine.VerdictCount{{Plugin: engine.InterPodAffinity}}})
	if got := place(t, q); got != Backoff {
		t.Errorf("the pod is %v, want backoff: what it wanted near has come while it did", got)
	}
}

// byLabels says that other nodes matter to pods with labels, once they do, and that these fit, once they do.
type byLabels struct {
	cpuJudge
	matter, fit *bool
}

func (j byLabels) CrossNode(_ *cluster.State, s engine.Subject) bool {
	return *j.matter && s.Labels == 1
}

func (j byLabels) Possible(_ *cluster.State, s engine.Subject, _ cluster.NodeIndex) bool {
	return *j.fit && s.Labels == 1
}

func TestReleasedPodJoinsOthersThatAreKnownNotToDependOnOtherNodes(t *testing.T) {
	now := time.Unix(1000, 0)
	var matter, fit bool
	st := cluster.New(cluster.Version{Epoch: 1})
	q := NewQueue(0, byLabels{newCPUJudge(), &matter, &fit})
	apply(t, q, st, now, settings(1), cluster.ClassDefined{ID: 0, Spec: cpuClass(500)},
		cluster.LabelsDefined{ID: 1, Set: cluster.LabelSet{Namespace: "default"}})
	for n := range cluster.NodeIndex(2) {
		apply(t, q, st, now, cluster.NodeSet{Index: n, Node: cluster.Node{Name: fmt.Sprint("n", n), Allocatable: cpu(100)}})
	}
	apply(t, q, st, now, cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "u", Labels: 1, Created: now.UnixNano()}},
		cluster.PodSet{ID: 1, Pod: cluster.Pod{UID: "other", Created: now.UnixNano()}})
	apply(t, q, st, now, placed(2, cpuClass(10), "n0")[0], cluster.PodSet{ID: 2, Pod: cluster.Pod{UID: "victim", Class: 2, NodeName: "n0", Priority: -1}})
	for _, a := range q.Pop(now, 2) {
		q.Reject(now, st, a, Diagnosis{Version: st.Version()})
	}
	apply(t, q, st, now, cluster.PreemptionStarted{ID: 0, Node: 0, Victims: []cluster.PodID{2}})
	matter = true
	apply(t, q, st, now, cluster.NamespaceSet{Name: "team"})
	q.Recheck(now, st)
	apply(t, q, st, now, cluster.PreemptionEnded{ID: 0}, cluster.NodeSet{Index: 1, Node: cluster.Node{Name: "n1", Allocatable: cpu(110)}})
	q.Recheck(now, st)
	fit = true
	apply(t, q, st, now, cluster.NodeRemoved{Index: 1})
	q.Recheck(now, st)
	if other, _ := q.Entry(1); place(t, q) != Backoff || other.Place != Unschedulable {
		t.Errorf("the pod is %v, want backoff; another, to which other nodes do not matter, is %v", place(t, q), other.Place)
	}
}

// asked counts the questions about all nodes, of which each look asks one here.
type asked struct {
	nowhere
	times *int
}

func (a asked) CrossNode(*cluster.State, engine.Subject) bool { return true }

func (a asked) Possible(*cluster.State, engine.Subject, cluster.NodeIndex) bool {
	*a.times++
	return false
}

func TestPodsThatAreFlushedInPartsDoNotTakeALookEach(t *testing.T) {
	const pods = 20
	start, looks := time.Unix(1000, 0), 0
	st := cluster.New(cluster.Version{Epoch: 1})
	q := NewQueue(0, asked{nowhere{newCPUJudge()}, &looks})
	apply(t, q, st, start, settings(1), cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "n1", Allocatable: cpu(1000)}},
		cluster.ClassDefined{ID: 0, Spec: cpuClass(2000)})
	reject := func(now time.Time, n int) {
		for range n {
			id := st.FreePod()
			apply(t, q, st, now, cluster.PodSet{ID: id, Pod: cluster.Pod{UID: fmt.Sprint(id), Created: now.UnixNano()}})
		}
		for _, a := range q.Pop(now, n) {
			q.Reject(now, st, a, Diagnosis{Version: st.Version(), CrossNode: true})
		}
	}
	reject(start, pods)
	reject(start.Add(time.Minute), 1) // it stays, and each look asks about it
	now := start.Add(longestUnschedulable + time.Second)
	parts := 0
	for done := false; !done; parts++ {
		id := st.FreePod() // between two parts the log goes on
		apply(t, q, st, now, cluster.PodSet{ID: id, Pod: cluster.Pod{UID: fmt.Sprint(id), NodeName: "n1"}})
		done = q.RecheckUntil(now, st, steps)
	}
	if got := q.Count(Unschedulable); looks > 1 || got != 1 {
		t.Errorf("%d looks and %d pods that are still unschedulable after %d parts, want one and one", looks, got, parts)
	}
}

// A look in parts that looked for the next pod among all in each part took forty times as long as one as a whole.
func TestALookInPartsDoesNotBeginAnewInEachPart(t *testing.T) {
	const count = 10_000
	enemy := cpuClass(1)
	enemy.AntiAffinity = podTerm("nobody", "zone")
	for name, d := range map[string]cluster.Delta{
		"pods are given hints": cluster.PodRemoved{ID: 0}, "pods of other nodes may matter": cluster.NamespaceSet{Name: "team"},
	} {
		t.Run(name, func(t *testing.T) {
			took := func(enough func() bool) time.Duration {
				w := &waiting{tb: t, now: time.Unix(1000, 0), st: cluster.New(cluster.Version{Epoch: 1}), nodes: 1, perNode: 1}
				w.queue = NewQueue(0, nowhere{newCPUJudge()})
				w.apply(settings(1))
				w.apply(cluster.ClassDefined{ID: 0, Spec: enemy})
				w.apply(cluster.ClassDefined{ID: 1, Spec: cpuClass(100)})
				w.apply(cluster.NodeSet{Index: 0, Node: w.node(0, 0)})
				w.apply(cluster.PodSet{ID: 0, Pod: w.placed(0)})
				w.apply(cluster.PodSet{ID: 1, Pod: w.placed(1)}) // keeps the class
				for k := range count {
					name := fmt.Sprint("waits-", k)
					w.apply(cluster.PodSet{ID: w.st.FreePod(), Pod: cluster.Pod{UID: name, Name: name, Namespace: "default", Class: 1}})
				}
				for _, a := range w.queue.Pop(w.now, count) {
					w.queue.Reject(w.now, w.st, a, Diagnosis{Version: w.st.Version(), Verdicts: []engine.VerdictCount{{Plugin: engine.InterPodAffinity, Count: 1}}})
				}
				w.queue.Recheck(w.now, w.st)
				w.apply(d)
				began := time.Now()
				for done := false; !done; {
					done = w.queue.RecheckUntil(w.now, w.st, enough)
				}
				if n := w.queue.Count(Unschedulable); n != count {
					t.Fatalf("%d pods are unschedulable after the look, want %d", n, count)
				}
				return time.Since(began)
			}
			whole, parts := took(func() bool { return false }), took(steps)
			for range 5 { // the machine may have had other things to do
				whole, parts = min(whole, took(func() bool { return false })), min(parts, took(steps))
			}
			if parts > 10*whole {
				t.Errorf("in parts the look takes %v, as a whole %v", parts, whole)
			}
		})
	}
}

// A pod comes back to a group, of which it is not known whether other nodes matter to it by now, while those of the group are being woken.
func TestAllPodsOfAGroupAreWokenThoughOneComesAmidIt(t *testing.T) {
	now := time.Unix(1000, 0)
	st := cluster.New(cluster.Version{Epoch: 1})
	q := NewQueue(0, newCPUJudge())
	apply(t, q, st, now, settings(1), cluster.ClassDefined{ID: 0, Spec: cpuClass(500)})
	for n := range cluster.NodeIndex(2) {
		apply(t, q, st, now, cluster.NodeSet{Index: n, Node: cluster.Node{Name: fmt.Sprint("n", n), Allocatable: cpu(100)}})
	}
	const pods = 6
	for id := range cluster.PodID(pods) {
		apply(t, q, st, now, cluster.PodSet{ID: id, Pod: cluster.Pod{UID: fmt.Sprint("u", id), Created: now.UnixNano()}})
	}
	apply(t, q, st, now, placed(pods, cpuClass(10), "n0")[0], cluster.PodSet{ID: pods, Pod: cluster.Pod{UID: "victim", Class: pods, NodeName: "n0", Priority: -1}})
	for _, a := range q.Pop(now, pods) {
		q.Reject(now, st, a, Diagnosis{Version: st.Version()})
	}
	apply(t, q, st, now, cluster.PreemptionStarted{ID: 0, Node: 0, Victims: []cluster.PodID{pods}}, cluster.NamespaceSet{Name: "team"})
	q.Recheck(now, st)
	apply(t, q, st, now, cluster.NodeSet{Index: 1, Node: cluster.Node{Name: "n1", Allocatable: cpu(5000)}})
	for q.Count(Backoff) < 2 {
		if q.RecheckUntil(now, st, steps) {
			t.Fatal("the look is over")
		}
	}
	apply(t, q, st, now, cluster.PreemptionEnded{ID: 0})
	for q.Looks() {
		q.Recheck(now, st)
	}
	if n := q.Count(Unschedulable); n > 0 {
		t.Errorf("%d of %d pods sleep, though there is a node for them all", n, pods)
	}
}
