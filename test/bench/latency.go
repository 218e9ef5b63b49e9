package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/berth-scheduler/berth/internal/coord"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/test/measure"
)

// podTimeout is how long a pod that is alone may take.
const podTimeout = 10 * time.Second

// seen is when something was said of a pod.
type seen struct {
	pod string
	at  time.Time
}

// oneByOne creates the pods of the workload through the gateway, each when the one before it is bound.
//
// The gateway's watch tells a pod when it has been placed, before the placement is recorded and bound. So when it is bound is
// seen in etcd, where the bind is. binding is called before the first.
func (r *result) oneByOne(ctx context.Context, c *crew, binding func()) error {
	conn, err := grpc.NewClient(c.gateway, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	api := schedulingv1.NewSchedulingServiceClient(conn)

	// 1. An idle Berth that knows all nodes.
	if err := c.awaitReady(ctx, time.Minute); err != nil {
		return err
	}
	var from *schedulingv1.Version
	err = c.await(ctx, "the nodes and the owners of the shards", func(ctx context.Context) error {
		s, err := api.GetStatus(ctx, &schedulingv1.GetStatusRequest{})
		if err != nil {
			return err
		}
		if int(s.GetNodes()) != r.workload.nodes || len(s.GetShards()) == 0 {
			return fmt.Errorf("%d nodes, %d shards", s.GetNodes(), len(s.GetShards()))
		}
		for _, shard := range s.GetShards() {
			if shard.GetOwner() == "" {
				return fmt.Errorf("shard %d has no owner", shard.GetShard())
			}
		}
		from = s.GetVersion()
		return nil
	})
	if err != nil {
		return err
	}
	return c.store(ctx, func(ctx context.Context, etcd *coord.Client) error {
		// 2. Who tells when a pod is assumed, and when it is bound.
		_, revision, err := etcd.Get(ctx, placementKeys)
		if err != nil {
			return err
		}
		stream, err := api.WatchPlacements(ctx, &schedulingv1.WatchPlacementsRequest{From: from})
		if err != nil {
			return err
		}
		assumed, bound := make(chan seen, 1), make(chan seen, 1)
		g, ctx := errgroup.WithContext(ctx)
		ctx, cancel := context.WithCancel(ctx)
		g.Go(func() error { return assumptions(ctx, stream, assumed) })
		g.Go(func() error { return bindsOf(ctx, etcd.Watch(ctx, placementKeys, revision+1), bound) })
		g.Go(func() error {
			defer cancel()
			before, err := c.cpu()
			if err != nil {
				return err
			}
			binding()
			if err := r.createEach(ctx, api, assumed, bound); err != nil {
				return err
			}
			after, err := c.cpu()
			r.figures[cpuMicros] = float64((after - before).Microseconds()) / float64(r.workload.pods)
			return err
		})
		return g.Wait()
	})
}

// createEach creates the pods and takes the times.
func (r *result) createEach(ctx context.Context, api schedulingv1.SchedulingServiceClient, assumed, bound <-chan seen) error {
	pods, err := r.workload.podObjects(0, r.workload.pods)
	if err != nil {
		return err
	}
	var toBound, fromCall, toAssumed measure.Sample
	for _, pod := range pods {
		text, err := json.Marshal(pod.Pod)
		if err != nil {
			return fmt.Errorf("encode %s: %w", pod, err)
		}
		called := time.Now()
		if _, err := api.Apply(ctx, &schedulingv1.ApplyRequest{Manifests: string(text)}); err != nil {
			return fmt.Errorf("create %s: %w", pod, err)
		}
		created := time.Now()
		wait, cancel := context.WithTimeout(ctx, podTimeout)
		assumedAt, err1 := awaitPod(wait, assumed, pod.Name())
		boundAt, err2 := awaitPod(wait, bound, pod.Name())
		cancel()
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		millis := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
		toBound = append(toBound, millis(boundAt.Sub(created)))
		fromCall = append(fromCall, millis(boundAt.Sub(called)))
		toAssumed = append(toAssumed, millis(assumedAt.Sub(created)))
	}
	for f, s := range map[figure]measure.Sample{p50: toBound, p50FromCall: fromCall, p50Assumed: toAssumed} {
		r.figures[f] = s.Quantile(0.5)
	}
	for f, s := range map[figure]measure.Sample{p99: toBound, p99FromCall: fromCall, p99Assumed: toAssumed} {
		r.figures[f] = s.Quantile(0.99)
	}
	return nil
}

// awaitPod returns when the pod was seen, which must be the next that is.
func awaitPod(ctx context.Context, from <-chan seen, pod string) (time.Time, error) {
	select {
	case s := <-from:
		if s.pod != pod {
			return s.at, fmt.Errorf("wait for pod %s: %s was placed instead", pod, s.pod)
		}
		return s.at, nil
	case <-ctx.Done():
		return time.Time{}, fmt.Errorf("wait for pod %s: %w", pod, context.Cause(ctx))
	}
}

// assumptions sends the pods that the gateway says are placed, until ctx ends.
func assumptions(ctx context.Context, stream grpc.ServerStreamingClient[schedulingv1.WatchPlacementsResponse], to chan<- seen) error {
	for {
		message, err := stream.Recv()
		at := time.Now()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("watch placements: %w", err)
		case !message.GetPlaced():
			continue // a heartbeat
		}
		_, name, _ := strings.Cut(message.GetPod(), "/")
		select {
		case to <- seen{name, at}:
		case <-ctx.Done():
			return nil
		}
	}
}

// bindsOf sends the pods whose placements come into etcd, until ctx ends.
func bindsOf(ctx context.Context, updates <-chan coord.WatchUpdate, to chan<- seen) error {
	for u := range updates {
		at := time.Now()
		if u.Err != nil {
			return u.Err
		}
		for _, e := range u.Events {
			var p placement
			if err := json.Unmarshal(e.KV.Value, &p); err != nil {
				return fmt.Errorf("decode %s: %w", e.KV.Key, err)
			}
			select {
			case to <- seen{p.Name, at}:
			case <-ctx.Done():
				return nil
			}
		}
	}
	if ctx.Err() == nil {
		return errors.New("the watch of placements in etcd has ended")
	}
	return nil
}
