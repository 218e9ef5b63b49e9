package engine

import "github.com/berth-scheduler/berth/internal/cluster"

// TaintToleration keeps pods off nodes with a NoSchedule or NoExecute taint that they do not tolerate; it fails
// unresolvably.
//
// Its raw score is the number of the node's PreferNoSchedule taints that the pod does not tolerate. It is normalised
// in reverse over the feasible nodes: 100 - 100·raw/max, and 100 everywhere if max is 0.
//
// A toleration tolerates a taint if its effect is empty or equal, its key is empty or equal, and its operator is Exists,
// or Equal (or empty) with an equal value. The operators Lt and Gt tolerate nothing, as in kube-scheduler with its
// default feature gates.
const TaintToleration = "TaintToleration"

// ReasonUntoleratedTaint is TaintToleration's reason.
const ReasonUntoleratedTaint = "node(s) had untolerated taint(s)"

type taintToleration struct{ tolerations []toleration }

// toleration is a compiled toleration that could tolerate some taint of the state.
type toleration struct {
	key, value                  cluster.Symbol
	effect                      cluster.Effect
	anyKey, anyValue, anyEffect bool
}

func isEqual(operator string) bool { return operator == "" || operator == "Equal" }

func (c *compiler) taintToleration(spec *cluster.ClassSpec) taintToleration {
	var p taintToleration
	for _, t := range spec.Tolerations {
		if t.Operator != "Exists" && !isEqual(t.Operator) {
			continue
		}
		out := toleration{
			anyKey: t.Key == "", anyValue: t.Operator == "Exists",
			anyEffect: t.Effect == "", effect: cluster.ParseEffect(t.Effect),
		}
		if !out.anyEffect && out.effect == cluster.NoEffect {
			continue // an effect that repels nobody
		}
		if !out.anyKey {
			out.key = c.symbol(t.Key)
		}
		if !out.anyValue {
			out.value = c.symbol(t.Value)
		}
		if !out.anyKey && out.key == cluster.NoSymbol || !out.anyValue && out.value == cluster.NoSymbol {
			continue // no node has such a taint yet
		}
		p.tolerations = append(p.tolerations, out)
	}
	return p
}

func (p *taintToleration) tolerates(t cluster.NodeTaint) bool {
	for k := range p.tolerations {
		tol := &p.tolerations[k]
		if (tol.anyEffect || tol.effect == t.Effect) && (tol.anyKey || tol.key == t.Key) &&
			(tol.anyValue || tol.value == t.Value) {
			return true
		}
	}
	return false
}

func (p *taintToleration) filter(n *cluster.Nodes, i cluster.NodeIndex) Verdict {
	for _, t := range n.Taints(i) {
		if (t.Effect == cluster.NoSchedule || t.Effect == cluster.NoExecute) && !p.tolerates(t) {
			return codeTaintToleration | unresolvable
		}
	}
	return codeFeasible
}

func (p *taintToleration) score(n *cluster.Nodes, i cluster.NodeIndex) int64 {
	untolerated := int64(0)
	for _, t := range n.Taints(i) {
		if t.Effect == cluster.PreferNoSchedule && !p.tolerates(t) {
			untolerated++
		}
	}
	return untolerated
}
