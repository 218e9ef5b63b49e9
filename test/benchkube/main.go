// Benchkube compares schedulers on a real control plane: it is the program behind make bench-kube.
//
// For each workload and contender it starts a fresh etcd and kube-apiserver, creates nodes and pending pods, starts the
// contender, and measures until all pods are bound and the contender has stopped writing. Then it reads the cluster back
// and fails if a node is over its allocatable, if a pod was bound twice, if one is where a required constraint forbids it
// to be, or if one is not bound. With --kill it also kills parts of Berth on the way.
//
// A workload is a kind of pods: plain ones only request resources, others have one kind of constraint each. Three workloads
// have a script besides: pods that fit nowhere, pods with gates, and pods that need the room of others. Everything runs on
// this machine: the API server, etcd and the contender share its cores, so the figures compare contenders and are
// no more than that.
//
// Two subcommands serve the program itself and make: "benchkube null-binder" is the contender that binds blindly, and
// "benchkube build" fills the cache of control plane programs and prints their paths.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

// config is what the command line says.
type config struct {
	nodes, pods, classes, repetitions int // 0 pods: as many as the workload says
	nodeCPU                           int
	seed                              uint64
	workloads                         []workload
	contenders                        []contender // empty: as many as make sense for the workload
	berth                             string      // path of the berth binary
	kubeQPS                           int
	bindConcurrency                   int
	timeout, idleWindow               time.Duration
	kill, keep                        bool
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
	var cfg config
	var workloads, contenders string
	f := flag.NewFlagSet("benchkube", flag.ContinueOnError)
	f.IntVar(&cfg.nodes, "nodes", 5000, "`number` of nodes")
	f.StringVar(&workloads, "workload", "plain", "comma-separated `names`, or all:\n"+describeWorkloads())
	f.IntVar(&cfg.pods, "pods", 0, fmt.Sprintf("`number` of pods, all pending before the contender starts; 0: %d plain ones, %d with constraints, %d preemptors", plainPods, constrainedPods, preemptorPods))
	f.IntVar(&cfg.classes, "classes", 16, "`number` of different plain pods, by their requests, 1 to 16; 1: all request 100m and 500Mi, as those of other workloads do")
	f.IntVar(&cfg.nodeCPU, "node-cpu", 4, "`CPUs` of each node")
	f.Uint64Var(&cfg.seed, "seed", 1, "`seed` of the workload, which pod is of which class, and of Berth's choice among equal nodes")
	f.StringVar(&contenders, "contenders", "", fmt.Sprintf("comma-separated `names`, in the order of their runs, of %s; empty: all for plain pods, %s for other workloads",
		strings.Join(contenderNames(), ", "), strings.Join(judges(), " and ")))
	f.StringVar(&cfg.berth, "berth", filepath.Join(".bin", "berth"), "`path` of the berth binary")
	f.IntVar(&cfg.repetitions, "repetitions", 1, "`times` that each contender runs")
	f.IntVar(&cfg.kubeQPS, "kube-qps", 5000, "QPS and burst of kube-scheduler's and Berth's clients, in `requests` per second")
	f.IntVar(&cfg.bindConcurrency, "bind-concurrency", 64, "binds that the null binder has in flight at `most`")
	f.DurationVar(&cfg.timeout, "timeout", 10*time.Minute, "`time` within which a contender must have bound all pods")
	f.DurationVar(&cfg.idleWindow, "idle-window", 20*time.Second, "`time` in which the CPU of a contender with nothing to do is measured, in a storm")
	f.BoolVar(&cfg.kill, "kill", false, "kill one filter-worker, one score-worker, one queue and the active binder of "+berthSplit+", one after the other")
	f.BoolVar(&cfg.keep, "keep", false, "keep the directories with logs and etcd's data, and print their names")
	if err := f.Parse(args); err != nil {
		return cfg, flag.ErrHelp // f has said what is wrong
	}
	if f.NArg() > 0 {
		return cfg, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if cfg.pods < 0 {
		return cfg, fmt.Errorf("--pods: %d is negative", cfg.pods)
	}
	for name, n := range map[string]int{
		"nodes": cfg.nodes, "node-cpu": cfg.nodeCPU, "repetitions": cfg.repetitions,
		"kube-qps": cfg.kubeQPS, "bind-concurrency": cfg.bindConcurrency,
	} {
		if n < 1 {
			return cfg, fmt.Errorf("--%s: %d is not positive", name, n)
		}
	}
	if cfg.idleWindow <= 0 {
		return cfg, fmt.Errorf("--idle-window: %v is not positive", cfg.idleWindow)
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
	for _, w := range cfg.workloads {
		if err := w.checkRoom(cfg.of(w)); err != nil {
			return fmt.Errorf("--pods: %w", err)
		}
		chosen := cfg.contendersFor(w)
		if i := slices.IndexFunc(chosen, func(c contender) bool { return c.blind }); i >= 0 && w.newScript != nil {
			return fmt.Errorf("--contenders: %s binds blindly, and cannot run %s", chosen[i].name, w.name)
		}
		if cfg.kill && !slices.ContainsFunc(chosen, func(c contender) bool { return c.name == berthSplit }) {
			return fmt.Errorf("--kill: %s is not among the contenders", berthSplit)
		}
		if !slices.ContainsFunc(chosen, func(c contender) bool { return c.berth }) {
			continue
		}
		if _, err := os.Stat(cfg.berth); err != nil {
			return fmt.Errorf("--berth: %w", err)
		}
	}
	return nil
}

// of returns the configuration for a workload.
func (cfg config) of(w workload) config {
	if cfg.pods == 0 {
		cfg.pods = w.pods
	}
	return cfg
}

// contendersFor returns who runs a workload. Unless the command line says, a workload of other than plain pods is only for
// one contender of each scheduler: the others tell nothing new, and time passes.
func (cfg config) contendersFor(w workload) []contender {
	if len(cfg.contenders) > 0 {
		return cfg.contenders
	}
	return slices.DeleteFunc(contenders(), func(c contender) bool { return w.name != plain && !slices.Contains(judges(), c.name) })
}

// compare runs every contender and prints the table. It returns an error if a run could not be made or went wrong.
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
	var results []result
	for repetition := range cfg.repetitions {
		for _, w := range cfg.workloads {
			for _, c := range cfg.contendersFor(w) {
				progress("%s, %s: run %d of %d", w.name, c.name, repetition+1, cfg.repetitions)
				r, err := runOnce(ctx, cfg.of(w), w, c, bin[kubetest.KubeScheduler])
				if err != nil {
					return fmt.Errorf("run %s, %s: %w", w.name, c.name, err)
				}
				results = append(results, r)
			}
		}
	}
	fmt.Printf("%d nodes of %d CPUs, plain pods of %d classes, seed %d · %d cores, %s/%s, %s · Kubernetes %s, etcd %s\n\n",
		cfg.nodes, cfg.nodeCPU, cfg.classes, cfg.seed, runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(),
		versions[kubetest.APIServer], versions[kubetest.Etcd])
	if err := printTable(os.Stdout, results); err != nil {
		return fmt.Errorf("print table: %w", err)
	}
	var failed []string
	for _, r := range results {
		if len(r.problems) > 0 {
			failed = append(failed, r.title())
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("check failed: %s", strings.Join(failed, ", "))
	}
	return nil
}

// buildPrograms builds what is not in the cache.
func buildPrograms(ctx context.Context) error {
	paths, err := kubetest.Build(ctx, kubetest.Etcd, kubetest.APIServer, kubetest.KubeScheduler)
	if err != nil {
		return err
	}
	for _, name := range []string{kubetest.Etcd, kubetest.APIServer, kubetest.KubeScheduler} {
		fmt.Println(paths[name])
	}
	return nil
}

// progress tells a waiting person what happens; the table on standard output stays clean.
func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
