package main

import (
	"fmt"
	"time"

	"github.com/berth-scheduler/berth/test/measure"
)

// costByNodes places pods in empty clusters of each size.
func costByNodes(cfg config, load workload) (line, error) {
	out := line{name: load.name}
	for _, nodes := range cfg.nodes {
		var sample measure.Sample
		for range cfg.repetitions {
			w, err := newWorld(load, nodes, cfg.seed)
			if err != nil {
				return out, err
			}
			// The first cycle evaluates all nodes: that is paid once for a class, not for a decision.
			if _, _, err := w.decide(1); err != nil {
				return out, err
			}
			took, placed, err := w.decide(cfg.cycles)
			if err != nil {
				return out, err
			}
			if placed == 0 {
				return out, fmt.Errorf("%s on %d nodes: nothing fits", load.name, nodes)
			}
			sample = append(sample, microseconds(took, placed))
		}
		out.points = append(out.points, point{float64(nodes), sample.Median()})
	}
	return out, nil
}

// costByPods places pods in one cluster until none fits.
func costByPods(cfg config, load workload) (line, error) {
	out := line{name: load.name}
	w, err := newWorld(load, cfg.fill, cfg.seed)
	if err != nil {
		return out, err
	}
	for {
		before := len(w.bound)
		took, placed, err := w.decide(cfg.cycles)
		if err != nil {
			return out, err
		}
		if placed == 0 {
			return out, nil
		}
		out.points = append(out.points, point{float64(before + placed/2), microseconds(took, placed)})
	}
}

func microseconds(took time.Duration, decisions int) float64 {
	return float64(took.Nanoseconds()) / 1000 / float64(decisions)
}

// decide runs so many cycles, each with as many pods as a batch has, and returns how long they took and how many pods they
// placed. It ends early when nothing fits any more.
func (w *world) decide(cycles int) (time.Duration, int, error) {
	start, all := time.Now(), 0
	for range cycles {
		if err := w.arrive(batchSize - len(w.pending)); err != nil {
			return 0, all, err
		}
		placed, err := w.cycle()
		if err != nil || placed == 0 {
			return time.Since(start), all, err
		}
		all += placed
	}
	return time.Since(start), all, nil
}
