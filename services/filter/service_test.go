package filter

import (
	"context"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	filterv1 "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
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

// three returns a state with nodes of 100, 500 and 1000 milli-CPU at 0, 1 and 64, and class 7 of pods that ask for 500.
func three(t *testing.T) *cluster.State {
	t.Helper()
	st := cluster.New(cluster.Version{Epoch: 2})
	asks := []cluster.Quantity{{Name: "cpu", Value: 500}}
	deltas := []cluster.Delta{
		cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{cluster.DefaultProfile("default-scheduler")}}},
		cluster.ClassDefined{ID: 7, Spec: cluster.ClassSpec{SchedulerName: "default-scheduler", Requests: asks, ScoreRequests: asks}},
	}
	for i, milli := range map[cluster.NodeIndex]int64{0: 100, 1: 500, 64: 1000} {
		deltas = append(deltas, cluster.NodeSet{Index: i, Node: cluster.Node{
			Name: string(rune('a' + i%26)), Allocatable: []cluster.Quantity{{Name: "cpu", Value: milli}, {Name: "pods", Value: 10}}}})
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

func TestAnswerTellsFeasibleNodesVerdictsAndPins(t *testing.T) {
	st, seven := three(t), &filterv1.Subject{Class: 7}
	got, err := service(t, Config{Replica: fixed{st: st}}).Filter(t.Context(), &filterv1.FilterRequest{
		MinVersion: wire.ToVersion(st.Version()), First: 0, End: 64, Subjects: []*filterv1.Subject{{Class: 7}, {Class: 99}},
		Pins: []*filterv1.Pin{{Subject: seven, Node: 1}, {Subject: seven, Node: 0, Self: -1}, {Subject: seven, Node: 5}},
	})
	if err != nil {
		t.Fatal(err)
	}
	small := []*filterv1.VerdictCount{{
		Plugin: "NodeResourcesFit", Reason: "Insufficient cpu", Unresolvable: true, Count: 1, Examples: []string{"a"},
	}}
	want := &filterv1.FilterResponse{
		Version:  wire.ToVersion(st.Version()),
		Subjects: []*filterv1.SubjectFeasibility{{Eligible: []byte{2}, FeasibleCount: 1, Nodes: 2, Verdicts: small}, {}},
		Pins:     []*filterv1.PinFeasibility{{Known: true, Feasible: true}, {Known: true, Verdicts: small}, {}},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
}

func TestNodesThatOnlyPodsOnOtherNodesExcludeAreEligibleButNotFeasible(t *testing.T) {
	st := three(t)
	asks := []cluster.Quantity{{Name: "cpu", Value: 500}}
	friend := cluster.PodTerm{
		TopologyKey: "zone", Namespaces: []string{"default"}, NamespaceSelector: cluster.LabelSelector{Nothing: true},
		Selector: cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "app", Operator: "In", Values: []string{"friend"}}}},
	}
	d := cluster.ClassDefined{ID: 8, Spec: cluster.ClassSpec{
		SchedulerName: "default-scheduler", Requests: asks, ScoreRequests: asks, Affinity: []cluster.PodTerm{friend}}}
	if err := st.Apply(d); err != nil {
		t.Fatal(err)
	}
	node := st.Nodes.Spec[1]
	node.Labels = []cluster.Label{{Key: "zone", Value: "z"}}
	if err := st.Apply(cluster.NodeSet{Index: 1, Node: node}); err != nil {
		t.Fatal(err)
	}
	got, err := service(t, Config{Replica: fixed{st: st}}).Filter(t.Context(), &filterv1.FilterRequest{
		MinVersion: wire.ToVersion(st.Version()), First: 0, End: 64, Subjects: []*filterv1.Subject{{Class: 8}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if f := got.GetSubjects()[0]; f.GetFeasibleCount() != 0 || !slices.Equal(f.GetEligible(), []byte{2}) {
		t.Errorf("%d feasible nodes and %v eligible, want none and node 1", f.GetFeasibleCount(), f.GetEligible())
	}
}

func TestOwnNominationDoesNotCountAgainstAPinnedPod(t *testing.T) {
	st := three(t)
	if err := st.Apply(cluster.PodSet{ID: 3, Pod: cluster.Pod{UID: "u", Class: 7, Nominated: "b"}}); err != nil {
		t.Fatal(err)
	}
	seven := &filterv1.Subject{Class: 7}
	got, err := service(t, Config{Replica: fixed{st: st}}).Filter(t.Context(), &filterv1.FilterRequest{
		MinVersion: wire.ToVersion(st.Version()), First: 0, End: 64,
		Pins: []*filterv1.Pin{{Subject: seven, Node: 1, Self: 3}, {Subject: seven, Node: 1, Self: -1}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if self, other := got.GetPins()[0].GetFeasible(), got.GetPins()[1].GetFeasible(); !self || other {
		t.Errorf("the node is feasible for the pod itself: %v, for another: %v; want true and false", self, other)
	}
}

func TestReplicaThatIsBehindSendsTheCallerElsewhere(t *testing.T) {
	st := three(t)
	v := st.Version()
	v.Seq++
	_, err := service(t, Config{Replica: fixed{st: st}}).Filter(t.Context(), &filterv1.FilterRequest{MinVersion: wire.ToVersion(v), End: 64})
	if status.Code(err) != codes.Unavailable || rpc.ReasonOf(err) != rpc.ReasonReplicaBehind {
		t.Errorf("error %v, want UNAVAILABLE with REPLICA_BEHIND", err)
	}
}

func TestBadRequestsAreAnsweredWithTheirFields(t *testing.T) {
	s := service(t, Config{Replica: fixed{st: three(t)}})
	for name, c := range map[string]struct {
		request *filterv1.FilterRequest
		fields  []string
	}{
		"not aligned":        {&filterv1.FilterRequest{First: 1, End: 64}, []string{"first"}},
		"negative":           {&filterv1.FilterRequest{First: -64, End: 64}, []string{"first"}},
		"empty":              {&filterv1.FilterRequest{First: 64, End: 64}, []string{"end"}},
		"end not aligned":    {&filterv1.FilterRequest{End: 65}, []string{"end"}},
		"end beyond all":     {&filterv1.FilterRequest{End: cluster.MaxIndex + 1}, nil},
		"too many subjects":  {&filterv1.FilterRequest{End: 64, Subjects: make([]*filterv1.Subject, 1001)}, []string{"subjects"}},
		"too many pins":      {&filterv1.FilterRequest{End: 64, Pins: make([]*filterv1.Pin, 10_001)}, []string{"pins"}},
		"pin out of range":   {&filterv1.FilterRequest{First: 64, End: 128, Pins: []*filterv1.Pin{{Node: 64}, {Node: 128}, {Node: 63}}}, []string{"pins[1].node", "pins[2].node"}},
		"nothing is missing": {&filterv1.FilterRequest{End: 64}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Filter(t.Context(), c.request)
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
	s := service(t, Config{Replica: fixed{st: three(t), hold: hold}, MaxConcurrent: 1, MaxWaiting: 1})
	errs := make(chan error, 3)
	for range 3 {
		go func() {
			_, err := s.Filter(t.Context(), &filterv1.FilterRequest{End: 64})
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
