package pluginhost

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// Of two services the first says each time that it cannot answer, while pods come to nodes: what is to be told to the second does not pile up, and what it says is kept.
func TestNothingPilesUpForOneServiceWhileAnotherFails(t *testing.T) {
	first := &scripted{
		plugins: []*pluginv1.PluginDescription{{Name: "A", Filters: true, Scores: true}},
		answer: func(_ int, r *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error) {
			out := honest(r)
			for k := range out.Answers {
				out.Answers[k] = &pluginv1.Answer{Error: "not today"}
			}
			return out, nil
		},
	}
	second := &scripted{plugins: []*pluginv1.PluginDescription{{Name: "B", Filters: true, Scores: true, Depends: &pluginv1.Dependencies{Requested: true}}}}
	h := newHost(t, []cluster.Profile{profile("default-scheduler", "A", "B")}, serviceOf("a", first.serve(t), "A"), serviceOf("b", second.serve(t), "B"))
	st, subjects := world(t, 3)
	for i := range 20 {
		if _, err := judge(t, h, st, subjects[0]); err == nil || !strings.Contains(err.Error(), `plugin service "a": not today`) {
			t.Fatalf("error %v", err)
		}
		if n := len(h.services[1].session.outbox); n > 1 {
			t.Fatalf("%d requests wait for the other service after %d attempts", n, i+1)
		}
		id := st.FreePod()
		for _, d := range []cluster.Delta{
			cluster.PodSet{ID: id, Pod: cluster.Pod{UID: fmt.Sprint("more-", i), Namespace: "n", Name: fmt.Sprint("more-", i), Class: subjects[0].Class}},
			cluster.PodAssumed{ID: id, Node: cluster.NodeIndex(i % 3), Attempt: 1},
		} {
			if err := st.Apply(d); err != nil {
				t.Fatal(err)
			}
		}
	}
}
