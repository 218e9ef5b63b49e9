// Fuzzing runs every native fuzz target of the repository, one after the other, each for its time, and ends with a table.
//
// What has been done is kept in a file, so that a run that was interrupted goes on where it was: a target that has had its
// time is not run again until the file is removed (-fresh). Inputs that cover new code are kept by Go, in its cache, whoever
// runs the target next begins with them. Inputs that fail are written beside the target, in testdata/fuzz; they belong into
// a commit, with the mend.
//
// Targets whose name ends in RPC start a whole Berth and get less time than decoders, which run at a million inputs a minute.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// config is what the command line says.
type config struct {
	root     string        // of the repository
	state    string        // directory of what has been done, and of the output of each target
	decoders time.Duration // for each target
	rpcs     time.Duration // for each target whose name ends in RPC
	run      *regexp.Regexp
	parallel int
	fresh    bool
	list     bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cfg, err := parse(os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err == nil:
		err = run(ctx, cfg, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "fuzzing:", err)
		os.Exit(1)
	}
}

func parse(args []string) (config, error) {
	cfg := config{}
	var name string
	flags := flag.NewFlagSet("fuzzing", flag.ContinueOnError)
	flags.StringVar(&cfg.root, "root", ".", "root of the repository")
	flags.StringVar(&cfg.state, "state", ".bin/fuzz", "directory of what has been done")
	flags.DurationVar(&cfg.decoders, "decoders", 10*time.Minute, "time for each target")
	flags.DurationVar(&cfg.rpcs, "rpcs", 2*time.Minute, "time for each target whose name ends in RPC")
	flags.StringVar(&name, "run", "", "regular expression of package.Target; empty means all")
	flags.IntVar(&cfg.parallel, "parallel", runtime.GOMAXPROCS(0), "inputs that are tried at the same time")
	flags.BoolVar(&cfg.fresh, "fresh", false, "forget what has been done")
	flags.BoolVar(&cfg.list, "list", false, "list the targets, and run none")
	if err := flags.Parse(args); err != nil {
		return cfg, err
	}
	if flags.NArg() > 0 {
		return cfg, fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	if cfg.decoders <= 0 || cfg.rpcs <= 0 || cfg.parallel <= 0 {
		return cfg, errors.New("-decoders, -rpcs and -parallel: want more than 0")
	}
	var err error
	if cfg.run, err = regexp.Compile(name); err != nil {
		return cfg, fmt.Errorf("-run: %w", err)
	}
	if cfg.root, err = filepath.Abs(cfg.root); err != nil {
		return cfg, err
	}
	if !filepath.IsAbs(cfg.state) {
		cfg.state = filepath.Join(cfg.root, cfg.state)
	}
	return cfg, nil
}

// run runs all targets that still have time to get. The error says how many have failed, or that ctx has ended.
func run(ctx context.Context, cfg config, out io.Writer) error {
	targets, err := discover(ctx, cfg.root)
	if err != nil {
		return err
	}
	var chosen []target
	for _, t := range targets {
		if cfg.run.MatchString(t.String()) {
			chosen = append(chosen, t)
		}
	}
	if len(chosen) == 0 {
		return errors.New("there is no such target")
	}
	if cfg.list {
		for _, t := range chosen {
			fmt.Fprintln(out, t)
		}
		return nil
	}
	if err := os.MkdirAll(cfg.state, 0o755); err != nil {
		return err
	}
	state, err := readState(filepath.Join(cfg.state, "state.json"), cfg.fresh)
	if err != nil {
		return err
	}
	failed := 0
	for k, t := range chosen {
		left := cfg.timeFor(t) - state.of(t).took()
		if left < time.Second {
			fmt.Fprintf(out, "%d/%d %s: has had its time\n", k+1, len(chosen), t)
			continue
		}
		fmt.Fprintf(out, "%d/%d %s: %v\n", k+1, len(chosen), t, left.Round(time.Second))
		err := cfg.fuzz(ctx, t, left, state, out)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			failed++
			fmt.Fprintf(out, "  %v\n", err)
		}
	}
	fmt.Fprint(out, "\n"+table(chosen, state))
	switch {
	case ctx.Err() != nil:
		return errors.New("interrupted; the next run goes on from here")
	case failed > 0:
		return fmt.Errorf("%d of %d targets failed", failed, len(chosen))
	}
	return nil
}

// timeFor returns how long a target runs in all.
func (cfg config) timeFor(t target) time.Duration {
	if strings.HasSuffix(t.name, "RPC") {
		return cfg.rpcs
	}
	return cfg.decoders
}
