package placeserver

import (
	"context"
	"sync"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// reserves are the requests of a stream that reserve, as far as somebody may wait for them. It is safe for concurrent use.
type reserves struct {
	mu    sync.Mutex
	last  int64          // the request that came last
	under map[int64]bool // those that reserve, and have not come about or failed
	news  chan struct{}  // closed when something is different; nil: nobody waits
}

// hear notes a request, before anything is done about it.
func (r *reserves) hear(req *pluginv1.PlaceRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last = req.GetId(); req.GetStep() == pluginv1.Step_STEP_RESERVE {
		if r.under == nil {
			r.under = make(map[int64]bool)
		}
		r.under[r.last] = true
	}
	r.tell()
}

// end notes that what a request was to reserve is reserved, or has failed.
func (r *reserves) end(id int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.under, id)
	r.tell()
}

// tell has those look again who wait. mu is held.
func (r *reserves) tell() {
	if r.news != nil {
		close(r.news)
		r.news = nil
	}
}

// done returns nil if all requests up to one have come, and reserved what they were to or failed, and else what is closed when it is worth looking again.
func (r *reserves) done(id int64) (news <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	waits := r.last < id
	for under := range r.under { // a few
		waits = waits || under <= id
	}
	if !waits {
		return nil
	}
	if r.news == nil {
		r.news = make(chan struct{})
	}
	return r.news
}

// call has a stream be known by a name. "": by none.
func (s *Server) call(p *stream, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.name = name
}

// Behind waits until all is reserved, or has failed, that was to be by a request of the stream of that name, or an earlier one. A stream that has ended, or that nobody knows, reserves nothing. An error is that of ctx.
func (s *Server) Behind(ctx context.Context, name string, id int64) error {
	p := s.streamOf(name)
	if p == nil {
		return nil
	}
	for news := p.reserves.done(id); news != nil; news = p.reserves.done(id) {
		select {
		case <-news:
		case <-p.ctx.Done():
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (s *Server) streamOf(name string) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.streams { // one, and that of the binder that takes over
		if name != "" && p.name == name {
			return p
		}
	}
	return nil
}
