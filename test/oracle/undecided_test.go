package oracle

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// What Berth does not decide yet, or does otherwise. What is said here is counted apart, and nothing else is.
const (
	// undecidedForeign: kube-scheduler's attempt ends with an error that is about another pod, one that is on a node. Berth is not
	// stopped by it.
	undecidedForeign = "kube-scheduler is stopped by another pod"
	// undecidedAlike: kube-scheduler's attempt ends with an error where a pod of the same signature is nominated to a node. Berth finds another node for the pod.
	undecidedAlike = "kube-scheduler is stopped where a pod like it is nominated"
	// undecidedShared: a claim of the pod has been given a volume for another pod, which is not bound yet. Here the pod gets that one or goes nowhere; kube-scheduler
	// looks for another one where that cannot be reached from, or has one made. Only what differs for that is not compared.
	undecidedShared = "a volume has been chosen for a claim of the pod that another pod uses"
)

// built reports whether Berth has a plugin of kube-scheduler's.
func built(name string) bool {
	p := engine.PluginOf(name)
	return p == nil || !p.Unbuilt
}

// undecided says why kube-scheduler's decision about a pod is not compared, "" if it is.
func (u *upstream) undecided(pod *v1.Pod, want *decision) string {
	if want.failed != nil && want.foreign {
		return undecidedForeign
	}
	return ""
}

// alikeNominated reports whether another pending pod of the signature is nominated.
func (w *world) alikeNominated(id cluster.PodID) bool {
	signature := func(of cluster.PodID) engine.Signature {
		return w.evaluator.Signature(w.state, engine.SubjectOf(&w.state.Pod(of).Pod))
	}
	for other := range w.pending {
		if other != id && w.state.Pod(other).Nominated != "" && signature(other) == signature(id) {
			return true
		}
	}
	return false
}

// unbound reports whether a pod has a claim that kube-scheduler would bind.
func (u *upstream) unbound(pod *v1.Pod) bool {
	claims := u.informers.Core().V1().PersistentVolumeClaims().Lister()
	classes := u.informers.Storage().V1().StorageClasses().Lister()
	return slices.ContainsFunc(pod.Spec.Volumes, func(v v1.Volume) bool {
		name := ""
		switch {
		case v.PersistentVolumeClaim != nil:
			name = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			name = ephemeral.VolumeClaimName(pod, &v)
		}
		claim, err := claims.PersistentVolumeClaims(pod.Namespace).Get(name)
		if err != nil || claim.Spec.VolumeName != "" {
			return false
		}
		class, err := classes.Get(volume.GetPersistentVolumeClaimClass(claim))
		return err == nil && class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
	})
}
