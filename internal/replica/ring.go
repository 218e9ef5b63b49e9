package replica

import "github.com/berth-scheduler/berth/internal/cluster"

// Limits of one message of the log. A transaction that is larger travels alone.
const (
	maxMessageBytes  = 1 << 20
	maxMessageDeltas = 4096
)

// ring keeps the most recent deltas of an epoch, encoded, at most so many and at most so many bytes of them.
type ring struct {
	limit, limitBytes int

	entries []entry // of seqs base+1 to head; that of seq s is at s modulo the length
	base    cluster.Seq
	head    cluster.Seq
	bytes   int
	pushed  int // bytes of all deltas there were

	baseDigest uint64 // of the ledger at base
}

// entry is a delta and the digest of the ledger after it.
type entry struct {
	delta  []byte
	digest uint64
	pushed int  // bytes of all deltas up to this one
	more   bool // the next delta is of the same transaction
}

func newRing(limit, limitBytes int, from cluster.Seq, digest uint64) *ring {
	return &ring{limit: limit, limitBytes: limitBytes, base: from, head: from, baseDigest: digest}
}

// push appends the delta that leads to seq head+1, and drops old ones for it. The newest is always kept. If more deltas of its
// transaction follow, nobody reads the ring before all have been pushed.
func (r *ring) push(delta []byte, digest uint64, more bool) {
	for r.base < r.head && (int(r.head-r.base) >= r.limit || r.bytes+len(delta) > r.limitBytes) {
		r.base++
		oldest := r.at(r.base)
		r.bytes -= len(oldest.delta)
		r.baseDigest = oldest.digest
		*oldest = entry{}
	}
	if int(r.head-r.base) == len(r.entries) {
		r.grow()
	}
	r.head++
	r.pushed += len(delta)
	*r.at(r.head) = entry{delta, digest, r.pushed, more}
	r.bytes += len(delta)
}

func (r *ring) at(s cluster.Seq) *entry { return &r.entries[int(s)%len(r.entries)] }

// grow makes room for more entries: a ring that is never full needs little memory.
func (r *ring) grow() {
	old := *r
	r.entries = make([]entry, min(max(2*len(old.entries), 64), r.limit))
	for s := old.base + 1; s <= old.head; s++ {
		*r.at(s) = *old.at(s)
	}
}

// holds reports whether everything after seq s is kept.
func (r *ring) holds(s cluster.Seq) bool { return r.base <= s && s <= r.head }

// keeps reports whether everything after seq s is kept, and will be until about as much has come again as the ring has room for in half.
func (r *ring) keeps(s cluster.Seq) bool {
	if !r.holds(s) {
		return false
	}
	before := r.pushed - r.bytes
	if s > r.base {
		before = r.at(s).pushed
	}
	return int(r.head-s) <= r.limit/2 && r.pushed-before <= r.limitBytes/2
}

// digest returns the digest of the ledger at seq s, which the ring must hold.
func (r *ring) digest(s cluster.Seq) uint64 {
	if s == r.base {
		return r.baseDigest
	}
	return r.at(s).digest
}

// after returns the deltas that follow seq s, which the ring must hold: as many whole transactions as fit into one message, and one at
// least.
func (r *ring) after(s cluster.Seq) [][]byte {
	var run [][]byte
	size, whole := 0, 0 // so many deltas are of whole transactions
	for s++; s <= r.head; s++ {
		next := r.at(s)
		if size += len(next.delta); whole > 0 && (size > maxMessageBytes || len(run) >= maxMessageDeltas) {
			break
		}
		run = append(run, next.delta)
		if !next.more {
			whole = len(run)
		}
	}
	return run[:whole]
}
