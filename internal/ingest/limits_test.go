package ingest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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

// ofNode returns the names of the resources that a node has in the ledger, and the node.
func (w *world) ofNode(name string) (names []string, n cluster.Node) {
	n = w.told.Node(w.told.Nodes.ByName(name))
	for _, q := range n.Allocatable {
		names = append(names, q.Name)
	}
	return names, n
}

func TestANodeWithVeryManyResourcesLosesThoseBeyond128AndNothingElse(t *testing.T) {
	w := newWorld(t)
	w.tell(source.Event{Kind: source.NodeSet, Node: equipped("usual", "usual", 100)})
	before := w.told.Resources()
	broken := equipped("broken", "broken", 20_000)
	// The order is the source's, by name: Kubernetes' own come last here.
	broken.Allocatable = append(broken.Allocatable, cluster.Quantity{Name: "hugepages-2Mi", Value: 7}, cluster.Quantity{Name: "pods.kubernetes.io/x", Value: 8})
	broken.Labels = []cluster.Label{{Key: "zone", Value: "z"}}
	broken.Taints = []cluster.Taint{{Key: "k", Effect: "NoSchedule"}}
	for range 2 { // told again, it is the same
		w.tell(source.Event{Kind: source.NodeSet, Node: broken})
	}
	if got := w.told.Resources() - before; got != 128 {
		t.Errorf("%d more columns, want 128", got)
	}
	names, n := w.ofNode("broken")
	if n.Unsupported != "" || len(n.Labels) != 1 || len(n.Taints) != 1 {
		t.Errorf("the node has labels %v and taints %v, and is unsupported because %q", n.Labels, n.Taints, n.Unsupported)
	}
	want := []string{"cpu", "pods"}
	for i := range 126 {
		want = append(want, fmt.Sprintf("example.com/broken-%05d", i))
	}
	want = append(want, "hugepages-2Mi", "pods.kubernetes.io/x")
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("its resources (-want +got):\n%s", diff)
	}
	if len(w.heard) != 1 || w.heard[0].Kind != "Node" || w.heard[0].Name != "broken" || !strings.Contains(w.heard[0].Why, "20002 different resources") {
		t.Errorf("said is %+v, want it once and why", w.heard)
	}
	if _, n := w.ofNode("usual"); n.Unsupported != "" {
		t.Errorf("the other node is unsupported because %q", n.Unsupported)
	}
	w.reload()
}

func TestAllNodesTogetherHaveSoManyResourcesAtMost(t *testing.T) {
	w := newWorld(t)
	for i := range 100 {
		n := equipped(fmt.Sprint("node-", i), fmt.Sprint("own-", i), 100)
		n.Labels = []cluster.Label{{Key: "zone", Value: "z"}}
		w.tell(source.Event{Kind: source.NodeSet, Node: n})
	}
	if got := w.told.Resources(); got != 2048 {
		t.Errorf("%d columns", got)
	}
	names, last := w.ofNode("node-99")
	if last.Unsupported != "" || len(last.Labels) != 1 || len(names) != 2 {
		t.Errorf("the last node has the resources %v and the labels %v, and is unsupported because %q", names, last.Labels, last.Unsupported)
	}
	if n := len(w.heard); n == 0 || w.heard[n-1].Name != "node-99" || !strings.Contains(w.heard[n-1].Why, "more than 2048") {
		t.Errorf("said is %+v", w.heard)
	}
	// What is there already may be had by any node.
	w.tell(source.Event{Kind: source.NodeSet, Node: equipped("alike", "own-0", 100)})
	if names, n := w.ofNode("alike"); n.Unsupported != "" || len(names) != 102 {
		t.Errorf("a node like the first has %d resources, and is unsupported because %q", len(names), n.Unsupported)
	}
	// Where others have gone, there is room again.
	w.tell(source.Event{Kind: source.NodeGone, Node: cluster.Node{Name: "node-1"}})
	w.tell(source.Event{Kind: source.NodeSet, Node: equipped("node-99", "own-99", 100)})
	if names, _ := w.ofNode("node-99"); len(names) != 102 {
		t.Errorf("when another has gone, the last node has %d resources", len(names))
	}
	w.reload()
}

func TestAPodWhoseClassIsTooLargeKeepsItsLabelsHostPortsAndVolumes(t *testing.T) {
	w := newWorld(t)
	w.tell(source.Event{Kind: source.NodeSet, Node: equipped("a", "a", 0)})
	pod := source.Pod{Pod: cluster.Pod{UID: "p", Namespace: "default", Name: "p", NodeName: "a"}}
	pod.Class.SchedulerName = "default-scheduler"
	pod.Labels = cluster.LabelSet{
		Namespace: "default", Labels: []cluster.Label{{Key: "app", Value: "web"}}, Claims: []cluster.PodClaim{{Name: "data"}},
	}
	pod.Class.Disks = []cluster.Disk{{Kind: cluster.DiskEBS, ID: "vol-1"}}
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
	labels := w.told.Labels(row.Labels)
	if labels == nil || len(labels.Labels) != 1 || len(labels.Claims) != 1 || len(spec.HostPorts) != 100 || len(spec.Disks) != 1 {
		t.Errorf("what is left of it is %d host ports, %d disks, and the labels and claims %v", len(spec.HostPorts), len(spec.Disks), labels)
	}
}

func TestAPodWithFarTooManyVolumesKeepsSome(t *testing.T) {
	w := newWorld(t)
	pod := source.Pod{Pod: cluster.Pod{UID: "p", Namespace: "default", Name: "p"}, Labels: cluster.LabelSet{Namespace: "default"}}
	pod.Class.SchedulerName = "default-scheduler"
	text := strings.Repeat("x", 2000)
	for range wire.MaxTold / len(text) {
		pod.Labels.Claims = append(pod.Labels.Claims, cluster.PodClaim{Name: text, Ephemeral: true, PodUID: text})
		pod.Class.Disks = append(pod.Class.Disks, cluster.Disk{
			Kind: text, ID: text, Pool: text, Monitors: slices.Repeat([]string{text}, 100),
			Migration: cluster.Migration{Plugin: text, Driver: text, Handle: text, Error: text},
		})
		pod.Class.Requests = append(pod.Class.Requests, cluster.Quantity{Name: text, Value: 1})
		pod.Class.HostPorts = append(pod.Class.HostPorts, cluster.HostPort{IP: text, Protocol: text, Port: 1})
	}
	w.tell(source.Event{Kind: source.PodSet, Pod: pod})
	id, ok := w.told.PodByUID("p")
	if !ok {
		t.Fatal("the pod is not there")
	}
	row := w.told.Pod(id)
	spec, claims := w.told.Class(row.Class).Spec, w.told.Labels(row.Labels).Claims
	if spec.Unsupported == "" || len(spec.Disks) == 0 || len(claims) == 0 {
		t.Errorf("it has %d disks and %d claims, and is unsupported because %q", len(spec.Disks), len(claims), spec.Unsupported)
	}
}
