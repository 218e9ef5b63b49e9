package pluginhost

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// Standing is a placement that stands: it is recorded, or about to be, and not bound, for all that is known.
type Standing struct {
	Placement
	Pod PodOf
}

// placing is the stream of a service on which placements are told, one at a time. It is safe for concurrent use.
type placing struct {
	beginning chan struct{} // holds a value while somebody begins a stream, or ends it
	ended     chan struct{} // holds a value if a stream may have ended

	mu     sync.Mutex
	stream *placeStream  // nil: there is none, or it has not been told yet of what stands
	failed time.Duration // by clock, since when none could be begun
	why    error

	// These are of who begins one.
	often     bool           // a good stream has ended by itself
	goodEnd   time.Duration  // by clock, when one has last
	heldSince *time.Duration // by clock, since when none begins for what is refused of what stands; nil: that is not so

	streams   uint32 // as many have been begun
	doubts    doubts
	begun     cluster.Epoch // in which the last one was
	activates bool          // the service says which pods are worth trying
}

// sortOrder returns the order of keys of a stream that is about to begin, which has those of one that begins none: what services say counts wherever they say it. Only who begins a stream calls it.
func (p *placing) sortOrder(follows bool) uint64 {
	if !follows {
		return oneOrder
	}
	p.streams++
	return uint64(p.streams) << 32
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

// errUnread is that a pod could not be read, to be sent.
type errUnread struct{ error }

func (e errUnread) Unwrap() error { return e.error }

// sentPod is what is sent of a pod.
type sentPod struct {
	object              []byte
	labels, annotations map[string]string
}

// objectOf returns what is sent of a pod, nil if nothing is.
func (is *placeStream) objectOf(ctx context.Context, pod PodOf) (*sentPod, error) {
	if !is.objects && !is.annotations {
		return nil, nil
	}
	sent := new(sentPod)
	read, err := pod(ctx)
	if err == nil && is.annotations {
		sent.labels, sent.annotations = read.Labels, sentAnnotations(read)
	}
	if err == nil && is.objects {
		sent.object, err = json.Marshal(read)
	}
	if err != nil {
		return nil, errUnread{fmt.Errorf("read the pod: %w", err)}
	}
	return sent, nil
}

// tell adds it to a placement.
func (p *sentPod) tell(to *pluginv1.Placement) {
	if p != nil {
		to.Object, to.PodLabels, to.PodAnnotations = p.object, p.labels, p.annotations
	}
}

// standingEach is how much longer a service may take for each placement that it is told of when a stream begins, all together, until it has answered one; then it has its usual time for the next one.
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
			return s.host.services[u.service] == s && u.reserves()
		})
		if k < 0 {
			return nil
		}
		return &uses[k]
	}
	all := slices.DeleteFunc(now.all(), func(p Standing) bool { return useOf(p) == nil })
	objects, gone := make([]*sentPod, len(all)), make([]bool, len(all))
	reads, ctx := errgroup.WithContext(now.ctx) // whoever asks may go meanwhile, and the next one would begin with the first of them
	reads.SetLimit(readAtOnce)
	for i, p := range all {
		reads.Go(func() (err error) {
			if objects[i], err = is.objectOf(ctx, p.Pod); errors.Is(err, ErrPodGone) { // Berth is about to hear of it
				gone[i], err = true, nil
			}
			return err
		})
	}
	if err := reads.Wait(); err != nil {
		return err
	}
	answers := newAnswers(s.Timeout+time.Duration(len(all))*standingEach, s.Timeout)
	defer answers.end()
	answered := func(c *call) error {
		switch err := answers.await(now.ctx, c); {
		case errors.Is(err, errLate):
			return fmt.Errorf("%w: it was told of %d placements that stand", errLate, len(all))
		case err != nil:
			return err
		}
		if err := c.err; !errors.As(err, new(Rejection)) && !errors.As(err, new(errStep)) {
			return err
		}
		return nil
	}
	waits, held := s.placing.waits(s.clock()), error(nil)
	calls := make([]*call, len(all))
	for i, p := range all {
		if gone[i] {
			continue
		}
		calls[i] = is.send(reserve, useOf(p).steps[reserve], p.Placement.standing(), objects[i], answers.wake)
	}
	for i, c := range calls {
		if c == nil {
			continue
		}
		err := answered(c)
		if p := all[i]; err == nil && c.err != nil {
			s.log.Warn("plugin service: it does not reserve again what stands", "pod", p.Namespace+"/"+p.Name, "err", c.err)
			if chosen := len(p.Annotations) > 0; chosen && waits {
				held = errHeld{}
				continue
			} else if chosen {
				s.log.Error("plugin service: it goes on without what was chosen for a pod, and may choose it for another one", "pod", p.Namespace+"/"+p.Name)
			}
			err = answered(is.send(unreserve, useOf(p).steps[unreserve], p.Placement, nil, answers.wake))
		}
		if err != nil {
			return err
		}
	}
	return held
}

// errHeld is why no stream of a sound service begins yet. It says nothing of the pod that is refused: others read it.
type errHeld struct{}

func (errHeld) Error() string {
	return "it does not reserve again what was chosen for a pod, and stands: that is waited for"
}

// refusedFor is for how long no stream begins of a service that does not reserve again what was chosen for pods: a stream that has ended may have it still, or the pod is bound, or given back, in that time.
const refusedFor = 10 * time.Second

// waits reports whether what is refused now is waited for. Only who begins a stream calls it, and held.
func (p *placing) waits(now time.Duration) bool {
	return p.heldSince == nil || now-*p.heldSince < refusedFor
}

// held notes what has come of a try to begin a stream: the time is of tries that are held one after the other.
func (p *placing) held(err error, now time.Duration) {
	switch {
	case !errors.As(err, new(errHeld)):
		p.heldSince = nil
	case p.heldSince == nil:
		p.heldSince = &now
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

// reserves is that of the stream, nil if there is none.
func (p *placing) reserves() *pluginv1.Behind {
	if is := p.now(); is != nil {
		return is.reserves()
	}
	return nil
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
			if !was.mayEnd(err) || s.placing.often && s.clock()-s.placing.goodEnd < failedFor { // or soon behind another one
				failed, why = s.clock()-time.Since(was.endedAt), err
				s.placing.doubts.note(was.connection, was.answered(), s.Processes)
			} else {
				if was.answered() {
					s.placing.doubts.note(was.connection, true, s.Processes)
				}
				s.placing.often, s.placing.goodEnd = true, s.clock()
			}
		}
	}
	if why != nil && s.clock()-failed < failedFor {
		s.failedToPlace(failed, why)
		return nil, why
	}
	began, to := s.clock(), s.connected()
	defer func() {
		s.metrics.observe("begin_placing", s.clock()-began, err)
		s.placing.held(err, s.clock())
		if err != nil && ctx.Err() == nil {
			s.log.Warn("plugin service has failed", "err", err)
			s.failedToPlace(s.clock(), err)
			if stands := s.host.standing.Load(); !errors.As(err, new(errUnread)) && !errors.As(err, new(errHeld)) && (stands == nil || stands.ctx.Err() == nil) { // else it is no fault of the process
				s.placing.doubts.note(to, false, s.Processes)
			}
		}
	}()
	described, at, err := s.describe(ctx)
	if err != nil {
		return nil, err
	}
	to = at
	plugins, err := s.check(described)
	if err != nil {
		return nil, err
	}
	within, cancel, stream, err := open(ctx, s.Timeout, func(ctx context.Context) (pluginv1.PluginService_PlaceClient, error) {
		return pluginv1.NewPluginServiceClient(s.Conn).Place(ctx, grpc.MaxCallSendMsgSize(LargestMessage))
	})
	if err != nil {
		return nil, fmt.Errorf("begin to place: %w", short(err))
	}
	if err := s.still(to); err != nil {
		cancel(err)
		return nil, err
	}
	is = &placeStream{
		epoch: epoch, connection: to, name: rand.Text(), orders: described.GetOrders(), ctx: within, cancel: cancel, stream: stream, more: make(chan struct{}, 1), calls: make(map[int64]*call), placed: make(map[string]int), refused: make(map[string]error), binding: make(map[string]*call), enters: make(map[newcomer]*call), last: 1,
		sorts: s.placing.sortOrder(s.Follows), activates: s.activated.add, changed: s.changes.hear,
		ended: func() {
			s.lost(described)
			signal(s.placing.ended)
		},
	}
	s.lost(described)
	for _, p := range plugins {
		is.objects = is.objects || p.GetDepends().GetObjects() || p.GetDepends().GetPod()
		is.annotations = is.annotations || p.GetDepends().GetAnnotations()
	}
	is.outbox = []*pluginv1.PlaceRequest{{Id: 1, Profiles: s.profiles, HearsActivates: true, HearsAnnotations: true, HearsChanges: true, TellsAnnotations: true, Stream: is.name}}
	is.more <- struct{}{}
	is.running.Go(is.sends)
	is.running.Go(is.receives)
	if err := s.tellStanding(is); err != nil {
		is.end(err)
		return nil, err
	}
	s.placing.mu.Lock()
	again := s.placing.begun == epoch
	s.placing.stream, s.placing.why, s.placing.begun, s.placing.activates = is, nil, epoch, described.GetActivates()
	s.placing.mu.Unlock()
	if again && described.GetActivates() { // what it had to say meanwhile may be lost
		s.activated.addAll()
	}
	signal(s.placing.ended) // it may have, before anybody knew of it
	s.log.Info("plugin service: placements are told")
	return is, nil
}

// lost has all nodes taken for changed of a service that says which have: it may have said so when there was no stream.
func (s *service) lost(described *pluginv1.DescribeResponse) {
	if described.GetActivates() {
		s.changes.hear(nil, true)
	}
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
