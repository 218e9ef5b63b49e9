package binder

import (
	"context"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/berth-scheduler/berth/internal/cluster"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/pluginhost"
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
	keeps   func() (keeps, kept bool)             // nil: kept; else whether it keeps what it says of several nodes, and whether it was said for an earlier pod
	judged  [][]string                            // several nodes of each question for verdicts, sorted
	chosen  []string                              // nodes that it has chosen, of which all was asked in one question
	chooses func(best, of int) (chosen int)       // nil: the best; else which of so many nodes it says is chosen, when it is that one
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
			kept := r.kept
			if len(asked) > 1 {
				if r.keeps != nil {
					a.Keeps, kept = r.keeps()
				}
				r.judged = append(r.judged, slices.Sorted(slices.Values(asked)))
			}
			switch a.Kept = kept && len(asked) > 1; {
			case len(asked) == 1:
				r.alone = append(r.alone, asked[0])
			case a.Kept && r.keeps == nil: // it knows nothing yet of what it refuses
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
		if len(q.GetTotals()) > 0 {
			if a.Kept {
				r.choose(q, a, asked)
			}
			out.Answers = append(out.Answers, a)
			continue
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

// choose answers all at once, with verdicts.
func (r *ranker) choose(q *pluginv1.Question, a *pluginv1.Answer, asked []string) {
	var left []string
	var places []int
	for i, name := range asked {
		if a.GetVerdicts()[i] == 0 {
			left, places = append(left, name), append(places, i)
		}
	}
	of, scores := r.scores(left), new(pluginv1.Scores)
	best, most := 0, int64(math.MinInt64)
	for i, name := range left {
		scores.Scores = append(scores.Scores, of[name])
		if total := q.GetTotals()[places[i]] + q.GetWeights()[0]*int64(of[name]); total > most {
			best, most = i, total
		}
	}
	if len(left) > 1 {
		a.Scores = []*pluginv1.Scores{scores}
	}
	if r.chooses != nil {
		best = r.chooses(best, len(left))
	}
	a.Chosen, r.chosen = uint32(places[best]+1), append(r.chosen, left[best])
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

// rankedPods runs a binder with a ranker, so many nodes of so much CPU each, of which a percentage is enough, and pods that request some of it, and returns these.
func rankedPods(t *testing.T, c *choosy, nodes int, cpu func(i int) int64, percentage int32, pods int, requested int64) (b *running, uids []string) {
	src := newFakeSource()
	for i := range nodes {
		src.setNode(node(fmt.Sprint("n", i), cpu(i)))
	}
	for k := range pods {
		uids = append(uids, fmt.Sprint("p", k))
		src.setPod(forChoosy(pod(uids[k], requested)))
	}
	b = start(t, startEtcd(t), src, func(cfg *Config) {
		withChoosy(t, c)(cfg)
		cfg.Settings.Profiles[len(cfg.Settings.Profiles)-1].PercentageOfNodesToScore = percentage
	})
	b.active()
	return b, uids
}

// places asks about pods in one question, and has all of them placed.
func (b *running) places(uids []string) {
	b.t.Helper()
	for k, got := range b.askAll(b.questions(uids...)) {
		if !strings.HasPrefix(got, "assumed on n") {
			b.t.Errorf("%s: %s", uids[k], got)
		}
	}
}

// A service may take what it has said of nodes for the next pod of a turn: so that one is asked about the nodes that were left for the last one, as long as it does.
func TestThePodBehindAnotherIsAskedAboutTheSameNodes(t *testing.T) {
	const nodes, most = 300, 120
	type counts struct{ asked, again int } // nodes that were asked about for a pod, an eighth more than enough behind one for which enough were, and those of them that were for the one before it
	for name, tt := range map[string]struct {
		keeps func(question int) (keeps, kept bool)
		want  []counts
	}{
		"nothing is kept":                 {func(int) (bool, bool) { return false, false }, []counts{{120, 0}, {135, 0}, {135, 15}, {135, 15}}},
		"all is kept":                     {func(q int) (bool, bool) { return true, q > 0 }, []counts{{120, 0}, {120, 120}, {120, 120}, {120, 120}}},
		"it could have been, and was not": {func(int) (bool, bool) { return true, false }, []counts{{120, 0}, {120, 120}, {135, 0}, {120, 120}}},
		"it ends":                         {func(q int) (bool, bool) { return true, q == 1 }, []counts{{120, 0}, {120, 120}, {120, 120}, {135, 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			r, c := newRanker(t)
			r.scores = func(names []string) map[string]int32 { return map[string]int32{names[0]: 100} }
			r.keeps = func() (keeps, kept bool) { return tt.keeps(len(r.judged)) }
			b, uids := rankedPods(t, c, nodes, func(int) int64 { return 400_000 }, 100*most/nodes, len(tt.want), 10)
			b.places(uids)
			var got []counts
			var before []string
			for _, asked := range r.judged {
				again := 0
				for _, name := range asked {
					if slices.Contains(before, name) {
						again++
					}
				}
				got, before = append(got, counts{len(asked), again}), asked
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("nodes that were asked about, and those of them that were before, by pod: %v, want %v", got, tt.want)
			}
		})
	}
}

// A pod goes on with the nodes that are left of those of the last one, however few, as long as what was said of them is kept; others are asked about when it is not.
func TestWhatIsLeftOfTheNodesOfAnEarlierPodIsEnough(t *testing.T) {
	const nodes, most, pods = 300, 120, 122
	r, c := newRanker(t)
	r.scores = func(names []string) map[string]int32 { return map[string]int32{names[0]: 100} }
	r.keeps = func() (keeps, kept bool) { return true, len(r.judged) > 0 }
	b, uids := rankedPods(t, c, nodes, func(int) int64 { return 10 }, 100*most/nodes, pods, 10) // there is room for one on each
	b.places(uids)
	if len(r.judged) != pods {
		t.Fatalf("asked %d times about nodes, want once for each of %d pods", len(r.judged), pods)
	}
	for k, asked := range r.judged {
		want := most - k
		switch {
		case k == most-1: // the one that is left is judged by itself, anew, which is too few then: as many others are asked about as are missing
			want = most - 1
		case k >= most: // it goes on with what these leave
			want = 2*most - 1 - k
		}
		if len(asked) != want {
			t.Errorf("%s: asked about %d nodes, want %d", uids[k], len(asked), want)
		}
	}
}

// A service that takes what it has said for the next pod chooses its node in the same question, as Berth would; if it says another one, more is asked.
func TestAServiceThatKeepsChoosesTheNode(t *testing.T) {
	const nodes, pods = 300, 12
	where := make(map[string][]string)
	for name, chooses := range map[string]func(best, of int) int{"the best": nil, "another one": func(best, of int) int { return (best + 1) % of }} {
		r, c := newRanker(t)
		r.chooses = chooses
		r.scores = func(names []string) map[string]int32 {
			of := make(map[string]int32)
			for _, name := range names {
				var i int32
				_, _ = fmt.Sscanf(name, "n%d", &i)
				of[name] = i % 3
			}
			return of
		}
		r.keeps = func() (keeps, kept bool) {
			if len(r.judged) == 1 {
				r.refuses = r.judged[0][7] // it was left for the first pod
			}
			return true, len(r.judged) > 0
		}
		b, uids := rankedPods(t, c, nodes, func(i int) int64 { return int64(4000 + 100*(i%7)) }, 40, pods, 500)
		where[name] = b.askAll(b.questions(uids...))
		switch alone, scored := r.judgedAlone(), r.calls(); {
		case name == "the best" && (len(r.chosen) != pods-1 || len(alone) != 0 || len(scored) != 1):
			t.Errorf("%s: %d nodes are chosen; besides, %d are judged alone, and scores are asked for %d times; want %d, none and once, of the first pod", name, len(r.chosen), len(alone), len(scored), pods-1)
		case name == "another one" && (len(r.chosen) != pods-1 || len(alone) != pods-1 || len(scored) != pods):
			t.Errorf("%s: %d nodes are chosen, %d are judged alone, and scores are asked for %d times; want %d, %d and %d", name, len(r.chosen), len(alone), len(scored), pods-1, pods-1, pods)
		}
	}
	if !slices.Equal(where["the best"], where["another one"]) {
		t.Errorf("pods go to %v, want %v", where["the best"], where["another one"])
	}
}

// Two profiles use a service, and one of them is content with fewer nodes: what was left for a pod of the other is too much for its pods.
func TestAPodIsAskedAboutNoMoreNodesThanAreEnoughForIt(t *testing.T) {
	const nodes = 300
	src := newFakeSource()
	r, c := newRanker(t)
	for i := range nodes {
		src.setNode(node(fmt.Sprint("n", i), 400_000))
	}
	var uids []string
	for k, name := range []string{"choosy", "content", "content", "choosy"} {
		uids = append(uids, fmt.Sprint("p", k))
		p := pod(uids[k], 10)
		p.Class.SchedulerName = name
		src.setPod(p)
	}
	r.scores = func(names []string) map[string]int32 { return map[string]int32{names[0]: 100} }
	r.keeps = func() (keeps, kept bool) { return true, len(r.judged) > 0 }
	b := start(t, startEtcd(t), src, func(cfg *Config) {
		withChoosy(t, c)(cfg)
		choosy := &cfg.Settings.Profiles[len(cfg.Settings.Profiles)-1]
		choosy.PercentageOfNodesToScore = 60
		content := *choosy
		content.SchedulerName, content.PercentageOfNodesToScore = "content", 40
		cfg.Settings.Profiles = append(cfg.Settings.Profiles, content)
		h, err := pluginhost.New(pluginhost.Config{Services: []pluginhost.Service{{
			Name: "s", Plugins: []pluginhost.Plugin{{Name: "Choosy", Filters: true, Scores: true}}, Conn: c.conn, Timeout: patience,
		}}, Profiles: cfg.Settings.Profiles, Log: testLog(t)})
		if err != nil {
			t.Fatal(err)
		}
		cfg.Plugins = h
	})
	b.active()
	b.places(uids)
	var asked []int
	for _, j := range r.judged {
		asked = append(asked, len(j))
	}
	if !slices.Equal(asked, []int{180, 120, 120, 120}) {
		t.Errorf("pods are asked about %v nodes, want 180, and what is left for each, 120 at most for a pod that is content with that", asked)
	}
}
