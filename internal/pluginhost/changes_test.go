package pluginhost

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/test/bufconn"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/plugin"
)

// changing is a service whose plugin, P, refuses nodes that are sick, of which Berth knows nothing.
type changing struct {
	activator plugin.Activator
	host      *Host
	words     int

	mu    sync.Mutex
	sick  map[string]bool
	asked []string // nodes that Filter was called for
	holds chan struct{}
	began chan struct{}
}

// newChanging serves the plugin, for a host whose streams end with the test.
func newChanging(t *testing.T) *changing {
	t.Helper()
	c := &changing{sick: make(map[string]bool)}
	p := plugin.Plugin{
		Name: "P", Score: func(context.Context, *plugin.Kind, *plugin.Node) (int64, error) { return 1, nil },
		Filter: func(_ context.Context, _ *plugin.Kind, n *plugin.Node) (*plugin.Refusal, error) {
			c.mu.Lock()
			c.asked = append(c.asked, n.Name)
			sick, began, holds := c.sick[n.Name], c.began, c.holds
			c.mu.Unlock()
			if holds != nil {
				began <- struct{}{}
				<-holds
			}
			if sick {
				return &plugin.Refusal{Reason: "it is sick"}, nil
			}
			return nil, nil
		},
	}
	l := bufconn.Listen(1 << 20)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		served <- plugin.Serve(ctx, plugin.Config{Plugins: []plugin.Plugin{p}, Listener: l, InsecurePlaintext: true, Activator: &c.activator})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	var err error
	if c.host, err = New(Config{Services: []Service{serviceOf("s", dial(t, l), "P")}, Profiles: []cluster.Profile{profile("default-scheduler", "P")}, Log: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.host.EndPlacing(math.MaxInt64)
		c.host.End(0)
	})
	return c
}

// changes says that nodes are sick, or sound again, and returns when Berth has heard that: it hears of a pod that was woken behind it.
func (c *changing) changes(t *testing.T, sick bool, names ...string) {
	t.Helper()
	c.mu.Lock()
	for _, name := range names {
		c.sick[name] = sick
	}
	c.words++
	word := fmt.Sprint("word ", c.words)
	c.mu.Unlock()
	c.activator.Changed(names...)
	c.activator.Wake(word)
	for range c.host.Activations() {
		if slices.ContainsFunc(c.host.TakeActivated(1000), func(a Activated) bool { return a.UID == word }) {
			return
		}
	}
}

// calls returns the nodes that Filter was called for since it was called last, in order of their names.
func (c *changing) calls() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.asked
	c.asked = nil
	slices.Sort(out)
	return out
}

// judges has all nodes judged, and checks which the service is asked about.
func (c *changing) judges(t *testing.T, st *cluster.State, subject engine.Subject, want ...string) *Asking {
	t.Helper()
	k, err := judge(t, c.host, st, subject)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.calls(); !slices.Equal(got, want) {
		t.Errorf("it was asked about %v, want %v", got, want)
	}
	return k
}

// known returns the nodes of which all is known, without asking anybody.
func (c *changing) known(t *testing.T, k *Asking, st *cluster.State, subject engine.Subject) (out []cluster.NodeIndex) {
	t.Helper()
	kept, ok := k.Kept(st, subject)
	if !ok {
		t.Fatal("nothing is known")
	}
	for i := range cluster.NodeIndex(st.Nodes.Len()) {
		if known, _, _ := kept.Of(i); known {
			out = append(out, i)
		}
	}
	return out
}

// all are the nodes of the world of these tests.
var all = []string{"n0", "n1", "n2", "n3"}

func TestWhatIsSaidOfANodeHoldsUntilItChangesForTheService(t *testing.T) {
	c := newChanging(t)
	st, subjects := world(t, len(all))
	c.sick["n3"] = true
	c.activator.Changed("n3") // before there is a stream, which begins with all
	if _, err := c.host.Begin(t.Context(), 1, "default-scheduler"); err != nil {
		t.Fatal(err)
	}
	c.changes(t, false) // that has been heard
	for _, subject := range subjects {
		k := c.judges(t, st, subject, all...)
		if r, refused := k.Refusal(3); !refused || r.Reason != "it is sick" {
			t.Errorf("n3: %v, %v", r, refused)
		}
	}
	c.changes(t, true, "n1", "nobody", "n1", "")
	c.changes(t, false, "n3")
	k, err := c.host.Begin(t.Context(), 1, "default-scheduler")
	if err != nil {
		t.Fatal(err)
	}
	for _, subject := range subjects {
		if among := (cluster.Bitmap{0b1111}); !k.Excluded(st, subject, among) || among.Count() != 4 {
			t.Errorf("%d nodes are left before anybody is asked: what was said of n3 does not hold", among.Count())
		}
		if got := c.known(t, k, st, subject); !slices.Equal(got, []cluster.NodeIndex{0, 2}) {
			t.Errorf("known are %v, want n0 and n2", got)
		}
		k := c.judges(t, st, subject, "n1", "n3")
		if _, refused := k.Refusal(1); !refused {
			t.Error("n1 is not refused")
		}
		if _, refused := k.Refusal(3); refused {
			t.Error("n3 is refused still")
		}
		if among := (cluster.Bitmap{0b1111}); !k.Excluded(st, subject, among) || among.Has(1) || among.Count() != 3 {
			t.Errorf("%b are left, want all but n1", among)
		}
		if _, known := k.Known(st, 1); !known {
			t.Error("it is not known why n1 is refused")
		}
		c.judges(t, st, subject)
	}
	k = c.judges(t, st, subjects[0])
	c.changes(t, false, "n1")
	if _, known := k.Known(st, 1); known {
		t.Error("n1 has changed, and why it was refused is known still")
	}
}

// A pod is not placed by what was said of a node that has changed meanwhile, but for what it was asked for once more: else it might be for ever.
func TestWhatIsUnderWayWhenANodeChangesIsJudgedOnceMore(t *testing.T) {
	c := newChanging(t)
	st, subjects := world(t, len(all))
	k, err := c.host.Begin(t.Context(), 1, "default-scheduler")
	if err != nil {
		t.Fatal(err)
	}
	c.changes(t, false) // the stream has begun for the service, too
	nodes := []cluster.NodeIndex{0, 1, 2, 3}
	exchange := func(meanwhile func()) {
		t.Helper()
		k.Collect(st, subjects[0], nodes)
		began, holds, done := make(chan struct{}, len(all)), make(chan struct{}), make(chan error, 1)
		c.mu.Lock()
		c.began, c.holds = began, holds
		c.mu.Unlock()
		go func() { done <- k.Exchange(t.Context()) }()
		<-began
		meanwhile()
		c.mu.Lock()
		c.holds = nil
		c.mu.Unlock()
		close(holds)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	exchange(func() { c.changes(t, true, "n0") })
	if got := c.calls(); !slices.Equal(got, all) {
		t.Fatalf("it was asked about %v", got)
	}
	if k.Holds(st, 0) || !k.Holds(st, 1) {
		t.Errorf("what was asked before n0 has changed holds of n0 %v, of n1 %v", k.Holds(st, 0), k.Holds(st, 1))
	}
	exchange(func() { c.changes(t, true, "n0") }) // further nodes are asked about, say
	if k.Holds(st, 0) {
		t.Error("what was asked before n0 has changed holds, since something was collected twice")
	}
	c.calls()
	k.Again()
	exchange(func() { c.changes(t, false, "n0") })
	if got := c.calls(); !slices.Equal(got, all[:1]) {
		t.Errorf("it was asked about %v, want n0", got)
	}
	if _, refused := k.Refusal(0); !refused || !k.Holds(st, 0) {
		t.Errorf("n0 has changed once more, and is judged as it was: refused %v, holds %v", refused, k.Holds(st, 0))
	}
	c.changes(t, true, "n1") // of this nothing was asked for now
	if k.Holds(st, 1) || !k.Holds(st, 2) {
		t.Errorf("what is kept holds of n1 %v, of n2 %v", k.Holds(st, 1), k.Holds(st, 2))
	}
	c.judges(t, st, subjects[0], "n0", "n1") // for another pod
}

// Nobody knows which nodes have changed while there was no stream.
func TestNothingHoldsBeyondAStreamOfPlacements(t *testing.T) {
	c := newChanging(t)
	st, subjects := world(t, len(all))
	k := c.judges(t, st, subjects[0], all...)
	if !k.Holds(st, 0) {
		t.Error("nothing has changed, and nothing holds")
	}
	c.host.EndPlacing(math.MaxInt64)
	if k.Holds(st, 0) || len(c.known(t, k, st, subjects[0])) > 0 {
		t.Error("the stream has ended, and what was said holds")
	}
	k.Collect(st, subjects[0], []cluster.NodeIndex{0, 1, 2, 3})
	if err := k.Exchange(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := c.calls(); !slices.Equal(got, all) {
		t.Errorf("it was asked about %v", got)
	}
	c.judges(t, st, subjects[0], all...) // a stream has begun
	c.judges(t, st, subjects[0])
}

// What a service says is bounded, and what is more than that counts as all.
func TestManyNodesThatHaveChangedAreAll(t *testing.T) {
	st, _ := world(t, len(all))
	names := func(n int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprint("unknown-", i))
		}
		return out
	}
	for _, tt := range []struct {
		what  string
		hears func(*changes)
		want  string // whether what was asked before holds, of each node
	}{
		{"nothing", func(c *changes) { c.hear(nil, false) }, "[true true true true]"},
		{"one", func(c *changes) { c.hear([]string{"n2"}, false) }, "[true true false true]"},
		{"names that no node has", func(c *changes) { c.hear([]string{"", "n", strings.Repeat("n", 1<<20)}, false) }, "[true true true true]"},
		{"as many as are kept", func(c *changes) { c.hear(append(names(mostChanged-1), "n0"), false) }, "[false true true true]"},
		{"the same again", func(c *changes) { c.hear(names(mostChanged), false); c.hear(names(mostChanged), false) }, "[true true true true]"},
		{"one more", func(c *changes) { c.hear(names(mostChanged), false); c.hear([]string{"other"}, false) }, "[false false false false]"},
		{"all", func(c *changes) { c.hear(nil, true) }, "[false false false false]"},
	} {
		var c changes
		is := newSession(&limits{}, 1, nil)
		asked, behind := c.asks(5), int64(0)
		tt.hears(&c)
		if len(c.nodes) > mostChanged {
			t.Errorf("%s: %d names are kept", tt.what, len(c.nodes))
		}
		for name := range c.nodes {
			behind += int64(len(name))
		}
		if behind > mostChanged*maxNodeName {
			t.Errorf("%s: names of %d bytes are kept", tt.what, behind)
		}
		later := c.asks(5)
		is.notes(&c, st)
		var holds []bool
		for i := range cluster.NodeIndex(4) {
			holds = append(holds, !changedSince(asked, is.changed, is.allChanged, i))
			if changedSince(later, is.changed, is.allChanged, i) {
				t.Errorf("%s: what was asked behind it does not hold of node %d", tt.what, i)
			}
		}
		if got := fmt.Sprint(holds); got != tt.want {
			t.Errorf("%s: it holds %s, want %s", tt.what, got, tt.want)
		}
	}
}

// In one response, what has changed comes before which pods are worth trying.
func TestChangesAreHeardBeforeWhatIsWorthTrying(t *testing.T) {
	var heard []string
	is := &placeStream{
		calls:     make(map[int64]*call),
		changed:   func(nodes []string, all bool) { heard = append(heard, fmt.Sprint("changed ", nodes, all)) },
		activates: func(uids []string, now bool) { heard = append(heard, fmt.Sprint("tried ", uids, now)) },
	}
	for _, tt := range []struct {
		says *pluginv1.PlaceResponse
		want string
		err  string
	}{
		{&pluginv1.PlaceResponse{Wakes: []string{"u"}, Changes: []string{"n"}, Activates: []string{"v"}}, "[changed [n] false tried [v] true tried [u] false]", ""},
		{&pluginv1.PlaceResponse{Changes: []string{"n"}}, "[changed [n] false]", ""},
		{&pluginv1.PlaceResponse{AllChanged: true}, "[changed [] true]", ""},
		{&pluginv1.PlaceResponse{Changes: slices.Repeat([]string{"n"}, 1001)}, "[]", "its answer makes no sense: changes: 1001 nodes, want at most 1000"},
		{&pluginv1.PlaceResponse{}, "[]", "a response with id 0, to which there is no request"},
		{&pluginv1.PlaceResponse{Id: 7, AllChanged: true}, "[changed [] true]", "a response with id 7, to which there is no request"},
	} {
		heard = nil
		err := is.take(tt.says)
		if got := fmt.Sprint(heard); got != tt.want || (err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err {
			t.Errorf("%v: heard %s, want %s; %v, want %q", tt.says, got, tt.want, err, tt.err)
		}
	}
}
