package binder

import "log/slog"

// backlog is the placements of a term that are not bound yet: how many there may be, where they wait, and which calls for them are under way.
type backlog struct {
	binds    chan *placement // to be bound, in the order in which they came
	unbound  *bound
	late     *bound                   // binds without an answer for which no other waits any more
	turns    turns[whose, *placement] // where each needs a place
	flights  flights
	troubles troubles // namespaces in which binds were withdrawn
	windows  windows  // how many unbound pods namespaces may have
	names    *names   // whose pods the term places

	metrics *metrics
	log     *slog.Logger
}

// newBacklog returns one of at most limit placements. Namespaces share so many places for calls; with none, as where binds are transactions
// of etcd, each worker has its call, whoever it is for.
func newBacklog(limit, places int, names *names, metrics *metrics, log *slog.Logger) *backlog {
	b := &backlog{
		binds:   make(chan *placement, limit), // as large as the most that can be recorded and not bound: the recorder hardly ever waits for the lane
		unbound: &bound{limit: limit},
		late:    &bound{limit: maxLate},
		turns:   turns[whose, *placement]{more: make(chan struct{}, 1)},
		windows: windows{places: places, limit: limit},
		names:   names,
		metrics: metrics,
		log:     log,
	}
	b.flights = flights{most: places, trust: b.windows.trust}
	return b
}
