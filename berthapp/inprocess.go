package berthapp

import (
	"context"
	"net"
	"time"

	"github.com/berth-scheduler/berth/internal/command"
)

// InProcess runs plugins in this process, and not in one of their own: for tests that look into the memory of their plugins. A plugin that hangs ends the process.
type InProcess struct {
	plugins *plugins
	cfg     *loaded
}

// NewInProcess returns what runs plugins as a KubeSchedulerConfiguration has them, of which, and of the kubeconfig, it is given the files.
func NewInProcess(config, kubeconfig string, options ...Option) (*InProcess, error) {
	p, err := newPlugins(options)
	if err != nil {
		return nil, err
	}
	cfg, err := p.load(config, kubeconfig)
	if err != nil {
		return nil, err
	}
	return &InProcess{p, cfg}, nil
}

// Describe makes the plugins of all profiles once, as Berth has it done before it starts.
func (i *InProcess) Describe(ctx context.Context) command.Described {
	return i.plugins.describe(ctx, i.cfg)
}

// Serve serves berth.plugin.v1 with the plugins of a profile until ctx ends. An answer may take timeout.
func (i *InProcess) Serve(ctx context.Context, schedulerName string, timeout time.Duration, l net.Listener) error {
	return i.plugins.serve(ctx, i.cfg, schedulerName, timeout, l)
}
