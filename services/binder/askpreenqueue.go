package binder

import (
	"context"
	"errors"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/extender"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/pluginhost"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// maxEntering is how many pods a request may have.
const maxEntering = 64

// askPreEnqueue has services say which pods may be tried. It changes nothing, and no lock is held meanwhile: it is the shard that keeps pods out.
func (t *term) askPreEnqueue(ctx context.Context, req *binderv1.AskPreEnqueueRequest) (*binderv1.AskPreEnqueueResponse, error) {
	if err := t.validatePreEnqueue(req); err != nil {
		return nil, err
	}
	if err := t.admit("pre-enqueue", req.GetShard(), req.GetShardRevision(), req.GetVersion(), len(req.GetPods())); err != nil {
		return nil, err
	}
	ctx, done := t.within(ctx)
	defer done()
	out := &binderv1.AskPreEnqueueResponse{Entrances: make([]*binderv1.Entrance, len(req.GetPods()))}
	for name, pods := range t.entering(req, out) {
		for k, said := range t.services().PreEnqueue(ctx, cluster.Epoch(t.epoch), name, pods.of) {
			out.Entrances[pods.at[k]] = toEntrance(said)
		}
	}
	if t.ended() {
		return nil, errNotActive("the term has ended")
	}
	for i, e := range out.GetEntrances() {
		about := "pre_enqueue_"
		if req.GetPods()[i].GetOnlySorts() {
			about = "queue_sort_"
		}
		t.metrics.asked.WithLabelValues(about + entranceResult(e.GetResult())).Inc()
	}
	return out, nil
}

func (t *term) validatePreEnqueue(req *binderv1.AskPreEnqueueRequest) error {
	var bad violations
	t.checkShard(&bad, req.GetShard())
	t.checkVersion(&bad, req.GetVersion())
	if n := len(req.GetPods()); n == 0 || n > maxEntering {
		bad.note("pods", "%d pods; want 1 to %d", n, maxEntering)
	}
	if t.services() == nil {
		bad.note("pods", "this binder has no plugin services")
	}
	return rpc.Invalid(bad...)
}

// enteringPods are pods of a profile of a request, and where in that they are.
type enteringPods struct {
	of []pluginhost.Entering
	at []int
}

// entering returns the pods of a request that are to be asked about, by scheduler name, and says of the others that they are gone.
func (t *term) entering(req *binderv1.AskPreEnqueueRequest, out *binderv1.AskPreEnqueueResponse) map[string]*enteringPods {
	names := make(map[string]*enteringPods)
	t.ledger.read(func(st *cluster.State) {
		for i, p := range req.GetPods() {
			row := st.Pod(cluster.PodID(p.GetId()))
			if row == nil || row.UID != p.GetUid() || row.Phase != cluster.Pending || row.Deleting {
				out.Entrances[i] = &binderv1.Entrance{Result: binderv1.Entrance_RESULT_GONE}
				continue
			}
			name := st.Class(row.Class).Spec.SchedulerName
			if names[name] == nil {
				names[name] = new(enteringPods)
			}
			of, read := names[name], t.podNamed // whoever keeps pods out has it tried again when it has heard that the pod has changed, perhaps before the source has
			if p.GetOnlySorts() || !t.services().PreEnqueues(name) {
				read = t.lastNamed
			}
			of.of = append(of.of, pluginhost.Entering{UID: row.UID, Namespace: row.Namespace, Name: row.Name, Pod: read(row.UID, row.Namespace, row.Name), OnlySorts: p.GetOnlySorts(), Queued: queuedOf(p)})
			of.at = append(of.at, i)
		}
	})
	return names
}

// queuedOf returns how a pod waits.
func queuedOf(p *binderv1.EnteringPod) *pluginv1.Queued {
	return &pluginv1.Queued{
		SinceUnixNanos: p.GetSinceUnixNanos(), FirstUnixNanos: p.GetFirstUnixNanos(), Arrival: p.GetArrival(), Attempts: p.GetAttempts(), Unschedulable: p.GetUnschedulable(), Errors: p.GetErrors(),
	}
}

func toEntrance(said pluginhost.Entrance) *binderv1.Entrance {
	var no pluginhost.Rejection
	switch {
	case said.Err == nil:
		return &binderv1.Entrance{Result: binderv1.Entrance_RESULT_ENTERS, SortKey: said.Key.Key, SortOrder: said.Key.Order}
	case errors.As(said.Err, &no):
		return &binderv1.Entrance{Result: binderv1.Entrance_RESULT_GATED, Plugin: no.Plugin, Message: no.Reason, Told: said.Told}
	case errors.Is(said.Err, pluginhost.ErrPodGone):
		return &binderv1.Entrance{Result: binderv1.Entrance_RESULT_GONE}
	}
	return &binderv1.Entrance{Result: binderv1.Entrance_RESULT_FAILED, Message: extender.Short(said.Err.Error())}
}

func entranceResult(r binderv1.Entrance_Result) string {
	switch r {
	case binderv1.Entrance_RESULT_ENTERS:
		return "enters"
	case binderv1.Entrance_RESULT_GATED:
		return "gated"
	case binderv1.Entrance_RESULT_GONE:
		return "gone"
	}
	return "failed"
}
