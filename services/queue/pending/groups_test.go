package pending

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// gangs is a queue with a node, of which nobody knows better.
type gangs struct {
	*testing.T
	q   *Queue
	st  *cluster.State
	now time.Time
}

func newGangs(t *testing.T) *gangs {
	g := &gangs{T: t, q: NewQueue(0, newCPUJudge()), st: cluster.New(cluster.Version{Epoch: 1}), now: time.Unix(1000, 0)}
	g.apply(settings(1), cluster.ClassDefined{ID: 0, Spec: cpuClass(500)}, cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "n1", Allocatable: cpu(100)}})
	g.pod(99, "", 0) // keeps the class
	g.apply(cluster.PodSet{ID: 99, Pod: cluster.Pod{UID: "99", Name: "99", NodeName: "elsewhere"}})
	return g
}

func (g *gangs) apply(deltas ...cluster.Delta) {
	g.Helper()
	apply(g, g.q, g.st, g.now, deltas...)
}

// pod adds a pod of a group.
func (g *gangs) pod(id cluster.PodID, group string, priority int32, gates ...string) {
	g.Helper()
	g.apply(cluster.PodSet{ID: id, Pod: cluster.Pod{
		UID: fmt.Sprint(id), Namespace: "a", Name: fmt.Sprint(id), Group: group, Priority: priority, Created: int64(id) + 1, Gates: gates,
	}})
}

func (g *gangs) group(name string, minCount int32) {
	g.Helper()
	g.apply(cluster.ObjectSet{Object: &cluster.PodGroup{Namespace: "a", Name: name, Gang: minCount > 0, MinCount: minCount}})
}

// popped returns the ids of the next batch, as a batch of so many pods is filled.
func (g *gangs) popped(limit int) (ids string, batch []Attempt) {
	batch = g.q.Pop(g.now, limit)
	var out []string
	for _, a := range batch {
		out = append(out, fmt.Sprint(a.ID))
	}
	return strings.Join(out, " "), batch
}

func (g *gangs) wants(want string) (batch []Attempt) {
	g.Helper()
	got, batch := g.popped(10)
	if got != want {
		g.Fatalf("popped are %q, want %q", got, want)
	}
	return batch
}

func (g *gangs) places(want string) {
	g.Helper()
	var out []string
	ids := g.q.IDs()
	slices.Sort(ids)
	for _, id := range ids {
		if e, ok := g.q.Entry(id); ok {
			out = append(out, fmt.Sprintf("%d %v", id, e.Place))
		}
	}
	if got := strings.Join(out, ", "); got != want {
		g.Fatalf("they are %q, want %q", got, want)
	}
}

func (g *gangs) why(id cluster.PodID) string {
	e, _ := g.q.Entry(id)
	return e.Message
}

func TestPodsOfAGroupWaitUntilItIsThereWithAsManyAsItWants(t *testing.T) {
	g := newGangs(t)
	g.pod(1, "g", 0)
	g.places("1 gated")
	if want := `waiting for pods's pod group "g" to appear in scheduling queue`; g.why(1) != want {
		t.Errorf("it says %q, want %q", g.why(1), want)
	}
	g.group("g", 2)
	g.places("1 gated")
	if want := "waiting for minCount pods from a gang to appear in scheduling queue"; g.why(1) != want {
		t.Errorf("it says %q, want %q", g.why(1), want)
	}
	g.pod(2, "g", 0, "example.com/gate")
	g.places("1 gated, 2 gated") // a pod with gates is there, but could not be tried
	g.pod(4, "g", 0)
	g.places("1 active, 2 gated, 4 active")
	g.apply(cluster.PodRemoved{ID: 4})
	g.places("1 gated, 2 gated")
	g.pod(2, "g", 0)
	g.places("1 active, 2 active")
	g.pod(2, "g", 0, "example.com/gate")
	g.places("1 gated, 2 gated")
	g.apply(cluster.PodRemoved{ID: 2})
	g.places("1 gated")
	g.pod(3, "g", 0)
	g.places("1 active, 3 active")
	g.apply(cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.PodGroupKind, Namespace: "a", Name: "g"}})
	g.places("1 gated, 3 gated")
	g.group("g", 0)
	g.places("1 active, 3 active")
	// One that is on a node counts, wherever it is known.
	g.apply(cluster.PodSet{ID: 3, Pod: cluster.Pod{UID: "3", Namespace: "a", Name: "3", Group: "g", NodeName: "n1", Created: 4}})
	g.group("g", 2)
	g.places("1 active")
	g.group("g", 3)
	g.places("1 gated")
	if n := g.q.Rejected(); n == nil {
		t.Error("nobody is against it")
	}
	for r, n := range g.q.Rejected() {
		if r.Plugin != "GangScheduling" || n != 1 {
			t.Errorf("%s is against %d pods, want GangScheduling against 1", r.Plugin, n)
		}
	}
}

func TestAGroupThatCannotBeReadSaysWhy(t *testing.T) {
	g := newGangs(t)
	g.apply(cluster.ObjectSet{Object: &cluster.Unserved{Name: cluster.PodGroupResource, Why: "not served"}})
	g.pod(1, "g", 0)
	if want := "podgroups cannot be read: not served"; g.why(1) != want {
		t.Errorf("it says %q, want %q", g.why(1), want)
	}
	g.group("g", 1)
	g.places("1 active")
	g.pod(2, "h", 0)
	g.apply(cluster.ObjectRemoved{ObjectKey: (&cluster.Unserved{Name: cluster.PodGroupResource}).Key()})
	if want := `waiting for pods's pod group "h" to appear in scheduling queue`; g.why(2) != want {
		t.Errorf("it says %q, want %q", g.why(2), want)
	}
	g.apply(cluster.ObjectSet{Object: (&cluster.PodGroup{Namespace: "a", Name: "h"}).Unsupported("too large")})
	if g.why(2) != "too large" {
		t.Errorf("it says %q, want why it is not told", g.why(2))
	}
}

// TestGroupsOfCoschedulingAreOthersThanThoseOfTheSameName is of a PodGroup of each kind, both called g.
func TestGroupsOfCoschedulingAreOthersThanThoseOfTheSameName(t *testing.T) {
	g := newGangs(t)
	theirs := cluster.CoschedulingGroup("g")
	says := func(id cluster.PodID, want string) {
		t.Helper()
		if g.why(id) != want {
			t.Errorf("pod %d says %q, want %q", id, g.why(id), want)
		}
	}
	g.apply(cluster.ObjectSet{Object: &cluster.Unserved{Name: cluster.CoschedulingResource, Why: "not served"}})
	g.pod(1, theirs, 0)
	g.pod(2, "g", 0)
	says(1, "podgroups.scheduling.x-k8s.io cannot be read: not served")
	says(2, `waiting for pods's pod group "g" to appear in scheduling queue`)
	g.apply(cluster.ObjectRemoved{ObjectKey: (&cluster.Unserved{Name: cluster.CoschedulingResource}).Key()})
	says(1, "PodGroup not found: podgroup.scheduling.x-k8s.io/g")
	g.group("g", 1)
	g.places("1 gated, 2 active")
	g.group(theirs, 2)
	g.places("1 gated, 2 active")
	says(1, "cannot find enough sibling pods, minMember of group: 2")
	g.pod(3, theirs, 0)
	g.places("1 active, 2 active, 3 active")
	g.wants("1 3")
	g.wants("2")
}

func TestAGroupIsPoppedWholeAndAlone(t *testing.T) {
	g := newGangs(t)
	g.group("g", 2)
	g.pod(1, "", 0)
	g.pod(2, "g", 0)
	g.pod(3, "", 0)
	g.pod(4, "g", 5)
	g.pod(5, "g", 0)
	g.pod(6, "g", 0, "example.com/gate")
	// The group goes by its first pod, and others do not go with it.
	batch := g.wants("4 2 5")
	g.wants("1 3")
	g.wants("")
	for _, a := range batch {
		if key, ok := g.q.Group(a); !ok || key.Name != "g" {
			t.Errorf("pod %d is of the group %v, %v", a.ID, key, ok)
		}
	}
	g.pod(7, "g", 0)
	g.wants("7") // those that are in flight are not waited for
}

// TestAGroupComesBackWhole has one of its pods woken, by which the others are taken along from wherever they wait.
func TestAGroupComesBackWhole(t *testing.T) {
	g := newGangs(t)
	g.group("g", 3)
	for id := range cluster.PodID(3) {
		g.pod(id+1, "g", 0)
	}
	batch := g.wants("1 2 3")
	g.q.Reject(g.now, g.st, batch[0], Diagnosis{Version: g.st.Version()})
	g.q.Reject(g.now, g.st, batch[1], Diagnosis{Version: g.st.Version(), Wake: WhenChanged})
	g.q.Fail(g.now, batch[2], "broken")
	g.places("1 unschedulable, 2 unschedulable, 3 backoff")
	g.wants("")
	g.apply(cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "n1", Allocatable: cpu(1000)}})
	g.q.Recheck(g.now, g.st)
	g.wants("1 2 3")
}

// TestAGroupThatIsAnotherIsTriedAgain has a PodGroup that has been replaced.
func TestAGroupThatIsAnotherIsTriedAgain(t *testing.T) {
	g := newGangs(t)
	g.group("g", 1)
	g.pod(1, "g", 0)
	batch := g.wants("1")
	g.q.Reject(g.now, g.st, batch[0], Diagnosis{Version: g.st.Version(), Wake: WhenChanged})
	g.places("1 unschedulable")
	g.apply(cluster.ObjectSet{Object: &cluster.PodGroup{Namespace: "a", Name: "g", UID: "another", Gang: true, MinCount: 1}})
	g.places("1 backoff")
	// So is one that changes while it is tried.
	batch = g.wants("1")
	g.apply(cluster.ObjectSet{Object: &cluster.PodGroup{Namespace: "a", Name: "g", UID: "a third", Gang: true, MinCount: 1}})
	g.q.Reject(g.now, g.st, batch[0], Diagnosis{Version: g.st.Version(), Wake: WhenChanged})
	g.places("1 backoff")
}

// TestAGroupIsTriedAgainWhenItIsInItsDomainNoMore has one that is bound to a domain by a pod with a node, or has no domains, or a pod of it goes that has no node.
func TestAGroupIsTriedAgainWhenItIsInItsDomainNoMore(t *testing.T) {
	for name, test := range map[string]struct {
		topology []string
		gone     cluster.PodID
		want     string
	}{
		"one with a node goes":                  {[]string{"rack"}, 1, "2 backoff, 3 backoff"},
		"one without a node goes":               {[]string{"rack"}, 3, "2 unschedulable"},
		"one with a node goes, and it has none": {nil, 1, "2 unschedulable, 3 unschedulable"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGangs(t)
			g.apply(cluster.ObjectSet{Object: &cluster.PodGroup{Namespace: "a", Name: "g", Topology: test.topology}})
			g.apply(cluster.PodSet{ID: 1, Pod: cluster.Pod{UID: "1", Namespace: "a", Name: "1", Group: "g", NodeName: "n1"}})
			g.pod(2, "g", 0)
			g.pod(3, "g", 0)
			for _, a := range g.wants("2 3") {
				g.q.Reject(g.now, g.st, a, Diagnosis{Version: g.st.Version(), Wake: WhenChanged})
			}
			g.apply(cluster.PodRemoved{ID: test.gone})
			g.places(test.want)
		})
	}
}

func TestAPodThatChangesItsGroupIsCountedInTheOther(t *testing.T) {
	g := newGangs(t)
	g.group("g", 2)
	g.group("h", 1)
	g.pod(1, "g", 0)
	g.pod(2, "g", 0)
	g.places("1 active, 2 active")
	g.apply(cluster.PodSet{ID: 2, Pod: cluster.Pod{UID: "2", Namespace: "a", Name: "2", Group: "h", Created: 3}})
	g.places("1 gated, 2 active")
	g.wants("2")
}

// TestWhatIsResetIsGroupedAsBefore has another epoch.
func TestWhatIsResetIsGroupedAsBefore(t *testing.T) {
	g := newGangs(t)
	g.group("g", 2)
	g.pod(1, "g", 0)
	g.q.Reset(g.now, g.st)
	g.places("1 gated")
	g.pod(2, "g", 0)
	g.q.Reset(g.now, g.st)
	g.places("1 active, 2 active")
	g.wants("1 2")
}

// TestAllPodsOfAGroupAreOfOneShard: their classes are not.
func TestAllPodsOfAGroupAreOfOneShard(t *testing.T) {
	st := cluster.New(cluster.Version{Epoch: 1})
	do := func(d cluster.Delta) {
		if err := st.Apply(d); err != nil {
			t.Fatal(err)
		}
	}
	do(settings(8))
	shards, alone := make(map[int32]bool), make(map[int32]bool)
	for k := range 20 {
		do(cluster.ClassDefined{ID: cluster.ClassID(k), Spec: cpuClass(int64(100 + k))})
		do(cluster.PodSet{ID: cluster.PodID(k), Pod: cluster.Pod{UID: fmt.Sprint(k), Namespace: "a", Class: cluster.ClassID(k), Group: "g"}})
		shard, ok := ShardOf(st, st.Pod(cluster.PodID(k)))
		if !ok {
			t.Fatal("a pod of no shard")
		}
		shards[shard] = true
		other, _ := ShardOf(st, &cluster.PodRow{Pod: cluster.Pod{Class: cluster.ClassID(k)}})
		alone[other] = true
	}
	if len(shards) != 1 || len(alone) < 2 {
		t.Errorf("the pods are of the shards %v, and would be of %v without a group", shards, alone)
	}
}

// TestAPodThatIsHeldBackIsGatedIfItsGroupHasGone has the PodGroup of a gang deleted for which others are being evicted, and an eviction fail.
func TestAPodThatIsHeldBackIsGatedIfItsGroupHasGone(t *testing.T) {
	for _, failed := range []bool{false, true} {
		g := newGangs(t)
		g.group("g", 2)
		g.pod(1, "g", 5)
		g.pod(2, "g", 5)
		batch := g.wants("1 2")
		g.apply(cluster.PodSet{ID: 98, Pod: cluster.Pod{UID: "victim", NodeName: "n1", Priority: -1}}, cluster.PreemptionStarted{ID: 1, Node: 0, Victims: []cluster.PodID{98}})
		for _, a := range batch {
			g.q.Reject(g.now, g.st, a, Diagnosis{Version: g.st.Version()})
		}
		g.apply(cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.PodGroupKind, Namespace: "a", Name: "g"}})
		g.apply(cluster.PreemptionEnded{ID: 1, Failed: failed})
		g.places("1 gated, 2 gated")
		g.group("g", 2)
		g.now = g.now.Add(time.Hour)
		if _, batch := g.popped(10); len(batch) != 2 {
			t.Errorf("%d pods are tried, want both", len(batch))
		}
	}
}

// TestAGroupLargerThanABatchComesToRest has more pods than are tried at a time, none of which fits.
func TestAGroupLargerThanABatchComesToRest(t *testing.T) {
	g := newGangs(t)
	g.group("g", 2)
	for id := range cluster.PodID(LargestGroup + 2) {
		g.pod(id+100, "g", 0)
	}
	for _, want := range []int{LargestGroup, LargestGroup, 0} { // the second time, those that are left, and others
		_, batch := g.popped(10)
		if len(batch) != want {
			t.Fatalf("%d pods are tried, want %d", len(batch), want)
		}
		for _, a := range batch {
			g.q.Reject(g.now, g.st, a, Diagnosis{Version: g.st.Version(), Wake: WhenChanged})
		}
	}
}

// TestAGroupThatIsPostponedLeavesTheLineForASecond has those behind it popped meanwhile, also where nobody else is active, and its backoff does not grow.
func TestAGroupThatIsPostponedLeavesTheLineForASecond(t *testing.T) {
	g := newGangs(t)
	g.group("g", 2)
	g.pod(1, "g", 5)
	g.pod(2, "g", 5)
	for range 5 {
		batch := g.wants("1 2")
		g.pod(3, "", 0)
		for _, a := range batch {
			g.q.Postpone(g.now, a)
		}
		g.places("1 backoff, 2 backoff, 3 active")
		g.wants("3")
		g.wants("")
		g.apply(cluster.PodRemoved{ID: 3})
		g.now = g.now.Add(time.Second)
	}
	batch := g.wants("1 2")
	g.apply(cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.PodGroupKind, Namespace: "a", Name: "g"}})
	for _, a := range batch {
		g.q.Postpone(g.now, a) // in vain: the attempt is void
	}
	g.places("1 gated, 2 gated")
}

// TestAGangWhoseEvictionsFailIsTriedAgainAtOnce has its leader bring the others along.
func TestAGangWhoseEvictionsFailIsTriedAgainAtOnce(t *testing.T) {
	g := newGangs(t)
	g.group("g", 2)
	g.pod(1, "g", 5)
	g.pod(2, "g", 5)
	batch := g.wants("1 2")
	g.apply(cluster.PodSet{ID: 98, Pod: cluster.Pod{UID: "victim", NodeName: "n1", Priority: -1}}, cluster.PreemptionStarted{ID: 1, Node: 0, Victims: []cluster.PodID{98}})
	for _, a := range batch {
		g.q.Reject(g.now, g.st, a, Diagnosis{Version: g.st.Version(), Asked: true})
	}
	g.wants("")
	g.apply(cluster.PreemptionEnded{ID: 1, Failed: true})
	if _, batch := g.popped(10); len(batch) != 2 {
		t.Errorf("%d pods are tried, want both", len(batch))
	}
}

// TestAGangOfMorePodsThanAreTriedAtATimeSaysSo rather than that it fits nowhere, again and again.
func TestAGangOfMorePodsThanAreTriedAtATimeSaysSo(t *testing.T) {
	g := newGangs(t)
	g.group("g", LargestGroup+1)
	g.pod(1, "g", 0)
	g.places("1 gated")
	if want := "a gang of more than 10000 pods cannot be placed"; g.why(1) != want {
		t.Errorf("it says %q, want %q", g.why(1), want)
	}
}
