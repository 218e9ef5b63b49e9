package plugin

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/placeserver"
	"github.com/berth-scheduler/berth/internal/pluginproto"
)

// point is where plugins take a step.
type point struct {
	name string // kube-scheduler's
	has  func(*Plugin) bool
}

var points = map[pluginv1.Step]point{
	pluginv1.Step_STEP_RESERVE:   {"Reserve", func(p *Plugin) bool { return p.Reserve != nil }},
	pluginv1.Step_STEP_UNRESERVE: {"Unreserve", func(p *Plugin) bool { return p.Unreserve != nil }},
	pluginv1.Step_STEP_PERMIT:    {"Permit", func(p *Plugin) bool { return p.Permit != nil }},
	pluginv1.Step_STEP_PRE_BIND:  {"PreBind", func(p *Plugin) bool { return p.PreBind != nil }},
	pluginv1.Step_STEP_BIND:      {"Bind", func(p *Plugin) bool { return p.Bind != nil }},
	pluginv1.Step_STEP_POST_BIND: {"PostBind", func(p *Plugin) bool { return p.PostBind != nil }},

	pluginv1.Step_STEP_PRE_ENQUEUE: {"PreEnqueue", func(p *Plugin) bool { return p.PreEnqueue != nil }},
	pluginv1.Step_STEP_QUEUE_SORT:  {"QueueSort", func(p *Plugin) bool { return p.SortKey != nil }},
}

// steps has plugins take the steps of one stream of Place.
type steps struct {
	*profiles
	service *service
}

// placement is what plugins have of a placement. Steps of one are taken one at a time, and whoever takes one may change what mu does not guard.
type placement struct {
	told   *pluginv1.Placement // without the object
	pod    func() (*corev1.Pod, error)
	handed map[string]*Placement // to plugins, by name

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
func (s *service) Place(stream pluginv1.PluginService_PlaceServer) error {
	if s.allow != nil {
		if err := s.allow(stream.Context()); err != nil {
			return err
		}
	}
	return s.placing.Serve(stream, &steps{newProfiles(s.plugins), s})
}

// Tell takes up the profiles that are told.
func (p *steps) Tell(first *pluginv1.PlaceRequest) error {
	if err := p.service.tells(first.GetTellsAnnotations()); err != nil {
		return err
	}
	return p.tell(1, first.GetProfiles())
}

// Takes reports whether a plugin takes a step.
func (p *steps) Takes(plugin string, step pluginv1.Step) bool {
	is := p.plugins[plugin]
	return is != nil && points[step].has(is)
}

// Keep returns a placement that has not been told of before.
func (p *steps) Keep(told *pluginv1.Placement) any {
	return &placement{told: told, handed: make(map[string]*Placement), news: make(chan struct{}, 1), said: make(map[string]word), pod: decoded[corev1.Pod](told.GetObject())}
}

// taken is a step that plugins take.
type taken struct {
	*placeserver.Step
	*steps
	of *placement
}

// Take has plugins take a step.
func (p *steps) Take(step *placeserver.Step, waits func(most time.Duration)) (rejection *pluginv1.Rejection, err error) {
	s := &taken{step, p, step.Placement.Of.(*placement)}
	switch step.Kind {
	case pluginv1.Step_STEP_PRE_ENQUEUE:
		defer s.of.decide()
		return s.first(func(ctx context.Context, plugin *Plugin, with *Placement) (*Rejection, error) {
			return plugin.PreEnqueue(ctx, with)
		})
	case pluginv1.Step_STEP_QUEUE_SORT:
		defer s.of.decide()
		return s.first(func(ctx context.Context, plugin *Plugin, with *Placement) (_ *Rejection, err error) {
			step.Key, err = plugin.SortKey(ctx, with, queuedOf(step.Queued))
			return nil, err
		})
	case pluginv1.Step_STEP_RESERVE:
		return s.first(func(ctx context.Context, plugin *Plugin, with *Placement) (*Rejection, error) {
			return plugin.Reserve(ctx, with)
		})
	case pluginv1.Step_STEP_PERMIT:
		return s.permit(waits)
	case pluginv1.Step_STEP_PRE_BIND:
		return s.first(func(ctx context.Context, plugin *Plugin, with *Placement) (*Rejection, error) {
			return plugin.PreBind(ctx, with)
		})
	case pluginv1.Step_STEP_BIND:
		return s.bind()
	case pluginv1.Step_STEP_UNRESERVE:
		err = s.all(func(ctx context.Context, plugin *Plugin, with *Placement) { plugin.Unreserve(ctx, with) })
		s.of.decide()
	case pluginv1.Step_STEP_POST_BIND:
		err = s.all(func(ctx context.Context, plugin *Plugin, with *Placement) { plugin.PostBind(ctx, with) })
		s.of.decide()
	}
	return nil, err
}

// first has plugins take a step one after the other, until one does not succeed.
func (s *taken) first(f func(context.Context, *Plugin, *Placement) (*Rejection, error)) (*pluginv1.Rejection, error) {
	for _, name := range s.Plugins {
		rejection, err := s.call(name, f)
		if err == nil {
			err = rejection.check()
		}
		if err != nil {
			return nil, s.failed(name, err)
		}
		if rejection != nil {
			return &pluginv1.Rejection{Plugin: name, Reason: pluginproto.Cut(rejection.Reason)}, nil
		}
	}
	return nil, nil
}

// bind has the first plugin bind that does not skip the pod.
func (s *taken) bind() (rejection *pluginv1.Rejection, err error) {
	bound := false
	for _, name := range s.Plugins {
		_, err := s.call(name, func(ctx context.Context, plugin *Plugin, with *Placement) (_ *Rejection, err error) {
			bound, err = plugin.Bind(ctx, with)
			return nil, err
		})
		if err != nil {
			return nil, s.failed(name, err)
		}
		if bound {
			return nil, nil
		}
	}
	return nil, placeserver.ErrSkipped
}

// all has plugins take a step one after the other, whatever comes of it. It returns what goes wrong first.
func (s *taken) all(f func(context.Context, *Plugin, *Placement)) (first error) {
	for _, name := range s.Plugins {
		_, err := s.call(name, func(ctx context.Context, plugin *Plugin, with *Placement) (*Rejection, error) {
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
func (s *taken) failed(plugin string, err error) error {
	if errors.Is(err, context.Canceled) && s.Placement.Context().Err() != nil {
		err = context.Cause(s.Placement.Context())
	}
	return fmt.Errorf("running %s plugin %q: %w", points[s.Kind].name, plugin, err)
}

// call has a plugin take a step, in its turn.
func (s *taken) call(name string, f func(context.Context, *Plugin, *Placement) (*Rejection, error)) (_ *Rejection, err error) {
	plugin, err := s.find(s.of.told.GetSchedulerName(), name)
	switch {
	case err != nil && s.Kind == pluginv1.Step_STEP_UNRESERVE: // it has done nothing
		return nil, nil
	case err != nil:
		return nil, err
	}
	ctx, done, err := s.Context()
	if err != nil {
		return nil, err
	}
	defer done()
	defer func() {
		if what := recover(); what != nil {
			s.service.log.Error("a plugin panicked", "plugin", name, "pod", s.of.told.GetNamespace()+"/"+s.of.told.GetName(), "node", s.of.told.GetNode(), "err", what, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", what)
		}
	}()
	rejection, err := f(ctx, plugin, s.of.hand(name, s.Placement))
	return rejection, pluginproto.FailureOf(err)
}

// hand returns the placement as a plugin gets it.
func (of *placement) hand(plugin string, at *placeserver.Placement) *Placement {
	if of.handed[plugin] == nil {
		of.handed[plugin] = &Placement{
			UID: of.told.GetUid(), Namespace: of.told.GetNamespace(), Name: of.told.GetName(), SchedulerName: of.told.GetSchedulerName(), Node: of.told.GetNode(), Stands: of.told.GetStands(), Labels: of.told.GetPodLabels(), PodAnnotations: of.told.GetPodAnnotations(),
			plugin: plugin, of: of, at: at,
		}
	}
	return of.handed[plugin]
}

// permit asks plugins whether a placement may be, and waits for those that do not know yet.
func (s *taken) permit(tell func(most time.Duration)) (*pluginv1.Rejection, error) {
	waits := make(map[string]time.Duration)
	rejection, err := s.first(func(ctx context.Context, plugin *Plugin, with *Placement) (*Rejection, error) {
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
		rejection, err = s.of.wait(s.Placement.Context(), s.Plugins, waits, tell)
	}
	s.of.decide()
	return rejection, err
}

// wait waits until all plugins have allowed the placement that have it wait, or one has rejected it, or time is up for one. If it has to wait, it says for how long at most.
func (of *placement) wait(ctx context.Context, plugins []string, waits map[string]time.Duration, tell func(most time.Duration)) (*pluginv1.Rejection, error) {
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
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("waiting on permit for pod: %w", context.Cause(ctx))
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
			return &pluginv1.Rejection{Plugin: name, Reason: pluginproto.Cut(said.rejected)}, "", 0
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
