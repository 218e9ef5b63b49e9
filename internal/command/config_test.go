package command

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/logtest"
	"github.com/berth-scheduler/berth/internal/roles"
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
	return &f, f.finish(context.Background(), fs)
}

// berth runs the command line in this process.
func berth(stdin string, args ...string) (stdout, stderr string, err error) {
	var out, errOut bytes.Buffer
	c := New(nil)
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
		Shards: 4, Profiles: []cluster.Profile{engine.DefaultProfile("default-scheduler")}, InitialBackoffSeconds: 1, MaxBackoffSeconds: 10,
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
	want := engine.DefaultProfile("a")
	want.FitStrategy = cluster.RequestedToCapacityRatio
	want.FitResources = []cluster.PluginWeight{{Name: "example.com/gpu", Weight: 3}}
	want.Shape = []cluster.ShapePoint{{Utilization: 0, Score: 1}, {Utilization: 50, Score: 9}}
	if diff := cmp.Diff([]cluster.Profile{want}, f.cluster.Settings.Profiles); diff != "" {
		t.Errorf("profiles (-want +got):\n%s", diff)
	}
}

func TestThatPreemptionSeesVolumesReachesTheSettings(t *testing.T) {
	f, err := parsed("--preemption-sees-volumes", "--config", file(t, "config.yaml", configHeader))
	if err != nil || !f.cluster.Settings.PreemptionSeesVolumes {
		t.Errorf("%v, %+v", err, f.cluster.Settings)
	}
}

func TestTheBindTimeoutsOfProfilesReachTheBinder(t *testing.T) {
	f, err := parsed("--config", file(t, "config.yaml", configHeader+"profiles: [{schedulerName: a}, {schedulerName: b, pluginConfig: [{name: VolumeBinding, args: {bindTimeoutSeconds: 7}}]}]"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]time.Duration{"a": 600 * time.Second, "b": 7 * time.Second}, f.cluster.BindTimeouts); diff != "" {
		t.Errorf("bind timeouts (-want +got):\n%s", diff)
	}
}

func TestWhoHasCoschedulingReachesTheBinderOfAnAPIServer(t *testing.T) {
	config := file(t, "config.yaml", configHeader+"profiles: [{schedulerName: a}, {schedulerName: b, plugins: {permit: {enabled: [{name: Coscheduling}]}}}]")
	f, err := parsed("--source", "kube", "--config", config)
	if err != nil || len(f.cluster.Coscheduling) != 1 || !f.cluster.Coscheduling["b"] {
		t.Errorf("%v, %v has it, want b", err, f.cluster.Coscheduling)
	}
	if _, err := parsed("--source", "local", "--config", config); err == nil || !strings.Contains(err.Error(), "plugin Coscheduling: its PodGroups are an API server's, and --source=local has none") {
		t.Errorf("with the local source: %v", err)
	}
}

func TestExtendersReachTheBinderOfAnAPIServer(t *testing.T) {
	config := file(t, "config.yaml", configHeader+"extenders: [{urlPrefix: 'http://x', filterVerb: f, preemptVerb: p}]")
	f, err := parsed("--source", "kube", "--config", config)
	if err != nil || len(f.cluster.Extenders) != 1 || f.cluster.Extenders[0].FilterVerb != "f" || f.cluster.Extenders[0].PreemptVerb != "p" {
		t.Errorf("%v, %+v", err, f.cluster.Extenders)
	}
	if got := f.cluster.Candidates["default-scheduler"]; got.Percentage != 10 || got.Absolute != 100 {
		t.Errorf("told of %+v candidates at least", got)
	}
	if _, err := parsed("--source", "local", "--config", config); err == nil || !strings.Contains(err.Error(), "extenders: they are sent the objects of an API server, and --source=local has none") {
		t.Errorf("with the local source: %v", err)
	}
}

const servicesHeader = "apiVersion: berth.dev/v1\nkind: PluginServices\n"

func TestPluginServicesReachTheBinder(t *testing.T) {
	services := file(t, "services.yaml", servicesHeader+`
services:
- {name: gpu, address: 'unix:///run/gpu.sock', timeout: 3s, plugins: [{name: GPUModel, points: [filter, score]}]}
- {name: idle, address: 'localhost:1', plugins: [{name: Idle, points: [score]}]}
`)
	from := file(t, "config.yaml", configHeader+"profiles: [{plugins: {multiPoint: {enabled: [{name: GPUModel, weight: 6}]}}, pluginConfig: [{name: GPUModel, args: {model: h100}}]}]")
	for _, source := range []string{"kube", "local"} {
		written := filepath.Join(t.TempDir(), "written.yaml")
		f, err := parsed("--source", source, "--config", from, "--plugin-services", services, "--write-config-to", written)
		if err != nil {
			t.Fatalf("%s: %v", source, err)
		}
		if s := f.cluster.PluginServices; len(s) != 2 || s[0].Name != "gpu" || s[0].Timeout.Duration != 3*time.Second {
			t.Errorf("%s: services %+v", source, s)
		}
		if got := string(f.cluster.PluginArguments["default-scheduler"]["GPUModel"]); got != `{"model":"h100"}` {
			t.Errorf("%s: arguments %s", source, got)
		}
		p := f.cluster.Settings.Profiles[0]
		if p.Filters[len(p.Filters)-1] != "GPUModel" || p.Weights[len(p.Weights)-1] != (cluster.PluginWeight{Name: "GPUModel", Weight: 6}) {
			t.Errorf("%s: filters %v, weights %v", source, p.Filters, p.Weights)
		}
		if !strings.Contains(string(f.cluster.Config), `{"args":{"model":"h100"},"name":"GPUModel"}`) {
			t.Errorf("%s: served: %s", source, f.cluster.Config)
		}
		if err := f.write(); err != nil {
			t.Fatal(err)
		}
		again, err := parsed("--source", source, "--config", written, "--plugin-services", services)
		if err != nil {
			t.Fatalf("%s: what was written is refused: %v", source, err)
		}
		if diff := cmp.Diff(f.cluster, again.cluster); diff != "" {
			t.Errorf("%s: of what was written (-want +got):\n%s", source, diff)
		}
		logs := &logtest.Buffer{}
		f.logNotes(slog.New(slog.NewTextHandler(logs, nil)))
		if got := logs.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=WARN") || !strings.Contains(got, `"the plugin service idle is not used: no profile enables a plugin of it"`) || !strings.Contains(got, services) {
			t.Errorf("%s: logged %s", source, got)
		}
	}
}

func TestWhatIsWrongWithPluginServicesNamesTheFile(t *testing.T) {
	bad := file(t, "bad.yaml", servicesHeader+"services: [{name: gpu, address: gpu, plugins: [{name: GPUModel, points: [filter]}]}]")
	filters := file(t, "filters.yaml", servicesHeader+"services: [{name: gpu, address: 'unix:///a', plugins: [{name: GPUModel, points: [filter]}]}]")
	scored := file(t, "scored.yaml", configHeader+"profiles: [{plugins: {score: {enabled: [{name: GPUModel}]}}}]")
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--plugin-services", "/does/not/exist"}, "--plugin-services: open /does/not/exist"},
		{[]string{"--plugin-services", bad}, "--plugin-services: " + bad + `: check plugin services: services[0].address: Invalid value: "gpu"`},
		{[]string{"--plugin-services", scored}, "--plugin-services: " + scored + ": decode plugin services: want apiVersion: berth.dev/v1 and kind: PluginServices, got "},
		{[]string{"--plugin-services", filters, "--config", scored}, "--config: " + scored + `: check configuration: profiles[0].plugins.score.enabled[0].name: Invalid value: "GPUModel": plugin does not extend ScorePlugin`},
		{[]string{"--config", scored}, `"GPUModel": does not exist: Berth has no plugin of that name, nor has a service of --plugin-services`},
	} {
		if _, err := parsed(tt.args...); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: %v, want %q", tt.args, err, tt.want)
		}
	}
}

// By what extenders know Berth is the binder's, and not shown at /configz; what it is written to by --write-config-to is a configuration to run by.
func TestTheSecretsOfExtendersAreNotServed(t *testing.T) {
	key := []byte("the key")
	written := filepath.Join(t.TempDir(), "written.yaml")
	f, err := parsed("--source", "kube", "--write-config-to", written, "--config", file(t, "config.yaml", configHeader+
		"extenders: [{urlPrefix: 'http://someone:secret@x/y', filterVerb: f, tlsConfig: {certData: Y2VydA==, keyData: "+base64.StdEncoding.EncodeToString(key)+"}}]"))
	if err != nil {
		t.Fatal(err)
	}
	if e := f.cluster.Extenders[0]; e.URLPrefix != "http://someone:secret@x/y" || string(e.TLSConfig.KeyData) != string(key) {
		t.Errorf("the binder gets %+v", e)
	}
	served := string(f.cluster.Config)
	if strings.Contains(served, "secret") || strings.Contains(served, "keyData") || !strings.Contains(served, `"urlPrefix":"http://x/y"`) || !strings.Contains(served, "Y2VydA==") {
		t.Errorf("served: %s", served)
	}
	if err := f.write(); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(written); err != nil || !strings.Contains(string(text), "http://someone:secret@x/y") || !strings.Contains(string(text), "keyData") {
		t.Errorf("written: %v, %s", err, text)
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

func TestTheLeaseIsTheConfigurationsAndOnlyForNamesThatAreShared(t *testing.T) {
	path := file(t, "config.yaml", configHeader+`
leaderElection: {resourceNamespace: ns, resourceName: lease, leaseDuration: 30s, renewDeadline: 20s, retryPeriod: 5s}
profiles: [{schedulerName: default-scheduler}, {schedulerName: own}]
`)
	disabled := file(t, "disabled.yaml", configHeader+"leaderElection: {leaderElect: false}")
	standard := roles.Election{Names: []string{"default-scheduler"}, Namespace: "kube-system", Name: "kube-scheduler", LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second}
	from := roles.Election{Names: []string{"default-scheduler"}, Namespace: "ns", Name: "lease", LeaseDuration: 30 * time.Second, RenewDeadline: 20 * time.Second, RetryPeriod: 5 * time.Second}
	both := standard
	both.Names = []string{"default-scheduler", "berth"}
	renamed := from
	renamed.Name, renamed.RetryPeriod = "other", time.Second
	for _, tt := range []struct {
		args []string
		want *roles.Election
	}{
		{nil, &standard},
		{[]string{"--scheduler-name", "berth"}, nil},
		{[]string{"--scheduler-name", "berth", "--leader-elect-names", "default-scheduler,berth"}, &both},
		{[]string{"--leader-elect=false"}, nil},
		{[]string{"--config", path}, &from},
		{[]string{"--config", path, "--leader-elect-resource-name", "other", "--leader-elect-retry-period", "1s"}, &renamed},
		{[]string{"--config", path, "--leader-elect=false"}, nil},
		{[]string{"--config", disabled}, nil},
		{[]string{"--config", disabled, "--leader-elect"}, &standard},
	} {
		f, err := parsed(tt.args...)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, f.cluster.Election); diff != "" {
			t.Errorf("%v: lease (-want +got):\n%s", tt.args, diff)
		}
		if len(f.completed.Notes) > 0 {
			t.Errorf("%v: notes %q", tt.args, f.completed.Notes)
		}
	}
	if _, err := parsed("--leader-elect-lease-duration", "5s"); err == nil || !strings.Contains(err.Error(), "leaderElection.leaseDuration") {
		t.Errorf("a lease shorter than the renew deadline: %v", err)
	}
}

func TestProfilesAreServedIfTheFileOrAFlagSaysSo(t *testing.T) {
	on := file(t, "on.yaml", configHeader+"enableProfiling: true\nenableContentionProfiling: true")
	off := file(t, "off.yaml", configHeader+"enableProfiling: false\nenableContentionProfiling: false")
	silent := file(t, "silent.yaml", configHeader)
	for _, tt := range []struct {
		args                  string
		profiling, contention bool
	}{
		{"", false, false},
		{"--profiling", true, false},
		{"--config " + on, true, true},
		{"--config " + on + " --profiling=false", false, true},
		{"--config " + off, false, false},
		{"--config " + off + " --profiling --contention-profiling", true, true},
		{"--config " + silent, false, false},
		{"--config " + silent + " --profiling", true, false},
	} {
		var f clusterFlags
		var c roles.Common
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		addOps(fs, &c)
		f.add(fs)
		f.addConfig(fs)
		if err := errors.Join(fs.Parse(strings.Fields(tt.args)), f.finish(t.Context(), fs)); err != nil {
			t.Fatal(err)
		}
		f.profile(&c)
		if c.Profiling != tt.profiling || c.ContentionProfiling != tt.contention {
			t.Errorf("%s: profiles %v, of contention %v", tt.args, c.Profiling, c.ContentionProfiling)
		}
		if said := f.completed.Config; *said.EnableProfiling != tt.profiling || *said.EnableContentionProfiling != tt.contention || len(f.completed.Notes) > 0 {
			t.Errorf("%s: the configuration says %v and %v, notes %q", tt.args, *said.EnableProfiling, *said.EnableContentionProfiling, f.completed.Notes)
		}
	}
}

func TestVerbosityIsThatOfKlog(t *testing.T) {
	_, level, err := newLogger(io.Discard, "text", "warn", nil)
	if err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string]slog.Level{"0": slog.LevelInfo, "4": slog.LevelDebug, "10": -10} {
		if answer, err := setVerbosity(level, value); err != nil || level.Level() != want || answer != "successfully set klog.logging.verbosity to "+value {
			t.Errorf("%s: %q, %v, level %v", value, answer, err, level.Level())
		}
	}
	for _, bad := range []string{"", "-1", "x", "4294967296"} {
		if _, err := setVerbosity(level, bad); err == nil {
			t.Errorf("%q was set", bad)
		}
	}
	if _, err := setVerbosity(level, "0"); err != nil { // klog's is the process'
		t.Error(err)
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

func TestFeatureGatesReachEveryProfile(t *testing.T) {
	path := file(t, "config.yaml", configHeader+"\nprofiles: [{schedulerName: a}, {schedulerName: b}]\n")
	for _, tt := range []struct {
		args          []string
		scaling, asks bool
	}{
		{nil, false, false},
		{[]string{"--feature-gates=VolumeLimitScaling=true"}, true, false},
		{[]string{"--feature-gates", "SchedulerQueueingHints=true,VolumeLimitScaling=true", "--feature-gates", "GangScheduling=false"}, true, false},
		{[]string{"--feature-gates=GangScheduling=true,GenericWorkload=true,TopologyAwareWorkloadScheduling=true,WorkloadAwarePreemption=true"}, false, false},
		{[]string{"--feature-gates=VolumeLimitScaling=true,VolumeLimitScaling=false"}, false, false},
		{[]string{"--feature-gates=,kube:VolumeLimitScaling=true,ComponentStatusz=true,"}, true, false},
		{[]string{"--require-csi-drivers"}, false, true},
		{[]string{"--require-csi-drivers", "--feature-gates", "VolumeLimitScaling=1"}, true, true},
	} {
		for _, more := range [][]string{nil, {"--config", path}} {
			f, err := parsed(append(more, tt.args...)...)
			if err != nil {
				t.Errorf("%v: %v", tt.args, err)
				continue
			}
			for _, p := range f.cluster.Settings.Profiles {
				if p.VolumeLimitScaling != tt.scaling || p.RequireCSIDrivers != tt.asks {
					t.Errorf("%v %v: profile %s has %v, %v", more, tt.args, p.SchedulerName, p.VolumeLimitScaling, p.RequireCSIDrivers)
				}
			}
			if got, want := config.OptionsOf(f.cluster.Settings.Profiles), f.options; !cmp.Equal(got, want) {
				t.Errorf("%v: the options of the profiles are %+v, want %+v", tt.args, got, want)
			}
		}
	}
}

func TestFeatureGatesThatCannotBeSetAreNamed(t *testing.T) {
	for gates, want := range map[string]string{
		"VolumeLimitScalin=true":                               `--feature-gates: "VolumeLimitScalin": Berth has no such feature gate: it has StorageCapacityScoring, TaintTolerationComparisonOperators, VolumeLimitScaling; and it takes, at their defaults, AllAlpha, `,
		"VolumeLimitScaling":                                   `--feature-gates: "VolumeLimitScaling": want VolumeLimitScaling=true or VolumeLimitScaling=false`,
		"VolumeLimitScaling=perhaps":                           `--feature-gates: "VolumeLimitScaling=perhaps": want VolumeLimitScaling=true`,
		"CoordinatedLeaderElection=true":                       `--feature-gates: "CoordinatedLeaderElection=true": Berth does as kube-scheduler does with CoordinatedLeaderElection=false, its default, and has nothing else`,
		"SchedulerQueueingHints=false,VolumeLimitScaling=true": `"SchedulerQueueingHints=false": Berth does as kube-scheduler does with SchedulerQueueingHints=true`,
		"AllAlpha=true":                                        `"AllAlpha=true": Berth does as`,
		"DRAPrioritizedList=false":                             `"DRAPrioritizedList=false": Berth has no dynamic resource allocation`,
		"=true":                                                `"": Berth has no such feature gate`,
	} {
		if _, err := parsed("--feature-gates", gates); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", gates, err, want)
		}
	}
}

func TestStorageCapacityScoringIsAPluginsScoreAndArgument(t *testing.T) {
	const on = "--feature-gates=StorageCapacityScoring=true"
	shaped := file(t, "shaped.yaml", configHeader+"profiles: [{pluginConfig: [{name: VolumeBinding, args: {shape: [{utilization: 20, score: 1}, {utilization: 80, score: 7}]}}]}]")
	weighed := file(t, "weighed.yaml", configHeader+"profiles: [{plugins: {score: {enabled: [{name: VolumeBinding, weight: 4}]}}}]")
	unscored := file(t, "unscored.yaml", configHeader+"profiles: [{plugins: {score: {disabled: [{name: VolumeBinding}]}}}]")
	standard := []cluster.ShapePoint{{Utilization: 0, Score: 10}, {Utilization: 100, Score: 0}}
	for _, tt := range []struct {
		args   []string
		weight int64 // 0: it does not score
		shape  []cluster.ShapePoint
	}{
		{nil, 0, nil},
		{[]string{on}, 1, standard},
		{[]string{on, "--config", shaped}, 1, []cluster.ShapePoint{{Utilization: 20, Score: 1}, {Utilization: 80, Score: 7}}},
		{[]string{on, "--config", weighed}, 4, standard},
		{[]string{"--config", weighed}, 0, nil},
		{[]string{on, "--config", unscored}, 0, standard},
	} {
		f, err := parsed(tt.args...)
		if err != nil {
			t.Errorf("%v: %v", tt.args, err)
			continue
		}
		p := f.cluster.Settings.Profiles[0]
		weight := int64(0)
		for _, w := range p.Weights {
			if w.Name == engine.VolumeBinding {
				weight = w.Weight
			}
		}
		if weight != tt.weight || !cmp.Equal(p.StorageShape, tt.shape) {
			t.Errorf("%v: weight %d, shape %v; want %d, %v", tt.args, weight, p.StorageShape, tt.weight, tt.shape)
		}
		if got := config.OptionsOf(f.cluster.Settings.Profiles); !cmp.Equal(got, f.options) {
			t.Errorf("%v: the options of the profiles are %+v, want %+v", tt.args, got, f.options)
		}
	}
	unfiltered := file(t, "unfiltered.yaml", configHeader+"profiles: [{plugins: {preFilter: {disabled: [{name: VolumeBinding}]}, filter: {disabled: [{name: VolumeBinding}]}}}]")
	backwards := file(t, "backwards.yaml", configHeader+"profiles: [{pluginConfig: [{name: VolumeBinding, args: {shape: [{utilization: 50, score: 1}, {utilization: 20, score: 11}]}}]}]")
	for _, tt := range []struct {
		args []string
		want string // "": it is taken
	}{
		{[]string{"--config", unfiltered}, ""},
		{[]string{on, "--config", unfiltered}, "VolumeBinding cannot run at score without preFilter"},
		{[]string{"--config", shaped}, "unexpected field `shape`, remove it or turn on the feature gate StorageCapacityScoring"},
		{[]string{on, "--config", backwards}, "shape[1].utilization: Invalid value: 20: values must be sorted in increasing order"},
		{[]string{on, "--config", backwards}, "shape[1].score: Invalid value: 11: not in valid range [0, 10]"},
	} {
		if _, err := parsed(tt.args...); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: %v, want %q", tt.args, err, tt.want)
		}
	}
}
