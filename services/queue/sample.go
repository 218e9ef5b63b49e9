package queue

import (
	"math/bits"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// leastSample is how many feasible nodes are scored in any case, as in kube-scheduler.
const leastSample = 100

// sampleSize returns how many feasible nodes are enough to score, of so many nodes, at percentageOfNodesToScore. Where
// that is 0, Berth scores all, which kube-scheduler does not.
func sampleSize(nodes int, percentage int32) int {
	if percentage <= 0 || percentage >= 100 {
		return nodes
	}
	return max(leastSample, int(int64(nodes)*int64(percentage)/100))
}

// sample returns the nodes to score for the signature, and where the next sample starts. It is large enough that each pod of
// a batch, whatever nodes those ahead of it fill, has as many feasible nodes as the percentage says: the eligible nodes
// do not tell which of them are infeasible.
func (w *signatureWork) sample(start cluster.NodeIndex, pods int) (cluster.Bitmap, cluster.NodeIndex) {
	excluded := max(w.Eligible.Count()-int(w.FeasibleCount), 0)
	return sample(w.Eligible, start, sampleSize(int(w.Nodes), w.percentage)+pods-1+excluded)
}

// sample returns the first n nodes of a set, from the index start on and round, and the index behind the last of them,
// where the next sample starts. A set of no more than n nodes is returned as it is, and start with it.
func sample(set cluster.Bitmap, start cluster.NodeIndex, n int) (cluster.Bitmap, cluster.NodeIndex) {
	if set.Count() <= n || n <= 0 {
		return set, start
	}
	start %= cluster.NodeIndex(64 * len(set))
	first, below := int(start/64), uint64(1)<<(start%64)-1 // the bits of the first word that come last
	kept := make(cluster.Bitmap, len(set))
	for k := 0; ; k++ { // ends: the set has more than n nodes
		w := (first + k) % len(set)
		word := set[w]
		switch k {
		case 0:
			word &^= below
		case len(set):
			word &= below
		}
		for ; word != 0; word &= word - 1 {
			i := cluster.NodeIndex(64*w + bits.TrailingZeros64(word))
			kept.Set(i)
			if n--; n == 0 {
				return kept, i + 1
			}
		}
	}
}
