package rpc

import "sync"

// Share divides a bound among callers, so that none of them has all of it: nobody may hold more than is free. One caller gets half at
// most; the next, half of what is left; and who gives back finds others' room when it comes again. The caller "" is the process
// itself and its like: it may have everything. It is safe for concurrent use.
type Share struct {
	mu    sync.Mutex
	limit int
	each  int // what one caller may hold in any case; 0 means no such bound
	used  int
	held  map[string]int
}

// NewShare returns a Share of limit units, of which one caller holds at most each; 0 means as many as are free.
func NewShare(limit, each int) *Share {
	return &Share{limit: limit, each: each, held: make(map[string]int)}
}

// Take takes n units for a caller, and reports whether it got them. Give gives them back.
func (s *Share) Take(caller string, n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.take(caller, n)
}

// take is Take for who holds mu, or has another lock around the Share.
func (s *Share) take(caller string, n int) bool {
	free := s.limit - s.used
	if n > free {
		return false
	}
	if caller != "" {
		held := s.held[caller] + n
		if held > max(free, 1) || s.each > 0 && held > s.each {
			return false
		}
		s.held[caller] = held
	}
	s.used += n
	return true
}

// Give gives n units back.
func (s *Share) Give(caller string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.give(caller, n)
}

func (s *Share) give(caller string, n int) {
	s.used -= n
	if caller == "" {
		return
	}
	if s.held[caller] -= n; s.held[caller] == 0 {
		delete(s.held, caller)
	}
}

// move gives a unit of one caller's to another, who may have more by that than are free.
func (s *Share) move(from, to string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.give(from, 1)
	s.used++
	if to != "" {
		s.held[to]++
	}
}

// heldBy returns how many units a caller has.
func (s *Share) heldBy(caller string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[caller]
}

// Used returns how many units are taken, and by how many callers other than "".
func (s *Share) Used() (units, callers int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used, len(s.held)
}
