// Package app makes a Berth of which plugin services are a part that are written with package plugin:
//
//	func main() {
//		os.Exit(app.Run(app.NewCommand(app.WithService(app.Service{Name: "gpu", Make: makeGPU}))))
//	}
//
// The program has all commands of berth. Berth runs such a service itself, in a process of its own of the same program, or serves it in the binder's, if a profile of --config enables a plugin of it: one for all profiles. "plugin serve" serves the
// same service for a Berth elsewhere. docs/plugins.md tells which way to choose.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"k8s.io/client-go/rest"

	"github.com/berth-scheduler/berth/internal/command"
	"github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/plugin"
)

// Service is a plugin service that is compiled in.
type Service struct {
	// Name is what logs, metrics and reasons call it: a DNS label, of no other service, compiled in or not.
	Name string
	// Annotations are the prefixes of annotations that its plugins may choose for pods, as a file of plugin services has them.
	Annotations []string
	// Make makes the plugins. It is fast, starts nothing, and calls nobody, for it is also called to find out which plugins there are: also in processes that never serve them. What takes longer, Made.Run does.
	Make func(Environment) (*Made, error)
	// InProcess has the binder serve the plugins in its own process, over its memory, instead of running a process for them: pods are placed faster, for nobody has to be woken to be asked. But what a panic ends then is the binder, unless it is in a function of a
	// plugin, in Make or in Run itself, and so does what no program survives, such as two goroutines that write to a map; and memory and processors are the binder's. An operator may have it in a process of its own all the same: --plugins-in-process=false.
	InProcess bool
}

// Environment is what a service is made of.
type Environment struct {
	// Kubeconfig says how to reach the API server: as --kubeconfig does, or as a pod in a cluster. It fails where there is neither. Never nil.
	Kubeconfig func() (*rest.Config, error)
	// Log is never nil.
	Log *slog.Logger
	// Metrics is where what the service measures is registered: /metrics has it. Never nil.
	Metrics prometheus.Registerer
}

// Made are the plugins of a service that is served.
type Made struct {
	// Plugins are 1 to 64, the same ones each time but for what they remember.
	Plugins []plugin.Plugin
	// Activator has Berth try pods that wait; nil: there is none.
	Activator *plugin.Activator
	// Ready is closed when the plugins can answer, as plugin.Config has it; nil: they can.
	Ready <-chan struct{}
	// Run runs beside the plugins until its context ends, or fails, and then the process ends, or, in the binder's, the plugins do, and are made anew. nil: nothing runs.
	Run func(ctx context.Context) error
}

// Option is what a command is made of.
type Option func(*services) error

// WithService compiles a service in.
func WithService(s Service) Option {
	return func(all *services) error { return all.add(s) }
}

// services are those that are compiled in, in the order in which they were given.
type services struct{ list []Service }

func (all *services) add(s Service) error {
	switch {
	case s.Make == nil:
		return fmt.Errorf("service %q: it has no Make", s.Name)
	case all.named(s.Name) != nil:
		return fmt.Errorf("service %q: there are two", s.Name)
	}
	all.list = append(all.list, s)
	return nil
}

// named returns the service of a name, nil if there is none.
func (all *services) named(name string) *Service {
	k := slices.IndexFunc(all.list, func(s Service) bool { return s.Name == name })
	if k < 0 {
		return nil
	}
	return &all.list[k]
}

// describe makes all services, and returns what a file of plugin services would say of them.
func (all *services) describe(kubeconfig string) (out []config.PluginService, err error) {
	for _, s := range all.list {
		made, err := s.make(Environment{Kubeconfig: reach(kubeconfig), Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
		if err != nil {
			return nil, err
		}
		described := config.PluginService{Name: s.Name, Annotations: s.Annotations}
		for i := range made.Plugins {
			p := &made.Plugins[i]
			described.Plugins = append(described.Plugins, config.ServicePlugin{Name: p.Name, Points: pointsOf(p)})
			described.Objects = described.Objects || p.Depends.Objects || p.Depends.Pod || p.Depends.Annotations
		}
		out = append(out, described)
	}
	return out, nil
}

// make calls Make. What goes wrong there says whose it is.
func (s *Service) make(of Environment) (made *Made, err error) {
	defer func() {
		if p := recover(); p != nil {
			made, err = nil, fmt.Errorf("compiled-in service %q: make its plugins: panic: %v", s.Name, p)
		}
	}()
	made, err = s.Make(of)
	switch {
	case err != nil:
		return nil, fmt.Errorf("compiled-in service %q: make its plugins: %w", s.Name, err)
	case made == nil:
		return nil, fmt.Errorf("compiled-in service %q: it makes nothing", s.Name)
	}
	if err := plugin.Register(nobody{}, of.Log, made.Plugins...); err != nil { // what is wrong with them is said before anybody serves them
		return nil, fmt.Errorf("compiled-in service %q: %w", s.Name, err)
	}
	return made, nil
}

// nobody is asked: plugins that are registered there are only checked.
type nobody struct{}

func (nobody) RegisterService(*grpc.ServiceDesc, any) {}

// pointsOf returns where a plugin runs, in the words of a profile.
func pointsOf(p *plugin.Plugin) (points []string) {
	for _, at := range []struct {
		point string
		runs  bool
	}{
		{"preEnqueue", p.PreEnqueue != nil}, {"queueSort", p.SortKey != nil}, {"filter", p.Filter != nil}, {"postFilter", p.PostFilter != nil}, {"score", p.Score != nil},
		{"reserve", p.Reserve != nil}, {"permit", p.Permit != nil}, {"preBind", p.PreBind != nil}, {"bind", p.Bind != nil}, {"postBind", p.PostBind != nil},
	} {
		if at.runs {
			points = append(points, at.point)
		}
	}
	return points
}

// NewCommand returns the command line of berth, with services. What is wrong with an option, running it says.
func NewCommand(options ...Option) *cobra.Command {
	all := new(services)
	var errs []error
	for _, option := range options {
		errs = append(errs, option(all))
	}
	if err := errors.Join(errs...); err != nil {
		return &cobra.Command{
			Use: "berth", DisableFlagParsing: true, SilenceUsage: true, SilenceErrors: true,
			RunE: func(*cobra.Command, []string) error { return fmt.Errorf("compiled-in services: %w", err) },
		}
	}
	return command.New(&command.CompiledIn{Services: all.describe, Serve: serveCommand(all), InProcess: all.inProcess()})
}

// inProcess returns what serves the services that are in the binder's process.
func (all *services) inProcess() map[string]command.InProcess {
	out := make(map[string]command.InProcess)
	for _, s := range all.list {
		if !s.InProcess {
			continue
		}
		out[s.Name] = func(ctx context.Context, of command.InProcessConfig) error {
			return s.serve(ctx, Environment{Kubeconfig: reach(of.Kubeconfig), Log: of.Log, Metrics: of.Metrics}, plugin.Config{}, of.Listen, nil)
		}
	}
	return out
}

// Run runs a command until it is done, or a signal ends it, and returns the code with which the process is to exit. A second signal ends the process at once.
func Run(c *cobra.Command) int { return command.Run(c, os.Exit) }
