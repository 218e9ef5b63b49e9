package coord

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/coord/etcdtest"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// lead returns a term that ends with the test.
func lead(t *testing.T, c *Client) *Term {
	t.Helper()
	session := newSession(t, c, lasting)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patient)
		defer cancel()
		if err := session.Close(ctx); err != nil {
			t.Errorf("close session: %v", err)
		}
	})
	return elect(t, c, session, "one")
}

func batch(id int64) Batch {
	var b = Batch{ID: id}
	for i := range 3 {
		in := Intent{PodUID: fmt.Sprintf("uid-%d-%d", id, i), Namespace: "ns", Name: fmt.Sprintf("pod-%d", i), Node: "node"}
		for k := range i { // none, one, two
			in.Volumes = append(in.Volumes, VolumeIntent{Claim: fmt.Sprintf("claim-%d", k), ClaimUID: "of", Volume: []string{"volume", ""}[k]})
		}
		if i == 2 {
			in.Scheduler = "default-scheduler"
			in.Annotations = map[string]string{"example.com/cards": `GPU-1,<GPU-2>&"`, "example.com/other": ""}
		}
		b.Intents = append(b.Intents, in)
	}
	return b
}

func checkRecord(t *testing.T, c *Client, want Record) {
	t.Helper()
	got, err := c.ReadRecord(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ReadRecord (-want +got):\n%s", diff)
	}
}

func TestRecordIsReadBack(t *testing.T) {
	onEveryEtcd(t, func(t *testing.T, s server) {
		c := connect(t, s)
		checkRecord(t, c, Record{})
		term := lead(t, c)
		e := term.Epoch()
		var want Record
		const n = 300 // more than two transactions can delete
		for id := int64(1); id <= n; id++ {
			b := batch(id)
			if err := term.Record(within(t), Version{e, id}, &b, nil); err != nil {
				t.Fatal(err)
			}
			want.Batches = append(want.Batches, StoredBatch{e, b})
		}
		want.Version = Version{e, n}
		checkRecord(t, c, want)

		if err := term.Record(within(t), Version{e, n + 1}, nil, []int64{2, 2, 9999}); err != nil {
			t.Fatal(err)
		}
		want.Version = Version{e, n + 1}
		want.Batches = append(want.Batches[:1:1], want.Batches[2:]...)
		checkRecord(t, c, want)

		var finished []int64
		for id := int64(1); id < n; id++ {
			finished = append(finished, id)
		}
		last := batch(n + 1)
		if err := term.Record(within(t), Version{e, n + 2}, &last, finished); err != nil {
			t.Fatal(err)
		}
		checkRecord(t, c, Record{Version: Version{e, n + 2}, Batches: []StoredBatch{{e, batch(n)}, {e, last}}})
	})
}

func TestRecordOutlivesItsEpochAndIsFinishedByTheNext(t *testing.T) {
	onEveryEtcd(t, func(t *testing.T, s server) {
		c := connect(t, s)
		first := lead(t, c)
		b1, b2 := batch(1), batch(2)
		if err := first.Record(within(t), Version{first.Epoch(), 5}, &b1, nil); err != nil {
			t.Fatal(err)
		}
		if err := first.Resign(within(t)); err != nil {
			t.Fatal(err)
		}
		second := lead(t, c)
		checkRecord(t, c, Record{Version: Version{first.Epoch(), 5}, Batches: []StoredBatch{{first.Epoch(), b1}}})
		reused := batch(1)
		reused.Intents[0].Node = "other"
		if err := second.Record(within(t), Version{second.Epoch(), 0}, &reused, nil); !errors.Is(err, ErrOutOfOrder) {
			t.Errorf("Record under the ID of a batch that is not finished: %v", err)
		}
		if err := second.Record(within(t), Version{second.Epoch(), 0}, &b2, nil); err != nil {
			t.Fatal(err)
		}
		if err := second.Record(within(t), Version{second.Epoch(), 1}, nil, []int64{1}); err != nil {
			t.Fatal(err)
		}
		checkRecord(t, c, Record{Version: Version{second.Epoch(), 1}, Batches: []StoredBatch{{second.Epoch(), b2}}})
	})
}

func TestRecordCanBeRepeatedButNotUndone(t *testing.T) {
	onEveryEtcd(t, func(t *testing.T, s server) {
		c := connect(t, s)
		term := lead(t, c)
		e := term.Epoch()
		b := batch(1)
		for range 3 {
			if err := term.Record(within(t), Version{e, 1}, &b, []int64{7}); err != nil {
				t.Fatal(err)
			}
		}
		checkRecord(t, c, Record{Version: Version{e, 1}, Batches: []StoredBatch{{e, b}}})
		for range 3 {
			if err := term.Record(within(t), Version{e, 2}, nil, []int64{1}); err != nil {
				t.Fatal(err)
			}
		}
		// As when the first Record had timed out and is applied only now.
		if err := term.Record(within(t), Version{e, 1}, &b, nil); !errors.Is(err, ErrOutOfOrder) {
			t.Errorf("Record of an earlier version: %v", err)
		}
		checkRecord(t, c, Record{Version: Version{e, 2}})
	})
}

func TestRecordThatMakesNoSenseIsRefused(t *testing.T) {
	c := connect(t, startEmbeddedServer(t))
	term := lead(t, c)
	e := term.Epoch()
	huge := &Batch{ID: 1, Intents: []Intent{{Name: strings.Repeat("x", 2<<20)}}}
	for name, err := range map[string]error{
		"version of another epoch": term.Record(within(t), Version{e + 1, 1}, nil, nil),
		"negative version":         term.Record(within(t), Version{e, -1}, nil, nil),
		"batch without an ID":      term.Record(within(t), Version{e, 1}, &Batch{}, nil),
		"batch that is finished":   term.Record(within(t), Version{e, 1}, &Batch{ID: 1}, []int64{1}),
		"part with an earlier one": term.Record(within(t), Version{e, 1}, &Batch{ID: 2, With: 1}, nil),
		"part with itself":         term.Record(within(t), Version{e, 1}, &Batch{ID: 2, With: 2}, nil),
		"batch too large for etcd": term.Record(within(t), Version{e, 1}, huge, nil),
	} {
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
		if name == "batch too large for etcd" && !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
	checkRecord(t, c, Record{})
}

func TestRecordWithoutAnAnswerIsUnknownAndCanBeRepeated(t *testing.T) {
	etcd := etcdtest.Start(t)
	c := connect(t, etcd)
	term := lead(t, c)
	b := batch(1)
	v := Version{term.Epoch(), 1}
	etcd.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := term.Record(ctx, v, &b, nil); !errors.Is(err, ErrUnknown) || errors.Is(err, ErrFenced) {
		t.Errorf("Record while etcd is paused: %v", err)
	}
	etcd.Continue() // etcd may or may not apply the first one now
	if err := term.Record(within(t), v, &b, nil); err != nil {
		t.Errorf("Record again: %v", err)
	}
	checkRecord(t, c, Record{Version: v, Batches: []StoredBatch{{term.Epoch(), b}}})
}

func TestVersionsCompareAsTheirEncodingsDo(t *testing.T) {
	ascending := []Version{{0, 0}, {0, 9}, {0, 10}, {1, 0}, {9, 1 << 62}, {10, 0}, {10, 1}, {1 << 62, 3}}
	for i, v := range ascending {
		if got, err := decodeVersion(encodeVersion(v)); err != nil || got != v {
			t.Errorf("decode of %v = %v, %v", v, got, err)
		}
		if i > 0 && encodeVersion(ascending[i-1]) >= encodeVersion(v) {
			t.Errorf("%v does not come before %v", ascending[i-1], v)
		}
	}
	for _, s := range []string{"", "1", "a-b", "1-2-3"} {
		if v, err := decodeVersion(s); err == nil {
			t.Errorf("%q decodes to %v", s, v)
		}
	}
}

func TestDecidedIntentsLeaveTheirBatch(t *testing.T) {
	onEveryEtcd(t, func(t *testing.T, s server) {
		c := connect(t, s)
		first := lead(t, c)
		const n = 2*shrinkBatches + 1
		for id := int64(1); id <= n; id++ {
			b := batch(id)
			if err := first.Record(within(t), Version{first.Epoch(), id}, &b, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := first.Resign(within(t)); err != nil {
			t.Fatal(err)
		}
		second := lead(t, c)
		left := Record{Version: Version{first.Epoch(), n}}
		var batches []Batch
		for id := int64(1); id <= n; id++ {
			b := batch(id)
			b.Intents = b.Intents[1:]
			batches = append(batches, b)
			left.Batches = append(left.Batches, StoredBatch{second.Epoch(), b})
		}
		for range 2 { // as when the answer to the first was lost
			if err := second.Shrink(within(t), batches); err != nil {
				t.Fatal(err)
			}
			checkRecord(t, c, left)
		}
		if err := first.Shrink(within(t), []Batch{batch(1)}); !errors.Is(err, ErrFenced) {
			t.Errorf("Shrink of a term that is over: %v", err)
		}
		if err := second.Record(within(t), Version{second.Epoch(), 1}, nil, []int64{1}); err != nil {
			t.Fatal(err)
		}
		if err := second.Shrink(within(t), batches[:1]); !errors.Is(err, ErrOutOfOrder) {
			t.Errorf("Shrink of a batch that is finished: %v", err)
		}
		left.Version, left.Batches = Version{second.Epoch(), 1}, left.Batches[1:]
		checkRecord(t, c, left)
	})
}

// replayer keeps the transactions that write, so that they can be made again.
type replayer struct {
	clientv3.KV
	made []func() clientv3.Txn
}

func (r *replayer) Txn(ctx context.Context) clientv3.Txn {
	return &replayable{Txn: r.KV.Txn(ctx), replayer: r}
}

// replayable is a transaction on its way.
type replayable struct {
	clientv3.Txn
	*replayer
	conds           []clientv3.Cmp
	then, otherwise []clientv3.Op
}

func (t *replayable) If(conds ...clientv3.Cmp) clientv3.Txn {
	t.conds = conds
	t.Txn = t.Txn.If(conds...)
	return t
}

func (t *replayable) Then(ops ...clientv3.Op) clientv3.Txn {
	t.then = ops
	t.Txn = t.Txn.Then(ops...)
	return t
}

func (t *replayable) Else(ops ...clientv3.Op) clientv3.Txn {
	t.otherwise = ops
	t.Txn = t.Txn.Else(ops...)
	return t
}

func (t *replayable) Commit() (*clientv3.TxnResponse, error) {
	if slices.ContainsFunc(t.then, clientv3.Op.IsPut) {
		t.made = append(t.made, func() clientv3.Txn {
			return t.KV.Txn(context.Background()).If(t.conds...).Then(t.then...).Else(t.otherwise...)
		})
	}
	return t.Txn.Commit()
}

func TestADelayedDuplicateOfAShrinkBringsNothingBack(t *testing.T) {
	c := connect(t, startEmbeddedServer(t))
	writes := &replayer{KV: c.txns}
	c.txns = writes
	term := lead(t, c)
	b := batch(1)
	if err := term.Record(within(t), Version{term.Epoch(), 1}, &b, nil); err != nil {
		t.Fatal(err)
	}
	writes.made = nil
	for len(b.Intents) > 1 {
		b.Intents = b.Intents[1:]
		if err := term.Shrink(within(t), []Batch{b}); err != nil {
			t.Fatal(err)
		}
	}
	duplicates := writes.made
	if len(duplicates) != 2 {
		t.Fatalf("%d writes, want one of each Shrink", len(duplicates))
	}
	replay := func() {
		t.Helper()
		for i, again := range duplicates {
			if r, err := again().Commit(); err != nil || r.Succeeded {
				t.Errorf("duplicate %d: %+v, %v", i, r, err)
			}
		}
	}
	replay()
	checkRecord(t, c, Record{Version: Version{term.Epoch(), 1}, Batches: []StoredBatch{{term.Epoch(), b}}})
	if err := term.Record(within(t), Version{term.Epoch(), 1}, nil, []int64{1}); err != nil {
		t.Fatal(err)
	}
	replay()
	checkRecord(t, c, Record{Version: Version{term.Epoch(), 1}})
}

// part is a batch that counts with another one.
func part(id, with int64) Batch {
	b := batch(id)
	b.With = with
	return b
}

func TestPartsCountWithTheLastOneOnly(t *testing.T) {
	onEveryEtcd(t, func(t *testing.T, s server) {
		c := connect(t, s)
		first := lead(t, c)
		e := first.Epoch()
		whole := []StoredBatch{{e, batch(1)}, {e, part(2, 4)}, {e, part(3, 4)}, {e, batch(4)}}
		for i, b := range whole {
			if err := first.Record(within(t), Version{e, int64(i)}, &b.Batch, nil); err != nil {
				t.Fatal(err)
			}
			want := Record{Version: Version{e, int64(i)}, Batches: whole[:1]}
			switch i {
			case 1, 2:
				want.Unfinished = whole[1 : i+1]
			case 3:
				want.Batches = whole
			}
			checkRecord(t, c, want)
		}
		// A part that is written anew counts by itself.
		if err := first.Shrink(within(t), []Batch{batch(2)}); err != nil {
			t.Fatal(err)
		}
		if err := first.Record(within(t), Version{e, 9}, nil, []int64{4}); err != nil {
			t.Fatal(err)
		}
		checkRecord(t, c, Record{Version: Version{e, 9}, Batches: []StoredBatch{{e, batch(1)}, {e, batch(2)}}, Unfinished: []StoredBatch{{e, part(3, 4)}}})
	})
}

// A binder that does not know of parts has taken over what there was, and finishes it in whichever order.
func TestPartsOfAnEarlierEpochCountOnceALaterOneHasRecorded(t *testing.T) {
	c := connect(t, startEmbeddedServer(t))
	first := lead(t, c)
	p, last := part(1, 2), batch(2)
	for i, b := range []*Batch{&p, &last} {
		if err := first.Record(within(t), Version{first.Epoch(), int64(i)}, b, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.Resign(within(t)); err != nil {
		t.Fatal(err)
	}
	second := lead(t, c)
	if err := second.Record(within(t), Version{second.Epoch(), 0}, nil, []int64{2}); err != nil {
		t.Fatal(err)
	}
	checkRecord(t, c, Record{Version: Version{second.Epoch(), 0}, Batches: []StoredBatch{{first.Epoch(), p}}})
}

// visited calls a function behind each transaction.
type visited struct {
	clientv3.KV
	behind func()
}

func (v *visited) Txn(ctx context.Context) clientv3.Txn { return &visitedTxn{v.KV.Txn(ctx), v.behind} }

type visitedTxn struct {
	clientv3.Txn
	behind func()
}

func (t *visitedTxn) If(conds ...clientv3.Cmp) clientv3.Txn {
	t.Txn = t.Txn.If(conds...)
	return t
}

func (t *visitedTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.Txn = t.Txn.Then(ops...)
	return t
}

func (t *visitedTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.Txn = t.Txn.Else(ops...)
	return t
}

func (t *visitedTxn) Commit() (*clientv3.TxnResponse, error) {
	defer t.behind()
	return t.Txn.Commit()
}

// More batches than one transaction removes, of which all are parts of one unit.
func TestTheLastPartLeavesEtcdWithOthersOrBehindThem(t *testing.T) {
	c := connect(t, startEmbeddedServer(t))
	term := lead(t, c)
	const n = 2*MaxTxnOps + 10
	var finished []int64
	for id := int64(n); id > 0; id-- { // and are given in another order
		finished = append(finished, id)
	}
	for id := int64(1); id <= n; id++ {
		b := Batch{ID: id, With: n}
		if id == n {
			b.With = 0
		}
		if err := term.Record(within(t), Version{term.Epoch(), 1}, &b, nil); err != nil {
			t.Fatal(err)
		}
	}
	var left []int
	c.txns = &visited{c.txns, func() {
		record, err := c.ReadRecord(within(t))
		if err != nil || len(record.Unfinished) > 0 {
			t.Errorf("behind %d transactions, %d parts do not count: %v", len(left), len(record.Unfinished), err)
		}
		left = append(left, len(record.Batches))
	}}
	if err := term.Record(within(t), Version{term.Epoch(), 2}, nil, finished); err != nil {
		t.Fatal(err)
	}
	if want := []int{n - MaxTxnOps, n - 2*MaxTxnOps, 0}; !slices.Equal(left, want) {
		t.Errorf("behind each transaction there are %v batches, want %v", left, want)
	}
}

// Earlier releases read it, and write it.
func TestABatchThatCountsByItselfIsWrittenAsEver(t *testing.T) {
	term := &Term{client: &Client{prefix: "/"}, epoch: 3}
	got, err := term.encodeBatch(&Batch{ID: 7, Intents: []Intent{{PodUID: "uid", Namespace: "ns", Name: "name", Node: "node"}}})
	if want := `{"epoch":3,"intents":[["uid","ns","name","node"]]}`; err != nil || got != want {
		t.Errorf("written as %s, %v; want %s", got, err, want)
	}
}
