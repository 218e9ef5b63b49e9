package whatif

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
)

// TestADomainForEachNodeTakesMemoryByNodes tries groups whose domains are single nodes: a set of all nodes for each domain, of a bit a node, would be 2,500 bytes a node here.
func TestADomainForEachNodeTakesMemoryByNodes(t *testing.T) {
	const nodes, most = 20_000, 2000 // bytes for each node
	var events []source.Event
	for k := range nodes {
		events = append(events, setNode(inRack(fmt.Sprint("node-", k), fmt.Sprint("rack-", k), 1000)))
	}
	for k := range 2 {
		events = append(events, setPod(ofGroup(prior(aPod(fmt.Sprint("p", k), 400), 5), "g")), setPod(ofGroup(aPod(fmt.Sprint("q", k), 800), "h")))
	}
	events = append(events, setGroup(cluster.PodGroup{Name: "g", Gang: true, MinCount: 2, Topology: []string{rackKey}}), setGroup(cluster.PodGroup{Name: "h", Gang: true, MinCount: 2, Topology: []string{rackKey}}),
		setPod(on(aPod("there", 100), "node-7")))
	s := sandbox(t, events...)
	try(t, s, func(w *World) error {
		var before, after runtime.MemStats
		for _, test := range []struct {
			name string
			ask  func() error
		}{
			{"that fits", func() error {
				return w.Try(func() error {
					out, err := PlaceGroup(w, groupKey("g"), ids(w.State(), "g"))
					if !out.Placed || out.Domain != "rack-7" {
						t.Errorf("placed %v in %q, want it in the rack that is the fullest", out.Placed, out.Domain)
					}
					again := w.undo(0) // it is pending again
					if fits, err := ConfirmGroup(w, groupKey("g"), &out); !fits || err != nil || again != nil {
						t.Errorf("it is confirmed: %v, %v, %v", fits, err, again)
					}
					return err
				})
			}},
			{"that does not", func() error {
				out, err := PlaceGroup(w, groupKey("h"), ids(w.State(), "h"))
				if out.Placed || out.Fit != 1 {
					t.Errorf("placed %v, %d fit", out.Placed, out.Fit)
				}
				return err
			}},
			{"that would wait", func() error {
				_, ok, err := ReserveGroup(w, groupKey("h"), ids(w.State(), "h"), 1)
				if ok {
					t.Error("room is reserved where there never is any")
				}
				return err
			}},
		} {
			for range 2 { // what is known of nodes then is known the second time
				runtime.ReadMemStats(&before)
				if err := test.ask(); err != nil {
					return fmt.Errorf("%s: %w", test.name, err)
				}
				runtime.ReadMemStats(&after)
			}
			bytes := (after.TotalAlloc - before.TotalAlloc) / nodes
			t.Logf("a group %s takes %d bytes for each node", test.name, bytes)
			if bytes > most {
				t.Errorf("a group %s takes %d bytes for each node, want no more than %d", test.name, bytes, most)
			}
		}
		return nil
	})
}

// TestDomainsAreComparedWithPauses has no room in 640 domains, of which one is tried: others have their turn, and it is looked at whether time is up, while all are compared.
func TestDomainsAreComparedWithPauses(t *testing.T) {
	const racks = 640
	var events []source.Event
	for k := range racks {
		events = append(events, setNode(inRack(fmt.Sprint("node-", k), fmt.Sprint("rack-", k), 100)))
	}
	events = append(events, setPod(ofGroup(aPod("p", 400), "g")), setPod(ofGroup(aPod("q", 400), "h")),
		setGroup(cluster.PodGroup{Name: "g", Topology: []string{rackKey}}), setGroup(cluster.PodGroup{Name: "h", Topology: []string{rackKey}, Preferred: []string{"other"}}))
	s := sandbox(t, events...)
	for group, want := range map[string]int{"g": 2 * racks / 64, "h": 3 * racks / 64} { // how full they would be, and how many fit; and then with a preference
		paused := 0
		err := s.Try(WithPause(t.Context(), func() error { paused++; return nil }), func(w *World) error {
			_, err := PlaceGroup(w, groupKey(group), ids(w.State(), group))
			return err
		})
		if err != nil || paused < want || paused > want+10 {
			t.Errorf("%s: %d pauses, %v; want %d and a few", group, paused, err, want)
		}
	}
}
