package oracle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	kubeconfigv1 "k8s.io/kubernetes/pkg/scheduler/apis/config/v1"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	kubepreemption "k8s.io/kubernetes/pkg/scheduler/framework/preemption"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/extender"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
)

// whim is an extender that leaves of a preemption what the names of pods and nodes say: all of a node, none of it, nothing at all, fewer victims, others besides, in another order, with
// another number of violations; seldom a node that it was not told of, a pod that is not there, or a node without victims.
type whim struct {
	seed uint64

	mu    sync.Mutex
	on    map[string][]*v1.Pod // that there were when the round began, by node
	first map[string]string    // the first question by a scheduler, about a pod, at a place
	by    string               // which scheduler asks
}

func (w *whim) chance(n uint32, of ...string) uint32 {
	h := fnv.New32a()
	_, _ = fmt.Fprint(h, w.seed, of)
	return h.Sum32() >> 7 % n
}

func (w *whim) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	var args extenderv1.ExtenderPreemptionArgs
	if err := json.Unmarshal(body, &args); err != nil {
		panic(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	question := fmt.Sprint(w.by, r.URL.Path, " ", args.Pod.Name)
	if _, asked := w.first[question]; !asked {
		w.first[question] = string(body)
	}
	told := args.NodeNameToMetaVictims
	if args.NodeNameToVictims != nil {
		told = make(map[string]*extenderv1.MetaVictims)
		for node, victims := range args.NodeNameToVictims {
			told[node] = &extenderv1.MetaVictims{NumPDBViolations: victims.NumPDBViolations}
			for _, p := range victims.Pods {
				told[node].Pods = append(told[node].Pods, &extenderv1.MetaPod{UID: string(p.UID)})
			}
		}
	}
	answer := make(map[string]*extenderv1.MetaVictims)
	if w.chance(8, r.URL.Path, args.Pod.Name) == 0 {
		told = nil // it leaves none
	}
	for _, node := range slices.Sorted(maps.Keys(w.on)) {
		if told == nil {
			break
		}
		chance := func(n uint32, what string) uint32 { return w.chance(n, r.URL.Path, args.Pod.Name, node, what) }
		victims, is := told[node]
		pods := w.on[node]
		switch {
		case is && chance(4, "leaves out") == 0, !is && chance(8, "adds") > 0, !is && len(pods) == 0:
			continue
		case !is:
			victims = &extenderv1.MetaVictims{Pods: []*extenderv1.MetaPod{{UID: string(pods[0].UID)}}}
		}
		switch chance(8, "victims") {
		case 0:
			slices.Reverse(victims.Pods)
		case 1:
			victims.Pods = victims.Pods[1:]
			if len(victims.Pods) == 0 && chance(4, "none") > 0 {
				continue
			}
		case 2:
			if len(pods) == 0 {
				break
			}
			if uid := string(pods[len(pods)-1].UID); !slices.ContainsFunc(victims.Pods, func(p *extenderv1.MetaPod) bool { return p.UID == uid }) {
				victims.Pods = append(victims.Pods, &extenderv1.MetaPod{UID: uid}) // who may be gone by then
			}
		case 3:
			victims.NumPDBViolations = int64(chance(3, "violations"))
		case 4:
			if chance(8, "unknown") == 0 {
				victims.Pods = append(victims.Pods, &extenderv1.MetaPod{UID: "unknown"})
			}
		}
		answer[node] = victims
	}
	encode(out, extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: answer})
}

// round begins one: who asks, and what there is.
func (w *whim) round(by string, on map[string][]*v1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.by, w.on = by, on
}

// anyNode is a node that an extender says something wrong of: kube-scheduler tells of any of them.
var anyNode = regexp.MustCompile(`node:? "?n[0-9]"?`)

// becomes is what becomes of a preemptor.
type becomes struct {
	Evicted []string
	On      string // the node that it is on
	Text    string // why it is on none
}

// preemptFully is what kube-scheduler makes of a pod: it is tried, and others are evicted for it, until it has a node, or nobody goes for it.
func preemptFully(t *testing.T, extenders []config.Extender, nodes []*v1.Node, on map[string][]*v1.Pod, pod *v1.Pod) (out becomes) {
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.New(&totals{})))
	defer cancel()
	profile := defaultProfile(t)
	s, err := scheduler.New(ctx, nil, scheduler.NewInformerFactory(nil, 0), nil, func(string) events.EventRecorderLogger { return &events.FakeRecorder{} },
		scheduler.WithProfiles(profile), scheduler.WithParallelism(1), scheduler.WithExtenders(extenders...))
	if err != nil {
		t.Fatal(err)
	}
	f, logger := s.Profiles[profile.SchedulerName], klog.FromContext(ctx)
	for _, n := range nodes {
		s.Cache.AddNode(logger, n)
		for _, p := range on[n.Name] {
			if err := s.Cache.AddPod(logger, p); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 20 {
		if err := s.Cache.UpdateSnapshot(logger, f.SnapshotSharedLister().(*internalcache.Snapshot)); err != nil {
			t.Fatal(err)
		}
		info, err := framework.NewPodInfo(pod)
		if err != nil {
			t.Fatal(err)
		}
		state := framework.NewCycleState()
		result, err := s.SchedulePod(ctx, f, state, &framework.QueuedPodInfo{PodInfo: info})
		misfit, is := errors.AsType[*framework.FitError](err)
		switch {
		case err == nil:
			out.On = result.SuggestedHost
			slices.Sort(out.Evicted)
			return out
		case !is:
			t.Fatal(err)
		}
		h := &handle{f, s.Extenders}
		plugin, err := defaultpreemption.New(ctx, &config.DefaultPreemptionArgs{MinCandidateNodesPercentage: 10, MinCandidateNodesAbsolute: 100}, h, feature.Features{})
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		gone := make(map[string]*v1.Pod)
		plugin.Executor.PreemptPod = func(_ context.Context, _ kubepreemption.Candidate, _ kubepreemption.ExecutorPreemptor, victim *v1.Pod, _ string) error {
			mu.Lock()
			defer mu.Unlock()
			gone[victim.Name] = victim
			return nil
		}
		pods := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
		if err := pods.Add(pod); err != nil {
			t.Fatal(err)
		}
		plugin.Evaluator.PodLister, plugin.Evaluator.PdbLister = corelisters.NewPodLister(pods), nil
		post, status := plugin.PostFilter(ctx, state, pod, misfit.Diagnosis.NodeToStatus)
		if len(gone) == 0 {
			if misfit.Diagnosis.PostFilterMsg = status.Message(); status.Code() != fwk.Error { // DynamicResources is asked before
				misfit.Diagnosis.PostFilterMsg = "no new claims to deallocate, " + status.Message()
			}
			out.Text = misfit.Error()
			slices.Sort(out.Evicted)
			return out
		}
		for name, victim := range gone {
			out.Evicted = append(out.Evicted, name)
			if err := s.Cache.RemovePod(logger, victim); err != nil {
				t.Fatal(err)
			}
		}
		pod = pod.DeepCopy()
		pod.Status.NominatedNodeName = post.NominatedNodeName
	}
	t.Fatal("kube-scheduler preempts for ever")
	return out
}

// TestPreemptionsWithExtendersAreKubeSchedulers has a whole Berth and kube-scheduler, with the same extenders, make room for the same pods: who is evicted in the end, where the pod
// is, or what is said of it, and what extenders are asked first, to the byte. No two pods have the same priority, so that nothing is left to chance.
func TestPreemptionsWithExtendersAreKubeSchedulers(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	w := &whim{seed: seed, first: make(map[string]string)}
	server := httptest.NewServer(w)
	defer server.Close()
	of := func(place, resource string) configv1.Extender {
		return configv1.Extender{
			URLPrefix: server.URL + place, PreemptVerb: "preempt", HTTPTimeout: metav1.Duration{Duration: time.Minute},
			ManagedResources: []configv1.ExtenderManagedResource{{Name: resource, IgnoredByScheduler: true}},
		}
	}
	extenders := []configv1.Extender{of("/a", "example.com/a"), of("/b", "example.com/b")}
	extenders[0].NodeCacheCapable, extenders[1].Ignorable = true, true
	set, err := extender.New(extender.Config{Extenders: extenders})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	initMetrics()
	theirs := make([]config.Extender, len(extenders))
	for i := range extenders {
		if err := kubeconfigv1.Convert_v1_Extender_To_config_Extender(&extenders[i], &theirs[i], nil); err != nil {
			t.Fatal(err)
		}
	}
	profile := engine.DefaultProfile(defaultProfile(t).SchedulerName)
	profile.IgnoredResources = extender.IgnoredResources(extenders)
	p := startPipeline(t, startEtcd(t), "/extenderpreemptions/", cluster.Settings{Shards: 2, Seed: 1, Profiles: []cluster.Profile{profile}},
		crew{queues: 1, filters: 2, scores: 1, batch: 16, extenders: set})
	var nodes []*v1.Node
	for i := range 7 {
		n := plain(fmt.Sprintf("n%d", i), 1)
		n.Status.Allocatable["cpu"] = resource.MustParse("3")
		nodes = append(nodes, n)
		p.source.setNode(n)
	}
	priorities := random.Perm(1_000_000)
	with := func(name string, milliCPU int, priority int32, resources ...string) *v1.Pod {
		pod := named(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}}, name)
		pod.Spec.SchedulerName, pod.Spec.Priority = profile.SchedulerName, &priority
		requests := v1.ResourceList{"cpu": resource.MustParse(fmt.Sprintf("%dm", milliCPU))}
		for _, r := range resources {
			requests[v1.ResourceName(r)] = resource.MustParse("1")
		}
		pod.Spec.Containers = []v1.Container{{Name: "c", Image: "app:1", Resources: v1.ResourceRequirements{Requests: requests}}}
		return pod
	}
	met := make(situations)
	for round := range 150 {
		// 1. The same cluster for both: nodes that are full, with pods of which some are of a higher priority than the one that comes.
		on := make(map[string][]*v1.Pod)
		var all []*v1.Pod
		for i, n := range nodes {
			for k := range 3 + random.IntN(2) {
				pod := with(fmt.Sprintf("r%d-n%d-%d", round, i, k), 1000, int32(priorities[0]))
				if k > 2 {
					pod = with(pod.Name, 0, int32(priorities[0])) // who is never in the way
				}
				priorities = priorities[1:]
				pod = onNode(pod, n.Name, v1.PodStatus{Phase: v1.PodRunning, StartTime: &metav1.Time{Time: time.Unix(int64(1_000_000+random.IntN(1_000_000)), 0)}})
				on[n.Name], all = append(on[n.Name], pod), append(all, pod)
			}
		}
		resources := [][]string{{"example.com/a"}, {"example.com/b"}, {"example.com/a", "example.com/b"}, nil}[random.IntN(4)]
		preemptor := with(fmt.Sprintf("r%d-preemptor", round), 1000*(1+random.IntN(2)), 500_000+int32(random.IntN(700_000)), resources...)
		w.round("kube-scheduler", on)
		want := preemptFully(t, theirs, nodes, on, preemptor)
		// 2. Berth.
		w.round("Berth", on)
		for _, pod := range all {
			p.source.setPod(pod, nil)
		}
		p.await(t, "Berth to know the pods", p.settled)
		p.source.setPod(preemptor, nil)
		p.await(t, preemptor.Name+" to be bound or unschedulable", func() error {
			version := p.binder.Version()
			if err := p.settled(); err != nil {
				return err
			}
			held := false // while its victims are evicted, though all that is told of them is known
			if err := p.follows[0].Read(t.Context(), cluster.Version{}, func(st *cluster.State) error {
				if id, is := st.PodByUID(string(preemptor.UID)); is {
					held = st.Pod(id).Preempting
				}
				return nil
			}); err != nil || held {
				return fmt.Errorf("it is held back: %v, %v", held, err)
			}
			if p.binder.Version() != version {
				return fmt.Errorf("something has happened since version %v", version)
			}
			return nil
		})
		var got becomes
		p.source.mu.Lock()
		got.On = p.source.last(string(preemptor.UID)).Spec.NodeName
		for _, pod := range all {
			if p.source.gone[string(pod.UID)] {
				got.Evicted = append(got.Evicted, pod.Name)
			}
		}
		p.source.mu.Unlock()
		slices.Sort(got.Evicted)
		if page, err := p.queues[0].ListPending(t.Context(), &queuev1.ListPendingRequest{PageSize: 10}); err != nil {
			t.Fatal(err)
		} else if pods := page.GetPods(); len(pods) > 0 {
			got.Text = pods[0].GetMessage()
		}
		want.Text, got.Text = anyNode.ReplaceAllString(want.Text, "node ANY"), anyNode.ReplaceAllString(got.Text, "node ANY")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("round %d, %v (-kube-scheduler +Berth):\n%s", round, resources, diff)
		}
		for _, e := range []string{"/a", "/b"} {
			question := e + "/preempt " + preemptor.Name
			w.mu.Lock()
			diff := cmp.Diff(w.first["kube-scheduler"+question], w.first["Berth"+question])
			w.mu.Unlock()
			if diff != "" {
				t.Fatalf("round %d: the first question at %s (-kube-scheduler +Berth):\n%s", round, e, diff)
			}
		}
		switch {
		case len(resources) == 0:
			met["nobody is asked"]++
		case strings.Contains(want.Text, "no candidate node"):
			met["none is left"]++
		case strings.Contains(want.Text, "preemption: extender: "), strings.Contains(want.Text, "preemption: expected at least"):
			met["one fails"]++
		case want.On != "" && len(want.Evicted) > 2:
			met["more go than one"]++
		case want.On != "":
			met["evicted"]++
		}
		// 3. The next round has other pods.
		for _, pod := range append(all, preemptor) {
			p.source.mu.Lock()
			gone := p.source.gone[string(pod.UID)]
			p.source.mu.Unlock()
			if !gone {
				p.source.removePod(pod)
			}
		}
	}
	t.Logf("met: %v", map[string]int(met))
	for _, name := range []string{"nobody is asked", "none is left", "one fails", "more go than one", "evicted"} {
		if met[name] == 0 {
			t.Errorf("there was no case of %q", name)
		}
	}
}
