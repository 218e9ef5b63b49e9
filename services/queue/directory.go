package queue

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-scheduler/berth/internal/coord"
)

// directory knows who is alive. It is safe for concurrent use.
type directory struct {
	mu      sync.Mutex
	now     view
	changed chan struct{} // closed when now is replaced
}

// view is who is alive at one moment. It is not changed once it is handed out.
type view struct {
	queues  []string          // ids
	queueAt map[string]string // addresses, by id
	filters []string          // addresses, by member id
	scores  []string
	leader  coord.Leader
}

func newDirectory() *directory {
	return &directory{changed: make(chan struct{})}
}

// follow keeps the directory until ctx ends.
func (d *directory) follow(ctx context.Context, c Coord) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		for members := range c.WatchMembers(ctx) {
			d.update(func(v *view) { v.setMembers(members) })
		}
		return nil
	})
	g.Go(func() error {
		for leader := range c.WatchLeader(ctx) {
			d.update(func(v *view) { v.leader = leader })
		}
		return nil
	})
	g.Go(func() error {
		for range c.WatchShards(ctx) {
			d.update(func(*view) {}) // a shard may be free now
		}
		return nil
	})
	return g.Wait()
}

func (v *view) setMembers(members []coord.Member) {
	v.queues, v.queueAt, v.filters, v.scores = nil, make(map[string]string), nil, nil
	for _, m := range members {
		switch m.Role {
		case coord.RoleQueue:
			v.queues = append(v.queues, m.ID)
			v.queueAt[m.ID] = m.Address
		case coord.RoleFilterWorker:
			v.filters = append(v.filters, m.Address)
		case coord.RoleScoreWorker:
			v.scores = append(v.scores, m.Address)
		}
	}
}

func (d *directory) update(change func(*view)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(&d.now)
	d.announce()
}

// poke wakes those who wait for a change.
func (d *directory) poke() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.announce()
}

func (d *directory) announce() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// get returns who is alive, and a channel that is closed when that changes.
func (d *directory) get() (view, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now, d.changed
}

// awaitLeader waits for another active binder than leader, but no longer than atMost, nor than until ctx ends. Without
// a limit atMost is 0.
func (d *directory) awaitLeader(ctx context.Context, leader coord.Leader, atMost time.Duration) {
	var late <-chan time.Time
	if atMost > 0 {
		timer := time.NewTimer(atMost)
		defer timer.Stop()
		late = timer.C
	}
	for {
		now, changed := d.get()
		if now.leader != leader && now.hasLeader() {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-late:
			return
		case <-changed:
		}
	}
}

// hasLeader reports whether there is an active binder to call.
func (v view) hasLeader() bool { return v.leader.Epoch != 0 && v.leader.Address != "" }
