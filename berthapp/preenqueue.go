package berthapp

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/placeserver"
)

// preEnqueue has plugins say whether a pod may be tried, as kube-scheduler's queue does: about one pod at a time, whatever cycle is under way, and of the pod as the informers have it, as the events that may have a pod tried that is gated
// are those of the informers. What is not there, or not its turn, in half of the time is an error: Berth asks again.
func (s *steps) preEnqueue(step *placeserver.Step) (*pluginv1.Rejection, error) {
	if len(step.Plugins) == 0 {
		return nil, nil
	}
	_, leave, err := s.begins(step)
	if err != nil {
		return nil, err
	}
	defer leave()
	ctx, done, err := step.Context()
	if err != nil {
		return nil, fmt.Errorf("running plugins at %s: %w", stepPoints[step.Kind], err)
	}
	defer done()
	defer watch(ctx)()
	return s.enter(ctx, step)
}

// enter asks one plugin after the other. The first that does not let the pod in is the last.
func (s *steps) enter(ctx context.Context, step *placeserver.Step) (*pluginv1.Rejection, error) {
	told, hints := step.Placement.Told, s.profile.hints
	uid := types.UID(told.GetUid())
	if err := s.seeUnlessInCycle(ctx); err != nil {
		return nil, err
	}
	hints.enter(uid) // before anything is read
	pod := hints.get(cache.NewObjectName(told.GetNamespace(), told.GetName()).String(), uid)
	if pod == nil { // it is bound, or gone, as Berth will hear
		return nil, nil
	}
	for _, name := range step.Plugins {
		plugin, ok := s.profile.made[name].(fwk.PreEnqueuePlugin)
		if !ok {
			return nil, fmt.Errorf("there is no plugin %q that runs at PreEnqueue", name)
		}
		switch status := plugin.PreEnqueue(ctx, pod); {
		case status.IsSuccess():
		case status.Code() == fwk.Error:
			return nil, fmt.Errorf("running PreEnqueue plugin %q: %w", plugin.Name(), status.AsError())
		default: // whatever it is, kube-scheduler gates the pod
			hints.entered(pod, plugin.Name())
			return rejectedBy(name, status), nil
		}
	}
	hints.entered(pod, "")
	return nil, nil
}

// seeUnlessInCycle has plugins see the cluster, as see does, unless a cycle is under way, which sees to that: who asks whether pods may be tried does not wait for one.
func (s *steps) seeUnlessInCycle(ctx context.Context) error {
	if !s.profile.shown.Load().ended {
		return nil
	}
	select {
	case s.profile.cycle <- struct{}{}:
	default:
		return nil
	}
	defer func() { <-s.profile.cycle }()
	if err := s.profile.refresh(ctx); err != nil {
		return fmt.Errorf("read the cluster: %w", err)
	}
	return nil
}
