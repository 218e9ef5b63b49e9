package engine

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// cordonTaint is the key of the taint that cordoned nodes have.
const cordonTaint = "node.kubernetes.io/unschedulable"

// systemTaints is what the keys of taints begin with that say that a node is not well: to tolerate or remove them helps nobody.
const systemTaints = "node.kubernetes.io/"

// tolerations are those of a class that could tolerate some taint of the state.
//
// A toleration tolerates a taint if its effect is empty or equal, its key is empty or equal, and its operator is Exists,
// or Equal (or empty) with an equal value. The operators Lt and Gt tolerate nothing, as in kube-scheduler with its
// default feature gates; with TaintTolerationComparisonOperators, they tolerate taints with a value that is lower, or greater, where both are integers.
type tolerations []toleration

// toleration is a compiled toleration.
type toleration struct {
	key, value                  cluster.Symbol
	effect                      cluster.Effect
	anyKey, anyValue, anyEffect bool
	// than is -1 if the taint's value has to be less than number, and 1 if it has to be more; 0: it has to be value.
	than   int
	number int64
}

// decimal returns the integer that a value of a taint is, as kube-scheduler reads it: nothing but a minus and digits, of which the first is no 0 unless it is alone.
func decimal(text string) (n int64, ok bool) {
	digits := strings.TrimPrefix(text, "-")
	if text == "" || digits == "" || digits[0] == '0' && text != "0" || strings.ContainsFunc(digits, func(r rune) bool { return r < '0' || r > '9' }) {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil
}

func isEqual(operator string) bool { return operator == "" || operator == "Equal" }

func (c *compiler) tolerations() (out tolerations) {
	for _, t := range c.spec.Tolerations {
		than, number := 0, int64(0)
		if c.profile.TaintComparison && (t.Operator == "Lt" || t.Operator == "Gt") {
			var ok bool
			if number, ok = decimal(t.Value); !ok {
				continue
			}
			if than = 1; t.Operator == "Lt" {
				than = -1
			}
		}
		if t.Operator != "Exists" && !isEqual(t.Operator) && than == 0 {
			continue
		}
		one := toleration{
			anyKey: t.Key == "", anyValue: t.Operator == "Exists",
			anyEffect: t.Effect == "", effect: cluster.ParseEffect(t.Effect), than: than, number: number,
		}
		if !one.anyEffect && one.effect == cluster.NoEffect {
			continue // an effect that repels nobody
		}
		if !one.anyKey {
			one.key = c.symbol(t.Key)
		}
		if !one.anyValue && than == 0 {
			one.value = c.symbol(t.Value)
		}
		if !one.anyKey && one.key == cluster.NoSymbol || !one.anyValue && than == 0 && one.value == cluster.NoSymbol {
			continue // no node has such a taint yet
		}
		out = append(out, one)
	}
	return out
}

// tolerate reports whether a taint of a node is tolerated, which is its k-th.
func (ts tolerations) tolerate(n *cluster.Nodes, i cluster.NodeIndex, k int) bool {
	t := n.Taints(i)[k]
	for at := range ts {
		tol := &ts[at]
		switch {
		case !tol.anyEffect && tol.effect != t.Effect, !tol.anyKey && tol.key != t.Key:
		case tol.than != 0:
			if value, ok := decimal(n.Spec[i].NodeShape.Taints[k].Value); ok && cmp.Compare(value, tol.number) == tol.than {
				return true
			}
		case tol.anyValue || tol.value == t.Value:
			return true
		}
	}
	return false
}

// admit reports whether all taints of a node are tolerated that keep pods off it.
func (ts tolerations) admit(n *cluster.Nodes, i cluster.NodeIndex) bool {
	for k, t := range n.Taints(i) {
		if keepsOff(t.Effect) && !ts.tolerate(n, i, k) {
			return false
		}
	}
	return true
}

func keepsOff(e cluster.Effect) bool { return e == cluster.NoSchedule || e == cluster.NoExecute }
