package clustertest

import (
	"fmt"
	"maps"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// sums are what the pods of a node add up to.
type sums struct {
	pods                      int32
	nonZeroCPU, nonZeroMemory int64
	requested                 map[string]int64
	ports                     map[cluster.HostPort]int32
}

// Recompute compares every sum, list and index that a state keeps up to date with what its nodes and pods say, and
// returns the first difference.
func Recompute(st *cluster.State) error {
	byNode := make(map[cluster.NodeIndex]*sums)
	for _, i := range nodesOf(st) {
		byNode[i] = &sums{requested: make(map[string]int64), ports: make(map[cluster.HostPort]int32)}
	}
	var phases [3]int
	classes, placed, labels := make(map[cluster.ClassID]int), make(map[cluster.ClassID]int), make(map[cluster.LabelsID]int)
	on := make(map[cluster.NodeIndex][]cluster.PodID)
	for id, p := range st.Pods() {
		phases[p.Phase]++
		classes[p.Class]++
		if p.Placed() {
			placed[p.Class]++
		}
		labels[p.Labels]++
		if at, ok := st.PodByUID(p.UID); !ok || at != id {
			return fmt.Errorf("pod %d: its uid leads to %d, %v", id, at, ok)
		}
		if p.Preempting && p.Placed() || p.Victim && !p.Placed() {
			return fmt.Errorf("pod %d is %v, preempting %v and victim %v", id, p.Phase, p.Preempting, p.Victim)
		}
		if p.Placed() != (p.NodeName != "") {
			return fmt.Errorf("pod %d is %v with node name %q", id, p.Phase, p.NodeName)
		}
		want := cluster.NoNode
		if p.Placed() {
			want = st.Nodes.ByName(p.NodeName)
		}
		if p.Node != want {
			return fmt.Errorf("pod %d of node %q is at %d, want %d", id, p.NodeName, p.Node, want)
		}
		class := st.Class(p.Class)
		if class == nil {
			return fmt.Errorf("pod %d: no class %d", id, p.Class)
		}
		if s := byNode[p.Node]; s != nil {
			s.add(&class.Spec)
			on[p.Node] = append(on[p.Node], id)
		}
	}
	for phase, want := range phases {
		if got := st.Count(cluster.Phase(phase)); got != want {
			return fmt.Errorf("%d pods are %v, want %d", got, cluster.Phase(phase), want)
		}
	}
	for _, c := range st.Classes() {
		if c.Pods != classes[c.ID] || c.Placed != placed[c.ID] {
			return fmt.Errorf("class %d has %d pods, %d of them placed, want %d and %d", c.ID, c.Pods, c.Placed, classes[c.ID], placed[c.ID])
		}
	}
	columns := map[string]bool{"cpu": true, "memory": true, "ephemeral-storage": true}
	for i := range byNode {
		for _, q := range st.Node(i).Allocatable {
			columns[q.Name] = columns[q.Name] || q.Name != "pods"
		}
	}
	delete(columns, "pods")
	if st.Resources() != len(columns) {
		return fmt.Errorf("%d columns, want %v", st.Resources(), columns)
	}
	if st.Nodes.Count() != len(byNode) {
		return fmt.Errorf("%d nodes, want %d", st.Nodes.Count(), len(byNode))
	}
	for i := range cluster.NodeIndex(st.Nodes.Len()) {
		if err := compareNode(st, i, byNode[i], on[i]); err != nil {
			return fmt.Errorf("node %d: %w", i, err)
		}
	}
	if p := st.Pod(st.FreePod()); p != nil {
		return fmt.Errorf("free pod id %d is that of %q", st.FreePod(), p.UID)
	}
	for _, recompute := range []func(*cluster.State) error{recomputeImages, recomputeKeys, recomputeTerms, recomputeNominations, recomputeServices, recomputeVolumes, recomputeGroups} {
		if err := recompute(st); err != nil {
			return err
		}
	}
	return recomputeLabels(st, labels)
}

func (s *sums) add(c *cluster.ClassSpec) {
	s.pods++
	s.nonZeroCPU += c.NonZeroCPU
	s.nonZeroMemory += c.NonZeroMemory
	for _, q := range c.Requests {
		if q.Name != "pods" {
			s.requested[q.Name] += q.Value
		}
	}
	for _, p := range c.HostPorts {
		s.ports[p]++
	}
}

// compareNode compares the columns of an index; want is nil if there must be no node.
func compareNode(st *cluster.State, i cluster.NodeIndex, want *sums, pods []cluster.PodID) error {
	n := &st.Nodes
	spec := st.Node(i)
	if want == nil {
		want = &sums{}
		if spec.Name != "" || len(n.Labels[i])+len(n.Taints(i))+len(n.Images(i)) > 0 || n.Unschedulable.Has(i) {
			return fmt.Errorf("there is none, and yet %+v", spec)
		}
	}
	allocatable, allowedPods := make(map[string]int64), int64(0)
	for _, q := range spec.Allocatable {
		if q.Name == "pods" {
			allowedPods = q.Value
		} else {
			allocatable[q.Name] = q.Value
		}
	}
	ports := make(map[cluster.HostPort]int32)
	for k, p := range n.Ports[i] {
		ports[p.HostPort] += p.Count
		if k > 0 && n.Ports[i][k-1].Port > p.Port {
			return fmt.Errorf("ports are not in order: %v", n.Ports[i])
		}
		if got := n.PortUses(i, p.HostPort); got != p.Count || !slices.Contains(n.PortsAt(i, p.HostPort), p) {
			return fmt.Errorf("port %+v is found %d times, and among %v", p, got, n.PortsAt(i, p.HostPort))
		}
	}
	got := sums{n.PodCount[i], n.NonZeroCPU[i], n.NonZeroMemory[i], nil, nil}
	switch {
	case got.pods != want.pods || got.nonZeroCPU != want.nonZeroCPU || got.nonZeroMemory != want.nonZeroMemory:
		return fmt.Errorf("sums %+v, want %+v", got, *want)
	case !maps.Equal(ports, want.ports):
		return fmt.Errorf("ports %v, want %v", ports, want.ports)
	case n.AllowedPods[i] != allowedPods:
		return fmt.Errorf("allowed pods %d, want %d", n.AllowedPods[i], allowedPods)
	case n.Unschedulable.Has(i) != spec.Unschedulable:
		return fmt.Errorf("unschedulable is not %v", spec.Unschedulable)
	case len(n.Labels[i]) != len(spec.Labels) || len(n.Taints(i)) != len(spec.Taints):
		return fmt.Errorf("%d labels and %d taints of %+v", len(n.Labels[i]), len(n.Taints(i)), spec)
	}
	for r := range st.Resources() {
		name := st.ResourceName(cluster.ResourceID(r))
		if got := n.Requested[r][i]; got != want.requested[name] {
			return fmt.Errorf("requested %s %d, want %d", name, got, want.requested[name])
		}
		if got := n.Allocatable[r][i]; got != allocatable[name] {
			return fmt.Errorf("allocatable %s %d, want %d", name, got, allocatable[name])
		}
	}
	var listed []cluster.PodID
	for id := range st.PodsOn(i) {
		listed = append(listed, id)
	}
	slices.Sort(listed)
	if !slices.Equal(listed, pods) {
		return fmt.Errorf("lists pods %v, want %v", listed, pods)
	}
	return nil
}

// recomputeImages compares on how many nodes each image is, and that its size is one that a node could have shown.
func recomputeImages(st *cluster.State) error {
	nodes := make(map[string]int32)
	for _, i := range nodesOf(st) {
		shown := make(map[string]bool)
		for _, image := range st.Nodes.Spec[i].Images {
			for _, name := range image.Names {
				shown[name] = true
			}
		}
		for name := range shown {
			nodes[name]++
		}
		if len(st.Nodes.Images(i)) != len(shown) {
			return fmt.Errorf("node %d lists %d images, want %d", i, len(st.Nodes.Images(i)), len(shown))
		}
	}
	for sym := range cluster.Symbol(st.Symbols.Len()) {
		name := st.Symbols.Text(sym)
		image := st.Image(sym)
		if image.Nodes != nodes[name] || (image.Size > 0) != (image.Nodes > 0) {
			return fmt.Errorf("image %s is %+v, want %d nodes", name, image, nodes[name])
		}
	}
	return nil
}
