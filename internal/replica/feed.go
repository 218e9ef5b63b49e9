package replica

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/wire"
)

const (
	defaultRing      = 1 << 16
	defaultRingBytes = 64 << 20
	defaultHeartbeat = time.Second
	defaultFollowers = 1024
	defaultKeep      = 10 * time.Second
	defaultWithin    = 30 * time.Second

	// maxTransactionBytes leaves a message of a single transaction well below what RPCs may carry.
	maxTransactionBytes = 16 << 20
)

// FeedConfig is everything a Feed needs. All of it may be left out.
type FeedConfig struct {
	Ring      int           // how many deltas are kept for followers that lag or come back; 0 means 65,536
	RingBytes int           // and at most so many bytes of them, encoded; 0 means 64 MiB
	Heartbeat time.Duration // how often a follower is told version and digest; 0 means 1s
	Followers int           // how many may follow at a time, of one caller no more than are free ([rpc.Share]); 0 means 1,024
	// Caller says who follows; nil means [rpc.RoleOf], so that the keys of one role do not keep the others out.
	Caller func(ctx context.Context) string
	// KeepSnapshot is how long a snapshot stays for others when nobody uses it any more, counted from when it was made, and with it
	// its memory: about that of the ledger. 0 means 10 s.
	KeepSnapshot time.Duration
	// SendWithin is how long a message may take to go, which is when the follower has read the one before; then the follower is cut
	// off, and with it goes what the message takes of memory. 0 means 30 s.
	SendWithin time.Duration
	Log        *slog.Logger          // nil discards
	Metrics    prometheus.Registerer // nil keeps none
}

// Feed is the binder's log as followers read it: each delta is encoded once, the most recent ones are kept, and
// followers read them. It is closed until Open. Its methods are safe for concurrent use, but the order of
// Append and Open is the log's order, so they are called under the lock of the ledger.
type Feed struct {
	cfg     FeedConfig
	metrics feedMetrics

	mu   sync.Mutex
	term *term // nil while closed

	snapshots sharedSnapshot
	following *rpc.Share // streams, by caller
}

// term is the feed of one epoch, until it is closed.
type term struct {
	epoch cluster.Epoch
	ended chan struct{} // closed when the term is over

	mu   sync.Mutex
	ring *ring
	wake chan struct{} // if not nil, somebody waits for it to be closed by the next transaction
}

// NewFeed returns a feed that is closed. It panics if the registry holds something else under one of its names.
func NewFeed(cfg FeedConfig) *Feed {
	if cfg.Ring <= 0 {
		cfg.Ring = defaultRing
	}
	if cfg.RingBytes <= 0 {
		cfg.RingBytes = defaultRingBytes
	}
	if cfg.Heartbeat <= 0 {
		cfg.Heartbeat = defaultHeartbeat
	}
	if cfg.Followers <= 0 {
		cfg.Followers = defaultFollowers
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Caller == nil {
		cfg.Caller = rpc.RoleOf
	}
	if cfg.KeepSnapshot <= 0 {
		cfg.KeepSnapshot = defaultKeep
	}
	if cfg.SendWithin <= 0 {
		cfg.SendWithin = defaultWithin
	}
	return &Feed{
		cfg: cfg, metrics: newFeedMetrics(cfg.Metrics), snapshots: sharedSnapshot{keep: cfg.KeepSnapshot}, following: rpc.NewShare(cfg.Followers, 0),
	}
}

// Open begins an epoch: the ledger is at v and has that digest, and deltas appended from now on follow it.
// A term that is still open ends.
func (f *Feed) Open(v cluster.Version, digest uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.end()
	f.term = &term{
		epoch: v.Epoch,
		ended: make(chan struct{}),
		ring:  newRing(f.cfg.Ring, f.cfg.RingBytes, v.Seq, digest),
	}
}

// Close ends the term: every stream ends with UNAVAILABLE, and further ones are answered so until the next Open.
// It does not wait for the streams. It may be called again.
func (f *Feed) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.end()
}

func (f *Feed) end() {
	if f.term != nil {
		close(f.term.ended)
		f.term = nil
	}
}

// Change is a delta that the ledger has applied, and the ledger's digest behind it.
type Change struct {
	Delta  cluster.Delta
	Digest uint64
}

// Append adds the deltas of one transaction, of which the last has just brought the ledger to v. A follower is told of all of them in
// one message, and its replica shows all of them or none. Append never waits for followers. An error means that followers cannot get to v,
// because the feed is closed, the deltas are not the next ones, or they cannot be sent; then none of them is told to anybody, and the
// owner has to give up the term.
func (f *Feed) Append(v cluster.Version, changes ...Change) error {
	t := f.current()
	if t == nil {
		return fmt.Errorf("append %d deltas up to %v to the log: it is closed", len(changes), v)
	}
	encoded, size := make([][]byte, len(changes)), 0
	for i, c := range changes {
		var err error
		if encoded[i], err = wire.Encode(c.Delta); err != nil {
			return fmt.Errorf("append %T up to %v to the log: %w", c.Delta, v, err)
		}
		if size += len(encoded[i]); size > maxTransactionBytes {
			return fmt.Errorf("append %d deltas up to %v to the log: the first %d, up to %T, have %d bytes, more than %d", len(changes), v, i+1, c.Delta, size, maxTransactionBytes)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if next := (cluster.Version{Epoch: t.epoch, Seq: t.ring.head + cluster.Seq(len(changes))}); v != next {
		return fmt.Errorf("append %d deltas up to %v to the log: want them to lead to %v", len(changes), v, next)
	}
	for i, c := range changes {
		t.ring.push(encoded[i], c.Digest, i < len(changes)-1)
	}
	if t.wake != nil {
		close(t.wake)
		t.wake = nil
	}
	return nil
}

// Head returns the version of the last delta appended, the zero one while the feed is closed.
func (f *Feed) Head() cluster.Version {
	t := f.current()
	if t == nil {
		return cluster.Version{}
	}
	return t.newest()
}

func (f *Feed) current() *term {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.term
}

// resume reports whether a follower with a state of that version and digest can go on from there.
// A digest of 0 is not compared.
func (t *term) resume(v cluster.Version, digest uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return v.Epoch == t.epoch && t.ring.holds(v.Seq) && (digest == 0 || digest == t.ring.digest(v.Seq))
}

// holds reports whether a follower at seq s can still go on.
func (t *term) holds(s cluster.Seq) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ring.holds(s)
}

// keeps reports whether a follower at seq s can still go on in a while.
func (t *term) keeps(s cluster.Seq) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ring.keeps(s)
}

// newest returns the version of the last delta.
func (t *term) newest() cluster.Version {
	t.mu.Lock()
	defer t.mu.Unlock()
	return cluster.Version{Epoch: t.epoch, Seq: t.ring.head}
}

// step is what a follower at some seq is to be told next.
type step struct {
	deltas [][]byte
	digest uint64        // at the follower's seq
	head   cluster.Seq   // of the log
	wake   chan struct{} // if there are no deltas: closed when one comes
}

// next returns what comes after seq s. False: it is no longer kept.
func (t *term) next(s cluster.Seq) (step, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ring.holds(s) {
		return step{}, false
	}
	n := step{deltas: t.ring.after(s), digest: t.ring.digest(s), head: t.ring.head}
	if len(n.deltas) == 0 {
		if t.wake == nil {
			t.wake = make(chan struct{})
		}
		n.wake = t.wake
	}
	return n, true
}
