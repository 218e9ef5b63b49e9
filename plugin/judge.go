package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/pluginproto"
)

// share is how many nodes a goroutine judges at a time: few enough that slow plugins use all processors, and so many that of fast ones nobody notices.
const share = 128

// question is what is asked, with what it names.
type question struct {
	kind    *Kind
	nodes   []*Node
	filters []filter
	scorers []scorer
	err     error // why it cannot be answered

	postFilters []postFilter // if any, all else is not asked
	refused     []Refused
}

type postFilter struct {
	name string
	call PostFilterFunc
}

type filter struct {
	name string
	call FilterFunc
}

type scorer struct {
	name string
	call ScoreFunc
	most int64 // that it may score
}

// verdict is why a node is refused, if it is.
type verdict struct {
	*Refusal
	filter string
}

// answer judges all nodes, several at a time, and waits for that. The same verdicts and scores make the same answer.
func (q *question) answer(ctx context.Context, log *slog.Logger) *pluginv1.Answer {
	if q.err != nil {
		return &pluginv1.Answer{Error: pluginproto.Cut(q.err.Error())}
	}
	if len(q.postFilters) > 0 {
		out, err := q.postFilter(ctx, log)
		if err != nil {
			out = &pluginv1.PostFiltered{Error: pluginproto.Cut(err.Error())}
		}
		return &pluginv1.Answer{PostFiltered: out}
	}
	verdicts := make([]verdict, len(q.nodes))
	scores := make([]*pluginv1.Scores, len(q.scorers))
	for k := range scores {
		scores[k] = &pluginv1.Scores{Scores: make([]int32, len(q.nodes))}
	}
	errs := make([]error, (len(q.nodes)+share-1)/share)
	var next atomic.Int64
	var judges sync.WaitGroup
	for range min(len(errs), runtime.GOMAXPROCS(0)) {
		judges.Go(func() {
			for k := int(next.Add(1)) - 1; k < len(errs); k = int(next.Add(1)) - 1 {
				errs[k] = q.judge(ctx, log, k*share, min((k+1)*share, len(q.nodes)), verdicts, scores)
			}
		})
	}
	judges.Wait()
	for _, err := range errs {
		if err != nil {
			return &pluginv1.Answer{Error: pluginproto.Cut(err.Error())}
		}
	}
	out := &pluginv1.Answer{Scores: scores}
	out.Verdicts, out.Refusals = counted(verdicts, pluginproto.MaxRefusals-2*len(q.filters))
	return out
}

// postFilter has plugins look for a way, one after the other, as kube-scheduler's RunPostFilterPlugins does: until one has found one, or has failed, or nobody else is to be asked.
func (q *question) postFilter(ctx context.Context, log *slog.Logger) (*pluginv1.PostFiltered, error) {
	out := new(pluginv1.PostFiltered)
	var reasons []string
	for _, p := range q.postFilters {
		is, err := p.ask(ctx, q.kind, q.refused, log)
		switch {
		case err != nil:
			return nil, fmt.Errorf("plugin %s: %w", p.name, err)
		case is.Success || is.Unresolvable:
			out.Success, out.Nominated, out.ClearsNomination, out.Unresolvable, out.Reason = is.Success, is.Nominated, is.ClearsNomination, is.Unresolvable, pluginproto.Cut(is.Reason)
			return out, nil
		}
		if out.ClearsNomination = out.ClearsNomination || is.ClearsNomination; is.Reason != "" {
			reasons = append(reasons, is.Reason)
		}
	}
	out.Reason = pluginproto.Cut(strings.Join(reasons, ", "))
	return out, nil
}

func (p *postFilter) ask(ctx context.Context, kind *Kind, refused []Refused, log *slog.Logger) (out PostFiltered, err error) {
	defer func() {
		if is := recover(); is != nil {
			log.Error("a plugin panicked", "plugin", p.name, "err", is, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", is)
		}
	}()
	if out, err = p.call(ctx, kind, slices.Clone(refused)); err == nil {
		err = out.check()
	}
	return out, err
}

// judge fills in the verdicts and scores of the nodes from up to to.
func (q *question) judge(ctx context.Context, log *slog.Logger, from, to int, verdicts []verdict, scores []*pluginv1.Scores) (err error) {
	name, node := "", q.nodes[from] // who is asked, about what
	defer func() {
		if p := recover(); p != nil {
			log.Error("a plugin panicked", "plugin", name, "node", node.Name, "err", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("plugin %s, node %s: panic: %v", name, node.Name, p)
		}
	}()
nodes:
	for i := from; i < to; i++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		node = q.nodes[i]
		for _, f := range q.filters {
			name = f.name
			refusal, err := f.call(ctx, q.kind, node)
			if err == nil && refusal != nil && refusal.Reason == "" {
				err = errors.New("it is refused without a reason")
			}
			if err != nil {
				return fmt.Errorf("plugin %s, node %s: %w", name, node.Name, err)
			}
			if refusal != nil {
				verdicts[i] = verdict{refusal, name}
				continue nodes
			}
		}
		for k, s := range q.scorers {
			name = s.name
			score, err := s.call(ctx, q.kind, node)
			if err == nil && (score < 0 || score > s.most) {
				err = fmt.Errorf("its score is %d: want 0 to %d", score, s.most)
			}
			if err != nil {
				return fmt.Errorf("plugin %s, node %s: %w", name, node.Name, err)
			}
			scores[k].Scores[i] = int32(score)
		}
	}
	return nil
}

// counted returns verdicts as numbers of refusals, from 1, in the order in which they come first; none if no node is refused. Beyond some different ones, those of a filter
// that are further ones have the same reason.
func counted(verdicts []verdict, different int) (numbers []uint32, refusals []*pluginv1.Refusal) {
	type key struct {
		filter, reason string
		unresolvable   bool
	}
	known := make(map[key]uint32)
	for i, v := range verdicts {
		if v.Refusal == nil {
			continue
		}
		if numbers == nil {
			numbers = make([]uint32, len(verdicts))
		}
		k := key{v.filter, v.Reason, v.Unresolvable}
		if known[k] == 0 && len(refusals) >= different {
			k.reason = pluginproto.OtherReason
		}
		if known[k] == 0 {
			refusals = append(refusals, &pluginv1.Refusal{Plugin: k.filter, Reason: pluginproto.Cut(k.reason), Unresolvable: k.unresolvable})
			known[k] = uint32(len(refusals))
		}
		numbers[i] = known[k]
	}
	return numbers, refusals
}
