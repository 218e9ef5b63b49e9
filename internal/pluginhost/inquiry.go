package pluginhost

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// mostBegun is how often a question is begun whose sessions end, until the service is not asked any more.
const mostBegun = 3

// Inquiry asks services about what might be, in a copy of a state that changes as whoever asks has it, by sessions of its own. Of a service it asks the filters and scores that depend on no other node than the one that is asked about, and whose scores Berth
// normalises. A service that has failed is asked no more: one answer is not by it, and the next one without it. An Inquiry is not safe for concurrent use, and is ended when it is of no use any more.
type Inquiry struct {
	host         *Host
	hypothetical func(uid string) bool
	away         map[*service]error // those that are asked no more, and why
}

// NewInquiry returns an Inquiry that has asked nobody yet. The objects of nodes, and the arguments of plugins, are for the connections to add. Hypothetical tells which pods on nodes are there in the question only.
func NewInquiry(services []Service, profiles []cluster.Profile, hypothetical func(uid string) bool) (*Inquiry, error) {
	h, err := New(Config{Services: services, Profiles: profiles, Objects: noObjects{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	q := &Inquiry{host: h, hypothetical: hypothetical, away: make(map[*service]error)}
	h.inquires = q
	return q, nil
}

// noObjects are objects of which none is known here.
type noObjects struct{}

func (noObjects) Node(string) *corev1.Node { return nil }
func (noObjects) NodeChanges() uint64      { return 0 }

// Stands reports whether a pod has metadata alone, and so stands for the one of the cluster with that namespace, name and UID.
func Stands(pod *corev1.Pod) bool { return len(pod.Spec.Containers) == 0 }

// judging returns those of plugins that an [Inquiry] asks.
func judging(plugins map[string]*pluginv1.PluginDescription) map[string]*pluginv1.PluginDescription {
	plugins = maps.Clone(plugins)
	maps.DeleteFunc(plugins, func(_ string, p *pluginv1.PluginDescription) bool { return p.GetDepends().GetCluster() })
	return plugins
}

// judging returns of a use what an [Inquiry] asks, as plugins are described.
func (u use) judging(plugins map[string]*pluginv1.PluginDescription) use {
	asked := use{service: u.service}
	for _, name := range u.filters {
		if plugins[name] != nil {
			asked.filters = append(asked.filters, name)
		}
	}
	for n, name := range u.scores {
		if plugins[name] != nil {
			asked.scores, asked.weights = append(asked.scores, name), append(asked.weights, u.weights[n])
		}
	}
	asked = asked.of(plugins)
	asked.own = nil
	return asked
}

// Asks reports whether services have a say in which nodes pods of a scheduler name can run on, or in which are best.
func (q *Inquiry) Asks(schedulerName string) bool {
	return slices.ContainsFunc(q.host.uses[schedulerName], func(u use) bool { return len(u.filters)+len(u.scores) > 0 })
}

// Judge asks what services say of nodes, all of which the state has, for a pod of a scheduler name. The pod is what they are sent of it, if they are. What is said is there until Judge is called again, and [Asking.Done] is called then. An error of [Unanswered] is about
// this pod; any other one is ctx's.
func (q *Inquiry) Judge(ctx context.Context, st *cluster.State, schedulerName string, subject engine.Subject, pod func() *corev1.Pod, nodes []cluster.NodeIndex) (*Asking, error) {
	for n := 1; ; n++ {
		k, err := q.begin(ctx, st.Version().Epoch, schedulerName)
		if err != nil {
			return nil, err
		}
		if len(k.parts) == 0 {
			return k, nil
		}
		if k.NeedsPod() {
			if err := k.SetPod(pod()); err != nil {
				return nil, Unanswered(err.Error())
			}
		}
		k.Collect(st, subject, nodes)
		err = k.Exchange(ctx)
		if err == nil {
			return k, nil
		}
		k.Done()
		if !errors.Is(err, ErrAgain) {
			return nil, err
		}
		if n == mostBegun {
			q.leave(k)
			n = 0
		}
	}
}

// begin has those services ready that are asked, but those that have failed. An error is ctx's.
func (q *Inquiry) begin(ctx context.Context, epoch cluster.Epoch, schedulerName string) (*Asking, error) {
	k := &Asking{host: q.host, inquiry: q}
	for _, u := range q.host.uses[schedulerName] {
		s := q.host.services[u.service]
		if len(u.filters)+len(u.scores) == 0 || q.away[s] != nil {
			continue
		}
		if err := s.begin(ctx, epoch); err != nil {
			if err := k.skip(ctx, s, err); err != nil {
				return nil, err
			}
			continue
		}
		if asked := u.judging(s.session.plugins); asked.judges() {
			k.parts = append(k.parts, &part{service: s, use: asked})
		}
	}
	return k, nil
}

// leave asks those services no more whose sessions have ended.
func (q *Inquiry) leave(k *Asking) {
	for _, p := range k.parts {
		if p.service.session == nil {
			q.away[p.service] = errEnded
		}
	}
}

// skip notes that a service is asked no more, unless it has stated what is wrong with a pod: then the pod goes on without it if it is ignorable.
func (q *Inquiry) skip(s *service, err error) error {
	switch is := errors.As(err, new(errStated)); {
	case is && s.Ignorable:
		return nil
	case is:
		return Unanswered(fmt.Sprintf("plugin service %q: %v", s.Name, err))
	}
	s.end()
	q.away[s] = err
	return nil
}

// Unanswered is what a service has answered in place of what it was asked about a pod: an attempt to place the pod would fail with it.
type Unanswered string

func (e Unanswered) Error() string { return string(e) }

// Notes say which services could not be asked, in their order.
func (q *Inquiry) Notes() (notes []string) {
	for _, s := range q.host.services {
		if err := q.away[s]; err != nil {
			notes = append(notes, fmt.Sprintf("plugin service %s could not be asked: %v; its filters and scores are ignored", s.Name, err))
		}
	}
	return notes
}

// NotAsked returns those of the plugins of others that [engine.Foreign] names of a profile that are not asked, as far as that is known yet; of one that is asked for something, with what it is not asked for.
func (q *Inquiry) NotAsked(profile *cluster.Profile) (names []string) {
	asked := q.asked(profile.SchedulerName)
	for _, name := range engine.Foreign(profile) {
		var missing []string
		is := false
		for _, point := range []struct {
			name      string
			has, asks bool
		}{
			{"queueSort", profile.QueueSort == name, false},
			{"preEnqueue", slices.Contains(profile.PreEnqueues, name), false},
			{"filter", slices.Contains(profile.Filters, name), slices.Contains(asked.filters, name)},
			{"postFilter", slices.Contains(profile.PostFilters, name), false},
			{"score", slices.ContainsFunc(profile.Weights, func(w cluster.PluginWeight) bool { return w.Name == name }), slices.Contains(asked.scores, name)},
		} {
			if is = is || point.asks; point.has && !point.asks {
				missing = append(missing, point.name)
			}
		}
		switch {
		case !is:
			names = append(names, name)
		case len(missing) > 0:
			names = append(names, fmt.Sprintf("%s (%s)", name, strings.Join(missing, ", ")))
		}
	}
	return names
}

// asked returns what services are asked of pods of a scheduler name, all together.
func (q *Inquiry) asked(schedulerName string) (all use) {
	for _, u := range q.host.uses[schedulerName] {
		if s := q.host.services[u.service]; q.away[s] == nil && s.session != nil {
			u = u.judging(s.session.plugins)
			all.filters, all.scores = append(all.filters, u.filters...), append(all.scores, u.scores...)
		}
	}
	return all
}

// End ends all sessions. What is said of services stays what it was.
func (q *Inquiry) End() {
	for _, s := range q.host.services {
		s.end()
	}
}

// PluginScores are what a plugin scores nodes, in the order of the nodes.
type PluginScores struct {
	Plugin          string
	Weight          int64
	Raw, Normalized []int64
}

// Scores returns by plugin what [Asking.Score] adds to totals.
func (k *Asking) Scores(nodes []cluster.NodeIndex) (out []PluginScores) {
	for _, p := range k.parts {
		for n, name := range p.use.scores {
			s := PluginScores{Plugin: name, Weight: p.use.weights[n], Raw: make([]int64, len(nodes)), Normalized: make([]int64, len(nodes))}
			scores, by := p.kind.column.scores[n], p.service.session.plugins[name].GetNormalization()
			most := highest(scores, nodes)
			for n, i := range nodes {
				s.Raw[n], s.Normalized[n] = int64(scores[i]), normalized(by, scores[i], most)
			}
			out = append(out, s)
		}
	}
	return out
}
