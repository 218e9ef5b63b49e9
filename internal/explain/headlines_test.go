package explain

import (
	"slices"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// driver is that of the volumes.
const driver = "csi.example.com"

// only has of the plugins of volumes those run at PreFilter, and at Filter, that are named: another one says then what is wrong with a claim.
func (w town) only(preFilters, filters []string) {
	settings := w.st.Settings
	profile := engine.DefaultProfile("default-scheduler")
	of := func(names, keep []string) []string {
		return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
			return (strings.HasPrefix(name, "Volume") || strings.HasSuffix(name, "VolumeLimits")) && !slices.Contains(keep, name)
		})
	}
	profile.PreFilters, profile.Filters = of(profile.PreFilters, preFilters), of(profile.Filters, filters)
	settings.Profiles = []cluster.Profile{profile}
	apply(w.t, w.st, cluster.SettingsSet{Settings: settings})
}

// with adds a pod of default with disks and claims, on a node unless that is "".
func (w town) with(name, node string, disks []cluster.Disk, claims []cluster.PodClaim) cluster.PodID {
	id := w.st.FreePod()
	k := 200 + int(id)
	spec := fleetSpec(1000, 1<<30)
	spec.Disks = disks
	apply(w.t, w.st, cluster.LabelsDefined{ID: cluster.LabelsID(k), Set: cluster.LabelSet{Namespace: "default", Claims: claims}}, cluster.ClassDefined{ID: cluster.ClassID(k), Spec: spec},
		cluster.PodSet{ID: id, Pod: cluster.Pod{UID: "uid-" + name, Namespace: "default", Name: name, Class: cluster.ClassID(k), Labels: cluster.LabelsID(k), NodeName: node, NeverPreempts: true}})
	return id
}

// edited is a claim that is bound to a volume, and edited.
func edited(edit func(*cluster.PersistentVolumeClaim)) *cluster.PersistentVolumeClaim {
	c := boundTo("data", "pv")
	edit(c)
	return c
}

// The first line names what is in the way, and nothing else: of a claim that does not exist no node has anything in use.
func TestTheHeadlineSaysWhatIsWrongWithTheVolumes(t *testing.T) {
	data, own := []cluster.PodClaim{{Name: "data"}}, []cluster.PodClaim{{Name: "data", Ephemeral: true, PodUID: "uid-shop"}}
	nameless := []cluster.PodClaim{{}}
	zoned := func(labelled bool) *cluster.PersistentVolume {
		pv := volume("pv", "", 1<<30, zone, "c")
		if labelled {
			pv.Labels, pv.HasAffinity, pv.Affinity = []cluster.Label{{Key: zone, Value: "c"}}, false, nil
		}
		return pv
	}
	attachable := func(name string) *cluster.PersistentVolume {
		return &cluster.PersistentVolume{Name: name, Driver: driver, Handle: name}
	}
	csiNode := func(name string, edit func(*cluster.CSINode)) *cluster.CSINode {
		n := &cluster.CSINode{Name: name, Drivers: []cluster.NodeDriver{{Name: driver, Limited: true, Limit: 1}}, Migrated: []string{"kubernetes.io/aws-ebs"}}
		if edit != nil {
			edit(n)
		}
		return n
	}
	waits := []cluster.Object{
		&cluster.StorageClass{Name: "fast", Provisioner: noProvisioner, Mode: cluster.BindToFirstConsumer}, &cluster.StorageClass{Name: "now", Provisioner: driver, Mode: cluster.BindImmediately},
		&cluster.StorageClass{Name: "odd", Provisioner: driver},
	}
	with := func(objects ...cluster.Object) func(town) {
		return func(w town) { w.set(waits...); w.set(objects...) }
	}
	disk := []cluster.Disk{{Kind: cluster.DiskGCE, ID: "d"}}
	onePod := func(c *cluster.PersistentVolumeClaim) { c.AccessModes = []string{"ReadWriteOncePod"} }
	zones := []string{"VolumeZone"}
	limits := []string{"NodeVolumeLimits"}
	for _, tt := range []struct {
		name  string
		world func(town)
		disks []cluster.Disk
		claim []cluster.PodClaim
		want  string
	}{
		{"VolumeRestrictions: a disk in use", func(w town) { w.with("db", "node-1", disk, nil); w.with("db-2", "node-2", disk, nil) }, disk, nil, "2 have a disk of it in use by others"},
		{"a claim in use", func(w town) {
			w.set(edited(onePod), &cluster.PersistentVolume{Name: "pv"})
			w.with("db", "node-1", nil, data)
		}, nil, data, "2 because a claim that only one pod can use is in use by another"},
		{"a disk and a claim in use", func(w town) {
			w.set(edited(onePod), &cluster.PersistentVolume{Name: "pv"})
			w.with("db", "node-1", disk, data)
		}, disk, data, "2 have a disk of it in use by others or because a claim that only one pod can use is in use by another"},
		{"no such claim", nil, nil, data, "2 because a claim of it does not exist"},

		{"VolumeBinding: no such claim", func(w town) { w.only([]string{"VolumeBinding"}, nil) }, nil, data, "2 because a claim of it does not exist"},
		{"none of an ephemeral volume", nil, nil, own, "2 because a claim for an ephemeral volume of it has not been made yet"},
		{"another's", with(boundTo("data", "pv"), attachable("pv")), nil, own, "2 because a claim for an ephemeral volume of it was not made for it"},
		{"lost", with(edited(func(c *cluster.PersistentVolumeClaim) { c.Lost = true })), nil, data, "2 because a claim of it has lost its volume"},
		{"deleted", with(edited(func(c *cluster.PersistentVolumeClaim) { c.Deleting = true }), attachable("pv")), nil, data, "2 because a claim of it is being deleted"},
		{"not bound", with(claim("data", "now", 1<<30)), nil, data, "2 because a claim of it has no volume yet"},
		{"unclear", with(claim("data", "odd", 1<<30)), nil, data, "2 because the storage class of a claim of it does not say when it is bound"},
		{"out of reach", with(boundTo("data", "pv"), zoned(false)), nil, data, "2 cannot reach its volumes"},
		{"out of reach, and none is free", with(claim("data", "fast", 1<<30), boundTo("logs", "pv"), zoned(false)), nil, append([]cluster.PodClaim{{Name: "logs"}}, data...),
			"2 cannot reach its volumes or have no free volume for its claims"},
		{"the volume is gone", func(w town) {
			w.only([]string{"VolumeBinding"}, []string{"VolumeBinding"})
			w.set(boundTo("data", "pv"))
		}, nil, data, "2 because the volume of a claim of it does not exist"},
		{"none is free", with(claim("data", "fast", 1<<30)), nil, data, "2 have no free volume for its claims"},
		{"no room", with(&cluster.StorageClass{Name: "roomy", Provisioner: driver, Mode: cluster.BindToFirstConsumer}, &cluster.CSIDriver{Name: driver, StorageCapacity: true}, claim("data", "roomy", 1<<30)),
			nil, data, "2 have too little storage for its claims"},
		{"none that can be told", with(boundTo("data", "pv"), csiNode("node-1", nil), &cluster.PersistentVolume{
			Name: "pv", HasAffinity: true, Affinity: volume("", "", 0, zone, "b").Affinity, Migration: cluster.Migration{Plugin: "kubernetes.io/aws-ebs", Error: "bad ID"},
		}), nil, data, "2 because where a volume of it is cannot be told"},
		{"a selector that cannot be read", with(func() *cluster.PersistentVolumeClaim {
			c := claim("data", "fast", 1<<30)
			c.SelectorError = "bad"
			return c
		}()), nil, data, "2 because what a claim of it selects cannot be read"},

		{"VolumeZone: no such claim", func(w town) { w.only(zones, zones) }, nil, data, "2 because a claim of it does not exist"},
		{"no name", func(w town) { w.only(zones, zones) }, nil, nameless, "2 because a claim of it has no name"},
		{"elsewhere", with(boundTo("data", "pv"), zoned(true)), nil, data, "2 are not in the zone of its volumes"},
		{"no such volume", func(w town) { w.only(zones, zones); w.set(boundTo("data", "pv")) }, nil, data, "2 because the volume of a claim of it does not exist"},
		{"no such class", func(w town) { w.only(zones, zones); w.set(claim("data", "none", 1<<30)) }, nil, data, "2 because the storage class of a claim of it does not exist"},
		{"no class", func(w town) { w.only(zones, zones); w.set(claim("data", "", 1<<30)) }, nil, data, "2 because a claim of it has no volume and no storage class"},
		{"an unclear class", func(w town) { w.only(zones, zones); w.set(waits...); w.set(claim("data", "odd", 1<<30)) }, nil, data,
			"2 because the storage class of a claim of it does not say when it is bound"},
		{"no volume yet", func(w town) { w.only(zones, zones); w.set(waits...); w.set(claim("data", "now", 1<<30)) }, nil, data, "2 because a claim of it has no volume yet"},

		{"NodeVolumeLimits: full", func(w town) {
			w.set(csiNode("node-1", nil), csiNode("node-2", nil), boundTo("data", "pv"), attachable("pv"))
			for _, name := range []string{"1", "2"} {
				w.set(boundTo("data-"+name, "pv-"+name), attachable("pv-"+name))
				w.with("db-"+name, "node-"+name, nil, []cluster.PodClaim{{Name: "data-" + name}})
			}
		}, nil, data, "2 have no room for its volumes"},
		{"not counted", func(w town) {
			w.set(csiNode("node-1", nil), csiNode("node-2", nil), boundTo("data", "pv"), attachable("pv"))
			w.with("db-1", "node-1", nil, nameless)
			w.with("db-2", "node-2", nil, nameless)
		}, nil, data, "2 have pods whose volumes cannot be counted"},
		{"full and not counted", func(w town) {
			w.set(csiNode("node-1", func(n *cluster.CSINode) { n.Drivers[0].Limit = 0 }), csiNode("node-2", nil), boundTo("data", "pv"), attachable("pv"))
			w.with("db-2", "node-2", nil, nameless)
		}, nil, data, "2 have no room for its volumes or have pods whose volumes cannot be counted"},
		{"without the driver", func(w town) {
			settings := w.st.Settings
			settings.Profiles[0].RequireCSIDrivers = true
			apply(w.t, w.st, cluster.SettingsSet{Settings: settings})
			w.set(boundTo("data", "pv"), attachable("pv"))
		}, nil, data, "2 do not have the CSI driver of its volumes"},
		{"not told", with(boundTo("data", "pv"), attachable("pv"), csiNode("node-1", func(n *cluster.CSINode) { n.Untold = "large" }), csiNode("node-2", func(n *cluster.CSINode) { n.Untold = "large" })),
			nil, data, "2 have CSINodes that are too large for Berth"},
		{"no such claim", func(w town) { w.only(nil, limits) }, nil, data, "2 because a claim of it does not exist"},
		{"no name", func(w town) { w.only(nil, limits) }, nil, nameless, "2 because a claim of it has no name"},
		{"another's", func(w town) { w.only(nil, limits); w.set(boundTo("data", "pv"), attachable("pv")) }, nil, own, "2 because a claim for an ephemeral volume of it was not made for it"},
		{"a disk without a name", with(csiNode("node-1", nil)), []cluster.Disk{{Migration: cluster.Migration{Plugin: "kubernetes.io/aws-ebs", Error: "no name"}}}, nil,
			"2 because a disk of it cannot be counted"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newTown(t, house("node-1", "a"), house("node-2", "b"))
			if tt.world != nil {
				tt.world(w)
			}
			x := explained(t, w.st, w.with("shop", "", tt.disks, tt.claim))
			if got, want := x.Headline(), "default/shop is pending because none of 2 nodes can take it: "+tt.want+"."; got != want {
				t.Errorf("%s\nwant %s\nof %v", got, want, x.Rejections)
			}
		})
	}
}
