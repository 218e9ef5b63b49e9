package main

import (
	"fmt"
	"runtime"
	"testing"
)

// BenchmarkCycle is what a decision costs the engine and the state machine, with everything that belongs to it: the pod
// comes, is placed in a cycle of 256, and is bound.
func BenchmarkCycle(b *testing.B) {
	for _, load := range []workload{plain, interleave, hardSpread, zoneAffinity, hostAntiAffinity} {
		for _, nodes := range []int{5_000, 100_000, 1_000_000} {
			b.Run(fmt.Sprintf("%s/nodes=%d", load.name, nodes), func(b *testing.B) {
				w, err := newWorld(load, nodes, 42)
				if err != nil {
					b.Fatal(err)
				}
				decide := func() int {
					if err := w.arrive(batchSize - len(w.pending)); err != nil {
						b.Fatal(err)
					}
					placed, err := w.cycle()
					if err != nil {
						b.Fatal(err)
					}
					return placed
				}
				decide()
				b.ReportAllocs()
				cycles := 0
				for left := b.N; left > 0; cycles++ {
					if cycles == 0 {
						b.ResetTimer()
					}
					placed := decide()
					if left -= placed; placed > 0 {
						continue
					}
					b.StopTimer()
					if len(w.bound) == 0 {
						b.Fatal("nothing can be placed")
					}
					if err := w.empty(); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
				}
				b.ReportMetric(float64(b.N)/float64(cycles), "pods/cycle")
			})
		}
	}
}

// BenchmarkMemory is what a node takes after some cycles: in one state, and in the evaluators of three roles for a class.
func BenchmarkMemory(b *testing.B) {
	for _, load := range []workload{plain, hardSpread} {
		b.Run(load.name, func(b *testing.B) {
			const nodes = 1_000_000
			for b.Loop() {
				before := heap()
				w, err := newWorld(load, nodes, 42)
				if err != nil {
					b.Fatal(err)
				}
				empty := heap()
				if _, _, err := w.decide(4); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(empty-before)/nodes, "B/node(state)")
				b.ReportMetric(float64(heap()-empty)/nodes, "B/node(evaluators)")
				runtime.KeepAlive(w)
			}
		})
	}
}

// heap returns how many bytes are in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
