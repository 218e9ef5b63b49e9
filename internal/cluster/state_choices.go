package cluster

import "slices"

// VolumeChoice is what has been chosen for a claim of an assumed pod that waits for its first consumer.
type VolumeChoice struct {
	Claim string // its name, in the pod's namespace
	UID   string // its UID: a claim of that name with another one has been promised nothing
	// Volume is the volume that it is promised; "": one is to be provisioned for the pod's node.
	Volume string
}

// promiseKey names a claim that something has been chosen for.
type promiseKey struct{ namespace, name, uid string }

// promise is what has been chosen for a claim, for all assumed pods that use it.
type promise struct {
	volume, node string // one of them
	pods         int
}

// Promise returns what has been chosen for a claim: a volume, or the node that one is to be provisioned for. Both are "" if nothing has.
func (s *State) Promise(claim *PersistentVolumeClaim) (volume, node string) {
	if p := s.volumes.promises[promiseKey{claim.Namespace, claim.Name, claim.UID}]; p != nil {
		return p.volume, p.node
	}
	return "", ""
}

// Chosen returns what has been chosen for an assumed pod's claims. Nobody may change it.
func (s *State) Chosen(id PodID) []VolumeChoice { return s.volumes.choices[id] }

// Promised returns the claim that a volume has been promised to, by a choice. False: none has.
func (s *State) Promised(volume string) (namespace, name string, ok bool) {
	key, ok := s.volumes.promised[volume]
	return key.namespace, key.name, ok
}

// CanPromise returns why something cannot be chosen for a pod on a node, "" if it can: another choice for the same claim, or of the same volume, is not
// compatible. It does not ask what volumes and claims are.
func (s *State) CanPromise(namespace, node string, choices []VolumeChoice) string {
	for k, c := range choices {
		key := promiseKey{namespace, c.Claim, c.UID}
		p := s.volumes.promises[key]
		switch {
		case slices.ContainsFunc(choices[:k], func(other VolumeChoice) bool {
			return other.Claim == c.Claim || c.Volume != "" && other.Volume == c.Volume
		}):
			return "claim " + c.Claim + " or its volume is chosen twice"
		case p != nil && p.volume != c.Volume:
			return "something else has been chosen for claim " + c.Claim
		case p != nil && c.Volume == "" && p.node != node:
			return "a volume is to be provisioned for claim " + c.Claim + " on " + p.node
		}
		if c.Volume == "" {
			continue
		}
		if to, promised := s.volumes.promised[c.Volume]; promised && to != key {
			return "volume " + c.Volume + " is promised to " + to.namespace + "/" + to.name
		}
	}
	return ""
}

// promise takes in what has been chosen for a pod that is assumed from here on.
func (s *State) promise(id PodID, choices []VolumeChoice) {
	if len(choices) == 0 {
		return
	}
	p := &s.pods[id]
	s.volumes.choices[id] = choices
	s.digest += hashChoices(id, choices)
	s.volumes.modified = s.version.Seq
	for _, c := range choices {
		key := promiseKey{p.Namespace, c.Claim, c.UID}
		of := s.volumes.promises[key]
		if of == nil {
			of = &promise{volume: c.Volume}
			if c.Volume == "" {
				of.node = p.NodeName
			}
			s.volumes.promises[key] = of
		}
		if of.pods++; of.pods == 1 && c.Volume != "" {
			s.changePromised(c.Volume, func() { s.volumes.promised[c.Volume] = key })
		}
	}
}

// unpromise gives back what has been chosen for a pod.
func (s *State) unpromise(id PodID) {
	choices := s.volumes.choices[id]
	if len(choices) == 0 {
		return
	}
	delete(s.volumes.choices, id)
	s.digest -= hashChoices(id, choices)
	s.volumes.modified = s.version.Seq
	for _, c := range choices {
		key := promiseKey{s.pods[id].Namespace, c.Claim, c.UID}
		of := s.volumes.promises[key]
		if of.pods--; of.pods > 0 {
			continue
		}
		delete(s.volumes.promises, key)
		if c.Volume != "" {
			s.changePromised(c.Volume, func() { delete(s.volumes.promised, c.Volume) })
		}
	}
}

// changePromised changes whether a volume is promised.
func (s *State) changePromised(name string, change func()) {
	v := s.PersistentVolume(name)
	if s.free(v) {
		s.shelve(v, false)
	}
	change()
	if s.free(v) {
		s.shelve(v, true)
	}
}

func hashChoices(id PodID, choices []VolumeChoice) uint64 {
	var e Encoder
	e.Text("choices")
	e.Int(int64(id))
	list(&e, choices, func(e *Encoder, c VolumeChoice) {
		e.Text(c.Claim)
		e.Text(c.UID)
		e.Text(c.Volume)
	})
	return hashBytes(e.b)
}
