package yoda

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
)

// drawFeatures draws features that a node may have, or, if any is set, any that are not negative.
func drawFeatures(t *rapid.T, any bool, name string) (of Features) {
	most := int64(maxAmount)
	if any {
		most = math.MaxInt64
	}
	for f := range Feature(NumFeatures) {
		limit := most
		if !f.Relative() && !any {
			limit = 100
		}
		of[f] = rapid.OneOf(rapid.Int64Range(0, limit), rapid.Int64Range(0, 100), rapid.Just(limit)).Draw(t, name+f.String())
	}
	return of
}

// TestScoresAreThoseOfFeaturesThatAreNormalizedOneByOne: who gives each feature as a score of its own, normalizes those that are relative in proportion to the highest (value*100/highest, in whole numbers, 0 if the highest is 0), and adds them up by
// weight, gets 12 times the score, the weights' sum, and less than 12 more: the score is that sum divided by 12, rounded down.
func TestScoresAreThoseOfFeaturesThatAreNormalizedOneByOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := make([]Features, rapid.IntRange(1, 5).Draw(t, "nodes"))
		var most Maxima
		for i := range nodes {
			nodes[i] = drawFeatures(t, false, "")
			most.Add(nodes[i])
		}
		for _, of := range nodes {
			sum, weight := int64(0), int64(0)
			for f := range Feature(NumFeatures) {
				normalized := of[f]
				if f.Relative() {
					highest := int64(0)
					for i := range nodes {
						highest = max(highest, nodes[i][f])
					}
					if highest > 0 {
						normalized = of[f] * 100 / highest
					}
				}
				sum += f.Weight() * normalized
				weight += f.Weight()
			}
			if weight != 12 {
				t.Fatalf("the weights are %d in sum", weight)
			}
			if got := Score(of, most); sum-12*got < 0 || sum-12*got >= 12 {
				t.Fatalf("the score is %d, and the sum of the features %d: want 12 times as much, and less than 12 more", got, sum)
			}
		}
	})
}

func TestScoresAreWithinBoundsAndMoreIsNeverWorse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		of, most := drawFeatures(t, true, ""), Maxima(drawFeatures(t, true, "most "))
		got := Score(of, most)
		if got < 0 || got > 100 {
			t.Fatalf("the score is %d", got)
		}
		more := of
		f := Feature(rapid.IntRange(0, NumFeatures-1).Draw(t, "feature"))
		more[f] = rapid.Int64Range(of[f], math.MaxInt64).Draw(t, "more")
		if with := Score(more, most); with < got {
			t.Fatalf("with more %v the score is %d, and was %d", f, with, got)
		}
		if of == (Features{}) && got != 0 {
			t.Fatalf("nothing has score %d", got)
		}
		lower := most
		lower[f] = rapid.Int64Range(0, most[f]).Draw(t, "lower")
		if with := Score(of, lower); with < got {
			t.Fatalf("beside nodes with less %v the score is %d, and was %d", f, with, got)
		}
	})
	full := Features{math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64}
	if got := Score(full, Maxima(full)); got != 100 {
		t.Errorf("the most of everything has score %d", got)
	}
	if got := Score(Features{math.MinInt64, -1}, Maxima{-1, -1}); got != 0 {
		t.Errorf("less than nothing has score %d", got)
	}
}

func TestScoresAreMeansByWeight(t *testing.T) {
	most := Maxima{1000, 1000, 1000, 1000, 1000, 1000, 7, 7}
	for _, test := range []struct {
		of   Features
		want int64
	}{
		{Features{1000, 1000, 1000, 1000, 1000, 1000, 100, 100}, 100},
		{Features{500, 500, 500, 500, 500, 500, 50, 50}, 50},
		{Features{Bandwidth: 1000}, 8}, {Features{Clock: 1000}, 8}, {Features{Core: 1000}, 8}, {Features{Power: 1000}, 8}, {Features{TotalMemory: 1000}, 8},
		{Features{FreeMemory: 1000}, 16}, {Features{Allocate: 100}, 25}, {Features{Actual: 100}, 16},
		{Features{Allocate: 7}, 1}, // a percentage, whatever others have
	} {
		if got := Score(test.of, most); got != test.want {
			t.Errorf("%v has score %d, want %d", test.of, got, test.want)
		}
	}
	names := ""
	for f := range Feature(NumFeatures) {
		names += f.String() + " "
	}
	if names != "Bandwidth Clock Core Power FreeMemory TotalMemory Allocate Actual " {
		t.Errorf("the features are called %s", names)
	}
}

func TestFeaturesAreMeansOverTheChosenCardsAndSharesOfHealthyMemory(t *testing.T) {
	b := bookOf(
		with(titan("a", 0), func(c *v1alpha1.Card) { c.TotalMemoryMiB, c.FreeMemoryMiB, c.CoreMHz = 1000, 900, 1000 }),
		with(titan("b", 1), func(c *v1alpha1.Card) { c.TotalMemoryMiB, c.FreeMemoryMiB, c.CoreMHz = 3000, 1101, 2001 }),
		with(titan("c", 2), func(c *v1alpha1.Card) { c.Health = v1alpha1.Unhealthy }),
	)
	b.SetPod("p", "n", Grant{Cards: []string{"GPU-a"}, MemoryMiB: 500})
	b.SetPod("q", "n", Grant{Cards: []string{"GPU-c"}})
	v := b.View("n")
	chosen := wantChosen(t, b, &Request{Number: 2, MemoryMiB: 1, Share: true}, "a b")
	want := Features{15760, 5705, 1500, 250, (400 + 1101) / 2, 2000, 87, 50} // of a, 500 of 900 MiB were promised since; 3500 of 4000 MiB are not promised, and 2001 free
	if got := FeaturesOf(v, chosen); got != want {
		t.Errorf("%v, want %v", got, want)
	}
}
