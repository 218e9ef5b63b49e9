package binder

import (
	"context"
	"fmt"
	"sync"

	"github.com/berth-scheduler/berth/internal/cluster"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/source"
)

// The reasons of the PodScheduled condition.
const (
	reasonUnschedulable = "Unschedulable"
	reasonError         = "SchedulerError"
)

// reportLane writes why pods were not placed, and what they are nominated to: at most one write per pod at a time, in
// the order of the reports, and one for all reports of a pod that wait. It is bounded: reports beyond the bound are
// refused.
type reportLane struct {
	source   source.Source
	limit    int                   // of pods whose report waits
	binds    *bound                // that it gives way to
	unplaced func(uid string) bool // whether what a report says is still so
	failed   func(error)
	wake     chan struct{}

	mu      sync.Mutex
	waiting map[string]source.Report // by uid; without a Reason there is a nomination to be written and nothing else
	order   []string                 // uids of those that wait, oldest first, but for those being written
	writing map[string]bool          // by uid
}

func newReportLane(src source.Source, limit int, binds *bound, unplaced func(uid string) bool, failed func(error)) *reportLane {
	return &reportLane{
		source: src, limit: limit, binds: binds, unplaced: unplaced, failed: failed, wake: make(chan struct{}, 1),
		waiting: make(map[string]source.Report), writing: make(map[string]bool),
	}
}

// add queues reports, all or none. False: the lane has no room for them. More than the lane takes at all pass while no
// other waits. It never blocks.
func (l *reportLane) add(reports ...source.Report) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting)+len(reports) > l.limit && len(l.waiting) > 0 {
		return false
	}
	for _, r := range reports {
		older, waits := l.waiting[r.UID]
		switch {
		case waits:
			r = merge(older, r)
		case !l.writing[r.UID]:
			l.order = append(l.order, r.UID)
		}
		l.waiting[r.UID] = r
	}
	l.signal()
	return true
}

// merge returns what is left to be written of two reports of a pod.
func merge(older, newer source.Report) source.Report {
	if newer.Reason == "" {
		older.Nominate, older.Nominated = true, newer.Nominated
		return older
	}
	if !newer.Nominate {
		newer.Nominate, newer.Nominated = older.Nominate, older.Nominated
	}
	return newer
}

func (l *reportLane) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// depth returns how many pods' reports wait.
func (l *reportLane) depth() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)
}

// next takes the oldest report. The caller says when it is written.
func (l *reportLane) next() (source.Report, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.order) == 0 {
		return source.Report{}, false
	}
	uid := pop(&l.order)
	r := l.waiting[uid]
	delete(l.waiting, uid)
	l.writing[uid] = true
	return r, true
}

// written lets the next report of the pod go.
func (l *reportLane) written(uid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.writing, uid)
	if _, waits := l.waiting[uid]; waits {
		l.order = append(l.order, uid)
		l.signal()
	}
}

// pop takes the first of a list that is not empty. An empty list keeps no memory.
func pop[T any](list *[]T) T {
	var none T
	first := (*list)[0]
	(*list)[0] = none
	if *list = (*list)[1:]; len(*list) == 0 {
		*list = nil
	}
	return first
}

// run is one worker of the lane; any number may run.
func (l *reportLane) run(ctx context.Context) error {
	for ctx.Err() == nil {
		n := l.depth()
		if n > 0 && n <= l.limit/2 {
			l.binds.awaitIdle(ctx, courtesy) // before it takes one, which a newer one may replace meanwhile
		}
		var r source.Report
		ok := false
		if n > 0 { // one that comes only now gives way too
			r, ok = l.next()
		}
		if !ok {
			select {
			case <-ctx.Done():
			case <-l.wake:
			}
			continue
		}
		l.signal() // another worker may find more
		if err := l.write(ctx, r); err != nil && ctx.Err() == nil {
			l.failed(err)
		}
		l.written(r.UID)
	}
	return nil
}

func (l *reportLane) write(ctx context.Context, r source.Report) error {
	return timely(ctx, func(ctx context.Context) error {
		switch {
		case !l.unplaced(r.UID): // placed, or gone, since it was reported
			return nil
		case r.Reason == "":
			return l.source.Nominate(ctx, source.Nomination{UID: r.UID, Namespace: r.Namespace, Name: r.Name, Node: r.Nominated})
		default:
			return l.source.Unschedulable(ctx, r)
		}
	})
}

// validateReports says what is wrong with a request.
func validateReports(req *binderv1.ReportRequest) error {
	var bad violations
	if n := len(req.GetReports()); n > maxReports {
		bad.note("reports", "%d reports; want at most %d", n, maxReports)
	}
	for i, r := range req.GetReports() {
		bad.checkReason(fmt.Sprintf("reports[%d].reason", i), r.GetReason())
	}
	return rpc.Invalid(bad...)
}

func (v *violations) checkReason(field, reason string) {
	if reason != reasonUnschedulable && reason != reasonError {
		v.note(field, "%q; want %s or %s", reason, reasonUnschedulable, reasonError)
	}
}

// report hands the lane those reports of a request whose pod is still there, and ends the nominations that are to end.
// Whether a pod still waits is seen when its report is written. False: the lane is full, and nothing was taken.
func (t *term) report(req *binderv1.ReportRequest) (bool, error) {
	l := t.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	reports := make([]source.Report, 0, len(req.GetReports()))
	var cleared []cluster.PodID
	for _, r := range req.GetReports() {
		id := cluster.PodID(r.GetId())
		row := l.state.Pod(id)
		if row == nil || row.UID != r.GetUid() {
			continue
		}
		report := reportOf(row, r.GetReason(), r.GetMessage())
		if r.GetClearNomination() && !row.Placed() {
			report.Nominate = true
			cleared = append(cleared, id)
		}
		reports = append(reports, report)
	}
	if !t.reports.add(reports...) {
		return false, nil
	}
	for _, id := range cleared {
		if err := l.nominate(id, ""); err != nil {
			return true, err
		}
	}
	return true, nil
}

func reportOf(row *cluster.PodRow, reason, message string) source.Report {
	return source.Report{UID: row.UID, Namespace: row.Namespace, Name: row.Name, Reason: reason, Message: message}
}
