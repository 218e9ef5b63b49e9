package pluginhost

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/test/bubble"
)

// stepper answers steps as a test says: with any number of responses, the ids of which it may leave out.
type stepper struct {
	pluginv1.UnimplementedPluginServiceServer
	name    string // of its plugin; "": P
	objects bool
	depends *pluginv1.Dependencies // nil: on objects, if objects says so
	tells   bool                   // which pods are worth trying
	orders  bool                   // it answers questions behind what it reserves
	others  []string               // plugins that it has besides, which pre-enqueue
	ends    error                  // if not nil, what a stream ends with when something is asked
	answer  func(r *pluginv1.PlaceRequest) []*pluginv1.PlaceResponse

	mu   sync.Mutex
	told []*pluginv1.PlaceRequest
}

func (s *stepper) Describe(context.Context, *pluginv1.DescribeRequest) (*pluginv1.DescribeResponse, error) {
	depends := s.depends
	if depends == nil {
		depends = &pluginv1.Dependencies{Objects: s.objects}
	}
	out := &pluginv1.DescribeResponse{Activates: s.tells, Orders: s.orders, Plugins: []*pluginv1.PluginDescription{{
		Name: cmp.Or(s.name, "P"), Reserves: true, Permits: true, PreBinds: true, PostBinds: true, Binds: true, PreEnqueues: true, QueueSorts: cmp.Or(s.name, "P") != "Other", Depends: depends,
	}}}
	for _, name := range s.others {
		out.Plugins = append(out.Plugins, &pluginv1.PluginDescription{Name: name, PreEnqueues: true})
	}
	return out, nil
}

func (s *stepper) Place(stream pluginv1.PluginService_PlaceServer) error {
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.told = append(s.told, r)
		s.mu.Unlock()
		if r.GetStep() == pluginv1.Step_STEP_UNSPECIFIED {
			continue
		}
		if s.ends != nil {
			return s.ends
		}
		responses := []*pluginv1.PlaceResponse{{}}
		if s.answer != nil {
			responses = s.answer(r)
		}
		for _, response := range responses {
			switch response.GetId() {
			case 0:
				response.Id = r.GetId()
			case -1: // that of no request
				response.Id = 0
			}
			if err := stream.Send(response); err != nil {
				return err
			}
		}
	}
}

func (s *stepper) requests() []*pluginv1.PlaceRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*pluginv1.PlaceRequest(nil), s.told...)
}

func (s *stepper) serve(t *testing.T) grpc.ClientConnInterface {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	pluginv1.RegisterPluginServiceServer(server, s)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return dial(t, l)
}

// hosting returns a host of a service that answers steps.
func hosting(t *testing.T, s *stepper, timeout time.Duration) *Host {
	t.Helper()
	return hostingAt(t, s.serve(t), s, timeout)
}

func hostingAt(t *testing.T, at grpc.ClientConnInterface, s *stepper, timeout time.Duration) *Host {
	t.Helper()
	all := []string{"P"}
	h, err := New(Config{
		Services: []Service{{Name: "s", Plugins: []Plugin{{Name: "P"}}, Conn: at, Timeout: timeout, PreBindTimeout: time.Hour, Objects: s.objects, Annotations: []string{"example.com"}}},
		Profiles: []cluster.Profile{engine.DefaultProfile("default-scheduler")}, Steps: map[string]Steps{"default-scheduler": {Reserve: all, Permit: all, PreBind: all, PostBind: all, Bind: all, BindsRest: true}},
		Objects: noNodes{}, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.EndPlacing(math.MaxInt64) })
	return h
}

type noNodes struct{}

func (noNodes) Node(string) *corev1.Node { return nil }
func (noNodes) NodeChanges() uint64      { return 0 }

func placementOf(name string) Placement {
	return Placement{UID: "uid of " + name, Namespace: "n", Name: name, SchedulerName: "default-scheduler", Node: "a"}
}

func noPod(context.Context) (*corev1.Pod, error) { return nil, errors.New("nobody is sent the pod") }

// decided waits until it is known what becomes of a placement.
func decided(t *testing.T, w *Wait, wake <-chan struct{}) error {
	t.Helper()
	for {
		if is, err := w.Decided(time.Now()); is {
			return err
		}
		<-wake
	}
}

// left returns how many calls and placements a stream keeps.
func left(h *Host) (calls, placed int) {
	is := h.services[0].placing.now()
	if is == nil {
		return -1, -1
	}
	is.mu.Lock()
	defer is.mu.Unlock()
	return len(is.calls), len(is.placed)
}

func TestNothingIsKeptOfPlacementsThatAreOver(t *testing.T) {
	s := &stepper{objects: true}
	h := hosting(t, s, time.Minute)
	pod := func(context.Context) (*corev1.Pod, error) {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: types.UID("u")}}, nil
	}
	wake := make(chan struct{}, 100)
	for _, bound := range []bool{true, false} {
		p := placementOf("p")
		if _, err := h.Reserve(t.Context(), 1, p, pod); err != nil {
			t.Fatal(err)
		}
		if w, err := h.Permit(t.Context(), 1, p, nil); w != nil || err != nil {
			t.Fatalf("permit: %v, %v", w, err)
		}
		w, at, err := h.PreBind(t.Context(), 1, p, noPod, 0, func() { wake <- struct{}{} }) // it has been told of it
		if err != nil {
			t.Fatal(err)
		}
		if err := decided(t, w, wake); err != nil {
			t.Error(err)
		}
		if w, _, err := h.PreBind(t.Context(), 1, p, noPod, at, nil); w != nil || err != nil {
			t.Errorf("a service behind the last: %v, %v", w, err)
		}
		if bound {
			over := make(chan struct{})
			h.Bound(t.Context(), 1, p, func() { close(over) })
			<-over
		} else {
			h.Unreserve(t.Context(), p)
			h.Unreserve(t.Context(), p) // which nobody hears of
		}
		if calls, placed := left(h); calls != 0 || placed != 0 {
			t.Errorf("%d calls and %d placements are left", calls, placed)
		}
	}
	var steps []string
	for _, r := range s.requests()[1:] {
		steps = append(steps, r.GetStep().String())
		if has := len(r.GetPlacement().GetObject()) > 0; has != (r.GetStep() == pluginv1.Step_STEP_RESERVE) {
			t.Errorf("%v is told with an object: %v", r.GetStep(), has)
		}
	}
	want := "STEP_RESERVE STEP_PERMIT STEP_PRE_BIND STEP_POST_BIND STEP_RESERVE STEP_PERMIT STEP_PRE_BIND STEP_UNRESERVE"
	if got := strings.Join(steps, " "); got != want {
		t.Errorf("steps: %s, want %s", got, want)
	}
}

// A service that says what makes no sense is not believed anything any more; one that says no is.
func TestAnswersToStepsThatMakeNoSenseEndTheStream(t *testing.T) {
	for name, tt := range map[string]struct {
		answers []*pluginv1.PlaceResponse // to the permit
		want    string
		ends    bool
	}{
		"it rejects":                     {[]*pluginv1.PlaceResponse{{Rejection: &pluginv1.Rejection{Plugin: "P", Reason: "no"}}}, "no", false},
		"it waits for ever, and rejects": {[]*pluginv1.PlaceResponse{{WaitsMilliseconds: math.MaxInt64}, {Rejection: &pluginv1.Rejection{Plugin: "P", Reason: "no"}}}, "no", false},
		"it fails":                       {[]*pluginv1.PlaceResponse{{Error: "oh"}}, `plugin service "s": oh`, false},
		"it waits, and rejects":          {[]*pluginv1.PlaceResponse{{WaitsMilliseconds: 60_000}, {Rejection: &pluginv1.Rejection{Plugin: "P", Reason: "no"}}}, "no", false},
		"another plugin rejects":         {[]*pluginv1.PlaceResponse{{Rejection: &pluginv1.Rejection{Plugin: "Q", Reason: "no"}}}, `rejection.plugin: "Q" was not asked`, true},
		"it rejects without a reason":    {[]*pluginv1.PlaceResponse{{Rejection: &pluginv1.Rejection{Plugin: "P"}}}, "rejection.reason: P gives none", true},
		"it waits for less than nothing": {[]*pluginv1.PlaceResponse{{WaitsMilliseconds: -1}}, "waits_milliseconds: -1 is negative", true},
		"it waits, and fails at once":    {[]*pluginv1.PlaceResponse{{WaitsMilliseconds: 60_000, Error: "oh"}}, "it has said more of that permit", true},
		"it waits twice":                 {[]*pluginv1.PlaceResponse{{WaitsMilliseconds: 60_000}, {WaitsMilliseconds: 60_000}}, "it has said more of that permit", true},
		"it answers what nobody asked":   {[]*pluginv1.PlaceResponse{{Id: 77}}, "a response with id 77, to which there is no request", true},
		"it answers twice":               {[]*pluginv1.PlaceResponse{{WaitsMilliseconds: 60_000}, {Id: 2}}, "a response with id 2, to which there is no request", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &stepper{answer: func(r *pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
				if r.GetStep() == pluginv1.Step_STEP_PERMIT {
					return tt.answers
				}
				return []*pluginv1.PlaceResponse{{}}
			}}
			h := hosting(t, s, time.Minute)
			p := placementOf("p")
			if _, err := h.Reserve(t.Context(), 1, p, noPod); err != nil {
				t.Fatal(err)
			}
			wake := make(chan struct{}, 100)
			w, err := h.Permit(t.Context(), 1, p, func() { wake <- struct{}{} })
			if w != nil {
				err = decided(t, w, wake)
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || errors.As(err, new(Rejection)) != strings.HasPrefix(tt.want, "no") {
				t.Errorf("permit: %v, want %s", err, tt.want)
			}
			if calls, _ := left(h); (calls < 0) != tt.ends || calls > 0 {
				t.Errorf("%d calls are left; -1: the stream has ended", calls)
			}
		})
	}
}

// What is under way for a placement is answered before it is unreserved; a pre-bind that goes on would do so for a pod that may be placed again.
func TestAStepThatOutlivesItsPlacementEndsTheStream(t *testing.T) {
	s := &stepper{answer: func(r *pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
		if r.GetStep() == pluginv1.Step_STEP_PRE_BIND {
			return nil
		}
		return []*pluginv1.PlaceResponse{{}}
	}}
	h := hosting(t, s, time.Minute)
	p := placementOf("p")
	wake := make(chan struct{}, 100)
	w, _, err := h.PreBind(t.Context(), 1, p, noPod, 0, func() { wake <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	h.Unreserve(t.Context(), p)
	if err := decided(t, w, wake); err == nil || !strings.Contains(err.Error(), "a step of n/p is under way still") {
		t.Errorf("pre-bind: %v", err)
	}
	if calls, _ := left(h); calls != -1 {
		t.Error("the stream has not ended")
	}
}

func TestAServiceThatDoesNotAnswerAStepInTimeIsBegunAnew(t *testing.T) {
	var inTime atomic.Bool
	s := &stepper{answer: func(*pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
		if inTime.Load() {
			return []*pluginv1.PlaceResponse{{}}
		}
		return nil
	}}
	h := hosting(t, s, time.Minute)
	clock := time.Minute
	h.services[0].clock = func() time.Duration { return clock }
	if err := h.BeginPlacing(t.Context(), 1, "default-scheduler"); err != nil { // which takes as long as it takes
		t.Fatal(err)
	}
	h.services[0].Timeout = 50 * time.Millisecond
	if _, err := h.Reserve(t.Context(), 1, placementOf("p"), noPod); !errors.Is(err, errLate) {
		t.Fatalf("reserve: %v", err)
	}
	if is := h.services[0].placing.now(); is != nil { // it ends behind the answer
		is.running.Wait()
	}
	if _, err := h.Reserve(t.Context(), 1, placementOf("q"), noPod); !errors.Is(err, errLate) {
		t.Fatalf("at once: %v, want what was wrong", err)
	}
	if got := len(s.requests()); got != 2 {
		t.Errorf("the service has heard %d requests, want 2", got)
	}
	inTime.Store(true)
	h.services[0].Timeout = time.Minute
	clock += failedFor
	if _, err := h.Reserve(t.Context(), 1, placementOf("q"), noPod); err != nil {
		t.Errorf("a second later: %v", err)
	}
}

// A service that has lost all it knew is told what stands before it is asked for anything else.
func TestAServiceThatIsBegunAnewIsToldWhatStands(t *testing.T) {
	s := &stepper{answer: func(r *pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
		if r.GetPlacement().GetName() == "refused" {
			return []*pluginv1.PlaceResponse{{Rejection: &pluginv1.Rejection{Plugin: "P", Reason: "no"}}}
		}
		return []*pluginv1.PlaceResponse{{}}
	}}
	h := hosting(t, s, time.Minute)
	h.Stands(t.Context(), 2, func() (out []Standing) {
		for _, name := range []string{"p", "refused"} {
			out = append(out, Standing{placementOf(name), noPod})
		}
		other := placementOf("of another profile")
		other.SchedulerName = "other"
		return append(out, Standing{other, noPod})
	})
	if err := h.BeginPlacing(t.Context(), 1, "default-scheduler"); err != nil {
		t.Fatal(err)
	}
	if n := len(s.requests()); n > 1 {
		t.Errorf("of what stands in another epoch %d are told", n-1)
	}
	if err := h.BeginPlacing(t.Context(), 2, "default-scheduler"); err != nil {
		t.Fatal(err)
	}
	if calls, placed := left(h); calls != 0 || placed != 1 {
		t.Errorf("%d calls and %d placements, want 1", calls, placed)
	}
	h.Unreserve(t.Context(), placementOf("refused")) // of which it knows nothing
	h.Unreserve(t.Context(), placementOf("p"))
	var steps []string
	for _, r := range s.requests() {
		if r.GetStep() != pluginv1.Step_STEP_UNSPECIFIED {
			steps = append(steps, strings.TrimPrefix(r.GetStep().String(), "STEP_")+" "+r.GetPlacement().GetName())
		}
	}
	if got, want := strings.Join(steps, ", "), "RESERVE p, RESERVE refused, UNRESERVE refused, UNRESERVE p"; got != want {
		t.Errorf("steps: %s, want %s", got, want)
	}
	// An earlier term, that has not heard yet that it is over, does not end what the next one has begun.
	if err := h.BeginPlacing(t.Context(), 1, "default-scheduler"); err == nil {
		t.Error("an earlier epoch begins anew")
	}
	h.EndPlacing(1)
	if _, placed := left(h); placed != 0 {
		t.Error("the stream has been ended by an earlier epoch")
	}
	h.EndPlacing(2)
	if _, placed := left(h); placed != -1 {
		t.Error("the stream has not been ended")
	}
}

// A service that follows, and takes part in cycles, is told of the cluster before each step of one, and of each placement that it has anything to do with, before that is recorded; others are told of
// placements that they reserve or permit.
func TestAServiceThatFollowsIsToldOfEachPlacement(t *testing.T) {
	some := []string{"P"}
	for name, tt := range map[string]struct {
		steps           Steps
		judges          bool
		follows, leaves bool // whether a placement is told to one that follows, and to one that does not
	}{
		"nothing":              {Steps{}, false, false, false},
		"filter":               {Steps{}, true, false, false},
		"reserve":              {Steps{Reserve: some}, false, true, true},
		"permit":               {Steps{Permit: some}, false, true, true},
		"pre-bind":             {Steps{PreBind: some}, false, false, false},
		"post-bind":            {Steps{PostBind: some}, false, false, false},
		"filter and pre-bind":  {Steps{PreBind: some}, true, true, false},
		"filter and post-bind": {Steps{PostBind: some}, true, true, false},
	} {
		for _, follows := range []bool{true, false} {
			p := engine.DefaultProfile("default-scheduler")
			if tt.judges {
				p.Filters = append(slices.Clone(p.Filters), "P")
			}
			h, err := New(Config{
				Services: []Service{{Name: "s", Plugins: []Plugin{{Name: "P"}}, Timeout: time.Minute, Follows: follows}},
				Profiles: []cluster.Profile{p}, Steps: map[string]Steps{"default-scheduler": tt.steps},
				Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
			})
			if err != nil {
				t.Fatal(err)
			}
			want := map[bool]bool{true: tt.follows, false: tt.leaves}[follows]
			if got := h.Reserves("default-scheduler"); got != want {
				t.Errorf("%s, follows %v: it is told of placements: %v, want %v", name, follows, got, want)
			}
			if got := h.Asked("default-scheduler") != 0; got != (want || tt.judges) {
				t.Errorf("%s, follows %v: it has a turn: %v", name, follows, got)
			}
			uses := h.uses["default-scheduler"]
			if got := len(uses) > 0 && uses[0].judges(); got != (tt.judges || follows && want) {
				t.Errorf("%s, follows %v: it is told of the cluster: %v", name, follows, got)
			}
			if got := len(h.inOrder("default-scheduler", reserve)) > 0; got != want {
				t.Errorf("%s, follows %v: it reserves: %v, want %v", name, follows, got, want)
			}
		}
	}
}

// A service may take each step of what stands after the other: it has its time for each, however many there are.
func TestAServiceThatTellsHowItGoesOnHasTimeForAllThatStands(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const many = 1000
		each := 5 * standingEach
		s := &stepper{answer: func(*pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
			time.Sleep(each)
			return []*pluginv1.PlaceResponse{{}}
		}}
		h := hosting(t, s, 10*each)
		h.Stands(t.Context(), 1, func() (out []Standing) {
			for i := range many {
				out = append(out, Standing{placementOf(fmt.Sprint(i)), noPod})
			}
			return out
		})
		began := time.Now()
		if err := h.BeginPlacing(t.Context(), 1, "default-scheduler"); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < many*each {
			t.Errorf("it took %v", took)
		}
		if _, placed := left(h); placed != many {
			t.Errorf("%d placements, want %d", placed, many)
		}
	})
}

// A service that follows may take part only in what comes behind verdicts: it is asked all the same, and anew each time, as what its plugin depends on has it.
func TestAServiceThatFollowsAndOnlyReservesIsAskedAnew(t *testing.T) {
	s := &scripted{plugins: []*pluginv1.PluginDescription{{Name: "P", Reserves: true, Depends: &pluginv1.Dependencies{Cluster: true}}}}
	h, err := New(Config{
		Services: []Service{{Name: "s", Plugins: []Plugin{{Name: "P"}}, Conn: s.serve(t), Timeout: time.Minute, Follows: true}},
		Profiles: []cluster.Profile{profile("default-scheduler")}, Steps: map[string]Steps{"default-scheduler": {Reserve: []string{"P"}}},
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer h.End(0)
	st, subjects := world(t, 2)
	for _, time := range []string{"first", "second"} {
		before := len(s.asked)
		k, err := judge(t, h, st, subjects[0])
		if err != nil {
			t.Fatal(err)
		}
		// It says nothing about nodes: a pod need not be judged anew if its node has changed.
		if err := st.Apply(cluster.NodeSet{Index: 1, Node: cluster.Node{Name: "n1", Allocatable: []cluster.Quantity{{Name: "cpu", Value: 2000}, {Name: "pods", Value: 10}}}}); err != nil {
			t.Fatal(err)
		}
		if !k.Holds(st, 1) {
			t.Errorf("the %s time, what it has said does not hold", time)
		}
		var nodes int
		for _, r := range s.asked[before:] {
			for _, q := range r.GetQuestions() {
				nodes += len(q.GetNodes())
			}
		}
		if nodes != 2 {
			t.Errorf("the %s time, it is asked about %d nodes, want 2", time, nodes)
		}
	}
}

// A service may take its time before it answers the first of what stands: the more stands, the more. Who takes even longer, or is not needed any more, is not waited for.
func TestAServiceThatAnswersBehindAllThatStandsHasTimeForThat(t *testing.T) {
	const many, given = 1000, 2 * time.Second
	for name, tt := range map[string]struct {
		answers, ends bool // whether the service answers at all, and whether the epoch ends first
		took          time.Duration
		want          error
	}{
		"in time":        {true, false, many * standingEach, nil},
		"never":          {false, false, given + many*standingEach, errLate},
		"the epoch ends": {false, true, 0, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				ctx, end := context.WithCancel(t.Context())
				defer end()
				var first sync.Once
				s := &stepper{answer: func(*pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
					if tt.ends {
						end()
					}
					if !tt.answers {
						return nil
					}
					first.Do(func() { time.Sleep(tt.took) })
					return []*pluginv1.PlaceResponse{{}}
				}}
				h := hosting(t, s, given)
				h.Stands(ctx, 1, func() (out []Standing) {
					for i := range many {
						out = append(out, Standing{placementOf(fmt.Sprint(i)), noPod})
					}
					return out
				})
				began := time.Now()
				err := h.BeginPlacing(t.Context(), 1, "default-scheduler")
				if took := time.Since(began); !errors.Is(err, tt.want) || took != tt.took {
					t.Errorf("behind %v: %v, want %v behind %v", took, err, tt.want, tt.took)
				}
			})
		})
	}
}

// Each service is told of what stands that it has a say in, and of nothing else.
func TestAServiceIsNotToldWhatStandsOfAnother(t *testing.T) {
	s, other := &stepper{}, &stepper{name: "Q"}
	services := []Service{{Name: "s", Plugins: []Plugin{{Name: "P"}}, Conn: s.serve(t), Timeout: time.Minute}, {Name: "other", Plugins: []Plugin{{Name: "Q"}}, Conn: other.serve(t), Timeout: time.Minute}}
	h, err := New(Config{
		Services: services, Profiles: []cluster.Profile{engine.DefaultProfile("default-scheduler"), engine.DefaultProfile("other")},
		Steps: map[string]Steps{"default-scheduler": {Reserve: []string{"P"}}, "other": {Reserve: []string{"Q"}}}, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.EndPlacing(math.MaxInt64) })
	h.Stands(t.Context(), 1, func() []Standing {
		of := placementOf("of other")
		of.SchedulerName = "other"
		return []Standing{{placementOf("p"), noPod}, {of, noPod}}
	})
	if err := h.BeginPlacing(t.Context(), 1, "default-scheduler"); err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, r := range s.requests()[1:] {
		told = append(told, r.GetPlacement().GetName())
	}
	if want := []string{"p"}; !slices.Equal(told, want) {
		t.Errorf("it is told of %q, want %q", told, want)
	}
}

// What goes wrong at a step names the service, unless it names a plugin; one that is ignorable is passed over only if it says nothing that makes sense.
func TestWhatComesOfAServiceThatFails(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	late := fmt.Errorf("%w of 5s", errLate)
	config := fmt.Errorf("%w: there is no P", errConfig)
	rejection := Rejection{"P", "no"}
	for name, tt := range map[string]struct {
		of   Service
		ctx  context.Context
		err  error
		want string // "": nothing comes of it
	}{
		"nothing":                            {Service{}, t.Context(), nil, ""},
		"it is late":                         {Service{}, t.Context(), late, `plugin service "s": ` + late.Error()},
		"it is late, and ignorable":          {Service{Ignorable: true}, t.Context(), late, ""},
		"nobody waits any more":              {Service{Ignorable: true}, ended, late, late.Error()},
		"another configuration":              {Service{Ignorable: true}, t.Context(), config, `plugin service "s": ` + config.Error()},
		"a plugin rejects":                   {Service{Ignorable: true}, t.Context(), rejection, "no"},
		"it says that a plugin fails":        {Service{Ignorable: true}, t.Context(), errStep("plugin P: ill"), "plugin P: ill"},
		"it says that it fails":              {Service{Ignorable: true}, t.Context(), errStep("ill"), `plugin service "s": ill`},
		"it follows, and says that it fails": {Service{Ignorable: true, Follows: true}, t.Context(), errStep("ill"), "ill"},
		"it follows, and is late":            {Service{Follows: true}, t.Context(), late, `plugin service "s": ` + late.Error()},
	} {
		s := &service{Service: tt.of, log: slog.New(slog.NewTextHandler(t.Output(), nil))}
		s.Name = "s"
		got := ""
		if err := s.excused(tt.ctx, tt.err, []string{"P"}); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// Who says nothing in time of what is waited for is not waited for any longer.
func TestNoPlacementWaitsForLongerThanThereIsTime(t *testing.T) {
	s := &stepper{answer: func(r *pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
		switch r.GetStep() {
		case pluginv1.Step_STEP_PERMIT:
			return []*pluginv1.PlaceResponse{{WaitsMilliseconds: 60_000}}
		case pluginv1.Step_STEP_PRE_BIND:
			return nil
		}
		return []*pluginv1.PlaceResponse{{}}
	}}
	h := hosting(t, s, time.Minute)
	p := placementOf("p")
	if _, err := h.Reserve(t.Context(), 1, p, noPod); err != nil {
		t.Fatal(err)
	}
	permits, err := h.Permit(t.Context(), 1, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	binds, _, err := h.PreBind(t.Context(), 1, p, noPod, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for want, w := range map[string]*Wait{
		"rejected due to timeout after waiting 1m0s at plugin P": permits, `plugin service "s": no answer within its preBindTimeout of 1h0m0s`: binds,
	} {
		if is, err := w.Decided(now); is || err != nil {
			t.Errorf("at once: %v, %v", is, err)
		}
		if is, err := w.Decided(now.Add(2 * time.Hour)); !is || err == nil || err.Error() != want {
			t.Errorf("two hours later: %v, %v, want %s", is, err, want)
		}
	}
}

// Of what stands, a pod that is gone by the time it is read is not told, and keeps nobody from being told of the others.
func TestAPodThatIsGoneIsNotAmongWhatStands(t *testing.T) {
	s := &stepper{objects: true}
	h := hosting(t, s, time.Minute)
	h.Stands(t.Context(), 1, func() []Standing {
		return []Standing{
			{placementOf("gone"), func(context.Context) (*corev1.Pod, error) { return nil, ErrPodGone }},
			{placementOf("p"), func(context.Context) (*corev1.Pod, error) { return new(corev1.Pod), nil }},
		}
	})
	if err := h.BeginPlacing(t.Context(), 1, "default-scheduler"); err != nil {
		t.Fatal(err)
	}
	h.Unreserve(t.Context(), placementOf("gone"))
	var told []string
	for _, r := range s.requests()[1:] {
		told = append(told, r.GetPlacement().GetName())
	}
	if !slices.Equal(told, []string{"p"}) {
		t.Errorf("it is told of %v", told)
	}
}

// What a service wants tried is kept once, up to a bound, until it is taken; too much in one response ends the stream.
func TestWhatAServiceWantsTriedIsKept(t *testing.T) {
	many := make([]string, 1000)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	var says [][]string
	s := &stepper{answer: func(*pluginv1.PlaceRequest) (out []*pluginv1.PlaceResponse) {
		for _, uids := range says {
			out = append(out, &pluginv1.PlaceResponse{Id: -1, Activates: uids})
		}
		return append(out, &pluginv1.PlaceResponse{})
	}}
	h := hosting(t, s, time.Minute)
	reserve := func(pod string) error {
		_, err := h.Reserve(t.Context(), 1, placementOf(pod), noPod)
		return err
	}
	says = [][]string{{"a", "b"}, {"b"}}
	h.services[0].activated.add([]string{"b", "later", "", strings.Repeat("u", 254)}, false)
	if err := reserve("p"); err != nil {
		t.Fatal(err)
	}
	<-h.Activations()
	taken := h.TakeActivated(1)
	<-h.Activations() // there are more
	taken = append(taken, h.TakeActivated(5)...)
	slices.SortFunc(taken, func(a, b Activated) int { return cmp.Compare(a.UID, b.UID) })
	if !slices.Equal(taken, []Activated{{UID: "a", Now: true}, {UID: "b", Now: true}, {UID: "later"}}) || len(h.TakeActivated(5)) != 0 {
		t.Errorf("taken: %v", taken)
	}
	if !h.Concerns(taken[0], "default-scheduler") || h.Concerns(taken[0], "other") {
		t.Error("it concerns other profiles than those that use the service")
	}
	says = nil
	for k := range 11 {
		more := make([]string, len(many))
		for i := range more {
			more[i] = fmt.Sprintf("%d of %d", i, k)
		}
		says = append(says, more)
	}
	if err := reserve("q"); err != nil {
		t.Fatal(err)
	}
	if all := h.TakeActivated(1 << 20); len(all) != mostActivated+1 || !all[0].All { // of the others nobody knows, but that there are some
		t.Errorf("%d are kept, want %d, and that there are others: %v", len(all), mostActivated, all[0])
	}
	says = [][]string{append(many, "one more")}
	if err := reserve("r"); err == nil || !strings.Contains(err.Error(), "activates, wakes: 1001 pods, want at most 1000") {
		t.Errorf("too many: %v", err)
	}
}

// A service that says which pods are worth trying is heard again when its stream has ended, and all are that wait for anything: it may have said something meanwhile. Other services are not.
func TestAServiceThatActivatesIsHeardAgain(t *testing.T) {
	for _, tells := range []bool{true, false} {
		bubble.Test(t, func(t *testing.T) {
			var breaks atomic.Bool
			s := &stepper{tells: tells}
			s.answer = func(*pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
				if breaks.Load() {
					return []*pluginv1.PlaceResponse{{Id: 1 << 40}} // which makes no sense
				}
				return []*pluginv1.PlaceResponse{{}}
			}
			h := hosting(t, s, time.Minute)
			ctx, cancel := context.WithCancel(t.Context())
			heard := make(chan struct{})
			go func() { h.Hear(ctx, 1); close(heard) }()
			time.Sleep(time.Hour)
			if len(s.requests()) > 0 {
				t.Errorf("tells %v: it has been begun by nobody", tells)
			}
			if _, err := h.Reserve(t.Context(), 1, placementOf("p"), noPod); err != nil {
				t.Fatal(err)
			}
			breaks.Store(true)
			if _, err := h.Reserve(t.Context(), 1, placementOf("q"), noPod); err == nil {
				t.Fatal("it makes sense")
			}
			if got := h.TakeActivated(5); len(got) > 0 {
				t.Errorf("tells %v: %v are to be tried", tells, got)
			}
			time.Sleep(time.Minute)
			if (h.services[0].placing.now() != nil) != tells {
				t.Errorf("tells %v: it is heard, or is not", tells)
			}
			want := []Activated{{All: true}}
			if !tells {
				want = nil
			}
			if got := h.TakeActivated(5); !slices.Equal(got, want) {
				t.Errorf("tells %v: %v are to be tried", tells, got)
			}
			cancel()
			<-heard
		})
	}
}

// flapping is a service whose stream ends as soon as it has begun.
type flapping struct {
	stepper
	begun atomic.Int64
}

func (f *flapping) Place(stream pluginv1.PluginService_PlaceServer) error {
	f.begun.Add(1)
	_, err := stream.Recv()
	return err
}

// A service whose stream does not last is begun anew less and less often, and not all are tried each time.
func TestAServiceWhoseStreamDoesNotLastIsHeardLessAndLess(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := &flapping{stepper: stepper{tells: true}}
		l := bufconn.Listen(1 << 20)
		server := grpc.NewServer()
		pluginv1.RegisterPluginServiceServer(server, f)
		go func() { _ = server.Serve(l) }()
		t.Cleanup(server.Stop)
		h := hostingAt(t, dial(t, l), &f.stepper, time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		heard := make(chan struct{})
		go func() { h.Hear(ctx, 1); close(heard) }()
		_ = h.BeginPlacing(t.Context(), 1, "default-scheduler")
		all := 0
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			all += len(h.TakeActivated(5))
		}
		if n := f.begun.Load(); n < 4 || n > 10 {
			t.Errorf("it was begun %d times in a minute", n)
		}
		if all < 1 || all > 6 {
			t.Errorf("all were to be tried %d times in a minute", all)
		}
		cancel()
		<-heard
	})
}

// A service may end a stream on which it has served, or was asked nothing, and is begun anew at once; soon behind another one, that is a failure.
func TestAServiceMayEndAStreamNowAndThen(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ends := make(chan struct{})
		f := &ending{stepper: stepper{tells: true}, ends: ends}
		l := bufconn.Listen(1 << 20)
		server := grpc.NewServer()
		pluginv1.RegisterPluginServiceServer(server, f)
		go func() { _ = server.Serve(l) }()
		t.Cleanup(server.Stop)
		h := hostingAt(t, dial(t, l), &f.stepper, time.Minute)
		begins := func() error { return h.BeginPlacing(t.Context(), 1, "default-scheduler") }
		for k, wait := range []time.Duration{time.Hour, time.Hour, 0} {
			if err := begins(); err != nil {
				t.Fatalf("stream %d: %v", k, err)
			}
			time.Sleep(wait)
			ends <- struct{}{}
			synctest.Wait()
		}
		if err := begins(); err == nil || !strings.Contains(err.Error(), "the stream has ended") {
			t.Errorf("a stream that ends soon behind another one: %v", err)
		}
		time.Sleep(failedFor)
		if err := begins(); err != nil {
			t.Errorf("later: %v", err)
		}
	})
}

// ending is a service that ends its streams when it is told to.
type ending struct {
	stepper
	ends chan struct{}
}

func (e *ending) Place(stream pluginv1.PluginService_PlaceServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	select {
	case <-e.ends:
		return nil
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
}
