package queue_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	filterv1 "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
)

// special makes a pod special.
type special = func(*cluster.Pod, *cluster.ClassSpec)

func with(changes ...special) special {
	return func(p *cluster.Pod, c *cluster.ClassSpec) {
		for _, change := range changes {
			change(p, c)
		}
	}
}

func labelled(id cluster.LabelsID) special {
	return func(p *cluster.Pod, _ *cluster.ClassSpec) { p.Labels = id }
}

func bound(node string) special {
	return func(p *cluster.Pod, _ *cluster.ClassSpec) { p.NodeName = node }
}

func requiring(node string) special {
	return func(p *cluster.Pod, _ *cluster.ClassSpec) { p.RequiredNode = node }
}

// apps matches pods with that label in the same zone.
func apps(app string) []cluster.PodTerm {
	return []cluster.PodTerm{{
		TopologyKey: "zone", Namespaces: []string{"default"}, NamespaceSelector: cluster.LabelSelector{Nothing: true},
		Selector: cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "app", Operator: "In", Values: []string{app}}}},
	}}
}

func near(app string) special {
	return func(_ *cluster.Pod, c *cluster.ClassSpec) { c.Affinity = apps(app) }
}

func farFrom(app string) special {
	return func(_ *cluster.Pod, c *cluster.ClassSpec) { c.AntiAffinity = apps(app) }
}

// zoneNode adds a node in a zone.
func (l *ledger) zoneNode(name, zone string, milli int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.applyLocked(cluster.NodeSet{Index: l.st.Nodes.Free(), Node: cluster.Node{
		Name: name, Labels: []cluster.Label{{Key: "zone", Value: zone}}, Allocatable: quantities(milli),
	}})
}

const noAffinity = "0/3 nodes are available: 3 node(s) didn't match pod affinity rules. no new claims to deallocate, preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."

// zones returns a world with nodes a1 and a2 in zone a, of which a1 is full with one more pod of 100m, and b in zone b.
func zones(t *testing.T) (w *world, filters *filterServer) {
	t.Helper()
	checkLeaks(t)
	w = newWorld(t, 1)
	filters, _ = w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.zoneNode("a1", "a", 100)
	w.ledger.zoneNode("a2", "a", 1000)
	w.ledger.zoneNode("b", "b", 8000)
	return w, filters
}

func TestPodsOfOneClassAreAskedAboutBySignature(t *testing.T) {
	w, filters := zones(t)
	web, api, db := w.ledger.labels("app", "web"), w.ledger.labels("app", "api"), w.ledger.labels("app", "db")
	w.ledger.pod("repels", 10, with(farFrom("db"), bound("a1")))
	w.ledger.pod("web", 100, labelled(web))
	w.ledger.pod("db", 100, labelled(db))
	w.ledger.pod("api", 100, labelled(api)) // nobody selects its label, nor that of web
	w.ledger.pod("other", 200, nil)
	w.queueMember("q1")
	w.untilPlaced("web", "db", "api", "other")
	var got []cluster.LabelsID
	filters.mu.Lock()
	for _, s := range filters.requests[0].GetSubjects() {
		got = append(got, cluster.LabelsID(s.GetLabels()))
	}
	filters.mu.Unlock()
	if want := []cluster.LabelsID{web, db, cluster.NoLabels}; !slices.Equal(got, want) {
		t.Errorf("asked about pods with the label sets %v, want %v", got, want)
	}
	w.binder.mu.Lock()
	defer w.binder.mu.Unlock()
	index := make(map[string]int32)
	for _, p := range w.binder.commits[0].GetPods() {
		index[p.GetUid()] = p.GetSubjectIndex()
	}
	if want := map[string]int32{"uid-web": 0, "uid-api": 0, "uid-db": 1, "uid-other": 2}; !cmp.Equal(want, index) {
		t.Errorf("committed with the candidates %v, want %v", index, want)
	}
}

func TestPodThatOnlyOtherNodesKeepAwayGoesToTheBinderBehindAnother(t *testing.T) {
	for name, second := range map[string]special{"anywhere": near("first"), "required node": with(near("first"), requiring("a2"))} {
		t.Run(name, func(t *testing.T) {
			w, _ := zones(t)
			w.ledger.pod("first", 100, with(labelled(w.ledger.labels("app", "first")), requiring("a1")))
			w.ledger.pod("second", 100, second)
			w.queueMember("q1")
			w.untilPlaced("first", "second")
			if diff := cmp.Diff([][]string{{"first/1", "second/1"}}, w.binder.sent()); diff != "" {
				t.Errorf("commits (-want +got):\n%s", diff)
			}
			if got := w.ledger.nodeOf("second"); got != "a2" {
				t.Errorf("second is on %s, want a2", got)
			}
		})
	}
}

func TestPodThatTheOneAheadDoesNotHelpIsUnschedulableWithItsVerdicts(t *testing.T) {
	w, filters := zones(t)
	w.ledger.pod("first", 100, nil)
	w.ledger.pod("second", 100, near("nobody"))
	q, _ := w.queueMember("q1")
	w.untilPlaced("first")
	p := untilState(t, q, "second", queuev1.State_STATE_UNSCHEDULABLE)
	if p.GetMessage() != noAffinity || p.GetAttempts() != 1 {
		t.Errorf("after %d attempts: %q, want %q after one", p.GetAttempts(), p.GetMessage(), noAffinity)
	}
	until(t, "the report is handed in", func() bool { return w.binder.report("second") == noAffinity })
	if diff := cmp.Diff([][]string{{"first/1", "second/1"}}, w.binder.sent()); diff != "" {
		t.Errorf("commits (-want +got):\n%s", diff)
	}
	if n := filters.calls.Load(); n != 1 {
		t.Errorf("filter-worker asked %d times, want once", n)
	}
	w.ledger.pod("friend", 10, with(labelled(w.ledger.labels("app", "nobody")), bound("b")))
	w.untilPlaced("second")
}

func TestPodThatOtherNodesKeepAwayIsUnschedulableIfNothingIsAheadAndWakesByAnother(t *testing.T) {
	w, _ := zones(t)
	w.ledger.pod("p", 500, near("friend"))
	q, _ := w.queueMember("q1")
	const want = "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't match pod affinity rules. " +
		"no new claims to deallocate, preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
	if got := untilState(t, q, "p", queuev1.State_STATE_UNSCHEDULABLE).GetMessage(); got != want {
		t.Errorf("message %q, want %q", got, want)
	}
	if got := w.binder.sent(); got != nil {
		t.Errorf("commits %v, want none", got)
	}
	// Its friend comes to a1, where it has no room itself.
	w.ledger.pod("friend", 10, with(labelled(w.ledger.labels("app", "friend")), bound("a1")))
	w.untilPlaced("p")
	if got := w.ledger.nodeOf("p"); got != "a2" {
		t.Errorf("p is on %s, want a2", got)
	}
}

func TestPodInTheWayThatLeavesBetweenEvaluationAndItsEndWakesThePod(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", func(call int64) {
		if call == 1 {
			w.ledger.apply(cluster.PodRemoved{ID: 0}) // after the worker has looked; a2 is as it was
		}
	})
	w.scoreWorker("s1")
	w.ledger.zoneNode("a1", "a", 100)
	w.ledger.zoneNode("a2", "a", 1000)
	w.ledger.pod("repels", 10, with(farFrom("db"), bound("a1")))
	w.ledger.pod("db", 500, labelled(w.ledger.labels("app", "db")))
	w.queueMember("q1")
	w.untilPlaced("db")
}

func TestNominatedPodIsSentThoughItsNodeFitsNobodyElse(t *testing.T) {
	w, filters := zones(t)
	w.ledger.pod("full", 8000, bound("b"))
	w.ledger.pod("high", 900, func(p *cluster.Pod, _ *cluster.ClassSpec) { p.Priority, p.Nominated = 10, "a2" })
	w.ledger.pod("low", 900, nil)
	q, _ := w.queueMember("q1")
	w.untilPlaced("high")
	if got := w.ledger.nodeOf("high"); got != "a2" {
		t.Errorf("high is on %s, want a2", got)
	}
	untilState(t, q, "low", queuev1.State_STATE_UNSCHEDULABLE)
	if diff := cmp.Diff([][]string{{"high/1"}}, w.binder.sent()); diff != "" {
		t.Errorf("commits (-want +got):\n%s", diff)
	}
	w.ledger.mu.RLock()
	id, _ := w.ledger.st.PodByUID("uid-high")
	w.ledger.mu.RUnlock()
	filters.mu.Lock()
	defer filters.mu.Unlock()
	if got := filters.requests[0].GetPodsOnNodes(); len(got) != 2 || got[0].GetSelf() != int32(id) || got[1].GetSelf() != int32(cluster.NoPod) ||
		got[0].GetSubject().GetPriority() != 10 || got[1].GetSubject().GetPriority() != 10 {
		t.Errorf("got %v, want one about high itself, and one as others see the node", got)
	}
}

func TestNominatedPodWhoseNodeDoesNotFitIsUnschedulableOrGoesElsewhere(t *testing.T) {
	w, _ := zones(t)
	w.ledger.pod("full", 8000, bound("b"))
	nominate := func(p *cluster.Pod, _ *cluster.ClassSpec) { p.Nominated = "a1" }
	w.ledger.pod("p", 2000, nominate)
	w.ledger.pod("q", 900, nominate)
	q, _ := w.queueMember("q1")
	const want = "0/3 nodes are available: 3 Insufficient cpu. no new claims to deallocate, preemption: " +
		"0/3 nodes are available: 1 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling."
	if got := untilState(t, q, "p", queuev1.State_STATE_UNSCHEDULABLE).GetMessage(); got != want {
		t.Errorf("message %q, want %q", got, want)
	}
	until(t, "q is sent with candidates", func() bool {
		w.binder.mu.Lock()
		defer w.binder.mu.Unlock()
		return len(w.binder.commits) > 0 && w.binder.commits[0].GetPods()[0].GetUid() == "uid-q" && len(w.binder.commits[0].GetSubjects()) == 1
	})
}

func TestPercentageOfNodesToScoreBoundsTheCandidatesAndTheyTurn(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.scoreWorker("s2")
	profile := engine.DefaultProfile("default-scheduler")
	profile.PercentageOfNodesToScore = 10
	w.ledger.apply(cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Seed: 1, Profiles: []cluster.Profile{profile}}})
	for k := range 2000 {
		w.ledger.node(fmt.Sprintf("n%d", k), 1000)
	}
	w.queueMember("q1")
	index := func(name string) int32 {
		w.ledger.mu.RLock()
		defer w.ledger.mu.RUnlock()
		return int32(w.ledger.st.Nodes.ByName(w.ledger.nodeOf(name)))
	}
	for k := range 12 {
		name := fmt.Sprintf("p%d", k)
		w.ledger.pod(name, 100, nil)
		w.untilPlaced(name)
		if got, first := index(name), int32(k%10*200); got < first || got >= first+200 {
			t.Errorf("%s is on node %d, want one of the 200 from %d on", name, got, first)
		}
	}
	w.binder.mu.Lock()
	defer w.binder.mu.Unlock()
	for k, request := range w.binder.commits {
		if n := count(request); n != 200 {
			t.Errorf("commit %d is of %d candidates, want 200", k, n)
		}
	}
}

// count returns how many nodes the candidates of the first subject are of.
func count(request *binderv1.CommitRequest) (n int32) {
	for _, g := range request.GetSubjects()[0].GetGroups() {
		n += g.GetCount()
	}
	return n
}

// TestPodIsNotRejectedForWhatHasBecomeOfTheClaimsOfAnother has pods of one signature popped at once. Before the worker judges the first of them,
// who stands for both, its claim goes.
func TestPodIsNotRejectedForWhatHasBecomeOfTheClaimsOfAnother(t *testing.T) {
	for _, c := range []struct {
		name   string
		claims bool // the other has some, too
		comes  bool // the claim is there again when the answer comes
	}{
		{"it has a claim of its own", true, false},
		{"it has no claims", false, false},
		{"and the claim is there again", false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			checkLeaks(t)
			w := newWorld(t, 1)
			var gone, again sync.Once
			filters, _ := w.filterWorker("f1", func(int64) {
				if c.comes {
					again.Do(func() { w.ledger.apply(claimOf("a")) })
				}
			})
			w.scoreWorker("s1")
			w.ledger.node("n1", 8000)
			w.ledger.pod("a", 100, labelled(w.ledger.claiming("a")))
			var b special
			if c.claims {
				b = labelled(w.ledger.claiming("b"))
			}
			w.ledger.pod("b", 100, b)
			filters.refuse = func(*filterv1.FilterRequest) error {
				gone.Do(func() {
					w.ledger.apply(cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.PersistentVolumeClaimKind, Namespace: "default", Name: "a"}})
				})
				return nil
			}
			w.queueMember("q1")
			w.untilPlaced("b")
			if got := w.binder.report("b"); got != "" {
				t.Errorf("of the other is reported: %q", got)
			}
			filters.mu.Lock()
			defer filters.mu.Unlock()
			if got := len(filters.requests[0].GetSubjects()); got != 1 {
				t.Errorf("the first question was about %d subjects, want one for both pods", got)
			}
		})
	}
}

// claimOf is a claim that is bound to a volume of its own.
func claimOf(name string) cluster.ObjectSet {
	return cluster.ObjectSet{Object: &cluster.PersistentVolumeClaim{Namespace: "default", Name: name, Volume: "pv-" + name, Bound: true}}
}

// claiming defines a set with a claim, and the claim with its volume.
func (l *ledger) claiming(name string) cluster.LabelsID {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sets++
	l.applyLocked(
		cluster.LabelsDefined{ID: l.sets, Set: cluster.LabelSet{Namespace: "default", Claims: []cluster.PodClaim{{Name: name}}}},
		cluster.ObjectSet{Object: &cluster.PersistentVolume{Name: "pv-" + name}}, claimOf(name),
	)
	return l.sets
}
