package engine

import (
	"fmt"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// NodeName keeps a pod that names its node off every other node. It fails unresolvably.
const NodeName = "NodeName"

// ReasonNodeName is NodeName's reason.
const ReasonNodeName = "node(s) didn't match the requested node name"

var nodeName = Descriptor{
	Name: NodeName, Points: []string{"filter"},
	Predicates: []string{"GeneralPredicates", "HostName"},
	reasons:    []Reason{{Text: ReasonNodeName}},
	compile: func(c *compiler) compiled {
		name, code := c.spec.NodeName, c.plugin.code
		if name == "" {
			return compiled{}
		}
		filter := func(st *cluster.State, i cluster.NodeIndex, _ *overlay) Verdict {
			if st.Nodes.Spec[i].Name != name {
				return code | unresolvable
			}
			return codeFeasible
		}
		return compiled{filter: filter, survey: func(s *surveyor) surveyFunc {
			return func(i cluster.NodeIndex, _ *overlay, out []Lack) []Lack {
				if filter(s.st, i, nil) == codeFeasible {
					return out
				}
				return append(out, Lack{Plugin: NodeName, Reason: ReasonNodeName, Unresolvable: true, Relative: 1, Name: name})
			}
		}}
	},
	short: inWords("has another name", "have other names"),
	text: func(l *Lack, _ Blocker) string {
		if l.Name == "" {
			return l.Reason
		}
		return fmt.Sprintf("the pod asks for the node %s", l.Name)
	},
}
