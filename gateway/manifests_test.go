package gateway_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/berth-scheduler/berth/gateway"
	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/manifest"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/source/local"
)

func withObjects(o *objects) option {
	return with(func(cfg *gateway.Config) { cfg.Manifests = o })
}

// from is a state that says where its cluster comes from.
func from(t *testing.T, source string) *cluster.State {
	return stateOf(t, 7, cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Source: source}})
}

const twoPods = `
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec: {containers: [{name: web, image: nginx}]}
---
apiVersion: v1
kind: Pod
metadata: {name: db}
spec: {containers: [{name: db, image: postgres}]}
`

func TestApplyAnswersPerObject(t *testing.T) {
	store := &objects{}
	b := start(t, withState(from(t, "local")), withObjects(store))
	for _, dryRun := range []bool{true, false} {
		got, err := b.client.Apply(b.ctx, &schedulingv1.ApplyRequest{Manifests: twoPods, DryRun: dryRun})
		if err != nil {
			t.Fatal(err)
		}
		want := &schedulingv1.ApplyResponse{Objects: []*schedulingv1.Applied{
			{Kind: "Pod", Namespace: "shop", Name: "web", Result: "created"},
			{Kind: "Pod", Namespace: "default", Name: "db", Result: "created"},
		}}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("Apply, dry run %t (-want +got):\n%s", dryRun, diff)
		}
		if written := len(store.applied) > 0; written == dryRun {
			t.Errorf("dry run %t wrote %v", dryRun, store.applied)
		}
	}
}

func TestWrongManifestsNameDocumentAndField(t *testing.T) {
	store := &objects{}
	b := start(t, withState(from(t, "local")), withObjects(store))
	_, err := b.client.Apply(b.ctx, &schedulingv1.ApplyRequest{Manifests: strings.Replace(twoPods, "{name: db}", "{name: db, nodeNaem: x}", 1)})
	violations := rpc.Violations(err)
	if status.Code(err) != codes.InvalidArgument || len(violations) != 1 {
		t.Fatalf("Apply: %v, want INVALID_ARGUMENT with a violation", err)
	}
	if v := violations[0]; !strings.HasPrefix(v.Field, "documents[1]") || !strings.Contains(v.Field+v.Description, "nodeNaem") {
		t.Errorf("violation %+v, want document 1 and the field's name", v)
	}
	if len(store.applied) > 0 {
		t.Errorf("%v were applied", store.applied)
	}
}

func TestStoreErrorsSayWhatToDoNext(t *testing.T) {
	store := &objects{there: map[string]bool{"Pod default/web": true}}
	b := start(t, withState(from(t, "local")), withObjects(store))
	for _, test := range []struct {
		err    error
		code   codes.Code
		reason rpc.Reason
	}{
		{&manifest.Error{Violations: []manifest.Violation{{Document: 2, Field: "spec.x", Description: "cannot be changed"}}}, codes.InvalidArgument, rpc.ReasonInvalid},
		{fmt.Errorf("write: %w", local.ErrConflict), codes.Aborted, rpc.ReasonStale},
		{fmt.Errorf("write: %w", coord.ErrUnknown), codes.Unavailable, gateway.ReasonOutcomeUnknown},
		{fmt.Errorf("write: %w", coord.ErrTooLarge), codes.InvalidArgument, rpc.ReasonInvalid},
		{errors.New("etcd: no leader; secret"), codes.Unavailable, rpc.ReasonNotReady},
	} {
		store.err = test.err
		_, applyErr := b.client.Apply(b.ctx, &schedulingv1.ApplyRequest{Manifests: twoPods})
		_, deleteErr := b.client.Delete(b.ctx, &schedulingv1.DeleteRequest{Kind: "Pod", Name: "web"})
		for what, err := range map[string]error{"Apply": applyErr, "Delete": deleteErr} {
			if status.Code(err) != test.code || rpc.ReasonOf(err) != test.reason {
				t.Errorf("%s over %q: %v, %s; want %v, %s", what, test.err, err, rpc.ReasonOf(err), test.code, test.reason)
			}
			if strings.Contains(fmt.Sprint(err), "secret") {
				t.Errorf("%s tells the store's own words: %v", what, err)
			}
		}
	}
}

func TestDeleteRemovesWhatIsThere(t *testing.T) {
	b := start(t, withState(from(t, "local")), withObjects(&objects{there: map[string]bool{
		"Pod default/web": true, "Node /n1": true, "Service default/web": true, "StatefulSet shop/db": true,
	}}))
	for _, test := range []struct {
		req  *schedulingv1.DeleteRequest
		want codes.Code
	}{
		{&schedulingv1.DeleteRequest{Kind: "Pod", Name: "web"}, codes.OK},
		{&schedulingv1.DeleteRequest{Kind: "Pod", Namespace: "default", Name: "web"}, codes.OK},
		{&schedulingv1.DeleteRequest{Kind: "Pod", Namespace: "shop", Name: "web"}, codes.NotFound},
		{&schedulingv1.DeleteRequest{Kind: "Node", Name: "n1"}, codes.OK},
		{&schedulingv1.DeleteRequest{Kind: "Node", Name: "n2"}, codes.NotFound},
		{&schedulingv1.DeleteRequest{Kind: "Node", Namespace: "default", Name: "n1"}, codes.InvalidArgument},
		{&schedulingv1.DeleteRequest{Kind: "Service", Name: "web"}, codes.OK},
		{&schedulingv1.DeleteRequest{Kind: "ReplicaSet", Name: "web"}, codes.NotFound},
		{&schedulingv1.DeleteRequest{Kind: "StatefulSet", Namespace: "shop", Name: "db"}, codes.OK},
		{&schedulingv1.DeleteRequest{Kind: "Deployment", Name: "web"}, codes.InvalidArgument},
		{&schedulingv1.DeleteRequest{Name: "web"}, codes.InvalidArgument},
	} {
		if _, err := b.client.Delete(b.ctx, test.req); status.Code(err) != test.want {
			t.Errorf("Delete(%v): %v, want %v", test.req, err, test.want)
		}
	}
}

func TestKubernetesObjectsAreNotBerthsToChange(t *testing.T) {
	store := &objects{}
	b := start(t, withState(from(t, "kube")), withObjects(store))
	_, applyErr := b.client.Apply(b.ctx, &schedulingv1.ApplyRequest{Manifests: twoPods})
	_, deleteErr := b.client.Delete(b.ctx, &schedulingv1.DeleteRequest{Kind: "Pod", Name: "web"})
	for what, err := range map[string]error{"Apply": applyErr, "Delete": deleteErr} {
		if status.Code(err) != codes.FailedPrecondition || rpc.ReasonOf(err) != gateway.ReasonNotLocal || !strings.Contains(err.Error(), "use kubectl") {
			t.Errorf("%s: %v, want FAILED_PRECONDITION: use kubectl", what, err)
		}
	}
	if len(store.applied) > 0 {
		t.Errorf("it wrote %v", store.applied)
	}
}
