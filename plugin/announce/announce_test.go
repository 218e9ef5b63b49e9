package announce_test

import (
	"context"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-scheduler/berth/internal/certs"
	"github.com/berth-scheduler/berth/plugin"
	"github.com/berth-scheduler/berth/plugin/announce"
)

func TestWhatIsWrongWithAConfigurationIsNamed(t *testing.T) {
	dir := t.TempDir()
	if _, err := certs.Make(certs.Request{Dir: dir, Roles: []string{"plugin"}, CALife: time.Hour, Life: time.Hour, Now: time.Now()}); err != nil {
		t.Fatal(err)
	}
	tls := plugin.TLSFiles{Cert: filepath.Join(dir, "plugin.crt"), Key: filepath.Join(dir, "plugin.key"), CA: filepath.Join(dir, "ca.crt")}
	for want, change := range map[string]func(*announce.Config){
		`the Service: ""`:    func(c *announce.Config) { c.Service = "" },
		`the Service: "a/b"`: func(c *announce.Config) { c.Service = "a/b" },
		`address: ""`:        func(c *announce.Config) { c.Address = "" },
		`address: "unix:///run/gpu.sock": want host:port`: func(c *announce.Config) { c.Address = "unix:///run/gpu.sock" },
		`address: ":7200"`:                                   func(c *announce.Config) { c.Address = ":7200" },
		`address: "0.0.0.0:7200": is no address`:             func(c *announce.Config) { c.Address = "0.0.0.0:7200" },
		"the name of the service, or the address, is longer": func(c *announce.Config) { c.Service = strings.Repeat("s", 500) },
		"the Endpoints: want at least one":                   func(c *announce.Config) { c.Endpoints = nil },
		`the Endpoints: "http://127.0.0.1:1": want https`: func(c *announce.Config) {
			c.TLS, c.Endpoints = tls, []string{"https://127.0.0.1:1", "http://127.0.0.1:1"}
		},
		"the TTL: 1s: want 5s at least": func(c *announce.Config) { c.TTL = time.Second },
		"the TTL: -1s":                  func(c *announce.Config) { c.TTL = -time.Second },
		"read TLS files of etcd": func(c *announce.Config) {
			c.TLS, c.Endpoints = plugin.TLSFiles{Cert: "no", Key: "such", CA: "file"}, []string{"https://127.0.0.1:1"}
		},
	} {
		cfg := announce.Config{Service: "gpu", Address: "gpu.internal:7200", Endpoints: []string{"http://127.0.0.1:1"}}
		change(&cfg)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- announce.Run(ctx, cfg) }()
		select {
		case err := <-ended:
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %s", err, want)
			}
		case <-time.After(5 * time.Minute):
			t.Errorf("it runs, want %s", want)
		}
	}
}

// Where nobody listens, it goes on trying, and ends when it is told to.
func TestAProcessEndsThoughItIsNotAnnounced(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- announce.Run(ctx, announce.Config{Service: "gpu", Address: "gpu.internal:7200", Endpoints: []string{"127.0.0.1:1"}})
	}()
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(5 * time.Minute):
		t.Error("it has not ended")
	}
}

func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	tls := plugin.TLSFiles{Cert: "certs/plugin.crt", Key: "certs/plugin.key", CA: "certs/ca.crt"}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return plugin.Serve(ctx, plugin.Config{Listen: ":7200", TLS: tls, Plugins: []plugin.Plugin{{Name: "GPUModel"}}})
	})
	g.Go(func() error {
		return announce.Run(ctx, announce.Config{Service: "gpu", Address: "gpu-0.internal:7200", Endpoints: []string{"https://etcd:2379"}, TLS: tls})
	})
	_ = g.Wait()
}
