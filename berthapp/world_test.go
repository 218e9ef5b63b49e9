package berthapp

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// A question that comes in several requests is one attempt: what plugins have noted of the first nodes is there when they score.
func TestAQuestionGoesOnInTheStateThatItBeganIn(t *testing.T) {
	began := &kind{state: framework.NewCycleState(), version: 3}
	w := &world{version: 3, kinds: map[int32]*kind{1: began, 2: {}}, touched: map[types.UID]bool{}, moved: map[string]bool{}}
	ask := func(kinds ...int32) *pluginv1.JudgeRequest {
		r := &pluginv1.JudgeRequest{}
		for _, k := range kinds {
			r.Questions = append(r.Questions, &pluginv1.Question{Kind: k})
		}
		return r
	}
	if !w.goesOn(ask(1)) {
		t.Error("the next nodes of a pod are judged in another state")
	}
	told := ask(1)
	told.Nodes = []*pluginv1.Node{{Id: 1}}
	if w.goesOn(told) || w.goesOn(ask(2)) || w.goesOn(ask(1, 2)) || w.goesOn(ask(7)) {
		t.Error("what is told is not taken up")
	}
	w.touched["u"] = true
	if w.goesOn(ask(1)) {
		t.Error("what has not been taken up is left out")
	}
	clear(w.touched)
	w.version++
	if w.goesOn(ask(1)) {
		t.Error("the state is another one")
	}
}
