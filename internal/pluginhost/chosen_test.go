package pluginhost

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

const cards = "example.com/cards"

// choosing answers a Reserve with annotations.
func choosing(annotations map[string]string) func(*pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
	return func(r *pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
		if r.GetStep() == pluginv1.Step_STEP_RESERVE {
			return []*pluginv1.PlaceResponse{{Annotations: annotations}}
		}
		return []*pluginv1.PlaceResponse{{}}
	}
}

// hostingTwo returns a host of two services, s and other, that reserve.
func hostingTwo(t *testing.T, s, other *stepper) *Host {
	t.Helper()
	other.name = "Q"
	both := []string{"P", "Q"}
	h, err := New(Config{
		Services: []Service{
			{Name: "s", Plugins: []Plugin{{Name: "P"}}, Conn: s.serve(t), Timeout: time.Minute, Ignorable: true, Annotations: []string{"example.com"}},
			{Name: "other", Plugins: []Plugin{{Name: "Q"}}, Conn: other.serve(t), Timeout: time.Minute, Ignorable: true, Annotations: []string{"example.com"}},
		},
		Profiles: []cluster.Profile{engine.DefaultProfile("default-scheduler")}, Steps: map[string]Steps{"default-scheduler": {Reserve: both}}, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.EndPlacing(math.MaxInt64) })
	return h
}

func TestWhatServicesChooseIsOfAllOfThem(t *testing.T) {
	s, other := &stepper{answer: choosing(map[string]string{cards: "1"})}, &stepper{answer: choosing(map[string]string{cards: "1", "example.com/other": "2"})}
	h := hostingTwo(t, s, other)
	p := placementOf("p")
	chosen, err := h.Reserve(t.Context(), 1, p, noPod)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{cards: "1", "example.com/other": "2"}, chosen.Annotations); diff != "" {
		t.Errorf("what is chosen (-want +got):\n%s", diff)
	}
	told := other.requests()[1].GetPlacement()
	if diff := cmp.Diff(map[string]string{cards: "1"}, told.GetAnnotations()); diff != "" || told.GetStands() {
		t.Errorf("what the second is told, stands %v (-want +got):\n%s", told.GetStands(), diff)
	}
	p.Chosen = chosen
	if w, err := h.Permit(t.Context(), 1, p, nil); w != nil || err != nil {
		t.Errorf("permit: %v, %v", w, err)
	}
}

// A service that chooses what cannot be makes the attempt fail, ignorable or not, and its stream goes on: it takes back what it has reserved.
func TestWhatCannotBeChosenFailsTheAttempt(t *testing.T) {
	for name, tt := range map[string]struct {
		first, second map[string]string
		want          string
	}{
		"a bad name":                    {map[string]string{"cards": "1"}, nil, `plugin service "s": annotations: annotation "cards": its name has no prefix`},
		"a name that it may not choose": {map[string]string{"other.example.com/cards": "1"}, nil, `plugin service "s": it chooses annotation "other.example.com/cards", and the configuration does not let it: its annotations have to have "other.example.com"`},
		"twice, differently":            {map[string]string{cards: "1"}, map[string]string{cards: "2"}, `plugin service "other" chooses annotation "example.com/cards" of the pod, which another plugin has chosen with another value`},
		"too much together":             {map[string]string{cards: strings.Repeat("x", 3000)}, map[string]string{"example.com/other": strings.Repeat("x", 3000)}, `plugin service "other", and others: annotations of 6034 bytes in all`},
	} {
		t.Run(name, func(t *testing.T) {
			s, other := &stepper{answer: choosing(tt.first)}, &stepper{answer: choosing(tt.second)}
			h := hostingTwo(t, s, other)
			if chosen, err := h.Reserve(t.Context(), 1, placementOf("p"), noPod); err == nil || !strings.Contains(err.Error(), tt.want) || chosen.Annotations != nil {
				t.Errorf("Reserve: %v, %v, want %s", chosen, err, tt.want)
			}
			h.Unreserve(t.Context(), placementOf("p"))
			if calls, placed := left(h); calls != 0 || placed != 0 {
				t.Errorf("%d calls and %d placements are left; -1: the stream has ended", calls, placed)
			}
			if last := s.requests()[len(s.requests())-1]; last.GetStep() != pluginv1.Step_STEP_UNRESERVE {
				t.Errorf("the last that it has heard is %v", last.GetStep())
			}
		})
	}
}

func TestAnnotationsOfOtherStepsEndTheStream(t *testing.T) {
	s := &stepper{answer: func(r *pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
		return []*pluginv1.PlaceResponse{{Annotations: map[string]string{cards: "1"}}}
	}}
	h := hosting(t, s, time.Minute)
	p := placementOf("p")
	if _, err := h.Reserve(t.Context(), 1, p, noPod); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Permit(t.Context(), 1, p, nil); err == nil || !strings.Contains(err.Error(), "annotations: only plugins that reserve a pod choose them") {
		t.Errorf("permit: %v", err)
	}
	if calls, _ := left(h); calls != -1 {
		t.Error("the stream goes on")
	}
}

// What an ignorable service has chosen it may choose for others when it has lost its stream: the placement does not come about. One that has chosen nothing is passed over.
func TestWhoHasChosenIsNotPassedOver(t *testing.T) {
	for _, chooses := range []bool{true, false} {
		s, other := &stepper{answer: choosing(map[bool]map[string]string{true: {cards: "1"}}[chooses])}, &stepper{answer: choosing(map[string]string{"example.com/other": "2"})}
		h := hostingTwo(t, s, other)
		p := placementOf("p")
		var err error
		if p.Chosen, err = h.Reserve(t.Context(), 1, p, noPod); err != nil {
			t.Fatal(err)
		}
		h.services[0].placing.now().end(errEnded)
		if _, err := h.Permit(t.Context(), 1, p, nil); errors.Is(err, errEnded) != chooses {
			t.Errorf("it has chosen: %v; permit: %v", chooses, err)
		}
	}
}

// Who does not reserve again what was chosen would take it for free: its stream does not begin as long as that stands.
func TestWhatWasChosenIsToldWithWhatStands(t *testing.T) {
	for name, tt := range map[string]struct {
		chooses map[string]string
		rejects bool
		want    string // "": the stream begins
	}{
		"the same":      {map[string]string{cards: "1"}, false, ""},
		"nothing":       {nil, false, ""},
		"another":       {map[string]string{cards: "2"}, false, "it does not reserve again what was chosen for a pod"},
		"one more":      {map[string]string{cards: "1", "example.com/more": "1"}, false, "it does not reserve again what was chosen for a pod"},
		"it is refused": {nil, true, "it does not reserve again what was chosen for a pod"},
	} {
		t.Run(name, func(t *testing.T) {
			answer := choosing(tt.chooses)
			if tt.rejects {
				answer = func(*pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
					return []*pluginv1.PlaceResponse{{Rejection: &pluginv1.Rejection{Plugin: "P", Reason: "taken"}}}
				}
			}
			s := &stepper{answer: answer}
			h := hosting(t, s, time.Minute)
			clock := time.Minute
			h.services[0].clock = func() time.Duration { return clock }
			p := placementOf("p")
			p.Annotations = map[string]string{cards: "1"}
			stands := true
			h.Stands(t.Context(), 1, func() []Standing {
				if !stands {
					return nil
				}
				return []Standing{{p, noPod}}
			})
			err := h.BeginPlacing(t.Context(), 1, "default-scheduler")
			told := s.requests()[1].GetPlacement()
			if diff := cmp.Diff(p.Annotations, told.GetAnnotations()); diff != "" || !told.GetStands() {
				t.Errorf("what is told, stands %v (-want +got):\n%s", told.GetStands(), diff)
			}
			if tt.want == "" {
				if calls, placed := left(h); err != nil || calls != 0 || placed != 1 {
					t.Errorf("%d calls and %d placements, want 1: %v", calls, placed, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("begun: %v, want %s", err, tt.want)
			}
			for range refusedFor/failedFor - 1 {
				clock += failedFor
				if err := h.BeginPlacing(t.Context(), 1, "default-scheduler"); err == nil {
					t.Fatal("it has begun, and what was chosen stands still")
				}
			}
			stands = tt.rejects // others have waited for long enough
			clock += failedFor
			if err := h.BeginPlacing(t.Context(), 1, "default-scheduler"); err != nil {
				t.Errorf("it stands: %v; %v", stands, err)
			}
			if _, placed := left(h); placed != 0 {
				t.Errorf("%d placements, want none", placed)
			}
		})
	}
}

// Whoever waits for a permit of an ignorable service that has chosen does not go on without it.
func TestWhoHasChosenIsWaitedFor(t *testing.T) {
	for _, chooses := range []bool{true, false} {
		s := &stepper{answer: func(r *pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
			if r.GetStep() == pluginv1.Step_STEP_PERMIT {
				return []*pluginv1.PlaceResponse{{WaitsMilliseconds: 60_000}}
			}
			return []*pluginv1.PlaceResponse{{Annotations: map[bool]map[string]string{true: {cards: "1"}}[chooses]}}
		}}
		h := hosting(t, s, time.Minute)
		h.services[0].Ignorable = true
		p := placementOf("p")
		var err error
		if p.Chosen, err = h.Reserve(t.Context(), 1, p, noPod); err != nil {
			t.Fatal(err)
		}
		wake := make(chan struct{}, 100)
		w, err := h.Permit(t.Context(), 1, p, func() { wake <- struct{}{} })
		if err != nil || w == nil {
			t.Fatalf("permit: %v, %v", w, err)
		}
		h.services[0].placing.now().end(errEnded)
		if err := decided(t, w, wake); (err != nil) != chooses {
			t.Errorf("it has chosen: %v; the wait ends with %v", chooses, err)
		}
	}
}

// A service that is held up so is no reason to fail anybody, nor to leave its process; and each refusal has its own time.
func TestWhoIsHeldUpHasFailedNobody(t *testing.T) {
	s := &stepper{answer: func(*pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
		return []*pluginv1.PlaceResponse{{Rejection: &pluginv1.Rejection{Plugin: "P", Reason: "taken"}}}
	}}
	h := hosting(t, s, time.Minute)
	h.services[0].Ignorable = true
	clock := time.Minute
	h.services[0].clock = func() time.Duration { return clock }
	var stands []Standing
	h.Stands(t.Context(), 1, func() []Standing { return stands })
	stand := func(names ...string) {
		stands = nil
		for _, name := range names {
			p := placementOf(name)
			p.Annotations = map[string]string{cards: "1"}
			stands = append(stands, Standing{p, noPod})
		}
	}
	begin := func() error {
		_, err := h.services[0].beginPlacing(t.Context(), 1)
		return err
	}
	stand("p")
	if err := begin(); err == nil || errors.As(err, new(Rejection)) || errors.As(err, new(errStep)) {
		t.Errorf("p is refused: %v, which is an answer to somebody else", err)
	}
	if chosen, err := h.Reserve(t.Context(), 1, placementOf("q"), noPod); err != nil || chosen.Annotations != nil {
		t.Errorf("q, which the ignorable service has not heard of: %v, %v", chosen, err)
	}
	for range refusedFor/failedFor - 1 { // whichever pods stand
		clock += failedFor
		stand("p", fmt.Sprint("r", clock))
		if err := begin(); err == nil {
			t.Fatal("it has begun too early")
		}
	}
	clock += failedFor
	if err := begin(); err != nil {
		t.Errorf("all have waited for long enough: %v", err)
	}
	h.services[0].placing.now().end(errEnded)
	if err := begin(); err == nil {
		t.Error("what is refused on the next stream is not waited for")
	}
	clock += time.Minute // and tries may be far apart
	if err := begin(); err != nil {
		t.Errorf("a minute later: %v", err)
	}
}
