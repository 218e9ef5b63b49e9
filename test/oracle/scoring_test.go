package oracle

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
)

// TestWaitingClaimsAreScoredTheSame judges pods whose claims wait for a consumer, with the gate StorageCapacityScoring, while volumes, rooms and claims
// come, change and go.
func TestWaitingClaimsAreScoredTheSame(t *testing.T) {
	var n tally
	defer n.explain(t)
	check(t, func(t *rapid.T) {
		g := drawGates(t)
		for g.shape == nil {
			g = drawGates(t)
		}
		w := newWorld(t, drawProfiles(t), g, rapid.Uint64().Draw(t, "seed"), &n)
		w.begin(t, evenly(t, "width", [8]int{1, 2, 3, 4, 5, 6, 3, 4}), false)
		w.keep(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: csiDrivers[0]}, Spec: storagev1.CSIDriverSpec{
			StorageCapacity: ptr.To(true), PreventPodSchedulingIfMissing: pick(t, "must be there", nil, ptr.To(true)),
		}})
		for _, class := range scoredClasses {
			w.keep(&storagev1.StorageClass{
				ObjectMeta: metav1.ObjectMeta{Name: class}, VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
				Provisioner: pick(t, "provisioner", csiDrivers[0], csiDrivers[0], "kubernetes.io/no-provisioner"),
			})
		}
		for _, node := range drawFleet(t, w.width) {
			if node.Labels == nil {
				node.Labels = make(map[string]string)
			}
			node.Labels[zoneKey] = pick(t, "zone", "za", "zb")
			w.setNode(node, w.drawPlace())
			if !oneIn(t, 5, "no CSI node") {
				w.keep(drawCSINode(t, node.Name))
			}
		}
		for range rapid.IntRange(4, 14).Draw(t, "objects") {
			w.keep(drawScored(t))
		}
		for k := range 4 {
			w.keep(drawWaiting(t, k))
		}
		for range rapid.IntRange(1, 4).Draw(t, "judged") {
			pod := w.named(w.plainPod())
			pod.Namespace, pod.Spec.Volumes = "default", nil
			for k := range rapid.IntRange(1, 3).Draw(t, "claims") {
				claim := fmt.Sprint("w", rapid.IntRange(0, 3).Draw(t, "claim"))
				pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: fmt.Sprint(k), VolumeSource: v1.VolumeSource{
					PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
				}})
			}
			w.enter(pod)
		}
		for range rapid.IntRange(1, 8).Draw(t, "rounds") {
			ranges := w.drawRanges()
			for _, id := range sortedKeys(w.pending) {
				w.compare(id, ranges)
			}
			switch o := drawScored(t); {
			case oneIn(t, 5, "a claim changes"):
				w.keep(drawWaiting(t, rapid.IntRange(0, 3).Draw(t, "which")))
			case oneIn(t, 4, "it goes") && w.objects.kept[reduceKept(o).Key()] != nil:
				w.discard(reduceKept(o).Key())
			default:
				w.keep(o)
			}
		}
	})
	n.report(t)
	if scored := n.byPlugin["scored by "+names.VolumeBinding]; n.decisions > 1000 && scored < n.decisions/4 {
		t.Errorf("VolumeBinding scores %d nodes in %d decisions", scored, n.decisions)
	}
}

var scoredClasses = []string{"late", "later"}

// drawWaiting draws a claim that waits for a consumer.
func drawWaiting(t *rapid.T, k int) *v1.PersistentVolumeClaim {
	name := fmt.Sprint("w", k)
	c := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, StorageClassName: ptr.To(rapid.SampledFrom(scoredClasses).Draw(t, "class")),
		},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
	}
	if !oneIn(t, 10, "no size") {
		c.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse(pick(t, "size", "1Gi", "2Gi", "3Gi", "1500Mi"))}
	}
	return c
}

// drawScored draws a volume that is nobody's, or what tells how much room there is for one.
func drawScored(t *rapid.T) metav1.Object {
	class := rapid.SampledFrom(scoredClasses).Draw(t, "class")
	if rapid.Bool().Draw(t, "a volume") {
		v := &v1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("f", rapid.IntRange(0, 9).Draw(t, "volume"))},
			Spec: v1.PersistentVolumeSpec{
				AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, StorageClassName: class,
				Capacity:               v1.ResourceList{v1.ResourceStorage: resource.MustParse(pick(t, "volume's size", "1Gi", "2Gi", "4Gi", "7Gi", "100Gi"))},
				PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: csiDrivers[0], VolumeHandle: "h"}},
			},
			Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable},
		}
		if !oneIn(t, 3, "anywhere") {
			v.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{{Key: zoneKey, Operator: v1.NodeSelectorOpIn, Values: []string{pick(t, "volume's zone", "za", "zb")}}},
			}}}}
		}
		return v
	}
	c := &storagev1.CSIStorageCapacity{
		ObjectMeta:       metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("r", rapid.IntRange(0, 4).Draw(t, "room"))},
		StorageClassName: class, NodeTopology: &metav1.LabelSelector{},
		Capacity: ptr.To(resource.MustParse(pick(t, "room for", "1Gi", "2Gi", "5Gi", "30Gi", "0"))),
	}
	if !oneIn(t, 3, "everywhere") {
		c.NodeTopology.MatchLabels = map[string]string{zoneKey: pick(t, "room's zone", "za", "zb")}
	}
	if oneIn(t, 3, "a largest size") {
		c.MaximumVolumeSize = ptr.To(resource.MustParse(pick(t, "largest", "1Gi", "3Gi")))
	}
	return c
}
