package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/rpc"
)

const (
	defaultWait             = 200 * time.Millisecond
	defaultHeartbeatTimeout = 5 * time.Second
)

// Leaders says which binder to follow.
type Leaders interface {
	// WatchLeader sends who leads, at once and after each change, until ctx ends.
	WatchLeader(ctx context.Context) <-chan coord.Leader
}

// Conns are the connections to other members.
type Conns interface {
	Conn(address string) (*grpc.ClientConn, error)
}

// Config is everything a Replica needs.
type Config struct {
	Member           string                // who follows, for the binder's log
	Leaders          Leaders               // required
	Conns            Conns                 // required
	Log              *slog.Logger          // nil discards
	Wait             time.Duration         // how long Read waits for a version; 0 means 200ms
	HeartbeatTimeout time.Duration         // a stream that is silent for longer is opened anew; 0 means 5s
	Metrics          prometheus.Registerer // nil keeps none
}

// Replica is a copy of the ledger that follows the active binder's log. Its methods are safe for concurrent use.
type Replica struct {
	cfg     Config
	metrics replicaMetrics

	mu          sync.RWMutex
	state       *cluster.State // nil until a snapshot is whole; changed only by Run
	changed     chan struct{}  // closed, and replaced, when the state has changed
	subscribers []*subscription

	head  atomic.Pointer[cluster.Version]
	heard atomic.Pointer[time.Time]
	// broken is why the log is not followed at the moment; nil while it is.
	broken atomic.Pointer[error]
}

// Subscriber is told of every change of the state, in order, while nobody reads it. It must be quick, and must not
// call the replica.
type Subscriber interface {
	// Reset says that st is another state than before, or the first.
	Reset(st *cluster.State)
	// Applied says that d was applied to the state of the last Reset.
	Applied(st *cluster.State, d cluster.Delta)
}

type subscription struct{ Subscriber }

// New returns a replica that is empty until it runs. It panics if the registry holds something else under one of its
// metrics' names.
func New(cfg Config) (*Replica, error) {
	if cfg.Leaders == nil {
		return nil, errors.New("new replica: Leaders: missing")
	}
	if cfg.Conns == nil {
		return nil, errors.New("new replica: Conns: missing")
	}
	if cfg.Wait < 0 || cfg.HeartbeatTimeout < 0 {
		return nil, fmt.Errorf("new replica: Wait %v, HeartbeatTimeout %v: negative", cfg.Wait, cfg.HeartbeatTimeout)
	}
	if cfg.Wait == 0 {
		cfg.Wait = defaultWait
	}
	if cfg.HeartbeatTimeout == 0 {
		cfg.HeartbeatTimeout = defaultHeartbeatTimeout
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	r := &Replica{cfg: cfg, changed: make(chan struct{})}
	r.metrics = newReplicaMetrics(cfg.Metrics, r)
	return r, nil
}

// ErrNotLoaded is what Read returns while there is no state to read: no snapshot has come yet, or the state was
// dropped because it could not be trusted.
var ErrNotLoaded = errors.New("replica is not loaded")

// BehindError is what Read returns when the replica has not come to a version in time, or is of another epoch.
type BehindError struct{ Have, Want cluster.Version }

func (e *BehindError) Error() string {
	return fmt.Sprintf("replica is at version %v, not %v", e.Have, e.Want)
}

// Status turns what Read returns into what an RPC answers: UNAVAILABLE with reason REPLICA_BEHIND for a BehindError
// and ErrNotLoaded, so that the caller asks another replica. Other errors are returned as they are.
func Status(err error) error {
	var behind *BehindError
	if errors.As(err, &behind) || errors.Is(err, ErrNotLoaded) {
		return rpc.Error(codes.Unavailable, rpc.ReasonReplicaBehind, "%v", err)
	}
	return err
}

// Read calls fn with a state of version min or later, of the same epoch; the zero version stands for any. It waits for it
// up to Config.Wait. Many may read at the same time, and none while the state changes: fn must not keep the state
// and must not call Read. Read returns what fn returns, a BehindError, ErrNotLoaded, or ctx's error.
func (r *Replica) Read(ctx context.Context, min cluster.Version, fn func(*cluster.State) error) error {
	var timeout <-chan time.Time
	for {
		done, changed, err := r.tryRead(min, fn)
		var behind *BehindError
		if done || !errors.As(err, &behind) || behind.Have.Epoch > min.Epoch {
			return err
		}
		if timeout == nil {
			timer := time.NewTimer(r.cfg.Wait)
			defer timer.Stop()
			timeout = timer.C
		}
		select {
		case <-changed:
		case <-timeout:
			return err
		case <-ctx.Done():
			return fmt.Errorf("wait for version %v: %w", min, context.Cause(ctx))
		}
	}
}

// tryRead calls fn if the state is good enough. If not, changed is closed when it may be.
func (r *Replica) tryRead(min cluster.Version, fn func(*cluster.State) error) (done bool, changed <-chan struct{}, err error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.state == nil {
		return false, r.changed, ErrNotLoaded
	}
	have := r.state.Version()
	if !min.IsZero() && (have.Epoch != min.Epoch || have.Seq < min.Seq) {
		return false, r.changed, &BehindError{Have: have, Want: min}
	}
	return true, nil, fn(r.state)
}

// Subscribe makes s hear of every change from now on, beginning with a Reset if there is a state. Once cancel has
// returned, s is not called any more.
func (r *Replica) Subscribe(s Subscriber) (cancel func()) {
	sub := &subscription{s}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.subscribers = append(r.subscribers, sub)
	if r.state != nil {
		s.Reset(r.state)
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.subscribers = slices.DeleteFunc(r.subscribers, func(other *subscription) bool { return other == sub })
	}
}

// Version returns the version of the state, the zero one if there is none.
func (r *Replica) Version() cluster.Version {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.state == nil {
		return cluster.Version{}
	}
	return r.state.Version()
}

// Digest returns the digest of the state, 0 if there is none.
func (r *Replica) Digest() uint64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.state == nil {
		return 0
	}
	return r.state.Digest()
}

// Head returns the version of the end of the binder's log, as last heard. It is ahead of Version by the replica's lag.
func (r *Replica) Head() cluster.Version {
	if v := r.head.Load(); v != nil {
		return *v
	}
	return cluster.Version{}
}

// lag returns how many deltas Version is behind Head; all of the epoch if the state is of another one.
func (r *Replica) lag() cluster.Seq {
	head, have := r.Head(), r.Version()
	if head.Epoch != have.Epoch {
		return head.Seq
	}
	return max(head.Seq-have.Seq, 0)
}

// Heard returns when the binder last said something about the state that is readable: the state was the ledger's
// then, but for the lag. While another snapshot is loaded this does not advance. It is zero before the first snapshot.
func (r *Replica) Heard() time.Time {
	if t := r.heard.Load(); t != nil {
		return *t
	}
	return time.Time{}
}

// Ready returns nil while there is a state and the binder was heard recently, else why not.
func (r *Replica) Ready() error {
	because := ""
	if broken := r.broken.Load(); broken != nil && *broken != nil {
		because = fmt.Sprintf(": %v", *broken)
	}
	version := r.Version()
	if version.IsZero() {
		return fmt.Errorf("%w: no snapshot of the ledger yet%s", ErrNotLoaded, because)
	}
	if age := time.Since(r.Heard()); age > r.cfg.HeartbeatTimeout {
		return fmt.Errorf("replica at version %v heard nothing from the binder for %v%s", version, age.Round(time.Second), because)
	}
	return nil
}
