package pluginhost

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/extender"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// step is what plugins do about a placement.
type step int

const (
	reserve step = iota
	unreserve
	permit
	preBind
	postBind
	steps
)

func (s step) String() string {
	return [steps]string{"reserve", "unreserve", "permit", "pre_bind", "post_bind"}[s]
}

// maxPermitWait is how long a permit waits at most: kube-scheduler's maxTimeout.
const maxPermitWait = 15 * time.Minute

// Placement is a pod and the node that it was given.
type Placement struct {
	UID, Namespace, Name, SchedulerName, Node string
}

// Standing is a placement that stands: it is recorded, or about to be, and not bound, for all that is known.
type Standing struct {
	Placement
	Pod PodOf
}

// Rejection is why a placement does not come about that a plugin has nothing to do with but to say so.
type Rejection struct{ Plugin, Reason string }

func (r Rejection) Error() string { return r.Reason }

// placing is the stream of a service on which placements are told, one at a time. It is safe for concurrent use.
type placing struct {
	beginning chan struct{} // holds a value while somebody begins a stream, or ends it

	mu     sync.Mutex
	stream *placeStream  // nil: there is none, or it has not been told yet of what stands
	failed time.Duration // by clock, since when none could be begun
	why    error
}

// placeStream is a stream of placements. It has two goroutines, which end waits for.
type placeStream struct {
	epoch   cluster.Epoch
	objects bool // pods are sent
	ctx     context.Context
	cancel  context.CancelCauseFunc
	stream  pluginv1.PluginService_PlaceClient
	running sync.WaitGroup
	more    chan struct{} // holds a value while there may be something to send

	mu      sync.Mutex
	last    int64                    // id
	outbox  []*pluginv1.PlaceRequest // as many as steps can be under way
	calls   map[int64]*call          // without an answer that is the last
	placed  map[string]int           // by uid of those that are reserved, how many of calls are about it
	proven  bool                     // it has answered
	err     error                    // why it has ended
	endedAt time.Time
}

// call is a step that is under way.
type call struct {
	request *pluginv1.PlaceRequest
	began   time.Time
	first   chan struct{} // closed when something has been answered
	last    chan struct{} // closed when there is nothing more to come
	wake    func()        // called then; nil: nobody is

	// Behind first, and behind last.
	waits time.Duration
	err   error
}

// Reserves reports whether services are to be told where a pod of a scheduler name goes before that is recorded.
func (h *Host) Reserves(schedulerName string) bool {
	return slices.ContainsFunc(h.uses[schedulerName], func(u use) bool { return len(u.steps[reserve])+len(u.steps[permit]) > 0 })
}

// PreBinds reports whether services have something to do before the bind of a pod of a scheduler name.
func (h *Host) PreBinds(schedulerName string) bool {
	return slices.ContainsFunc(h.uses[schedulerName], func(u use) bool { return len(u.steps[preBind]) > 0 })
}

// Places reports whether services have anything to do with placements of pods of a scheduler name.
func (h *Host) Places(schedulerName string) bool {
	return slices.ContainsFunc(h.uses[schedulerName], func(u use) bool { return u.places() })
}

func (u *use) places() bool {
	return slices.ContainsFunc(u.steps[:], func(plugins []string) bool { return len(plugins) > 0 })
}

// takes reports whether a service has something to do with placements of some profile.
func (s *service) takes() bool {
	return slices.ContainsFunc(s.used, func(u use) bool { return u.places() })
}

// PodOf reads a pod, for services that are sent it.
type PodOf func(context.Context) (*corev1.Pod, error)

// standing tells what stands in an epoch, which has ended when ctx has.
type standing struct {
	ctx   context.Context
	epoch cluster.Epoch
	all   func() []Standing
}

// Stands says what stands in an epoch, until ctx ends: services are told of it when a stream begins, before they are asked for anything. A placement that has come to an end is not among all before
// [Host.Unreserve] or [Host.Bound] is called of it.
func (h *Host) Stands(ctx context.Context, epoch cluster.Epoch, all func() []Standing) {
	h.standing.Store(&standing{ctx, epoch, all})
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

// inOrder returns the uses of services that a profile has at a step, in the order of the first plugin of each there. Those that only permit reserve too: they are told of the placement.
func (h *Host) inOrder(schedulerName string, at step) []*use {
	uses := h.uses[schedulerName]
	var out []*use
	for i := range uses {
		if u := &uses[i]; len(u.steps[at]) > 0 || at == reserve && len(u.steps[permit]) > 0 {
			out = append(out, u)
		}
	}
	slices.SortStableFunc(out, func(a, b *use) int { return cmp.Compare(a.first[at], b.first[at]) })
	return out
}

// Reserve has services note that a pod is to go to a node, where it is placed already in a state of that epoch. A Rejection says that a plugin does not let it, another error that
// one has failed. Then Unreserve is called.
func (h *Host) Reserve(ctx context.Context, epoch cluster.Epoch, p Placement, pod PodOf) error {
	for _, u := range h.inOrder(p.SchedulerName, reserve) {
		s := h.services[u.service]
		_, err := s.reserve(ctx, epoch, u, p, pod)
		if err := s.excused(ctx, err, u.steps[reserve]); err != nil {
			return err
		}
	}
	return nil
}

// Permit asks services whether a placement that is reserved may be. Nil: it may, and else it waits, and wake is called when there is something new. Errors are as of Reserve.
func (h *Host) Permit(ctx context.Context, epoch cluster.Epoch, p Placement, wake func()) (*Wait, error) {
	w := new(Wait)
	for _, u := range h.inOrder(p.SchedulerName, reserve) { // who has been begun anew meanwhile knows nothing of it
		s := h.services[u.service]
		if is := s.settled(ctx); is == nil || !is.isReserved(p.UID) {
			if err := s.excused(ctx, fmt.Errorf("%w since the pod was reserved", errEnded), nil); err != nil {
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
			w.of = append(w.of, waiting{s, c, time.Now().Add(c.waits + s.Timeout)}) // it says by itself when it has waited for long enough
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
			is, err = s.reserve(ctx, epoch, u, p, pod)
		}
		if err != nil {
			if err := s.excused(ctx, err, u.steps[preBind]); err != nil {
				return nil, at, err
			}
			continue
		}
		c := is.send(preBind, u.steps[preBind], p, nil, wake)
		return &Wait{of: []waiting{{s, c, time.Now().Add(s.PreBindTimeout)}}}, at + 1, nil
	}
	return nil, at, nil
}

// Unreserve has services that were told of a placement take back what they have done for it, the last that was told first. Where that is not known to have been done, the service's stream has ended, and
// with it all that was reserved.
func (h *Host) Unreserve(ctx context.Context, p Placement) {
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
			continue
		}
		c := is.send(unreserve, u.steps[unreserve], p, nil, nil)
		switch err := s.await(ctx, is, c, c.last); {
		case errors.As(err, new(errStep)), errors.As(err, new(Rejection)):
			s.log.Warn("plugin service: it says that it has not taken back what it had done for a pod", "err", err)
		case err != nil:
			is.cancel(fmt.Errorf("%w: what was reserved could not be taken back", err))
		}
	}
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

// binds returns how many binds have not been answered.
func (is *placeStream) binds() (n int) {
	is.mu.Lock()
	defer is.mu.Unlock()
	for _, c := range is.calls {
		if c.request.GetStep() == pluginv1.Step_STEP_POST_BIND {
			n++
		}
	}
	return n
}

// Wait is a placement of which services have not said yet what is to become of it. It is not safe for concurrent use.
type Wait struct{ of []waiting }

type waiting struct {
	service *service
	call    *call
	until   time.Time
}

// Decided reports whether it is known what becomes of the placement: an error is as of [Host.Reserve].
func (w *Wait) Decided(now time.Time) (is bool, err error) {
	w.of = slices.DeleteFunc(w.of, func(on waiting) bool {
		if err != nil {
			return false
		}
		select {
		case <-on.call.last:
			err = on.service.excused(context.Background(), on.call.err, on.call.request.GetPlugins())
		default:
			if now.Before(on.until) {
				return false
			}
			err = on.service.excused(context.Background(), on.late(), nil)
		}
		return err == nil
	})
	return err != nil || len(w.of) == 0, err
}

// Plugin returns the first plugin of those that are waited for, "" if there is none.
func (w *Wait) Plugin() string {
	if w == nil || len(w.of) == 0 {
		return ""
	}
	return w.of[0].call.request.GetPlugins()[0]
}

// late returns why a placement does not come about of which nothing has been said in time.
func (w *waiting) late() error {
	if w.call.request.GetStep() == pluginv1.Step_STEP_PERMIT {
		plugin := w.call.request.GetPlugins()[0]
		return Rejection{plugin, fmt.Sprintf("rejected due to timeout after waiting %v at plugin %v", w.call.waits, plugin)}
	}
	return fmt.Errorf("no answer within its preBindTimeout of %v", w.service.PreBindTimeout)
}

// errStep is an error that a step was answered with: the stream is sound.
type errStep string

func (e errStep) Error() string { return string(e) }

// excused returns what comes of an error of a step of plugins: a service that is ignorable has its say only if it says something. What it says itself stands as it is if it names a plugin, as kube-scheduler
// would.
func (s *service) excused(ctx context.Context, err error, plugins []string) error {
	switch {
	case err == nil, errors.As(err, new(Rejection)), ctx.Err() != nil:
		return err
	case errors.As(err, new(errStep)) && slices.ContainsFunc(plugins, func(name string) bool { return strings.Contains(err.Error(), name) }):
		return err
	case s.Ignorable && !errors.As(err, new(errStep)) && !errors.Is(err, errConfig):
		s.log.Debug("plugin service skipped: it has failed, and is ignorable", "err", err)
		return nil
	}
	return fmt.Errorf("plugin service %q: %w", s.Name, err)
}

// reserve tells a service of a placement, on the stream that there is then, which it returns.
func (s *service) reserve(ctx context.Context, epoch cluster.Epoch, u *use, p Placement, pod PodOf) (*placeStream, error) {
	is, err := s.beginPlacing(ctx, epoch)
	if err != nil {
		return nil, err
	}
	object, err := is.objectOf(ctx, pod)
	if err != nil {
		return nil, err
	}
	c := is.send(reserve, u.steps[reserve], p, object, nil)
	return is, s.await(ctx, is, c, c.last)
}

// objectOf returns what is sent of a pod, nil if nothing is.
func (is *placeStream) objectOf(ctx context.Context, pod PodOf) (object []byte, err error) {
	if !is.objects {
		return nil, nil
	}
	read, err := pod(ctx)
	if err == nil {
		object, err = json.Marshal(read)
	}
	if err != nil {
		return nil, fmt.Errorf("read the pod: %w", err)
	}
	return object, nil
}

// standingEach is how much longer a service may take for each placement that it is told of when a stream begins, all together.
const standingEach = 10 * time.Millisecond

// readAtOnce is how many pods are read at a time that stand.
const readAtOnce = 16

// tellStanding tells a service, on a stream that nobody else uses yet, of what stands. What it says of one does not matter here: if it is to do anything else about it, it is told again.
func (s *service) tellStanding(is *placeStream) error {
	now := s.host.standing.Load()
	if now == nil || now.epoch != is.epoch {
		return nil
	}
	useOf := func(p Standing) *use {
		uses := s.host.uses[p.SchedulerName]
		k := slices.IndexFunc(uses, func(u use) bool {
			return s.host.services[u.service] == s && len(u.steps[reserve])+len(u.steps[permit]) > 0
		})
		if k < 0 {
			return nil
		}
		return &uses[k]
	}
	all := slices.DeleteFunc(now.all(), func(p Standing) bool { return useOf(p) == nil })
	objects := make([][]byte, len(all))
	reads, ctx := errgroup.WithContext(now.ctx) // whoever asks may go meanwhile, and the next one would begin with the first of them
	reads.SetLimit(readAtOnce)
	for i, p := range all {
		reads.Go(func() (err error) {
			objects[i], err = is.objectOf(ctx, p.Pod)
			return err
		})
	}
	if err := reads.Wait(); err != nil {
		return err
	}
	timer := time.NewTimer(s.Timeout + time.Duration(len(all))*standingEach)
	defer timer.Stop()
	answered := func(c *call) error {
		select {
		case <-c.last:
		case <-now.ctx.Done():
			return context.Cause(now.ctx)
		case <-timer.C:
			return fmt.Errorf("%w: it was told of %d placements that stand", errLate, len(all))
		}
		if err := c.err; !errors.As(err, new(Rejection)) && !errors.As(err, new(errStep)) {
			return err
		}
		return nil
	}
	calls := make([]*call, len(all))
	for i, p := range all {
		calls[i] = is.send(reserve, useOf(p).steps[reserve], p.Placement, objects[i], nil)
	}
	for i, c := range calls {
		err := answered(c)
		if err == nil && c.err != nil {
			p := all[i]
			s.log.Warn("plugin service: it does not reserve again what stands", "pod", p.Namespace+"/"+p.Name, "err", c.err)
			err = answered(is.send(unreserve, useOf(p).steps[unreserve], p.Placement, nil, nil))
		}
		if err != nil {
			return err
		}
	}
	return nil
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
	err = fmt.Errorf("%w of %v", errLate, s.Timeout)
	is.cancel(err)
	return err
}

// failed returns why a call that has been answered has failed. What it waits for has not.
func (c *call) failed() error {
	select {
	case <-c.last:
		return c.err
	default:
		return nil
	}
}

// now returns the stream, nil if there is none.
func (p *placing) now() *placeStream {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stream == nil || p.stream.over() != nil {
		return nil
	}
	return p.stream
}

// settled returns the stream that there is when no other is about to be, nil if there is none.
func (s *service) settled(ctx context.Context) *placeStream {
	if is := s.placing.now(); is != nil {
		return is
	}
	select {
	case s.placing.beginning <- struct{}{}:
		<-s.placing.beginning
	case <-ctx.Done():
	}
	return s.placing.now()
}

// beginPlacing returns the stream of an epoch. If there is none, it begins one.
func (s *service) beginPlacing(ctx context.Context, epoch cluster.Epoch) (is *placeStream, err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if is := s.placing.now(); is != nil && is.epoch == epoch {
		return is, nil
	}
	select {
	case s.placing.beginning <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-s.placing.beginning }()
	if is := s.placing.now(); is != nil && is.epoch == epoch { // meanwhile
		return is, nil
	}
	s.placing.mu.Lock()
	was, failed, why := s.placing.stream, s.placing.failed, s.placing.why
	s.placing.stream = nil
	s.placing.mu.Unlock()
	if was != nil && was.epoch > epoch { // of a later term
		s.placing.mu.Lock()
		s.placing.stream = was
		s.placing.mu.Unlock()
		return nil, errors.New("the term has ended")
	}
	if was != nil {
		err := was.over()
		was.end(context.Canceled)
		if err != nil && was.epoch == epoch {
			s.log.Info("plugin service: no more placements are told on a stream that has ended", "err", err)
			if !was.mayEnd(err) {
				failed, why = s.clock()-time.Since(was.endedAt), err
			}
		}
	}
	if why != nil && s.clock()-failed < failedFor {
		s.failedToPlace(failed, why)
		return nil, why
	}
	began := s.clock()
	defer func() {
		s.metrics.observe("begin_placing", s.clock()-began, err)
		if err != nil && ctx.Err() == nil {
			s.log.Warn("plugin service has failed", "err", err)
			s.failedToPlace(s.clock(), err)
		}
	}()
	described, err := s.describe(ctx)
	if err != nil {
		return nil, err
	}
	plugins, err := s.check(described)
	if err != nil {
		return nil, err
	}
	within, cancel, stream, err := open(ctx, s.Timeout, func(ctx context.Context) (pluginv1.PluginService_PlaceClient, error) {
		return pluginv1.NewPluginServiceClient(s.Conn).Place(ctx, grpc.MaxCallSendMsgSize(largest))
	})
	if err != nil {
		return nil, fmt.Errorf("begin to place: %w", short(err))
	}
	is = &placeStream{epoch: epoch, ctx: within, cancel: cancel, stream: stream, more: make(chan struct{}, 1), calls: make(map[int64]*call), placed: make(map[string]int), last: 1}
	for _, p := range plugins {
		is.objects = is.objects || p.GetDepends().GetObjects() || p.GetDepends().GetPod()
	}
	is.outbox = []*pluginv1.PlaceRequest{{Id: 1, Profiles: s.profiles}}
	is.more <- struct{}{}
	is.running.Go(is.sends)
	is.running.Go(is.receives)
	if err := s.tellStanding(is); err != nil {
		is.end(err)
		return nil, err
	}
	s.placing.mu.Lock()
	s.placing.stream, s.placing.why = is, nil
	s.placing.mu.Unlock()
	s.log.Info("plugin service: placements are told")
	return is, nil
}

func (s *service) failedToPlace(at time.Duration, why error) {
	s.placing.mu.Lock()
	defer s.placing.mu.Unlock()
	s.placing.failed, s.placing.why = at, why
}

// endPlacing ends the stream of placements, if there is one of an epoch, or an earlier one.
func (s *service) endPlacing(epoch cluster.Epoch) {
	s.placing.beginning <- struct{}{}
	defer func() { <-s.placing.beginning }()
	s.placing.mu.Lock()
	is := s.placing.stream
	if is != nil && is.epoch > epoch {
		is = nil
	} else {
		s.placing.stream = nil
	}
	s.placing.mu.Unlock()
	if is != nil {
		is.end(context.Canceled)
	}
}

// open opens a stream that is of no call: it is ended by cancel. It takes no longer than timeout, or as ctx lets.
func open[T any](ctx context.Context, timeout time.Duration, call func(context.Context) (T, error)) (within context.Context, cancel context.CancelCauseFunc, stream T, err error) {
	within, cancel = context.WithCancelCause(context.Background())
	late := time.AfterFunc(timeout, func() { cancel(errLate) })
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	stream, err = call(within) // a server may let nobody begin one
	if inTime, wanted := late.Stop(), stop(); !inTime || !wanted {
		err = cmp.Or(context.Cause(within), context.Cause(ctx), errLate)
	}
	if err != nil {
		cancel(err)
	}
	return within, cancel, stream, err
}

// mayEnd reports whether a stream that has ended has done so without that the service has failed.
func (is *placeStream) mayEnd(err error) bool {
	is.mu.Lock()
	defer is.mu.Unlock()
	return is.proven && errors.Is(err, errEnded)
}

// over returns why the stream has ended, or is about to, nil if it has not.
func (is *placeStream) over() error {
	is.mu.Lock()
	defer is.mu.Unlock()
	if is.err == nil {
		return context.Cause(is.ctx)
	}
	return is.err
}

// end ends the stream, and waits for that.
func (is *placeStream) end(why error) {
	is.cancel(why)
	is.running.Wait()
}

func (is *placeStream) isReserved(uid string) bool {
	is.mu.Lock()
	defer is.mu.Unlock()
	_, ok := is.placed[uid]
	return ok
}

// send has a step sent. It does not wait.
func (is *placeStream) send(s step, plugins []string, p Placement, object []byte, wake func()) *call {
	c := &call{
		request: &pluginv1.PlaceRequest{
			Placement: &pluginv1.Placement{Uid: p.UID, Namespace: p.Namespace, Name: p.Name, SchedulerName: p.SchedulerName, Node: p.Node, Object: object},
			Step:      pluginv1.Step(s) + 1, Plugins: plugins,
		},
		began: time.Now(), first: make(chan struct{}), last: make(chan struct{}), wake: wake,
	}
	is.mu.Lock()
	defer is.mu.Unlock()
	if is.err != nil {
		c.end(is.err)
		return c
	}
	is.last++
	c.request.Id = is.last
	is.calls[c.request.GetId()] = c
	if _, ok := is.placed[p.UID]; ok || s == reserve {
		is.placed[p.UID]++
	}
	is.outbox = append(is.outbox, c.request)
	select {
	case is.more <- struct{}{}:
	default:
	}
	return c
}

// end says what has become of a call.
func (c *call) end(err error) {
	c.err = err
	close(c.last) // before first: who waits for that looks whether it is the last
	select {
	case <-c.first:
	default:
		close(c.first)
	}
	if c.wake != nil {
		c.wake()
	}
}

// sends sends what is to be, until the stream ends.
func (is *placeStream) sends() {
	for {
		select {
		case <-is.ctx.Done():
			return
		case <-is.more:
		}
		is.mu.Lock()
		requests := is.outbox
		is.outbox = nil
		is.mu.Unlock()
		for _, request := range requests {
			if is.stream.Send(request) != nil {
				return // who receives is told why
			}
		}
	}
}

// receives takes in what is answered, until the stream ends.
func (is *placeStream) receives() {
	var err error
	for err == nil {
		var response *pluginv1.PlaceResponse
		if response, err = is.stream.Recv(); err == nil {
			err = is.take(response)
		} else {
			err = is.because(err)
		}
	}
	is.cancel(err)
	is.mu.Lock()
	is.err, is.endedAt = err, time.Now()
	calls := is.calls
	is.calls, is.placed, is.outbox = nil, nil, nil
	is.mu.Unlock()
	for _, c := range calls {
		c.end(err)
	}
}

// because returns why the stream has ended.
func (is *placeStream) because(err error) error {
	if cause := context.Cause(is.ctx); cause != nil {
		return cause
	}
	switch code := status.Code(err); {
	case errors.Is(err, io.EOF):
		return errEnded
	case code == codes.Unavailable, code == codes.Canceled:
		return fmt.Errorf("%w: %w", errEnded, short(err))
	}
	return short(err)
}

// take takes in an answer.
func (is *placeStream) take(response *pluginv1.PlaceResponse) error {
	is.mu.Lock()
	defer is.mu.Unlock()
	c := is.calls[response.GetId()]
	if c == nil {
		return fmt.Errorf("a response with id %d, to which there is no request", response.GetId())
	}
	is.proven = true
	err := c.says(response)
	if err != nil && !errors.As(err, new(Rejection)) && !errors.As(err, new(errStep)) {
		return fmt.Errorf("its answer makes no sense: %w", err)
	}
	if waits := response.GetWaitsMilliseconds(); waits > 0 {
		c.waits = time.Duration(min(waits, maxPermitWait.Milliseconds())) * time.Millisecond
		close(c.first)
		return nil
	}
	delete(is.calls, response.GetId())
	uid, told := c.request.GetPlacement().GetUid(), c.request.GetStep()
	if n, ok := is.placed[uid]; ok {
		is.placed[uid] = n - 1
		if told == pluginv1.Step_STEP_UNRESERVE || told == pluginv1.Step_STEP_POST_BIND {
			delete(is.placed, uid)
			if n > 1 {
				err = fmt.Errorf("its answer makes no sense: a step of %s/%s is under way still", c.request.GetPlacement().GetNamespace(), c.request.GetPlacement().GetName())
				c.end(err)
				return err
			}
		}
	}
	c.end(err)
	return nil
}

// says returns what a response says has become of a call, or what is wrong with it.
func (c *call) says(response *pluginv1.PlaceResponse) error {
	waits, rejection := response.GetWaitsMilliseconds(), response.GetRejection()
	switch {
	case waits < 0:
		return fmt.Errorf("waits_milliseconds: %d is negative", waits)
	case waits > 0 && c.request.GetStep() != pluginv1.Step_STEP_PERMIT:
		return fmt.Errorf("waits_milliseconds: only a permit waits")
	case waits > 0 && (c.waits > 0 || rejection != nil || response.GetError() != ""):
		return fmt.Errorf("waits_milliseconds: it has said more of that permit")
	case response.GetError() != "":
		return errStep(extender.Short(response.GetError()))
	case rejection == nil:
		return nil
	case !slices.Contains(c.request.GetPlugins(), rejection.GetPlugin()):
		return fmt.Errorf("rejection.plugin: %q was not asked", extender.Short(rejection.GetPlugin()))
	case rejection.GetReason() == "":
		return fmt.Errorf("rejection.reason: %s gives none", rejection.GetPlugin())
	}
	return Rejection{rejection.GetPlugin(), extender.Short(rejection.GetReason())}
}
