package binder

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
)

// What may happen to a pod p of 500 milli-CPU, and to the node a, at any moment.
var changes = map[string][]any{
	"nothing":            nil,
	"new labels":         {app(pod("p", 500), "web")},
	"larger requests":    {pod("p", 600)},
	"another toleration": {tolerant(pod("p", 500))},
	"another priority":   {prior(pod("p", 500), 5)},
	"a gate":             {gatedPod(pod("p", 500))},
	"its deletion":       {deletingPod(pod("p", 500))},
	"its end":            {gone("p")},
	"a replacement":      {gone("p"), renamed(pod("new", 500), "p")},
	"bound elsewhere":    {on(pod("p", 500), "b")},
	"node gone":          {source.Event{Kind: source.NodeGone, Node: cluster.Node{Name: "a"}}},
	"node cordoned":      {cordoned(node("a", 2000))},
	"node tainted":       {tainted(node("a", 2000))},
	"node shrunk":        {node("a", 400)},
}

func tolerant(p source.Pod) source.Pod {
	p.Class.Tolerations = []cluster.Toleration{{Key: "k", Operator: "Exists"}}
	return p
}

func gatedPod(p source.Pod) source.Pod {
	p.Gates = []string{"quota"}
	return p
}

func deletingPod(p source.Pod) source.Pod {
	p.Deleting = true
	return p
}

func renamed(p source.Pod, name string) source.Pod {
	p.Name = name
	return p
}

func cordoned(n cluster.Node) cluster.Node {
	n.Unschedulable = true
	return n
}

func tainted(n cluster.Node) cluster.Node {
	n.Taints = []cluster.Taint{{Key: "k", Effect: "NoSchedule"}}
	return n
}

// Like kube-scheduler, the commit does not place what is not there any more, or on a node that does not fit any more. A
// pod that asks for something else is evaluated again.
func TestWhatChangesWhileAPodIsInFlight(t *testing.T) {
	for name, want := range map[string]string{
		"nothing":            "p: assumed on a",
		"new labels":         "p: assumed on a", // nobody selects them
		"larger requests":    "p: gone",
		"another toleration": "p: gone",
		"another priority":   "p: assumed on a", // nobody is nominated
		"a gate":             "p: gone",
		"its deletion":       "p: gone",
		"its end":            "p: gone",
		"a replacement":      "p: gone",
		"bound elsewhere":    "p: already placed on b",
		"node gone":          "p: assumed on b",
		"node cordoned":      "p: assumed on b",
		"node tainted":       "p: assumed on b",
		"node shrunk":        "p: assumed on b",
	} {
		t.Run(name, func(t *testing.T) {
			term := pureTerm(t, newFakeSource())
			observe(t, term, node("a", 2000), node("b", 1000), pod("p", 500))
			st := term.ledger.state
			req := requestOf(st, evaluate(st, 10), 1, "p")
			observe(t, term, changes[name]...)
			if diff := cmp.Diff([]string{want}, commitPods(t, term, req)); diff != "" {
				t.Errorf("outcome (-want +got):\n%s", diff)
			}
		})
	}
}

// settled is what has become of an assumed pod.
type settled struct {
	Before string // its phase before the bind is tried
	Sent   bool   // the bind
	After  string
	Taken  int64 // of a's CPU in the end
}

// Like in kube-scheduler, only the end of the pod takes the placement back, and the start of its deletion does so at
// once: the API server binds no pod that is being deleted. Unlike there, what the pod asks for counts as soon as it is
// told.
func TestWhatChangesWhileAPodIsAssumed(t *testing.T) {
	bound := settled{"assumed on a", true, "bound on a", 500}
	for name, want := range map[string]settled{
		"nothing":            bound,
		"new labels":         bound,
		"larger requests":    {"assumed on a", true, "bound on a", 600},
		"another toleration": bound,
		"another priority":   bound,
		"a gate":             bound,
		"its deletion":       {"pending", false, "pending", 0},
		"its end":            {"gone", false, "gone", 0},
		"a replacement":      {"gone", false, "gone", 0},
		"bound elsewhere":    {"bound on b", false, "bound on b", 0},
		"node gone":          {"assumed on a", true, "bound on a", 0},
		"node cordoned":      bound,
		"node tainted":       bound,
		"node shrunk":        bound,
	} {
		t.Run(name, func(t *testing.T) {
			src := newFakeSource()
			term := pureTerm(t, src)
			src.setPod(pod("p", 500))
			observe(t, term, node("a", 2000), node("b", 1000), pod("p", 500))
			in := assume(t, term, "p", "a")
			observe(t, term, changes[name]...)
			got := settled{Before: where(term, "p")}
			if err := term.bind(t.Context(), []*placement{in}); err != nil {
				t.Fatal(err)
			}
			got.Sent, got.After, got.Taken = len(src.tried("p")) > 0, where(term, "p"), taken(term, "a")
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			isSettled(t, term, in)
		})
	}
}

// The same while the bind is under way: what the API server then answers, and what the watch tells, agree at last.
func TestWhatChangesWhileAPodIsBeingBound(t *testing.T) {
	for name, c := range map[string]struct {
		answer source.Result
		want   string
		taken  int64
	}{
		"nothing":         {source.BindDone, "bound on a", 500},
		"new labels":      {source.BindDone, "bound on a", 500},
		"larger requests": {source.BindDone, "bound on a", 600},
		"its deletion":    {source.BindGone, "pending", 0},
		"its end":         {source.BindGone, "gone", 0},
		"a replacement":   {source.BindGone, "gone", 0},
		"bound elsewhere": {source.BindElsewhere, "bound on b", 0},
		"node gone":       {source.BindDone, "bound on a", 0},
		"node cordoned":   {source.BindDone, "bound on a", 500},
		"node tainted":    {source.BindDone, "bound on a", 500},
		"node shrunk":     {source.BindDone, "bound on a", 500},
	} {
		for _, order := range []string{"told before the answer", "told behind the answer"} {
			t.Run(name+"/"+order, func(t *testing.T) {
				src := newFakeSource()
				term := pureTerm(t, src)
				src.setPod(pod("p", 500))
				observe(t, term, node("a", 2000), node("b", 1000), pod("p", 500))
				in := assume(t, term, "p", "a")
				src.answers(func(source.Binding) source.Outcome {
					if order == "told before the answer" {
						observe(t, term, changes[name]...)
					}
					return source.Outcome{Result: c.answer, Err: errFake}
				})
				if err := term.bind(t.Context(), []*placement{in}); err != nil {
					t.Fatal(err)
				}
				if order == "told behind the answer" {
					observe(t, term, changes[name]...)
				}
				record(t, term)
				if got := where(term, "p"); got != c.want {
					t.Errorf("p is %s, want %s", got, c.want)
				}
				if got := taken(term, "a"); got != c.taken {
					t.Errorf("%d milli-CPU of a are taken, want %d", got, c.taken)
				}
				if name == "a replacement" && where(term, "new") != "pending" {
					t.Errorf("the replacement is %s", where(term, "new"))
				}
				isSettled(t, term, in)
			})
		}
	}
}

// taken returns the CPU of a node that is taken, 0 if there is no such node.
func taken(term *term, name string) (sum int64) {
	term.ledger.Snapshot(func(st *cluster.State) {
		if i := st.Nodes.ByName(name); i != cluster.NoNode {
			sum = st.Nodes.Requested[cluster.CPU][i]
		}
	})
	return sum
}

// isSettled checks that nothing is left of a bind.
func isSettled(t *testing.T, term *term, in *placement) {
	t.Helper()
	finished := record(t, term).finished
	if n := term.unbound.count(); n != 0 || !slices.Contains(finished, in.batch) {
		t.Errorf("%d count as unbound; finished batches: %v", n, finished)
	}
}

func TestPodWhoseDeletionHasBegunIsNotTakenOver(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("a", 1000), deletingPod(pod("p", 100)))
	taken, err := term.adopt([]coord.StoredBatch{{Batch: coord.Batch{ID: 1, Intents: []coord.Intent{meant("p", "a")}}}})
	if len(taken) > 0 || err != nil {
		t.Errorf("adopted: %v, %v", taken, err)
	}
	if got := where(term, "p"); got != "pending" {
		t.Errorf("p is %s", got)
	}
}

func TestBindOfAPodWhoseDeletionHasBegunIsGone(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("a", 1000), pod("p", 500))
	in := assume(t, term, "p", "a")
	observe(t, term, changes["its deletion"]...)
	if got := term.ledger.told([]*placement{in}); got[0] != source.BindGone {
		t.Errorf("told: %s", resultName(got[0]))
	}
}

// A node that comes back has the pods that were bound, or are still assumed, there.
func TestNodeThatComesBackHasItsPods(t *testing.T) {
	term := pureTerm(t, newFakeSource())
	observe(t, term, node("a", 1000), pod("p", 300), on(pod("q", 200), "a"))
	assume(t, term, "p", "a")
	observe(t, term, changes["node gone"]...)
	observe(t, term, node("a", 1000))
	if got := taken(term, "a"); got != 500 {
		t.Errorf("%d milli-CPU are taken, want 500", got)
	}
}
