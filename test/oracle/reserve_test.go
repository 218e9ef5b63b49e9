package oracle

import (
	"context"
	"fmt"
	"slices"

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

// BindVolumes writes what has been chosen for claims, and has the controller of volumes look at these. It is done when Berth has been told.
func (s *script) BindVolumes(ctx context.Context, _ coord.Cond, b source.VolumeBinding) source.Outcome {
	s.mu.Lock()
	var err error
	for _, c := range b.Choices {
		if b.Void {
			break // nothing is late here
		}
		if err = s.writeChoice(b, c); err != nil {
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

// writeChoice writes what has been chosen for a claim, unless it is written, as kube-scheduler does: the claim into its volume, or the node that one is to be
// provisioned for; the lock is held.
func (s *script) writeChoice(b source.VolumeBinding, c cluster.VolumeChoice) error {
	key := claimKey(b.Namespace, c.Claim)
	claim, _ := s.there[key].(*v1.PersistentVolumeClaim)
	if claim == nil || string(claim.UID) != c.UID {
		return fmt.Errorf("persistentvolumeclaim %q not found", c.Claim)
	}
	if c.Volume == "" {
		node, selected := claim.Annotations[volume.AnnSelectedNode]
		switch {
		case selected && node == b.Node:
		case b.Written:
			return fmt.Errorf("provisioning failed for PVC %q", c.Claim)
		case selected && node != "":
			return fmt.Errorf("a volume is to be provisioned for claim %q on node %q", c.Claim, node)
		case claim.Spec.VolumeName != "":
			return fmt.Errorf("claim %q is bound to %q", c.Claim, claim.Spec.VolumeName)
		default:
			claim = claim.DeepCopy()
			metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnSelectedNode, b.Node)
			s.put(claim)
		}
		s.lookAt(key)
		return nil
	}
	v, _ := s.there[volumeKey(c.Volume)].(*v1.PersistentVolume)
	if v == nil {
		return fmt.Errorf("persistentvolume %q not found", c.Volume)
	}
	switch to := v.Spec.ClaimRef; {
	case to != nil && !volume.IsVolumeBoundToClaim(v, claim):
		return fmt.Errorf("volume %q is bound to claim %q", v.Name, to.Name)
	case to != nil && to.UID != "":
	case b.Written:
		return fmt.Errorf("ClaimRef got reset for pv %q", v.Name)
	case claim.Spec.VolumeName != "" && claim.Spec.VolumeName != v.Name:
		return fmt.Errorf("claim %q is bound to %q", c.Claim, claim.Spec.VolumeName)
	default:
		v = v.DeepCopy()
		v.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: b.Namespace, Name: c.Claim, UID: claim.UID}
		s.put(v)
	}
	s.lookAt(key)
	return nil
}

// promised are what has been chosen for the claims of assumed pods.
type promised struct {
	choices map[cluster.PodID][]cluster.VolumeChoice
	nodes   map[cluster.PodID]string
	pods    map[cluster.PodID]string // their namespaces
}

// shares reports whether a volume has been chosen for a claim of a pending pod, as another pod uses it too.
func (r *replay) shares(pod *v1.Pod) bool {
	for id, choices := range r.promised.choices {
		for _, c := range choices {
			if c.Volume != "" && r.promised.pods[id] == pod.Namespace && slices.ContainsFunc(pod.Spec.Volumes, func(v v1.Volume) bool {
				return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == c.Claim
			}) {
				return true
			}
		}
	}
	return false
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
