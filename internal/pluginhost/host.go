package pluginhost

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/logs"
	"github.com/berth-scheduler/berth/internal/pluginscore"
)

// Service is a service of a configuration.
type Service struct {
	// Name is by which it is known.
	Name string
	// Plugins are those of it that profiles may use.
	Plugins []Plugin
	// Profile is the scheduler name of the only profile that uses it, of which other services may have plugins of the same names; "" means that all may.
	Profile string
	// Conn is how it is reached. It does not wait for a service that is away. Whoever closes it ends the session.
	Conn grpc.ClientConnInterface
	// Processes are those that it may be connected to. nil: there is one.
	Processes Processes
	// Timeout is how long one call may take, but for what is done before a bind: PreBindTimeout.
	Timeout, PreBindTimeout time.Duration
	// Ignorable says that a pod is placed without it if it fails. Else the attempt fails.
	Ignorable bool
	// Objects says that it may be sent Kubernetes' objects, and annotations of pods.
	Objects bool
	// Annotations are the prefixes of annotations that its plugins may choose for pods: what comes before the slash of a name. One with a Profile may choose all.
	Annotations []string
	// Follows says that what it keeps of a pod, and of the cluster, is for verdicts and steps alike: of a profile that has it take part in a scheduling cycle, it is told of the cluster before each step of one,
	// and of each placement that it has anything to do with before that is recorded. It knows by itself what a pod is that is about to wait for its turn.
	Follows bool
}

// Processes are those of a service of which one is connected at a time. It is safe for concurrent use.
type Processes interface {
	// Connected returns the number of the connection that there is, or was last: each has one of its own. 0: there has been none.
	Connected() uint64
	// Leave has the service go on with another process, if there is one, where its streams begin anew, unless that connection is not the one any more. It does not wait.
	Leave(connection uint64)
}

// Plugin is a plugin of a service.
type Plugin struct {
	Name            string
	Filters, Scores bool // it may be used for that
}

// Steps are the plugins of services that a profile has between the choice of a node and the bind, by point, in order.
type Steps struct {
	Reserve, Permit, PreBind, PostBind []string
	// Bind are those that bind, and BindsRest is that Berth does what these skip.
	Bind      []string
	BindsRest bool
}

// Objects are those of a source.
type Objects interface {
	// Node returns a node as it was told last, which nobody changes, nil if it is not known. As long as it does not change, it is the same.
	Node(name string) *corev1.Node
	// NodeChanges counts changes of nodes: as long as it is what it was before, all are.
	NodeChanges() uint64
}

// Config is everything a Host needs.
type Config struct {
	Services []Service // at most MaxServices
	// Profiles are those of the cluster: their Filters and Weights name plugins of services among others.
	Profiles []cluster.Profile
	// Arguments are those of plugins of services, in JSON, by scheduler name and plugin.
	Arguments map[string]map[string][]byte
	// Steps are those of profiles, by scheduler name. Those that have none are not there.
	Steps   map[string]Steps
	Objects Objects               // required if some service may be sent objects
	Log     *slog.Logger          // required
	Metrics prometheus.Registerer // nil keeps none
}

// MaxServices is how many services a Host may have.
const MaxServices = 32

// Set is a set of services of a Host, by their places in Config.Services.
type Set uint32

// Each returns the places of the services of a set, in order.
func (s Set) Each() iter.Seq[int] {
	return func(yield func(int) bool) {
		for ; s != 0; s &= s - 1 {
			if !yield(bits.TrailingZeros32(uint32(s))) {
				return
			}
		}
	}
}

// Host has the services of a configuration. Its methods are safe for concurrent use, but a service may be asked by one [Asking] at a time, and one step of a placement
// may be under way: whoever calls sees to that.
type Host struct {
	services []*service
	uses     map[string][]use // by scheduler name, in the order in which services are asked
	sorter   string           // the scheduler name of the first profile: the services of that sort the queue, for all, as in kube-scheduler
	binds    map[string]bool  // by scheduler name of those with services that bind: whether Berth binds what these skip
	objects  Objects
	log      *slog.Logger
	standing atomic.Pointer[standing]
	inquires *Inquiry // whose host it is; nil: pods are placed by what is answered

	activations chan struct{} // holds a value while there may be some
}

// use is what a profile has a service do.
type use struct {
	service         int
	filters, scores []string
	weights         []int64 // of scores
	most            []int32 // that each of scores may score, and by how they are normalised: of what [use.of] has returned
	by              []pluginv1.Normalization
	own             []scorer        // that normalise their scores themselves: those that [use.of] has taken out of scores
	postFilters     []string        // that look for a way for pods that fit nowhere
	steps           [steps][]string // the plugins of each step
	first           [steps]int      // in the profile's order, of the first of these
	follows         bool            // as Service.Follows has it
}

// scorer is a plugin that scores, and how much that weighs.
type scorer struct {
	name   string
	weight int64
}

// of returns the use with those apart that normalise their scores themselves, as they are described.
func (u use) of(plugins map[string]*pluginv1.PluginDescription) use {
	out := use{service: u.service, filters: u.filters, postFilters: u.postFilters, steps: u.steps, first: u.first, follows: u.follows}
	for n, name := range u.scores {
		if plugins[name].GetNormalization() == pluginv1.Normalization_NORMALIZATION_OWN {
			out.own = append(out.own, scorer{name, u.weights[n]})
		} else {
			by := plugins[name].GetNormalization()
			out.scores, out.weights, out.most, out.by = append(out.scores, name), append(out.weights, u.weights[n]), append(out.most, pluginscore.Most(by)), append(out.by, by)
		}
	}
	return out
}

// names returns all plugins of a use.
func (u *use) names() []string {
	names := slices.Concat(u.filters, u.scores, u.postFilters)
	for _, s := range u.own {
		names = append(names, s.name)
	}
	if u.follows {
		for _, of := range u.steps {
			names = append(names, of...)
		}
	}
	return names
}

// judges reports whether it is asked which nodes, and has a session for that.
func (u *use) judges() bool { return len(u.filters)+len(u.scores)+len(u.own) > 0 || u.follows }

// New returns a host that has called nobody yet.
func New(cfg Config) (*Host, error) {
	if n := len(cfg.Services); n > MaxServices {
		return nil, fmt.Errorf("plugin services: %d, want at most %d", n, MaxServices)
	}
	metrics, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, err
	}
	cfg.Log = logs.Bounded(cfg.Log)
	h := &Host{uses: make(map[string][]use), binds: make(map[string]bool), objects: cfg.Objects, log: cfg.Log, activations: make(chan struct{}, 1)}
	began := time.Now()
	for _, s := range cfg.Services {
		if s.Objects && cfg.Objects == nil {
			return nil, fmt.Errorf("plugin service %q: there are no Kubernetes objects to send: they take --source=kube", s.Name)
		}
		counts, clock := metrics.of(s.Name), func() time.Duration { return time.Since(began) }
		h.services = append(h.services, &service{
			Service: s, limits: defaultLimits, clock: clock, metrics: counts, log: cfg.Log.With("service", s.Name),
			host: h, enters: make(chan struct{}, 1), placing: placing{beginning: make(chan struct{}, 1), ended: make(chan struct{}, 1)}, activated: activated{news: h.activations, lost: counts.lost, clock: clock},
		})
	}
	if len(cfg.Profiles) > 0 {
		h.sorter = cfg.Profiles[0].SchedulerName
	}
	for i := range cfg.Profiles {
		p := &cfg.Profiles[i]
		if uses := usesOf(p, cfg.Steps[p.SchedulerName], cfg.Services); len(uses) > 0 {
			h.uses[p.SchedulerName] = uses
			if i := slices.IndexFunc(uses, func(u use) bool { return len(u.steps[bind]) > 0 }); i >= 0 {
				if cfg.Objects == nil {
					return nil, fmt.Errorf("plugin service %q: there is no API server to bind pods in: that takes --source=kube", cfg.Services[uses[i].service].Name)
				}
				h.binds[p.SchedulerName] = cfg.Steps[p.SchedulerName].BindsRest
			}
			for _, u := range uses {
				s := h.services[u.service]
				s.profiles = append(s.profiles, toldProfile(p.SchedulerName, s.Plugins, cfg.Arguments[p.SchedulerName]))
				s.used = append(s.used, u)
			}
		}
	}
	return h, nil
}

// usesOf returns what a profile has services do: the one whose filter comes first is asked first.
func usesOf(p *cluster.Profile, taken Steps, services []Service) (uses []use) {
	of := make(map[string]int) // the service of a plugin
	for i, s := range services {
		for _, plugin := range s.Plugins {
			if s.Profile == "" || s.Profile == p.SchedulerName {
				of[plugin.Name] = i
			}
		}
	}
	at := func(service int) *use {
		k := slices.IndexFunc(uses, func(u use) bool { return u.service == service })
		if k < 0 {
			k, uses = len(uses), append(uses, use{service: service})
		}
		return &uses[k]
	}
	for _, name := range p.Filters {
		if i, ok := of[name]; ok {
			u := at(i)
			u.filters = append(u.filters, name)
		}
	}
	for _, w := range p.Weights {
		if i, ok := of[w.Name]; ok {
			u := at(i)
			u.scores, u.weights = append(u.scores, w.Name), append(u.weights, w.Weight)
		}
	}
	for _, name := range p.PostFilters {
		if i, ok := of[name]; ok {
			u := at(i)
			u.postFilters = append(u.postFilters, name)
		}
	}
	for step, names := range [steps][]string{reserve: taken.Reserve, unreserve: taken.Reserve, permit: taken.Permit, preBind: taken.PreBind, postBind: taken.PostBind, bind: taken.Bind, preEnqueue: p.PreEnqueues, queueSort: sortedBy(p)} {
		for k, name := range names {
			if i, ok := of[name]; ok {
				u := at(i)
				if len(u.steps[step]) == 0 {
					u.first[step] = k
				}
				u.steps[step] = append(u.steps[step], name)
			}
		}
	}
	for i := range uses {
		u := &uses[i]
		slices.Reverse(u.steps[unreserve]) // as kube-scheduler does
		u.follows = services[u.service].Follows && (u.judges() || u.reserves())
	}
	return uses
}

// sortedBy returns the plugin that sorts the queue, if there is one.
func sortedBy(p *cluster.Profile) []string {
	if p.QueueSort == "" {
		return nil
	}
	return []string{p.QueueSort}
}

func toldProfile(schedulerName string, plugins []Plugin, arguments map[string][]byte) *pluginv1.Profile {
	out := &pluginv1.Profile{SchedulerName: schedulerName}
	for _, p := range plugins {
		if args, ok := arguments[p.Name]; ok {
			out.Arguments = append(out.Arguments, &pluginv1.PluginArguments{Plugin: p.Name, Json: args})
		}
	}
	return out
}

// Asked returns the services that are to be asked about pods of a scheduler name, one after the other: where these go, or whether they may be placed there.
func (h *Host) Asked(schedulerName string) (set Set) {
	for _, u := range h.uses[schedulerName] {
		if u.judges() || u.reserves() {
			set |= 1 << u.service
		}
	}
	return set
}

// AskedPostFilter returns the services that are to be asked about a pod of a scheduler name that fits nowhere, if some plugins look for a way for it: whether it does, and then these plugins.
func (h *Host) AskedPostFilter(schedulerName string, plugins []string) (set Set) {
	for _, u := range h.uses[schedulerName] {
		if u.judges() || slices.ContainsFunc(u.postFilters, func(name string) bool { return slices.Contains(plugins, name) }) {
			set |= 1 << u.service
		}
	}
	return set
}

// NeedsObjects reports whether one of some services may be sent Kubernetes' objects, or annotations.
func (h *Host) NeedsObjects(set Set) bool {
	for i := range set.Each() {
		if h.services[i].Objects {
			return true
		}
	}
	return false
}

// Len returns how many services there are.
func (h *Host) Len() int { return len(h.services) }

// End ends the session with a service, by its place. Nobody asks it meanwhile.
func (h *Host) End(i int) { h.services[i].end() }

// EndPlacing ends the streams of placements of an epoch, or an earlier one: no step is taken in it any more.
func (h *Host) EndPlacing(epoch cluster.Epoch) {
	for _, s := range h.services {
		s.endPlacing(epoch)
	}
}

// Longest returns how long it takes at most to ask the services of a set about a pod, if all nodes fit a request.
func (h *Host) Longest(set Set) (long time.Duration) {
	for i := range set.Each() {
		long += 5 * h.services[i].Timeout // to describe, to begin a session, and to ask; to describe, and to begin to place
		if h.services[i].takes() {
			long += 2 * h.services[i].Timeout // to reserve and to permit
		}
	}
	return long
}

// Begin has the services ready that are to be asked about a pod of a scheduler name, in a state of that epoch. An error says which has failed, and why.
func (h *Host) Begin(ctx context.Context, epoch cluster.Epoch, schedulerName string) (*Asking, error) {
	return h.BeginPostFilter(ctx, epoch, schedulerName, nil)
}

// BeginPostFilter is Begin of a pod that fits nowhere: with those of [Host.AskedPostFilter].
func (h *Host) BeginPostFilter(ctx context.Context, epoch cluster.Epoch, schedulerName string, plugins []string) (*Asking, error) {
	k := &Asking{host: h, at: time.Duration(-1)}
	asked := h.AskedPostFilter(schedulerName, plugins)
	for _, u := range h.uses[schedulerName] {
		if asked&(1<<u.service) == 0 {
			continue
		}
		s := h.services[u.service]
		err := s.begin(ctx, epoch)
		if err == nil && s.session.activates { // it has its say before it is asked
			_, err = s.beginPlacing(ctx, epoch)
		}
		if err != nil {
			if err := k.skip(ctx, s, err); err != nil {
				return nil, err
			}
			continue
		}
		k.parts = append(k.parts, &part{service: s, use: u.of(s.session.plugins)})
	}
	return k, nil
}

// skip returns nil if a service that has failed is to be skipped, and else what ends the attempt.
func (k *Asking) skip(ctx context.Context, s *service, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if k.inquiry != nil {
		return k.inquiry.skip(s, err)
	}
	err = fmt.Errorf("plugin service %q: %w", s.Name, err)
	if !s.Ignorable || errors.Is(err, errConfig) {
		return err
	}
	s.log.Debug("plugin service skipped: it has failed, and is ignorable", "err", err)
	return nil
}
