package coord

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/connectivity"

	"github.com/berth-scheduler/berth/internal/coord/etcdtest"
)

// trio is an etcd of three members.
type trio []*etcdtest.Process

func (e trio) Endpoints() []string {
	var all []string
	for _, p := range e {
		all = append(all, p.Endpoints()...)
	}
	return all
}

// usedBy returns the member that a client uses.
func (e trio) usedBy(t *testing.T, c *Client) *etcdtest.Process {
	t.Helper()
	for _, p := range e {
		if c.inUse.Load().name == "http://"+p.Endpoints()[0] {
			return p
		}
	}
	t.Fatalf("%s is no member", c.inUse.Load().name)
	return nil
}

func (e trio) leader(t *testing.T, c *Client) *etcdtest.Process {
	t.Helper()
	for _, p := range e {
		status, err := c.etcd.Status(within(t), "http://"+p.Endpoints()[0])
		if err != nil {
			t.Fatal(err)
		}
		if status.Leader == status.Header.MemberId {
			return p
		}
	}
	t.Fatal("no leader")
	return nil
}

// connectTo returns a client that uses a member that is as wanted. What it sends may wait for an hour: it gets on only if it does not wait.
func (e trio) connectTo(t *testing.T, wanted func(*etcdtest.Process) bool) *Client {
	t.Helper()
	for range 1000 {
		c, err := Connect(Config{Endpoints: e.Endpoints(), Log: testLog(t), RequestTimeout: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		if wanted(e.usedBy(t, c)) {
			t.Cleanup(func() {
				if err := c.Close(); err != nil {
					t.Errorf("close client: %v", err)
				}
			})
			return c
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("no client begins with the wanted member")
	return nil
}

// untilKnown repeats a write until its outcome is known. It has as much time as a lease of the TTL.
func untilKnown(t *testing.T, ttl time.Duration, write func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), ttl)
	defer cancel()
	for {
		err := write(ctx)
		if err == nil {
			return
		}
		if !errors.Is(err, ErrUnknown) || ctx.Err() != nil {
			t.Fatal(err)
		}
		t.Logf("again: %v", err)
	}
}

// endpointOf returns a client's endpoint of a member.
func endpointOf(c *Client, p *etcdtest.Process) *endpoint {
	return c.endpoints[slices.IndexFunc(c.endpoints, func(e *endpoint) bool { return e.name == "http://"+p.Endpoints()[0] })]
}

// catchUp makes a member answer again and know all writes so far.
func catchUp(t *testing.T, c *Client, p *etcdtest.Process) {
	t.Helper()
	p.Continue()
	deadline := time.After(patient)
	for {
		_, err := c.ask(within(t), endpointOf(c, p))
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("the member does not come back: %v", err)
		default:
		}
	}
}

func TestRecordsGoOnWithinTheLeaseWhileOneMemberIsSilent(t *testing.T) {
	const ttl = 20 * time.Second
	members := trio(etcdtest.StartCluster(t, 3))
	any := members.connectTo(t, func(*etcdtest.Process) bool { return true })
	for _, test := range []struct {
		name                 string
		usesLeader, isPaused bool // the client's member
	}{
		{"a follower that is in use", false, true},
		{"the leader, in use", true, true},
		{"the leader, another is in use", false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			leader := members.leader(t, any)
			c := members.connectTo(t, func(p *etcdtest.Process) bool { return (p == leader) == test.usesLeader })
			session := newSession(t, c, ttl)
			term := elect(t, c, session, "one")
			before, err := c.ReadRecord(within(t))
			if err != nil {
				t.Fatal(err)
			}
			silent := leader
			if test.isPaused {
				silent = members.usedBy(t, c)
			}
			silent.Pause()
			const n = 20
			first := term.Epoch() * 1000 // batch ID
			var want Record
			for i := range int64(n) {
				// Each finishes the batch before it, the first what another case has left.
				v, b, finished := Version{term.Epoch(), i}, batch(first+i), []int64{first + i - 1}
				for _, left := range before.Batches {
					finished = append(finished, left.Batch.ID)
				}
				untilKnown(t, ttl, func(ctx context.Context) error { return term.Record(ctx, v, &b, finished) })
				want = Record{Version: v, Batches: []StoredBatch{{term.Epoch(), b}}}
			}
			if session.over() {
				t.Error("the session is over")
			}
			if members.usedBy(t, c) == silent {
				t.Error("the silent member is in use")
			}
			checkRecord(t, c, want)
			catchUp(t, c, silent) // it may now do what it was sent before the pause
			checkRecord(t, c, want)
			closeSession(t, session)
		})
	}
}

func TestWhatWasSentIsGivenUpWhenEtcdHasAnotherLeader(t *testing.T) {
	members := trio(etcdtest.StartCluster(t, 3))
	c := members.connectTo(t, func(*etcdtest.Process) bool { return true })
	used := c.inUse.Load()
	deadline := time.After(patient)
	for {
		leader := members.leader(t, c)
		next := members[0]
		if next == leader {
			next = members[1]
		}
		status, err := c.etcd.Status(within(t), "http://"+next.Endpoints()[0])
		if err != nil {
			t.Fatal(err)
		}
		at := members.connectTo(t, func(p *etcdtest.Process) bool { return p == leader })
		if _, err := at.etcd.MoveLeader(within(t), status.Header.MemberId); err != nil {
			t.Logf("move the leader: %v", err) // it may have moved by itself
		}
		select {
		case <-used.ctx.Done():
			if err := context.Cause(used.ctx); !errors.Is(err, errGivenUp) {
				t.Error(err)
			}
			return
		case <-time.After(2 * askEvery): // the client had not yet asked who led before
		case <-deadline:
			t.Fatal("the client does not care")
		}
	}
}

func TestAStandbyTakesOverWhileItsMemberIsSilent(t *testing.T) {
	const ttl = 20 * time.Second
	members := trio(etcdtest.StartCluster(t, 3))
	standby := members.connectTo(t, func(*etcdtest.Process) bool { return true })
	silent := members.usedBy(t, standby)
	active := members.connectTo(t, func(p *etcdtest.Process) bool { return p != silent })

	s1, s2 := newSession(t, active, ttl), newSession(t, standby, ttl)
	first := elect(t, active, s1, "one")
	leaders := standby.WatchLeader(t.Context())
	until(t, leaders, func(l Leader) bool { return l.Epoch == first.Epoch() })
	second := campaign(t, standby, s2, "two")
	awaitWatches(t, silent, 2)

	silent.Pause()
	untilKnown(t, ttl, first.Resign)
	// While the standby's session lives: it ends unless its keepalives find another member too.
	took := next(t, second)
	until(t, leaders, func(l Leader) bool { return l.Epoch == took.Epoch() && l.ID == "two" })
	untilKnown(t, ttl, func(ctx context.Context) error { return took.Record(ctx, Version{took.Epoch(), 0}, nil, nil) })
	if _, _, err := standby.List(within(t), ""); err != nil {
		t.Error(err)
	}
	if s2.over() {
		t.Error("the session is over")
	}
	if state := endpointOf(standby, silent).conn.GetState(); state != connectivity.Ready {
		t.Errorf("the connection to the silent member is %v: gRPC has given it up", state) // that alone would have been enough
	}
	silent.Continue()
	closeSession(t, s1)
	closeSession(t, s2)
}

// awaitWatches waits until a member has n watches, as its metrics say.
func awaitWatches(t *testing.T, p *etcdtest.Process, n int) {
	t.Helper()
	deadline := time.After(patient)
	for {
		r, err := http.Get("http://" + p.Endpoints()[0] + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "\netcd_debugging_mvcc_watcher_total "+string(rune('0'+n))+"\n") {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("no %d watches", n)
		default:
		}
	}
}
