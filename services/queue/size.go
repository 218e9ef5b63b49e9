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
// large, and so on down to one pod. The same is done with a batch that is refused, or with which each worker fails: one of its pods may be
// to blame, and the others must not wait for it. Of a batch for which the binder has no room the first half is sent (commit). Batches grow again as long as that goes well.

// claimsAtATime bounds how many claims the pods of a batch have, but for those of the last pod. Each claim is looked up when the batch is popped, for
// which the queue, and with it the log, waits.
const claimsAtATime = 1024

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
// it waits until it has changed, or for as long as unschedulable pods do.
func (c *cycle) tooLarge(ctx context.Context, stage string, err error) error {
	n := len(c.attempts)
	c.progress++ // it ends: do not wait
	if n > 1 {
		c.most = n / 2
		again(c.attempts, "too_large")
		c.log.Warn("batch too large for a message, halved", "stage", stage, "pods", n, "err", err)
		return nil
	}
	c.log.Error("pod too large for a message, unschedulable", "stage", stage, "uid", c.attempts[0].UID, "err", err)
	message := fmt.Sprintf("%s: what has to be said of this pod alone is too large for a message: %v", stage, err)
	return c.read(ctx, func(st *cluster.State) {
		c.sh.with(func(q *pending.Queue, now time.Time) {
			a := c.attempts[0]
			if !a.open {
				return
			}
			q.Reject(now, st, a.Attempt, pending.Diagnosis{Message: message, Version: st.Version(), Wake: pending.WhenChanged, Resigns: true})
			c.decided(a, resultUnschedulable, message)
			a.open = false
			c.reports.add(a.Attempt, reasonUnschedulable, message, true)
		})
	})
}

// apart handles a batch that is refused. A pod that is a batch by itself backs off.
func (c *cycle) apart(stage string, err error) {
	n := len(c.attempts)
	if n == 1 {
		c.log.Error("pod refused", "stage", stage, "uid", c.attempts[0].UID, "err", err)
		c.fail(c.attempts, fmt.Sprintf("%s: %v", stage, err))
		return
	}
	c.progress++ // it ends: do not wait
	c.most = n / 2
	again(c.attempts, "refused")
	c.log.Error("batch refused, halved", "stage", stage, "pods", n, "err", err)
}
