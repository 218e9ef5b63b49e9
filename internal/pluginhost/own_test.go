package pluginhost

import (
	"slices"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// ranks normalises scores itself: of the nodes of a question, the first has 10, the second 20, and so on. It refuses n0.
func ranks(r *pluginv1.JudgeRequest) *pluginv1.JudgeResponse {
	out := &pluginv1.JudgeResponse{Id: r.GetId()}
	for _, q := range r.GetQuestions() {
		a := &pluginv1.Answer{}
		if len(q.GetFilters()) > 0 {
			a.Refusals = []*pluginv1.Refusal{{Plugin: "ranks", Reason: "it is n0"}}
			for _, n := range q.GetNodes() {
				verdict := uint32(0)
				if n == 0 {
					verdict = 1
				}
				a.Verdicts = append(a.Verdicts, verdict)
			}
		}
		for range q.GetScores() {
			s := &pluginv1.Scores{}
			for k := range q.GetNodes() {
				s.Scores = append(s.Scores, int32(10*(k+1)))
			}
			a.Scores = append(a.Scores, s)
		}
		out.Answers = append(out.Answers, a)
	}
	return out
}

func describedRanks() []*pluginv1.PluginDescription {
	return []*pluginv1.PluginDescription{{
		Name: "ranks", Filters: true, Scores: true, Normalization: pluginv1.Normalization_NORMALIZATION_OWN, Depends: &pluginv1.Dependencies{Requested: true, Cluster: true},
	}}
}

func TestPluginsThatNormaliseThemselvesScoreAllThatAreLeftInOneQuestion(t *testing.T) {
	s := &scripted{plugins: describedRanks(), answer: func(_ int, r *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error) { return ranks(r), nil }}
	h := newHost(t, []cluster.Profile{profile("default-scheduler", "ranks")}, serviceOf("s", s.serve(t), "ranks"))
	defer h.End(0)
	h.services[0].limits.asked = 2 // verdicts are asked for in several requests
	st, subjects := world(t, 5)
	k, err := judge(t, h, st, subjects[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range s.asked {
		for _, q := range r.GetQuestions() {
			if len(q.GetScores()) > 0 {
				t.Errorf("scores of %v are asked for with verdicts", q.GetNodes())
			}
		}
	}
	if !k.ScoresApart() {
		t.Fatal("scores are not apart")
	}
	if why, refused := k.Refusal(0); !refused || why.Reason != "it is n0" {
		t.Errorf("n0: refused %v, %+v", refused, why)
	}
	left := []cluster.NodeIndex{4, 2, 1}
	before := len(s.asked)
	k.CollectScores(st, subjects[0], left)
	if err := k.Exchange(t.Context()); err != nil {
		t.Fatal(err)
	}
	var questions []*pluginv1.Question
	for _, r := range s.asked[before:] {
		questions = append(questions, r.GetQuestions()...)
	}
	if len(questions) != 1 || !slices.Equal(questions[0].GetNodes(), []int32{4, 2, 1}) || len(questions[0].GetFilters()) != 0 || !slices.Equal(questions[0].GetScores(), []string{"ranks"}) {
		t.Fatalf("asked %v, want one question about the scores of nodes 4, 2 and 1", questions)
	}
	totals := []int64{1, 2, 3}
	k.Score(left, totals)
	if want := []int64{1 + 2*10, 2 + 2*20, 3 + 2*30}; !slices.Equal(totals, want) { // the weight is 2
		t.Errorf("totals %v, want %v", totals, want)
	}
	for _, i := range left {
		if !k.Holds(st, i) {
			t.Errorf("node %d: what was answered does not hold", i)
		}
	}
	if err := st.Apply(cluster.NodeSet{Index: 2, Node: cluster.Node{Name: "n2", Allocatable: []cluster.Quantity{{Name: "cpu", Value: 2000}}}}); err != nil {
		t.Fatal(err)
	}
	if k.Holds(st, 2) || !k.Holds(st, 1) {
		t.Errorf("a node has changed: it holds of that %v, of another one %v", k.Holds(st, 2), k.Holds(st, 1))
	}
}

func TestPluginsThatDependOnTheClusterAreToldAllNodesAndAskedAnew(t *testing.T) {
	s := &scripted{plugins: describedRanks(), answer: func(_ int, r *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error) { return ranks(r), nil }}
	h := newHost(t, []cluster.Profile{profile("default-scheduler", "ranks")}, serviceOf("s", s.serve(t), "ranks"))
	defer h.End(0)
	st, subjects := world(t, 4)
	ask := func(nodes ...cluster.NodeIndex) (told, asked []int32) {
		t.Helper()
		before := len(s.asked)
		k, err := h.Begin(t.Context(), st.Version().Epoch, "default-scheduler")
		if err != nil {
			t.Fatal(err)
		}
		if among := (cluster.Bitmap{0b1111}); !k.Excluded(st, subjects[0], among) || among.Count() != 4 {
			t.Errorf("%d nodes are left before they are asked about, want 4: a refusal may have been of other nodes than these are now", among.Count())
		}
		k.Collect(st, subjects[0], nodes)
		if err := k.Exchange(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, r := range s.asked[before:] {
			for _, n := range r.GetNodes() {
				told = append(told, n.GetId())
			}
			for _, q := range r.GetQuestions() {
				asked = append(asked, q.GetNodes()...)
			}
		}
		return told, asked
	}
	if told, asked := ask(0, 1); !slices.Equal(told, []int32{0, 1, 2, 3}) || !slices.Equal(asked, []int32{0, 1}) {
		t.Errorf("first, told %v and asked about %v, want all and 0, 1", told, asked)
	}
	if err := st.Apply(cluster.NodeSet{Index: 3, Node: cluster.Node{Name: "n3", Allocatable: []cluster.Quantity{{Name: "cpu", Value: 2000}}}}); err != nil {
		t.Fatal(err)
	}
	if told, asked := ask(0, 1); !slices.Equal(told, []int32{3}) || !slices.Equal(asked, []int32{0, 1}) {
		t.Errorf("then, told %v and asked about %v, want 3, which has changed, and 0, 1 again", told, asked)
	}
}

func TestTheChosenNodeIsAskedAboutByItselfIfWhatWasSaidIsOfAnEarlierPod(t *testing.T) {
	kept, refused := true, false
	s := &scripted{plugins: describedRanks(), answer: func(_ int, r *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error) {
		out := ranks(r)
		for i, q := range r.GetQuestions() {
			one := len(q.GetNodes()) == 1
			out.Answers[i].Kept = kept && !one
			if one && refused {
				out.Answers[i].Verdicts = []uint32{1}
			}
		}
		return out, nil
	}}
	h := newHost(t, []cluster.Profile{profile("default-scheduler", "ranks")}, serviceOf("s", s.serve(t), "ranks"))
	defer h.End(0)
	st, subjects := world(t, 200)
	limit := h.services[0].limits.asked
	asked := func(refuses bool) *Asking {
		t.Helper()
		refused = refuses
		k, err := judge(t, h, st, subjects[0])
		if err != nil {
			t.Fatal(err)
		}
		if h.services[0].limits.asked != limit {
			t.Errorf("it is asked about %d nodes at a time, want %d as before: that an earlier pod was judged says nothing of how long it takes", h.services[0].limits.asked, limit)
		}
		before := len(s.asked)
		if !k.CollectChosen(7) {
			t.Fatal("the chosen node is not asked about")
		}
		if err := k.Exchange(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := s.asked[before:]; len(got) != 1 || len(got[0].GetNodes()) != 0 || len(got[0].GetQuestions()) != 1 || !slices.Equal(got[0].GetQuestions()[0].GetNodes(), []int32{7}) || !slices.Equal(got[0].GetQuestions()[0].GetFilters(), []string{"ranks"}) {
			t.Errorf("asked %v, want whether node 7 is refused, and nothing told", got)
		}
		return k
	}
	k := asked(false)
	if _, refused := k.Refusal(7); refused || !k.Holds(st, 7) {
		t.Error("it is refused, or does not hold")
	}
	if err := st.Apply(cluster.NodeSet{Index: 7, Node: cluster.Node{Name: "n7", Allocatable: []cluster.Quantity{{Name: "cpu", Value: 2000}}}}); err != nil {
		t.Fatal(err)
	}
	if k.Holds(st, 7) {
		t.Error("the node has changed, and what was said of it holds")
	}
	if _, refused := asked(true).Refusal(7); !refused {
		t.Error("it is not refused")
	}
	// A node may change before it is asked about by itself: that is of the state in which all were.
	k, err := judge(t, h, st, subjects[0])
	if err != nil {
		t.Fatal(err)
	}
	refused = false
	if err := st.Apply(cluster.NodeSet{Index: 8, Node: cluster.Node{Name: "n8", Allocatable: []cluster.Quantity{{Name: "cpu", Value: 2000}}}}); err != nil {
		t.Fatal(err)
	}
	k.CollectChosen(8)
	if err := k.Exchange(t.Context()); err != nil {
		t.Fatal(err)
	}
	if k.Holds(st, 8) {
		t.Error("it was asked about in an earlier state, and holds")
	}
	kept = false
	if k, err = judge(t, h, st, subjects[0]); err != nil {
		t.Fatal(err)
	}
	if k.CollectChosen(7) {
		t.Error("it is asked about, and all was said for this pod")
	}
	if h.services[0].limits.asked == limit {
		t.Error("how long nodes take is not looked at any more")
	}
}

func TestScoresOfTheirOwnThatMakeNoSenseEndTheSession(t *testing.T) {
	for _, tt := range []struct {
		answer *pluginv1.Answer
		want   string
	}{
		{&pluginv1.Answer{}, "scores of 0 plugins, of 1 were asked for"},
		{&pluginv1.Answer{Scores: []*pluginv1.Scores{{Scores: []int32{1}}}}, "1 scores of ranks for 2 nodes"},
		{&pluginv1.Answer{Scores: []*pluginv1.Scores{{Scores: []int32{1, 101}}}}, "ranks scores 101, want 0 to 100"},
		{&pluginv1.Answer{Verdicts: []uint32{0, 1}, Scores: []*pluginv1.Scores{{Scores: []int32{1, 1}}}}, "nobody was asked to filter"},
		{&pluginv1.Answer{Error: "it is ill"}, "it is ill"},
	} {
		s := &scripted{plugins: describedRanks(), answer: func(_ int, r *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error) {
			out := ranks(r)
			for i, q := range r.GetQuestions() {
				if len(q.GetScores()) > 0 {
					out.Answers[i] = tt.answer
				}
			}
			return out, nil
		}}
		h := newHost(t, []cluster.Profile{profile("default-scheduler", "ranks")}, serviceOf("s", s.serve(t), "ranks"))
		st, subjects := world(t, 3)
		k, err := judge(t, h, st, subjects[0])
		if err != nil {
			t.Fatal(err)
		}
		k.CollectScores(st, subjects[0], []cluster.NodeIndex{1, 2})
		if err := k.Exchange(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("error %v, want %q", err, tt.want)
		}
		if stated := tt.answer.GetError() != ""; (h.services[0].session != nil) != stated {
			t.Errorf("%q: the session goes on: %v, want %v", tt.want, !stated, stated)
		}
		h.End(0)
	}
}

func TestAServiceOfAProfileIsUsedByNoOtherOne(t *testing.T) {
	a, b := serviceOf("a", nil, "ranks"), serviceOf("b", nil, "ranks")
	a.Profile, b.Profile = "first", "second"
	h := newHost(t, []cluster.Profile{profile("first", "ranks"), profile("second", "ranks"), profile("third", "ranks")}, a, b)
	if first, second, third := h.Asked("first"), h.Asked("second"), h.Asked("third"); first != 1 || second != 2 || third != 0 {
		t.Errorf("profiles ask %b, %b and %b, want a, b and nobody", first, second, third)
	}
}

// A service whose plugins only score, and normalise that themselves, is asked about nodes, so that something holds of these.
func TestWhatAServiceOnlyScoresHolds(t *testing.T) {
	s := &scripted{plugins: describedRanks(), answer: func(_ int, r *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error) {
		out := ranks(r)
		for i, q := range r.GetQuestions() {
			if len(q.GetFilters()) == 0 && len(q.GetScores()) == 0 {
				out.Answers[i] = &pluginv1.Answer{}
			}
		}
		return out, nil
	}}
	p := profile("default-scheduler", "ranks")
	p.Filters = slices.DeleteFunc(p.Filters, func(name string) bool { return name == "ranks" })
	h := newHost(t, []cluster.Profile{p}, serviceOf("s", s.serve(t), "ranks"))
	defer h.End(0)
	st, subjects := world(t, 3)
	k, err := judge(t, h, st, subjects[0])
	if err != nil {
		t.Fatal(err)
	}
	k.CollectScores(st, subjects[0], []cluster.NodeIndex{0, 2})
	if err := k.Exchange(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !k.Holds(st, 2) {
		t.Error("what was said does not hold")
	}
	if err := st.Apply(cluster.NodeSet{Index: 2, Node: cluster.Node{Name: "n2", Allocatable: []cluster.Quantity{{Name: "cpu", Value: 2000}}}}); err != nil {
		t.Fatal(err)
	}
	if k.Holds(st, 2) {
		t.Error("it holds though the node has changed")
	}
}

// Of a service that takes what it has said for the next pod, all is asked in one question until a node is chosen.
func TestAllIsAskedInOneQuestionOfAServiceThatKeeps(t *testing.T) {
	left := func(n ...int32) *pluginv1.Scores { return &pluginv1.Scores{Scores: n} }
	refusals := []*pluginv1.Refusal{{Plugin: "ranks", Reason: "no"}}
	for name, tt := range map[string]struct {
		answer *pluginv1.Answer // about nodes 3, 1 and 2
		chosen cluster.NodeIndex
		totals []int64 // of those that are left
		err    string
	}{
		"all are left":           {&pluginv1.Answer{Kept: true, Keeps: true, Chosen: 2, Scores: []*pluginv1.Scores{left(1, 30, 2)}}, 1, []int64{2, 60, 4}, ""},
		"one is refused":         {&pluginv1.Answer{Kept: true, Chosen: 3, Verdicts: []uint32{0, 1, 0}, Refusals: refusals, Scores: []*pluginv1.Scores{left(1, 30)}}, 2, []int64{2, 60}, ""},
		"one is left":            {&pluginv1.Answer{Kept: true, Chosen: 1, Verdicts: []uint32{0, 1, 1}, Refusals: refusals}, 3, []int64{0}, ""},
		"it is not said":         {&pluginv1.Answer{Kept: true}, cluster.NoNode, []int64{0, 0, 0}, ""},
		"nothing is kept":        {&pluginv1.Answer{Keeps: true, Chosen: 9}, cluster.NoNode, []int64{0, 0, 0}, ""},
		"no such node":           {&pluginv1.Answer{Kept: true, Chosen: 4, Scores: []*pluginv1.Scores{left(1, 30, 2)}}, 0, nil, "chosen: 4, of 3 nodes"},
		"a refused one":          {&pluginv1.Answer{Kept: true, Chosen: 2, Verdicts: []uint32{0, 1, 0}, Refusals: refusals, Scores: []*pluginv1.Scores{left(1, 30)}}, 0, nil, "chosen: 2, which is refused"},
		"no scores":              {&pluginv1.Answer{Kept: true, Chosen: 2}, 0, nil, "scores of 0 plugins, of 1 were asked for"},
		"scores of refused ones": {&pluginv1.Answer{Kept: true, Chosen: 1, Verdicts: []uint32{0, 1, 0}, Refusals: refusals, Scores: []*pluginv1.Scores{left(1, 30, 2)}}, 0, nil, "3 scores of ranks for 2 nodes"},
		"a verdict is missing":   {&pluginv1.Answer{Kept: true, Chosen: 1, Verdicts: []uint32{0, 0}}, 0, nil, "2 verdicts of 3 nodes"},
		"an error":               {&pluginv1.Answer{Error: "it is ill"}, 0, nil, "it is ill"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &scripted{plugins: describedRanks(), answer: func(_ int, r *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error) {
				out := &pluginv1.JudgeResponse{Id: r.GetId()}
				for range r.GetQuestions() {
					out.Answers = append(out.Answers, tt.answer)
				}
				return out, nil
			}}
			h := newHost(t, []cluster.Profile{profile("default-scheduler", "ranks")}, serviceOf("s", s.serve(t), "ranks"))
			defer h.End(0)
			st, subjects := world(t, 4)
			k, err := h.Begin(t.Context(), st.Version().Epoch, "default-scheduler")
			if err != nil {
				t.Fatal(err)
			}
			nodes := []cluster.NodeIndex{3, 1, 2}
			if !k.CollectBest(st, subjects[0], nodes, []int64{7, 8, 9}) {
				t.Fatal("it cannot be asked")
			}
			if err := k.Exchange(t.Context()); err != nil || tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) || tt.err == "" {
					t.Errorf("error %v, want %q", err, tt.err)
				}
				return
			}
			if len(s.asked) != 1 || len(s.asked[0].GetNodes()) != 4 || len(s.asked[0].GetQuestions()) != 1 {
				t.Fatalf("asked %v, want one question, and all nodes told", s.asked)
			}
			if q := s.asked[0].GetQuestions()[0]; !slices.Equal(q.GetNodes(), []int32{3, 1, 2}) || !slices.Equal(q.GetFilters(), []string{"ranks"}) || !slices.Equal(q.GetScores(), []string{"ranks"}) ||
				!slices.Equal(q.GetTotals(), []int64{7, 8, 9}) || !slices.Equal(q.GetWeights(), []int64{2}) {
				t.Errorf("asked %v", q)
			}
			nodes = slices.DeleteFunc(nodes, func(i cluster.NodeIndex) bool {
				_, refused := k.Refusal(i)
				return refused
			})
			totals := make([]int64, len(nodes))
			k.Score(nodes, totals)
			if got := k.Chosen(nodes); got != tt.chosen || !slices.Equal(totals, tt.totals) {
				t.Errorf("chosen %d, totals %v; want %d and %v", got, totals, tt.chosen, tt.totals)
			}
			if tt.chosen != cluster.NoNode && !k.Holds(st, tt.chosen) {
				t.Error("what was said of the chosen node does not hold")
			}
			if k.Chosen(nodes[:len(nodes)-1]) != cluster.NoNode {
				t.Error("a node is chosen of others than are left")
			}
			k.Collect(st, subjects[0], nodes)
			if k.Chosen(nodes) != cluster.NoNode {
				t.Error("a node is chosen that is asked about anew")
			}
		})
	}
}

// More than a service is asked at a time is asked in several questions, and so is what it does not normalise itself.
func TestNotAllCanBeAskedInOneQuestion(t *testing.T) {
	st, subjects := world(t, 4)
	for name, change := range map[string]func(h *Host, p *pluginv1.PluginDescription){
		"too many nodes": func(h *Host, _ *pluginv1.PluginDescription) { h.services[0].limits.asked = 2 },
		"Berth normalises": func(_ *Host, p *pluginv1.PluginDescription) {
			p.Normalization = pluginv1.Normalization_NORMALIZATION_PROPORTIONAL
		},
		"it keeps by itself": func(_ *Host, p *pluginv1.PluginDescription) { p.Depends.Cluster = false },
	} {
		s := &scripted{plugins: describedRanks(), answer: func(_ int, r *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error) { return ranks(r), nil }}
		h := newHost(t, []cluster.Profile{profile("default-scheduler", "ranks")}, serviceOf("s", s.serve(t), "ranks"))
		change(h, s.plugins[0])
		k, err := h.Begin(t.Context(), st.Version().Epoch, "default-scheduler")
		if err != nil {
			t.Fatal(err)
		}
		if k.CollectBest(st, subjects[0], []cluster.NodeIndex{3, 1, 2}, []int64{7, 8, 9}) {
			t.Errorf("%s: all is asked in one question", name)
		}
		h.End(0)
	}
}
