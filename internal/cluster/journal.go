package cluster

import "sort"

// journalSize bounds how many changes of nodes a state remembers. Those who look more seldom look at all nodes that have
// changed.
const journalSize = 1 << 13

// NodeChange is a change of a node: a pod of that class and label set came or went, or, if Other, something else.
type NodeChange struct {
	Seq    Seq
	Node   NodeIndex
	Class  ClassID
	Labels LabelsID
	Other  bool
}

// journal is the latest changes of nodes, in order. It is a ring once it is full.
type journal struct {
	entries []NodeChange
	first   int // the oldest
	lost    Seq // of the last that is not in it any more
}

func (j *journal) add(c NodeChange) {
	if len(j.entries) < journalSize {
		j.entries = append(j.entries, c)
		return
	}
	j.lost = j.entries[j.first].Seq
	j.entries[j.first] = c
	j.first = (j.first + 1) % journalSize
}

// restart forgets all changes up to seq.
func (j *journal) restart(seq Seq) { *j = journal{entries: j.entries[:0], lost: seq} }

// at returns the k-th oldest.
func (j *journal) at(k int) *NodeChange { return &j.entries[(j.first+k)%len(j.entries)] }

// after returns how many are of seq or older.
func (j *journal) after(seq Seq) int {
	return sort.Search(len(j.entries), func(k int) bool { return j.at(k).Seq > seq })
}

// Changes calls visit for every change of a node after seq, oldest first. False: that is too long ago to tell, and visit has
// not been called; see Nodes.ChangedSince.
func (s *State) Changes(since Seq, visit func(*NodeChange)) bool {
	j := &s.journal
	if since < j.lost {
		return false
	}
	for k := j.after(since); k < len(j.entries); k++ {
		visit(j.at(k))
	}
	return true
}

// ChangedSince calls visit for every index whose columns changed after seq, in no order and for some more than once. It costs
// as much as has changed, if that is little.
func (s *State) ChangedSince(since Seq, visit func(NodeIndex)) {
	if j := &s.journal; since < j.lost || len(j.entries)-j.after(since) > s.Nodes.Len()/4 {
		s.Nodes.ChangedSince(since, Range{First: 0, End: NodeIndex(s.Nodes.Len())}, visit)
		return
	}
	s.Changes(since, func(c *NodeChange) { visit(c.Node) })
}

// touch makes a node count as changed.
func (s *State) touch(i NodeIndex) {
	s.Nodes.touch(i, s.version.Seq)
	s.journal.add(NodeChange{Seq: s.version.Seq, Node: i, Other: true})
}

// touchByPod makes a node count as changed by a pod that came or went.
func (s *State) touchByPod(i NodeIndex, p *PodRow) {
	s.Nodes.touch(i, s.version.Seq)
	s.journal.add(NodeChange{Seq: s.version.Seq, Node: i, Class: p.Class, Labels: p.Labels})
}
