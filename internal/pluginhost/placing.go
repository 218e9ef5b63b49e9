package pluginhost

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/berth-scheduler/berth/internal/annotations"
	"github.com/berth-scheduler/berth/internal/cluster"
)

// step is what plugins do about a placement.
type step int

const (
	reserve step = iota
	unreserve
	permit
	preBind
	postBind
	bind
	preEnqueue
	queueSort
	steps
)

// ofQueue reports whether a step is about a pod that has no node yet, and of no placement.
func (s step) ofQueue() bool { return s == preEnqueue || s == queueSort }

func (s step) String() string {
	return [steps]string{"reserve", "unreserve", "permit", "pre_bind", "post_bind", "bind", "pre_enqueue", "queue_sort"}[s]
}

// ErrPodGone is what a [PodOf] returns of a pod that is not there any more.
var ErrPodGone = errors.New("there is no such pod any more")

// Placement is a pod and the node that it was given.
type Placement struct {
	UID, Namespace, Name, SchedulerName, Node string
	Chosen

	stands bool // with reserve: what was chosen for it before is not chosen again
}

// Chosen is what plugins have chosen for a pod when it was reserved.
type Chosen struct {
	Annotations map[string]string // nobody changes it
	by          Set               // the services that have, in this term; of others nobody knows
}

// adds returns what is chosen if a service chooses annotations, too. An error says that another one has chosen otherwise.
func (c Chosen) adds(service *service, at int, chosen map[string]string) (Chosen, error) {
	if len(chosen) == 0 {
		return c, nil
	}
	all := maps.Clone(c.Annotations)
	if all == nil {
		all = make(map[string]string, len(chosen))
	}
	for _, name := range slices.Sorted(maps.Keys(chosen)) {
		if is, ok := all[name]; ok && is != chosen[name] {
			return c, errStep(fmt.Sprintf("plugin service %q chooses annotation %q of the pod, which another plugin has chosen with another value", service.Name, name))
		}
		all[name] = chosen[name]
	}
	if err := annotations.Check(all); err != nil {
		return c, errStep(fmt.Sprintf("plugin service %q, and others: %v", service.Name, err))
	}
	return Chosen{all, c.by | 1<<at}, nil
}

// Reserves reports whether services are to be told where a pod of a scheduler name goes before that is recorded.
func (h *Host) Reserves(schedulerName string) bool {
	return slices.ContainsFunc(h.uses[schedulerName], func(u use) bool { return u.reserves() })
}

// PreBinds reports whether services have something to do before the bind of a pod of a scheduler name.
func (h *Host) PreBinds(schedulerName string) bool {
	return slices.ContainsFunc(h.uses[schedulerName], func(u use) bool { return len(u.steps[preBind]) > 0 })
}

// Binds returns the services that bind pods of a scheduler name.
func (h *Host) Binds(schedulerName string) (set Set) {
	if _, any := h.binds[schedulerName]; !any {
		return 0
	}
	for _, u := range h.uses[schedulerName] {
		if len(u.steps[bind]) > 0 {
			set |= 1 << u.service
		}
	}
	return set
}

// Places reports whether services have anything to do with placements of pods of a scheduler name.
func (h *Host) Places(schedulerName string) bool {
	return slices.ContainsFunc(h.uses[schedulerName], func(u use) bool { return u.places() })
}

// reserves reports whether it is told of placements before they are recorded: also if it only permits.
func (u *use) reserves() bool {
	return len(u.steps[reserve])+len(u.steps[permit]) > 0 || u.follows && u.places()
}

func (u *use) places() bool {
	for at, plugins := range u.steps {
		if len(plugins) > 0 && !step(at).ofQueue() {
			return true
		}
	}
	return false
}

// takes reports whether a service has something to do with placements of some profile.
func (s *service) takes() bool {
	return slices.ContainsFunc(s.used, func(u use) bool { return u.places() })
}

// BeginPlacing has services ready that have a say in whether a pod of a scheduler name may be placed: they know of what stands. Errors are as of Reserve.
func (h *Host) BeginPlacing(ctx context.Context, epoch cluster.Epoch, schedulerName string) error {
	for _, u := range h.inOrder(schedulerName, reserve) {
		s := h.services[u.service]
		_, err := s.beginPlacing(ctx, epoch)
		if err := s.excused(ctx, err, nil); err != nil {
			return err
		}
	}
	return nil
}

// inOrder returns the uses of services that a profile has at a step, in the order of the first plugin of each there. Those that only permit reserve too, as [use.reserves] has it: they are told of the placement.
func (h *Host) inOrder(schedulerName string, at step) []*use {
	uses := h.uses[schedulerName]
	var out []*use
	for i := range uses {
		if u := &uses[i]; len(u.steps[at]) > 0 || at == reserve && u.reserves() {
			out = append(out, u)
		}
	}
	slices.SortStableFunc(out, func(a, b *use) int { return cmp.Compare(a.first[at], b.first[at]) })
	return out
}

// Reserve has services note that a pod is to go to a node, where it is placed already in a state of that epoch, and returns what they have chosen for it. A Rejection says that a plugin does not let it, another error that
// one has failed. Then Unreserve is called.
func (h *Host) Reserve(ctx context.Context, epoch cluster.Epoch, p Placement, pod PodOf) (chosen Chosen, err error) {
	for _, u := range h.inOrder(p.SchedulerName, reserve) {
		s := h.services[u.service]
		_, chosen, err := s.reserve(ctx, epoch, u, p, pod)
		if p.Chosen, err = h.chosen(ctx, u, p, chosen, err); err != nil {
			return Chosen{}, err
		}
	}
	return p.Chosen, nil
}

// BeginReserve begins what Reserve does. Whoever has begun it calls await, which returns what Reserve does, before the next one. Ahead: services may be asked about the next pod before that, for they answer as if this one were reserved, or had not been to be if that fails. Else nothing may be asked
// before await has returned.
func (h *Host) BeginReserve(ctx context.Context, epoch cluster.Epoch, p Placement, pod PodOf) (await func() (Chosen, error), ahead bool) {
	uses := h.inOrder(p.SchedulerName, reserve)
	others := func(u use) bool { return u.judges() && u.service != uses[0].service }
	if len(uses) != 1 || len(h.inOrder(p.SchedulerName, permit)) > 0 || slices.ContainsFunc(h.uses[p.SchedulerName], others) { // there would be several to wait for, one after the other, or who is asked does not wait
		return func() (Chosen, error) { return h.Reserve(ctx, epoch, p, pod) }, false
	}
	u := uses[0]
	s := h.services[u.service]
	is, c, err := s.sendReserve(ctx, epoch, u, p, pod)
	late := func() bool { return false }
	if err == nil { // what is asked behind it waits for it as long, and nobody looks whether it is late meanwhile
		late = time.AfterFunc(s.Timeout, func() { _ = is.late(c, s.Timeout) }).Stop
	}
	return func() (Chosen, error) {
		defer late()
		var chosen map[string]string
		if err == nil {
			chosen, err = s.awaitReserve(ctx, is, c, p)
		}
		return h.chosen(ctx, u, p, chosen, err)
	}, err == nil && is.orders && is.answered()
}

// chosen returns what is chosen for a pod once a service has reserved it, or failed to.
func (h *Host) chosen(ctx context.Context, u *use, p Placement, chosen map[string]string, err error) (Chosen, error) {
	s := h.services[u.service]
	if err := s.excused(ctx, err, u.steps[reserve]); err != nil {
		return Chosen{}, err
	}
	return p.Chosen.adds(s, u.service, chosen)
}

// Permit asks services whether a placement that is reserved may be. Nil: it may, and else it waits, and wake is called when there is something new. Errors are as of Reserve.
func (h *Host) Permit(ctx context.Context, epoch cluster.Epoch, p Placement, wake func()) (*Wait, error) {
	w := new(Wait)
	for _, u := range h.inOrder(p.SchedulerName, reserve) { // who has been begun anew meanwhile knows nothing of it
		s := h.services[u.service]
		if is := s.settled(ctx); is == nil || !is.isReserved(p.UID) {
			err := fmt.Errorf("%w since the pod was reserved", errEnded)
			if p.by&(1<<u.service) != 0 { // what it has chosen it may choose for others by now, ignorable or not
				return nil, fmt.Errorf("plugin service %q: %w", s.Name, err)
			}
			if err := s.excused(ctx, err, nil); err != nil {
				return nil, err
			}
		}
	}
	for _, u := range h.inOrder(p.SchedulerName, permit) {
		s := h.services[u.service]
		is, err := s.beginPlacing(ctx, epoch)
		if err == nil && !is.isReserved(p.UID) {
			err = fmt.Errorf("%w since the pod was reserved", errEnded)
		}
		var c *call
		if err == nil {
			c = is.send(permit, u.steps[permit], p, nil, wake)
			err = s.await(ctx, is, c, c.first)
		}
		if err := s.excused(ctx, err, u.steps[permit]); err != nil {
			return nil, err
		}
		if err == nil && c.waits > 0 {
			w.of = append(w.of, waiting{s, c, time.Now().Add(c.waits + s.Timeout), p.by&(1<<u.service) != 0}) // it says by itself when it has waited for long enough
		}
	}
	if len(w.of) == 0 {
		return nil, nil
	}
	return w, nil
}

// PreBind has the services behind some do what they do before the bind of a placement: one of them. Nil: there is none behind, or it is passed over. Wake is called when there is something
// new. A service that does not know of the placement is told of it first.
func (h *Host) PreBind(ctx context.Context, epoch cluster.Epoch, p Placement, pod PodOf, behind int, wake func()) (w *Wait, at int, err error) {
	uses := h.inOrder(p.SchedulerName, preBind)
	for at = behind; at < len(uses); at++ {
		u := uses[at]
		s := h.services[u.service]
		is, err := s.beginPlacing(ctx, epoch)
		if err == nil && !is.isReserved(p.UID) {
			is, _, err = s.reserve(ctx, epoch, u, p.standing(), pod)
		}
		if err != nil {
			if err := s.excused(ctx, err, u.steps[preBind]); err != nil {
				return nil, at, err
			}
			continue
		}
		c := is.send(preBind, u.steps[preBind], p, nil, wake)
		return &Wait{of: []waiting{{service: s, call: c, until: time.Now().Add(s.PreBindTimeout)}}}, at + 1, nil
	}
	return nil, at, nil
}

// ErrSkipped is that all plugins have skipped a pod, and Berth is none of those that bind.
var ErrSkipped = errors.New("all Bind plugins have skipped the pod")

// errUnsent is that nobody was asked to bind.
type errUnsent struct{ error }

func (e errUnsent) Unwrap() error { return e.error }

// Stated reports whether an error of Bind says that nobody has bound the pod, as far as services know: else nobody knows.
func Stated(err error) bool {
	return errors.As(err, new(Rejection)) || errors.As(err, new(errStep)) || errors.As(err, new(errUnsent)) || errors.Is(err, ErrSkipped)
}

// Unsent reports whether an error of Bind says that nobody was asked: what has become of an earlier try it does not say.
func Unsent(err error) bool { return errors.As(err, new(errUnsent)) }

// Bind has services bind a placement, the first that does not skip it. False: all have skipped it, or are passed over, and Berth is to bind it. What comes of an error that is not [Stated] is not known: a service that does not answer in its time may do so, and is waited for
// again when the same is tried again. A service that does not know of the placement is told of it first.
func (h *Host) Bind(ctx context.Context, epoch cluster.Epoch, p Placement, pod PodOf) (bound bool, err error) {
	for _, u := range h.inOrder(p.SchedulerName, bind) {
		s := h.services[u.service]
		is, err := s.knows(ctx, epoch, u, p, pod)
		if ctx.Err() != nil { // whoever wants it does not wait any more: that is no refusal
			return false, context.Cause(ctx)
		}
		if err != nil {
			if err := s.excused(ctx, err, u.steps[bind]); err != nil {
				return false, errUnsent{err}
			}
			continue
		}
		c := is.bindOf(p.UID) // of a try that nobody has waited for to its end
		if c == nil {
			c = is.send(bind, u.steps[bind], p, nil, nil)
		}
		err = s.awaitBind(ctx, c)
		is.heardBind(c)
		switch {
		case err != nil && Stated(err):
			return false, s.excused(ctx, err, u.steps[bind])
		case err != nil:
			return false, fmt.Errorf("plugin service %q: %w", s.Name, err)
		case !c.skipped:
			return true, nil
		}
	}
	if !h.binds[p.SchedulerName] {
		return false, ErrSkipped
	}
	return false, nil
}

// knows returns the stream of a service that has reserved a placement, which it is told of unless it has been.
func (s *service) knows(ctx context.Context, epoch cluster.Epoch, u *use, p Placement, pod PodOf) (*placeStream, error) {
	is, err := s.beginPlacing(ctx, epoch)
	switch {
	case err != nil:
		return nil, err
	case !is.isReserved(p.UID):
		is, _, err := s.reserve(ctx, epoch, u, p.standing(), pod)
		return is, err
	}
	if c := is.underWay(reserve, p.UID); c != nil { // whoever has sent it has not waited
		if err := s.await(ctx, is, c, c.last); err != nil {
			return nil, err
		}
	}
	return is, is.hasReserved(p.UID)
}

// awaitBind waits for an answer to a bind within the service's time. Without one the stream goes on, and the bind too.
func (s *service) awaitBind(ctx context.Context, c *call) (err error) {
	began := time.Now()
	defer func() { s.metrics.observe(bind.String(), time.Since(began), err) }()
	timer := time.NewTimer(s.Timeout)
	defer timer.Stop()
	select {
	case <-c.last:
		return c.err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return fmt.Errorf("%w of %v", errLate, s.Timeout)
	}
}

// Unreserve has services that were told of a placement take back what they have done for it, the last that was told first. Where that is not known to have been done, the service's stream has ended, and
// with it all that was reserved, or will be soon: then it is not confirmed.
func (h *Host) Unreserve(ctx context.Context, p Placement) (confirmed bool) {
	confirmed = true
	uses := h.inOrder(p.SchedulerName, reserve)
	for i := range h.uses[p.SchedulerName] { // those that only act before the bind have been told of it then
		if u := &h.uses[p.SchedulerName][i]; !slices.Contains(uses, u) {
			uses = append(uses, u)
		}
	}
	for _, u := range slices.Backward(uses) {
		s := h.services[u.service]
		is := s.settled(ctx)
		if is == nil || !is.isReserved(p.UID) {
			confirmed = false
			continue
		}
		c := is.send(unreserve, u.steps[unreserve], p, nil, nil)
		switch err := s.await(ctx, is, c, c.last); {
		case errors.As(err, new(errStep)), errors.As(err, new(Rejection)):
			s.log.Warn("plugin service: it says that it has not taken back what it had done for a pod", "err", err)
		case err != nil:
			confirmed = false
			is.cancel(fmt.Errorf("%w: what was reserved could not be taken back", err))
		}
	}
	return confirmed
}

// Bound tells services that a placement is bound. They hear of it once, if they are there. It does not wait for what they do then: over is called when all have done it.
func (h *Host) Bound(ctx context.Context, epoch cluster.Epoch, p Placement, over func()) {
	var open atomic.Int64
	open.Store(1)
	done := func() {
		if open.Add(-1) == 0 {
			over()
		}
	}
	defer done()
	for i := range h.uses[p.SchedulerName] {
		u := &h.uses[p.SchedulerName][i]
		s := h.services[u.service]
		is := s.settled(ctx)
		if is == nil && len(u.steps[postBind]) > 0 {
			is, _ = s.beginPlacing(ctx, epoch) // it has been told why not
		}
		if is != nil && (len(u.steps[postBind]) > 0 || is.isReserved(p.UID)) {
			open.Add(1)
			is.send(postBind, u.steps[postBind], p, nil, done)
		}
	}
}

// mostBinds is how many binds a service may have been told of that it has not answered, if others wait for that.
const mostBinds = 1000

// Hangs ends the streams of services of a profile that do not say any more that they have heard of binds.
func (h *Host) Hangs(schedulerName string) {
	for _, u := range h.uses[schedulerName] {
		is := h.services[u.service].placing.now()
		if is == nil {
			continue
		}
		if n := is.binds(); n >= mostBinds {
			is.cancel(fmt.Errorf("%d binds have not been answered", n))
		}
	}
}

// standing returns a placement as it is told to who does not know of it though it has been reserved.
func (p Placement) standing() Placement {
	p.stands = true
	return p
}

// reserve tells a service of a placement, on the stream that there is then, which it returns, with what the service has chosen for the pod.
func (s *service) reserve(ctx context.Context, epoch cluster.Epoch, u *use, p Placement, pod PodOf) (*placeStream, map[string]string, error) {
	is, c, err := s.sendReserve(ctx, epoch, u, p, pod)
	if err != nil {
		return nil, nil, err
	}
	chosen, err := s.awaitReserve(ctx, is, c, p)
	return is, chosen, err
}

// sendReserve begins what reserve does.
func (s *service) sendReserve(ctx context.Context, epoch cluster.Epoch, u *use, p Placement, pod PodOf) (*placeStream, *call, error) {
	is, err := s.beginPlacing(ctx, epoch)
	if err != nil {
		return nil, nil, err
	}
	object, err := is.objectOf(ctx, pod)
	if err != nil {
		return nil, nil, err
	}
	return is, is.send(reserve, u.steps[reserve], p, object, nil), nil
}

// awaitReserve waits for what sendReserve has sent.
func (s *service) awaitReserve(ctx context.Context, is *placeStream, c *call, p Placement) (map[string]string, error) {
	if err := s.await(ctx, is, c, c.last); err != nil {
		return nil, err
	}
	return c.annotations, s.mayChoose(p, c.annotations)
}

// await waits for an answer to a call within the service's time. Who does not get one ends the stream, but for one that ends by itself: nobody knows what has been done.
func (s *service) await(ctx context.Context, is *placeStream, c *call, answer <-chan struct{}) (err error) {
	defer func() { s.metrics.observe(step(c.request.GetStep()-1).String(), time.Since(c.began), err) }()
	timer := time.NewTimer(s.Timeout)
	defer timer.Stop()
	select {
	case <-answer:
		return c.failed()
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
	}
	return is.late(c, s.Timeout)
}

// late ends a stream since a call has had no answer in time, and returns why; or what has become of the call, if that is known by now.
func (is *placeStream) late(c *call, timeout time.Duration) error {
	select {
	case <-c.last:
		return c.failed()
	default:
	}
	err := fmt.Errorf("%w of %v", errLate, timeout)
	is.cancel(err)
	return err
}

// mayChoose returns why a service may not choose annotations, nil if it may: those that are compiled in may all, others those with a prefix that the configuration lets them.
func (s *service) mayChoose(p Placement, chosen map[string]string) error {
	if s.Profile != "" {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(chosen)) {
		_, told := p.Annotations[name] // by whomever
		if prefix, _, _ := strings.Cut(name, "/"); !told && !slices.Contains(s.Annotations, prefix) {
			return errStep(fmt.Sprintf("it chooses annotation %q, and the configuration does not let it: its annotations have to have %q", name, prefix))
		}
	}
	return nil
}
