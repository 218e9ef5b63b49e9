package explain

import (
	"context"
	"fmt"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/whatif"
)

const (
	maxMisses     = 5
	maxCandidates = 10
)

// Cause is why a pod is where it is, or nowhere.
type Cause int

// The causes. The first that holds is told, in this order.
const (
	Placed      Cause = iota // it is on a node
	Deleting                 // it is being deleted: nobody tries to place it
	Gated                    // it has scheduling gates: nobody tries to place it
	NoProfile                // no profile has its scheduler name
	Unsupported              // it asks for what Berth cannot judge
	Preempting               // pods are being evicted so that it finds room
	Yielded                  // another scheduler has its scheduler name at the moment
	Incomplete               // its PodGroup is not there, has too few pods, or cannot be placed by Berth: nobody tries to place it
	NoNodes                  // there is no node at all
	Rejected                 // no node can take it
	Fits                     // some node can take it now: it waits for its turn, or the end of a backoff
)

func (c Cause) String() string {
	return [...]string{"placed", "deleting", "gated", "no profile", "unsupported", "preempting", "yielded", "incomplete", "no nodes", "rejected", "fits"}[c]
}

// Explanation is why a pod is where it is, or nowhere, at a version.
type Explanation struct {
	Version cluster.Version
	Pod     Pod
	Cause   Cause

	// Judged says that the nodes were evaluated: that some profile has the pod's scheduler name. If not, all that follows is
	// empty.
	Judged bool
	// Nodes is how many were evaluated, and Feasible how many of them can take the pod; of a placed pod, as if it were not
	// placed. Rejections account for the others: each node is counted once, by the first plugin of the profile that rejects it.
	Nodes, Feasible int32
	Rejections      []engine.Rejection
	// Message is kube-scheduler's text of the rejections, if no node is feasible.
	Message string
	// Devices says what Berth does not judge that may offer a resource that no node has, "" if there is no such resource.
	Devices string
	// Claims are the pod's, in its order, each once.
	Claims []Claim
	// Nearest are the nodes that lack least, nearest first, at most 5. Of a pod that requires a node it is
	// that node, if that cannot take it. Of a pod that Berth cannot judge there are none.
	Nearest []Miss
	// Changes are single changes each of which would make the pod schedulable at this version, the smallest intervention
	// first; see ChangeKind. Only if the cause is Rejected.
	Changes []Change
	// NoPreemption is why the pod may not preempt others, in kube-scheduler's words. It is empty if it may, or if its profile does
	// not preempt at all. Only if the cause is Rejected.
	NoPreemption string
	// NotAsked are the plugins of others by which the pod's profile says which pods may be tried, filters, scores and looks for a way, and that have not been asked: see whatif.World.NotAsked.
	NotAsked []string
	// ByPlugins says that plugins of others refuse nodes that could run the pod but for them: then no changes are looked for.
	ByPlugins bool
	// Notes say which plugin services could not be asked, and what one has answered in place of what it was asked.
	Notes []string

	// Group is the pod's PodGroup, nil if it names none, or is not tried for another reason. Of a pod of a group that waits no Changes are looked for, but those of the group, unless it is placed by itself: see Group.Alone.
	Group *Group

	// Candidates are the best nodes, best first, at most 10, as a commit would score them. A pod that requires a node has none: it goes
	// to its node without scoring.
	Candidates []Candidate
	// Here is the node of a placed pod among them, nil if the pod is not placed or its node is not known.
	Here *Here
}

// Pod is who is explained.
type Pod struct {
	UID, Namespace, Name    string
	Phase                   cluster.Phase
	Node                    string // where it is placed
	Priority                int32
	RequiredNode, Nominated string // see cluster.Pod
	Gates                   []string
	Deleting                bool
	Group                   string // the PodGroup that it names

	Profile   string // its scheduler name
	YieldedTo string // to whom that is left at the moment, and why; empty unless the cause is Yielded
	Class     cluster.ClassID
	// ClassPending and ClassPlaced are how many pods are of the class, this one included.
	ClassPending, ClassPlaced int
	// Unsupported is what Berth cannot judge, and UnsupportedPlugin the plugin that would.
	Unsupported, UnsupportedPlugin string
}

// WithholdNames takes the names of other pods out of an explanation: of those in the way, and of those that would be evicted.
func (x *Explanation) WithholdNames() {
	for k := range x.Nearest {
		clear(x.Nearest[k].Blockers)
	}
	for k := range x.Claims {
		c := &x.Claims[k]
		c.User = Blocker{}
		for o := range c.Obstacles {
			c.Obstacles[o].By = Blocker{}
		}
	}
	for k := range x.Changes {
		for v := range x.Changes[k].Victims {
			victim := &x.Changes[k].Victims[v]
			victim.UID, victim.Namespace, victim.Name = "", "", ""
		}
	}
}

// Explain explains a pod of a sandbox's cluster. An error says that there is no such pod, that ctx has ended, or that the
// sandbox is of no use any more.
func Explain(ctx context.Context, s *whatif.Sandbox, pod cluster.PodID) (Explanation, error) {
	out := Explanation{Version: s.Version()}
	var found findings
	err := s.Try(ctx, func(w *whatif.World) error {
		st := w.State()
		row := st.Pod(pod)
		if row == nil {
			return fmt.Errorf("there is no pod %d", pod)
		}
		out.Pod = describe(st, row)
		if out.Cause = causeOf(st, row); out.Cause == Yielded {
			out.Pod.YieldedTo = st.Settings.YieldedTo
		}
		profile := st.Profile(out.Pod.Profile)
		if out.Judged = profile != nil; !out.Judged {
			return nil
		}
		if out.Cause == Rejected || out.Cause == Placed {
			var err error
			if out.Group, err = groupOf(w, row); err != nil {
				return err
			}
			if out.Group != nil && out.Group.Lacking != "" {
				out.Cause = Incomplete
			} else if out.Group != nil && !out.Group.Fits {
				note, err := reserved(w, row)
				if err != nil {
					return err
				}
				out.Notes = append(out.Notes, note...)
			}
		}
		// 1. A pod that is placed is not in its own way.
		at := row.Node
		if err := takeOff(w, pod); err != nil {
			return err
		}
		// 2. What do all nodes say?
		found = findings{st: st, required: out.Pod.RequiredNode, unjudged: out.Pod.Unsupported != ""}
		found.findClaims(st, pod)
		survey, ok, err := w.Evaluator().Survey(st, pod, w.Between, found.visit)
		switch {
		case err != nil:
			return err
		case !ok:
			return fmt.Errorf("pod %d has no class", pod)
		}
		out.Nodes, out.Feasible, out.Rejections = survey.Nodes, survey.Feasible, survey.Rejections
		said, err := out.ask(w, pod)
		if err != nil {
			return err
		}
		out.NotAsked, out.Notes = w.NotAsked(profile), append(out.Notes, w.Notes()...)
		out.Claims = found.told(&survey)
		if out.Cause == Rejected && out.Feasible > 0 {
			out.Cause = Fits
		}
		if out.Feasible == 0 {
			reasons := reasonsOf(out.Rejections)
			out.Message = engine.FitMessage(int(out.Nodes), reasons)
			out.Devices = engine.Besides(st, reasons)
		}
		// 3. Those that come nearest, in full.
		for _, m := range found.nearest {
			if err := w.Between(); err != nil {
				return err
			}
			out.Nearest = append(out.Nearest, missOf(w, pod, m.Node))
		}
		// 4. How do the best ones score?
		if err := out.score(w, pod, at, said); err != nil {
			return err
		}
		out.ByPlugins = len(said.refused) > 0
		return nil
	})
	if err == nil && out.Cause == Rejected && !out.ByPlugins && out.alone() { // no change of a pod or a node is known to be what they want
		out.Changes, out.NoPreemption, err = found.changes(ctx, s, pod)
	}
	if err != nil {
		return Explanation{}, fmt.Errorf("explain pod: %w", err)
	}
	return out, nil
}

// alone reports whether a pod is placed by itself, and so what helps it is no matter of a group.
func (x *Explanation) alone() bool { return x.Group == nil || x.Group.Alone }

func describe(st *cluster.State, row *cluster.PodRow) Pod {
	class := st.Class(row.Class)
	return Pod{
		UID: row.UID, Namespace: row.Namespace, Name: row.Name, Phase: row.Phase, Node: row.NodeName, Priority: row.Priority,
		RequiredNode: row.RequiredNode, Nominated: row.Nominated, Gates: row.Gates, Deleting: row.Deleting, Group: row.Group,
		Profile: class.Spec.SchedulerName, Class: class.ID, ClassPending: class.Pods - class.Placed, ClassPlaced: class.Placed,
		Unsupported: class.Spec.Unsupported, UnsupportedPlugin: class.Spec.UnsupportedPlugin,
	}
}

// causeOf returns the cause as far as the pod and the number of nodes tell it.
func causeOf(st *cluster.State, row *cluster.PodRow) Cause {
	spec := &st.Class(row.Class).Spec
	switch {
	case row.Placed():
		return Placed
	case row.Deleting:
		return Deleting
	case len(row.Gates) > 0:
		return Gated
	case st.Profile(spec.SchedulerName) == nil:
		return NoProfile
	case st.Settings.Yields(spec.SchedulerName):
		return Yielded
	case spec.Unsupported != "":
		return Unsupported
	case row.Preempting:
		return Preempting
	case st.Nodes.Count() == 0:
		return NoNodes
	}
	return Rejected
}

// takeOff makes a placed pod pending, and no pod that is nominated.
func takeOff(w *whatif.World, id cluster.PodID) error {
	row := w.State().Pod(id)
	switch row.Phase {
	case cluster.Pending:
		return nil
	case cluster.Assumed:
		if err := w.Apply(cluster.PodForgotten{ID: id}); err != nil {
			return err
		}
		return w.Apply(cluster.PodNominated{ID: id})
	}
	pod := row.Pod
	pod.NodeName, pod.Nominated = "", ""
	return w.Apply(cluster.PodSet{ID: id, Pod: pod})
}

func reasonsOf(rejections []engine.Rejection) []engine.VerdictCount {
	var out []engine.VerdictCount
	for _, r := range rejections {
		out = slices.Concat(out, r.Reasons)
	}
	return out
}

// everything is the range of all nodes.
func everything(st *cluster.State) cluster.Range {
	return cluster.Range{First: 0, End: cluster.NodeIndex(st.Nodes.Len())}
}
