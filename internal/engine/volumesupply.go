package engine

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// noProvisioner is the provisioner of classes whose volumes are not provisioned.
const noProvisioner = "kubernetes.io/no-provisioner"

// ask is what a claim that waits for a consumer asks for.
type ask struct {
	claim *cluster.PersistentVolumeClaim
	class *cluster.StorageClass
	// selected: a volume is to be provisioned for node, as the claim says or as has been chosen.
	selected bool
	node     string
	// kept are volumes that are kept for the claim, by name.
	kept []*cluster.PersistentVolume
	// given: a volume has been chosen for the claim, for another pod that uses it: it gets that one, or none. It is nil if there is none any more.
	given  bool
	volume *cluster.PersistentVolume
	// counted: volumes are provisioned only where a CSIStorageCapacity says that there is room.
	counted bool
}

// readSupply reads what is said of a claim that has no volume, but a class.
func (r *claimRead) readSupply(st *cluster.State) {
	if r.promisedVolume, r.promisedNode = st.Promise(r.claim); r.promisedVolume != "" {
		r.promised = st.PersistentVolume(r.promisedVolume)
	}
	r.driver = st.CSIDriver(r.class.Provisioner)
	if kept := keptFor(st, r.claim); len(kept) > 0 {
		var key signatureKey
		for _, v := range kept {
			writeKept(&key, v)
		}
		r.kept = string(key.b)
	}
}

// keptFor returns the volumes that are kept for a claim, by name, but those that have been promised to another one.
func keptFor(st *cluster.State, claim *cluster.PersistentVolumeClaim) (kept []*cluster.PersistentVolume) {
	for _, v := range st.KeptVolumes(claim.Namespace, claim.Name) {
		if _, _, promised := st.Promised(v.Name); !promised && (v.Claim.UID == "" || v.Claim.UID == claim.UID) {
			kept = append(kept, v)
		}
	}
	return kept
}

// ask returns what a claim asks for.
func (r *resolving) ask(read *claimRead) ask {
	a := ask{
		claim: read.claim, class: read.class, selected: read.claim.HasSelectedNode, node: read.claim.SelectedNode,
		counted: read.claim.HasRequest && read.driver != nil && read.driver.StorageCapacity,
	}
	switch {
	case read.promisedVolume != "":
		a.selected, a.node, a.given, a.volume = false, "", true, read.promised
		return a
	case read.promisedNode != "":
		a.selected, a.node = true, read.promisedNode
	}
	a.kept = keptFor(r.st, a.claim)
	return a
}

func writeKept(key *signatureKey, v *cluster.PersistentVolume) {
	key.text(v.Name)
	key.text(v.Class)
	key.int(int(v.Capacity))
	key.text(v.Mode)
	key.text(v.AttributesClass)
	key.text(v.ScoredClass())
	key.bool(v.HasClaim)
	key.text(v.Claim.Namespace)
	key.text(v.Claim.Name)
	key.text(v.Claim.UID)
	key.bool(v.Deleting)
	writeVolumeTerms(key, v.HasAffinity, v.Affinity)
}

// write adds what a claim asks for to a key. Claims that ask for the same are alike, but for those that volumes are kept for.
func (a *ask) write(key *signatureKey) {
	key.text(a.class.Name)
	key.text(a.class.Provisioner)
	writeVolumeTerms(key, len(a.class.Topologies) > 0, a.class.Topologies)
	key.bool(a.counted)
	key.bool(a.claim.HasRequest)
	key.int(int(a.claim.Request))
	key.int(len(a.claim.AccessModes))
	for _, mode := range a.claim.AccessModes {
		key.text(mode)
	}
	key.text(a.claim.Mode)
	key.text(a.claim.AttributesClass)
	if key.text(a.claim.SelectorError); a.claim.SelectorError != "" {
		key.text(a.claim.Namespace)
		key.text(a.claim.Name)
	}
	key.bool(a.claim.Selector.Nothing)
	writeVolumeTerms(key, true, []cluster.NodeSelectorTerm{{Expressions: a.claim.Selector.Requirements}})
	key.bool(a.selected)
	key.text(a.node)
	if key.bool(a.given); a.given {
		if key.bool(a.volume != nil); a.volume != nil {
			writeKept(key, a.volume)
		}
	}
	key.int(len(a.kept))
	for _, v := range a.kept {
		writeKept(key, v)
	}
}

// awaiting finds volumes for the claims of pods that wait for a consumer.
//
// Claims that have a node are provisioned on that one. For each of the others, the smallest first, it takes the smallest volume of the class that is
// nobody's, can be reached from the node and is as the claim wants it, or one that is kept for the claim. What is left is provisioned, if the class
// can do that for the node and there is room. It is kube-scheduler's FindPodVolumes. Of volumes of one size that takes any, and this the first by
// shelf, labels and name, in that order: see cluster.Shelf.
type awaiting struct {
	asks       []ask
	topologies []*volumeTerms // by ask: of the class
	kept       [][]*volumeTerms
	bySize     []int // asks that have no node, the smallest first
	like       []int // by ask: the first one that differs from it by nothing but its name, its size and what is kept for it
	counted    []int // by ask: the first one for which the same CSIStorageCapacities count
}

// nodeMemo is what claims have come to on one node, for others that are like them: pods may have hundreds of claims, and a class thousands of volumes.
type nodeMemo struct {
	none []bool         // by ask that others are like: it got no volume, and so none that asks for as much will. nil: nobody is like another
	room map[int]int64  // by ask that others count like: how much there is at most
	rest map[int]unused // see lackOf
}

func (c *compiler) awaiting(asks []ask) *awaiting {
	if len(asks) == 0 {
		return nil
	}
	p := &awaiting{asks: asks}
	for k := range asks {
		a := &asks[k]
		p.topologies = append(p.topologies, c.volumeTerms(len(a.class.Topologies) > 0, a.class.Topologies))
		var kept []*volumeTerms
		for _, v := range a.kept {
			kept = append(kept, c.volumeTerms(v.HasAffinity, v.Affinity))
		}
		p.kept = append(p.kept, kept)
		first := func(same func(a, b *ask) bool) (j int) {
			for j < k && !same(&asks[j], a) {
				j++
			}
			return j
		}
		p.like, p.counted = append(p.like, first((*ask).likes)), append(p.counted, first((*ask).countsLike))
		if !a.selected && !a.given {
			p.bySize = append(p.bySize, k)
		}
	}
	slices.SortStableFunc(p.bySize, func(j, k int) int { return cmp.Compare(asks[j].claim.Request, asks[k].claim.Request) })
	return p
}

// likes reports whether two claims may get the same volumes that are nobody's, but for their sizes.
func (a *ask) likes(b *ask) bool {
	return a.class.Name == b.class.Name && a.claim.Mode == b.claim.Mode && a.claim.AttributesClass == b.claim.AttributesClass && a.claim.SelectorError == b.claim.SelectorError &&
		slices.Equal(a.claim.AccessModes, b.claim.AccessModes) && a.claim.Selector.Nothing == b.claim.Selector.Nothing &&
		slices.EqualFunc(a.claim.Selector.Requirements, b.claim.Selector.Requirements, sameRequirement)
}

// countsLike reports whether the same CSIStorageCapacities count for two claims.
func (a *ask) countsLike(b *ask) bool { return a.class.Name == b.class.Name }

// memo returns where to note what claims come to on a node; nil: each is tried for itself.
func (p *awaiting) memo() *nodeMemo {
	if len(p.asks) < 2 {
		return nil
	}
	return &nodeMemo{none: make([]bool, len(p.asks))}
}

// unreadableSelector comes before the claim, and why what it selects cannot be read.
const unreadableSelector = "error creating internal label selector for claim: "

// broken returns the error with which an attempt of kube-scheduler ends that looks for volumes, "" if it does not.
func (p *awaiting) broken() string {
	for _, k := range p.bySize {
		if claim := p.asks[k].claim; claim.SelectorError != "" {
			return fmt.Sprintf("%s%s/%s: %s", unreadableSelector, claim.Namespace, claim.Name, claim.SelectorError)
		}
	}
	return ""
}

// shortage is why there are no volumes for claims on a node.
type shortage int

const (
	suffices   shortage = iota // there are
	noVolume                   // that can be bound, or provisioned
	noStorage                  // to provision one
	noSelector                 // that of a claim cannot be parsed
)

// find returns why there are no volumes for the claims on a live node. If there are, found, if it is not
// nil, is called with what each claim gets, by its place among those that wait: a volume, nil for one that is to be provisioned. Those come in the order in
// which kube-scheduler has them provisioned. Of those that are nobody's, a claim gets only one that admits, if it is not nil, lets it have.
func (p *awaiting) find(st *cluster.State, i cluster.NodeIndex, admits func(int, *cluster.PersistentVolume) bool, found func(int, *cluster.PersistentVolume)) shortage {
	name := st.Nodes.Spec[i].Name
	var provisioned, unmatched []int
	for k := range p.asks {
		switch a := &p.asks[k]; {
		case a.selected && a.node != name:
			return noVolume
		case a.given && !a.getsGiven(st, i):
			return noVolume
		case a.given:
		case a.selected:
			provisioned = append(provisioned, k)
		}
	}
	for _, k := range p.bySize {
		if p.asks[k].claim.SelectorError != "" {
			return noSelector
		}
	}
	taken := make([]*cluster.PersistentVolume, len(p.asks))
	known := p.memo()
	for at, k := range p.bySize {
		if taken[at] = p.volume(st, i, k, taken[:at], admits, known); taken[at] == nil {
			unmatched = append(unmatched, k)
		}
	}
	for _, k := range append(provisioned, unmatched...) {
		if short := p.provisions(st, i, k, known); short != suffices {
			return short
		}
	}
	if found != nil {
		for _, k := range provisioned {
			found(k, nil)
		}
		for at, k := range p.bySize {
			found(k, taken[at])
		}
		for k := range p.asks {
			if a := &p.asks[k]; a.given {
				found(k, a.volume)
			}
		}
	}
	return suffices
}

// provisions returns why no volume can be provisioned for a claim on a live node.
func (p *awaiting) provisions(st *cluster.State, i cluster.NodeIndex, k int, known *nodeMemo) shortage {
	switch a := &p.asks[k]; {
	case !a.provisioned() || !p.topologies[k].admit(st, i):
		return noVolume
	case !a.counted:
	case known == nil && !hasRoom(st, i, a), known != nil && p.roomOn(st, i, k, known) < a.claim.Request:
		return noStorage
	}
	return suffices
}

// roomOn returns how large a volume can be that is provisioned for a claim on a live node, -1 if no CSIStorageCapacity says so.
func (p *awaiting) roomOn(st *cluster.State, i cluster.NodeIndex, k int, known *nodeMemo) int64 {
	k = p.counted[k]
	most, found := int64(-1), false
	if known != nil {
		if most, found = known.room[k]; found {
			return most
		}
		most = -1
	}
	for c := range st.StorageCapacities(p.asks[k].class.Name, i) {
		if c.HasLimit && c.Limit > most && !c.Topology.Nothing && conditionsAdmit(st, i, c.Topology.Requirements) {
			most = c.Limit
		}
	}
	if known != nil {
		if known.room == nil {
			known.room = make(map[int]int64)
		}
		known.room[k] = most
	}
	return most
}

// provisioned reports whether the class provisions volumes.
func (a *ask) provisioned() bool { return a.class.Provisions() }

// shorts calls f with each claim for which there is no volume on a live node, by its place among those that wait, and why; find says one of
// these. The volumes that the others take are taken.
func (p *awaiting) shorts(st *cluster.State, i cluster.NodeIndex, f func(k int, why shortage, taken []*cluster.PersistentVolume, known *nodeMemo)) {
	name, known := st.Nodes.Spec[i].Name, p.memo()
	var provisioned []int
	for k := range p.asks {
		switch a := &p.asks[k]; {
		case a.selected && a.node != name, a.given && !a.getsGiven(st, i):
			f(k, noVolume, nil, known)
		case a.selected:
			provisioned = append(provisioned, k)
		}
	}
	var taken []*cluster.PersistentVolume
	for _, k := range p.bySize {
		if p.asks[k].claim.SelectorError != "" {
			f(k, noSelector, nil, known)
			continue
		}
		if v := p.volume(st, i, k, taken, nil, known); v != nil {
			taken = append(taken, v)
		} else {
			provisioned = append(provisioned, k)
		}
	}
	for _, k := range provisioned {
		if why := p.provisions(st, i, k, known); why != suffices {
			f(k, why, taken, known)
		}
	}
}

// lackOf says what a claim wants for which there is no volume on a live node.
func (p *awaiting) lackOf(st *cluster.State, i cluster.NodeIndex, k int, why shortage, taken []*cluster.PersistentVolume, known *nodeMemo) *ClaimLack {
	a := &p.asks[k]
	out := &ClaimLack{Class: a.class.Name, Wanted: a.claim.Request, Most: -1}
	switch {
	case a.selected && a.node != st.Nodes.Spec[i].Name:
		out.Node = a.node
		return out
	case a.given && a.volume != nil:
		out.Volume, out.Where = a.volume.Name, a.volume.Affinity
		return out
	case a.given || why == noSelector:
		return out
	case why == noStorage:
		out.NoRoom, out.Most = true, p.roomOn(st, i, k, known)
		return out
	}
	out.NoneMade = !a.provisioned()
	if out.NotThere = !out.NoneMade; a.selected {
		return out // it gets none of those that there are
	}
	for at, v := range a.kept {
		if v.Class == a.class.Name && v.Capacity >= a.claim.Request && a.alike(v) && !v.Deleting && !slices.Contains(taken, v) && !p.kept[k][at].admit(st, i) {
			out.Volume, out.Where = v.Name, v.Affinity
			return out
		}
	}
	left := p.unused(st, i, k, taken, known)
	out.Most, out.Unlike = left.like, left.unlike >= max(a.claim.Request, 0)
	return out
}

// unused is how large the largest volumes are that are nobody's and have not been taken: of those that are as a claim wants them, and of the others. -1:
// there are none.
type unused struct{ like, unlike int64 }

// unused returns what is left for a claim on a live node.
func (p *awaiting) unused(st *cluster.State, i cluster.NodeIndex, k int, taken []*cluster.PersistentVolume, known *nodeMemo) unused {
	k = p.like[k]
	if known != nil {
		if left, found := known.rest[k]; found {
			return left
		}
	}
	a, left := &p.asks[k], unused{-1, -1}
	for shelf := range st.FreeVolumes(a.class.Name, i) {
		first := shelf.Volumes[0]
		if first.HasAffinity && !termsAdmit(st, i, first.Affinity) {
			continue
		}
		like := a.alike(first) && a.modes(first)
		for _, v := range slices.Backward(shelf.Volumes) { // the largest first
			if v.Capacity <= left.like && v.Capacity <= left.unlike {
				break
			}
			most := &left.unlike
			if like && a.claim.Selector.Matches(v.Labels) {
				most = &left.like
			}
			if v.Capacity > *most && !slices.Contains(taken, v) {
				*most = v.Capacity
			}
		}
	}
	if known != nil {
		if known.rest == nil {
			known.rest = make(map[int]unused)
		}
		known.rest[k] = left
	}
	return left
}

// volume returns the volume that a claim gets on a live node, but none of those that are taken; nil if there is none. For admits see find.
// Claims have to come by size.
func (p *awaiting) volume(
	st *cluster.State, i cluster.NodeIndex, k int, taken []*cluster.PersistentVolume, admits func(int, *cluster.PersistentVolume) bool, known *nodeMemo,
) *cluster.PersistentVolume {
	a := &p.asks[k]
	for at, v := range a.kept {
		if v.Class != a.class.Name || v.Capacity < a.claim.Request || !a.alike(v) || v.Deleting || slices.Contains(taken, v) {
			continue
		}
		if !p.kept[k][at].admit(st, i) {
			return nil // the claim is bound to it, and not for this node
		}
		return v
	}
	if known != nil && known.none[p.like[k]] {
		return nil
	}
	var best *cluster.PersistentVolume
	var of *cluster.Shelf // where it is
	for shelf := range st.FreeVolumes(a.class.Name, i) {
		first := shelf.Volumes[0] // in this the others are like it
		if !a.alike(first) || !a.modes(first) || first.HasAffinity && !termsAdmit(st, i, first.Affinity) {
			continue
		}
		from, _ := slices.BinarySearchFunc(shelf.Volumes, a.claim.Request, func(v *cluster.PersistentVolume, least int64) int {
			if v.Capacity < least {
				return -1
			}
			return 1
		})
		for _, v := range shelf.Volumes[from:] {
			if best != nil && (best.Capacity < v.Capacity || best.Capacity == v.Capacity && of.Key <= shelf.Key) {
				break
			}
			if a.claim.Selector.Matches(v.Labels) && !slices.Contains(taken, v) && (admits == nil || admits(k, v)) {
				best, of = v, shelf
				break
			}
		}
	}
	if best == nil && known != nil && admits == nil {
		known.none[p.like[k]] = true
	}
	return best
}

// getsGiven reports whether the volume that has been chosen for a claim will do on a node.
func (a *ask) getsGiven(st *cluster.State, i cluster.NodeIndex) bool {
	v := a.volume
	return v != nil && v.Class == a.class.Name && v.Capacity >= a.claim.Request && a.alike(v) && !v.Deleting &&
		(!v.HasClaim || v.Claim.Namespace == a.claim.Namespace && v.Claim.Name == a.claim.Name && (v.Claim.UID == "" || v.Claim.UID == a.claim.UID)) &&
		(!v.HasAffinity || termsAdmit(st, i, v.Affinity))
}

// alike reports whether a volume is used as the claim wants to use it.
func (a *ask) alike(v *cluster.PersistentVolume) bool {
	return v.Mode == a.claim.Mode && v.AttributesClass == a.claim.AttributesClass
}

// modes reports whether a volume can be accessed in all the ways that the claim asks for.
func (a *ask) modes(v *cluster.PersistentVolume) bool {
	for _, mode := range a.claim.AccessModes {
		if !slices.Contains(v.AccessModes, mode) {
			return false
		}
	}
	return true
}

// hasRoom reports whether a volume that is so large can be provisioned for a live node.
func hasRoom(st *cluster.State, i cluster.NodeIndex, a *ask) bool {
	for c := range st.StorageCapacities(a.class.Name, i) {
		if c.HasLimit && c.Limit >= a.claim.Request && !c.Topology.Nothing && conditionsAdmit(st, i, c.Topology.Requirements) {
			return true
		}
	}
	return false
}

// ChooseVolumes returns what the claims of a pod get on a live node that wait for a consumer; nil if none do. It is what makes VolumeBinding find
// the node feasible, unless admits, if it is not nil, refuses a claim a volume that is nobody's: then it gets another one. False: it does not, or
// there is no other.
func (e *Evaluator) ChooseVolumes(
	st *cluster.State, s Subject, i cluster.NodeIndex, admits func(claim *cluster.PersistentVolumeClaim, volume string) bool,
) (choices []cluster.VolumeChoice, ok bool) {
	_, own := e.relationsOf(st, s) // the evaluation is of all pods of the signature, whose claims have other names
	known := e.with(st, s, func(c *evaluation) {
		p := c.program.awaiting
		if p == nil {
			ok = c.relation.volumes == nil || c.relation.volumes.refusal == ""
			return
		}
		claimOf := func(k int) *cluster.PersistentVolumeClaim { return own.volumes.binding.asks[k].claim }
		var may func(int, *cluster.PersistentVolume) bool
		if admits != nil {
			may = func(k int, v *cluster.PersistentVolume) bool { return admits(claimOf(k), v.Name) }
		}
		ok = p.find(st, i, may, func(k int, v *cluster.PersistentVolume) {
			claim := claimOf(k)
			choice := cluster.VolumeChoice{Claim: claim.Name, UID: claim.UID}
			if slices.ContainsFunc(choices, func(c cluster.VolumeChoice) bool { return c.Claim == choice.Claim }) {
				return // the pod names it twice, and kube-scheduler looks for two volumes
			}
			if v != nil {
				choice.Volume = v.Name
			}
			choices = append(choices, choice)
		}) == suffices
	})
	return choices, ok && known
}
