package answer_test

import (
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/berth-scheduler/berth/internal/answer"
	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/whatif"
)

// boxOf returns a sandbox of objects.
func boxOf(t *testing.T, objects string) *whatif.Sandbox {
	box, err := whatif.FromObjects([]byte(objects),
		cluster.Settings{Shards: 1, Source: "local", Profiles: []cluster.Profile{engine.DefaultProfile("berth")}}, engine.EvaluatorConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return box
}

// greedy is a pod that asks for resources with long names that no node has, with more in its spec.
func greedy(name string, resources int, spec string) string {
	var requests, limits strings.Builder
	for k := range resources {
		resource := fmt.Sprintf("%s.example/%s%d", strings.Repeat(strings.Repeat("a", 60)+".", 4)[:230], strings.Repeat("r", 60), k)
		fmt.Fprintf(&requests, "%s: 1, ", resource)
	}
	limits.WriteString(requests.String())
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec:\n  schedulerName: berth\n  containers: [{name: c, image: i, resources: {requests: {" +
		requests.String() + "}, limits: {" + limits.String() + "}}}]\n" + spec
}

func TestAnswersAreOfASize(t *testing.T) {
	required := "  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [a]}]}]}}}\n"
	for name, c := range map[string]struct {
		req   *schedulingv1.WhatIfRequest
		large bool
	}{
		"as much as fits": {&schedulingv1.WhatIfRequest{Manifests: greedy("p", 50, ""), Times: 400}, false},
		"too much":        {&schedulingv1.WhatIfRequest{Manifests: greedy("p", 50, ""), Times: 1000}, true},
		"counts":          {&schedulingv1.WhatIfRequest{Manifests: greedy("p", 50, ""), Times: 1000, SummaryOnly: true}, false},
		"of one node":     {&schedulingv1.WhatIfRequest{Manifests: greedy("p", 50, required), Times: 1000}, true},
		"no preemption":   {&schedulingv1.WhatIfRequest{Manifests: greedy("p", 50, "  preemptionPolicy: Never\n"), Times: 1000}, true},
	} {
		box := boxOf(t, nodeWith("a", 0))
		response, err := answer.WhatIf(t.Context(), box, c.req, false)
		large := rpc.TooLarge(err) && status.Code(err) == codes.InvalidArgument && strings.Contains(err.Error(), "summary_only")
		if large != c.large || err != nil && !large {
			t.Errorf("%s: %.300v", name, err)
		}
		if err == nil && (response.GetUnplaced() != c.req.GetTimes() || proto.Size(response) > 16<<20) {
			t.Errorf("%s: %d unplaced, %d bytes", name, response.GetUnplaced(), proto.Size(response))
		}
	}
}

func TestPodsOfASignatureAreToldTheSame(t *testing.T) {
	box := boxOf(t, nodeWith("a", 0))
	response, err := answer.WhatIf(t.Context(), box, &schedulingv1.WhatIfRequest{Manifests: greedy("p", 2, ""), Times: 3}, false)
	if err != nil || len(response.GetOutcomes()) != 3 {
		t.Fatalf("%d outcomes, %v", len(response.GetOutcomes()), err)
	}
	first := response.GetOutcomes()[0]
	for _, o := range response.GetOutcomes() {
		if o.GetMessage() != first.GetMessage() || !strings.Contains(o.GetMessage(), "preemption: ") || len(o.GetVerdicts()) != 2 ||
			unsafe.StringData(o.GetMessage()) != unsafe.StringData(first.GetMessage()) || o.GetVerdicts()[0] != first.GetVerdicts()[0] { // and it is there once
			t.Errorf("%v", o)
		}
	}
}

func TestNodesThatAreDrainedAgainAndAgainAreToldUpToASize(t *testing.T) {
	objects := nodeWith("a", 0)
	for k := range 200 {
		objects += fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {name: p-%d-%s}\nspec: {nodeName: a, containers: [{name: c, image: i}], affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [a]}]}]}}}}\n", k, strings.Repeat("x", 200))
	}
	req := &schedulingv1.WhatIfRequest{}
	for range 1000 {
		req.Changes = append(req.Changes, &schedulingv1.Change{Change: &schedulingv1.Change_Drain{Drain: "a"}})
	}
	if _, err := answer.WhatIf(t.Context(), boxOf(t, objects), req, true); !rpc.TooLarge(err) {
		t.Errorf("%v", err)
	}
	req.SummaryOnly = true
	if _, err := answer.WhatIf(t.Context(), boxOf(t, objects), req, true); err != nil {
		t.Error(err)
	}
}

func TestNodesThatAreAddedBringSoManyResources(t *testing.T) {
	node := func(name string, resources int) *schedulingv1.Change {
		var text strings.Builder
		for k := range resources {
			fmt.Fprintf(&text, "%s.example/r%d: 1,", name, k)
		}
		return &schedulingv1.Change{Change: &schedulingv1.Change_AddNodes{AddNodes: &schedulingv1.AddNodes{
			Count: 100, Manifests: "kind: Node\nmetadata: {name: " + name + "}\nstatus: {allocatable: {cpu: 1," + text.String() + "}}\n"}}}
	}
	for name, c := range map[string]struct {
		changes []*schedulingv1.Change
		field   string
	}{
		"as many as there may be": {[]*schedulingv1.Change{node("x", 128)}, ""},
		"more":                    {[]*schedulingv1.Change{node("x", 129)}, "changes[0].add_nodes"},
		"far more":                {[]*schedulingv1.Change{node("x", 15_000)}, "changes[0].add_nodes"},
		"in all": {[]*schedulingv1.Change{node("a", 128), node("b", 128), node("c", 128), node("d", 128), node("e", 128), node("f", 128), node("g", 128), node("h", 128),
			node("i", 128), node("j", 128), node("k", 128), node("l", 128), node("m", 128), node("n0", 128), node("o", 128), node("p", 128), node("q", 128)}, "changes[15].add_nodes"},
	} {
		_, err := answer.WhatIf(t.Context(), boxOf(t, nodeWith("a0", 0)), &schedulingv1.WhatIfRequest{Changes: c.changes}, false)
		found := rpc.Violations(err)
		if (err == nil) != (c.field == "") || err != nil && (len(found) != 1 || found[0].Field != c.field) {
			t.Errorf("%s: %.300v, want a violation of %q", name, err, c.field)
		}
	}
}
