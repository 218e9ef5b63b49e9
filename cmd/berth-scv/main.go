package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-scheduler/berth/cmd/berth-scv/internal/collector"
	"github.com/berth-scheduler/berth/cmd/berth-scv/internal/driver"
	"github.com/berth-scheduler/berth/cmd/berth-scv/internal/resource"
)

// version and revision are set by the linker (-X main.version=…), as internal/member's are, which would bring the whole of gRPC along.
var version, revision string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Getenv("NODE_NAME"), driver.New(nvml.New(), driver.Loaded), os.Stdout, os.Stderr)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "berth-scv:", err)
		os.Exit(1)
	}
}

// run runs the program until ctx ends, with a driver that nobody else uses.
func run(ctx context.Context, args []string, node string, d collector.Driver, stdout, stderr io.Writer) error {
	cfg := collector.Config{Random: rand.Float64, Driver: d}
	flags := flag.NewFlagSet("berth-scv", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&node, "node", node, "the name of the Node that this runs on (environment: NODE_NAME)")
	kubeconfig := flags.String("kubeconfig", "", "a kubeconfig file (default: as a pod in its cluster)")
	listen := flags.String("listen", "0.0.0.0:9090", "where to serve /healthz and /metrics, as host:port")
	flags.DurationVar(&cfg.Interval, "interval", time.Second, "how often the driver is asked: less than --driver-timeout, and at most 30s")
	flags.DurationVar(&cfg.Timeout, "driver-timeout", 10*time.Second, "how long the driver may give no answer before no card is told as healthy")
	flags.DurationVar(&cfg.Heartbeat, "heartbeat", time.Minute, "after how long the resource is written at the latest: whole seconds, 1s to 1h")
	flags.Int64Var(&cfg.StepMiB, "memory-step-mib", 256, "by how much the free memory of a card changes before that is written, in MiB …")
	flags.Int64Var(&cfg.StepPercent, "memory-step-percent", 2, "… or in % of the card's memory, whichever is more")
	timeout := flags.Duration("request-timeout", 10*time.Second, "how long a request to the API server may take")
	says := flags.Bool("version", false, "say what it was built from, a version and a commit, and end")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q: want flags only", flags.Args())
	}
	build, commit := cmp.Or(version, "unknown"), cmp.Or(revision, "unknown")
	if *says {
		_, err := fmt.Fprintf(stdout, "berth-scv %s %s\n", build, commit)
		return err
	}
	if node == "" {
		return errors.New("no node: give --node, or NODE_NAME")
	}
	if *timeout <= 0 {
		return fmt.Errorf("--request-timeout %v: want more than 0", *timeout)
	}

	config, err := rest.InClusterConfig()
	if *kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", *kubeconfig)
	}
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	config.UserAgent = "berth-scv"
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client of the API server: %w", err)
	}
	registry := prometheus.NewRegistry()
	if err := errors.Join(registry.Register(collectors.NewGoCollector()), registry.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	cfg.Log, cfg.Metrics = slog.New(slog.NewTextHandler(stderr, nil)), registry
	cfg.Writer = resource.New(client, node, *timeout, cfg.Log)
	c, err := collector.New(cfg)
	if err != nil {
		return err
	}

	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	server := &http.Server{Handler: handler(c, registry), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel() // without its port it is no use: whoever looks after it would not see it
		served <- server.Serve(l)
	}()
	cfg.Log.Info("collecting", "node", node, "http", l.Addr().String(), "build", build, "commit", commit)
	c.Run(ctx)
	if err := server.Close(); err != nil {
		return fmt.Errorf("stop serving: %w", err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}

// handler serves the health of a Collector and metrics.
func handler(c *collector.Collector, metrics prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if err := c.Healthy(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	return mux
}
