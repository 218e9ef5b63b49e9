package whatif

import (
	"fmt"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// group returns the PodGroup of the first of some pods, and all of them that name it; none if it names none.
func (p *placing) group(queue []int) (key cluster.GroupKey, members []int) {
	st := p.w.State()
	if p.options.apart {
		return key, nil
	}
	key, named := cluster.GroupOf(&st.Pod(p.outcomes[queue[0]].Pod).Pod)
	if !named {
		return key, nil
	}
	for _, k := range queue {
		row := st.Pod(p.outcomes[k].Pod)
		if row == nil { // it was placed with its group, and had to go for another one since
			continue
		}
		if other, ok := cluster.GroupOf(&row.Pod); ok && other == key {
			members = append(members, k)
		}
	}
	return key, members
}

// mostBeyond bounds how often, in one question, it is looked who could go for pods of groups of which some are placed: that is for one of them at a time, of which there may be thousands.
const mostBeyond = 64

// mayMakeRoom reports whether it is looked who could go for a PodGroup, and counts that.
func (p *placing) mayMakeRoom(key cluster.GroupKey) bool {
	if p.w.State().GroupPlaced(key) == 0 {
		return true
	}
	p.beyond++
	return p.beyond <= mostBeyond
}

// together tries pods of a PodGroup, and makes room for them if it may. It returns who is left.
func (p *placing) together(key cluster.GroupKey, members, left []int) ([]int, error) {
	if err := between(p.w.ctx); err != nil {
		return left, err
	}
	pods := make([]cluster.PodID, len(members))
	for n, k := range members {
		pods[n] = p.outcomes[k].Pod
	}
	why := p.incomplete(key)
	if why == "" {
		why = GroupApart(p.w.State(), SchedulersOf(p.w.State(), pods))
	}
	if why != "" {
		for _, k := range members {
			out := &p.outcomes[k]
			out.Outcome, out.Node, out.Nodes, out.Verdicts, out.Message = Unplaced, "", p.w.State().Nodes.Count(), nil, why
			if err := p.tell(k); err != nil {
				return left, err
			}
		}
		return append(left, members...), nil
	}
	found, err := PlaceGroup(p.w, key, pods)
	if err != nil {
		return left, err
	}
	var victims []Victim
	if !found.Placed && p.options.Preempt && p.mayMakeRoom(key) {
		if victims, err = p.makeRoom(key, pods); err != nil {
			return left, err
		}
		if len(victims) > 0 {
			if found, err = PlaceGroup(p.w, key, pods); err != nil {
				return left, err
			}
		}
	}
	p.placer = nil // it is of a state before that
	retries := found.Placed && p.options.Preempt && p.beyond < mostBeyond
	var beyond []int // those that it wants
	for n, k := range members {
		out, is := &p.outcomes[k], &found.Pods[n]
		if retries && is.Outcome != Placed { // they are tried by themselves, and may have others evicted
			beyond = append(beyond, k)
			continue
		}
		if found.Placed && is.Outcome == Placed {
			out.Outcome, out.Node, out.Nodes, out.Verdicts, out.Message = Placed, is.Node, 0, nil, ""
			if len(victims) > 0 { // they are told of one
				out.Outcome, out.Victims, victims = Preempts, victims, nil
			}
		} else {
			out.Outcome, out.Node, out.Nodes, out.Verdicts, out.Message = Unplaced, "", is.Nodes, is.Verdicts, is.Message
			if found.Message != "" {
				out.Nodes, out.Message = p.w.State().Nodes.Count(), found.Message
			}
			left = append(left, k)
		}
		if err := p.tell(k); err != nil {
			return left, err
		}
	}
	if len(beyond) > 0 { // some of the others were placed, so this ends
		return p.together(key, beyond, left)
	}
	return left, nil
}

// makeRoom has those go that a PodGroup preempts, if that makes room for it.
func (p *placing) makeRoom(key cluster.GroupKey, pods []cluster.PodID) ([]Victim, error) {
	room, _, ok, err := PreemptGroup(p.w, key, pods)
	if err != nil || !ok {
		return nil, err
	}
	victims := victimsOf(p.w.State(), room.Found.Victims)
	for _, v := range victims {
		if k, ours := p.at[v.Pod]; ours {
			p.outcomes[k].Outcome, p.outcomes[k].Node = Evicted, ""
		}
		if err := p.w.RemovePod(v.Pod); err != nil {
			return nil, err
		}
	}
	p.freed++
	return victims, nil
}

// incomplete returns why pods of a PodGroup are not tried, "" if they are.
func (p *placing) incomplete(key cluster.GroupKey) string {
	st := p.w.State()
	switch g := st.PodGroup(key); {
	case g == nil:
		return fmt.Sprintf("its PodGroup %s does not exist", key.Name)
	case g.Untold != "":
		return g.Untold
	case g.Gang && len(st.GroupPods(key)) < int(g.MinCount):
		return fmt.Sprintf("its PodGroup %s wants at least %d pods, and has %d", key.Name, g.MinCount, len(st.GroupPods(key)))
	}
	return ""
}
