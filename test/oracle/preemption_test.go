package oracle

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	kubepreemption "k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	"k8s.io/kubernetes/pkg/scheduler/util"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// preemption is what a scheduler can do for a pod that fits nowhere by evicting others.
type preemption struct {
	Ineligible string             // why the pod may not preempt now
	Candidates map[string]victims // by node
	Counts     map[string]int     // the other nodes, by reason
	Text       string             // of FailedScheduling, to its end

	failed    error                     // that kube-scheduler has met: what it has found is not all that there is
	evaluator *kubepreemption.Evaluator // kube-scheduler's
	choices   []kubepreemption.Candidate
	order     []string // Berth's: the candidates, best first
}

// victims are the pods that would have to go from a node.
type victims struct {
	Pods       []string // names, the most important first
	Violations int      // how many of them a PodDisruptionBudget protects
}

func newPreemption() *preemption {
	return &preemption{Candidates: make(map[string]victims), Counts: make(map[string]int)}
}

// preempts reports whether a pod is one for which schedulers look for victims: it waits for a node.
func preempts(pod *v1.Pod) bool { return pod.Spec.NodeName == "" && len(pod.Spec.SchedulingGates) == 0 }

// preempt asks kube-scheduler's PostFilter plugins about a pod that fits nowhere. Where there are candidates it does not
// go on to evict anything.
func (u *upstream) preempt(p *profile, state fwk.CycleState, pod *v1.Pod, fit *framework.FitError) *preemption {
	out := newPreemption()
	if plugin, ok := p.plugins[names.DefaultPreemption].(*defaultpreemption.DefaultPreemption); ok && p.preempts {
		statuses := fit.Diagnosis.NodeToStatus
		if ok, why := plugin.PodEligibleToPreemptOthers(u.ctx, pod, statuses.Get(pod.Status.NominatedNodeName)); ok {
			u.dryRun(plugin.Evaluator, state, pod, statuses, out)
		} else {
			out.Ineligible = why
		}
	}
	if len(out.Candidates) == 0 && p.HasPostFilterPlugins() {
		if fit.Diagnosis.PreFilterMsg != "" {
			// What would say "not found" otherwise; see the package's comment.
			p.plugins[names.DynamicResources].(fwk.PreFilterPlugin).PreFilter(u.ctx, state, pod, nil)
		}
		_, status := p.RunPostFilterPlugins(u.ctx, state, pod, fit.Diagnosis.NodeToStatus)
		fit.Diagnosis.PostFilterMsg = status.Message()
	}
	out.Text = fit.Error()
	return out
}

// dryRun finds all candidates, as Evaluator.Preempt does if it is told to look at every node.
func (u *upstream) dryRun(evaluator *kubepreemption.Evaluator, state fwk.CycleState, pod *v1.Pod, statuses *framework.NodeToStatus, out *preemption) {
	nodes := u.lister.NodeInfos()
	potential, err := statuses.NodesForStatusCode(nodes, fwk.Unschedulable)
	u.must("find nodes to preempt on", err)
	all, err := nodes.List()
	u.must("list nodes", err)
	budgets, err := u.informers.Policy().V1().PodDisruptionBudgets().Lister().List(labels.Everything())
	u.must("list budgets", err)
	choices, why, err := evaluator.DryRunPreemption(u.ctx, state, pod, potential, budgets, 0, int32(len(potential)))
	out.failed = err
	why.ForEachExplicitNode(func(_ string, s *fwk.Status) {
		for _, reason := range s.Reasons() {
			out.Counts[reason]++
		}
	})
	if rest := len(all) - len(potential); rest > 0 {
		out.Counts[engine.ReasonNotHelpful] += rest
	}
	out.evaluator, out.choices = evaluator, choices
	for _, c := range choices {
		v := victims{Violations: int(c.Victims().NumPDBViolations)}
		for _, pod := range c.Victims().Pods {
			v.Pods = append(v.Pods, pod.Name)
		}
		out.Candidates[c.Name()] = v
	}
}

// victimsOn returns whom kube-scheduler would evict from a node for a pod, whatever it makes of other nodes.
func (u *upstream) victimsOn(pod *v1.Pod, name string) victims {
	p, state := u.frameworks[pod.Spec.SchedulerName], framework.NewCycleState()
	plugin := p.plugins[names.DefaultPreemption].(*defaultpreemption.DefaultPreemption)
	u.snapshot()
	node, err := u.lister.NodeInfos().Get(name)
	u.must("find the node", err)
	if _, status, _ := p.RunPreFilterPlugins(u.ctx, state, pod); !status.IsSuccess() {
		return victims{}
	}
	statuses := framework.NewDefaultNodeToStatus()
	if status := p.RunFilterPluginsWithNominatedPods(u.ctx, state, pod, node); !status.IsSuccess() {
		statuses.Set(name, status)
	}
	out := newPreemption()
	u.dryRun(plugin.Evaluator, state, pod, statuses, out)
	return out.Candidates[name]
}

// moreImportant is kube-scheduler's order of victims. Equally important ones, which it takes as its sorting leaves them,
// are taken in the order of Berth's ids.
func (u *upstream) moreImportant(a, b *v1.Pod) bool {
	if a.Status.StartTime.Equal(b.Status.StartTime) && corev1helpers.PodPriority(a) == corev1helpers.PodPriority(b) {
		return u.podID(a) < u.podID(b)
	}
	return util.MoreImportantPod(a, b)
}

// misorders returns why kube-scheduler would not prefer candidates in Berth's order, "" if it could: what its criteria
// leave equal it leaves to chance.
func (p *preemption) misorders(order []string) string {
	choice := func(name string) kubepreemption.Candidate {
		return p.choices[slices.IndexFunc(p.choices, func(c kubepreemption.Candidate) bool { return c.Name() == name })]
	}
	for k := 1; k < len(order); k++ {
		first, second := choice(order[k-1]), choice(order[k])
		if !p.prefers(first, second) {
			return fmt.Sprintf("Berth prefers to preempt on %s, kube-scheduler on %s: %v", first.Name(), second.Name(), p.Candidates)
		}
	}
	return ""
}

// prefers reports whether kube-scheduler can choose one of two candidates. It chooses at random between equal ones.
func (p *preemption) prefers(a, b kubepreemption.Candidate) bool {
	const tries = 100
	pair := []kubepreemption.Candidate{a, b}
	for range tries {
		if p.evaluator.SelectCandidate(context.Background(), pair).Name() == a.Name() {
			return true
		}
		slices.Reverse(pair) // which of the two comes first in a map is not even chance
	}
	return false
}

// preempt is what Berth can do for a pending pod that fits nowhere; fit is the text so far.
func (w *world) preempt(id cluster.PodID, ranges []cluster.Range, fit string) *preemption {
	out := newPreemption()
	profile := w.state.Profile(w.state.Class(w.state.Pod(id).Class).Spec.SchedulerName)
	says, ok := w.evaluator.Preempts(w.state, id)
	if ok {
		run := w.dryRun(id, ranges)
		for _, v := range run.Verdicts {
			out.Counts[v.Reason] += int(v.Count)
		}
		for _, c := range run.Candidates {
			v := victims{Violations: int(c.Violations)}
			for _, pod := range c.Victims {
				v.Pods = append(v.Pods, w.state.Pod(pod).Name)
			}
			name := w.state.Nodes.Spec[c.Node].Name
			out.Candidates[name] = v
			out.order = append(out.order, name)
		}
		says = engine.PreemptionMessage(int(run.Nodes), run.Verdicts)
	} else {
		out.Ineligible = says
	}
	out.Text = fit
	if said := engine.PostFilterMessage(profile, says, nil); said != "" && len(out.Candidates) == 0 {
		out.Text += " " + said
	}
	return out
}

// dryRun asks range by range and merges, as a queue shard does, and checks that the ranges do not matter.
func (w *world) dryRun(id cluster.PodID, ranges []cluster.Range) engine.DryRun {
	everything := w.state.Nodes.Len() + 1
	whole := w.dryRunOn(id, cluster.Range{First: 0, End: cluster.MaxIndex}, everything)
	var merged engine.DryRun
	for _, r := range ranges {
		run := w.dryRunOn(id, r, everything)
		merged.Nodes += run.Nodes
		merged.Count += run.Count
		merged.Candidates = append(merged.Candidates, run.Candidates...)
		merged.Verdicts = engine.MergeVerdicts(merged.Verdicts, run.Verdicts)
	}
	slices.SortFunc(merged.Candidates, func(a, b engine.Preemption) int { return a.Compare(&b, w.state.Settings.Seed) })
	if diff := cmp.Diff(whole, merged, cmpopts.EquateEmpty()); diff != "" {
		w.breaks("a dry run over %v is not the same as over all nodes:\n%s", ranges, diff)
	}
	best := w.dryRunOn(id, cluster.Range{First: 0, End: cluster.MaxIndex}, 1)
	if !cmp.Equal(best.Candidates, whole.Candidates[:min(1, len(whole.Candidates))], cmpopts.EquateEmpty()) || best.Count != whole.Count {
		w.breaks("the best candidate is %+v of %d, alone it is %+v of %d", whole.Candidates, whole.Count, best.Candidates, best.Count)
	}
	for i := range cluster.NodeIndex(w.state.Nodes.Len()) {
		k := slices.IndexFunc(whole.Candidates, func(c engine.Preemption) bool { return c.Node == i })
		alone, ok := w.evaluator.DryRunNode(w.state, id, i)
		if ok != (k >= 0) || ok && !cmp.Equal(alone, whole.Candidates[k]) {
			w.breaks("node %d alone: %+v, %v, candidates are %+v", i, alone, ok, whole.Candidates)
		}
	}
	return whole
}

func (w *world) dryRunOn(id cluster.PodID, r cluster.Range, limit int) engine.DryRun {
	run, ok := w.evaluator.DryRun(w.state, id, r, limit)
	if !ok {
		w.breaks("DryRun does not know pod %d", id)
	}
	return run
}
