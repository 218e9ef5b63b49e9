package pending

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestHighestPriorityIsThatOfAPodThatIsThere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p priorities
		var there []int32
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(there) > 0 && rapid.Bool().Draw(t, "remove") {
				k := rapid.IntRange(0, len(there)-1).Draw(t, "which")
				p.remove(there[k])
				there = slices.Delete(there, k, k+1)
			} else {
				there = append(there, rapid.Int32Range(-4, 4).Draw(t, "priority"))
				p.add(there[len(there)-1])
			}
			if rapid.Bool().Draw(t, "ask") {
				got, ok := p.highest()
				if ok != (len(there) > 0) || ok && got != slices.Max(there) {
					t.Fatalf("of %v the highest is %d, %v", there, got, ok)
				}
			}
		}
	})
}
