package whatif

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// GroupReservation is where room is reserved for a PodGroup, and who has to end before it is free.
type GroupReservation struct {
	Nodes  []string        // of each of the pods, in their order; "": none
	Domain string          // of a group with a topology
	Awaits []cluster.PodID // who has to end, as far as it is known the last to end first
	// Start is when all of them have ended at the latest, in Unix nanoseconds; 0: that is known of not all.
	Start int64
	// Counts says that Start counts from now, and is another one each time: the last of them should have ended, or has not started.
	Counts bool
	Fits   bool // nobody has to end, by now, if its pods are not nominated
}

// mostNamed is how many nodes a text names.
const mostNamed = 8

// Says returns what is said of room on some nodes that is reserved: on which of them, and what is awaited.
func (r *GroupReservation) Says(nodes []string) string {
	nodes = slices.Clone(nodes)
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	where := strings.Join(nodes[:min(len(nodes), mostNamed)], ", ")
	if more := len(nodes) - mostNamed; more > 0 {
		where += fmt.Sprintf(" and %d more", more)
	}
	pods := "1 pod there is to end first"
	switch {
	case len(r.Awaits) == 0:
		return where
	case len(r.Awaits) > 1:
		pods = fmt.Sprintf("%d pods there are to end first", len(r.Awaits))
	}
	when := ", nobody knows when"
	switch {
	case r.Counts:
		when = ""
	case r.Start != 0:
		when = ", at the latest at " + time.Unix(0, r.Start).UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("%s: %s%s", where, pods, when)
}

// less reports whether one reservation is the better one: its room is free earlier, or fewer pods are in the way.
func (r *GroupReservation) less(than *GroupReservation) bool {
	return cmp.Or(cmp.Compare(known(r.Start), known(than.Start)), cmp.Compare(len(r.Awaits), len(than.Awaits))) < 0
}

func known(start int64) int64 {
	if start == 0 {
		return math.MaxInt64
	}
	return start
}

// ReserveGroup finds where a PodGroup fits earliest if nobody is evicted, and nobody else comes. Pods on nodes end as they say: those first that are on their way out, then those that have a
// deadline, by when that is, and then those that end nobody knows when, those first that have started first. As many are taken away in this order as the group needs to fit, and of these as many are
// spared as may be, the last first. Of the domains of a topology that one is taken where the last of them ends first, then where they are fewest, then the first by name. What the
// pods are nominated to already does not count. Now is in Unix nanoseconds. Not ok: it does not fit however many end, or it fits at once. The World is as before.
func ReserveGroup(w *World, key cluster.GroupKey, pods []cluster.PodID, now int64) (out GroupReservation, ok bool, err error) {
	err = w.Try(func() error {
		if err := resign(w, pods); err != nil {
			return err
		}
		t, all, before, may := needingRoom(w, key, pods)
		if !may || len(all) == 0 {
			return nil
		}
		ending := t.ending(len(all), t.domainsOf(all), now)
		for d := range all {
			if err := w.Between(); err != nil {
				return err
			}
			found, fits, err := t.await(&all[d], ending[d], before)
			switch {
			case err != nil:
				return fmt.Errorf("reserve for a group: %w", err)
			case fits && len(found.Awaits) == 0:
				out, ok = GroupReservation{Fits: true}, false
				return nil
			case fits && (!ok || found.less(&out)):
				out, ok = found, true
			}
		}
		return nil
	})
	return out, ok, err
}

// resign ends the nominations of pods.
func resign(w *World, pods []cluster.PodID) error {
	for _, id := range pods {
		if row := w.State().Pod(id); row != nil && row.Nominated != "" {
			if err := w.Apply(cluster.PodNominated{ID: id}); err != nil {
				return err
			}
		}
	}
	return nil
}

// fitsNow reports whether the group fits in one of some domains, if nobody ends.
func (t *trial) fitsNow(all []domain, before int) (bool, error) {
	for d := range all {
		if err := t.w.Between(); err != nil {
			return false, err
		}
		if fits, err := t.fits(&all[d], before); fits || err != nil {
			return fits, err
		}
	}
	return false, nil
}

// AwaitGroup finds out who has to end before a PodGroup fits on the nodes that its pods are nominated to: nobody, if it fits anywhere. Not ok: it would not fit there if all had ended that do, or the nodes are not in one domain of
// its topology; or it Fits if its pods are not nominated, and does not as they are. The World is as before.
func AwaitGroup(w *World, key cluster.GroupKey, pods []cluster.PodID, now int64) (out GroupReservation, ok bool, err error) {
	t, all, before, may := needingRoom(w, key, pods)
	if !may {
		return GroupReservation{}, false, nil
	}
	free := false
	if err := w.Try(func() (err error) {
		if err := resign(w, pods); err != nil {
			return err
		}
		free, err = t.fitsNow(all, before)
		return err
	}); err != nil {
		return GroupReservation{}, false, fmt.Errorf("await room for a group: %w", err)
	}
	if free {
		fits, err := t.fitsNow(all, before)
		if err != nil {
			return GroupReservation{}, false, fmt.Errorf("await room for a group: %w", err)
		}
		return GroupReservation{Fits: !fits}, fits, nil
	}
	st := w.State()
	reserved, of, in := domain{}, -1, domainOf(st, t.group.Topology)
	for _, id := range pods {
		name := st.Pod(id).Nominated
		if name == "" {
			continue
		}
		i := st.Nodes.ByName(name)
		if i == cluster.NoNode {
			return GroupReservation{}, false, nil
		}
		k := domainAt(st, all, in, i)
		if k < 0 || of >= 0 && of != k {
			return GroupReservation{}, false, nil
		}
		of, reserved.nodes = k, append(reserved.nodes, i)
	}
	if of < 0 {
		return GroupReservation{}, false, nil
	}
	slices.Sort(reserved.nodes)
	reserved.name, reserved.nodes = all[of].name, slices.Compact(reserved.nodes)
	if out, ok, err = t.await(&reserved, t.ending(1, func(i cluster.NodeIndex) int {
		if _, is := slices.BinarySearch(reserved.nodes, i); is {
			return 0
		}
		return -1
	}, now)[0], before); err != nil {
		return GroupReservation{}, false, fmt.Errorf("await room for a group: %w", err)
	}
	return out, ok, nil
}

// ending is a pod on a node that ends by itself.
type ending struct {
	id          cluster.PodID
	started, at int64 // in Unix nanoseconds; it ends at the latest, math.MaxInt64: nobody knows
	counts      bool  // that is from now on
}

// domainsOf returns what tells which of some domains a node is in; -1: none.
func (t *trial) domainsOf(all []domain) func(cluster.NodeIndex) int {
	if all[0].anywhere {
		return func(cluster.NodeIndex) int { return 0 }
	}
	st := t.w.State()
	byName, name, known := make(map[string]int, len(all)), domainOf(st, t.group.Topology), make(map[cluster.NodeIndex]int)
	for k := range all {
		byName[all[k].name] = k
	}
	return func(i cluster.NodeIndex) int {
		k, ok := known[i]
		if !ok {
			k = -1
			if is, labelled := name(i); labelled {
				if d, ok := byName[is]; ok {
					k = d
				}
			}
			known[i] = k
		}
		return k
	}
}

// ending returns of each of n domains the pods on nodes that end by themselves, but for those of the group, by when they are expected to. Those of a gang that lacks pods which wait for a node may wait for these, and do not end.
func (t *trial) ending(n int, in func(cluster.NodeIndex) int, now int64) [][]ending {
	st := t.w.State()
	known := make(map[cluster.GroupKey]bool)
	stands := func(key cluster.GroupKey) bool {
		lacks, ok := known[key]
		if !ok {
			is, placed := st.PodGroup(key), st.GroupPlaced(key)
			lacks = is != nil && is.Gang && placed < int(is.MinCount) && placed < len(st.GroupPods(key))
			known[key] = lacks
		}
		return lacks
	}
	out := make([][]ending, n)
	for id, row := range st.Pods() {
		if row.Node == cluster.NoNode {
			continue
		}
		at, ends := endOf(row, now)
		if !ends {
			continue
		}
		d := in(row.Node)
		if d < 0 {
			continue
		}
		if key, named := cluster.GroupOf(&row.Pod); named && (key == t.key || !row.Deleting && !row.Victim && stands(key)) {
			continue
		}
		e := ending{id: id, started: row.Started, at: at, counts: at <= now || row.Started == 0 && at != math.MaxInt64}
		if e.started == 0 {
			e.started = math.MaxInt64
		}
		out[d] = append(out[d], e)
	}
	for _, of := range out {
		slices.SortFunc(of, func(a, b ending) int {
			return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.started, b.started), cmp.Compare(a.id, b.id))
		})
	}
	return out
}

// endOf returns when a pod on a node ends at the latest. False: it does not end.
func endOf(row *cluster.PodRow, now int64) (at int64, ends bool) {
	switch {
	case row.Deleting || row.Victim:
		return now, true
	case row.Ends == cluster.NeverEnds:
		return 0, false
	case row.Ends < 0:
		return math.MaxInt64, true
	}
	started := row.Started
	if started == 0 {
		started = now
	}
	return max(now, started+int64(row.Ends)*int64(time.Second)), true
}

// await finds who of those that end in a domain, in their order, has to end so that the group fits there. The World is as before.
func (t *trial) await(d *domain, all []ending, before int) (out GroupReservation, fits bool, err error) {
	start := len(t.w.steps)
	defer func() {
		if undone := t.w.undo(start); err == nil {
			err = undone
		}
	}()
	// 1. Does it fit at all?
	for _, e := range all {
		if err := t.w.Apply(cluster.PodRemoved{ID: e.id}); err != nil {
			return GroupReservation{}, false, err
		}
	}
	if fits, err = t.fits(d, before); err != nil || !fits {
		return GroupReservation{}, false, err
	}
	if err := t.w.undo(start); err != nil {
		return GroupReservation{}, false, err
	}
	if fits, err = t.fits(d, before); err != nil || fits {
		return GroupReservation{}, fits, err
	}
	st := t.w.State()
	those, of := make([]*unit, len(all)), make(map[*unit]*ending, len(all))
	for k := range all {
		row := st.Pod(all[k].id)
		those[k] = &unit{rows: []evictee{{all[k].id, row.Pod, row.Phase == cluster.Assumed, st.Chosen(all[k].id), st.Class(row.Class), st.Labels(row.Labels)}}, node: row.Node}
		of[those[k]] = &all[k]
	}
	// 2. How many have to end, if they end in this order? It does not fit when so many are gone, but when most are.
	gone, most := 0, len(those)
	for most-gone > 1 {
		if err := t.w.Between(); err != nil {
			return GroupReservation{}, false, err
		}
		mark, half := len(t.w.steps), gone+(most-gone)/2
		if err := t.away(those[gone:half]); err != nil {
			return GroupReservation{}, false, err
		}
		if fits, err = t.fits(d, before); err != nil {
			return GroupReservation{}, false, err
		}
		if !fits {
			gone = half
			continue
		}
		most = half
		if err := t.w.undo(mark); err != nil {
			return GroupReservation{}, false, err
		}
	}
	if err := t.away(those[gone:most]); err != nil {
		return GroupReservation{}, false, err
	}
	// 3. Who of them may stay?
	those = those[:most]
	slices.Reverse(those)
	in, err := t.spare(d, before, those)
	if err != nil {
		return GroupReservation{}, false, err
	}
	for _, u := range in {
		out.Awaits = append(out.Awaits, u.rows[0].id)
		switch e := of[u]; {
		case e.at > out.Start:
			out.Start, out.Counts = e.at, e.counts
		case e.at == out.Start:
			out.Counts = out.Counts || e.counts
		}
	}
	if out.Start == math.MaxInt64 {
		out.Start = 0
	}
	// 4. Where does it go then?
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
	return out, err == nil, err
}

// GroupPriority is that by which a PodGroup preempts, and holds room: what it says, but no more than the lowest of some of its pods', by which their nominations hold the room.
func GroupPriority(st *cluster.State, group *cluster.PodGroup, pods []cluster.PodID) int32 {
	lowest := int32(math.MaxInt32)
	if group.HasPriority {
		lowest = group.Priority
	}
	for _, id := range pods {
		lowest = min(lowest, st.Pod(id).Priority)
	}
	return lowest
}
