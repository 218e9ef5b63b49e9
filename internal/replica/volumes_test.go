package replica_test

import (
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/source"
)

// From the API to a replica: a pod on its node, what its volumes are, and what those are made of.
func TestAPodWithVolumesReachesReplicasWithThem(t *testing.T) {
	network, l := rpc.Memory(), tells(t)
	at, _ := serve(t, network, "", l.ledger)
	leads := func() *leaders { return newLeaders(coord.Leader{Epoch: 3, ID: "binder-1", Address: at}) }
	f := follow(t, network, leads(), nil)

	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db-0", UID: "u"},
		Spec: v1.PodSpec{
			SchedulerName: "berth", NodeName: "n1", Containers: []v1.Container{{Name: "a"}},
			Volumes: []v1.Volume{
				{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data-db-0"}}},
				{Name: "scratch", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}},
				{Name: "disk", VolumeSource: v1.VolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}}},
			},
		},
	}
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data-db-0", UID: "c", Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}},
		Spec:       v1.PersistentVolumeClaimSpec{VolumeName: "v"},
	}
	volume := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "v"},
		Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{
			CSI: &v1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: "h"},
		}},
	}
	tell := func(object any, kind cluster.ObjectKind) source.Event {
		return source.Reductions[kind.String()].Reduce(object)()
	}
	l.observe(t, source.Event{Kind: source.NodeSet, Node: cluster.Node{Name: "n1"}})
	for _, step := range []struct {
		what  string
		event source.Event
		want  cluster.Seq
	}{
		{"the pod, its class and its label set", source.Event{Kind: source.PodSet, Pod: source.ReducePod(pod)}, 3},
		{"the pod again", source.Event{Kind: source.PodSet, Pod: source.ReducePod(pod)}, 0},
		{"its claim", tell(claim, cluster.PersistentVolumeClaimKind), 1},
		{"its volume", tell(volume, cluster.PersistentVolumeKind), 1},
		{"the volume again", tell(volume, cluster.PersistentVolumeKind), 0},
		{"another volume", tell(&v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "w"}}, cluster.PersistentVolumeKind), 1},
		{"its end", source.Reductions["PersistentVolume"].Gone("", "w"), 1},
	} {
		if n := l.observe(t, step.event); n != step.want {
			t.Errorf("%s took %d deltas, want %d", step.what, n, step.want)
		}
	}

	check := func(f *follower) {
		t.Helper()
		f.reaches(t, l.ledger)
		if err := f.Read(t.Context(), l.version(), func(st *cluster.State) error {
			id, ok := st.PodByUID("u")
			if !ok {
				t.Fatal("the pod is missing")
			}
			row := st.Pod(id)
			if row.Phase != cluster.Bound {
				t.Errorf("the pod is %v", row.Phase)
			}
			claims := []cluster.PodClaim{{Name: "data-db-0"}, {Name: "db-0-scratch", Ephemeral: true, PodUID: "u"}}
			if diff := gocmp.Diff(claims, st.Labels(row.Labels).Claims); diff != "" {
				t.Errorf("claims (-want +got):\n%s", diff)
			}
			disks := []cluster.Disk{{Kind: cluster.DiskEBS, ID: "vol-1", Migration: cluster.Migration{
				Plugin: "kubernetes.io/aws-ebs", Driver: "ebs.csi.aws.com", Handle: "vol-1",
			}}}
			if diff := gocmp.Diff(disks, st.Class(row.Class).Spec.Disks); diff != "" {
				t.Errorf("disks (-want +got):\n%s", diff)
			}
			if c := st.PersistentVolumeClaim("shop", "data-db-0"); c == nil || !c.Bound || c.Volume != "v" {
				t.Errorf("the claim is %+v", c)
			}
			if v := st.PersistentVolume("v"); v == nil || v.Handle != "h" || st.PersistentVolume("w") != nil {
				t.Errorf("the volume is %+v, and the other one %+v", v, st.PersistentVolume("w"))
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	check(f)
	check(follow(t, network, leads(), nil)) // from a snapshot
}
