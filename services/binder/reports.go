package binder

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/trace"
)

// The reasons of the PodScheduled condition.
const (
	reasonUnschedulable = "Unschedulable"
	reasonError         = "SchedulerError"
)

// reportLane writes why pods were not placed, and what they are nominated to, and what has come of PodGroups, which are to it as pods: at most one write per pod at a time, those of a namespace in
// the order of the reports, and one for all reports of a pod that wait. It is bounded: reports beyond the bound are
// refused, and no namespace has more of it than are free. A write that fails is tried again as long as it says the newest of its pod; see writeBackoff.
//
// A workqueue of client-go would do the order and the one write at a time. It has no bound, neither on what waits nor on what has
// failed, does not end with a context, and holds keys: reports, their merging, the bound and what is newer overtaking a
// delay would all stay here, beside it.
type reportLane struct {
	reportLaneConfig

	room    bound                  // for pods whose report waits
	failing bound                  // those of them that have a time: half of the room is for reports that have not failed
	turns   *turns[string, string] // uids of those whose turn has come

	mu      sync.Mutex
	waiting map[string]waitingReport // by uid
	writing map[string]bool          // by uid
}

// reportLaneConfig is everything a report lane needs. All of it is required, but for trace.
type reportLaneConfig struct {
	source source.Source
	limit  int    // of pods whose report waits
	binds  *bound // that it gives way to
	// waits reports whether what a report of a pod says is still so, and until when it may be written; zero: at any time.
	waits  func(source.Report) (until time.Time, ok bool)
	failed func(error) // hears of a write that is given up
	// dropped hears of a report that is not written, for its namespace has its share and is slow.
	dropped func()
	trace   *trace.Provider // nil traces nothing
}

// waitingReport is a report that is to be written. Without a Reason it is a nomination and nothing else.
type waitingReport struct {
	source.Report
	attempts
}

func newReportLane(cfg reportLaneConfig) *reportLane {
	return &reportLane{
		reportLaneConfig: cfg,
		room:             bound{limit: cfg.limit}, failing: bound{limit: cfg.limit / 2}, turns: newTurns[string](reportWorkers),
		waiting: make(map[string]waitingReport), writing: make(map[string]bool),
	}
}

// add queues reports, all or none. False: the lane, or the share of a namespace, has no room for them. But those of a namespace that has its
// share, and of which as many writes as may be under way take long, are dropped: they hold up nobody. More than the lane takes at all
// pass while no other waits. It never blocks.
func (l *reportLane) add(reports ...source.Report) bool {
	_, ok := l.put(false, reports)
	return ok
}

// offer is add, but of namespaces that have their share it leaves what there is no room for, and returns the indexes of that.
func (l *reportLane) offer(reports ...source.Report) (left []int, ok bool) {
	return l.put(true, reports)
}

func (l *reportLane) put(some bool, reports []source.Report) (left []int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// 1. Is there room for those whose pod has none that waits?
	wanted, fresh, slow := make(map[string]int), make(map[string]bool), make(map[string]bool)
	var content []string // with less than all of theirs
	for _, r := range reports {
		if _, waits := l.waiting[r.UID]; waits || fresh[r.UID] {
			continue
		}
		fresh[r.UID] = true
		if wanted[r.Namespace]++; wanted[r.Namespace] > 1 {
			continue
		}
		if slow[r.Namespace] = l.turns.slow(r.Namespace); slow[r.Namespace] || some {
			content = append(content, r.Namespace)
		}
		if some && !slow[r.Namespace] && l.room.full() {
			return nil, false
		}
	}
	if !l.room.takeOf(wanted, content...) {
		return nil, false
	}
	// 2. Queue them.
	for i, r := range reports {
		older, waits := l.waiting[r.UID]
		switch {
		case waits:
			r = merge(older.Report, r)
		case wanted[r.Namespace] == 0 && slow[r.Namespace]:
			l.dropped()
			continue
		case wanted[r.Namespace] == 0:
			left = append(left, i)
			continue
		default:
			wanted[r.Namespace]--
			if !l.writing[r.UID] { // else its turn comes when that is done
				l.turns.add(r.Namespace, r.UID)
			}
		}
		if !older.due.IsZero() { // what is newer does not wait for what has failed
			l.failing.giveOf(r.Namespace, 1)
			l.turns.add(r.Namespace, r.UID)
		}
		l.waiting[r.UID] = waitingReport{Report: r}
	}
	return left, true
}

// merge returns what is left to be written of two reports of a pod.
func merge(older, newer source.Report) source.Report {
	if newer.Assumed != older.Assumed { // it has been placed since, or given back: what was to be said before is not so any more
		return newer
	}
	if older.Group && older.Reason == source.Scheduled {
		return older // as a group stays
	}
	if newer.Reason == "" {
		older.Nominate, older.Nominated = true, newer.Nominated
		return older
	}
	if !newer.Nominate && !newer.Assumed { // of one that is placed, it says itself whether it is still nominated
		newer.Nominate, newer.Nominated = older.Nominate, older.Nominated
	}
	return newer
}

// depth returns how many pods' reports wait.
func (l *reportLane) depth() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)
}

// ready returns how many of them need not wait for their time, and whether these are more than a quarter of what those may be that have none.
func (l *reportLane) ready() (n int, many bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n = len(l.waiting) - l.failing.count()
	return n, n > (l.room.limit-l.failing.count())/4
}

// take takes the report of a pod whose turn has come. The caller says when it is written.
func (l *reportLane) take(uid string) waitingReport {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.waiting[uid]
	delete(l.waiting, uid)
	l.room.giveOf(r.Namespace, 1)
	l.writing[uid] = true
	return r
}

// written lets the next report of the pod go.
func (l *reportLane) written(uid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.writing, uid)
	if r, waits := l.waiting[uid]; waits {
		l.turns.add(r.Namespace, uid)
	}
}

// again takes a report back whose write has failed. A newer one takes over what it does not say itself. False: it has
// failed too often, or too many have.
func (l *reportLane) again(r waitingReport, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.writing, r.UID)
	if newer, waits := l.waiting[r.UID]; waits {
		l.waiting[r.UID] = waitingReport{Report: merge(r.Report, newer.Report)}
		l.turns.add(r.Namespace, r.UID)
		return true
	}
	if !r.failed(now) || !l.failing.takeOf(map[string]int{r.Namespace: 1}) {
		return false
	}
	l.waiting[r.UID] = r
	l.room.giveOf(r.Namespace, -1)
	return true
}

// retry brings back the reports whose time has come.
func (l *reportLane) retry(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failing.count() == 0 {
		return
	}
	for uid, r := range l.waiting {
		if !r.due.IsZero() && !r.due.After(now) {
			r.due = time.Time{}
			l.waiting[uid] = r
			l.failing.giveOf(r.Namespace, 1)
			l.turns.add(r.Namespace, uid)
		}
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
	next := func() (uid string, of *turn[string, string]) {
		n, many := l.ready()
		if n > 0 && !many {
			l.binds.awaitIdle(ctx, courtesy) // before it takes one, which a newer one may replace meanwhile
		}
		if n > 0 { // one that comes only now gives way too
			return l.turns.next()
		}
		return "", nil
	}
	return work(ctx, l.turns, next, func(ctx context.Context, uid string) error {
		r := l.take(uid)
		err := l.write(ctx, r.Report)
		switch {
		case err == nil:
			l.written(uid)
		case ctx.Err() == nil && !l.again(r, time.Now()):
			l.failed(err)
		}
		return nil
	})
}

func (l *reportLane) write(ctx context.Context, r source.Report) error {
	until, ok := l.waits(r)
	if !ok { // placed, or gone, since it was reported, or not ours to write to any more
		return nil
	}
	if !until.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, until)
		defer cancel()
	}
	return timely(ctx, func(ctx context.Context) error {
		switch {
		case r.Group:
			return l.source.GroupDecided(ctx, r)
		case r.Reason == "":
			return l.source.Nominate(ctx, source.Nomination{UID: r.UID, Namespace: r.Namespace, Name: r.Name, Node: r.Nominated})
		default:
			return l.source.Unschedulable(l.trace.Attempt(r.UID, r.Attempt).Context(ctx), r)
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

// report hands the lane those reports of a request whose pod is still there and not placed, and ends the nominations that are to end.
// Whether a pod still waits is seen when its report is written. It returns the indexes of the reports that the lane has left. False: the lane
// is full, and nothing was taken.
func (t *term) report(req *binderv1.ReportRequest) (left []int32, taken bool, err error) {
	var reports []source.Report
	var behind []int
	err = t.ledger.update(func(*tx) (err error) {
		reports, behind, left, taken, err = t.reportIn(req)
		return err
	})
	if taken {
		t.logReports(reports, behind)
	}
	return left, taken, err
}

// reportIn returns besides what has been made of the request, and which of that is left.
func (t *term) reportIn(req *binderv1.ReportRequest) (reports []source.Report, behind []int, left []int32, taken bool, err error) {
	l := t.ledger
	reports = make([]source.Report, 0, len(req.GetReports()))
	indexes := make([]int32, 0, len(req.GetReports()))
	var cleared []cluster.PodID
	for i, r := range req.GetReports() {
		id := cluster.PodID(r.GetId())
		row := l.state.Pod(id)
		if row == nil || row.UID != r.GetUid() || row.Placed() {
			continue
		}
		report := reportOf(row, r.GetReason(), r.GetMessage())
		report.Attempt = r.GetAttempt()
		switch {
		case r.GetClearNomination() && l.means(req.GetShardRevision(), r, row):
			report.Nominate = true
			cleared = append(cleared, id)
		case l.fold.Untold(row): // the report that was to tell it may have been dropped
			report.Nominate, report.Nominated = true, row.Nominated
		}
		reports, indexes = append(reports, report), append(indexes, int32(i))
	}
	if behind, taken = t.reports.offer(reports...); !taken {
		return nil, nil, nil, false, nil
	}
	for _, i := range behind {
		left = append(left, indexes[i])
	}
	for _, id := range cleared { // those of reports that are left, too: others need the room
		if err := l.fold.Nominate(id, ""); err != nil {
			return reports, behind, left, true, err
		}
	}
	return reports, behind, left, true, nil
}

// means reports whether a report that ends the nomination of a pod means the one that the pod has: it may have been long on its way, and the
// pod been nominated since, to another node or to the same. One that was left before means the nomination that has ended then: that is still to be
// written.
func (l *ledger) means(claim int64, r *binderv1.PodReport, row *cluster.PodRow) bool {
	if claim == 0 || r.GetNominated() == "" {
		return true // a queue of a version that does not say what it means
	}
	last := l.preempted[r.GetUid()].by
	since := last.claim > claim || last.claim == claim && last.number >= r.GetAttempt()
	return (row.Nominated == r.GetNominated() || row.Nominated == "") && !since
}

func reportOf(row *cluster.PodRow, reason, message string) source.Report {
	return source.Report{UID: row.UID, Namespace: row.Namespace, Name: row.Name, Reason: reason, Message: message}
}
