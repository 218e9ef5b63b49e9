package source

import (
	"fmt"

	"github.com/berth-scheduler/berth/internal/cluster"
	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/nodedeclaredfeatures/features"
	featuretypes "k8s.io/component-helpers/nodedeclaredfeatures/types"
)

// maxExtended is how many extended resources one pod may ask for.
const maxExtended = 50

// unsupported returns the plugin that would have to judge the pod and what Berth says instead, or empty strings if
// Berth can judge all the pod asks for. The text stands where a plugin's reason stands, for a person to read.
func unsupported(pod *v1.Pod, requests []cluster.Quantity) (plugin, why string) {
	if a := pod.Spec.Affinity; a != nil {
		if p := a.PodAffinity; p != nil && len(p.RequiredDuringSchedulingIgnoredDuringExecution)+len(p.PreferredDuringSchedulingIgnoredDuringExecution) > 0 {
			return "InterPodAffinity", "Berth does not judge inter-pod affinity yet"
		}
		if p := a.PodAntiAffinity; p != nil && len(p.RequiredDuringSchedulingIgnoredDuringExecution)+len(p.PreferredDuringSchedulingIgnoredDuringExecution) > 0 {
			return "InterPodAffinity", "Berth does not judge inter-pod anti-affinity yet"
		}
	}
	if len(pod.Spec.TopologySpreadConstraints) > 0 {
		return "PodTopologySpread", "Berth does not judge topology spread constraints yet"
	}
	for i := range pod.Spec.Volumes {
		if plugin, why := unsupportedVolume(&pod.Spec.Volumes[i]); plugin != "" {
			return plugin, why
		}
	}
	if len(pod.Spec.ResourceClaims) > 0 {
		return "DynamicResources", "Berth does not judge resource claims yet"
	}
	info := featuretypes.PodInfo{Spec: &pod.Spec, Status: &pod.Status}
	for _, feature := range features.AllFeatures {
		if feature.InferForScheduling(&info) {
			return "NodeDeclaredFeatures", "Berth does not judge features that nodes declare yet, and the pod needs " + feature.Name()
		}
	}
	extended := 0
	for _, q := range requests {
		if isExtended(v1.ResourceName(q.Name)) {
			extended++
		}
	}
	if extended > maxExtended {
		return "NodeResourcesFit", fmt.Sprintf("Berth judges at most %d extended resources per pod, and the pod asks for %d", maxExtended, extended)
	}
	return "", ""
}

// unsupportedVolume finds volumes that bind a pod to some nodes. Those that any node can mount are no matter of scheduling.
func unsupportedVolume(v *v1.Volume) (plugin, why string) {
	switch {
	case v.PersistentVolumeClaim != nil:
		return "VolumeBinding", "Berth does not judge persistent volume claims yet"
	case v.Ephemeral != nil:
		return "VolumeBinding", "Berth does not judge ephemeral volumes yet"
	}
	for _, disk := range []struct {
		is     bool
		plugin string
		field  string
	}{
		{v.GCEPersistentDisk != nil, "VolumeRestrictions", "gcePersistentDisk"},
		{v.AWSElasticBlockStore != nil, "VolumeRestrictions", "awsElasticBlockStore"},
		{v.ISCSI != nil, "VolumeRestrictions", "iscsi"},
		{v.RBD != nil, "VolumeRestrictions", "rbd"},
		{v.AzureDisk != nil, "NodeVolumeLimits", "azureDisk"},
		{v.AzureFile != nil, "NodeVolumeLimits", "azureFile"},
		{v.Cinder != nil, "NodeVolumeLimits", "cinder"},
		{v.VsphereVolume != nil, "NodeVolumeLimits", "vsphereVolume"},
		{v.PortworxVolume != nil, "NodeVolumeLimits", "portworxVolume"},
	} {
		if disk.is {
			return disk.plugin, "Berth does not judge " + disk.field + " volumes yet"
		}
	}
	return "", ""
}
