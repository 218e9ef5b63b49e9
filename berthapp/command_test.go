package berthapp

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-scheduler/berth/berthapp/example/cheapest"
)

// sorter runs where Berth cannot run plugins yet.
type sorter struct{ cheapest.Plugin }

func newSorter(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return sorter{}, nil }

func (sorter) Name() string { return "Sorter" }

func (sorter) Less(a, b fwk.QueuedPodInfo) bool { return false }

// picky wants arguments.
type picky struct{ cheapest.Plugin }

func (picky) Name() string { return "Picky" }

func (picky) PreEnqueue(context.Context, *v1.Pod) *fwk.Status { return nil }

func newPicky(_ context.Context, args runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	fmt.Println("plugins may write what they like")
	unknown, ok := args.(*runtime.Unknown)
	if !ok || !strings.Contains(string(unknown.Raw), "coins") {
		return nil, os.ErrInvalid
	}
	if h.ClientSet() == nil || h.KubeConfig() == nil || h.EventRecorder() == nil || h.SharedInformerFactory() == nil || h.SnapshotSharedLister() == nil || h.Parallelizer() == nil ||
		h.SharedDRAManager() == nil || h.SharedCSIManager() == nil || h.PodGroupManager() == nil || h.NominatedPodsForNode("") != nil {
		panic("the handle is not whole")
	}
	nodes, err := h.SnapshotSharedLister().NodeInfos().List()
	if err == nil && len(nodes) != 0 {
		panic("there are nodes")
	}
	return picky{}, err
}

// written runs the command line of a Berth with plugins, and returns the configuration that it would run by, or what it says is wrong.
func written(t *testing.T, config string, flags ...string) (text, wrong string) {
	t.Helper()
	dir := t.TempDir()
	put := func(name, text string) string {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, name)
	}
	kubeconfig := put("kubeconfig", "{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], contexts: [{name: c, context: {cluster: c}}], current-context: c}")
	file := put("config.yaml", "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"+config)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(flags, "--source") && !slices.Contains(flags, "--kubeconfig") {
		flags = append([]string{"--kubeconfig", kubeconfig}, flags...)
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, append([]string{"all", "--config", file, "--write-config-to", filepath.Join(dir, "out")}, flags...)...)
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return "", stderr.String()
	}
	out, err := os.ReadFile(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	return string(out), ""
}

func TestAConfigurationEnablesCompiledInPluginsAsInKubeScheduler(t *testing.T) {
	text, wrong := written(t, `
profiles:
- plugins:
    multiPoint: {enabled: [{name: Cheapest, weight: 3}, {name: Picky}]}
    preEnqueue: {disabled: [{name: Picky}]}
  pluginConfig:
  - {name: Picky, args: {currency: coins}}
`)
	if wrong != "" || !strings.Contains(text, "name: Cheapest") || !strings.Contains(text, "currency: coins") {
		t.Errorf("%s%s", wrong, text)
	}
}

// Plugins of services beside them, in the same profile or in others, are none of theirs.
func TestCompiledInPluginsAndPluginServicesGoTogether(t *testing.T) {
	services := filepath.Join(t.TempDir(), "services.yaml")
	if err := os.WriteFile(services, []byte("apiVersion: berth.dev/v1\nkind: PluginServices\nservices: [{name: s, address: 'unix:///s', plugins: [{name: GPUModel, points: [filter]}]}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte("{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], contexts: [{name: c, context: {cluster: c}}], current-context: c}"), 0o600); err != nil {
		t.Fatal(err)
	}
	text, wrong := written(t, `
profiles:
- schedulerName: default-scheduler
  plugins: {filter: {enabled: [{name: GPUModel}, {name: Cheapest}]}}
- schedulerName: other
  plugins: {filter: {enabled: [{name: GPUModel}]}}
`, "--kubeconfig", kubeconfig, "--plugin-services", services)
	if wrong != "" || !strings.Contains(text, "name: GPUModel") || !strings.Contains(text, "name: Cheapest") {
		t.Errorf("%s%s", wrong, text)
	}
}

// A queue that a plugin sorts is in one part, whatever the default is.
func TestACompiledInPluginMaySortTheQueue(t *testing.T) {
	for _, flags := range [][]string{nil, {"--shards", "1"}} {
		text, wrong := written(t, "profiles:\n- {schedulerName: one, plugins: {queueSort: {enabled: [{name: Sorter}], disabled: [{name: '*'}]}}}\n- {schedulerName: other, plugins: {queueSort: {enabled: [{name: Sorter}], disabled: [{name: '*'}]}}}\n", flags...)
		if wrong != "" || strings.Count(text, "name: Sorter") != 2 {
			t.Errorf("%v: says %q, and %q", flags, wrong, text)
		}
	}
}

func TestWhatIsWrongWithCompiledInPluginsIsSaidAtTheStart(t *testing.T) {
	for _, tt := range []struct {
		profile, want string
		flags         []string
	}{
		{"plugins: {multiPoint: {enabled: [{name: Sorter}]}}", `profiles[0].plugins.queueSort: Invalid value: ["PrioritySort","Sorter"]: exactly one queue sort plugin is required: disable the others at this point`, nil},
		{"plugins: {queueSort: {enabled: [{name: Sorter}], disabled: [{name: '*'}]}}", "--shards: 2: plugin Sorter sorts the queue, which is in one part then: want 1, or leave the flag out", []string{"--shards", "2"}},
		{"plugins: {filter: {enabled: [{name: Picky}]}}", `profiles[0]: initializing plugin "Picky": invalid argument`, nil},
		{"plugins: {reserve: {enabled: [{name: Cheapest}]}}", `profiles[0].plugins.reserve.enabled[0].name: Invalid value: "Cheapest": plugin does not extend ReservePlugin`, nil},
		{"plugins: {filter: {enabled: [{name: Unknown}, {name: Cheapest}]}}", `"Unknown": does not exist`, nil},
		{"plugins: {filter: {enabled: [{name: Cheapest}]}}", "want --source=kube", []string{"--source", "local"}},
		{"plugins: {filter: {enabled: [{name: Cheapest}]}}", "--plugin-memory", []string{"--source", "kube", "--plugin-memory", "some"}},
		{"plugins: {filter: {enabled: [{name: Cheapest}]}}", "--plugin-timeout: 0s: want a duration above 0, and no more than 1m", []string{"--source", "kube", "--plugin-timeout", "0s"}},
		{"plugins: {filter: {enabled: [{name: Cheapest}]}}", "--plugin-pre-bind-timeout: 1h0m1s: want a duration above 0, and no more than 1h", []string{"--source", "kube", "--plugin-pre-bind-timeout", "3601s"}},
		{"plugins: {filter: {enabled: [{name: Dies}]}}", "oh no", nil},
		{"plugins: {filter: {enabled: [{name: Cheapest}]}}", `invalid argument "much" for "--plugin-v"`, []string{"--plugin-v", "much"}},
		{"plugins: {filter: {enabled: [{name: Cheapest}]}}", `--plugin-vmodule: "judge=10,kept": want PATTERN=N`, []string{"--source", "kube", "--plugin-vmodule", "judge=10,kept"}},
	} {
		text, wrong := written(t, "profiles:\n- {"+tt.profile+"}\n", tt.flags...)
		if !strings.Contains(wrong, tt.want) {
			t.Errorf("%s: says %q, and %q, want %q", tt.profile, wrong, text, tt.want)
		}
	}
}

func TestTwoPluginsOfANameAreRefused(t *testing.T) {
	c := NewCommand(WithPlugin(cheapest.Name, cheapest.New), WithPlugin(cheapest.Name, cheapest.New))
	c.SetArgs([]string{"all"})
	if err := c.Execute(); err == nil || !strings.Contains(err.Error(), "a plugin named Cheapest already exists") {
		t.Errorf("error %v", err)
	}
}

// A test may run plugins in its own process, and finds the same out about them as Berth does at its start.
func TestPluginsInThisProcessAreThoseOfTheConfiguration(t *testing.T) {
	dir := t.TempDir()
	config, kubeconfig := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "kubeconfig")
	for file, text := range map[string]string{
		config: `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- {schedulerName: cheap, plugins: {multiPoint: {enabled: [{name: Cheapest}]}}}
- {schedulerName: picky, plugins: {multiPoint: {enabled: [{name: Picky}]}}}
`,
		kubeconfig: "{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], contexts: [{name: c, context: {cluster: c}}], current-context: c}",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cheap, picky := WithPlugin(cheapest.Name, cheapest.New), WithPlugin("Picky", newPicky)
	if _, err := NewInProcess(config, kubeconfig, cheap, cheap); err == nil || !strings.Contains(err.Error(), "a plugin named Cheapest already exists") {
		t.Errorf("error %v of two plugins of a name", err)
	}
	in, err := NewInProcess(config, kubeconfig, cheap, picky)
	if err != nil {
		t.Fatal(err)
	}
	described := in.Describe(t.Context())
	if !slices.Contains(described.Points["Cheapest"], "score") || described.Errors["cheap"] != "" || !strings.Contains(described.Errors["picky"], "invalid argument") {
		t.Errorf("described: %+v", described)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Serve(t.Context(), "picky", time.Second, l); err == nil || !strings.Contains(err.Error(), "invalid argument") {
		t.Errorf("error %v of plugins that cannot be made", err)
	}
}
