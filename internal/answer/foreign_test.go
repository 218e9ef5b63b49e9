package answer_test

import (
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/answer"
	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/whatif"
)

// Who asks why a pod is nowhere, or what would be, is told which plugins of others have had no say in the answer: those by which the pod's profile filters and scores.
func TestAnswersNameThePluginsThatAreNotAsked(t *testing.T) {
	foreign := engine.DefaultProfile("foreign")
	foreign.Filters = append([]string{"GPUModel"}, foreign.Filters...)
	foreign.Weights = append(foreign.Weights, cluster.PluginWeight{Name: "GPUModel", Weight: 1}, cluster.PluginWeight{Name: "FewestPods", Weight: 5})
	box, err := whatif.FromObjects([]byte(nodeWith("a", 0)+"\n---\n"+pod("of-ours", "berth")+"\n---\n"+pod("of-theirs", "foreign")),
		cluster.Settings{Shards: 1, Source: "local", Profiles: []cluster.Profile{engine.DefaultProfile("berth"), foreign}}, engine.EvaluatorConfig{})
	if err != nil {
		t.Fatal(err)
	}
	plugins := []string{"GPUModel", "FewestPods"}
	for name, want := range map[string][]string{"of-ours": nil, "of-theirs": plugins} {
		req := &schedulingv1.ExplainPodRequest{Namespace: "default", Name: name}
		id, err := answer.Find(t.Context(), box, "default", name)
		if err != nil {
			t.Fatal(err)
		}
		x, err := answer.Explain(t.Context(), box, id, req, answer.MayKnow{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(want, x.GetNotAsked()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if says := strings.Contains(x.GetText(), "Plugins of others are not asked here: GPUModel, FewestPods."); says != (want != nil) {
			t.Errorf("%s: the text is\n%s", name, x.GetText())
		}
	}
	for name, c := range map[string]struct {
		req  *schedulingv1.WhatIfRequest
		want []string
	}{
		"of ours":         {&schedulingv1.WhatIfRequest{Manifests: pod("new", "berth")}, nil},
		"of theirs":       {&schedulingv1.WhatIfRequest{Manifests: pod("new", "foreign")}, []string{"profile foreign: plugins of others were not asked: GPUModel, FewestPods"}},
		"those that wait": {&schedulingv1.WhatIfRequest{Pending: true}, []string{"profile foreign: plugins of others were not asked: GPUModel, FewestPods"}},
	} {
		response, err := answer.WhatIf(t.Context(), box, c.req, false)
		if err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(c.want, response.GetNotes()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A comparison with a configuration that has Coscheduling says that it changes no groups, and one without says nothing.
func TestAComparisonSaysThatGroupsStay(t *testing.T) {
	box, err := whatif.FromObjects([]byte(nodeWith("a", 0)), cluster.Settings{Shards: 1, Source: "local", Profiles: []cluster.Profile{engine.DefaultProfile("berth")}}, engine.EvaluatorConfig{})
	if err != nil {
		t.Fatal(err)
	}
	const head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles: [{schedulerName: berth"
	for other, want := range map[string][]string{
		head + "}]": nil,
		head + `, plugins: {multiPoint: {enabled: [{name: Coscheduling}]}, queueSort: {enabled: [{name: Coscheduling}], disabled: [{name: "*"}]}}}]`: {whatif.GroupsStay},
	} {
		response, err := answer.Compare(t.Context(), box, &schedulingv1.CompareRequest{Other: other, Manifests: pod("new", "berth")}, true)
		if err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(want, response.GetNotes()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", other, diff)
		}
	}
}

func pod(name, scheduler string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", namespace: default}\nspec: {schedulerName: " + scheduler + ", containers: [{name: c, image: i}]}"
}
