package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/pluginproto"
	"github.com/berth-scheduler/berth/internal/pluginscore"
)

// session is what one stream has told. One goroutine changes it, the stream's, and never while others judge by it.
type session struct {
	*profiles
	kinds map[int32]*Kind
	nodes map[int32]*Node
	last  int64 // request

	hypothetical bool // it is about what might be
}

// profiles are the plugins of the process, as they are for each profile.
type profiles struct {
	plugins map[string]*Plugin               // by name
	with    map[string]map[string]configured // of a profile, those that have arguments
}

func newProfiles(plugins map[string]*Plugin) *profiles {
	return &profiles{plugins: plugins, with: make(map[string]map[string]configured)}
}

// find returns a plugin as it is for a profile, or what is wrong with its arguments.
func (p *profiles) find(schedulerName, plugin string) (*Plugin, error) {
	if with, ok := p.with[schedulerName][plugin]; ok {
		return with.plugin, with.err
	}
	return p.plugins[plugin], nil
}

// configured is a plugin with the arguments of a profile, or what is wrong with these.
type configured struct {
	plugin *Plugin
	err    error
}

func newSession(plugins map[string]*Plugin) *session {
	return &session{profiles: newProfiles(plugins), kinds: make(map[int32]*Kind), nodes: make(map[int32]*Node)}
}

// fold takes up what a request tells. What is forgotten goes first, so that its ids can be those of others in the same request; and what comes
// before what names it.
func (s *session) fold(req *pluginv1.JudgeRequest) error {
	if req.GetId() != s.last+1 {
		return pluginproto.Invalid(fmt.Sprintf("%d: want %d", req.GetId(), s.last+1), "id")
	}
	s.last = req.GetId()
	if s.last == 1 {
		s.hypothetical = req.GetHypothetical()
	}
	if err := s.tell(s.last, req.GetProfiles()); err != nil {
		return err
	}
	for i, id := range req.GetForgottenNodes() {
		if s.nodes[id] == nil {
			return pluginproto.Invalid(fmt.Sprintf("there is no node %d", id), "forgotten_nodes[%d]", i)
		}
		delete(s.nodes, id)
	}
	for i, id := range req.GetForgottenKinds() {
		if s.kinds[id] == nil {
			return pluginproto.Invalid(fmt.Sprintf("there is no kind %d", id), "forgotten_kinds[%d]", i)
		}
		delete(s.kinds, id)
	}
	for _, kind := range req.GetKinds() {
		s.setKind(kind)
	}
	for i, node := range req.GetNodes() {
		if err := s.setNode(i, node); err != nil {
			return err
		}
	}
	return nil
}

// tell takes up the profiles that a request tells.
func (p *profiles) tell(request int64, told []*pluginv1.Profile) error {
	if request != 1 && len(told) > 0 {
		return pluginproto.Invalid("profiles are told in the first request only", "profiles")
	}
	for i, profile := range told {
		name := profile.GetSchedulerName()
		if p.with[name] != nil {
			return pluginproto.Invalid(fmt.Sprintf("%q: it is told twice", name), "profiles[%d].scheduler_name", i)
		}
		p.with[name] = make(map[string]configured)
		for k, arguments := range profile.GetArguments() {
			plugin := p.plugins[arguments.GetPlugin()]
			if plugin == nil {
				return pluginproto.Invalid(fmt.Sprintf("there is no plugin %q", arguments.GetPlugin()), "profiles[%d].arguments[%d].plugin", i, k)
			}
			made, err := plugin.configure(arguments.GetJson())
			if err != nil {
				err = fmt.Errorf("its arguments in profile %s: %w", name, err)
			}
			p.with[name][plugin.Name] = configured{made, err}
		}
	}
	return nil
}

// configure returns the plugin with arguments.
func (p *Plugin) configure(arguments json.RawMessage) (with *Plugin, err error) {
	if p.Configure == nil {
		return nil, errors.New("it takes none")
	}
	defer func() {
		if what := recover(); what != nil {
			err = fmt.Errorf("panic: %v", what)
		}
	}()
	made, err := p.Configure(arguments)
	if err == nil && !made.like(p) {
		err = errors.New("with them it has other functions than without")
	}
	return &made, err
}

// setKind takes up a kind. One that is there already is what it is told to be now, also for the pods that are of it.
func (s *session) setKind(told *pluginv1.Kind) {
	kind := s.kinds[told.GetId()]
	if kind == nil {
		kind = new(Kind)
		s.kinds[told.GetId()] = kind
	}
	*kind = Kind{
		Namespace: told.GetNamespace(), Labels: told.GetLabels(), Requested: told.GetRequested(), Priority: told.GetPriority(), SchedulerName: told.GetSchedulerName(),
		Annotations: told.GetAnnotations(), kept: new(sync.Map), pod: decoded[corev1.Pod](told.GetObject()),
	}
}

func (s *session) setNode(i int, told *pluginv1.Node) error {
	node := s.nodes[told.GetId()]
	if node == nil {
		if told.GetSpec() == nil {
			return pluginproto.Invalid(fmt.Sprintf("node %d is new: want what it is", told.GetId()), "nodes[%d].spec", i)
		}
		node = &Node{Pods: make(map[string]*Pod), Hypothetical: s.hypothetical}
		s.nodes[told.GetId()] = node
	}
	if spec := told.GetSpec(); spec != nil {
		node.Name, node.Labels, node.Unschedulable, node.Allocatable = spec.GetName(), spec.GetLabels(), spec.GetUnschedulable(), spec.GetAllocatable()
		node.Taints = nil
		for _, taint := range spec.GetTaints() {
			node.Taints = append(node.Taints, corev1.Taint{Key: taint.GetKey(), Value: taint.GetValue(), Effect: corev1.TaintEffect(taint.GetEffect())})
		}
		node.object = decoded[corev1.Node](spec.GetObject())
	}
	node.Requested, node.PodCount = told.GetRequested(), int(told.GetPodCount())
	// Those that have left go first: a pod whose kind has changed leaves, and comes back.
	for k, uid := range told.GetRemoved() {
		if node.Pods[uid] == nil {
			return pluginproto.Invalid(fmt.Sprintf("pod %q is not on node %s", uid, node.Name), "nodes[%d].removed[%d]", i, k)
		}
		delete(node.Pods, uid)
	}
	for k, pod := range told.GetAdded() {
		kind := s.kinds[pod.GetKind()]
		switch {
		case kind == nil:
			return pluginproto.Invalid(fmt.Sprintf("there is no kind %d", pod.GetKind()), "nodes[%d].added[%d].kind", i, k)
		case node.Pods[pod.GetUid()] != nil:
			return pluginproto.Invalid(fmt.Sprintf("pod %q is on node %s already", pod.GetUid(), node.Name), "nodes[%d].added[%d].uid", i, k)
		}
		node.Pods[pod.GetUid()] = &Pod{UID: pod.GetUid(), Name: pod.GetName(), Kind: kind, Hypothetical: pod.GetHypothetical()}
	}
	return nil
}

// decoded returns what decodes an object at its first call, whoever makes it; nil if there is none.
func decoded[T any](object []byte) func() (*T, error) {
	if len(object) == 0 {
		return nil
	}
	return sync.OnceValues(func() (*T, error) {
		out := new(T)
		if err := json.Unmarshal(object, out); err != nil {
			return nil, fmt.Errorf("decode the object: %w", err)
		}
		return out, nil
	})
}

// question finds what a question names.
func (s *session) question(i int, asked *pluginv1.Question) (*question, error) {
	q := &question{kind: s.kinds[asked.GetKind()], nodes: make([]*Node, len(asked.GetNodes()))}
	if q.kind == nil {
		return nil, pluginproto.Invalid(fmt.Sprintf("there is no kind %d", asked.GetKind()), "questions[%d].kind", i)
	}
	find := func(name string) *Plugin {
		p, err := s.find(q.kind.SchedulerName, name)
		if err != nil && q.err == nil {
			q.err = fmt.Errorf("plugin %s: %w", name, err)
		}
		return p
	}
	for k, name := range asked.GetFilters() {
		if p := s.plugins[name]; p == nil || p.Filter == nil {
			return nil, pluginproto.Invalid(fmt.Sprintf("there is no plugin %q that filters", name), "questions[%d].filters[%d]", i, k)
		}
		if p := find(name); q.err == nil {
			q.filters = append(q.filters, filter{name, p.Filter})
		}
	}
	for k, name := range asked.GetScores() {
		if p := s.plugins[name]; p == nil || p.Score == nil {
			return nil, pluginproto.Invalid(fmt.Sprintf("there is no plugin %q that scores", name), "questions[%d].scores[%d]", i, k)
		}
		if p := find(name); q.err == nil {
			most := pluginscore.Most(pluginv1.Normalization(s.plugins[name].Normalization)) // as it is described, whatever the profile's arguments are
			q.scorers = append(q.scorers, scorer{name, p.Score, int64(most)})
		}
	}
	for k, name := range asked.GetPostFilters() {
		if p := s.plugins[name]; p == nil || p.PostFilter == nil {
			return nil, pluginproto.Invalid(fmt.Sprintf("there is no plugin %q that looks for a way for pods that fit nowhere", name), "questions[%d].post_filters[%d]", i, k)
		}
		if p := find(name); q.err == nil {
			q.postFilters = append(q.postFilters, postFilter{name, p.PostFilter})
		}
	}
	for k, id := range asked.GetNodes() {
		if q.nodes[k] = s.nodes[id]; q.nodes[k] == nil {
			return nil, pluginproto.Invalid(fmt.Sprintf("there is no node %d", id), "questions[%d].nodes[%d]", i, k)
		}
	}
	if len(asked.GetPostFilters()) == 0 {
		return q, nil
	}
	if len(asked.GetFilters())+len(asked.GetScores()) > 0 {
		return nil, pluginproto.Invalid("they go with no filters and no scores", "questions[%d].post_filters", i)
	}
	if n := len(asked.GetVerdicts()); n != len(q.nodes) {
		return nil, pluginproto.Invalid(fmt.Sprintf("%d, of %d nodes", n, len(q.nodes)), "questions[%d].verdicts", i)
	}
	for k, v := range asked.GetVerdicts() {
		if v == 0 || int64(v) > int64(len(asked.GetRefusals())) {
			return nil, pluginproto.Invalid(fmt.Sprintf("%d, of %d refusals", v, len(asked.GetRefusals())), "questions[%d].verdicts[%d]", i, k)
		}
		r := asked.GetRefusals()[v-1]
		q.refused = append(q.refused, Refused{q.nodes[k], r.GetPlugin(), r.GetReason()})
	}
	return q, nil
}
