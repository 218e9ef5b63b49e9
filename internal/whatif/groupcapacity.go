package whatif

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/source"
)

// GroupRoom is how many more of a PodGroup fit.
type GroupRoom struct {
	Groups  int            // as if placed one after the other by Berth
	AtLeast bool           // there may be room for more: the limit was reached, or the time was up
	Domains map[string]int // how many of them in each domain; empty for a group without a topology
	// What stops the next one, unless AtLeast: how many nodes there are, why not these for the first of its pods that finds none, and a text. Of a group that is not tried, Message alone.
	Nodes    int
	Verdicts []engine.VerdictCount
	Message  string
	Notes    []string // which plugins of others have not been asked
}

// GroupOthersAsked says why pods of a PodGroup are not placed.
const GroupOthersAsked = "pods of a PodGroup that extenders or plugin services are asked about are not placed"

// GroupCapacity says how many more of a PodGroup with these pods fit, each whole: with as many of its pods as it wants, or all of them if it is no gang. Copies of the group are placed one after the other by PlaceGroup,
// up to a limit from 1 to MaxCapacity, or as many as have 10,000 pods, or as are counted in the time there is (WithEnough), without preemption. Each has a name of its own; claims are as Capacity says. The World is as before when it returns.
func GroupCapacity(w *World, group *cluster.PodGroup, pods []source.Pod, limit int) (GroupRoom, error) {
	if limit < 1 || limit > MaxCapacity {
		return GroupRoom{}, fmt.Errorf("capacity: %w: limit %d, want 1 to %d", ErrTooMuch, limit, MaxCapacity)
	}
	if err := tooManyOfGroup(len(pods)); err != nil {
		return GroupRoom{}, err
	}
	var room GroupRoom
	err := w.Try(func() (err error) {
		room, err = fillGroups(w, group, pods, limit)
		return err
	})
	if err != nil {
		return GroupRoom{}, fmt.Errorf("capacity: %w", err)
	}
	return room, nil
}

type enoughKey struct{}

// WithEnough returns a context of questions about the capacity for PodGroups, which say how many they have counted once enough is true, unless that is none.
func WithEnough(ctx context.Context, enough func() bool) context.Context {
	return context.WithValue(ctx, enoughKey{}, enough)
}

var errEnough = errors.New("enough has been counted")

// untilEnough calls count, which ends between its parts with an error if there is enough, as long as counted says that something has been counted. It reports whether that is so.
func (w *World) untilEnough(counted func() bool, count func() error) (ended bool, err error) {
	enough, is := w.ctx.Value(enoughKey{}).(func() bool)
	if !is {
		return false, count()
	}
	ctx := w.ctx
	w.ctx = WithPause(ctx, func() error {
		if ended = ended || counted() && enough(); ended {
			return errEnough
		}
		return between(ctx)
	})
	defer func() { w.ctx = ctx }()
	if err = count(); ended {
		return ctx.Err() == nil, ctx.Err()
	}
	return false, err
}

func fillGroups(w *World, group *cluster.PodGroup, pods []source.Pod, limit int) (room GroupRoom, err error) {
	if room.Message, err = groupUntried(w, group, pods); err != nil || room.Message != "" {
		return room, err
	}
	c := groupCopies{w: w, group: group, pods: pods, own: make([][]ownClaim, len(pods))}
	wants, most, bytes := len(pods), min(limit, maxCapacityPlaced/len(pods)), 0
	if group.Gang {
		wants = int(group.MinCount)
	}
	for k := range pods {
		if c.own[k] = ownClaimsOf(w.State(), &pods[k]); len(c.own[k]) > 0 {
			bytes += len(pods[k].Labels.Key())
		}
	}
	if bytes > 0 {
		most = min(most, max(maxSetBytes/bytes, 1))
	}
	var all []domain // no copy changes a node
	if len(group.Topology) > 0 {
		all = domains(w.State(), group.Topology)
	}
	ended, err := w.untilEnough(func() bool { return room.Groups > 0 }, func() error {
		for ; room.Groups < most; room.Groups++ {
			key, ids, err := c.add(room.Groups)
			if err != nil {
				return err
			}
			if room.Groups == 0 {
				room.Notes = NotAskedOf(w, ids)
			}
			out, err := placeGroup(w, key, ids, all)
			if err != nil {
				return err
			}
			if !out.Placed || out.Fit < wants {
				room.stopped(&out)
				return nil
			}
			if out.Domain != "" {
				if room.Domains == nil {
					room.Domains = make(map[string]int)
				}
				room.Domains[out.Domain]++
			}
		}
		return nil
	})
	room.AtLeast = ended || err == nil && room.Groups == most
	return room, err
}

// stopped says why a group is not placed whole.
func (r *GroupRoom) stopped(out *GroupOutcome) {
	r.Message = cmp.Or(out.Message, fmt.Sprintf("%d of its %d pods fit", out.Fit, len(out.Pods)))
	k := slices.IndexFunc(out.Pods, func(p PodOutcome) bool { return p.Outcome != Placed && len(p.Verdicts) > 0 })
	if k >= 0 {
		r.Nodes, r.Verdicts = out.Pods[k].Nodes, out.Pods[k].Verdicts
		r.Message = out.Pods[k].FitMessage() + " " + r.Message // as its pods are told
	}
}

// groupUntried returns why no pod of a group would be tried, "" if they would be.
func groupUntried(w *World, group *cluster.PodGroup, pods []source.Pod) (string, error) {
	switch {
	case group.Untold != "":
		return group.Untold, nil
	case group.Gang && len(pods) < int(group.MinCount):
		return fmt.Sprintf("the PodGroup %s wants at least %d pods, and has %d", group.Name, group.MinCount, len(pods)), nil
	case len(pods) == 0:
		return fmt.Sprintf("the PodGroup %s has no pods", group.Name), nil
	}
	st, scheduler := w.State(), pods[0].Class.SchedulerName
	why := GroupApart(st, func(yield func(string) bool) {
		for k := range pods {
			if !yield(pods[k].Class.SchedulerName) {
				return
			}
		}
	})
	switch {
	case st.Profile(scheduler) == nil:
		return "", fmt.Errorf("no profile is of the scheduler %q", scheduler)
	case st.Settings.Yields(scheduler):
		return "pods of " + scheduler + " are left to another scheduler: " + st.Settings.YieldedTo, nil
	}
	return why, nil
}

// GroupApart returns why pods of a PodGroup that have these scheduler names are not placed by Berth whatever room there is, "" if they may be: they are of several schedulers, or plugins of others filter or score nodes for them. That extenders, or
// plugins of others that reserve or permit, are asked about them is not known here.
func GroupApart(st *cluster.State, schedulers iter.Seq[string]) string {
	first, asks := "", false
	for name := range schedulers {
		if first != "" && name != first {
			return fmt.Sprintf("all pods in a single pod group should have the same .spec.schedulerName set, got: %q and %q", first, name)
		}
		if first == "" {
			profile := st.Profile(name)
			first, asks = name, profile != nil && engine.ForeignNodes(profile)
		}
	}
	if asks {
		return GroupOthersAsked
	}
	return ""
}

// SchedulersOf returns the scheduler names of some pods.
func SchedulersOf(st *cluster.State, pods []cluster.PodID) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, id := range pods {
			if !yield(st.Class(st.Pod(id).Class).Spec.SchedulerName) {
				return
			}
		}
	}
}

// groupCopies makes copies of a PodGroup and its pods.
type groupCopies struct {
	w     *World
	group *cluster.PodGroup
	pods  []source.Pod
	own   [][]ownClaim // of each pod
}

// add adds the k-th copy, whose pods are pending. No object of an API server has such a name as its group.
func (c *groupCopies) add(k int) (key cluster.GroupKey, ids []cluster.PodID, err error) {
	group := *c.group
	group.Name = fmt.Sprintf("%s #%d", group.Name, k)
	group.UID = "new:" + group.Namespace + "/" + group.Name
	if err := c.w.SetObject(&group); err != nil {
		return key, nil, err
	}
	for i := range c.pods {
		pod := Unbound(c.pods[i])
		pod.Group, pod.Created, pod.Gates, pod.Object = group.Name, 0, nil, nil
		pod.UID = fmt.Sprintf("%s (capacity %d)", pod.UID, k)
		if _, twice := c.w.State().PodByUID(pod.UID); twice {
			return key, nil, fmt.Errorf("add pod %s/%s: it is there twice", pod.Namespace, pod.Name)
		}
		id, err := c.w.addCopy(pod, c.own[i], k)
		if err != nil {
			return key, nil, err
		}
		ids = append(ids, id)
	}
	if k == 0 {
		first := make([]source.Pod, len(ids))
		for i, id := range ids {
			first[i], _ = c.w.Pod(id)
		}
		if err := c.w.MayCompare(first); err != nil {
			return key, nil, err
		}
	}
	return cluster.GroupKey{Namespace: group.Namespace, Name: group.Name}, ids, nil
}

// GroupAsItIs returns a PodGroup and its pods, in the order in which they are tried, but for those that are being deleted; nil: there is no such group. An error that wraps ErrTooMuch says that it has too many. What GroupCapacity
// does not want of a pod, its Object, is left out.
func (w *World) GroupAsItIs(key cluster.GroupKey) (*cluster.PodGroup, []source.Pod, error) {
	st := w.State()
	group := st.PodGroup(key)
	if group == nil {
		return nil, nil, nil
	}
	var ids []cluster.PodID
	for _, id := range st.GroupPods(key) {
		if !st.Pod(id).Deleting {
			ids = append(ids, id)
		}
	}
	if err := tooManyOfGroup(len(ids)); err != nil {
		return nil, nil, err
	}
	slices.Sort(ids)
	slices.SortStableFunc(ids, func(a, b cluster.PodID) int { return compareTurn(st.Pod(a), st.Pod(b)) })
	pods := make([]source.Pod, len(ids))
	for k, id := range ids {
		pods[k] = w.pod(st.Pod(id))
	}
	return group, pods, nil
}

// tooManyOfGroup says so of the pods of a group of which copies are to be placed.
func tooManyOfGroup(pods int) error {
	if pods > maxCapacityPlaced {
		return fmt.Errorf("capacity: %w: the PodGroup has %d pods, at most %d are possible", ErrTooMuch, pods, maxCapacityPlaced)
	}
	return nil
}

// Group returns the PodGroup of a workload that brings one, of which all pods have to be; nil if it brings none.
func (l *Workload) Group() (*cluster.PodGroup, error) {
	var group *cluster.PodGroup
	for _, e := range l.Objects {
		switch is, ok := e.Object.(*cluster.PodGroup); {
		case !ok:
		case group != nil:
			return nil, fmt.Errorf("there are two PodGroups, %s/%s and %s/%s: give one", group.Namespace, group.Name, is.Namespace, is.Name)
		default:
			group = is
		}
	}
	if group == nil {
		return nil, nil
	}
	for k := range l.Pods {
		p := &l.Pods[k]
		if p.Namespace != group.Namespace || p.Group != group.Name {
			return nil, fmt.Errorf("pod %s/%s: spec.schedulingGroup.podGroupName is %q: want all pods to be of the PodGroup %s/%s", p.Namespace, p.Name, p.Group, group.Namespace, group.Name)
		}
	}
	return group, nil
}
