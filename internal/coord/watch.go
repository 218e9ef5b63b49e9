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
	try := retryPace{log: c.log, what: "watch " + prefix}
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
