package engine

import (
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
)

func TestReaderShared(t *testing.T) {
	w, e := newStorage(t, 3), NewEvaluator(EvaluatorConfig{})
	w.bound("c", nil)
	first, second := w.pod("first", "", 0, nil, claims("c")...), w.pod("second", "", 0, nil, claims("c")...)
	p := w.batch(e, first)
	node, placement := p.Choose(first, 0)
	w.apply(cluster.PodAssumed{ID: first, Node: node, Attempt: 1})
	_, again := p.Choose(second, 0)
	t.Log(placement, again)
}
