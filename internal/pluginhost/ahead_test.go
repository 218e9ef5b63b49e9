package pluginhost

import (
	"log/slog"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// Nobody is asked about the next pod while one is reserved unless whoever is asked answers behind that, and is known to have heard of the stream.
func TestWhoIsAskedAheadOfAReservation(t *testing.T) {
	one := []string{"P"}
	for name, tt := range map[string]struct {
		orders  bool
		steps   Steps
		filters []string
		want    []bool // of one placement after the other
	}{
		"one service has both":       {true, Steps{Reserve: one}, nil, []bool{false, true, true}},
		"it does not order":          {false, Steps{Reserve: one}, nil, []bool{false, false, false}},
		"it permits":                 {true, Steps{Reserve: one, Permit: one}, nil, []bool{false, false, false}},
		"another one reserves":       {true, Steps{Reserve: []string{"P", "Other"}}, nil, []bool{false, false, false}},
		"another one filters":        {true, Steps{Reserve: one}, []string{"Other"}, []bool{false, false, false}},
		"another one acts behind it": {true, Steps{Reserve: one, PostBind: []string{"Other"}}, nil, []bool{false, true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			s, other := &stepper{orders: tt.orders}, &stepper{name: "Other", orders: tt.orders}
			profile := engine.DefaultProfile("default-scheduler")
			profile.Filters = append(slices.Clone(profile.Filters), tt.filters...)
			h, err := New(Config{
				Services: []Service{
					{Name: "s", Plugins: []Plugin{{Name: "P"}}, Conn: s.serve(t), Timeout: time.Minute}, {Name: "other", Plugins: []Plugin{{Name: "Other", Filters: true}}, Conn: other.serve(t), Timeout: time.Minute},
				},
				Profiles: []cluster.Profile{profile}, Steps: map[string]Steps{"default-scheduler": tt.steps}, Log: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { h.EndPlacing(math.MaxInt64) })
			var got []bool
			for _, pod := range []string{"p", "q", "r"} {
				await, ahead := h.BeginReserve(t.Context(), 1, placementOf(pod), noPod)
				got = append(got, ahead)
				if _, err := await(); err != nil {
					t.Error(err)
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("ahead: %v, want %v", got, tt.want)
			}
		})
	}
}
