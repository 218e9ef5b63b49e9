package demo

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
)

// Options say what to show and where.
type Options struct {
	Client schedulingv1.SchedulingServiceClient
	Out    io.Writer
	Seed   uint64
	// Terminal says that Out is a terminal: the progress bar is drawn over itself.
	Terminal bool
}

const (
	documentsPerApply = 400
	pollEvery         = 200 * time.Millisecond
	callTimeout       = 30 * time.Second
)

// Run waits until Berth is ready, creates the fleet's nodes and pods, waits until every pod is bound or known not to
// fit, and prints what happened.
func Run(ctx context.Context, o Options) error {
	r := runner{Options: o}
	if err := r.awaitReady(ctx); err != nil {
		return err
	}
	fmt.Fprintf(o.Out, "creating %d nodes\n", Nodes)
	if err := r.apply(ctx, NodeManifests(), nil); err != nil {
		return fmt.Errorf("create nodes: %w", err)
	}
	fmt.Fprintf(o.Out, "creating %d pods, and scheduling them as they come\n", Pods)
	began := time.Now()
	if err := r.apply(ctx, PodManifests(o.Seed), func() error { _, err := r.progress(ctx); return err }); err != nil {
		return fmt.Errorf("create pods: %w", err)
	}
	if err := r.awaitDecisions(ctx); err != nil {
		return err
	}
	return r.summary(ctx, time.Since(began))
}

type runner struct{ Options }

// awaitReady waits until the gateway has a replica and a shard has an owner.
func (r *runner) awaitReady(ctx context.Context) error {
	for {
		status, err := r.status(ctx)
		if err == nil && status.GetLeader() != "" && len(status.GetShards()) > 0 && status.GetShards()[0].GetOwner() != "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for Berth to be ready: %w", context.Cause(ctx))
		case <-time.After(pollEvery):
		}
	}
}

func (r *runner) status(ctx context.Context) (*schedulingv1.GetStatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return r.Client.GetStatus(ctx, &schedulingv1.GetStatusRequest{})
}

func (r *runner) apply(ctx context.Context, documents []string, after func() error) error {
	for part := range slices.Chunk(documents, documentsPerApply) {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		_, err := r.Client.Apply(call, &schedulingv1.ApplyRequest{Manifests: strings.Join(part, "---\n")})
		cancel()
		if err != nil {
			return err
		}
		if after != nil {
			if err := after(); err != nil {
				return err
			}
		}
	}
	return nil
}

// progress draws the bar and reports whether every pod has been decided.
func (r *runner) progress(ctx context.Context) (bool, error) {
	status, err := r.status(ctx)
	if err != nil {
		return false, err
	}
	bound, unschedulable, waiting := int(status.GetPods().GetBound()), 0, 0
	for _, s := range status.GetShards() {
		unschedulable += int(s.GetDepth().GetUnschedulable())
		waiting += int(s.GetDepth().GetActive() + s.GetDepth().GetBackoff() + s.GetDepth().GetInFlight())
	}
	const width = 40
	full := min((bound+unschedulable)*width/Pods, width)
	line := fmt.Sprintf("[%s%s] %5d bound, %4d do not fit, %5d waiting", strings.Repeat("#", full), strings.Repeat(".", width-full), bound, unschedulable, waiting)
	if r.Terminal {
		fmt.Fprintf(r.Out, "\r%s", line)
	} else {
		fmt.Fprintln(r.Out, line)
	}
	known := bound + int(status.GetPods().GetAssumed()+status.GetPods().GetPending())
	return known == Pods && bound+unschedulable == Pods, nil
}

func (r *runner) awaitDecisions(ctx context.Context) error {
	for {
		done, err := r.progress(ctx)
		if err != nil {
			return err
		}
		if done {
			if r.Terminal {
				fmt.Fprintln(r.Out)
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pollEvery):
		}
	}
}

// summary prints what was placed, what was not and why, how full the nodes are, and how fast it went.
func (r *runner) summary(ctx context.Context, took time.Duration) error {
	left, err := r.unplaced(ctx)
	if err != nil {
		return err
	}
	requested, allocatable, err := r.totals(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(r.Out, "\nplaced    %d of %d pods\n", Pods-len(left), Pods)
	if len(left) > 0 {
		r.printUnplaced(left)
	}
	fmt.Fprint(r.Out, "used     ")
	for _, res := range []struct{ name, label string }{{"cpu", "cpu"}, {"memory", "memory"}, {GPU, "gpu"}} {
		fmt.Fprintf(r.Out, " %s %.1f %%", res.label, 100*float64(requested[res.name])/float64(allocatable[res.name]))
	}
	fmt.Fprintf(r.Out, "\nspeed     %.0f pods/s, from the first one created to the last one decided (%.1f s)\n", float64(Pods)/took.Seconds(), took.Seconds())
	return nil
}

// printUnplaced prints what the pods that are not placed lack, and one of them whole.
func (r *runner) printUnplaced(left []*schedulingv1.Pod) {
	lacks := make(map[string]int)
	for _, p := range left {
		var reasons []string
		for _, v := range p.GetVerdicts() {
			reasons = append(reasons, v.GetReason())
		}
		slices.Sort(reasons)
		lacks[strings.Join(slices.Compact(reasons), ", ")]++
	}
	fmt.Fprintf(r.Out, "unplaced  %d; on no node could they go, for these reasons together:\n", len(left))
	rows := slices.SortedFunc(maps.Keys(lacks), func(a, b string) int {
		return cmp.Or(lacks[b]-lacks[a], strings.Compare(a, b))
	})
	for _, reasons := range rows {
		fmt.Fprintf(r.Out, "%9d %s\n", lacks[reasons], reasons)
	}
	fmt.Fprintf(r.Out, "such as   %s/%s: %s\n", left[0].GetNamespace(), left[0].GetName(), left[0].GetMessage())
}

// unplaced lists the pods that are not placed.
func (r *runner) unplaced(ctx context.Context) ([]*schedulingv1.Pod, error) {
	var left []*schedulingv1.Pod
	for token := ""; ; {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		page, err := r.Client.ListPods(call, &schedulingv1.ListPodsRequest{PendingOnly: true, PageSize: 1000, PageToken: token})
		cancel()
		if err != nil {
			return nil, fmt.Errorf("list pods: %w", err)
		}
		left = append(left, page.GetPods()...)
		if token = page.GetNextPageToken(); token == "" {
			return left, nil
		}
	}
}

// totals adds up what nodes have and what is asked of them.
func (r *runner) totals(ctx context.Context) (requested, allocatable map[string]int64, err error) {
	requested, allocatable = make(map[string]int64), make(map[string]int64)
	for token := ""; ; {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		page, err := r.Client.ListNodes(call, &schedulingv1.ListNodesRequest{PageSize: 1000, PageToken: token})
		cancel()
		if err != nil {
			return nil, nil, fmt.Errorf("list nodes: %w", err)
		}
		for _, n := range page.GetNodes() {
			for _, q := range n.GetRequested() {
				requested[q.GetName()] += q.GetValue()
			}
			for _, q := range n.GetAllocatable() {
				allocatable[q.GetName()] += q.GetValue()
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			return requested, allocatable, nil
		}
	}
}
