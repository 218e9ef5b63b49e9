package main

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// This file has what a history must not show of gangs.

// wholeWithin is how long it may take to bind the pods of a gang that have been placed together, from the first bind on.
const wholeWithin = Micros(30 * time.Second / time.Microsecond)

// gangState is what a history tells of a gang: the PodGroup of a name, and the pods that name it.
type gangState struct {
	name    string
	group   *schedulingv1alpha2.PodGroup // as it was last; nil: there has been none
	there   bool                         // there is a PodGroup
	until   Micros                       // when it was deleted, if it is not there
	members map[string]*podState         // by uid, also those that have gone

	since   Micros // when the first pod was bound; 0: none was
	settled bool   // it has been whole, or a pod has gone since the first was bound: how long it takes is not judged any more
}

// minCount returns how many pods it wants, at least.
func (g *gangState) minCount() int {
	if g.group == nil || g.group.Spec.SchedulingPolicy.Gang == nil {
		return math.MaxInt
	}
	return int(g.group.Spec.SchedulingPolicy.Gang.MinCount)
}

// topology returns the labels by whose values nodes are of one domain.
func (g *gangState) topology() (keys []string) {
	if g.group != nil && g.group.Spec.SchedulingConstraints != nil {
		for _, t := range g.group.Spec.SchedulingConstraints.Topology {
			keys = append(keys, t.Key)
		}
	}
	return keys
}

// split returns the pods that are there, those that are bound and those that wait, by name.
func (g *gangState) split() (bound, waiting []*podState) {
	for _, uid := range slices.Sorted(maps.Keys(g.members)) {
		switch p := g.members[uid]; {
		case p.gone:
		case p.pod.Spec.NodeName != "":
			bound = append(bound, p)
		default:
			waiting = append(waiting, p)
		}
	}
	byName := func(a, b *podState) int { return cmp.Compare(a.name, b.name) }
	slices.SortFunc(bound, byName)
	slices.SortFunc(waiting, byName)
	return bound, waiting
}

// known returns how many of its pods may have been there at a time from which on word may be late, if from says so: all that had not gone by then.
func (g *gangState) known(from Micros, is func(uid string) bool) (n int) {
	for uid, p := range g.members {
		if (!p.gone || p.goneAt >= from) && is(uid) {
			n++
		}
	}
	return n
}

// gang returns the gang of a name, with its namespace.
func (c *checker) gang(name string) *gangState {
	g := c.gangs[name]
	if g == nil {
		g = &gangState{name: name, members: map[string]*podState{}}
		c.gangs[name] = g
	}
	return g
}

// gangOf returns the gang of a pod; nil if it has none.
func (c *checker) gangOf(p *podState) *gangState {
	if name := gangName(p.pod); name != "" {
		return c.gang(name)
	}
	return nil
}

// group follows a PodGroup.
func (c *checker) group(at Micros, o *Object) {
	g := c.gang(o.Name)
	if g.there = !o.Deleted; o.Deleted {
		g.until = at
		return
	}
	g.group = o.Group
}

// ganged judges the bind of a pod that names a PodGroup, decided when its intent was recorded.
func (c *checker) ganged(at Micros, revision int64, p *podState, decided Micros) {
	g := c.gangOf(p)
	if g == nil {
		return
	}
	bound, _ := g.split()
	known := min(c.around(decided).from, c.around(at).from)
	// 1. There are enough pods, as far as Berth can have known.
	exist := g.known(known, func(string) bool { return true })
	switch {
	case g.group == nil:
		c.report(RuleWhole, at, "pod %s was bound at resource version %d: there has been no PodGroup %s", p.name, revision, g.name)
		return
	case !g.there && g.until < known:
		c.report(RuleWhole, at, "pod %s was bound at resource version %d, when its PodGroup had gone", p.name, revision)
	case exist < g.minCount():
		c.report(RuleWhole, at, "pod %s was bound at resource version %d: its gang has %d pods, and wants %d", p.name, revision, exist, g.minCount())
	}
	// 2. They are in one domain.
	for _, key := range g.topology() {
		mine, has := c.label(p.pod.Spec.NodeName, key)
		if !has {
			c.report(RuleDomain, at, "pod %s was bound to %s at resource version %d, which has no label %s", p.name, p.pod.Spec.NodeName, revision, key)
			continue
		}
		for _, other := range bound {
			if theirs, _ := c.label(other.pod.Spec.NodeName, key); theirs != mine {
				c.report(RuleDomain, at, "pod %s was bound to %s at resource version %d, where %s is %q, and %s of its gang is on %s, where that is %q",
					p.name, p.pod.Spec.NodeName, revision, key, mine, other.name, other.pod.Spec.NodeName, theirs)
				break
			}
		}
	}
	// 3. It takes no longer than binds do.
	if g.since == 0 {
		g.since = at
	}
	if !g.settled && len(bound) >= g.minCount() {
		c.took(g, at)
		g.settled = true
	}
}

// label returns the value of a node's label.
func (c *checker) label(node, key string) (value string, has bool) {
	if n := c.nodes[node]; n != nil {
		for _, v := range slices.Backward(n.versions) {
			if v.node != nil {
				value, has = v.node.Labels[key]
				return value, has
			}
		}
	}
	return "", false
}

// ungang notes that a pod of a gang goes, or is about to.
func (c *checker) ungang(p *podState) {
	if g := c.gangOf(p); g != nil && g.since > 0 {
		g.settled = true
	}
}

// took judges how long it has taken, by at, to bind enough pods of a gang. Each fault that was going on, and its aftermath, may make it longer; and of a pod whose bind
// was refused, or not answered, the room may be another's by now.
func (c *checker) took(g *gangState, at Micros) {
	deadline := g.since + wholeWithin
	for _, f := range c.faults { // they are in their order
		if f.from <= deadline {
			deadline = max(deadline, min(f.to, math.MaxInt64-wholeWithin)+wholeWithin)
		}
	}
	if at <= deadline || c.broken(g) {
		return
	}
	bound, _ := g.split()
	c.report(RuleWhole, at, "%d of at least %d pods of gang %s are bound, the first of them since %v, and no fault was near since %v",
		len(bound), g.minCount(), g.name, g.since.Duration(), (deadline - wholeWithin).Duration())
}

// broken reports whether the bind of a pod of a gang was refused or not answered. With the local source none is: its pods that are deleted are no part of it.
func (c *checker) broken(g *gangState) bool {
	for uid := range g.members {
		if c.unbound[uid] {
			return true
		}
	}
	return false
}

// first is when an intent of a pod was first recorded.
type first struct {
	revision int64
	at       Micros
}

// recorded judges the records of intents: whenever the first one of a pod of a gang is there, those of enough others are. It is one transaction that places a gang.
func (c *checker) recorded(g *gangState) {
	judged := map[int64]bool{}
	for _, uid := range slices.Sorted(maps.Keys(g.members)) {
		f, is := c.firsts[uid]
		if !is || judged[f.revision] || g.group == nil {
			continue
		}
		judged[f.revision] = true
		n := g.known(c.around(f.at).from, func(uid string) bool {
			other, is := c.firsts[uid]
			return is && other.revision <= f.revision
		})
		if n < g.minCount() {
			c.report(RuleWhole, f.at, "the intent of pod %s was recorded at revision %d, by which there had been one of %d pods of its gang, which wants %d at least",
				g.members[uid].name, f.revision, n, g.minCount())
		}
	}
}

// gangsEnd judges all gangs, when all is over.
func (c *checker) gangsEnd(over Micros) {
	for _, name := range slices.Sorted(maps.Keys(c.gangs)) {
		g := c.gangs[name]
		c.recorded(g)
		bound, waiting := g.split()
		enough := g.there && len(bound)+len(waiting) >= g.minCount()
		if enough && g.since > 0 && !g.settled {
			c.took(g, over)
		}
		if !enough || len(waiting) == 0 { // nothing is tried for those that wait
			continue
		}
		on, fits := c.fitsGang(g, bound, waiting)
		switch {
		case fits:
			c.report(RuleLost, over, "gang %s would fit on %s, and %d of its %d pods, of which it wants %d, have no node; the condition of %s says %q",
				name, on, len(waiting), len(bound)+len(waiting), g.minCount(), waiting[0].name, waiting[0].reason)
			continue
		case g.since > 0 && !g.settled && !c.broken(g):
			c.report(RuleWhole, over, "%d of at least %d pods of gang %s are bound", len(bound), g.minCount(), name)
		}
		for _, p := range waiting {
			if p.reason != corev1.PodReasonUnschedulable {
				c.report(RuleLost, over, "pod %s of a gang that does not fit has a condition that says %q", p.name, p.reason)
			}
		}
	}
}

// fitsGang reports whether as many pods of a gang as it lacks would fit, or one if it lacks none, and on which nodes. That it does not say so does not mean that they would not: it tries one
// way to place them, and looks at room alone.
func (c *checker) fitsGang(g *gangState, bound, waiting []*podState) (on string, fits bool) {
	need := max(1, g.minCount()-len(bound))
	domain := func(node string) (of string, in bool) {
		for _, key := range g.topology() {
			value, has := c.label(node, key)
			if !has {
				return "", false
			}
			of += key + "=" + value + " "
		}
		return of, true
	}
	domains := map[string][]corev1.ResourceList{}
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		if room := c.nodes[name].room(); room != nil {
			if of, in := domain(name); in {
				domains[of] = append(domains[of], room)
			}
		}
	}
	if len(bound) > 0 {
		of, _ := domain(bound[0].pod.Spec.NodeName)
		domains = map[string][]corev1.ResourceList{of: domains[of]}
	}
	small := slices.Clone(waiting)
	slices.SortStableFunc(small, func(a, b *podState) int { return cmp.Compare(milliCPU(a.pod), milliCPU(b.pod)) })
	for _, of := range slices.Sorted(maps.Keys(domains)) {
		n := 0
		for _, p := range small {
			if slices.ContainsFunc(domains[of], func(room corev1.ResourceList) bool { return take(room, p.pod) }) {
				n++
			}
		}
		if n >= need {
			return strings.TrimSpace(cmp.Or(of, "nodes of no domain")), true
		}
	}
	return "", false
}

// room returns what is left on a node, or nil if it takes no pods of gangs.
func (n *nodeState) room() corev1.ResourceList {
	node := n.versions[len(n.versions)-1].node
	if node == nil || node.Spec.Unschedulable || slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Effect == corev1.TaintEffectNoSchedule }) {
		return nil
	}
	left := node.Status.Allocatable.DeepCopy()
	for _, p := range n.pods {
		for name, q := range asks(p.pod) {
			has := left[name]
			has.Sub(q)
			left[name] = has
		}
	}
	return left
}

// take takes what a pod asks for, if it is there.
func take(room corev1.ResourceList, p *corev1.Pod) bool {
	for name, q := range asks(p) {
		if has := room[name]; has.Cmp(q) < 0 {
			return false
		}
	}
	for name, q := range asks(p) {
		has := room[name]
		has.Sub(q)
		room[name] = has
	}
	return true
}

// asks returns what a pod asks a node for, its place among the pods included.
func asks(p *corev1.Pod) corev1.ResourceList {
	all := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
	all[corev1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
	return all
}

// unanswered returns the pods of which a bind was refused or not answered.
func unanswered(entries []Entry) map[string]bool {
	out := map[string]bool{}
	for _, e := range entries {
		if e.Call != nil && e.Call.Verb == verbBind && e.Call.Outcome != Done {
			out[e.Call.UID] = true
		}
	}
	return out
}

// gangsWhole returns how many gangs had enough pods bound at some time, and how many pods of gangs were bound.
func gangsWhole(entries []Entry) (whole, pods int) {
	want, of, bound := map[string]int{}, map[string]string{}, map[string]map[string]bool{}
	done := map[string]bool{}
	for _, e := range entries {
		o := e.Object
		switch {
		case o == nil:
			continue
		case o.Group != nil && o.Group.Spec.SchedulingPolicy.Gang != nil:
			want[o.Name] = int(o.Group.Spec.SchedulingPolicy.Gang.MinCount)
			continue
		case o.ofPod() && gangName(o.Pod) != "":
			of[o.UID] = gangName(o.Pod)
		}
		name := of[o.UID]
		if !o.ofPod() || o.On == "" || name == "" || bound[name][o.UID] {
			continue
		}
		if bound[name] == nil {
			bound[name] = map[string]bool{}
		}
		bound[name][o.UID] = true
		pods++
		if len(bound[name]) >= want[name] && !done[name] {
			done[name] = true
			whole++
		}
	}
	return whole, pods
}
