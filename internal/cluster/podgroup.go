package cluster

import "strings"

// PodGroup is a PodGroup of scheduling.k8s.io, or of Coscheduling, reduced to what scheduling reads: which of the pods that name it are placed together.
type PodGroup struct {
	Namespace, Name, UID string
	Created              int64 // metadata.creationTimestamp in Unix nanoseconds
	// Gang says that its pods are placed all or not at all: MinCount of them at least, those counted that have been before. Of one that is no gang, each pod is placed that can be.
	Gang     bool
	MinCount int32
	// Topology are the label keys by each of which all its pods have to be in one domain, in order.
	Topology []string
	// Priority is spec.priority, if HasPriority; else the group has that of its pods.
	HasPriority bool
	Priority    int32
	// Whole says that a preemption has all of its pods go, or none.
	Whole bool
	// Untold says why nothing else is told of it, "" for all others: its pods wait.
	Untold string
	// Preferred are the label keys, from the broadest to the narrowest, of whose domains its pods are to be in as few as they fit in.
	Preferred []string
}

// Key returns the name of the group.
func (g *PodGroup) Key() ObjectKey { return ObjectKey{PodGroupKind, g.Namespace, g.Name} }

// Encode writes what a group says.
func (g *PodGroup) Encode(e *Encoder) {
	e.Text(g.UID)
	e.Int(g.Created)
	e.Bool(g.Gang)
	e.Int(int64(g.MinCount))
	e.Texts(g.Topology)
	e.Bool(g.HasPriority)
	e.Int(int64(g.Priority))
	e.Bool(g.Whole)
	e.Text(g.Untold)
	if len(g.Preferred) > 0 {
		e.Texts(g.Preferred)
	}
}

// Decode reads what Encode has written.
func (g *PodGroup) Decode(d *Decoder) {
	g.UID = d.Text()
	g.Created = d.Int()
	g.Gang = d.Bool()
	g.MinCount = int32(d.Int())
	g.Topology = d.Texts()
	g.HasPriority = d.Bool()
	g.Priority = int32(d.Int())
	g.Whole = d.Bool()
	g.Untold = d.Text()
	if d.More() {
		g.Preferred = d.Texts()
	}
}

// Unsupported returns a group whose pods wait.
func (g *PodGroup) Unsupported(why string) Object {
	return &PodGroup{Namespace: g.Namespace, Name: g.Name, Untold: why}
}

// coscheduling is before the names of the groups of Coscheduling's PodGroups, as kubectl has it. No name in Kubernetes has a slash, so no PodGroup of scheduling.k8s.io is called so.
const coscheduling = "podgroup.scheduling.x-k8s.io/"

// CoschedulingGroup returns what the group of a PodGroup of Coscheduling is called here, by the name of that.
func CoschedulingGroup(name string) string { return coscheduling + name }

// GroupKey names a group of pods, which need not exist.
type GroupKey struct{ Namespace, Name string }

// GroupOf returns the group that a pod names. False: it names none.
func GroupOf(p *Pod) (GroupKey, bool) { return GroupKey{p.Namespace, p.Group}, p.Group != "" }

func (k GroupKey) String() string { return k.Namespace + "/" + k.Name }

// Hash returns a number that is the same everywhere.
func (k GroupKey) Hash() uint64 {
	var e Encoder
	e.Text(k.Namespace)
	e.Text(k.Name)
	return hashBytes(e.b)
}

// Coscheduling reports whether it is the group of a PodGroup of Coscheduling.
func (k GroupKey) Coscheduling() bool { return strings.HasPrefix(k.Name, coscheduling) }

// Resource returns the resource that its PodGroup is of.
func (k GroupKey) Resource() string {
	if k.Coscheduling() {
		return CoschedulingResource
	}
	return PodGroupResource
}

// The resources that pods with a group need: the PodGroups of scheduling.k8s.io, and those of Coscheduling.
const (
	PodGroupResource     = "podgroups"
	CoschedulingResource = "podgroups.scheduling.x-k8s.io"
)

// PodGroup returns a PodGroup, or nil.
func (s *State) PodGroup(key GroupKey) *PodGroup {
	return ObjectAt[*PodGroup](s, ObjectKey{PodGroupKind, key.Namespace, key.Name})
}

// members are the pods that name a group, whether it exists or not.
type members struct {
	pods   few[PodID]
	placed int // how many of them are assumed or bound
	gated  int // how many of the others have scheduling gates
	// preempting is for how many of them others are being evicted.
	preempting int
}

// Groups returns how many groups pods name.
func (s *State) Groups() int { return len(s.groups) }

// GroupPods returns the pods that name a group, in no order, to be read until the state changes.
func (s *State) GroupPods(key GroupKey) []PodID {
	if of := s.groups[key]; of != nil {
		return of.pods.list
	}
	return nil
}

// GroupPlaced returns how many pods that name a group are assumed or bound.
func (s *State) GroupPlaced(key GroupKey) int {
	if of := s.groups[key]; of != nil {
		return of.placed
	}
	return 0
}

// GroupGated returns how many pods that name a group, and have no nodes, have scheduling gates: they may not be tried.
func (s *State) GroupGated(key GroupKey) int {
	if of := s.groups[key]; of != nil {
		return of.gated
	}
	return 0
}

// GroupPreempting reports whether others are being evicted for a pod that names a group.
func (s *State) GroupPreempting(key GroupKey) bool {
	of := s.groups[key]
	return of != nil && of.preempting > 0
}

// enterGroup counts a pod in its group, if it has one.
func (s *State) enterGroup(id PodID) {
	p := &s.pods[id]
	if p.Group == "" {
		return
	}
	key := GroupKey{p.Namespace, p.Group}
	of := s.groups[key]
	if of == nil {
		of = new(members)
		s.groups[key] = of
	}
	of.pods.add(id)
	if p.Placed() {
		of.placed++
	} else if len(p.Gates) > 0 {
		of.gated++
	}
	if p.Preempting {
		of.preempting++
	}
}

// leaveGroup undoes enterGroup.
func (s *State) leaveGroup(id PodID) {
	p := &s.pods[id]
	if p.Group == "" {
		return
	}
	key := GroupKey{p.Namespace, p.Group}
	of := s.groups[key]
	of.pods.remove(id)
	if p.Placed() {
		of.placed--
	} else if len(p.Gates) > 0 {
		of.gated--
	}
	if p.Preempting {
		of.preempting--
	}
	if len(of.pods.list) == 0 {
		delete(s.groups, key)
	}
}

func cloneGroups(groups map[GroupKey]*members) map[GroupKey]*members {
	out := make(map[GroupKey]*members, len(groups))
	for key, of := range groups {
		out[key] = &members{of.pods.clone(), of.placed, of.gated, of.preempting}
	}
	return out
}
