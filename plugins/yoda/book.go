package yoda

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
)

// Book is what is known of the cards of nodes, and of which pods have them. It writes down what it is told, in whatever order that comes, and never refuses what has happened: who asks is told what follows from it.
//
// A pod has cards by claims of two kinds, each of which is made and ended by itself. It is *told* to have them by the API server, by its UID: [Book.SetPod] and [Book.RemovePod]. They are *reserved* for it by somebody who is placing it, by a [Token]:
// [Book.Give], [Book.Reserve] and [Book.Release]. A pod has what any of its claims says, and has it once: claims of the same pod add nothing to each other, and do not conflict. So of several who place the same pod, none frees what another one holds.
//
// It has an entry for each node, pod and token that it was told of, until it is told that they are gone. It is not safe for concurrent use: its owner locks it. Give, Reserve, Release, and what begins with Set or Remove, change it; for all else a read
// lock will do. The views that it returns need none.
type Book struct {
	nodes    map[string]*entry
	told     map[types.UID]*claim
	reserved map[Token]*claim
	tellers  map[string][]string // by the ID of a card: the nodes that tell of it
	turn     uint64              // grows with each claim and each status, so that it is known which came first
}

// Token is what a reservation goes by. It can be anything that == can compare, and is the caller's: no two reservations at a time have the same.
type Token any

// claim is a reason for which a pod has cards. It does not change.
type claim struct {
	pod   types.UID
	node  string
	grant Grant // without cards: it is not known which cards the pod has
	since uint64
}

func (c *claim) awaited() bool { return len(c.grant.Cards) == 0 }

// entry is what is known of a node.
type entry struct {
	facts     *Facts
	told      bool
	heartbeat time.Time // by the clock of the node
	every     int32     // HeartbeatSeconds, as they are told
	staleAt   time.Time // by the clock of the reader
	seen      uint64    // the turn of the status
	cards     []v1alpha1.Card
	pods      map[types.UID][]*claim // slices that are never written to again
	view      atomic.Pointer[View]   // nil: to be made
}

// NewBook returns a book without an entry.
func NewBook() *Book {
	return &Book{nodes: make(map[string]*entry), told: make(map[types.UID]*claim), reserved: make(map[Token]*claim), tellers: make(map[string][]string)}
}

// Len returns how many nodes, told pods and reservations it has entries for.
func (b *Book) Len() (nodes, pods, reservations int) {
	return len(b.nodes), len(b.told), len(b.reserved)
}

// change returns the entry of a node, which it makes if there is none, and forgets the view of it.
func (b *Book) change(node string) *entry {
	e := b.entry(node)
	e.view.Store(nil)
	return e
}

// entry returns the entry of a node, which it makes if there is none.
func (b *Book) entry(node string) *entry {
	e := b.nodes[node]
	if e == nil {
		e = &entry{pods: make(map[types.UID][]*claim)}
		b.nodes[node] = e
	}
	return e
}

// tidy removes the entry of a node of which nothing is known any more.
func (b *Book) tidy(node string) {
	if e := b.nodes[node]; e != nil && e.facts == nil && !e.told && len(e.pods) == 0 {
		delete(b.nodes, node)
	}
}

// SetNode notes that there is a node, and what it is.
func (b *Book) SetNode(node string, facts Facts) {
	if e := b.nodes[node]; e == nil || e.facts == nil || *e.facts != facts {
		b.change(node).facts = &facts
	}
}

// RemoveNode notes that a node is gone. Its status, and its pods, go when they are removed and released.
func (b *Book) RemoveNode(node string) {
	if b.nodes[node] != nil {
		b.change(node).facts = nil
		b.tidy(node)
	}
}

// SetStatus notes what the collector of a node says, and that it was seen to say so at a time, by the clock of the caller; the collector's clock may be wrong. If it says the same as before, heartbeat and all, as when a list is read again, that is no sign
// of life, and the time that counts stays the one before.
//
// Nor is what is seen first of a node, if it is older than a collector may be silent: it may have lain there for a year. Those cards are stale until the collector says something else. One whose clock is late by so much is taken for dead until its next heartbeat.
//
// A nil status is none, as with [Book.RemoveStatus].
func (b *Book) SetStatus(node string, status *v1alpha1.Status, seen time.Time) {
	if status == nil {
		b.RemoveStatus(node)
		return
	}
	cards, heartbeat := cardsOf(status.Cards), status.Heartbeat.Time
	e := b.nodes[node]
	if e != nil && e.told && e.heartbeat.Equal(heartbeat) && e.every == status.HeartbeatSeconds && slices.Equal(e.cards, cards) {
		return
	}
	e = b.change(node)
	b.turn++
	silence := 3 * time.Duration(min(max(status.HeartbeatSeconds, 1), 3600)) * time.Second
	stale := seen.Add(silence)
	if silent := heartbeat.Add(silence); !e.told && silent.Before(seen) {
		stale = silent
	}
	b.tell(node, e.cards, cards)
	e.told, e.heartbeat, e.every, e.staleAt, e.seen, e.cards = true, heartbeat, status.HeartbeatSeconds, stale, b.turn, cards
}

// RemoveStatus notes that nothing is said of the cards of a node any more. Grants of them stay.
func (b *Book) RemoveStatus(node string) {
	if e := b.nodes[node]; e != nil {
		e = b.change(node)
		b.tell(node, e.cards, nil)
		e.told, e.heartbeat, e.every, e.staleAt, e.seen, e.cards = false, time.Time{}, 0, time.Time{}, 0, nil
		b.tidy(node)
	}
}

// Tellers returns the other nodes that tell of cards of which a node has told, or tells by a status: what is said of them changes with it.
func (b *Book) Tellers(node string, status *v1alpha1.Status) []string {
	var ids, others []string
	if e := b.nodes[node]; e != nil {
		ids = knownIDs(e.cards)
	}
	if status != nil {
		ids = append(ids, knownIDs(status.Cards)...)
	}
	for _, id := range ids {
		for _, other := range b.tellers[id] {
			if other != node && !slices.Contains(others, other) {
				others = append(others, other)
			}
		}
	}
	return others
}

// tell notes that a node tells of other cards than before. The views of nodes that tell of any of these too are to be made again.
func (b *Book) tell(node string, before, after []v1alpha1.Card) {
	was, is := knownIDs(before), knownIDs(after)
	if slices.Equal(was, is) {
		return
	}
	for _, id := range was {
		nodes := slices.DeleteFunc(b.tellers[id], func(n string) bool { return n == node })
		if b.tellers[id] = nodes; len(nodes) == 0 {
			delete(b.tellers, id)
		}
	}
	for _, id := range is {
		b.tellers[id] = append(b.tellers[id], node)
	}
	for _, ids := range [][]string{was, is} {
		for _, id := range ids {
			for _, other := range b.tellers[id] {
				b.change(other)
			}
		}
	}
}

// knownIDs returns the IDs of cards that a grant could name, in order, each once.
func knownIDs(cards []v1alpha1.Card) []string {
	var ids []string
	for i := range cards {
		if validID(cards[i].ID) {
			ids = append(ids, cards[i].ID)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// SetPod notes that the API server tells of a pod on a node, and which cards it has. It replaces what was told of the pod before, and nothing that is reserved. A grant of cards that others have is noted too, and makes a [Conflict]; so is one of cards that
// the collector does not tell of.
//
// A grant without cards is that of a pod that asks for cards, and of which it is not known which it has: the node gives no card until that is known, or the pod is gone. What is reserved for the pod does not answer that: it may have been placed by somebody else.
func (b *Book) SetPod(pod types.UID, node string, grant Grant) {
	was, c := b.told[pod], newClaim(pod, node, grant)
	if was == nil || !was.same(c) {
		b.told[pod] = c
		b.replace(was, c)
	}
}

// RemovePod notes that a pod that was told of has no cards: it is gone, or it has ended.
func (b *Book) RemovePod(pod types.UID) {
	if c := b.told[pod]; c != nil {
		delete(b.told, pod)
		b.replace(c, nil)
	}
}

// Reserve notes that cards of a node are reserved for a pod, by a token. It replaces what was reserved by that token. Else it is as [Book.SetPod].
func (b *Book) Reserve(token Token, pod types.UID, node string, grant Grant) {
	was, c := b.reserved[token], newClaim(pod, node, grant)
	if was == nil || !was.same(c) {
		b.reserved[token] = c
		b.replace(was, c)
	}
}

// Release notes that what was reserved by a token is so no longer: the pod is not placed after all, or it is told of. What it is told to have, and what is reserved by other tokens, stays.
func (b *Book) Release(token Token) {
	if c := b.reserved[token]; c != nil {
		delete(b.reserved, token)
		b.replace(c, nil)
	}
}

// Give chooses cards of a node for a pod, as [Choose] does, and reserves them by a token, in one step. A pod that is told to have cards of that node gets these, and no others, whatever it asks for. One for which cards of it are reserved, by the same token or by
// another one, gets these again, if they meet its request still and nobody else has them.
//
// A refusal changes nothing. A pod that asks for no card gets a grant without any, and has nothing reserved by the token.
func (b *Book) Give(token Token, pod types.UID, node string, r *Request, args *Args, now time.Time) (Grant, *Refusal) {
	if r == nil {
		b.Release(token)
		return Grant{}, nil
	}
	if has := b.told[pod]; has != nil && has.node == node && !has.awaited() {
		b.Reserve(token, pod, node, has.grant)
		return has.grant.clone(), nil
	}
	view := b.View(node)
	has := b.reservedFor(token, pod, node)
	if has != nil {
		view = view.Without(pod) // what it has is in nobody's way
	}
	chosen, refusal := Choose(view, r, args, now)
	if refusal != nil {
		return Grant{}, refusal
	}
	g := r.Grant(chosen)
	if has != nil && view.meets(has.grant, r, args) {
		g = has.grant.clone()
	}
	b.Reserve(token, pod, node, g)
	return g, nil
}

// reservedFor returns what is reserved of a node for a pod, by a token or, if nothing is by it, by another one; nil: nothing is.
func (b *Book) reservedFor(token Token, pod types.UID, node string) *claim {
	if has := b.reserved[token]; has != nil && has.pod == pod && has.node == node && !has.awaited() {
		return has
	}
	if b.nodes[node] != nil {
		for _, c := range b.nodes[node].pods[pod] {
			if !c.awaited() {
				return c
			}
		}
	}
	return nil
}

// meets reports whether the cards of a grant meet a request, on a view without the pod that has them.
func (v *View) meets(g Grant, r *Request, args *Args) bool {
	met := 0
	for i := range v.cards {
		if c := &v.cards[i]; slices.Contains(g.Cards, c.ID) && v.fails(c, r, args) == all {
			met++
		}
	}
	return met == len(g.Cards) && met == int(r.Number) && g.MemoryMiB == r.Grant(nil).MemoryMiB
}

// newClaim returns a claim that has a grant of its own, with each card once, and memory within bounds. Of memory below 0 it is better to believe that it is all.
func newClaim(pod types.UID, node string, grant Grant) *claim {
	c := &claim{pod: pod, node: node, grant: Grant{MemoryMiB: min(max(grant.MemoryMiB, 0), maxAmount)}}
	for _, id := range grant.Cards {
		if !slices.Contains(c.grant.Cards, id) {
			c.grant.Cards = append(c.grant.Cards, id)
		}
	}
	return c
}

// same reports whether two claims say the same.
func (c *claim) same(d *claim) bool {
	return c.pod == d.pod && c.node == d.node && c.grant.Equal(d.grant)
}

// replace notes that a claim, if it is not nil, is no more, and that there is another one, if that is not nil. One that says what another one of the pod has said before is as old as that; so the view of the node stays the same as long as there is one of them.
func (b *Book) replace(was, is *claim) {
	if is != nil {
		e := b.entry(is.node)
		b.turn++
		is.since = b.turn
		said := false
		for _, c := range e.pods[is.pod] {
			if c.same(is) {
				is.since, said = min(is.since, c.since), true
			}
		}
		if !said {
			e.view.Store(nil)
		}
		e.pods[is.pod] = append(slices.Clone(e.pods[is.pod]), is)
	}
	if was != nil {
		e := b.entry(was.node)
		left := slices.DeleteFunc(slices.Clone(e.pods[was.pod]), func(c *claim) bool { return c == was })
		if !slices.ContainsFunc(left, was.same) {
			e.view.Store(nil)
		}
		if e.pods[was.pod] = left; len(left) == 0 {
			delete(e.pods, was.pod)
		}
		b.tidy(was.node)
	}
}

// Told returns which cards a pod is told to have, and of which node; none if that is not known yet. False: it is not told of. The grant is only to be read.
func (b *Book) Told(pod types.UID) (node string, grant Grant, ok bool) {
	if c := b.told[pod]; c != nil {
		return c.node, c.grant, true
	}
	return "", Grant{}, false
}

// Reserved returns what is reserved by a token. False: nothing is. The grant is only to be read.
func (b *Book) Reserved(token Token) (pod types.UID, node string, grant Grant, ok bool) {
	if c := b.reserved[token]; c != nil {
		return c.pod, c.node, c.grant, true
	}
	return "", "", Grant{}, false
}

// Pods returns all pods that are told of, and their nodes, in no order: whoever has read a list of all pods finds so those that are not in it. Pods may be removed meanwhile.
func (b *Book) Pods() iter.Seq2[types.UID, string] {
	return func(yield func(types.UID, string) bool) {
		for pod, c := range b.told {
			if !yield(pod, c.node) {
				return
			}
		}
	}
}

// Awaited is a pod of which it is not known which cards it has, so that its node gives none.
type Awaited struct {
	Node string
	Pod  types.UID
}

// Awaited returns all such pods, in the order of nodes and pods. It looks at all pods, so it is for metrics and events.
func (b *Book) Awaited() []Awaited {
	found := make(map[Awaited]bool)
	for _, c := range b.told {
		if c.awaited() {
			found[Awaited{c.node, c.pod}] = true
		}
	}
	for _, c := range b.reserved {
		if c.awaited() {
			found[Awaited{c.node, c.pod}] = true
		}
	}
	return slices.SortedFunc(maps.Keys(found), func(a, b Awaited) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Pod, b.Pod))
	})
}

// hold is what pods have of a card.
type hold struct {
	pods     []types.UID // each once, in no order
	whole    bool        // one of them has all of it
	promised int64       // MiB, to those that have a part
	since    int64       // of that, what was promised since the status was seen
}

// disputed reports whether pods have more of a card than there is.
func (h *hold) disputed(c *v1alpha1.Card) bool {
	return len(h.pods) > 1 && h.whole || c != nil && c.Health == v1alpha1.Healthy && h.promised > c.TotalMemoryMiB
}

// holdsOf returns what the pods have, by the IDs of cards. A pod has of a card the most that any of its claims says.
func holdsOf(pods map[types.UID][]*claim, seen uint64) map[string]*hold {
	all := make(map[string]*hold)
	for pod, claims := range pods {
		for i, first := range claims {
			for _, id := range first.grant.Cards {
				has := func(c *claim) bool { return slices.Contains(c.grant.Cards, id) }
				if slices.ContainsFunc(claims[:i], has) {
					continue
				}
				h := all[id]
				if h == nil {
					h = new(hold)
					all[id] = h
				}
				h.pods = append(h.pods, pod)
				whole, most, before := false, int64(0), int64(0)
				for _, c := range claims[i:] {
					if !has(c) {
						continue
					}
					whole = whole || c.grant.MemoryMiB == 0
					most = max(most, c.grant.MemoryMiB)
					if c.since < seen {
						before = max(before, c.grant.MemoryMiB)
					}
				}
				if whole {
					h.whole = true
				} else {
					h.promised += most
					h.since += most - before
				}
			}
		}
	}
	return all
}

// Conflict is a card of which pods have more than there is: all of it and another one a part, or more memory in sum than it has. Somebody who is not this plugin has given it, or it has lost memory. Nobody gets any part of it as long as that is so. It is no
// longer so as soon as enough of the pods are gone: what is said of a card follows from who has it now, and not from who had it, for that nobody knows any more who has started in between.
type Conflict struct {
	Node, Card string
	Pods       []types.UID // that have it, in order; there is one at least
}

// Conflicts returns all conflicts, in the order of nodes and cards. It looks at all nodes, so it is for metrics and events, not for each decision.
func (b *Book) Conflicts() []Conflict {
	var all []Conflict
	for _, node := range slices.Sorted(maps.Keys(b.nodes)) {
		e := b.nodes[node]
		holds := holdsOf(e.pods, e.seen)
		for _, id := range slices.Sorted(maps.Keys(holds)) {
			var card *v1alpha1.Card
			for i := range e.cards {
				if e.cards[i].ID == id {
					card = &e.cards[i]
				}
			}
			if h := holds[id]; h.disputed(card) {
				slices.Sort(h.pods)
				all = append(all, Conflict{node, id, h.pods})
			}
		}
	}
	return all
}

// nothing is the view of a node that nothing is known of.
var nothing View

// View returns what is known of a node now. It is made once, and again when something has changed; several may ask for it at a time.
func (b *Book) View(node string) *View {
	e := b.nodes[node]
	if e == nil {
		return &nothing
	}
	if v := e.view.Load(); v != nil {
		return v
	}
	v := &View{facts: e.facts, told: e.told, staleAt: e.staleAt, seen: e.seen, pods: maps.Clone(e.pods), cards: make([]Card, len(e.cards))}
	for i := range e.cards {
		v.cards[i] = Card{Card: e.cards[i], Elsewhere: len(b.tellers[e.cards[i].ID]) > 1}
	}
	v.hold(holdsOf(v.pods, v.seen))
	e.view.Store(v)
	return v
}

// Stale reports whether the collector of a node has been silent for so long that its cards are given to nobody. See [View.Stale].
func (b *Book) Stale(node string, now time.Time) bool { return b.View(node).Stale(now) }
