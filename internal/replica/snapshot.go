package replica

import (
	"fmt"
	"sync"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/wire"
)

// Snapshotter is the owner of the ledger. Snapshot calls encode once, while it holds the lock under which it applies
// and appends deltas, and returns when encode has.
type Snapshotter interface {
	Snapshot(encode func(st *cluster.State))
}

// snapshot is a whole ledger, encoded: the parts are messages' worth of deltas.
type snapshot struct {
	epoch cluster.Epoch
	made  chan struct{} // closed when what follows is set
	err   error

	version cluster.Version
	digest  uint64
	parts   [][][]byte

	// Guarded by sharedSnapshot.mu:
	users int
	old   bool        // it has been there for as long as one stays without users
	ages  *time.Timer // makes it old
}

// sharedSnapshot lets followers that want a snapshot at about the same time, as all do when an epoch begins, share
// one: encoding holds up the ledger and takes memory, about as much as the ledger itself. It stays for a while after it is made, even when
// nobody sends it any more: else who begins to follow and leaves, again and again, would have one made each time.
type sharedSnapshot struct {
	keep time.Duration // how long it stays

	mu      sync.Mutex
	current *snapshot
}

// acquire returns a snapshot, made or in the making, from which a follower can go on in t. If it says so, the caller is to make
// it. The caller releases it.
func (s *sharedSnapshot) acquire(t *term) (c *snapshot, toMake bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.current; c != nil && c.usable(t) {
		c.users++
		return c, false
	}
	if replaced := s.current; replaced != nil && replaced.ages != nil {
		replaced.ages.Stop() // it holds the parts, which nobody gets any more
	}
	s.current = &snapshot{epoch: t.epoch, made: make(chan struct{}), users: 1}
	return s.current, true
}

// usable reports whether a follower that gets the snapshot now can go on from there, once it has it.
func (c *snapshot) usable(t *term) bool {
	select {
	case <-c.made:
		return c.err == nil && c.version.Epoch == t.epoch && t.keeps(c.version.Seq)
	default:
		return c.epoch == t.epoch
	}
}

func (s *sharedSnapshot) release(c *snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.users--
	s.drop(c)
}

// drop gives up a snapshot that nobody uses and that has been there for its time. The caller holds mu.
func (s *sharedSnapshot) drop(c *snapshot) {
	if c.users == 0 && c.old && s.current == c {
		s.current = nil
	}
}

// make takes a snapshot, which may be dropped when it has been there for a while.
func (s *sharedSnapshot) make(c *snapshot, from Snapshotter) {
	from.Snapshot(func(st *cluster.State) { c.err = c.encode(st) })
	close(c.made)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != c {
		return
	}
	c.ages = time.AfterFunc(s.keep, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		c.old = true
		s.drop(c)
	})
}

func (c *snapshot) encode(st *cluster.State) error {
	c.version, c.digest = st.Version(), st.Digest()
	var part [][]byte
	size := 0
	for d := range st.Snapshot() {
		b, err := wire.Encode(d)
		if err != nil {
			return fmt.Errorf("take snapshot at %v: %w", c.version, err)
		}
		if len(part) > 0 && (size+len(b) > maxMessageBytes || len(part) == maxMessageDeltas) {
			c.parts = append(c.parts, part)
			part, size = nil, 0
		}
		part = append(part, b)
		size += len(b)
	}
	c.parts = append(c.parts, part) // there is always one, be it empty
	return nil
}
