package queue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/services/queue/fanout"
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
func (d *driver) cycle(ctx context.Context, b *batch, to workers) error {
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
		err := d.stage("filter", func() error { return d.filter(ctx, b, to) })
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
	more, err := d.place(ctx, b, to, open)
	if err != nil {
		return err
	}
	// 4. Make room, when nobody who fits waits any more.
	preemptors = append(preemptors, more...)
	if len(preemptors) == 0 {
		return nil
	}
	slices.Sort(preemptors)
	return d.stage("preempt", func() error { return d.preempt(ctx, b, to, open, preemptors) })
}

// place has the pods that go to the binder scored and committed. It returns those that preempt because they fit
// nowhere after all.
func (d *driver) place(ctx context.Context, b *batch, to workers, open map[int]bool) (preemptors []int, err error) {
	if len(b.goes) == 0 {
		return nil, nil
	}
	goes := slices.Sorted(maps.Keys(b.goes))
	err = d.stage("score", func() error { return d.score(ctx, b, to, open) })
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
	if refused := (fanout.RefusedError{}); !errors.As(err, &refused) {
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

// workers answer about all nodes, as fanout.Workers do.
type workers interface {
	Filter(ctx context.Context, q fanout.FilterQuestion) (fanout.FilterAnswer, error)
	Score(ctx context.Context, q fanout.ScoreQuestion) (fanout.ScoreAnswer, error)
	DryRunPreemption(ctx context.Context, q fanout.DryRunQuestion) (fanout.DryRunAnswer, error)
}

// filter asks about all signatures of the batch, and about its pods on nodes that matter by themselves.
func (d *driver) filter(ctx context.Context, b *batch, to workers) error {
	q := fanout.FilterQuestion{Least: b.least, Length: b.length, Traced: len(b.traced) > 0}
	q.Subjects = make([]engine.Subject, 0, len(b.asked))
	for _, w := range b.asked {
		q.Subjects = append(q.Subjects, w.subject)
	}
	q.OnNodes = make([]fanout.OnNode, 0, len(b.nodeWorks))
	for _, p := range b.nodeWorks {
		q.OnNodes = append(q.OnNodes, p.OnNode)
	}
	answer, err := to.Filter(ctx, q)
	b.traceCalls("filter", answer.Calls, func(i int, c *fanout.Call) bool {
		return b.signatureOf[i].asked && b.attempts[i].RequiredNode == "" ||
			slices.ContainsFunc(c.About, func(k int) bool { return b.nodeWorks[k] == b.nodeWorkOf[i] })
	})
	if err != nil {
		return err
	}
	b.answered(answer.Versions)
	for i, w := range b.asked {
		w.Feasibility = answer.Subjects[i]
	}
	for i, p := range b.nodeWorks {
		p.OnNodeAnswer = answer.OnNodes[i]
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
	if on := b.nodeWorkOf[i]; on != nil && st.Nodes.ByName(on.name) != on.Node {
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

// score asks for the best nodes of the signatures that have some and a pod that goes to the binder.
func (d *driver) score(ctx context.Context, b *batch, to workers, open map[int]bool) error {
	wanted := make(map[*signatureWork]cluster.Bitmap)
	own := make(map[*signatureWork]int)
	for i, a := range b.attempts {
		w := b.signatureOf[i]
		if !open[i] || !b.goes[i] || a.RequiredNode != "" {
			continue
		}
		own[w]++
		if own[w] > 1 || w.Eligible.Count() == 0 {
			continue
		}
		wanted[w], d.next = w.sample(d.next, len(b.attempts))
	}
	if len(wanted) == 0 {
		return nil
	}
	q := fanout.ScoreQuestion{Least: b.newest, Traced: len(b.traced) > 0}
	var asked []*signatureWork
	for _, w := range b.asked {
		if eligible := wanted[w]; eligible != nil {
			asked = append(asked, w)
			q.Subjects = append(q.Subjects, fanout.ScoreSubject{
				Subject: w.subject, Eligible: eligible, Limit: d.reach.limit(own[w], len(b.attempts)), Seed: w.seed,
			})
		}
	}
	answer, err := to.Score(ctx, q)
	b.traceCalls("score", answer.Calls, func(i int, c *fanout.Call) bool {
		return open[i] && b.goes[i] && b.attempts[i].RequiredNode == "" &&
			slices.ContainsFunc(c.About, func(k int) bool { return asked[k] == b.signatureOf[i] })
	})
	if err != nil {
		return err
	}
	b.answered(answer.Versions)
	for i, w := range asked {
		w.groups = answer.Groups[i]
	}
	return nil
}
