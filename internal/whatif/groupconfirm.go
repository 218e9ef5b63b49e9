package whatif

import (
	"errors"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

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
		// 1. Where they were.
		if left, err = againAndAgain(left, func(p *PodOutcome) (bool, error) { return t.stays(p, d) }); err != nil {
			return err
		}
		// 2. Elsewhere, near the others if the group prefers that.
		for level := len(t.group.Preferred); level >= 0; level-- {
			near := t.in(d)
			if level > 0 && len(left) > 0 {
				near = t.nearTo(found, left, d, level)
			}
			if left, err = againAndAgain(left, func(p *PodOutcome) (bool, error) { return t.moves(p, near) }); err != nil {
				return err
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
				p.Outcome, p.Node, p.Volumes = Unplaced, "", nil
			}
			for k := range found.Pods { // what has been found of the others is of before
				found.Pods[k].Missed = found.Pods[k].Outcome != Placed
			}
		}
		return nil
	})
	return fits, err
}

// againAndAgain tries those that are left as long as one of them finds a place: what some want near may come with others. It returns those that find none, in the same array.
func againAndAgain(left []*PodOutcome, try func(*PodOutcome) (bool, error)) ([]*PodOutcome, error) {
	for more := true; more && len(left) > 0; {
		more = false
		still := left[:0]
		for _, p := range left {
			ok, err := try(p)
			if err != nil {
				return nil, err
			}
			if more = more || ok; !ok {
				still = append(still, p)
			}
		}
		left = still
	}
	return left, nil
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
	all, err := t.mayBeIn()
	if err != nil {
		return nil, nil
	}
	if len(group.Topology) == 0 {
		return t, &all[0]
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
