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
		out, err := berth(t, "", line+cluster)
		for _, text := range want {
			if err != nil || !strings.Contains(out, text) {
				t.Errorf("%s: %v\n%s\nwant %q", line, err, out, text)
			}
		}
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
