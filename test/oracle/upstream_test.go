package oracle

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	"pgregory.net/rapid"
)

// upstream is kube-scheduler as far as it decides: its cache and, per scheduler name, its framework with its plugins.
type upstream struct {
	ctx        context.Context
	logger     klog.Logger
	cache      internalcache.Cache
	lister     *snapshotLister
	frameworks map[string]*profile
}

// profile is one of kube-scheduler's profiles.
type profile struct {
	framework.Framework
	plugins map[string]fwk.Plugin
	scoring sets.Set[string] // the score plugins
}

// snapshotLister shows the plugins the snapshot of the current cycle.
type snapshotLister struct{ fwk.SharedLister }

// noDRA is a cluster without dynamic resources: no device class stands for an extended resource.
type noDRA struct{ fwk.SharedDRAManager }

func (noDRA) DeviceClassResolver() fwk.DeviceClassResolver           { return noDRA{} }
func (noDRA) GetDeviceClass(v1.ResourceName) *resourcev1.DeviceClass { return nil }

// initMetrics makes the metrics that the framework writes to; kube-scheduler keeps them in globals.
var initMetrics = sync.OnceFunc(metrics.InitMetrics)

func newUpstream(t *rapid.T, profiles []config.KubeSchedulerProfile) *upstream {
	initMetrics()
	ctx, cancel := context.WithCancel(context.Background())
	u := &upstream{
		ctx: ctx, logger: klog.FromContext(ctx), lister: &snapshotLister{}, frameworks: make(map[string]*profile),
		cache: internalcache.New(ctx, nil, false),
	}
	for i := range profiles {
		u.frameworks[profiles[i].SchedulerName] = u.newProfile(t, &profiles[i])
	}
	t.Cleanup(cancel)
	return u
}

// newProfile builds the framework of a profile and keeps hold of its plugins, whose raw scores the framework hides.
func (u *upstream) newProfile(t *rapid.T, cfg *config.KubeSchedulerProfile) *profile {
	p := &profile{plugins: make(map[string]fwk.Plugin), scoring: sets.New(scorers...)}
	for _, disabled := range cfg.Plugins.Score.Disabled {
		p.scoring.Delete(disabled.Name)
	}
	registry := plugins.NewInTreeRegistry()
	for name, factory := range registry {
		registry[name] = func(ctx context.Context, args runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
			plugin, err := factory(ctx, args, h)
			p.plugins[name] = plugin
			return plugin, err
		}
	}
	f, err := frameworkruntime.NewFramework(u.ctx, registry, cfg,
		frameworkruntime.WithSnapshotSharedLister(u.lister), frameworkruntime.WithSharedDRAManager(noDRA{}))
	if err != nil {
		t.Fatalf("build kube-scheduler's framework: %v", err)
	}
	p.Framework = f
	return p
}

// judge runs a pod's scheduling cycle, as far as the choice of its node, over all nodes.
func (u *upstream) judge(t *rapid.T, pod *v1.Pod) *decision {
	d := newDecision()
	snapshot := internalcache.NewEmptySnapshot()
	if err := u.cache.UpdateSnapshot(u.logger, snapshot); err != nil {
		t.Fatalf("update kube-scheduler's snapshot: %v", err)
	}
	u.lister.SharedLister = snapshot
	nodes, err := snapshot.NodeInfos().List()
	if err != nil {
		t.Fatalf("list kube-scheduler's nodes: %v", err)
	}
	if len(nodes) == 0 {
		d.Message = scheduler.ErrNoNodesAvailable.Error()
		return d
	}
	p := u.frameworks[pod.Spec.SchedulerName]
	state := framework.NewCycleState()
	diagnosis := framework.Diagnosis{NodeToStatus: framework.NewDefaultNodeToStatus()}
	feasible := u.filter(t, p, state, pod, nodes, &diagnosis)
	diagnosis.NodeToStatus.ForEachExplicitNode(func(node string, s *fwk.Status) { d.reject(t, node, s) })
	for _, n := range nodes {
		if name := n.Node().Name; !slices.ContainsFunc(feasible, func(f fwk.NodeInfo) bool { return f == n }) {
			d.reject(t, name, diagnosis.NodeToStatus.Get(name))
		}
	}
	if len(feasible) == 0 {
		d.Message = (&framework.FitError{Pod: pod, NumAllNodes: len(nodes), Diagnosis: diagnosis}).Error()
		return d
	}
	u.score(p, state, pod, feasible, d)
	return d
}

// filter returns the feasible nodes and notes the status of the others, which is also told for those that a
// PreFilter plugin has set aside.
func (u *upstream) filter(t *rapid.T, p *profile, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo, diagnosis *framework.Diagnosis) []fwk.NodeInfo {
	narrowed, status, narrowing := p.RunPreFilterPlugins(u.ctx, state, pod)
	if !status.IsSuccess() {
		if !status.IsRejected() {
			t.Fatalf("kube-scheduler's PreFilter: %v", status.AsError())
		}
		diagnosis.NodeToStatus.SetAbsentNodesStatus(status)
		diagnosis.PreFilterMsg = status.Message()
		return nil
	}
	if !narrowed.AllNodes() {
		by := sets.List(narrowing)
		reason := fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", by)
		aside := fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reason).WithPlugin(strings.Join(by, " "))
		diagnosis.NodeToStatus.SetAbsentNodesStatus(aside)
		nodes = slices.DeleteFunc(slices.Clone(nodes), func(n fwk.NodeInfo) bool { return !narrowed.NodeNames.Has(n.Node().Name) })
	}
	var feasible []fwk.NodeInfo
	for _, n := range nodes {
		if s := p.RunFilterPlugins(u.ctx, state, pod, n); s.IsSuccess() {
			feasible = append(feasible, n)
		} else {
			diagnosis.NodeToStatus.Set(n.Node().Name, s)
		}
	}
	return feasible
}

// score fills the scores of the feasible nodes, or the error that kube-scheduler fails the cycle with.
func (u *upstream) score(p *profile, state fwk.CycleState, pod *v1.Pod, feasible []fwk.NodeInfo, d *decision) {
	if s := p.RunPreScorePlugins(u.ctx, state, pod, feasible); !s.IsSuccess() {
		d.scoreError = s.AsError()
		return
	}
	scores, s := p.RunScorePlugins(u.ctx, state, pod, feasible)
	if !s.IsSuccess() {
		d.scoreError = s.AsError()
		return
	}
	for i, node := range scores {
		out := score{Weighted: make(map[string]int64), Total: node.TotalScore}
		for _, s := range node.Scores {
			out.Weighted[s.Name] = s.Score
		}
		raw := func(name string) int64 {
			if !p.scoring.Has(name) || state.GetSkipScorePlugins().Has(name) {
				return 0
			}
			value, _ := p.plugins[name].(fwk.ScorePlugin).Score(u.ctx, state, pod, feasible[i])
			return value
		}
		out.RawTaints, out.RawAffinity = raw(names.TaintToleration), raw(names.NodeAffinity)
		if p.scoring.Has(names.NodeAffinity) {
			out.Weighted[names.NodeAffinity] += 0 // skipped without preferred terms, which is a score of 0
		}
		d.Scores[node.Name] = out
	}
}

// decision is what a scheduler makes of one pod on one cluster.
type decision struct {
	Verdicts map[string]verdict // by node, of those that are not feasible
	Scores   map[string]score   // by feasible node
	Counts   map[string]int     // nodes by reason
	Message  string             // of the pod's condition; "" if a node is feasible

	scoreError error // of kube-scheduler: there are no scores
}

// verdict is why a node is not feasible.
type verdict struct {
	Plugin       string
	Unresolvable bool     // UnschedulableAndUnresolvable
	Reasons      []string // sorted
}

// score is what a node is worth.
type score struct {
	RawTaints, RawAffinity int64
	Weighted               map[string]int64 // by plugin that scores the pod
	Total                  int64
}

func newDecision() *decision {
	return &decision{Verdicts: make(map[string]verdict), Scores: make(map[string]score), Counts: make(map[string]int)}
}

func (d *decision) reject(t *rapid.T, node string, s *fwk.Status) {
	if !s.IsRejected() || s.IsSuccess() {
		t.Fatalf("kube-scheduler's status of node %s: %v", node, s)
	}
	if _, again := d.Verdicts[node]; again {
		return
	}
	v := verdict{Plugin: s.Plugin(), Unresolvable: s.Code() == fwk.UnschedulableAndUnresolvable, Reasons: slices.Sorted(slices.Values(s.Reasons()))}
	d.Verdicts[node] = v
	for _, r := range v.Reasons {
		d.Counts[r]++
	}
}

// feasible returns the feasible nodes, whether or not they have scores.
func (d *decision) feasible(nodes []string) []string {
	return slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { _, not := d.Verdicts[n]; return not })
}

// best returns the nodes of the largest total.
func (d *decision) best() []string {
	top := int64(-1)
	for _, s := range d.Scores {
		top = max(top, s.Total)
	}
	return slices.DeleteFunc(slices.Sorted(maps.Keys(d.Scores)), func(n string) bool { return d.Scores[n].Total != top })
}
