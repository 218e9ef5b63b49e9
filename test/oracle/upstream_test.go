package oracle

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	internalqueue "k8s.io/kubernetes/pkg/scheduler/backend/queue"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// failer is what a test and a random case have in common.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
	Cleanup(func())
}

// upstream is kube-scheduler as far as it decides: its cache, its queue as far as that knows of nominations, what its
// informers tell the plugins and, per scheduler name, its framework with its plugins.
type upstream struct {
	t          failer
	ctx        context.Context
	logger     klog.Logger
	cache      internalcache.Cache
	lister     *snapshotLister
	informers  informers.SharedInformerFactory // never started: its stores are filled by hand
	queue      internalqueue.SchedulingQueue
	frameworks map[string]*profile
	podID      func(*v1.Pod) cluster.PodID // what Berth calls a pod
}

// profile is one of kube-scheduler's profiles.
type profile struct {
	framework.Framework
	plugins map[string]fwk.Plugin
	scoring sets.Set[string] // the score plugins
	// preempts says that DefaultPreemption runs at PostFilter.
	preempts bool
}

// snapshotLister shows the plugins the snapshot of the current cycle.
type snapshotLister struct{ fwk.SharedLister }

// nominator is the queue, once there is one: frameworks are made before it.
type nominator struct{ fwk.PodNominator }

// noDRA is a cluster without dynamic resources: no device class stands for an extended resource.
type noDRA struct{ fwk.SharedDRAManager }

func (noDRA) DeviceClassResolver() fwk.DeviceClassResolver           { return noDRA{} }
func (noDRA) GetDeviceClass(v1.ResourceName) *resourcev1.DeviceClass { return nil }

// initMetrics makes the metrics that the framework writes to; kube-scheduler keeps them in globals.
var initMetrics = sync.OnceFunc(metrics.InitMetrics)

func newUpstream(t failer, profiles []config.KubeSchedulerProfile, g gates) *upstream {
	initMetrics()
	ctx, cancel := context.WithCancel(context.Background())
	u := &upstream{
		t: t, ctx: ctx, logger: klog.FromContext(ctx), lister: &snapshotLister{}, frameworks: make(map[string]*profile),
		cache:     internalcache.New(ctx, nil, false),
		informers: informers.NewSharedInformerFactory(nil, 0),
	}
	nominations := &nominator{}
	gates := make(map[string]map[string]fwk.PreEnqueuePlugin)
	hints := make(internalqueue.QueueingHintMapPerProfile)
	for i := range profiles {
		p := u.newProfile(&profiles[i], g, nominations)
		u.frameworks[profiles[i].SchedulerName] = p
		gates[profiles[i].SchedulerName] = map[string]fwk.PreEnqueuePlugin{
			names.SchedulingGates: p.plugins[names.SchedulingGates].(fwk.PreEnqueuePlugin),
		}
		hints[profiles[i].SchedulerName] = make(internalqueue.QueueingHintMap)
	}
	less := u.frameworks[profiles[0].SchedulerName].QueueSortFunc()
	u.queue = internalqueue.NewSchedulingQueue(less, u.informers, internalqueue.WithPreEnqueuePluginMap(gates),
		internalqueue.WithQueueingHintMapPerProfile(hints))
	nominations.PodNominator = u.queue
	t.Cleanup(cancel)
	return u
}

// newProfile builds the framework of a profile and keeps hold of its plugins, whose raw scores the framework hides.
func (u *upstream) newProfile(cfg *config.KubeSchedulerProfile, g gates, nominations fwk.PodNominator) *profile {
	p := &profile{plugins: make(map[string]fwk.Plugin), scoring: sets.New(scorers...)}
	for _, disabled := range cfg.Plugins.Score.Disabled {
		p.scoring.Delete(disabled.Name)
	}
	registry := plugins.NewInTreeRegistry()
	g.register(registry)
	for name, factory := range registry {
		registry[name] = func(ctx context.Context, args runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
			plugin, err := factory(ctx, args, h)
			if binding, ok := plugin.(*volumebinding.VolumeBinding); ok {
				binding.Binder = inBerthsOrder{binding.Binder}
			}
			p.plugins[name] = plugin
			return plugin, err
		}
	}
	f, err := frameworkruntime.NewFramework(u.ctx, registry, g.upstream(cfg),
		frameworkruntime.WithSnapshotSharedLister(u.lister), frameworkruntime.WithSharedDRAManager(noDRA{}),
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(u.informers.Storage().V1().CSINodes().Lister())),
		frameworkruntime.WithInformerFactory(u.informers), frameworkruntime.WithPodNominator(nominations),
		frameworkruntime.WithParallelism(1))
	if err != nil {
		u.t.Fatalf("build kube-scheduler's framework: %v", err)
	}
	p.Framework = f
	if plugin, ok := p.plugins[names.DefaultPreemption].(*defaultpreemption.DefaultPreemption); ok {
		plugin.MoreImportantPod = u.moreImportant
	}
	p.preempts = slices.ContainsFunc(f.ListPlugins().PostFilter.Enabled, func(enabled config.Plugin) bool {
		return enabled.Name == names.DefaultPreemption
	})
	return p
}

// Stores of what the plugins read besides the cache.
func (u *upstream) namespaces() cache.Store {
	return u.informers.Core().V1().Namespaces().Informer().GetStore()
}
func (u *upstream) pending() cache.Store { return u.informers.Core().V1().Pods().Informer().GetStore() }
func (u *upstream) owners(kind string) cache.Store {
	switch kind {
	case cluster.KindService:
		return u.informers.Core().V1().Services().Informer().GetStore()
	case cluster.KindReplicationController:
		return u.informers.Core().V1().ReplicationControllers().Informer().GetStore()
	case cluster.KindReplicaSet:
		return u.informers.Apps().V1().ReplicaSets().Informer().GetStore()
	}
	return u.informers.Apps().V1().StatefulSets().Informer().GetStore()
}

// enqueue and dequeue tell the queue of a pod without a node, which it nominates if the pod's status says so.
func (u *upstream) enqueue(pod *v1.Pod) {
	u.must("add pod to the lister", u.pending().Add(pod))
	u.queue.Add(u.ctx, pod)
}

func (u *upstream) requeue(before, after *v1.Pod) {
	u.must("update pod in the lister", u.pending().Update(after))
	u.queue.Update(u.ctx, before, after)
}

func (u *upstream) dequeue(pod *v1.Pod) {
	u.queue.Delete(pod)
	u.must("delete pod from the lister", u.pending().Delete(pod))
}

// must fails the test if a part of kube-scheduler refuses what it is told.
func (u *upstream) must(what string, err error) {
	if err != nil {
		u.t.Helper()
		u.t.Fatalf("kube-scheduler: %s: %v", what, err)
	}
}

// snapshot shows the plugins the cluster as it is.
func (u *upstream) snapshot() {
	s := internalcache.NewEmptySnapshot()
	u.must("update the snapshot", u.cache.UpdateSnapshot(u.logger, s))
	u.lister.SharedLister = s
}

// judge runs a pod's scheduling cycle over all nodes, as far as the choice of its node or of its victims.
func (u *upstream) judge(pod *v1.Pod) *decision {
	d := newDecision()
	u.snapshot()
	nodes, err := u.lister.NodeInfos().List()
	u.must("list nodes", err)
	if len(nodes) == 0 {
		d.Message = scheduler.ErrNoNodesAvailable.Error()
		return d
	}
	p := u.frameworks[pod.Spec.SchedulerName]
	state := framework.NewCycleState()
	diagnosis := framework.Diagnosis{NodeToStatus: framework.NewDefaultNodeToStatus()}
	feasible := u.filter(p, state, pod, nodes, &diagnosis, d)
	if d.failed != nil {
		if d.Nominated != "" { // where it goes, whatever fails elsewhere
			d.volumes = chosen(state, slices.DeleteFunc(slices.Clone(nodes), func(n fwk.NodeInfo) bool { return n.Node().Name != d.Nominated }))
		}
		return d
	}
	d.supply(state, nodes, feasible)
	diagnosis.NodeToStatus.ForEachExplicitNode(func(node string, s *fwk.Status) { d.reject(u.t, node, s) })
	for _, n := range nodes {
		if name := n.Node().Name; !slices.ContainsFunc(feasible, func(f fwk.NodeInfo) bool { return f == n }) {
			d.reject(u.t, name, diagnosis.NodeToStatus.Get(name))
		}
	}
	if len(feasible) == 0 {
		fit := &framework.FitError{Pod: pod, NumAllNodes: len(nodes), Diagnosis: diagnosis}
		if d.Message = fit.Error(); preempts(pod) {
			d.Preemption = u.preempt(p, state, pod, fit)
			d.failed = d.Preemption.failed
		}
		return d
	}
	d.volumes = chosen(state, feasible)
	u.score(p, state, pod, feasible, d)
	return d
}

// filter returns the feasible nodes and notes the status of the others, which is also told for those that a
// PreFilter plugin has set aside. It goes on where kube-scheduler stops because the nominated node is feasible, and
// notes that.
func (u *upstream) filter(p *profile, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo, diagnosis *framework.Diagnosis, d *decision) []fwk.NodeInfo {
	narrowed, status, narrowing := p.RunPreFilterPlugins(u.ctx, state, pod)
	if !status.IsSuccess() {
		if !status.IsRejected() {
			d.failed = status.AsError()
			return nil
		}
		d.refusedBy = status.Plugin()
		diagnosis.NodeToStatus.SetAbsentNodesStatus(status)
		diagnosis.PreFilterMsg = status.Message()
		return nil
	}
	if nominated, err := u.lister.NodeInfos().Get(pod.Status.NominatedNodeName); err == nil {
		if s := p.RunFilterPluginsWithNominatedPods(u.ctx, state, pod, nominated); s.IsSuccess() {
			d.Nominated = nominated.Node().Name
		} else if s.IsRejected() {
			diagnosis.NodeToStatus.Set(nominated.Node().Name, s)
		}
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
		if s := p.RunFilterPluginsWithNominatedPods(u.ctx, state, pod, n); s.IsSuccess() {
			feasible = append(feasible, n)
		} else if !s.IsRejected() {
			d.failed = s.AsError()
			d.foreign = d.foreign || !u.failsAlone(p, state, pod, n, s.Plugin())
		} else {
			diagnosis.NodeToStatus.Set(n.Node().Name, s)
		}
	}
	return feasible
}

// failsAlone reports whether a plugin of kube-scheduler fails to judge a pod on a node where no other pod is: not one behind it.
func (u *upstream) failsAlone(p *profile, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo, plugin string) bool {
	alone := framework.NewNodeInfo()
	alone.SetNode(node.Node())
	s := p.RunFilterPlugins(u.ctx, state.Clone(), pod, alone)
	return !s.IsSuccess() && !s.IsRejected() && s.Plugin() == plugin
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
		out := newScore(node.TotalScore)
		for _, s := range node.Scores {
			out.weigh(s.Name, s.Score)
		}
		for _, name := range rated {
			if p.scoring.Has(name) && !state.GetSkipScorePlugins().Has(name) {
				value, s := p.plugins[name].(fwk.ScorePlugin).Score(u.ctx, state, pod, feasible[i])
				u.must("score with "+name, s.AsError())
				out.rate(name, value)
			}
		}
		d.Scores[node.Name] = out
	}
}
