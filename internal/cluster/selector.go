package cluster

import (
	"cmp"
	"slices"
)

// LabelSelector says which labels match: those that meet all requirements. The zero selector matches everything.
type LabelSelector struct {
	Requirements []Requirement // In, NotIn, Exists or DoesNotExist; by key
	Nothing      bool          // it matches nothing, whatever the requirements
}

// Empty reports whether the selector matches everything.
func (s *LabelSelector) Empty() bool { return !s.Nothing && len(s.Requirements) == 0 }

func (s *LabelSelector) equal(other *LabelSelector) bool {
	return s.Nothing == other.Nothing && slices.EqualFunc(s.Requirements, other.Requirements, func(a, b Requirement) bool {
		return a.Key == b.Key && a.Operator == b.Operator && slices.Equal(a.Values, b.Values)
	})
}

// Matches reports whether labels, which are sorted by key, match. As in Kubernetes, NotIn also matches where the key
// is missing.
func (s *LabelSelector) Matches(labels []Label) bool {
	if s.Nothing {
		return false
	}
	for k := range s.Requirements {
		if !s.Requirements[k].matches(labels) {
			return false
		}
	}
	return true
}

func (r *Requirement) matches(labels []Label) bool {
	value, ok := ValueOf(labels, r.Key)
	switch r.Operator {
	case "In":
		return ok && slices.Contains(r.Values, value)
	case "NotIn":
		return !ok || !slices.Contains(r.Values, value)
	case "Exists":
		return ok
	case "DoesNotExist":
		return !ok
	}
	return false
}

// ValueOf returns the value of a key among labels that are sorted by key.
func ValueOf(labels []Label, key string) (string, bool) {
	k, ok := slices.BinarySearchFunc(labels, key, func(l Label, key string) int { return cmp.Compare(l.Key, key) })
	if !ok {
		return "", false
	}
	return labels[k].Value, true
}
