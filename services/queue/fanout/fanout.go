package fanout

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/trace"
)

// Clients are connections to workers, as rpc.Clients keeps them.
type Clients interface {
	Conn(address string) (*grpc.ClientConn, error)
}

// Config is everything a Fanout needs.
type Config struct {
	Clients    Clients
	Timeout    time.Duration      // of one call
	HedgeAfter time.Duration      // how long one worker is waited for, at least, before another is asked besides
	Hedges     prometheus.Counter // questions that were put to another worker because the first took too long
	Trace      *trace.Provider    // nil traces nothing
}

// Fanout remembers of workers how they answer. It is safe for concurrent use.
type Fanout struct {
	cfg      Config
	patience patience
	suspects suspects
}

// New returns a Fanout that knows nothing of any worker.
func New(cfg Config) *Fanout {
	return &Fanout{cfg: cfg, patience: patience{least: cfg.HedgeAfter, most: cfg.Timeout / 2}}
}

// Workers are who is asked. It is safe for concurrent use.
type Workers struct {
	f               *Fanout
	filters, scores []string // addresses
}

// Over returns workers to ask, by their addresses.
func (f *Fanout) Over(filters, scores []string) *Workers {
	return &Workers{f: f, filters: filters, scores: scores}
}

// Versions are the oldest and the newest version that the parts of an answer are of; both zero if nobody had to be asked.
type Versions struct{ Oldest, Newest cluster.Version }

func (v *Versions) add(part cluster.Version) {
	if v.Oldest.IsZero() || part.Less(v.Oldest) {
		v.Oldest = part
	}
	if v.Newest.Less(part) {
		v.Newest = part
	}
}

// ranges cuts the indexes below n for the workers. The last range has no upper bound, so that nodes that a worker
// knows already are not missed.
func ranges(n, workers int) []cluster.Range {
	parts := cluster.Ranges(max(n, 1), workers, cluster.LeastRange)
	parts[len(parts)-1].End = cluster.MaxIndex
	return parts
}
