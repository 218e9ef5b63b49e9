package pluginhost

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/test/bubble"
)

// Who sleeps in these tests does so in a bubble, where that takes no real time: it is how long a service takes.

// gating returns a host whose profile has plugins at PreEnqueue, those of each of some services.
func gating(t *testing.T, plugins []string, timeout time.Duration, services ...*stepper) *Host {
	t.Helper()
	profile := engine.DefaultProfile("default-scheduler")
	profile.PreEnqueues = plugins
	cfg := Config{Profiles: []cluster.Profile{profile}, Objects: noNodes{}, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	for i, s := range services {
		service := Service{Name: fmt.Sprint("s", i), Conn: s.serve(t), Timeout: timeout, Objects: s.objects, Plugins: []Plugin{{Name: s.name}}}
		for _, name := range s.others {
			service.Plugins = append(service.Plugins, Plugin{Name: name})
		}
		cfg.Services = append(cfg.Services, service)
	}
	h, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.EndPlacing(math.MaxInt64) })
	return h
}

func entering(names ...string) (out []Entering) {
	for _, name := range names {
		out = append(out, Entering{UID: "uid of " + name, Namespace: "n", Name: name, Pod: noPod})
	}
	return out
}

// said writes what has come of each pod.
func said(entrances []Entrance) (out []string) {
	for _, e := range entrances {
		var no Rejection
		switch {
		case e.Err == nil:
			out = append(out, "in")
		case errors.As(e.Err, &no):
			out = append(out, fmt.Sprintf("%s: %s, told %v", no.Plugin, no.Reason, e.Told))
		default:
			out = append(out, "error: "+e.Err.Error())
		}
	}
	return out
}

// against answers pods whose names begin with a letter with a rejection by that plugin, or with an error.
func against(answers map[string]*pluginv1.PlaceResponse) func(*pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
	return func(r *pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
		if answer := answers[r.GetPlacement().GetName()]; answer != nil {
			return []*pluginv1.PlaceResponse{{Rejection: answer.GetRejection(), Error: answer.GetError(), Skipped: answer.GetSkipped(), WaitsMilliseconds: answer.GetWaitsMilliseconds()}}
		}
		return []*pluginv1.PlaceResponse{{}}
	}
}

func rejects(plugin, why string) *pluginv1.PlaceResponse {
	return &pluginv1.PlaceResponse{Rejection: &pluginv1.Rejection{Plugin: plugin, Reason: why}}
}

// The service of the plugin that comes first in the profile is asked first, about all pods at once, and the next one about those that are left.
func TestWhoMayBeTriedIsAskedInTheProfilesOrder(t *testing.T) {
	first := &stepper{name: "A", others: []string{"C"}, answer: against(map[string]*pluginv1.PlaceResponse{"p1": rejects("C", "not yet")})}
	second := &stepper{name: "B", tells: true, answer: against(map[string]*pluginv1.PlaceResponse{"p2": rejects("B", "no quota"), "p3": {Error: "no idea"}})}
	h := gating(t, []string{"A", "B", "C"}, time.Minute, second, first)
	got := said(h.PreEnqueue(t.Context(), 1, "default-scheduler", entering("p0", "p1", "p2", "p3")))
	if diff := cmp.Diff([]string{"in", "C: not yet, told false", "B: no quota, told true", `error: plugin service "s0": no idea`}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	asked := func(s *stepper) (out []string) {
		for _, r := range s.requests()[1:] {
			p := r.GetPlacement()
			out = append(out, fmt.Sprint(r.GetStep(), r.GetPlugins(), p.GetUid(), " ", p.GetNamespace(), " ", p.GetName(), " ", p.GetSchedulerName(), " ", p.GetNode(), len(p.GetObject())))
		}
		return out
	}
	want := func(plugins string, names ...string) (out []string) {
		for _, name := range names {
			out = append(out, fmt.Sprintf("STEP_PRE_ENQUEUE %suid of %s n %[2]s default-scheduler 0", plugins, name))
		}
		return out
	}
	if diff := cmp.Diff(want("[A C]", "p0", "p1", "p2", "p3"), asked(first)); diff != "" {
		t.Errorf("the first service was asked (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want("[B]", "p0", "p2", "p3"), asked(second)); diff != "" {
		t.Errorf("the second service was asked (-want +got):\n%s", diff)
	}
	if calls, placed := left(h); calls != 0 || placed != 0 {
		t.Errorf("%d calls and %d placements are left", calls, placed)
	}
}

// A service that is ignorable keeps nobody out by failing; one that is not does.
func TestWhoIsLetInWhenAServiceFails(t *testing.T) {
	for name, tt := range map[string]struct {
		answer    *pluginv1.PlaceResponse
		ignorable bool
		want      string
	}{
		"it waits":                           {&pluginv1.PlaceResponse{WaitsMilliseconds: 1}, false, `error: plugin service "s0": its answer makes no sense: waits_milliseconds: only a permit waits`},
		"it skips":                           {&pluginv1.PlaceResponse{Skipped: true}, false, `error: plugin service "s0": its answer makes no sense: skipped: only a bind is, that is neither rejected nor has failed`},
		"a plugin that was not asked":        {rejects("Q", "no"), false, `error: plugin service "s0": its answer makes no sense: rejection.plugin: "Q" was not asked`},
		"the same, ignorable":                {rejects("Q", "no"), true, "in"},
		"it rejects, ignorable":              {rejects("P", "no"), true, "P: no, told false"},
		"a plugin of it has failed":          {&pluginv1.PlaceResponse{Error: "running PreEnqueue plugin \"P\": no"}, true, `error: running PreEnqueue plugin "P": no`},
		"something else has, and it may not": {&pluginv1.PlaceResponse{Error: "no"}, true, `error: plugin service "s0": no`},
	} {
		t.Run(name, func(t *testing.T) {
			s := &stepper{name: "P", answer: against(map[string]*pluginv1.PlaceResponse{"p": tt.answer})}
			h := gating(t, []string{"P"}, time.Minute, s)
			h.services[0].Ignorable = tt.ignorable
			if got := said(h.PreEnqueue(t.Context(), 1, "default-scheduler", entering("p"))); !slices.Equal(got, []string{tt.want}) {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// As long as answers come, a service may take its time for each of many; without one, nobody waits any more.
func TestAServiceMayTakeItsTimeForEachPodOfMany(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := &stepper{name: "P", answer: func(r *pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
			time.Sleep(40 * time.Second)
			if r.GetPlacement().GetName() == "never" {
				return nil
			}
			return []*pluginv1.PlaceResponse{{}}
		}}
		h := gating(t, []string{"P"}, time.Minute, s)
		began := time.Now()
		if got := said(h.PreEnqueue(t.Context(), 1, "default-scheduler", entering("a", "b", "c"))); !slices.Equal(got, []string{"in", "in", "in"}) {
			t.Errorf("%q", got)
		}
		if took := time.Since(began); took != 2*time.Minute {
			t.Errorf("it took %v", took)
		}
		late := `error: plugin service "s0": no answer within its timeout of 1m0s`
		if got := said(h.PreEnqueue(t.Context(), 1, "default-scheduler", entering("d", "never"))); !slices.Equal(got, []string{"in", late}) {
			t.Errorf("%q", got)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := said(h.PreEnqueue(t.Context(), 1, "default-scheduler", entering("e"))); !slices.Equal(got, []string{"in"}) {
			t.Errorf("on the next stream: %q", got)
		}
	})
}

// What a pod is that cannot be read keeps that pod out, and no other one; compiled-in plugins read it themselves.
func TestPodsAreSentToPluginsThatDependOnThem(t *testing.T) {
	for _, follows := range []bool{false, true} {
		s := &stepper{name: "P", objects: true}
		h := gating(t, []string{"P"}, time.Minute, s)
		h.services[0].Follows = follows
		pods := entering("gone", "broken", "p")
		pods[0].Pod = func(context.Context) (*corev1.Pod, error) { return nil, ErrPodGone }
		pods[2].Pod = func(context.Context) (*corev1.Pod, error) {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: types.UID("uid of p")}}, nil
		}
		out := h.PreEnqueue(t.Context(), 1, "default-scheduler", pods)
		told := s.requests()[1:]
		if follows {
			if got := said(out); !slices.Equal(got, []string{"in", "in", "in"}) || len(told) != 3 || len(told[2].GetPlacement().GetObject()) > 0 {
				t.Errorf("compiled in: %q, told %v", got, told)
			}
			continue
		}
		if !errors.Is(out[0].Err, ErrPodGone) || out[1].Err == nil || errors.Is(out[1].Err, ErrPodGone) || out[2].Err != nil {
			t.Errorf("%q", said(out))
		}
		if len(told) != 1 || !strings.Contains(string(told[0].GetPlacement().GetObject()), `"uid":"uid of p"`) {
			t.Errorf("told %v", told)
		}
	}
}

// A plugin that only says which pods may be tried has nothing to do with placements.
func TestWhoSaysWhoMayBeTriedTakesNoOtherStep(t *testing.T) {
	for _, follows := range []bool{false, true} {
		s := &stepper{name: "P"}
		profile := engine.DefaultProfile("default-scheduler")
		profile.PreEnqueues = []string{"P"}
		h, err := New(Config{
			Services: []Service{{Name: "s", Plugins: []Plugin{{Name: "P"}}, Conn: s.serve(t), Timeout: time.Minute, Follows: follows}}, Profiles: []cluster.Profile{profile},
			Objects: noNodes{}, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		if h.Asked("default-scheduler") != 0 || h.Places("default-scheduler") || h.Reserves("default-scheduler") || h.PreBinds("default-scheduler") || h.Binds("default-scheduler") != 0 {
			t.Errorf("follows %v: it has something to do with placements", follows)
		}
	}
}

// A service that does not describe what a profile has it do is told apart from one that fails: nobody is let in by that.
func TestAServiceWithoutThatPluginLetsNobodyIn(t *testing.T) {
	s := &stepper{name: "Q"}
	h := gating(t, []string{"P"}, time.Minute, &stepper{name: "P"})
	h.services[0].Conn, h.services[0].Ignorable = s.serve(t), true
	got := said(h.PreEnqueue(t.Context(), 1, "default-scheduler", entering("p")))
	if len(got) != 1 || !strings.Contains(got[0], `profiles have plugin "P" say which pods may be tried, and the service describes none of that name that does`) {
		t.Errorf("%q", got)
	}
}

// Who asks about a pod of which something is asked already, by somebody who has gone, is answered for himself: what was said then may be of before.
func TestAPodIsAskedAboutOnceAtATime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		goOn, n := make(chan struct{}), 0
		s := &stepper{name: "P", answer: func(*pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
			if n++; n == 1 {
				<-goOn
				return []*pluginv1.PlaceResponse{rejects("P", "not yet")}
			}
			return []*pluginv1.PlaceResponse{{}}
		}}
		h := gating(t, []string{"P"}, time.Hour, s)
		ask := func(ctx context.Context) <-chan []string {
			done := make(chan []string, 1)
			go func() { done <- said(h.PreEnqueue(ctx, 1, "default-scheduler", entering("p"))) }()
			synctest.Wait()
			return done
		}
		ctx, cancel := context.WithCancel(t.Context())
		first := ask(ctx)
		cancel()
		<-first
		second := ask(t.Context())
		if n := len(s.requests()); n != 2 { // the first of the stream, and that of who has gone
			t.Errorf("%d requests are sent while one is not answered", n)
		}
		close(goOn)
		if got := <-second; !slices.Equal(got, []string{"in"}) {
			t.Errorf("%q", got)
		}
	})
}

// Many shards ask at a time, and a service that answers one after the other has its time for each: it loses neither its stream, nor what is reserved on that.
func TestManyMayAskAServiceThatAnswersOneAfterTheOther(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := &stepper{name: "P", answer: func(*pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
			time.Sleep(10 * time.Millisecond)
			return []*pluginv1.PlaceResponse{{}}
		}}
		h := gating(t, []string{"P"}, time.Second, s)
		var shards sync.WaitGroup
		for shard := range 8 {
			shards.Go(func() {
				var names []string
				for i := range 64 {
					names = append(names, fmt.Sprint("p", shard, "-", i))
				}
				for _, got := range said(h.PreEnqueue(t.Context(), 1, "default-scheduler", entering(names...))) {
					if got != "in" {
						t.Errorf("shard %d: %s", shard, got)
					}
				}
			})
		}
		shards.Wait()
	})
}

// A service that does not answer about one pod keeps what is reserved on its stream, for a while; one that hangs in the end does not. Of a process with compiled-in plugins the stream ends at once, and with it the process.
func TestWhoDoesNotAnswerAboutOnePodKeepsItsStreamForAWhile(t *testing.T) {
	for _, follows := range []bool{false, true} {
		bubble.Test(t, func(t *testing.T) {
			s := &stepper{name: "P", answer: func(r *pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
				if r.GetPlacement().GetName() == "hangs" {
					return nil
				}
				return []*pluginv1.PlaceResponse{{}}
			}}
			h := gating(t, []string{"P"}, time.Second, s)
			h.services[0].Follows = follows
			ask := func(names ...string) string {
				return strings.Join(said(h.PreEnqueue(t.Context(), 1, "default-scheduler", entering(names...))), "; ")
			}
			const late = `error: plugin service "s0": no answer within its timeout of 1s`
			if got := ask("p", "hangs", "q"); got != "in; "+late+"; in" {
				t.Errorf("%s", got)
			}
			is := h.services[0].placing.now()
			if ended := is == nil; ended != follows {
				t.Fatalf("follows %v: the stream has ended: %v", follows, ended)
			}
			if follows {
				return
			}
			if got := ask("hangs", "p"); got != late+"; in" || len(s.requests()) != 5 {
				t.Errorf("again: %s; %d requests", got, len(s.requests()))
			}
			time.Sleep(2 * time.Minute)
			if got := ask("hangs"); !strings.HasPrefix(got, "error: ") || is.over() == nil {
				t.Errorf("in the end: %s; the stream has ended: %v", got, is.over())
			}
		})
	}
}

// An ignorable service that hangs keeps nobody out, whatever its timeout is.
func TestAnIgnorableServiceThatHangsKeepsNobodyOut(t *testing.T) {
	for _, timeout := range []time.Duration{time.Second, time.Minute} {
		bubble.Test(t, func(t *testing.T) {
			s := &stepper{name: "P", answer: func(*pluginv1.PlaceRequest) []*pluginv1.PlaceResponse { return nil }}
			h := gating(t, []string{"P"}, timeout, s)
			h.services[0].Ignorable = true
			if got := said(h.PreEnqueue(t.Context(), 1, "default-scheduler", entering("p", "q"))); !slices.Equal(got, []string{"in", "in"}) {
				t.Errorf("with a timeout of %v: %q", timeout, got)
			}
		})
	}
}

// A call that somebody has left takes none of the time of those that come behind it, and one that hangs holds nobody up for longer than that.
func TestACallThatIsLeftTakesNoTimeOfOthers(t *testing.T) {
	for name, tt := range map[string]struct {
		took    time.Duration // for a pod; 0: for ever
		follows bool
		want    string // of it, and of another one
		within  time.Duration
	}{
		"it is slow":                 {800 * time.Millisecond, false, "in; in", 3 * time.Second},
		"it is slow, compiled in":    {800 * time.Millisecond, true, "in; in", 3 * time.Second},
		"it never ends":              {0, false, `error: plugin service "s0": no answer within its timeout of 1s; error: plugin service "s0": no answer within its timeout of 1s`, 4 * time.Second},
		"it never ends, compiled in": {0, true, "", 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := &stepper{name: "P", answer: func(*pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
					if tt.took == 0 {
						return nil
					}
					time.Sleep(tt.took)
					return []*pluginv1.PlaceResponse{{}}
				}}
				h := gating(t, []string{"P"}, time.Second, s)
				h.services[0].Follows = tt.follows
				ctx, cancel := context.WithCancel(t.Context())
				go h.PreEnqueue(ctx, 1, "default-scheduler", entering("p"))
				synctest.Wait()
				cancel()
				synctest.Wait()
				began := time.Now()
				got := strings.Join(said(h.PreEnqueue(t.Context(), 1, "default-scheduler", entering("p", "q"))), "; ")
				if tt.want != "" && got != tt.want || time.Since(began) > tt.within {
					t.Errorf("%s, after %v; want %s within %v", got, time.Since(began), tt.want, tt.within)
				}
				if ended := h.services[0].placing.now() == nil; ended != (tt.follows && tt.took == 0) {
					t.Errorf("the stream has ended: %v", ended)
				}
			})
		})
	}
}

// The stream of a service that hangs ends, whoever is asked about, and however it is passed over.
func TestTheStreamOfAnIgnorableServiceThatHangsEnds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := &stepper{name: "P", answer: func(*pluginv1.PlaceRequest) []*pluginv1.PlaceResponse { return nil }}
		h := gating(t, []string{"P"}, time.Second, s)
		h.services[0].Ignorable = true
		var first *placeStream
		for i := range 120 {
			if got := said(h.PreEnqueue(t.Context(), 1, "default-scheduler", entering(fmt.Sprint("p", i)))); !slices.Equal(got, []string{"in"}) {
				t.Fatalf("%q", got)
			}
			if is := h.services[0].placing.now(); first == nil {
				first = is
			}
		}
		if first.over() == nil {
			t.Error("the stream goes on")
		}
	})
}
