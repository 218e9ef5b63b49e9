package oracle

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
)

// waitingClasses are the classes whose claims wait for a consumer.
var waitingClasses = []string{"late", "static"}

// drawWaitingClaim draws a claim that waits for a consumer, if there is its class.
func drawWaitingClaim(t *rapid.T, namespace, name string) *v1.PersistentVolumeClaim {
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: claimUID(namespace, name)},
		Spec: v1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To(rapid.SampledFrom(waitingClasses).Draw(t, "class")),
			AccessModes:      []v1.PersistentVolumeAccessMode{pick(t, "access mode", v1.ReadWriteOnce, v1.ReadWriteOnce, v1.ReadWriteMany, v1.ReadWriteOncePod)},
			VolumeMode:       drawVolumeMode(t), VolumeAttributesClassName: drawAttributesClass(t),
		},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
	}
	claim.Spec.Resources.Requests = drawSize(t)
	if oneIn(t, 3, "selects volumes") {
		claim.Spec.Selector = drawSelector(t, volumeLabels)
	}
	if oneIn(t, 12, "provisioned") {
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnSelectedNode, nodeName(rapid.IntRange(0, 3).Draw(t, "selected")))
	}
	return claim
}

// claimUID is the UID of the claims of a name, but for those that a volume is kept for in vain.
func claimUID(namespace, name string) types.UID { return types.UID("uid-" + namespace + "-" + name) }

// volumeLabels are labels of volumes, which claims select.
var volumeLabels = map[string][]string{"disk": {"a", "b"}}

func drawVolumeMode(t *rapid.T) *v1.PersistentVolumeMode {
	return evenly(t, "volume mode", [8]*v1.PersistentVolumeMode{nil, nil, nil, ptr.To(v1.PersistentVolumeBlock), ptr.To(v1.PersistentVolumeFilesystem), ptr.To(v1.PersistentVolumeFilesystem), nil, ptr.To(v1.PersistentVolumeBlock)})
}

func drawAttributesClass(t *rapid.T) *string {
	return evenly(t, "attributes class", [8]*string{nil, nil, nil, ptr.To("gold"), nil, ptr.To(""), ptr.To("gold"), nil})
}

// drawFate draws what keeps a volume that is nobody's from claims, or for one of them.
func drawFate(t *rapid.T, v *v1.PersistentVolume) {
	v.Spec.VolumeMode, v.Spec.VolumeAttributesClassName = drawVolumeMode(t), drawAttributesClass(t)
	if oneIn(t, 3, "labels to select") {
		for key, value := range drawLabels(t, volumeLabels, 1) {
			metav1.SetMetaDataLabel(&v.ObjectMeta, key, value)
		}
	}
	if oneIn(t, 4, "class in an annotation") {
		v.Annotations = map[string]string{v1.BetaStorageClassAnnotation: v.Spec.StorageClassName}
		v.Spec.StorageClassName = evenly(t, "another class besides", [8]string{"", "", "", "late", "late", "static", "static", "fast"})
	}
	if oneIn(t, 8, "being deleted") {
		v.DeletionTimestamp = &deleted
	}
	v.Status.Phase = evenly(t, "phase", [8]v1.PersistentVolumePhase{
		v1.VolumeAvailable, v1.VolumeAvailable, v1.VolumeAvailable, v1.VolumeAvailable, v1.VolumeAvailable, v1.VolumePending, v1.VolumeReleased, v1.VolumeFailed,
	})
	if oneIn(t, 3, "kept for a claim") {
		namespace, name := namespaceNames[0], rapid.SampledFrom(claimNames).Draw(t, "claim")
		if oneIn(t, 6, "another namespace") {
			namespace = namespaceNames[1]
		}
		uid := evenly(t, "its UID", [8]types.UID{"", "", "", claimUID(namespace, name), claimUID(namespace, name), claimUID(namespace, name), "uid-of-another", "uid-of-another"})
		v.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: namespace, Name: name, UID: uid}
	}
}

// supplyCases are what has to come of volumes and claims in decisions about claims that wait, see supply.
var supplyCases = []string{
	"a volume is chosen that is nobody's", "a volume is to be provisioned",
	"a volume is chosen that is kept for the claim by its name", "a volume is chosen that is kept for the claim by its UID",
	"a volume is chosen that is kept for the claim and not Available", "a volume is chosen whose class is in an annotation",
	"a block volume is chosen", "a volume with an attributes class is chosen", "a volume is chosen by its labels",
	"only the volume mode is another", "only the attributes class is another", "only that it is being deleted is in the way",
	"only the phase is in the way: " + string(v1.VolumePending), "only the phase is in the way: " + string(v1.VolumeReleased), "only the phase is in the way: " + string(v1.VolumeFailed),
	"only the UID of the claim that it is kept for is another", "only that it is kept for another claim is in the way",
	"only the class in its annotation is another", "only the access modes are others", "only the labels are others",
	"the volume that is kept for the claim is not reached from the node",
}

// supply notes which of supplyCases a decision about a pod is a case of: what is chosen on feasible nodes, and what keeps a volume on some node from a claim that it
// would do for otherwise.
func (d *decision) supply(state fwk.CycleState, all, feasible []fwk.NodeInfo) {
	data, err := state.Read(names.VolumeBinding)
	if err != nil {
		return
	}
	claims := *unexported[*volumebinding.PodVolumeClaims](data, "podVolumeClaims")
	if claims == nil {
		return
	}
	d.met = make(map[string]bool)
	meet := func(what string, is bool) { d.met[what] = d.met[what] || is }
	for _, n := range feasible {
		of := (*unexported[map[string]*volumebinding.PodVolumes](data, "podVolumesByNode"))[n.Node().Name]
		if of == nil {
			continue
		}
		meet("a volume is to be provisioned", len(of.DynamicProvisions) > 0)
		for _, b := range of.StaticBindings {
			claim, v := *unexported[*v1.PersistentVolumeClaim](b, "pvc"), *unexported[*v1.PersistentVolume](b, "pv")
			kept := v.Spec.ClaimRef != nil
			meet("a volume is chosen that is nobody's", !kept)
			meet("a volume is chosen that is kept for the claim by its name", kept && v.Spec.ClaimRef.UID == "")
			meet("a volume is chosen that is kept for the claim by its UID", kept && v.Spec.ClaimRef.UID != "")
			meet("a volume is chosen that is kept for the claim and not Available", kept && v.Status.Phase != v1.VolumeAvailable)
			meet("a volume is chosen whose class is in an annotation", v.Annotations[v1.BetaStorageClassAnnotation] != "" && v.Spec.StorageClassName == "")
			meet("a block volume is chosen", v.Spec.VolumeMode != nil && *v.Spec.VolumeMode == v1.PersistentVolumeBlock)
			meet("a volume with an attributes class is chosen", ptr.Deref(v.Spec.VolumeAttributesClassName, "") != "")
			meet("a volume is chosen by its labels", claim.Spec.Selector != nil && !kept && len(claim.Spec.Selector.MatchLabels)+len(claim.Spec.Selector.MatchExpressions) > 0)
		}
	}
	waiting := *unexported[[]*v1.PersistentVolumeClaim](claims, "unboundClaimsDelayBinding")
	volumes := *unexported[map[string][]*v1.PersistentVolume](claims, "unboundVolumesDelayBinding")
	for _, claim := range waiting {
		if _, selected := claim.Annotations[volume.AnnSelectedNode]; selected {
			continue
		}
		for _, v := range volumes[volume.GetPersistentVolumeClaimClass(claim)] {
			d.inTheWay(claim, v, all, meet)
		}
		for _, of := range volumes {
			for _, v := range of {
				d.otherClass(claim, v, all, meet)
			}
		}
	}
}

// does reports whether a volume would do for a claim on one of the nodes.
func does(claim *v1.PersistentVolumeClaim, v *v1.PersistentVolume, nodes []fwk.NodeInfo) bool {
	for _, n := range nodes {
		if found, err := volume.FindMatchingVolume(claim, []*v1.PersistentVolume{v}, n.Node(), nil, true, true); err == nil && found != nil {
			return true
		}
	}
	return false
}

// inTheWay notes what alone keeps a volume from a claim, on all nodes.
func (d *decision) inTheWay(claim *v1.PersistentVolumeClaim, v *v1.PersistentVolume, nodes []fwk.NodeInfo, meet func(string, bool)) {
	if does(claim, v, nodes) {
		if volume.IsVolumeBoundToClaim(v, claim) {
			for _, n := range nodes {
				meet("the volume that is kept for the claim is not reached from the node", volume.CheckNodeAffinity(v, n.Node().Labels) != nil)
			}
		}
		return
	}
	try := func(what string, change func(v *v1.PersistentVolume)) {
		if d.met[what] {
			return
		}
		other := *v
		change(&other)
		meet(what, does(claim, &other, nodes))
	}
	try("only the volume mode is another", func(v *v1.PersistentVolume) { v.Spec.VolumeMode = claim.Spec.VolumeMode })
	try("only the attributes class is another", func(v *v1.PersistentVolume) { v.Spec.VolumeAttributesClassName = claim.Spec.VolumeAttributesClassName })
	try("only that it is being deleted is in the way", func(v *v1.PersistentVolume) { v.DeletionTimestamp = nil })
	try("only the phase is in the way: "+string(v.Status.Phase), func(v *v1.PersistentVolume) { v.Status.Phase = v1.VolumeAvailable })
	try("only the access modes are others", func(v *v1.PersistentVolume) { v.Spec.AccessModes = claim.Spec.AccessModes })
	if s, err := metav1.LabelSelectorAsSelector(claim.Spec.Selector); err == nil && claim.Spec.Selector != nil && !s.Matches(labels.Set(v.Labels)) {
		unselective := *claim
		unselective.Spec.Selector = nil
		meet("only the labels are others", does(&unselective, v, nodes))
	}
	if to := v.Spec.ClaimRef; to != nil {
		if to.Namespace == claim.Namespace && to.Name == claim.Name {
			try("only the UID of the claim that it is kept for is another", func(v *v1.PersistentVolume) { v.Spec.ClaimRef = nil })
		} else {
			try("only that it is kept for another claim is in the way", func(v *v1.PersistentVolume) { v.Spec.ClaimRef = nil })
		}
	}
}

// otherClass notes that a volume would be of the class that a claim asks for if its annotation did not say otherwise.
func (d *decision) otherClass(claim *v1.PersistentVolumeClaim, v *v1.PersistentVolume, nodes []fwk.NodeInfo, meet func(string, bool)) {
	const what = "only the class in its annotation is another"
	class := volume.GetPersistentVolumeClaimClass(claim)
	if d.met[what] || v.Annotations[v1.BetaStorageClassAnnotation] == "" || v.Annotations[v1.BetaStorageClassAnnotation] == class || v.Spec.StorageClassName != class {
		return
	}
	other := *v
	other.Annotations = nil
	meet(what, does(claim, &other, nodes))
}

// TestClaimsThatWaitGetTheSameVolumes judges pods whose claims wait for a consumer, among many volumes of their classes, while these come and go.
func TestClaimsThatWaitGetTheSameVolumes(t *testing.T) {
	var n tally
	defer n.explain(t)
	check(t, func(t *rapid.T) {
		w := newWorld(t, drawProfiles(t), drawGates(t), rapid.Uint64().Draw(t, "seed"), &n)
		w.begin(t, evenly(t, "width", [8]int{1, 2, 2, 3, 3, 4, 4, 6}), true)
		for _, node := range drawFleet(t, w.width) {
			if rapid.Bool().Draw(t, "labels of storage") {
				drawStorageLabels(t, node)
			}
			w.setNode(node, w.drawPlace())
		}
		for _, class := range waitingClasses {
			w.keep(drawClass(t, class))
		}
		for _, namespace := range namespaceNames[:2] {
			for _, name := range claimNames[:len(claimNames)-1] {
				w.keep(drawWaitingClaim(t, namespace, name))
			}
		}
		for _, name := range volumeNames[:len(volumeNames)-1] {
			w.keep(w.drawFreeVolume(name))
		}
		for range rapid.IntRange(0, 3).Draw(t, "pods") {
			w.runOn(w.plainPod(), nodeName(rapid.IntRange(0, w.width).Draw(t, "node")))
		}
		for range rapid.IntRange(1, 4).Draw(t, "judged") {
			pod := w.plainPod()
			pod.Spec.Volumes = drawClaimsOf(t)
			pod = w.named(pod)
			pod.Status.NominatedNodeName = w.drawNomination(pod)
			w.enter(pod)
		}
		for range rapid.IntRange(1, 6).Draw(t, "rounds") {
			ranges := w.drawRanges()
			for _, id := range sortedKeys(w.pending) {
				w.compareAndFollow(id, ranges)
			}
			w.changeSupply()
		}
	})
	n.report(t)
	if n.decisions >= 10000 { // else there are too few to expect all of them
		for _, what := range supplyCases {
			if n.met[what] == 0 {
				t.Errorf("there is no decision about claims that wait in which %s", what)
			}
		}
	}
}

// drawFreeVolume draws a volume, which is more often than not one that claims can get.
func (w *world) drawFreeVolume(name string) *v1.PersistentVolume {
	v := drawVolume(w.t, name)
	if rapid.Bool().Draw(w.t, "can be had") {
		v.DeletionTimestamp, v.Status.Phase = nil, v1.VolumeAvailable
	}
	if oneIn(w.t, 4, "kept for one there is") {
		name := rapid.SampledFrom(claimNames[:len(claimNames)-1]).Draw(w.t, "claim")
		uid := pick(w.t, "its UID", "uid-of-another", "uid-of-another", claimUID(namespaceNames[0], name), "")
		v.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: namespaceNames[0], Name: name, UID: uid}
	}
	if oneIn(w.t, 3, "a label to select") {
		metav1.SetMetaDataLabel(&v.ObjectMeta, "disk", pick(w.t, "disk", "a", "b"))
	}
	return v
}

// drawClaimsOf draws volumes of a pod that are claims of its own namespace, now and then one twice.
func drawClaimsOf(t *rapid.T) []v1.Volume {
	var out []v1.Volume
	for k := range pick(t, "claims", 1, 1, 2, 2, 3) {
		out = append(out, v1.Volume{Name: "vol" + string(rune('0'+k)), VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
			ClaimName: rapid.SampledFrom(claimNames[:len(claimNames)-1]).Draw(t, "claim"),
		}}})
	}
	return out
}

// changeSupply changes a claim that waits, a volume, or something else that volumes are made of.
func (w *world) changeSupply() {
	t := w.t
	name := rapid.SampledFrom(volumeNames[:len(volumeNames)-1]).Draw(t, "volume")
	switch rapid.IntRange(0, 6).Draw(t, "change of supply") {
	case 0, 1:
		w.keep(w.drawFreeVolume(name))
	case 2:
		if w.objects.kept[volumeKey(name)] != nil {
			w.discard(volumeKey(name))
		}
	case 3, 4:
		w.keep(drawWaitingClaim(t, namespaceNames[0], rapid.SampledFrom(claimNames[:len(claimNames)-1]).Draw(t, "claim")))
	case 5:
		w.changeStorage()
	case 6:
		w.change()
	}
}
