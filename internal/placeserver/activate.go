package placeserver

import (
	"sync"
	"unicode/utf8"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/pluginproto"
)

// maxActivations are as many pods as are kept that are to be activated, of a stream, or until there is one. Of more, nobody hears: they are tried again anyway, some time.
const maxActivations = 100_000

// activations are pods that are to be activated, or woken. It is safe for concurrent use.
type activations struct {
	more chan struct{} // holds a value while there may be some

	mu   sync.Mutex
	uids map[string]bool // whether it is now, or after a backoff
}

func newActivations() *activations {
	return &activations{more: make(chan struct{}, 1), uids: make(map[string]bool)}
}

func (a *activations) add(uids []string, now bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, uid := range uids {
		if uid == "" || len(uid) > pluginproto.MaxUIDBytes || !utf8.ValidString(uid) {
			continue
		}
		if _, ok := a.uids[uid]; ok || len(a.uids) < maxActivations {
			a.uids[uid] = a.uids[uid] || now
		}
	}
	a.signal()
}

// signal says that there may be some. It never blocks.
func (a *activations) signal() {
	select {
	case a.more <- struct{}{}:
	default:
	}
}

// take takes up to so many.
func (a *activations) take(most int) (now, later []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for uid, is := range a.uids {
		if len(now)+len(later) == most {
			a.signal()
			break
		}
		if is {
			now = append(now, uid)
		} else {
			later = append(later, uid)
		}
		delete(a.uids, uid)
	}
	return now, later
}

// Activate has Berth hear that pods are worth trying now, by their UIDs: on the streams that there are, or on the next one. It does not wait.
func (s *Server) Activate(uids ...string) { s.tell(uids, true) }

// Wake has Berth hear, as Activate does, that something has happened for which pods are worth trying when they have served their backoff.
func (s *Server) Wake(uids ...string) { s.tell(uids, false) }

func (s *Server) tell(uids []string, now bool) {
	if len(uids) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	heard := false
	for p := range s.streams {
		if p.ctx.Err() == nil {
			p.activated.add(uids, now)
			heard = true
		}
	}
	if heard {
		return
	}
	if s.unheard == nil {
		s.unheard = newActivations()
	}
	s.unheard.add(uids, now)
}

// begin has a stream among those that there are. end does not any more.
func (s *Server) begin(p *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams == nil {
		s.streams = make(map[*stream]bool)
	}
	s.streams[p] = true
	if s.unheard != nil {
		p.activated, s.unheard = s.unheard, nil
	}
}

func (s *Server) end(p *stream) {
	s.mu.Lock()
	delete(s.streams, p)
	s.mu.Unlock()
	now, later := p.activated.take(maxActivations)
	s.tell(now, true)
	s.tell(later, false)
}

// activates returns a response with pods that are to be activated, nil if there are none.
func (p *stream) activates() *pluginv1.PlaceResponse {
	now, later := p.activated.take(pluginproto.MaxActivates)
	if len(now)+len(later) == 0 {
		return nil
	}
	return &pluginv1.PlaceResponse{Activates: now, Wakes: later}
}
