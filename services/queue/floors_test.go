package queue_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	filterv1 "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	"github.com/berth-scheduler/berth/services/queue"
	"github.com/berth-scheduler/berth/test/bubble"
)

// wordCounts is how long the last word of another member counts.
const wordCounts = 1500 * time.Millisecond

func priority(p int32) func(*cluster.Pod, *cluster.ClassSpec) {
	return func(pod *cluster.Pod, _ *cluster.ClassSpec) { pod.Priority = p }
}

// neighbor is a queue member that a test speaks for.
type neighbor struct {
	queuev1.UnimplementedQueueServiceServer

	mu      sync.Mutex
	says    map[int32]int32 // priority by shard
	may     map[int32]int32 // that are possible
	silent  bool
	changed chan struct{}
	heard   map[string]int // streams by member
}

func (n *neighbor) say(floors map[int32]int32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.says = floors
	close(n.changed)
	n.changed = make(chan struct{})
}

// hang makes it say nothing more, with its streams open.
func (n *neighbor) hang() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.silent = true
}

func (n *neighbor) WatchPriorityFloors(request *queuev1.WatchPriorityFloorsRequest, stream queuev1.QueueService_WatchPriorityFloorsServer) error {
	n.mu.Lock()
	n.heard[request.GetMember()]++
	n.mu.Unlock()
	for {
		n.mu.Lock()
		message, silent, changed := &queuev1.WatchPriorityFloorsResponse{}, n.silent, n.changed
		for shard, p := range n.says {
			message.Floors = append(message.Floors, &queuev1.PriorityFloor{Shard: shard, Priority: p})
		}
		for shard, p := range n.may {
			message.Possible = append(message.Possible, &queuev1.PriorityFloor{Shard: shard, Priority: p})
		}
		n.mu.Unlock()
		if !silent {
			if err := stream.Send(message); err != nil {
				return err
			}
		}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-changed:
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// neighbor starts one that is a member; die ends its server, but it stays among the members until it leaves.
func (w *world) neighbor(id string) (n *neighbor, die func()) {
	n = &neighbor{changed: make(chan struct{}), heard: make(map[string]int)}
	die = w.serve(id, func(r grpc.ServiceRegistrar) { queuev1.RegisterQueueServiceServer(r, n) })
	w.etcd.join(coord.RoleQueue, id)
	return n, die
}

// beside returns a world in which q1 owns the only shard, and a neighbor works at priority 10.
func beside(t *testing.T) (w *world, n *neighbor, die func()) {
	w = newWorld(t, 1)
	w.metrics = prometheus.NewRegistry()
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 100_000)
	n, die = w.neighbor("q0")
	n.say(map[int32]int32{7: 10})
	w.queueMember("q1")
	elapse(time.Second)
	if owners := w.etcd.ownersOf(); !cmp.Equal(owners, map[int]string{0: "q1"}) {
		t.Fatalf("shards are owned by %v, want 0 by q1", owners)
	}
	return w, n, die
}

// nodes adds so many, each for 110 pods.
func (w *world) nodes(count int) {
	for k := range count {
		w.ledger.node(fmt.Sprintf("n%d", k), 1_000_000)
	}
}

// after lets so much time pass and returns which of the pods are placed.
func (w *world) after(d time.Duration) []string {
	elapse(d)
	synctest.Wait()
	return w.binder.order()
}

func TestLowerPriorityWaitsUntilTheHigherOneOfAnotherMemberIsDone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w, n, _ := beside(t)
		w.ledger.pod("low", 100, priority(9))
		w.ledger.pod("high", 100, priority(11))
		w.ledger.pod("same", 100, priority(10))
		if got, want := w.after(time.Minute), []string{"high", "same"}; !slices.Equal(got, want) {
			t.Fatalf("while another works at 10, %v are placed, want %v", got, want)
		}
		n.say(map[int32]int32{7: 9})
		if got, want := w.after(50*time.Millisecond), []string{"high", "same", "low"}; !slices.Equal(got, want) {
			t.Errorf("50 ms after it works at 9, %v are placed, want %v", got, want)
		}
		measured := samples(t, w.metrics.(*prometheus.Registry))
		if waits, ended := measured["berth_queue_priority_floor_waits_total"], measured["berth_queue_priority_floor_wait_seconds"]; waits == 0 || ended != waits {
			t.Errorf("%v waits have begun and %v ended, want some, and all of them", waits, ended)
		}
	})
}

func TestPriorityThatIsOnlyPossibleHoldsNobodyForLong(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w, n, _ := beside(t)
		n.mu.Lock()
		n.may = map[int32]int32{7: 10}
		n.mu.Unlock()
		n.say(nil)
		elapse(time.Second)
		w.ledger.pod("low", 100, priority(9))
		w.ledger.pod("high", 100, priority(11))
		if got, want := w.after(40*time.Millisecond), []string{"high"}; !slices.Equal(got, want) {
			t.Fatalf("40 ms after another may work at 10, %v are placed, want %v", got, want)
		}
		if got, want := w.after(20*time.Millisecond), []string{"high", "low"}; !slices.Equal(got, want) {
			t.Errorf("60 ms after another may work at 10, %v are placed, want %v", got, want)
		}
		w.ledger.pod("next", 100, priority(9)) // it does nothing but look
		if got, want := w.after(20*time.Millisecond), []string{"high", "low", "next"}; !slices.Equal(got, want) {
			t.Errorf("later, %v are placed, want %v", got, want)
		}
	})
}

func TestPriorityThatBecomesPossibleHoldsNobodyForLongWhoHasWaitedBefore(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w, n, _ := beside(t)
		w.ledger.pod("low", 100, priority(9))
		if got := w.after(time.Minute); len(got) > 0 {
			t.Fatalf("while another works at 10, %v are placed", got)
		}
		n.mu.Lock()
		n.may = map[int32]int32{7: 10}
		n.mu.Unlock()
		n.say(nil)
		if got := w.after(40 * time.Millisecond); len(got) > 0 {
			t.Errorf("40 ms after another may work at 10, %v are placed", got)
		}
		if got, want := w.after(20*time.Millisecond), []string{"low"}; !slices.Equal(got, want) {
			t.Errorf("60 ms after another may work at 10, %v are placed, want %v", got, want)
		}
	})
}

func TestADriverThatGivesWayDoesNotSpin(t *testing.T) {
	for name, may := range map[string]map[int32]int32{"to what is": nil, "to what is, and more may be": {7: 20}} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w, n, _ := beside(t)
				n.mu.Lock()
				n.may = may
				n.mu.Unlock()
				n.say(map[int32]int32{7: 10})
				elapse(time.Second)
				var reads atomic.Int64
				reading := func() {
					if reads.Add(1) > 1000 {
						elapse(time.Millisecond) // else the second would never end
					}
				}
				w.ledger.reading.Store(&reading)
				w.ledger.pod("low", 100, priority(9))
				elapse(time.Second)
				reads.Store(0)
				elapse(time.Second)
				if got := reads.Load(); got > 10 {
					t.Errorf("the state is read %d times in a second, want a few times", got)
				}
				if got := w.binder.order(); len(got) > 0 {
					t.Errorf("placed %v below what another works at", got)
				}
			})
		})
	}
}

// A node comes with room for one of two pods that are unschedulable. The shard of that with the higher priority is amid a cycle for
// another pod of its own, which is no more urgent than the other shard's.
func TestPodThatWakesAmidACycleOfItsShardGoesFirst(t *testing.T) {
	for name, cycle := range map[string]time.Duration{"that soon ends": 10 * time.Millisecond, "that lasts": 400 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t, 8)
				var amid atomic.Bool
				w.filterWorker("f1", func(int64) {
					if amid.Load() {
						elapse(cycle)
					}
				})
				w.scoreWorker("s1")
				w.ledger.node("small", 1000)
				q, _ := w.queueMember("q1")
				elapse(time.Second)
				w.ledger.pod("high", 50_000, priority(10))
				for k := range 4 {
					w.ledger.pod(fmt.Sprintf("low%d", k), int64(50_001+k), priority(1))
				}
				w.after(time.Minute)
				waiting := pending(t, q)
				shard := waiting["high"].GetShard()
				if !slices.ContainsFunc(slices.Collect(maps.Values(waiting)), func(p *queuev1.PendingPod) bool { return p.GetShard() != shard }) {
					t.Fatal("all pods are of one shard: nothing is tested")
				}
				amid.Store(true)
				w.ledger.pod("amid", 50_000, priority(1))
				elapse(cycle / 2)
				amid.Store(false)
				w.ledger.node("large", 50_500)
				if got, want := w.after(time.Minute), []string{"high"}; !slices.Equal(got, want) {
					t.Errorf("placed %v, want %v", got, want)
				}
			})
		})
	}
}

func TestMemberThatIsNotHeardHoldsNobodyForLong(t *testing.T) {
	for name, c := range map[string]struct {
		stop   func(w *world, n *neighbor, die func())
		within time.Duration
	}{
		"hangs":  {func(_ *world, n *neighbor, _ func()) { n.hang() }, wordCounts},
		"dies":   {func(_ *world, _ *neighbor, die func()) { die() }, wordCounts},
		"leaves": {func(w *world, _ *neighbor, die func()) { w.etcd.leave("q0") }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w, n, die := beside(t)
				w.ledger.pod("low", 100, nil)
				if got := w.after(time.Minute); got != nil {
					t.Fatalf("before it %s, %v are placed", name, got)
				}
				c.stop(w, n, die)
				if c.within > 0 {
					if got := w.after(c.within - 600*time.Millisecond); got != nil {
						t.Errorf("as soon as it %s, %v are placed, though its last word counts", name, got)
					}
				}
				if got := w.after(700 * time.Millisecond); !slices.Equal(got, []string{"low"}) {
					t.Errorf("%v after it %s, %v are placed, want low", c.within+100*time.Millisecond, name, got)
				}
			})
		})
	}
}

func TestMemberIsCalledAgainWhenItIsBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w, _, die := beside(t)
		die()
		elapse(time.Minute)
		back := &neighbor{changed: make(chan struct{}), heard: make(map[string]int), says: map[int32]int32{7: 10}}
		w.serve("q0", func(r grpc.ServiceRegistrar) { queuev1.RegisterQueueServiceServer(r, back) })
		elapse(10 * time.Second)
		w.ledger.pod("low", 100, nil)
		if got := w.after(time.Minute); got != nil {
			t.Errorf("%v are placed, though another works at 10 again", got)
		}
		back.mu.Lock()
		defer back.mu.Unlock()
		if want := map[string]int{"q1": 1}; !maps.Equal(back.heard, want) {
			t.Errorf("calls %v, want %v", back.heard, want)
		}
	})
}

func TestNewMemberHearsTheOthersBeforeItBegins(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.filterWorker("f1", nil)
		w.scoreWorker("s1")
		w.ledger.node("n1", 1000)
		w.ledger.pod("low", 100, nil)
		n, _ := w.neighbor("q0")
		n.hang()
		start := time.Now()
		w.queueMember("q1")
		w.untilPlaced("low")
		if took := time.Since(start); took < wordCounts || took > wordCounts+100*time.Millisecond {
			t.Errorf("placed after %v, want after %v: the time that the other has to speak", took, wordCounts)
		}
	})
}

func TestUnschedulablePodOfAHigherPriorityStarvesNobody(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, 4)
		w.filterWorker("f1", nil)
		w.scoreWorker("s1")
		w.ledger.node("n1", 50_000)
		q1, _ := w.queueMember("q1")
		q2, _ := w.queueMember("q2")
		elapse(time.Second)
		for k := range 8 {
			w.ledger.pod(fmt.Sprintf("huge%d", k), int64(100_000+k), priority(1000))
		}
		var want []string
		for k := range 20 {
			name := fmt.Sprintf("p%02d", k)
			w.ledger.pod(name, int64(100+k), nil)
			want = append(want, name)
		}
		got := w.after(time.Second)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("placed %v, want %v", got, want)
		}
		unschedulable := 0
		for _, q := range []*queue.Service{q1, q2} {
			for _, p := range pending(t, q) {
				if p.GetState() == queuev1.State_STATE_UNSCHEDULABLE {
					unschedulable++
				}
			}
		}
		if unschedulable != 8 {
			t.Errorf("%d pods are unschedulable, want 8", unschedulable)
		}
	})
}

func TestShardThatGetsNowhereHoldsNobodyForLong(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, 8)
		filters, _ := w.filterWorker("f1", nil)
		filters.refuse = func(request *filterv1.FilterRequest) error {
			if request.GetSubjects()[0].GetPriority() == 10 {
				return status.Error(codes.Unavailable, "not for these")
			}
			return nil
		}
		w.scoreWorker("s1")
		w.ledger.node("n1", 100_000)
		q, _ := w.queueMember("q1")
		elapse(time.Second)
		w.ledger.pod("high", 100, priority(10))
		for k := range 8 {
			w.ledger.pod(fmt.Sprintf("low%d", k), int64(101+k), nil)
		}
		if got := w.after(500 * time.Millisecond); got != nil {
			t.Errorf("placed at once: %v, want none, since high is being tried", got)
		}
		w.after(3 * time.Second)
		held := pending(t, q)
		for name, p := range held {
			if p.GetShard() != held["high"].GetShard() {
				t.Errorf("%s of shard %d still waits for high of shard %d", name, p.GetShard(), held["high"].GetShard())
			}
		}
		if len(held) == 9 {
			t.Error("all pods are of one shard: nothing is tested")
		}
	})
}

func TestShardOfAMemberWithoutAStateHasNoFloor(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.filterWorker("f1", nil)
		w.scoreWorker("s1")
		w.ledger.node("n1", 1000)
		q, _ := w.queueMember("q1")
		elapse(time.Second)
		floor := func() *int32 {
			response, err := q.GetShards(t.Context(), &queuev1.GetShardsRequest{})
			if err != nil {
				t.Fatal(err)
			}
			return response.GetShards()[0].PriorityFloor
		}
		w.ledger.unloaded.Store(true) // its replica is to load a snapshot
		w.ledger.pod("a", 100, priority(3))
		for range 20 {
			elapse(101 * time.Millisecond) // its driver tries again
			synctest.Wait()
			if got := floor(); got != nil {
				t.Fatalf("its floor is %d, though it can pop nothing", *got)
			}
		}
		w.ledger.unloaded.Store(false)
		w.untilPlaced("a")
	})
}

func TestShardThatDrainsHasNoFloor(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		hangs := make(chan struct{})
		w.filterWorker("f1", func(int64) { <-hangs })
		w.scoreWorker("s1")
		w.ledger.node("n1", 1000)
		q, _ := w.queueMember("q1")
		elapse(time.Second)
		stream := newFloorStream(t.Context())
		var watch sync.WaitGroup
		watch.Go(func() { _ = q.WatchPriorityFloors(&queuev1.WatchPriorityFloorsRequest{Member: "q2"}, stream) })
		defer watch.Wait()
		defer stream.cancel()
		defer close(hangs)
		says := func(want ...*queuev1.PriorityFloor) {
			t.Helper()
			if got := fmt.Sprint((<-stream.sent).GetFloors()); got != fmt.Sprint(want) {
				t.Errorf("floors %v, want %v", got, want)
			}
		}
		says()
		w.ledger.pod("p", 100, priority(10))
		says(&queuev1.PriorityFloor{Priority: 10})
		w.etcd.join(coord.RoleQueue, "q2") // to whom rendezvous hashing gives the shard
		says()
		if owners := w.etcd.ownersOf(); owners[0] != "q1" {
			t.Errorf("shards are owned by %v, want 0 still by q1, whose cycle has not ended", owners)
		}
	})
}

func TestOrderIsGlobalByPriorityOverShardsAndMembers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, 8)
		w.batch = 3
		w.filterWorker("f1", nil)
		w.scoreWorker("s1")
		w.nodes(3)
		w.queueMember("q1")
		w.queueMember("q2")
		elapse(time.Second)
		count := map[string]int{}
		for _, owner := range w.etcd.ownersOf() {
			count[owner]++
		}
		if count["q1"] == 0 || count["q2"] == 0 {
			t.Fatalf("shards by owner: %v, want some of both", count)
		}
		// Nobody can begin before all pods are there.
		leader := w.etcd.leader
		w.etcd.change(func() { w.etcd.leader = coord.Leader{} })
		synctest.Wait()
		var want []int32
		for k := range 240 {
			p := int32(k % 6)
			w.ledger.pod(fmt.Sprintf("%d-%03d", p, k), int64(100+k%24), priority(p))
			want = append(want, p)
		}
		elapse(time.Second)
		w.etcd.change(func() { w.etcd.leader = leader })
		var got []int32
		for _, name := range w.after(time.Minute) {
			var p int32
			if _, err := fmt.Sscanf(name, "%d-", &p); err != nil {
				t.Fatal(err)
			}
			got = append(got, p)
		}
		slices.Sort(want)
		slices.Reverse(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("priorities in the order of placement (-want +got):\n%s", diff)
		}
	})
}

func TestOwnersChangeUnderLoadAndNoPodIsLostOrTwiceOrOutOfOrder(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, 8)
		w.batch = 4
		w.filterWorker("f1", func(int64) { elapse(3 * time.Millisecond) })
		w.scoreWorker("s1")
		w.nodes(12)
		w.queueMember("q1")
		const pods = 1200
		var load sync.WaitGroup
		load.Go(func() {
			for k := range pods {
				p := k % 3
				w.ledger.pod(fmt.Sprintf("%d/%02d/%04d", p, k%16, k), int64(100+k%16), priority(int32(p)))
				elapse(time.Millisecond)
			}
		})
		for k := range 6 {
			elapse(100 * time.Millisecond)
			_, stop := w.queueMember(fmt.Sprintf("q%d", k+2))
			elapse(70 * time.Millisecond)
			if k%2 == 0 {
				stop()
			}
		}
		load.Wait()
		order := w.after(time.Minute)
		if n := len(order); n != pods {
			t.Errorf("%d placements, want %d", n, pods)
		}
		claims := map[int32]map[int64]bool{}
		w.binder.mu.Lock()
		for _, commit := range w.binder.commits {
			if claims[commit.GetShard()] == nil {
				claims[commit.GetShard()] = map[int64]bool{}
			}
			claims[commit.GetShard()][commit.GetShardRevision()] = true
		}
		w.binder.mu.Unlock()
		for shard, revisions := range claims {
			if len(revisions) > 1 {
				delete(claims, shard)
			}
		}
		if len(claims) > 2 {
			t.Errorf("shards %v of 8 placed pods under one owner only: the load was not felt", slices.Sorted(maps.Keys(claims)))
		}
		last := map[string]string{}
		for _, name := range order {
			floor := name[:len("p/kk")] // of one class, so of one shard
			if name <= last[floor] {
				t.Errorf("%s is placed after %s", name, last[floor])
			}
			last[floor] = name
		}
	})
}

func TestWatchPriorityFloorsSpeaksAtOnceOnChangeAndEveryHalfSecond(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, 1) // without workers: nothing is popped
		q, _ := w.queueMember("q1")
		elapse(time.Second)
		stream := newFloorStream(t.Context())
		var watch sync.WaitGroup
		watch.Go(func() {
			if err := q.WatchPriorityFloors(&queuev1.WatchPriorityFloorsRequest{Member: "q2"}, stream); err == nil {
				t.Error("WatchPriorityFloors ended without an error")
			}
		})
		defer watch.Wait()
		defer stream.cancel()
		const pause, period = 5 * time.Millisecond, 500 * time.Millisecond
		last := time.Now()
		// A message comes so long after something, or a pause later if the stream has just looked.
		expect := func(since time.Time, after time.Duration, floors ...*queuev1.PriorityFloor) {
			t.Helper()
			m := <-stream.sent
			last = time.Now()
			got, want := fmt.Sprint(m.GetFloors()), fmt.Sprint(floors)
			if took := last.Sub(since); took < after || took > after+pause || got != want {
				t.Errorf("after %v: %v, want %v after %v", took, got, want, after)
			}
		}
		expect(last, 0)
		elapse(100 * time.Millisecond)
		w.ledger.pod("a", 100, priority(3))
		expect(time.Now(), 0, &queuev1.PriorityFloor{Priority: 3})
		elapse(time.Millisecond)
		w.ledger.pod("b", 100, priority(5))
		w.ledger.pod("c", 100, priority(7))
		expect(last, pause, &queuev1.PriorityFloor{Priority: 7})
		w.ledger.pod("d", 100, priority(1)) // changes no floor
		expect(last, period, &queuev1.PriorityFloor{Priority: 7})
		w.ledger.apply(cluster.PodRemoved{ID: 2})
		expect(last, pause, &queuev1.PriorityFloor{Priority: 5})
	})
}

// floorStream is the server's end of a stream.
type floorStream struct {
	grpc.ServerStream
	ctx    context.Context
	cancel context.CancelFunc
	sent   chan *queuev1.WatchPriorityFloorsResponse
}

func newFloorStream(ctx context.Context) *floorStream {
	ctx, cancel := context.WithCancel(ctx)
	return &floorStream{ctx: ctx, cancel: cancel, sent: make(chan *queuev1.WatchPriorityFloorsResponse)}
}

func (s *floorStream) Context() context.Context { return s.ctx }

func (s *floorStream) Send(m *queuev1.WatchPriorityFloorsResponse) error {
	select {
	case s.sent <- m:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}
