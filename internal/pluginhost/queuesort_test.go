package pluginhost

import (
	"fmt"
	"log/slog"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// sorting returns a host of two profiles whose pods a plugin sorts, "Sorts". The first profile has services of its own if they are compiled in.
func sorting(t *testing.T, preEnqueues []string, services ...Service) *Host {
	t.Helper()
	cfg := Config{Objects: noNodes{}, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Services: services}
	for _, name := range []string{"first", "second"} {
		profile := engine.DefaultProfile(name)
		profile.QueueSort, profile.PreEnqueues = "Sorts", preEnqueues
		cfg.Profiles = append(cfg.Profiles, profile)
	}
	h, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.EndPlacing(math.MaxInt64) })
	return h
}

// keyed answers by the length of a pod's name, in an order.
func keyed(order int64) func(*pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
	return func(r *pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
		if r.GetStep() != pluginv1.Step_STEP_QUEUE_SORT {
			return []*pluginv1.PlaceResponse{{}}
		}
		return []*pluginv1.PlaceResponse{{SortKey: int64(len(r.GetPlacement().GetName())), SortOrder: order}}
	}
}

func keysOf(entrances []Entrance) (out []string) {
	for i, text := range said(entrances) {
		out = append(out, fmt.Sprintf("%s %d/%d", text, entrances[i].Key.Order, entrances[i].Key.Key))
	}
	return out
}

// Those whom all plugins let in are sorted, and those that are in already, which are not asked about again.
func TestWhoIsInIsSorted(t *testing.T) {
	s := &stepper{name: "Sorts", others: []string{"Gates"}, answer: func(r *pluginv1.PlaceRequest) []*pluginv1.PlaceResponse {
		if r.GetStep() == pluginv1.Step_STEP_PRE_ENQUEUE && r.GetPlacement().GetName() == "kept" {
			return []*pluginv1.PlaceResponse{rejects("Gates", "no")}
		}
		return keyed(0)(r)
	}}
	h := sorting(t, []string{"Gates"}, Service{Name: "s", Conn: s.serve(t), Timeout: time.Minute, Plugins: []Plugin{{Name: "Sorts"}, {Name: "Gates"}}})
	pods := entering("new", "kept", "is in")
	for i := range pods {
		pods[i].Queued, pods[i].OnlySorts = &pluginv1.Queued{Arrival: int64(i)}, i == 2
	}
	if diff := cmp.Diff([]string{"in 1/3", "Gates: no, told false 1/0", "in 1/5"}, keysOf(h.PreEnqueue(t.Context(), 1, "second", pods))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var asked []string
	for _, r := range s.requests()[1:] {
		asked = append(asked, fmt.Sprint(r.GetStep(), r.GetPlugins(), r.GetPlacement().GetName(), r.GetPlacement().GetNode(), " ", r.GetPlacement().GetSchedulerName(), r.GetQueued() != nil, r.GetQueued().GetArrival()))
	}
	if diff := cmp.Diff([]string{
		"STEP_PRE_ENQUEUE [Gates]new secondfalse 0", "STEP_PRE_ENQUEUE [Gates]kept secondfalse 0", "STEP_QUEUE_SORT [Sorts]new secondtrue 0", "STEP_QUEUE_SORT [Sorts]is in secondtrue 2",
	}, asked); diff != "" {
		t.Errorf("it was asked (-want +got):\n%s", diff)
	}
	if calls, placed := left(h); calls != 0 || placed != 0 {
		t.Errorf("%d calls and %d placements are left", calls, placed)
	}
}

// Of plugins that are compiled in, those of the first profile sort the pods of all, and what they say counts on their stream alone.
func TestTheFirstProfilesPluginSortsForAll(t *testing.T) {
	order := int64(3)
	first, second := &stepper{name: "Sorts", answer: func(r *pluginv1.PlaceRequest) []*pluginv1.PlaceResponse { return keyed(order)(r) }}, &stepper{name: "Sorts", answer: keyed(9)}
	h := sorting(t, nil,
		Service{Name: "s2", Conn: second.serve(t), Timeout: time.Minute, Profile: "second", Plugins: []Plugin{{Name: "Sorts"}}, Follows: true},
		Service{Name: "s1", Conn: first.serve(t), Timeout: time.Minute, Profile: "first", Plugins: []Plugin{{Name: "Sorts"}}, Follows: true},
	)
	ask := func(profile string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, keysOf(h.PreEnqueue(t.Context(), 1, profile, entering("a", "bb")))); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	ask("second", fmt.Sprintf("in %d/1", 1<<32+3), fmt.Sprintf("in %d/2", 1<<32+3))
	order++
	ask("first", fmt.Sprintf("in %d/1", 1<<32+4), fmt.Sprintf("in %d/2", 1<<32+4))
	h.EndPlacing(1)
	order = 0
	ask("first", fmt.Sprintf("in %d/1", 2<<32), fmt.Sprintf("in %d/2", 2<<32))
	if got := second.requests(); len(got) > 0 {
		t.Errorf("the second profile's process was asked %v", got)
	}
}

// Who does not say where a pod belongs keeps it out, unless it is ignorable: then the pod goes as with key 0.
func TestWhoIsSortedWhenAServiceFails(t *testing.T) {
	for name, tt := range map[string]struct {
		answer    *pluginv1.PlaceResponse
		ignorable bool
		want      string
	}{
		"it has failed":             {&pluginv1.PlaceResponse{Error: `running QueueSort plugin "Sorts": no`}, false, `error: running QueueSort plugin "Sorts": no 1/0`},
		"it has failed, ignorable":  {&pluginv1.PlaceResponse{Error: "no", SortKey: 7}, true, `error: plugin service "s": no 1/0`},
		"it rejects":                {rejects("Sorts", "no"), false, `error: plugin service "s": its answer makes no sense: rejection: who sorts rejects nothing 1/0`},
		"it rejects, ignorable":     {rejects("Sorts", "no"), true, "in 1/0"},
		"an order of a service":     {&pluginv1.PlaceResponse{SortOrder: 1}, false, `error: plugin service "s": its answer makes no sense: sort_order: 1: want 0, or, of plugins that are compiled in, 2147483647 at most 1/0`},
		"an order below 0":          {&pluginv1.PlaceResponse{SortOrder: -1}, true, "in 1/0"},
		"the lowest key":            {&pluginv1.PlaceResponse{SortKey: math.MinInt64}, false, fmt.Sprintf("in 1/%d", math.MinInt64)},
		"a key, and it is not late": {&pluginv1.PlaceResponse{SortKey: 5}, true, "in 1/5"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &stepper{name: "Sorts", answer: func(*pluginv1.PlaceRequest) []*pluginv1.PlaceResponse { return []*pluginv1.PlaceResponse{tt.answer} }}
			h := sorting(t, nil, Service{Name: "s", Conn: s.serve(t), Timeout: time.Minute, Ignorable: tt.ignorable, Plugins: []Plugin{{Name: "Sorts"}}})
			if got := keysOf(h.PreEnqueue(t.Context(), 1, "first", entering("p"))); !slices.Equal(got, []string{tt.want}) {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// A key of whoever does not sort makes no sense.
func TestAKeyThatNobodyHasAskedForMakesNoSense(t *testing.T) {
	s := &stepper{name: "Gates", answer: func(*pluginv1.PlaceRequest) []*pluginv1.PlaceResponse { return []*pluginv1.PlaceResponse{{SortKey: 1}} }}
	h := gating(t, []string{"Gates"}, time.Minute, s)
	if got, want := said(h.PreEnqueue(t.Context(), 1, "default-scheduler", entering("p"))), `error: plugin service "s0": its answer makes no sense: sort_key, sort_order: nothing is sorted`; !slices.Equal(got, []string{want}) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestWhoSortsHasToSayThatItDoes(t *testing.T) {
	s := &stepper{name: "Other", others: []string{"Sorts"}, answer: keyed(0)}
	h := sorting(t, nil, Service{Name: "s", Conn: s.serve(t), Timeout: time.Minute, Plugins: []Plugin{{Name: "Sorts"}}})
	if got, want := said(h.PreEnqueue(t.Context(), cluster.Epoch(1), "first", entering("p"))), `error: plugin service "s": does not fit the configuration: profiles have plugin "Sorts" sort the queue, and the service describes none of that name that does`; !slices.Equal(got, []string{want}) {
		t.Errorf("%q, want %q", got, want)
	}
}
