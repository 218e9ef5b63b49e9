package fanout

import (
	"sync"
	"time"
)

// suspicion is how long a worker that failed to answer is asked only after the others. A worker that is gone for
// good leaves the members when its lease ends.
const suspicion = 3 * time.Second

// suspects are the workers that have failed to answer lately, by their addresses. It is safe for concurrent use.
type suspects struct {
	mu    sync.Mutex
	until map[string]time.Time
}

// add makes a worker the last choice for a while.
func (s *suspects) add(address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.until == nil {
		s.until = make(map[string]time.Time)
	}
	s.until[address] = time.Now().Add(suspicion)
}

// split parts workers into those to give ranges to and those to ask only when these fail. Unless there are none, the
// first are never empty.
func (s *suspects) split(workers []string) (first, last []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for address, until := range s.until {
		if !time.Now().Before(until) {
			delete(s.until, address)
		}
	}
	for _, address := range workers {
		if _, ok := s.until[address]; ok {
			last = append(last, address)
		} else {
			first = append(first, address)
		}
	}
	if len(first) == 0 {
		return last, nil
	}
	return first, last
}
