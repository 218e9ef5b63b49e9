package cluster

import "slices"

// Columns are of the resources that some node has, so that no pod can make one. What the pods of a node request of others is in
// none: as soon as a node has some of it, all that is requested is added up.

// resolve finds the columns of what a class requests.
func (s *State) resolve(c *Class) {
	c.requests = nil
	for _, q := range c.Spec.Requests {
		if id, ok := s.resourceID[q.Name]; ok && q.Name != "pods" {
			c.requests = append(c.requests, resourceAmount{id, q.Value})
		}
	}
}

// retainResources and releaseResources count the nodes that have some of what one node has. The digest must be that of the
// columns there are.
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
	var amounts map[ClassID]int64
	for id, c := range s.classes {
		for _, q := range c.Spec.Requests {
			if q.Name != name {
				continue
			}
			c.requests = append(slices.Clip(c.requests), resourceAmount{r, q.Value}) // clones share what was there
			if c.Placed > 0 {
				if amounts == nil {
					amounts = make(map[ClassID]int64)
				}
				amounts[id] += q.Value
			}
		}
	}
	if amounts == nil {
		return r
	}
	column := s.Nodes.Requested[r]
	for id := range s.pods {
		if p := &s.pods[id]; p.live && p.Node != NoNode {
			column[p.Node] += amounts[p.Class]
		}
	}
	s.digest += s.columnSums(r)
	return r
}

// dropResource takes a column away that no node needs. The last one takes its place.
func (s *State) dropResource(r ResourceID) {
	s.digest -= s.columnSums(r)
	n, last := &s.Nodes, ResourceID(len(s.resources)-1)
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

// columnSums returns what a column adds to the digest.
func (s *State) columnSums(r ResourceID) uint64 {
	sum := uint64(0)
	for i, v := range s.Nodes.Requested[r] {
		if v != 0 {
			sum += fold(s.resourceHash[r], int64(i), v)
		}
	}
	return sum
}
