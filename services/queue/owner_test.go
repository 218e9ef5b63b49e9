package queue

import "testing"

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
