package plugintest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/manifest"
	"github.com/berth-scheduler/berth/plugin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hang is how long an honest answer may take.
const hang = 2 * time.Minute

// honest are plugins that look at everything they are told.
func honest() []plugin.Plugin {
	var asked atomic.Int64
	return []plugin.Plugin{
		{Name: "Zone", Filter: func(_ context.Context, kind *plugin.Kind, node *plugin.Node) (*plugin.Refusal, error) {
			if node.Labels["topology.kubernetes.io/zone"] == "zone-1" && kind.Requested["cpu"] > 1000 {
				return &plugin.Refusal{Reason: "too small", Unresolvable: true}, nil
			}
			return nil, nil
		}},
		{Name: "Room", Depends: plugin.Dependencies{Requested: true}, Filter: func(_ context.Context, _ *plugin.Kind, node *plugin.Node) (*plugin.Refusal, error) {
			if node.PodCount > 4 {
				return &plugin.Refusal{Reason: "too full"}, nil
			}
			return nil, nil
		}},
		{Name: "Model", Depends: plugin.Dependencies{Objects: true}, Filter: func(_ context.Context, kind *plugin.Kind, node *plugin.Node) (*plugin.Refusal, error) {
			pod, err := kind.Pod()
			if err != nil {
				return nil, err
			}
			object, err := node.Object()
			if err != nil {
				return nil, err
			}
			if want := pod.Labels[gpuModel]; want != "" && object.Labels[gpuModel] != want {
				return &plugin.Refusal{Reason: "wrong model"}, nil
			}
			return nil, nil
		}},
		{Name: "Name", Normalization: plugin.Proportional, Score: func(_ context.Context, kind *plugin.Kind, node *plugin.Node) (int64, error) {
			h := fnv.New32()
			fmt.Fprint(h, node.Name, kind.Priority)
			return int64(h.Sum32() >> 1), nil
		}},
		{Name: "Pods", Depends: plugin.Dependencies{Pods: true}, Normalization: plugin.Reversed, Score: func(_ context.Context, _ *plugin.Kind, node *plugin.Node) (int64, error) {
			var sum int64
			for _, pod := range node.Pods {
				sum += pod.Kind.Requested["cpu"]
			}
			if len(node.Pods) != node.PodCount || sum != node.Requested["cpu"] {
				return 0, fmt.Errorf("%d pods request %d, and told are %d and %d", len(node.Pods), sum, node.PodCount, node.Requested["cpu"])
			}
			return sum / 100 % 101, nil
		}},
		{Name: "Clock", Depends: plugin.Dependencies{Holds: time.Second}, Score: func(context.Context, *plugin.Kind, *plugin.Node) (int64, error) {
			return asked.Add(1) % 101, nil
		}},
	}
}

// stepping are plugins that take steps, and nothing else. They wait for as long as they are let.
func stepping() []plugin.Plugin {
	return []plugin.Plugin{
		{Name: "Reserves", Depends: plugin.Dependencies{Objects: true, Annotations: true}, Reserve: func(_ context.Context, p *plugin.Placement) (*plugin.Rejection, error) {
			if pod, err := p.Pod(); err != nil || string(pod.UID) != p.UID || pod.Name != p.Name || p.Labels["app"] == "" {
				return nil, fmt.Errorf("the pod is %v, with labels %v, %w", pod, p.Labels, err)
			}
			if p.Stands {
				return nil, nil
			}
			return nil, p.Annotate("example.com/card", fmt.Sprint("of ", p.UID))
		}, Unreserve: func(context.Context, *plugin.Placement) {}},
		{Name: "Waits", Permit: func(context.Context, *plugin.Placement) (plugin.Permission, error) {
			return plugin.Permission{Wait: time.Hour}, nil
		}},
		{Name: "Attaches", PreBind: func(ctx context.Context, _ *plugin.Placement) (*plugin.Rejection, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, PostBind: func(context.Context, *plugin.Placement) {}},
	}
}

// gating are plugins that say which pods may be tried, and nothing else.
func gating() []plugin.Plugin {
	return []plugin.Plugin{{Name: "Gates", Depends: plugin.Dependencies{Objects: true, Annotations: true}, PreEnqueue: func(_ context.Context, p *plugin.Placement) (*plugin.Rejection, error) {
		if pod, err := p.Pod(); err != nil || string(pod.UID) != p.UID || p.Node != "" || p.Labels["app"] == "" {
			return nil, fmt.Errorf("the pod is %v, with labels %v, on node %q, %w", pod, p.Labels, p.Node, err)
		}
		if strings.HasSuffix(p.Name, "7") {
			return &plugin.Rejection{Reason: "not yet"}, nil
		}
		return nil, nil
	}}}
}

// sorting are plugins that sort the queue, and nothing else: one by how many attempts there have been, one by how many questions.
func sorting() []plugin.Plugin {
	var asked atomic.Int64
	return []plugin.Plugin{
		{Name: "Sorts", Depends: plugin.Dependencies{Annotations: true}, SortKey: func(_ context.Context, p *plugin.Placement, q plugin.Queued) (int64, error) {
			if p.Labels["app"] == "" {
				return 0, errors.New("the pod has no labels")
			}
			return int64(q.Attempts), nil
		}},
		{Name: "Turns", SortKey: func(context.Context, *plugin.Placement, plugin.Queued) (int64, error) { return asked.Add(1), nil }},
	}
}

// full is a plugin that rejects all.
func full() plugin.Plugin {
	return plugin.Plugin{Name: "Full", Reserve: func(context.Context, *plugin.Placement) (*plugin.Rejection, error) {
		return &plugin.Rejection{Reason: "nothing left"}, nil
	}, Unreserve: func(context.Context, *plugin.Placement) {}}
}

// serve serves what is registered until the test ends.
func serve(t *testing.T, register func(grpc.ServiceRegistrar), options ...grpc.ServerOption) pluginv1.PluginServiceClient {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(append([]grpc.ServerOption{grpc.MaxRecvMsgSize(maxRequestBytes), grpc.WaitForHandlers(true)}, options...)...)
	register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return pluginv1.NewPluginServiceClient(conn)
}

func serveHonest(t *testing.T, plugins ...plugin.Plugin) pluginv1.PluginServiceClient {
	t.Helper()
	return serve(t, func(r grpc.ServiceRegistrar) {
		if err := plugin.Register(r, nil, plugins...); err != nil {
			t.Fatal(err)
		}
	})
}

// run returns the errors, by case.
func run(t *testing.T, cfg Config, only ...testCase) (failed map[string]error, notes string) {
	t.Helper()
	failed = make(map[string]error)
	if only == nil {
		only = cases
	}
	var all strings.Builder
	ok := try(t.Context(), cfg, only, func(r Result) {
		if r.Err != nil {
			failed[r.Case] = r.Err
		}
		fmt.Fprintln(&all, r.Case+":", r.Note)
	})
	if ok != (len(failed) == 0) {
		t.Errorf("it returned %v, and told of %v", ok, failed)
	}
	return failed, all.String()
}

func TestPluginsOfTheSDKAnswerAsTheyHaveTo(t *testing.T) {
	all := honest()
	sets := map[string][]plugin.Plugin{"all": all}
	for _, p := range all {
		sets[p.Name] = []plugin.Plugin{p}
	}
	for _, p := range slices.Concat(stepping(), gating(), sorting(), []plugin.Plugin{full()}) {
		sets[p.Name] = []plugin.Plugin{p}
	}
	sets["stepping"] = stepping()
	sets["all"] = slices.Concat(sets["all"], stepping(), gating(), sorting())
	for name, plugins := range sets {
		tried := cases
		if name != "all" {
			tried = cases[:len(cases)-2] // the rest is about how much is sent
		}
		failed, notes := run(t, Config{Client: serveHonest(t, plugins...), Timeout: hang}, tried...)
		for what, err := range failed {
			t.Errorf("%s: %s: %v", name, what, err)
		}
		want := 0
		if name == "Clock" {
			want = 8
		}
		if judges, takes := slices.ContainsFunc(plugins, func(p plugin.Plugin) bool { return p.Filter != nil || p.Score != nil }),
			slices.ContainsFunc(plugins, func(p plugin.Plugin) bool { return p.Reserve != nil || p.Permit != nil || p.PreBind != nil }); strings.Contains(notes, "no plugin filters or scores") == judges ||
			strings.Count(notes, "no plugin takes steps") != map[bool]int{false: 7}[takes] {
			t.Errorf("%s: what it does not do is not left out:\n%s", name, notes)
		}
		if gates := slices.ContainsFunc(plugins, func(p plugin.Plugin) bool { return p.PreEnqueue != nil }); strings.Contains(notes, "no plugin says which pods may be tried") == gates ||
			strings.Contains(notes, "times rejected by Gates: not yet") != gates || strings.Contains(notes, "not taken: ") || strings.Contains(notes, "; pre-enqueue: Gates") != gates {
			t.Errorf("%s: of pods that come:\n%s", name, notes)
		}
		for _, sorts := range []struct{ by, says string }{{"Sorts", "Sorts: 1 different keys of 64 pods"}, {"Turns", "Turns: 64 different keys of 64 pods; 64 of them others when asked again"}} {
			if is := slices.ContainsFunc(plugins, func(p plugin.Plugin) bool { return p.Name == sorts.by }); strings.Contains(notes, sorts.says) != is {
				t.Errorf("%s: of where pods belong:\n%s", name, notes)
			}
		}
		if sorts := slices.ContainsFunc(plugins, func(p plugin.Plugin) bool { return p.SortKey != nil }); strings.Contains(notes, "no plugin sorts the queue") == sorts || strings.Contains(notes, "; queue sort: ") != sorts {
			t.Errorf("%s: of where pods belong:\n%s", name, notes)
		}
		if got := strings.Count(notes, "not compared"); got != want || strings.Contains(notes, "shows little") {
			t.Errorf("%s: %d cases were not compared, want %d:\n%s", name, got, want, notes)
		}
	}
}

func TestPluginsThatDependOnThePodGetAllOfIt(t *testing.T) {
	names := plugin.Plugin{Name: "Names", Depends: plugin.Dependencies{Pod: true}, Score: func(_ context.Context, kind *plugin.Kind, _ *plugin.Node) (int64, error) {
		pod, err := kind.Pod()
		if err == nil && (pod.Name == "" || pod.UID == "") {
			err = errors.New("it has no name or UID")
		}
		return 1, err
	}}
	if failed, _ := run(t, Config{Client: serveHonest(t, names), Timeout: hang}, cases[:8]...); len(failed) > 0 {
		t.Errorf("failed: %v", failed)
	}
}

func TestThatAllAnswersAreAlikeIsSaid(t *testing.T) {
	same := plugin.Plugin{Name: "Same", Score: func(context.Context, *plugin.Kind, *plugin.Node) (int64, error) { return 7, nil }}
	failed, notes := run(t, Config{Client: serveHonest(t, same), Timeout: hang})
	if len(failed) > 0 || !strings.Contains(notes, `of all nodes and pods was said: "can run it, Same scores it 7"`) {
		t.Errorf("failed: %v, notes:\n%s", failed, notes)
	}
}

func TestPluginsAreAskedAboutTheObjectsThatAreGiven(t *testing.T) {
	objects, err := manifest.Parse([]byte(`
{apiVersion: v1, kind: Node, metadata: {name: mine, labels: {a: b}}, status: {allocatable: {cpu: "4", pods: "10"}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, uid: u1, annotations: {a: b}}, spec: {schedulerName: berth, containers: [{name: c, image: i, resources: {requests: {cpu: 250m}}}]}}
`))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	saw := make(map[string]bool)
	looks := plugin.Plugin{Name: "Looks", Depends: plugin.Dependencies{Objects: true, Annotations: true}}
	looks.Configure = func(arguments json.RawMessage) (plugin.Plugin, error) {
		return plugin.Plugin{Filter: func(_ context.Context, kind *plugin.Kind, node *plugin.Node) (*plugin.Refusal, error) {
			pod, err := kind.Pod()
			if err != nil {
				return nil, err
			}
			object, err := node.Object()
			if err != nil {
				return nil, err
			}
			mu.Lock()
			defer mu.Unlock()
			name, _, _ := strings.Cut(object.Name, "-")
			saw[fmt.Sprintf("%s %s %v; %s %s %v %q %q %v %v; %s", name, object.Labels["a"], node.Allocatable,
				kind.Namespace, kind.SchedulerName, kind.Requested, pod.Name, pod.UID, pod.Annotations, kind.Annotations, arguments)] = true
			return nil, nil
		}}, nil
	}
	looks.Filter = func(context.Context, *plugin.Kind, *plugin.Node) (*plugin.Refusal, error) {
		return nil, errors.New("it got no arguments")
	}
	failed, _ := run(t, Config{Client: serveHonest(t, looks), Timeout: hang, Objects: objects, Arguments: map[string]string{"Looks": `{"a":1}`}})
	if len(failed) > 0 {
		t.Errorf("failed: %v", failed)
	}
	if want := `mine b map[cpu:4000 pods:10]; shop berth map[cpu:250] "" "" map[a:b] map[a:b]; {"a":1}`; len(saw) != 1 || !saw[want] {
		t.Errorf("the plugin saw %q, want %q", slices.Collect(maps.Keys(saw)), want)
	}
	failed, _ = run(t, Config{Client: serveHonest(t, looks), Timeout: hang, Arguments: map[string]string{"Books": "{}"}})
	if len(failed) != 1 || !strings.Contains(fmt.Sprint(failed), `"Books", and there is none`) {
		t.Errorf("arguments of a plugin that there is not: %v", failed)
	}
}

// lie is what a server does wrong that is honest else.
type lie struct {
	describe func(resp *pluginv1.DescribeResponse, times int32)
	request  func(m *memory, req *pluginv1.JudgeRequest)         // changes what the honest server hears
	response func(m *memory, resp *pluginv1.JudgeResponse) error // changes what it says

	step  func(m *placeMemory, req *pluginv1.PlaceRequest) error                              // changes what the honest server hears of placements
	taken func(m *placeMemory, resp *pluginv1.PlaceResponse) (said []*pluginv1.PlaceResponse) // and what it says
}

// placeMemory is what a lying server remembers of a stream of placements.
type placeMemory struct {
	mu       sync.Mutex
	asked    map[int64]*pluginv1.PlaceRequest
	held     []*pluginv1.PlaceResponse
	reserved map[string]bool
	turn     chan struct{}
	ctx      context.Context
	all      *shared
}

// memory is what a lying server remembers: of a stream, and of all of them.
type memory struct {
	nodes map[int32]*pluginv1.NodeSpec
	ctx   context.Context
	asked *pluginv1.JudgeRequest // as it came
	all   *shared
}

type shared struct {
	mu    sync.Mutex
	specs map[int32]*pluginv1.NodeSpec
	times atomic.Int32
	turn  chan struct{}
	pods  map[string]bool // that are reserved
}

// liar asks an honest server.
type liar struct {
	pluginv1.UnimplementedPluginServiceServer
	honest pluginv1.PluginServiceClient
	lie    lie
	all    shared
}

func (l *liar) Describe(ctx context.Context, req *pluginv1.DescribeRequest) (*pluginv1.DescribeResponse, error) {
	resp, err := l.honest.Describe(ctx, req)
	if err == nil && l.lie.describe != nil {
		l.lie.describe(resp, l.all.times.Add(1))
	}
	return resp, err
}

func (l *liar) Judge(stream pluginv1.PluginService_JudgeServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	honest, err := l.honest.Judge(ctx)
	if err != nil {
		return err
	}
	m := &memory{nodes: make(map[int32]*pluginv1.NodeSpec), ctx: ctx, all: &l.all}
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		m.asked = proto.CloneOf(req)
		if l.lie.request != nil {
			l.lie.request(m, req)
		}
		if err := honest.Send(req); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		resp, err := honest.Recv()
		if err != nil {
			return err
		}
		if l.lie.response != nil {
			if err := l.lie.response(m, resp); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}

func (l *liar) Place(stream pluginv1.PluginService_PlaceServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	honest, err := l.honest.Place(ctx)
	if err != nil {
		return err
	}
	m := &placeMemory{asked: make(map[int64]*pluginv1.PlaceRequest), reserved: make(map[string]bool), turn: make(chan struct{}, 1), ctx: ctx, all: &l.all}
	var answering sync.WaitGroup
	defer answering.Wait()
	defer cancel()
	answering.Go(func() {
		for {
			resp, err := honest.Recv()
			if err != nil {
				return
			}
			said := []*pluginv1.PlaceResponse{resp}
			if l.lie.taken != nil {
				m.mu.Lock()
				said = l.lie.taken(m, resp)
				m.mu.Unlock()
			}
			for _, resp := range said {
				if stream.Send(resp) != nil {
					return
				}
			}
		}
	})
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		m.mu.Lock()
		m.asked[req.GetId()] = proto.CloneOf(req)
		m.mu.Unlock()
		if l.lie.step != nil {
			if err := l.lie.step(m, req); err != nil {
				return err
			}
		}
		if err := honest.Send(req); err != nil {
			return err
		}
	}
}

// says makes a lie about responses to a step.
func says(step pluginv1.Step, change func(m *placeMemory, resp *pluginv1.PlaceResponse)) lie {
	return lie{taken: func(m *placeMemory, resp *pluginv1.PlaceResponse) []*pluginv1.PlaceResponse {
		if m.asked[resp.GetId()].GetStep() == step {
			change(m, resp)
		}
		return []*pluginv1.PlaceResponse{resp}
	}}
}

// answer makes a lie about each answer with more than one node.
func answer(change func(m *memory, a *pluginv1.Answer)) lie {
	return lie{response: func(m *memory, resp *pluginv1.JudgeResponse) error {
		for i, a := range resp.GetAnswers() {
			if len(m.asked.GetQuestions()[i].GetNodes()) > 1 {
				change(m, a)
			}
		}
		return nil
	}}
}

// refused is answer where some node is refused, and scored where plugins score.
func refused(change func(a *pluginv1.Answer)) lie {
	return answer(func(_ *memory, a *pluginv1.Answer) {
		if len(a.GetRefusals()) > 0 {
			change(a)
		}
	})
}

func scored(change func(a *pluginv1.Answer)) lie {
	return answer(func(_ *memory, a *pluginv1.Answer) {
		if len(a.GetScores()) > 0 {
			change(a)
		}
	})
}

func described(change func(resp *pluginv1.DescribeResponse)) lie {
	return lie{describe: func(resp *pluginv1.DescribeResponse, _ int32) { change(resp) }}
}

// respond makes a lie about responses from the second of a stream on.
func respond(change func(m *memory, resp *pluginv1.JudgeResponse) error) lie {
	return lie{response: func(m *memory, resp *pluginv1.JudgeResponse) error {
		if resp.GetId() == 1 {
			return nil
		}
		return change(m, resp)
	}}
}

// remember notes the specs of a request's nodes.
func remember(m *memory, req *pluginv1.JudgeRequest) {
	for _, n := range req.GetNodes() {
		if n.GetSpec() != nil {
			m.nodes[n.GetId()] = n.GetSpec()
		}
	}
}

func TestEachCaseFindsTheLieItIsFor(t *testing.T) {
	client := serveHonest(t, slices.Concat(honest()[:5], stepping(), gating(), sorting())...)
	caseOf := func(part string) testCase {
		t.Helper()
		i := slices.IndexFunc(cases, func(c testCase) bool { return strings.Contains(c.want, part) })
		if i < 0 {
			return testCase{want: part}
		}
		return cases[i]
	}
	const describes, responses, answers, verdicts = "Describe", "one response with its id", "one answer", "verdicts are none"
	const refusals, scores, again, order = "refusals name", "scores are one", "asked again", "order of the question, and no others"
	const nodeIDs, kindIDs, spec, pods = "forgotten node", "forgotten kind", "without spec", "pods come"
	const enters, belongs = "whether a pod may be tried", "where a pod belongs"
	const stands = "what was chosen for a pod stands"
	const each, back, apart, unknown = "each step", "what takes a placement back", "do not wait for those of others", "never reserved"
	const cutOff, placers = "a stream of placements that is cut", "several streams of placements"
	const breaks, several, large, inTime = "breaks off", "several streams", "16 MiB", "in time"
	tests := []struct {
		name, finds, says string
		lie               lie
	}{
		{"no plugins", describes, "there are 0 plugins", described(func(r *pluginv1.DescribeResponse) { r.Plugins = nil })},
		{"65 plugins", describes, "there are 65 plugins", described(func(r *pluginv1.DescribeResponse) {
			for i := len(r.Plugins); i < 65; i++ {
				r.Plugins = append(r.Plugins, &pluginv1.PluginDescription{Name: fmt.Sprint(i), Scores: true})
			}
		})},
		{"a plugin without a name", describes, "plugin 1 has no name", described(func(r *pluginv1.DescribeResponse) { r.Plugins[1].Name = "" })},
		{"two of a name", describes, "two plugins are called Zone", described(func(r *pluginv1.DescribeResponse) { r.Plugins[1].Name = "Zone" })},
		{"a plugin that does nothing", describes, "neither filters nor scores, nor looks for a way for pods that fit nowhere, and takes no step", described(func(r *pluginv1.DescribeResponse) { r.Plugins[0].Filters = false })},
		{"an unknown normalization", describes, "no normalization 9", described(func(r *pluginv1.DescribeResponse) { r.Plugins[3].Normalization = 9 })},
		{"a negative time", describes, "-1 milliseconds", described(func(r *pluginv1.DescribeResponse) { r.Plugins[3].Depends.Milliseconds = -1 })},
		{"another description each time", describes, "asked twice", lie{describe: func(r *pluginv1.DescribeResponse, times int32) {
			r.Plugins[3].Normalization = pluginv1.Normalization(times % 2)
		}}},
		{"ids that count from 0", responses, "has id 0", lie{response: func(_ *memory, r *pluginv1.JudgeResponse) error { r.Id--; return nil }}},
		{"an id that stays", responses, "has id 1", respond(func(_ *memory, r *pluginv1.JudgeResponse) error { r.Id = 1; return nil })},
		{"an end at a request without questions", responses, "the stream has ended", respond(func(m *memory, _ *pluginv1.JudgeResponse) error {
			if len(m.asked.GetQuestions()) == 0 {
				return io.EOF
			}
			return nil
		})},
		{"an answer too few", answers, "4 answers", lie{response: func(_ *memory, r *pluginv1.JudgeResponse) error {
			if len(r.Answers) > 4 {
				r.Answers = r.Answers[:4]
			}
			return nil
		}}},
		{"errors", answers, "could not be answered: not today", answer(func(_ *memory, a *pluginv1.Answer) { a.Error = "not today" })},
		{"an error of 2 KiB", answers, "the error has 2048 bytes", answer(func(_ *memory, a *pluginv1.Answer) { a.Error = strings.Repeat("e", 2048) })},
		{"verdicts that count from 0", verdicts, "counted from 1", refused(func(a *pluginv1.Answer) {
			for i := range a.Verdicts {
				a.Verdicts[i] += uint32(len(a.Refusals))
			}
		})},
		{"a verdict too few", verdicts, "23 verdicts on 24 nodes", refused(func(a *pluginv1.Answer) { a.Verdicts = a.Verdicts[1:] })},
		{"1,001 refusals", verdicts, "refusals: want at most 1000", refused(func(a *pluginv1.Answer) { a.Refusals = slices.Repeat(a.Refusals, 1001) })},
		{"a refusal of nobody's", refusals, `of plugin "Nobody"`, refused(func(a *pluginv1.Answer) { a.Refusals[0].Plugin = "Nobody" })},
		{"a refusal without reason", refusals, "is empty", refused(func(a *pluginv1.Answer) { a.Refusals[0].Reason = "" })},
		{"a long reason", refusals, "has 1025 bytes", refused(func(a *pluginv1.Answer) { a.Refusals[0].Reason = strings.Repeat("r", 1025) })},
		{"a score of 101 as it is", scores, "is 101: want 0 to 100", lie{
			describe: func(r *pluginv1.DescribeResponse, _ int32) {
				r.Plugins[3].Normalization = pluginv1.Normalization_NORMALIZATION_UNSPECIFIED
			},
			response: scored(func(a *pluginv1.Answer) {
				for i := range a.Scores[0].Scores {
					a.Scores[0].Scores[i] = 101
				}
			}).response,
		}},
		{"a score of -1", scores, "is -1: want 0 to 2147483647", scored(func(a *pluginv1.Answer) {
			last := a.Scores[len(a.Scores)-1]
			for i := range last.Scores {
				last.Scores[i] = -1
			}
		})},
		{"a score too few", scores, "23 scores of 24 nodes", scored(func(a *pluginv1.Answer) {
			last := a.Scores[len(a.Scores)-1]
			last.Scores = last.Scores[1:]
		})},
		{"scores of one plugin", scores, "scores of 1 plugins: want those of 2", scored(func(a *pluginv1.Answer) { a.Scores = a.Scores[:1] })},
		{"scores that grow", again, "the same question", answer(func(m *memory, a *pluginv1.Answer) {
			grown := m.all.times.Add(1) % 2
			for _, s := range a.GetScores() {
				for i := range s.Scores {
					s.Scores[i] = (s.Scores[i] + grown) % 101
				}
			}
		})},
		{"filters in an order of its own", order, "Model", lie{request: func(_ *memory, req *pluginv1.JudgeRequest) {
			for _, q := range req.Questions {
				slices.Sort(q.Filters)
			}
		}}},
		{"all filters, asked or not", order, "nobody is asked", lie{request: func(_ *memory, req *pluginv1.JudgeRequest) {
			for _, q := range req.Questions {
				q.Filters = []string{"Zone", "Room", "Model"}
			}
		}}},
		{"scores in an order of its own", order, "Name scores", lie{request: func(_ *memory, req *pluginv1.JudgeRequest) {
			for _, q := range req.Questions {
				slices.Sort(q.Scores)
			}
		}}},
		{"a forgotten node that stays", nodeIDs, "a new stream", lie{request: func(m *memory, req *pluginv1.JudgeRequest) {
			req.ForgottenNodes = nil
			for _, n := range req.Nodes { // is what it was
				if old := m.nodes[n.Id]; old != nil && n.Spec != nil {
					n.Spec = old
				}
			}
			remember(m, req)
			dropPods(req)
		}}},
		{"nodes that are forgotten last", nodeIDs, "there is no node", lie{request: func(m *memory, req *pluginv1.JudgeRequest) {
			for _, id := range m.asked.ForgottenNodes {
				req.Nodes = slices.DeleteFunc(req.Nodes, func(n *pluginv1.Node) bool { return n.Id == id })
			}
		}}},
		{"a kind that stays", kindIDs, "told again", lie{request: func(_ *memory, req *pluginv1.JudgeRequest) {
			if req.Id > 1 {
				req.Kinds = nil
			}
			req.ForgottenKinds = nil
		}}},
		{"kinds that are forgotten last", kindIDs, "there is no kind", lie{request: func(m *memory, req *pluginv1.JudgeRequest) {
			for _, id := range m.asked.ForgottenKinds {
				req.Kinds = slices.DeleteFunc(req.Kinds, func(k *pluginv1.Kind) bool { return k.Id == id })
			}
		}}},
		{"a spec that is lost", spec, "a new stream", lie{request: func(_ *memory, req *pluginv1.JudgeRequest) {
			for _, n := range req.Nodes {
				if n.Spec == nil {
					n.Spec = &pluginv1.NodeSpec{Name: "unknown", Object: []byte("{}")}
				}
			}
		}}},
		{"pods that stay", pods, "told are", lie{request: func(_ *memory, req *pluginv1.JudgeRequest) {
			for _, n := range req.Nodes {
				n.Removed = nil
				if n.Spec == nil {
					n.Added = slices.DeleteFunc(n.Added, func(p *pluginv1.PlacedPod) bool { return !strings.HasPrefix(p.Uid, "new-") })
				}
			}
		}}},
		{"what a node has is not told again", pods, "a new stream", lie{request: func(_ *memory, req *pluginv1.JudgeRequest) {
			req.Nodes = slices.DeleteFunc(req.Nodes, func(n *pluginv1.Node) bool { return n.Spec == nil })
		}}},
		{"one memory for all streams", breaks, "the next stream", lie{request: func(m *memory, req *pluginv1.JudgeRequest) {
			m.all.mu.Lock()
			defer m.all.mu.Unlock()
			for _, n := range req.Nodes {
				if old := m.all.specs[n.Id]; old != nil && n.Spec != nil {
					n.Spec = old
				} else if n.Spec != nil {
					m.all.specs[n.Id] = n.Spec
				}
			}
		}}},
		{"one stream at a time", several, "not done within", lie{request: func(m *memory, req *pluginv1.JudgeRequest) {
			if req.Id > 1 {
				return
			}
			select {
			case m.all.turn <- struct{}{}:
				context.AfterFunc(m.ctx, func() { <-m.all.turn })
			case <-m.ctx.Done():
			}
		}}},
		{"a pod is gated by nobody", enters, `by plugin "Nobody"`, says(preEnqueue, func(_ *placeMemory, r *pluginv1.PlaceResponse) {
			r.Rejection = &pluginv1.Rejection{Plugin: "Nobody", Reason: "no"}
		})},
		{"a pod is gated without reason", enters, "is empty", says(preEnqueue, func(_ *placeMemory, r *pluginv1.PlaceResponse) {
			r.Rejection = &pluginv1.Rejection{Plugin: "Gates"}
		})},
		{"whether a pod may be tried is said later", enters, "only a permit does", says(preEnqueue, func(_ *placeMemory, r *pluginv1.PlaceResponse) { r.WaitsMilliseconds = 1 })},
		{"whether a pod may be tried is said twice", enters, "another response behind the last one", lie{taken: func(_ *placeMemory, r *pluginv1.PlaceResponse) []*pluginv1.PlaceResponse {
			return []*pluginv1.PlaceResponse{r, r}
		}}},
		{"where a pod belongs is in an order", belongs, "a key of order 1", says(queueSort, func(_ *placeMemory, r *pluginv1.PlaceResponse) { r.SortOrder = 1 })},
		{"who sorts rejects", belongs, "who sorts rejects nothing", says(queueSort, func(_ *placeMemory, r *pluginv1.PlaceResponse) {
			r.Rejection = &pluginv1.Rejection{Plugin: "Sorts", Reason: "no"}
		})},
		{"an id that nobody has", each, "no step has it", says(reserve, func(_ *placeMemory, r *pluginv1.PlaceResponse) { r.Id = 1 })},
		{"a rejection of nobody's", each, `by plugin "Nobody"`, says(reserve, func(_ *placeMemory, r *pluginv1.PlaceResponse) {
			r.Rejection = &pluginv1.Rejection{Plugin: "Nobody", Reason: "no"}
		})},
		{"a rejection without reason", each, "is empty", says(permit, func(_ *placeMemory, r *pluginv1.PlaceResponse) {
			r.WaitsMilliseconds, r.Rejection = 0, &pluginv1.Rejection{Plugin: "Waits"}
		})},
		{"a rejection with an error", each, "a rejection and an error", says(reserve, func(_ *placeMemory, r *pluginv1.PlaceResponse) {
			r.Error, r.Rejection = "no", &pluginv1.Rejection{Plugin: "Reserves", Reason: "no"}
		})},
		{"a reservation that waits", each, "only a permit does", says(reserve, func(_ *placeMemory, r *pluginv1.PlaceResponse) { r.WaitsMilliseconds = 1 })},
		{"an annotation of Kubernetes' own", each, "Kubernetes' own", says(reserve, func(_ *placeMemory, r *pluginv1.PlaceResponse) {
			r.Annotations = map[string]string{"kubernetes.io/card": "1"}
		})},
		{"an annotation behind the reservation", each, "they are chosen when a pod is reserved", says(permit, func(_ *placeMemory, r *pluginv1.PlaceResponse) {
			r.Annotations = map[string]string{"example.com/card": "1"}
		})},
		{"another annotation", stands, "what was chosen for the pod before stands", says(reserve, func(m *placeMemory, r *pluginv1.PlaceResponse) {
			r.Annotations = map[string]string{"example.com/card": fmt.Sprint(r.GetId())}
		})},
		{"what was chosen is not reserved again", stands, "and reserved again it was not taken: no", says(reserve, func(m *placeMemory, r *pluginv1.PlaceResponse) {
			if m.asked[r.GetId()].GetPlacement().GetStands() {
				r.Error = "no"
			}
		})},
		{"an hour", each, "waits for 3600000 milliseconds", says(permit, func(_ *placeMemory, r *pluginv1.PlaceResponse) {
			if r.WaitsMilliseconds > 0 {
				r.WaitsMilliseconds = 3_600_000
			}
		})},
		{"what is not taken back", each, "STEP_UNRESERVE of", says(unreserve, func(_ *placeMemory, r *pluginv1.PlaceResponse) { r.Error = "no" })},
		{"two responses", each, "another response behind the last one", lie{taken: func(m *placeMemory, r *pluginv1.PlaceResponse) []*pluginv1.PlaceResponse {
			if m.asked[r.GetId()].GetStep() == permit {
				return []*pluginv1.PlaceResponse{{Id: r.GetId()}, {Id: r.GetId()}}
			}
			return []*pluginv1.PlaceResponse{r}
		}}},
		{"what is taken back is answered first", back, "which it ends, is not", lie{taken: func(m *placeMemory, r *pluginv1.PlaceResponse) []*pluginv1.PlaceResponse {
			switch step := m.asked[r.GetId()].GetStep(); {
			case (step == permit || step == preBind) && r.WaitsMilliseconds == 0:
				m.held = append(m.held, r)
				return nil
			case step == unreserve:
				return append([]*pluginv1.PlaceResponse{r}, m.held...)
			}
			return []*pluginv1.PlaceResponse{r}
		}}},
		{"one placement at a time", apart, "not done within", lie{
			step: func(m *placeMemory, req *pluginv1.PlaceRequest) error {
				if req.GetStep() == pluginv1.Step_STEP_UNSPECIFIED {
					return nil
				}
				select {
				case m.turn <- struct{}{}:
					return nil
				case <-m.ctx.Done():
					return m.ctx.Err()
				}
			},
			taken: func(m *placeMemory, r *pluginv1.PlaceResponse) []*pluginv1.PlaceResponse {
				if r.WaitsMilliseconds == 0 {
					<-m.turn
				}
				return []*pluginv1.PlaceResponse{r}
			},
		}},
		{"what it does not know is an error", unknown, "has not been reserved was not taken: who", lie{taken: func(m *placeMemory, r *pluginv1.PlaceResponse) []*pluginv1.PlaceResponse {
			req := m.asked[r.GetId()]
			if m.reserved[req.GetPlacement().GetUid()] = m.reserved[req.GetPlacement().GetUid()] || req.GetStep() == reserve; !m.reserved[req.GetPlacement().GetUid()] {
				r.Error = "who?"
			}
			return []*pluginv1.PlaceResponse{r}
		}}},
		{"what was reserved stays", cutOff, "is not taken back within", lie{taken: func(m *placeMemory, r *pluginv1.PlaceResponse) []*pluginv1.PlaceResponse {
			m.all.mu.Lock()
			defer m.all.mu.Unlock()
			req := m.asked[r.GetId()]
			switch uid := req.GetPlacement().GetUid(); {
			case req.GetStep() == reserve && m.all.pods[uid]:
				r.Error = "it is there"
			case req.GetStep() == reserve || req.GetStep() == unreserve:
				m.all.pods[uid] = req.GetStep() == reserve
			}
			return []*pluginv1.PlaceResponse{r}
		}}},
		{"one stream of placements at a time", placers, "not done within", lie{step: func(m *placeMemory, req *pluginv1.PlaceRequest) error {
			if req.GetId() > 1 {
				return nil
			}
			select {
			case m.all.turn <- struct{}{}:
				context.AfterFunc(m.ctx, func() { <-m.all.turn })
				return nil
			case <-m.ctx.Done():
				return m.ctx.Err()
			}
		}}},
		{"silence about many nodes", inTime, "not done within", lie{response: func(m *memory, _ *pluginv1.JudgeResponse) error {
			if len(m.asked.Nodes) >= many {
				<-m.ctx.Done()
			}
			return nil
		}}},
	}
	found := map[string]bool{caseOf(large).want: true} // the test below is for that
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			lying := &liar{honest: client, lie: tt.lie, all: shared{specs: make(map[int32]*pluginv1.NodeSpec), turn: make(chan struct{}, 1), pods: make(map[string]bool)}}
			cfg := Config{Client: serve(t, func(r grpc.ServiceRegistrar) { pluginv1.RegisterPluginServiceServer(r, lying) }), Timeout: hang}
			if strings.Contains(tt.says, "not done") || strings.Contains(tt.says, "not taken back within") {
				cfg.Timeout = soon
			}
			c := caseOf(tt.finds)
			failed, _ := run(t, cfg, c)
			for what, err := range failed {
				if !strings.HasPrefix(what, c.want) || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("%s: %v, want an error of %q with %q", what, err, tt.finds, tt.says)
				}
				found[c.want] = true
			}
			if len(failed) != 1 {
				t.Errorf("%d cases failed, want 1", len(failed))
			}
		})
	}
	for _, c := range cases {
		if !found[c.want] {
			t.Errorf("no lie is found by %q", c.want)
		}
	}
}

// soon is how long an answer may take that does not come.
const soon = 3 * time.Second

// dropPods takes pods out of a request that come to nodes or leave them.
func dropPods(req *pluginv1.JudgeRequest) {
	for _, n := range req.Nodes {
		n.Added, n.Removed, n.PodCount = nil, nil, 0
		delete(n.Requested, "cpu")
	}
}

func TestAServerThatTakesNoLargeRequestsIsFound(t *testing.T) {
	lying := &liar{honest: serveHonest(t, honest()[:1]...)}
	client := serve(t, func(r grpc.ServiceRegistrar) { pluginv1.RegisterPluginServiceServer(r, lying) }, grpc.MaxRecvMsgSize(4<<20)) // gRPC's default
	failed, _ := run(t, Config{Client: client, Timeout: hang})
	for what, err := range failed {
		if !strings.Contains(what, "16 MiB") || !strings.Contains(err.Error(), "larger than max") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if len(failed) != 1 {
		t.Errorf("failed: %v, want one", failed)
	}
}

func TestAProcessThatIsNotThereIsTheOnlyFailure(t *testing.T) {
	conn, err := grpc.NewClient("127.0.0.1:1", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	failed, _ := run(t, Config{Client: pluginv1.NewPluginServiceClient(conn), Timeout: hang})
	if len(failed) != 1 || !strings.Contains(fmt.Sprint(failed), "connection refused") {
		t.Errorf("failed: %v", failed)
	}
}

// What plugins that look for a way for pods, or bind them, do may change things: they are named, and not asked.
func TestPluginsThatMayChangeThingsAreNotAsked(t *testing.T) {
	client := serveHonest(t, plugin.Plugin{Name: "Binds", Bind: func(context.Context, *plugin.Placement) (bool, error) {
		t.Error("it is asked to bind")
		return true, nil
	}}, plugin.Plugin{Name: "Looks", PostFilter: func(context.Context, *plugin.Kind, []plugin.Refused) (plugin.PostFiltered, error) {
		t.Error("it is asked to look for a way")
		return plugin.PostFiltered{}, nil
	}})
	failed, notes := run(t, Config{Client: client, Timeout: hang})
	if len(failed) > 0 || !strings.Contains(notes, "; post-filter: Looks, not asked; bind: Binds, not asked") {
		t.Errorf("failed: %v; notes:\n%s", failed, notes)
	}
}

// readyLater is a client of a process that is not ready when it is asked first.
type readyLater struct {
	pluginv1.PluginServiceClient
	asked int
}

func (c *readyLater) Describe(ctx context.Context, in *pluginv1.DescribeRequest, opts ...grpc.CallOption) (*pluginv1.DescribeResponse, error) {
	if c.asked++; c.asked == 1 {
		return nil, status.Error(codes.FailedPrecondition, "the plugins are not ready yet")
	}
	return c.PluginServiceClient.Describe(ctx, in, opts...)
}

func TestAProcessThatIsNotReadyIsWaitedFor(t *testing.T) {
	client := &readyLater{PluginServiceClient: serveHonest(t, honest()[:1]...)}
	if failed, _ := run(t, Config{Client: client, Timeout: hang}, cases[:1]...); len(failed) > 0 || client.asked != 3 {
		t.Errorf("failed: %v, asked %d times", failed, client.asked)
	}
}
