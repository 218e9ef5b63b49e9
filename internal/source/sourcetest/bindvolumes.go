package sourcetest

import (
	"context"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
)

// Volume returns an available volume of the contract, of 2 GiB, which keeps itself for a claim if that is not nil.
func Volume(name string, keptFor *v1.ObjectReference) *v1.PersistentVolume {
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{
			Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse("2Gi")}, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			StorageClassName: "late", ClaimRef: keptFor, PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: name}},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable},
	}
}

// Claim returns a claim of the contract that waits for its first consumer.
func Claim(name string) *v1.PersistentVolumeClaim {
	class := "late"
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, StorageClassName: &class, Resources: storage("1Gi"),
		},
	}
}

// LateClass returns the class of the claims and the volumes of the contract.
func LateClass() *storagev1.StorageClass {
	late := storagev1.VolumeBindingWaitForFirstConsumer
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Provisioner: "csi.example.com", VolumeBindingMode: &late}
}

// VolumeOf returns what a view has of a volume, ClaimOf what it has of a claim of the contract; nil if it has none.
func (v *View) VolumeOf(name string) *cluster.PersistentVolume {
	o, _ := v.Objects[(&cluster.PersistentVolume{Name: name}).Key()].(*cluster.PersistentVolume)
	return o
}

// ClaimOf is VolumeOf of a claim.
func (v *View) ClaimOf(name string) *cluster.PersistentVolumeClaim {
	o, _ := v.Objects[(&cluster.PersistentVolumeClaim{Namespace: Namespace, Name: name}).Key()].(*cluster.PersistentVolumeClaim)
	return o
}

func bindVolumes(t *testing.T, c Cluster) {
	c.SetObject(t, LateClass())
	c.SetObject(t, Volume("free", nil))
	c.SetObject(t, Volume("kept", &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: Namespace, Name: "second"}))
	c.SetObject(t, Volume("theirs", &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: Namespace, Name: "other"}))
	for _, name := range []string{"first", "second", "third"} {
		c.SetObject(t, Claim(name))
	}
	s := c.Source(t)
	r := Record(t, s).Synced()
	uids := make(map[string]string)
	r.View(func(v View) {
		for _, name := range []string{"first", "second", "third"} {
			uids[name] = v.ClaimOf(name).UID
		}
	})
	try := func(ctx context.Context, want source.Result, written bool, choices ...string) {
		t.Helper()
		b := source.VolumeBinding{UID: "u", Namespace: Namespace, Name: "p", Node: "one", Written: written}
		for k := 0; k < len(choices); k += 2 {
			b.Choices = append(b.Choices, cluster.VolumeChoice{Claim: choices[k], UID: uids[choices[k]], Volume: choices[k+1]})
		}
		if o := s.BindVolumes(ctx, c.Fence(t), b); o.Result != want || (o.Err == nil) != (want == source.BindDone) {
			t.Errorf("%v: %+v, want %v", choices, o, want)
		}
	}
	// 1. Nothing is written.
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	try(canceled, source.BindUnknown, false, "first", "free")
	try(within(t), source.BindRefused, false, "first", "theirs")
	try(within(t), source.BindRefused, false, "first", "none")
	try(within(t), source.BindRefused, false, "none", "free")
	uids["third"], uids["other third"] = "another", uids["third"]
	try(within(t), source.BindRefused, false, "third", "free")
	uids["third"] = uids["other third"]
	r.View(func(v View) {
		for _, name := range []string{"free", "kept", "theirs"} {
			if is := v.VolumeOf(name); is.Claim.UID != "" {
				t.Errorf("%s is bound to %+v", name, is.Claim)
			}
		}
	})
	// 2. Both are written, and have been told when it is done; once more changes nothing.
	for range 2 {
		try(within(t), source.BindDone, false, "first", "free", "second", "kept")
		r.View(func(v View) {
			for name, claim := range map[string]string{"free": "first", "kept": "second"} {
				want := cluster.ClaimReference{Namespace: Namespace, Name: claim, UID: uids[claim]}
				if is := v.VolumeOf(name); !is.HasClaim || is.Claim != want {
					t.Errorf("%s is bound to %+v, want %+v", name, is.Claim, want)
				}
			}
		})
	}
	try(within(t), source.BindDone, true, "first", "free")
	// 3. They are nobody else's.
	try(within(t), source.BindRefused, false, "third", "free")
	// 4. One that is given up by somebody else is not bound again by who has bound it.
	c.DeleteObject(t, "PersistentVolume", "", "free")
	r.Await("the end of the volume", func(v View) bool { return v.VolumeOf("free") == nil })
	try(within(t), source.BindRefused, true, "first", "free")
}
