package berthapp

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes/fake"
	restclient "k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/placeserver"
)

// counter is a plugin that says of a node what the test has it say, and counts for whom it does. It signs pods by their label app, unless that is "unsigned".
type counter struct {
	mu       sync.Mutex
	filtered []string
	scored   []string
	listed   int // nodes that were normalised last
	refuses  func(pod *v1.Pod, node fwk.NodeInfo) bool
	scores   func(pod *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status)
	leaves   map[types.UID]string // the only node that PreFilter leaves a pod
	skips    map[types.UID]bool   // pods that are not scored
	begins   func(pod *v1.Pod)    // at PreFilter
	prepares func(pod *v1.Pod)    // at PreScore
}

// sees is what a counter notes of nodes in the state of a pod, in Filter.
type sees string

func (s sees) Clone() fwk.StateData { return s }

func (*counter) Name() string { return "Counter" }

func (*counter) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	if pod.Labels["app"] == "unsigned" {
		return nil, fwk.NewStatus(fwk.Unschedulable, "it is not signed")
	}
	return []fwk.SignFragment{{Key: "app", Value: pod.Labels["app"]}}, nil
}

func (c *counter) PreFilter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	if c.begins != nil {
		c.begins(pod)
	}
	if node, ok := c.leaves[pod.UID]; ok {
		return &fwk.PreFilterResult{NodeNames: sets.New(node)}, nil
	}
	return nil, nil
}

func (*counter) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

func (c *counter) PreScore(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	if c.prepares != nil {
		c.prepares(pod)
	}
	if c.skips[pod.UID] {
		return fwk.NewStatus(fwk.Skip)
	}
	return nil
}

func (c *counter) Filter(_ context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	name := node.Node().Name
	state.Write(fwk.StateKey("sees "+name), sees(pod.UID))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.filtered = append(c.filtered, name)
	if c.refuses != nil && c.refuses(pod, node) {
		return fwk.NewStatus(fwk.Unschedulable, name+" is refused")
	}
	return nil
}

func (c *counter) Score(_ context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	name := node.Node().Name
	if by, err := state.Read(fwk.StateKey("sees " + name)); err != nil || by.(sees) != sees(pod.UID) {
		return 0, fwk.NewStatus(fwk.Error, fmt.Sprintf("%s has not been filtered for %s", name, pod.UID))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.scored = append(c.scored, name)
	if c.scores != nil {
		return c.scores(pod, node)
	}
	return 10*int64(len(node.GetPods())) + int64(name[1]-'0'), nil
}

func (c *counter) ScoreExtensions() fwk.ScoreExtensions { return c }

// NormalizeScore gives each node 100 less what it scores, and tells how many there are.
func (c *counter) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *v1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listed = len(scores)
	for i := range scores {
		scores[i].Score = 100 - scores[i].Score
	}
	return nil
}

// calls returns for which nodes the plugin has been called since it was asked last.
func (c *counter) calls() (filtered, scored string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.Sort(c.filtered)
	slices.Sort(c.scored)
	filtered, scored = strings.Join(c.filtered, " "), strings.Join(c.scored, " ")
	c.filtered, c.scored = nil, nil
	return filtered, scored
}

// unsigned is a counter that signs nothing.
type unsigned struct {
	fwk.FilterPlugin
	fwk.ScorePlugin
}

func (unsigned) Name() string { return "Counter" }

// other is a second plugin.
type other struct{ fwk.Plugin }

func (other) Name() string { return "Other" }

// filters is a plugin that signs nothing, and lets pods go anywhere.
type filters struct{}

func (filters) Name() string { return "Other" }

func (filters) Filter(context.Context, fwk.CycleState, *v1.Pod, fwk.NodeInfo) *fwk.Status { return nil }

// row is a row of pods that come one behind the other, as Berth asks about them.
type row struct {
	t       testing.TB
	client  *fake.Clientset
	profile *profile
	world   *world
	clock   time.Time

	nodes map[int32]string
	kind  int32
	count int
	told  pluginv1.JudgeRequest
}

const rowConfig = `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
  plugins:
    multiPoint:
      enabled: [PLUGINS]
`

func newRow(t testing.TB, nodes int, made ...fwk.Plugin) *row {
	t.Helper()
	return newRowOf(t, rowConfig, nodes, made...)
}

func newRowOf(t testing.TB, config string, nodes int, made ...fwk.Plugin) *row {
	t.Helper()
	p, enabled := &plugins{registry: make(frameworkruntime.Registry)}, make([]string, 0, len(made))
	for _, plugin := range made {
		enabled = append(enabled, fmt.Sprintf("{name: %s}", plugin.Name()))
		if err := p.add(plugin.Name(), func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return plugin, nil }); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := decode([]byte(strings.ReplaceAll(config, "PLUGINS", strings.Join(enabled, ", "))))
	if err != nil {
		t.Fatal(err)
	}
	r := &row{t: t, client: fake.NewClientset(), clock: time.Unix(1_000_000, 0), nodes: make(map[int32]string)}
	ctx, cancel := context.WithCancel(context.Background())
	if r.profile, err = p.start(ctx, &loaded{cfg, &restclient.Config{}, r.client}, "default-scheduler", new(placeserver.Server), time.Hour); err != nil {
		t.Fatal(err)
	}
	r.profile.now = func() time.Time { return r.clock }
	if r.world, err = newWorld(ctx, r.profile, 10*time.Minute); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.world.close()
		r.profile.close()
		cancel()
	})
	for i := range nodes {
		r.node(int32(i), nil)
	}
	return r
}

// node tells a node.
func (r *row) node(id int32, labels map[string]string) {
	r.t.Helper()
	name := fmt.Sprint("n", id)
	object, err := json.Marshal(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
	if err != nil {
		r.t.Fatal(err)
	}
	r.nodes[id] = name
	r.told.Nodes = append(r.told.Nodes, &pluginv1.Node{Id: id, Spec: &pluginv1.NodeSpec{Name: name, Object: object}})
}

// pod makes a pod.
func (r *row) pod(app string) *v1.Pod {
	r.t.Helper()
	r.count++
	pod := podNamed(fmt.Sprint("p", r.count))
	pod.Labels = map[string]string{"app": app}
	if _, err := r.client.CoreV1().Pods(pod.Namespace).Create(r.t.Context(), pod, metav1.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
	return pod
}

// place says that a pod has been placed.
func (r *row) place(pod *v1.Pod, node int32) {
	r.told.Nodes = append(r.told.Nodes, &pluginv1.Node{Id: node, Added: []*pluginv1.PlacedPod{{Uid: string(pod.UID), Name: pod.Name, Kind: 1}}})
}

// changes has a pod that has been placed be another one than it was.
func (r *row) changes(pod *v1.Pod) {
	changed := r.profile.pods.get(pod.UID).DeepCopy()
	metav1.SetMetaDataLabel(&changed.ObjectMeta, "is", "changed")
	r.profile.pods.set(changed)
}

// asks sends a request with what is to be told.
func (r *row) asks(q *pluginv1.Question) *pluginv1.Answer {
	r.t.Helper()
	r.told.Id = r.world.last + 1
	q.Kind = r.kind
	r.told.Questions = []*pluginv1.Question{q}
	response, err := r.world.answer(r.t.Context(), &r.told)
	r.told = pluginv1.JudgeRequest{}
	if err != nil {
		r.t.Fatal(err)
	}
	return response.GetAnswers()[0]
}

// judgedPod is what is said of a pod.
type judgedPod struct {
	left   []int32
	scores map[int32]int32
	err    string

	kept, keptScores bool // of some nodes it was
}

// begin has a pod be the one that is asked about.
func (r *row) begin(pod *v1.Pod) {
	r.t.Helper()
	object, err := json.Marshal(pod)
	if err != nil {
		r.t.Fatal(err)
	}
	r.kind++
	if r.kind > 1 {
		r.told.ForgottenKinds = []int32{r.kind - 1}
	}
	r.told.Kinds = append(r.told.Kinds, &pluginv1.Kind{Id: r.kind, SchedulerName: "default-scheduler", Object: object})
}

// judge asks about a pod: verdicts on all nodes, and the scores of those that are left, as Berth does.
func (r *row) judge(pod *v1.Pod) (out judgedPod) {
	r.t.Helper()
	r.begin(pod)
	return r.again(slices.Sorted(maps.Keys(r.nodes))...)
}

// again asks about some nodes for the pod that is asked about.
func (r *row) again(ids ...int32) (out judgedPod) {
	r.t.Helper()
	a := r.asks(&pluginv1.Question{Filters: r.profile.names, Nodes: ids})
	if out.err, out.kept = a.GetError(), a.GetKept(); out.err != "" {
		return out
	}
	for i, id := range ids {
		if len(a.GetVerdicts()) == 0 || a.GetVerdicts()[i] == 0 {
			out.left = append(out.left, id)
		}
	}
	if len(out.left) < 2 {
		return out
	}
	return r.score(out)
}

func (r *row) score(out judgedPod) judgedPod {
	r.t.Helper()
	a := r.asks(&pluginv1.Question{Scores: []string{"Counter"}, Nodes: out.left})
	out.err, out.keptScores, out.scores = a.GetError(), a.GetKept(), make(map[int32]int32)
	for i, id := range out.left {
		if out.err == "" {
			out.scores[id] = a.GetScores()[0].GetScores()[i]
		}
	}
	return out
}

// expectCalls checks for which nodes the plugin has been called.
func (r *row) expectCalls(c *counter, what, filtered, scored string) {
	r.t.Helper()
	if f, s := c.calls(); f != filtered || s != scored {
		r.t.Errorf("%s: Filter is called for %q, want %q; Score for %q, want %q", what, f, filtered, s, scored)
	}
}

func TestASignedPodIsJudgedOnNodesThatHaveChanged(t *testing.T) {
	c := &counter{refuses: func(_ *v1.Pod, n fwk.NodeInfo) bool { return n.Node().Name == "n3" || len(n.GetPods()) > 1 }}
	r := newRow(t, 5, c)
	first := r.pod("x")
	got := r.judge(first)
	if want := (judgedPod{left: []int32{0, 1, 2, 4}, scores: map[int32]int32{0: 100, 1: 99, 2: 98, 4: 96}}); cmp.Diff(want, got, cmp.AllowUnexported(judgedPod{})) != "" {
		t.Errorf("the first: %+v, want %+v", got, want)
	}
	r.expectCalls(c, "the first", "n0 n1 n2 n3 n4", "n0 n1 n2 n4")
	r.place(first, 0)
	second := r.pod("x")
	got = r.judge(second)
	if want := (judgedPod{left: []int32{0, 1, 2, 4}, scores: map[int32]int32{0: 90, 1: 99, 2: 98, 4: 96}, kept: true, keptScores: true}); cmp.Diff(want, got, cmp.AllowUnexported(judgedPod{})) != "" {
		t.Errorf("the second: %+v, want %+v", got, want)
	}
	r.expectCalls(c, "the second", "n0", "n0")
	if c.listed != 4 {
		t.Errorf("scores of %d nodes are normalised, want all 4 that are left", c.listed)
	}
	if got := r.again(1); got.kept || len(got.left) != 1 {
		t.Errorf("the node that is chosen: %+v, want it judged for the pod itself", got)
	}
	r.expectCalls(c, "the node that is chosen", "n1", "")
	r.place(second, 0) // it has as many as it takes
	third := r.pod("x")
	got = r.judge(third)
	if want := (judgedPod{left: []int32{1, 2, 4}, scores: map[int32]int32{1: 99, 2: 98, 4: 96}, kept: true, keptScores: true}); cmp.Diff(want, got, cmp.AllowUnexported(judgedPod{})) != "" {
		t.Errorf("the third: %+v, want %+v", got, want)
	}
	r.expectCalls(c, "the third", "n0", "")
	r.node(4, map[string]string{"is": "changed"})
	r.judge(r.pod("x"))
	r.expectCalls(c, "a node has changed", "n4", "n4")
}

func TestWhatIsKeptEnds(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(r *row, c *counter, first *v1.Pod)
		kept bool
	}{
		{"nothing has happened", func(*row, *counter, *v1.Pod) {}, true},
		{"it is as old as it may be", func(r *row, _ *counter, _ *v1.Pod) { r.clock = r.clock.Add(keptFor) }, true},
		{"it is too old", func(r *row, _ *counter, _ *v1.Pod) { r.clock = r.clock.Add(keptFor + 1) }, false},
		{"it has been used meanwhile, and is too old", func(r *row, c *counter, _ *v1.Pod) {
			r.clock = r.clock.Add(keptFor/2 + 1)
			r.judge(r.pod("x"))
			r.expectCalls(c, "meanwhile", "", "")
			r.clock = r.clock.Add(keptFor / 2)
		}, false},
		{"a pod of another signature", func(r *row, c *counter, _ *v1.Pod) {
			r.judge(r.pod("y"))
			r.expectCalls(c, "the pod of another signature", "n0 n1 n2", "n0 n1 n2")
		}, false},
		{"a pod that is not signed", func(r *row, c *counter, _ *v1.Pod) {
			if got := r.judge(r.pod("unsigned")); got.kept {
				t.Error("it is taken for a pod that is not signed")
			}
			r.expectCalls(c, "the pod that is not signed", "n0 n1 n2", "n0 n1 n2")
		}, false},
		{"a pod has been placed that was not judged", func(r *row, c *counter, _ *v1.Pod) { r.place(r.pod("x"), 1) }, false},
		{"one that is judged has been placed, and has changed since", func(r *row, c *counter, first *v1.Pod) {
			r.place(first, 1)
			r.judge(r.pod("x"))
			r.expectCalls(c, "it is placed", "n1", "n1")
			r.changes(first)
			r.judge(r.pod("x"))
			r.expectCalls(c, "it has changed", "n1", "n1")
		}, true},
		{"one that was placed before has changed", func(r *row, c *counter, _ *v1.Pod) {
			stranger := r.pod("y")
			r.place(stranger, 1)
			r.judge(r.pod("x"))
			r.expectCalls(c, "a stranger is placed", "n0 n1 n2", "n0 n1 n2")
			r.changes(stranger)
			r.judge(r.pod("x"))
			r.expectCalls(c, "it has changed", "n1", "n1")
		}, true},
		{"one that is judged has been placed, and is told once more as it was", func(r *row, c *counter, first *v1.Pod) {
			r.place(first, 1)
			r.judge(r.pod("x"))
			r.expectCalls(c, "it is placed", "n1", "n1")
			r.profile.pods.set(r.profile.pods.get(first.UID))
			r.judge(r.pod("x"))
			r.expectCalls(c, "it is told once more", "", "")
		}, true},
		{"one that was placed before is elsewhere", func(r *row, c *counter, _ *v1.Pod) {
			stranger := r.pod("y")
			r.place(stranger, 1)
			r.judge(r.pod("x"))
			c.calls()
			r.told.Nodes = []*pluginv1.Node{{Id: 1, Removed: []string{string(stranger.UID)}}}
			r.place(stranger, 2)
		}, false},
		{"there is a node more", func(r *row, c *counter, _ *v1.Pod) {
			r.node(3, nil)
			delete(r.nodes, 3) // it is not asked about
		}, false},
		{"there is a node less", func(r *row, c *counter, _ *v1.Pod) { // whose name is that of none that is asked about
			r.node(3, nil)
			delete(r.nodes, 3)
			r.judge(r.pod("x"))
			c.calls()
			r.told.ForgottenNodes = []int32{3}
		}, false},
		{"a plugin has looked for a way", func(r *row, c *counter, _ *v1.Pod) {
			r.asks(&pluginv1.Question{PostFilters: []string{"Nobody"}})
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := new(counter)
			r := newRow(t, 3, c)
			first := r.pod("x")
			r.judge(first)
			r.expectCalls(c, "the first", "n0 n1 n2", "n0 n1 n2")
			tt.do(r, c, first)
			c.calls()
			got := r.judge(r.pod("x"))
			if got.err != "" || got.kept != tt.kept || got.keptScores != tt.kept {
				t.Errorf("%+v, want kept: %t", got, tt.kept)
			}
			if tt.kept {
				r.expectCalls(c, tt.name, "", "")
			} else {
				r.expectCalls(c, tt.name, "n0 n1 n2", "n0 n1 n2")
			}
		})
	}
}

func TestNothingIsKeptUnlessAllSign(t *testing.T) {
	for _, tt := range []struct {
		name, config string
		made         func(c *counter) []fwk.Plugin
		kept         bool
	}{
		{"one that signs", rowConfig, func(c *counter) []fwk.Plugin { return []fwk.Plugin{c} }, true},
		{"one that does not", rowConfig, func(c *counter) []fwk.Plugin { return []fwk.Plugin{unsigned{c, c}} }, false},
		{"another one that filters, and does not", rowConfig, func(c *counter) []fwk.Plugin { return []fwk.Plugin{c, filters{}} }, false},
		{"another one that takes no part in it", rowConfig, func(c *counter) []fwk.Plugin { return []fwk.Plugin{c, other{c}} }, true},
		{"an extender", rowConfig + "extenders: [{urlPrefix: \"http://127.0.0.1:1\", filterVerb: filter}]\n", func(c *counter) []fwk.Plugin { return []fwk.Plugin{c} }, false},
		{"a plugin of a service", strings.ReplaceAll(rowConfig, "PLUGINS", "PLUGINS, {name: example.com/OfAService}"), func(c *counter) []fwk.Plugin { return []fwk.Plugin{c} }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := new(counter)
			r := newRowOf(t, tt.config, 3, tt.made(c)...)
			r.judge(r.pod("x"))
			c.calls()
			if got := r.judge(r.pod("x")); got.kept != tt.kept || got.keptScores != tt.kept || len(got.scores) != 3 || got.scores[2] != 98 {
				t.Errorf("%+v, want kept: %t, and the scores of 3 nodes", got, tt.kept)
			}
			if tt.kept {
				r.expectCalls(c, tt.name, "", "")
			} else {
				r.expectCalls(c, tt.name, "n0 n1 n2", "n0 n1 n2")
			}
			if !tt.kept && r.world.kept != nil {
				t.Error("something is kept")
			}
		})
	}
}

func TestNobodyIsRefusedByWhatWasSaidOfAnotherPod(t *testing.T) {
	full := true
	c := &counter{refuses: func(_ *v1.Pod, n fwk.NodeInfo) bool { return full }}
	r := newRow(t, 3, c)
	r.judge(r.pod("x"))
	r.expectCalls(c, "the first", "n0 n1 n2", "")
	full = false // nothing that Berth tells has changed
	if got := r.judge(r.pod("x")); len(got.left) != 3 || got.kept {
		t.Errorf("%+v, want it to fit everywhere, and nothing kept", got)
	}
	r.expectCalls(c, "the second", "n0 n1 n2", "n0 n1 n2")
}

// Filter has seen all nodes of a list that is new before PreScore begins, and in any case all that are scored before one is: a plugin may write in one, and read in the other.
func TestFilterIsOverWhenScoresAreAskedFor(t *testing.T) {
	const many = 200
	var scoring atomic.Bool
	prepared, filtered := 0, 0
	c := &counter{
		refuses: func(*v1.Pod, fwk.NodeInfo) bool {
			if filtered++; scoring.Load() {
				t.Error("Filter is called while nodes are scored")
			}
			return false
		},
		scores:   func(*v1.Pod, fwk.NodeInfo) (int64, *fwk.Status) { scoring.Store(true); return 1, nil },
		prepares: func(*v1.Pod) { prepared = filtered },
	}
	r := newRow(t, many, c)
	var all, some []int32
	for i := range int32(many) {
		if all = append(all, i); i%4 != 0 {
			some = append(some, i)
		}
	}
	r.judge(r.pod("x"))
	scoring.Store(false)
	r.begin(r.pod("x"))
	filtered = 0
	if r.asks(&pluginv1.Question{Filters: r.profile.names, Nodes: all}); filtered != 0 {
		t.Fatalf("Filter is called for %d nodes", filtered)
	}
	if got := r.score(judgedPod{left: some}); got.err != "" || prepared != len(some) || filtered != len(some) {
		t.Errorf("%s; Filter is called for %d nodes, for %d of them before PreScore, want %d", got.err, filtered, prepared, len(some))
	}
}

// That all nodes of a question are refused says nothing against what is kept of those of another one.
func TestARequestOfWhichNoNodeIsLeftKeepsTheOthers(t *testing.T) {
	c := &counter{refuses: func(_ *v1.Pod, n fwk.NodeInfo) bool { return n.Node().Name >= "n3" }}
	r := newRow(t, 6, c)
	judge := func(pod *v1.Pod) judgedPod {
		r.begin(pod)
		for _, ids := range [][]int32{{0, 1, 2}, {3, 4, 5}} {
			r.asks(&pluginv1.Question{Filters: r.profile.names, Nodes: ids})
		}
		return r.score(judgedPod{left: []int32{0, 1, 2}})
	}
	first := r.pod("x")
	judge(first)
	r.expectCalls(c, "the first", "n0 n1 n2 n3 n4 n5", "n0 n1 n2")
	r.place(first, 1)
	if got := judge(r.pod("x")); got.err != "" || !got.keptScores {
		t.Errorf("%+v, want scores that are kept", got)
	}
	r.expectCalls(c, "the second", "n1 n3 n4 n5", "n1")
}

// Who scores nodes by what it has read before they changed says nothing of them to others.
func TestWhatIsSaidInAnEarlierStateIsNotKept(t *testing.T) {
	price, read := int64(0), make(map[types.UID]int64)
	c := &counter{begins: func(pod *v1.Pod) { read[pod.UID] = price }, scores: func(pod *v1.Pod, _ fwk.NodeInfo) (int64, *fwk.Status) { return read[pod.UID], nil }}
	r := newRow(t, 3, c)
	r.judge(r.pod("x"))
	r.begin(r.pod("x"))
	r.asks(&pluginv1.Question{Filters: r.profile.names, Nodes: []int32{0, 1, 2}})
	r.node(1, map[string]string{"price": "1"})
	price = 1
	if got := r.score(judgedPod{left: []int32{0, 1, 2}}); got.err != "" || got.keptScores {
		t.Errorf("%+v, want scores of this pod", got)
	}
	if got := r.judge(r.pod("x")); got.scores[1] != 99 {
		t.Errorf("scores %v, want 99 of 1, as it is by now", got.scores)
	}
}

func TestThatTheChosenNodeIsRefusedEndsWhatIsKept(t *testing.T) {
	taken := ""
	c := &counter{refuses: func(_ *v1.Pod, n fwk.NodeInfo) bool { return n.Node().Name == taken }}
	r := newRow(t, 3, c)
	r.judge(r.pod("x"))
	c.calls()
	if got := r.judge(r.pod("x")); !got.kept || len(got.left) != 3 {
		t.Fatalf("%+v, want all, by what is kept", got)
	}
	taken = "n1"
	if got := r.again(1); len(got.left) != 0 || got.kept {
		t.Errorf("the chosen node: %+v, want it refused", got)
	}
	r.expectCalls(c, "the chosen node", "n1", "")
	if got := r.again(0, 1, 2); !slices.Equal(got.left, []int32{0, 2}) || got.kept {
		t.Errorf("then: %+v, want 0 and 2, judged anew", got)
	}
	r.expectCalls(c, "then", "n0 n1 n2", "n0 n2")
}

// chooses asks for all at once about nodes for a pod: what else there is scores each as totals say.
func (r *row) chooses(pod *v1.Pod, ids []int32, totals ...int64) *pluginv1.Answer {
	r.t.Helper()
	r.begin(pod)
	return r.asks(&pluginv1.Question{Filters: r.profile.names, Scores: []string{"Counter"}, Nodes: ids, Totals: totals, Weights: []int64{2}})
}

// Behind a pod alike, all that is asked of a pod is answered in one question: which node it goes to, judged for itself.
func TestANodeIsChosenInOneQuestion(t *testing.T) {
	taken := ""
	c := &counter{
		refuses: func(_ *v1.Pod, n fwk.NodeInfo) bool { return len(n.GetPods()) > 1 || n.Node().Name == taken },
		scores: func(_ *v1.Pod, n fwk.NodeInfo) (int64, *fwk.Status) {
			return map[string]int64{"n0": 90, "n1": 50, "n2": 60, "n3": 50}[n.Node().Name], nil // which is taken from 100
		},
	}
	r := newRow(t, 4, c)
	ids := []int32{2, 3, 0, 1}
	check := func(what string, a *pluginv1.Answer, kept bool, chosen uint32, scores []int32, filtered, scored string) {
		t.Helper()
		if a.GetError() != "" || a.GetKept() != kept || a.GetChosen() != chosen || !a.GetKeeps() {
			t.Errorf("%s: %v; want it kept: %v, and %d chosen", what, a, kept, chosen)
		}
		var got []int32
		if len(a.GetScores()) == 1 {
			got = a.GetScores()[0].GetScores()
		}
		if !slices.Equal(got, scores) {
			t.Errorf("%s: scores %v, want %v", what, a.GetScores(), scores)
		}
		r.expectCalls(c, what, filtered, scored)
	}
	// Nothing is kept yet: verdicts are all that is answered.
	first := r.pod("x")
	check("the first", r.chooses(first, ids, 0, 0, 0, 0), false, 0, nil, "n0 n1 n2 n3", "")
	r.score(judgedPod{left: ids})
	c.calls()
	// n3 and n1 are equal: the first of them is chosen, and judged once more.
	r.place(first, 0)
	check("the second", r.chooses(r.pod("x"), ids, 0, 0, 0, 0), true, 2, []int32{40, 50, 10, 50}, "n0 n3", "n0")
	// What else there is counts.
	check("totals", r.chooses(r.pod("x"), ids, 21, 0, 0, 0), true, 1, []int32{40, 50, 10, 50}, "n2", "")
	check("totals that are nearly as high", r.chooses(r.pod("x"), ids, 20, -1, 0, 0), true, 1, []int32{40, 50, 10, 50}, "n2", "")
	// A refused node has no score.
	second := r.pod("x")
	r.place(second, 0)
	check("one is refused", r.chooses(r.pod("x"), ids, 0, 0, 1000, 0), false, 0, nil, "n0 n1 n2 n3", "")                  // second is none of those that were asked about
	check("and then", r.chooses(r.pod("x"), ids, 0, 0, 1000, 0), true, 2, []int32{40, 50, 50}, "n1 n2 n3 n3", "n1 n2 n3") // scores were of another list
	// One that is left alone is not scored.
	check("one is left", r.chooses(r.pod("x"), []int32{0, 1}, 0, 0), true, 2, nil, "n1", "")
	// The chosen node does not take the pod itself: all are judged anew.
	taken = "n3"
	check("it is taken", r.chooses(r.pod("x"), ids, 0, 0, 0, 0), false, 0, nil, "n0 n1 n2 n3 n3", "")
	// Of another signature.
	taken = ""
	check("another one", r.chooses(r.pod("y"), ids, 0, 0, 0, 0), false, 0, nil, "n0 n1 n2 n3", "")
}

// onlyScores is a plugin that signs and scores.
type onlyScores struct{ calls *atomic.Int64 }

func (onlyScores) Name() string { return "Counter" }

func (onlyScores) SignPod(context.Context, *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return []fwk.SignFragment{{Key: "all", Value: true}}, nil
}

func (p onlyScores) Score(_ context.Context, _ fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	p.calls.Add(1)
	return map[string]int64{"n1": 50}[node.Node().Name], nil
}

func (onlyScores) ScoreExtensions() fwk.ScoreExtensions { return nil }

// It is so in a profile whose plugins only score, too.
func TestANodeIsChosenOfWhichThereAreOnlyScores(t *testing.T) {
	calls := new(atomic.Int64)
	r := newRow(t, 3, onlyScores{calls})
	ask := func() *pluginv1.Answer {
		r.begin(r.pod("x"))
		return r.asks(&pluginv1.Question{Scores: []string{"Counter"}, Nodes: []int32{0, 1, 2}, Totals: []int64{0, 0, 0}, Weights: []int64{1}})
	}
	if a := ask(); a.GetKept() || !a.GetKeeps() || a.GetChosen() != 0 {
		t.Errorf("the first: %v, want that it is kept from now on", a)
	}
	r.score(judgedPod{left: []int32{0, 1, 2}})
	if a := ask(); !a.GetKept() || a.GetChosen() != 2 || a.GetScores()[0].GetScores()[1] != 50 {
		t.Errorf("the second: %v, want n1", a)
	}
	if n := calls.Load(); n != 3 {
		t.Errorf("Score is called %d times for two pods, want once for each node", n)
	}
}

func TestAQuestionForAllAtOnceThatMakesNoSenseIsRefused(t *testing.T) {
	for want, q := range map[string]*pluginv1.Question{
		"scores":  {Filters: []string{"Counter"}, Scores: []string{"Counter"}, Nodes: []int32{0, 1}},
		"totals":  {Filters: []string{"Counter"}, Scores: []string{"Counter"}, Nodes: []int32{0, 1}, Totals: []int64{1}, Weights: []int64{1}},
		"weights": {Filters: []string{"Counter"}, Scores: []string{"Counter"}, Nodes: []int32{0, 1}, Totals: []int64{1, 1}},
	} {
		r := newRow(t, 2, new(counter))
		r.begin(r.pod("x"))
		q.Kind, r.told.Id, r.told.Questions = r.kind, 1, []*pluginv1.Question{q}
		if _, err := r.world.answer(t.Context(), &r.told); err == nil || !strings.Contains(err.Error(), "questions[0]."+want) {
			t.Errorf("%s: error %v", want, err)
		}
	}
}

func TestScoresAreKeptOfTheSameListAlone(t *testing.T) {
	for _, tt := range []struct {
		name   string
		scored []int32
		then   []int32
		place  int32 // the node that the first pod goes to; -1: none
		want   string
	}{
		{"the same", []int32{0, 1, 2, 3}, []int32{0, 1, 2, 3}, -1, ""},
		{"in another order", []int32{0, 1, 2, 3}, []int32{3, 1, 0, 2}, -1, ""},
		{"but for one that has changed", []int32{0, 1, 2, 3}, []int32{0, 1, 3}, 2, ""},
		{"and one that has changed", []int32{0, 1, 3}, []int32{0, 1, 2, 3}, 2, "n2"},
		{"but for one that has not", []int32{0, 1, 2, 3}, []int32{0, 1, 3}, -1, "n0 n1 n3"},
		{"and one that has not", []int32{0, 1, 3}, []int32{0, 1, 2, 3}, -1, "n0 n1 n2 n3"},
		{"another sample", []int32{0, 1}, []int32{2, 3}, -1, "n2 n3"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := new(counter)
			r := newRow(t, 4, c)
			first, second := r.pod("x"), r.pod("x")
			r.begin(first)
			r.asks(&pluginv1.Question{Filters: r.profile.names, Nodes: []int32{0, 1, 2, 3}})
			r.score(judgedPod{left: tt.scored})
			if tt.place >= 0 {
				r.place(first, tt.place)
			}
			for range 2 { // the last list is the one that counts
				r.begin(second)
				r.asks(&pluginv1.Question{Filters: r.profile.names, Nodes: []int32{0, 1, 2, 3}})
				c.calls()
				got := r.score(judgedPod{left: tt.then})
				if got.err != "" {
					t.Fatal(got.err)
				}
				for _, id := range tt.then {
					want := 100 - id
					if id == tt.place {
						want -= 10
					}
					if got.scores[id] != want {
						t.Errorf("of %d: %d, want %d", id, got.scores[id], want)
					}
				}
				if _, scored := c.calls(); scored != tt.want {
					t.Errorf("Score is called for %q, want %q", scored, tt.want)
				}
				tt.want = ""
			}
		})
	}
}

// Some of a pod's nodes are asked about in a request, others in further ones, however long that takes.
func TestWhatIsSaidInSeveralRequestsIsKept(t *testing.T) {
	c := new(counter)
	r := newRow(t, 5, c)
	verdicts := func(ids ...int32) {
		t.Helper()
		r.asks(&pluginv1.Question{Filters: r.profile.names, Nodes: ids})
		r.clock = r.clock.Add(2 * keptFor)
	}
	first, second := r.pod("x"), r.pod("x")
	r.begin(first)
	verdicts(0, 1)
	verdicts(2, 3)
	r.score(judgedPod{left: []int32{0, 1, 2, 3}})
	r.expectCalls(c, "the first", "n0 n1 n2 n3", "n0 n1 n2 n3")
	r.begin(second)
	r.asks(&pluginv1.Question{Filters: r.profile.names, Nodes: []int32{0, 1}})
	r.asks(&pluginv1.Question{Filters: r.profile.names, Nodes: []int32{2, 3}})
	r.expectCalls(c, "the second", "", "")
	r.asks(&pluginv1.Question{Filters: r.profile.names, Nodes: []int32{4}})
	r.expectCalls(c, "another node", "n4", "")
	if got := r.score(judgedPod{left: []int32{0, 1, 2, 3, 4}}); got.err != "" || got.keptScores {
		t.Errorf("scores with another node: %+v, want those of this pod", got)
	}
	r.expectCalls(c, "scores with another node", "n0 n1 n2 n3", "n0 n1 n2 n3 n4") // that were filtered for the first
	r.clock = r.clock.Add(keptFor + 1)                                            // since the first was scored
	r.judge(r.pod("x"))
	r.expectCalls(c, "the third", "n0 n1 n2 n3 n4", "n0 n1 n2 n3 n4")
}

func TestEachPodHasItsOwnPreFilterAndPreScore(t *testing.T) {
	c := &counter{leaves: make(map[types.UID]string), skips: make(map[types.UID]bool)}
	r := newRow(t, 3, c)
	pods := []*v1.Pod{r.pod("x"), r.pod("x"), r.pod("x"), r.pod("x")}
	c.leaves[pods[0].UID], c.leaves[pods[2].UID] = "n1", "n2"
	c.skips[pods[1].UID] = true
	if got := r.judge(pods[0]); !slices.Equal(got.left, []int32{1}) {
		t.Errorf("%+v, want 1 left", got)
	}
	r.expectCalls(c, "one node is left", "n1", "")
	if got := r.judge(pods[1]); !slices.Equal(got.left, []int32{0, 1, 2}) || !got.kept || got.scores[1] != 0 {
		t.Errorf("%+v, want all, and not scored", got)
	}
	r.expectCalls(c, "all are left", "n0 n1 n2", "") // 1 before it would be scored
	if got := r.judge(pods[2]); !slices.Equal(got.left, []int32{2}) {
		t.Errorf("%+v, want 2 left", got)
	}
	r.expectCalls(c, "another one is left", "", "")
	if got := r.judge(pods[3]); !slices.Equal(got.left, []int32{0, 1, 2}) || got.scores[1] != 99 || got.keptScores {
		t.Errorf("%+v, want all scored", got)
	}
	r.expectCalls(c, "all are scored", "n0 n1 n2", "n0 n1 n2") // Filter, for it was another pod's
}

func TestWhatAPluginFailsToSayIsNotKept(t *testing.T) {
	ill := true
	c := &counter{scores: func(_ *v1.Pod, n fwk.NodeInfo) (int64, *fwk.Status) {
		if ill {
			return 0, fwk.NewStatus(fwk.Error, "it is ill")
		}
		return 200, nil
	}}
	r := newRow(t, 2, c)
	if got, want := r.judge(r.pod("x")).err, `running Score plugins: plugin "Counter" failed with: it is ill`; got != want {
		t.Errorf("error %q, want %q", got, want)
	}
	ill = false
	if got, want := r.judge(r.pod("x")).err, `applying score defaultWeights on Score plugins: plugin "Counter" returns an invalid score -100, it should in the range of [0, 100] after normalizing`; got != want {
		t.Errorf("error %q, want %q", got, want)
	}
}

func TestLittleIsKept(t *testing.T) {
	c := new(counter)
	r := newRow(t, 3, c)
	for i := range 50 { // signatures
		pod := r.pod(fmt.Sprint("app-", i))
		r.judge(pod)
		r.place(pod, int32(i%3))
		if got := r.world.kept; len(got.nodes) != 3 || len(got.pods) != 1 {
			t.Fatalf("%d nodes and %d pods, want those of one signature", len(got.nodes), len(got.pods))
		}
	}
	for range 50 { // pods of one, that do not come at once
		r.clock = r.clock.Add(keptFor / 4)
		r.judge(r.pod("x"))
	}
	if got := r.world.kept; len(got.pods) > 5 || len(got.nodes) != 3 {
		t.Errorf("%d pods and %d nodes, want those of a while", len(got.pods), len(got.nodes))
	}
}

// BenchmarkSignedPods asks about pods alike, one behind the other, each with 5,000 nodes, of which the last pod has changed one, as Berth does: verdicts, scores, and the chosen node by itself. There is one plugin, whose filter and whose score
// take some time for each node.
func BenchmarkSignedPods(b *testing.B) {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	for _, steps := range []int{1, 1_000, 10_000} { // of work
		c := &benched{steps: steps}
		each := time.Duration(math.MaxInt64)
		for range 1_000 {
			began := time.Now()
			c.work("n1")
			each = min(each, time.Since(began))
		}
		for _, tt := range []struct {
			name string
			made fwk.Plugin
		}{{"signed", c}, {"unsigned", unsigned{c, c}}} {
			b.Run(fmt.Sprintf("steps=%d/%s", steps, tt.name), func(b *testing.B) {
				r := newRow(b, 5000, tt.made)
				r.profile.now = time.Now
				ids := slices.Sorted(maps.Keys(r.nodes))[:500] // as many as are enough, by default
				asks := func(q *pluginv1.Question) {
					if a := r.asks(q); a.GetError() != "" {
						b.Fatal(a.GetError())
					}
				}
				for at := int32(0); b.Loop(); at = (at + 1) % 500 {
					b.StopTimer()
					pod := r.pod("x")
					r.begin(pod)
					b.StartTimer()
					if tt.name == "signed" {
						asks(&pluginv1.Question{Filters: []string{"Counter"}, Scores: []string{"Counter"}, Nodes: ids, Totals: make([]int64, len(ids)), Weights: []int64{1}})
					} else {
						asks(&pluginv1.Question{Filters: []string{"Counter"}, Nodes: ids})
						asks(&pluginv1.Question{Scores: []string{"Counter"}, Nodes: ids})
					}
					r.place(pod, at)
				}
				b.ReportMetric(float64(each.Nanoseconds()), "ns/call")
			})
		}
	}
}

// benched is a plugin that signs, filters and scores, in so many steps.
type benched struct{ steps int }

// work does something that nobody can leave out.
func (p *benched) work(name string) (sum uint32) {
	for range p.steps {
		sum = sum*31 + uint32(name[1])
	}
	return sum
}

func (*benched) Name() string { return "Counter" }

func (*benched) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return []fwk.SignFragment{{Key: "app", Value: pod.Labels["app"]}}, nil
}

func (p *benched) Filter(_ context.Context, _ fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	if p.work(node.Node().Name) == 0 {
		return fwk.NewStatus(fwk.Unschedulable, "it is refused")
	}
	return nil
}

func (p *benched) Score(_ context.Context, _ fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	return int64(p.work(node.Node().Name) % 100), nil
}

func (*benched) ScoreExtensions() fwk.ScoreExtensions { return nil }

// Plugins are told apart by what they call themselves: two that call themselves the same are refused.
func TestPluginsThatCallThemselvesTheSameAreRefused(t *testing.T) {
	p := &plugins{registry: make(frameworkruntime.Registry)}
	for _, name := range []string{"A", "B"} {
		if err := p.add(name, func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return new(counter), nil }); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := decode([]byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n- plugins: {filter: {enabled: [{name: A}, {name: B}]}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.start(t.Context(), &loaded{cfg, &restclient.Config{}, fake.NewClientset()}, "default-scheduler", new(placeserver.Server), time.Hour)
	if want := `the plugins "A" and "B" both call themselves "Counter": want different names`; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// How many nodes have an image is what plugins see of each node, also of one that is told again as it was.
func TestImagesAreCountedOfNodesThatAreToldAgain(t *testing.T) {
	r := newRow(t, 0, new(counter))
	tell := func(id int32, object *v1.Node) {
		t.Helper()
		name := fmt.Sprint("n", id)
		told := &pluginv1.NodeSpec{Name: name}
		if object != nil {
			object.Name = name
			encoded, err := json.Marshal(object)
			if err != nil {
				t.Fatal(err)
			}
			told.Object = encoded
		}
		r.nodes[id], r.told.Nodes = name, append(r.told.Nodes, &pluginv1.Node{Id: id, Spec: told})
	}
	with := func() *v1.Node {
		return &v1.Node{Status: v1.NodeStatus{Images: []v1.ContainerImage{{Names: []string{"image"}, SizeBytes: 7}}}}
	}
	seen := func(when string, want ...int) {
		t.Helper()
		r.judge(r.pod("x"))
		for id, count := range want {
			node, err := r.world.snapshot.Get(fmt.Sprint("n", id))
			if err != nil {
				t.Fatal(err)
			}
			if is := node.GetImageStates()["image"]; is == nil || is.NumNodes != count {
				t.Errorf("%s, n%d has %+v, want one of %d nodes", when, id, is, count)
			}
		}
	}
	tell(0, with())
	seen("alone", 1)
	tell(0, nil)
	seen("told again", 1)
	tell(1, with())
	seen("with another", 2, 2)
}
