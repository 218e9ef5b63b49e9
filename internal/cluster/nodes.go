package cluster

// ResourceID is a resource's column. The first three are fixed; others stand for what some node has, and for the same resource
// until State.Renumbered changes.
type ResourceID int32

// The resources every node has a column of. The number of pods is not among them.
const (
	CPU ResourceID = iota
	Memory
	EphemeralStorage
)

// NodeLabel is a label of a node in symbols.
type NodeLabel struct{ Key, Value Symbol }

// NodeTaint is a taint of a node in symbols.
type NodeTaint struct {
	Key, Value Symbol
	Effect     Effect
}

// Effect is a taint's effect.
type Effect uint8

// The effects of taints. Others are kept as NoEffect and repel nobody.
const (
	NoEffect Effect = iota
	NoSchedule
	PreferNoSchedule
	NoExecute
)

// ParseEffect returns the effect of that name, NoEffect for any other.
func ParseEffect(name string) Effect {
	switch name {
	case "NoSchedule":
		return NoSchedule
	case "PreferNoSchedule":
		return PreferNoSchedule
	case "NoExecute":
		return NoExecute
	}
	return NoEffect
}

// ImageState is what is known of one image name over all nodes.
type ImageState struct {
	Size  int64 // in bytes, of the node that showed it first
	Nodes int32 // how many nodes have it
}

// NodeSpec is a node as it was set, but for its labels: Nodes.Labels has them. State.Node returns the whole.
type NodeSpec struct {
	Name string
	*NodeShape
}

// NodeShape is what nodes have in common, as a rule: those that are set one soon after the other share it.
type NodeShape struct {
	Taints        []Taint // as in Node, like all that follow
	Unschedulable bool
	Allocatable   []Quantity
	Images        []Image
	Features      []string
	Unsupported   string

	taints     []NodeTaint
	images     []Symbol // their names, each once, in order
	imageBytes []int64  // of images, the size that this node shows
}

// noShape is that of an index without a node.
var noShape = new(NodeShape)

// Nodes are the nodes in columns, by NodeIndex. Readers must not change them. An index that is not in Live has no
// node; its columns are zero.
type Nodes struct {
	Live          Bitmap
	Unschedulable Bitmap
	Unsupported   Bitmap // those of which Node.Unsupported says something
	Spec          []NodeSpec
	Labels        [][]NodeLabel // by Key
	Ports         [][]UsedPort  // by port, then protocol, then IP; see PortsAt and PortUses
	AllowedPods   []int64       // allocatable of "pods"
	PodCount      []int32
	NonZeroCPU    []int64 // see ClassSpec.NonZeroCPU
	NonZeroMemory []int64

	// Allocatable and Requested are in the units of Quantity: first by ResourceID, then by node.
	Allocatable [][]int64
	Requested   [][]int64

	// Modified is the seq of the last delta that changed the node's columns.
	Modified []Seq
	// SpecModified is the seq of the last delta that set or removed the node.
	SpecModified []Seq
	// PodsModified is the seq of the last delta that changed the node for whoever sees of its pods what they request, their labels and their
	// priority. Unlike Modified it stays where a pod there only starts, begins to end, or gets the zone and the region of the node as labels of
	// its own, as the API server has each pod get them that is bound.
	PodsModified []Seq

	// modifiedWord and modifiedBlock are the largest of Modified of 64 and of 4096 nodes each, so that the nodes that
	// changed since a version are found without looking at all.
	modifiedWord, modifiedBlock []Seq

	firstPod []PodID
	portHash []uint64 // what the node's ports add to its sums in the digest
	count    int
	symbols  *Symbols    // the state's
	byName   []NodeIndex // by Symbol of the name; NoNode, or shorter, if no node has it
	keyUses  []int32     // how many nodes have a label, by Symbol of its key; or shorter, if none has
	hash     []uint64    // of the spec: with that of the sums, what the node adds to the digest
}

// Len returns one more than the largest index ever used.
func (n *Nodes) Len() int { return len(n.Spec) }

// Count returns the number of nodes.
func (n *Nodes) Count() int { return n.count }

// ByName returns the index of the node of that name, or NoNode.
func (n *Nodes) ByName(name string) NodeIndex {
	if sym := n.symbols.Lookup(name); sym != NoSymbol && int(sym) < len(n.byName) {
		return n.byName[sym]
	}
	return NoNode
}

// setByName makes i, or NoNode, the index of the node of a name.
func (n *Nodes) setByName(name Symbol, i NodeIndex) {
	for len(n.byName) <= int(name) {
		n.byName = append(n.byName, NoNode)
	}
	n.byName[name] = i
}

// HasKey reports whether some node has a label of that key; see State.KeysModified.
func (n *Nodes) HasKey(key Symbol) bool {
	return key != NoSymbol && int(key) < len(n.keyUses) && n.keyUses[key] > 0
}

// retainKeys and releaseKeys count the nodes that have each key, and report whether one has its first node then, or none any more.
func (n *Nodes) retainKeys(labels []NodeLabel) (changed bool) {
	for _, l := range labels {
		for len(n.keyUses) <= int(l.Key) {
			n.keyUses = append(n.keyUses, 0)
		}
		n.keyUses[l.Key]++
		changed = changed || n.keyUses[l.Key] == 1
	}
	return changed
}

func (n *Nodes) releaseKeys(labels []NodeLabel) (changed bool) {
	for _, l := range labels {
		n.keyUses[l.Key]--
		changed = changed || n.keyUses[l.Key] == 0
	}
	return changed
}

// Taints returns the taints of a node.
func (n *Nodes) Taints(i NodeIndex) []NodeTaint { return n.Spec[i].taints }

// Images returns the names of the images on a node, in order.
func (n *Nodes) Images(i NodeIndex) []Symbol { return n.Spec[i].images }

// Free returns the lowest index without a node.
func (n *Nodes) Free() NodeIndex {
	if n.count == n.Len() {
		return NodeIndex(n.Len())
	}
	for i := range n.Spec {
		if !n.Live.Has(NodeIndex(i)) {
			return NodeIndex(i)
		}
	}
	return NodeIndex(n.Len())
}

// ChangedSince calls visit for every index of the range whose columns changed after seq, in order. Indexes without a
// node are included.
func (n *Nodes) ChangedSince(seq Seq, r Range, visit func(NodeIndex)) {
	r = r.Clip(n.Len())
	for i := r.First; i < r.End; {
		switch {
		case i&4095 == 0 && n.modifiedBlock[i>>12] <= seq:
			i += 4096
			continue
		case i&63 == 0 && n.modifiedWord[i>>6] <= seq:
			i += 64
			continue
		case n.Modified[i] > seq:
			visit(i)
		}
		i++
	}
}

func (n *Nodes) touch(i NodeIndex, seq Seq) {
	n.Modified[i], n.PodsModified[i] = seq, seq
	n.modifiedWord[i>>6] = seq
	n.modifiedBlock[i>>12] = seq
}

// grow makes room for index i, which is at most one past the end in practice.
func (n *Nodes) grow(i NodeIndex) {
	for n.Len() <= int(i) {
		n.Spec = append(n.Spec, NodeSpec{NodeShape: noShape})
		n.Labels = append(n.Labels, nil)
		n.Ports = append(n.Ports, nil)
		n.portHash = append(n.portHash, 0)
		n.AllowedPods = append(n.AllowedPods, 0)
		n.PodCount = append(n.PodCount, 0)
		n.NonZeroCPU = append(n.NonZeroCPU, 0)
		n.NonZeroMemory = append(n.NonZeroMemory, 0)
		n.Modified = append(n.Modified, 0)
		n.SpecModified = append(n.SpecModified, 0)
		n.PodsModified = append(n.PodsModified, 0)
		n.firstPod = append(n.firstPod, NoPod)
		n.hash = append(n.hash, 0)
		if n.Len() > len(n.modifiedWord)*64 {
			n.modifiedWord = append(n.modifiedWord, 0)
		}
		if n.Len() > len(n.modifiedBlock)*4096 {
			n.modifiedBlock = append(n.modifiedBlock, 0)
		}
		for r := range n.Allocatable {
			n.Allocatable[r] = append(n.Allocatable[r], 0)
			n.Requested[r] = append(n.Requested[r], 0)
		}
	}
	n.Live = n.Live.Grow(n.Len())
	n.Unschedulable = n.Unschedulable.Grow(n.Len())
	n.Unsupported = n.Unsupported.Grow(n.Len())
}

func (n *Nodes) addResource() {
	n.Allocatable = append(n.Allocatable, make([]int64, n.Len(), cap(n.Spec)))
	n.Requested = append(n.Requested, make([]int64, n.Len(), cap(n.Spec)))
}
