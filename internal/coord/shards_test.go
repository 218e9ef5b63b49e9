package coord

import (
	"errors"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestShardHasOneOwnerAtATime(t *testing.T) {
	onEveryEtcd(t, func(t *testing.T, s server) {
		c := connect(t, s)
		watch := connect(t, s).WatchShards(t.Context())
		if got := next(t, watch); len(got) != 0 {
			t.Fatalf("owners at the start: %v", got)
		}
		a, b := newSession(t, c, mortal), newSession(t, c, lasting)
		defer closeSession(t, b)
		first, err := a.ClaimShard(within(t), 3, "a")
		if err != nil {
			t.Fatal(err)
		}
		if again, err := a.ClaimShard(within(t), 3, "a"); err != nil || again != first {
			t.Errorf("claim again = %d, %v; want %d", again, err, first)
		}
		if _, err := b.ClaimShard(within(t), 3, "b"); !errors.Is(err, ErrTaken) {
			t.Errorf("claim of a taken shard: %v", err)
		}
		if err := b.ReleaseShard(within(t), 3); err != nil {
			t.Error(err)
		}
		twelve, err := b.ClaimShard(within(t), 12, "b")
		if err != nil {
			t.Fatal(err)
		}
		is := func(want ...ShardOwner) func([]ShardOwner) bool {
			return func(got []ShardOwner) bool { return cmp.Equal(want, got) }
		}
		until(t, watch, is(ShardOwner{3, "a", first}, ShardOwner{12, "b", twelve}))

		vanish(a)
		until(t, watch, is(ShardOwner{12, "b", twelve}))
		second, err := b.ClaimShard(within(t), 3, "b")
		if err != nil {
			t.Fatal(err)
		}
		if second <= first {
			t.Errorf("lease revision fell from %d to %d", first, second)
		}
		if err := b.ReleaseShard(within(t), 12); err != nil {
			t.Fatal(err)
		}
		until(t, watch, is(ShardOwner{3, "b", second}))
		if _, err := a.ClaimShard(within(t), 5, "a"); !errors.Is(err, ErrSessionLost) {
			t.Errorf("claim in a session that is over: %v", err)
		}
	})
}

func TestOneOfManyClaimsWins(t *testing.T) {
	onEveryEtcd(t, func(t *testing.T, s server) {
		c := connect(t, s)
		ctx := within(t)
		var mu sync.Mutex
		winners := 0
		var all sync.WaitGroup
		for range 8 {
			session := newSession(t, c, lasting)
			defer closeSession(t, session)
			all.Go(func() {
				_, err := session.ClaimShard(ctx, 0, "x")
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					winners++
				case !errors.Is(err, ErrTaken):
					t.Errorf("claim: %v", err)
				}
			})
		}
		all.Wait()
		if winners != 1 {
			t.Errorf("%d sessions own the shard", winners)
		}
	})
}
