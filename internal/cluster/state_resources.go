package cluster

import "slices"

// Columns are of the resources that some node has, so that no pod can make one. What the pods of a node request of others is in
// lacked, where there are entries of placed pods only: it is a part of the digest as what is in columns, so that the digest does not
// tell in which of the two it is.

// resolve finds the columns of what a class requests. What it finds is shared by clones: it is replaced, and never changed.
func (s *State) resolve(c *Class) {
	c.requests, c.lacked = nil, nil
	for _, q := range c.Spec.Requests {
		if q.Name == "pods" {
			continue
		}
		if id, ok := s.resourceID[q.Name]; ok {
			c.requests = append(c.requests, resourceAmount{id, q.Value})
		} else {
			c.lacked = append(c.lacked, q)
		}
	}
}

// addLacked adds to what the pods of a node request of a resource that has no column.
func (s *State) addLacked(i NodeIndex, name string, by int64) {
	nodes := s.lacked[name]
	was := nodes[i]
	now, hash := was+by, hashText(0, name)
	if was != 0 {
		s.digest -= fold(hash, int64(i), was)
	}
	if now != 0 {
		s.digest += fold(hash, int64(i), now)
		s.setLacked(i, name, now)
		return
	}
	delete(nodes, i)
	if len(nodes) == 0 {
		delete(s.lacked, name)
	}
}

func (s *State) setLacked(i NodeIndex, name string, value int64) {
	if s.lacked[name] == nil {
		s.lacked[name] = make(map[NodeIndex]int64)
	}
	s.lacked[name][i] = value
}

// retainResources and releaseResources count the nodes that have some of what one node has.
func (s *State) retainResources(all []Quantity) {
	for _, q := range all {
		if q.Name != "pods" {
			s.retainResource(q.Name)
		}
	}
}

func (s *State) releaseResources(all []Quantity) {
	for _, q := range all {
		if q.Name == "pods" {
			continue
		}
		r := s.resourceID[q.Name]
		if s.resourceUses[r]--; s.resourceUses[r] == 0 {
			s.dropResource(r)
		}
	}
}

func (s *State) retainResource(name string) {
	r, ok := s.resourceID[name]
	if !ok {
		r = s.addResource(name)
	}
	s.resourceUses[r]++
}

// addResource makes a column, with what the placed pods request.
func (s *State) addResource(name string) ResourceID {
	r := ResourceID(len(s.resources))
	s.resources = append(s.resources, name)
	s.resourceHash = append(s.resourceHash, hashText(0, name))
	s.resourceUses = append(s.resourceUses, 0)
	s.resourceID[name] = r
	s.Nodes.addResource()
	for _, c := range s.classes {
		if slices.ContainsFunc(c.lacked, func(q Quantity) bool { return q.Name == name }) {
			s.resolve(c)
		}
	}
	for i, v := range s.lacked[name] {
		s.Nodes.Requested[r][i] = v
	}
	delete(s.lacked, name)
	return r
}

// dropResource takes a column away that no node needs. The last one takes its place.
func (s *State) dropResource(r ResourceID) {
	n, last := &s.Nodes, ResourceID(len(s.resources)-1)
	for i, v := range n.Requested[r] {
		if v != 0 {
			s.setLacked(NodeIndex(i), s.resources[r], v)
		}
	}
	delete(s.resourceID, s.resources[r])
	if r != last {
		s.resources[r], s.resourceHash[r], s.resourceUses[r] = s.resources[last], s.resourceHash[last], s.resourceUses[last]
		n.Allocatable[r], n.Requested[r] = n.Allocatable[last], n.Requested[last]
		s.resourceID[s.resources[r]] = r
	}
	n.Allocatable[last], n.Requested[last] = nil, nil
	n.Allocatable, n.Requested = n.Allocatable[:last], n.Requested[:last]
	s.resources[last] = ""
	s.resources, s.resourceHash, s.resourceUses = s.resources[:last], s.resourceHash[:last], s.resourceUses[:last]
	for _, c := range s.classes {
		if slices.ContainsFunc(c.requests, func(a resourceAmount) bool { return a.resource == r || a.resource == last }) {
			s.resolve(c)
		}
	}
	s.renumbered++
}
