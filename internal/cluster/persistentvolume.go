package cluster

import "iter"

// PersistentVolume is a PersistentVolume, reduced to what kube-scheduler's VolumeBinding, VolumeZone and NodeVolumeLimits read.
type PersistentVolume struct {
	Name   string
	Labels []Label // by key: what claims select, and the zones that VolumeZone reads. They are those of an in-tree volume as it is
	Class  string  // "" for none
	// Capacity is in bytes. Sizes are only compared, so they need no bound but that of the type.
	Capacity    int64
	AccessModes []string // in alphabetical order
	Mode        string   // "Filesystem" if the volume does not say
	// AttributesClass is the VolumeAttributesClass, "" for none.
	AttributesClass string
	// Claim is the claim that the volume is bound to, or kept for, if HasClaim.
	HasClaim  bool
	Claim     ClaimReference
	Available bool // status.phase: it may be bound to a claim that it is not kept for
	Deleting  bool // it has a deletionTimestamp
	// Affinity are the terms, ORed, of which a node must meet one if HasAffinity. They are about its labels only: no term knows
	// the name of the node.
	HasAffinity bool
	Affinity    []NodeSelectorTerm
	// Driver and Handle are those of a CSI volume, "" of others.
	Driver, Handle string
	// Migration is what an in-tree volume is to CSI, and MigratedAffinity its affinity there, if HasMigratedAffinity.
	Migration           Migration
	HasMigratedAffinity bool
	MigratedAffinity    []NodeSelectorTerm
	// FieldClass is spec.storageClassName where Class is that of an annotation, if HasFieldClass: see ScoredClass.
	HasFieldClass bool
	FieldClass    string
}

// ScoredClass returns the class as which VolumeBinding counts the volume when it scores: that of the field, whatever an annotation says.
func (v *PersistentVolume) ScoredClass() string {
	if v.HasFieldClass {
		return v.FieldClass
	}
	return v.Class
}

// ClaimReference names a claim. UID is "" of one that a volume is kept for by its name, whoever has it.
type ClaimReference struct{ Namespace, Name, UID string }

// Migration is the CSI volume that an in-tree volume is where its plugin has been replaced by a CSI driver. Which nodes these are is
// up to the reader: VolumeBinding asks CSINode.Migrated, and NodeVolumeLimits only whether the node has a CSINode.
type Migration struct {
	Plugin         string // the in-tree plugin, such as kubernetes.io/aws-ebs; "": kube-scheduler takes it for no CSI volume
	Driver, Handle string
	// Error is why it cannot be translated: an attempt that has to do so ends with it. Driver and Handle are "" then.
	Error string
}

// Key returns the volume's name.
func (v *PersistentVolume) Key() ObjectKey { return ObjectKey{PersistentVolumeKind, "", v.Name} }

// Encode writes what a volume says.
func (v *PersistentVolume) Encode(e *Encoder) {
	list(e, v.Labels, encodeLabel)
	e.Text(v.Class)
	e.Int(v.Capacity)
	e.Texts(v.AccessModes)
	e.Text(v.Mode)
	e.Text(v.AttributesClass)
	e.Bool(v.HasClaim)
	e.Text(v.Claim.Namespace)
	e.Text(v.Claim.Name)
	e.Text(v.Claim.UID)
	e.Bool(v.Available)
	e.Bool(v.Deleting)
	e.Bool(v.HasAffinity)
	list(e, v.Affinity, encodeTerm)
	e.Text(v.Driver)
	e.Text(v.Handle)
	encodeMigration(e, v.Migration)
	e.Bool(v.HasMigratedAffinity)
	list(e, v.MigratedAffinity, encodeTerm)
	if v.HasFieldClass {
		e.Bool(v.HasFieldClass)
		e.Text(v.FieldClass)
	}
}

// Decode reads what Encode has written.
func (v *PersistentVolume) Decode(d *Decoder) {
	v.Labels = decodeList(d, decodeLabel)
	v.Class = d.Text()
	v.Capacity = d.Int()
	v.AccessModes = d.Texts()
	v.Mode = d.Text()
	v.AttributesClass = d.Text()
	v.HasClaim = d.Bool()
	v.Claim = ClaimReference{Namespace: d.Text(), Name: d.Text(), UID: d.Text()}
	v.Available = d.Bool()
	v.Deleting = d.Bool()
	v.HasAffinity = d.Bool()
	v.Affinity = decodeList(d, decodeTerm)
	v.Driver = d.Text()
	v.Handle = d.Text()
	v.Migration = Migration{Plugin: d.Text(), Driver: d.Text(), Handle: d.Text(), Error: d.Text()}
	v.HasMigratedAffinity = d.Bool()
	v.MigratedAffinity = decodeList(d, decodeTerm)
	if d.More() {
		v.HasFieldClass, v.FieldClass = d.Bool(), d.Text()
	}
}

// Unsupported returns a volume that no claim can be bound to, since it is being deleted, and that is on no node, since its affinity
// matches none: no pod that uses it is placed. Where it is attached it goes on counting.
func (v *PersistentVolume) Unsupported(string) Object {
	return &PersistentVolume{
		Name: v.Name, Deleting: true, HasAffinity: true, Driver: v.Driver, Handle: v.Handle, HasMigratedAffinity: true,
		Migration: Migration{Plugin: v.Migration.Plugin, Driver: v.Migration.Driver, Handle: v.Migration.Handle},
	}
}

// PersistentVolume returns a PersistentVolume, or nil.
func (s *State) PersistentVolume(name string) *PersistentVolume {
	return ObjectAt[*PersistentVolume](s, ObjectKey{PersistentVolumeKind, "", name})
}

// PersistentVolumes yields all PersistentVolumes, in no order. Readers must not change them.
func (s *State) PersistentVolumes() iter.Seq[*PersistentVolume] {
	return ObjectsIn[*PersistentVolume](s, PersistentVolumeKind, "")
}
