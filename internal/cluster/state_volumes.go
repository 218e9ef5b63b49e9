package cluster

import (
	"maps"
	"slices"
)

// volumes is what follows from the claims and disks of placed pods and from what these are made of: it is in no digest and in no snapshot.
// Pods and nodes without any cost nothing of it.
type volumes struct {
	claims   map[claimKey]*usedClaim
	byVolume fews[string, claimKey]   // used claims by the volume that they name, which need not exist
	byClass  fews[string, claimKey]   // used claims that have no volume, by their class, which need not exist either
	on, of   fews[string, string]     // VolumeAttachments by their node, and by their volume
	attached [][]Attachment           // by node, in order; shorter if there is nothing on those that follow
	failing  map[NodeIndex]int32      // how many volumes of a node's pods fail; see Uncounted
	used     map[[2]string]*volumeUse // those that pods use which are on nodes or nominated to one, by driver and handle
	modified Seq                      // see VolumeUsesModified
	nominees map[PodID]*PodVolumes    // see NomineeVolumes
	changes  []attachmentChange       // room for those of one pod

	supply   supply
	demand   demand
	choices  map[PodID][]VolumeChoice // of assumed pods
	promises map[promiseKey]*promise  // what follows from these
	promised map[string]promiseKey    // likewise, by volume
}

func newVolumes() volumes {
	return volumes{
		claims: make(map[claimKey]*usedClaim), byVolume: make(fews[string, claimKey]), byClass: make(fews[string, claimKey]),
		on: make(fews[string, string]), of: make(fews[string, string]),
		failing: make(map[NodeIndex]int32), used: make(map[[2]string]*volumeUse), nominees: make(map[PodID]*PodVolumes),
		supply: newSupply(), demand: newDemand(), choices: make(map[PodID][]VolumeChoice), promises: make(map[promiseKey]*promise), promised: make(map[string]promiseKey),
	}
}

func (v *volumes) clone() volumes {
	c := *v
	c.claims = cloneValues(v.claims)
	for _, claim := range c.claims {
		claim.named, claim.made, claim.nominees = claim.named.clone(), claim.made.clone(), claim.nominees.clone()
	}
	c.byVolume, c.byClass, c.on, c.of = v.byVolume.clone(), v.byClass.clone(), v.on.clone(), v.of.clone()
	c.attached = slices.Clone(v.attached)
	for i, of := range c.attached {
		c.attached[i] = slices.Clone(of)
	}
	c.failing, c.used = maps.Clone(v.failing), cloneValues(v.used)
	c.nominees = cloneValues(v.nominees)
	for _, of := range c.nominees {
		of.Uses = slices.Clone(of.Uses)
	}
	c.changes = nil
	c.supply, c.demand = v.supply.clone(), v.demand.clone()
	c.choices, c.promises, c.promised = maps.Clone(v.choices), cloneValues(v.promises), maps.Clone(v.promised)
	return c
}

// restore makes all uses ones since a seq.
func (v *volumes) restore(seq Seq) {
	v.modified = seq
	for _, u := range v.used {
		u.since = seq
	}
}

// VolumeObjectsModified returns the seq of the last delta that changed an object of a kind that volumes are made of, or whether these can be read.
func (s *State) VolumeObjectsModified() Seq {
	last := s.ObjectsModified(UnservedKind)
	for kind := PersistentVolumeKind; kind <= VolumeAttachmentKind; kind++ {
		last = max(last, s.ObjectsModified(kind))
	}
	return last
}

// VolumeUsesModified returns the seq of the last delta that changed what ClaimUsers or VolumeUsers returns for something.
func (s *State) VolumeUsesModified() Seq { return s.volumes.modified }

// VolumesModified returns the later one of VolumeObjectsModified and VolumeUsesModified.
func (s *State) VolumesModified() Seq { return max(s.VolumeObjectsModified(), s.VolumeUsesModified()) }

// changeVolumes changes an object, and what is attached to nodes with it. Nodes of which that says something else then count as
// changed.
func (s *State) changeVolumes(key ObjectKey, change func()) {
	var changes []attachmentChange
	switch key.Kind {
	case PersistentVolumeKind:
		attachments := s.volumes.of.of(key.Name)
		for _, name := range attachments {
			changes = s.appendAttachment(changes, name, -1)
		}
		s.supplyVolume(s.PersistentVolume(key.Name), false)
		change()
		s.supplyVolume(s.PersistentVolume(key.Name), true)
		for _, name := range attachments {
			changes = s.appendAttachment(changes, name, 1)
		}
		changes = s.changeClaims(changes, s.volumes.byVolume.of(key.Name))
	case PersistentVolumeClaimKind:
		was := s.PersistentVolumeClaim(key.Namespace, key.Name).awaits()
		change()
		claim := s.PersistentVolumeClaim(key.Namespace, key.Name)
		s.noteAsk(claim)
		s.demandClaim(claimKey{key.Namespace, key.Name}, was, claim.awaits())
		changes = s.changeClaims(changes, []claimKey{{key.Namespace, key.Name}})
	case StorageClassKind:
		had := s.StorageClass(key.Name) != nil
		change()
		s.supplyClass(key.Name, had)
		changes = s.changeClaims(changes, s.volumes.byClass.of(key.Name))
	case VolumeAttachmentKind:
		changes = s.appendAttachment(changes, key.Name, -1)
		s.findAttachmentBy(key, s.volumes.on.remove, s.volumes.of.remove)
		change()
		s.findAttachmentBy(key, s.volumes.on.add, s.volumes.of.add)
		changes = s.appendAttachment(changes, key.Name, 1)
	case CSINodeKind:
		s.changeCSINode(key, change)
	case CSIStorageCapacityKind:
		was := ObjectAt[*CSIStorageCapacity](s, key)
		change()
		s.supplyRoom(was, ObjectAt[*CSIStorageCapacity](s, key))
	case UnservedKind:
		s.changeUnserved(key, change)
	default:
		change()
	}
	s.changeAttached(changes, true)
}

// changeUnserved changes what says that a resource cannot be read. When it can be again, what needs it may go to any node, or preempt there, where nothing did: each node counts as changed.
func (s *State) changeUnserved(key ObjectKey, change func()) {
	was := s.Unserved(key.Name)
	change()
	if was == nil || s.Unserved(key.Name) != nil {
		return
	}
	for i := range NodeIndex(s.Nodes.Len()) {
		if s.Nodes.Live.Has(i) {
			s.touch(i)
		}
	}
}

// changeCSINode changes a CSINode. If the node has none before, or none then, volumes count there that did not, or do not any more.
func (s *State) changeCSINode(key ObjectKey, change func()) {
	had := s.CSINode(key.Name) != nil
	change()
	has := s.CSINode(key.Name) != nil
	i := s.Nodes.ByName(key.Name)
	if i == NoNode {
		return
	}
	if had != has {
		var changes []attachmentChange
		for _, p := range s.PodsOn(i) {
			if p.volumes {
				class, labels := s.classes[p.Class], s.labels[p.Labels]
				changes = s.appendUses(changes, i, class, labels, had, -1)
				changes = s.appendUses(changes, i, class, labels, has, 1)
			}
		}
		s.changeAttached(changes, false)
	}
	s.touch(i)
}
