package queue

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/cluster"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/services/queue/pending"
)

// Reasons of the PodScheduled condition.
const (
	reasonUnschedulable = "Unschedulable"
	reasonError         = "SchedulerError"
)

const (
	maxReports   = 10_000 // that wait to be handed in; of more, the oldest are dropped
	reportBatch  = 1_000
	reportPeriod = 5 * time.Second // how long handing in a batch may take
	reportRetry  = 100 * time.Millisecond
)

// reporter hands the outcomes of attempts that placed nothing to the binder, which writes them as events and
// conditions. It does its best: a pod that fails again replaces its report, and what the bound has no room for is
// dropped.
type reporter struct {
	s   *Service
	sh  *shard
	log *slog.Logger

	mu      sync.Mutex
	reports map[cluster.PodID]*binderv1.PodReport
	order   []cluster.PodID // of reports, oldest first
	filled  chan struct{}   // holds one value while there may be reports
}

func newReporter(s *Service, sh *shard, log *slog.Logger) *reporter {
	return &reporter{s: s, sh: sh, log: log, reports: make(map[cluster.PodID]*binderv1.PodReport), filled: make(chan struct{}, 1)}
}

// add never blocks. Clear says that the nomination that the attempt began with is to end.
func (r *reporter) add(a pending.Attempt, reason, message string, clear bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.reports[a.ID]; !ok {
		if len(r.order) >= maxReports {
			delete(r.reports, r.order[0])
			r.order = r.order[1:]
			r.s.metrics.reportsDropped.Inc()
		}
		r.order = append(r.order, a.ID)
	}
	r.reports[a.ID] = &binderv1.PodReport{
		Id: int32(a.ID), Uid: a.UID, Reason: reason, Message: message, Attempt: a.Number,
		ClearNomination: clear && a.Nominated != "", Nominated: a.Nominated,
	}
	select {
	case r.filled <- struct{}{}:
	default:
	}
}

// withdraw drops the report of a pod that is about to be reported otherwise.
func (r *reporter) withdraw(id cluster.PodID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.reports[id]; ok {
		delete(r.reports, id)
		r.order = slices.DeleteFunc(r.order, func(other cluster.PodID) bool { return other == id })
	}
}

// take returns the oldest reports.
func (r *reporter) take() []*binderv1.PodReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := min(len(r.order), reportBatch)
	taken := make([]*binderv1.PodReport, 0, n)
	for _, id := range r.order[:n] {
		taken = append(taken, r.reports[id])
		delete(r.reports, id)
	}
	r.order = r.order[n:]
	return taken
}

// run hands in reports until ctx ends.
func (r *reporter) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.filled:
		}
		for reports := r.take(); len(reports) > 0; reports = r.take() {
			if !r.hand(ctx, reports) {
				return
			}
		}
	}
}

// hand hands in one batch, waiting for the binder as long as it takes. It reports false if ctx ends.
func (r *reporter) hand(ctx context.Context, reports []*binderv1.PodReport) bool {
	for {
		now, _ := r.s.directory.get()
		err := errNoBinder
		if now.hasLeader() {
			err = r.send(ctx, now.leader.Address, reports)
		}
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		if rpc.TooLarge(err) && len(reports) > 1 {
			half := len(reports) / 2
			return r.hand(ctx, reports[:half]) && r.hand(ctx, reports[half:])
		}
		switch code := status.Code(err); code {
		case codes.ResourceExhausted, codes.Unavailable, codes.DeadlineExceeded, codes.FailedPrecondition:
		default:
			r.log.Error("reports not taken by the binder, dropped", "reports", len(reports), "err", err)
			r.s.metrics.reportsDropped.Add(float64(len(reports)))
			return true
		}
		r.s.directory.awaitLeader(ctx, now.leader, rpc.RetryPause(err, reportRetry))
	}
}

var errNoBinder = status.Error(codes.Unavailable, "no active binder")

func (r *reporter) send(ctx context.Context, address string, reports []*binderv1.PodReport) error {
	conn, err := r.s.cfg.Clients.Conn(address)
	if err != nil {
		return status.Errorf(codes.Unavailable, "connect to %s: %v", address, err)
	}
	ctx, cancel := context.WithTimeout(ctx, reportPeriod)
	defer cancel()
	_, err = binderv1.NewBinderServiceClient(conn).Report(ctx, &binderv1.ReportRequest{
		Shard: r.sh.number, ShardRevision: r.sh.revision, Reports: reports,
	})
	return err
}
