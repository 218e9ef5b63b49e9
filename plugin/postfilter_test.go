package plugin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// ways are plugins A, B and C, which find what they are told to, and note that they were asked.
func ways(t *testing.T, found map[string]func() (PostFiltered, error)) (s *stream, asked func() []string) {
	var all []string
	var plugins []Plugin
	for _, name := range []string{"A", "B", "C"} {
		plugins = append(plugins, Plugin{Name: name, PostFilter: func(_ context.Context, kind *Kind, refused []Refused) (PostFiltered, error) {
			text := name + " of " + kind.Namespace
			for i, r := range refused {
				text += fmt.Sprintf(", %s by %s: %s", r.Name, r.Plugin, r.Reason)
				refused[i] = Refused{} // it is the plugin's
			}
			all = append(all, text)
			if f := found[name]; f != nil {
				return f()
			}
			return PostFiltered{Reason: name + " found none"}, nil
		}})
	}
	return start(t, plugins...), func() []string { return all }
}

func nowhere(plugins ...string) *pluginv1.JudgeRequest {
	return &pluginv1.JudgeRequest{
		Kinds: []*pluginv1.Kind{{Id: 1, Namespace: "ns"}}, Nodes: []*pluginv1.Node{node(1, "n1"), node(2, "n2")},
		Questions: []*pluginv1.Question{{Kind: 1, Nodes: []int32{2, 1}, PostFilters: plugins, Verdicts: []uint32{2, 1}, Refusals: []*pluginv1.Refusal{{Plugin: "Fit", Reason: "full"}, {Plugin: "A", Reason: "bad"}}}},
	}
}

func TestPluginsLookForAWayOneAfterTheOther(t *testing.T) {
	says := func(f PostFiltered, err error) func() (PostFiltered, error) {
		return func() (PostFiltered, error) { return f, err }
	}
	for name, tt := range map[string]struct {
		found map[string]func() (PostFiltered, error)
		want  *pluginv1.Answer
		asked int
	}{
		"none does":     {nil, &pluginv1.Answer{PostFiltered: &pluginv1.PostFiltered{Reason: "C found none, A found none, B found none"}}, 3},
		"one does":      {map[string]func() (PostFiltered, error){"A": says(PostFiltered{Success: true, Nominated: "n1"}, nil)}, &pluginv1.Answer{PostFiltered: &pluginv1.PostFiltered{Success: true, Nominated: "n1"}}, 2},
		"one ends it":   {map[string]func() (PostFiltered, error){"C": says(PostFiltered{Unresolvable: true, Reason: "never"}, nil)}, &pluginv1.Answer{PostFiltered: &pluginv1.PostFiltered{Unresolvable: true, Reason: "never"}}, 1},
		"one clears":    {map[string]func() (PostFiltered, error){"C": says(PostFiltered{ClearsNomination: true}, nil)}, &pluginv1.Answer{PostFiltered: &pluginv1.PostFiltered{ClearsNomination: true, Reason: "A found none, B found none"}}, 3},
		"one fails":     {map[string]func() (PostFiltered, error){"A": says(PostFiltered{}, errors.New("ill"))}, &pluginv1.Answer{PostFiltered: &pluginv1.PostFiltered{Error: "plugin A: ill"}}, 2},
		"one panics":    {map[string]func() (PostFiltered, error){"A": func() (PostFiltered, error) { panic("oh") }}, &pluginv1.Answer{PostFiltered: &pluginv1.PostFiltered{Error: "plugin A: panic: oh"}}, 2},
		"two at a time": {map[string]func() (PostFiltered, error){"A": says(PostFiltered{Success: true, Unresolvable: true}, nil)}, &pluginv1.Answer{PostFiltered: &pluginv1.PostFiltered{Error: "plugin A: it has success, and is unresolvable"}}, 2},
		"not a way":     {map[string]func() (PostFiltered, error){"A": says(PostFiltered{Nominated: "n1"}, nil)}, &pluginv1.Answer{PostFiltered: &pluginv1.PostFiltered{Error: "plugin A: it nominates the pod without success"}}, 2},
		"to and fro":    {map[string]func() (PostFiltered, error){"A": says(PostFiltered{Success: true, Nominated: "n1", ClearsNomination: true}, nil)}, &pluginv1.Answer{PostFiltered: &pluginv1.PostFiltered{Error: "plugin A: it nominates the pod, and ends its nomination"}}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			s, asked := ways(t, tt.found)
			got := s.ask(nowhere("C", "A", "B"))
			if diff := cmp.Diff([]*pluginv1.Answer{tt.want}, got, protocmp.Transform()); diff != "" {
				t.Errorf("answers (-want +got):\n%s", diff)
			}
			all := []string{"C of ns", "A of ns", "B of ns"}[:tt.asked]
			for i := range all {
				all[i] += ", n2 by A: bad, n1 by Fit: full"
			}
			if diff := cmp.Diff(all, asked()); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
		})
	}
}

func TestQuestionsAboutPodsThatFitNowhereWhichMakeNoSenseEndTheStream(t *testing.T) {
	for want, change := range map[string]func(*pluginv1.Question){
		"questions[0].post_filters[0]": func(q *pluginv1.Question) { q.PostFilters = []string{"Z"} },
		"questions[0].post_filters: ":  func(q *pluginv1.Question) { q.Filters = []string{"F"} },
		"questions[0].verdicts: ":      func(q *pluginv1.Question) { q.Verdicts = []uint32{1} },
		"questions[0].verdicts[1]: 3":  func(q *pluginv1.Question) { q.Verdicts[1] = 3 },
		"questions[0].verdicts[0]: 0":  func(q *pluginv1.Question) { q.Verdicts[0] = 0 },
	} {
		filter := func(context.Context, *Kind, *Node) (*Refusal, error) { return nil, nil }
		way := func(context.Context, *Kind, []Refused) (PostFiltered, error) { return PostFiltered{}, nil }
		s := start(t, Plugin{Name: "A", PostFilter: way}, Plugin{Name: "F", Filter: filter})
		req := nowhere("A")
		change(req.Questions[0])
		if _, err := s.try(req); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
