package engine

import (
	"crypto/sha256"
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

// relations is how the pods of a class with a label set relate to other pods, as far as plugins of their profile care: what they want of
// others is in the class, what others want of them is here.
type relations struct {
	signature Signature // of priority 0
	namespace string
	labels    *cluster.Labels // nil: NoLabels
	of        []relation      // by relatingPlugins
	volumes   *podVolumes     // nil: they have none
	written   uint64          // fnv1a of what the signature was made of, as signatureKey.text writes it
	// onlyProfile is the topology profile of all nodes where other pods do not matter. It says what the volumes of the pods come to, so that
	// it is another one when they have come to something else since; "" if they come to nothing.
	onlyProfile string

	// What they were read from; see current.
	profile                      *cluster.Profile
	terms, namespaces, selectors cluster.Seq
}

// relation is what one plugin has found out about how pods are related to others.
type relation interface {
	// matches writes which of the class's own selectors match its pods. They have labels.
	matches(st *cluster.State, r *relations, key *signatureKey)
	// judge returns the plugin for these pods, its slots added to the topology.
	judge(t *topology, st *cluster.State, r *relations, plugin *Plugin) crossNode
	// leftOut names the topology keys of which judge adds no slot for others, since no node has a label of the key.
	leftOut(st *cluster.State, r *relations, key func(string))
}

// relating is what a plugin finds out with how pods are related to others.
type relating struct {
	*relations
	st              *cluster.State
	spec            *cluster.ClassSpec
	profile         *cluster.Profile // never nil
	key             *signatureKey    // to which goes what tells signatures of the class apart
	filters, scores bool             // whether the profile does so with the plugin
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
	if r := e.relations[key]; r != nil && r.current(st, profile) && r.volumes.current(st, r.labels) {
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
	r := relate(st, s, spec, profile, asOfNow)
	e.relations[key] = r
	return r
}

func (r *relations) current(st *cluster.State, profile *cluster.Profile) bool {
	return r.profile == profile && r.terms == st.TermsModified && r.namespaces == st.NamespacesModified &&
		r.selectors == st.SelectorsModified(r.namespace)
}

// leftOut writes which topology keys of others' terms do not count, as no node has them: one after the other, since others choose how many
// there are.
func (r *relations) leftOut(st *cluster.State, write func([]byte)) {
	var key signatureKey
	for _, one := range r.of {
		one.leftOut(st, r, func(name string) {
			key.b = key.b[:0]
			key.text(name)
			write(key.b)
		})
	}
}

// relate finds out how pods of a subject are related to others, as if no volume had come into use since a seq.
func relate(st *cluster.State, s Subject, spec *cluster.ClassSpec, profile *cluster.Profile, asOf cluster.Seq) *relations {
	r := &relations{
		signature: Signature{class: s.Class}, labels: st.Labels(s.Labels),
		profile: profile, terms: st.TermsModified, namespaces: st.NamespacesModified,
	}
	if r.labels != nil {
		r.namespace = r.labels.Namespace
		r.selectors = st.SelectorsModified(r.namespace)
	}
	if profile == nil {
		d := DefaultProfile(spec.SchedulerName)
		profile = &d
	}
	var key signatureKey
	for _, p := range relatingPlugins() {
		r.of = append(r.of, p.relate(&relating{
			relations: r, st: st, spec: spec, profile: profile, key: &key,
			filters: slices.Contains(profile.Filters, p.Name), scores: scores(profile, p.Name),
		}))
	}
	for _, one := range r.of {
		if r.labels != nil {
			one.matches(st, r, &key)
		}
	}
	related := len(key.b)
	r.volumes = resolveVolumes(st, spec, r.labels, profile, asOf, &key)
	r.signature.matches = key.short()
	var text signatureKey
	text.int(len(key.b))
	r.written = fnv1a(fnv1a(fnvOffset, text.b), key.b)
	if len(key.b) != related {
		r.onlyProfile = string(binary.BigEndian.AppendUint64(nil, cluster.Mix(r.written)))
	}
	return r
}

// 64-bit FNV-1a. Unlike hash/fnv it goes on from where it has been.
const fnvOffset = 14695981039346656037

func fnv1a(h uint64, b []byte) uint64 {
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

// shortKey is how long a key may be to stand for itself.
const shortKey = 32

// short returns the key, or what stands for it if it is long: others choose how long it is. No two keys are the same then.
func (k *signatureKey) short() string {
	if len(k.b) <= shortKey {
		return string(k.b)
	}
	sum := sha256.Sum256(k.b)
	return "#" + string(sum[:]) // longer than what stands for itself
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
