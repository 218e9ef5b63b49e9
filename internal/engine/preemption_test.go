package engine

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// bay is a cluster of nodes of 1000 milli-CPU each, with a class for each number of milli-CPU that pods ask for.
type bay struct {
	*zones
	pods map[string]cluster.PodID
}

func newBay(t *testing.T, nodes int, spec cluster.ClassSpec) *bay {
	return &bay{newZones(t, nodes, 2, spec), map[string]cluster.PodID{}}
}

// add adds a pod that asks for so much CPU. Its name and uid are the same.
func (b *bay) add(name string, milli int64, pod cluster.Pod) cluster.PodID {
	class := cluster.ClassID(100 + milli)
	if b.st.Class(class) == nil {
		apply(b.t, b.st, cluster.ClassDefined{ID: class, Spec: cluster.ClassSpec{Requests: requests(milli, 1)}})
	}
	if pod.Class == 0 {
		pod.Class = class
	}
	id := b.st.FreePod()
	pod.UID, pod.Name, pod.Namespace = name, name, "default"
	apply(b.t, b.st, cluster.PodSet{ID: id, Pod: pod})
	b.pods[name] = id
	return id
}

// names returns the names of pods, in order.
func (b *bay) names(ids []cluster.PodID) string {
	var out []string
	for _, id := range ids {
		out = append(out, b.st.Pod(id).Name)
	}
	return strings.Join(out, " ")
}

// victims returns the names of those of a pod on node 0, "-" if it is no candidate, and how many are protected.
func (b *bay) victims(pod cluster.PodID) (string, int32) {
	found, ok := b.e.DryRunNode(b.st, pod, 0)
	if !ok {
		return "-", 0
	}
	return b.names(found.Victims), found.Violations
}

func budget(name string, allowed int32, selector cluster.LabelSelector, disrupted ...string) cluster.Delta {
	return cluster.ObjectSet{Object: &cluster.Budget{
		Namespace: "default", Name: name, Selector: selector, Allowed: allowed, Disrupted: disrupted,
	}}
}

func selects(key, operator string, values ...string) cluster.LabelSelector {
	return cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: key, Operator: operator, Values: values}}}
}

func TestTheMostImportantPodsThatFitStay(t *testing.T) {
	on := func(priority int32, started int64) cluster.Pod {
		return cluster.Pod{NodeName: "node-0", Priority: priority, Started: started}
	}
	for name, tt := range map[string]struct {
		ask  int64
		pods func(b *bay)
		want string
	}{
		"the least important one goes": {300, func(b *bay) {
			b.add("a", 300, on(3, 1))
			b.add("b", 300, on(2, 1))
			b.add("c", 300, on(1, 1))
		}, "c"},
		"among equals the one that started last": {300, func(b *bay) {
			b.add("old", 300, on(1, 5))
			b.add("new", 300, on(1, 9))
			b.add("older", 300, on(1, 4))
		}, "new"},
		"one that has not started is the last": {300, func(b *bay) {
			b.add("not", 300, on(1, 0))
			b.add("new", 300, on(1, math.MaxInt64-1))
			b.add("old", 300, on(1, 4))
		}, "not"},
		"among equals the one with the larger id": {300, func(b *bay) {
			b.add("a", 300, on(1, 1))
			b.add("b", 300, on(1, 1))
			b.add("c", 300, on(1, 1))
		}, "c"},
		"a small one stays though a more important one goes": {700, func(b *bay) {
			b.add("large", 600, on(5, 1))
			b.add("small", 300, on(1, 1))
		}, "large"},
		"victims are listed by importance": {1000, func(b *bay) {
			b.add("low", 100, on(1, 1))
			b.add("high", 100, on(5, 1))
			b.add("middle", 100, on(3, 1))
		}, "high middle low"},
		"those of the same priority stay": {600, func(b *bay) {
			b.add("same", 300, on(10, 1))
			b.add("low", 600, on(9, 1))
		}, "low"},
		"without them it is not enough": {800, func(b *bay) {
			b.add("same", 300, on(10, 1))
			b.add("low", 600, on(9, 1))
		}, "-"},
		"a node that has room is none": {100, func(b *bay) { b.add("low", 600, on(9, 1)) }, "-"},
		"a pod that is being evicted already goes too": {300, func(b *bay) {
			victim := b.add("victim", 300, on(1, 1))
			b.add("a", 700, on(2, 1))
			apply(b.t, b.st, cluster.PreemptionStarted{ID: b.add("other", 1, cluster.Pod{}), Node: 0, Victims: []cluster.PodID{victim}})
		}, "victim"},
		"a terminating pod goes too": {300, func(b *bay) {
			b.add("a", 700, on(2, 1))
			b.add("ends", 300, cluster.Pod{NodeName: "node-0", Priority: 1, Deleting: true})
		}, "ends"},
		"an assumed pod goes too": {300, func(b *bay) {
			b.add("a", 700, on(2, 1))
			apply(b.t, b.st, cluster.PodAssumed{ID: b.add("assumed", 300, cluster.Pod{}), Node: 0, Attempt: 1})
		}, "assumed"},
		"room is kept for a nominated pod of equal priority": {300, func(b *bay) {
			b.add("a", 400, on(2, 1))
			b.add("b", 300, on(1, 1))
			b.add("nominee", 300, cluster.Pod{Nominated: "node-0", Priority: 10})
		}, "b"},
		"but not for one of lower priority": {600, func(b *bay) {
			b.add("a", 400, on(2, 1))
			b.add("b", 300, on(1, 1))
			b.add("nominee", 300, cluster.Pod{Nominated: "node-0", Priority: 9})
		}, "b"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBay(t, 1, cluster.ClassSpec{})
			tt.pods(b)
			id := b.add("preemptor", tt.ask, cluster.Pod{Priority: 10})
			if got, _ := b.victims(id); got != tt.want {
				t.Errorf("victims %q, want %q", got, tt.want)
			}
		})
	}
}

func TestBudgetsDecideWhoIsSparedFirst(t *testing.T) {
	web := selects("app", "In", "web")
	for name, tt := range map[string]struct {
		budgets   []cluster.Delta
		want      string
		protected int32
	}{
		"none":                              {nil, "web2 plain", 0},
		"no disruption is allowed":          {[]cluster.Delta{budget("a", 0, web)}, "other plain", 0},
		"the most important use what is":    {[]cluster.Delta{budget("a", 1, web)}, "web1 plain", 0},
		"enough of them protect none":       {[]cluster.Delta{budget("a", 2, web)}, "web2 plain", 0},
		"less than none is as none":         {[]cluster.Delta{budget("a", -1, web)}, "other plain", 0},
		"a pod that is counted uses none":   {[]cluster.Delta{budget("a", 1, web, "web1")}, "web2 plain", 0},
		"and is not protected":              {[]cluster.Delta{budget("a", 0, web, "web1")}, "web1 plain", 0},
		"one of two budgets is enough":      {[]cluster.Delta{budget("a", 2, web), budget("b", 0, web)}, "other plain", 0},
		"a protected pod uses all budgets":  {[]cluster.Delta{budget("a", 0, selects("pod", "In", "7")), budget("b", 1, web)}, "other plain", 0},
		"an empty selector protects none":   {[]cluster.Delta{budget("a", 0, cluster.LabelSelector{})}, "web2 plain", 0},
		"as one that matches nothing":       {[]cluster.Delta{budget("a", 0, cluster.LabelSelector{Nothing: true})}, "web2 plain", 0},
		"pods without labels are not seen":  {[]cluster.Delta{budget("a", 0, selects("app", "NotIn", "web"))}, "web2 plain", 0},
		"a protected pod goes if it has to": {[]cluster.Delta{budget("a", 0, selects("app", "Exists"))}, "web2 plain", 1},
		"another namespace's does not count": {[]cluster.Delta{cluster.ObjectSet{
			Object: &cluster.Budget{Namespace: "dev", Name: "a", Selector: web}}}, "web2 plain", 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBay(t, 1, cluster.ClassSpec{})
			const noLabels cluster.LabelsID = 9
			apply(t, b.st, cluster.LabelsDefined{ID: noLabels, Set: cluster.LabelSet{Namespace: "default"}})
			b.add("plain", 250, cluster.Pod{NodeName: "node-0", Priority: 0, Labels: noLabels})
			b.add("web1", 250, cluster.Pod{NodeName: "node-0", Priority: 2, Labels: podLabels})
			b.add("other", 250, cluster.Pod{NodeName: "node-0", Priority: 5, Labels: plainLabels})
			b.add("web2", 250, cluster.Pod{NodeName: "node-0", Priority: 1, Labels: webLabels})
			apply(t, b.st, tt.budgets...)
			got, violations := b.victims(b.add("preemptor", 500, cluster.Pod{Priority: 10}))
			if got != tt.want || violations != tt.protected {
				t.Errorf("victims %q, %d protected, want %q, %d", got, violations, tt.want, tt.protected)
			}
		})
	}
}

func TestCandidatesAreComparedByOneCriterionAfterTheOther(t *testing.T) {
	better := Preemption{Node: 3, Violations: 1, HighestPriority: 5, PrioritySum: 100, Victims: make([]cluster.PodID, 2), EarliestStart: 50}
	for name, worsen := range map[string]func(p *Preemption){
		"violations": func(p *Preemption) {
			*p = Preemption{Node: 3, Violations: 2, Victims: make([]cluster.PodID, 1), EarliestStart: 99}
		},
		"highest priority": func(p *Preemption) {
			p.HighestPriority, p.PrioritySum, p.Victims, p.EarliestStart = 6, 1, p.Victims[:1], 99
		},
		"sum of priorities": func(p *Preemption) { p.PrioritySum, p.Victims, p.EarliestStart = 101, p.Victims[:1], 99 },
		"victims":           func(p *Preemption) { p.Victims, p.EarliestStart = make([]cluster.PodID, 3), 99 },
		"start":             func(p *Preemption) { p.EarliestStart = 49 },
	} {
		worse := better
		worsen(&worse)
		for seed := range uint64(20) {
			if better.Compare(&worse, seed) >= 0 || worse.Compare(&better, seed) <= 0 {
				t.Errorf("%s, seed %d: %+v is not better than %+v", name, seed, better, worse)
			}
		}
	}
	other, first := better, map[bool]bool{}
	other.Node = 4
	for seed := range uint64(20) {
		if better.Compare(&other, seed) != -other.Compare(&better, seed) {
			t.Errorf("seed %d: the order depends on who is asked", seed)
		}
		first[better.Compare(&other, seed) < 0] = true
	}
	if len(first) != 2 || better.Compare(&better, 1) != 0 {
		t.Error("the seed does not decide between equal candidates, or a candidate is not equal to itself")
	}
}

func TestACandidateSaysWhatItIsComparedBy(t *testing.T) {
	b := newBay(t, 1, cluster.ClassSpec{})
	b.add("a", 250, cluster.Pod{NodeName: "node-0", Priority: 5, Started: 30})
	b.add("b", 250, cluster.Pod{NodeName: "node-0", Priority: 5, Started: 20})
	b.add("c", 250, cluster.Pod{NodeName: "node-0", Priority: -7, Started: 10})
	d, _ := b.e.DryRun(b.st, b.add("preemptor", 1000, cluster.Pod{Priority: 10}), everything(b.st), 1)
	want := DryRun{Nodes: 1, Count: 1, Candidates: []Preemption{{
		Node: 0, Victims: []cluster.PodID{b.pods["b"], b.pods["a"], b.pods["c"]},
		HighestPriority: 5, PrioritySum: 5 + 5 - 7 + 3<<31, EarliestStart: 20,
	}}}
	if diff := cmp.Diff(want, d, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("dry run (-want +got):\n%s", diff)
	}
	apply(t, b.st, cluster.PodRemoved{ID: b.pods["b"]}, cluster.PodRemoved{ID: b.pods["c"]})
	b.add("large", 700, cluster.Pod{NodeName: "node-0", Priority: 1})
	apply(t, b.st, cluster.PodRemoved{ID: b.pods["a"]})
	if p, _ := b.e.DryRunNode(b.st, b.pods["preemptor"], 0); p.EarliestStart != math.MaxInt64 {
		t.Errorf("a victim that has not started counts as started at %d", p.EarliestStart)
	}
}

func TestNodesThatAreNoCandidatesSayWhy(t *testing.T) {
	b := newBay(t, 5, cluster.ClassSpec{})
	b.add("same", 900, cluster.Pod{NodeName: "node-0", Priority: 10})   // no victims
	b.add("more", 900, cluster.Pod{NodeName: "node-1", Priority: 10})   // too large
	b.add("less", 100, cluster.Pod{NodeName: "node-1", Priority: 1})    // but there is somebody
	b.add("victim", 900, cluster.Pod{NodeName: "node-2", Priority: 10}) // cordoned
	node := b.st.Node(2)
	node.Unschedulable = true
	apply(t, b.st, cluster.NodeSet{Index: 2, Node: node})
	b.add("candidate", 900, cluster.Pod{NodeName: "node-3", Priority: 1})
	// node-4 is free: with room, nothing has to go.
	id := b.add("preemptor", 500, cluster.Pod{Priority: 10})
	d, _ := b.e.DryRun(b.st, id, everything(b.st), 0)
	want := []VerdictCount{
		{Plugin: NodeResourcesFit, Reason: "Insufficient cpu", Count: 1, Examples: []string{"node-1"}},
		{Reason: ReasonNoVictims, Unresolvable: true, Count: 1, Examples: []string{"node-0"}},
		{Reason: ReasonNotHelpful, Unresolvable: true, Count: 2, Examples: []string{"node-2", "node-4"}},
	}
	if diff := cmp.Diff(want, d.Verdicts); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
	if d.Nodes != 5 || d.Count != 1 || len(d.Candidates) != 1 || d.Candidates[0].Node != 3 {
		t.Errorf("candidates %+v, %d of %d nodes, want node 3, 1 of 5", d.Candidates, d.Count, d.Nodes)
	}
	text := "0/5 nodes are available: 1 Insufficient cpu, 1 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling."
	if got := PreemptionMessage(5, d.Verdicts); got != text {
		t.Errorf("message %q, want %q", got, text)
	}
	confined := b.add("confined", 500, cluster.Pod{Priority: 10, RequiredNode: "node-0"})
	d, _ = b.e.DryRun(b.st, confined, everything(b.st), 1)
	if got := PreemptionMessage(5, d.Verdicts); d.Count != 0 ||
		got != "0/5 nodes are available: 1 No preemption victims found for incoming pod, 4 Preemption is not helpful for scheduling." {
		t.Errorf("a pod that requires another node has %d candidates: %q", d.Count, got)
	}
	if _, ok := b.e.DryRunNode(b.st, confined, 3); ok {
		t.Error("a node is a candidate for a pod that requires another")
	}
}

func TestADryRunIsOfPendingPodsOnly(t *testing.T) {
	b := newBay(t, 1, cluster.ClassSpec{})
	placed := b.add("placed", 100, cluster.Pod{NodeName: "node-0"})
	for what, id := range map[string]cluster.PodID{"a placed pod": placed, "no pod": 77, "none": cluster.NoPod} {
		if _, ok := b.e.DryRun(b.st, id, everything(b.st), 1); ok {
			t.Errorf("%s is known", what)
		}
		if _, ok := b.e.DryRunNode(b.st, id, 0); ok {
			t.Errorf("a node is a candidate for %s", what)
		}
		if why, ok := b.e.Preempts(b.st, id); ok || why != "" {
			t.Errorf("%s may preempt: %v, %q", what, ok, why)
		}
	}
	if _, ok := b.e.DryRunNode(b.st, b.add("pending", 950, cluster.Pod{Priority: 1}), 7); ok {
		t.Error("a node that is not there is a candidate")
	}
}

func TestPostFilterMessageJoinsWhatThePluginsSay(t *testing.T) {
	said := "0/3 nodes are available: 3 No preemption victims found for incoming pod."
	for _, tt := range []struct {
		plugins    []string
		said, want string
	}{
		{[]string{dynamicResources.Name, DefaultPreemption}, said, "no new claims to deallocate, preemption: " + said},
		{[]string{DefaultPreemption, dynamicResources.Name}, said, "preemption: " + said + ", no new claims to deallocate"},
		{[]string{DefaultPreemption}, notEligibleNever, "preemption: not eligible due to preemptionPolicy=Never."},
		{[]string{DefaultPreemption}, notEligibleTerminating,
			"preemption: not eligible due to a terminating pod on the nominated node."},
		{[]string{dynamicResources.Name, DefaultPreemption}, "", "no new claims to deallocate"},
		{[]string{"Other", dynamicResources.Name}, said, "no new claims to deallocate"},
		{[]string{"Says", DefaultPreemption, "Says too"}, said, "it tried, preemption: " + said + ", it tried too"},
		{nil, said, ""},
	} {
		if got := PostFilterMessage(&cluster.Profile{PostFilters: tt.plugins}, tt.said, map[string]string{"Says": "it tried", "Says too": "it tried too", "": "nobody"}); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.plugins, got, tt.want)
		}
	}
}

func TestPluginsOfOthersAtPostFilterComeBeforePreemptionOrBehindIt(t *testing.T) {
	for _, tt := range []struct{ plugins, before, behind []string }{
		{[]string{dynamicResources.Name, DefaultPreemption}, nil, nil},
		{[]string{"A", dynamicResources.Name, "B", DefaultPreemption, "C"}, []string{"A", "B"}, []string{"C"}},
		{[]string{dynamicResources.Name, "A"}, []string{"A"}, nil},
	} {
		before, behind := ForeignPostFilters(&cluster.Profile{PostFilters: tt.plugins})
		if !slices.Equal(before, tt.before) || !slices.Equal(behind, tt.behind) {
			t.Errorf("%v: %v before and %v behind, want %v and %v", tt.plugins, before, behind, tt.before, tt.behind)
		}
	}
}

func TestWhoMayPreempt(t *testing.T) {
	for name, tt := range map[string]struct {
		pod  cluster.Pod
		do   func(b *bay)
		why  string
		want bool
	}{
		"a pod":                           {cluster.Pod{Priority: 10}, nil, "", true},
		"not one that says so":            {cluster.Pod{Priority: 10, NeverPreempts: true}, nil, notEligibleNever, false},
		"one nominated":                   {cluster.Pod{Priority: 10, Nominated: "node-0"}, nil, "", true},
		"nominated to a node that is not": {cluster.Pod{Priority: 10, Nominated: "gone"}, nil, "", true},
		"while a pod that was preempted ends": {cluster.Pod{Priority: 10, Nominated: "node-0"}, func(b *bay) {
			b.add("ends", 900, cluster.Pod{NodeName: "node-0", Deleting: true, Preempted: true})
		}, notEligibleTerminating, false},
		"while a victim is there": {cluster.Pod{Priority: 10, Nominated: "node-0"}, func(b *bay) {
			id := b.add("victim", 900, cluster.Pod{NodeName: "node-0"})
			apply(b.t, b.st, cluster.PreemptionStarted{ID: b.add("other", 1, cluster.Pod{}), Node: 0, Victims: []cluster.PodID{id}})
		}, notEligibleTerminating, false},
		"while a pod ends by itself": {cluster.Pod{Priority: 10, Nominated: "node-0"}, func(b *bay) {
			b.add("ends", 900, cluster.Pod{NodeName: "node-0", Deleting: true})
		}, "", true},
		"while one of equal priority ends": {cluster.Pod{Priority: 10, Nominated: "node-0"}, func(b *bay) {
			b.add("ends", 900, cluster.Pod{NodeName: "node-0", Priority: 10, Deleting: true, Preempted: true})
		}, "", true},
		"while one elsewhere ends": {cluster.Pod{Priority: 10, Nominated: "node-0"}, func(b *bay) {
			b.add("ends", 900, cluster.Pod{NodeName: "node-1", Deleting: true, Preempted: true})
		}, "", true},
		"if the node can be no more": {cluster.Pod{Priority: 10, Nominated: "node-0"}, func(b *bay) {
			b.add("ends", 900, cluster.Pod{NodeName: "node-0", Deleting: true, Preempted: true})
			node := b.st.Node(0)
			node.Unschedulable = true
			apply(b.t, b.st, cluster.NodeSet{Index: 0, Node: node})
		}, "", true},
		"if it requires another": {cluster.Pod{Priority: 10, Nominated: "node-0", RequiredNode: "node-1"}, func(b *bay) {
			b.add("ends", 900, cluster.Pod{NodeName: "node-0", Deleting: true, Preempted: true})
		}, "", true},
		"not where no plugin does": {cluster.Pod{Priority: 10, NeverPreempts: true}, func(b *bay) {
			profile := DefaultProfile("")
			profile.PostFilters = []string{dynamicResources.Name}
			apply(b.t, b.st, cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{profile}}})
		}, "", false},
		"not for another scheduler": {cluster.Pod{Priority: 10}, func(b *bay) {
			apply(b.t, b.st, cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{DefaultProfile("x")}}})
		}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBay(t, 2, cluster.ClassSpec{})
			if tt.do != nil {
				tt.do(b)
			}
			why, ok := b.e.Preempts(b.st, b.add("preemptor", 500, tt.pod))
			if ok != tt.want || why != tt.why {
				t.Errorf("%v, %q, want %v, %q", ok, why, tt.want, tt.why)
			}
		})
	}
}

// tried returns for which nodes a dry run was made on the state as it is, with the pod's priority.
func tried(e *Evaluator, st *cluster.State, id cluster.PodID) (out []int) {
	row := st.Pod(id)
	e.with(st, SubjectOf(&row.Pod), func(c *evaluation) {
		for i := range c.dryRuns[row.Priority].nodes {
			if c.dryRuns[row.Priority].nodes[i].until == st.Version().Seq+1 {
				out = append(out, i)
			}
		}
	})
	return out
}

func TestOnlyNodesThatChangedAreTriedAgain(t *testing.T) {
	b := newBay(t, 5, crossNodeClasses()["spread/hard/zone"])
	for i := range 4 {
		b.add(fmt.Sprint("low", i), 900, cluster.Pod{NodeName: fmt.Sprint("node-", i), Priority: 1})
	}
	b.add("important", 900, cluster.Pod{NodeName: "node-4", Priority: 20})
	// Two of the same priority: what one learns serves the other, but for the node that is its own.
	first := b.add("first", 500, cluster.Pod{Priority: 10})
	second := b.add("second", 500, cluster.Pod{Priority: 10})
	other := b.add("other", 500, cluster.Pod{Priority: 11})
	even := b.add("even", 0, cluster.Pod{Priority: 10, Class: testClass, Labels: webLabels})
	step := func(what string, id cluster.PodID, want ...int) {
		t.Helper()
		if d, ok := b.e.DryRun(b.st, id, everything(b.st), 1); !ok || d.Nodes != 5 {
			t.Fatalf("%s: %+v, %v", what, d, ok)
		}
		if got := tried(b.e, b.st, id); !slices.Equal(got, want) {
			t.Errorf("%s: tried %v, want %v", what, got, want)
		}
	}
	// One nomination to nowhere, so that priorities tell signatures apart all the time.
	b.add("nominee", 1, cluster.Pod{Nominated: "nowhere"})
	step("at first", first, 0, 1, 2, 3, 4)
	b.add("more", 10, cluster.Pod{NodeName: "node-2"})
	step("after a pod came", second, 2)
	step("of another priority", other, 0, 1, 2, 3, 4)
	apply(t, b.st, cluster.PodNominated{ID: first, Node: "node-1"})
	step("after a nomination", second, 1)
	apply(t, b.st, cluster.NamespaceSet{Name: "new"})
	step("after something else", second)
	apply(t, b.st, budget("a", 0, selects("app", "Exists")))
	step("after a budget, where there is a candidate", second, 0, 1, 2, 3)
	step("with a spread constraint", even, 0, 1, 2, 3, 4)
	b.add("plain", 10, cluster.Pod{NodeName: "node-0", Labels: plainLabels})
	step("after a pod that does not matter to it", even, 0)
	b.add("web", 10, cluster.Pod{NodeName: "node-3", Labels: webLabels})
	step("after one that does", even, 0, 1, 2, 3, 4)
	if d, _ := b.e.DryRun(b.st, first, everything(b.st), 1); d.Count != 4 {
		t.Errorf("%d candidates for the pod that is nominated to one, want 4", d.Count)
	}
}

func TestWhatNoFilterHasToLookAtIsNotTried(t *testing.T) {
	for name, spec := range map[string]cluster.ClassSpec{
		"unsupported": {Unsupported: "pod wants more than Berth can judge", UnsupportedPlugin: "VolumeBinding"},
		"other names": required(cluster.NodeSelectorTerm{Fields: []cluster.Requirement{
			{Key: "metadata.name", Operator: "In", Values: []string{"node-1"}}}}),
	} {
		b := newBay(t, 1, spec)
		b.add("low", 950, cluster.Pod{NodeName: "node-0", Priority: 1})
		d, _ := b.e.DryRun(b.st, b.add("preemptor", 0, cluster.Pod{Priority: 10, Class: testClass}), everything(b.st), 1)
		if got := texts(d.Verdicts); d.Count != 0 || got != "!: "+ReasonNotHelpful {
			t.Errorf("%s: %d candidates, %q", name, d.Count, got)
		}
	}
}

func TestDryRunsAreOfTheProfileThatHolds(t *testing.T) {
	b := newBay(t, 1, cluster.ClassSpec{})
	b.add("low", 950, cluster.Pod{NodeName: "node-0", Priority: 1})
	id := b.add("preemptor", 500, cluster.Pod{Priority: 10})
	for _, filters := range [][]string{{NodeResourcesFit}, {NodePorts}, {NodeResourcesFit}} {
		profile := DefaultProfile("")
		profile.Filters = filters
		apply(t, b.st, cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{profile}}})
		d, _ := b.e.DryRun(b.st, id, everything(b.st), 1)
		if _, want := slices.BinarySearch(filters, NodeResourcesFit); (d.Count == 1) != want {
			t.Errorf("filters %v: %d candidates, one is wanted: %v", filters, d.Count, want)
		}
	}
}

func TestDryRunsOfManyPrioritiesAreForgotten(t *testing.T) {
	b := newBay(t, 1, cluster.ClassSpec{})
	b.add("low", 900, cluster.Pod{NodeName: "node-0", Priority: -1})
	for k := range int32(3 * maxPriorities) {
		id := b.add(fmt.Sprint(k), 500, cluster.Pod{Priority: k})
		if d, _ := b.e.DryRun(b.st, id, everything(b.st), 1); d.Count != 1 {
			t.Fatalf("priority %d has %d candidates, want 1", k, d.Count)
		}
		b.e.with(b.st, SubjectOf(&b.st.Pod(id).Pod), func(c *evaluation) {
			if len(c.dryRuns) > maxPriorities {
				t.Errorf("dry runs of %d priorities are kept", len(c.dryRuns))
			}
		})
	}
}

// kube-scheduler subtracts a terminating pod that it had not counted.
func TestSpreadDoesNotAskWhetherItHadCountedAVictim(t *testing.T) {
	for _, tt := range []struct {
		deleting bool
		victims  string
	}{{false, "web1 web2"}, {true, "web2"}} {
		b := newBay(t, 2, crossNodeClasses()["spread/hard/zone"])
		b.add("web1", 100, cluster.Pod{NodeName: "node-0", Priority: 2, Labels: webLabels})
		b.add("web2", 100, cluster.Pod{NodeName: "node-0", Priority: 1, Labels: webLabels, Deleting: tt.deleting})
		got, _ := b.victims(b.add("preemptor", 0, cluster.Pod{Priority: 10, Class: testClass, Labels: webLabels}))
		if got != tt.victims {
			t.Errorf("web2 is terminating %v: victims %q, want %q", tt.deleting, got, tt.victims)
		}
	}
}

func TestPortsAreFreeOnceNobodyHoldsThem(t *testing.T) {
	port := func(ip string) cluster.ClassSpec {
		return cluster.ClassSpec{HostPorts: []cluster.HostPort{{IP: ip, Protocol: "TCP", Port: 80}}}
	}
	for name, tt := range map[string]struct {
		pods map[string]cluster.ClassSpec // and their priorities: the length of the name
		want string
	}{
		"by one":           {map[string]cluster.ClassSpec{"a": port("10.0.0.1"), "bb": {}}, "a"},
		"by two":           {map[string]cluster.ClassSpec{"a": port("10.0.0.1"), "bb": port("10.0.0.1")}, "bb a"},
		"by one of many":   {map[string]cluster.ClassSpec{"a": port("10.0.0.1"), "ccc": port("10.0.0.2")}, "a"},
		"by all addresses": {map[string]cluster.ClassSpec{"a": port("0.0.0.0"), "bb": port("10.0.0.2")}, "a"},
		"not while one of the same priority does": {map[string]cluster.ClassSpec{"a": port("10.0.0.1"), "ten letter": port("10.0.0.1")}, "-"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBay(t, 1, cluster.ClassSpec{})
			apply(t, b.st, cluster.ClassDefined{ID: 50, Spec: port("10.0.0.1")})
			class := cluster.ClassID(50)
			for pod, spec := range tt.pods {
				class++
				apply(t, b.st, cluster.ClassDefined{ID: class, Spec: spec})
				b.add(pod, 0, cluster.Pod{NodeName: "node-0", Class: class, Priority: int32(len(pod))})
			}
			if got, _ := b.victims(b.add("preemptor", 0, cluster.Pod{Priority: 10, Class: 50})); got != tt.want {
				t.Errorf("victims %q, want %q", got, tt.want)
			}
		})
	}
}

func TestAPodIsTheFirstOfItsSignatureWhereTheLastOneGoes(t *testing.T) {
	// Zones alternate: node-2 is in the zone of node-0, node-1 is not.
	for other, want := range map[string]string{"": "low", "node-1": "-", "node-2": "low"} {
		b := newBay(t, 3, crossNodeClasses()["affinity/zone"])
		b.add("full", 900, cluster.Pod{NodeName: "node-0", Priority: 10})
		b.add("low", 0, cluster.Pod{NodeName: "node-0", Priority: 1, Class: testClass, Labels: webLabels})
		if other != "" {
			b.add("other", 0, cluster.Pod{NodeName: other, Priority: 1, Class: testClass, Labels: webLabels})
		}
		got, _ := b.victims(b.add("preemptor", 0, cluster.Pod{Priority: 10, Class: testClass, Labels: webLabels}))
		if got != want {
			t.Errorf("another one on %q: victims %q, want %q", other, got, want)
		}
	}
}

func TestAPodCannotRelyOnANominatedOne(t *testing.T) {
	for placed, want := range map[bool]string{true: "low", false: "-"} {
		b := newBay(t, 1, crossNodeClasses()["affinity/zone"])
		b.add("low", 850, cluster.Pod{NodeName: "node-0", Priority: 1})
		friend := cluster.Pod{Nominated: "node-0", Priority: 10, Class: otherClass, Labels: webLabels}
		if placed {
			friend.NodeName = "node-0"
		}
		b.add("friend", 0, friend)
		got, _ := b.victims(b.add("preemptor", 0, cluster.Pod{Priority: 10, Class: testClass, Labels: plainLabels}))
		if got != want {
			t.Errorf("the pod that it wants to be near is placed %v: victims %q, want %q", placed, got, want)
		}
	}
}

// kube-scheduler counts a pod that comes by an empty selector, though it counts none of those that are there.
func TestEmptySelectorsCountNominatedPods(t *testing.T) {
	const zone = "topology.kubernetes.io/zone"
	z := newZones(t, 2, 2, cluster.ClassSpec{Spread: []cluster.SpreadConstraint{{TopologyKey: zone, MaxSkew: 1, MinDomains: 1, Hard: true}}})
	z.pod(testClass, webLabels, "node-0")
	s := Subject{Class: testClass, Labels: webLabels}
	if v, _ := z.e.Node(z.st, s, cluster.NoPod, 0); !v.Feasible() {
		t.Error("a placed pod counts")
	}
	apply(t, z.st, cluster.PodNominated{ID: z.pod(testClass, webLabels, ""), Node: "node-0"})
	if v, _ := z.e.Node(z.st, s, cluster.NoPod, 0); v.Feasible() {
		t.Error("a nominated pod does not count")
	}
}

// kube-scheduler does not ask again whether InterPodAffinity has anything to filter.
func TestTermsOfNominatedPodsCountThoughTheOnlyPlacedOneGoes(t *testing.T) {
	for priority, want := range map[int32]string{10: "-", 9: "low"} {
		b := newBay(t, 1, crossNodeClasses()["antiAffinity/hostname"])
		b.add("low", 0, cluster.Pod{NodeName: "node-0", Priority: 1, Class: testClass, Labels: webLabels})
		b.add("nominee", 0, cluster.Pod{Nominated: "node-0", Priority: priority, Class: testClass, Labels: webLabels})
		if got, _ := b.victims(b.add("preemptor", 100, cluster.Pod{Priority: 10, Labels: webLabels})); got != want {
			t.Errorf("beside a nominated pod of priority %d: victims %q, want %q", priority, got, want)
		}
	}
}

func TestNominationsAndDryRunsAllocateNothingPerNode(t *testing.T) {
	allocations := func(n int) (filter, dryRun float64) {
		st := fleet(t, n)
		apply(t, st, cluster.ClassDefined{ID: otherClass, Spec: cluster.ClassSpec{}},
			cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "n", Class: otherClass, Nominated: "node-0"}},
			cluster.PodSet{ID: 1, Pod: cluster.Pod{UID: "p", Class: testClass, Priority: 5}})
		for i := range n {
			apply(t, st, cluster.PodSet{ID: cluster.PodID(2 + i), Pod: cluster.Pod{UID: fmt.Sprint(i), Class: testClass, NodeName: fmt.Sprint("node-", i)}})
		}
		e := NewEvaluator(EvaluatorConfig{Parallelism: 1})
		r := everything(st)
		filter = testing.AllocsPerRun(5, func() {
			if c := e.evaluations[Signature{class: testClass, priority: 5}]; c != nil {
				clear(c.known)
			}
			e.Filter(st, Subject{Class: testClass, Priority: 5}, r)
		})
		dryRun = testing.AllocsPerRun(5, func() { e.DryRun(st, 1, r, 10) })
		return filter, dryRun
	}
	smallFilter, smallDryRun := allocations(512)
	largeFilter, largeDryRun := allocations(4096)
	if largeFilter > smallFilter || largeDryRun > smallDryRun {
		t.Errorf("8 times the nodes: Filter allocates %v times, not %v; a dry run that is known %v, not %v", largeFilter, smallFilter, largeDryRun, smallDryRun)
	}
}

// kube-scheduler's calculateNumCandidates, of all nodes.
func TestThereAreToBeAsManyCandidatesAsTheArgumentsSay(t *testing.T) {
	for _, c := range []struct {
		of          CandidateNodes
		nodes, want int
	}{
		{CandidateNodes{Percentage: 10, Absolute: 100}, 5000, 500},
		{CandidateNodes{Percentage: 10, Absolute: 100}, 999, 100},
		{CandidateNodes{Percentage: 10, Absolute: 100}, 99, 99},
		{CandidateNodes{Percentage: 100}, 1 << 30, 1 << 30},
		{CandidateNodes{Percentage: 10}, 9, 1},
		{CandidateNodes{Absolute: 7}, 0, 0},
	} {
		if got := c.of.Of(c.nodes); got != c.want {
			t.Errorf("%+v of %d nodes: %d, want %d", c.of, c.nodes, got, c.want)
		}
	}
}
