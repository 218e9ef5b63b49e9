package plugin

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/test/bubble"
)

// What is asked behind what is to be reserved is answered behind that, whichever of the two comes first, and whatever becomes of it.
func TestWhatIsAskedBehindReservationsIsAnsweredBehindThem(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h, goes := new(history), map[string]chan struct{}{"a": make(chan struct{}), "b": make(chan struct{})}
		client, _ := inMemory(t, Plugin{
			Name: "P",
			Filter: func(context.Context, *Kind, *Node) (*Refusal, error) {
				h.add("filter")
				return nil, nil
			},
			Reserve: func(ctx context.Context, p *Placement) (*Rejection, error) {
				h.add("reserve %s", p.UID)
				if goes[p.UID] == nil {
					return nil, errors.New("it cannot be")
				}
				select {
				case <-goes[p.UID]:
					h.add("%s is reserved", p.UID)
				case <-ctx.Done():
				}
				return nil, nil
			},
			Unreserve: func(_ context.Context, p *Placement) { h.add("unreserve %s", p.UID) },
		})
		place := opened(t, client)
		place.request(&pluginv1.PlaceRequest{Stream: "s"})
		synctest.Wait()
		judge := open(t, client)
		ask := func(stream string, id int64) {
			judge.last++
			req := &pluginv1.JudgeRequest{Id: judge.last, Behind: &pluginv1.Behind{Stream: stream, Id: id}, Questions: []*pluginv1.Question{{Kind: 1, Filters: []string{"P"}, Nodes: []int32{1}}}}
			if judge.last == 1 {
				req.Kinds, req.Nodes = []*pluginv1.Kind{{Id: 1}}, []*pluginv1.Node{node(1, "n")}
			}
			if err := judge.client.Send(req); err != nil {
				t.Fatal(err)
			}
		}
		// The question comes first, and waits for a.
		ask("s", 2)
		h.expect(t)
		place.step(pluginv1.Step_STEP_RESERVE, "a", "P")
		h.expect(t, "reserve a")
		close(goes["a"])
		h.expect(t, "a is reserved", "filter")
		// It comes behind that, or behind what is no reservation, or is of a stream that nobody knows.
		ask("s", 2)
		h.expect(t, "filter")
		place.step(pluginv1.Step_STEP_POST_BIND, "a")
		ask("s", 3)
		h.expect(t, "filter")
		ask("other", 9)
		h.expect(t, "filter")
		ask("", 9)
		h.expect(t, "filter")
		// That the last one has failed does not do: one before it is under way.
		place.step(pluginv1.Step_STEP_RESERVE, "b", "P")
		place.step(pluginv1.Step_STEP_RESERVE, "c", "P")
		ask("s", 5)
		synctest.Wait()
		if got := h.take(); !slices.Equal(got, []string{"reserve b", "reserve c"}) && !slices.Equal(got, []string{"reserve c", "reserve b"}) {
			t.Errorf("calls: %q", got)
		}
		// The stream ends: what was to be reserved on it will not be.
		place.cut()
		synctest.Wait()
		if got := h.take(); !slices.Contains(got, "filter") || slices.Contains(got, "b is reserved") {
			t.Errorf("calls when the stream has ended: %q", got)
		}
		for range judge.last {
			if _, err := judge.client.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		judge.cancel()
	})
}
