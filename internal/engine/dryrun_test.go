package engine

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
)

// crowded makes nodes small and alike, so that pods are often in each other's way, and little else is.
func crowded(d cluster.Delta) cluster.Delta {
	var ports []cluster.HostPort
	if d, ok := d.(cluster.ClassDefined); ok {
		ports = d.Spec.HostPorts
	}
	switch d := roomy(d).(type) {
	case cluster.ClassDefined:
		d.Spec.HostPorts = ports
		return d
	case cluster.NodeSet:
		d.Node.Taints = nil
		for k := range d.Node.Allocatable {
			d.Node.Allocatable[k].Value = 1500
			if d.Node.Allocatable[k].Name == "pods" {
				d.Node.Allocatable[k].Value = 4
			}
		}
		return d
	default:
		return d
	}
}

// counted is crowded without what kube-scheduler counts one way and uncounts another: pods that are terminating, and
// empty selectors of hard spread constraints.
func counted(d cluster.Delta) cluster.Delta {
	switch d := crowded(d).(type) {
	case cluster.PodSet:
		d.Pod.Deleting = false
		return d
	case cluster.ClassDefined:
		for k := range d.Spec.Spread {
			if c := &d.Spec.Spread[k]; c.Selector.Empty() {
				c.Hard = false
			}
		}
		return d
	default:
		return d
	}
}

// crowd adds placed pods to all nodes, and pending ones that are more important than most of them.
func crowd(t fataler, intn clustertest.Intn, st *cluster.State) {
	classes, sets := st.Classes(), st.LabelSets()
	if len(classes) == 0 {
		return
	}
	add := func(pod cluster.Pod) {
		id := st.FreePod()
		pod.UID = fmt.Sprintf("crowd-%d", st.Version().Seq)
		pod.Name, pod.Namespace, pod.Class = pod.UID, "default", classes[intn(len(classes))].ID
		if len(sets) > 0 && intn(4) > 0 {
			set := sets[intn(len(sets))]
			pod.Labels, pod.Namespace = set.ID, set.Namespace
		}
		apply(t, st, cluster.PodSet{ID: id, Pod: pod})
	}
	for _, i := range live(st) {
		for range intn(4) {
			add(cluster.Pod{NodeName: st.Nodes.Spec[i].Name, Priority: int32(intn(4) - 2), Started: int64(intn(4))})
		}
	}
	for range 1 + intn(4) {
		add(cluster.Pod{Priority: int32(intn(3))})
	}
}

// without returns the state as it would be if some pods were gone.
func without(t fataler, st *cluster.State, gone []cluster.PodID) *cluster.State {
	out := cluster.New(cluster.Version{Epoch: 1})
	for d := range st.Snapshot() {
		apply(t, out, d)
	}
	for _, id := range gone {
		apply(t, out, cluster.PodRemoved{ID: id})
	}
	return out
}

// slowDryRun is the obviously correct dry run: it removes pods from copies of the state, and if preemption sees volumes what becomes of their
// volumes too, and asks what the filters say then. It returns a candidate, or the reasons why the node is none.
func slowDryRun(t fataler, st *cluster.State, id cluster.PodID, i cluster.NodeIndex) (*Preemption, []string) {
	found, why := slowDryRunIf(t, st, id, i, st.Settings.PreemptionSeesVolumes)
	if found == nil && slices.Equal(why, []string{ReasonDetaching}) { // it need not wait for that: kube-scheduler does not
		if attached, _ := slowDryRunIf(t, st, id, i, false); attached != nil {
			return attached, nil
		}
	}
	return found, why
}

// slowDryRunIf is slowDryRun as it is if preemption sees volumes, or does not.
func slowDryRunIf(t fataler, st *cluster.State, id cluster.PodID, i cluster.NodeIndex, sees bool) (*Preemption, []string) {
	pod := st.Pod(id)
	askDetached := func(gone []cluster.PodID, detached bool) (Verdict, []string) {
		then := without(t, st, gone)
		if sees {
			detach(t, st, then, i, detached)
		}
		e := NewEvaluator(EvaluatorConfig{Parallelism: 1})
		v, ok := e.Node(then, SubjectOf(&pod.Pod), id, i)
		if !ok {
			t.Fatalf("node %d is not known", i)
		}
		var reasons []string
		for _, c := range e.Explain(then, SubjectOf(&pod.Pod), v, i) {
			reasons = append(reasons, c.Reason)
		}
		return v, reasons
	}
	ask := func(gone []cluster.PodID) (Verdict, []string) { return askDetached(gone, false) }
	detaching := func(gone []cluster.PodID) bool {
		if !sees {
			return false
		}
		v, _ := askDetached(gone, true)
		return v.Feasible()
	}
	now, _ := ask(nil)
	if pod.RequiredNode != "" && pod.RequiredNode != st.Nodes.Spec[i].Name || now.Feasible() || now.Unresolvable() {
		return nil, []string{ReasonNotHelpful}
	}
	if detaching(nil) {
		return nil, []string{ReasonDetaching}
	}
	var lower []cluster.PodID
	for other, row := range st.PodsOn(i) {
		if row.Priority < pod.Priority {
			lower = append(lower, other)
		}
	}
	if len(lower) == 0 {
		return nil, []string{ReasonNoVictims}
	}
	if v, reasons := ask(lower); !v.Feasible() {
		return nil, reasons
	}
	started := func(id cluster.PodID) int64 {
		if at := st.Pod(id).Started; at != 0 {
			return at
		}
		return math.MaxInt64
	}
	slices.SortFunc(lower, func(a, b cluster.PodID) int {
		return cmp.Or(-cmp.Compare(st.Pod(a).Priority, st.Pod(b).Priority), cmp.Compare(started(a), started(b)), cmp.Compare(a, b))
	})
	protected := make(map[cluster.PodID]bool)
	for d := range st.Objects() {
		b, ok := d.Object.(*cluster.Budget)
		if !ok {
			continue
		}
		left := b.Allowed
		for _, victim := range lower {
			row := st.Pod(victim)
			labels := st.Labels(row.Labels)
			if labels == nil || len(labels.Labels) == 0 || !b.Protects(row.Name, &labels.LabelSet) {
				continue
			}
			left--
			protected[victim] = protected[victim] || left < 0
		}
	}
	out := &Preemption{Node: i}
	gone := slices.Clone(lower)
	for before := -1; before != len(gone) && (before < 0 || sees); {
		before = len(gone)
		for _, turn := range []bool{true, false} {
			for _, victim := range lower {
				if protected[victim] != turn || !slices.Contains(gone, victim) {
					continue
				}
				rest := slices.DeleteFunc(slices.Clone(gone), func(id cluster.PodID) bool { return id == victim })
				if v, _ := ask(rest); v.Feasible() {
					gone = rest
				}
			}
		}
	}
	for _, victim := range gone {
		if protected[victim] {
			out.Violations++
		}
	}
	for _, victim := range gone {
		if detaching(slices.DeleteFunc(slices.Clone(gone), func(id cluster.PodID) bool { return id == victim })) {
			return nil, []string{ReasonDetaching}
		}
	}
	out.Victims, out.HighestPriority, out.EarliestStart = gone, math.MinInt32, math.MaxInt64
	for _, victim := range gone {
		out.HighestPriority = max(out.HighestPriority, st.Pod(victim).Priority)
		out.PrioritySum += int64(st.Pod(victim).Priority) + 1<<31
	}
	for _, victim := range gone {
		if st.Pod(victim).Priority == out.HighestPriority {
			out.EarliestStart = min(out.EarliestStart, started(victim))
		}
	}
	return out, nil
}

// skipped reports whether the oracle cannot tell: where kube-scheduler does not skip InterPodAffinity because of a pod that
// then goes, the terms of nominated pods count, and on a copy without that pod they do not.
func skipped(st *cluster.State, i cluster.NodeIndex) bool {
	return slices.ContainsFunc(nominatedTo(st, i), func(id cluster.PodID) bool {
		return len(st.Class(st.Pod(id).Class).Spec.AntiAffinity) > 0
	})
}

func TestDryRunFindsWhatRemovingPodsWouldShow(t *testing.T) {
	const (
		candidates = "candidates"
		crossing   = "candidates for pods to which other pods matter"
		beside     = "candidates with a nominated pod"
		violations = "protected victims"
		spared     = "pods spared"
		tried      = "nodes where it is not enough that all of lower priority go"
	)
	seen := make(map[string]int)
	clustertest.CheckUntil(t, clustertest.Unseen(seen, candidates, crossing, beside, violations, spared, tried), func(t *rapid.T) {
		st := cluster.New(cluster.Version{Epoch: 1})
		intn := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)).IntN
		for range rapid.IntRange(60, 160).Draw(t, "steps") {
			apply(t, st, counted(clustertest.Delta(intn, st)))
		}
		crowd(t, intn, st)
		e := NewEvaluator(EvaluatorConfig{})
		asked := 0
		for id, row := range st.Pods() {
			if row.Placed() || asked == 6 {
				continue
			}
			asked++
			if slices.ContainsFunc(live(st), func(i cluster.NodeIndex) bool { return skipped(st, i) }) || decidedByVolumes(e, st, SubjectOf(&row.Pod)) {
				continue
			}
			want := DryRun{Nodes: int32(st.Nodes.Count())}
			reasons := map[string]int32{}
			for _, i := range live(st) {
				found, why := slowDryRun(t, st, id, i)
				for _, reason := range why {
					reasons[reason]++
				}
				if found == nil {
					if why[0] != ReasonNotHelpful && why[0] != ReasonNoVictims {
						seen[tried]++
					}
					continue
				}
				want.Count++
				want.Candidates = append(want.Candidates, *found)
				seen[violations] += int(found.Violations)
				if e.CrossNode(st, SubjectOf(&row.Pod)) {
					seen[crossing]++
				}
				if len(nominatedTo(st, i)) > 0 {
					seen[beside]++
				}
				seen[spared] += int(st.Nodes.PodCount[i]) - len(found.Victims)
			}
			slices.SortFunc(want.Candidates, func(a, b Preemption) int { return a.Compare(&b, st.Settings.Seed) })
			seen[candidates] += len(want.Candidates)
			got, ok := e.DryRun(st, id, everything(st), 1000)
			if !ok {
				t.Fatalf("pod %d is not known", id)
			}
			gotReasons := map[string]int32{}
			for _, v := range got.Verdicts {
				gotReasons[v.Reason] += v.Count
			}
			if diff := gocmp.Diff(reasons, gotReasons); diff != "" {
				t.Fatalf("pod %d %+v of %+v: reasons (-want +got):\n%s", id, row.Pod, st.Class(row.Class).Spec, diff)
			}
			got.Verdicts = nil
			if diff := gocmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("pod %d %+v of %+v (-want +got):\n%s", id, row.Pod, st.Class(row.Class).Spec, diff)
			}
		}
	})
}

func live(st *cluster.State) []cluster.NodeIndex {
	var out []cluster.NodeIndex
	for i := range cluster.NodeIndex(st.Nodes.Len()) {
		if st.Nodes.Live.Has(i) {
			out = append(out, i)
		}
	}
	return out
}

func TestDryRunsThatAreRememberedAreAsIfTheyWereMadeAnew(t *testing.T) {
	candidates, again := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		st := cluster.New(cluster.Version{Epoch: 1})
		intn := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)).IntN
		e := NewEvaluator(EvaluatorConfig{Parallelism: rapid.IntRange(1, 3).Draw(t, "parallelism")})
		e.spanNodes = 64
		limit := rapid.SampledFrom([]int{0, 1, 2, 1000}).Draw(t, "limit")
		for round := range rapid.IntRange(1, 12).Draw(t, "rounds") {
			for range rapid.IntRange(1, 15).Draw(t, "steps") {
				apply(t, st, crowded(clustertest.Delta(intn, st)))
			}
			if round%4 == 1 {
				crowd(t, intn, st)
			}
			for id, row := range st.Pods() {
				anew := NewEvaluator(EvaluatorConfig{Parallelism: 1})
				want, known := anew.DryRun(st, id, everything(st), limit)
				got, ok := e.DryRun(st, id, everything(st), limit)
				if ok != known || ok == row.Placed() {
					t.Fatalf("pod %d, placed %v, is known: %v, anew %v", id, row.Placed(), ok, known)
				}
				if diff := gocmp.Diff(want, got); diff != "" {
					t.Fatalf("pod %d %+v of %+v (-anew +remembered):\n%s", id, row.Pod, st.Class(row.Class).Spec, diff)
				}
				if !ok {
					continue
				}
				candidates += int(got.Count)
				if round > 0 {
					again += int(got.Count)
				}
				checkNodes(t, e, st, id, got)
				checkRanges(t, e, st, id, got)
			}
		}
	})
	if candidates == 0 || again == 0 {
		t.Errorf("%d candidates, %d of them in later rounds: want some", candidates, again)
	}
}

// checkRanges compares what is said of two ranges with a dry run over both.
func checkRanges(t *rapid.T, e *Evaluator, st *cluster.State, id cluster.PodID, all DryRun) {
	low, _ := e.DryRun(st, id, cluster.Range{First: 0, End: 64}, 1000)
	high, _ := e.DryRun(st, id, cluster.Range{First: 64, End: cluster.MaxIndex}, 1000)
	both := DryRun{
		Nodes: low.Nodes + high.Nodes, Count: low.Count + high.Count, Verdicts: MergeVerdicts(low.Verdicts, high.Verdicts),
		Candidates: append(low.Candidates, high.Candidates...),
	}
	slices.SortFunc(both.Candidates, func(a, b Preemption) int { return a.Compare(&b, st.Settings.Seed) })
	both.Candidates = both.Candidates[:len(all.Candidates)]
	if diff := gocmp.Diff(all, both, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("pod %d (-at once +by ranges):\n%s", id, diff)
	}
}

// checkNodes compares what is said of single nodes with a dry run over all.
func checkNodes(t *rapid.T, e *Evaluator, st *cluster.State, id cluster.PodID, all DryRun) {
	row := st.Pod(id)
	profile := st.Profile(st.Class(row.Class).Spec.SchedulerName)
	may := profile != nil && slices.Contains(profile.PostFilters, DefaultPreemption) && !row.NeverPreempts
	count := int32(0)
	for _, i := range live(st) {
		found, ok := e.DryRunNode(st, id, i)
		if ok {
			count++
		}
		if got := e.Preemptable(st, SubjectOf(&row.Pod), id, i); got != (ok && may) {
			t.Fatalf("pod %d, may preempt %v, on node %d, a candidate %v: preemptable is %v", id, may, i, ok, got)
		}
		for _, c := range all.Candidates {
			if c.Node == i && (!ok || !gocmp.Equal(c, found)) {
				t.Fatalf("pod %d on node %d: %+v, %v, among all %+v", id, i, found, ok, c)
			}
		}
	}
	if count != all.Count {
		t.Fatalf("pod %d: %d nodes are candidates, together %d", id, count, all.Count)
	}
}
