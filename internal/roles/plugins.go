package roles

import (
	"context"
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/berth-scheduler/berth/internal/certs"
	"github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/internal/pluginhost"
	"github.com/berth-scheduler/berth/internal/pluginhost/discovered"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// plugins returns the plugin services of the configuration, those that Berth runs or serves itself if some profile uses them, and the processes that it has run plugins that are compiled in, nil if there are none, and what closes the connections to them.
func (e *env) plugins(ctx context.Context, g *errgroup.Group, cl Cluster, objects pluginhost.Objects, metrics prometheus.Registerer) (h *pluginhost.Host, end func(), err error) {
	if len(cl.PluginServices) == 0 && cl.CompiledIn == nil {
		return nil, func() {}, nil
	}
	cfg := pluginhost.Config{Profiles: cl.Settings.Profiles, Arguments: make(map[string]map[string][]byte), Steps: make(map[string]pluginhost.Steps), Log: e.Log, Metrics: metrics}
	if objects != nil {
		cfg.Objects = objects
	}
	for name, of := range cl.PluginArguments {
		cfg.Arguments[name] = make(map[string][]byte)
		for plugin, args := range of {
			cfg.Arguments[name][plugin] = args
		}
	}
	for name, of := range cl.PluginSteps {
		cfg.Steps[name] = pluginhost.Steps(of)
	}
	var clients []*rpc.Clients
	end = func() {
		for _, c := range clients {
			_ = c.Close()
		}
	}
	for _, s := range cl.PluginServices {
		if cl.idle(&s) {
			continue
		}
		var found *discovered.Service // nil: it is not discovered
		if s.Discovered {
			found = discovered.New(s.Name, e.Log)
		}
		within := rpc.Memory() // this process
		c, err := e.clientsOf(s, found, within)
		if err != nil {
			end()
			return nil, nil, fmt.Errorf("plugin service %q: %w", s.Name, err)
		}
		clients = append(clients, c)
		service := pluginhost.Service{Name: s.Name, Timeout: s.Timeout.Duration, PreBindTimeout: s.PreBindTimeout.Duration, Ignorable: s.Ignorable, Objects: s.Objects, Annotations: s.Annotations}
		switch {
		case s.InProcess:
			service.Conn, err = e.serveInProcess(ctx, g, c, within, s.Name, &cl)
		case s.Run != nil:
			service.Conn, err = e.runService(ctx, g, c, &s, &cl)
		case found != nil:
			service.Conn, service.Processes = found, found
			err = found.Connect(c)
			g.Go(func() error { return found.Follow(ctx, e.coord.WatchAnnounced(ctx, s.Name)) })
		default:
			service.Conn, err = c.Conn(s.Address)
		}
		if err != nil {
			end()
			return nil, nil, fmt.Errorf("plugin service %q: %w", s.Name, err)
		}
		for _, p := range s.Plugins {
			service.Plugins = append(service.Plugins, pluginhost.Plugin{Name: p.Name, Filters: slices.Contains(p.Points, "filter"), Scores: slices.Contains(p.Points, "score")})
		}
		cfg.Services = append(cfg.Services, service)
	}
	own, c, err := e.compiledIn(ctx, g, cl)
	if err != nil {
		end()
		return nil, nil, err
	}
	clients = append(clients, c)
	cfg.Services = append(cfg.Services, own...)
	if h, err = pluginhost.New(cfg); err != nil {
		end()
		return nil, nil, err
	}
	return h, end, nil
}

// clientsOf returns what connects to a plugin service, at its address, where it is found, or within this process.
func (e *env) clientsOf(s config.PluginService, found *discovered.Service, within rpc.Network) (*rpc.Clients, error) {
	cfg, serverName := rpc.Config{Outside: true, Log: e.Log, Metrics: e.measured.common}, ""
	if s.TLS != nil {
		source, err := certs.Open(certs.Files{Cert: s.TLS.Cert, Key: s.TLS.Key, CA: s.TLS.CA}, "", e.Log)
		if err != nil {
			return nil, fmt.Errorf("read TLS files: %w", err)
		}
		serverName, cfg.TLS = s.TLS.ServerName, &rpc.TLS{Client: source.Credentials()}
	}
	switch {
	case s.InProcess:
		cfg.Net = within
	case found != nil:
		cfg.Net = rpc.OutsideBy(serverName, found.Dial)
	default:
		cfg.Net = rpc.Outside(serverName)
	}
	return rpc.NewClients(cfg), nil
}
