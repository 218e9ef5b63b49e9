package cluster

import "iter"

// When volumes of a class are bound: what StorageClass.Mode may be, and "" if the class does not say.
const (
	BindImmediately     = "Immediate"
	BindToFirstConsumer = "WaitForFirstConsumer"
)

// StorageClass is a StorageClass, reduced to what kube-scheduler's volume plugins read.
type StorageClass struct {
	Name        string
	Provisioner string
	Mode        string // volumeBindingMode
	// Topologies are the terms, ORed, of which a node must meet one for a volume to be provisioned for it. Without any, all nodes do.
	Topologies []NodeSelectorTerm
}

// Key returns the class's name.
func (c *StorageClass) Key() ObjectKey { return ObjectKey{StorageClassKind, "", c.Name} }

// Encode writes what a class says.
func (c *StorageClass) Encode(e *Encoder) {
	e.Text(c.Provisioner)
	e.Text(c.Mode)
	list(e, c.Topologies, encodeTerm)
}

// Decode reads what Encode has written.
func (c *StorageClass) Decode(d *Decoder) {
	c.Provisioner = d.Text()
	c.Mode = d.Text()
	c.Topologies = decodeList(d, decodeTerm)
}

// Unsupported returns a class that does not say when its volumes are bound: no pod is placed that uses a claim of it which is not bound
// yet. Claims of pods that are placed go on counting for the provisioner.
func (c *StorageClass) Unsupported(string) Object {
	return &StorageClass{Name: c.Name, Provisioner: c.Provisioner}
}

// StorageClass returns a StorageClass, or nil.
func (s *State) StorageClass(name string) *StorageClass {
	return ObjectAt[*StorageClass](s, ObjectKey{StorageClassKind, "", name})
}

// CSIStorageCapacity is a CSIStorageCapacity, reduced to what VolumeBinding reads.
type CSIStorageCapacity struct {
	Namespace, Name string
	Class           string
	// Limit is how large a volume can be, in bytes, if HasLimit: maximumVolumeSize, or else capacity. See PersistentVolume.Capacity.
	HasLimit bool
	Limit    int64
	// Topology matches the labels of the nodes that it is about.
	Topology LabelSelector
	// Capacity is how much room there is, in bytes, if the object says so: only VolumeBinding's score reads it.
	Capacity int64
}

// Key returns the object's name.
func (c *CSIStorageCapacity) Key() ObjectKey {
	return ObjectKey{CSIStorageCapacityKind, c.Namespace, c.Name}
}

// Encode writes what the object says.
func (c *CSIStorageCapacity) Encode(e *Encoder) {
	e.Text(c.Class)
	e.Bool(c.HasLimit)
	e.Int(c.Limit)
	encodeSelector(e, c.Topology)
	if c.Capacity != 0 {
		e.Int(c.Capacity)
	}
}

// Decode reads what Encode has written.
func (c *CSIStorageCapacity) Decode(d *Decoder) {
	c.Class = d.Text()
	c.HasLimit = d.Bool()
	c.Limit = d.Int()
	c.Topology = decodeSelector(d)
	if d.More() {
		c.Capacity = d.Int()
	}
}

// Unsupported returns one that is about no node: there is no room that it tells of.
func (c *CSIStorageCapacity) Unsupported(string) Object {
	return &CSIStorageCapacity{Namespace: c.Namespace, Name: c.Name, Class: c.Class, Topology: LabelSelector{Nothing: true}}
}

// CSIStorageCapacities yields the CSIStorageCapacities of all namespaces, in no order. Readers must not change them.
func (s *State) CSIStorageCapacities() iter.Seq[*CSIStorageCapacity] {
	return objectsOfKind[*CSIStorageCapacity](s, CSIStorageCapacityKind)
}
