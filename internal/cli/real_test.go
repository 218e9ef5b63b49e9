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

func TestABerthAnswersTheCommands(t *testing.T) {
	b := berthtest.Start(t, berthtest.Options{Nodes: 2}) // of 8 CPUs
	b.Apply(podOf("web", 6), podOf("large", 12))
	b.AwaitDecided(2)
	berth := func(line string) (string, error) {
		var out bytes.Buffer
		root := &cobra.Command{Use: "berth", SilenceErrors: true}
		root.AddCommand(cli.Commands(cli.Options{DefaultServer: b.GRPCAddress, In: strings.NewReader(podOf("more", 2)), Out: &out})...)
		root.SetArgs(strings.Fields(line))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		err := root.ExecuteContext(ctx)
		return out.String(), err
	}
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
