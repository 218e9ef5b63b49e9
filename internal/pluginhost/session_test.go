package pluginhost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// scripted answers as a test says.
type scripted struct {
	pluginv1.UnimplementedPluginServiceServer
	plugins []*pluginv1.PluginDescription
	answer  func(stream int, r *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error)
	asked   []*pluginv1.JudgeRequest
	streams atomic.Int32
}

func (s *scripted) Describe(context.Context, *pluginv1.DescribeRequest) (*pluginv1.DescribeResponse, error) {
	return &pluginv1.DescribeResponse{Plugins: s.plugins}, nil
}

func (s *scripted) Judge(stream pluginv1.PluginService_JudgeServer) error {
	n := int(s.streams.Add(1))
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) || err != nil {
			return err
		}
		s.asked = append(s.asked, r)
		response := honest(r)
		if s.answer != nil {
			if response, err = s.answer(n, r); err != nil {
				return err
			}
		}
		if response == nil {
			<-stream.Context().Done()
			return nil
		}
		if err := stream.Send(response); err != nil {
			return err
		}
	}
}

// honest takes all nodes, and scores them 50.
func honest(r *pluginv1.JudgeRequest) *pluginv1.JudgeResponse {
	out := &pluginv1.JudgeResponse{Id: r.GetId()}
	for _, q := range r.GetQuestions() {
		a := &pluginv1.Answer{}
		for range q.GetScores() {
			a.Scores = append(a.Scores, &pluginv1.Scores{Scores: slices.Repeat([]int32{50}, len(q.GetNodes()))})
		}
		out.Answers = append(out.Answers, a)
	}
	return out
}

func (s *scripted) serve(t *testing.T) grpc.ClientConnInterface {
	if s.plugins == nil {
		s.plugins = []*pluginv1.PluginDescription{{Name: "P", Filters: true, Scores: true}}
	}
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	pluginv1.RegisterPluginServiceServer(server, s)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return dial(t, l)
}

// world is a state with nodes and two kinds of pods.
func world(t *testing.T, nodes int) (*cluster.State, []engine.Subject) {
	st := cluster.New(cluster.Version{Epoch: 1})
	apply := func(d cluster.Delta) {
		t.Helper()
		if err := st.Apply(d); err != nil {
			t.Fatal(err)
		}
	}
	for i := range nodes {
		apply(cluster.NodeSet{Index: cluster.NodeIndex(i), Node: cluster.Node{Name: fmt.Sprint("n", i), Allocatable: []cluster.Quantity{{Name: "cpu", Value: 1000}, {Name: "pods", Value: 10}}}})
	}
	var subjects []engine.Subject
	for k := range 2 {
		class := cluster.ClassID(k + 1)
		apply(cluster.ClassDefined{ID: class, Spec: cluster.ClassSpec{SchedulerName: "default-scheduler", Requests: []cluster.Quantity{{Name: "cpu", Value: int64(k + 1)}}}})
		apply(cluster.PodSet{ID: st.FreePod(), Pod: cluster.Pod{UID: fmt.Sprint("u", k), Namespace: "n", Name: fmt.Sprint("p", k), Class: class}})
		subjects = append(subjects, engine.Subject{Class: class})
	}
	return st, subjects
}

// judge asks about all nodes of a state.
func judge(t *testing.T, h *Host, st *cluster.State, subject engine.Subject) (*Asking, error) {
	t.Helper()
	k, err := h.Begin(t.Context(), st.Version().Epoch, "default-scheduler")
	if err != nil {
		return nil, err
	}
	k.Refresh()
	var nodes []cluster.NodeIndex
	for i := range st.Nodes.Len() {
		nodes = append(nodes, cluster.NodeIndex(i))
	}
	k.Collect(st, subject, nodes)
	return k, k.Exchange(t.Context())
}

func TestAnswersThatMakeNoSenseEndTheSession(t *testing.T) {
	with := func(change func(*pluginv1.Answer)) func(int, *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error) {
		return func(_ int, r *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error) {
			out := honest(r)
			for _, a := range out.Answers {
				change(a)
			}
			return out, nil
		}
	}
	refusal := func(plugin, reason string) []*pluginv1.Refusal {
		return []*pluginv1.Refusal{{Plugin: plugin, Reason: reason}}
	}
	for name, tt := range map[string]struct {
		answer func(int, *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error)
		want   string
	}{
		"another id": {func(_ int, r *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error) {
			out := honest(r)
			out.Id = 7
			return out, nil
		}, "a response with id 7 to request 1"},
		"no answer": {func(_ int, r *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error) {
			return &pluginv1.JudgeResponse{Id: r.GetId()}, nil
		}, "its answer makes no sense: 0 answers to 1 questions"},
		"a score out of bounds":        {with(func(a *pluginv1.Answer) { a.Scores[0].Scores[1] = 101 }), "its answer makes no sense: answers[0]: scores[0]: P scores 101, want 0 to 100"},
		"a negative score":             {with(func(a *pluginv1.Answer) { a.Scores[0].Scores[1] = -1 }), "P scores -1, want 0 to 100"},
		"too few scores":               {with(func(a *pluginv1.Answer) { a.Scores[0].Scores = a.Scores[0].Scores[1:] }), "1 scores of P for 2 nodes"},
		"no scores":                    {with(func(a *pluginv1.Answer) { a.Scores = nil }), "scores of 0 plugins, of 1 were asked for"},
		"too few verdicts":             {with(func(a *pluginv1.Answer) { a.Verdicts = []uint32{0} }), "1 verdicts of 2 nodes"},
		"what it has said for another": {with(func(a *pluginv1.Answer) { a.Kept = true }), "kept or keeps: that is only said of plugins that depend on the cluster"},
		"what it says for another":     {with(func(a *pluginv1.Answer) { a.Keeps = true }), "kept or keeps: that is only said of plugins that depend on the cluster"},
		"a verdict without a refusal":  {with(func(a *pluginv1.Answer) { a.Verdicts = []uint32{0, 1} }), "verdicts[1]: 1, of 0 refusals"},
		"a plugin that was not asked":  {with(func(a *pluginv1.Answer) { a.Verdicts, a.Refusals = []uint32{0, 1}, refusal("Q", "no") }), `refusals[0].plugin: "Q" was not asked to filter`},
		"no reason":                    {with(func(a *pluginv1.Answer) { a.Verdicts, a.Refusals = []uint32{0, 1}, refusal("P", "") }), "refusals[0].reason: P gives none"},
		"a status": {func(int, *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error) {
			return nil, status.Error(codes.InvalidArgument, "nodes[0].id: no")
		}, "InvalidArgument: nodes[0].id: no"},
		"nothing": {func(int, *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error) { return nil, nil }, "no answer within its timeout of 300ms"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &scripted{answer: tt.answer}
			h := newHost(t, []cluster.Profile{profile("default-scheduler", "P")}, serviceOf("s", s.serve(t), "P"))
			st, subjects := world(t, 2)
			if name == "nothing" {
				if _, err := h.Begin(t.Context(), 1, "default-scheduler"); err != nil {
					t.Fatal(err)
				}
				h.services[0].Timeout = 300 * time.Millisecond
			}
			_, err := judge(t, h, st, subjects[0])
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), `plugin service "s": `) {
				t.Fatalf("error %v, want one with %q", err, tt.want)
			}
			if h.services[0].session != nil {
				t.Error("the session goes on")
			}
			// For a while, nobody asks again.
			now := h.services[0].failed
			h.services[0].clock = func() time.Duration { return now }
			streams := s.streams.Load()
			if _, again := judge(t, h, st, subjects[0]); again == nil || again.Error() != err.Error() || s.streams.Load() != streams {
				t.Errorf("asked again at once: %v, %d streams", again, s.streams.Load())
			}
		})
	}
}

// What one pod has asked, and nobody waits for any more, harms no other one.
func TestOnlyWhatSomebodyAsksIsAsked(t *testing.T) {
	s := &scripted{answer: func(_ int, r *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error) {
		out := honest(r)
		for k, q := range r.GetQuestions() {
			if q.GetKind() == 0 {
				out.Answers[k] = &pluginv1.Answer{Error: "not this kind"}
			}
		}
		return out, nil
	}}
	h := newHost(t, []cluster.Profile{profile("default-scheduler", "P")}, serviceOf("s", s.serve(t), "P"))
	h.services[0].limits.told = 2 // so there are several requests
	st, subjects := world(t, 7)
	for range 3 {
		if _, err := judge(t, h, st, subjects[0]); err == nil || !strings.Contains(err.Error(), "not this kind") {
			t.Fatalf("error %v", err)
		}
		if n := len(h.services[0].session.outbox); n > 4 {
			t.Errorf("%d requests wait", n)
		}
	}
	if _, err := judge(t, h, st, subjects[1]); err != nil {
		t.Errorf("of the other kind: %v", err)
	}
}

// A service that is started anew is asked anew, once; one that ends each session at once has failed.
func TestASessionThatEnds(t *testing.T) {
	broken := false
	s := &scripted{}
	s.answer = func(_ int, r *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error) {
		if broken {
			return nil, status.Error(codes.Unavailable, "closing")
		}
		return honest(r), nil
	}
	h := newHost(t, []cluster.Profile{profile("default-scheduler", "P")}, serviceOf("s", s.serve(t), "P"))
	st, subjects := world(t, 3)
	if _, err := judge(t, h, st, subjects[0]); err != nil {
		t.Fatal(err)
	}
	broken = true
	if _, err := judge(t, h, st, subjects[1]); !errors.Is(err, ErrAgain) {
		t.Errorf("a session ends that was good: %v", err)
	}
	if _, err := judge(t, h, st, subjects[1]); err == nil || errors.Is(err, ErrAgain) || !strings.Contains(err.Error(), "Unavailable: closing") {
		t.Errorf("the next one ends, too: %v", err)
	}
}

// keptNodes are objects of a source.
type keptNodes struct {
	nodes   map[string]*corev1.Node
	changes uint64
	reads   int
}

func (k *keptNodes) Node(name string) *corev1.Node {
	k.reads++
	return k.nodes[name]
}

func (k *keptNodes) NodeChanges() uint64 { return k.changes }

func (k *keptNodes) set(nodes ...*corev1.Node) {
	for _, n := range nodes {
		k.nodes[n.Name] = n
		k.changes++
	}
}

func object(name, value string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"a": value}}}
}

// An object that has changed is told once, and then no answer holds that is of another one: of no kind, and of no node that is refused.
func TestNoAnswerHoldsThatIsOfAnotherObject(t *testing.T) {
	objects := &keptNodes{nodes: make(map[string]*corev1.Node)}
	told := make(map[string]string) // by node, as the service has it
	names := make(map[int32]string)
	s := &scripted{plugins: []*pluginv1.PluginDescription{{Name: "P", Filters: true, Scores: true, Depends: &pluginv1.Dependencies{Objects: true}}}}
	s.answer = func(_ int, r *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error) {
		for _, n := range r.GetNodes() {
			if n.GetSpec() != nil {
				names[n.GetId()], told[n.GetSpec().GetName()] = n.GetSpec().GetName(), string(n.GetSpec().GetObject())
			}
		}
		out := honest(r)
		for k, q := range r.GetQuestions() {
			a := out.Answers[k]
			a.Refusals = []*pluginv1.Refusal{{Plugin: "P", Reason: "it says no"}}
			for _, n := range q.GetNodes() {
				verdict := uint32(0)
				if strings.Contains(told[names[n]], `"a":"no"`) {
					verdict = 1
				}
				a.Verdicts = append(a.Verdicts, verdict)
			}
		}
		return out, nil
	}
	service := serviceOf("s", s.serve(t), "P")
	service.Objects = true
	h, err := New(Config{Services: []Service{service}, Profiles: []cluster.Profile{profile("default-scheduler", "P")}, Objects: objects, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	h.services[0].limits.told = 2
	st, subjects := world(t, 5)
	for i := range 5 {
		objects.set(object(fmt.Sprint("n", i), "yes"))
	}
	check := func(want string) {
		t.Helper()
		for _, subject := range subjects {
			k, err := judge(t, h, st, subject)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for i := range cluster.NodeIndex(5) {
				if _, refused := k.Refusal(i); refused {
					got += fmt.Sprint(i)
				}
			}
			all := cluster.Bitmap{0b11111}
			k.Refresh()
			k.Excluded(st, subject, all)
			excluded := ""
			for i := range cluster.NodeIndex(5) {
				if !all.Has(i) {
					excluded += fmt.Sprint(i)
				}
			}
			if got != want || excluded != want {
				t.Errorf("kind %d: nodes %q are refused, %q excluded, want %q", subject.Class, got, excluded, want)
			}
		}
	}
	check("")
	objects.set(object("n1", "no"), object("n4", "no"))
	check("14")
	objects.set(object("n1", "yes"))
	check("4")
	n, reads := len(s.asked), objects.reads
	check("4")
	if len(s.asked) != n || objects.reads != reads {
		t.Errorf("%d requests about what is known, and %d objects read though none has changed", len(s.asked)-n, objects.reads-reads)
	}
	// What is known to be refused is not any more, once the object is another one.
	objects.set(object("n4", "yes"))
	k, err := h.Begin(t.Context(), 1, "default-scheduler")
	if err != nil {
		t.Fatal(err)
	}
	k.Refresh()
	if all := (cluster.Bitmap{0b11111}); !k.Excluded(st, subjects[0], all) || !all.Has(4) {
		t.Error("a node is excluded for what its object was")
	}
}

// What a session has said is of no worth once it has ended, though nothing has to be asked.
func TestAnEndedSessionIsNoticed(t *testing.T) {
	ends := make(chan struct{})
	s := &scripted{}
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	pluginv1.RegisterPluginServiceServer(server, s)
	s.plugins = []*pluginv1.PluginDescription{{Name: "P", Filters: true, Scores: true}}
	go func() { defer close(ends); _ = server.Serve(l) }()
	h := newHost(t, []cluster.Profile{profile("default-scheduler", "P")}, serviceOf("s", dial(t, l), "P"))
	st, subjects := world(t, 3)
	for range 2 {
		if _, err := judge(t, h, st, subjects[0]); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(s.asked); n != 1 {
		t.Fatalf("%d requests", n)
	}
	over := h.services[0].session.calls.ended
	server.Stop()
	<-ends
	<-over
	if _, err := judge(t, h, st, subjects[0]); err == nil || !strings.Contains(err.Error(), "describe: Unavailable") {
		t.Errorf("the service has gone: %v", err)
	}
}

// A question whose asker has gone is answered all the same, for the next one.
func TestTheSessionSurvivesWhoAsks(t *testing.T) {
	begun, goes := make(chan struct{}), make(chan struct{})
	s := &scripted{answer: func(_ int, r *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error) {
		if r.GetId() == 1 {
			close(begun)
			<-goes
		}
		return honest(r), nil
	}}
	h := newHost(t, []cluster.Profile{profile("default-scheduler", "P")}, serviceOf("s", s.serve(t), "P"))
	st, subjects := world(t, 3)
	k, err := h.Begin(t.Context(), 1, "default-scheduler")
	if err != nil {
		t.Fatal(err)
	}
	k.Collect(st, subjects[0], []cluster.NodeIndex{0, 1, 2})
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() { left <- k.Exchange(ctx) }()
	<-begun
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("who has gone is told %v", err)
	}
	close(goes)
	if _, err := judge(t, h, st, subjects[1]); err != nil {
		t.Errorf("the next one: %v", err)
	}
	if n := s.streams.Load(); n != 1 {
		t.Errorf("%d streams", n)
	}
	// And what the first one asked is known.
	n := h.services[0].session.calls.sent
	if _, err := judge(t, h, st, subjects[0]); err != nil || h.services[0].session.calls.sent != n {
		t.Errorf("asked again: %v", err)
	}
}

// Who is too slow for a request is asked about fewer nodes at a time, whatever kinds come between.
func TestAServiceIsAskedAboutNoMoreThanItAnswersInItsTime(t *testing.T) {
	now := time.Duration(0)
	s := &service{Service: Service{Timeout: time.Minute}, limits: defaultLimits, clock: func() time.Duration { return now }}
	s.pace(500, 3*time.Second)
	if s.limits.asked != 1000 || s.limits.told != 1000 {
		t.Errorf("a quick one is asked about %d, told %d", s.limits.asked, s.limits.told)
	}
	s.pace(1000, 54*time.Second)
	if n := s.limits.asked; n < 250 || n > 280 || s.limits.told != n {
		t.Errorf("one that takes 54 ms a node is asked about %d, told %d", n, s.limits.told)
	}
	for range 100 { // of another kind
		s.pace(s.limits.asked, 60*time.Millisecond)
	}
	if n := s.limits.asked; n > 280 {
		t.Errorf("it is asked about %d at once", n)
	}
	now += 2 * slowFor
	s.pace(s.limits.asked, 60*time.Millisecond)
	if n := s.limits.asked; n < 500 || n > 1200 {
		t.Errorf("later it is asked about %d", n)
	}
	s.limits.asked = 500
	s.slower(&batch{request: &pluginv1.JudgeRequest{}, count: 1}) // it was not there for a while
	s.pace(125, 60*time.Millisecond)
	if n := s.limits.asked; n != 250 {
		t.Errorf("behind one that was late with one node, it is asked about %d", n)
	}
	for range 20 {
		s.slower(&batch{request: &pluginv1.JudgeRequest{}, count: s.limits.asked})
	}
	if s.limits.asked != 1 || s.limits.told != 1 {
		t.Errorf("one that is always late is asked about %d, told %d", s.limits.asked, s.limits.told)
	}
	now += 20 * slowFor
	for range 3 {
		s.pace(s.limits.asked, 12*time.Second) // which is what a call takes, whatever it asks
	}
	if s.limits.asked != 8 {
		t.Errorf("when it is quick again, it is asked about %d", s.limits.asked)
	}
}

// Memory is counted as it is, also where reasons are many.
func TestReasonsAreKeptForAWhile(t *testing.T) {
	s := &scripted{}
	reason := 0
	s.answer = func(_ int, r *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error) {
		out := honest(r)
		for k, q := range r.GetQuestions() {
			for range q.GetNodes() {
				reason++
				out.Answers[k].Refusals = append(out.Answers[k].Refusals, &pluginv1.Refusal{Plugin: "P", Reason: fmt.Sprint("reason ", reason)})
				out.Answers[k].Verdicts = append(out.Answers[k].Verdicts, uint32(len(out.Answers[k].Refusals)))
			}
		}
		return out, nil
	}
	h := newHost(t, []cluster.Profile{profile("default-scheduler", "P")}, serviceOf("s", s.serve(t), "P"))
	now := time.Minute
	h.services[0].clock = func() time.Duration { return now }
	st, subjects := world(t, 500)
	round := func() (different int) {
		for i := range 500 { // all are others
			d := cluster.NodeSet{Index: cluster.NodeIndex(i), Node: cluster.Node{Name: fmt.Sprint("n", i), Allocatable: []cluster.Quantity{{Name: "cpu", Value: int64(2000 + reason)}}}}
			if err := st.Apply(d); err != nil {
				t.Fatal(err)
			}
		}
		k, err := h.Begin(t.Context(), 1, "default-scheduler")
		if err != nil {
			t.Fatal(err)
		}
		var nodes []cluster.NodeIndex
		all := make(cluster.Bitmap, 8)
		for i := range cluster.NodeIndex(500) {
			nodes = append(nodes, i)
			all.Set(i)
		}
		k.Excluded(st, subjects[0], all)
		k.Collect(st, subjects[0], nodes)
		if err := k.Exchange(t.Context()); err != nil {
			t.Fatal(err)
		}
		texts := make(map[string]bool)
		for _, i := range nodes {
			r, refused := k.Refusal(i)
			if !refused {
				t.Fatalf("node %d is not refused", i)
			}
			texts[r.Reason] = true
		}
		is, sum := h.services[0].session, 0
		for _, k := range is.kinds {
			if k.column != nil {
				sum += k.column.bytes()
			}
		}
		if is.columns != sum {
			t.Fatalf("%d bytes are counted, and there are %d", is.columns, sum)
		}
		return len(texts)
	}
	for n := range 40 {
		different := round()
		if n < 8 && different != 500 {
			t.Errorf("round %d: %d reasons", n, different)
		}
		if n == 39 && different > 1 {
			t.Errorf("of too many reasons in a minute, %d are told", different)
		}
	}
	now += renewed
	if n := round(); n != 500 {
		t.Errorf("later, %d are", n)
	}
}

// An answer that has come is in time, though nobody takes it; one that has not ends the session.
func TestAnAnswerThatNobodyTakesIsInTime(t *testing.T) {
	h := newHost(t, []cluster.Profile{profile("default-scheduler", "P")}, serviceOf("s", new(scripted).serve(t), "P"))
	st, subjects := world(t, 3)
	if _, err := judge(t, h, st, subjects[0]); err != nil {
		t.Fatal(err)
	}
	is := h.services[0].session
	is.calls.responses <- &pluginv1.JudgeResponse{}
	is.calls.expire()
	if err := is.calls.ctx.Err(); err != nil {
		t.Errorf("with an answer there: %v", err)
	}
	<-is.calls.responses
	is.calls.expire()
	<-is.calls.ended
	if err := is.calls.over(); !errors.Is(err, errLate) {
		t.Errorf("without one: %v", err)
	}
}
