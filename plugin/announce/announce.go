// Package announce has a process with plugins announce in Berth's etcd where it listens, so that Berth finds it: for services that are discovered, whose address stands in no file. Run it beside
// [plugin.Serve]:
//
//	g, ctx := errgroup.WithContext(ctx)
//	g.Go(func() error { return plugin.Serve(ctx, plugin.Config{Listen: ":7200", TLS: files, Plugins: plugins}) })
//	g.Go(func() error {
//		return announce.Run(ctx, announce.Config{Service: "gpu", Address: "gpu-0.internal:7200", Endpoints: []string{"https://etcd:2379"}, TLS: files})
//	})
//
// It is a package of its own since it compiles etcd's client in, which programs that do not announce themselves need not have.
package announce

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/berth-scheduler/berth/internal/certs"
	"github.com/berth-scheduler/berth/internal/coord/announcer"
	"github.com/berth-scheduler/berth/plugin"
)

// Config is what is announced, and in which etcd.
type Config struct {
	// Service is what Berth's file of plugin services calls the service. Required.
	Service string
	// Address is where Berth reaches this process, and no other one: host:port, where the host is a name or an address of IP. Required.
	Address string
	// Endpoints are where Berth's etcd serves: http://host:port, https://host:port, or unix:///path of that which a "berth all" embeds. Required.
	Endpoints []string
	// Prefix is Berth's --etcd-prefix. "" means /berth/.
	Prefix string
	// TLS is how the process proves to etcd who it is: with https endpoints. Where etcd has users, its certificate is of the user plugin. They may be the files of [plugin.Config].
	TLS plugin.TLSFiles
	// TTL is how long Berth takes the process for being there if it is gone without a word. 0 means 10 s, and less than MinTTL is not possible.
	TTL time.Duration
	// Log is told when the process is announced, and why it is not. nil discards.
	Log *slog.Logger
}

// MinTTL is the least that a TTL can be.
const MinTTL = 5 * time.Second

const defaultTTL = 10 * time.Second

// Run announces the process until ctx ends, takes the announcement back, in two seconds at most, and returns nil. While etcd is away, or refuses, it tries again each second: Berth goes on with the process that it has. An
// error says what is wrong with cfg.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Prefix == "" {
		cfg.Prefix = "/berth/"
	}
	if cfg.TTL == 0 {
		cfg.TTL = defaultTTL
	}
	switch {
	case cfg.Service == "" || strings.Contains(cfg.Service, "/"):
		return fmt.Errorf("the Service: %q: want a name without a slash", cfg.Service)
	case len(cfg.Endpoints) == 0:
		return errors.New("the Endpoints: want at least one")
	case cfg.TTL < MinTTL:
		return fmt.Errorf("the TTL: %v: want %v at least", cfg.TTL, MinTTL)
	}
	to := announcer.Config{
		Endpoints: cfg.Endpoints, Prefix: strings.TrimSuffix(cfg.Prefix, "/") + "/", Service: cfg.Service, Address: cfg.Address, TTL: cfg.TTL.Round(time.Second), Log: cfg.Log,
	}
	if cfg.TLS != (plugin.TLSFiles{}) {
		for _, endpoint := range cfg.Endpoints {
			if !strings.HasPrefix(endpoint, "https://") {
				return fmt.Errorf("the Endpoints: %q: want https, since there is TLS", endpoint)
			}
		}
		source, err := certs.Open(certs.Files(cfg.TLS), "", cfg.Log)
		if err != nil {
			return fmt.Errorf("read TLS files of etcd: %w", err)
		}
		to.Credentials = source.Credentials()
	}
	return announcer.Run(ctx, to)
}
