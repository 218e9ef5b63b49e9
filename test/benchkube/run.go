package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

// progressEvery is how often a run says how far it is.
const progressEvery = 10 * time.Second

// result is what one run of a contender gave.
type result struct {
	workload  string
	contender string
	pods      int
	bound     int           // pods whose binding was seen
	binding   time.Duration // from the first binding to the last
	total     time.Duration // from the start of the contender to the last binding
	usage     []processUsage
	writes    writes
	killed    []string // names of processes, in order
	repeated  int      // pods with more than one Scheduled event, all naming the right node
	usedNodes int      // nodes with a pod
	fewest    int      // pods in the zone with the fewest
	most      int      // and in that with the most
	broken    int      // pods, or domains of pods, that are against a required constraint
	problems  []string // empty in a good run
}

// title names the run.
func (r *result) title() string { return r.workload + ", " + r.contender }

// runOnce measures one contender with one workload, on a control plane of its own; bin is kube-scheduler's. An error means that there is nothing to report; what the
// contender did wrong is in the result.
func runOnce(ctx context.Context, cfg config, w workload, c contender, bin string) (result, error) {
	r := result{workload: w.name, contender: c.name, pods: cfg.pods}
	dir, err := os.MkdirTemp("", "benchkube-"+w.name+"-"+c.name+"-")
	if err != nil {
		return r, fmt.Errorf("make directory: %w", err)
	}
	defer func() {
		if cfg.keep || len(r.problems) > 0 {
			progress("%s: logs are in %s", r.title(), dir)
		} else if err := os.RemoveAll(dir); err != nil {
			progress("%s: remove directory: %v", r.title(), err)
		}
	}()

	// 1. A control plane with nodes and pending pods.
	plane, err := kubetest.Start(ctx, filepath.Join(dir, "control-plane"), kubetest.Options{})
	if err != nil {
		return r, err
	}
	defer plane.Stop()
	load := newLoad(cfg, w)
	began := time.Now()
	if err := plane.CreateNodes(ctx, cfg.nodes, load.node); err != nil {
		return r, err
	}
	if err := plane.CreatePods(ctx, cfg.pods, load.pod); err != nil {
		return r, err
	}
	progress("%s: created %d nodes and %d pods in %v", r.title(), cfg.nodes, cfg.pods, time.Since(began).Round(100*time.Millisecond))

	// 2. What is measured against: the writes until now, and a watch that sees every binding.
	before, err := awaitQuiet(ctx, plane.Client())
	if err != nil {
		return r, err
	}
	watcher, err := kubetest.Watch(ctx, plane.Kubeconfig())
	if err != nil {
		return r, err
	}
	defer watcher.Stop()

	// 3. The contender, until all pods are bound, and then until it has nothing more to write.
	env := environment{config: cfg, dir: dir, kubeconfig: plane.Kubeconfig(), kubeScheduler: bin}
	if env.self, err = os.Executable(); err != nil {
		return r, fmt.Errorf("find own program: %w", err)
	}
	run, stop := context.WithTimeout(ctx, cfg.timeout)
	defer stop()
	crew, err := startCrew(run, c, env)
	if err != nil {
		return r, err
	}
	defer crew.stop()
	err = awaitBound(crew.ctx, c, cfg, watcher, crew, &r)
	if ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	if err != nil {
		r.problems = append(r.problems, err.Error())
		progress("%s: %v\n%s", r.title(), err, crew.logTails())
	}
	after, err := awaitQuiet(ctx, plane.Client())
	if err != nil {
		return r, err
	}
	r.writes = after.minus(before)
	if r.usage, err = crew.usage(); err != nil {
		return r, err
	}
	crew.stop()

	// 4. What the API server says about it.
	report, err := kubetest.Check(ctx, plane.Kubeconfig())
	if err != nil {
		return r, err
	}
	watcher.Stop()
	var first, last time.Time
	r.bound, first, last = watcher.Bound()
	if r.bound > 0 {
		r.binding, r.total = last.Sub(first), last.Sub(crew.began)
	}
	r.judge(c, report, watcher.BoundTwice())
	return r, nil
}

// awaitBound returns nil when all pods are bound. If asked for, it kills processes on the way.
func awaitBound(ctx context.Context, c contender, cfg config, watcher *kubetest.Watcher, crew *crew, r *result) error {
	reporting, stop := context.WithCancel(ctx)
	reported := make(chan struct{})
	go func() {
		defer close(reported)
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-reporting.Done():
				return
			case <-tick.C:
				n, _, _ := watcher.Bound()
				progress("%s: %d of %d pods bound", r.title(), n, cfg.pods)
			}
		}
	}()
	defer func() {
		stop()
		<-reported
	}()

	if cfg.kill && c.name == berthSplit {
		for _, fault := range faults() {
			if err := watcher.AwaitBound(ctx, int(float64(cfg.pods)*fault.at)); err != nil {
				return errors.Join(err, cause(ctx))
			}
			victim, err := fault.victim(ctx, crew)
			if err != nil {
				return fmt.Errorf("choose process to kill: %w", err)
			}
			if err := crew.kill(victim); err != nil {
				return err
			}
			r.killed = append(r.killed, victim)
			n, _, _ := watcher.Bound()
			progress("%s: killed %s with %d of %d pods bound", r.title(), victim, n, cfg.pods)
		}
	}
	if err := watcher.AwaitBound(ctx, cfg.pods); err != nil {
		return errors.Join(err, cause(ctx))
	}
	return nil
}

// cause returns why the context ended, if that says more than the context's error.
func cause(ctx context.Context) error {
	if c := context.Cause(ctx); c != ctx.Err() {
		return c
	}
	return nil
}

// judge adds the problems that the API server knows of.
func (r *result) judge(c contender, report kubetest.Report, twice []kubetest.Rebinding) {
	r.usedNodes, r.broken = report.UsedNodes, len(report.Violations)
	if len(report.Zones) > 0 {
		pods := slices.Collect(maps.Values(report.Zones))
		r.fewest, r.most = slices.Min(pods), slices.Max(pods)
	}
	if c.blind {
		report.Overcommitted, report.Violations = nil, nil
	}
	for _, s := range report.ScheduledTwice {
		if !s.Wrong() {
			r.repeated++
		}
	}
	r.problems = append(r.problems, report.Problems()...)
	for _, b := range twice {
		r.problems = append(r.problems, fmt.Sprintf("pod %s: bound twice, to %s and to %s", b.Pod, b.From, b.To))
	}
	if report.Bound != r.pods || report.Pending > 0 {
		r.problems = append(r.problems, fmt.Sprintf("%d of %d pods are bound, %d pending", report.Bound, r.pods, report.Pending))
	}
}
