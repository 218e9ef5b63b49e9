package binder

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/berth-scheduler/berth/internal/cluster"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// ranker is a plugin service with one plugin, Choosy, that normalises its scores itself: it has all nodes of a question before it scores one.
type ranker struct {
	pluginv1.UnimplementedPluginServiceServer

	mu      sync.Mutex
	refuses string                                // a node
	scores  func(names []string) map[string]int32 // of all nodes of a question
	asked   [][]string                            // nodes of each question for scores
	pods    map[string]int32                      // of each node, as told last
	kept    bool                                  // what it says of several nodes was said for an earlier pod
	alone   []string                              // nodes that it was asked about by themselves
}

func newRanker(t testing.TB) (*ranker, *choosy) {
	r := &ranker{pods: make(map[string]int32)}
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	pluginv1.RegisterPluginServiceServer(server, r)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	conn, err := grpc.NewClient("passthrough:///ranker", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return r, &choosy{conn: conn}
}

func (r *ranker) Describe(context.Context, *pluginv1.DescribeRequest) (*pluginv1.DescribeResponse, error) {
	return &pluginv1.DescribeResponse{Plugins: []*pluginv1.PluginDescription{{
		Name: "Choosy", Filters: true, Scores: true, PostFilters: true, Normalization: pluginv1.Normalization_NORMALIZATION_OWN, Depends: &pluginv1.Dependencies{Requested: true, Cluster: true},
	}}}, nil
}

func (r *ranker) Judge(stream pluginv1.PluginService_JudgeServer) error {
	names := make(map[int32]string)
	for {
		request, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := stream.Send(r.answer(names, request)); err != nil {
			return err
		}
	}
}

func (r *ranker) answer(names map[int32]string, request *pluginv1.JudgeRequest) *pluginv1.JudgeResponse {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range request.GetNodes() {
		if n.GetSpec() != nil {
			names[n.GetId()] = n.GetSpec().GetName()
		}
		r.pods[names[n.GetId()]] = n.GetPodCount()
	}
	out := &pluginv1.JudgeResponse{Id: request.GetId()}
	for _, q := range request.GetQuestions() {
		a := &pluginv1.Answer{}
		var asked []string
		for _, id := range q.GetNodes() {
			asked = append(asked, names[id])
		}
		if len(q.GetFilters()) > 0 {
			switch a.Kept = r.kept && len(asked) > 1; {
			case len(asked) == 1:
				r.alone = append(r.alone, asked[0])
			case a.Kept: // it knows nothing yet of what it refuses
				out.Answers = append(out.Answers, a)
				continue
			}
			a.Refusals = []*pluginv1.Refusal{{Plugin: "Choosy", Reason: "it is refused"}}
			for _, name := range asked {
				verdict := uint32(0)
				if name == r.refuses {
					verdict = 1
				}
				a.Verdicts = append(a.Verdicts, verdict)
			}
		}
		if len(q.GetScores()) > 0 {
			scores := &pluginv1.Scores{}
			of := r.scores(asked)
			for _, name := range asked {
				scores.Scores = append(scores.Scores, of[name])
			}
			a.Scores = []*pluginv1.Scores{scores}
			slices.Sort(asked)
			r.asked = append(r.asked, asked)
		}
		out.Answers = append(out.Answers, a)
	}
	return out
}

// judgedAlone returns which nodes it was asked about by themselves since it was called last.
func (r *ranker) judgedAlone() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.alone
	r.alone = nil
	return out
}

// calls returns the nodes of each question for scores since it was called last.
func (r *ranker) calls() [][]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.asked
	r.asked = nil
	return out
}

func TestAPluginThatNormalisesItselfScoresTheNodesThatAreLeft(t *testing.T) {
	src := newFakeSource()
	r, c := newRanker(t)
	for _, name := range []string{"a", "b", "c"} {
		src.setNode(node(name, 4000))
	}
	src.setNode(node("small", 100))
	src.setPod(forChoosy(pod("p", 1000)))
	src.setPod(forChoosy(pod("q", 1000)))
	r.refuses = "b"
	r.scores = func(names []string) map[string]int32 { return map[string]int32{"a": 40, "c": 90} }
	b := start(t, startEtcd(t), src, withChoosy(t, c))
	b.active()
	if got := b.ask(b.question(1, "p")); got != "assumed on c" {
		t.Errorf("p: %s", got)
	}
	if got := r.calls(); len(got) != 1 || !slices.Equal(got[0], []string{"a", "c"}) {
		t.Errorf("scores were asked for of %v, want of a and c, once", got)
	}
	// One that is alone is not scored, as in kube-scheduler.
	r.mu.Lock()
	r.refuses = "a"
	r.mu.Unlock()
	src.setNode(node("c", 1000))
	eventually(t, "c has no room", func() (full bool) {
		b.look(func(st *cluster.State) {
			full = slices.Contains(st.Nodes.Spec[st.Nodes.ByName("c")].Allocatable, cluster.Quantity{Name: "cpu", Value: 1000})
		})
		return full
	})
	if got := b.ask(b.question(1, "q")); got != "assumed on b" {
		t.Errorf("q: %s", got)
	}
	if got := r.calls(); len(got) != 0 {
		t.Errorf("scores were asked for of %v, of one node", got)
	}
}

// While scores are asked for, somebody else takes the best node: it is asked about again, as it is then.
func TestScoresAreOfTheNodeAsItIs(t *testing.T) {
	src := newFakeSource()
	r, c := newRanker(t)
	for _, name := range []string{"a", "b"} {
		src.setNode(node(name, 4000))
	}
	src.setPod(forChoosy(pod("p", 1000)))
	b := start(t, startEtcd(t), src, withChoosy(t, c))
	b.active()
	var once sync.Once
	r.scores = func([]string) map[string]int32 {
		once.Do(func() {
			src.setPod(on(pod("other", 100), "a"))
			eventually(t, "other is on a", func() bool { return b.phase("other") == "bound on a" })
		})
		if r.pods["a"] > 0 {
			return map[string]int32{"b": 100}
		}
		return map[string]int32{"a": 100}
	}
	if got := b.ask(b.question(1, "p")); got != "assumed on b" {
		t.Errorf("p: %s", got)
	}
	if got := r.calls(); len(got) != 2 {
		t.Errorf("scores were asked for of %v, want twice", got)
	}
}

// What is said of nodes may be what was said for an earlier pod: the best is asked about by itself, and if it is refused, all are again.
func TestTheNodeThatAPodGetsIsJudgedForIt(t *testing.T) {
	src := newFakeSource()
	r, c := newRanker(t)
	for _, name := range []string{"a", "b", "c"} {
		src.setNode(node(name, 4000))
	}
	for _, name := range []string{"p", "q", "r"} {
		src.setPod(forChoosy(pod(name, 1000)))
	}
	r.scores = func([]string) map[string]int32 { return map[string]int32{"a": 40, "c": 90} }
	b := start(t, startEtcd(t), src, withChoosy(t, c))
	b.active()
	if got := b.ask(b.question(1, "p")); got != "assumed on c" {
		t.Errorf("p: %s", got)
	}
	if got := r.judgedAlone(); len(got) != 0 {
		t.Errorf("it is asked about %v, and nothing was said for an earlier pod", got)
	}
	r.mu.Lock()
	r.kept = true
	r.mu.Unlock()
	if got := b.ask(b.question(1, "q")); got != "assumed on c" {
		t.Errorf("q: %s", got)
	}
	if got := r.judgedAlone(); !slices.Equal(got, []string{"c"}) {
		t.Errorf("it is asked about %v by themselves, want c", got)
	}
	r.mu.Lock()
	r.refuses = "c"
	r.scores = func([]string) map[string]int32 { // of all, and then of those that are left: nothing is kept any more
		r.kept = false
		return map[string]int32{"a": 40, "c": 90}
	}
	r.mu.Unlock()
	if got := b.ask(b.question(1, "r")); got != "assumed on a" {
		t.Errorf("r: %s", got)
	}
	if got := r.judgedAlone(); !slices.Equal(got, []string{"c"}) {
		t.Errorf("it is asked about %v by themselves, want c", got)
	}
}
