package roles

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
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
	Listener   net.Listener         // where it serves, and nobody else
	Kubeconfig string               // how to reach the API server; "": as a pod in a cluster
	Log        *slog.Logger         // never nil
	Metrics    *prometheus.Registry // what it measures
}

// inProcessEnds is how soon a service has to end when this process does: as soon as one that has a process of its own.
const inProcessEnds = 2 * time.Second

// serveInProcess serves a service in this process, in g until ctx ends, over a network that nobody else has, and returns the connection to it, which clients has. What ends by itself is begun anew.
func (e *env) serveInProcess(ctx context.Context, g *errgroup.Group, clients *rpc.Clients, network rpc.Network, name string, cl *Cluster) (grpc.ClientConnInterface, error) {
	serve, log := cl.InProcess[name], e.Log.With("service", name)
	if serve == nil {
		return nil, fmt.Errorf("it is to be served in this process, which has no service of that name")
	}
	conn, err := clients.Conn(name)
	if err != nil {
		return nil, err
	}
	once := func(ctx context.Context) error {
		l, err := network.Listen(name)
		if err != nil {
			return err
		}
		defer l.Close() // whatever becomes of it: it is listened there again
		metrics := prometheus.NewRegistry()
		e.hosted.Store(hostedService+name, registered{metrics})
		return serve(ctx, InProcessConfig{Listener: l, Kubeconfig: cl.Kubeconfig, Log: log, Metrics: metrics})
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		child.Again(ctx, log, once)
	}()
	g.Go(func() error {
		<-ctx.Done()
		late := time.NewTimer(inProcessEnds)
		defer late.Stop()
		select {
		case <-ended:
		case <-late.C: // one that hangs cannot be ended, and keeps nobody: this process ends, too
			log.Error("service does not end, and is left behind", "after", inProcessEnds)
		}
		return nil
	})
	return conn, nil
}

// registered is what plugins in this process measure.
type registered struct{ from prometheus.Gatherer }

func (m registered) get(context.Context) ([]byte, error) {
	families, err := m.from.Gather()
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
			return nil, err
		}
	}
	return text.Bytes(), nil
}
