package binder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/extender"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/pluginhost"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/wire"
)

const (
	// postFilterWithin is how long plugins may take to look for a way for a pod, whatever the timeouts of their services are.
	postFilterWithin = 9 * time.Minute
	// maxPostFilters is how many plugins a request may name: as many as services may have in all, and more than any profile has.
	maxPostFilters = 64 * pluginhost.MaxServices
)

// askPostFilter has plugins look for a way for a pod that fits nowhere. As with ask, one pod is asked about at a time, and no lock is held meanwhile. Whether it fits anywhere is asked of those who filter first: plugins
// look for a way in the state in which it does not, of which they are told why.
func (t *term) askPostFilter(ctx context.Context, req *binderv1.AskPostFilterRequest) (*binderv1.AskPostFilterResponse, error) {
	if err := t.validatePostFilter(req); err != nil {
		return nil, err
	}
	if err := t.admit("post-filter", req.GetShard(), req.GetShardRevision(), req.GetVersion(), 1); err != nil {
		return nil, err
	}
	ctx, done := t.within(ctx)
	defer done()
	ctx, cancel := context.WithTimeoutCause(ctx, postFilterWithin, fmt.Errorf("plugins have looked for longer than %v", postFilterWithin))
	defer cancel()
	turn := newAskTurn(t.extenders)
	defer turn.end()
	p := &postFiltering{req: req, left: req.GetPlugins(), asked: &asked{term: t, turn: turn, scratch: turn.scratch, postFilters: req.GetPlugins(), began: time.Now(), req: &binderv1.AskRequest{
		Shard: req.GetShard(), ShardRevision: req.GetShardRevision(), Version: req.GetVersion(), Id: req.GetPod().GetId(), Uid: req.GetPod().GetUid(), Attempt: req.GetAttempt(),
	}}}
	p.run(ctx)
	switch {
	case p.broken != nil:
		t.fail(p.broken)
		return nil, rpc.Error(codes.Internal, "BROKEN_LEDGER", "post-filter: the ledger is broken")
	case t.ended():
		return nil, errNotActive("the term has ended")
	case p.err != nil:
		return nil, p.err
	}
	out := p.answer()
	t.metrics.asked.WithLabelValues("post_filter_" + postFilterResult(out.GetResult())).Inc()
	return out, nil
}

func (t *term) validatePostFilter(req *binderv1.AskPostFilterRequest) error {
	var bad violations
	t.checkShard(&bad, req.GetShard())
	t.checkVersion(&bad, req.GetVersion())
	bad.checkReason("pod.reason", req.GetPod().GetReason())
	if req.GetPod().GetClearNomination() {
		bad.note("pod.clear_nomination", "set; plugins may nominate the pod")
	}
	if a := req.GetAttempt(); a < 1 {
		bad.note("attempt", "%d; attempts count from 1", a)
	}
	if n := len(req.GetPlugins()); n == 0 || n > maxPostFilters {
		bad.note("plugins", "%d plugins; want 1 to %d", n, maxPostFilters)
	} else if names := slices.Sorted(slices.Values(req.GetPlugins())); len(slices.Compact(names)) < n {
		bad.note("plugins", "one is there twice")
	}
	if t.extenders == nil {
		bad.note("plugins", "this binder has no plugin services")
	}
	return rpc.Invalid(bad...)
}

func postFilterResult(r binderv1.AskPostFilterResponse_Result) string {
	switch r {
	case binderv1.AskPostFilterResponse_RESULT_NONE:
		return "none"
	case binderv1.AskPostFilterResponse_RESULT_ENDS:
		return "ends"
	case binderv1.AskPostFilterResponse_RESULT_NOMINATED:
		return "nominated"
	case binderv1.AskPostFilterResponse_RESULT_SUCCESS:
		return "success"
	case binderv1.AskPostFilterResponse_RESULT_GONE:
		return "gone"
	case binderv1.AskPostFilterResponse_RESULT_FAILED:
		return "failed"
	}
	return "retry"
}

// postFiltering is a pod that fits nowhere, and what has come of it: that of asked, if anything has, or else out.
type postFiltering struct {
	*asked
	req     *binderv1.AskPostFilterRequest
	refused []pluginhost.RefusedNode // that could run the pod if others were evicted
	left    []string                 // the plugins that have not been asked
	reasons []string                 // of the others
	clears  bool                     // one of them has its nomination end
	out     *binderv1.AskPostFilterResponse
}

// over reports whether something has come of the pod.
func (p *postFiltering) over() bool { return p.out != nil || p.asked.over() }

// ends says what has come of it, unless something has.
func (p *postFiltering) ends(r binderv1.AskPostFilterResponse_Result, message string, clears bool) {
	if !p.over() {
		p.out = &binderv1.AskPostFilterResponse{Version: wire.ToVersion(p.ledger.version()), Result: r, Message: message, ClearsNomination: clears}
	}
}

// answer returns what has come of it.
func (p *postFiltering) answer() *binderv1.AskPostFilterResponse {
	if p.out != nil {
		return p.out
	}
	out := &binderv1.AskPostFilterResponse{Version: p.resp.GetVersion(), Message: p.resp.GetError()}
	switch p.resp.GetOutcome().GetResult() {
	case binderv1.Outcome_RESULT_GONE, binderv1.Outcome_RESULT_PLACED:
		out.Result = binderv1.AskPostFilterResponse_RESULT_GONE
	case binderv1.Outcome_RESULT_FAILED:
		out.Result = binderv1.AskPostFilterResponse_RESULT_FAILED
	default:
		out.Result = binderv1.AskPostFilterResponse_RESULT_RETRY
	}
	return out
}

func (p *postFiltering) run(ctx context.Context) {
	// 1. Is there anything to ask?
	nominated, preempting := false, false
	p.read(func(st *cluster.State, row *cluster.PodRow) {
		p.pod, p.subject = row.Pod, engine.SubjectOf(&row.Pod)
		p.in = p.extenders.askedPostFilter(p.ledger.interests[row.UID], st.Class(row.Class).Spec.SchedulerName, p.postFilters)
		nominated, preempting = p.ledger.preempted[row.UID].by == p.attempt(), row.Preempting
	})
	switch {
	case p.over():
		return
	case nominated: // nobody has heard the answer
		p.ends(binderv1.AskPostFilterResponse_RESULT_NOMINATED, "", false)
		return
	case preempting:
		p.result(binderv1.Outcome_RESULT_GONE, conflictGone)
		return
	case p.extenders.servicesOf(p.in) == 0: // an earlier binder had other services
		p.result(binderv1.Outcome_RESULT_RETRY, conflictRetry)
		return
	case p.reports.room.full():
		p.err = p.errReportsFull(1)
		return
	case p.extenders.crowd(p.in):
		p.err = errCrowd
		return
	}
	// 2. What is it?
	if p.extenders.needsPod(p.in) && !p.readPod(ctx) {
		return
	}
	if err := p.turn.take(ctx, p.in); err != nil {
		p.err = p.asked.ends(ctx, err)
		return
	}
	defer func() {
		if p.judges != nil {
			p.judges.Done()
		}
	}()
	// 3. Does it fit nowhere, and why? Then ask.
	for range mostAsks {
		if !p.begin(ctx) {
			return
		}
		err := p.fitsNowhere(ctx)
		if err == nil && !p.over() {
			err = p.ask(ctx)
		}
		switch {
		case p.over():
			return
		case ctx.Err() != nil:
			p.err = context.Cause(ctx)
			return
		case !errors.Is(err, pluginhost.ErrAgain):
			p.end(rejection{err: err})
			return
		}
	}
	p.result(binderv1.Outcome_RESULT_RETRY, conflictExhausted)
}

// fitsNowhere asks those who filter whether the pod fits nowhere. If it fits somewhere, that is the result.
func (p *postFiltering) fitsNowhere(ctx context.Context) error {
	// 1. By Berth's own plugins, 64 nodes at a time under the ledger's lock, between others' transactions.
	var s sight
	p.refused, s.version = nil, cluster.Version{}
	for word, words := 0, 1; word < words; word++ {
		judged := true
		p.read(func(st *cluster.State, row *cluster.PodRow) {
			if s.version.IsZero() {
				s.version, s.count = st.Version(), st.Nodes.Count()
			}
			words = (st.Nodes.Len() + 63) / 64
			only := cluster.NoNode
			if row.RequiredNode != "" {
				if only = st.Nodes.ByName(row.RequiredNode); only == cluster.NoNode || int(only)/64 != word {
					return
				}
			}
			judged = p.judge(row, func() { p.lookAt(st, &s, word, only) })
		})
		if !judged {
			p.result(binderv1.Outcome_RESULT_NO_FIT, conflictNoFit)
		}
		if p.over() {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if len(s.nodes) == 0 {
		return nil
	}
	// 2. By others' plugins, and by extenders.
	fits := make(map[string]cluster.NodeIndex, len(s.nodes))
	p.read(func(st *cluster.State, _ *cluster.PodRow) {
		there := s.nodes[:0]
		for _, n := range s.nodes {
			if p.isNode(st, n) {
				there, fits[n.name] = append(there, n), n.Node
			}
		}
		s.nodes = there
		p.collect(st, s.nodes)
	})
	if p.over() {
		return nil
	}
	left, why, _, err := p.filter(ctx, s, false)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		p.result(binderv1.Outcome_RESULT_RETRY, conflictVictims)
		return nil
	}
	for name, r := range why {
		if i, known := fits[name]; known && !r.Unresolvable {
			p.refused = append(p.refused, pluginhost.RefusedNode{Node: i, Name: name, Refusal: r})
		}
	}
	return nil
}

// lookAt notes which of 64 nodes can run the pod, and which could if others were evicted; if only is a node, of that one alone. The caller holds the ledger's lock.
func (p *postFiltering) lookAt(st *cluster.State, s *sight, word int, only cluster.NodeIndex) {
	for i := cluster.NodeIndex(64 * word); int(i) < min(64*word+64, st.Nodes.Len()); i++ {
		if only != cluster.NoNode && i != only {
			continue
		}
		switch v, known := p.evaluator.Node(st, p.subject, cluster.PodID(p.asked.req.GetId()), i); {
		case !known:
		case v.Feasible():
			s.nodes = append(s.nodes, seenNode{engine.NodeTotal{Node: i}, st.Nodes.Spec[i].Name})
		case !v.Unresolvable():
			r := pluginhost.Refusal{}
			for k, why := range p.evaluator.Explain(st, p.subject, v, i) {
				if k == 0 {
					r = pluginhost.Refusal{Plugin: why.Plugin, Reason: why.Reason}
				} else {
					r.Reason += ", " + why.Reason
				}
			}
			p.refused = append(p.refused, pluginhost.RefusedNode{Node: i, Name: st.Nodes.Spec[i].Name, Refusal: r})
		}
	}
}

// ask has plugins look for a way, one service after the other, until one has found one, or nobody else is to be asked.
func (p *postFiltering) ask(ctx context.Context) error {
	for _, of := range p.judges.PostFilters(p.left) {
		p.judges.Refresh()
		p.read(func(st *cluster.State, _ *cluster.PodRow) { p.judges.CollectPostFilter(st, p.subject, of, p.refused) })
		if p.over() {
			return nil
		}
		err := p.judges.Exchange(ctx)
		r := of.Result()
		if err == nil || r != nil { // another service may have failed
			p.left = p.left[slices.Index(p.left, of.Last())+1:]
		}
		switch {
		case r == nil:
		case r.Success && r.Nominated != "":
			p.nominate(r.Nominated)
			return nil
		case r.Success:
			p.ends(binderv1.AskPostFilterResponse_RESULT_SUCCESS, "", r.ClearsNomination)
			return nil
		case r.Failed, r.Unresolvable:
			p.ends(binderv1.AskPostFilterResponse_RESULT_ENDS, r.Reason, r.ClearsNomination)
			return nil
		default:
			if p.clears = p.clears || r.ClearsNomination; r.Reason != "" {
				p.reasons = append(p.reasons, r.Reason)
			}
		}
		if err != nil {
			p.judges.Done()
			p.judges = nil // whatever comes next begins anew
			return err
		}
	}
	p.ends(binderv1.AskPostFilterResponse_RESULT_NONE, extender.Short(strings.Join(p.reasons, ", ")), p.clears)
	return nil
}

// nominate nominates the pod to a node that a plugin has found for it.
func (p *postFiltering) nominate(node string) {
	if p.err = p.admit("post-filter", p.req.GetShard(), p.req.GetShardRevision(), p.req.GetVersion(), 1); p.err != nil { // while plugins thought
		return
	}
	result, conflict, unknown := binderv1.Outcome_RESULT_UNSPECIFIED, "", false
	p.broken = p.ledger.update(func(tx *tx) error {
		st := tx.state
		stint, err := p.stint(tx)
		if err != nil {
			return err
		}
		id := cluster.PodID(p.req.GetPod().GetId())
		row := st.Pod(id)
		if result, conflict = p.stands(st, row); result != binderv1.Outcome_RESULT_UNSPECIFIED {
			return nil
		}
		switch {
		case stint == 0 && p.names.shares(st, row.Class):
			result, conflict = binderv1.Outcome_RESULT_GONE, conflictYielded
			return nil
		case row.Preempting:
			result, conflict = binderv1.Outcome_RESULT_GONE, conflictGone
			return nil
		case st.Nodes.ByName(node) == cluster.NoNode:
			unknown = true
			return nil
		}
		report := reportOf(row, p.req.GetPod().GetReason(), p.req.GetPod().GetMessage())
		report.Attempt, report.Nominate, report.Nominated = p.req.GetPod().GetAttempt(), true, node
		if !p.reports.add(report) { // the pod's next report tells of it
			p.metrics.laneDropped.WithLabelValues(laneReports).Inc()
		}
		last := lastPreemption{by: p.attempt()}
		if row.Nominated == node { // perhaps since some pods go, of which some may be spared
			last.victims = p.ledger.preempted[row.UID].victims
		}
		p.ledger.preempted[row.UID] = last
		return p.ledger.fold.Nominate(id, node)
	})
	switch {
	case p.broken != nil:
	case unknown: // it may come
		p.ends(binderv1.AskPostFilterResponse_RESULT_SUCCESS, "", false)
	case result != binderv1.Outcome_RESULT_UNSPECIFIED:
		p.result(result, conflict)
	default:
		p.ends(binderv1.AskPostFilterResponse_RESULT_NOMINATED, "", false)
	}
}

// attempt is of which attempt the pod is nominated.
func (p *postFiltering) attempt() attempt {
	return attempt{p.req.GetShardRevision(), p.req.GetAttempt()}
}
