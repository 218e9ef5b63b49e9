package binder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/wire"
	"github.com/berth-scheduler/berth/test/bubble"
)

// queued are placements of so many units, of so many placements each; below 0: so many that are in none.
func queued(units ...int) (waiting []*placement) {
	for k, n := range units {
		unit := int64(k + 1)
		if n < 0 {
			n, unit = -n, 0
		}
		for range n {
			waiting = append(waiting, &placement{UID: fmt.Sprint("p", len(waiting)), unit: unit})
		}
	}
	return waiting
}

func TestABatchCutsNoUnitThatFitsIntoOne(t *testing.T) {
	const limit = batchLimit
	for name, tt := range map[string]struct {
		waiting []*placement
		want    []int
	}{
		"nothing":                              {nil, nil},
		"no unit":                              {queued(-7), []int{7}},
		"more than a batch of no unit":         {queued(-limit - 1), []int{limit}},
		"a unit":                               {queued(limit), []int{limit}},
		"it fits between others":               {queued(-1, limit-1, -1), []int{limit}},
		"it does not fit behind others":        {queued(-2, limit-1), []int{2}},
		"nor behind other units":               {queued(2, 3, limit-4), []int{5}},
		"others are behind it":                 {queued(limit-1, -2), []int{limit}},
		"it is too large, behind others":       {queued(-1, 2*limit+1), []int{1}},
		"it is too large":                      {queued(2*limit+1, -3), []int{limit, limit, 1}},
		"it is too large, and fills its parts": {queued(2*limit, 2*limit), []int{limit, limit}},
	} {
		if got := fitting(tt.waiting); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
	// Bytes bound a batch too: it has room for three of these.
	large := queued(-1, 3, 5)
	for _, p := range large {
		p.recorded = batchBytes/3 - 100
	}
	for from, want := range map[int][]int{0: {1}, 1: {3}, 4: {3, 2}} {
		if got := fitting(large[from:]); !slices.Equal(got, want) {
			t.Errorf("from the large one %d on: %v, want %v", from, got, want)
		}
	}
}

// batchesEtcd notes of each batch how many placements it has, and which one it counts with.
type batchesEtcd struct{ written [][2]int }

func (e *batchesEtcd) Record(_ context.Context, _ coord.Version, b *coord.Batch, _ []int64) error {
	if b != nil {
		e.written = append(e.written, [2]int{len(b.Intents), int(b.With)})
	}
	return nil
}

func (e *batchesEtcd) Shrink(context.Context, []coord.Batch) error {
	return errors.New("nothing is taken back")
}

// recordAll has a recorder write what do hands in, and returns the batches, as batchesEtcd notes them, and what is let go.
func recordAll(t *testing.T, fenced bool, do func(*recorder)) (batches [][2]int, gone []string) {
	bubble.Test(t, func(t *testing.T) {
		etcd, out := new(batchesEtcd), make(chan *placement, 10*batchLimit)
		r := newRecorder(recorderConfig{
			term: etcd, fenced: fenced, version: func() cluster.Version { return cluster.Version{Epoch: 7, Seq: 1} }, out: out, prepares: func(*placement) bool { return false },
			move: func(p *placement, next placementState) bool { return p.to(next) == nil }, took: func(time.Duration) {}, log: slog.New(slog.DiscardHandler),
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		do(r) // before any of it is written
		go func() { ended <- r.run(ctx) }()
		synctest.Wait()
		stop()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
		batches = etcd.written
		for range len(out) {
			gone = append(gone, (<-out).UID)
		}
	})
	return batches, gone
}

func TestCommitsAreRecordedInFullBatchesAndUnitsWhole(t *testing.T) {
	const limit = batchLimit
	for name, tt := range map[string]struct {
		do   func(*recorder)
		want [][2]int
	}{
		"commits":                     {func(r *recorder) { r.add(queued(-limit - 300)); r.add(queued(-limit)) }, [][2]int{{limit, 0}, {limit, 0}, {300, 0}}},
		"a unit between commits":      {func(r *recorder) { r.add(queued(-3)); r.addUnit(queued(-4)); r.add(queued(-5)) }, [][2]int{{12, 0}}},
		"a unit of one":               {func(r *recorder) { r.addUnit(queued(-1)); r.add(queued(-limit)) }, [][2]int{{limit, 0}, {1, 0}}},
		"a unit that does not fit":    {func(r *recorder) { r.add(queued(-3)); r.addUnit(queued(-limit)) }, [][2]int{{3, 0}, {limit, 0}}},
		"a unit that is too large":    {func(r *recorder) { r.addUnit(queued(-2*limit - 9)); r.add(queued(-5)) }, [][2]int{{limit, 3}, {limit, 3}, {9, 0}, {5, 0}}},
		"another one behind a commit": {func(r *recorder) { r.add(queued(-1)); r.addUnit(queued(-limit - 1)) }, [][2]int{{1, 0}, {limit, 3}, {1, 0}}},
		"two of them":                 {func(r *recorder) { r.addUnit(queued(-limit - 1)); r.addUnit(queued(-limit - 2)) }, [][2]int{{limit, 2}, {1, 0}, {limit, 4}, {2, 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			all := 0
			for _, b := range tt.want {
				all += b[0]
			}
			if got, gone := recordAll(t, false, tt.do); !slices.Equal(got, tt.want) || len(gone) != all {
				t.Errorf("batches of placements, and with which they count: %v, want %v; %d of %d are let go", got, tt.want, len(gone), all)
			}
		})
	}
	for _, fenced := range []bool{false, true} { // they keep their order, and fenced binds are recorded if they are of a unit
		const n = 2*limit + 9
		batches, gone := recordAll(t, fenced, func(r *recorder) { r.addUnit(queued(-n)) })
		if len(gone) != n || !slices.Equal(batches, [][2]int{{limit, 3}, {limit, 3}, {9, 0}}) {
			t.Fatalf("fenced %v: %d of %d are let go, batches %v", fenced, len(gone), n, batches)
		}
		for i, uid := range gone {
			if want := fmt.Sprint("p", i); uid != want {
				t.Fatalf("fenced %v: %s is let go in the place of %s", fenced, uid, want)
			}
		}
	}
	if batches, gone := recordAll(t, true, func(r *recorder) { r.add(queued(-3)); r.addUnit(queued(-1)) }); len(batches) > 0 || len(gone) != 4 {
		t.Errorf("%d of 4 fenced binds that are of no unit are let go, batches %v", len(gone), batches)
	}
}

// mortal is the election, as the binder sees it that has it and dies when it has written so often.
type mortal struct {
	*coord.Term
	session *coord.Session
	writes  int
	behind  func() // called behind each write
}

var errDies = errors.New("the binder dies")

func lead(t *testing.T, client *coord.Client, writes int) *mortal {
	t.Helper()
	session, err := client.NewSession(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	term, err := client.Campaign(t.Context(), session, "first", "nowhere")
	if err != nil {
		t.Fatal(err)
	}
	return &mortal{term, session, writes, func() {}}
}

func (l *mortal) write(fn func() error) error {
	if l.writes == 0 {
		return errDies
	}
	l.writes--
	err := fn()
	l.behind()
	return err
}

func (l *mortal) Record(ctx context.Context, v coord.Version, b *coord.Batch, finished []int64) error {
	return l.write(func() error { return l.Term.Record(ctx, v, b, finished) })
}

func (l *mortal) Shrink(ctx context.Context, batches []coord.Batch) error {
	return l.write(func() error { return l.Term.Shrink(ctx, batches) })
}

// die ends the election.
func (l *mortal) die(t *testing.T) {
	t.Helper()
	if err := l.session.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// batchKeys returns how many batches are in etcd, whether they count or not, for a client from above.
func batchKeys(t *testing.T, client *coord.Client) int {
	t.Helper()
	kvs, _, err := client.List(t.Context(), "coord/intents/")
	if err != nil {
		t.Fatal(err)
	}
	return len(kvs)
}

// A gang that needs three batches is placed by a binder that dies when it has written so many of them. The next one binds all of it, or nothing.
func TestAGangThatIsRecordedInPartsIsTakenOverWholeOrNotAtAll(t *testing.T) {
	const pods, parts = 2*batchLimit + 100, 3
	for writes := range parts + 1 {
		t.Run(fmt.Sprint("writes=", writes), func(t *testing.T) {
			etcd, src := startEtcd(t), newFakeSource()
			raw := connect(t, etcd, above)
			dying := lead(t, connect(t, etcd, prefix), writes)
			first := pureTerm(t, src, unboundAtMost(pods), func(c *termConfig) { c.record, c.epoch = dying, dying.Epoch() })
			observe(t, first, source.Event{Kind: source.ObjectSet, Object: &cluster.PodGroup{Namespace: "default", Name: "gang", Gang: true, MinCount: pods}})
			for i := range pods / 100 {
				n := node(fmt.Sprint("n", i), 100_000)
				src.setNode(n)
				observe(t, first, n)
			}
			req := &binderv1.PlaceGroupRequest{Namespace: "default", Name: "gang", ShardRevision: 1}
			for i := range pods {
				p := pod(fmt.Sprint("p", i), 10)
				p.Group = "gang"
				src.setPod(p)
				observe(t, first, p)
				id, _ := first.ledger.state.PodByUID(p.UID)
				req.Pods = append(req.Pods, &binderv1.PodAttempt{Id: int32(id), Uid: p.UID, Attempt: 1, SubjectIndex: -1})
			}
			// 1. It is placed, and recorded as far as the binder comes.
			req.Version = wire.ToVersion(first.ledger.version())
			if _, err := first.placeGroup(t.Context(), req); err != nil || len(first.recorder.waiting) != pods {
				t.Fatalf("%d of %d wait for the record: %v", len(first.recorder.waiting), pods, err)
			}
			gone := make(chan *placement, pods)
			first.recorder.out = gone
			var err error
			for more := true; more && err == nil; {
				more, err = first.recorder.recordOnce(t.Context())
			}
			want := 0
			if writes == parts {
				want = pods
			}
			if errors.Is(err, errDies) != (want == 0) || err != nil && want > 0 {
				t.Fatalf("the record ends by %v", err)
			}
			if n, keys := len(gone), batchKeys(t, raw); n != want || keys != writes {
				t.Fatalf("%d binds are let go, want %d; %d batches are in etcd, want %d", n, want, keys, writes)
			}
			dying.die(t)
			// 2. Another one takes over.
			b := start(t, etcd, src, named("second"))
			b.active()
			eventually(t, "no batch is left", func() bool { return batchKeys(t, raw) == 0 })
			bound := 0
			b.look(func(st *cluster.State) {
				for i := range pods {
					if strings.HasPrefix(phaseOf(st, fmt.Sprint("p", i)), "bound on ") {
						bound++
					}
				}
			})
			if n := len(src.tried("")); bound != want || n != want {
				t.Errorf("of %d pods %d are bound, by %d binds; want %d", pods, bound, n, want)
			}
		})
	}
}

// Parts count again when a later epoch has a version in etcd: see coord.Record. So they leave it with the first, whatever that is, and none of theirs is taken for the last of them.
func TestPartsWithoutTheLastLeaveWithTheFirstRecord(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	parts := []coord.StoredBatch{{Batch: coord.Batch{ID: 5, With: 7}}, {Batch: coord.Batch{ID: 6, With: 7}}}
	term.dropUnfinished(parts)
	term.recorder.add(queued(-1)) // nothing has changed since the epoch began
	if _, err := term.recorder.recordOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	written := term.recorder.term.(*recorded)
	if len(written.batches) != 1 || len(written.batches[8]) != 1 || !slices.Equal(written.finished, []int64{5, 6}) {
		t.Errorf("the first record has the batches %v, and removes %v; want batch 8, the first one behind theirs, and them", written.batches, written.finished)
	}
}

// Also by one that has taken them over: what is removed by several transactions is removed before a version of its epoch is in etcd.
func TestTheLastPartLeavesBehindThoseThatCountWithIt(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("a", 1000), pod("p", 10), pod("q", 10))
	taken, err := term.adopt([]coord.StoredBatch{
		{Batch: coord.Batch{ID: 5, Intents: []coord.Intent{meant("p", "a")}, With: 6}}, {Batch: coord.Batch{ID: 6, Intents: []coord.Intent{meant("q", "a")}}},
	})
	if err != nil || len(taken) != 2 {
		t.Fatalf("taken %v, %v", taken, err)
	}
	slices.SortFunc(taken, func(a, b *placement) int { return strings.Compare(b.UID, a.UID) }) // the last part's is decided first
	for i, want := range [][]int64{nil, {5, 6}} {
		term.recorder.decided(taken[i])
		finished := record(t, term).finished
		if slices.Sort(finished); !slices.Equal(finished, want) {
			t.Errorf("when %s is decided, %v have left etcd, want %v", taken[i].UID, finished, want)
		}
	}
}

// Whatever becomes of the pods of a unit of three batches, in whichever order, and whoever has taken it over: between any two writes all is in the record that is not decided,
// and in the end nothing is.
func TestPartsGoOnToCountUntilAllOfThemAreDecided(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			const pods, parts = 2*batchLimit + 100, 3
			random := rand.New(rand.NewPCG(seed, 1))
			etcd := startEtcd(t)
			client, raw := connect(t, etcd, prefix), connect(t, etcd, above)
			undecided, seq := make(map[string]*placement), cluster.Seq(0)
			check := func() {
				record, err := client.ReadRecord(t.Context())
				found := make(map[string]bool)
				for _, b := range record.Batches {
					for _, in := range b.Batch.Intents {
						found[in.PodUID] = true
					}
				}
				missing := 0
				for uid := range undecided {
					if !found[uid] {
						missing++
					}
				}
				if err != nil || missing > 0 || len(record.Unfinished) > 0 {
					t.Fatalf("%d of %d are not in the record, %d batches do not count: %v", missing, len(undecided), len(record.Unfinished), err)
				}
			}
			begin := func() (*mortal, *recorder) {
				leads := lead(t, client, 1000)
				seq = 0
				return leads, newRecorder(recorderConfig{
					term: leads, out: make(chan *placement, pods), prepares: func(*placement) bool { return false },
					version: func() cluster.Version { seq++; return cluster.Version{Epoch: cluster.Epoch(leads.Epoch()), Seq: seq} },
					move:    func(p *placement, next placementState) bool { return p.to(next) == nil }, took: func(time.Duration) {}, log: slog.New(slog.DiscardHandler),
				})
			}
			write := func(r *recorder) {
				for more := true; more; {
					var err error
					if more, err = r.recordOnce(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
			// 1. All of it is recorded.
			leads, r := begin()
			all := queued(-pods)
			r.addUnit(all)
			write(r)
			if len(r.open) != parts || batchKeys(t, raw) != parts {
				t.Fatalf("there are %d batches", len(r.open))
			}
			for _, p := range all {
				undecided[p.UID] = p
			}
			// 2. One batch after the other is decided, but for some of its pods.
			order := random.Perm(parts)
			var early, late [][]*placement
			for _, k := range order {
				batch := all[k*batchLimit : min((k+1)*batchLimit, pods)]
				stay := random.IntN(2) * random.IntN(len(batch))
				early, late = append(early, batch[stay:]), append(late, batch[:stay])
			}
			ends := random.IntN(2 * parts) // of which the term does, behind so many
			for k, some := range append(early, late...) {
				for _, p := range some {
					p = undecided[p.UID]
					delete(undecided, p.UID)
					if random.IntN(2) == 0 {
						r.decided(p)
						continue
					}
					if err := r.takeBack(p, func() error { return nil }); err != nil {
						t.Fatal(err)
					}
				}
				leads.behind = check
				for _, b := range r.open { // some are sparse, and for long
					b.since, r.sparseAt = time.Time{}, time.Time{}
				}
				write(r)
				if k != ends {
					continue
				}
				// 3. Another one takes over.
				leads.die(t)
				leads, r = begin()
				record, err := client.ReadRecord(t.Context())
				if err != nil || len(record.Unfinished) > 0 {
					t.Fatalf("%d batches do not count: %v", len(record.Unfinished), err)
				}
				for _, b := range record.Batches {
					taken := make([]*placement, len(b.Batch.Intents))
					for i, in := range b.Batch.Intents {
						if undecided[in.PodUID] != nil {
							taken[i] = &placement{UID: in.PodUID, batch: b.Batch.ID, index: i}
							undecided[in.PodUID] = taken[i]
						}
					}
					r.adopt(b.Batch.ID, b.Batch.With, taken)
				}
			}
			write(r)
			if n := batchKeys(t, raw); n != 0 || len(r.open)+len(r.finished)+len(r.named) != 0 {
				t.Errorf("in the end there are %d batches, %d open, %d finished, and %v are named", n, len(r.open), len(r.finished), r.named)
			}
			leads.die(t)
		})
	}
}
