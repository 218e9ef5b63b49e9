package cluster

import (
	"cmp"
	"slices"
)

// attachmentChange is more or less of something on a node. That of no driver is about how many volumes fail: as many as it has Uses.
type attachmentChange struct {
	node NodeIndex
	Attachment
}

// coalesce puts changes in order, by node, driver and handle, makes one of those that are about the same, and drops those that come to
// nothing.
func coalesce(changes []attachmentChange) []attachmentChange {
	slices.SortFunc(changes, func(a, b attachmentChange) int {
		if a.node != b.node {
			return int(a.node - b.node)
		}
		return a.Attachment.compare(b.Attachment)
	})
	n := 0
	for first := 0; first < len(changes); {
		sum, next := changes[first], first+1
		for ; next < len(changes) && changes[next].node == sum.node && changes[next].Attachment.compare(sum.Attachment) == 0; next++ {
			sum.Uses += changes[next].Uses
			sum.Attachments += changes[next].Attachments
		}
		if sum.Uses != 0 || sum.Attachments != 0 {
			changes[n] = sum
			n++
		}
		first = next
	}
	return changes[:n]
}

// Attached returns what is attached to a node, by driver and handle: the volumes of its pods, and those that VolumeAttachments tell of. It
// is good until the next delta, and nobody may change it.
func (s *State) Attached(node NodeIndex) []Attachment {
	if node < 0 || int(node) >= len(s.volumes.attached) {
		return nil
	}
	return s.volumes.attached[node]
}

// AttachedOf returns what of Attached is a driver's.
func (s *State) AttachedOf(node NodeIndex, driver string) []Attachment {
	all := s.Attached(node)
	first, _ := slices.BinarySearchFunc(all, driver, func(a Attachment, driver string) int { return cmp.Compare(a.Driver, driver) })
	end, _ := slices.BinarySearchFunc(all, driver, func(a Attachment, driver string) int {
		if a.Driver <= driver {
			return -1
		}
		return 1
	})
	return all[first:end]
}

// changeAttached makes changes of what is attached, which are in no order. Mark says that the nodes count as changed, of which something
// has.
func (s *State) changeAttached(changes []attachmentChange, mark bool) {
	changes = coalesce(changes)
	for first := 0; first < len(changes); {
		node, next := changes[first].node, first+1
		for next < len(changes) && changes[next].node == node {
			next++
		}
		s.changeAttachedTo(node, changes[first:next])
		if mark {
			s.touch(node)
		}
		first = next
	}
}

// changeAttachedTo makes the changes of a node, which are in order.
func (s *State) changeAttachedTo(node NodeIndex, changes []attachmentChange) {
	v := &s.volumes
	if c := &changes[0]; c.Driver == "" {
		if v.failing[node] += c.Uses; v.failing[node] == 0 {
			delete(v.failing, node)
		}
		changes = changes[1:]
	}
	if len(changes) == 0 {
		return
	}
	if missing := int(node) + 1 - len(v.attached); missing > 0 {
		v.attached = append(v.attached, make([][]Attachment, missing)...)
	}
	all, fresh, emptied := v.attached[node], changes[:0], false
	for _, c := range changes {
		k, found := slices.BinarySearchFunc(all, c.Attachment, Attachment.compare)
		if !found {
			s.countNodes(&c.Attachment, 0)
			fresh = append(fresh, c)
			continue
		}
		a := &all[k]
		before := a.Uses
		a.Uses += c.Uses
		a.Attachments += c.Attachments
		s.countNodes(a, before)
		emptied = emptied || a.Uses == 0 && a.Attachments == 0
	}
	if emptied {
		all = slices.DeleteFunc(all, func(a Attachment) bool { return a.Uses == 0 && a.Attachments == 0 })
		if cap(all) > 2*len(all)+fewest {
			all = slices.Clone(all)
		}
	}
	if all = withFresh(all, fresh); len(all) == 0 {
		all = nil
	}
	v.attached[node] = all
}

// withFresh adds what is not there yet. Both are in order.
func withFresh(all []Attachment, fresh []attachmentChange) []Attachment {
	k, to := len(all)-1, len(all)+len(fresh)-1
	all = append(all, make([]Attachment, len(fresh))...)
	for j := len(fresh) - 1; j >= 0; to-- {
		if k >= 0 && all[k].compare(fresh[j].Attachment) > 0 {
			all[to] = all[k]
			k--
		} else {
			all[to] = fresh[j].Attachment
			j--
		}
	}
	return all
}

// enterNode counts the VolumeAttachments to a node that is there now, before there are pods on it.
func (s *State) enterNode(i NodeIndex) {
	var changes []attachmentChange
	for _, name := range s.volumes.on.of(s.Nodes.Spec[i].Name) {
		changes = s.appendAttachment(changes, name, 1)
	}
	s.changeAttached(changes, false)
}

// leaveNode undoes enterNode, when all pods have left the node.
func (s *State) leaveNode(i NodeIndex) {
	if int(i) < len(s.volumes.attached) {
		s.volumes.attached[i] = nil
	}
}

// appendAttachment appends what a VolumeAttachment tells of.
func (s *State) appendAttachment(to []attachmentChange, name string, sign int32) []attachmentChange {
	a := ObjectAt[*VolumeAttachment](s, ObjectKey{VolumeAttachmentKind, "", name})
	if a == nil || a.Attacher == "" || a.Volume == "" {
		return to
	}
	node, volume := s.Nodes.ByName(a.Node), s.PersistentVolume(a.Volume)
	if node == NoNode || volume == nil || !volume.csi() {
		return to
	}
	return append(to, attachmentChange{node, Attachment{a.Attacher, volume.Handle, 0, sign}})
}

func (s *State) findAttachmentBy(key ObjectKey, on, of func(key, name string)) {
	if a := ObjectAt[*VolumeAttachment](s, key); a != nil {
		on(a.Node, key.Name)
		of(a.Volume, key.Name)
	}
}
