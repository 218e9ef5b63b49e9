package whatif

import (
	"fmt"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Drained is what comes of draining nodes.
type Drained struct {
	Moved []Moved // pods that had to go, in the order in which their turns come; see Outcome for where they go
	Stays []Stay  // pods that a drain leaves where they are
}

// Drain says where the pods of nodes would go if the nodes were drained: it cordons them, takes their pods away all at once, and
// places them again.
func Drain(w *World, nodes []string, o PlaceOptions) (Drained, error) {
	moved, stays, err := Evict(w, nodes...)
	if err != nil {
		return Drained{}, err
	}
	ids := make([]cluster.PodID, len(moved))
	for k := range moved {
		ids[k] = moved[k].Pod
	}
	outcomes, err := Place(w, ids, o)
	if err != nil {
		return Drained{}, fmt.Errorf("drain: %w", err)
	}
	for k := range moved {
		moved[k].PodOutcome = outcomes[k]
	}
	slices.SortStableFunc(moved, func(a, b Moved) int { return compareTurn(w.turn(a.Pod), w.turn(b.Pod)) })
	return Drained{Moved: moved, Stays: stays}, nil
}

// turn returns a pod for compareTurn; an empty one if it is gone.
func (w *World) turn(id cluster.PodID) *cluster.PodRow {
	if row := w.State().Pod(id); row != nil {
		return row
	}
	return new(cluster.PodRow)
}
