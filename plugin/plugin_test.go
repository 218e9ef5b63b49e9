package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/pluginproto"
)

// refusing refuses nodes of these names.
func refusing(reason string, names ...string) FilterFunc {
	return func(_ context.Context, _ *Kind, node *Node) (*Refusal, error) {
		if slices.Contains(names, node.Name) {
			return &Refusal{Reason: reason}, nil
		}
		return nil, nil
	}
}

func scoring(score int64) ScoreFunc {
	return func(context.Context, *Kind, *Node) (int64, error) { return score, nil }
}

// three are nodes a, b and c, and a kind, all told in one request with a question.
func three(filters, scores []string) *pluginv1.JudgeRequest {
	return &pluginv1.JudgeRequest{
		Kinds: []*pluginv1.Kind{{Id: 1, SchedulerName: "gpu"}}, Nodes: []*pluginv1.Node{node(1, "a"), node(2, "b"), node(3, "c")},
		Questions: []*pluginv1.Question{{Kind: 1, Filters: filters, Scores: scores, Nodes: []int32{3, 1, 2}}},
	}
}

func TestPluginsAreDescribedAsTheyAre(t *testing.T) {
	client := dial(t, serve(t, Config{Plugins: []Plugin{
		{Name: "F", Filter: refusing("no"), Depends: Dependencies{Requested: true, Pods: true}},
		{Name: "A", Filter: refusing("no"), Depends: Dependencies{Annotations: true}},
		{Name: "S", Score: scoring(1), Normalization: Reversed, Depends: Dependencies{Objects: true, Pod: true, Holds: 2 * time.Second}},
		stepping("Steps", new(history)),
		{Name: "Permits", Permit: stepping("", nil).Permit},
		{Name: "Gates", PreEnqueue: stepping("", nil).Reserve},
	}}).address)
	got, err := client.Describe(t.Context(), &pluginv1.DescribeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := &pluginv1.DescribeResponse{Orders: true, Plugins: []*pluginv1.PluginDescription{
		{Name: "F", Filters: true, Depends: &pluginv1.Dependencies{Requested: true, Pods: true}},
		{Name: "A", Filters: true, Depends: &pluginv1.Dependencies{Annotations: true}},
		{Name: "S", Scores: true, Normalization: pluginv1.Normalization_NORMALIZATION_REVERSED, Depends: &pluginv1.Dependencies{Objects: true, Pod: true, Milliseconds: 2000}},
		{Name: "Steps", Reserves: true, Permits: true, PreBinds: true, PostBinds: true, Depends: &pluginv1.Dependencies{}},
		{Name: "Permits", Permits: true, Depends: &pluginv1.Dependencies{}},
		{Name: "Gates", PreEnqueues: true, Depends: &pluginv1.Dependencies{}},
	}}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("Describe (-want +got):\n%s", diff)
	}
}

func TestWhatIsWrongWithPluginsIsSaidAtTheStart(t *testing.T) {
	ok := Plugin{Name: "P", Score: scoring(1)}
	with := func(change func(*Plugin)) []Plugin {
		p := ok
		change(&p)
		return []Plugin{p}
	}
	many := make([]Plugin, 65)
	for i := range many {
		many[i] = Plugin{Name: fmt.Sprint(i), Score: scoring(1)}
	}
	for want, plugins := range map[string][]Plugin{
		"0 plugins":        nil,
		"65 plugins":       many,
		"plugin 0: its na": with(func(p *Plugin) { p.Name = "" }),
		"UTF-8":            with(func(p *Plugin) { p.Name = "\xff" }),
		"there are two":    {ok, ok},
		"neither Filter":   with(func(p *Plugin) { p.Score = nil }),
		"one of Reserve":   with(func(p *Plugin) { p.Unreserve = func(context.Context, *Placement) {} }),
		"Normalization is": with(func(p *Plugin) { p.Normalization = 3 }),
		"and no Score":     with(func(p *Plugin) { p.Score, p.Filter, p.Normalization = nil, refusing("no"), Reversed }),
		"hold for -1s":     with(func(p *Plugin) { p.Depends.Holds = -time.Second }),
		"hold for 1µs":     with(func(p *Plugin) { p.Depends.Holds = time.Microsecond }),
	} {
		if err := Serve(t.Context(), Config{Listen: "127.0.0.1:0", Plugins: plugins}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Serve: %v, want an error with %q", err, want)
		}
	}
	if _, err := newService(nil, many[:64]); err != nil {
		t.Error(err)
	}
}

func TestTheFirstFilterThatRefusesGivesTheVerdict(t *testing.T) {
	var scored atomic.Int32
	s := start(t,
		Plugin{Name: "A", Filter: refusing("said A", "a", "b")},
		Plugin{Name: "B", Filter: func(_ context.Context, _ *Kind, node *Node) (*Refusal, error) {
			if node.Name != "c" {
				return &Refusal{Reason: "said B", Unresolvable: true}, nil
			}
			return nil, nil
		}},
		Plugin{Name: "S", Score: func(_ context.Context, _ *Kind, node *Node) (int64, error) {
			scored.Add(1)
			return int64(node.Name[0]), nil
		}},
	)
	ask := three([]string{"A", "B"}, []string{"S", "S"})
	ask.Questions = append(ask.Questions,
		&pluginv1.Question{Kind: 1, Filters: []string{"B", "A"}, Nodes: []int32{1, 3}},
		&pluginv1.Question{Kind: 1, Scores: []string{"S"}, Nodes: []int32{1, 2}},
		&pluginv1.Question{Kind: 1, Filters: []string{"A"}})
	a := &pluginv1.Refusal{Plugin: "A", Reason: "said A"}
	b := &pluginv1.Refusal{Plugin: "B", Reason: "said B", Unresolvable: true}
	want := []*pluginv1.Answer{
		{Verdicts: []uint32{0, 1, 1}, Refusals: []*pluginv1.Refusal{a}, Scores: []*pluginv1.Scores{{Scores: []int32{99, 0, 0}}, {Scores: []int32{99, 0, 0}}}},
		{Verdicts: []uint32{1, 0}, Refusals: []*pluginv1.Refusal{b}},
		{Scores: []*pluginv1.Scores{{Scores: []int32{97, 98}}}},
		{},
	}
	if diff := cmp.Diff(want, s.ask(ask), protocmp.Transform()); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
	if got := scored.Load(); got != 4 {
		t.Errorf("%d nodes were scored, want 4: c twice, and two of which no filter was asked about", got)
	}
}

func TestAPluginThatFailsFailsItsQuestionsOnly(t *testing.T) {
	server := serve(t, Config{Plugins: []Plugin{
		{Name: "Panics", Filter: func(_ context.Context, _ *Kind, node *Node) (*Refusal, error) { panic("at the disco") }},
		{Name: "Fails", Filter: func(context.Context, *Kind, *Node) (*Refusal, error) { return nil, errors.New("no answer of mine") }},
		{Name: "Silent", Filter: func(context.Context, *Kind, *Node) (*Refusal, error) { return new(Refusal), nil }},
		{Name: "PanicsToo", Score: func(_ context.Context, _ *Kind, node *Node) (int64, error) { return int64(node.Labels["x"][5]), nil }},
		{Name: "FailsToo", Score: func(context.Context, *Kind, *Node) (int64, error) { return 5, errors.New("nor of mine") }},
		{Name: "Low", Score: scoring(-1)}, {Name: "High", Score: scoring(101)}, {Name: "Least", Score: scoring(0)}, {Name: "Most", Score: scoring(100)},
		{Name: "RawLow", Score: scoring(-1), Normalization: Reversed}, {Name: "RawHigh", Score: scoring(1 << 31), Normalization: Proportional},
		{Name: "RawLeast", Score: scoring(0), Normalization: Reversed}, {Name: "RawMost", Score: scoring(1<<31 - 1), Normalization: Proportional},
		{Name: "Changing", Score: scoring(1), Configure: func(json.RawMessage) (Plugin, error) {
			return Plugin{Name: "Changing", Score: scoring(101), Normalization: Proportional}, nil
		}},
		{Name: "Wordy", Filter: func(context.Context, *Kind, *Node) (*Refusal, error) {
			return nil, errors.New(strings.Repeat("é", 2000) + "\xff")
		}},
	}})
	s := open(t, dial(t, server.address))
	ask := three(nil, nil)
	ask.Questions = nil
	ask.Profiles = []*pluginv1.Profile{{SchedulerName: ask.Kinds[0].GetSchedulerName(), Arguments: []*pluginv1.PluginArguments{{Plugin: "Changing"}}}}
	tests := []struct{ filter, score, want string }{
		{"Panics", "", "plugin Panics, node c: panic: at the disco"},
		{"Fails", "", "plugin Fails, node c: no answer of mine"},
		{"Silent", "", "plugin Silent, node c: it is refused without a reason"},
		{"", "PanicsToo", "plugin PanicsToo, node c: panic: runtime error: index out of range [5] with length 0"},
		{"", "FailsToo", "plugin FailsToo, node c: nor of mine"},
		{"", "Low", "plugin Low, node c: its score is -1: want 0 to 100"},
		{"", "High", "plugin High, node c: its score is 101: want 0 to 100"},
		{"", "Least", ""},
		{"", "Most", ""},
		{"", "RawLow", "plugin RawLow, node c: its score is -1: want 0 to 2147483647"},
		{"", "RawHigh", "plugin RawHigh, node c: its score is 2147483648: want 0 to 2147483647"},
		{"", "RawLeast", ""},
		{"", "RawMost", ""},
		{"", "Changing", "plugin Changing, node c: its score is 101: want 0 to 100"},
		{"Wordy", "", "plugin Wordy, node c: " + strings.Repeat("é", 501)},
	}
	for _, tt := range tests {
		q := &pluginv1.Question{Kind: 1, Nodes: []int32{3, 1, 2}}
		if tt.filter != "" {
			q.Filters = []string{tt.filter}
		}
		if tt.score != "" {
			q.Scores = []string{tt.score}
		}
		ask.Questions = append(ask.Questions, q)
	}
	for i, answer := range s.ask(ask) {
		if answer.GetError() != tests[i].want {
			t.Errorf("%+v: the error is %q", tests[i], answer.GetError())
		}
		if failed := answer.GetError() != ""; failed && (len(answer.GetVerdicts()) > 0 || len(answer.GetScores()) > 0) {
			t.Errorf("%+v: an answer with an error has more: %v", tests[i], answer)
		}
	}
	again := &pluginv1.JudgeRequest{Questions: []*pluginv1.Question{{Kind: 1, Scores: []string{"Most"}, Nodes: []int32{1}}}}
	if got := s.ask(again)[0]; got.GetError() != "" || got.GetScores()[0].GetScores()[0] != 100 {
		t.Errorf("the next request got %v", got)
	}
	if log := server.log.String(); !strings.Contains(log, "plugin=PanicsToo node=c") || !strings.Contains(log, "plugin_test.go") {
		t.Errorf("the log does not tell where a plugin panicked:\n%s", log)
	}
}

func TestRequestsThatMakeNoSenseEndTheStream(t *testing.T) {
	one := func(change func(*pluginv1.JudgeRequest)) []*pluginv1.JudgeRequest {
		req := three([]string{"F"}, []string{"S"})
		change(req)
		return []*pluginv1.JudgeRequest{req}
	}
	then := func(second *pluginv1.JudgeRequest) []*pluginv1.JudgeRequest {
		return []*pluginv1.JudgeRequest{three([]string{"F"}, []string{"S"}), second}
	}
	profile := func(name, plugin string) *pluginv1.Profile {
		return &pluginv1.Profile{SchedulerName: name, Arguments: []*pluginv1.PluginArguments{{Plugin: plugin}}}
	}
	client := dial(t, serve(t, Config{Plugins: []Plugin{{Name: "F", Filter: refusing("no")}, {Name: "S", Score: scoring(1)}}}).address)
	for want, requests := range map[string][]*pluginv1.JudgeRequest{
		"id: 2: want 1":  one(func(r *pluginv1.JudgeRequest) { r.Id = 2 }),
		"id: -1: want 1": one(func(r *pluginv1.JudgeRequest) { r.Id = -1 }),
		"id: 1: want 2":  then(&pluginv1.JudgeRequest{Id: 1}),
		"id: 3: want 2":  then(&pluginv1.JudgeRequest{Id: 3}),
		"profiles: profiles are told in the first request only": then(&pluginv1.JudgeRequest{Profiles: []*pluginv1.Profile{profile("p", "F")}}),
		`profiles[1].scheduler_name: "p": it is told twice`: one(func(r *pluginv1.JudgeRequest) {
			r.Profiles = []*pluginv1.Profile{profile("p", "F"), profile("p", "F")}
		}),
		`profiles[0].arguments[0].plugin: there is no plugin "X"`: one(func(r *pluginv1.JudgeRequest) { r.Profiles = []*pluginv1.Profile{profile("p", "X")} }),
		"forgotten_nodes[1]: there is no node 9":                  then(&pluginv1.JudgeRequest{ForgottenNodes: []int32{1, 9}}),
		"forgotten_nodes[1]: there is no node 1":                  then(&pluginv1.JudgeRequest{ForgottenNodes: []int32{1, 1}}),
		"forgotten_kinds[0]: there is no kind 2":                  then(&pluginv1.JudgeRequest{ForgottenKinds: []int32{2}}),
		"nodes[0].spec: node 4 is new: want what it is":           then(&pluginv1.JudgeRequest{Nodes: []*pluginv1.Node{{Id: 4}}}),
		"nodes[1].spec: node 1 is new: want what it is": then(&pluginv1.JudgeRequest{
			ForgottenNodes: []int32{1}, Nodes: []*pluginv1.Node{{Id: 2}, {Id: 1}},
		}),
		`nodes[0].removed[0]: pod "u" is not on node a`: then(&pluginv1.JudgeRequest{Nodes: []*pluginv1.Node{{Id: 1, Removed: []string{"u"}}}}),
		"nodes[0].added[0].kind: there is no kind 2":    then(&pluginv1.JudgeRequest{Nodes: []*pluginv1.Node{{Id: 1, Added: []*pluginv1.PlacedPod{{Uid: "u", Kind: 2}}}}}),
		`nodes[0].added[1].uid: pod "u" is on node a already`: then(&pluginv1.JudgeRequest{Nodes: []*pluginv1.Node{
			{Id: 1, Added: []*pluginv1.PlacedPod{{Uid: "u", Kind: 1}, {Uid: "u", Kind: 1}}},
		}}),
		"questions[0].kind: there is no kind 7":                        one(func(r *pluginv1.JudgeRequest) { r.Questions[0].Kind = 7 }),
		"questions[0].nodes[2]: there is no node 7":                    one(func(r *pluginv1.JudgeRequest) { r.Questions[0].Nodes[2] = 7 }),
		`questions[0].filters[1]: there is no plugin "X" that filters`: one(func(r *pluginv1.JudgeRequest) { r.Questions[0].Filters = []string{"F", "X"} }),
		`questions[0].filters[0]: there is no plugin "S" that filters`: one(func(r *pluginv1.JudgeRequest) { r.Questions[0].Filters = []string{"S"} }),
		`questions[0].scores[0]: there is no plugin "F" that scores`:   one(func(r *pluginv1.JudgeRequest) { r.Questions[0].Scores = []string{"F"} }),
		`questions[0].kind: there is no kind 1`:                        then(&pluginv1.JudgeRequest{ForgottenKinds: []int32{1}, Questions: []*pluginv1.Question{{Kind: 1}}}),
		`questions[0].nodes[0]: there is no node 1`:                    then(&pluginv1.JudgeRequest{ForgottenNodes: []int32{1}, Questions: []*pluginv1.Question{{Kind: 1, Nodes: []int32{1}}}}),
	} {
		s := open(t, client)
		var err error
		for i, req := range requests {
			if _, err = s.try(req); i < len(requests)-1 && err != nil {
				t.Fatalf("%s: request %d: %v", want, i+1, err)
			}
		}
		if status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != want {
			t.Errorf("got %v, want INVALID_ARGUMENT: %s", err, want)
		}
	}
}

// seen is what a plugin saw of a node.
type seen func(kind *Kind, node *Node)

func looking(look seen) Plugin {
	return Plugin{Name: "P", Score: func(_ context.Context, kind *Kind, node *Node) (int64, error) {
		look(kind, node)
		return 0, nil
	}}
}

func TestIDsOfWhatIsForgottenAreThoseOfOthersInTheSameRequest(t *testing.T) {
	var got []string
	s := start(t, looking(func(kind *Kind, node *Node) {
		got = append(got, fmt.Sprint(kind.Namespace, " ", node.Name, " ", len(node.Pods), " ", node.PodCount))
	}))
	s.ask(&pluginv1.JudgeRequest{
		Kinds:     []*pluginv1.Kind{{Id: 1, Namespace: "old"}},
		Nodes:     []*pluginv1.Node{{Id: 1, Spec: &pluginv1.NodeSpec{Name: "old"}, PodCount: 1, Added: []*pluginv1.PlacedPod{{Uid: "u", Kind: 1}}}},
		Questions: []*pluginv1.Question{{Kind: 1, Scores: []string{"P"}, Nodes: []int32{1}}},
	})
	s.ask(&pluginv1.JudgeRequest{
		ForgottenNodes: []int32{1}, ForgottenKinds: []int32{1},
		Kinds: []*pluginv1.Kind{{Id: 1, Namespace: "new"}}, Nodes: []*pluginv1.Node{node(1, "new")},
		Questions: []*pluginv1.Question{{Kind: 1, Scores: []string{"P"}, Nodes: []int32{1}}},
	})
	if want := []string{"old old 1 1", "new new 0 0"}; !slices.Equal(got, want) {
		t.Errorf("the plugin saw %q, want %q", got, want)
	}
}

func TestArgumentsAreThoseOfThePodsProfile(t *testing.T) {
	plugin := func(reason string) Plugin { return Plugin{Name: "P", Filter: refusing(reason, "a")} }
	configured := plugin("by default")
	configured.Configure = func(arguments json.RawMessage) (Plugin, error) {
		var args struct{ Reason string }
		if err := json.Unmarshal(arguments, &args); err != nil {
			return Plugin{}, err
		}
		if args.Reason == "panic" {
			panic("no such reason")
		}
		if args.Reason == "score" {
			return Plugin{Score: scoring(1)}, nil
		}
		return plugin(args.Reason), nil
	}
	half := Plugin{Name: "Half", Filter: refusing("half", "a"), Score: scoring(1), Configure: func(json.RawMessage) (Plugin, error) { return plugin("half"), nil }}
	s := start(t, configured, Plugin{Name: "Bare", Filter: refusing("bare", "a")}, half)
	profiles := []struct{ name, plugin, args, reason, err string }{
		{"plain", "", "", "by default", ""},
		{"unknown", "-", "", "by default", ""}, // is not told
		{"one", "P", `{"reason":"one"}`, "one", ""},
		{"two", "P", `{"reason":"two"}`, "two", ""},
		{"bad", "P", `{"reason":1}`, "", "plugin P: its arguments in profile bad: json: cannot unmarshal number"},
		{"panic", "P", `{"reason":"panic"}`, "", "plugin P: its arguments in profile panic: panic: no such reason"},
		{"score", "P", `{"reason":"score"}`, "", "plugin P: its arguments in profile score: with them it has other functions"},
		{"half", "Half", `{}`, "by default", ""}, // it is not asked about
		{"bare", "Bare", `{}`, "by default", ""}, // nor is that
	}
	ask := &pluginv1.JudgeRequest{Nodes: []*pluginv1.Node{node(1, "a")}}
	for i, p := range profiles {
		if p.plugin != "-" {
			told := &pluginv1.Profile{SchedulerName: p.name}
			if p.plugin != "" {
				told.Arguments = []*pluginv1.PluginArguments{{Plugin: p.plugin, Json: []byte(p.args)}}
			}
			ask.Profiles = append(ask.Profiles, told)
		}
		ask.Kinds = append(ask.Kinds, &pluginv1.Kind{Id: int32(i), SchedulerName: p.name})
		ask.Questions = append(ask.Questions, &pluginv1.Question{Kind: int32(i), Filters: []string{"P"}, Nodes: []int32{1}})
	}
	last := int32(len(profiles) - 1)
	ask.Questions = append(ask.Questions, &pluginv1.Question{Kind: last, Filters: []string{"Bare"}, Nodes: []int32{1}},
		&pluginv1.Question{Kind: last - 1, Scores: []string{"Half"}, Nodes: []int32{1}})
	answers := s.ask(ask)
	for i, p := range profiles {
		reason := ""
		if r := answers[i].GetRefusals(); len(r) > 0 {
			reason = r[0].GetReason()
		}
		if err := answers[i].GetError(); reason != p.reason || (p.err == "") != (err == "") || !strings.HasPrefix(err, p.err) {
			t.Errorf("profile %s: reason %q, error %q; want %q and %q", p.name, reason, err, p.reason, p.err)
		}
	}
	if got, want := answers[len(profiles)].GetError(), "plugin Bare: its arguments in profile bare: it takes none"; got != want {
		t.Errorf("arguments for a plugin that takes none: %q, want %q", got, want)
	}
	if got, want := answers[len(profiles)+1].GetError(), "plugin Half: its arguments in profile half: with them it has other functions"; !strings.HasPrefix(got, want) {
		t.Errorf("a plugin that does not score with arguments: %q, want %q", got, want)
	}
}

func TestObjectsAreDecodedWhenSomebodyAsks(t *testing.T) {
	var got []string
	s := start(t, looking(func(kind *Kind, node *Node) {
		pod, err := kind.Pod()
		if err != nil {
			got = append(got, err.Error())
		} else {
			got = append(got, pod.Spec.Containers[0].Image)
		}
		object, err := node.Object()
		if err != nil {
			got = append(got, err.Error())
		} else {
			got = append(got, object.Status.NodeInfo.KernelVersion)
		}
		if again, _ := node.Object(); again != object {
			t.Error("the node was decoded twice")
		}
	}))
	question := []*pluginv1.Question{{Kind: 1, Scores: []string{"P"}, Nodes: []int32{1}}}
	image := func(name string) []byte {
		return []byte(`{"metadata":{"namespace":"ns"},"spec":{"containers":[{"image":"` + name + `","resources":{"requests":{"cpu":"100m"}}}]}}`)
	}
	kernel := func(version string) *pluginv1.NodeSpec {
		return &pluginv1.NodeSpec{Name: "a", Object: []byte(`{"status":{"nodeInfo":{"kernelVersion":"` + version + `"}}}`)}
	}
	s.ask(&pluginv1.JudgeRequest{Kinds: []*pluginv1.Kind{{Id: 1}}, Nodes: []*pluginv1.Node{node(1, "a")}, Questions: question})
	s.ask(&pluginv1.JudgeRequest{Kinds: []*pluginv1.Kind{{Id: 1, Object: image("x")}}, Nodes: []*pluginv1.Node{{Id: 1, Spec: kernel("6.1")}}, Questions: question})
	s.ask(&pluginv1.JudgeRequest{Nodes: []*pluginv1.Node{{Id: 1, PodCount: 1}}, Questions: question}) // it is what it was
	s.ask(&pluginv1.JudgeRequest{Nodes: []*pluginv1.Node{{Id: 1, Spec: kernel("6.2")}}, Questions: question})
	s.ask(&pluginv1.JudgeRequest{Kinds: []*pluginv1.Kind{{Id: 1, Object: []byte("{")}}, Questions: question})
	want := []string{errNotTold.Error(), errNotTold.Error(), "x", "6.1", "x", "6.1", "x", "6.2", "decode the object: unexpected end of JSON input", "6.2"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the plugin saw (-want +got):\n%s", diff)
	}
	for _, f := range []func() error{
		func() error { _, err := new(Kind).Pod(); return err }, func() error { _, err := new(Node).Object(); return err },
	} {
		if err := f(); !errors.Is(err, errNotTold) {
			t.Errorf("a kind or a node that a test has made: %v", err)
		}
	}
}

// What Berth would refuse as nonsense never leaves: too many reasons, too long ones, and bytes that are no text.
func TestReasonsAreBounded(t *testing.T) {
	const nodes = 3000
	s := start(t,
		Plugin{Name: "Even", Filter: func(_ context.Context, _ *Kind, node *Node) (*Refusal, error) {
			if node.PodCount%2 == 0 {
				return &Refusal{Reason: fmt.Sprint("not ", node.Name), Unresolvable: node.PodCount%4 == 0}, nil
			}
			return nil, nil
		}},
		Plugin{Name: "Odd", Filter: func(_ context.Context, _ *Kind, node *Node) (*Refusal, error) {
			return &Refusal{Reason: strings.Repeat("\xff", 2) + node.Name + strings.Repeat("é", 600*(node.PodCount%3))}, nil
		}},
	)
	ask := &pluginv1.JudgeRequest{Kinds: []*pluginv1.Kind{{Id: 1}}, Questions: []*pluginv1.Question{{Kind: 1, Filters: []string{"Even", "Odd"}}}}
	for i := range int32(nodes) {
		n := node(i, fmt.Sprint("n", i))
		n.PodCount = i
		ask.Nodes = append(ask.Nodes, n)
		ask.Questions[0].Nodes = append(ask.Questions[0].Nodes, i)
	}
	answer := s.ask(ask)[0]
	if got := len(answer.GetRefusals()); got > 1000 || got < 900 {
		t.Errorf("%d refusals, want some 900, and 1,000 at most", got)
	}
	others := make(map[string]int)
	for i, v := range answer.GetVerdicts() {
		if v == 0 || int(v) > len(answer.GetRefusals()) {
			t.Fatalf("node %d: verdict %d", i, v)
		}
		r := answer.GetRefusals()[v-1]
		if want := []string{"Even", "Odd"}[i%2]; r.GetPlugin() != want || r.GetUnresolvable() != (i%4 == 0) {
			t.Fatalf("node %d: refused by %v, want %s", i, r, want)
		}
		if r.GetReason() == pluginproto.OtherReason {
			others[r.GetPlugin()]++
			continue
		}
		if len(r.GetReason()) > 1024 || !utf8.ValidString(r.GetReason()) || !strings.Contains(r.GetReason(), fmt.Sprint("n", i)) {
			t.Fatalf("node %d: reason %q", i, r.GetReason())
		}
	}
	if others["Even"] < 1000 || others["Odd"] < 1000 {
		t.Errorf("another reason was told of %v", others)
	}
}

func TestStreamsKnowNothingOfEachOther(t *testing.T) {
	client := dial(t, serve(t, Config{Plugins: []Plugin{{Name: "F", Filter: refusing("no", "a")}}}).address)
	question := []*pluginv1.Question{{Kind: 1, Filters: []string{"F"}, Nodes: []int32{1}}}
	one, two := open(t, client), open(t, client)
	kinds := []*pluginv1.Kind{{Id: 1}}
	one.ask(&pluginv1.JudgeRequest{Kinds: kinds, Nodes: []*pluginv1.Node{node(1, "a")}})
	two.ask(&pluginv1.JudgeRequest{Kinds: kinds, Nodes: []*pluginv1.Node{node(1, "b")}})
	if got := one.ask(&pluginv1.JudgeRequest{Questions: question})[0]; len(got.GetVerdicts()) != 1 {
		t.Errorf("node a can run the pod: %v", got)
	}
	one.cancel()
	if got := two.ask(&pluginv1.JudgeRequest{Questions: question})[0]; len(got.GetVerdicts()) != 0 {
		t.Errorf("node b cannot run the pod: %v", got)
	}
	three := open(t, client)
	if _, err := three.try(&pluginv1.JudgeRequest{Questions: question}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a stream that is begun anew knows of what another was told: %v", err)
	}
}

func TestPluginsAreToldThatNobodyWantsTheirAnswer(t *testing.T) {
	called, ended := make(chan struct{}), make(chan struct{})
	s := start(t, Plugin{Name: "Waits", Filter: func(ctx context.Context, _ *Kind, _ *Node) (*Refusal, error) {
		close(called)
		<-ctx.Done()
		close(ended)
		return nil, ctx.Err()
	}})
	req := three([]string{"Waits"}, nil)
	req.Id, req.Questions[0].Nodes = 1, []int32{1}
	if err := s.client.Send(req); err != nil {
		t.Fatal(err)
	}
	<-called
	s.cancel()
	<-ended
}

// The goroutines that judge the nodes of a question are as many as may run at a time, and the order of answers is that of the nodes.
func TestManyNodesAreJudgedAtATime(t *testing.T) {
	const nodes = 5000
	var now, most atomic.Int32
	s := start(t, Plugin{Name: "P", Score: func(_ context.Context, _ *Kind, node *Node) (int64, error) {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		runtime.Gosched() // so that all who may be here are
		return int64(node.PodCount % 101), nil
	}})
	ask := &pluginv1.JudgeRequest{Kinds: []*pluginv1.Kind{{Id: 1}}, Questions: []*pluginv1.Question{{Kind: 1, Scores: []string{"P"}}}}
	for i := range int32(nodes) {
		n := node(i, fmt.Sprint("n", i))
		n.PodCount = i
		ask.Nodes = append(ask.Nodes, n)
		ask.Questions[0].Nodes = append(ask.Questions[0].Nodes, nodes-1-i)
	}
	scores := s.ask(ask)[0].GetScores()[0].GetScores()
	for i, score := range scores {
		if want := int32((nodes - 1 - i) % 101); score != want {
			t.Fatalf("node %d: score %d, want %d", i, score, want)
		}
	}
	if m := int(most.Load()); len(scores) != nodes || m > runtime.GOMAXPROCS(0) {
		t.Errorf("%d scores, by %d goroutines at a time, want %d by %d at most", len(scores), m, nodes, runtime.GOMAXPROCS(0))
	}
}
