package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

// script is what happens in the runs of a workload. There is a new one for each run.
type script interface {
	// prepare fills a cluster of nodes before the contender starts.
	prepare(ctx context.Context, s *stage) error
	// play does its part while the contender runs, and returns when the contender has done what is measured. An error means
	// that it has not.
	play(ctx context.Context, s *stage) error
	// judge adds what it has measured, and what was wrong, to the result when the contender has ended.
	judge(ctx context.Context, s *stage) (expected, error)
}

// expected is how many pods there are at the end of a good run, and what was wrong otherwise.
type expected struct {
	bound, pending int
	problems       []string
}

// stage is what the script of a run works with. Its methods are for one goroutine.
type stage struct {
	config
	contender contender
	load      load
	plane     *kubetest.ControlPlane
	r         *result
	ends      []func() // called when the run ends, the last first

	// From here on, what prepare does not have.
	crew     *crew
	before   writes                     // until the contender started
	watcher  *kubetest.Watcher          // its bindings are those that are measured,
	since    time.Time                  // and their time counts from here
	events   *kubetest.ScheduledWatcher // since the last of them; nil if it has not come
	measured bool
}

// atEnd has f called when the run ends.
func (s *stage) atEnd(f func()) { s.ends = append(s.ends, f) }

func (s *stage) end() {
	for i := len(s.ends) - 1; i >= 0; i-- {
		s.ends[i]()
	}
}

// measure waits until the contender has nothing more to write, unless it is late, and notes what it has used and written since it
// started. Only the first call does.
func (s *stage) measure(ctx context.Context) error {
	if s.measured {
		return nil
	}
	read := s.awaitQuiet
	if s.r.late != "" {
		read = func(ctx context.Context) (writes, error) { return readWrites(ctx, s.plane.Client()) }
	}
	after, err := read(ctx)
	if err != nil {
		return err
	}
	s.r.writes = after.minus(s.before)
	if s.events != nil {
		s.events.Stop()
		s.r.eventLag = 0
		if n, last := s.events.Seen(); n > 0 {
			_, _, bound := s.watcher.Bound()
			s.r.eventLag = last.Sub(bound)
		}
	}
	s.r.usage, err = s.crew.usage()
	s.measured = err == nil
	return err
}

// awaitQuiet returns the count of writes when nothing writes any more.
func (s *stage) awaitQuiet(ctx context.Context) (writes, error) {
	return awaitQuiet(ctx, s.plane.Client(), s.quiet)
}

// cpu returns the time that all the contender's processes have used so far.
func (s *stage) cpu() (time.Duration, error) {
	usage, err := s.crew.usage()
	return cpuOf(usage), err
}

func cpuOf(usage []processUsage) time.Duration {
	var sum time.Duration
	for _, u := range usage {
		sum += u.CPU
	}
	return sum
}

// progressEvery is how often a run says how far it is.
const progressEvery = 10 * time.Second

// awaitBound returns nil when n bindings were measured, and follows the events from then on. If asked for, it kills processes
// on the way.
func (s *stage) awaitBound(ctx context.Context, n int) error {
	watcher := s.watcher
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
				bound, _, _ := watcher.Bound()
				progress("%s: %d of %d pods bound", s.r.title(), bound, n)
			}
		}
	}()
	defer func() {
		stop()
		<-reported
	}()

	if s.kill && s.contender.name == berthSplit {
		for _, fault := range faults() {
			if err := watcher.AwaitBound(ctx, int(float64(n)*fault.at)); err != nil {
				return err
			}
			victim, err := fault.victim(ctx, s.crew)
			if err != nil {
				return fmt.Errorf("choose process to kill: %w", err)
			}
			if err := s.crew.kill(victim); err != nil {
				return err
			}
			s.r.killed = append(s.r.killed, victim)
			bound, _, _ := watcher.Bound()
			progress("%s: killed %s with %d of %d pods bound", s.r.title(), victim, bound, n)
		}
	}
	if err := watcher.AwaitBound(ctx, n); err != nil {
		return err
	}
	var err error
	if s.events, err = kubetest.WatchScheduled(ctx, s.plane.Client()); err != nil {
		return err
	}
	s.atEnd(s.events.Stop)
	return nil
}

// cause returns why the context ended, if that says more than the context's error.
func cause(ctx context.Context) error {
	if c := context.Cause(ctx); !errors.Is(c, ctx.Err()) {
		return c
	}
	return nil
}

// bindAll is the script of most workloads: pending pods are bound.
type bindAll struct{}

func (bindAll) prepare(ctx context.Context, s *stage) error {
	sets := s.plane.Client().AppsV1().ReplicaSets(metav1.NamespaceDefault)
	for d := range s.load.deployments {
		if _, err := sets.Create(ctx, replicaSet(d), metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create replica set: %w", err)
		}
	}
	return s.plane.CreatePods(ctx, s.pods, s.load.pod)
}

func (bindAll) play(ctx context.Context, s *stage) error { return s.awaitBound(ctx, s.pods) }

func (bindAll) judge(_ context.Context, s *stage) (expected, error) {
	return expected{bound: s.pods}, nil
}
