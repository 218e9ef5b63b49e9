package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
)

// podTries is how often a single write about a pod is tried when the pod changes meanwhile.
const podTries = 3

// errChanged: the pod was replaced, placed or reported on between being read and being written, again and again.
var errChanged = errors.New("the pod keeps changing")

// Bind writes all placements in one transaction that holds only if the fence holds, every pod is the one that was
// decided for, and none has a placement. If that fails, or a pod is not known yet, each such pod is tried on its own,
// so that every binding has an outcome of its own. An outcome whose error wraps coord.ErrFenced wrote nothing.
func (s *Source) Bind(ctx context.Context, fence coord.Cond, bindings []source.Binding) []source.Outcome {
	out := make([]source.Outcome, 0, len(bindings))
	most := maxBatch
	if slices.ContainsFunc(bindings, func(b source.Binding) bool { return len(b.Annotations) > 0 }) {
		most = maxAnnotated
	}
	for batch := range slices.Chunk(bindings, most) {
		out = append(out, s.bindBatch(ctx, fence, batch)...)
	}
	return out
}

func (s *Source) bindBatch(ctx context.Context, fence coord.Cond, bindings []source.Binding) []source.Outcome {
	// 1. Who can go into the common transaction?
	out := make([]source.Outcome, len(bindings))
	conds := append(make([]coord.Cond, 0, 1+2*len(bindings)), fence)
	ops := make([]coord.Op, 0, len(bindings))
	together := make([]int, 0, len(bindings))
	var alone []int
	seen := make(map[string]bool, len(bindings))
	for i, b := range bindings {
		pod := s.lookup(b.UID)
		if pod.createRevision == 0 || pod.key != podKey(b.Namespace, b.Name) || pod.told.node != "" || seen[b.UID] {
			alone = append(alone, i)
			continue
		}
		seen[b.UID] = true
		write, err := s.write(b)
		if err != nil {
			out[i] = source.Outcome{Result: source.BindRefused, Err: err}
			continue
		}
		together = append(together, i)
		conds = append(conds, coord.IfCreateRevision(pod.key, pod.createRevision), coord.IfAbsent(placementKeys+b.UID))
		ops = append(ops, write)
	}
	// 2. The transaction.
	if len(together) > 0 {
		ok, _, err := s.etcd.Txn(ctx, conds, ops)
		for _, i := range together {
			switch {
			case err != nil:
				out[i] = failed(bindings[i], err)
			case ok:
				out[i] = source.Outcome{Result: source.BindDone}
			default:
				alone = append(alone, i)
			}
		}
	}
	// 3. The rest.
	for _, i := range alone {
		out[i] = s.bindOne(ctx, fence, bindings[i])
	}
	return out
}

// bindOne reads the pod, and writes its placement if it has none.
func (s *Source) bindOne(ctx context.Context, fence coord.Cond, b source.Binding) source.Outcome {
	write, err := s.write(b)
	if err != nil {
		return source.Outcome{Result: source.BindRefused, Err: err}
	}
	for range podTries {
		pod, err := s.read(ctx, b.Namespace, b.Name)
		if err != nil {
			return failed(b, err)
		}
		if o, ok := standing(b, pod); ok {
			return o
		}
		conds := []coord.Cond{
			fence,
			coord.IfCreateRevision(podKey(b.Namespace, b.Name), pod.createRevision), coord.IfAbsent(placementKeys + b.UID),
		}
		ok, _, err := s.etcd.Txn(ctx, conds, []coord.Op{write})
		if err != nil {
			return failed(b, err)
		}
		if ok {
			return source.Outcome{Result: source.BindDone}
		}
	}
	return failed(b, errChanged)
}

// Prepare has nothing to note: a Bind reads what it needs.
func (s *Source) Prepare([]source.Binding) {}

// Withdraw reads what has become of the pod: a bind of an earlier term does not happen any more, by its fence.
func (s *Source) Withdraw(ctx context.Context, _ coord.Cond, b source.Binding, _ source.Report) source.Outcome {
	pod, err := s.read(ctx, b.Namespace, b.Name)
	if err != nil {
		return failed(b, err)
	}
	if o, ok := standing(b, pod); ok {
		return o
	}
	return source.Outcome{Result: source.BindRefused, Err: fmt.Errorf("place %s/%s on %s: withdrawn", b.Namespace, b.Name, b.Node)}
}

// standing returns what has become of a binding by what is stored of its pod, nil for none. False: the pod waits.
func standing(b source.Binding, pod *storedPod) (source.Outcome, bool) {
	switch {
	case pod == nil:
		return source.Outcome{Result: source.BindGone, Err: fmt.Errorf("place %s/%s on %s: %w", b.Namespace, b.Name, b.Node, ErrNotFound)}, true
	case pod.uid != b.UID:
		return source.Outcome{Result: source.BindGone, Err: fmt.Errorf("place %s/%s on %s: the pod's uid is %s now, not %s", b.Namespace, b.Name, b.Node, pod.uid, b.UID)}, true
	case pod.node == b.Node:
		return source.Outcome{Result: source.BindDone}, true
	case pod.node != "":
		return source.Outcome{Result: source.BindElsewhere, Err: fmt.Errorf("place %s/%s on %s: the pod is on %s", b.Namespace, b.Name, b.Node, pod.node)}, true
	}
	return source.Outcome{}, false
}

// write returns the operation that places the pod.
func (s *Source) write(b source.Binding) (coord.Op, error) {
	if b.UID == "" || b.Node == "" {
		return coord.Op{}, fmt.Errorf("place %s/%s: uid %q, node %q: neither may be empty", b.Namespace, b.Name, b.UID, b.Node)
	}
	value, err := json.Marshal(placement{Namespace: b.Namespace, Name: b.Name, Node: b.Node, Time: s.cfg.Now().UTC(), Annotations: b.Annotations})
	if err != nil {
		return coord.Op{}, fmt.Errorf("encode placement of %s/%s: %w", b.Namespace, b.Name, err)
	}
	return coord.Put(placementKeys+b.UID, value), nil
}

// failed is the outcome of a request to etcd that returned an error.
func failed(b source.Binding, err error) source.Outcome {
	err = fmt.Errorf("place %s/%s on %s: %w", b.Namespace, b.Name, b.Node, err)
	if errors.Is(err, coord.ErrFenced) {
		return source.Outcome{Result: source.BindRefused, Err: err}
	}
	return source.Outcome{Result: source.BindUnknown, Err: err}
}
