package berthapp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"

	"github.com/berth-scheduler/berth/berthapp/annotate"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/test/bubble"
)

const (
	reserve   = pluginv1.Step_STEP_RESERVE
	unreserve = pluginv1.Step_STEP_UNRESERVE
	permit    = pluginv1.Step_STEP_PERMIT
	preBind   = pluginv1.Step_STEP_PRE_BIND
	postBind  = pluginv1.Step_STEP_POST_BIND
	bind      = pluginv1.Step_STEP_BIND

	preEnqueue = pluginv1.Step_STEP_PRE_ENQUEUE
	queueSort  = pluginv1.Step_STEP_QUEUE_SORT
)

// walker is a plugin with all steps, which notes for which pod it is called, on which node, and whose state it gets. What it says is up to the test.
type walker struct {
	name   string
	handle fwk.Handle
	test   *walk
}

// noted is what a walker writes into the state of a pod in PreFilter.
type noted types.UID

func (n noted) Clone() fwk.StateData { return n }

func (w *walker) Name() string { return "called " + w.name }

func (w *walker) note(point string, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	of := "none"
	if is, err := state.Read(fwk.StateKey(w.name)); err == nil {
		of = string(is.(noted))
	}
	if is, err := state.Read(framework.PodsToActivateKey); err != nil || is.(*framework.PodsToActivate).Map == nil {
		of += ", which kube-scheduler would not have begun"
	}
	if pod.Spec.NodeName != node {
		of += ", where its node is " + pod.Spec.NodeName
	}
	text := fmt.Sprintf("%s %s: %s on %s, state of %s", w.name, point, pod.UID, node, of)
	w.test.mu.Lock()
	w.test.heard, w.test.got, w.test.state = append(w.test.heard, text), pod, state
	at := strings.ToLower(w.name + " " + point + " " + string(pod.UID))
	says := w.test.says[at]
	if other := w.test.activates[at]; other != "" {
		if is, err := state.Read(framework.PodsToActivateKey); err == nil {
			is.(*framework.PodsToActivate).Map["default/"+other] = podNamed(other)
		}
	}
	w.test.mu.Unlock()
	if says != nil {
		return says()
	}
	return nil
}

func (w *walker) PreEnqueue(_ context.Context, pod *v1.Pod) *fwk.Status {
	w.test.mu.Lock()
	w.test.heard, w.test.got = append(w.test.heard, fmt.Sprintf("%s PreEnqueue: %s", w.name, pod.UID)), pod
	says := w.test.says[strings.ToLower(w.name)+" preenqueue "+string(pod.UID)]
	w.test.mu.Unlock()
	if says != nil {
		return says()
	}
	return nil
}

func (w *walker) PreFilter(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	if w.test.prefilters != nil {
		w.test.prefilters()
	}
	state.Write(fwk.StateKey(w.name), noted(pod.UID))
	return nil, nil
}

func (w *walker) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

func (w *walker) Filter(_ context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	return w.note("Filter", state, pod, pod.Spec.NodeName)
}

func (w *walker) PostFilter(_ context.Context, state fwk.CycleState, pod *v1.Pod, statuses fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	status := w.note("PostFilter", state, pod, pod.Spec.NodeName)
	nodes, err := statuses.NodesForStatusCode(w.handle.SnapshotSharedLister().NodeInfos(), fwk.Unschedulable)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	var told []string
	for _, n := range nodes {
		is := statuses.Get(n.Node().Name)
		told = append(told, fmt.Sprintf("%s is told %s: %s: %s", w.name, n.Node().Name, is.Plugin(), is.Message()))
	}
	slices.Sort(told)
	w.test.mu.Lock()
	defer w.test.mu.Unlock()
	w.test.heard = append(w.test.heard, told...)
	return w.test.results[w.name], status
}

func (w *walker) Reserve(_ context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	return w.note("Reserve", state, pod, node)
}

func (w *walker) Unreserve(_ context.Context, state fwk.CycleState, pod *v1.Pod, node string) {
	w.note("Unreserve", state, pod, node)
}

func (w *walker) Permit(_ context.Context, state fwk.CycleState, pod *v1.Pod, node string) (*fwk.Status, time.Duration) {
	return w.note("Permit", state, pod, node), w.test.wait
}

func (w *walker) PreBindPreFlight(_ context.Context, state fwk.CycleState, pod *v1.Pod, node string) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	return nil, w.note("PreFlight", state, pod, node)
}

func (w *walker) PreBind(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	status := w.note("PreBind", state, pod, node)
	if w.test.binds != nil {
		return w.test.binds(ctx)
	}
	return status
}

func (w *walker) Bind(_ context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	return w.note("Bind", state, pod, node)
}

func (w *walker) PostBind(_ context.Context, state fwk.CycleState, pod *v1.Pod, node string) {
	w.note("PostBind", state, pod, node)
}

// walk is a process with the plugins A and B, and who asks it.
type walk struct {
	t       *testing.T
	host    *host
	client  pluginv1.PluginServiceClient
	walkers map[string]*walker
	wait    time.Duration                     // how long a walker has a pod wait that says so
	binds   func(context.Context) *fwk.Status // what a walker does before a bind; nil: it says something, as at each point

	mu    sync.Mutex
	heard []string
	got   *v1.Pod                       // by which a walker has been called last
	state fwk.CycleState                // and with which
	says  map[string]func() *fwk.Status // by "a reserve p"

	told *pluginv1.Placement // what is told with a reserve of what was chosen before; nil: nothing

	results map[string]*fwk.PostFilterResult // of PostFilter, by walker

	prefilters func() // what a walker does at PreFilter besides; nil: nothing

	activates map[string]string // by the same, the pod that a walker has activated by the state

	place   grpc.BidiStreamingClient[pluginv1.PlaceRequest, pluginv1.PlaceResponse]
	last    int64
	answers chan *pluginv1.PlaceResponse // closed when the stream has ended
	ended   chan error                   // with what
}

const profileWithWalkers = `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
  plugins:
    multiPoint:
      enabled: [{name: A}, {name: B}]
`

// newWalkers returns who asks the plugins A and B, these, and how they are configured.
func newWalkers(t *testing.T, objects ...runtime.Object) (*walk, *plugins, *loaded) {
	t.Helper()
	w := &walk{t: t, walkers: make(map[string]*walker), says: make(map[string]func() *fwk.Status), wait: time.Hour}
	cfg, err := decode([]byte(profileWithWalkers))
	if err != nil {
		t.Fatal(err)
	}
	p := &plugins{registry: make(frameworkruntime.Registry)}
	for _, name := range []string{"A", "B"} {
		if err := p.add(name, func(_ context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
			w.walkers[name] = &walker{name, h, w}
			return w.walkers[name], nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.add("Sorts", func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return sorts{w}, nil }); err != nil {
		t.Fatal(err)
	}
	return w, p, &loaded{cfg, &restclient.Config{}, fake.NewClientset(objects...)}
}

func newWalk(t *testing.T, objects ...runtime.Object) *walk {
	t.Helper()
	return newWalkOf(t, profileWithWalkers, objects...)
}

func newWalkOf(t *testing.T, config string, objects ...runtime.Object) *walk {
	t.Helper()
	w, p, cfg := newWalkers(t, objects...)
	var err error
	if cfg.KubeSchedulerConfiguration, err = decode([]byte(config)); err != nil {
		t.Fatal(err)
	}
	w.host = &host{timeout: time.Hour, turn: make(chan struct{}, 1)}
	profile, err := p.start(t.Context(), cfg, "default-scheduler", &w.host.placing, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(profile.close)
	w.host.profile.Store(profile)
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	pluginv1.RegisterPluginServiceServer(server, w.host)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	conn := dial(t, l)
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		<-served
	})
	w.client = pluginv1.NewPluginServiceClient(conn)
	w.begin(t.Context())
	return w
}

func dial(t *testing.T, l *bufconn.Listener) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///walk", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// begin begins a stream of placements.
func (w *walk) begin(ctx context.Context) {
	w.t.Helper()
	place, err := w.client.Place(ctx)
	if err == nil {
		err = place.Send(&pluginv1.PlaceRequest{Id: 1, Profiles: []*pluginv1.Profile{{SchedulerName: "default-scheduler"}}, HearsActivates: true, HearsAnnotations: true})
	}
	if err != nil {
		w.t.Fatal(err)
	}
	answers := make(chan *pluginv1.PlaceResponse, 100)
	ended := make(chan error, 1)
	w.place, w.last, w.answers, w.ended = place, 1, answers, ended
	go func() {
		defer close(answers)
		for {
			r, err := place.Recv()
			if err != nil {
				ended <- err
				return
			}
			answers <- r
		}
	}()
}

func podNamed(uid string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "name-of-" + uid, UID: types.UID(uid)}, Spec: v1.PodSpec{SchedulerName: "default-scheduler"}}
}

func (w *walk) object(uid string) []byte {
	w.t.Helper()
	object, err := json.Marshal(podNamed(uid))
	if err != nil {
		w.t.Fatal(err)
	}
	return object
}

// judges has pods judged, one after the other, on a stream that ends with the test.
func (w *walk) judges(uids ...string) {
	w.t.Helper()
	w.judgesOn(w.t.Context(), uids...)
}

func (w *walk) judgesOn(ctx context.Context, uids ...string) {
	w.t.Helper()
	stream, err := w.client.Judge(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	for i, uid := range uids {
		r := &pluginv1.JudgeRequest{
			Id: int64(i) + 1, Kinds: []*pluginv1.Kind{{Id: int32(i), SchedulerName: "default-scheduler", Object: w.object(uid)}},
			Questions: []*pluginv1.Question{{Kind: int32(i), Filters: []string{"A", "B"}}},
		}
		if i > 0 {
			r.ForgottenKinds = []int32{int32(i) - 1}
		} else {
			node, err := json.Marshal(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
			if err != nil {
				w.t.Fatal(err)
			}
			r.Nodes = []*pluginv1.Node{{Id: 1, Spec: &pluginv1.NodeSpec{Name: "n", Object: node}}}
		}
		r.Questions[0].Nodes = []int32{1}
		if err := stream.Send(r); err != nil {
			w.t.Fatal(err)
		}
		if a, err := stream.Recv(); err != nil || a.GetAnswers()[0].GetError() != "" {
			w.t.Fatalf("%v, %v", a, err)
		}
	}
}

// step sends a step.
func (w *walk) step(step pluginv1.Step, uid string, plugins ...string) {
	w.t.Helper()
	w.last++
	r := &pluginv1.PlaceRequest{Id: w.last, Step: step, Plugins: plugins, Placement: &pluginv1.Placement{Uid: uid, Namespace: "default", Name: "name-of-" + uid, SchedulerName: "default-scheduler", Node: "n"}}
	switch step {
	case reserve:
		r.Placement.Object = w.object(uid)
		r.Placement.Stands, r.Placement.Annotations = w.told.GetStands(), w.told.GetAnnotations()
	case preEnqueue:
		r.Placement.Node = ""
	}
	if err := w.place.Send(r); err != nil {
		w.t.Fatal(err)
	}
}

// expect waits for so many answers, in this order.
func (w *walk) expect(want ...string) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.next(want)); diff != "" {
		w.t.Errorf("answers (-want +got):\n%s", diff)
	}
}

// expectAnyhow waits for so many answers, which are sorted, in any order.
func (w *walk) expectAnyhow(want ...string) {
	w.t.Helper()
	got := w.next(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("answers (-want +got):\n%s", diff)
	}
}

// next returns so many answers.
func (w *walk) next(want []string) (got []string) {
	w.t.Helper()
	for range want {
		r, ok := <-w.answers
		if !ok {
			got = append(got, "the stream has ended")
			break
		}
		text := fmt.Sprint(r.GetId())
		switch {
		case r.GetError() != "":
			text += " error: " + r.GetError()
		case r.GetRejection() != nil:
			text += " " + r.GetRejection().GetPlugin() + ": " + r.GetRejection().GetReason()
		case r.GetWaitsMilliseconds() != 0:
			text += fmt.Sprintf(" waits %d ms", r.GetWaitsMilliseconds())
		case r.GetSkipped():
			text += " skipped"
		case len(r.GetActivates()) > 0:
			text += fmt.Sprintf(" activates %v", r.GetActivates())
		case len(r.GetWakes()) > 0:
			text += fmt.Sprintf(" wakes %v", r.GetWakes())
		case len(r.GetAnnotations()) > 0:
			text += fmt.Sprintf(" annotations %v", r.GetAnnotations())
		}
		got = append(got, text)
	}
	return got
}

// hears checks what plugins have been called for since it was called last.
func (w *walk) hears(want ...string) {
	w.t.Helper()
	w.mu.Lock()
	got := w.heard
	w.heard = nil
	w.mu.Unlock()
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// say has a walker say something at a point about a pod, as in "a reserve p".
func (w *walk) say(at string, f func() *fwk.Status) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.says[at] = f
}

func always(code fwk.Code, reasons ...string) func() *fwk.Status {
	return func() *fwk.Status { return fwk.NewStatus(code, reasons...) }
}

// All steps of a pod are taken, in order, with the state in which plugins have judged nodes for it.
func TestStepsGoOnWithTheStateOfTheVerdicts(t *testing.T) {
	w := newWalk(t)
	w.judges("p")
	w.hears("A Filter: p on , state of p", "B Filter: p on , state of p")
	w.step(reserve, "p", "A", "B")
	w.expect("2")
	w.step(permit, "p", "A", "B")
	w.expect("3")
	w.step(preBind, "p", "A", "B")
	w.expect("4")
	w.step(postBind, "p", "A", "B")
	w.expect("5")
	w.hears("A Reserve: p on n, state of p", "B Reserve: p on n, state of p", "A Permit: p on n, state of p", "B Permit: p on n, state of p",
		"A PreFlight: p on n, state of p", "B PreFlight: p on n, state of p", "A PreBind: p on n, state of p", "B PreBind: p on n, state of p",
		"A PostBind: p on n, state of p", "B PostBind: p on n, state of p")
	// Of a pod that this process has not judged, there is no state but an empty one: another process had.
	w.step(reserve, "q", "A")
	w.expect("6")
	w.step(unreserve, "q", "A")
	w.expect("7")
	w.hears("A Reserve: q on n, state of none", "B Reserve: q on n, state of none", "B Unreserve: q on n, state of none", "A Unreserve: q on n, state of none")
	// It may be that only its bind is told.
	w.step(postBind, "r", "A")
	w.expect("8")
	w.hears("A PostBind: r on n, state of none", "B PostBind: r on n, state of none")
}

// What plugins choose in Reserve goes with the answer, and only then; the state says what has been chosen until the placement is over.
func TestPluginsChooseAnnotations(t *testing.T) {
	const cards = "example.com/cards"
	w := newWalk(t)
	choose := func(at, value string, want string) {
		w.say(at, func() *fwk.Status {
			err := annotate.Annotate(w.state, cards, value)
			if got := fmt.Sprint(err); !strings.Contains(got, want) {
				t.Errorf("%s: %v, want %s", at, err, want)
			}
			return nil
		})
	}
	choose("a reserve p", "1", "<nil>")
	choose("b reserve p", "2", "chosen already, with another value")
	choose("a prebind p", "3", "chosen already")
	w.say("a unreserve p", func() *fwk.Status {
		if got := annotate.Annotations(w.state); got[cards] != "1" || annotate.Stands(w.state) {
			t.Errorf("chosen is %v, stands %v", got, annotate.Stands(w.state))
		}
		return nil
	})
	w.step(reserve, "p", "A", "B")
	w.expect("2 annotations map[example.com/cards:1]")
	w.step(preBind, "p", "A", "B")
	w.expect("3")
	w.step(unreserve, "p", "A", "B")
	w.expect("4")
	w.say("a unreserve p", nil)
	w.told = &pluginv1.Placement{Stands: true, Annotations: map[string]string{cards: "1"}}
	w.say("a reserve p", func() *fwk.Status {
		if got := annotate.Annotations(w.state); got[cards] != "1" || !annotate.Stands(w.state) {
			t.Errorf("chosen is %v, stands %v", got, annotate.Stands(w.state))
		}
		if err := annotate.Annotate(w.state, "example.com/more", "1"); err == nil {
			t.Error("more is chosen for what stands")
		}
		return nil
	})
	w.step(reserve, "p", "A", "B")
	w.expect("5")
	if err := annotate.Annotate(framework.NewCycleState(), cards, "1"); !errors.Is(err, annotate.ErrNotBerth) {
		t.Errorf("in kube-scheduler: %v", err)
	}
}

func TestAStepThatIsRefusedNamesThePlugin(t *testing.T) {
	for name, tt := range map[string]struct {
		at, says string
		code     fwk.Code
		want     string
		behind   []string // calls after that which says so
	}{
		"reserve rejects":      {"a reserve p", "no", fwk.Unschedulable, "2 A: no", nil},
		"reserve rejects, bad": {"b reserve p", "no", fwk.UnschedulableAndUnresolvable, "2 B: no", nil},
		"without a reason":     {"a reserve p", "", fwk.Unschedulable, "2 A: rejected by plugin A", nil},
		"with a long reason":   {"a reserve p", strings.Repeat("é", 600), fwk.Unschedulable, "2 A: " + strings.Repeat("é", 512), nil},
		"reserve fails":        {"a reserve p", "ill", fwk.Error, `2 error: running Reserve plugin "called A": ill`, nil},
		"permit rejects":       {"a permit p", "no", fwk.Pending, "3 A: no", nil},
		"permit fails":         {"a permit p", "ill", fwk.Error, `3 error: running Permit plugin "called A": ill`, nil},
		"pre-flight fails":     {"a preflight p", "ill", fwk.Error, `4 error: running PreBindPreFlight "called A": ill`, nil},
		"pre-bind rejects":     {"b prebind p", "no", fwk.Unschedulable, "4 B: no", nil},
		"pre-bind fails":       {"a prebind p", "ill", fwk.Error, `4 error: running PreBind plugin "called A": ill`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWalk(t)
			reasons := []string{tt.says}
			if tt.says == "" {
				reasons = nil
			}
			w.say(tt.at, always(tt.code, reasons...))
			for k, step := range []pluginv1.Step{reserve, permit, preBind} {
				w.step(step, "p", "A", "B")
				if id := fmt.Sprint(k + 2); strings.HasPrefix(tt.want, id) {
					w.expect(tt.want)
					break
				} else {
					w.expect(id)
				}
			}
			w.mu.Lock()
			w.heard = nil
			w.mu.Unlock()
			w.step(unreserve, "p", "B", "A")
			w.expect(fmt.Sprint(w.last))
			w.hears("B Unreserve: p on n, state of none", "A Unreserve: p on n, state of none")
		})
	}
}

// kube-scheduler's RunBindPlugins.
func TestAPluginBindsOrSkipsThePod(t *testing.T) {
	for name, tt := range map[string]struct {
		a, b  func() *fwk.Status
		want  string
		asked []string
	}{
		"the first binds":  {nil, nil, "3", []string{"A"}},
		"the second binds": {always(fwk.Skip), nil, "3", []string{"A", "B"}},
		"both skip it":     {always(fwk.Skip), always(fwk.Skip), "3 skipped", []string{"A", "B"}},
		"one rejects":      {always(fwk.Unschedulable, "no"), nil, "3 A: no", []string{"A"}},
		"one fails":        {always(fwk.Skip), always(fwk.Error, "ill"), `3 error: running Bind plugin "called B": ill`, []string{"A", "B"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWalk(t)
			w.judges("p")
			w.say("a bind p", tt.a)
			w.say("b bind p", tt.b)
			w.step(reserve, "p")
			w.step(bind, "p", "A", "B")
			w.expect("2", tt.want)
			want := []string{"A Filter: p on , state of p", "B Filter: p on , state of p"}
			for _, name := range tt.asked {
				want = append(want, name+" Bind: p on n, state of p")
			}
			w.hears(want...)
		})
	}
}

// Pods that plugins have put into the state for that are activated when the scheduling cycle ends well, and again when the binding cycle has, as in kube-scheduler: once.
func TestPodsToActivateAreActivatedWhereACycleEndsWell(t *testing.T) {
	w := newWalk(t)
	w.activates = map[string]string{"a reserve p": "x", "b reserve q": "y", "a prebind q": "u", "a postbind q": "z", "a permit r": "v"}
	w.say("a permit p", always(fwk.Unschedulable, "no"))
	w.say("a permit r", always(fwk.Wait))
	w.step(reserve, "p", "A", "B")
	w.expect("2")
	w.step(permit, "p", "A", "B")
	w.expect("3 A: no")
	w.step(unreserve, "p", "A", "B")
	w.expect("4")
	w.step(reserve, "q", "A", "B")
	w.expect("5")
	w.step(permit, "q", "A", "B")
	w.expectAnyhow("0 activates [y]", "6")
	w.step(preBind, "q", "A", "B")
	w.expect("7")
	w.step(postBind, "q")
	w.expectAnyhow("0 activates [u]", "8") // it is only told
	w.step(reserve, "r", "A", "B")
	w.expect("9")
	w.step(permit, "r", "A", "B")
	w.expectAnyhow("0 activates [v]", "10 waits 900000 ms")
	w.walkers["A"].handle.Activate(klog.Background(), map[string]*v1.Pod{"default/h": podNamed("h"), "default/none": nil})
	w.expect("0 activates [h]")
}

// A profile without a Permit ends the scheduling cycle with Reserve.
func TestACycleWithoutAPermitEndsWithReserve(t *testing.T) {
	w := newWalkOf(t, strings.Replace(profileWithWalkers, "  plugins:", "  plugins:\n    permit: {disabled: [{name: '*'}]}", 1))
	w.activates = map[string]string{"a reserve p": "x"}
	w.step(reserve, "p", "A", "B")
	w.expectAnyhow("0 activates [x]", "2")
}

func TestAPluginWithNothingToDoBeforeABindIsPassedOver(t *testing.T) {
	w := newWalk(t)
	w.say("a preflight p", always(fwk.Skip))
	w.step(reserve, "p")
	w.step(preBind, "p", "A", "B")
	w.expect("2", "3")
	w.hears("A PreFlight: p on n, state of none", "B PreFlight: p on n, state of none", "B PreBind: p on n, state of none")
	w.say("b preflight q", always(fwk.Skip))
	w.say("a preflight q", always(fwk.Skip))
	w.step(reserve, "q")
	w.step(preBind, "q", "A", "B")
	w.expect("4", "5")
	w.hears("A PreFlight: q on n, state of none", "B PreFlight: q on n, state of none")
}

// reserved reserves pods, and asks whether they may be.
func (w *walk) reserved(uids ...string) {
	w.t.Helper()
	for _, uid := range uids {
		w.step(reserve, uid)
		w.expect(fmt.Sprint(w.last))
		w.step(permit, uid, "A", "B")
	}
}

func TestPodsWaitForPlugins(t *testing.T) {
	waits := always(fwk.Wait)
	t.Run("another pod lets it go", func(t *testing.T) {
		w := newWalk(t)
		w.say("a permit p", waits)
		w.reserved("p")
		w.expect("3 waits 900000 ms") // kube-scheduler has none wait for longer
		w.say("a permit q", func() *fwk.Status {
			w.walkers["A"].handle.IterateOverWaitingPods(func(is fwk.WaitingPod) { is.Allow("called A") })
			return nil
		})
		w.reserved("q")
		got := map[string]bool{}
		for range 2 {
			r := <-w.answers
			got[r.String()] = r.GetRejection() == nil && r.GetError() == ""
		}
		if len(got) != 2 || len(w.waiting()) != 0 {
			t.Errorf("answers %v, and %v wait still", got, w.waiting())
		}
	})
	t.Run("both plugins have to", func(t *testing.T) {
		w := newWalk(t)
		w.say("a permit p", waits)
		w.say("b permit p", waits)
		w.reserved("p")
		w.expect("3 waits 900000 ms")
		is := w.walkers["A"].handle.GetWaitingPod("p")
		is.Allow("called A")
		if got := is.GetPendingPlugins(); len(got) != 1 || got[0] != "called B" {
			t.Errorf("%v are waited for", got)
		}
		is.Allow("called B")
		w.expect("3")
	})
	t.Run("it is rejected", func(t *testing.T) {
		w := newWalk(t)
		w.say("b permit p", waits)
		w.reserved("p")
		w.expect("3 waits 900000 ms")
		w.walkers["A"].handle.GetWaitingPod("p").Reject("called B", "no more")
		w.expect("3 B: no more")
	})
	t.Run("it is rejected by nobody in particular", func(t *testing.T) {
		w := newWalk(t)
		w.say("b permit p", waits)
		w.reserved("p")
		w.expect("3 waits 900000 ms")
		if !w.walkers["A"].handle.RejectWaitingPod("p") {
			t.Error("it does not wait")
		}
		w.expect("3 A: removed")
	})
	t.Run("for too long", func(t *testing.T) {
		w := newWalk(t)
		w.wait = time.Millisecond
		w.say("b permit p", waits)
		w.reserved("p")
		w.expect("3 waits 1 ms", "3 B: rejected due to timeout after waiting 1ms at plugin called B")
	})
	t.Run("for no time at all", func(t *testing.T) {
		w := newWalk(t)
		w.wait = 0
		w.say("b permit p", waits)
		w.reserved("p")
		w.expect("3 waits 1 ms", "3 B: rejected due to timeout after waiting 0s at plugin called B")
	})
	t.Run("it is given back", func(t *testing.T) {
		w := newWalk(t)
		w.say("b permit p", waits)
		w.reserved("p")
		w.expect("3 waits 900000 ms")
		w.step(unreserve, "p", "B", "A")
		w.expect("3 error: waiting on permit for pod: the placement is given back", "4")
		if got := w.waiting(); len(got) != 0 {
			t.Errorf("%v wait still", got)
		}
		// It begins anew.
		w.say("b permit p", nil)
		w.reserved("p")
		w.expect("6")
	})
}

// waiting returns the pods that wait, as plugins see them.
func (w *walk) waiting() (uids []types.UID) {
	w.walkers["A"].handle.IterateOverWaitingPods(func(is fwk.WaitingPod) { uids = append(uids, is.GetPod().UID) })
	return uids
}

// When a stream ends, what is reserved and not bound is taken back, before the next one reserves it again.
func TestWhatAStreamLeavesIsTakenBack(t *testing.T) {
	w := newWalk(t)
	ctx, cancel := context.WithCancel(t.Context())
	w.begin(ctx)
	w.judges("p")
	w.say("a permit p", always(fwk.Wait))
	w.step(reserve, "p", "A", "B")
	w.expect("2")
	w.step(permit, "p", "A", "B")
	w.expect("3 waits 900000 ms")
	w.step(reserve, "bound", "A", "B")
	w.expect("4")
	w.step(postBind, "bound", "A", "B")
	w.expect("5")
	w.hears("A Filter: p on , state of p", "B Filter: p on , state of p", "A Reserve: p on n, state of p", "B Reserve: p on n, state of p", "A Permit: p on n, state of p", "B Permit: p on n, state of p",
		"A Reserve: bound on n, state of none", "B Reserve: bound on n, state of none", "A PostBind: bound on n, state of none", "B PostBind: bound on n, state of none")
	cancel()
	for range w.answers { // until it has ended for this side: the other one may be at it still
	}
	w.begin(t.Context())
	w.step(reserve, "p", "A", "B")
	w.expect("2")
	w.hears("B Unreserve: p on n, state of p", "A Unreserve: p on n, state of p", "A Reserve: p on n, state of none", "B Reserve: p on n, state of none")
	if got := w.waiting(); len(got) != 0 {
		t.Errorf("%v wait still", got)
	}
}

// What belongs to a scheduling cycle is not called beside another cycle, and what does not belong to one is.
func TestNoCycleRunsBesideAnother(t *testing.T) {
	w := newWalk(t)
	w.step(postBind, "before") // behind it the stream has begun, which has plugins see something new
	w.expect("2")
	began, goOn := make(chan struct{}), make(chan struct{})
	w.say("a filter p", func() *fwk.Status {
		close(began)
		<-goOn
		w.mu.Lock()
		defer w.mu.Unlock()
		w.heard = append(w.heard, "the cycle of p is over")
		return nil
	})
	judged := make(chan struct{})
	go func() {
		defer close(judged)
		w.judges("p")
	}()
	<-began
	w.step(reserve, "q", "A")
	w.step(postBind, "r", "A")
	w.expect("4")
	w.hears("A Filter: p on , state of p", "A PostBind: r on n, state of none", "B PostBind: r on n, state of none")
	close(goOn)
	w.expect("3")
	<-judged
	w.mu.Lock()
	first := w.heard[0]
	w.mu.Unlock()
	if first != "the cycle of p is over" {
		t.Errorf("first comes %q", first)
	}
}

func TestAStepOfAPluginThatDoesNotTakeItIsRefused(t *testing.T) {
	w := newWalk(t)
	w.step(reserve, "p", "C")
	if err := <-w.ended; !strings.Contains(err.Error(), `plugins[0]: there is no plugin "C" that reserves`) {
		t.Errorf("the stream has ended with %v", err)
	}
}

// Plugins see what Berth has decided, or, if nobody has told that yet, or any more, what the API server has.
func TestStepsSeeTheCluster(t *testing.T) {
	there := podNamed("there")
	there.Spec.NodeName = "n"
	w := newWalk(t, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, there, podNamed("nowhere"))
	var saw string
	look := func() *fwk.Status {
		saw = ""
		nodes, err := w.walkers["A"].handle.SnapshotSharedLister().NodeInfos().List()
		if err != nil {
			return fwk.AsStatus(err)
		}
		for _, n := range nodes {
			saw += fmt.Sprintf("%s with %d pods", n.Node().Name, len(n.GetPods()))
		}
		return nil
	}
	see := func(uid, want string) {
		t.Helper()
		w.say("a reserve "+uid, look)
		w.step(reserve, uid, "A")
		w.expect(fmt.Sprint(w.last))
		if saw != want {
			t.Errorf("%s: plugins see %q, want %q", uid, saw, want)
		}
	}
	w.say("a postbind before", look) // also at what belongs to no cycle
	w.step(postBind, "before", "A")
	w.expect(fmt.Sprint(w.last))
	if saw != "n with 1 pods" {
		t.Errorf("before anybody is judged, plugins see %q", saw)
	}
	see("p", "n with 1 pods")
	ctx, end := context.WithCancel(t.Context())
	w.judgesOn(ctx, "q")
	see("q", "n with 0 pods")
	see("r", "n with 0 pods")
	w.begin(t.Context()) // what stands may be told on it, long after somebody was judged
	see("t", "n with 1 pods")
	end()
	w.host.turn <- struct{}{} // it has ended
	<-w.host.turn
	see("s", "n with 1 pods")
	if err := w.walkers["A"].handle.ClientSet().CoreV1().Pods("default").Delete(t.Context(), there.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	heard := time.NewTicker(time.Millisecond)
	defer heard.Stop()
	for len(w.host.profile.Load().pods.placed()) > 0 { // until the plugins' informer has heard
		<-heard.C
	}
	see("u", "n with 1 pods") // as long as one stream goes on, it is one state
	w.begin(t.Context())
	see("v", "n with 0 pods")
}

// What comes behind binds holds up nothing else, however much of it there is.
func TestPostBindsHoldUpNobody(t *testing.T) {
	w := newWalk(t)
	goOn := make(chan struct{})
	const many = 200
	for i := range many {
		uid := fmt.Sprint("bound", i)
		w.say("a postbind "+uid, func() *fwk.Status { <-goOn; return nil })
		w.step(postBind, uid, "A")
	}
	w.reserved("p")
	w.expect(fmt.Sprint(w.last))
	close(goOn)
	for range many {
		<-w.answers
	}
}

// A plugin may cancel what is done before a bind, by the Handle: then the pod is not bound.
func TestAPluginCancelsWhatIsDoneBeforeABind(t *testing.T) {
	w := newWalk(t)
	w.say("b prebind p", func() *fwk.Status {
		w.walkers["B"].handle.GetPodInPreBind("p").CancelPod("it is preempted")
		return nil
	})
	w.step(reserve, "p")
	w.step(preBind, "p", "A", "B")
	w.expect("2", "3 error: it is preempted")
}

// The state of a pod's verdicts is for its own steps, and for them alone while the stream goes on on which they were asked for.
func TestNoOtherPodHasTheStateOfTheVerdicts(t *testing.T) {
	w := newWalk(t)
	ctx, end := context.WithCancel(t.Context())
	w.judgesOn(ctx, "p")
	w.hears("A Filter: p on , state of p", "B Filter: p on , state of p")
	w.step(reserve, "q", "A")
	w.expect("2")
	w.step(reserve, "p", "A")
	w.expect("3")
	w.hears("A Reserve: q on n, state of none", "B Reserve: q on n, state of none", "A Reserve: p on n, state of p", "B Reserve: p on n, state of p")
	end()
	w.host.turn <- struct{}{} // it has ended
	<-w.host.turn
	ctx, end = context.WithCancel(t.Context())
	w.judgesOn(ctx, "r")
	end()
	w.host.turn <- struct{}{}
	<-w.host.turn
	w.step(reserve, "r", "A")
	w.expect("4")
	w.hears("A Filter: r on , state of r", "B Filter: r on , state of r", "A Reserve: r on n, state of none", "B Reserve: r on n, state of none")
}

// Of a pod that another stream has reserved, plugins get what the API server has told, which stays as it is, or, if that has told nothing, what Berth has.
func TestStepsOfAPodThatAnotherStreamHasReserved(t *testing.T) {
	there := podNamed("there")
	there.Labels = map[string]string{"app": "web"}
	w := newWalk(t, there)
	w.step(postBind, "there", "A")
	w.expect("2")
	want := there.DeepCopy()
	want.Spec.NodeName = "n"
	if diff := cmp.Diff(want, w.got); diff != "" {
		t.Errorf("plugins get (-want +got):\n%s", diff)
	}
	if is := w.host.profile.Load().pods.get("there"); is.Spec.NodeName != "" {
		t.Errorf("what the API server has told is on node %q now", is.Spec.NodeName)
	}
	w.step(unreserve, "gone", "A")
	w.expect("3")
	want = podNamed("gone")
	want.Spec.NodeName = "n"
	if diff := cmp.Diff(want, w.got); diff != "" {
		t.Errorf("plugins get (-want +got):\n%s", diff)
	}
}

// Pods that wait hold up nothing else, however many there are.
func TestPodsThatWaitHoldUpNobody(t *testing.T) {
	w := newWalk(t)
	const many = 200
	for i := range many {
		uid := fmt.Sprint(i)
		w.say("a permit "+uid, always(fwk.Wait))
		w.step(reserve, uid)
		w.expect(fmt.Sprint(w.last))
		w.step(permit, uid, "A")
		w.expect(fmt.Sprint(w.last) + " waits 900000 ms")
	}
	if got := len(w.waiting()); got != many {
		t.Errorf("%d wait, want %d", got, many)
	}
}

// Reserve and Permit belong to a scheduling cycle, and what comes behind does not.
func TestStepsThatBelongToACycleAreTakenInOne(t *testing.T) {
	w := newWalk(t)
	cycle := w.host.profile.Load().cycle
	cycles := make(map[string]int) // that are under way, by point
	for _, at := range []string{"reserve p", "permit p", "prebind p", "postbind p", "unreserve q"} {
		w.say("a "+at, func() *fwk.Status {
			cycles[at] = len(cycle)
			return nil
		})
	}
	for _, step := range []pluginv1.Step{reserve, permit, preBind, postBind} {
		w.step(step, "p", "A", "B")
		w.expect(fmt.Sprint(w.last))
	}
	w.step(unreserve, "q", "A")
	w.expect(fmt.Sprint(w.last))
	if diff := cmp.Diff(map[string]int{"reserve p": 1, "permit p": 1, "prebind p": 0, "postbind p": 0, "unreserve q": 0}, cycles); diff != "" {
		t.Errorf("cycles under way (-want +got):\n%s", diff)
	}
}

// A placement that is over does not wait for the cycle that is under way.
func TestWhoWaitsForACycleEndsWithThePlacement(t *testing.T) {
	p := &profile{cycle: make(chan struct{}, 1)}
	if _, err := p.enterCycle(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancelCause(t.Context())
	why := errors.New("the placement is given back")
	end(why)
	if _, err := p.enterCycle(ctx); !errors.Is(err, why) {
		t.Errorf("it ends with %v, want %v", err, why)
	}
}

// What is behind a step of a placement that is given back meanwhile is not taken.
func TestNoFurtherStepIsTakenOfAPlacementThatIsOver(t *testing.T) {
	w := newWalk(t)
	began, goOn := make(chan struct{}), make(chan struct{})
	w.say("a reserve p", func() *fwk.Status {
		close(began)
		<-goOn
		return nil
	})
	w.step(reserve, "p", "A", "B")
	<-began
	w.step(preBind, "p", "A", "B")
	w.step(unreserve, "p", "B", "A")
	w.step(postBind, "q") // behind which the others have been heard of
	w.expect("5")
	close(goOn)
	w.expect("2", "3 error: running plugins at preBind: the placement is given back", "4")
	w.hears("A Reserve: p on n, state of none", "B Reserve: p on n, state of none", "B Unreserve: p on n, state of none", "A Unreserve: p on n, state of none")
}

// What is done before a bind ends with the placement, and then nobody may cancel it any more.
func TestWhatIsDoneBeforeABindEndsWithThePlacement(t *testing.T) {
	w := newWalk(t)
	began := make(chan struct{})
	w.binds = func(ctx context.Context) *fwk.Status {
		close(began)
		<-ctx.Done()
		return fwk.AsStatus(context.Cause(ctx))
	}
	w.step(reserve, "p")
	w.step(preBind, "p", "A", "B")
	<-began
	w.step(unreserve, "p", "B", "A")
	w.expect("2", `3 error: running PreBind plugin "called A": the placement is given back`, "4")
	if w.walkers["A"].handle.GetPodInPreBind("p") != nil {
		t.Error("it can be canceled still")
	}
}

// Plugins see which images nodes have, and how many have them, also if nobody judges.
func TestStepsSeeImages(t *testing.T) {
	w := newWalk(t, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: v1.NodeStatus{Images: []v1.ContainerImage{{Names: []string{"web"}, SizeBytes: 7}}}})
	var saw string
	w.say("a reserve p", func() *fwk.Status {
		n, err := w.walkers["A"].handle.SnapshotSharedLister().NodeInfos().Get("n")
		if err != nil {
			return fwk.AsStatus(err)
		}
		for name, is := range n.GetImageStates() {
			saw += fmt.Sprintf("%s of %d bytes on %d nodes", name, is.Size, is.NumNodes)
		}
		return nil
	})
	w.step(reserve, "p", "A")
	w.expect("2")
	if want := "web of 7 bytes on 1 nodes"; saw != want {
		t.Errorf("plugins see %q, want %q", saw, want)
	}
}

// What belongs to no cycle sees the cluster, also when the stream of questions has ended.
func TestAStepOutsideOfCyclesSeesTheCluster(t *testing.T) {
	w := newWalk(t, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	ctx, end := context.WithCancel(t.Context())
	w.judgesOn(ctx, "p")
	end()
	w.host.turn <- struct{}{} // it has ended
	<-w.host.turn
	nodes, groups := 0, false
	w.say("a postbind p", func() *fwk.Status {
		all, err := w.walkers["A"].handle.SnapshotSharedLister().NodeInfos().List()
		nodes, groups = len(all), w.walkers["A"].handle.PodGroupManager().PodGroupStates() != nil
		return fwk.AsStatus(err)
	})
	w.step(postBind, "p", "A")
	w.expect("2")
	if nodes != 1 || !groups {
		t.Errorf("plugins see %d nodes, and groups: %v", nodes, groups)
	}
}

// Until the plugins are made, nobody is told anything but that.
func TestNothingIsAnsweredUntilThePluginsAreMade(t *testing.T) {
	h := &host{turn: make(chan struct{}, 1)}
	_, err := h.Describe(t.Context(), nil)
	for at, err := range map[string]error{"Describe": err, "Judge": h.Judge(nil), "Place": h.Place(nil)} {
		if status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", at, err)
		}
	}
}

// Before a process ends, what its plugins have reserved is taken back.
func TestTheEndOfAProcessTakesBackWhatIsReserved(t *testing.T) {
	w, p, cfg := newWalkers(t)
	l := bufconn.Listen(1 << 20)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	served := make(chan error, 1)
	go func() { served <- p.serve(ctx, cfg, "default-scheduler", time.Hour, l) }()
	conn := dial(t, l)
	defer func() { _ = conn.Close() }()
	w.client = pluginv1.NewPluginServiceClient(conn)
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for { // until the plugins are made
		_, err := w.client.Describe(t.Context(), &pluginv1.DescribeRequest{})
		if err == nil {
			break
		}
		if status.Code(err) != codes.Unavailable {
			t.Fatal(err)
		}
		select {
		case <-look.C:
		case err := <-served:
			t.Fatalf("it has ended: %v", err)
		}
	}
	w.begin(t.Context())
	w.step(reserve, "p", "A", "B")
	w.expect("2")
	end()
	if err := <-served; err != nil {
		t.Error(err)
	}
	w.hears("A Reserve: p on n, state of none", "B Reserve: p on n, state of none", "B Unreserve: p on n, state of none", "A Unreserve: p on n, state of none")
}

// Plugins that end when nobody waits for them any more do not hang.
func TestPluginsThatEndDoNotHang(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := watch(ctx)
		cancel()
		synctest.Wait()
		done()
	})
}

// Nothing goes on of a world that nobody needs any more.
func TestNothingIsLeftOfAWorld(t *testing.T) {
	metrics.Register()
	bubble.Test(t, func(t *testing.T) {
		p := &profile{pods: new(podStore), nodes: corelisters.NewNodeLister(cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil))}
		w, err := newWorld(context.Background(), p, 0)
		if err != nil {
			t.Fatal(err)
		}
		w.show()
		w.close()
		if err := p.refresh(context.Background()); err != nil {
			t.Fatal(err)
		}
	})
}

// hangsIn says to the test below that it is the process that is to hang.
const hangsIn = "BERTHAPP_TEST_HANGS"

// A step that does not end though nobody waits for it any more ends the process.
func TestAStepThatHangsEndsTheProcess(t *testing.T) {
	if os.Getenv(hangsIn) == "" {
		program, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		c := exec.CommandContext(t.Context(), program, "-test.run=^"+t.Name()+"$", "-test.timeout=1m")
		c.Env = append(os.Environ(), hangsIn+"=yes")
		out, _ := c.CombinedOutput()
		if code := c.ProcessState.ExitCode(); code != hungCode || !strings.Contains(string(out), "plugins hang: nobody has waited") {
			t.Errorf("it ends with %d, want %d:\n%s", code, hungCode, out)
		}
		return
	}
	w := newWalk(t)
	began := make(chan struct{})
	w.say("a reserve p", func() *fwk.Status { close(began); select {} })
	w.step(reserve, "p", "A")
	<-began
	w.step(unreserve, "p")
	w.expect("2")
}

// A node that the plugins do not know of is refused by who is asked, and by nobody if nobody is.
func TestANodeThatPluginsDoNotKnowIsNotRefusedByThoseWhoWereNotAsked(t *testing.T) {
	w := newWalk(t)
	for _, filters := range [][]string{{"B"}, nil} {
		stream, err := w.client.Judge(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&pluginv1.JudgeRequest{
			Id: 1, Kinds: []*pluginv1.Kind{{Id: 1, SchedulerName: "default-scheduler", Object: w.object("p")}}, Nodes: []*pluginv1.Node{{Id: 1, Spec: &pluginv1.NodeSpec{Name: "n"}}},
			Questions: []*pluginv1.Question{{Kind: 1, Filters: filters, Nodes: []int32{1}}},
		}); err != nil {
			t.Fatal(err)
		}
		a, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		answer := a.GetAnswers()[0]
		switch {
		case filters == nil && (answer.GetError() != "" || len(answer.GetVerdicts()) > 0):
			t.Errorf("nobody is asked: %v", answer)
		case filters != nil && (len(answer.GetRefusals()) != 1 || answer.GetRefusals()[0].GetPlugin() != "B"):
			t.Errorf("B is asked: %v", answer)
		}
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		w.host.turn <- struct{}{} // it has ended
		<-w.host.turn
	}
}

// What is reserved is taken back in any case, also while a cycle is under way, and though there is something newer to be seen.
func TestNothingKeepsWhatIsReservedFromBeingTakenBack(t *testing.T) {
	w := newWalk(t)
	w.step(reserve, "p", "A")
	w.expect("2")
	profile := w.host.profile.Load()
	leave, err := profile.enterCycle(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	profile.outdated()
	w.step(unreserve, "p", "A")
	w.expect("3")
	leave()
	w.hears("A Reserve: p on n, state of none", "B Reserve: p on n, state of none", "B Unreserve: p on n, state of none", "A Unreserve: p on n, state of none")
}

// A pod's steps see what its verdicts saw, though a stream of steps has begun in between.
func TestStepsSeeWhatTheVerdictsSaw(t *testing.T) {
	t.Run("a stream begins behind the verdicts", func(t *testing.T) {
		w := newWalk(t)
		w.judges("p")
		w.begin(t.Context())
		stepsSeeOneNode(t, w)
	})
	t.Run("a stream begins amid them", func(t *testing.T) {
		w := newWalk(t)
		w.prefilters = func() { w.host.profile.Load().outdated() } // what its first request does
		w.judges("p")
		stepsSeeOneNode(t, w)
	})
}

func stepsSeeOneNode(t *testing.T, w *walk) {
	t.Helper()
	nodes := 0
	w.say("a reserve p", func() *fwk.Status {
		all, err := w.walkers["A"].handle.SnapshotSharedLister().NodeInfos().List()
		nodes = len(all)
		return fwk.AsStatus(err)
	})
	w.step(reserve, "p", "A")
	w.expect("2")
	if nodes != 1 { // of which the API server has told nothing
		t.Errorf("plugins see %d nodes", nodes)
	}
}
