package cluster

import "slices"

// minSweep is how many symbols there are before anybody looks for those that are not used any more.
const minSweep = 1024

// sweep gives back the symbols that nothing uses any more, once there are many: names of nodes that are gone, values of labels
// that they had, images that nobody has pulled lately. It looks only when there are half as many again as were left the last
// time, so that it costs little per symbol.
func (s *State) sweep() {
	if s.Symbols.Len() < max(s.sweepAt, minSweep) {
		return
	}
	used := s.usedSymbols()
	live := used.Count()
	s.sweepAt = live + live/2 + minSweep
	if dead := s.Symbols.Len() - live; dead > live/2 {
		s.renumber(used)
	}
}

// usedSymbols returns the symbols that something in the state uses.
func (s *State) usedSymbols() Bitmap {
	used := NewBitmap(s.Symbols.Len())
	use := func(sym Symbol) { used.Set(NodeIndex(sym)) }
	text := func(t string) {
		if sym := s.Symbols.Lookup(t); sym != NoSymbol {
			use(sym)
		}
	}
	seen := make(map[*NodeShape]bool)
	for i := range s.Nodes.Spec {
		if !s.Nodes.Live.Has(NodeIndex(i)) {
			continue
		}
		text(s.Nodes.Spec[i].Name)
		for _, l := range s.Nodes.Labels[i] {
			use(l.Key)
			use(l.Value)
		}
		shape := s.Nodes.Spec[i].NodeShape
		if seen[shape] {
			continue
		}
		seen[shape] = true
		for _, t := range shape.taints {
			use(t.Key)
			use(t.Value)
		}
		for _, sym := range shape.images {
			use(sym)
		}
		// Their texts are shared by way of symbols.
		for _, t := range shape.Taints {
			text(t.Effect)
		}
		for _, q := range shape.Allocatable {
			text(q.Name)
		}
		for _, f := range shape.Features {
			text(f)
		}
	}
	for sym := range s.images {
		use(sym)
	}
	for sym := range s.pinned {
		use(sym)
	}
	return used
}

// renumber drops all symbols but the used ones, which keep their order.
func (s *State) renumber(used Bitmap) {
	old := s.Symbols
	s.Symbols = Symbols{ids: make(map[string]Symbol, used.Count())}
	to := make([]Symbol, old.Len())
	for sym, text := range old.strings {
		if to[sym] = NoSymbol; used.Has(NodeIndex(sym)) {
			to[sym] = s.Symbols.intern(text)
		}
	}
	n := &s.Nodes
	n.byName, n.keyUses = nil, nil
	shapes := make(map[*NodeShape]*NodeShape)
	// Labels and shapes may be those of a clone too, whose symbols are others.
	for i := range n.Spec {
		if !n.Live.Has(NodeIndex(i)) {
			continue
		}
		n.setByName(s.Symbols.Lookup(n.Spec[i].Name), NodeIndex(i))
		labels := slices.Clone(n.Labels[i])
		for k, l := range labels {
			labels[k] = NodeLabel{to[l.Key], to[l.Value]}
		}
		n.Labels[i] = labels
		n.retainKeys(labels)
		was := n.Spec[i].NodeShape
		is := shapes[was]
		if is == nil {
			is = was.renumbered(to)
			shapes[was] = is
		}
		n.Spec[i].NodeShape = is
	}
	for k, shape := range s.shapes {
		s.shapes[k] = shapes[shape] // nil if no node has it
	}
	images := make(map[Symbol]ImageState, len(s.images))
	for sym, image := range s.images {
		images[to[sym]] = image
	}
	s.images = images
	pinned := make(map[Symbol]int64, len(s.pinned))
	for sym, size := range s.pinned {
		pinned[to[sym]] = size
	}
	s.pinned = pinned
	s.renumbered++
}

// renumbered returns the shape in other symbols, which have the same order.
func (a *NodeShape) renumbered(to []Symbol) *NodeShape {
	shape := *a
	shape.taints = slices.Clone(a.taints)
	for k, t := range shape.taints {
		shape.taints[k] = NodeTaint{to[t.Key], to[t.Value], t.Effect}
	}
	shape.images = slices.Clone(a.images)
	for k, sym := range shape.images {
		shape.images[k] = to[sym]
	}
	return &shape
}
