package engine

import (
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// VolumeChange is that an object which volumes are made of has come, has changed or has gone; nil is no object.
type VolumeChange struct{ Was, Is cluster.Object }

// Helps reports whether a change may make a pod schedulable that it concerns: one that uses the claim; whose claim names the volume, is named
// by it, or may be bound to it; whose claim is of the class, or of a class with the driver, or of the class that the capacity is
// about. Of CSINodes and VolumeAttachments, which concern nobody in particular, it says whether a hint may be given for them.
//
// It is what kube-scheduler's hints say of such pods, whichever of its plugins are asked, and of what goes as well: that what is said of the
// pod is about something else from then on. Capacities that shrink are much of what is told of storage, and help nobody. A driver that goes, or
// does not tell its capacity any more, has room everywhere; kube-scheduler has a hint for the latter, about volumes that are in no need of it.
func (c VolumeChange) Helps() bool {
	switch is := c.Is.(type) {
	case *cluster.StorageClass:
		was, ok := c.Was.(*cluster.StorageClass)
		return !ok || was.Mode != is.Mode || was.Provisioner != is.Provisioner || !slices.EqualFunc(was.Topologies, is.Topologies, sameTerm)
	case *cluster.CSIStorageCapacity:
		was, ok := c.Was.(*cluster.CSIStorageCapacity)
		return !ok || is.HasLimit && (!was.HasLimit || was.Limit < is.Limit)
	case *cluster.CSIDriver:
		was, ok := c.Was.(*cluster.CSIDriver)
		return ok && was.StorageCapacity && !is.StorageCapacity
	case *cluster.VolumeAttachment:
		return false
	case nil:
		switch was := c.Was.(type) {
		case *cluster.CSIDriver:
			return was.StorageCapacity
		case *cluster.CSIStorageCapacity, *cluster.CSINode:
			return false
		}
	}
	return true
}

// Hinted reports whether a hint may be given for the change, whoever it concerns: of CSINodes and VolumeAttachments what Helps says, and of
// CSIDrivers whether one keeps its volumes off nodes no more.
func (c VolumeChange) Hinted() bool {
	if was, ok := c.Was.(*cluster.CSIDriver); ok {
		is, there := c.Is.(*cluster.CSIDriver)
		return !there || was.PreventPodSchedulingIfMissing && !is.PreventPodSchedulingIfMissing
	}
	return c.Helps()
}

// bindingVolumes is VolumeBinding's hint for objects that concern nobody in particular.
func bindingVolumes(_ *Demands, c VolumeChange) bool {
	is, ok := c.Is.(*cluster.CSINode)
	if !ok {
		return false
	}
	was, changed := c.Was.(*cluster.CSINode)
	return !changed || !slices.Equal(was.Migrated, is.Migrated)
}

// attachedVolumes is NodeVolumeLimits' hint for objects that concern nobody in particular. That a driver which has no limit has come to a CSINode
// is nothing to hint at: kube-scheduler does not, and whether the pod fits the node then is found out anyway.
func attachedVolumes(d *Demands, c VolumeChange) bool {
	switch is := c.Is.(type) {
	case *cluster.CSINode:
		was, changed := c.Was.(*cluster.CSINode)
		return !changed || slices.ContainsFunc(is.Drivers, func(driver cluster.NodeDriver) bool {
			return hintedLimit(was, driver.Name) < driver.Limit
		})
	case *cluster.CSIDriver:
		was, changed := c.Was.(*cluster.CSIDriver) // kube-scheduler has no hint for these
		return changed && d.scaling && was.PreventPodSchedulingIfMissing && !is.PreventPodSchedulingIfMissing
	case nil:
		switch was := c.Was.(type) {
		case *cluster.CSIDriver:
			return d.scaling && was.PreventPodSchedulingIfMissing || d.drivers
		case *cluster.VolumeAttachment:
			return d.claims || slices.ContainsFunc(d.spec.Disks, func(disk cluster.Disk) bool {
				return disk.Migration.Plugin != "" && disk.Migration.Driver == was.Attacher
			})
		}
	}
	return false
}

// hintedLimit returns how many volumes of a driver can be attached to a node, 0 if it has no limit: that is kube-scheduler's way.
func hintedLimit(n *cluster.CSINode, driver string) int32 {
	for _, d := range n.Drivers {
		if d.Name == driver {
			return d.Limit
		}
	}
	return 0
}

// attachedGone is NodeVolumeLimits' hint for pods that are gone: any that had a volume which may be attached.
func attachedGone(_ *cluster.State, _ *Demands, m *Moved) bool {
	return m.was != nil && m.is == nil && (len(m.was.Claims) > 0 || m.disks != nil && m.lost.of(&m.disks.Spec).migrate)
}

// diskGone is VolumeRestrictions' hint for pods that are gone, as far as their disks go. kube-scheduler asks for those of the pod's namespace
// only, but disks are the same in all. That of claims concerns those who use them.
func diskGone(_ *cluster.State, d *Demands, m *Moved) bool {
	if m.disks == nil || len(d.spec.Disks) == 0 {
		return false
	}
	few, many := d.disks.of(d.spec).names, m.lost.of(&m.disks.Spec).names
	if len(few) > len(many) {
		few, many = many, few
	}
	for name, writes := range few {
		if others, same := many[name]; same && (writes || others) {
			return true
		}
	}
	return false
}

// diskNames is what hints read of disks, found out when it is asked for first.
type diskNames struct {
	known   bool
	names   map[diskName]bool // indexDisks
	migrate bool              // some are of a plugin that may have been migrated to CSI, and so are attached
}

func (n *diskNames) of(spec *cluster.ClassSpec) *diskNames {
	if !n.known {
		n.known, n.names = true, indexDisks(spec)
		n.migrate = slices.ContainsFunc(spec.Disks, func(d cluster.Disk) bool { return d.Migration.Plugin != "" })
	}
	return n
}

func sameTerm(a, b cluster.NodeSelectorTerm) bool {
	return slices.EqualFunc(a.Expressions, b.Expressions, sameRequirement) && slices.EqualFunc(a.Fields, b.Fields, sameRequirement)
}

func sameRequirement(a, b cluster.Requirement) bool {
	return a.Key == b.Key && a.Operator == b.Operator && slices.Equal(a.Values, b.Values)
}
