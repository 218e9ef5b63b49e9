package keeper

import (
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
	"github.com/berth-scheduler/berth/plugins/yoda"
)

// Pod is what matters of a pod of the API server.
type Pod struct {
	UID             types.UID
	Namespace, Name string
	// Node is spec.nodeName. "": it waits.
	Node                string
	Labels, Annotations map[string]string
	// Ended: its phase is Succeeded or Failed, so it has no cards any more.
	Ended bool
}

// Cards knows who has which cards. It is safe for concurrent use.
type Cards struct {
	mu   sync.RWMutex
	book *yoda.Book

	facts   map[string]yoda.Facts      // by node, without DRA
	slices  map[string]map[string]bool // by node, the names of ResourceSlices that tell of cards
	sliceOf map[string]string          // by the name of a ResourceSlice, its node

	waiting map[types.UID]yoda.Request          // pods without a node, and what they ask for
	asking  map[yoda.Request]map[types.UID]bool // the same, by what they ask for

	holds map[types.UID][]*hold // reservations, by pod
	by    map[yoda.Token]*hold  // the same, by token
	args  []*yoda.Args          // that profiles have, the last ones

	changed map[string]*yoda.View // what was said of a node that is another one since; nil: nothing that would have had a pod placed there
	unknown map[string]bool       // nodes that were refused for a pod on them of which nothing was known
	news    chan struct{}         // holds a value while there may be some
	looked  time.Time             // when it was looked last which collectors have gone silent

	counts Counts
}

// hold is what is reserved by a token.
type hold struct {
	token yoda.Token
	pod   Pod
	node  string
	grant yoda.Grant
	// ended: nobody places the pod by the token any more. It is over when it is known whether the pod is bound. Due is when it is to be asked, and pause how long it was waited before.
	ended   bool
	due     time.Time
	pause   time.Duration
	reading bool
}

// Counts are how often things have happened.
type Counts struct {
	Given, Again, Refused, Stood, Wakes uint64
}

// New returns a Cards that has heard of nothing.
func New() *Cards {
	return &Cards{
		book: yoda.NewBook(), facts: make(map[string]yoda.Facts), slices: make(map[string]map[string]bool), sliceOf: make(map[string]string),
		waiting: make(map[types.UID]yoda.Request), asking: make(map[yoda.Request]map[types.UID]bool),
		holds: make(map[types.UID][]*hold), by: make(map[yoda.Token]*hold), changed: make(map[string]*yoda.View), unknown: make(map[string]bool), news: make(chan struct{}, 1),
	}
}

// mostArgs is how many different arguments are kept.
const mostArgs = 16

// Use notes that pods are judged by these arguments too, so that it is found out which of them are worth trying again.
func (c *Cards) Use(args *yoda.Args) {
	c.mu.Lock()
	defer c.mu.Unlock()
	same := func(a *yoda.Args) bool { return slices.Equal(a.Levels, args.Levels) }
	if c.args = append(slices.DeleteFunc(c.args, same), args); len(c.args) > mostArgs {
		c.args = slices.Delete(c.args, 0, 1)
	}
}

// View returns what is known of a node.
func (c *Cards) View(node string) *yoda.View {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.book.View(node)
}

// Unknown notes that a node was refused since there is a pod on it of which nothing is known here: when something is, those that were refused are worth trying again.
func (c *Cards) Unknown(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.facts[node]; ok {
		c.unknown[node] = true
	}
}

// touch notes what is said of nodes before something changes; what it returns is called behind that.
func (c *Cards) touch(nodes ...string) (done func()) {
	before := make([]*yoda.View, len(nodes))
	for i, node := range nodes {
		before[i] = c.book.View(node)
	}
	return func() {
		for i, node := range nodes {
			if !before[i].Same(c.book.View(node)) {
				c.change(node, before[i])
			}
		}
	}
}

// change notes that a node is another one than it was.
func (c *Cards) change(node string, was *yoda.View) {
	if c.unknown[node] {
		delete(c.unknown, node)
		c.changed[node] = nil
	}
	if _, ok := c.changed[node]; !ok {
		c.changed[node] = was
	}
	c.signal()
}

// signal says that there may be news. It never blocks.
func (c *Cards) signal() {
	select {
	case c.news <- struct{}{}:
	default:
	}
}

// Give chooses cards of a node for a pod, and reserves them by a token: [yoda.Book.Give].
func (c *Cards) Give(token yoda.Token, pod Pod, node string, r *yoda.Request, args *yoda.Args, now time.Time) (yoda.Grant, *yoda.Refusal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.touch(node)()
	again := c.book.View(node).Has(pod.UID)
	grant, refusal := c.book.Give(token, pod.UID, node, r, args, now)
	switch {
	case refusal != nil:
		c.counts.Refused++
		return grant, refusal
	case r == nil:
		c.forget(token)
		return grant, nil
	case again:
		c.counts.Again++
	default:
		c.counts.Given++
	}
	c.keep(&hold{token: token, pod: pod, node: node, grant: grant})
	return grant, nil
}

// Stand reserves for a pod, by a token, what it was given before: cards that are recorded, whoever else has them. Without cards, it is a pod that asks for some, of which it is not known which it was given.
func (c *Cards) Stand(token yoda.Token, pod Pod, node string, grant yoda.Grant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.touch(node)()
	c.book.Reserve(token, pod.UID, node, grant)
	c.counts.Stood++
	c.keep(&hold{token: token, pod: pod, node: node, grant: grant})
}

// keep notes what is reserved by a token.
func (c *Cards) keep(h *hold) {
	c.forget(h.token)
	c.by[h.token] = h
	c.holds[h.pod.UID] = append(c.holds[h.pod.UID], h)
}

// forget has nothing noted of a token. The book is not told.
func (c *Cards) forget(token yoda.Token) {
	h := c.by[token]
	if h == nil {
		return
	}
	delete(c.by, token)
	left := slices.DeleteFunc(c.holds[h.pod.UID], func(is *hold) bool { return is == h })
	if c.holds[h.pod.UID] = left; len(left) == 0 {
		delete(c.holds, h.pod.UID)
	}
}

// release gives back what is reserved by a token.
func (c *Cards) release(h *hold) {
	defer c.touch(h.node)()
	c.book.Release(h.token)
	c.forget(h.token)
}

// End notes that nobody places a pod by a token any more: it is bound, or is not. What is reserved stays until it is known which of these. A token by which nothing is reserved is none.
func (c *Cards) End(token yoda.Token, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.by[token]
	if h == nil || h.ended {
		return
	}
	h.ended, h.due = true, now
	if _, _, told := c.book.Told(h.pod.UID); told {
		c.release(h)
		return
	}
	c.signal()
}

// SetPod notes what the API server says of a pod.
func (c *Cards) SetPod(p Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.Ended {
		c.gone(p.UID)
		return
	}
	if p.Node == "" {
		c.wait(p)
		return
	}
	c.stopWaiting(p.UID)
	nodes := []string{p.Node}
	was, _, told := c.book.Told(p.UID)
	if told && was != p.Node {
		nodes = append(nodes, was)
	}
	defer c.touch(nodes...)()
	grant, has, err := yoda.GrantOf(p.Annotations)
	switch {
	case err == nil && has:
	case err != nil, yoda.Asks(p.Labels):
		grant = yoda.Grant{} // it is not known which
	default:
		c.book.RemovePod(p.UID)
		return
	}
	c.book.SetPod(p.UID, p.Node, grant)
	for _, h := range slices.Clone(c.holds[p.UID]) {
		if h.ended || h.node == p.Node && h.grant.Equal(grant) {
			c.release(h)
		}
	}
}

// RemovePod notes that there is no such pod any more.
func (c *Cards) RemovePod(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone(uid)
}

func (c *Cards) gone(uid types.UID) {
	c.stopWaiting(uid)
	if node, _, told := c.book.Told(uid); told {
		done := c.touch(node)
		c.book.RemovePod(uid)
		done()
	}
	for _, h := range slices.Clone(c.holds[uid]) {
		if h.ended {
			c.release(h)
		}
	}
}

// wait notes that a pod waits for a node.
func (c *Cards) wait(p Pod) {
	r, err := yoda.ParseRequest(p.Labels, p.Annotations)
	if err != nil || r == nil {
		c.stopWaiting(p.UID)
		return
	}
	if was, ok := c.waiting[p.UID]; ok && was == *r {
		return
	}
	c.stopWaiting(p.UID)
	c.waiting[p.UID] = *r
	if c.asking[*r] == nil {
		c.asking[*r] = make(map[types.UID]bool)
	}
	c.asking[*r][p.UID] = true
}

func (c *Cards) stopWaiting(uid types.UID) {
	r, ok := c.waiting[uid]
	if !ok {
		return
	}
	delete(c.waiting, uid)
	if delete(c.asking[r], uid); len(c.asking[r]) == 0 {
		delete(c.asking, r)
	}
}

// SetNode notes what a node is. Of its facts DRA does not count: ResourceSlices tell that.
func (c *Cards) SetNode(node string, facts yoda.Facts) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.touch(node)()
	c.facts[node] = facts
	facts.DRA = len(c.slices[node]) > 0
	c.book.SetNode(node, facts)
}

// RemoveNode notes that there is no such node any more.
func (c *Cards) RemoveNode(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.touch(node)()
	delete(c.facts, node)
	delete(c.unknown, node)
	c.book.RemoveNode(node)
}

// SetSlice notes that a ResourceSlice tells of cards of a node. "": of none.
func (c *Cards) SetSlice(name, node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.sliceOf[name]
	if was == node {
		return
	}
	defer c.touch(was, node)()
	if delete(c.slices[was], name); len(c.slices[was]) == 0 {
		delete(c.slices, was)
	}
	delete(c.sliceOf, name)
	if node != "" {
		c.sliceOf[name] = node
		if c.slices[node] == nil {
			c.slices[node] = make(map[string]bool)
		}
		c.slices[node][name] = true
	}
	for _, n := range []string{was, node} {
		if facts, ok := c.facts[n]; ok {
			facts.DRA = len(c.slices[n]) > 0
			c.book.SetNode(n, facts)
		}
	}
}

// SetStatus notes what the collector of a node says: [yoda.Book.SetStatus].
func (c *Cards) SetStatus(node string, status *v1alpha1.Status, seen time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.touch(append(c.book.Tellers(node, status), node)...)()
	was := c.book.View(node)
	c.book.SetStatus(node, status, seen)
	if was.Stale(seen) && !c.book.Stale(node, seen) { // the same cards may be there, to be given again
		c.change(node, was)
	}
}

// News holds a value while there may be something to tell, or to read.
func (c *Cards) News() <-chan struct{} { return c.news }

// Told is what others have to hear.
type Told struct {
	// Nodes are those that are others than before: what was said of them does not hold any more.
	Nodes []string
	// Pods are those that are worth trying again.
	Pods []string
}

// mostTried is how many requests are tried on how many nodes to find out which pods are worth trying. Of more, all are.
const mostTried = 100_000

// Tell returns what has changed since it was called last. Collectors go silent without a word, so it is to be called every second or so, whatever happens.
func (c *Cards) Tell(now time.Time) Told {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silent(now)
	if len(c.changed) == 0 {
		return Told{}
	}
	changed := c.changed
	c.changed = make(map[string]*yoda.View)
	out := Told{Nodes: slices.Sorted(maps.Keys(changed))}
	all := len(changed)*len(c.asking)*(1+len(c.args)) > mostTried
	for r, pods := range c.asking {
		if all || c.helps(&r, changed, now) {
			for uid := range pods {
				out.Pods = append(out.Pods, string(uid))
			}
		}
	}
	c.counts.Wakes += uint64(len(out.Pods))
	return out
}

// helps reports whether some node that has changed could not run a pod that asks so, and can now.
func (c *Cards) helps(r *yoda.Request, changed map[string]*yoda.View, now time.Time) bool {
	for node, before := range changed {
		after := c.book.View(node)
		for i := range 1 + len(c.args) {
			var args *yoda.Args
			if i > 0 {
				args = c.args[i-1]
			}
			if _, refusal := yoda.Choose(after, r, args, now); refusal != nil {
				continue
			}
			if _, refused := yoda.Choose(before, r, args, now); refused != nil {
				return true
			}
		}
	}
	return false
}

// silent notes which collectors have gone silent since it was looked last.
func (c *Cards) silent(now time.Time) {
	for node := range c.facts {
		v := c.book.View(node)
		if at := v.StaleAt(); !at.IsZero() && at.After(c.looked) && !at.After(now) {
			c.change(node, v)
		}
	}
	c.looked = now
}

// Doubt is something reserved by a token that has ended: whether the pod is bound is to be read of the API server, and said by [Cards.Read].
type Doubt struct {
	Token           yoda.Token
	UID             types.UID
	Namespace, Name string
}

// Doubts returns those whose time has come, up to so many. Nobody else gets them until Read has been called.
func (c *Cards) Doubts(now time.Time, most int) []Doubt {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Doubt
	for _, h := range c.by {
		if len(out) == most {
			break
		}
		if h.ended && !h.reading && !now.Before(h.due) {
			h.reading = true
			out = append(out, Doubt{h.token, h.pod.UID, h.pod.Namespace, h.pod.Name})
		}
	}
	return out
}

// Pauses between two reads of a pod of which it is not known yet what has become of it.
const (
	readSoon = 500 * time.Millisecond
	readLate = 30 * time.Second
)

// Read notes what the API server says of the pod of a doubt, asked behind its end, and not of a cache. Bound: it has a node, and has not ended; then what is reserved stays until it is told of, so that it is not free in between. An error: nobody knows.
func (c *Cards) Read(d Doubt, bound bool, err error, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.by[d.Token]
	if h == nil || !h.ended { // it has been released, or is another one
		return
	}
	h.reading = false
	if err == nil && !bound {
		c.release(h)
		return
	}
	h.pause = min(max(2*h.pause, readSoon), readLate)
	h.due = now.Add(h.pause)
}
