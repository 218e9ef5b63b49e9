package coord

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/coord/etcdtest"
)

// campaign runs a campaign whose end the test does not wait for yet.
func campaign(t *testing.T, c *Client, s *Session, id string) <-chan *Term {
	elected := make(chan *Term, 1)
	ctx := within(t)
	go func() {
		defer close(elected)
		term, err := c.Campaign(ctx, s, id, "address-of-"+id)
		if err != nil {
			t.Errorf("campaign of %s: %v", id, err)
			return
		}
		elected <- term
	}()
	return elected
}

func TestLeadershipPassesOnWhenTheLeaderDiesOrResigns(t *testing.T) {
	onEveryEtcd(t, func(t *testing.T, s server) {
		c1, c2 := connect(t, s), connect(t, s)
		leaders := connect(t, s).WatchLeader(t.Context())
		if got := next(t, leaders); got != (Leader{}) {
			t.Fatalf("leader at the start: %v", got)
		}
		is := func(term *Term, id string) func(Leader) bool {
			return func(l Leader) bool { return l == Leader{term.Epoch(), id, "address-of-" + id} }
		}
		s1 := newSession(t, c1, mortal)
		s2 := newSession(t, c2, lasting)
		first := elect(t, c1, s1, "one")
		until(t, leaders, is(first, "one"))

		second := campaign(t, c2, s2, "two")
		select {
		case <-second:
			t.Fatal("two leaders")
		case <-time.After(300 * time.Millisecond):
		}
		vanish(s1)
		t2 := next(t, second)
		until(t, leaders, is(t2, "two"))

		s3 := newSession(t, c1, lasting)
		third := campaign(t, c1, s3, "three")
		if err := t2.Resign(within(t)); err != nil {
			t.Fatal(err)
		}
		t3 := next(t, third)
		until(t, leaders, is(t3, "three"))
		if !(first.Epoch() < t2.Epoch() && t2.Epoch() < t3.Epoch()) {
			t.Errorf("epochs do not grow: %d, %d, %d", first.Epoch(), t2.Epoch(), t3.Epoch())
		}
		if err := t2.Resign(within(t)); err != nil {
			t.Errorf("resign again: %v", err)
		}
		if _, _, err := c1.Txn(within(t), []Cond{t3.Guard()}, nil); err != nil {
			t.Errorf("another's resignation has ended the term: %v", err)
		}
		closeSession(t, s3)
		closeSession(t, s2)
		until(t, leaders, func(l Leader) bool { return l == Leader{} })
	})
}

func TestCampaignEndsWithItsContextAndItsSession(t *testing.T) {
	onEveryEtcd(t, func(t *testing.T, s server) {
		c := connect(t, s)
		leads, waits := newSession(t, c, lasting), newSession(t, c, lasting)
		defer closeSession(t, leads)
		elect(t, c, leads, "one")
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := c.Campaign(ctx, waits, "two", ""); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Campaign whose context ends: %v", err)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := c.Campaign(t.Context(), waits, "two", "")
			ended <- err
		}()
		closeSession(t, waits)
		if err := next(t, ended); !errors.Is(err, ErrSessionLost) {
			t.Errorf("Campaign whose session ends: %v", err)
		}
	})
}

func TestASessionThatLeadsAgainHasANewEpoch(t *testing.T) {
	onEveryEtcd(t, func(t *testing.T, s server) {
		c := connect(t, s)
		session := newSession(t, c, lasting)
		defer closeSession(t, session)
		first := elect(t, c, session, "one") // never resigned, as if the resignation were lost
		second := elect(t, c, session, "one")
		if second.Epoch() <= first.Epoch() {
			t.Errorf("epochs do not grow: %d, %d", first.Epoch(), second.Epoch())
		}
		if err := first.Record(within(t), Version{first.Epoch(), 1}, nil, nil); !errors.Is(err, ErrFenced) {
			t.Errorf("Record of the earlier term: %v", err)
		}
	})
}

func TestDeposedTermWritesNothing(t *testing.T) {
	onEveryEtcd(t, func(t *testing.T, s server) {
		c := connect(t, s)
		session := newSession(t, c, lasting)
		defer closeSession(t, session)
		term := elect(t, c, session, "one")
		kept := &Batch{ID: 1, Intents: []Intent{{PodUID: "uid", Namespace: "ns", Name: "pod", Node: "node"}}}
		if err := term.Record(within(t), Version{term.Epoch(), 1}, kept, nil); err != nil {
			t.Fatal(err)
		}
		// The session lives: it is etcd, not the local clock, that has to refuse.
		deleteLeader(t, c)

		many := make([]int64, 1000)
		for i := range many {
			many[i] = int64(i + 1)
		}
		if err := term.Record(within(t), Version{term.Epoch(), 2}, &Batch{ID: 2000}, nil); !errors.Is(err, ErrFenced) {
			t.Errorf("Record: %v", err)
		}
		if err := term.Record(within(t), Version{term.Epoch(), 3}, nil, many); !errors.Is(err, ErrFenced) {
			t.Errorf("Record with many finished batches: %v", err)
		}
		if ok, _, err := c.Txn(within(t), []Cond{IfAbsent("k"), term.Guard()}, []Op{Put("k", nil)}); ok || !errors.Is(err, ErrFenced) {
			t.Errorf("Txn: %v, %v", ok, err)
		}
		if session.over() {
			t.Fatal("session is over, etcd was not asked")
		}

		rec, err := c.ReadRecord(within(t))
		if err != nil {
			t.Fatal(err)
		}
		want := Record{Version: Version{term.Epoch(), 1}, Batches: []StoredBatch{{term.Epoch(), *kept}}}
		if diff := cmp.Diff(want, rec); diff != "" {
			t.Errorf("ReadRecord (-want +got):\n%s", diff)
		}
		if kv, _, err := c.Get(within(t), "k"); kv != nil || err != nil {
			t.Errorf("Get = %v, %v", kv, err)
		}
	})
}

func TestTermWhoseSessionIsOverWritesNothing(t *testing.T) {
	onEveryEtcd(t, func(t *testing.T, s server) {
		c := connect(t, s)
		session := newSession(t, c, lasting)
		term := elect(t, c, session, "one")
		vanish(session) // etcd still has the lease: it is the local clock that has to refuse
		if err := term.Record(within(t), Version{term.Epoch(), 1}, nil, nil); !errors.Is(err, ErrFenced) {
			t.Errorf("Record: %v", err)
		}
		if _, _, err := c.Txn(within(t), []Cond{term.Guard()}, []Op{Put("k", nil)}); !errors.Is(err, ErrFenced) {
			t.Errorf("Txn: %v", err)
		}
		rec, err := c.ReadRecord(within(t))
		if err != nil || rec.Version != (Version{}) {
			t.Errorf("ReadRecord = %v, %v", rec, err)
		}
		closeSession(t, session)
	})
}

func TestPausedLeaderIsReplacedAndFenced(t *testing.T) {
	etcd := etcdtest.Start(t)
	c := connect(t, etcd)
	s1 := newSession(t, c, mortal)
	first := elect(t, c, s1, "one")
	if err := first.Record(within(t), Version{first.Epoch(), 7}, nil, nil); err != nil {
		t.Fatal(err)
	}
	etcd.Pause()
	<-first.Done()
	etcd.Continue()
	s2 := newSession(t, c, lasting)
	defer closeSession(t, s2)
	second := elect(t, c, s2, "two")
	if err := first.Record(within(t), Version{first.Epoch(), 8}, nil, nil); !errors.Is(err, ErrFenced) {
		t.Errorf("Record of the first term: %v", err)
	}
	if rec, err := c.ReadRecord(within(t)); err != nil || rec.Version != (Version{first.Epoch(), 7}) {
		t.Errorf("the second term reads %v, %v", rec, err)
	}
	if err := second.Record(within(t), Version{second.Epoch(), 0}, nil, nil); err != nil {
		t.Errorf("Record of the second term: %v", err)
	}
}
