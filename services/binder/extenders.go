package binder

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/extender"
)

const (
	// turnWait is how long a pod waits for its turn before its shard is told to come back, and turnPause after how long: so that calls which wait for an
	// extender that hangs do not keep others from the server.
	turnWait  = 2 * time.Second
	turnPause = 50 * time.Millisecond
	// leastAsked is how many nodes extenders are asked about in any case, as in kube-scheduler.
	leastAsked = 100
)

// extenders are the extenders of a binder, whose turn it is, and the nodes as they are sent. It outlives terms: also of two that follow each other, one
// pod is asked about at a time.
type extenders struct {
	set     *extender.Set
	objects Objects
	places  extender.Interest // those that have a say in where a pod goes
	binds   extender.Interest // those that bind

	mu    sync.Mutex
	busy  extender.Interest // those that are being asked
	line  []*waiter         // in the order in which they came
	next  int               // where the next sample of nodes begins
	nodes map[string]keptNode
}

// waiter is a pod whose turn it is not.
type waiter struct {
	in   extender.Interest
	turn chan struct{} // closed, under extenders.mu, when it is
}

// keptNode is a node as it was last sent. It is encoded once.
type keptNode struct {
	object *corev1.Node // nil: only its name is sent
	node   *extender.Node
}

func newExtenders(set *extender.Set, objects Objects) *extenders {
	return &extenders{
		set: set, objects: objects, places: set.Can(extender.Filter) | set.Can(extender.Prioritize), binds: set.Can(extender.Bind),
		nodes: make(map[string]keptNode),
	}
}

// take waits until none of some extenders is being asked, and then has them asked about nobody else until leave. Who waits for others too does not hold up those who wait
// for some of them: if one of them hangs, the others are asked about pods that do not interest it.
func (a *extenders) take(ctx context.Context, in extender.Interest) (leave func(), err error) {
	leave = func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.busy &^= in
		a.grant()
	}
	w := &waiter{in, make(chan struct{})}
	a.mu.Lock()
	a.line = append(a.line, w)
	a.grant()
	a.mu.Unlock()
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

// grant gives turns to those who can have one, in order. The caller holds the lock.
func (a *extenders) grant() {
	a.line = slices.DeleteFunc(a.line, func(w *waiter) bool {
		if a.busy&w.in != 0 {
			return false
		}
		a.busy |= w.in
		close(w.turn)
		return true
	})
}

// nodesOf returns nodes as extenders are sent them, in full if full, but for those that are not known any more, by index.
func (a *extenders) nodesOf(seen []seenNode, full bool) []*extender.Node {
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
	if len(a.nodes) > 2*len(seen)+1000 { // many of them have gone
		clear(a.nodes)
	}
	for k, object := range objects {
		if full && object == nil {
			continue
		}
		name := seen[k].name
		kept := a.nodes[name]
		if kept.node == nil || kept.object != object {
			kept.object = object
			if object == nil {
				object = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
			}
			kept.node = extender.NewNode(object)
			a.nodes[name] = kept
		}
		out = append(out, kept.node)
	}
	return out
}

// enough returns about how many feasible nodes extenders are asked, of so many nodes, at percentageOfNodesToScore. Where that is 0, Berth looks at all, which
// kube-scheduler does not.
func enough(nodes int, percentage int32) int {
	if percentage <= 0 || percentage >= 100 {
		return nodes
	}
	return max(leastAsked, int(int64(nodes)*int64(percentage)/100))
}

// sample returns so many of some nodes at most, in their order: each time the next ones by index, and round.
func (a *extenders) sample(nodes []seenNode, most int) []seenNode {
	if len(nodes) <= most {
		return nodes
	}
	byIndex := slices.Clone(nodes)
	slices.SortFunc(byIndex, func(a, b seenNode) int { return cmp.Compare(a.Node, b.Node) })
	a.mu.Lock()
	first := a.next % len(byIndex)
	a.next = first + most
	a.mu.Unlock()
	kept := make(map[string]bool, most)
	for k := range most {
		kept[byIndex[(first+k)%len(byIndex)].name] = true
	}
	return slices.DeleteFunc(nodes, func(n seenNode) bool { return !kept[n.name] })
}
