package fanout

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	scorev1 "github.com/berth-scheduler/berth/internal/gen/berth/score/v1"
	"github.com/berth-scheduler/berth/internal/wire"
)

// ScoreQuestion asks for the best nodes.
type ScoreQuestion struct {
	Least    cluster.Version // what the answers have to be of, or later
	Subjects []ScoreSubject
	Traced   bool
}

// ScoreSubject asks for the best of some nodes.
type ScoreSubject struct {
	Subject  engine.Subject
	Eligible cluster.Bitmap // of which to choose
	Limit    int            // of each group, at most
	Seed     uint64         // of the order of equal nodes
}

// ScoreAnswer answers in the order of the question.
type ScoreAnswer struct {
	Versions
	Groups [][]engine.Group // by subject
	Calls  []Call           // about subjects; also with an error. None unless traced
}

// Score asks the score-workers. A RefusedError says that to ask again does not help.
func (w *Workers) Score(ctx context.Context, q ScoreQuestion) (ScoreAnswer, error) {
	first, last := w.f.suspects.split(w.scores)
	words := 0
	for _, s := range q.Subjects {
		words = max(words, len(s.Eligible))
	}
	var parts []part[*scorev1.ScoreRequest, *scorev1.ScoreResponse]
	for _, r := range cluster.Ranges(words*64, len(first), cluster.LeastRange) {
		request := &scorev1.ScoreRequest{MinVersion: wire.ToVersion(q.Least), First: int32(r.First), End: int32(r.End)}
		var about []int
		for i, s := range q.Subjects {
			if len(s.Eligible) <= int(r.First/64) {
				continue
			}
			eligible := wire.FromBitmap(s.Eligible[r.First/64 : min(int(r.End/64), len(s.Eligible))])
			if len(eligible) > 0 {
				about = append(about, i)
				request.Subjects = append(request.Subjects, &scorev1.SubjectQuery{
					Subject: wire.ToSubject(s.Subject), Eligible: eligible, Limit: int32(s.Limit),
				})
			}
		}
		if len(about) == 0 {
			continue
		}
		parts = append(parts, part[*scorev1.ScoreRequest, *scorev1.ScoreResponse]{
			cut: r, about: about, request: request, span: w.f.span(q.Traced, "score", r),
			call: func(ctx context.Context, conn grpc.ClientConnInterface, request *scorev1.ScoreRequest) (*scorev1.ScoreResponse, error) {
				return scorev1.NewScoreServiceClient(conn).Score(ctx, request)
			},
		})
	}
	responses, err := askAll(ctx, w.f, first, last, parts)
	a := ScoreAnswer{Groups: make([][]engine.Group, len(q.Subjects)), Calls: callsOf(parts)}
	if err != nil {
		return a, err
	}
	ranked := make([][][]engine.Group, len(q.Subjects)) // by subject and range
	for i, response := range responses {
		about := parts[i].about
		if len(response.GetSubjects()) != len(about) {
			return a, RefusedError{fmt.Errorf("answer about %d subjects, asked for %d", len(response.GetSubjects()), len(about))}
		}
		a.Versions.add(wire.Version(response.GetVersion()))
		for k, c := range response.GetSubjects() {
			groups, err := wire.Groups(c.GetGroups())
			if err != nil {
				return a, RefusedError{err}
			}
			ranked[about[k]] = append(ranked[about[k]], groups)
		}
	}
	for i, s := range q.Subjects {
		if len(ranked[i]) > 0 {
			a.Groups[i] = engine.MergeGroups(s.Seed, s.Limit, ranked[i]...)
		}
	}
	return a, nil
}
