package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berth-scheduler/berth/internal/source"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// statusPatch is what is to change of a pod's status. A condition replaces the one of its type; what is not set stays.
type statusPatch struct {
	Conditions        []v1.PodCondition `json:"conditions,omitempty"`
	NominatedNodeName *string           `json:"nominatedNodeName,omitempty"`
}

// Nominate patches the pod's nominated node, unless it is that already. As with reports, nothing is written for a pod that
// the watch does not show waiting.
func (s *Source) Nominate(ctx context.Context, n source.Nomination) error {
	name, uid := types.NamespacedName{Namespace: n.Namespace, Name: n.Name}, types.UID(n.UID)
	pods := s.watched()
	if pods == nil {
		return nil
	}
	status := pods.waiting(name, uid)
	if status == nil || status.nominated == n.Node && !status.unsure {
		return nil
	}
	return s.writeStatus(ctx, s.preemptions, pods, name, uid, statusPatch{NominatedNodeName: &n.Node})
}

// writeStatus patches the status of a pod that waits, if there is anything to patch, and remembers it. That the pod is gone
// or replaced is no error: there is nothing to be said any more.
func (s *Source) writeStatus(ctx context.Context, by lane, pods *mirror, name types.NamespacedName, uid types.UID, p statusPatch) error {
	if len(p.Conditions) == 0 && p.NominatedNodeName == nil {
		return nil
	}
	written, err := s.patchStatus(ctx, by, name, uid, p)
	if err != nil {
		if p.NominatedNodeName != nil && !refuses(httpCode(err)) {
			pods.unsure(name, uid)
		}
		return err
	}
	if written != nil {
		pods.sawPod(written)
		pods.written(name, uid, p, written.ResourceVersion)
	}
	return nil
}

// patchStatus writes to a pod's status, and returns what the pod is with that, nil if there is no such pod any more.
func (s *Source) patchStatus(ctx context.Context, by lane, name types.NamespacedName, uid types.UID, p statusPatch) (*v1.Pod, error) {
	return s.patchStatusOf(ctx, by, name, uid, "", p)
}

// patchStatusOf is patchStatus of a pod of a resource version; "": of any.
func (s *Source) patchStatusOf(ctx context.Context, by lane, name types.NamespacedName, uid types.UID, version string, p statusPatch) (*v1.Pod, error) {
	metadata := map[string]any{"uid": uid}
	if version != "" {
		metadata["resourceVersion"] = version
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": metadata, // refused if it is not so: the pod was replaced, or has changed
		"status":   p,
	})
	if err != nil {
		return nil, fmt.Errorf("encode status of pod %s: %w", name, err)
	}
	request, cancel := s.request(ctx)
	defer cancel()
	began := time.Now()
	pod, err := by.CoreV1().Pods(name.Namespace).Patch(
		request, name.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	s.observe(by, began, err)
	if err == nil {
		return pod, nil
	}
	if err := s.unlessGone(ctx, by, name, uid, err); err != nil {
		return nil, fmt.Errorf("write status of pod %s: %w", name, err)
	}
	return nil, nil
}

// unlessGone returns the error of a write to a pod, nil if that is because there is no pod of the uid any more. An admission webhook may deny
// with anything, also with what the API server says when the pod is not there. So that is asked.
func (s *Source) unlessGone(ctx context.Context, by lane, name types.NamespacedName, uid types.UID, err error) error {
	if !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && !isReplaced(err) {
		return err
	}
	pod, getErr := s.get(ctx, by, name.Namespace, name.Name)
	switch {
	case getErr != nil:
		return errors.Join(err, getErr)
	case pod == nil || pod.UID != uid:
		return nil
	}
	return err
}

// differs reports whether a condition says something else than the one that stands, nil for none, and completes it with
// the time of its last transition.
func differs(c, stands *v1.PodCondition, now time.Time) bool {
	c.LastTransitionTime = metav1.NewTime(now)
	if stands == nil || stands.Status != c.Status {
		return true
	}
	c.LastTransitionTime = stands.LastTransitionTime
	return stands.Reason != c.Reason || stands.Message != c.Message || stands.ObservedGeneration != c.ObservedGeneration
}

// isReplaced reports whether a patch was refused because the object of the name has another uid, or by a webhook that says so.
func isReplaced(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}
