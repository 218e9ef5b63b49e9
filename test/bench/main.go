// Bench measures Berth on its local source: manifests in etcd, and no API server. It is the program behind make bench.
//
// For each workload it writes nodes and pods into an etcd, starts Berth on it, and measures until all pods are bound: how
// many it binds per second, how soon after its start, and with how much CPU and memory. Bound means that the placement is in
// etcd. Then it reads etcd and fails if a pod has no placement, if a node is over its allocatable, or if a pod is where its
// constraint forbids it to be. Everything runs on this machine and shares its cores.
package main

import (
	"context"
	"debug/buildinfo"
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

	"github.com/berth-scheduler/berth/test/measure"
)

// config is what the command line says.
type config struct {
	workloads   []workload
	repetitions int
	seed        uint64
	berth       string // path of the berth binary
	profile     string // directory for profiles; "" means none
	markdown    bool
	keep        bool
	apart       bool // the gateway and this program have a core that nobody else has
	timeout     time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	cfg, err := parseFlags(os.Args[1:])
	if err == nil {
		err = measureAll(ctx, cfg)
	}
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// parseFlags reads the command line and refuses what makes no sense.
func parseFlags(args []string) (config, error) {
	var cfg config
	var names string
	var nodes, pods int
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.StringVar(&names, "workload", "", "comma-separated `names`, or all; empty: all but those of 1000000 nodes, which take minutes:\n"+describeWorkloads())
	f.IntVar(&nodes, "nodes", 0, "`number` of nodes of every workload; 0: as many as it says")
	f.IntVar(&pods, "pods", 0, "`number` of pods that each workload places; 0: as many as it says")
	f.IntVar(&cfg.repetitions, "repetitions", 3, "`times` that each workload runs, all of them in turn")
	f.Uint64Var(&cfg.seed, "seed", 1, "`seed` of Berth's choice among equal nodes")
	f.StringVar(&cfg.berth, "berth", filepath.Join(".bin", "berth"), "`path` of the berth binary")
	f.StringVar(&cfg.profile, "profile", "", fmt.Sprintf("write profiles to this `directory`: CPU, of %v from the first bind on, and allocations; one repetition", profileLength))
	f.BoolVar(&cfg.markdown, "markdown", false, "print the table in Markdown")
	f.BoolVar(&cfg.apart, "apart", false, "give the gateway and this program the last core, and all other processes the others; for workloads with processes")
	f.BoolVar(&cfg.keep, "keep", false, "keep the directories with logs and etcd's data, and print their names")
	f.DurationVar(&cfg.timeout, "timeout", 10*time.Minute, "`time` within which all pods of a workload must be bound")
	if err := f.Parse(args); err != nil {
		return cfg, flag.ErrHelp // f has said what is wrong
	}
	if f.NArg() > 0 {
		return cfg, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if cfg.apart && runtime.NumCPU() < 2 {
		return cfg, errors.New("--apart: there is one core")
	}
	if nodes < 0 {
		return cfg, fmt.Errorf("--nodes: %d is negative", nodes)
	}
	if pods < 0 {
		return cfg, fmt.Errorf("--pods: %d is negative", pods)
	}
	if cfg.repetitions < 1 {
		return cfg, fmt.Errorf("--repetitions: %d is not positive", cfg.repetitions)
	}
	if cfg.timeout <= 0 {
		return cfg, fmt.Errorf("--timeout: %v is not positive", cfg.timeout)
	}
	if cfg.profile != "" {
		cfg.repetitions = 1
	}
	chosen, err := workloadsNamed(names)
	if err != nil {
		return cfg, fmt.Errorf("--workload: %w", err)
	}
	for _, w := range chosen {
		w, err := w.sized(nodes, pods)
		if err != nil {
			return cfg, fmt.Errorf("--pods: %w", err)
		}
		cfg.workloads = append(cfg.workloads, w)
	}
	return cfg, nil
}

// measureAll runs the workloads and prints the table, also of what there is when it is interrupted. It returns an error if a
// run could not be made or went wrong.
func measureAll(ctx context.Context, cfg config) error {
	header, err := headerOf(cfg)
	if err != nil {
		return err
	}
	if cfg.apart {
		if err := stepAside(); err != nil {
			return err
		}
	}
	results, err := repeat(ctx, cfg)
	if len(results) > 0 {
		if err := printTable(os.Stdout, header, results, cfg.markdown); err != nil {
			return fmt.Errorf("print table: %w", err)
		}
	}
	if err != nil {
		return err
	}
	var failed []string
	for _, r := range results {
		if len(r.problems) > 0 && !slices.Contains(failed, r.workload.name) {
			failed = append(failed, r.workload.name)
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("check failed: %s", strings.Join(failed, ", "))
	}
	return nil
}

// repeat runs all workloads in turn, as often as is asked, until one cannot be run.
func repeat(ctx context.Context, cfg config) ([]result, error) {
	var results []result
	for repetition := range cfg.repetitions {
		for _, w := range cfg.workloads {
			progress("%s: run %d of %d", w.name, repetition+1, cfg.repetitions)
			r, err := run(ctx, cfg, w)
			if err != nil {
				return results, fmt.Errorf("run %s: %w", w.name, err)
			}
			progress("%s", r.line())
			results = append(results, r)
		}
	}
	return results, nil
}

// headerOf says what was measured, and on what.
func headerOf(cfg config) (string, error) {
	info, err := buildinfo.ReadFile(cfg.berth)
	if err != nil {
		return "", fmt.Errorf("--berth: %w", err)
	}
	commit, etcd := "of unknown commit", "of unknown version"
	changed := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value[:min(len(s.Value), 12)]
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = " with changes"
		}
	}
	for _, m := range info.Deps {
		if m.Path == "go.etcd.io/etcd/server/v3" {
			etcd = m.Version
		}
	}
	return fmt.Sprintf("%s · Berth %s%s, built with %s · etcd %s · seed %d · repetitions: %d",
		measure.Machine(), commit, changed, info.GoVersion, etcd, cfg.seed, cfg.repetitions), nil
}

// progress tells a waiting person what happens; the table on standard output stays clean.
func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
