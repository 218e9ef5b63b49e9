package binder

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
)

// meantVolumes is meant, with a volume for a claim.
func meantVolumes(uid, node, claim, volume string) coord.Intent {
	in := meant(uid, node)
	in.Volumes = []coord.VolumeIntent{{Claim: claim, ClaimUID: "uid-" + claim, Volume: volume}}
	return in
}

func TestClaimsThatAreTakenOverWhileAnotherHasTheNameAreWrittenInTheNextStint(t *testing.T) {
	etcd, src, lease := startEtcd(t), newFakeSource(), newFakeLease()
	storage(src)
	lease.give("kube-scheduler_1")
	src.setNode(node("a", 1000))
	src.setObjects(freeVolume("v", 5), waitingClaim("c", "static"))
	src.setPod(claiming("p", 10, "c"))
	leave(t, etcd, coord.Batch{ID: 40, Intents: []coord.Intent{meantVolumes("p", "a", "c", "v")}})
	b := start(t, etcd, src, sharing(lease))
	b.active()
	lease.give("")
	b.awaitOurs()
	eventually(t, "the claim is written", func() bool { return len(src.triedVolumes("p")) > 1 })
	if !src.triedVolumes("p")[0].Void {
		t.Error("it is written before it is judged again")
	}
	src.bindClaim("c", "v")
	eventually(t, "p is bound", func() bool { return b.phase("p") == "bound on a" })
}

func TestAWriteInDoubtIsMadeAgainInTheNextStint(t *testing.T) {
	lease := newFakeLease()
	src, b := inDoubt(t, sharing(lease))
	lease.give("kube-scheduler_1")
	b.awaitYield("kube-scheduler_1")
	before := len(src.triedVolumes("p"))
	src.answersVolumes(nil)
	lease.give("")
	b.awaitOurs()
	eventually(t, "the claim is written again", func() bool { return len(src.triedVolumes("p")) > before+1 })
	if !src.triedVolumes("p")[before].Void {
		t.Error("it is written before it is judged again")
	}
	src.bindClaim("c", "v")
	eventually(t, "p is bound", func() bool { return b.phase("p") == "bound on a" })
}

// It is gone, and nothing says of which name it was.
func TestNothingIsWrittenForClaimsOfAPodThatMayBeAnothers(t *testing.T) {
	etcd, src, lease := startEtcd(t), newFakeSource(), newFakeLease()
	storage(src)
	lease.give("kube-scheduler_1")
	src.setNode(node("a", 1000))
	src.setObjects(freeVolume("v", 5), waitingClaim("c", "static"))
	src.setPod(claiming("p2", 10, "c")) // a StatefulSet's, say, that has made it anew; kube-scheduler is placing it
	leave(t, etcd, coord.Batch{ID: 40, Intents: []coord.Intent{meantVolumes("p", "a", "c", "v")}})
	b := start(t, etcd, src, sharing(lease))
	b.active()
	never(t, "a volume is written without the lease", func() bool { return len(src.triedVolumes("p")) > 0 })
}

// Who has the other names keeps neither its claim nor its volume from others.
func TestClaimsOfAPodThatIsGoneWaitForNoLeaseThatItsNameHasNot(t *testing.T) {
	etcd, src, lease := startEtcd(t), newFakeSource(), newFakeLease()
	storage(src)
	lease.give("kube-scheduler_1")
	src.setNode(node("a", 1000))
	src.setObjects(freeVolume("v", 5), waitingClaim("c", "static"))
	src.setPod(own(claiming("p2", 10, "c")))
	in := meantVolumes("p", "a", "c", "w") // which is gone too
	in.Scheduler = "own"
	leave(t, etcd, coord.Batch{ID: 40, Intents: []coord.Intent{in}})
	b := start(t, etcd, src, sharing(lease))
	b.active()
	eventually(t, "what is under way is made void", func() bool {
		of := src.triedVolumes("p")
		return len(of) > 0 && of[len(of)-1].Void
	})
	eventually(t, "p2 is placed", func() bool { return b.commit(b.request(1, "p2"))[0] == "assumed" })
}

// unknownFor answers that nothing is known of what is written for a pod's claims, and that all others are written.
func unknownFor(uid string) func(source.VolumeBinding) source.Outcome {
	return func(b source.VolumeBinding) source.Outcome {
		if b.UID == uid {
			return source.Outcome{Result: source.BindUnknown, Err: errFake}
		}
		return source.Outcome{Result: source.BindDone}
	}
}

// inDoubt starts a binder that has placed pod p on node a, with volume v for its claim c, and knows nothing of what it has written of that. There is no
// other volume.
func inDoubt(t *testing.T, options ...func(*Config)) (*fakeSource, *running) {
	etcd, src := startEtcd(t), newFakeSource()
	storage(src)
	src.setNode(node("a", 1000))
	src.setObjects(freeVolume("v", 5), waitingClaim("c", "static"))
	src.setPod(claiming("p", 10, "c"))
	src.answersVolumes(unknownFor("p"))
	b := start(t, etcd, src, options...)
	b.active()
	b.awaitOurs()
	b.commit(b.request(1, "p"))
	eventually(t, "a write is tried", func() bool { return len(src.triedVolumes("p")) > 0 })
	return src, b
}

// placesWith commits a pod, and waits until a volume is written for its one claim.
func (b *running) placesWith(src *fakeSource, uid, volume string) {
	b.t.Helper()
	eventually(b.t, uid+" waits", func() bool { return b.phase(uid) == "pending" })
	if got := b.commit(b.request(1, uid)); got[0] != "assumed" {
		b.t.Fatalf("%s is %s", uid, got[0])
	}
	eventually(b.t, volume+" is written for "+uid, func() bool {
		of := src.triedVolumes(uid)
		return len(of) > 0 && of[0].Choices[0].Volume == volume
	})
}

// A write for a pod that is gone has no answer: v is nobody's, by what the source tells, and might yet be its claim's.
func TestAVolumeThatAClaimMayYetGetKeepsNoneFromOthersThatOthersWouldDoFor(t *testing.T) {
	lease := newFakeLease()
	src, b := inDoubt(t, sharing(lease))
	lease.give("kube-scheduler_1")
	b.awaitYield("kube-scheduler_1")
	src.deletePod("p")
	eventually(t, "p is gone", func() bool { return b.phase("p") == "gone" })
	src.setObjects(freeVolume("w", 5), waitingClaim("d", "static"))
	src.setPod(own(claiming("q", 10, "d")))
	b.placesWith(src, "q", "w")
}

// A StatefulSet's, say. What its claim may yet get will do; it does not get another volume that comes first.
func TestAPodThatIsMadeAnewGetsWhatItsClaimMayYetGet(t *testing.T) {
	src, b := inDoubt(t)
	src.deletePod("p")
	eventually(t, "p is gone", func() bool { return b.phase("p") == "gone" })
	src.setObjects(freeVolume("a-first", 5))
	src.setPod(claiming("q", 10, "c"))
	b.placesWith(src, "q", "v")
}

// Its intent is in the record still, for others of its batch are not decided.
func TestAPodThatIsBoundWithItsClaimsIsLeftAloneThoughItsNodeIsGone(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	storage(src)
	src.setNode(node("b", 1000))
	v, c := freeVolume("v", 5), waitingClaim("c", "static")
	v.HasClaim, v.Claim, v.Available = true, cluster.ClaimReference{Namespace: "default", Name: "c", UID: "uid-c"}, false
	c.Volume, c.Bound = "v", true
	src.setObjects(v, c)
	p := claiming("p", 10, "c")
	p.NodeName = "a"
	src.setPod(p)
	leave(t, etcd, coord.Batch{ID: 40, Intents: []coord.Intent{meantVolumes("p", "a", "c", "v")}})
	b := start(t, etcd, src)
	b.active()
	never(t, "something is written for p, or told of it", func() bool {
		src.mu.Lock()
		defer src.mu.Unlock()
		return len(src.volumes) > 0 || len(src.scheduled) > 0
	})
}

// Where the pod is says nothing of its claims: our write might yet give v to a claim that has w.
func TestAWriteInDoubtIsMadeVoidThoughAnotherSchedulerBindsThePodToTheSameNode(t *testing.T) {
	lease := newFakeLease()
	src, b := inDoubt(t, sharing(lease))
	lease.give("kube-scheduler_1")
	b.awaitYield("kube-scheduler_1")
	src.answersVolumes(nil)
	src.setObjects(freeVolume("w", 5))
	src.bindClaim("c", "w")
	p := claiming("p", 10, "c")
	p.NodeName = "a"
	src.setPod(p)
	eventually(t, "p is bound", func() bool { return b.phase("p") == "bound on a" })
	lease.give("")
	b.awaitOurs()
	eventually(t, "nothing is held", func() bool {
		pr := b.term.Load().preparing
		pr.mu.Lock()
		defer pr.mu.Unlock()
		return len(pr.claims) == 0
	})
	if !slices.ContainsFunc(src.triedVolumes("p"), func(vb source.VolumeBinding) bool { return vb.Void }) {
		t.Error("v and c are let go of, and what is under way for them has not been made void")
	}
	src.mu.Lock()
	defer src.mu.Unlock()
	if len(src.scheduled) > 0 {
		t.Errorf("told as its own: %v", src.scheduled)
	}
}

// What a binder records says of which name its pods are.
func TestTheNextBinderKnowsTheNameOfAPodThatIsGone(t *testing.T) {
	etcd, src, lease := startEtcd(t), newFakeSource(), newFakeLease()
	storage(src)
	lease.give("kube-scheduler_1")
	src.setNode(node("a", 1000))
	src.setObjects(freeVolume("v", 5), waitingClaim("c", "static"))
	src.setPod(own(claiming("p", 10, "c")))
	src.answersVolumes(unknownFor("p"))
	first := start(t, etcd, src, sharing(lease), named("first"))
	first.active()
	first.commit(first.request(1, "p"))
	eventually(t, "a write is tried", func() bool { return len(src.triedVolumes("p")) > 0 })
	first.stop()
	src.deletePod("p")
	src.answersVolumes(nil)
	second := start(t, etcd, src, sharing(lease), named("second"))
	second.active()
	eventually(t, "what is under way is made void", func() bool {
		of := src.triedVolumes("p")
		return of[len(of)-1].Void
	})
}

func TestTheLeaseIsKeptWhileAWriteForClaimsHasNoAnswer(t *testing.T) {
	lease := newFakeLease()
	_, b := inDoubt(t, sharing(lease))
	b.stop()
	if lease.heldBy() == "" {
		t.Error("given up while a write to a volume may still arrive")
	}
}

// Its pod was deleted before anything was written, and its claim has been given another volume since.
func TestAnIntentThatWasDecidedIsNotCarriedOutByTheNextBinder(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	storage(src)
	src.setNode(node("a", 1000))
	src.setNode(node("b", 1000))
	only := func(name, on string) *cluster.PersistentVolume {
		v := freeVolume(name, 5)
		v.HasAffinity = true
		v.Affinity = []cluster.NodeSelectorTerm{{Expressions: []cluster.Requirement{{Key: "kubernetes.io/hostname", Operator: "In", Values: []string{on}}}}}
		return v
	}
	for _, n := range []string{"a", "b"} {
		nn := node(n, 1000)
		nn.Labels = append(nn.Labels, cluster.Label{Key: "kubernetes.io/hostname", Value: n})
		src.setNode(nn)
	}
	src.setObjects(only("v1", "a"), only("v2", "b"), waitingClaim("c", "static"), waitingClaim("m", "made"))
	src.setPod(claiming("z", 10, "m"))
	p := claiming("p", 10, "c")
	p.RequiredNode = "a"
	src.setPod(p)
	entered, release := make(chan struct{}, 10), make(chan struct{})
	src.answersVolumes(func(vb source.VolumeBinding) source.Outcome {
		if vb.UID == "z" {
			entered <- struct{}{}
			<-release
		}
		return source.Outcome{Result: source.BindDone}
	})
	first := start(t, etcd, src, named("first"), func(c *Config) { c.BindWorkers = 1 })
	first.active()
	first.commit(first.request(1, "z", "p"))
	<-entered // p waits behind z
	src.deletePod("p")
	eventually(t, "p is gone", func() bool { return first.phase("p") == "gone" })
	close(release)
	// A StatefulSet makes it anew; it goes elsewhere.
	q := claiming("q", 10, "c")
	q.RequiredNode = "b"
	src.setPod(q)
	eventually(t, "q is assumed", func() bool { return first.commit(first.request(1, "q"))[0] == "assumed" })
	eventually(t, "v2 is written for c", func() bool {
		src.mu.Lock()
		defer src.mu.Unlock()
		return src.volume("v2").HasClaim
	})
	if n := len(src.triedVolumes("p")); n != 0 {
		t.Fatalf("p was written %d times by the first", n)
	}
	eventually(t, "first has no placement of p", func() bool { return first.term.Load().preparing.bound.count() == 2 })
	second := start(t, etcd, src, named("second"))
	first.stop()
	second.active()
	never(t, "claim c is given a second volume", func() bool {
		src.mu.Lock()
		defer src.mu.Unlock()
		return src.volume("v1").HasClaim && src.volume("v2").HasClaim
	})
}

func TestNothingIsWrittenForANodeThatIsGone(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	storage(src)
	src.setNode(node("a", 1000))
	src.setObjects(freeVolume("v", 5), waitingClaim("c", "static"))
	src.setPod(claiming("p", 10, "c"))
	leave(t, etcd, coord.Batch{ID: 40, Intents: []coord.Intent{meantVolumes("p", "gone", "c", "v")}})
	b := start(t, etcd, src)
	b.active()
	never(t, "written", func() bool {
		src.mu.Lock()
		defer src.mu.Unlock()
		return src.volume("v").HasClaim
	})
}

func TestNothingIsWrittenForANodeOnWhichThePodDoesNotFitAnyMore(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	storage(src)
	n := node("a", 1000)
	n.Unschedulable = true
	src.setNode(n)
	src.setNode(node("b", 1000))
	src.setObjects(waitingClaim("c", "made"))
	src.setPod(claiming("p", 10, "c"))
	leave(t, etcd, coord.Batch{ID: 40, Intents: []coord.Intent{meantVolumes("p", "a", "c", "")}})
	b := start(t, etcd, src)
	b.active()
	never(t, "a node is selected that the pod may not go to", func() bool {
		src.mu.Lock()
		defer src.mu.Unlock()
		return src.claim("default", "c").SelectedNode == "a"
	})
}

// The binder before had decided it, and its batch is there still.
func TestAPodThatWasBoundHasOneEvent(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	storage(src)
	src.setNode(node("a", 1000))
	src.setObjects(freeVolume("v", 5), waitingClaim("c", "static"), waitingClaim("m", "made"))
	src.setPod(claiming("z", 10, "m"))
	src.setPod(claiming("p", 10, "c"))
	first := start(t, etcd, src, named("first"))
	first.active()
	first.commit(first.request(1, "z", "p"))
	eventually(t, "v is written", func() bool {
		src.mu.Lock()
		defer src.mu.Unlock()
		return src.volume("v").HasClaim
	})
	src.bindClaim("c", "v")
	first.awaitPhase("p", "bound on a")
	events := func() (n int) {
		src.mu.Lock()
		defer src.mu.Unlock()
		for _, s := range src.scheduled {
			if s.UID == "p" {
				n++
			}
		}
		return n
	}
	eventually(t, "event", func() bool { return events() == 1 })
	second := start(t, etcd, src, named("second"))
	first.stop()
	second.active()
	never(t, "another event", func() bool { return events() > 1 })
}

// Here each placement has 12 claims.
func TestARecordIsBoundedInBytes(t *testing.T) {
	etcd := startEtcd(t)
	client := connect(t, etcd, prefix)
	session, err := client.NewSession(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	held, err := client.Campaign(t.Context(), session, "me", "nowhere")
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan *placement, 2000)
	r := newRecorder(recorderConfig{
		term: held, version: func() cluster.Version { return cluster.Version{Epoch: cluster.Epoch(held.Epoch()), Seq: 1} }, out: out,
		move: func(p *placement, s placementState) bool { return p.to(s) == nil }, prepares: func(*placement) bool { return false },
		took: func(time.Duration) {}, log: testLog(t),
	})
	var all []*placement
	for i := range 1000 {
		p := &placement{UID: fmt.Sprintf("%036d", i), Namespace: "team-a", Name: fmt.Sprintf("my-release-elasticsearch-data-%d", i), choice: choice{Node: "ip-10-0-0-1.eu-west-1.compute.internal"}}
		for k := range 12 {
			p.Volumes = append(p.Volumes, cluster.VolumeChoice{
				Claim: fmt.Sprintf("storage-%d-my-release-elasticsearch-data-es-default-%d", k, i), UID: fmt.Sprintf("%036d", i*12+k), Volume: fmt.Sprintf("local-pv-%030d", i*12+k),
			})
		}
		all = append(all, p)
	}
	r.add(all)
	if _, err := r.recordOnce(t.Context()); err != nil {
		t.Errorf("the term ends: %v", err)
	}
}

// It has lost its choice, and would fit.
func TestAPodOfAnIntentThatContradictsAnotherIsNotBoundInTheNextStint(t *testing.T) {
	etcd, src, lease := startEtcd(t), newFakeSource(), newFakeLease()
	storage(src)
	src.setNode(node("a", 1000))
	src.setObjects(freeVolume("v", 5), waitingClaim("c", "static"), waitingClaim("d", "static"))
	src.setPod(claiming("p", 10, "c"))
	src.setPod(claiming("q", 10, "d"))
	leave(t, etcd, coord.Batch{ID: 1, Intents: []coord.Intent{meantVolumes("p", "a", "c", "v"), meantVolumes("q", "a", "d", "v")}})
	src.change(func() {
		src.withdraw = func(source.Binding) source.Outcome { return source.Outcome{Result: source.BindUnknown, Err: errFake} }
	})
	b := start(t, etcd, src, sharing(lease))
	b.active()
	eventually(t, "a withdrawal of q was tried", func() bool { return len(src.withdrawals()) > 0 })
	lease.give("kube-scheduler_1")
	b.awaitYield("kube-scheduler_1")
	src.setObjects(freeVolume("w", 5))
	eventually(t, "q is aside", func() bool { return b.term.Load().names.countAside() > 0 })
	lease.give("")
	b.awaitOurs()
	never(t, "q is bound, and its claim is not", func() bool { return src.nodeOf("q") != "" })
}
