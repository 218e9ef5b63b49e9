package pluginhost

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// later is how the clock of a service goes on, so that nobody waits for it to be asked again.
func later(h *Host, left *int) (pass func()) {
	s := h.services[0]
	now := time.Hour
	s.clock = func() time.Duration { return now }
	s.Processes = alone{left}
	return func() { now += failedFor }
}

// alone are processes of which the same one is connected all the time, with how often it has been left.
type alone struct{ left *int }

func (a alone) Connected() uint64 { return 7 }

func (a alone) Leave(connection uint64) {
	if connection == 7 {
		*a.left++
	}
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
	ask("nonsense at once", false, 0)
	ask("and again", false, 1)
	wrong = false
	ask("it is well again", true, 1)
	bad = status.Error(codes.Internal, "out of order")
	ask("it fails behind a good answer", false, 1)
	ask("it fails at once", false, 1)
	bad = nil
	s.plugins = nil
	ask("it has not the plugin", false, 2)
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
		if _, err := h.Reserve(t.Context(), 1, placementOf(what), noPod); (err == nil) != good {
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
	reserve("nonsense at once", false, 0)
	reserve("and again", false, 1)
	wrong = false
	reserve("it is well again", true, 1)
	h.EndPlacing(1)
	s.name = "Other"
	pass()
	for want := range 2 {
		pass()
		if err := h.BeginPlacing(t.Context(), 2, "default-scheduler"); err == nil || left != 1+want {
			t.Errorf("without the plugin: %v, it has been left %d times, want %d", err, left, 1+want)
		}
	}
}

// One that describes itself, and takes no step, as one that only stands by, is left.
func TestAProcessIsLeftThatEndsEachStreamOfPlacements(t *testing.T) {
	s := &stepper{ends: status.Error(codes.Unavailable, "it stands by")}
	h := hosting(t, s, time.Minute)
	left := 0
	pass := later(h, &left)
	for range 2 * mostDoubts {
		pass()
		pass()
		if _, err := h.Reserve(t.Context(), 1, placementOf("p"), noPod); err == nil {
			t.Fatal("it has reserved something")
		}
		if is := h.services[0].placing.now(); is != nil {
			is.running.Wait()
		}
		_ = h.BeginPlacing(t.Context(), 1, "default-scheduler")
	}
	if left != 2 {
		t.Errorf("it has been left %d times, want 2", left)
	}
}

// That a pod cannot be read which stands is no fault of the process that is to be told of it.
func TestAProcessIsNotLeftForAPodThatCannotBeRead(t *testing.T) {
	s := &stepper{objects: true}
	h := hosting(t, s, time.Minute)
	h.services[0].Objects = true
	left := 0
	pass := later(h, &left)
	h.Stands(t.Context(), 1, func() []Standing {
		return []Standing{{placementOf("p"), func(context.Context) (*corev1.Pod, error) { return nil, errors.New("the API server is slow") }}}
	})
	for range 2 * mostDoubts {
		pass()
		if err := h.BeginPlacing(t.Context(), 1, "default-scheduler"); err == nil {
			t.Fatal("it has been told of the placement")
		}
	}
	if left != 0 {
		t.Errorf("it has been left %d times", left)
	}
}

// moving are processes of which another one is connected after each call of Connected but the first ones.
type moving struct{ calls, still int }

func (m *moving) Connected() uint64 {
	if m.calls++; m.calls <= m.still {
		return 1
	}
	return 2
}

func (*moving) Leave(uint64) {}

// What one process has described itself as says nothing of another one, to which a stream has been opened.
func TestAStreamIsOfTheProcessThatHasDescribedItself(t *testing.T) {
	s := new(stepper)
	h := hosting(t, s, time.Minute)
	is := &moving{still: 4} // it is looked at before and behind Describe, and when the stream is open
	h.services[0].Processes = is
	for still := range 5 {
		is.calls, is.still = 0, still
		h.EndPlacing(1)
		err := h.BeginPlacing(t.Context(), 1, "default-scheduler")
		if wrong := is.calls > still && still == 3; (err != nil) != wrong {
			t.Errorf("with another process behind %d looks of %d: %v", still, is.calls, err)
		}
		h.services[0].failedToPlace(0, nil)
	}
}

// What has gone wrong long ago counts no more when a process has done well since.
func TestOldDoubtsDoNotCount(t *testing.T) {
	left := 0
	var d doubts
	for range 5 {
		d.note(7, false, alone{&left})
		d.note(7, true, alone{&left})
	}
	if d.note(7, false, alone{&left}); left != 0 {
		t.Errorf("it has been left %d times", left)
	}
	d.note(8, false, alone{&left}) // another process
	if d.note(7, false, alone{&left}); left != 0 {
		t.Errorf("it has been left %d times for another one's fault", left)
	}
	if d.note(7, false, alone{&left}); left != 1 {
		t.Errorf("it has been left %d times, want once", left)
	}
}
