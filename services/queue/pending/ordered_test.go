package pending

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// What is added and taken out at random is in the order of its ranks, wherever in that order it comes and goes.
func TestOrderedPodsAreInOrder(t *testing.T) {
	for name, pattern := range map[string]struct {
		grow  float64                               // of the steps, how many add a pod
		leave func(random *rand.Rand, many int) int // which one goes
	}{
		"grows and shrinks anywhere": {0.5, (*rand.Rand).IntN},
		"grows anywhere":             {0.9, (*rand.Rand).IntN},
		"the first leaves":           {0.6, func(*rand.Rand, int) int { return 0 }},
		"the last leaves":            {0.6, func(_ *rand.Rand, many int) int { return many - 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(7, 7))
			o := orderedPods{rankOf: inLine}
			var model []*entry
			add := func() {
				e := &entry{arrival: random.Int64()}
				e.pod.Priority = random.Int32N(3)
				at, _ := slices.BinarySearchFunc(model, e, func(a, b *entry) int {
					ra, rb := inLine(a), inLine(b)
					return ra.compare(&rb)
				})
				model = slices.Insert(model, at, e)
				o.add(e)
			}
			take := func(at int) {
				e := model[at]
				e.pod.Priority += 9 // it goes by what it was when it was added
				o.remove(e)
				model = slices.Delete(model, at, at+1)
			}
			for step := range 8000 {
				if len(model) == 0 || random.Float64() < pattern.grow {
					add()
				} else {
					take(pattern.leave(random, len(model)))
				}
				if step%97 == 0 {
					holds(t, &o, model)
				}
			}
			for len(model) > 0 {
				take(pattern.leave(random, len(model)))
				if len(model)%97 == 0 {
					holds(t, &o, model)
				}
			}
		})
	}
}

// holds checks that o holds these pods, and no more blocks than they need.
func holds(t *testing.T, o *orderedPods, model []*entry) {
	t.Helper()
	if o.Len() != len(model) {
		t.Fatalf("it says it has %d pods, want %d", o.Len(), len(model))
	}
	if len(model) == 0 {
		if o.head() != nil || len(o.blocks) > 1 {
			t.Fatalf("without pods it has the head %v, and %d blocks", o.head(), len(o.blocks))
		}
		return
	}
	if o.head() != model[0] {
		t.Fatalf("the head is not the first of %d", len(model))
	}
	for at, e := range model {
		if o.at(at) != e || o.ahead(&e.rank) != at {
			t.Fatalf("of %d pods, that at %d is another one, or says %d are ahead", len(model), at, o.ahead(&e.rank))
		}
	}
	for b := 1; b < len(o.blocks); b++ {
		if both := len(o.blocks[b-1]) + len(o.blocks[b]); both <= blockPods/2 {
			t.Fatalf("two neighbours of %d blocks hold %d pods together", len(o.blocks), both)
		}
	}
}

func TestTheOnlyPodComesAndGoesWithoutAllocation(t *testing.T) {
	o := orderedPods{rankOf: inLine}
	e := &entry{}
	o.add(e)
	if allocs := testing.AllocsPerRun(100, func() { o.remove(e); o.add(e) }); allocs > 0 {
		t.Errorf("%v allocations, want none: often a single pod is in flight", allocs)
	}
}
