package queue

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/services/queue/pending"
)

// claimsJudge says that pods with claims fit nowhere, and others only as far as their claims go, which they have none of: so for each pod with
// claims and each node that has changed there is a question.
type claimsJudge struct{ asked int } // about pods with claims

func (j *claimsJudge) Feasible(_ *cluster.State, s engine.Subject, _ cluster.PodID, _ cluster.NodeIndex) bool {
	if s.Class == plainClass {
		return false
	}
	if s.Labels != cluster.NoLabels {
		j.asked++
	}
	return s.Labels == cluster.NoLabels
}

func (*claimsJudge) Preemptable(*cluster.State, engine.Subject, cluster.PodID, cluster.NodeIndex) bool {
	return false
}
func (*claimsJudge) Preempts(*cluster.State, cluster.PodID) (why string, ok bool)    { return "", false }
func (*claimsJudge) Possible(*cluster.State, engine.Subject, cluster.NodeIndex) bool { return false }
func (*claimsJudge) CrossNode(*cluster.State, engine.Subject) bool                   { return false }
func (*claimsJudge) Signature(_ *cluster.State, s engine.Subject) engine.Signature {
	return engine.SignatureAlone(s)
}

const (
	plainClass   cluster.ClassID = 0 // of pods without claims
	claimsClass  cluster.ClassID = 1
	nodesOfShard                 = 8
)

// looking is a shard whose pods are unschedulable: one without claims, and some with. A look at the first takes as many steps as nodes have changed,
// and one at the others so many for each.
type looking struct {
	t     *testing.T
	sh    *shard
	st    *cluster.State
	judge *claimsJudge
	now   time.Time
}

func newLooking(t *testing.T, claiming int) *looking {
	t.Helper()
	w := &looking{t: t, st: cluster.New(cluster.Version{Epoch: 1}), judge: new(claimsJudge), now: time.Now().Add(-time.Hour)} // each part is over after a step
	w.sh = newShard(0, 0, w.judge, nil)
	w.apply(
		cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{engine.DefaultProfile("default-scheduler")}}},
		cluster.ClassDefined{ID: plainClass, Spec: cluster.ClassSpec{SchedulerName: "default-scheduler"}},
		cluster.ClassDefined{ID: claimsClass, Spec: cluster.ClassSpec{SchedulerName: "default-scheduler", NonZeroCPU: 1}},
		cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "plain", Class: plainClass}},
	)
	w.nodes(0)
	for k := range claiming {
		labels := cluster.LabelsID(k + 1)
		w.apply(
			cluster.LabelsDefined{ID: labels, Set: cluster.LabelSet{Namespace: "default", Claims: []cluster.PodClaim{{Name: fmt.Sprint("claim-", k)}}}},
			cluster.PodSet{ID: cluster.PodID(k + 1), Pod: cluster.Pod{UID: fmt.Sprint("claims-", k), Namespace: "default", Class: claimsClass, Labels: labels}},
		)
	}
	w.sh.reset(w.st)
	for _, a := range w.sh.queue.Pop(w.now, 1000) {
		w.sh.queue.Reject(w.now, w.st, a, pending.Diagnosis{Version: w.st.Version(), Verdicts: []engine.VerdictCount{{Plugin: engine.NodeResourcesFit, Reason: "full", Count: nodesOfShard}}})
	}
	for !w.look() {
	}
	return w
}

func (w *looking) apply(deltas ...cluster.Delta) {
	w.t.Helper()
	for _, d := range deltas {
		if err := w.st.Apply(d); err != nil {
			w.t.Fatal(err)
		}
		w.sh.apply(w.st, d)
	}
}

// nodes changes all nodes.
func (w *looking) nodes(n int64) {
	w.t.Helper()
	for i := range cluster.NodeIndex(nodesOfShard) {
		w.apply(cluster.NodeSet{Index: i, Node: cluster.Node{Name: fmt.Sprint("n", i), Allocatable: []cluster.Quantity{{Name: "cpu", Value: 1000 + n}, {Name: "pods", Value: 110}}}})
	}
}

// look does a step of each look that is under way.
func (w *looking) look() (done bool) {
	w.sh.mu.Lock()
	defer w.sh.mu.Unlock()
	return w.sh.look(w.now, w.st)
}

func (w *looking) forLong() bool {
	w.sh.mu.Lock()
	defer w.sh.mu.Unlock()
	return w.sh.looksForLong(w.now)
}

func TestALookIsWaitedForHoweverLongPodsWithClaimsHaveBeenLookedAt(t *testing.T) {
	w := newLooking(t, 50)
	ahead := func() bool { is, _ := w.sh.queue.Looking(); return is }
	w.nodes(1)
	if w.look(); !ahead() || w.forLong() {
		t.Fatalf("a look has begun: %v, for long: %v", ahead(), w.forLong())
	}
	if w.now = w.now.Add(possible); !w.forLong() {
		t.Error("a look is waited for beyond its time")
	}
	for ahead() {
		w.look()
	}
	if _, aside := w.sh.queue.Looking(); !aside {
		t.Fatal("pods with claims have been looked at to the end")
	}
	if w.now = w.now.Add(possible); !w.forLong() {
		t.Error("pods with claims are waited for beyond their time")
	}
	w.nodes(2)
	if w.look(); !ahead() || w.forLong() {
		t.Errorf("another look has begun: %v; it is not waited for: %v", ahead(), w.forLong())
	}
	if w.now = w.now.Add(possible); !w.forLong() {
		t.Error("the other look is waited for beyond its time")
	}
	for !w.look() {
	}
	if w.forLong() || w.sh.isLooking() {
		t.Error("the end of the looks is not noted")
	}
}

func TestPodsWithClaimsAreLookedAtThoughThereAreAlwaysOthersToLookAt(t *testing.T) {
	const pods = 10
	w := newLooking(t, pods)
	parts := 0
	for w.judge.asked < pods*nodesOfShard {
		if w.nodes(int64(parts + 1)); parts > 3*pods*nodesOfShard {
			t.Fatalf("after %d parts only %d of %d questions about pods with claims have been asked", parts, w.judge.asked, pods*nodesOfShard)
		}
		w.look()
		parts++
	}
}

func TestABatchHasAboutAsManyClaimsAsCanBeLookedUpAtOnce(t *testing.T) {
	const pods = 300
	for claims, want := range map[int]int{0: 256, 1: 256, 4: 256, 5: 205, 100: 11, 256: 4, 2000: 1} {
		st := cluster.New(cluster.Version{Epoch: 1})
		sh := newShard(0, 0, nil, nil)
		apply := func(deltas ...cluster.Delta) {
			for _, d := range deltas {
				if err := st.Apply(d); err != nil {
					t.Fatal(err)
				}
				sh.apply(st, d)
			}
		}
		apply(
			cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{engine.DefaultProfile("default-scheduler")}}},
			cluster.ClassDefined{Spec: cluster.ClassSpec{SchedulerName: "default-scheduler"}},
		)
		for k := range pods {
			set := cluster.LabelSet{Namespace: "default", Labels: []cluster.Label{{Key: "pod", Value: fmt.Sprint(k)}}}
			for c := range claims {
				set.Claims = append(set.Claims, cluster.PodClaim{Name: fmt.Sprintf("claim-%d-%d", k, c)})
			}
			apply(
				cluster.LabelsDefined{ID: cluster.LabelsID(k + 1), Set: set},
				cluster.PodSet{ID: cluster.PodID(k), Pod: cluster.Pod{UID: fmt.Sprint(k), Namespace: "default", Labels: cluster.LabelsID(k + 1)}},
			)
		}
		d := &driver{s: &Service{cfg: Config{BatchSize: 256}}, sh: sh}
		batch, outranked := d.popBatch(time.Now(), st, pending.AnyPriority)
		if len(batch) != want || outranked {
			t.Errorf("a batch of pods with %d claims each has %d pods, want %d; outranked: %v", claims, len(batch), want, outranked)
		}
		if left := sh.queue.Count(pending.Active); left != pods-len(batch) {
			t.Errorf("%d of %d pods with %d claims are left behind a batch of %d", left, pods, claims, len(batch))
		}
		if batch, outranked := d.popBatch(time.Now(), st, 1); len(batch) > 0 || !outranked {
			t.Errorf("above the priority of all pods %d were popped; outranked: %v", len(batch), outranked)
		}
	}
}

// TestOneOfAllPreemptorsTriesWhetherADriverDetaches when it has been doubted for long, and not for each of them pods are evicted. Who finds nobody to evict
// has not tried.
func TestOneOfAllPreemptorsTriesWhetherADriverDetaches(t *testing.T) {
	w := newLooking(t, 0)
	now := w.now
	doubt := func(drivers ...string) {
		w.sh.with(func(*pending.Queue, time.Time) { w.sh.doubt(drivers, now) })
	}
	check := func(what string, want bool, due ...string) {
		t.Helper()
		for driver, doubted := range map[string]bool{"dead": want, "well": false} {
			got, tries := w.sh.doubts([]string{driver}, now)
			if got != doubted || driver == "dead" && !slices.Equal(tries, due) {
				t.Errorf("%s: %s is doubted: %v, and to be tried: %q; want %v, and %q", what, driver, got, tries, doubted, due)
			}
		}
	}
	check("at first", false)
	doubt("dead")
	now = now.Add(undetachedFor - time.Second)
	check("before its time", true)
	now = now.Add(time.Second)
	check("in its time", false, "dead")
	check("as nobody was evicted", false, "dead")
	w.sh.trying([]string{"dead"}, now)
	check("when one tries", true)
	now = now.Add(triedFor)
	check("when nothing is known of that", false, "dead")
	w.sh.trying([]string{"dead"}, now)
	doubt("dead")
	now = now.Add(undetachedFor - time.Second)
	check("when that was in vain", true)
}

// TestADriverIsDoubtedNoMoreThatHasNothingToDetach, which may have been while the log was not told; and of too many, those are doubted that were last.
func TestADriverIsDoubtedNoMoreThatHasNothingToDetach(t *testing.T) {
	w := newLooking(t, 0)
	w.apply(
		cluster.ObjectSet{Object: &cluster.CSINode{Name: w.st.Nodes.Spec[0].Name, Drivers: []cluster.NodeDriver{{Name: "dead", Limited: true, Limit: 1}}}},
		cluster.ObjectSet{Object: &cluster.PersistentVolume{Name: "pv", Driver: "dead", Handle: "h"}},
		cluster.ObjectSet{Object: &cluster.VolumeAttachment{Name: "a", Attacher: "dead", Node: w.st.Nodes.Spec[0].Name, Volume: "pv"}},
	)
	w.sh.with(func(*pending.Queue, time.Time) { w.sh.doubt([]string{"dead", "well"}, w.now) })
	w.sh.reset(w.st)
	for driver, want := range map[string]bool{"dead": true, "well": false} {
		if got, _ := w.sh.doubts([]string{driver}, w.now); got != want {
			t.Errorf("%s is doubted: %v, want %v", driver, got, want)
		}
	}
	for k := range maxUndetached {
		w.sh.with(func(*pending.Queue, time.Time) {
			w.sh.doubt([]string{fmt.Sprint("driver-", k)}, w.now.Add(time.Duration(k+1)))
		})
	}
	if got, _ := w.sh.doubts([]string{"dead"}, w.now); got || len(w.sh.undetached) != maxUndetached {
		t.Errorf("of %d drivers, the first is doubted: %v", len(w.sh.undetached), got)
	}
}
