package binder

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
)

// ahead is how many pods of a request are read at most while one before them is asked about: what is read stays new.
const ahead = 4

// readFor is how long a pod whose turn it is waits until it is read: else whoever waits for the turn would wait for the API server.
const readFor = 10 * time.Millisecond

// readings are pods of a request that are read while others are asked about, each as it is needed to be asked about itself. One goroutine uses them, and ends them.
type readings struct {
	term    *term
	ctx     context.Context
	cancel  context.CancelFunc
	pods    []*binderv1.PodAttempt
	begun   int // of pods, how many are read, or need not be
	of      map[*binderv1.PodAttempt]chan reading
	running sync.WaitGroup
}

// reading is what has come of reading a pod.
type reading struct {
	object   *corev1.Pod // nil: there is none
	err      error
	panicked any

	subject engine.Subject // that the pod had before it was read, and where it was to go
	node    string
}

func (t *term) newReadings(ctx context.Context, pods []*binderv1.PodAttempt) *readings {
	r := &readings{term: t, pods: pods, of: make(map[*binderv1.PodAttempt]chan reading)}
	r.ctx, r.cancel = context.WithCancel(ctx)
	return r
}

// end ends what is read still, and waits for that.
func (r *readings) end() {
	r.cancel()
	r.running.Wait()
}

// begin begins to read those of a turn behind the pod of an index: the more are before that, the more, so that little is read in vain.
func (r *readings) begin(k int, turn *askTurn) {
	for r.begun = max(r.begun, k+1); r.begun < min(k+1+min(k+1, ahead), len(r.pods)); r.begun++ {
		pod := r.pods[r.begun]
		var is reading
		namespace, name, reads := "", "", false
		r.term.ledger.read(func(st *cluster.State) {
			if row := st.Pod(cluster.PodID(pod.GetId())); row != nil && row.UID == pod.GetUid() && !row.Placed() {
				in := r.term.asks(st, row)
				namespace, name, reads = row.Namespace, row.Name, in == turn.in && r.term.extenders.extendersOf(in) == 0 && r.term.extenders.needsPod(in)
				is.subject, is.node = engine.SubjectOf(&row.Pod), row.RequiredNode
			}
		})
		if !reads {
			continue
		}
		out := make(chan reading, 1)
		r.of[pod] = out
		r.running.Go(func() {
			defer func() {
				is.panicked = recover()
				out <- is
			}()
			is.object, is.err = r.term.object(r.ctx, namespace, name)
		})
	}
}

// take returns a pod that has been read, or is in a moment. False: it is not, or it was another one to the scheduler when its reading began.
func (r *readings) take(a *asked) (object *corev1.Pod, err error, ok bool) {
	out := r.of[r.pods[a.at]]
	if out == nil {
		return nil, nil, false
	}
	timer := time.NewTimer(r.term.extenders.readFor)
	defer timer.Stop()
	select {
	case is := <-out:
		if is.panicked != nil {
			panic(is.panicked)
		}
		return is.object, is.err, is.subject == a.subject && is.node == a.pod.RequiredNode
	case <-timer.C:
	case <-r.ctx.Done():
	}
	return nil, nil, false
}
