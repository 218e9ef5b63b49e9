package binder

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/plugin"
)

// Where scores are normalised, what a node counts as depends on all that are left. A pod of a kind that was asked about goes where it would if it were asked about all nodes anew, and only those are asked about of which something has changed.
func TestPodsGoByNormalisedScoresWhereTheyWouldIfAllNodesWereAskedAbout(t *testing.T) {
	const pods, nodes = 60, 25
	var where [2][]string
	var asked [2]int
	for k, alike := range []bool{false, true} {
		c := newChoosy(t, plugin.Dependencies{Requested: true}, func(p *plugin.Plugin) {
			p.Normalization = plugin.Proportional
			p.Reserve = func(context.Context, *plugin.Placement) (*plugin.Rejection, error) { return nil, nil }
			p.Unreserve = func(context.Context, *plugin.Placement) {}
		})
		c.steps = []string{"reserve"}
		c.set(func() {
			c.filter = func(n *plugin.Node) (string, error) {
				if n.Requested["cpu"] > 1500 {
					return "more than 1500 are requested", nil
				}
				return "", nil
			}
			c.score = func(n *plugin.Node) int64 { // the best of all is soon refused, and what the others count as with it
				var i int64
				_, _ = fmt.Sscanf(n.Name, "n%d", &i)
				return 100_000/(1+i) + 10*n.Requested["cpu"]
			}
		})
		src := newFakeSource()
		for i := range nodes {
			src.setNode(node(fmt.Sprint("n", i), 2000))
		}
		uids := make([]string, pods)
		for i := range uids {
			uids[i] = fmt.Sprint("p", i)
			p := forChoosy(pod(uids[i], int64(200+150*(i%3))))
			kind := "same"
			if !alike { // so nothing is known of it
				kind = uids[i]
			}
			p.Labels.Labels = []cluster.Label{{Key: "kind", Value: kind}}
			src.setPod(p)
		}
		b := start(t, startEtcd(t), src, withChoosy(t, c))
		b.active()
		for _, uid := range uids {
			where[k] = append(where[k], b.ask(b.question(1, uid)))
		}
		b.awaitNothingUnbound()
		b.stop()
		c.set(func() { asked[k] = len(c.asked) })
	}
	if diff := cmp.Diff(where[0], where[1]); diff != "" {
		t.Errorf("(-asked about all nodes +about what has changed):\n%s", diff)
	}
	if asked[1] > asked[0]/4 {
		t.Errorf("%d nodes were asked about, and %d where nothing is known of any", asked[1], asked[0])
	}
}
