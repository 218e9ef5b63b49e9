package gateway

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/berth-scheduler/berth/internal/access"
	"github.com/berth-scheduler/berth/internal/answer"
	"github.com/berth-scheduler/berth/internal/cluster"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/whatif"
)

// What is asked here is tried on the sandbox; see internal/answer for the answers.

// ExplainPod implements SchedulingService.
func (s *Service) ExplainPod(ctx context.Context, req *schedulingv1.ExplainPodRequest) (response *schedulingv1.ExplainPodResponse, err error) {
	violations := checkName("namespace", req.GetNamespace(), false, maxNamespace)
	violations = append(violations, checkName("name", req.GetName(), true, maxObject)...)
	if err := rpc.Invalid(violations...); err != nil {
		return nil, err
	}
	names, err := access.MayNamePods(ctx)
	if err != nil {
		return nil, err
	}
	name := podName{cmp.Or(req.GetNamespace(), "default"), req.GetName()}
	found, _, err := s.findPod(ctx, name)
	if err != nil {
		return nil, err
	}
	claims, err := s.mayReadClaimsOf(ctx, name)
	if err != nil {
		return nil, err
	}
	// 1. Its queue says where it is.
	ctx, cancel := context.WithCancel(ctx)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	var known map[string]*queuev1.PendingPod
	if !isPlaced(found) {
		asking.Go(func() { known = s.pending(ctx, []string{found.GetUid()}, true) })
	}
	// 2. Meanwhile the sandbox says why.
	live, err := s.tryPod(ctx, name, func(ctx context.Context, box *whatif.Sandbox, pod cluster.PodID) error {
		response, err = answer.Explain(ctx, box, pod, req, answer.MayKnow{Pods: names, Claims: claims})
		return err
	})
	if err != nil {
		return nil, err
	}
	// 3. Both are of the same pod, unless it has been placed, or has come back, since it was looked for.
	asking.Wait()
	if !isPlaced(live) && (isPlaced(found) || found.GetUid() != live.GetUid()) {
		known = s.pending(ctx, []string{live.GetUid()}, true)
	}
	if detail := known[live.GetUid()]; detail != nil && !isPlaced(live) {
		setPending(live, detail)
		if !names {
			for _, ahead := range live.GetAhead() {
				ahead.Namespace, ahead.Name = "", ""
			}
		}
		sayGated(response, live)
	}
	response.Pod = live
	return response, nil
}

// sayGated says in an explanation that plugins of others do not let a pod be tried, if that is what its shard says: the sandbox does not know.
func sayGated(response *schedulingv1.ExplainPodResponse, pod *schedulingv1.Pod) {
	if pod.GetState() != schedulingv1.PodState_POD_STATE_GATED || len(pod.GetGates()) > 0 || !strings.HasPrefix(pod.GetMessage(), "gated") {
		return
	}
	was, name := response.GetSummary(), pod.GetNamespace()+"/"+pod.GetName()
	if strings.HasPrefix(was, name+" is not tried: ") { // whatever plugins say: it is deleted, or left to another scheduler
		return
	}
	response.Summary = fmt.Sprintf("%s is not tried: %s.", name, strings.TrimSuffix(pod.GetMessage(), "."))
	response.Text = strings.Replace(response.GetText(), was, response.GetSummary(), 1)
}

// WhatIf implements SchedulingService.
func (s *Service) WhatIf(ctx context.Context, req *schedulingv1.WhatIfRequest) (response *schedulingv1.WhatIfResponse, err error) {
	names, err := access.MayNamePods(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.mayBring(ctx, "manifests", req.GetManifests(), req.GetTimes()); err != nil {
		return nil, err
	}
	err = s.try(ctx, nothing, func(ctx context.Context, box *whatif.Sandbox) error {
		response, err = answer.WhatIf(ctx, box, req, names)
		return err
	})
	return response, err
}

// GetCapacity implements SchedulingService.
func (s *Service) GetCapacity(ctx context.Context, req *schedulingv1.GetCapacityRequest) (response *schedulingv1.GetCapacityResponse, err error) {
	violations := checkName("namespace", req.GetNamespace(), false, maxNamespace)
	violations = append(violations, checkName("name", req.GetName(), false, maxObject)...)
	violations = append(violations, checkGroup(req.GetPodGroup())...)
	if err := rpc.Invalid(violations...); err != nil {
		return nil, err
	}
	if err := s.mayBring(ctx, "manifest", req.GetManifest(), 1); err != nil {
		return nil, err
	}
	err = s.try(ctx, nothing, func(ctx context.Context, box *whatif.Sandbox) error {
		response, err = answer.Capacity(ctx, box, req)
		return err
	})
	return response, err
}

// Compare implements SchedulingService.
func (s *Service) Compare(ctx context.Context, req *schedulingv1.CompareRequest) (response *schedulingv1.CompareResponse, err error) {
	names, err := access.MayNamePods(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.mayBring(ctx, "manifests", req.GetManifests(), req.GetTimes()); err != nil {
		return nil, err
	}
	err = s.try(ctx, nothing, func(ctx context.Context, box *whatif.Sandbox) error {
		response, err = answer.Compare(ctx, box, req, names)
		return err
	})
	return response, err
}

// mayBring returns what keeps the caller from asking about manifests. They are read in turns of the caller's; whether the caller may ask about their
// claims and PodGroups is asked when nobody waits for these, nor yet for the sandbox. As many callers may be at that as there may be calls, and a small manifest may stand
// for many pods: so nothing is kept of them but namespaces, and they are read again in the sandbox.
func (s *Service) mayBring(ctx context.Context, field, manifests string, times int32) error {
	about, err := s.namespacesOf(ctx, field, manifests, times)
	if err != nil {
		return err
	}
	rights := answer.Rights{
		Claims: func(namespace string) (bool, error) { return access.MayReadClaims(ctx, namespace) },
		Pods:   func(namespace string) (bool, error) { return access.MayListPods(ctx, namespace) },
	}
	return rights.Check(field, about)
}

func (s *Service) namespacesOf(ctx context.Context, field, manifests string, times int32) (about whatif.Namespaces, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QuestionFor)
	defer cancel()
	turn, err := rpc.TakeTurn(ctx)
	if err != nil {
		return about, err
	}
	defer turn.End()
	return answer.NamespacesOf(whatif.WithPause(ctx, turn.Yield), field, manifests, times)
}

// mayReadClaimsOf reports whether the caller may be told of the claims of a pod. If it has none, there is nothing to ask.
func (s *Service) mayReadClaimsOf(ctx context.Context, name podName) (bool, error) {
	some := false
	err := s.look(ctx, func(st *cluster.State) {
		if _, row := s.names.find(st, name); row != nil {
			labels := st.Labels(row.Labels)
			some = labels != nil && len(labels.Claims) > 0
		}
	})
	if err != nil || !some {
		return false, err
	}
	return access.MayReadClaims(ctx, name.namespace)
}
