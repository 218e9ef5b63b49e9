package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/config"
)

const configHeader = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"

// file writes a file that the test can name in flags.
func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// parsed returns the cluster flags of a command line.
func parsed(args ...string) (*clusterFlags, error) {
	var f clusterFlags
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.add(fs)
	f.addConfig(fs)
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	return &f, f.finish(fs)
}

// berth runs the command line in this process.
func berth(stdin string, args ...string) (stdout, stderr string, err error) {
	var out, errOut bytes.Buffer
	c := command()
	c.SetArgs(args)
	c.SetIn(strings.NewReader(stdin))
	c.SetOut(&out)
	c.SetErr(&errOut)
	err = c.Execute()
	return out.String(), errOut.String(), err
}

func TestWithoutFlagsTheProfileIsTheDefault(t *testing.T) {
	f, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	want := cluster.Settings{
		Shards: 4, Profiles: []cluster.Profile{cluster.DefaultProfile("default-scheduler")}, InitialBackoffSeconds: 1, MaxBackoffSeconds: 10,
		MaxUnschedulableSeconds: 300,
	}
	if diff := cmp.Diff(want, f.cluster.Settings); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
	if f.cluster.Source != "local" || f.cluster.KubeQPS != 5000 || f.cluster.KubeBurst != 5000 {
		t.Errorf("cluster: %+v", f.cluster)
	}
}

func TestStrategyFlagsReachTheProfile(t *testing.T) {
	f, err := parsed("--scheduler-name", "a", "--fit-strategy", "RequestedToCapacityRatio", "--fit-shape", "0:1,50:9", "--fit-resources", "example.com/gpu:3")
	if err != nil {
		t.Fatal(err)
	}
	want := cluster.DefaultProfile("a")
	want.FitStrategy = cluster.RequestedToCapacityRatio
	want.FitResources = []cluster.PluginWeight{{Name: "example.com/gpu", Weight: 3}}
	want.Shape = []cluster.ShapePoint{{Utilization: 0, Score: 1}, {Utilization: 50, Score: 9}}
	if diff := cmp.Diff([]cluster.Profile{want}, f.cluster.Settings.Profiles); diff != "" {
		t.Errorf("profiles (-want +got):\n%s", diff)
	}
}

func TestTheTimeOfUnschedulablePodsReachesTheSettings(t *testing.T) {
	f, err := parsed("--pod-max-in-unschedulable-pods-duration", "90s", "--config", file(t, "config.yaml", configHeader))
	if err != nil || f.cluster.Settings.MaxUnschedulableSeconds != 90 {
		t.Errorf("90s: %v, %+v", err, f.cluster.Settings)
	}
	for _, bad := range []string{"0s", "999ms", "1500ms", "-5m"} {
		if _, err := parsed("--pod-max-in-unschedulable-pods-duration", bad); err == nil ||
			!strings.Contains(err.Error(), "--pod-max-in-unschedulable-pods-duration: ") || !strings.Contains(err.Error(), "want whole seconds, at least 1s") {
			t.Errorf("%s: %v, want an error that names the flag", bad, err)
		}
	}
}

func TestTheFileSaysProfilesBackoffsAndConnection(t *testing.T) {
	path := file(t, "config.yaml", configHeader+`
clientConnection: {kubeconfig: /from/file, qps: 70, burst: 80}
podInitialBackoffSeconds: 3
podMaxBackoffSeconds: 30
percentageOfNodesToScore: 40
profiles: [{schedulerName: a}, {schedulerName: b, percentageOfNodesToScore: 60}]
`)
	f, err := parsed("--config", path)
	if err != nil {
		t.Fatal(err)
	}
	s := f.cluster.Settings
	if len(s.Profiles) != 2 || s.Profiles[0].SchedulerName != "a" || s.Profiles[1].SchedulerName != "b" || s.InitialBackoffSeconds != 3 || s.MaxBackoffSeconds != 30 {
		t.Errorf("settings: %+v", s)
	}
	if a, b := s.Profiles[0].PercentageOfNodesToScore, s.Profiles[1].PercentageOfNodesToScore; a != 40 || b != 60 {
		t.Errorf("percentages of nodes: %d and %d, want 40 and 60", a, b)
	}
	if c := f.cluster; c.Source != "kube" || c.Kubeconfig != "/from/file" || c.KubeQPS != 70 || c.KubeBurst != 80 {
		t.Errorf("cluster: %+v", c)
	}
	f, err = parsed("--config", path, "--kubeconfig", "/from/flag", "--kube-qps", "7", "--kube-burst", "8")
	if err != nil {
		t.Fatal(err)
	}
	if c := f.cluster; c.Kubeconfig != "/from/flag" || c.KubeQPS != 7 || c.KubeBurst != 8 {
		t.Errorf("with flags, cluster: %+v", c)
	}
}

func TestConfigFlagsThatMakeNoSenseAreNamed(t *testing.T) {
	good := file(t, "good.yaml", configHeader)
	bad := file(t, "bad.yaml", configHeader+"podMaxBackoffSeconds: 0")
	strict := file(t, "strict.yaml", configHeader+"profile: []")
	unlimited := file(t, "unlimited.yaml", configHeader+"clientConnection: {qps: -1}")
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--config", good, "--scheduler-name", "a"}, "--config and --scheduler-name exclude each other"},
		{[]string{"--config", good, "--fit-strategy", "MostAllocated"}, "--config and --fit-strategy exclude each other"},
		{[]string{"--config", "/does/not/exist"}, "--config: open /does/not/exist"},
		{[]string{"--config", bad}, bad + ": check configuration: podMaxBackoffSeconds: Invalid value: 0"},
		{[]string{"--config", strict}, `strict decoding error: unknown field "profile"`},
		{[]string{"--config", unlimited}, "must be above 0"},
	} {
		if _, err := parsed(tt.args...); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: %v, want %q", tt.args, err, tt.want)
		}
	}
}

func TestWriteConfigToWritesWhatBerthWouldRunByAndExits(t *testing.T) {
	from := file(t, "config.yaml", configHeader+`
profiles:
- schedulerName: a
  percentageOfNodesToScore: 70
  plugins: {score: {disabled: [{name: ImageLocality}]}}
  pluginConfig:
  - {name: InterPodAffinity, args: {hardPodAffinityWeight: 9}}
  - {name: PodTopologySpread, args: {defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: rack, whenUnsatisfiable: DoNotSchedule}]}}
`)
	for _, role := range []string{"binder", "all"} {
		to := filepath.Join(t.TempDir(), "completed.yaml")
		if _, _, err := berth("", role, "--config", from, "--kube-qps", "77", "--write-config-to", to); err != nil {
			t.Fatalf("%s: %v", role, err)
		}
		data, err := os.ReadFile(to)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Decode(data)
		if err != nil {
			t.Fatal(err)
		}
		if cfg.ClientConnection.QPS != 77 || *cfg.Parallelism != 16 || *cfg.Profiles[0].SchedulerName != "a" {
			t.Errorf("%s wrote\n%s", role, data)
		}
		first, err := parsed("--config", from)
		if err != nil {
			t.Fatal(err)
		}
		second, err := parsed("--config", to)
		if err != nil {
			t.Fatalf("%s: what was written is refused: %v", role, err)
		}
		if diff := cmp.Diff(first.cluster.Settings, second.cluster.Settings); diff != "" {
			t.Errorf("%s: settings of what was written (-want +got):\n%s", role, diff)
		}
	}
}

func TestConvertPrintsTheResultAndReportsTheRest(t *testing.T) {
	old := "apiVersion: kubescheduler.config.k8s.io/v1beta3\nkind: KubeSchedulerConfiguration\nmetricsBindAddress: 0.0.0.0:1\n"
	for _, args := range [][]string{{"-f", "-"}, {"-f", file(t, "old.yaml", old)}} {
		out, report, err := berth(old, append([]string{"config", "convert"}, args...)...)
		if err != nil || out != configHeader {
			t.Errorf("convert %v: %v, printed %q, want %q", args, err, out, configHeader)
		}
		if !strings.Contains(report, "metricsBindAddress: 0.0.0.0:1 is left out") {
			t.Errorf("convert %v reported %q", args, report)
		}
	}
	if _, _, err := berth("", "config", "convert"); err == nil || !strings.Contains(err.Error(), "--filename") {
		t.Errorf("convert of nothing: %v", err)
	}
}
