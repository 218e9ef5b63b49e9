package engine

import "github.com/berth-scheduler/berth/internal/cluster"

// NodeUnschedulable keeps pods off cordoned nodes (spec.unschedulable), unless they tolerate the taint
// node.kubernetes.io/unschedulable:NoSchedule. It fails unresolvably.
const NodeUnschedulable = "NodeUnschedulable"

// ReasonUnschedulable is NodeUnschedulable's reason.
const ReasonUnschedulable = "node(s) were unschedulable"

const unschedulableTaint = "node.kubernetes.io/unschedulable"

type nodeUnschedulable struct{ tolerated bool }

func compileNodeUnschedulable(spec *cluster.ClassSpec) nodeUnschedulable {
	for _, t := range spec.Tolerations {
		if (t.Effect == "" || t.Effect == "NoSchedule") && (t.Key == "" || t.Key == unschedulableTaint) &&
			(t.Operator == "Exists" || isEqual(t.Operator) && t.Value == "") {
			return nodeUnschedulable{tolerated: true}
		}
	}
	return nodeUnschedulable{}
}

func (p *nodeUnschedulable) filter(n *cluster.Nodes, i cluster.NodeIndex) Verdict {
	if !p.tolerated && n.Unschedulable.Has(i) {
		return codeNodeUnschedulable | unresolvable
	}
	return codeFeasible
}
