package binder

import (
	"fmt"
	"runtime/debug"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// judge has the engine judge a pod in a transaction, and reports whether it could. To judge changes no state, so a panic there is that
// pod's alone: it would come again in every term, and none may end by one pod. What the evaluator kept may be half of something, and is
// dropped; so is the caller's [engine.Placer]. The caller holds the ledger's lock.
func (t *term) judge(row *cluster.PodRow, judge func()) (ok bool) {
	defer func() {
		if ok {
			return
		}
		p := recover()
		t.evaluator = engine.NewEvaluator(engine.EvaluatorConfig{Parallelism: t.parallelism})
		t.conflict(conflictPanic)
		t.log.Error("a pod cannot be judged", "pod", row.Namespace+"/"+row.Name, "uid", row.UID, "err", fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
	}()
	judge()
	return true
}

// judge has a pod judged, and reports whether it could be.
type judge func(row *cluster.PodRow, by func(*engine.Evaluator)) bool

// judging judges by the term's evaluator. The caller of what it is for holds the ledger's lock.
func (t *term) judging(row *cluster.PodRow, by func(*engine.Evaluator)) bool {
	return t.judge(row, func() { by(t.evaluator) })
}
