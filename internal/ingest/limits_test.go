package ingest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/wire"
)

// equipped returns a node with so many resources of its own.
func equipped(name, prefix string, own int) cluster.Node {
	n := cluster.Node{Name: name, Allocatable: []cluster.Quantity{{Name: "cpu", Value: 1000}, {Name: "pods", Value: 110}}}
	for i := range own {
		n.Allocatable = append(n.Allocatable, cluster.Quantity{Name: fmt.Sprintf("example.com/%s-%05d", prefix, i), Value: 1})
	}
	return n
}

func TestANodeWithVeryManyResourcesIsUnsupportedAndMakesFewColumns(t *testing.T) {
	w := newWorld(t)
	w.tell(source.Event{Kind: source.NodeSet, Node: equipped("usual", "usual", 100)})
	before := w.told.Resources()
	for range 2 { // told again, it is the same
		w.tell(source.Event{Kind: source.NodeSet, Node: equipped("broken", "broken", 20_000)})
	}
	if got := w.told.Resources() - before; got > 64 {
		t.Errorf("%d more columns, want 64 at most", got)
	}
	if n := w.told.Node(w.told.Nodes.ByName("broken")); !strings.Contains(n.Unsupported, "20000 different resources") {
		t.Errorf("the node is unsupported because %q", n.Unsupported)
	}
	if n := w.told.Node(w.told.Nodes.ByName("usual")); n.Unsupported != "" {
		t.Errorf("the other node is unsupported because %q", n.Unsupported)
	}
	w.reload()
}

func TestAllNodesTogetherHaveSoManyResourcesAtMost(t *testing.T) {
	w := newWorld(t)
	for i := range 100 {
		w.tell(source.Event{Kind: source.NodeSet, Node: equipped(fmt.Sprint("node-", i), fmt.Sprint("own-", i), 100)})
	}
	if got := w.told.Resources(); got > 2048 {
		t.Errorf("%d columns", got)
	}
	last := w.told.Node(w.told.Nodes.ByName("node-99"))
	if !strings.Contains(last.Unsupported, "more than 2048") || len(last.Allocatable) != 2 {
		t.Errorf("the last node has %d resources, and is unsupported because %q", len(last.Allocatable), last.Unsupported)
	}
	// What is there already may be had by any node.
	w.tell(source.Event{Kind: source.NodeSet, Node: equipped("alike", "own-0", 100)})
	if n := w.told.Node(w.told.Nodes.ByName("alike")); n.Unsupported != "" || len(n.Allocatable) != 102 {
		t.Errorf("a node like the first is unsupported because %q", n.Unsupported)
	}
	w.reload()
}

func TestAPodWhoseClassIsTooLargeKeepsItsLabelsAndHostPorts(t *testing.T) {
	w := newWorld(t)
	w.tell(source.Event{Kind: source.NodeSet, Node: equipped("a", "a", 0)})
	pod := source.Pod{Pod: cluster.Pod{UID: "p", Namespace: "default", Name: "p", NodeName: "a"}}
	pod.Class.SchedulerName = "default-scheduler"
	pod.Labels = cluster.LabelSet{Namespace: "default", Labels: []cluster.Label{{Key: "app", Value: "web"}}}
	for i := range 100 {
		pod.Class.HostPorts = append(pod.Class.HostPorts, cluster.HostPort{IP: "0.0.0.0", Protocol: "TCP", Port: int32(1000 + i)})
	}
	for i := range wire.MaxTold / 100 {
		term := cluster.PodTerm{TopologyKey: fmt.Sprintf("key-%05d-%s", i, strings.Repeat("x", 100)), Namespaces: []string{"default"}}
		pod.Class.AntiAffinity = append(pod.Class.AntiAffinity, term)
	}
	w.tell(source.Event{Kind: source.PodSet, Pod: pod})
	id, ok := w.told.PodByUID("p")
	if !ok {
		t.Fatal("the pod is not there")
	}
	row := w.told.Pod(id)
	spec := w.told.Class(row.Class).Spec
	if spec.Unsupported == "" || len(spec.AntiAffinity) > 0 {
		t.Errorf("its class has %d terms, and is unsupported because %q", len(spec.AntiAffinity), spec.Unsupported)
	}
	if labels := w.told.Labels(row.Labels); labels == nil || len(labels.Labels) != 1 || len(spec.HostPorts) != 100 {
		t.Errorf("what is left of it is %d host ports and the labels %v", len(spec.HostPorts), labels)
	}
}
