package gateway_test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/gateway"
	"github.com/berth-scheduler/berth/internal/access"
	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
)

// claimReaders is a reviewer for whom a token is its owner's name. Everyone may do everything, but only "admin" may list claims, and "ann" those of
// her own namespace.
type claimReaders struct{ tenants }

func (claimReaders) Allowed(_ context.Context, c access.Caller, p access.Permission) (bool, string, error) {
	return p.Resource != "persistentvolumeclaims" || c.User == "admin" || c.User == "ann" && p.Namespace == "ann", "", nil
}

const claiming = `
apiVersion: v1
kind: Pod
metadata: {name: guess, namespace: default}
spec:
  schedulerName: berth
  containers: [{name: c, image: i}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: secret}}]
`

// What a claim asks for and has, and whether there is one of that name, is for those who may list claims there.
func TestClaimsAreToldToThoseWhoMayListThem(t *testing.T) {
	guard, err := access.NewGuard(access.GuardConfig{Reviewer: claimReaders{}, Rate: 1e6})
	if err != nil {
		t.Fatal(err)
	}
	waits := pod(1)
	waits.Pod.Labels = 7
	deltas := append([]cluster.Delta{
		cluster.SettingsSet{Settings: cluster.Settings{Shards: 2, Source: "local", Profiles: []cluster.Profile{engine.DefaultProfile("berth")}}},
	}, oneClass[1:]...)
	deltas = append(deltas, node(0), cluster.LabelsDefined{ID: 7, Set: cluster.LabelSet{Namespace: "default", Claims: []cluster.PodClaim{{Name: "data"}}}},
		cluster.ObjectSet{Object: &cluster.PersistentVolumeClaim{Namespace: "default", Name: "data", UID: "u", Class: "gold", HasRequest: true, Request: 3 << 30, Mode: "Filesystem"}},
		cluster.ObjectSet{Object: &cluster.PersistentVolumeClaim{Namespace: "default", Name: "secret", UID: "s", Volume: "pv", Bound: true}},
		cluster.ObjectSet{Object: &cluster.PersistentVolume{Name: "pv"}},
		cluster.ObjectSet{Object: &cluster.StorageClass{Name: "gold", Provisioner: "kubernetes.io/no-provisioner", Mode: cluster.BindToFirstConsumer}}, waits)
	b := start(t, func(_ *gateway.Config, b *berth) { b.guard = guard }, withState(stateOf(t, 7, deltas...)))
	for user, told := range map[string]bool{"admin": true, "ann": false} {
		got, err := b.client.ExplainPod(b.as(user), &schedulingv1.ExplainPodRequest{Name: waits.Pod.Name})
		if err != nil || len(got.GetClaims()) != 1 {
			t.Fatalf("%s: %v, %v", user, got, err)
		}
		c := got.GetClaims()[0]
		if c.GetName() != "data" || c.GetState() != schedulingv1.ClaimState_CLAIM_STATE_WAITING || c.GetNodes() != 0 || c.GetObstacles()[0].GetNodes() != 1 {
			t.Errorf("%s: claim %v, want data, which waits, and has nothing on one node", user, c)
		}
		if says := strings.Contains(got.String(), "gold"); says != told || (c.GetRequest() == 3<<30) != told {
			t.Errorf("%s: told what the claim asks for: %v, want %v: %v", user, says, told, got)
		}
		if got.GetSuggestions()[0].GetKind() != schedulingv1.SuggestionKind_SUGGESTION_KIND_ADD_VOLUME {
			t.Errorf("%s: suggestions %v, want a volume", user, got.GetSuggestions())
		}
		_, err = b.client.WhatIf(b.as(user), &schedulingv1.WhatIfRequest{Manifests: claiming})
		if denied := status.Code(err) == codes.PermissionDenied; denied == told {
			t.Errorf("%s: where would a pod with the claim go: %v", user, err)
		}
		_, err = b.client.GetCapacity(b.as(user), &schedulingv1.GetCapacityRequest{Manifest: claiming})
		if denied := status.Code(err) == codes.PermissionDenied; denied == told {
			t.Errorf("%s: how many with the claim fit: %v", user, err)
		}
		_, err = b.client.Compare(b.as(user), &schedulingv1.CompareRequest{Manifests: claiming})
		if denied := status.Code(err) == codes.PermissionDenied; denied == told {
			t.Errorf("%s: pods with the claim under two configurations: %v", user, err)
		}
	}
	if _, err := b.client.WhatIf(b.as("ann"), &schedulingv1.WhatIfRequest{Manifests: strings.Replace(claiming, "namespace: default", "namespace: ann", 1)}); err != nil {
		t.Errorf("a pod of a namespace whose claims the caller may list: %v", err)
	}
}
