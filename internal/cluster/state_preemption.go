package cluster

// renominate makes a pending pod nominated to another node, "" for none.
func (s *State) renominate(id PodID, node string) {
	s.unnominate(id)
	s.rehashPod(id, func() {
		p := &s.pods[id]
		p.Nominated = node
		p.hash = s.hashPod(&p.Pod)
	})
	s.nominate(id)
}

func (s *State) checkPreemption(d PreemptionStarted) error {
	if err := s.checkPhase(d.ID, Pending); err != nil {
		return err
	}
	switch {
	case s.pods[d.ID].Preempting:
		return refuse("others are evicted for pod %d already", d.ID)
	case !s.Nodes.Live.Has(d.Node):
		return refuse("preemption on index %d without a node", d.Node)
	case len(d.Victims) == 0:
		return refuse("preemption for pod %d without victims", d.ID)
	}
	for _, id := range d.Victims {
		if p := s.Pod(id); p == nil || p.Node == NoNode || p.Node != d.Node && s.pods[d.ID].Group == "" {
			return refuse("victim %d is not on index %d", id, d.Node) // those of a group may be on any
		}
	}
	return nil
}

func (s *State) startPreemption(d PreemptionStarted) {
	s.renominate(d.ID, s.Nodes.Spec[d.Node].Name)
	s.leaveGroup(d.ID)
	s.rehashPod(d.ID, func() { s.pods[d.ID].Preempting = true })
	s.enterGroup(d.ID)
	for _, id := range d.Victims {
		s.rehashPod(id, func() { s.pods[id].Victim = true })
	}
}

func (s *State) endPreemption(d PreemptionEnded) {
	if d.ID != NoPod {
		s.leaveGroup(d.ID)
		s.rehashPod(d.ID, func() { s.pods[d.ID].Preempting = false })
		s.enterGroup(d.ID)
	}
	for _, id := range d.Spared {
		if p := s.Pod(id); p != nil {
			s.rehashPod(id, func() { p.Victim = false })
			if p.Node != NoNode {
				s.touch(p.Node) // it may give way to others again
			}
		}
	}
}
