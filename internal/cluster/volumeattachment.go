package cluster

import (
	"iter"
	"slices"
)

// VolumeAttachment is a VolumeAttachment, reduced to what NodeVolumeLimits reads.
type VolumeAttachment struct {
	Name     string
	Attacher string // the CSI driver
	Node     string
	Volume   string // the PersistentVolume that is attached; "" of an inline volume, which counts with its pod
}

// Key returns the attachment's name.
func (a *VolumeAttachment) Key() ObjectKey { return ObjectKey{VolumeAttachmentKind, "", a.Name} }

// Encode writes what an attachment says.
func (a *VolumeAttachment) Encode(e *Encoder) {
	e.Text(a.Attacher)
	e.Text(a.Node)
	e.Text(a.Volume)
}

// Decode reads what Encode has written.
func (a *VolumeAttachment) Decode(d *Decoder) {
	a.Attacher = d.Text()
	a.Node = d.Text()
	a.Volume = d.Text()
}

// Unsupported returns an attachment that counts for nothing. It is never told: four names, which are shortened before, are never too
// large.
func (a *VolumeAttachment) Unsupported(string) Object { return &VolumeAttachment{Name: a.Name} }

// VolumeAttachments yields all VolumeAttachments, in no order. Readers must not change them.
func (s *State) VolumeAttachments() iter.Seq[*VolumeAttachment] {
	return ObjectsIn[*VolumeAttachment](s, VolumeAttachmentKind, "")
}

// AttachmentsTo returns the names of the VolumeAttachments to a node, by name; it need not exist.
func (s *State) AttachmentsTo(node string) []string {
	return slices.Sorted(slices.Values(s.volumes.on.of(node)))
}
