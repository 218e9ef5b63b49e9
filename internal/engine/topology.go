package engine

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// maxSlots bounds what the pods of one signature count for constraints and terms of their own. Masks have a bit for each slot that is chosen.
// What terms of other pods count does not matter here: nobody is refused for what others ask for.
const maxSlots = 64

// topology counts, for the pods of one signature, what plugins read of pods on all nodes of a state, per
// domain of each topology key. It is a fold over the nodes: sync brings it to the state's version by reading again the
// nodes that have changed.
//
// What is counted is numbered in slots. A node's row says in which domains it is and what its pods add to each slot;
// what these plugins see of a node, and what nodes have in common, is its topology profile.
type topology struct {
	plugins   []judging // in the order of the table
	ordered   []judging // in the scheduling profile's order of filters
	filtering bool      // some of them filters
	priority  int32     // of the pods: lower nominees do not count

	keys    []topologyKey
	keyOf   map[string]int // by name
	slots   []slot
	own     int                             // how many of them are there for the pods' own constraints and terms
	chosen  int                             // how many of them are chosen
	carried map[cluster.ClassID][]increment // what a pod adds by its class
	labeled map[cluster.LabelsID]*additions // what a pod adds by its labels; filled as they are met

	synced     cluster.Seq // the rows are those of nodes at this seq; -1: there is none yet
	rows       rows
	placed     []topologyProfileID // by node; noTopologyProfile if there is none
	profiles   []*topologyProfile
	profileIDs map[string]topologyProfileID
	prefix     string

	// Room for what sync needs.
	scratch []byte
	before  row
	changed []cluster.NodeIndex

	changes uint64 // grows with every change of a sum or of a domain: verdicts on topology profiles are then to be made again
	judged  uint64 // topology profiles' verdicts are of that change
	rebuilt uint64 // grows when topology profiles get new ids

	numbered     uint64 // State.Renumbered when symbols were last looked up
	sweepLabeled int    // labeled is looked through when there are so many
}

// crossNode is a plugin that reads pods on other nodes, for the pods of a signature. All of a node goes by its topology profile.
type crossNode interface {
	filters() bool  // whether it can refuse nodes
	resolves() bool // whether what it counts depends on the labels of namespaces
	// fingerprint writes what tells texts of topology profiles apart, besides the signature.
	fingerprint(*cluster.State, *signatureKey)

	// counts reports for which of its chosen slots a node counts, as a mask of their bits, given its domain of each topology key.
	counts(t *topology, st *cluster.State, p *program, i cluster.NodeIndex, domain []int32) uint64
	// increments adds what a placed pod with these labels counts; with moved, what one changes that is thought to come or go.
	increments(st *cluster.State, pod *cluster.LabelSet, moved bool, out []increment) []increment

	// filter judges a node of a topology profile as if extra were counted besides, by slot. lacks tells all that it lacks.
	filter(t *topology, tp *topologyProfile, extra []int64) Verdict
	lacks(t *topology, tp *topologyProfile, extra []int64, out []Lack) []Lack

	// weighs reports whether it has to be told how many eligible nodes each topology profile has before it scores; weigh tells.
	weighs() bool
	weigh(t *topology, eligible []int64)
	// score scores a topology profile. False: its nodes do not score.
	score(t *topology, tp *topologyProfile) (int64, bool)
}

// judging is a crossNode with its row.
type judging struct {
	crossNode
	plugin *Plugin
}

// topologyKey is a node label whose values are domains.
type topologyKey struct {
	name    string
	symbol  cluster.Symbol
	missing bool             // no node has had the label when it was last looked up
	domains map[string]int32 // by value; the domain of "" is 0
	bySym   map[cluster.Symbol]int32
	nodes   []int32 // that have the label, by domain
	shared  int     // domains with several nodes
	apart   bool    // every domain is one node: topology profiles of nodes do not name theirs, but say what it counts
	valued  bool    // some slot needs the value; if not, all values are of one domain
	slots   []int   // that are counted by it
}

// slot is one thing that is counted per domain of a key.
type slot struct {
	key    int
	sums   []int64 // by domain
	chosen bool    // its plugin says which nodes count; else those do that have the key
	bit    uint64  // its bit in masks, if it is chosen
	// positive is how many domains have a sum above 0.
	positive int
	// domains is kept for hard spread constraints.
	domains *domains
	// local: only what is on the node itself counts, whatever other nodes have.
	local bool
	// emptyCounts: nodes without the key are of the domain of the empty value.
	emptyCounts bool
}

// increment is what one pod adds to a slot.
type increment struct {
	slot  int
	by    int64
	alive bool // only if the pod is not terminating
}

// sum adds an increment to others, as part of one that is alike. With very many terms there are few slots.
func sum(increments []increment, one increment) []increment {
	for k := range increments {
		if same := &increments[k]; same.slot == one.slot && same.alive == one.alive {
			same.by += one.by
			return increments
		}
	}
	return append(increments, one)
}

// additions are what pods with a label set add: where they are read from a node, and where they are thought to come or
// go; see topology.shift.
type additions struct{ placed, moved []increment }

// rows are what nodes add, in columns by node.
type rows struct {
	live   cluster.Bitmap
	in     []uint64 // chosen slots that the node counts for, as their bits; see counts
	domain []int32  // by node and key; noDomain if the node lacks it
	adds   []int64  // by node and slot
}

func (r *rows) len() int { return len(r.in) }

// row is what one node adds: its entries in rows, or a copy of them.
type row struct {
	live   bool
	in     uint64
	domain []int32
	adds   []int64
}

// row returns the row of a node. What is written to its slices is written to the columns.
func (t *topology) row(i cluster.NodeIndex) row {
	r, keys, slots := &t.rows, len(t.keys), len(t.slots)
	return row{
		live: r.live.Has(i), in: r.in[i], domain: r.domain[int(i)*keys : (int(i)+1)*keys], adds: r.adds[int(i)*slots : (int(i)+1)*slots],
	}
}

// copyTo makes another row of the same topology the same as this one.
func (r *row) copyTo(other *row) {
	other.live, other.in = r.live, r.in
	copy(other.domain, r.domain)
	copy(other.adds, r.adds)
}

// equal reports whether two rows add the same.
func (r *row) equal(other *row) bool {
	return r.live == other.live && (!r.live || r.in == other.in && slices.Equal(r.domain, other.domain) && slices.Equal(r.adds, other.adds))
}

// newTopology returns what the pods of a signature need, or nil if other pods do not matter to them. True: they matter in
// too many ways to be judged.
func newTopology(st *cluster.State, r *relations, p *program, priority int32) (*topology, bool) {
	t := &topology{
		priority: priority, synced: -1, keyOf: make(map[string]int),
		carried: make(map[cluster.ClassID][]increment), labeled: make(map[cluster.LabelsID]*additions),
		profileIDs: make(map[string]topologyProfileID),
	}
	for k, plugin := range relatingPlugins() {
		one := judging{r.of[k].judge(t, st, r, plugin), plugin}
		t.plugins, t.filtering = append(t.plugins, one), t.filtering || one.filters()
	}
	t.ordered = slices.Clone(t.plugins)
	slices.SortStableFunc(t.ordered, func(a, b judging) int {
		return cmp.Compare(p.at[rankOfPlugin(a.plugin.Name)], p.at[rankOfPlugin(b.plugin.Name)])
	})
	if len(t.slots) == 0 || t.own > maxSlots {
		return nil, t.own > maxSlots
	}
	for k := range t.slots {
		s := &t.slots[k]
		t.keys[s.key].valued = t.keys[s.key].valued || !s.local
	}
	t.prefix = t.fingerprint(st, r, r.written)
	t.before = row{domain: make([]int32, len(t.keys)), adds: make([]int64, len(t.slots))}
	return t, false
}

// fingerprint returns what the texts of topology profiles begin with: it differs where the same pods would count differently. Written is that
// of relations that r may have been before.
func (t *topology) fingerprint(st *cluster.State, r *relations, written uint64) string {
	var key signatureKey
	for _, p := range t.plugins {
		p.fingerprint(st, &key)
	}
	sum := fnv1a(written, key.b)
	r.leftOut(st, func(written []byte) { sum = fnv1a(sum, written) })
	return string(binary.BigEndian.AppendUint64(nil, cluster.Mix(sum)))
}

// resolves reports whether what is counted depends on the labels of namespaces.
func (t *topology) resolves() bool {
	return t != nil && slices.ContainsFunc(t.plugins, func(p judging) bool { return p.resolves() })
}

// filters reports whether feasibility depends on other pods, and not the score alone.
func (t *topology) filters() bool { return t != nil && t.filtering }

func (t *topology) key(name string) int {
	if k, ok := t.keyOf[name]; ok {
		return k
	}
	t.keyOf[name] = len(t.keys)
	t.keys = append(t.keys, topologyKey{
		name: name, missing: true, symbol: cluster.NoSymbol, apart: true,
		domains: map[string]int32{"": 0}, bySym: make(map[cluster.Symbol]int32), nodes: []int32{0},
	})
	return len(t.keys) - 1
}

func (t *topology) addSlot(s slot) int {
	s.sums = []int64{0}
	if s.chosen {
		s.bit = 1 << t.chosen
		t.chosen++
	}
	key := &t.keys[s.key]
	key.slots = append(key.slots, len(t.slots))
	t.slots = append(t.slots, s)
	return len(t.slots) - 1
}

// counts reports whether a node counts for the slot, given its row's mask and domains.
func (s *slot) counts(in uint64, domain []int32) bool {
	if s.chosen {
		return s.local || in&s.bit != 0
	}
	return domain[s.key] != noDomain
}

// domainOf returns the domain of a value.
func (k *topologyKey) domainOf(value string) int32 {
	if d, ok := k.domains[value]; ok {
		return d
	}
	d := int32(len(k.domains))
	k.domains[value] = d
	k.nodes = grow(k.nodes, int(d)+1)
	return d
}

// sync brings the counts to the state's version.
func (t *topology) sync(st *cluster.State, p *program) {
	seq := st.Version().Seq
	if seq == t.synced {
		return
	}
	if t.bloated(st) {
		t.clear()
	}
	if t.numbered != st.Renumbered() {
		t.numbered = st.Renumbered()
		for k := range t.keys {
			t.keys[k].missing, t.keys[k].symbol = true, cluster.NoSymbol
			clear(t.keys[k].bySym)
		}
	}
	for k := range t.keys {
		if key := &t.keys[k]; key.missing {
			key.symbol = st.Symbols.Lookup(key.name)
			key.missing = key.symbol == cluster.NoSymbol
		}
	}
	t.grow(st.Nodes.Len())
	t.changed = t.changed[:0]
	if t.synced < 0 || !st.Changes(t.synced, func(c *cluster.NodeChange) {
		if c.Other || t.counts(st, c) {
			t.refresh(st, p, c.Node)
		}
	}) {
		st.ChangedSince(t.synced, func(i cluster.NodeIndex) { t.refresh(st, p, i) })
	}
	t.synced = seq
	if len(t.labeled) >= max(t.sweepLabeled, minSwept) {
		// Pods of label sets that are gone now have been taken off already: nobody asks for these again.
		maps.DeleteFunc(t.labeled, func(id cluster.LabelsID, _ *additions) bool { return st.Labels(id) == nil })
		t.sweepLabeled = len(t.labeled) + len(t.labeled)/4 + minSwept
	}
	if t.regroup() {
		t.profiles, t.profileIDs = nil, make(map[string]topologyProfileID)
		t.rebuilt++
		for i := range t.rows.len() {
			t.place(st, cluster.NodeIndex(i))
		}
		return
	}
	for _, i := range t.changed {
		t.place(st, i)
	}
}

// counts reports whether a pod that came or went adds anything. If its labels are gone, it does not: had it been counted,
// they would be known.
func (t *topology) counts(st *cluster.State, c *cluster.NodeChange) bool {
	if len(t.carried) > 0 && len(t.carried[c.Class]) > 0 {
		return true
	}
	if c.Labels == cluster.NoLabels || t.labeled[c.Labels] == nil && st.Labels(c.Labels) == nil {
		return false
	}
	return len(t.additionsOf(st, c.Labels).placed) > 0
}

// refresh reads a node that has changed.
func (t *topology) refresh(st *cluster.State, p *program, i cluster.NodeIndex) {
	now := t.row(i)
	now.copyTo(&t.before)
	t.read(st, p, i, &now)
	t.rows.live.Put(i, now.live)
	t.rows.in[i] = now.in
	if !t.before.equal(&now) {
		t.move(&t.before, -1)
		t.move(&now, 1)
	}
	t.changed = append(t.changed, i)
}

// grow makes room for so many nodes.
func (t *topology) grow(nodes int) {
	for len(t.placed) < nodes {
		t.placed = append(t.placed, noTopologyProfile)
	}
	r := &t.rows
	r.live = r.live.Grow(nodes)
	r.in, r.domain, r.adds = grow(r.in, nodes), grow(r.domain, nodes*len(t.keys)), grow(r.adds, nodes*len(t.slots))
}

// bloated reports whether so many domains and topology profiles are of nodes that are gone that it is better to begin anew.
func (t *topology) bloated(st *cluster.State) bool {
	most := 4*st.Nodes.Len() + 1024
	for k := range t.keys {
		if len(t.keys[k].domains) > most {
			return true
		}
	}
	return len(t.profiles) > most // of label sets only those that the state has are kept, however many these are
}

func (t *topology) clear() {
	for k := range t.keys {
		key := &t.keys[k]
		key.domains, key.nodes, key.shared, key.apart = map[string]int32{"": 0}, []int32{0}, 0, true
		clear(key.bySym)
	}
	for k := range t.slots {
		s := &t.slots[k]
		s.sums, s.positive = []int64{0}, 0
		if s.domains != nil {
			s.domains = new(domains)
		}
	}
	clear(t.labeled)
	t.rows, t.placed, t.profiles, t.profileIDs = rows{}, nil, nil, make(map[string]topologyProfileID)
	t.synced = -1
	t.changes++
	t.rebuilt++
}

// regroup decides which keys name their domains in topology profiles, and reports whether that has changed.
func (t *topology) regroup() bool {
	changed := false
	for k := range t.keys {
		key := &t.keys[k]
		apart := key.shared == 0
		for _, s := range key.slots {
			apart = apart && !(t.slots[s].emptyCounts && !t.slots[s].local)
		}
		changed = changed || apart != key.apart
		key.apart = apart
	}
	return changed
}

// read makes r the row of a node.
func (t *topology) read(st *cluster.State, p *program, i cluster.NodeIndex, r *row) {
	clear(r.adds)
	r.in = 0
	if r.live = st.Nodes.Live.Has(i); !r.live {
		return
	}
	for k := range t.keys {
		key := &t.keys[k]
		value, ok := labelOf(st.Nodes.Labels[i], key.symbol)
		switch {
		case !ok || key.missing:
			r.domain[k] = noDomain
		case !key.valued:
			r.domain[k] = 0
		default:
			d, known := key.bySym[value]
			if !known {
				d = key.domainOf(st.Symbols.Text(value))
				key.bySym[value] = d
			}
			r.domain[k] = d
		}
	}
	// 1. For which chosen slots does the node count?
	for _, j := range t.plugins {
		r.in |= j.counts(t, st, p, i, r.domain)
	}
	// 2. What do its pods add?
	for _, pod := range st.PodsOn(i) {
		for _, inc := range t.carried[pod.Class] {
			r.adds[inc.slot] += inc.by
		}
		if pod.Labels == cluster.NoLabels {
			continue
		}
		for _, inc := range t.additionsOf(st, pod.Labels).placed {
			if !inc.alive || !pod.Deleting {
				r.adds[inc.slot] += inc.by
			}
		}
	}
	for s := range r.adds {
		if !t.slots[s].counts(r.in, r.domain) {
			r.adds[s] = 0
		}
	}
}

func (t *topology) additionsOf(st *cluster.State, id cluster.LabelsID) *additions {
	if a := t.labeled[id]; a != nil {
		return a
	}
	a := new(additions)
	if l := st.Labels(id); l != nil {
		for _, j := range t.plugins {
			a.placed = j.increments(st, &l.LabelSet, false, a.placed)
			a.moved = j.increments(st, &l.LabelSet, true, a.moved)
		}
	}
	t.labeled[id] = a
	return a
}

// move adds a row to the sums of its domains, sign = 1, or takes it away, sign = -1.
func (t *topology) move(r *row, sign int64) {
	if !r.live {
		return
	}
	for k, d := range r.domain {
		if d == noDomain {
			continue
		}
		key := &t.keys[k]
		before := key.nodes[d]
		key.nodes[d] += int32(sign)
		if max(before, key.nodes[d]) == 2 {
			key.shared += int(sign)
		}
	}
	for k := range t.slots {
		s := &t.slots[k]
		if s.local || !s.counts(r.in, r.domain) {
			continue
		}
		d := r.domain[s.key]
		if d == noDomain {
			d = 0 // of the empty value: emptyCounts
		}
		s.add(d, sign*r.adds[k], int32(sign))
		if r.adds[k] != 0 || s.domains != nil {
			t.changes++
		}
	}
}

// add changes the sum of a domain, and the number of nodes that count for it.
func (s *slot) add(d int32, by int64, nodes int32) {
	s.sums = grow(s.sums, int(d)+1)
	before := s.sums[d]
	s.sums[d] += by
	switch {
	case before <= 0 && s.sums[d] > 0:
		s.positive++
	case before > 0 && s.sums[d] <= 0:
		s.positive--
	}
	if s.domains == nil {
		return
	}
	s.domains.nodes = grow(s.domains.nodes, int(d)+1)
	if s.domains.nodes[d] > 0 {
		s.domains.leave(before)
	}
	if s.domains.nodes[d] += nodes; s.domains.nodes[d] > 0 {
		s.domains.enter(s.sums[d])
	}
}
