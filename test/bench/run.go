package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/measure"
)

// profileLength is the time of which a CPU profile is.
const profileLength = 10 * time.Second

// result is what one run of a workload gave.
type result struct {
	workload workload // as it was run
	figures  map[figure]float64
	turns    []turn                    // if questions or changes come by turns
	usage    map[string]kubetest.Usage // by process
	perNode  map[string]float64        // KB by process, if it was measured
	problems []string                  // empty in a good run

	// Of pods that were there when Berth started.
	samples []sample
	binds   binds
}

// run measures a workload once. An error means that there is nothing to report; what Berth did wrong is in the result.
func run(ctx context.Context, cfg config, w workload) (r result, err error) {
	r = result{workload: w, figures: map[figure]float64{}}
	dir, err := os.MkdirTemp("", "bench-"+w.name+"-")
	if err != nil {
		return r, fmt.Errorf("make directory: %w", err)
	}
	defer func() {
		if cfg.keep || len(r.problems) > 0 {
			progress("%s: what was stored and logged is in %s", w.name, dir)
		} else if err := os.RemoveAll(dir); err != nil {
			progress("%s: remove directory: %v", w.name, err)
		}
	}()
	var empty map[string]kubetest.Usage
	if w.perNode {
		if empty, err = usageOfEmpty(ctx, cfg, w, filepath.Join(dir, "empty")); err != nil {
			return r, fmt.Errorf("measure without nodes: %w", err)
		}
	}

	// 1. A cluster, before Berth starts.
	c, err := newCrew(ctx, cfg, w.processes, dir)
	if err != nil {
		return r, err
	}
	defer c.close()
	began := time.Now()
	if err := c.store(ctx, w.fill); err != nil {
		return r, fmt.Errorf("fill etcd: %w", err)
	}
	debug.FreeOSMemory() // Berth may need it
	progress("%s: filled etcd in %v", w.name, time.Since(began).Round(100*time.Millisecond))

	// 2. Berth, until all pods are bound.
	if w.traced > 0 {
		traces, err := startCollector()
		if err != nil {
			return r, err
		}
		defer func() { r.figures[spans] = float64(traces.stop()) }()
		c.environment = traces.environment(w.traced)
	}
	if err := c.start(); err != nil {
		return r, err
	}
	measuring, cancel := context.WithTimeout(ctx, cfg.timeout)
	defer cancel()
	profiles, profiling := errgroup.WithContext(measuring)
	binding := func() {
		if cfg.profile != "" {
			profiles.Go(func() error { return c.saveProfiles(profiling, w.name) })
		}
	}
	if w.oneByOne {
		err = r.oneByOne(measuring, c, binding)
	} else {
		follow := func(binding func()) (err error) {
			r.samples, r.binds, err = c.follow(measuring, w.pods, binding)
			return err
		}
		switch {
		case w.asks > 0:
			err = r.asking(measuring, c, binding, follow)
		case w.changes > 0:
			err = r.changing(measuring, c, binding, follow)
		default:
			err = follow(binding)
		}
	}
	err = errors.Join(err, profiles.Wait())
	if ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	if err != nil {
		r.problems = append(r.problems, err.Error())
		progress("%s: %v\n%s", w.name, err, c.logTails())
	}
	if r.usage, err = c.usage(); err != nil {
		return r, err
	}
	r.measureUsage(empty)
	c.stop()

	// 3. What is stored now.
	err = c.store(ctx, func(ctx context.Context, etcd *coord.Client) error {
		s, err := readStored(ctx, etcd)
		if err == nil {
			r.measureBurst(s.sentAfter(c.began))
			r.problems = append(r.problems, s.problems(w.placed+w.pods)...)
		}
		return err
	})
	if err != nil {
		return r, fmt.Errorf("read etcd: %w", err)
	}
	debug.FreeOSMemory()
	return r, nil
}

// measureBurst takes in when binds were sent, after the start of Berth.
func (r *result) measureBurst(sent []time.Duration) {
	if b, ok := burstOf(sent, r.binds.mean(), r.samples); ok && !r.workload.oneByOne {
		r.figures[firstBind] = b.first.Seconds()
		if r.workload.gang {
			r.figures[lastBind] = (slices.Max(sent) + r.binds.mean()).Seconds()
		}
		r.figures[decisions] = b.rate
		r.figures[cpuMicros] = float64(b.cpu.Microseconds()) / float64(len(sent))
		if share, ok := lossOf(sent, r.turns); ok {
			r.figures[loss] = 100 * share
		}
	}
}

// saveProfiles writes profiles of all roles' processes to files that are named by workload and process.
func (c *crew) saveProfiles(ctx context.Context, workload string) error {
	g, ctx := errgroup.WithContext(ctx)
	for role, address := range c.ops {
		name := workload
		if c.processes {
			name += "." + role
		}
		file := filepath.Join(c.cfg.profile, name)
		g.Go(func() error {
			if err := measure.CPUProfile(ctx, address, profileLength, file+".cpu.pb.gz"); err != nil {
				return err
			}
			return measure.AllocsProfile(ctx, address, file+".allocs.pb.gz")
		})
	}
	return g.Wait()
}

// measureUsage takes in what the processes have used, and what those of a Berth without nodes had.
func (r *result) measureUsage(empty map[string]kubetest.Usage) {
	r.perNode = map[string]float64{}
	var cpu time.Duration
	var peak int64
	for name, u := range r.usage {
		cpu += u.CPU
		peak += u.PeakRSS
		if before, ok := empty[name]; ok && name != "etcd" {
			each := float64(u.PeakRSS-before.PeakRSS) / 1024 / float64(r.workload.nodes)
			r.perNode[name] = each
			r.figures[perNodeKB] = max(r.figures[perNodeKB], each)
		}
	}
	r.figures[cpuSeconds] = cpu.Seconds()
	r.figures[peakMB] = float64(peak) / (1 << 20)
}

// usageOfEmpty returns what the processes of a Berth have used that has no nodes and pods, when it is ready.
func usageOfEmpty(ctx context.Context, cfg config, w workload, dir string) (map[string]kubetest.Usage, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	c, err := newCrew(ctx, cfg, w.processes, dir)
	if err != nil {
		return nil, err
	}
	defer c.close()
	if err := c.start(); err != nil {
		return nil, err
	}
	if err := c.awaitReady(ctx, time.Minute); err != nil {
		return nil, err
	}
	return c.usage()
}

// line tells the run in one line.
func (r *result) line() string {
	var parts []string
	add := func(f figure) {
		part := fmt.Sprintf("%s %s", f, measure.Sample{r.figures[f]}.Format(f.verb()))
		if _, measured := r.figures[f]; measured && !slices.Contains(parts, part) {
			parts = append(parts, part)
		}
	}
	for _, t := range r.workload.targets {
		add(t.figure)
	}
	for _, f := range []figure{decisions, firstBind, cpuSeconds, cpuMicros, peakMB} {
		add(f)
	}
	return r.workload.name + ": " + strings.Join(parts, ", ") + "; " + check(len(r.problems))
}

// check says whether a run went well.
func check(problems int) string {
	if problems == 0 {
		return "ok"
	}
	return fmt.Sprintf("%d wrong", problems)
}
