package cluster

import (
	"cmp"
	"fmt"
	"iter"
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
	failing  map[NodeIndex]int32      // how many volumes of a node's pods fail; see State.Uses
	used     map[[2]string]*volumeUse // those that pods use which are on nodes or nominated to one, by driver and handle
	modified Seq                      // see VolumeUsesModified
	nominees map[PodID]*PodVolumes    // see VolumeNominees
	changes  []attachmentChange       // room for those of one pod
}

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

// attachmentChange is more or less of something on a node. That of no driver is about how many volumes fail: as many as it has Uses.
type attachmentChange struct {
	node NodeIndex
	Attachment
}

func newVolumes() volumes {
	return volumes{
		claims: make(map[claimKey]*usedClaim), byVolume: make(fews[string, claimKey]), byClass: make(fews[string, claimKey]),
		on: make(fews[string, string]), of: make(fews[string, string]),
		failing: make(map[NodeIndex]int32), used: make(map[[2]string]*volumeUse), nominees: make(map[PodID]*PodVolumes),
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
	return c
}

// ClaimUsers returns how many pods use a claim by its name, not by an ephemeral volume: placed ones whose node is known, as the snapshot of
// kube-scheduler has no others.
func (s *State) ClaimUsers(namespace, name string) int {
	if claim := s.volumes.claims[claimKey{namespace, name}]; claim != nil {
		return len(claim.named.list)
	}
	return 0
}

// restore makes all uses ones since a seq.
func (v *volumes) restore(seq Seq) {
	v.modified = seq
	for _, u := range v.used {
		u.since = seq
	}
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

// VolumeObjectsModified returns the seq of the last delta that changed an object of a kind that volumes are made of.
func (s *State) VolumeObjectsModified() Seq {
	var last Seq
	for kind := PersistentVolumeKind; kind <= VolumeAttachmentKind; kind++ {
		last = max(last, s.ObjectsModified(kind))
	}
	return last
}

// VolumeUsesModified returns the seq of the last delta that changed what ClaimUsers or VolumeUsers returns for something.
func (s *State) VolumeUsesModified() Seq { return s.volumes.modified }

// VolumeNominees yields the pending pods with claims or disks that are nominated to a node, which need not exist, in no order.
func (s *State) VolumeNominees() iter.Seq[PodID] { return maps.Keys(s.volumes.nominees) }

// VolumeNomineeCount returns how many VolumeNominees yields.
func (s *State) VolumeNomineeCount() int { return len(s.volumes.nominees) }

// NomineeVolumes returns what one of VolumeNominees would use, nil for all other pods. The node that it is nominated to counts as changed when
// that changes. Nobody may change it.
func (s *State) NomineeVolumes(id PodID) *PodVolumes { return s.volumes.nominees[id] }

// VolumesModified returns the later one of VolumeObjectsModified and VolumeUsesModified.
func (s *State) VolumesModified() Seq { return max(s.VolumeObjectsModified(), s.VolumeUsesModified()) }

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

// setNominee makes a nominated pod use that; nil: it is none.
func (s *State) setNominee(id PodID, is *PodVolumes) {
	was := s.volumes.nominees[id]
	if is != nil {
		s.volumes.nominees[id] = is
		for k := range is.Uses {
			s.countUse(&is.Uses[k], 0, 1)
		}
	} else {
		delete(s.volumes.nominees, id)
	}
	if was != nil { // after the others, so that none of both begins to be used
		for k := range was.Uses {
			s.countUse(&was.Uses[k], 0, -1)
		}
	}
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
		change()
		for _, name := range attachments {
			changes = s.appendAttachment(changes, name, 1)
		}
		changes = s.changeClaims(changes, s.volumes.byVolume.of(key.Name))
	case PersistentVolumeClaimKind:
		change()
		changes = s.changeClaims(changes, []claimKey{{key.Namespace, key.Name}})
	case StorageClassKind:
		change()
		changes = s.changeClaims(changes, s.volumes.byClass.of(key.Name))
	case VolumeAttachmentKind:
		changes = s.appendAttachment(changes, key.Name, -1)
		s.findAttachmentBy(key, s.volumes.on.remove, s.volumes.of.remove)
		change()
		s.findAttachmentBy(key, s.volumes.on.add, s.volumes.of.add)
		changes = s.appendAttachment(changes, key.Name, 1)
	case CSINodeKind:
		s.changeCSINode(key, change)
	default:
		change()
	}
	s.changeAttached(changes, true)
}

func (s *State) findAttachmentBy(key ObjectKey, on, of func(key, name string)) {
	if a := ObjectAt[*VolumeAttachment](s, key); a != nil {
		on(a.Node, key.Name)
		of(a.Volume, key.Name)
	}
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

// recountNominee finds out again what a nominated pod would use.
func (s *State) recountNominee(id PodID) {
	p := &s.pods[id]
	was, is := s.volumes.nominees[id], s.PodVolumes(s.classes[p.Class], s.labels[p.Labels])
	if was.Failing != is.Failing || !slices.Equal(was.Uses, is.Uses) {
		s.setNominee(id, is)
		s.touchNamed(p.Nominated)
	}
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
