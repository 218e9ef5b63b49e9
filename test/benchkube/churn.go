package main

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/measure"
)

// churn is a cluster in its daily life: pods come, are bound and go again, and nodes report, while pods that fit nowhere wait.
// It goes on for the life of a pod until as many go as come, and is measured from then on for a window.
type churn struct {
	podsPerSecond  int           // that are created; as many are deleted
	nodesPerSecond int           // that are updated
	life           time.Duration // of a pod, from its creation

	creations, deletions, updates pace
	born                          []atomic.Pointer[birth] // by creation
}

// birth is a pod that was created.
type birth struct {
	name string
	uid  types.UID
	at   time.Time // when the call that created it returned
}

// churnFigures is what churn gave in its window.
type churnFigures struct {
	created, deleted, updated float64        // pods and nodes per second
	kept                      float64        // the least part of what they should have been
	latency                   measure.Sample // in ms, from creation to binding; +Inf of a pod that was not bound
	cpu                       time.Duration  // of the contender
}

const (
	podWorkers    = 32 // creations at once, at most, and as many deletions
	nodeWorkers   = 32
	changingNodes = 10 // one of so many reports more than that it is alive
)

func newChurn() *churn {
	return &churn{podsPerSecond: 200, nodesPerSecond: 500, life: 10 * time.Second}
}

// report returns what node i has to say for the round-th time: that it is alive. Every tenth one also changes a little: its
// annotation or its memory, in turn.
func (l load) report(i, round int, now time.Time) *corev1.Node {
	node := l.node(i)
	for c := range node.Status.Conditions {
		node.Status.Conditions[c].LastHeartbeatTime = metav1.NewTime(now)
	}
	switch i % (2 * changingNodes) {
	case 0:
		node.Annotations = map[string]string{"benchkube.example.com/round": strconv.Itoa(round)}
	case changingNodes:
		memory := node.Status.Allocatable[corev1.ResourceMemory]
		memory.Sub(*resource.NewQuantity(int64(1+round%2)<<20, resource.BinarySI))
		node.Status.Allocatable[corev1.ResourceMemory] = memory
	}
	return node
}

// untracked makes the API server forget who has set which field of an object, and track it no more: work of the API server that
// would only slow down the load.
const untracked = `{"metadata":{"managedFields":[{}]}}`

func (c *churn) prepare(ctx context.Context, s *stage) error {
	nodes := s.plane.Client().CoreV1().Nodes()
	err := kubetest.ForEach(ctx, s.nodes, func(ctx context.Context, i int) error {
		name := s.load.node(i).Name
		if _, err := nodes.Patch(ctx, name, types.MergePatchType, []byte(untracked), metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("update node %s: %w", name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := s.plane.CreatePods(ctx, s.pods, s.load.hopeless); err != nil {
		return err
	}
	return s.plane.CreatePods(ctx, 1, marker)
}

func (c *churn) play(ctx context.Context, s *stage) error {
	// 1. The contender runs, and has told of the pods that fit nowhere.
	if err := s.watcher.AwaitBound(ctx, 1); err != nil {
		return err
	}
	if _, err := s.awaitQuiet(ctx); err != nil {
		return err
	}
	client, err := kubetest.NewClient(s.plane.Kubeconfig())
	if err != nil {
		return err
	}
	// 2. Pods come and go, and nodes report.
	begin := time.Now()
	from, to := begin.Add(c.life), begin.Add(c.life+s.churnWindow)
	c.born = make([]atomic.Pointer[birth], 1+int(to.Sub(begin).Seconds()*float64(c.podsPerSecond)))
	c.creations = pace{perSecond: c.podsPerSecond, workers: podWorkers, do: c.create(client)}
	c.deletions = pace{perSecond: c.podsPerSecond, workers: podWorkers, do: c.delete(client, s.watcher)}
	c.updates = pace{perSecond: c.nodesPerSecond, workers: nodeWorkers, do: c.update(client, s)}
	f := &churnFigures{}
	g, loading := errgroup.WithContext(ctx)
	g.Go(func() error { return c.creations.run(loading, begin, to) })
	g.Go(func() error { return c.deletions.run(loading, from, to) })
	g.Go(func() error { return c.updates.run(loading, begin, to) })
	g.Go(func() error { return c.measure(loading, s, from, to, f) })
	err = g.Wait()
	s.r.pods = int(c.creations.made.Load())
	if err != nil {
		return err
	}
	s.r.churn = f
	// 3. All that came are bound.
	err = s.awaitBound(ctx, 1+s.r.pods)
	f.latency = latencies(c.births(), from, to, s.watcher.BoundAt)
	return err
}

// create returns the operation that creates pod i.
func (c *churn) create(client *kubernetes.Clientset) func(context.Context, int) (bool, error) {
	pods := client.CoreV1().Pods(metav1.NamespaceDefault)
	return func(ctx context.Context, i int) (bool, error) {
		pod := kubetest.PlainPod(i)
		created, err := pods.Create(ctx, pod, metav1.CreateOptions{})
		if err != nil {
			return false, fmt.Errorf("create pod %s: %w", pod.Name, err)
		}
		c.born[i].Store(&birth{created.Name, created.UID, time.Now()})
		return true, nil
	}
}

// delete returns the operation that deletes pod i, unless it is not there or not bound.
func (c *churn) delete(client *kubernetes.Clientset, watcher *kubetest.Watcher) func(context.Context, int) (bool, error) {
	pods := client.CoreV1().Pods(metav1.NamespaceDefault)
	return func(ctx context.Context, i int) (bool, error) {
		pod := c.born[i].Load()
		if pod == nil {
			return false, nil
		}
		if _, bound := watcher.BoundAt(pod.uid); !bound {
			return false, nil
		}
		if err := pods.Delete(ctx, pod.name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
			return false, fmt.Errorf("delete pod %s: %w", pod.name, err)
		}
		return true, nil
	}
}

// update returns the operation that makes the next node report.
func (c *churn) update(client *kubernetes.Clientset, s *stage) func(context.Context, int) (bool, error) {
	nodes := client.CoreV1().Nodes()
	return func(ctx context.Context, i int) (bool, error) {
		node := s.load.report(i%s.nodes, i/s.nodes, time.Now())
		if _, err := nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
			return false, fmt.Errorf("update node %s: %w", node.Name, err)
		}
		return true, nil
	}
}

// measure notes the rates of the three loads, and the contender's CPU time, from one time to another.
func (c *churn) measure(ctx context.Context, s *stage, from, to time.Time, f *churnFigures) error {
	loads := []*pace{&c.creations, &c.deletions, &c.updates}
	var made [3]int64
	if err := sleepUntil(ctx, from); err != nil {
		return err
	}
	for k, p := range loads {
		made[k] = p.made.Load()
	}
	cpu, err := s.cpu()
	if err != nil {
		return err
	}
	if err := sleepUntil(ctx, to); err != nil {
		return err
	}
	after, err := s.cpu()
	if err != nil {
		return err
	}
	f.cpu, f.kept = after-cpu, 1
	for k, rate := range []*float64{&f.created, &f.deleted, &f.updated} {
		*rate = float64(loads[k].made.Load()-made[k]) / to.Sub(from).Seconds()
		f.kept = min(f.kept, *rate/float64(loads[k].perSecond))
	}
	return nil
}

// births returns the pods that were created.
func (c *churn) births() []birth {
	var all []birth
	for i := range c.born {
		if b := c.born[i].Load(); b != nil {
			all = append(all, *b)
		}
	}
	return all
}

// latencies returns the times in ms from creation to binding of the pods that were created from one time to another. A watch
// may see the binding before the call that creates the pod returns: that is 0.
func latencies(born []birth, from, to time.Time, boundAt func(types.UID) (time.Time, bool)) measure.Sample {
	var sample measure.Sample
	for _, b := range born {
		if b.at.Before(from) || !b.at.Before(to) {
			continue
		}
		at, bound := boundAt(b.uid)
		if !bound {
			sample = append(sample, math.Inf(1))
			continue
		}
		sample = append(sample, max(0, at.Sub(b.at).Seconds()*1000))
	}
	return sample
}

func (c *churn) judge(_ context.Context, s *stage) (expected, error) {
	return expected{bound: 1 + s.r.pods - int(c.deletions.made.Load()), pending: s.pods}, nil
}
