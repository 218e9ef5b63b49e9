package oracle

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
)

func volumeKey(name string) cluster.ObjectKey {
	return cluster.ObjectKey{Kind: cluster.PersistentVolumeKind, Name: name}
}

func claimKey(namespace, name string) cluster.ObjectKey {
	return cluster.ObjectKey{Kind: cluster.PersistentVolumeClaimKind, Namespace: namespace, Name: name}
}

// BindVolumes writes what has been chosen for claims, and binds these, as the controllers of volumes do. Every fifth volume that is to be provisioned
// is not: the claim loses its node.
func (s *script) BindVolumes(ctx context.Context, _ coord.Cond, b source.VolumeBinding) source.Outcome {
	s.mu.Lock()
	var err error
	for _, c := range b.Choices {
		if b.Void {
			break // nothing is late here
		}
		if err = s.bindClaim(b, c); err != nil {
			break
		}
	}
	last := len(s.events)
	for s.told < last {
		further := s.further
		s.mu.Unlock()
		select {
		case <-further:
		case <-ctx.Done():
			return source.Outcome{Result: source.BindUnknown, Err: ctx.Err()}
		}
		s.mu.Lock()
	}
	s.mu.Unlock()
	if err != nil {
		return source.Outcome{Result: source.BindRefused, Err: err}
	}
	return source.Outcome{Result: source.BindDone}
}

// bindClaim writes what has been chosen for a claim, and what follows of that; the lock is held.
func (s *script) bindClaim(b source.VolumeBinding, c cluster.VolumeChoice) error {
	claim, _ := s.there[claimKey(b.Namespace, c.Claim)].(*v1.PersistentVolumeClaim)
	if claim == nil || string(claim.UID) != c.UID {
		return fmt.Errorf("persistentvolumeclaim %q not found", c.Claim)
	}
	claim = claim.DeepCopy()
	var v *v1.PersistentVolume
	if c.Volume != "" {
		if v, _ = s.there[volumeKey(c.Volume)].(*v1.PersistentVolume); v == nil {
			return fmt.Errorf("persistentvolume %q not found", c.Volume)
		}
		if to := v.Spec.ClaimRef; to != nil && (to.Namespace != b.Namespace || to.Name != c.Claim || to.UID != "" && to.UID != claim.UID) {
			return fmt.Errorf("volume %q is bound to claim %q", v.Name, to.Name)
		}
		if claim.Spec.VolumeName != "" && claim.Spec.VolumeName != v.Name {
			return fmt.Errorf("claim %q is bound to %q", c.Claim, claim.Spec.VolumeName)
		}
		v = v.DeepCopy()
	} else {
		if claim.Spec.VolumeName != "" {
			return fmt.Errorf("claim %q is bound to %q", c.Claim, claim.Spec.VolumeName)
		}
		selected := claim.DeepCopy()
		metav1.SetMetaDataAnnotation(&selected.ObjectMeta, volume.AnnSelectedNode, b.Node)
		s.put(selected)
		if s.provisioned++; s.provisioned%5 == 0 {
			delete(claim.Annotations, volume.AnnSelectedNode)
			s.put(claim)
			return nil
		}
		claim = selected.DeepCopy()
		v = &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("provisioned-", s.provisioned)}}
		v.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: claim.Spec.Resources.Requests[v1.ResourceStorage]}
		v.Spec.AccessModes, v.Spec.StorageClassName = claim.Spec.AccessModes, volume.GetPersistentVolumeClaimClass(claim)
		v.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: csiDrivers[0], VolumeHandle: v.Name}
	}
	v.Spec.ClaimRef = &v1.ObjectReference{Namespace: b.Namespace, Name: c.Claim, UID: claim.UID}
	v.Status.Phase = v1.VolumeBound
	s.put(v)
	claim.Spec.VolumeName, claim.Status.Phase = v.Name, v1.ClaimBound
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnBindCompleted, "yes")
	s.put(claim)
	return nil
}

// promised are what has been chosen for the claims of assumed pods.
type promised struct {
	choices map[cluster.PodID][]cluster.VolumeChoice
	nodes   map[cluster.PodID]string
	pods    map[cluster.PodID]string // their namespaces
}

// reserve plays what kube-scheduler's Reserve does with what Berth has chosen: from here on the plugins see the volumes and the claims as they will be.
func (r *replay) reserve(id cluster.PodID, namespace, node string, choices []cluster.VolumeChoice) {
	if len(choices) == 0 {
		return
	}
	r.n.reserved++
	r.promised.choices[id], r.promised.nodes[id], r.promised.pods[id] = choices, node, namespace
	r.seeAgain(id)
}

// unreserve plays that a pod is not assumed any more.
func (r *replay) unreserve(id cluster.PodID) {
	if choices := r.promised.choices[id]; len(choices) > 0 {
		namespace := r.promised.pods[id]
		delete(r.promised.choices, id)
		for _, c := range choices {
			r.see(claimKey(namespace, c.Claim))
			r.see(volumeKey(c.Volume))
		}
	}
}

// seeAgain has the plugins see what a pod's claims get.
func (r *replay) seeAgain(id cluster.PodID) {
	for _, c := range r.promised.choices[id] {
		r.see(claimKey(r.promised.pods[id], c.Claim))
		r.see(volumeKey(c.Volume))
	}
}

// see has kube-scheduler's plugins see an object as it is told, but for what has been chosen.
func (r *replay) see(key cluster.ObjectKey) {
	o := r.objects.kept[key]
	if o == nil {
		return
	}
	for id, choices := range r.promised.choices {
		for _, c := range choices {
			switch is := o.(type) {
			case *v1.PersistentVolume:
				if c.Volume == is.Name && (is.Spec.ClaimRef == nil || is.Spec.ClaimRef.UID == "") {
					is = is.DeepCopy()
					is.Spec.ClaimRef = &v1.ObjectReference{Namespace: r.promised.pods[id], Name: c.Claim, UID: types.UID(c.UID)}
					o = is
				}
			case *v1.PersistentVolumeClaim:
				if c.Volume == "" && c.Claim == is.Name && r.promised.pods[id] == is.Namespace && c.UID == string(is.UID) && is.Spec.VolumeName == "" {
					is = is.DeepCopy()
					metav1.SetMetaDataAnnotation(&is.ObjectMeta, volume.AnnSelectedNode, r.promised.nodes[id])
					o = is
				}
			}
		}
	}
	r.kube.must("see "+key.Kind.String(), r.kube.kept(key.Kind).Update(o))
}
