package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/test/bubble"
)

// A plugin that sorts is told how the pod waits, and its key is the answer; if it fails there is none.
func TestAPluginSaysWhereAPodBelongs(t *testing.T) {
	for name, tt := range map[string]struct {
		says func(*Placement, Queued) (int64, error)
		want string
	}{
		"a key": {func(p *Placement, q Queued) (int64, error) { return -7, nil }, "key -7"},
		"how it waits": {func(p *Placement, q Queued) (int64, error) {
			if want := (Queued{time.Unix(1, 0), time.Unix(2, 0), 3, 4, 5}); q != want || p.UID != "u" || p.Node != "" {
				return 0, fmt.Errorf("%+v of %+v, want %+v", q, p, want)
			}
			return 1, nil
		}, "key 1"},
		"an error": {func(*Placement, Queued) (int64, error) { return 5, errors.New("it is ill") }, `error: running QueueSort plugin "S": it is ill`},
		"a panic":  {func(*Placement, Queued) (int64, error) { panic("oh") }, `error: running QueueSort plugin "S": panic: oh`},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				client, _ := inMemory(t, Plugin{Name: "S", SortKey: func(_ context.Context, p *Placement, q Queued) (int64, error) { return tt.says(p, q) }})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				stream, err := client.Place(ctx)
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range []*pluginv1.PlaceRequest{{Id: 1}, {
					Id: 2, Step: queueSort, Plugins: []string{"S"}, Placement: &pluginv1.Placement{Uid: "u", Namespace: "ns", Name: "p"},
					Queued: &pluginv1.Queued{SinceUnixNanos: 1e9, FirstUnixNanos: 2e9, Attempts: 3, Unschedulable: 4, Errors: 5},
				}} {
					if err := stream.Send(r); err != nil {
						t.Fatal(err)
					}
				}
				r, err := stream.Recv()
				if err != nil {
					t.Fatal(err)
				}
				got := fmt.Sprint("key ", r.GetSortKey())
				if r.GetError() != "" {
					got = "error: " + r.GetError()
				}
				if got != tt.want || r.GetId() != 2 || r.GetSortOrder() != 0 || r.GetError() != "" && r.GetSortKey() != 0 {
					t.Errorf("it answers %v, want %s", r, tt.want)
				}
			})
		})
	}
}

// Whether a pod may be tried, and where it belongs, may be asked at the same time.
func TestAPluginMayDoBoth(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		both := gating("A", new(history), passing)
		both.SortKey = func(context.Context, *Placement, Queued) (int64, error) { return 1, nil }
		client, _ := inMemory(t, both)
		p := begin(t, client)
		p.step(preEnqueue, "u", "A")
		p.request(&pluginv1.PlaceRequest{Step: queueSort, Plugins: []string{"A"}, Placement: &pluginv1.Placement{Uid: "u", Namespace: "ns", Name: "pod-u"}, Queued: new(pluginv1.Queued)})
		got := p.answers()
		slices.Sort(got)
		if want := []string{"2", "3"}; !slices.Equal(got, want) {
			t.Errorf("answers: %q, want %q", got, want)
		}
	})
}
