package pluginhost

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// mostActivated are as many pods as are kept that a service wants tried now.
const mostActivated = 10_000

// activated are the pods that a service wants tried now. It is safe for concurrent use.
type activated struct {
	news chan struct{} // the host's
	lost prometheus.Counter

	mu   sync.Mutex
	uids map[string]bool
}

func (a *activated) add(uids []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.uids == nil {
		a.uids = make(map[string]bool)
	}
	for i, uid := range uids {
		if len(a.uids) == mostActivated {
			a.lost.Add(float64(len(uids) - i))
			break
		}
		a.uids[uid] = true
	}
	signal(a.news)
}

// signal says that there may be some. It never blocks.
func signal(news chan struct{}) {
	select {
	case news <- struct{}{}:
	default:
	}
}

func (a *activated) take(most int) (uids []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for uid := range a.uids {
		if len(uids) == most {
			signal(a.news)
			break
		}
		uids = append(uids, uid)
		delete(a.uids, uid)
	}
	return uids
}

// Activated is that a service wants a pod tried now, whatever it waits for.
type Activated struct {
	UID     string
	service int
}

// Activations holds a value while there may be pods that services want tried now.
func (h *Host) Activations() <-chan struct{} { return h.activations }

// TakeActivated takes the pods that services want tried now, up to so many of each service.
func (h *Host) TakeActivated(most int) (out []Activated) {
	for i, s := range h.services {
		for _, uid := range s.activated.take(most) {
			out = append(out, Activated{uid, i})
		}
	}
	return out
}

// Concerns reports whether a pod of a scheduler name is any business of the service that wants it tried.
func (h *Host) Concerns(a Activated, schedulerName string) bool {
	return slices.ContainsFunc(h.uses[schedulerName], func(u use) bool { return u.service == a.service })
}
