package engine

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// NodeAffinity keeps pods on nodes that match spec.nodeSelector and one of the required terms; it fails unresolvably.
// A term that does not parse, or is empty, matches nothing.
//
// If every required term names its nodes (matchFields metadata.name In), the other nodes are set aside before any
// filter runs, with a reason of their own; if the names contradict each other, all are.
//
// A profile can add an affinity of its own, which all its pods need besides theirs, and preferred terms, whose weights
// are added to theirs.
//
// Its raw score is the sum of the weights of the preferred terms that match, without empty terms and terms of weight 0.
// It is normalised over the feasible nodes: 100·raw/max, and 0 everywhere if max is 0.
const NodeAffinity = "NodeAffinity"

// NodeAffinity's reasons.
const (
	ReasonNodeAffinity         = "node(s) didn't match Pod's node affinity/selector"
	ReasonNodeAffinityEnforced = "node(s) didn't match scheduler-enforced node affinity"
	ReasonNodeAffinityOutside  = "node(s) didn't satisfy plugin(s) [NodeAffinity]"
	ReasonNodeAffinityConflict = "pod affinity terms conflict"
)

const nameField = "metadata.name"

type nodeAffinity struct {
	selector    []cluster.NodeLabel
	hasRequired bool
	required    []affinityTerm
	hasEnforced bool
	enforced    []affinityTerm  // of the profile
	preferred   []preferredTerm // of the pod and the profile
	narrowed    bool            // only names can be feasible
	names       []string        // sorted
}

type preferredTerm struct {
	weight int64
	affinityTerm
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

// nodeAffinity compiles the plugin. The error is what kube-scheduler's PreScore fails the pod with.
func (c *compiler) nodeAffinity(spec *cluster.ClassSpec, profile *cluster.Profile) (nodeAffinity, error) {
	var p nodeAffinity
	for _, l := range spec.NodeSelector {
		p.selector = append(p.selector, cluster.NodeLabel{Key: c.symbol(l.Key), Value: c.symbol(l.Value)})
	}
	if p.hasRequired = spec.HasRequired; p.hasRequired {
		p.required = c.affinityTerms(spec.Required)
		if slices.Contains(profile.PreFilters, NodeAffinity) {
			p.names, p.narrowed = namedNodes(spec.Required)
		}
	}
	if p.hasEnforced = profile.HasAddedRequired; p.hasEnforced {
		p.enforced = c.affinityTerms(profile.AddedRequired)
	}
	if !scores(profile, NodeAffinity) {
		return p, nil
	}
	preferred := slices.Concat(spec.Preferred, profile.AddedPreferred)
	for k := range preferred {
		pref := &preferred[k]
		if pref.Weight == 0 || isEmptyTerm(&pref.Term) {
			continue
		}
		t, err := c.affinityTerm(&pref.Term)
		if err != nil {
			return p, fmt.Errorf("parse preferred node affinity term %d: %w", k, err)
		}
		p.preferred = append(p.preferred, preferredTerm{int64(pref.Weight), t})
	}
	return p, nil
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

// namedNodes returns the names that the terms allow. False: some term does not name its nodes, or there is none.
func namedNodes(terms []cluster.NodeSelectorTerm) (names []string, narrowed bool) {
	for _, t := range terms {
		var ofTerm []string
		named := false
		for _, r := range t.Fields {
			if r.Key != nameField || r.Operator != "In" {
				continue
			}
			if !named {
				ofTerm = slices.Clone(r.Values)
			} else {
				ofTerm = slices.DeleteFunc(ofTerm, func(name string) bool { return !slices.Contains(r.Values, name) })
			}
			named = true
		}
		if !named {
			return nil, false
		}
		names = append(names, ofTerm...)
	}
	slices.Sort(names)
	return slices.Compact(names), len(terms) > 0
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

// narrow says why a node is set aside before any filter runs.
func (p *nodeAffinity) narrow(n *cluster.Nodes, i cluster.NodeIndex) Verdict {
	switch {
	case !p.narrowed:
		return codeFeasible
	case len(p.names) == 0:
		return codeNodeAffinityConflict | unresolvable
	}
	if _, found := slices.BinarySearch(p.names, n.Spec[i].Name); !found {
		return codeNodeAffinityOutside | unresolvable
	}
	return codeFeasible
}

func (p *nodeAffinity) filter(st *cluster.State, i cluster.NodeIndex) Verdict {
	switch {
	case p.hasEnforced && !anyMatches(p.enforced, st, i):
		return codeNodeAffinityEnforced | unresolvable
	case !p.selects(st, i):
		return codeNodeAffinity | unresolvable
	}
	return codeFeasible
}

// selects reports whether the pod's own node selector and required terms match a node.
func (p *nodeAffinity) selects(st *cluster.State, i cluster.NodeIndex) bool {
	for _, want := range p.selector {
		if got, ok := labelOf(st.Nodes.Labels[i], want.Key); !ok || got != want.Value {
			return false
		}
	}
	return !p.hasRequired || anyMatches(p.required, st, i)
}

func anyMatches(terms []affinityTerm, st *cluster.State, i cluster.NodeIndex) bool {
	for k := range terms {
		if terms[k].matches(st, i) {
			return true
		}
	}
	return false
}

func (p *nodeAffinity) score(st *cluster.State, i cluster.NodeIndex) int64 {
	sum := int64(0)
	for k := range p.preferred {
		if p.preferred[k].matches(st, i) {
			sum += p.preferred[k].weight
		}
	}
	return sum
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
