package oracle

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/csi-translation-lib/plugins"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Names of what volumes are made of; few, so that what is asked for and what there is often meet. The last of each never is there.
var (
	claimNames  = []string{"c0", "c1", "c2", "c3", "c-never"}
	volumeNames = []string{"v0", "v1", "v2", "v3", "v4", "v-never"}
	classNames  = []string{"fast", "late", "static", "odd", "s-never"}
	csiDrivers  = []string{"csi.example.com", plugins.AWSEBSDriverName, plugins.GCEPDDriverName, "csi-never.example.com"}
	// inTreePlugins are those that a CSI driver can have taken the place of on a node; kube-scheduler takes the last never to be replaced.
	inTreePlugins = []string{
		plugins.AWSEBSInTreePluginName, plugins.GCEPDInTreePluginName, plugins.AzureDiskInTreePluginName, plugins.CinderInTreePluginName,
		plugins.PortworxVolumePluginName, plugins.VSphereInTreePluginName,
	}
	volumeZones = []string{"za", "zb", "us-east1-a", "us-east1-b"}
	// storageLabels are labels of nodes that only volumes are about: zones and regions as they were called once, and as CSI drivers call them.
	storageLabels = map[string][]string{
		v1.LabelFailureDomainBetaZone: volumeZones, v1.LabelFailureDomainBetaRegion: {"ra", "rb"}, v1.LabelTopologyRegion: {"ra", "rb"},
		plugins.AWSEBSTopologyKey: volumeZones, plugins.GCEPDTopologyKey: volumeZones,
	}
)

// drawStorage draws what volumes are made of in a cluster whose nodes are up to width.
func drawStorage(t *rapid.T, width int) []metav1.Object {
	var out []metav1.Object
	for _, name := range classNames[:len(classNames)-1] {
		if !oneIn(t, 6, "no class") {
			out = append(out, drawClass(t, name))
		}
	}
	for _, name := range csiDrivers[:len(csiDrivers)-1] {
		if oneIn(t, 2, "driver") {
			out = append(out, drawDriver(t, name))
		}
	}
	for i := range width {
		if !oneIn(t, 5, "no CSI node") {
			out = append(out, drawCSINode(t, nodeName(i)))
		}
	}
	for _, namespace := range namespaceNames[:2] {
		for _, name := range claimNames[:len(claimNames)-1] {
			if !oneIn(t, 10, "no claim") {
				out = append(out, drawClaim(t, namespace, name)...)
			}
		}
	}
	for _, name := range volumeNames[:len(volumeNames)-1] {
		if oneIn(t, 2, "volume") {
			out = append(out, drawVolume(t, name))
		}
	}
	for k := range rapid.IntRange(0, 3).Draw(t, "attachments") {
		out = append(out, drawAttachment(t, fmt.Sprintf("a%d", k), width))
	}
	for k := range rapid.IntRange(0, 2).Draw(t, "capacities") {
		out = append(out, drawCapacity(t, fmt.Sprintf("k%d", k)))
	}
	return out
}

// drawStorageObject draws one of the objects that drawStorage draws, some with what belongs to them.
func drawStorageObject(t *rapid.T, width int) []metav1.Object {
	switch rapid.IntRange(0, 11).Draw(t, "storage object") {
	case 0:
		return []metav1.Object{drawClass(t, rapid.SampledFrom(classNames[:len(classNames)-1]).Draw(t, "class"))}
	case 1:
		return []metav1.Object{drawDriver(t, rapid.SampledFrom(csiDrivers[:len(csiDrivers)-1]).Draw(t, "driver"))}
	case 2, 3:
		return []metav1.Object{drawCSINode(t, nodeName(rapid.IntRange(0, width).Draw(t, "node")))}
	case 4:
		return []metav1.Object{drawVolume(t, rapid.SampledFrom(volumeNames[:len(volumeNames)-1]).Draw(t, "volume"))}
	case 5:
		return []metav1.Object{drawVolume(t, ownVolume("default", rapid.SampledFrom(claimNames).Draw(t, "its claim")))}
	case 6, 7:
		return []metav1.Object{drawAttachment(t, pick(t, "attachment", "a0", "a1", "a2"), width)}
	case 8:
		return []metav1.Object{drawCapacity(t, pick(t, "capacity", "k0", "k1"))}
	}
	return drawClaim(t, rapid.SampledFrom(namespaceNames[:2]).Draw(t, "namespace"), rapid.SampledFrom(claimNames[:len(claimNames)-1]).Draw(t, "claim"))
}

func drawClass(t *rapid.T, name string) *storagev1.StorageClass {
	c := &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: name},
		Provisioner:       pick(t, "provisioner", csiDrivers[0], plugins.AWSEBSInTreePluginName, plugins.AWSEBSDriverName, plugins.VSphereInTreePluginName),
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingImmediate),
	}
	switch name {
	case "late":
		if rapid.Bool().Draw(t, "by CSI") {
			c.Provisioner = csiDrivers[0]
		}
		c.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
	case "static":
		c.Provisioner, c.VolumeBindingMode = volume.NotSupportedProvisioner, ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
	case "odd": // what the API server would not leave so
		c.VolumeBindingMode = nil
	}
	if oneIn(t, 4, "topologies") {
		c.AllowedTopologies = []v1.TopologySelectorTerm{{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{{
			Key: zoneKey, Values: []string{pick(t, "zone", "za", "zb")},
		}}}}
	}
	return c
}

func drawDriver(t *rapid.T, name string) *storagev1.CSIDriver {
	d := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: name}}
	d.Spec.StorageCapacity = pick(t, "capacity matters", ptr.To(true), ptr.To(true), nil, ptr.To(false))
	d.Spec.PreventPodSchedulingIfMissing = pick(t, "must be there", nil, ptr.To(true))
	return d
}

func drawCSINode(t *rapid.T, name string) *storagev1.CSINode {
	n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, driver := range csiDrivers[:len(csiDrivers)-1] {
		if oneIn(t, 4, "not on the node") {
			continue
		}
		d := storagev1.CSINodeDriver{Name: driver, NodeID: name}
		if limit := pick[int32](t, "limit", 1, 2, 1, 3, 0, -1, -2); limit >= 0 {
			d.Allocatable = &storagev1.VolumeNodeResources{Count: &limit}
		} else if limit == -2 {
			d.Allocatable = &storagev1.VolumeNodeResources{}
		}
		n.Spec.Drivers = append(n.Spec.Drivers, d)
	}
	if oneIn(t, 2, "migrated plugins") {
		var migrated []string
		for _, plugin := range inTreePlugins {
			if !oneIn(t, 3, "not migrated") {
				migrated = append(migrated, plugin)
			}
		}
		if oneIn(t, 8, "with a blank") {
			migrated = append(migrated, " "+plugins.AWSEBSInTreePluginName)
		}
		n.Annotations = map[string]string{v1.MigratedPluginsAnnotationKey: strings.Join(migrated, ",")}
	}
	return n
}

func drawAttachment(t *rapid.T, name string, width int) *storagev1.VolumeAttachment {
	a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name}}
	a.Spec.NodeName = nodeName(rapid.IntRange(0, width).Draw(t, "node"))
	a.Spec.Attacher = pick(t, "attacher", csiDrivers[0], csiDrivers[0], csiDrivers[1], csiDrivers[2], "")
	if oneIn(t, 8, "of an inline volume") {
		a.Spec.Source.InlineVolumeSpec = &v1.PersistentVolumeSpec{PersistentVolumeSource: drawCSISource(t)}
		return a
	}
	of := rapid.SampledFrom(volumeNames).Draw(t, "volume")
	if oneIn(t, 2, "of a claim") {
		of = ownVolume("default", rapid.SampledFrom(claimNames).Draw(t, "claim"))
	}
	a.Spec.Source.PersistentVolumeName = &of
	return a
}

func drawCapacity(t *rapid.T, name string) *storagev1.CSIStorageCapacity {
	c := &storagev1.CSIStorageCapacity{
		ObjectMeta:       metav1.ObjectMeta{Namespace: "default", Name: name},
		StorageClassName: rapid.SampledFrom(classNames).Draw(t, "class"), NodeTopology: drawSelector(t, topologyValues),
	}
	if !oneIn(t, 4, "no capacity") {
		c.Capacity = ptr.To(resource.MustParse(pick(t, "capacity", "1Gi", "5Gi", "0")))
	}
	if oneIn(t, 4, "a largest size") {
		c.MaximumVolumeSize = ptr.To(resource.MustParse(pick(t, "largest", "1Gi", "5Gi")))
	}
	return c
}

// ownVolume is the name of the volume that is a claim's own.
func ownVolume(namespace, claim string) string { return "pv-" + namespace + "-" + claim }

// drawClaim draws a claim that is bound to a volume of its own, which comes with it, or one of any other kind.
func drawClaim(t *rapid.T, namespace, name string) []metav1.Object {
	if oneIn(t, 4, "waits") {
		return []metav1.Object{drawWaitingClaim(t, namespace, name)}
	}
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: claimUID(namespace, name)},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{pick(t, "access mode", v1.ReadWriteOnce, v1.ReadWriteOncePod, v1.ReadWriteMany, v1.ReadOnlyMany)},
			VolumeName:  ownVolume(namespace, name),
		},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
	}
	if oneIn(t, 8, "another mode") {
		claim.Spec.AccessModes = append(claim.Spec.AccessModes, v1.ReadWriteOncePod)
	}
	claim.Spec.Resources.Requests = drawSize(t)
	switch class := rapid.SampledFrom(append(slices.Clone(classNames), "", "none")).Draw(t, "class"); class {
	case "none":
	case "fast": // as it was said once
		claim.Annotations = map[string]string{v1.BetaStorageClassAnnotation: class}
	default:
		claim.Spec.StorageClassName = &class
	}
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnBindCompleted, "yes")
	unbind := func() {
		delete(claim.Annotations, volume.AnnBindCompleted)
		claim.Spec.VolumeName, claim.Status.Phase = "", v1.ClaimPending
	}
	var own *v1.PersistentVolume
	if oneIn(t, 4, "not simply bound") {
		switch rapid.IntRange(0, 9).Draw(t, "claim is") {
		case 0: // bound to a volume that is not its own
			claim.Spec.VolumeName = rapid.SampledFrom(volumeNames).Draw(t, "volume")
			return []metav1.Object{claim}
		case 1: // half bound: the claim does not know yet that it is
			delete(claim.Annotations, volume.AnnBindCompleted)
			claim.Status.Phase = v1.ClaimPending
		case 2: // bound, it says, and not to what
			claim.Spec.VolumeName = ""
		case 3:
			claim.Status.Phase = v1.ClaimLost
			return []metav1.Object{claim}
		case 4:
			claim.DeletionTimestamp = &deleted
		case 5, 6, 7:
			unbind()
			return []metav1.Object{claim}
		case 8: // volumes of its class are made for the node
			unbind()
			metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnSelectedNode, nodeName(rapid.IntRange(0, 3).Draw(t, "selected")))
			return []metav1.Object{claim}
		case 9:
			unbind()
			claim.Spec.Selector = drawSelector(t, volumeLabels)
			return []metav1.Object{claim}
		}
	}
	own = drawVolume(t, ownVolume(namespace, name))
	own.DeletionTimestamp = nil
	own.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: namespace, Name: name, UID: claim.UID}
	own.Status.Phase = v1.VolumeBound
	if oneIn(t, 8, "of another claim of the name") {
		own.Spec.ClaimRef.UID = "uid-of-another"
	}
	return []metav1.Object{own, claim}
}

// drawSize draws what a claim requests, nil for nothing.
func drawSize(t *rapid.T) v1.ResourceList {
	if oneIn(t, 8, "no size") {
		return nil
	}
	return v1.ResourceList{v1.ResourceStorage: resource.MustParse(pick(t, "size", "1Gi", "3Gi", "500Mi"))}
}

// drawVolume draws a PersistentVolume that is bound to no claim, and may be kept for one.
func drawVolume(t *rapid.T, name string) *v1.PersistentVolume {
	v := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable}}
	v.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse(pick(t, "capacity", "1Gi", "3Gi", "10Gi"))}
	v.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadWriteMany}
	if v.Spec.StorageClassName = rapid.SampledFrom(classNames).Draw(t, "class"); rapid.Bool().Draw(t, "of claims that wait") {
		v.Spec.StorageClassName = rapid.SampledFrom(waitingClasses).Draw(t, "class")
	}
	if oneIn(t, 3, "zone labels") {
		v.Labels = drawZones(t)
	}
	drawFate(t, v)
	if oneIn(t, 3, "affinity") {
		v.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: drawVolumeAffinity(t)}
	}
	drawVolumeSource(t, v)
	return v
}

// drawZones draws the labels that VolumeZone reads, in both generations of names, now and then with what is no zone.
func drawZones(t *rapid.T) map[string]string {
	out := make(map[string]string)
	for _, key := range []string{zoneKey, v1.LabelFailureDomainBetaZone} {
		if !oneIn(t, 2, "zone") {
			continue
		}
		out[key] = rapid.SampledFrom(volumeZones).Draw(t, "zone")
		if oneIn(t, 3, "several zones") {
			out[key] += "__" + rapid.SampledFrom(volumeZones).Draw(t, "zone")
		}
		if oneIn(t, 16, "no zone") {
			out[key] = pick(t, "no zone", "", "__", "za__", "za____zb")
		}
	}
	for _, key := range []string{v1.LabelTopologyRegion, v1.LabelFailureDomainBetaRegion} {
		if oneIn(t, 6, "region") {
			out[key] = pick(t, "region", "ra", "rb", "ra__rb")
		}
	}
	return out
}

func drawVolumeAffinity(t *rapid.T) *v1.NodeSelector {
	term := func() v1.NodeSelectorTerm {
		r := v1.NodeSelectorRequirement{
			Key: pick(t, "key", zoneKey, v1.LabelHostname, v1.LabelFailureDomainBetaZone, v1.LabelTopologyRegion, v1.LabelFailureDomainBetaRegion, "disk", "size"),
		}
		switch r.Operator = v1.NodeSelectorOpIn; r.Key {
		case v1.LabelHostname:
			r.Values = []string{nodeName(rapid.IntRange(0, 3).Draw(t, "name")), nodeName(rapid.IntRange(0, 3).Draw(t, "name"))}
		case "disk":
			r.Operator, r.Values = pick(t, "operator", v1.NodeSelectorOpNotIn, v1.NodeSelectorOpIn), []string{"a"}
		case "size":
			r.Operator, r.Values = v1.NodeSelectorOpGt, []string{pick(t, "size", "5", "0", "many")}
		case v1.LabelTopologyRegion, v1.LabelFailureDomainBetaRegion:
			r.Values = []string{pick(t, "region", "ra", "rb")}
		default:
			r.Values = []string{rapid.SampledFrom(volumeZones).Draw(t, "zone"), rapid.SampledFrom(volumeZones).Draw(t, "zone")}
		}
		out := v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{r}}
		if oneIn(t, 12, "a field") { // which is of no node's name
			out.MatchFields = []v1.NodeSelectorRequirement{{
				Key: metav1.ObjectNameField, Operator: pick(t, "operator", v1.NodeSelectorOpNotIn, v1.NodeSelectorOpIn), Values: []string{nodeName(0)},
			}}
		}
		return out
	}
	out := &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{term()}}
	if oneIn(t, 4, "another term") {
		out.NodeSelectorTerms = append(out.NodeSelectorTerms, term())
	}
	if oneIn(t, 24, "an empty term") {
		out.NodeSelectorTerms[0] = v1.NodeSelectorTerm{}
	}
	return out
}

func drawCSISource(t *rapid.T) v1.PersistentVolumeSource {
	return v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
		Driver: pick(t, "driver", csiDrivers[0], csiDrivers[0], csiDrivers[1], csiDrivers[2], csiDrivers[3]), VolumeHandle: pick(t, "handle", "h0", "h1", "h2", "vol-1"),
	}}
}

// The names of disks; the last of EBS cannot be translated.
var (
	ebsVolumes = []string{"vol-1", "aws://za/vol-1", "vol-2", "aws:///vol-3"}
	gceDisks   = []string{"disk-0", "disk-1"}
)

func drawEBSVolume(t *rapid.T) *v1.AWSElasticBlockStoreVolumeSource {
	id := rapid.SampledFrom(ebsVolumes).Draw(t, "EBS volume")
	if oneIn(t, 24, "cannot be translated") {
		id = "aws://za/none"
	}
	return &v1.AWSElasticBlockStoreVolumeSource{VolumeID: id, ReadOnly: oneIn(t, 2, "read only")}
}

// drawVolumeSource draws what a volume is: mostly one of CSI, or of an in-tree plugin that a CSI driver may stand for.
func drawVolumeSource(t *rapid.T, v *v1.PersistentVolume) {
	source := &v.Spec.PersistentVolumeSource
	switch rapid.IntRange(0, 15).Draw(t, "source") {
	case 6, 7:
		source.AWSElasticBlockStore = drawEBSVolume(t)
	case 8:
		source.GCEPersistentDisk = &v1.GCEPersistentDiskVolumeSource{PDName: rapid.SampledFrom(gceDisks).Draw(t, "disk")}
	case 9:
		source.AzureDisk = &v1.AzureDiskVolumeSource{DiskName: "d", DataDiskURI: pick(t, "disk", "/uri/0", "/uri/1"), Kind: ptr.To(v1.AzureManagedDisk)}
		if oneIn(t, 12, "not managed") {
			source.AzureDisk.Kind = ptr.To(v1.AzureSharedBlobDisk)
		}
	case 10:
		source.Cinder = &v1.CinderPersistentVolumeSource{VolumeID: pick(t, "volume", "0", "1")}
	case 11:
		source.PortworxVolume = &v1.PortworxVolumeSource{VolumeID: pick(t, "volume", "0", "1")}
	case 12:
		source.VsphereVolume = &v1.VsphereVirtualDiskVolumeSource{VolumePath: "[store] path"}
	case 13:
		source.NFS = &v1.NFSVolumeSource{Server: "nfs.example.com", Path: "/"}
	case 14:
		source.Local = &v1.LocalVolumeSource{Path: "/mnt"}
		v.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{
				Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{nodeName(rapid.IntRange(0, 3).Draw(t, "node"))},
			}},
		}}}}
	case 15:
		source.AzureFile = &v1.AzureFilePersistentVolumeSource{SecretName: "s", ShareName: "share", SecretNamespace: ptr.To("default")}
	default:
		*source = drawCSISource(t)
	}
}

// drawPodVolumes draws volumes of a pod that matter to scheduling.
func drawPodVolumes(t *rapid.T) []v1.Volume {
	var out []v1.Volume
	for k := range pick(t, "volumes", 1, 1, 2, 3) {
		v := v1.Volume{Name: fmt.Sprintf("vol%d", k)}
		switch rapid.IntRange(0, 11).Draw(t, "volume") {
		default:
			name := rapid.SampledFrom(claimNames[:len(claimNames)-1]).Draw(t, "claim")
			if oneIn(t, 16, "a claim that is not there") {
				name = claimNames[len(claimNames)-1]
			}
			v.PersistentVolumeClaim = &v1.PersistentVolumeClaimVolumeSource{ClaimName: name, ReadOnly: oneIn(t, 8, "read only")}
		case 6:
			v.Ephemeral = &v1.EphemeralVolumeSource{VolumeClaimTemplate: &v1.PersistentVolumeClaimTemplate{Spec: v1.PersistentVolumeClaimSpec{
				AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
				Resources:   v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
			}}}
		case 7:
			v.AWSElasticBlockStore = drawEBSVolume(t)
		case 8:
			v.GCEPersistentDisk = &v1.GCEPersistentDiskVolumeSource{
				PDName: rapid.SampledFrom(gceDisks).Draw(t, "disk"), ReadOnly: rapid.Bool().Draw(t, "read only"),
			}
		case 9:
			v.ISCSI = &v1.ISCSIVolumeSource{
				TargetPortal: "10.0.0.1:3260", IQN: pick(t, "target", "iqn.2026-01.com.example:0", "iqn.2026-01.com.example:1"),
				Lun: pick[int32](t, "lun", 0, 1), ReadOnly: rapid.Bool().Draw(t, "read only"),
			}
		case 10:
			v.RBD = &v1.RBDVolumeSource{
				CephMonitors: pick(t, "monitors", []string{"m0"}, []string{"m1", "m0"}, []string{"m2", "m1"}, []string{"m2"}),
				RBDImage:     pick(t, "image", "foo", "bar"), RBDPool: pick(t, "pool", "", "pool"), ReadOnly: rapid.Bool().Draw(t, "read only"),
			}
		case 11:
			drawOtherVolume(t, &v)
		}
		out = append(out, v)
	}
	return out
}

// drawOtherVolume draws an inline volume that is no matter of VolumeRestrictions.
func drawOtherVolume(t *rapid.T, v *v1.Volume) {
	switch rapid.IntRange(0, 6).Draw(t, "other volume") {
	case 0:
		v.AzureDisk = &v1.AzureDiskVolumeSource{DiskName: "d", DataDiskURI: "/uri/0", Kind: ptr.To(v1.AzureManagedDisk)}
		if oneIn(t, 8, "not managed") {
			v.AzureDisk.Kind = ptr.To(v1.AzureDedicatedBlobDisk)
		}
	case 1:
		v.Cinder = &v1.CinderVolumeSource{VolumeID: pick(t, "volume", "0", "1")}
	case 2:
		v.PortworxVolume = &v1.PortworxVolumeSource{VolumeID: "0"}
	case 3:
		v.VsphereVolume = &v1.VsphereVirtualDiskVolumeSource{VolumePath: "[store] path"}
	case 4:
		v.AzureFile = &v1.AzureFileVolumeSource{SecretName: "s", ShareName: "share"}
	case 5:
		v.CSI = &v1.CSIVolumeSource{Driver: csiDrivers[0]}
	case 6:
		v.EmptyDir = &v1.EmptyDirVolumeSource{}
	}
}

// drawEphemeralClaims draws the claims of a pod's generic ephemeral volumes: mostly there, and the pod's.
func drawEphemeralClaims(t *rapid.T, pod *v1.Pod) []metav1.Object {
	var out []metav1.Object
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Ephemeral == nil || oneIn(t, 6, "not made yet") {
			continue
		}
		objects := drawClaim(t, pod.Namespace, ephemeral.VolumeClaimName(pod, v))
		claim := objects[len(objects)-1].(*v1.PersistentVolumeClaim)
		owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: ptr.To(true)}
		if oneIn(t, 6, "not the pod's") {
			owner = pick(t, "owner", metav1.OwnerReference{}, metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
				metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: "uid-of-another", Controller: ptr.To(true)})
		}
		if owner.Name != "" {
			claim.OwnerReferences = []metav1.OwnerReference{owner}
		}
		out = append(out, objects...)
	}
	return out
}

// drawStorageLabels gives a node labels that only volumes are about.
func drawStorageLabels(t *rapid.T, n *v1.Node) {
	for key, value := range drawLabels(t, storageLabels, 2) {
		metav1.SetMetaDataLabel(&n.ObjectMeta, key, value)
	}
}

// storage are the keys of the objects of a world that volumes are made of.
func (k keptObjects) storage() []cluster.ObjectKey {
	return k.keys(slices.DeleteFunc(cluster.ObjectKinds(), func(kind cluster.ObjectKind) bool { return !kind.OfVolumes() })...)
}
