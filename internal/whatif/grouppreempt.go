package whatif

import (
	"cmp"
	"fmt"
	"iter"
	"math"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// GroupPreemption is how room can be made for a PodGroup.
type GroupPreemption struct {
	Nodes  []string          // of each of its pods, in their order; "": it finds none even so
	Domain string            // of a group with a topology
	Found  engine.Preemption // the victims, the most important first; Node is no node
	UIDs   []string          // of the victims: by the time that they go, their ids may be those of others
	Fits   bool              // nobody has to go, by now
}

// PreemptGroup finds whose end makes room for a PodGroup: pods of a lower priority than the group has, those of a group that wants to be disrupted whole together with all others of it. As few go as
// kube-scheduler would have go: all of them are taken away, and then spared one after the other as long as the group fits, those first that a PodDisruptionBudget protects, and the most important first. A
// group with a topology is tried in each domain, and the domain is taken by the criteria by which preemption takes a node. Not ok: why says why none can be found. The World is as before.
func PreemptGroup(w *World, key cluster.GroupKey, pods []cluster.PodID) (out GroupPreemption, why string, ok bool, err error) {
	st := w.State()
	group := st.PodGroup(key)
	if group == nil || len(pods) == 0 {
		return GroupPreemption{}, "", false, nil
	}
	for _, id := range pods {
		if why, may := w.Evaluator().Preempts(st, id); !may {
			return GroupPreemption{}, why, false, nil
		}
	}
	t, all, before, may := needingRoom(w, key, pods)
	if !may {
		return GroupPreemption{}, "", false, nil
	}
	units := t.units()
	if len(units) == 0 {
		return GroupPreemption{}, "No preemption victims found for incoming preemptor", false, nil
	}
	for d := range all {
		if err := w.Between(); err != nil {
			return GroupPreemption{}, "", false, err
		}
		found, fits, err := t.makeRoom(&all[d], units, before)
		if err != nil {
			return GroupPreemption{}, "", false, fmt.Errorf("preempt for a group: %w", err)
		}
		if fits && len(found.Found.Victims) == 0 {
			return GroupPreemption{Fits: true}, "", false, nil
		}
		found.Found.Node = cluster.NodeIndex(d) // of what else is equal, a hash decides
		if fits && (!ok || found.Found.Compare(&out.Found, st.Settings.Seed) < 0) {
			out, ok = found, true
		}
	}
	if !ok {
		return GroupPreemption{}, "Preemption is not helpful for scheduling", false, nil
	}
	return out, "", true, nil
}

// ConfirmGroupPreemption finds out what is left, in a World that has changed since, of what PreemptGroup has found: where the pods of the PodGroup go, in the same domain, when those victims are gone that are there still. Not ok: others
// would have to go by now, or nobody, or a victim has become too important.
func ConfirmGroupPreemption(w *World, key cluster.GroupKey, pods []cluster.PodID, found *GroupPreemption) (now GroupPreemption, ok bool, err error) {
	t, all, before, may := needingRoom(w, key, pods)
	if !may {
		return GroupPreemption{}, false, nil
	}
	at := domainNamed(all, found.Domain)
	if at < 0 {
		return GroupPreemption{}, false, nil
	}
	st, d := w.State(), &all[at]
	now.Domain = found.Domain
	for k, id := range found.Found.Victims {
		if row := st.Pod(id); row != nil && row.UID == found.UIDs[k] && row.Node != cluster.NoNode {
			now.Found.Victims, now.UIDs = append(now.Found.Victims, id), append(now.UIDs, row.UID)
		}
	}
	if len(now.UIDs) == 0 || !t.mayGo(now.Found.Victims) {
		return GroupPreemption{}, false, nil
	}
	for k := range all {
		if fits, err := t.fits(&all[k], before); err != nil || fits {
			return GroupPreemption{}, false, err
		}
	}
	// Of them, fewer may have to go by now.
	now, ok, err = t.makeRoom(d, t.unitsOf(slices.Values(now.Found.Victims)), before)
	return now, ok && len(now.Found.Victims) > 0 && now.Found.Violations <= found.Found.Violations, err
}

// mayGo reports whether victims are on nodes, less important than the group, and with them all of groups that are disrupted whole.
func (t *trial) mayGo(victims []cluster.PodID) bool {
	st := t.w.State()
	priority := t.priority()
	goes := make(map[cluster.PodID]bool, len(victims))
	for _, id := range victims {
		goes[id] = true
	}
	whole := make(map[cluster.GroupKey]bool) // that have been looked at
	for _, id := range victims {
		row := st.Pod(id)
		if row == nil || row.Node == cluster.NoNode {
			return false
		}
		key, named := cluster.GroupOf(&row.Pod)
		if g := st.PodGroup(key); named && g != nil && g.Whole {
			if whole[key] {
				continue
			}
			whole[key] = true
			others := st.GroupPods(key)
			if key == t.key || importance(st, g, others) >= priority || slices.ContainsFunc(others, func(id cluster.PodID) bool { return st.Pod(id).Node != cluster.NoNode && !goes[id] }) {
				return false
			}
		} else if row.Priority >= priority || named && key == t.key {
			return false
		}
	}
	return true
}

// unit is pods that go together: one, or all of a group that is disrupted whole.
type unit struct {
	rows     []evictee
	priority int32
	group    bool // its pods name a group
	started  int64
	nodes    []cluster.NodeIndex // nil: those of one node only, which is node
	node     cluster.NodeIndex
}

// evictee is a pod as it was before it was taken away.
type evictee struct {
	id      cluster.PodID
	pod     cluster.Pod
	assumed bool
	chosen  []cluster.VolumeChoice
	class   *cluster.Class
	labels  *cluster.Labels
}

func (u *unit) in(d cluster.Bitmap) bool {
	if u.nodes == nil {
		return d.Has(u.node)
	}
	return slices.ContainsFunc(u.nodes, d.Has)
}

// priority is that by which the group preempts.
func (t *trial) priority() int32 { return GroupPriority(t.w.State(), t.group, t.pods) }

// importance is the priority of a group that is disrupted whole: what it says, or else the highest of its pods'.
func importance(st *cluster.State, group *cluster.PodGroup, pods []cluster.PodID) int32 {
	if group.HasPriority {
		return group.Priority
	}
	highest := int32(math.MinInt32)
	for _, id := range pods {
		highest = max(highest, st.Pod(id).Priority)
	}
	return highest
}

// units returns who may have to go for the group, the most important first, as kube-scheduler's moreImportantVictim has them.
func (t *trial) units() []*unit {
	return t.unitsOf(func(yield func(cluster.PodID) bool) {
		for id := range t.w.State().Pods() {
			if !yield(id) {
				return
			}
		}
	})
}

// unitsOf is units among some pods, by id.
func (t *trial) unitsOf(pods iter.Seq[cluster.PodID]) []*unit {
	st := t.w.State()
	priority := t.priority()
	var out []*unit
	whole := make(map[cluster.GroupKey]*unit)
	for id := range pods {
		row := st.Pod(id)
		if row.Node == cluster.NoNode {
			continue
		}
		key, named := cluster.GroupOf(&row.Pod)
		if named && key == t.key {
			continue
		}
		started := row.Started
		if started == 0 {
			started = math.MaxInt64
		}
		e := evictee{id, row.Pod, row.Phase == cluster.Assumed, st.Chosen(id), st.Class(row.Class), st.Labels(row.Labels)}
		if named {
			if g := st.PodGroup(key); g != nil && g.Whole {
				u := whole[key]
				if u == nil {
					u = &unit{priority: importance(st, g, st.GroupPods(key)), group: true, started: math.MaxInt64}
					whole[key] = u
					if u.priority < priority {
						out = append(out, u)
					}
				}
				u.rows, u.started = append(u.rows, e), min(u.started, started)
				u.nodes = append(u.nodes, row.Node)
				continue
			}
		}
		if row.Priority < priority {
			out = append(out, &unit{rows: []evictee{e}, priority: row.Priority, group: named, started: started, node: row.Node})
		}
	}
	slices.SortStableFunc(out, func(a, b *unit) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), -compareFlags(a.group, b.group), sizeOf(a, b), cmp.Compare(a.started, b.started), cmp.Compare(a.rows[0].id, b.rows[0].id))
	})
	return out
}

func compareFlags(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// sizeOf puts the larger of two groups first.
func sizeOf(a, b *unit) int {
	if !a.group {
		return 0
	}
	return cmp.Compare(len(b.rows), len(a.rows))
}

// makeRoom finds who has to go so that the group fits in a domain. The World is as before.
func (t *trial) makeRoom(d *domain, units []*unit, before int) (out GroupPreemption, fits bool, err error) {
	start := len(t.w.steps)
	defer func() {
		if undone := t.w.undo(start); err == nil {
			err = undone
		}
	}()
	var those []*unit
	for _, u := range units {
		if u.in(t.in(d)) {
			those = append(those, u)
		}
	}
	if len(those) == 0 {
		fits, err = t.fits(d, before)
		return GroupPreemption{}, fits, err
	}
	// 1. Does it fit at all?
	violations := make(map[*unit]int32)
	var account engine.Disruptions
	for _, u := range those {
		for k := range u.rows {
			if len(account.Charge(t.w.State(), t.w.State().Pod(u.rows[k].id), nil)) > 0 {
				violations[u]++
			}
		}
	}
	if err := t.away(those); err != nil {
		return GroupPreemption{}, false, err
	}
	if fits, err = t.fits(d, before); err != nil || !fits {
		return GroupPreemption{}, false, err
	}
	// 2. Who may stay?
	protected, others := make([]*unit, 0, len(those)), make([]*unit, 0, len(those))
	for _, u := range those {
		if violations[u] > 0 {
			protected = append(protected, u)
		} else {
			others = append(others, u)
		}
	}
	var victims []*unit
	for _, list := range [][]*unit{protected, others} {
		gone, err := t.spare(d, before, list)
		if err != nil {
			return GroupPreemption{}, false, err
		}
		victims = append(victims, gone...)
	}
	rank := make(map[*unit]int, len(those))
	for k, u := range those {
		rank[u] = k
	}
	slices.SortFunc(victims, func(a, b *unit) int { return cmp.Compare(rank[a], rank[b]) })
	// 3. Where does it go then?
	out.Domain, out.Nodes = d.name, make([]string, len(t.pods))
	err = t.w.Try(func() error {
		nodes, _, err := t.places(d)
		for k, node := range nodes {
			if node != cluster.NoNode {
				out.Nodes[k] = t.w.State().Nodes.Spec[node].Name
			}
		}
		return err
	})
	out.Found = engine.Preemption{HighestPriority: math.MinInt32, EarliestStart: math.MaxInt64}
	for _, u := range victims {
		out.Found.Violations += violations[u]
		for k := range u.rows {
			p := &u.rows[k].pod
			out.Found.Victims, out.UIDs = append(out.Found.Victims, u.rows[k].id), append(out.UIDs, p.UID)
			out.Found.PrioritySum += int64(p.Priority) + 1<<31
		}
		if u.priority > out.Found.HighestPriority {
			out.Found.HighestPriority, out.Found.EarliestStart = u.priority, u.started
		} else if u.priority == out.Found.HighestPriority {
			out.Found.EarliestStart = min(out.Found.EarliestStart, u.started)
		}
	}
	return out, err == nil, err
}

// away takes pods away.
func (t *trial) away(units []*unit) error {
	for _, u := range units {
		for k := range u.rows {
			if err := t.w.Apply(cluster.PodRemoved{ID: u.rows[k].id}); err != nil {
				return err
			}
		}
	}
	return nil
}

// back brings pods back that away has taken away.
func (t *trial) back(units []*unit) error {
	st := t.w.State()
	for _, u := range units {
		for k := range u.rows {
			e := &u.rows[k]
			if st.Class(e.class.ID) == nil {
				if err := t.w.Apply(cluster.ClassDefined{ID: e.class.ID, Spec: e.class.Spec}); err != nil {
					return err
				}
			}
			if l := e.labels; l != nil && st.Labels(l.ID) == nil {
				if err := t.w.Apply(cluster.LabelsDefined{ID: l.ID, Set: l.LabelSet}); err != nil {
					return err
				}
			}
			if err := t.w.Apply(cluster.PodSet{ID: e.id, Pod: e.pod, Assumed: e.assumed, Volumes: e.chosen}); err != nil {
				return err
			}
		}
	}
	return nil
}

// spare brings back those of some units that may stay, in their order, and returns the others. Many are tried together first: where they may stay together each of them may, but for groups of pods that differ, of which more may fit where less room is.
func (t *trial) spare(d *domain, before int, units []*unit) (gone []*unit, err error) {
	if len(units) == 0 {
		return nil, nil
	}
	if err := t.w.Between(); err != nil {
		return nil, err
	}
	start := len(t.w.steps)
	if err := t.back(units); err != nil {
		return nil, err
	}
	fits, err := t.fits(d, before)
	if err != nil || fits {
		return nil, err
	}
	if err := t.w.undo(start); err != nil { // and what is remembered to undo it
		return nil, err
	}
	if len(units) == 1 {
		return units, nil
	}
	half := len(units) / 2
	for _, part := range [][]*unit{units[:half], units[half:]} {
		more, err := t.spare(d, before, part)
		if err != nil {
			return nil, err
		}
		gone = append(gone, more...)
	}
	return gone, nil
}

// fits reports whether the group fits in a domain. The World is as before.
func (t *trial) fits(d *domain, before int) (fits bool, err error) {
	if t.coming().AtMost(t.w.State(), d.nodes, t.wants-before) < t.wants-before {
		return false, nil
	}
	err = t.w.Try(func() error {
		_, placed, err := t.places(d)
		fits = before+placed >= t.wants
		return err
	})
	return fits, err
}

// coming returns what the pods request together.
func (t *trial) coming() *engine.Comers {
	if t.comers == nil {
		t.comers = engine.ComersOf(t.w.State(), t.profile(), t.ofPods())
	}
	return t.comers
}

// ofPods returns the classes of the pods.
func (t *trial) ofPods() []*cluster.Class {
	st := t.w.State()
	out := make([]*cluster.Class, len(t.pods))
	for k, id := range t.pods {
		out[k] = st.Class(st.Pod(id).Class)
	}
	return out
}

// places places the pods in a domain, and returns where, and how many.
func (t *trial) places(d *domain) (nodes []cluster.NodeIndex, placed int, err error) {
	if !d.anywhere {
		a, err := t.attempt(d)
		return a.nodes, a.placed, err
	}
	outcomes, err := Place(t.w, t.pods, PlaceOptions{Brief: true, apart: true})
	if err != nil {
		return nil, 0, err
	}
	nodes = make([]cluster.NodeIndex, len(outcomes))
	for k := range outcomes {
		nodes[k] = cluster.NoNode
		if outcomes[k].Outcome == Placed {
			nodes[k] = t.w.State().Nodes.ByName(outcomes[k].Node)
			placed++
		}
	}
	return nodes, placed, nil
}
