package pending

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/ingest"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/wire"
)

// A month of churn is -churn.pods=10000000 -churn.nodes=100000: make churn.
var (
	churnPods  = flag.Int("churn.pods", 10_000, "how many pods come and go")
	churnNodes = flag.Int("churn.nodes", 1000, "how many nodes come and go")
)

// What there is at any time.
const (
	liveNodes   = 100
	livePods    = 1000
	liveObjects = 20 // namespaces, services, budgets of each
	churnBatch  = 64
)

// Pods and nodes come and go, each with names that nobody has had before: of images, labels, resources, taints, namespaces,
// services, budgets, nodes, priorities. What there is at a time is always as much, and so must be what is kept.
func TestChurnEndsWithTheMemoryItBeganWith(t *testing.T) {
	c := newChurn(t)
	perNode := max(1, *churnPods / *churnNodes)
	c.run(25*livePods, perNode) // until everything has come to its usual size
	first := c.measure("warmed up")
	var heaps []float64
	var last kept
	for tenth := range 10 {
		c.run(*churnPods/10, perNode)
		last = c.measure(fmt.Sprintf("%d %% of %d pods", 10*(tenth+1), *churnPods))
		heaps = append(heaps, last.heap)
	}
	for name, n := range last.entries {
		if was := first.entries[name]; n > 3*was+64 {
			t.Errorf("%s: %d at the beginning, %d at the end", name, was, n)
		}
	}
	// Tables grow until they are swept: what counts is the least that is ever in use, and that shows only after a while.
	before, after := min(first.heap, heaps[0], heaps[1]), min(heaps[7], heaps[8], heaps[9])
	t.Logf("the heap in use: %.1f MiB, then %.1f MiB", before, after)
	if *churnPods >= 100_000 && after > 1.10*before {
		t.Errorf("the heap in use has grown from %.1f to %.1f MiB", before, after)
	}
	if c.copied.Digest() != c.told.Digest() {
		t.Errorf("the replica's digest is %x, the ledger's %x", c.copied.Digest(), c.told.Digest())
	}
	if c.bound == 0 || c.unschedulable == 0 {
		t.Errorf("%d pods were bound and %d unschedulable", c.bound, c.unschedulable)
	}
}

// churn is a ledger, a replica of it with what the queue and a worker fold from it, and what there is in the cluster.
type churn struct {
	t            *testing.T
	rng          *rand.Rand
	now          time.Time
	told, copied *cluster.State
	fold         *ingest.Fold
	queue        *Queue
	judge        *engine.Evaluator
	worker       *engine.Evaluator

	came                       int // pods
	pods                       []string
	nodes                      []string
	namespaces                 []string
	bound, unschedulable, node int
}

func newChurn(t *testing.T) *churn {
	c := &churn{
		t: t, rng: rand.New(rand.NewPCG(1, 2)), now: time.Unix(1_700_000_000, 0),
		told: cluster.New(cluster.Version{Epoch: 1}), copied: cluster.New(cluster.Version{Epoch: 1}),
		judge: engine.NewEvaluator(engine.EvaluatorConfig{Parallelism: 1}), worker: engine.NewEvaluator(engine.EvaluatorConfig{Parallelism: 1}),
	}
	c.queue = NewQueue(0, evaluating{c.judge})
	c.fold = ingest.New(c.told, c.apply, ingest.Telling(wire.Tellable, func(source.Unsupported) {}))
	c.queue.Reset(c.now, c.copied)
	c.must(c.apply(cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{engine.DefaultProfile("default-scheduler")}}}))
	for range liveNodes {
		c.addNode()
	}
	return c
}

func (c *churn) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *churn) apply(d cluster.Delta) error {
	if err := c.told.Apply(d); err != nil {
		return err
	}
	b, err := wire.Encode(d)
	if err != nil {
		return err
	}
	if d, err = wire.Decode(b); err != nil {
		return err
	}
	if err := c.copied.Apply(d); err != nil {
		return err
	}
	c.queue.Apply(c.now, c.copied, d)
	return nil
}

func (c *churn) tell(e source.Event) {
	c.t.Helper()
	c.must(c.fold.Observe(e))
}

// addNode adds a node like no other: of its name, its images, a resource that only it has.
func (c *churn) addNode() {
	c.node++
	name := fmt.Sprintf("node-%d", c.node)
	n := cluster.Node{
		Name: name,
		Labels: []cluster.Label{
			{Key: "kubernetes.io/hostname", Value: name}, {Key: "pool", Value: fmt.Sprint("pool-", c.node/50)},
			{Key: "topology.kubernetes.io/zone", Value: fmt.Sprint("zone-", c.node/100%3)},
		},
		Allocatable: []cluster.Quantity{{Name: "cpu", Value: 16000}, {Name: "memory", Value: 64 << 30}, {Name: "pods", Value: 110}},
	}
	if c.node%10 == 0 {
		n.Allocatable = slices.Insert(n.Allocatable, 1, cluster.Quantity{Name: fmt.Sprint("example.com/has-", c.node), Value: 8})
		n.Taints = []cluster.Taint{{Key: fmt.Sprint("taint-", c.node), Effect: "PreferNoSchedule"}}
	}
	for k := range 5 {
		n.Images = append(n.Images, cluster.Image{Names: []string{fmt.Sprintf("image-%d:%d", c.node, k)}, Size: 1 << 28})
	}
	c.tell(source.Event{Kind: source.NodeSet, Node: n})
	c.nodes = append(c.nodes, name)
}

// replaceNode takes the oldest node away, and adds another. Its pods are deleted a while later.
func (c *churn) replaceNode() {
	c.tell(source.Event{Kind: source.NodeGone, Node: cluster.Node{Name: c.nodes[0]}})
	c.nodes = append([]string{}, c.nodes[1:]...)
	c.addNode()
}

// replaceObjects takes the oldest namespace, service and budget away, and adds others.
func (c *churn) replaceObjects() {
	name := fmt.Sprint("namespace-", c.came)
	selector := cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "app", Operator: "In", Values: []string{name}}}}
	c.tell(source.Event{Kind: source.NamespaceSet, Namespace: name, Labels: []cluster.Label{{Key: "team", Value: name}}})
	c.tell(source.Event{Kind: source.SelectorSet, Selector: source.Selector{Kind: cluster.KindService, Namespace: name, Name: name, Selector: selector}})
	c.tell(source.Event{Kind: source.SelectorSet, Selector: source.Selector{Kind: cluster.KindReplicaSet, Namespace: name, Name: name, Selector: selector}})
	c.tell(source.Event{Kind: source.ObjectSet, Object: &cluster.Budget{Namespace: name, Name: name, Selector: selector, Allowed: 1}})
	if c.namespaces = append(c.namespaces, name); len(c.namespaces) > liveObjects {
		old := c.namespaces[0]
		c.namespaces = append([]string{}, c.namespaces[1:]...)
		c.tell(source.Event{Kind: source.ObjectGone, Key: cluster.ObjectKey{Kind: cluster.BudgetKind, Namespace: old, Name: old}})
		c.tell(source.Event{Kind: source.SelectorGone, Selector: source.Selector{Kind: cluster.KindService, Namespace: old, Name: old}})
		c.tell(source.Event{Kind: source.SelectorGone, Selector: source.Selector{Kind: cluster.KindReplicaSet, Namespace: old, Name: old}})
		c.tell(source.Event{Kind: source.NamespaceGone, Namespace: old})
	}
}

// addPod adds a pod. One of a hundred wants what nobody has, as many are of a class of their own.
func (c *churn) addPod() {
	c.came++
	name := fmt.Sprint("pod-", c.came)
	namespace := c.namespaces[c.rng.IntN(len(c.namespaces))]
	p := source.Pod{
		Pod: cluster.Pod{UID: "uid-" + name, Name: name, Namespace: namespace, Priority: int32(c.came % 7), Created: c.now.UnixNano()},
		Class: cluster.ClassSpec{
			SchedulerName: "default-scheduler", Images: []string{fmt.Sprint("app-", c.came/400)}, ImageContainers: 1,
			Requests:      []cluster.Quantity{{Name: "cpu", Value: 100}, {Name: "memory", Value: 1 << 28}},
			ScoreRequests: []cluster.Quantity{{Name: "cpu", Value: 100}, {Name: "memory", Value: 1 << 28}},
			NonZeroCPU:    100, NonZeroMemory: 1 << 28,
		},
		Labels: cluster.LabelSet{
			Namespace: namespace, Labels: []cluster.Label{{Key: "app", Value: namespace}, {Key: "revision", Value: fmt.Sprint(c.came / 20)}},
		},
	}
	if c.came%16 > 0 { // no service selects it
		p.Labels.Labels[0].Value = "other"
	}
	switch {
	case c.came%1000 == 7:
		p.Priority = int32(c.came)
	case c.came%128 == 1: // it wants what nobody has
		p.Class.Requests = slices.Insert(p.Class.Requests, 1, cluster.Quantity{Name: fmt.Sprint("example.com/wants-", c.came), Value: 1})
	case c.came%128 == 32:
		p.Class.AntiAffinity = []cluster.PodTerm{{
			TopologyKey: "kubernetes.io/hostname", Namespaces: []string{namespace},
			NamespaceSelector: cluster.LabelSelector{Nothing: true},
			Selector:          cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "revision", Operator: "In", Values: []string{fmt.Sprint(c.came / 20)}}}},
		}}
	case c.came%128 == 3:
		p.Class.NodeSelector = []cluster.Label{{Key: "pool", Value: fmt.Sprint("pool-", c.node/50)}}
	case c.came%128 == 4:
		p.Class.Tolerations = []cluster.Toleration{{Key: fmt.Sprint("taint-", c.came), Operator: "Exists"}}
	case c.came%128 == 5:
		p.Class.Images = []string{"a\xff" + name}
	case c.came%128 == 6:
		p.Nominated = c.nodes[len(c.nodes)-1]
	}
	c.tell(source.Event{Kind: source.PodSet, Pod: p})
	if c.pods = append(c.pods, p.UID); len(c.pods) > livePods {
		c.tell(source.Event{Kind: source.PodGone, Pod: source.Pod{Pod: cluster.Pod{UID: c.pods[0]}}})
		if c.pods = c.pods[1:]; cap(c.pods) < livePods+2 {
			c.pods = append(make([]string, 0, 2*livePods), c.pods...)
		}
	}
}

// run lets so many pods come, and a node be replaced for every so many.
func (c *churn) run(pods, perNode int) {
	for k := range pods {
		if c.came%1000 == 0 {
			c.replaceObjects()
		}
		if k%perNode == 0 {
			c.replaceNode()
		}
		c.addPod()
		if c.came%churnBatch == 0 {
			c.schedule()
		}
	}
}

// schedule places a batch, or makes it unschedulable.
func (c *churn) schedule() {
	c.now = c.now.Add(250 * time.Millisecond)
	c.queue.Recheck(c.now, c.copied)
	all := cluster.Range{End: cluster.NodeIndex(c.copied.Nodes.Len())}
	for _, a := range c.queue.Pop(c.now, churnBatch) {
		found, ok := c.worker.Filter(c.copied, a.Subject, all)
		row := c.told.Pod(a.ID)
		if !ok || row == nil {
			c.t.Fatalf("pod %s is popped, and is gone", a.UID)
		}
		if found.FeasibleCount == 0 || c.copied.Class(row.Class).Spec.Unsupported != "" {
			c.unschedulable++
			c.queue.Reject(c.now, c.copied, a, Diagnosis{Verdicts: found.Verdicts, Message: "no", Version: c.copied.Version()})
			continue
		}
		groups, _ := c.worker.Score(c.copied, a.Subject, all, found.Eligible, 4)
		node := groups[0].Nodes[c.rng.IntN(len(groups[0].Nodes))].Node
		c.must(c.apply(cluster.PodAssumed{ID: a.ID, Node: node, Attempt: a.Number}))
		c.must(c.apply(cluster.PodBound{ID: a.ID}))
		c.bound++
	}
}

// kept is what is kept: entries of tables, and MiB of heap in use.
type kept struct {
	entries map[string]int
	heap    float64
}

func (c *churn) measure(when string) kept {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	k := kept{heap: float64(m.HeapAlloc) / (1 << 20), entries: make(map[string]int)}
	for name, st := range map[string]*cluster.State{"ledger": c.told, "replica": c.copied} {
		k.entries[name+": columns"] = st.Resources()
		k.entries[name+": symbols"] = st.Symbols.Len()
		k.entries[name+": classes"] = len(st.Classes())
		k.entries[name+": label sets"] = len(st.LabelSets())
		k.entries[name+": nodes"] = st.Nodes.Len()
		k.entries[name+": objects"] = len(slices.Collect(st.Objects()))
	}
	k.entries["fold: classes"], k.entries["fold: label sets"] = c.fold.Known()
	k.entries["worker: signatures"], k.entries["worker: subjects"] = c.worker.Known()
	k.entries["queue: signatures"], k.entries["queue: subjects"] = c.judge.Known()
	k.entries["queue: pods"] = len(c.queue.pods)
	k.entries["queue: rejections"] = len(c.queue.rejections)
	k.entries["queue: unschedulable subjects"] = c.queue.local.len() + c.queue.crossNode.len()
	k.entries["queue: listeners"] = c.queue.listeners.len()
	k.entries["queue: notes"] = len(c.queue.notes.happenings) + len(c.queue.notes.moved) + c.queue.notes.unsure.len() + c.queue.own.len()
	k.entries["queue: nominees"] = c.queue.nominees.len()
	k.entries["queue: looks"] = len(c.queue.helpful)
	c.t.Logf("%s: %.1f MiB, bound %d, unschedulable %d, %v", when, k.heap, c.bound, c.unschedulable, k.entries)
	return k
}
