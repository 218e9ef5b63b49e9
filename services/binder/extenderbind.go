package binder

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/berth-scheduler/berth/internal/extender"
	"github.com/berth-scheduler/berth/internal/source"
)

var (
	errPodGone    = errors.New("there is no such pod any more, or it is being deleted")
	errBoundThere = errors.New("the pod has a node")
	errWhileRead  = errors.New("the term has ended while the pod was read")
)

// write has placements bound: by an extender those that interest one that binds, and by the source all others. It answers for each, in order.
func (t *term) write(ctx context.Context, bindings []source.Binding) []source.Outcome {
	by := t.boundByExtenders(bindings)
	if by == nil {
		return t.source.Bind(ctx, t.fence, bindings)
	}
	out := make([]source.Outcome, len(bindings))
	var others []source.Binding
	var at []int
	for i, b := range bindings {
		if by[i] {
			var bound bool
			if out[i], bound = t.bindByExtender(ctx, b); bound {
				continue
			}
		}
		others, at = append(others, b), append(at, i)
	}
	if len(others) > 0 {
		for k, o := range t.source.Bind(ctx, t.fence, others) {
			out[at[k]] = o
		}
	}
	return out
}

// boundByExtenders returns which placements are for extenders to bind, nil if none is.
func (t *term) boundByExtenders(bindings []source.Binding) (by []bool) {
	if t.extenders == nil || t.extenders.binds == 0 {
		return nil
	}
	t.ledger.mu.Lock()
	defer t.ledger.mu.Unlock()
	for i, b := range bindings {
		if t.binders(b.UID) != 0 {
			if by == nil {
				by = make([]bool, len(bindings))
			}
			by[i] = true
		}
	}
	return by
}

// bindByExtender has an extender bind a pod, unless the pod shows that this, or an earlier try, has happened, or cannot. An outcome that is not known is so found
// out by the next try. False: no extender is there for it, or only one that has failed and is ignorable; then the source binds, as in kube-scheduler.
//
// Nothing keeps an extender from binding after its call has ended, whatever is written to the pod meanwhile: then the source tells that the pod is there.
func (t *term) bindByExtender(ctx context.Context, b source.Binding) (o source.Outcome, bound bool) {
	outcome := func(r source.Result, err error) (source.Outcome, bool) {
		return source.Outcome{Result: r, Err: fmt.Errorf("bind %s/%s to %s by an extender: %w", b.Namespace, b.Name, b.Node, err)}, true
	}
	pod, err := t.extenders.objects.Pod(ctx, b.Namespace, b.Name)
	switch {
	case err != nil:
		return outcome(source.BindUnknown, err)
	case pod == nil || string(pod.UID) != b.UID || pod.Spec.NodeName == "" && pod.DeletionTimestamp != nil:
		return outcome(source.BindGone, errPodGone)
	case pod.Spec.NodeName == b.Node:
		return source.Outcome{Result: source.BindDone}, true
	case pod.Spec.NodeName != "":
		return outcome(source.BindElsewhere, errBoundThere)
	case source.Ended(ctx):
		return outcome(source.BindUnknown, errWhileRead)
	}
	bound, err = t.extenders.set.Bind(ctx, extender.ResourceNames(pod), extenderv1.ExtenderBindingArgs{
		PodName: b.Name, PodNamespace: b.Namespace, PodUID: types.UID(b.UID), Node: b.Node,
	})
	var stated extender.Stated
	switch {
	case err == nil && bound:
		return source.Outcome{Result: source.BindDone}, true
	case err == nil:
		return source.Outcome{}, false
	case errors.As(err, &stated):
		return outcome(source.BindRefused, err)
	}
	return outcome(source.BindUnknown, err)
}
