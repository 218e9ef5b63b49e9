package main

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// steps draws the first steps of a plan of all kinds.
func steps(seed uint64, n int) []Step {
	plan := NewPlan(seed, leaseTTL, nil)
	var out []Step
	for range n {
		out = append(out, plan.Next())
	}
	return out
}

func TestEqualSeedsDrawEqualFaults(t *testing.T) {
	if diff := cmp.Diff(steps(3, 100), steps(3, 100)); diff != "" {
		t.Errorf("two plans of one seed differ:\n%s", diff)
	}
	if cmp.Equal(steps(3, 10), steps(4, 10)) {
		t.Error("two seeds draw the same")
	}
}

func TestEachKindHasItsTurn(t *testing.T) {
	all := kinds(leaseTTL)
	counts := map[Kind]int{}
	faults := 0
	for _, s := range steps(5, 3*len(all)) {
		for _, f := range s.Faults {
			counts[f.Kind]++
			faults++
		}
	}
	for _, k := range all {
		if n := counts[k.kind]; n < faults/len(all) || n > faults/len(all)+1 {
			t.Errorf("%s came %d times among %d faults of %d kinds", k.kind, n, faults, len(all))
		}
	}
}

func TestFaultsOfAStepAreNotOfOneGroup(t *testing.T) {
	group := map[Kind]string{}
	for _, k := range kinds(leaseTTL) {
		group[k.kind] = k.group
	}
	pairs := 0
	for _, s := range steps(6, 300) {
		if len(s.Faults) < 2 {
			continue
		}
		pairs++
		if a, b := s.Faults[0], s.Faults[1]; group[a.Kind] == group[b.Kind] {
			t.Errorf("%s and %s come together", a.Kind, b.Kind)
		}
		if slices.ContainsFunc(s.Faults, func(f Fault) bool { return group[f.Kind] == alone }) {
			t.Errorf("%v: one of them is to be done alone", s.Faults)
		}
	}
	if pairs < 30 {
		t.Errorf("%d of 300 steps have two faults, want about a third", pairs)
	}
}

func TestAPlanOfSomeKindsDrawsNoOthers(t *testing.T) {
	plan := NewPlan(1, leaseTTL, []Kind{leaseRevoke, apiLate})
	seen := map[Kind]bool{}
	for range 20 {
		for _, f := range plan.Next().Faults {
			seen[f.Kind] = true
		}
	}
	if diff := cmp.Diff(map[Kind]bool{leaseRevoke: true, apiLate: true}, seen); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
	if _, err := readKinds("restart etcd,eat etcd"); err == nil {
		t.Error("a kind that there is not was taken")
	}
}
