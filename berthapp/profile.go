package berthapp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/events"
	"k8s.io/dynamic-resource-allocation/resourceslice/tracker"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultbinder"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/queuesort"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	"k8s.io/kubernetes/pkg/scheduler/util/assumecache"

	"github.com/berth-scheduler/berth/internal/placeserver"
)

// loaded is a configuration, and how the API server is reached.
type loaded struct {
	*config.KubeSchedulerConfiguration
	rest   *restclient.Config
	client kubernetes.Interface
}

// load reads a configuration as kube-scheduler does, with the arguments of plugins by what these have registered in its scheme.
func (p *plugins) load(file, kubeconfig string) (*loaded, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	cfg, err := decode(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	rest, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	c := cfg.ClientConnection
	rest.AcceptContentTypes, rest.ContentType, rest.QPS, rest.Burst = c.AcceptContentTypes, c.ContentType, c.QPS, int(c.Burst)
	client, err := kubernetes.NewForConfig(restclient.AddUserAgent(restclient.CopyConfig(rest), "berth-plugins"))
	if err != nil {
		return nil, err
	}
	return &loaded{cfg, rest, client}, nil
}

func decode(data []byte) (*config.KubeSchedulerConfiguration, error) {
	object, version, err := scheme.Codecs.UniversalDecoder().Decode(data, nil, nil)
	if err != nil {
		return nil, err
	}
	cfg, ok := object.(*config.KubeSchedulerConfiguration)
	if !ok {
		return nil, fmt.Errorf("want a KubeSchedulerConfiguration, got %s", version)
	}
	return cfg, nil
}

// stripped returns a profile with those plugins alone that are compiled in, and what no framework does without. All their scores weigh 1: Berth weighs them.
func (p *plugins) stripped(full *config.KubeSchedulerProfile) *config.KubeSchedulerProfile {
	out := full.DeepCopy()
	for _, set := range pluginSets(out.Plugins) {
		sorts := set == &out.Plugins.QueueSort && len(set.Enabled) > 0
		set.Enabled = slices.DeleteFunc(set.Enabled, func(e config.Plugin) bool {
			return p.registry[e.Name] == nil && e.Name != queuesort.Name && e.Name != defaultbinder.Name // plugin services have others
		})
		if sorts && len(set.Enabled) == 0 { // a service does
			set.Enabled = []config.Plugin{{Name: queuesort.Name}}
		}
		for k := range set.Enabled {
			set.Enabled[k].Weight = 0
		}
	}
	isBinder := func(e config.Plugin) bool { return e.Name == defaultbinder.Name }
	if !slices.ContainsFunc(out.Plugins.Bind.Enabled, isBinder) { // services may be all that bind
		out.Plugins.Bind.Enabled = append(out.Plugins.Bind.Enabled, config.Plugin{Name: defaultbinder.Name})
	}
	return out
}

// uses reports whether a profile that is stripped uses plugins that are compiled in.
func (p *plugins) uses(stripped *config.KubeSchedulerProfile) bool {
	return slices.ContainsFunc(pluginSets(stripped.Plugins), func(set *config.PluginSet) bool {
		return slices.ContainsFunc(set.Enabled, func(e config.Plugin) bool { return p.registry[e.Name] != nil })
	})
}

func pluginSets(p *config.Plugins) []*config.PluginSet {
	return []*config.PluginSet{
		&p.PreEnqueue, &p.QueueSort, &p.PreFilter, &p.Filter, &p.PostFilter, &p.PreScore, &p.Score, &p.Reserve, &p.Permit, &p.PreBind, &p.Bind, &p.PostBind,
		&p.PlacementGenerate, &p.PlacementScore, &p.MultiPoint,
	}
}

// pointsOf returns the points of a plugin, in the words of a profile.
func pointsOf(plugin fwk.Plugin) []string {
	points := []string{}
	add := func(is bool, point string) {
		if is {
			points = append(points, point)
		}
	}
	_, is := plugin.(fwk.PreEnqueuePlugin)
	add(is, "preEnqueue")
	_, is = plugin.(fwk.QueueSortPlugin)
	add(is, "queueSort")
	_, is = plugin.(fwk.PreFilterPlugin)
	add(is, "preFilter")
	_, is = plugin.(fwk.FilterPlugin)
	add(is, "filter")
	_, is = plugin.(fwk.PostFilterPlugin)
	add(is, "postFilter")
	_, is = plugin.(fwk.PreScorePlugin)
	add(is, "preScore")
	_, is = plugin.(fwk.ScorePlugin)
	add(is, "score")
	_, is = plugin.(fwk.ReservePlugin)
	add(is, "reserve")
	_, is = plugin.(fwk.PermitPlugin)
	add(is, "permit")
	_, is = plugin.(fwk.PreBindPlugin)
	add(is, "preBind")
	_, is = plugin.(fwk.BindPlugin)
	add(is, "bind")
	_, is = plugin.(fwk.PostBindPlugin)
	add(is, "postBind")
	_, is = plugin.(fwk.PlacementGeneratePlugin)
	add(is, "placementGenerate")
	_, is = plugin.(fwk.PlacementScorePlugin)
	add(is, "placementScore")
	return points
}

// profile is a profile whose plugins run: kube-scheduler's own framework with them, and what it shows them of the cluster.
type profile struct {
	names     []string // of plugins that are compiled in and have been made, sorted
	made      map[string]fwk.Plugin
	nameOf    map[string]string   // of those that call themselves otherwise than the configuration, what that calls them
	points    map[string][]string // of each of names, in the words of a profile
	framework framework.Framework
	filters   []*filterPlugin // in the order in which the framework has them
	scorers   []*scorePlugin  // likewise
	signs     bool            // what plugins say of nodes may be kept, for pods that all of them sign
	now       func() time.Time
	shown     shown
	pods      *podStore
	nodes     corelisters.NodeLister // nil: no plugin takes a step, or says which pods may be tried
	permits   bool                   // some plugin does
	tell      teller
	hints     *hints
	cycle     chan struct{}          // who has put something in runs what belongs to a scheduling cycle
	judged    atomic.Pointer[judged] // last
	end       func()                 // and waits
}

func (p *profile) close() { p.end() }

// enterCycle waits until no other scheduling cycle is under way, and returns what ends this one. Those who take steps outside of cycles may see what plugins are shown change meanwhile, as in
// kube-scheduler.
func (p *profile) enterCycle(ctx context.Context) (leave func(), err error) {
	select {
	case p.cycle <- struct{}{}:
		return func() { <-p.cycle }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// judge notes in which state a pod is judged. takeJudged returns that if it was the last that was, nil otherwise, and for nobody else: between a pod's verdicts and its first step no other one is judged.
func (p *profile) judge(uid types.UID, state fwk.CycleState, saw *view) {
	p.judged.Store(&judged{uid, state, saw})
}

func (p *profile) takeJudged(uid types.UID) fwk.CycleState {
	if last := p.judged.Load(); last != nil && last.uid == uid && p.judged.CompareAndSwap(last, nil) {
		p.shown.Store(last.saw) // a stream of steps may have begun meanwhile
		if last.saw.closed.Load() {
			p.outdated()
		}
		return last.state
	}
	return nil
}

// refresh has plugins see what the API server has told if there is nothing newer that Berth has decided: placements that stand are told before anybody is judged. It belongs to a cycle.
func (p *profile) refresh(ctx context.Context) error {
	was := p.shown.Load()
	if !was.ended || p.nodes == nil {
		return nil
	}
	w, err := newWorld(ctx, p, 0)
	if err != nil {
		return err
	}
	defer w.end()
	nodes, err := p.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, n := range nodes {
		w.images.set(n.Name, n)
		w.cache.AddNode(w.logger, n)
	}
	for _, pod := range p.pods.placed() {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := w.cache.AddPod(w.logger, pod); err != nil {
			return err
		}
	}
	if err := w.snap(); err != nil {
		return err
	}
	p.shown.CompareAndSwap(was, w.view()) // until a stream of steps begins
	return nil
}

// outdated has plugins see something newer at the next step, or when somebody judges.
func (p *profile) outdated() {
	was := p.shown.Load()
	p.shown.CompareAndSwap(was, &view{was.SharedLister, was.groups, true, was.closed})
}

// Activate has Berth try pods now, whatever they wait for. It is what a Handle has.
func (p *profile) Activate(_ klog.Logger, pods map[string]*v1.Pod) {
	uids := make([]string, 0, len(pods))
	for _, pod := range pods {
		if pod != nil {
			uids = append(uids, string(pod.UID))
		}
	}
	p.tell.Activate(uids...)
}

// called returns what the configuration calls a plugin.
func (p *profile) called(name, otherwise string) string {
	if name == "" {
		name = otherwise
	}
	if called, ok := p.nameOf[name]; ok {
		return called
	}
	return name
}

// shown is what the plugins see of the cluster: the view of the stream whose turn it is, or was last.
type shown struct{ atomic.Pointer[view] }

// view is what a world shows.
type view struct {
	fwk.SharedLister
	groups fwk.PodGroupManager
	ended  bool         // there may be something newer
	closed *atomic.Bool // the world is
}

// NodeInfos are the nodes.
func (s *shown) NodeInfos() fwk.NodeInfoLister { return s.Load().NodeInfos() }

// StorageInfos are what is known of claims.
func (s *shown) StorageInfos() fwk.StorageInfoLister { return s.Load().StorageInfos() }

// PodGroupStates are those of the pods that are told.
func (s *shown) PodGroupStates() fwk.PodGroupStateLister { return s.Load().groups.PodGroupStates() }

// start makes the plugins of a profile, and has them read what they want to know of the cluster. Tell hears which pods they want tried; they have timeout to say so.
func (p *plugins) start(ctx context.Context, cfg *loaded, schedulerName string, tell teller, timeout time.Duration) (*profile, error) {
	at := slices.IndexFunc(cfg.Profiles, func(p config.KubeSchedulerProfile) bool { return p.SchedulerName == schedulerName })
	if at < 0 {
		return nil, fmt.Errorf("there is no profile with the scheduler name %q", schedulerName)
	}
	m := p.newMaker(ctx, cfg)
	m.tell, m.timeout = tell, timeout
	profile, err := m.make(p.stripped(&cfg.Profiles[at]))
	if err != nil {
		m.end()
		return nil, err
	}
	if err := m.run(); err != nil {
		m.end()
		return nil, err
	}
	profile.end, profile.signs = m.end, p.signs(cfg, &cfg.Profiles[at])
	return profile, nil
}

// newProfile makes the plugins of a profile, and returns those that could be made, by name.
func (p *plugins) newProfile(ctx context.Context, cfg *loaded, stripped *config.KubeSchedulerProfile) (map[string]fwk.Plugin, error) {
	m := p.newMaker(ctx, cfg)
	defer m.end()
	_, err := m.make(stripped)
	return m.made, err
}

// measuresEvery is how often what kube-scheduler measures of plugins is counted together: it is how long the end of that takes, too.
const measuresEvery = 100 * time.Millisecond

// maker makes the plugins of a profile.
type maker struct {
	plugins *plugins
	cfg     *loaded
	made    map[string]fwk.Plugin

	tell      teller
	timeout   time.Duration
	ctx       context.Context
	cancel    context.CancelFunc
	informers informers.SharedInformerFactory
	hints     *hints
	running   sync.WaitGroup
	custom    struct{ start, end func() } // the same of resources that Kubernetes' client knows nothing of
	recorder  events.EventBroadcaster
	pods      *podStore
	measures  *metrics.MetricAsyncRecorder
	framework framework.Framework
}

func (p *plugins) newMaker(ctx context.Context, cfg *loaded) *maker {
	m := &maker{
		plugins: p, cfg: cfg, made: make(map[string]fwk.Plugin), tell: new(placeserver.Server),
	}
	m.custom.start, m.custom.end = func() {}, func() {}
	m.ctx, m.cancel = context.WithCancel(ctx)
	m.informers = scheduler.NewInformerFactory(cfg.client, 0)
	m.measures = metrics.NewMetricsAsyncRecorder(1000, measuresEvery, m.ctx.Done())
	m.recorder = events.NewBroadcaster(&events.EventSinkImpl{Interface: cfg.client.EventsV1()})
	return m
}

// make makes the framework of a profile, with a Handle that has all that kube-scheduler's has.
func (m *maker) make(stripped *config.KubeSchedulerProfile) (*profile, error) {
	metrics.Register()
	var err error
	if m.pods, err = newPodStore(m.informers.Core().V1().Pods().Informer()); err != nil {
		return nil, err
	}
	registry := frameworkruntime.Registry{queuesort.Name: queuesort.New, defaultbinder.Name: defaultbinder.New}
	for name, factory := range m.plugins.registry {
		registry[name] = func(ctx context.Context, args apiruntime.Object, h fwk.Handle) (fwk.Plugin, error) {
			plugin, err := factory(ctx, args, h)
			if err == nil && plugin == nil {
				err = errors.New("there is none")
			}
			if err == nil {
				m.made[name] = plugin
			}
			return plugin, err
		}
	}
	resources, err := noResources(m.ctx, m.cfg.client)
	if err != nil {
		return nil, err
	}
	p := &profile{nameOf: make(map[string]string), points: make(map[string][]string), pods: m.pods, tell: m.tell, cycle: make(chan struct{}, 1), now: time.Now}
	nobody, err := newWorld(m.ctx, p, 0)
	if err != nil {
		return nil, err
	}
	nobody.show()
	nobody.close()
	p.framework, err = frameworkruntime.NewFramework(m.ctx, registry, stripped,
		frameworkruntime.WithComponentConfigVersion(m.cfg.APIVersion), frameworkruntime.WithClientSet(m.cfg.client), frameworkruntime.WithKubeConfig(m.cfg.rest),
		frameworkruntime.WithEventRecorder(m.recorder.NewRecorder(scheme.Scheme, stripped.SchedulerName)), frameworkruntime.WithInformerFactory(m.informers),
		frameworkruntime.WithSharedDRAManager(resources),
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(m.informers.Storage().V1().CSINodes().Lister())),
		frameworkruntime.WithSnapshotSharedLister(&p.shown), frameworkruntime.WithPodGroupManager(&p.shown), frameworkruntime.WithParallelism(int(m.cfg.Parallelism)),
		frameworkruntime.WithMetricsRecorder(m.measures), frameworkruntime.WithPodNominator(nobodyElse{}), frameworkruntime.WithPodActivator(p),
		frameworkruntime.WithWaitingPods(frameworkruntime.NewWaitingPodsMap()), frameworkruntime.WithPodsInPreBind(frameworkruntime.NewPodsInPreBindMap()),
	)
	if err != nil {
		return nil, err
	}
	m.framework, p.made = p.framework, m.made
	for _, name := range slices.Sorted(maps.Keys(m.made)) {
		plugin := m.made[name]
		if other, ok := p.nameOf[plugin.Name()]; ok {
			return nil, fmt.Errorf("the plugins %q and %q both call themselves %q: want different names", other, name, plugin.Name())
		}
		p.names = append(p.names, name)
		p.nameOf[plugin.Name()], p.points[name] = name, pointsOf(plugin)
	}
	for _, is := range p.framework.ListPlugins().Filter.Enabled {
		p.filters = append(p.filters, m.filterPlugin(m.made[p.nameOf[is.Name]].(fwk.FilterPlugin), stripped.SchedulerName))
	}
	for _, is := range p.framework.ListPlugins().Score.Enabled {
		p.scorers = append(p.scorers, m.scorePlugin(m.made[p.nameOf[is.Name]].(fwk.ScorePlugin), stripped.SchedulerName))
	}
	register := sets.New[string]()
	for _, plugin := range m.made {
		if _, ok := plugin.(fwk.EnqueueExtensions); ok {
			register.Insert(plugin.Name())
		}
	}
	for _, plugin := range p.framework.PreEnqueuePlugins() {
		register.Insert(plugin.Name())
	}
	custom, start, end := customInformers(m.ctx, m.cfg.rest)
	m.custom.start, m.custom.end = start, end
	if p.hints, err = newHints(m.ctx, p.framework.EnqueueExtensions(), register, m.informers.Core().V1().Pods().Informer().GetIndexer(), informersOf{m.informers, custom}); err != nil {
		return nil, err
	}
	m.pods.hear = cache.ResourceEventHandlerFuncs{AddFunc: p.hints.podAdded, UpdateFunc: p.hints.podChanged, DeleteFunc: p.hints.podGone}
	p.hints.tell, p.hints.timeout, m.hints = m.tell, m.timeout, p.hints
	slices.Sort(p.names)
	p.permits = len(p.framework.ListPlugins().Permit.Enabled) > 0
	for _, points := range p.points {
		if slices.ContainsFunc(points, func(point string) bool { return slices.Contains(slices.Collect(maps.Values(stepPoints)), point) }) {
			p.nodes = m.informers.Core().V1().Nodes().Lister()
		}
	}
	return p, nil
}

// noResources is what plugins see of dynamic resources: nothing. Berth knows nothing of these, and places no pod that has claims to some.
func noResources(ctx context.Context, client kubernetes.Interface) (fwk.SharedDRAManager, error) {
	empty := informers.NewSharedInformerFactory(nil, 0) // never started
	claims := assumecache.NewAssumeCache(klog.FromContext(ctx), empty.Resource().V1().ResourceClaims().Informer(), "ResourceClaim", "", nil)
	slices, err := tracker.StartTracker(ctx, tracker.Options{SliceInformer: empty.Resource().V1().ResourceSlices(), KubeClient: client})
	if err != nil {
		return nil, fmt.Errorf("make what plugins see of resource slices: %w", err)
	}
	return dynamicresources.NewDRAManager(ctx, claims, slices, empty), nil
}

// run has the informers of the plugins read the cluster.
func (m *maker) run() error {
	m.recorder.StartRecordingToSink(m.ctx.Done())
	m.informers.Start(m.ctx.Done())
	m.running.Go(func() { m.hints.run(m.ctx) })
	m.custom.start() // there may be no such resource yet: nobody waits for it
	for kind, synced := range m.informers.WaitForCacheSync(m.ctx.Done()) {
		if !synced {
			return fmt.Errorf("read the cluster: %v: %w", kind, context.Cause(m.ctx))
		}
	}
	return m.pods.ready(m.ctx)
}

func (m *maker) end() {
	m.cancel()
	if m.framework != nil {
		_ = m.framework.Close()
	}
	<-m.measures.IsStoppedCh
	m.recorder.Shutdown()
	m.informers.Shutdown()
	m.custom.end()
	m.running.Wait()
}

// nobodyElse is what a Handle has for what Berth's queue does, which tells plugins nothing: no pod is nominated.
type nobodyElse struct{}

// AddNominatedPod does nothing.
func (nobodyElse) AddNominatedPod(klog.Logger, fwk.PodInfo, *fwk.NominatingInfo) {}

// DeleteNominatedPodIfExists does nothing.
func (nobodyElse) DeleteNominatedPodIfExists(*v1.Pod) {}

// UpdateNominatedPod does nothing.
func (nobodyElse) UpdateNominatedPod(klog.Logger, *v1.Pod, fwk.PodInfo) {}

// NominatedPodsForNode returns nothing.
func (nobodyElse) NominatedPodsForNode(string) []fwk.PodInfo { return nil }
