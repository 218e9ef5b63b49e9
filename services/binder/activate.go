package binder

import (
	"context"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/pluginhost"
)

// Pods that plugin services want tried are activated every activateEvery, activatedAtOnce of each service at most: plugins that want it without an end take no more of the log than that.
const (
	activateEvery   = 50 * time.Millisecond
	activatedAtOnce = 250
)

// A service that may have something to say of pods, and cannot be begun anew at once, is tried again after hearSoon, and then after twice as long each time, up to hearLate.
const (
	hearSoon = time.Second
	hearLate = 30 * time.Second
)

// activateLane has the shards of pods try them that plugin services want tried. An error ends the term.
func (t *term) activateLane(ctx context.Context) error {
	services := t.services()
	if services == nil {
		return nil
	}
	pause := time.NewTimer(0)
	defer pause.Stop()
	retry, later := time.NewTimer(0), hearSoon
	defer retry.Stop()
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
		case <-retry.C:
		}
		if services.Hear(ctx, cluster.Epoch(t.epoch)) {
			later = hearSoon
		} else {
			retry.Reset(later)
			later = min(2*later, hearLate)
		}
		if err := t.activate(services.TakeActivated(activatedAtOnce)); err != nil {
			return err
		}
		pause.Reset(activateEvery)
	}
}

// activate says in the log that pods are to be tried, of those that wait, and are of a profile that uses the service. An error ends the term.
func (t *term) activate(wanted []pluginhost.Activated) error {
	return t.ledger.update(func(tx *tx) error {
		seen := make(map[cluster.PodID]bool, len(wanted))
		for _, a := range wanted {
			if a.UID == "" {
				if err := tx.apply(cluster.PodActivated{ID: cluster.NoPod}); err != nil {
					return err
				}
				continue
			}
			id, ok := tx.state.PodByUID(a.UID)
			if !ok || seen[id] {
				continue
			}
			row := tx.state.Pod(id)
			if row.Phase != cluster.Pending || !t.services().Concerns(a, tx.state.Class(row.Class).Spec.SchedulerName) {
				continue
			}
			seen[id] = true
			if err := tx.apply(cluster.PodActivated{ID: id, AfterBackoff: !a.Now}); err != nil {
				return err
			}
		}
		return nil
	})
}
