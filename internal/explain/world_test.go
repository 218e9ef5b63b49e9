package explain

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"

	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/whatif"
)

type fataler interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func apply(t fataler, st *cluster.State, deltas ...cluster.Delta) {
	t.Helper()
	for _, d := range deltas {
		if err := st.Apply(d); err != nil {
			t.Fatalf("apply %+v: %v", d, err)
		}
	}
}

// randomState is a random cluster: of random deltas, or one that looks more like those that people have.
func randomState(t *rapid.T) *cluster.State {
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
	if rapid.Bool().Draw(t, "deltas") {
		return wild(t, rng, rapid.IntRange(20, 150).Draw(t, "steps"))
	}
	return tame(t, rng, rapid.IntRange(1, 12).Draw(t, "nodes"), rapid.IntRange(0, 40).Draw(t, "placed"), rapid.IntRange(1, 8).Draw(t, "pending"))
}

// wild is a state after random deltas. As in a real one, each pod has labels, and requires a node only if its profile lets it be known so.
func wild(t fataler, rng *rand.Rand, steps int) *cluster.State {
	st := cluster.New(cluster.Version{Epoch: 1})
	for k, namespace := range []string{"default", "dev", "prod"} {
		apply(t, st, cluster.LabelsDefined{ID: cluster.LabelsID(1000 + k), Set: cluster.LabelSet{Namespace: namespace}})
	}
	for range steps {
		d := clustertest.Delta(rng.IntN, st)
		if set, ok := d.(cluster.PodSet); ok {
			if set.Pod.Labels == cluster.NoLabels {
				continue
			}
			if p := st.Profile(st.Class(set.Pod.Class).Spec.SchedulerName); p == nil || !source.KeepsRequiredNode(p) {
				set.Pod.RequiredNode = ""
			}
			d = set
		}
		if l, ok := d.(cluster.LabelsDefined); ok && l.ID >= 1000 {
			continue
		}
		apply(t, st, d)
	}
	return st
}

type tamer struct{ *rand.Rand }

func (r tamer) chance(percent int) bool { return r.IntN(100) < percent }

func one[T any](r tamer, of ...T) T { return of[r.IntN(len(of))] }

const zone = "topology.kubernetes.io/zone"

// labelSets are those of tame's pods.
var labelSets = []cluster.LabelSet{
	{Namespace: "default", Labels: []cluster.Label{{Key: "app", Value: "web"}}},
	{Namespace: "default", Labels: []cluster.Label{{Key: "app", Value: "db"}}},
	{Namespace: "batch", Labels: []cluster.Label{{Key: "app", Value: "job"}}},
}

func selects(values ...string) cluster.LabelSelector {
	return cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "app", Operator: "In", Values: values}}}
}

func term(key string, values ...string) cluster.PodTerm {
	return cluster.PodTerm{
		TopologyKey: key, Namespaces: []string{"batch", "default"}, NamespaceSelector: cluster.LabelSelector{Nothing: true}, Selector: selects(values...),
	}
}

func quantity(name string, value int64) cluster.Quantity {
	return cluster.Quantity{Name: name, Value: value}
}

// tame is a cluster of a few nodes in zones that are mostly full, with pods that wait.
func tame(t fataler, rng *rand.Rand, nodes, placed, pending int) *cluster.State {
	r := tamer{rng}
	st := cluster.New(cluster.Version{Epoch: 1})
	profile := engine.DefaultProfile("default-scheduler")
	apply(t, st, cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Seed: uint64(r.IntN(100)), Profiles: []cluster.Profile{profile}}})
	for k, set := range labelSets {
		apply(t, st, cluster.LabelsDefined{ID: cluster.LabelsID(k + 1), Set: set})
	}
	for i := range nodes {
		name := fmt.Sprintf("node-%d", i)
		n := cluster.Node{
			Name: name, Unschedulable: r.chance(25),
			Allocatable: []cluster.Quantity{quantity("cpu", one[int64](r, 2000, 4000, 8000)), quantity("memory", one[int64](r, 4<<30, 8<<30)), quantity("pods", one[int64](r, 3, 8, 110))},
			Labels:      []cluster.Label{{Key: "disk", Value: one(r, "hdd", "ssd")}, {Key: hostname, Value: name}, {Key: "size", Value: one(r, "1", "2", "7")}},
		}
		if r.chance(40) {
			n.Images = []cluster.Image{{Names: []string{"app:1"}, Size: 900 << 20}}
		}
		if r.chance(80) {
			n.Labels = append(n.Labels, cluster.Label{Key: zone, Value: one(r, "a", "b", "c")})
		}
		if n.Unschedulable && r.chance(50) {
			n.Taints = append(n.Taints, cluster.Taint{Key: "node.kubernetes.io/unschedulable", Effect: "NoSchedule"})
		}
		for range r.IntN(3) {
			n.Taints = append(n.Taints, cluster.Taint{
				Key: one(r, "gpu", "spot", "node.kubernetes.io/not-ready"), Value: one(r, "", "a"), Effect: one(r, "NoSchedule", "NoExecute", "PreferNoSchedule", "PreferNoSchedule"),
			})
		}
		apply(t, st, cluster.NodeSet{Index: cluster.NodeIndex(i), Node: n})
	}
	for k := range placed + pending {
		class, id := cluster.ClassID(k+1), st.FreePod()
		p := cluster.Pod{
			UID: fmt.Sprintf("uid-%d", k), Namespace: "default", Name: fmt.Sprintf("pod-%d", k), Class: class,
			Labels: cluster.LabelsID(1 + r.IntN(len(labelSets))), Priority: int32(r.IntN(3)), NeverPreempts: r.chance(20),
		}
		p.Namespace = labelSets[p.Labels-1].Namespace
		spec := tameSpec(r, k < placed)
		if k < placed {
			p.NodeName = fmt.Sprintf("node-%d", r.IntN(nodes))
		} else if r.chance(10) {
			p.RequiredNode = fmt.Sprintf("node-%d", r.IntN(nodes+1))
		}
		if k >= placed && r.chance(10) {
			p.Nominated = fmt.Sprintf("node-%d", r.IntN(nodes+1))
		}
		apply(t, st, cluster.ClassDefined{ID: class, Spec: spec}, cluster.PodSet{ID: id, Pod: p})
	}
	if r.chance(40) {
		apply(t, st, cluster.ObjectSet{Object: &cluster.Budget{Namespace: "default", Name: "web", Selector: selects("web"), Allowed: int32(r.IntN(2))}})
	}
	return st
}

func tameSpec(r tamer, placed bool) cluster.ClassSpec {
	cpu, memory := one[int64](r, 100, 500, 1500), one[int64](r, 1<<28, 1<<30)
	if !placed {
		cpu, memory = one[int64](r, 500, 2000, 4000, 9000), one[int64](r, 1<<30, 6<<30)
	}
	s := cluster.ClassSpec{
		SchedulerName: "default-scheduler", Requests: []cluster.Quantity{quantity("cpu", cpu), quantity("memory", memory)},
		NonZeroCPU: cpu, NonZeroMemory: memory, ImageContainers: 1,
	}
	s.ScoreRequests = slices.Clone(s.Requests)
	if !placed && r.chance(5) {
		s.SchedulerName = "other"
	}
	if !placed && r.chance(5) {
		s.Unsupported, s.UnsupportedPlugin = "Berth does not judge resource claims yet", "DynamicResources"
	}
	if r.chance(50) {
		s.Images = []string{"app:1"}
	}
	if r.chance(20) {
		s.HostPorts = []cluster.HostPort{{IP: "0.0.0.0", Protocol: "TCP", Port: 80}}
	}
	if r.chance(20) {
		s.AntiAffinity = []cluster.PodTerm{term(one(r, hostname, zone), one(r, "web", "db"))}
	}
	if placed {
		return s
	}
	if r.chance(40) {
		s.Tolerations = append(s.Tolerations, cluster.Toleration{Key: one(r, "gpu", "spot"), Operator: "Exists"})
	}
	if r.chance(35) {
		s.NodeSelector = []cluster.Label{{Key: "disk", Value: one(r, "ssd", "nvme")}}
	}
	if r.chance(25) {
		s.HasRequired = true
		for range 1 + r.IntN(2) {
			s.Required = append(s.Required, cluster.NodeSelectorTerm{Expressions: []cluster.Requirement{
				one(r,
					cluster.Requirement{Key: "size", Operator: "Gt", Values: []string{"6"}},
					cluster.Requirement{Key: "size", Operator: "Lt", Values: []string{"1"}},
					cluster.Requirement{Key: "fast", Operator: "Exists"},
					cluster.Requirement{Key: "disk", Operator: "NotIn", Values: []string{"hdd", "ssd"}},
					cluster.Requirement{Key: zone, Operator: "In", Values: []string{"a", "z"}},
				),
			}})
		}
	}
	if r.chance(30) {
		s.Spread = []cluster.SpreadConstraint{{
			TopologyKey: one(r, hostname, zone), MaxSkew: 1, MinDomains: int32(1 + r.IntN(3)), Hard: r.chance(70), HonorAffinity: r.chance(50), HonorTaints: r.chance(30),
			Selector: selects("web", "job"),
		}}
	}
	if r.chance(15) {
		s.Affinity = []cluster.PodTerm{term(one(r, hostname, zone), one(r, "web", "db", "job"))}
	}
	if r.chance(30) {
		s.PreferredAffinity = []cluster.WeightedPodTerm{{Weight: 7, Term: term(zone, "web", "db")}}
	}
	for range r.IntN(2) {
		s.Preferred = append(s.Preferred, cluster.PreferredTerm{Weight: 10, Term: cluster.NodeSelectorTerm{
			Expressions: []cluster.Requirement{{Key: "disk", Operator: "In", Values: []string{"ssd"}}},
		}})
	}
	return s
}

// explained explains a pod on a sandbox of its own.
func explained(t fataler, st *cluster.State, id cluster.PodID) Explanation {
	x, err := Explain(testContext(), whatif.New(st, engine.EvaluatorConfig{Parallelism: 1}), id)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// fits reports whether a node can take a pod, as Berth's filters say.
func fits(st *cluster.State, id cluster.PodID, i cluster.NodeIndex) bool {
	row := st.Pod(id)
	if row.RequiredNode != "" && row.RequiredNode != st.Nodes.Spec[i].Name {
		return false
	}
	self := cluster.NoPod
	if st.Nodes.ByName(row.Nominated) == i {
		self = id
	}
	v, ok := engine.NewEvaluator(engine.EvaluatorConfig{Parallelism: 1}).Node(st, engine.SubjectOf(&row.Pod), self, i)
	return ok && v.Feasible()
}

// fitting returns the nodes that can take a pod.
func fitting(st *cluster.State, id cluster.PodID) []string {
	var out []string
	for i := range cluster.NodeIndex(st.Nodes.Len()) {
		if st.Nodes.Live.Has(i) && fits(st, id, i) {
			out = append(out, st.Nodes.Spec[i].Name)
		}
	}
	return out
}

func pendingPods(st *cluster.State) []cluster.PodID {
	var out []cluster.PodID
	for id, row := range st.Pods() {
		if !row.Placed() {
			out = append(out, id)
		}
	}
	return out
}

// waiting yields the pods that wait in each of some random clusters.
func waiting(t *rapid.T) iter.Seq2[*cluster.State, cluster.PodID] {
	return func(yield func(*cluster.State, cluster.PodID) bool) {
		for range 5 {
			st := randomState(t)
			for _, id := range pendingPods(st) {
				if !yield(st, id) {
					return
				}
			}
		}
	}
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }
