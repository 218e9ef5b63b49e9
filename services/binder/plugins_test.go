package binder

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/pluginhost"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/plugin"
)

// choosy is a plugin service with one plugin, Choosy. What it says is up to the test.
type choosy struct {
	conn   *grpc.ClientConn
	mu     sync.Mutex
	filter func(n *plugin.Node) (string, error) // "": it takes the node; nil: it takes all
	score  func(n *plugin.Node) int64           // nil: 0 each
	asked  []string                             // nodes, in the order in which filter was asked
	quiet  bool                                 // nobody looks at these
	way    func([]plugin.Refused) (plugin.PostFiltered, error)

	cluster bool           // it says that it depends on other nodes than the one that it is asked about
	steps   []string       // what profiles have Choosy do besides: "reserve"
	sends   func(sent any) // hears what it is about to be sent on a stream; nil: nobody does
}

// sending is a stream to it.
type sending struct {
	grpc.ClientStream
	c *choosy
}

func (s sending) SendMsg(m any) error {
	s.c.mu.Lock()
	hears := s.c.sends
	s.c.mu.Unlock()
	if hears != nil {
		hears(m)
	}
	return s.ClientStream.SendMsg(m)
}

func newChoosy(t testing.TB, depends plugin.Dependencies, change ...func(*plugin.Plugin)) *choosy {
	return newChoosyWith(t, nil, depends, change...)
}

// newChoosyWith is newChoosy with an activator, unless that is nil.
func newChoosyWith(t testing.TB, activator *plugin.Activator, depends plugin.Dependencies, change ...func(*plugin.Plugin)) *choosy {
	c := new(choosy)
	l := bufconn.Listen(1 << 20)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	p := plugin.Plugin{Name: "Choosy", Depends: depends,
		Filter: func(_ context.Context, _ *plugin.Kind, n *plugin.Node) (*plugin.Refusal, error) {
			c.mu.Lock()
			if !c.quiet {
				c.asked = append(c.asked, n.Name)
			}
			filter := c.filter
			c.mu.Unlock()
			if filter == nil {
				return nil, nil
			}
			reason, err := filter(n)
			if reason == "" {
				return nil, err
			}
			return &plugin.Refusal{Reason: reason}, err
		},
		Score: func(_ context.Context, _ *plugin.Kind, n *plugin.Node) (int64, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.score == nil {
				return 0, nil
			}
			return c.score(n), nil
		},
		PostFilter: func(_ context.Context, _ *plugin.Kind, refused []plugin.Refused) (plugin.PostFiltered, error) {
			c.mu.Lock()
			way := c.way
			c.mu.Unlock()
			return way(refused)
		},
	}
	for _, f := range change {
		f(&p)
	}
	go func() {
		done <- plugin.Serve(ctx, plugin.Config{Plugins: []plugin.Plugin{p}, Listener: l, InsecurePlaintext: true, Activator: activator, Log: testLog(t)})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	describe := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := invoke(ctx, method, req, reply, cc, opts...)
		if described, ok := reply.(*pluginv1.DescribeResponse); ok && err == nil {
			for _, p := range described.GetPlugins() {
				p.Depends.Cluster = c.cluster
			}
		}
		return err
	}
	send := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		stream, err := streamer(ctx, desc, cc, method, opts...)
		return sending{stream, c}, err
	}
	conn, err := grpc.NewClient("passthrough:///choosy", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUnaryInterceptor(describe), grpc.WithStreamInterceptor(send),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	c.conn = conn
	return c
}

func (c *choosy) set(fn func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fn()
}

// calls returns the nodes that were asked about since it was called last, in order of their names.
func (c *choosy) calls() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.asked
	c.asked = nil
	slices.Sort(out)
	return out
}

// withChoosy configures a binder whose pods of the scheduler name "choosy" use the plugin, with weight 5.
func withChoosy(t testing.TB, c *choosy, change ...func(*pluginhost.Service)) func(*Config) {
	return func(cfg *Config) {
		p := engine.DefaultProfile("choosy")
		p.Filters, p.PostFilters = append(slices.Clone(p.Filters), "Choosy"), append(slices.Clone(p.PostFilters), "Choosy")
		p.Weights = append(slices.Clone(p.Weights), cluster.PluginWeight{Name: "Choosy", Weight: 5})
		cfg.Settings.Profiles = append(slices.Clone(cfg.Settings.Profiles), p)
		service := pluginhost.Service{Name: "s", Plugins: []pluginhost.Plugin{{Name: "Choosy", Filters: true, Scores: true}}, Conn: c.conn, Timeout: patience}
		for _, f := range change {
			f(&service)
		}
		objects, _ := cfg.Objects.(pluginhost.Objects)
		steps := map[string]pluginhost.Steps{}
		if slices.Contains(c.steps, "reserve") {
			steps["choosy"] = pluginhost.Steps{Reserve: []string{"Choosy"}}
		}
		h, err := pluginhost.New(pluginhost.Config{Services: []pluginhost.Service{service}, Profiles: cfg.Settings.Profiles, Steps: steps, Objects: objects, Log: testLog(t)})
		if err != nil {
			t.Fatal(err)
		}
		cfg.Plugins = h
	}
}

// forChoosy returns a pod whose profile uses the plugin.
func forChoosy(p source.Pod) source.Pod {
	p.Class.SchedulerName = "choosy"
	return p
}

func TestAPodGoesWhereAPluginServiceHasIt(t *testing.T) {
	src, c := newFakeSource(), newChoosy(t, plugin.Dependencies{})
	for _, name := range []string{"a", "b", "c"} {
		src.setNode(node(name, 4000))
	}
	src.setNode(node("small", 100))
	src.setPod(forChoosy(pod("p", 1000)))
	src.setPod(pod("other", 1000))
	c.set(func() {
		c.filter = func(n *plugin.Node) (string, error) {
			if n.Name == "b" {
				return "it is b", nil
			}
			return "", nil
		}
		c.score = func(n *plugin.Node) int64 { return map[string]int64{"b": 100, "c": 80}[n.Name] }
	})
	b := start(t, startEtcd(t), src, withChoosy(t, c))
	b.active()
	// The pod behind it is placed at once.
	if got := b.commit(b.request(1, "p", "other")); !slices.Equal(got, []string{"result 7", "assumed"}) {
		t.Fatalf("commit: %v", got)
	}
	req := b.question(1, "p")
	if got := b.ask(req); got != "assumed on c" {
		t.Errorf("p: %s", got)
	}
	if diff := cmp.Diff([]string{"a", "b", "c"}, c.calls()); diff != "" {
		t.Errorf("what the service was asked about p (-want +got):\n%s", diff)
	}
	b.awaitPhase("p", "bound on c")
	// To ask again is safe, and asks nobody.
	if got := b.ask(req); got != "already placed on c" || len(c.calls()) != 0 {
		t.Errorf("asked again: %s", got)
	}
}

// Of pods of one kind, only the node is asked about that the last one has taken.
func TestWhatAPluginServiceHasSaidIsKept(t *testing.T) {
	for name, tt := range map[string]struct {
		depends plugin.Dependencies
		again   []string
	}{
		"it depends on what is placed":  {plugin.Dependencies{Requested: true}, []string{"c"}},
		"it depends on the node itself": {plugin.Dependencies{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			src, c := newFakeSource(), newChoosy(t, tt.depends)
			for _, name := range []string{"a", "b", "c"} {
				src.setNode(node(name, 4000))
			}
			for _, uid := range []string{"p", "q", "r"} {
				src.setPod(forChoosy(pod(uid, 1000)))
			}
			c.set(func() { c.score = func(n *plugin.Node) int64 { return map[string]int64{"c": 100}[n.Name] } })
			b := start(t, startEtcd(t), src, withChoosy(t, c))
			b.active()
			for k, uid := range []string{"p", "q", "r"} {
				want := tt.again
				if k == 0 {
					want = []string{"a", "b", "c"}
				}
				if got := b.ask(b.question(1, uid)); got != "assumed on c" {
					t.Errorf("%s: %s", uid, got)
				}
				if diff := cmp.Diff(want, c.calls()); diff != "" {
					t.Errorf("what the service was asked about %s (-want +got):\n%s", uid, diff)
				}
			}
			// The node itself is another one.
			before := b.Version()
			src.setNode(node("a", 4001))
			eventually(t, "the ledger is told", func() bool { return before.Less(b.Version()) })
			src.setPod(forChoosy(pod("s", 1000)))
			if got := b.ask(b.question(1, "s")); got != "assumed on c" {
				t.Errorf("s: %s", got)
			}
			if diff := cmp.Diff(slices.Concat([]string{"a"}, tt.again), c.calls()); diff != "" {
				t.Errorf("what the service was asked about s (-want +got):\n%s", diff)
			}
		})
	}
}

// Nothing is kept of a plugin that depends on other nodes than the one that it is asked about.
func TestAPluginServiceThatDependsOnOtherNodesIsAskedAnew(t *testing.T) {
	src, c := newFakeSource(), newChoosy(t, plugin.Dependencies{})
	c.cluster = true
	for _, name := range []string{"a", "b", "c"} {
		src.setNode(node(name, 4000))
	}
	takes := "a"
	c.set(func() {
		c.filter = func(n *plugin.Node) (string, error) {
			if n.Name == takes {
				return "", nil
			}
			return "it is another's turn", nil
		}
	})
	b := start(t, startEtcd(t), src, withChoosy(t, c))
	b.active()
	for _, uid := range []string{"a", "b", "c"} {
		src.setPod(forChoosy(pod(uid, 1000)))
		c.set(func() { takes = uid })
		if got := b.ask(b.question(1, uid)); got != "assumed on "+uid {
			t.Errorf("%s: %s", uid, got)
		}
		if diff := cmp.Diff([]string{"a", "b", "c"}, c.calls()); diff != "" {
			t.Errorf("what the service was asked about %s (-want +got):\n%s", uid, diff)
		}
	}
}

// Of plugins that are asked about each pod anew, as many nodes are enough as in kube-scheduler: others are asked about only if too few are left of these.
func TestPluginsAreAskedAboutAsManyNodesAsAreEnough(t *testing.T) {
	const nodes = 300
	refuses := func(is func(i int) bool) func(n *plugin.Node) (string, error) {
		return func(n *plugin.Node) (string, error) {
			var i int
			if _, err := fmt.Sscanf(n.Name, "n%d", &i); err != nil {
				return "", err
			}
			if is(i) {
				return "no", nil
			}
			return "", nil
		}
	}
	for name, tt := range map[string]struct {
		percentage int32
		anew       bool
		refuses    func(i int) bool
		asked      []int  // how many nodes, of pod after pod
		want       string // of each; "": whichever node it has
	}{
		"all are left":                   {40, true, func(int) bool { return false }, []int{120, 120, 120}, ""},
		"by default":                     {0, true, func(int) bool { return false }, []int{144, 144, 144}, ""}, // 50 - 300/125 %
		"all are to be scored":           {100, true, func(int) bool { return false }, []int{300, 300, 300}, ""},
		"four of five are left":          {40, true, func(i int) bool { return i%5 == 0 }, []int{240, 240, 240}, ""},
		"one is left":                    {40, true, func(i int) bool { return i != 299 }, []int{300, 300, 300}, "assumed on n299"},
		"none is left":                   {40, true, func(int) bool { return true }, []int{300, 300, 300}, "refused: Choosy: 300 no false"},
		"what is said of nodes is kept":  {40, false, func(int) bool { return false }, []int{300, 0, 0}, ""},
		"what is said is kept, default":  {0, false, func(int) bool { return false }, []int{300, 0, 0}, ""},
		"of what is kept few nodes fit ": {40, false, func(i int) bool { return i != 7 }, []int{300, 0, 0}, "assumed on n7"},
	} {
		t.Run(name, func(t *testing.T) {
			src, c := newFakeSource(), newChoosy(t, plugin.Dependencies{})
			c.cluster = tt.anew
			for i := range nodes {
				src.setNode(node(fmt.Sprint("n", i), 400_000))
			}
			c.set(func() { c.filter = refuses(tt.refuses) })
			b := start(t, startEtcd(t), src, func(cfg *Config) {
				withChoosy(t, c)(cfg)
				cfg.Settings.Profiles[len(cfg.Settings.Profiles)-1].PercentageOfNodesToScore = tt.percentage
			})
			b.active()
			seen := make(map[string]bool)
			for k, want := range tt.asked {
				uid := fmt.Sprint("p", k)
				src.setPod(forChoosy(pod(uid, 10)))
				if got := b.ask(b.question(1, uid)); tt.want != "" && got != tt.want || tt.want == "" && !strings.HasPrefix(got, "assumed on n") {
					t.Errorf("%s: %s, want %s", uid, got, tt.want)
				}
				calls := c.calls()
				if len(calls) != want || len(slices.Compact(slices.Clone(calls))) != want {
					t.Errorf("%s: asked about %d nodes, want %d", uid, len(calls), want)
				}
				for _, name := range calls {
					seen[name] = true
				}
			}
			if len(seen) != nodes {
				t.Errorf("by three pods, %d of %d nodes have had their turn", len(seen), nodes)
			}
		})
	}
}

// Nodes whose turn comes one behind the other are of all zones, however nodes were listed, and each has its turn.
func TestNodesOfAllZonesHaveTheirTurn(t *testing.T) {
	const nodes, most = 3000, 300
	var all []seenNode
	for i := range cluster.NodeIndex(nodes) {
		all = append(all, seenNode{NodeTotal: engine.NodeTotal{Node: i}})
	}
	for name, zone := range map[string]func(i int) int{
		"zone by zone": func(i int) int { return i / 1000 }, "in turn": func(i int) int { return i % 3 }, "in turns of eight": func(i int) int { return i % 8 },
	} {
		e := newExtenders(nil, nil, nil)
		e.turns.sort(all[:100], nil) // there were fewer
		had := make(map[cluster.NodeIndex]bool)
		for n := range nodes / most {
			zones := make(map[int]int)
			inTurn := e.inTurn(all, nil)
			if len(inTurn) != nodes {
				t.Fatalf("%d nodes of %d", len(inTurn), nodes)
			}
			for _, n := range inTurn[:most] {
				zones[zone(int(n.Node))]++
				had[n.Node] = true
			}
			e.passed(inTurn[most-1])
			fair := most / len(map[string][]int{"zone by zone": {0, 1, 2}, "in turn": {0, 1, 2}, "in turns of eight": make([]int, 8)}[name])
			for z, has := range zones {
				if has < fair/2 || has > 2*fair {
					t.Errorf("%s, turn %d: %d of zone %d", name, n, has, z)
				}
			}
		}
		if len(had) != nodes {
			t.Errorf("%s: %d nodes of %d have had their turn", name, len(had), nodes)
		}
	}
}

func TestSoManyNodesAreEnough(t *testing.T) {
	for _, tt := range []struct {
		nodes      int
		percentage int32
		anew       bool
		want       int
	}{
		{5000, 0, true, 500}, {5000, 0, false, 5000}, {5000, 30, true, 1500}, {5000, 30, false, 1500}, {5000, 100, true, 5000}, {5000, 1, false, 100},
		{99, 0, true, 99}, {99, 10, true, 99}, {100, 0, true, 100}, {1000, 0, true, 420}, {20_000, 0, true, 1000}, {1_000_000, 0, true, 50_000}, {0, 0, true, 0},
	} {
		if got := enough(tt.nodes, tt.percentage, tt.anew); got != tt.want {
			t.Errorf("of %d nodes at %d %%, anew %v: %d, want %d", tt.nodes, tt.percentage, tt.anew, got, tt.want)
		}
	}
}

// A node is given to a pod only if the plugin has judged it with all that has been placed there before, however often that changes.
func TestNoNodeIsTakenThatAPluginServiceHasNotJudgedAsItIs(t *testing.T) {
	for _, tt := range []struct {
		most int // pods that the service lets be on a node
		want string
	}{
		{2, "refused: Choosy: 1 it is b false Choosy: 1 there are enough false"},
		{9, "retry"}, // each time, another pod has come
	} {
		t.Run(tt.want, func(t *testing.T) {
			src, c := newFakeSource(), newChoosy(t, plugin.Dependencies{Pods: true})
			src.setNode(node("a", 4000))
			src.setNode(node("b", 4000))
			src.setPod(forChoosy(pod("p", 1000)))
			b := start(t, startEtcd(t), src, withChoosy(t, c))
			b.active()
			times := 0
			c.set(func() {
				c.filter = func(n *plugin.Node) (string, error) {
					if n.Name == "b" {
						return "it is b", nil
					}
					if len(n.Pods) >= tt.most {
						return "there are enough", nil
					}
					times++
					uid := fmt.Sprintf("quick%d", times) // comes while the service thinks
					src.setPod(on(pod(uid, 100), "a"))
					eventually(t, "the ledger is told", func() bool { return b.phase(uid) == "bound on a" })
					return "", nil
				}
			})
			if got := b.ask(b.question(1, "p")); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
			if want := min(tt.most, mostAsks); times != want {
				t.Errorf("the service took a node %d times, want %d", times, want)
			}
		})
	}
}

func TestWhatPluginServicesRefuseAndHowTheyFail(t *testing.T) {
	all := func(reason string, err error) func(*plugin.Node) (string, error) {
		return func(*plugin.Node) (string, error) { return reason, err }
	}
	for name, tt := range map[string]struct {
		filter    func(*plugin.Node) (string, error)
		ignorable bool
		want      string
	}{
		"all are refused": {all("no gpu", nil), false, "refused: Choosy: 2 no gpu false"},
		"each for a reason of its own": {func(n *plugin.Node) (string, error) { return "it is " + n.Name, nil }, false,
			"refused: Choosy: 1 it is a false Choosy: 1 it is b false"},
		"it fails":              {all("", errors.New("no idea")), false, `failed: plugin service "s": plugin Choosy, node `},
		"it panics":             {func(*plugin.Node) (string, error) { panic("oh") }, false, `failed: plugin service "s": plugin Choosy, node `},
		"it fails, and may":     {all("", errors.New("no idea")), true, "assumed on "},
		"it refuses, ignorable": {all("no gpu", nil), true, "refused: Choosy: 2 no gpu false"},
	} {
		t.Run(name, func(t *testing.T) {
			src, c := newFakeSource(), newChoosy(t, plugin.Dependencies{})
			src.setNode(node("a", 4000))
			src.setNode(node("b", 4000))
			src.setPod(forChoosy(pod("p", 1000)))
			c.set(func() { c.filter = tt.filter })
			b := start(t, startEtcd(t), src, withChoosy(t, c, func(s *pluginhost.Service) { s.Ignorable = tt.ignorable }))
			b.active()
			if got := b.ask(b.question(1, "p")); !strings.HasPrefix(got, tt.want) {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

// A service that hangs holds up nobody else.
func TestAPluginServiceThatHangs(t *testing.T) {
	src, c := newFakeSource(), newChoosy(t, plugin.Dependencies{})
	src.setNode(node("a", 4000))
	src.setPod(forChoosy(pod("p", 1000)))
	src.setPod(pod("other", 1000))
	hangs, begun := make(chan struct{}), make(chan struct{}, 1)
	c.set(func() {
		c.filter = func(*plugin.Node) (string, error) { begun <- struct{}{}; <-hangs; return "", nil }
	})
	t.Cleanup(func() { close(hangs) })
	b := start(t, startEtcd(t), src, withChoosy(t, c))
	b.active()
	asked := make(chan error, 1)
	req := b.question(1, "p")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, err := b.Ask(ctx, req)
		asked <- err
	}()
	<-begun
	if got := b.commit(b.request(1, "other")); !slices.Equal(got, []string{"assumed"}) {
		t.Errorf("meanwhile: %v", got)
	}
	cancel()
	if err := <-asked; err == nil {
		t.Error("a question that nobody waits for has an answer")
	}
	if got := b.phase("p"); got != "pending" {
		t.Errorf("the pod is %s", got)
	}
}

// What it costs to place a pod of a kind that has been placed before, on one of 5,000 nodes.
func BenchmarkAskPluginService(b *testing.B) {
	src, c := newFakeSource(), newChoosy(b, plugin.Dependencies{Requested: true})
	c.quiet = true
	for i := range 5000 {
		src.setNode(node(fmt.Sprint("n", i), 1<<40))
	}
	c.set(func() { c.score = func(n *plugin.Node) int64 { return int64(len(n.Name)) } })
	for i := range b.N + 1 {
		src.setPod(forChoosy(pod(fmt.Sprint("p", i), 1)))
	}
	r := start(b, startEtcd(b), src, withChoosy(b, c))
	r.active()
	questions := make([]*binderv1.AskRequest, b.N)
	for i := range b.N {
		questions[i] = r.question(1, fmt.Sprint("p", i))
	}
	_ = r.ask(r.question(1, fmt.Sprint("p", b.N)))
	b.ResetTimer()
	for _, q := range questions {
		if got := r.ask(q); !strings.HasPrefix(got, "assumed") {
			b.Fatal(got)
		}
	}
}

// What is not asked would not change where pods go.
func TestPodsGoWhereTheyWouldIfPluginServicesWereAskedEachTime(t *testing.T) {
	const pods, nodes = 60, 40
	said := func(n *plugin.Node, seed string) uint64 {
		h := fnv.New64a()
		fmt.Fprint(h, seed, n.Name, n.PodCount, n.Requested)
		return h.Sum64()
	}
	saved := 0
	for seed := range 6 {
		var where [2][]string
		var asked [2]int
		for k, mostUnknown := range []int{1000, 0} {
			src, c := newFakeSource(), newChoosy(t, plugin.Dependencies{Requested: true})
			for i := range nodes {
				n := node(fmt.Sprint("n", i), 2000)
				if seed%2 == 1 && i%3 == 0 { // scores that are normalised
					n.Taints = []cluster.Taint{{Key: "a", Effect: "PreferNoSchedule"}}
				}
				src.setNode(n)
			}
			for i := range pods {
				src.setPod(forChoosy(pod(fmt.Sprint("p", i), int64(100+50*(i%3)))))
			}
			c.set(func() {
				c.filter = func(n *plugin.Node) (string, error) {
					if said(n, fmt.Sprint("filter", seed))%5 == 0 {
						return "no", nil
					}
					return "", nil
				}
				c.score = func(n *plugin.Node) int64 { return min(100, 30*int64(said(n, fmt.Sprint("score", seed))%8)) }
			})
			b := start(t, startEtcd(t), src, withChoosy(t, c))
			b.active()
			b.Service.extenders.mostUnknown = mostUnknown
			for i := range pods {
				where[k] = append(where[k], b.ask(b.question(1, fmt.Sprint("p", i))))
				if len(c.calls()) > 0 {
					asked[k]++
				}
			}
			b.stop()
		}
		if diff := cmp.Diff(where[1], where[0]); diff != "" {
			t.Errorf("seed %d: (-asked each time +asked if need be):\n%s", seed, diff)
		}
		saved += asked[1] - asked[0]
	}
	if saved < 50 {
		t.Errorf("%d questions were saved", saved)
	}
}

// What other nodes score may depend on a node of which it is not known whether it is refused.
func TestNobodyIsSureWhereScoresAreNormalisedOverNodesThatMayBeRefused(t *testing.T) {
	src, c := newFakeSource(), newChoosy(t, plugin.Dependencies{Requested: true})
	for name, taints := range map[string]int{"a1": 1, "a2": 1, "b": 0, "full": 2} {
		n := node(name, 4000)
		for i := range taints {
			n.Taints = append(n.Taints, cluster.Taint{Key: fmt.Sprint(i), Effect: "PreferNoSchedule"})
		}
		src.setNode(n)
	}
	c.set(func() {
		c.filter = func(n *plugin.Node) (string, error) {
			if n.Name == "full" && n.PodCount > 0 {
				return "it is full", nil
			}
			return "", nil
		}
		c.score = func(n *plugin.Node) int64 { return map[string]int64{"a1": 100, "a2": 100, "b": 60}[n.Name] }
	})
	src.setPod(forChoosy(pod("p", 1000)))
	src.setPod(forChoosy(pod("q", 1000)))
	b := start(t, startEtcd(t), src, withChoosy(t, c))
	b.active()
	if got := b.ask(b.question(1, "p")); got != "assumed on a1" && got != "assumed on a2" {
		t.Fatalf("p: %s: half the taints of the worst node, and the best score", got)
	}
	src.setPod(on(pod("other", 1000), "full"))
	eventually(t, "the ledger is told", func() bool { return b.phase("other") == "bound on full" })
	if got := b.ask(b.question(1, "q")); got != "assumed on b" {
		t.Errorf("q: %s: of the nodes that are left, one has no taint", got)
	}
}

// What is normalised may be larger than what counts: a pod goes where the highest score is, or the lowest, by as much as it is of the highest.
func TestPodsGoByScoresAsTheyCountWhenTheyAreNormalised(t *testing.T) {
	for _, tt := range []struct {
		by   plugin.Normalization
		want string
	}{{plugin.Proportional, "assumed on c"}, {plugin.Reversed, "assumed on a"}} {
		src, c := newFakeSource(), newChoosy(t, plugin.Dependencies{}, func(p *plugin.Plugin) { p.Normalization = tt.by })
		for _, name := range []string{"a", "b", "c"} {
			src.setNode(node(name, 4000))
			for k := range 2 {
				src.setPod(forChoosy(pod(fmt.Sprint(name, k), 10)))
			}
		}
		c.set(func() {
			c.score = func(n *plugin.Node) int64 {
				return map[string]int64{"a": 100_000, "b": 1_500_000_000, "c": 2_147_483_647}[n.Name]
			}
		})
		b := start(t, startEtcd(t), src, withChoosy(t, c))
		b.active()
		for _, name := range []string{"a0", "b0"} { // what is kept is normalised as well
			if got := b.ask(b.question(1, name)); got != tt.want {
				t.Errorf("%v: %s: %s, want %s", tt.by, name, got, tt.want)
			}
		}
		b.stop()
	}
}

// A pod whose own node the service cannot be asked about is not placed elsewhere without it.
func TestANominatedPodIsNotPlacedWithoutItsPluginService(t *testing.T) {
	src, c := newFakeSource(), newChoosy(t, plugin.Dependencies{})
	src.setNode(node("a", 4000))
	src.setNode(node("b", 4000))
	p := forChoosy(pod("p", 1000))
	p.Nominated = "a"
	src.setPod(p)
	c.set(func() { c.filter = func(n *plugin.Node) (string, error) { return "", errors.New("no idea") } })
	b := start(t, startEtcd(t), src, withChoosy(t, c))
	b.active()
	if got := b.ask(b.question(1, "p")); !strings.HasPrefix(got, "failed: plugin service") {
		t.Errorf("%s", got)
	}
}
