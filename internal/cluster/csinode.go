package cluster

// CSINode is a CSINode, reduced to what kube-scheduler's VolumeBinding and NodeVolumeLimits read.
type CSINode struct {
	Name    string
	Drivers []NodeDriver // by name
	// Migrated are the in-tree plugins whose volumes are CSI volumes on the node, in alphabetical order.
	Migrated []string
	// Untold says why nothing else is told of it, "" for all others: whether a volume can be attached there is not known, so no pod
	// that would attach one is to be placed there.
	Untold string
}

// NodeDriver is a CSI driver on a node.
type NodeDriver struct {
	Name string
	// Limit is how many of the driver's volumes can be attached to the node, if Limited.
	Limited bool
	Limit   int32
}

// Key returns the name, which is the node's.
func (n *CSINode) Key() ObjectKey { return ObjectKey{CSINodeKind, "", n.Name} }

// Encode writes what it says.
func (n *CSINode) Encode(e *Encoder) {
	list(e, n.Drivers, encodeNodeDriver)
	e.Texts(n.Migrated)
	e.Text(n.Untold)
}

// Decode reads what Encode has written.
func (n *CSINode) Decode(d *Decoder) {
	n.Drivers = decodeList(d, decodeNodeDriver)
	n.Migrated = d.Texts()
	n.Untold = d.Text()
}

func encodeNodeDriver(e *Encoder, d NodeDriver) {
	e.Text(d.Name)
	e.Bool(d.Limited)
	e.Int(int64(d.Limit))
}

func decodeNodeDriver(d *Decoder) NodeDriver {
	return NodeDriver{Name: d.Text(), Limited: d.Bool(), Limit: int32(d.Int())}
}

// Unsupported returns one of a node to which nothing more is attached. One without drivers would have no limits.
func (n *CSINode) Unsupported(why string) Object { return &CSINode{Name: n.Name, Untold: why} }

// CSINode returns the CSINode of a node, or nil.
func (s *State) CSINode(node string) *CSINode {
	return ObjectAt[*CSINode](s, ObjectKey{CSINodeKind, "", node})
}

// CSIDriver is a CSIDriver, reduced to what VolumeBinding and NodeVolumeLimits read.
type CSIDriver struct {
	Name            string
	StorageCapacity bool // volumes are provisioned only where a CSIStorageCapacity says that there is room
	// PreventPodSchedulingIfMissing keeps its volumes off nodes without the driver. It is read with the feature gate
	// VolumeLimitScaling only, which is off by default.
	PreventPodSchedulingIfMissing bool
}

// Key returns the driver's name.
func (d *CSIDriver) Key() ObjectKey { return ObjectKey{CSIDriverKind, "", d.Name} }

// Encode writes what a driver says.
func (d *CSIDriver) Encode(e *Encoder) {
	e.Bool(d.StorageCapacity)
	e.Bool(d.PreventPodSchedulingIfMissing)
}

// Decode reads what Encode has written.
func (d *CSIDriver) Decode(from *Decoder) {
	d.StorageCapacity = from.Bool()
	d.PreventPodSchedulingIfMissing = from.Bool()
}

// Unsupported returns a driver whose volumes are provisioned only where there is known to be room. It is never told: a driver has
// nothing that could be too large.
func (d *CSIDriver) Unsupported(string) Object {
	return &CSIDriver{Name: d.Name, StorageCapacity: true}
}

// CSIDriver returns a CSIDriver, or nil.
func (s *State) CSIDriver(name string) *CSIDriver {
	return ObjectAt[*CSIDriver](s, ObjectKey{CSIDriverKind, "", name})
}
