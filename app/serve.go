package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-scheduler/berth/internal/command"
	"github.com/berth-scheduler/berth/internal/pluginenv"
	"github.com/berth-scheduler/berth/internal/pluginproto"
	"github.com/berth-scheduler/berth/plugin"
)

// scrapes are how many requests for metrics are answered at a time, and scrapeWithin is how long one may take.
const (
	scrapes      = 4
	scrapeWithin = 10 * time.Second
)

// serveFlags are those of the command that serves a service.
type serveFlags struct {
	listen, kubeconfig, metrics string

	tls       plugin.TLSFiles
	plaintext bool
	log       command.LogFlags
}

// serveCommand is the command that serves a service, for Berth, which runs it, or for one elsewhere.
func serveCommand(all *services) *cobra.Command {
	var f serveFlags
	c := &cobra.Command{
		Use:   "serve NAME",
		Short: "Serve a plugin service that is compiled into this program",
		Long: "Serve serves a plugin service that is compiled in, until a signal ends it, for a Berth that reaches it at --listen. Berth does it\n" +
			"itself for services of which its --config enables a plugin: without --listen, it serves where Berth says in the environment.",
		Example: "  berth plugin serve gpu --listen 127.0.0.1:7200 --kubeconfig ~/.kube/config\n" +
			"  berth plugin serve gpu --listen :7200 --tls-cert certs/plugin.crt --tls-key certs/plugin.key --tls-ca certs/ca.crt",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s := all.named(args[0])
			if s == nil {
				return fmt.Errorf("%q: no service of that name is compiled in: want one of %s", args[0], strings.Join(all.names(), ", "))
			}
			if f.listen != "" {
				return f.serve(cmd.Context(), s)
			}
			if os.Getenv(pluginenv.Socket) == "" {
				return errors.New("--listen: want where to serve, as host:port or unix:///path: this process is none that Berth runs")
			}
			ctx, end := f.supervised(cmd.Context(), cmd.InOrStdin())
			defer end()
			return f.serve(ctx, s)
		},
	}
	fs := c.Flags()
	fs.StringVar(&f.listen, "listen", "", "where to serve, as host:port or unix:///path")
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "how to reach the API server (default: as a pod in a cluster)")
	fs.StringVar(&f.tls.Cert, "tls-cert", "", "a file with this process's certificate, as berth certs --role plugin makes it (default: plaintext)")
	fs.StringVar(&f.tls.Key, "tls-key", "", "the file with its private key")
	fs.StringVar(&f.tls.CA, "tls-ca", "", "a file with the authorities of callers' certificates")
	fs.BoolVar(&f.plaintext, "insecure-plaintext", false, "serve without TLS on addresses that are not loopback, too")
	fs.StringVar(&f.metrics, "metrics-listen", "", "where to serve /metrics over HTTP in plaintext, as host:port; port 0 picks a free one (default: nowhere)")
	f.log.Add(fs)
	return c
}

func (all *services) names() (names []string) {
	for _, s := range all.list {
		names = append(names, s.Name)
	}
	return names
}

// supervised takes what Berth says in the environment, which runs this process. The context ends with Berth, too: standard input ends then.
func (f *serveFlags) supervised(ctx context.Context, stdin io.Reader) (_ context.Context, end func()) {
	if socket := os.Getenv(pluginenv.MetricsSocket); f.metrics == "" && socket != "" {
		f.metrics = "unix://" + socket
	}
	f.kubeconfig = cmp.Or(f.kubeconfig, os.Getenv(pluginenv.Kubeconfig))
	ctx, end = context.WithCancel(ctx)
	go func() { // nothing ends a read of standard input: the process does
		_, _ = io.Copy(io.Discard, stdin)
		end()
	}()
	return ctx, end
}

// serve serves a service until ctx ends.
func (f *serveFlags) serve(ctx context.Context, s *Service) error {
	log, _, err := f.log.Open()
	if err != nil {
		return err
	}
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	var l net.Listener // nil: nobody wants metrics
	if f.metrics != "" {
		if l, err = f.listenMetrics(); err != nil {
			return err
		}
		log.Info("serving metrics", "address", l.Addr().String())
	}
	var also func(context.Context) error
	if l != nil {
		also = func(ctx context.Context) error { return serveMetrics(ctx, l, metrics, log) }
	}
	return s.serve(ctx, Environment{Kubeconfig: reach(f.kubeconfig), Log: log, Metrics: metrics}, plugin.Config{Listen: f.listen, TLS: f.tls, InsecurePlaintext: f.plaintext}, nil, also)
}

// serve serves the service until ctx ends, where cfg says or, unless that is nil, listen does. What runs beside it, which also may be, begins before and ends behind it, for what is taken back at the end may need that.
func (s *Service) serve(ctx context.Context, of Environment, cfg plugin.Config, listen func() (net.Listener, error), also func(context.Context) error) error {
	made, err := s.make(of)
	if err != nil {
		return err
	}
	if listen != nil { // now, and not before: nobody is kept waiting by one that answers nobody
		if cfg.Listener, err = listen(); err != nil {
			return err
		}
	}
	g, serving := errgroup.WithContext(ctx)
	beside, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	if also != nil {
		g.Go(func() error { return also(beside) })
	}
	if made.Run != nil {
		g.Go(func() error {
			err := runs(beside, made.Run, of.Log)
			if beside.Err() != nil && errors.Is(err, context.Canceled) { // it has been told to end, and why, others say
				return nil
			}
			if err != nil && beside.Err() == nil { // now: the plugins may take their time to end
				of.Log.Error("what runs beside plugins has failed, and they are to end", "err", err)
			}
			return err
		})
	}
	g.Go(func() error {
		defer end()
		cfg.Plugins, cfg.Activator, cfg.Ready, cfg.Log = made.Plugins, made.Activator, made.Ready, of.Log
		return plugin.Serve(serving, cfg)
	})
	if err := g.Wait(); err != nil && (ctx.Err() == nil || !errors.Is(err, context.Canceled)) {
		return fmt.Errorf("compiled-in service %q: %w", s.Name, err)
	}
	return nil
}

// runs calls run. A panic is an error, also one of its error's methods: what else there is in the process goes on.
func runs(ctx context.Context, run func(context.Context) error, log *slog.Logger) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
			log.Error("what runs beside plugins has panicked", "err", fmt.Errorf("%w\n%s", err, debug.Stack()))
		}
	}()
	return pluginproto.FailureOf(run(ctx))
}

// listenMetrics listens for who wants metrics, in plaintext.
func (f *serveFlags) listenMetrics() (net.Listener, error) {
	if path, ok := strings.CutPrefix(f.metrics, "unix://"); ok {
		return net.Listen("unix", path)
	}
	l, err := net.Listen("tcp", f.metrics)
	if err != nil {
		return nil, fmt.Errorf("--metrics-listen: %w", err)
	}
	if at, ok := l.Addr().(*net.TCPAddr); ok && !at.IP.IsLoopback() && !f.plaintext {
		return nil, errors.Join(fmt.Errorf("--metrics-listen: %s is not a loopback address: want one, or --insecure-plaintext", at), l.Close())
	}
	return l, nil
}

// serveMetrics serves metrics until ctx ends.
func serveMetrics(ctx context.Context, l net.Listener, metrics prometheus.Gatherer, log *slog.Logger) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{MaxRequestsInFlight: scrapes}))
	server := &http.Server{Handler: mux, ReadTimeout: scrapeWithin, WriteTimeout: scrapeWithin, IdleTimeout: scrapeWithin, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn)}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics on %s: %w", l.Addr(), err)
	}
	return nil
}

// reach returns how to reach the API server: by a kubeconfig, or as a pod in a cluster.
func reach(kubeconfig string) func() (*rest.Config, error) {
	return func() (*rest.Config, error) {
		if kubeconfig != "" {
			return clientcmd.BuildConfigFromFlags("", kubeconfig)
		}
		cfg, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("there is no way to reach an API server: no --kubeconfig, and %w", err)
		}
		return cfg, nil
	}
}
