package plugin

import (
	"fmt"
	"testing"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// BenchmarkJudge asks about 5,000 nodes, of which nothing has changed, by one filter and one score.
func BenchmarkJudge(b *testing.B) {
	service, err := newService(nil, []Plugin{{Name: "P", Filter: refusing("no", "n7"), Score: scoring(7)}})
	if err != nil {
		b.Fatal(err)
	}
	s := newSession(service.plugins)
	ask := &pluginv1.JudgeRequest{Id: 1, Kinds: []*pluginv1.Kind{{Id: 1}}, Questions: []*pluginv1.Question{{Kind: 1, Filters: []string{"P"}, Scores: []string{"P"}}}}
	for i := range int32(5000) {
		ask.Nodes = append(ask.Nodes, node(i, fmt.Sprint("n", i)))
		ask.Questions[0].Nodes = append(ask.Questions[0].Nodes, i)
	}
	if err := s.fold(ask); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		q, err := s.question(0, ask.Questions[0])
		if err != nil {
			b.Fatal(err)
		}
		if got := q.answer(b.Context(), service.log); got.GetError() != "" {
			b.Fatal(got.GetError())
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/5000, "ns/node")
}
