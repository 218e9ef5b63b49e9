package engine

import "github.com/berth-scheduler/berth/internal/cluster"

// cordonTaint is the key of the taint that cordoned nodes have.
const cordonTaint = "node.kubernetes.io/unschedulable"

// systemTaints is what the keys of taints begin with that say that a node is not well: to tolerate or remove them helps nobody.
const systemTaints = "node.kubernetes.io/"

// tolerations are those of a class that could tolerate some taint of the state.
//
// A toleration tolerates a taint if its effect is empty or equal, its key is empty or equal, and its operator is Exists,
// or Equal (or empty) with an equal value. The operators Lt and Gt tolerate nothing, as in kube-scheduler with its
// default feature gates.
type tolerations []toleration

// toleration is a compiled toleration.
type toleration struct {
	key, value                  cluster.Symbol
	effect                      cluster.Effect
	anyKey, anyValue, anyEffect bool
}

func isEqual(operator string) bool { return operator == "" || operator == "Equal" }

func (c *compiler) tolerations() (out tolerations) {
	for _, t := range c.spec.Tolerations {
		if t.Operator != "Exists" && !isEqual(t.Operator) {
			continue
		}
		one := toleration{
			anyKey: t.Key == "", anyValue: t.Operator == "Exists",
			anyEffect: t.Effect == "", effect: cluster.ParseEffect(t.Effect),
		}
		if !one.anyEffect && one.effect == cluster.NoEffect {
			continue // an effect that repels nobody
		}
		if !one.anyKey {
			one.key = c.symbol(t.Key)
		}
		if !one.anyValue {
			one.value = c.symbol(t.Value)
		}
		if !one.anyKey && one.key == cluster.NoSymbol || !one.anyValue && one.value == cluster.NoSymbol {
			continue // no node has such a taint yet
		}
		out = append(out, one)
	}
	return out
}

func (ts tolerations) tolerate(t cluster.NodeTaint) bool {
	for k := range ts {
		tol := &ts[k]
		if (tol.anyEffect || tol.effect == t.Effect) && (tol.anyKey || tol.key == t.Key) &&
			(tol.anyValue || tol.value == t.Value) {
			return true
		}
	}
	return false
}

// admit reports whether all taints of a node are tolerated that keep pods off it.
func (ts tolerations) admit(n *cluster.Nodes, i cluster.NodeIndex) bool {
	for _, t := range n.Taints(i) {
		if keepsOff(t.Effect) && !ts.tolerate(t) {
			return false
		}
	}
	return true
}

func keepsOff(e cluster.Effect) bool { return e == cluster.NoSchedule || e == cluster.NoExecute }
