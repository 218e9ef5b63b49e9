package cli_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-scheduler/berth/internal/cli"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// podOf is the manifest of a pod that asks for so many CPUs.
func podOf(name string, cpu int) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {containers: [{name: c, image: c, resources: {requests: {cpu: \"%d\"}}}]}\n", name, cpu)
}

// command runs a command with an input.
func command(t *testing.T, b *berthtest.Berth, input, line string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	root := &cobra.Command{Use: "berth", SilenceErrors: true}
	root.AddCommand(cli.Commands(cli.Options{DefaultServer: b.GRPCAddress, In: strings.NewReader(input), Out: &out})...)
	root.SetArgs(strings.Fields(line))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	err := root.ExecuteContext(ctx)
	return out.String(), err
}

func TestABerthAnswersTheCommands(t *testing.T) {
	b := berthtest.Start(t, berthtest.Options{Nodes: 2}) // of 8 CPUs
	b.Apply(podOf("web", 6), podOf("large", 12))
	b.AwaitDecided(2)
	berth := func(line string) (string, error) { return command(t, b, podOf("more", 2), line) }
	web := b.Placements()["default/web"]
	for line, want := range map[string][]string{
		"why large": {
			"default/large is pending because none of 2 nodes can take it: 2 lack cpu.", "; unschedulable for ", "1 attempt;",
			"Request less: cpu from 12 to 8.", "2       in all",
		},
		"why web":       {"default/web is on " + web, "; bound;", "* is where the pod is."},
		"scores web":    {"2 of 2 nodes could take default/web"},
		"scores large":  {"default/large has no candidates"},
		"queue":         {"0          1         none", "LAST 10 S"},
		"workers":       {"active", "shards 0", "nodes 0-1"},
		"top":           {"2 nodes; pods: 1 pending, 0 assumed, 1 bound", "all ready"},
		"nodes -o name": {"node/node-0000\nnode/node-0001\n"},
		"whatif --pending --add-nodes like=node-0000":             {"0 of 1 pod would be placed.", "default/large: 0/3 nodes are available: 3 Insufficient cpu."},
		"whatif drain " + web:                                     {"1 of 1 pod would be placed.", "Nothing has been changed"},
		"whatif -f - --times 6 -o jsonpath={.placed},{.unplaced}": {"5,1\n"},
		"capacity -f - -o jsonpath={.fit}":                        {"5\n"},
		"capacity web -o jsonpath={.fit}":                         {"1\n"},
		"compare --with testdata/binpack.yaml -f -":               {"0 pods on the same node, 1 on another"},
	} {
		out, err := berth(line)
		for _, text := range want {
			if err != nil || !strings.Contains(out, text) {
				t.Errorf("berth %s: %v\n%s\nwant %q", line, err, out, text)
			}
		}
	}
	if b.Placements()["default/web"] != web || len(b.Pods()) != 2 {
		t.Errorf("questions have changed the cluster: %v", b.Pods())
	}
	if _, err := berth("why nobody"); err == nil || err.Error() != "pod default/nobody not found" {
		t.Errorf("a pod that is not there: %v", err)
	}
	if _, err := berth("whatif --cordon nowhere"); err == nil || !strings.Contains(err.Error(), "invalid: changes[0].cordon: ") {
		t.Errorf("a node that is not there: %v", err)
	}
}

func TestABerthAnswersAboutGangs(t *testing.T) {
	ofGang := func(name string, cpu int) string {
		return strings.Replace(podOf(name, cpu), "spec: {", "spec: {schedulingGroup: {podGroupName: gang}, ", 1)
	}
	const gang = "apiVersion: scheduling.k8s.io/v1alpha2\nkind: PodGroup\nmetadata: {name: gang}\nspec: {schedulingPolicy: {gang: {minCount: 3}}}\n"
	b := berthtest.Start(t, berthtest.Options{Nodes: 2}) // of 8 CPUs
	b.Apply(gang, ofGang("gang-0", 6), ofGang("gang-1", 6), ofGang("gang-2", 6))
	b.AwaitDecided(3)
	input := gang + "---\n" + ofGang("more-0", 2) + "---\n" + ofGang("more-1", 2) + "---\n" + ofGang("more-2", 2)
	for line, want := range map[string][]string{
		"why gang-0": {
			"default/gang-0 is pending with its PodGroup: 2 of at least 3 pods of gang fit.", "PodGroup gang has 3 pods, of which it wants at least 3 placed together.",
			"The next of its pods: 0/2 nodes are available: 2 Insufficient cpu.", "It would fit with 1 more node like node-000", "a minCount of 2.",
		},
		"capacity podgroup/gang --add-nodes like=node-0000,count=4": {"2 more of PodGroup gang fit, 3 pods each, as of version ", "pod group is unschedulable: 0 of at least 3 pods fit"},
		"capacity -f - -o jsonpath={.fit}":                          {"2\n"},
		"whatif -f - -o jsonpath={.placed}":                         {"3\n"},
	} {
		out, err := command(t, b, input, line)
		for _, text := range want {
			if err != nil || !strings.Contains(out, text) {
				t.Errorf("berth %s: %v\n%s\nwant %q", line, err, out, text)
			}
		}
	}
	if _, err := command(t, b, "", "capacity podgroup/nobody"); err == nil || err.Error() != "PodGroup default/nobody not found" {
		t.Errorf("a PodGroup that is not there: %v", err)
	}
}
