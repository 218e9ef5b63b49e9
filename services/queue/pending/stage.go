package pending

import (
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// stage does the next steps of a look, until it is enough or, which it reports, done. It takes at least one, and each is short.
type stage func(now time.Time, st *cluster.State, enough func() bool) (done bool)

// stages are done one after the other.
type stages []stage

func (s *stages) add(next stage) { *s = append(*s, next) }

func (s *stages) run(now time.Time, st *cluster.State, enough func() bool) (done bool) {
	for ; len(*s) > 0; *s = (*s)[1:] {
		if !(*s)[0](now, st, enough) {
			return false
		}
	}
	return true
}

// each goes through a table, one value a step.
func each[K comparable, V any](t *table[K, V], do func(now time.Time, st *cluster.State, value V)) stage {
	begun := false
	return func(now time.Time, st *cluster.State, enough func() bool) bool {
		if !begun {
			t.begin()
			begun = true
		}
		for value, ok := t.next(); ok; value, ok = t.next() {
			do(now, st, value)
			if enough() {
				return false
			}
		}
		return true
	}
}

// through goes through a table, with a stage for each value.
func through[K comparable, V any](t *table[K, V], of func(V) stage) stage {
	begun := false
	var at stage
	return func(now time.Time, st *cluster.State, enough func() bool) bool {
		if !begun {
			t.begin()
			begun = true
		}
		for {
			if at == nil {
				value, ok := t.next()
				if !ok {
					return true
				}
				at = of(value)
			}
			if !at(now, st, enough) {
				return false
			}
			if at = nil; enough() {
				return false
			}
		}
	}
}
