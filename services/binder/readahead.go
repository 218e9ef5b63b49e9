package binder

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
)

// ahead is how many pods of a request are read at most while one before them is asked about: what is read stays new, and little of it is read in vain.
const ahead = 4

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
	object  *corev1.Pod // nil: there is none
	err     error
	paniced any
}

func (t *term) newReadings(ctx context.Context, pods []*binderv1.PodAttempt) *readings {
	r := &readings{term: t, pods: pods, begun: 1, of: make(map[*binderv1.PodAttempt]chan reading)}
	r.ctx, r.cancel = context.WithCancel(ctx)
	return r
}

// end ends what is read still, and waits for that.
func (r *readings) end() {
	r.cancel()
	r.running.Wait()
}

// begin begins to read those behind the pod of an index.
func (r *readings) begin(k int) {
	for ; r.begun < min(k+1+ahead, len(r.pods)); r.begun++ {
		pod := r.pods[r.begun]
		namespace, name, reads := "", "", false
		r.term.ledger.read(func(st *cluster.State) {
			if row := st.Pod(cluster.PodID(pod.GetId())); row != nil && row.UID == pod.GetUid() && !row.Placed() {
				namespace, name, reads = row.Namespace, row.Name, r.term.extenders.needsPod(r.term.asks(st, row))
			}
		})
		if !reads {
			continue
		}
		out := make(chan reading, 1)
		r.of[pod] = out
		r.running.Go(func() {
			var is reading
			defer func() {
				is.paniced = recover()
				out <- is
			}()
			is.object, is.err = r.term.object(r.ctx, namespace, name)
		})
	}
}

// take returns a pod that has been read. False: it has not been yet.
func (r *readings) take(pod *binderv1.PodAttempt) (object *corev1.Pod, err error, ok bool) {
	select {
	case is := <-r.of[pod]:
		if is.paniced != nil {
			panic(is.paniced)
		}
		return is.object, is.err, true
	default: // also where there is none
		return nil, nil, false
	}
}
