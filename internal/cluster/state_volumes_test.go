package cluster_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
)

const (
	ebs    = "ebs.csi.aws.com"
	ebsOld = "kubernetes.io/aws-ebs"
)

func set(objects ...cluster.Object) []cluster.Delta {
	var out []cluster.Delta
	for _, o := range objects {
		out = append(out, cluster.ObjectSet{Object: o})
	}
	return out
}

// pods returns deltas that put pods on nodes by their names: pod k has the k-th set of claims, and all have the same disks.
func pods(disks []cluster.Disk, on string, claims ...[]cluster.PodClaim) []cluster.Delta {
	out := []cluster.Delta{cluster.ClassDefined{ID: 1, Spec: cluster.ClassSpec{Disks: disks}}}
	for k, of := range claims {
		id := cluster.LabelsID(k + 1)
		out = append(out, cluster.LabelsDefined{ID: id, Set: cluster.LabelSet{Namespace: "shop", Claims: of}}, cluster.PodSet{
			ID: cluster.PodID(k), Pod: cluster.Pod{UID: fmt.Sprint("uid-", k), Namespace: "shop", Name: fmt.Sprint("pod-", k), Class: 1, Labels: id, NodeName: on},
		})
	}
	return out
}

func TestVolumesAreAttachedAsNodeVolumeLimitsCountsThem(t *testing.T) {
	claim := func(name string, change func(*cluster.PersistentVolumeClaim)) *cluster.PersistentVolumeClaim {
		c := &cluster.PersistentVolumeClaim{Namespace: "shop", Name: name, Class: "fast", Volume: "v"}
		change(c)
		return c
	}
	bound := claim("c", func(*cluster.PersistentVolumeClaim) {})
	unbound := claim("c", func(c *cluster.PersistentVolumeClaim) { c.Volume = "" })
	csi := &cluster.PersistentVolume{Name: "v", Driver: "d", Handle: "h"}
	inTree := &cluster.PersistentVolume{Name: "v", Migration: cluster.Migration{Plugin: ebsOld, Driver: ebs, Handle: "vol-1"}}
	fast := &cluster.StorageClass{Name: "fast", Provisioner: "d"}
	csiNode := &cluster.CSINode{Name: "n"}
	uses := []cluster.PodClaim{{Name: "c"}}
	disk := func(m cluster.Migration) []cluster.Disk { return []cluster.Disk{{Migration: m}} }
	one := func(driver, handle string) []cluster.Attachment {
		return []cluster.Attachment{{Driver: driver, Handle: handle, Uses: 1}}
	}
	for _, c := range []struct {
		name    string
		objects []cluster.Object
		disks   []cluster.Disk
		claims  [][]cluster.PodClaim
		want    []cluster.Attachment
		error   string
	}{
		{"a bound claim", []cluster.Object{bound, csi}, nil, [][]cluster.PodClaim{uses}, one("d", "h"), ""},
		{"a claim that is not there", []cluster.Object{csi}, nil, [][]cluster.PodClaim{uses}, nil, ""},
		{"a claim without a volume counts for its class", []cluster.Object{unbound, fast}, nil, [][]cluster.PodClaim{uses}, one("d", cluster.ClaimHandle("shop", "c")), ""},
		{"a claim whose volume is gone counts for its class", []cluster.Object{bound, fast}, nil, [][]cluster.PodClaim{uses}, one("d", cluster.ClaimHandle("shop", "c")), ""},
		{"a claim without a volume whose class is not there", []cluster.Object{unbound}, nil, [][]cluster.PodClaim{uses}, nil, ""},
		{
			"a claim without a volume and a class", []cluster.Object{claim("c", func(c *cluster.PersistentVolumeClaim) { c.Volume, c.Class = "", "" }), &cluster.StorageClass{Provisioner: "d"}},
			nil, [][]cluster.PodClaim{uses}, nil, "",
		},
		{"a class whose plugin is replaced", []cluster.Object{unbound, &cluster.StorageClass{Name: "fast", Provisioner: ebsOld}, csiNode}, nil, [][]cluster.PodClaim{uses}, one(ebs, cluster.ClaimHandle("shop", "c")), ""},
		{"a class whose plugin is not replaced on the node", []cluster.Object{unbound, &cluster.StorageClass{Name: "fast", Provisioner: ebsOld}}, nil, [][]cluster.PodClaim{uses}, nil, ""},
		{"a class whose plugin is never taken to be replaced", []cluster.Object{unbound, &cluster.StorageClass{Name: "fast", Provisioner: "kubernetes.io/vsphere-volume"}, csiNode}, nil, [][]cluster.PodClaim{uses}, nil, ""},
		{"an in-tree volume", []cluster.Object{bound, inTree}, nil, [][]cluster.PodClaim{uses}, nil, ""},
		{"an in-tree volume on a node with a CSINode", []cluster.Object{bound, inTree, csiNode}, nil, [][]cluster.PodClaim{uses}, one(ebs, "vol-1"), ""},
		{"a volume that is none to CSI", []cluster.Object{bound, &cluster.PersistentVolume{Name: "v"}, fast, csiNode}, nil, [][]cluster.PodClaim{uses}, nil, ""},
		{"a claim that two pods use", []cluster.Object{bound, csi}, nil, [][]cluster.PodClaim{uses, uses}, []cluster.Attachment{{Driver: "d", Handle: "h", Uses: 2}}, ""},
		{
			"two claims of a volume", []cluster.Object{bound, claim("b", func(*cluster.PersistentVolumeClaim) {}), csi}, nil,
			[][]cluster.PodClaim{{{Name: "b"}, {Name: "c"}}}, []cluster.Attachment{{Driver: "d", Handle: "h", Uses: 2}}, "",
		},
		{
			"an ephemeral volume", []cluster.Object{claim("c", func(c *cluster.PersistentVolumeClaim) { c.Owner = "uid-0" }), csi}, nil,
			[][]cluster.PodClaim{{{Name: "c", Ephemeral: true, PodUID: "uid-0"}}}, one("d", "h"), "",
		},
		{
			"an ephemeral volume whose claim is another's", []cluster.Object{bound, csi}, nil,
			[][]cluster.PodClaim{{{Name: "c", Ephemeral: true, PodUID: "uid-0"}}}, nil, "PVC shop/c was not created for pod shop/pod-0 (pod is not owner)",
		},
		{"an ephemeral volume whose claim is not there yet", []cluster.Object{csi}, nil, [][]cluster.PodClaim{{{Name: "c", Ephemeral: true, PodUID: "uid-0"}}}, nil, ""},
		{"a claim without a name", []cluster.Object{bound, csi}, nil, [][]cluster.PodClaim{uses, {{}}}, one("d", "h"), "PersistentVolumeClaim had no name"},
		{"a disk", []cluster.Object{csiNode}, disk(inTree.Migration), [][]cluster.PodClaim{nil}, one(ebs, "vol-1"), ""},
		{"a disk on a node without a CSINode", nil, disk(inTree.Migration), [][]cluster.PodClaim{nil}, nil, ""},
		{"a disk that is none to CSI", []cluster.Object{csiNode}, []cluster.Disk{{Kind: cluster.DiskRBD, ID: "i"}}, [][]cluster.PodClaim{nil}, nil, ""},
		{"a disk that cannot be translated", []cluster.Object{csiNode}, disk(cluster.Migration{Plugin: ebsOld, Error: "why"}), [][]cluster.PodClaim{nil}, nil, "why"},
		{"a disk that need not be translated", nil, disk(cluster.Migration{Plugin: ebsOld, Error: "why"}), [][]cluster.PodClaim{nil}, nil, ""},
		{
			"a VolumeAttachment", []cluster.Object{csi, &cluster.VolumeAttachment{Name: "a", Attacher: "e", Node: "n", Volume: "v"}}, nil, nil,
			[]cluster.Attachment{{Driver: "e", Handle: "h", Attachments: 1}}, "",
		},
		{
			"a VolumeAttachment of what a pod uses", []cluster.Object{bound, csi, &cluster.VolumeAttachment{Name: "a", Attacher: "d", Node: "n", Volume: "v"}}, nil,
			[][]cluster.PodClaim{uses}, []cluster.Attachment{{Driver: "d", Handle: "h", Uses: 1, Attachments: 1}}, "",
		},
		{"a VolumeAttachment of an in-tree volume", []cluster.Object{inTree, csiNode, &cluster.VolumeAttachment{Name: "a", Attacher: ebs, Node: "n", Volume: "v"}}, nil, nil, nil, ""},
		{"a VolumeAttachment of no volume", []cluster.Object{csi, &cluster.VolumeAttachment{Name: "a", Attacher: "d", Node: "n"}}, nil, nil, nil, ""},
		{"a VolumeAttachment without an attacher", []cluster.Object{csi, &cluster.VolumeAttachment{Name: "a", Node: "n", Volume: "v"}}, nil, nil, nil, ""},
		{"a VolumeAttachment elsewhere", []cluster.Object{csi, &cluster.VolumeAttachment{Name: "a", Attacher: "d", Node: "m", Volume: "v"}}, nil, nil, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			// In whatever order they become known.
			node := []cluster.Delta{cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "n"}}}
			groups := [][]cluster.Delta{node, set(c.objects...), pods(c.disks, "n", c.claims...)}
			for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
				st := cluster.New(start)
				for _, k := range order {
					apply(t, st, groups[k]...)
				}
				if diff := cmp.Diff(c.want, st.Attached(0)); diff != "" {
					t.Errorf("in order %v, attached (-want +got):\n%s", order, diff)
				}
				if got := st.UncountedOn(0); got != c.error {
					t.Errorf("in order %v, not counted: %q, want %q", order, got, c.error)
				}
			}
		})
	}
}

func TestAPodOnANodeThatIsNotKnownUsesNoClaim(t *testing.T) {
	st := cluster.New(start)
	apply(t, st, pods(nil, "n", []cluster.PodClaim{{Name: "c"}, {Name: "c"}})...)
	if got := st.ClaimUsers("shop", "c"); got != 0 {
		t.Errorf("%d pods use the claim, their node is not known", got)
	}
	apply(t, st, cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "n"}})
	if got := slices.Collect(st.ClaimUserIDs("shop", "c")); st.ClaimUsers("shop", "c") != 1 || !slices.Equal(got, []cluster.PodID{0}) {
		t.Errorf("pods %v use the claim, want that of the node", got)
	}
	if got := st.ClaimUsers("lab", "c"); got != 0 {
		t.Errorf("%d pods use the claim of another namespace", got)
	}
}

func TestTheErrorOfANodeIsThatOfItsPodWithTheLeastID(t *testing.T) {
	for _, order := range [][]cluster.PodID{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}} {
		st := cluster.New(start)
		apply(t, st, pods(nil, "", nil, []cluster.PodClaim{{}}, []cluster.PodClaim{{Name: "c", Ephemeral: true}})...)
		apply(t, st, set(&cluster.PersistentVolumeClaim{Namespace: "shop", Name: "c"})...)
		apply(t, st, cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "n"}})
		for _, id := range order {
			apply(t, st, cluster.PodAssumed{ID: id, Node: 0})
		}
		if got, want := st.UncountedOn(0), "PersistentVolumeClaim had no name"; got != want {
			t.Errorf("in order %v: %q, want %q", order, got, want)
		}
	}
}

func TestWhatAPodUsesIsWhatItsNodeHasMoreOfThem(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	st := cluster.New(start)
	used := 0
	for range 12000 {
		d := clustertest.Delta(random.IntN, st)
		assumed, ok := d.(cluster.PodAssumed)
		if !ok {
			apply(t, st, d)
			continue
		}
		p := st.Pod(assumed.ID)
		before := slices.Clone(st.Attached(assumed.Node))
		uses := st.PodVolumes(st.Class(p.Class), st.Labels(p.Labels)).Uses
		apply(t, st, d)
		if st.CSINode(st.Nodes.Spec[assumed.Node].Name) == nil {
			continue
		}
		for _, a := range st.Attached(assumed.Node) {
			for _, more := range [][]cluster.Attachment{before, uses} {
				for _, b := range more {
					if b.Driver == a.Driver && b.Handle == a.Handle {
						a.Uses -= b.Uses
						a.Attachments -= b.Attachments
					}
				}
			}
			if a.Uses != 0 || a.Attachments != 0 {
				t.Fatalf("there were %+v, the pod uses %+v, and yet there are %+v", before, uses, st.Attached(assumed.Node))
			}
		}
		used += len(uses)
	}
	if used < 20 {
		t.Errorf("pods used %d volumes", used)
	}
}

// What a nominated pod would use has changed only if it is another volume.
func TestWhoUsesVolumesHasNotChangedIfANomineeFailsToCountOne(t *testing.T) {
	st := cluster.New(start)
	made := func(owner string) []cluster.Delta {
		return set(&cluster.PersistentVolumeClaim{Namespace: "shop", Name: "made", Owner: owner})
	}
	apply(t, st, set(&cluster.PersistentVolumeClaim{Namespace: "shop", Name: "c", Volume: "v"}, &cluster.PersistentVolume{Name: "v", Driver: "d", Handle: "h"})...)
	apply(t, st, made("uid-0")...)
	apply(t, st, pods(nil, "", []cluster.PodClaim{{Name: "c"}, {Name: "made", Ephemeral: true, PodUID: "uid-0"}})...)
	apply(t, st, cluster.PodNominated{ID: 0, Node: "n"})
	was, before := st.VolumeUsesModified(), *st.NomineeVolumes(0)
	apply(t, st, made("another")...)
	is := *st.NomineeVolumes(0)
	if is.Failing != before.Failing+1 || !slices.Equal(is.Uses, before.Uses) || len(is.Uses) != 1 {
		t.Fatalf("it would use %+v, and now %+v", before, is)
	}
	if st.VolumeUsesModified() != was {
		t.Errorf("who uses volumes counts as changed")
	}
	apply(t, st, set(&cluster.PersistentVolume{Name: "v", Driver: "d", Handle: "other"})...)
	if _, nominees, _ := st.VolumeUsers("d", "other"); nominees != 1 || st.VolumeUsesModified() == was {
		t.Errorf("%d nominees use another volume, and who uses volumes counts as changed: %v", nominees, st.VolumeUsesModified() != was)
	}
}

// A tenant may have thousands of claims name one volume, and a pod use them all.
func TestAVolumeOfAllClaimsOfAPodIsChangedInLittleRoom(t *testing.T) {
	const many, most = 4000, 32 << 20
	st := cluster.New(start)
	apply(t, st, cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "n"}})
	claims := make([]cluster.PodClaim, many)
	for i := range claims {
		claims[i].Name = fmt.Sprint("c", i)
		apply(t, st, set(&cluster.PersistentVolumeClaim{Namespace: "shop", Name: claims[i].Name, Volume: "v"})...)
	}
	apply(t, st, pods(nil, "n", claims)...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	apply(t, st, set(&cluster.PersistentVolume{Name: "v", Driver: "d", Handle: "h"})...)
	runtime.ReadMemStats(&after)
	if got := st.Attached(0); len(got) != 1 || got[0].Uses != many {
		t.Errorf("attached: %v", got)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > most {
		t.Errorf("it takes %d KiB, want %d at most", took>>10, most>>10)
	}
}

func TestANodeKeepsNoRoomForPodsThatHaveLeft(t *testing.T) {
	const many = 4000
	st := cluster.New(start)
	apply(t, st, cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "n"}})
	apply(t, st, set(&cluster.PersistentVolume{Name: "v", Driver: "d", Handle: "h"}, &cluster.VolumeAttachment{Name: "a", Attacher: "d", Node: "n", Volume: "v"},
		&cluster.StorageClass{Name: "fast", Provisioner: "d"})...)
	claims := make([]cluster.PodClaim, many)
	for i := range claims {
		claims[i].Name = fmt.Sprint("c", i)
		apply(t, st, set(&cluster.PersistentVolumeClaim{Namespace: "shop", Name: claims[i].Name, Class: "fast"})...)
	}
	apply(t, st, pods(nil, "n", claims)...)
	if n := len(st.Attached(0)); n != many+1 {
		t.Fatalf("%d are attached", n)
	}
	apply(t, st, cluster.PodRemoved{ID: 0})
	if got := st.Attached(0); len(got) != 1 || cap(got) > 64 {
		t.Errorf("%d are attached, with room for %d", len(got), cap(got))
	}
}

// TestManyVolumesAreCountedLikeFew has nodes with some hundred volumes, claims with many users, and pods with many claims, which the small
// worlds of other tests do not.
func TestManyVolumesAreCountedLikeFew(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	const steps = 1500
	st := cluster.New(start)
	apply(t, st, cluster.ClassDefined{ID: 1, Spec: cluster.ClassSpec{Disks: []cluster.Disk{{Migration: cluster.Migration{Plugin: ebsOld, Driver: ebs, Handle: "disk"}}}}})
	was := readVolumes(st)
	most := struct{ volumes, users, failing, anywhere, nominees int }{}
	for step := range steps {
		if random.IntN(100) == 0 {
			st = st.Clone()
		}
		d := manyVolumes(random, step, st)
		if d == nil {
			continue
		}
		apply(t, st, d)
		is := readVolumes(st)
		if kept := keptVolumes(st); !reflect.DeepEqual(is, kept) {
			t.Fatalf("step %d, after %+v (-want +got):\n%s", step, d, cmp.Diff(is, kept))
		}
		if got := st.VolumeUsesModified() == st.Version().Seq; !got && (!reflect.DeepEqual(is.Users, was.Users) || !reflect.DeepEqual(is.Nodes, was.Nodes)) {
			t.Fatalf("step %d, after %+v: who uses volumes has changed, and does not count as changed", step, d)
		}
		about := cluster.NoNode
		switch d := d.(type) {
		case cluster.ObjectSet:
			if d.Object.Key().Kind == cluster.CSINodeKind {
				about = st.Nodes.ByName(d.Object.Key().Name)
			}
		case cluster.ObjectRemoved:
			if d.Kind == cluster.CSINodeKind {
				about = st.Nodes.ByName(d.Name)
			}
		default:
			was = is
			continue
		}
		for i := range min(someNodes, st.Nodes.Len()) {
			changed := !slices.Equal(is.Attached[i], was.Attached[i]) || is.Failing[i] != was.Failing[i] || cluster.NodeIndex(i) == about
			for id, uses := range is.Nominees {
				changed = changed || uses != was.Nominees[id] && st.Nodes.ByName(st.Pod(id).Nominated) == cluster.NodeIndex(i)
			}
			if got := st.Nodes.Modified[i] == st.Version().Seq; got != changed {
				t.Fatalf("step %d, after %+v, node %d counts as changed: %v, want %v", step, d, i, got, changed)
			}
			most.volumes, most.failing = max(most.volumes, len(is.Attached[i])), max(most.failing, is.Failing[i])
		}
		most.nominees = max(most.nominees, len(is.Nominees))
		for _, ids := range is.Users {
			most.users = max(most.users, len(ids))
		}
		for _, n := range is.Nodes {
			most.anywhere = max(most.anywhere, n)
		}
		was = is
	}
	if most.volumes < 50 || most.users < 17 || most.failing < 10 || most.anywhere < 3 || most.nominees < 5 {
		t.Errorf("at most %+v: too few to say much", most)
	}
}

const (
	someClaims  = 60
	someVolumes = 120
	someNodes   = 3
	somePods    = 60
)

// manyVolumes returns a delta in a world in which much is attached to few nodes, or nil.
func manyVolumes(random *rand.Rand, step int, st *cluster.State) cluster.Delta {
	node := func() string { return fmt.Sprint("n", random.IntN(someNodes)) }
	volume := func() string { return fmt.Sprint("v", random.IntN(someVolumes)) }
	claim := func() string { return fmt.Sprint("c", random.IntN(someClaims)) }
	setOrRemoved := func(o cluster.Object, outOf int) cluster.Delta {
		if random.IntN(outOf) == 0 {
			return cluster.ObjectRemoved{ObjectKey: o.Key()}
		}
		return cluster.ObjectSet{Object: o}
	}
	switch random.IntN(14) {
	case 0:
		name := node()
		if at := st.Nodes.ByName(name); at == cluster.NoNode {
			return cluster.NodeSet{Index: st.Nodes.Free(), Node: cluster.Node{Name: name}}
		} else if random.IntN(12) == 0 {
			return cluster.NodeRemoved{Index: at}
		}
	case 1, 2, 3:
		// Defined with its pod, as all deltas here are compared.
		uid := fmt.Sprint("uid-", random.IntN(somePods))
		if _, known := st.PodByUID(uid); known {
			return nil
		}
		labels := cluster.LabelSet{Namespace: "shop"}
		for range random.IntN(60) {
			by := cluster.PodClaim{Name: claim()}
			if random.IntN(4) == 0 {
				by.Ephemeral, by.PodUID = true, uid
			}
			labels.Claims = append(labels.Claims, by)
		}
		if err := st.Apply(cluster.LabelsDefined{ID: cluster.LabelsID(step + 1), Set: labels}); err != nil {
			panic(err)
		}
		pod := cluster.Pod{UID: uid, Class: 1, Labels: cluster.LabelsID(step + 1), NodeName: node()}
		if random.IntN(7) == 0 {
			pod.NodeName, pod.Nominated = "", pod.NodeName
		}
		return cluster.PodSet{ID: st.FreePod(), Pod: pod}
	case 4:
		if id := cluster.PodID(random.IntN(somePods)); st.Pod(id) != nil {
			return cluster.PodRemoved{ID: id}
		}
	case 5, 6, 7:
		c := &cluster.PersistentVolumeClaim{Namespace: "shop", Name: claim(), Volume: volume(), Class: "fast", Owner: fmt.Sprint("uid-", random.IntN(somePods))}
		if random.IntN(4) == 0 {
			c.Volume = ""
		}
		return setOrRemoved(c, 12)
	case 8, 9, 10:
		v := &cluster.PersistentVolume{Name: volume(), Driver: fmt.Sprint("d", random.IntN(2)), Handle: fmt.Sprint(random.IntN(someVolumes))}
		if random.IntN(4) == 0 {
			v.Driver, v.Handle, v.Migration = "", "", cluster.Migration{Plugin: ebsOld, Driver: ebs, Handle: v.Handle}
		}
		return setOrRemoved(v, 4)
	case 11, 12:
		return setOrRemoved(&cluster.VolumeAttachment{Name: fmt.Sprint("a", random.IntN(someVolumes)), Attacher: "d1", Node: node(), Volume: volume()}, 4)
	case 13:
		if random.IntN(3) == 0 {
			return setOrRemoved(&cluster.StorageClass{Name: "fast", Provisioner: []string{"d0", "d1", ebsOld}[random.IntN(3)]}, 6)
		}
		return setOrRemoved(&cluster.CSINode{Name: node()}, 3)
	}
	return nil
}

// theVolumes are what follows from all volumes of a world of manyVolumes.
type theVolumes struct {
	Attached [][]cluster.Attachment
	Failing  []int
	Users    map[string][]cluster.PodID
	Nodes    map[[2]string]int // nodes on which pods use a volume, and nominees that would
	Nominees map[cluster.PodID]string
}

// readVolumes reads it slowly, and keptVolumes what the state has of it.
func readVolumes(st *cluster.State) theVolumes {
	out := theVolumes{Users: make(map[string][]cluster.PodID), Nodes: make(map[[2]string]int)}
	for i := range cluster.NodeIndex(someNodes) {
		all, failing := clustertest.Attached(st, i)
		out.Attached, out.Failing = append(out.Attached, all), append(out.Failing, failing)
		for _, a := range all {
			if a.Uses > 0 {
				out.Nodes[[2]string{a.Driver, a.Handle}]++
			}
		}
	}
	var nominated map[[2]string]int
	out.Nominees, nominated = clustertest.NomineeVolumes(st)
	for volume, n := range nominated {
		out.Nodes[volume] += n
	}
	for id, p := range st.Pods() {
		for _, by := range st.Labels(p.Labels).Claims {
			if p.Node != cluster.NoNode && !by.Ephemeral && !slices.Contains(out.Users[by.Name], id) {
				out.Users[by.Name] = append(out.Users[by.Name], id)
			}
		}
	}
	return out
}

func keptVolumes(st *cluster.State) theVolumes {
	out := theVolumes{Users: make(map[string][]cluster.PodID), Nodes: make(map[[2]string]int), Nominees: make(map[cluster.PodID]string)}
	for id := range st.Pods() {
		if st.NomineeVolumes(id) != nil {
			out.Nominees[id] = clustertest.KeptNomineeVolumes(st, id)
		}
	}
	for i := range cluster.NodeIndex(someNodes) {
		out.Attached = append(out.Attached, st.Attached(i))
		failing := st.Uncounted(i)
		if (failing > 0) != (st.UncountedOn(i) != "") {
			failing = -1
		}
		out.Failing = append(out.Failing, failing)
	}
	for k := range someClaims {
		if name := fmt.Sprint("c", k); st.ClaimUsers("shop", name) > 0 {
			out.Users[name] = slices.Sorted(st.ClaimUserIDs("shop", name))
		}
	}
	keep := func(driver, handle string) {
		if on, to, _ := st.VolumeUsers(driver, handle); on+to != 0 {
			out.Nodes[[2]string{driver, handle}] = on + to
		}
	}
	for _, driver := range []string{"d0", "d1", ebs} {
		keep(driver, "disk")
		for k := range someVolumes {
			keep(driver, fmt.Sprint(k))
		}
		for k := range someClaims {
			keep(driver, cluster.ClaimHandle("shop", fmt.Sprint("c", k)))
		}
	}
	return out
}
