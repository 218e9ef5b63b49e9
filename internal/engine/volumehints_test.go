package engine

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// TestDisksThatAreGoneAreFoundByTheirNames compares the hint with one disk after the other.
func TestDisksThatAreGoneAreFoundByTheirNames(t *testing.T) {
	shares := func(a, b cluster.Disk) bool {
		if a.Kind == "" || a.Kind != b.Kind || a.ID != b.ID || a.ReadOnly && b.ReadOnly {
			return false
		}
		return a.Kind != cluster.DiskRBD || a.Pool == b.Pool && slices.ContainsFunc(a.Monitors, func(m string) bool { return slices.Contains(b.Monitors, m) })
	}
	few := rapid.SampledFrom([]string{"x", "y"})
	disks := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) cluster.Disk {
		d := cluster.Disk{
			Kind: rapid.SampledFrom([]string{"", cluster.DiskGCE, cluster.DiskRBD}).Draw(t, "kind"), ID: few.Draw(t, "id"), ReadOnly: rapid.Bool().Draw(t, "read-only"),
		}
		if d.Kind == cluster.DiskRBD {
			d.Pool, d.Monitors = few.Draw(t, "pool"), rapid.SliceOfN(few, 0, 2).Draw(t, "monitors")
		}
		return d
	}), 0, 4)
	rapid.Check(t, func(t *rapid.T) {
		own, gone := disks.Draw(t, "own"), disks.Draw(t, "gone")
		want := slices.ContainsFunc(own, func(a cluster.Disk) bool {
			return slices.ContainsFunc(gone, func(b cluster.Disk) bool { return shares(a, b) })
		})
		d, m := &Demands{spec: &cluster.ClassSpec{Disks: own}}, &Moved{Movement: Movement{was: &unseen, disks: &cluster.Class{Spec: cluster.ClassSpec{Disks: gone}}}}
		for range 2 { // what has been found out is used again
			if got := diskGone(nil, d, m); got != want {
				t.Fatalf("%v, want %v", got, want)
			}
		}
	})
}

func manyDisks(prefix string, n int) (out cluster.ClassSpec) {
	for k := range n {
		out.Disks = append(out.Disks, cluster.Disk{Kind: cluster.DiskRBD, ID: "image", Pool: "p", Monitors: []string{fmt.Sprintf("monitor-%s-%06d", prefix, k)}})
	}
	return out
}

// TestDisksAreComparedInTimeThatGrowsWithTheFewerAlone has pods with few disks or many hear of pods that are gone with few or many. Compared one by
// one, many with many would take a million times as long as few with few; a machine that is busy makes it ten times as long.
func TestDisksAreComparedInTimeThatGrowsWithTheFewerAlone(t *testing.T) {
	const few, many, runs = 8, 8192, 20
	took := func(own, gone int) time.Duration {
		spec := manyDisks("a", own)
		d, m := &Demands{spec: &spec}, &Moved{Movement: Movement{was: &unseen, disks: &cluster.Class{Spec: manyDisks("b", gone)}}}
		diskGone(nil, d, m)
		least := time.Duration(1 << 62)
		for range 5 { // the machine may have had other things to do
			start := time.Now()
			for range runs {
				diskGone(nil, d, m)
			}
			least = min(least, time.Since(start))
		}
		return max(least, time.Microsecond)
	}
	base := took(few, few)
	for _, c := range []struct {
		own, gone int
		times     time.Duration
	}{{few, many, 100}, {many, few, 100}, {many, many, 100 * many / few}} {
		if got := took(c.own, c.gone); got > c.times*base {
			t.Errorf("%d with %d take %v, %d with %d %v: want %d times at most", c.own, c.gone, got, few, few, base, c.times)
		}
	}
}
