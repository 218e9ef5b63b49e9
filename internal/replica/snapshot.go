package replica

import (
	"fmt"
	"sync"

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
	version cluster.Version
	digest  uint64
	parts   [][][]byte

	users int // guarded by sharedSnapshot.mu
}

// sharedSnapshot lets followers that want a snapshot at about the same time, as all do when an epoch begins, share
// one: encoding holds up the ledger and takes memory. It is dropped when nobody sends it any more.
type sharedSnapshot struct {
	mu      sync.Mutex // held while a snapshot is encoded, so that others wait for it
	current *snapshot
}

// acquire returns a snapshot from which a follower can go on in t. The caller releases it.
func (s *sharedSnapshot) acquire(t *term, from Snapshotter) (*snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.current; c != nil && c.version.Epoch == t.epoch && t.holds(c.version.Seq) {
		c.users++
		return c, nil
	}
	var c *snapshot
	var err error
	from.Snapshot(func(st *cluster.State) { c, err = encodeSnapshot(st) })
	if err != nil {
		return nil, err
	}
	c.users = 1
	s.current = c
	return c, nil
}

func (s *sharedSnapshot) release(c *snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.users--; c.users == 0 && s.current == c {
		s.current = nil
	}
}

func encodeSnapshot(st *cluster.State) (*snapshot, error) {
	c := &snapshot{version: st.Version(), digest: st.Digest()}
	var part [][]byte
	size := 0
	for d := range st.Snapshot() {
		b, err := wire.Encode(d)
		if err != nil {
			return nil, fmt.Errorf("take snapshot at %v: %w", c.version, err)
		}
		if len(part) > 0 && (size+len(b) > maxMessageBytes || len(part) == maxMessageDeltas) {
			c.parts = append(c.parts, part)
			part, size = nil, 0
		}
		part = append(part, b)
		size += len(b)
	}
	c.parts = append(c.parts, part) // there is always one, be it empty
	return c, nil
}
