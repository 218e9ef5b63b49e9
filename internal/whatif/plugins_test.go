package whatif

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/pluginhost"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/plugin"
)

// choosyName is the scheduler name of pods about which a plugin has a say.
const choosyName = "choosy"

// patience is for hangs.
const patience = 2 * time.Minute

// services are plugin services as a test has them.
type services struct {
	all  []pluginhost.Service
	err  error
	asks int
}

func (s *services) Find(context.Context) ([]pluginhost.Service, error) {
	s.asks++
	return s.all, s.err
}

// serviceOf serves plugins by the SDK.
func serviceOf(t *testing.T, plugins ...plugin.Plugin) pluginhost.Service {
	l := bufconn.Listen(1 << 20)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- plugin.Serve(ctx, plugin.Config{Plugins: plugins, Listener: l, InsecurePlaintext: true})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	out := pluginhost.Service{Name: "s", Timeout: patience}
	for _, p := range plugins {
		out.Plugins = append(out.Plugins, pluginhost.Plugin{Name: p.Name})
	}
	out.Conn = dialed(t, l)
	return out
}

func dialed(t *testing.T, l *bufconn.Listener) *grpc.ClientConn {
	conn, err := grpc.NewClient("passthrough:///service", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// twoOf is a plugin by which a node runs two pods of the app web at most. It notes which pods it has seen on nodes, with a ? if they are hypothetical.
type twoOf struct {
	mu   sync.Mutex
	seen map[string][]string // by node, as it was when it was asked about last
}

func (f *twoOf) plugin() plugin.Plugin {
	f.seen = make(map[string][]string)
	return plugin.Plugin{
		Name: "TwoOf", Depends: plugin.Dependencies{Pods: true},
		Filter: func(_ context.Context, kind *plugin.Kind, n *plugin.Node) (*plugin.Refusal, error) {
			var pods []string
			of := 0
			for _, p := range n.Pods {
				if p.Kind.Labels["app"] == kind.Labels["app"] {
					of++
				}
				name := p.Name
				if p.Hypothetical {
					name += "?"
				}
				pods = append(pods, name)
			}
			slices.Sort(pods)
			f.mu.Lock()
			f.seen[n.Name] = pods
			f.mu.Unlock()
			if of >= 2 {
				return &plugin.Refusal{Reason: "node(s) had two already"}, nil
			}
			return nil, nil
		},
	}
}

func (f *twoOf) on(node string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.seen[node], " ")
}

// byLabel is a plugin that scores a node what its zone says.
func byLabel() plugin.Plugin {
	return plugin.Plugin{Name: "ByZone", Score: func(_ context.Context, _ *plugin.Kind, n *plugin.Node) (int64, error) {
		if n.Labels[zoneLabel] == "best" {
			return 100, nil
		}
		return 0, nil
	}}
}

// choosyProfile is a profile that uses plugins, to filter and to score.
func choosyProfile(filters, scores []string) cluster.Profile {
	p := engine.DefaultProfile(choosyName)
	p.Filters = append(slices.Clone(p.Filters), filters...)
	p.Weights = slices.Clone(p.Weights)
	for _, name := range scores {
		p.Weights = append(p.Weights, cluster.PluginWeight{Name: name, Weight: 100})
	}
	return p
}

func choosyPod(name string) source.Pod {
	p := aPod(name, 100)
	p.Class.SchedulerName = choosyName
	return p
}

// asking has a question asked in a sandbox whose profiles are the default one and another, and which asks services.
func askingOf(t *testing.T, s *services, p cluster.Profile, events []source.Event, ask func(*World) error) {
	t.Helper()
	box := sandbox(t, events...)
	settings := settings()
	settings.Profiles = append(settings.Profiles, p)
	if err := box.state.Apply(cluster.SettingsSet{Settings: settings}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := box.Try(WithPlugins(ctx, s), ask); err != nil {
		t.Fatal(err)
	}
}

// threeNodes are those of which one has one pod, and another has two.
func threeNodes() []source.Event {
	return []source.Event{
		setNode(aNode("a", "z", 4000)), setNode(aNode("b", "z", 4000)), setNode(aNode("c", "z", 4000)),
		setPod(on(choosyPod("b1"), "b")), setPod(on(choosyPod("c1"), "c")), setPod(on(choosyPod("c2"), "c")),
	}
}

func placedOn(outcomes []PodOutcome) map[string]int {
	nodes := make(map[string]int)
	for _, o := range outcomes {
		nodes[o.Node]++
	}
	return nodes
}

func TestCapacityIsWhatAPluginServiceLetsOnNodes(t *testing.T) {
	var two twoOf
	s := &services{all: []pluginhost.Service{serviceOf(t, two.plugin())}}
	askingOf(t, s, choosyProfile([]string{"TwoOf"}, nil), threeNodes(), func(w *World) error {
		before := w.State().Digest()
		for range 2 { // the second one does not see the first one's pods
			room, err := Capacity(w, choosyPod("new"), 100)
			if err != nil {
				return err
			}
			if room.Pods != 3 || room.AtLeast || len(room.Notes) > 0 {
				t.Errorf("there is room for %+v, want 3 pods", room)
			}
			if want := "0/3 nodes are available: 3 node(s) had two already."; !strings.HasPrefix(room.Message, want) {
				t.Errorf("the next one is told %q, want %q", room.Message, want)
			}
		}
		if got := two.on("c"); got != "c1 c2" {
			t.Errorf("c is told with %q, want the pods that are there in truth", got)
		}
		if got := two.on("b"); strings.Count(got, "?") != 1 || !strings.HasPrefix(got, "b1 ") {
			t.Errorf("b is told with %q, want b1 and a hypothetical pod", got)
		}
		if w.State().Digest() != before {
			t.Error("the world is not what it was")
		}
		// Pods of another profile are no business of the service.
		room, err := Capacity(w, aPod("other", 100), 100)
		if err != nil || room.Pods != 27 {
			t.Errorf("of other pods there is room for %+v, %v, want 27", room, err)
		}
		return nil
	})
}

func TestScoresOfAPluginServiceDecideWherePodsGo(t *testing.T) {
	events := []source.Event{setNode(aNode("a", "z", 4000)), setNode(aNode("b", "best", 1000)), setNode(aNode("c", "z", 4000))}
	for name, c := range map[string]struct {
		scores []string
		want   map[string]int
	}{
		"without": {nil, map[string]int{"a": 2, "c": 2}}, // more is free there
		"with":    {[]string{"ByZone"}, map[string]int{"b": 4}},
	} {
		s := &services{all: []pluginhost.Service{serviceOf(t, byLabel())}}
		askingOf(t, s, choosyProfile(nil, c.scores), events, func(w *World) error {
			var pods []source.Pod
			for k := range 4 {
				pods = append(pods, choosyPod(fmt.Sprint("p", k)))
			}
			ids, err := w.Add(Workload{Pods: pods})
			if err != nil {
				return err
			}
			outcomes, err := Place(w, ids, PlaceOptions{})
			if err != nil {
				return err
			}
			if diff := gocmp.Diff(c.want, placedOn(outcomes)); diff != "" {
				t.Errorf("%s its scores (-want +got):\n%s", name, diff)
			}
			if name == "without" && s.asks > 0 {
				t.Error("services are looked for though no profile uses one")
			}
			return nil
		})
	}
}

// Pods that are drained are not on their node any more, and those that find another place are there in the question only. What was tried within the question is not told behind it.
func TestDrainedPodsAreToldWhereTheyWouldBe(t *testing.T) {
	var two twoOf
	s := &services{all: []pluginhost.Service{serviceOf(t, two.plugin())}}
	askingOf(t, s, choosyProfile([]string{"TwoOf"}, nil), threeNodes(), func(w *World) error {
		drain := func() {
			moved, _, err := Evict(w, "c")
			if err != nil {
				t.Fatal(err)
			}
			var ids []cluster.PodID
			for _, m := range moved {
				ids = append(ids, m.Pod)
			}
			more, err := w.AddPod(choosyPod("new"))
			if err != nil {
				t.Fatal(err)
			}
			outcomes, err := Place(w, append(ids, more), PlaceOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := gocmp.Diff(map[string]int{"a": 2, "b": 1}, placedOn(outcomes)); diff != "" {
				t.Errorf("what was on c is placed so (-want +got):\n%s", diff)
			}
		}
		if err := w.Try(func() error { drain(); return nil }); err != nil {
			return err
		}
		// Then c has its pods again, in truth.
		if room, err := Capacity(w, choosyPod("new"), 100); err != nil || room.Pods != 3 {
			t.Errorf("there is room for %+v, %v, want 3 pods", room, err)
		}
		if got := two.on("c"); got != "c1 c2" {
			t.Errorf("c is told with %q, want c1 and c2", got)
		}
		drain()
		return w.Cordon("c", false)
	})
}

func TestAServiceThatCannotBeAskedIsNoted(t *testing.T) {
	var two twoOf
	gone := serviceOf(t, two.plugin())
	gone.Conn = failing{status.Error(codes.Unavailable, "connection refused")}
	hangs := serviceOf(t, two.plugin())
	hangs.Conn, hangs.Timeout = silent(t), 50*time.Millisecond
	other := gone
	other.Plugins = []pluginhost.Plugin{{Name: "Other"}}
	for name, c := range map[string]struct {
		services
		want []string
	}{
		"away":        {services{all: []pluginhost.Service{gone}}, []string{"profile choosy: plugins of others were not asked: TwoOf", "plugin service s could not be asked: describe: Unavailable: connection refused; its filters and scores are ignored"}},
		"hangs":       {services{all: []pluginhost.Service{hangs}}, []string{"profile choosy: plugins of others were not asked: TwoOf", "plugin service s could not be asked: no answer within its timeout of 50ms; its filters and scores are ignored"}},
		"no binder":   {services{err: errors.New("no binder is active")}, []string{"profile choosy: plugins of others were not asked: TwoOf", "plugin services could not be asked: no binder is active; their filters and scores are ignored"}},
		"not of ours": {services{all: []pluginhost.Service{other}}, []string{"profile choosy: plugins of others were not asked: TwoOf"}},
	} {
		t.Run(name, func(t *testing.T) {
			askingOf(t, &c.services, choosyProfile([]string{"TwoOf"}, nil), threeNodes(), func(w *World) error {
				room, err := Capacity(w, choosyPod("new"), 100)
				if err != nil {
					return err
				}
				if diff := gocmp.Diff(c.want, append(room.Notes, w.Notes()...)); diff != "" || room.Pods != 27 {
					t.Errorf("there is room for %d, want 27, with these notes (-want +got):\n%s", room.Pods, diff)
				}
				return nil
			})
		})
	}
}

// failing is a connection whose calls fail.
type failing struct{ err error }

func (f failing) Invoke(context.Context, string, any, any, ...grpc.CallOption) error { return f.err }

func (f failing) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, f.err
}

// mute describes its plugin, and answers no question.
type mute struct {
	pluginv1.UnimplementedPluginServiceServer
}

func (mute) Describe(context.Context, *pluginv1.DescribeRequest) (*pluginv1.DescribeResponse, error) {
	return &pluginv1.DescribeResponse{Plugins: []*pluginv1.PluginDescription{{Name: "TwoOf", Filters: true}}}, nil
}

func (mute) Judge(stream pluginv1.PluginService_JudgeServer) error {
	<-stream.Context().Done()
	return nil
}

func silent(t *testing.T) *grpc.ClientConn { return served(t, mute{}) }

func served(t *testing.T, s pluginv1.PluginServiceServer) *grpc.ClientConn {
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	pluginv1.RegisterPluginServiceServer(server, s)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return dialed(t, l)
}

// kubes is a service with plugins that look at other nodes than the one that they are asked about, or normalise themselves what they score, as kube-scheduler's do.
type kubes struct {
	pluginv1.UnimplementedPluginServiceServer
	asked []*pluginv1.Question
}

func (*kubes) Describe(context.Context, *pluginv1.DescribeRequest) (*pluginv1.DescribeResponse, error) {
	return &pluginv1.DescribeResponse{Plugins: []*pluginv1.PluginDescription{
		{Name: "Everywhere", Filters: true, Scores: true, Depends: &pluginv1.Dependencies{Cluster: true}},
		{Name: "Own", Filters: true, Scores: true, PreEnqueues: true, Normalization: pluginv1.Normalization_NORMALIZATION_OWN},
	}}, nil
}

func (k *kubes) Judge(stream pluginv1.PluginService_JudgeServer) error {
	for {
		r, err := stream.Recv()
		if err != nil {
			return nil
		}
		out := &pluginv1.JudgeResponse{Id: r.GetId()}
		for _, q := range r.GetQuestions() {
			k.asked = append(k.asked, q)
			a := &pluginv1.Answer{Refusals: []*pluginv1.Refusal{{Plugin: "Own", Reason: "not a"}}}
			for _, n := range q.GetNodes() {
				a.Verdicts = append(a.Verdicts, map[bool]uint32{true: 1}[n == 0])
			}
			out.Answers = append(out.Answers, a)
		}
		if err := stream.Send(out); err != nil {
			return err
		}
	}
}

func TestWhatIsAskedOfAPluginIsOnlyWhatConcernsANode(t *testing.T) {
	k := new(kubes)
	p := choosyProfile([]string{"Everywhere", "Own"}, []string{"Everywhere", "Own"})
	p.PreEnqueues = append(slices.Clone(p.PreEnqueues), "Own")
	s := &services{all: []pluginhost.Service{{Name: "s", Timeout: patience, Conn: served(t, k), Plugins: []pluginhost.Plugin{{Name: "Everywhere"}, {Name: "Own"}}}}}
	askingOf(t, s, p, threeNodes(), func(w *World) error {
		room, err := Capacity(w, choosyPod("new"), 100)
		if err != nil {
			return err
		}
		if want := []string{"profile choosy: plugins of others were not asked: Own (preEnqueue, score), Everywhere"}; room.Pods != 17 || !slices.Equal(room.Notes, want) {
			t.Errorf("there is room for %d, with the notes %q; want 17, and %q", room.Pods, room.Notes, want)
		}
		return nil
	})
	for _, q := range k.asked {
		if !slices.Equal(q.GetFilters(), []string{"Own"}) || len(q.GetScores()) > 0 {
			t.Fatalf("asked: %v", q)
		}
	}
}

// What a service states of a pod in place of an answer is the end of an attempt, and no reason to ask it no more.
func TestAPodThatAServiceCannotAnswerAboutIsNotPlaced(t *testing.T) {
	p := plugin.Plugin{Name: "TwoOf", Filter: func(_ context.Context, kind *plugin.Kind, n *plugin.Node) (*plugin.Refusal, error) {
		if kind.Priority > 0 {
			return nil, errors.New("no such price")
		}
		return nil, nil
	}}
	for _, ignorable := range []bool{false, true} {
		service := serviceOf(t, p)
		service.Ignorable = ignorable
		s := &services{all: []pluginhost.Service{service}}
		askingOf(t, s, choosyProfile([]string{"TwoOf"}, nil), threeNodes(), func(w *World) error {
			ids, err := w.Add(Workload{Pods: []source.Pod{prior(choosyPod("dear"), 10), choosyPod("cheap")}})
			if err != nil {
				return err
			}
			outcomes, err := Place(w, ids, PlaceOptions{Preempt: true})
			if err != nil {
				return err
			}
			dear, cheap := outcomes[0], outcomes[1]
			if cheap.Outcome != Placed || len(w.Notes()) > 0 || (dear.Outcome == Placed) != ignorable {
				t.Errorf("ignorable %v: the outcomes are %+v, with %q", ignorable, outcomes, w.Notes())
			}
			if want := `plugin service "s": plugin TwoOf, node `; !ignorable && !strings.HasPrefix(dear.Message, want) {
				t.Errorf("it is told %q, want %q", dear.Message, want)
			}
			return nil
		})
	}
}

// Refusals of services are counted among those of Berth's own filters, and a pod that they alone refuse is tried again when others have gone.
func TestRefusalsAreCountedWithThoseOfOwnFilters(t *testing.T) {
	var two twoOf
	s := &services{all: []pluginhost.Service{serviceOf(t, two.plugin())}}
	events := append(threeNodes(), setNode(aNode("small", "z", 10)))
	askingOf(t, s, choosyProfile([]string{"TwoOf"}, nil), events, func(w *World) error {
		var pods []source.Pod
		for k := range 4 {
			pods = append(pods, choosyPod(fmt.Sprint("p", k)))
		}
		ids, err := w.Add(Workload{Pods: pods})
		if err != nil {
			return err
		}
		outcomes, err := Place(w, ids, PlaceOptions{})
		if err != nil {
			return err
		}
		last := outcomes[3]
		slices.SortFunc(last.Verdicts, func(a, b engine.VerdictCount) int { return cmp.Compare(b.Count, a.Count) })
		if want := "0/4 nodes are available: 1 Insufficient cpu, 3 node(s) had two already."; last.Outcome != Unplaced || last.Message != want || len(last.Verdicts) != 2 || last.Verdicts[0].Plugin != "TwoOf" {
			t.Errorf("the last one is %+v, want the message %q", last, want)
		}
		return nil
	})
}

// A comparison of configurations asks under each what its profiles use.
func TestCompareAsksUnderEachConfiguration(t *testing.T) {
	var two twoOf
	s := &services{all: []pluginhost.Service{serviceOf(t, two.plugin(), byLabel())}}
	askingOf(t, s, choosyProfile([]string{"TwoOf"}, nil), threeNodes(), func(w *World) error {
		with := w.State().Settings
		without := with
		without.Profiles = []cluster.Profile{with.Profiles[0], choosyProfile(nil, []string{"ByZone"})}
		var pods []source.Pod
		for k := range 5 {
			pods = append(pods, choosyPod(fmt.Sprint("p", k)))
		}
		ids, err := w.Add(Workload{Pods: pods})
		if err != nil {
			return err
		}
		c, err := Compare(w, with, without, ids, PlaceOptions{Brief: true})
		if err != nil {
			return err
		}
		if c.OnlyB != 2 || c.OnlyA != 0 || len(c.Notes) > 0 {
			t.Errorf("the comparison is %+v, want two pods more without the plugin", c)
		}
		return nil
	})
}

// Of what the question has brought, plugins are sent what that says; other pods are named.
func TestPodsOfAQuestionAreSentAsItSaysThem(t *testing.T) {
	named := `"waits" "", ""` // for the binder to fill in, whatever the plugin depends on
	for brought, depends := range map[string]plugin.Dependencies{
		`"" "H200", ""`:     {Objects: true},
		`no object, "H200"`: {Annotations: true},
		`"" "H200", "H200"`: {Objects: true, Annotations: true},
	} {
		if saw := seenOfAQuestion(t, depends); !slices.Equal(saw, slices.Sorted(slices.Values([]string{brought, named}))) {
			t.Errorf("%+v: the plugin saw %q, want %q", depends, saw, []string{brought, named})
		}
	}
}

// seenOfAQuestion returns what a plugin that depends on something sees of a pod that a question has brought, and of one that it has not.
func seenOfAQuestion(t *testing.T, depends plugin.Dependencies) []string {
	var mu sync.Mutex
	saw := make(map[string]bool)
	p := plugin.Plugin{
		Name: "TwoOf", Depends: depends,
		Filter: func(_ context.Context, kind *plugin.Kind, _ *plugin.Node) (*plugin.Refusal, error) {
			object := "no object"
			if pod, err := kind.Pod(); err == nil {
				object = fmt.Sprintf("%q %q", pod.Name, pod.Annotations["model"])
			}
			mu.Lock()
			defer mu.Unlock()
			saw[fmt.Sprintf("%s, %q", object, kind.Annotations["model"])] = true
			return nil, nil
		},
	}
	service := serviceOf(t, p)
	service.Objects = true
	load, err := ReadWorkload(t.Context(), []byte(`apiVersion: v1
kind: Pod
metadata: {name: brought, annotations: {model: H200}}
spec: {schedulerName: choosy, containers: [{name: c, image: i}]}`), 2, 10)
	if err != nil {
		t.Fatal(err)
	}
	askingOf(t, &services{all: []pluginhost.Service{service}}, choosyProfile([]string{"TwoOf"}, nil), append(threeNodes(), setPod(choosyPod("waits"))), func(w *World) error {
		ids, err := w.Add(load)
		if err != nil {
			return err
		}
		_, err = Place(w, append(ids, Pending(w)[0]), PlaceOptions{})
		return err
	})
	return slices.Sorted(maps.Keys(saw))
}
