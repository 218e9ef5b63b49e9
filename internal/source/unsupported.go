package source

import (
	"fmt"
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
)

// maxExtended is how many extended resources one pod may ask for.
const maxExtended = 50

// maxPorts is how many host ports one pod may ask for. Of one that asks for more so many count.
const maxPorts = 1024

// refuseUnsupported says of what the pod asks for and Berth cannot judge, if there is anything, which plugin would have to.
// The text stands where a plugin's reason stands, for a person to read.
func refuseUnsupported(pod *v1.Pod, class *cluster.ClassSpec) {
	if n := len(class.HostPorts); n > maxPorts {
		class.HostPorts = class.HostPorts[:maxPorts:maxPorts]
		refuse(class, "NodePorts", fmt.Sprintf("Berth judges at most %d host ports per pod, and the pod asks for %d", maxPorts, n))
	}
	for i := range pod.Spec.Volumes {
		if plugin, why := unsupportedVolume(&pod.Spec.Volumes[i]); plugin != "" {
			refuse(class, plugin, why)
			return
		}
	}
	if len(pod.Spec.ResourceClaims) > 0 {
		refuse(class, "DynamicResources", "Berth does not judge resource claims yet")
		return
	}
	// Kube-scheduler allocates devices for resources that a DeviceClass stands for, where the node has none by a device plugin. Those
	// whose name says so no node can have. Others look like any extended resource: pods that ask for one go to nodes that have it, and
	// nowhere else (engine.Besides).
	extended := 0
	for _, q := range class.Requests {
		if strings.HasPrefix(q.Name, resourcev1.ResourceDeviceClassPrefix) && q.Value > 0 {
			refuse(class, "DynamicResources", "Berth does not judge devices of a device class yet")
			return
		}
		if cluster.IsExtended(q.Name) {
			extended++
		}
	}
	if extended > maxExtended {
		refuse(class, "NodeResourcesFit",
			fmt.Sprintf("Berth judges at most %d extended resources per pod, and the pod asks for %d", maxExtended, extended))
	}
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
