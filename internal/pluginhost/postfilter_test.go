package pluginhost

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// postFilters are three plugins of a service, of which one filters, too.
func postFilters(t *testing.T, answer func(*pluginv1.Question) *pluginv1.Answer) (*Host, *scripted) {
	s := &scripted{
		plugins: []*pluginv1.PluginDescription{{Name: "A", PostFilters: true}, {Name: "B", PostFilters: true, Filters: true}, {Name: "C", PostFilters: true}},
		answer: func(_ int, r *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error) {
			out := &pluginv1.JudgeResponse{Id: r.GetId()}
			for _, q := range r.GetQuestions() {
				if len(q.GetPostFilters()) > 0 {
					out.Answers = append(out.Answers, answer(q))
				} else {
					out.Answers = append(out.Answers, &pluginv1.Answer{})
				}
			}
			return out, nil
		},
	}
	p := cluster.Profile{SchedulerName: "default-scheduler", Filters: []string{"B"}, PostFilters: []string{"A", "DefaultPreemption", "C", "B", "Other"}}
	other := &scripted{plugins: []*pluginv1.PluginDescription{{Name: "Other", PostFilters: true}}, answer: s.answer}
	h := newHost(t, []cluster.Profile{p}, serviceOf("s", s.serve(t), "A", "B", "C"), serviceOf("other", other.serve(t), "Other"))
	t.Cleanup(func() { h.End(0); h.End(1) })
	return h, s
}

func TestWhoLooksForAWayIsToldWhyNodesAreRefused(t *testing.T) {
	var asked []*pluginv1.Question
	h, _ := postFilters(t, func(q *pluginv1.Question) *pluginv1.Answer {
		asked = append(asked, q)
		return &pluginv1.Answer{PostFiltered: &pluginv1.PostFiltered{Reason: "no way"}}
	})
	st, subjects := world(t, 4)
	if got := h.Asked("default-scheduler"); got != 0b01 {
		t.Errorf("services %b are asked where pods go, want the first, which filters", got)
	}
	if got := h.AskedPostFilter("default-scheduler", []string{"C", "Other"}); got != 0b11 {
		t.Errorf("services %b are asked about pods that fit nowhere, want both", got)
	}
	k, err := h.BeginPostFilter(t.Context(), 1, "default-scheduler", []string{"C", "B", "Other"})
	if err != nil {
		t.Fatal(err)
	}
	k.Collect(st, subjects[0], []cluster.NodeIndex{2}) // by Berth's own plugins, it fits there
	if err := k.Exchange(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, refused := k.Refusal(2); refused {
		t.Error("n2 is refused by services of which one does not filter")
	}
	of := k.PostFilters([]string{"C", "B", "Other"})
	if len(of) != 2 || !slices.Equal(of[0].plugins, []string{"C", "B"}) || !slices.Equal(of[1].plugins, []string{"Other"}) {
		t.Fatalf("asked as %v, want C and B together, and then Other", of)
	}
	full, picky := Refusal{Plugin: "NodeResourcesFit", Reason: "Insufficient cpu"}, Refusal{Plugin: "B", Reason: "not that one"}
	k.CollectPostFilter(st, subjects[0], of[0], []RefusedNode{{3, "n3", full}, {1, "n1", picky}, {0, "n0", full}, {2, "gone", full}})
	if err := k.Exchange(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(asked) != 1 {
		t.Fatalf("asked %d questions, want one", len(asked))
	}
	q := asked[0]
	if !slices.Equal(q.GetNodes(), []int32{3, 1, 0}) || !slices.Equal(q.GetVerdicts(), []uint32{1, 2, 1}) || !slices.Equal(q.GetPostFilters(), []string{"C", "B"}) || len(q.GetFilters()) != 0 ||
		len(q.GetRefusals()) != 2 || q.GetRefusals()[1].GetPlugin() != "B" || q.GetRefusals()[0].GetReason() != "Insufficient cpu" {
		t.Errorf("asked %v", q)
	}
	if diff := cmp.Diff(&PostFiltered{Reason: "no way"}, of[0].Result()); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
	if of[1].Result() != nil {
		t.Error("who has not been asked has a result")
	}
}

func TestWhatIsAnsweredOfAPodThatFitsNowhere(t *testing.T) {
	for name, tt := range map[string]struct {
		answer *pluginv1.Answer
		want   *PostFiltered
		wrong  string
	}{
		"a node":         {&pluginv1.Answer{PostFiltered: &pluginv1.PostFiltered{Success: true, Nominated: "n1"}}, &PostFiltered{Success: true, Nominated: "n1"}, ""},
		"unresolvable":   {&pluginv1.Answer{PostFiltered: &pluginv1.PostFiltered{Unresolvable: true, ClearsNomination: true, Reason: "never"}}, &PostFiltered{Unresolvable: true, ClearsNomination: true, Reason: "never"}, ""},
		"an error":       {&pluginv1.Answer{PostFiltered: &pluginv1.PostFiltered{Error: "plugin A: it is ill"}}, &PostFiltered{Failed: true, Reason: "plugin A: it is ill"}, ""},
		"no answer":      {&pluginv1.Answer{Error: "it does not know yet"}, nil, "it does not know yet"},
		"nothing":        {&pluginv1.Answer{}, nil, "want post_filtered"},
		"both":           {&pluginv1.Answer{PostFiltered: &pluginv1.PostFiltered{Success: true, Unresolvable: true}}, nil, "success, and unresolvable"},
		"to, and not to": {&pluginv1.Answer{PostFiltered: &pluginv1.PostFiltered{Success: true, Nominated: "n1", ClearsNomination: true}}, nil, "its nomination is to end"},
		"a long name":    {&pluginv1.Answer{PostFiltered: &pluginv1.PostFiltered{Success: true, Nominated: strings.Repeat("n", 254)}}, nil, "no node has such a long name"},
	} {
		t.Run(name, func(t *testing.T) {
			h, _ := postFilters(t, func(*pluginv1.Question) *pluginv1.Answer { return tt.answer })
			st, subjects := world(t, 1)
			k, err := h.BeginPostFilter(t.Context(), 1, "default-scheduler", []string{"A"})
			if err != nil {
				t.Fatal(err)
			}
			of := k.PostFilters([]string{"A"})
			k.CollectPostFilter(st, subjects[0], of[0], nil)
			switch err := k.Exchange(t.Context()); {
			case tt.wrong == "" && err != nil, tt.wrong != "" && (err == nil || !strings.Contains(err.Error(), tt.wrong)):
				t.Errorf("error %v, want %q", err, tt.wrong)
			case !cmp.Equal(of[0].Result(), tt.want):
				t.Errorf("result %+v, want %+v", of[0].Result(), tt.want)
			}
		})
	}
}

// Whoever is passed over has no say, and the others go on.
func TestAnIgnorableServiceThatFailsLooksForNoWay(t *testing.T) {
	h, s := postFilters(t, func(*pluginv1.Question) *pluginv1.Answer { return &pluginv1.Answer{} })
	h.services[0].Ignorable = true
	_ = s
	st, subjects := world(t, 1)
	k, err := h.BeginPostFilter(t.Context(), 1, "default-scheduler", []string{"A", "Other"})
	if err != nil {
		t.Fatal(err)
	}
	of := k.PostFilters([]string{"A", "Other"})
	k.CollectPostFilter(st, subjects[0], of[0], nil)
	if err := k.Exchange(t.Context()); err != nil || of[0].Result() != nil {
		t.Errorf("error %v, result %v, want neither", err, of[0].Result())
	}
	k.CollectPostFilter(st, subjects[0], of[0], nil) // it is not asked any more
	if err := k.Exchange(t.Context()); err != nil || of[0].Result() != nil {
		t.Errorf("again: error %v, result %v, want neither", err, of[0].Result())
	}
}

func TestManyRefusalsAreFewInAQuestion(t *testing.T) {
	var asked *pluginv1.Question
	h, _ := postFilters(t, func(q *pluginv1.Question) *pluginv1.Answer {
		asked = q
		return &pluginv1.Answer{PostFiltered: &pluginv1.PostFiltered{}}
	})
	st, subjects := world(t, maxRefusals+10)
	k, err := h.BeginPostFilter(t.Context(), 1, "default-scheduler", []string{"A"})
	if err != nil {
		t.Fatal(err)
	}
	var nodes []RefusedNode
	for i := range maxRefusals + 10 {
		name := st.Nodes.Spec[i].Name
		nodes = append(nodes, RefusedNode{cluster.NodeIndex(i), name, Refusal{Plugin: "P", Reason: "not " + name}})
	}
	of := k.PostFilters([]string{"A"})
	k.CollectPostFilter(st, subjects[0], of[0], nodes)
	if err := k.Exchange(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(asked.GetRefusals()); n != maxRefusals {
		t.Errorf("%d refusals, want %d", n, maxRefusals)
	}
	if last := asked.GetVerdicts()[maxRefusals+9]; asked.GetRefusals()[last-1].GetReason() != anotherReason {
		t.Errorf("the last node is refused as %v", asked.GetRefusals()[last-1])
	}
}
