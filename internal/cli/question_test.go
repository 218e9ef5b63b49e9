package cli_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
)

func text(t *testing.T, file string) string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestTheFlagsOfAQuestionReachTheGatewayInTheirOrder(t *testing.T) {
	g := &gateway{}
	h := start(t, g)
	deployment, configuration := text(t, "testdata/web.yaml"), text(t, "testdata/binpack.yaml")
	for args, want := range map[string]proto.Message{
		"why train-0":          &schedulingv1.ExplainPodRequest{Namespace: "default", Name: "train-0"},
		"scores web-1 -n shop": &schedulingv1.ExplainPodRequest{Namespace: "shop", Name: "web-1"},
		"whatif -f testdata/web.yaml --times 7 --no-preemption --summary": &schedulingv1.WhatIfRequest{
			Manifests: deployment, Times: 7, NoPreemption: true, SummaryOnly: true,
		},
		"whatif -f -": &schedulingv1.WhatIfRequest{Manifests: deployment, Times: 1},
		"whatif --uncordon b --drain a --uncordon a --add-nodes count=3,like=a --label a:disk=ssd=1 --label a:disk- --label a:empty= --remove-node c --cordon d --config testdata/binpack.yaml --add-nodes file=testdata/web.yaml --pending": &schedulingv1.WhatIfRequest{
			Times: 1, Pending: true,
			Changes: []*schedulingv1.Change{
				{Change: &schedulingv1.Change_Uncordon{Uncordon: "b"}},
				{Change: &schedulingv1.Change_Drain{Drain: "a"}},
				{Change: &schedulingv1.Change_Uncordon{Uncordon: "a"}},
				{Change: &schedulingv1.Change_AddNodes{AddNodes: &schedulingv1.AddNodes{Like: "a", Count: 3}}},
				{Change: &schedulingv1.Change_LabelNode{LabelNode: &schedulingv1.LabelNode{Node: "a", Key: "disk", Value: "ssd=1"}}},
				{Change: &schedulingv1.Change_LabelNode{LabelNode: &schedulingv1.LabelNode{Node: "a", Key: "disk", Remove: true}}},
				{Change: &schedulingv1.Change_LabelNode{LabelNode: &schedulingv1.LabelNode{Node: "a", Key: "empty"}}},
				{Change: &schedulingv1.Change_RemoveNode{RemoveNode: "c"}},
				{Change: &schedulingv1.Change_Cordon{Cordon: "d"}},
				{Change: &schedulingv1.Change_Configuration{Configuration: configuration}},
				{Change: &schedulingv1.Change_AddNodes{AddNodes: &schedulingv1.AddNodes{Manifests: deployment}}},
			},
		},
		"whatif drain a --cordon b": &schedulingv1.WhatIfRequest{Changes: []*schedulingv1.Change{
			{Change: &schedulingv1.Change_Cordon{Cordon: "b"}}, {Change: &schedulingv1.Change_Drain{Drain: "a"}},
		}},
		"capacity web-1 -n shop --cordon a": &schedulingv1.GetCapacityRequest{
			Namespace: "shop", Name: "web-1", Limit: 10_000, Changes: []*schedulingv1.Change{{Change: &schedulingv1.Change_Cordon{Cordon: "a"}}},
		},
		"capacity podgroup/train -n ml":                                   &schedulingv1.GetCapacityRequest{Namespace: "ml", PodGroup: "train", Limit: 10_000},
		"capacity podgroup.scheduling.x-k8s.io/train -n ml":               &schedulingv1.GetCapacityRequest{Namespace: "ml", PodGroup: "podgroup.scheduling.x-k8s.io/train", Limit: 10_000},
		"capacity podgroup/podgroup.scheduling.x-k8s.io/train -n ml":      &schedulingv1.GetCapacityRequest{Namespace: "ml", PodGroup: "podgroup.scheduling.x-k8s.io/train", Limit: 10_000},
		"capacity -f testdata/web.yaml --limit 5":                         &schedulingv1.GetCapacityRequest{Manifest: deployment, Limit: 5},
		"compare --with testdata/binpack.yaml --everything":               &schedulingv1.CompareRequest{Other: configuration, Everything: true, Times: 1},
		"compare --config testdata/binpack.yaml -f - --times 2":           &schedulingv1.CompareRequest{Configuration: configuration, Manifests: deployment, Times: 2},
		"compare --config testdata/binpack.yaml --with testdata/web.yaml": &schedulingv1.CompareRequest{Configuration: configuration, Other: deployment, Times: 1},
	} {
		if _, _, err := h.run(deployment, strings.Fields(args)...); err != nil {
			t.Errorf("%s: %v", args, err)
			continue
		}
		if diff := cmp.Diff(want, g.asked.last(), protocmp.Transform()); diff != "" {
			t.Errorf("%s asked (-want +got):\n%s", args, diff)
		}
	}
}

func TestAQuestionThatCannotBeReadIsNotAsked(t *testing.T) {
	g := &gateway{}
	h := start(t, g)
	for args, want := range map[string]string{
		"whatif -f testdata/none.yaml":               "testdata/none.yaml: no such file",
		"whatif --config testdata/none.yaml":         "testdata/none.yaml: no such file",
		"whatif --config=":                           "want a file",
		"whatif --add-nodes file=testdata/none.yaml": "testdata/none.yaml: no such file",
		"whatif --add-nodes like=a,file=b":           "want either like=NODE or file=FILE",
		"whatif --add-nodes like=a,count=0":          "count=0 is not a number above 0",
		"whatif --add-nodes like=a,many=3":           `"many=3" is not like=NODE, file=FILE or count=N`,
		"whatif --label :disk=ssd":                   "want NODE:KEY=VALUE",
		"whatif --label a:=ssd":                      "want NODE:KEY=VALUE",
		"whatif --cordon=":                           "want the name of a node",
		"whatif --pending --times -1":                "--times",
		"whatif --pending -o xml":                    `--output "xml" is not`,
		"capacity web-1 -f testdata/web.yaml":        "or podgroup/ and the name of a PodGroup, or -f FILE",
		"compare --with testdata/none.yaml":          "testdata/none.yaml: no such file",
		"compare --with a -f testdata/none.yaml":     "testdata/none.yaml: no such file",
		"why train-0 --timeout 0s":                   "--timeout 0s is not positive",
		"why train-0 --server=":                      "--server is empty",
		"top --timeout -1s":                          "--timeout -1s is not positive",
		"get pods --namespace=":                      "--namespace is empty",
		"whatif drain a b":                           "the name of one node",
		"nodes a b":                                  "accepts at most 1 arg",
		"queue -o jsonpath={.priorities":             "unclosed action",
	} {
		if out, _, err := h.run("", strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) || out != "" {
			t.Errorf("%s: %v and %q, want an error with %q and no answer", args, err, out, want)
		}
	}
	if last := g.asked.last(); last != nil {
		t.Errorf("the gateway was asked %v", last)
	}
}

func TestManifestsThatAreTooMuchForOneQuestionAreRefused(t *testing.T) {
	g := &gateway{}
	h := start(t, g)
	var input strings.Builder
	for range 4 {
		input.WriteString("---\nkind: Pod\nmetadata: {annotations: {pad: " + strings.Repeat("x", 900<<10) + "}}\n")
	}
	if _, _, err := h.run(input.String(), "whatif", "-f", "-"); err == nil || !strings.Contains(err.Error(), "more than 3 MiB") {
		t.Errorf("%v, want that it is too much", err)
	}
	if last := g.asked.last(); last != nil {
		t.Error("the gateway was asked")
	}
}
