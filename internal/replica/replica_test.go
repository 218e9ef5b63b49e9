package replica_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
	"github.com/berth-scheduler/berth/internal/replica"
	"github.com/berth-scheduler/berth/internal/rpc"
)

func TestReplicasEqualTheLedger(t *testing.T) {
	networks(t, func(t *testing.T, network rpc.Network, address string) {
		l := newLedger(t, replica.FeedConfig{})
		l.open(3)
		l.grow(t, 500)
		at, _ := serve(t, network, address, l)
		leader := coord.Leader{Epoch: 3, ID: "binder-1", Address: at}
		one := follow(t, network, newLeaders(leader), nil)
		one.reaches(t, l)
		l.grow(t, 300)
		other := follow(t, network, newLeaders(leader), nil)
		l.grow(t, 2000)
		one.reaches(t, l)
		other.reaches(t, l)
		if one.Digest() != other.Digest() || one.Digest() == 0 {
			t.Errorf("digests of two replicas: %x and %x", one.Digest(), other.Digest())
		}
		for _, f := range []*follower{one, other} {
			if err := f.Ready(); err != nil {
				t.Errorf("Ready: %v", err)
			}
			if n := f.count(t, "berth_replica_snapshots_total", ""); n != 1 {
				t.Errorf("%v snapshots, want 1", n)
			}
			until(t, func() bool { return f.Head() == l.version() }, func() string { return fmt.Sprintf("head is %v", f.Head()) })
		}
	})
}

func TestReplicaResumesBehindItsLastDeltaAfterABreak(t *testing.T) {
	networks(t, func(t *testing.T, network rpc.Network, address string) {
		l := newLedger(t, replica.FeedConfig{})
		l.open(3)
		l.grow(t, 50)
		at, stop := serve(t, network, address, l)
		f := follow(t, network, newLeaders(coord.Leader{Epoch: 3, ID: "binder-1", Address: at}), nil)
		f.reaches(t, l)
		j := &journal{t: t}
		defer f.Subscribe(j)()

		for range 5 {
			l.grow(t, 20)
			f.reaches(t, l)
			stop()
			l.grow(t, 30) // nobody can hear it now
			_, stop = serve(t, network, at, l)
			f.reaches(t, l)
		}

		if n := f.count(t, "berth_replica_snapshots_total", ""); n != 1 {
			t.Errorf("%v snapshots, want the first only", n)
		}
		if j.resets != 1 || j.deltas != 250 || j.last != l.version() {
			t.Errorf("subscriber saw %d resets and %d deltas up to %v, want 1 and 250 up to %v", j.resets, j.deltas, j.last, l.version())
		}
	})
}

func TestReplicaLoadsASnapshotWhenItsPositionIsNoLongerKept(t *testing.T) {
	network := rpc.Memory()
	l := newLedger(t, replica.FeedConfig{Ring: 100})
	l.open(3)
	at, stop := serve(t, network, "", l)
	f := follow(t, network, newLeaders(coord.Leader{Epoch: 3, ID: "binder-1", Address: at}), nil)
	l.grow(t, 10)
	f.reaches(t, l)
	j := &journal{t: t}
	defer f.Subscribe(j)()
	stop()
	l.grow(t, 101)
	serve(t, network, at, l)
	f.reaches(t, l)
	if n := f.count(t, "berth_replica_snapshots_total", ""); n != 2 {
		t.Errorf("%v snapshots, want 2", n)
	}
	if j.resets != 2 || j.deltas != 0 {
		t.Errorf("subscriber saw %d resets and %d deltas, want 2 and 0", j.resets, j.deltas)
	}
}

func TestReplicaKeepsItsStateUntilTheNextEpochIsWhole(t *testing.T) {
	network := rpc.Memory()
	old, next := newLedger(t, replica.FeedConfig{}), newLedger(t, replica.FeedConfig{})
	old.open(3)
	old.grow(t, 100)
	oldAt, _ := serve(t, network, "", old)
	nextAt, _ := serve(t, network, "", next)
	l := newLeaders(coord.Leader{Epoch: 3, ID: "binder-1", Address: oldAt})
	f := follow(t, network, l, nil)
	f.reaches(t, old)
	before := f.Version()

	// The next binder leads, and is not ready yet; then its snapshot comes, but for the last part.
	next.intercept(func(m *logv1.FollowResponse) *logv1.FollowResponse {
		if m.GetKind() == logv1.FollowResponse_KIND_SNAPSHOT_LAST {
			return nil
		}
		return m
	})
	l.ch <- coord.Leader{Epoch: 9, ID: "binder-2", Address: nextAt}
	old.feed.Close()
	next.open(9)
	next.grow(t, 70)
	until(t, func() bool { return value(t, next.metrics, "berth_log_snapshots_sent_total", "") > 0 }, func() string { return "no snapshot" })
	heard := f.Heard()
	if err := f.Read(t.Context(), before, func(st *cluster.State) error { return nil }); err != nil {
		t.Errorf("Read of the old state: %v", err)
	}
	if f.Version() != before || f.Heard() != heard {
		t.Errorf("version %v heard at %v while the next snapshot loads, want %v at %v", f.Version(), f.Heard(), before, heard)
	}

	next.intercept(nil)
	f.reaches(t, next)
	err := f.Read(t.Context(), before, func(st *cluster.State) error { return nil })
	var behind *replica.BehindError
	if !errors.As(err, &behind) || behind.Have != f.Version() || behind.Want != before {
		t.Errorf("Read of the old epoch: %v, want a BehindError", err)
	}
}

func TestReplicaFollowsTheNextTermOfTheSameBinder(t *testing.T) {
	network := rpc.Memory()
	l := newLedger(t, replica.FeedConfig{})
	at, _ := serve(t, network, "", l)
	f := follow(t, network, newLeaders(coord.Leader{Epoch: 3, ID: "binder-1", Address: at}), nil)
	until(t, func() bool { return f.Ready() != nil && strings.Contains(f.Ready().Error(), "not active") },
		func() string { return fmt.Sprint("Ready does not say that the binder is not active: ", f.Ready()) })
	l.open(3)
	l.grow(t, 20)
	f.reaches(t, l)
	l.open(4) // elected again, and the watch of the leader is late
	l.grow(t, 30)
	f.reaches(t, l)
}

func TestReplicaDoesNotFollowAnOlderEpoch(t *testing.T) {
	network := rpc.Memory()
	old, next := newLedger(t, replica.FeedConfig{}), newLedger(t, replica.FeedConfig{})
	old.open(3)
	next.open(9)
	next.grow(t, 20)
	oldAt, _ := serve(t, network, "", old)
	nextAt, _ := serve(t, network, "", next)
	l := newLeaders(coord.Leader{Epoch: 9, ID: "binder-2", Address: nextAt})
	f := follow(t, network, l, nil)
	f.reaches(t, next)
	l.ch <- coord.Leader{Epoch: 10, ID: "binder-1", Address: oldAt} // who does not know yet that its term is over
	until(t, func() bool { return value(t, old.metrics, "berth_log_snapshots_sent_total", "") >= 3 }, func() string { return "no attempts" })
	if f.Version() != next.version() {
		t.Errorf("version is %v, want %v still", f.Version(), next.version())
	}
}

func TestReplicaStartsFromNothingWhenItCannotTrustItsState(t *testing.T) {
	first := func(kind logv1.FollowResponse_Kind, spoil func(*logv1.FollowResponse) *logv1.FollowResponse) func(*logv1.FollowResponse) *logv1.FollowResponse {
		done := false
		return func(m *logv1.FollowResponse) *logv1.FollowResponse {
			if done || m.GetKind() != kind {
				return m
			}
			done = true
			return spoil(m)
		}
	}
	refused := []byte{0x52, 0x04, 0x08, 0xff, 0xff, 0x03} // pod_forgotten of an id that no pod has
	for _, c := range []struct {
		reason string
		change func(*logv1.FollowResponse) *logv1.FollowResponse
	}{
		{"digest", first(logv1.FollowResponse_KIND_HEARTBEAT, func(m *logv1.FollowResponse) *logv1.FollowResponse {
			return &logv1.FollowResponse{Kind: m.Kind, Version: m.Version, Digest: m.Digest + 1, Head: m.Head}
		})},
		{"decode", first(logv1.FollowResponse_KIND_DELTAS, func(m *logv1.FollowResponse) *logv1.FollowResponse {
			deltas := append([][]byte{{0xff}}, m.Deltas[1:]...)
			return &logv1.FollowResponse{Kind: m.Kind, Version: m.Version, Deltas: deltas, Head: m.Head}
		})},
		{"refused", first(logv1.FollowResponse_KIND_DELTAS, func(m *logv1.FollowResponse) *logv1.FollowResponse {
			deltas := append([][]byte{refused}, m.Deltas[1:]...)
			return &logv1.FollowResponse{Kind: m.Kind, Version: m.Version, Deltas: deltas, Head: m.Head}
		})},
		{"gap", first(logv1.FollowResponse_KIND_DELTAS, func(m *logv1.FollowResponse) *logv1.FollowResponse { return nil })},
	} {
		t.Run(c.reason, func(t *testing.T) {
			network := rpc.Memory()
			cfg := replica.FeedConfig{Heartbeat: time.Hour} // so that only what is spoiled tells
			if c.reason == "digest" {
				cfg.Heartbeat = 0
			}
			l := newLedger(t, cfg)
			l.open(3)
			l.grow(t, 100)
			at, _ := serve(t, network, "", l)
			f := follow(t, network, newLeaders(coord.Leader{Epoch: 3, ID: "binder-1", Address: at}), nil)
			f.reaches(t, l)
			j := &journal{t: t}
			defer f.Subscribe(j)()
			l.intercept(c.change)
			until(t, func() bool {
				l.grow(t, 1)
				return f.count(t, "berth_replica_resyncs_total", c.reason) == 1
			}, func() string { return "no resync" })
			l.grow(t, 10)
			f.reaches(t, l)
			if j.resets != 2 || j.last != l.version() {
				t.Errorf("subscriber saw %d resets up to %v, want 2 up to %v", j.resets, j.last, l.version())
			}
		})
	}
}

func TestSpoiledSnapshotsAreNotRead(t *testing.T) {
	network := rpc.Memory()
	l := newLedger(t, replica.FeedConfig{})
	l.open(3)
	l.grow(t, 100)
	spoiled := 0
	l.intercept(func(m *logv1.FollowResponse) *logv1.FollowResponse {
		first := m.GetKind() == logv1.FollowResponse_KIND_SNAPSHOT_FIRST && len(m.GetDeltas()) > 0 // an empty one says only that it takes long
		switch {
		case m.GetKind() == logv1.FollowResponse_KIND_SNAPSHOT_LAST && spoiled == 0:
			spoiled++
			return &logv1.FollowResponse{Kind: m.Kind, Version: m.Version, Digest: m.Digest + 1}
		case first && spoiled == 1:
			spoiled++
			return &logv1.FollowResponse{Kind: m.Kind, Version: m.Version, Deltas: m.Deltas[:len(m.Deltas)-1]}
		case first && spoiled == 2:
			spoiled++
			return nil
		}
		return m
	})
	at, _ := serve(t, network, "", l)
	var versions []cluster.Version
	f := follow(t, network, newLeaders(coord.Leader{Epoch: 3, ID: "binder-1", Address: at}), nil)
	until(t, func() bool {
		versions = append(versions, f.Version())
		return f.count(t, "berth_replica_resyncs_total", "snapshot") == 3
	}, func() string { return "no resync" })
	f.reaches(t, l)
	for _, v := range versions[:len(versions)-1] {
		if !v.IsZero() && v != l.version() {
			t.Errorf("version %v was read", v)
		}
	}
}

func TestReadWaitsForAVersionAndThenSaysHowFarBehindItIs(t *testing.T) {
	network := rpc.Memory()
	l := newLedger(t, replica.FeedConfig{})
	at, _ := serve(t, network, "", l)
	f := follow(t, network, newLeaders(coord.Leader{Epoch: 3, ID: "binder-1", Address: at}), func(c *replica.Config) { c.Wait = 100 * time.Millisecond })
	fail := func(*cluster.State) error { return errors.New("was called") }

	err := f.Read(t.Context(), cluster.Version{}, fail)
	if !errors.Is(err, replica.ErrNotLoaded) || status.Code(replica.Status(err)) != codes.Unavailable || rpc.ReasonOf(replica.Status(err)) != rpc.ReasonReplicaBehind {
		t.Errorf("Read before the first snapshot: %v, as status %v", err, replica.Status(err))
	}

	l.open(3)
	l.grow(t, 10)
	f.reaches(t, l)
	want := cluster.Version{Epoch: 3, Seq: 11}
	began := time.Now()
	err = f.Read(t.Context(), want, fail)
	var behind *replica.BehindError
	if !errors.As(err, &behind) || behind.Have != l.version() || behind.Want != want {
		t.Errorf("Read of %v: %v", want, err)
	}
	if waited := time.Since(began); waited < 100*time.Millisecond {
		t.Errorf("Read waited %v, want 100ms", waited)
	}
	if st := replica.Status(err); status.Code(st) != codes.Unavailable || rpc.ReasonOf(st) != rpc.ReasonReplicaBehind || !strings.Contains(st.Error(), "3/10") {
		t.Errorf("Status(%v) = %v", err, st)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Read(ctx, want, fail); !errors.Is(err, context.Canceled) {
		t.Errorf("Read with a context that has ended: %v", err)
	}

	patient := follow(t, network, newLeaders(coord.Leader{Epoch: 3, ID: "binder-1", Address: at}), func(c *replica.Config) { c.Wait = patience })
	patient.reaches(t, l)
	got := make(chan error, 1)
	go func() {
		got <- patient.Read(t.Context(), want, func(st *cluster.State) error {
			if st.Version().Less(want) {
				return fmt.Errorf("read %v", st.Version())
			}
			return nil
		})
	}()
	l.grow(t, 1)
	if err := <-got; err != nil {
		t.Errorf("Read of %v, which came: %v", want, err)
	}
	if err := patient.Read(t.Context(), cluster.Version{Epoch: 2, Seq: 1}, fail); !errors.As(err, &behind) {
		t.Errorf("Read of an epoch that is over: %v, want a BehindError at once", err)
	}
	mine := errors.New("mine")
	if err := patient.Read(t.Context(), want, func(*cluster.State) error { return mine }); err != mine || replica.Status(err) != mine {
		t.Errorf("Read returns %v, want what fn returned", err)
	}
}

func TestSilentStreamIsOpenedAnew(t *testing.T) {
	network := rpc.Memory()
	l := newLedger(t, replica.FeedConfig{})
	l.open(3)
	l.grow(t, 10)
	at, _ := serve(t, network, "", l)
	f := follow(t, network, newLeaders(coord.Leader{Epoch: 3, ID: "binder-1", Address: at}), func(c *replica.Config) { c.HeartbeatTimeout = 200 * time.Millisecond })
	f.reaches(t, l)
	l.intercept(func(m *logv1.FollowResponse) *logv1.FollowResponse { return nil })
	until(t, func() bool { return f.Ready() != nil && strings.Contains(f.Ready().Error(), "silent") },
		func() string { return fmt.Sprint("Ready does not say that the binder is silent: ", f.Ready()) })
	l.intercept(nil)
	until(t, func() bool { return f.Ready() == nil }, func() string { return fmt.Sprint("Ready: ", f.Ready()) })
	l.grow(t, 10)
	f.reaches(t, l)
}

func TestSubscriberIsToldOfTheStateAtOnceAndNothingOnceCancelled(t *testing.T) {
	network := rpc.Memory()
	l := newLedger(t, replica.FeedConfig{})
	at, _ := serve(t, network, "", l)
	f := follow(t, network, newLeaders(coord.Leader{Epoch: 3, ID: "binder-1", Address: at}), nil)
	early := &journal{t: t}
	cancel := f.Subscribe(early)
	if early.resets != 0 {
		t.Errorf("subscriber saw %d resets of an empty replica", early.resets)
	}
	l.open(3)
	l.grow(t, 10)
	f.reaches(t, l)
	late := &journal{t: t}
	defer f.Subscribe(late)()
	if late.resets != 1 || late.last != l.version() {
		t.Errorf("late subscriber saw %d resets, at %v", late.resets, late.last)
	}
	cancel()
	l.grow(t, 10)
	f.reaches(t, l)
	if early.last.Seq != 10 || late.last.Seq != 20 || late.deltas != 10 {
		t.Errorf("subscribers are at %v and %v, want 3/10 for the cancelled one and 3/20", early.last, late.last)
	}
}

func TestRunFailsWhenTheLeaderCanNoLongerBeWatched(t *testing.T) {
	l := newLeaders()
	clients := rpc.NewClients(rpc.Config{Net: rpc.Memory()})
	defer clients.Close()
	r, err := replica.New(replica.Config{Leaders: l, Conns: clients})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Ready(); !errors.Is(err, replica.ErrNotLoaded) {
		t.Errorf("Ready of a replica that does not run: %v", err)
	}
	close(l.ch)
	if err := r.Run(t.Context()); err == nil {
		t.Error("Run returned nil although the watch of the leader has ended")
	}
}

func TestNewSaysWhatIsMissing(t *testing.T) {
	clients := rpc.NewClients(rpc.Config{Net: rpc.Memory()})
	defer clients.Close()
	for want, cfg := range map[string]replica.Config{
		"Leaders":          {Conns: clients},
		"Conns":            {Leaders: newLeaders()},
		"HeartbeatTimeout": {Leaders: newLeaders(), Conns: clients, HeartbeatTimeout: -1},
	} {
		if _, err := replica.New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New: %v, want an error about %s", err, want)
		}
	}
}
