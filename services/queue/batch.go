package queue

import (
	"time"

	otel "go.opentelemetry.io/otel/trace"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/services/queue/fanout"
	"github.com/berth-scheduler/berth/services/queue/pending"
)

// batch is the pods of one cycle, and what is known about where they can go.
type batch struct {
	popped   time.Time
	attempts []pending.Attempt // in queue order
	version  cluster.Version
	least    cluster.Version // what the answers have to be of, or later
	nodes    int             // that exist
	length   int             // one more than the largest index
	seed     uint64          // of ties between preemptions

	signatureOf []*signatureWork // by index of attempts
	asked       []*signatureWork // those that workers are asked about, as they first appear
	nodeWorks   []*nodeWork
	nodeWorkOf  map[int]*nodeWork // by index of attempts
	goes        map[int]bool      // to the binder; by index of attempts
	placed      map[int]bool      // by the binder; by index of attempts

	traced map[int]*tracedAttempt // by index of attempts; nil if none is
	cycle  otel.Span              // of the cycle, if some attempt is traced

	// evaluated is the oldest version of all answers, newest the newest.
	evaluated, newest cluster.Version
}

// signatureWork is the pods of the batch that filters and scores treat alike.
type signatureWork struct {
	subject     engine.Subject       // of the first of them; workers are asked about it
	unsupported *engine.VerdictCount // why they cannot be judged
	profile     string               // the scheduler's name
	percentage  int32                // of the nodes that are to be scored, by the profile
	seed        uint64               // of the order of equal nodes
	asked       bool                 // about the signature as a whole

	engine.Feasibility // of all nodes, as the filter-workers say
	groups             []engine.Group
}

// nodeWork is a pod with one node that matters by itself: the only one that it may go to, or the one it is nominated to.
type nodeWork struct {
	name string
	fanout.OnNode
	fanout.OnNodeAnswer
}

// newBatch looks up what the cycle needs of the state the attempts were popped at. It keeps nothing of the state.
func newBatch(now time.Time, st *cluster.State, e Evaluator, attempts []pending.Attempt, committed cluster.Version) *batch {
	b := &batch{
		popped: now, attempts: attempts, version: st.Version(), least: st.Version(), seed: st.Settings.Seed,
		nodes: st.Nodes.Count(), length: st.Nodes.Len(),
		signatureOf: make([]*signatureWork, len(attempts)), nodeWorkOf: make(map[int]*nodeWork), goes: make(map[int]bool), placed: make(map[int]bool),
	}
	if committed.Epoch == b.least.Epoch && b.least.Less(committed) {
		b.least = committed // the classes of another epoch have other ids
	}
	b.evaluated, b.newest = cluster.Version{}, b.least
	bySubject := make(map[engine.Subject]*signatureWork)
	bySignature := make(map[engine.Signature]*signatureWork)
	for i, a := range attempts {
		w := bySubject[a.Subject]
		if w == nil {
			signature := e.Signature(st, a.Subject)
			if w = bySignature[signature]; w == nil {
				w = newSignatureWork(st, a.Subject)
				bySignature[signature] = w
			}
			bySubject[a.Subject] = w
		}
		b.signatureOf[i] = w
		if w.unsupported != nil {
			continue
		}
		if name := a.Node(); name != "" {
			p := &nodeWork{name: name, OnNode: fanout.OnNode{Subject: a.Subject, Self: a.ID, Node: st.Nodes.ByName(name)}}
			if p.Node != cluster.NoNode || a.RequiredNode != "" {
				b.nodeWorks = append(b.nodeWorks, p)
				b.nodeWorkOf[i] = p
			}
		}
		if a.RequiredNode == "" && !w.asked {
			w.asked = true
			b.asked = append(b.asked, w)
		}
	}
	return b
}

func newSignatureWork(st *cluster.State, s engine.Subject) *signatureWork {
	w := &signatureWork{subject: s, seed: engine.TieSeed(st, s.Class)}
	c := st.Class(s.Class)
	if c == nil {
		return w
	}
	w.profile = c.Spec.SchedulerName
	w.unsupported = engine.UnsupportedVerdict(&c.Spec, st.Nodes.Count())
	if p := st.Profile(c.Spec.SchedulerName); p != nil {
		w.percentage = p.PercentageOfNodesToScore
	}
	return w
}

// all returns the indexes of all attempts.
func (b *batch) all() []int {
	all := make([]int, len(b.attempts))
	for i := range all {
		all[i] = i
	}
	return all
}

// answered notes what an answer is of.
func (b *batch) answered(v fanout.Versions) {
	if v.Oldest.IsZero() {
		return // nobody had to be asked
	}
	if b.evaluated.IsZero() || v.Oldest.Less(b.evaluated) {
		b.evaluated = v.Oldest
	}
	if b.newest.Less(v.Newest) {
		b.newest = v.Newest
	}
}

// oldest returns the version that every answer is of, or later.
func (b *batch) oldest() cluster.Version {
	if b.evaluated.IsZero() {
		return b.version
	}
	return b.evaluated
}

// outlook is what the filter-workers' answers mean for a pod.
type outlook uint8

const (
	placeable outlook = iota // some node can run it
	hopeful                  // no node can, but only because of pods on other nodes: what is placed ahead of it may change that
	hopeless                 // no node can
	unknown                  // the workers do not know its class
)

// outlook returns what the answers mean for the i-th attempt.
func (b *batch) outlook(i int) outlook {
	w, on := b.signatureOf[i], b.nodeWorkOf[i]
	switch {
	case b.nodes == 0 || w.unsupported != nil:
		return hopeless
	case on != nil && on.Feasible:
		return placeable
	case b.attempts[i].RequiredNode != "":
		if engine.CrossNode(on.Verdicts) {
			return hopeful
		}
		return hopeless
	case w.Nodes == 0:
		return unknown
	case w.FeasibleCount > 0:
		return placeable
	case w.Eligible.Count() > 0:
		return hopeful
	}
	return hopeless
}

// judged reports whether filters have said that the i-th attempt can go nowhere.
func (b *batch) judged(i int) bool { return b.nodes > 0 && b.signatureOf[i].unsupported == nil }

// parking returns why the i-th attempt can go nowhere.
func (b *batch) parking(i int) pending.Parking {
	w := b.signatureOf[i]
	p := pending.Parking{Version: b.oldest()}
	switch {
	case b.nodes == 0:
		p.Wake = pending.WhenAnyNode
	case w.unsupported != nil:
		p.Wake = pending.WhenChanged
	}
	answers := engine.Answers{
		Nodes: b.nodes, Unsupported: w.unsupported, Required: b.attempts[i].RequiredNode != "", Seen: int(w.Nodes), Everywhere: w.Verdicts,
	}
	if on := b.nodeWorkOf[i]; on != nil {
		answers.Known, answers.There = on.Known, on.Verdicts
	}
	var nodes int
	nodes, p.Verdicts = answers.Unschedulable()
	p.CrossNode = engine.CrossNode(p.Verdicts)
	p.Message = engine.FitMessage(nodes, p.Verdicts)
	return p
}
