package engine

import (
	"fmt"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// NodePorts keeps pods off nodes where a host port they want is taken. Two ports conflict if number and protocol are
// equal, and the IPs are equal or one of them is 0.0.0.0. Removing pods would help.
const NodePorts = "NodePorts"

// ReasonNodePorts is NodePorts' reason.
const ReasonNodePorts = "node(s) didn't have free ports for the requested pod ports"

const allIPs = "0.0.0.0"

var nodePorts = Descriptor{
	Name: NodePorts, Points: []string{"preFilter", "filter"}, Needs: map[string][]string{"filter": {"preFilter"}},
	Judges:     []Aspect{Ports},
	Predicates: []string{"GeneralPredicates", "PodFitsHostPorts", "PodFitsPorts"},
	reasons:    []Reason{{Text: ReasonNodePorts}},
	compile: func(c *compiler) compiled {
		p := hostPorts{code: c.plugin.code}
		for _, port := range c.spec.HostPorts {
			if port.Port > 0 {
				p.wanted = append(p.wanted, port)
			}
		}
		if len(p.wanted) == 0 {
			return compiled{}
		}
		return compiled{filter: p.filter, survey: p.survey}
	},
	detail: func(s *surveyor, i cluster.NodeIndex, l *Lack) {
		l.Blocker = s.find(i, func(pod *cluster.PodRow) bool {
			return slices.ContainsFunc(s.st.Class(pod.Class).Spec.HostPorts, func(used cluster.HostPort) bool { return conflict(l.Port, &used) })
		})
	},
	short: inWords("has its host port taken", "have its host port taken"),
	text: func(l *Lack, by Blocker) string {
		if l.Port == nil {
			return l.Reason
		}
		port := fmt.Sprintf("%d/%s", l.Port.Port, l.Port.Protocol)
		if l.Port.IP != allIPs {
			port = l.Port.IP + ":" + port
		}
		return fmt.Sprintf("host port %s is taken%s", port, by.behind(" by "))
	},
}

type hostPorts struct {
	code   Verdict
	wanted []cluster.HostPort
}

func (p *hostPorts) filter(st *cluster.State, i cluster.NodeIndex, h *overlay) Verdict {
	if len(st.Nodes.Ports[i]) == 0 && h == nil {
		return codeFeasible
	}
	for _, w := range p.wanted {
		if taken(&st.Nodes, i, w, h) {
			return p.code
		}
	}
	return codeFeasible
}

// taken reports whether a host port of a node is. Only what is known of that port is looked at: a node may have a hundred thousand.
func taken(n *cluster.Nodes, i cluster.NodeIndex, w cluster.HostPort, h *overlay) bool {
	if w.IP != allIPs {
		all := cluster.HostPort{IP: allIPs, Protocol: w.Protocol, Port: w.Port}
		return n.PortUses(i, w)+h.uses(w) > 0 || n.PortUses(i, all)+h.uses(all) > 0
	}
	uses := h.usesOfAnyIP(w)
	for _, used := range n.PortsAt(i, w) {
		uses += used.Count
	}
	return uses > 0
}

func conflict(a, b *cluster.HostPort) bool {
	return a.Port == b.Port && a.Protocol == b.Protocol && (a.IP == b.IP || a.IP == allIPs || b.IP == allIPs)
}

func (p *hostPorts) survey(s *surveyor) surveyFunc {
	var each []hostPorts // those that are wanted, each once
	seen := make(map[cluster.HostPort]bool, len(p.wanted))
	for k, w := range p.wanted {
		if !seen[w] {
			seen[w] = true
			each = append(each, hostPorts{p.code, p.wanted[k : k+1]})
		}
	}
	return func(i cluster.NodeIndex, nominees *overlay, out []Lack) []Lack {
		for k := range each {
			if each[k].filter(s.st, i, nominees) == codeFeasible {
				continue
			}
			out = append(out, Lack{Plugin: NodePorts, Reason: ReasonNodePorts, Relative: 1, Port: &each[k].wanted[0], Help: HelpNewNode})
		}
		return out
	}
}
