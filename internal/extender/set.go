package extender

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/bits"
	"net/http"
	"sync"
	"time"

	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/berth-scheduler/berth/internal/logs"
)

// Verb is what an extender can be asked to do.
type Verb string

// These are the verbs. How a server calls them is in its configuration.
const (
	Filter     Verb = "filter"
	Prioritize Verb = "prioritize"
	Bind       Verb = "bind"
	Preempt    Verb = "preempt"
)

// Plugin is the plugin that has rejected a pod, by kube-scheduler's name, where extenders have refused nodes.
const Plugin = "Extender"

// Scale is what sums of scores are multiplied with before they are added to those of plugins: extenders score up to 10, and plugins up to 100.
const Scale = 100 / extenderv1.MaxExtenderPriority

// Config is everything a Set needs.
type Config struct {
	// Extenders are those of a KubeSchedulerConfiguration that is valid, in its order.
	Extenders []configv1.Extender
	// OnlyAsked says that an extender has failed that leaves a node which it was not asked about. kube-scheduler takes an object that it has never seen for a node.
	OnlyAsked bool
	// Observe is told of each call; nil: nobody is.
	Observe Observer
	// Log gets a line for each extender that was skipped; nil: there is no log.
	Log *slog.Logger
}

// Set is the extenders of a configuration, in the order in which they are asked: ignorable ones behind the others. It is safe for concurrent use. An
// empty one is interested in nothing.
type Set struct {
	extenders []*extender
	log       *slog.Logger
}

// extender is one of them.
type extender struct {
	url              string // its urlPrefix without user and password, by which it is known
	places           map[Verb]place
	weight           int64
	ignorable        bool
	nodeCacheCapable bool
	onlyAsked        bool
	managed          map[string]bool // resources; none: all pods interest it
	client, binding  *http.Client    // binding is that of Bind: binds that hang leave connections to the others
	mostAnswered     func(Verb) int  // but in tests, mostAnswered
	observe          Observer
}

// place is where a verb is asked, and how the server calls it.
type place struct{ verb, url string }

// New returns a set that has connected to nobody yet. An error names the field that it is about.
func New(cfg Config) (*Set, error) {
	s := &Set{log: cfg.Log}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.log = logs.Bounded(s.log)
	if n := len(cfg.Extenders); n > MaxExtenders {
		return nil, fmt.Errorf("extenders: %d, want at most %d", n, MaxExtenders)
	}
	var ignorable []*extender
	for i := range cfg.Extenders {
		e, err := newExtender(&cfg.Extenders[i], cfg.Observe)
		if err != nil {
			return nil, fmt.Errorf("extenders[%d].%w", i, err)
		}
		e.onlyAsked = cfg.OnlyAsked
		if e.ignorable {
			ignorable = append(ignorable, e)
		} else {
			s.extenders = append(s.extenders, e)
		}
	}
	s.extenders = append(s.extenders, ignorable...)
	return s, nil
}

func newExtender(cfg *configv1.Extender, observe Observer) (*extender, error) {
	client, err := newClient(cfg)
	if err != nil {
		return nil, err
	}
	binding, err := newClient(cfg)
	if err != nil {
		return nil, err
	}
	e := &extender{
		url: WithoutUser(cfg.URLPrefix), places: make(map[Verb]place), weight: cfg.Weight, ignorable: cfg.Ignorable, nodeCacheCapable: cfg.NodeCacheCapable,
		managed: make(map[string]bool), client: client, binding: binding, mostAnswered: mostAnswered, observe: observe,
	}
	if observe == nil {
		e.observe = func(Call) {}
	}
	for verb, called := range map[Verb]string{Filter: cfg.FilterVerb, Prioritize: cfg.PrioritizeVerb, Bind: cfg.BindVerb, Preempt: cfg.PreemptVerb} {
		if called != "" {
			e.places[verb] = place{called, at(cfg, called)}
		}
	}
	for _, r := range cfg.ManagedResources {
		e.managed[r.Name] = true
	}
	return e, nil
}

// IgnoredResources returns the resources that extenders manage and schedulers are not to look at, in the configuration's order. If there are any,
// they are the ignoredResources of NodeResourcesFit in every profile, whatever its arguments say.
func IgnoredResources(extenders []configv1.Extender) (out []string) {
	for _, e := range extenders {
		for _, r := range e.ManagedResources {
			if r.IgnoredByScheduler {
				out = append(out, r.Name)
			}
		}
	}
	return out
}

// Len returns how many extenders there are.
func (s *Set) Len() int { return len(s.extenders) }

// Close closes the connections that no call uses.
func (s *Set) Close() {
	for _, e := range s.extenders {
		e.client.CloseIdleConnections()
		e.binding.CloseIdleConnections()
	}
}

// Interest is a set of the extenders of a Set, by their place in its order.
type Interest uint64

// MaxExtenders is how many extenders a Set may have.
const MaxExtenders = 64

// Interest returns the extenders that a pod interests whose containers have resources of these names. It may be that they are asked nothing about it:
// they make Prioritize score nodes nevertheless.
func (s *Set) Interest(resources iter.Seq[string]) (in Interest) {
	for i, e := range s.extenders {
		if e.interested(resources) {
			in |= 1 << i
		}
	}
	return in
}

// Can returns the extenders that can be asked to do something, whoever interests them.
func (s *Set) Can(verb Verb) (which Interest) {
	for i, e := range s.extenders {
		if e.can(verb) {
			which |= 1 << i
		}
	}
	return which
}

// Each returns the places of the extenders of a set, in order.
func (in Interest) Each() iter.Seq[int] {
	return func(yield func(int) bool) {
		for ; in != 0; in &= in - 1 {
			if !yield(bits.TrailingZeros64(uint64(in))) {
				return
			}
		}
	}
}

// Full reports whether some extender of a set is sent nodes in full, and not by their names.
func (s *Set) Full(in Interest) bool {
	for i := range in.Each() {
		if !s.extenders[i].nodeCacheCapable {
			return true
		}
	}
	return false
}

// Longest returns how long a Filter and a Prioritize take at most that ask the extenders of a set.
func (s *Set) Longest(in Interest) (long time.Duration) {
	var prioritize time.Duration
	for i := range in.Each() {
		e := s.extenders[i]
		if e.can(Filter) {
			long += e.client.Timeout
		}
		if e.can(Prioritize) {
			prioritize = max(prioritize, e.client.Timeout)
		}
	}
	return long + prioritize
}

// LongestPreempt returns how long a Preempt takes at most that asks the extenders of a set.
func (s *Set) LongestPreempt(in Interest) (long time.Duration) {
	for i := range in.Each() {
		if e := s.extenders[i]; e.can(Preempt) {
			long += e.client.Timeout
		}
	}
	return long
}

// interested returns the extenders that a pod interests whose containers have resources of these names, in order.
func (s *Set) interested(resources iter.Seq[string]) iter.Seq[*extender] {
	return func(yield func(*extender) bool) {
		for _, e := range s.extenders {
			if e.interested(resources) && !yield(e) {
				return
			}
		}
	}
}

func (e *extender) interested(resources iter.Seq[string]) bool {
	if len(e.managed) == 0 {
		return true
	}
	for name := range resources {
		if e.managed[name] {
			return true
		}
	}
	return false
}

func (e *extender) clientOf(verb Verb) *http.Client {
	if verb == Bind {
		return e.binding
	}
	return e.client
}

func (e *extender) can(verb Verb) bool {
	_, can := e.places[verb]
	return can
}

// about returns the body of a question as the extender wants it.
func (e *extender) about(q *question) ([]byte, error) {
	if e.nodeCacheCapable {
		return q.byName()
	}
	return q.inFull()
}

// Filtered is what extenders have left of the feasible nodes.
type Filtered struct {
	// Nodes are those that nobody has refused, in the order of the last answer. An extender that is not nodeCacheCapable may have answered with other
	// objects than it was sent, and, without Config.OnlyAsked, even with nodes that nobody asked it about; any may have answered one twice. If there are fewer than
	// there were, or more, and the pod fits nowhere in the end, Plugin is among those who have rejected it.
	Nodes []*Node
	// Refused has what was said of nodes, by name, among them maybe nodes that are left, and unknown ones. It takes the place of what plugins have said.
	// Of a node that was left out without a word, nothing is known: kube-scheduler gives it no reason, and does not preempt there.
	Refused map[string]Refusal
}

// Filter asks the extenders that a pod interests, one after the other, each about the nodes that the former has left, until there are none. An
// ignorable one that fails is skipped. The failure of another ends the attempt: the error has kube-scheduler's text.
func (s *Set) Filter(ctx context.Context, pod *Pod, nodes []*Node) (Filtered, error) {
	out := Filtered{Nodes: nodes, Refused: make(map[string]Refusal)}
	for e := range s.interested(ResourceNames(pod.object)) {
		if len(out.Nodes) == 0 {
			break
		}
		if !e.can(Filter) {
			continue
		}
		left, answer, err := e.filter(ctx, pod, out.Nodes)
		if err != nil {
			if err := s.skip(ctx, e, Filter, pod, err); err != nil {
				return Filtered{}, err
			}
			continue
		}
		refuse(out.Refused, answer)
		out.Nodes = left
	}
	return out, nil
}

func (e *extender) filter(ctx context.Context, pod *Pod, nodes []*Node) ([]*Node, *extenderv1.ExtenderFilterResult, error) {
	body, err := e.about(ask(pod, nodes))
	if err != nil {
		return nil, nil, err
	}
	answer := new(extenderv1.ExtenderFilterResult)
	if err := e.call(ctx, Filter, body, len(nodes), answer); err != nil {
		return nil, nil, err
	}
	left, err := kept(e.url, e.nodeCacheCapable, nodes, answer)
	if err == nil && e.onlyAsked {
		err = strange(e.url, nodes, left)
	}
	return left, answer, err
}

// skip returns nil if an extender that has failed is to be skipped, and notes that. It is not if the call has ended since the context had.
func (s *Set) skip(ctx context.Context, e *extender, verb Verb, pod fmt.Stringer, err error) error {
	err = cut(err) // it may name a node of an answer
	if ctx.Err() != nil {
		return fmt.Errorf("ask extender %q to %s: %w", e.url, verb, context.Cause(ctx))
	}
	if !e.ignorable {
		return err
	}
	s.log.Info("extender skipped: it has failed, and is ignorable", "extender", e.url, "what", verb, "pod", pod.String(), "err", err)
	return nil
}

// Prioritize asks the extenders that a pod interests, all at once, to score nodes, and returns the sums of what they say, weighted, by node. They are
// to be multiplied with [Scale]. A node has a score, though it may be 0, if somebody has given it one, or if the pod interests an extender that is not asked to
// score: among nodes with equal totals, kube-scheduler prefers those. What fails gives no score. The error is that the context has ended.
func (s *Set) Prioritize(ctx context.Context, pod *Pod, nodes []*Node) (map[string]int64, error) {
	scores := make(map[string]int64, len(nodes))
	var mu sync.Mutex
	var all sync.WaitGroup
	asked, known := ask(pod, nodes), indexed(nodes)
	for e := range s.interested(ResourceNames(pod.object)) {
		if !e.can(Prioritize) {
			mu.Lock()
			for _, n := range nodes {
				scores[n.Name()] += 0
			}
			mu.Unlock()
			continue
		}
		all.Go(func() {
			answer, err := e.prioritize(ctx, asked, len(nodes))
			if err != nil {
				s.log.Debug("extender gives no scores: it has failed", "extender", e.url, "what", Prioritize, "pod", pod.String(), "err", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			score(scores, e.weight, known, answer)
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("ask extenders to %s: %w", Prioritize, context.Cause(ctx))
	}
	return scores, nil
}

func (e *extender) prioritize(ctx context.Context, asked *question, nodes int) (answer extenderv1.HostPriorityList, err error) {
	body, err := e.about(asked)
	if err != nil {
		return nil, err
	}
	err = e.call(ctx, Prioritize, body, nodes, &answer)
	return answer, err
}

// Bind has a pod bound by the first extender that binds, and that a pod interests whose containers have resources of these names. If that fails and is
// ignorable, or if there is none, nobody has bound the pod. An error has kube-scheduler's text; unless it is [Stated], the pod may be bound all the same.
func (s *Set) Bind(ctx context.Context, resources iter.Seq[string], binding extenderv1.ExtenderBindingArgs) (bound bool, err error) {
	for e := range s.interested(resources) {
		if !e.can(Bind) {
			continue
		}
		body, err := json.Marshal(binding)
		if err == nil {
			err = e.call(ctx, Bind, body, 1, new(extenderv1.ExtenderBindingResult))
		}
		if err == nil {
			return true, nil
		}
		if err := s.skip(ctx, e, Bind, bindingPod(binding), err); err != nil {
			return true, err
		}
	}
	return false, nil
}

// bindingPod says which pod is bound.
type bindingPod extenderv1.ExtenderBindingArgs

func (b bindingPod) String() string { return b.PodNamespace + "/" + b.PodName }

// Preempt asks the extenders that a pod interests, one after the other, what they make of the candidates for its preemption, by node, each about what the
// former has left, until there are none. They may leave out nodes, and name other victims, on other nodes too; on finds these. victims is not changed.
// An ignorable one that fails is skipped. The failure of another ends the preemption: the error has kube-scheduler's text. So does an answer of either that is [Outdated]: what it has said of
// the other nodes would be lost.
func (s *Set) Preempt(ctx context.Context, pod *Pod, victims map[string]*extenderv1.Victims, on PodsOn) (map[string]*extenderv1.Victims, error) {
	for e := range s.interested(ResourceNames(pod.object)) {
		if len(victims) == 0 {
			break
		}
		if !e.can(Preempt) {
			continue
		}
		left, err := e.preempt(ctx, pod, victims, on)
		if err == nil {
			// Nodes without victims of an extender that is not ignorable end the preemption, though the call has not failed.
			err = evictable(left, e.ignorable)
		}
		if _, outdated := errors.AsType[Outdated](err); outdated {
			return nil, cut(err)
		}
		if err != nil {
			if err := s.skip(ctx, e, Preempt, pod, err); err != nil {
				return nil, err
			}
			continue
		}
		victims = left
	}
	return victims, nil
}

func (e *extender) preempt(ctx context.Context, pod *Pod, victims map[string]*extenderv1.Victims, on PodsOn) (map[string]*extenderv1.Victims, error) {
	args := extenderv1.ExtenderPreemptionArgs{Pod: pod.object}
	if e.nodeCacheCapable {
		args.NodeNameToMetaVictims = identified(victims)
	} else {
		args.NodeNameToVictims = victims
	}
	body, err := json.Marshal(args)
	if err != nil {
		return nil, err
	}
	answer := new(extenderv1.ExtenderPreemptionResult)
	if err := e.call(ctx, Preempt, body, len(victims), answer); err != nil {
		return nil, err
	}
	return found(e.url, answer.NodeNameToMetaVictims, on)
}
