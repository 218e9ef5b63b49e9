package whatif

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// Pods of a group that prefers labels, from the broadest to the narrowest, go to few domains. First each domain of all labels is tried by itself. If none takes the pods, those of all labels but the last are: in each, as few of
// the domains within as take the pods together; and so on, up to all nodes that the group may be on. What takes the pods takes as many as could be placed without a preference, so none waits for it.

// mostLooks bounds for how many nodes, times pods, it is found out where pods would be nearest to each other: about two seconds. Of a group for which that is not enough what has been found by then is taken, and if that is nothing,
// there is no preference. It is not the time that bounds it, so that the same group is placed at the same nodes everywhere.
const mostLooks = 1 << 30

// area is a domain of the labels that a group requires, and of some of those that it prefers, or a part of one that lacks the next label.
type area struct {
	name  string // the values of its labels
	nodes []cluster.NodeIndex
	parts []*area // the domains of the next label
	rest  *area   // the nodes that lack it; nil: none does
	here  int     // how many pods of the group are on its nodes

	atMost  int // no more pods fit; see engine.Comers
	least   int // of its parts, no fewer take the pods
	takes   int // how many of the pods it takes alone; -1: that is not known
	ordered bool
	fit     engine.Fullness // with all pods
	best    int64           // what the first of the pods would score on the best of its nodes
}

// value is how many pods it takes alone, or a bound on that.
func (a *area) value() int {
	if a.takes >= 0 {
		return a.takes
	}
	return a.atMost
}

// near is one run of PlaceGroup for a group with a preference.
type near struct {
	*trial
	levels  [][]*area // by how many of the preferred labels they are of
	members int       // how many pods of the group are on nodes
	target  int       // how many of the pods can be placed
	scores  []int64   // of the first pod, by node
	looks   int       // that are left
}

// nearby places the pods where they are near each other, as far as so many looks at nodes tell. Not ok: they do not fit, or there are too few looks, or some of the pods have been nominated, so that others have gone for them where they go; then they are placed as if there were no preference.
func (t *trial) nearby(looks int) (out GroupOutcome, ok bool, err error) {
	st := t.w.State()
	for _, id := range t.pods {
		if st.Pod(id).Nominated != "" {
			return GroupOutcome{}, false, nil
		}
	}
	n := &near{trial: t, looks: looks}
	n.find()
	if n.target, err = n.most(); err != nil || n.target < max(t.wants-t.before, 1) {
		return GroupOutcome{}, false, err
	}
	if err := n.bound(); err != nil {
		return GroupOutcome{}, false, err
	}
	a, err := n.search()
	if err != nil || a == nil {
		return GroupOutcome{}, false, err
	}
	out = GroupOutcome{Fit: t.before + a.placed, Wants: t.wants, Domain: a.name}
	start := len(t.w.steps)
	if out.Pods, err = t.take(a, 1); err != nil {
		return GroupOutcome{}, false, err
	}
	out, err = t.settle(out, start)
	return out, true, err
}

// find finds the areas of each level.
func (n *near) find() {
	st := n.w.State()
	required := len(n.group.Topology)
	keys := append(slices.Clone(n.group.Topology), n.group.Preferred...)
	symbols := make([]cluster.Symbol, len(keys))
	for k, key := range keys {
		symbols[k] = st.Symbols.Lookup(key)
	}
	on := make(map[cluster.NodeIndex]int)
	for _, id := range st.GroupPods(n.key) {
		if row := st.Pod(id); row.Placed() {
			n.members++
			on[row.Node]++
		}
	}
	n.levels = make([][]*area, len(n.group.Preferred)+1)
	type at struct {
		in    *area
		value cluster.Symbol
	}
	known := make(map[at]*area)
	root := &area{takes: -1} // of no label
	if required == 0 {
		n.levels[0] = []*area{root}
	}
	for i := range cluster.NodeIndex(st.Nodes.Len()) {
		if !st.Nodes.Live.Has(i) {
			continue
		}
		a := root
		if required == 0 {
			a.add(i, on[i])
		}
		for k, key := range symbols {
			value := valueOf(st, i, key)
			if value == cluster.NoSymbol {
				if k >= required {
					if a.rest == nil {
						a.rest = &area{name: a.name, takes: -1}
					}
					a.rest.add(i, on[i])
				}
				break
			}
			in := known[at{a, value}]
			if in == nil {
				in = &area{name: joinedName(a.name, st.Symbols.Text(value), k), takes: -1}
				known[at{a, value}] = in
				if k+1 >= required {
					n.levels[k+1-required] = append(n.levels[k+1-required], in)
				}
				a.parts = append(a.parts, in)
			}
			a = in
			if k+1 >= required {
				a.add(i, on[i])
			}
		}
	}
}

// valueOf returns the value of a label of a node.
func valueOf(st *cluster.State, i cluster.NodeIndex, key cluster.Symbol) cluster.Symbol {
	for _, l := range st.Nodes.Labels[i] {
		if l.Key == key {
			return l.Value
		}
	}
	return cluster.NoSymbol
}

func joinedName(before, value string, level int) string {
	if level == 0 {
		return value
	}
	return before + "/" + value // no value of a label has a slash
}

func (a *area) add(i cluster.NodeIndex, members int) {
	a.nodes = append(a.nodes, i)
	a.here += members
}

// most returns how many of the pods can be placed without a preference. Of a group with a topology that is in the domain that takes the most.
func (n *near) most() (most int, err error) {
	st := n.w.State()
	if len(n.group.Topology) == 0 {
		err = n.w.Try(func() error {
			_, most, err = n.places(everywhere(st))
			return err
		})
		return most, err
	}
	tops := n.candidates(0)
	for k, a := range tops {
		if err := n.betweenDomains(k); err != nil {
			return 0, err
		}
		a.atMost = n.coming().AtMost(st, a.nodes, len(n.pods))
	}
	slices.SortFunc(tops, func(a, b *area) int { return cmp.Or(cmp.Compare(b.atMost, a.atMost), cmp.Compare(a.name, b.name)) })
	for _, a := range tops {
		if most == len(n.pods) || a.atMost <= most {
			break
		}
		tried, known, err := n.try(a)
		if err != nil || !known {
			return 0, err
		}
		most = max(most, tried.placed)
	}
	return most, nil
}

// try finds out how the pods would be placed on the nodes of some areas. False: that takes longer than is left, so nothing is known.
func (n *near) try(areas ...*area) (a attempt, known bool, err error) {
	if err := n.w.Between(); err != nil {
		return a, false, err
	}
	most := 0
	for _, of := range areas {
		most += of.atMost
	}
	nodes := n.w.State().Nodes.Len()
	if n.looks < min(most, len(n.pods))*nodes {
		n.looks = 0 // nor is anything else tried
		return a, false, nil
	}
	before := n.asked
	a, err = n.attempt(union(areas...))
	n.looks -= (n.asked - before) * nodes
	return a, err == nil, err
}

// union returns the nodes of some areas.
func union(areas ...*area) *domain {
	var d domain
	for _, a := range areas {
		d.nodes = append(d.nodes, a.nodes...)
	}
	return &d
}

// bound finds of each area how many pods it takes at most, and of how many parts it needs at least.
func (n *near) bound() error {
	st := n.w.State()
	leaf := func(a *area) error {
		a.atMost = min(n.coming().AtMost(st, a.nodes, len(n.pods)), len(n.pods))
		return n.w.Between()
	}
	for k := len(n.levels) - 1; k >= 0; k-- {
		for _, a := range n.levels[k] {
			if k == len(n.levels)-1 {
				if err := leaf(a); err != nil {
					return err
				}
				continue
			}
			sum := 0
			if a.rest != nil {
				if err := leaf(a.rest); err != nil {
					return err
				}
				sum = a.rest.atMost
			}
			for _, part := range a.parts {
				sum += part.atMost
			}
			a.atMost, a.least = min(sum, len(n.pods)), n.least(a.parts)
		}
	}
	return nil
}

// least returns how many of some areas the pods need at least, those not counted where pods of the group are; one more than there are if they do not take them.
func (n *near) least(parts []*area) int {
	sum, others := 0, make([]int, 0, len(parts))
	for _, a := range parts {
		if a.here > 0 {
			sum += a.atMost
		} else {
			others = append(others, a.atMost)
		}
	}
	slices.SortFunc(others, func(a, b int) int { return cmp.Compare(b, a) })
	k := 0
	for ; sum < n.target && k < len(others); k++ {
		sum += others[k]
	}
	if sum < n.target {
		return len(others) + 1
	}
	return k
}

// candidates returns the areas of a level where all pods of the group are that are on nodes.
func (n *near) candidates(level int) []*area {
	if level == 0 && len(n.group.Topology) == 0 {
		return n.levels[0] // all nodes, if some of the pods are on none that is known
	}
	return slices.DeleteFunc(slices.Clone(n.levels[level]), func(a *area) bool { return a.here != n.members })
}

// roomy returns those of candidates that may take the pods.
func (n *near) roomy(level int) []*area {
	return slices.DeleteFunc(slices.Clone(n.candidates(level)), func(a *area) bool { return a.atMost < n.target })
}

// compare puts the area first that is fuller with all pods on it; then where the first of them would score more; then by name.
func (n *near) compare(a, b *area) int {
	n.order(a)
	n.order(b)
	return cmp.Or(b.fit.Compare(a.fit), cmp.Compare(b.best, a.best), cmp.Compare(a.name, b.name))
}

func (n *near) order(a *area) {
	if a.ordered {
		return
	}
	st := n.w.State()
	if n.scores == nil {
		n.scores = make([]int64, st.Nodes.Len())
		for i := range n.scores {
			n.scores[i] = math.MinInt64
		}
		n.room, _, _ = n.w.Evaluator().TotalsAmong(st, engine.SubjectOf(&st.Pod(n.pods[0]).Pod), n.in(union(n.levels[0]...)), n.room[:0])
		for _, total := range n.room {
			n.scores[total.Node] = total.Total
		}
	}
	a.ordered, a.best = true, math.MinInt64
	for _, i := range a.nodes {
		a.best = max(a.best, n.scores[i])
	}
	a.fit = n.coming().Fullness(st, a.nodes)
}

// search finds how the pods are placed nearest to each other; nil: they are not.
func (n *near) search() (*attempt, error) {
	last := len(n.levels) - 1
	in := n.roomy(last)
	slices.SortFunc(in, n.compare)
	for _, a := range in {
		tried, known, err := n.try(a)
		if err != nil || !known {
			return nil, err
		}
		if a.takes = tried.placed; a.takes >= n.target {
			tried.domain = n.required(tried.domain, a)
			return &tried, nil
		}
	}
	for level := last - 1; level >= 0; level-- {
		c, err := n.spread(n.roomy(level))
		if err != nil {
			return nil, err
		}
		if c != nil {
			return n.narrow(c, last-level-1)
		}
	}
	return nil, nil
}

// required names a set of nodes by the labels that the group requires: those of the top area that has one of them.
func (n *near) required(d *domain, a *area) *domain {
	if len(n.group.Topology) == 0 {
		return d
	}
	name, _ := domainOf(n.w.State(), n.group.Topology)(a.nodes[0])
	return &domain{name: name, nodes: d.nodes}
}

// choice is areas that take the pods together.
type choice struct {
	of    *area // whose parts they are
	areas []*area
	k     int // of how many areas they are, those not counted where pods of the group are
	how   attempt
}

// spread finds the area that takes the pods with the fewest of its parts; nil: none takes them.
func (n *near) spread(in []*area) (best *choice, err error) {
	slices.SortFunc(in, func(a, b *area) int { return cmp.Or(cmp.Compare(a.least, b.least), n.compare(a, b)) })
	for _, a := range in {
		if best != nil && cmp.Or(cmp.Compare(best.k, a.least), n.compare(best.of, a)) < 0 {
			break // nor is any behind it better
		}
		var rest []*area
		if a.rest != nil {
			rest = []*area{a.rest}
		}
		c, err := n.fewest(a.parts, rest)
		if err != nil {
			return nil, err
		}
		if c == nil {
			continue
		}
		c.of = a
		if best == nil || cmp.Or(cmp.Compare(c.k, best.k), n.compare(a, best.of)) < 0 {
			best = c
		}
	}
	return best, nil
}

// narrow takes as few as it can of what is within the areas of a choice, down so many levels.
func (n *near) narrow(c *choice, levels int) (*attempt, error) {
	for range levels {
		var parts, rest []*area
		for _, a := range c.areas {
			parts = append(parts, a.parts...)
			if a.rest != nil {
				rest = append(rest, a.rest)
			} else if len(a.parts) == 0 {
				rest = append(rest, a) // the nodes of an area that lack a label
			}
		}
		within, err := n.fewest(parts, rest)
		if err != nil {
			return nil, err
		}
		if within == nil { // where pods keep others away, fewer nodes may take more; or it would take too long
			break
		}
		within.of, c = c.of, within
	}
	c.how.domain = n.required(c.how.domain, c.of)
	return &c.how, nil
}

// fewest finds the fewest of some areas that take the pods together, and of rest, which counts as one, if they do not. Those are taken first where pods of the group are, and then those that take most alone. Nil: all of them do not
// take the pods.
func (n *near) fewest(parts, rest []*area) (*choice, error) {
	var free, order []*area
	left := make([]*area, 0, len(parts))
	for _, a := range parts {
		if a.here > 0 {
			free = append(free, a)
		} else {
			left = append(left, a)
		}
	}
	ends := len(left)
	if len(rest) > 0 {
		ends++
	}
	take := func(k int) (*choice, error) {
		for len(order) < min(k, len(parts)-len(free)) {
			next, err := n.largest(&left)
			if err != nil {
				return nil, err
			}
			order = append(order, next)
		}
		c := &choice{areas: append(slices.Clone(free), order[:min(k, len(order))]...), k: k}
		if k > len(order) {
			c.areas = append(c.areas, rest...)
		}
		known, err := false, error(nil)
		c.how, known, err = n.try(c.areas...)
		if err != nil || !known || c.how.placed < n.target {
			return nil, err
		}
		return c, nil
	}
	// 1. So many that take them. With fewer than least they do not.
	low := n.least(parts) - 1
	if low >= ends {
		low = ends - 1 // what lacks the label may take them
	}
	var found *choice
	for k, step := max(low+1, 0), 1; ; step *= 2 {
		c, err := take(k)
		if err != nil {
			return nil, err
		}
		if c != nil {
			found = c
			break
		}
		if low = k; k == ends {
			return nil, nil
		}
		k = min(k+step, ends)
	}
	// 2. The fewest of these.
	for found.k-low > 1 {
		c, err := take(low + (found.k-low)/2)
		if err != nil {
			return nil, err
		}
		if c != nil {
			found = c
		} else {
			low += (found.k - low) / 2
		}
	}
	return found, nil
}

// largest takes the area out of some that takes most of the pods alone, and of those that take as many the first by compare. Only those are tried that may be it.
func (n *near) largest(left *[]*area) (*area, error) {
	for {
		first := 0
		for k, a := range *left {
			b := (*left)[first]
			if k > 0 && cmp.Or(cmp.Compare(b.value(), a.value()), n.compare(a, b)) < 0 {
				first = k
			}
		}
		a := (*left)[first]
		if a.takes >= 0 {
			*left = slices.Delete(*left, first, first+1)
			return a, nil
		}
		if a.atMost == 0 {
			a.takes = 0
			continue
		}
		tried, known, err := n.try(a)
		if err != nil {
			return nil, fmt.Errorf("try %s: %w", a.name, err)
		}
		if !known {
			a.takes = 0 // there is nothing left to try it with
			continue
		}
		a.takes = tried.placed
	}
}
