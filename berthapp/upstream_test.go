package berthapp

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	restclient "k8s.io/client-go/rest"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	inTree "k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultbinder"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/imagelocality"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/interpodaffinity"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodeaffinity"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/noderesources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/podtopologyspread"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/queuesort"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	"pgregory.net/rapid"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/placeserver"
)

// kube-scheduler's own plugins, as if others had written them: under names of their own.
type (
	myFit      struct{ *noderesources.Fit }
	myAffinity struct{ *nodeaffinity.NodeAffinity }
	mySpread   struct {
		*podtopologyspread.PodTopologySpread
	}
	myPods struct {
		*interpodaffinity.InterPodAffinity
	}
	myImages struct{ *imagelocality.ImageLocality }
)

func (myFit) Name() string      { return "My" + names.NodeResourcesFit }
func (myAffinity) Name() string { return "My" + names.NodeAffinity }
func (mySpread) Name() string   { return "My" + names.PodTopologySpread }
func (myPods) Name() string     { return "My" + names.InterPodAffinity }
func (myImages) Name() string   { return "My" + names.ImageLocality }

// hosted are the plugins that are compared, in the order in which they run.
var hosted = []string{names.NodeAffinity, names.NodeResourcesFit, names.PodTopologySpread, names.InterPodAffinity, names.ImageLocality}

// theirDefaults and noSpread are how kube-scheduler's plugins are configured: by default, and with no pod spread that does not say so. Only then does PodTopologySpread sign pods.
const (
	theirDefaults = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
	noSpread      = theirDefaults + "profiles: [{schedulerName: default-scheduler, pluginConfig: [{name: PodTopologySpread, args: {defaultingType: List}}]}]\n"
)

// mine returns kube-scheduler's plugins as compiled-in ones, with the arguments that they have in a configuration.
func mine(t failer, config string) *plugins {
	cfg, err := decode([]byte(config))
	if err != nil {
		t.Fatalf("decode: %v", err)
	}
	p := &plugins{registry: make(frameworkruntime.Registry)}
	registry := inTree.NewInTreeRegistry()
	for _, name := range hosted {
		args := argsOf(&cfg.Profiles[0], name)
		if err := p.add("My"+name, func(ctx context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
			plugin, err := registry[name](ctx, args, h)
			switch plugin := plugin.(type) {
			case *noderesources.Fit:
				return myFit{plugin}, err
			case *nodeaffinity.NodeAffinity:
				return myAffinity{plugin}, err
			case *podtopologyspread.PodTopologySpread:
				return mySpread{plugin}, err
			case *interpodaffinity.InterPodAffinity:
				return myPods{plugin}, err
			case *imagelocality.ImageLocality:
				return myImages{plugin}, err
			}
			return plugin, err
		}); err != nil {
			t.Fatalf("add: %v", err)
		}
	}
	return p
}

func argsOf(p *config.KubeSchedulerProfile, name string) runtime.Object {
	for _, c := range p.PluginConfig {
		if c.Name == name {
			return c.Args
		}
	}
	return nil
}

// failer is what a test and a random case have in common.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

const profileWithMine = `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
  plugins:
    multiPoint:
      enabled:
      - {name: MyNodeAffinity}
      - {name: MyNodeResourcesFit, weight: 7}
      - {name: MyPodTopologySpread}
      - {name: MyInterPodAffinity}
      - {name: MyImageLocality}
`

// scene is a cluster that changes, Berth's process with plugins, and what it has been told.
type scene struct {
	t        *rapid.T
	ctx      context.Context
	client   *fake.Clientset
	profile  *profile
	world    *world
	theirs   framework.Framework
	lister   *shown // theirs
	measures *metrics.MetricAsyncRecorder

	nodes map[int32]*v1.Node
	pods  map[types.UID]*v1.Pod // on nodes, with their nodes' names
	count int                   // of objects that there have been
	told  pluginv1.JudgeRequest
	kept  bool // some of what was said last was kept

	theirConfig string
}

func newScene(t *rapid.T) (*scene, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	s := &scene{t: t, ctx: ctx, client: fake.NewClientset(), nodes: make(map[int32]*v1.Node), pods: make(map[types.UID]*v1.Pod), lister: new(shown)}
	s.measures = metrics.NewMetricsAsyncRecorder(1000, 10*time.Millisecond, ctx.Done())
	cfg, err := decode([]byte(profileWithMine))
	if err != nil {
		t.Fatalf("decode: %v", err)
	}
	s.theirConfig = drawn(t, theirDefaults, noSpread, noSpread)
	if s.profile, err = mine(t, s.theirConfig).start(ctx, &loaded{cfg, &restclient.Config{}, s.client}, "default-scheduler", new(placeserver.Server), time.Hour); err != nil {
		t.Fatalf("start the plugins: %v", err)
	}
	// Informers list pods before they watch them: of one that goes between, this API server tells nobody.
	marker := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "marked", Name: "marker", UID: "marker"}}
	if _, err := s.client.CoreV1().Pods(marker.Namespace).Create(ctx, marker, metav1.CreateOptions{}); err != nil {
		t.Fatalf("%v", err)
	}
	if _, err := s.profile.pods.wait(ctx, []types.UID{marker.UID}); err != nil {
		t.Fatalf("%v", err)
	}
	if s.world, err = newWorld(ctx, s.profile, 10*time.Minute); err != nil {
		t.Fatalf("make a world: %v", err)
	}
	s.theirs = s.upstream()
	return s, func() {
		s.world.close()
		s.profile.close()
		cancel()
		<-s.measures.IsStoppedCh
	}
}

// upstream returns kube-scheduler's framework with the same plugins under their own names.
func (s *scene) upstream() framework.Framework {
	metrics.Register()
	cfg, err := decode([]byte(s.theirConfig))
	if err != nil {
		s.t.Fatalf("decode: %v", err)
	}
	profile := cfg.Profiles[0]
	profile.Plugins.MultiPoint.Enabled = slices.DeleteFunc(profile.Plugins.MultiPoint.Enabled, func(p config.Plugin) bool {
		return !slices.Contains(hosted, p.Name) && p.Name != queuesort.Name && p.Name != defaultbinder.Name
	})
	for k := range profile.Plugins.MultiPoint.Enabled {
		profile.Plugins.MultiPoint.Enabled[k].Weight = 1
	}
	informers := informers.NewSharedInformerFactory(s.client, 0)
	resources, err := noResources(s.ctx, s.client)
	if err != nil {
		s.t.Fatalf("%v", err)
	}
	f, err := frameworkruntime.NewFramework(s.ctx, inTree.NewInTreeRegistry(), &profile, frameworkruntime.WithInformerFactory(informers), frameworkruntime.WithSnapshotSharedLister(s.lister),
		frameworkruntime.WithSharedDRAManager(resources), frameworkruntime.WithPodNominator(nobodyElse{}),
		frameworkruntime.WithMetricsRecorder(s.measures))
	if err != nil {
		s.t.Fatalf("make kube-scheduler's framework: %v", err)
	}
	informers.Start(s.ctx.Done())
	informers.WaitForCacheSync(s.ctx.Done())
	return f
}

func drawn[T any](t *rapid.T, of ...T) T { return rapid.SampledFrom(of).Draw(t, "one of") }

func chance(t *rapid.T, percent int) bool { return rapid.IntRange(0, 99).Draw(t, "chance") < percent }

func (s *scene) name(prefix string) string {
	s.count++
	return fmt.Sprint(prefix, s.count)
}

func (s *scene) newNode(name string) *v1.Node {
	t := s.t
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name, "disk": drawn(t, "ssd", "hdd")}}}
	if chance(t, 85) {
		n.Labels[v1.LabelTopologyZone] = drawn(t, "a", "b", "c")
	}
	n.Status.Allocatable = v1.ResourceList{
		v1.ResourceCPU: *resource.NewMilliQuantity(int64(1000*rapid.IntRange(1, 8).Draw(t, "cpu")), resource.DecimalSI), v1.ResourceMemory: resource.MustParse(drawn(t, "2Gi", "8Gi", "32Gi")),
		v1.ResourcePods: resource.MustParse(drawn(t, "3", "110")),
	}
	for _, image := range []string{"one", "two", "three"} {
		if chance(t, 40) {
			n.Status.Images = append(n.Status.Images, v1.ContainerImage{Names: []string{"registry/" + image + ":1"}, SizeBytes: int64(rapid.IntRange(20, 900).Draw(t, "MiB")) << 20})
		}
	}
	return n
}

func (s *scene) newPod() *v1.Pod {
	t, name := s.t, s.name("p")
	selector := func() *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": drawn(t, "x", "y")}}
	}
	key := func() string { return drawn(t, v1.LabelTopologyZone, v1.LabelHostname) }
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: drawn(t, "default", "default", "default", "other"), UID: types.UID("uid-" + name), Labels: map[string]string{"app": drawn(t, "x", "y", "z")}},
		Spec: v1.PodSpec{SchedulerName: "default-scheduler", Containers: []v1.Container{{
			Name: "c", Image: "registry/" + drawn(t, "one", "two", "three") + ":1",
			Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(drawn(t, "0", "100m", "1", "3")), v1.ResourceMemory: resource.MustParse(drawn(t, "0", "1Gi", "4Gi"))}},
		}}},
	}
	affinity := &v1.Affinity{}
	if chance(t, 15) {
		p.Spec.NodeSelector = map[string]string{"disk": drawn(t, "ssd", "hdd")}
	}
	if chance(t, 5) {
		affinity.NodeAffinity = &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchFields: []v1.NodeSelectorRequirement{{Key: "metadata.name", Operator: v1.NodeSelectorOpIn, Values: []string{drawn(t, "n1", "n2", "nowhere")}}},
		}}}}
	} else if chance(t, 40) {
		prefer := func(key, value string) v1.PreferredSchedulingTerm {
			return v1.PreferredSchedulingTerm{
				Weight:     int32(rapid.IntRange(1, 100).Draw(t, "weight")),
				Preference: v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{Key: key, Operator: v1.NodeSelectorOpIn, Values: []string{value}}}},
			}
		}
		affinity.NodeAffinity = &v1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.PreferredSchedulingTerm{prefer("disk", "ssd"), prefer(v1.LabelTopologyZone, "a")}}
	}
	if chance(t, 30) {
		affinity.PodAntiAffinity = &v1.PodAntiAffinity{}
		if chance(t, 60) {
			affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = []v1.PodAffinityTerm{{LabelSelector: selector(), TopologyKey: key()}}
		}
		affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []v1.WeightedPodAffinityTerm{{Weight: 40, PodAffinityTerm: v1.PodAffinityTerm{LabelSelector: selector(), TopologyKey: key()}}}
	}
	if chance(t, 40) {
		affinity.PodAffinity = &v1.PodAffinity{}
		if chance(t, 25) {
			affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution = []v1.PodAffinityTerm{{LabelSelector: selector(), TopologyKey: key()}}
		}
		affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []v1.WeightedPodAffinityTerm{{Weight: 70, PodAffinityTerm: v1.PodAffinityTerm{LabelSelector: selector(), TopologyKey: key()}}}
	}
	p.Spec.Affinity = affinity
	for range rapid.IntRange(0, 3).Draw(t, "constraints") { // those that only score say more than 0 and 100 where three counts differ: they have to be many
		c := v1.TopologySpreadConstraint{TopologyKey: key(), MaxSkew: 1, WhenUnsatisfiable: drawn(t, v1.DoNotSchedule, v1.ScheduleAnyway, v1.ScheduleAnyway, v1.ScheduleAnyway), LabelSelector: selector()}
		if !slices.ContainsFunc(p.Spec.TopologySpreadConstraints, func(other v1.TopologySpreadConstraint) bool {
			return other.TopologyKey == c.TopologyKey && other.WhenUnsatisfiable == c.WhenUnsatisfiable
		}) {
			p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, c)
		}
	}
	if chance(t, 25) { // many nodes have to be left for that
		p.Spec.Affinity, p.Spec.NodeSelector = nil, nil
		p.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{TopologyKey: v1.LabelHostname, MaxSkew: 1, WhenUnsatisfiable: v1.ScheduleAnyway, LabelSelector: selector()}}
	}
	return p
}

// toldOf returns what is told of a node in the next request.
func (s *scene) toldOf(id int32) *pluginv1.Node {
	for _, n := range s.told.Nodes {
		if n.GetId() == id {
			return n
		}
	}
	n := &pluginv1.Node{Id: id}
	s.told.Nodes = append(s.told.Nodes, n)
	return n
}

func (s *scene) idOf(name string) int32 {
	for id, n := range s.nodes {
		if n.Name == name {
			return id
		}
	}
	s.t.Fatalf("there is no node %s", name)
	return 0
}

func (s *scene) setNode(id int32, n *v1.Node) {
	object, err := json.Marshal(n)
	if err != nil {
		s.t.Fatalf("%v", err)
	}
	s.nodes[id] = n
	s.toldOf(id).Spec = &pluginv1.NodeSpec{Name: n.Name, Object: object}
}

// step changes the cluster, and says so.
func (s *scene) step() {
	t := s.t
	ids := slices.Sorted(maps.Keys(s.nodes))
	what := drawn(t, "place", "place", "place", "assume", "assume", "leave", "relabel", "move", "node", "new node", "no node")
	if len(ids) == 0 {
		what = "new node"
	}
	switch what {
	case "place", "assume":
		id := drawn(t, ids...)
		p := s.newPod()
		there := p.DeepCopy()
		there.Spec.NodeName = s.nodes[id].Name
		if what == "place" {
			p = there
		}
		s.place(p, there, id)
	case "leave", "relabel", "move":
		uids := slices.Sorted(maps.Keys(s.pods))
		if len(uids) == 0 {
			return
		}
		p := s.pods[drawn(t, uids...)]
		n := s.toldOf(s.idOf(p.Spec.NodeName))
		if slices.ContainsFunc(n.Added, func(a *pluginv1.PlacedPod) bool { return a.GetUid() == string(p.UID) }) {
			return // it is told as it will be
		}
		n.Removed = append(n.Removed, string(p.UID))
		switch what {
		case "leave":
			delete(s.pods, p.UID)
			if err := s.client.CoreV1().Pods(p.Namespace).Delete(s.ctx, p.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatalf("%v", err)
			}
		case "relabel":
			p = p.DeepCopy()
			p.Labels = map[string]string{"app": drawn(t, "x", "y", "z")}
			s.pods[p.UID] = p
			if _, err := s.client.CoreV1().Pods(p.Namespace).Update(s.ctx, p, metav1.UpdateOptions{}); err != nil {
				t.Fatalf("%v", err)
			}
			s.awaitLabels(p)
			n.Added = append(n.Added, &pluginv1.PlacedPod{Uid: string(p.UID), Name: p.Name, Kind: 1})
		case "move": // it was given back, and has been placed again
			p = p.DeepCopy()
			to := drawn(t, ids...)
			p.Spec.NodeName = s.nodes[to].Name
			s.pods[p.UID] = p
			n = s.toldOf(to)
			n.Added = append(n.Added, &pluginv1.PlacedPod{Uid: string(p.UID), Name: p.Name, Kind: 1})
		}
	case "node":
		id := drawn(t, ids...)
		s.setNode(id, s.newNode(s.nodes[id].Name))
	case "new node":
		id := int32(0)
		for s.nodes[id] != nil {
			id++
		}
		if slices.Contains(s.told.ForgottenNodes, id) {
			return
		}
		s.setNode(id, s.newNode(s.name("n")))
	case "no node":
		id := drawn(t, ids...)
		if slices.ContainsFunc(s.told.Nodes, func(n *pluginv1.Node) bool { return n.GetId() == id }) {
			return
		}
		for uid, p := range s.pods {
			if p.Spec.NodeName == s.nodes[id].Name {
				delete(s.pods, uid)
			}
		}
		if chance(t, 50) { // its place is another's at once
			n := s.toldOf(id)
			for uid := range s.world.nodes[id].pods {
				n.Removed = append(n.Removed, string(uid))
			}
			s.setNode(id, s.newNode(s.name("n")))
			return
		}
		delete(s.nodes, id)
		s.told.ForgottenNodes = append(s.told.ForgottenNodes, id)
	}
}

// place has a pod be on a node; the API server has it as p.
func (s *scene) place(p, there *v1.Pod, node int32) {
	if _, err := s.client.CoreV1().Pods(p.Namespace).Create(s.ctx, p, metav1.CreateOptions{}); err != nil {
		s.t.Fatalf("%v", err)
	}
	s.pods[p.UID] = there
	n := s.toldOf(node)
	n.Added = append(n.Added, &pluginv1.PlacedPod{Uid: string(p.UID), Name: p.Name, Kind: 1})
}

// alike returns another pod like one.
func (s *scene) alike(p *v1.Pod) *v1.Pod {
	p = p.DeepCopy()
	p.Name = s.name("p")
	p.UID = types.UID("uid-" + p.Name)
	return p
}

// awaitLabels waits until the plugins are told of a pod's labels.
func (s *scene) awaitLabels(p *v1.Pod) {
	store := s.profile.pods
	for {
		store.mu.Lock()
		is, news := store.pods[p.UID], store.news
		store.mu.Unlock()
		if is != nil && is.Labels["app"] == p.Labels["app"] {
			return
		}
		<-news
	}
}

// said is what is said of a node.
type said struct {
	plugin, reason string
	unresolvable   bool
	scores         map[string]int64
}

func (s said) String() string {
	if s.plugin != "" {
		return fmt.Sprintf("%s: %s (unresolvable %t)", s.plugin, s.reason, s.unresolvable)
	}
	return fmt.Sprint(s.scores)
}

// ask returns what the process says of each node, by name, or the error.
func (s *scene) ask(pod *v1.Pod) (map[string]said, string) {
	t := s.t
	object, err := json.Marshal(pod)
	if err != nil {
		t.Fatalf("%v", err)
	}
	ids := slices.Sorted(maps.Keys(s.nodes))
	request := &s.told
	request.Id = s.world.last + 1
	request.Kinds = append(request.Kinds, &pluginv1.Kind{Id: 2, SchedulerName: "default-scheduler", Object: object})
	filters := []string{"MyNodeAffinity", "MyNodeResourcesFit", "MyPodTopologySpread", "MyInterPodAffinity"}
	half := len(ids) / 2
	request.Questions = []*pluginv1.Question{{Kind: 2, Filters: filters, Nodes: ids[:half]}, {Kind: 2, Filters: filters, Nodes: ids[half:]}}
	answer := func() []*pluginv1.Answer {
		t.Helper()
		response, err := s.world.answer(s.ctx, request)
		if err != nil {
			t.Fatalf("%v", err)
		}
		s.told = pluginv1.JudgeRequest{}
		return response.GetAnswers()
	}
	out := make(map[string]said)
	var left []int32
	s.kept = false
	for k, a := range answer() {
		s.kept = s.kept || a.GetKept()
		if a.GetError() != "" {
			return nil, a.GetError()
		}
		for i, id := range [][]int32{ids[:half], ids[half:]}[k] {
			if len(a.GetVerdicts()) == 0 || a.GetVerdicts()[i] == 0 {
				left = append(left, id)
				continue
			}
			r := a.GetRefusals()[a.GetVerdicts()[i]-1]
			out[s.nodes[id].Name] = said{plugin: r.GetPlugin(), reason: r.GetReason(), unresolvable: r.GetUnresolvable()}
		}
	}
	if len(left) == 0 {
		return out, ""
	}
	scorers := []string{"MyImageLocality", "MyNodeAffinity", "MyNodeResourcesFit", "MyPodTopologySpread", "MyInterPodAffinity"}
	request.Id, request.Questions = s.world.last+1, []*pluginv1.Question{{Kind: 2, Scores: scorers, Nodes: left}}
	a := answer()[0]
	if a.GetError() != "" {
		return nil, a.GetError()
	}
	for i, id := range left {
		of := said{scores: make(map[string]int64)}
		for k, name := range scorers {
			of.scores[name] = int64(a.GetScores()[k].GetScores()[i])
		}
		out[s.nodes[id].Name] = of
	}
	return out, ""
}

// want returns what kube-scheduler's framework says of each node.
func (s *scene) want(pod *v1.Pod) (map[string]said, string) {
	t := s.t
	snapshot := internalcache.NewSnapshot(slices.Collect(maps.Values(s.pods)), slices.Collect(maps.Values(s.nodes)))
	s.lister.Store(&view{SharedLister: snapshot})
	state := framework.NewCycleState()
	out := make(map[string]said)
	result, status, by := s.theirs.RunPreFilterPlugins(s.ctx, state, pod)
	refused := func(name string, status *fwk.Status, plugin string) {
		out[name] = said{plugin: "My" + plugin, reason: status.Message(), unresolvable: status.Code() == fwk.UnschedulableAndUnresolvable}
	}
	if !status.IsSuccess() && !status.IsRejected() {
		return nil, status.AsError().Error()
	}
	var left []fwk.NodeInfo
	for _, n := range s.nodes {
		node, err := snapshot.Get(n.Name)
		if err != nil {
			t.Fatalf("%v", err)
		}
		switch {
		case !status.IsSuccess():
			plugin := status.Plugin()
			if plugin == "" {
				plugin = by.UnsortedList()[0]
			}
			refused(n.Name, status, plugin)
		case !result.AllNodes() && !result.NodeNames.Has(n.Name):
			refused(n.Name, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("node(s) didn't satisfy plugin(s) [My%s]", by.UnsortedList()[0])), by.UnsortedList()[0])
		default:
			if verdict := s.theirs.RunFilterPluginsWithNominatedPods(s.ctx, state, pod, node); verdict.IsSuccess() {
				left = append(left, node)
			} else {
				refused(n.Name, verdict, verdict.Plugin())
			}
		}
	}
	if len(left) == 0 {
		return out, ""
	}
	if status := s.theirs.RunPreScorePlugins(s.ctx, state, pod, left); !status.IsSuccess() {
		return nil, status.AsError().Error()
	}
	scored, status := s.theirs.RunScorePlugins(s.ctx, state, pod, left)
	if !status.IsSuccess() {
		return nil, status.AsError().Error()
	}
	for i, node := range left {
		of := said{scores: map[string]int64{"MyImageLocality": 0, "MyNodeAffinity": 0, "MyNodeResourcesFit": 0, "MyPodTopologySpread": 0, "MyInterPodAffinity": 0}}
		for _, score := range scored[i].Scores {
			of.scores["My"+score.Name] = score.Score
		}
		out[node.Node().Name] = of
	}
	return out, ""
}

func TestPluginsSayWhatTheySayInKubeScheduler(t *testing.T) {
	refusedBy, scoredBy, kept := make(map[string]int), make(map[string]int), 0
	check := func(t *rapid.T) {
		s, end := newScene(t)
		defer end()
		now := time.Unix(1_000_000, 0)
		s.profile.now = func() time.Time { return now }
		for range rapid.IntRange(3, 10).Draw(t, "nodes") {
			id := int32(len(s.nodes))
			s.setNode(id, s.newNode(s.name("n")))
		}
		for range rapid.IntRange(2, 8).Draw(t, "questions") {
			for range rapid.IntRange(0, 16).Draw(t, "steps") {
				s.step()
			}
			if len(s.nodes) == 0 {
				continue
			}
			pod, alike := s.newPod(), 1
			if chance(t, 50) { // plugins sign it
				if pod.Spec.TopologySpreadConstraints, alike = nil, rapid.IntRange(2, 5).Draw(t, "pods alike"); pod.Spec.Affinity != nil {
					pod.Spec.Affinity.PodAffinity, pod.Spec.Affinity.PodAntiAffinity = nil, nil
				}
			}
			for k := range alike { // one behind the other: what is kept for those that are signed is what would be said anew
				if k > 0 {
					pod = s.alike(pod)
				} else {
					now = now.Add(keptFor + 1) // kube-scheduler would not look what the steps have changed elsewhere, either
				}
				got, gotErr := s.ask(pod)
				want, wantErr := s.want(pod)
				if gotErr != wantErr || len(got) != len(want) {
					t.Fatalf("error %q of %d nodes, want %q of %d", gotErr, len(got), wantErr, len(want))
				}
				for name, is := range got {
					if is.String() != want[name].String() {
						t.Fatalf("of %s: %v, want %v", name, is, want[name])
					}
					refusedBy[is.plugin]++
					for plugin, score := range is.scores {
						if score != 0 && score != 100 {
							scoredBy[plugin]++
						}
					}
				}
				if s.kept {
					kept++
				}
				var left []string
				for name, is := range got {
					if is.plugin == "" {
						left = append(left, name)
					}
				}
				if slices.Sort(left); len(left) == 0 {
					break
				}
				there := pod.DeepCopy()
				there.Spec.NodeName = drawn(t, left...)
				s.place(pod, there, s.idOf(there.Spec.NodeName))
				if chance(t, 20) { // a pod of another profile, say
					other := s.newPod()
					there := other.DeepCopy()
					there.Spec.NodeName = s.nodes[drawn(t, slices.Sorted(maps.Keys(s.nodes))...)].Name
					s.place(other, there, s.idOf(there.Spec.NodeName))
				}
			}
		}
	}
	missing := func() bool { // something that is to have been seen
		return slices.ContainsFunc(hosted, func(name string) bool {
			_, filters := inTreeFilters[name]
			return filters && refusedBy["My"+name] == 0 || scoredBy["My"+name] == 0
		})
	}
	for round := 0; round == 0 || round < 5 && missing(); round++ {
		rapid.Check(t, check)
	}
	for _, name := range hosted {
		if _, filters := inTreeFilters[name]; filters && refusedBy["My"+name] == 0 {
			t.Errorf("no node was refused by My%s: %v", name, refusedBy)
		}
		if scoredBy["My"+name] == 0 {
			t.Errorf("no node was scored by My%s, but 0 and 100: %v", name, scoredBy)
		}
	}
	if kept == 0 {
		t.Error("of no pod some was kept that was said of another one")
	}
	t.Logf("refusals %v, scores besides 0 and 100 %v, of %d pods some was kept", refusedBy, scoredBy, kept)
}

// inTreeFilters are those of hosted that filter.
var inTreeFilters = map[string]struct{}{names.NodeAffinity: {}, names.NodeResourcesFit: {}, names.PodTopologySpread: {}, names.InterPodAffinity: {}}
