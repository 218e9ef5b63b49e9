package clustertest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Attached is what NodeVolumeLimits counts on a node, by driver and handle, and how many volumes of its pods it fails to count: read
// slowly from pods and objects.
func Attached(st *cluster.State, i cluster.NodeIndex) (all []cluster.Attachment, failing int) {
	found := make(map[[2]string]int)
	at := func(driver, handle string) *cluster.Attachment {
		k, known := found[[2]string{driver, handle}]
		if !known {
			k = len(all)
			found[[2]string{driver, handle}] = k
			all = append(all, cluster.Attachment{Driver: driver, Handle: handle})
		}
		return &all[k]
	}
	if !st.Nodes.Live.Has(i) {
		return nil, 0
	}
	name := st.Node(i).Name
	csiNode := st.CSINode(name) != nil
	use := func(driver, handle string) { at(driver, handle).Uses++ }
	for _, p := range st.PodsOn(i) {
		failing += volumesOf(st, p, csiNode, use)
	}
	for a := range st.VolumeAttachments() {
		v := st.PersistentVolume(a.Volume)
		if a.Node == name && a.Attacher != "" && v != nil && v.Driver != "" {
			at(a.Attacher, v.Handle).Attachments++
		}
	}
	slices.SortFunc(all, func(a, b cluster.Attachment) int {
		return cmp.Or(cmp.Compare(a.Driver, b.Driver), cmp.Compare(a.Handle, b.Handle))
	})
	return all, failing
}

// volumesOf calls use for each volume that a pod uses, as often as it does, and returns how many fail to be counted.
func volumesOf(st *cluster.State, p *cluster.PodRow, csiNode bool, use func(driver, handle string)) (failing int) {
	if l := st.Labels(p.Labels); l != nil {
		for _, by := range l.Claims {
			driver, handle, err := claimed(st, l.Namespace, by, csiNode)
			switch {
			case err != nil:
				failing++
			case driver != "" && handle != "":
				use(driver, handle)
			}
		}
	}
	for _, d := range st.Class(p.Class).Spec.Disks {
		switch {
		case !csiNode:
		case d.Migration.Error != "":
			failing++
		case d.Migration.Driver != "":
			use(d.Migration.Driver, d.Migration.Handle)
		}
	}
	return failing
}

// NomineeVolumes describes what each pod with claims or disks would use that is nominated to a node: read slowly. It counts the pods by volume.
func NomineeVolumes(st *cluster.State) (of map[cluster.PodID]string, pods map[[2]string]int) {
	of, pods = make(map[cluster.PodID]string), make(map[[2]string]int)
	for id, p := range st.Pods() {
		if l := st.Labels(p.Labels); p.Placed() || p.Nominated == "" || len(st.Class(p.Class).Spec.Disks) == 0 && (l == nil || len(l.Claims) == 0) {
			continue
		}
		uses := make(map[[2]string]int)
		failing := volumesOf(st, p, true, func(driver, handle string) { uses[[2]string{driver, handle}]++ })
		of[id] = fmt.Sprint(uses, failing)
		for volume := range uses {
			pods[volume]++
		}
	}
	return of, pods
}

// KeptNomineeVolumes describes what a state has of a nominated pod as NomineeVolumes does.
func KeptNomineeVolumes(st *cluster.State, id cluster.PodID) string {
	of, uses := st.NomineeVolumes(id), make(map[[2]string]int)
	for _, u := range of.Uses {
		uses[[2]string{u.Driver, u.Handle}] += int(u.Uses)
	}
	return fmt.Sprint(uses, of.Failing)
}

// claimed returns what a claim counts as that a pod uses.
func claimed(st *cluster.State, namespace string, by cluster.PodClaim, csiNode bool) (driver, handle string, err error) {
	claim := st.PersistentVolumeClaim(namespace, by.Name)
	switch {
	case by.Name == "":
		return "", "", fmt.Errorf("no name")
	case claim == nil:
		return "", "", nil
	case by.Ephemeral && (claim.Owner == "" || claim.Owner != by.PodUID):
		return "", "", fmt.Errorf("not the owner")
	}
	if v := st.PersistentVolume(claim.Volume); claim.Volume != "" && v != nil {
		if v.Driver == "" && csiNode {
			return v.Migration.Driver, v.Migration.Handle, nil
		}
		return v.Driver, v.Handle, nil
	}
	class := st.StorageClass(claim.Class)
	if claim.Class == "" || class == nil {
		return "", "", nil
	}
	driver = class.Provisioner
	switch driver {
	case "kubernetes.io/azure-file":
		driver = ""
	case "kubernetes.io/aws-ebs":
		if driver = "ebs.csi.aws.com"; !csiNode {
			driver = ""
		}
	}
	return driver, cluster.ClaimHandle(namespace, by.Name), nil
}

// users returns the pods of which each claim counts the uses by name, by namespace and name.
func users(st *cluster.State) map[[2]string][]cluster.PodID {
	out := make(map[[2]string][]cluster.PodID)
	for id, p := range st.Pods() {
		l := st.Labels(p.Labels)
		if l == nil || p.Node == cluster.NoNode {
			continue
		}
		for _, name := range append([]string{""}, volumeNames...) {
			if slices.ContainsFunc(l.Claims, func(c cluster.PodClaim) bool { return c.Name == name && !c.Ephemeral }) {
				key := [2]string{l.Namespace, name}
				out[key] = append(out[key], id)
			}
		}
	}
	return out
}

// recomputeVolumes compares what is attached to nodes, and who uses claims.
func recomputeVolumes(st *cluster.State) error {
	if err := recomputeSupply(st); err != nil {
		return err
	}
	nodes := make(map[[2]string]int)
	for i := range cluster.NodeIndex(st.Nodes.Len() + 1) {
		want, failing := Attached(st, i)
		got := st.Attached(i)
		if !slices.Equal(got, want) {
			return fmt.Errorf("attached to node %d: %+v, want %+v", i, got, want)
		}
		if (st.UncountedOn(i) != "") != (failing > 0) {
			return fmt.Errorf("node %d has %d volumes that fail: %q", i, failing, st.UncountedOn(i))
		}
		left := len(want)
		for _, driver := range append([]string{""}, drivers()...) {
			of := st.AttachedOf(i, driver)
			left -= len(of)
			for k := range of {
				if of[k].Driver != driver || !slices.Contains(want, of[k]) {
					return fmt.Errorf("attached to node %d of %q: %+v", i, driver, of)
				}
			}
		}
		if left != 0 {
			return fmt.Errorf("node %d: %d of %+v are found by no driver", i, left, want)
		}
		for _, a := range want {
			if a.Uses > 0 {
				nodes[[2]string{a.Driver, a.Handle}]++
			}
		}
	}
	nominees, nominated := NomineeVolumes(st)
	for id := range st.Pods() {
		if _, want := nominees[id]; want != (st.NomineeVolumes(id) != nil) {
			return fmt.Errorf("pod %d is a nominee with volumes: %v, want %v", id, !want, want)
		}
	}
	for id, want := range nominees {
		if got := KeptNomineeVolumes(st, id); got != want {
			return fmt.Errorf("nominee %d would use %s, want %s", id, got, want)
		}
	}
	for _, driver := range drivers() {
		for _, handle := range handles() {
			volume := [2]string{driver, handle}
			if on, to, since := st.VolumeUsers(driver, handle); on != nodes[volume] || to != nominated[volume] || since > st.Version().Seq {
				return fmt.Errorf("%s %q is used on %d nodes and by %d nominees since %d, want %d and %d", driver, handle, on, to, since, nodes[volume], nominated[volume])
			}
		}
	}
	want := users(st)
	for _, namespace := range namespaces {
		for _, name := range append([]string{""}, volumeNames...) {
			ids := slices.Sorted(st.ClaimUserIDs(namespace, name))
			if of := want[[2]string{namespace, name}]; !slices.Equal(ids, of) || st.ClaimUsers(namespace, name) != len(of) {
				return fmt.Errorf("users of %s/%s: %v, %d, want %v", namespace, name, ids, st.ClaimUsers(namespace, name), of)
			}
			for _, csiNode := range []bool{false, true} {
				driver, handle, _ := claimed(st, namespace, cluster.PodClaim{Name: name}, csiNode)
				if handle == "" || driver == "" {
					driver, handle = "", ""
				}
				if d, h := st.ClaimVolume(namespace, name).On(csiNode); d != driver || h != handle {
					return fmt.Errorf("%s/%s counts as %q %q, want %q %q", namespace, name, d, h, driver, handle)
				}
			}
		}
	}
	return nil
}

// drivers are those that Delta gives.
func drivers() []string {
	return append([]string{"ebs.csi.aws.com", noProvisioner}, volumeNames...)
}

// handles are those that Delta gives, and of claims.
func handles() []string {
	all := append([]string{""}, volumeNames...)
	for _, namespace := range namespaces {
		for _, name := range volumeNames {
			all = append(all, cluster.ClaimHandle(namespace, name))
		}
	}
	return all
}

// Uses describes who uses claims, and on how many nodes and by how many nominees volumes are used, of those that Delta gives.
func Uses(st *cluster.State) string {
	var b strings.Builder
	for _, namespace := range namespaces {
		for _, name := range append([]string{""}, volumeNames...) {
			fmt.Fprintf(&b, "claim %s/%s: users %v\n", namespace, name, slices.Sorted(st.ClaimUserIDs(namespace, name)))
		}
	}
	for _, driver := range drivers() {
		for _, handle := range handles() {
			on, to, _ := st.VolumeUsers(driver, handle)
			fmt.Fprintf(&b, "%s %q: used on %d nodes and by %d nominees\n", driver, handle, on, to)
		}
	}
	return b.String()
}
