package source

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
)

// maxExtended is how many extended resources one pod may ask for.
const maxExtended = 50

// maxPorts is how many host ports one pod may ask for. Of one that asks for more so many count.
const maxPorts = 1024

// maxTerms is how many pod affinity and anti-affinity terms one pod may have, required and preferred. Of one that has more so many
// count, first those that keep others away: each is compared with the pods of everybody.
const maxTerms = 256

// maxVolumes is how many claims and disks of one pod count: what they come to is found again when what they are made of changes.
const maxVolumes = 256

// maxMonitors is how many monitors of one pod's RBD images count: an image is looked for by each, in each evaluation.
const maxMonitors = 256

// refuseUnsupported says of what the pod asks for and Berth cannot judge, if there is anything, which plugin would have to.
// The text stands where a plugin's reason stands, for a person to read.
func refuseUnsupported(pod *v1.Pod, class *cluster.ClassSpec, labels *cluster.LabelSet) {
	if n := len(class.HostPorts); n > maxPorts {
		class.HostPorts = slices.Clone(class.HostPorts[:maxPorts])
		refuse(class, engine.Ports, fmt.Sprintf("Berth judges at most %d host ports per pod, and the pod asks for %d", maxPorts, n))
	}
	if n := len(class.Affinity) + len(class.AntiAffinity) + len(class.PreferredAffinity) + len(class.PreferredAntiAffinity); n > maxTerms {
		room := maxTerms
		class.AntiAffinity, class.Affinity = firstOf(class.AntiAffinity, &room), firstOf(class.Affinity, &room)
		class.PreferredAffinity, class.PreferredAntiAffinity = firstOf(class.PreferredAffinity, &room), firstOf(class.PreferredAntiAffinity, &room)
		refuse(class, engine.PodTerms, fmt.Sprintf("Berth judges at most %d affinity terms per pod, and the pod has %d", maxTerms, n))
	}
	if n := len(labels.Claims) + len(class.Disks); n > maxVolumes {
		room := maxVolumes
		labels.Claims, class.Disks = firstOf(labels.Claims, &room), firstOf(class.Disks, &room)
		refuse(class, engine.AttachedVolumes, fmt.Sprintf("Berth judges at most %d claims and disks per pod, and the pod has %d", maxVolumes, n))
	}
	monitors := 0
	for k := range class.Disks {
		monitors += len(class.Disks[k].Monitors)
	}
	if monitors > maxMonitors {
		room := maxMonitors
		class.Disks = slices.Clone(class.Disks)
		for k := range class.Disks {
			class.Disks[k].Monitors = firstOf(class.Disks[k].Monitors, &room)
		}
		refuse(class, engine.SharedDisks, fmt.Sprintf("Berth judges at most %d monitors of RBD images per pod, and the pod has %d", maxMonitors, monitors))
	}
	if len(pod.Spec.ResourceClaims) > 0 {
		refuse(class, engine.Claims, "Berth does not judge resource claims yet")
		return
	}
	// Kube-scheduler allocates devices for resources that a DeviceClass stands for, where the node has none by a device plugin. Those
	// whose name says so no node can have. Others look like any extended resource: pods that ask for one go to nodes that have it, and
	// nowhere else (engine.Besides).
	extended := 0
	for _, q := range class.Requests {
		if strings.HasPrefix(q.Name, resourcev1.ResourceDeviceClassPrefix) && q.Value > 0 {
			refuse(class, engine.Claims, "Berth does not judge devices of a device class yet")
			return
		}
		if cluster.IsExtended(q.Name) {
			extended++
		}
	}
	if extended > maxExtended {
		refuse(class, engine.Requests,
			fmt.Sprintf("Berth judges at most %d extended resources per pod, and the pod asks for %d", maxExtended, extended))
	}
}

// firstOf returns as many entries of a list as there is room for, without the room of the others, and takes that.
func firstOf[T any](terms []T, room *int) []T {
	n := min(len(terms), *room)
	*room -= n
	if n == 0 {
		return nil
	}
	if n == len(terms) {
		return terms
	}
	return slices.Clone(terms[:n])
}
