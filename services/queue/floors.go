package queue

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	"github.com/berth-scheduler/berth/services/queue/pending"
)

const (
	floorsPause  = 5 * time.Millisecond    // between two messages of a stream of floors at least
	floorsPeriod = 500 * time.Millisecond  // between two of them at most
	floorsCount  = 1500 * time.Millisecond // how long the last word of another member counts
	floorsRetry  = time.Second             // between two calls of a member that does not answer, at most
	// possible is how long a floor holds others that is only possible.
	possible = 50 * time.Millisecond
	// stalled is how long a shard's floor counts while its cycle does not get on.
	stalled = 5 * time.Second
)

// floors is what a member knows of the priority that each shard is working at. It is safe for concurrent use.
type floors struct {
	mu sync.Mutex
	// working are this member's shards with a driver that gets on, with the time until which their floors count; the zero
	// time if they count as long as they are here.
	working   map[int32]time.Time
	others    map[string]word
	listeners map[chan struct{}]bool
}

// floorsOf are the floors of a member's shards, by shard; one without a floor is not there.
type floorsOf struct {
	working  map[int32]int32
	possible map[int32]int32 // of pods that may have become schedulable, and are not looked at yet
}

func (f *floorsOf) equal(other *floorsOf) bool {
	return maps.Equal(f.working, other.working) && maps.Equal(f.possible, other.possible)
}

// word is what another member has said last.
type word struct {
	floorsOf
	at time.Time
}

// floor is the lowest priority that a shard may run: the highest that any other is working at, and the highest that any may
// work at once it has looked at what has changed.
type floor struct{ working, possible int32 }

func (f *floor) raise(by *floorsOf, except int32) {
	f.working = above(f.working, by.working, except)
	f.possible = above(f.possible, by.possible, except)
}

func newFloors() *floors {
	return &floors{working: make(map[int32]time.Time), others: make(map[string]word), listeners: make(map[chan struct{}]bool)}
}

// listen returns a channel that holds one value while a floor may have changed.
func (f *floors) listen() (changed <-chan struct{}, stop func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	listener := make(chan struct{}, 1)
	f.listeners[listener] = true
	return listener, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.listeners, listener)
	}
}

// announce tells the listeners that a floor may have changed. It never blocks.
func (f *floors) announce() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.announceLocked()
}

func (f *floors) announceLocked() {
	for listener := range f.listeners {
		select {
		case listener <- struct{}{}:
		default:
		}
	}
}

// works makes the floor of an own shard count until a time, or until rests if that is zero.
func (f *floors) works(shard int32, until time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.working[shard] = until
	f.announceLocked()
}

// rests makes an own shard have no floor.
func (f *floors) rests(shard int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.working, shard)
	f.announceLocked()
}

// isWorking reports whether the floor of an own shard counts.
func (f *floors) isWorking(shard int32) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	until, ok := f.working[shard]
	return ok && (until.IsZero() || time.Now().Before(until))
}

// heard notes what another member says.
func (f *floors) heard(member string, says floorsOf) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.others[member]
	f.others[member] = word{says, time.Now()}
	if before.at.IsZero() || !before.equal(&says) {
		f.announceLocked()
	}
}

// forget drops what a member has said.
func (f *floors) forget(member string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.others, member)
	f.announceLocked()
}

// knows reports whether all these members have spoken.
func (f *floors) knows(members []string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !slices.ContainsFunc(members, func(id string) bool { return f.others[id].at.IsZero() })
}

// highest returns the floor that other members' shards make, but for one.
func (f *floors) highest(except int32) floor {
	f.mu.Lock()
	defer f.mu.Unlock()
	highest := floor{pending.AnyPriority, pending.AnyPriority} // while no other has a floor
	for _, w := range f.others {
		if time.Since(w.at) < floorsCount {
			highest.raise(&w.floorsOf, except)
		}
	}
	return highest
}

// above returns the highest of the floor and the floors of all shards but one.
func above(floor int32, priorities map[int32]int32, except int32) int32 {
	for shard, priority := range priorities {
		if shard != except {
			floor = max(floor, priority)
		}
	}
	return floor
}

// floor returns the floor of a shard.
func (s *Service) floor(shard int32) floor {
	highest, own := s.floors.highest(shard), s.ownFloors()
	highest.raise(&own, shard)
	return highest
}

// ownFloors returns the floors of this member's shards. One that is draining, or whose driver does not get on, has none.
func (s *Service) ownFloors() floorsOf {
	own := floorsOf{make(map[int32]int32), make(map[int32]int32)}
	for _, sh := range s.owned() {
		if sh.isDraining() || !s.floors.isWorking(sh.number) {
			continue
		}
		sh.mu.Lock()
		if priority, ok := sh.queue.PriorityFloor(); ok {
			own.working[sh.number] = priority
		}
		if priority, ok := sh.queue.PossibleFloor(); ok {
			own.possible[sh.number] = priority
		}
		sh.mu.Unlock()
	}
	return own
}

func (sh *shard) isDraining() bool {
	select {
	case <-sh.draining:
		return true
	default:
		return false
	}
}

// WatchPriorityFloors streams the floors of this member's shards.
func (s *Service) WatchPriorityFloors(_ *queuev1.WatchPriorityFloorsRequest, stream queuev1.QueueService_WatchPriorityFloorsServer) error {
	ctx := stream.Context()
	changed, stop := s.floors.listen()
	defer stop()
	var said floorsOf
	var at time.Time
	for {
		own := s.ownFloors()
		if at.IsZero() || time.Since(at) >= floorsPeriod || !own.equal(&said) {
			if err := stream.Send(&queuev1.WatchPriorityFloorsResponse{
				Floors: floorsMessage(own.working), Possible: floorsMessage(own.possible),
			}); err != nil {
				return err
			}
			said, at = own, time.Now()
		}
		if !wait(ctx, floorsPause) {
			return ctx.Err()
		}
		quiet := time.NewTimer(time.Until(at.Add(floorsPeriod)))
		select {
		case <-ctx.Done():
		case <-changed:
		case <-quiet.C:
		}
		quiet.Stop()
	}
}

func floorsMessage(priorities map[int32]int32) (m []*queuev1.PriorityFloor) {
	for _, shard := range slices.Sorted(maps.Keys(priorities)) {
		m = append(m, &queuev1.PriorityFloor{Shard: shard, Priority: priorities[shard]})
	}
	return m
}

func floorsIn(m []*queuev1.PriorityFloor) map[int32]int32 {
	priorities := make(map[int32]int32, len(m))
	for _, floor := range m {
		priorities[floor.GetShard()] = floor.GetPriority()
	}
	return priorities
}

// followFloors hears the floors of the other live queue members, until ctx ends.
func (s *Service) followFloors(ctx context.Context) error {
	type call struct {
		address string
		cancel  context.CancelFunc
		done    chan struct{}
	}
	calls := make(map[string]call) // by member
	end := func(id string) {
		calls[id].cancel()
		<-calls[id].done
		delete(calls, id)
		s.floors.forget(id)
	}
	for {
		now, changed := s.directory.get()
		for id, c := range calls {
			if now.queueAt[id] != c.address {
				end(id)
			}
		}
		for _, id := range s.others(now) {
			if _, ok := calls[id]; ok {
				continue
			}
			ctx, cancel := context.WithCancel(ctx)
			c := call{now.queueAt[id], cancel, make(chan struct{})}
			calls[id] = c
			go func() {
				defer close(c.done)
				s.hearFloors(ctx, id, c.address)
			}()
		}
		select {
		case <-ctx.Done():
			for id := range calls {
				end(id)
			}
			return nil
		case <-changed:
		}
	}
}

// others returns the ids of the other live queue members.
func (s *Service) others(now view) []string {
	return slices.DeleteFunc(slices.Clone(now.queues), func(id string) bool { return id == s.cfg.ID })
}

// hearFloors calls one member again and again until ctx ends.
func (s *Service) hearFloors(ctx context.Context, member, address string) {
	pause := firstPause
	for ctx.Err() == nil {
		heard, err := s.hearFloorsOnce(ctx, member, address)
		if heard {
			pause = firstPause
		}
		if ctx.Err() == nil {
			s.log.Debug("floors of another member not heard, trying again", "member", member, "err", err)
		}
		wait(ctx, pause)
		pause = min(2*pause, floorsRetry)
	}
}

// hearFloorsOnce takes in one stream, until it ends or the member has been silent for so long that its word does not
// count any more.
func (s *Service) hearFloorsOnce(ctx context.Context, member, address string) (heard bool, err error) {
	conn, err := s.cfg.Clients.Conn(address)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(floorsCount, cancel)
	defer silence.Stop()
	stream, err := queuev1.NewQueueServiceClient(conn).WatchPriorityFloors(ctx, &queuev1.WatchPriorityFloorsRequest{Member: s.cfg.ID})
	if err != nil {
		return false, err
	}
	for {
		message, err := stream.Recv()
		if err != nil {
			return heard, err
		}
		heard = true
		silence.Reset(floorsCount)
		s.floors.heard(member, floorsOf{floorsIn(message.GetFloors()), floorsIn(message.GetPossible())})
	}
}

// awaitOthers waits until every other live queue member has said its floors, but no longer than a word counts, so that a
// new member does not begin with low priorities. It reports false if the driver shall end.
func (d *driver) awaitOthers(ctx context.Context) bool {
	limit := time.NewTimer(floorsCount)
	defer limit.Stop()
	for {
		now, changed := d.s.directory.get()
		if d.s.floors.knows(d.s.others(now)) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-d.sh.draining:
			return false
		case <-limit.C:
			return true
		case <-changed:
		case <-d.floors:
		}
	}
}

// giveWay waits while other shards work at higher priorities than the next pod's, but not for long, and no longer than the
// queue stays as it is. It reports false if the driver shall end.
func (d *driver) giveWay(ctx context.Context) bool {
	if d.outrankedSince.IsZero() {
		d.outrankedSince = time.Now()
		d.s.metrics.outranked()
	}
	again := time.NewTimer(floorsPeriod) // another's last word may have ceased to count, or a backoff may have ended
	defer again.Stop()
	for d.outranked() {
		if left := possible - time.Since(d.doubtedSince); !d.doubtedSince.IsZero() && left > 0 {
			again.Reset(left)
		}
		select {
		case <-ctx.Done():
			return false
		case <-d.sh.draining:
			return false
		case <-d.sh.woken:
			return true
		case <-d.placed():
			return true
		case <-again.C:
			return true
		case <-d.floors:
		}
	}
	return true
}

func (d *driver) outranked() bool {
	floor := d.floor(time.Now())
	d.sh.mu.Lock()
	defer d.sh.mu.Unlock()
	return d.sh.queue.Outranked(time.Now(), floor)
}

// floor returns the lowest priority that the shard may run now. It locks other shards.
func (d *driver) floor(now time.Time) int32 {
	floor := d.s.floor(d.sh.number)
	switch {
	case floor.possible <= floor.working:
		d.doubtedSince = time.Time{}
		return floor.working
	case d.doubtedSince.IsZero():
		d.doubtedSince = now
	}
	if now.Sub(d.doubtedSince) >= possible {
		return floor.working // who looks for so long looks all the time: nobody waits for that
	}
	return floor.possible
}

// released notes the end of a wait for other shards.
func (d *driver) released() {
	if d.outrankedSince.IsZero() {
		return
	}
	d.s.metrics.released(time.Since(d.outrankedSince))
	d.outrankedSince = time.Time{}
}
