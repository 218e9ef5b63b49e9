package engine

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// terms is a cluster of nodes with a pending pod that has no terms, and pods of others that have many.
type terms struct {
	t       fataler
	st      *cluster.State
	subject Subject
	e       *Evaluator
}

const (
	termClass   cluster.ClassID  = 300
	termLabels  cluster.LabelsID = 300
	otherSpaces                  = "others"
)

func newTerms(t fataler, nodes int, labels ...cluster.Label) *terms {
	w := &terms{t, cluster.New(cluster.Version{Epoch: 1}), Subject{Class: testClass, Labels: webLabels}, NewEvaluator(EvaluatorConfig{})}
	apply(t, w.st, cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{DefaultProfile("")}}},
		cluster.NamespaceSet{Name: "default"}, cluster.NamespaceSet{Name: otherSpaces},
		cluster.LabelsDefined{ID: webLabels, Set: cluster.LabelSet{Namespace: "default", Labels: []cluster.Label{{Key: "app", Value: "web"}}}},
		cluster.LabelsDefined{ID: termLabels, Set: cluster.LabelSet{Namespace: otherSpaces}},
		cluster.ClassDefined{ID: testClass, Spec: cluster.ClassSpec{}},
		cluster.PodSet{ID: w.st.FreePod(), Pod: cluster.Pod{UID: "web", Namespace: "default", Class: testClass, Labels: webLabels}})
	for i := range nodes {
		w.node(i, labels...)
	}
	return w
}

// node sets a node with its labels, whose values end with its number.
func (w *terms) node(i int, labels ...cluster.Label) {
	node := cluster.Node{Name: fmt.Sprint("node-", i), Allocatable: requests(1000, 1000, quantity("pods", 1000))}
	for _, l := range labels {
		node.Labels = append(node.Labels, cluster.Label{Key: l.Key, Value: l.Value + fmt.Sprint(i)})
	}
	apply(w.t, w.st, cluster.NodeSet{Index: cluster.NodeIndex(i), Node: node})
}

// other makes a pod of another namespace that is kept away from all pods, of one topology key each time: as far as it can be with
// preferred, else in any case. Without a node it is gated.
func (w *terms) other(id int, keys []string, preferred bool, node string) {
	spec := cluster.ClassSpec{SchedulerName: "nobodys", NonZeroCPU: int64(id)}
	for _, key := range keys {
		if term := (cluster.PodTerm{TopologyKey: key}); preferred {
			spec.PreferredAntiAffinity = append(spec.PreferredAntiAffinity, cluster.WeightedPodTerm{Weight: 1, Term: term})
		} else {
			spec.AntiAffinity = append(spec.AntiAffinity, term)
		}
	}
	class := termClass + cluster.ClassID(id)
	pod := cluster.Pod{UID: fmt.Sprint("other-", id), Namespace: otherSpaces, Class: class, Labels: termLabels, NodeName: node, Gates: []string{"never"}}
	apply(w.t, w.st, cluster.ClassDefined{ID: class, Spec: spec}, cluster.PodSet{ID: cluster.PodID(1000 + id), Pod: pod})
}

func (w *terms) feasible() Feasibility {
	f, _ := w.e.Filter(w.st, w.subject, everything(w.st))
	return f
}

// counted returns how many slots the pod's evaluation counts in.
func (w *terms) counted() int {
	c := evaluationOf(w.e, w.st, w.subject)
	if c.topology == nil {
		return 0
	}
	return len(c.topology.slots)
}

func manyKeys(n int) (keys []string, labels []cluster.Label) {
	for k := range n {
		keys = append(keys, fmt.Sprintf("key-%03d", k))
		labels = append(labels, cluster.Label{Key: keys[k], Value: "v"})
	}
	return keys, labels
}

func TestTermsOfOtherPodsMakeNoPodUnsupported(t *testing.T) {
	keys, labels := manyKeys(200)
	for name, labels := range map[string][]cluster.Label{"no node has a key": nil, "nodes have all keys": labels} {
		t.Run(name, func(t *testing.T) {
			w := newTerms(t, 3, labels...)
			w.other(0, keys, true, "")
			w.other(1, keys, false, "")
			if f := w.feasible(); f.FeasibleCount != 3 {
				t.Errorf("beside gated pods of others with 200 topology keys: %+v, want three feasible nodes", f)
			}
		})
	}
}

func TestEachOfVeryManyTopologyKeysOfOtherPodsCounts(t *testing.T) {
	keys, labels := manyKeys(200)
	for k := range keys {
		w := newTerms(t, 3, labels...)
		w.other(0, keys, true, "")
		w.other(1, keys[k:k+1], false, "node-1")
		f := w.feasible()
		if f.FeasibleCount != 2 || len(f.Verdicts) != 1 || f.Verdicts[0].Reason != ReasonExistingAntiAffinity {
			t.Fatalf("beside a pod that wants to be alone in its %s: %+v, want two nodes", keys[k], f)
		}
	}
}

func TestTopologyKeysOfOthersThatNoNodeHasTakeNoRoom(t *testing.T) {
	keys, _ := manyKeys(30)
	w := newTerms(t, 3)
	w.other(0, keys, true, "")
	w.other(1, keys, false, "")
	// Some of them are texts that nodes have, but not as keys.
	apply(t, w.st, cluster.NodeSet{Index: 7, Node: cluster.Node{Name: keys[0], Labels: []cluster.Label{{Key: "zone", Value: keys[1]}}}})
	w.feasible()
	if n := w.counted(); n != 0 {
		t.Errorf("%d slots, want none", n)
	}
}

func TestATopologyKeyOfOthersCountsWhileSomeNodeHasIt(t *testing.T) {
	keys, labels := manyKeys(3)
	w := newTerms(t, 3)
	w.other(0, keys, false, "node-1")
	for round := range 3 {
		if f := w.feasible(); f.FeasibleCount != 3 || w.counted() != 0 {
			t.Fatalf("round %d, no node has a key: %d slots, %+v", round, w.counted(), f)
		}
		w.node(0, labels[2])
		w.node(1, labels[2])
		if f := w.feasible(); f.FeasibleCount != 2 || w.counted() != 1 {
			t.Fatalf("round %d, two nodes have a key: %d slots, %+v", round, w.counted(), f)
		}
		w.node(0, labels...)
		if f := w.feasible(); f.FeasibleCount != 2 || w.counted() != 3 {
			t.Fatalf("round %d, nodes have three keys: %d slots, %+v", round, w.counted(), f)
		}
		if w.node(0); round == 1 {
			apply(t, w.st, cluster.NodeRemoved{Index: 1})
		}
		w.node(1)
	}
}

// What one replica writes of a node another reads: both go by the keys that nodes have at that version.
func TestReplicasWriteTheSameTopologyProfilesWheneverTheyHaveBegun(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys, labels := manyKeys(4)
		w := newTerms(t, 4)
		w.other(0, keys, rapid.Bool().Draw(t, "preferred"), "node-1")
		w.other(1, append(keys, keys...), rapid.Bool().Draw(t, "preferred too"), "node-2")
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			some := rapid.SliceOfNDistinct(rapid.SampledFrom(labels), 0, len(labels), rapid.ID).Draw(t, "labels")
			w.node(rapid.IntRange(0, 3).Draw(t, "node"), some...)
			if rapid.Bool().Draw(t, "looks") {
				continue
			}
			got, want := judge(t, w.e, w.st, w.subject), judge(t, NewEvaluator(EvaluatorConfig{}), w.st, w.subject)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("(-anew +folded):\n%s", diff)
			}
		}
	})
}

func TestAPodOnANodeWithoutTheTopologyKeyIsInNoDomain(t *testing.T) {
	web := cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "app", Operator: "In", Values: []string{"web"}}}}
	near := cluster.PodTerm{TopologyKey: "rack", Namespaces: []string{"default"}, NamespaceSelector: cluster.LabelSelector{Nothing: true}, Selector: web}
	for name, c := range map[string]struct {
		spec cluster.ClassSpec
		want int32
	}{
		"affinity":      {cluster.ClassSpec{Affinity: []cluster.PodTerm{near}}, 1}, // it matches its own terms, and may begin
		"anti-affinity": {cluster.ClassSpec{AntiAffinity: []cluster.PodTerm{near}}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			z := newZones(t, 2, 1, c.spec)
			node := z.st.Node(0)
			node.Labels = append(node.Labels, cluster.Label{Key: "rack"}) // of an empty value
			apply(t, z.st, cluster.NodeSet{Index: 0, Node: node})
			z.pod(otherClass, webLabels, "node-1")
			f, _ := z.e.Filter(z.st, Subject{Class: testClass, Labels: webLabels}, everything(z.st))
			if f.FeasibleCount != c.want {
				t.Errorf("%+v, want %d feasible nodes", f, c.want)
			}
		})
	}
}

func TestOnlyConstraintsAndTermsOfItsOwnCanBeTooManyForAPod(t *testing.T) {
	keys, labels := manyKeys(maxSlots + 1)
	for own := maxSlots - 1; own <= maxSlots+1; own++ {
		spec := cluster.ClassSpec{AntiAffinity: []cluster.PodTerm{{TopologyKey: keys[0]}}}
		for _, key := range keys[:own-1] {
			spec.Spread = append(spec.Spread, cluster.SpreadConstraint{TopologyKey: key, MaxSkew: 1, MinDomains: 1, Hard: true})
		}
		w := newTerms(t, 3, labels...)
		w.other(0, keys, true, "")
		w.other(1, keys, false, "node-2")
		apply(t, w.st, cluster.ClassDefined{ID: otherClass, Spec: spec}, cluster.PodSet{ID: 7, Pod: cluster.Pod{UID: "own", Namespace: "default", Class: otherClass, Labels: webLabels}})
		f, _ := w.e.Filter(w.st, Subject{Class: otherClass, Labels: webLabels}, everything(w.st))
		switch tooMany := own > maxSlots; {
		case tooMany && (f.FeasibleCount != 0 || len(f.Verdicts) != 1 || f.Verdicts[0].Reason != "pod has too many topology constraints and affinity terms"):
			t.Errorf("%d of its own: %+v, want a refusal that says why", own, f)
		case !tooMany && f.FeasibleCount != 2:
			t.Errorf("%d of its own: %+v, want all nodes but that of the other pod", own, f)
		}
	}
}

// Who makes pods chooses how many such keys there are.
func TestTopologyKeysThatDoNotCountAreWrittenOneByOne(t *testing.T) {
	w := newTerms(t, 3)
	keys, _ := manyKeys(200)
	w.other(1, keys, false, "")
	w.feasible()
	c := w.e.evaluations[w.e.Signature(w.st, w.subject)]
	longest, all := 0, 0
	c.relation.leftOut(w.st, func(written []byte) {
		longest, all = max(longest, len(written)), all+len(written)
	})
	if one := len(keys[0]) + 1; longest != one || all != 200*one {
		t.Errorf("%d bytes are written, %d of them at once, want 200 times %d", all, longest, one)
	}
}
