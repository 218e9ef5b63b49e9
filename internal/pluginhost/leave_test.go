package pluginhost

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/cluster"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// later is how the clock of a service goes on, so that nobody waits for it to be asked again.
func later(h *Host, left *int) (pass func()) {
	s := h.services[0]
	now := time.Hour
	s.clock = func() time.Duration { return now }
	s.Leave = func() { *left++ }
	return func() { now += failedFor }
}

// One that has answered may be late, or restarted, once; one with which nothing can be begun is left.
func TestAProcessIsLeftThatHasAnsweredNothingSinceASessionBegan(t *testing.T) {
	var bad error // what a stream ends with; nil: the answer makes no sense, if that is wanted
	wrong := false
	s := &scripted{answer: func(_ int, r *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error) {
		out := honest(r)
		if wrong {
			out.Answers = nil
		}
		return out, bad
	}, plugins: []*pluginv1.PluginDescription{{Name: "P", Filters: true, Scores: true, Depends: &pluginv1.Dependencies{Milliseconds: 1}}}} // asked each time
	h := newHost(t, []cluster.Profile{profile("default-scheduler", "P")}, serviceOf("s", s.serve(t), "P"))
	left := 0
	pass := later(h, &left)
	st, subjects := world(t, 3)
	ask := func(what string, good bool, want int) {
		t.Helper()
		pass()
		if _, err := judge(t, h, st, subjects[0]); (err == nil) != good {
			t.Errorf("%s: %v", what, err)
		}
		if left != want {
			t.Errorf("%s: it has been left %d times, want %d", what, left, want)
		}
	}
	ask("a good answer", true, 0)
	wrong = true
	ask("nonsense behind a good answer", false, 0)
	ask("nonsense at once", false, 1)
	ask("and again", false, 2)
	wrong = false
	ask("it is well again", true, 2)
	bad = status.Error(codes.Internal, "out of order")
	ask("it fails behind a good answer", false, 2)
	ask("it fails at once", false, 3)
	bad = nil
	s.plugins = nil
	ask("it has not the plugin", false, 4)
}

func TestAProcessIsLeftOnWhichNoPlacementsAreTold(t *testing.T) {
	wrong := false
	s := &stepper{answer: func(*pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
		if wrong {
			return []*pluginv1.PlaceResponse{{Id: 99}}
		}
		return []*pluginv1.PlaceResponse{{}}
	}}
	h := hosting(t, s, time.Minute)
	left := 0
	pass := later(h, &left)
	reserve := func(what string, good bool, want int) {
		t.Helper()
		pass()
		pass()
		if err := h.Reserve(t.Context(), 1, placementOf(what), noPod); (err == nil) != good {
			t.Errorf("%s: %v", what, err)
		}
		if is := h.services[0].placing.now(); !good && is != nil {
			is.running.Wait()
		}
		_ = h.BeginPlacing(t.Context(), 1, "default-scheduler") // finds out how the last one has ended
		if left != want {
			t.Errorf("%s: it has been left %d times, want %d", what, left, want)
		}
	}
	reserve("a good answer", true, 0)
	wrong = true
	reserve("nonsense behind a good answer", false, 0)
	reserve("nonsense at once", false, 1)
	reserve("and again", false, 2)
	wrong = false
	reserve("it is well again", true, 2)
	h.EndPlacing(1)
	s.name = "Other"
	pass()
	if err := h.BeginPlacing(t.Context(), 2, "default-scheduler"); err == nil || left != 3 {
		t.Errorf("without the plugin: %v, it has been left %d times, want 3", err, left)
	}
}
