package engine

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
)

// randomState is a state after some random deltas, about every second one of roomy nodes.
func randomState(t *rapid.T) *cluster.State {
	st := cluster.New(cluster.Version{Epoch: 1})
	intn := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)).IntN
	wide := rapid.Bool().Draw(t, "roomy")
	for range rapid.IntRange(20, 150).Draw(t, "steps") {
		d := clustertest.Delta(intn, st)
		if wide {
			d = roomy(d)
		}
		if err := st.Apply(d); err != nil {
			t.Fatal(err)
		}
	}
	return st
}

// selfOn is what Node asks for: the pod if it is nominated to the node.
func selfOn(st *cluster.State, id cluster.PodID, i cluster.NodeIndex) cluster.PodID {
	if row := st.Pod(id); !row.Placed() && st.Nodes.ByName(row.Nominated) == i {
		return id
	}
	return cluster.NoPod
}

// only returns a state's settings with profiles that filter with some plugins only.
func only(st *cluster.State, plugins ...string) cluster.SettingsSet {
	s := st.Settings
	s.Profiles = slices.Clone(s.Profiles)
	for k := range s.Profiles {
		s.Profiles[k].Filters = plugins
		if p := PluginOf(plugins[0]); p != nil && p.resolve != nil {
			s.Profiles[k].PreFilters = plugins
			continue
		}
		if !slices.Contains(plugins, NodeAffinity) {
			s.Profiles[k].PreFilters = nil
		}
	}
	return cluster.SettingsSet{Settings: s}
}

// TestANodeLacksSomethingOfEveryPluginThatAloneRejectsIt asks each plugin alone: a profile that filters with no other.
func TestANodeLacksSomethingOfEveryPluginThatAloneRejectsIt(t *testing.T) {
	seen := make(map[string]int)
	unseen := func() []string { // plugins of which no node has lacked anything
		return slices.DeleteFunc(slices.Clone(DefaultProfile("").Filters), func(plugin string) bool {
			return seen[plugin] > 0 || plugin == NodeName || PluginOf(plugin).resolve != nil // random volumes seldom come to anything
		})
	}
	check := func(t *rapid.T) {
		st := randomState(t)
		e := NewEvaluator(EvaluatorConfig{Parallelism: 1})
		type place struct {
			pod  cluster.PodID
			node cluster.NodeIndex
		}
		lacks := make(map[place][]Lack)
		for id, row := range st.Pods() {
			if decidedByVolumes(e, st, SubjectOf(&row.Pod)) {
				continue
			}
			for i := range cluster.NodeIndex(st.Nodes.Len()) {
				got, ok := e.Shortfall(st, id, i)
				if ok != st.Nodes.Live.Has(i) {
					t.Fatalf("node %d is known: %v", i, ok)
				}
				if !ok {
					continue
				}
				lacks[place{id, i}] = got
				v, _ := e.Node(st, SubjectOf(&row.Pod), selfOn(st, id, i), i)
				elsewhere := row.RequiredNode != "" && row.RequiredNode != st.Nodes.Spec[i].Name
				if (len(got) == 0) != (v.Feasible() && !elsewhere) {
					t.Fatalf("pod %+v on %+v: verdict %x, elsewhere %v, lacks %+v", row.Pod, st.Node(i), v, elsewhere, got)
				}
				for _, want := range e.Explain(st, SubjectOf(&row.Pod), v, i) {
					if !slices.ContainsFunc(got, func(l Lack) bool { return l.Plugin == want.Plugin && l.Reason == want.Reason }) {
						t.Fatalf("pod %+v on %+v: %+v is not among the lacks %+v", row.Pod, st.Node(i), want, got)
					}
				}
			}
		}
		profile := st.Settings
		for _, plugin := range DefaultProfile("").Filters {
			if err := st.Apply(only(st, plugin)); err != nil {
				t.Fatal(err)
			}
			alone := NewEvaluator(EvaluatorConfig{Parallelism: 1})
			for at, all := range lacks {
				v, _ := alone.Node(st, SubjectOf(&st.Pod(at.pod).Pod), selfOn(st, at.pod, at.node), at.node)
				required := st.Pod(at.pod).RequiredNode // of which the plugins know nothing
				of := slices.DeleteFunc(slices.Clone(all), func(l Lack) bool {
					return l.Plugin != plugin || l.Field && required != "" && slices.Equal(l.Wanted.Values, []string{required})
				})
				if v.Feasible() != (len(of) == 0) {
					t.Fatalf("pod %+v on %+v: %s alone says %x, lacks %+v", st.Pod(at.pod), st.Node(at.node), plugin, v, all)
				}
				seen[plugin] += len(of)
			}
			if err := st.Apply(cluster.SettingsSet{Settings: profile}); err != nil {
				t.Fatal(err)
			}
		}
	}
	clustertest.CheckUntil(t, unseen, check)
}

func TestASurveyAddsUpToWhatFilterCounts(t *testing.T) {
	rejected := 0
	rapid.Check(t, func(t *rapid.T) {
		st := randomState(t)
		e := NewEvaluator(EvaluatorConfig{Parallelism: 1})
		for id, row := range st.Pods() {
			visited := int32(0)
			s, ok, _ := e.Survey(st, id, nil, func(i cluster.NodeIndex, lacks []Lack) {
				visited++
				one, _ := NewEvaluator(EvaluatorConfig{}).Shortfall(st, id, i)
				if len(lacks) == 0 || len(lacks) != len(one) {
					t.Fatalf("pod %d on node %d: survey finds %+v, shortfall %+v", id, i, lacks, one)
				}
			})
			sum := s.Feasible
			var reasons []VerdictCount
			for _, r := range s.Rejections {
				sum += r.Nodes
				reasons = append(reasons, r.Reasons...)
				if r.Nodes < 1 || r.Unresolvable > r.Nodes {
					t.Fatalf("rejection %+v", r)
				}
			}
			if !ok || sum != s.Nodes || s.Nodes != int32(st.Nodes.Count()) || visited != s.Nodes-s.Feasible {
				t.Fatalf("%d nodes, %d visited, survey %+v", st.Nodes.Count(), visited, s)
			}
			rejected += int(visited)
			if row.RequiredNode != "" || row.Nominated != "" {
				continue
			}
			f, _ := e.Filter(st, SubjectOf(&row.Pod), everything(st))
			if diff := cmp.Diff(f.Verdicts, reasons, cmpopts.EquateEmpty()); diff != "" || f.FeasibleCount != s.Feasible {
				t.Fatalf("%d feasible, survey %d; verdicts (-filter +survey):\n%s", f.FeasibleCount, s.Feasible, diff)
			}
		}
	})
	if rejected == 0 {
		t.Error("no node was rejected")
	}
}

// TestWhatIsLackingIsWhatItTakes checks the numbers, and the pods in the way, by looking at the state itself.
func TestWhatIsLackingIsWhatItTakes(t *testing.T) {
	seen := make(map[string]int)
	clustertest.CheckUntil(t, clustertest.Unseen(seen,
		NodeResourcesFit, TaintToleration, NodePorts, NodeAffinity, PodTopologySpread, InterPodAffinity, NodeDeclaredFeatures,
		ReasonNodePorts+" by a pod", ReasonAntiAffinity+" by a pod", ReasonExistingAntiAffinity+" by a pod",
	), func(t *rapid.T) {
		st := randomState(t)
		e := NewEvaluator(EvaluatorConfig{Parallelism: 1})
		for id, row := range st.Pods() {
			spec := &st.Class(row.Class).Spec
			for i := range cluster.NodeIndex(st.Nodes.Len()) {
				lacks, _ := e.Shortfall(st, id, i)
				node := st.Node(i)
				for _, l := range lacks {
					good := true
					var blocker *cluster.PodRow
					if l.Blocker != cluster.NoPod {
						blocker = st.Pod(l.Blocker)
						seen[l.Reason+" by a pod"]++
					}
					seen[l.Plugin]++
					value, has := cluster.ValueOf(node.Labels, l.TopologyKey)
					switch {
					case l.Resource != "":
						capacity, wanted := amount(node.Allocatable, l.Resource), amount(spec.Requests, l.Resource)
						if l.Resource == "pods" {
							wanted = 1
						}
						good = l.Capacity == capacity && l.Requested == wanted && l.Free < wanted && l.Free <= capacity
					case l.Taint != nil:
						good = slices.Contains(node.Taints, *l.Taint)
					case l.Port != nil:
						good = slices.Contains(spec.HostPorts, *l.Port) && blocker != nil
					case l.Feature != "":
						good = slices.Contains(spec.Features, l.Feature) && !slices.Contains(node.Features, l.Feature)
					case l.Wanted != nil && !l.Field:
						value, has = cluster.ValueOf(node.Labels, l.Wanted.Key)
						good = l.HasValue == has && l.Value == value
					case l.NoKey:
						good = !has && !l.HasValue
					case l.Plugin == PodTopologySpread:
						skew := l.Count - l.Least
						if l.Self {
							skew++
						}
						good = has && l.Value == value && skew > int64(l.Spread.MaxSkew)
					case l.Reason == ReasonAffinity:
						good = has && l.Value == value && len(l.Terms) > 0 && l.Terms[0].TopologyKey == l.TopologyKey
					case l.Plugin == InterPodAffinity:
						good = has && l.Value == value && l.Count > 0 && len(l.Terms) == 1 && l.Terms[0].TopologyKey == l.TopologyKey && blocker != nil
					}
					if !good {
						t.Fatalf("pod %+v of %+v on %+v: lack %+v, in the way %+v", row.Pod, spec, node, l, blocker)
					}
					if blocker != nil && blocker.Placed() && l.TopologyKey != "" {
						if other := st.Node(blocker.Node); labelText(other, l.TopologyKey) != value {
							t.Fatalf("pod %d is in the way on %q, which is not in the domain %q", l.Blocker, other.Name, value)
						}
					}
				}
			}
		}
	})
}

func labelText(n cluster.Node, key string) string {
	value, _ := cluster.ValueOf(n.Labels, key)
	return value
}

func TestACordonIsOneLackThoughThereIsATaintToo(t *testing.T) {
	z := newZones(t, 1, 1, cluster.ClassSpec{})
	node := z.st.Node(0)
	node.Unschedulable = true
	node.Taints = []cluster.Taint{{Key: cordonTaint, Effect: "NoSchedule"}, {Key: "gpu", Value: "a", Effect: "NoExecute"}}
	apply(t, z.st, cluster.NodeSet{Index: 0, Node: node})
	lacks, _ := z.e.Shortfall(z.st, z.pod(testClass, webLabels, ""), 0)
	if len(lacks) != 2 || lacks[0].Plugin != NodeUnschedulable || lacks[1].Plugin != TaintToleration || lacks[1].Taint.Key != "gpu" {
		t.Errorf("lacks %+v, want the cordon and the taint of gpu", lacks)
	}
}
