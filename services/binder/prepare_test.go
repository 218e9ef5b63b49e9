package binder

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/test/bubble"
)

// claiming returns a pod that uses claims.
func claiming(uid string, cpu int64, names ...string) source.Pod {
	p := pod(uid, cpu)
	for _, name := range names {
		p.Labels.Claims = append(p.Labels.Claims, cluster.PodClaim{Name: name})
	}
	return p
}

// storage sets a class without a provisioner, "static", and one with, "made", of which claims wait for a consumer.
func storage(src *fakeSource) {
	src.setObjects(
		&cluster.StorageClass{Name: "static", Provisioner: "kubernetes.io/no-provisioner", Mode: cluster.BindToFirstConsumer},
		&cluster.StorageClass{Name: "made", Provisioner: "csi", Mode: cluster.BindToFirstConsumer},
	)
}

func waitingClaim(name, class string) *cluster.PersistentVolumeClaim {
	return &cluster.PersistentVolumeClaim{
		Namespace: "default", Name: name, UID: "uid-" + name, Class: class, HasRequest: true, Request: 5, AccessModes: []string{"ReadWriteOnce"}, Mode: "Filesystem",
	}
}

func freeVolume(name string, capacity int64) *cluster.PersistentVolume {
	return &cluster.PersistentVolume{Name: name, Class: "static", Capacity: capacity, AccessModes: []string{"ReadWriteOnce"}, Mode: "Filesystem", Available: true}
}

func TestAPodIsBoundWhenItsClaimsAre(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	storage(src)
	src.setNode(node("a", 1000))
	src.setObjects(freeVolume("v", 5), waitingClaim("c", "static"), waitingClaim("m", "made"), waitingClaim("d", "static"))
	src.setPod(claiming("p", 10, "c", "m"))
	other := connect(t, etcd, prefix)
	recorded := make(chan []coord.Intent, 1)
	src.answersVolumes(func(source.VolumeBinding) source.Outcome {
		var all []coord.Intent
		record, err := other.ReadRecord(t.Context())
		if err != nil {
			t.Error(err)
		}
		for _, b := range record.Batches {
			all = append(all, b.Batch.Intents...)
		}
		recorded <- all
		return source.Outcome{Result: source.BindDone}
	})
	b := start(t, etcd, src)
	b.active()
	if got := b.commit(b.request(1, "p")); got[0] != "assumed" {
		t.Fatalf("p is %s", got[0])
	}
	// What was chosen is recorded before anything is written.
	choice := []cluster.VolumeChoice{{Claim: "c", UID: "uid-c", Volume: "v"}, {Claim: "m", UID: "uid-m"}}
	want := coord.Intent{PodUID: "p", Namespace: "default", Name: "p", Node: "a", Scheduler: scheduler}
	for _, v := range choice {
		want.Volumes = append(want.Volumes, coord.VolumeIntent{Claim: v.Claim, ClaimUID: v.UID, Volume: v.Volume})
	}
	if diff := cmp.Diff([]coord.Intent{want}, <-recorded); diff != "" {
		t.Errorf("recorded (-want +got):\n%s", diff)
	}
	src.answersVolumes(nil)
	eventually(t, "claims are written", func() bool {
		src.mu.Lock()
		defer src.mu.Unlock()
		return src.volume("v").HasClaim && src.claim("default", "m").SelectedNode == "a"
	})
	// The volume is nobody else's.
	src.setPod(claiming("q", 10, "d"))
	if got := b.commit(b.request(1, "q")); got[0] == "assumed" {
		t.Error("a volume is promised twice")
	}
	src.bindClaim("c", "v")
	never(t, "a pod is bound of which a claim is not", func() bool { return len(src.tried("p")) > 0 })
	if got := b.term.Load().unbound.count(); got != 0 {
		t.Errorf("%d count as unbound", got)
	}
	if got := b.term.Load().preparing.bound.count(); got != 1 {
		t.Errorf("%d are being prepared", got)
	}
	src.setObjects(freeVolume("made", 5))
	src.bindClaim("m", "made")
	b.awaitPhase("p", "bound on a")
	eventually(t, "nothing is left", func() bool {
		term := b.term.Load()
		return len(intents(t, other)) == 0 && term.unbound.count() == 0 && term.preparing.bound.count() == 0 && len(term.preparing.claims) == 0
	})
}

func TestAPodIsGivenBackIfItsClaimsAreNotBound(t *testing.T) {
	const text = `running PreBind plugin "VolumeBinding": `
	for name, tt := range map[string]struct {
		timeout time.Duration
		refuse  error // of the write
		then    func(*fakeSource)
		want    string
	}{
		"a provisioner says no": {
			timeout: time.Hour,
			then: func(src *fakeSource) {
				src.editClaim("m", func(c *cluster.PersistentVolumeClaim) { c.HasSelectedNode, c.SelectedNode = false, "" })
			},
			want: text + `binding volumes: provisioning failed for PVC "m"`,
		},
		"a volume is given to nobody any more": {
			timeout: time.Hour,
			then: func(src *fakeSource) {
				src.editVolume("v", func(v *cluster.PersistentVolume) { v.HasClaim, v.Claim = false, cluster.ClaimReference{} })
			},
			want: text + `binding volumes: ClaimRef got reset for pv "v"`,
		},
		"a volume that is gone": {
			timeout: time.Hour,
			then:    func(src *fakeSource) { src.removeObject((&cluster.PersistentVolume{Name: "v"}).Key()) },
			want:    text + `binding volumes: failed to check binding: persistentvolumes "v" not found`,
		},
		"a claim that is another": {
			timeout: time.Hour,
			then: func(src *fakeSource) {
				src.editClaim("m", func(c *cluster.PersistentVolumeClaim) { c.UID = "another" })
			},
			want: text + `binding volumes: failed to check provisioning pvc: persistentvolumeclaims "default/m" not found`,
		},
		"time is up":           {want: text + "binding volumes: context deadline exceeded"},
		"the write is refused": {timeout: time.Hour, refuse: errFake, want: text + errFake.Error()},
		"a node that is gone":  {timeout: time.Hour, then: func(src *fakeSource) { src.removeNode("a") }, want: text + `binding volumes: failed to get node "a": node "a" not found`},
		"a volume that moves away": {
			timeout: time.Hour,
			then: func(src *fakeSource) {
				src.editVolume("v", func(v *cluster.PersistentVolume) { v.HasAffinity = true })
			},
			want: text + `binding volumes: pv "v" node affinity doesn't match node "a": no matching NodeSelectorTerms`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			etcd, src := startEtcd(t), newFakeSource()
			storage(src)
			src.setNode(node("a", 1000))
			src.setObjects(freeVolume("v", 5), waitingClaim("c", "static"), waitingClaim("m", "made"))
			src.setPod(claiming("p", 10, "c", "m"))
			if tt.refuse != nil {
				src.answersVolumes(func(source.VolumeBinding) source.Outcome {
					return source.Outcome{Result: source.BindRefused, Err: tt.refuse}
				})
			}
			registry := prometheus.NewRegistry()
			b := start(t, etcd, src, func(c *Config) { c.BindTimeouts, c.Metrics = map[string]time.Duration{scheduler: tt.timeout}, registry })
			b.active()
			if got := b.commit(b.request(1, "p")); got[0] != "assumed" {
				t.Fatalf("p is %s", got[0])
			}
			if tt.then != nil {
				eventually(t, "claims are written", func() bool { return len(src.triedVolumes("p")) > 0 })
				tt.then(src)
			}
			b.awaitPhase("p", "pending")
			eventually(t, "it is said why", func() bool { return len(src.reported("p")) > 0 })
			if got := src.reported("p")[0]; got.Message != tt.want || got.Reason != reasonError {
				t.Errorf("%s: %s\nwant %s", got.Reason, got.Message, tt.want)
			}
			if len(src.tried("p")) > 0 || len(src.withdrawals()) > 0 {
				t.Error("a bind was sent, or taken back")
			}
			if diff := cmp.Diff(map[string]float64{"bind": 1}, counts(t, registry, "scheduler_volume_scheduling_stage_error_total")); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
			b.look(func(st *cluster.State) {
				if _, _, promised := st.Promised("v"); promised {
					t.Error("the volume is still promised")
				}
			})
			term := b.term.Load()
			eventually(t, "nothing is left", func() bool {
				return len(intents(t, connect(t, etcd, prefix))) == 0 && term.unbound.count() == 0 && term.preparing.bound.count() == 0
			})
		})
	}
}

// TestTheNextBinderTakesTheSameChoiceUpAgain, whatever would be chosen by then.
func TestTheNextBinderTakesTheSameChoiceUpAgain(t *testing.T) {
	for _, written := range []bool{false, true} {
		etcd, src := startEtcd(t), newFakeSource()
		storage(src)
		src.setNode(node("a", 1000))
		src.setNode(node("b", 1000))
		src.setObjects(freeVolume("v5", 5), waitingClaim("c", "static"), waitingClaim("m", "made"))
		src.setPod(claiming("p", 10, "c", "m"))
		if !written {
			src.answersVolumes(func(source.VolumeBinding) source.Outcome {
				return source.Outcome{Result: source.BindUnknown, Err: errFake}
			})
		}
		first := start(t, etcd, src, named("first"))
		first.active()
		first.commit(first.request(1, "p"))
		eventually(t, "a write was tried", func() bool { return len(src.triedVolumes("p")) > 0 })
		before := src.triedVolumes("p")[0]
		second := start(t, etcd, src, named("second"))
		first.stop()
		src.setObjects(func() *cluster.PersistentVolume { v := freeVolume("v0", 5); return v }())
		src.answersVolumes(nil)
		second.active()
		if got := second.phase("p"); got != "assumed on "+before.Node {
			t.Fatalf("p is %s", got)
		}
		eventually(t, "it is written", func() bool {
			src.mu.Lock()
			defer src.mu.Unlock()
			return src.volume("v5").HasClaim && src.claim("default", "m").SelectedNode == before.Node
		})
		src.setObjects(freeVolume("made", 5))
		src.bindClaim("c", "v5")
		src.bindClaim("m", "made")
		second.awaitPhase("p", "bound on "+before.Node)
		for _, b := range src.triedVolumes("p") {
			if diff := cmp.Diff(before.Choices, b.Choices); diff != "" || b.Node != before.Node {
				t.Errorf("written: %v: on %s, then on %s, (-before +then):\n%s", written, before.Node, b.Node, diff)
			}
		}
		second.stop()
	}
}

// TestNothingElseIsChosenForAClaimOfWhichAWriteIsUnderWay, though the pod that it was for is gone.
func TestNothingElseIsChosenForAClaimOfWhichAWriteIsUnderWay(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	storage(src)
	src.setNode(node("a", 1000))
	src.setObjects(freeVolume("v", 9), waitingClaim("c", "static"))
	src.setPod(claiming("p", 10, "c"))
	hold := make(chan struct{})
	src.answersVolumes(func(b source.VolumeBinding) source.Outcome {
		select {
		case <-hold:
			return source.Outcome{Result: source.BindDone}
		default:
			return source.Outcome{Result: source.BindUnknown, Err: errFake}
		}
	})
	b := start(t, etcd, src)
	b.active()
	b.commit(b.request(1, "p"))
	eventually(t, "a write was tried", func() bool { return len(src.triedVolumes("p")) > 0 })
	src.deletePod("p")
	src.setObjects(freeVolume("better", 5), waitingClaim("d", "static"))
	src.setPod(claiming("q", 10, "c"))
	src.setPod(claiming("r", 10, "d"))
	eventually(t, "p is gone", func() bool { return b.phase("p") == "gone" })
	for _, uid := range []string{"q", "r"} {
		if got := b.commit(b.request(1, uid)); got[0] != "assumed" {
			t.Errorf("%s is %s", uid, got[0])
		}
		want := map[string]string{"q": "v", "r": "better"}[uid] // which comes first, and is nobody's
		var got []cluster.VolumeChoice
		b.look(func(st *cluster.State) {
			id, _ := st.PodByUID(uid)
			got = st.Chosen(id)
		})
		if len(got) != 1 || got[0].Volume != want {
			t.Errorf("%s gets %v, want %s", uid, got, want)
		}
	}
	close(hold)
	eventually(t, "an end is made of the writes for the pod that is gone", func() bool {
		tried := src.triedVolumes("p")
		return tried[len(tried)-1].Void
	})
	src.bindClaim("c", "v")
	b.awaitPhase("q", "bound on a")
}

// TestPodsThatWaitForTheirClaimsHoldUpNoOthers: they count against a bound of their own.
func TestPodsThatWaitForTheirClaimsHoldUpNoOthers(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	storage(src)
	src.setNode(node("a", 1000))
	for _, name := range []string{"c", "d", "e"} {
		src.setObjects(waitingClaim(name, "made"))
		src.setPod(claiming("with-"+name, 10, name))
	}
	src.setPod(pod("p", 10))
	src.setPod(pod("q", 10))
	b := start(t, etcd, src, func(c *Config) { c.MaxUnbound = 4 }) // half of it for a namespace
	b.active()
	for _, uid := range []string{"with-c", "with-d"} {
		eventually(t, uid+" is assumed", func() bool { return b.commit(b.request(1, uid))[0] == "assumed" })
	}
	eventually(t, "claims are written", func() bool { return b.term.Load().unbound.count() == 0 })
	if got := b.commit(b.request(1, "with-e")); got[0] != "busy" {
		t.Errorf("a third pod that waits for its claim is %s", got[0])
	}
	if got := strings.Join(b.commit(b.request(1, "p", "q")), " "); got != "assumed assumed" {
		t.Errorf("others are %s", got)
	}
	b.awaitPhase("p", "bound on a")
	src.setObjects(freeVolume("made", 5))
	src.bindClaim("c", "made")
	b.awaitPhase("with-c", "bound on a")
	eventually(t, "there is room for another", func() bool { return b.commit(b.request(2, "with-e"))[0] == "assumed" })
}

// TestProvisionersThatNeverAnswerHoldUpNoOthers: pods of many namespaces wait for one, and of one for several.
func TestProvisionersThatNeverAnswerHoldUpNoOthers(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	storage(src)
	src.setObjects(&cluster.StorageClass{Name: "another", Provisioner: "csi", Mode: cluster.BindToFirstConsumer})
	src.setNode(node("a", 1000))
	waits := func(uid, namespace, class string) {
		claim := waitingClaim(uid, class)
		claim.Namespace = namespace
		src.setObjects(claim)
		p := claiming(uid, 10, uid)
		p.Namespace, p.Labels.Namespace = namespace, namespace
		src.setPod(p)
	}
	for k := range 4 {
		waits(fmt.Sprintf("dead-%d", k), fmt.Sprintf("n%d", k), "made")
	}
	waits("same-0", "n", "made")
	waits("same-1", "n", "made")
	waits("same-2", "n", "made")
	waits("other", "n", "another")
	b := start(t, etcd, src, func(c *Config) {
		c.MaxUnbound, c.BindTimeouts = 4, map[string]time.Duration{scheduler: 100 * time.Second} // overdue after 5 s
	})
	b.active()
	assumed := func(uid string) bool { return b.commit(b.request(1, uid))[0] == "assumed" }
	eventually(t, "two of a namespace have half of the room", func() bool { return assumed("same-0") })
	eventually(t, "two of a namespace have half of the room", func() bool { return assumed("same-1") })
	if assumed("same-2") {
		t.Error("a third has more than half")
	}
	if !assumed("other") {
		t.Error("one of another class has none of the rest")
	}
	for k := range 4 {
		uid := fmt.Sprintf("dead-%d", k)
		eventually(t, uid+" has room when those before are overdue", func() bool { return assumed(uid) })
	}
	term := b.term.Load()
	if got := term.preparing.bound.count(); got != 7 {
		t.Errorf("%d are prepared at once", got)
	}
	for _, uid := range []string{"same-0", "same-1", "other", "dead-0", "dead-1", "dead-2", "dead-3"} {
		src.deletePod(uid)
	}
	eventually(t, "nothing is left", func() bool { return term.preparing.bound.count() == 0 })
	term.preparing.bound.mu.Lock()
	defer term.preparing.bound.mu.Unlock()
	if term.preparing.bound.stuck != 0 {
		t.Errorf("%d count as stuck, of none", term.preparing.bound.stuck)
	}
}

// TestIntentsThatContradictEachOtherEndNoTerm: no binder has meant them, but an etcd that was restored may have them.
func TestIntentsThatContradictEachOtherEndNoTerm(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	storage(src)
	src.setNode(node("a", 1000))
	src.setObjects(freeVolume("v", 5), waitingClaim("c", "static"), waitingClaim("d", "static"))
	src.setPod(claiming("p", 10, "c"))
	src.setPod(claiming("q", 10, "d"))
	volumes := func(uid, claim, volume string) coord.Intent {
		in := meant(uid, "a")
		in.Volumes = []coord.VolumeIntent{{Claim: claim, ClaimUID: "uid-" + claim, Volume: volume}}
		return in
	}
	leave(t, etcd, coord.Batch{ID: 1, Intents: []coord.Intent{volumes("p", "c", "v"), volumes("q", "d", "v"), volumes("gone", "e", "v"), volumes("r", "c", "w")}})
	b := start(t, etcd, src)
	epoch := b.active()
	b.awaitPhase("q", "pending")
	src.bindClaim("c", "v")
	b.awaitPhase("p", "bound on a")
	eventually(t, "nothing is left", func() bool { return len(intents(t, connect(t, etcd, prefix))) == 0 })
	if now := b.active(); now != epoch {
		t.Errorf("epoch %d has ended", epoch)
	}
	if got := src.withdrawals(); len(got) != 1 || got[0].UID != "q" {
		t.Errorf("withdrawn: %v", got)
	}
}

// TestABatchOfWhichLittleIsLeftIsWrittenAnew: pods that wait for their claims keep no others in etcd.
func TestABatchOfWhichLittleIsLeftIsWrittenAnew(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		term := pureTerm(t, newFakeSource())
		observe(t, term, node("a", 100_000))
		var batch []*placement
		for i := range 8 {
			uid := fmt.Sprint("p", i)
			observe(t, term, pod(uid, 10))
			batch = append(batch, assume(t, term, uid, "a"))
		}
		r := term.recorder
		for i, p := range batch {
			delete(r.open, p.batch)
			p.batch, p.index = 50, i
		}
		r.adopt(50, 0, batch)
		written := record(t, term)
		written.batches[50] = newBatch(50, 0, batch).Intents
		left := func() int { return len(record(t, term).batches[50]) }
		for _, p := range batch[:6] {
			term.decided(p, stateReleased, source.BindElsewhere)
		}
		if got := left(); got != 8 {
			t.Errorf("at once %d are left", got)
		}
		elapse(sparseAfter)
		if got := left(); got != 2 || len(written.shrunk) != 1 {
			t.Errorf("then %d are left, by %d writes", got, len(written.shrunk))
		}
		term.decided(batch[6], stateReleased, source.BindElsewhere)
		if got := left(); got != 2 {
			t.Errorf("behind one more %d are left: it is not a quarter", got)
		}
		term.decided(batch[7], stateReleased, source.BindElsewhere)
		observe(t, term, pod("later", 10)) // a later version
		if got := left(); got != 0 || len(r.open)+len(r.sparse) != 0 {
			t.Errorf("in the end %d are left, %d open and %d sparse", got, len(r.open), len(r.sparse))
		}
	})
}

// TestAPodGoesElsewhereIfAProvisionerSaysNo: nothing that filters or scores read may say so.
func TestAPodGoesElsewhereIfAProvisionerSaysNo(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	storage(src)
	for _, name := range []string{"a", "b", "c"} {
		src.setNode(node(name, 1000))
	}
	src.setObjects(waitingClaim("m", "made"))
	src.setPod(claiming("p", 10, "m"))
	b := start(t, etcd, src)
	b.active()
	var on []string
	for attempt := range 4 {
		if got := b.commit(b.request(int32(attempt)+1, "p")); got[0] != "assumed" {
			t.Fatalf("p is %s", got[0])
		}
		eventually(t, "its claim is written", func() bool { return len(src.triedVolumes("p")) > attempt })
		on = append(on, src.triedVolumes("p")[attempt].Node)
		if attempt == 3 {
			break
		}
		src.editClaim("m", func(c *cluster.PersistentVolumeClaim) { c.HasSelectedNode, c.SelectedNode = false, "" })
		b.awaitPhase("p", "pending")
		eventually(t, "it is said where it is nominated", func() bool { return len(src.reported("p")) > attempt })
		on = append(on, src.reported("p")[attempt].Nominated)
	}
	// Each is another one, and where it is nominated; when none is left, the first is tried again.
	first, second, third := on[0], on[2], on[4]
	if want := []string{first, second, second, third, third, "", first}; !slices.Equal(on, want) || first == second || second == third || third == first {
		t.Errorf("p is on, and nominated to, %q", on)
	}
	src.setObjects(freeVolume("made", 5))
	src.bindClaim("m", "made")
	b.awaitPhase("p", "bound on "+first)
	b.look(func(*cluster.State) {
		if n := len(b.term.Load().ledger.unprovided); n > 0 {
			t.Errorf("of %d pods it is remembered where they got nothing", n)
		}
	})
}

// TestAPodOfWhichNobodyWouldEndTheNominationGoesNowhereElse: its profile does not preempt.
func TestAPodOfWhichNobodyWouldEndTheNominationGoesNowhereElse(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	storage(src)
	src.setNode(node("a", 1000))
	src.setNode(node("b", 1000))
	src.setObjects(waitingClaim("m", "made"))
	src.setPod(claiming("p", 10, "m"))
	b := start(t, etcd, src, func(c *Config) { c.Settings.Profiles[0].PostFilters = []string{"DynamicResources"} })
	b.active()
	if got := b.commit(b.request(1, "p")); got[0] != "assumed" {
		t.Fatalf("p is %s", got[0])
	}
	eventually(t, "its claim is written", func() bool { return len(src.triedVolumes("p")) > 0 })
	src.editClaim("m", func(c *cluster.PersistentVolumeClaim) { c.HasSelectedNode, c.SelectedNode = false, "" })
	eventually(t, "it is told why", func() bool { return len(src.reported("p")) > 0 })
	if got := src.reported("p")[0]; got.Nominated != "" {
		t.Errorf("p is nominated to %q", got.Nominated)
	}
}

// canceling has v, of little priority, wait for its claim on a node that it fills, and high preempt it.
func canceling(t *testing.T, options ...func(*Config)) (*fakeSource, *running) {
	t.Helper()
	etcd, src := startEtcd(t), newFakeSource()
	storage(src)
	src.setNode(node("a", 10))
	src.setObjects(waitingClaim("c", "made"))
	src.setPod(claiming("v", 10, "c"))
	src.setPod(prior(pod("high", 10), 10))
	b := start(t, etcd, src, options...)
	b.active()
	return src, b
}

// preemptV has high preempt v when a write for its claim has been tried.
func (b *running) preemptV(src *fakeSource) {
	b.t.Helper()
	if got := b.commit(b.request(1, "v")); got[0] != "assumed" {
		b.t.Fatalf("v is %s", got[0])
	}
	eventually(b.t, "a write is tried", func() bool { return len(src.triedVolumes("v")) > 0 })
	var st *cluster.State
	b.look(func(now *cluster.State) { st = now.Clone() })
	if _, err := b.term.Load().preempt(preemptOf(st, "high", "a", "v")); err != nil {
		b.t.Fatal(err)
	}
}

// TestAVictimThatWaitsForItsClaimsIsNotDeleted: nothing of it runs anywhere.
func TestAVictimThatWaitsForItsClaimsIsNotDeleted(t *testing.T) {
	src, b := canceling(t)
	b.preemptV(src)
	b.awaitPhase("v", "pending")
	eventually(t, "it is said why", func() bool { return len(src.reported("v")) > 0 })
	if got := src.reported("v")[0]; got.Message != `running PreBind plugin "VolumeBinding": binding volumes: context canceled` || !got.Nominate || got.Nominated != "" {
		t.Errorf("told of v: %+v", got)
	}
	eventually(t, "its event is written", func() bool {
		src.mu.Lock()
		defer src.mu.Unlock()
		return len(src.preempted) == 1 && src.preempted[0].Canceled
	})
	if got := b.commit(b.request(2, "high")); got[0] != "assumed" {
		t.Errorf("high is %s", got[0])
	}
	if got := src.evictions(); len(got) > 0 {
		t.Errorf("%v are deleted", got)
	}
	b.awaitPhase("high", "bound on a")
}

// TestAVictimOfWhichAWriteIsInDoubtIsDeletedAfterAll: its write may keep its room for ever.
func TestAVictimOfWhichAWriteIsInDoubtIsDeletedAfterAll(t *testing.T) {
	src, b := canceling(t)
	src.answersVolumes(unknownFor("v"))
	b.preemptV(src)
	eventually(t, "v is deleted", func() bool { return slices.Equal(src.evictions(), []string{"v"}) })
	if got := b.phase("high"); got != "pending" {
		t.Errorf("high is %s", got)
	}
	src.deletePod("v")
	eventually(t, "high has its room", func() bool { return b.commit(b.request(2, "high"))[0] == "assumed" })
	src.answersVolumes(nil)
	eventually(t, "nothing is left", func() bool {
		pr := b.term.Load().preparing
		pr.mu.Lock()
		defer pr.mu.Unlock()
		return len(pr.claims) == 0 && len(pr.of) == 0
	})
}

// TestAVictimWhoseClaimsAreBoundIsDeleted: a bind of it may be under way.
func TestAVictimWhoseClaimsAreBoundIsDeleted(t *testing.T) {
	src, b := canceling(t)
	src.setObjects(freeVolume("made", 5))
	src.answers(func(source.Binding) source.Outcome { return source.Outcome{Result: source.BindUnknown, Err: errFake} })
	if got := b.commit(b.request(1, "v")); got[0] != "assumed" {
		t.Fatalf("v is %s", got[0])
	}
	eventually(t, "its claim is written", func() bool { return len(src.triedVolumes("v")) > 0 })
	src.bindClaim("c", "made")
	eventually(t, "its bind is sent", func() bool { return len(src.tried("v")) > 0 })
	var st *cluster.State
	b.look(func(now *cluster.State) { st = now.Clone() })
	if _, err := b.term.Load().preempt(preemptOf(st, "high", "a", "v")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "v is deleted", func() bool { return slices.Equal(src.evictions(), []string{"v"}) })
}

// TestItIsToldWhereAPodIsToGoThatWaitsForItsClaims, as long as it does.
func TestItIsToldWhereAPodIsToGoThatWaitsForItsClaims(t *testing.T) {
	src, b := canceling(t)
	b.commit(b.request(1, "v"))
	nominations := func() (nodes []string) {
		src.mu.Lock()
		defer src.mu.Unlock()
		for _, n := range src.nominations {
			nodes = append(nodes, n.UID+" on "+n.Node)
		}
		return nodes
	}
	eventually(t, "it is told where v is to go", func() bool { return len(nominations()) > 0 })
	// The watch tells so, too; that changes nothing.
	told := claiming("v", 10, "c")
	told.Nominated = "a"
	src.setPod(told)
	src.editClaim("c", func(c *cluster.PersistentVolumeClaim) { c.HasSelectedNode, c.SelectedNode = false, "" })
	b.awaitPhase("v", "pending")
	eventually(t, "that ends", func() bool { return len(src.reported("v")) > 0 && src.reported("v")[0].Nominate })
	if got := src.reported("v")[0]; got.Nominated != "" || got.Assumed {
		t.Errorf("told of v: %+v", got)
	}
	if got := nominations(); !slices.Equal(got, []string{"v on a"}) {
		t.Errorf("nominated: %v", got)
	}
	b.look(func(st *cluster.State) {
		if id, _ := st.PodByUID("v"); st.Pod(id).Nominated != "" {
			t.Errorf("v is nominated to %q", st.Pod(id).Nominated)
		}
	})
}

// TestOfAPodThatIsAboutToBeBoundItIsNotToldWhereItIsToGo: its bind names the version of the pod, which that would change.
func TestOfAPodThatIsAboutToBeBoundItIsNotToldWhereItIsToGo(t *testing.T) {
	src, b := canceling(t)
	src.setObjects(freeVolume("made", 5))
	src.answers(func(source.Binding) source.Outcome { return source.Outcome{Result: source.BindUnknown, Err: errFake} })
	b.commit(b.request(1, "v"))
	eventually(t, "its claim is written", func() bool { return len(src.triedVolumes("v")) > 0 })
	told := func() bool {
		_, ok := b.term.Load().reports.waits(source.Report{UID: "v", Nominate: true, Nominated: "a", Assumed: true})
		return ok
	}
	if !told() {
		t.Error("it is not told where v is to go, which waits for its claims")
	}
	src.bindClaim("c", "made")
	eventually(t, "its bind is sent", func() bool { return len(src.tried("v")) > 0 })
	if told() {
		t.Error("it is told where v is to go, which is about to be bound")
	}
}

// TestAPodWhoseClaimsCannotBeWrittenIsToldWhy, though it keeps its room.
func TestAPodWhoseClaimsCannotBeWrittenIsToldWhy(t *testing.T) {
	src, b := canceling(t)
	src.answersVolumes(unknownFor("v"))
	b.commit(b.request(1, "v"))
	eventually(t, "it is said why", func() bool { return len(src.reported("v")) > 0 })
	want := source.Report{
		UID: "v", Namespace: "default", Name: "v", Reason: reasonError, Message: `running PreBind plugin "VolumeBinding": ` + errFake.Error(),
		Nominate: true, Nominated: "a", Assumed: true,
	}
	if diff := cmp.Diff(want, src.reported("v")[0]); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	if got := b.phase("v"); got != "assumed on a" {
		t.Errorf("v is %s", got)
	}
	src.answersVolumes(nil)
	src.setObjects(freeVolume("made", 5))
	eventually(t, "its claim is written", func() bool {
		src.mu.Lock()
		defer src.mu.Unlock()
		return src.claim("default", "c").SelectedNode == "a"
	})
	src.bindClaim("c", "made")
	b.awaitPhase("v", "bound on a")
}

func TestOfHowManyClaimsItIsLookedAtOnce(t *testing.T) {
	of := func(claims ...int) (list []*placement) {
		for _, n := range claims {
			list = append(list, &placement{choice: choice{Volumes: make([]cluster.VolumeChoice, n)}})
		}
		return list
	}
	for _, tt := range []struct {
		claims []int
		want   int
	}{{[]int{1}, 1}, {[]int{12, 1}, 1}, {[]int{4, 6, 1}, 2}, {[]int{4, 7, 1}, 1}, {[]int{1, 1, 1}, 3}} {
		if got := leading(of(tt.claims...), 10); got != tt.want {
			t.Errorf("of %v: %d", tt.claims, got)
		}
	}
}

// TestPodsThatWaitForClaimsAreTakenOverWithoutEachOther: the binder before has told where they are to go, which counts for none of the others.
func TestPodsThatWaitForClaimsAreTakenOverWithoutEachOther(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	see := func(e source.Event) {
		t.Helper()
		if err := term.ledger.observe(e); err != nil {
			t.Fatal(err)
		}
	}
	see(source.Event{Kind: source.ObjectSet, Object: &cluster.StorageClass{Name: "made", Provisioner: "csi", Mode: cluster.BindToFirstConsumer}})
	for _, name := range []string{"a", "b"} {
		zone := node(name, 1000)
		zone.Labels = []cluster.Label{{Key: "zone", Value: name}}
		see(source.Event{Kind: source.NodeSet, Node: zone})
	}
	var intents []coord.Intent
	for k, name := range []string{"a", "b", "a", "b", "a", "b"} {
		uid := fmt.Sprint(k)
		claim := waitingClaim("c"+uid, "made")
		claim.HasSelectedNode, claim.SelectedNode = true, name
		see(source.Event{Kind: source.ObjectSet, Object: claim})
		p := app(claiming(uid, 10, "c"+uid), "web")
		p.Nominated = name
		p.Class.Spread = []cluster.SpreadConstraint{{
			TopologyKey: "zone", MaxSkew: 1, MinDomains: 1, Hard: true,
			Selector: cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "app", Operator: "In", Values: []string{"web"}}}},
		}}
		see(source.Event{Kind: source.PodSet, Pod: p})
		in := meant(uid, name)
		in.Volumes, in.Scheduler = []coord.VolumeIntent{{Claim: "c" + uid, ClaimUID: "uid-c" + uid}}, scheduler
		intents = append(intents, in)
	}
	taken, err := term.adopt([]coord.StoredBatch{{Batch: coord.Batch{ID: 1, Intents: intents}}})
	if err != nil || len(taken) != 6 {
		t.Fatalf("%d are taken over: %v", len(taken), err)
	}
	for _, p := range taken {
		if p.misfit != nil {
			t.Errorf("%s to %s is not carried out: %v", p.UID, p.Node, p.misfit)
		}
	}
}

// TestPodsAreJudgedAgainWithoutEachOther, whatever they are nominated to.
func TestPodsAreJudgedAgainWithoutEachOther(t *testing.T) {
	for _, nominated := range []string{"", "a"} {
		term := pureTerm(t, newFakeSource())
		p, q := pod("p", 5), pod("q", 5)
		observe(t, term, node("a", 10), p, q)
		st := term.ledger.state
		commitPods(t, term, requestOf(st, evaluate(st, 4), 1, "p", "q"))
		batch, misfits := term.recorder.waiting, 0
		p.Nominated, q.Nominated = nominated, nominated
		observe(t, term, p, q, on(pod("theirs", 5), "a"))
		if err := term.reassume(batch); err != nil {
			t.Fatal(err)
		}
		for _, p := range batch {
			if p.misfit != nil {
				misfits++
			}
		}
		if len(batch) != 2 || misfits != 1 {
			t.Errorf("nominated to %q: %d of %d do not fit, want 1", nominated, misfits, len(batch))
		}
	}
}

// TestAPodThatIsDeletedWhileItWaitsForItsClaimsKeepsNoRoom, though a finalizer keeps it.
func TestAPodThatIsDeletedWhileItWaitsForItsClaimsKeepsNoRoom(t *testing.T) {
	src, b := canceling(t)
	b.commit(b.request(1, "v"))
	eventually(t, "it is told where v is to go", func() bool {
		src.mu.Lock()
		defer src.mu.Unlock()
		return len(src.nominations) > 0
	})
	told := claiming("v", 10, "c")
	told.Nominated = "a"
	src.setPod(told)
	eventually(t, "the watch tells so", func() (is bool) {
		b.look(func(st *cluster.State) {
			id, _ := st.PodByUID("v")
			is = st.Pod(id).Nominated == "a"
		})
		return is
	})
	told.Deleting = true
	src.setPod(told)
	b.awaitPhase("v", "pending")
	src.setPod(pod("w", 10))
	if got := b.commit(b.request(1, "w")); got[0] != "assumed" {
		t.Errorf("w is %s", got[0])
	}
}

// TestAVictimThatIsSparedIsNotCanceled: another one cannot be evicted.
func TestAVictimThatIsSparedIsNotCanceled(t *testing.T) {
	src, b := canceling(t)
	b.commit(b.request(1, "v"))
	eventually(t, "a write is tried", func() bool { return len(src.triedVolumes("v")) > 0 })
	term := b.term.Load()
	var p preemption
	var v victim
	b.look(func(st *cluster.State) {
		id, _ := st.PodByUID("v")
		high, _ := st.PodByUID("high")
		v = victim{id, source.Eviction{UID: "v", Namespace: "default", Name: "v", Node: "a"}}
		p = preemption{pod: high, uid: "high", node: "a"}
	})
	stop := make(chan struct{})
	close(stop)
	if done, err := term.evict(t.Context(), stop, p, v); done || err != nil {
		t.Fatal(done, err)
	}
	term.preparing.mu.Lock()
	defer term.preparing.mu.Unlock()
	if term.preparing.of["v"] == nil || term.preparing.of["v"].preparation.canceled {
		t.Error("v is canceled")
	}
}

// TestACanceledPodIsNotNominatedToWhereItIsNotToGo: its claims cannot be written, and it cannot be deleted either.
func TestACanceledPodIsNotNominatedToWhereItIsNotToGo(t *testing.T) {
	src, b := canceling(t)
	src.answersVolumes(unknownFor("v"))
	src.mu.Lock()
	src.refuse = func(source.Eviction) error { return errFake }
	src.mu.Unlock()
	b.preemptV(src)
	eventually(t, "it is told why", func() bool { return len(src.reported("v")) > 0 })
	if got := src.reported("v")[0]; got.Nominate || !got.Assumed {
		t.Errorf("told of v: %+v", got)
	}
}
