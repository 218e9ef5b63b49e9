package binder

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/extender"
	"github.com/berth-scheduler/berth/internal/pluginhost"
)

const (
	// turnWait is how long a pod waits for its turn before its shard is told to come back, and turnPause after how long: so that calls which wait for an
	// extender that hangs do not keep others from the server.
	turnWait  = 2 * time.Second
	turnPause = 50 * time.Millisecond
	// crowdPause is after how long a shard is told to come back where mostWaiting others wait already.
	crowdPause = 500 * time.Millisecond
	// mostWaiting is how many pods wait for an extender that has been asked about one for longer than turnWait: of the extenders that a pod waits for, the one that has been asked
	// longest. Others are told at once to come back: though some extenders hang, of whose pods each member asks about a few, calls about others get through to the server, which
	// runs 16 at a time. For one that is only busy all wait, in the order in which they came: who is told to come back would find that others have been quicker.
	mostWaiting = 3
)

// extenders are the extenders and the plugin services of a binder, whose turn it is, and the nodes as extenders are sent them. It outlives terms: also of two that follow each
// other, one pod is asked about at a time. In an extender.Interest, plugin services are behind the extenders.
type extenders struct {
	set      *extender.Set
	services *pluginhost.Host // nil: there are none
	objects  Objects
	// mostUnknown is of how many nodes it may be unknown what plugin services say of them, while pods are placed on others: then these are asked about, together.
	mostUnknown int
	askFor      time.Duration // for how long an Ask begins with further pods

	places extender.Interest // the extenders that have a say in where a pod goes
	binds  extender.Interest // those that bind

	preempts   extender.Interest // those that have a say in preemption
	candidates map[string]engine.CandidateNodes

	mu    sync.Mutex
	busy  extender.Interest         // those that are being asked
	since map[int]time.Time         // of these, when the turn began
	line  []*waiter                 // in the order in which they came
	turns rotation                  // of nodes, where not all are asked about
	from  int                       // with which 64 nodes the next search for victims begins
	full  map[string]keptNode       // nodes as they were sent last in full, by name
	names map[string]*extender.Node // nodes of which only the name is sent
}

// waiter is a pod whose turn it is not.
type waiter struct {
	in   extender.Interest
	turn chan struct{} // closed, under extenders.mu, when it is
}

// keptNode is a node as it was last sent in full. It is encoded once.
type keptNode struct {
	object *corev1.Node
	node   *extender.Node
}

func newExtenders(set *extender.Set, services *pluginhost.Host, objects Objects) *extenders {
	if set == nil {
		set = new(extender.Set)
	}
	return &extenders{
		set: set, services: services, objects: objects, mostUnknown: 1000, askFor: askFor, places: set.Can(extender.Filter) | set.Can(extender.Prioritize), binds: set.Can(extender.Bind), preempts: set.Can(extender.Preempt),
		since: make(map[int]time.Time), full: make(map[string]keptNode), names: make(map[string]*extender.Node),
	}
}

// asked returns which extenders, of those that a pod interests, and which plugin services are asked where pods of a scheduler name go.
func (a *extenders) asked(interests extender.Interest, schedulerName string) extender.Interest {
	in := interests & a.places
	if a.services != nil {
		in |= extender.Interest(a.services.Asked(schedulerName)) << a.set.Len()
	}
	return in
}

// askedPostFilter is asked, of a pod that fits nowhere, if some plugins look for a way for it.
func (a *extenders) askedPostFilter(interests extender.Interest, schedulerName string, plugins []string) extender.Interest {
	in := interests & a.places
	if a.services != nil {
		in |= extender.Interest(a.services.AskedPostFilter(schedulerName, plugins)) << a.set.Len()
	}
	return in
}

// servicesOf returns the plugin services among those that are asked, and extendersOf the extenders.
func (a *extenders) servicesOf(in extender.Interest) pluginhost.Set {
	return pluginhost.Set(in >> a.set.Len())
}

func (a *extenders) extendersOf(in extender.Interest) extender.Interest { return in & a.places }

// longest returns how long it takes at most to ask once.
func (a *extenders) longest(in extender.Interest) time.Duration {
	long := a.set.Longest(a.extendersOf(in))
	if a.services != nil {
		long += a.services.Longest(a.servicesOf(in))
	}
	return long
}

// needsPod reports whether the pod itself is sent.
func (a *extenders) needsPod(in extender.Interest) bool {
	return a.extendersOf(in) != 0 || a.services != nil && a.services.NeedsObjects(a.servicesOf(in))
}

// endSessions ends what plugin services have been told in a term that has ended, unless somebody asks them still, who ends soon.
func (a *extenders) endSessions(ctx context.Context, epoch cluster.Epoch) {
	if a.services == nil {
		return
	}
	a.services.EndPlacing(epoch)
	ctx, cancel := context.WithTimeout(ctx, turnWait)
	defer cancel()
	for i := range a.services.Len() {
		leave, err := a.take(ctx, 1<<(a.set.Len()+i))
		if err == nil {
			a.services.End(i)
			leave()
		}
	}
}

// take waits until none of some extenders is being asked, and then has them asked about nobody else until leave. Who waits for others too does not hold up those who wait
// for some of them: if one of them hangs, the others are asked about pods that do not interest it. An error says that the turn has not come, or that as many wait
// as may.
func (a *extenders) take(ctx context.Context, in extender.Interest) (leave func(), err error) {
	leave = func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.busy &^= in
		a.grant()
	}
	w := &waiter{in, make(chan struct{})}
	a.mu.Lock()
	crowded := a.crowded(in)
	if !crowded {
		a.line = append(a.line, w)
		a.grant()
	}
	a.mu.Unlock()
	if crowded {
		return nil, errCrowd
	}
	timer := time.NewTimer(turnWait)
	defer timer.Stop()
	select {
	case <-w.turn:
		return leave, nil
	case <-timer.C:
	case <-ctx.Done():
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-w.turn: // meanwhile
		a.busy &^= in
	default:
		a.line = slices.DeleteFunc(a.line, func(other *waiter) bool { return other == w })
	}
	a.grant()
	return nil, errNoTurn
}

// crowd reports whether nobody more may wait who waits for some extenders.
func (a *extenders) crowd(in extender.Interest) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.crowded(in)
}

// crowded reports whether nobody more may wait who waits for some extenders. The caller holds the lock.
func (a *extenders) crowded(in extender.Interest) bool {
	to := a.blame(in)
	if to < 0 || time.Since(a.since[to]) <= turnWait {
		return false
	}
	n := 0
	for _, w := range a.line {
		if a.blame(w.in) == to {
			n++
		}
	}
	return n >= mostWaiting
}

// blame returns which of some extenders has been asked longest, -1 if none is being asked. The caller holds the lock.
func (a *extenders) blame(in extender.Interest) int {
	longest := -1
	for i := range (in & a.busy).Each() {
		if longest < 0 || a.since[i].Before(a.since[longest]) {
			longest = i
		}
	}
	return longest
}

// grant gives turns to those who can have one, in order. The caller holds the lock.
func (a *extenders) grant() {
	a.line = slices.DeleteFunc(a.line, func(w *waiter) bool {
		if a.busy&w.in != 0 {
			return false
		}
		a.busy |= w.in
		for i := range w.in.Each() {
			a.since[i] = time.Now()
		}
		close(w.turn)
		return true
	})
}

// nodesOf returns nodes as extenders are sent them, in full if full, but for those that are not known any more, by index. Of the nodes that there are, so many,
// each is encoded once; those that have gone are forgotten at times.
func (a *extenders) nodesOf(seen []seenNode, full bool, count int) []*extender.Node {
	seen = slices.Clone(seen)
	slices.SortFunc(seen, func(a, b seenNode) int { return cmp.Compare(a.Node, b.Node) })
	objects := make([]*corev1.Node, len(seen)) // in full
	for k := range seen {
		if full {
			objects[k] = a.objects.Node(seen[k].name)
		}
	}
	out := make([]*extender.Node, 0, len(seen))
	a.mu.Lock()
	defer a.mu.Unlock()
	if most := 2*count + 1000; len(a.full) > most || len(a.names) > most {
		clear(a.full)
		clear(a.names)
	}
	for k, object := range objects {
		switch name := seen[k].name; {
		case !full:
			node := a.names[name]
			if node == nil {
				node = extender.NewNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
				a.names[name] = node
			}
			out = append(out, node)
		case object != nil:
			kept := a.full[name]
			if kept.object != object {
				kept = keptNode{object, extender.NewNode(object)}
				a.full[name] = kept
			}
			out = append(out, kept.node)
		}
	}
	return out
}

// enough returns how many nodes are enough that can run a pod, of so many, at percentageOfNodesToScore: as in kube-scheduler, but where that is 0. Then Berth looks at all, unless each
// pod has plugins called anew for each node: of these, kube-scheduler's number is enough.
func enough(nodes int, percentage int32, anew bool) int {
	if percentage <= 0 && !anew {
		return nodes
	}
	return engine.NodesToFind(nodes, percentage)
}

// sample returns so many of some nodes at most, in their order: each time those whose turn is next.
func (a *extenders) sample(nodes []seenNode, most int) []seenNode {
	if len(nodes) <= most {
		return nodes
	}
	kept := make(map[cluster.NodeIndex]bool, most)
	inTurn := a.inTurn(nodes, nil)[:most]
	for _, n := range inTurn {
		kept[n.Node] = true
	}
	a.passed(inTurn[most-1])
	return slices.DeleteFunc(nodes, func(n seenNode) bool { return !kept[n.Node] })
}

// inTurn appends nodes to out in the order in which their turn comes.
func (a *extenders) inTurn(nodes, out []seenNode) []seenNode {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.turns.sort(nodes, out)
}

// passed says that the turn of a node is over: that of the one behind it comes next.
func (a *extenders) passed(n seenNode) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.turns.next = a.turns.place[n.Node] + 1
}

// rotation is in which order nodes have their turn, and round: one in which those are far from each other that were listed one behind the other, or have something else to do with each other by their indexes.
// So those that come one behind the other are of all zones, as they are in kube-scheduler, which takes a node of each zone in turn.
type rotation struct {
	order []cluster.NodeIndex // of all indexes that there may be
	place []int               // of each of these in order
	next  int                 // the place whose turn is next
	at    []int               // room
}

// grow has the order be of so many nodes at least.
func (r *rotation) grow(nodes int) {
	if nodes <= len(r.order) {
		return
	}
	var next cluster.NodeIndex
	if len(r.order) > 0 {
		next = r.order[r.next%len(r.order)]
	}
	n := nodes + nodes/4
	r.order, r.place, r.at = make([]cluster.NodeIndex, n), make([]int, n), make([]int, n)
	for i := range r.order {
		r.order[i] = cluster.NodeIndex(i)
	}
	slices.SortFunc(r.order, func(a, b cluster.NodeIndex) int { return cmp.Compare(scattered(a), scattered(b)) })
	for k, i := range r.order {
		r.place[i] = k
	}
	r.next = r.place[next]
}

// sort appends nodes to out in their order, from the one on whose turn is next.
func (r *rotation) sort(nodes, out []seenNode) []seenNode {
	most := cluster.NodeIndex(0)
	for _, n := range nodes {
		most = max(most, n.Node)
	}
	r.grow(int(most) + 1)
	clear(r.at)
	for k, n := range nodes {
		r.at[r.place[n.Node]] = k + 1
	}
	for k := range r.at {
		if at := r.at[(r.next+k)%len(r.at)]; at > 0 {
			out = append(out, nodes[at-1])
		}
	}
	return out
}

// scattered returns a number by which indexes are scattered: the finalizer of SplitMix64 (Steele, Lea and Flood: Fast Splittable Pseudorandom Number Generators).
func scattered(i cluster.NodeIndex) uint64 {
	z := uint64(i) + 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
