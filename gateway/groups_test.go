package gateway_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
)

// racks are two racks of a node each, with room for three and for two pods; the gang there is of two, both of which are in the larger, and the gang waits wants three.
func racks() []cluster.Delta {
	deltas := append(oneClass, cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Source: "local", Profiles: []cluster.Profile{engine.DefaultProfile("berth")}}})
	for k, cpu := range []int64{2500, 1000} {
		n := node(k)
		n.Node.Labels = append(n.Node.Labels, cluster.Label{Key: "rack", Value: string(rune('a' + k))})
		n.Node.Allocatable = []cluster.Quantity{{Name: "cpu", Value: cpu}, {Name: "memory", Value: 16 << 30}, {Name: "pods", Value: 110}}
		deltas = append(deltas, n)
	}
	gang := func(name string, minCount int32) cluster.Delta {
		return cluster.ObjectSet{Object: &cluster.PodGroup{Namespace: "default", Name: name, Gang: true, MinCount: minCount, Topology: []string{"rack"}}}
	}
	deltas = append(deltas, gang("there", 2), gang("waits", 4))
	for id := range 6 {
		p := pod(id)
		p.Pod.Group = "there"
		if id >= 2 {
			p.Pod.Group = "waits"
		}
		deltas = append(deltas, p)
	}
	for id := range cluster.PodID(2) {
		deltas = append(deltas, assumed(int(id), 0), cluster.PodBound{ID: id})
	}
	return deltas
}

// TestCapacityOfAGang asks about a PodGroup that there is, by RPC and as JSON, and about one of a manifest.
func TestCapacityOfAGang(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, racks()...)))
	check := func(what string, got *schedulingv1.GetCapacityResponse, want *schedulingv1.GroupCapacity, fit int32, why string) {
		t.Helper()
		if got.GetFit() != fit || got.GetAtLeast() || !strings.Contains(got.GetMessage(), why) || !proto.Equal(got.GetGroup(), want) {
			t.Errorf("%s: %v, want %d of %v, and %q", what, got, fit, want, why)
		}
	}
	there := &schedulingv1.GroupCapacity{Name: "there", Pods: 2, Wants: 2, Topology: []string{"rack"}, Domains: []*schedulingv1.DomainCapacity{{Name: "a", Fit: 1}, {Name: "b", Fit: 1}}}
	got, err := b.client.GetCapacity(b.ctx, &schedulingv1.GetCapacityRequest{PodGroup: "there"})
	if err != nil {
		t.Fatal(err)
	}
	const why = "0/2 placements are available, the best: pod group is unschedulable: 1 of at least 2 pods fit in a"
	check("there", got, there, 2, why)

	url, client, _ := b.web()
	status, body := do(t, client, http.MethodPost, url+"/v1/capacity", `{"podGroup": "there", "namespace": "default"}`)
	var is struct {
		Fit   int
		Group struct {
			Name    string
			Domains []struct {
				Name string
				Fit  int
			}
		}
	}
	if err := json.Unmarshal(body, &is); status != http.StatusOK || err != nil || fmt.Sprint(is) != "{2 {there [{a 1} {b 1}]}}" {
		t.Errorf("as JSON: %d, %v: %s", status, err, body)
	}

	manifest := `
apiVersion: scheduling.k8s.io/v1alpha2
kind: PodGroup
metadata: {name: train}
spec: {schedulingPolicy: {gang: {minCount: 2}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  parallelism: 3
  template:
    spec:
      schedulerName: berth
      schedulingGroup: {podGroupName: train}
      restartPolicy: Never
      containers: [{name: c, image: i, resources: {requests: {cpu: 500m}}}]
`
	if got, err = b.client.GetCapacity(b.ctx, &schedulingv1.GetCapacityRequest{Manifest: manifest}); err != nil {
		t.Fatal(err)
	}
	check("a manifest", got, &schedulingv1.GroupCapacity{Name: "train", Pods: 3, Wants: 2}, 2, "pod group is unschedulable")
	if _, err := b.client.GetCapacity(b.ctx, &schedulingv1.GetCapacityRequest{Manifest: strings.Replace(manifest, "podGroupName: train", "podGroupName: other", 1)}); !namesField(err, "manifest") {
		t.Errorf("pods of another group: %v, want a violation of manifest", err)
	}
}

// TestGroupsOfCoschedulingAreAskedAbout by the name that they have here, which has a slash.
func TestGroupsOfCoschedulingAreAskedAbout(t *testing.T) {
	deltas := racks()
	name := cluster.CoschedulingGroup("train")
	deltas = append(deltas, cluster.ObjectSet{Object: &cluster.PodGroup{Namespace: "default", Name: name, Gang: true, MinCount: 2}})
	for id := 6; id < 8; id++ {
		p := pod(id)
		p.Pod.Group = name
		deltas = append(deltas, p)
	}
	b := start(t, withState(stateOf(t, 7, deltas...)))
	got, err := b.client.GetCapacity(b.ctx, &schedulingv1.GetCapacityRequest{PodGroup: name})
	if err != nil || got.GetFit() != 2 || got.GetGroup().GetName() != name || got.GetGroup().GetPods() != 2 {
		t.Errorf("how many fit: %v, %v, want 2 of %s with 2 pods each", got, err, name)
	}
	list, err := b.client.ListPods(b.ctx, &schedulingv1.ListPodsRequest{PodGroup: name})
	if err != nil || len(list.GetPods()) != 2 || list.GetPods()[0].GetPodGroup() != name {
		t.Errorf("its pods: %v, %v, want 2", list, err)
	}
	for _, bad := range []string{cluster.CoschedulingGroup(""), name + "/more", "other.example.com/train", "/train"} {
		if _, err := b.client.ListPods(b.ctx, &schedulingv1.ListPodsRequest{PodGroup: bad}); !namesField(err, "pod_group") {
			t.Errorf("the pods of %q: %v, want a violation of pod_group", bad, err)
		}
		if _, err := b.client.GetCapacity(b.ctx, &schedulingv1.GetCapacityRequest{PodGroup: bad}); !namesField(err, "pod_group") {
			t.Errorf("how many of %q fit: %v, want a violation of pod_group", bad, err)
		}
	}
}

// TestTheGroupOfAPodIsTold of one that is placed, and of one that waits.
func TestTheGroupOfAPodIsTold(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, racks()...)))
	for name, want := range map[string]*schedulingv1.PodGroup{
		"pod-0000": {
			Name: "there", Pods: 2, Placed: 2, Wants: 2, Topology: []string{"rack"}, Domain: "a", Fit: 2, Fits: true,
			Text: "PodGroup there has 2 pods, of which it wants at least 2 placed together, all with the same rack.\n2 are placed, in a.\n",
		},
		"pod-0002": {
			Name: "waits", Pods: 4, Wants: 4, Topology: []string{"rack"}, Domain: "a", Fit: 3, Missing: "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) of other domains.",
			Changes: []string{"1 more node like node-00", "a minCount of 3"},
			Text: "PodGroup waits has 4 pods, of which it wants at least 4 placed together, all with the same rack.\nThe next of its pods: 0/2 nodes are available: 1 Insufficient cpu, 1 node(s) of other domains.\n" +
				"It would fit with 1 more node like node-00, or a minCount of 3.\n",
		},
	} {
		got, err := b.client.ExplainPod(b.ctx, &schedulingv1.ExplainPodRequest{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(got.GetGroup(), want) || got.GetPod().GetPodGroup() != want.GetName() || len(got.GetSuggestions()) > 0 {
			t.Errorf("%s: %v of %q, and %v would help; want %v alone", name, got.GetGroup(), got.GetPod().GetPodGroup(), got.GetSuggestions(), want)
		}
	}
	list, err := b.client.ListPods(b.ctx, &schedulingv1.ListPodsRequest{PodGroup: "waits", PageSize: 3})
	if err != nil || len(list.GetPods()) != 3 || list.GetPods()[0].GetPodGroup() != "waits" {
		t.Fatalf("the pods of a group: %v, %v", list, err)
	}
	rest, err := b.client.ListPods(b.ctx, &schedulingv1.ListPodsRequest{PodGroup: "waits", PageSize: 3, PageToken: list.GetNextPageToken()})
	if err != nil || len(rest.GetPods()) != 1 || rest.GetNextPageToken() != "" {
		t.Errorf("the rest of them: %v, %v", rest, err)
	}
	if _, err := b.client.ListPods(b.ctx, &schedulingv1.ListPodsRequest{PodGroup: "there", PageSize: 3, PageToken: list.GetNextPageToken()}); !namesField(err, "page_token") {
		t.Errorf("a token of another group: %v, want a violation", err)
	}
}
