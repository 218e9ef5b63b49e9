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
