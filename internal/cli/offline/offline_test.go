package offline_test

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"github.com/berth-scheduler/berth/internal/cli"
	"github.com/berth-scheduler/berth/internal/cli/offline"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// berth runs a command without a server.
func berth(t *testing.T, stdin, line string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	root := &cobra.Command{Use: "berth", SilenceErrors: true}
	root.SetOut(&out)
	root.AddCommand(cli.Commands(cli.Options{In: strings.NewReader(stdin), Out: &out, Offline: offline.Open})...)
	root.SetArgs(strings.Fields(line))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	err := root.ExecuteContext(ctx)
	return out.String(), err
}

const cluster = " --from testdata/cluster.json"

func TestAFileIsAnsweredAsAClusterWouldBe(t *testing.T) {
	for line, want := range map[string][]string{
		"why train-0": {
			"default/train-0 is pending because none of 2 nodes can take it", "cpu: requests 3, 2 free of 4", "Uncordon node-b.",
		},
		"why train-0 -o jsonpath={.rejected[*].nodes}/{.nodes}": {"1 1/2"},
		"why web-1 -n shop": {"shop/web-1 is on node-a"},
		"scores web-1 -n shop -o jsonpath={.candidates[0].node}": {"node-a"},
		"whatif --pending": {"0 of 1 pod would be placed."},
		"whatif --pending --uncordon node-b -o jsonpath={.outcomes[0].node}":             {"node-b\n"},
		"whatif --pending --add-nodes like=node-a -o jsonpath={.placed}":                 {"1\n"},
		"whatif drain node-a --uncordon node-b -o jsonpath={.outcomes[*].name}":          {"web-1"},
		"whatif -f testdata/web.yaml --times 2 --summary -o jsonpath={.placed}":          {"1\n"},
		"capacity web-1 -n shop -o jsonpath={.fit}":                                      {"1\n"},
		"capacity web-1 -n shop --uncordon node-b -o jsonpath={.fit}":                    {"9\n"},
		"capacity -f testdata/web.yaml --remove-node node-a":                             {"0 more fit", "node(s) were unschedulable"},
		"compare --with testdata/binpack.yaml --everything -o jsonpath={.same},{.moved}": {"1,0\n"},
	} {
		answers(t, line+cluster, want)
	}
}

// answers checks that what a command says has texts in it.
func answers(t *testing.T, line string, want []string) {
	t.Helper()
	out, err := berth(t, "", line)
	for _, text := range want {
		if err != nil || !strings.Contains(out, text) {
			t.Errorf("%s: %v\n%s\nwant %q", line, err, out, text)
		}
	}
}

func TestTheVolumesOfAFileCount(t *testing.T) {
	const storage, database = " --from testdata/storage.yaml", " -f testdata/database.yaml"
	const full, none = "node(s) exceed max volume count", "node(s) didn't find available persistent volumes to bind"
	for line, want := range map[string][]string{
		// The volume is where there is no node.
		"why far": {
			"none of 2 nodes can take it: 2 are not in the zone of its volumes.", "claim far: volume pv-far is only where topology.kubernetes.io/zone=c",
			"Add one node like node-a, but with topology.kubernetes.io/zone=c.",
		},
		"whatif --pending --label node-a:topology.kubernetes.io/zone=c -o jsonpath={.outcomes[?(@.name==\"far\")].node}": {"node-a\n"},
		// There is none that is large enough; and one for two.
		"why large": {
			"2 have no free volume for its claims.", "no volume of class local with 50Gi is free that can be reached from it; the largest has 10Gi",
			"Add a volume of class local with at least 50Gi where kubernetes.io/hostname=node-b for claim large. Then it fits node-b.",
		},
		"whatif --pending": {"2 of 6 pods would be placed.", "default     disk-0   node-b\n", "default     disk-1   none\n", "default/disk-1, default/large: 0/2 nodes are available: 2 " + none},
		// One more volume cannot be attached where it is.
		"why next": {
			"1 has no room for its volumes, 1 cannot reach its volumes.", "1 more volume of the driver csi.example.com would be attached to it, which takes 1 and has 1",
			"Add one node like node-a.",
		},
		"whatif --pending --add-nodes like=node-a -o jsonpath={.outcomes[?(@.name==\"next\")].node}": {"node-a-what-if-0\n"},
		"whatif" + database:   {"1 of 3 pods would be placed.", "default     db-0   node-b\n", "2 " + full},
		"capacity" + database: {"1 more fits", "2       NodeVolumeLimits", full},
		"capacity" + database + " --add-nodes like=node-a,count=3 -o jsonpath={.fit}": {"4\n"},
		// A claim that waits is provisioned where it can be attached; it is for one node then.
		"why late":                              {"default/late is pending, though 1 of 2 nodes can take it", "late waits for its first consumer, and then a volume of class made with 1Gi."},
		"capacity late --add-nodes like=node-a": {"The next one: 0/3 nodes are available:", "1 " + none},
		"capacity disk-0 --remove-node node-b":  {"0 more fit", "1 " + none},
	} {
		answers(t, line+storage, want)
	}
}

func TestAFileMayComeByStandardInput(t *testing.T) {
	text, err := os.ReadFile("testdata/cluster.json")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := berth(t, string(text), "capacity web-1 -n shop --from - -o jsonpath={.fit}"); err != nil || out != "1\n" {
		t.Errorf("%q, %v", out, err)
	}
}

func TestWhatAFileCannotAnswerIsSaid(t *testing.T) {
	for line, want := range map[string]string{
		"why nobody" + cluster:                      "nobody",
		"whatif --cordon node-z" + cluster:          `there is no node "node-z"`,
		"why train-0 --from testdata/none.json":     "testdata/none.json: no such file",
		"why train-0 --from testdata/broken.json":   "--from testdata/broken.json: ",
		"whatif -f testdata/cluster.json" + cluster: "makes no pods",
	} {
		if out, err := berth(t, "", line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v, want an error with %q", line, out, err, want)
		}
	}
}
