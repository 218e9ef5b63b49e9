package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/quantity"
	"github.com/berth-scheduler/berth/internal/roles"
)

// CompiledIn are plugins that are compiled into a program: kube-scheduler's, or services. Only processes that its commands run call them.
type CompiledIn struct {
	// Services returns all services that are compiled in, with their names, plugins and annotations, and whether they are to be sent objects, as they are with a kubeconfig, "" if there is none. Nil: there are none.
	Services func(kubeconfig string) ([]config.PluginService, error)
	// Serve is the command that serves one of them, "serve NAME": where --listen says or, without it, as Berth has a service serve that it runs. It has the flag --log-level. Nil: there are none.
	Serve *cobra.Command
	// InProcess has those that are served in the binder's process, by their names: the others are run as Serve.
	InProcess map[string]InProcess

	// Names are those of kube-scheduler's plugins.
	Names []string
	// Host is the command that runs the plugins of a profile, until its standard input ends. It has the flags --config and --kubeconfig; --profile, --socket, --metrics-socket, --timeout and --memory,
	// with which it serves berth.plugin.v1, and what it measures as kube-scheduler does; and --describe, with which it writes [Described] to the file [DescribedFile] instead, and ends. Nil: there are no such plugins.
	Host *cobra.Command
}

// InProcess serves a service in the binder's process, of what InProcessConfig says.
type (
	InProcess       = roles.InProcess
	InProcessConfig = roles.InProcessConfig
)

// DescribedFile is the number of the file that [Described] is written to, in JSON: plugins may write to the others.
const DescribedFile = 3

// Described is what plugins that are compiled in say of themselves when they are made as a configuration says.
type Described struct {
	// Points are those of each plugin that could be made, in the words of a profile.
	Points map[string][]string `json:"points"`
	// Errors say of profiles, by their scheduler names, that kube-scheduler would not start with their plugins, and why.
	Errors map[string]string `json:"errors"`
}

// describeWithin is how long plugins may take to be made once.
const describeWithin = 30 * time.Second

const (
	memoryFlag         = "plugin-memory"
	timeoutFlag        = "plugin-timeout"
	preBindTimeoutFlag = "plugin-pre-bind-timeout"
	inProcessFlag      = "plugins-in-process"
	verbosityFlag      = "plugin-v"
	modulesFlag        = "plugin-vmodule"
)

// compiledInFlags are about plugins that are compiled in, if there are any.
type compiledInFlags struct {
	in                      *CompiledIn // nil: there are none
	memory, modules         string
	timeout, preBindTimeout time.Duration
	verbosity               uint16
	inProcess               bool
}

func (f *compiledInFlags) add(fs *pflag.FlagSet) {
	if f.in == nil {
		return
	}
	fs.DurationVar(&f.preBindTimeout, preBindTimeoutFlag, config.PreBindTimeout, "how long what compiled-in plugins do before a bind may take")
	if len(f.in.InProcess) > 0 {
		fs.BoolVar(&f.inProcess, inProcessFlag, true, "serve compiled-in services in this process that may be: "+strings.Join(slices.Sorted(maps.Keys(f.in.InProcess)), ", ")+"; false: each in one of its own, which a plugin that crashes, hangs or leaks ends alone")
	}
	if f.in.Services != nil {
		fs.DurationVar(&f.timeout, timeoutFlag, time.Second, "how long an answer of compiled-in plugins may take, but for what they do before a bind and behind it")
		fs.StringVar(&f.memory, memoryFlag, "2Gi", "how much memory the process of a compiled-in service may have that has one of its own, as a quantity; one that has more is killed, and started again")
	} else {
		fs.DurationVar(&f.timeout, timeoutFlag, 5*time.Second, "how long compiled-in plugins may take for one pod and one point, but for what they do before a bind and behind it")
		fs.StringVar(&f.memory, memoryFlag, "2Gi", "how much memory a process may have that runs the compiled-in plugins of a profile, as a quantity; one that has more is killed, and started again")
		fs.Uint16Var(&f.verbosity, verbosityFlag, 0, "how much compiled-in plugins log, as -v has it for kube-scheduler's; at 10 what they score each node, too")
		fs.StringVar(&f.modules, modulesFlag, "", "the same for some of their files, as --vmodule has it for kube-scheduler's: PATTERN=N,…")
	}
}

// finish finds out what a configuration has plugins do that are compiled in: it puts their points into options, and returns how their processes are run, nil if no profile enables any, and
// what is wrong behind all else.
func (f *compiledInFlags) finish(ctx context.Context, cfg *configv1.KubeSchedulerConfiguration, written []byte, file string, cluster *roles.Cluster, options *config.Options) (out *roles.CompiledIn, wrong, err error) {
	if f.in == nil || f.in.Host == nil {
		return nil, nil, nil
	}
	options.CompiledIn = make(map[string][]string)
	for _, name := range f.in.Names {
		if engine.PluginOf(name) != nil || options.Plugins[name] != nil {
			return nil, nil, fmt.Errorf("the plugin %s is compiled in, and Berth, kube-scheduler or a plugin service has one of that name: want another one", name)
		}
		options.CompiledIn[name] = nil
	}
	memory, err := f.limits()
	if err != nil {
		return nil, nil, err
	}
	for part := range strings.SplitSeq(f.modules, ",") {
		pattern, level, _ := strings.Cut(part, "=")
		if _, err := strconv.ParseUint(level, 10, 16); (err != nil || pattern == "") && part != "" {
			return nil, nil, fmt.Errorf("--%s: %q: want PATTERN=N,… with whole numbers from 0 on", modulesFlag, f.modules)
		}
	}
	used := func(p configv1.KubeSchedulerProfile) bool { return len(config.EnabledCompiledIn(&p, f.in.Names)) > 0 }
	if written == nil || !slices.ContainsFunc(cfg.Profiles, used) {
		return nil, nil, nil
	}
	if cluster.Source != "kube" {
		return nil, nil, fmt.Errorf("profiles enable plugins that are compiled in, which read the objects of an API server, and --source=%s has none: want --source=kube", cluster.Source)
	}
	program, err := os.Executable()
	if err != nil {
		return nil, nil, fmt.Errorf("find this program, to run its plugins: %w", err)
	}
	out = &roles.CompiledIn{
		Names: f.in.Names, Program: program, Env: pluginEnvironment(), Config: written, Memory: memory,
		Args:    []string{f.in.Host.Name(), "--kubeconfig", cluster.Kubeconfig, "--v", fmt.Sprint(f.verbosity), "--vmodule", f.modules},
		Timeout: f.timeout, PreBindTimeout: f.preBindTimeout,
	}
	described, err := describe(ctx, out)
	if err != nil {
		return nil, nil, err
	}
	for i := range cfg.Profiles {
		p := &cfg.Profiles[i]
		name := "default-scheduler"
		if p.SchedulerName != nil {
			name = *p.SchedulerName
		}
		if text := described.Errors[name]; text != "" {
			wrong = errors.Join(wrong, fmt.Errorf("profiles[%d]: %s", i, text))
			if slices.ContainsFunc(config.EnabledCompiledIn(p, f.in.Names), func(name string) bool { return described.Points[name] == nil }) {
				return nil, nil, wrong // where they could run is not known
			}
		}
	}
	for name, points := range described.Points {
		options.CompiledIn[name] = points
	}
	return out, wrong, nil
}

// limits checks the flags of what processes with plugins may take, and returns how many bytes of memory that is.
func (f *compiledInFlags) limits() (memory int64, err error) {
	q, err := resource.ParseQuantity(f.memory)
	if err != nil || quantity.Whole(q) < 1<<20 {
		return 0, fmt.Errorf("--%s: %q: want a quantity such as 2Gi, and at least 1Mi", memoryFlag, f.memory)
	}
	for _, t := range []struct {
		flag      string
		is, most  time.Duration
		wantsMost string
	}{{timeoutFlag, f.timeout, config.MaxPluginTimeout, "1m"}, {preBindTimeoutFlag, f.preBindTimeout, config.MaxPreBindTimeout, "1h"}} {
		if t.is <= 0 || t.is > t.most {
			return 0, fmt.Errorf("--%s: %v: want a duration above 0, and no more than %s", t.flag, t.is, t.wantsMost)
		}
	}
	return quantity.Whole(q), nil
}

// services returns the services that are compiled in, beside those of a file: all of them, and of these the ones of which a profile enables a plugin, as if the file said of each how it is run. Without a configuration, which alone can
// enable any, none is looked for. fs has the flags of the process.
func (f *compiledInFlags) services(cfg *configv1.KubeSchedulerConfiguration, written []byte, fs *pflag.FlagSet, cluster *roles.Cluster) (all, enabled []config.PluginService, err error) {
	if f.in == nil || f.in.Services == nil {
		return nil, nil, nil
	}
	memory, err := f.limits()
	if err != nil || written == nil {
		return nil, nil, err
	}
	if all, err = f.in.Services(cluster.Kubeconfig); err != nil {
		return nil, nil, err
	}
	if err := config.CheckCompiledIn(all, cluster.PluginServices); err != nil {
		return nil, nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, nil, fmt.Errorf("find this program, to run its plugins: %w", err)
	}
	cluster.InProcess = f.in.InProcess
	for _, s := range all {
		var names []string
		for _, p := range s.Plugins {
			names = append(names, p.Name)
		}
		s.Timeout.Duration, s.PreBindTimeout.Duration = f.timeout, f.preBindTimeout
		if s.InProcess = f.inProcess && f.in.InProcess[s.Name] != nil; !s.InProcess {
			s.Run = &config.PluginRun{Command: []string{program, "plugin", "serve", s.Name, "--" + logLevelFlag, fs.Lookup(logLevelFlag).Value.String()}, Memory: memory}
		}
		if slices.ContainsFunc(cfg.Profiles, func(p configv1.KubeSchedulerProfile) bool { return len(config.EnabledCompiledIn(&p, names)) > 0 }) {
			enabled = append(enabled, s)
		}
	}
	return all, enabled, nil
}

// pluginEnvironment is the environment of a process with plugins: this one's, without what is Berth's own, and without where its traces go: tokens are among both.
func pluginEnvironment() []string {
	return slices.DeleteFunc(os.Environ(), func(set string) bool {
		return strings.HasPrefix(set, "BERTH_") || strings.HasPrefix(set, "OTEL_EXPORTER_")
	})
}

// mostDescribed bounds what is read of [Described], and mostWritten what is kept of what plugins write meanwhile, in bytes.
const (
	mostDescribed = 1 << 20
	mostWritten   = 64 << 10
)

// describe has the plugins made once, in a process of their own.
func describe(ctx context.Context, in *roles.CompiledIn) (d Described, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, describeWithin, fmt.Errorf("not within %v", describeWithin))
	defer cancel()
	file, err := os.CreateTemp("", "berth-config-") // the one that was read may be a pipe, or another one by now
	if err != nil {
		return d, err
	}
	defer os.Remove(file.Name())
	_, err = file.Write(in.Config)
	if err = errors.Join(err, file.Close()); err != nil {
		return d, err
	}
	out, to, err := os.Pipe()
	if err != nil {
		return d, err
	}
	defer out.Close()
	written := &written{}
	cmd := exec.CommandContext(ctx, in.Program, append(slices.Clone(in.Args), "--config", file.Name(), "--memory", fmt.Sprint(in.Memory), "--describe")...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles, cmd.Env = written, written, []*os.File{to}, in.Env
	cmd.WaitDelay = time.Second
	err = cmd.Start()
	_ = to.Close()
	if err == nil {
		stop := context.AfterFunc(ctx, func() { _ = out.SetReadDeadline(time.Now()) }) // whatever its own children do
		text, readErr := io.ReadAll(io.LimitReader(out, mostDescribed))
		stop()
		if err = cmd.Wait(); err == nil {
			err = readErr
		}
		if err == nil {
			err = json.Unmarshal(text, &d)
		}
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return d, fmt.Errorf("make the plugins that are compiled in: %w: %s", err, parts(written.text()))
	}
	return d, nil
}

// written is the beginning and the end of what a process has written.
type written struct{ first, last []byte }

func (w *written) Write(p []byte) (int, error) {
	n := len(p)
	if room := mostWritten/2 - len(w.first); room > 0 {
		k := min(room, len(p))
		w.first, p = append(w.first, p[:k]...), p[k:]
	}
	if w.last = append(w.last, p...); len(w.last) > mostWritten/2 {
		w.last = slices.Clone(w.last[len(w.last)-mostWritten/2:])
	}
	return n, nil
}

func (w *written) text() string { return string(w.first) + string(w.last) }

// parts returns the beginning and the end of what a process has written: a panic says first what it is, an error comes last.
func parts(text string) string {
	const first, last = 1 << 10, 512
	text = strings.TrimSpace(text)
	if len(text) > first+last {
		text = text[:first] + " … " + text[len(text)-last:]
	}
	return strings.ToValidUTF8(text, "")
}
