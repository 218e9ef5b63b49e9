package clustertest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Dump describes everything that can be read of a state, but for its version and digest, when nodes changed, and how
// it numbers symbols and resources. Two states are equal if their dumps are.
func Dump(st *cluster.State) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	if s := st.Settings; s.Shards > 0 {
		line("settings: %d shards, seed %d, profiles %+v, preemption sees volumes %v, yielded %q to %q", s.Shards, s.Seed, s.Profiles, s.PreemptionSeesVolumes, s.Yielded, s.YieldedTo)
	}
	for _, c := range st.Classes() {
		line("class %d: %d pods, hash %016x, %+v", c.ID, c.Pods, c.Hash, c.Spec)
		if c.Key != c.Spec.Key() || c.Hash != c.Spec.Hash() {
			line("class %d: key or hash is not its spec's", c.ID)
		}
	}
	for _, l := range st.LabelSets() {
		line("labels %d: %d pods, %+v", l.ID, l.Pods, l.LabelSet)
		if l.Key != l.LabelSet.Key() {
			line("labels %d: the key is not that of the set", l.ID)
		}
	}
	line("classes with terms: %v", st.TermClasses())
	for _, name := range slices.Sorted(st.NominatedNodes()) {
		line("nominated to %s: %v", name, st.NominatedOn(name))
	}
	for _, l := range selectorLines(st) {
		line("%s", l)
	}
	for d := range st.Objects() {
		line("%v: %+v %q", d.Object.Key().Kind, d.Object, d.More)
	}
	for _, name := range namespaceNames(st) {
		l, _ := st.Namespace(name)
		line("namespace %s: %v", name, l)
	}
	for i := range cluster.NodeIndex(st.Nodes.Len()) {
		if st.Nodes.Live.Has(i) {
			for _, l := range node(st, i) {
				line("%s", l)
			}
		}
	}
	b.WriteString(Uses(st))
	for id, p := range st.Pods() {
		line("pod %d: %v at %d, preempting %v, victim %v, %+v", id, p.Phase, p.Node, p.Preempting, p.Victim, p.Pod)
		if chosen := st.Chosen(id); len(chosen) > 0 {
			line("pod %d: %+v are chosen", id, chosen)
		}
	}
	line("pods: %d pending, %d assumed, %d bound; nodes: %d",
		st.Count(cluster.Pending), st.Count(cluster.Assumed), st.Count(cluster.Bound), st.Nodes.Count())
	return b.String()
}

// selectorLines describes the services and controllers with the names that Delta gives.
func selectorLines(st *cluster.State) []string {
	var lines []string
	for _, namespace := range namespaces {
		for _, kind := range kinds {
			for _, name := range selectors {
				if s, ok := st.Selector(kind, namespace, name); ok {
					lines = append(lines, fmt.Sprintf("%s %s/%s: %+v", kind, namespace, name, s))
				}
			}
		}
		for name, s := range st.Services(namespace) {
			lines = append(lines, fmt.Sprintf("one of the services of %s, %s: %+v", namespace, name, s))
		}
	}
	slices.Sort(lines)
	return lines
}

func namespaceNames(st *cluster.State) []string {
	names := slices.Clone(namespaces)
	for _, p := range st.Pods() {
		names = append(names, p.Namespace)
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool { _, known := st.Namespace(name); return !known })
}

func node(st *cluster.State, i cluster.NodeIndex) []string {
	n := &st.Nodes
	lines := []string{fmt.Sprintf("node %d: %+v", i, st.Node(i))}
	add := func(format string, args ...any) { lines = append(lines, "  "+fmt.Sprintf(format, args...)) }
	add("by name %d, unschedulable %v, allowed pods %d", n.ByName(n.Spec[i].Name), n.Unschedulable.Has(i), n.AllowedPods[i])
	add("pods %d, non-zero cpu %d, memory %d", n.PodCount[i], n.NonZeroCPU[i], n.NonZeroMemory[i])
	add("allocatable %v", column(st, n.Allocatable, i))
	add("requested %v", column(st, n.Requested, i))
	var labels, taints, images, ports []string
	for _, l := range n.Labels[i] {
		labels = append(labels, st.Symbols.Text(l.Key)+"="+st.Symbols.Text(l.Value))
	}
	for _, t := range n.Taints(i) {
		taints = append(taints, fmt.Sprintf("%s=%s:%d", st.Symbols.Text(t.Key), st.Symbols.Text(t.Value), t.Effect))
	}
	for _, sym := range n.Images(i) {
		images = append(images, fmt.Sprintf("%s %+v", st.Symbols.Text(sym), st.Image(sym)))
	}
	for _, p := range n.Ports[i] {
		ports = append(ports, fmt.Sprintf("%+v", p))
	}
	slices.Sort(labels) // within a node they are by symbol
	slices.Sort(images)
	slices.Sort(ports)
	add("labels %v", labels)
	add("taints %v", taints)
	add("images %v", images)
	add("ports %v", ports)
	var ids []cluster.PodID
	for id := range st.PodsOn(i) {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	add("pod ids %v", ids)
	add("attached %+v, uncounted %q", st.Attached(i), st.UncountedOn(i))
	return lines
}

// column returns what is not zero, by the resource's name.
func column(st *cluster.State, of [][]int64, i cluster.NodeIndex) []string {
	var out []string
	for r := range of {
		if v := of[r][i]; v != 0 {
			out = append(out, fmt.Sprintf("%s=%d", st.ResourceName(cluster.ResourceID(r)), v))
		}
	}
	slices.Sort(out)
	return out
}
