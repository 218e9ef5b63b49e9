package engine

import (
	"fmt"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// stranger applies a pod of another class with labels of its own, on a node.
func stranger(t fataler, st *cluster.State, k int, node cluster.NodeIndex) {
	labels := cluster.LabelsID(1000 + k)
	id := st.FreePod()
	apply(t, st,
		cluster.LabelsDefined{ID: labels, Set: cluster.LabelSet{
			Namespace: "default", Labels: []cluster.Label{{Key: "job", Value: fmt.Sprint(k)}},
		}},
		cluster.PodSet{ID: id, Pod: cluster.Pod{UID: fmt.Sprint("stranger-", k), Class: testClass + 1, Labels: labels, NodeName: st.Nodes.Spec[node].Name}})
}

func TestManyLabelSetsOfPlacedPodsDoNotMakeCountsBeginAnew(t *testing.T) {
	const nodes, sets = 1000, 1<<16 + 4*1000 + 1000
	y := newYard(t, nodes, 60, crossNodeClasses()["spread/soft/zone"])
	apply(t, y.st, cluster.ClassDefined{ID: testClass + 1, Spec: cluster.ClassSpec{SchedulerName: "default-scheduler"}})
	for k := range sets {
		stranger(t, y.st, k, cluster.NodeIndex(k%nodes))
	}
	y.place(20)
	counts := y.binder.evaluations[y.binder.Signature(y.st, y.subject)].topology
	rebuilt := counts.rebuilt
	y.place(20)
	if got := counts.rebuilt - rebuilt; got != 0 {
		t.Errorf("the counts began anew %d times for 20 pods", got)
	}
	if len(counts.labeled) < sets {
		t.Errorf("%d label sets are kept of %d that count", len(counts.labeled), sets)
	}
}

func TestRelationsOfAllSubjectsThatThereAreAreKept(t *testing.T) {
	const sets = maxRelations + 1000
	y := newYard(t, 10, 1, crossNodeClasses()["spread/hard/zone"])
	for k := range sets {
		apply(t, y.st, cluster.LabelsDefined{ID: cluster.LabelsID(1000 + k), Set: cluster.LabelSet{
			Namespace: "default", Labels: []cluster.Label{{Key: "job", Value: fmt.Sprint(k)}},
		}})
		id := y.st.FreePod()
		apply(t, y.st, cluster.PodSet{ID: id, Pod: cluster.Pod{UID: fmt.Sprint("waits-", k), Class: testClass, Labels: cluster.LabelsID(1000 + k)}})
	}
	for k := range sets {
		y.binder.Signature(y.st, Subject{Class: testClass, Labels: cluster.LabelsID(1000 + k)})
	}
	if _, subjects := y.binder.Known(); subjects < sets {
		t.Errorf("the relations of %d subjects are kept, of %d that wait", subjects, sets)
	}
}

func TestSignaturesThatNoSubjectHasAnyMoreAreDropped(t *testing.T) {
	const rounds, live = 1000, 20
	y := newYard(t, 10, 1, crossNodeClasses()["antiAffinity/hostname"])
	web := cluster.LabelsID(1)
	for k := range rounds {
		// Each round, pods of another class keep the pod away for a while: that gives it another signature.
		class := testClass + 1 + cluster.ClassID(k)
		term := cluster.PodTerm{
			TopologyKey: hostname, Namespaces: []string{"default"},
			Selector: cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "app", Operator: "In", Values: []string{"web"}}}},
		}
		id := y.st.FreePod()
		apply(t, y.st,
			cluster.ClassDefined{ID: class, Spec: cluster.ClassSpec{SchedulerName: "default-scheduler", AntiAffinity: []cluster.PodTerm{term}}},
			cluster.PodSet{ID: id, Pod: cluster.Pod{UID: fmt.Sprint("other-", k), Class: class, Labels: web, NodeName: y.st.Nodes.Spec[0].Name}})
		y.binder.Filter(y.st, y.subject, everything(y.st))
		apply(t, y.st, cluster.PodRemoved{ID: id})
	}
	if signatures, _ := y.binder.Known(); signatures > minSwept+live {
		t.Errorf("something is kept of %d signatures, of which one is any pod's", signatures)
	}
}
