package binder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/extender"
	"github.com/berth-scheduler/berth/internal/pluginhost"
	"github.com/berth-scheduler/berth/internal/source"
)

// endsWithin is in what time a plugin service takes back what it has done for a placement when its stream has ended.
const endsWithin = 5 * time.Second

var (
	errPodGone    = errors.New("there is no such pod any more, or it is being deleted")
	errBoundThere = errors.New("the pod has a node")
	errWhileRead  = errors.New("the term has ended while the pod was read")
)

// write has placements bound, as they are written: by an extender those that interest one that binds, by plugins those of profiles that have some which bind, and by the source all others. It answers for each, in order.
func (t *term) write(ctx context.Context, placements []*placement, bindings []source.Binding) []source.Outcome {
	if !slices.ContainsFunc(placements, func(p *placement) bool { return p.binders != 0 }) {
		return t.source.Bind(ctx, t.fence, bindings)
	}
	out := make([]source.Outcome, len(bindings))
	var others []source.Binding
	var at []int
	for i, b := range bindings {
		if placements[i].binders != 0 {
			var bound bool
			if out[i], bound = t.bindByOthers(ctx, placements[i]); bound {
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

// bindByOthers has an extender or plugins bind a pod, unless the pod shows that this, or an earlier try, has happened, or cannot. An outcome that is not known is so found
// out by the next try. False: no extender is there for it, or only one that has failed and is ignorable, and plugins have skipped it; then the source binds, as in kube-scheduler.
//
// Nothing keeps them from binding after their call has ended, whatever is written to the pod meanwhile: then the source tells that the pod is there.
func (t *term) bindByOthers(ctx context.Context, p *placement) (o source.Outcome, bound bool) {
	who := "an extender"
	outcome := func(r source.Result, err error) (source.Outcome, bool) {
		if r == source.BindDone {
			return source.Outcome{Result: r}, true
		}
		return source.Outcome{Result: r, Err: fmt.Errorf("bind %s/%s to %s by %s: %w", p.Namespace, p.Name, p.Node, who, err)}, true
	}
	pod, err := t.extenders.objects.Pod(ctx, p.Namespace, p.Name)
	if err != nil {
		return outcome(source.BindUnknown, err)
	}
	if r, err := p.shows(pod); r != source.BindUnknown {
		return outcome(r, err)
	}
	if source.Ended(ctx) {
		return outcome(source.BindUnknown, errWhileRead)
	}
	if p.binders&t.extenders.binds != 0 {
		bound, err = t.extenders.set.Bind(ctx, extender.ResourceNames(pod), extenderv1.ExtenderBindingArgs{
			PodName: p.Name, PodNamespace: p.Namespace, PodUID: types.UID(p.UID), Node: p.Node,
		})
	}
	switch byPlugins := p.boundByPlugins(t.extenders); {
	case err == nil && bound:
		return source.Outcome{Result: source.BindDone}, true
	case errors.As(err, new(extender.Stated)):
		return outcome(source.BindRefused, err)
	case err != nil:
		return outcome(source.BindUnknown, err)
	case !byPlugins:
		return source.Outcome{}, false
	}
	who = "a plugin"
	bound, err = t.bindByPlugins(ctx, p, pod)
	switch {
	case err == nil && bound:
		return source.Outcome{Result: source.BindDone}, true
	case err == nil:
		return source.Outcome{}, false
	case !pluginhost.Stated(err), pluginhost.Unsent(err) && p.tries > 0: // an earlier try may be under way
		return outcome(source.BindUnknown, err)
	}
	// The plugin may have bound it all the same.
	refused := err
	if pod, err = t.extenders.objects.Pod(ctx, p.Namespace, p.Name); err != nil {
		return outcome(source.BindUnknown, refused)
	}
	if r, err := p.shows(pod); r != source.BindUnknown {
		return outcome(r, err)
	}
	return source.Outcome{Result: source.BindRefused, Err: p.refusedBind(refused)}, true
}

// refusedBind returns why a placement is given back that plugins have refused to bind, as kube-scheduler words it.
func (p *placement) refusedBind(err error) stepError {
	var no pluginhost.Rejection
	if errors.As(err, &no) {
		return stepError{reasonUnschedulable, no.Reason}
	}
	return stepError{reasonError, err.Error()}
}

// boundByPlugins reports whether plugin services bind a placement.
func (p *placement) boundByPlugins(of *extenders) bool {
	return of != nil && p.progress != nil && of.servicesOf(p.binders&^of.binds) != 0
}

// shows returns what a pod, as it has just been read, shows of the bind of a placement: BindUnknown says that none has happened.
func (p *placement) shows(pod *corev1.Pod) (source.Result, error) {
	switch {
	case pod == nil || string(pod.UID) != p.UID || pod.Spec.NodeName == "" && pod.DeletionTimestamp != nil:
		return source.BindGone, errPodGone
	case pod.Spec.NodeName == p.Node:
		return source.BindDone, errBoundThere
	case pod.Spec.NodeName != "":
		return source.BindElsewhere, errBoundThere
	}
	return source.BindUnknown, nil
}

// bindByPlugins has plugins bind a pod.
func (t *term) bindByPlugins(ctx context.Context, p *placement, pod *corev1.Pod) (bound bool, err error) {
	pod.ManagedFields = nil
	ctx, done := t.within(ctx)
	defer done()
	return t.extenders.services.Bind(ctx, cluster.Epoch(t.epoch), p.progress.told, func(context.Context) (*corev1.Pod, error) { return pod, nil })
}

// mayBeBinding reports whether plugins may have been asked to bind a placement, which they may do still until they have taken back what they have done for it.
func (t *term) mayBeBinding(p *placement) bool {
	return p.boundByPlugins(t.extenders) && (p.state == stateBinding || p.state == stateWithdrawing || p.tries > 0)
}

// boundAfterAll reports whether a placement that is to be given back has been bound by plugins that have ended what they did for it.
func (t *term) boundAfterAll(p *placement) bool {
	ctx, done := t.within(context.Background())
	defer done()
	pod, err := t.object(ctx, p.Namespace, p.Name)
	if err != nil {
		return false
	}
	r, _ := p.shows(pod)
	return r == source.BindDone
}

// boundOr settles a placement that has been bound after all, and has one that has not released.
func (t *term) boundOr(p *placement, release func() error) error {
	if t.boundAfterAll(p) {
		return t.settle(p, source.Outcome{Result: source.BindDone})
	}
	return release()
}

// later does something after a while, unless ctx ends before.
func (t *term) later(ctx context.Context, delay time.Duration, do func() error) error {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-timer.C:
		return do()
	}
}
