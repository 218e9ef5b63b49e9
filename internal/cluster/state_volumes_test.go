package cluster_test

import (
	"fmt"
	"math/rand/v2"
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

func TestWhatAPodUsesIsWhatItsNodeHasMoreOfThem(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	st := cluster.New(start)
	used := 0
	for range 6000 {
		d := clustertest.Delta(random.IntN, st)
		assumed, ok := d.(cluster.PodAssumed)
		if !ok {
			apply(t, st, d)
			continue
		}
		p := st.Pod(assumed.ID)
		before := slices.Clone(st.Attached(assumed.Node))
		uses, _ := st.Uses(st.Class(p.Class), st.Labels(p.Labels), st.CSINode(st.Nodes.Spec[assumed.Node].Name) != nil)
		apply(t, st, d)
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

// TestManyVolumesAreCountedLikeFew has nodes with some hundred volumes, claims with many users, and pods with many claims, which the small
// worlds of other tests do not.
func TestManyVolumesAreCountedLikeFew(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	const claims, volumes, nodes = 90, 120, 3
	st := cluster.New(start)
	apply(t, st, cluster.ClassDefined{ID: 1})
	node := func() string { return fmt.Sprint("n", random.IntN(nodes)) }
	volume := func() string { return fmt.Sprint("v", random.IntN(volumes)) }
	most := 0
	for step := range 4000 {
		var d cluster.Delta
		switch random.IntN(12) {
		case 0:
			name := node()
			at := st.Nodes.ByName(name)
			if at != cluster.NoNode && random.IntN(8) == 0 {
				d = cluster.NodeRemoved{Index: at}
			} else if at == cluster.NoNode {
				d = cluster.NodeSet{Index: st.Nodes.Free(), Node: cluster.Node{Name: name}}
			}
		case 1, 2, 3:
			id := cluster.LabelsID(step + 1)
			set := cluster.LabelSet{Namespace: "shop"}
			for range random.IntN(40) {
				set.Claims = append(set.Claims, cluster.PodClaim{Name: fmt.Sprint("c", random.IntN(claims))})
			}
			apply(t, st, cluster.LabelsDefined{ID: id, Set: set})
			d = cluster.PodSet{ID: st.FreePod(), Pod: cluster.Pod{UID: fmt.Sprint(step), Class: 1, Labels: id, NodeName: node()}}
		case 4, 5:
			if id := cluster.PodID(random.IntN(60)); st.Pod(id) != nil {
				d = cluster.PodRemoved{ID: id}
			}
		case 6, 7:
			claim := &cluster.PersistentVolumeClaim{Namespace: "shop", Name: fmt.Sprint("c", random.IntN(claims)), Volume: volume(), Class: "fast"}
			if random.IntN(4) == 0 {
				claim.Volume = ""
			}
			d = cluster.ObjectSet{Object: claim}
		case 8, 9:
			v := &cluster.PersistentVolume{Name: volume(), Driver: fmt.Sprint("d", random.IntN(2)), Handle: fmt.Sprint(random.IntN(volumes))}
			if d = (cluster.ObjectSet{Object: v}); random.IntN(4) == 0 {
				d = cluster.ObjectRemoved{ObjectKey: v.Key()}
			}
		case 10:
			a := &cluster.VolumeAttachment{Name: fmt.Sprint("a", random.IntN(volumes)), Attacher: "d1", Node: node(), Volume: volume()}
			if d = (cluster.ObjectSet{Object: a}); random.IntN(4) == 0 {
				d = cluster.ObjectRemoved{ObjectKey: a.Key()}
			}
		case 11:
			if random.IntN(2) == 0 {
				d = cluster.ObjectSet{Object: &cluster.StorageClass{Name: "fast", Provisioner: fmt.Sprint("d", random.IntN(2))}}
			} else {
				d = cluster.ObjectSet{Object: &cluster.CSINode{Name: node()}}
			}
		}
		if d == nil {
			continue
		}
		if random.IntN(100) == 0 {
			st = st.Clone()
		}
		apply(t, st, d)
		for i := range cluster.NodeIndex(st.Nodes.Len()) {
			want, _ := clustertest.Attached(st, i)
			if !slices.Equal(want, st.Attached(i)) {
				t.Fatalf("step %d, after %+v, node %d (-want +got):\n%s", step, d, i, cmp.Diff(want, st.Attached(i)))
			}
			most = max(most, len(want))
		}
	}
	if most < 80 {
		t.Errorf("no node had more than %d volumes", most)
	}
}
