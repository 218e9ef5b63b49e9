package replica

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
)

func TestRingKeepsTheNewestDeltasWithinItsLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 200).Draw(t, "limit")
		limitBytes := rapid.IntRange(1, 1000).Draw(t, "limit of bytes")
		base := cluster.Seq(rapid.IntRange(0, 1000).Draw(t, "base"))
		r := newRing(limit, limitBytes, base, 1_000_000)
		digests := map[cluster.Seq]uint64{base: 1_000_000}
		sizes := map[cluster.Seq]int{}
		for range rapid.IntRange(0, 500).Draw(t, "deltas") {
			size := rapid.IntRange(0, 100).Draw(t, "size")
			seq := r.head + 1
			r.push(make([]byte, size), uint64(seq), false)
			digests[seq], sizes[seq] = uint64(seq), size
			if r.head != seq {
				t.Fatalf("head is %d, want %d", r.head, seq)
			}
		}
		kept, bytes := int(r.head-r.base), 0
		for s := r.base + 1; s <= r.head; s++ {
			bytes += sizes[s]
			if got := len(r.at(s).delta); got != sizes[s] {
				t.Fatalf("delta %d has %d bytes, want %d", s, got, sizes[s])
			}
		}
		if bytes != r.bytes || kept > limit || kept > 1 && bytes > limitBytes {
			t.Fatalf("%d deltas of %d bytes (counted %d) are kept, limits are %d and %d", kept, bytes, r.bytes, limit, limitBytes)
		}
		if r.base > base && kept < limit && bytes+sizes[r.base] <= limitBytes {
			t.Fatalf("delta %d was dropped without need", r.base)
		}
		for s := r.base; s <= r.head; s++ {
			if !r.holds(s) || r.digest(s) != digests[s] {
				t.Fatalf("digest at %d is %d, want %d", s, r.digest(s), digests[s])
			}
		}
		if r.holds(r.base-1) || r.holds(r.head+1) {
			t.Fatal("the ring holds what it does not")
		}
		if got := len(r.after(r.base)); got != kept {
			t.Fatalf("%d deltas after the base, want %d", got, kept)
		}
	})
}

func TestAMessageIsOfWholeTransactions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRing(1<<16, 1<<30, 0, 0)
		ends := []cluster.Seq{0}
		sizes := []int{0} // by seq
		for range rapid.IntRange(1, 12).Draw(t, "transactions") {
			deltas := rapid.SampledFrom([]int{1, 2, 3, 1000, 5000}).Draw(t, "deltas")
			size := rapid.SampledFrom([]int{1, 100, 500}).Draw(t, "size")
			delta := make([]byte, size)
			for k := range deltas {
				r.push(delta, 0, k < deltas-1)
				sizes = append(sizes, size)
			}
			ends = append(ends, r.head)
		}
		for k := 0; k < len(ends)-1; {
			run := r.after(ends[k])
			// What fits: one transaction in any case, and more of them as long as they fit.
			next, bytes := k, 0
			for next+1 < len(ends) {
				for s := ends[next] + 1; s <= ends[next+1]; s++ {
					bytes += sizes[s]
				}
				if next > k && (bytes > maxMessageBytes || int(ends[next+1]-ends[k]) > maxMessageDeltas) {
					break
				}
				next++
			}
			if want := int(ends[next] - ends[k]); len(run) != want {
				t.Fatalf("behind %d come %d deltas, want %d", ends[k], len(run), want)
			}
			k = next
		}
		if got := r.after(r.head); len(got) != 0 {
			t.Fatalf("behind the head come %d deltas", len(got))
		}
	})
}
