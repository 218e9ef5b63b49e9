package cluster

import (
	"cmp"
	"iter"
	"slices"
)

// Attachment is a volume that is attached to a node as NodeVolumeLimits counts it there: once, whoever uses it.
type Attachment struct {
	// Driver and Handle name the volume. The handle of a claim that has no volume yet is ClaimHandle.
	Driver, Handle string
	// Uses is how often the pods of the node name it, by claims and disks: a pod that goes takes away as many as State.Uses has of it.
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
func (c *PersistentVolumeClaim) MadeFor(by PodClaim) bool { return by.PodUID != "" && c.Owner == by.PodUID }

// ClaimVolume returns the volume that NodeVolumeLimits takes a claim for, zero if there is no such claim.
func (s *State) ClaimVolume(namespace, name string) ClaimVolume {
	claim := s.PersistentVolumeClaim(namespace, name)
	if claim == nil {
		return ClaimVolume{}
	}
	if claim.Volume != "" {
		if v := s.PersistentVolume(claim.Volume); v != nil {
			return v.counted()
		}
	}
	if claim.Class == "" {
		return ClaimVolume{}
	}
	class := s.StorageClass(claim.Class)
	if class == nil || class.Provisioner == "" {
		return ClaimVolume{}
	}
	driver, migrated := migratedProvisioners[class.Provisioner]
	switch {
	case !migrated:
		driver = class.Provisioner
	case driver == "":
		return ClaimVolume{}
	}
	return ClaimVolume{driver, ClaimHandle(namespace, name), migrated}
}

func (v *PersistentVolume) counted() ClaimVolume {
	out := ClaimVolume{Driver: v.Driver, Handle: v.Handle}
	if v.Driver == "" && v.Handle == "" {
		out = ClaimVolume{v.Migration.Driver, v.Migration.Handle, true}
	}
	if out.Driver == "" || out.Handle == "" {
		return ClaimVolume{}
	}
	return out
}

// ClaimUsers returns how many pods use a claim, but not by an ephemeral volume: placed ones whose node is known, as kube-scheduler's
// snapshot has no others.
func (s *State) ClaimUsers(namespace, name string) int {
	count := 0
	for range s.ClaimUserIDs(namespace, name) {
		count++
	}
	return count
}

// ClaimUserIDs yields the pods that ClaimUsers counts, by id.
func (s *State) ClaimUserIDs(namespace, name string) iter.Seq[PodID] {
	return func(yield func(PodID) bool) {
		for id, p := range s.Pods() {
			l := s.labels[p.Labels]
			if p.Node == NoNode || l == nil || l.Namespace != namespace {
				continue
			}
			if slices.Contains(l.Claims, PodClaim{Name: name}) && !yield(id) {
				return
			}
		}
	}
}

// Uses returns what pods of a class and a label set are attached to on a node that has a CSINode, or none, by driver and handle. Each has Uses
// only. Either may be nil. Uncounted is how many of their volumes are such that an attempt of kube-scheduler that counts them ends with an
// error: see UncountedOn.
func (s *State) Uses(class *Class, labels *Labels, csiNode bool) (uses []Attachment, uncounted int) {
	add := func(driver, handle string) {
		at, found := slices.BinarySearchFunc(uses, Attachment{Driver: driver, Handle: handle}, Attachment.compare)
		if !found {
			uses = slices.Insert(uses, at, Attachment{Driver: driver, Handle: handle})
		}
		uses[at].Uses++
	}
	if labels != nil {
		for _, c := range labels.Claims {
			claim := s.PersistentVolumeClaim(labels.Namespace, c.Name)
			switch {
			case c.Name == "" || claim != nil && c.Ephemeral && !claim.MadeFor(c):
				uncounted++
			case claim != nil:
				if driver, handle := s.ClaimVolume(labels.Namespace, c.Name).On(csiNode); driver != "" {
					add(driver, handle)
				}
			}
		}
	}
	if class != nil && csiNode {
		for _, d := range class.Spec.Disks {
			switch {
			case d.Migration.Plugin == "":
			case d.Migration.Error != "":
				uncounted++
			default:
				add(d.Migration.Driver, d.Migration.Handle)
			}
		}
	}
	return uses, uncounted
}

func (a Attachment) compare(b Attachment) int {
	return cmp.Or(cmp.Compare(a.Driver, b.Driver), cmp.Compare(a.Handle, b.Handle))
}

// Attached returns what is attached to a node, by driver and handle: the volumes of its pods, and those that VolumeAttachments tell of. It
// is good until the next delta, and nobody may change it.
func (s *State) Attached(node NodeIndex) []Attachment {
	all := make(map[[2]string]*Attachment)
	at := func(driver, handle string) *Attachment {
		key := [2]string{driver, handle}
		if all[key] == nil {
			all[key] = &Attachment{Driver: driver, Handle: handle}
		}
		return all[key]
	}
	if !s.Nodes.Live.Has(node) {
		return nil
	}
	name := s.Nodes.Spec[node].Name
	csi := s.CSINode(name) != nil
	for _, p := range s.PodsOn(node) {
		uses, _ := s.Uses(s.classes[p.Class], s.labels[p.Labels], csi)
		for _, u := range uses {
			at(u.Driver, u.Handle).Uses += u.Uses
		}
	}
	for a := range s.VolumeAttachments() {
		if v := s.PersistentVolume(a.Volume); a.Node == name && a.Attacher != "" && a.Volume != "" && v != nil && v.Driver != "" {
			at(a.Attacher, v.Handle).Attachments++
		}
	}
	var out []Attachment
	for _, a := range all {
		out = append(out, *a)
	}
	slices.SortFunc(out, Attachment.compare)
	return out
}

// AttachedOf returns what of Attached is a driver's.
func (s *State) AttachedOf(node NodeIndex, driver string) []Attachment {
	all := s.Attached(node)
	first, _ := slices.BinarySearchFunc(all, driver, func(a Attachment, driver string) int { return cmp.Compare(a.Driver, driver) })
	end := first
	for end < len(all) && all[end].Driver == driver {
		end++
	}
	return all[first:end]
}

// AttachedAnywhere returns on how many nodes some pod uses a volume. Where it is none, a pod's own is new wherever it goes.
func (s *State) AttachedAnywhere(driver, handle string) int {
	count := 0
	for i := range NodeIndex(s.Nodes.Len()) {
		for _, a := range s.Attached(i) {
			if a.Driver == driver && a.Handle == handle && a.Uses > 0 {
				count++
			}
		}
	}
	return count
}

// UncountedOn returns why an attempt of kube-scheduler ends with an error that counts what is attached to the node, "" if it does not.
// There may be several reasons: it is that of the pod of the least id.
func (s *State) UncountedOn(node NodeIndex) string {
	return ""
}

// VolumeObjectsModified returns the seq of the last delta that changed an object of a kind that volumes are made of.
func (s *State) VolumeObjectsModified() Seq {
	var last Seq
	for kind := PersistentVolumeKind; kind <= VolumeAttachmentKind; kind++ {
		last = max(last, s.ObjectsModified(kind))
	}
	return last
}

// VolumeUsesModified returns the seq of the last delta that changed what ClaimUsers or AttachedAnywhere return for something.
func (s *State) VolumeUsesModified() Seq { return s.version.Seq }

// VolumesModified is the later one of VolumeObjectsModified and VolumeUsesModified.
func (s *State) VolumesModified() Seq { return max(s.VolumeObjectsModified(), s.VolumeUsesModified()) }
