package binder

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	otel "go.opentelemetry.io/otel/trace"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/trace"
)

// told is a source that remembers in which trace it was told of a pod.
type told struct {
	*fakeSource
	in map[string]otel.TraceID
}

func (s *told) Scheduled(ctx context.Context, b source.Binding) error {
	s.in[b.UID] = otel.SpanContextFromContext(ctx).TraceID()
	return nil
}

// spansOf returns the spans of a trace as name, result and node, in the order in which they ended.
func spansOf(exporter *tracetest.InMemoryExporter, a *trace.Attempt) (out []string) {
	for _, s := range exporter.GetSpans() {
		if s.SpanContext.TraceID() != a.Root().TraceID() {
			continue
		}
		line := s.Name
		for _, kv := range s.Attributes {
			if kv.Key == trace.Result || kv.Key == trace.Node || kv.Key == trace.Try {
				line += " " + kv.Value.String()
			}
		}
		if s.Parent.SpanID() != a.Root().SpanID() || !s.Parent.IsRemote() {
			line += " (not below the attempt)"
		}
		out = append(out, line)
	}
	return out
}

func TestTheBinderAddsCommitRecordAndBindToTheTraceOfAnAttempt(t *testing.T) {
	src := &told{fakeSource: newFakeSource(), in: make(map[string]otel.TraceID)}
	exporter := tracetest.NewInMemoryExporter()
	term := pureTerm(t, src)
	term.trace = trace.NewProvider(sdktrace.ParentBased(sdktrace.AlwaysSample()), sdktrace.WithSyncer(exporter))
	observe(t, term, node("a", 1000), pod("p", 100), pod("q", 100))
	src.setPod(pod("p", 100))

	// 1. Two of three are placed, the other is not there any more.
	st := term.ledger.state
	req := requestOf(st, evaluate(st, 16), 3, "p", "q")
	req.Pods = append([]*binderv1.PodAttempt{{Id: 9, Uid: "gone", Attempt: 1, SubjectIndex: -1}}, req.Pods...)
	if _, err := term.commit(req); err != nil {
		t.Fatal(err)
	}
	// 2. It is recorded.
	if more, err := term.recorder.recordOnce(t.Context()); !more || err != nil {
		t.Fatal(more, err)
	}
	// 3. The first bind has no answer, the second has.
	in := <-term.binds
	tries := 0
	src.answers(func(source.Binding) source.Outcome {
		if tries++; tries == 1 {
			return source.Outcome{Result: source.BindUnknown, Err: errFake}
		}
		return source.Outcome{Result: source.BindDone}
	})
	for range 2 {
		if err := term.bind(t.Context(), []*placement{in}); err != nil {
			t.Fatal(err)
		}
	}
	e, _ := term.events.turns.next()
	if err := e.write(t.Context()); err != nil {
		t.Fatal(err)
	}

	attempt := term.trace.Attempt("p", 3)
	want := "commit assumed a, record, bind unknown a 1, bind done a 2"
	if got := strings.Join(spansOf(exporter, attempt), ", "); got != want {
		t.Errorf("the spans of p are %s, want %s", got, want)
	}
	if got := strings.Join(spansOf(exporter, term.trace.Attempt("gone", 1)), ", "); got != "commit gone" {
		t.Errorf("the spans of the pod that is gone are %s, want commit gone", got)
	}
	if got := strings.Join(spansOf(exporter, term.trace.Attempt("q", 3)), ", "); got != "commit assumed a, record" {
		t.Errorf("the spans of q are %s, want commit assumed a, record", got)
	}
	if n := len(exporter.GetSpans()); n != 7 {
		t.Errorf("%d spans, want 7", n)
	}
	if src.in["p"] != attempt.Root().TraceID() {
		t.Errorf("the event was written in trace %v, want %v", src.in["p"], attempt.Root().TraceID())
	}
}

func TestPlacementsThatAreNotSampledAllocateNothingForTraces(t *testing.T) {
	for name, provider := range map[string]*trace.Provider{
		"off": nil, "on": trace.NewProvider(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(1e-15))),
	} {
		term := &term{trace: provider}
		req, resp := &binderv1.CommitRequest{}, &binderv1.CommitResponse{}
		placed := make([]*placement, 256)
		for i := range placed {
			placed[i] = new(placement)
			req.Pods = append(req.Pods, &binderv1.PodAttempt{Uid: fmt.Sprintf("0d6d9a3e-7a54-4a6b-9c1f-%012d", i), Attempt: 1})
			resp.Outcomes = append(resp.Outcomes, &binderv1.Outcome{Result: binderv1.Outcome_RESULT_ASSUMED})
		}
		now, batch := time.Unix(1, 0), &coord.Batch{}
		allocs := testing.AllocsPerRun(100, func() {
			term.traceCommit(req, resp, placed, now, now)
			traceRecord(batch, placed, now, now)
			for i := range placed {
				traceBind(placed[i], source.Outcome{}, now, now)
			}
		})
		if allocs != 0 {
			t.Errorf("tracing %s: %v allocations for %d placements of which none is sampled, want none", name, allocs, len(placed))
		}
	}
}

func (s *told) Unschedulable(ctx context.Context, r source.Report) error {
	s.in[r.UID] = otel.SpanContextFromContext(ctx).TraceID()
	return nil
}

func TestWhatIsWrittenOfAnAttemptThatPlacedNothingIsInItsTrace(t *testing.T) {
	src := &told{fakeSource: newFakeSource(), in: make(map[string]otel.TraceID)}
	term := pureTerm(t, src)
	term.reports.trace = trace.NewProvider(sdktrace.ParentBased(sdktrace.AlwaysSample()))
	observe(t, term, pod("p", 100))
	id, _ := term.ledger.state.PodByUID("p")
	report := &binderv1.PodReport{Id: int32(id), Uid: "p", Reason: reasonUnschedulable, Message: "no room", Attempt: 3}
	if _, taken, err := term.report(&binderv1.ReportRequest{Reports: []*binderv1.PodReport{report}}); !taken || err != nil {
		t.Fatalf("the lane took the report: %v, %v", taken, err)
	}
	if err := term.reports.write(t.Context(), term.reports.waiting["p"].Report); err != nil {
		t.Fatal(err)
	}
	if want := term.reports.trace.Attempt("p", 3).Root().TraceID(); src.in["p"] != want {
		t.Errorf("written in trace %v, want %v, that of attempt 3", src.in["p"], want)
	}
}

// TestAnAttemptOfAPodGroupHasASpanThatItsPodsLeadTo has a gang that fits, one that does not, and one that has another pod evicted.
func TestAnAttemptOfAPodGroupHasASpanThatItsPodsLeadTo(t *testing.T) {
	racked := func(name, rack string, cpu int64) cluster.Node {
		n := node(name, cpu)
		n.Labels = append(n.Labels, cluster.Label{Key: "rack", Value: rack})
		return n
	}
	group := func(topology ...string) source.Event {
		return source.Event{Kind: source.ObjectSet, Object: &cluster.PodGroup{Namespace: "default", Name: "g", UID: "g", Gang: true, MinCount: 2, Topology: topology}}
	}
	for name, test := range map[string]struct {
		things []any
		want   string // of the group
		pods   string // of p
	}{
		"it fits": {
			[]any{racked("a", "east", 1000), racked("b", "west", 2000), group("rack")},
			"group default/g: assumed, 2 of 2 in west, 1 tries, 0 victims: ", "group assumed b",
		},
		"it does not": {
			[]any{racked("a", "east", 1000), group("rack")},
			"group default/g: no_fit, 1 of 2 in east, 1 tries, 0 victims: pod group is unschedulable: 1 of at least 2 pods fit in east, No preemption victims found for incoming preemptor", "group no_fit",
		},
		"others go": {
			[]any{node("a", 2000), on(pod("v", 1000), "a"), group()},
			"group default/g: preempts, 1 of 2 in , 1 tries, 1 victims: " + groupWaits, "group no_fit",
		},
	} {
		t.Run(name, func(t *testing.T) {
			exporter := tracetest.NewInMemoryExporter()
			term := pureTerm(t, newFakeSource())
			term.trace = trace.NewProvider(sdktrace.ParentBased(sdktrace.AlwaysSample()), sdktrace.WithSyncer(exporter))
			observe(t, term, test.things...)
			observe(t, term, prior(ofGroup(pod("p", 1000), "g"), 10), prior(ofGroup(pod("q", 1000), "g"), 10))
			commit := requestOf(term.ledger.state, offer{version: term.ledger.version()}, 3, "p", "q")
			ctx, call := term.trace.Start(t.Context(), "call")
			if _, err := term.placeGroup(ctx, &binderv1.PlaceGroupRequest{
				ShardRevision: commit.ShardRevision, Version: commit.Version, Namespace: "default", Name: "g", Pods: commit.Pods,
			}); err != nil {
				t.Fatal(err)
			}
			call.End()

			attempts := []*trace.Attempt{term.trace.Attempt("p", 3), term.trace.Attempt("q", 3)}
			var span tracetest.SpanStub
			for _, s := range exporter.GetSpans() {
				if s.Name == "group" && s.Parent.SpanID() == call.SpanContext().SpanID() {
					span = s
				}
			}
			about := make(map[string]string)
			for _, kv := range span.Attributes {
				about[string(kv.Key)] = kv.Value.String()
			}
			got := fmt.Sprintf("%s %s: %s, %s of %s in %s, %s tries, %s victims: %s", span.Name, about["berth.group"], about["berth.result"], about["berth.fit"], about["berth.wants"],
				about["berth.domain"], about["berth.tries"], about["berth.victims"], about["berth.message"])
			if got != test.want || about["berth.pods"] != "2" {
				t.Errorf("the span of the group says\n%s of %s pods, want\n%s of 2", got, about["berth.pods"], test.want)
			}
			if len(span.Links) != 2 || span.Links[0].SpanContext.TraceID() != attempts[0].Root().TraceID() || span.Links[1].SpanContext.TraceID() != attempts[1].Root().TraceID() {
				t.Errorf("it links to %v, want the attempts of p and q", span.Links)
			}
			if got := strings.Join(spansOf(exporter, attempts[0]), ", "); got != test.pods {
				t.Errorf("the spans of p are %s, want %s", got, test.pods)
			}
			for _, s := range exporter.GetSpans() {
				if s.SpanContext.TraceID() == attempts[1].Root().TraceID() && (len(s.Links) != 1 || s.Links[0].SpanContext.SpanID() != span.SpanContext.SpanID()) {
					t.Errorf("%s of q links to %v, want the span of the group", s.Name, s.Links)
				}
			}
		})
	}
}

// TestAGroupOfWhichNoPodIsSampledHasNoSpan has every call sampled, and no attempt.
func TestAGroupOfWhichNoPodIsSampledHasNoSpan(t *testing.T) {
	g := &grouped{req: &binderv1.PlaceGroupRequest{Pods: []*binderv1.PodAttempt{{Uid: "0d6d9a3e-7a54-4a6b-9c1f-000000000001", Attempt: 1}}}}
	for name, provider := range map[string]*trace.Provider{"off": nil, "on": trace.NewProvider(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(1e-15)))} {
		term, now := &term{trace: provider}, time.Unix(1, 0)
		if allocs := testing.AllocsPerRun(100, func() { term.traceGroup(t.Context(), g, nil, now, now) }); allocs != 0 {
			t.Errorf("tracing %s: %v allocations for a group of which no pod is sampled, want none", name, allocs)
		}
	}
}
