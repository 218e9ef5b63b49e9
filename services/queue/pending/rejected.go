package pending

import (
	"iter"
	"maps"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// Rejection is that a plugin is against pods of a class.
type Rejection struct {
	Class  cluster.ClassID
	Plugin string
}

// Rejected yields how many pods of the queue each plugin is against, by their classes, in no order. A pod whose attempt is
// running counts for none.
func (q *Queue) Rejected() iter.Seq2[Rejection, int] { return maps.All(q.rejections) }

// schedulingGates is the plugin that counts for pods with scheduling gates.
var schedulingGates = engine.JudgeOf(engine.Gates)

// rejections counts pods by what is against them. It is kept rather than counted when somebody asks, because whoever asks
// holds up the queue and the log meanwhile, and metrics are asked for every few seconds.
type rejections map[Rejection]int

// add counts a pod n times for every plugin that is against it.
func (r rejections) add(e *entry, n int) {
	switch e.place {
	case Gated:
		switch is := e.entrance; {
		case len(e.pod.Gates) > 0:
			r.count(Rejection{e.pod.Class, schedulingGates}, n)
		case is != nil && is.plugin != "":
			r.count(Rejection{e.pod.Class, is.plugin}, n)
		case e.group != nil && e.group.lacking != "":
			r.count(Rejection{e.pod.Class, ofGroups}, n)
		}
	case Active, Backoff, Unschedulable:
		for i, v := range e.verdicts {
			told := slices.ContainsFunc(e.verdicts[:i], func(w engine.VerdictCount) bool { return w.Plugin == v.Plugin })
			if !told {
				r.count(Rejection{e.pod.Class, v.Plugin}, n)
			}
		}
	}
}

func (r rejections) count(what Rejection, n int) {
	if r[what] += n; r[what] == 0 {
		delete(r, what)
	}
}
