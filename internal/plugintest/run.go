package plugintest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/manifest"
	"github.com/berth-scheduler/berth/internal/pluginscore"
)

// What berth.plugin.v1 says is possible.
const (
	maxPlugins      = 64
	maxRefusals     = 1000
	maxTextBytes    = 1024
	maxRequestBytes = 16 << 20
)

// Config says who is asked, and about what.
type Config struct {
	// Client reaches the process. It must let messages of 16 MiB through.
	Client pluginv1.PluginServiceClient
	// Timeout is how long one answer may take.
	Timeout time.Duration
	// Objects are nodes and pods to ask about. Of what there is none of, some are made up.
	Objects []manifest.Object
	// Arguments are given to plugins, by name, in JSON, in all profiles.
	Arguments map[string]string
}

// Result is how a case ended.
type Result struct {
	Case string // what is expected
	Note string // what else is to be known
	Err  error  // what was found instead; nil if it is as expected
}

// Run tries one case after the other, and tells of each. It returns whether all are as expected. If the process cannot be asked at all, there is only the first.
func Run(ctx context.Context, cfg Config, tell func(Result)) bool { return try(ctx, cfg, cases, tell) }

// try is Run with some of the cases.
func try(ctx context.Context, cfg Config, cases []testCase, tell func(Result)) bool {
	s := &suite{client: cfg.Client, timeout: cfg.Timeout, began: time.Now(), arguments: cfg.Arguments, sample: take(cfg.Objects), free: 1000, steps: make(takers), most: make(bounds)}
	note, err := s.describe(ctx)
	tell(Result{"Describe tells of plugins as they can be, and the same each time", note, err})
	if err != nil {
		return false
	}
	all := true
	for _, c := range cases {
		var r Result
		r.Case = c.want
		switch {
		case c.about == steps && !s.steps.places():
			r.Note = "not asked: no plugin takes steps"
		case c.about == gates && len(s.steps[preEnqueue]) == 0:
			r.Note = "not asked: no plugin says which pods may be tried"
		case c.about == sorts && len(s.steps[queueSort]) == 0:
			r.Note = "not asked: no plugin sorts the queue"
		case c.about != steps && c.about != gates && c.about != sorts && len(s.all.filters)+len(s.all.scores) == 0:
			r.Note = "not asked: no plugin filters or scores"
		case c.about == compared && len(s.steady.filters)+len(s.steady.scores) == 0:
			r.Note = "not compared: all answers depend on what Berth does not know of"
		default:
			r.Note, r.Err = c.run(s, ctx)
		}
		all = all && r.Err == nil
		tell(r)
	}
	return all
}

// suite is what the cases share.
type suite struct {
	client      pluginv1.PluginServiceClient
	timeout     time.Duration
	began       time.Time
	arguments   map[string]string
	sample      sample
	requested   []map[string]int64 // of the sample's pods
	needsPods   bool
	all         asked // all plugins
	steady      asked // those whose answers depend on nothing that Berth does not know of
	free        int32 // the first id that no reference has used
	steps       takers
	placed      int      // placements that there have been
	postFilters []string // plugins that look for a way for pods that fit nowhere
	binds       []string // plugins that bind
	most        bounds
}

// notReady is how long it is waited until a process is asked again that is not ready.
const notReady = 50 * time.Millisecond

// describe asks which plugins there are, twice.
func (s *suite) describe(ctx context.Context) (note string, err error) {
	ask := func() (*pluginv1.DescribeResponse, error) {
		ctx, cancel := context.WithTimeout(ctx, s.timeout)
		defer cancel()
		return s.client.Describe(ctx, &pluginv1.DescribeRequest{})
	}
	described, err := ask()
	for began := time.Now(); status.Code(err) == codes.FailedPrecondition && time.Since(began) < s.timeout; described, err = ask() { // it is not ready yet
		select {
		case <-time.After(notReady):
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
	if err != nil {
		return "", fmt.Errorf("ask for the plugins: %w", err)
	}
	if err := s.take(described.GetPlugins()); err != nil {
		return "", err
	}
	again, err := ask()
	if err != nil {
		return "", fmt.Errorf("ask for the plugins again: %w", err)
	}
	if !proto.Equal(described, again) {
		return "", fmt.Errorf("asked twice, it said\n%v, and then\n%v", described, again)
	}
	for name := range s.arguments {
		if !slices.ContainsFunc(described.GetPlugins(), func(p *pluginv1.PluginDescription) bool { return p.GetName() == name }) {
			return "", fmt.Errorf("there are arguments for plugin %q, and there is none", name)
		}
	}
	for i := range s.sample.pods {
		s.requested = append(s.requested, s.sample.kind(i).GetRequested())
	}
	note = fmt.Sprintf("filters: %s; scores: %s", list(s.all.filters), list(s.all.scores))
	if len(s.steps[preEnqueue]) > 0 {
		note += fmt.Sprintf("; pre-enqueue: %s", list(s.steps[preEnqueue]))
	}
	if len(s.steps[queueSort]) > 0 {
		note += fmt.Sprintf("; queue sort: %s", list(s.steps[queueSort]))
	}
	if s.steps.places() {
		note += fmt.Sprintf("; reserve: %s; permit: %s; pre-bind: %s; post-bind: %s", list(s.steps[reserve]), list(s.steps[permit]), list(s.steps[preBind]), list(s.steps[postBind]))
	}
	if len(s.postFilters) > 0 { // what they do may change things
		note += fmt.Sprintf("; post-filter: %s, not asked", list(s.postFilters))
	}
	if len(s.binds) > 0 { // the same
		note += fmt.Sprintf("; bind: %s, not asked", list(s.binds))
	}
	return note, nil
}

func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// take checks descriptions of plugins, and notes who can be asked for what.
func (s *suite) take(plugins []*pluginv1.PluginDescription) error {
	if len(plugins) == 0 || len(plugins) > maxPlugins {
		return fmt.Errorf("there are %d plugins: want 1 to %d", len(plugins), maxPlugins)
	}
	seen := make(map[string]bool)
	for i, p := range plugins {
		name, depends, takes := p.GetName(), p.GetDepends(), s.steps.note(p)
		_, known := pluginv1.Normalization_name[int32(p.GetNormalization())]
		switch {
		case name == "":
			return fmt.Errorf("plugin %d has no name", i)
		case seen[name]:
			return fmt.Errorf("two plugins are called %s", name)
		case !p.GetFilters() && !p.GetScores() && !p.GetPostFilters() && !p.GetBinds() && !takes:
			return fmt.Errorf("plugin %s neither filters nor scores, nor looks for a way for pods that fit nowhere, and takes no step", name)
		case !known:
			return fmt.Errorf("plugin %s: there is no normalization %d", name, p.GetNormalization())
		case depends.GetMilliseconds() < 0:
			return fmt.Errorf("plugin %s: its answers hold for %d milliseconds: want 0 at least", name, depends.GetMilliseconds())
		}
		seen[name], s.most[name] = true, pluginscore.Most(p.GetNormalization())
		if p.GetPostFilters() {
			s.postFilters = append(s.postFilters, name)
		}
		if p.GetBinds() {
			s.binds = append(s.binds, name)
		}
		s.needsPods = s.needsPods || depends.GetPods()
		s.sample.objects = s.sample.objects || depends.GetObjects() || depends.GetPod()
		s.sample.pod = s.sample.pod || depends.GetPod()
		s.sample.annotations = s.sample.annotations || depends.GetAnnotations()
		for _, to := range []struct {
			does bool
			all  *[]string
			some *[]string
		}{{p.GetFilters(), &s.all.filters, &s.steady.filters}, {p.GetScores(), &s.all.scores, &s.steady.scores}} {
			if to.does {
				*to.all = append(*to.all, name)
				if depends.GetMilliseconds() == 0 {
					*to.some = append(*to.some, name)
				}
			}
		}
	}
	return nil
}

// profiles are those of the sample's pods, each with all arguments.
func (s *suite) profiles() []*pluginv1.Profile {
	var out []*pluginv1.Profile
	seen := make(map[string]bool)
	for _, pod := range s.sample.pods {
		if name := pod.Spec.SchedulerName; !seen[name] {
			seen[name] = true
			profile := &pluginv1.Profile{SchedulerName: name}
			for _, plugin := range slices.Sorted(maps.Keys(s.arguments)) {
				profile.Arguments = append(profile.Arguments, &pluginv1.PluginArguments{Plugin: plugin, Json: []byte(s.arguments[plugin])})
			}
			out = append(out, profile)
		}
	}
	return out
}

// nodes returns so many nodes of the sample, from one on, each with its own number of pods.
func (s *suite) nodes(from, n int) []node {
	out := make([]node, n)
	for i := range out {
		out[i] = node{sample: from + i, pods: make(map[string]int)}
		for k := range (from + 2*i) % 7 {
			out[i].pods[fmt.Sprintf("pod-%d-%d", from+i, k)] = (i + k) % len(s.sample.pods)
		}
	}
	return out
}

// fresh returns what a new stream answers that is told of nodes as they are, by ids that have never been used.
func (s *suite) fresh(ctx context.Context, nodes []node, q asked) ([]string, error) {
	c, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	defer c.close()
	kind, first := s.free, s.free+maxKinds
	s.free = first + int32(len(nodes))
	_, req := s.begin(nodes, kind, first, q)
	return c.judged(req)
}

// same compares what a stream answered about nodes with what a new one does, about each of the kinds.
func (s *suite) same(ctx context.Context, got []string, nodes []node) error {
	want, err := s.fresh(ctx, nodes, s.steady)
	if err != nil {
		return fmt.Errorf("ask a new stream about the same: %w", err)
	}
	return s.equal(got, want, nodes, "a new stream that is told the same")
}

func (s *suite) equal(got, want []string, nodes []node, whose string) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d answers, and %s gives %d", len(got), whose, len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			pod, node := s.sample.pods[i/len(nodes)%len(s.sample.pods)], s.sample.spec(nodes[i%len(nodes)].sample)
			return fmt.Errorf("pod %s, node %s: %q; %s says %q", pod.Name, node.GetName(), got[i], whose, want[i])
		}
	}
	return nil
}

// text checks what is told to people.
func text(what, s string) error {
	switch {
	case s == "":
		return errors.New(what + " is empty")
	case len(s) > maxTextBytes:
		return fmt.Errorf("%s has %d bytes: want at most %d", what, len(s), maxTextBytes)
	case !utf8.ValidString(s):
		return errors.New(what + " is no UTF-8")
	}
	return nil
}
