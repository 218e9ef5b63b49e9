package explain

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/whatif"
)

// ChangeKind is a kind of intervention. Smaller ones touch less that is not the pod's own.
type ChangeKind int

// The kinds, the smallest first. The first four change the pod alone, or what is its own: to take less, or to go where it did not want to.
// The next three change one node, the first of them only its labels; the other two open it to all pods, though somebody has closed it.
// Then one has to pay for storage, or for a node. The last ends the work of other pods.
const (
	// ReduceRequests asks for less of some resources: on the node where the sum of the relative reductions is the least.
	ReduceRequests ChangeKind = iota
	// Tolerate adds tolerations: as few as possible, of those that open most nodes.
	Tolerate
	// DropConditions takes labels out of the node selector, or conditions out of one required node affinity term: as few as
	// possible, of those that open most nodes.
	DropConditions
	// CreateClaim makes claims that there are not, or that are of no use any more, and has them bound to volumes that can be reached from everywhere.
	CreateClaim
	// LabelNode changes labels of one node: as few as possible.
	LabelNode
	// Uncordon makes one node schedulable.
	Uncordon
	// RemoveTaints takes taints from one node: as few as possible.
	RemoveTaints
	// AddVolume adds a volume for each claim that has none on one node, where there is least to be added; or for each claim that is to be
	// bound before the pod comes.
	AddVolume
	// AddNode adds one node like one that there is, but empty and well: with the least CPU, then memory. If none of these helps, it has other
	// labels, so that it is where volumes of the pod are.
	AddNode
	// Preempt evicts pods of lower priority from one node: those that preemption would choose.
	Preempt
)

func (k ChangeKind) String() string {
	return [...]string{
		"reduce requests", "tolerate", "drop conditions", "create claim", "label node", "uncordon", "remove taints", "add volume", "add node", "preempt",
	}[k]
}

// Change is a change after which the pod is schedulable. What is set depends on the kind.
type Change struct {
	Kind ChangeKind
	// Node is one that can take the pod then; of AddNode, the one that the new one is like.
	Node string
	// Opens is how many nodes can take the pod then.
	Opens int32

	Requests    []RequestChange      // of ReduceRequests
	Tolerations []cluster.Toleration // of Tolerate
	Conditions  []Condition          // of DropConditions
	Terms       int                  // of DropConditions: how many required node affinity terms the pod has
	AllTerms    bool                 // of DropConditions: all of them go, since one is left without conditions, and would match nothing
	Claims      []string             // of CreateClaim, in the pod's order
	Volumes     []NewVolume          // of AddVolume, and of CreateClaim if others of the pod's claims are not bound
	Labels      []LabelChange        // of LabelNode, and of AddNode
	Taints      []cluster.Taint      // of RemoveTaints
	Victims     []Victim             // of Preempt, the most important first
	Violations  int32                // of Preempt: how many victims a PodDisruptionBudget protects

	there    bool   // of AddNode: it is to be where volumes are, as Labels say if that may be told
	added    string // of AddNode: what the new node is called in the sandbox
	anywhere bool   // any node may prove that it helps
}

// NewVolume is a volume that is to be added for a claim.
type NewVolume struct {
	Claim, Class string
	Size         int64  // in bytes
	Name         string // that it is to have, "" for any
	// How the claim selects volumes, and wants to use one.
	Labels          []cluster.Label
	AccessModes     []string
	Mode            string // "Block" or "Filesystem"
	AttributesClass string
	// Where says which nodes it is to be reached from, "" for all; Zone is the zone of these, if they are those of a zone.
	Where, Zone string
	// OrRoom says that room to provision it would do.
	OrRoom bool
}

// RequestChange is another request of a resource, in its unit.
type RequestChange struct {
	Resource string
	From, To int64
}

// Condition is what the pod's node selector or a required node affinity term asks for. Term is the term's place, -1 for the node
// selector; Index is the condition's place in it, among its Fields if Field.
type Condition struct {
	Term, Index int
	Field       bool
	cluster.Requirement
}

// LabelChange is a new value of a label, or its removal.
type LabelChange struct {
	Key, Value string
	Remove     bool
}

// Victim is a pod that would be evicted.
type Victim struct {
	UID, Namespace, Name string
	Priority             int32
}

const (
	hostname     = "kubernetes.io/hostname"
	systemTaints = "node.kubernetes.io/" // say that a node is not well: to tolerate or remove them helps nobody
	maxShapes    = 8                     // that are tried for AddNode
	maxLabels    = 8                     // that a new node may need besides: nobody gives it thousands
)

// findings collects, node by node, what comes nearest and what single changes could help.
type findings struct {
	st       *cluster.State
	required string
	unjudged bool // what the pod asks for cannot be judged

	nearest []Miss

	smallest    idea // of ReduceRequests
	tolerations sets
	conditions  sets
	label       idea
	cordoned    idea
	tainted     idea
	volume      idea                           // of AddVolume
	shapes      map[shapeKey]cluster.NodeIndex // the first node of each
	moved       map[shapeKey]cluster.NodeIndex // likewise, of those that would have to be where volumes are

	claims []*Claim
	aside  int32 // nodes that are set aside before anybody looks whether something is in a claim's way
	byName map[string]*Claim
}

// idea is a node with what it lacks, and how little that is.
type idea struct {
	some  bool
	node  cluster.NodeIndex
	size  float64
	lacks []engine.Lack
}

// offer takes a node if it lacks less. Nodes come by index.
func (d *idea) offer(i cluster.NodeIndex, size float64, lacks []engine.Lack) {
	if !d.some || size < d.size {
		*d = idea{true, i, size, append(d.lacks[:0], lacks...)}
	}
}

// sets are the nodes of which each lacks only one kind of things, by the set of these things.
type sets struct {
	byKey   map[string]*set
	scratch []byte
}

type set struct {
	node  cluster.NodeIndex // the first
	nodes int
	lacks []engine.Lack // of the first
}

// add adds a node with its things, written as a key.
func (s *sets) add(i cluster.NodeIndex, lacks []engine.Lack, write func([]byte, *engine.Lack) []byte) {
	s.scratch = s.scratch[:0]
	for k := range lacks {
		s.scratch = write(s.scratch, &lacks[k])
	}
	if found := s.byKey[string(s.scratch)]; found != nil {
		found.nodes++
		return
	}
	if s.byKey == nil {
		s.byKey = make(map[string]*set)
	}
	s.byKey[string(s.scratch)] = &set{i, 1, slices.Clone(lacks)}
}

// best returns the set of fewest things, of these that of most nodes, of these that of the first node.
func (s *sets) best() *set {
	var best *set
	for _, one := range s.byKey {
		if best == nil || cmp.Or(cmp.Compare(len(one.lacks), len(best.lacks)), cmp.Compare(best.nodes, one.nodes), cmp.Compare(one.node, best.node)) < 0 {
			best = one
		}
	}
	return best
}

// visit is for engine.Survey.
func (f *findings) visit(i cluster.NodeIndex, lacks []engine.Lack) {
	f.count(i, lacks)
	if f.unjudged || f.required != "" && f.st.Nodes.Spec[i].Name != f.required {
		return
	}
	f.nearest = keep(f.nearest, Miss{Node: i, Things: len(lacks), Relative: relative(lacks)})
	help := ^engine.Help(0) // what helps all that it lacks
	for k := range lacks {
		help &= lacks[k].Help
	}
	if help&engine.HelpRequests != 0 {
		f.smallest.offer(i, relative(lacks), lacks)
	}
	if help&engine.HelpTaints != 0 {
		f.tainted.offer(i, float64(len(lacks)), lacks)
		f.tolerations.add(i, lacks, func(b []byte, l *engine.Lack) []byte { return appendTaint(b, l.Taint) })
	}
	if help&engine.HelpConditions != 0 {
		f.conditions.add(i, lacks, func(b []byte, l *engine.Lack) []byte {
			return strconv.AppendBool(binary.AppendVarint(binary.AppendVarint(b, int64(l.Term)), int64(l.Index)), l.Field)
		})
	}
	if help&engine.HelpLabels != 0 {
		f.label.offer(i, float64(len(lacks)), lacks)
	}
	if help&engine.HelpCordon != 0 {
		f.cordoned.offer(i, 1, lacks)
	}
	if help&engine.HelpNewVolume != 0 {
		f.volume.offer(i, float64(len(lacks))+relative(lacks), lacks)
	}
	f.shape(i, lacks)
}

func appendTaint(b []byte, t *cluster.Taint) []byte {
	for _, text := range []string{t.Key, t.Value, t.Effect} {
		b = binary.AppendUvarint(b, uint64(len(text)))
		b = append(b, text...)
	}
	return b
}

// shapeKey tells apart nodes that would be different if they were new.
type shapeKey struct {
	shape  *cluster.NodeShape
	labels uint64
}

// shape takes a node if one like it, but new, may have all that this one lacks.
func (f *findings) shape(i cluster.NodeIndex, lacks []engine.Lack) {
	helps := engine.HelpNewNode
	if len(f.st.NominatedOn(f.st.Nodes.Spec[i].Name)) > 0 {
		helps |= engine.HelpNewNodeNominees
	}
	shapes := &f.shapes
	if slices.ContainsFunc(lacks, func(l engine.Lack) bool { return l.Help&helps == 0 }) {
		helps |= engine.HelpNodeThere
		if shapes = &f.moved; slices.ContainsFunc(lacks, func(l engine.Lack) bool { return l.Help&helps == 0 }) {
			return
		}
	}
	host, name := f.st.Symbols.Lookup(hostname), f.st.Symbols.Lookup(f.st.Nodes.Spec[i].Name)
	key := shapeKey{shape: f.st.Nodes.Spec[i].NodeShape}
	for _, l := range f.st.Nodes.Labels[i] {
		if l.Key != host && (l.Value != name || name == cluster.NoSymbol) {
			key.labels = cluster.Mix(key.labels ^ uint64(l.Key)<<32 ^ uint64(l.Value))
		}
	}
	if _, known := (*shapes)[key]; !known {
		if *shapes == nil {
			*shapes = make(map[shapeKey]cluster.NodeIndex)
		}
		(*shapes)[key] = i
	}
}

// errNoHelp says that a change does not help after all.
var errNoHelp = errors.New("the change does not help")

// changes makes each change that could help on the sandbox, and returns those that do.
func (f *findings) changes(ctx context.Context, s *whatif.Sandbox, pod cluster.PodID) (changes []Change, noPreemption string, err error) {
	try := func(change func(*whatif.World) (Change, error)) (helps bool) {
		if err != nil {
			return false
		}
		var made Change
		tried := s.Try(ctx, func(w *whatif.World) error {
			var err error
			if made, err = change(w); err != nil {
				return err
			}
			return made.prove(w, pod)
		})
		switch {
		case errors.Is(tried, errNoHelp):
			return false
		case tried != nil:
			err = tried
			return false
		}
		changes = append(changes, made)
		return true
	}
	if d := f.smallest; d.some {
		try(func(w *whatif.World) (Change, error) { return reduce(w, pod, &d) })
	}
	if one := f.tolerations.best(); one != nil {
		try(func(w *whatif.World) (Change, error) { return tolerate(w, pod, one) })
	}
	if one := f.conditions.best(); one != nil {
		try(func(w *whatif.World) (Change, error) { return drop(w, pod, one) })
	}
	if slices.ContainsFunc(f.claims, func(c *Claim) bool { return c.State.Refuses() }) {
		try(func(w *whatif.World) (Change, error) { return f.provide(w, pod) })
	}
	if d := f.label; d.some {
		try(func(w *whatif.World) (Change, error) { return relabel(w, &d) })
	}
	if d := f.cordoned; d.some {
		try(func(w *whatif.World) (Change, error) { return uncordon(w, d.node) })
	}
	if d := f.tainted; d.some {
		try(func(w *whatif.World) (Change, error) { return untaint(w, &d) })
	}
	if d := f.volume; d.some {
		try(func(w *whatif.World) (Change, error) { return addVolumes(w, pod, &d) })
	}
	added := false
	for _, i := range f.smallestOf(f.shapes) {
		if added = try(func(w *whatif.World) (Change, error) { return addNode(w, i, nil) }); added {
			break
		}
	}
	for _, i := range f.smallestOf(f.moved) {
		if added = added || try(func(w *whatif.World) (Change, error) { return addNodeThere(w, pod, i) }); added {
			break
		}
	}
	try(func(w *whatif.World) (Change, error) {
		var c Change
		var err error
		c, noPreemption, err = preempt(w, pod)
		return c, err
	})
	return changes, noPreemption, err
}

// prove counts the nodes that can take the pod now that the change is made. It fails with errNoHelp unless the changed node is one
// of them. If the pod is what has changed, any node will do: how it counts others for spreading may have changed with it, so
// that the one which was thought of is not among them.
func (c *Change) prove(w *whatif.World, pod cluster.PodID) error {
	st, e := w.State(), w.Evaluator()
	row := st.Pod(pod)
	subject := engine.SubjectOf(&row.Pod)
	fits := func(i cluster.NodeIndex) bool {
		self := cluster.NoPod
		if st.Nodes.ByName(row.Nominated) == i {
			self = pod
		}
		v, ok := e.Node(st, subject, self, i)
		return ok && v.Feasible() && (row.RequiredNode == "" || row.RequiredNode == st.Nodes.Spec[i].Name)
	}
	changed := st.Nodes.ByName(c.Node)
	if c.Kind == AddNode {
		changed = st.Nodes.ByName(c.added)
	}
	proven := changed != cluster.NoNode && fits(changed)
	switch {
	case row.RequiredNode != "":
		c.Opens = 1
	default:
		if err := w.Judge(subject); err != nil {
			return err
		}
		feasible, _ := e.Filter(st, subject, everything(st))
		c.Opens = feasible.FeasibleCount
		if i := st.Nodes.ByName(row.Nominated); i != cluster.NoNode {
			switch v, _ := e.Node(st, subject, cluster.NoPod, i); {
			case fits(i) && !v.Feasible():
				c.Opens++ // only the pod itself, as a nominee, is in its way there
			case !fits(i) && v.Feasible():
				c.Opens-- // it is only the pod itself that makes it fit
			}
		}
		for i := cluster.NodeIndex(0); !proven && (c.Kind <= DropConditions || c.anywhere) && int(i) < st.Nodes.Len(); i++ {
			if feasible.Eligible.Has(i) && fits(i) {
				proven, c.Node = true, st.Nodes.Spec[i].Name
			}
		}
	}
	if !proven {
		return errNoHelp
	}
	return nil
}

// respecify gives the pod another class.
func respecify(w *whatif.World, id cluster.PodID, change func(*cluster.ClassSpec)) error {
	pod, _ := w.Pod(id)
	change(&pod.Class)
	_, err := w.AddPod(pod)
	return err
}

func reduce(w *whatif.World, pod cluster.PodID, d *idea) (Change, error) {
	c := Change{Kind: ReduceRequests, Node: w.State().Nodes.Spec[d.node].Name}
	for k := range d.lacks {
		c.Requests = append(c.Requests, RequestChange{d.lacks[k].Resource, d.lacks[k].Requested, d.lacks[k].Free})
	}
	return c, respecify(w, pod, func(spec *cluster.ClassSpec) {
		spec.Requests, spec.ScoreRequests = slices.Clone(spec.Requests), slices.Clone(spec.ScoreRequests)
		for _, r := range c.Requests {
			for _, quantities := range [][]cluster.Quantity{spec.Requests, spec.ScoreRequests} {
				for k := range quantities {
					if quantities[k].Name == r.Resource {
						quantities[k].Value = min(quantities[k].Value, r.To)
					}
				}
			}
			switch r.Resource {
			case "cpu":
				spec.NonZeroCPU = min(spec.NonZeroCPU, r.To)
			case "memory":
				spec.NonZeroMemory = min(spec.NonZeroMemory, r.To)
			}
		}
	})
}

func tolerate(w *whatif.World, pod cluster.PodID, s *set) (Change, error) {
	c := Change{Kind: Tolerate, Node: w.State().Nodes.Spec[s.node].Name}
	for k := range s.lacks {
		t := s.lacks[k].Taint
		toleration := cluster.Toleration{Key: t.Key, Operator: "Equal", Value: t.Value, Effect: t.Effect}
		if !slices.Contains(c.Tolerations, toleration) {
			c.Tolerations = append(c.Tolerations, toleration)
		}
	}
	return c, respecify(w, pod, func(spec *cluster.ClassSpec) { spec.Tolerations = slices.Concat(spec.Tolerations, c.Tolerations) })
}

func drop(w *whatif.World, pod cluster.PodID, s *set) (Change, error) {
	c := Change{Kind: DropConditions, Node: w.State().Nodes.Spec[s.node].Name}
	for k := range s.lacks {
		l := &s.lacks[k]
		c.Conditions = append(c.Conditions, Condition{l.Term, l.Index, l.Field, *l.Wanted})
	}
	err := respecify(w, pod, c.drop) // which sets the rest of c
	return c, err
}

// drop takes the conditions out of a class. A term without any would match nothing: with the last condition of a term, all
// required terms go.
func (c *Change) drop(spec *cluster.ClassSpec) {
	selector, required := []cluster.Label(nil), slices.Clone(spec.Required)
	c.Terms = len(required)
	has := func(term, index int, field bool) bool {
		return slices.ContainsFunc(c.Conditions, func(d Condition) bool { return d.Term == term && d.Index == index && d.Field == field })
	}
	for k, l := range spec.NodeSelector {
		if !has(-1, k, false) {
			selector = append(selector, l)
		}
	}
	rest := func(term int, of []cluster.Requirement, field bool) (out []cluster.Requirement) {
		for k := range of {
			if !has(term, k, field) {
				out = append(out, of[k])
			}
		}
		return out
	}
	for k, t := range required {
		required[k] = cluster.NodeSelectorTerm{Expressions: rest(k, t.Expressions, false), Fields: rest(k, t.Fields, true)}
		if len(t.Expressions)+len(t.Fields) > 0 && len(required[k].Expressions)+len(required[k].Fields) == 0 {
			required, spec.HasRequired, c.AllTerms = nil, false, true
			break
		}
	}
	spec.NodeSelector, spec.Required = selector, required
}

func relabel(w *whatif.World, d *idea) (Change, error) {
	node := w.State().Node(d.node)
	c := Change{Kind: LabelNode, Node: node.Name}
	for k := range d.lacks {
		l, ok := labelFor(d.lacks[k].Wanted)
		if !ok {
			return c, errNoHelp
		}
		c.Labels = append(c.Labels, l)
	}
	for _, l := range c.Labels {
		change := func() error { return w.Label(node.Name, l.Key, l.Value) }
		if l.Remove {
			change = func() error { return w.Unlabel(node.Name, l.Key) }
		}
		if err := change(); err != nil {
			return c, err
		}
	}
	return c, nil
}

// labelFor returns what makes a node meet a requirement that it does not meet.
func labelFor(r *cluster.Requirement) (LabelChange, bool) {
	number := func(by int64, end int64) (LabelChange, bool) {
		if len(r.Values) != 1 {
			return LabelChange{}, false
		}
		n, err := strconv.ParseInt(r.Values[0], 10, 64)
		return LabelChange{Key: r.Key, Value: strconv.FormatInt(n+by, 10)}, err == nil && n != end
	}
	switch r.Operator {
	case "In":
		if len(r.Values) > 0 {
			return LabelChange{Key: r.Key, Value: r.Values[0]}, true
		}
	case "Exists":
		return LabelChange{Key: r.Key}, true
	case "NotIn", "DoesNotExist":
		return LabelChange{Key: r.Key, Remove: true}, true
	case "Gt":
		return number(1, math.MaxInt64)
	case "Lt":
		return number(-1, math.MinInt64)
	}
	return LabelChange{}, false
}

func uncordon(w *whatif.World, i cluster.NodeIndex) (Change, error) {
	name := w.State().Nodes.Spec[i].Name
	return Change{Kind: Uncordon, Node: name}, w.Cordon(name, false)
}

func untaint(w *whatif.World, d *idea) (Change, error) {
	node := w.State().Node(d.node)
	c := Change{Kind: RemoveTaints, Node: node.Name}
	for k := range d.lacks {
		c.Taints = append(c.Taints, *d.lacks[k].Taint)
	}
	node.Taints = withoutTaints(node.Taints, func(t cluster.Taint) bool { return slices.Contains(c.Taints, t) })
	return c, w.SetNode(node)
}

// withoutTaints returns a copy: nodes share their taints.
func withoutTaints(taints []cluster.Taint, goes func(cluster.Taint) bool) []cluster.Taint {
	return slices.DeleteFunc(slices.Clone(taints), goes)
}

// smallestOf returns a node of each of the smallest of some shapes that a new node may have, the smallest first.
func (f *findings) smallestOf(shapes map[shapeKey]cluster.NodeIndex) []cluster.NodeIndex {
	n := &f.st.Nodes
	var out []cluster.NodeIndex
	compare := func(a, b cluster.NodeIndex) int {
		return cmp.Or(
			cmp.Compare(n.Allocatable[cluster.CPU][a], n.Allocatable[cluster.CPU][b]),
			cmp.Compare(n.Allocatable[cluster.Memory][a], n.Allocatable[cluster.Memory][b]),
			cmp.Compare(a, b),
		)
	}
	for _, i := range shapes {
		at, _ := slices.BinarySearchFunc(out, i, compare)
		if at < maxShapes {
			out = slices.Insert(out[:min(len(out), maxShapes-1)], at, i)
		}
	}
	return out
}

// addNode adds a node like another one, with other labels.
func addNode(w *whatif.World, i cluster.NodeIndex, labels []LabelChange) (Change, error) {
	node := w.State().Node(i)
	c := Change{Kind: AddNode, Node: node.Name, Labels: labels, added: freshName(w.State(), node.Name)}
	node.Name, node.Labels = c.added, whatif.Renaming(w.State(), &node)(c.added)
	for _, l := range labels {
		node.Labels = slices.DeleteFunc(node.Labels, func(old cluster.Label) bool { return old.Key == l.Key })
		node.Labels = append(node.Labels, cluster.Label{Key: l.Key, Value: l.Value})
	}
	slices.SortFunc(node.Labels, func(a, b cluster.Label) int { return cmp.Compare(a.Key, b.Key) })
	node.Unschedulable = false
	node.Taints = withoutTaints(node.Taints, func(t cluster.Taint) bool { return strings.HasPrefix(t.Key, systemTaints) })
	if err := w.SetNode(node); err != nil {
		return c, err
	}
	return c, w.HaveDriversOf(c.Node, c.added)
}

// addNodeThere adds a node like another one, but with labels by which it is where the pod's volumes are. Not with the hostname of one that there
// is, or was, nor another label by which nodes are told apart: the data would not be there.
func addNodeThere(w *whatif.World, pod cluster.PodID, i cluster.NodeIndex) (Change, error) {
	lacks, _ := w.Evaluator().Shortfall(w.State(), pod, i)
	var labels []LabelChange
	node := w.State().Node(i)
	has := whatif.Renaming(w.State(), &node)(freshName(w.State(), node.Name))
	for k := range lacks {
		if lacks[k].Help&engine.HelpNodeThere == 0 {
			continue
		}
		if len(lacks[k].Of.Where) == 0 {
			return Change{}, errNoHelp
		}
		for r := range lacks[k].Of.Where[0].Expressions { // others of the terms would do, too
			if err := w.Between(); err != nil {
				return Change{}, err
			}
			wanted := &lacks[k].Of.Where[0].Expressions[r]
			if engine.Meets(wanted, has) {
				continue
			}
			l, ok := labelFor(wanted)
			if !ok || l.Remove || ofOneNode(w.State(), l) {
				return Change{}, errNoHelp
			}
			if !slices.Contains(labels, l) {
				labels = append(labels, l)
			}
			if len(labels) > maxLabels {
				return Change{}, errNoHelp
			}
		}
	}
	c, err := addNode(w, i, labels)
	c.there = true
	return c, err
}

// ofOneNode reports whether a label is such that only one node has it: its value is the name of one, or labels of its key tell nodes apart.
func ofOneNode(st *cluster.State, l LabelChange) bool {
	if l.Key == hostname || st.Nodes.ByName(l.Value) != cluster.NoNode {
		return true
	}
	nodes, own := whatif.OwnNames(st, l.Key)
	return nodes > 0 && own
}

// freshName returns a name that no node has.
func freshName(st *cluster.State, name string) string {
	for st.Nodes.ByName(name) != cluster.NoNode {
		name += "-new"
	}
	return name
}

// preempt evicts those that preemption would choose. It also says why the pod may not preempt.
func preempt(w *whatif.World, pod cluster.PodID) (Change, string, error) {
	st, e := w.State(), w.Evaluator()
	if why, ok := e.Preempts(st, pod); !ok {
		return Change{}, why, errNoHelp
	}
	found, err := w.DryRun(pod)
	if err != nil {
		return Change{}, "", err
	}
	if len(found.Candidates) == 0 {
		return Change{}, "", errNoHelp
	}
	best := &found.Candidates[0]
	c := Change{Kind: Preempt, Node: st.Nodes.Spec[best.Node].Name, Violations: best.Violations}
	for _, id := range best.Victims {
		victim := st.Pod(id)
		c.Victims = append(c.Victims, Victim{victim.UID, victim.Namespace, victim.Name, victim.Priority})
	}
	return c, "", w.Preempt(best)
}
