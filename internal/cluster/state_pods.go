package cluster

func (s *State) setPod(d PodSet) {
	for int(d.ID) >= len(s.pods) {
		s.pods = append(s.pods, PodRow{})
		s.clearRow(PodID(len(s.pods) - 1))
	}
	p := &s.pods[d.ID]
	phase, node, nodeName, attempt := Pending, NoNode, "", d.Pod.Attempt
	preempting, victim := d.Preempting || p.Preempting, d.Victim || p.Victim
	switch {
	case d.Pod.NodeName != "":
		phase, node, nodeName = Bound, s.Nodes.ByName(d.Pod.NodeName), d.Pod.NodeName
		if d.Assumed {
			phase = Assumed
		}
	case p.live && p.Phase == Assumed:
		phase, node, nodeName = Assumed, p.Node, p.NodeName
	}
	class := s.retain(d.Pod.Class)
	s.retainLabels(d.Pod.Labels)
	alike, modified := false, Seq(0)
	if p.live && p.Node == node && node != NoNode && !p.volumes && p.Class == d.Pod.Class && p.Priority == d.Pod.Priority {
		alike, modified = s.AlikeOn(node, p.Labels, d.Pod.Labels), s.Nodes.PodsModified[node]
	}
	if p.live {
		attempt = max(attempt, p.Attempt)
		if phase != Assumed {
			s.unpromise(d.ID)
		}
		s.digest -= p.digest(d.ID)
		s.unnominate(d.ID)
		s.leaveGroup(d.ID)
		s.leave(d.ID)
		s.count(p, -1)
		s.release(p.Class)
		s.releaseLabels(p.Labels)
	} else {
		s.takeRow(d.ID)
		s.podByUID[d.Pod.UID] = d.ID
	}
	if node != NoNode {
		nodeName = s.Nodes.Spec[node].Name // the same text, shared
	}
	volumes := len(class.Spec.Disks) > 0
	if l := s.labels[d.Pod.Labels]; l != nil {
		volumes = volumes || len(l.Claims) > 0
		if l.Namespace == d.Pod.Namespace {
			d.Pod.Namespace = l.Namespace // shared too
		}
	}
	*p = PodRow{Pod: d.Pod, Phase: phase, Node: NoNode, live: true, next: NoPod, prev: NoPod, hash: s.hashPod(&d.Pod), volumes: volumes}
	p.NodeName, p.Attempt = nodeName, attempt
	p.Preempting, p.Victim = preempting && phase == Pending, victim && phase != Pending
	s.count(p, 1)
	s.enterGroup(d.ID)
	s.enter(d.ID, node)
	s.digest += p.digest(d.ID)
	s.nominate(d.ID)
	s.promise(d.ID, d.Volumes)
	if alike {
		s.Nodes.PodsModified[node] = modified
	}
}

func (s *State) removePod(id PodID) {
	s.unpromise(id)
	p := &s.pods[id]
	s.digest -= p.digest(id)
	s.unnominate(id)
	s.leaveGroup(id)
	s.leave(id)
	s.count(p, -1)
	s.release(p.Class)
	s.releaseLabels(p.Labels)
	delete(s.podByUID, p.UID)
	s.clearRow(id)
}

// count counts a pod, or a pod less, in its phase and its class.
func (s *State) count(p *PodRow, sign int) {
	s.counts[p.Phase] += sign
	if p.Placed() {
		s.classes[p.Class].Placed += sign
	}
}

// clearRow makes the id one without a pod.
func (s *State) clearRow(id PodID) {
	s.pods[id] = PodRow{Node: NoNode, next: s.freePod, prev: NoPod}
	if s.freePod != NoPod {
		s.pods[s.freePod].prev = id
	}
	s.freePod = id
}

// takeRow undoes clearRow.
func (s *State) takeRow(id PodID) {
	p := &s.pods[id]
	if p.prev == NoPod {
		s.freePod = p.next
	} else {
		s.pods[p.prev].next = p.next
	}
	if p.next != NoPod {
		s.pods[p.next].prev = p.prev
	}
}

// place moves a pod to a phase and a node.
func (s *State) place(id PodID, phase Phase, node NodeIndex, nodeName string, attempt int32) {
	p := &s.pods[id]
	moves := p.NodeName != nodeName
	s.digest -= p.digest(id)
	s.unnominate(id)
	if moves {
		s.leave(id)
	}
	s.leaveGroup(id)
	s.count(p, -1)
	p.Phase, p.NodeName, p.Attempt = phase, nodeName, attempt
	s.count(p, 1)
	p.Preempting, p.Victim = p.Preempting && phase == Pending, p.Victim && phase != Pending
	s.enterGroup(id)
	if moves {
		s.enter(id, node)
	}
	s.digest += p.digest(id)
	s.nominate(id)
}

// enter makes a pod with a NodeName count on its node, or wait for it as an orphan. What the pod itself adds to the digest
// is left to the callers of this and the next three.
func (s *State) enter(id PodID, node NodeIndex) {
	p := &s.pods[id]
	switch {
	case p.NodeName == "":
	case node == NoNode:
		s.orphans[p.NodeName] = append(s.orphans[p.NodeName], id)
	default:
		s.attach(id, node)
	}
}

// leave undoes enter.
func (s *State) leave(id PodID) {
	p := &s.pods[id]
	switch {
	case p.NodeName == "":
	case p.Node == NoNode:
		waiting := s.orphans[p.NodeName]
		for k, other := range waiting {
			if other == id {
				waiting = append(waiting[:k], waiting[k+1:]...)
				break
			}
		}
		if len(waiting) == 0 {
			delete(s.orphans, p.NodeName)
		} else {
			s.orphans[p.NodeName] = waiting
		}
	default:
		s.detach(id)
	}
}

// attach adds the pod to the node's list and sums.
func (s *State) attach(id PodID, i NodeIndex) {
	p := &s.pods[id]
	p.Node = i
	first := s.Nodes.firstPod[i]
	p.prev, p.next = NoPod, first
	if first != NoPod {
		s.pods[first].prev = id
	}
	s.Nodes.firstPod[i] = id
	s.addSums(i, s.classes[p.Class], 1)
	if p.volumes {
		s.enterVolumes(id, i)
	}
	s.touchByPod(i, p)
}

// detach takes the pod from its node's list and sums.
func (s *State) detach(id PodID) {
	p := &s.pods[id]
	i := p.Node
	if p.volumes {
		s.leaveVolumes(id, i)
	}
	if p.prev == NoPod {
		s.Nodes.firstPod[i] = p.next
	} else {
		s.pods[p.prev].next = p.next
	}
	if p.next != NoPod {
		s.pods[p.next].prev = p.prev
	}
	p.Node, p.prev, p.next = NoNode, NoPod, NoPod
	s.addSums(i, s.classes[p.Class], -1)
	s.touchByPod(i, p)
}

func (s *State) addSums(i NodeIndex, c *Class, sign int64) {
	n := &s.Nodes
	s.digest -= s.nodeSums(i)
	for _, r := range c.requests {
		n.Requested[r.resource][i] += sign * r.value
	}
	for _, q := range c.lacked {
		s.addLacked(i, q.Name, sign*q.Value)
	}
	n.NonZeroCPU[i] += sign * c.Spec.NonZeroCPU
	n.NonZeroMemory[i] += sign * c.Spec.NonZeroMemory
	n.PodCount[i] += int32(sign)
	if len(c.ports) > 0 {
		n.addPorts(i, c.ports, int32(sign))
	}
	s.digest += s.nodeSums(i)
}

func (s *State) rehashPod(id PodID, change func()) {
	p := &s.pods[id]
	s.digest -= p.digest(id)
	change()
	s.digest += p.digest(id)
}
