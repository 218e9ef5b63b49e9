package roles

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
)

const (
	// etcdLook is how often etcd is asked how full it is, and one of Berth's own etcdPressed times as often while more than half of its
	// quota is in use: the other half may be written within one look.
	etcdLook    = 10 * time.Second
	etcdPressed = 10
	// etcdKept is how much of the past an etcd of Berth's own keeps, for watches that were away; unless it is pressed for room: then
	// it keeps the newer half of them, and at most etcdKeptRevisions, when more than half of the quota is in use, and none beyond three
	// quarters, since a revision may be a megabyte.
	etcdKept          = 5 * time.Minute
	etcdKeptRevisions = 1000
	// etcdQuota is that of an etcd that does not tell its own: etcd's default.
	etcdQuota = 2 << 30
	// etcdRepeat is how often it is told that etcd still refuses to be compacted, for the same reason. It is tried again at each look.
	etcdRepeat = time.Hour
)

// etcdWatch knows how full etcd is, and compacts one that is Berth's own while this process has the active binder.
type etcdWatch struct {
	coord  etcdDatabase
	every  time.Duration
	owned  bool
	log    *slog.Logger
	latest atomic.Pointer[coord.Database] // nil: not known, or etcd does not answer
	binder atomic.Value                   // an etcdLeader, that of this process; nil: none

	compactions prometheus.Counter
}

// etcdDatabase is the database of an etcd: a coord.Client's.
type etcdDatabase interface {
	Database(context.Context) (coord.Database, error)
	Compact(ctx context.Context, revision int64) error
}

// etcdLeader is a binder, whose version has an epoch while it is active.
type etcdLeader interface{ Version() cluster.Version }

// watchEtcd begins to watch etcd, once in a process.
func (e *env) watchEtcd(ctx context.Context, g *errgroup.Group) error {
	if e.filling != nil {
		return nil
	}
	every := e.EtcdLook
	if every == 0 {
		every = etcdLook
	}
	w := &etcdWatch{coord: e.coord, every: every, owned: e.EtcdOwned || e.embedded != nil, log: e.Log}
	if err := w.register(e.measured.common); err != nil {
		return err
	}
	e.filling = w
	g.Go(func() error {
		w.run(ctx)
		return nil
	})
	return nil
}

// database returns how full etcd was when it was last asked; ok is false if that is not known.
func (w *etcdWatch) database() (d coord.Database, ok bool) {
	if latest := w.latest.Load(); latest != nil {
		return *latest, true
	}
	return coord.Database{}, false
}

// active reports whether this process has the active binder.
func (w *etcdWatch) active() bool {
	s, there := w.binder.Load().(etcdLeader)
	return there && s.Version().Epoch != 0
}

func (w *etcdWatch) run(ctx context.Context) {
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	var past etcdPast
	var refused etcdRefused
	said := false
	for {
		d, err := w.coord.Database(ctx)
		if err != nil {
			w.latest.Store(nil)
		} else {
			w.latest.Store(&d)
			if tight := d.Full || d.Size > quotaOf(d)/5*4; tight != said {
				said = tight
				w.say(d, tight)
			}
			if revision := past.until(time.Now(), d); w.owned && revision > 0 && w.active() {
				err := w.coord.Compact(ctx, revision)
				if err == nil {
					past.last = revision
					w.compactions.Inc()
				}
				if ctx.Err() == nil && refused.tells(time.Now(), err) {
					if err == nil {
						w.log.Info("etcd is compacted again")
					} else {
						w.log.Warn("etcd not compacted", "err", err)
					}
				}
			}
			tick.Reset(w.pause(d))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// pause returns how long it is until the next look at an etcd that was found so.
func (w *etcdWatch) pause(d coord.Database) time.Duration {
	if w.owned && d.InUse > quotaOf(d)/2 {
		return max(w.every/etcdPressed, time.Millisecond)
	}
	return w.every
}

func (w *etcdWatch) say(d coord.Database, tight bool) {
	about := []any{"size", d.Size, "in_use", d.InUse, "quota", d.Quota, "full", d.Full}
	switch {
	case !tight:
		w.log.Info("etcd has room again", about...)
	case d.Full:
		w.log.Error("etcd is full and takes no writes: nothing is placed until it has room; see docs/runbook.md#berthetcdfull", about...)
	default:
		w.log.Warn("etcd fills up; see docs/runbook.md#berthetcdfills", about...)
	}
}

// etcdRefused remembers why etcd could not be compacted, as it was last told.
type etcdRefused struct {
	cause string // "": it could
	told  time.Time
}

// tells reports whether it is to be told how a compaction has ended: if that is another end than the last one's, and once in etcdRepeat while etcd
// cannot be compacted. Each look wants another revision, which an error says, so errors are compared by what they wrap.
func (r *etcdRefused) tells(now time.Time, err error) bool {
	cause := ""
	switch {
	case err == nil:
	case silent(err):
		cause = "silent"
	default:
		cause = cmp.Or(errors.Unwrap(err), err).Error()
	}
	if cause == r.cause && (err == nil || now.Sub(r.told) < etcdRepeat) {
		return false
	}
	r.cause, r.told = cause, now
	return true
}

// silent reports whether an error is that etcd does not answer. Its text says how the connection is, which changes all the while.
func silent(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || slices.Contains([]codes.Code{codes.DeadlineExceeded, codes.Unavailable}, status.Code(err))
}

func quotaOf(d coord.Database) int64 {
	if d.Quota == 0 {
		return etcdQuota
	}
	return d.Quota
}

// etcdPast remembers when which revision was the newest, over what is kept.
type etcdPast struct {
	marks []etcdMark // by time, at least a minute apart
	old   int64      // the newest revision that is older than etcdKept
	last  int64      // the revision before which all has been dropped, as far as is known
}

type etcdMark struct {
	at       time.Time
	revision int64
}

// until returns the revision before which the past may be dropped now, 0 if nothing is to be. It is asked again and again, and says the
// same until last says that it is done: a full etcd has no newer revisions.
func (p *etcdPast) until(now time.Time, d coord.Database) int64 {
	if n := len(p.marks); n == 0 || now.Sub(p.marks[n-1].at) >= time.Minute {
		p.marks = append(p.marks, etcdMark{now, d.Revision})
	}
	for len(p.marks) > 0 && now.Sub(p.marks[0].at) >= etcdKept {
		p.old = p.marks[0].revision
		p.marks = p.marks[1:]
	}
	revision := p.old
	switch quota := quotaOf(d); {
	case d.InUse > quota/4*3 || d.Full:
		revision = max(revision, d.Revision)
	case d.InUse > quota/2:
		revision = max(revision, d.Revision-etcdKeptRevisions, d.Revision-(d.Revision-p.last)/2)
	}
	if revision <= p.last {
		return 0
	}
	return revision
}

// register registers what is known of etcd. It says nothing while etcd does not answer.
func (w *etcdWatch) register(to prometheus.Registerer) error {
	w.compactions = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "berth_etcd_compactions_total", Help: "Times this binder has compacted an etcd that is Berth's own.",
	})
	return errors.Join(to.Register(w.compactions), to.Register(w))
}

// etcdGauge is read from what etcd has last said.
type etcdGauge struct {
	desc *prometheus.Desc
	of   func(coord.Database) int64
}

func etcdGauges() []etcdGauge {
	gauge := func(name, help string, of func(coord.Database) int64) etcdGauge {
		return etcdGauge{prometheus.NewDesc(name, help, nil, nil), of}
	}
	return []etcdGauge{
		gauge("berth_etcd_size_bytes", "Size of etcd's database, of the member that has the largest.",
			func(d coord.Database) int64 { return d.Size }),
		gauge("berth_etcd_in_use_bytes", "What of etcd's database holds something; the rest is used again.",
			func(d coord.Database) int64 { return d.InUse }),
		gauge("berth_etcd_quota_bytes", "Size of etcd's database at which it takes no more writes; etcd's default if it does not say.", quotaOf),
		gauge("berth_etcd_full", "Whether etcd has come to its quota and takes no writes: 1 or 0.", func(d coord.Database) int64 {
			if d.Full {
				return 1
			}
			return 0
		}),
	}
}

// Describe implements prometheus.Collector.
func (w *etcdWatch) Describe(out chan<- *prometheus.Desc) {
	for _, g := range etcdGauges() {
		out <- g.desc
	}
}

// Collect implements prometheus.Collector.
func (w *etcdWatch) Collect(out chan<- prometheus.Metric) {
	d, ok := w.database()
	if !ok {
		return
	}
	for _, g := range etcdGauges() {
		out <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, float64(g.of(d)))
	}
}
