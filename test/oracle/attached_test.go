package oracle

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/csi-translation-lib/plugins"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// compareUses compares what follows in Berth's ledger from the volumes of placed pods with what kube-scheduler's plugins make of it: which
// claims are in use, and how many volumes are attached to each node.
func (w *world) compareUses() {
	w.kube.snapshot()
	used := w.kube.lister.StorageInfos()
	for _, namespace := range namespaceNames {
		for _, name := range claimNames {
			if got, want := w.state.ClaimUsers(namespace, name) > 0, used.IsPVCUsedByPods(framework.GetNamespacedName(namespace, name)); got != want {
				w.Fatalf("Berth counts %d users of claim %s/%s, kube-scheduler says that it is used: %v", w.state.ClaimUsers(namespace, name), namespace, name, want)
			}
		}
	}
	nodes, err := w.kube.lister.NodeInfos().List()
	w.kube.must("list nodes", err)
	for _, node := range nodes {
		if w.objects.kept[cluster.ObjectKey{Kind: cluster.CSINodeKind, Name: node.Node().Name}] == nil {
			continue
		}
		for _, driver := range attachable {
			got := len(w.state.AttachedOf(w.state.Nodes.ByName(node.Node().Name), driver))
			want, err := w.kube.attached(node, driver)
			if err != nil {
				if says := w.state.UncountedOn(w.state.Nodes.ByName(node.Node().Name)); says == "" {
					w.Fatalf("Berth does not know that nobody counts what is on node %s: %v", node.Node().Name, err)
				}
				continue
			}
			w.n.attached += want
			if got != want {
				w.Fatalf("Berth counts %d volumes of %s on node %s, kube-scheduler %d\n%s", got, driver, node.Node().Name, want, w.scene(w.pods[0]))
			}
		}
	}
}

// attachable are all drivers of volumes that are drawn.
var attachable = slices.Concat(csiDrivers, []string{plugins.AzureDiskDriverName, plugins.CinderDriverName, plugins.PortworxDriverName})

// attached returns how many volumes of a driver kube-scheduler's NodeVolumeLimits counts on a node: the least limit that keeps one more
// away. On a node without a CSINode it counts nothing, and it fails where a pod has a volume that cannot be counted.
func (u *upstream) attached(node fwk.NodeInfo, driver string) (int, error) {
	csiNodes := u.kept(cluster.CSINodeKind)
	before, _, err := csiNodes.GetByKey(node.Node().Name)
	u.must("find the CSI node", err)
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "probe", Name: "probe"}, Spec: v1.PersistentVolumeClaimSpec{VolumeName: "probe"}}
	volume := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "probe"}}
	volume.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "probe"}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "probe", Name: "probe"}}
	pod.Spec.Volumes = []v1.Volume{{Name: "probe", VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "probe"},
	}}}
	u.must("add the claim", u.kept(cluster.PersistentVolumeClaimKind).Add(claim))
	u.must("add the volume", u.kept(cluster.PersistentVolumeKind).Add(volume))
	defer func() {
		u.must("remove the claim", u.kept(cluster.PersistentVolumeClaimKind).Delete(claim))
		u.must("remove the volume", u.kept(cluster.PersistentVolumeKind).Delete(volume))
		u.must("restore the CSI node", csiNodes.Update(before))
	}()
	plugin := u.frameworks[v1.DefaultSchedulerName].plugins[names.NodeVolumeLimits].(fwk.FilterPlugin)
	for limit := int32(0); ; limit++ {
		limited := before.(*storagev1.CSINode).DeepCopy()
		limited.Spec.Drivers = []storagev1.CSINodeDriver{{Name: driver, Allocatable: &storagev1.VolumeNodeResources{Count: &limit}}}
		u.must("limit", csiNodes.Update(limited))
		switch s := plugin.Filter(u.ctx, framework.NewCycleState(), pod, node); {
		case s.IsSuccess():
			return int(limit) - 1, nil
		case !s.IsRejected():
			return 0, s.AsError()
		}
	}
}
