package coord

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	mvccpb "go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Leader is the elected binder. A zero Epoch means that there is none.
type Leader struct {
	Epoch       int64
	ID, Address string
}

type leaderValue struct {
	ID       string `json:"id"`
	Address  string `json:"address"`
	Campaign int64  `json:"campaign"` // tells the campaigns of one session apart
}

const leaderName = "leader"

func (c *Client) leaderKey() string { return c.coordPrefix() + leaderName }

// Term is a time of being the leader, from its election until its session ends or it resigns.
// Its methods are safe for concurrent use, except where they say otherwise.
type Term struct {
	client  *Client
	session *Session
	epoch   int64
}

// Campaign waits until it has made the caller the leader and returns its term. It returns early when ctx ends, and
// with ErrSessionLost when the session does. A session has one campaign or term at a time.
//
// All candidates compete for one key, which its lease removes. Its create revision is the epoch, so that epochs grow.
func (c *Client) Campaign(ctx context.Context, s *Session, id, address string) (*Term, error) {
	if id == "" {
		return nil, errors.New("campaign: id: empty")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan struct{})
	defer close(ended)
	watching := c.start(ctx, func(context.Context) {
		select {
		case <-s.Done():
			cancel(ErrSessionLost)
		case <-ended:
		}
	})
	if !watching {
		return nil, fmt.Errorf("campaign as %s: client is closed", id)
	}
	mine, err := json.Marshal(leaderValue{ID: id, Address: address, Campaign: s.campaigns.Add(1)})
	if err != nil {
		return nil, fmt.Errorf("encode candidate %s: %w", id, err)
	}

	try := retryPace{log: c.log, what: "campaign"}
	for {
		epoch, busy, err := c.tryElect(ctx, s, string(mine))
		switch {
		case err == nil && epoch != 0:
			return &Term{client: c, session: s, epoch: epoch}, nil
		case err == nil:
			try.succeeded()
			c.awaitVacancy(ctx, busy)
		case errors.Is(err, ErrSessionLost):
			return nil, fmt.Errorf("campaign as %s: %w", id, err)
		default:
			try.wait(ctx, err)
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("campaign as %s: %w", id, context.Cause(ctx))
		}
	}
}

// tryElect takes the election key if it is free and returns its create revision.
// If another candidate holds it, tryElect returns 0 and the revision at which that was so.
func (c *Client) tryElect(ctx context.Context, s *Session, mine string) (epoch, busy int64, err error) {
	key := c.leaderKey()
	r, err := c.commit(ctx,
		[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0)},
		[]clientv3.Op{clientv3.OpPut(key, mine, clientv3.WithLease(s.lease))},
		[]clientv3.Op{clientv3.OpGet(key)})
	if errors.Is(err, ErrNoSpace) { // and yet the key may have been written
		if read, e := c.commit(ctx, nil, []clientv3.Op{clientv3.OpGet(key)}, nil); e == nil && read.Responses[0].GetResponseRange().Count > 0 {
			r, err = read, nil
			r.Succeeded = false
		}
	}
	if err != nil {
		return 0, 0, s.refused(err)
	}
	if r.Succeeded {
		return r.Header.Revision, 0, nil
	}
	kv := r.Responses[0].GetResponseRange().Kvs[0] // it exists, or the transaction would have succeeded
	if clientv3.LeaseID(kv.Lease) != s.lease {
		return 0, r.Header.Revision, nil
	}
	if string(kv.Value) == mine {
		return kv.CreateRevision, 0, nil // elected by an earlier attempt whose answer was lost
	}
	// An earlier term of this session whose resignation was lost: its epoch must not be used again.
	_, err = c.commit(ctx,
		[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", kv.CreateRevision)},
		[]clientv3.Op{clientv3.OpDelete(key)}, nil)
	return 0, r.Header.Revision, err
}

// awaitVacancy returns when the election key has been deleted after revision, or when that is worth another look.
func (c *Client) awaitVacancy(ctx context.Context, revision int64) {
	err := c.watch(ctx, c.coordPrefix(), leaderName, revision+1, func(u WatchUpdate) bool {
		return !u.Events[len(u.Events)-1].Deleted
	})
	if err != nil {
		c.log.Info("election is looked at again", "why", err)
	}
}

// Epoch returns the epoch of the term: the create revision of its election key.
func (t *Term) Epoch() int64 { return t.epoch }

// Done is closed when the session of the term is over. The term may be over earlier, see Guard.
func (t *Term) Done() <-chan struct{} { return t.session.Done() }

// Guard is the condition that the term still holds. Txn fails with ErrFenced when it does not.
func (t *Term) Guard() Cond { return Cond{term: t} }

// Resign ends the term, so that another candidate can follow at once. It is idempotent.
func (t *Term) Resign(ctx context.Context) error {
	_, err := t.client.commit(ctx, []clientv3.Cmp{t.holds()}, []clientv3.Op{clientv3.OpDelete(t.client.leaderKey())}, nil)
	if err != nil {
		return fmt.Errorf("resign epoch %d: %w", t.epoch, err)
	}
	return nil
}

func (t *Term) holds() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(t.client.leaderKey()), "=", t.epoch)
}

// isHeldBy reports whether the election key, as read, is that of the term.
func (t *Term) isHeldBy(kvs []*mvccpb.KeyValue) bool {
	return len(kvs) == 1 && kvs[0].CreateRevision == t.epoch
}

// WatchLeader sends who leads: at once and after each change.
// A reader that is slow misses changes but always gets the newest one next. While etcd is away the last one stands.
// The channel is closed when ctx or the client ends.
func (c *Client) WatchLeader(ctx context.Context) <-chan Leader {
	return follow(ctx, c, c.coordPrefix(), leaderName, bounds{}, func(keys map[string]KV) Leader {
		kv, exists := keys[leaderName]
		if !exists {
			return Leader{}
		}
		l, err := decodeLeader(kv)
		if err != nil {
			c.log.Warn("leader ignored: its value is malformed", "err", err)
			return Leader{}
		}
		return l
	})
}

// decodeLeader returns the leader that Campaign has written.
func decodeLeader(kv KV) (Leader, error) {
	var value leaderValue
	if err := json.Unmarshal(kv.Value, &value); err != nil {
		return Leader{}, err
	}
	if value.ID == "" {
		return Leader{}, errors.New("id: empty")
	}
	return Leader{Epoch: kv.CreateRevision, ID: value.ID, Address: value.Address}, nil
}
