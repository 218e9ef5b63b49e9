package oracle

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// What kube-controller-manager's controller of volumes does in a sequence, and an external provisioner. Claims are looked at one by one, while Berth goes on:
// each look makes one write, which is told as any other, so that Berth sees volumes and claims in each state between.

// lookCases are what has to come of claims in many sequences, see script.looks.
var lookCases = []string{
	"claims are half bound", "claims lose their volume", "claims that do not wait are bound", "claims that wait are bound to what is kept for them",
	"claims are bound to what was made for their node", "volumes cannot be made for the node",
}

// concern has the controller look at what an object is about, or was; the lock is held. Without s.controls, it looks only at what Berth has written, and at
// claims whose volume is gone.
func (s *script) concern(o metav1.Object, gone bool) {
	switch o := o.(type) {
	case *v1.PersistentVolumeClaim:
		if s.controls && !gone {
			s.lookAt(claimKey(o.Namespace, o.Name))
		}
		for _, v := range s.volumes() {
			if to := v.Spec.ClaimRef; s.controls && gone && to != nil && to.UID == o.UID && v.Status.Phase != v1.VolumeReleased {
				v = v.DeepCopy()
				v.Status.Phase = v1.VolumeReleased
				s.put(v)
			}
		}
	case *v1.PersistentVolume:
		for key, of := range s.there {
			claim, ok := of.(*v1.PersistentVolumeClaim)
			if !ok {
				continue
			}
			if claim.Spec.VolumeName == o.Name && (s.controls || gone) || s.controls && !gone && claim.Spec.VolumeName == "" && s.mayGet(claim, o) {
				s.lookAt(key)
			}
		}
	}
}

// mayGet reports whether the controller may bind a claim that has no volume to one; the lock is held.
func (s *script) mayGet(claim *v1.PersistentVolumeClaim, v *v1.PersistentVolume) bool {
	if v.Spec.ClaimRef == nil {
		return !s.waits(claim)
	}
	return volume.IsVolumeBoundToClaim(v, claim)
}

// lookAt has the controller look at a claim; the lock is held.
func (s *script) lookAt(claim cluster.ObjectKey) {
	if !slices.Contains(s.due, claim) {
		s.due = append(s.due, claim)
	}
}

// control has the controller look at claims until it has written something about one.
func (s *script) control() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.due) > 0 {
		key := s.due[0]
		s.due = s.due[1:]
		if s.controlClaim(key) {
			return
		}
	}
}

// controlClaim has the controller look at a claim, and reports whether it has written something; the lock is held.
func (s *script) controlClaim(key cluster.ObjectKey) bool {
	claim, _ := s.there[key].(*v1.PersistentVolumeClaim)
	if claim == nil || claim.DeletionTimestamp != nil || claim.Status.Phase == v1.ClaimLost {
		return false
	}
	changed := s.sync(claim.DeepCopy())
	if changed == nil {
		return false
	}
	s.put(changed)
	s.lookAt(key)
	if claim, ok := changed.(*v1.PersistentVolumeClaim); ok {
		_, selected := claim.Annotations[volume.AnnSelectedNode]
		switch {
		case claim.Status.Phase == v1.ClaimLost:
			s.looks = increment(s.looks, "claims lose their volume", 1)
		case claim.Spec.VolumeName == "":
			s.looks = increment(s.looks, "volumes cannot be made for the node", 1)
		case !metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted):
			s.looks = increment(s.looks, "claims are half bound", 1)
		case selected:
			s.looks = increment(s.looks, "claims are bound to what was made for their node", 1)
		case s.waits(claim):
			s.looks = increment(s.looks, "claims that wait are bound to what is kept for them", 1)
		default:
			s.looks = increment(s.looks, "claims that do not wait are bound", 1)
		}
	}
	return true
}

// waits reports whether the class of a claim is there and says that it waits for a consumer; the lock is held.
func (s *script) waits(claim *v1.PersistentVolumeClaim) bool {
	class := s.classOf(claim)
	return class != nil && class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

// classOf returns a claim's class, nil if it is not there; the lock is held.
func (s *script) classOf(claim *v1.PersistentVolumeClaim) *storagev1.StorageClass {
	class, _ := s.there[cluster.ObjectKey{Kind: cluster.StorageClassKind, Name: volume.GetPersistentVolumeClaimClass(claim)}].(*storagev1.StorageClass)
	return class
}

// sync returns what the controller writes next about a claim, nil if nothing; the lock is held. It may change the claim.
func (s *script) sync(claim *v1.PersistentVolumeClaim) metav1.Object {
	switch {
	case claim.Spec.VolumeName != "":
		v, _ := s.there[volumeKey(claim.Spec.VolumeName)].(*v1.PersistentVolume)
		bound := metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted)
		switch {
		case v == nil && !bound: // it may come yet
			return nil
		case v != nil && (v.Spec.ClaimRef == nil || volume.IsVolumeBoundToClaim(v, claim)):
			return s.bind(v.DeepCopy(), claim)
		case !bound: // it is somebody else's
			return nil
		}
		claim.Status.Phase = v1.ClaimLost
		return claim
	case metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted):
		claim.Status.Phase = v1.ClaimLost
		return claim
	}
	class, waits := s.classOf(claim), s.waits(claim)
	v, err := volume.FindMatchingVolume(claim, s.volumes(), nil, nil, waits, true)
	if err != nil {
		return nil // its selector cannot be parsed
	}
	if v != nil {
		return s.bind(v.DeepCopy(), claim)
	}
	node, selected := claim.Annotations[volume.AnnSelectedNode]
	if class == nil || class.Provisioner == volume.NotSupportedProvisioner || waits && (!selected || node == "") {
		return nil
	}
	return s.provision(claim)
}

// bind returns the next write that binds a claim and a volume, of copies of them; nil if they are bound. The volume is the claim's first, and then Bound; then
// the claim knows its volume, and last that this is complete, which the real controller writes at once.
func (s *script) bind(v *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) metav1.Object {
	switch to := v.Spec.ClaimRef; {
	case to == nil || to.UID == "":
		v.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
		return v
	case v.Status.Phase != v1.VolumeBound:
		v.Status.Phase = v1.VolumeBound
		return v
	case claim.Spec.VolumeName == "":
		claim.Spec.VolumeName = v.Name
		return claim
	case !metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted) || claim.Status.Phase != v1.ClaimBound:
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnBindCompleted, "yes")
		claim.Status.Phase = v1.ClaimBound
		return claim
	}
	return nil
}

// provision returns the volume that is made for a claim, which is bound to it next. Every fifth that is to be made for a node is not: the claim loses its node.
func (s *script) provision(claim *v1.PersistentVolumeClaim) metav1.Object {
	if _, selected := claim.Annotations[volume.AnnSelectedNode]; selected {
		if s.provisioned++; s.provisioned%5 == 0 {
			delete(claim.Annotations, volume.AnnSelectedNode)
			return claim
		}
	}
	s.made++
	v := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("provisioned-", s.made)}, Status: v1.PersistentVolumeStatus{Phase: v1.VolumePending}}
	v.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: claim.Spec.Resources.Requests[v1.ResourceStorage]}
	v.Spec.AccessModes, v.Spec.StorageClassName = claim.Spec.AccessModes, volume.GetPersistentVolumeClaimClass(claim)
	v.Spec.VolumeMode, v.Spec.VolumeAttributesClassName = claim.Spec.VolumeMode, claim.Spec.VolumeAttributesClassName
	v.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: csiDrivers[0], VolumeHandle: v.Name}
	v.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
	return v
}

// volumes returns the PersistentVolumes there are, by name; the lock is held.
func (s *script) volumes() (out []*v1.PersistentVolume) {
	byName := make(map[string]*v1.PersistentVolume)
	for _, o := range s.there {
		if v, ok := o.(*v1.PersistentVolume); ok {
			byName[v.Name] = v
		}
	}
	for _, name := range sortedKeys(byName) {
		out = append(out, byName[name])
	}
	return out
}
