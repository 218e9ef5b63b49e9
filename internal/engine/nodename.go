package engine

import "github.com/berth-scheduler/berth/internal/cluster"

// NodeName keeps a pod that names its node off every other node. It fails unresolvably.
const NodeName = "NodeName"

// ReasonNodeName is NodeName's reason.
const ReasonNodeName = "node(s) didn't match the requested node name"

type nodeName struct{ name string } // "" lets every node pass

func (p *nodeName) filter(n *cluster.Nodes, i cluster.NodeIndex) Verdict {
	if p.name != "" && n.Spec[i].Name != p.name {
		return codeNodeName | unresolvable
	}
	return codeFeasible
}
