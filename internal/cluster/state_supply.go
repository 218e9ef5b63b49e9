package cluster

import (
	"cmp"
	"iter"
	"maps"
	"math"
	"slices"
)

// supply is what claims that wait for a consumer can get: the volumes that are nobody's, and the room there is to provision them. It follows from
// objects and from what has been chosen for assumed pods, and is in no digest and in no snapshot.
//
// Where it changes, nodes count as changed if it may be told otherwise of them whether a pod gets its volumes, or how they are scored by these. It may not be as long as enough
// volumes are left that are as good: see shelf.atLeast and shelf.like.
type supply struct {
	classes map[string]*classSupply // by the name of the StorageClass, which need not exist
	kept    fews[claimKey, string]  // volumes that are bound to a claim, or kept for it, by that: it need not exist
	nodes   map[string]*keyedNodes  // nodes by the values of the label keys under which something is filed
}

// classSupply is the supply of a StorageClass. One of which there is nothing is dropped, unless there is the class, or claims of it have asked for
// something.
type classSupply struct {
	shelves    map[string]*shelf // by what they have in common
	volumes    filing[*shelf]
	room       map[ObjectKey]*filedRoom // CSIStorageCapacities
	capacities filing[*filedRoom]

	kind  string // what all volumes there have been are like, but for where they are and how large
	mixed bool   // they are not
	// spared is as little as that of any shelf, or less.
	spared int
	// asks are what claims that have no volume have asked for since the state was restored, while there was the class.
	asks asks
}

// asks are what claims have asked for: as much as least bytes and no more than most, and volumes of which some labels are asked for, if selective.
type asks struct {
	least, most int64 // none have if least is larger
	smallest    int64 // that a volume has to be for any of them: those that ask for no size take part in this alone
	selective   bool
}

var noAsks = asks{least: math.MaxInt64, most: math.MinInt64, smallest: math.MaxInt64}

// shelf has volumes that are nobody's, of one class, which are alike but for their labels and how large they are.
type shelf struct {
	Shelf
	places places
	// spared is the least number of volumes that stood for one that came or went, since all nodes of the shelf last counted as changed: they did not then.
	// If pods have come to ask for more than that, it may have mattered for them. It is most if nothing has come or gone.
	spared int
}

// nothingSpared is more than any pod asks for.
const nothingSpared = math.MaxInt

// Shelf is volumes that are alike but for their names, their labels and how large they are: any of them may be promised to a claim. Readers must
// not change it.
type Shelf struct {
	Volumes []*PersistentVolume // the smallest first, those of a size by labels, and then by name
	// Key is that of no other shelf of the class. Of two of which any volume would do, the one with the lesser key comes first: of those that differ by
	// that alone, one with a node affinity.
	Key string
}

type filedRoom struct {
	*CSIStorageCapacity
	places places
}

// keyedNodes are nodes by the value of a label.
type keyedNodes struct {
	filed  int // how often something is filed under the key
	values fews[string, NodeIndex]
}

func newSupply() supply {
	return supply{classes: make(map[string]*classSupply), kept: make(fews[claimKey, string]), nodes: make(map[string]*keyedNodes)}
}

// FreeVolumes yields the volumes of a class that can be promised to claims and may be reached from a node, shelf by shelf: none is empty, and one may
// come twice.
func (s *State) FreeVolumes(class string, i NodeIndex) iter.Seq[*Shelf] {
	return func(yield func(*Shelf) bool) {
		c := s.volumes.supply.classes[class]
		if c == nil {
			return
		}
		s.about(i, func(label *Label) bool {
			for _, sh := range c.volumes.of(label) {
				if !yield(&sh.Shelf) {
					return false
				}
			}
			return true
		})
	}
}

// StorageCapacities yields the CSIStorageCapacities of a class that may be about a node. One may come twice.
func (s *State) StorageCapacities(class string, i NodeIndex) iter.Seq[*CSIStorageCapacity] {
	return func(yield func(*CSIStorageCapacity) bool) {
		c := s.volumes.supply.classes[class]
		if c == nil {
			return
		}
		s.about(i, func(label *Label) bool {
			for _, room := range c.capacities.of(label) {
				if !yield(room.CSIStorageCapacity) {
					return false
				}
			}
			return true
		})
	}
}

// SuppliedClasses returns of how many StorageClasses, by name, there is a supply, or is remembered that claims have asked for one: that is not forgotten
// when the class and its claims have gone.
func (s *State) SuppliedClasses() int { return len(s.volumes.supply.classes) }

// KeptVolumes returns the volumes whose ClaimRef names a claim, by name. Whether they are its depends on its UID.
func (s *State) KeptVolumes(namespace, name string) []*PersistentVolume {
	names := s.volumes.supply.kept.of(claimKey{namespace, name})
	if len(names) == 0 {
		return nil
	}
	out := make([]*PersistentVolume, 0, len(names))
	for _, name := range names {
		out = append(out, s.PersistentVolume(name))
	}
	slices.SortFunc(out, func(a, b *PersistentVolume) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// class returns the supply of a class, which is there from then on.
func (p *supply) class(name string) *classSupply {
	c := p.classes[name]
	if c == nil {
		c = &classSupply{shelves: make(map[string]*shelf), room: make(map[ObjectKey]*filedRoom), spared: nothingSpared, asks: noAsks}
		p.classes[name] = c
	}
	return c
}

// dropClass lets go of the supply of a class if there is none. What claims have asked for as long as there was the class is kept, for what was found of
// them then is known still: of claims that come anew, after volumes that nobody asked for, it would be taken for true.
func (s *State) dropClass(name string) {
	if c := s.volumes.supply.classes[name]; c != nil && len(c.shelves) == 0 && len(c.room) == 0 && c.asks == noAsks && s.StorageClass(name) == nil {
		delete(s.volumes.supply.classes, name)
	}
}

// free reports whether a volume can be promised to any claim.
func (s *State) free(v *PersistentVolume) bool {
	if v == nil || v.Class == "" || v.HasClaim || !v.Available || v.Deleting {
		return false
	}
	_, promised := s.volumes.promised[v.Name]
	return !promised
}

// supplyVolume adds a volume to the supply, or takes it away.
func (s *State) supplyVolume(v *PersistentVolume, add bool) {
	if v == nil {
		return
	}
	if v.HasClaim {
		key := claimKey{v.Claim.Namespace, v.Claim.Name}
		if add {
			s.volumes.supply.kept.add(key, v.Name)
		} else {
			s.volumes.supply.kept.remove(key, v.Name)
		}
	}
	if s.free(v) {
		s.shelve(v, add)
	}
}

// shelve puts a volume on its shelf, or takes it away.
func (s *State) shelve(v *PersistentVolume, add bool) {
	c := s.volumes.supply.class(v.Class)
	kind, key := v.ShelfKey()
	if c.kind == "" {
		c.kind = kind
	}
	c.mixed = c.mixed || c.kind != kind

	sh := c.shelves[key]
	if sh == nil {
		sh = &shelf{Shelf: Shelf{Key: key}, places: c.volumes.placesOf(affinityTerms(v)...), spared: nothingSpared}
		c.shelves[key] = sh
		c.volumes.add(sh.places, sh)
		s.fileNodes(sh.places, 1)
	}
	at, _ := slices.BinarySearchFunc(sh.Volumes, v, compareVolumes)
	if !add {
		sh.Volumes = slices.Delete(sh.Volumes, at, at+1)
	}
	if v.Capacity >= c.asks.smallest {
		standIns := 0
		if c.mixed || c.asks.selective || s.scoresStorage() {
			standIns = sh.like(v)
		} else {
			standIns = sh.atLeast(v.Capacity)
		}
		if sh.spared = min(sh.spared, standIns); sh.spared < s.volumes.demand.most(v.Class) {
			s.touchShelf(sh)
		}
		c.spared = min(c.spared, sh.spared)
	}
	if add {
		sh.Volumes = slices.Insert(sh.Volumes, at, v)
	}
	if len(sh.Volumes) == 0 {
		c.volumes.remove(sh.places, sh)
		s.fileNodes(sh.places, -1)
		delete(c.shelves, key)
		s.dropClass(v.Class)
	}
}

// scoresStorage reports whether nodes are scored by how large the volumes are that claims get, and how much room there is.
func (s *State) scoresStorage() bool {
	return slices.ContainsFunc(s.Settings.Profiles, func(p Profile) bool { return len(p.StorageShape) > 0 })
}

// ShelfKey returns the Key of the shelf on which a volume is, of those of its class, while it is nobody's; and its kind, which is what of that is not about
// where it can be reached from.
func (v *PersistentVolume) ShelfKey() (kind, key string) {
	var e Encoder
	e.Texts(v.AccessModes)
	e.Text(v.Mode)
	e.Text(v.AttributesClass)
	e.Text(v.ScoredClass())
	kind = string(e.b)
	e.Bool(!v.HasAffinity)
	list(&e, v.Affinity, encodeTerm)
	return kind, string(e.b)
}

func affinityTerms(v *PersistentVolume) (terms [][]Requirement) {
	if !v.HasAffinity {
		return [][]Requirement{nil} // any node will do
	}
	for _, t := range v.Affinity {
		if len(t.Expressions) > 0 { // else it matches nothing, or is about fields only, and any will do
			terms = append(terms, t.Expressions)
		} else if len(t.Fields) > 0 {
			terms = append(terms, nil)
		}
	}
	return terms
}

func compareVolumes(a, b *PersistentVolume) int {
	if c := compareLikes(a, b); c != 0 {
		return c
	}
	return cmp.Compare(a.Name, b.Name)
}

// compareLikes is 0 for volumes of a shelf that differ by nothing but their names.
func compareLikes(a, b *PersistentVolume) int {
	if c := cmp.Compare(a.Capacity, b.Capacity); c != 0 {
		return c
	}
	return slices.CompareFunc(a.Labels, b.Labels, func(a, b Label) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Value, b.Value))
	})
}

// atLeast returns how many volumes are at least so large.
//
// Those that are there beside another one of that size make it needless, if there are as many as a pod asks for, see demand: claims take the smallest volume that
// is large enough, the smallest claim first. Where all volumes of a class are such that a claim which can use one can use any that is large enough, a
// pod gets its volumes on a node exactly if there are, for every size, as many volumes of that size and more as it has claims that ask for that and
// more. For all sizes to which the other one counts, these are enough alone.
func (sh *shelf) atLeast(capacity int64) int {
	first, _ := slices.BinarySearchFunc(sh.Volumes, capacity, func(v *PersistentVolume, capacity int64) int {
		if v.Capacity < capacity {
			return -1
		}
		return 1
	})
	return len(sh.Volumes) - first
}

// like returns how many volumes differ from one by nothing but their names.
//
// Those that are there beside it make it needless, whatever else there is, if there are as many as a pod asks for. Of the volumes that will do for a
// claim, it gets one that is as large as the smallest of them, and of those the first by shelf, then by labels: names come last. So as long as none of
// them runs out, each claim of a pod gets a volume that is alike with this one and without it.
func (sh *shelf) like(v *PersistentVolume) int {
	first, _ := slices.BinarySearchFunc(sh.Volumes, v, compareLikes)
	after, _ := slices.BinarySearchFunc(sh.Volumes[first:], v, func(a, b *PersistentVolume) int {
		return cmp.Or(compareLikes(a, b), -1)
	})
	return after
}

// supplyRoom adds a CSIStorageCapacity to the supply, or takes it away, and has those nodes count as changed for which that makes a difference: to claims
// that ask for more than the limit was before, or will be, it makes none.
func (s *State) supplyRoom(was, is *CSIStorageCapacity) {
	p := &s.volumes.supply
	asks := noAsks
	note := func(c *CSIStorageCapacity) {
		if of := p.classes[c.Class]; of != nil {
			asks = asks.and(of.asks)
		}
	}
	if was != nil {
		note(was)
	}
	if is != nil {
		note(is)
	}
	least, most := was.limit(), is.limit()
	if was == nil || is == nil || was.Class != is.Class || !was.Topology.equal(&is.Topology) {
		least = math.MinInt64
		most = max(was.limit(), is.limit())
	} else {
		least, most = min(least, most), max(least, most)
	}
	matters := asks.least <= most && asks.most > least
	if was != nil && is != nil && was.Capacity != is.Capacity && s.scoresStorage() {
		matters = asks.least <= most
	}
	if was != nil {
		c := p.class(was.Class)
		filed := c.room[was.Key()]
		c.capacities.remove(filed.places, filed)
		delete(c.room, was.Key())
		if matters {
			s.touchPlaces(filed.places)
		}
		s.fileNodes(filed.places, -1)
	}
	if is != nil {
		c := p.class(is.Class)
		filed := &filedRoom{CSIStorageCapacity: is, places: topologyPlaces(c, is)}
		c.capacities.add(filed.places, filed)
		c.room[is.Key()] = filed
		s.fileNodes(filed.places, 1)
		if matters {
			s.touchPlaces(filed.places)
		}
	}
	if was != nil {
		s.dropClass(was.Class)
	}
}

func topologyPlaces(c *classSupply, of *CSIStorageCapacity) places {
	if of.Topology.Nothing {
		return places{}
	}
	return c.capacities.placesOf(of.Topology.Requirements)
}

// limit is how large a volume can be, less than any if there can be none.
func (c *CSIStorageCapacity) limit() int64 {
	if c == nil || !c.HasLimit || c.Topology.Nothing {
		return math.MinInt64
	}
	return c.Limit
}

func (a asks) and(b asks) asks {
	return asks{
		least: min(a.least, b.least), most: max(a.most, b.most), smallest: min(a.smallest, b.smallest), selective: a.selective || b.selective,
	}
}

// noteAsk notes what a claim asks for, if it has no volume and there is its class.
func (s *State) noteAsk(claim *PersistentVolumeClaim) {
	if claim == nil || claim.Volume != "" || claim.Class == "" || s.StorageClass(claim.Class) == nil {
		return
	}
	c := s.volumes.supply.class(claim.Class)
	is := asks{least: claim.Request, most: claim.Request, smallest: claim.Request, selective: !claim.Selector.Empty()}
	if !claim.HasRequest {
		is.least, is.most = noAsks.least, noAsks.most
	}
	c.asks = c.asks.and(is)
}

// supplyClass takes in that a StorageClass has changed.
func (s *State) supplyClass(name string, had bool) {
	p := &s.volumes.supply
	switch has := s.StorageClass(name) != nil; {
	case has && !had: // what claims have asked for meanwhile was not noted, and not what that would have changed
		c := p.class(name)
		s.touchShelves(slices.Collect(maps.Values(c.shelves)))
		for _, key := range slices.SortedFunc(maps.Keys(c.room), compareKeys) {
			s.touchPlaces(c.room[key].places)
		}
		for claim := range objectsOfKind[*PersistentVolumeClaim](s, PersistentVolumeClaimKind) {
			if claim.Class == name {
				s.noteAsk(claim)
			}
		}
	case !has:
		s.dropClass(name)
	}
}

// restoreSupply notes what claims ask for. Every node counts as changed.
func (s *State) restoreSupply() {
	for _, c := range s.volumes.supply.classes {
		c.asks = noAsks
		for _, sh := range c.shelves {
			sh.spared = nothingSpared
		}
	}
	for claim := range objectsOfKind[*PersistentVolumeClaim](s, PersistentVolumeClaimKind) {
		s.noteAsk(claim)
	}
	for name := range s.volumes.supply.classes {
		s.dropClass(name)
	}
}

// fileNodes counts that something is filed under labels, n = 1, or is not any more, n = -1: nodes are found by these keys.
func (s *State) fileNodes(p places, n int) {
	for _, l := range p.labels {
		of := s.volumes.supply.nodes[l.Key]
		if of == nil {
			of = &keyedNodes{values: make(fews[string, NodeIndex])}
			s.volumes.supply.nodes[l.Key] = of
			if key := s.Symbols.Lookup(l.Key); key != NoSymbol {
				for i := range NodeIndex(s.Nodes.Len()) {
					if value, ok := s.labelOf(i, key); ok {
						of.values.add(value, i)
					}
				}
			}
		}
		if of.filed += n; of.filed == 0 {
			delete(s.volumes.supply.nodes, l.Key)
		}
	}
}

// labelOf returns the value of a node's label.
func (s *State) labelOf(i NodeIndex, key Symbol) (string, bool) {
	labels := s.Nodes.Labels[i]
	k, ok := slices.BinarySearchFunc(labels, key, func(l NodeLabel, key Symbol) int { return int(l.Key - key) })
	if !ok {
		return "", false
	}
	return s.Symbols.Text(labels[k].Value), true
}

// refileNode takes in that a node has other labels.
func (s *State) refileNode(i NodeIndex, was, is []NodeLabel) {
	if len(s.volumes.supply.nodes) == 0 {
		return
	}
	for _, l := range was {
		if of := s.volumes.supply.nodes[s.Symbols.Text(l.Key)]; of != nil {
			of.values.remove(s.Symbols.Text(l.Value), i)
		}
	}
	for _, l := range is {
		if of := s.volumes.supply.nodes[s.Symbols.Text(l.Key)]; of != nil {
			of.values.add(s.Symbols.Text(l.Value), i)
		}
	}
}

// touchShelves touches shelves in the order of their keys: so nodes are touched in the same order in all states of a log.
func (s *State) touchShelves(all []*shelf) {
	slices.SortFunc(all, func(a, b *shelf) int { return cmp.Compare(a.Key, b.Key) })
	for _, sh := range all {
		s.touchShelf(sh)
	}
}

func compareKeys(a, b ObjectKey) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// touchShelf makes all nodes count as changed that volumes of a shelf may be reached from.
func (s *State) touchShelf(sh *shelf) {
	s.touchPlaces(sh.places)
	sh.spared = nothingSpared
}

// touchPlaces makes all nodes count as changed that what is filed there may be about.
func (s *State) touchPlaces(p places) {
	if p.anywhere {
		for i := range NodeIndex(s.Nodes.Len()) {
			if s.Nodes.Live.Has(i) {
				s.touch(i)
			}
		}
	}
	for _, l := range p.labels {
		if of := s.volumes.supply.nodes[l.Key]; of != nil {
			for _, i := range of.values.of(l.Value) {
				s.touch(i)
			}
		}
	}
}

func (p *supply) clone() supply {
	c := supply{classes: make(map[string]*classSupply, len(p.classes)), kept: p.kept.clone(), nodes: make(map[string]*keyedNodes, len(p.nodes))}
	for name, of := range p.classes {
		c.classes[name] = of.clone()
	}
	for key, of := range p.nodes {
		c.nodes[key] = &keyedNodes{filed: of.filed, values: of.values.clone()}
	}
	return c
}

func (c *classSupply) clone() *classSupply {
	out := &classSupply{
		shelves: make(map[string]*shelf, len(c.shelves)), room: make(map[ObjectKey]*filedRoom, len(c.room)), kind: c.kind, mixed: c.mixed,
		spared: c.spared, asks: c.asks,
	}
	for key, sh := range c.shelves {
		other := &shelf{Shelf: Shelf{Volumes: slices.Clone(sh.Volumes), Key: key}, places: sh.places, spared: sh.spared}
		out.shelves[key] = other
		out.volumes.add(other.places, other)
	}
	for key, of := range c.room {
		other := &filedRoom{of.CSIStorageCapacity, of.places}
		out.room[key] = other
		out.capacities.add(other.places, other)
	}
	return out
}
