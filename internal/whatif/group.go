package whatif

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// GroupOutcome says what becomes of pods of a PodGroup that are placed together.
type GroupOutcome struct {
	Placed bool // the group is: its pods that are Placed are assumed
	// Fit is how many of its pods are on nodes, or could be now; of a group that is not placed in the best domain for it. Wants is how many a gang wants at least.
	Fit, Wants int
	Domain     string       // where they are, or would be if the group were placed, of a group with a topology: the values of its labels
	Pods       []PodOutcome // in the order of the pods
	Message    string       // why it is not placed
	// Waits says that pods of it are nominated, and pods are on the way out of their nodes, or volumes: it is not to preempt meanwhile, nor to lose its nominations.
	Waits bool
}

// PlaceGroup places pending pods of a PodGroup, one after the other as Place does: of a gang as many as it wants, with those that are on nodes already, or none. A group with a topology is tried in
// each of its domains, those that have all its labels, or in the one where pods of it are; the domain is taken where most pods fit and the nodes are fullest then, as in kube-scheduler,
// and of domains that are equal by that the one with the least left, then that of which the scores of the nodes sum up to most, then the first by name. A group that prefers labels goes to the fewest of their domains that take as
// many of its pods as can be placed: see near.
func PlaceGroup(w *World, key cluster.GroupKey, pods []cluster.PodID) (GroupOutcome, error) {
	return placeGroup(w, key, pods, nil)
}

// placeGroup is PlaceGroup where the domains of the group's topology may be known.
func placeGroup(w *World, key cluster.GroupKey, pods []cluster.PodID, all []domain) (GroupOutcome, error) {
	st := w.State()
	group := st.PodGroup(key)
	if group == nil {
		return GroupOutcome{}, fmt.Errorf("place group: there is no group %v", key)
	}
	if len(pods) == 0 {
		return GroupOutcome{}, fmt.Errorf("place group: no pod of %v is to be placed", key)
	}
	t := trial{w: w, group: group, key: key, pods: pods, all: all}
	if group.Gang {
		t.wants = int(group.MinCount)
	}
	t.before = st.GroupPlaced(key)
	for _, id := range pods {
		if why, may := w.Evaluator().Preempts(st, id); !may && engine.AwaitsRoom(why) {
			t.waits = true
		}
	}
	if before := st.GroupPlaced(key); before+len(pods) < t.wants {
		const others = "other pods of it are not tried"
		message := fmt.Sprintf("%s: %d of at least %d pods could fit: %s", Unschedulable, before+len(pods), t.wants, others)
		return GroupOutcome{Pods: t.unplaced(others), Fit: before, Wants: t.wants, Message: message}, nil
	}
	switch {
	case t.profile() == nil:
		const none = "no profile has its scheduler name"
		return GroupOutcome{Pods: t.unplaced(none), Fit: t.before, Wants: t.wants, Message: Unschedulable + ": " + none}, nil
	case len(group.Preferred) > 0:
		if out, ok, err := t.nearby(mostLooks); ok || err != nil {
			return out, err
		}
	}
	if len(group.Topology) == 0 {
		return t.anywhere()
	}
	return t.inDomains()
}

// ConfirmGroup finds out whether pods that PlaceGroup has placed still fit where they were, each, as it is now, and their nodes are in the same domain: not whether they would be placed there. One that does not gets another node of the
// domain, which found says then. Those for which there is none are Missed; if enough are left without them, these are to be placed.
func ConfirmGroup(w *World, key cluster.GroupKey, found *GroupOutcome) (fits bool, err error) {
	err = w.Try(func() error {
		var left []*PodOutcome
		for k := range found.Pods {
			if found.Pods[k].Outcome == Placed {
				left = append(left, &found.Pods[k])
			}
		}
		t, d := confirming(w, key, found)
		if d == nil {
			return nil
		}
		// 1. Where they were; what some want near may come with others.
		for more := true; more && len(left) > 0; {
			more = false
			still := left[:0]
			for _, p := range left {
				ok, err := t.stays(p, d)
				if err != nil {
					return err
				}
				if more = more || ok; !ok {
					still = append(still, p)
				}
			}
			left = still
		}
		// 2. Elsewhere, near the others if the group prefers that.
		for level := len(t.group.Preferred); level >= 0; level-- {
			near := t.in(d)
			if level > 0 && len(left) > 0 {
				near = t.nearTo(found, left, d, level)
			}
			for more := true; more && len(left) > 0; {
				more = false
				still := left[:0]
				for _, p := range left {
					ok, err := t.moves(p, near)
					if err != nil {
						return err
					}
					if more = more || ok; !ok {
						still = append(still, p)
					}
				}
				left = still
			}
		}
		// 3. Enough of them?
		placed := -len(left)
		for k := range found.Pods {
			if found.Pods[k].Outcome == Placed {
				placed++
			}
		}
		if fits = placed > 0 && found.Fit-len(left) >= found.Wants; fits {
			found.Fit -= len(left)
			for _, p := range left {
				p.Outcome, p.Node, p.Volumes, p.Missed = Unplaced, "", nil, true
			}
		}
		return nil
	})
	return fits, err
}

// nearTo returns the nodes of a domain that are where pods have been confirmed already, by so many of the labels that the group prefers.
func (t *trial) nearTo(found *GroupOutcome, left []*PodOutcome, d *domain, level int) cluster.Bitmap {
	st := t.w.State()
	in := domainOf(st, append(slices.Clone(t.group.Topology), t.group.Preferred[:level]...))
	there, lacks := make(map[string]bool), make(map[*PodOutcome]bool)
	for _, p := range left {
		lacks[p] = true
	}
	for k := range found.Pods {
		if p := &found.Pods[k]; p.Outcome == Placed && !lacks[p] {
			if name, ok := in(st.Nodes.ByName(p.Node)); ok {
				there[name] = true
			}
		}
	}
	near := cluster.NewBitmap(st.Nodes.Len())
	for i := range cluster.NodeIndex(st.Nodes.Len()) {
		if t.in(d).Has(i) {
			if name, ok := in(i); ok && there[name] {
				near.Set(i)
			}
		}
	}
	return near
}

// confirming returns what places pods in the domain that was found; nil: it is not theirs any more, or one of them is not what it was.
func confirming(w *World, key cluster.GroupKey, found *GroupOutcome) (*trial, *domain) {
	st := w.State()
	group := st.PodGroup(key)
	if group == nil {
		return nil, nil
	}
	t := &trial{w: w, group: group, key: key, failed: make(map[engine.Subject]cluster.Version)}
	for k := range found.Pods {
		if row := st.Pod(found.Pods[k].Pod); found.Pods[k].Outcome == Placed && (row == nil || row.Placed()) {
			return nil, nil
		}
	}
	if len(group.Topology) == 0 {
		return t, everywhere(st)
	}
	all := domains(st, group.Topology)
	if st.GroupPlaced(key) > 0 {
		var err error
		if all, err = t.whereItIs(all); err != nil {
			return nil, nil
		}
	}
	k := domainNamed(all, found.Domain)
	if k < 0 {
		return nil, nil
	}
	return t, &all[k]
}

// stays assumes a pod on the node that was found for it, if it still fits there.
func (t *trial) stays(p *PodOutcome, d *domain) (ok bool, err error) {
	if err := t.w.Between(); err != nil {
		return false, err
	}
	st := t.w.State()
	node := st.Nodes.ByName(p.Node)
	if node == cluster.NoNode || !t.in(d).Has(node) {
		return false, nil
	}
	v, known := t.w.Evaluator().Node(st, engine.SubjectOf(&st.Pod(p.Pod).Pod), p.Pod, node)
	if !known || !v.Feasible() {
		return false, nil
	}
	return t.confirm(p, node)
}

// moves assumes a pod on the node among some that is the best for it by now.
func (t *trial) moves(p *PodOutcome, among cluster.Bitmap) (ok bool, err error) {
	if err := t.w.Between(); err != nil {
		return false, err
	}
	clear(t.failed) // which is of a domain
	node, _, ok := t.best(p.Pod, among)
	if !ok {
		return false, nil
	}
	return t.confirm(p, node)
}

func (t *trial) confirm(p *PodOutcome, node cluster.NodeIndex) (ok bool, err error) {
	switch err := t.w.assume(p.Pod, node); {
	case errors.Is(err, errNoVolumes):
		return false, nil
	case err != nil:
		return false, err
	}
	st := t.w.State()
	p.Node, p.Volumes = st.Nodes.Spec[node].Name, slices.Clone(st.Chosen(p.Pod))
	return true, nil
}

// trial is one run of PlaceGroup.
type trial struct {
	w     *World
	group *cluster.PodGroup
	key   cluster.GroupKey
	pods  []cluster.PodID
	wants int
	// before is how many pods of the group have nodes, waits is GroupOutcome.Waits.
	before int
	waits  bool
	within cluster.Bitmap // the nodes of a domain, if one is looked at; see in
	of     *domain
	all    []domain       // nil: they are not known
	comers *engine.Comers // the pods, once it has been asked for; see coming
	room   []engine.NodeTotal
	asked  int                                // how often nodes were scored for a pod
	said   map[engine.Subject]*failure        // why pods of a subject fit nowhere, in the end
	failed map[engine.Subject]cluster.Version // that no node of the domain at hand fits pods of a subject, in the state of a version
}

// anywhere places the pods on any nodes.
func (t *trial) anywhere() (GroupOutcome, error) {
	before := len(t.w.steps)
	pods, err := Place(t.w, t.pods, PlaceOptions{apart: true})
	if err != nil {
		return GroupOutcome{}, fmt.Errorf("place group: %w", err)
	}
	out := GroupOutcome{Pods: pods, Fit: t.w.State().GroupPlaced(t.key), Wants: t.wants}
	return t.settle(out, before)
}

// settle leaves the pods placed if there are enough, and takes them back else.
func (t *trial) settle(out GroupOutcome, before int) (GroupOutcome, error) {
	out.Waits = t.waits
	if out.Fit >= t.wants && out.Fit > t.before {
		out.Placed = true
		for k := range out.Pods {
			if p := &out.Pods[k]; p.Outcome == Placed {
				p.Volumes = slices.Clone(t.w.State().Chosen(p.Pod))
			}
		}
		return out, nil
	}
	out.Message = t.message(&out)
	if err := t.w.undo(before); err != nil {
		return GroupOutcome{}, fmt.Errorf("place group: %w", err)
	}
	return out, nil
}

// message says why a group is not placed: as kube-scheduler does, and how far it has come.
func (t *trial) message(out *GroupOutcome) string {
	if out.Fit >= t.wants && t.before > 0 {
		return "" // enough have nodes: what keeps the others from theirs is theirs
	}
	var b strings.Builder
	b.WriteString(Unschedulable)
	where := ""
	if out.Domain != "" {
		where = " in " + out.Domain
	}
	if t.wants > 0 {
		fmt.Fprintf(&b, ": %d of at least %d pods fit%s", out.Fit, t.wants, where)
	} else {
		fmt.Fprintf(&b, ": none of its pods fits")
	}
	return b.String()
}

// Unschedulable is what kube-scheduler says of a PodGroup that is not placed.
const Unschedulable = "pod group is unschedulable"

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

// attempt is how a group would be placed in a domain.
type attempt struct {
	*domain
	nodes  []cluster.NodeIndex // of each pod; NoNode: it has none
	order  []int               // in which the pods are placed
	placed int
	total  int64 // of the nodes' scores
	fit    engine.Fullness
	atMost int // no more pods fit; see engine.Comers
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

// profile is that of the group's pods.
func (t *trial) profile() *cluster.Profile {
	st := t.w.State()
	return st.Profile(st.Class(st.Pod(t.pods[0]).Class).Spec.SchedulerName)
}

// attempt finds out how the pods would be placed in a domain, and leaves everything as it was. Pods that fit nowhere are tried again as long as others are placed: they may want to be near those.
func (t *trial) attempt(d *domain) (attempt, error) {
	a := attempt{domain: d, nodes: make([]cluster.NodeIndex, len(t.pods))}
	left := make([]int, len(t.pods))
	for k := range t.pods {
		a.nodes[k], left[k] = cluster.NoNode, k
	}
	t.failed = make(map[engine.Subject]cluster.Version)
	before := len(t.w.steps)
	for {
		placed := a.placed
		still := left[:0]
		for _, k := range left {
			node, total, ok := t.best(t.pods[k], t.in(d))
			if ok {
				switch err := t.w.assume(t.pods[k], node); {
				case errors.Is(err, errNoVolumes):
					ok = false
				case err != nil:
					return a, err
				}
			}
			if err := t.w.Between(); err != nil {
				return a, err
			}
			if !ok {
				still = append(still, k)
				continue
			}
			a.nodes[k], a.order = node, append(a.order, k)
			a.placed++
			a.total += total
		}
		if left = still; len(left) == 0 || a.placed == placed {
			break
		}
	}
	return a, t.w.undo(before)
}

// best returns the node for a pod among some, as if there were no others: as Placer.Choose does of all.
func (t *trial) best(id cluster.PodID, among cluster.Bitmap) (node cluster.NodeIndex, total int64, ok bool) {
	st, e := t.w.State(), t.w.Evaluator()
	row := st.Pod(id)
	subject := engine.SubjectOf(&row.Pod)
	if st.Class(row.Class).Spec.Unsupported != "" {
		return cluster.NoNode, 0, false
	}
	fits := func(i cluster.NodeIndex) bool {
		v, known := e.Node(st, subject, id, i)
		return known && v.Feasible()
	}
	if row.RequiredNode != "" {
		i := st.Nodes.ByName(row.RequiredNode)
		return i, 0, among.Has(i) && fits(i)
	}
	if row.Nominated != "" {
		i := st.Nodes.ByName(row.Nominated)
		if among.Has(i) && fits(i) {
			return i, 0, true
		}
		if e.FailsAsNominated(st, id) != nil {
			return cluster.NoNode, 0, false
		}
		if refused := e.RefusedAsNominated(st, id); among.Has(refused) {
			among = slices.Clone(among)
			among.Clear(refused)
		}
	} else if at, failed := t.failed[subject]; failed && at == st.Version() {
		return cluster.NoNode, 0, false
	}
	t.asked++
	t.room, _, ok = e.TotalsAmong(st, subject, among, t.room[:0])
	if !ok || len(t.room) == 0 {
		if row.Nominated == "" {
			t.failed[subject] = st.Version()
		}
		return cluster.NoNode, 0, false
	}
	first := slices.MinFunc(t.room, func(a, b engine.NodeTotal) int {
		return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(a.Tie, b.Tie))
	})
	return first.Node, first.Total, true
}

// classes returns the classes of the pods that an attempt places.
func (t *trial) classes(a *attempt) []*cluster.Class {
	st := t.w.State()
	var out []*cluster.Class
	for k, node := range a.nodes {
		if node != cluster.NoNode {
			out = append(out, st.Class(st.Pod(t.pods[k]).Class))
		}
	}
	return out
}

// take places the pods as an attempt has found, and says why others are not.
func (t *trial) take(a *attempt, of int) ([]PodOutcome, error) {
	st := t.w.State()
	out := make([]PodOutcome, len(t.pods))
	for k, id := range t.pods {
		row := st.Pod(id)
		out[k] = PodOutcome{Pod: id, UID: row.UID, Namespace: row.Namespace, Name: row.Name}
	}
	for _, k := range a.order { // as they were tried
		out[k].Outcome, out[k].Node = Placed, st.Nodes.Spec[a.nodes[k]].Name
		if err := t.w.assume(t.pods[k], a.nodes[k]); err != nil {
			return nil, err
		}
	}
	for k, id := range t.pods { // with the others where they are
		if a.nodes[k] != cluster.NoNode {
			continue
		}
		if err := t.w.Between(); err != nil {
			return nil, err
		}
		why := t.explain(id, t.in(a.domain))
		out[k].Outcome, out[k].Nodes, out[k].Verdicts, out[k].Message, out[k].Elsewhere = Unplaced, why.nodes, why.why, why.message, why.elsewhere
	}
	return out, nil
}

// explain says why a pod fits nowhere among some nodes. What is said of pods of the same subject in the same state is said once.
func (t *trial) explain(id cluster.PodID, among cluster.Bitmap) *failure {
	st := t.w.State()
	row := st.Pod(id)
	if row.RequiredNode != "" || row.Nominated != "" {
		return explain(t.w, id)
	}
	subject := engine.SubjectOf(&row.Pod)
	if t.said[subject] == nil {
		if t.said == nil {
			t.said = make(map[engine.Subject]*failure)
		}
		why := explain(t.w, id)
		for i := range cluster.NodeIndex(st.Nodes.Len()) {
			if st.Nodes.Live.Has(i) && !among.Has(i) {
				if v, known := t.w.Evaluator().Node(st, subject, id, i); known && v.Feasible() {
					why.elsewhere++
				}
			}
		}
		t.said[subject] = why
	}
	return t.said[subject]
}

// unplaced says of all pods that they are not placed, for the same reason.
func (t *trial) unplaced(why string) []PodOutcome {
	out := make([]PodOutcome, len(t.pods))
	for k, id := range t.pods {
		row := t.w.State().Pod(id)
		out[k] = PodOutcome{Pod: id, UID: row.UID, Namespace: row.Namespace, Name: row.Name, Message: why}
	}
	return out
}
