package cluster

import (
	"fmt"
	"slices"
)

// volumeUse is who uses a volume.
type volumeUse struct {
	nodes    int32 // how many there are on which pods use it
	nominees int32 // how many pods use it that are nominated to a node
	since    Seq   // since when somebody does
}

// PodVolumes is what a pod uses where there is a CSINode: its volumes, by driver and handle, with Uses only, and how many others are such that
// an attempt of kube-scheduler that has to count them ends with an error; see UncountedOn.
type PodVolumes struct {
	Uses    []Attachment
	Failing int
}

// PodVolumes returns what pods of a class and a label set use. Both may be nil.
func (s *State) PodVolumes(class *Class, labels *Labels) *PodVolumes {
	out := new(PodVolumes)
	for _, c := range coalesce(s.appendUses(nil, NoNode, class, labels, true, 1)) {
		if c.Driver == "" {
			out.Failing = int(c.Uses)
		} else {
			out.Uses = append(out.Uses, c.Attachment)
		}
	}
	return out
}

// appendUses appends how often pods of a class and a label set use each volume.
func (s *State) appendUses(to []attachmentChange, node NodeIndex, class *Class, labels *Labels, csiNode bool, sign int32) []attachmentChange {
	if labels != nil {
		for _, by := range labels.Claims {
			is := s.claim(labels.Namespace, by.Name)
			to = is.appendUse(to, node, by, csiNode, sign)
		}
	}
	if class != nil && csiNode {
		for k := range class.Spec.Disks {
			switch m := &class.Spec.Disks[k].Migration; {
			case m.Error != "":
				to = append(to, attachmentChange{node, Attachment{Uses: sign}})
			case m.Driver != "":
				to = append(to, attachmentChange{node, Attachment{m.Driver, m.Handle, sign, 0}})
			}
		}
	}
	return to
}

func (is *claimState) appendUse(to []attachmentChange, node NodeIndex, by PodClaim, csiNode bool, sign int32) []attachmentChange {
	driver, handle, fails := is.counts(by, csiNode)
	switch {
	case fails:
		return append(to, attachmentChange{node, Attachment{Uses: sign}})
	case driver == "":
		return to
	}
	return append(to, attachmentChange{node, Attachment{driver, handle, sign, 0}})
}

// VolumeUsers returns on how many nodes pods use a volume, and how many pods do that are nominated to a node, and since when somebody has, if
// anybody does. If nobody does, it is new wherever a pod goes that uses it.
func (s *State) VolumeUsers(driver, handle string) (nodes, nominees int, since Seq) {
	if u := s.volumes.used[[2]string{driver, handle}]; u != nil {
		return int(u.nodes), int(u.nominees), u.since
	}
	return 0, 0, 0
}

// Uncounted returns how many volumes of the pods of a node are such as UncountedOn tells of.
func (s *State) Uncounted(node NodeIndex) int { return int(s.volumes.failing[node]) }

// UncountedOn returns the error with which an attempt of kube-scheduler ends that counts what the pods of a node use, "" if there is none.
// Of several it is that of the pod with the least id.
func (s *State) UncountedOn(node NodeIndex) string {
	if s.volumes.failing[node] == 0 {
		return ""
	}
	csiNode := s.CSINode(s.Nodes.Spec[node].Name) != nil
	first, why := NoPod, ""
	for id, p := range s.PodsOn(node) {
		if first == NoPod || id < first {
			if text := s.failure(p, csiNode); text != "" {
				first, why = id, text
			}
		}
	}
	return why
}

// failure returns the error of which UncountedOn tells for one pod, "" if there is none.
func (s *State) failure(p *PodRow, csiNode bool) string {
	if l := s.labels[p.Labels]; l != nil {
		for _, by := range l.Claims {
			is := s.claim(l.Namespace, by.Name)
			switch _, _, fails := is.counts(by, csiNode); {
			case fails && by.Name == "":
				return "PersistentVolumeClaim had no name"
			case fails:
				return fmt.Sprintf("PVC %s/%s was not created for pod %s/%s (pod is not owner)", l.Namespace, by.Name, p.Namespace, p.Name)
			}
		}
	}
	for _, d := range s.classes[p.Class].Spec.Disks {
		if csiNode && d.Migration.Error != "" {
			return d.Migration.Error
		}
	}
	return ""
}

// NomineeVolumes returns what a pending pod with claims or disks would use that is nominated to a node, which need not exist; nil for all other
// pods. The node counts as changed when that changes. Nobody may change it.
func (s *State) NomineeVolumes(id PodID) *PodVolumes { return s.volumes.nominees[id] }

// nominateVolumes counts what a pod with claims or disks would use that is nominated from here on.
func (s *State) nominateVolumes(id PodID) {
	p := &s.pods[id]
	class, labels := s.classes[p.Class], s.labels[p.Labels]
	if labels != nil {
		for _, by := range labels.Claims {
			s.useClaim(claimKey{labels.Namespace, by.Name}).nominees.add(id)
		}
	}
	s.setNominee(id, s.PodVolumes(class, labels))
}

// unnominateVolumes undoes nominateVolumes.
func (s *State) unnominateVolumes(id PodID) {
	if labels := s.labels[s.pods[id].Labels]; labels != nil {
		for _, by := range labels.Claims {
			key := claimKey{labels.Namespace, by.Name}
			if claim := s.volumes.claims[key]; claim != nil { // nil: the pod names it twice
				claim.nominees.remove(id)
				s.dropUnused(key, claim)
			}
		}
	}
	s.setNominee(id, nil)
}

// setNominee makes a nominated pod use that; nil: it is none. What it used before, and does then, counts as it did.
func (s *State) setNominee(id PodID, is *PodVolumes) {
	was := s.volumes.nominees[id]
	if is != nil {
		s.volumes.nominees[id] = is
	} else {
		delete(s.volumes.nominees, id)
	}
	s.countNominee(is, was, 1)
	s.countNominee(was, is, -1)
}

// countNominee counts so many more nominees that use each of some volumes, but for those of others.
func (s *State) countNominee(of, but *PodVolumes, n int32) {
	if of == nil {
		return
	}
	for k := range of.Uses {
		u := &of.Uses[k]
		if but == nil || !slices.ContainsFunc(but.Uses, func(other Attachment) bool { return other.Driver == u.Driver && other.Handle == u.Handle }) {
			s.countUse(u, 0, n)
		}
	}
}

// enterVolumes counts the volumes of a pod that comes to a node.
func (s *State) enterVolumes(id PodID, i NodeIndex) {
	p := &s.pods[id]
	if l := s.labels[p.Labels]; l != nil {
		for _, by := range l.Claims {
			claim := s.useClaim(claimKey{l.Namespace, by.Name})
			if !by.Ephemeral {
				if claim.named.add(id) {
					s.volumes.modified = s.version.Seq
				}
			} else {
				claim.made.add(id)
			}
		}
	}
	s.addUses(p, i, 1)
}

// leaveVolumes undoes enterVolumes.
func (s *State) leaveVolumes(id PodID, i NodeIndex) {
	p := &s.pods[id]
	s.addUses(p, i, -1)
	l := s.labels[p.Labels]
	if l == nil {
		return
	}
	for _, by := range l.Claims {
		key := claimKey{l.Namespace, by.Name}
		claim := s.volumes.claims[key]
		if claim == nil {
			continue // the pod names it twice
		}
		if !by.Ephemeral {
			if claim.named.remove(id) {
				s.volumes.modified = s.version.Seq
			}
		} else {
			claim.made.remove(id)
		}
		s.dropUnused(key, claim)
	}
}

// mostChanges bounds the room for changes that is kept.
const mostChanges = 1 << 10

// addUses adds what a pod uses to what is attached to its node, which the caller marks as changed.
func (s *State) addUses(p *PodRow, i NodeIndex, sign int32) {
	csiNode := s.CSINode(s.Nodes.Spec[i].Name) != nil
	changes := s.appendUses(s.volumes.changes[:0], i, s.classes[p.Class], s.labels[p.Labels], csiNode, sign)
	s.changeAttached(changes, false)
	if cap(changes) <= mostChanges {
		clear(changes) // so that it keeps no texts
		s.volumes.changes = changes[:0]
	}
}

// countNodes counts the nodes on which pods use a volume: this one's did so often before.
func (s *State) countNodes(now *Attachment, before int32) {
	switch {
	case (now.Uses > 0) == (before > 0):
	case now.Uses > 0:
		s.countUse(now, 1, 0)
	default:
		s.countUse(now, -1, 0)
	}
}

// countUse counts so many more nodes and nominees that use a volume.
func (s *State) countUse(of *Attachment, nodes, nominees int32) {
	key := [2]string{of.Driver, of.Handle}
	s.volumes.modified = s.version.Seq
	u := s.volumes.used[key]
	if u == nil {
		u = &volumeUse{since: s.version.Seq}
		s.volumes.used[key] = u
	}
	u.nodes += nodes
	u.nominees += nominees
	if u.nodes == 0 && u.nominees == 0 {
		delete(s.volumes.used, key)
	}
}

// recountNominee finds out again what a nominated pod would use.
func (s *State) recountNominee(id PodID) {
	p := &s.pods[id]
	was, is := s.volumes.nominees[id], s.PodVolumes(s.classes[p.Class], s.labels[p.Labels])
	if was.Failing != is.Failing || !slices.Equal(was.Uses, is.Uses) {
		s.setNominee(id, is)
		s.touchNamed(p.Nominated)
	}
}
