package explain

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
)

func (w town) set(objects ...cluster.Object) {
	for _, o := range objects {
		apply(w.t, w.st, cluster.ObjectSet{Object: o})
	}
}

// claims adds a pending pod of default with claims, and returns its id.
func (w town) claims(cpu int64, names ...string) cluster.PodID {
	set := cluster.LabelSet{Namespace: "default"}
	for _, name := range names {
		set.Claims = append(set.Claims, cluster.PodClaim{Name: name})
	}
	id := w.st.FreePod()
	apply(w.t, w.st, cluster.LabelsDefined{ID: 90, Set: set}, cluster.ClassDefined{ID: podClass, Spec: fleetSpec(cpu, 1<<30)}, cluster.PodSet{ID: id, Pod: cluster.Pod{
		UID: "shop", Namespace: "default", Name: "shop", Class: podClass, Labels: 90, NeverPreempts: true,
	}})
	return id
}

func claim(name, class string, size int64) *cluster.PersistentVolumeClaim {
	return &cluster.PersistentVolumeClaim{
		Namespace: "default", Name: name, UID: "uid-" + name, Class: class, HasRequest: true, Request: size, AccessModes: []string{"ReadWriteOnce"}, Mode: "Filesystem",
	}
}

func boundTo(name, volume string) *cluster.PersistentVolumeClaim {
	c := claim(name, "", 1<<30)
	c.Volume, c.Bound = volume, true
	return c
}

func volume(name, class string, size int64, key, value string) *cluster.PersistentVolume {
	return &cluster.PersistentVolume{
		Name: name, Class: class, Capacity: size, AccessModes: []string{"ReadWriteOnce"}, Mode: "Filesystem", Available: true,
		HasAffinity: true, Affinity: []cluster.NodeSelectorTerm{{Expressions: []cluster.Requirement{in(key, value)}}},
	}
}

// storageTowns are pods whose claims keep them from nodes, by name.
var storageTowns = map[string]func(t *testing.T) (town, cluster.PodID){
	// Nothing fits: one claim's volume is in a zone whose node is full, another finds none that is large enough, and a third cannot be attached.
	"claims": func(t *testing.T) (town, cluster.PodID) {
		w := newTown(t, house("node-1", "a"), house("node-2", "b"), house("node-3", "b"))
		w.set(
			&cluster.StorageClass{Name: "local", Provisioner: noProvisioner, Mode: cluster.BindToFirstConsumer}, volume("small", "local", 5<<30, hostname, "node-1"),
			claim("data", "local", 10<<30), boundTo("logs", "pv-logs"), volume("pv-logs", "", 1<<30, zone, "b"),
			boundTo("index", "pv-index"), &cluster.PersistentVolume{Name: "pv-index", Driver: "csi.example.com", Handle: "h"},
			&cluster.CSINode{Name: "node-3", Drivers: []cluster.NodeDriver{{Name: "csi.example.com", Limited: true}}},
		)
		return w, w.claims(1000, "data", "logs", "index")
	},
	// A volume is what is missing.
	"claim-volume": func(t *testing.T) (town, cluster.PodID) {
		w := newTown(t, house("node-1", "a"), house("node-2", "b"))
		w.set(&cluster.StorageClass{Name: "fast", Provisioner: noProvisioner, Mode: cluster.BindToFirstConsumer}, volume("small", "fast", 5<<30, zone, "b"), claim("data", "fast", 10<<30))
		return w, w.claims(1000, "data")
	},
	"claim-room": func(t *testing.T) (town, cluster.PodID) {
		w := newTown(t, house("node-1", "a"), house("node-2", "b"))
		w.set(&cluster.StorageClass{Name: "fast", Provisioner: "csi.example.com", Mode: cluster.BindToFirstConsumer}, &cluster.CSIDriver{Name: "csi.example.com", StorageCapacity: true},
			&cluster.CSIStorageCapacity{Namespace: "s", Name: "b", Class: "fast", HasLimit: true, Limit: 4 << 30, Topology: cluster.LabelSelector{Requirements: []cluster.Requirement{in(zone, "b")}}},
			claim("data", "fast", 10<<30))
		return w, w.claims(1000, "data")
	},
	// The volume is where there is no node.
	"claim-zone": func(t *testing.T) (town, cluster.PodID) {
		w := newTown(t, house("node-1", "a"))
		w.set(boundTo("data", "pv"), volume("pv", "", 1<<30, zone, "b"))
		return w, w.claims(1000, "data")
	},
	"claim-missing": func(t *testing.T) (town, cluster.PodID) {
		w := newTown(t, house("node-1", "a"), house("node-2", "b"))
		lost := boundTo("logs", "pv")
		lost.Lost = true
		w.set(lost, claim("late", "slow", 1<<30))
		return w, w.claims(1000, "data", "logs", "late")
	},
	"claim-lost": func(t *testing.T) (town, cluster.PodID) {
		w := newTown(t, house("node-1", "a"))
		lost := boundTo("data", "pv")
		lost.Lost = true
		w.set(lost)
		return w, w.claims(1000, "data")
	},
	"claim-deleting": func(t *testing.T) (town, cluster.PodID) {
		w := newTown(t, house("node-1", "a"))
		deleting := boundTo("data", "pv")
		deleting.Deleting = true
		w.set(deleting, &cluster.PersistentVolume{Name: "pv"})
		return w, w.claims(1000, "data")
	},
	"claim-unbound": func(t *testing.T) (town, cluster.PodID) {
		w := newTown(t, house("node-1", "a"))
		w.set(&cluster.StorageClass{Name: "slow", Provisioner: "csi.example.com", Mode: cluster.BindImmediately}, claim("data", "slow", 1<<30))
		return w, w.claims(1000, "data")
	},
	"claim-used": func(t *testing.T) (town, cluster.PodID) {
		w := newTown(t, house("node-1", "a"), house("node-2", "b"))
		c := boundTo("data", "pv")
		c.AccessModes = []string{"ReadWriteOncePod"}
		w.set(c, &cluster.PersistentVolume{Name: "pv"})
		apply(w.t, w.st, cluster.LabelsDefined{ID: 91, Set: cluster.LabelSet{Namespace: "default", Claims: []cluster.PodClaim{{Name: "data"}}}},
			cluster.PodSet{ID: w.st.FreePod(), Pod: cluster.Pod{UID: "db", Namespace: "default", Name: "db", Class: filler, Labels: 91, NodeName: "node-2"}})
		return w, w.claims(1000, "data")
	},
	// Whoever comes next would attach one volume too many; one more node would have room.
	"claim-limit": func(t *testing.T) (town, cluster.PodID) {
		w := newTown(t, house("node-1", "a"))
		w.set(boundTo("data", "pv"), &cluster.PersistentVolume{Name: "pv", Driver: "csi.example.com", Handle: "h"},
			&cluster.VolumeAttachment{Name: "va", Attacher: "csi.example.com", Node: "node-1", Volume: "other"}, &cluster.PersistentVolume{Name: "other", Driver: "csi.example.com", Handle: "o"},
			&cluster.CSINode{Name: "node-1", Drivers: []cluster.NodeDriver{{Name: "csi.example.com", Limited: true, Limit: 1}}})
		return w, w.claims(1000, "data")
	},
}

func TestWhatWouldHelpClaims(t *testing.T) {
	for name, want := range map[string][]ChangeKind{
		"claims": {AddVolume}, "claim-volume": {AddVolume}, "claim-room": {AddVolume}, "claim-zone": {AddNode}, "claim-missing": {CreateClaim}, "claim-used": nil,
		"claim-lost": {CreateClaim}, "claim-deleting": {CreateClaim}, "claim-unbound": {AddVolume},
		"claim-limit": {AddNode},
	} {
		w, id := storageTowns[name](t)
		x := explained(t, w.st, id)
		var got []ChangeKind
		for k := range x.Changes {
			c := &x.Changes[k]
			got = append(got, c.Kind)
			real := w.st.Clone()
			node := c.makeOn(t, real, id)
			if fits := fitting(real, id); len(fits) != int(c.Opens) || !slices.Contains(fits, node) {
				t.Errorf("%s: %v: it fits %v, want %d with %s", name, c, fits, c.Opens, node)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: told is %v, want %v", name, got, want)
		}
	}
}

// The node takes one volume, which a pod of lower priority uses that is attached. Told is what preemption would do: nothing unless it sees volumes, and
// nothing while it waits for the volume to be detached.
func TestToEvictPodsForTheirVolumesIsToldIfPreemptionSeesThem(t *testing.T) {
	for _, tt := range []struct {
		name           string
		sees, detaches bool
		want           []ChangeKind
		waits          string
	}{
		{"as kube-scheduler", false, false, []ChangeKind{AddNode}, ""},
		{"it sees volumes", true, false, []ChangeKind{AddNode, Preempt}, ""},
		{"it has done so", true, true, []ChangeKind{AddNode}, "not eligible due to volumes that are still attached to the nominated node."},
	} {
		w, id := storageTowns["claim-limit"](t)
		settings := w.st.Settings
		settings.PreemptionSeesVolumes = tt.sees
		apply(t, w.st, cluster.SettingsSet{Settings: settings})
		w.set(boundTo("used", "other"))
		pod := w.st.Pod(id).Pod
		pod.NeverPreempts, pod.Priority = false, 5
		if tt.detaches {
			pod.Nominated = "node-1"
		} else {
			apply(t, w.st, cluster.LabelsDefined{ID: 91, Set: cluster.LabelSet{Namespace: "default", Claims: []cluster.PodClaim{{Name: "used"}}}},
				cluster.PodSet{ID: w.st.FreePod(), Pod: cluster.Pod{UID: "db", Namespace: "default", Name: "db", Class: filler, Labels: 91, NodeName: "node-1"}})
		}
		apply(t, w.st, cluster.PodSet{ID: id, Pod: pod})
		x := explained(t, w.st, id)
		var got []ChangeKind
		for k := range x.Changes {
			got = append(got, x.Changes[k].Kind)
		}
		if !slices.Equal(got, tt.want) || x.NoPreemption != tt.waits {
			t.Errorf("%s: told is %v, and %q; want %v, and %q", tt.name, got, x.NoPreemption, tt.want, tt.waits)
		}
	}
}

// Counts of claims are those of nodes: on the others nothing is in their way.
func TestClaimsAreCounted(t *testing.T) {
	w, id := storageTowns["claims"](t)
	got := make(map[string][2]int32)
	for _, c := range explained(t, w.st, id).Claims {
		sum := int32(0)
		for _, o := range c.Obstacles {
			sum += o.Nodes
		}
		got[c.Name] = [2]int32{c.Nodes, sum}
	}
	for name, want := range map[string][2]int32{"data": {0, 3}, "logs": {2, 1}, "index": {2, 1}} {
		if got[name] != want {
			t.Errorf("%s: nothing is in its way on, and something on %v nodes, want %v", name, got[name], want)
		}
	}
}

// What claims ask for and have, and which pod uses them, is told to those who may know.
func TestClaimsAndTheirUsersAreWithheld(t *testing.T) {
	for name := range storageTowns {
		w, id := storageTowns[name](t)
		x := explained(t, w.st, id)
		x.WithholdClaims()
		x.WithholdNames()
		text := Text(x)
		for _, secret := range []string{"local", "fast", "slow", "pv", "Gi", "csi.example.com", "default/db", "zone=b", "node-2 does"} {
			if secret == "Gi" || secret == "fast" { // requests of the pod are its own
				continue
			}
			if secret == "pv" && name == "claim-lost" { // kube-scheduler's text names it, which is in the pod's condition, too
				continue
			}
			if strings.Contains(text, secret) {
				t.Errorf("%s: %q is told:\n%s", name, secret, text)
			}
		}
	}
}

// A claim that a pod names twice counts a node once.
func TestAClaimThatIsNamedTwiceIsCountedOnce(t *testing.T) {
	w := newTown(t, house("node-1", "a"), house("node-2", "a"))
	labeled := boundTo("logs", "pv-logs")
	inB := volume("pv-logs", "", 1<<30, zone, "b")
	inB.Labels = []cluster.Label{{Key: zone, Value: "b"}}
	w.set(labeled, inB, &cluster.StorageClass{Name: "local", Provisioner: noProvisioner, Mode: cluster.BindToFirstConsumer}, claim("data", "local", 1<<30))
	x := explained(t, w.st, w.claims(1000, "data", "data", "logs", "logs"))
	for _, c := range x.Claims {
		if len(c.Obstacles) == 0 || c.Nodes != 0 {
			t.Errorf("%s: %+v", c.Name, c)
		}
		for _, o := range c.Obstacles {
			if o.Nodes != 2 || !slices.Equal(o.Examples, []string{"node-1", "node-2"}) {
				t.Errorf("%s: %s on %d nodes, %v, want both once", c.Name, o.Reason, o.Nodes, o.Examples)
			}
		}
	}
	bound := 0
	for _, l := range x.Nearest[0].Lacks {
		if l.Of != nil && slices.Equal(l.Of.Claims, []string{"logs"}) {
			bound++
		}
	}
	if bound != 2 { // of two plugins
		t.Errorf("node-1 lacks %d things for claim logs, want 2: %+v", bound, x.Nearest[0].Lacks)
	}
}

// Of a pod that is refused for one claim nobody has looked what is in the way of the others.
func TestNothingIsSaidOfClaimsThatNobodyHasLookedAt(t *testing.T) {
	w := newTown(t, house("node-1", "a"))
	w.set(boundTo("data", "pv"), volume("pv", "", 1<<30, zone, "b"))
	x := explained(t, w.st, w.claims(1000, "data", "missing"))
	if x.Claims[0].Nodes != -1 || x.Claims[1].Nodes != 0 || strings.Contains(Text(x), "in its way on 1 of 1") || strings.Contains(Text(x), "on -1") {
		t.Errorf("nothing is in the way of the claims on %d and %d nodes, want that it is not known and none:\n%s", x.Claims[0].Nodes, x.Claims[1].Nodes, Text(x))
	}
}

// A volume that is to be added counts where it is attached: it is no help where no more can be.
func TestAVolumeThatCannotBeAttachedIsNotToldToHelp(t *testing.T) {
	for limit, want := range map[int32][]ChangeKind{0: nil, 1: {AddVolume}} {
		for provisioner, driver := range map[string]string{"csi.example.com": "csi.example.com", "kubernetes.io/aws-ebs": "ebs.csi.aws.com"} {
			w := newTown(t, house("node-1", "a"))
			w.set(&cluster.StorageClass{Name: "now", Provisioner: provisioner, Mode: cluster.BindImmediately}, claim("data", "now", 1<<30),
				&cluster.CSINode{Name: "node-1", Migrated: []string{"kubernetes.io/aws-ebs"}, Drivers: []cluster.NodeDriver{{Name: driver, Limited: true, Limit: limit}}})
			var got []ChangeKind
			for _, c := range explained(t, w.st, w.claims(1000, "data")).Changes {
				got = append(got, c.Kind)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s, of which %d can be attached: told is %v, want %v", provisioner, limit, got, want)
			}
		}
	}
}

// Volumes that are on one node by the label of their driver are not on a new one.
func TestANewNodeHasNoVolumesOfAnother(t *testing.T) {
	const of = "topology.topolvm.io/node"
	cordoned := func(name string) cluster.Node {
		n := house(name, "a")
		n.Labels, n.Unschedulable = append(n.Labels, cluster.Label{Key: of, Value: name}), true
		return n
	}
	for value, helps := range map[string]bool{"node-1": false, "node-gone": false, "": true} {
		w := newTown(t, cordoned("node-1"), cordoned("node-2"))
		pv := volume("pv", "", 1<<30, of, value)
		if value == "" {
			pv.HasAffinity, pv.Affinity = false, nil
		}
		w.set(boundTo("data", "pv"), pv)
		x := explained(t, w.st, w.claims(1000, "data"))
		if has := slices.ContainsFunc(x.Changes, func(c Change) bool { return c.Kind == AddNode }); has != helps {
			t.Errorf("the volume is of node %q: one more node is told to help: %v, want %v:\n%s", value, has, helps, Text(x))
		}
	}
}

// A claim that names its volume is bound to that one or to none.
func TestNoOtherVolumeIsToldForAClaimThatWantsOne(t *testing.T) {
	for name, tt := range map[string]struct {
		is   *cluster.PersistentVolume
		want string
	}{
		"another's": {&cluster.PersistentVolume{Name: "pv-mine", HasClaim: true, Claim: cluster.ClaimReference{Namespace: "default", Name: "other", UID: "o"}}, ""},
		"free":      {&cluster.PersistentVolume{Name: "pv-mine", Available: true}, ""},
		"not there": {nil, "Add volume pv-mine of class slow with at least 1Gi for claim data. Then it fits node-1."},
	} {
		w := newTown(t, house("node-1", "a"))
		c := claim("data", "slow", 1<<30)
		c.Volume = "pv-mine"
		w.set(&cluster.StorageClass{Name: "slow", Provisioner: "csi.example.com", Mode: cluster.BindImmediately}, c)
		if tt.is != nil {
			w.set(tt.is)
		}
		var got []string
		for _, c := range explained(t, w.st, w.claims(1000, "data")).Changes {
			got = append(got, c.String())
		}
		if strings.Join(got, "; ") != tt.want {
			t.Errorf("its volume is %s: told is %q, want %q", name, got, tt.want)
		}
	}
}

// What no API server takes may be in a file.
func TestAnAffinityWithoutValuesIsNoLabelToGive(t *testing.T) {
	for _, operator := range []string{"Gt", "Lt", "In", "NotIn", "Exists", "Matches"} {
		w := newTown(t, house("node-1", "a"))
		pv := volume("pv", "", 1<<30, zone, "b")
		pv.Affinity[0].Expressions[0] = cluster.Requirement{Key: "generation", Operator: operator}
		w.set(boundTo("data", "pv"), pv)
		x := explained(t, w.st, w.claims(1000, "data"))
		if has := slices.ContainsFunc(x.Changes, func(c Change) bool { return c.Kind == AddNode }); has != (operator == "Exists") {
			t.Errorf("%s: told is %v", operator, x.Changes)
		}
	}
}

// A node like another one keeps the labels that are as the volume wants them.
func TestANewNodeKeepsTheLabelsThatVolumesWant(t *testing.T) {
	n := house("node-1", "a")
	n.Labels = append(n.Labels, cluster.Label{Key: "generation", Value: "7"}, cluster.Label{Key: "ssd", Value: "yes"})
	slices.SortFunc(n.Labels, func(a, b cluster.Label) int { return strings.Compare(a.Key, b.Key) })
	w := newTown(t, n)
	pv := volume("pv", "", 1<<30, zone, "b")
	pv.Affinity[0].Expressions = append(pv.Affinity[0].Expressions, cluster.Requirement{Key: "ssd", Operator: "Exists"},
		cluster.Requirement{Key: "generation", Operator: "Gt", Values: []string{"5"}}, cluster.Requirement{Key: "generation", Operator: "Lt", Values: []string{"9"}},
		cluster.Requirement{Key: "ssd", Operator: "NotIn", Values: []string{"no"}}, cluster.Requirement{Key: "hdd", Operator: "DoesNotExist"})
	w.set(boundTo("data", "pv"), pv)
	var got []string
	for _, c := range explained(t, w.st, w.claims(1000, "data")).Changes {
		got = append(got, c.String())
	}
	if want := []string{"Add one node like node-1, but with " + zone + "=b."}; !slices.Equal(got, want) {
		t.Errorf("told is %q, want %q", got, want)
	}
}

// Of a node that is set aside nobody looks whether something is in a claim's way.
func TestNodesThatAreSetAsideAreNotInTheCountOfAClaim(t *testing.T) {
	aside := house("node-2", "a")
	aside.Unsupported = "too many labels"
	w := newTown(t, house("node-1", "b"), aside)
	w.set(boundTo("data", "pv"), volume("pv", "", 1<<30, zone, "a"))
	if c := explained(t, w.st, w.claims(1000, "data")).Claims[0]; c.Nodes != 0 {
		t.Errorf("nothing is in the way of the claim on %d of 2 nodes, want 0: one is set aside, the other elsewhere", c.Nodes)
	}
}

// A volume that is told is as the claim wants it.
func TestAVolumeIsToldAsTheClaimWantsIt(t *testing.T) {
	w := newTown(t, house("node-1", "a"))
	c := claim("data", "fast", 1<<30)
	c.AccessModes, c.Mode, c.Selector = []string{"ReadWriteMany"}, "Block", cluster.LabelSelector{Requirements: []cluster.Requirement{in("tier", "gold")}}
	late := claim("logs", "slow", 1<<30)
	late.AccessModes, late.AttributesClass = []string{"ReadOnlyMany", "ReadWriteMany"}, "quick"
	w.set(&cluster.StorageClass{Name: "fast", Provisioner: noProvisioner, Mode: cluster.BindToFirstConsumer}, &cluster.StorageClass{Name: "slow", Provisioner: noProvisioner, Mode: cluster.BindImmediately}, c, late)
	for name, want := range map[string]string{
		"data": "Add a volume of class fast with at least 1Gi for ReadWriteMany as a block device labelled tier=gold in zone a for claim data. Then it fits node-1.",
		"logs": "Add a volume of class slow with at least 1Gi for ReadOnlyMany and ReadWriteMany of attributes class quick for claim logs. Then it fits node-1.",
	} {
		w := town{t, w.st.Clone()}
		x := explained(t, w.st, w.claims(1000, name))
		if len(x.Changes) != 1 || x.Changes[0].String() != want {
			t.Errorf("told is %v, want %q", x.Changes, want)
		}
		x.WithholdClaims()
		if text := x.Changes[0].String(); strings.Contains(text, "gold") || strings.Contains(text, "Many") || strings.Contains(text, "quick") {
			t.Errorf("told is %q to who may not know", text)
		}
	}
}

// A claim stays until no pod uses it, though it is deleted: meanwhile there can be no other.
func TestNoClaimIsMadeInTheSteadOfOneInUse(t *testing.T) {
	for name, edit := range map[string]func(*cluster.PersistentVolumeClaim){
		"there is none": nil, "being deleted": func(c *cluster.PersistentVolumeClaim) { c.Deleting = true }, "lost": func(c *cluster.PersistentVolumeClaim) { c.Lost = true },
		"without its volume": func(c *cluster.PersistentVolumeClaim) { c.Volume = "gone" },
	} {
		for _, used := range []bool{false, true} {
			w := newTown(t, house("node-1", "a"), house("node-2", "b"))
			if w.set(&cluster.PersistentVolume{Name: "pv"}); edit != nil {
				c := boundTo("data", "pv")
				edit(c)
				w.set(c)
			}
			if used {
				apply(w.t, w.st, cluster.LabelsDefined{ID: 91, Set: cluster.LabelSet{Namespace: "default", Claims: []cluster.PodClaim{{Name: "data"}}}},
					cluster.PodSet{ID: w.st.FreePod(), Pod: cluster.Pod{UID: "db", Namespace: "default", Name: "db", Class: filler, Labels: 91, NodeName: "node-2"}})
			}
			x := explained(t, w.st, w.claims(1000, "data"))
			if has := slices.ContainsFunc(x.Changes, func(c Change) bool { return c.Kind == CreateClaim }); has == (used && edit != nil) {
				t.Errorf("%s, in use %v: told is %v", name, used, x.Changes)
			}
		}
	}
}

// A claim may select by thousands of labels, and a volume ask for as many. What is told is bounded.
func TestOfManyLabelsSomeAreTold(t *testing.T) {
	for n, want := range map[int]string{4: " labelled l1=v, l2=v, l3=v and l4=v in zone a", 5: " labelled l1=v, l2=v, l3=v and 2 more in zone a"} {
		w := newTown(t, house("node-1", "a"))
		c := claim("data", "fast", 1<<30)
		for k := range n {
			c.Selector.Requirements = append(c.Selector.Requirements, in(fmt.Sprint("l", k+1), "v"))
		}
		w.set(&cluster.StorageClass{Name: "fast", Provisioner: noProvisioner, Mode: cluster.BindToFirstConsumer}, c)
		if x := explained(t, w.st, w.claims(1000, "data")); len(x.Changes) != 1 || !strings.Contains(x.Changes[0].String(), want) {
			t.Errorf("told is %v, want %q", x.Changes, want)
		}
	}
	for n, helps := range map[int]bool{8: true, 9: false} {
		w := newTown(t, house("node-1", "a"))
		pv := volume("pv", "", 1<<30, zone, "b")
		for k := range n - 1 {
			pv.Affinity[0].Expressions = append(pv.Affinity[0].Expressions, in(fmt.Sprint("l", k+1), "v"))
		}
		w.set(boundTo("data", "pv"), pv)
		if x := explained(t, w.st, w.claims(1000, "data")); (len(x.Changes) == 1) != helps {
			t.Errorf("with %d labels: told is %v", n, x.Changes)
		}
	}
}
