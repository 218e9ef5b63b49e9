package coord

import (
	"context"
	"log/slog"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berth-scheduler/berth/internal/coord/etcdtest"
)

// patient is how long a test waits for what must happen.
// patient is for hangs only.
const patient = 5 * time.Minute

// server is an etcd that a contract test runs on.
type server interface{ Endpoints() []string }

// embeddedServer can restart an embedded etcd on its directory. Its port changes, so clients have to connect again.
type embeddedServer struct {
	t   *testing.T
	cfg EmbeddedConfig
	e   *Embedded
}

func startEmbeddedServer(t *testing.T) *embeddedServer {
	s := &embeddedServer{t: t, cfg: EmbeddedConfig{Dir: t.TempDir(), Log: testLog(t), UnsafeNoFsync: true}}
	s.start()
	t.Cleanup(func() { closeEmbedded(t, s.e) })
	return s
}

func (s *embeddedServer) start() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	e, err := StartEmbedded(ctx, s.cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.e = e
}

func (s *embeddedServer) Endpoints() []string { return s.e.Endpoints() }

func (s *embeddedServer) Restart() {
	s.t.Helper()
	closeEmbedded(s.t, s.e)
	s.start()
}

func closeEmbedded(t *testing.T, e *Embedded) {
	t.Helper()
	if err := e.Close(); err != nil {
		t.Errorf("close embedded etcd: %v", err)
	}
}

// onEveryEtcd runs a contract test on an embedded and on a remote etcd.
func onEveryEtcd(t *testing.T, test func(t *testing.T, s server)) {
	t.Run("embedded", func(t *testing.T) { test(t, startEmbeddedServer(t)) })
	t.Run("remote", func(t *testing.T) { test(t, etcdtest.Start(t)) })
}

func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}

func connect(t *testing.T, s server) *Client {
	t.Helper()
	cfg := Config{Endpoints: s.Endpoints(), Log: testLog(t)}
	if s, ok := s.(*embeddedServer); ok {
		cfg.Embedded = s.e
	}
	c, err := Connect(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close client: %v", err)
		}
	})
	return c
}

// within returns a context for what must not take long.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	t.Cleanup(cancel)
	return ctx
}

func newSession(t *testing.T, c *Client, ttl time.Duration) *Session {
	t.Helper()
	s, err := c.NewSession(within(t), ttl)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func elect(t *testing.T, c *Client, s *Session, id string) *Term {
	t.Helper()
	term, err := c.Campaign(within(t), s, id, "address-of-"+id)
	if err != nil {
		t.Fatal(err)
	}
	return term
}

func closeSession(t *testing.T, s *Session) {
	t.Helper()
	if err := s.Close(within(t)); err != nil {
		t.Fatal(err)
	}
}

// The ttl of sessions: of one whose end is waited for, and of one that must not end by itself, however busy the machine is.
const (
	mortal  = 4 * time.Second
	lasting = 10 * time.Minute
)

// vanish ends a session as the death of its process does: no more keepalives, and no revocation.
func vanish(s *Session) {
	s.cancel()
	<-s.done
}

// next returns the next value of a channel that must send one.
func next[T any](t *testing.T, ch <-chan T) T {
	t.Helper()
	select {
	case v, open := <-ch:
		if !open {
			t.Fatal("channel closed")
		}
		return v
	case <-time.After(patient):
		t.Fatalf("nothing received in %v", patient)
	}
	panic("unreachable")
}

// until returns the first value that is as wanted.
func until[T any](t *testing.T, ch <-chan T, wanted func(T) bool) T {
	t.Helper()
	deadline := time.After(patient)
	var last T
	for {
		select {
		case v, open := <-ch:
			if !open {
				t.Fatalf("channel closed; last value: %v", last)
			}
			if last = v; wanted(v) {
				return v
			}
		case <-deadline:
			t.Fatalf("not as wanted after %v; last value: %v", patient, last)
		}
	}
}

// deleteLeader removes the election key behind the back of whoever leads; the leader's lease lives on.
func deleteLeader(t *testing.T, c *Client) {
	t.Helper()
	if _, err := c.etcd.Delete(within(t), c.leaderKey()); err != nil {
		t.Fatal(err)
	}
}

// compact drops all history of etcd.
func compact(t *testing.T, c *Client) {
	t.Helper()
	r, err := c.etcd.Get(within(t), "any")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.etcd.Compact(within(t), r.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
}
