package queue

import (
	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// batch is the pods of one cycle, and what is known about where they can go.
type batch struct {
	attempts []Attempt // in queue order
	version  cluster.Version
	least    cluster.Version // what the answers have to be of, or later
	seed     uint64
	nodes    int // that exist
	length   int // one more than the largest index

	classes map[cluster.ClassID]*classWork
	order   []cluster.ClassID // of classes that workers are asked about, as they first appear
	pins    []*pinWork
	pinOf   map[int]*pinWork // by index of attempts

	// evaluated is the oldest version of all answers, newest the newest.
	evaluated, newest cluster.Version
}

// classWork is a class of the batch.
type classWork struct {
	unsupported *engine.VerdictCount // why the class cannot be judged
	nodes       int                  // seen by filter-workers
	feasible    cluster.Bitmap
	verdicts    []engine.VerdictCount
	groups      []engine.Group
}

// pinWork is a pod that may go to one node only.
type pinWork struct {
	class    cluster.ClassID
	name     string
	node     cluster.NodeIndex // NoNode: there is none of that name
	known    bool              // the node exists
	feasible bool
	verdicts []engine.VerdictCount
}

// newBatch looks up what the cycle needs of the state the attempts were popped at. It keeps nothing of the state.
func newBatch(st *cluster.State, attempts []Attempt, committed cluster.Version) *batch {
	b := &batch{
		attempts: attempts, version: st.Version(), least: st.Version(), seed: st.Settings.Seed,
		nodes: st.Nodes.Count(), length: st.Nodes.Len(),
		classes: make(map[cluster.ClassID]*classWork), pinOf: make(map[int]*pinWork),
	}
	if committed.Epoch == b.least.Epoch && b.least.Less(committed) {
		b.least = committed // the classes of another epoch have other ids
	}
	b.evaluated, b.newest = cluster.Version{}, b.least
	for i, a := range attempts {
		w := b.classes[a.Class]
		if w == nil {
			w = &classWork{}
			b.classes[a.Class] = w
			if c := st.Class(a.Class); c != nil && c.Spec.Unsupported != "" {
				w.unsupported = &engine.VerdictCount{
					Plugin: c.Spec.UnsupportedPlugin, Reason: c.Spec.Unsupported, Unresolvable: true, Count: int32(b.nodes),
				}
			}
		}
		switch {
		case w.unsupported != nil:
		case a.Pin != "":
			p := &pinWork{class: a.Class, name: a.Pin, node: st.Nodes.ByName(a.Pin)}
			b.pins = append(b.pins, p)
			b.pinOf[i] = p
		case !w.asked():
			w.feasible = cluster.Bitmap{}
			b.order = append(b.order, a.Class)
		}
	}
	return b
}

// asked reports whether workers are asked about the class as a whole.
func (w *classWork) asked() bool { return w.feasible != nil }

// answered notes the version of an answer.
func (b *batch) answered(v cluster.Version) {
	if b.evaluated.IsZero() || v.Less(b.evaluated) {
		b.evaluated = v
	}
	if b.newest.Less(v) {
		b.newest = v
	}
}

// oldest returns the version that every answer is of, or later.
func (b *batch) oldest() cluster.Version {
	if b.evaluated.IsZero() {
		return b.version
	}
	return b.evaluated
}

// outside is what NodeAffinity says of all nodes but the one that a pod is pinned to.
func outside(nodes int) []engine.VerdictCount {
	if nodes <= 0 {
		return nil
	}
	return []engine.VerdictCount{{
		Plugin: engine.NodeAffinity, Reason: engine.ReasonNodeAffinityOutside, Unresolvable: true, Count: int32(nodes),
	}}
}

// parking returns why the i-th attempt can go nowhere, or false if it can, or if workers did not know its class.
func (b *batch) parking(i int) (Parking, bool) {
	a := b.attempts[i]
	w := b.classes[a.Class]
	p := Parking{Version: b.oldest()}
	nodes := b.nodes
	switch {
	case b.nodes == 0:
		p.Wake = WhenAnyNode
	case w.unsupported != nil:
		p.Wake = WhenChanged
		p.Verdicts = []engine.VerdictCount{*w.unsupported}
	case a.Pin != "":
		pin := b.pinOf[i]
		switch {
		case pin.feasible:
			return Parking{}, false
		case pin.known:
			p.Verdicts = engine.MergeVerdicts(pin.verdicts, outside(nodes-1))
		default:
			p.Verdicts = outside(nodes)
		}
	case w.nodes == 0 || w.feasible.Count() > 0:
		return Parking{}, false
	default:
		nodes, p.Verdicts = w.nodes, w.verdicts
	}
	p.Message = engine.FitMessage(nodes, p.Verdicts)
	return p, true
}
