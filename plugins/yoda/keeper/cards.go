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
	// ended: nobody places the pod by the token any more. It is over when it is known whether the pod is bound. Due is when it is to be read what has become of the pod, and pause how long it was waited before. One that has not ended is read too, once in a
	// while: a pod may have been placed, bound, and be gone, and nobody has said a word of it here.
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

// View returns what is known of a node, and whether that is all there is to know of some pods on it that ask for cards: they are told to be there, or are being placed there by somebody who has not given up. Else nobody knows here which cards are free: another
// scheduler has placed such a pod, or a process of this plugin before this one, and its word has not come. What is reserved for a pod by somebody who has given up says nothing: it may have been given other cards since.
func (c *Cards) View(node string, pods ...types.UID) (v *yoda.View, known bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.book.View(node), c.knows(node, pods)
}

func (c *Cards) knows(node string, pods []types.UID) bool {
	for _, uid := range pods {
		if at, _, told := c.book.Told(uid); told && at == node {
			continue
		}
		if !slices.ContainsFunc(c.holds[uid], func(h *hold) bool { return h.node == node && !h.ended }) {
			return false
		}
	}
	return true
}

// Unknown notes that a node was refused since not all is known of some pods on it: when it is, those that were refused are worth trying again.
func (c *Cards) Unknown(node string, pods ...types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.facts[node]; !ok {
		return
	}
	if c.unknown[node] = true; c.knows(node, pods) { // it has come in between
		c.change(node, nil)
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

// Give chooses cards of a node for a pod, and reserves them by a token: [yoda.Book.Give]. That the node is another one then, whoever has the pod placed there knows.
func (c *Cards) Give(token yoda.Token, pod Pod, node string, r *yoda.Request, args *yoda.Args, now time.Time) (yoda.Grant, *yoda.Refusal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unknown[node] { // perhaps for this pod
		defer c.change(node, nil)
	}
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
	c.keep(&hold{token: token, pod: pod, node: node, grant: grant, due: now.Add(readLive)})
	return grant, nil
}

// Stand reserves for a pod, by a token, what it was given before: cards that are recorded, whoever else has them. Without cards, it is a pod that asks for some, of which it is not known which it was given.
func (c *Cards) Stand(token yoda.Token, pod Pod, node string, grant yoda.Grant, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.touch(node)()
	c.book.Reserve(token, pod.UID, node, grant)
	c.counts.Stood++
	c.keep(&hold{token: token, pod: pod, node: node, grant: grant, due: now.Add(readLive)})
}

// keep notes what is reserved by a token, unless the pod is told to have just that.
func (c *Cards) keep(h *hold) {
	c.forget(h.token)
	c.by[h.token] = h
	c.holds[h.pod.UID] = append(c.holds[h.pod.UID], h)
	if node, grant, told := c.book.Told(h.pod.UID); told && node == h.node && grant.Equal(h.grant) {
		c.release(h)
	}
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
	h.ended, h.due, h.pause = true, now, 0
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
	if c.unknown[p.Node] { // perhaps for this pod
		c.change(p.Node, nil)
	}
	grant, has, err := yoda.GrantOf(p.Annotations)
	switch {
	case err == nil && has:
		c.book.SetPod(p.UID, p.Node, grant)
	case err != nil, yoda.Asks(p.Labels):
		grant = yoda.Grant{} // it is not known which
		c.book.SetPod(p.UID, p.Node, grant)
	default:
		c.book.RemovePod(p.UID)
	}
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

// trial is what is to be found out about pods that wait: whether a node that has changed can run them now, and could not before.
type trial struct{ before, after *yoda.View }

// Tell returns what has changed since it was called last. Collectors go silent without a word, so it is to be called every second or so, whatever happens.
func (c *Cards) Tell(now time.Time) Told {
	out, trials, requests, args := c.takeChanged(now)
	var helped []yoda.Request
	all := len(trials)*len(requests)*len(args) > mostTried
	for i := range requests {
		if all || slices.ContainsFunc(trials, func(t trial) bool { return t.helps(&requests[i], args, now) }) {
			helped = append(helped, requests[i])
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range helped {
		for uid := range c.asking[r] {
			out.Pods = append(out.Pods, string(uid))
		}
	}
	c.counts.Wakes += uint64(len(out.Pods))
	return out
}

// takeChanged takes what has changed, and what is to be tried for it: without the lock, for it may take a while.
func (c *Cards) takeChanged(now time.Time) (out Told, trials []trial, requests []yoda.Request, args []*yoda.Args) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silent(now)
	if len(c.changed) == 0 {
		return Told{}, nil, nil, nil
	}
	for node, before := range c.changed {
		out.Nodes = append(out.Nodes, node)
		trials = append(trials, trial{before, c.book.View(node)})
	}
	slices.Sort(out.Nodes)
	clear(c.changed)
	return out, trials, slices.Collect(maps.Keys(c.asking)), append([]*yoda.Args{nil}, c.args...)
}

// helps reports whether the node could not run a pod that asks so, and can now, by some arguments.
func (t trial) helps(r *yoda.Request, args []*yoda.Args, now time.Time) bool {
	for _, a := range args {
		if _, refusal := yoda.Choose(t.after, r, a, now); refusal != nil {
			continue
		}
		if _, refusal := yoda.Choose(t.before, r, a, now); refusal != nil {
			return true
		}
	}
	return false
}

// lookEvery is how often it is looked which collectors have gone silent: at all nodes.
const lookEvery = time.Second

// silent notes which collectors have gone silent since it was looked last.
func (c *Cards) silent(now time.Time) {
	if now.Sub(c.looked) < lookEvery {
		return
	}
	for node := range c.facts {
		v := c.book.View(node)
		if at := v.StaleAt(); !at.IsZero() && at.After(c.looked) && !at.After(now) {
			c.change(node, v)
		}
	}
	c.looked = now
}

// Doubt is something reserved of which it is to be read of the API server what has become of its pod, and said by [Cards.Read].
type Doubt struct {
	Token           yoda.Token
	UID             types.UID
	Namespace, Name string

	ended bool // nobody placed it any more when it was to be read
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
		if !h.reading && !now.Before(h.due) {
			h.reading = true
			out = append(out, Doubt{h.token, h.pod.UID, h.pod.Namespace, h.pod.Name, h.ended})
		}
	}
	return out
}

// Pauses between two reads of a pod of which it is not known yet what has become of it, and of one that is being placed.
const (
	readSoon = 500 * time.Millisecond
	readLate = 30 * time.Second
	readLive = time.Minute
)

// Fate is what has become of a pod.
type Fate int

// What may have become of a pod.
const (
	Unread Fate = iota // nobody knows
	Gone               // there is none with its UID, or it has ended
	Waits              // it has no node
	Bound              // it has one
)

// Read notes what the API server says of the pod of a doubt, asked behind the doubt, and not of a cache. What is reserved for a pod that is gone is free, and so is what is reserved for one that has no node, if nobody places it by the token any more. What is
// reserved for one that is bound stays until the pod is told of, so that it is not free in between.
func (c *Cards) Read(d Doubt, is Fate, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.by[d.Token]
	if h == nil || !h.reading { // it has been released, or is another one
		return
	}
	h.reading = false
	switch {
	case is == Gone, is == Waits && d.ended:
		c.release(h)
	case h.ended && !d.ended: // it may have been bound between the read and its end
		h.due = now
	case h.ended:
		h.pause = min(max(2*h.pause, readSoon), readLate)
		h.due = now.Add(h.pause)
	default:
		h.due = now.Add(readLive)
	}
}
