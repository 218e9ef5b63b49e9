package queue

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	otel "go.opentelemetry.io/otel/trace"

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

// workers answer about all nodes, as fanout.Workers do.
type workers interface {
	Filter(ctx context.Context, q fanout.FilterQuestion) (fanout.FilterAnswer, error)
	Score(ctx context.Context, q fanout.ScoreQuestion) (fanout.ScoreAnswer, error)
	DryRunPreemption(ctx context.Context, q fanout.DryRunQuestion) (fanout.DryRunAnswer, error)
}

// cycle is one batch on its way through filter, score and commit, with what is known of each attempt. One goroutine uses it.
type cycle struct {
	*driver // of the shard, which the cycle does not outlive
	workers workers

	group    *cluster.GroupKey // whose pods these are; nil: of none
	aside    bool              // its outcome is not waited for: see placing
	popped   time.Time
	attempts []*attempt // in queue order
	version  cluster.Version
	least    cluster.Version // what the answers have to be of, or later
	nodes    int             // that exist
	length   int             // one more than the largest index
	seed     uint64          // of ties between preemptions

	asked   []*signatureWork // those that workers are asked about, as they first appear
	onNodes []*nodeWork

	names  []string  // of the pods, if they are logged
	traced bool      // some attempt is
	span   otel.Span // if it is

	// evaluated is the oldest version of all answers, newest the newest.
	evaluated, newest cluster.Version

	progress  int             // attempts that are placed, unschedulable or in backoff
	busy      time.Duration   // how long to leave the workers alone, which have refused a question
	stillVain map[string]vain // what driver.vain becomes, of those of the batch that the binder has come to something about
	toAsk     []*question     // of pods that fit nowhere, and for which plugins of others are to look for a way
}

// run takes the batch through filter, score and commit, and then makes room for pods that fit nowhere. Pods that get no
// outcome are active again. An error means that the shard is lost or ctx has ended.
func (c *cycle) run(ctx context.Context, to workers) error {
	if c.group != nil && c.placing != nil {
		c.waitBehind(c.placing)
		return nil
	}
	c.workers = to
	c.s.metrics.batch.Observe(float64(len(c.attempts)))
	c.widen()
	c.logAttempts()
	ctx = c.trace(ctx)
	defer func() {
		if !c.aside {
			c.finish()
		}
	}()

	if c.group != nil {
		return c.placeGroup(ctx)
	}
	// 1. Where can they go?
	if c.nodes > 0 {
		if err := c.extensionPoint(pointFilter, "filter", c.attempts, func() error { return c.filter(ctx) }); err != nil {
			return c.refused(ctx, c.attempts, "filter", err)
		}
	}
	// 2. Make unschedulable the pods that can go nowhere and do not preempt; wait for the log where the workers know better
	// than this replica.
	if _, err := c.stage("unschedulable", func() error { return c.sort(ctx) }); err != nil {
		return err
	}
	// 3. Place the others.
	if err := c.place(ctx); err != nil {
		return err
	}
	if err := c.shelveBorrowers(ctx); err != nil {
		return err
	}
	// 4. Make room, when nobody who fits waits any more.
	preemptors := c.those(func(a *attempt) bool { return a.preempts })
	if len(preemptors) == 0 {
		return nil
	}
	_, err := c.stage("preempt", func() error { return c.preempt(ctx, preemptors) })
	return err
}

// finish makes the pods without an outcome active again, and ends what is remembered of the batch.
func (c *cycle) finish() {
	c.giveBack()
	c.vain = c.unsettled()
	if c.asker.counts() {
		c.asker.forget(c.settled()...)
	}
	c.endTraces()
}

// those returns the attempts that something holds for.
func (c *cycle) those(holds func(*attempt) bool) (those []*attempt) {
	for _, a := range c.attempts {
		if holds(a) {
			those = append(those, a)
		}
	}
	return those
}

// place has the pods that go to the binder scored and committed.
func (c *cycle) place(ctx context.Context) error {
	goes := c.those(func(a *attempt) bool { return a.goes })
	if len(goes) == 0 {
		return nil
	}
	if err := c.extensionPoint(pointScore, "score", goes, func() error { return c.score(ctx) }); err != nil {
		return c.refused(ctx, goes, "score", err)
	}
	_, err := c.stage("commit", func() error { return c.commit(ctx) })
	return err
}

// again notes why those of the pods that get no outcome are to be tried again.
func again(pods []*attempt, reason string) {
	for _, a := range pods {
		a.again = reason
	}
}

// giveBack makes the pods without an outcome active again, and counts them.
func (c *cycle) giveBack() {
	open := c.those(func(a *attempt) bool { return a.open })
	if len(open) == 0 {
		return
	}
	c.sh.with(func(q *pending.Queue, now time.Time) {
		for _, a := range open {
			if a.alone {
				c.alone.add(q, a.Attempt)
			}
			q.Retry(now, a.Attempt)
			c.s.metrics.retries.WithLabelValues(cmp.Or(a.again, "no_outcome")).Inc()
		}
	})
}

// stage runs a part of the cycle, and says how long it took. The shard keeps others waiting while it does, but not if it hangs.
func (c *cycle) stage(name string, run func() error) (took time.Duration, err error) {
	start := time.Now()
	c.s.floors.works(c.sh.number, start.Add(stalled))
	err = run()
	took = time.Since(start)
	c.s.metrics.stage.WithLabelValues(name).Observe(took.Seconds())
	return took, err
}

// extensionPoint is stage, measured for its pods as one of kube-scheduler's extension points.
func (c *cycle) extensionPoint(point, name string, pods []*attempt, run func() error) error {
	took, err := c.stage(name, run)
	status := statusSuccess
	if err != nil {
		status = statusError
	}
	for _, a := range pods {
		c.s.metrics.points.WithLabelValues(point, status, a.signature.profile).Observe(took.Seconds())
	}
	return err
}

// refused handles a question about pods that workers did not answer: the pods are tried again at once, but if the
// question was wrong they back off.
func (c *cycle) refused(ctx context.Context, pods []*attempt, stage string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if rpc.TooLarge(err) {
		return c.tooLarge(ctx, stage, err)
	}
	if refused := (fanout.RefusedError{}); errors.As(err, &refused) {
		c.apart(stage, err)
		return nil
	}
	again(pods, stage)
	if _, asked := rpc.RetryAfter(err); asked {
		c.busy = rpc.RetryPause(err, 0)
	}
	c.log.Warn("no worker answered, trying again", "stage", stage, "pods", len(pods), "err", err)
	return nil
}

// fail puts those of the pods that have no outcome in backoff, and ends their nominations, as kube-scheduler does with every failure.
func (c *cycle) fail(pods []*attempt, message string) { c.backOff(pods, message, true) }

// backOff puts those of the pods that have no outcome in backoff. Clear says that their nominations end.
func (c *cycle) backOff(pods []*attempt, message string, clear bool) {
	c.sh.with(func(q *pending.Queue, now time.Time) {
		for _, a := range pods {
			if a.open {
				q.Fail(now, a.Attempt, message)
				c.progress++
				c.reports.add(a.Attempt, reasonError, message, clear)
				c.decided(a, resultError, message)
				a.open = false
			}
		}
	})
}

// decided measures an attempt that has placed nothing, because of what the message says.
func (c *cycle) decided(a *attempt, result, message string) {
	a.traced.end(result, message)
	took := time.Since(c.popped)
	c.s.metrics.algorithm.Observe(took.Seconds())
	c.s.metrics.attempt(result, a.signature.profile, took)
}

// filter asks about all signatures of the batch, and about its pods on nodes that matter by themselves.
func (c *cycle) filter(ctx context.Context) error {
	q := fanout.FilterQuestion{Least: c.least, Length: c.length, Traced: c.traced}
	q.Subjects = make([]engine.Subject, 0, len(c.asked))
	for _, w := range c.asked {
		q.Subjects = append(q.Subjects, w.subject)
	}
	q.OnNodes = make([]fanout.OnNode, 0, len(c.onNodes))
	for _, p := range c.onNodes {
		q.OnNodes = append(q.OnNodes, p.OnNode)
	}
	answer, err := c.workers.Filter(ctx, q)
	c.traceCalls("filter", answer.Calls, func(a *attempt, call *fanout.Call) bool {
		return a.signature.asked && a.RequiredNode == "" ||
			slices.ContainsFunc(call.About, func(k int) bool { return c.onNodes[k] == a.onNode })
	})
	if err != nil {
		return err
	}
	c.include(answer.Versions)
	for i, w := range c.asked {
		w.Feasibility = answer.Subjects[i]
	}
	for i, p := range c.onNodes {
		p.OnNodeAnswer = answer.OnNodes[i]
	}
	return nil
}

// sort gives an outcome to the pods that can go nowhere, but for those that preempt, and decides which go to the binder.
// Those that only pods on other nodes keep from going somewhere go with the pods ahead of them, which may be the ones they
// want near.
func (c *cycle) sort(ctx context.Context) error {
	var stuck, lost []*attempt
	ahead := false // somebody goes
	for _, a := range c.attempts {
		switch c.outlook(a) {
		case placeable:
			a.goes, ahead = true, true
		case hopeful:
			if a.goes = ahead; !ahead {
				stuck = append(stuck, a)
			}
		case hopeless:
			stuck = append(stuck, a)
		case unknown:
			lost = append(lost, a)
		}
	}
	if len(lost) > 0 {
		c.sh.with(func(q *pending.Queue, now time.Time) {
			for _, a := range lost {
				q.Await(now, a.Attempt, c.newest, pending.Unresolved)
				a.open = false
			}
		})
	}
	return c.shelve(ctx, slices.DeleteFunc(stuck, (*attempt).borrows))
}

// shelveBorrowers makes unschedulable those that can go nowhere by what was said of others: behind those that are placed, as it may have to wait
// for the log.
func (c *cycle) shelveBorrowers(ctx context.Context) error {
	borrowers := c.those(func(a *attempt) bool { return a.open && !a.goes && a.borrows() })
	if len(borrowers) == 0 {
		return nil
	}
	_, err := c.stage("unschedulable", func() error { return c.shelve(ctx, borrowers) })
	return err
}

// shelve makes pods unschedulable that fit nowhere, but for those that may preempt. It is done in parts, as each is compared with all that
// has changed since its verdicts, and the log waits meanwhile.
//
// A pod of which nothing is known but what was said of another is tried again, by itself, if the two have come to differ. So is one that would be
// told what is true no more.
func (c *cycle) shelve(ctx context.Context, pods []*attempt) error {
	defer c.askPostFilters(ctx)
	var outdated []*attempt
	if slices.ContainsFunc(pods, (*attempt).borrows) {
		if err := c.catchUp(ctx); err != nil {
			return err
		}
	}
	for len(pods) > 0 {
		left := pods
		err := c.read(ctx, func(st *cluster.State) {
			c.sh.with(func(q *pending.Queue, now time.Time) {
				for enough := false; len(left) > 0 && !enough; enough = time.Since(now) >= lookFor {
					a := left[0]
					left = left[1:]
					if a.borrows() && !c.alike(q, st, a) {
						c.s.metrics.retries.WithLabelValues("signature").Inc()
						c.alone.add(q, a.Attempt)
						q.Await(now, a.Attempt, c.newest, pending.Told)
						a.open = false
						continue
					}
					if a.outdated(q, c.version) {
						outdated = append(outdated, a)
						continue
					}
					f := c.postFilter(st, a, now)
					if a.preempts = f.preempts; !a.preempts {
						c.reject(q, now, st, a, f)
					}
				}
			})
		})
		if err != nil || len(left) == len(pods) { // there is no state: they are tried again
			return err
		}
		pods = left
	}
	c.misfit(outdated, "claims", claimsMessage)
	return nil
}

// catchUp waits, for as long as the replica has its readers wait, until its state is none that an answer is of a later one than.
func (c *cycle) catchUp(ctx context.Context) error {
	err := c.s.cfg.Replica.Read(ctx, c.newest, func(*cluster.State) error { return nil })
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return nil
}

// read calls fn with the replica's state. Without one it does not: the pods are tried again. An error means that ctx
// has ended.
func (c *cycle) read(ctx context.Context, fn func(*cluster.State)) error {
	err := c.s.cfg.Replica.Read(ctx, cluster.Version{}, func(st *cluster.State) error { fn(st); return nil })
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return nil
}

// reject makes a pod unschedulable, with the verdicts of the filter-workers and what has come of PostFilter,
// unless what was said was perhaps about another node, or plugins of others are to be asked yet: see askPostFilters.
func (c *cycle) reject(q *pending.Queue, now time.Time, st *cluster.State, a *attempt, f postFilter) {
	if on := a.onNode; on != nil && st.Nodes.ByName(on.name) != on.Node {
		return
	}
	if len(f.asks) > 0 {
		c.leaveNowhere(q, a, f)
		return
	}
	diagnosis := c.diagnosis(a)
	message := c.rejectAs(q, now, st, a.Attempt, diagnosis, f)
	c.progress++
	c.decided(a, resultUnschedulable, message)
	a.open = false
}

// rejectAs makes a pod unschedulable that is in flight, and returns what is said of it.
func (d *driver) rejectAs(q *pending.Queue, now time.Time, st *cluster.State, a pending.Attempt, diagnosis pending.Diagnosis, f postFilter) string {
	if f.message != "" {
		diagnosis.Message += " " + f.message
	}
	if more := engine.Besides(st, diagnosis.Verdicts); more != "" {
		diagnosis.Message += " " + more
	}
	diagnosis.Resigns, diagnosis.Keepers, diagnosis.Detaching, diagnosis.Asked = f.clear && !f.gaveUp, f.keepers, f.detaching, f.asked
	q.Reject(now, st, a, diagnosis)
	if !f.started {
		d.reports.add(a, reasonUnschedulable, diagnosis.Message, f.clear)
	}
	return diagnosis.Message
}

// score asks for the best nodes of the signatures that have some and a pod that goes to the binder.
func (c *cycle) score(ctx context.Context) error {
	wanted := make(map[*signatureWork]cluster.Bitmap)
	own := make(map[*signatureWork]int)
	for _, a := range c.attempts {
		w := a.signature
		if !a.open || !a.goes || a.RequiredNode != "" {
			continue
		}
		own[w]++
		if own[w] > 1 || w.Eligible.Count() == 0 {
			continue
		}
		wanted[w], c.next = w.sample(c.next, len(c.attempts))
	}
	if len(wanted) == 0 {
		return nil
	}
	q := fanout.ScoreQuestion{Least: c.newest, Traced: c.traced}
	var asked []*signatureWork
	for _, w := range c.asked {
		if eligible := wanted[w]; eligible != nil {
			asked = append(asked, w)
			q.Subjects = append(q.Subjects, fanout.ScoreSubject{
				Subject: w.subject, Eligible: eligible, Limit: c.reach.limit(own[w], len(c.attempts)), Seed: w.seed,
			})
		}
	}
	answer, err := c.workers.Score(ctx, q)
	c.traceCalls("score", answer.Calls, func(a *attempt, call *fanout.Call) bool {
		return a.open && a.goes && a.RequiredNode == "" &&
			slices.ContainsFunc(call.About, func(k int) bool { return asked[k] == a.signature })
	})
	if err != nil {
		return err
	}
	c.include(answer.Versions)
	for i, w := range asked {
		w.groups = answer.Groups[i]
	}
	return nil
}
