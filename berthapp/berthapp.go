// Package berthapp makes a Berth of which plugins are a part that are written for kube-scheduler, in Go, unchanged:
//
//	func main() {
//		os.Exit(berthapp.Run(berthapp.NewCommand(
//			berthapp.WithPlugin(nodegroup.Name, nodegroup.New),
//		)))
//	}
//
// It is a module of its own, so that Berth itself does not import k8s.io/kubernetes: programs need the replacements of that module's go.mod. The program has all commands of berth; profiles of
// its --config enable the plugins as kube-scheduler's do, and pluginConfig gives them arguments, whose types they register in kube-scheduler's scheme.
//
// Plugins never run in the process that places pods: each profile that uses some has a process of its own, of the same program, which is started again when it panics, hangs or has too much
// memory. docs/plugins.md says what they can do, and what is not built yet.
package berthapp

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"github.com/berth-scheduler/berth/internal/command"
)

// PluginFactory makes a plugin, as kube-scheduler has it do.
type PluginFactory = frameworkruntime.PluginFactory

// Option is what a command is made of.
type Option func(*plugins) error

// WithPlugin compiles a plugin in, by a name that no other one has, nor one of Berth's or kube-scheduler's own.
func WithPlugin(name string, factory PluginFactory) Option {
	return func(p *plugins) error { return p.add(name, factory) }
}

// plugins are those that are compiled in.
type plugins struct {
	names    []string // in the order in which they were given
	registry frameworkruntime.Registry
}

func (p *plugins) add(name string, factory PluginFactory) error {
	if err := p.registry.Register(name, factory); err != nil {
		return err
	}
	p.names = append(p.names, name)
	return nil
}

func newPlugins(options []Option) (*plugins, error) {
	p := &plugins{registry: make(frameworkruntime.Registry)}
	for _, option := range options {
		if err := option(p); err != nil {
			return nil, fmt.Errorf("compiled-in plugins: %w", err)
		}
	}
	return p, nil
}

// NewCommand returns the command line of berth, with plugins. What is wrong with an option, running it says.
func NewCommand(options ...Option) *cobra.Command {
	p, err := newPlugins(options)
	if err != nil {
		return &cobra.Command{
			Use: "berth", DisableFlagParsing: true, SilenceUsage: true, SilenceErrors: true,
			RunE: func(*cobra.Command, []string) error { return err },
		}
	}
	return command.New(&command.CompiledIn{Names: p.names, Host: hostCommand(p)})
}

// Run runs a command until it is done, or a signal ends it, and returns the code with which the process is to exit. A second signal ends the process at once.
func Run(c *cobra.Command) int { return command.Run(c, os.Exit) }
