package kube

import (
	"container/list"
	"sync"
	"time"
)

const (
	// seriesEvery is the least time between two writes about the same message of the same pod.
	seriesEvery = 5 * time.Minute
	// maxSeries is how many pods are remembered; the one not reported for the longest is forgotten first, and then merely
	// gets a new event.
	maxSeries = 20000
)

// series remembers the last FailedScheduling event of each pod, so that a repetition is counted and not written anew.
// It is safe for concurrent use.
type series struct {
	mu     sync.Mutex
	limit  int
	byUID  map[string]*list.Element
	oldest *list.List // of *repeated, the one reported last at the back
}

type repeated struct {
	uid, message string
	event        string // name
	count        int32
	written      time.Time
}

func newSeries() *series {
	return &series{limit: maxSeries, byUID: map[string]*list.Element{}, oldest: list.New()}
}

// repeat counts a repetition. It returns the name of the event that said the same, "" if there is none, how often it
// has happened, and whether it is time to write that.
func (s *series) repeat(uid, message string, now time.Time) (event string, count int32, due bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byUID[uid]
	if e == nil {
		return "", 0, false
	}
	r := e.Value.(*repeated)
	if r.message != message {
		return "", 0, false
	}
	s.oldest.MoveToBack(e)
	r.count++
	due = now.Sub(r.written) >= seriesEvery
	if due {
		r.written = now
	}
	return r.event, r.count, due
}

// wrote remembers an event that was written.
func (s *series) wrote(uid, message, event string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &repeated{uid: uid, message: message, event: event, count: 1, written: now}
	if e := s.byUID[uid]; e != nil {
		e.Value = r
		s.oldest.MoveToBack(e)
		return
	}
	s.byUID[uid] = s.oldest.PushBack(r)
	if s.oldest.Len() > s.limit {
		delete(s.byUID, s.oldest.Remove(s.oldest.Front()).(*repeated).uid)
	}
}

// forget drops a pod.
func (s *series) forget(uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.byUID[uid]; e != nil {
		s.oldest.Remove(e)
		delete(s.byUID, uid)
	}
}
