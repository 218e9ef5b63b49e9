package binder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/pluginhost"
	"github.com/berth-scheduler/berth/internal/source"
)

const (
	// stepWorkers tell plugin services of placements: of each service no more is under way than the lane's turns let.
	stepWorkers = 8
	// decidedAnyway is how often it is looked what has become of placements that wait for plugin services though none has said anything: time is up for some. toldAnyway is how often it is looked what the
	// source has told of them.
	decidedAnyway = 100 * time.Millisecond
	toldAnyway    = time.Second
	// stuckStep is how long plugin services take until others do not give way any more to those who wait for them.
	stuckStep = 30 * time.Second
	// mostTold is of how many binds services may be told that they have not answered: with more, who has not answered many is begun anew.
	mostTold = 10_000
)

// stepping are the placements that wait for plugin services to say what is to become of them: whether they may be, before they are recorded, or that all is done which comes before their binds. They do not
// count as unbound, for that may take minutes, but against a bound of their own, from the commit on.
type stepping struct {
	bound *bound // by scheduler name; as many as may be unbound
	tasks *turns[string, stepTask]
	wake  chan struct{} // holds a value if some service has said something
	now   func() time.Time
	told  *bound // binds of which services are told, and which they have not answered, by scheduler name

	mu      sync.Mutex
	waiting []*placement
	of      map[string]*placement // by the pod's uid: those that wait, or are about to
	stand   map[string]*placement // by the pod's uid: those that are reserved, and not bound
}

// stepTask is what is to be done with plugin services about a placement that the task owns. An error ends the term.
type stepTask func(context.Context) error

// progress is how far a placement is with plugin services. It belongs to who has the placement.
type progress struct {
	told     pluginhost.Placement
	reserves bool // before it is recorded
	preBinds bool // and has not yet done all of it
	behind   int  // the services that have done it
	wait     *pluginhost.Wait
	counted  bool      // against stepping.bound
	since    time.Time // when it was first counted
	stuck    bool      // as long as it counts, it does so as stuck
	expected bool      // it has been told which node the pod is to go to
	acts     bool      // a service may be doing what it does before the bind, of a shared name
	waits    time.Time // since when it waits for a permit

	// These are stepping.mu's.
	canceled bool          // the pod is preempted
	over     chan struct{} // closed when it has come to an end; nil: it does not wait
}

// stepError is why an attempt ends that plugins have not let come about, as kube-scheduler words it.
type stepError struct{ reason, text string }

func (e stepError) Error() string { return e.text }

// preempted returns why a placement is given back whose pod is preempted.
func (p *placement) preempted() stepError {
	if plugin := p.progress.wait.Plugin(); plugin != "" && p.state == statePreBinding {
		return stepError{reasonError, fmt.Sprintf("running PreBind plugin %q: preempted", plugin)}
	}
	return stepError{reasonError, "waiting on permit for pod: preempted"}
}

// refusedStep returns why a placement is given back with which a service has done what err says.
func (p *placement) refusedStep(err error) stepError {
	var no pluginhost.Rejection
	switch {
	case !errors.As(err, &no):
		return stepError{reasonError, err.Error()}
	case p.state == statePreBinding:
		return stepError{reasonUnschedulable, no.Reason}
	}
	return stepError{reasonUnschedulable, fmt.Sprintf("0/1 nodes are available: 1 %s.", no.Reason)} // as of a pod that fits nowhere, on the one node that there was for it
}

func newStepping(limit int, now func() time.Time) *stepping {
	if now == nil {
		now = time.Now
	}
	return &stepping{
		now:   now,
		bound: &bound{limit: limit}, tasks: newTurns[stepTask](stepWorkers), wake: make(chan struct{}, 1), told: &bound{limit: mostTold}, of: make(map[string]*placement),
		stand: make(map[string]*placement),
	}
}

// signal has it looked what has become of placements. It never blocks.
func (s *stepping) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// enter says that a placement is about to wait: from here on it can be canceled.
func (s *stepping) enter(p *placement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.progress.over == nil {
		p.progress.over = make(chan struct{})
	}
	s.of[p.UID] = p
}

// await has a placement wait.
func (s *stepping) await(p *placement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = append(s.waiting, p)
	s.signal()
}

// stands says that a placement is reserved: services are told of it again when they are begun anew.
func (s *stepping) stands(p *placement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stand[p.UID] = p
}

// fall ends stands.
func (s *stepping) fall(p *placement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stand[p.UID] == p {
		delete(s.stand, p.UID)
	}
}

// standing returns all that stand.
func (t *term) standing() []pluginhost.Standing {
	t.stepping.mu.Lock()
	defer t.stepping.mu.Unlock()
	var out []pluginhost.Standing
	for _, p := range t.stepping.stand {
		out = append(out, pluginhost.Standing{Placement: p.progress.told, Pod: t.podOf(p)})
	}
	return out
}

// take takes all that wait.
func (s *stepping) take() []*placement {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := s.waiting
	s.waiting = nil
	return waiting
}

// leave says that a placement does not wait any more. False: it has been canceled, and is not to go on.
func (s *stepping) leave(p *placement) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.progress.over == nil {
		return true
	}
	if s.of[p.UID] == p {
		delete(s.of, p.UID)
	}
	return !p.progress.canceled
}

// end says that a placement has come to an end.
func (s *stepping) end(p *placement) {
	s.leave(p)
	s.fall(p)
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.progress.over != nil {
		close(p.progress.over)
		p.progress.over = nil
	}
}

// cancel is preparing.cancel of a placement that waits for plugin services.
func (s *stepping) cancel(uid, node string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.of[uid]
	if p == nil || p.Node != node {
		return nil
	}
	p.progress.canceled = true
	s.signal()
	return p.progress.over
}

// spare is preparing.spare.
func (s *stepping) spare(uid, node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.of[uid]; p != nil && p.Node == node {
		p.progress.canceled = false
	}
}

func (s *stepping) isCanceled(p *placement) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.progress.canceled
}

// waits reports whether a report that a pod is placed is of one that waits for plugin services still.
func (s *stepping) waits(r source.Report) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[r.UID] != nil
}

// services returns the plugin services, nil if there are none.
func (t *term) services() *pluginhost.Host {
	if t.extenders == nil {
		return nil
	}
	return t.extenders.services
}

// progressOf returns what plugin services have to do with a placement of a pod of a scheduler name, nil if nothing.
func (t *term) progressOf(uid, namespace, name, node, schedulerName string) *progress {
	services := t.services()
	if services == nil || !services.Places(schedulerName) {
		return nil
	}
	return &progress{
		told:     pluginhost.Placement{UID: uid, Namespace: namespace, Name: name, Node: node, SchedulerName: schedulerName},
		reserves: services.Reserves(schedulerName), preBinds: services.PreBinds(schedulerName),
	}
}

// follow returns what plugin services have to do with a pod that is to be placed, and counts it against the bound of those; nil if nothing. False: there are as many as may be.
func (t *term) follow(row *cluster.PodRow) (*progress, bool) {
	name := t.ledger.state.Class(row.Class).Spec.SchedulerName
	p := t.progressOf(row.UID, row.Namespace, row.Name, "", name)
	if p == nil || !p.reserves && !p.preBinds {
		return p, true
	}
	if !t.stepping.bound.takeOf(map[string]int{name: 1}) {
		return nil, false
	}
	p.counted, p.since = true, t.stepping.now()
	return p, true
}

// unfollow says that a pod is not placed after all.
func (t *term) unfollow(p *progress) {
	if p == nil || !p.counted {
		return
	}
	p.counted = false
	if p.stuck {
		p.stuck = false
		t.stepping.bound.addStuck(-1)
	}
	t.stepping.bound.giveOf(p.told.SchedulerName, 1)
}

// podOf reads the pod of a placement for plugin services.
func (t *term) podOf(p *placement) pluginhost.PodOf {
	return t.lastNamed(p.UID, p.Namespace, p.Name)
}

// lastNamed is podNamed, as the source has told the pod last, which the state is no newer than: of the API server if the source does not keep it.
func (t *term) lastNamed(uid, namespace, name string) pluginhost.PodOf {
	return func(ctx context.Context) (*corev1.Pod, error) {
		if last := t.extenders.objects.LastPod(namespace, name); last != nil && string(last.UID) == uid {
			return last, nil
		}
		return t.podNamed(uid, namespace, name)(ctx)
	}
}

// podNamed reads a pod for plugin services of the API server: as new as what they may have heard of it by themselves.
func (t *term) podNamed(uid, namespace, name string) pluginhost.PodOf {
	return func(ctx context.Context) (*corev1.Pod, error) {
		object, err := t.object(ctx, namespace, name)
		switch {
		case err != nil:
			return nil, err
		case object == nil || string(object.UID) != uid:
			return nil, pluginhost.ErrPodGone
		}
		object.ManagedFields = nil
		return object, nil
	}
}

// chooses takes up what plugins have chosen for the pod. It comes before anybody else knows of the placement.
func (p *placement) chooses(chosen pluginhost.Chosen) {
	if p.annotations = chosen.Annotations; len(chosen.Annotations) == 0 {
		return
	}
	if written, err := json.Marshal(chosen.Annotations); err == nil { // there is nothing in it that could not be
		p.recorded = len(written) + len(`"1000":,`)
	}
	if p.progress != nil {
		p.progress.told.Chosen = chosen
	}
}

// mayAnnotate returns why what was chosen for a pod is not written with its bind, nil if it is.
func (p *placement) mayAnnotate() error {
	if len(p.annotations) > 0 && p.binders != 0 {
		return errors.New("plugins have chosen annotations for the pod, which the extender or the plugin that binds it does not write: configure one or the other")
	}
	return nil
}

// permitted has a placement recorded that may be.
func (t *term) permitted(p *placement) {
	if !p.progress.preBinds {
		t.uncountStep(p)
	}
	t.recorder.addOne(p)
}

// expectStep tells which node a pod is to go to of which it is not known at once what becomes: as [term.expect].
func (t *term) expectStep(p *placement) {
	if !p.progress.expected && !p.absent {
		p.progress.expected = t.reports.add(source.Report{UID: p.UID, Namespace: p.Namespace, Name: p.Name, Nominate: true, Nominated: p.Node, Assumed: true})
	}
}

// preBinds takes a recorded placement for which plugin services have something to do before its bind. False: they have not.
func (t *term) preBinds(p *placement) bool {
	if p.progress == nil || !p.progress.preBinds || p.misfit != nil || p.state != stateRecorded || p.shared && !t.names.lasts(p.stint) {
		return false // it is withdrawn, or put aside
	}
	if !t.move(p, statePreBinding) {
		return true // it has another owner
	}
	if !p.progress.counted { // it was taken over, or put aside
		p.progress.counted, p.progress.since = true, t.stepping.now()
		t.stepping.bound.giveOf(p.progress.told.SchedulerName, -1)
	}
	t.stepping.enter(p)
	t.preBindNext(p)
	return true
}

// preBindNext has the next plugin service do what it does before a bind.
func (t *term) preBindNext(p *placement) {
	t.stepping.tasks.add(p.progress.told.SchedulerName, func(ctx context.Context) error {
		if t.ended() {
			return nil
		}
		within, done := t.within(ctx)
		defer done()
		t.acts(p, true)
		wait, behind, err := t.services().PreBind(within, cluster.Epoch(t.epoch), p.progress.told, t.podOf(p), p.progress.behind, t.stepping.signal)
		if within.Err() != nil {
			return nil
		}
		p.progress.behind, p.progress.wait = behind, wait
		if err != nil {
			return t.stepsFail(ctx, p, p.refusedStep(err))
		}
		t.stepping.await(p)
		return nil
	})
}

// acts notes whether a service may be doing what it does before a bind. The lease of a shared name is not given up meanwhile.
func (t *term) acts(p *placement, is bool) {
	if p.progress.acts == is || !p.shared {
		return
	}
	p.progress.acts = is
	t.names.count(map[bool]int{true: 1, false: -1}[is])
}

// stepLane tells plugin services of placements. Any number may run. An error ends the term.
func (t *term) stepLane(ctx context.Context) error {
	return work(ctx, t.stepping.tasks, t.stepping.tasks.next, func(ctx context.Context, do stepTask) error { return do(ctx) })
}

// decidedLane has placements go on of which plugin services have said what becomes of them. An error ends the term.
func (t *term) decidedLane(ctx context.Context) error {
	tick := time.NewTicker(decidedAnyway)
	defer tick.Stop()
	var looked time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-t.stepping.wake:
		}
		anyway := time.Since(looked) >= toldAnyway
		if anyway {
			looked = time.Now()
		}
		for rest := t.stepping.take(); len(rest) > 0; {
			n := min(len(rest), preparedAtOnce)
			var told []source.Result
			if anyway {
				told = t.ledger.told(rest[:n])
			}
			for k, p := range rest[:n] {
				is := source.BindUnknown
				if anyway {
					is = told[k]
				}
				if err := t.goOnSteps(ctx, p, is, t.stepping.now()); err != nil {
					return err
				}
			}
			rest = rest[n:]
		}
	}
}

// goOnSteps does what is next for a placement that waits for plugin services.
func (t *term) goOnSteps(ctx context.Context, p *placement, told source.Result, now time.Time) error {
	decided, err := true, error(nil)
	if p.progress.wait != nil {
		decided, err = p.progress.wait.Decided(now)
	}
	switch {
	case t.ended(): // they are the next binder's, by their intents; of those that are not recorded, nobody knows
		return nil
	case told != source.BindUnknown:
		t.waited(p, permitRejected, now) // as kube-scheduler rejects a waiting pod that is gone
		t.acts(p, false)
		t.stepping.leave(p)
		return t.settle(p, source.Outcome{Result: told, Err: errTold})
	case t.stepping.isCanceled(p), p.preparation != nil && p.state == statePermitting && t.preparing.isCanceled(p):
		t.waited(p, permitFailed, now)
		return t.stepsFail(ctx, p, p.preempted())
	case err != nil:
		why := p.refusedStep(err)
		t.waited(p, map[bool]string{true: permitRejected, false: permitFailed}[why.reason == reasonUnschedulable], now)
		return t.stepsFail(ctx, p, why)
	case !decided:
		if p.progress.counted && !p.progress.stuck && now.Sub(p.progress.since) >= stuckStep {
			p.progress.stuck = true
			t.stepping.bound.addStuck(1)
		}
		t.expectStep(p)
		t.stepping.keep(p)
		return nil
	case p.state == statePreBinding && p.shared && !t.names.lasts(p.stint):
		if !t.stepping.leave(p) {
			return t.stepsFail(ctx, p, p.preempted())
		}
		t.acts(p, false)
		t.uncountStep(p)
		p.progress.expected = false
		if t.move(p, stateAside) {
			t.names.putAside(p)
		}
		return nil
	case p.state == statePreBinding && p.progress.wait != nil:
		p.progress.wait = nil
		t.preBindNext(p)
		return nil
	case !t.stepping.leave(p): // canceled meanwhile
		return t.stepsFail(ctx, p, p.preempted())
	}
	// All is said: it goes on.
	if p.state == statePermitting {
		t.waited(p, permitAllowed, now)
		if t.move(p, stateAssumed) {
			t.permitted(p)
		}
		return nil
	}
	t.acts(p, false)
	t.uncountStep(p)
	p.progress.preBinds = false
	if t.move(p, stateRecorded) {
		t.after(ctx, 0, []*placement{p})
	}
	return nil
}

// What has become of pods that waited for a permit, in kube-scheduler's codes.
const (
	permitAllowed  = "Success"
	permitRejected = "Unschedulable"
	permitFailed   = "Error"
)

// waited measures how long a placement has waited for a permit, if that is what it waits for.
func (t *term) waited(p *placement, result string, now time.Time) {
	if p.state == statePermitting {
		t.metrics.permitWait.WithLabelValues(result).Observe(now.Sub(p.progress.waits).Seconds())
	}
}

// stepsFail gives a placement back that plugin services have not let come about. If a bind may have been sent, it is withdrawn first.
func (t *term) stepsFail(ctx context.Context, p *placement, why stepError) error {
	t.acts(p, false)
	t.stepping.leave(p)
	if p.state == statePreBinding && p.tries > 0 {
		t.uncountStep(p)
		if t.move(p, stateWithdrawing) {
			p.misfit = why
			t.after(ctx, 0, []*placement{p})
		}
		return nil
	}
	return t.settle(p, source.Outcome{Result: source.BindRefused, Err: why})
}

// uncountStep says that a placement is not among those that wait for plugin services any more.
func (t *term) uncountStep(p *placement) { t.unfollow(p.progress) }

// keep has a placement wait on, of which nothing new is known.
func (s *stepping) keep(p *placement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = append(s.waiting, p)
}

// unreserve has plugin services take back what they have done for a placement that does not come about, and then calls then, which hears whether they have.
func (t *term) unreserve(p *placement, then func(ctx context.Context, confirmed bool) error) {
	told := p.progress.told
	t.stepping.tasks.add(told.SchedulerName, func(ctx context.Context) error {
		within, done := t.within(ctx)
		defer done()
		confirmed := t.services().Unreserve(within, told)
		if within.Err() != nil { // of what is recorded, the next binder knows
			return nil
		}
		return then(ctx, confirmed)
	})
}

// tellReleased has plugin services take back what they have done for a placement whose pod is gone, or elsewhere.
func (t *term) tellReleased(p *placement) {
	if p.progress != nil {
		t.unreserve(p, func(context.Context, bool) error { return nil })
	}
}

// tellBound tells plugin services that a placement is bound. With more that have had no answer than may be, they are begun anew.
func (t *term) tellBound(p *placement) {
	if p.progress == nil {
		return
	}
	told := p.progress.told
	give := func() { t.stepping.told.giveOf(told.SchedulerName, 1) }
	if !t.stepping.told.takeOf(map[string]int{told.SchedulerName: 1}) {
		t.services().Hangs(told.SchedulerName)
		give = func() {}
	}
	t.stepping.tasks.add("bound/"+told.SchedulerName, func(ctx context.Context) error { // no scheduler name has a slash: what is to be taken back does not wait for these
		within, done := t.within(ctx)
		defer done()
		t.services().Bound(within, cluster.Epoch(t.epoch), told, give)
		return nil
	})
}
