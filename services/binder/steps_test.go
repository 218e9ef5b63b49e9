package binder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/pluginhost"
	"github.com/berth-scheduler/berth/internal/source"
)

// gate is a plugin service with one plugin, Gate, that takes all steps. What it answers is up to the test.
type gate struct {
	pluginv1.UnimplementedPluginServiceServer
	conn  *grpc.ClientConn
	stop  func() // cuts all streams, and lets nobody begin another one
	tells bool   // which pods are worth trying: it is heard whenever its stream has ended

	mu     sync.Mutex
	heard  []string // "reserve p on a"
	answer func(step, pod string) *pluginv1.PlaceResponse
	tries  []string                                 // pods that are to be activated, told with the next answer
	open   map[string]func(*pluginv1.PlaceResponse) // what a step is answered with later, by "permit p"
	waits  map[string]*pluginv1.Queued              // how pods wait that it was to sort, by their names
	told   map[string]*pluginv1.Placement           // what it was told last with a step, by "permit p"
	cut    chan struct{}                            // closed: the streams end
	count  int                                      // of streams
}

// later is what a step is answered with that is not answered yet.
var later = &pluginv1.PlaceResponse{Id: -1}

func newGate(t testing.TB) *gate {
	g := &gate{open: make(map[string]func(*pluginv1.PlaceResponse)), waits: make(map[string]*pluginv1.Queued), told: make(map[string]*pluginv1.Placement), cut: make(chan struct{})}
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	pluginv1.RegisterPluginServiceServer(server, g)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	g.stop = sync.OnceFunc(func() { server.Stop(); <-served })
	t.Cleanup(g.stop)
	conn, err := grpc.NewClient("passthrough:///gate", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	g.conn = conn
	return g
}

func (g *gate) Describe(context.Context, *pluginv1.DescribeRequest) (*pluginv1.DescribeResponse, error) {
	return &pluginv1.DescribeResponse{Activates: g.tells, Plugins: []*pluginv1.PluginDescription{{Name: "Gate", Reserves: true, Permits: true, PreBinds: true, PostBinds: true, Binds: true, PreEnqueues: true, QueueSorts: true}}}, nil
}

func (g *gate) Place(stream pluginv1.PluginService_PlaceServer) error {
	g.mu.Lock()
	cut := g.cut
	g.count++
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.count--
	}()
	requests, failed := make(chan *pluginv1.PlaceRequest), make(chan error, 1)
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				failed <- err
				return
			}
			select {
			case requests <- r:
			case <-stream.Context().Done():
				failed <- stream.Context().Err()
				return
			}
		}
	}()
	var sending sync.Mutex
	for {
		select {
		case <-cut:
			return nil
		case err := <-failed:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case r := <-requests:
			if r.GetStep() == pluginv1.Step_STEP_UNSPECIFIED {
				continue
			}
			send := func(response *pluginv1.PlaceResponse) {
				sending.Lock()
				defer sending.Unlock()
				response.Id = r.GetId()
				_ = stream.Send(response)
			}
			step := strings.ToLower(strings.TrimPrefix(r.GetStep().String(), "STEP_"))
			pod := r.GetPlacement().GetName()
			g.mu.Lock()
			g.heard = append(g.heard, fmt.Sprintf("%s %s on %s", step, pod, r.GetPlacement().GetNode()))
			g.told[step+" "+pod] = r.GetPlacement()
			if r.GetQueued() != nil {
				g.waits[pod] = r.GetQueued()
			}
			answer := g.answer
			response := &pluginv1.PlaceResponse{}
			if answer != nil {
				if says := answer(step, pod); says != nil {
					response = says
				}
			}
			if response == later || response.GetWaitsMilliseconds() > 0 {
				g.open[step+" "+pod] = send
			}
			if response != later && len(g.tries) > 0 {
				response.Activates, g.tries = g.tries, nil
			}
			ends := g.open["pre_bind "+pod]
			delete(g.open, map[bool]string{true: "pre_bind " + pod}[step == "unreserve"])
			permit := g.open["permit "+pod]
			delete(g.open, map[bool]string{true: "permit " + pod}[step == "unreserve"])
			g.mu.Unlock()
			if step == "unreserve" {
				for _, end := range []func(*pluginv1.PlaceResponse){ends, permit} {
					if end != nil {
						end(&pluginv1.PlaceResponse{Error: "it is unreserved"})
					}
				}
			}
			if response != later {
				send(response)
			}
		}
	}
}

// queued returns how a pod waits, as the service was told when it was to sort it.
func (g *gate) queued(pod string) *pluginv1.Queued {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.waits[pod]
}

// answers sets what steps are answered; nil is success.
func (g *gate) answers(answer func(step, pod string) *pluginv1.PlaceResponse) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answer = answer
}

// decide answers a step that is to be answered.
func (g *gate) decide(t testing.TB, step string, response *pluginv1.PlaceResponse) {
	t.Helper()
	var answer func(*pluginv1.PlaceResponse)
	eventually(t, step+" is to be answered", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		answer = g.open[step]
		delete(g.open, step)
		return answer != nil
	})
	answer(response)
}

// ends ends all streams, and lets others begin.
func (g *gate) ends() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.cut)
	g.cut = make(chan struct{})
}

func (g *gate) streams() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.count
}

// hears returns what was heard of a pod.
func (g *gate) hears(pod string) (out []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, h := range g.heard {
		if strings.Contains(h, " "+pod+" ") {
			out = append(out, h)
		}
	}
	return out
}

func (g *gate) wants(t testing.TB, pod string, want ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("the service hears %q", want), func() bool { return len(g.hears(pod)) >= len(want) })
	if diff := cmp.Diff(want, g.hears(pod)); diff != "" {
		t.Errorf("what the service hears of %s (-want +got):\n%s", pod, diff)
	}
}

// withGate configures a binder whose pods of the scheduler name "gated" use the plugin.
func withGate(t testing.TB, g *gate, change ...func(*pluginhost.Service)) func(*Config) {
	return func(cfg *Config) {
		cfg.Settings.Profiles = append(slices.Clone(cfg.Settings.Profiles), engine.DefaultProfile("gated"))
		service := pluginhost.Service{Name: "s", Plugins: []pluginhost.Plugin{{Name: "Gate"}}, Conn: g.conn, Timeout: patience, PreBindTimeout: patience, Annotations: []string{"example.com"}}
		for _, f := range change {
			f(&service)
		}
		all := []string{"Gate"}
		h, err := pluginhost.New(pluginhost.Config{
			Services: []pluginhost.Service{service}, Profiles: cfg.Settings.Profiles, Log: testLog(t), Steps: map[string]pluginhost.Steps{"gated": {Reserve: all, Permit: all, PreBind: all, PostBind: all}},
		})
		if err != nil {
			t.Fatal(err)
		}
		cfg.Plugins = h
	}
}

// gated returns a pod whose profile uses the plugin.
func gated(p source.Pod) source.Pod {
	p.Class.SchedulerName = "gated"
	return p
}

// on answers one step of one pod, and lets all others succeed.
func when(step, pod string, response *pluginv1.PlaceResponse) func(string, string) *pluginv1.PlaceResponse {
	return func(s, p string) *pluginv1.PlaceResponse {
		if s == step && p == pod {
			return response
		}
		return nil
	}
}

func rejects(reason string) *pluginv1.PlaceResponse {
	return &pluginv1.PlaceResponse{Rejection: &pluginv1.Rejection{Plugin: "Gate", Reason: reason}}
}

// nothingLeft checks that no placement counts anywhere.
func (b *running) nothingLeft() {
	b.t.Helper()
	eventually(b.t, "nothing counts any more", func() bool {
		term := b.term.Load()
		term.stepping.mu.Lock()
		defer term.stepping.mu.Unlock()
		return term.unbound.count() == 0 && term.stepping.bound.count() == 0 && term.preparing.bound.count() == 0 &&
			len(term.stepping.of)+len(term.stepping.waiting)+len(term.stepping.stand) == 0
	})
}

func TestAPlacementTakesTheStepsOfPluginServices(t *testing.T) {
	etcd, src, g := startEtcd(t), newFakeSource(), newGate(t)
	src.setNode(node("a", 4000))
	src.setPod(gated(pod("p", 1000)))
	src.setPod(pod("other", 1000))
	var recorded map[string]string
	other := connect(t, etcd, prefix)
	g.answers(func(step, _ string) *pluginv1.PlaceResponse {
		if step == "permit" { // nobody knows of it yet
			recorded = intents(t, other)
		}
		return nil
	})
	b := start(t, etcd, src, withGate(t, g))
	b.active()
	if got := b.commit(b.request(1, "p", "other")); !slices.Equal(got, []string{"result 7", "assumed"}) {
		t.Fatalf("commit: %v", got)
	}
	b.awaitPhase("other", "bound on a")
	if got := b.ask(b.question(1, "p")); got != "assumed on a" {
		t.Fatalf("p: %s", got)
	}
	b.awaitPhase("p", "bound on a")
	g.wants(t, "p", "reserve p on a", "permit p on a", "pre_bind p on a", "post_bind p on a")
	if _, is := recorded["p"]; is {
		t.Error("it was recorded before it was permitted")
	}
	if got := g.hears("other"); got != nil {
		t.Errorf("the service hears of a pod that does not use it: %v", got)
	}
	b.nothingLeft()
}

// What a plugin does not let come about is given back, and told as kube-scheduler does.
func TestAPlacementThatAPluginServiceDoesNotLetComeAbout(t *testing.T) {
	unschedulable := "Unschedulable 0/1 nodes are available: 1 no."
	for name, tt := range map[string]struct {
		answer func(string, string) *pluginv1.PlaceResponse
		then   string // how the step is answered at last, if it is to be
		heard  []string
		said   string
	}{
		"reserve rejects": {when("reserve", "p", rejects("no")), "", []string{"reserve", "unreserve"}, unschedulable},
		"reserve fails":   {when("reserve", "p", &pluginv1.PlaceResponse{Error: "oh"}), "", []string{"reserve", "unreserve"}, `SchedulerError plugin service "s": oh`},
		"permit rejects":  {when("permit", "p", rejects("no")), "", []string{"reserve", "permit", "unreserve"}, unschedulable},
		"permit waits, and rejects": {
			when("permit", "p", &pluginv1.PlaceResponse{WaitsMilliseconds: 600_000}), "permit", []string{"reserve", "permit", "unreserve"}, unschedulable,
		},
		"permit waits for too long": {
			when("permit", "p", &pluginv1.PlaceResponse{WaitsMilliseconds: 1}), "", []string{"reserve", "permit", "unreserve"},
			"Unschedulable 0/1 nodes are available: 1 rejected due to timeout after waiting 1ms at plugin Gate.",
		},
		"pre-bind rejects": {when("pre_bind", "p", rejects("no")), "", []string{"reserve", "permit", "pre_bind", "unreserve"}, "Unschedulable no"},
		"pre-bind fails late": {
			when("pre_bind", "p", later), "pre_bind", []string{"reserve", "permit", "pre_bind", "unreserve"}, "Unschedulable no",
		},
	} {
		t.Run(name, func(t *testing.T) {
			etcd, src, g := startEtcd(t), newFakeSource(), newGate(t)
			src.setNode(node("a", 1000))
			src.setPod(gated(pod("p", 1000)))
			g.answers(tt.answer)
			var ahead atomic.Int64
			b := start(t, etcd, src, withGate(t, g), func(c *Config) {
				c.now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
			})
			b.active()
			if got := b.ask(b.question(1, "p")); got != "assumed on a" {
				t.Fatalf("p: %s", got)
			}
			if tt.then != "" {
				g.decide(t, tt.then+" p", rejects("no"))
			}
			if name == "permit waits for too long" {
				ahead.Store(int64(2 * patience)) // Berth adds to what the service says how long that may take to answer
			}
			b.awaitPhase("p", "pending")
			ahead.Store(0)
			eventually(t, "it is told", func() bool { return len(src.reported("p")) > 0 })
			last := src.reported("p")[len(src.reported("p"))-1]
			if got := last.Reason + " " + last.Message; got != tt.said {
				t.Errorf("what is told: %s, want %s", got, tt.said)
			}
			var want []string
			for _, step := range tt.heard {
				want = append(want, step+" p on a")
			}
			g.wants(t, "p", want...)
			if len(src.tried("p")) != 0 {
				t.Error("a bind was sent")
			}
			b.nothingLeft()
			waited := map[string]uint64{}
			if strings.HasPrefix(name, "permit waits") {
				waited[permitRejected] = 1
			}
			if diff := cmp.Diff(waited, b.permitWaits()); diff != "" {
				t.Errorf("waits for a permit, by what became of them (-want +got):\n%s", diff)
			}
			eventually(t, "no intent is left", func() bool { return len(intents(t, connect(t, etcd, prefix))) == 0 })
			// Its room is others', and its next attempt begins anew.
			g.answers(nil)
			if got := b.ask(b.question(2, "p")); got != "assumed on a" {
				t.Fatalf("p again: %s", got)
			}
			b.awaitPhase("p", "bound on a")
		})
	}
}

// While pods wait for a permit, their room is theirs, nobody waits for them, and no record has them.
func TestPodsThatWaitForAPermitHoldUpNobody(t *testing.T) {
	etcd, src, g := startEtcd(t), newFakeSource(), newGate(t)
	src.setNode(node("a", 3000))
	for _, uid := range []string{"p", "q"} {
		src.setPod(gated(pod(uid, 1000)))
	}
	src.setPod(pod("other", 1000))
	src.setPod(pod("greedy", 1000))
	g.answers(func(step, _ string) *pluginv1.PlaceResponse {
		if step == "permit" {
			return &pluginv1.PlaceResponse{WaitsMilliseconds: 600_000}
		}
		return nil
	})
	b := start(t, etcd, src, withGate(t, g))
	b.active()
	for _, uid := range []string{"p", "q"} {
		if got := b.ask(b.question(1, uid)); got != "assumed on a" {
			t.Fatalf("%s: %s", uid, got)
		}
	}
	if got := b.commit(b.request(1, "other", "greedy")); !slices.Equal(got, []string{"assumed", "no fit"}) {
		t.Fatalf("commit: %v", got)
	}
	b.awaitPhase("other", "bound on a")
	if got := intents(t, connect(t, etcd, prefix)); got["p"] != "" || got["q"] != "" || b.phase("p") != "assumed on a" {
		t.Errorf("intents: %v; p is %s", got, b.phase("p"))
	}
	eventually(t, "nothing counts as unbound", func() bool { return b.term.Load().unbound.count() == 0 })
	if n := b.term.Load().stepping.bound.count(); n != 2 {
		t.Errorf("%d wait, want 2", n)
	}
	// One is deleted, the other one may go.
	src.deletePod("q")
	g.wants(t, "q", "reserve q on a", "permit q on a", "unreserve q on a")
	g.decide(t, "permit p", &pluginv1.PlaceResponse{})
	b.awaitPhase("p", "bound on a")
	b.nothingLeft()
	if diff := cmp.Diff(map[string]uint64{permitAllowed: 1, permitRejected: 1}, b.permitWaits()); diff != "" {
		t.Errorf("waits for a permit, by what became of them (-want +got):\n%s", diff)
	}
}

// permitWaits returns how many waits for a permit have been measured, by what became of them.
func (b *running) permitWaits() map[string]uint64 {
	b.t.Helper()
	out := make(map[string]uint64)
	for _, result := range []string{permitAllowed, permitRejected, permitFailed} {
		var m dto.Metric
		if err := b.metrics.permitWait.WithLabelValues(result).(prometheus.Metric).Write(&m); err != nil {
			b.t.Fatal(err)
		}
		if n := m.GetHistogram().GetSampleCount(); n > 0 {
			out[result] = n
		}
	}
	return out
}

func TestAStreamThatEndsRejectsWhatWaits(t *testing.T) {
	src, g := newFakeSource(), newGate(t)
	src.setNode(node("a", 1000))
	src.setPod(gated(pod("p", 1000)))
	g.answers(when("permit", "p", &pluginv1.PlaceResponse{WaitsMilliseconds: 600_000}))
	b := start(t, startEtcd(t), src, withGate(t, g))
	b.active()
	if got := b.ask(b.question(1, "p")); got != "assumed on a" {
		t.Fatalf("p: %s", got)
	}
	eventually(t, "it waits", func() bool { return b.term.Load().stepping.bound.count() == 1 })
	g.ends()
	b.awaitPhase("p", "pending")
	g.answers(nil)
	if got := b.ask(b.question(2, "p")); got != "assumed on a" {
		t.Fatalf("p again: %s", got)
	}
	b.awaitPhase("p", "bound on a")
	g.wants(t, "p", "reserve p on a", "permit p on a", "reserve p on a", "permit p on a", "pre_bind p on a", "post_bind p on a")
	b.nothingLeft()
}

// The next binder reserves again what was recorded, and forgets what waited for a permit.
func TestATakeoverTakesStepsAgain(t *testing.T) {
	etcd, src, g := startEtcd(t), newFakeSource(), newGate(t)
	src.setNode(node("a", 4000))
	src.setPod(gated(pod("p", 1000)))
	src.setPod(gated(pod("q", 1000)))
	g.answers(func(step, pod string) *pluginv1.PlaceResponse {
		switch step + " " + pod {
		case "pre_bind p":
			return later
		case "permit q":
			return &pluginv1.PlaceResponse{WaitsMilliseconds: 600_000}
		}
		return nil
	})
	first := start(t, etcd, src, withGate(t, g), named("first"))
	first.active()
	for _, uid := range []string{"p", "q"} {
		if got := first.ask(first.question(1, uid)); got != "assumed on a" {
			t.Fatalf("%s: %s", uid, got)
		}
	}
	g.wants(t, "p", "reserve p on a", "permit p on a", "pre_bind p on a")
	first.stop()
	second := start(t, etcd, src, withGate(t, g), named("second"))
	second.active()
	g.wants(t, "p", "reserve p on a", "permit p on a", "pre_bind p on a", "reserve p on a", "pre_bind p on a")
	if got := second.phase("q"); got != "pending" {
		t.Errorf("q is %s", got)
	}
	g.decide(t, "pre_bind p", &pluginv1.PlaceResponse{})
	second.awaitPhase("p", "bound on a")
	g.wants(t, "q", "reserve q on a", "permit q on a")
	second.nothingLeft()
}

// A pod that only waits for plugin services is not deleted to make room, but tried again.
func TestAVictimThatWaitsForAPermitIsNotDeleted(t *testing.T) {
	src, g := newFakeSource(), newGate(t)
	src.setNode(node("a", 1000))
	src.setPod(gated(pod("p", 1000)))
	g.answers(when("permit", "p", &pluginv1.PlaceResponse{WaitsMilliseconds: 600_000}))
	b := start(t, startEtcd(t), src, withGate(t, g))
	b.active()
	if got := b.ask(b.question(1, "p")); got != "assumed on a" {
		t.Fatalf("p: %s", got)
	}
	src.setPod(prior(pod("high", 1000), 10))
	eventually(t, "high is known", func() bool { return b.phase("high") == "pending" })
	var st *cluster.State
	b.look(func(now *cluster.State) { st = now.Clone() })
	if _, err := b.term.Load().preempt(preemptOf(st, "high", "a", "p")); err != nil {
		t.Fatal(err)
	}
	b.awaitPhase("p", "pending")
	g.wants(t, "p", "reserve p on a", "permit p on a", "unreserve p on a")
	if got := src.evictions(); len(got) != 0 {
		t.Errorf("evicted: %v", got)
	}
}

// Pods of a service that does not answer wait; all others go on, and one that is ignorable is passed over.
func TestAServiceThatIsGoneHarmsOnlyItsPods(t *testing.T) {
	for _, ignorable := range []bool{false, true} {
		t.Run(fmt.Sprintf("ignorable=%v", ignorable), func(t *testing.T) {
			src, g := newFakeSource(), newGate(t)
			src.setNode(node("a", 4000))
			src.setPod(gated(pod("p", 1000)))
			src.setPod(pod("other", 1000))
			g.stop()
			b := start(t, startEtcd(t), src, withGate(t, g, func(s *pluginhost.Service) { s.Ignorable = ignorable }))
			b.active()
			want := `failed: plugin service "s": describe: Unavailable`
			if ignorable {
				want = "assumed on a"
			}
			if got := b.ask(b.question(1, "p")); !strings.HasPrefix(got, want) {
				t.Fatalf("p: %s", got)
			}
			if got := b.commit(b.request(1, "other")); got[0] != "assumed" {
				t.Fatalf("other: %v", got)
			}
			b.awaitPhase("other", "bound on a")
			if ignorable {
				b.awaitPhase("p", "bound on a")
			} else if got := b.phase("p"); got != "pending" {
				t.Errorf("p is %s", got)
			}
			b.nothingLeft()
		})
	}
}

// The next pod of a service is asked about when it is known whether the last one may be.
func TestTheNextPodIsAskedAboutBehindTheReservationOfTheLast(t *testing.T) {
	src, g := newFakeSource(), newGate(t)
	src.setNode(node("a", 1000))
	src.setPod(gated(pod("p", 1000)))
	src.setPod(gated(pod("q", 1000)))
	g.answers(when("reserve", "p", later))
	b := start(t, startEtcd(t), src, withGate(t, g))
	b.active()
	of := map[string]string{}
	var mu sync.Mutex
	var asking sync.WaitGroup
	reqP, reqQ := b.question(1, "p"), b.question(1, "q")
	asking.Go(func() {
		got := b.ask(reqP)
		mu.Lock()
		defer mu.Unlock()
		of["p"] = got
	})
	g.wants(t, "p", "reserve p on a")
	asking.Go(func() {
		got := b.ask(reqQ)
		mu.Lock()
		defer mu.Unlock()
		of["q"] = got
	})
	never(t, "q is placed", func() bool { return g.hears("q") != nil })
	g.decide(t, "reserve p", rejects("no"))
	asking.Wait()
	if diff := cmp.Diff(map[string]string{"p": "assumed on a", "q": "assumed on a"}, of); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
	b.awaitPhase("q", "bound on a")
	b.look(func(st *cluster.State) {
		if got := phaseOf(st, "p"); got != "pending" {
			t.Errorf("p is %s", got)
		}
	})
}

// A service that has been started anew is told what stands before another pod is placed: what it reserved has been lost with it.
func TestWhatStandsIsReservedAgain(t *testing.T) {
	src, g := newFakeSource(), newGate(t)
	src.setNode(node("a", 4000))
	src.setPod(gated(pod("p", 1000)))
	src.setPod(gated(pod("q", 1000)))
	src.answers(func(b source.Binding) source.Outcome {
		if b.UID == "p" && src.nodeOf("q") == "" {
			return source.Outcome{Result: source.BindUnknown, Err: errFake}
		}
		return source.Outcome{Result: source.BindDone}
	})
	b := start(t, startEtcd(t), src, withGate(t, g))
	b.active()
	if got := b.ask(b.question(1, "p")); got != "assumed on a" {
		t.Fatalf("p: %s", got)
	}
	eventually(t, "its bind is sent", func() bool { return len(src.tried("p")) > 0 })
	g.wants(t, "p", "reserve p on a", "permit p on a", "pre_bind p on a")
	g.ends()
	eventually(t, "the stream has ended", func() bool { return g.streams() == 0 })
	// Until the binder knows that the stream has ended, it may ask on it, and take q back.
	eventually(t, "q is bound on a", func() bool {
		if b.phase("q") == "pending" {
			if req, _ := b.mayAsk(1, "q"); req != nil {
				b.ask(req)
			}
		}
		return b.phase("q") == "bound on a"
	})
	b.awaitPhase("p", "bound on a")
	g.wants(t, "p", "reserve p on a", "permit p on a", "pre_bind p on a", "reserve p on a", "post_bind p on a")
	g.mu.Lock()
	defer g.mu.Unlock()
	if again, other := lastIndex(g.heard, "reserve p on a"), lastIndex(g.heard, "reserve q on a"); again > other {
		t.Errorf("the service hears %q: what stands is told behind another pod", g.heard)
	}
	b.nothingLeft()
}

func lastIndex(of []string, is string) int {
	for i, s := range slices.Backward(of) {
		if s == is {
			return i
		}
	}
	return -1
}

// A victim that has claims, and waits for a permit, is not deleted either, and what was counted for its claims is given back.
func TestAVictimWithClaimsThatWaitsForAPermitIsNotDeleted(t *testing.T) {
	g := newGate(t)
	g.answers(when("permit", "v", &pluginv1.PlaceResponse{WaitsMilliseconds: 600_000}))
	etcd, src := startEtcd(t), newFakeSource()
	storage(src)
	src.setNode(node("a", 10))
	src.setObjects(waitingClaim("c", "made"))
	src.setPod(gated(claiming("v", 10, "c")))
	src.setPod(prior(pod("high", 10), 10))
	b := start(t, etcd, src, withGate(t, g))
	b.active()
	if got := b.ask(b.question(1, "v")); got != "assumed on a" {
		t.Fatalf("v: %s", got)
	}
	var st *cluster.State
	b.look(func(now *cluster.State) { st = now.Clone() })
	if _, err := b.term.Load().preempt(preemptOf(st, "high", "a", "v")); err != nil {
		t.Fatal(err)
	}
	b.awaitPhase("v", "pending")
	g.wants(t, "v", "reserve v on a", "permit v on a", "unreserve v on a")
	if got := src.evictions(); len(got) != 0 {
		t.Errorf("evicted: %v", got)
	}
	b.nothingLeft()
}

// A victim for which services do what comes before its bind is not deleted, though it has waited for a permit before.
func TestAVictimBeforeItsBindIsNotDeleted(t *testing.T) {
	src, g := newFakeSource(), newGate(t)
	src.setNode(node("a", 1000))
	src.setPod(gated(pod("p", 1000)))
	src.setPod(prior(pod("high", 1000), 10))
	g.answers(func(step, _ string) *pluginv1.PlaceResponse {
		switch step {
		case "permit":
			return &pluginv1.PlaceResponse{WaitsMilliseconds: 600_000}
		case "pre_bind":
			return later
		}
		return nil
	})
	b := start(t, startEtcd(t), src, withGate(t, g))
	b.active()
	if got := b.ask(b.question(1, "p")); got != "assumed on a" {
		t.Fatalf("p: %s", got)
	}
	g.decide(t, "permit p", &pluginv1.PlaceResponse{})
	g.wants(t, "p", "reserve p on a", "permit p on a", "pre_bind p on a")
	var st *cluster.State
	b.look(func(now *cluster.State) { st = now.Clone() })
	if _, err := b.term.Load().preempt(preemptOf(st, "high", "a", "p")); err != nil {
		t.Fatal(err)
	}
	b.awaitPhase("p", "pending")
	if got := src.evictions(); len(got) != 0 {
		t.Errorf("evicted: %v", got)
	}
	eventually(t, "it is told", func() bool { return len(src.reported("p")) > 0 })
	if got := src.reported("p")[0].Message; got != `running PreBind plugin "Gate": preempted` {
		t.Errorf("what is told: %s", got)
	}
	b.nothingLeft()
}

// More pods than may wait for services are not placed.
func TestPodsBeyondTheBoundOfThoseThatWaitAreBusy(t *testing.T) {
	src, g := newFakeSource(), newGate(t)
	src.setNode(node("a", 4000))
	for _, uid := range []string{"p", "q"} {
		src.setPod(gated(pod(uid, 1000)))
	}
	g.answers(func(step, _ string) *pluginv1.PlaceResponse {
		if step == "permit" {
			return &pluginv1.PlaceResponse{WaitsMilliseconds: 600_000}
		}
		return nil
	})
	b := start(t, startEtcd(t), src, withGate(t, g))
	b.active()
	b.term.Load().stepping.bound.limit = 1
	if got := b.ask(b.question(1, "p")); got != "assumed on a" {
		t.Fatalf("p: %s", got)
	}
	if got := b.ask(b.question(1, "q")); got != "busy" {
		t.Fatalf("q: %s", got)
	}
	g.decide(t, "permit p", &pluginv1.PlaceResponse{})
	b.awaitPhase("p", "bound on a")
	eventually(t, "there is room again", func() bool { return b.term.Load().stepping.bound.count() == 0 })
	if got := b.ask(b.question(1, "q")); got != "assumed on a" {
		t.Fatalf("q: %s", got)
	}
	g.decide(t, "permit q", &pluginv1.PlaceResponse{})
	b.awaitPhase("q", "bound on a")
	b.nothingLeft()
}

// Pods that a service wants tried are activated in the log, if they wait, and are of a profile that uses it.
func TestPodsThatAServiceWantsTriedAreActivated(t *testing.T) {
	src, g := newFakeSource(), newGate(t)
	g.tells = true
	src.setNode(node("a", 4000))
	for _, name := range []string{"p", "bound", "waits"} {
		src.setPod(gated(pod(name, 10)))
	}
	src.setPod(pod("other", 10))
	b := start(t, startEtcd(t), src, withGate(t, g))
	b.active()
	if got := b.ask(b.question(1, "bound")); got != "assumed on a" {
		t.Fatal(got)
	}
	b.awaitPhase("bound", "bound on a")
	b.request(1, "waits", "other") // they are known
	var waits cluster.PodID
	b.look(func(st *cluster.State) { waits, _ = st.PodByUID("waits") })
	term := b.term.Load()
	before := term.mark()
	g.mu.Lock()
	g.tries = []string{"waits", "bound", "other", "unknown", "waits"}
	g.mu.Unlock()
	if got := b.ask(b.question(1, "p")); got != "assumed on a" {
		t.Fatal(got)
	}
	activated := func() (out []cluster.PodActivated) {
		for _, d := range logSince(t, term, before) {
			if d, ok := d.(cluster.PodActivated); ok {
				out = append(out, d)
			}
		}
		return out
	}
	eventually(t, "some are activated", func() bool { return len(activated()) > 0 })
	if diff := cmp.Diff([]cluster.PodActivated{{ID: waits}}, activated()); diff != "" {
		t.Errorf("activated (-want +got):\n%s", diff)
	}
	// A service whose stream ends is begun anew though nobody asks it, and then all are tried that wait for anything.
	g.ends()
	eventually(t, "all are to be tried", func() bool { return len(activated()) > 1 })
	if diff := cmp.Diff([]cluster.PodActivated{{ID: waits}, {ID: cluster.NoPod}}, activated()); diff != "" {
		t.Errorf("activated (-want +got):\n%s", diff)
	}
}

// However often a service wants a pod tried, the log says so once in a while only.
func TestAPodIsNotActivatedWithoutAnEnd(t *testing.T) {
	src, g := newFakeSource(), newGate(t)
	src.setNode(node("a", 4000))
	for _, name := range []string{"p", "q", "waits"} {
		src.setPod(gated(pod(name, 10)))
	}
	b := start(t, startEtcd(t), src, withGate(t, g))
	b.active()
	b.request(1, "waits")
	term := b.term.Load()
	before := term.mark()
	began := time.Now()
	wants := func(by string) {
		g.mu.Lock()
		g.tries = []string{"waits"}
		g.mu.Unlock()
		if got := b.ask(b.question(1, by)); got != "assumed on a" {
			t.Fatal(got)
		}
		b.awaitPhase(by, "bound on a")
	}
	count := func() (n int) {
		for _, d := range logSince(t, term, before) {
			if _, ok := d.(cluster.PodActivated); ok {
				n++
			}
		}
		return n
	}
	wants("p")
	eventually(t, "it is activated", func() bool { return count() == 1 })
	wants("q")
	eventually(t, "it is activated again", func() bool { return count() == 2 })
	if took := time.Since(began); took < activateAgain {
		t.Errorf("twice in %v", took)
	}
}
