package cluster_test

import (
	"slices"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
)

func TestWhatVolumesAreMadeOfIsFoundByItsName(t *testing.T) {
	st := cluster.New(start)
	volume := &cluster.PersistentVolume{Name: "a"}
	claim := &cluster.PersistentVolumeClaim{Namespace: "shop", Name: "a"}
	class, node, driver := &cluster.StorageClass{Name: "a"}, &cluster.CSINode{Name: "a"}, &cluster.CSIDriver{Name: "a"}
	one, other := &cluster.CSIStorageCapacity{Namespace: "shop", Name: "a"}, &cluster.CSIStorageCapacity{Namespace: "lab", Name: "a"}
	attachment := &cluster.VolumeAttachment{Name: "a"}
	for _, o := range []cluster.Object{volume, claim, class, node, driver, one, other, attachment} {
		if err := st.Apply(cluster.ObjectSet{Object: o}); err != nil {
			t.Fatal(err)
		}
	}
	if st.PersistentVolume("a") != volume || st.PersistentVolume("b") != nil {
		t.Error("volumes are not found by their name")
	}
	if st.PersistentVolumeClaim("shop", "a") != claim || st.PersistentVolumeClaim("lab", "a") != nil {
		t.Error("claims are not found by namespace and name")
	}
	if st.StorageClass("a") != class || st.CSINode("a") != node || st.CSIDriver("a") != driver || st.StorageClass("b") != nil {
		t.Error("classes, CSI nodes or drivers are not found by their name")
	}
	if all := slices.Collect(st.PersistentVolumes()); len(all) != 1 || all[0] != volume {
		t.Errorf("all volumes are %v", all)
	}
	if all := slices.Collect(st.VolumeAttachments()); len(all) != 1 || all[0] != attachment {
		t.Errorf("all attachments are %v", all)
	}
	if all := slices.Collect(st.CSIStorageCapacities()); len(all) != 2 || !slices.Contains(all, one) || !slices.Contains(all, other) {
		t.Errorf("the capacities of all namespaces are %v", all)
	}
	for range st.CSIStorageCapacities() {
		break // and no more is yielded
	}
}

func TestAnObjectOfNoNamespaceIsNotDecodedInOne(t *testing.T) {
	body := cluster.ObjectSet{Object: &cluster.CSIDriver{Name: "d"}}.Body()
	key := cluster.ObjectKey{Kind: cluster.CSIDriverKind, Namespace: "shop", Name: "d"}
	if set, err := cluster.DecodeObject(key, body); err == nil {
		t.Errorf("decoded as %+v", set)
	}
	key.Namespace = ""
	if _, err := cluster.DecodeObject(key, body); err != nil {
		t.Error(err)
	}
}

// What stands for an object that is too large holds back the pods that would have needed it.
func TestWhatStandsForAnObjectOfVolumesPlacesNoPod(t *testing.T) {
	volume := (&cluster.PersistentVolume{
		Name: "v", Available: true, HasClaim: true, Driver: "d", Handle: "h", Migration: cluster.Migration{Plugin: "p", Driver: "e", Handle: "i"},
	}).Unsupported("why").(*cluster.PersistentVolume)
	if volume.Available || !volume.Deleting || !volume.HasAffinity || !volume.HasMigratedAffinity || len(volume.Affinity)+len(volume.MigratedAffinity) > 0 {
		t.Errorf("a claim may be bound to %+v, or a pod placed with it", volume)
	}
	if volume.Driver != "d" || volume.Handle != "h" || volume.Migration != (cluster.Migration{Plugin: "p", Driver: "e", Handle: "i"}) {
		t.Errorf("what is attached does not count: %+v", volume)
	}
	claim := (&cluster.PersistentVolumeClaim{Name: "c", Class: "fast", Volume: "v"}).Unsupported("why").(*cluster.PersistentVolumeClaim)
	if !claim.Lost || claim.Volume != "v" || claim.Class != "fast" {
		t.Errorf("a pod may use %+v, or does not count with it", claim)
	}
	class := (&cluster.StorageClass{Name: "s", Provisioner: "d", Mode: cluster.BindToFirstConsumer}).Unsupported("why").(*cluster.StorageClass)
	if class.Mode != "" || class.Provisioner != "d" {
		t.Errorf("claims of %+v are bound", class)
	}
	if node := (&cluster.CSINode{Name: "n"}).Unsupported("why").(*cluster.CSINode); node.Untold != "why" {
		t.Errorf("a CSI node without limits: %+v", node)
	}
	capacity := (&cluster.CSIStorageCapacity{Name: "c", HasLimit: true, Limit: 1}).Unsupported("why").(*cluster.CSIStorageCapacity)
	if capacity.HasLimit || !capacity.Topology.Nothing {
		t.Errorf("there is room in %+v", capacity)
	}
}
