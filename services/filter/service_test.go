package filter

import (
	"context"
	"errors"
	"fmt"
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
	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
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
		cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{engine.DefaultProfile("default-scheduler")}}},
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

func TestAnswerTellsFeasibleNodesVerdictsAndPodsOnNodes(t *testing.T) {
	st, seven := three(t), &filterv1.Subject{Class: 7}
	got, err := service(t, Config{Replica: fixed{st: st}}).Filter(t.Context(), &filterv1.FilterRequest{
		MinVersion: wire.ToVersion(st.Version()), First: 0, End: 64, Subjects: []*filterv1.Subject{{Class: 7}, {Class: 99}},
		PodsOnNodes: []*filterv1.PodOnNode{{Subject: seven, Node: 1}, {Subject: seven, Node: 0, Self: -1}, {Subject: seven, Node: 5}},
	})
	if err != nil {
		t.Fatal(err)
	}
	small := []*filterv1.VerdictCount{{
		Plugin: "NodeResourcesFit", Reason: "Insufficient cpu", Unresolvable: true, Count: 1, Examples: []string{"a"},
	}}
	want := &filterv1.FilterResponse{
		Version:     wire.ToVersion(st.Version()),
		Subjects:    []*filterv1.SubjectFeasibility{{Eligible: []byte{2}, FeasibleCount: 1, Nodes: 2, Verdicts: small}, {}},
		PodsOnNodes: []*filterv1.PodOnNodeFeasibility{{Known: true, Feasible: true}, {Known: true, Verdicts: small}, {}},
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
	node := st.Node(1)
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

func TestOwnNominationDoesNotCountAgainstAPodOnItsNode(t *testing.T) {
	st := three(t)
	if err := st.Apply(cluster.PodSet{ID: 3, Pod: cluster.Pod{UID: "u", Class: 7, Nominated: "b"}}); err != nil {
		t.Fatal(err)
	}
	seven := &filterv1.Subject{Class: 7}
	got, err := service(t, Config{Replica: fixed{st: st}}).Filter(t.Context(), &filterv1.FilterRequest{
		MinVersion: wire.ToVersion(st.Version()), First: 0, End: 64,
		PodsOnNodes: []*filterv1.PodOnNode{{Subject: seven, Node: 1, Self: 3}, {Subject: seven, Node: 1, Self: -1}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if self, other := got.GetPodsOnNodes()[0].GetFeasible(), got.GetPodsOnNodes()[1].GetFeasible(); !self || other {
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
		"too many of a node": {&filterv1.FilterRequest{End: 64, PodsOnNodes: make([]*filterv1.PodOnNode, 10_001)}, []string{"pods_on_nodes"}},
		"node out of range":  {&filterv1.FilterRequest{First: 64, End: 128, PodsOnNodes: []*filterv1.PodOnNode{{Node: 64}, {Node: 128}, {Node: 63}}}, []string{"pods_on_nodes[1].node", "pods_on_nodes[2].node"}},
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

func TestADryRunTellsWhoHasToGoAndWhyNobodyCould(t *testing.T) {
	st := three(t)
	for id, pod := range []cluster.Pod{
		{UID: "victim", Class: 7, NodeName: "b", Priority: 1, Started: 5},
		{UID: "important", Class: 7, NodeName: "m", Priority: 9},
		{UID: "also", Class: 7, NodeName: "m", Priority: 9},
		{UID: "preemptor", Class: 7, Priority: 9},
	} {
		if err := st.Apply(cluster.PodSet{ID: cluster.PodID(id), Pod: pod}); err != nil {
			t.Fatal(err)
		}
	}
	s := service(t, Config{Replica: fixed{st: st}})
	request := func(change func(*filterv1.DryRunPreemptionRequest)) *filterv1.DryRunPreemptionRequest {
		m := &filterv1.DryRunPreemptionRequest{
			MinVersion: wire.ToVersion(st.Version()), End: 128, Subject: &filterv1.Subject{Class: 7, Priority: 9}, Pod: 3,
		}
		change(m)
		return m
	}
	all := &filterv1.DryRunPreemptionResponse{
		Version: wire.ToVersion(st.Version()), Nodes: 3, CandidateCount: 1,
		Candidates: []*filterv1.PreemptionCandidate{{Node: 1, Victims: []int32{0}, HighestPriority: 1, PrioritySum: 1 + 1<<31, EarliestStart: 5}},
		Verdicts: []*filterv1.VerdictCount{
			{Reason: engine.ReasonNoVictims, Unresolvable: true, Count: 1, Examples: []string{"m"}},
			{Reason: engine.ReasonNotHelpful, Unresolvable: true, Count: 1, Examples: []string{"a"}},
		},
	}
	nothing := &filterv1.DryRunPreemptionResponse{Version: wire.ToVersion(st.Version())}
	for name, c := range map[string]struct {
		change func(*filterv1.DryRunPreemptionRequest)
		want   *filterv1.DryRunPreemptionResponse
	}{
		"everything":                 {func(*filterv1.DryRunPreemptionRequest) {}, all},
		"more than there can be":     {func(m *filterv1.DryRunPreemptionRequest) { m.Limit = 1 << 30 }, all},
		"a pod that is not known":    {func(m *filterv1.DryRunPreemptionRequest) { m.Pod = 99 }, nothing},
		"a pod that is placed":       {func(m *filterv1.DryRunPreemptionRequest) { m.Pod, m.Subject.Priority = 0, 1 }, nothing},
		"a pod of another subject":   {func(m *filterv1.DryRunPreemptionRequest) { m.Subject.Priority = 10 }, nothing},
		"a subject that is not said": {func(m *filterv1.DryRunPreemptionRequest) { m.Subject = nil }, nothing},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := s.DryRunPreemption(t.Context(), request(c.change))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
		})
	}
}

func TestADryRunKeepsTheBestHundredCandidatesAtMost(t *testing.T) {
	st := three(t)
	asks := []cluster.Quantity{{Name: "cpu", Value: 500}, {Name: "pods", Value: 10}}
	id := cluster.PodID(0)
	for i := range cluster.NodeIndex(150) {
		name := fmt.Sprint("n", i)
		if st.Nodes.Live.Has(i) {
			name = st.Nodes.Spec[i].Name
		}
		for _, d := range []cluster.Delta{
			cluster.NodeSet{Index: i, Node: cluster.Node{Name: name, Allocatable: asks}},
			cluster.PodSet{ID: id, Pod: cluster.Pod{UID: name, Class: 7, NodeName: name, Priority: int32(i)}},
		} {
			if err := st.Apply(d); err != nil {
				t.Fatal(err)
			}
		}
		id++
	}
	if err := st.Apply(cluster.PodSet{ID: id, Pod: cluster.Pod{UID: "preemptor", Class: 7, Priority: 1000}}); err != nil {
		t.Fatal(err)
	}
	s := service(t, Config{Replica: fixed{st: st}})
	for limit, want := range map[int32]int{0: 1, 1: 1, 20: 20, 100: 100, 1000: 100} {
		got, err := s.DryRunPreemption(t.Context(), &filterv1.DryRunPreemptionRequest{
			MinVersion: wire.ToVersion(st.Version()), End: 192, Subject: &filterv1.Subject{Class: 7, Priority: 1000}, Pod: int32(id), Limit: limit,
		})
		if err != nil {
			t.Fatal(err)
		}
		if got.GetCandidateCount() != 150 || len(got.GetCandidates()) != want {
			t.Errorf("limit %d: %d of %d candidates, want %d of 150", limit, len(got.GetCandidates()), got.GetCandidateCount(), want)
		}
		for k, c := range got.GetCandidates() {
			if c.GetNode() != int32(k) {
				t.Fatalf("limit %d: candidate %d is node %d", limit, k, c.GetNode())
			}
		}
	}
}

func TestBadDryRunsAreAnsweredWithTheirFields(t *testing.T) {
	s := service(t, Config{Replica: fixed{st: three(t)}})
	_, err := s.DryRunPreemption(t.Context(), &filterv1.DryRunPreemptionRequest{First: 1, End: 1, Pod: -1, Limit: -1})
	var fields []string
	for _, v := range rpc.Violations(err) {
		fields = append(fields, v.Field)
	}
	if !slices.Equal(fields, []string{"first", "end", "pod", "limit"}) || status.Code(err) != codes.InvalidArgument {
		t.Errorf("%v with fields %v", err, fields)
	}
	ahead := &logv1.Version{Epoch: 2, Seq: 1 << 40}
	if _, err := s.DryRunPreemption(t.Context(), &filterv1.DryRunPreemptionRequest{End: 64, MinVersion: ahead}); status.Code(err) != codes.Unavailable {
		t.Errorf("a replica that is behind: %v, want UNAVAILABLE", err)
	}
}

// impatient is a replica whose callers go while they wait for it.
type impatient struct {
	fixed
	leave context.CancelFunc
}

func (r impatient) Read(ctx context.Context, least cluster.Version, fn func(*cluster.State) error) error {
	r.leave()
	return r.fixed.Read(ctx, least, fn)
}

func TestNoDryRunIsMadeForACallerThatHasGone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := service(t, Config{Replica: impatient{fixed{st: three(t)}, cancel}})
	if _, err := s.DryRunPreemption(ctx, &filterv1.DryRunPreemptionRequest{End: 64}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that of the context", err)
	}
}

func TestTooManyRequestsAreRefusedAndToldWhenToComeBack(t *testing.T) {
	hold := make(chan struct{})
	s := service(t, Config{Replica: fixed{st: three(t), hold: hold}, MaxConcurrent: 1, MaxWaiting: 1})
	errs := make(chan error, 3)
	for k := range 3 {
		go func() {
			var err error
			if k == 0 {
				_, err = s.DryRunPreemption(t.Context(), &filterv1.DryRunPreemptionRequest{End: 64})
			} else {
				_, err = s.Filter(t.Context(), &filterv1.FilterRequest{End: 64})
			}
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
