package engine

// NodeUnsupported keeps every pod off nodes of which the ledger could not tell all (cluster.Node.Unsupported): before any filter
// runs, whatever the pod tolerates, and in every profile. It is no plugin of kube-scheduler's. It fails unresolvably.
const NodeUnsupported = "NodeUnsupported"

// ReasonNodeUnsupported is NodeUnsupported's reason. The node's events say more.
const ReasonNodeUnsupported = "node(s) were unsupported"

var nodeUnsupported = Descriptor{
	Name:    NodeUnsupported,
	reasons: []Reason{{Text: ReasonNodeUnsupported, before: true}},
	compile: func(c *compiler) compiled {
		return compiled{beforeSet: &c.st.Nodes.Unsupported}
	},
	short: inWords("is unsupported", "are unsupported"),
	text:  always("the node is unsupported: its events say why"),
}
