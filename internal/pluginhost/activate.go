package pluginhost

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-scheduler/berth/internal/cluster"
)

const (
	// mostActivated are as many pods as are kept that a service wants tried.
	mostActivated = 10_000
	// mostInResponse bounds those of one response, and the nodes that have changed, as the proto says; longestUID is in bytes.
	mostInResponse = 1000
	longestUID     = 253
)

// allAgain is how often all pods are tried that wait for whatever happens, since nobody knows what a service would have said of them.
const allAgain = 10 * time.Second

// activated are the pods that a service wants tried. It is safe for concurrent use.
type activated struct {
	news  chan struct{} // the host's
	lost  prometheus.Counter
	clock func() time.Duration // the service's

	mu       sync.Mutex
	uids     map[string]bool // whether it is now, or after a backoff
	all      bool            // all that wait for whatever happens
	allSince time.Duration   // by clock, when they were taken last
	hadAll   bool            // they were
}

func (a *activated) add(uids []string, now bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.uids == nil {
		a.uids = make(map[string]bool)
	}
	for _, uid := range uids {
		if uid == "" || len(uid) > longestUID {
			continue
		}
		if _, ok := a.uids[uid]; ok || len(a.uids) < mostActivated {
			a.uids[uid] = a.uids[uid] || now
		} else { // one of all
			a.lost.Inc()
			a.all = true
		}
	}
	signal(a.news)
}

func (a *activated) addAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = true
	signal(a.news)
}

// signal says that there may be some. It never blocks.
func signal(news chan struct{}) {
	select {
	case news <- struct{}{}:
	default:
	}
}

// take takes up to so many, of those of a service by its place.
func (a *activated) take(most, service int) (out []Activated) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all && (!a.hadAll || a.clock()-a.allSince >= allAgain) {
		out = append(out, Activated{All: true, service: service})
		a.all, a.hadAll, a.allSince = false, true, a.clock()
	}
	for uid, now := range a.uids {
		if len(out) >= most {
			signal(a.news)
			break
		}
		out = append(out, Activated{UID: uid, Now: now, service: service})
		delete(a.uids, uid)
	}
	return out
}

// Activated is that a service wants a pod tried: now, whatever it waits for, or when it has served its backoff. All: nobody knows which, and all are to be that wait for whatever happens.
type Activated struct {
	UID     string
	Now     bool
	All     bool
	service int
}

// Activations holds a value while there may be pods that services want tried.
func (h *Host) Activations() <-chan struct{} { return h.activations }

// TakeActivated takes the pods that services want tried, up to so many of each service.
func (h *Host) TakeActivated(most int) (out []Activated) {
	for i, s := range h.services {
		out = append(out, s.activated.take(most, i)...)
	}
	return out
}

// Concerns reports whether a pod of a scheduler name is any business of the service that wants it tried.
func (h *Host) Concerns(a Activated, schedulerName string) bool {
	return slices.ContainsFunc(h.uses[schedulerName], func(u use) bool { return u.service == a.service })
}

// Again has what was taken taken again later.
func (h *Host) Again(a Activated) { h.services[a.service].activated.add([]string{a.UID}, a.Now) }

// A service that says which pods are worth trying is begun anew at once when its stream has ended, and then after hearSoon, and after twice as long each time, up to hearLate, unless it has lasted.
const (
	hearSoon = time.Second
	hearLate = 30 * time.Second
)

// Hear has those services heard again that say which pods are worth trying, whenever their streams of an epoch have ended, until ctx ends. One that hangs holds up no other.
func (h *Host) Hear(ctx context.Context, epoch cluster.Epoch) {
	var all sync.WaitGroup
	for _, s := range h.services {
		all.Go(func() { s.hear(ctx, epoch) })
	}
	all.Wait()
}

func (s *service) hear(ctx context.Context, epoch cluster.Epoch) {
	pause, good := time.Duration(0), s.clock() // since when there has been a stream
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.placing.ended:
		}
		if s.clock()-good > pause+hearSoon { // it has lasted
			pause = 0
		}
		for s.placing.mayActivate(epoch) && s.placing.now() == nil {
			wait := time.NewTimer(pause)
			select {
			case <-ctx.Done():
				wait.Stop()
				return
			case <-wait.C:
			}
			pause = min(max(2*pause, hearSoon), hearLate)
			_, _ = s.beginPlacing(ctx, epoch) // it has been said what is wrong
			good = s.clock()
		}
	}
}

// mayActivate reports whether there has been a stream in an epoch, of a service that says which pods are worth trying.
func (p *placing) mayActivate(epoch cluster.Epoch) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.activates && p.begun == epoch
}
