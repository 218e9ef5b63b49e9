package oracle

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"github.com/berth-scheduler/berth/internal/engine"
)

// What Berth does not decide yet. What is said here is counted apart, and nothing else is.
const (
	// undecidedUnbound: kube-scheduler would bind a claim of the pod, and looks for a volume on each node. Berth refuses the pod.
	undecidedUnbound = "a claim waits for a consumer"
	// undecidedForeign: kube-scheduler's attempt ends with an error that is about another pod, one that is on a node. Berth is not
	// stopped by it.
	undecidedForeign = "kube-scheduler is stopped by another pod"
)

// built reports whether Berth has a plugin of kube-scheduler's.
func built(name string) bool {
	p := engine.PluginOf(name)
	return p == nil || !p.Unbuilt
}

// undecided says why kube-scheduler's decision about a pod is not compared, "" if it is.
func (u *upstream) undecided(pod *v1.Pod, want *decision) string {
	switch p := u.frameworks[pod.Spec.SchedulerName]; {
	case u.unbound(pod) && p.judges(names.VolumeBinding) && !p.refusedBefore(want, names.VolumeBinding):
		return undecidedUnbound
	case want.failed != nil && want.foreign:
		return undecidedForeign
	}
	return ""
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

// judges reports whether a profile has a plugin at PreFilter.
func (p *profile) judges(name string) bool { return slices.Contains(p.preFilters(), name) }

// preFilters are the names of a profile's plugins at PreFilter, in order.
func (p *profile) preFilters() []string {
	var out []string
	for _, enabled := range p.ListPlugins().PreFilter.Enabled {
		out = append(out, enabled.Name)
	}
	return out
}

// refusedBefore reports whether a plugin has refused all nodes at PreFilter before the turn of another one.
func (p *profile) refusedBefore(d *decision, name string) bool {
	order := p.preFilters()
	by := slices.Index(order, d.refusedBy)
	return by >= 0 && by < slices.Index(order, name)
}
