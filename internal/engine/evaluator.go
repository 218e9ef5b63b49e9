package engine

import (
	"crypto/sha256"
	"maps"
	"math/bits"
	"runtime"
	"sync"

	"github.com/berth-scheduler/berth/internal/cluster"
)

const (
	// spanNodes is how many nodes a range must have for each goroutine beyond the first.
	spanNodes = 4096
	// reserve says how many nodes of each group are kept in order: so many times as many as a caller asks for, and 1 of 128 of all
	// nodes besides. The more are kept, the more calls can be answered before all nodes have to be looked at again.
	reserve = 20
	// defaultMaxEvaluations bounds the cache. An evaluation takes about 16 bytes per node once filtered and scored, 24 for each node
	// that is kept in order, and 24 per node for each priority whose pods have asked for dry runs.
	defaultMaxEvaluations = 1024
)

// EvaluatorConfig says what an Evaluator may use.
type EvaluatorConfig struct {
	Parallelism    int // goroutines per call, for ranges of more than 4096 nodes; 0 means GOMAXPROCS
	MaxEvaluations int // evaluations to keep; the least recently used one goes; 0 means 1024
}

// Evaluator evaluates classes over the nodes of a state. What it finds it keeps, per signature and node, until the node changes. When it is
// asked about a state at another address or of another epoch, it drops everything first.
//
// It is safe for concurrent use, as long as nobody changes the state during a call. Calls about the same signature wait
// for each other.
type Evaluator struct {
	config    EvaluatorConfig
	spanNodes int // these two are the constants, but for tests
	reserve   int

	mu          sync.Mutex
	st          *cluster.State
	epoch       cluster.Epoch
	clock       uint64 // counts uses
	evaluations map[Signature]*evaluation

	relations map[subjectKey]*relations
	budgets   budgets

	// When there are so many, those that the state does not have any more are dropped.
	sweepEvaluations, sweepRelations int
}

// minSwept is how many entries a table has before anybody looks for those that are of no use any more.
const minSwept = 64

// Known returns how many signatures and how many subjects the Evaluator keeps something of.
func (e *Evaluator) Known() (signatures, subjects int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.evaluations), len(e.relations)
}

// evaluation is what an Evaluator knows of the pods of one signature.
type evaluation struct {
	signature Signature
	used      uint64 // of Evaluator.clock; guarded by Evaluator.mu
	budgets   *budgets

	mu sync.Mutex
	found
}

// found is what has been found about a signature. Its zero value is nothing.
//
// If bit i of known is set, verdicts[i] and bit i of feasible hold for node i as it was at synced. If bit i of scored is set, so do
// groups[i] and scores[i].
type found struct {
	program  *program
	relation *relations
	topology *topology   // nil if other pods do not matter, or if they matter in too many ways
	overflow bool        // it is the latter
	keys     cluster.Seq // leftOut is of the keys that nodes had at that State.KeysModified
	leftOut  [sha256.Size]byte
	images   imageScores // as of the last call
	counts   profileCounts
	synced   cluster.Seq // of the state, when sync was last called
	known    cluster.Bitmap
	feasible cluster.Bitmap
	verdicts []Verdict
	scored   cluster.Bitmap
	groups   []groupID
	scores   []nodeScores
	raws     interner
	rankings rankings
	dryRuns  map[int32]*dryRuns // by priority, once somebody has asked
	failing  failing
	grouped  uint64 // topology.rebuilt when groups were found: they name profiles as of then
}

// NewEvaluator returns an Evaluator that knows nothing yet.
func NewEvaluator(config EvaluatorConfig) *Evaluator {
	if config.Parallelism <= 0 {
		config.Parallelism = runtime.GOMAXPROCS(0)
	}
	if config.MaxEvaluations <= 0 {
		config.MaxEvaluations = defaultMaxEvaluations
	}
	return &Evaluator{config: config, spanNodes: spanNodes, reserve: reserve}
}

// follow drops everything if the state is another one. The Evaluator's lock is held.
func (e *Evaluator) follow(st *cluster.State) {
	if e.st != st || e.epoch != st.Version().Epoch {
		e.st, e.epoch, e.evaluations, e.relations = st, st.Version().Epoch, make(map[Signature]*evaluation), nil
		e.budgets.forget() // or the old state would be kept until somebody asks about the new one's
		e.sweepEvaluations, e.sweepRelations = minSwept, minSwept
	}
}

// with calls f with the evaluation of a subject's signature: locked, its program current and its counts up to date. False: the state
// has no such class, and f was not called.
func (e *Evaluator) with(st *cluster.State, s Subject, f func(c *evaluation)) bool {
	return e.withFilters(st, s, func(c *evaluation) {
		c.syncCounts(st)
		f(c)
	})
}

// withFilters is with, but counts that only score are not brought up to date.
func (e *Evaluator) withFilters(st *cluster.State, s Subject, f func(c *evaluation)) bool {
	c, r := e.lookUp(st, s)
	if c == nil {
		return false
	}
	c.locked(func() {
		c.update(st, &st.Class(s.Class).Spec, r)
		f(c)
	})
	return true
}

// locked calls f under the evaluation's lock. If f panics, what was found may be half of something, and is dropped: whoever comes next
// finds it anew.
func (c *evaluation) locked(f func()) {
	c.mu.Lock()
	whole := false
	defer func() {
		if !whole {
			c.found = found{}
		}
		c.mu.Unlock()
	}()
	f()
	whole = true
}

// update makes the program current, and with it how other pods matter and the counts that filter.
func (c *evaluation) update(st *cluster.State, spec *cluster.ClassSpec, r *relations) {
	if c.program == nil {
		c.program = compile(st, spec, r.volumes)
		c.failing = failing{}
	} else if c.program.stale(st, spec) {
		p := compile(st, spec, r.volumes)
		if c.failing.refuses() || !p.same(c.program) {
			c.forgetNodes()
		}
		c.program = p
		c.failing = failing{}
	}
	if c.failing.own == nil && c.program.mayFail() {
		c.failing = failing{own: c.program, synced: -1}
	}
	c.images.sync(st, c.program)
	c.relate(st, spec, r)
	if c.overflow && c.program.unsupported == "" {
		p := *c.program
		p.unsupported, p.unsupportedPlugin = "pod has too many topology constraints and affinity terms", relatingPlugins()[0].Name
		c.program = &p
		c.forgetNodes()
	}
	if c.topology.filters() {
		c.syncCounts(st)
	}
	if c.failing.own != nil && !c.overflow {
		c.fail(st)
	}
}

// syncCounts brings what other pods say up to date, if they matter.
func (c *evaluation) syncCounts(st *cluster.State) {
	if c.topology != nil {
		c.topology.sync(st, c.program)
	}
}

// lookUp returns the evaluation of a subject's signature, and how it relates to other pods; nil if the state has no such class.
func (e *Evaluator) lookUp(st *cluster.State, s Subject) (*evaluation, *relations) {
	e.mu.Lock()
	whole := false
	defer func() {
		if !whole {
			e.st = nil // all is found anew
		}
		e.mu.Unlock()
	}()
	e.follow(st)
	id, r := e.signature(st, s)
	if r == nil {
		maps.DeleteFunc(e.evaluations, func(k Signature, _ *evaluation) bool { return k.class == s.Class })
		whole = true
		return nil, nil
	}
	c := e.evaluations[id]
	if c == nil {
		if len(e.evaluations) >= e.sweepEvaluations {
			e.dropUnused(st)
			e.sweepEvaluations = len(e.evaluations) + len(e.evaluations)/4 + minSwept
		}
		if len(e.evaluations) >= e.config.MaxEvaluations {
			e.evict()
		}
		c = &evaluation{signature: id, budgets: &e.budgets}
		e.evaluations[id] = c
	}
	e.clock++
	c.used = e.clock
	whole = true
	return c, r
}

// relate makes what other pods matter to the class, unless it is there and still holds.
func (c *evaluation) relate(st *cluster.State, spec *cluster.ClassSpec, r *relations) {
	was := c.relation
	c.relation = r
	if !c.leavesOutOthers(st) && was != nil && was.profile == r.profile && (was.namespaces == r.namespaces || !c.topology.resolves()) {
		return
	}
	c.topology, c.overflow = newTopology(st, r, c.program, c.signature.priority)
	c.counts, c.dryRuns = profileCounts{}, nil
	c.forgetScores() // the groups are of other topology profiles
}

// leavesOutOthers reports whether it is other topology keys than before of which no node has a label.
func (c *evaluation) leavesOutOthers(st *cluster.State) bool {
	if c.keys == st.KeysModified {
		return false
	}
	sum := sha256.New()
	c.relation.leftOut(st, func(written []byte) { sum.Write(written) })
	was := c.leftOut
	c.keys, c.leftOut = st.KeysModified, [sha256.Size]byte(sum.Sum(nil))
	return c.leftOut != was
}

// dropUnused drops what is kept of signatures that no subject has any more: their class is gone, or what other pods match has changed since.
func (e *Evaluator) dropUnused(st *cluster.State) {
	used := make(map[Signature]bool, len(e.relations))
	for _, r := range e.relations {
		used[r.signature] = true
	}
	maps.DeleteFunc(e.evaluations, func(s Signature, _ *evaluation) bool {
		s.priority = 0 // relations know none
		return st.Class(s.class) == nil || !used[s]
	})
}

func (e *Evaluator) evict() {
	var oldest Signature
	least := ^uint64(0)
	for id, c := range e.evaluations {
		if c.used < least {
			oldest, least = id, c.used
		}
	}
	delete(e.evaluations, oldest)
}

// sync forgets what was found of nodes that have changed since the last call.
func (c *evaluation) sync(st *cluster.State) {
	seq := st.Version().Seq
	if seq == c.synced {
		return
	}
	st.ChangedSince(c.synced, c.forget)
	c.synced = seq
}

// forgetNodes forgets what was found of all nodes, and what follows from that: the program judges them otherwise than the one before.
func (c *evaluation) forgetNodes() {
	clear(c.known)
	c.forgetScores()
	c.counts, c.dryRuns = profileCounts{}, nil
}

// forget forgets what was found of a node.
func (c *evaluation) forget(i cluster.NodeIndex) {
	if int(i>>6) < len(c.known) {
		c.known.Clear(i)
	}
	if int(i>>6) < len(c.scored) {
		c.scored.Clear(i)
	}
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

// split cuts words for several goroutines, if so many nodes in them are enough work.
func (e *Evaluator) split(ws words, nodes int) []words {
	n := ws.end - ws.first
	parts := max(1, min(e.config.Parallelism, (nodes+e.spanNodes-1)/e.spanNodes))
	spans := make([]words, parts)
	for k := range spans {
		spans[k] = words{ws.first + n*k/parts, ws.first + n*(k+1)/parts}
	}
	return spans
}

// each runs work for every span, the first in the calling goroutine, and waits for all. A panic of one is the caller's.
func each(spans []words, work func(k int, span words)) {
	if len(spans) == 1 {
		work(0, spans[0])
		return
	}
	var wg sync.WaitGroup
	panics := make([]any, len(spans))
	do := func(k int) {
		defer func() { panics[k] = recover() }()
		work(k, spans[k])
	}
	for k := 1; k < len(spans); k++ {
		wg.Go(func() { do(k) })
	}
	do(0)
	wg.Wait()
	for _, p := range panics {
		if p != nil {
			panic(p)
		}
	}
}

// Feasibility is which nodes of a range can run a class.
type Feasibility struct {
	// Eligible are the nodes that are feasible as far as their own pods, labels and resources go: the feasible ones, and
	// those that only pods on other nodes exclude. It is a copy. Its bit 0 is the range's first index.
	Eligible      cluster.Bitmap
	FeasibleCount int32
	Nodes         int32          // how many nodes the range has
	Verdicts      []VerdictCount // of the others, by plugin in kube-scheduler's order, then by reason
}

// Filter returns which nodes of a range can run a class, evaluating only nodes that have changed since it was last
// asked. r.First must be a multiple of 64; if not, the range begins at the multiple below. False: the state has no such
// class.
func (e *Evaluator) Filter(st *cluster.State, s Subject, r cluster.Range) (out Feasibility, ok bool) {
	ok = e.withFilters(st, s, func(c *evaluation) { out = c.feasibility(e, st, r) })
	return out, ok
}

func (c *evaluation) feasibility(e *Evaluator, st *cluster.State, r cluster.Range) Feasibility {
	c.sync(st)
	ws, r := align(r, st.Nodes.Len())
	c.reserve(st)
	out := Feasibility{Eligible: make(cluster.Bitmap, ws.end-ws.first)}
	unknown := 0
	for w := ws.first; w < ws.end; w++ {
		unknown += bits.OnesCount64(st.Nodes.Live[w] & mask(w, r) &^ c.known[w])
	}
	spans := e.split(ws, unknown)
	parts := make([]filterPart, len(spans))
	if c.topology.filters() {
		c.topology.judgeAll()
	}
	each(spans, func(k int, span words) { parts[k] = c.filter(st, span, r, out.Eligible[span.first-ws.first:]) })
	verdicts := make([][]VerdictCount, len(parts))
	for k := range parts {
		out.Nodes += parts[k].nodes
		out.FeasibleCount += parts[k].feasible
		verdicts[k] = parts[k].verdicts
	}
	out.Verdicts = MergeVerdicts(verdicts...)
	return out
}

// reserve makes room for verdicts on all nodes.
func (c *evaluation) reserve(st *cluster.State) {
	whole := (st.Nodes.Len() + 63) / 64
	c.known, c.feasible = grow(c.known, whole), grow(c.feasible, whole)
	c.verdicts = grow(c.verdicts, whole*64)
}

// eligible reports whether a live node is, judging it if need be. The evaluation is synced and has reserved room.
func (c *evaluation) eligible(st *cluster.State, i cluster.NodeIndex) bool {
	if !c.known.Has(i) {
		c.verdicts[i] = c.program.filter(st, i, c.signature.priority, cluster.NoPod)
		c.feasible.Put(i, c.verdicts[i].Feasible())
		c.known.Set(i)
	}
	return c.feasible.Has(i)
}

type filterPart struct {
	nodes, feasible int32
	verdicts        []VerdictCount
}

// filter evaluates what is not known of a span and counts. Spans of one evaluation may run at the same time.
func (c *evaluation) filter(st *cluster.State, span words, r cluster.Range, out cluster.Bitmap) filterPart {
	var part filterPart
	var t tally
	for w := span.first; w < span.end; w++ {
		live := st.Nodes.Live[w] & mask(w, r)
		for todo := live &^ c.known[w]; todo != 0; todo &= todo - 1 {
			i := cluster.NodeIndex(w*64 + bits.TrailingZeros64(todo))
			c.verdicts[i] = c.program.filter(st, i, c.signature.priority, cluster.NoPod)
			c.feasible.Put(i, c.verdicts[i].Feasible())
		}
		c.known[w] |= live
		eligible := live & c.feasible[w]
		out[w-span.first] = eligible
		part.nodes += int32(bits.OnesCount64(live))
		if !c.topology.filters() {
			part.feasible += int32(bits.OnesCount64(eligible))
			for bad := live &^ eligible; bad != 0; bad &= bad - 1 {
				i := cluster.NodeIndex(w*64 + bits.TrailingZeros64(bad))
				t.add(c.verdicts[i], i)
			}
			continue
		}
		for all := live; all != 0; all &= all - 1 {
			i := cluster.NodeIndex(w*64 + bits.TrailingZeros64(all))
			if v := c.program.combine(c.verdicts[i], c.topology.profileOf(i)); v.Feasible() {
				part.feasible++
			} else {
				t.add(v, i)
			}
		}
	}
	part.verdicts = t.verdicts(st, c.program)
	return part
}

// Node returns the verdict on one node as it is now. Self is the pod itself, if it may be nominated to the node, else
// cluster.NoPod. False: there is no such class, or no such node.
func (e *Evaluator) Node(st *cluster.State, s Subject, self cluster.PodID, i cluster.NodeIndex) (v Verdict, ok bool) {
	e.withFilters(st, s, func(c *evaluation) {
		if ok = st.Nodes.Live.Has(i); ok {
			v = c.verdict(st, i, self)
		}
	})
	return v, ok
}

// verdict judges one live node. The evaluation has just been synced.
func (c *evaluation) verdict(st *cluster.State, i cluster.NodeIndex, self cluster.PodID) Verdict {
	v := c.programFor(st, i, self).filter(st, i, c.signature.priority, self)
	if !c.topology.filters() {
		return v
	}
	return c.program.combine(v, c.topology.profileFor(st, i, self))
}

// Explain spells out a verdict that Node returned for a class and a node. It is empty for a feasible node, and if
// the class is gone.
func (e *Evaluator) Explain(st *cluster.State, s Subject, v Verdict, i cluster.NodeIndex) (out []VerdictCount) {
	e.with(st, s, func(c *evaluation) {
		if v.Feasible() || !st.Nodes.Live.Has(i) || !c.program.explains(v) {
			return
		}
		var t tally
		t.add(v, i)
		out = MergeVerdicts(t.verdicts(st, c.program))
	})
	return out
}

// CrossNode reports whether what happens on one node can make another feasible.
func (e *Evaluator) CrossNode(st *cluster.State, s Subject) (can bool) {
	e.with(st, s, func(c *evaluation) { can = c.topology.filters() || c.failing.own != nil })
	return can
}

// Possible reports whether some node is feasible now, leaving out one, which may be cluster.NoNode: that to which the pod is nominated, and of which it
// is known already that the pod does not fit there. To others it is there already; see Choose. It costs little if few nodes have changed since it was
// last asked.
func (e *Evaluator) Possible(st *cluster.State, s Subject, but cluster.NodeIndex) (possible bool) {
	e.with(st, s, func(c *evaluation) {
		if but != cluster.NoNode && st.Nodes.Live.Has(but) && c.verdict(st, but, cluster.NoPod).Feasible() {
			possible = c.possibleBut(st, but)
		} else {
			possible = c.possible(st)
		}
	})
	return possible
}

// possibleBut looks for a feasible node that is not that one.
func (c *evaluation) possibleBut(st *cluster.State, but cluster.NodeIndex) (possible bool) {
	if c.topology != nil {
		c.count(st)
		c.counts.without(but, func(eligible []int64) {
			c.topology.feasible(eligible, func(*topologyProfile, int64) { possible = true })
		})
		return possible
	}
	c.sync(st)
	c.reserve(st)
	for w, live := range st.Nodes.Live {
		if int(but>>6) == w {
			live &^= 1 << (but & 63)
		}
		if live&c.known[w]&c.feasible[w] != 0 {
			return true
		}
		for todo := live &^ c.known[w]; todo != 0; todo &= todo - 1 {
			if c.eligible(st, cluster.NodeIndex(w*64+bits.TrailingZeros64(todo))) {
				return true
			}
		}
	}
	return false
}

func (c *evaluation) possible(st *cluster.State) bool {
	if c.topology == nil {
		return c.anyFeasible(st)
	}
	possible := false
	c.count(st)
	c.topology.feasible(c.counts.nodes, func(*topologyProfile, int64) { possible = true })
	return possible
}

// anyFeasible looks for a feasible node, of a class to which other pods do not matter.
func (c *evaluation) anyFeasible(st *cluster.State) bool {
	c.sync(st)
	c.reserve(st)
	for i := range cluster.NodeIndex(st.Nodes.Len()) {
		if st.Nodes.Live.Has(i) && c.eligible(st, i) {
			return true
		}
	}
	return false
}

// explains reports whether the verdict can be of this program.
func (p *program) explains(v Verdict) bool {
	switch code := v.code(); code {
	case codeUnsupported, codeNoVictims, codeNotHelpful:
		return true
	case codeDetailed:
		return bits.Len64(v.details()) <= len(p.details)
	case codeNoDriver:
		return v.driver() < len(p.drivers)
	default:
		second := v.second()
		return code < maxCodes && byCode[code] >= 0 && (second == 0 || second < maxCodes && second != codeDetailed && byCode[second] == byCode[code])
	}
}
