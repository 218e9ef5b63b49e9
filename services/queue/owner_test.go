package queue

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/replica"
)

// claims is a session that keeps claims as etcd does: to claim what is claimed already changes nothing.
type claims struct {
	Session
	revision int64
	held     map[int]int64
	stuck    bool // nothing can be released
}

func (c *claims) ClaimShard(_ context.Context, shard int, _ string) (int64, error) {
	if c.held[shard] == 0 {
		c.revision++
		c.held[shard] = c.revision
	}
	return c.held[shard], nil
}

func (c *claims) ReleaseShard(_ context.Context, shard int) error {
	if c.stuck {
		return errors.New("etcd does not answer")
	}
	delete(c.held, shard)
	return nil
}

// noReplica has no state yet.
type noReplica struct{}

func (noReplica) Read(context.Context, cluster.Version, func(*cluster.State) error) error {
	return errors.New("not loaded")
}
func (noReplica) Subscribe(replica.Subscriber) (cancel func()) { return func() {} }
func (noReplica) Ready() error                                 { return nil }

// The binder knows an attempt by claim, pod and number, and a queue that is built anew may count attempts from the first again.
func TestShardThatIsDrainedAndWantedAgainIsOwnedUnderAnotherClaim(t *testing.T) {
	s := &Service{log: slog.New(slog.DiscardHandler), directory: newDirectory(), floors: newFloors(), shards: make(map[int32]*shard), count: 1}
	s.cfg.ID, s.cfg.Replica = "a", noReplica{}
	session := &claims{held: make(map[int]int64)}
	ctx, cancel := context.WithCancel(t.Context())
	o := &ownership{
		s: s, session: session, running: make(map[int32]*shard), release: make(map[int32]bool), ended: make(chan struct{}, 1),
	}
	defer o.drivers.Wait()
	defer cancel()
	alone := view{queues: []string{"a"}}
	o.settle(ctx, alone)
	first := o.running[0]
	if first == nil {
		t.Fatal("the shard is not claimed")
	}
	// It is drained for another member, which is gone again before the driver has ended.
	first.drain(0)
	<-first.done
	session.stuck = true
	if again := o.settle(ctx, alone); o.running[0] != nil || again == 0 {
		t.Errorf("while the claim cannot be given up, there is a driver: %v; the next step is due in %v", o.running[0] != nil, again)
	}
	session.stuck = false
	o.settle(ctx, alone)
	if second := o.running[0]; second == nil || second.revision == first.revision {
		t.Errorf("then it has %+v, want one of another claim than %d", second, first.revision)
	}
}

// Members of several releases have to agree.
func TestOwnersStayWhoTheyAre(t *testing.T) {
	members := []string{"queue-0", "queue-1", "b4fba5a2-a-rather-long-identity-of-a-member-of-berth"}
	for shard, want := range []int{0, 2, 2, 2, 1, 0, 1, 0, 0, 2, 0, 0} {
		if got := owner(int32(shard), members); got != members[want] {
			t.Errorf("shard %d is owned by %s, want %s", shard, got, members[want])
		}
	}
}

func TestRendezvousMovesOnlyTheShardsOfTheMemberThatLeft(t *testing.T) {
	members := []string{"a", "b", "c"}
	owned := map[string]int{}
	for shard := range int32(300) {
		before := owner(shard, members)
		owned[before]++
		if after := owner(shard, []string{"a", "c"}); before != "b" && after != before {
			t.Errorf("shard %d moved from %s to %s when b left", shard, before, after)
		}
	}
	for _, id := range members {
		if owned[id] < 60 {
			t.Errorf("%s owns %d of 300 shards: %v", id, owned[id], owned)
		}
	}
	if got := owner(1, nil); got != "" {
		t.Errorf("owner without members = %q", got)
	}
}
