package berthapp

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// asked has a stream of questions asked about pod p on nodes n1 to n4, each question in a request of its own.
func (w *walk) asked(questions ...*pluginv1.Question) (answers []*pluginv1.Answer) {
	w.t.Helper()
	stream, err := w.client.Judge(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for i, q := range questions {
		r := &pluginv1.JudgeRequest{Id: int64(i) + 1, Questions: []*pluginv1.Question{q}}
		if i == 0 {
			r.Kinds = []*pluginv1.Kind{{SchedulerName: "default-scheduler", Object: w.object("p")}}
			for n := range int32(4) {
				name := fmt.Sprint("n", n+1)
				node, err := json.Marshal(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
				if err != nil {
					w.t.Fatal(err)
				}
				r.Nodes = append(r.Nodes, &pluginv1.Node{Id: n + 1, Spec: &pluginv1.NodeSpec{Name: name, Object: node}})
			}
		}
		if err := stream.Send(r); err != nil {
			w.t.Fatal(err)
		}
		a, err := stream.Recv()
		if err != nil {
			w.t.Fatal(err)
		}
		answers = append(answers, a.GetAnswers()...)
	}
	return answers
}

// nowhere is the question what plugins do for pod p, which n3 and n1 have no room for, and A refuses on n2.
func nowhere(plugins ...string) *pluginv1.Question {
	return &pluginv1.Question{
		Nodes: []int32{3, 1, 2}, Verdicts: []uint32{1, 1, 2}, Refusals: []*pluginv1.Refusal{{Plugin: "NodeResourcesFit", Reason: "Insufficient cpu"}, {Plugin: "A", Reason: "not that one"}}, PostFilters: plugins,
	}
}

func nominated(node string) *fwk.PostFilterResult {
	return framework.NewPostFilterResultWithNominatedNode(node)
}

// kube-scheduler's RunPostFilterPlugins.
func TestPluginsLookForAWayAsInKubeScheduler(t *testing.T) {
	for name, tt := range map[string]struct {
		a, b   func() *fwk.Status
		result map[string]*fwk.PostFilterResult
		want   *pluginv1.Answer
		asked  []string
	}{
		"none does": {always(fwk.Unschedulable, "it is too late", "for it"), always(fwk.Unschedulable, "it is too early"), nil, &pluginv1.Answer{PostFiltered: &pluginv1.PostFiltered{Reason: "it is too late, for it, it is too early"}}, []string{"A", "B"}},
		"one does":  {always(fwk.Success), nil, map[string]*fwk.PostFilterResult{"A": nominated("n3")}, &pluginv1.Answer{PostFiltered: &pluginv1.PostFiltered{Success: true, Nominated: "n3"}}, []string{"A"}},
		"the other one does, and says nothing of a nomination": {
			always(fwk.Unschedulable), always(fwk.Success), map[string]*fwk.PostFilterResult{"A": nominated(""), "B": {NominatingInfo: &fwk.NominatingInfo{NominatingMode: fwk.ModeNoop}}},
			&pluginv1.Answer{PostFiltered: &pluginv1.PostFiltered{Success: true}}, []string{"A", "B"},
		},
		"a nomination ends": {always(fwk.Unschedulable), always(fwk.Unschedulable, "no"), map[string]*fwk.PostFilterResult{"A": nominated("")}, &pluginv1.Answer{PostFiltered: &pluginv1.PostFiltered{ClearsNomination: true, Reason: "no"}}, []string{"A", "B"}},
		"one ends it":       {always(fwk.UnschedulableAndUnresolvable, "never"), nil, nil, &pluginv1.Answer{PostFiltered: &pluginv1.PostFiltered{Unresolvable: true, Reason: "never"}}, []string{"A"}},
		"one fails":         {always(fwk.Error, "it is ill"), nil, nil, &pluginv1.Answer{PostFiltered: &pluginv1.PostFiltered{Error: "it is ill"}}, []string{"A"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWalk(t)
			w.say("a postfilter p", tt.a)
			w.say("b postfilter p", tt.b)
			w.results = tt.result
			if diff := cmp.Diff([]*pluginv1.Answer{tt.want}, w.asked(nowhere("A", "B")), protocmp.Transform()); diff != "" {
				t.Errorf("answers (-want +got):\n%s", diff)
			}
			var want []string
			for _, name := range tt.asked {
				want = append(want, name+" PostFilter: p on , state of p", name+" is told n1: NodeResourcesFit: Insufficient cpu", name+" is told n2: A: not that one", name+" is told n3: NodeResourcesFit: Insufficient cpu")
			}
			w.hears(want...)
		})
	}
}

// The verdicts and what is done for a pod that fits nowhere belong to one cycle: they have one state.
func TestWhoLooksForAWayGoesOnWithTheStateOfTheVerdicts(t *testing.T) {
	w := newWalk(t)
	prefilters := 0
	w.prefilters = func() { prefilters++ }
	w.say("a filter p", always(fwk.Unschedulable, "not that one"))
	answers := w.asked(&pluginv1.Question{Nodes: []int32{2}, Filters: []string{"A", "B"}}, nowhere("B"))
	if len(answers) != 2 || !slices.Equal(answers[0].GetVerdicts(), []uint32{1}) || !answers[1].GetPostFiltered().GetSuccess() {
		t.Errorf("answers %v", answers)
	}
	if prefilters != 2 {
		t.Errorf("PreFilter has run %d times, want once for each plugin", prefilters)
	}
	w.hears("A Filter: p on , state of p", "B PostFilter: p on , state of p", "B is told n1: NodeResourcesFit: Insufficient cpu", "B is told n2: A: not that one", "B is told n3: NodeResourcesFit: Insufficient cpu")
}

func TestAQuestionAboutAPodThatFitsNowhereThatMakesNoSenseIsAnswered(t *testing.T) {
	for name, change := range map[string]func(*pluginv1.Question){
		"2 verdicts of 3 nodes":                          func(q *pluginv1.Question) { q.Verdicts = q.Verdicts[:2] },
		"verdict 3, of 2 refusals":                       func(q *pluginv1.Question) { q.Verdicts[0] = 3 },
		`there is no plugin "Z" that runs at PostFilter`: func(q *pluginv1.Question) { q.PostFilters = []string{"Z"} },
	} {
		w := newWalk(t)
		q := nowhere("A")
		change(q)
		if got := w.asked(q); len(got) != 1 || got[0].GetError() != name {
			t.Errorf("answers %v, want %s", got, name)
		}
	}
}
