package whatif

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// domain is the nodes with the same values of some labels.
type domain struct {
	name     string
	nodes    []cluster.NodeIndex // there may be as many domains as nodes: a set of all nodes for each would be too large
	anywhere bool                // all nodes: the group has no topology
}

// everywhere returns all nodes.
func everywhere(st *cluster.State) *domain {
	d := domain{nodes: make([]cluster.NodeIndex, 0, st.Nodes.Count()), anywhere: true}
	for i := range cluster.NodeIndex(st.Nodes.Len()) {
		if st.Nodes.Live.Has(i) {
			d.nodes = append(d.nodes, i)
		}
	}
	return &d
}

// in returns the nodes of a domain as a set, which holds until it is asked for that of another one. The domain is not to change.
func (t *trial) in(d *domain) cluster.Bitmap {
	switch st := t.w.State(); {
	case d.anywhere:
		return st.Nodes.Live
	case t.of == d:
		return t.within
	case t.of != nil:
		for _, i := range t.of.nodes {
			t.within.Clear(i)
		}
	default:
		t.within = cluster.NewBitmap(st.Nodes.Len())
	}
	for _, i := range d.nodes {
		t.within.Set(i)
	}
	t.of = d
	return t.within
}

// domainAt returns the place of the domain of a node among some, which are by name; less than 0: it is in none.
func domainAt(st *cluster.State, all []domain, in func(cluster.NodeIndex) (string, bool), node cluster.NodeIndex) int {
	if !st.Nodes.Live.Has(node) {
		return -1
	}
	name, labelled := in(node)
	if !labelled {
		return -1
	}
	return domainNamed(all, name)
}

// domainNamed is likewise.
func domainNamed(all []domain, name string) int {
	k, is := slices.BinarySearchFunc(all, name, func(d domain, name string) int { return cmp.Compare(d.name, name) })
	if !is {
		return -1
	}
	return k
}

// domains returns the domains of some labels, by name.
func domains(st *cluster.State, keys []string) []domain {
	at := make(map[string]int)
	var out []domain
	in := domainOf(st, keys)
	for i := range cluster.NodeIndex(st.Nodes.Len()) {
		if !st.Nodes.Live.Has(i) {
			continue
		}
		name, labelled := in(i)
		if !labelled {
			continue
		}
		d, ok := at[name]
		if !ok {
			d = len(out)
			at[name] = d
			out = append(out, domain{name: name})
		}
		out[d].nodes = append(out[d].nodes, i)
	}
	slices.SortFunc(out, func(a, b domain) int { return cmp.Compare(a.name, b.name) })
	return out
}

// domainOf returns what tells the domain of a node: its values of some labels. False: it lacks one.
func domainOf(st *cluster.State, keys []string) func(cluster.NodeIndex) (string, bool) {
	symbols := make([]cluster.Symbol, len(keys))
	for k, key := range keys {
		symbols[k] = st.Symbols.Lookup(key)
	}
	values := make([]string, len(keys))
	return func(i cluster.NodeIndex) (string, bool) {
		for k, symbol := range symbols {
			n := slices.IndexFunc(st.Nodes.Labels[i], func(l cluster.NodeLabel) bool { return l.Key == symbol })
			if n < 0 {
				return "", false
			}
			values[k] = st.Symbols.Text(st.Nodes.Labels[i][n].Value)
		}
		return strings.Join(values, "/"), true // no value of a label has a slash
	}
}

// DomainOf returns the domain of a node, by the values of some labels. False: it lacks one.
func DomainOf(st *cluster.State, keys []string, node cluster.NodeIndex) (string, bool) {
	if node == cluster.NoNode {
		return "", false
	}
	return domainOf(st, keys)(node)
}

// inDomains places the pods in the best domain.
func (t *trial) inDomains() (GroupOutcome, error) {
	st := t.w.State()
	all := t.all
	if all == nil {
		all = domains(st, t.group.Topology)
	}
	before := st.GroupPlaced(t.key)
	if before > 0 {
		var err error
		if all, err = t.whereItIs(all); err != nil {
			return GroupOutcome{Pods: t.unplaced(err.Error()), Fit: before, Wants: t.wants, Message: err.Error()}, nil
		}
	}
	if len(all) == 0 {
		const none = "no feasible placements found"
		return GroupOutcome{Pods: t.unplaced(none), Fit: before, Wants: t.wants, Message: none}, nil
	}
	best, err := t.bestDomain(all, before)
	if err != nil {
		return GroupOutcome{}, fmt.Errorf("place group: %w", err)
	}
	out := GroupOutcome{Fit: before + best.placed, Wants: t.wants, Domain: best.name}
	start := len(t.w.steps)
	if out.Pods, err = t.take(best, len(all)); err != nil {
		return GroupOutcome{}, fmt.Errorf("place group: %w", err)
	}
	if out, err = t.settle(out, start); err == nil && !out.Placed && len(all) > 1 {
		out.Message = fmt.Sprintf("0/%d placements are available, the best: %s", len(all), out.Message)
	}
	return out, err
}

// bestDomain returns how the pods would be placed in the best domain. Where all of them fit, how full it is then is known beforehand: so domains are tried from the one that would be fullest on, until
// no other can be better.
func (t *trial) bestDomain(all []domain, before int) (*attempt, error) {
	st, profile := t.w.State(), t.profile()
	order := make([]attempt, len(all))
	for d := range all {
		if err := t.betweenDomains(d); err != nil {
			return nil, err
		}
		order[d] = attempt{domain: &all[d], fit: t.coming().Fullness(st, all[d].nodes)}
	}
	slices.SortStableFunc(order, func(a, b attempt) int { return b.fit.Compare(a.fit) })
	order, err := t.roomy(order, before)
	if err != nil {
		return nil, err
	}
	most, tried := 0, make([]attempt, 0, 1) // the best of those with as many pods
	better := func(a, b *attempt) int {
		return cmp.Or(a.fit.Compare(b.fit), cmp.Compare(a.total, b.total), cmp.Compare(b.name, a.name))
	}
	var whole *engine.Fullness // of the first where all pods are placed
	grows := engine.FullnessGrows(profile)
	for k := range order {
		if grows && whole != nil && whole.Compare(order[k].fit) > 0 {
			break
		}
		if k > 0 && order[k].atMost < max(t.wants-before, 1) && order[k].atMost <= most {
			break // and all behind it
		}
		if err := t.w.Between(); err != nil {
			return nil, err
		}
		a, err := t.attempt(order[k].domain)
		if err != nil {
			return nil, err
		}
		a.fit = order[k].fit
		switch {
		case a.placed < len(t.pods):
			a.fit = engine.ComersOf(st, profile, t.classes(&a)).Fullness(st, a.domain.nodes)
		case whole == nil:
			whole = &a.fit
		}
		most = max(most, a.placed)
		if k := slices.IndexFunc(tried, func(b attempt) bool { return b.placed == a.placed }); k < 0 {
			tried = append(tried, a)
		} else if better(&a, &tried[k]) > 0 {
			tried[k] = a
		}
	}
	score := func(a *attempt) int64 { // as kube-scheduler's PodGroupPodsCount and NodeResourcesFit give it
		return podsScore(before+a.placed, before+most) + a.fit.Score
	}
	enough := func(a *attempt) int {
		if before+a.placed >= t.wants && a.placed > 0 {
			return 1
		}
		return 0
	}
	best := slices.MaxFunc(tried, func(a, b attempt) int {
		return cmp.Or(cmp.Compare(enough(&a), enough(&b)), cmp.Compare(score(&a), score(&b)), better(&a, &b))
	})
	return &best, nil
}

// podsScore is what kube-scheduler's PodGroupPodsCount gives a placement of so many pods of a group, where another one has the most, 0 to 100.
func podsScore(pods, most int) int64 {
	if most == 0 {
		return 0
	}
	return int64(pods) * 100 / int64(most)
}

// roomy returns those of some domains where enough pods may fit, by what they request; if there are none, all, those first where most may: how far the group comes is to be said.
func (t *trial) roomy(order []attempt, before int) (out []attempt, err error) {
	st, enough := t.w.State(), max(t.wants-before, 1)
	for k := range order {
		if err := t.betweenDomains(k); err != nil {
			return nil, err
		}
		order[k].atMost = t.coming().AtMost(st, order[k].domain.nodes, len(t.pods))
		if order[k].atMost >= enough {
			out = append(out, order[k])
		}
	}
	if len(out) == 0 {
		out = slices.Clone(order)
		slices.SortStableFunc(out, func(a, b attempt) int { return cmp.Compare(b.atMost, a.atMost) })
	}
	return out, nil
}

// betweenDomains is World.Between before every 64th of domains of which one costs little.
func (t *trial) betweenDomains(k int) error {
	if k%64 > 0 {
		return nil
	}
	return t.w.Between()
}

// whereItIs returns the domain in which the pods of the group are that have nodes.
func (t *trial) whereItIs(all []domain) ([]domain, error) {
	st := t.w.State()
	var is *domain
	in := domainOf(st, t.group.Topology)
	for _, id := range st.GroupPods(t.key) {
		row := st.Pod(id)
		if !row.Placed() {
			continue
		}
		k := domainAt(st, all, in, row.Node)
		switch {
		case k < 0:
			return nil, fmt.Errorf("cannot determine domain for already scheduled pods: no topology domain found for pod %s/%s", row.Namespace, row.Name)
		case is != nil && is != &all[k]:
			a, b := is.name, all[k].name
			return nil, fmt.Errorf("cannot determine domain for already scheduled pods: more than 1 domain found for pod group: %s, %s", min(a, b), max(a, b))
		}
		is = &all[k]
	}
	return []domain{*is}, nil
}

// mayBeIn returns the domains in which the pods of the group may be: where others of it are, if some have nodes. A group without a topology may be everywhere.
func (t *trial) mayBeIn() ([]domain, error) {
	st := t.w.State()
	if len(t.group.Topology) == 0 {
		return []domain{*everywhere(st)}, nil
	}
	all := domains(st, t.group.Topology)
	if st.GroupPlaced(t.key) == 0 {
		return all, nil
	}
	return t.whereItIs(all)
}

// needingRoom returns what a group is tried with for which others are to go, the domains in which it may be, and how many of its pods have nodes. One more of them has to find one, however many a gang wants. False: there is nothing to be done for it.
func needingRoom(w *World, key cluster.GroupKey, pods []cluster.PodID) (t *trial, all []domain, before int, may bool) {
	st := w.State()
	group := st.PodGroup(key)
	if group == nil || len(pods) == 0 {
		return nil, nil, 0, false
	}
	t = &trial{w: w, group: group, key: key, pods: pods}
	if group.Gang {
		t.wants = int(group.MinCount)
	}
	before = st.GroupPlaced(key)
	t.wants = max(t.wants, before+1)
	if before+len(pods) < t.wants || t.profile() == nil {
		return nil, nil, 0, false
	}
	all, err := t.mayBeIn()
	return t, all, before, err == nil
}
