package oracle

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// volumeTexts are what the plugins that read volumes can say of a pod whose objects the API server would take, as countTexts says it.
var volumeTexts = []string{
	names.VolumeRestrictions + ": persistentvolumeclaim … not found",
	names.VolumeRestrictions + ": node(s) had no available disk",
	names.VolumeRestrictions + ": node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod",

	names.NodeVolumeLimits + ": node(s) exceed max volume count",
	names.NodeVolumeLimits + ": looking up PVC …: persistentvolumeclaim … not found",

	names.NodeVolumeLimits + ": … CSI driver is not installed on the node",

	names.VolumeBinding + ": persistentvolumeclaim … not found",
	names.VolumeBinding + ": waiting for ephemeral volume controller to create the persistentvolumeclaim …",
	names.VolumeBinding + ": PVC … was not created for pod … (pod is not owner)",
	names.VolumeBinding + ": persistentvolumeclaim … is being deleted",
	names.VolumeBinding + ": persistentvolumeclaim … bound to non-existent persistentvolume …",
	names.VolumeBinding + ": pod has unbound immediate PersistentVolumeClaims",
	names.VolumeBinding + ": node(s) didn't match PersistentVolume's node affinity",
	names.VolumeBinding + ": node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
	names.VolumeBinding + ": node(s) didn't find available persistent volumes to bind",
	names.VolumeBinding + ": node(s) did not have enough free storage",

	names.VolumeZone + ": persistentvolumeclaim … not found",
	names.VolumeZone + ": persistentvolume … not found",
	names.VolumeZone + ": storageclass.storage.k8s.io … not found",
	names.VolumeZone + ": PersistentVolumeClaim had no pv name and storageClass name",
	names.VolumeZone + ": VolumeBindingMode not set for StorageClass …",
	names.VolumeZone + ": PersistentVolume had no name",
	names.VolumeZone + ": node(s) had no available volume zone",
}

// plainPod draws a pod that little but its volumes keeps from a node.
func (w *world) plainPod() *v1.Pod {
	pod := w.drawPod()
	if len(pod.Spec.Volumes) == 0 || !oneIn(w.t, 8, "plain") {
		pod.Spec.Volumes = drawPodVolumes(w.t)
	}
	if oneIn(w.t, 6, "as it is") {
		return pod
	}
	s := &pod.Spec
	s.HostNetwork, s.HostUsers, s.NodeSelector, s.Affinity, s.TopologySpreadConstraints, s.Resources = false, nil, nil, &v1.Affinity{}, nil, nil
	s.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
	for _, containers := range [][]v1.Container{s.InitContainers, s.Containers} {
		for i := range containers {
			c := &containers[i]
			c.Ports, c.RestartPolicyRules, c.Resources = nil, nil, v1.ResourceRequirements{}
		}
	}
	return pod
}

// TestVolumesAreJudgedTheSame judges pods with volumes while claims, volumes, attachments and the pods that use them come and go.
func TestVolumesAreJudgedTheSame(t *testing.T) {
	var n tally
	defer n.explain(t)
	check(t, func(t *rapid.T) {
		profiles, amiss := drawProfiles(t), oneIn(t, 5, "claims that are amiss")
		if amiss {
			profiles[1] = judgedAlone(t)
		}
		w := newWorld(t, profiles, drawGates(t), rapid.Uint64().Draw(t, "seed"), &n)
		w.begin(t, evenly(t, "width", [8]int{1, 2, 3, 4, 5, 6, 3, 4}), true)
		for _, node := range drawFleet(t, w.width) {
			if rapid.Bool().Draw(t, "labels of storage") {
				drawStorageLabels(t, node)
			}
			w.setNode(node, w.drawPlace())
		}
		crowded := false
		if oneIn(t, 3, "tight") {
			w.limitAll()
			crowded = rapid.Bool().Draw(t, "crowded")
		}
		for i := 0; crowded && i < w.width; i++ {
			pod := w.attaching()
			pod.Spec.Priority = ptr.To(pick[int32](t, "priority", 0, 1, 2))
			w.run(onNode(pod, nodeName(i), drawStatus(t, pod)))
		}
		for range evenly(t, "pods", [8]int{0, 1, 2, 4, 6, 8, 12, 16}) {
			w.runOn(w.plainPod(), nodeName(rapid.IntRange(0, w.width).Draw(t, "node")))
		}
		for range rapid.IntRange(1, 5).Draw(t, "judged") {
			pod := w.plainPod()
			switch {
			case amiss:
				pod.Spec.SchedulerName, pod.Spec.Volumes = profiles[1].SchedulerName, w.amiss(pod.Namespace)
				pod = w.named(pod)
			case crowded:
				pod = w.attaching()
			default:
				pod = w.named(pod)
			}
			if pod.Spec.Priority = ptr.To[int32](100); oneIn(t, 3, "another priority") {
				pod.Spec.Priority = drawPriority(t)
			}
			if pod.Status.NominatedNodeName = w.drawNomination(pod); crowded && !narrowed(pod) {
				pod.Status.NominatedNodeName = pick(t, "nominated", nodeName(0), nodeName(0), nodeName(1), "")
			}
			w.enter(pod)
		}
		for range rapid.IntRange(1, 6).Draw(t, "rounds") {
			ranges := w.drawRanges()
			if oneIn(t, 3, "uses") {
				w.compareUses()
			}
			for _, id := range sortedKeys(w.pending) {
				w.compareAndFollow(id, ranges)
			}
			if oneIn(t, 3, "any change") {
				w.change()
			} else {
				w.changeStorage()
			}
		}
	})
	n.report(t)
	n.checkTexts(t)
}

// judgedAlone draws a profile in which one alone of the plugins that read volumes judges pods: of what is amiss with a claim the others say something
// before.
func judgedAlone(t *rapid.T) config.KubeSchedulerProfile {
	p := defaultProfile(t)
	p.SchedulerName = "custom"
	alone := pick(t, "alone", names.VolumeZone, names.VolumeZone, names.NodeVolumeLimits, names.VolumeBinding)
	for _, name := range volumePlugins {
		if name == alone {
			continue
		}
		for _, set := range []*config.PluginSet{&p.Plugins.PreFilter, &p.Plugins.Filter, &p.Plugins.Reserve, &p.Plugins.PreBind} {
			set.Disabled = append(set.Disabled, config.Plugin{Name: name})
		}
	}
	return p
}

// amiss sets a claim with which something is amiss, and returns it as the one volume of a pod.
func (w *world) amiss(namespace string) []v1.Volume {
	t := w.t
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "amiss", UID: claimUID(namespace, "amiss")},
		Spec:       v1.PersistentVolumeClaimSpec{AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}},
		Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
	}
	of := func(class string) {
		claim.Spec.StorageClassName = &class
		if class != "s-never" {
			w.keep(drawClass(t, class))
		}
	}
	boundTo := func(v string) {
		claim.Spec.VolumeName, claim.Status.Phase = v, v1.ClaimBound
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnBindCompleted, "yes")
	}
	data := func(claim string) []v1.Volume {
		return []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
	}
	switch rapid.IntRange(0, 7).Draw(t, "amiss") {
	case 0: // its volume is never made, as far as anybody knows
		of("fast")
	case 1:
		of("odd")
	case 2:
		of("s-never")
	case 3: // it says neither a class nor a volume
	case 4:
		boundTo("v-never")
	case 5:
		boundTo("v-never")
		claim.Status.Phase = v1.ClaimLost
	case 6:
		of("fast")
		claim.DeletionTimestamp = &deleted
	case 7:
		return data(claimNames[len(claimNames)-1])
	}
	w.keep(claim)
	return data(claim.Name)
}

// attaching draws a pod with a volume of its own, which only how many can be attached keeps from a node: it is bound to it, or is to be provisioned. Now and
// then it has a disk besides that others have too.
func (w *world) attaching() *v1.Pod {
	t, pod := w.t, named(w.plainPod(), w.name())
	s := &pod.Spec
	s.SchedulerName, s.NodeSelector, s.Affinity, s.TopologySpreadConstraints = v1.DefaultSchedulerName, nil, &v1.Affinity{}, nil
	for _, key := range []string{zoneKey, v1.LabelHostname} {
		if oneIn(t, 3, "spread") {
			s.TopologySpreadConstraints = append(s.TopologySpreadConstraints, v1.TopologySpreadConstraint{
				MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: v1.ScheduleAnyway, LabelSelector: &metav1.LabelSelector{},
			})
		}
	}
	s.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data-" + pod.Name}}}}
	if oneIn(t, 4, "a disk besides") {
		s.Volumes = append(s.Volumes, v1.Volume{Name: "disk", VolumeSource: v1.VolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: "d"}}})
	}
	claim := drawWaitingClaim(t, pod.Namespace, "data-"+pod.Name)
	claim.Spec.StorageClassName, claim.Spec.Selector = ptr.To("late"), nil
	if rapid.Bool().Draw(t, "bound") {
		claim.Spec.VolumeName, claim.Status.Phase = ownVolume(pod.Namespace, claim.Name), v1.ClaimBound
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnBindCompleted, "yes")
		w.keep(&v1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: claim.Spec.VolumeName},
			Spec: v1.PersistentVolumeSpec{
				StorageClassName: "late", AccessModes: claim.Spec.AccessModes, Capacity: claim.Spec.Resources.Requests,
				ClaimRef:               &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: pod.Namespace, Name: claim.Name, UID: claim.UID},
				PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: csiDrivers[0], VolumeHandle: claim.Spec.VolumeName}},
			},
			Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound},
		})
	}
	w.keep(claim)
	return pod
}

// limitAll leaves room for one or two volumes of each driver on each node.
func (w *world) limitAll() {
	for _, name := range w.nodeNames() {
		n := drawCSINode(w.t, name)
		n.Spec.Drivers = nil
		for _, driver := range attachable {
			n.Spec.Drivers = append(n.Spec.Drivers, storagev1.CSINodeDriver{
				Name: driver, NodeID: name, Allocatable: &storagev1.VolumeNodeResources{Count: ptr.To(pick[int32](w.t, "limit", 1, 2))},
			})
		}
		w.keep(n)
	}
}

// compareAndFollow judges a pending pod both ways; sometimes it is then placed on one of kube-scheduler's best nodes, or its victims go.
func (w *world) compareAndFollow(id cluster.PodID, ranges []cluster.Range) {
	if _, waits := w.preempting[id]; waits {
		w.evicted(id)
		return
	}
	if w.evicting(w.pending[id].Status.NominatedNodeName) {
		return // see the package's comment
	}
	want := w.compare(id, ranges)
	switch p := want.Preemption; {
	case !oneIn(w.t, 4, "followed") || w.pending[id].Spec.NodeName != "" || w.kube.undecided(w.pending[id], want) != "" || w.kube.unbound(w.pending[id]):
	case p != nil && len(p.Candidates) > 0:
		node := rapid.SampledFrom(sortedKeys(p.Candidates)).Draw(w.t, "evicted from")
		w.evict(id, node, p.Candidates[node])
	case want.failed == nil && want.scoreError == nil && len(want.best()) > 0:
		w.place(id, want.best()[0])
	}
}

// checkTexts fails the test if one of volumeTexts has never come in a decision that was compared.
func (n *tally) checkTexts(t *testing.T) {
	if n.decisions < 5000 {
		return // too few to expect all of them
	}
	for _, text := range volumeTexts {
		if n.byText[text] == 0 {
			t.Errorf("no decision was compared in which a plugin says %q", text)
		}
	}
	for _, text := range []string{
		names.VolumeRestrictions + ": node(s) had no available disk",
		names.VolumeRestrictions + ": node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod",
		names.NodeVolumeLimits + ": node(s) exceed max volume count",
	} {
		if n.helped[text] == 0 {
			t.Errorf("preemption never helps where a plugin says %q", text)
		}
	}
	for _, said := range []map[string]int{n.byText, n.apartByText} {
		for text := range said {
			if !slices.Contains(volumeTexts, text) {
				t.Errorf("a plugin says %q, which is not among volumeTexts", text)
			}
		}
	}
}
