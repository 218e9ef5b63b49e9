package binder

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/extender"
	"github.com/berth-scheduler/berth/internal/pluginhost"
	"github.com/berth-scheduler/berth/internal/source"
)

var (
	errPodGone    = errors.New("there is no such pod any more, or it is being deleted")
	errBoundThere = errors.New("the pod has a node")
	errWhileRead  = errors.New("the term has ended while the pod was read")
)

// write has placements bound: by an extender those that interest one that binds, by plugins those of profiles that have some which bind, and by the source all others. It answers for each, in order.
func (t *term) write(ctx context.Context, bindings []source.Binding) []source.Outcome {
	by := t.boundByOthers(bindings)
	if by == nil {
		return t.source.Bind(ctx, t.fence, bindings)
	}
	out := make([]source.Outcome, len(bindings))
	var others []source.Binding
	var at []int
	for i, b := range bindings {
		if by[i] != 0 {
			var bound bool
			if out[i], bound = t.bindByOthers(ctx, b, by[i]); bound {
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

// boundByOthers returns which extenders and plugin services are to bind each placement, nil if none is to bind any.
func (t *term) boundByOthers(bindings []source.Binding) (by []extender.Interest) {
	if t.extenders == nil || !t.extenders.bindAny() {
		return nil
	}
	t.ledger.mu.Lock()
	defer t.ledger.mu.Unlock()
	for i, b := range bindings {
		if in := t.binders(b.UID); in != 0 {
			if by == nil {
				by = make([]extender.Interest, len(bindings))
			}
			by[i] = in
		}
	}
	return by
}

// bindAny reports whether some extender or plugin service binds.
func (a *extenders) bindAny() bool {
	return a.binds != 0 || a.services != nil && a.services.BindAny()
}

// bindByOthers has an extender or plugins bind a pod, unless the pod shows that this, or an earlier try, has happened, or cannot. An outcome that is not known is so found
// out by the next try. False: no extender is there for it, or only one that has failed and is ignorable, and plugins have skipped it; then the source binds, as in kube-scheduler.
//
// Nothing keeps them from binding after their call has ended, whatever is written to the pod meanwhile: then the source tells that the pod is there.
func (t *term) bindByOthers(ctx context.Context, b source.Binding, by extender.Interest) (o source.Outcome, bound bool) {
	who := "an extender"
	outcome := func(r source.Result, err error) (source.Outcome, bool) {
		return source.Outcome{Result: r, Err: fmt.Errorf("bind %s/%s to %s by %s: %w", b.Namespace, b.Name, b.Node, who, err)}, true
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
	if by&t.extenders.binds != 0 {
		bound, err = t.extenders.set.Bind(ctx, extender.ResourceNames(pod), extenderv1.ExtenderBindingArgs{
			PodName: b.Name, PodNamespace: b.Namespace, PodUID: types.UID(b.UID), Node: b.Node,
		})
	}
	stated := errors.As(err, new(extender.Stated))
	if services := t.extenders.servicesOf(by &^ t.extenders.binds); err == nil && !bound && services != 0 {
		who = "a plugin"
		bound, err = t.bindByPlugins(ctx, b, pod)
		if stated = pluginhost.Stated(err); stated { // it may have been bound all the same
			is, unread := t.extenders.objects.Pod(ctx, b.Namespace, b.Name)
			if bound = is != nil && string(is.UID) == b.UID && is.Spec.NodeName == b.Node; bound {
				return source.Outcome{Result: source.BindDone}, true
			}
			stated = unread == nil
		}
	}
	switch {
	case err == nil && bound:
		return source.Outcome{Result: source.BindDone}, true
	case err == nil:
		return source.Outcome{}, false
	case stated:
		return outcome(source.BindRefused, err)
	}
	return outcome(source.BindUnknown, err)
}

// bindByPlugins has plugins bind a pod.
func (t *term) bindByPlugins(ctx context.Context, b source.Binding, pod *corev1.Pod) (bound bool, err error) {
	told := pluginhost.Placement{UID: b.UID, Namespace: b.Namespace, Name: b.Name, Node: b.Node, SchedulerName: t.ledger.schedulerOf(b.UID)}
	pod.ManagedFields = nil
	ctx, done := t.within(ctx)
	defer done()
	return t.extenders.services.Bind(ctx, cluster.Epoch(t.epoch), told, func(context.Context) (*corev1.Pod, error) { return pod, nil })
}
