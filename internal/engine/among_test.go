package engine

import (
	"fmt"
	"math/bits"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// What nodes score among some is what they score where the others are cordoned: such nodes still count where pods are, but are not feasible.
func TestTotalsAmongNodesAreThoseWithoutTheOthers(t *testing.T) {
	const nodes, class, bare, running, mine = 6, 900, 901, 900, 901
	web := []cluster.Label{{Key: "app", Value: "web"}}
	selector := cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "app", Operator: "In", Values: []string{"web"}}}}
	for subset := range 1 << nodes {
		totals := make(map[bool][]NodeTotal)
		for _, cordoned := range []bool{true, false} {
			w := newStorage(t, nodes)
			for i := range cluster.NodeIndex(nodes) {
				node := w.st.Node(i)
				node.Taints = []cluster.Taint{{Key: fmt.Sprint(i % 3), Effect: "PreferNoSchedule"}}[:i%2]
				node.Unschedulable = cordoned && subset>>i&1 == 0
				node.Labels = []cluster.Label{{Key: "kubernetes.io/hostname", Value: node.Name}, {Key: "topology.kubernetes.io/zone", Value: string("aabbbc"[i])}}
				w.apply(cluster.NodeSet{Index: i, Node: node})
			}
			spread := cluster.ClassSpec{SchedulerName: "default"}
			for _, key := range []string{"topology.kubernetes.io/zone", "kubernetes.io/hostname"} {
				spread.Spread = append(spread.Spread, cluster.SpreadConstraint{TopologyKey: key, MaxSkew: 1, MinDomains: 1, Selector: selector})
			}
			w.apply(
				cluster.ClassDefined{ID: class, Spec: spread},
				cluster.ClassDefined{ID: bare, Spec: cluster.ClassSpec{SchedulerName: "default"}},
				cluster.LabelsDefined{ID: running, Set: cluster.LabelSet{Namespace: "shop", Labels: web}},
				cluster.LabelsDefined{ID: mine, Set: cluster.LabelSet{Namespace: "shop", Labels: web}},
			)
			for i, pods := range []int{0, 10, 3, 21, 5, 1} {
				for k := range pods {
					name := fmt.Sprint("n", i, "-", k)
					w.apply(cluster.PodSet{ID: w.st.FreePod(), Pod: cluster.Pod{UID: name, Namespace: "shop", Name: name, Class: bare, Labels: running, NodeName: fmt.Sprint("n", i)}})
				}
			}
			among := cluster.Bitmap{uint64(subset)}
			if cordoned {
				among = nil
			}
			var known bool
			if totals[cordoned], _, known = NewEvaluator(EvaluatorConfig{}).TotalsAmong(w.st, Subject{Class: class, Labels: mine}, among, nil); !known {
				t.Fatal("the state does not know the class")
			}
		}
		if diff := cmp.Diff(totals[true], totals[false]); diff != "" || len(totals[false]) != bits.OnesCount(uint(subset)) {
			t.Errorf("among %06b: %d nodes (-without the others +among):\n%s", subset, len(totals[false]), diff)
		}
	}
}
