package pluginhost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/annotations"
	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/extender"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// maxPermitWait is how long a permit waits at most: kube-scheduler's maxTimeout.
const maxPermitWait = 15 * time.Minute

// placeStream is a stream of placements. It has two goroutines, which end waits for.
type placeStream struct {
	epoch      cluster.Epoch
	connection uint64 // by which it is
	name       string // by which the service is told it apart from others
	orders     bool   // what is asked behind a request that reserves is answered behind that
	objects    bool   // pods are sent
	sorts      uint64 // the order of keys, but for what a response says: see placing.sortOrder
	ctx        context.Context
	cancel     context.CancelCauseFunc
	stream     pluginv1.PluginService_PlaceClient
	running    sync.WaitGroup
	more       chan struct{} // holds a value while there may be something to send

	annotations bool // those of pods are sent, and labels

	ended     func()                         // hears that it has
	activates func(uids []string, now bool)  // hears which pods the service wants tried
	changed   func(nodes []string, all bool) // hears which nodes have changed for it

	mu      sync.Mutex
	last    int64                    // id
	outbox  []*pluginv1.PlaceRequest // as many as steps can be under way
	calls   map[int64]*call          // without an answer that is the last
	placed  map[string]int           // by uid of those that are reserved, how many of calls are about it
	refused map[string]error         // of those, why they have not been reserved after all
	reserve int64                    // the id of what was sent last to reserve
	under   int                      // as many that reserve have no answer
	binding map[string]*call         // of those, the bind of which nobody has heard what has come of it
	enters  map[newcomer]*call       // those of calls that are about pods which have no node yet: one of each
	proven  bool                     // it has answered
	err     error                    // why it has ended
	endedAt time.Time
}

// newcomer is what is asked about a pod that has no node yet, by its uid.
type newcomer struct {
	step step
	uid  string
}

// call is a step that is under way.
type call struct {
	request *pluginv1.PlaceRequest
	began   time.Time
	first   chan struct{} // closed when something has been answered
	last    chan struct{} // closed when there is nothing more to come
	wake    func()        // called then; nil: nobody is

	// Behind first, and behind last.
	waits   time.Duration
	skipped bool
	key     SortKey
	err     error

	annotations map[string]string // chosen for the pod
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

// hasReserved returns why a placement that it has been told of is not reserved, nil if it is.
func (is *placeStream) hasReserved(uid string) error {
	is.mu.Lock()
	defer is.mu.Unlock()
	if _, ok := is.placed[uid]; !ok {
		return fmt.Errorf("%w since the pod was reserved", errEnded)
	}
	return is.refused[uid]
}

// reserves returns the request up to which all reserve that are under way, nil if none is. Before the service has answered anything, it may not know of the stream.
func (is *placeStream) reserves() *pluginv1.Behind {
	is.mu.Lock()
	defer is.mu.Unlock()
	if is.proven && is.under > 0 && is.err == nil {
		return &pluginv1.Behind{Stream: is.name, Id: is.reserve}
	}
	return nil
}

// bindOf returns the bind of a pod of which nobody has heard what has come of it, nil if there is none.
func (is *placeStream) bindOf(uid string) *call {
	is.mu.Lock()
	defer is.mu.Unlock()
	return is.binding[uid]
}

// heardBind says that somebody has heard what has come of a bind, if something has.
func (is *placeStream) heardBind(c *call) {
	select {
	case <-c.last:
	default:
		return
	}
	is.mu.Lock()
	defer is.mu.Unlock()
	if uid := c.request.GetPlacement().GetUid(); is.binding[uid] == c {
		delete(is.binding, uid)
	}
}

// underWay returns a call about a pod that has not been answered, nil if there is none.
func (is *placeStream) underWay(at step, uid string) *call {
	is.mu.Lock()
	defer is.mu.Unlock()
	if is.placed[uid] == 0 {
		return nil
	}
	for _, c := range is.calls {
		if c.request.GetStep() == pluginv1.Step(at)+1 && c.request.GetPlacement().GetUid() == uid {
			return c
		}
	}
	return nil
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

// mayEnd reports whether a stream that has ended has done so without that the service has failed.
func (is *placeStream) mayEnd(err error) bool {
	is.mu.Lock()
	defer is.mu.Unlock()
	return (is.proven || is.last == 1) && errors.Is(err, errEnded) // or nothing was asked
}

// answered reports whether it has answered anything.
func (is *placeStream) answered() bool {
	is.mu.Lock()
	defer is.mu.Unlock()
	return is.proven
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
func (is *placeStream) send(s step, plugins []string, p Placement, object *sentPod, wake func()) *call {
	is.mu.Lock()
	defer is.mu.Unlock()
	c := newCall(s, plugins, p, object, wake)
	is.sendLocked(s, c)
	return c
}

// sendEntering has it asked about a pod that has no node yet. That waits until what was asked before of it is answered, by whomever: other is that, if there is one, and nothing is sent.
func (is *placeStream) sendEntering(at step, plugins []string, p Placement, object *sentPod, queued *pluginv1.Queued, wake func()) (c, other *call) {
	is.mu.Lock()
	defer is.mu.Unlock()
	about := newcomer{at, p.UID}
	if other = is.enters[about]; other != nil {
		return nil, other
	}
	c = newCall(at, plugins, p, object, wake)
	c.request.Queued = queued
	is.sendLocked(at, c)
	if is.err == nil {
		is.enters[about] = c
	}
	return c, nil
}

func newCall(s step, plugins []string, p Placement, object *sentPod, wake func()) *call {
	c := &call{
		request: &pluginv1.PlaceRequest{
			Placement: &pluginv1.Placement{Uid: p.UID, Namespace: p.Namespace, Name: p.Name, SchedulerName: p.SchedulerName, Node: p.Node, Annotations: p.Annotations, Stands: p.stands && s == reserve},
			Step:      pluginv1.Step(s) + 1, Plugins: plugins,
		},
		began: time.Now(), first: make(chan struct{}), last: make(chan struct{}), wake: wake,
	}
	object.tell(c.request.Placement)
	return c
}

// sendLocked has a call sent; mu is held.
func (is *placeStream) sendLocked(s step, c *call) {
	if is.err != nil {
		c.end(is.err)
		return
	}
	is.last++
	c.request.Id = is.last
	is.calls[c.request.GetId()] = c
	uid := c.request.GetPlacement().GetUid()
	if _, ok := is.placed[uid]; !s.ofQueue() && (ok || s == reserve) {
		is.placed[uid]++
	}
	switch s {
	case reserve:
		is.reserve = c.request.GetId()
		is.under++
	case bind:
		is.binding[uid] = c
	}
	is.outbox = append(is.outbox, c.request)
	select {
	case is.more <- struct{}{}:
	default:
	}
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
	is.calls, is.placed, is.refused, is.binding, is.enters, is.outbox = nil, nil, nil, nil, nil, nil
	is.mu.Unlock()
	is.ended()
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
	byItself := len(response.GetChanges()) > 0 || response.GetAllChanged()
	if byItself { // before all else that it says: that may be so because of them
		if n := len(response.GetChanges()); n > mostInResponse {
			return fmt.Errorf("its answer makes no sense: changes: %d nodes, want at most %d", n, mostInResponse)
		}
		is.changed(response.GetChanges(), response.GetAllChanged())
	}
	if n := len(response.GetActivates()) + len(response.GetWakes()); n > 0 {
		byItself = true
		if n > mostInResponse {
			return fmt.Errorf("its answer makes no sense: activates, wakes: %d pods, want at most %d", n, mostInResponse)
		}
		is.activates(response.GetActivates(), true)
		is.activates(response.GetWakes(), false)
	}
	is.mu.Lock()
	defer is.mu.Unlock()
	if response.GetId() == 0 && byItself {
		is.proven = true
		return nil
	}
	c := is.calls[response.GetId()]
	if c == nil {
		return fmt.Errorf("a response with id %d, to which there is no request", response.GetId())
	}
	is.proven = true
	err := is.says(c, response)
	if err != nil && !errors.As(err, new(Rejection)) && !errors.As(err, new(errStep)) {
		return fmt.Errorf("its answer makes no sense: %w", err)
	}
	if waits := response.GetWaitsMilliseconds(); waits > 0 {
		c.waits = time.Duration(min(waits, maxPermitWait.Milliseconds())) * time.Millisecond
		close(c.first)
		return nil
	}
	delete(is.calls, response.GetId())
	if c.request.GetStep() == pluginv1.Step_STEP_RESERVE {
		is.under--
	}
	c.annotations = response.GetAnnotations()
	c.skipped, c.key = response.GetSkipped(), SortKey{is.sorts | uint64(response.GetSortOrder()), response.GetSortKey()}
	uid, told := c.request.GetPlacement().GetUid(), c.request.GetStep()
	if at := step(told - 1); at.ofQueue() {
		delete(is.enters, newcomer{at, uid})
	} else if n, ok := is.placed[uid]; ok {
		is.placed[uid] = n - 1
		if told == pluginv1.Step_STEP_RESERVE {
			if delete(is.refused, uid); err != nil {
				is.refused[uid] = err
			}
		}
		if told == pluginv1.Step_STEP_UNRESERVE || told == pluginv1.Step_STEP_POST_BIND {
			delete(is.placed, uid)
			delete(is.refused, uid)
			delete(is.binding, uid)
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

// chooses returns why what is chosen for a pod with a step cannot be. The stream is sound, and it is as if the step had failed.
func (c *call) chooses(chosen map[string]string) error {
	told := c.request.GetPlacement()
	for name, value := range chosen {
		if is, ok := told.GetAnnotations()[name]; told.GetStands() && (!ok || is != value) {
			return errStep(extender.Short(fmt.Sprintf("annotations: %q is chosen, and what was chosen for the pod before stands", name)))
		}
	}
	if err := annotations.Check(chosen); err != nil {
		return errStep(extender.Short(fmt.Sprintf("annotations: %v", err)))
	}
	return nil
}

// says returns what a response says has become of a call, or what is wrong with it.
func (is *placeStream) says(c *call, response *pluginv1.PlaceResponse) error {
	waits, rejection := response.GetWaitsMilliseconds(), response.GetRejection()
	switch {
	case waits < 0:
		return fmt.Errorf("waits_milliseconds: %d is negative", waits)
	case waits > 0 && c.request.GetStep() != pluginv1.Step_STEP_PERMIT:
		return fmt.Errorf("waits_milliseconds: only a permit waits")
	case waits > 0 && (c.waits > 0 || rejection != nil || response.GetError() != ""):
		return fmt.Errorf("waits_milliseconds: it has said more of that permit")
	case (response.GetSortKey() != 0 || response.GetSortOrder() != 0) && c.request.GetStep() != pluginv1.Step_STEP_QUEUE_SORT:
		return errors.New("sort_key, sort_order: nothing is sorted")
	case response.GetSortOrder() < 0 || response.GetSortOrder() > math.MaxInt32 || is.sorts == oneOrder && response.GetSortOrder() != 0:
		return fmt.Errorf("sort_order: %d: want 0, or, of plugins that are compiled in, %d at most", response.GetSortOrder(), math.MaxInt32)
	case rejection != nil && c.request.GetStep() == pluginv1.Step_STEP_QUEUE_SORT:
		return errors.New("rejection: who sorts rejects nothing")
	case response.GetSkipped() && (c.request.GetStep() != pluginv1.Step_STEP_BIND || rejection != nil || response.GetError() != ""):
		return errors.New("skipped: only a bind is, that is neither rejected nor has failed")
	case len(response.GetAnnotations()) > 0 && (c.request.GetStep() != pluginv1.Step_STEP_RESERVE || len(c.request.GetPlugins()) == 0 || rejection != nil || response.GetError() != ""):
		return errors.New("annotations: only plugins that reserve a pod choose them, and that is neither rejected nor has failed")
	case response.GetError() != "":
		return errStep(extender.Short(response.GetError()))
	case rejection == nil:
		return c.chooses(response.GetAnnotations())
	case !slices.Contains(c.request.GetPlugins(), rejection.GetPlugin()):
		return fmt.Errorf("rejection.plugin: %q was not asked", extender.Short(rejection.GetPlugin()))
	case rejection.GetReason() == "":
		return fmt.Errorf("rejection.reason: %s gives none", rejection.GetPlugin())
	}
	return Rejection{rejection.GetPlugin(), extender.Short(rejection.GetReason())}
}
