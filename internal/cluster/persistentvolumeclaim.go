package cluster

import "iter"

// PersistentVolumeClaim is a PersistentVolumeClaim, reduced to what kube-scheduler's volume plugins read.
type PersistentVolumeClaim struct {
	Namespace, Name string
	UID             string
	Class           string // "" for none, whether the claim says so or says nothing
	// Request is how many bytes it asks for, if HasRequest. See PersistentVolume.Capacity.
	HasRequest  bool
	Request     int64
	AccessModes []string // in alphabetical order
	Mode        string   // "Filesystem" if the claim does not say
	// Selector matches the labels of volumes that it may be bound to; without any requirements, all.
	Selector LabelSelector
	// SelectorError is why the selector cannot be parsed: an attempt to find a volume for the claim ends with it.
	SelectorError string
	// AttributesClass is the VolumeAttributesClass, "" for none.
	AttributesClass string
	Volume          string // spec.volumeName: the volume that it is bound to, or wants
	Bound           bool   // its binding to Volume, if that is not "", is complete
	Lost            bool   // status.phase: its volume is gone
	Deleting        bool   // it has a deletionTimestamp
	// SelectedNode is the node that its volume is to be provisioned for, if HasSelectedNode.
	HasSelectedNode bool
	SelectedNode    string
	Owner           string // the UID of its controller, "" for none: that of the pod whose ephemeral volume it is
}

// Key returns the claim's name.
func (c *PersistentVolumeClaim) Key() ObjectKey {
	return ObjectKey{PersistentVolumeClaimKind, c.Namespace, c.Name}
}

// Encode writes what a claim says.
func (c *PersistentVolumeClaim) Encode(e *Encoder) {
	e.Text(c.UID)
	e.Text(c.Class)
	e.Bool(c.HasRequest)
	e.Int(c.Request)
	e.Texts(c.AccessModes)
	e.Text(c.Mode)
	encodeSelector(e, c.Selector)
	e.Text(c.SelectorError)
	e.Text(c.AttributesClass)
	e.Text(c.Volume)
	e.Bool(c.Bound)
	e.Bool(c.Lost)
	e.Bool(c.Deleting)
	e.Bool(c.HasSelectedNode)
	e.Text(c.SelectedNode)
	e.Text(c.Owner)
}

// Decode reads what Encode has written.
func (c *PersistentVolumeClaim) Decode(d *Decoder) {
	c.UID = d.Text()
	c.Class = d.Text()
	c.HasRequest = d.Bool()
	c.Request = d.Int()
	c.AccessModes = d.Texts()
	c.Mode = d.Text()
	c.Selector = decodeSelector(d)
	c.SelectorError = d.Text()
	c.AttributesClass = d.Text()
	c.Volume = d.Text()
	c.Bound = d.Bool()
	c.Lost = d.Bool()
	c.Deleting = d.Bool()
	c.HasSelectedNode = d.Bool()
	c.SelectedNode = d.Text()
	c.Owner = d.Text()
}

// Unsupported returns a claim that is lost: no pod that uses it is placed. For pods that are placed it goes on counting as what it is
// bound to, or will be provisioned as.
func (c *PersistentVolumeClaim) Unsupported(string) Object {
	return &PersistentVolumeClaim{
		Namespace: c.Namespace, Name: c.Name, UID: c.UID, Class: c.Class, Volume: c.Volume, Bound: c.Bound, Lost: true, Owner: c.Owner,
	}
}

// PersistentVolumeClaim returns a PersistentVolumeClaim, or nil.
func (s *State) PersistentVolumeClaim(namespace, name string) *PersistentVolumeClaim {
	return ObjectAt[*PersistentVolumeClaim](s, ObjectKey{PersistentVolumeClaimKind, namespace, name})
}

// PersistentVolumeClaims yields the PersistentVolumeClaims of all namespaces, in no order. Readers must not change them.
func (s *State) PersistentVolumeClaims() iter.Seq[*PersistentVolumeClaim] {
	return objectsOfKind[*PersistentVolumeClaim](s, PersistentVolumeClaimKind)
}
