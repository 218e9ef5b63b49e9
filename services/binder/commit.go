package binder

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/wire"
)

// The reasons of the PodScheduled condition.
const (
	reasonUnschedulable = "Unschedulable"
	reasonError         = "SchedulerError"
)

// The bounds of requests, as the protos say.
const (
	maxPods    = 10_000
	maxClasses = 1_000
	maxReports = 10_000
)

// violations collects what is wrong with a request, but not more than a caller can use.
type violations []rpc.Violation

func (v *violations) note(field, format string, args ...any) {
	if len(*v) < 20 {
		*v = append(*v, rpc.Violation{Field: field, Description: fmt.Sprintf(format, args...)})
	}
}

// validate returns the classes' candidates of a request that makes sense.
func (t *term) validate(req *binderv1.CommitRequest) ([]engine.Candidates, error) {
	var bad violations
	if s := req.GetShard(); s < 0 || s >= t.shardsOf {
		bad.note("shard", "%d; there are %d shards", s, t.shardsOf)
	}
	if v := wire.Version(req.GetVersion()); v.Epoch < 0 || v.Seq < 0 {
		bad.note("version", "%v is negative", v)
	} else if now := t.ledger.version(); v.Epoch == now.Epoch && v.Seq > now.Seq {
		bad.note("version", "%v has not been yet: the log is at %v", v, now)
	}
	if n := len(req.GetPods()); n == 0 || n > maxPods {
		bad.note("pods", "%d pods; want 1 to %d", n, maxPods)
	}
	if n := len(req.GetClasses()); n > maxClasses {
		bad.note("classes", "%d classes; want at most %d", n, maxClasses)
	}
	for i, p := range req.GetPods() {
		if p.GetAttempt() < 1 {
			bad.note(fmt.Sprintf("pods[%d].attempt", i), "%d; attempts count from 1", p.GetAttempt())
		}
		if c := p.GetClassIndex(); c < -1 || int(c) >= len(req.GetClasses()) {
			bad.note(fmt.Sprintf("pods[%d].class_index", i), "%d of %d classes", c, len(req.GetClasses()))
		}
	}
	candidates := make([]engine.Candidates, len(req.GetClasses()))
	for i, c := range req.GetClasses() {
		groups, err := wire.Groups(c.GetGroups())
		if err != nil {
			bad.note(fmt.Sprintf("classes[%d].groups", i), "%v", err)
		}
		candidates[i] = engine.Candidates{Class: cluster.ClassID(c.GetClass()), Groups: groups}
	}
	if len(bad) > 0 {
		return nil, rpc.Invalid(bad...)
	}
	return candidates, nil
}

// validateReports says what is wrong with a request.
func validateReports(req *binderv1.ReportRequest) error {
	var bad violations
	if n := len(req.GetReports()); n > maxReports {
		bad.note("reports", "%d reports; want at most %d", n, maxReports)
	}
	for i, r := range req.GetReports() {
		if reason := r.GetReason(); reason != reasonUnschedulable && reason != reasonError {
			bad.note(fmt.Sprintf("reports[%d].reason", i), "%q; want %s or %s", reason, reasonUnschedulable, reasonError)
		}
	}
	return rpc.Invalid(bad...)
}

// commit places the pods of a request in order, and hands what it placed to the recorder. The first pod whose best
// node cannot be proven ends the batch: pods behind it are told to retry too, so that where batches are cut never
// changes what is placed where.
func (t *term) commit(req *binderv1.CommitRequest) (*binderv1.CommitResponse, error) {
	candidates, err := t.validate(req)
	if err != nil {
		return nil, err
	}
	// 1. May this shard commit at all?
	if v := wire.Version(req.GetVersion()); int64(v.Epoch) != t.epoch {
		return nil, rpc.Error(codes.Aborted, "OTHER_EPOCH", "commit at version %v: the epoch is %d", v, t.epoch)
	}
	if !t.shards.mayCommit(req.GetShard(), req.GetShardRevision()) {
		return nil, rpc.Error(codes.FailedPrecondition, "SHARD_LOST",
			"commit of shard %d claimed at revision %d: it has been claimed since", req.GetShard(), req.GetShardRevision())
	}
	// 2. Is there room for more unbound pods?
	if !t.unbound.take(len(req.GetPods())) {
		err := rpc.Error(codes.ResourceExhausted, "TOO_MANY_UNBOUND", "%d pods wait for their bind", t.unbound.count())
		return nil, rpc.WithRetry(err, 50*time.Millisecond)
	}
	// 3. Place.
	resp, placed, err := t.place(req, candidates)
	t.unbound.give(len(req.GetPods()) - len(placed))
	// 4. Have it recorded; what was assumed before an error is in the log, and so must be.
	if len(placed) > 0 {
		t.recorder.add(placed)
	}
	switch {
	case t.ended(): // then the log is closed, which is also an error of place
		return nil, errNotActive("the term has ended")
	case err != nil:
		t.fail(err)
		return nil, rpc.Error(codes.Internal, "BROKEN_LEDGER", "commit: the ledger is broken")
	}
	return resp, nil
}

// place assumes what fits, in order, in one go: no other commit and nothing the source tells comes in between. It
// returns the placements even with an error, which means a broken ledger.
func (t *term) place(req *binderv1.CommitRequest, candidates []engine.Candidates) (*binderv1.CommitResponse, []source.Binding, error) {
	l := t.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	st := l.state
	placer := engine.NewPlacer(t.evaluator, st, wire.Version(req.GetVersion()).Seq, candidates)
	resp := &binderv1.CommitResponse{Outcomes: make([]*binderv1.Outcome, len(req.GetPods()))}
	outcomes := make([]binderv1.Outcome, len(req.GetPods()))
	placed := make([]source.Binding, 0, len(req.GetPods()))
	ended := false
	for i, p := range req.GetPods() {
		out := &outcomes[i]
		resp.Outcomes[i] = out
		id := cluster.PodID(p.GetId())
		row := st.Pod(id)
		switch {
		case row == nil || row.UID != p.GetUid():
			out.Result = binderv1.Outcome_RESULT_GONE
			continue
		case row.Placed():
			out.Result, out.Node = binderv1.Outcome_RESULT_PLACED, int32(row.Node)
			continue
		case row.Deleting || len(row.Gates) > 0 || !sameClass(row, req, p):
			out.Result = binderv1.Outcome_RESULT_GONE
			continue
		case ended || row.Attempt >= p.GetAttempt(): // an attempt that was placed and forgotten is over
			out.Result = binderv1.Outcome_RESULT_RETRY
			continue
		}
		node, placement := cluster.NoNode, engine.NoFit
		if row.Pin == "" {
			node, placement = placer.Place(int(p.GetClassIndex()))
		} else if node = st.Nodes.ByName(row.Pin); node != cluster.NoNode {
			placement = placer.PlacePinned(row.Class, node)
		}
		switch placement {
		case engine.Placed:
			if err := l.apply(cluster.PodAssumed{ID: id, Node: node, Attempt: p.GetAttempt()}); err != nil {
				return nil, placed, err
			}
			out.Result, out.Node = binderv1.Outcome_RESULT_ASSUMED, int32(node)
			placed = append(placed, source.Binding{
				UID: row.UID, Namespace: row.Namespace, Name: row.Name, Node: st.Nodes.Spec[node].Name,
			})
			t.metrics.placed.Inc()
		case engine.NoFit:
			out.Result = binderv1.Outcome_RESULT_NO_FIT
			t.metrics.noFit.Inc()
		default:
			ended = true
			out.Result = binderv1.Outcome_RESULT_RETRY
			t.metrics.exhausted.Inc()
		}
	}
	resp.Version = wire.ToVersion(st.Version())
	return resp, placed, nil
}

// sameClass reports whether the candidates are of the pod's class, and pinned exactly if the pod is.
func sameClass(row *cluster.PodRow, req *binderv1.CommitRequest, p *binderv1.PodAttempt) bool {
	i := p.GetClassIndex()
	if (i < 0) != (row.Pin != "") {
		return false
	}
	return i < 0 || cluster.ClassID(req.GetClasses()[i].GetClass()) == row.Class
}
