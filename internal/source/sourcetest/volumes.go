package sourcetest

import (
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func podVolumes(t *testing.T, c Cluster) {
	pod := Pod("stored")
	pod.Spec.Volumes = []v1.Volume{
		{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "claimed"}}},
		{Name: "scratch", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{VolumeClaimTemplate: &v1.PersistentVolumeClaimTemplate{
			Spec: v1.PersistentVolumeClaimSpec{AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, Resources: storage("1Gi")},
		}}}},
		{Name: "disk", VolumeSource: v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{TargetPortal: "10.0.0.1", IQN: "iqn.2026-01.com.example:disk"}}},
	}
	uid := c.SetPod(t, pod)
	got := Record(t, c.Source(t)).Synced().Pod(Namespace, "stored", "")
	claims := []cluster.PodClaim{{Name: "claimed"}, {Name: "stored-scratch", Ephemeral: true, PodUID: uid}}
	if diff := cmp.Diff(claims, got.Labels.Claims); diff != "" {
		t.Errorf("claims of the pod (-want +got):\n%s", diff)
	}
	disks := []cluster.Disk{{Kind: cluster.DiskISCSI, ID: "iqn.2026-01.com.example:disk"}}
	if diff := cmp.Diff(disks, got.Class.Disks); diff != "" {
		t.Errorf("disks of the pod (-want +got):\n%s", diff)
	}
}

func storage(size string) v1.VolumeResourceRequirements {
	return v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}}
}

func volumes(t *testing.T, c Cluster) {
	class, volumeName, once := "fast", "volume", []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	late, limit, yes, size := storagev1.VolumeBindingWaitForFirstConsumer, int32(7), true, resource.MustParse("2Gi")
	volume := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: volumeName, Labels: map[string]string{v1.LabelTopologyZone: "a"}},
		Spec: v1.PersistentVolumeSpec{
			Capacity: v1.ResourceList{v1.ResourceStorage: size}, AccessModes: once, StorageClassName: class,
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: "handle"}},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable},
	}
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: "claim", OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "v1", Kind: "Pod", Name: "p", UID: "00000000-0000-0000-0000-000000000001", Controller: &yes,
		}}},
		Spec: v1.PersistentVolumeClaimSpec{AccessModes: once, StorageClassName: &class, Resources: storage("1Gi")},
	}
	node := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "csi-node"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
		{Name: "csi.example.com", NodeID: "n", Allocatable: &storagev1.VolumeNodeResources{Count: &limit}},
	}}}
	driver := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "csi.example.com"}, Spec: storagev1.CSIDriverSpec{StorageCapacity: &yes}}
	capacity := &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: "capacity"}, StorageClassName: class, NodeTopology: &metav1.LabelSelector{}, Capacity: &size,
	}
	objects := []metav1.Object{
		volume, claim, node, driver, capacity,
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: "csi.example.com", VolumeBindingMode: &late},
		&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "attachment"}, Spec: storagev1.VolumeAttachmentSpec{
			Attacher: "csi.example.com", NodeName: "csi-node", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volumeName},
		}},
	}
	modes := []string{"ReadWriteOnce"}
	wantVolume := &cluster.PersistentVolume{
		Name: volumeName, Labels: []cluster.Label{{Key: v1.LabelTopologyZone, Value: "a"}}, Class: class, Capacity: 2 << 30,
		AccessModes: modes, Mode: "Filesystem", Available: true, Driver: "csi.example.com", Handle: "handle",
	}
	wantClaim := &cluster.PersistentVolumeClaim{
		Namespace: Namespace, Name: "claim", Class: class, HasRequest: true, Request: 1 << 30, AccessModes: modes, Mode: "Filesystem",
		Owner: "00000000-0000-0000-0000-000000000001",
	}
	wantNode := &cluster.CSINode{Name: "csi-node", Drivers: []cluster.NodeDriver{{Name: "csi.example.com", Limited: true, Limit: 7}}}
	wantDriver := &cluster.CSIDriver{Name: "csi.example.com", StorageCapacity: true}
	wantCapacity := &cluster.CSIStorageCapacity{Namespace: Namespace, Name: "capacity", Class: class, HasLimit: true, Limit: 2 << 30, Capacity: 2 << 30}
	want := []cluster.Object{
		wantVolume, wantClaim, wantNode, wantDriver, wantCapacity,
		&cluster.StorageClass{Name: class, Provisioner: "csi.example.com", Mode: cluster.BindToFirstConsumer},
		&cluster.VolumeAttachment{Name: "attachment", Attacher: "csi.example.com", Node: "csi-node", Volume: volumeName},
	}
	for _, o := range objects {
		c.SetObject(t, o)
	}
	r := Record(t, c.Source(t)).Synced()
	is := func(want cluster.Object) func(View) bool {
		return func(v View) bool { return cmp.Equal(want, v.Objects[want.Key()]) }
	}
	r.View(func(v View) {
		if told, ok := v.Objects[wantClaim.Key()].(*cluster.PersistentVolumeClaim); ok {
			wantClaim.UID = told.UID // which the cluster has chosen
		}
		if wantClaim.UID == "" {
			t.Error("the claim was told without a uid before Synced")
		}
		for _, o := range want {
			if diff := cmp.Diff(o, v.Objects[o.Key()]); diff != "" {
				t.Errorf("%+v before Synced (-want +got):\n%s", o.Key(), diff)
			}
		}
	})

	volume.Labels[v1.LabelTopologyZone], wantVolume.Labels[0].Value = "b", "b"
	volume.Status.Phase, wantVolume.Available = v1.VolumeBound, false
	c.SetObject(t, volume)
	r.Await("the volume's update", is(wantVolume))
	claim.Annotations = map[string]string{"volume.kubernetes.io/selected-node": "one"}
	wantClaim.HasSelectedNode, wantClaim.SelectedNode = true, "one"
	claim.Status.Phase, wantClaim.Lost = v1.ClaimLost, true
	c.SetObject(t, claim)
	r.Await("the claim's update", is(wantClaim))
	node.Annotations, wantNode.Migrated = map[string]string{v1.MigratedPluginsAnnotationKey: "kubernetes.io/b,kubernetes.io/a"}, []string{"kubernetes.io/a", "kubernetes.io/b"}
	c.SetObject(t, node)
	r.Await("the CSI node's update", is(wantNode))
	driver.Spec.StorageCapacity, wantDriver.StorageCapacity = new(bool), false
	c.SetObject(t, driver)
	r.Await("the CSI driver's update", is(wantDriver))
	more := resource.MustParse("1Gi")
	capacity.MaximumVolumeSize, wantCapacity.Limit = &more, 1<<30
	c.SetObject(t, capacity)
	r.Await("the capacity's update", is(wantCapacity))

	for _, o := range want {
		key := o.Key()
		c.DeleteObject(t, key.Kind.String(), key.Namespace, key.Name)
		r.Await("the end of a "+key.Kind.String(), func(v View) bool { return v.Objects[key] == nil })
	}
}
