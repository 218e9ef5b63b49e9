package source_test

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/source"
)

func TestOfAPodOfMoreVolumesThan256SoManyCount(t *testing.T) {
	for _, test := range []struct{ claims, disks, wantClaims, wantDisks int }{{250, 6, 250, 6}, {250, 7, 250, 6}, {10_000, 7, 256, 0}, {0, 300, 0, 256}} {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}}
		for i := range test.claims {
			pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: fmt.Sprint("c", i), VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprint("c", i)},
			}})
		}
		for i := range test.disks {
			pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: fmt.Sprint("d", i), VolumeSource: v1.VolumeSource{
				GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: fmt.Sprint("d", i)},
			}})
		}
		got := source.ReducePod(pod)
		if len(got.Labels.Claims) != test.wantClaims || len(got.Class.Disks) != test.wantDisks {
			t.Errorf("of %d claims and %d disks count %d and %d, want %d and %d", test.claims, test.disks,
				len(got.Labels.Claims), len(got.Class.Disks), test.wantClaims, test.wantDisks)
		}
		if test.claims > 256 && cap(got.Labels.Claims) > 2*256 {
			t.Errorf("of %d claims the room of %d is kept", test.claims, cap(got.Labels.Claims))
		}
		if many := test.claims+test.disks > 256; many != (got.Class.Unsupported != "") {
			t.Errorf("of %d claims and %d disks is said %q", test.claims, test.disks, got.Class.Unsupported)
		}
	}
}

func TestOfAPodOfMoreMonitorsThan256SoManyCount(t *testing.T) {
	for _, test := range []struct{ has, want []int }{{[]int{200, 56}, []int{200, 56}}, {[]int{200, 57}, []int{200, 56}}, {[]int{100_000, 1}, []int{256, 0}}} {
		pod, had := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}}, 0
		for i, n := range test.has {
			image := &v1.RBDVolumeSource{RBDImage: fmt.Sprint("i", i)}
			for k := range n {
				image.CephMonitors = append(image.CephMonitors, fmt.Sprintf("%06d", k))
			}
			had += n
			pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: image.RBDImage, VolumeSource: v1.VolumeSource{RBD: image}})
		}
		got := source.ReducePod(pod)
		for i, want := range test.want {
			if m := got.Class.Disks[i].Monitors; len(m) != want || cap(m) > 2*256 {
				t.Errorf("of images of %v monitors count %d of number %d, with room for %d, want %d", test.has, len(m), i, cap(m), want)
			}
		}
		want := ""
		if had > 256 {
			want = fmt.Sprintf("Berth judges at most 256 monitors of RBD images per pod, and the pod has %d", had)
		}
		if got.Class.Unsupported != want {
			t.Errorf("of images of %v monitors is said %q, want %q", test.has, got.Class.Unsupported, want)
		}
	}
}
