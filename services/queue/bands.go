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
	bandsPause  = 5 * time.Millisecond    // between two messages of a stream of bands at least
	bandsPeriod = 500 * time.Millisecond  // between two of them at most
	bandsCount  = 1500 * time.Millisecond // how long the last word of another member counts
	bandsRetry  = time.Second             // between two calls of a member that does not answer, at most
	// stalled is how long a shard's band counts while its cycle does not get on.
	stalled = 5 * time.Second
)

// bands is what a member knows of the priority that each shard is working at. It is safe for concurrent use.
type bands struct {
	mu sync.Mutex
	// working are this member's shards with a driver that gets on, with the time until which their bands count; the zero
	// time if they count as long as they are here.
	working   map[int32]time.Time
	others    map[string]word
	listeners map[chan struct{}]bool
}

// word is what another member has said last.
type word struct {
	priorities map[int32]int32 // by shard; one without a band is not there
	at         time.Time
}

func newBands() *bands {
	return &bands{working: make(map[int32]time.Time), others: make(map[string]word), listeners: make(map[chan struct{}]bool)}
}

// listen returns a channel that holds one value while a band may have changed.
func (b *bands) listen() (changed <-chan struct{}, stop func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	listener := make(chan struct{}, 1)
	b.listeners[listener] = true
	return listener, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.listeners, listener)
	}
}

// announce tells the listeners that a band may have changed. It never blocks.
func (b *bands) announce() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.announceLocked()
}

func (b *bands) announceLocked() {
	for listener := range b.listeners {
		select {
		case listener <- struct{}{}:
		default:
		}
	}
}

// works makes the band of an own shard count until a time, or until rests if that is zero.
func (b *bands) works(shard int32, until time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.working[shard] = until
	b.announceLocked()
}

// rests makes an own shard have no band.
func (b *bands) rests(shard int32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.working, shard)
	b.announceLocked()
}

// isWorking reports whether the band of an own shard counts.
func (b *bands) isWorking(shard int32) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	until, ok := b.working[shard]
	return ok && (until.IsZero() || time.Now().Before(until))
}

// heard notes what another member says.
func (b *bands) heard(member string, priorities map[int32]int32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.others[member]
	b.others[member] = word{priorities, time.Now()}
	if before.at.IsZero() || !maps.Equal(before.priorities, priorities) {
		b.announceLocked()
	}
}

// forget drops what a member has said.
func (b *bands) forget(member string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.others, member)
	b.announceLocked()
}

// knows reports whether all these members have spoken.
func (b *bands) knows(members []string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !slices.ContainsFunc(members, func(id string) bool { return b.others[id].at.IsZero() })
}

// highest returns the highest band of other members' shards, but for one.
func (b *bands) highest(except int32) int32 {
	b.mu.Lock()
	defer b.mu.Unlock()
	highest := int32(pending.AnyPriority) // while no other has a band
	for _, w := range b.others {
		if time.Since(w.at) < bandsCount {
			highest = above(highest, w.priorities, except)
		}
	}
	return highest
}

// above returns the highest of the floor and the bands of all shards but one.
func above(floor int32, priorities map[int32]int32, except int32) int32 {
	for shard, priority := range priorities {
		if shard != except {
			floor = max(floor, priority)
		}
	}
	return floor
}

// floor returns the lowest priority that a shard may run: the highest that any other is working at.
func (s *Service) floor(shard int32) int32 {
	return above(s.bands.highest(shard), s.ownBands(), shard)
}

// ownBands returns the bands of this member's shards. One that is draining, or whose driver does not get on, has none.
func (s *Service) ownBands() map[int32]int32 {
	priorities := make(map[int32]int32)
	for _, sh := range s.owned() {
		if sh.isDraining() || !s.bands.isWorking(sh.number) {
			continue
		}
		sh.mu.Lock()
		if priority, ok := sh.queue.Band(); ok {
			priorities[sh.number] = priority
		}
		sh.mu.Unlock()
	}
	return priorities
}

func (sh *shard) isDraining() bool {
	select {
	case <-sh.draining:
		return true
	default:
		return false
	}
}

// WatchBands streams the bands of this member's shards.
func (s *Service) WatchBands(_ *queuev1.WatchBandsRequest, stream queuev1.QueueService_WatchBandsServer) error {
	ctx := stream.Context()
	changed, stop := s.bands.listen()
	defer stop()
	var said map[int32]int32
	var at time.Time
	for {
		own := s.ownBands()
		if at.IsZero() || time.Since(at) >= bandsPeriod || !maps.Equal(own, said) {
			if err := stream.Send(bandsMessage(own)); err != nil {
				return err
			}
			said, at = own, time.Now()
		}
		if !wait(ctx, bandsPause) {
			return ctx.Err()
		}
		quiet := time.NewTimer(time.Until(at.Add(bandsPeriod)))
		select {
		case <-ctx.Done():
		case <-changed:
		case <-quiet.C:
		}
		quiet.Stop()
	}
}

func bandsMessage(priorities map[int32]int32) *queuev1.WatchBandsResponse {
	m := &queuev1.WatchBandsResponse{}
	for _, shard := range slices.Sorted(maps.Keys(priorities)) {
		m.Bands = append(m.Bands, &queuev1.Band{Shard: shard, Priority: priorities[shard]})
	}
	return m
}

// followBands hears the bands of the other live queue members, until ctx ends.
func (s *Service) followBands(ctx context.Context) error {
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
		s.bands.forget(id)
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
				s.hearBands(ctx, id, c.address)
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

// hearBands calls one member again and again until ctx ends.
func (s *Service) hearBands(ctx context.Context, member, address string) {
	pause := firstPause
	for ctx.Err() == nil {
		heard, err := s.hearBandsOnce(ctx, member, address)
		if heard {
			pause = firstPause
		}
		if ctx.Err() == nil {
			s.log.Debug("bands of another member not heard, trying again", "member", member, "err", err)
		}
		wait(ctx, pause)
		pause = min(2*pause, bandsRetry)
	}
}

// hearBandsOnce takes in one stream, until it ends or the member has been silent for so long that its word does not
// count any more.
func (s *Service) hearBandsOnce(ctx context.Context, member, address string) (heard bool, err error) {
	conn, err := s.cfg.Clients.Conn(address)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(bandsCount, cancel)
	defer silence.Stop()
	stream, err := queuev1.NewQueueServiceClient(conn).WatchBands(ctx, &queuev1.WatchBandsRequest{Member: s.cfg.ID})
	if err != nil {
		return false, err
	}
	for {
		message, err := stream.Recv()
		if err != nil {
			return heard, err
		}
		heard = true
		silence.Reset(bandsCount)
		priorities := make(map[int32]int32, len(message.GetBands()))
		for _, band := range message.GetBands() {
			priorities[band.GetShard()] = band.GetPriority()
		}
		s.bands.heard(member, priorities)
	}
}

// awaitOthers waits until every other live queue member has said its bands, but no longer than a word counts, so that a
// new member does not begin with low priorities. It reports false if the driver shall end.
func (d *driver) awaitOthers(ctx context.Context) bool {
	limit := time.NewTimer(bandsCount)
	defer limit.Stop()
	for {
		now, changed := d.s.directory.get()
		if d.s.bands.knows(d.s.others(now)) {
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
		case <-d.bands:
		}
	}
}

// giveWay waits while other shards work at higher priorities than the next pod's, but not for long, and no longer than the
// queue stays as it is. It reports false if the driver shall end.
func (d *driver) giveWay(ctx context.Context) bool {
	if d.outrankedSince.IsZero() {
		d.outrankedSince = time.Now()
		d.s.metrics.bandWaits.Inc()
	}
	again := time.NewTimer(bandsPeriod) // another's last word may have ceased to count, or a backoff may have ended
	defer again.Stop()
	for d.outranked() {
		select {
		case <-ctx.Done():
			return false
		case <-d.sh.draining:
			return false
		case <-d.sh.woken:
			return true
		case <-again.C:
			return true
		case <-d.bands:
		}
	}
	return true
}

func (d *driver) outranked() bool {
	floor := d.s.floor(d.sh.number)
	d.sh.mu.Lock()
	defer d.sh.mu.Unlock()
	return d.sh.queue.Outranked(time.Now(), floor)
}

// released notes the end of a wait for other shards.
func (d *driver) released() {
	if d.outrankedSince.IsZero() {
		return
	}
	d.s.metrics.bandWait.Observe(time.Since(d.outrankedSince).Seconds())
	d.outrankedSince = time.Time{}
}
