package engine

import (
	"fmt"
	"slices"
	"strings"

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

var nodeAffinity = Descriptor{
	Name: NodeAffinity, Points: []string{"preFilter", "filter", "preScore", "score"},
	Judges:     []Aspect{NodeTerms},
	Predicates: []string{"GeneralPredicates", "MatchNodeSelector"}, Priorities: []string{"NodeAffinityPriority"},
	reasons: []Reason{
		{Text: ReasonNodeAffinity}, {Text: ReasonNodeAffinityEnforced}, {Text: ReasonNodeAffinityOutside, before: true},
		{Text: ReasonNodeAffinityConflict, before: true, alone: true},
	},
	elsewhere: affinityOutside,
	scale:     mostScale,
	compile: func(c *compiler) compiled {
		p := &affinity{nodeSelection: c.program.selection, spec: c.spec, profile: c.profile, code: c.plugin.code}
		out := compiled{survey: p.survey, surveyBefore: p.surveyNames}
		if p.hasRequired && slices.Contains(c.profile.PreFilters, NodeAffinity) {
			if p.names, p.narrowed = namedNodes(c.spec.Required); p.narrowed {
				out.before = p.narrow
			}
		}
		if p.hasEnforced = c.profile.HasAddedRequired; p.hasEnforced {
			p.enforced = c.affinityTerms(c.profile.AddedRequired)
		}
		if p.hasEnforced || p.hasRequired || len(p.selector) > 0 {
			out.filter = p.filter
		}
		if c.scores() {
			if err := p.prefer(c); err != nil {
				out.broken = err.Error()
			}
		}
		if len(p.preferred) > 0 {
			out.score = p.score
		}
		return out
	},
	short: inWords("does not match its node selector or affinity", "do not match its node selector or affinity"),
	text: func(l *Lack, _ Blocker) string {
		switch {
		case l.Wanted == nil && l.Reason != ReasonNodeAffinity && l.Reason != ReasonNodeAffinityEnforced:
			return l.Reason // the pod cannot be judged
		case l.Wanted == nil:
			return "no required node affinity term can match any node"
		case l.Field:
			return "wanted: " + RequirementText(l.Wanted)
		}
		has, of := "label "+l.Wanted.Key+" is missing", ""
		if l.HasValue {
			has = fmt.Sprintf("label %s is %q", l.Wanted.Key, l.Value)
		}
		if l.Reason == ReasonNodeAffinityEnforced {
			of = " by the profile"
		}
		return fmt.Sprintf("%s, wanted%s: %s", has, of, RequirementText(l.Wanted))
	},
}

// The places of the reasons.
const (
	affinityOwn Verdict = iota
	affinityEnforced
	affinityOutside
	affinityConflict
)

// affinity is the plugin of a class.
type affinity struct {
	nodeSelection
	spec    *cluster.ClassSpec
	profile *cluster.Profile
	code    Verdict

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

// prefer compiles the preferred terms. The error is what kube-scheduler's PreScore fails the pod with.
func (p *affinity) prefer(c *compiler) error {
	preferred := slices.Concat(c.spec.Preferred, c.profile.AddedPreferred)
	for k := range preferred {
		pref := &preferred[k]
		if pref.Weight == 0 || isEmptyTerm(&pref.Term) {
			continue
		}
		t, err := c.affinityTerm(&pref.Term)
		if err != nil {
			return fmt.Errorf("parse preferred node affinity term %d: %w", k, err)
		}
		p.preferred = append(p.preferred, preferredTerm{int64(pref.Weight), t})
	}
	return nil
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

// refusedBefore reports whether the pod's terms contradict each other, and a profile says so before it asks the plugin of that name.
func (c *compiler) refusedBefore(plugin string) bool {
	names, narrowed := namedNodes(c.spec.Required)
	order := c.profile.PreFilters
	at := slices.Index(order, NodeAffinity)
	return c.spec.HasRequired && narrowed && len(names) == 0 && at >= 0 && at < slices.Index(order, plugin)
}

// narrow says why a node is set aside before any filter runs.
func (p *affinity) narrow(st *cluster.State, i cluster.NodeIndex, _ *overlay) Verdict {
	if len(p.names) == 0 {
		return p.code + affinityConflict | unresolvable
	}
	if _, found := slices.BinarySearch(p.names, st.Nodes.Spec[i].Name); !found {
		return p.code + affinityOutside | unresolvable
	}
	return codeFeasible
}

func (p *affinity) filter(st *cluster.State, i cluster.NodeIndex, _ *overlay) Verdict {
	switch {
	case p.hasEnforced && !anyMatches(p.enforced, st, i):
		return p.code + affinityEnforced | unresolvable
	case !p.admits(st, i):
		return p.code + affinityOwn | unresolvable
	}
	return codeFeasible
}

func (p *affinity) score(st *cluster.State, i cluster.NodeIndex) int64 {
	sum := int64(0)
	for k := range p.preferred {
		if p.preferred[k].matches(st, i) {
			sum += p.preferred[k].weight
		}
	}
	return sum
}

// systemLabels are the prefixes of labels that say what a node is. To change them would be to lie.
var systemLabels = []string{
	"kubernetes.io/", "beta.kubernetes.io/", "node.kubernetes.io/", "topology.kubernetes.io/", "failure-domain.beta.kubernetes.io/",
}

// affinityLack returns what a node lacks that is not met, for one of the reasons; nil if no node could meet the terms.
func affinityLack(reason string, wanted *cluster.Requirement, term, index int, field bool) Lack {
	l := Lack{Plugin: NodeAffinity, Reason: reason, Unresolvable: true, Relative: 1, Wanted: wanted, Term: term, Index: index, Field: field}
	if wanted != nil && reason == ReasonNodeAffinity {
		l.Help |= HelpConditions
	}
	if wanted != nil && !field && !slices.ContainsFunc(systemLabels, func(p string) bool { return strings.HasPrefix(wanted.Key, p) }) {
		l.Help |= HelpLabels
	}
	return l
}

// surveyNames tells of nodes that have been set aside by their names.
func (p *affinity) surveyNames(s *surveyor) surveyFunc {
	names := &cluster.Requirement{Key: nameField, Operator: "In", Values: p.names}
	return func(i cluster.NodeIndex, _ *overlay, out []Lack) []Lack {
		switch p.narrow(s.st, i, nil) {
		case codeFeasible:
			return out
		case p.code + affinityConflict | unresolvable:
			return append(out, affinityLack(ReasonNodeAffinityConflict, names, -1, 0, true))
		}
		return append(out, affinityLack(ReasonNodeAffinityOutside, names, -1, 0, true))
	}
}

// survey adds what the pod's node selector and affinity terms and the profile's want.
func (p *affinity) survey(s *surveyor) surveyFunc {
	var selector []cluster.Requirement
	for _, l := range p.spec.NodeSelector {
		selector = append(selector, cluster.Requirement{Key: l.Key, Operator: "In", Values: []string{l.Value}})
	}
	required, enforced := sourceTerms(s.st, p.spec.Required), sourceTerms(s.st, p.profile.AddedRequired)
	return func(i cluster.NodeIndex, _ *overlay, out []Lack) []Lack {
		if p.hasEnforced {
			out = unmetTerms(s.st, i, enforced, ReasonNodeAffinityEnforced, false, out)
		}
		for k, want := range p.selector {
			if got, ok := labelOf(s.st.Nodes.Labels[i], want.Key); !ok || got != want.Value {
				out = append(out, affinityLack(ReasonNodeAffinity, &selector[k], -1, k, false))
			}
		}
		if p.hasRequired {
			named := p.narrowed && p.narrow(s.st, i, nil) != codeFeasible // it has been told that the node has another name
			out = unmetTerms(s.st, i, required, ReasonNodeAffinity, named, out)
		}
		return out
	}
}

// sourceTerm is a node selector term that can match, compiled, and what it was compiled from.
type sourceTerm struct {
	affinityTerm
	source *cluster.NodeSelectorTerm
	index  int
}

func sourceTerms(st *cluster.State, terms []cluster.NodeSelectorTerm) []sourceTerm {
	c := compiler{st: st}
	var out []sourceTerm
	for k := range terms {
		if t, err := c.affinityTerm(&terms[k]); err == nil && !isEmptyTerm(&terms[k]) {
			out = append(out, sourceTerm{t, &terms[k], k})
		}
	}
	return out
}

// unmetTerms adds what a node lacks of the term of which it lacks least, the first of several. Named says that it has been told already
// that the node has another name.
func unmetTerms(st *cluster.State, i cluster.NodeIndex, terms []sourceTerm, reason string, named bool, out []Lack) []Lack {
	if len(terms) == 0 {
		return append(out, affinityLack(reason, nil, 0, 0, false))
	}
	var nearest *sourceTerm
	least := 0
	for k := range terms {
		if n := terms[k].unmet(st, i, named, nil); nearest == nil || n < least {
			nearest, least = &terms[k], n
		}
	}
	if least > 0 {
		nearest.unmet(st, i, named, func(index int, field bool, wanted *cluster.Requirement) {
			out = append(out, affinityLack(reason, wanted, nearest.index, index, field))
		})
	}
	return out
}

// unmet counts the conditions that a node does not meet, but those on its name if that has been told, and calls visit for
// each, if there is one.
func (t *sourceTerm) unmet(st *cluster.State, i cluster.NodeIndex, named bool, visit func(index int, field bool, wanted *cluster.Requirement)) int {
	count := 0
	for k := range t.labels {
		if t.labels[k].matches(st, i) {
			continue
		}
		if count++; visit != nil {
			visit(k, false, &t.source.Expressions[k])
		}
	}
	for k := range t.fields {
		one := affinityTerm{fields: t.fields[k : k+1]}
		if named && t.fields[k].isName || one.matches(st, i) {
			continue
		}
		if count++; visit != nil {
			visit(k, true, &t.source.Fields[k])
		}
	}
	return count
}
