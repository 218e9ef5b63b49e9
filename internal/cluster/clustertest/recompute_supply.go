package clustertest

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// recomputeSupply compares what claims that wait for a consumer can get, and what has been promised to them, with what objects and choices say.
func recomputeSupply(st *cluster.State) error {
	// 1. What has been chosen?
	promised, nodes := make(map[string][2]string), make(map[[3]string][2]string)
	for id, p := range st.Pods() {
		for _, c := range st.Chosen(id) {
			if p.Phase != cluster.Assumed {
				return fmt.Errorf("%v has been chosen for pod %d, which is %v", c, id, p.Phase)
			}
			claim := [3]string{p.Namespace, c.Claim, c.UID}
			if c.Volume != "" {
				promised[c.Volume] = [2]string{p.Namespace, c.Claim}
				nodes[claim] = [2]string{c.Volume}
			} else {
				nodes[claim] = [2]string{"", p.NodeName}
			}
		}
	}
	for claim := range st.PersistentVolumeClaims() {
		volume, node := st.Promise(claim)
		if want := nodes[[3]string{claim.Namespace, claim.Name, claim.UID}]; [2]string{volume, node} != want {
			return fmt.Errorf("claim %s/%s is promised %q on %q, want %q", claim.Namespace, claim.Name, volume, node, want)
		}
	}
	// 2. Which volumes are nobody's?
	free := make(map[string][]string)
	kept := make(map[[2]string][]string)
	for v := range st.PersistentVolumes() {
		_, taken := promised[v.Name]
		if _, _, is := st.Promised(v.Name); is != taken {
			return fmt.Errorf("volume %s is promised: %v, want %v", v.Name, is, taken)
		}
		if v.HasClaim {
			kept[[2]string{v.Claim.Namespace, v.Claim.Name}] = append(kept[[2]string{v.Claim.Namespace, v.Claim.Name}], v.Name)
		} else if v.Class != "" && v.Available && !v.Deleting && !taken {
			free[v.Class] = append(free[v.Class], v.Name)
		}
	}
	for i := range cluster.NodeIndex(st.Nodes.Len()) {
		for _, class := range append([]string{""}, volumeNames...) {
			if err := supplyOf(st, i, class, free[class]); err != nil {
				return fmt.Errorf("class %q on node %d: %w", class, i, err)
			}
		}
	}
	for _, namespace := range append([]string{"", "a", "b"}, namespaces...) {
		for _, name := range append([]string{""}, volumeNames...) {
			var got []string
			for _, v := range st.KeptVolumes(namespace, name) {
				got = append(got, v.Name)
			}
			want := kept[[2]string{namespace, name}]
			if slices.Sort(want); !slices.Equal(got, want) {
				return fmt.Errorf("volumes kept for %s/%s: %v, want %v", namespace, name, got, want)
			}
		}
	}
	return nil
}

// supplyOf compares what there is of a class on a node: all that the node's labels can reach is found, and nothing that is not there.
func supplyOf(st *cluster.State, i cluster.NodeIndex, class string, free []string) error {
	found := make(map[string]bool)
	for sh := range st.FreeVolumes(class, i) {
		if len(sh.Volumes) == 0 || !slices.IsSortedFunc(sh.Volumes, func(a, b *cluster.PersistentVolume) int {
			return cmp.Or(cmp.Compare(a.Capacity, b.Capacity), slices.CompareFunc(a.Labels, b.Labels, func(a, b cluster.Label) int {
				return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Value, b.Value))
			}), cmp.Compare(a.Name, b.Name))
		}) {
			return fmt.Errorf("a shelf is empty or not in order")
		}
		for _, v := range sh.Volumes {
			if !slices.Contains(free, v.Name) || st.PersistentVolume(v.Name) != v {
				return fmt.Errorf("volume %s is not free", v.Name)
			}
			found[v.Name] = true
		}
	}
	labels := st.Node(i).Labels
	for _, name := range free {
		v := st.PersistentVolume(name)
		if st.Nodes.Live.Has(i) && !found[name] && (!v.HasAffinity || slices.ContainsFunc(v.Affinity, func(t cluster.NodeSelectorTerm) bool { return reaches(t, labels) })) {
			return fmt.Errorf("volume %s is not found", name)
		}
	}
	room := make(map[cluster.ObjectKey]bool)
	for c := range st.StorageCapacities(class, i) {
		if c.Class != class || cluster.ObjectAt[*cluster.CSIStorageCapacity](st, c.Key()) != c {
			return fmt.Errorf("capacity %v is not there", c.Key())
		}
		room[c.Key()] = true
	}
	for c := range st.CSIStorageCapacities() {
		if st.Nodes.Live.Has(i) && c.Class == class && !room[c.Key()] && c.Topology.Matches(labels) {
			return fmt.Errorf("capacity %v is not found", c.Key())
		}
	}
	return nil
}

// reaches reports whether nodes with these labels may meet a term, as far as it says In.
func reaches(t cluster.NodeSelectorTerm, labels []cluster.Label) bool {
	if len(t.Expressions) == 0 {
		return len(t.Fields) > 0
	}
	for _, r := range t.Expressions {
		if value, ok := cluster.ValueOf(labels, r.Key); r.Operator == "In" && !(ok && slices.Contains(r.Values, value)) {
			return false
		}
	}
	return true
}
