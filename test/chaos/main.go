// Chaos runs Berth with faults and checks what it did: it is the program behind make chaos.
//
// It starts an etcd of three members, a real API server and Berth as separate processes, which reach each other through
// proxies. It plays who binds claims and provisions volumes (controllers.go), and who tells of cards (cards.go). While a workload creates and deletes pods and claims and changes nodes, a nemesis kills, pauses and drains processes, cuts
// and delays connections, and lets the API server answer badly. What it does is drawn from the seed; what comes of it is
// not the same twice, for everything else has its own time.
//
// All changes in Berth's etcd and of the API server's pods, nodes, volumes, claims, PodGroups and Scvs are recorded, as those stores tell them, with the faults
// and the requests that the harness sees. A checker reads nothing but this history (check.go, linear.go). A history is kept
// in a file and can be checked again.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	if is, err := asPlugin(os.Args); is {
		if err != nil {
			fmt.Fprintln(os.Stderr, pluginCommand+":", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := chaos(ctx, os.Args[1:])
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

// errViolations is what a run returns that has found some.
var errViolations = errors.New("the history shows violations")

func chaos(ctx context.Context, args []string) error {
	cfg := config{}
	var only, without, again string
	f := flag.NewFlagSet("chaos", flag.ContinueOnError)
	f.Uint64Var(&cfg.seed, "seed", 1, "`seed` of the faults and of the workload")
	f.DurationVar(&cfg.duration, "duration", 2*time.Minute, "`time` in which there are faults")
	f.IntVar(&cfg.count, "count", 0, "do this `number` of faults, however long it takes; 0: as many as there are in --duration")
	f.DurationVar(&cfg.settle, "settle", 90*time.Second, "`time` that Berth has, after the faults, to bind everything that fits")
	f.Float64Var(&cfg.rate, "rate", 10, "`pods` created per second, besides ten probes")
	f.StringVar(&only, "only", "", "comma-separated `kinds` of faults; empty: all of\n"+describeKinds())
	f.StringVar(&without, "without", "", "comma-separated `kinds` of faults that are left out")
	f.StringVar(&cfg.berth, "berth", filepath.Join(".bin", "berth"), "`path` of the berth binary")
	f.StringVar(&cfg.older, "older", "", "`path` of another berth binary, which faults replace the members of a role by")
	f.StringVar(&cfg.yoda, "yoda", filepath.Join(".bin", "berth-yoda"), "`path` of the berth-yoda binary; empty: there are no cards. There are none with --source=local or --older either")
	f.StringVar(&cfg.crd, "scv-crd", filepath.Join("deploy", "kustomize", "components", "yoda", "crd.yaml"), "`path` of the definition of the resource that tells of cards")
	f.StringVar(&cfg.dir, "dir", "", "new `directory` for the history, the logs and the data; empty: .bin/chaos/SEED, which is replaced")
	f.StringVar(&cfg.source, "source", sourceKube, "where the cluster comes from: kube, a real API server, or local, Berth's etcd")
	f.BoolVar(&cfg.tls, "tls", false, "TLS between all processes, each with a certificate of its own")
	f.BoolVar(&cfg.users, "etcd-users", false, "with --tls: etcd lets in only its users, one for each role, which berth etcd-init makes")
	f.StringVar(&again, "check", "", "check the history in this `file` again, and run nothing")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if again == "" {
		var err error
		if cfg.dir == "" {
			cfg.dir = filepath.Join(".bin", "chaos", fmt.Sprint(cfg.seed))
			err = os.RemoveAll(cfg.dir)
		}
		if err != nil {
			return err
		}
		if cfg.only, err = readKinds(only); err != nil {
			return fmt.Errorf("--only: %w", err)
		}
		left, err := readKinds(without)
		if err != nil {
			return fmt.Errorf("--without: %w", err)
		}
		if cfg.source != sourceKube && cfg.source != sourceLocal {
			return fmt.Errorf("--source: %q: want %s or %s", cfg.source, sourceKube, sourceLocal)
		}
		if cfg.users && !cfg.tls {
			return errors.New("--etcd-users: needs --tls: etcd knows Berth's roles by their certificates")
		}
		if _, err := os.Stat(cfg.yoda); cfg.cards() && err != nil {
			return fmt.Errorf("--yoda: %w: build it by make berth-yoda, or leave cards out by --yoda=''", err)
		}
		cfg.noPlugins = cfg.older != "" && !knowsPlugins(cfg.older)
		for _, t := range kinds(leaseTTL) {
			switch possible := t.possible(cfg); {
			case only == "" && possible:
				cfg.only = append(cfg.only, t.kind)
			case !possible && slices.Contains(cfg.only, t.kind):
				return fmt.Errorf("--only: %q is not possible with --source=%s, --tls=%v, --older=%s and --yoda=%s", t.kind, cfg.source, cfg.tls, cfg.older, cfg.yoda)
			}
		}
		if cfg.only = slices.DeleteFunc(cfg.only, func(k Kind) bool { return slices.Contains(left, k) }); len(cfg.only) == 0 {
			return errors.New("--without: no kind of fault is left")
		}
		failed := run(ctx, cfg) // what there is of a history is judged in any case
		again = filepath.Join(cfg.dir, historyFile)
		fmt.Printf("seed %d, ", cfg.seed)
		return errors.Join(failed, judge(again, filepath.Join(cfg.dir, reportFile)))
	}
	return judge(again, "")
}

// reportFile is what a run leaves behind besides its history, in its directory.
const reportFile = "report.md"

// judge checks the history in a file, and prints what it shows; to a report, too, unless that is empty.
func judge(history, report string) error {
	entries, err := ReadHistory(history)
	if err != nil {
		return err
	}
	violations := Check(entries)
	fmt.Printf("history %s\n\n", history)
	var text bytes.Buffer
	Summarize(entries).print(&text, violations)
	fmt.Print(text.String())
	if report != "" {
		if err := os.WriteFile(report, text.Bytes(), 0o644); err != nil {
			return err
		}
	}
	if len(violations) > 0 {
		return errViolations
	}
	return nil
}

func describeKinds() string {
	var names []string
	for _, k := range allKinds() {
		names = append(names, string(k))
	}
	return strings.Join(names, ", ")
}

func allKinds() []Kind {
	var out []Kind
	for _, t := range kinds(leaseTTL) {
		out = append(out, t.kind)
	}
	return out
}

// readKinds reads a list of kinds; nil if it is empty.
func readKinds(list string) ([]Kind, error) {
	if list == "" {
		return nil, nil
	}
	var out []Kind
	for name := range strings.SplitSeq(list, ",") {
		if !slices.Contains(allKinds(), Kind(name)) {
			return nil, fmt.Errorf("%q: want some of %s", name, describeKinds())
		}
		out = append(out, Kind(name))
	}
	return out, nil
}
