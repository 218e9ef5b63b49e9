package binder

import (
	"cmp"
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/extender"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
)

// How a question reads its pod: of the ledger, of the source, and of the API server.

// readPod finds out what the pod is, as it is sent. Extenders are sent it as new as there is, plugins as Berth has it: as kube-scheduler's. False: that is the result.
func (a *asked) readPod(ctx context.Context) bool {
	if a.extenders.extendersOf(a.in) == 0 {
		if last := a.extenders.objects.LastPod(a.pod.Namespace, a.pod.Name); last != nil && string(last.UID) == a.pod.UID {
			a.sent = last
			return true
		}
	}
	if a.turn.in != 0 { // others would wait for the API server
		a.err = errNoTurn
		return false
	}
	object, err := a.object(ctx, a.pod.Namespace, a.pod.Name)
	switch {
	case err != nil:
		a.log.Warn("pod not read that extenders are to be asked about", "pod", a.pod.Namespace+"/"+a.pod.Name, "err", err)
		if a.err = a.ends(ctx, nil); a.err == nil {
			a.result(binderv1.Outcome_RESULT_FAILED, "")
			a.resp.Error = extender.Short("read the pod: " + err.Error())
		}
		return false
	case object == nil || string(object.UID) != a.pod.UID: // the log will tell
		a.result(binderv1.Outcome_RESULT_FAILED, conflictGone)
		a.resp.Error = "the API server has no such pod any more"
		return false
	}
	object.TypeMeta, object.ManagedFields = metav1.TypeMeta{}, nil
	a.sent, a.told = object, extender.NewPod(object)
	return true
}

// object reads a pod, nil if there is none, in a few tries.
func (t *term) object(ctx context.Context, namespace, name string) (object *corev1.Pod, err error) {
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for range mostReads {
		select {
		case <-ctx.Done():
			return nil, cmp.Or(err, context.Cause(ctx))
		case <-pause.C:
		}
		if object, err = t.extenders.objects.Pod(ctx, namespace, name); err == nil {
			return object, nil
		}
		pause.Reset(notRead)
	}
	return nil, err
}

// read calls fn between two transactions with the pod, if it still waits to be placed by this attempt. If it does not, that is the result.
func (a *asked) read(fn func(*cluster.State, *cluster.PodRow)) {
	var result binderv1.Outcome_Result
	var conflict string
	var node cluster.NodeIndex
	a.ledger.read(func(st *cluster.State) {
		row := st.Pod(cluster.PodID(a.req.GetId()))
		if result, conflict = a.stands(st, row); result == binderv1.Outcome_RESULT_UNSPECIFIED {
			fn(st, row)
		} else if result == binderv1.Outcome_RESULT_PLACED {
			node = row.Node
		}
	})
	if result != binderv1.Outcome_RESULT_UNSPECIFIED {
		a.result(result, conflict)
		a.resp.Outcome.Node = int32(node)
	}
}

// stands returns what is to be said of a pod that is not what the attempt was made for, or has been placed; RESULT_UNSPECIFIED of one that waits. The
// caller holds the ledger's lock.
func (a *asked) stands(st *cluster.State, row *cluster.PodRow) (result binderv1.Outcome_Result, conflict string) {
	switch {
	case row == nil || row.UID != a.req.GetUid():
		return binderv1.Outcome_RESULT_GONE, conflictGone
	case row.Placed():
		return binderv1.Outcome_RESULT_PLACED, ""
	case row.Deleting || len(row.Gates) > 0 || a.ledger.profile(row) == nil:
		return binderv1.Outcome_RESULT_GONE, conflictGone
	case a.names.shares(st, row.Class) && st.Yields(row.Class):
		return binderv1.Outcome_RESULT_GONE, conflictYielded
	case row.Attempt >= a.req.GetAttempt():
		return binderv1.Outcome_RESULT_RETRY, conflictRetry
	case a.pod.UID != "" && (engine.SubjectOf(&row.Pod) != a.subject || row.RequiredNode != a.pod.RequiredNode || row.Nominated != a.pod.Nominated):
		return binderv1.Outcome_RESULT_RETRY, conflictRetry
	}
	return binderv1.Outcome_RESULT_UNSPECIFIED, ""
}
