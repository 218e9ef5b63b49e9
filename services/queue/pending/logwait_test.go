package pending

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// BenchmarkLogWaits folds node updates and deletions of pods, each in its turn and one a millisecond, into a queue of 100,000
// unschedulable pods of 1,000 signatures, on 999 nodes with 19,980 pods, while a driver looks, pops and rejects as a shard's
// does. It tells how long the log waits for a delta: to get the lock that readers of the state hold, and to fold under it.
// None of the deltas helps a pod.
//
// Each delta is an operation: -benchtime 5000x.
func BenchmarkLogWaits(b *testing.B) {
	w := newWaiting(b, 999, 1000, 100, 20)
	for _, kind := range []struct {
		name string
		next func() cluster.Delta
	}{{"node updates", w.updateNode}, {"pod deletions", w.deletePod}} {
		b.Run(kind.name, func(b *testing.B) {
			stop, done := make(chan struct{}), make(chan struct{})
			woken := make(chan struct{}, 1)
			go func() {
				defer close(done)
				for {
					select {
					case <-stop:
						return
					case <-woken:
						w.drive()
					}
				}
			}()
			waits, holds := make([]time.Duration, 0, b.N), make([]time.Duration, 0, b.N)
			for range b.N {
				time.Sleep(time.Millisecond) // of real time: a log that is told of 1,000 deltas a second, not as many as can be
				d := kind.next()
				came := time.Now()
				w.mu.Lock()
				began := time.Now()
				w.apply(d)
				w.mu.Unlock()
				ended := time.Now()
				waits, holds = append(waits, ended.Sub(came)), append(holds, ended.Sub(began))
				select {
				case woken <- struct{}{}:
				default:
				}
			}
			close(stop)
			<-done
			w.refill()
			for name, took := range map[string][]time.Duration{"wait": waits, "hold": holds} {
				slices.Sort(took)
				for _, p := range []int{50, 99} {
					b.ReportMetric(float64(took[len(took)*p/100].Nanoseconds())/1e6, fmt.Sprintf("ms-%s-p%d", name, p))
				}
			}
			b.ReportMetric(float64(w.queue.Count(Unschedulable)), "unschedulable")
		})
	}
}

// waiting is a queue with unschedulable pods, and what its shard's driver and its replica share.
type waiting struct {
	tb    testing.TB
	now   time.Time
	mu    sync.RWMutex // the replica's
	st    *cluster.State
	queue *Queue

	nodes, perNode int
	gone           []cluster.PodID // that are to come back
	deltas         int
}

// newWaiting returns a queue of as many pods of each class as are asked for. They fit no node, nor would if the half of its pods
// that are of lower priority were gone, which takes a dry run to tell.
func newWaiting(tb testing.TB, nodes, classes, perClass, perNode int) *waiting {
	w := &waiting{tb: tb, now: time.Unix(1_700_000_000, 0), st: cluster.New(cluster.Version{Epoch: 1}), nodes: nodes, perNode: perNode}
	w.queue = NewQueue(0, evaluating{engine.NewEvaluator(engine.EvaluatorConfig{Parallelism: 1})})
	w.apply(settings(1))
	w.apply(cluster.ClassDefined{ID: 0, Spec: resources(700, 1<<26)})
	for n := range nodes {
		w.apply(cluster.NodeSet{Index: cluster.NodeIndex(n), Node: w.node(n, 0)})
		for k := range perNode {
			w.apply(cluster.PodSet{ID: cluster.PodID(n*perNode + k), Pod: w.placed(n*perNode + k)})
		}
	}
	for k := range classes {
		class := cluster.ClassID(k + 1)
		w.apply(cluster.ClassDefined{ID: class, Spec: resources(9_001+int64(k), 1<<28)})
		for i := range perClass {
			id := w.st.FreePod()
			w.apply(cluster.PodSet{ID: id, Pod: cluster.Pod{
				UID: fmt.Sprint("waits-", k, "-", i), Name: fmt.Sprint("waits-", k, "-", i), Namespace: "default", Class: class, Priority: 10, Created: int64(id),
			}})
		}
	}
	w.drive()
	return w
}

func resources(cpu, memory int64) cluster.ClassSpec {
	amounts := []cluster.Quantity{{Name: "cpu", Value: cpu}, {Name: "memory", Value: memory}}
	return cluster.ClassSpec{SchedulerName: testScheduler, Requests: amounts, ScoreRequests: amounts, NonZeroCPU: cpu, NonZeroMemory: memory}
}

func (w *waiting) node(n, revision int) cluster.Node {
	name := fmt.Sprint("node-", n)
	return cluster.Node{
		Name: name,
		Labels: []cluster.Label{
			{Key: "kubernetes.io/hostname", Value: name}, {Key: "revision", Value: fmt.Sprint(revision)},
			{Key: "topology.kubernetes.io/zone", Value: fmt.Sprint("zone-", n%3)},
		},
		Allocatable: []cluster.Quantity{{Name: "cpu", Value: 16_000}, {Name: "memory", Value: 64 << 30}, {Name: "pods", Value: 110}},
	}
}

func (w *waiting) placed(k int) cluster.Pod {
	return cluster.Pod{
		UID: fmt.Sprint("placed-", k), Name: fmt.Sprint("placed-", k), Namespace: "default", NodeName: fmt.Sprint("node-", k/w.perNode),
		Priority: int32(k % 2 * 100),
	}
}

func (w *waiting) apply(d cluster.Delta) {
	if err := w.st.Apply(d); err != nil {
		w.tb.Fatal(err)
	}
	w.queue.Apply(w.now, w.st, d)
}

func (w *waiting) updateNode() cluster.Delta {
	w.deltas++
	n := w.deltas * 7 % w.nodes
	return cluster.NodeSet{Index: cluster.NodeIndex(n), Node: w.node(n, w.deltas)}
}

// deletePod deletes a pod of low priority; when all have been, they come back first.
func (w *waiting) deletePod() cluster.Delta {
	if len(w.gone) == w.nodes*w.perNode/2 {
		w.mu.Lock()
		w.refill()
		w.mu.Unlock()
	}
	k := len(w.gone) * 14 % (w.nodes * w.perNode)
	id, ok := w.st.PodByUID(fmt.Sprint("placed-", k))
	if !ok {
		w.tb.Fatalf("pod %d is gone", k)
	}
	w.gone = append(w.gone, cluster.PodID(k))
	return cluster.PodRemoved{ID: id}
}

func (w *waiting) refill() {
	for _, k := range w.gone {
		w.apply(cluster.PodSet{ID: w.st.FreePod(), Pod: w.placed(int(k))})
	}
	w.gone = nil
}

// drive does what a shard's driver does until nothing is ready. What it pops fits nowhere.
func (w *waiting) drive() {
	for {
		w.look()
		w.mu.RLock()
		batch := w.queue.Pop(w.now, 256)
		evaluated := w.st.Version()
		w.mu.RUnlock()
		if batch == nil {
			return
		}
		for len(batch) > 0 {
			w.mu.RLock()
			for began := time.Now(); len(batch) > 0 && time.Since(began) < 200*time.Microsecond; batch = batch[1:] {
				w.queue.Reject(w.now, w.st, batch[0], Diagnosis{
					Version: evaluated, Message: "no", Verdicts: []engine.VerdictCount{{Plugin: engine.NodeResourcesFit, Reason: "Insufficient cpu", Count: 1000}},
				})
			}
			w.mu.RUnlock()
		}
	}
}

// look brings back the pods that changes could help, in parts as long as a driver takes.
func (w *waiting) look() {
	for done := false; !done; {
		w.mu.RLock()
		began := time.Now()
		done = w.queue.RecheckUntil(w.now, w.st, func() bool { return time.Since(began) >= 200*time.Microsecond })
		w.mu.RUnlock()
	}
}
