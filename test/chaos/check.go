package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

// Rule is what a history must not show.
type Rule string

// The rules.
const (
	RuleBoundTwice Rule = "a pod's node never changes"
	RuleOvercommit Rule = "no node gets more than it has"
	RuleConstraint Rule = "no required constraint is broken by a placement"
	RuleUnrecorded Rule = "a pod is bound only where etcd says it is meant to go"
	RuleVersion    Rule = "versions only grow"
	RuleFenced     Rule = "only the elected binder writes"
	RuleLost       Rule = "no pod is lost or stuck"
	RuleLeft       Rule = "no intent outlives the outcome of its binds"
	RuleProcess    Rule = "processes end when told to, in time, and not otherwise"
	RuleLinear     Rule = "binds are linearizable"
	RuleGiven      Rule = "room is not held for a bind that only fails"
	RuleFound      Rule = "a replica that differs or lags is found out"
	RulePromise    Rule = "no volume is two claims', and no claim has two volumes"
	RuleClaimed    Rule = "a pod is bound when its claims are, and where their volumes are"
	RulePlugin     Rule = "a pod is bound only where its plugin has it"
	RuleCard       Rule = "no card is two pods', but for shares that it has room for"
	RuleGrant      Rule = "a pod has the cards that it has asked for, of its own node, from its bind on"
	RuleUnfit      Rule = "only cards that are told to be healthy are given"
	RuleWhole      Rule = "a gang is placed as a whole, or not at all"
	RuleDomain     Rule = "a gang is in one domain"
	RuleHistory    Rule = "the history is whole"
)

// Violation is a rule that is broken.
type Violation struct {
	Rule Rule
	At   Micros
	Text string
}

// String says it in one line.
func (v Violation) String() string {
	return fmt.Sprintf("%8.3fs  %s: %s", v.At.Duration().Seconds(), v.Rule, v.Text)
}

// A pod is judged by the node as the binder can have known it when it decided: that was just before the intent was
// recorded. How late the binder, or this history, may have heard of a node's change is staleness; during a fault, and in
// recovery behind it, as long as all of it.
const (
	staleness = Micros(3 * time.Second / time.Microsecond)
	recovery  = Micros(10 * time.Second / time.Microsecond)
)

// span is a time from one moment to another.
type span struct{ from, to Micros }

// around returns when what is known at some time may have been so.
func (c *checker) around(at Micros) span { return around(c.faults, at) }

// around returns when what is known at some time may have been so, with some faults.
func around(faults []span, at Micros) span {
	s := span{at - staleness, at + staleness}
	for _, f := range faults {
		if f.from <= at && at <= f.to {
			s.from, s.to = min(s.from, f.from-staleness), max(s.to, f.to)
		}
	}
	return s
}

// faults returns when there were faults, or their aftermath.
func faults(entries []Entry) []span {
	var out []span
	open := map[int]int{} // number of a fault → its place in out
	for _, e := range entries {
		switch f := e.Fault; {
		case f == nil:
		case f.Phase == phaseBegin:
			open[f.Number] = len(out)
			out = append(out, span{e.At, math.MaxInt64})
		default:
			if i, began := open[f.Number]; began {
				out[i].to = e.At + recovery
			}
		}
	}
	return out
}

// Check judges a history, of which it believes nothing but its entries. It is a pure function.
func Check(entries []Entry) []Violation {
	c := checker{
		mode:    modeOf(entries),
		hooks:   hooks(entries),
		faults:  faults(entries),
		intents: map[placement]span{}, meant: map[string]string{}, left: map[string]map[placement]held{}, pods: map[string]*podState{}, named: map[string]*podState{}, nodes: map[string]*nodeState{}, groups: map[string]*groupState{},
		volumes: newVolumesState(),
		given:   newCardsState(entries),
		gangs:   map[string]*gangState{}, firsts: map[string]first{}, unbound: unanswered(entries),
	}
	c.keys(inOrder(entries, func(e Entry) (int64, bool) {
		if e.Key == nil {
			return 0, false
		}
		return e.Key.Revision, true
	}))
	c.objects(inOrder(entries, func(e Entry) (int64, bool) {
		if e.Object == nil {
			return 0, false
		}
		return e.Object.Revision, true
	}))
	c.ends(entries)
	c.found = append(c.found, linear(entries)...)
	return c.found
}

// modeOf returns how the system was set up.
func modeOf(entries []Entry) Mode {
	for _, e := range entries {
		if e.Mode != nil {
			return *e.Mode
		}
	}
	return Mode{Source: sourceKube}
}

// inOrder returns the entries of one order.
func inOrder(entries []Entry, revision func(Entry) (int64, bool)) []Entry {
	var out []Entry
	for _, e := range entries {
		if _, ok := revision(e); ok {
			out = append(out, e)
		}
	}
	slices.SortStableFunc(out, func(a, b Entry) int {
		x, _ := revision(a)
		y, _ := revision(b)
		return cmp.Compare(x, y)
	})
	return out
}

// placement is a pod on a node.
type placement struct{ uid, node string }

// term is when a binder was elected, by revisions of Berth's etcd: from the first to before the last.
type term struct{ from, to int64 }

// checker folds a history.
type checker struct {
	found []Violation

	mode    Mode
	faults  []span
	terms   []term                        // in their order
	intents map[placement]span            // when each was recorded for the first and the last time
	meant   map[string]string             // the node of the last intent, by pod
	left    map[string]map[placement]held // what is in the keys of intents that are there, at the end
	hooks   []span
	pods    map[string]*podState // by uid
	named   map[string]*podState // those that are there, by name
	nodes   map[string]*nodeState
	groups  map[string]*groupState
	volumes volumesState
	given   cardsState
	gangs   map[string]*gangState // by name, with the namespace
	firsts  map[string]first      // by uid
	unbound map[string]bool       // uids of pods of which a bind was refused or not answered
}

func (c *checker) report(rule Rule, at Micros, format string, args ...any) {
	c.found = append(c.found, Violation{rule, at, fmt.Sprintf(format, args...)})
}

// The keys that are checked, below the prefix.
const (
	prefix     = "/berth/"
	keyLeader  = "coord/leader"
	keyVersion = "coord/version"
	keyIntents = "coord/intents/"
)

// recordedIntents is the value of a key of intents.
type recordedIntents struct {
	Epoch   int64
	Intents [][]string // pod's uid, namespace, name, and the node; and for each claim its name, its uid, and the volume, "" for one that is to be made
}

// keys folds the changes in Berth's etcd.
func (c *checker) keys(entries []Entry) {
	var elected int64 // the epoch of the elected binder; 0: there is none
	var epoch, seq int64
	for _, e := range entries {
		k := e.Key
		// Of one revision, the election is never written together with what it guards.
		switch {
		case k.Name == keyLeader && k.Deleted:
			elected = 0
			c.deposed(k.Revision)
		case k.Name == keyLeader && k.Created == elected: // it says something else of itself
		case k.Name == keyLeader:
			elected = k.Created
			c.deposed(k.Revision)
			c.terms = append(c.terms, term{k.Revision, math.MaxInt64})
		case k.Name == keyVersion && k.Deleted:
			c.report(RuleVersion, e.At, "the version was deleted at revision %d", k.Revision)
		case k.Name == keyVersion:
			was, wasSeq := epoch, seq
			var err error
			if epoch, seq, err = readVersion(k.Value); err != nil {
				c.report(RuleHistory, e.At, "%v", err)
				continue
			}
			if epoch < was || epoch == was && seq < wasSeq {
				c.report(RuleVersion, e.At, "%d/%d was written over %d/%d at revision %d", epoch, seq, was, wasSeq, k.Revision)
			}
			c.fenced(e, epoch, elected)
		case strings.HasPrefix(k.Name, keyIntents) && k.Deleted:
			c.leaves(e.At, k.Name, nil)
			if elected == 0 {
				c.report(RuleFenced, e.At, "%s was deleted at revision %d while no binder was elected", k.Name, k.Revision)
			}
		case strings.HasPrefix(k.Name, keyIntents):
			var r recordedIntents
			if err := json.Unmarshal([]byte(k.Value), &r); err != nil {
				c.report(RuleHistory, e.At, "decode %s: %v", k.Name, err)
				continue
			}
			c.fenced(e, r.Epoch, elected)
			had, has := c.left[k.Name], map[placement]held{}
			for _, in := range r.Intents {
				if len(in) < 4 {
					c.report(RuleHistory, e.At, "decode %s: %q is no intent", k.Name, in)
					continue
				}
				c.volumes.record(in)
				where := placement{in[0], in[3]}
				if h, again := had[where]; again { // others have left the batch
					has[where] = h
					continue
				}
				has[where] = held{in[1] + "/" + in[2], e.At}
				recorded, again := c.intents[where]
				if !again {
					recorded.from = e.At
				}
				if _, again := c.firsts[in[0]]; !again {
					c.firsts[in[0]] = first{k.Revision, e.At}
				}
				recorded.to = e.At
				c.intents[where], c.meant[in[0]] = recorded, in[3]
			}
			c.leaves(e.At, k.Name, has)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.left)) {
		c.outlasts(math.MaxInt64, c.left[name], nil)
	}
}

// held is an intent that is there: of which pod, and since when.
type held struct {
	pod   string
	since Micros
}

// leaves replaces what is in a key of intents; nil: it is gone.
func (c *checker) leaves(at Micros, key string, now map[placement]held) {
	c.outlasts(at, c.left[key], now)
	if c.left[key] = now; now == nil {
		delete(c.left, key)
	}
}

// heldLimit is how long room may be held for a bind to which the API server has only said that a webhook fails.
const heldLimit = Micros(15 * time.Second / time.Microsecond)

// outlasts judges the intents that have left a key: those of which each try met the webhook, and nothing else, were to leave soon.
func (c *checker) outlasts(at Micros, was, now map[placement]held) {
	for where, h := range was {
		if _, still := now[where]; still || !strings.HasPrefix(h.pod, tenantNamespace+"/") {
			continue
		}
		for _, w := range c.hooks {
			if from, to := max(h.since, w.from), min(at, w.to); to-from > heldLimit {
				c.report(RuleGiven, to, "the intent of pod %s on %s was there for %v while a webhook failed its binds", h.pod, where.node, (to - from).Duration())
			}
		}
	}
}

// hooks returns when a webhook failed binds, and nothing else was done.
func hooks(entries []Entry) []span {
	all := faults(entries)
	var out []span
	i := -1
	for _, e := range entries {
		if e.Fault == nil || e.Fault.Phase != phaseBegin {
			continue
		}
		i++
		if e.Fault.Kind != hookFails && e.Fault.Kind != hookConflicts || all[i].to == math.MaxInt64 {
			continue
		}
		w := span{all[i].from, all[i].to - recovery}
		alone := true
		for k, other := range all {
			alone = alone && (k == i || other.from > w.to || other.to < w.from)
		}
		if alone {
			out = append(out, w)
		}
	}
	return out
}

// deposed ends the newest term, if there is one.
func (c *checker) deposed(revision int64) {
	if n := len(c.terms); n > 0 {
		c.terms[n-1].to = min(c.terms[n-1].to, revision)
	}
}

// fenced reports a write of an epoch that was not the elected one.
func (c *checker) fenced(e Entry, epoch, elected int64) {
	if epoch != elected {
		c.report(RuleFenced, e.At, "%s was written by epoch %d at revision %d, when epoch %d was elected", e.Key.Name, epoch, e.Key.Revision, elected)
	}
}

// readVersion reads <epoch>-<seq>.
func readVersion(s string) (epoch, seq int64, err error) {
	a, b, ok := strings.Cut(s, "-")
	if epoch, err = strconv.ParseInt(a, 10, 64); err == nil {
		seq, err = strconv.ParseInt(b, 10, 64)
	}
	if !ok || err != nil {
		return 0, 0, fmt.Errorf("version %q: want epoch-seq", s)
	}
	return epoch, seq, nil
}

// podState is a pod that exists, or has existed.
type podState struct {
	uid    string
	name   string
	pod    *corev1.Pod // with its node
	gone   bool
	goneAt Micros
	reason string
	grant  string // what its annotations said of its cards when it was bound; empty: it is not bound
}

// nodeState is a node and the pods that are on it.
type nodeState struct {
	versions []nodeVersion
	pods     map[string]*podState
}

// nodeVersion is a node as it was from some time on; nil if there was none.
type nodeVersion struct {
	from Micros
	node *corev1.Node
}

// groupState is the pods of a group that are there, until the first of them is deleted: from then on what they promised
// each other cannot be judged by where they are.
type groupState struct {
	pods  map[string]*podState
	broke bool
}

// objects folds the changes of objects.
func (c *checker) objects(entries []Entry) {
	var newest time.Time // of all times that writers have said
	next := 0            // of the terms
	var began time.Time  // no later than the last of them that has begun
	for _, e := range entries {
		for ; next < len(c.terms) && c.terms[next].from <= e.Object.Revision; next++ {
			began = newest
		}
		if w := e.Object.Written; w != nil {
			if e.Object.Placed {
				c.placed(e, next-1, began)
			}
			if w.After(newest) {
				newest = *w
			}
		}
		switch o := e.Object; {
		case o.Node != nil:
			c.node(e.At, o)
		case o.Volume != nil:
			c.volume(e.At, o)
		case o.Claim != nil:
			c.claim(e.At, o)
		case o.Group != nil:
			c.group(e.At, o)
		case o.Told != nil:
			c.given.tell(e.At, o)
		case o.Deleted:
			c.deleted(e.At, o)
		default:
			c.changed(e.At, o)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.groups)) {
		c.spread(entries[len(entries)-1].At, c.groups[name])
	}
}

// placed judges who has written a placement of the local source. It does not say; but it was written at a revision at which a binder
// was elected, and what that one has written was not on its way before its term: then others had it elected. What is known to be
// older than the term is what others had written when it began, by the one clock that there is.
func (c *checker) placed(e Entry, newest int, began time.Time) {
	o := e.Object
	switch {
	case newest < 0 || c.terms[newest].to <= o.Revision:
		c.report(RuleFenced, e.At, "pod %s was placed on %s at revision %d, when no binder was elected", o.Name, o.On, o.Revision)
	case o.Written.Before(began):
		c.report(RuleFenced, e.At, "pod %s was placed on %s at revision %d by who wrote it at %v; the elected binder's term began at revision %d, later than %v",
			o.Name, o.On, o.Revision, o.Written, c.terms[newest].from, began)
	}
}

func (c *checker) node(at Micros, o *Object) {
	n := c.nodes[o.Name]
	if n == nil {
		n = &nodeState{pods: map[string]*podState{}}
		c.nodes[o.Name] = n
	}
	v := nodeVersion{at, o.Node}
	if o.Deleted {
		v.node = nil
	}
	n.versions = append(n.versions, v)
}

func (c *checker) deleted(at Micros, o *Object) {
	p := c.named[o.Name]
	if p == nil {
		c.report(RuleHistory, at, "pod %s was deleted, but had not been created", o.Name)
		return
	}
	c.leaving(at, p)
	p.gone, p.goneAt = true, at
	c.given.release(p.uid)
	delete(c.named, o.Name)
	if n := c.nodes[p.pod.Spec.NodeName]; n != nil {
		delete(n.pods, p.uid)
	}
}

func (c *checker) changed(at Micros, o *Object) {
	p := c.pods[o.UID]
	if p == nil {
		if o.Pod == nil {
			c.report(RuleHistory, at, "pod %s changed, but had not been created", o.Name)
			return
		}
		p = &podState{uid: o.UID, name: o.Name, pod: o.Pod.DeepCopy()}
		c.pods[o.UID], c.named[o.Name] = p, p
		if name := p.pod.Labels[labelGroup]; name != "" {
			if c.groups[name] == nil {
				c.groups[name] = &groupState{pods: map[string]*podState{}}
			}
			c.groups[name].pods[o.UID] = p
		}
		if g := c.gangOf(p); g != nil {
			g.members[o.UID] = p
		}
	}
	if p.gone {
		c.report(RuleHistory, at, "pod %s (%s) changed at revision %d, when it had gone", o.Name, o.UID, o.Revision)
		return
	}
	p.reason = o.Reason
	if o.Leaving {
		c.leaving(at, p)
	}
	switch was := p.pod.Spec.NodeName; {
	case o.On == was:
	case was != "":
		c.report(RuleBoundTwice, at, "pod %s (%s) was on %s and is on %q at resource version %d", o.Name, o.UID, was, o.On, o.Revision)
	default:
		p.pod.Spec.NodeName = o.On
		c.bound(at, o.Revision, p)
	}
	c.cards(at, o, p)
}

// bound judges a placement when it is written.
func (c *checker) bound(at Micros, revision int64, p *podState) {
	on := p.pod.Spec.NodeName
	decided, recorded := c.intents[placement{p.uid, on}]
	if c.mode.Source == sourceLocal && !recorded { // binds are fenced, and intents are recorded of gangs only
		decided = span{at, at}
		c.intents[placement{p.uid, on}] = decided
	} else if !recorded {
		decided = span{at, at}
		c.report(RuleUnrecorded, at, "pod %s (%s) was bound to %s at resource version %d; etcd has never had such an intent", p.name, p.uid, on, revision)
	}
	if p.pod.Labels[labelClass] == classUntold {
		c.report(RuleConstraint, at, "pod %s was bound to %s at resource version %d: no replica can have been told what it asks for", p.name, on, revision)
	}
	n := c.nodes[on]
	if n == nil {
		c.report(RuleConstraint, at, "pod %s was bound to %s, which does not exist, at resource version %d", p.name, on, revision)
		return
	}
	n.pods[p.uid] = p
	c.seated(at, revision, p, n)
	c.ganged(at, revision, p, decided.from)
	// The newest version of the node first. If none of those that Berth can have known of will do, it was Berth's doing. Whoever
	// was placed last on the node knew of all others.
	last := decided.to
	for uid := range n.pods {
		last = max(last, c.intents[placement{uid, on}].to)
	}
	known := span{c.around(decided.from).from, c.around(last).to}
	c.claimed(at, revision, p, min(known.from, c.around(at).from), n)
	var first []Violation
	for i := len(n.versions) - 1; i >= 0; i-- {
		if n.versions[i].from > known.to && i > 0 {
			continue
		}
		problems := c.problems(n.versions[i].node, n, p)
		if len(problems) == 0 {
			return
		}
		if first == nil {
			first = problems
		}
		if n.versions[i].from < known.from {
			break // the versions before it were too old
		}
	}
	for _, v := range first {
		v.At, v.Text = at, fmt.Sprintf("pod %s on %s at resource version %d: %s", p.name, on, revision, v.Text)
		c.found = append(c.found, v)
	}
}

// problems returns what is wrong on a node, as it was, with a pod that has come to it.
func (c *checker) problems(node *corev1.Node, n *nodeState, p *podState) []Violation {
	if node == nil {
		return []Violation{{Rule: RuleConstraint, Text: "the node does not exist"}}
	}
	var out []Violation
	if node.Spec.Unschedulable {
		out = append(out, Violation{Rule: RuleConstraint, Text: "the node is unschedulable"})
	}
	for _, taint := range node.Spec.Taints {
		tolerated := slices.ContainsFunc(p.pod.Spec.Tolerations, func(t corev1.Toleration) bool { return t.Key == taint.Key })
		if taint.Effect == corev1.TaintEffectNoSchedule && !tolerated {
			out = append(out, Violation{Rule: RuleConstraint, Text: fmt.Sprintf("it does not tolerate the node's taint %s", taint.Key)})
		}
	}
	var pods []corev1.Pod
	for _, uid := range slices.Sorted(maps.Keys(n.pods)) {
		pods = append(pods, *n.pods[uid].pod)
	}
	report := kubetest.Judge([]corev1.Node{*node}, pods)
	// What more than one node decides is judged elsewhere.
	report.Violations = slices.DeleteFunc(report.Violations, func(v kubetest.Violation) bool {
		return v.Rule == kubetest.RuleTopologySpread || v.Rule == kubetest.RulePodAffinity
	})
	rule := RuleConstraint
	if len(report.Overcommitted) > 0 {
		rule = RuleOvercommit
	}
	for _, problem := range report.Problems() {
		out = append(out, Violation{Rule: rule, Text: problem})
	}
	return out
}

// leaving judges the group of a pod that goes: it is the last time that this can be done. Of its gang it is not judged any more how long binds take.
func (c *checker) leaving(at Micros, p *podState) {
	c.ungang(p)
	if g := c.groups[p.pod.Labels[labelGroup]]; g != nil && !g.broke {
		c.spread(at, g)
		g.broke = true
	}
}

// spread judges where the pods of a group are, while none of them has gone: then some order of placements must explain it.
// Pods whose binds were under way may have been a part of it or not. With the local source it is not known where they were meant
// to go: a group is judged only if it is placed as a whole.
func (c *checker) spread(at Micros, g *groupState) {
	if g.broke {
		return
	}
	var there, meant []corev1.Pod
	for _, uid := range slices.Sorted(maps.Keys(g.pods)) {
		pod := *g.pods[uid].pod
		if pod.Spec.NodeName != "" {
			there = append(there, pod)
		} else if c.mode.Source == sourceLocal {
			return
		} else if pod.Spec.NodeName = c.meant[uid]; pod.Spec.NodeName != "" {
			meant = append(meant, pod)
		}
	}
	var nodes []corev1.Node
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		versions := c.nodes[name].versions
		if n := versions[len(versions)-1].node; n != nil {
			nodes = append(nodes, *n)
		}
	}
	var first []kubetest.Violation
	for some := range 1 << len(meant) { // each part of them
		pods := slices.Clone(there)
		for i := range meant {
			if some&(1<<i) != 0 {
				pods = append(pods, meant[i])
			}
		}
		wrong := slices.DeleteFunc(kubetest.Judge(nodes, pods).Violations, func(v kubetest.Violation) bool { return v.Rule != kubetest.RuleTopologySpread })
		if len(wrong) == 0 {
			return
		}
		if some == 0 {
			first = wrong
		}
	}
	for _, v := range first {
		c.report(RuleConstraint, at, "pod %s on %s: %s", v.Pod, v.Node, v.Why)
	}
}

// ends checks what is left when all is over, and how processes ended.
func (c *checker) ends(entries []Entry) {
	over := Micros(-1)
	made := map[string]string{} // uid → name, of pods that the API server said it had created
	outrun := 0                 // changes by which the log has grown since a follower was last to be outrun
	for _, e := range entries {
		switch {
		case e.Mark == End:
			over = e.At
		case e.Object != nil && e.Object.Name == ballastNode:
			outrun++
		case e.Fault != nil && e.Fault.Kind == lostFollower && e.Fault.Phase == phaseBegin:
			outrun = 0
		case e.Fault != nil && e.Fault.Kind == lostFollower && outrun < leastChanges: // it is still in the log, and may go on where it was
		case e.Fault != nil && e.Fault.Missed != "":
			c.report(RuleFound, e.At, "fault %d, %s %s: %s", e.Fault.Number, e.Fault.Kind, e.Fault.Target, e.Fault.Missed)
		case e.Call != nil && e.Call.Verb == verbCreate && e.Call.Outcome == Done:
			made[e.Call.UID] = e.Call.Name
		case e.Exit != nil && over >= 0: // the harness ends everything
		case e.Exit != nil && !e.Exit.Asked:
			c.report(RuleProcess, e.At, "%s ended, and nobody had told it to: %s", e.Exit.Name, e.Exit.Error)
		case e.Exit != nil && e.Exit.Error != "":
			c.report(RuleProcess, e.At, "%s was told to end: %s", e.Exit.Name, e.Exit.Error)
		}
	}
	if over < 0 {
		c.report(RuleHistory, 0, "it has no end")
		return
	}
	for _, key := range slices.Sorted(maps.Keys(c.left)) {
		c.report(RuleLeft, over, "%s is still there", key)
	}
	for _, uid := range slices.Sorted(maps.Keys(made)) {
		if c.pods[uid] == nil {
			c.report(RuleHistory, over, "pod %s (%s) was created, but is not in it", made[uid], uid)
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(c.pods)) {
		p := c.pods[uid]
		if p.gone || p.pod.Spec.NodeName != "" || gangName(p.pod) != "" {
			continue
		}
		switch fits := !fitsNowhere(p.pod) && c.volumes.admits(p.pod); {
		case fits:
			c.report(RuleLost, over, "pod %s would fit and has no node; its condition says %q", p.name, p.reason)
		case p.reason != corev1.PodReasonUnschedulable:
			c.report(RuleLost, over, "pod %s fits nowhere, but its condition says %q", p.name, p.reason)
		}
	}
	c.gangsEnd(over)
}
