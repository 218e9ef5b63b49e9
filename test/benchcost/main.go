// Benchcost measures what one decision costs the engine and the state machine: against the number of nodes, and against
// the pods that are placed already. It prints both as tables and draws them as SVG.
//
// A decision is everything that the pure core does about a pod: the pod comes, a cycle of 256 pods filters, scores and
// merges, the pod is placed on the live state, and is bound. What Berth's roles add around that, RPC, etcd and the API
// server, is not in it.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-scheduler/berth/test/measure"
)

// config is what the command line says.
type config struct {
	out         string
	seed        uint64
	nodes       []int // of the clusters that are compared
	fill        int   // nodes of the cluster that is filled
	cycles      int   // measured for each point
	repetitions int   // of each size
}

func main() {
	cfg, err := parse(os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err == nil:
		err = run(cfg, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchcost:", err)
		os.Exit(1)
	}
}

func parse(args []string) (config, error) {
	var cfg config
	var nodes string
	flags := flag.NewFlagSet("benchcost", flag.ContinueOnError)
	flags.StringVar(&cfg.out, "out", "docs/plots", "directory to write nodes.svg and pods.svg to")
	flags.Uint64Var(&cfg.seed, "seed", 1, "of the order of nodes with equal scores")
	flags.StringVar(&nodes, "nodes", "1000,3000,10000,30000,100000,300000,1000000", "sizes to compare")
	flags.IntVar(&cfg.fill, "fill", 5000, "nodes of the cluster that is filled with pods")
	flags.IntVar(&cfg.cycles, "cycles", 40, "cycles of 256 pods to measure for each point")
	flags.IntVar(&cfg.repetitions, "repetitions", 3, "of each size; the median is told")
	if err := flags.Parse(args); err != nil {
		return cfg, err
	}
	for _, text := range strings.Split(nodes, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return cfg, fmt.Errorf("--nodes %q: %q is no number above 0", nodes, text)
		}
		cfg.nodes = append(cfg.nodes, n)
	}
	slices.Sort(cfg.nodes)
	for name, value := range map[string]int{"fill": cfg.fill, "cycles": cfg.cycles, "repetitions": cfg.repetitions} {
		if value < 1 {
			return cfg, fmt.Errorf("--%s %d: must be above 0", name, value)
		}
	}
	return cfg, nil
}

func run(cfg config, stdout io.Writer) error {
	fmt.Fprintf(stdout, "%s; seed %d; %d cycles of %d pods a point\n", measure.Machine(), cfg.seed, cfg.cycles, batchSize)
	byNodes := plot{
		title: "Cost of a decision against the number of nodes", x: "nodes", y: "µs per decision", logarithmic: true,
	}
	byPods := plot{
		title: fmt.Sprintf("Cost of a decision against the pods placed, %d nodes", cfg.fill), x: "pods placed", y: "µs per decision",
	}
	for _, load := range []workload{plain, hardSpread} {
		line, err := costByNodes(cfg, load)
		if err != nil {
			return err
		}
		byNodes.lines = append(byNodes.lines, line)
		if line, err = costByPods(cfg, load); err != nil {
			return err
		}
		byPods.lines = append(byPods.lines, line)
	}
	if err := os.MkdirAll(cfg.out, 0o755); err != nil {
		return fmt.Errorf("write plots: %w", err)
	}
	for name, p := range map[string]*plot{"nodes.svg": &byNodes, "pods.svg": &byPods} {
		if err := os.WriteFile(filepath.Join(cfg.out, name), []byte(p.svg()), 0o644); err != nil {
			return fmt.Errorf("write plots: %w", err)
		}
	}
	byNodes.table(stdout, len(cfg.nodes))
	byPods.table(stdout, 12)
	return nil
}
