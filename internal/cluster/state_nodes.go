package cluster

import (
	"cmp"
	"slices"
)

// shapeSlots is how many shapes of nodes are at hand to be shared.
const shapeSlots = 1024

// Node returns the node at an index as it was set, zero if there is none. Its labels are a copy, all else is shared.
func (s *State) Node(i NodeIndex) Node {
	spec := &s.Nodes.Spec[i]
	node := Node{
		Name: spec.Name, Taints: spec.Taints, Unschedulable: spec.Unschedulable,
		Allocatable: spec.Allocatable, Images: spec.Images, Features: spec.Features, Unsupported: spec.Unsupported,
	}
	if labels := s.Nodes.Labels[i]; len(labels) > 0 {
		node.Labels = make([]Label, len(labels))
		for k, l := range labels {
			node.Labels[k] = Label{s.Symbols.Text(l.Key), s.Symbols.Text(l.Value)}
		}
		slices.SortFunc(node.Labels, byKey)
	}
	return node
}

func byKey(a, b Label) int { return cmp.Compare(a.Key, b.Key) }

func (s *State) setNode(d NodeSet) {
	n := &s.Nodes
	i := d.Index
	if !slices.IsSortedFunc(d.Node.Labels, byKey) {
		d.Node.Labels = slices.SortedFunc(slices.Values(d.Node.Labels), byKey) // as Node will have them, for the digest
	}
	n.grow(i)
	fresh := !n.Live.Has(i)
	allocatableBefore := n.Spec[i].Allocatable
	s.retainResources(d.Node.Allocatable)
	imagesBefore, sizesBefore := n.Images(i), s.imageSizes(i)
	if !fresh {
		s.digest -= n.hash[i] + s.nodeSums(i)
		s.dropImages(i)
	} else {
		n.Live.Set(i)
		n.count++
		name := s.Symbols.intern(d.Node.Name)
		n.setByName(name, i)
		n.Spec[i].Name = s.Symbols.Text(name)
	}
	n.Spec[i].NodeShape = s.shape(&d.Node)
	n.Unschedulable.Put(i, d.Node.Unschedulable)
	n.Unsupported.Put(i, d.Node.Unsupported != "")

	labelsBefore := n.Labels[i]
	n.Labels[i] = make([]NodeLabel, 0, len(d.Node.Labels))
	for _, l := range d.Node.Labels {
		n.Labels[i] = append(n.Labels[i], NodeLabel{s.Symbols.intern(l.Key), s.Symbols.intern(l.Value)})
	}
	slices.SortFunc(n.Labels[i], func(a, b NodeLabel) int { return int(a.Key - b.Key) })
	s.changeKeys(labelsBefore, n.Labels[i])
	s.refileNode(i, labelsBefore, n.Labels[i])
	for r := range n.Allocatable {
		n.Allocatable[r][i] = 0
	}
	n.AllowedPods[i] = 0
	for _, q := range d.Node.Allocatable {
		if q.Name == "pods" {
			n.AllowedPods[i] = q.Value
		} else {
			n.Allocatable[s.resourceID[q.Name]][i] = q.Value
		}
	}
	s.addImages(n.Spec[i].NodeShape)
	if fresh || !slices.Equal(imagesBefore, n.Images(i)) || !slices.Equal(sizesBefore, s.imageSizes(i)) {
		s.ImagesModified = s.version.Seq
	}

	var e Encoder
	e.Int(kindNode)
	e.Int(int64(i))
	encodeNode(&e, &d.Node)
	n.hash[i] = hashBytes(e.b)
	s.digest += n.hash[i] + s.nodeSums(i)
	s.releaseResources(allocatableBefore)
	s.touch(i)
	n.SpecModified[i] = s.version.Seq

	if fresh {
		s.enterNode(i)
		waiting := s.orphans[d.Node.Name]
		delete(s.orphans, d.Node.Name)
		for _, id := range waiting {
			s.rehashPod(id, func() { s.attach(id, i) })
		}
	}
	s.sweep()
}

// changeKeys counts the keys of a node's labels.
func (s *State) changeKeys(was, is []NodeLabel) {
	if appeared, gone := s.Nodes.retainKeys(is), s.Nodes.releaseKeys(was); appeared || gone {
		s.KeysModified = s.version.Seq
	}
}

// shape returns what a node has in common with others: one that another node has already, if it is at hand.
func (s *State) shape(node *Node) *NodeShape {
	e := Encoder{s.scratch[:0]}
	encodeShape(&e, node)
	s.scratch = e.b
	at := &s.shapes[hashBytes(e.b)%shapeSlots]
	wanted := NodeShape{
		Taints: node.Taints, Unschedulable: node.Unschedulable, Allocatable: node.Allocatable, Images: node.Images, Features: node.Features,
		Unsupported: node.Unsupported,
	}
	if *at == nil || !(*at).equal(&wanted) {
		*at = s.shared(wanted)
	}
	return *at
}

func (a *NodeShape) equal(b *NodeShape) bool {
	return a.Unschedulable == b.Unschedulable && a.Unsupported == b.Unsupported && slices.Equal(a.Taints, b.Taints) && slices.Equal(a.Allocatable, b.Allocatable) &&
		slices.Equal(a.Features, b.Features) && slices.EqualFunc(a.Images, b.Images, func(x, y Image) bool {
		return x.Size == y.Size && slices.Equal(x.Names, y.Names)
	})
}

// shared returns an equal shape whose texts are those of other nodes, where they are the same: a delta from the log brings
// its own copy of each.
func (s *State) shared(shape NodeShape) *NodeShape {
	text := func(t string) string { return s.Symbols.Text(s.Symbols.intern(t)) }
	shape.Taints = slices.Clone(shape.Taints)
	for k, t := range shape.Taints {
		shape.Taints[k] = Taint{text(t.Key), text(t.Value), text(t.Effect)}
		shape.taints = append(shape.taints, NodeTaint{s.Symbols.intern(t.Key), s.Symbols.intern(t.Value), ParseEffect(t.Effect)})
	}
	shape.Allocatable = slices.Clone(shape.Allocatable)
	for k, q := range shape.Allocatable {
		shape.Allocatable[k].Name = text(q.Name)
	}
	shape.Images = slices.Clone(shape.Images)
	for k, image := range shape.Images {
		names := make([]string, len(image.Names))
		for j, name := range image.Names {
			names[j] = text(name)
			sym := s.Symbols.intern(name)
			if at, known := slices.BinarySearch(shape.images, sym); !known {
				shape.images = slices.Insert(shape.images, at, sym)
				shape.imageBytes = slices.Insert(shape.imageBytes, at, image.Size)
			}
		}
		shape.Images[k].Names = names
	}
	shape.Features = slices.Clone(shape.Features)
	for k, f := range shape.Features {
		shape.Features[k] = text(f)
	}
	return &shape
}

func (s *State) removeNode(i NodeIndex) {
	n := &s.Nodes
	name := n.Spec[i].Name
	for n.firstPod[i] != NoPod {
		id := n.firstPod[i]
		s.rehashPod(id, func() { s.detach(id) })
		s.orphans[name] = append(s.orphans[name], id)
	}
	s.leaveNode(i)
	s.digest -= n.hash[i] + s.nodeSums(i)
	allocatable := n.Spec[i].Allocatable
	s.dropImages(i)
	n.setByName(s.Symbols.Lookup(name), NoNode)
	n.Live.Clear(i)
	n.Unschedulable.Clear(i)
	n.Unsupported.Clear(i)
	n.count--
	s.changeKeys(n.Labels[i], nil)
	s.refileNode(i, n.Labels[i], nil)
	n.Spec[i], n.Labels[i], n.Ports[i] = NodeSpec{NodeShape: noShape}, nil, nil
	n.AllowedPods[i], n.hash[i] = 0, 0
	for r := range n.Allocatable {
		n.Allocatable[r][i] = 0
	}
	s.releaseResources(allocatable)
	s.touch(i)
	n.SpecModified[i] = s.version.Seq
	s.ImagesModified = s.version.Seq
	s.sweep()
}

// addImages and dropImages keep the image states: a name has the size of the node that showed it first, until no node
// shows it.
func (s *State) addImages(shape *NodeShape) {
	for k, sym := range shape.images {
		st := s.images[sym]
		if st.Nodes == 0 {
			st.Size = shape.imageBytes[k]
			if size, ok := s.pinned[sym]; ok {
				st.Size = size
				delete(s.pinned, sym)
			}
			s.digest += hashImage(s.Symbols.Text(sym), st.Size)
		}
		st.Nodes++
		s.images[sym] = st
	}
}

// imageSizes returns the sizes that the node's images count with, in their order.
func (s *State) imageSizes(i NodeIndex) []int64 {
	images := s.Nodes.Images(i)
	sizes := make([]int64, 0, len(images))
	for _, sym := range images {
		sizes = append(sizes, s.images[sym].Size)
	}
	return sizes
}

func (s *State) dropImages(i NodeIndex) {
	for _, sym := range s.Nodes.Images(i) {
		st := s.images[sym]
		if st.Nodes--; st.Nodes == 0 {
			delete(s.images, sym)
			s.digest -= hashImage(s.Symbols.Text(sym), st.Size)
		} else {
			s.images[sym] = st
		}
	}
}
