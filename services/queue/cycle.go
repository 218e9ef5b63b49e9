package queue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	filterv1 "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
	scorev1 "github.com/berth-scheduler/berth/internal/gen/berth/score/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/wire"
	"github.com/berth-scheduler/berth/services/queue/pending"
)

// slack is how many more candidates are asked for than pods will take of them, for those that other shards take meanwhile.
const slack = 16

// reach is how many candidates the pods of other signatures in a batch are expected to take of those of a signature. Signatures differ in
// which of equally good nodes they prefer, so that is few as long as there are many such nodes. Where the lists were too
// short for the binder to prove a choice, the rest of the batch comes again with longer ones.
type reach int

// limit returns how many candidates of a signature to ask for, which has so many pods of a batch. More than the batch has pods
// are never needed.
func (r reach) limit(own, batch int) int { return min(own+int(r), batch) + slack }

// after returns the reach of the next cycle.
func (r reach) after(batch int, exhausted bool) reach {
	if exhausted {
		return min(max(2*r, slack), reach(batch))
	}
	return r - (r+15)/16
}

// cycle takes a batch through filter, score and commit, and then makes room for pods that fit nowhere. Pods that get no
// outcome are active again. An error means that the shard is lost or ctx has ended.
func (d *driver) cycle(ctx context.Context, b *batch, now view) error {
	d.s.metrics.batch.Observe(float64(len(b.attempts)))
	d.progress, d.busy = 0, 0
	d.widen()
	d.again = make(map[string]int)
	open := make(map[int]bool, len(b.attempts)) // without an outcome
	for i := range b.attempts {
		open[i] = true
	}
	ctx = d.traceCycle(ctx, b)
	defer func() {
		d.giveBack(b, open)
		d.misfits = d.again
		b.endTraces(open)
	}()

	// 1. Where can they go?
	if b.nodes > 0 {
		err := d.stage("filter", func() error { return d.filter(ctx, b, now) })
		d.ran(pointFilter, b, b.all(), err)
		if err != nil {
			return d.refused(ctx, b, open, b.all(), "filter", err)
		}
	}
	// 2. Park the pods that can go nowhere and do not preempt; wait for the log where the workers know better than this
	// replica.
	var preemptors []int
	if err := d.stage("park", func() (err error) { preemptors, err = d.park(ctx, b, open); return err }); err != nil {
		return err
	}
	// 3. Place the others.
	more, err := d.place(ctx, b, now, open)
	if err != nil {
		return err
	}
	// 4. Make room, when nobody who fits waits any more.
	preemptors = append(preemptors, more...)
	if len(preemptors) == 0 {
		return nil
	}
	slices.Sort(preemptors)
	return d.stage("preempt", func() error { return d.preempt(ctx, b, now, open, preemptors) })
}

// place has the pods that go to the binder scored and committed. It returns those that preempt because they fit
// nowhere after all.
func (d *driver) place(ctx context.Context, b *batch, now view, open map[int]bool) (preemptors []int, err error) {
	if len(b.goes) == 0 {
		return nil, nil
	}
	goes := slices.Sorted(maps.Keys(b.goes))
	err = d.stage("score", func() error { return d.score(ctx, b, now, open) })
	d.ran(pointScore, b, goes, err)
	if err != nil {
		return nil, d.refused(ctx, b, open, goes, "score", err)
	}
	err = d.stage("commit", func() error { preemptors, err = d.commit(ctx, b, open); return err })
	return preemptors, err
}

// giveBack makes the pods without an outcome active again.
func (d *driver) giveBack(b *batch, open map[int]bool) {
	if len(open) == 0 {
		return
	}
	d.sh.with(func(q *pending.Queue, now time.Time) {
		for i := range b.attempts {
			if open[i] {
				q.Retry(now, b.attempts[i])
			}
		}
	})
}

// stage runs a part of the cycle. The shard keeps others waiting while it does, but not if it hangs.
func (d *driver) stage(name string, run func() error) error {
	start := time.Now()
	d.s.bands.works(d.sh.number, start.Add(stalled))
	err := run()
	d.took = time.Since(start)
	d.s.metrics.stage.WithLabelValues(name).Observe(d.took.Seconds())
	return err
}

// ran measures the last stage for its pods as one of kube-scheduler's extension points.
func (d *driver) ran(point string, b *batch, pods []int, err error) {
	status := statusSuccess
	if err != nil {
		status = statusError
	}
	for _, i := range pods {
		d.s.metrics.points.WithLabelValues(point, status, b.signatureOf[i].profile).Observe(d.took.Seconds())
	}
}

// refused handles a question about pods that workers did not answer: the pods are tried again at once, but if the
// question was wrong they back off.
func (d *driver) refused(ctx context.Context, b *batch, open map[int]bool, pods []int, stage string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if rpc.TooLarge(err) {
		return d.tooLarge(ctx, b, open, stage, err)
	}
	d.s.metrics.retries.WithLabelValues(stage).Add(float64(len(pods)))
	if refused := (refusedError{}); !errors.As(err, &refused) {
		if _, asked := rpc.RetryAfter(err); asked {
			d.busy = rpc.RetryPause(err, 0)
		}
		d.log.Warn("no worker answered, trying again", "stage", stage, "pods", len(pods), "err", err)
		return nil
	}
	d.log.Error("workers refuse the request", "stage", stage, "pods", len(pods), "err", err)
	d.fail(b, open, pods, fmt.Sprintf("%s: %v", stage, err))
	return nil
}

// fail puts those of the pods that have no outcome in backoff.
func (d *driver) fail(b *batch, open map[int]bool, pods []int, message string) {
	d.sh.with(func(q *pending.Queue, now time.Time) {
		for _, i := range pods {
			if open[i] {
				q.Fail(now, b.attempts[i], message)
				d.progress++
				d.reports.add(b.attempts[i], reasonError, message, true)
				d.decided(b, i, resultError, message)
				delete(open, i)
			}
		}
	})
}

// decided measures an attempt that has placed nothing, because of what the message says.
func (d *driver) decided(b *batch, i int, result, message string) {
	b.traced[i].end(result, message)
	took := time.Since(b.popped)
	d.s.metrics.algorithm.Observe(took.Seconds())
	d.s.metrics.attempt(result, b.signatureOf[i].profile, took)
}

// filter asks the filter-workers about all signatures of the batch, and about its pods on nodes that matter by themselves.
func (d *driver) filter(ctx context.Context, b *batch, now view) error {
	first, last := d.s.directory.split(now.filters)
	subjects := make([]*filterv1.Subject, len(b.asked))
	for i, w := range b.asked {
		subjects[i] = wire.ToSubject(w.subject)
	}
	var cuts []cluster.Range
	var onNodes [][]*nodeWork
	var questions []question[*filterv1.FilterRequest, *filterv1.FilterResponse]
	for _, r := range ranges(b.length, len(first)) {
		request := &filterv1.FilterRequest{
			MinVersion: wire.ToVersion(b.least), First: int32(r.First), End: int32(r.End), Subjects: subjects,
		}
		var works []*nodeWork
		for _, p := range b.nodeWorks {
			if p.node != cluster.NoNode && r.First <= p.node && p.node < r.End {
				works = append(works, p)
				request.PodsOnNodes = append(request.PodsOnNodes, &filterv1.PodOnNode{
					Subject: wire.ToSubject(p.subject), Node: int32(p.node), Self: int32(p.self),
				})
			}
		}
		if len(subjects)+len(works) == 0 {
			continue
		}
		cuts, onNodes = append(cuts, r), append(onNodes, works)
		questions = append(questions, question[*filterv1.FilterRequest, *filterv1.FilterResponse]{
			request: request,
			span:    b.rangeSpan(d.s.cfg.Trace, "filter", r),
			call: func(ctx context.Context, conn grpc.ClientConnInterface, request *filterv1.FilterRequest) (*filterv1.FilterResponse, error) {
				return filterv1.NewFilterServiceClient(conn).Filter(ctx, request)
			},
		})
	}
	answers, err := askAll(ctx, d.s, first, last, questions)
	traceRanges(b, questions, func(i, k int) bool {
		return b.signatureOf[i].asked && b.attempts[i].RequiredNode == "" || slices.Contains(onNodes[k], b.nodeWorkOf[i])
	})
	if err != nil {
		return err
	}
	for i, answer := range answers {
		if err := b.addFilter(cuts[i], onNodes[i], answer); err != nil {
			return fmt.Errorf("range [%d, %d): %w", cuts[i].First, cuts[i].End, err)
		}
	}
	return nil
}

// addFilter merges the answer about one range; ranges come in order.
func (b *batch) addFilter(r cluster.Range, works []*nodeWork, answer *filterv1.FilterResponse) error {
	if len(answer.GetSubjects()) != len(b.asked) || len(answer.GetPodsOnNodes()) != len(works) {
		return refusedError{fmt.Errorf("answer about %d subjects and %d pods on nodes, asked for %d and %d",
			len(answer.GetSubjects()), len(answer.GetPodsOnNodes()), len(b.asked), len(works))}
	}
	b.answered(wire.Version(answer.GetVersion()))
	for i, f := range answer.GetSubjects() {
		w := b.asked[i]
		bits, err := wire.Bitmap(f.GetEligible(), min((len(f.GetEligible())+7)/8, r.Len()/64))
		if err != nil {
			return refusedError{err}
		}
		if len(bits) > 0 {
			w.eligible = w.eligible.Grow(int(r.First) + len(bits)*64)
			copy(w.eligible[r.First/64:], bits)
		}
		verdicts, err := wire.Verdicts(f.GetVerdicts())
		if err != nil {
			return refusedError{err}
		}
		w.nodes += int(f.GetNodes())
		w.feasible += int(f.GetFeasibleCount())
		w.verdicts = engine.MergeVerdicts(w.verdicts, verdicts)
	}
	for i, answered := range answer.GetPodsOnNodes() {
		verdicts, err := wire.Verdicts(answered.GetVerdicts())
		if err != nil {
			return refusedError{err}
		}
		works[i].known, works[i].feasible, works[i].verdicts = answered.GetKnown(), answered.GetFeasible(), verdicts
	}
	return nil
}

// park gives an outcome to the pods that can go nowhere, but for those that preempt, which it returns, and decides which
// go to the binder. Those that only pods on other nodes keep from going somewhere go with the pods ahead of them, which
// may be the ones they want near.
func (d *driver) park(ctx context.Context, b *batch, open map[int]bool) (preemptors []int, err error) {
	var stuck, lost []int
	for i := range b.attempts {
		switch b.outlook(i) {
		case placeable:
			b.goes[i] = true
		case hopeful:
			if len(b.goes) > 0 {
				b.goes[i] = true
			} else {
				stuck = append(stuck, i)
			}
		case hopeless:
			stuck = append(stuck, i)
		case unknown:
			lost = append(lost, i)
		}
	}
	if len(lost) > 0 {
		d.sh.with(func(q *pending.Queue, now time.Time) {
			for _, i := range lost {
				q.Await(now, b.attempts[i], b.newest)
				delete(open, i)
			}
		})
	}
	return d.shelve(ctx, b, open, stuck)
}

// shelve parks pods that fit nowhere, but for those that may preempt, which it returns.
func (d *driver) shelve(ctx context.Context, b *batch, open map[int]bool, pods []int) (preemptors []int, err error) {
	if len(pods) == 0 {
		return nil, nil
	}
	err = d.read(ctx, func(st *cluster.State) {
		d.sh.with(func(q *pending.Queue, now time.Time) {
			for _, i := range pods {
				f := d.postFilter(st, b, i)
				if f.preempts {
					preemptors = append(preemptors, i)
					continue
				}
				d.parkOne(q, now, st, b, open, i, f)
			}
		})
	})
	return preemptors, err
}

// read calls fn with the replica's state. Without one it does not: the pods are tried again. An error means that ctx
// has ended.
func (d *driver) read(ctx context.Context, fn func(*cluster.State)) error {
	err := d.s.cfg.Replica.Read(ctx, cluster.Version{}, func(st *cluster.State) error { fn(st); return nil })
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return nil
}

// parkOne parks a pod with the verdicts of the filter-workers and what has come of PostFilter, unless what was said was
// perhaps about another node.
func (d *driver) parkOne(q *pending.Queue, now time.Time, st *cluster.State, b *batch, open map[int]bool, i int, f postFilter) {
	a, parking := b.attempts[i], b.parking(i)
	if on := b.nodeWorkOf[i]; on != nil && st.Nodes.ByName(on.name) != on.node {
		return
	}
	if f.message != "" {
		parking.Message += " " + f.message
	}
	if more := engine.DevicesMessage(st, parking.Verdicts); more != "" {
		parking.Message += " " + more
	}
	parking.Resigns = f.clear
	q.Park(now, st, a, parking)
	d.progress++
	d.decided(b, i, resultUnschedulable, parking.Message)
	delete(open, i)
	if !f.started {
		d.reports.add(a, reasonUnschedulable, parking.Message, f.clear)
	}
}

// score asks the score-workers for the best nodes of the signatures that have some and a pod that goes to the binder.
func (d *driver) score(ctx context.Context, b *batch, now view, open map[int]bool) error {
	first, last := d.s.directory.split(now.scores)
	wanted := make(map[*signatureWork]cluster.Bitmap)
	own := make(map[*signatureWork]int)
	words := 0
	for i, a := range b.attempts {
		w := b.signatureOf[i]
		if !open[i] || !b.goes[i] || a.RequiredNode != "" {
			continue
		}
		own[w]++
		if own[w] > 1 || w.eligible.Count() == 0 {
			continue
		}
		wanted[w], d.next = w.sample(d.next, len(b.attempts))
		words = max(words, len(w.eligible))
	}
	if len(wanted) == 0 {
		return nil
	}
	var asked [][]*signatureWork
	var questions []question[*scorev1.ScoreRequest, *scorev1.ScoreResponse]
	for _, r := range cluster.Ranges(words*64, len(first), cluster.LeastRange) {
		request := &scorev1.ScoreRequest{MinVersion: wire.ToVersion(b.newest), First: int32(r.First), End: int32(r.End)}
		var about []*signatureWork
		for _, w := range b.asked {
			eligible := wanted[w]
			if len(eligible) <= int(r.First/64) {
				continue
			}
			part := wire.FromBitmap(eligible[r.First/64 : min(int(r.End/64), len(eligible))])
			if len(part) > 0 {
				about = append(about, w)
				request.Subjects = append(request.Subjects, &scorev1.SubjectQuery{
					Subject: wire.ToSubject(w.subject), Eligible: part, Limit: int32(d.reach.limit(own[w], len(b.attempts))),
				})
			}
		}
		if len(about) == 0 {
			continue
		}
		asked = append(asked, about)
		questions = append(questions, question[*scorev1.ScoreRequest, *scorev1.ScoreResponse]{
			request: request,
			span:    b.rangeSpan(d.s.cfg.Trace, "score", r),
			call: func(ctx context.Context, conn grpc.ClientConnInterface, request *scorev1.ScoreRequest) (*scorev1.ScoreResponse, error) {
				return scorev1.NewScoreServiceClient(conn).Score(ctx, request)
			},
		})
	}
	answers, err := askAll(ctx, d.s, first, last, questions)
	traceRanges(b, questions, func(i, k int) bool {
		return open[i] && b.goes[i] && b.attempts[i].RequiredNode == "" && slices.Contains(asked[k], b.signatureOf[i])
	})
	if err != nil {
		return err
	}
	return b.addScores(asked, answers, func(w *signatureWork) int { return d.reach.limit(own[w], len(b.attempts)) })
}

// addScores merges the answers about all ranges; limit is that of a signature.
func (b *batch) addScores(asked [][]*signatureWork, answers []*scorev1.ScoreResponse, limit func(*signatureWork) int) error {
	parts := make(map[*signatureWork][][]engine.Group)
	for i, answer := range answers {
		if len(answer.GetSubjects()) != len(asked[i]) {
			return refusedError{fmt.Errorf("answer about %d subjects, asked for %d", len(answer.GetSubjects()), len(asked[i]))}
		}
		b.answered(wire.Version(answer.GetVersion()))
		for k, c := range answer.GetSubjects() {
			groups, err := wire.Groups(c.GetGroups())
			if err != nil {
				return refusedError{err}
			}
			parts[asked[i][k]] = append(parts[asked[i][k]], groups)
		}
	}
	for w, groups := range parts {
		w.groups = engine.MergeGroups(w.seed, limit(w), groups...)
	}
	return nil
}
