package cluster

import (
	"cmp"
	"slices"
)

// UsedPort is a host port in use on a node, and by how many of its pods.
type UsedPort struct {
	HostPort
	Count int32
}

func compareUsed(u UsedPort, p HostPort) int { return comparePorts(u.HostPort, p) }

func comparePorts(a, b HostPort) int {
	return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.IP, b.IP))
}

// PortUses returns how many pods of a node use a host port at its IP.
func (n *Nodes) PortUses(i NodeIndex, p HostPort) int32 {
	if at, used := slices.BinarySearchFunc(n.Ports[i], p, compareUsed); used {
		return n.Ports[i][at].Count
	}
	return 0
}

// PortsAt returns the uses of a host port of a node, whatever the IP.
func (n *Nodes) PortsAt(i NodeIndex, p HostPort) []UsedPort {
	p.IP = ""
	first, _ := slices.BinarySearchFunc(n.Ports[i], p, compareUsed)
	end := first
	for end < len(n.Ports[i]) && n.Ports[i][end].Port == p.Port && n.Ports[i][end].Protocol == p.Protocol {
		end++
	}
	return n.Ports[i][first:end]
}

// addPorts adds the host ports of a pod, which are in order, to those of its node, or takes them away, by = -1. A node may have a hundred
// thousand, and a pod a thousand: what this does goes by the pod's, but for one pass that moves the node's, if need be.
func (n *Nodes) addPorts(i NodeIndex, ports []HostPort, by int32) {
	used := n.Ports[i]
	var fresh []UsedPort
	gone := false
	for _, p := range ports {
		list := used
		at, known := slices.BinarySearchFunc(used, p, compareUsed)
		if last := len(fresh) - 1; !known && last >= 0 && fresh[last].HostPort == p {
			list, at, known = fresh, last, true
		}
		if !known {
			fresh = append(fresh, UsedPort{p, by})
			n.portHash[i] += UsedPort{p, by}.digest(i)
			continue
		}
		n.portHash[i] -= list[at].digest(i)
		list[at].Count += by
		n.portHash[i] += list[at].digest(i)
		gone = gone || list[at].Count == 0
	}
	if gone {
		used = slices.DeleteFunc(used, func(u UsedPort) bool { return u.Count == 0 })
	}
	n.Ports[i] = merge(used, fresh)
}

// merge adds what is in order to what is in order.
func merge(used, fresh []UsedPort) []UsedPort {
	old := len(used)
	used = append(used, fresh...)
	for at, k := len(used)-1, len(fresh)-1; k >= 0; at-- {
		if old > 0 && compareUsed(used[old-1], fresh[k].HostPort) > 0 {
			old--
			used[at] = used[old]
		} else {
			used[at] = fresh[k]
			k--
		}
	}
	return used
}

// digest hashes the uses of a port of a node; none add nothing.
func (u UsedPort) digest(i NodeIndex) uint64 {
	if u.Count == 0 {
		return 0
	}
	return fold(hashText(kindSums, u.IP, u.Protocol), int64(i), int64(u.Port), int64(u.Count))
}
