package command

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/internal/roles"
)

var rewrite = flag.Bool("rewrite", false, "write the tables of "+flagsPage)

// flagsPage has a table of kube-scheduler's flags, and one of feature gates, each after its mark.
const flagsPage = "../../docs/in-kube-schedulers-place.md"

const (
	flagsMark = "<!-- flags: go test ./internal/command -run TestTheTableOfFlagsSaysWhatBecomesOfEach -rewrite -->\n"
	gatesMark = "<!-- gates: go test ./internal/command -run TestTheTableOfFlagsSaysWhatBecomesOfEach -rewrite -->\n"
	endMark   = "<!-- end -->\n"
)

func kubeSchedulerFlags(t *testing.T) *cobra.Command {
	t.Helper()
	c := kubeSchedulerCommand(nil)
	inSections(c)
	c.InitDefaultHelpFlag()
	return c
}

// flagsTable says of each of kube-scheduler's flags what becomes of it.
func flagsTable(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	out.WriteString("| flag | default | what becomes of it |\n| --- | --- | --- |\n")
	c := kubeSchedulerFlags(t)
	rows := 0
	c.Flags().VisitAll(func(f *pflag.Flag) {
		fate, ok := flagFates[f.Name]
		if !ok {
			return
		}
		rows++
		name, value := "`--"+f.Name+"`", ""
		if f.Shorthand != "" && f.Shorthand == f.Name {
			name = "`-" + f.Name + "`"
		}
		if f.DefValue != "" && f.DefValue != "[]" {
			value = "`" + f.DefValue + "`"
		}
		fmt.Fprintf(&out, "| %s | %s | %s |\n", name, value, fate)
	})
	if rows != len(flagFates) {
		t.Errorf("of %d flags it is said what becomes of them, and %d of them there are", len(flagFates), rows)
	}
	return out.String()
}

// gatesTable says of each feature gate that kube-scheduler reads what it does in Berth.
func gatesTable() string {
	var out strings.Builder
	out.WriteString("| gate | default | what it does in Berth |\n| --- | --- | --- |\n")
	for _, g := range new(config.Options).Gates() {
		fmt.Fprintf(&out, "| `%s` | %t | %s |\n", g.Name, g.On, config.GateDoes(g.Name))
	}
	return out.String()
}

// between returns what a page has between a mark and the next end, and the page with something else there.
func between(t *testing.T, page, mark, instead string) (is, with string) {
	t.Helper()
	before, rest, found := strings.Cut(page, mark)
	is, after, ends := strings.Cut(rest, endMark)
	if !found || !ends {
		t.Fatalf("%s has no %q with an end", flagsPage, mark)
	}
	return is, before + mark + instead + endMark + after
}

func TestTheTableOfFlagsSaysWhatBecomesOfEach(t *testing.T) {
	text, err := os.ReadFile(flagsPage)
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	for mark, want := range map[string]string{flagsMark: flagsTable(t), gatesMark: gatesTable()} {
		var is string
		if is, page = between(t, page, mark, want); is != want && !*rewrite {
			t.Errorf("%s: what is after %sis not what the code says; run with -rewrite", flagsPage, mark)
		}
	}
	if *rewrite {
		if err := os.WriteFile(flagsPage, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// inPlace returns what flags come to.
func inPlace(t *testing.T, args ...string) (*kubeScheduler, error) {
	t.Helper()
	k := newKubeScheduler(nil)
	c := k.command()
	if err := c.ParseFlags(args); err != nil {
		return nil, err
	}
	return k, k.finish(c)
}

func TestAProgramCalledKubeSchedulerTakesItsFlags(t *testing.T) {
	for _, c := range []struct {
		program string
		args    []string
		want    []string // nil: as they are
	}{
		{"/usr/local/bin/kube-scheduler", []string{"--leader-elect=true"}, []string{"kube-scheduler", "--leader-elect=true"}},
		{"kube-scheduler", nil, []string{"kube-scheduler"}},
		{"kube-scheduler.exe", []string{"-v=2"}, []string{"kube-scheduler", "-v=2"}},
		{"kube-scheduler", []string{"plugin-host"}, nil}, // as it starts itself
		{"berth", []string{"--version"}, nil},
	} {
		if got := inPlaceArguments(c.program, c.args); !slices.Equal(got, c.want) {
			t.Errorf("%s %q: %q, want %q", c.program, c.args, got, c.want)
		}
	}
}

func TestInKubeSchedulersPlaceNothingIsSharedWithoutTheLease(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles: [{schedulerName: default-scheduler}, {schedulerName: mine}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := inPlace(t, "--kubeconfig=/etc/kubernetes/scheduler.conf", "--config="+file)
	if err != nil {
		t.Fatal(err)
	}
	if e := k.options.Election; e == nil || !slices.Equal(e.Names, []string{"default-scheduler", "mine"}) || e.Name != "kube-scheduler" || e.Namespace != "kube-system" {
		t.Errorf("the election is %+v, want one of both names", e)
	}
	if k.options.DataDir != "" || k.common.Listen != "" || k.options.HTTPListen != "" || k.options.Source != "kube" {
		t.Errorf("it keeps data in %q, and serves people at %q and %q, from %q", k.options.DataDir, k.common.Listen, k.options.HTTPListen, k.options.Source)
	}
	if k.options.Kubeconfig != "/etc/kubernetes/scheduler.conf" { // the file has none
		t.Errorf("the kubeconfig is %q", k.options.Kubeconfig)
	}
	for args, want := range map[string]time.Duration{"--data-dir=": 30 * time.Second, "--data-dir=d": 5 * time.Second, "--data-dir=d --lease-ttl=7s": 7 * time.Second} {
		if k, err := inPlace(t, append(strings.Fields(args), "--kubeconfig=x")...); err != nil || k.common.LeaseTTL != want {
			t.Errorf("%s: %v, %v, want %v", args, k.common.LeaseTTL, err, want)
		}
	}
	if k, err = inPlace(t, "--kubeconfig=x", "--leader-elect=false"); err != nil || k.options.Election != nil {
		t.Errorf("without an election: %+v, %v", k.options.Election, err)
	}
}

func TestFlagsOfKubeSchedulersAreForWhatTheFileDoesNotSay(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nclientConnection: {kubeconfig: of-the-file, qps: 7, burst: 8}\nenableProfiling: false\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := inPlace(t, "--config="+file, "--kubeconfig=of-the-flag", "--kube-api-qps=70", "--kube-api-burst=80", "--profiling=true")
	if err != nil {
		t.Fatal(err)
	}
	if c := k.options.Cluster; c.Kubeconfig != "of-the-file" || c.KubeQPS != 7 || c.KubeBurst != 8 || k.common.Profiling {
		t.Errorf("%q, %v, %v, profiling %t: want what the file says", c.Kubeconfig, c.KubeQPS, c.KubeBurst, k.common.Profiling)
	}
	if k, err = inPlace(t, "--kubeconfig=of-the-flag", "--kube-api-qps=70", "--kube-api-burst=80"); err != nil {
		t.Fatal(err)
	}
	if c := k.options.Cluster; c.Kubeconfig != "of-the-flag" || c.KubeQPS != 70 || c.KubeBurst != 80 || !k.common.Profiling || !k.common.ContentionProfiling {
		t.Errorf("%q, %v, %v, profiling %t: want what the flags say", c.Kubeconfig, c.KubeQPS, c.KubeBurst, k.common.Profiling)
	}
}

func TestWhatMeansNothingIsTakenWithOneWarning(t *testing.T) {
	k, err := inPlace(t, "--kubeconfig=x", "--log_flush_frequency=1s", "--emulated-version=kube=1.35", "--kube-api-content-type=application/vnd.kubernetes.protobuf",
		"--feature-gates=kube:SchedulerAsyncPreemption=false,StorageCapacityScoring=true", "--feature-gates=CPUManagerPolicyAlphaOptions=true,DRAPartitionableDevices=true,DRADeviceTaintRules=true")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"--feature-gates: CPUManagerPolicyAlphaOptions=true changes nothing: kube-scheduler does not read it",
		"--feature-gates: DRADeviceTaintRules=true changes nothing: Berth has no dynamic resource allocation: pods with resource claims stay pending",
		"--feature-gates: SchedulerAsyncPreemption=false changes nothing: evictions hold up no decision in any case",
		"--emulated-version changes nothing: Berth does as kube-scheduler 1.36",
		"--log-flush-frequency changes nothing: each line is written at once",
	}
	if !slices.Equal(k.cluster.notes, want) {
		t.Errorf("notes:\n%s\nwant:\n%s", strings.Join(k.cluster.notes, "\n"), strings.Join(want, "\n"))
	}
	if !k.cluster.options.StorageCapacityScoring || k.cluster.options.VolumeLimitScaling {
		t.Errorf("the gates are %+v", k.cluster.options)
	}
}

func TestWhatCannotBeIsRefusedByName(t *testing.T) {
	for args, want := range map[string]string{
		"--feature-gates=Foo=true":                        "unrecognized feature gate: Foo",
		"--feature-gates=SchedulerQueueingHints=false":    "cannot set feature gate SchedulerQueueingHints to false, feature is locked to true",
		"--feature-gates=DRADeviceTaints":                 "missing bool value for feature gate key:DRADeviceTaints",
		"--feature-gates=DRADeviceTaints=maybe":           "invalid value of DRADeviceTaints: maybe",
		"--logging-format=yaml":                           "--logging-format: \"yaml\": want text or json",
		"--vmodule=bind":                                  "--vmodule: \"bind\": want pattern=N, as bind*=4",
		"--vmodule=bind=-1":                               "--vmodule: \"bind=-1\": want pattern=N",
		"--vmodule=[=1":                                   "--vmodule: \"[=1\": syntax error in pattern",
		"--leader-elect-resource-lock=endpoints":          "--leader-elect-resource-lock: \"endpoints\": want leases",
		"--emulated-version=kube=1.20":                    "--emulated-version: \"kube=1.20\": want 1.33 to 1.36",
		"--min-compatibility-version=other=1.35":          "the only component is kube",
		"--show-hidden-metrics-for-version=1.20":          "want 1.35",
		"--secure-port=70000":                             "--secure-port 70000 must be between",
		"--requestheader-username-headers= ":              "empty value in \"requestheader-username-headers\"",
		"--authorization-always-allow-paths=/a*b":         "only trailing * allowed",
		"--authentication-kubeconfig=a --authenticate=no": "--authenticate",
		"--policy-config-file=x":                          "berth config convert",
		"--listen=0.0.0.0:7070":                           "--listen: 0.0.0.0:7070 is not a loopback address",
		"--lock-object-name=x":                            "--leader-elect-resource-name",
		"--port=10251":                                    "--secure-port",
	} {
		_, _, err := berth("", append([]string{"kube-scheduler", "--kubeconfig=x"}, strings.Split(args, " --")...)...)
		if strings.Contains(args, " --") {
			first, second, _ := strings.Cut(args, " --")
			_, _, err = berth("", "kube-scheduler", "--kubeconfig=x", first, "--"+second, "--listen=127.0.0.1:0")
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

func TestWhatKubeSchedulerTakesStartsBerthToo(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nclientConnection: {kubeconfig: x, qps: -1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := inPlace(t, "--config="+file, "--pod-max-in-unschedulable-pods-duration=0s", "--profiling=false", "--leader-elect=false")
	if err != nil {
		t.Fatal(err)
	}
	if c := k.options.Cluster; c.KubeQPS != 0 || c.Settings.MaxUnschedulableSeconds != 1 || !k.common.Profiling {
		t.Errorf("qps %v, %d s, profiling %t: want no limit, 1 s, and what there is where the file is silent", c.KubeQPS, c.Settings.MaxUnschedulableSeconds, k.common.Profiling)
	}
	for _, want := range []string{"--profiling changes nothing", "is taken for 1s", "--leader-elect=false: nothing keeps"} {
		if !slices.ContainsFunc(k.cluster.notes, func(n string) bool { return strings.Contains(n, want) }) {
			t.Errorf("nothing says %q: %q", want, k.cluster.notes)
		}
	}
	if k, err := inPlace(t, "--kubeconfig=x", "--kube-api-qps=0", "--kube-api-burst=0"); err != nil || k.options.KubeQPS != defaultQPS || k.options.KubeBurst != defaultQPS {
		t.Errorf("0 requests per second: %v, %v", k.options.KubeQPS, err)
	}
	if _, err := inPlace(t, "--kubeconfig=x", "--leader-elect-lease-duration=10500ms", "--leader-elect-renew-deadline=10200ms"); err == nil || !strings.Contains(err.Error(), "--leader-elect-lease-duration") {
		t.Errorf("a lease that is shorter in whole seconds: %v", err)
	}
}

func TestTheVersionInKubeSchedulersPlaceIsSaid(t *testing.T) {
	for _, value := range []string{"--version", "--version=raw"} {
		out, _, err := berth("", "kube-scheduler", value)
		if err != nil || !strings.HasPrefix(out, "Berth ") || !strings.Contains(out, "in the place of kube-scheduler v1.36") {
			t.Errorf("%s: %q, %v", value, out, err)
		}
	}
}

func TestWithTheDefaultsThePeoplesCallersAreKnownByTheApiServer(t *testing.T) {
	k, err := inPlace(t, "--kubeconfig=x", "--authentication-kubeconfig=y", "--http-listen=127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if a := k.options.Access; a.By != roles.AccessKubernetes || a.Kubeconfig != "y" {
		t.Errorf("callers are known by %q at %q", a.By, a.Kubeconfig)
	}
}

func TestTheConfigurationOfKubeSchedulersFlagsIsWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "out.yaml")
	if _, _, err := berth("", "kube-scheduler", "--kubeconfig=x", "--write-config-to="+file, "--leader-elect-lease-duration=20s"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"leaseDuration: 20s", "kubeconfig: x", "enableProfiling: true"} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// theirDefaults are flags of kube-scheduler's that have another default in Berth, and why.
var theirDefaults = map[string]string{
	"kube-api-qps":   "Berth asks for more, if nothing else is said",
	"kube-api-burst": "likewise",
}

// sameType says which type of ours takes what one of kube-scheduler's takes.
var sameType = map[string]string{
	"colonSeparatedMultimapStringString": "stringSlice", // NAME=true,NAME=false
	"Level":                              "int",
	"int32":                              "int",
	"pattern=N,...":                      "stringSlice",
}

// TestKubeSchedulersFlagsAreBerthsToo has each flag of kube-scheduler's, of which test/oracle holds the list against kube-scheduler's own code, with its shorthand, type and default.
func TestKubeSchedulersFlagsAreBerthsToo(t *testing.T) {
	list, err := os.ReadFile("testdata/kube-scheduler-flags.txt")
	if err != nil {
		t.Fatal(err)
	}
	ours, n := kubeSchedulerFlags(t).Flags(), 0
	for line := range strings.Lines(string(list)) {
		n++
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), "|", 4)
		name, shorthand, kind, value := parts[0], parts[1], parts[2], parts[3]
		is := ours.Lookup(name)
		if is == nil {
			t.Errorf("Berth has no --%s", name)
			continue
		}
		if got := is.Value.Type(); got != kind && sameType[kind] != got {
			t.Errorf("--%s is a %s, want %s", name, got, kind)
		}
		if _, other := theirDefaults[name]; is.Shorthand != shorthand || strings.Trim(is.DefValue, "[]") != strings.Trim(value, "[]") && !other {
			t.Errorf("-%s --%s is %q by default, want -%s and %q", is.Shorthand, name, is.DefValue, shorthand, value)
		}
		if flagFates[name] == "" {
			t.Errorf("nothing says what becomes of --%s", name)
		}
	}
	if n != len(flagFates) {
		t.Errorf("kube-scheduler has %d flags, and of %d it is said what becomes of them", n, len(flagFates))
	}
}

// TestWhatOlderKubeSchedulersWriteIsTaken reads what kube-scheduler 1.34.4 and 1.35.4 write with --write-config-to, by default and with --feature-gates=AllAlpha=true.
// What 1.36 writes, test/system reads as it is written.
func TestWhatOlderKubeSchedulersWriteIsTaken(t *testing.T) {
	files, err := filepath.Glob("testdata/written/*.yaml")
	if err != nil || len(files) != 4 {
		t.Fatalf("%q, %v: want 4 files", files, err)
	}
	for _, file := range files {
		gates := ""
		if strings.Contains(file, "AllAlpha") {
			gates = "AllAlpha=true"
		}
		k, err := inPlace(t, "--config="+file, "--feature-gates="+gates)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if p := k.cluster.completed.Profiles; len(p) != 1 || p[0].SchedulerName != "default-scheduler" || len(p[0].Filters) != 13 || (len(p[0].StorageShape) > 0) != (gates != "") {
			t.Errorf("%s: %+v", file, p)
		}
	}
}
