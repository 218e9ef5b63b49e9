package cluster

import (
	"iter"
	"slices"
)

type claimKey struct{ namespace, name string }

// usedClaim is a claim that pods use which are on nodes or nominated to one. It need not exist.
type usedClaim struct {
	named    few[PodID] // who uses it by its name
	made     few[PodID] // who uses it by an ephemeral volume
	nominees few[PodID] // who is nominated to a node and would use it, in either way
	is       claimState
	// volume and class are where it is in byVolume and byClass, "" if it is not.
	volume, class string
}

// claimState is what NodeVolumeLimits reads of a claim, and of what it is bound to. Two that are equal count alike.
type claimState struct {
	ClaimVolume
	exists bool
	owner  string
}

// ClaimUsers returns how many pods use a claim by its name, not by an ephemeral volume: placed ones whose node is known, as the snapshot of
// kube-scheduler has no others.
func (s *State) ClaimUsers(namespace, name string) int {
	if claim := s.volumes.claims[claimKey{namespace, name}]; claim != nil {
		return len(claim.named.list)
	}
	return 0
}

// ClaimUserIDs yields the pods that ClaimUsers counts, in no order.
func (s *State) ClaimUserIDs(namespace, name string) iter.Seq[PodID] {
	if claim := s.volumes.claims[claimKey{namespace, name}]; claim != nil {
		return slices.Values(claim.named.list)
	}
	return func(func(PodID) bool) {}
}

// ClaimVolume returns the volume that NodeVolumeLimits takes a claim for, zero if there is no such claim.
func (s *State) ClaimVolume(namespace, name string) ClaimVolume {
	return s.claim(namespace, name).ClaimVolume
}

// claim returns the state of a claim that need neither be used nor exist.
func (s *State) claim(namespace, name string) claimState {
	if used := s.volumes.claims[claimKey{namespace, name}]; used != nil {
		return used.is
	}
	is, _, _ := s.readClaim(namespace, name)
	return is
}

// readClaim returns the state of a claim, the name of the volume whose changes may change it, and that of the class.
func (s *State) readClaim(namespace, name string) (is claimState, volume, class string) {
	claim := s.PersistentVolumeClaim(namespace, name)
	if claim == nil {
		return is, "", ""
	}
	is = claimState{exists: true, owner: claim.Owner}
	if claim.Volume != "" {
		if v := s.PersistentVolume(claim.Volume); v != nil {
			is.ClaimVolume = v.counted()
			return is, claim.Volume, ""
		}
	}
	if claim.Class != "" {
		if c := s.StorageClass(claim.Class); c != nil {
			is.ClaimVolume = c.provisioned(namespace, name)
		}
	}
	return is, claim.Volume, claim.Class
}

// counts returns what a claim counts as where a pod uses it. Fails: an attempt of kube-scheduler that counts it ends with an error.
func (is *claimState) counts(by PodClaim, csiNode bool) (driver, handle string, fails bool) {
	if by.Name == "" || by.Ephemeral && is.exists && !madeFor(is.owner, by) {
		return "", "", true
	}
	driver, handle = is.On(csiNode)
	return driver, handle, false
}

// useClaim returns a claim that is used from here on.
func (s *State) useClaim(key claimKey) *usedClaim {
	claim := s.volumes.claims[key]
	if claim == nil {
		claim = new(usedClaim)
		s.volumes.claims[key] = claim
		s.readUsedClaim(key, claim)
	}
	return claim
}

// dropUnused lets go of a claim that nobody uses any more.
func (s *State) dropUnused(key claimKey, claim *usedClaim) {
	if len(claim.named.list)+len(claim.made.list)+len(claim.nominees.list) == 0 {
		s.findUsedClaimBy(key, claim, "", "")
		delete(s.volumes.claims, key)
	}
}

// readUsedClaim brings a claim that is used up to date, and reports whether it counts as something else now.
func (s *State) readUsedClaim(key claimKey, claim *usedClaim) (changed bool) {
	is, volume, class := s.readClaim(key.namespace, key.name)
	s.findUsedClaimBy(key, claim, volume, class)
	changed = claim.is != is
	claim.is = is
	return changed
}

func (s *State) findUsedClaimBy(key claimKey, claim *usedClaim, volume, class string) {
	move := func(in fews[string, claimKey], from *string, to string) {
		if *from == to {
			return
		}
		if *from != "" {
			in.remove(*from, key)
		}
		if to != "" {
			in.add(to, key)
		}
		*from = to
	}
	move(s.volumes.byVolume, &claim.volume, volume)
	move(s.volumes.byClass, &claim.class, class)
}

// changeClaims brings claims up to date, as far as they are used, and appends what that changes on nodes. Nodes of which what is nominated to
// them would use something else count as changed.
func (s *State) changeClaims(changes []attachmentChange, keys []claimKey) []attachmentChange {
	var nominees []PodID
	for _, key := range keys { // by which they were found, and go on to be: that changes with the claim alone
		claim := s.volumes.claims[key]
		if claim == nil {
			continue
		}
		was := claim.is
		if s.readUsedClaim(key, claim) {
			changes = s.appendClaim(changes, key.name, claim, &was)
			nominees = append(nominees, claim.nominees.list...)
		}
	}
	slices.Sort(nominees)
	for _, id := range slices.Compact(nominees) { // each once, however many of its claims are among these
		s.recountNominee(id)
	}
	return changes
}

// appendClaim appends what it changes, wherever a claim is used, that it counts as something else than it was.
func (s *State) appendClaim(to []attachmentChange, name string, claim *usedClaim, was *claimState) []attachmentChange {
	if len(claim.made.list) == 0 && was.ClaimVolume == claim.is.ClaimVolume {
		return to // only pods that use it by an ephemeral volume would count it otherwise
	}
	add := func(id PodID) {
		p := &s.pods[id]
		csiNode := s.CSINode(s.Nodes.Spec[p.Node].Name) != nil
		for _, by := range s.labels[p.Labels].Claims { // few: more than some hundred do not count
			if by.Name == name {
				to = was.appendUse(to, p.Node, by, csiNode, -1)
				to = claim.is.appendUse(to, p.Node, by, csiNode, 1)
			}
		}
	}
	for _, id := range claim.named.list {
		add(id)
	}
	for _, id := range claim.made.list {
		if claim.named.find(id) < 0 {
			add(id)
		}
	}
	return to
}
