package engine

import "github.com/berth-scheduler/berth/internal/cluster"

// NodePorts keeps pods off nodes where a host port they want is taken. Two ports conflict if number and protocol are
// equal, and the IPs are equal or one of them is 0.0.0.0. Removing pods would help.
const NodePorts = "NodePorts"

// ReasonNodePorts is NodePorts' reason.
const ReasonNodePorts = "node(s) didn't have free ports for the requested pod ports"

const allIPs = "0.0.0.0"

type nodePorts struct{ wanted []cluster.HostPort }

func compileNodePorts(spec *cluster.ClassSpec) nodePorts {
	var p nodePorts
	for _, port := range spec.HostPorts {
		if port.Port > 0 {
			p.wanted = append(p.wanted, port)
		}
	}
	return p
}

func (p *nodePorts) filter(n *cluster.Nodes, i cluster.NodeIndex, h *overlay) Verdict {
	for k := range p.wanted {
		w := &p.wanted[k]
		for u := range n.Ports[i] {
			used := &n.Ports[i][u]
			if conflict(w, &used.HostPort) && used.Count+h.uses(&used.HostPort) > 0 {
				return codeNodePorts
			}
		}
		if h == nil {
			continue
		}
		for port, pods := range h.ports {
			if pods > 0 && conflict(w, &port) {
				return codeNodePorts
			}
		}
	}
	return codeFeasible
}

func conflict(a, b *cluster.HostPort) bool {
	return a.Port == b.Port && a.Protocol == b.Protocol && (a.IP == b.IP || a.IP == allIPs || b.IP == allIPs)
}
