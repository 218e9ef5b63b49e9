package plugin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/placeserver"
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

// history is what plugins have been called for, in order.
type history struct {
	mu    sync.Mutex
	calls []string
}

func (h *history) add(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, fmt.Sprintf(format, args...))
}

// take returns what has been added since it was called last.
func (h *history) take() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	calls := h.calls
	h.calls = nil
	return calls
}

// stepping is a plugin with all steps, which notes them and does nothing else.
func stepping(name string, h *history) Plugin {
	note := func(point string) func(context.Context, *Placement) (*Rejection, error) {
		return func(_ context.Context, p *Placement) (*Rejection, error) {
			h.add("%s %s %s", name, point, p.UID)
			return nil, nil
		}
	}
	return Plugin{
		Name: name, Reserve: note("reserve"), PreBind: note("preBind"),
		Unreserve: func(ctx context.Context, p *Placement) { _, _ = note("unreserve")(ctx, p) },
		PostBind:  func(ctx context.Context, p *Placement) { _, _ = note("postBind")(ctx, p) },
		Permit: func(ctx context.Context, p *Placement) (Permission, error) {
			_, _ = note("permit")(ctx, p)
			return Permission{}, nil
		},
	}
}

// placer is a stream of Place in a bubble.
type placer struct {
	t      *testing.T
	stream grpc.BidiStreamingClient[pluginv1.PlaceRequest, pluginv1.PlaceResponse]
	last   int64
	cut    context.CancelFunc

	mu   sync.Mutex
	said []string
	err  error
}

// inMemory serves plugins on a network that a bubble can have.
func inMemory(t *testing.T, plugins ...Plugin) (pluginv1.PluginServiceClient, *server) {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	s := serve(t, Config{Listener: l, Plugins: plugins})
	return dial(t, "passthrough:plugins", grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) })), s
}

// begin opens a stream, and tells it of profiles.
func begin(t *testing.T, client pluginv1.PluginServiceClient, profiles ...*pluginv1.Profile) *placer {
	t.Helper()
	p := opened(t, client)
	p.request(&pluginv1.PlaceRequest{Profiles: profiles, HearsAnnotations: true})
	return p
}

// opened opens a stream.
func opened(t *testing.T, client pluginv1.PluginServiceClient) *placer {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := client.Place(ctx)
	if err != nil {
		t.Fatal(err)
	}
	p := &placer{t: t, stream: stream, cut: cancel}
	var receiving sync.WaitGroup
	receiving.Go(func() {
		for {
			response, err := stream.Recv()
			p.mu.Lock()
			if err != nil {
				p.err = err
				p.mu.Unlock()
				return
			}
			p.said = append(p.said, inWords(response))
			p.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		cancel()
		receiving.Wait()
	})
	return p
}

func inWords(r *pluginv1.PlaceResponse) string {
	said := fmt.Sprint(r.GetId())
	if r.GetWaitsMilliseconds() != 0 {
		said += fmt.Sprint(" waits ", time.Duration(r.GetWaitsMilliseconds())*time.Millisecond)
	}
	if r.GetSkipped() {
		said += " skipped"
	}
	if r.GetRejection() != nil {
		said += fmt.Sprintf(" %s: %s", r.GetRejection().GetPlugin(), r.GetRejection().GetReason())
	}
	if r.GetError() != "" {
		said += " error: " + r.GetError()
	}
	if len(r.GetAnnotations()) > 0 {
		said += fmt.Sprint(" annotations ", r.GetAnnotations())
	}
	if len(r.GetChanges()) > 0 {
		said += fmt.Sprint(" changes ", r.GetChanges())
	}
	if r.GetAllChanged() {
		said += " all changed"
	}
	if len(r.GetActivates()) > 0 {
		said += fmt.Sprint(" activates ", r.GetActivates())
	}
	if len(r.GetWakes()) > 0 {
		said += fmt.Sprint(" wakes ", r.GetWakes())
	}
	return said
}

// request sends a request, whose id it sets unless there is one.
func (p *placer) request(req *pluginv1.PlaceRequest) {
	p.t.Helper()
	p.last++
	req.Id = cmp.Or(req.Id, p.last)
	if err := p.stream.Send(req); err != nil {
		p.t.Fatal(err)
	}
}

// placed is a placement by its pod's uid.
func placed(uid string) *pluginv1.Placement {
	return &pluginv1.Placement{Uid: uid, Namespace: "ns", Name: "pod-" + uid, SchedulerName: "berth", Node: "node-" + uid}
}

// step sends a step.
func (p *placer) step(step pluginv1.Step, uid string, plugins ...string) {
	p.t.Helper()
	of := placed(uid)
	if step == preEnqueue {
		of.Node = ""
	}
	p.request(&pluginv1.PlaceRequest{Placement: of, Step: step, Plugins: plugins})
}

// answers returns what has been answered since it was called last, when nobody has anything to do any more.
func (p *placer) answers() []string {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	said := p.said
	p.said = nil
	return said
}

func (p *placer) expect(want ...string) {
	p.t.Helper()
	if got := p.answers(); !slices.Equal(got, want) {
		p.t.Errorf("answers: %q, want %q", got, want)
	}
}

func (h *history) expect(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	if got := h.take(); !slices.Equal(got, want) {
		t.Errorf("calls: %q, want %q", got, want)
	}
}

// ended returns why the stream has ended.
func (p *placer) ended() error {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

func TestStepsAreTakenInTheOrderOfRequestsAndPlugins(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := new(history)
		client, _ := inMemory(t, stepping("A", h), stepping("B", h))
		p := begin(t, client)
		for _, step := range []pluginv1.Step{reserve, permit, preBind} { // without waiting
			p.step(step, "u", "B", "A")
		}
		p.expect("2", "3", "4")
		p.step(postBind, "u", "B", "A")
		p.expect("5")
		h.expect(t, "B reserve u", "A reserve u", "B permit u", "A permit u", "B preBind u", "A preBind u", "B postBind u", "A postBind u")
		p.step(reserve, "v", "A")
		p.expect("6")
		p.step(unreserve, "v", "B", "A")
		p.step(reserve, "v") // for those that come behind
		p.step(permit, "v", "B")
		p.expect("7", "8", "9")
		h.expect(t, "A reserve v", "B unreserve v", "A unreserve v", "B permit v")
	})
}

func TestAPluginGetsTheSamePlacementUntilItIsOver(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var got []*Placement
		h := new(history)
		p := stepping("A", h)
		note := func(_ context.Context, p *Placement) (*Rejection, error) {
			got = append(got, p)
			return nil, nil
		}
		p.Reserve, p.PreBind, p.Unreserve = note, note, func(ctx context.Context, p *Placement) { _, _ = note(ctx, p) }
		client, _ := inMemory(t, p)
		s := begin(t, client)
		s.request(&pluginv1.PlaceRequest{Step: reserve, Plugins: []string{"A"}, Placement: &pluginv1.Placement{
			Uid: "u", Namespace: "shop", Name: "web", SchedulerName: "berth", Node: "n", Object: []byte(`{"spec":{"nodeName":"x"}}`),
			PodLabels: map[string]string{"l": "1"}, PodAnnotations: map[string]string{"a": "2"}, Annotations: map[string]string{"a": "chosen"}, Stands: true,
		}})
		for _, step := range []pluginv1.Step{preBind, unreserve, reserve} {
			s.request(&pluginv1.PlaceRequest{Step: step, Plugins: []string{"A"}, Placement: &pluginv1.Placement{Uid: "u", Namespace: "shop", Name: "web", SchedulerName: "berth", Node: "n"}})
			synctest.Wait()
		}
		s.expect("2", "3", "4", "5")
		if len(got) != 4 || got[1] != got[0] || got[2] != got[0] || got[3] == got[0] {
			t.Fatalf("it got %p", got)
		}
		if p := got[0]; p.UID != "u" || p.Namespace != "shop" || p.Name != "web" || p.SchedulerName != "berth" || p.Node != "n" {
			t.Errorf("the placement is %+v", p)
		}
		if pod, err := got[0].Pod(); err != nil || pod.Spec.NodeName != "x" {
			t.Errorf("Pod: %v, %v", pod, err)
		}
		if p := got[0]; p.Labels["l"] != "1" || p.PodAnnotations["a"] != "2" || p.Annotations()["a"] != "chosen" {
			t.Errorf("it has labels %v and annotations %v, and chosen is %v", p.Labels, p.PodAnnotations, p.Annotations())
		}
		if p := got[3]; len(p.Labels)+len(p.PodAnnotations) > 0 {
			t.Errorf("labels %v and annotations %v of a placement without them", p.Labels, p.PodAnnotations)
		}
		if _, err := got[3].Pod(); err == nil {
			t.Error("Pod is there of a placement without one")
		}
	})
}

// A binder that knows nothing of annotations would have them be none.
func TestABinderThatTellsNoAnnotationsIsRefused(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		with := stepping("A", new(history))
		with.Depends.Annotations = true
		client, _ := inMemory(t, with)
		for tells, want := range map[bool]codes.Code{true: codes.OK, false: codes.FailedPrecondition} {
			p := opened(t, client)
			p.request(&pluginv1.PlaceRequest{TellsAnnotations: tells})
			if got := status.Code(p.ended()); got != want {
				t.Errorf("tells annotations: %v: the stream ends with %v, want %v", tells, got, want)
			}
		}
	})
}

func TestThePluginThatDoesNotSucceedEndsTheStep(t *testing.T) {
	why := &Rejection{Reason: "no license"}
	steps := map[string]struct {
		step pluginv1.Step
		with func(p *Plugin, f func() (*Rejection, error))
	}{
		"Reserve": {reserve, func(p *Plugin, f func() (*Rejection, error)) {
			p.Reserve = func(context.Context, *Placement) (*Rejection, error) { return f() }
		}},
		"Permit": {permit, func(p *Plugin, f func() (*Rejection, error)) {
			p.Permit = func(context.Context, *Placement) (Permission, error) {
				rejection, err := f()
				return Permission{Rejection: rejection}, err
			}
		}},
		"PreBind": {preBind, func(p *Plugin, f func() (*Rejection, error)) {
			p.PreBind = func(context.Context, *Placement) (*Rejection, error) { return f() }
		}},
	}
	for name, tt := range steps {
		for want, f := range map[string]func() (*Rejection, error){
			" B: no license": func() (*Rejection, error) { return why, nil },
			fmt.Sprintf(` error: running %s plugin "B": no such thing`, name): func() (*Rejection, error) { return why, errors.New("no such thing") },
			fmt.Sprintf(` error: running %s plugin "B": panic: runtime error: invalid memory address or nil pointer dereference`, name): func() (*Rejection, error) {
				var none *wrapper // which is an error, all the same
				return nil, none
			},
			fmt.Sprintf(` error: running %s plugin "B": panic: at the disco`, name):         func() (*Rejection, error) { panic("at the disco") },
			fmt.Sprintf(` error: running %s plugin "B": it is rejected without a re`, name): func() (*Rejection, error) { return new(Rejection), nil },
			" B: " + strings.Repeat("é", 512):                                               func() (*Rejection, error) { return &Rejection{Reason: strings.Repeat("é", 600)}, nil },
		} {
			t.Run(name+want[:min(20, len(want))], func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					h := new(history)
					fails := stepping("B", h)
					tt.with(&fails, f)
					client, s := inMemory(t, stepping("A", h), fails, stepping("C", h))
					p := begin(t, client)
					if tt.step != reserve {
						p.step(reserve, "u")
						p.expect("2")
					}
					p.step(tt.step, "u", "A", "B", "C")
					if got, want := p.answers(), fmt.Sprint(p.last)+want; len(got) != 1 || !strings.HasPrefix(got[0], want) {
						t.Errorf("answers: %q, want %q", got, want)
					}
					h.expect(t, fmt.Sprintf("A %s u", strings.ToLower(name[:1])+name[1:]))
					if strings.Contains(want, "disco") && !strings.Contains(s.log.String(), "plugin=B pod=ns/pod-u node=node-u") {
						t.Errorf("the log does not tell of the panic:\n%s", s.log)
					}
					if tt.step == reserve {
						p.step(permit, "u", "A")
						p.step(preBind, "u", "A")
						p.expect("3 error: "+placeserver.ErrNotReserved.Error(), "4 error: "+placeserver.ErrNotReserved.Error())
						h.expect(t)
					}
					p.step(unreserve, "u", "C", "B", "A")
					p.expect(fmt.Sprint(p.last))
					h.expect(t, "C unreserve u", "B unreserve u", "A unreserve u")
				})
			})
		}
	}
}

// The first plugin that binds is the last; one that fails is, too.
func TestAPluginBindsOrSkips(t *testing.T) {
	for want, binds := range map[string]func(plugin string) (bool, error){
		"3":         func(plugin string) (bool, error) { return plugin == "B", nil },
		"3 skipped": func(string) (bool, error) { return false, nil },
		`3 error: running Bind plugin "B": it is ill`: func(plugin string) (bool, error) {
			if plugin == "B" {
				return false, errors.New("it is ill")
			}
			return false, nil
		},
		`3 error: running Bind plugin "B": panic: oh`: func(plugin string) (bool, error) {
			if plugin == "B" {
				panic("oh")
			}
			return false, nil
		},
	} {
		t.Run(want, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				h := new(history)
				var plugins []Plugin
				for _, name := range []string{"A", "B", "C"} {
					p := stepping(name, h)
					p.Bind = func(_ context.Context, p *Placement) (bool, error) {
						h.add("%s bind %s", name, p.UID)
						return binds(name)
					}
					plugins = append(plugins, p)
				}
				client, _ := inMemory(t, plugins...)
				p := begin(t, client)
				p.step(reserve, "u")
				p.expect("2")
				p.step(bind, "u", "A", "B", "C")
				p.expect(want)
				asked := []string{"A bind u", "B bind u"}
				if strings.HasSuffix(want, "skipped") {
					asked = append(asked, "C bind u")
				}
				h.expect(t, asked...)
				p.step(bind, "v", "A")
				if err := p.ended(); err == nil || !strings.Contains(err.Error(), `pod "v" is not reserved`) {
					t.Errorf("a pod that is not reserved: %v", err)
				}
			})
		})
	}
}

func TestWhatComesOfUnreserveAndPostBindKeepsNobodyFromIt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := new(history)
		bad := stepping("B", h)
		bad.Unreserve, bad.PostBind = func(context.Context, *Placement) { panic("one") }, func(context.Context, *Placement) { panic("two") }
		client, _ := inMemory(t, stepping("A", h), bad)
		p := begin(t, client)
		p.step(unreserve, "u", "B", "A") // neither has been reserved
		p.step(postBind, "v", "B", "A")
		got := p.answers()
		slices.Sort(got)
		if want := []string{`2 error: running Unreserve plugin "B": panic: one`, `3 error: running PostBind plugin "B": panic: two`}; !slices.Equal(got, want) {
			t.Errorf("answers: %q, want %q", got, want)
		}
		calls := h.take()
		slices.Sort(calls)
		if want := []string{"A postBind v", "A unreserve u"}; !slices.Equal(calls, want) {
			t.Errorf("calls: %q, want %q", calls, want)
		}
	})
}

// waiting is a plugin that has placements wait, which it hands out.
func waiting(name string, wait time.Duration, h *history) (Plugin, func() *Placement) {
	p := stepping(name, h)
	got := make(chan *Placement, 100)
	p.Permit = func(_ context.Context, p *Placement) (Permission, error) {
		got <- p
		return Permission{Wait: wait}, nil
	}
	return p, func() *Placement { return <-got }
}

func TestAPlacementWaitsUntilAllHaveAllowedItOrOneHasRejectedIt(t *testing.T) {
	for name, tt := range map[string]struct {
		a, b  time.Duration
		waits string
		do    func(a, b *Placement)
		want  string
		took  time.Duration
	}{
		"allowed": {10 * time.Second, 5 * time.Second, "10s", func(a, b *Placement) {
			a.Allow()
			a.Allow()
			time.Sleep(3 * time.Second)
			b.Allow()
		}, "", 3 * time.Second},
		"allowed twice by one": {10 * time.Second, 5 * time.Second, "10s", func(a, b *Placement) {
			time.Sleep(3 * time.Second)
			b.Allow()
			b.Allow()
		}, " A: rejected due to timeout after waiting 10s at plugin A", 10 * time.Second},
		"the first time that is up": {10 * time.Second, 5 * time.Second, "10s", func(a, b *Placement) {}, " B: rejected due to timeout after waiting 5s at plugin B", 5 * time.Second},
		"a microsecond":             {time.Microsecond, 0, "1ms", func(a, b *Placement) {}, " A: rejected due to timeout after waiting 1µs at plugin A", time.Microsecond},
		"an hour":                   {0, time.Hour, "15m0s", func(a, b *Placement) {}, " B: rejected due to timeout after waiting 15m0s at plugin B", 15 * time.Minute},
		"rejected by one that allowed": {10 * time.Second, 5 * time.Second, "10s", func(a, b *Placement) {
			a.Allow()
			time.Sleep(time.Second)
			a.Reject("changed my mind")
			a.Allow()
			b.Allow()
		}, " A: changed my mind", time.Second},
		"rejected by one that does not wait": {0, 5 * time.Second, "5s", func(a, b *Placement) { a.Reject("") }, " A: rejected", 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				h := new(history)
				a, ofA := waiting("A", tt.a, h)
				b, ofB := waiting("B", tt.b, h)
				client, _ := inMemory(t, a, b)
				p := begin(t, client)
				p.step(reserve, "u")
				p.step(permit, "u", "A", "B")
				p.expect("2", "3 waits "+tt.waits)
				began := time.Now()
				atA, atB := ofA(), ofB()
				tt.do(atA, atB)
				if left := tt.took - time.Since(began); left > 0 {
					time.Sleep(left - 1)
					p.expect()
					time.Sleep(time.Nanosecond)
				}
				p.expect("3" + tt.want)
				atA.Reject("too late") // is heard by nobody
				atB.Allow()
				p.step(preBind, "u", "A")
				p.expect("4")
				p.step(unreserve, "u")
				p.expect("5")
			})
		})
	}
}

func TestWhatIsSaidBeforePermitReturnsIsHeard(t *testing.T) {
	for want, say := range map[string]func(p *Placement){
		"3": (*Placement).Allow, "3 A: no": func(p *Placement) { p.Reject("no") },
	} {
		for _, at := range []string{"reserve", "permit"} {
			bubble.Test(t, func(t *testing.T) {
				a := stepping("A", new(history))
				a.Reserve = func(_ context.Context, p *Placement) (*Rejection, error) {
					if at == "reserve" {
						say(p)
					}
					return nil, nil
				}
				a.Permit = func(_ context.Context, p *Placement) (Permission, error) {
					if at == "permit" {
						say(p)
					}
					return Permission{Wait: time.Minute}, nil
				}
				client, _ := inMemory(t, a)
				p := begin(t, client)
				p.step(reserve, "u", "A")
				p.step(permit, "u", "A")
				p.expect("2", want)
			})
		}
	}
}

func TestAPermissionThatMakesNoSenseIsAnError(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		says := Permission{Wait: -1}
		a := stepping("A", new(history))
		a.Permit = func(context.Context, *Placement) (Permission, error) { return says, nil }
		client, _ := inMemory(t, a)
		p := begin(t, client)
		p.step(reserve, "u")
		p.step(permit, "u", "A")
		p.expect("2", `3 error: running Permit plugin "A": it is to wait for -1ns: want 0 at least`)
		says = Permission{Wait: time.Second, Rejection: &Rejection{Reason: "no"}}
		p.step(reserve, "v")
		p.step(permit, "v", "A")
		p.expect("4", `5 error: running Permit plugin "A": it is rejected, and is to wait`)
	})
}

func TestWhatTakesLongKeepsNobodyElse(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const many = 3 * placeserver.AtOnce
		h := new(history)
		a, _ := waiting("A", time.Minute, h)
		a.PreBind = func(ctx context.Context, p *Placement) (*Rejection, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		var running, most atomic.Int32
		held := make(chan struct{})
		a.PostBind = func(context.Context, *Placement) {
			most.Store(max(most.Load(), running.Add(1)))
			<-held
			running.Add(-1)
		}
		client, _ := inMemory(t, a)
		p := begin(t, client)
		for i := range many {
			p.step(reserve, fmt.Sprint("waits-", i))
			p.step(reserve, fmt.Sprint("binds-", i))
			if i < 90 { // waiting has room for 100
				p.step(permit, fmt.Sprint("waits-", i), "A")
			}
			p.step(preBind, fmt.Sprint("binds-", i), "A")
		}
		if got, want := len(p.answers()), 2*many+90; got != want {
			t.Errorf("%d answers, want %d: PreBinds are under way", got, want)
		}
		p.step(reserve, "other", "A")
		p.expect(fmt.Sprint(p.last))
		h.expect(t, "A reserve other")
		for i := range many {
			p.step(postBind, fmt.Sprint("new-", i), "A")
		}
		p.expect()
		if got := running.Load(); got != placeserver.AtOnce {
			t.Errorf("%d functions are called at a time, want %d", got, placeserver.AtOnce)
		}
		close(held)
		if got := len(p.answers()); got != many || most.Load() != placeserver.AtOnce {
			t.Errorf("%d answers, %d at a time: want %d, and %d", got, most.Load(), many, placeserver.AtOnce)
		}
		for i := range many {
			p.step(unreserve, fmt.Sprint("binds-", i), "A")
		}
		if got := len(p.answers()); got != 2*many {
			t.Errorf("%d answers, want %d: of PreBinds, and of what ended them", got, 2*many)
		}
	})
}

func TestUnreserveEndsWhatIsUnderWayWhichIsAnsweredFirst(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := new(history)
		a, of := waiting("A", time.Minute, h)
		a.PreBind = func(ctx context.Context, p *Placement) (*Rejection, error) {
			<-ctx.Done()
			time.Sleep(time.Second) // to end takes its time
			h.add("PreBind: %v", context.Cause(ctx))
			return nil, fmt.Errorf("attach: %w", ctx.Err())
		}
		client, _ := inMemory(t, a)
		p := begin(t, client)
		p.step(reserve, "u")
		p.step(reserve, "v")
		p.step(permit, "u", "A")
		p.step(preBind, "v", "A")
		got := p.answers()
		slices.Sort(got)
		if want := []string{"2", "3", "4 waits 1m0s"}; !slices.Equal(got, want) {
			t.Errorf("answers: %q, want %q", got, want)
		}
		p.step(unreserve, "u", "A")
		p.expect("4 error: waiting on permit for pod: the placement is given back", "6")
		of().Allow() // is heard by nobody
		h.expect(t, "A unreserve u")

		p.step(unreserve, "v", "A")
		p.expect()
		h.expect(t)
		time.Sleep(time.Second)
		p.expect(`5 error: running PreBind plugin "A": the placement is given back`, "7")
		h.expect(t, "PreBind: the placement is given back", "A unreserve v")
		if err := p.ended(); err != nil {
			t.Errorf("the stream has ended: %v", err)
		}
	})
}

func TestABoundPodEndsWhatIsUnderWayForIt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := new(history)
		a, _ := waiting("A", time.Minute, h)
		a.PreBind = func(ctx context.Context, p *Placement) (*Rejection, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		a.PostBind = func(ctx context.Context, p *Placement) { h.add("%s is bound, %v", p.UID, ctx.Err()) }
		client, _ := inMemory(t, a)
		p := begin(t, client)
		p.step(reserve, "u")
		p.step(permit, "u", "A")
		p.expect("2", "3 waits 1m0s")
		p.step(postBind, "u", "A") // somebody else has done it
		p.expect("3 error: waiting on permit for pod: the pod is bound", "4")
		p.step(reserve, "v")
		p.step(preBind, "v", "A")
		p.expect("5")
		p.step(postBind, "v", "A")
		p.expect(`6 error: running PreBind plugin "A": the pod is bound`, "7")
		h.expect(t, "u is bound, <nil>", "v is bound, <nil>")
	})
}

func TestWhatHasEndedIsNotTakenFurther(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := new(history)
		a := stepping("A", h)
		a.Reserve = func(ctx context.Context, p *Placement) (*Rejection, error) {
			if p.UID == "u" {
				<-ctx.Done()
			}
			return nil, nil
		}
		a.PreBind = func(ctx context.Context, _ *Placement) (*Rejection, error) {
			<-ctx.Done()
			return nil, nil
		}
		client, _ := inMemory(t, a, stepping("B", h))
		p := begin(t, client)
		p.step(reserve, "u", "A", "B")
		p.step(permit, "u", "B")
		p.expect()
		p.step(unreserve, "u", "B", "A")
		p.expect(`2 error: running Reserve plugin "B": the placement is given back`, "3 error: "+placeserver.ErrNotReserved.Error(), "4")
		h.expect(t, "B unreserve u", "A unreserve u")
		p.step(reserve, "v", "A", "B")
		p.step(preBind, "v", "A", "B")
		p.expect("5")
		p.step(unreserve, "v")
		p.expect(`6 error: running PreBind plugin "B": the placement is given back`, "7")
		h.expect(t, "B reserve v")
	})
}

func TestTheEndOfAStreamTakesBackWhatIsNotBound(t *testing.T) {
	for name, end := range map[string]func(p *placer, s *server){
		"it is cut":             func(p *placer, _ *server) { p.cut() },
		"it is closed":          func(p *placer, _ *server) { _ = p.stream.CloseSend() },
		"a request is no sense": func(p *placer, _ *server) { p.request(&pluginv1.PlaceRequest{Id: 99}) },
		"the server ends":       func(_ *placer, s *server) { s.stop() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				h := new(history)
				a, _ := waiting("A", time.Minute, h)
				b := stepping("B", h)
				a.PreBind = func(ctx context.Context, p *Placement) (*Rejection, error) {
					<-ctx.Done()
					h.add("A preBind %s ends", p.UID)
					return nil, ctx.Err()
				}
				a.Unreserve = func(ctx context.Context, p *Placement) {
					until, ok := ctx.Deadline()
					h.add("A unreserve %s: %v, %v %v", p.UID, ctx.Err(), ok, time.Until(until))
				}
				client, s := inMemory(t, a, b)
				p := begin(t, client)
				for _, uid := range []string{"reserved", "waits", "preBinds", "bound", "back"} {
					p.step(reserve, uid, "A", "B")
					p.answers()
				}
				p.step(permit, "waits", "A")
				p.step(preBind, "preBinds", "A")
				p.step(postBind, "bound", "A")
				p.step(unreserve, "back", "A")
				p.step(reserve, "none") // by no plugin: there is nothing to take back
				p.answers()
				h.take()
				end(p, s)
				synctest.Wait()
				calls := h.take()
				ofPod := make(map[string][]string)
				for _, call := range calls {
					uid := strings.TrimSuffix(strings.Fields(call)[2], ":")
					ofPod[uid] = append(ofPod[uid], call)
				}
				back := func(uid string) []string {
					return []string{"B unreserve " + uid, "A unreserve " + uid + ": <nil>, true 5s"}
				}
				want := map[string][]string{"reserved": back("reserved"), "waits": back("waits"), "preBinds": append([]string{"A preBind preBinds ends"}, back("preBinds")...)}
				if diff := gocmp.Diff(want, ofPod); diff != "" {
					t.Errorf("calls at the end (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestServeEndsWhenAllIsTakenBackForWhichThereAreSeconds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var back atomic.Int32
		h := new(history)
		a := stepping("A", h)
		a.Unreserve = func(ctx context.Context, _ *Placement) {
			<-ctx.Done()
			back.Add(1)
		}
		client, s := inMemory(t, a)
		p := begin(t, client)
		const many = 5 * placeserver.AtOnce
		for i := range many {
			p.step(reserve, fmt.Sprint(i), "A")
		}
		if got := len(p.answers()); got != many {
			t.Fatalf("%d answers, want %d", got, many)
		}
		began := time.Now()
		s.stop()
		if took := time.Since(began); took != placeserver.TakeBackTime || back.Load() != many {
			t.Errorf("it took %v, and %d were taken back: want %v, and %d", took, back.Load(), placeserver.TakeBackTime, many)
		}
	})
}

func TestStreamsOfPlacementsKnowNothingOfEachOther(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := new(history)
		a, of := waiting("A", time.Minute, h)
		client, _ := inMemory(t, a)
		old, taker := begin(t, client), begin(t, client)
		for _, p := range []*placer{old, taker} {
			p.step(reserve, "u", "A")
			p.step(permit, "u", "A")
			p.expect("2", "3 waits 1m0s")
		}
		first, second := of(), of()
		if first == second {
			t.Error("both streams have one placement")
		}
		h.expect(t, "A reserve u", "A reserve u")
		old.step(unreserve, "u", "A")
		old.expect("3 error: waiting on permit for pod: the placement is given back", "4")
		first.Allow()
		taker.expect()
		second.Allow()
		taker.expect("3")
		old.cut()
		h.expect(t, "A unreserve u")
	})
}

func TestAPodIsReservedWhenAStreamThatHasEndedHasTakenItBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := new(history)
		a := stepping("A", h)
		a.Unreserve = func(_ context.Context, p *Placement) {
			time.Sleep(300 * time.Millisecond)
			if p.UID == "slow" {
				time.Sleep(placeserver.TakeBackTime)
			}
			h.add("unreserved %s", p.UID)
		}
		client, _ := inMemory(t, a)
		old := begin(t, client)
		old.step(reserve, "u", "A")
		old.step(reserve, "slow", "A")
		synctest.Wait()
		h.take()
		old.cut()
		next := begin(t, client)
		next.step(reserve, "u", "A")
		next.step(reserve, "slow", "A")
		next.step(reserve, "other", "A")
		next.expect("4")
		h.expect(t, "A reserve other")
		time.Sleep(300 * time.Millisecond)
		next.expect("2")
		h.expect(t, "unreserved u", "A reserve u")
		time.Sleep(placeserver.TakeBackTime - 300*time.Millisecond - 1)
		next.expect()
		time.Sleep(time.Nanosecond)
		next.expect("3 error: " + placeserver.ErrLeft.Error())
		next.step(unreserve, "slow")
		time.Sleep(300 * time.Millisecond)
		h.expect(t, "unreserved slow")
		next.step(reserve, "slow", "A")
		next.expect("5", "6")
	})
}

func TestStepsAreOfThePodsProfile(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := new(history)
		a := stepping("A", h)
		a.Configure = func(arguments json.RawMessage) (Plugin, error) {
			with := stepping("with "+string(arguments), h)
			if string(arguments) == `"less"` {
				with.PostBind = nil
			}
			return with, nil
		}
		client, _ := inMemory(t, a)
		profile := func(name, arguments string) *pluginv1.Profile {
			return &pluginv1.Profile{SchedulerName: name, Arguments: []*pluginv1.PluginArguments{{Plugin: "A", Json: []byte(arguments)}}}
		}
		p := begin(t, client, profile("one", `1`), profile("less", `"less"`))
		step := func(step pluginv1.Step, profile string) {
			of := placed(profile)
			of.SchedulerName = profile
			p.request(&pluginv1.PlaceRequest{Placement: of, Step: step, Plugins: []string{"A"}})
			synctest.Wait()
		}
		step(reserve, "one")
		step(reserve, "none")
		step(reserve, "less")
		step(unreserve, "less")
		p.expect("2", "3", `4 error: running Reserve plugin "A": its arguments in profile less: with them it has other functions than without`, "5")
		h.expect(t, "with 1 reserve one", "A reserve none")
	})
}

func TestStepsThatMakeNoSenseEndTheStream(t *testing.T) {
	of := func(change func(*pluginv1.Placement)) *pluginv1.PlaceRequest {
		told := placed("u")
		change(told)
		return &pluginv1.PlaceRequest{Placement: told, Step: reserve}
	}
	steps := func(steps ...pluginv1.Step) (out []*pluginv1.PlaceRequest) {
		out = append(out, &pluginv1.PlaceRequest{})
		for _, step := range steps {
			out = append(out, &pluginv1.PlaceRequest{Placement: placed("u"), Step: step})
		}
		return out
	}
	then := func(req *pluginv1.PlaceRequest) []*pluginv1.PlaceRequest { return []*pluginv1.PlaceRequest{{}, req} }
	elsewhere := of(func(p *pluginv1.Placement) { p.Node = "elsewhere" })
	elsewhere.Step = permit
	for _, tt := range []struct {
		want     string
		requests []*pluginv1.PlaceRequest
	}{
		{"id: 2: want 1", []*pluginv1.PlaceRequest{{Id: 2}}},
		{"id: 1: want 2", then(&pluginv1.PlaceRequest{Id: 1})},
		{"placement: the first request has none", []*pluginv1.PlaceRequest{{Placement: placed("u")}}},
		{"step: the first request has none", []*pluginv1.PlaceRequest{{Step: reserve}}},
		{"plugins: the first request has none", []*pluginv1.PlaceRequest{{Plugins: []string{"A"}}}},
		{"profiles: profiles are told in the first request only", then(&pluginv1.PlaceRequest{Profiles: []*pluginv1.Profile{{}}})},
		{"placement: want one", then(&pluginv1.PlaceRequest{Step: reserve})},
		{"placement.uid: want one", then(of(func(p *pluginv1.Placement) { p.Uid = "" }))},
		{"placement.namespace: want one", then(of(func(p *pluginv1.Placement) { p.Namespace = "" }))},
		{"placement.name: want one", then(of(func(p *pluginv1.Placement) { p.Name = "" }))},
		{"placement.node: want one", then(of(func(p *pluginv1.Placement) { p.Node = "" }))},
		{"placement.node: want none", steps(preEnqueue)},
		{`placement.node: pod "u" is reserved on node "node-u"`, append(steps(reserve), elsewhere)},
		{"step: there is no step 0", steps(0)},
		{"step: there is no step 9", steps(9)},
		{`plugins[1]: there is no plugin "X" that reserves`, then(&pluginv1.PlaceRequest{Placement: placed("u"), Step: reserve, Plugins: []string{"A", "X"}})},
		{`plugins[0]: there is no plugin "F" that permits`, then(&pluginv1.PlaceRequest{Placement: placed("u"), Step: permit, Plugins: []string{"F"}})},
		{`plugins[0]: there is no plugin "F" that says which pods may be tried`, then(&pluginv1.PlaceRequest{
			Placement: &pluginv1.Placement{Uid: "u", Namespace: "ns", Name: "p"}, Step: preEnqueue, Plugins: []string{"F"},
		})},
		{`plugins[0]: there is no plugin "F" that sorts the queue`, then(&pluginv1.PlaceRequest{
			Placement: &pluginv1.Placement{Uid: "u", Namespace: "ns", Name: "p"}, Step: queueSort, Plugins: []string{"F"}, Queued: new(pluginv1.Queued),
		})},
		{`queued: it is there with STEP_QUEUE_SORT, and with that alone`, then(&pluginv1.PlaceRequest{Placement: placed("u"), Step: reserve, Plugins: []string{"A"}, Queued: new(pluginv1.Queued)})},
		{`queued: it is there with STEP_QUEUE_SORT, and with that alone`, then(&pluginv1.PlaceRequest{Placement: &pluginv1.Placement{Uid: "u", Namespace: "ns", Name: "p"}, Step: queueSort, Plugins: []string{"S"}})},
		{`plugins: want one: the queue has one order`, then(&pluginv1.PlaceRequest{Placement: &pluginv1.Placement{Uid: "u", Namespace: "ns", Name: "p"}, Step: queueSort, Queued: new(pluginv1.Queued)})},
		{`plugins[1]: "A" is there twice`, then(&pluginv1.PlaceRequest{Placement: placed("u"), Step: postBind, Plugins: []string{"A", "A"}})},
		{`placement.uid: pod "u" is reserved already`, steps(reserve, reserve)},
		{`placement.uid: pod "u" is not reserved`, steps(permit)},
		{`placement.uid: pod "u" is not reserved`, steps(reserve, unreserve, preBind)},
		{`step: it has been asked about pod "u"`, steps(reserve, permit, permit)},
	} {
		bubble.Test(t, func(t *testing.T) {
			client, _ := inMemory(t, stepping("A", new(history)), Plugin{Name: "F", Filter: refusing("no")}, Plugin{Name: "S", SortKey: func(context.Context, *Placement, Queued) (int64, error) { return 1, nil }})
			p := opened(t, client)
			for _, req := range tt.requests {
				p.request(req)
			}
			if err := p.ended(); status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != tt.want {
				t.Errorf("the stream ended with %v, want %q", err, tt.want)
			}
		})
	}
}

func TestStepsBehindOneThatDoesNotEndAreBounded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := stepping("A", new(history))
		a.Reserve = func(ctx context.Context, _ *Placement) (*Rejection, error) {
			time.Sleep(time.Minute)
			return nil, nil
		}
		client, _ := inMemory(t, a)
		p := begin(t, client)
		p.step(reserve, "u", "A")
		synctest.Wait()
		for range placeserver.MaxBehind {
			p.step(preBind, "u", "A")
		}
		if err := p.ended(); err != nil {
			t.Fatalf("the stream ended: %v", err)
		}
		p.step(preBind, "u", "A")
		time.Sleep(time.Minute)
		if err := p.ended(); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), `8 steps of pod "u" wait`) {
			t.Errorf("the stream ended with %v, want INVALID_ARGUMENT", err)
		}
	})
}

func TestAPlacementOfNoStreamIsQuiet(t *testing.T) {
	p := &Placement{UID: "u"} // as tests of plugins make it
	p.Allow()
	p.Reject("no")
	if _, err := p.Pod(); err == nil {
		t.Error("there is a pod")
	}
	if err := p.Annotate("example.com/a", "1"); err == nil || p.Annotations() != nil {
		t.Error("something is chosen")
	}
}

// chooser is a plugin that chooses an annotation in Reserve, and notes what has been chosen at each step.
func chooser(name, annotation string, h *history, value *string) Plugin {
	note := func(point string, p *Placement) { h.add("%s %s: %v", name, point, p.Annotations()) }
	choose := func(p *Placement, annotation, value string) {
		if err := p.Annotate(annotation, value); err != nil {
			h.add("%s: %v", name, err)
		}
	}
	return Plugin{
		Name: name,
		Reserve: func(_ context.Context, p *Placement) (*Rejection, error) {
			note("reserve", p)
			choose(p, annotation, *value)
			return nil, nil
		},
		Unreserve: func(_ context.Context, p *Placement) { note("unreserve", p) },
		PreBind: func(_ context.Context, p *Placement) (*Rejection, error) {
			note("preBind", p)
			choose(p, "example.com/late", "1")
			return nil, nil
		},
	}
}

func TestAPluginChoosesAnnotationsForAPod(t *testing.T) {
	const cards, other = "example.com/cards", "example.com/other"
	bubble.Test(t, func(t *testing.T) {
		h, one, two := new(history), "1", "2"
		fails := Plugin{Name: "Fails", Unreserve: func(context.Context, *Placement) {}, Reserve: func(context.Context, *Placement) (*Rejection, error) {
			return &Rejection{Reason: "no"}, nil
		}}
		client, _ := inMemory(t, chooser("A", cards, h, &one), chooser("B", other, h, &two), chooser("C", cards, h, &two), chooser("D", "kubernetes.io/x", h, &one), fails)
		p := begin(t, client)
		p.step(reserve, "u", "A", "B", "C", "D")
		p.expect("2 annotations map[example.com/cards:1 example.com/other:2]")
		h.expect(t, "A reserve: map[]", "B reserve: map[example.com/cards:1]", "C reserve: map[example.com/cards:1 example.com/other:2]",
			`C: annotation "example.com/cards" has been chosen already, with another value`,
			"D reserve: map[example.com/cards:1 example.com/other:2]", `D: annotation "kubernetes.io/x": names of kubernetes.io are Kubernetes' own`)
		p.step(preBind, "u", "A")
		p.expect("3")
		p.step(unreserve, "u", "A")
		p.expect("4")
		h.expect(t, "A preBind: map[example.com/cards:1 example.com/other:2]", `A: annotation "example.com/late": it is only chosen while the pod is reserved`,
			"A unreserve: map[example.com/cards:1 example.com/other:2]")
		// What one has chosen is known when it is taken back because another one rejects; nobody else hears of it.
		p.step(reserve, "u", "A", "Fails")
		p.expect("5 Fails: no")
		p.step(unreserve, "u", "A")
		p.expect("6")
		h.expect(t, "A reserve: map[]", "A unreserve: map[example.com/cards:1]")
	})
}

func TestNothingIsChosenForABinderThatDoesNotWriteIt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h, one := new(history), "1"
		client, _ := inMemory(t, chooser("A", "example.com/cards", h, &one))
		p := opened(t, client)
		p.request(&pluginv1.PlaceRequest{})
		p.step(reserve, "u", "A")
		p.expect("2")
		h.expect(t, "A reserve: map[]", `A: annotation "example.com/cards": the binder is of a release that writes none`)
	})
}

func TestWhatWasChosenStands(t *testing.T) {
	const cards = "example.com/cards"
	bubble.Test(t, func(t *testing.T) {
		h, value := new(history), "1"
		stood := make(chan bool, 3)
		p := chooser("A", cards, h, &value)
		choose := p.Reserve
		p.Reserve = func(ctx context.Context, p *Placement) (*Rejection, error) {
			stood <- p.Stands
			return choose(ctx, p)
		}
		client, _ := inMemory(t, p)
		s := begin(t, client)
		of := func(uid string, annotations map[string]string) *pluginv1.Placement {
			told := placed(uid)
			told.Stands, told.Annotations = true, annotations
			return told
		}
		s.request(&pluginv1.PlaceRequest{Step: reserve, Plugins: []string{"A"}, Placement: of("same", map[string]string{cards: "1"})})
		s.expect("2")
		h.expect(t, "A reserve: map[example.com/cards:1]")
		s.request(&pluginv1.PlaceRequest{Step: reserve, Plugins: []string{"A"}, Placement: of("different", map[string]string{cards: "2"})})
		s.expect("3")
		h.expect(t, "A reserve: map[example.com/cards:2]", `A: annotation "example.com/cards" has been chosen already, with another value`)
		s.request(&pluginv1.PlaceRequest{Step: reserve, Plugins: []string{"A"}, Placement: of("none", nil)})
		s.expect("4")
		h.expect(t, "A reserve: map[]", `A: annotation "example.com/cards": what was chosen for the pod is recorded, and nothing else is chosen`)
		for range 3 {
			if !<-stood {
				t.Error("it does not stand")
			}
		}
	})
}

// A pod that an ended stream has still is not waited for when it is given back.
func TestWhoWaitsForAnEarlierStreamEndsWithThePlacement(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := new(history)
		a := stepping("A", h)
		a.Unreserve = func(ctx context.Context, _ *Placement) { <-ctx.Done() }
		client, _ := inMemory(t, a)
		old := begin(t, client)
		old.step(reserve, "u", "A")
		old.expect("2")
		old.cut()
		next := begin(t, client)
		next.step(reserve, "u", "A")
		next.expect()
		next.step(unreserve, "u")
		next.expect("2 error: the placement is given back", "3")
		h.expect(t, "A reserve u")
	})
}

// What is taken back has seconds, whatever becomes of its stream, and does not come all at a time.
func TestWhatIsTakenBackHasItsTimeAndItsTurn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const many = 2 * placeserver.AtOnce
		var began, running atomic.Int32
		goOn := make(chan struct{})
		h := new(history)
		a := stepping("A", h)
		a.Unreserve = func(ctx context.Context, _ *Placement) {
			if began.Add(1) > 1 {
				running.Add(1)
				<-goOn
				running.Add(-1)
				return
			}
			until, ok := ctx.Deadline()
			h.add("it has %v %v", time.Until(until), ok)
			<-goOn
			h.add("it goes on: %v", ctx.Err())
		}
		client, _ := inMemory(t, a)
		p := begin(t, client)
		p.step(unreserve, "first", "A")
		h.expect(t, fmt.Sprintf("it has %v true", placeserver.TakeBackTime))
		for i := range many {
			p.step(unreserve, fmt.Sprint(i), "A")
		}
		p.expect()
		if got := running.Load(); got != placeserver.AtOnce-1 {
			t.Errorf("beside the first one, %d are taken back at a time, want %d", got, placeserver.AtOnce-1)
		}
		p.cut()
		synctest.Wait()
		close(goOn)
		h.expect(t, "it goes on: <nil>")
		if got := began.Load(); got != many+1 {
			t.Errorf("%d have been taken back, want %d", got, many+1)
		}
	})
}

// Nor does one wait for a turn that is given back meanwhile.
func TestWhoWaitsForATurnEndsWithThePlacement(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		a := stepping("A", new(history))
		a.Reserve = func(context.Context, *Placement) (*Rejection, error) {
			<-goOn
			return nil, nil
		}
		client, _ := inMemory(t, a)
		p := begin(t, client)
		for i := range placeserver.AtOnce {
			p.step(reserve, fmt.Sprint(i), "A")
		}
		p.expect()
		p.step(reserve, "late", "A")
		p.expect()
		p.step(unreserve, "late")
		p.expect(fmt.Sprintf(`%d error: running Reserve plugin "A": the placement is given back`, p.last-1), fmt.Sprint(p.last))
		close(goOn)
		if got := len(p.answers()); got != placeserver.AtOnce {
			t.Errorf("%d answers, want %d", got, placeserver.AtOnce)
		}
	})
}

// wrapper is an error whose methods panic where it is nil.
type wrapper struct{ error }

func (w *wrapper) Unwrap() error { return w.error }
