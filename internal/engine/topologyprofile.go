package engine

import (
	"encoding/binary"
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// topologyProfileID numbers the topology profiles of a topology, until its next rebuild.
type topologyProfileID int32

const (
	noTopologyProfile topologyProfileID = -1

	noDomain  int32 = -1 // the node lacks the key
	ownDomain int32 = -2 // the node is alone in its domain
)

// topologyProfile is what plugins that read pods on other nodes see of a node: nodes of one topology profile are judged
// and scored alike, whatever the counts are. Fields and methods of topology call it profile; a scheduling profile is another thing.
type topologyProfile struct {
	text    string
	domains []int32 // by key
	own     []int64 // by slot: what the node's pods add, if that is all that counts
	extra   []int64 // by slot: what the pods add that are nominated to the node; nil if none does

	verdict Verdict // as of topology.judged
	first   bool    // the verdict is that of the pass with the nominated pods
}

func (c *topologyProfile) lacks(key int) bool { return c.domains[key] == noDomain }

// domain returns the domain of a key, that of the empty value for a node that lacks it.
func (c *topologyProfile) domain(key int) int32 {
	if d := c.domains[key]; d != noDomain {
		return d
	}
	return 0
}

// count returns what a slot counts for the nodes of a topology profile.
func (t *topology) count(s int, c *topologyProfile) int64 {
	sl := &t.slots[s]
	d := c.domain(sl.key)
	if sl.local || d == ownDomain {
		return c.own[s]
	}
	if int(d) < len(sl.sums) {
		return sl.sums[d]
	}
	return 0
}

// countWith returns what a slot counts if it counted extra more, by slot, on one node of the topology profile. Nil is nothing.
func (t *topology) countWith(s int, c *topologyProfile, extra []int64) int64 {
	if extra == nil {
		return t.count(s, c)
	}
	return t.count(s, c) + extra[s]
}

// The marks that a topology profile's text has for each key, and before the nominees.
const (
	markMissing  = iota
	markShared   // and the value
	markApart    // the value does not matter
	markNominees // at the end
)

// place finds the topology profile of a node.
func (t *topology) place(st *cluster.State, i cluster.NodeIndex) {
	if !t.rows.live.Has(i) {
		t.placed[i] = noTopologyProfile
		return
	}
	t.scratch = t.describe(st, i, cluster.NoPod, t.scratch[:0])
	id, known := t.profileIDs[string(t.scratch)]
	if !known {
		text := string(t.scratch)
		c, ok := t.parse(text)
		if !ok {
			panic("engine: a topology profile that cannot be read back") // describe and parse are of one mind
		}
		id = t.add(c)
	}
	t.placed[i] = id
}

func (t *topology) add(c *topologyProfile) topologyProfileID {
	id := topologyProfileID(len(t.profiles))
	t.profiles = append(t.profiles, c)
	t.profileIDs[c.text] = id
	t.judge(c)
	return id
}

// describe writes a node's topology profile. Self is a pod whose nomination does not count.
func (t *topology) describe(st *cluster.State, i cluster.NodeIndex, self cluster.PodID, b []byte) []byte {
	r := t.row(i)
	b = append(b, t.prefix...)
	for k := range t.keys {
		key := &t.keys[k]
		switch {
		case r.domain[k] == noDomain:
			b = append(b, markMissing)
		case key.apart || !key.valued:
			b = append(b, markApart)
		default:
			value, _ := labelOf(st.Nodes.Labels[i], key.symbol)
			text := st.Symbols.Text(value)
			b = append(b, markShared)
			b = binary.AppendUvarint(b, uint64(len(text)))
			b = append(b, text...)
		}
		for _, s := range key.slots {
			if t.slots[s].local || key.apart && r.domain[k] != noDomain {
				b = binary.AppendVarint(b, r.adds[s])
			}
		}
	}
	if extra := t.nominees(st, i, self); extra != nil {
		b = append(b, markNominees)
		for _, n := range extra {
			b = binary.AppendVarint(b, n)
		}
	}
	return b
}

// nominees returns what the pods nominated to a node would add to each slot, nil if nothing.
func (t *topology) nominees(st *cluster.State, i cluster.NodeIndex, self cluster.PodID) []int64 {
	var extra []int64
	for _, id := range nominatedTo(st, i) {
		if pod := nominee(st, id, t.priority, self); pod != nil {
			extra = t.shift(st, i, pod, 1, extra)
		}
	}
	return extra
}

// shift adds to extra, by slot, what changes where a pod comes to a node, n = 1, or goes from it, n = -1. It makes extra
// if need be. As in kube-scheduler, hard spread constraints do not ask then whether they had counted the pod: if it is
// terminating, or if their selector is empty, they had not.
func (t *topology) shift(st *cluster.State, i cluster.NodeIndex, pod *cluster.PodRow, n int64, extra []int64) []int64 {
	r := t.row(i)
	add := func(increments []increment) {
		for _, inc := range increments {
			if !t.slots[inc.slot].counts(r.in, r.domain) {
				continue
			}
			if extra == nil {
				extra = make([]int64, len(t.slots))
			}
			extra[inc.slot] += n * inc.by
		}
	}
	add(t.carried[pod.Class])
	if pod.Labels != cluster.NoLabels {
		add(t.additionsOf(st, pod.Labels).moved)
	}
	return extra
}

// parse reads a topology profile's text. False: it was written for another signature, or is of a time when other domains had one node.
func (t *topology) parse(text string) (*topologyProfile, bool) {
	c := &topologyProfile{text: text, domains: make([]int32, len(t.keys)), own: make([]int64, len(t.slots))}
	if !strings.HasPrefix(text, t.prefix) {
		return nil, false
	}
	b := []byte(text[len(t.prefix):])
	for k := range t.keys {
		if len(b) == 0 {
			return nil, false
		}
		key, mark := &t.keys[k], b[0]
		b = b[1:]
		switch {
		case mark == markMissing:
			c.domains[k] = noDomain
		case mark == markApart && (key.apart || !key.valued):
			c.domains[k] = ownDomain
		case mark == markShared && !key.apart && key.valued:
			n, used := binary.Uvarint(b)
			if used <= 0 || uint64(len(b)-used) < n {
				return nil, false
			}
			c.domains[k] = key.domainOf(string(b[used : used+int(n)]))
			b = b[used+int(n):]
		default:
			return nil, false
		}
		for _, s := range key.slots {
			if t.slots[s].local || key.apart && c.domains[k] != noDomain {
				n, used := binary.Varint(b)
				if used <= 0 {
					return nil, false
				}
				c.own[s] = n
				b = b[used:]
			}
		}
	}
	if len(b) == 0 {
		return c, true
	}
	if b[0] != markNominees {
		return nil, false
	}
	b = b[1:]
	c.extra = make([]int64, len(t.slots))
	for s := range c.extra {
		n, used := binary.Varint(b)
		if used <= 0 {
			return nil, false
		}
		c.extra[s] = n
		b = b[used:]
	}
	return c, len(b) == 0
}

// find returns the topology profile of a text that another replica has written. False: it does not make sense here.
func (t *topology) find(text string) (*topologyProfile, bool) {
	if id, ok := t.profileIDs[text]; ok {
		return t.profiles[id], true
	}
	c, ok := t.parse(text)
	if !ok {
		return nil, false
	}
	t.add(c)
	return c, true
}

// profileOf returns the topology profile of a live node.
func (t *topology) profileOf(i cluster.NodeIndex) *topologyProfile { return t.profiles[t.placed[i]] }

// profileFor returns the topology profile of a live node as a pod sees it that may be nominated there, its verdict made.
func (t *topology) profileFor(st *cluster.State, i cluster.NodeIndex, self cluster.PodID) *topologyProfile {
	c := t.profileOf(i)
	if self != cluster.NoPod && c.extra != nil {
		if other, ok := t.parse(string(t.describe(st, i, self, nil))); ok {
			c = other
		}
	}
	t.judge(c)
	return c
}

// judge makes the verdict on a topology profile: of the pass with the pods nominated to its nodes if that fails, else of the pass
// without them.
func (t *topology) judge(c *topologyProfile) { c.verdict, c.first = t.verdictOn(c) }

func (t *topology) verdictOn(c *topologyProfile) (v Verdict, first bool) {
	if c.extra != nil {
		if v := t.pass(c, c.extra); v != codeFeasible {
			return v, true
		}
	}
	return t.pass(c, nil), c.extra == nil
}

// pass judges a node of a topology profile as if extra were counted besides, by slot. Nil is nothing.
func (t *topology) pass(c *topologyProfile, extra []int64) Verdict {
	for _, p := range t.ordered {
		if v := p.filter(t, c, extra); v != codeFeasible {
			return v
		}
	}
	return codeFeasible
}

// judgeAll makes the verdicts on all topology profiles again, if something has changed.
func (t *topology) judgeAll() {
	if t.judged == t.changes {
		return
	}
	for _, c := range t.profiles {
		t.judge(c)
	}
	t.judged = t.changes
}
