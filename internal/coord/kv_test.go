package coord

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/coord/etcdtest"
)

func put(t *testing.T, c *Client, ops ...Op) int64 {
	t.Helper()
	var last int64
	for chunk := range slices.Chunk(ops, MaxTxnOps) {
		ok, revision, err := c.Txn(within(t), nil, chunk)
		if err != nil || !ok {
			t.Fatalf("Txn: %v, %v", ok, err)
		}
		last = revision
	}
	return last
}

func TestListReadsAllPagesAtOneRevision(t *testing.T) {
	onEveryEtcd(t, func(t *testing.T, s server) {
		c := connect(t, s)
		const n = firstPage + lastPage + 1
		var ops []Op
		for i := range n {
			ops = append(ops, Put(fmt.Sprintf("pods/%05d", i), []byte{byte(i)}))
		}
		put(t, c, ops...)
		revision := put(t, c, Put("podsx", nil), Put("pod", nil), Put("nodes/a", nil))
		kvs, got, err := c.List(within(t), "pods/")
		if err != nil || got != revision || len(kvs) != n {
			t.Fatalf("List: %d keys at %d, %v; want %d at %d", len(kvs), got, err, n, revision)
		}
		for i, kv := range kvs {
			if kv.Key != fmt.Sprintf("pods/%05d", i) || kv.Value[0] != byte(i) || kv.CreateRevision != kv.ModRevision || kv.ModRevision == 0 {
				t.Fatalf("key %d is %+v", i, kv)
			}
		}
		// A page read at the list's revision does not see what came later.
		put(t, c, Put("pods/99999", nil))
		page, err := c.page(within(t), c.kvPrefix()+"pods/9", c.kvPrefix()+"pods/:", revision, firstPage)
		if err != nil || len(page.Kvs) != 0 {
			t.Errorf("page at revision %d: %v, %v", revision, page, err)
		}
	})
}

// fillPages writes two pages of keys that start with "pods/" and returns how many there are.
func fillPages(t *testing.T, c *Client) int {
	t.Helper()
	const n = firstPage + 1
	var ops []Op
	for i := range n {
		ops = append(ops, Put(fmt.Sprintf("pods/%05d", i), nil))
	}
	put(t, c, ops...)
	return n
}

func TestScansOfOneRevisionDoNotSeeWhatIsWrittenMeanwhile(t *testing.T) {
	onEveryEtcd(t, func(t *testing.T, s server) {
		c := connect(t, s)
		n := fillPages(t, c)
		asOf := put(t, c, Put("nodes/a", nil))
		var keys []string
		revision, err := c.Scan(within(t), "pods/", 0, func(kv KV) {
			if len(keys) == 0 {
				put(t, c, Delete("pods/01000"), Put("pods/99999", nil), Put("nodes/b", nil))
			}
			keys = append(keys, kv.Key)
		})
		if err != nil || revision != asOf || len(keys) != n || keys[n-1] != "pods/01000" || !slices.IsSorted(keys) {
			t.Fatalf("Scan visits %d keys at %d, %v; want %d at %d", len(keys), revision, err, n, asOf)
		}
		keys = nil
		again, err := c.Scan(within(t), "nodes/", revision, func(kv KV) { keys = append(keys, kv.Key) })
		if err != nil || again != revision || !slices.Equal(keys, []string{"nodes/a"}) {
			t.Errorf("Scan at revision %d visits %q at %d, %v", revision, keys, again, err)
		}
	})
}

func TestAScanReadsAPageWhenItHasVisitedTheOneBefore(t *testing.T) {
	onEveryEtcd(t, func(t *testing.T, s server) {
		c := connect(t, s)
		fillPages(t, c)
		visited := 0
		_, err := c.Scan(within(t), "pods/", 0, func(KV) {
			if visited++; visited == firstPage { // the second page has not been read yet, or this would be too late
				put(t, c, Put("other", nil))
				compact(t, c)
			}
		})
		if !errors.Is(err, ErrCompacted) || visited != firstPage {
			t.Errorf("Scan visits %d keys, %v; want %d and ErrCompacted", visited, err, firstPage)
		}
	})
}

func TestPagesAreLargeButNotTooLarge(t *testing.T) {
	for _, test := range []struct{ keys, bytes, want int }{
		{1000, 20 * 1000, lastPage},                // tiny values
		{1000, 1000 << 10, 8 << 10},                // a KiB each
		{1000, 1000 << 20, firstPage},              // large ones: no fewer than the first page had
		{1000 + 8<<10, (1000 + 8<<10) << 11, 4096}, // they have grown
	} {
		if got := pageLimit(test.keys, test.bytes); got != int64(test.want) {
			t.Errorf("after %d keys of %d bytes the next page has %d, want %d", test.keys, test.bytes, got, test.want)
		}
	}
}

func TestTxnWritesOnlyIfAllConditionsHold(t *testing.T) {
	onEveryEtcd(t, func(t *testing.T, s server) {
		c := connect(t, s)
		created := put(t, c, Put("a", []byte("1")))
		changed := put(t, c, Put("a", []byte("2")))
		tests := []struct {
			name string
			cond Cond
			want bool
		}{
			{"absent", IfAbsent("b"), true},
			{"absent, existing key", IfAbsent("a"), false},
			{"create revision", IfCreateRevision("a", created), true},
			{"create revision, other", IfCreateRevision("a", changed), false},
			{"mod revision", IfModRevision("a", changed), true},
			{"mod revision, older", IfModRevision("a", created), false},
		}
		for _, test := range tests {
			put(t, c, Delete("out"))
			ok, revision, err := c.Txn(within(t), []Cond{IfCreateRevision("a", created), test.cond}, []Op{Put("out", nil)})
			if err != nil || ok != test.want {
				t.Errorf("%s: %v, %v", test.name, ok, err)
			}
			kv, _, err := c.Get(within(t), "out")
			if err != nil || (kv != nil) != test.want || kv != nil && kv.ModRevision != revision {
				t.Errorf("%s: wrote %v at %d, %v", test.name, kv, revision, err)
			}
		}
	})
}

func TestTxnThatMakesNoSenseIsRefused(t *testing.T) {
	onEveryEtcd(t, func(t *testing.T, s server) {
		c := connect(t, s)
		many := make([]Op, MaxTxnOps+1)
		for i := range many {
			many[i] = Put(fmt.Sprint(i), nil)
		}
		for name, test := range map[string]struct {
			conds []Cond
			ops   []Op
			is    error
		}{
			"too many operations":  {nil, many, nil},
			"too large":            {nil, []Op{Put("a", make([]byte, 2<<20))}, ErrTooLarge},
			"no key":               {nil, []Op{Put("", nil)}, nil},
			"condition of nothing": {[]Cond{{}}, nil, nil},
			"a key written twice":  {nil, []Op{Put("a", nil), Delete("a")}, nil},
		} {
			ok, _, err := c.Txn(within(t), test.conds, test.ops)
			if ok || err == nil || errors.Is(err, ErrUnknown) || test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("%s: %v, %v", name, ok, err)
			}
		}
		largest := strings.Repeat("x", maxTxnBytes-opBytes-len(c.kvPrefix())-1)
		put(t, c, Put("a", []byte(largest)))
	})
}

// collect returns the first n events of a watch.
func collect(t *testing.T, watch <-chan WatchUpdate, n int) []string {
	t.Helper()
	var got []string
	for len(got) < n {
		u := next(t, watch)
		if u.Err != nil {
			t.Fatal(u.Err)
		}
		for _, e := range u.Events {
			if e.KV.ModRevision > u.Revision {
				t.Errorf("update of revision %d has an event of %d", u.Revision, e.KV.ModRevision)
			}
			got = append(got, fmt.Sprintf("%s=%s,%v", e.KV.Key, e.KV.Value, e.Deleted))
		}
	}
	return got
}

func TestWatchDeliversEveryChangeInOrderFromARevision(t *testing.T) {
	onEveryEtcd(t, func(t *testing.T, s server) {
		c := connect(t, s)
		put(t, c, Put("p/old", nil))
		_, revision, err := c.List(within(t), "p/")
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for i := range 50 {
			put(t, c, Put(fmt.Sprintf("p/%d", i), []byte("v")), Put("q/other", nil))
			want = append(want, fmt.Sprintf("p/%d=v,false", i))
		}
		put(t, c, Delete("p/old"))
		want = append(want, "p/old=,true")
		ctx, cancel := context.WithCancel(t.Context())
		watch := c.Watch(ctx, "p/", revision+1)
		if got := collect(t, watch, len(want)); !slices.Equal(want, got) {
			t.Errorf("Watch = %v", got)
		}
		cancel()
		select {
		case _, open := <-watch:
			if open {
				t.Error("an update after the end")
			}
		case <-time.After(patient):
			t.Error("the channel is not closed")
		}
	})
}

func TestWatchOfACompactedRevisionSaysSoAndEnds(t *testing.T) {
	onEveryEtcd(t, func(t *testing.T, s server) {
		c := connect(t, s)
		first := put(t, c, Put("a", nil))
		put(t, c, Put("a", nil), Put("b", nil))
		compact(t, c)
		watch := c.Watch(t.Context(), "", first)
		if u := next(t, watch); !errors.Is(u.Err, ErrCompacted) || len(u.Events) != 0 {
			t.Errorf("Watch sends %+v", u)
		}
		if u, open := <-watch; open {
			t.Errorf("Watch goes on with %+v", u)
		}
	})
}

func TestWatchResumesWithoutAGapWhenEtcdIsRestarted(t *testing.T) {
	etcd := etcdtest.Start(t)
	c := connect(t, etcd)
	revision := put(t, c, Put("a", []byte("0")))
	watch := c.Watch(t.Context(), "a", revision)
	collect(t, watch, 1)
	var want []string
	for i := range 4 {
		if i == 2 {
			etcd.Restart()
		}
		put(t, connect(t, etcd), Put("a", []byte{byte('1' + i)}))
		want = append(want, fmt.Sprintf("a=%d,false", i+1))
	}
	if got := collect(t, watch, len(want)); !slices.Equal(want, got) {
		t.Errorf("Watch = %v, want %v", got, want)
	}
}

func TestMembersAreFollowedOverRestartAndCompaction(t *testing.T) {
	etcd := etcdtest.Start(t)
	c := connect(t, etcd)
	watch := c.WatchMembers(t.Context())
	next(t, watch)
	session := newSession(t, c, lasting)
	register := func(id string) {
		t.Helper()
		if err := session.Register(within(t), Member{RoleQueue, id, "x"}); err != nil {
			t.Fatal(err)
		}
	}
	has := func(n int) func([]Member) bool { return func(m []Member) bool { return len(m) == n } }
	register("a")
	until(t, watch, has(1))
	// Nothing is read from here on; the newest list has to come first.
	etcd.Restart()
	register("b")
	compact(t, c)
	etcd.Restart()
	register("c")
	until(t, watch, has(3))
	closeSession(t, session)
	until(t, watch, has(0))
}

func TestSlowReaderGetsTheNewestList(t *testing.T) {
	c := connect(t, startEmbeddedServer(t))
	session := newSession(t, c, lasting)
	defer closeSession(t, session)
	slow, fast := c.WatchMembers(t.Context()), c.WatchMembers(t.Context())
	const n = 100
	for i := range n {
		if err := session.Register(within(t), Member{RoleQueue, fmt.Sprintf("%03d", i), "x"}); err != nil {
			t.Fatal(err)
		}
	}
	all := func(m []Member) bool { return len(m) == n }
	until(t, fast, all)
	lists := 0
	until(t, slow, func(m []Member) bool { lists++; return all(m) })
	if lists > n/2 { // one that was waiting, and what has not come through yet
		t.Errorf("the slow reader had to read %d lists of %d", lists, n)
	}
	repeated := 0 // once, if the last change came while the list before it was made
	for {
		select {
		case <-fast:
			if repeated++; repeated > 1 {
				t.Fatal("the same list is sent again and again")
			}
		case <-time.After(100 * time.Millisecond):
			return
		}
	}
}
