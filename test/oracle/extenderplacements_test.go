package oracle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	kubeconfigv1 "k8s.io/kubernetes/pkg/scheduler/apis/config/v1"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/extender"
)

// chance is an extender that says of a pod and a node what their names say: of one in five that it does not go there, and any score of the others, some of which it
// names twice.
type chance struct{ seed string }

func (c chance) of(what, pod, node string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(c.seed + what + pod + node))
	return h.Sum32() >> 8
}

func (c chance) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var args extenderv1.ExtenderArgs
	if err := json.NewDecoder(r.Body).Decode(&args); err != nil {
		panic(err)
	}
	var nodes []string
	if args.NodeNames != nil {
		nodes = *args.NodeNames
	} else {
		for _, n := range args.Nodes.Items {
			nodes = append(nodes, n.Name)
		}
	}
	out := extenderv1.ExtenderFilterResult{NodeNames: &[]string{}, Nodes: new(v1.NodeList), FailedNodes: extenderv1.FailedNodesMap{}}
	scores := extenderv1.HostPriorityList{}
	for i, name := range nodes {
		if c.of("filter", args.Pod.Name, name)%5 == 0 {
			out.FailedNodes[name] = "by chance"
			continue
		}
		*out.NodeNames = append(*out.NodeNames, name)
		if c.of("twice", args.Pod.Name, name)%3 == 0 { // so that the answer may be as long as the question, though some are refused
			*out.NodeNames = append(*out.NodeNames, name)
		}
		if args.Nodes != nil {
			out.Nodes.Items = append(out.Nodes.Items, args.Nodes.Items[i])
		}
		if score := c.of("score", args.Pod.Name, name) % 12; score < 11 && c.of("scores", args.Pod.Name, "")%2 == 0 { // else it says nothing: of some pods, of no node
			scores = append(scores, extenderv1.HostPriority{Host: name, Score: int64(score)})
		}
	}
	if r.URL.Path == "/filter" {
		encode(w, out)
	} else {
		encode(w, scores)
	}
}

// TestPlacementsWithExtendersAreKubeSchedulers has a whole Berth and kube-scheduler, with the same extenders, place the same pods one after the other, some of which interest
// none. Where several nodes have the highest total, any of them will do.
func TestPlacementsWithExtendersAreKubeSchedulers(t *testing.T) {
	first, second := httptest.NewServer(chance{"first"}), httptest.NewServer(chance{"second"})
	defer first.Close()
	defer second.Close()
	of := func(url, resource string, weight int64) configv1.Extender {
		return configv1.Extender{
			URLPrefix: url, FilterVerb: "filter", PrioritizeVerb: "prioritize", Weight: weight, HTTPTimeout: metav1.Duration{Duration: time.Minute},
			ManagedResources: []configv1.ExtenderManagedResource{{Name: resource, IgnoredByScheduler: true}},
		}
	}
	extenders := []configv1.Extender{of(first.URL, "example.com/a", 1), of(second.URL, "example.com/b", 2)}
	// One that filters and answers with nodes in full makes kube-scheduler forget the pods on these when it scores them: that is not compared.
	extenders[0].NodeCacheCapable, extenders[1].FilterVerb = true, ""
	set, err := extender.New(extender.Config{Extenders: extenders})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()

	// 1. kube-scheduler.
	initMetrics()
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.New(&totals{})))
	defer cancel()
	theirs := make([]config.Extender, len(extenders))
	for i := range extenders {
		if err := kubeconfigv1.Convert_v1_Extender_To_config_Extender(&extenders[i], &theirs[i], nil); err != nil {
			t.Fatal(err)
		}
	}
	profile := defaultProfile(t)
	s, err := scheduler.New(ctx, nil, scheduler.NewInformerFactory(nil, 0), nil, func(string) events.EventRecorderLogger { return &events.FakeRecorder{} },
		scheduler.WithProfiles(profile), scheduler.WithParallelism(1), scheduler.WithExtenders(theirs...))
	if err != nil {
		t.Fatal(err)
	}
	u := &extenderUpstream{Scheduler: s, Framework: s.Profiles[profile.SchedulerName]}

	// 2. Berth.
	ours := engine.DefaultProfile(profile.SchedulerName)
	ours.IgnoredResources = extender.IgnoredResources(extenders)
	p := startPipeline(t, startEtcd(t), "/extenders/", cluster.Settings{Shards: 2, Seed: 1, Profiles: []cluster.Profile{ours}},
		crew{queues: 1, filters: 1, scores: 1, batch: 16, extenders: set})

	for i := range 9 {
		n := plain(fmt.Sprintf("n%d", i), 1)
		n.Status.Allocatable["cpu"] = resource.MustParse(fmt.Sprint(4 + i%4))
		s.Cache.AddNode(klog.FromContext(ctx), n)
		p.source.setNode(n)
	}
	placed, nowhere, equal, interesting := 0, 0, 0, 0
	for i := range 80 {
		pod := named(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}}, fmt.Sprintf("p%d", i))
		pod.Spec.SchedulerName = profile.SchedulerName
		requests := v1.ResourceList{"cpu": resource.MustParse(fmt.Sprintf("%dm", 300+400*(i%4))), "memory": resource.MustParse("100Mi")}
		if i%3 != 0 {
			requests["example.com/a"] = resource.MustParse(fmt.Sprint(i % 2)) // none of it, for some
		}
		if i%4 == 1 {
			requests["example.com/b"] = resource.MustParse("1")
		}
		pod.Spec.Containers = []v1.Container{{Name: "c", Image: "app:1", Resources: v1.ResourceRequirements{Requests: requests}}}
		info, err := framework.NewPodInfo(pod)
		if err != nil {
			t.Fatal(err)
		}
		u.pod = &framework.QueuedPodInfo{PodInfo: info}
		if err := s.Cache.UpdateSnapshot(klog.FromContext(ctx), u.SnapshotSharedLister().(*internalcache.Snapshot)); err != nil {
			t.Fatal(err)
		}
		result, sums, err := u.schedule(u.Scheduler.Extenders...)
		var misfit *framework.FitError
		if err != nil && !errors.As(err, &misfit) {
			t.Fatalf("kube-scheduler: %v", err)
		}
		if set.Interest(extender.ResourceNames(pod)) != 0 {
			interesting++
		}
		p.source.setPod(pod, nil)
		p.await(t, pod.Name+" to be bound or unschedulable", p.settled)
		p.source.mu.Lock()
		got := p.source.last(string(pod.UID)).Spec.NodeName
		p.source.mu.Unlock()
		switch {
		case got == result.SuggestedHost && got == "":
			nowhere++
			p.source.removePod(pod)
		case got == "" || result.SuggestedHost == "":
			t.Fatalf("%s: on %q, want %q (%v)", pod.Name, got, result.SuggestedHost, err)
		case got != result.SuggestedHost && sums[got] != sums[result.SuggestedHost]:
			t.Fatalf("%s: on %s, want %s; totals %v", pod.Name, got, result.SuggestedHost, sums)
		case got != result.SuggestedHost:
			equal++
			fallthrough
		default:
			placed++
			if err := s.Cache.AddPod(klog.FromContext(ctx), onNode(pod, got, v1.PodStatus{})); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d placed, %d of them on another of equal totals, %d nowhere; %d interest extenders", placed, equal, nowhere, interesting)
	if placed < 30 || nowhere == 0 || equal > placed/2 {
		t.Errorf("%d placed, %d of them on another of equal totals, %d nowhere: too few to tell", placed, equal, nowhere)
	}
}
