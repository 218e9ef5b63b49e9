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
	reportAgain  = time.Second // how often a batch of those is handed in again that the binder has left
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
	left    []cluster.PodID // the others of reports: the binder has left them, oldest first
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
		if len(r.reports) >= maxReports {
			from := &r.order
			if len(r.left) > 0 { // of a namespace that has more than its share
				from = &r.left
			}
			delete(r.reports, (*from)[0])
			*from = (*from)[1:]
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
		is := func(other cluster.PodID) bool { return other == id }
		r.order, r.left = slices.DeleteFunc(r.order, is), slices.DeleteFunc(r.left, is)
	}
}

// take returns the oldest of some reports.
func (r *reporter) take(of *[]cluster.PodID) []*binderv1.PodReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := min(len(*of), reportBatch)
	taken := make([]*binderv1.PodReport, 0, n)
	for _, id := range (*of)[:n] {
		taken = append(taken, r.reports[id])
		delete(r.reports, id)
	}
	*of = (*of)[n:]
	return taken
}

// leave takes reports back that the binder has left, but for pods of which there is a newer one.
func (r *reporter) leave(reports []*binderv1.PodReport, indexes []int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, i := range indexes {
		if i < 0 || int(i) >= len(reports) {
			continue // no binder says that
		}
		id := cluster.PodID(reports[i].GetId())
		if _, ok := r.reports[id]; ok {
			continue
		}
		if len(r.reports) >= maxReports {
			r.s.metrics.reportsDropped.Inc()
			continue
		}
		r.reports[id], r.left = reports[i], append(r.left, id)
	}
}

// leaves reports whether there are reports that the binder has left.
func (r *reporter) leaves() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.left) > 0
}

// run hands in reports until ctx ends. Those that the binder has left hold up no others.
func (r *reporter) run(ctx context.Context) {
	var again <-chan time.Time // nil while the binder has left none
	for {
		from := &r.order
		select {
		case <-ctx.Done():
			return
		case <-r.filled:
		case <-again:
			from, again = &r.left, nil
		}
		for reports := r.take(from); len(reports) > 0; reports = r.take(&r.order) {
			if !r.hand(ctx, reports) {
				return
			}
		}
		if again == nil && r.leaves() {
			again = time.After(reportAgain)
		}
	}
}

// hand hands in one batch, waiting for the binder as long as it takes. It reports false if ctx ends.
func (r *reporter) hand(ctx context.Context, reports []*binderv1.PodReport) bool {
	for {
		now, _ := r.s.directory.get()
		var left []int32
		err := errNoBinder
		if now.hasLeader() {
			left, err = r.send(ctx, now.leader.Address, reports)
		}
		if err == nil {
			r.leave(reports, left)
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

func (r *reporter) send(ctx context.Context, address string, reports []*binderv1.PodReport) (left []int32, err error) {
	conn, err := r.s.cfg.Clients.Conn(address)
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "connect to %s: %v", address, err)
	}
	ctx, cancel := context.WithTimeout(ctx, reportPeriod)
	defer cancel()
	resp, err := binderv1.NewBinderServiceClient(conn).Report(ctx, &binderv1.ReportRequest{
		Shard: r.sh.number, ShardRevision: r.sh.revision, Reports: reports,
	})
	return resp.GetLeft(), err
}
