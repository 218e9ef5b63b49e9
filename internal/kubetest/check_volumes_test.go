package kubetest

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
)

// claimedBy returns the claim of pod i, bound, and its volume, which node 0 reaches.
func claimedBy(i int) (corev1.PersistentVolumeClaim, corev1.PersistentVolume) {
	claim := corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("claim-", i), UID: "a"}}
	claim.Spec.VolumeName = fmt.Sprint("volume-", i)
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnBindCompleted, "yes")
	v := corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: claim.Spec.VolumeName}}
	v.Spec.NodeAffinity = ReachedFrom("node-00000")
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: claim.Name, UID: claim.UID}
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: v.Name}
	return claim, v
}

func TestCheckVolumesFindsWhatIsWrongWithTheClaimsOfPods(t *testing.T) {
	csiNode := func(driver string, most int32) storagev1.CSINode {
		return storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "node-00000"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
			{Name: driver, Allocatable: &storagev1.VolumeNodeResources{Count: &most}},
		}}}
	}
	at := Placement{named(0), "node-00000"}
	for name, tt := range map[string]struct {
		change func(*volumeObjects) // of two pods with a claim each
		want   VolumeReport
	}{
		"nothing":                   {func(*volumeObjects) {}, VolumeReport{Claims: 2, Attached: 2}},
		"a pod that has ended":      {func(o *volumeObjects) { o.pods[0].Status.Phase, o.claims = corev1.PodSucceeded, o.claims[1:] }, VolumeReport{Claims: 1, Attached: 1}},
		"a pod that has no node":    {func(o *volumeObjects) { o.pods[0].Spec.NodeName, o.claims[0].Spec.VolumeName = "", "" }, VolumeReport{Claims: 1, Attached: 1}},
		"a volume kept for a claim": {func(o *volumeObjects) { o.volumes[0].Spec.ClaimRef.UID = "" }, VolumeReport{Claims: 2, Attached: 2}},
		"as many as may be":         {func(o *volumeObjects) { o.csiNodes = append(o.csiNodes, csiNode("d", 2)) }, VolumeReport{Claims: 2, Attached: 2}},
		"of another driver":         {func(o *volumeObjects) { o.csiNodes = append(o.csiNodes, csiNode("e", 1)) }, VolumeReport{Claims: 2, Attached: 2}},
		"no claim": {func(o *volumeObjects) { o.claims = o.claims[1:] },
			VolumeReport{Claims: 2, Attached: 1, Unbound: []ClaimProblem{{at, "claim-0", "is not there"}}}},
		"not bound": {func(o *volumeObjects) { o.claims[0].Spec.VolumeName = "" },
			VolumeReport{Claims: 2, Attached: 1, Unbound: []ClaimProblem{{at, "claim-0", "is not bound"}}}},
		"half bound": {func(o *volumeObjects) { o.claims[0].Annotations = nil },
			VolumeReport{Claims: 2, Attached: 2, Unbound: []ClaimProblem{{at, "claim-0", "is not bound completely to volume-0"}}}},
		"no volume": {func(o *volumeObjects) { o.volumes = o.volumes[1:] },
			VolumeReport{Claims: 2, Attached: 1, Unbound: []ClaimProblem{{at, "claim-0", "is bound to volume-0, which is not there"}}}},
		"a volume that names no claim": {func(o *volumeObjects) { o.volumes[0].Spec.ClaimRef = nil },
			VolumeReport{Claims: 2, Attached: 2, Unbound: []ClaimProblem{{at, "claim-0", "is bound to volume-0, which is not bound to it"}}}},
		"a volume of an earlier claim": {func(o *volumeObjects) { o.volumes[0].Spec.ClaimRef.UID = "b" },
			VolumeReport{Claims: 2, Attached: 2, Unbound: []ClaimProblem{{at, "claim-0", "is bound to volume-0, which is not bound to it"}}}},
		"one volume for two claims": {func(o *volumeObjects) { o.claims[0].Spec.VolumeName = "volume-1"; o.volumes = o.volumes[1:] },
			VolumeReport{Claims: 2, Attached: 1,
				Unbound: []ClaimProblem{{at, "claim-0", "is bound to volume-1, which is not bound to it"}},
				Shared:  []ClaimProblem{{at, "claim-0", "has volume-1, which is another's too"}, {Placement{named(1), "node-00000"}, "claim-1", "has volume-1, which is another's too"}}}},
		"two volumes for one claim": {func(o *volumeObjects) {
			_, other := claimedBy(0)
			other.Name = "volume-2"
			o.volumes = append(o.volumes, other)
		}, VolumeReport{Claims: 2, Attached: 2, Shared: []ClaimProblem{{at, "claim-0", "has volume-0, and is named by another volume"}}}},
		"on a node that does not reach it": {func(o *volumeObjects) { o.pods[0].Spec.NodeName = "node-00001" },
			VolumeReport{Claims: 2, Attached: 1, Unreachable: []ClaimProblem{{Placement{named(0), "node-00001"}, "claim-0", "is bound to volume-0, which is not reached from there: no matching NodeSelectorTerms"}}}},
		"more than may be": {func(o *volumeObjects) { o.csiNodes = append(o.csiNodes, csiNode("d", 1)) },
			VolumeReport{Claims: 2, Attached: 2, Overfull: []Overfull{{"node-00000", "d", 2, 1}}}},
		"more than may be of disks": {func(o *volumeObjects) {
			for i := range o.volumes {
				o.volumes[i].Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{}}
			}
			o.csiNodes = append(o.csiNodes, csiNode(ebsDriver, 1))
		}, VolumeReport{Claims: 2, Attached: 2, Overfull: []Overfull{{"node-00000", ebsDriver, 2, 1}}}},
	} {
		o := volumeObjects{objects: objects{nodes: []corev1.Node{*PlainNode(0), *PlainNode(1)}}}
		for i := range 2 {
			claim, v := claimedBy(i)
			o.claims, o.volumes = append(o.claims, claim), append(o.volumes, v)
			o.pods = append(o.pods, placed(i, "node-00000", func(pod *corev1.Pod) {
				pod.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name}}}}
			}))
		}
		tt.change(&o)
		got := checkVolumes(o)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if wrong := len(tt.want.Unbound) + len(tt.want.Shared) + len(tt.want.Unreachable) + len(tt.want.Overfull); len(got.Problems()) != wrong {
			t.Errorf("%s: problems %q, want %d", name, got.Problems(), wrong)
		}
	}
}
