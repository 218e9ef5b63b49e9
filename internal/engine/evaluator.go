package engine

import (
	"math/bits"
	"runtime"
	"sync"

	"github.com/berth-scheduler/berth/internal/cluster"
)

const (
	// spanNodes is how many nodes a range must have for each goroutine beyond the first.
	spanNodes = 4096
	// defaultMaxClasses bounds the cache. A class takes about 16 bytes per node once filtered and scored.
	defaultMaxClasses = 1024
)

// EvaluatorConfig says what an Evaluator may use.
type EvaluatorConfig struct {
	Parallelism int // goroutines per call, for ranges of more than 4096 nodes; 0 means GOMAXPROCS
	MaxClasses  int // classes to keep; the least recently used one goes; 0 means 1024
}

// Evaluator evaluates classes over the nodes of a state and keeps what it found, per class and node, for as long as
// the node does not change. A state at another address or of another epoch drops everything.
//
// It is safe for concurrent use, as long as nobody changes the state during a call. Calls about the same class wait
// for each other.
type Evaluator struct {
	config    EvaluatorConfig
	spanNodes int // the constant, but for tests

	mu      sync.Mutex
	st      *cluster.State
	epoch   cluster.Epoch
	clock   uint64 // counts uses
	classes map[cluster.ClassID]*class
}

// class is what an Evaluator knows of one class. Bit i of known says that verdicts[i] and feasible hold for node i as
// it is now; bit i of scored says it of groups[i] and scores[i].
type class struct {
	used uint64 // of Evaluator.clock; guarded by Evaluator.mu

	mu       sync.Mutex
	program  *program
	synced   cluster.Seq // known and scored hold for the nodes as they were at this seq
	known    cluster.Bitmap
	feasible cluster.Bitmap
	verdicts []Verdict
	scored   cluster.Bitmap
	groups   []groupID
	scores   []nodeScores
	raws     interner
}

// NewEvaluator returns an Evaluator that knows nothing yet.
func NewEvaluator(config EvaluatorConfig) *Evaluator {
	if config.Parallelism <= 0 {
		config.Parallelism = runtime.GOMAXPROCS(0)
	}
	if config.MaxClasses <= 0 {
		config.MaxClasses = defaultMaxClasses
	}
	return &Evaluator{config: config, spanNodes: spanNodes}
}

// class returns the entry of a class, its lock held and its program current; nil if the state has no such class.
func (e *Evaluator) class(st *cluster.State, id cluster.ClassID) *class {
	e.mu.Lock()
	if e.st != st || e.epoch != st.Version().Epoch {
		e.st, e.epoch, e.classes = st, st.Version().Epoch, make(map[cluster.ClassID]*class)
	}
	defined := st.Class(id)
	if defined == nil {
		delete(e.classes, id)
		e.mu.Unlock()
		return nil
	}
	c := e.classes[id]
	if c == nil {
		if len(e.classes) >= e.config.MaxClasses {
			e.evict()
		}
		c = new(class)
		e.classes[id] = c
	}
	e.clock++
	c.used = e.clock
	e.mu.Unlock()

	c.mu.Lock()
	if c.program == nil {
		c.program = compile(st, &defined.Spec)
	} else if c.program.stale(st, &defined.Spec) {
		p := compile(st, &defined.Spec)
		if !p.sameVerdicts(c.program) {
			clear(c.known)
		}
		if !p.sameScores(c.program) {
			clear(c.scored)
		}
		c.program = p
	}
	return c
}

func (e *Evaluator) evict() {
	var oldest cluster.ClassID
	least := ^uint64(0)
	for id, c := range e.classes {
		if c.used < least {
			oldest, least = id, c.used
		}
	}
	delete(e.classes, oldest)
}

// compiled returns the program of a class, nil if the state has no such class.
func (e *Evaluator) compiled(st *cluster.State, id cluster.ClassID) *program {
	c := e.class(st, id)
	if c == nil {
		return nil
	}
	defer c.mu.Unlock()
	return c.program
}

// sync forgets what was found of nodes that have changed since the last call.
func (c *class) sync(st *cluster.State) {
	seq := st.Version().Seq
	if seq == c.synced {
		return
	}
	n := &st.Nodes
	for w := range max(len(c.known), len(c.scored)) {
		if n.ModifiedWord[w] <= c.synced {
			continue
		}
		changed := uint64(0)
		for k, modified := range n.Modified[w*64 : min(w*64+64, n.Len())] {
			if modified > c.synced {
				changed |= 1 << k
			}
		}
		if w < len(c.known) {
			c.known[w] &^= changed
		}
		if w < len(c.scored) {
			c.scored[w] &^= changed
		}
	}
	c.synced = seq
}

// grow returns the column with at least n entries.
func grow[T any](column []T, n int) []T {
	if n <= len(column) {
		return column
	}
	return append(column, make([]T, n-len(column))...)
}

// words is a half-open interval of 64-node words of the node table.
type words struct{ first, end int }

// align returns the words of a range, which is clipped to the nodes the state has.
func align(r cluster.Range, nodes int) (words, cluster.Range) {
	r = cluster.Range{First: max(r.First, 0) &^ 63, End: max(r.End, 0)}.Clip(nodes)
	if r.First >= r.End {
		return words{}, cluster.Range{}
	}
	return words{int(r.First) / 64, (int(r.End) + 63) / 64}, r
}

// mask returns the bits of word w that are in the range.
func mask(w int, r cluster.Range) uint64 {
	if rest := int(r.End) - w*64; rest < 64 {
		return 1<<max(rest, 0) - 1
	}
	return ^uint64(0)
}

// split cuts words for several goroutines, if there are enough.
func (e *Evaluator) split(ws words) []words {
	n := ws.end - ws.first
	parts := max(1, min(e.config.Parallelism, (n*64+e.spanNodes-1)/e.spanNodes))
	spans := make([]words, parts)
	for k := range spans {
		spans[k] = words{ws.first + n*k/parts, ws.first + n*(k+1)/parts}
	}
	return spans
}

// each runs work for every span, the first in the calling goroutine, and waits for all.
func each(spans []words, work func(k int, span words)) {
	var wg sync.WaitGroup
	for k := 1; k < len(spans); k++ {
		wg.Go(func() { work(k, spans[k]) })
	}
	work(0, spans[0])
	wg.Wait()
}

// Feasibility is which nodes of a range can run a class.
type Feasibility struct {
	// Feasible is a copy. Its bit 0 is the range's first index.
	Feasible      cluster.Bitmap
	FeasibleCount int32
	Nodes         int32          // how many nodes the range has
	Verdicts      []VerdictCount // of the others, by plugin in kube-scheduler's order, then by reason
}

// Filter returns which nodes of a range can run a class, evaluating only nodes that have changed since it was last
// asked. r.First must be a multiple of 64; if not, the range begins at the multiple below. False: the state has no such
// class.
func (e *Evaluator) Filter(st *cluster.State, id cluster.ClassID, r cluster.Range) (Feasibility, bool) {
	c := e.class(st, id)
	if c == nil {
		return Feasibility{}, false
	}
	defer c.mu.Unlock()
	c.sync(st)
	ws, r := align(r, st.Nodes.Len())
	whole := (st.Nodes.Len() + 63) / 64
	c.known, c.feasible = grow(c.known, whole), grow(c.feasible, whole)
	c.verdicts = grow(c.verdicts, whole*64)

	out := Feasibility{Feasible: make(cluster.Bitmap, ws.end-ws.first)}
	spans := e.split(ws)
	parts := make([]filterPart, len(spans))
	each(spans, func(k int, span words) { parts[k] = c.filter(st, span, r, out.Feasible[span.first-ws.first:]) })
	verdicts := make([][]VerdictCount, len(parts))
	for k := range parts {
		out.Nodes += parts[k].nodes
		out.FeasibleCount += parts[k].feasible
		verdicts[k] = parts[k].verdicts
	}
	out.Verdicts = MergeVerdicts(verdicts...)
	return out, true
}

type filterPart struct {
	nodes, feasible int32
	verdicts        []VerdictCount
}

// filter evaluates what is not known of a span and counts. Spans of one class may run at the same time.
func (c *class) filter(st *cluster.State, span words, r cluster.Range, out cluster.Bitmap) filterPart {
	var part filterPart
	var t tally
	for w := span.first; w < span.end; w++ {
		live := st.Nodes.Live[w] & mask(w, r)
		for todo := live &^ c.known[w]; todo != 0; todo &= todo - 1 {
			i := cluster.NodeIndex(w*64 + bits.TrailingZeros64(todo))
			c.verdicts[i] = c.program.filter(st, i)
			c.feasible.Put(i, c.verdicts[i].Feasible())
		}
		c.known[w] |= live
		feasible := live & c.feasible[w]
		out[w-span.first] = feasible
		part.nodes += int32(bits.OnesCount64(live))
		part.feasible += int32(bits.OnesCount64(feasible))
		for bad := live &^ feasible; bad != 0; bad &= bad - 1 {
			i := cluster.NodeIndex(w*64 + bits.TrailingZeros64(bad))
			t.add(c.verdicts[i], i)
		}
	}
	part.verdicts = t.verdicts(st, c.program)
	return part
}

// Node returns the verdict on one node as it is now. False: there is no such class, or no such node.
func (e *Evaluator) Node(st *cluster.State, id cluster.ClassID, i cluster.NodeIndex) (Verdict, bool) {
	p := e.compiled(st, id)
	if p == nil || !st.Nodes.Live.Has(i) {
		return 0, false
	}
	return p.filter(st, i), true
}

// Explain spells out a verdict that Node returned for a class and a node. It is empty for a feasible node, and if
// the class is gone.
func (e *Evaluator) Explain(st *cluster.State, id cluster.ClassID, v Verdict, i cluster.NodeIndex) []VerdictCount {
	p := e.compiled(st, id)
	if p == nil || v.Feasible() || !st.Nodes.Live.Has(i) || !p.explains(v) {
		return nil
	}
	var t tally
	t.add(v, i)
	return MergeVerdicts(t.verdicts(st, p))
}

// explains reports whether the verdict can be of this program.
func (p *program) explains(v Verdict) bool {
	return v.code() > 0 && v.code() < codeFit || v.code() == codeFit && bits.Len64(v.insufficient()) <= len(p.fit.names)
}
