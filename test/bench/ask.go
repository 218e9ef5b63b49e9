package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/test/measure"
)

// Questions that people ask while pods are placed. They come at their times, whether those before are answered or not.
const (
	questionTimeout = 10 * time.Second
	questionsAtOnce = 64 // more are not sent, and count as unanswered
)

// asker asks the gateway at a steady rate, explanations and what-ifs in turns, and takes the times until the answers. Beside each it
// asks for the gateway's health, which costs nothing: what that takes is what any call does on so busy a machine.
type asker struct {
	api      schedulingv1.SchedulingServiceClient
	health   grpc_health_v1.HealthClient
	workload workload

	mu         sync.Mutex
	whys, ifs  measure.Sample // ms
	healths    measure.Sample // ms
	cold       measure.Sample // of the first question, which nobody has asked before
	unanswered int
	first      error // of those that were not
	turns      []turn
}

// ask asks until ctx ends, and waits for the answers that are under way. By turns, which are since a time, the first one is without
// questions.
func (a *asker) ask(ctx context.Context, since time.Time) {
	var asking sync.WaitGroup
	defer asking.Wait()
	slots := make(chan struct{}, questionsAtOnce)
	random := rand.New(rand.NewPCG(1, 2))
	a.call(ctx, &a.cold, a.why(0))
	tick := time.NewTicker(time.Second / time.Duration(a.workload.asks))
	defer tick.Stop()
	turns := takeTurns(since)
	defer func() { a.turns = turns.over }()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if a.workload.byTurns && !turns.on() {
			continue
		}
		pod := random.IntN(a.workload.pods)
		select {
		case slots <- struct{}{}:
		default:
			a.note(nil, 0, status.Error(codes.ResourceExhausted, "too many questions are not answered yet"))
			continue
		}
		if !a.workload.byTurns { // where only questions are to cost something
			asking.Go(func() { a.call(ctx, &a.healths, a.checkHealth) })
		}
		asking.Go(func() {
			defer func() { <-slots }()
			if n%2 == 0 {
				a.call(ctx, &a.whys, a.why(pod))
			} else {
				a.call(ctx, &a.ifs, a.whatIf(podMilliCPU+n%100))
			}
		})
	}
}

// call makes a call and takes its time. One that was made is waited for: what was cut off would be missing among the slow ones.
func (a *asker) call(ctx context.Context, times *measure.Sample, call func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), questionTimeout)
	defer cancel()
	began := time.Now()
	err := call(ctx)
	a.note(times, time.Since(began), err)
}

func (a *asker) checkHealth(ctx context.Context) error {
	_, err := a.health.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return err
}

// why asks why a pod is where it is.
func (a *asker) why(pod int) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := a.api.ExplainPod(ctx, &schedulingv1.ExplainPodRequest{Name: fmt.Sprintf("pod-%06d", pod)})
		return err
	}
}

// whatIf asks where another pod would go.
func (a *asker) whatIf(milliCPU int) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := a.api.WhatIf(ctx, &schedulingv1.WhatIfRequest{Manifests: fmt.Sprintf(
			`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "what-if"}, "spec": {"containers": [{"name": "main", "image": "pause", "resources": {"requests": {"cpu": "%dm"}}}]}}`,
			milliCPU)})
		return err
	}
}

func (a *asker) note(s *measure.Sample, took time.Duration, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.unanswered++
		if a.first == nil {
			a.first = err
		}
		return
	}
	*s = append(*s, float64(took.Microseconds())/1000)
}

// asking asks while follow runs, from the first bind on, which it is told of by follow and tells binding of, and takes in the
// figures. What is asked before waits for the cluster to be read, not for those who place pods.
func (r *result) asking(ctx context.Context, c *crew, binding func(), follow func(binding func()) error) error {
	conn, err := grpc.NewClient(c.gateway, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	a := &asker{api: schedulingv1.NewSchedulingServiceClient(conn), health: grpc_health_v1.NewHealthClient(conn), workload: r.workload}
	err = c.await(ctx, "the gateway to know all nodes", func(ctx context.Context) error {
		answer, err := a.api.GetStatus(ctx, &schedulingv1.GetStatusRequest{})
		if err == nil && int(answer.GetNodes()) != r.workload.nodes {
			err = fmt.Errorf("it knows %d nodes", answer.GetNodes())
		}
		return err
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var asking sync.WaitGroup
	err = follow(func() {
		asking.Go(func() { a.ask(ctx, c.began) })
		binding()
	})
	cancel()
	asking.Wait()
	r.figures[whyP99], r.figures[ifP99] = a.whys.Quantile(0.99), a.ifs.Quantile(0.99)
	r.figures[healthP99] = a.healths.Quantile(0.99)
	r.figures[whyP50], r.figures[ifP50], r.figures[coldWhy] = a.whys.Median(), a.ifs.Median(), a.cold.Median()
	r.figures[unanswered] = float64(a.unanswered)
	r.turns = a.turns
	if a.first != nil {
		progress("%s: not answered: %v", r.workload.name, a.first)
	}
	return err
}
