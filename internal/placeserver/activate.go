package placeserver

import (
	"sync"
	"unicode/utf8"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/pluginproto"
)

// maxActivations are as many pods as are kept that are to be activated, of a stream, or until there is one. Of more, nobody hears: they are tried again anyway, some time.
const maxActivations = 10_000

// activations are pods that are to be activated, by UID. It is safe for concurrent use.
type activations struct {
	more chan struct{} // holds a value while there may be some

	mu   sync.Mutex
	uids map[string]bool
}

func newActivations() *activations {
	return &activations{more: make(chan struct{}, 1), uids: make(map[string]bool)}
}

func (a *activations) add(uids []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, uid := range uids {
		if len(a.uids) == maxActivations {
			break
		}
		if uid != "" && len(uid) <= pluginproto.MaxUIDBytes && utf8.ValidString(uid) {
			a.uids[uid] = true
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
func (a *activations) take(most int) (uids []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for uid := range a.uids {
		if len(uids) == most {
			a.signal()
			break
		}
		uids = append(uids, uid)
		delete(a.uids, uid)
	}
	return uids
}

// Activate has Berth hear that pods are worth trying now, by their UIDs: on the streams that there are, or on the next one. It does not wait.
func (s *Server) Activate(uids ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	heard := false
	for p := range s.streams {
		if p.ctx.Err() == nil {
			p.activated.add(uids)
			heard = true
		}
	}
	if heard {
		return
	}
	if s.unheard == nil {
		s.unheard = newActivations()
	}
	s.unheard.add(uids)
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
	if left := p.activated.take(maxActivations); len(left) > 0 {
		s.Activate(left...)
	}
}

// activates returns a response with pods that are to be activated, nil if there are none.
func (p *stream) activates() *pluginv1.PlaceResponse {
	uids := p.activated.take(pluginproto.MaxActivates)
	if len(uids) == 0 {
		return nil
	}
	return &pluginv1.PlaceResponse{Activates: uids}
}
