package queue_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	otelcodes "go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/cluster"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	filterv1 "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	"github.com/berth-scheduler/berth/internal/logtest"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/trace"
)

// traced has a world's members and their calls traced.
func (w *world) traced(sampler sdktrace.Sampler) *tracetest.InMemoryExporter {
	exporter := tracetest.NewInMemoryExporter()
	w.trace = trace.NewProvider(sampler, sdktrace.WithSyncer(exporter))
	w.clients = rpc.NewClients(rpc.Config{Net: w.net, Trace: w.trace.TracerProvider()})
	return exporter
}

// attemptOf waits for the root span of an attempt, and returns it and the names of what is below it.
func attemptOf(t *testing.T, w *world, exporter *tracetest.InMemoryExporter, pod string, number int32) (root tracetest.SpanStub, below []string) {
	t.Helper()
	want := w.trace.Attempt("uid-"+pod, number).Root()
	until(t, "the attempt of "+pod+" has ended", func() bool {
		return slices.ContainsFunc(exporter.GetSpans(), func(s tracetest.SpanStub) bool { return s.SpanContext.SpanID() == want.SpanID() && s.Name == "attempt" })
	})
	for _, s := range exporter.GetSpans() {
		switch {
		case s.SpanContext.TraceID() != want.TraceID():
		case s.SpanContext.SpanID() == want.SpanID():
			if root.Name != "" {
				t.Errorf("attempt %d of %s has two roots", number, pod)
			}
			root = s
		default:
			below = append(below, s.Name)
		}
	}
	slices.Sort(below)
	return root, below
}

func attributesOf(s tracetest.SpanStub) map[string]string {
	all := make(map[string]string)
	for _, kv := range s.Attributes {
		all[string(kv.Key)] = kv.Value.String()
	}
	return all
}

func TestTheTraceOfAnAttemptSaysHowItEnded(t *testing.T) {
	bind := func(w *world, delta func(id cluster.PodID) cluster.Delta) {
		w.untilPlaced("p")
		id, _ := w.ledger.st.PodByUID("uid-p")
		w.ledger.apply(delta(id))
	}
	for name, c := range map[string]struct {
		milli   int64
		before  func(w *world, f *filterServer)
		then    func(w *world)
		result  string
		message string
		below   string
	}{
		"bound": {
			milli: 100, then: func(w *world) {
				bind(w, func(id cluster.PodID) cluster.Delta { return cluster.PodBound{ID: id} })
			}, result: "scheduled", below: "filter queue score",
		},
		"the bind was refused": {
			milli: 100, then: func(w *world) {
				bind(w, func(id cluster.PodID) cluster.Delta { return cluster.PodForgotten{ID: id, Reason: "no such node"} })
			}, result: "error", message: "no such node", below: "filter queue score",
		},
		"deleted before the bind": {
			milli: 100, then: func(w *world) {
				bind(w, func(id cluster.PodID) cluster.Delta { return cluster.PodRemoved{ID: id} })
			}, result: "gone", below: "filter queue score",
		},
		"unschedulable": {
			milli: 5000, then: func(*world) {}, result: "unschedulable",
			message: "0/1 nodes are available: 1 Insufficient cpu. ", below: "filter preempt queue",
		},
		"the workers refuse": {
			milli: 100, before: func(_ *world, f *filterServer) {
				f.refuse = func(*filterv1.FilterRequest) error { return status.Error(codes.InvalidArgument, "nonsense") }
			}, then: func(*world) {}, result: "error", message: "nonsense", below: "filter queue",
		},
		"the commit was aborted": {
			milli: 100, before: func(w *world, _ *filterServer) {
				w.binder.before = func(n int, _ *binderv1.CommitRequest) error {
					if n == 1 {
						return rpc.Error(codes.Aborted, "OTHER_EPOCH", "not now")
					}
					return nil
				}
			}, then: func(*world) {}, result: "retry", below: "filter queue score",
		},
	} {
		t.Run(name, func(t *testing.T) {
			checkLeaks(t)
			w := newWorld(t, 1)
			exporter := w.traced(sdktrace.ParentBased(sdktrace.AlwaysSample()))
			filters, _ := w.filterWorker("f1", nil)
			w.scoreWorker("s1")
			w.ledger.node("n1", 1000)
			if c.before != nil {
				c.before(w, filters)
			}
			w.ledger.pod("p", c.milli, nil)
			w.queueMember("q1")
			c.then(w)
			root, below := attemptOf(t, w, exporter, "p", 1)
			about := attributesOf(root)
			if about["berth.result"] != c.result || !strings.Contains(about["berth.message"], c.message) || about["k8s.pod.name"] != "p" || about["k8s.pod.uid"] != "uid-p" {
				t.Errorf("the trace says %v, want %s and %q", about, c.result, c.message)
			}
			if failed := root.Status.Code == otelcodes.Error; failed != (c.result == "error") {
				t.Errorf("status %v of an attempt that ended with %s", root.Status, c.result)
			}
			if got := strings.Join(below, " "); got != c.below {
				t.Errorf("below the attempt are %s, want %s", got, c.below)
			}
			if node := about["k8s.node.name"]; (node == "n1") != (c.result == "scheduled") {
				t.Errorf("node %q of an attempt that ended with %s", node, c.result)
			}
		})
	}
}

func TestACycleWithoutASampledAttemptHasNoSpan(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.batch = 1
	var lines logtest.Buffer
	w.log = slog.New(slog.NewJSONHandler(&lines, &slog.HandlerOptions{Level: slog.LevelDebug}))
	// Half of all calls would be sampled if each decided for itself.
	exporter := w.traced(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(0.5)))
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 10_000)
	var pods []string
	for i := 0; len(pods) < 12; i++ {
		name := fmt.Sprintf("p%d", i)
		if w.trace.Attempt("uid-"+name, 1) == nil && w.trace.Attempt("uid-"+name, 2) == nil {
			pods = append(pods, name)
			w.ledger.pod(name, 100, nil)
		}
	}
	_, stop := w.queueMember("q1")
	w.untilPlaced(pods...)
	stop()
	for _, s := range exporter.GetSpans() {
		t.Errorf("a span %s of %v", s.Name, s.SpanContext.TraceID())
	}
	if strings.Contains(lines.String(), trace.LogKey) {
		t.Errorf("a log line names a trace that is not sampled:\n%s", lines.String())
	}
}

func TestTheLogNamesTheTraceOfAnAttempt(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	var lines logtest.Buffer
	w.log = slog.New(slog.NewJSONHandler(&lines, &slog.HandlerOptions{Level: slog.LevelDebug}))
	w.traced(sdktrace.ParentBased(sdktrace.AlwaysSample()))
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 1000)
	w.ledger.pod("large", 5000, nil)
	w.queueMember("q1")
	want := w.trace.Attempt("uid-large", 1).Root().TraceID().String()
	until(t, "the log tells of the attempt", func() bool {
		for line := range strings.Lines(lines.String()) {
			var said map[string]any
			if err := json.Unmarshal([]byte(line), &said); err != nil {
				t.Fatal(err)
			}
			if said["msg"] == "attempt ended" && said["pod"] == "default/large" && said[trace.LogKey] == want && said["result"] == "unschedulable" {
				return true
			}
		}
		return false
	})
}

// TestTheTracesOfAPodGroupSayHowItsAttemptsEnded has a gang that is placed, one that is not, and one that is to come back.
func TestTheTracesOfAPodGroupSayHowItsAttemptsEnded(t *testing.T) {
	for name, c := range map[string]struct {
		of   binderv1.Outcome_Result // each pod, at the binder
		why  string
		want string
	}{
		"placed":     {of: binderv1.Outcome_RESULT_ASSUMED, want: "scheduled"},
		"unplaced":   {of: binderv1.Outcome_RESULT_NO_FIT, want: "unschedulable"},
		"comes back": {of: binderv1.Outcome_RESULT_RETRY, why: "something has changed", want: "retry"},
		"busy":       {of: binderv1.Outcome_RESULT_BUSY, want: "error"},
	} {
		t.Run(name, func(t *testing.T) {
			checkLeaks(t)
			w := newWorld(t, 1)
			exporter := w.traced(sdktrace.ParentBased(sdktrace.AlwaysSample()))
			w.filterWorker("f1", nil)
			w.scoreWorker("s1")
			w.ledger.node("n1", 1000)
			w.binder.grouping = func(request *binderv1.PlaceGroupRequest) (*binderv1.PlaceGroupResponse, error) {
				response := new(binderv1.PlaceGroupResponse)
				for range request.GetPods() {
					response.Pods = append(response.Pods, &binderv1.GroupedPod{Outcome: &binderv1.Outcome{Result: c.of}, Error: c.why})
				}
				return response, nil
			}
			for _, pod := range []string{"g-0", "g-1"} {
				w.ledger.pod(pod, 100, func(p *cluster.Pod, _ *cluster.ClassSpec) { p.Group = "g" })
			}
			w.ledger.apply(cluster.ObjectSet{Object: &cluster.PodGroup{Namespace: "default", Name: "g", UID: "g", Gang: true, MinCount: 2}})
			w.queueMember("q1")
			if c.want == "scheduled" {
				w.untilPlaced("g-0", "g-1")
				for _, pod := range []string{"g-0", "g-1"} {
					id, _ := w.ledger.st.PodByUID("uid-" + pod)
					w.ledger.apply(cluster.PodBound{ID: id})
				}
			}
			for _, pod := range []string{"g-0", "g-1"} {
				root, below := attemptOf(t, w, exporter, pod, 1)
				if got := attributesOf(root)["berth.result"]; got != c.want || strings.Join(below, " ") != "queue" {
					t.Errorf("%s has ended with %s, and below it are %s; want %s, and the wait alone", pod, got, below, c.want)
				}
				until(t, "the cycle has ended", func() bool {
					return slices.ContainsFunc(exporter.GetSpans(), func(s tracetest.SpanStub) bool {
						return s.Name == "cycle" && s.SpanContext.SpanID() == root.Links[0].SpanContext.SpanID() && attributesOf(s)["berth.group"] == "default/g" && len(s.Links) == 2
					})
				})
			}
		})
	}
}

// TestAGroupBehindAnotherOneIsTracedWhenItIsTried and not before: that attempt has the number that the group had when it waited.
func TestAGroupBehindAnotherOneIsTracedWhenItIsTried(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	exporter := w.traced(sdktrace.ParentBased(sdktrace.AlwaysSample()))
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 1000)
	asked, answer := make(chan string, 100), make(chan struct{})
	w.binder.grouping = func(request *binderv1.PlaceGroupRequest) (*binderv1.PlaceGroupResponse, error) {
		asked <- request.GetName()
		if request.GetName() == "long" {
			<-answer
		}
		response := new(binderv1.PlaceGroupResponse)
		for range request.GetPods() {
			response.Pods = append(response.Pods, &binderv1.GroupedPod{Outcome: &binderv1.Outcome{Result: binderv1.Outcome_RESULT_NO_FIT}})
		}
		return response, nil
	}
	group := func(name string) {
		w.ledger.pod(name+"-0", 100, func(p *cluster.Pod, _ *cluster.ClassSpec) { p.Group = name })
		w.ledger.apply(cluster.ObjectSet{Object: &cluster.PodGroup{Namespace: "default", Name: name, UID: name, Gang: true, MinCount: 1}})
	}
	group("long")
	q, stop := w.queueMember("q1")
	<-asked
	group("behind")
	untilState(t, q, "behind-0", queuev1.State_STATE_IN_FLIGHT)
	close(answer)
	if is := <-asked; is != "behind" {
		t.Fatalf("%s is tried", is)
	}
	untilState(t, q, "behind-0", queuev1.State_STATE_UNSCHEDULABLE)
	stop()
	root, below := attemptOf(t, w, exporter, "behind-0", 1)
	if got := attributesOf(root)["berth.result"]; got != "unschedulable" || strings.Join(below, " ") != "queue" {
		t.Errorf("it has ended with %s, and below it are %s; want unschedulable, and one wait", got, below)
	}
	cycles := 0
	for _, s := range exporter.GetSpans() {
		if s.Name == "cycle" && s.SpanContext.SpanID() == root.Links[0].SpanContext.SpanID() {
			cycles++
		}
	}
	if cycles != 1 {
		t.Errorf("its cycle has %d spans", cycles)
	}
}
