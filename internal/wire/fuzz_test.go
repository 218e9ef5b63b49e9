package wire_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
	"github.com/berth-scheduler/berth/internal/engine"
	filterv1 "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
	scorev1 "github.com/berth-scheduler/berth/internal/gen/berth/score/v1"
	"github.com/berth-scheduler/berth/internal/wire"
)

// FuzzDelta: what decodes is what a binder could write, which comes back as it was.
func FuzzDelta(f *testing.F) {
	st := cluster.New(cluster.Version{Epoch: 1})
	next := uint32(1)
	intn := func(n int) int { next = next*1664525 + 1013904223; return int(next>>8) % n }
	for range 100 {
		d := clustertest.Delta(intn, st)
		b, err := wire.Encode(d)
		if err != nil {
			f.Fatal(err)
		}
		if err := st.Apply(d); err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := wire.Decode(data)
		if err != nil {
			return
		}
		b, err := wire.Encode(d)
		if err != nil {
			t.Fatalf("%#v was decoded and does not encode: %v", d, err)
		}
		back, err := wire.Decode(b)
		if err != nil {
			t.Fatalf("%#v does not come back: %v", d, err)
		}
		if diff := cmp.Diff(d, back, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("(-decoded +encoded and decoded again):\n%s", diff)
		}
	})
}

func FuzzBitmap(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 7}, 2)
	f.Add([]byte{0xff}, -1)
	f.Add([]byte{}, 0)
	f.Fuzz(func(t *testing.T, data []byte, words int) {
		if words > 1<<16 {
			return // callers ask for as many as there are nodes
		}
		set, err := wire.Bitmap(data, words)
		if err != nil {
			return
		}
		if len(set) != words {
			t.Fatalf("%d words, want %d", len(set), words)
		}
		back, err := wire.Bitmap(wire.FromBitmap(set), words)
		if diff := cmp.Diff(set, back); err != nil || diff != "" {
			t.Errorf("%v (-decoded +encoded and decoded again):\n%s", err, diff)
		}
	})
}

// comesBack checks that what a decoder makes of a message, its encoder turns into a message of the same meaning.
func comesBack[M proto.Message, V any](t *testing.T, data []byte, m M, decode func(M) (V, error), encode func(V) M) {
	t.Helper()
	if proto.Unmarshal(data, m) != nil {
		return
	}
	v, err := decode(m)
	if err != nil {
		return
	}
	b, err := proto.Marshal(encode(v))
	if err != nil {
		t.Fatalf("%#v was decoded and does not encode: %v", v, err)
	}
	again := m.ProtoReflect().New().Interface().(M)
	if err := proto.Unmarshal(b, again); err != nil {
		t.Fatal(err)
	}
	back, err := decode(again)
	if err != nil {
		t.Fatalf("%#v does not come back: %v", v, err)
	}
	if diff := cmp.Diff(v, back, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("(-decoded +encoded and decoded again):\n%s", diff)
	}
}

// add makes a seed of a message.
func add(f *testing.F, m proto.Message) {
	f.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
}

func FuzzGroups(f *testing.F) {
	add(f, &scorev1.SubjectScores{Groups: wire.ToGroups([]engine.Group{
		{Raw: engine.Raw{Scores: [2]int64{1, 7}, TopologyProfile: "profile"}, Count: 3, Nodes: []engine.Scored{{Node: 5, Fixed: 80}, {Node: 6, Fixed: -1}}},
		{Count: 1},
	})})
	f.Fuzz(func(t *testing.T, data []byte) {
		comesBack(t, data, &scorev1.SubjectScores{},
			func(m *scorev1.SubjectScores) ([]engine.Group, error) { return wire.Groups(m.GetGroups()) },
			func(g []engine.Group) *scorev1.SubjectScores { return &scorev1.SubjectScores{Groups: wire.ToGroups(g)} })
	})
}

func FuzzVerdicts(f *testing.F) {
	add(f, &filterv1.DryRunPreemptionResponse{Verdicts: wire.ToVerdicts([]engine.VerdictCount{
		{Plugin: "NodeResourcesFit", Reason: "Insufficient cpu", Count: 3, Examples: []string{"a", "b"}}, {Unresolvable: true},
	})})
	f.Fuzz(func(t *testing.T, data []byte) {
		comesBack(t, data, &filterv1.DryRunPreemptionResponse{},
			func(m *filterv1.DryRunPreemptionResponse) ([]engine.VerdictCount, error) {
				return wire.Verdicts(m.GetVerdicts())
			},
			func(v []engine.VerdictCount) *filterv1.DryRunPreemptionResponse {
				return &filterv1.DryRunPreemptionResponse{Verdicts: wire.ToVerdicts(v)}
			})
	})
}

func FuzzDryRun(f *testing.F) {
	add(f, wire.ToDryRun(engine.DryRun{Nodes: 3, Count: 2, Candidates: []engine.Preemption{
		{Node: 4, Victims: []cluster.PodID{1, 2}, Violations: 1, HighestPriority: 5, PrioritySum: 9, EarliestStart: 77},
	}, Verdicts: []engine.VerdictCount{{Plugin: "P", Count: 1}}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		comesBack(t, data, &filterv1.DryRunPreemptionResponse{}, wire.DryRun, wire.ToDryRun)
	})
}

func FuzzSubject(f *testing.F) {
	add(f, wire.ToSubject(engine.Subject{Class: 7, Labels: 3, Priority: -5}))
	f.Fuzz(func(t *testing.T, data []byte) {
		comesBack(t, data, &filterv1.Subject{},
			func(m *filterv1.Subject) (engine.Subject, error) { return wire.Subject(m), nil }, wire.ToSubject)
	})
}
