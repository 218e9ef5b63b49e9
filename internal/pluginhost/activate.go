package pluginhost

import (
	"context"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// mostActivated are as many pods as are kept that a service wants tried.
const mostActivated = 10_000

// activated are the pods that a service wants tried. It is safe for concurrent use.
type activated struct {
	news chan struct{} // the host's
	lost prometheus.Counter

	mu   sync.Mutex
	uids map[string]bool // whether it is now, or after a backoff
	all  bool            // all that wait for whatever happens: nobody knows what the service would have said of them
}

func (a *activated) add(uids []string, now bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.uids == nil {
		a.uids = make(map[string]bool)
	}
	for _, uid := range uids {
		if _, ok := a.uids[uid]; ok || len(a.uids) < mostActivated {
			a.uids[uid] = a.uids[uid] || now
		} else {
			a.lost.Inc()
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
	if a.all {
		out, a.all = append(out, Activated{service: service}), false
	}
	for uid, now := range a.uids {
		if len(out) >= most {
			signal(a.news)
			break
		}
		out = append(out, Activated{uid, now, service})
		delete(a.uids, uid)
	}
	return out
}

// Activated is that a service wants a pod tried: now, whatever it waits for, or when it has served its backoff. Without a UID, it is about all pods that wait for whatever happens.
type Activated struct {
	UID     string
	Now     bool
	service int
}

// Activations holds a value while there may be pods that services want tried, or a service that is to be heard of them.
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

// Hear has those services heard again that say which pods are worth trying, and whose streams of this epoch have ended. False: some cannot be yet.
func (h *Host) Hear(ctx context.Context, epoch cluster.Epoch) (all bool) {
	all = true
	for _, s := range h.services {
		if !s.placing.mayActivate(epoch) || s.placing.now() != nil {
			continue
		}
		if _, err := s.beginPlacing(ctx, epoch); err != nil { // which has been logged
			all = false
		}
	}
	return all
}

// mayActivate reports whether there has been a stream in an epoch, of a service that says which pods are worth trying.
func (p *placing) mayActivate(epoch cluster.Epoch) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.activates && p.begun == epoch
}
