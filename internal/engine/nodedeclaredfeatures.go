package engine

import (
	"fmt"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// NodeDeclaredFeatures keeps pods off nodes that do not declare a feature that the pod's spec needs: what it needs must be
// a subset of status.declaredFeatures. It fails unresolvably.
const NodeDeclaredFeatures = "NodeDeclaredFeatures"

// ReasonFeatures is NodeDeclaredFeatures' reason.
const ReasonFeatures = "node(s) didn't match Pod's required features"

var nodeDeclaredFeatures = Descriptor{
	Name: NodeDeclaredFeatures, Points: []string{"preFilter", "filter"}, OwnGate: true, Needs: map[string][]string{"filter": {"preFilter"}},
	Judges:  []Aspect{Features},
	reasons: []Reason{{Text: ReasonFeatures}},
	compile: func(c *compiler) compiled {
		required, code := c.spec.Features, c.plugin.code
		if len(required) == 0 {
			return compiled{}
		}
		return compiled{
			filter: func(st *cluster.State, i cluster.NodeIndex, _ *overlay) Verdict {
				if !declares(st.Nodes.Spec[i].Features, required) {
					return code | unresolvable
				}
				return codeFeasible
			},
			survey: func(s *surveyor) surveyFunc {
				return func(i cluster.NodeIndex, _ *overlay, out []Lack) []Lack {
					for _, want := range required {
						if _, declared := slices.BinarySearch(s.st.Nodes.Spec[i].Features, want); !declared {
							out = append(out, Lack{Plugin: NodeDeclaredFeatures, Reason: ReasonFeatures, Unresolvable: true, Relative: 1, Feature: want})
						}
					}
					return out
				}
			},
		}
	},
	hints: hints{own: func(_ *Demands, c *ownChange) bool { return !slices.Equal(c.was.Features, c.is.Features) }},
	short: inWords("lacks a feature that it needs", "lack a feature that it needs"),
	text: func(l *Lack, _ Blocker) string {
		if l.Feature == "" {
			return l.Reason
		}
		return fmt.Sprintf("feature %s is not declared", l.Feature)
	},
}

// declares reports whether all that is required is among what is declared. Both are sorted, so one pass finds out.
func declares(declared, required []string) bool {
	for _, want := range required {
		for len(declared) > 0 && declared[0] < want {
			declared = declared[1:]
		}
		if len(declared) == 0 || declared[0] != want {
			return false
		}
	}
	return true
}
