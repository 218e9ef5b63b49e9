package engine

import (
	"fmt"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Subject is what filters and scores see of a pod: they treat pods of equal subjects alike, and often others too; see
// Signature. Which node the pod requires or is nominated to is not part of it.
type Subject struct {
	Class    cluster.ClassID
	Labels   cluster.LabelsID
	Priority int32
}

// SubjectOf returns a pod's subject.
func SubjectOf(p *cluster.Pod) Subject { return Subject{p.Class, p.Labels, p.Priority} }

// Signature tells subjects apart that filters and scores may treat differently. Signatures are comparable; one says nothing
// about a state of another version.
type Signature struct {
	class    cluster.ClassID
	priority int32
	matches  string
}

// Signature returns the signature of a subject in a state.
func (e *Evaluator) Signature(st *cluster.State, s Subject) Signature {
	k, _ := e.relationsOf(st, s)
	return k
}

// relationsOf returns the signature of a subject and its relations, nil if the state does not have its class.
func (e *Evaluator) relationsOf(st *cluster.State, s Subject) (Signature, *relations) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.follow(st)
	return e.signature(st, s)
}

// relationsAsOf is relationsOf if no volume had come into use since a seq.
func (e *Evaluator) relationsAsOf(st *cluster.State, s Subject, seq cluster.Seq) (Signature, *relations) {
	k, r := e.relationsOf(st, s)
	if r == nil || r.volumes == nil {
		return k, r
	}
	spec := &st.Class(s.Class).Spec
	r = relate(st, s, spec, st.Profile(spec.SchedulerName), seq)
	k.matches = r.signature.matches
	return k, r
}

// SignatureAlone returns a signature that is no other subject's, for one of which none can be found.
func SignatureAlone(s Subject) Signature {
	return Signature{class: s.Class, priority: s.Priority, matches: fmt.Sprintf("alone: %+v", s)}
}

// signature returns a subject's signature, and its relations, nil if the state does not have its class. The lock is held.
func (e *Evaluator) signature(st *cluster.State, s Subject) (Signature, *relations) {
	if st.Class(s.Class) == nil {
		return Signature{class: s.Class}, nil
	}
	r := e.related(st, s)
	k := r.signature
	if st.Nominations() > 0 {
		k.priority = s.Priority
	}
	return k, r
}
