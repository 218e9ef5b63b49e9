package coord

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/coord/etcdtest"
)

func TestMembersVanishWhenTheirLeaseEnds(t *testing.T) {
	onEveryEtcd(t, func(t *testing.T, s server) {
		c := connect(t, s)
		watch := connect(t, s).WatchMembers(t.Context())
		if got := next(t, watch); len(got) != 0 {
			t.Fatalf("members at the start: %v", got)
		}
		dies, leaves, stays := newSession(t, c, mortal), newSession(t, c, lasting), newSession(t, c, lasting)
		defer closeSession(t, stays)
		members := []Member{
			{RoleFilterWorker, "a", "host:1"}, {RoleFilterWorker, "b", "host:2"}, {RoleQueue, "a", "host:3"},
		}
		for i, session := range []*Session{leaves, stays, dies} {
			if err := session.Register(within(t), members[i]); err != nil {
				t.Fatal(err)
			}
		}
		is := func(want ...Member) func([]Member) bool {
			return func(got []Member) bool { return cmp.Equal(want, got) }
		}
		until(t, watch, is(members...))
		closeSession(t, leaves)
		until(t, watch, is(members[1:]...))
		vanish(dies)
		until(t, watch, is(members[1]))
		if err := dies.Register(within(t), members[2]); !errors.Is(err, ErrSessionLost) {
			t.Errorf("Register in a session that is over: %v", err)
		}
	})
}

func TestRegisteringAgainReplacesTheAddressAndTheLease(t *testing.T) {
	onEveryEtcd(t, func(t *testing.T, s server) {
		c := connect(t, s)
		before, after := newSession(t, c, lasting), newSession(t, c, lasting)
		defer closeSession(t, after)
		if err := before.Register(within(t), Member{RoleBinder, "a", "host:1"}); err != nil {
			t.Fatal(err)
		}
		if err := after.Register(within(t), Member{RoleBinder, "a", "host:2"}); err != nil {
			t.Fatal(err)
		}
		closeSession(t, before)
		want := []Member{{RoleBinder, "a", "host:2"}}
		if diff := cmp.Diff(want, next(t, c.WatchMembers(t.Context()))); diff != "" {
			t.Errorf("members (-want +got):\n%s", diff)
		}
	})
}

func TestMalformedMembersAreRefused(t *testing.T) {
	s := startEmbeddedServer(t)
	session := newSession(t, connect(t, s), lasting)
	defer closeSession(t, session)
	for _, m := range []Member{{"", "a", "x"}, {RoleQueue, "", "x"}, {RoleQueue, "a/b", "x"}, {"a/b", "c", "x"}, {RoleQueue, "a", ""}} {
		if err := session.Register(within(t), m); err == nil {
			t.Errorf("%+v is accepted", m)
		}
	}
}

func TestSessionLivesLongerThanItsTTLWhileEtcdAnswers(t *testing.T) {
	onEveryEtcd(t, func(t *testing.T, s server) {
		c := connect(t, s)
		var session *Session
		undisturbed(t, time.Second, func(lease time.Duration) error {
			session = newSession(t, c, lease)
			select {
			case <-session.Done():
				return errors.New("session is over")
			case <-time.After(5 * lease / 2): // the lease, rounded up by etcd, is one second longer at most
				return nil
			}
		})
		closeSession(t, session)
		select {
		case <-session.Done():
		default:
			t.Error("Done is open after Close")
		}
		closeSession(t, session) // again
	})
}

func TestSessionIsOverBeforeItsLeaseCanExpireWhileEtcdIsPaused(t *testing.T) {
	etcd := etcdtest.Start(t)
	c := connect(t, etcd)
	undisturbed(t, 2*time.Second, func(lease time.Duration) error {
		session := newSession(t, c, lease)
		if err := session.Register(within(t), Member{RoleQueue, "a", "x"}); err != nil {
			return err
		}
		etcd.Pause()
		defer etcd.Continue()
		paused := time.Now()
		select {
		case <-session.Done():
		case <-time.After(patient):
			t.Fatal("session outlives etcd")
		}
		// The last keepalive was sent before the pause.
		if took := time.Since(paused); took > lease {
			return fmt.Errorf("Done closed %v after the pause, the ttl is %v", took, lease)
		}
		return nil
	})
}

// undisturbed runs a test whose fact is about a TTL, on etcd's clock, which no test can set. If it fails, it is tried again with four times
// the TTL: on a machine with forty who want to run, a keepalive waits for a processor at each of its steps, and for the disk, for longer
// than a second in all, though never for long. What the session does wrong, it does with any TTL.
func undisturbed(t *testing.T, ttl time.Duration, test func(ttl time.Duration) error) {
	t.Helper()
	for try := 1; ; try++ {
		err := test(ttl)
		switch {
		case err == nil:
			return
		case try == 4:
			t.Fatalf("with a ttl of %v: %v", ttl, err)
		}
		t.Logf("again: with a ttl of %v: %v", ttl, err)
		ttl *= 4
	}
}

func TestSessionSurvivesAShortPauseAndARestart(t *testing.T) {
	etcd := etcdtest.Start(t)
	c := connect(t, etcd)
	session := newSession(t, c, time.Minute)
	etcd.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	if err := c.Ready(ctx); err == nil {
		t.Error("etcd is ready while paused")
	}
	cancel()
	etcd.Continue()
	etcd.Restart()
	if err := session.Register(within(t), Member{RoleQueue, "a", "x"}); err != nil {
		t.Errorf("register after the restart: %v", err)
	}
	if session.over() {
		t.Error("session is over")
	}
	closeSession(t, session)
}

func TestSessionIsOverWhenEtcdHasEndedItsLease(t *testing.T) {
	onEveryEtcd(t, func(t *testing.T, s server) {
		c := connect(t, s)
		session := newSession(t, c, 30*time.Second)
		began := time.Now()
		if _, err := c.etcd.Revoke(within(t), session.lease); err != nil {
			t.Fatal(err)
		}
		select {
		case <-session.Done():
		case <-time.After(patient):
			t.Fatal("session outlives its lease")
		}
		if took := time.Since(began); took > 26*time.Second { // by its own clock it would be over after 27
			t.Errorf("noticed after %v; a keepalive is due every 10 s", took)
		}
	})
}

func TestNewSessionWaitsForEtcd(t *testing.T) {
	etcd := etcdtest.Start(t)
	etcd.Kill()
	c := connect(t, etcd)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := c.NewSession(ctx, time.Second); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("NewSession without etcd: %v", err)
	}
	type result struct {
		session *Session
		err     error
	}
	started := make(chan result, 1)
	go func() {
		session, err := c.NewSession(within(t), time.Second)
		started <- result{session, err}
	}()
	etcd.Restart()
	r := next(t, started)
	if r.err != nil {
		t.Fatal(r.err)
	}
	closeSession(t, r.session)
	if _, err := c.NewSession(t.Context(), time.Millisecond); err == nil {
		t.Error("a ttl of a millisecond is accepted")
	}
}
