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

// result is what one run of a contender gave.
type result struct {
	workload  string
	contender string
	run       int // which repetition, from 1
	nodes     int
	pods      int
	bound     int           // pods whose binding was seen
	binding   time.Duration // from the first binding to the last
	total     time.Duration // from the start of the contender to the last binding
	eventLag  time.Duration // from the last binding to the last Scheduled event; negative: not known
	usage     []processUsage
	writes    writes
	killed    []string // names of processes, in order
	repeated  int      // pods with more than one Scheduled event, all naming the right node
	usedNodes int      // nodes with a pod
	fewest    int      // pods in the zone with the fewest
	most      int      // and in that with the most
	broken    int      // pods, or domains of pods, that are against a required constraint
	problems  []string // empty in a good run
	late      string   // how far it came within its time; empty: it has done all
	profiles  []string // files

	// What the scripts of some workloads measure besides; nil in runs of others.
	storm      *stormFigures
	gated      *gatedFigures
	preemption *preemptionFigures
	churn      *churnFigures
	restart    *restartFigures
	volumes    *volumesFigures
	gpu        *gpuFigures
}

// title names the run.
func (r *result) title() string { return fmt.Sprintf("%s, %s, run %d", r.workload, r.contender, r.run) }

// runOnce measures one contender with one workload, on a control plane of its own; bin is kube-scheduler's. An error means
// that there is nothing to report; what the contender did wrong is in the result.
func runOnce(ctx context.Context, cfg config, w workload, c contender, bin string, repetition int) (result, error) {
	r := result{workload: w.name, contender: c.name, run: repetition, nodes: cfg.nodes, pods: cfg.pods, eventLag: -1}
	dir, err := os.MkdirTemp("", "benchkube-"+w.name+"-"+c.name+"-")
	if err != nil {
		return r, fmt.Errorf("make directory: %w", err)
	}
	defer func() {
		if cfg.keep || len(r.problems) > 0 || r.late != "" {
			progress("%s: logs are in %s", r.title(), dir)
		} else if err := os.RemoveAll(dir); err != nil {
			progress("%s: remove directory: %v", r.title(), err)
		}
	}()

	// 1. A control plane with nodes and pending pods.
	options := kubetest.Options{}
	if w.groups {
		options.APIServerFlags = kubetest.PodGroups
	}
	plane, err := kubetest.Start(ctx, filepath.Join(dir, "control-plane"), options)
	if err != nil {
		return r, err
	}
	defer plane.Stop()
	s := &stage{config: cfg, contender: c, load: newLoad(cfg, w), plane: plane, r: &r}
	s.load.devicePlugin = c.cards == devicePluginGives
	defer s.end()
	began := time.Now()
	if err := plane.CreateNodes(ctx, cfg.nodes, s.load.node); err != nil {
		return r, err
	}
	script := w.script()
	if err := script.prepare(ctx, s); err != nil {
		return r, err
	}
	progress("%s: created %d nodes and the pods in %v", r.title(), cfg.nodes, time.Since(began).Round(100*time.Millisecond))

	// 2. What is measured against: the writes until now, and a watch that sees every binding.
	if s.before, err = s.awaitQuiet(ctx); err != nil {
		return r, err
	}
	watcher, err := kubetest.Watch(ctx, plane.Kubeconfig())
	if err != nil {
		return r, err
	}
	s.atEnd(watcher.Stop)
	s.watcher = watcher

	// 3. The contender, until it has done what the script asks for, and then until it has nothing more to write.
	env := environment{config: cfg, claims: w.claims, groups: w.groups, dir: dir, kubeconfig: plane.Kubeconfig(), kubeScheduler: bin}
	if env.self, err = os.Executable(); err != nil {
		return r, fmt.Errorf("find own program: %w", err)
	}
	run, stop := context.WithTimeout(ctx, cfg.timeout)
	defer stop()
	if s.crew, err = startCrew(run, c, env); err != nil {
		return r, err
	}
	defer s.crew.stop()
	s.since = s.crew.began
	var profiles *profiler
	if cfg.profile != "" {
		profiles = startProfiler(ctx, s.crew.ops, filepath.Join(dir, "profiles"))
		defer profiles.stop()
	}
	err = script.play(s.crew.ctx, s)
	switch {
	case ctx.Err() != nil:
		return r, context.Cause(ctx)
	case err != nil && errors.Is(context.Cause(s.crew.ctx), context.DeadlineExceeded):
		r.late = fmt.Sprintf("not done within %v: %v", cfg.timeout, err)
	case err != nil:
		err = errors.Join(err, cause(s.crew.ctx))
		r.problems = append(r.problems, err.Error())
	}
	if err != nil {
		progress("%s: %v\n%s", r.title(), err, s.crew.logTails())
	}
	if err := s.measure(ctx); err != nil {
		return r, err
	}
	if profiles != nil {
		if r.profiles, err = profiles.write(ctx, filepath.Join(cfg.profile, w.name)); err != nil {
			r.problems = append(r.problems, err.Error())
		}
	}
	s.crew.stop()

	// 4. What the API server says about it.
	report, err := kubetest.Check(ctx, plane.Kubeconfig())
	if err != nil {
		return r, err
	}
	var first, last time.Time
	r.bound, first, last = s.watcher.Bound()
	if r.bound > 0 {
		r.binding, r.total = last.Sub(first), last.Sub(s.since)
	}
	want, err := script.judge(ctx, s)
	if err != nil {
		return r, err
	}
	r.judge(c, report, watcher.BoundTwice(), want)
	return r, nil
}

// judge adds the problems that the API server knows of.
func (r *result) judge(c contender, report kubetest.Report, twice []kubetest.Rebinding, want expected) {
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
	if r.late != "" {
		return // what else is missing says no more
	}
	r.problems = append(r.problems, want.problems...)
	if report.Bound != want.bound || report.Pending != want.pending {
		r.problems = append(r.problems, fmt.Sprintf("%d of %d pods are bound, %d pending", report.Bound, want.bound, report.Pending))
	}
}
