package binder

import (
	"context"
	"sync"
	"time"

	"github.com/berth-scheduler/berth/internal/coord"
)

// shardGuard knows the newest claim of each shard that etcd has shown. What requests say is not remembered: a request
// with a revision from nowhere would shut the true owner out.
type shardGuard struct {
	mu       sync.Mutex
	revision map[int32]int64
}

// mayCommit reports whether a claim is not older than the newest one known. It may be newer: the watch lags.
func (g *shardGuard) mayCommit(shard int32, revision int64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return revision > 0 && revision >= g.revision[shard]
}

func (g *shardGuard) learn(owners []coord.ShardOwner) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.revision == nil {
		g.revision = make(map[int32]int64)
	}
	for _, o := range owners {
		g.revision[int32(o.Shard)] = max(g.revision[int32(o.Shard)], o.Revision)
	}
}

// bound counts something that must not grow without end.
type bound struct {
	mu    sync.Mutex
	limit int
	taken int
	of    map[string]int // what namespaces have of it, if they share it
	stuck int            // of what is taken, what may never come back: nobody waits for it, or gives way to it
	idle  chan struct{}  // closed when nothing else is taken any more; nil while nothing is
}

// take reserves n, or nothing. A single request larger than the whole bound passes when nothing else is taken.
func (b *bound) take(n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.taken+n > b.limit && b.taken > 0 {
		return false
	}
	b.set(b.taken + n)
	return true
}

func (b *bound) give(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.set(b.taken - n)
}

// maxStuck is how much may be stuck, in limits, before that takes away from what else may be taken.
const maxStuck = 3

// takeOf reserves what is wanted for each namespace, or nothing. With what it wants, a namespace may have no more than was free before. So
// one that gives nothing back leaves half of the bound to others, and two leave a quarter. The namespace "", which is none, may have all. If
// nothing is taken, any amount passes.
//
// What is stuck counts as its namespace's, but does not make less free for others: nobody knows whether it ever comes back, and many
// namespaces together may have taken a lot before it was known of each that it gets stuck.
//
// Of what some namespaces want, only as much is wanted as they may have, and as others and those of them that come first leave; so it says then.
func (b *bound) takeOf(wanted map[string]int, some ...string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	free, n := b.free(), 0
	if b.taken > 0 {
		left := free // by others
		for _, k := range wanted {
			left -= k
		}
		for _, namespace := range some {
			left += wanted[namespace]
		}
		for _, namespace := range some {
			wanted[namespace] = max(0, min(wanted[namespace], free-b.of[namespace], left))
			left -= wanted[namespace]
		}
	}
	for namespace, k := range wanted {
		if n += k; k > 0 && b.taken > 0 && namespace != "" && b.of[namespace]+k > free {
			return false
		}
	}
	if b.taken > 0 && n > free {
		return false
	}
	for namespace, k := range wanted {
		b.setOf(namespace, k)
	}
	return true
}

// giveAll gives back what was wanted for each namespace.
func (b *bound) giveAll(wanted map[string]int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for namespace, n := range wanted {
		b.setOf(namespace, -n)
	}
}

// free returns how much may be taken. The caller holds the lock.
func (b *bound) free() int { return b.limit - b.taken + min(b.stuck, maxStuck*b.limit) }

// full reports whether nothing more may be taken.
func (b *bound) full() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.taken > 0 && b.free() <= 0
}

// giveOf gives n of a namespace back; with less than none, it reserves them whatever the limit is.
func (b *bound) giveOf(namespace string, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.setOf(namespace, -n)
}

// setOf changes what a namespace has, under the lock.
func (b *bound) setOf(namespace string, by int) {
	if b.of == nil {
		b.of = make(map[string]int)
	}
	if b.of[namespace] += by; b.of[namespace] == 0 {
		delete(b.of, namespace)
	}
	b.set(b.taken + by)
}

// countOf returns what a namespace has.
func (b *bound) countOf(namespace string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.of[namespace]
}

// addStuck says that so many of what is taken are stuck, or with less than none that they are not any more.
func (b *bound) addStuck(by int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stuck += by
	b.set(b.taken)
}

// set changes what is taken, under the lock.
func (b *bound) set(taken int) {
	b.taken = taken
	switch moving := taken - b.stuck; {
	case moving > 0 && b.idle == nil:
		b.idle = make(chan struct{})
	case moving <= 0 && b.idle != nil:
		close(b.idle)
		b.idle = nil
	}
}

// awaitIdle waits until nothing is taken but what is stuck, but no longer than until ctx ends or for so long.
func (b *bound) awaitIdle(ctx context.Context, atMost time.Duration) {
	b.mu.Lock()
	idle := b.idle
	b.mu.Unlock()
	if idle == nil {
		return
	}
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (b *bound) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.taken
}
