// Package placeserver is the server's side of the Place stream of berth.plugin.v1, but for what plugins do: it checks what comes, has the steps of each pod taken one after the other, ends what is under
// way for a placement that is over, and has taken back what is reserved when a stream ends. Whether a pod may be tried, and where it belongs in the queue, it has plugins say beside all that.
package placeserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/pluginproto"
)

const (
	// AtOnce are as many turns as there are at a time for a stream, as many again for what comes behind a bind, which nobody waits for, and as many for whether pods may be tried, so that pods that come do not hold up those
	// that are placed. PreBinds and binds need none, which may take long, nor do placements that wait: of these there are as many as placements.
	AtOnce = 64
	// MaxEntering are as many pods as it is asked about at a time whether they may be tried. Berth asks about 64 at a time, and anew about those only of which it has heard.
	MaxEntering = 4096
	// maxPlacements are as many pods as a stream can have something kept of. Berth has some ten thousand at most.
	maxPlacements = 100_000
	// MaxBehind are as many steps of a pod as wait for one that is under way. Berth sends one: what ends it.
	MaxBehind = 8
	// TakeBackTime is what there is to unreserve: for a pod, and for all pods of a stream that has ended.
	TakeBackTime = 5 * time.Second
)

// Why what is under way for a placement ends.
var (
	errGivenBack   = errors.New("the placement is given back")
	errStreamEnded = errors.New("the stream has ended")
	errBound       = errors.New("the pod is bound")
)

// Why a step is not taken.
var (
	ErrNotReserved = errors.New("the placement is not reserved: that has failed")
	ErrSkipped     = errors.New("no plugin binds the pod") // of STEP_BIND
	ErrLeft        = errors.New("what a stream that has ended had of the pod is not taken back yet")
)

// Taker takes the steps of one stream. It is safe for concurrent use, for steps of different pods.
type Taker interface {
	// Tell takes up what the first request tells, profiles above all. An error ends the stream.
	Tell(first *pluginv1.PlaceRequest) error
	// Takes reports whether there is a plugin of a name that takes a step.
	Takes(plugin string, step pluginv1.Step) bool
	// Keep returns what is kept of a placement that has not been told of before, as Placement.Of. Each STEP_PRE_ENQUEUE, and each STEP_QUEUE_SORT, has one of its own.
	Keep(told *pluginv1.Placement) any
	// Take takes a step. The first plugin that rejects or fails ends it, but for STEP_UNRESERVE and STEP_POST_BIND. STEP_PERMIT takes until it is decided; if the placement has to wait, it says once, before,
	// for how long at most. What is under way for a placement that is over ends soon: see [Step.Context].
	Take(step *Step, waits func(most time.Duration)) (*pluginv1.Rejection, error)
}

// Server has the streams of one process. The zero Server is ready.
type Server struct {
	mu      sync.Mutex
	streams map[*stream]bool
	unheard *activations // since there was a stream; nil: none
	changed bool         // some node has, some time
}

// Step is a step of a placement, or whether a pod may be tried, which has a placement without a node, of its own.
type Step struct {
	Placement *Placement
	Kind      pluginv1.Step
	Plugins   []string // that take it, in order
	// Queued is how the pod waits, of STEP_QUEUE_SORT. Key and Order are what Take has to say of that: the response's sort_key and sort_order.
	Queued     *pluginv1.Queued
	Key, Order int64
	stream     *stream
	id         int64 // of the request
	silent     bool  // it is not answered: the stream has ended
}

// Placement is what a stream has told of a placement. Steps of one are taken one at a time.
type Placement struct {
	Told *pluginv1.Placement // without the object
	Of   any                 // what Keep has returned

	choice

	plugins  []string // that are to reserve it
	ctx      context.Context
	cancel   context.CancelCauseFunc
	asked    bool // whether it may be; the stream's mu's
	reserved bool // all have; its step's
}

// Context ends when what is under way for the placement is to end, and says why.
func (of *Placement) Context() context.Context { return of.ctx }

// stream is one stream of Place. Its goroutines are one that writes, one for each pod of which a step of a placement is under way, and one for each that it is asked about whether it may be tried; end waits for them.
type stream struct {
	server *Server
	taker  Taker
	last   int64 // request
	ctx    context.Context
	cancel context.CancelCauseFunc
	out    chan *pluginv1.PlaceResponse
	turns  chan struct{} // holds a value for each that is taken
	behind chan struct{} // the same, of what comes behind a bind
	enter  chan struct{} // and of whether pods may be tried
	tasks  sync.WaitGroup

	name     string // by which it is told apart from others; server.mu's
	reserves reserves

	activated *activations
	hears     chan struct{} // closed when it is known that some of these are heard

	annotations, activates, changes bool // are heard; of who takes requests, of all steps behind the first, and of who writes behind hears, or an answer

	ending chan struct{} // closed when ended is there

	mu       sync.Mutex
	lanes    map[string]*lane  // by the pod's uid
	entering map[entering]bool // what it is asked about pods that have no node yet
	entries  int               // as many of these are not done yet: answered, and not only about to be
	ended    context.Context   // what there is to unreserve when the stream has ended; nil: it has not
}

// entering is what is asked about a pod that has no node yet, by its uid.
type entering struct {
	step pluginv1.Step
	uid  string
}

// lane has the steps of a pod, one after the other.
type lane struct {
	reserved *Placement // which no step has ended, taken or not; nil: none
	steps    []*Step    // behind the one that is under way
	running  bool
	gone     chan struct{} // closed when nothing is kept of the pod
}

// Serve takes the steps of one stream. It returns when all of them have been, and what was reserved has been taken back.
func (s *Server) Serve(in pluginv1.PluginService_PlaceServer, taker Taker) error {
	p := &stream{
		server: s, taker: taker, out: make(chan *pluginv1.PlaceResponse), turns: make(chan struct{}, AtOnce), behind: make(chan struct{}, AtOnce), enter: make(chan struct{}, AtOnce),
		lanes: make(map[string]*lane), entering: make(map[entering]bool),
		activated: newActivations(), hears: make(chan struct{}), ending: make(chan struct{}),
	}
	p.ctx, p.cancel = context.WithCancelCause(in.Context())
	s.begin(p)
	defer p.end()
	p.tasks.Go(func() { p.writes(in) })
	for {
		req, err := in.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := p.take(req); err != nil {
			return err
		}
	}
}

// end has taken back what is reserved and not bound, and waits until all has ended.
func (p *stream) end() {
	ctx, cancel := context.WithTimeout(context.Background(), TakeBackTime)
	defer cancel()
	p.mu.Lock()
	p.ended = ctx
	p.cancel(errStreamEnded)
	for _, l := range p.lanes {
		if of := l.reserved; of != nil {
			plugins := slices.Clone(of.plugins)
			slices.Reverse(plugins)
			l.reserved = nil
			p.add(l, &Step{Placement: of, silent: true, Kind: pluginv1.Step_STEP_UNRESERVE, Plugins: plugins, stream: p})
		}
	}
	p.mu.Unlock()
	close(p.ending)
	p.tasks.Wait()
	p.server.end(p)
}

// writes writes responses until the stream ends.
func (p *stream) writes(stream pluginv1.PluginService_PlaceServer) {
	hears, activated := p.hears, (<-chan struct{})(nil)
	for {
		var responses []*pluginv1.PlaceResponse
		select {
		case response := <-p.out:
			responses = append(p.changed(), response)
		case <-hears:
			hears, activated = nil, p.activated.more
		case <-activated:
			if response := p.activated.next(p.changes, p.activates); response != nil {
				responses = append(responses, response)
			}
		case <-p.ctx.Done():
			return
		}
		for _, response := range responses {
			if stream.Send(response) != nil { // who reads requests is told why
				p.cancel(errStreamEnded)
				return
			}
		}
	}
}

// changed returns which nodes have changed: it comes before what plugins answer, who may have said that before.
func (p *stream) changed() (out []*pluginv1.PlaceResponse) {
	for len(out) <= maxChanges/pluginproto.MaxChanges { // more are said only since
		response := p.activated.next(p.changes, false)
		if response == nil {
			break
		}
		out = append(out, response)
	}
	return out
}

// answer has a response written. It waits for those before it, so that whoever does not read is not kept many.
func (p *stream) answer(response *pluginv1.PlaceResponse) {
	select {
	case p.out <- response:
	case <-p.ctx.Done():
	}
}

// does says what a plugin does that takes a step.
var does = map[pluginv1.Step]string{
	pluginv1.Step_STEP_RESERVE: "reserves", pluginv1.Step_STEP_UNRESERVE: "reserves", pluginv1.Step_STEP_PERMIT: "permits",
	pluginv1.Step_STEP_PRE_BIND: "acts before a bind", pluginv1.Step_STEP_POST_BIND: "acts behind a bind", pluginv1.Step_STEP_BIND: "binds", pluginv1.Step_STEP_PRE_ENQUEUE: "says which pods may be tried", pluginv1.Step_STEP_QUEUE_SORT: "sorts the queue",
}

// take takes up a request. An error ends the stream.
func (p *stream) take(req *pluginv1.PlaceRequest) error {
	if req.GetId() != p.last+1 {
		return pluginproto.Invalid(fmt.Sprintf("%d: want %d", req.GetId(), p.last+1), "id")
	}
	p.last = req.GetId()
	p.reserves.hear(req)
	told := req.GetPlacement()
	if p.last == 1 {
		if err := p.taker.Tell(req); err != nil {
			return err
		}
		switch {
		case told != nil:
			return pluginproto.Invalid("the first request has none", "placement")
		case req.GetStep() != pluginv1.Step_STEP_UNSPECIFIED:
			return pluginproto.Invalid("the first request has none", "step")
		case len(req.GetPlugins()) > 0:
			return pluginproto.Invalid("the first request has none", "plugins")
		}
		p.server.call(p, req.GetStream())
		p.annotations, p.activates, p.changes = req.GetHearsAnnotations(), req.GetHearsActivates(), req.GetHearsChanges()
		if p.activates || p.changes {
			close(p.hears)
		}
		return nil
	}
	if len(req.GetProfiles()) > 0 {
		return pluginproto.Invalid("profiles are told in the first request only", "profiles")
	}
	if told == nil {
		return pluginproto.Invalid("want one", "placement")
	}
	at, ok := does[req.GetStep()]
	if !ok {
		return pluginproto.Invalid(fmt.Sprintf("there is no step %d", req.GetStep()), "step")
	}
	enters := req.GetStep() == pluginv1.Step_STEP_PRE_ENQUEUE || req.GetStep() == pluginv1.Step_STEP_QUEUE_SORT
	for _, f := range []struct{ name, value string }{{"uid", told.GetUid()}, {"namespace", told.GetNamespace()}, {"name", told.GetName()}, {"node", told.GetNode()}} {
		switch none := enters && f.name == "node"; {
		case none && f.value != "":
			return pluginproto.Invalid("want none", "placement.%s", f.name)
		case !none && f.value == "":
			return pluginproto.Invalid("want one", "placement.%s", f.name)
		}
	}
	for i, name := range req.GetPlugins() {
		if !p.taker.Takes(name, req.GetStep()) {
			return pluginproto.Invalid(fmt.Sprintf("there is no plugin %q that %s", name, at), "plugins[%d]", i)
		}
		if slices.Contains(req.GetPlugins()[:i], name) {
			return pluginproto.Invalid(fmt.Sprintf("%q is there twice", name), "plugins[%d]", i)
		}
	}
	switch sorts := req.GetStep() == pluginv1.Step_STEP_QUEUE_SORT; {
	case sorts != (req.GetQueued() != nil):
		return pluginproto.Invalid("it is there with STEP_QUEUE_SORT, and with that alone", "queued")
	case sorts && len(req.GetPlugins()) != 1:
		return pluginproto.Invalid("want one: the queue has one order", "plugins")
	case enters:
		return p.enters(req)
	}
	return p.sort(req)
}

// enters has it said whether a pod may be tried, or where it belongs in the queue. That is no step of a placement: it waits for none of the pod, and none waits for it.
func (p *stream) enters(req *pluginv1.PlaceRequest) error {
	about := entering{req.GetStep(), req.GetPlacement().GetUid()}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.entering[about]:
		return pluginproto.Invalid(fmt.Sprintf("that is asked of pod %q already", about.uid), "placement.uid")
	case p.entries >= MaxEntering:
		return pluginproto.Invalid(fmt.Sprintf("it is asked about %d pods whether they may be tried, as many as may be", MaxEntering), "step")
	}
	p.entering[about] = true
	p.entries++
	step := &Step{Placement: p.placementOf(req), Kind: req.GetStep(), Plugins: req.GetPlugins(), Queued: req.GetQueued(), stream: p, id: req.GetId()}
	p.tasks.Go(func() {
		response := p.step(step)
		step.Placement.cancel(nil)
		p.mu.Lock()
		delete(p.entering, about) // who has the answer may ask again
		p.mu.Unlock()
		p.answer(response)
		p.mu.Lock()
		p.entries--
		p.mu.Unlock()
	})
	return nil
}

// sort hands a request to the pod's lane. What ends the placement ends what is under way for it at once.
func (p *stream) sort(req *pluginv1.PlaceRequest) error {
	told, step := req.GetPlacement(), &Step{Kind: req.GetStep(), Plugins: req.GetPlugins(), stream: p, id: req.GetId()}
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.lanes[told.GetUid()]
	if l == nil {
		if len(p.lanes) >= maxPlacements {
			return pluginproto.Invalid(fmt.Sprintf("there are %d, as many as may be", maxPlacements), "placement")
		}
		l = &lane{gone: make(chan struct{})}
	}
	if len(l.steps) >= MaxBehind {
		return pluginproto.Invalid(fmt.Sprintf("%d steps of pod %q wait for one that is under way, as many as may", MaxBehind, told.GetUid()), "step")
	}
	of := l.reserved
	switch takes := req.GetStep(); {
	case takes == pluginv1.Step_STEP_RESERVE && of != nil:
		return pluginproto.Invalid(fmt.Sprintf("pod %q is reserved already", told.GetUid()), "placement.uid")
	case of != nil && of.Told.GetNode() != told.GetNode():
		return pluginproto.Invalid(fmt.Sprintf("pod %q is reserved on node %q", told.GetUid(), of.Told.GetNode()), "placement.node")
	case of == nil && (takes == pluginv1.Step_STEP_PERMIT || takes == pluginv1.Step_STEP_PRE_BIND || takes == pluginv1.Step_STEP_BIND):
		return pluginproto.Invalid(fmt.Sprintf("pod %q is not reserved", told.GetUid()), "placement.uid")
	case takes == pluginv1.Step_STEP_PERMIT && of.asked:
		return pluginproto.Invalid(fmt.Sprintf("it has been asked about pod %q", told.GetUid()), "step")
	case of == nil:
		of = p.placementOf(req)
	}
	switch step.Placement = of; req.GetStep() {
	case pluginv1.Step_STEP_RESERVE:
		l.reserved = of
	case pluginv1.Step_STEP_PERMIT:
		of.asked = true
	case pluginv1.Step_STEP_UNRESERVE:
		l.reserved = nil
		of.cancel(errGivenBack)
	case pluginv1.Step_STEP_POST_BIND: // by others, if something is under way
		l.reserved = nil
		of.cancel(errBound)
	}
	p.lanes[told.GetUid()] = l
	p.add(l, step)
	return nil
}

// placementOf returns a placement that has not been told of before.
func (p *stream) placementOf(req *pluginv1.PlaceRequest) *Placement {
	told := req.GetPlacement()
	of := &Placement{Told: told, Of: p.taker.Keep(told), plugins: req.GetPlugins()}
	told.Object = nil // once is enough
	of.ctx, of.cancel = context.WithCancelCause(p.ctx)
	return of
}

// add adds a step to a lane. mu is held.
func (p *stream) add(l *lane, s *Step) {
	l.steps = append(l.steps, s)
	if !l.running {
		l.running = true
		p.tasks.Go(func() { p.work(l, s.Placement.Told.GetUid()) })
	}
}

// work takes the steps of a lane, until there are none.
func (p *stream) work(l *lane, uid string) {
	for s := p.next(l, uid); s != nil; s = p.next(l, uid) {
		response := p.step(s)
		if s.Kind == pluginv1.Step_STEP_RESERVE {
			p.reserves.end(s.id) // whoever waits for that need not wait for who reads answers
		}
		if !s.silent {
			p.answer(response)
		}
	}
}

// next returns the next step of a lane. There is none: it does not run any more.
func (p *stream) next(l *lane, uid string) *Step {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(l.steps) == 0 {
		l.running = false
		if l.reserved == nil {
			delete(p.lanes, uid)
			close(l.gone)
		}
		return nil
	}
	s := l.steps[0]
	l.steps = l.steps[1:]
	return s
}

// step takes a step, and returns what is answered.
func (p *stream) step(s *Step) *pluginv1.PlaceResponse {
	of, response := s.Placement, &pluginv1.PlaceResponse{Id: s.id}
	var err error
	switch s.Kind {
	case pluginv1.Step_STEP_RESERVE:
		err = p.server.left(of.ctx, of.Told.GetUid())
		of.choose(p.annotations)
	case pluginv1.Step_STEP_PERMIT, pluginv1.Step_STEP_PRE_BIND, pluginv1.Step_STEP_BIND:
		if !of.reserved {
			err = ErrNotReserved
		}
	}
	if err == nil {
		response.Rejection, err = p.taker.Take(s, func(most time.Duration) {
			p.answer(&pluginv1.PlaceResponse{Id: s.id, WaitsMilliseconds: int64((most + time.Millisecond - 1) / time.Millisecond)})
		})
	}
	if s.Kind == pluginv1.Step_STEP_RESERVE {
		chosen := of.chosen()
		if of.reserved = err == nil && response.Rejection == nil; of.reserved {
			response.Annotations = chosen
		}
	}
	switch {
	case s.Kind == pluginv1.Step_STEP_BIND && errors.Is(err, ErrSkipped):
		response.Skipped = true
	case s.Kind == pluginv1.Step_STEP_QUEUE_SORT && err == nil:
		response.SortKey, response.SortOrder = s.Key, s.Order
	case err != nil:
		response.Error = pluginproto.Cut(err.Error())
	}
	return response
}

// left waits until streams that have ended have nothing of a pod any more. It does not for those whose plugins take longer than they have.
func (s *Server) left(ctx context.Context, uid string) error {
	s.mu.Lock()
	streams := slices.Collect(maps.Keys(s.streams))
	s.mu.Unlock()
	for _, p := range streams {
		if p.ctx.Err() == nil {
			continue
		}
		p.mu.Lock()
		l := p.lanes[uid]
		p.mu.Unlock()
		if l == nil {
			continue
		}
		select {
		case <-p.ending:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		select {
		case <-l.gone:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-p.ended.Done():
			select {
			case <-l.gone:
			default:
				return ErrLeft
			}
		}
	}
	return nil
}

// Context waits for a turn to call a plugin, and returns what the plugin is called with, until done. It ends when what is under way for the placement is to end, of STEP_POST_BIND, STEP_PRE_ENQUEUE and STEP_QUEUE_SORT when the stream does, of STEP_BIND not when the pod is bound;
// STEP_UNRESERVE is taken in any case, and has TakeBackTime. An error says why it is not called any more.
func (s *Step) Context() (_ context.Context, done func(), err error) {
	p, ctx := s.stream, s.Placement.ctx
	turns := p.turns
	switch s.Kind {
	case pluginv1.Step_STEP_POST_BIND: // that of the placement has ended
		ctx, turns = p.ctx, p.behind
	case pluginv1.Step_STEP_PRE_ENQUEUE, pluginv1.Step_STEP_QUEUE_SORT:
		turns = p.enter
	}
	switch {
	case s.Kind == pluginv1.Step_STEP_UNRESERVE:
		p.turns <- struct{}{}
		within, cancel := p.takingBack()
		return within, func() { cancel(); <-p.turns }, nil
	case ctx.Err() != nil:
		return nil, nil, context.Cause(ctx)
	case s.Kind == pluginv1.Step_STEP_PRE_BIND:
		return ctx, func() {}, nil
	case s.Kind == pluginv1.Step_STEP_BIND: // that the pod is bound is its own doing
		within, cancel := context.WithCancelCause(p.ctx)
		stop := context.AfterFunc(ctx, func() {
			if why := context.Cause(ctx); !errors.Is(why, errBound) {
				cancel(why)
			}
		})
		return within, func() { stop(); cancel(nil) }, nil
	}
	select {
	case turns <- struct{}{}:
		return ctx, func() { <-turns }, nil
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
}

// takingBack returns what there is to unreserve: not what ends with the stream.
func (p *stream) takingBack() (context.Context, context.CancelFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended != nil {
		return p.ended, func() {}
	}
	return context.WithTimeout(context.WithoutCancel(p.ctx), TakeBackTime)
}
