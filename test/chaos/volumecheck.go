package main

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"
)

// This file has what a history must not show of volumes and claims.

// chosen is what has been chosen for a claim: a volume, or a node for which one is to be made.
type chosen struct{ claim, volume, node string }

// claimVersion is a claim as it was from some time on; nil if there was none.
type claimVersion struct {
	from  Micros
	claim *corev1.PersistentVolumeClaim
}

// volumesState is what a history tells of volumes and claims.
type volumesState struct {
	stored
	chosen map[chosen]bool                             // what was recorded in etcd
	made   map[types.UID]*corev1.PersistentVolume      // of each claim, the volume that it had last
	was    map[string][]claimVersion                   // by namespace and name
	uids   map[types.UID]*corev1.PersistentVolumeClaim // those that are there
}

func newVolumesState() volumesState {
	return volumesState{
		stored: newStored(nil, nil), chosen: map[chosen]bool{},
		made: map[types.UID]*corev1.PersistentVolume{}, was: map[string][]claimVersion{}, uids: map[types.UID]*corev1.PersistentVolumeClaim{},
	}
}

// record notes what an intent says was chosen.
func (s *volumesState) record(in []string) {
	for of := in[min(4, len(in)):]; len(of) >= 3; of = of[3:] {
		c := chosen{claim: of[1], volume: of[2]}
		if c.volume == "" {
			c.node = in[3]
		}
		s.chosen[c] = true
	}
}

// claimant returns the uid of the claim that a volume is for, "" if it is nobody's.
func claimantOf(v *corev1.PersistentVolume) types.UID {
	if v == nil || v.Spec.ClaimRef == nil {
		return ""
	}
	return v.Spec.ClaimRef.UID
}

// volume judges a change of a volume.
func (c *checker) volume(at Micros, o *Object) {
	s := &c.volumes
	before, now := s.stored.volumes[o.Name], o.Volume
	if o.Deleted {
		delete(s.stored.volumes, o.Name)
		return
	}
	s.stored.volumes[o.Name] = now
	if before != nil && before.UID != now.UID {
		before = nil // it went, and another one came
	}
	was, is := claimantOf(before), claimantOf(now)
	if was == is {
		return
	}
	if was != "" && is != "" {
		c.report(RulePromise, at, "volume %s was claim %s's, and is claim %s's at resource version %d", o.Name, c.claimName(was), c.claimName(is), o.Revision)
	} else if claim := s.uids[was]; was != "" && claim != nil && (claim.Spec.VolumeName == "" || claim.Spec.VolumeName == o.Name) {
		c.report(RulePromise, at, "volume %s was taken from claim %s, which has no other, at resource version %d", o.Name, c.claimName(was), o.Revision)
	}
	if is == "" {
		return
	}
	s.made[is] = now
	// A claim that is not bound yet may get another volume than one that is being deleted, which is never bound to it.
	goes := func(v *corev1.PersistentVolume) bool {
		claim := s.uids[is]
		return v.DeletionTimestamp != nil && (claim == nil || claim.Spec.VolumeName != v.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(s.stored.volumes)) {
		if other := s.stored.volumes[name]; name != o.Name && claimantOf(other) == is && !goes(other) {
			c.report(RulePromise, at, "claim %s has volume %s, and gets volume %s at resource version %d", c.claimName(is), name, o.Name, o.Revision)
		}
	}
	// Whoever makes a volume for a claim was asked to, which is judged of the claim.
	if before != nil && c.mode.Source != sourceLocal && !s.chosen[chosen{claim: string(is), volume: o.Name}] {
		c.report(RuleUnrecorded, at, "volume %s was given to claim %s at resource version %d; etcd has never had such an intent", o.Name, c.claimName(is), o.Revision)
	}
}

// claim judges a change of a claim.
func (c *checker) claim(at Micros, o *Object) {
	s := &c.volumes
	before, now := s.claims[o.Name], o.Claim
	if before != nil && (o.Deleted || before.UID != now.UID) {
		delete(s.uids, before.UID)
		before = nil
	}
	if o.Deleted {
		delete(s.claims, o.Name)
		s.was[o.Name] = append(s.was[o.Name], claimVersion{from: at})
		return
	}
	s.claims[o.Name], s.uids[now.UID] = now, now
	s.was[o.Name] = append(s.was[o.Name], claimVersion{at, now})
	var had, node string
	if before != nil {
		had, node = before.Spec.VolumeName, before.Annotations[volume.AnnSelectedNode]
	}
	if had != "" && had != now.Spec.VolumeName {
		c.report(RulePromise, at, "claim %s was bound to volume %s, and is bound to %q at resource version %d", o.Name, had, now.Spec.VolumeName, o.Revision)
	}
	switch selected := now.Annotations[volume.AnnSelectedNode]; {
	case selected == "" || selected == node:
	case node != "":
		c.report(RulePromise, at, "a volume for claim %s was to be made for node %s, and is to be made for %s at resource version %d", o.Name, node, selected, o.Revision)
	case !s.chosen[chosen{claim: string(now.UID), node: selected}]:
		c.report(RuleUnrecorded, at, "a volume for claim %s is to be made for node %s at resource version %d; etcd has never had such an intent", o.Name, selected, o.Revision)
	}
}

// claimName returns the name of a claim, or its uid if it has gone.
func (c *checker) claimName(uid types.UID) string {
	if claim := c.volumes.uids[uid]; claim != nil {
		return claim.Namespace + "/" + claim.Name
	}
	return string(uid)
}

// claimed judges a pod that has been bound to a node: its claims were bound then, to volumes that can be reached from there. Of claims that go, word may be late.
func (c *checker) claimed(at Micros, revision int64, p *podState, known Micros, n *nodeState) {
	s := &c.volumes
	node := n.versions[len(n.versions)-1].node
	for _, name := range claimNames(p.pod) {
		versions := s.was[p.pod.Namespace+"/"+name]
		why, good := "it does not exist", false
		for i := len(versions) - 1; i >= 0 && !good; i-- {
			now := s.unfit(versions[i].claim, node)
			if good = now == ""; i == len(versions)-1 {
				why = now
			}
			if versions[i].from < known {
				break // those before it were too old
			}
		}
		if !good {
			c.report(RuleClaimed, at, "pod %s was bound to %s at resource version %d, but of its claim %s: %s", p.name, p.pod.Spec.NodeName, revision, name, why)
		}
	}
}

// unfit says why a pod that uses a claim cannot be on a node.
func (s *volumesState) unfit(claim *corev1.PersistentVolumeClaim, node *corev1.Node) string {
	switch {
	case claim == nil:
		return "it does not exist"
	case !isBound(claim):
		return "it is not bound"
	case node == nil:
		return ""
	}
	v := s.made[claim.UID]
	switch {
	case v == nil || v.Name != claim.Spec.VolumeName:
		return "its volume " + claim.Spec.VolumeName + " is not its"
	case volume.CheckNodeAffinity(v, node.Labels) != nil:
		return "its volume " + v.Name + " cannot be reached from there"
	}
	return ""
}
