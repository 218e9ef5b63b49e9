package pending

import (
	"testing"

	"pgregory.net/rapid"
)

// TestATableIsGoneThroughInPartsWhileItChanges compares a table with a map, and walks with what they have to meet.
func TestATableIsGoneThroughInPartsWhileItChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var got table[int, int]
		want, yet := make(map[int]int), make(map[int]bool)
		keys := rapid.IntRange(0, 20)
		check := func() {
			if got.len() != len(want) {
				t.Fatalf("%d rows, want %d", got.len(), len(want))
			}
			for k := range 21 {
				if got.get(k) != want[k] {
					t.Fatalf("%d: %d, want %d", k, got.get(k), want[k])
				}
			}
			if _, ok := want[got.last()/100]; ok != (len(want) > 0) {
				t.Fatalf("the last of %d rows is %d", len(want), got.last())
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { check() },
			"put": func(t *rapid.T) {
				k := keys.Draw(t, "key")
				want[k], yet[k] = 100*k+1+rapid.IntRange(0, 9).Draw(t, "value"), true
				got.put(k, want[k])
			},
			"remove": func(t *rapid.T) {
				k := keys.Draw(t, "key")
				got.remove(k)
				delete(want, k)
				delete(yet, k)
			},
			"begin": func(*rapid.T) {
				got.begin()
				for k := range want {
					yet[k] = true
				}
			},
			"next": func(t *rapid.T) {
				value, ok := got.next()
				if ok != (len(yet) > 0) || ok && (!yet[value/100] || want[value/100] != value) {
					t.Fatalf("the walk meets %d, %v; %v are left of %v", value, ok, yet, want)
				}
				delete(yet, value/100)
			},
		})
	})
}
