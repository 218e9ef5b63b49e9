package queue

import (
	"context"
	"fmt"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/services/queue/pending"
)

// What a message of a cycle takes grows with the pods of its batch, and with what users have made: nodes, signatures, and
// groups of nodes, one per node in the worst case. A batch for which one is too large is given back, and the next is half as
// large, and so on down to one pod. Batches grow again as long as that goes well.

// limit is how many pods the next batch has at most.
func (d *driver) limit() int {
	if d.most > 0 {
		return d.most
	}
	return d.s.cfg.BatchSize
}

// widen makes the batch behind this one larger, if batches have been cut.
func (d *driver) widen() {
	if d.most += (d.most + 3) / 4; d.most >= d.s.cfg.BatchSize {
		d.most = 0
	}
}

// tooLarge handles a batch of which a message was too large. A pod that is a batch by itself cannot be placed in this cluster:
// it waits until it has changed, or for as long as parked pods do.
func (d *driver) tooLarge(ctx context.Context, b *batch, open map[int]bool, stage string, err error) error {
	n := len(b.attempts)
	d.progress++ // it ends: do not wait
	if n > 1 {
		d.most = n / 2
		d.s.metrics.retries.WithLabelValues("too_large").Add(float64(n))
		d.log.Warn("batch too large for a message, halved", "stage", stage, "pods", n, "err", err)
		return nil
	}
	d.log.Error("pod too large for a message, parked", "stage", stage, "uid", b.attempts[0].UID, "err", err)
	message := fmt.Sprintf("%s: what has to be said of this pod alone is too large for a message: %v", stage, err)
	return d.read(ctx, func(st *cluster.State) {
		d.sh.with(func(q *pending.Queue, now time.Time) {
			if !open[0] {
				return
			}
			q.Park(now, st, b.attempts[0], pending.Parking{Message: message, Version: st.Version(), Wake: pending.WhenChanged})
			d.decided(b, 0, resultUnschedulable, message)
			delete(open, 0)
			d.reports.add(b.attempts[0], reasonUnschedulable, message, true)
		})
	})
}
