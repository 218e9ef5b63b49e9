package oracle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
)

// script is a cluster as a source tells it: what a test says, and the bindings. It remembers every
// object in every form that it has had, for those who see only what Berth has reduced them to.
type script struct {
	mu     sync.Mutex
	events []source.Event
	told   int
	more   chan struct{} // closed and replaced when there are more events
	// further is closed and replaced when more of them are told.
	further chan struct{}

	nodes      map[string][]*v1.Node
	pods       map[string][]*v1.Pod // by uid
	namespaces map[string][]*v1.Namespace
	owners     map[string][]metav1.Object
	kept       map[cluster.ObjectKey][]metav1.Object // what Berth's ledger only keeps
	there      map[cluster.ObjectKey]metav1.Object   // what there is of that now
	placed     map[string]bool                       // pods that have a node, by uid
	gone       map[string]bool                       // pods that were deleted, by uid

	// controls: the controller of volumes looks at all claims, see concern. due are those that it looks at next.
	controls bool
	due      []cluster.ObjectKey
	looks    map[string]int // at claims, by what has come of them
	// provisioned is how many volumes were to be made for nodes, made how many have been made at all.
	provisioned, made int

	interest func(*v1.Pod) uint64 // the extenders that a pod interests; nil: there are none

	refuse   int             // how many pods' first bindings are refused
	refusals map[string]bool // by uid
}

func newScript() *script {
	return &script{
		more: make(chan struct{}), further: make(chan struct{}), nodes: make(map[string][]*v1.Node), pods: make(map[string][]*v1.Pod),
		namespaces: make(map[string][]*v1.Namespace), owners: make(map[string][]metav1.Object),
		kept: make(map[cluster.ObjectKey][]metav1.Object), there: make(map[cluster.ObjectKey]metav1.Object), placed: make(map[string]bool), gone: make(map[string]bool), refusals: make(map[string]bool),
	}
}

// tell appends events; the lock is held.
func (s *script) tell(events ...source.Event) {
	s.events = append(s.events, events...)
	close(s.more)
	s.more = make(chan struct{})
}

func (s *script) setNode(n *v1.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes[n.Name] = append(s.nodes[n.Name], n)
	s.tell(source.Event{Kind: source.NodeSet, Node: source.ReduceNode(n)})
}

func (s *script) removeNode(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tell(source.Event{Kind: source.NodeGone, Node: cluster.Node{Name: name}})
}

func (s *script) setNamespace(n *v1.Namespace) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.namespaces[n.Name] = append(s.namespaces[n.Name], n)
	name, labels := source.ReduceNamespace(n)
	s.tell(source.Event{Kind: source.NamespaceSet, Namespace: name, Labels: labels})
}

// setOwner tells the selector of a service or controller, or that it has none.
func (s *script) setOwner(o metav1.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owners[ownerKey(o)] = append(s.owners[ownerKey(o)], o)
	selector, ok := reduceOwner(o)
	kind := source.SelectorSet
	if !ok {
		kind = source.SelectorGone
	}
	s.tell(source.Event{Kind: kind, Selector: selector})
}

func (s *script) removeOwner(o metav1.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tell(source.Event{Kind: source.SelectorGone, Selector: source.Selector{Kind: kindOf(o), Namespace: o.GetNamespace(), Name: o.GetName()}})
}

// setPod adds a pod, or changes one as change says. A pod that has got a node meanwhile keeps it.
func (s *script) setPod(p *v1.Pod, change func(*v1.Pod)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone[string(p.UID)] {
		return
	}
	if last := s.last(string(p.UID)); last != nil {
		p = last
	}
	if change != nil {
		p = p.DeepCopy()
		change(p)
	}
	s.say(p)
}

// say tells a pod; the lock is held.
func (s *script) say(p *v1.Pod) {
	uid := string(p.UID)
	s.pods[uid] = append(s.pods[uid], p)
	if p.Spec.NodeName != "" {
		s.placed[uid] = true
	}
	pod := source.ReducePod(p)
	if s.interest != nil {
		pod.Extenders = s.interest(p)
	}
	s.tell(source.Event{Kind: source.PodSet, Pod: pod})
}

// Pod, LastPod and Node return what extenders are sent.
func (s *script) Pod(_ context.Context, namespace, name string) (*v1.Pod, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid := range s.pods {
		if p := s.last(uid); p.Namespace == namespace && p.Name == name && !s.gone[uid] {
			return p.DeepCopy(), nil
		}
	}
	return nil, nil
}

func (s *script) LastPod(namespace, name string) *v1.Pod {
	pod, _ := s.Pod(context.Background(), namespace, name)
	return pod
}

func (s *script) Node(name string) *v1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	if versions := s.nodes[name]; len(versions) > 0 {
		return versions[len(versions)-1]
	}
	return nil
}

func (s *script) removePod(p *v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bury(p)
}

// bury tells that a pod is gone; the lock is held.
func (s *script) bury(p *v1.Pod) {
	gone := source.Pod{Pod: cluster.Pod{UID: string(p.UID), Namespace: p.Namespace, Name: p.Name}}
	s.gone[string(p.UID)] = true
	s.tell(source.Event{Kind: source.PodGone, Pod: gone})
}

func (s *script) keep(o metav1.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(o)
}

// put is keep; the lock is held.
func (s *script) put(o metav1.Object) {
	reduced := reduceKept(o)
	s.kept[reduced.Key()] = append(s.kept[reduced.Key()], o)
	s.there[reduced.Key()] = o
	s.tell(source.Event{Kind: source.ObjectSet, Object: reduced})
	s.concern(o, false)
}

func (s *script) discard(o metav1.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.there, reduceKept(o).Key())
	s.tell(source.Event{Kind: source.ObjectGone, Key: reduceKept(o).Key()})
	s.concern(o, true)
}

// running returns the pods that have a node, by uid.
func (s *script) running() []*v1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*v1.Pod
	for _, uid := range sortedKeys(s.pods) {
		if s.placed[uid] && !s.gone[uid] {
			out = append(out, s.last(uid))
		}
	}
	return out
}

// last returns a pod as it is now, nil if there never was one; the lock is held.
func (s *script) last(uid string) *v1.Pod {
	versions := s.pods[uid]
	if len(versions) == 0 {
		return nil
	}
	return versions[len(versions)-1]
}

// untold returns how many events the binder has not taken yet, and how many claims the controller of volumes has yet to look at.
func (s *script) untold() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.events) - s.told + len(s.due)
}

// Name returns "local": nothing of this cluster is anywhere else.
func (s *script) Name() string { return "local" }

// Ready returns nil: nothing has to be loaded.
func (s *script) Ready() error { return nil }

// MaxBatch returns how many bindings one call takes.
func (s *script) MaxBatch() int { return 20 }
func (s *script) Fenced() bool  { return false }

// controlEvery is how often the controller of volumes looks at a claim, while there is nothing to tell.
const controlEvery = time.Millisecond

// Watch tells that there is nothing, and then event by event what there is.
func (s *script) Watch(ctx context.Context, sink func(source.Event)) error {
	sink(source.Event{Kind: source.Synced})
	tick := time.NewTicker(controlEvery)
	defer tick.Stop()
	for {
		s.mu.Lock()
		next, more := s.events[s.told:], s.more
		s.mu.Unlock()
		for _, e := range next {
			sink(e)
			s.mu.Lock()
			s.told++
			close(s.further)
			s.further = make(chan struct{})
			s.mu.Unlock()
		}
		if len(next) > 0 {
			continue
		}
		select {
		case <-more:
		case <-tick.C:
			s.control()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Bind gives pods their nodes, and tells so.
func (s *script) Bind(_ context.Context, _ coord.Cond, bindings []source.Binding) []source.Outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]source.Outcome, len(bindings))
	for i, b := range bindings {
		switch last := s.last(b.UID); {
		case last == nil || s.gone[b.UID] || last.DeletionTimestamp != nil:
			out[i].Result = source.BindGone
		case last.Spec.NodeName == "" && len(s.refusals) < s.refuse && !s.refusals[b.UID] && len(s.events)%8 == 0:
			s.refusals[b.UID] = true
			out[i] = source.Outcome{Result: source.BindRefused, Err: errors.New("a webhook says no")}
		case last.Spec.NodeName == "":
			s.say(onNode(last, b.Node, v1.PodStatus{Phase: v1.PodRunning}))
			out[i].Result = source.BindDone
		case last.Spec.NodeName == b.Node:
			out[i].Result = source.BindDone
		default:
			out[i].Result = source.BindElsewhere
		}
	}
	return out
}

// Prepare has nothing to note.
func (s *script) Prepare([]source.Binding) {}

// Withdraw is not asked for: the outcome of every bind is known.
func (s *script) Withdraw(_ context.Context, _ coord.Cond, b source.Binding, _ source.Report) source.Outcome {
	return source.Outcome{Result: source.BindUnknown, Err: fmt.Errorf("withdraw %s/%s: not written for that", b.Namespace, b.Name)}
}

// Lookup reads a pod.
func (s *script) Lookup(_ context.Context, namespace, name string) (uid, node string, found bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid := range s.pods {
		if p := s.last(uid); p.Namespace == namespace && p.Name == name && !s.gone[uid] {
			return uid, p.Spec.NodeName, true, nil
		}
	}
	return "", "", false, nil
}

// Scheduled and Preempted record nothing: the log tells of placements and victims, and the test asks for what is left.
func (s *script) Scheduled(context.Context, source.Binding) error  { return nil }
func (s *script) Preempted(context.Context, source.Eviction) error { return nil }

func (s *script) Unsupported(context.Context, source.Unsupported) error { return nil }

// GroupDecided records nothing.
func (s *script) GroupDecided(context.Context, source.Report) error { return nil }

// Unschedulable records which node a pod is nominated to, if the report says so, and nothing else.
func (s *script) Unschedulable(ctx context.Context, r source.Report) error {
	if !r.Nominate {
		return nil
	}
	return s.Nominate(ctx, source.Nomination{UID: r.UID, Namespace: r.Namespace, Name: r.Name, Node: r.Nominated})
}

// Nominate tells of a pod with another nomination.
func (s *script) Nominate(_ context.Context, n source.Nomination) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.last(n.UID); p != nil && !s.gone[n.UID] && p.Status.NominatedNodeName != n.Node {
		s.say(nominatedTo(p, n.Node))
	}
	return nil
}

// Evict tells that a pod terminates, and then that it is gone.
func (s *script) Evict(_ context.Context, _ coord.Cond, e source.Eviction) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.last(e.UID); p != nil && !s.gone[e.UID] {
		s.say(preempted(p))
		s.bury(p)
	}
	return nil
}
