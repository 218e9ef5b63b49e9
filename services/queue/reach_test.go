package queue

import "testing"

func TestListsAreAsLongAsTheyHaveToBe(t *testing.T) {
	const batch = 256
	var r reach
	if got := r.limit(batch, batch); got != batch+slack {
		t.Errorf("a signature that has the batch to itself is listed with %d nodes", got)
	}
	if got := r.limit(2, batch); got != 2+slack {
		t.Errorf("a signature of 2 pods among many is listed with %d nodes at first", got)
	}
	grown := 0
	for ; r.limit(2, batch) < batch+slack; grown++ {
		if grown > 5 {
			t.Fatalf("the lists are too short for the sixth time: %d nodes", r.limit(2, batch))
		}
		r = r.after(batch, true)
	}
	if r = r.after(batch, true); r.limit(batch, batch) != batch+slack {
		t.Errorf("a list is longer than the batch can use: %d nodes", r.limit(batch, batch))
	}
	for range 100 {
		r = r.after(batch, false)
	}
	if got := r.limit(2, batch); got != 2+slack {
		t.Errorf("after 100 cycles that had enough, there are still %d nodes", got)
	}
}
