package clustertest

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// rounds is how often CheckUntil draws anew: what half of the rounds meet is missed by one run in a million.
const rounds = 20

// CheckUntil runs rapid.Check again, with other draws, until nothing that the property should have met is missing:
// what is rarer than one in a hundred cases must not fail a test by chance. Whatever is missing at the end fails it.
func CheckUntil(t *testing.T, missing func() []string, property func(*rapid.T)) {
	t.Helper()
	for range rounds {
		rapid.Check(t, property)
		if t.Failed() {
			return
		}
		if len(missing()) == 0 {
			return
		}
	}
	for _, what := range missing() {
		t.Errorf("never met, in %d rounds: %s", rounds, what)
	}
}

// Unseen returns, for CheckUntil, which of some things have not been counted yet.
func Unseen(seen map[string]int, of ...string) func() []string {
	return func() []string {
		return slices.DeleteFunc(slices.Clone(of), func(what string) bool { return seen[what] > 0 })
	}
}
