package coord

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// ShardOwner says which queue member owns a shard. Revision is the create revision of its claim, the shard's lease
// revision: it grows with every change of owner.
type ShardOwner struct {
	Shard    int
	Owner    string
	Revision int64
}

const shardsPrefix = "shards/"

func (c *Client) shardKey(shard int) string { return c.coordPrefix() + shardName(shard) }

// shardName is the key of a shard's claim, behind the prefix.
func shardName(shard int) string { return fmt.Sprintf("%s%06d", shardsPrefix, shard) }

// decodeShard returns the owner that ClaimShard has written.
func decodeShard(kv KV) (ShardOwner, error) {
	shard, err := strconv.Atoi(strings.TrimPrefix(kv.Key, shardsPrefix))
	switch {
	case err != nil:
		return ShardOwner{}, err
	case shard < 0 || shardName(shard) != kv.Key:
		return ShardOwner{}, fmt.Errorf("key of shard %d: want %s", shard, shardName(max(shard, 0)))
	case len(kv.Value) == 0:
		return ShardOwner{}, errors.New("no owner")
	}
	return ShardOwner{Shard: shard, Owner: string(kv.Value), Revision: kv.CreateRevision}, nil
}

// ClaimShard takes a shard for a member until the session ends, and returns the revision of the claim.
// It fails with ErrTaken if another session holds the shard. It is idempotent within the session.
func (s *Session) ClaimShard(ctx context.Context, shard int, owner string) (int64, error) {
	if shard < 0 || owner == "" {
		return 0, fmt.Errorf("claim shard %d for %q: want a shard of at least 0 and an owner", shard, owner)
	}
	if s.over() {
		return 0, fmt.Errorf("claim shard %d: %w", shard, ErrSessionLost)
	}
	key := s.client.shardKey(shard)
	r, err := s.client.commit(ctx,
		[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0)},
		[]clientv3.Op{clientv3.OpPut(key, owner, clientv3.WithLease(s.lease))},
		[]clientv3.Op{clientv3.OpGet(key)})
	if err != nil {
		return 0, fmt.Errorf("claim shard %d: %w", shard, s.refused(err))
	}
	if r.Succeeded {
		return r.Header.Revision, nil
	}
	kv := r.Responses[0].GetResponseRange().Kvs[0] // it exists, or the transaction would have succeeded
	if clientv3.LeaseID(kv.Lease) == s.lease && string(kv.Value) == owner {
		return kv.CreateRevision, nil
	}
	return 0, fmt.Errorf("claim shard %d: owned by %q: %w", shard, kv.Value, ErrTaken)
}

// ReleaseShard gives up a shard that this session has claimed. It does nothing if the session does not hold it.
func (s *Session) ReleaseShard(ctx context.Context, shard int) error {
	key := s.client.shardKey(shard)
	_, err := s.client.commit(ctx,
		[]clientv3.Cmp{clientv3.Compare(clientv3.LeaseValue(key), "=", s.lease)},
		[]clientv3.Op{clientv3.OpDelete(key)}, nil)
	if err != nil {
		return fmt.Errorf("release shard %d: %w", shard, err)
	}
	return nil
}

// WatchShards sends the shards that have an owner, sorted by number: the full list at once and after each change.
// A reader that is slow misses lists but always gets the newest one next. While etcd is away the last list stands.
// The channel is closed when ctx or the client ends.
func (c *Client) WatchShards(ctx context.Context) <-chan []ShardOwner {
	return follow(ctx, c, c.coordPrefix(), shardsPrefix, bounds{}, func(keys map[string]KV) []ShardOwner {
		owners := make([]ShardOwner, 0, len(keys))
		for key, kv := range keys {
			o, err := decodeShard(kv)
			if err != nil {
				c.log.Warn("shard ignored: its key or value is malformed", "key", key, "err", err)
				continue
			}
			owners = append(owners, o)
		}
		slices.SortFunc(owners, func(a, b ShardOwner) int { return cmp.Compare(a.Shard, b.Shard) })
		return owners
	})
}
