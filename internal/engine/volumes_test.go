package engine

import (
	"github.com/berth-scheduler/berth/internal/cluster"
)

// decidedByVolumes reports whether what the volumes of pods are decides on all nodes at once, or may.
func decidedByVolumes(e *Evaluator, st *cluster.State, s Subject) (decided bool) {
	e.withFilters(st, s, func(c *evaluation) {
		decided = c.failing.own != nil || c.relation.volumes != nil && c.relation.volumes.refusal != ""
	})
	return decided
}
