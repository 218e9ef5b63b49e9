package binder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-scheduler/berth/internal/annotations"
	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/logs"
	"github.com/berth-scheduler/berth/internal/pluginhost"
	"github.com/berth-scheduler/berth/internal/replica"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/trace"
)

// term is everything a binder holds while it is active. Nothing of it outlives the term.
type term struct {
	granted
	life
	*backlog
	shardsOf  int32 // Settings.Shards
	source    source.Source
	ledger    *ledger
	feed      *replica.Feed
	evaluator *engine.Evaluator // under the ledger's lock
	// parallelism is the evaluator's.
	parallelism int
	recorder    *recorder
	// preemptions wait to be carried out; preempting counts them and those that are being carried out.
	preemptions *turns[string, preemption]
	preempting  *bound
	preparing   *preparing
	stepping    *stepping
	// bindTimeouts are Config.BindTimeouts.
	bindTimeouts map[string]time.Duration
	extenders    *extenders // nil: there are no extenders
	groups       *groups
	evicting     *bound // preemptions that are being carried out, and are not late
	events       *eventLane
	reports      *reportLane
	shards       shardGuard
	trace        *trace.Provider // nil traces nothing
}

// granted is what a binder has from etcd by being elected.
type granted struct {
	epoch    int64
	lease    <-chan struct{} // closed when the lease may have expired
	fence    coord.Cond
	confirm  func(context.Context) error           // asks etcd whether the term holds
	identity func(context.Context) (string, error) // of this Berth towards other schedulers
	record   termRecord
}

// life is how a term ends, and who waits for what it has begun.
type life struct {
	done  <-chan struct{}         // closed when the term ends, for whatever reason
	spawn func(func() error)      // runs what the term waits for when it ends
	fail  context.CancelCauseFunc // ends the term
}

// termConfig is everything a term needs.
type termConfig struct {
	Config // of its binder
	granted
	life
	shared    []string   // Service.shared
	extenders *extenders // Service.extenders
	places    int        // that namespaces share; see newBacklog
	feed      *replica.Feed
	metrics   *metrics
}

var errDeposed = errors.New("deposed: the lease may have expired")

// termConfig returns what a term is made of that this binder holds.
func (s *Service) termConfig(held *coord.Term, life life) termConfig {
	cfg := termConfig{
		Config: s.cfg,
		granted: granted{
			epoch: held.Epoch(),
			lease: held.Done(),
			fence: held.Guard(),
			confirm: func(ctx context.Context) error {
				_, _, err := s.cfg.Coord.Txn(ctx, []coord.Cond{held.Guard()}, nil)
				return err
			},
			identity: held.Identity,
			record:   held,
		},
		life:      life,
		shared:    s.shared,
		extenders: s.extenders,
		feed:      s.feed,
		metrics:   s.metrics,
	}
	cfg.Log = cfg.Log.With("epoch", held.Epoch())
	if !cfg.Source.Fenced() {
		cfg.places = places(cfg.BindWorkers)
	}
	return cfg
}

// newTerm makes a term of its parts, each of which is whole when it is made, of those before it.
func newTerm(cfg termConfig) (*term, error) {
	cfg.Log = logs.Bounded(cfg.Log)
	names := newNames(cfg.Lease, cfg.shared)
	names.host = cfg.Host
	backlog := newBacklog(cfg.MaxUnbound, cfg.places, names, cfg.metrics, cfg.Log)
	preempting := &bound{limit: cfg.Preemptions}
	preparing := newPreparing(cfg.MaxUnbound, cfg.BindWorkers)
	stepping := newStepping(cfg.MaxUnbound, cfg.now)
	failed := func(lane string) func(error) {
		return func(err error) {
			cfg.metrics.laneFailed.WithLabelValues(lane).Inc()
			cfg.Log.Warn("not written, given up", "lane", lane, "err", err)
		}
	}
	evicting := new(bound)
	events := newEventLane(cfg.EventLimit, []*bound{backlog.unbound, evicting}, cfg.metrics.laneDropped.WithLabelValues(laneEvents).Inc, failed(laneEvents))
	ledger, err := newLedger(ledgerConfig{
		epoch:    cluster.Epoch(cfg.epoch),
		settings: cfg.Settings,
		feed:     cfg.feed,
		ends:     cfg.ReserveForGroups > 0,
		unsupported: func(u source.Unsupported) {
			cfg.Log.Warn("object unsupported", "object", u.Kind+" "+u.Namespace+"/"+u.Name, "why", u.Why)
			events.add(u.Namespace, func(ctx context.Context) error { return cfg.Source.Unsupported(ctx, u) })
		},
		abandoned: cfg.fail,
	})
	if err != nil {
		return nil, err
	}
	t := &term{
		granted:     cfg.granted,
		life:        cfg.life,
		backlog:     backlog,
		shardsOf:    cfg.Settings.Shards,
		source:      cfg.Source,
		ledger:      ledger,
		feed:        cfg.feed,
		evaluator:   engine.NewEvaluator(engine.EvaluatorConfig{Parallelism: cfg.Parallelism}),
		parallelism: cfg.Parallelism,
		recorder: newRecorder(recorderConfig{
			term: cfg.record, fenced: cfg.Source.Fenced(), version: ledger.version, out: backlog.binds, move: backlog.move,
			took: func(took time.Duration) { cfg.metrics.recordSeconds.Observe(took.Seconds()) }, gather: gatherFor, log: cfg.Log,
		}),
		preemptions: newPreemptions(),
		preempting:  preempting,
		preparing:   preparing, bindTimeouts: cfg.BindTimeouts,
		stepping:  stepping,
		extenders: cfg.extenders,
		groups:    newGroups(cfg.Parallelism, cfg.ReserveForGroups),
		evicting:  evicting,
		events:    events,
		reports: newReportLane(reportLaneConfig{
			source: cfg.Source, limit: cfg.EventLimit, binds: backlog.unbound, failed: failed(laneReports), trace: cfg.Trace,
			dropped: cfg.metrics.laneDropped.WithLabelValues(laneReports).Inc,
			waits: func(r source.Report) (time.Time, bool) {
				if !preparing.waits(r) && !stepping.waits(r) {
					return time.Time{}, false
				}
				return names.waits(ledger, r)
			},
		}),
		trace: cfg.Trace,
	}
	t.recorder.prepares = t.prepares
	ledger.trail.drop = t.groups.drop
	return t, nil
}

// ended reports whether the term is over or its lease may be. It is asked where waiting for the goroutine that ends
// the term would be too late.
func (t *term) ended() bool {
	select {
	case <-t.lease:
		return true
	case <-t.done:
		return true
	default:
		return false
	}
}

// serve runs one term: take over, open the epoch, work, until ctx ends or the term is lost.
func (s *Service) serve(binder context.Context, held *coord.Term) error {
	ctx, fail := context.WithCancelCause(binder)
	defer fail(nil)
	g, ctx := errgroup.WithContext(ctx)
	t, err := newTerm(s.termConfig(held, life{done: ctx.Done(), spawn: g.Go, fail: fail}))
	if err != nil {
		return err
	}
	defer t.leaveNames(binder, held.Contested)
	if services := t.services(); services != nil {
		services.Stands(ctx, cluster.Epoch(t.epoch), t.standing)
	}
	// 1. The term dies with its lease.
	g.Go(func() error {
		select {
		case <-t.lease:
			return errDeposed
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	// Or with the source, if another binder is better off.
	g.Go(func() error {
		return s.keepContact(ctx, resignAfter, func(ctx context.Context) bool {
			contested, err := held.Contested(ctx)
			return err == nil && contested
		})
	})
	// 2. The source fills the ledger; everything it tells before Synced is older than the epoch. What others have placed as
	// long as they might is told, if the lease of the names that they have too is taken before.
	s.wait("asking who has the scheduler names")
	if err := t.claimNames(ctx); err != nil {
		fail(err)
		return g.Wait()
	}
	g.Go(func() error { return t.keepNames(ctx) })
	synced := make(chan struct{})
	g.Go(func() error { return t.watchSource(ctx, synced) })
	owners := s.cfg.Coord.WatchShards(ctx)
	// 3. Take over what earlier epochs have recorded and not finished.
	adopted, err := s.takeOver(ctx, t, synced, owners)
	if err != nil {
		fail(fmt.Errorf("take over: %w", err))
		return g.Wait()
	}
	// 4. Open the epoch.
	v := t.ledger.open()
	t.log.Info("epoch open", "version", v.String(), "adopted", len(adopted))
	// 5. Work.
	g.Go(func() error { return t.learnShards(owners) })
	g.Go(func() error {
		err := t.recorder.run(ctx)
		if errors.Is(err, coord.ErrFenced) {
			t.metrics.fenced.Inc()
		}
		return err
	})
	for _, lane := range []struct {
		workers int
		run     func(context.Context) error
	}{
		{s.cfg.BindWorkers, t.bindLane},
		{s.cfg.BindWorkers, t.prepareLane},
		{1, t.preparedLane},
		{stepWorkers, t.stepLane},
		{1, t.decidedLane},
		{1, t.activateLane},
		{1, t.hearLane},
		{1, t.noPlaceLane},
		{preemptionWorkers, t.preemptionLane},
		{1, t.noTurnLane},
		{eventWorkers, t.events.run},
		{reportWorkers, t.reports.run},
		{1, t.retryWrites},
		{1, t.reserveLane},
	} {
		for range lane.workers {
			g.Go(func() error { return lane.run(ctx) })
		}
	}
	g.Go(func() error { return t.judgeNames(ctx) })
	g.Go(func() error { return t.bindAdopted(ctx, adopted) })
	s.wait("the term has ended")
	s.term.Store(t)
	<-ctx.Done()
	s.term.Store(nil)
	s.feed.Close()
	return g.Wait()
}

// takeOver waits until the ledger is what the source has, and then assumes again what earlier epochs meant to bind.
func (s *Service) takeOver(ctx context.Context, t *term, synced <-chan struct{}, owners <-chan []coord.ShardOwner) ([]*placement, error) {
	if err := t.awaitSync(ctx, synced, s.wait); err != nil {
		return nil, err
	}
	s.wait("waiting for etcd to tell the owners of the shards")
	select {
	case now := <-owners:
		t.shards.learn(now)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	s.wait("taking over the recorded intents")
	record, err := s.cfg.Coord.ReadRecord(ctx)
	if err != nil {
		return nil, err
	}
	t.dropUnfinished(record.Unfinished)
	return t.adopt(record.Batches)
}

// dropUnfinished has parts leave the record whose unit was not recorded whole. No bind of them can have left: their pods wait as if they had never been placed. They leave etcd with
// the first record of this term: behind a version of its epoch they would count.
func (t *term) dropUnfinished(parts []coord.StoredBatch) {
	pods := 0
	for _, part := range parts {
		pods += len(part.Batch.Intents)
		t.recorder.adopt(part.Batch.ID, part.Batch.With, nil)
	}
	if len(parts) > 0 {
		t.log.Info("not taken over, for it was recorded in part only", "pods", pods)
	}
}

// bindAdopted hands the lane what was taken over.
func (t *term) bindAdopted(ctx context.Context, adopted []*placement) error {
	for _, p := range adopted {
		if t.prepares(p) {
			continue
		}
		select {
		case t.binds <- p:
		case <-ctx.Done():
			return nil
		}
	}
	t.recorder.signal() // batches of which nothing was left to bind are finished
	return nil
}

// learnShards keeps the guard of the shards at what etcd says.
func (t *term) learnShards(owners <-chan []coord.ShardOwner) error {
	for now := range owners {
		t.shards.learn(now)
	}
	return nil
}

// watchSource folds what the source tells, and closes synced when everything there was has been told.
func (t *term) watchSource(ctx context.Context, synced chan<- struct{}) error {
	isSynced := false
	err := t.source.Watch(ctx, func(e source.Event) {
		if e.Kind == source.Synced {
			if !isSynced {
				isSynced = true
				close(synced)
			}
			return
		}
		t.logEvent(&e)
		if err := t.ledger.observe(e); err != nil {
			t.fail(err)
		}
	})
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("watch source: %w", err)
	}
	return nil
}

// awaitSync waits for the source and keeps readiness honest about what it waits for.
func (t *term) awaitSync(ctx context.Context, synced <-chan struct{}, say func(string)) error {
	const loading = "loading the cluster from its source"
	say(loading)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-synced:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		if err := t.source.Ready(); err != nil {
			say(loading + ": " + err.Error())
		} else {
			say(loading)
		}
	}
}

// adoptPasses bounds how often intents are judged that did not fit: one that needs another to be placed, for an affinity, fits
// when that has been.
const adoptPasses = 4

// adopt assumes again what earlier epochs meant to bind and the source does not show yet: what of it still fits is bound, to
// the same node, so nothing is bound twice and no room is given away in between.
//
// An intent need not fit. Somebody else has taken the room, or the node is not what it was; the intents are those of an etcd
// that was restored, or of a binder that left an intent in a batch when it had given its room away; or somebody forged them.
// Such a pod is not bound there. But a binder that is deposed may have sent the bind, and it may still happen. So the pod
// keeps the room, or takes more than there is, until its bind has been withdrawn: then it waits as if it had never been
// placed. An intent that no binder can have meant is dropped at once. See decision 0019.
func (t *term) adopt(batches []coord.StoredBatch) ([]*placement, error) {
	// 1. The newest batch first: what it says is known to be later than what the others say. A pod has one intent.
	batches = slices.SortedFunc(slices.Values(batches), func(a, b coord.StoredBatch) int { return cmp.Compare(b.Batch.ID, a.Batch.ID) })
	var waiting []*placement
	seen := make(map[string]bool)
	for _, b := range batches {
		for i, in := range b.Batch.Intents {
			if !seen[in.PodUID] {
				seen[in.PodUID] = true
				waiting = append(waiting, t.recordedBefore(in, b.Batch.ID, i))
			}
		}
	}
	// They are judged without each other: it may have been told, as a nomination, where they are to go.
	if err := t.ledger.unnominate(waiting); err != nil {
		return nil, err
	}
	// 2. Each that fits takes its room before the next is judged. Those of shared names are judged in the stint that is now, if there is
	// one.
	stint, _ := t.names.now()
	var taken, refused, gone []*placement
	for pass := 0; len(waiting) > 0 && pass < adoptPasses; pass++ {
		before := len(taken)
		var err error
		waiting = slices.DeleteFunc(waiting, func(p *placement) bool {
			if err != nil {
				return false
			}
			var what adoption
			var why string
			what, why, err = t.ledger.adopt(p, t.judging, false)
			switch what {
			case nothing:
				gone = append(gone, p)
			case adopted:
				taken = append(taken, p)
			case absent:
				p.absent, p.progress = true, nil // services have not been told of it
				t.refuse(p, why)
				refused = append(refused, p)
			case foreign:
				t.drop(p, "foreign", why)
			case misfit:
				return false
			}
			return true
		})
		if err != nil {
			return nil, err
		}
		if len(taken) == before {
			break
		}
	}
	// 3. Those that do not fit are withdrawn.
	for _, p := range waiting {
		what, why, err := t.ledger.adopt(p, t.judging, true)
		switch {
		case err != nil:
			return nil, err
		case what == misfit, what == absent: // its node may have gone since it was judged
			if p.absent = what == absent; p.absent {
				p.progress = nil
			}
			t.refuse(p, why)
			refused = append(refused, p)
		case what == adopted:
			taken = append(taken, p)
		case what == nothing:
			gone = append(gone, p)
		}
	}
	// 4. Of a pod that is gone, or elsewhere, what may be under way for its claims is to come to nothing. Where a later intent contradicts that, nothing
	// was: nothing else is chosen for a claim before that is known.
	for _, p := range gone {
		if p.preparation != nil && t.ledger.unresolved(p) {
			taken = append(taken, p)
		}
	}
	// They go first. A pod whose node is not known may be placed meanwhile, and the others keep room that is not theirs.
	taken = append(refused, taken...)
	// 5. What is left of the batches?
	left := make(map[int64][]*placement, len(batches))
	for _, b := range batches {
		left[b.Batch.ID] = make([]*placement, len(b.Batch.Intents))
	}
	for _, p := range taken {
		if err := annotations.Check(p.annotations); err != nil && p.misfit == nil { // no binder has recorded that
			t.refuse(p, err.Error())
		}
		if p.shared = t.ledger.sharesPod(t.names, p.UID, p.intent().Scheduler); p.shared {
			p.stint, p.sent = stint, true // sent, for all that is known
			t.names.count(1)
		}
		if p.preparation != nil {
			t.preparing.hold(p)
			t.doubts(p, true)
		}
		if p.progress != nil && p.progress.reserves && !p.absent {
			t.stepping.stands(p)
		}
		left[p.batch][p.index] = p
	}
	for _, b := range batches {
		t.recorder.adopt(b.Batch.ID, b.Batch.With, left[b.Batch.ID])
	}
	for _, p := range taken {
		t.unbound.giveOf(t.shareOf(p.with()), -1)
	}
	return taken, nil
}

// recordedBefore returns the placement of an intent that an earlier epoch has recorded.
func (t *term) recordedBefore(in coord.Intent, batch int64, index int) *placement {
	p := &placement{
		UID: in.PodUID, Namespace: in.Namespace, Name: in.Name, choice: choice{Node: in.Node}, state: stateRecorded,
		batch: batch, index: index,
		tries: 1, // the other binder may have tried any number of times
	}
	t.ledger.read(func(*cluster.State) { p.binders = t.binders(p.UID) })
	for _, v := range in.Volumes {
		p.Volumes = append(p.Volumes, cluster.VolumeChoice{Claim: v.Claim, UID: v.ClaimUID, Volume: v.Volume})
	}
	if len(p.Volumes) > 0 {
		scheduler := cmp.Or(in.Scheduler, t.ledger.schedulerOf(p.UID))
		p.preparation = &preparation{scheduler: scheduler, timeout: t.bindTimeoutOf(scheduler)}
	}
	p.progress = t.progressOf(p.UID, p.Namespace, p.Name, p.Node, t.ledger.schedulerOf(p.UID))
	if p.chooses(pluginhost.Chosen{Annotations: in.Annotations}); len(in.Annotations) > 0 {
		p.binders = 0 // who binds pods of the profile since does not write what was chosen
	}
	return p
}

// refuse makes a placement of an earlier epoch one that is only to be withdrawn; first it has to be known what is under way for its claims.
func (t *term) refuse(p *placement, why string) {
	p.misfit = fmt.Errorf("a binder before meant to, but now: %s", why)
	if p.preparation == nil {
		t.move(p, stateWithdrawing)
	}
	t.drop(p, "misfit", why)
}

// drop says that a placement of an earlier epoch is not carried out.
func (t *term) drop(p *placement, reason, why string) {
	t.metrics.intentsDropped.WithLabelValues(reason).Inc()
	t.log.Warn("recorded intent not carried out", "pod", p.Namespace+"/"+p.Name, "node", p.Node, "reason", why)
}
