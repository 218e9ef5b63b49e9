package roles

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/berth-scheduler/berth/internal/child"
	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/internal/pluginhost"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// CompiledIn says by which process each profile runs its plugins that are compiled into the program.
type CompiledIn struct {
	// Names are those of all plugins that are compiled in.
	Names []string
	// Program and Args are the process, but for its configuration, which profile's it is, and where it serves.
	Program string
	Args    []string
	Env     []string // its environment
	Config  []byte   // the KubeSchedulerConfiguration as it is written: whatever becomes of its file, all processes have the same
	Memory  int64    // bytes that each may have
	// Timeout is how long it may take to answer, but for what plugins do before a bind: PreBindTimeout.
	Timeout, PreBindTimeout time.Duration
}

// sentToPlugins returns the scheduler names of the pods that plugin services, compiled in or not, may be sent as the API server has them.
func (c *Cluster) sentToPlugins() map[string]bool {
	sent := make(map[string]bool)
	for i := range c.Settings.Profiles {
		p := &c.Settings.Profiles[i]
		steps := c.PluginSteps[p.SchedulerName]
		if c.CompiledIn != nil && c.CompiledIn.uses(p, steps) || slices.ContainsFunc(c.PluginServices, func(s config.PluginService) bool {
			return s.Objects && slices.ContainsFunc(s.Plugins, func(plugin config.ServicePlugin) bool { return usesAny(p, steps, []string{plugin.Name}) })
		}) {
			sent[p.SchedulerName] = true
		}
	}
	return sent
}

// uses reports whether a profile uses a plugin that is compiled in, at steps too.
func (c *CompiledIn) uses(p *cluster.Profile, steps config.Steps) bool {
	return usesAny(p, steps, c.Names)
}

// usesAny reports whether a profile uses one of some plugins, at steps too.
func usesAny(p *cluster.Profile, steps config.Steps, names []string) bool {
	is := func(name string) bool { return slices.Contains(names, name) }
	return is(p.QueueSort) || slices.ContainsFunc(slices.Concat(p.PreEnqueues, p.Filters, p.PostFilters), is) || slices.ContainsFunc(p.Weights, func(w cluster.PluginWeight) bool { return is(w.Name) }) ||
		slices.ContainsFunc(slices.Concat(steps.Reserve, steps.Permit, steps.PreBind, steps.Bind, steps.PostBind), is)
}

// compiledIn runs a process for each profile that uses plugins that are compiled in, in g until ctx ends, and returns these as services. A process that panics, hangs or leaks harms no profile but its own.
func (e *env) compiledIn(ctx context.Context, g *errgroup.Group, cl Cluster) (services []pluginhost.Service, clients *rpc.Clients, err error) {
	clients = rpc.NewClients(rpc.Config{Net: rpc.Outside(""), Outside: true, Log: e.Log, Metrics: e.measured.common})
	in := cl.CompiledIn
	if in == nil || !slices.ContainsFunc(cl.Settings.Profiles, func(p cluster.Profile) bool { return in.uses(&p, cl.PluginSteps[p.SchedulerName]) }) {
		return nil, clients, nil
	}
	opened := clients
	dir, err := newSocketDir()
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			_ = opened.Close()
			_ = os.RemoveAll(dir)
		}
	}()
	file := filepath.Join(dir, "config.yaml")
	prepare := func() error { // each time: who tidies up temporary files may have taken them away
		if err := makeSocketDir(dir); err != nil {
			return err
		}
		return os.WriteFile(file, in.Config, 0o600)
	}
	var processes []child.Config
	for i := range cl.Settings.Profiles {
		p := &cl.Settings.Profiles[i]
		if !in.uses(p, cl.PluginSteps[p.SchedulerName]) {
			continue
		}
		socket, metrics, err := socketsIn(dir, i)
		if err != nil {
			return nil, nil, err
		}
		conn, err := clients.Conn("unix://" + socket)
		if err != nil {
			return nil, nil, err
		}
		name := "compiled-in/" + p.SchedulerName
		service := pluginhost.Service{Name: name, Conn: conn, Timeout: in.Timeout, PreBindTimeout: in.PreBindTimeout, Objects: true, Profile: p.SchedulerName, Follows: true}
		for _, plugin := range in.Names {
			service.Plugins = append(service.Plugins, pluginhost.Plugin{Name: plugin, Filters: true, Scores: true})
		}
		services = append(services, service)
		e.hosted.Store(p.SchedulerName, newHosted(metrics))
		processes = append(processes, child.Config{
			Path: in.Program, Args: append(slices.Clone(in.Args), "--config", file, "--profile", p.SchedulerName, "--socket", socket, "--metrics-socket", metrics, "--timeout", in.Timeout.String(), "--memory", fmt.Sprint(in.Memory)),
			Prepare: prepare, Env: in.Env, Memory: in.Memory, Log: e.Log.With("service", name),
			Alive: func(ctx context.Context) error {
				_, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{}) // whatever it says
				return err
			},
		})
	}
	g.Go(func() error {
		defer os.RemoveAll(dir)
		var all sync.WaitGroup
		for _, p := range processes {
			all.Go(func() { child.Run(ctx, p) })
		}
		all.Wait()
		return nil
	})
	return services, clients, nil
}
