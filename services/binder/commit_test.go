package binder

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
	scorev1 "github.com/berth-scheduler/berth/internal/gen/berth/score/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/source"
)

func TestNothingIsBoundBeforeItsIntentIsRecorded(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	src.setNode(node("a", 100_000))
	other := connect(t, etcd, prefix)
	var uids []string
	for i := range 50 {
		uids = append(uids, fmt.Sprintf("p%d", i))
		src.setPod(pod(uids[i], 10))
	}
	var mu sync.Mutex
	var unrecorded []string
	src.answers(func(b source.Binding) source.Outcome {
		record, err := other.ReadRecord(t.Context())
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			unrecorded = append(unrecorded, err.Error())
		}
		for _, batch := range record.Batches {
			for _, in := range batch.Batch.Intents {
				if cmp.Equal(in, coord.Intent{PodUID: b.UID, Namespace: b.Namespace, Name: b.Name, Node: b.Node}) {
					return source.Outcome{Result: source.BindDone}
				}
			}
		}
		unrecorded = append(unrecorded, b.UID)
		return source.Outcome{Result: source.BindDone}
	})
	b := start(t, etcd, src)
	b.active()
	for _, uid := range uids {
		if got := b.commit(b.request(1, uid)); got[0] != "assumed" {
			t.Fatalf("%s: %s", uid, got[0])
		}
	}
	for _, uid := range uids {
		b.awaitPhase(uid, "bound on a")
	}
	mu.Lock()
	defer mu.Unlock()
	if len(unrecorded) > 0 {
		t.Errorf("bound without an intent in etcd: %v", unrecorded)
	}
}

func TestBindsThatAreFencedNeedNoIntent(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	src.fenced = true
	src.setNode(node("a", 1000))
	src.setPod(pod("recorded", 10))
	src.setPod(pod("p", 10))
	leave(t, etcd, coord.Batch{ID: 7, Intents: []coord.Intent{meant("recorded", "a")}})
	other := connect(t, etcd, prefix)
	before, err := other.ReadRecord(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b := start(t, etcd, src)
	b.active()
	b.awaitPhase("recorded", "bound on a")
	eventually(t, "the intent of another binder is finished", func() bool { return len(intents(t, other)) == 0 })
	finished, err := other.ReadRecord(t.Context())
	if err != nil || finished.Version.Epoch <= before.Version.Epoch {
		t.Fatalf("the version that was recorded with that is %v, %v; before it was %v", finished.Version, err, before.Version)
	}
	src.answers(func(binding source.Binding) source.Outcome {
		if now := intents(t, other); len(now) > 0 {
			t.Errorf("%s is bound, and recorded: %v", binding.UID, now)
		}
		return source.Outcome{Result: source.BindDone}
	})
	if got := b.commit(b.request(1, "p")); got[0] != "assumed" {
		t.Fatalf("p is %s", got[0])
	}
	b.awaitPhase("p", "bound on a")
	after, err := other.ReadRecord(t.Context())
	if err != nil || after.Version != finished.Version || len(after.Batches) > 0 {
		t.Errorf("the record is %+v, %v; want it as it was, %+v", after, err, finished)
	}
	eventually(t, "no pod counts as unbound", func() bool { return b.term.Load().unbound.count() == 0 })
}

func TestIntentsOfFinishedBatchesDisappear(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	src.setNode(node("a", 1000))
	src.setPod(pod("done", 10))
	src.setPod(pod("late", 10))
	hold := make(chan struct{})
	src.answers(func(b source.Binding) source.Outcome {
		if b.UID == "late" {
			<-hold
		}
		return source.Outcome{Result: source.BindDone}
	})
	b := start(t, etcd, src)
	b.active()
	other := connect(t, etcd, prefix)
	b.commit(b.request(1, "late"))
	eventually(t, "the bind of late is under way", func() bool { return intents(t, other)["late"] == "a" })
	b.commit(b.request(1, "done"))
	b.awaitPhase("done", "bound on a")
	eventually(t, "only late's intent is left", func() bool {
		return cmp.Equal(intents(t, other), map[string]string{"late": "a"})
	})
	close(hold)
	eventually(t, "no intent is left", func() bool { return len(intents(t, other)) == 0 })
}

func TestAnAttemptThatIsCommittedTwicePlacesOnce(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	src.setNode(node("a", 1000))
	src.setPod(pod("p", 400))
	b := start(t, etcd, src)
	b.active()
	req := b.request(1, "p")
	if got := b.commit(req); got[0] != "assumed" {
		t.Fatalf("first: %s", got[0])
	}
	if got := b.commit(req); got[0] != "already placed" {
		t.Errorf("second: %s", got[0])
	}
	b.awaitPhase("p", "bound on a")
	if got := b.commit(req); got[0] != "already placed" {
		t.Errorf("when it is bound: %s", got[0])
	}
	if n := len(src.tried("p")); n != 1 {
		t.Errorf("%d binds, want 1", n)
	}
}

func TestAnAttemptThatWasTakenBackIsOver(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	src.setNode(node("a", 1000))
	src.setPod(pod("p", 400))
	src.answers(func(source.Binding) source.Outcome {
		return source.Outcome{Result: source.BindRefused, Err: errFake}
	})
	b := start(t, etcd, src)
	b.active()
	req := b.request(1, "p")
	b.commit(req)
	eventually(t, "the refusal is known", func() bool { return len(src.tried("p")) == 1 && b.phase("p") == "pending" })
	if got := b.commit(req); got[0] != "retry" {
		t.Errorf("the same attempt again: %s, want retry", got[0])
	}
	src.answers(nil)
	if got := b.commit(b.request(2, "p")); got[0] != "assumed" {
		t.Errorf("the next attempt: %s", got[0])
	}
}

func TestCommitsThatMayNotBeAreRefused(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	src.setNode(node("a", 1000))
	src.setPod(pod("p", 400))
	client := connect(t, etcd, prefix)
	session, err := client.NewSession(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close(t.Context())
	claimed, err := session.ClaimShard(t.Context(), 2, "queue-1")
	if err != nil {
		t.Fatal(err)
	}
	b := start(t, etcd, src, named("one"))
	b.active()
	standby := start(t, etcd, src, named("two"))

	good := b.request(1, "p")
	for name, c := range map[string]struct {
		to     *running
		change func(*binderv1.CommitRequest)
		code   codes.Code
		reason rpc.Reason
		fields []string
	}{
		"another epoch": {
			change: func(r *binderv1.CommitRequest) { r.Version = &logv1.Version{Epoch: r.Version.Epoch - 1, Seq: 1 << 40} },
			code:   codes.Aborted, reason: "OTHER_EPOCH",
		},
		"no version": {
			change: func(r *binderv1.CommitRequest) { r.Version = nil },
			code:   codes.Aborted, reason: "OTHER_EPOCH",
		},
		"an older claim of the shard": {
			change: func(r *binderv1.CommitRequest) { r.Shard, r.ShardRevision = 2, claimed-1 },
			code:   codes.FailedPrecondition, reason: "SHARD_LOST",
		},
		"no claim of the shard": {
			change: func(r *binderv1.CommitRequest) { r.ShardRevision = 0 },
			code:   codes.FailedPrecondition, reason: "SHARD_LOST",
		},
		"to a binder that stands by": {
			to:     standby,
			change: func(*binderv1.CommitRequest) {},
			code:   codes.Unavailable, reason: "NOT_ACTIVE",
		},
		"no pods": {
			change: func(r *binderv1.CommitRequest) { r.Pods = nil },
			code:   codes.InvalidArgument, reason: rpc.ReasonInvalid, fields: []string{"pods"},
		},
		"a version that has not been": { // it would hide what has changed since
			change: func(r *binderv1.CommitRequest) { r.Version.Seq += 1000 },
			code:   codes.InvalidArgument, reason: rpc.ReasonInvalid, fields: []string{"version"},
		},
		"garbage": {
			change: func(r *binderv1.CommitRequest) {
				r.Shard = 4
				r.Pods = append(r.Pods, &binderv1.PodAttempt{SubjectIndex: 1}, nil, &binderv1.PodAttempt{Attempt: 1, SubjectIndex: -2})
				r.Subjects = append(r.Subjects[:1:1], &binderv1.SubjectCandidates{Groups: []*scorev1.Group{{Nodes: []int32{1, 2}, Count: 2}}})
				r.Version.Seq = -1
			},
			code: codes.InvalidArgument, reason: rpc.ReasonInvalid,
			fields: []string{"shard", "version", "pods[1].attempt", "pods[2].attempt", "pods[3].subject_index", "subjects[1].groups"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			req := clone(good)
			c.change(req)
			to := b
			if c.to != nil {
				to = c.to
			}
			_, err := to.Commit(t.Context(), req)
			wantError(t, err, c.code, c.reason)
			var fields []string
			for _, v := range rpc.Violations(err) {
				fields = append(fields, v.Field)
			}
			if diff := cmp.Diff(c.fields, fields); diff != "" {
				t.Errorf("fields (-want +got):\n%s", diff)
			}
		})
	}
	if got := b.phase("p"); got != "pending" {
		t.Errorf("the pod is %s", got)
	}
	good.Shard, good.ShardRevision = 2, claimed
	if got := b.commit(good); got[0] != "assumed" {
		t.Errorf("with the claim that holds: %s", got[0])
	}
}

func TestTooManyUnboundPodsAreRefusedUntilBindsCatchUp(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	src.setNode(node("a", 100_000))
	var uids []string
	for i := range 7 {
		uids = append(uids, fmt.Sprintf("p%d", i))
		p := pod(uids[i], 10)
		if i == 5 {
			p.Namespace = "other" // a namespace has no more than are free
		}
		src.setPod(p)
	}
	hold := make(chan struct{})
	src.answers(func(source.Binding) source.Outcome {
		<-hold
		return source.Outcome{Result: source.BindDone}
	})
	b := start(t, etcd, src, func(c *Config) { c.MaxUnbound = 4 })
	b.active()
	b.commit(b.request(1, uids[:3]...))
	req := b.request(1, uids[3:5]...)
	_, err := b.Commit(t.Context(), req)
	wantError(t, err, codes.ResourceExhausted, "TOO_MANY_UNBOUND")
	if after, ok := rpc.RetryAfter(err); !ok || after <= 0 {
		t.Errorf("RetryInfo is %v, %v", after, ok)
	}
	if got := b.phase(uids[3]); got != "pending" {
		t.Errorf("a pod of the refused commit is %s", got)
	}
	if got := b.commit(b.request(1, uids[5])); got[0] != "assumed" {
		t.Errorf("what has room is %s", got[0])
	}
	close(hold)
	eventually(t, "the commit is taken again", func() bool {
		_, err := b.Commit(t.Context(), req)
		return err == nil
	})
	for _, uid := range uids[:6] {
		b.awaitPhase(uid, "bound on a")
	}
	eventually(t, "nothing counts as unbound", func() bool { return b.term.Load().unbound.count() == 0 })
}

func TestPodsThatAreNotPlacedDoNotCountAsUnbound(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	src.setNode(node("a", 1000))
	src.setPod(pod("fits", 1000))
	src.setPod(pod("does not", 900))
	b := start(t, etcd, src)
	b.active()
	req := b.request(1, "fits", "does not")
	if diff := cmp.Diff([]string{"assumed", "no fit"}, b.commit(req)); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
	b.awaitPhase("fits", "bound on a")
	eventually(t, "nothing counts as unbound", func() bool { return b.term.Load().unbound.count() == 0 })
}

func TestShardsThatCommitConcurrentlyNeverOvercommitANode(t *testing.T) {
	const nodes, pods = 8, 120 // of 250m each: 4 fit on a node, 32 in all
	etcd, src := startEtcd(t), newFakeSource()
	for i := range nodes {
		src.setNode(node(fmt.Sprintf("n%d", i), 1000))
	}
	shards := make([][]string, 2)
	for i := range pods {
		uid := fmt.Sprintf("p%d", i)
		src.setPod(pod(uid, 250))
		shards[i%2] = append(shards[i%2], uid)
	}
	var refused sync.Map // every fifth bind is refused once, so that room is given back meanwhile
	src.answers(func(b source.Binding) source.Outcome {
		if _, again := refused.LoadOrStore(b.UID, true); !again && len(b.UID)%2 == 0 {
			return source.Outcome{Result: source.BindRefused, Err: errFake}
		}
		return source.Outcome{Result: source.BindDone}
	})
	b := start(t, etcd, src)
	b.active()
	for i := range pods {
		eventually(t, "all pods are known", func() bool { return b.phase(fmt.Sprintf("p%d", i)) != "gone" })
	}
	var running sync.WaitGroup
	for shard, uids := range shards {
		running.Go(func() {
			for attempt := int32(1); attempt <= 10; attempt++ {
				for first := 0; first < len(uids); first += 10 {
					req := b.request(attempt, uids[first:first+10]...)
					req.Shard = int32(shard)
					if _, err := b.Commit(t.Context(), req); err != nil {
						t.Errorf("Commit: %v", err)
					}
					b.look(func(st *cluster.State) {
						if name := overcommitted(st); name != "" {
							t.Errorf("%s is overcommitted", name)
						}
					})
				}
			}
		})
	}
	running.Wait()
	attempt := int32(100)
	eventually(t, "all room is used and all binds are done", func() bool {
		var bound int
		b.look(func(st *cluster.State) { bound = st.Count(cluster.Bound) })
		if bound == 4*nodes {
			return true
		}
		attempt++ // what was refused last is free again
		b.commit(b.request(attempt, shards[0]...))
		return false
	})
	perNode := make(map[string]int)
	for i := range pods {
		if at := src.nodeOf(fmt.Sprintf("p%d", i)); at != "" {
			perNode[at]++
		}
	}
	for name, n := range perNode {
		if n > 4 {
			t.Errorf("the source has %d pods on %s, 4 fit", n, name)
		}
	}
}
