// Package command is Berth's command line: flags, environment and signals of every role, alone or together, and of the client. It knows no more of
// plugins that are compiled into a program than who runs them: cmd/berth has none, and programs of package app and of the module berthapp have theirs.
package command

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"

	"github.com/berth-scheduler/berth/internal/certs"
	"github.com/berth-scheduler/berth/internal/cli"
	"github.com/berth-scheduler/berth/internal/cli/offline"
	"github.com/berth-scheduler/berth/internal/logs"
	"github.com/berth-scheduler/berth/internal/member"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/secureport"
)

// Run runs a command until it is done, or a signal ends it, and returns the code with which the process is to exit. A second signal calls exit.
func Run(c *cobra.Command, exit func(code int)) int {
	ctx, stop := cli.Interruptible(context.Background(), exit)
	defer stop()
	if err := c.ExecuteContext(ctx); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(c.ErrOrStderr(), "berth:", err)
		return 1
	}
	return 0
}

// New assembles the command line of a program with plugins that are compiled in; nil: it has none.
func New(in *CompiledIn) *cobra.Command {
	root := &cobra.Command{
		Use:           "berth",
		Short:         "A Kubernetes scheduler built as gRPC microservices",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       cmp.Or(member.Build(), "unknown"),
	}
	if args := inPlaceArguments(os.Args[0], os.Args[1:]); args != nil {
		root.SetArgs(args)
	}
	root.AddGroup(&cobra.Group{ID: "server", Title: "Server commands:"}, &cobra.Group{ID: "client", Title: "Client commands:"})
	server := []*cobra.Command{allCommand(in), kubeSchedulerCommand(in), binderCommand(in), queueCommand(), filterWorkerCommand(), scoreWorkerCommand(), gatewayCommand(), demoCommand(), configCommand(), certsCommand(), etcdInitCommand(), healthCommand()}
	for _, c := range server {
		c.GroupID = "server"
		c.Args = cobra.NoArgs
		if slices.Contains([]string{"all", "binder"}, c.Name()) { // which are started in kube-scheduler's place
			c.SetFlagErrorFunc(explainRemoved)
		}
		if c.Flags().Lookup(logLevelFlag) != nil || c.Name() == secureport.Component { // it is a role, or several
			inSections(c)
		}
		root.AddCommand(c)
	}
	for _, c := range []*cobra.Command{doctorCommand(in), shadowCommand(in)} {
		c.GroupID, c.Args = "client", cobra.NoArgs
		root.AddCommand(c)
	}
	plugins := pluginCommand()
	if in != nil && in.Host != nil {
		in.Host.Hidden = true
		root.AddCommand(in.Host)
	}
	if in != nil && in.Serve != nil {
		plugins.AddCommand(in.Serve)
	}
	plugins.GroupID = "client"
	root.AddCommand(plugins)
	defaultServer := "127.0.0.1:7070"
	if s := os.Getenv("BERTH_SERVER"); s != "" {
		defaultServer = s
	}
	access := cli.Access{
		Files: certs.Files{CA: os.Getenv("BERTH_TLS_CA")}, TokenFile: os.Getenv("BERTH_TOKEN_FILE"), Token: os.Getenv("BERTH_TOKEN"),
	}
	for _, c := range cli.Commands(cli.Options{
		Version: member.Build(), Revision: member.Revision(), Kubernetes: member.Kubernetes, DefaultServer: defaultServer, Dial: access.Dial, Offline: offline.Open, In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
	}) {
		access.AddFlags(c.PersistentFlags())
		c.GroupID = "client"
		root.AddCommand(c)
	}
	return root
}

// logLibraries has libraries log to log that have a log for all of a process.
func logLibraries(log *slog.Logger) {
	klog.SetSlogLogger(log) // parts of client-go
	// gRPC, and what makes JSON of it: errors only, of which strangers cause what they like.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, slog.NewLogLogger(rpc.LibraryLog(log), slog.LevelError).Writer()))
}

// LogFlags are about the log of a process.
type LogFlags struct {
	format, level string
	verbosity     int
	modules       logs.Modules
}

const logLevelFlag = "log-level"

// The forms of a log.
const (
	formatText = "text" // of log/slog
	formatJSON = "json" // as kube-scheduler's
	formatKlog = "klog" // kube-scheduler's text
)

// Add adds the flags.
func (f *LogFlags) Add(fs *pflag.FlagSet) {
	fs.StringVar(&f.format, "log-format", formatText, "text, json, or klog: json and klog are as kube-scheduler's JSON and text")
	fs.StringVar(&f.level, logLevelFlag, "info", "debug, info, warn or error")
	fs.IntVarP(&f.verbosity, "v", "v", 0, "how much is logged, as with kube-scheduler, if it is not 0 instead of --"+logLevelFlag+": 2 says what becomes of each pod, 4 is debug")
}

// Open returns the process's logger, writing to stderr, and what sets its level. Libraries log to it from then on.
func (f *LogFlags) Open() (*slog.Logger, *slog.LevelVar, error) {
	if f.verbosity < 0 || f.verbosity > math.MaxInt32 {
		return nil, nil, fmt.Errorf("-v: %d: want 0 or more", f.verbosity)
	}
	log, level, err := newLogger(os.Stderr, f.format, f.level, f.modules)
	if err != nil {
		return nil, nil, err
	}
	logLibraries(log)
	if err := logModules(f.modules); err != nil {
		return nil, nil, err
	}
	if f.verbosity > 0 {
		_, err = setVerbosity(level, strconv.Itoa(f.verbosity))
	}
	return log, level, err
}

// logModules has files of klog's users log as modules say.
func logModules(modules logs.Modules) error {
	if len(modules) == 0 {
		return nil
	}
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(fs)
	if err := fs.Set("vmodule", modules.String()); err != nil {
		return fmt.Errorf("--vmodule: %w", err)
	}
	return nil
}

// newLogger returns a logger, and what sets its level.
func newLogger(to io.Writer, format, level string, modules logs.Modules) (*slog.Logger, *slog.LevelVar, error) {
	l := new(slog.LevelVar)
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, nil, fmt.Errorf("--log-level: %q: want debug, info, warn or error", level)
	}
	switch format {
	case formatJSON:
		return slog.New(logs.JSON(to, logs.Options{Level: l, Modules: modules})), l, nil
	case formatKlog:
		return slog.New(logs.Text(to, logs.Options{Level: l, Modules: modules})), l, nil
	case formatText:
		return slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{Level: l})), l, nil
	}
	return nil, nil, fmt.Errorf("--log-format: %q: want text, json or klog", format)
}

// setVerbosity sets how much is logged as klog's -v does: each step lets through what is one less important than information; debug
// is 4. client-go's part of the log is set with it.
func setVerbosity(level *slog.LevelVar, value string) (string, error) {
	v, err := strconv.ParseUint(value, 10, 31)
	if err != nil {
		return "", err
	}
	var verbosity klog.Level
	if err := verbosity.Set(value); err != nil {
		return "", fmt.Errorf("failed set klog.logging.verbosity %s: %w", value, err)
	}
	level.Set(slog.LevelInfo - slog.Level(v))
	return "successfully set klog.logging.verbosity to " + value, nil
}

// sayStart logs what the process is, as kube-scheduler does: what it was built from, what the environment tells Go, and, at debug, its flags. What its configuration comes to, /configz says.
func sayStart(log *slog.Logger, role string, flags map[string]string) {
	log.Info("starting", "role", role, "build", cmp.Or(member.Build(), "unknown"), "commit", cmp.Or(member.Revision(), "unknown"),
		"gogc", os.Getenv("GOGC"), "gomaxprocs", os.Getenv("GOMAXPROCS"), "gotraceback", os.Getenv("GOTRACEBACK"))
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		log.Debug("flag", "line", "--"+name+"="+flags[name])
	}
}

// run runs a role with what every role needs, and flushes traces at the end.
func (f *commonFlags) run(ctx context.Context, role string, run func(ctx context.Context) error) error {
	log, level, err := f.log.Open()
	if err != nil {
		return err
	}
	provider, shutdown, err := rpc.NewTracerProvider(ctx, "berth-"+role, os.Getenv)
	if err != nil {
		return fmt.Errorf("set up tracing: %w", err)
	}
	sayStart(log, role, f.common.Flags)
	useMemory()
	f.common.Log, f.common.Trace = log, provider
	f.common.SetVerbosity = func(value string) (string, error) { return setVerbosity(level, value) }
	err = run(ctx)
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if flushErr := shutdown(flush); flushErr != nil {
		log.Warn("traces not flushed", "err", flushErr)
	}
	return err
}
