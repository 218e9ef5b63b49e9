package pending

import (
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Looking reports what RecheckUntil is amid: the look at all pods but those with claims, with the flush behind it; and whether there is anything to
// look at for those aside.
func (q *Queue) Looking() (ahead, aside bool) { return q.looking != nil || q.flushing, q.looksAside() }

// RecheckAside is RecheckUntil for pods with claims alone, whatever else there is to look at, which RecheckUntil looks at before and may never have
// done with.
func (q *Queue) RecheckAside(now time.Time, st *cluster.State, enough func() bool) {
	if q.lookingAside == nil && !q.beginAside(st) {
		return
	}
	if q.goOn(now, st, q.lookingAside, enough) {
		q.lookingAside = nil
	}
}
