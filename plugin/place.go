package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

const (
	// stepsAtOnce are as many functions as are called at a time for a stream. PreBinds do not count, which may take minutes, nor do placements that wait: of these there are as many as placements.
	stepsAtOnce = 64
	// maxPlacements are as many pods as a stream can have something kept of. Berth has some ten thousand at most.
	maxPlacements = 100_000
	// maxStepsBehind are as many steps of a pod as wait for one that is under way. Berth sends one: what ends it.
	maxStepsBehind = 8
	// takeBackTime is what Unreserve has: for a pod, and for all pods of a stream that has ended.
	takeBackTime = 5 * time.Second
)

var (
	errGivenBack   = errors.New("the placement is given back")
	errStreamEnded = errors.New("the stream has ended")
	errBound       = errors.New("the pod is bound")
	errNotReserved = errors.New("the placement is not reserved: that has failed")
	errLeft        = errors.New("what a stream that has ended had of the pod is not taken back yet")
)

// point is where plugins take a step.
type point struct {
	name string // kube-scheduler's
	does string
	has  func(*Plugin) bool
}

var points = map[pluginv1.Step]point{
	pluginv1.Step_STEP_RESERVE:   {"Reserve", "reserves", func(p *Plugin) bool { return p.Reserve != nil }},
	pluginv1.Step_STEP_UNRESERVE: {"Unreserve", "reserves", func(p *Plugin) bool { return p.Unreserve != nil }},
	pluginv1.Step_STEP_PERMIT:    {"Permit", "permits", func(p *Plugin) bool { return p.Permit != nil }},
	pluginv1.Step_STEP_PRE_BIND:  {"PreBind", "acts before a bind", func(p *Plugin) bool { return p.PreBind != nil }},
	pluginv1.Step_STEP_POST_BIND: {"PostBind", "acts behind a bind", func(p *Plugin) bool { return p.PostBind != nil }},
}

// placing is one stream of Place. Its goroutines are one that writes, and one for each pod of which a step is under way; end waits for them.
type placing struct {
	service  *service
	profiles *profiles
	last     int64 // request
	ctx      context.Context
	cancel   context.CancelCauseFunc
	out      chan *pluginv1.PlaceResponse
	turns    chan struct{} // holds a value for each function that counts
	running  sync.WaitGroup

	ending chan struct{} // closed when ended is there

	mu    sync.Mutex
	lanes map[string]*lane // by the pod's uid
	ended context.Context  // what Unreserve gets when the stream has ended; nil: it has not
}

// lane has the steps of a pod, one after the other.
type lane struct {
	reserved *placement // which no step has ended, taken or not; nil: none
	steps    []*step    // behind the one that is under way
	running  bool
	gone     chan struct{} // closed when nothing is kept of the pod
}

type step struct {
	request *pluginv1.PlaceRequest
	of      *placement
	silent  bool // it is not answered: the stream has ended
}

// placement is what a stream has told of a placement. Steps of one are taken one at a time, and whoever takes one may change what mu does not guard.
type placement struct {
	told     *pluginv1.Placement // without the object
	pod      func() (*corev1.Pod, error)
	plugins  []string // that are to reserve it
	ctx      context.Context
	cancel   context.CancelCauseFunc
	asked    bool                  // whether it may be; the stream's mu's
	reserved bool                  // all have
	handed   map[string]*Placement // to plugins, by name

	news    chan struct{} // holds a value when something has been said
	mu      sync.Mutex
	said    map[string]word // by plugins
	decided bool            // nobody listens any more
}

// word is what a plugin has said of a placement.
type word struct {
	allowed  bool
	rejected string // why
}

// Place takes the steps of one stream.
func (s *service) Place(stream pluginv1.PluginService_PlaceServer) (err error) {
	ctx := stream.Context()
	if s.allow != nil {
		if err := s.allow(ctx); err != nil {
			return err
		}
	}
	p := &placing{
		service: s, profiles: newProfiles(s.plugins), out: make(chan *pluginv1.PlaceResponse), turns: make(chan struct{}, stepsAtOnce), lanes: make(map[string]*lane),
		ending: make(chan struct{}),
	}
	p.ctx, p.cancel = context.WithCancelCause(ctx)
	s.mu.Lock()
	s.placing[p] = true
	s.mu.Unlock()
	defer p.end()
	p.running.Go(func() { p.writes(stream) })
	for {
		req, err := stream.Recv()
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
func (p *placing) end() {
	ctx, cancel := context.WithTimeout(context.Background(), takeBackTime)
	defer cancel()
	p.mu.Lock()
	p.ended = ctx
	p.cancel(errStreamEnded)
	for _, l := range p.lanes {
		if of := l.reserved; of != nil {
			plugins := slices.Clone(of.plugins)
			slices.Reverse(plugins)
			l.reserved = nil
			p.add(l, &step{of: of, silent: true, request: &pluginv1.PlaceRequest{Placement: of.told, Step: pluginv1.Step_STEP_UNRESERVE, Plugins: plugins}})
		}
	}
	p.mu.Unlock()
	close(p.ending)
	p.running.Wait()
	p.service.mu.Lock()
	delete(p.service.placing, p)
	p.service.mu.Unlock()
}

// writes writes responses until the stream ends.
func (p *placing) writes(stream pluginv1.PluginService_PlaceServer) {
	for {
		select {
		case response := <-p.out:
			if stream.Send(response) != nil { // who reads requests is told why
				p.cancel(errStreamEnded)
				return
			}
		case <-p.ctx.Done():
			return
		}
	}
}

// answer has a response written. It waits for those before it, so that whoever does not read is not kept many.
func (p *placing) answer(response *pluginv1.PlaceResponse) {
	select {
	case p.out <- response:
	case <-p.ctx.Done():
	}
}

// take takes up a request. An error ends the stream.
func (p *placing) take(req *pluginv1.PlaceRequest) error {
	if req.GetId() != p.last+1 {
		return invalid(fmt.Sprintf("%d: want %d", req.GetId(), p.last+1), "id")
	}
	p.last = req.GetId()
	if err := p.profiles.tell(p.last, req.GetProfiles()); err != nil {
		return err
	}
	told := req.GetPlacement()
	if p.last == 1 {
		switch {
		case told != nil:
			return invalid("the first request has none", "placement")
		case req.GetStep() != pluginv1.Step_STEP_UNSPECIFIED:
			return invalid("the first request has none", "step")
		case len(req.GetPlugins()) > 0:
			return invalid("the first request has none", "plugins")
		}
		return nil
	}
	if told == nil {
		return invalid("want one", "placement")
	}
	for _, f := range []struct{ name, value string }{{"uid", told.GetUid()}, {"namespace", told.GetNamespace()}, {"name", told.GetName()}, {"node", told.GetNode()}} {
		if f.value == "" {
			return invalid("want one", "placement.%s", f.name)
		}
	}
	at, ok := points[req.GetStep()]
	if !ok {
		return invalid(fmt.Sprintf("there is no step %d", req.GetStep()), "step")
	}
	for i, name := range req.GetPlugins() {
		if plugin := p.service.plugins[name]; plugin == nil || !at.has(plugin) {
			return invalid(fmt.Sprintf("there is no plugin %q that %s", name, at.does), "plugins[%d]", i)
		}
		if slices.Contains(req.GetPlugins()[:i], name) {
			return invalid(fmt.Sprintf("%q is there twice", name), "plugins[%d]", i)
		}
	}
	return p.sort(req)
}

// sort hands a request to the pod's lane. What ends the placement ends what is under way for it at once.
func (p *placing) sort(req *pluginv1.PlaceRequest) error {
	told, step := req.GetPlacement(), &step{request: req}
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.lanes[told.GetUid()]
	if l == nil {
		if len(p.lanes) >= maxPlacements {
			return invalid(fmt.Sprintf("there are %d, as many as may be", maxPlacements), "placement")
		}
		l = &lane{gone: make(chan struct{})}
	}
	if len(l.steps) >= maxStepsBehind {
		return invalid(fmt.Sprintf("%d steps of pod %q wait for one that is under way, as many as may", maxStepsBehind, told.GetUid()), "step")
	}
	of := l.reserved
	switch takes := req.GetStep(); {
	case takes == pluginv1.Step_STEP_RESERVE && of != nil:
		return invalid(fmt.Sprintf("pod %q is reserved already", told.GetUid()), "placement.uid")
	case of != nil && of.told.GetNode() != told.GetNode():
		return invalid(fmt.Sprintf("pod %q is reserved on node %q", told.GetUid(), of.told.GetNode()), "placement.node")
	case of == nil && (takes == pluginv1.Step_STEP_PERMIT || takes == pluginv1.Step_STEP_PRE_BIND):
		return invalid(fmt.Sprintf("pod %q is not reserved", told.GetUid()), "placement.uid")
	case takes == pluginv1.Step_STEP_PERMIT && of.asked:
		return invalid(fmt.Sprintf("it has been asked about pod %q", told.GetUid()), "step")
	case of == nil:
		of = p.placementOf(req)
	}
	switch step.of = of; req.GetStep() {
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
func (p *placing) placementOf(req *pluginv1.PlaceRequest) *placement {
	told := req.GetPlacement()
	of := &placement{
		told: told, plugins: req.GetPlugins(), handed: make(map[string]*Placement), news: make(chan struct{}, 1), said: make(map[string]word), pod: decoded[corev1.Pod](told.GetObject()),
	}
	told.Object = nil // once is enough
	of.ctx, of.cancel = context.WithCancelCause(p.ctx)
	return of
}

// add adds a step to a lane. mu is held.
func (p *placing) add(l *lane, s *step) {
	l.steps = append(l.steps, s)
	if !l.running {
		l.running = true
		p.running.Go(func() { p.work(l, s.of.told.GetUid()) })
	}
}

// work takes the steps of a lane, until there are none.
func (p *placing) work(l *lane, uid string) {
	for s := p.next(l, uid); s != nil; s = p.next(l, uid) {
		response := p.step(s)
		if !s.silent {
			p.answer(response)
		}
	}
}

// next returns the next step of a lane. There is none: it does not run any more.
func (p *placing) next(l *lane, uid string) *step {
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
func (p *placing) step(s *step) *pluginv1.PlaceResponse {
	of, response := s.of, &pluginv1.PlaceResponse{Id: s.request.GetId()}
	var err error
	switch s.request.GetStep() {
	case pluginv1.Step_STEP_RESERVE:
		if err = p.service.left(of.ctx, of.told.GetUid()); err == nil {
			response.Rejection, err = p.first(s, func(ctx context.Context, plugin *Plugin, with *Placement) (*Rejection, error) {
				return plugin.Reserve(ctx, with)
			})
		}
		of.reserved = err == nil && response.Rejection == nil
	case pluginv1.Step_STEP_PERMIT:
		response.Rejection, err = p.permit(s)
	case pluginv1.Step_STEP_PRE_BIND:
		response.Rejection, err = p.first(s, func(ctx context.Context, plugin *Plugin, with *Placement) (*Rejection, error) {
			return plugin.PreBind(ctx, with)
		})
	case pluginv1.Step_STEP_UNRESERVE:
		err = p.all(s, func(ctx context.Context, plugin *Plugin, with *Placement) { plugin.Unreserve(ctx, with) })
		of.decide()
	case pluginv1.Step_STEP_POST_BIND:
		err = p.all(s, func(ctx context.Context, plugin *Plugin, with *Placement) { plugin.PostBind(ctx, with) })
		of.decide()
	}
	if err != nil {
		response.Error = cut(err.Error())
	}
	return response
}

// left waits until streams that have ended have nothing of a pod any more. It does not for those whose plugins take longer than they have.
func (s *service) left(ctx context.Context, uid string) error {
	s.mu.Lock()
	streams := slices.Collect(maps.Keys(s.placing))
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
				return errLeft
			}
		}
	}
	return nil
}

// first has plugins take a step one after the other, until one does not succeed.
func (p *placing) first(s *step, f func(context.Context, *Plugin, *Placement) (*Rejection, error)) (*pluginv1.Rejection, error) {
	if !s.of.reserved && s.request.GetStep() != pluginv1.Step_STEP_RESERVE {
		return nil, errNotReserved
	}
	for _, name := range s.request.GetPlugins() {
		rejection, err := p.call(s, name, f)
		if err == nil {
			err = rejection.check()
		}
		if err != nil {
			return nil, s.failed(name, err)
		}
		if rejection != nil {
			return &pluginv1.Rejection{Plugin: name, Reason: cut(rejection.Reason)}, nil
		}
	}
	return nil, nil
}

// all has plugins take a step one after the other, whatever comes of it. It returns what goes wrong first.
func (p *placing) all(s *step, f func(context.Context, *Plugin, *Placement)) (first error) {
	for _, name := range s.request.GetPlugins() {
		_, err := p.call(s, name, func(ctx context.Context, plugin *Plugin, with *Placement) (*Rejection, error) {
			f(ctx, plugin, with)
			return nil, nil
		})
		if err != nil && first == nil {
			first = s.failed(name, err)
		}
	}
	return first
}

// failed is kube-scheduler's text for a plugin that has failed.
func (s *step) failed(plugin string, err error) error {
	if errors.Is(err, context.Canceled) && s.of.ctx.Err() != nil {
		err = context.Cause(s.of.ctx)
	}
	return fmt.Errorf("running %s plugin %q: %w", points[s.request.GetStep()].name, plugin, err)
}

// call has a plugin take a step, in its turn.
func (p *placing) call(s *step, name string, f func(context.Context, *Plugin, *Placement) (*Rejection, error)) (_ *Rejection, err error) {
	ctx, takes := s.of.ctx, s.request.GetStep()
	if takes == pluginv1.Step_STEP_POST_BIND { // that of the placement has ended
		ctx = p.ctx
	}
	plugin, err := p.profiles.find(s.of.told.GetSchedulerName(), name)
	switch {
	case err != nil && takes == pluginv1.Step_STEP_UNRESERVE: // it has done nothing
		return nil, nil
	case err != nil:
		return nil, err
	case takes == pluginv1.Step_STEP_UNRESERVE: // in any case
		p.turns <- struct{}{}
		defer func() { <-p.turns }()
		within, cancel := p.takingBack()
		defer cancel()
		ctx = within
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case takes != pluginv1.Step_STEP_PRE_BIND:
		select {
		case p.turns <- struct{}{}:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		defer func() { <-p.turns }()
	}
	defer func() {
		if what := recover(); what != nil {
			p.service.log.Error("a plugin panicked", "plugin", name, "pod", s.of.told.GetNamespace()+"/"+s.of.told.GetName(), "node", s.of.told.GetNode(), "err", what, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", what)
		}
	}()
	return f(ctx, plugin, s.of.hand(name))
}

// takingBack returns what Unreserve gets: not what ends with the stream.
func (p *placing) takingBack() (context.Context, context.CancelFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended != nil {
		return p.ended, func() {}
	}
	return context.WithTimeout(context.WithoutCancel(p.ctx), takeBackTime)
}

// hand returns the placement as a plugin gets it.
func (of *placement) hand(plugin string) *Placement {
	if of.handed[plugin] == nil {
		of.handed[plugin] = &Placement{
			UID: of.told.GetUid(), Namespace: of.told.GetNamespace(), Name: of.told.GetName(), SchedulerName: of.told.GetSchedulerName(), Node: of.told.GetNode(),
			plugin: plugin, of: of,
		}
	}
	return of.handed[plugin]
}

// permit asks plugins whether a placement may be, and waits for those that do not know yet.
func (p *placing) permit(s *step) (*pluginv1.Rejection, error) {
	waits := make(map[string]time.Duration)
	rejection, err := p.first(s, func(ctx context.Context, plugin *Plugin, with *Placement) (*Rejection, error) {
		is, err := plugin.Permit(ctx, with)
		if err == nil {
			err = is.check()
		}
		if is.Wait > 0 {
			waits[with.plugin] = min(is.Wait, maxWait)
		}
		return is.Rejection, err
	})
	if err == nil && rejection == nil {
		rejection, err = s.of.wait(s.request.GetPlugins(), waits, func(most time.Duration) {
			p.answer(&pluginv1.PlaceResponse{Id: s.request.GetId(), WaitsMilliseconds: int64((most + time.Millisecond - 1) / time.Millisecond)})
		})
	}
	s.of.decide()
	return rejection, err
}

// wait waits until all plugins have allowed the placement that have it wait, or one has rejected it, or time is up for one. If it has to wait, it says for how long at most.
func (of *placement) wait(plugins []string, waits map[string]time.Duration, tell func(most time.Duration)) (*pluginv1.Rejection, error) {
	since := time.Now()
	for told := false; ; told = true {
		rejection, next, most := of.heard(plugins, waits)
		if rejection != nil || next == "" {
			return rejection, nil
		}
		if !told {
			tell(most)
		}
		timer := time.NewTimer(waits[next] - time.Since(since))
		select {
		case <-of.news:
			timer.Stop()
		case <-timer.C:
			return &pluginv1.Rejection{Plugin: next, Reason: fmt.Sprintf("rejected due to timeout after waiting %v at plugin %v", waits[next], next)}, nil
		case <-of.ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("waiting on permit for pod: %w", context.Cause(of.ctx))
		}
	}
}

// heard returns what plugins have said: a rejection, or of those that are waited for the one for which time is up next, and for how long all may be waited for.
func (of *placement) heard(plugins []string, waits map[string]time.Duration) (rejection *pluginv1.Rejection, next string, most time.Duration) {
	of.mu.Lock()
	defer of.mu.Unlock()
	for _, name := range plugins {
		said, wait := of.said[name], waits[name]
		if said.rejected != "" {
			return &pluginv1.Rejection{Plugin: name, Reason: cut(said.rejected)}, "", 0
		}
		if wait > 0 && !said.allowed {
			most = max(most, wait)
			if next == "" || wait < waits[next] {
				next = name
			}
		}
	}
	return nil, next, most
}

// say notes what a plugin says. A rejection stands.
func (of *placement) say(plugin string, says word) {
	of.mu.Lock()
	defer of.mu.Unlock()
	if of.decided || of.said[plugin].rejected != "" {
		return
	}
	of.said[plugin] = says
	select {
	case of.news <- struct{}{}:
	default:
	}
}

// decide has nobody heard any more.
func (of *placement) decide() {
	of.mu.Lock()
	defer of.mu.Unlock()
	of.decided, of.said = true, nil
}
