package roles

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/berth-scheduler/berth/internal/child"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// InProcess serves a service that is compiled into the program, in this process, until ctx ends, and returns when all of it has ended. What goes wrong, panics too, it returns.
type InProcess func(ctx context.Context, of InProcessConfig) error

// InProcessConfig is what a service in this process is given.
type InProcessConfig struct {
	Listen     func() (net.Listener, error) // opens where it serves, and nobody else
	Kubeconfig string                       // how to reach the API server; "": as a pod in a cluster
	Log        *slog.Logger                 // never nil
	Metrics    prometheus.Registerer        // of what it measures
}

// inProcessEnds is how soon a service has to end when this process does: as soon as one that has a process of its own.
const inProcessEnds = 2 * time.Second

// serveInProcess serves a service in this process, in g until ctx ends, over a network that nobody else has, and returns the connection to it, which clients has. What ends by itself is begun anew. Nothing ends one that hangs but the end of this process: if it answers nobody any more, g fails.
func (e *env) serveInProcess(ctx context.Context, g *errgroup.Group, clients *rpc.Clients, network rpc.Network, name string, cl *Cluster) (grpc.ClientConnInterface, error) {
	serve, log := cl.InProcess[name], e.Log.With("service", name)
	if serve == nil {
		return nil, fmt.Errorf("it is to be served in this process, which has no service of that name")
	}
	conn, err := clients.Conn(name)
	if err != nil {
		return nil, err
	}
	silent := make(chan error, 1)
	once := func(ctx context.Context) error {
		var l net.Listener
		defer func() { // whatever becomes of it: it is listened there again
			if l != nil {
				_ = l.Close()
			}
		}()
		var asking sync.WaitGroup
		defer asking.Wait()
		watched, ends := context.WithCancel(ctx)
		defer ends()
		asking.Go(func() { // as long as it is served, and until it has ended: between that, it is silent for good reason
			if err := child.Silence(watched, alive(conn), 0); err != nil {
				silent <- err // the first is the last: it hangs
			}
		})
		registry := prometheus.NewRegistry()
		e.hosted.Store(hostedService+name, newRegistered(registry))
		return serve(ctx, InProcessConfig{
			Listen: func() (_ net.Listener, err error) {
				l, err = network.Listen(name)
				return l, err
			},
			Kubeconfig: cl.Kubeconfig, Log: log, Metrics: guardedRegisterer{registry},
		})
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		child.Again(ctx, log, "plugins in this process have ended, and are made anew", once)
	}()
	g.Go(func() error {
		select {
		case err := <-silent:
			return fmt.Errorf("plugin service %q, which is in this process: %w: another process is to go on", name, err)
		case <-ctx.Done():
		}
		late := time.NewTimer(inProcessEnds)
		defer late.Stop()
		select {
		case <-ended:
		case <-late.C: // this process ends, too
			log.Error("service does not end, and is left behind", "after", inProcessEnds)
		}
		return nil
	})
	return conn, nil
}

// guardedRegisterer registers collectors of foreign code: a registry calls them in goroutines of its own, where a panic would end the process.
type guardedRegisterer struct{ prometheus.Registerer }

func (r guardedRegisterer) Register(c prometheus.Collector) error {
	err := r.Registerer.Register(guardedCollector{c})
	if is := new(prometheus.AlreadyRegisteredError); errors.As(err, is) { // whoever asks for the one that there is wants that itself
		if there, guarded := is.ExistingCollector.(guardedCollector); guarded {
			return prometheus.AlreadyRegisteredError{ExistingCollector: there.Collector, NewCollector: c}
		}
	}
	return err
}

func (r guardedRegisterer) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}

func (r guardedRegisterer) Unregister(c prometheus.Collector) bool {
	return r.Registerer.Unregister(guardedCollector{c})
}

// guardedCollector measures nothing where a collector panics, and says so.
type guardedCollector struct{ prometheus.Collector }

func (c guardedCollector) Describe(out chan<- *prometheus.Desc) {
	defer func() {
		if p := recover(); p != nil {
			out <- prometheus.NewInvalidDesc(errCollector(p))
		}
	}()
	c.Collector.Describe(out)
}

func (c guardedCollector) Collect(out chan<- prometheus.Metric) {
	defer func() {
		if p := recover(); p != nil {
			out <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(errCollector(p)), errCollector(p))
		}
	}()
	c.Collector.Collect(out)
}

func errCollector(panicked any) error { return fmt.Errorf("a collector has panicked: %v", panicked) }

// registered is what plugins in this process measure. One who asks at a time is answered, and nobody waits for long: collectors may wait for plugins that hang.
type registered struct {
	from prometheus.Gatherer
	turn chan struct{} // has room for who asks
}

func newRegistered(from prometheus.Gatherer) *registered {
	return &registered{from, make(chan struct{}, 1)}
}

func (m *registered) get(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, hostedWithin)
	defer cancel()
	select {
	case m.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	type said struct {
		text []byte
		err  error
	}
	answer := make(chan said, 1)
	go func() { // one at most is left behind
		defer func() { <-m.turn }()
		defer func() { // functions of gauges are called here
			if p := recover(); p != nil {
				answer <- said{nil, errCollector(p)}
			}
		}()
		text, err := textOf(m.from)
		answer <- said{text, err}
	}()
	select {
	case is := <-answer:
		return is.text, is.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// textOf returns what is gathered, in Prometheus' text format, no more of it than a process with plugins may say.
func textOf(from prometheus.Gatherer) ([]byte, error) {
	families, err := from.Gather()
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
			return nil, err
		}
		if text.Len() > hostedMost {
			return nil, fmt.Errorf("the plugins say more than %d bytes", hostedMost)
		}
	}
	return text.Bytes(), nil
}
