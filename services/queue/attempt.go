package queue

import (
	"maps"
	"math/bits"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/logs"
	"github.com/berth-scheduler/berth/services/queue/fanout"
	"github.com/berth-scheduler/berth/services/queue/pending"
)

// attempt is one of a cycle's, and what is known about where it can go.
type attempt struct {
	pending.Attempt
	signature *signatureWork
	onNode    *nodeWork      // nil: no node matters by itself
	asOthers  *nodeWork      // of one that is nominated, the same node as others of the signature see it, for which the pod is there already
	traced    *tracedAttempt // nil: it is not
	// fails is why a plugin fails on the node that the pod is nominated to, in the state that it was popped in: then it can go nowhere.
	fails *engine.VerdictCount

	claims   bool           // it has some
	alone    bool           // asked about by its own subject, whoever is of its signature
	open     bool           // without an outcome
	goes     bool           // to the binder
	placed   bool           // by the binder, and the log has not told of its bind yet
	preempts bool           // it fits nowhere, and may make room
	mixed    bool           // it is held back; see holdMixed
	asked    bool           // extenders are asked about it
	at       pending.InLine // of one that is asked about

	// refused is what extenders have said of its last attempt, which this one goes on with; nil: nothing.
	refused *refusal
	// said is what plugins of others that come before preemption have said of its last attempt; nil: they have not been asked.
	said *said

	tries []string // drivers that have not detached volumes in time, which its preemption is to tell more of
	// doubted: one of the drivers of its volumes has not, and it is to evict only whom kube-scheduler would.
	doubted bool

	again string // why it is to be tried again, if it gets no outcome: a label; "": nothing has been said of it
}

// signatureWork is the pods of the batch that filters and scores treat alike.
type signatureWork struct {
	subject     engine.Subject // of the first of them; workers are asked about it
	first       pending.Attempt
	claims      bool                 // these pods have some
	unsupported *engine.VerdictCount // why they cannot be judged
	refused     *engine.VerdictCount // why they are refused before any node is looked at, in the state that they were popped in
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

// newCycle looks up what the cycle of a batch needs of the state it was popped at. It keeps nothing of the state.
func (d *driver) newCycle(now time.Time, st *cluster.State, batch []pending.Attempt) *cycle {
	c := &cycle{
		driver: d, popped: now, version: st.Version(), least: st.Version(), seed: st.Settings.Seed,
		nodes: st.Nodes.Count(), length: st.Nodes.Len(), stillVain: make(map[string]vain),
	}
	if d.committed.Epoch == c.least.Epoch && c.least.Less(d.committed) {
		c.least = d.committed // the classes of another epoch have other ids
	}
	c.newest = c.least
	attempts := make([]attempt, len(batch))
	c.attempts = make([]*attempt, len(batch))
	bySubject := make(map[engine.Subject]*signatureWork)
	bySignature := make(map[engine.Signature]*signatureWork)
	alone := make(map[engine.Subject]bool)
	for i := range batch {
		a := &attempts[i]
		a.Attempt, a.open, a.alone = batch[i], true, d.alone.take(batch[i].UID)
		a.claims = claimsOf(st, a.Subject) > 0
		a.refused = d.asker.takeRefusal(&a.Attempt, st.Version().Epoch)
		a.said = d.asker.takeSaid(&a.Attempt, st.Version().Epoch)
		c.attempts[i] = a
		if a.alone {
			alone[a.Subject] = true
		}
	}
	for _, a := range c.attempts {
		w := bySubject[a.Subject]
		if w == nil {
			signature := engine.SignatureAlone(a.Subject)
			if !alone[a.Subject] {
				signature = d.s.cfg.Evaluator.Signature(st, a.Subject)
			}
			if w = bySignature[signature]; w == nil {
				w = newSignatureWork(st, a.Subject)
				w.first, w.claims = a.Attempt, a.claims
				w.refused = d.s.cfg.Evaluator.Refusal(st, a.Subject)
				bySignature[signature] = w
			}
			bySubject[a.Subject] = w
		}
		a.signature = w
		if w.unsupported != nil {
			continue
		}
		if name := a.Node(); name != "" {
			p := &nodeWork{name: name, OnNode: fanout.OnNode{Subject: a.Subject, Self: a.ID, Node: st.Nodes.ByName(name)}}
			if p.Node != cluster.NoNode || a.RequiredNode != "" {
				c.onNodes = append(c.onNodes, p)
				a.onNode = p
			}
			if p.Node != cluster.NoNode && a.RequiredNode == "" && !d.s.cfg.Evaluator.FailsForAll(st, a.Subject) {
				others := &nodeWork{name: name, OnNode: fanout.OnNode{Subject: a.Subject, Self: cluster.NoPod, Node: p.Node}}
				c.onNodes = append(c.onNodes, others)
				a.asOthers = others
			}
			if a.RequiredNode == "" {
				a.fails = d.s.cfg.Evaluator.FailsAsNominated(st, a.ID)
			}
		}
		if a.RequiredNode == "" && !w.asked {
			w.asked = true
			c.asked = append(c.asked, w)
		}
	}
	c.traceAttempts(st)
	c.nameAttempts(st)
	return c
}

// nameAttempts keeps the names of the pods if they are to be logged, which is done when nobody waits for it.
func (c *cycle) nameAttempts(st *cluster.State) {
	if logs.V(c.log, logs.Attempts) == nil {
		return
	}
	c.names = make([]string, len(c.attempts))
	for i, a := range c.attempts {
		if row := st.Pod(a.ID); row != nil {
			c.names[i] = row.Namespace + "/" + row.Name
		}
	}
}

// logAttempts logs which pods are tried, if so much was logged when they were popped.
func (c *cycle) logAttempts() {
	log := logs.V(c.log, logs.Attempts)
	if log == nil || c.names == nil {
		return
	}
	for i, a := range c.attempts {
		if c.names[i] == "" { // it was gone by then
			continue
		}
		log.Info("Attempting to schedule pod", "pod", c.names[i], "attempt", a.Number, a.traced.log())
	}
}

// claimsOf returns how many claims the pods of a subject have.
func claimsOf(st *cluster.State, s engine.Subject) int {
	if labels := st.Labels(s.Labels); labels != nil {
		return len(labels.Claims)
	}
	return 0
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

// borrows reports whether what is known of an attempt is what was said of another subject. The two were of one signature when they were popped;
// workers may judge a state in which they are not.
func (a *attempt) borrows() bool {
	w := a.signature
	return a.RequiredNode == "" && a.Subject != w.subject && w.asked
}

// alone are pods that are asked about by their own subject when they are popped next, by uid: what was said of another of their signature did not
// hold for them.
type alone map[string]pending.Attempt

// add adds the pod of an attempt, and forgets pods that the queue has not any more.
func (l *alone) add(q *pending.Queue, a pending.Attempt) {
	if *l == nil {
		*l = make(alone)
	}
	if _, known := (*l)[a.UID]; !known && bits.OnesCount(uint(len(*l))) == 1 { // each time that they have doubled
		maps.DeleteFunc(*l, func(_ string, a pending.Attempt) bool { return !q.Remembers(a) })
	}
	(*l)[a.UID] = a
}

// take removes a pod, and reports whether it was there.
func (l alone) take(uid string) bool {
	_, there := l[uid]
	delete(l, uid)
	return there
}

// alike reports whether what was said of the subject that stands for an attempt's signature holds for the attempt as well: they are of one
// signature still, in a state that no answer is of a later one than, and what their claims come to has not been anything else meanwhile.
func (c *cycle) alike(q *pending.Queue, st *cluster.State, a *attempt) bool {
	e, w := c.s.cfg.Evaluator, a.signature
	return !st.Version().Less(c.newest) && e.Signature(st, a.Subject) == e.Signature(st, w.subject) &&
		!q.ClaimsChanged(w.first, c.version) && !q.ClaimsChanged(a.Attempt, c.version)
}

// outdated reports whether an attempt would be told why it was refused when it was popped, but its claims have come to something else since: of a
// pod that requires a node that is told, whatever workers say.
func (a *attempt) outdated(q *pending.Queue, since cluster.Version) bool {
	return a.RequiredNode != "" && a.signature.refused != nil && q.ClaimsChanged(a.Attempt, since)
}

// include notes what an answer is of.
func (c *cycle) include(v fanout.Versions) {
	if v.Oldest.IsZero() {
		return // nobody had to be asked
	}
	if c.evaluated.IsZero() || v.Oldest.Less(c.evaluated) {
		c.evaluated = v.Oldest
	}
	if c.newest.Less(v.Newest) {
		c.newest = v.Newest
	}
}

// oldest returns the version that every answer is of, or later.
func (c *cycle) oldest() cluster.Version {
	if c.evaluated.IsZero() {
		return c.version
	}
	return c.evaluated
}

// outlook is what the filter-workers' answers mean for a pod.
type outlook uint8

const (
	placeable outlook = iota // some node can run it
	hopeful                  // no node can, but only because of pods on other nodes: what is placed ahead of it may change that
	hopeless                 // no node can
	unknown                  // the workers do not know its class
)

// outlook returns what the answers mean for an attempt, and what extenders have said of it.
func (c *cycle) outlook(a *attempt) outlook {
	out := c.filtered(a)
	if a.refused != nil && out == placeable {
		return hopeless
	}
	return out
}

// filtered returns what the answers mean for an attempt.
func (c *cycle) filtered(a *attempt) outlook {
	w, on := a.signature, a.onNode
	switch {
	case c.nodes == 0 || w.unsupported != nil:
		return hopeless
	case on != nil && on.Feasible:
		return placeable
	case a.RequiredNode != "":
		if engine.CrossNode(on.Verdicts) {
			return hopeful
		}
		return hopeless
	case a.fails != nil:
		return hopeless
	case w.Nodes == 0:
		return unknown
	case a.elsewhere(int(w.FeasibleCount)) > 0:
		return placeable
	case a.elsewhere(w.Eligible.Count()) > 0, w.Eligible.Count() > 0 && a.onNode != nil && engine.CrossNode(a.onNode.Verdicts):
		return hopeful
	}
	return hopeless
}

// elsewhere returns how many of so many nodes that others of the signature may go to the pod itself may: not to the one that it is nominated to, if that
// suits it only as long as the pod is taken to be there already.
func (a *attempt) elsewhere(nodes int) int {
	if on, others := a.onNode, a.asOthers; on != nil && others != nil && others.Known && others.Feasible && on.Known && !on.Feasible {
		return max(nodes-1, 0)
	}
	return nodes
}

// judged reports whether filters have said that an attempt can go nowhere.
func (c *cycle) judged(a *attempt) bool { return c.nodes > 0 && a.signature.unsupported == nil }

// diagnosis returns why an attempt can go nowhere.
func (c *cycle) diagnosis(a *attempt) pending.Diagnosis {
	w := a.signature
	d := pending.Diagnosis{Version: c.oldest()}
	switch {
	case c.nodes == 0:
		d.Wake = pending.WhenAnyNode
	case w.unsupported != nil:
		d.Wake = pending.WhenChanged
	}
	answers := engine.Answers{
		Nodes: c.nodes, Unsupported: w.unsupported, Required: a.RequiredNode != "", Refused: w.refused, Seen: int(w.Nodes), Everywhere: w.Verdicts,
	}
	if a.fails != nil {
		answers.Seen, answers.Everywhere = c.nodes, []engine.VerdictCount{*a.fails}
		if c.version.Less(d.Version) {
			d.Version = c.version
		}
	}
	if on := a.onNode; on != nil {
		answers.Known, answers.There = on.Known, on.Verdicts
		if others := a.asOthers; others != nil && on.Known && others.Known && a.fails == nil {
			answers.Nominated = &engine.Nominated{Itself: on.Verdicts, Others: others.Verdicts}
		}
	}
	var nodes int
	nodes, d.Verdicts = answers.Unschedulable()
	if a.refused != nil && c.filtered(a) == placeable {
		d.Verdicts, d.Wake = engine.MergeVerdicts(d.Verdicts, a.refused.verdicts), pending.WhenAnything
		if a.refused.version.Less(d.Version) {
			d.Version = a.refused.version
		}
		if a.Again || a.refused.again { // since they were asked: nobody is this time
			d.Version = cluster.Version{}
		}
	}
	if a.said != nil && a.Again { // since plugins were asked to look for a way: they are not this time
		d.Version = cluster.Version{}
	}
	d.CrossNode = engine.CrossNode(d.Verdicts)
	d.Message = engine.FitMessage(nodes, d.Verdicts)
	return d
}
