package placeserver

import (
	"sync"
	"unicode/utf8"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/pluginproto"
)

const (
	// maxActivations are as many pods as are kept that are to be activated, of a stream, or until there is one. Of more, nobody hears: they are tried again anyway, some time.
	maxActivations = 100_000
	// maxChanges are as many nodes as are kept that have changed, of a stream. Of more, all have.
	maxChanges = 100_000
)

// activations are pods that are to be activated, or woken, and nodes that have changed. It is safe for concurrent use.
type activations struct {
	more chan struct{} // holds a value while there may be some

	mu    sync.Mutex
	uids  map[string]bool // whether it is now, or after a backoff
	nodes map[string]bool // that have changed
	all   bool            // all have
}

func newActivations() *activations {
	return &activations{more: make(chan struct{}, 1), uids: make(map[string]bool), nodes: make(map[string]bool)}
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

// change adds nodes that have changed.
func (a *activations) change(nodes []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range nodes {
		if a.all {
			break
		}
		if name != "" && len(name) <= pluginproto.MaxNodeBytes && utf8.ValidString(name) { // else no node is called that
			a.nodes[name] = true
			a.all = len(a.nodes) > maxChanges
		}
	}
	if a.all {
		clear(a.nodes)
	}
	a.signal()
}

// changeAll says that all have.
func (a *activations) changeAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = true
	clear(a.nodes)
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
	return a.takeLocked(most)
}

// takeLocked is take; mu is held.
func (a *activations) takeLocked(most int) (now, later []string) {
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

// next returns a response with what is to be heard, nil if there is nothing: nodes that have changed, of whoever hears that, and, unless there are more of these, pods. So who says that a pod is worth trying since a node has changed, and has said that before, is
// understood.
func (a *activations) next(changes, activates bool) *pluginv1.PlaceResponse {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := new(pluginv1.PlaceResponse)
	if !changes { // a binder of the release before
		a.all = false
		clear(a.nodes)
	}
	out.AllChanged, a.all = a.all, false
	for name := range a.nodes {
		if len(out.Changes) == pluginproto.MaxChanges {
			break
		}
		out.Changes = append(out.Changes, name)
		delete(a.nodes, name)
	}
	switch {
	case len(a.nodes) > 0:
		a.signal()
	case activates:
		out.Activates, out.Wakes = a.takeLocked(pluginproto.MaxActivates)
	}
	if !out.AllChanged && len(out.Changes)+len(out.Activates)+len(out.Wakes) == 0 {
		return nil
	}
	return out
}

// Changed has Berth hear that nodes have changed for plugins, by their names: what it was told of them before does not hold any more. It does not wait. A stream that begins later is told that all have.
func (s *Server) Changed(nodes ...string) {
	if len(nodes) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = true
	for p := range s.streams {
		p.activated.change(nodes)
	}
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
	if s.changed { // its binder may have asked before that, and has not been told
		p.activated.changeAll()
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
