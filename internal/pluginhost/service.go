package pluginhost

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/extender"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

const (
	// failedFor is how long a service that has failed is not asked again: so pods fail at once that would all wait for it, and people have time to read why.
	failedFor = time.Second
	// LargestMessage bounds a message, in bytes, as the proto says.
	LargestMessage = 16 << 20
)

var (
	// errConfig is that what a service says of itself does not fit the configuration: an ignorable one is not skipped for it, for it would be for ever.
	errConfig = errors.New("does not fit the configuration")
	errLate   = errors.New("no answer within its timeout")
	// ErrAgain is returned by [Asking.Exchange] if a session has ended that was good before: the service may have been started anew. What was asked is to be asked again.
	ErrAgain = errors.New("the service has ended the session")
)

// service is a service of a host. Whoever asks owns it.
type service struct {
	Service
	profiles []*pluginv1.Profile
	used     []use // of all profiles
	limits   limits
	clock    func() time.Duration // how long the host has been; it does not go backwards
	metrics  *serviceMetrics
	log      *slog.Logger

	session *session      // nil: there is none
	failed  time.Duration // by clock
	why     error         // it failed
	ended   time.Duration // when a good session has ended last, by clock; 0: none has
	perNode time.Duration // that it takes, as it was when it was paced, by clock
	paced   time.Duration

	host      *Host
	placing   placing
	doubts    doubts        // of its sessions
	tried     uint64        // the connection by which one was begun last
	enters    chan struct{} // holds a value while it is asked about pods that are to be tried
	activated activated
	changes   changes
}

// begin has a session for an epoch, the one that there is or another.
func (s *service) begin(ctx context.Context, epoch cluster.Epoch) (err error) {
	if is := s.session; is != nil && is.epoch == epoch {
		err := is.calls.over()
		if errors.Is(err, errLate) && len(is.outbox) > 0 && is.outbox[0].sent { // who asked had gone
			s.slower(is.outbox[0])
		}
		switch {
		case err == nil:
			return nil
		case time.Since(is.calls.at) >= failedFor: // whatever it was, it is over
		case !errors.Is(err, errEnded), is.proven && !s.mayEnd(err):
			s.fail(err)
			return err
		}
	}
	if is := s.session; is != nil && is.proven {
		s.doubts.note(is.connection, true, s.Processes)
	}
	s.end()
	if s.why != nil && s.clock()-s.failed < failedFor {
		return s.why
	}
	s.tried = s.connected()
	began := s.clock()
	defer func() {
		s.metrics.observe("begin", s.clock()-began, err)
		if err != nil && ctx.Err() == nil {
			s.fail(err)
		}
	}()
	described, to, err := s.describe(ctx)
	if err != nil {
		return err
	}
	s.tried = to
	plugins, err := s.check(described)
	if err != nil {
		return err
	}
	within, cancel, stream, err := open(ctx, s.Timeout, func(ctx context.Context) (pluginv1.PluginService_JudgeClient, error) {
		return pluginv1.NewPluginServiceClient(s.Conn).Judge(ctx, grpc.MaxCallRecvMsgSize(LargestMessage), grpc.MaxCallSendMsgSize(LargestMessage))
	})
	if err != nil {
		return fmt.Errorf("begin a session: %w", short(err))
	}
	if err := s.still(to); err != nil {
		cancel(err)
		return err
	}
	if s.host.inquires != nil {
		plugins = judging(plugins)
	}
	s.session = newSession(&s.limits, epoch, plugins)
	if s.host.inquires != nil {
		s.session.hypothetical = s.host.inquires.hypothetical
	}
	s.session.profiles, s.session.activates, s.session.orders, s.session.connection = s.profiles, described.GetActivates(), described.GetOrders(), to
	s.session.calls.begin(within, cancel, stream)
	s.log.Info("plugin service: session begun")
	return nil
}

// describe asks which plugins a process has, and returns by which connection.
func (s *service) describe(ctx context.Context) (*pluginv1.DescribeResponse, uint64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.Timeout, errLate)
	defer cancel()
	for {
		to := s.connected()
		out, err := pluginv1.NewPluginServiceClient(s.Conn).Describe(ctx, &pluginv1.DescribeRequest{})
		if err != nil {
			return nil, 0, fmt.Errorf("describe: %w", short(err))
		}
		if s.still(to) == nil {
			return out, to, nil
		}
	}
}

// connected returns the number of the connection to a process, 0 if there is one alone that it can be to.
func (s *service) connected() uint64 {
	if s.Processes == nil {
		return 0
	}
	return s.Processes.Connected()
}

// still returns an error unless that connection is the one that there is: what is known of a process says nothing of another one.
func (s *service) still(connection uint64) error {
	if s.connected() != connection {
		return fmt.Errorf("%w: another process of the service is connected by now", errEnded)
	}
	return nil
}

// end ends the session, if there is one.
func (s *service) end() {
	if s.session != nil {
		s.session.calls.end()
		s.session = nil
	}
}

// mayEnd reports whether a session that was good may end, without the service having failed: not soon behind another one.
func (s *service) mayEnd(err error) bool {
	if s.ended != 0 && s.clock()-s.ended < failedFor {
		return false
	}
	s.ended = s.clock()
	s.log.Info("plugin service: session ended", "err", err)
	return true
}

// fail ends the session, and has nobody begin another one for a while.
func (s *service) fail(err error) {
	good, to := s.session != nil && s.session.proven, s.tried // it may have been late once
	if s.session != nil {
		to = s.session.connection
	}
	s.end()
	s.failed, s.why = s.clock(), err
	s.log.Warn("plugin service has failed", "err", err)
	s.doubts.note(to, good, s.Processes)
}

// doubts are how often in a row nothing has come of a process, as far as one of its streams goes. It is safe for concurrent use.
type doubts struct {
	mu    sync.Mutex
	of    uint64 // the connection to it
	times int
}

// mostDoubts is how often in a row nothing may come of a process until it is left: what goes wrong once may be no fault of its own.
const mostDoubts = 2

// note notes whether anything has come of a process that a connection was to. It has the service go on with another one, if there is one, when nothing has too often.
func (d *doubts) note(connection uint64, good bool, all Processes) {
	if all == nil {
		return
	}
	d.mu.Lock()
	if good || connection != d.of {
		d.of, d.times = connection, 0
	}
	if !good {
		d.times++
	}
	leaves := d.times >= mostDoubts
	if leaves {
		d.times = 0
	}
	d.mu.Unlock()
	if leaves {
		all.Leave(connection)
	}
}

// exchange asks what is to be asked, one request after the other, and keeps what is answered. If ctx ends, what has been asked is answered all the same, for whoever comes next.
func (s *service) exchange(ctx context.Context) error {
	is := s.session
	for len(is.outbox) > 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		b := is.outbox[0]
		var err error
		if !b.sent {
			b.sent, b.at = true, s.clock()
			b.asked = s.changes.asks(b.at)
			b.within = s.Timeout
			if is.orders {
				if b.request.Behind = s.placing.reserves(); b.request.Behind != nil {
					b.within += s.Timeout // for that
				}
			}
			err = is.calls.send(b.request, b.within)
		}
		var response *pluginv1.JudgeResponse
		if err == nil {
			response, err = is.calls.receive(ctx, b.request)
		}
		if errors.Is(err, errLeft) {
			return context.Cause(ctx)
		}
		if err == nil {
			err = is.take(b, response, b.asked)
		}
		took := s.clock() - b.at
		if !b.stale { // else it has come before
			s.metrics.observe("judge", took, err)
		}
		switch {
		case err == nil, errors.As(err, new(errStated)): // that is about what was asked; all else stands
			is.outbox, is.proven = is.outbox[1:], true
			if err != nil {
				return err
			}
			if !b.stale && b.request.Behind == nil && !slices.ContainsFunc(response.GetAnswers(), (*pluginv1.Answer).GetKept) { // else it says nothing of how long nodes take
				s.pace(b.count, took)
			}
		case errors.Is(err, errLate):
			s.slower(b)
			s.fail(fmt.Errorf("%w of %v", errLate, b.within))
			return s.why
		case is.proven && errors.Is(err, errEnded) && s.mayEnd(err):
			s.end()
			return ErrAgain
		default:
			s.fail(err)
			return err
		}
		s.metrics.judged.Add(float64(b.count))
	}
	is.outbox = nil
	return nil
}

const (
	// tellingAsked is of how many nodes a question tells how long a node takes, if as many may be asked about: fewer take as long as a call does.
	tellingAsked = 100
	// slowFor is in how long a service is taken for twice as quick as it was, if nothing says otherwise. Kinds may differ much: one that is quick does not make good for one that is not.
	slowFor = time.Minute
)

// pace has a service asked about no more nodes at a time than it answers in a quarter of its time, at the slowest rate that it has had lately, nor about more than twice as many as before.
func (s *service) pace(asked int, took time.Duration) {
	if asked < min(tellingAsked, s.limits.asked) {
		return
	}
	if asked < tellingAsked && took <= s.Timeout/4 {
		took = 0 // it may be what a call takes, whatever it asks
	}
	s.took(took / time.Duration(asked))
	s.limits.asked = max(1, min(maxAsked, 2*s.limits.asked, int(s.Timeout/4/s.perNode)))
	s.limits.told = min(defaultLimits.told, s.limits.asked)
}

// took notes how long a node has taken.
func (s *service) took(node time.Duration) {
	now := s.clock()
	was := time.Duration(float64(s.perNode) * math.Exp2(-float64(now-s.paced)/float64(slowFor)))
	s.perNode, s.paced = max(node, was, 1), now
}

// slower has a service asked about fewer nodes at a time than it was too late with.
func (s *service) slower(b *batch) {
	if slices.ContainsFunc(b.questions, func(q question) bool { return q.post != nil }) { // that says nothing of how long nodes take
		return
	}
	n := max(1, b.count, len(b.request.GetNodes()))
	if n < min(tellingAsked, s.limits.asked) { // that tells nothing of others
		s.limits.asked = max(1, s.limits.asked/4)
	} else {
		s.took(s.Timeout / time.Duration(n))
		s.limits.asked = max(1, min(s.limits.asked, n/4))
	}
	s.limits.told = min(defaultLimits.told, s.limits.asked)
}

// check checks that a service has what the configuration says, and returns those of its plugins that are used, by name.
func (s *service) check(d *pluginv1.DescribeResponse) (map[string]*pluginv1.PluginDescription, error) {
	if n := len(d.GetPlugins()); n > maxPlugins {
		return nil, fmt.Errorf("describe: %d plugins, want at most %d", n, maxPlugins)
	}
	plugins := make(map[string]*pluginv1.PluginDescription)
	for _, p := range d.GetPlugins() {
		name := p.GetName()
		if plugins[name] != nil {
			return nil, fmt.Errorf("describe: two plugins are called %q", extender.Short(name))
		}
		if _, ok := pluginv1.Normalization_name[int32(p.GetNormalization())]; !ok {
			return nil, fmt.Errorf("describe: plugin %q: normalization %d is not one that this Berth knows", extender.Short(name), p.GetNormalization())
		}
		if p.GetDepends().GetMilliseconds() < 0 {
			return nil, fmt.Errorf("describe: plugin %q: depends.milliseconds is negative", extender.Short(name))
		}
		plugins[name] = p
	}
	used := make(map[string]*pluginv1.PluginDescription)
	for _, u := range s.used {
		for _, point := range []struct {
			does  string
			names []string
			has   func(*pluginv1.PluginDescription) bool
		}{
			{"filter nodes", u.filters, (*pluginv1.PluginDescription).GetFilters},
			{"score nodes", u.scores, (*pluginv1.PluginDescription).GetScores},
			{"act when no node can run a pod", u.postFilters, (*pluginv1.PluginDescription).GetPostFilters},
			{"reserve", u.steps[reserve], (*pluginv1.PluginDescription).GetReserves},
			{"permit", u.steps[permit], (*pluginv1.PluginDescription).GetPermits},
			{"act before a bind", u.steps[preBind], (*pluginv1.PluginDescription).GetPreBinds},
			{"act behind a bind", u.steps[postBind], (*pluginv1.PluginDescription).GetPostBinds},
			{"bind", u.steps[bind], (*pluginv1.PluginDescription).GetBinds},
			{"say which pods may be tried", u.steps[preEnqueue], (*pluginv1.PluginDescription).GetPreEnqueues},
			{"sort the queue", u.steps[queueSort], (*pluginv1.PluginDescription).GetQueueSorts},
		} {
			for _, name := range point.names {
				used[name] = plugins[name]
				if !point.has(plugins[name]) {
					return nil, fmt.Errorf("%w: profiles have plugin %q %s, and the service describes none of that name that does", errConfig, name, point.does)
				}
			}
		}
	}
	for name, p := range used {
		switch d := p.GetDepends(); {
		case s.Objects:
		case d.GetObjects() || d.GetPod():
			return nil, fmt.Errorf("%w: plugin %q depends on Kubernetes objects: say objects: true of the service", errConfig, name)
		case d.GetAnnotations():
			return nil, fmt.Errorf("%w: plugin %q depends on annotations of pods: say objects: true of the service", errConfig, name)
		}
	}
	return used, nil
}

// maxPlugins is how many plugins a service may have.
const maxPlugins = 64

// short is an error of a call in few words.
func short(err error) error {
	if st, ok := status.FromError(err); ok {
		return fmt.Errorf("%s: %s", st.Code(), extender.Short(st.Message()))
	}
	return err
}
