package explain

import (
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
			if strings.Contains(text, secret) {
				t.Errorf("%s: %q is told:\n%s", name, secret, text)
			}
		}
	}
}
