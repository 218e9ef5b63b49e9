package cluster

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
)

// MaxIndex bounds node indexes and pod ids, so that a broken delta cannot make a replica allocate without end.
const MaxIndex = 1 << 26

// PodRow is a pod in the ledger. Readers must not change it.
type PodRow struct {
	Pod             // Pod.NodeName is also set while the pod is Assumed
	Phase Phase     // how far it has come
	Node  NodeIndex // where it is; NoNode if it is pending, or if its node is not known
	// Preempting says that it is pending and that pods are being evicted for it.
	Preempting bool
	// Victim says that it is placed and is being evicted so that another pod finds room.
	Victim bool

	live       bool
	volumes    bool   // it has claims or disks
	next, prev PodID  // of the same node; if not live, of the ids without a pod
	hash       uint64 // of what does not change from phase to phase
}

// Placed reports whether the pod is assumed or bound.
func (p *PodRow) Placed() bool { return p.Phase != Pending }

// Class is a class in the ledger.
type Class struct {
	ID   ClassID
	Spec ClassSpec
	Key  string // Spec.Key()
	Hash uint64 // Spec.Hash()
	Pods int    // how many pods are of it
	// Placed is how many of them are assumed or bound.
	Placed int

	requests []resourceAmount // Spec.Requests but "pods", in columns
	lacked   []Quantity       // those that have no column
	ports    []HostPort       // Spec.HostPorts in order; shared by clones
}

type resourceAmount struct {
	resource ResourceID
	value    int64
}

// State is the ledger at a version. It is not safe for concurrent use; any number of readers may share it while
// nobody applies.
type State struct {
	Nodes    Nodes
	Symbols  Symbols
	Settings Settings

	// ImagesModified is the seq of the last delta that changed the images of nodes or the number of nodes: what
	// ImageLocality reads besides the node itself.
	ImagesModified Seq
	// KeysModified is the seq of the last delta that changed which label keys nodes have: with it the first node got one, or the last
	// one lost it.
	KeysModified Seq
	// NamespacesModified is the seq of the last delta that changed a namespace, and TermsModified of the last that
	// changed TermClasses.
	NamespacesModified, TermsModified Seq

	version      Version
	before       Before
	digest       uint64
	resources    []string // by ResourceID
	resourceHash []uint64
	resourceID   map[string]ResourceID
	resourceUses []int                          // how many nodes have some of it, by ResourceID; those that always have a column count one more
	lacked       map[string]map[NodeIndex]int64 // what pods request of resources without a column, but for zeros
	renumbered   uint64
	sweepAt      int // the symbols are looked through when there are so many
	images       map[Symbol]ImageState
	pinned       map[Symbol]int64 // sizes of images no node shows yet; only while a snapshot is loaded
	namespaces   map[string][]Label
	classes      map[ClassID]*Class
	termClasses  []ClassID // by id
	labels       map[LabelsID]*Labels
	services     map[string]map[string]LabelSelector // by namespace and name
	controllers  map[selectorKey]LabelSelector
	nominated    map[string][]PodID // pending pods by the node they are nominated to
	objects      objects
	volumes      volumes
	groups       map[GroupKey]*members // by the name that pods give; none is empty

	namespaceDigest   uint64         // what namespaces add to the digest
	selectorsModified map[string]Seq // by namespace
	restored          Seq            // of the snapshot that this state began with, or of when selectorsModified was last cleared

	pods     []PodRow
	freePod  PodID // the first of the ids without a pod, which are linked like the pods of a node; NoPod if there is none
	podByUID map[string]PodID
	orphans  map[string][]PodID // pods on nodes that are not known, by node name
	counts   [3]int             // pods by phase
	journal  journal
	shapes   [shapeSlots]*NodeShape // of nodes that were set, by a hash: to be shared with further ones
	scratch  []byte                 // room for what is hashed
}

// New returns the empty state at a version.
func New(v Version) *State {
	s := &State{
		version:           v,
		freePod:           NoPod,
		resourceID:        make(map[string]ResourceID),
		lacked:            make(map[string]map[NodeIndex]int64),
		images:            make(map[Symbol]ImageState),
		pinned:            make(map[Symbol]int64),
		namespaces:        make(map[string][]Label),
		classes:           make(map[ClassID]*Class),
		labels:            make(map[LabelsID]*Labels),
		services:          make(map[string]map[string]LabelSelector),
		controllers:       make(map[selectorKey]LabelSelector),
		nominated:         make(map[string][]PodID),
		selectorsModified: make(map[string]Seq),
		podByUID:          make(map[string]PodID),
		orphans:           make(map[string][]PodID),
		volumes:           newVolumes(),
		groups:            make(map[GroupKey]*members),
	}
	s.Nodes.symbols = &s.Symbols
	for _, name := range []string{"cpu", "memory", "ephemeral-storage"} {
		s.retainResource(name)
	}
	return s
}

// Version returns the version of the last applied delta.
func (s *State) Version() Version { return s.version }

// Before is the node, the pod or the object that a delta is about, as it was before: for those who follow the log and have to
// know what has changed.
type Before struct {
	Node   Node // without a name: none
	Pod    PodRow
	Object Object // nil: none

	Class  *Class  // of Pod; nil: there was no pod
	Labels *Labels // of Pod; nil: none that selectors see
	// Chosen is what had been chosen for claims of Pod.
	Chosen []VolumeChoice
}

// Before returns what the last delta has changed. It is no part of the state's digest.
func (s *State) Before() *Before { return &s.before }

func (s *State) remember(d Delta) {
	s.before = Before{}
	switch d := d.(type) {
	case NodeSet:
		s.rememberNode(d.Index)
	case NodeRemoved:
		s.rememberNode(d.Index)
	case PodSet:
		s.rememberPod(d.ID)
	case PodNominated:
		s.rememberPod(d.ID)
	case PreemptionStarted:
		s.rememberPod(d.ID)
	case PreemptionEnded:
		s.rememberPod(d.ID)
	case PodAssumed:
		s.rememberPod(d.ID)
	case PodBound:
		s.rememberPod(d.ID)
	case PodForgotten:
		s.rememberPod(d.ID)
	case PodRemoved:
		s.rememberPod(d.ID)
	case ObjectSet:
		s.before.Object = s.objects.at(d.Object.Key()).Object
	case ObjectRemoved:
		s.before.Object = s.objects.at(d.ObjectKey).Object
	}
}

func (s *State) rememberNode(i NodeIndex) {
	if s.Nodes.Live.Has(i) {
		s.before.Node = s.Node(i)
	}
}

func (s *State) rememberPod(id PodID) {
	if p := s.Pod(id); p != nil {
		s.before = Before{Pod: *p, Class: s.classes[p.Class], Labels: s.labels[p.Labels], Chosen: s.volumes.choices[id]}
	}
}

// Digest returns a hash of the whole state. Equal states have equal digests; it costs nothing to read.
func (s *State) Digest() uint64 { return s.digest }

// Renumbered changes whenever symbols or columns stand for something else than before: whoever keeps either looks them up again.
// New ones alone do not change it. It is of this State alone, and no part of its digest.
func (s *State) Renumbered() uint64 { return s.renumbered }

// Resource returns the column of a resource. False: no node has any of it. Then nobody who asks for some fits.
func (s *State) Resource(name string) (ResourceID, bool) {
	id, ok := s.resourceID[name]
	return id, ok
}

// ResourceName returns the name of a column.
func (s *State) ResourceName(r ResourceID) string { return s.resources[r] }

// Resources returns the number of columns.
func (s *State) Resources() int { return len(s.resources) }

// Image returns what is known of an image name.
func (s *State) Image(name Symbol) ImageState { return s.images[name] }

// Class returns a class, or nil.
func (s *State) Class(id ClassID) *Class { return s.classes[id] }

// Classes returns all classes, by id.
func (s *State) Classes() []*Class {
	return slices.SortedFunc(maps.Values(s.classes), func(a, b *Class) int { return int(a.ID - b.ID) })
}

// Namespace returns a namespace's labels.
func (s *State) Namespace(name string) ([]Label, bool) {
	l, ok := s.namespaces[name]
	return l, ok
}

// Profile returns the profile for a scheduler name, or nil.
func (s *State) Profile(schedulerName string) *Profile {
	for i := range s.Settings.Profiles {
		if s.Settings.Profiles[i].SchedulerName == schedulerName {
			return &s.Settings.Profiles[i]
		}
	}
	return nil
}

// Pod returns the pod with that id, or nil.
func (s *State) Pod(id PodID) *PodRow {
	if id < 0 || int(id) >= len(s.pods) || !s.pods[id].live {
		return nil
	}
	return &s.pods[id]
}

// PodByUID returns the id of the pod with that uid.
func (s *State) PodByUID(uid string) (PodID, bool) {
	id, ok := s.podByUID[uid]
	return id, ok
}

// Pods yields all pods, by id.
func (s *State) Pods() iter.Seq2[PodID, *PodRow] {
	return func(yield func(PodID, *PodRow) bool) {
		for i := range s.pods {
			if s.pods[i].live && !yield(PodID(i), &s.pods[i]) {
				return
			}
		}
	}
}

// PodsOn yields the pods on a node, assumed ones included, in no order that matters.
func (s *State) PodsOn(n NodeIndex) iter.Seq2[PodID, *PodRow] {
	return func(yield func(PodID, *PodRow) bool) {
		if !s.Nodes.Live.Has(n) {
			return
		}
		for id := s.Nodes.firstPod[n]; id != NoPod; id = s.pods[id].next {
			if !yield(id, &s.pods[id]) {
				return
			}
		}
	}
}

// Count returns the number of pods in a phase.
func (s *State) Count(p Phase) int { return s.counts[p] }

// FreePod returns an id without a pod.
func (s *State) FreePod() PodID {
	if s.freePod != NoPod {
		return s.freePod
	}
	return PodID(len(s.pods))
}

// ErrRefused is wrapped by every error of Apply: the delta does not belong to this state.
var ErrRefused = errors.New("delta does not apply")

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrRefused, fmt.Sprintf(format, args...))
}

// Apply changes the state by one delta and advances its version by one. On an error, which wraps ErrRefused, the
// state is as before.
func (s *State) Apply(d Delta) error {
	if err := s.check(d); err != nil {
		return err
	}
	s.remember(d)
	s.version.Seq++
	switch d := d.(type) {
	case SettingsSet:
		s.setSettings(d.Settings)
	case ClassDefined:
		s.defineClass(d)
	case NodeSet:
		s.setNode(d)
	case NodeRemoved:
		s.removeNode(d.Index)
	case LabelsDefined:
		s.defineLabels(d)
	case SelectorSet:
		s.setSelector(d)
	case SelectorRemoved:
		s.removeSelector(selectorKey{d.Kind, d.Namespace, d.Name})
	case NamespaceSet:
		s.removeNamespace(d.Name)
		s.NamespacesModified = s.version.Seq
		s.namespaces[d.Name] = d.Labels
		s.addNamespace(hashNamespace(d.Name, d.Labels))
	case NamespaceRemoved:
		s.removeNamespace(d.Name)
		s.NamespacesModified = s.version.Seq
	case PodSet:
		s.setPod(d)
	case PodAssumed:
		s.place(d.ID, Assumed, d.Node, s.Nodes.Spec[d.Node].Name, d.Attempt)
		s.promise(d.ID, d.Volumes)
	case PodBound:
		s.unpromise(d.ID)
		p := &s.pods[d.ID]
		s.place(d.ID, Bound, p.Node, p.NodeName, p.Attempt)
	case PodForgotten:
		s.unpromise(d.ID)
		s.place(d.ID, Pending, NoNode, "", s.pods[d.ID].Attempt)
	case PodRemoved:
		s.removePod(d.ID)
	case PodNominated:
		s.renominate(d.ID, d.Node)
	case PreemptionStarted:
		s.startPreemption(d)
	case PreemptionEnded:
		s.endPreemption(d)
	case ObjectSet:
		s.changeVolumes(d.Object.Key(), func() { s.setObject(d) })
	case ObjectRemoved:
		s.changeVolumes(d.ObjectKey, func() { s.removeObject(d.ObjectKey) })
	case ImageSized:
		s.pinned[s.Symbols.intern(d.Name)] = d.Size
	}
	return nil
}

// check refuses what Apply could not do whole.
func (s *State) check(d Delta) error {
	switch d := d.(type) {
	case SettingsSet:
		if d.Settings.Shards < 1 {
			return refuse("settings with %d shards", d.Settings.Shards)
		}
	case ClassDefined:
		if s.classes[d.ID] != nil {
			return refuse("class %d is defined already", d.ID)
		}
	case LabelsDefined:
		if d.ID == NoLabels || s.labels[d.ID] != nil {
			return refuse("label set %d is defined already", d.ID)
		}
	case SelectorSet:
		if d.Kind != KindService && d.Kind != KindReplicationController && d.Kind != KindReplicaSet && d.Kind != KindStatefulSet {
			return refuse("selector of a %q", d.Kind)
		}
	case NodeSet:
		if d.Index < 0 || d.Index >= MaxIndex {
			return refuse("node %q at index %d", d.Node.Name, d.Index)
		}
		if at := s.Nodes.ByName(d.Node.Name); at != NoNode && at != d.Index {
			return refuse("node %q is at index %d, not %d", d.Node.Name, at, d.Index)
		}
		if s.Nodes.Live.Has(d.Index) && s.Nodes.Spec[d.Index].Name != d.Node.Name {
			return refuse("index %d of node %q is taken by %q", d.Index, d.Node.Name, s.Nodes.Spec[d.Index].Name)
		}
	case NodeRemoved:
		return s.checkNode(d.Index)
	case NodeTouched:
		return s.checkNode(d.Index)
	case PodSet:
		return s.checkPodSet(d)
	case PodAssumed:
		if err := s.checkPhase(d.ID, Pending); err != nil {
			return err
		}
		if !s.Nodes.Live.Has(d.Node) {
			return refuse("pod %d assumed on index %d without a node", d.ID, d.Node)
		}
		if why := s.CanPromise(s.pods[d.ID].Namespace, s.Nodes.Spec[d.Node].Name, d.Volumes); why != "" {
			return refuse("pod %d assumed on %s: %s", d.ID, s.Nodes.Spec[d.Node].Name, why)
		}
	case PodBound:
		return s.checkPhase(d.ID, Assumed)
	case PodForgotten:
		return s.checkPhase(d.ID, Assumed)
	case PodRemoved:
		if s.Pod(d.ID) == nil {
			return refuse("no pod %d", d.ID)
		}
	case PodNominated:
		return s.checkPhase(d.ID, Pending)
	case PodActivated:
		if d.ID != NoPod {
			return s.checkPhase(d.ID, Pending)
		}
	case PreemptionStarted:
		return s.checkPreemption(d)
	case PreemptionEnded:
		if p := s.Pod(d.ID); d.ID != NoPod && (p == nil || !p.Preempting) {
			return refuse("no pod %d for which others are evicted", d.ID)
		}
	case ObjectSet:
		if d.Object == nil {
			return refuse("no object")
		}
		if kind := d.Object.Key().Kind; !kind.Possible() {
			return refuse("object of kind %d", kind)
		}
	case NamespaceSet, NamespaceRemoved, SelectorRemoved, ObjectRemoved, ImageSized:
	default:
		return refuse("unknown delta %T", d)
	}
	return nil
}

func (s *State) checkPodSet(d PodSet) error {
	if d.ID < 0 || d.ID >= MaxIndex {
		return refuse("pod %q with id %d", d.Pod.UID, d.ID)
	}
	if s.classes[d.Pod.Class] == nil {
		return refuse("pod %q of unknown class %d", d.Pod.UID, d.Pod.Class)
	}
	if d.Pod.Labels != NoLabels && s.labels[d.Pod.Labels] == nil {
		return refuse("pod %q of unknown label set %d", d.Pod.UID, d.Pod.Labels)
	}
	if id, ok := s.podByUID[d.Pod.UID]; ok && id != d.ID {
		return refuse("pod %q has id %d, not %d", d.Pod.UID, id, d.ID)
	}
	if p := s.Pod(d.ID); p != nil && p.UID != d.Pod.UID {
		return refuse("id %d of pod %q is taken by %q", d.ID, d.Pod.UID, p.UID)
	}
	if d.Assumed && d.Pod.NodeName == "" {
		return refuse("pod %q assumed on no node", d.Pod.UID)
	}
	if len(d.Volumes) == 0 {
		return nil
	}
	if !d.Assumed || s.Pod(d.ID) != nil {
		return refuse("volumes chosen for pod %q, which is not one that is new and assumed", d.Pod.UID)
	}
	if why := s.CanPromise(d.Pod.Namespace, d.Pod.NodeName, d.Volumes); why != "" {
		return refuse("pod %q assumed on %s: %s", d.Pod.UID, d.Pod.NodeName, why)
	}
	return nil
}

func (s *State) checkNode(i NodeIndex) error {
	if !s.Nodes.Live.Has(i) {
		return refuse("no node at index %d", i)
	}
	return nil
}

func (s *State) checkPhase(id PodID, want Phase) error {
	p := s.Pod(id)
	if p == nil {
		return refuse("no pod %d", id)
	}
	if p.Phase != want {
		return refuse("pod %d is %v, not %v", id, p.Phase, want)
	}
	return nil
}

// Yields reports whether pods of a class are left to another scheduler at the moment.
func (s *State) Yields(class ClassID) bool {
	if len(s.Settings.Yielded) == 0 {
		return false
	}
	c := s.Class(class)
	return c != nil && s.Settings.Yields(c.Spec.SchedulerName)
}

func (s *State) setSettings(settings Settings) {
	s.digest -= hashSettings(s.Settings)
	if reflect.DeepEqual(s.Settings.Profiles, settings.Profiles) {
		settings.Profiles = s.Settings.Profiles // who knows one by its pointer goes on with what it knows
	}
	s.Settings = settings
	s.digest += hashSettings(settings)
}

func (s *State) defineClass(d ClassDefined) {
	c := &Class{ID: d.ID, Spec: d.Spec, Key: d.Spec.Key(), Hash: d.Spec.Hash(), ports: slices.Clone(d.Spec.HostPorts)}
	slices.SortFunc(c.ports, comparePorts)
	s.resolve(c)
	s.classes[d.ID] = c
	s.digest += c.digest()
	if d.Spec.hasTerms() {
		k, _ := slices.BinarySearch(s.termClasses, d.ID)
		s.termClasses = slices.Insert(slices.Clip(s.termClasses), k, d.ID)
		s.TermsModified = s.version.Seq
	}
}

// retain and release count the pods of a class; the last one takes the class along.
func (s *State) retain(id ClassID) *Class {
	c := s.classes[id]
	c.Pods++
	return c
}

func (s *State) release(id ClassID) {
	c := s.classes[id]
	if c.Pods--; c.Pods == 0 {
		delete(s.classes, id)
		s.digest -= c.digest()
		if k, ok := slices.BinarySearch(s.termClasses, id); ok {
			s.termClasses = slices.Delete(slices.Clone(s.termClasses), k, k+1)
			s.TermsModified = s.version.Seq
		}
	}
}

func (s *State) removeNamespace(name string) {
	if labels, ok := s.namespaces[name]; ok {
		s.addNamespace(-hashNamespace(name, labels))
		delete(s.namespaces, name)
	}
}

func (s *State) addNamespace(hash uint64) {
	s.digest += hash
	s.namespaceDigest += hash
}
