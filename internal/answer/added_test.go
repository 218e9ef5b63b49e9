package answer_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/answer"
	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/whatif"
)

// nodeWith returns the manifest of a node with so many labels.
func nodeWith(name string, labels int) string {
	var text strings.Builder
	for k := range labels {
		fmt.Fprintf(&text, "k%d: v,", k)
	}
	return "apiVersion: v1\nkind: Node\nmetadata: {name: " + name + ", labels: {" + text.String() + "}}\nstatus: {allocatable: {cpu: 1, pods: 5}}\n"
}

func TestNodesThatAreAddedAreBoundedInAllChangesTogether(t *testing.T) {
	box, err := whatif.FromObjects([]byte(nodeWith("a", 0)),
		cluster.Settings{Shards: 1, Source: "local", Profiles: []cluster.Profile{engine.DefaultProfile("berth")}}, engine.EvaluatorConfig{})
	if err != nil {
		t.Fatal(err)
	}
	like := func(count int32) *schedulingv1.AddNodes { return &schedulingv1.AddNodes{Like: "a", Count: count} }
	made := func(labels int, count int32) *schedulingv1.AddNodes {
		return &schedulingv1.AddNodes{Manifests: nodeWith("b", labels), Count: count}
	}
	with := func(field, element string, n int, count int32) *schedulingv1.AddNodes {
		var list strings.Builder
		for k := range n {
			fmt.Fprintf(&list, element+",", k)
		}
		return &schedulingv1.AddNodes{Count: count, Manifests: "kind: Node\nmetadata: {name: c}\nstatus: {allocatable: {cpu: 1, pods: 5}, " + field + "[" + list.String() + "]}\n"}
	}
	for name, c := range map[string]struct {
		changes []*schedulingv1.AddNodes
		field   string // that is wrong; "" if none is
	}{
		"as many as there may be": {[]*schedulingv1.AddNodes{like(5000), like(5000)}, ""},
		"one more":                {[]*schedulingv1.AddNodes{like(5000), like(5000), like(1)}, "changes[2].add_nodes"},
		"too many in one":         {[]*schedulingv1.AddNodes{like(10_001)}, "changes[0].add_nodes"},
		"labels":                  {[]*schedulingv1.AddNodes{made(500, 500), made(500, 500)}, ""},
		"more labels":             {[]*schedulingv1.AddNodes{made(500, 500), made(500, 501)}, "changes[1].add_nodes"},
		"images":                  {[]*schedulingv1.AddNodes{with("images: ", "{names: [i%d]}", 500, 1000)}, ""},
		"more images":             {[]*schedulingv1.AddNodes{with("images: ", "{names: [i%d]}", 500, 1001)}, "changes[0].add_nodes"},
		"more taints":             {[]*schedulingv1.AddNodes{with("}\nspec: {taints: ", "{key: k%d, effect: NoSchedule}", 500, 1001)}, "changes[0].add_nodes"},
		"images beside labels":    {[]*schedulingv1.AddNodes{made(500, 500), with("images: ", "{names: [i%d]}", 500, 501)}, "changes[1].add_nodes"},
		"of each many":            {[]*schedulingv1.AddNodes{made(10_000, 2000)}, "changes[0].add_nodes"},
	} {
		request := &schedulingv1.WhatIfRequest{SummaryOnly: true}
		for _, a := range c.changes {
			request.Changes = append(request.Changes, &schedulingv1.Change{Change: &schedulingv1.Change_AddNodes{AddNodes: a}})
		}
		_, err := answer.WhatIf(t.Context(), box, request, false)
		found := rpc.Violations(err)
		if (err == nil) != (c.field == "") || err != nil && (len(found) != 1 || found[0].Field != c.field) {
			t.Errorf("%s: %v, want a violation of %q", name, err, c.field)
		}
	}
}
