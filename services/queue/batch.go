package queue

import (
	"slices"
	"time"

	otel "go.opentelemetry.io/otel/trace"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// batch is the pods of one cycle, and what is known about where they can go.
type batch struct {
	popped   time.Time
	attempts []Attempt // in queue order
	version  cluster.Version
	least    cluster.Version // what the answers have to be of, or later
	nodes    int             // that exist
	length   int             // one more than the largest index
	seed     uint64          // of ties between preemptions

	kindOf []*kindWork // by index of attempts
	asked  []*kindWork // those that workers are asked about, as they first appear
	pins   []*pinWork
	pinOf  map[int]*pinWork // by index of attempts
	goes   map[int]bool     // to the binder; by index of attempts
	placed map[int]bool     // by the binder; by index of attempts

	traced map[int]*tracedAttempt // by index of attempts; nil if none is
	cycle  otel.Span              // of the cycle, if some attempt is traced

	// evaluated is the oldest version of all answers, newest the newest.
	evaluated, newest cluster.Version
}

// kindWork is the pods of the batch that filters and scores treat alike.
type kindWork struct {
	subject     engine.Subject       // of the first of them; workers are asked about it
	unsupported *engine.VerdictCount // why they cannot be judged
	profile     string               // the scheduler's name
	percentage  int32                // of the nodes that are to be scored, by the profile
	seed        uint64               // of the order of equal nodes
	asked       bool                 // about the kind as a whole

	nodes    int // seen by filter-workers
	feasible int // how many of them
	eligible cluster.Bitmap
	verdicts []engine.VerdictCount
	groups   []engine.Group
}

// pinWork is a pod with one node that matters by itself: the only one that it may go to, or the one it is nominated to.
type pinWork struct {
	subject  engine.Subject
	self     cluster.PodID
	name     string
	node     cluster.NodeIndex // NoNode: there is none of that name
	known    bool              // the node exists
	feasible bool
	verdicts []engine.VerdictCount
}

// newBatch looks up what the cycle needs of the state the attempts were popped at. It keeps nothing of the state.
func newBatch(now time.Time, st *cluster.State, e Evaluator, attempts []Attempt, committed cluster.Version) *batch {
	b := &batch{
		popped: now, attempts: attempts, version: st.Version(), least: st.Version(), seed: st.Settings.Seed,
		nodes: st.Nodes.Count(), length: st.Nodes.Len(),
		kindOf: make([]*kindWork, len(attempts)), pinOf: make(map[int]*pinWork), goes: make(map[int]bool), placed: make(map[int]bool),
	}
	if committed.Epoch == b.least.Epoch && b.least.Less(committed) {
		b.least = committed // the classes of another epoch have other ids
	}
	b.evaluated, b.newest = cluster.Version{}, b.least
	bySubject := make(map[engine.Subject]*kindWork)
	byKind := make(map[engine.Kind]*kindWork)
	for i, a := range attempts {
		w := bySubject[a.Subject]
		if w == nil {
			kind := e.Kind(st, a.Subject)
			if w = byKind[kind]; w == nil {
				w = newKindWork(st, a.Subject)
				byKind[kind] = w
			}
			bySubject[a.Subject] = w
		}
		b.kindOf[i] = w
		if w.unsupported != nil {
			continue
		}
		if name := a.node(); name != "" {
			p := &pinWork{subject: a.Subject, self: a.ID, name: name, node: st.Nodes.ByName(name)}
			if p.node != cluster.NoNode || a.Pin != "" {
				b.pins = append(b.pins, p)
				b.pinOf[i] = p
			}
		}
		if a.Pin == "" && !w.asked {
			w.asked = true
			b.asked = append(b.asked, w)
		}
	}
	return b
}

func newKindWork(st *cluster.State, s engine.Subject) *kindWork {
	w := &kindWork{subject: s, seed: engine.TieSeed(st, s.Class)}
	c := st.Class(s.Class)
	if c == nil {
		return w
	}
	w.profile = c.Spec.SchedulerName
	if c.Spec.Unsupported != "" {
		w.unsupported = &engine.VerdictCount{
			Plugin: c.Spec.UnsupportedPlugin, Reason: c.Spec.Unsupported, Unresolvable: true, Count: int32(st.Nodes.Count()),
		}
	}
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
	w, pin := b.kindOf[i], b.pinOf[i]
	switch {
	case b.nodes == 0 || w.unsupported != nil:
		return hopeless
	case pin != nil && pin.feasible:
		return placeable
	case b.attempts[i].Pin != "":
		if crossNode(pin.verdicts) {
			return hopeful
		}
		return hopeless
	case w.nodes == 0:
		return unknown
	case w.feasible > 0:
		return placeable
	case w.eligible.Count() > 0:
		return hopeful
	}
	return hopeless
}

// judged reports whether filters have said that the i-th attempt can go nowhere.
func (b *batch) judged(i int) bool { return b.nodes > 0 && b.kindOf[i].unsupported == nil }

// parking returns why the i-th attempt can go nowhere.
func (b *batch) parking(i int) Parking {
	w := b.kindOf[i]
	p := Parking{Version: b.oldest()}
	nodes := b.nodes
	switch {
	case b.nodes == 0:
		p.Wake = WhenAnyNode
	case w.unsupported != nil:
		p.Wake = WhenChanged
		p.Verdicts = []engine.VerdictCount{*w.unsupported}
	case b.attempts[i].Pin != "":
		if pin := b.pinOf[i]; pin.known {
			p.Verdicts = engine.MergeVerdicts(pin.verdicts, outside(nodes-1))
		} else {
			p.Verdicts = outside(nodes)
		}
	default:
		nodes, p.Verdicts = w.nodes, w.verdicts
	}
	p.CrossNode = crossNode(p.Verdicts)
	p.Message = engine.FitMessage(nodes, p.Verdicts)
	return p
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

// crossNode reports whether pods on other nodes may be the only reason against some node. If they are, the verdict is
// of one of these plugins.
func crossNode(verdicts []engine.VerdictCount) bool {
	return slices.ContainsFunc(verdicts, func(v engine.VerdictCount) bool {
		return v.Plugin == engine.PodTopologySpread || v.Plugin == engine.InterPodAffinity
	})
}
