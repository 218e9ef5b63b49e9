package engine

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// maxRelations bounds how many subjects an Evaluator remembers the relations of.
// With many label sets it is so many for each, so that as many subjects as there are pods that wait never drive each other out.
const (
	maxRelations    = 1 << 16
	relationsPerSet = 4
)

// relations is how the pods of a class with a label set relate to other pods, as far as PodTopologySpread and
// InterPodAffinity of their profile care: what they want of others is in the class, what others want of them is here.
type relations struct {
	signature Signature // of priority 0
	namespace string
	labels    *cluster.Labels // nil: NoLabels

	spread     []cluster.SpreadConstraint // in force: the class's own, or the profile's with the pod's default selector
	requireAll bool                       // nodes that lack a topology key of a soft constraint do not score
	carriers   []carrier
	filters    struct{ spread, interPod bool } // whether the profile filters with the plugin
	scores     struct{ spread, interPod bool }

	// What they were read from; see current.
	profile                      *cluster.Profile
	terms, namespaces, selectors cluster.Seq
}

// carrier is a term of other pods that matches the pods.
type carrier struct {
	class  cluster.ClassID // whose pods carry it
	key    string          // its topology key
	blocks bool            // it is required anti-affinity
	weight int64           // what it scores; 0 if it blocks
}

// subjectKey is a Subject without its priority.
type subjectKey struct {
	class  cluster.ClassID
	labels cluster.LabelsID
}

// related returns the relations of a subject whose class the state has. The Evaluator's lock is held.
func (e *Evaluator) related(st *cluster.State, s Subject) *relations {
	key := subjectKey{s.Class, s.Labels}
	spec := &st.Class(s.Class).Spec
	profile := st.Profile(spec.SchedulerName)
	if r := e.relations[key]; r != nil && r.current(st, profile) {
		return r
	}
	if len(e.relations) >= e.sweepRelations {
		maps.DeleteFunc(e.relations, func(k subjectKey, _ *relations) bool {
			return st.Class(k.class) == nil || k.labels != cluster.NoLabels && st.Labels(k.labels) == nil
		})
		e.sweepRelations = len(e.relations) + len(e.relations)/4 + minSwept
	}
	if e.relations == nil || len(e.relations) >= max(maxRelations, relationsPerSet*st.LabelSetCount()) {
		e.relations = make(map[subjectKey]*relations)
	}
	r := relate(st, s, spec, profile)
	e.relations[key] = r
	return r
}

func (r *relations) current(st *cluster.State, profile *cluster.Profile) bool {
	return r.profile == profile && r.terms == st.TermsModified && r.namespaces == st.NamespacesModified &&
		r.selectors == st.SelectorsModified(r.namespace)
}

func relate(st *cluster.State, s Subject, spec *cluster.ClassSpec, profile *cluster.Profile) *relations {
	r := &relations{
		signature: Signature{class: s.Class}, labels: st.Labels(s.Labels),
		profile: profile, terms: st.TermsModified, namespaces: st.NamespacesModified,
	}
	if r.labels != nil {
		r.namespace = r.labels.Namespace
		r.selectors = st.SelectorsModified(r.namespace)
	}
	if profile == nil {
		d := cluster.DefaultProfile(spec.SchedulerName)
		profile = &d
	}
	r.filters.spread = slices.Contains(profile.Filters, PodTopologySpread)
	r.filters.interPod = slices.Contains(profile.Filters, InterPodAffinity)
	r.scores.spread = scores(profile, PodTopologySpread)
	r.scores.interPod = scores(profile, InterPodAffinity)

	var key signatureKey
	r.spread, r.requireAll = r.constraints(st, spec, profile, &key)
	r.carriers = r.carried(st, spec, profile, &key)
	if r.labels != nil {
		for k := range r.spread {
			key.bool(r.spread[k].Selector.Matches(r.labels.Labels))
		}
		if r.filters.interPod && len(spec.Affinity) > 0 {
			key.bool(newPodMatchers(st, spec.Affinity).all(&r.labels.LabelSet))
		}
	}
	r.signature.matches = string(key.b)
	return r
}

// signatureKey writes what tells signatures of one class apart.
type signatureKey struct{ b []byte }

func (k *signatureKey) int(v int)     { k.b = binary.AppendVarint(k.b, int64(v)) }
func (k *signatureKey) text(s string) { k.int(len(s)); k.b = append(k.b, s...) }
func (k *signatureKey) bool(v bool) {
	if v {
		k.int(1)
	} else {
		k.int(0)
	}
}

// constraints returns the spread constraints in force, as PodTopologySpread's filtering and scoring pick them.
func (r *relations) constraints(st *cluster.State, spec *cluster.ClassSpec, profile *cluster.Profile, key *signatureKey) ([]cluster.SpreadConstraint, bool) {
	if !r.filters.spread && !r.scores.spread || r.labels == nil {
		return nil, true
	}
	own := len(spec.Spread) > 0
	all := spec.Spread
	if !own {
		all = profile.DefaultSpread
	}
	in := slices.DeleteFunc(slices.Clone(all), func(c cluster.SpreadConstraint) bool {
		return c.Hard && !r.filters.spread || !c.Hard && !r.scores.spread
	})
	if len(in) == 0 {
		return nil, true
	}
	if !own {
		selector := defaultSelector(st, &r.labels.LabelSet)
		if selector.Empty() {
			return nil, true
		}
		for k := range in {
			in[k].Selector = selector
		}
		for _, q := range selector.Requirements {
			key.text(q.Key)
			key.text(q.Operator)
			key.int(len(q.Values))
			for _, v := range q.Values {
				key.text(v)
			}
		}
		key.bool(selector.Nothing)
	}
	key.text(r.namespace)
	return in, own || !profile.SystemSpread
}

// carried returns the terms of all classes that match the subject's pods.
func (r *relations) carried(st *cluster.State, spec *cluster.ClassSpec, profile *cluster.Profile, key *signatureKey) []carrier {
	scoring := r.scores.interPod &&
		(!profile.IgnorePreferredTerms || len(spec.PreferredAffinity)+len(spec.PreferredAntiAffinity) > 0)
	if r.labels == nil || !r.filters.interPod && !scoring {
		return nil
	}
	var out []carrier
	namespace, _ := st.Namespace(r.namespace)
	add := func(class cluster.ClassID, index int, t *cluster.PodTerm, c carrier) {
		named := slices.Contains(t.Namespaces, r.namespace) || t.NamespaceSelector.Matches(namespace)
		if named && t.Selector.Matches(r.labels.Labels) {
			c.class, c.key = class, t.TopologyKey
			out = append(out, c)
			key.int(int(class))
			key.int(index)
		}
	}
	for _, id := range st.TermClasses() {
		other := &st.Class(id).Spec
		index := 0
		for k := range other.AntiAffinity {
			if r.filters.interPod {
				add(id, index, &other.AntiAffinity[k], carrier{blocks: true})
			}
			index++
		}
		if !scoring {
			continue
		}
		for k := range other.Affinity {
			if profile.HardPodAffinityWeight > 0 {
				add(id, index, &other.Affinity[k], carrier{weight: int64(profile.HardPodAffinityWeight)})
			}
			index++
		}
		for k := range other.PreferredAffinity {
			add(id, index, &other.PreferredAffinity[k].Term, carrier{weight: int64(other.PreferredAffinity[k].Weight)})
			index++
		}
		for k := range other.PreferredAntiAffinity {
			add(id, index, &other.PreferredAntiAffinity[k].Term, carrier{weight: -int64(other.PreferredAntiAffinity[k].Weight)})
			index++
		}
	}
	return out
}

// defaultSelector returns what the default constraints of a pod select: what all services that select the pod, and its
// controller, select together.
func defaultSelector(st *cluster.State, pod *cluster.LabelSet) cluster.LabelSelector {
	// 1. The services agree on the labels that they share, since they select the same pod.
	var out cluster.LabelSelector
	for _, selector := range st.Services(pod.Namespace) {
		if selector.Matches(pod.Labels) {
			out.Requirements = append(out.Requirements, selector.Requirements...)
		}
	}
	// 2. A ReplicationController's labels take the place of theirs; the selectors of others come in addition.
	if c := pod.Controller; c.Kind != "" {
		if selector, ok := st.Selector(c.Kind, pod.Namespace, c.Name); ok && !selector.Nothing {
			if c.Kind == cluster.KindReplicationController {
				out.Requirements = slices.DeleteFunc(out.Requirements, func(q cluster.Requirement) bool {
					return slices.ContainsFunc(selector.Requirements, func(r cluster.Requirement) bool { return r.Key == q.Key })
				})
			}
			out.Requirements = append(out.Requirements, selector.Requirements...)
		}
	}
	slices.SortFunc(out.Requirements, compareRequirements)
	out.Requirements = slices.CompactFunc(out.Requirements, func(a, b cluster.Requirement) bool { return compareRequirements(a, b) == 0 })
	return out
}

func compareRequirements(a, b cluster.Requirement) int {
	return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Operator, b.Operator), slices.Compare(a.Values, b.Values))
}
