// Benchkube compares schedulers on a real control plane: it is the program behind make bench-kube.
//
// For each workload and contender it starts a fresh etcd and kube-apiserver, creates nodes and pending pods, starts the
// contender, and measures until all pods are bound and the contender has stopped writing. Then it reads the cluster back
// and fails if a node is over its allocatable, if a pod was bound twice, if one is where a required constraint forbids it
// to be, or if one is not bound. With --kill it also kills parts of Berth on the way.
//
// A workload is a kind of pods: plain ones only request resources, others belong to controllers or have one kind of constraint
// each. Some workloads have a script besides: pods that fit nowhere, pods with gates, pods that need the room of others, pods
// that come and go, a cluster that is full of pods, and pods with claims, for which the controllers of volumes are played: then it
// fails too if a pod does not have the volumes it claims, each for itself, or does not reach them. Pods that ask for cards (GPUs) have a
// table of what came of these, and where Yoda gives them, a run fails if a pod has others than it asked for, of another node than its
// own, or if a card is given to more pods than it is enough for. Everything runs on this machine: the API server, etcd and the contender
// share its cores, so the figures compare contenders and are no more than that.
//
// Contenders take turns, repetition by repetition, and a table has a row for each workload and contender: medians, with the
// least and the largest figure, and ratios to kube-scheduler's figure of the same repetition. An interrupt ends the run that
// is under way; the table is of the runs before.
//
// With --profile, Berth runs once in one process and leaves profiles of its CPU time and its allocations. With --before, another
// binary of Berth takes turns with it, so that both are compared in one run.
//
// Two subcommands serve the program itself and make: "benchkube null-binder" is the contender that binds blindly, and
// "benchkube build" fills the cache of control plane programs and of their clients, and prints their paths.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/measure"
)

// config is what the command line says.
type config struct {
	nodes, pods                   int // 0: as many as the workload says
	boundPods                     int // that are there before a restart
	classes, nodeCPU, repetitions int
	seed                          uint64
	workloads                     []workload
	contenders                    []contender // empty: as many as make sense for the workload
	berth                         string      // path of the berth binary
	before                        string      // path of another, to compare with; empty: none
	compiledIn                    string      // path of one that has plugins compiled in
	yoda                          string      // path of one that has Yoda compiled in
	scvCRD                        string      // path of the custom resource that tells of cards
	openb                         string      // directory of the trace; empty: none
	trace                         *openb      // what is read of it, with as many nodes as there are; nil: none
	settle                        time.Duration
	kubeQPS                       int
	bindConcurrency               int
	timeout                       time.Duration // 0: as long as the workload says
	idleWindow, churnWindow       time.Duration
	quiet                         time.Duration // without a write is the end of the writes
	profile                       string        // directory of profiles; empty: none
	kill, keep, markdown          bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := dispatch(ctx, os.Args[1:])
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "benchkube:", err)
		os.Exit(1)
	}
}

func dispatch(ctx context.Context, args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case nullBinderCommand:
			return runNullBinder(ctx, args[1:])
		case pluginsCommand:
			return runPlugins(ctx, args[1:])
		case "build":
			return buildPrograms(ctx)
		}
	}
	cfg, err := parse(args)
	if err != nil {
		return err
	}
	return compare(ctx, cfg)
}

// parse reads the command line and refuses what makes no sense.
func parse(args []string) (config, error) {
	cfg := config{quiet: quietFor}
	var workloads, contenders string
	f := flag.NewFlagSet("benchkube", flag.ContinueOnError)
	f.IntVar(&cfg.nodes, "nodes", 0, fmt.Sprintf("`number` of nodes; 0: %d, and %d for daemonset", usualNodes, daemonSetNodes))
	f.StringVar(&workloads, "workload", "plain", "comma-separated `names`, or all:\n"+describeWorkloads())
	f.IntVar(&cfg.pods, "pods", 0, fmt.Sprintf("`number` of pods, all pending before the contender starts; 0: %d plain ones, %d with constraints, one for each node for daemonset, %d preemptors, %d that fit nowhere for churn, %d for restart",
		plainPods, constrainedPods, preemptorPods, unschedulablePods, latePods))
	f.IntVar(&cfg.boundPods, "bound-pods", 0, fmt.Sprintf("`number` of pods that are bound already, for restart and volumes-…; 0: %d and %d", placedPods, claimingPods))
	f.IntVar(&cfg.classes, "classes", 16, "`number` of different plain pods, by their requests, 1 to 16; 1: all request 100m and 500Mi, as those of other workloads do")
	f.IntVar(&cfg.nodeCPU, "node-cpu", 4, "`CPUs` of each node")
	f.Uint64Var(&cfg.seed, "seed", 1, "`seed` of the workload, which pod is of which class, and of Berth's choice among equal nodes")
	f.StringVar(&contenders, "contenders", "", fmt.Sprintf("comma-separated `names`, in the order of their runs, of %s; empty: all for plain pods, %s for other workloads",
		strings.Join(contenderNames(), ", "), strings.Join(judges(), " and ")))
	f.StringVar(&cfg.berth, "berth", filepath.Join(".bin", "berth"), "`path` of the berth binary")
	f.StringVar(&cfg.compiledIn, "compiled-in", ".bin/berth-bench", "`path` of the berth binary that has plugins compiled in: berthapp/bench")
	f.StringVar(&cfg.yoda, "yoda", filepath.Join(".bin", "berth-yoda"), "`path` of the berth binary that has Yoda compiled in: plugins/yoda/cmd/berth-yoda")
	f.StringVar(&cfg.scvCRD, "scv-crd", filepath.Join("deploy", "kustomize", "components", "yoda", "crd.yaml"), "`path` of the custom resource that tells of cards, for "+gpuWorkload)
	f.StringVar(&cfg.openb, "openb", "", "`directory` of the trace for "+openbWorkload+", with "+openbNodes+" and "+openbPods+"; without it, that is skipped")
	f.DurationVar(&cfg.settle, "settle", 20*time.Second, "`time` without a bound pod after which "+openbWorkload+" has no room for more")
	f.StringVar(&cfg.before, "before", "", "`path` of another berth binary, which takes turns with it as "+berthBefore)
	f.IntVar(&cfg.repetitions, "repetitions", 3, "`times` that each contender runs")
	f.IntVar(&cfg.kubeQPS, "kube-qps", 5000, "QPS and burst of kube-scheduler's and Berth's clients, in `requests` per second")
	f.IntVar(&cfg.bindConcurrency, "bind-concurrency", 64, "binds that the null binder has in flight at `most`")
	f.DurationVar(&cfg.timeout, "timeout", 0, fmt.Sprintf("`time` that a contender has to bind all pods; 0: %v, %v for storm and preemption, and %v for volumes-local", usualLimit, longLimit, shortLimit))
	f.DurationVar(&cfg.idleWindow, "idle-window", 20*time.Second, "`time` in which the CPU of a contender with nothing to do is measured, in a storm")
	f.DurationVar(&cfg.churnWindow, "churn-window", 30*time.Second, "`time` that is measured of a churn")
	f.StringVar(&cfg.profile, "profile", "", "`directory` for profiles of "+berthAll+", or of another one-process Berth if --contenders names it, the only contender then, in one repetition")
	f.BoolVar(&cfg.markdown, "markdown", false, "print the tables in Markdown")
	f.BoolVar(&cfg.kill, "kill", false, "kill one filter-worker, one score-worker, one queue and the active binder of "+berthSplit+", one after the other")
	f.BoolVar(&cfg.keep, "keep", false, "keep the directories with logs and etcd's data, and print their names")
	if err := f.Parse(args); err != nil {
		return cfg, flag.ErrHelp // f has said what is wrong
	}
	if f.NArg() > 0 {
		return cfg, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	for name, n := range map[string]int{"nodes": cfg.nodes, "pods": cfg.pods, "bound-pods": cfg.boundPods} {
		if n < 0 {
			return cfg, fmt.Errorf("--%s: %d is negative", name, n)
		}
	}
	for name, n := range map[string]int{
		"node-cpu": cfg.nodeCPU, "repetitions": cfg.repetitions,
		"kube-qps": cfg.kubeQPS, "bind-concurrency": cfg.bindConcurrency,
	} {
		if n < 1 {
			return cfg, fmt.Errorf("--%s: %d is not positive", name, n)
		}
	}
	for name, d := range map[string]time.Duration{"idle-window": cfg.idleWindow, "churn-window": cfg.churnWindow, "settle": cfg.settle} {
		if d <= 0 {
			return cfg, fmt.Errorf("--%s: %v is not positive", name, d)
		}
	}
	if cfg.timeout < 0 {
		return cfg, fmt.Errorf("--timeout: %v is negative", cfg.timeout)
	}
	if cfg.profile != "" {
		if ofOne := []string{berthAll, berthService, berthExtender, berthSigned, berthCompiledIn, berthSort, berthOneShard, berthYoda, berthYodaService}; contenders != "" && !slices.Contains(ofOne, contenders) {
			return cfg, fmt.Errorf("--profile: it is of %s, not of %s", berthAll, contenders)
		}
		contenders, cfg.repetitions = cmp.Or(contenders, berthAll), 1
	}
	if cfg.classes < 1 || cfg.classes > maxClasses {
		return cfg, fmt.Errorf("--classes: %d is not between 1 and %d", cfg.classes, maxClasses)
	}
	err := cfg.choose(workloads, contenders)
	return cfg, err
}

// choose looks up what is named, and checks that it can run.
func (cfg *config) choose(workloads, contenders string) error {
	var err error
	if cfg.workloads, err = workloadsNamed(workloads); err != nil {
		return fmt.Errorf("--workload: %w", err)
	}
	if contenders != "" {
		for name := range strings.SplitSeq(contenders, ",") {
			c, err := contenderNamed(name)
			if err != nil {
				return fmt.Errorf("--contenders: %w", err)
			}
			cfg.contenders = append(cfg.contenders, c)
		}
	}
	if err := cfg.readTrace(); err != nil {
		return fmt.Errorf("--openb: %w", err)
	}
	for _, w := range cfg.workloads {
		if err := w.checkRoom(cfg.of(w)); err != nil {
			return fmt.Errorf("--pods: %w", err)
		}
		chosen := cfg.contendersFor(w)
		if i := slices.IndexFunc(chosen, func(c contender) bool { return c.blind }); i >= 0 && w.newScript != nil && !w.claims {
			return fmt.Errorf("--contenders: %s binds blindly, and cannot run %s", chosen[i].name, w.name)
		}
		if cfg.kill && !slices.ContainsFunc(chosen, func(c contender) bool { return c.name == berthSplit }) {
			return fmt.Errorf("--kill: %s is not among the contenders", berthSplit)
		}
		for _, c := range chosen {
			if c.cards == devicePluginGives && w.cards == nil {
				return fmt.Errorf("--contenders: %s is of workloads with cards, not of %s", c.name, w.name)
			}
			paths := cfg.binariesOf(c)
			for _, flag := range slices.Sorted(maps.Keys(paths)) { // the first that is not there, always the same
				if _, err := os.Stat(paths[flag]); err != nil {
					return fmt.Errorf("%s: %w", flag, err)
				}
			}
		}
	}
	return nil
}

// binariesOf returns the paths of the binaries that a contender needs, by the flags that say them.
func (cfg *config) binariesOf(c contender) map[string]string {
	paths := map[string]string{}
	if c.berth {
		paths["--berth"] = cfg.berth
	}
	if c.name == berthBefore {
		paths = map[string]string{"--before": cfg.before}
	}
	if c.compiledIn {
		paths["--compiled-in"] = cfg.compiledIn
	}
	if c.yoda {
		paths["--yoda"] = cfg.yoda
	}
	return paths
}

// readTrace reads the trace if a workload is of it. Without one that is skipped: it is not part of the project.
func (cfg *config) readTrace() error {
	at := slices.IndexFunc(cfg.workloads, func(w workload) bool { return w.name == openbWorkload })
	if at < 0 {
		return nil
	}
	if _, err := os.Stat(filepath.Join(cfg.openb, openbNodes)); cfg.openb == "" || err != nil {
		progress("%s: skipped: --openb names no directory with %s and %s, of https://github.com/hkust-adsl/kubernetes-scheduler-simulator", openbWorkload, openbNodes, openbPods)
		cfg.workloads = slices.Delete(cfg.workloads, at, at+1)
		return nil
	}
	trace, err := readOpenb(cfg.openb)
	if err != nil {
		return err
	}
	cfg.trace = trace.cut(cfg.nodes)
	cfg.workloads[at].nodes, cfg.workloads[at].pods = len(cfg.trace.nodes), len(cfg.trace.pods)
	return nil
}

// of returns the configuration for a workload.
func (cfg config) of(w workload) config {
	cfg.nodes = cmp.Or(cfg.nodes, w.nodes, usualNodes)
	cfg.pods = cmp.Or(cfg.pods, w.pods, cfg.nodes)
	if w.name == openbWorkload { // no more than the trace has
		cfg.nodes, cfg.pods = min(cfg.nodes, w.nodes), min(cfg.pods, w.pods)
	}
	cfg.boundPods = cmp.Or(cfg.boundPods, w.boundPods)
	cfg.timeout = cmp.Or(cfg.timeout, w.limit, usualLimit)
	return cfg
}

// contendersFor returns who runs a workload. Unless the command line says, a workload of other than plain pods is only for
// one contender of each scheduler, and of pods with claims for the null binder: the others tell nothing new, and time passes.
func (cfg config) contendersFor(w workload) []contender {
	if len(cfg.contenders) > 0 {
		return cfg.contenders
	}
	if len(w.contenders) > 0 {
		all, out := contenders(), []contender(nil)
		for _, name := range w.contenders {
			out = append(out, all[slices.IndexFunc(all, func(c contender) bool { return c.name == name })])
		}
		return out
	}
	return slices.DeleteFunc(contenders(), func(c contender) bool {
		switch c.name {
		case berthBefore:
			return cfg.before == ""
		case berthService, berthExtender, kubeExtender, berthSigned, berthCompiledIn, kubeCompiledIn, berthSort, berthOneShard,
			berthAllAgain, berthYoda, berthYodaService, kubeYoda, kubeDevicePlugin:
			return true
		case nullBinder:
			return w.name != plain && !w.claims
		}
		return w.name != plain && !slices.Contains(judges(), c.name)
	})
}

// compare runs every contender and prints the tables, also of the runs before an interrupt or a run that could not be made. It
// returns an error then, or if a run went wrong.
func compare(ctx context.Context, cfg config) error {
	began := time.Now()
	bin, err := kubetest.Build(ctx, kubetest.Etcd, kubetest.APIServer, kubetest.KubeScheduler)
	if err != nil {
		return err
	}
	if took := time.Since(began); took > 10*time.Second {
		progress("built the control plane in %v", took.Round(time.Second))
	}
	versions, err := kubetest.Versions(ctx)
	if err != nil {
		return err
	}
	head := header(cfg, versions, commit(ctx))
	results, err := runAll(ctx, cfg, bin[kubetest.KubeScheduler])
	if len(results) == 0 {
		return err
	}
	if printErr := printReport(os.Stdout, head, results, cfg.markdown); printErr != nil {
		return errors.Join(err, fmt.Errorf("print tables: %w", printErr))
	}
	if err != nil {
		return err
	}
	var failed []string
	for _, r := range results {
		// That kube-scheduler is too slow is a result, and not its fault.
		if len(r.problems) > 0 || r.late != "" && !slices.Contains([]string{kubeScheduler, kubeYoda, kubeDevicePlugin}, r.contender) {
			failed = append(failed, r.title())
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("check failed: %s", strings.Join(failed, "; "))
	}
	return nil
}

// runAll runs the contenders in turn, repetition by repetition. With an error it returns the results before it.
func runAll(ctx context.Context, cfg config, kubeSchedulerBin string) ([]result, error) {
	var results []result
	for repetition := range cfg.repetitions {
		for _, w := range cfg.workloads {
			for _, c := range cfg.contendersFor(w) {
				progress("%s, %s: run %d of %d", w.name, c.name, repetition+1, cfg.repetitions)
				r, err := runOnce(ctx, cfg.of(w), w, c, kubeSchedulerBin, repetition+1)
				if err != nil {
					return results, fmt.Errorf("run %s, %s: %w", w.name, c.name, err)
				}
				progress("%s", r.line())
				results = append(results, r)
			}
		}
	}
	return results, nil
}

// header says what was measured, and on what.
func header(cfg config, versions map[string]string, commit string) string {
	return fmt.Sprintf("%s\nKubernetes %s, etcd %s, berth %s\nseed %d, %d repetitions, nodes of %d CPUs, plain pods of %d classes, clients of at most %d requests/s\n",
		measure.Machine(), versions[kubetest.APIServer], versions[kubetest.Etcd], cmp.Or(commit, "of no known commit"),
		cfg.seed, cfg.repetitions, cfg.nodeCPU, cfg.classes, cfg.kubeQPS)
}

// commit returns the commit of the working tree, with "-dirty" if it has changed since; empty if there is none.
func commit(ctx context.Context) string {
	git := exec.CommandContext(ctx, "git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
	out, err := git.Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// buildPrograms builds what is not in the cache.
func buildPrograms(ctx context.Context) error {
	paths, err := kubetest.Build(ctx, kubetest.Programs()...)
	if err != nil {
		return err
	}
	for _, name := range kubetest.Programs() {
		fmt.Println(paths[name])
	}
	return nil
}

// progress tells a waiting person what happens; the table on standard output stays clean.
func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
