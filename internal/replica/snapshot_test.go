package replica

import (
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// empty is a ledger without anything, of an epoch.
type empty cluster.Epoch

func (e empty) Snapshot(encode func(*cluster.State)) {
	encode(cluster.New(cluster.Version{Epoch: cluster.Epoch(e)}))
}

func TestWhatASnapshotTakesOfMemoryIsFreeWhenItIsReplaced(t *testing.T) {
	s := sharedSnapshot{keep: time.Hour}
	taken := func(in *term) weak.Pointer[snapshot] {
		c, toMake := s.acquire(in)
		if !toMake {
			t.Fatal("a snapshot of another term is used")
		}
		s.make(c, empty(in.epoch))
		s.release(c)
		return weak.Make(c)
	}
	first := taken(&term{epoch: 3, ring: newRing(8, 1<<20, 0, 0)})
	taken(&term{epoch: 4, ring: newRing(8, 1<<20, 0, 0)})
	runtime.GC()
	if first.Value() != nil {
		t.Error("the first snapshot is there, though nobody can get it any more")
	}
	runtime.KeepAlive(&s)
}

func TestARingKeepsWhatIsInItsNewerHalf(t *testing.T) {
	r := newRing(8, 1000, 10, 0)
	push := func(sizes ...int) {
		for _, n := range sizes {
			r.push(make([]byte, n), 0, false)
		}
	}
	push(1, 1, 1, 1)
	if !r.keeps(10) || !r.keeps(14) {
		t.Error("half of the deltas is not kept")
	}
	if push(1); r.keeps(10) || !r.holds(10) || !r.keeps(11) {
		t.Error("more than half of the deltas is kept on")
	}
	if push(600); r.keeps(14) || !r.holds(14) || !r.keeps(16) {
		t.Error("more than half of the bytes is kept on")
	}
}
