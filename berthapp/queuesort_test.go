package berthapp

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"pgregory.net/rapid"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// sorts is a plugin that sorts by the label "turn", and then by time.
type sorts struct{ test *walk }

func (sorts) Name() string { return "called Sorts" }

func (s sorts) Less(a, b fwk.QueuedPodInfo) bool {
	if s.test != nil {
		s.test.mu.Lock()
		s.test.heard = append(s.test.heard, fmt.Sprintf("%s before %s", a.GetPodInfo().GetPod().UID, b.GetPodInfo().GetPod().UID))
		s.test.mu.Unlock()
	}
	if x, y := turn(a), turn(b); x != y {
		return x < y
	}
	return a.GetTimestamp().Before(b.GetTimestamp())
}

func turn(p fwk.QueuedPodInfo) string { return p.GetPodInfo().GetPod().Labels["turn"] }

func podOfTurn(uid, turn string) *v1.Pod {
	pod := podNamed(uid)
	pod.Labels = map[string]string{"turn": turn}
	return pod
}

const sortedProfile = `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
  plugins:
    queueSort: {enabled: [{name: Sorts}], disabled: [{name: '*'}]}
`

// where asks where a pod belongs, and returns its key and order.
func (w *walk) where(uid string, q *pluginv1.Queued) (key, order int64) {
	w.t.Helper()
	w.last++
	if err := w.place.Send(&pluginv1.PlaceRequest{
		Id: w.last, Step: queueSort, Plugins: []string{"Sorts"}, Queued: q, Placement: &pluginv1.Placement{Uid: uid, Namespace: "default", Name: "name-of-" + uid, SchedulerName: "another-scheduler"},
	}); err != nil {
		w.t.Fatal(err)
	}
	r, ok := <-w.answers
	if !ok || r.GetId() != w.last || r.GetError() != "" || r.GetRejection() != nil {
		w.t.Fatalf("it answers %v", r)
	}
	return r.GetSortKey(), r.GetSortOrder()
}

// Keys go up in the order that the plugin has pods in, of whatever profile, and those of which it says nothing in the order in which they came.
func TestKeysAreInTheOrderOfThePlugin(t *testing.T) {
	w := newWalkOf(t, sortedProfile, podOfTurn("c", "3"), podOfTurn("a", "1"), podOfTurn("b", "2"), podOfTurn("b2", "2"), podOfTurn("b3", "2"))
	at := func(seconds int64, arrival int64) *pluginv1.Queued {
		return &pluginv1.Queued{SinceUnixNanos: seconds * 1e9, Arrival: arrival}
	}
	keys := make(map[string]int64)
	for _, p := range []struct {
		uid string
		q   *pluginv1.Queued
	}{{"b3", at(9, 5)}, {"c", at(1, 1)}, {"b2", at(5, 7)}, {"a", at(2, 2)}, {"b", at(5, 6)}} {
		keys[p.uid], _ = w.where(p.uid, p.q)
	}
	uids := []string{"a", "b", "b2", "b3", "c"}
	if !slices.IsSortedFunc(uids, func(a, b string) int { return cmp.Compare(keys[a], keys[b]) }) {
		t.Errorf("keys %v", keys)
	}
	before := keys["b"]
	if again, _ := w.where("b", at(5, 6)); again != before {
		t.Errorf("b stands where it has, and its key was %d, and is %d", before, again)
	}
	if keys["b"], _ = w.where("b", at(10, 6)); keys["b"] <= keys["b3"] || keys["b"] >= keys["c"] { // it has come back later
		t.Errorf("keys %v, of b before %d", keys, before)
	}
	described, err := w.host.Describe(t.Context(), nil)
	if err != nil || !described.GetPlugins()[0].GetQueueSorts() {
		t.Errorf("described: %v, %v", described, err)
	}
}

// A plugin is told how the pod waits, as in kube-scheduler.
func TestAPluginThatSortsSeesHowPodsWait(t *testing.T) {
	since, first := time.Unix(10, 5), time.Unix(9, 0)
	got := queuedPod(podOfTurn("p", "1"), &pluginv1.Queued{SinceUnixNanos: since.UnixNano(), FirstUnixNanos: first.UnixNano(), Attempts: 3, Unschedulable: 2, Errors: 1})
	if !got.GetTimestamp().Equal(since) || !got.GetInitialAttemptTimestamp().Equal(first) || got.GetAttempts() != 3 || got.GetUnschedulableCount() != 2 || got.GetConsecutiveErrorsCount() != 1 ||
		got.GetPodInfo().GetPod().UID != "p" || got.GetUnschedulablePlugins() == nil || got.GetPendingPlugins() == nil {
		t.Errorf("%+v", got)
	}
}

// A pod that waits no more is compared with nobody, and nothing is kept of it.
func TestWhoWaitsNoMoreLeavesTheLine(t *testing.T) {
	h, _, _ := newTestHints(t)
	stands := func(want ...string) {
		t.Helper()
		got := []string{}
		for _, p := range h.line.pods {
			got = append(got, string(p.uid))
		}
		if !slices.Equal(got, want) || len(h.line.by) != len(want) {
			t.Errorf("in line are %q, want %q", got, want)
		}
	}
	put := func(uid string) *v1.Pod {
		pod := podOfTurn(uid, uid)
		if err := h.pods.Add(pod); err != nil {
			t.Fatal(err)
		}
		h.line.put(sorts{}.Less, queuedPod(pod, &pluginv1.Queued{}), 0, func() bool { return h.get("default/"+pod.Name, pod.UID) != nil })
		return pod
	}
	a, b := put("a"), put("b")
	put("c")
	stands("a", "b", "c")
	bound := b.DeepCopy()
	bound.ResourceVersion, bound.Spec.NodeName = "2", "n"
	if err := h.pods.Update(bound); err != nil {
		t.Fatal(err)
	}
	h.podChanged(b, bound)
	stands("a", "c")
	if err := h.pods.Delete(a); err != nil {
		t.Fatal(err)
	}
	h.podGone(a)
	stands("c")
	h.line.put(sorts{}.Less, queuedPod(a, &pluginv1.Queued{}), 0, func() bool { return h.get("default/"+a.Name, a.UID) != nil }) // somebody asks late
	stands("c")
	anew := podOfTurn("d", "d")
	anew.Name = "name-of-c"
	h.podChanged(podOfTurn("c", "c"), anew) // c was deleted and made again between two looks
	stands()
}

// Whatever comes and goes, keys of one order are those of a sorted list, and few pods have a line numbered anew.
func TestTheLineIsSorted(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var l line
		keys, orders := make(map[string]int64), make(map[string]int64)
		turns, arrivals := make(map[string]int), make(map[string]int64)
		var order int64
		pod := func(uid string) fwk.QueuedPodInfo {
			return &framework.QueuedPodInfo{PodInfo: &framework.PodInfo{Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Labels: map[string]string{"turn": fmt.Sprintf("%05d", turns[uid])}}}}}
		}
		n := int64(0)
		rt.Repeat(map[string]func(*rapid.T){
			"put": func(rt *rapid.T) {
				uid := fmt.Sprint(rapid.IntRange(0, 40).Draw(rt, "pod"))
				n++
				turns[uid], arrivals[uid] = rapid.IntRange(0, 10).Draw(rt, "turn"), n
				keys[uid], orders[uid] = l.put(sorts{}.Less, pod(uid), n, func() bool { return true })
				if orders[uid] < order {
					rt.Fatalf("order %d behind %d", orders[uid], order)
				}
				order = orders[uid]
			},
			"remove": func(rt *rapid.T) {
				uid := fmt.Sprint(rapid.IntRange(0, 40).Draw(rt, "pod"))
				l.remove(types.UID(uid))
				delete(keys, uid)
				delete(orders, uid)
			},
			"crowd": func(*rapid.T) { // as if there had been many between them
				for i, p := range l.pods {
					p.key = int64(i)
				}
				for uid := range keys {
					if p := l.by[types.UID(uid)]; p != nil && orders[uid] == order {
						keys[uid] = p.key
					}
				}
			},
			"end": func(*rapid.T) { // the same at the ends
				if k := len(l.pods); k > 1 {
					l.pods[0].key, l.pods[k-1].key = math.MinInt64+1, math.MaxInt64-1
					for _, p := range []*inLine{l.pods[0], l.pods[k-1]} {
						if orders[string(p.uid)] == order {
							keys[string(p.uid)] = p.key
						}
					}
				}
			},
			"": func(*rapid.T) {
				var uids []string
				for uid := range keys {
					if orders[uid] == order {
						uids = append(uids, uid)
					}
				}
				slices.SortFunc(uids, func(a, b string) int { return cmp.Compare(keys[a], keys[b]) })
				for i := 1; i < len(uids); i++ {
					a, b := uids[i-1], uids[i]
					if keys[a] == keys[b] || cmp.Or(cmp.Compare(turns[a], turns[b]), cmp.Compare(arrivals[a], arrivals[b])) > 0 {
						rt.Fatalf("%s (%d, arrival %d) has key %d, and %s (%d, %d) has %d", a, turns[a], arrivals[a], keys[a], b, turns[b], arrivals[b], keys[b])
					}
				}
				if len(l.pods) != len(l.by) || len(l.pods) != len(keys) || !slices.IsSortedFunc(l.pods, func(a, b *inLine) int { return cmp.Compare(a.key, b.key) }) {
					rt.Fatalf("%d in line, %d by uid, want %d", len(l.pods), len(l.by), len(keys))
				}
			},
		})
	})
}

// However pods come, a line of many is hardly ever numbered anew: in order, the other way round, by turns into several classes, or as it pleases.
func TestALineIsHardlyEverNumberedAnew(t *testing.T) {
	const many = 20_000
	for name, turnOf := range map[string]func(i int) int{
		"in order": func(i int) int { return i }, "backwards": func(i int) int { return many - i },
		"by turns into 10 classes": func(i int) int { return i % 10 }, "by turns into 10 classes, the last first": func(i int) int { return i%10*many + many - i },
		"anyhow": func(i int) int { return i * 7919 % many },
	} {
		var l line
		for i := range many {
			label := fmt.Sprintf("%09d", many+turnOf(i))
			l.put(sorts{}.Less, &framework.QueuedPodInfo{PodInfo: &framework.PodInfo{Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprint(i)), Labels: map[string]string{"turn": label}}}}}, int64(i), func() bool { return true })
		}
		if l.order > 2 || len(l.pods) != many {
			t.Errorf("%s: %d pods are numbered anew %d times", name, len(l.pods), l.order)
		}
	}
}

// Where a service sorts, plugins that are compiled in have kube-scheduler's own at that point, which a framework does not do without.
func TestAFrameworkHasASortWhereAServiceDoes(t *testing.T) {
	_, registered, cfg := newWalkers(t)
	for _, tt := range []struct{ queueSort, want string }{
		{"{enabled: [{name: OfAService}], disabled: [{name: '*'}]}", "PrioritySort"},
		{"{enabled: [{name: Sorts}], disabled: [{name: '*'}]}", "Sorts"},
		{"{}", ""},
	} {
		var err error
		if cfg.KubeSchedulerConfiguration, err = decode([]byte(strings.Replace(profileWithWalkers, "  plugins:", "  plugins:\n    queueSort: "+tt.queueSort, 1))); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range registered.stripped(&cfg.Profiles[0]).Plugins.QueueSort.Enabled {
			got = append(got, e.Name)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %q", tt.queueSort, got)
		}
		if _, err := registered.newProfile(t.Context(), cfg, registered.stripped(&cfg.Profiles[0])); err != nil {
			t.Errorf("%s: %v", tt.queueSort, err)
		}
	}
}
