package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"sync"
	"time"
)

// This file has the faults that meet what is done for the claims of a pod: it is recorded in etcd, written to volumes and claims, and waited for, and then
// the pod is bound. Where a binder is between these is seen by what it asks of the API server.

const (
	// stepLimit is how long a fault waits for the request that it is to meet, while pods with claims come.
	stepLimit = 20 * time.Second
	stepTick  = 300 * time.Millisecond
	stepPods  = 4 // that come for one fault, at most
	// claimedPods is how many pods with claims that faults have made stay when they are bound, so that it is seen what becomes of them.
	claimedPods = 9
	// writesHeld is how long writes are held up before their binder is killed.
	writesHeld = time.Second
)

// claimed is the pods with claims that faults have made, and a lock, for several faults may be at it.
type claimed struct {
	mu   sync.Mutex
	made int
	crowd
}

// atVolumes is the state of a fault that meets requests for claims.
type atVolumes struct {
	hit     chan struct{} // closed when the first request was met
	once    sync.Once
	release chan struct{} // closed when what is held up may go on

	mu     sync.Mutex
	killed string // the binder
}

func newAtVolumes() *atVolumes {
	return &atVolumes{hit: make(chan struct{}), release: make(chan struct{})}
}

// first does something for the first request, and reports whether it is the first. All others wait for the end of it.
func (a *atVolumes) first(do func()) bool {
	is := false
	a.once.Do(func() {
		is = true
		do()
		close(a.hit)
	})
	return is
}

// meet has a trap meet the requests of pods with claims, which come meanwhile, until the first has been met.
func (n *nemesis) meet(ctx context.Context, f Fault, a *atVolumes, t trap) error {
	n.api.lay(&t)
	stop := every(ctx, stepTick, func(ctx context.Context, i int) {
		if i < stepPods {
			n.addClaimed(ctx, f.Number, i)
		}
	})
	defer stop()
	select {
	case <-a.hit:
		return nil
	case <-ctx.Done():
	case <-time.After(stepLimit):
	}
	n.api.lay(nil)
	return errors.New("no such request was made for a claim")
}

// addClaimed adds a pod with claims, of a class that depends on its number.
func (n *nemesis) addClaimed(ctx context.Context, fault, i int) {
	classes := []string{classLocal, classMixed, classMade, classPair}
	n.addClaimedOf(ctx, fault, i, classes[(fault+i)%len(classes)])
}

func (n *nemesis) addClaimedOf(ctx context.Context, fault, i int, class string) {
	n.claimed.mu.Lock()
	defer n.claimed.mu.Unlock()
	n.claimed.made++
	c := newClaimant(class, fmt.Sprintf("kill-%d-%d-%d", fault, i, n.claimed.made))
	n.claimed.addWith(ctx, n.store, c.pods[0], c.claims...)
}

// thinClaimed removes bound pods that faults have made, the oldest first. Those that wait stay until the end, when it is judged whether they may.
func (n *nemesis) thinClaimed(ctx context.Context) {
	n.claimed.mu.Lock()
	defer n.claimed.mu.Unlock()
	pods, err := n.store.pods(ctx)
	if err != nil {
		return
	}
	on := map[string]bool{}
	for i := range pods {
		on[string(pods[i].UID)] = pods[i].Spec.NodeName != ""
	}
	var bound, waits []crowded
	for _, p := range n.claimed.there {
		if on[string(p.uid)] {
			bound = append(bound, p)
		} else {
			waits = append(waits, p)
		}
	}
	n.claimed.there = bound
	n.claimed.thin(ctx, n.store, claimedPods)
	n.claimed.there = append(waits, n.claimed.there...)
}

// killNow kills the active binder.
func (n *nemesis) killNow(ctx context.Context, a *atVolumes, met string) {
	if id, err := n.binder(ctx, false); err == nil {
		met = id
	}
	if n.crew.kill(met) == nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.killed = met
	}
}

// killAtStep kills the active binder at the first request for a claim that is of a place: what was asked is lost with it, or was done.
func (n *nemesis) killAtStep(ctx context.Context, f Fault) (func() error, error) {
	n.thinClaimed(ctx)
	a := newAtVolumes()
	kill := func() { n.killNow(context.WithoutCancel(ctx), a, f.Met) }
	want := func(s step) bool { return !s.bind }
	if f.Kind == killPrepared {
		want = func(s step) bool { return s.bind && s.claims }
	}
	t := trap{want: want, meet: func(context.Context, step) verdict {
		if f.Kind == killWritten {
			return silent
		}
		a.first(kill)
		return lost
	}, done: func(step) { a.first(kill) }}
	if n.api == nil {
		return n.killWhenTold(ctx, f, a)
	}
	if err := n.meet(ctx, f, a, t); err != nil {
		return nil, err
	}
	n.api.lay(nil)
	return func() error { return n.startKilled(a) }, nil
}

// killWhenTold kills the active binder when etcd has what it wrote for a claim: with the local source it has no other request to be met at.
func (n *nemesis) killWhenTold(ctx context.Context, f Fault, a *atVolumes) (func() error, error) {
	told := make(chan struct{}, 1)
	seen := func(o *Object) {
		if o.Claim != nil && isBound(o.Claim) {
			select {
			case told <- struct{}{}:
			default:
			}
		}
	}
	n.seen.Store(&seen)
	defer n.seen.Store(nil)
	stop := every(ctx, stepTick, func(ctx context.Context, i int) {
		if i < stepPods {
			n.addClaimedOf(ctx, f.Number, i, []string{classLocal, classPair}[i%2])
		}
	})
	defer stop()
	select {
	case <-told:
		n.killNow(context.WithoutCancel(ctx), a, f.Met)
		return func() error { return n.startKilled(a) }, nil
	case <-ctx.Done():
	case <-time.After(stepLimit):
	}
	return nil, errors.New("nothing was written for a claim")
}

// startKilled starts the binder that a fault has killed, if it has.
func (n *nemesis) startKilled(a *atVolumes) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.killed == "" {
		return nil
	}
	return n.crew.start(a.killed)
}

// hold returns a trap that holds up what is written to volumes and claims until a is released. Then it reaches the API server, whatever has become of
// who asked for it, and is not answered.
func (a *atVolumes) hold() trap {
	return trap{want: func(s step) bool { return !s.bind }, meet: func(context.Context, step) verdict {
		a.first(func() {})
		select {
		case <-a.release:
		case <-time.After(endLimit): // a run that ends does not wait for it
		}
		return silent
	}}
}

// leaveWriting removes pods whose writes for claims are held up, and some of their claims, and lets the writes arrive when others have got what they are about, or
// their claims something else. If it kills, their binder is killed before, and another one is there by then.
func (n *nemesis) leaveWriting(ctx context.Context, f Fault, kills bool) (func() error, error) {
	n.thinClaimed(ctx)
	a := newAtVolumes()
	if err := n.meet(ctx, f, a, a.hold()); err != nil {
		close(a.release)
		return nil, err
	}
	for i := range stepPods {
		n.addClaimedOf(ctx, f.Number, stepPods+i, []string{classLocal, classMade}[i%2])
	}
	sleep(ctx, writesHeld)
	if kills {
		n.killNow(context.WithoutCancel(ctx), a, f.Met)
	}
	n.api.lay(nil) // for others
	// Whoever's writes are held up leaves. Most of them leave their claims to others, which may go to other nodes, and get something else then.
	n.claimed.mu.Lock()
	var left []crowded
	mine := fmt.Sprintf("kill-%d-", f.Number)
	for i, p := range n.claimed.there {
		if !strings.HasPrefix(p.name, mine) {
			left = append(left, p)
			continue
		}
		gone := crowd{there: []crowded{p}}
		inherited := i%4 > 0
		if inherited {
			gone.there[0].claims = nil
		}
		gone.leave(ctx, n.store)
		if inherited {
			heirs := crowd{}
			heirs.add(ctx, n.store, claiming(classHeir, p.name+"-heir", p.claims...))
			for _, heir := range heirs.there {
				heir.claims = p.claims
				left = append(left, heir)
			}
		}
	}
	n.claimed.there = left
	n.claimed.mu.Unlock()
	return func() error {
		failed := n.startKilled(a)
		if kills {
			_ = n.awaitBinders(ctx)
			for i := range stepPods {
				n.addClaimedOf(ctx, f.Number, 2*stepPods+i, classPair) // they get what is free
			}
			sleep(ctx, 2*writesHeld)
		}
		close(a.release)
		sleep(ctx, writesHeld) // what arrives is judged while the others are there
		return failed
	}, nil
}

// cutWriting cuts a binder off from etcd while its writes for claims are held up. They arrive when the cut has lasted.
func (n *nemesis) cutWriting(ctx context.Context, f Fault, binder string) (func() error, error) {
	n.thinClaimed(ctx)
	a := newAtVolumes()
	if err := n.meet(ctx, f, a, a.hold()); err != nil {
		close(a.release)
		return nil, err
	}
	heal := n.spoil(Condition{Hold: true}, routes(binder, "both", etcdParty)...)
	sleep(ctx, writesHeld)
	n.api.lay(nil)
	return func() error {
		close(a.release)
		sleep(ctx, writesHeld)
		return heal()
	}, nil
}

// deleteMeanwhile deletes the claims, or the volumes, that are written to: half of them before the API server has what is written, the others when it has done it.
func (n *nemesis) deleteMeanwhile(ctx context.Context, f Fault) (func() error, error) {
	n.thinClaimed(ctx)
	a := newAtVolumes()
	remove := func(s step) {
		a.first(func() {})
		_ = ask(ctx, func(ctx context.Context) error { // what cannot be deleted stays
			switch {
			case f.Kind == deleteClaims && s.volume:
				return n.store.deleteClaim(ctx, s.claimNamespace, s.claim)
			case f.Kind == deleteClaims:
				return n.store.deleteClaim(ctx, s.namespace, s.name)
			}
			volumes, err := n.store.volumes(ctx)
			for i := range volumes {
				if v := &volumes[i]; v.Name == s.name {
					err = n.store.deleteVolume(ctx, v.Name, v.UID)
				}
			}
			return err
		})
	}
	t := trap{
		want: func(s step) bool { return s.volume || !s.bind && f.Kind == deleteClaims },
		meet: func(_ context.Context, s step) verdict {
			if early(s) {
				remove(s)
			}
			return passes
		},
		done: func(s step) {
			if !early(s) {
				remove(s)
			}
		},
	}
	if err := n.meet(ctx, f, a, t); err != nil {
		return nil, err
	}
	return func() error { n.api.lay(nil); return nil }, nil
}

// early draws half of the objects that are written to.
func early(s step) bool {
	h := fnv.New32a()
	h.Write([]byte(s.name))
	return h.Sum32()>>7&1 == 0
}

// provisionerIs has the provisioner refuse, or be silent, while pods ask it.
func (n *nemesis) provisionerIs(ctx context.Context, f Fault, m mood) func() error {
	n.thinClaimed(ctx)
	n.controllers.mood.Store(int32(m))
	for i := range stepPods {
		n.addClaimedOf(ctx, f.Number, i, []string{classMade, classMixed}[i%2])
	}
	return func() error { n.controllers.mood.Store(int32(moodWilling)); return nil }
}

// writesAmiss has what is written to volumes and claims be refused, lost or not answered.
func (n *nemesis) writesAmiss(ctx context.Context, f Fault) func() error {
	n.thinClaimed(ctx)
	n.api.set(APIFault{Writes: true})
	for i := range stepPods {
		n.addClaimed(ctx, f.Number, i)
	}
	return func() error { n.api.set(APIFault{}); return nil }
}
