package answer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/internal/access"
	"github.com/berth-scheduler/berth/internal/cluster"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/whatif"
)

// Bounds of requests, as the proto says them.
const (
	maxChanges  = 1000
	maxPods     = 10_000
	maxAdded    = 10_000  // nodes, by all changes together
	maxLabels   = 500_000 // of these nodes, taints and images among them: 50 each
	maxCapacity = 1_000_000
	maxMoves    = 1000

	standardCapacity = 10_000
)

// WhatIf makes the changes of a request in a sandbox, schedules its pods, says what would happen, and takes all back. Pods that
// would be evicted are named only if names is true.
func WhatIf(ctx context.Context, box *whatif.Sandbox, req *schedulingv1.WhatIfRequest, names bool) (*schedulingv1.WhatIfResponse, error) {
	load, err := read(ctx, "manifests", req.GetManifests(), req.GetTimes())
	if err != nil {
		return nil, err
	}
	if len(req.GetChanges()) == 0 && len(load.Pods) == 0 && !req.GetPending() {
		return nil, rpc.Invalid(rpc.Violation{Field: "changes", Description: "nothing is asked: give changes, manifests or pending"})
	}
	response := &schedulingv1.WhatIfResponse{Version: version(box)}
	err = try(ctx, box, func(w *whatif.World) error {
		// 1. The changes. Pods that they displace are placed again.
		response.Before = utilization(w.Usage())
		changes := changes{w: w, from: make(map[cluster.PodID]whatif.Moved)}
		if err := changes.make(req.GetChanges()); err != nil {
			return err
		}
		response.Notes = changes.notes
		// 2. The pods, all in one queue.
		pods := changes.displaced
		if req.GetPending() {
			for _, id := range whatif.Pending(w) {
				if _, displaced := changes.from[id]; !displaced {
					pods = append(pods, id)
				}
			}
		}
		added, err := w.Add(load)
		if err != nil {
			return faultOf(w.Context(), "manifests", err)
		}
		all := append(pods, added...)
		placed, err := whatif.Place(w, all, whatif.PlaceOptions{
			Preempt: !req.GetNoPreemption(), Brief: req.GetSummaryOnly(), MaxText: outcomeBytes,
		})
		if err != nil {
			return err
		}
		response.Notes = append(response.Notes, whatif.NotAskedOf(w, all)...)
		response.Notes = append(response.Notes, w.Notes()...)
		// 3. What became of them.
		told := outcomes{names: names}
		for k := range placed {
			o := &placed[k]
			if o.Node != "" {
				response.Placed++
			} else {
				response.Unplaced++
			}
			if req.GetSummaryOnly() {
				continue
			}
			out := told.outcome(o)
			if moved, ok := changes.from[o.Pod]; ok {
				out.From, out.Protected = moved.From, moved.Protected
			}
			if err := told.add(out); err != nil {
				return err
			}
		}
		if !req.GetSummaryOnly() {
			for _, o := range changes.stays {
				if err := told.add(o); err != nil {
					return err
				}
			}
		}
		response.Outcomes = told.list
		response.After = utilization(w.Usage())
		return nil
	})
	if err != nil {
		return nil, err
	}
	return response, nil
}

// Capacity says how many more of a pod fit, or of a PodGroup.
func Capacity(ctx context.Context, box *whatif.Sandbox, req *schedulingv1.GetCapacityRequest) (*schedulingv1.GetCapacityResponse, error) {
	limit := int(req.GetLimit())
	var violations []rpc.Violation
	switch {
	case limit < 0 || limit > maxCapacity:
		violations = append(violations, rpc.Violation{Field: "limit", Description: fmt.Sprintf("%d, want 0 to %d", limit, maxCapacity)})
	case limit == 0:
		limit = standardCapacity
	}
	given := 0
	for _, is := range []string{req.GetManifest(), req.GetName(), req.GetPodGroup()} {
		if is != "" {
			given++
		}
	}
	if given != 1 {
		violations = append(violations, rpc.Violation{Field: "manifest", Description: "give either a manifest, or the name of a pod, or that of a PodGroup (pod_group)"})
	}
	if err := rpc.Invalid(violations...); err != nil {
		return nil, err
	}
	load, err := read(ctx, "manifest", req.GetManifest(), 1)
	if err != nil {
		return nil, err
	}
	group, err := load.Group()
	switch {
	case err != nil:
		return nil, faultOf(ctx, "manifest", err)
	case req.GetManifest() != "" && len(load.Pods) == 0:
		return nil, rpc.Invalid(rpc.Violation{Field: "manifest", Description: "it stands for no pod"})
	}
	response := &schedulingv1.GetCapacityResponse{Version: version(box)}
	if deadline, ok := ctx.Deadline(); ok { // what has been counted by then is told
		until := deadline.Add(-time.Until(deadline) / 3)
		ctx = whatif.WithEnough(ctx, func() bool { return !time.Now().Before(until) })
	}
	err = try(ctx, box, func(w *whatif.World) error {
		// 1. What is asked about, as it is now.
		pods := load.Pods
		switch {
		case req.GetName() != "":
			id, err := find(w.State(), req.GetNamespace(), req.GetName())
			if err != nil {
				return err
			}
			pod, _ := w.Pod(id)
			pods = []source.Pod{pod}
		case req.GetPodGroup() != "":
			key := cluster.GroupKey{Namespace: cmp.Or(req.GetNamespace(), "default"), Name: req.GetPodGroup()}
			is, its, err := w.GroupAsItIs(key)
			if err != nil {
				return err
			}
			if is == nil {
				return rpc.Error(codes.NotFound, rpc.ReasonNotFound, "PodGroup %v not found", key)
			}
			group, pods = is, its
		}
		// 2. The changes, and what manifests bring.
		changes := changes{w: w, from: make(map[cluster.PodID]whatif.Moved)}
		if err := changes.make(req.GetChanges()); err != nil {
			return err
		}
		if err := bringFor(w, &load, group); err != nil {
			return faultOf(w.Context(), "manifest", err)
		}
		// 3. How many fit.
		if group != nil {
			room, err := whatif.GroupCapacity(w, group, pods, limit)
			if err != nil {
				return err
			}
			response.Fit, response.AtLeast, response.Message = int32(room.Groups), room.AtLeast, room.Message
			response.Verdicts, response.Notes = verdicts(room.Verdicts), append(room.Notes, w.Notes()...)
			response.Group = groupCapacity(group, len(pods), &room)
			return nil
		}
		room, err := whatif.Capacity(w, pods[0], limit)
		if err != nil {
			return err
		}
		response.Fit, response.AtLeast, response.Message = int32(room.Pods), room.AtLeast, room.Message
		response.Verdicts, response.Notes = verdicts(room.Verdicts), append(room.Notes, w.Notes()...)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return response, nil
}

// bringFor tells a World what manifests bring besides the pods of which copies are made: all pods of a group, or the first.
func bringFor(w *whatif.World, load *whatif.Workload, group *cluster.PodGroup) error {
	if err := w.Bring(load.Objects); err != nil {
		return err
	}
	for k, claims := range load.Claims {
		if k > 0 && group == nil {
			break
		}
		if err := w.AddClaims(claims); err != nil {
			return err
		}
	}
	return nil
}

func groupCapacity(group *cluster.PodGroup, pods int, room *whatif.GroupRoom) *schedulingv1.GroupCapacity {
	out := &schedulingv1.GroupCapacity{Name: group.Name, Pods: int32(pods), Topology: group.Topology}
	if group.Gang {
		out.Wants = group.MinCount
	}
	for _, name := range slices.Sorted(maps.Keys(room.Domains)) {
		out.Domains = append(out.Domains, &schedulingv1.DomainCapacity{Name: name, Fit: int32(room.Domains[name])})
	}
	return out
}

// Compare schedules pods under two configurations and says what differs. Pods that the request does not bring are named only if names
// is true.
func Compare(ctx context.Context, box *whatif.Sandbox, req *schedulingv1.CompareRequest, names bool) (*schedulingv1.CompareResponse, error) {
	if req.GetEverything() && !blank(req.GetManifests()) {
		return nil, rpc.Invalid(rpc.Violation{Field: "everything", Description: "goes with no manifests"})
	}
	load, err := read(ctx, "manifests", req.GetManifests(), req.GetTimes())
	if err != nil {
		return nil, err
	}
	brings := !blank(req.GetManifests()) // else the pods are the cluster's, which takes another right
	if brings && len(load.Pods) == 0 {
		return nil, rpc.Invalid(rpc.Violation{Field: "manifests", Description: "they stand for no pod"})
	}
	response := &schedulingv1.CompareResponse{Version: version(box)}
	err = try(ctx, box, func(w *whatif.World) error {
		one, notes, err := settings(w, "configuration", req.GetConfiguration())
		if err != nil {
			return err
		}
		other, more, err := settings(w, "other", req.GetOther())
		if err != nil {
			return err
		}
		var pods []cluster.PodID
		switch {
		case req.GetEverything():
			pods = whatif.Everything(w)
		case brings:
			pods, err = w.Add(load)
			err = faultOf(w.Context(), "manifests", err)
		default:
			pods = whatif.Pending(w)
		}
		if err != nil {
			return err
		}
		if len(pods) > maxPods {
			return rpc.Invalid(rpc.Violation{Field: "everything", Description: fmt.Sprintf("%d pods, at most %d are possible", len(pods), maxPods)})
		}
		c, err := whatif.Compare(w, one, other, pods, whatif.PlaceOptions{Preempt: true, Brief: true})
		if err != nil {
			return err
		}
		response.Notes = append(c.Notes, w.Notes()...)
		if slices.Contains(append(notes, more...), whatif.GroupsStay) {
			response.Notes = append(response.Notes, whatif.GroupsStay)
		}
		response.One, response.Two = utilization(c.A), utilization(c.B)
		response.OnlyOne, response.OnlyTwo, response.Moved, response.Same = int32(c.OnlyA), int32(c.OnlyB), int32(c.Moved), int32(c.Same)
		for _, d := range c.Differ[:min(len(c.Differ), maxMoves)] {
			if !names && !brings {
				d.Namespace, d.Name = "", withheld
			}
			response.Moves = append(response.Moves, &schedulingv1.Move{Namespace: d.Namespace, Name: d.Name, One: d.A, Two: d.B})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return response, nil
}

// Rights report what whoever asks may list in a namespace, "" for all.
type Rights struct {
	// Claims: what becomes of a pod that names a claim says whether there is such a claim, and where its volume is.
	Claims func(namespace string) (bool, error)
	// Pods: what becomes of a pod of a PodGroup says how many others there are of it, and where, and may name one.
	Pods func(namespace string) (bool, error)
}

// mostNamespaces bounds how often each of Rights is asked; who asks about more needs the right to all.
const mostNamespaces = 8

// Check returns what keeps whoever asks from asking about pods that have claims, or that name PodGroups, or from bringing claims or PodGroups, which may be in the stead of
// those that there are, in these namespaces. It asks an API server, maybe: whoever calls it holds up nobody.
func (r Rights) Check(field string, about whatif.Namespaces) error {
	for _, of := range []struct {
		namespaces       []string
		may              func(namespace string) (bool, error)
		things, resource string
	}{{about.Claims, r.Claims, "claims", "persistentvolumeclaims"}, {about.Groups, r.Pods, "PodGroups", "pods"}} {
		if len(of.namespaces) > mostNamespaces {
			of.namespaces = []string{""}
		}
		for _, namespace := range of.namespaces {
			may, err := of.may(namespace)
			switch {
			case err != nil:
				return err
			case !may && namespace == "":
				return rpc.Error(codes.PermissionDenied, access.ReasonNotAllowed, "%s: more than %d namespaces have %s, or pods with some: that needs the right to list %s in all namespaces", field, mostNamespaces, of.things, of.resource)
			case !may:
				return rpc.Error(codes.PermissionDenied, access.ReasonNotAllowed, "%s: there are %s of namespace %s, or pods with some: that needs the right to list %s there", field, of.things, namespace, of.resource)
			}
		}
	}
	return nil
}

// changes are made in a world.
type changes struct {
	w         *whatif.World
	displaced []cluster.PodID                // pods that have to find other places
	from      map[cluster.PodID]whatif.Moved // where they were
	stays     []*schedulingv1.Outcome        // pods that a drain leaves where they are
	notes     []string
	added     int // nodes
	labels    int // of these, and taints and images
}

func (c *changes) make(list []*schedulingv1.Change) error {
	if len(list) > maxChanges {
		return rpc.Invalid(rpc.Violation{Field: "changes", Description: fmt.Sprintf("%d of them, at most %d are possible", len(list), maxChanges)})
	}
	for i, change := range list {
		field, err := c.one(change)
		if err != nil {
			return faultOf(c.w.Context(), fmt.Sprintf("changes[%d].%s", i, field), err)
		}
	}
	return nil
}

// one makes a change, and names its field.
func (c *changes) one(change *schedulingv1.Change) (field string, err error) {
	switch x := change.GetChange().(type) {
	case *schedulingv1.Change_AddNodes:
		return "add_nodes", c.addNodes(x.AddNodes)
	case *schedulingv1.Change_RemoveNode:
		return "remove_node", c.w.RemoveNode(x.RemoveNode)
	case *schedulingv1.Change_Cordon:
		return "cordon", c.w.Cordon(x.Cordon, true)
	case *schedulingv1.Change_Uncordon:
		return "uncordon", c.w.Cordon(x.Uncordon, false)
	case *schedulingv1.Change_LabelNode:
		return "label_node", c.label(x.LabelNode)
	case *schedulingv1.Change_Drain:
		return "drain", c.drain(x.Drain)
	case *schedulingv1.Change_Configuration:
		set, notes, err := whatif.Configured(c.w.State(), []byte(x.Configuration))
		if err != nil {
			return "configuration", err
		}
		c.notes = append(c.notes, notes...)
		return "configuration", c.w.SetSettings(set)
	}
	return "change", errors.New("required")
}

func (c *changes) label(l *schedulingv1.LabelNode) error {
	switch {
	case l.GetKey() == "":
		return errors.New("key: required")
	case l.GetRemove() && l.GetValue() != "":
		return errors.New("value: goes with no remove")
	case l.GetRemove():
		return c.w.Unlabel(l.GetNode(), l.GetKey())
	}
	return c.w.Label(l.GetNode(), l.GetKey(), l.GetValue())
}

func (c *changes) drain(name string) error {
	if c.w.State().Nodes.ByName(name) == cluster.NoNode {
		return fmt.Errorf("there is no node %q", name)
	}
	moved, stays, err := whatif.Evict(c.w, name)
	if err != nil {
		return err
	}
	for _, m := range moved {
		c.displaced = append(c.displaced, m.Pod)
		c.from[m.Pod] = m
	}
	for _, s := range stays {
		c.stays = append(c.stays, &schedulingv1.Outcome{Namespace: s.Namespace, Name: s.Name, Node: s.Node, From: s.Node, Skipped: s.Why})
	}
	return nil
}

func (c *changes) addNodes(a *schedulingv1.AddNodes) error {
	count := int(a.GetCount())
	switch {
	case count < 0 || count > maxAdded:
		return fmt.Errorf("count: %d, want 0 to %d", count, maxAdded)
	case (a.GetLike() == "") == (a.GetManifests() == ""):
		return errors.New("give either like or manifests")
	}
	var models []cluster.Node
	if a.GetLike() != "" {
		i := c.w.State().Nodes.ByName(a.GetLike())
		if i == cluster.NoNode {
			return fmt.Errorf("like: there is no node %q", a.GetLike())
		}
		models = append(models, c.w.State().Node(i))
	} else {
		var err error
		if models, err = whatif.Nodes(c.w.Context(), []byte(a.GetManifests()), maxAdded); err != nil {
			return fmt.Errorf("manifests: %w", err)
		}
		if len(models) == 0 {
			return errors.New("manifests: there is no Node in them")
		}
	}
	if c.added += len(models) * max(count, 1); c.added > maxAdded {
		return fmt.Errorf("count: that is %d nodes, at most %d are possible", c.added, maxAdded)
	}
	for _, model := range models {
		c.labels += (len(model.Labels) + len(model.Taints) + len(model.Images)) * max(count, 1)
	}
	if c.labels > maxLabels {
		return fmt.Errorf("count: that is %d labels, taints and images of nodes, at most %d are possible", c.labels, maxLabels)
	}
	for _, model := range models {
		if a.GetLike() == "" {
			if err := c.w.Takes(&model); err != nil {
				return fmt.Errorf("manifests: node %q: %w", model.Name, err)
			}
		}
		switch {
		case a.GetLike() != "" || count > 1:
			if err := c.w.AddNodesLike(model, max(count, 1)); err != nil {
				return err
			}
		case c.w.State().Nodes.ByName(model.Name) != cluster.NoNode:
			return fmt.Errorf("manifests: there is a node %q already", model.Name)
		default:
			if err := c.w.SetNode(model); err != nil {
				return err
			}
		}
	}
	return nil
}

// blank reports whether a field of manifests brings nothing.
func blank(manifests string) bool { return strings.TrimSpace(manifests) == "" }

// faultOf says that an error is the fault of a field, unless it is of the sandbox or of the turns of whoever asks, or nobody waits any more.
func faultOf(ctx context.Context, field string, err error) error {
	switch {
	case err == nil, rpc.ReasonOf(err) != "", errors.Is(err, whatif.ErrSpoiled):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return rpc.Invalid(rpc.Violation{Field: field, Description: err.Error()})
}

// settings are the present ones, with the profiles of a configuration if one is given.
func settings(w *whatif.World, field, configuration string) (cluster.Settings, []string, error) {
	if configuration == "" {
		return w.State().Settings, nil, nil
	}
	set, notes, err := whatif.Configured(w.State(), []byte(configuration))
	if err != nil {
		return set, nil, rpc.Invalid(rpc.Violation{Field: field, Description: err.Error()})
	}
	return set, notes, nil
}

// read reads the manifests of a request, if there are any. What is wrong with them is said of the field.
func read(ctx context.Context, field, manifests string, times int32) (load whatif.Workload, err error) {
	err = reading(ctx, field, manifests, times, func(data []byte, times, limit int) error {
		load, err = whatif.ReadWorkload(ctx, data, times, limit)
		return err
	})
	return load, err
}

// NamespacesOf returns the namespaces that the manifests of a request are about, for [Rights.Check]. It keeps nothing else of
// them: they may stand for far more than their size, and whoever asks has yet to wait for what others say of their rights, and for the sandbox.
func NamespacesOf(ctx context.Context, field, manifests string, times int32) (about whatif.Namespaces, err error) {
	err = reading(ctx, field, manifests, times, func(data []byte, times, limit int) error {
		about, err = whatif.NamespacesOf(ctx, data, times, limit)
		return err
	})
	return about, err
}

func reading(ctx context.Context, field, manifests string, times int32, read func(data []byte, times, limit int) error) error {
	switch {
	case times < 0 || times > maxPods:
		return rpc.Invalid(rpc.Violation{Field: "times", Description: fmt.Sprintf("%d, want 0 to %d", times, maxPods)})
	case blank(manifests):
		return nil
	}
	return faultOf(ctx, field, read([]byte(manifests), int(times), maxPods))
}
