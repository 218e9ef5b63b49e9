package gateway_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
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

// slowReviewer is a reviewer that says nothing about claims until it may, to whom it has said so.
type slowReviewer struct {
	tenants
	asked, may chan struct{}
}

func (r slowReviewer) Allowed(ctx context.Context, _ access.Caller, p access.Permission) (bool, string, error) {
	if p.Resource == "persistentvolumeclaims" {
		select {
		case r.asked <- struct{}{}:
		case <-ctx.Done():
			return false, "", ctx.Err()
		}
		select {
		case <-r.may:
		case <-ctx.Done():
			return false, "", ctx.Err()
		}
	}
	return true, "", nil
}

// Whoever waits for an API server to say whether they may ask about claims holds up nobody else's question. Nobody is asked of pods without claims.
func TestNobodyWaitsForWhatOthersMay(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // for hangs
	defer cancel()
	reviewer := slowReviewer{asked: make(chan struct{}), may: make(chan struct{})}
	guard, err := access.NewGuard(access.GuardConfig{Reviewer: reviewer, Rate: 1e6})
	if err != nil {
		t.Fatal(err)
	}
	deltas := append([]cluster.Delta{
		cluster.SettingsSet{Settings: cluster.Settings{Shards: 2, Source: "local", Profiles: []cluster.Profile{engine.DefaultProfile("berth")}}},
	}, oneClass[1:]...)
	waits := pod(1)
	b := start(t, func(c *gateway.Config, b *berth) { b.guard, c.QuestionFor = guard, time.Minute }, withState(stateOf(t, 7, append(deltas, node(0), waits)...)))
	done := make(chan error, 3)
	go func() {
		_, err := b.client.WhatIf(b.as("ann"), &schedulingv1.WhatIfRequest{Manifests: claiming})
		done <- err
	}()
	go func() {
		_, err := b.client.GetCapacity(b.as("bob"), &schedulingv1.GetCapacityRequest{Manifest: claiming})
		done <- err
	}()
	go func() {
		_, err := b.client.Compare(b.as("cid"), &schedulingv1.CompareRequest{Manifests: claiming})
		done <- err
	}()
	wait := func(what string, c <-chan struct{}) {
		select {
		case <-c:
		case <-ctx.Done():
			t.Fatal(what)
		}
	}
	for range 3 {
		wait("not all that ask about claims came to be reviewed at once", reviewer.asked)
	}
	if _, err := b.client.WhatIf(b.as("admin"), &schedulingv1.WhatIfRequest{Manifests: strings.Replace(claiming, "  volumes: [{name: v, persistentVolumeClaim: {claimName: secret}}]\n", "", 1)}); err != nil {
		t.Errorf("a question that is about no claims: %v", err)
	}
	if _, err := b.client.ExplainPod(b.as("admin"), &schedulingv1.ExplainPodRequest{Name: waits.Pod.Name}); err != nil {
		t.Errorf("a pod without claims: %v", err)
	}
	close(reviewer.may)
	for range 3 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// Whoever waits to hear whether they may ask about claims holds their manifests and not all that these stand for.
func TestWhoWaitsForWhatTheyMayHoldsNoPods(t *testing.T) {
	reviewer := slowReviewer{asked: make(chan struct{}), may: make(chan struct{})}
	guard, err := access.NewGuard(access.GuardConfig{Reviewer: reviewer, Rate: 1e6})
	if err != nil {
		t.Fatal(err)
	}
	b := start(t, func(c *gateway.Config, b *berth) { b.guard, c.QuestionFor = guard, time.Minute })
	held := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	const waiting = 4
	before := held()
	done := make(chan error, waiting)
	asking, leave := context.WithTimeout(b.ctx, 2*time.Minute) // for hangs
	defer leave()
	for k := range waiting {
		go func() {
			_, err := b.client.WhatIf(metadata.AppendToOutgoingContext(asking, "authorization", fmt.Sprint("Bearer user-", k)), &schedulingv1.WhatIfRequest{Manifests: many})
			done <- err
		}()
	}
	for range waiting {
		select {
		case <-reviewer.asked:
		case err := <-done:
			t.Fatal(err)
		}
	}
	if now := held(); now > before+waiting*4<<20 {
		t.Errorf("%d calls that wait hold %d MiB", waiting, (now-before)>>20)
	}
	leave()
	for range waiting {
		if err := <-done; status.Code(err) != codes.Canceled {
			t.Error(err)
		}
	}
}

// many is 10,000 pods with a claim each.
const many = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web}
spec:
  replicas: 10000
  selector: {matchLabels: {app: web}}
  volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: i}]}
`

// What is there and in no namespace cannot be replaced by what a question brings, and claims only by those who may list them.
func TestManifestsReplaceNothingOfOthers(t *testing.T) {
	guard, err := access.NewGuard(access.GuardConfig{Reviewer: claimReaders{}, Rate: 1e6})
	if err != nil {
		t.Fatal(err)
	}
	deltas := append([]cluster.Delta{
		cluster.SettingsSet{Settings: cluster.Settings{Shards: 2, Source: "local", Profiles: []cluster.Profile{engine.DefaultProfile("berth")}}},
	}, oneClass[1:]...)
	b := start(t, func(_ *gateway.Config, b *berth) { b.guard = guard }, withState(stateOf(t, 7, append(deltas, node(0), cluster.ObjectSet{Object: &cluster.StorageClass{Name: "gold"}})...)))
	const gold = "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: gold}\nprovisioner: csi\n---\n"
	const claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: c, namespace: default}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n---\n"
	bare := strings.Replace(claiming, "  volumes: [{name: v, persistentVolumeClaim: {claimName: secret}}]\n", "", 1)
	for _, tt := range []struct {
		user, manifests string
		want            codes.Code
	}{
		{"admin", gold + bare, codes.InvalidArgument},
		{"admin", strings.Replace(gold, "gold", "silver", 1) + bare, codes.OK},
		{"admin", claim + bare, codes.OK},
		{"ann", claim + bare, codes.PermissionDenied},
		{"ann", strings.Replace(claim, "namespace: default", "namespace: ann", 1) + bare, codes.OK},
	} {
		if _, err := b.client.WhatIf(b.as(tt.user), &schedulingv1.WhatIfRequest{Manifests: tt.manifests}); status.Code(err) != tt.want {
			t.Errorf("%s: %v, want %v, of\n%s", tt.user, err, tt.want, tt.manifests)
		}
	}
	if _, err := b.client.GetCapacity(b.as("admin"), &schedulingv1.GetCapacityRequest{Manifest: gold + bare}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("how many fit with another class gold: %v", err)
	}
}

// noLister is a reviewer for whom nobody may list pods.
type noLister struct{ tenants }

func (noLister) Allowed(_ context.Context, _ access.Caller, p access.Permission) (bool, string, error) {
	return p.Verb != "list" || p.Resource != "pods", "", nil
}

// Manifests that stand for no pod are no way to have the cluster's pods compared: that takes the right to list them.
func TestPodsOfTheClusterAreComparedOnlyForThoseWhoMayListThem(t *testing.T) {
	guard, err := access.NewGuard(access.GuardConfig{Reviewer: noLister{}, Rate: 1e6})
	if err != nil {
		t.Fatal(err)
	}
	deltas := append([]cluster.Delta{
		cluster.SettingsSet{Settings: cluster.Settings{Shards: 2, Source: "local", Profiles: []cluster.Profile{engine.DefaultProfile("berth")}}},
	}, oneClass[1:]...)
	b := start(t, func(_ *gateway.Config, b *berth) { b.guard = guard }, withState(stateOf(t, 7, append(deltas, node(0), pod(1))...)))
	const other = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles: [{schedulerName: other}]\n"
	for manifests, want := range map[string]codes.Code{
		"": codes.PermissionDenied, " \n": codes.PermissionDenied, "# nothing": codes.InvalidArgument,
		"apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: v}\nspec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce]}\n": codes.InvalidArgument,
		strings.Replace(claiming, "  volumes: [{name: v, persistentVolumeClaim: {claimName: secret}}]\n", "", 1):                        codes.OK,
	} {
		got, err := b.client.Compare(b.as("ann"), &schedulingv1.CompareRequest{Other: other, Manifests: manifests})
		if status.Code(err) != want || strings.Contains(got.String(), pod(1).Pod.Name) || len(got.GetMoves()) > 0 && want != codes.OK {
			t.Errorf("pods of %q: %v, %v, want %v", manifests, got, err, want)
		}
	}
}

// podReaders is a reviewer for whom everyone may do everything, but only "admin" may list pods, and "ann" those of her own namespace.
type podReaders struct{ tenants }

func (podReaders) Allowed(_ context.Context, c access.Caller, p access.Permission) (bool, string, error) {
	return p.Verb != "list" || p.Resource != "pods" || c.User == "admin" || c.User == "ann" && p.Namespace == "ann", "", nil
}

// What there is of a PodGroup, how much of it is placed, and the names of its pods, are for those who may list pods there: a PodGroup that a question brings takes the place of one that there is.
func TestGroupsAreToldToThoseWhoMayListTheirPods(t *testing.T) {
	guard, err := access.NewGuard(access.GuardConfig{Reviewer: podReaders{}, Rate: 1e6})
	if err != nil {
		t.Fatal(err)
	}
	b := start(t, func(_ *gateway.Config, b *berth) { b.guard = guard }, withState(stateOf(t, 7, racks()...)))
	const group = "apiVersion: scheduling.k8s.io/v1alpha2\nkind: PodGroup\nmetadata: {name: there, namespace: default}\nspec: {schedulingPolicy: {gang: {minCount: 1}}, schedulingConstraints: {topology: [{key: no/such-label}]}}\n"
	const lone = "apiVersion: v1\nkind: Pod\nmetadata: {name: guess, namespace: default}\nspec: {schedulerName: berth, containers: [{name: c, image: i}]}\n"
	member := strings.Replace(lone, "spec: {", "spec: {schedulingGroup: {podGroupName: there}, ", 1)
	many := ""
	for k := range 9 {
		many += "---\n" + strings.Replace(group, "default", fmt.Sprint("ns-", k), 1)
	}
	elsewhere := strings.ReplaceAll(group+"---\n"+member, "namespace: default", "namespace: ann")
	for what, c := range map[string]struct {
		manifests, user string
		may             bool
	}{
		"a group and a pod of it": {group + "---\n" + member, "ann", false}, "a pod of a group": {member, "ann", false}, "a group alone": {group + "---\n" + lone, "ann", false},
		"no group": {lone, "ann", true}, "what she may list": {elsewhere, "ann", true}, "many groups": {many + "---\n" + lone, "ann", false}, "all that one may list": {group + "---\n" + member, "admin", true},
	} {
		for method, ask := range map[string]func() (fmt.Stringer, error){
			"WhatIf": func() (fmt.Stringer, error) {
				return b.client.WhatIf(b.as(c.user), &schedulingv1.WhatIfRequest{Manifests: c.manifests})
			},
			"GetCapacity": func() (fmt.Stringer, error) {
				return b.client.GetCapacity(b.as(c.user), &schedulingv1.GetCapacityRequest{Manifest: c.manifests})
			},
			"Compare": func() (fmt.Stringer, error) {
				return b.client.Compare(b.as(c.user), &schedulingv1.CompareRequest{Manifests: c.manifests})
			},
		} {
			got, err := ask()
			if denied := status.Code(err) == codes.PermissionDenied; denied == c.may {
				t.Errorf("%s about %s: %v, %v; want an answer: %v", method, what, got, err, c.may)
			}
		}
	}
	got, err := b.client.WhatIf(b.as("admin"), &schedulingv1.WhatIfRequest{Manifests: group + "---\n" + member})
	if err != nil || !strings.Contains(got.String(), "default/pod-000") {
		t.Errorf("who may list them is told %v, %v, want a pod of the group", got, err)
	}
}
