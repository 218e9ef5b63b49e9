package kube

import (
	"context"
	"fmt"
	"time"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Evict patches the pod's DisruptionTarget condition, unless it says the same already, and deletes the pod. It leaves
// alone a pod that is being deleted, or has ended and takes no room any more. The fence is the caller's: see the package
// comment.
//
// The pod is read first. That is one request more for each victim, of which there are few; to keep what it tells would
// take room for every pod there is.
func (s *Source) Evict(ctx context.Context, _ coord.Cond, e source.Eviction) error {
	name, uid := types.NamespacedName{Namespace: e.Namespace, Name: e.Name}, types.UID(e.UID)
	pod, err := s.get(ctx, s.preemptions, e.Namespace, e.Name)
	if err != nil {
		return fmt.Errorf("evict pod %s: %w", name, err)
	}
	if pod == nil || pod.UID != uid || pod.DeletionTimestamp != nil || source.Terminal(pod) {
		return nil
	}
	condition := v1.PodCondition{
		Type:               v1.DisruptionTarget,
		Status:             v1.ConditionTrue,
		Reason:             v1.PodReasonPreemptionByScheduler,
		Message:            e.PreemptorScheduler + ": preempting to accommodate a higher priority pod",
		ObservedGeneration: pod.Generation,
	}
	if differs(&condition, conditionOf(pod, v1.DisruptionTarget), s.cfg.Now()) {
		written, err := s.patchStatus(ctx, s.preemptions, name, uid, statusPatch{Conditions: []v1.PodCondition{condition}})
		if err != nil {
			return fmt.Errorf("evict pod %s: %w", name, err)
		}
		if written == nil {
			return nil
		}
	}
	return s.delete(ctx, name, uid)
}

// delete deletes a pod with its own grace period. That there is no pod of the uid any more is no error.
func (s *Source) delete(ctx context.Context, name types.NamespacedName, uid types.UID) error {
	request, cancel := s.request(ctx)
	defer cancel()
	began := time.Now()
	err := s.preemptions.CoreV1().Pods(name.Namespace).Delete(request, name.Name, *metav1.NewPreconditionDeleteOptions(string(uid)))
	s.observe(s.preemptions, began, err)
	if err == nil {
		return nil
	}
	if err := s.unlessGone(ctx, s.preemptions, name, uid, err); err != nil {
		return fmt.Errorf("evict pod %s: delete: %w", name, err)
	}
	return nil
}
