package engine

import (
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// NodeUnschedulable keeps pods off cordoned nodes (spec.unschedulable), unless they tolerate the taint
// node.kubernetes.io/unschedulable:NoSchedule. It fails unresolvably.
const NodeUnschedulable = "NodeUnschedulable"

// ReasonUnschedulable is NodeUnschedulable's reason.
const ReasonUnschedulable = "node(s) were unschedulable"

var nodeUnschedulable = Descriptor{
	Name: NodeUnschedulable, Points: []string{"filter"},
	Predicates: []string{"CheckNodeUnschedulable"},
	reasons:    []Reason{{Text: ReasonUnschedulable}},
	compile: func(c *compiler) compiled {
		if slices.ContainsFunc(c.spec.Tolerations, toleratesCordon) {
			return compiled{}
		}
		return compiled{filterSet: &c.st.Nodes.Unschedulable}
	},
	hints: hints{own: func(_ *Demands, c *ownChange) bool {
		return c.tolerations() && slices.ContainsFunc(c.is.Tolerations, toleratesCordon)
	}},
	short: inWords("is cordoned", "are cordoned"),
	text:  always("the node is cordoned"),
	help:  HelpCordon | HelpNewNode,
}

// toleratesCordon reports whether pods with a toleration go to nodes that are cordoned.
func toleratesCordon(t cluster.Toleration) bool {
	return (t.Effect == "" || t.Effect == "NoSchedule") && (t.Key == "" || t.Key == cordonTaint) &&
		(t.Operator == "Exists" || isEqual(t.Operator) && t.Value == "")
}
