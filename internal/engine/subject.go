package engine

import "github.com/berth-scheduler/berth/internal/cluster"

// Subject is what filters and scores see of a pod: they treat pods of equal subjects alike, and often others too; see
// Kind. Which node the pod is pinned or nominated to is not part of it.
type Subject struct {
	Class    cluster.ClassID
	Labels   cluster.LabelsID
	Priority int32
}

// SubjectOf returns a pod's subject.
func SubjectOf(p *cluster.Pod) Subject { return Subject{p.Class, p.Labels, p.Priority} }

// Kind tells subjects apart that filters and scores may treat differently. Kinds are comparable; one says nothing
// about a state of another version.
type Kind struct {
	class    cluster.ClassID
	priority int32
	matches  string
}

// Kind returns the kind of a subject in a state.
func (e *Evaluator) Kind(st *cluster.State, s Subject) Kind {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.follow(st)
	k, _ := e.kind(st, s)
	return k
}

// kind returns a subject's kind, and its relations, nil if the state does not have its class. The lock is held.
func (e *Evaluator) kind(st *cluster.State, s Subject) (Kind, *relations) {
	if st.Class(s.Class) == nil {
		return Kind{class: s.Class}, nil
	}
	r := e.related(st, s)
	k := r.kind
	if st.Nominations() > 0 {
		k.priority = s.Priority
	}
	return k, r
}
