package engine

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Labels and fields with a meaning.
const (
	nameField = "metadata.name"
	hostname  = "kubernetes.io/hostname"
)

// nodeSelection is a class's node selector and its required terms.
type nodeSelection struct {
	selector    []cluster.NodeLabel
	hasRequired bool
	required    []affinityTerm
}

func (c *compiler) nodeSelection() (s nodeSelection) {
	for _, l := range c.spec.NodeSelector {
		s.selector = append(s.selector, cluster.NodeLabel{Key: c.symbol(l.Key), Value: c.symbol(l.Value)})
	}
	if s.hasRequired = c.spec.HasRequired; s.hasRequired {
		s.required = c.affinityTerms(c.spec.Required)
	}
	return s
}

// admits reports whether a node matches.
func (s *nodeSelection) admits(st *cluster.State, i cluster.NodeIndex) bool {
	for _, want := range s.selector {
		if got, ok := labelOf(st.Nodes.Labels[i], want.Key); !ok || got != want.Value {
			return false
		}
	}
	return !s.hasRequired || anyMatches(s.required, st, i)
}

// affinityTerm is a conjunction.
type affinityTerm struct {
	labels []labelRequirement
	fields []fieldRequirement
}

type labelRequirement struct {
	operator selection.Operator
	key      cluster.Symbol
	values   []cluster.Symbol // of In and NotIn; without those no node has
	number   int64            // of Gt and Lt
}

type fieldRequirement struct {
	isName, not bool
	value       string
}

// affinityTerms compiles terms that are ORed, without those that cannot match.
func (c *compiler) affinityTerms(terms []cluster.NodeSelectorTerm) []affinityTerm {
	var out []affinityTerm
	for k := range terms {
		if t, err := c.affinityTerm(&terms[k]); err == nil && !isEmptyTerm(&terms[k]) {
			out = append(out, t)
		}
	}
	return out
}

func isEmptyTerm(t *cluster.NodeSelectorTerm) bool {
	return len(t.Expressions) == 0 && len(t.Fields) == 0
}

var operators = map[string]selection.Operator{
	"In": selection.In, "NotIn": selection.NotIn, "Exists": selection.Exists, "DoesNotExist": selection.DoesNotExist,
	"Gt": selection.GreaterThan, "Lt": selection.LessThan,
}

func (c *compiler) affinityTerm(t *cluster.NodeSelectorTerm) (affinityTerm, error) {
	var out affinityTerm
	for _, e := range t.Expressions {
		op, ok := operators[e.Operator]
		if !ok {
			return out, fmt.Errorf("key %q: operator %q is not valid", e.Key, e.Operator)
		}
		if _, err := labels.NewRequirement(e.Key, op, e.Values); err != nil {
			return out, fmt.Errorf("key %q: %w", e.Key, err)
		}
		r := labelRequirement{operator: op, key: c.symbol(e.Key)}
		switch op {
		case selection.In, selection.NotIn:
			for _, v := range e.Values {
				if sym := c.symbol(v); sym != cluster.NoSymbol {
					r.values = append(r.values, sym)
				}
			}
		case selection.GreaterThan, selection.LessThan:
			r.number, _ = parseInt(e.Values[0])
		}
		out.labels = append(out.labels, r)
	}
	for _, f := range t.Fields {
		if f.Operator != "In" && f.Operator != "NotIn" {
			return out, fmt.Errorf("field %q: operator %q is not valid", f.Key, f.Operator)
		}
		if len(f.Values) != 1 {
			return out, fmt.Errorf("field %q: must have one value, not %d", f.Key, len(f.Values))
		}
		out.fields = append(out.fields, fieldRequirement{f.Key == nameField, f.Operator == "NotIn", f.Values[0]})
	}
	return out, nil
}

func anyMatches(terms []affinityTerm, st *cluster.State, i cluster.NodeIndex) bool {
	for k := range terms {
		if terms[k].matches(st, i) {
			return true
		}
	}
	return false
}

func (t *affinityTerm) matches(st *cluster.State, i cluster.NodeIndex) bool {
	for k := range t.labels {
		if !t.labels[k].matches(st, i) {
			return false
		}
	}
	for _, f := range t.fields {
		text := "" // of a field that nodes do not have
		if f.isName {
			text = st.Nodes.Spec[i].Name
		}
		if (text == f.value) == f.not {
			return false
		}
	}
	return true
}

func (r *labelRequirement) matches(st *cluster.State, i cluster.NodeIndex) bool {
	value, ok := labelOf(st.Nodes.Labels[i], r.key)
	switch r.operator {
	case selection.In:
		return ok && slices.Contains(r.values, value)
	case selection.NotIn:
		return !ok || !slices.Contains(r.values, value)
	case selection.Exists:
		return ok
	case selection.DoesNotExist:
		return !ok
	}
	if !ok {
		return false
	}
	number, ok := parseInt(st.Symbols.Text(value))
	return ok && (r.operator == selection.GreaterThan && number > r.number ||
		r.operator == selection.LessThan && number < r.number)
}

// labelOf finds a key in labels that are sorted by key.
func labelOf(sorted []cluster.NodeLabel, key cluster.Symbol) (cluster.Symbol, bool) {
	lo, hi := 0, len(sorted)
	for lo < hi {
		mid := (lo + hi) / 2
		if sorted[mid].Key < key {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(sorted) && sorted[lo].Key == key {
		return sorted[lo].Value, true
	}
	return cluster.NoSymbol, false
}

// parseInt is strconv.ParseInt(s, 10, 64) without an error to allocate: labels that are no numbers are common.
func parseInt(s string) (int64, bool) {
	negative := false
	if s != "" && (s[0] == '+' || s[0] == '-') {
		negative = s[0] == '-'
		s = s[1:]
	}
	if s == "" {
		return 0, false
	}
	value := int64(0) // negative, since that side has one number more
	for k := range len(s) {
		digit := int64(s[k]) - '0'
		if digit < 0 || digit > 9 || value < (minInt64+digit)/10 {
			return 0, false
		}
		value = value*10 - digit
	}
	if negative {
		return value, true
	}
	return -value, value != minInt64
}

const minInt64 = -1 << 63
