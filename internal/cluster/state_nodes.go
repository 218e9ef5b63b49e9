package cluster

import "slices"

func (s *State) setNode(d NodeSet) {
	n := &s.Nodes
	i := d.Index
	n.grow(i)
	fresh := !n.Live.Has(i)
	imagesBefore, sizesBefore := n.Images[i], s.imageSizes(i)
	if !fresh {
		s.digest -= n.hash[i] + s.nodeSums(i)
		s.dropImages(i)
	} else {
		n.Live.Set(i)
		n.count++
		n.byName[d.Node.Name] = i
	}
	n.Spec[i] = s.shared(d.Node)
	n.Unschedulable.Put(i, d.Node.Unschedulable)

	n.Labels[i] = make([]NodeLabel, 0, len(d.Node.Labels))
	for _, l := range d.Node.Labels {
		n.Labels[i] = append(n.Labels[i], NodeLabel{s.Symbols.intern(l.Key), s.Symbols.intern(l.Value)})
	}
	slices.SortFunc(n.Labels[i], func(a, b NodeLabel) int { return int(a.Key - b.Key) })
	n.Taints[i] = nil
	for _, t := range d.Node.Taints {
		n.Taints[i] = append(n.Taints[i], NodeTaint{s.Symbols.intern(t.Key), s.Symbols.intern(t.Value), ParseEffect(t.Effect)})
	}
	for r := range n.Allocatable {
		n.Allocatable[r][i] = 0
	}
	n.AllowedPods[i] = 0
	for _, q := range d.Node.Allocatable {
		if q.Name == "pods" {
			n.AllowedPods[i] = q.Value
		} else {
			n.Allocatable[s.resource(q.Name)][i] = q.Value
		}
	}
	s.addImages(i, d.Node.Images)
	if fresh || !slices.Equal(imagesBefore, n.Images[i]) || !slices.Equal(sizesBefore, s.imageSizes(i)) {
		s.ImagesModified = s.version.Seq
	}

	var e encoder
	e.int(kindNode)
	e.int(int64(i))
	encodeNode(&e, &d.Node)
	n.hash[i] = hashBytes(e.b)
	s.digest += n.hash[i] + s.nodeSums(i)
	s.touch(i)
	n.SpecModified[i] = s.version.Seq

	if fresh {
		waiting := s.orphans[d.Node.Name]
		delete(s.orphans, d.Node.Name)
		for _, id := range waiting {
			s.rehashPod(id, func() { s.attach(id, i) })
		}
	}
}

// shared returns an equal node whose texts are those of other nodes, where they are the same: a delta from the log brings
// its own copy of each.
func (s *State) shared(node Node) Node {
	text := func(t string) string { return s.Symbols.Text(s.Symbols.intern(t)) }
	node.Labels = slices.Clone(node.Labels)
	for k, l := range node.Labels {
		node.Labels[k] = Label{text(l.Key), text(l.Value)}
	}
	if name := s.Symbols.Lookup(node.Name); name != NoSymbol { // it is often a label too
		node.Name = s.Symbols.Text(name)
	}
	node.Taints = slices.Clone(node.Taints)
	for k, t := range node.Taints {
		node.Taints[k] = Taint{text(t.Key), text(t.Value), text(t.Effect)}
	}
	node.Allocatable = slices.Clone(node.Allocatable)
	for k, q := range node.Allocatable {
		node.Allocatable[k].Name = text(q.Name)
	}
	node.Images = slices.Clone(node.Images)
	for k, image := range node.Images {
		names := make([]string, len(image.Names))
		for j, name := range image.Names {
			names[j] = text(name)
		}
		node.Images[k].Names = names
	}
	node.Features = slices.Clone(node.Features)
	for k, f := range node.Features {
		node.Features[k] = text(f)
	}
	return node
}

func (s *State) removeNode(i NodeIndex) {
	n := &s.Nodes
	name := n.Spec[i].Name
	for n.firstPod[i] != NoPod {
		id := n.firstPod[i]
		s.rehashPod(id, func() { s.detach(id) })
		s.orphans[name] = append(s.orphans[name], id)
	}
	s.digest -= n.hash[i] + s.nodeSums(i)
	s.dropImages(i)
	delete(n.byName, name)
	n.Live.Clear(i)
	n.Unschedulable.Clear(i)
	n.count--
	n.Spec[i], n.Labels[i], n.Taints[i], n.Images[i], n.Ports[i] = Node{}, nil, nil, nil, nil
	n.AllowedPods[i], n.hash[i] = 0, 0
	for r := range n.Allocatable {
		n.Allocatable[r][i] = 0
	}
	s.touch(i)
	n.SpecModified[i] = s.version.Seq
	s.ImagesModified = s.version.Seq
}

// addImages and dropImages keep the image states: a name has the size of the node that showed it first, until no node
// shows it.
func (s *State) addImages(i NodeIndex, images []Image) {
	var names []Symbol
	for _, image := range images {
		for _, name := range image.Names {
			sym := s.Symbols.intern(name)
			if slices.Contains(names, sym) {
				continue
			}
			names = append(names, sym)
			st := s.images[sym]
			if st.Nodes == 0 {
				st.Size = image.Size
				if size, ok := s.pinned[sym]; ok {
					st.Size = size
					delete(s.pinned, sym)
				}
				s.digest += hashImage(name, st.Size)
			}
			st.Nodes++
			s.images[sym] = st
		}
	}
	slices.Sort(names)
	s.Nodes.Images[i] = names
}

// imageSizes returns the sizes that the node's images count with, in their order.
func (s *State) imageSizes(i NodeIndex) []int64 {
	sizes := make([]int64, 0, len(s.Nodes.Images[i]))
	for _, sym := range s.Nodes.Images[i] {
		sizes = append(sizes, s.images[sym].Size)
	}
	return sizes
}

func (s *State) dropImages(i NodeIndex) {
	for _, sym := range s.Nodes.Images[i] {
		st := s.images[sym]
		if st.Nodes--; st.Nodes == 0 {
			delete(s.images, sym)
			s.digest -= hashImage(s.Symbols.Text(sym), st.Size)
		} else {
			s.images[sym] = st
		}
	}
	s.Nodes.Images[i] = nil
}
