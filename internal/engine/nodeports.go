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

func (p *nodePorts) filter(n *cluster.Nodes, i cluster.NodeIndex, nominees *nominees) Verdict {
	for k := range p.wanted {
		w := &p.wanted[k]
		for u := range n.Ports[i] {
			if conflict(w, &n.Ports[i][u].HostPort) {
				return codeNodePorts
			}
		}
		if nominees == nil {
			continue
		}
		for u := range nominees.ports {
			if conflict(w, &nominees.ports[u]) {
				return codeNodePorts
			}
		}
	}
	return codeFeasible
}

func conflict(a, b *cluster.HostPort) bool {
	return a.Port == b.Port && a.Protocol == b.Protocol && (a.IP == b.IP || a.IP == allIPs || b.IP == allIPs)
}
