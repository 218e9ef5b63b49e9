package pending

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// hearing is a queue in which one pod sleeps that PodTopologySpread has rejected, and another is in flight. So many pods come to nodes that each
// are unlike any other, and the last but one brings those closer.
func hearing(t *testing.T, pods int) (w *volumeWorld, sleeps cluster.PodID, flies Attempt) {
	w = newVolumeWorldOf(t, nowhere{newCPUJudge()})
	w.look = func(*Queue, *cluster.State) {}
	w.apply(cluster.ClassDefined{ID: 7, Spec: lateClasses()[1]})
	w.node("n1", "a", 1000)
	first := w.pod("sleeps", 7, 5, "")
	w.reject(w.queue.Pop(w.now, 1)[0], w.st.Version(), engine.InterPodAffinity)
	w.pod("flies", 7, 5, "")
	flies = w.queue.Pop(w.now, 1)[0]
	w.queue.Recheck(w.now, w.st)
	for k := range pods {
		name := fmt.Sprint("other-", k)
		if k == pods-2 {
			labels := cluster.LabelsID(w.st.Version().Seq + 1)
			w.apply(cluster.LabelsDefined{ID: labels, Set: cluster.LabelSet{Namespace: "default", Labels: []cluster.Label{{Key: "app", Value: "a"}}}})
			w.apply(cluster.PodSet{ID: w.st.FreePod(), Pod: cluster.Pod{UID: name, Name: name, Namespace: "default", Labels: labels, NodeName: "n1"}})
			continue
		}
		w.pod(name, 0, 5, "n1")
	}
	return w, first, flies
}

func TestHintsAreGivenInParts(t *testing.T) {
	const pods = 200
	w, sleeps, _ := hearing(t, pods)
	heard := func() (n int) {
		for k := range w.queue.listeners.rows {
			n += w.queue.notes.after(w.queue.listeners.rows[k].value.upTo)
		}
		return n
	}
	for heard() < pods {
		before := heard()
		if done := w.queue.RecheckUntil(w.now, w.st, steps); done || heard() > before+1 {
			t.Fatalf("%d movements are heard of in one step; the look is over: %v", heard()-before, done)
		}
		w.pod(fmt.Sprint("later-", before), 0, 5, "n1") // the log goes on
	}
	if w.queue.Recheck(w.now, w.st); w.placeOf(sleeps) == Unschedulable {
		t.Error("the pod sleeps on, though another has come that it wants near")
	}
}

func TestAnAttemptEndsSoonHoweverMuchHasHappened(t *testing.T) {
	for name, look := range map[string]bool{"before a look": false, "amid one": true} {
		t.Run(name, func(t *testing.T) {
			w, _, flies := hearing(t, 200)
			for k := 0; look && k < 20; k++ {
				w.queue.RecheckUntil(w.now, w.st, steps)
			}
			key, _ := w.queue.pods[flies.ID].listens()
			upTo := w.queue.listeners.get(key).upTo
			w.reject(flies, w.st.Version(), engine.InterPodAffinity)
			if ls := w.queue.listeners.get(key); ls != nil && w.queue.notes.after(ls.upTo) > w.queue.notes.after(upTo)+mostHeardAtOnce {
				t.Errorf("at its end %d movements are heard of", w.queue.notes.after(ls.upTo))
			}
			if got := w.placeOf(flies.ID); got != Unschedulable {
				t.Fatalf("when it ends: %v", got)
			}
			if w.queue.Recheck(w.now, w.st); w.placeOf(flies.ID) == Unschedulable {
				t.Error("after the look it sleeps, though another has come that it wants near")
			}
		})
	}
}

// TestAPodThatJoinsThoseThatHaveBeenToldIsToldAsWell has an attempt end when a look has told those that its pod joins, which is not told yet.
func TestAPodThatJoinsThoseThatHaveBeenToldIsToldAsWell(t *testing.T) {
	w, sleeps, flies := hearing(t, 200)
	w.apply(cluster.PreemptionStarted{ID: sleeps, Node: 0, Victims: []cluster.PodID{w.pod("victim", 0, 1, "n1")}}) // it stays, whatever it is told
	w.apply(cluster.PodSet{ID: flies.ID, Pod: w.st.Pod(flies.ID).Pod})                                             // as it was: those that listen as it does come last
	e := w.queue.pods[sleeps]
	for w.queue.looking == nil || e.heard < w.queue.looking.until {
		w.queue.RecheckUntil(w.now, w.st, steps)
	}
	if heard := w.queue.pods[flies.ID].heard; heard >= w.queue.looking.until {
		t.Fatal("the other has been told first")
	}
	w.queue.RecheckUntil(w.now, w.st, steps)
	w.reject(flies, w.st.Version(), engine.InterPodAffinity)
	if got := w.placeOf(flies.ID); got != Unschedulable {
		t.Fatalf("when its attempt ends: %v", got)
	}
	w.queue.Recheck(w.now, w.st)
	if got := w.placeOf(flies.ID); got == Unschedulable {
		t.Error("after the look it sleeps, though another has come that it wants near")
	}
}

// TestALookBeginsWithoutCollectingWhatItIsAbout has very many pods, claims and nodes with pods of their own.
func TestALookBeginsWithoutCollectingWhatItIsAbout(t *testing.T) {
	const pods, most = 10_000, 32 << 10 // bytes: a pointer for each pod were 80,000
	w := newVolumeWorld(t)
	w.look = func(*Queue, *cluster.State) {}
	w.node("n1", "a", 100)
	w.set(&cluster.StorageClass{Name: "late", Provisioner: "driver", Mode: cluster.BindImmediately})
	for k := range pods {
		name := fmt.Sprint("data-", k)
		w.set(&cluster.PersistentVolumeClaim{Namespace: "default", Name: name, Class: "late", HasRequest: true, Request: 500})
		id := w.pod(fmt.Sprint("waits-", k), 0, 5, "", name)
		if k%2 == 0 {
			pod := w.st.Pod(id).Pod
			pod.RequiredNode = "n1"
			w.apply(cluster.PodSet{ID: id, Pod: pod})
		}
	}
	for _, a := range w.queue.Pop(w.now, pods) {
		w.reject(a, w.st.Version(), engine.NodeResourcesFit)
	}
	w.now = w.now.Add(time.Minute)
	w.queue.Recheck(w.now, w.st)
	w.set(&cluster.CSIStorageCapacity{Namespace: "system", Name: "room", Class: "late", HasLimit: true, Limit: 1}) // too little for any
	w.node("n1", "a", 101)
	w.apply(cluster.NamespaceSet{Name: "team"})
	w.pod("moves", 0, 5, "n1")
	var m runtime.MemStats
	taken := func() uint64 {
		runtime.ReadMemStats(&m)
		return m.TotalAlloc
	}
	parts := 0
	for done := false; !done; parts++ {
		before := taken()
		if done = w.queue.RecheckUntil(w.now, w.st, steps); taken()-before > most {
			t.Fatalf("part %d takes %d bytes", parts, taken()-before)
		}
	}
	if parts < pods {
		t.Errorf("%d parts", parts)
	}
}

func TestAPodThatNominatedPodsMakeRoomForIsLookedAtThoughOtherNodesMatterToIt(t *testing.T) {
	for _, claims := range []bool{false, true} {
		w := newFullWorld(t)
		spec := cpuClass(200)
		spec.AntiAffinity = podTerm("nobody", topologyZone)
		if !claims {
			spec.Disks = []cluster.Disk{{Migration: cluster.Migration{Plugin: "p", Driver: "driver", Handle: "four"}}}
			w.set(&cluster.CSINode{Name: "n1", Migrated: []string{"p"}, Drivers: []cluster.NodeDriver{{Name: "driver", Limited: true, Limit: 2}}})
		}
		w.apply(cluster.ClassDefined{ID: 7, Spec: spec})
		var of []string
		if claims {
			of = []string{"three"}
		}
		id := w.pod("waits", 7, 5, "", of...)
		for _, a := range w.queue.Pop(w.now, 10) {
			w.reject(a, w.st.Version(), engine.NodeVolumeLimits)
		}
		w.now = w.now.Add(time.Minute)
		if w.helped(id) || w.placeOf(id) != Unschedulable || !w.queue.pods[id].crossNode {
			t.Fatalf("claims %v: at first it is %v, and feasible: %v", claims, w.placeOf(id), w.helped(id))
		}
		w.set(&cluster.PersistentVolumeClaim{Namespace: "default", Name: "two", Volume: "one", Bound: true})
		if got := w.placeOf(id); !w.helped(id) || got != Active {
			t.Errorf("claims %v: feasible %v, but %v", claims, w.helped(id), got)
		}
	}
}

func TestALookKeepsAnswersAboutPodsOfOneKindAtATime(t *testing.T) {
	w, asked := newVolumeWorld(t), new(int)
	w.look = func(*Queue, *cluster.State) {}
	const classes, nodes = 40, 100
	for k := range classes {
		c := cluster.ClassID(10 + k)
		w.apply(cluster.ClassDefined{ID: c, Spec: cpuClass(int64(2000 + k))})
		for p := range 3 {
			w.pod(fmt.Sprint("p", k, "-", p), c, 5, "", fmt.Sprint("claim", k, "-", p))
		}
	}
	for k := range nodes {
		w.node(fmt.Sprint("n", k), "a", 100)
	}
	for _, a := range w.queue.Pop(w.now, 10000) {
		w.reject(a, w.st.Version(), engine.NodeName)
	}
	w.now = w.now.Add(time.Minute)
	w.queue.Recheck(w.now, w.st)
	w.queue.judge = counting{volumeJudge{newCPUJudge()}, asked}
	for k := range nodes {
		w.node(fmt.Sprint("n", k), "a", int64(101+2000*(k%2))) // half of them are large enough for those of the first classes
	}
	for !w.queue.RecheckUntil(w.now, w.st, steps) {
		if l := w.queue.lookingAside; l != nil && len(l.helping) > nodes {
			t.Fatalf("%d answers are kept, of %d nodes", len(l.helping), nodes)
		}
	}
	if want := classes*nodes + classes*3*nodes/2; *asked > want {
		t.Errorf("%d questions, want at most %d: one for each class and node, and one for each pod where that is of use", *asked, want)
	}
}

func TestAPodThatGoesAmidALookMakesItNoLonger(t *testing.T) {
	const pods, nodes = 256, 20
	w, asked := newVolumeWorld(t), new(int)
	w.look = func(*Queue, *cluster.State) {}
	for k := range pods {
		w.pod(fmt.Sprint("waits-", k), 0, 5, "", fmt.Sprint("data-", k))
	}
	for k := range nodes {
		w.node(fmt.Sprint("n", k), "a", 50)
	}
	for _, a := range w.queue.Pop(w.now, pods) {
		w.reject(a, w.st.Version(), engine.NodeName)
	}
	w.now = w.now.Add(time.Minute)
	w.queue.Recheck(w.now, w.st)
	w.queue.judge = counting{volumeJudge{newCPUJudge()}, asked}
	for k := range nodes {
		w.node(fmt.Sprint("n", k), "a", 51)
	}
	for done := false; !done; {
		if done = w.queue.RecheckUntil(w.now, w.st, steps); w.queue.aside.kinds.len() > 0 {
			w.apply(cluster.PodRemoved{ID: w.queue.aside.kinds.last().preemptors.last().id})
		}
	}
	if *asked > nodes {
		t.Errorf("%d questions, want one for each of %d nodes", *asked, nodes)
	}
}

func TestPodsThatComeBackInPartsAreOneQuestion(t *testing.T) {
	const pods = 256
	w, asked := newVolumeWorld(t), new(int)
	w.look = func(*Queue, *cluster.State) {}
	for k := range pods {
		w.pod(fmt.Sprint("waits-", k), 0, 5, "")
	}
	w.node("n1", "a", 50)
	for _, a := range w.queue.Pop(w.now, pods) {
		w.reject(a, w.st.Version(), engine.NodeName)
	}
	w.now = w.now.Add(time.Minute)
	w.queue.Recheck(w.now, w.st)
	w.queue.judge = counting{volumeJudge{newCPUJudge()}, asked}
	w.node("n1", "a", 500)
	for !w.queue.RecheckUntil(w.now, w.st, steps) {
	}
	if got := w.queue.Count(Unschedulable); got != 0 || *asked != 1 {
		t.Errorf("%d questions, and %d pods sleep on", *asked, got)
	}
}

func TestPodsWithClaimsMayHoldOthersWhileTheyAreLookedAt(t *testing.T) {
	w, _, _ := manyClaims(t, 100)
	floor := func(want bool, when string) {
		t.Helper()
		if got, ok := w.queue.PossibleFloor(); ok != want || ok && got != 5 {
			t.Errorf("%s: %d, %v; want %v", when, got, ok, want)
		}
	}
	floor(false, "before anything happens")
	w.node("n1", "a", 500)
	floor(true, "when a node has changed")
	for w.queue.lookingAside == nil {
		w.queue.RecheckUntil(w.now, w.st, steps)
	}
	floor(true, "amid the look aside")
	w.now = w.now.Add(asideHolds)
	w.queue.RecheckUntil(w.now, w.st, steps)
	floor(false, "when that takes long")
	w.node("n1", "a", 501)
	floor(true, "when a node has changed since")
	w.queue.Recheck(w.now, w.st)
	w.queue.Recheck(w.now, w.st)
	floor(false, "when all has been looked at")
	w.node("n1", "a", 500)
	for w.queue.lookingAside == nil {
		w.queue.RecheckUntil(w.now, w.st, steps)
	}
	floor(true, "amid the next look aside")
}

func TestWhatFollowsFromVerdictsIsForgottenWithThem(t *testing.T) {
	w := newVolumeWorld(t)
	id := w.pod("p", 0, 5, "", "data")
	for _, a := range w.queue.Pop(w.now, 1) {
		w.queue.Reject(w.now, w.st, a, Diagnosis{
			Version: w.st.Version(), Verdicts: []engine.VerdictCount{{Plugin: engine.NodeResourcesFit}}, CrossNode: true, Wake: WhenChanged, Keepers: 1 << 40,
		})
	}
	w.now = w.now.Add(time.Minute)
	w.queue.Activate(w.now, id)
	for _, a := range w.queue.Pop(w.now, 1) {
		w.queue.Fail(w.now, a, "no")
	}
	e := w.queue.pods[id]
	if got := e.said; got.message != "no" || len(got.verdicts) > 0 || got.rejected != 0 || got.wake != 0 || got.crossNode || got.related != 0 || !got.evaluated.IsZero() {
		t.Errorf("%+v is remembered", got)
	}
}
