package main

import (
	"fmt"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

const (
	batchSize = 256 // pods of a cycle
	slack     = 16  // how many more candidates a cycle asks for than pods will take
	zones     = 10
	zone      = "topology.kubernetes.io/zone"
	hostname  = "kubernetes.io/hostname"
)

// workload is what kinds of pods are placed, in turn.
type workload struct {
	name    string
	classes int
	shape   func(spec *cluster.ClassSpec, own cluster.LabelSelector) // own selects the pods of the class
}

var (
	plain      = workload{"plain", 1, func(*cluster.ClassSpec, cluster.LabelSelector) {}}
	interleave = workload{"100 classes", 100, plain.shape}
	hardSpread = workload{"hard zone spread", 1, func(spec *cluster.ClassSpec, own cluster.LabelSelector) {
		spec.Spread = []cluster.SpreadConstraint{{
			TopologyKey: zone, MaxSkew: 1, MinDomains: 1, Hard: true, HonorAffinity: true, Selector: own,
		}}
	}}
	zoneAffinity = workload{"zone affinity", 1, func(spec *cluster.ClassSpec, own cluster.LabelSelector) {
		spec.Affinity = []cluster.PodTerm{near(zone, own)}
	}}
	hostAntiAffinity = workload{"hostname anti-affinity", 1, func(spec *cluster.ClassSpec, own cluster.LabelSelector) {
		spec.AntiAffinity = []cluster.PodTerm{near(hostname, own)}
	}}
)

func near(key string, selector cluster.LabelSelector) cluster.PodTerm {
	return cluster.PodTerm{
		TopologyKey: key, Namespaces: []string{"default"}, NamespaceSelector: cluster.LabelSelector{Nothing: true}, Selector: selector,
	}
}

// world is a cluster, and what a scheduler's roles keep to place pods in it: the filter-worker's, the score-worker's and
// the binder's evaluator.
type world struct {
	load                  workload
	st                    *cluster.State
	filter, score, binder *engine.Evaluator
	made                  int // pods, so far
	pending, bound        []cluster.PodID
	reach                 int // how many candidates of a class the pods of others are expected to take
}

// newWorld returns a cluster of so many nodes, all alike but for their zones, without pods. What has equal scores is
// ordered by the seed.
func newWorld(load workload, nodes int, seed uint64) (*world, error) {
	w := &world{load: load, st: cluster.New(cluster.Version{Epoch: 1})}
	for _, e := range []**engine.Evaluator{&w.filter, &w.score, &w.binder} {
		*e = engine.NewEvaluator(engine.EvaluatorConfig{})
	}
	profile := engine.DefaultProfile("default-scheduler")
	settings := cluster.Settings{Shards: 1, Seed: seed, Profiles: []cluster.Profile{profile}}
	if err := w.apply(cluster.SettingsSet{Settings: settings}); err != nil {
		return nil, err
	}
	for k := range load.classes {
		app := fmt.Sprintf("app-%d", k)
		own := cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "app", Operator: "In", Values: []string{app}}}}
		milli := int64(100 + k)
		asks := []cluster.Quantity{{Name: "cpu", Value: milli}, {Name: "memory", Value: 256 << 20}}
		spec := cluster.ClassSpec{
			SchedulerName: profile.SchedulerName, Requests: asks, ScoreRequests: asks, NonZeroCPU: milli, NonZeroMemory: 256 << 20,
			Images: []string{"app:1"}, ImageContainers: 1,
		}
		load.shape(&spec, own)
		labels := cluster.LabelSet{Namespace: "default", Labels: []cluster.Label{{Key: "app", Value: app}}}
		err := w.apply(
			cluster.ClassDefined{ID: cluster.ClassID(k + 1), Spec: spec},
			cluster.LabelsDefined{ID: cluster.LabelsID(k + 1), Set: labels},
			cluster.PodSet{ID: w.st.FreePod(), Pod: w.pod(fmt.Sprintf("gated-%d", k), k, "later")}, // so that the class stays
		)
		if err != nil {
			return nil, err
		}
	}
	for i := range nodes {
		name := fmt.Sprintf("node-%d", i)
		err := w.apply(cluster.NodeSet{Index: cluster.NodeIndex(i), Node: cluster.Node{
			Name:   name,
			Labels: []cluster.Label{{Key: hostname, Value: name}, {Key: zone, Value: fmt.Sprintf("zone-%d", i%zones)}},
			Allocatable: []cluster.Quantity{
				{Name: "cpu", Value: 32_000}, {Name: "memory", Value: 128 << 30}, {Name: "pods", Value: 110},
			},
		}})
		if err != nil {
			return nil, err
		}
	}
	return w, nil
}

func (w *world) apply(deltas ...cluster.Delta) error {
	for _, d := range deltas {
		if err := w.st.Apply(d); err != nil {
			return fmt.Errorf("%T: %w", d, err)
		}
	}
	return nil
}

func (w *world) pod(name string, class int, gates ...string) cluster.Pod {
	return cluster.Pod{
		UID: name, Namespace: "default", Name: name, Gates: gates,
		Class: cluster.ClassID(class + 1), Labels: cluster.LabelsID(class + 1),
	}
}

// arrive makes so many pods come, of each class in turn.
func (w *world) arrive(pods int) error {
	for range pods {
		id := w.st.FreePod()
		if err := w.apply(cluster.PodSet{ID: id, Pod: w.pod(fmt.Sprintf("pod-%d", w.made), w.made%w.load.classes)}); err != nil {
			return err
		}
		w.made++
		w.pending = append(w.pending, id)
	}
	return nil
}

// cycle tries to place the first pods that wait, at most a batch, as the roles do it together: filter, score, merge, and
// for each pod place and apply. It returns how many it has placed; the others wait on.
func (w *world) cycle() (int, error) {
	batch := w.pending[:min(len(w.pending), batchSize)]
	nodes := w.st.Nodes.Len()
	all := cluster.Range{First: 0, End: cluster.NodeIndex(nodes)}
	// 1. Which nodes are the best for each class of the batch?
	own := make(map[engine.Subject]int)
	for _, id := range batch {
		own[engine.SubjectOf(&w.st.Pod(id).Pod)]++
	}
	var candidates []engine.Candidates
	indexOf := make(map[engine.Subject]int)
	for _, id := range batch {
		s := engine.SubjectOf(&w.st.Pod(id).Pod)
		if _, ok := indexOf[s]; ok {
			continue
		}
		indexOf[s] = len(candidates)
		limit := min(own[s]+w.reach, len(batch)) + slack
		f, _ := w.filter.Filter(w.st, s, all)
		groups, _ := w.score.Score(w.st, s, all, f.Eligible, limit)
		candidates = append(candidates, engine.Candidates{Subject: s, Groups: engine.MergeGroups(engine.TieSeed(w.st, s.Class), limit, groups)})
	}
	// 2. One pod after the other, each on what those before it have left.
	placer := engine.NewPlacer(w.binder, w.st, w.st.Version().Seq, candidates)
	placed, exhausted := 0, false
	for _, id := range batch {
		node, placement := placer.Choose(id, indexOf[engine.SubjectOf(&w.st.Pod(id).Pod)])
		if placement != engine.Placed {
			exhausted = placement == engine.Retry
			break
		}
		if err := w.apply(cluster.PodAssumed{ID: id, Node: node, Attempt: 1}); err != nil {
			return placed, err
		}
		placed++
	}
	// 3. Lists that were too short are longer the next time; as the shards do it.
	if w.reach -= (w.reach + 15) / 16; exhausted {
		w.reach = min(max(2*w.reach, slack), batchSize)
	}
	// 4. Their binds succeed.
	for _, id := range batch[:placed] {
		if err := w.apply(cluster.PodBound{ID: id}); err != nil {
			return placed, err
		}
	}
	w.bound = append(w.bound, batch[:placed]...)
	w.pending = w.pending[placed:]
	return placed, nil
}

// empty takes all placed pods away.
func (w *world) empty() error {
	for _, id := range w.bound {
		if err := w.apply(cluster.PodRemoved{ID: id}); err != nil {
			return err
		}
	}
	w.bound = w.bound[:0]
	return nil
}
