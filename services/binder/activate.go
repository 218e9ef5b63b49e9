package binder

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/pluginhost"
)

// Pods that plugin services want tried are activated every activateEvery, activatedAtOnce of each service at most, and each no more often than after activateAgain: plugins that want it without an end take no more of
// the log than that.
const (
	activateEvery   = 50 * time.Millisecond
	activatedAtOnce = 250
	activateAgain   = time.Second
)

// activateLane has the shards of pods try them that plugin services want tried. An error ends the term.
func (t *term) activateLane(ctx context.Context) error {
	services := t.services()
	if services == nil {
		return nil
	}
	look := time.NewTicker(activateAgain) // at what was too soon
	defer look.Stop()
	pause := time.NewTimer(0)
	defer pause.Stop()
	type how struct {
		uid string
		now bool
	}
	recent := make(map[how]time.Time) // when pods were activated last
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-services.Activations():
		case <-look.C:
		}
		now := time.Now()
		maps.DeleteFunc(recent, func(_ how, at time.Time) bool { return now.Sub(at) >= activateAgain })
		var due []pluginhost.Activated // those that are to be tried now first: who is woken too is activated
		for _, a := range services.TakeActivated(activatedAtOnce) {
			if _, ok := recent[how{a.UID, a.Now}]; ok && !a.All {
				services.Again(a)
			} else {
				due = append(due, a)
			}
		}
		slices.SortStableFunc(due, func(a, b pluginhost.Activated) int {
			switch {
			case a.Now == b.Now:
				return 0
			case a.Now:
				return -1
			}
			return 1
		})
		if len(due) > 0 {
			if err := t.activate(due); err != nil {
				return err
			}
		}
		for _, a := range due {
			recent[how{a.UID, a.Now}] = now
		}
		pause.Reset(activateEvery)
	}
}

// hearLane has services heard that say which pods are to be tried.
func (t *term) hearLane(ctx context.Context) error {
	if services := t.services(); services != nil {
		services.Hear(ctx, cluster.Epoch(t.epoch))
	}
	return nil
}

// activate says in the log that pods are to be tried, of those that wait, and are of a profile that uses the service. An error ends the term.
func (t *term) activate(wanted []pluginhost.Activated) error {
	return t.ledger.update(func(tx *tx) error {
		seen := make(map[cluster.PodID]bool, len(wanted))
		for _, a := range wanted {
			id := cluster.NoPod
			if !a.All {
				var ok bool
				if id, ok = tx.state.PodByUID(a.UID); !ok {
					continue
				}
				row := tx.state.Pod(id)
				if row.Phase != cluster.Pending || !t.services().Concerns(a, tx.state.Class(row.Class).Spec.SchedulerName) {
					continue
				}
			}
			if seen[id] {
				continue
			}
			seen[id] = true
			if err := tx.apply(cluster.PodActivated{ID: id, AfterBackoff: !a.Now && !a.All}); err != nil {
				return err
			}
		}
		return nil
	})
}
