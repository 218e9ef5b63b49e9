package oracle

import (
	"fmt"
	"slices"

	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// drawRanges cuts all node indexes into ranges, as they are cut over workers.
func (w *world) drawRanges() []cluster.Range {
	words := (w.state.Nodes.Len() + 63) / 64
	return cluster.Ranges(w.state.Nodes.Len(), rapid.IntRange(1, max(words, 1)).Draw(w.t, "ranges"), 0)
}

// answer is what the workers say of a subject, merged.
type answer struct {
	nodes, feasible int
	eligible        cluster.Bitmap
	verdicts        []engine.VerdictCount
	groups          []engine.Group
}

// ask asks about a subject range by range and merges, as a queue shard does. Up to limit nodes of each group are listed,
// by each worker and merged, but for those that a short worker leaves out, and for one that has refused the pod.
func (w *world) ask(subject engine.Subject, ranges []cluster.Range, limit int, short bool, refused cluster.NodeIndex) answer {
	a := answer{eligible: make(cluster.Bitmap, (w.state.Nodes.Len()+63)/64)}
	var parts [][]engine.Group
	for _, r := range ranges {
		f, ok := w.evaluator.Filter(w.state, subject, r)
		if !ok {
			w.breaks("Filter does not know %+v", subject)
		}
		copy(a.eligible[r.First/64:], f.Eligible)
		a.nodes += int(f.Nodes)
		a.feasible += int(f.FeasibleCount)
		a.verdicts = engine.MergeVerdicts(a.verdicts, f.Verdicts)
		listed := limit
		if short {
			listed = rapid.IntRange(1, limit).Draw(w.t, "listed")
		}
		if refused >= r.First && refused < r.End {
			f.Eligible.Clear(refused - r.First)
		}
		groups, ok := w.evaluator.Score(w.state, subject, r, f.Eligible, listed)
		if !ok {
			w.breaks("Score does not know %+v", subject)
		}
		parts = append(parts, groups)
	}
	a.groups = engine.MergeGroups(engine.TieSeed(w.state, subject.Class), limit, parts...)
	return a
}

// judge is Berth's decision about a pending pod of its ledger.
func (w *world) judge(id cluster.PodID, ranges []cluster.Range) *decision {
	w.judged = w.pending[id]
	row := w.state.Pod(id)
	subject := engine.SubjectOf(&row.Pod)
	d := newDecision()
	nominated := w.state.Nodes.ByName(row.Nominated)
	if nominated != cluster.NoNode && w.explain(subject, id, nominated).Reasons == nil {
		d.Nominated = row.Nominated
	}
	if row.RequiredNode != "" {
		w.judgeRequired(d, id, row, ranges)
		return d
	}
	if w.evaluator.FailsAsNominated(w.state, id) != nil {
		for i := range cluster.NodeIndex(w.state.Nodes.Len()) {
			if w.state.Nodes.Live.Has(i) {
				d.Verdicts[w.state.Nodes.Spec[i].Name] = w.explain(subject, id, nominated)
			}
		}
		return d
	}
	a := w.ask(subject, ranges, w.state.Nodes.Len()+1, false, cluster.NoNode)
	for i := range cluster.NodeIndex(w.state.Nodes.Len()) {
		if !w.state.Nodes.Live.Has(i) {
			continue
		}
		name := w.state.Nodes.Spec[i].Name
		if v := w.explain(subject, id, i); v.Reasons != nil {
			d.Verdicts[name] = v
		}
		if v := w.explain(subject, cluster.NoPod, i); v.Reasons != nil {
			a.feasible++
		} else if !a.eligible.Has(i) {
			w.breaks("Filter says that node %s is not eligible, Node that it is feasible", name)
		}
	}
	if a.feasible != a.nodes {
		w.breaks("Filter and Node count %d nodes, feasible or not, of %d", a.feasible, a.nodes)
	}
	answers := engine.Answers{Nodes: a.nodes, Seen: a.nodes, Everywhere: a.verdicts}
	if nominated != cluster.NoNode {
		itself, _ := w.evaluator.Node(w.state, subject, id, nominated)
		others, _ := w.evaluator.Node(w.state, subject, cluster.NoPod, nominated)
		answers.Nominated = &engine.Nominated{
			Itself: w.evaluator.Explain(w.state, subject, itself, nominated), Others: w.evaluator.Explain(w.state, subject, others, nominated),
		}
		d.unscored = itself.Feasible() && !others.Feasible()
	}
	nodes, verdicts := answers.Unschedulable()
	w.finish(d, id, ranges, nodes, verdicts)
	d.groups = a.groups
	refused := w.evaluator.RefusedAsNominated(w.state, id)
	if refused != cluster.NoNode {
		a = w.ask(subject, ranges, w.state.Nodes.Len()+1, false, refused)
	}
	w.addScores(d, subject, a.groups, refused)
	return d
}

// misplaces says what is wrong with where a commit would place a pod, of which that is known, by kube-scheduler's decision; "" if nothing is.
func (w *world) misplaces(id cluster.PodID, got, want *decision) string {
	subject := engine.SubjectOf(&w.state.Pod(id).Pod)
	placer := engine.NewPlacer(w.evaluator, w.state, w.state.Version().Seq, []engine.Candidates{{Subject: subject, Groups: got.groups}})
	node, placement := placer.Choose(id, 0)
	switch feasible := want.feasible(w.nodeNames()); {
	case placement == engine.Placed:
		return want.refuses(w.state.Nodes.Spec[node].Name, w.nodeNames())
	case placement == engine.Retry:
		return "Berth proves no choice though it knows all nodes as they are"
	case len(feasible) > 0:
		return fmt.Sprintf("Berth finds no node, kube-scheduler %v", feasible)
	}
	return ""
}

// judgeRequired judges a pod that may go to one node only, by name; its class does not know the name.
func (w *world) judgeRequired(d *decision, id cluster.PodID, row *cluster.PodRow, ranges []cluster.Range) {
	subject := engine.SubjectOf(&row.Pod)
	answers := engine.Answers{Nodes: w.state.Nodes.Count(), Required: true, Refused: w.evaluator.Refusal(w.state, subject)}
	for i := range cluster.NodeIndex(w.state.Nodes.Len()) {
		switch name := w.state.Nodes.Spec[i].Name; {
		case !w.state.Nodes.Live.Has(i):
		case answers.Refused != nil:
			d.Verdicts[name] = verdict{Plugin: answers.Refused.Plugin, Unresolvable: true, Reasons: []string{answers.Refused.Reason}}
		case name != row.RequiredNode:
			d.Verdicts[name] = verdict{Plugin: engine.NodeAffinity, Unresolvable: true, Reasons: []string{engine.ReasonNodeAffinityOutside}}
		default:
			v, _ := w.evaluator.Node(w.state, subject, id, i)
			answers.Known, answers.There = true, w.evaluator.Explain(w.state, subject, v, i)
			if !v.Feasible() {
				d.Verdicts[name] = w.explain(subject, id, i)
			}
		}
	}
	nodes, verdicts := answers.Unschedulable()
	w.finish(d, id, ranges, nodes, verdicts)
}

// explain returns why a pod of the subject does not fit a node.
func (w *world) explain(subject engine.Subject, self cluster.PodID, i cluster.NodeIndex) verdict {
	v, ok := w.evaluator.Node(w.state, subject, self, i)
	if !ok {
		w.breaks("no verdict for %+v on node %d", subject, i)
	}
	out := verdict{Unresolvable: v.Unresolvable()}
	for _, count := range w.evaluator.Explain(w.state, subject, v, i) {
		out.Plugin = count.Plugin
		out.Reasons = append(out.Reasons, count.Reason)
		if count.Unresolvable != out.Unresolvable || count.Count != 1 {
			w.breaks("verdict %#x is explained by %+v", v, count)
		}
	}
	if v.Feasible() != (out.Reasons == nil) {
		w.breaks("verdict %#x is explained by %q", v, out.Reasons)
	}
	slices.Sort(out.Reasons)
	return out
}

func (w *world) finish(d *decision, id cluster.PodID, ranges []cluster.Range, nodes int, verdicts []engine.VerdictCount) {
	for _, v := range verdicts {
		d.Counts[v.Reason] += int(v.Count)
	}
	if len(d.Verdicts) == nodes {
		d.Message = engine.FitMessage(nodes, verdicts)
		if nodes > 0 && preempts(w.pending[id]) {
			d.Preemption = w.preempt(id, ranges, d.Message)
		}
	}
}

// addScores reads the groups, which list every eligible node.
func (w *world) addScores(d *decision, subject engine.Subject, groups []engine.Group, refused cluster.NodeIndex) {
	profile := w.state.Profile(w.state.Class(subject.Class).Spec.SchedulerName)
	weight := make(map[string]int64)
	for _, p := range profile.Weights {
		weight[p.Name] = p.Weight
	}
	scores, ok := w.evaluator.Totals(w.state, subject, groups, refused)
	if !ok {
		w.breaks("Totals does not know the groups that Score has just told of %+v", subject)
	}
	for k, g := range groups {
		if int(g.Count) != len(g.Nodes) {
			w.breaks("group %+v has %d nodes and lists %d", g.Raw, g.Count, len(g.Nodes))
		}
		if !scores[k].Feasible {
			continue
		}
		for j, n := range g.Nodes {
			s := newScore(scores[k].Totals[j])
			put := func(plugin string, value int64) {
				if w, ok := weight[plugin]; ok && value != engine.NotScored {
					s.weigh(plugin, w*value)
				} else if !ok && value > 0 && plugin != engine.TaintToleration {
					s.weigh(plugin, value) // of a plugin that must not score
				}
			}
			for _, plugin := range []string{
				engine.TaintToleration, engine.NodeAffinity, names.PodTopologySpread, names.InterPodAffinity,
				engine.NodeResourcesFit, engine.NodeResourcesBalancedAllocation, engine.ImageLocality, engine.VolumeBinding,
			} {
				_, normalized := engine.ScoreOf(plugin, &g, j, &scores[k])
				put(plugin, normalized)
			}
			for _, plugin := range []string{engine.TaintToleration, engine.NodeAffinity, names.PodTopologySpread, names.InterPodAffinity} {
				raw, _ := engine.ScoreOf(plugin, &g, j, &scores[k])
				s.rate(plugin, raw)
			}
			name := w.state.Nodes.Spec[n.Node].Name
			if _, twice := d.Scores[name]; twice {
				w.breaks("node %s is in two groups", name)
			}
			d.Scores[name] = s
		}
	}
}

// breaks fails the test because Berth contradicts itself.
func (w *world) breaks(format string, args ...any) {
	w.broken = fmt.Sprintf(format, args...)
	w.fail(w.judged, "%s", w.broken)
}

// unjudged reports whether Berth says that it cannot judge the pod.
func (w *world) unjudged(id cluster.PodID) bool {
	return w.state.Class(w.state.Pod(id).Class).Spec.Unsupported != ""
}
