package explain

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/whatif"
)

func testContext() context.Context { return context.Background() }

// Plugins of services are not asked, and nothing is said in their name but that: neither that they reject a node nor that they score one.
func TestPluginsOfServicesSayNothingInExplanations(t *testing.T) {
	seen := make(map[string]int)
	clustertest.CheckUntil(t, clustertest.Unseen(seen, "candidates", "rejections"), func(t *rapid.T) {
		st := randomState(t)
		with := st.Clone()
		settings := st.Settings
		settings.Profiles = slices.Clone(settings.Profiles)
		for k := range settings.Profiles {
			p := &settings.Profiles[k]
			p.PreEnqueues, p.QueueSort = []string{"Doorman"}, "Deadline"
			p.Filters = slices.Concat([]string{"GPUModel"}, p.Filters, []string{"Licences"})
			p.Weights = slices.Concat([]cluster.PluginWeight{{Name: "GPUModel", Weight: 100}}, p.Weights, []cluster.PluginWeight{{Name: "Price", Weight: 2}})
		}
		apply(t, st, cluster.SettingsSet{Settings: st.Settings}) // for the version
		apply(t, with, cluster.SettingsSet{Settings: settings})
		for id := range st.Pods() {
			want, got := explained(t, st, id), explained(t, with, id)
			if got.Judged {
				want.NotAsked = []string{"Deadline", "Doorman", "GPUModel", "Licences", "Price"}
			}
			if !reflect.DeepEqual(want, got) {
				t.Fatalf("without them\n%+v\nwith them\n%+v", want, got)
			}
			if len(got.Candidates) > 0 {
				seen["candidates"]++
			}
			if len(got.Rejections) > 0 {
				seen["rejections"]++
			}
		}
	})
}

func TestCountsAddUpToTheNodes(t *testing.T) {
	seen := make(map[string]int)
	clustertest.CheckUntil(t, clustertest.Unseen(seen, "placed", "rejected", "fits", "several reasons"), func(t *rapid.T) {
		st := randomState(t)
		before := st.Digest()
		for id, row := range st.Pods() {
			x := explained(t, st, id)
			seen[x.Cause.String()]++
			if x.Judged != (st.Profile(st.Class(row.Class).Spec.SchedulerName) != nil) {
				t.Fatalf("%s: judged is %v", x.Pod.Profile, x.Judged)
			}
			if !x.Judged {
				if x.Cause != NoProfile && x.Cause != Placed && x.Cause != Gated {
					t.Fatalf("nodes are not judged, cause %v", x.Cause)
				}
				continue
			}
			sum := x.Feasible
			for _, r := range x.Rejections {
				sum += r.Nodes
				var reasons int32
				for _, reason := range r.Reasons {
					reasons += reason.Count
				}
				if r.Nodes < 1 || reasons < r.Nodes || r.Plugin != engine.NodeResourcesFit && reasons != r.Nodes {
					t.Fatalf("rejection %+v", r)
				}
				if len(r.Reasons) > 1 {
					seen["several reasons"]++
				}
			}
			if sum != x.Nodes || x.Nodes != int32(st.Nodes.Count()) {
				t.Fatalf("%d nodes, explained as %d: %d feasible and rejections %+v", st.Nodes.Count(), x.Nodes, x.Feasible, x.Rejections)
			}
			if !row.Placed() && int(x.Feasible) != len(fitting(st, id)) {
				t.Fatalf("%d nodes are feasible, explained as %d", len(fitting(st, id)), x.Feasible)
			}
			if class := st.Class(row.Class); x.Pod.ClassPending+x.Pod.ClassPlaced != class.Pods {
				t.Fatalf("%d pods of the class, explained as %d and %d", class.Pods, x.Pod.ClassPending, x.Pod.ClassPlaced)
			}
			if (x.Message == "") != (x.Feasible > 0) {
				t.Fatalf("message %q with %d feasible nodes", x.Message, x.Feasible)
			}
			if !strings.HasSuffix(Text(x), "\n") {
				t.Fatalf("text %q", Text(x))
			}
		}
		if st.Digest() != before {
			t.Fatal("the state has changed")
		}
	})
}

func TestNoOtherNodeIsNearer(t *testing.T) {
	ties := 0
	rapid.Check(t, func(t *rapid.T) {
		for st, id := range waiting(t) {
			x := explained(t, st, id)
			if !x.Judged || x.Pod.Unsupported != "" {
				continue
			}
			type distance struct {
				things   int
				relative float64
				node     string
			}
			var want []distance
			e := engine.NewEvaluator(engine.EvaluatorConfig{Parallelism: 1})
			for i := range cluster.NodeIndex(st.Nodes.Len()) {
				if required := st.Pod(id).RequiredNode; !st.Nodes.Live.Has(i) || required != "" && required != st.Nodes.Spec[i].Name {
					continue
				}
				lacks, _ := e.Shortfall(st, id, i)
				if (len(lacks) == 0) != fits(st, id, i) {
					t.Fatalf("node %d lacks %+v", i, lacks)
				}
				if len(lacks) > 0 {
					want = append(want, distance{len(lacks), relative(lacks), st.Nodes.Spec[i].Name})
				}
			}
			slices.SortStableFunc(want, func(a, b distance) int {
				return cmp.Or(cmp.Compare(a.things, b.things), cmp.Compare(a.relative, b.relative))
			})
			var got []distance
			for _, m := range x.Nearest {
				got = append(got, distance{m.Things, m.Relative, m.Name})
				if len(m.Lacks) != m.Things {
					t.Fatalf("miss %+v", m)
				}
			}
			if len(want) > maxMisses {
				ties++
			}
			near := cmpopts.EquateApprox(0, 1e-9) // the lacks come in another order
			if diff := gocmp.Diff(want[:min(len(want), maxMisses)], got, cmpopts.EquateEmpty(), near, gocmp.AllowUnexported(distance{})); diff != "" {
				t.Fatalf("nearest misses of pod %d (-want +got):\n%s", id, diff)
			}
		}
	})
	if ties == 0 {
		t.Error("there were never more misses than are told")
	}
}

// makeOn makes a change on a real state, and returns the node that it names, or the one that is new.
func (c *Change) makeOn(t fataler, st *cluster.State, id cluster.PodID) string {
	row := st.Pod(id)
	at := st.Nodes.ByName(c.Node)
	node := st.Node(at)
	spec := st.Class(row.Class).Spec
	newClass := func() {
		const class cluster.ClassID = 1 << 20
		pod := row.Pod
		pod.Class = class
		apply(t, st, cluster.ClassDefined{ID: class, Spec: spec}, cluster.PodSet{ID: id, Pod: pod})
	}
	without := func(of []cluster.Requirement, terms int, field bool) []cluster.Requirement {
		var out []cluster.Requirement
		for k, r := range of {
			if !slices.ContainsFunc(c.Conditions, func(d Condition) bool { return d.Term == terms && d.Index == k && d.Field == field }) {
				out = append(out, r)
			}
		}
		return out
	}
	switch c.Kind {
	case ReduceRequests:
		spec.Requests = slices.Clone(spec.Requests)
		for k, q := range spec.Requests {
			for _, r := range c.Requests {
				if q.Name == r.Resource {
					if q.Value != r.From || r.To >= r.From || r.To < 1 {
						t.Fatalf("change %+v of requests %+v", c, spec.Requests)
					}
					spec.Requests[k].Value = r.To
				}
			}
		}
		newClass()
	case Tolerate:
		spec.Tolerations = slices.Concat(spec.Tolerations, c.Tolerations)
		newClass()
	case DropConditions:
		var selector []cluster.Requirement
		for _, l := range spec.NodeSelector {
			selector = append(selector, cluster.Requirement{Key: l.Key, Values: []string{l.Value}})
		}
		spec.NodeSelector = nil
		for _, r := range without(selector, -1, false) {
			spec.NodeSelector = append(spec.NodeSelector, cluster.Label{Key: r.Key, Value: r.Values[0]})
		}
		required := spec.Required
		spec.Required = nil
		for k, old := range required {
			left := cluster.NodeSelectorTerm{Expressions: without(old.Expressions, k, false), Fields: without(old.Fields, k, true)}
			if len(old.Expressions)+len(old.Fields) > 0 && len(left.Expressions)+len(left.Fields) == 0 {
				spec.HasRequired = false
			}
			spec.Required = append(spec.Required, left)
		}
		if !spec.HasRequired {
			spec.Required = nil
		}
		newClass()
	case LabelNode:
		for _, l := range c.Labels {
			node.Labels = slices.DeleteFunc(node.Labels, func(old cluster.Label) bool { return old.Key == l.Key })
			if !l.Remove {
				node.Labels = append(node.Labels, cluster.Label{Key: l.Key, Value: l.Value})
			}
		}
		apply(t, st, cluster.NodeSet{Index: at, Node: node})
	case Uncordon:
		node.Unschedulable = false
		node.Taints = withoutTaints(node.Taints, func(old cluster.Taint) bool { return old.Key == "node.kubernetes.io/unschedulable" })
		apply(t, st, cluster.NodeSet{Index: at, Node: node})
	case RemoveTaints:
		node.Taints = withoutTaints(node.Taints, func(old cluster.Taint) bool { return slices.Contains(c.Taints, old) })
		apply(t, st, cluster.NodeSet{Index: at, Node: node})
	case CreateClaim, AddVolume:
		bind := func(name string) {
			claim := &cluster.PersistentVolumeClaim{Namespace: row.Namespace, Name: name, UID: "new"}
			if is := st.PersistentVolumeClaim(row.Namespace, name); is != nil && !slices.Contains(c.Claims, name) {
				copied := *is
				claim = &copied
			}
			claim.Volume, claim.Bound = "added-for-"+name, true
			apply(t, st, cluster.ObjectSet{Object: &cluster.PersistentVolume{Name: claim.Volume, HasClaim: true}}, cluster.ObjectSet{Object: claim})
		}
		for _, name := range c.Claims {
			bind(name)
		}
		for k, v := range c.Volumes {
			if c.anywhere {
				bind(v.Claim)
				continue
			}
			claim := st.PersistentVolumeClaim(row.Namespace, v.Claim)
			labels, _ := labelsFor(&claim.Selector)
			pv := &cluster.PersistentVolume{
				Name: fmt.Sprint("added-", k), Labels: labels, Class: v.Class, Capacity: v.Size, AccessModes: claim.AccessModes, Mode: claim.Mode,
				AttributesClass: claim.AttributesClass, Available: true,
			}
			key, value := zone, v.Zone
			if v.Zone == "" {
				key, value = hostname, c.Node
			}
			if v.Where != "" {
				pv.HasAffinity, pv.Affinity = true, []cluster.NodeSelectorTerm{{Expressions: []cluster.Requirement{in(key, value)}}}
			}
			apply(t, st, cluster.ObjectSet{Object: pv})
		}
	case AddNode:
		if drivers := st.CSINode(node.Name); drivers != nil {
			own := *drivers
			own.Name = "added"
			apply(t, st, cluster.ObjectSet{Object: &own})
		}
		for _, l := range c.Labels {
			node.Labels = slices.DeleteFunc(node.Labels, func(old cluster.Label) bool { return old.Key == l.Key })
			node.Labels = append(node.Labels, cluster.Label{Key: l.Key, Value: l.Value})
		}
		node.Name, node.Unschedulable = "added", false
		for k, l := range node.Labels {
			if l.Key == hostname {
				node.Labels[k].Value = node.Name
			}
		}
		node.Taints = withoutTaints(node.Taints, func(old cluster.Taint) bool { return strings.HasPrefix(old.Key, "node.kubernetes.io/") })
		apply(t, st, cluster.NodeSet{Index: st.Nodes.Free(), Node: node})
		return node.Name
	case Preempt:
		for _, v := range c.Victims {
			victim, ok := st.PodByUID(v.UID)
			if !ok || st.Pod(victim).Priority >= row.Priority || st.Pod(victim).NodeName != c.Node {
				t.Fatalf("victim %+v of pod %+v", v, row.Pod)
			}
			apply(t, st, cluster.PodRemoved{ID: victim})
		}
	}
	return c.Node
}

func TestEachChangeMakesThePodSchedulable(t *testing.T) {
	seen := make(map[string]int)
	var kinds []string
	for k := ReduceRequests; k <= Preempt; k++ {
		if k != CreateClaim && k != AddVolume { // which TestWhatWouldHelpClaims is about
			kinds = append(kinds, k.String())
		}
	}
	clustertest.CheckUntil(t, clustertest.Unseen(seen, kinds...), func(t *rapid.T) {
		for st, id := range waiting(t) {
			x := explained(t, st, id)
			if x.Cause != Rejected && len(x.Changes) > 0 {
				t.Fatalf("changes %+v of a pod that is not rejected", x.Changes)
			}
			for k, c := range x.Changes {
				seen[c.Kind.String()]++
				if k > 0 && x.Changes[k-1].Kind >= c.Kind {
					t.Fatalf("changes out of order: %+v", x.Changes)
				}
				real := st.Clone()
				if len(fitting(real, id)) > 0 {
					t.Fatalf("a rejected pod fits %v", fitting(real, id))
				}
				node := c.makeOn(t, real, id)
				got := fitting(real, id)
				if len(got) != int(c.Opens) || !slices.Contains(got, node) {
					t.Fatalf("pod %+v of %+v after %+v fits %v, want %d with %s", st.Pod(id).Pod, st.Class(st.Pod(id).Class).Spec, c, got, c.Opens, node)
				}
			}
		}
	})
}

// Without its node selector, the pod counts the nodes that it left out before, and with them the pods in zone a.
func TestAChangeNamesANodeThatFitsThen(t *testing.T) {
	w := newTown(t, house("node-1", "a"), house("node-2", "b"))
	w.fill("node-1", "node-1")
	spec := fleetSpec(500, 1<<30)
	spec.NodeSelector = []cluster.Label{{Key: "disk", Value: "ssd"}}
	spec.Spread = []cluster.SpreadConstraint{{TopologyKey: zone, MaxSkew: 1, MinDomains: 1, Hard: true, HonorAffinity: true, Selector: selects("web")}}
	id := w.st.FreePod()
	apply(t, w.st, cluster.ClassDefined{ID: podClass, Spec: spec}, cluster.PodSet{ID: id, Pod: cluster.Pod{UID: "shop", Namespace: "default", Name: "shop", Class: podClass, Labels: 1}})
	x := explained(t, w.st, id)
	if len(x.Changes) == 0 || x.Changes[0].Kind != DropConditions || x.Changes[0].Node != "node-2" || x.Changes[0].Opens != 1 {
		t.Errorf("changes %+v, want the node selector dropped for node-2", x.Changes)
	}
}

// TestNoSmallerReductionOfRequestsHelps reduces the requests to what each node has left, one node after the other.
func TestNoSmallerReductionOfRequestsHelps(t *testing.T) {
	reduced, cannot := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		for st, id := range waiting(t) {
			x := explained(t, st, id)
			if x.Cause != Rejected {
				continue
			}
			spec := st.Class(st.Pod(id).Class).Spec
			least, found := 0.0, false
			for i := range cluster.NodeIndex(st.Nodes.Len()) {
				if !st.Nodes.Live.Has(i) {
					continue
				}
				c := Change{Kind: ReduceRequests, Node: st.Nodes.Spec[i].Name}
				size := 0.0
				for _, q := range spec.Requests {
					r, _ := st.Resource(q.Name)
					if q.Name == "pods" {
						continue
					}
					free := st.Nodes.Allocatable[r][i] - st.Nodes.Requested[r][i]
					for _, nominee := range st.NominatedOn(c.Node) {
						if other := st.Pod(nominee); nominee != id && other.Priority >= st.Pod(id).Priority && len(other.Gates) == 0 && st.Profile(st.Class(other.Class).Spec.SchedulerName) != nil {
							for _, held := range st.Class(other.Class).Spec.Requests {
								if held.Name == q.Name {
									free -= held.Value
								}
							}
						}
					}
					if free > 0 && free < q.Value {
						c.Requests = append(c.Requests, RequestChange{q.Name, q.Value, free})
						size += float64(q.Value-free) / float64(q.Value)
					}
				}
				real := st.Clone()
				c.makeOn(t, real, id)
				if fits(real, id, i) && (!found || size < least) {
					least, found = size, true
				}
			}
			told := 0.0
			k := slices.IndexFunc(x.Changes, func(c Change) bool { return c.Kind == ReduceRequests })
			if found != (k >= 0) {
				t.Fatalf("requests %+v can be reduced: %v; told %+v", spec.Requests, found, x.Changes)
			}
			if !found {
				cannot++
				continue
			}
			reduced++
			for _, r := range x.Changes[k].Requests {
				told += float64(r.From-r.To) / float64(r.From)
			}
			if told > least+1e-9 {
				t.Fatalf("requests %+v can be reduced by %v, told %+v", spec.Requests, least, x.Changes[k])
			}
		}
	})
	if reduced == 0 || cannot == 0 {
		t.Errorf("%d reductions, %d pods without: want some of each", reduced, cannot)
	}
}

// TestWhatHelpsIsTold looks for each node alone whether a change of one kind helps. Spread constraints may count nodes
// otherwise then, so that what helps on one node does not on another: pods that have some are left out.
func TestWhatHelpsIsTold(t *testing.T) {
	seen := make(map[string]int)
	clustertest.CheckUntil(t, clustertest.Unseen(seen, Uncordon.String(), Tolerate.String(), RemoveTaints.String(), AddNode.String(), Preempt.String()), func(t *rapid.T) {
		for st, id := range waiting(t) {
			x := explained(t, st, id)
			row := st.Pod(id)
			if x.Cause != Rejected || len(st.Class(row.Class).Spec.Spread) > 0 || row.RequiredNode != "" {
				continue
			}
			helps := make(map[ChangeKind]bool)
			e := engine.NewEvaluator(engine.EvaluatorConfig{Parallelism: 1})
			_, preempts := e.Preempts(st, id)
			for i := range cluster.NodeIndex(st.Nodes.Len()) {
				if !st.Nodes.Live.Has(i) {
					continue
				}
				n := st.Node(i)
				try := func(c Change) {
					real := st.Clone()
					c.Node = n.Name
					on := c.makeOn(t, real, id)
					helps[c.Kind] = helps[c.Kind] || fits(real, id, real.Nodes.ByName(on))
				}
				if n.Unschedulable {
					try(Change{Kind: Uncordon})
				}
				var tolerations []cluster.Toleration
				system := false
				for _, taint := range n.Taints {
					system = system || strings.HasPrefix(taint.Key, "node.kubernetes.io/") && taint.Effect != "PreferNoSchedule"
					tolerations = append(tolerations, cluster.Toleration{Key: taint.Key, Operator: "Equal", Value: taint.Value, Effect: taint.Effect})
				}
				if !system {
					try(Change{Kind: Tolerate, Tolerations: tolerations})
					try(Change{Kind: RemoveTaints, Taints: n.Taints})
				}
				try(Change{Kind: AddNode})
				if _, ok := e.DryRunNode(st, id, i); ok && preempts {
					helps[Preempt] = true
				}
			}
			for _, kind := range []ChangeKind{Uncordon, Tolerate, RemoveTaints, AddNode, Preempt} {
				told := slices.ContainsFunc(x.Changes, func(c Change) bool { return c.Kind == kind && (kind != AddNode || len(c.Labels) == 0) })
				if told {
					seen[kind.String()]++
				}
				if told != helps[kind] && !(kind == AddNode && st.Nodes.Count() > maxShapes) {
					t.Fatalf("pod %+v of %+v: %v helps: %v; told %+v; %+v", row.Pod, st.Class(row.Class).Spec, kind, helps[kind], x.Changes, x.Nearest)
				}
			}
		}
	})
}

// place places a pod as a commit does.
func place(st *cluster.State, id cluster.PodID) (cluster.NodeIndex, engine.Placement) {
	workers, binder := engine.NewEvaluator(engine.EvaluatorConfig{Parallelism: 1}), engine.NewEvaluator(engine.EvaluatorConfig{Parallelism: 1})
	s := engine.SubjectOf(&st.Pod(id).Pod)
	f, _ := workers.Filter(st, s, everything(st))
	groups, _ := workers.Score(st, s, everything(st), f.Eligible, 100)
	return engine.NewPlacer(binder, st, st.Version().Seq, []engine.Candidates{{Subject: s, Groups: groups}}).Choose(id, 0)
}

func TestScoresAreWhatTheCommitUsed(t *testing.T) {
	placed, several := 0, 0
	seen := make(map[string]int)
	clustertest.CheckUntil(t, clustertest.Unseen(seen,
		engine.TaintToleration, engine.NodeAffinity, engine.NodeResourcesFit, engine.NodeResourcesBalancedAllocation,
		engine.PodTopologySpread, engine.InterPodAffinity, engine.ImageLocality,
	), func(t *rapid.T) {
		for st, id := range waiting(t) {
			row := st.Pod(id)
			if row.RequiredNode != "" || row.Nominated != "" || st.Profile(st.Class(row.Class).Spec.SchedulerName) == nil {
				continue
			}
			before := explained(t, st, id)
			node, placement := place(st, id)
			if (placement == engine.Placed) != (len(before.Candidates) > 0) {
				t.Fatalf("pod %d: %v, candidates %+v", id, placement, before.Candidates)
			}
			if placement != engine.Placed {
				continue
			}
			placed++
			if name := st.Nodes.Spec[node].Name; before.Candidates[0].Node != name {
				t.Fatalf("pod %d is placed on %s, candidates %+v", id, name, before.Candidates)
			}
			for k, c := range before.Candidates {
				sum := int64(0)
				for _, s := range c.Scores {
					sum += s.Weighted()
					seen[s.Plugin]++
				}
				if sum != c.Total || k > 0 && before.Candidates[k-1].Total < c.Total {
					t.Fatalf("candidates %+v", before.Candidates)
				}
			}
			if len(before.Candidates) != min(int(before.Feasible), maxCandidates) {
				t.Fatalf("%d candidates of %d feasible nodes", len(before.Candidates), before.Feasible)
			}
			if int(before.Feasible) == len(before.Candidates) {
				several++
				checkNormalized(t, before.Candidates)
			}
			// The same pod, placed: assumed, then bound.
			apply(t, st, cluster.PodAssumed{ID: id, Node: node, Attempt: 1})
			assumed := explained(t, st, id)
			apply(t, st, cluster.PodBound{ID: id})
			for _, after := range []Explanation{assumed, explained(t, st, id)} {
				if diff := gocmp.Diff(before.Candidates, after.Candidates, cmpopts.IgnoreUnexported(Candidate{})); diff != "" {
					t.Fatalf("candidates (-before +after it was placed):\n%s", diff)
				}
				if h := after.Here; h == nil || !h.Best || !h.Feasible || gocmp.Diff(h.Candidate, before.Candidates[0], cmpopts.IgnoreUnexported(Candidate{})) != "" {
					t.Fatalf("it is on %+v, want %+v", h, before.Candidates[0])
				}
			}
		}
	})
	if placed == 0 || several == 0 {
		t.Errorf("placed %d, %d with all candidates known: want some of each", placed, several)
	}
}

// checkNormalized normalises the raw scores of all feasible nodes again, by kube-scheduler's formulas.
func checkNormalized(t fataler, all []Candidate) {
	for k, column := range all[0].Scores {
		least, most := column.Raw, column.Raw
		for _, c := range all {
			least, most = min(least, c.Scores[k].Raw), max(most, c.Scores[k].Raw)
		}
		for _, c := range all {
			s := c.Scores[k]
			want := s.Normalized
			switch {
			case s.Plugin == engine.TaintToleration && most == 0:
				want = 100
			case s.Plugin == engine.TaintToleration:
				want = 100 - 100*s.Raw/most
			case s.Plugin == engine.NodeAffinity && most > 0:
				want = 100 * s.Raw / most
			case s.Plugin == engine.InterPodAffinity && most > least:
				want = int64(100 * (float64(s.Raw-least) / float64(most-least)))
			case s.Plugin == engine.NodeResourcesFit, s.Plugin == engine.NodeResourcesBalancedAllocation, s.Plugin == engine.ImageLocality:
				want = s.Raw
			}
			if s.Normalized != want || want < 0 || want > 100 {
				t.Fatalf("%s on %s: raw %d of %d to %d is %d, want %d", s.Plugin, c.Node, s.Raw, least, most, s.Normalized, want)
			}
		}
	}
}

func TestAPlacedPodsNodeIsJudgedAsItIsNow(t *testing.T) {
	st := tame(t, newRand(3), 6, 0, 0)
	for i := range cluster.NodeIndex(6) {
		n := st.Node(i)
		n.Unschedulable, n.Taints = false, nil
		apply(t, st, cluster.NodeSet{Index: i, Node: n})
	}
	apply(t, st, cluster.ClassDefined{ID: 1, Spec: cluster.ClassSpec{SchedulerName: "default-scheduler", Requests: []cluster.Quantity{quantity("cpu", 1000)}}},
		cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "a", Namespace: "default", Name: "a", Class: 1, Labels: 1}})
	node, _ := place(st, 0)
	apply(t, st, cluster.PodAssumed{ID: 0, Node: node, Attempt: 1})
	n := st.Node(node)
	n.Taints = []cluster.Taint{{Key: "gpu", Effect: "PreferNoSchedule"}}
	apply(t, st, cluster.NodeSet{Index: node, Node: n})
	if x := explained(t, st, 0); x.Here == nil || !x.Here.Feasible || x.Here.Best {
		t.Errorf("on a node that has become worse: %+v", x.Here)
	}
	n.Taints[0].Effect = "NoSchedule"
	apply(t, st, cluster.NodeSet{Index: node, Node: n})
	x := explained(t, st, 0)
	if x.Here == nil || x.Here.Feasible || x.Here.Miss.Things != 1 || x.Here.Miss.Lacks[0].Taint.Key != "gpu" || x.Feasible != 5 {
		t.Errorf("on a node that could not take it now: %+v, %d feasible", x.Here, x.Feasible)
	}
}

func TestAnExplanationIsOfTheSandboxsVersionAndLeavesItAsItWas(t *testing.T) {
	st := tame(t, newRand(1), 5, 20, 4)
	s := whatif.New(st, engine.EvaluatorConfig{Parallelism: 1})
	for id := range st.Pods() {
		first, err := Explain(testContext(), s, id)
		if err != nil || s.Spoiled() != nil {
			t.Fatal(err, s.Spoiled())
		}
		again, _ := Explain(testContext(), s, id)
		if Text(first) != Text(again) || first.Version != st.Version() {
			t.Errorf("pod %d of %v: first\n%s\nthen\n%s", id, st.Version(), Text(first), Text(again))
		}
	}
	if _, err := Explain(testContext(), s, 1000); err == nil {
		t.Error("a pod that does not exist is explained")
	}
	ended, cancel := context.WithCancel(testContext())
	cancel()
	if _, err := Explain(ended, s, 0); err == nil {
		t.Error("an explanation whose context has ended is told")
	}
}

func TestAPlacedPodsNominationDoesNotKeepItOff(t *testing.T) {
	w := newTown(t, house("node-1", "a"))
	w.explain(3000, 1<<30, func(_ *cluster.ClassSpec, p *cluster.Pod) { p.NodeName, p.Nominated = "node-1", "node-1" })
	if x := explained(t, w.st, 0); x.Here == nil || !x.Here.Best || len(x.Candidates) != 1 {
		t.Errorf("it is on %+v, candidates %+v", x.Here, x.Candidates)
	}
}
