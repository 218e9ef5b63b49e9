package pluginhost

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/test/bubble"
)

func binds(r *pluginv1.PlaceRequest) bool { return r.GetStep() == pluginv1.Step_STEP_BIND }

func TestWhatComesOfABind(t *testing.T) {
	for name, tt := range map[string]struct {
		answer *pluginv1.PlaceResponse
		bound  bool
		want   string
		stated bool
	}{
		"it is bound":         {&pluginv1.PlaceResponse{}, true, "", false},
		"it is skipped":       {&pluginv1.PlaceResponse{Skipped: true}, false, "", false},
		"it is rejected":      {&pluginv1.PlaceResponse{Rejection: &pluginv1.Rejection{Plugin: "P", Reason: "no"}}, false, "no", true},
		"it fails":            {&pluginv1.PlaceResponse{Error: "ill"}, false, "ill", true},
		"skipped, and failed": {&pluginv1.PlaceResponse{Skipped: true, Error: "ill"}, false, "skipped: only a bind is", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := &stepper{answer: func(r *pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
				if binds(r) {
					return []*pluginv1.PlaceResponse{tt.answer}
				}
				return []*pluginv1.PlaceResponse{{}}
			}}
			h := hosting(t, s, time.Minute)
			bound, err := h.Bind(t.Context(), 1, placementOf("p"), noPod)
			if bound != tt.bound || (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) || Stated(err) != tt.stated {
				t.Errorf("bound %v, %v, stated %v; want %v, %q, %v", bound, err, Stated(err), tt.bound, tt.want, tt.stated)
			}
			if told := s.requests(); len(told) < 3 || told[1].GetStep() != pluginv1.Step_STEP_RESERVE || !binds(told[2]) {
				t.Errorf("told %v, want it reserved first", told)
			}
		})
	}
}

// Who has not waited for a bind to its end waits for the same one when it is tried again.
func TestABindThatIsUnderWayIsNotBegunAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		s := &stepper{answer: func(r *pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
			if binds(r) {
				<-goOn
			}
			return []*pluginv1.PlaceResponse{{}}
		}}
		h := hosting(t, s, time.Hour)
		bind := func(ctx context.Context) <-chan error {
			done := make(chan error, 1)
			go func() {
				bound, err := h.Bind(ctx, 1, placementOf("p"), noPod)
				if !bound && err == nil {
					err = errors.New("it is not bound")
				}
				done <- err
			}()
			synctest.Wait()
			return done
		}
		ctx, cancel := context.WithCancel(t.Context())
		first := bind(ctx)
		cancel()
		if err := <-first; !errors.Is(err, context.Canceled) || Stated(err) {
			t.Errorf("cut off: %v", err)
		}
		second := bind(t.Context())
		close(goOn)
		if err := <-second; err != nil {
			t.Errorf("again: %v", err)
		}
		n := 0
		for _, r := range s.requests() {
			if binds(r) {
				n++
			}
		}
		if n != 1 {
			t.Errorf("the service was to bind it %d times", n)
		}
	})
}

// Nobody binds for a Berth without an API server: what is bound there nobody would hear of.
func TestABindTakesAnAPIServer(t *testing.T) {
	_, err := New(Config{
		Services: []Service{{Name: "s", Plugins: []Plugin{{Name: "P"}}}}, Profiles: []cluster.Profile{{SchedulerName: "default-scheduler"}},
		Steps: map[string]Steps{"default-scheduler": {Bind: []string{"P"}}}, Log: slog.New(slog.DiscardHandler),
	})
	if err == nil || !strings.Contains(err.Error(), `plugin service "s": there is no API server to bind pods in`) {
		t.Errorf("error %v", err)
	}
}

// A bind that takes longer than the service's time takes nothing from others: what is known of it is asked again, and it goes on.
func TestABindThatIsLateHarmsNobodyElse(t *testing.T) {
	for _, ignorable := range []bool{false, true} {
		bubble.Test(t, func(t *testing.T) {
			s := &stepper{answer: func(r *pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
				if binds(r) {
					return nil
				}
				return []*pluginv1.PlaceResponse{{}}
			}}
			h := hosting(t, s, time.Minute)
			h.services[0].Ignorable = ignorable
			for range 3 {
				if bound, err := h.Bind(t.Context(), 1, placementOf("p"), noPod); bound || !errors.Is(err, errLate) || Stated(err) {
					t.Errorf("late: bound %v, %v", bound, err)
				}
			}
			if _, err := h.Reserve(t.Context(), 1, placementOf("q"), noPod); err != nil {
				t.Errorf("another pod: %v", err)
			}
			var got []string
			for _, r := range s.requests() {
				got = append(got, r.GetStep().String()+" "+r.GetPlacement().GetName())
			}
			if want := []string{"STEP_UNSPECIFIED ", "STEP_RESERVE p", "STEP_BIND p", "STEP_RESERVE q"}; !slices.Equal(got, want) {
				t.Errorf("told %q, want %q", got, want)
			}
		})
	}
}

// That nobody waits any more is no refusal: an earlier try may be under way still.
func TestABindThatIsCutOffIsNotRefused(t *testing.T) {
	s := new(stepper)
	h := hosting(t, s, time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if bound, err := h.Bind(ctx, 1, placementOf("p"), noPod); bound || err == nil || Stated(err) {
		t.Errorf("bound %v, %v, stated %v", bound, err, Stated(err))
	}
	if slices.ContainsFunc(s.requests(), binds) {
		t.Errorf("told %v", s.requests())
	}
}

// What a late bind has come to is heard when it is tried again, also if it has been answered meanwhile.
func TestALateAnswerToABindIsHeard(t *testing.T) {
	for want, answer := range map[string]*pluginv1.PlaceResponse{"": {}, "no": {Rejection: &pluginv1.Rejection{Plugin: "P", Reason: "no"}}} {
		bubble.Test(t, func(t *testing.T) {
			goOn := make(chan struct{})
			s := &stepper{answer: func(r *pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
				if binds(r) {
					<-goOn
					return []*pluginv1.PlaceResponse{answer}
				}
				return []*pluginv1.PlaceResponse{{}}
			}}
			h := hosting(t, s, time.Minute)
			if _, err := h.Bind(t.Context(), 1, placementOf("p"), noPod); !errors.Is(err, errLate) {
				t.Fatalf("late: %v", err)
			}
			close(goOn)
			synctest.Wait()
			bound, err := h.Bind(t.Context(), 1, placementOf("p"), noPod)
			if bound != (want == "") || err != nil && !strings.Contains(err.Error(), want) || (err == nil) != (want == "") {
				t.Errorf("again: %v, %v, want %q", bound, err, want)
			}
			n := 0
			for _, r := range s.requests() {
				if binds(r) {
					n++
				}
			}
			if n != 1 || len(h.services[0].placing.now().binding) != 0 {
				t.Errorf("the service was to bind it %d times; %d binds are kept", n, len(h.services[0].placing.now().binding))
			}
		})
	}
}

// Who has refused to reserve a pod is not asked to bind it.
func TestAPodThatIsNotReservedIsNotBound(t *testing.T) {
	s := &stepper{answer: func(r *pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
		return []*pluginv1.PlaceResponse{{Rejection: &pluginv1.Rejection{Plugin: "P", Reason: "no"}}}
	}}
	h := hosting(t, s, time.Minute)
	for range 2 {
		if bound, err := h.Bind(t.Context(), 1, placementOf("p"), noPod); bound || !errors.As(err, new(Rejection)) || !Stated(err) {
			t.Errorf("bound %v, %v", bound, err)
		}
	}
	if slices.ContainsFunc(s.requests(), binds) {
		t.Errorf("told %v", s.requests())
	}
}
