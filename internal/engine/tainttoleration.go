package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// TaintToleration keeps pods off nodes with a NoSchedule or NoExecute taint that they do not tolerate; it fails
// unresolvably.
//
// Its raw score is the number of the node's PreferNoSchedule taints that the pod does not tolerate. It is normalised
// in reverse over the feasible nodes: 100 - 100·raw/max, and 100 everywhere if max is 0.
const TaintToleration = "TaintToleration"

// ReasonUntoleratedTaint is TaintToleration's reason.
const ReasonUntoleratedTaint = "node(s) had untolerated taint(s)"

var taintToleration = Descriptor{
	Name: TaintToleration, Points: []string{"filter", "preScore", "score"}, Needs: map[string][]string{"score": {"preScore"}},
	Predicates: []string{"PodToleratesNodeTaints"}, Priorities: []string{"TaintTolerationPriority"},
	reasons: []Reason{{Text: ReasonUntoleratedTaint}},
	scale:   reversedMostScale,
	compile: func(c *compiler) compiled {
		tolerations, code := c.program.tolerations, c.plugin.code
		return compiled{
			filter: func(st *cluster.State, i cluster.NodeIndex, _ *overlay) Verdict {
				if !tolerations.admit(&st.Nodes, i) {
					return code | unresolvable
				}
				return codeFeasible
			},
			score: func(st *cluster.State, i cluster.NodeIndex) (untolerated int64) {
				for k, t := range st.Nodes.Taints(i) {
					if t.Effect == cluster.PreferNoSchedule && !tolerations.tolerate(&st.Nodes, i, k) {
						untolerated++
					}
				}
				return untolerated
			},
			survey: tolerations.survey,
		}
	},
	hints: hints{own: func(_ *Demands, c *ownChange) bool { return c.tolerations() }},
	short: inWords("has a taint that it does not tolerate", "have a taint that it does not tolerate"),
	text: func(l *Lack, _ Blocker) string {
		if l.Taint == nil {
			return l.Reason
		}
		return fmt.Sprintf("taint %s is not tolerated", TaintText(*l.Taint))
	},
}

func (ts tolerations) survey(s *surveyor) surveyFunc {
	return func(i cluster.NodeIndex, _ *overlay, out []Lack) []Lack {
		n := &s.st.Nodes
		cordoned := slices.ContainsFunc(out, func(l Lack) bool { return l.Help&HelpCordon != 0 })
		for k, t := range n.Taints(i) {
			if !keepsOff(t.Effect) || ts.tolerate(n, i, k) {
				continue
			}
			taint := &n.Spec[i].NodeShape.Taints[k]
			if cordoned && taint.Key == cordonTaint && t.Effect == cluster.NoSchedule {
				continue // it has been said
			}
			l := Lack{Plugin: TaintToleration, Reason: ReasonUntoleratedTaint, Unresolvable: true, Relative: 1, Taint: taint, Help: HelpTaints}
			if strings.HasPrefix(taint.Key, systemTaints) {
				l.Help = HelpNewNode
			}
			out = append(out, l)
		}
		return out
	}
}
