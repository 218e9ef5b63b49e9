package score

import (
	"context"
	"slices"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	filterv1 "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
	scorev1 "github.com/berth-scheduler/berth/internal/gen/berth/score/v1"
	"github.com/berth-scheduler/berth/internal/replica"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixed is a replica that stands still.
type fixed struct {
	st   *cluster.State
	hold chan struct{} // if not nil, readers wait until it is closed
}

func (f fixed) Read(ctx context.Context, least cluster.Version, fn func(*cluster.State) error) error {
	if f.hold != nil {
		<-f.hold
	}
	if f.st.Version().Less(least) {
		return &replica.BehindError{Have: f.st.Version(), Want: least}
	}
	return fn(f.st)
}

func (f fixed) Ready() error { return nil }

// four returns a state with nodes 64 to 67 of growing size, and class 7 of pods that ask for 500 milli-CPU: by
// LeastAllocated the larger a node, the better.
func four(t *testing.T) *cluster.State {
	t.Helper()
	st := cluster.New(cluster.Version{Epoch: 2})
	asks := []cluster.Quantity{{Name: "cpu", Value: 500}}
	deltas := []cluster.Delta{
		cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{engine.DefaultProfile("default-scheduler")}}},
		cluster.ClassDefined{ID: 7, Spec: cluster.ClassSpec{SchedulerName: "default-scheduler", Requests: asks, ScoreRequests: asks}},
	}
	for i := range 4 {
		deltas = append(deltas, cluster.NodeSet{Index: cluster.NodeIndex(64 + i), Node: cluster.Node{
			Name: string(rune('a' + i)), Allocatable: []cluster.Quantity{{Name: "cpu", Value: int64(1000 * (i + 1))}, {Name: "pods", Value: 10}}}})
	}
	for _, d := range deltas {
		if err := st.Apply(d); err != nil {
			t.Fatal(err)
		}
	}
	return st
}

func service(t *testing.T, cfg Config) *Service {
	t.Helper()
	cfg.Evaluator = engine.NewEvaluator(engine.EvaluatorConfig{})
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAnswerHasTheBestOfTheEligibleNodesOnly(t *testing.T) {
	st := four(t)
	s := service(t, Config{Replica: fixed{st: st}})
	for limit, want := range map[int32][]int32{0: {66}, 2: {66, 65}, 1_000_000: {66, 65, 64}} {
		got, err := s.Score(t.Context(), &scorev1.ScoreRequest{
			MinVersion: wire.ToVersion(st.Version()), First: 64, End: 128,
			Subjects: []*scorev1.SubjectQuery{
				{Subject: &filterv1.Subject{Class: 7}, Eligible: []byte{0b0111}, Limit: limit},
				{Subject: &filterv1.Subject{Class: 99}, Eligible: []byte{1}},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		groups := got.GetSubjects()[0].GetGroups()
		if len(groups) != 1 || groups[0].GetCount() != 3 || !slices.Equal(groups[0].GetNodes(), want) {
			t.Errorf("limit %d: groups %v, want one of 3 nodes that lists %v", limit, groups, want)
		}
		if n := len(got.GetSubjects()[1].GetGroups()); n != 0 {
			t.Errorf("a class that is not known has %d groups", n)
		}
	}
}

func TestReplicaThatIsBehindSendsTheCallerElsewhere(t *testing.T) {
	st := four(t)
	v := st.Version()
	v.Seq++
	_, err := service(t, Config{Replica: fixed{st: st}}).Score(t.Context(), &scorev1.ScoreRequest{MinVersion: wire.ToVersion(v), End: 64})
	if status.Code(err) != codes.Unavailable || rpc.ReasonOf(err) != rpc.ReasonReplicaBehind {
		t.Errorf("error %v, want UNAVAILABLE with REPLICA_BEHIND", err)
	}
}

func TestBadRequestsAreAnsweredWithTheirFields(t *testing.T) {
	s := service(t, Config{Replica: fixed{st: four(t)}})
	query := func(q ...*scorev1.SubjectQuery) []*scorev1.SubjectQuery { return q }
	for name, c := range map[string]struct {
		request *scorev1.ScoreRequest
		fields  []string
	}{
		"not aligned":        {&scorev1.ScoreRequest{First: 1, End: 64}, []string{"first"}},
		"empty":              {&scorev1.ScoreRequest{First: 64, End: 64}, []string{"end"}},
		"end not aligned":    {&scorev1.ScoreRequest{End: 100}, []string{"end"}},
		"too many subjects":  {&scorev1.ScoreRequest{End: 64, Subjects: make([]*scorev1.SubjectQuery, 1001)}, []string{"subjects"}},
		"bitmap too long":    {&scorev1.ScoreRequest{End: 64, Subjects: query(&scorev1.SubjectQuery{}, &scorev1.SubjectQuery{Eligible: make([]byte, 9)})}, []string{"subjects[1].eligible"}},
		"bitmap just fits":   {&scorev1.ScoreRequest{End: 64, Subjects: query(&scorev1.SubjectQuery{Eligible: make([]byte, 8)})}, nil},
		"negative limit":     {&scorev1.ScoreRequest{End: 64, Subjects: query(&scorev1.SubjectQuery{Limit: -1})}, []string{"subjects[0].limit"}},
		"nothing is missing": {&scorev1.ScoreRequest{End: 64}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Score(t.Context(), c.request)
			var fields []string
			for _, v := range rpc.Violations(err) {
				fields = append(fields, v.Field)
			}
			want := codes.OK
			if c.fields != nil {
				want = codes.InvalidArgument
			}
			if !slices.Equal(fields, c.fields) || status.Code(err) != want {
				t.Errorf("%v with fields %v, want %v with %v", err, fields, want, c.fields)
			}
		})
	}
}

func TestTooManyRequestsAreRefusedAndToldWhenToComeBack(t *testing.T) {
	hold := make(chan struct{})
	s := service(t, Config{Replica: fixed{st: four(t), hold: hold}, MaxConcurrent: 1, MaxWaiting: 1})
	errs := make(chan error, 3)
	for range 3 {
		go func() {
			_, err := s.Score(t.Context(), &scorev1.ScoreRequest{End: 64})
			errs <- err
		}()
	}
	// One runs and one waits, so one is refused, and only that one can end.
	err := <-errs
	after, ok := rpc.RetryAfter(err)
	if status.Code(err) != codes.ResourceExhausted || !ok || after <= 0 {
		t.Errorf("error %v with retry after %v, want RESOURCE_EXHAUSTED with a time", err, after)
	}
	close(hold)
	for range 2 {
		if err := <-errs; err != nil {
			t.Errorf("an admitted request got %v", err)
		}
	}
}
