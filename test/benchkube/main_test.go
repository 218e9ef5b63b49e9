package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// statusServerCommand makes this test binary answer as a gateway does: its arguments are the address and the leader.
const statusServerCommand = "status-server"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case nullBinderCommand:
			if err := dispatch(context.Background(), os.Args[1:]); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			return
		case statusServerCommand:
			fmt.Fprintln(os.Stderr, http.ListenAndServe(os.Args[2], statusHandler(func() string { return os.Args[3] })))
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// statusHandler answers GET /v1/status.
func statusHandler(leader func() string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		if err := json.NewEncoder(w).Encode(map[string]any{"leader": leader(), "nodes": 3}); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	return mux
}

// small is a comparison that takes seconds.
func small() config {
	return config{
		nodes: 5, pods: 40, classes: 1, nodeCPU: 4, seed: 1, bindConcurrency: 4, timeout: time.Minute,
		idleWindow: 100 * time.Millisecond, churnWindow: time.Second, quiet: time.Second,
	}
}

// run runs a contender with plain pods and returns what came of it. What it leaves in the directory for temporary files ends
// with the test.
func run(t *testing.T, cfg config, c contender) result {
	t.Helper()
	return runWith(t, cfg, workloads()[0], c)
}

func runWith(t *testing.T, cfg config, w workload, c contender) result {
	t.Helper()
	t.Setenv("TMPDIR", t.TempDir())
	r, err := runOnce(t.Context(), cfg, w, c, "", 1)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestNullBinderBindsEachPodWithOneWrite(t *testing.T) {
	null, err := contenderNamed("null")
	if err != nil {
		t.Fatal(err)
	}
	r := run(t, small(), null)
	if len(r.problems) > 0 {
		t.Errorf("problems = %q, want none", r.problems)
	}
	if r.bound != 40 || r.writes != (writes{binds: 40}) {
		t.Errorf("bound = %d with %+v, want 40 with one bind each", r.bound, r.writes)
	}
	if r.binding <= 0 || r.total <= r.binding {
		t.Errorf("binding took %v of %v in all", r.binding, r.total)
	}
	if len(r.usage) != 1 || r.usage[0].CPU <= 0 || r.usage[0].PeakRSS < 1<<20 {
		t.Errorf("usage = %+v, want time and memory of one process", r.usage)
	}
	if left, err := filepath.Glob(filepath.Join(os.TempDir(), "*")); err != nil || len(left) > 0 {
		t.Errorf("a good run left %v behind (%v)", left, err)
	}
}

func TestOvercommitFailsAContenderThatIsNotBlind(t *testing.T) {
	cfg := small()
	cfg.nodes, cfg.pods, cfg.nodeCPU = 1, 11, 1 // of 100m each
	r := run(t, cfg, contender{name: "careless", commands: nullCommands})
	if diff := cmp.Diff([]string{"node node-00000: 1100m of cpu requested, 1 allocatable"}, r.problems); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

func TestContenderThatEndsFailsBeforeTheTimeout(t *testing.T) {
	cfg := small()
	cfg.timeout = time.Hour
	r := run(t, cfg, contender{name: "quitter", commands: func(environment) ([]command, error) {
		return []command{{"quitter", []string{"sh", "-c", "echo enough; exit 3"}}}, nil
	}})
	if len(r.problems) != 2 || !strings.Contains(r.problems[0], "quitter ended: exit status 3") || r.problems[1] != "0 of 40 pods are bound, 40 pending" {
		t.Errorf("problems = %q, want the end and the pending pods", r.problems)
	}
}

func TestKillsAreSpreadOverTheRunAndCountTheirVictimsUsage(t *testing.T) {
	cfg := small()
	cfg.kill = true
	sleeper := func(name string) command { return command{name, []string{"sleep", "3600"}} }
	r := run(t, cfg, contender{name: berthSplit, etcd: true, commands: func(e environment) ([]command, error) {
		return []command{
			sleeper("binder-0"), sleeper("binder-1"), sleeper("queue-0"), sleeper("filter-worker-0"), sleeper("score-worker-0"),
			{"gateway-0", []string{e.self, statusServerCommand, e.http, "binder-1"}},
			{"binds", []string{e.self, nullBinderCommand, "--kubeconfig", e.kubeconfig, "--concurrency", strconv.Itoa(1)}},
		}, nil
	}})
	if len(r.problems) > 0 {
		t.Errorf("problems = %q, want none: what is killed is expected to end", r.problems)
	}
	if diff := cmp.Diff([]string{"filter-worker-0", "score-worker-0", "queue-0", "binder-1"}, r.killed); diff != "" {
		t.Errorf("killed (-want +got):\n%s", diff)
	}
	for _, u := range r.usage {
		if u.PeakRSS == 0 {
			t.Errorf("peak memory of %s is unknown", u.name)
		}
	}
}

func TestActiveBinderIsAwaited(t *testing.T) {
	asked := 0
	server := httptest.NewServer(statusHandler(func() string {
		if asked++; asked < 3 {
			return "" // no election yet
		}
		return "binder-1"
	}))
	defer server.Close()
	got, err := activeBinder(t.Context(), strings.TrimPrefix(server.URL, "http://"))
	if err != nil || got != "binder-1" {
		t.Errorf("activeBinder = %q, %v, want binder-1", got, err)
	}
}

func TestWritesAreCountedByWhatTheyAreFor(t *testing.T) {
	line := func(verb, resource, subresource, code, n string) string {
		return fmt.Sprintf(`apiserver_request_total{code=%q,component="apiserver",dry_run="",group="",resource=%q,scope="resource",subresource=%q,verb=%q,version="v1"} %s`+"\n",
			code, resource, subresource, verb, n)
	}
	got, err := parseWrites([]byte("# TYPE apiserver_request_total counter\n" +
		line("POST", "pods", "binding", "201", "1.2e+06") +
		line("POST", "pods", "binding", "409", "3") +
		line("POST", "events", "", "201", "5") + line("PATCH", "events", "", "200", "6") +
		line("PATCH", "pods", "status", "200", "7") +
		line("DELETE", "pods", "", "200", "8") +
		line("PUT", "leases", "", "200", "1000") + line("GET", "pods", "", "200", "1000") + line("WATCH", "pods", "", "200", "1000") +
		`apiserver_request_terminations_total{verb="POST",resource="pods"} 1000` + "\n"))
	want := writes{binds: 1_200_003, refused: 3, events: 11, status: 7, other: 8}
	if err != nil || got != want {
		t.Errorf("writes = %+v, %v, want %+v", got, err, want)
	}
}

func TestWorkloadDependsOnItsSeedOnly(t *testing.T) {
	cfg := config{pods: 1000, classes: maxClasses, nodeCPU: 2, seed: 1}
	plain := workloads()[0]
	a, b := newLoad(cfg, plain), newLoad(cfg, plain)
	cfg.seed = 2
	c := newLoad(cfg, plain)
	if !slices.Equal(a.classOf, b.classOf) || slices.Equal(a.classOf, c.classOf) {
		t.Error("the same seed gave two workloads, or two seeds gave the same")
	}
	requests := map[string]bool{}
	for i := range cfg.pods {
		r := a.pod(i).Spec.Containers[0].Resources.Requests
		requests[r.Cpu().String()+" "+r.Memory().String()] = true
	}
	if len(requests) != maxClasses {
		t.Errorf("%d different requests, want %d", len(requests), maxClasses)
	}
	if cpu := a.node(0).Status.Allocatable.Cpu().Value(); cpu != 2 {
		t.Errorf("allocatable CPUs = %d, want 2", cpu)
	}
}

func TestCommandLineThatMakesNoSenseIsRefused(t *testing.T) {
	for args, want := range map[string]string{
		"--nodes -1":                                                               "--nodes: -1 is negative",
		"--classes 17":                                                             "--classes",
		"--contenders null,other":                                                  `no contender "other"`,
		"--contenders null --kill":                                                 "--kill: berth-split is not among the contenders",
		"--berth /does/not/exist":                                                  "--berth",
		"--contenders null more":                                                   `unexpected argument "more"`,
		"--contenders null --kube-qps 0":                                           "--kube-qps",
		"--contenders null --pods -1":                                              "--pods: -1 is negative",
		"--contenders null --workload a":                                           `--workload: no workload "a"; there are plain, deployment,`,
		"--contenders null --workload plain,":                                      `no workload ""`,
		"--contenders null --workload anti-affinity --nodes 1999":                  "--pods: 2000 pods of workload anti-affinity are more than the 1999",
		"--contenders null --idle-window 0s":                                       "--idle-window: 0s is not positive",
		"--contenders null --workload storm":                                       "--contenders: null binds blindly, and cannot run storm",
		"--contenders kube-scheduler --workload preemption --nodes 10":             "--pods: 1000 pods of workload preemption are more than the 8",
		"--workload all --kill --contenders kube-scheduler":                        "--kill: berth-split is not among the contenders",
		"--contenders null --churn-window -1s":                                     "--churn-window: -1s is not positive",
		"--contenders null --timeout -1s":                                          "--timeout: -1s is negative",
		"--contenders kube-scheduler --workload churn,restart --bound-pods 199901": "--pods: 100 pods of workload restart are more than the 99",
		"--contenders kube-scheduler --workload daemonset --pods 15001":            "--pods: 15001 pods of workload daemonset are more than the 15000",
		"--contenders null --workload volumes-local --pods 5001":                   "--pods: 5001 pods of workload volumes-local are more than the 5000",
		"--workload gpu --nodes 100 --contenders kube-scheduler":                   "--pods: 10000 pods of workload gpu are more than the",
		"--contenders kube-scheduler-nvidia-gpu":                                   "--contenders: kube-scheduler-nvidia-gpu is of workloads with cards, not of plain",
		"--workload gpu --contenders berth-yoda --yoda /none":                      "--yoda: stat /none",
		"--workload gpu --contenders kube-scheduler-yoda --compiled-in /none":      "--compiled-in: stat /none",
		"--workload gpu --contenders berth-yoda-service --berth /none":             "/none",
		"--contenders berth-before":                                                "--before",
		"--contenders null --profile d":                                            "--profile: it is of berth-all, not of null",
	} {
		if _, err := parse(strings.Fields(args)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("parse %q = %v, want an error about %s", args, err, want)
		}
	}
	if cfg, err := parse([]string{"--contenders", "null,kube-scheduler"}); err != nil || len(cfg.contenders) != 2 {
		t.Errorf("parse of two contenders = %v, %v", cfg.contenders, err)
	}
}

func TestWithoutFlagsAllContendersBindPlainPods(t *testing.T) {
	names := func(args ...string) []string {
		cfg, err := parse(append([]string{"--berth", os.Args[0], "--yoda", os.Args[0], "--compiled-in", os.Args[0]}, args...))
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, w := range cfg.workloads {
			for _, c := range cfg.contendersFor(w) {
				out = append(out, fmt.Sprint(w.name, " ", c.name, " ", cfg.of(w).pods))
			}
		}
		return out
	}
	for _, tt := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"plain kube-scheduler 10000", "plain null 10000", "plain berth-all 10000", "plain berth-split 10000"}},
		{[]string{"--workload", "spread-hard,affinity"}, []string{"spread-hard kube-scheduler 2000", "spread-hard berth-all 2000", "affinity kube-scheduler 2000", "affinity berth-all 2000"}},
		{[]string{"--workload", "storm,preemption", "--contenders", "berth-all"}, []string{"storm-baseline berth-all 10000", "storm berth-all 10000", "preemption berth-all 1000"}},
		{[]string{"--workload", "gated-baseline,gated", "--contenders", "berth-all"}, []string{"gated-baseline berth-all 10000", "gated berth-all 10000"}},
		{[]string{"--workload", "affinity", "--contenders", "berth-split", "--pods", "7"}, []string{"affinity berth-split 7"}},
		{[]string{"--workload", "daemonset", "--contenders", "berth-all"}, []string{"daemonset berth-all 15000"}},
		{[]string{"--workload", "daemonset", "--contenders", "berth-all", "--nodes", "7"}, []string{"daemonset berth-all 7"}},
		{[]string{"--workload", "churn,restart", "--contenders", "berth-all"}, []string{"churn berth-all 1000", "restart berth-all 100"}},
		{[]string{"--workload", "deployment", "--before", os.Args[0]}, []string{"deployment kube-scheduler 10000", "deployment berth-all 10000", "deployment berth-before 10000"}},
		{[]string{"--workload", "volumes-csi", "--pods", "5"}, []string{"volumes-csi kube-scheduler 5", "volumes-csi null 5", "volumes-csi berth-all 5"}},
		{[]string{"--workload", "gpu"}, []string{"gpu berth-all 10000", "gpu berth-yoda-service 10000", "gpu berth-yoda 10000", "gpu kube-scheduler 10000", "gpu kube-scheduler-yoda 10000", "gpu berth-all-again 10000"}},
		{[]string{"--workload", "gpu", "--profile", "d", "--contenders", "berth-yoda"}, []string{"gpu berth-yoda 10000"}},
		{[]string{"--workload", "deployments", "--profile", "d"}, []string{"deployments berth-all 10000"}},
	} {
		if diff := cmp.Diff(tt.want, names(tt.args...)); diff != "" {
			t.Errorf("%q runs (-want +got):\n%s", tt.args, diff)
		}
	}
	if all := names("--workload", "all"); len(all) != 4+18*2+5*3 {
		t.Errorf("--workload all runs %q, want plain pods, eighteen others, and five of pods with claims", all)
	}
}

func TestWorkloadsHaveTheirOwnNodesAndLimits(t *testing.T) {
	for name, want := range map[string]config{
		plain:           {nodes: 5000, pods: 10000, timeout: 5 * time.Minute},
		"daemonset":     {nodes: 15000, pods: 15000, timeout: 5 * time.Minute},
		"preemption":    {nodes: 5000, pods: 1000, timeout: 10 * time.Minute},
		"restart":       {nodes: 5000, pods: 100, timeout: 5 * time.Minute, boundPods: 140000},
		"volumes-csi":   {nodes: 5000, pods: 2000, timeout: 5 * time.Minute, boundPods: 1000},
		"volumes-local": {nodes: 5000, pods: 2000, timeout: time.Minute, boundPods: 1000},
	} {
		w := workloadOf(t, name)
		if got := (config{}).of(w); got.nodes != want.nodes || got.pods != want.pods || got.timeout != want.timeout || got.boundPods != want.boundPods {
			t.Errorf("%s: %d nodes, %d pods, %v, %d bound, want %d, %d, %v and %d", name, got.nodes, got.pods, got.timeout, got.boundPods, want.nodes, want.pods, want.timeout, want.boundPods)
		}
		given := config{nodes: 3, pods: 2, boundPods: 1, timeout: time.Second}
		if got := given.of(w); got.nodes != 3 || got.pods != 2 || got.boundPods != 1 || got.timeout != time.Second {
			t.Errorf("%s does not obey the command line: %d nodes, %d pods, %v", name, got.nodes, got.pods, got.timeout)
		}
	}
}

func TestBerthSplitIsTenProcessesWithTheirOwnNames(t *testing.T) {
	commands, err := berthSplitCommands(environment{config: config{berth: "berth"}, kubeconfig: "K", etcd: "E", http: "H"})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range commands {
		names = append(names, c.name)
		if at := slices.Index(c.argv, "--id"); at < 0 || c.argv[at+1] != c.name {
			t.Errorf("command line of %s gives another id: %q", c.name, c.argv)
		}
		if binder := c.argv[1] == "binder"; binder != slices.Contains(c.argv, "--kubeconfig") {
			t.Errorf("command line of %s: %q: only binders talk to the API server", c.name, c.argv)
		}
	}
	want := []string{"binder-0", "binder-1", "queue-0", "queue-1", "filter-worker-0", "filter-worker-1", "filter-worker-2", "score-worker-0", "score-worker-1", "gateway-0"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("processes (-want +got):\n%s", diff)
	}
}
