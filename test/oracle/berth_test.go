package oracle

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// drawRanges cuts all node indexes into ranges, as they are cut over workers.
func (w *world) drawRanges() []cluster.Range {
	words := (w.state.Nodes.Len() + 63) / 64
	return cluster.Ranges(w.state.Nodes.Len(), rapid.IntRange(1, max(words, 1)).Draw(w.t, "ranges"), 0)
}

// answer is what the workers say of a class, merged.
type answer struct {
	nodes    int
	feasible cluster.Bitmap
	verdicts []engine.VerdictCount
	groups   []engine.Group
}

// ask asks about a class range by range and merges, as a queue shard does. Up to limit nodes of each group are listed,
// by each worker and merged, but for those that a short worker leaves out.
func (w *world) ask(class cluster.ClassID, ranges []cluster.Range, limit int, short bool) answer {
	a := answer{feasible: make(cluster.Bitmap, (w.state.Nodes.Len()+63)/64)}
	var parts [][]engine.Group
	for _, r := range ranges {
		f, ok := w.evaluator.Filter(w.state, class, r)
		if !ok {
			w.t.Fatalf("Filter does not know class %d", class)
		}
		copy(a.feasible[r.First/64:], f.Feasible)
		a.nodes += int(f.Nodes)
		a.verdicts = engine.MergeVerdicts(a.verdicts, f.Verdicts)
		listed := limit
		if short {
			listed = rapid.IntRange(1, limit).Draw(w.t, "listed")
		}
		groups, ok := w.evaluator.Score(w.state, class, r, f.Feasible, listed)
		if !ok {
			w.t.Fatalf("Score does not know class %d", class)
		}
		parts = append(parts, groups)
	}
	a.groups = engine.MergeGroups(w.state.Settings.Seed, limit, parts...)
	return a
}

// judge is Berth's decision about a pending pod of its ledger.
func (w *world) judge(id cluster.PodID, ranges []cluster.Range) *decision {
	row := w.state.Pod(id)
	if row.Pin != "" {
		return w.judgePinned(row)
	}
	d := newDecision()
	a := w.ask(row.Class, ranges, w.state.Nodes.Len()+1, false)
	for i := range cluster.NodeIndex(w.state.Nodes.Len()) {
		if w.state.Nodes.Live.Has(i) && !a.feasible.Has(i) {
			d.Verdicts[w.state.Nodes.Spec[i].Name] = w.explain(row.Class, i)
		} else if w.state.Nodes.Live.Has(i) && w.explain(row.Class, i).Reasons != nil {
			w.t.Fatalf("Filter and Node differ about node %s", w.state.Nodes.Spec[i].Name)
		}
	}
	w.finish(d, a.nodes, a.verdicts)
	w.addScores(d, row.Class, a.groups)
	return d
}

// judgePinned judges a pod that may go to one node only, by name; its class does not know the name.
func (w *world) judgePinned(row *cluster.PodRow) *decision {
	d := newDecision()
	var verdicts []engine.VerdictCount
	aside := engine.VerdictCount{Plugin: engine.NodeAffinity, Reason: engine.ReasonNodeAffinityOutside, Unresolvable: true}
	for i := range cluster.NodeIndex(w.state.Nodes.Len()) {
		switch name := w.state.Nodes.Spec[i].Name; {
		case !w.state.Nodes.Live.Has(i):
		case name != row.Pin:
			d.Verdicts[name] = verdict{Plugin: aside.Plugin, Unresolvable: true, Reasons: []string{aside.Reason}}
			aside.Count++
		default:
			v, _ := w.evaluator.Node(w.state, row.Class, i)
			if verdicts = w.evaluator.Explain(w.state, row.Class, v, i); !v.Feasible() {
				d.Verdicts[name] = w.explain(row.Class, i)
			}
		}
	}
	if aside.Count > 0 {
		verdicts = engine.MergeVerdicts(verdicts, []engine.VerdictCount{aside})
	}
	w.finish(d, w.state.Nodes.Count(), verdicts)
	return d
}

// explain returns why the class does not fit a node.
func (w *world) explain(class cluster.ClassID, i cluster.NodeIndex) verdict {
	v, ok := w.evaluator.Node(w.state, class, i)
	if !ok {
		w.t.Fatalf("no verdict for class %d on node %d", class, i)
	}
	out := verdict{Unresolvable: v.Unresolvable()}
	for _, count := range w.evaluator.Explain(w.state, class, v, i) {
		out.Plugin = count.Plugin
		out.Reasons = append(out.Reasons, count.Reason)
		if count.Unresolvable != out.Unresolvable || count.Count != 1 {
			w.t.Fatalf("verdict %#x is explained by %+v", v, count)
		}
	}
	slices.Sort(out.Reasons)
	return out
}

func (w *world) finish(d *decision, nodes int, verdicts []engine.VerdictCount) {
	for _, v := range verdicts {
		d.Counts[v.Reason] += int(v.Count)
	}
	if len(d.Verdicts) == nodes {
		d.Message = engine.FitMessage(nodes, verdicts)
	}
}

// addScores reads the groups, which list every feasible node.
func (w *world) addScores(d *decision, class cluster.ClassID, groups []engine.Group) {
	profile := w.state.Profile(w.state.Class(class).Spec.SchedulerName)
	weight := make(map[string]int64)
	for _, p := range profile.Weights {
		weight[p.Name] = p.Weight
	}
	totals, normalized := engine.Totals(profile, groups), engine.Normalize(groups)
	for k, g := range groups {
		if int(g.Count) != len(g.Nodes) {
			w.t.Fatalf("group %+v has %d nodes and lists %d", g.Raw, g.Count, len(g.Nodes))
		}
		for j, n := range g.Nodes {
			s := score{
				RawTaints: g.Raw.TaintToleration, RawAffinity: g.Raw.NodeAffinity,
				Weighted: make(map[string]int64), Total: totals[k][j],
			}
			put := func(plugin string, value int64) {
				if w, ok := weight[plugin]; ok && value != engine.NotScored {
					s.Weighted[plugin] = w * value
				} else if !ok && value > 0 && plugin != engine.TaintToleration {
					s.Weighted[plugin] = value // of a plugin that must not score
				}
			}
			put(engine.TaintToleration, normalized[k].TaintToleration)
			put(engine.NodeAffinity, normalized[k].NodeAffinity)
			put(engine.NodeResourcesFit, int64(n.Scores[0]))
			put(engine.NodeResourcesBalancedAllocation, int64(n.Scores[1]))
			put(engine.ImageLocality, int64(n.Scores[2]))
			name := w.state.Nodes.Spec[n.Node].Name
			if _, twice := d.Scores[name]; twice {
				w.t.Fatalf("node %s is in two groups", name)
			}
			d.Scores[name] = s
		}
	}
}

// unjudged reports whether Berth says that it cannot judge the pod.
func (w *world) unjudged(id cluster.PodID) bool {
	return w.state.Class(w.state.Pod(id).Class).Spec.Unsupported != ""
}

// enter puts a pending pod in Berth's ledger. kube-scheduler's cache holds none.
func (w *world) enter(pod *v1.Pod) cluster.PodID { return w.tell(pod, true) }

func (w *world) leave(id cluster.PodID) { w.apply(cluster.PodRemoved{ID: id}) }
