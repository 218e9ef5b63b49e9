package coord

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Event is one change of a key.
type Event struct {
	KV      KV
	Deleted bool
}

// WatchUpdate is a run of events in the order in which etcd applied them, up to and including Revision;
// the events of one revision are never split. An update with Err has no events and is the last.
type WatchUpdate struct {
	Events   []Event
	Revision int64
	Err      error // wraps ErrCompacted: list again, and watch from the revision after the list's
}

// Watch sends the changes of all keys that start with prefix, from fromRevision (inclusive) on; 0 means from now on.
// It resumes by itself, without a gap, when etcd goes away and comes back. The channel is closed when ctx or the
// client ends, and after an update with Err. It must be read until then: what is not read is kept in memory.
func (c *Client) Watch(ctx context.Context, prefix string, fromRevision int64) <-chan WatchUpdate {
	out := make(chan WatchUpdate)
	started := c.start(ctx, func(ctx context.Context) {
		defer close(out)
		err := c.watch(ctx, c.kvPrefix(), prefix, fromRevision, func(u WatchUpdate) bool { return send(ctx, out, u) })
		if err != nil {
			send(ctx, out, WatchUpdate{Err: fmt.Errorf("watch %q from revision %d: %w", prefix, fromRevision, err)})
		}
	})
	if !started {
		close(out)
	}
	return out
}

func send[T any](ctx context.Context, out chan<- T, v T) bool {
	select {
	case out <- v:
		return true
	case <-ctx.Done():
		return false
	}
}

// watch calls deliver for every update until ctx ends or deliver returns false, and then returns nil.
// Its only error is ErrCompacted.
func (c *Client) watch(ctx context.Context, base, prefix string, from int64, deliver func(WatchUpdate) bool) error {
	try := patience{log: c.log, what: "watch " + prefix}
	for {
		next, err := c.watchOnce(ctx, base, prefix, from, deliver)
		if ctx.Err() != nil || errors.Is(err, errEnough) {
			return nil
		}
		if errors.Is(err, ErrCompacted) {
			return err
		}
		if next > from {
			try.succeeded()
		}
		from = next
		if !try.wait(ctx, err) {
			return nil
		}
	}
}

// errEnough ends a watch whose updates are no longer wanted.
var errEnough = errors.New("no more updates wanted")

// watchOnce follows one etcd watch until it breaks. It returns from where the next one has to start, and why it broke.
// clientv3 resumes a watch over lost connections itself; it breaks when, for example, etcd has had no leader for a while.
func (c *Client) watchOnce(ctx context.Context, base, prefix string, from int64, deliver func(WatchUpdate) bool) (next int64, err error) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	watch := c.etcd.Watch(ctx, base+prefix, clientv3.WithPrefix(), clientv3.WithRev(from),
		clientv3.WithCreatedNotify(), clientv3.WithProgressNotify())
	next = from
	for r := range watch {
		if r.CompactRevision != 0 {
			return next, fmt.Errorf("%w: revisions before %d are gone", ErrCompacted, r.CompactRevision)
		}
		if err := r.Err(); err != nil {
			return next, err
		}
		if r.Created && next == 0 || r.IsProgressNotify() {
			next = r.Header.Revision + 1
		}
		if len(r.Events) == 0 {
			continue
		}
		u := WatchUpdate{Revision: r.Events[len(r.Events)-1].Kv.ModRevision, Events: make([]Event, 0, len(r.Events))}
		for _, e := range r.Events {
			u.Events = append(u.Events, Event{KV: relative(e.Kv, base), Deleted: e.Type == clientv3.EventTypeDelete})
		}
		if !deliver(u) {
			return next, errEnough
		}
		next = u.Revision + 1
	}
	return next, errors.New("etcd's client has ended the watch")
}

// follow keeps a copy of the keys that start with base+prefix and sends what build makes of it: at once, and after
// each change. A reader that is slow misses states but always gets the newest one next.
// The channel is closed when ctx or the client ends.
func follow[T any](ctx context.Context, c *Client, base, prefix string, build func(keys map[string]KV) T) <-chan T {
	out := make(chan T)
	states := make(chan T)
	started := c.start(ctx, func(ctx context.Context) {
		c.followKeys(ctx, base, prefix, func(keys map[string]KV) bool { return send(ctx, states, build(keys)) })
	})
	started = started && c.start(ctx, func(ctx context.Context) {
		defer close(out)
		var newest T
		var ready chan<- T // out while newest is not yet sent
		for {
			select {
			case <-ctx.Done():
				return
			case newest = <-states:
				ready = out
			case ready <- newest:
				ready = nil
			}
		}
	})
	if !started {
		close(out)
	}
	return out
}

// followKeys calls deliver with the keys that start with base+prefix, at once and after each change, until ctx ends or
// deliver returns false.
func (c *Client) followKeys(ctx context.Context, base, prefix string, deliver func(keys map[string]KV) bool) {
	try := patience{log: c.log, what: "list " + prefix}
	for {
		kvs, revision, err := c.list(ctx, base, prefix)
		if err != nil {
			if !try.wait(ctx, err) {
				return
			}
			continue
		}
		try.succeeded()
		keys := make(map[string]KV, len(kvs))
		for _, kv := range kvs {
			keys[kv.Key] = kv
		}
		if !deliver(keys) {
			return
		}
		err = c.watch(ctx, base, prefix, revision+1, func(u WatchUpdate) bool {
			for _, e := range u.Events {
				if e.Deleted {
					delete(keys, e.KV.Key)
				} else {
					keys[e.KV.Key] = e.KV
				}
			}
			return deliver(keys)
		})
		if err == nil {
			return
		}
		c.log.Info("keys are listed again", "prefix", prefix, "why", err)
	}
}
