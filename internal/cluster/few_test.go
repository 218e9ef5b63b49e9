package cluster

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestASetIsTheSameWhetherItHasFewElementsOrMany(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	sets, want := make(fews[string, int], 1), make(map[int]bool)
	var clone fews[string, int]
	var cloned []int
	for k := range 4000 {
		x := random.IntN(4 + 60*(k/500%2)) // it grows, and shrinks again
		if random.IntN(2) == 0 || x >= 4+60*((k/500+1)%2) && k%1000 > 700 {
			sets.add("s", x)
			want[x] = true
		} else {
			sets.remove("s", x)
			delete(want, x)
		}
		if k%1000 == 400 {
			for x := range 64 {
				sets.remove("s", x)
			}
			clear(want)
		}
		if got := slices.Sorted(slices.Values(sets.of("s"))); !slices.Equal(got, slices.Sorted(maps.Keys(want))) {
			t.Fatalf("after %d changes: %v, want %v", k, got, want)
		}
		if (sets["s"] != nil) != (len(want) > 0) {
			t.Fatalf("after %d changes: an empty set is kept, or one that is not is missing: %v", k, want)
		}
		if k%100 == 50 {
			if got := slices.Sorted(slices.Values(clone.of("s"))); !slices.Equal(got, cloned) {
				t.Fatalf("a clone of %v is %v after changes of the original", cloned, got)
			}
			clone, cloned = sets.clone(), slices.Sorted(maps.Keys(want))
		}
	}
}
