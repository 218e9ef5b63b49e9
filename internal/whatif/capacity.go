package whatif

import (
	"fmt"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/source"
)

const (
	// MaxCapacity bounds how many pods Capacity counts, and
	MaxCapacity = 1_000_000
	// maxCapacityPlaced how many if it has to place each of them, since pods on other nodes decide too.
	maxCapacityPlaced = 10_000
)

// Room is how many more of a pod fit.
type Room struct {
	Pods    int  // as if placed one after the other by Berth
	AtLeast bool // there may be room for more: the limit was reached
	// What stops the next one, unless AtLeast (of a name that is left to another scheduler, Message alone): how many nodes there are, why not these, and kube-scheduler's text.
	Nodes    int
	Verdicts []engine.VerdictCount
	Message  string
	Notes    []string // which plugins of others have not been asked
}

// Capacity says how many more pods like one fit, up to a limit from 1 to MaxCapacity, without preemption. Where pods on other
// nodes decide, as by required pod anti-affinity, each is placed, and the limit is 10,000 at most. So it is where the pod has claims: those that a
// StatefulSet, or an ephemeral volume, makes for each pod, each has for itself, not bound and as large as the pod's; all others they share. Of pods with
// claims for themselves, whose labels and claims have long names, there are fewer: 16 MiB of these. The World is as before when it returns.
func Capacity(w *World, pod source.Pod, limit int) (Room, error) {
	if limit < 1 || limit > MaxCapacity {
		return Room{}, fmt.Errorf("capacity: %w: limit %d, want 1 to %d", ErrTooMuch, limit, MaxCapacity)
	}
	var room Room
	err := w.Try(func() error {
		own := ownClaimsOf(w.State(), &pod)
		first := Copies(pod, 1)[0]
		first.Name, first.Gates, first.UID = pod.Name, nil, first.UID+" (capacity)"
		id, err := w.addCopy(first, own, 0)
		if err != nil {
			return err
		}
		if like, ok := w.Pod(id); ok {
			if err := w.MayCompare([]source.Pod{like}); err != nil {
				return err
			}
		}
		row := w.State().Pod(id)
		subject := engine.SubjectOf(&row.Pod)
		inquiry, err := w.inquiry(w.State().Class(row.Class).Spec.SchedulerName)
		if err != nil {
			return err
		}
		asks := inquiry != nil // each pod is asked about
		switch {
		case w.State().Profile(w.State().Class(row.Class).Spec.SchedulerName) == nil:
			return fmt.Errorf("no profile is of the scheduler %q", w.State().Class(row.Class).Spec.SchedulerName)
		case w.State().Yields(row.Class):
			room.Message = "pods of " + w.State().Class(row.Class).Spec.SchedulerName + " are left to another scheduler: " + w.State().Settings.YieldedTo
			return nil
		case row.RequiredNode == "" && !asks:
			if c, ok := w.Evaluator().Capacity(w.State(), subject, int64(limit)); ok {
				room = Room{Pods: int(c.Pods), AtLeast: c.Pods >= int64(limit), Notes: NotAskedOf(w, []cluster.PodID{id})}
				if !room.AtLeast {
					room.Nodes, room.Verdicts, room.Message = int(c.Nodes), c.Verdicts, engine.FitMessage(int(c.Nodes), c.Verdicts)
				}
				return nil
			}
		}
		most := min(limit, maxCapacityPlaced)
		if len(own) > 0 {
			most = min(most, max(maxSetBytes/len(first.Labels.Key()), 1))
		}
		room, err = w.fill(id, first, own, most)
		room.Notes = NotAskedOf(w, []cluster.PodID{id})
		return err
	})
	if err != nil {
		return Room{}, fmt.Errorf("capacity: %w", err)
	}
	return room, nil
}

// fill places pods like one, and it first, until one fits nowhere or there are so many.
func (w *World) fill(id cluster.PodID, pod source.Pod, own []ownClaim, limit int) (Room, error) {
	var room Room
	for batch := 16; ; batch = min(2*batch, window) {
		ids := []cluster.PodID{id}
		for k := len(ids); k < min(batch, limit-room.Pods); k++ {
			next := pod
			next.UID = fmt.Sprintf("%s %d", pod.UID, room.Pods+k)
			id, err := w.addCopy(next, own, room.Pods+k)
			if err != nil {
				return room, err
			}
			ids = append(ids, id)
		}
		outcomes, err := Place(w, ids, PlaceOptions{apart: true})
		if err != nil {
			return room, err
		}
		for k := range outcomes {
			if o := &outcomes[k]; o.Outcome != Placed {
				room.Nodes, room.Verdicts, room.Message = o.Nodes, o.Verdicts, o.Message
				return room, nil
			}
			room.Pods++
		}
		if room.AtLeast = room.Pods >= limit; room.AtLeast {
			return room, nil
		}
		next := pod
		next.UID = fmt.Sprintf("%s %d", pod.UID, room.Pods)
		if id, err = w.addCopy(next, own, room.Pods); err != nil {
			return room, err
		}
	}
}
