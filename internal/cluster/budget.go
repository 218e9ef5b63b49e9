package cluster

import (
	"iter"
	"slices"
)

// Budget is a PodDisruptionBudget, reduced to what preemption reads.
type Budget struct {
	Namespace, Name string
	// Selector finds the pods of the namespace that are protected. One without requirements protects none.
	Selector  LabelSelector
	Allowed   int32    // status.disruptionsAllowed
	Disrupted []string // the names in status.disruptedPods, in alphabetical order: these have been counted already
}

// Key returns the budget's name.
func (b *Budget) Key() ObjectKey { return ObjectKey{BudgetKind, b.Namespace, b.Name} }

// Encode writes what a budget says.
func (b *Budget) Encode(e *Encoder) {
	encodeSelector(e, b.Selector)
	e.Int(int64(b.Allowed))
	e.Texts(b.Disrupted)
}

// Decode reads what Encode has written.
func (b *Budget) Decode(d *Decoder) {
	b.Selector = decodeSelector(d)
	b.Allowed = int32(d.Int())
	b.Disrupted = d.Texts()
}

// Unsupported returns a budget that protects no pod.
func (b *Budget) Unsupported(string) Object {
	return &Budget{Namespace: b.Namespace, Name: b.Name, Selector: LabelSelector{Nothing: true}, Allowed: b.Allowed}
}

// Protects reports whether one more disruption of the pod, with its labels, counts against the budget.
func (b *Budget) Protects(pod string, labels *LabelSet) bool {
	if b.Namespace != labels.Namespace || b.Selector.Empty() || !b.Selector.Matches(labels.Labels) {
		return false
	}
	_, counted := slices.BinarySearch(b.Disrupted, pod)
	return !counted
}

// Budgets yields the PodDisruptionBudgets of a namespace, in no order. Readers must not change them.
func (s *State) Budgets(namespace string) iter.Seq[*Budget] {
	return ObjectsIn[*Budget](s, BudgetKind, namespace)
}

// Budget returns a PodDisruptionBudget, or nil.
func (s *State) Budget(namespace, name string) *Budget {
	return ObjectAt[*Budget](s, ObjectKey{BudgetKind, namespace, name})
}
