package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

const (
	tellWithin = 30 * time.Second // of the last binding, each pod that fits nowhere must have been told of
	tellMax    = 90 * time.Second // is waited for that, to know how late it is
)

// hopelessPrefix begins the names of pods that fit nowhere.
const hopelessPrefix = "hopeless-"

// storm is plain pods with as many among them that fit nowhere.
type storm struct {
	tellMax  time.Duration // is waited for the last to be told of
	failures *kubetest.FailureWatcher
}

// stormFigures is what a storm gave.
type stormFigures struct {
	hopeless int // pods that fit nowhere
	kubetest.Failures
	lastBound time.Time
	idle      float64 // CPU seconds per second when nothing changes
}

// lag returns how long after the last binding a failure was told; negative if it was before.
func (f *stormFigures) lag(told time.Time) time.Duration { return told.Sub(f.lastBound) }

// hopeless returns the pod number i of those that fit nowhere: each requests more CPU than a node has.
func (l load) hopeless(i int) *corev1.Pod {
	pod := kubetest.PlainPod(i)
	pod.Name = fmt.Sprintf("%s%06d", hopelessPrefix, i)
	tooMuch := l.nodeCPU*1000 + 100*int64(1+l.classOf[i])
	pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = *resource.NewMilliQuantity(tooMuch, resource.DecimalSI)
	return pod
}

func (w *storm) prepare(ctx context.Context, s *stage) error {
	var err error
	w.failures, err = kubetest.WatchFailures(ctx, s.plane.Kubeconfig(), func(pod types.NamespacedName) bool { return strings.HasPrefix(pod.Name, hopelessPrefix) })
	if err != nil {
		return err
	}
	s.atEnd(w.failures.Stop)
	return s.plane.CreatePods(ctx, 2*s.pods, func(i int) *corev1.Pod {
		if i%2 == 1 {
			return s.load.hopeless(i / 2)
		}
		return s.load.pod(i / 2)
	})
}

func (w *storm) play(ctx context.Context, s *stage) error {
	s.r.storm = &stormFigures{hopeless: s.pods}
	if err := s.awaitBound(ctx, s.pods); err != nil {
		return err
	}
	telling, stop := context.WithTimeout(ctx, w.tellMax)
	defer stop()
	// That some are never told of is found by judge.
	if err := w.failures.AwaitTold(telling, s.pods); err != nil && ctx.Err() != nil {
		return err
	}
	if err := s.measure(ctx); err != nil {
		return err
	}
	var err error
	s.r.storm.idle, err = s.idle(ctx)
	return err
}

// idle returns the CPU seconds per second that the contender uses in a time in which nothing changes.
func (s *stage) idle(ctx context.Context) (float64, error) {
	before, err := s.cpu()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	timer := time.NewTimer(s.idleWindow)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return 0, fmt.Errorf("measure the idle contender: %w", ctx.Err())
	}
	after, err := s.cpu()
	if err != nil {
		return 0, err
	}
	return (after - before).Seconds() / time.Since(began).Seconds(), nil
}

func (w *storm) judge(_ context.Context, s *stage) (expected, error) {
	f := s.r.storm
	f.Failures = w.failures.Failures()
	_, _, f.lastBound = s.watcher.Bound()
	return expected{bound: s.pods, pending: s.pods, problems: f.problems()}, nil
}

// problems returns what was not told, or too late.
func (f *stormFigures) problems() []string {
	var problems []string
	for _, told := range []struct {
		what string
		pods int
		last time.Time
	}{{"condition", f.Conditions, f.LastCondition}, {"event", f.Events, f.LastEvent}} {
		if told.pods != f.hopeless {
			problems = append(problems, fmt.Sprintf("%d of %d pods that fit nowhere have their %s", told.pods, f.hopeless, told.what))
		}
		if late := f.lag(told.last); late > tellWithin {
			problems = append(problems, fmt.Sprintf("the last %s came %v after the last binding, more than %v", told.what, late.Round(100*time.Millisecond), tellWithin))
		}
	}
	return problems
}
