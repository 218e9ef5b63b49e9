package queue

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

func TestPercentageBoundsTheNodesToScoreButNotBelowAHundred(t *testing.T) {
	for _, c := range []struct {
		nodes      int
		percentage int32
		want       int
	}{
		{5000, 0, 5000}, {5000, 100, 5000}, {5000, 120, 5000}, {5000, 10, 500}, {5000, 1, 100}, {999, 33, 329}, {80, 50, 100},
		{1 << 26, 99, 66437775},
	} {
		if got := sampleSize(c.nodes, c.percentage); got != c.want {
			t.Errorf("sampleSize(%d, %d) = %d, want %d", c.nodes, c.percentage, got, c.want)
		}
	}
}

func TestSampleHasEnoughFeasibleNodesForEveryPodOfTheBatch(t *testing.T) {
	w := signatureWork{percentage: 10, Feasibility: engine.Feasibility{
		Nodes: 2000, FeasibleCount: 300, Eligible: slices.Repeat(cluster.Bitmap{^uint64(0)}, 8),
	}}
	got, next := w.sample(500, 5)
	// 200 are to be scored, up to 4 are filled by the pods ahead, and 212 of the 512 may be infeasible.
	if n := got.Count(); n != 416 || next != 500+416-512 {
		t.Errorf("%d nodes, the next sample from %d on; want 416 and 404", n, next)
	}
}

func TestSampleIsTheNextNodesRound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		set := cluster.NewBitmap(64 * rapid.IntRange(0, 4).Draw(t, "words"))
		for w := range set {
			set[w] = rapid.Uint64().Draw(t, "word") & rapid.SampledFrom([]uint64{0, 0xff << 30, ^uint64(0)}).Draw(t, "mask")
		}
		size := cluster.NodeIndex(64 * len(set))
		start := rapid.Map(rapid.Int32Range(0, 300), func(i int32) cluster.NodeIndex { return cluster.NodeIndex(i) }).Draw(t, "start")
		n := rapid.IntRange(1, 260).Draw(t, "n")
		var want []cluster.NodeIndex
		next := start
		for k := range size {
			if i := (start + k) % size; set.Has(i) && len(want) < n {
				want = append(want, i)
			}
		}
		if set.Count() > n {
			next = want[n-1] + 1
		}
		got, at := sample(set, start, n)
		slices.Sort(want)
		var kept []cluster.NodeIndex
		for i := range size {
			if got.Has(i) {
				kept = append(kept, i)
			}
		}
		if !slices.Equal(kept, want) || at != next {
			t.Fatalf("sample of %v from %d: %v, then from %d; want %v, then from %d", n, start, kept, at, want, next)
		}
	})
}
