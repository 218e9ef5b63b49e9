package cluster

import "strings"

// Attachment is a volume that is attached to a node as NodeVolumeLimits counts it there: once, whoever uses it.
type Attachment struct {
	// Driver and Handle name the volume. The handle of a claim that has no volume yet is ClaimHandle.
	Driver, Handle string
	// Uses is how often the pods of the node name it, by claims and disks: a pod that goes takes away as many as it names itself.
	Uses int32
	// Attachments is how many VolumeAttachments say that it is attached. kube-scheduler counts a volume that only these tell of, and
	// a new pod's once more: only what has Uses is not new.
	Attachments int32
}

// ClaimVolume is the volume that NodeVolumeLimits takes a claim for.
type ClaimVolume struct {
	Driver, Handle string // both "" if it is not counted
	// Migrated says that it is a CSI volume only on nodes that have a CSINode.
	Migrated bool
}

// On returns what it counts as on a node that has a CSINode, or none.
func (v ClaimVolume) On(csiNode bool) (driver, handle string) {
	if v.Migrated && !csiNode {
		return "", ""
	}
	return v.Driver, v.Handle
}

// ClaimHandle is the handle by which a claim counts that has no volume yet. It is that of no volume: those are valid UTF-8.
func ClaimHandle(namespace, name string) string { return "\xff" + namespace + "/" + name }

// migratedProvisioners are the CSI drivers that provision for in-tree plugins where these have been replaced. "": kube-scheduler knows
// of the replacement, but never takes a node to have it, so that nothing is counted.
var migratedProvisioners = map[string]string{
	"kubernetes.io/aws-ebs":         "ebs.csi.aws.com",
	"kubernetes.io/azure-disk":      "disk.csi.azure.com",
	"kubernetes.io/azure-file":      "",
	"kubernetes.io/cinder":          "cinder.csi.openstack.org",
	"kubernetes.io/gce-pd":          "pd.csi.storage.gke.io",
	"kubernetes.io/portworx-volume": "pxd.portworx.com",
	"kubernetes.io/vsphere-volume":  "",
}

// MadeFor reports whether the claim has been made for the pod that uses it by an ephemeral volume.
func (c *PersistentVolumeClaim) MadeFor(by PodClaim) bool { return madeFor(c.Owner, by) }

func madeFor(owner string, by PodClaim) bool { return owner != "" && owner == by.PodUID }

// counted is what a volume counts as, zero if NodeVolumeLimits does not count it.
func (v *PersistentVolume) counted() ClaimVolume {
	out := ClaimVolume{Driver: v.Driver, Handle: v.Handle}
	if !v.csi() {
		out = ClaimVolume{v.Migration.Driver, v.Migration.Handle, true}
	}
	if out.Driver == "" || out.Handle == "" {
		return ClaimVolume{}
	}
	return out
}

// csi reports whether it is a CSI volume as it is.
func (v *PersistentVolume) csi() bool { return v.Driver != "" }

// provisioned is what a claim of a class counts as that has no volume yet.
func (c *StorageClass) provisioned(namespace, name string) ClaimVolume {
	driver, migrated := migratedProvisioners[c.Provisioner]
	if !migrated {
		driver = c.Provisioner
	}
	if driver == "" {
		return ClaimVolume{}
	}
	return ClaimVolume{driver, ClaimHandle(namespace, name), migrated}
}

// Provisions reports whether the class has volumes provisioned.
func (c *StorageClass) Provisions() bool {
	return c.Provisioner != "" && c.Provisioner != "kubernetes.io/no-provisioner"
}

// Volume returns a volume as the class would have it provisioned for a claim, bound to it: where volumes of the class may be at all, and attached by its driver.
func (c *StorageClass) Volume(claim *PersistentVolumeClaim, name string) *PersistentVolume {
	v := &PersistentVolume{
		Name: name, Class: c.Name, Capacity: claim.Request, AccessModes: claim.AccessModes, Mode: claim.Mode, AttributesClass: claim.AttributesClass,
		HasClaim: true, Claim: ClaimReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
		HasAffinity: len(c.Topologies) > 0, Affinity: c.Topologies,
	}
	switch is := c.provisioned(claim.Namespace, claim.Name); {
	case !c.Provisions():
	case is.Migrated:
		v.Migration = Migration{Plugin: c.Provisioner, Driver: is.Driver, Handle: name}
		v.HasMigratedAffinity, v.MigratedAffinity = v.HasAffinity, v.Affinity
	case is.Driver != "":
		v.Driver, v.Handle = is.Driver, name
	}
	return v
}

func (a Attachment) compare(b Attachment) int {
	if c := strings.Compare(a.Driver, b.Driver); c != 0 {
		return c
	}
	return strings.Compare(a.Handle, b.Handle)
}
