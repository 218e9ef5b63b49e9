package roles

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/secureport"
)

// The checks that kube-scheduler has.
const (
	checkElection = "leaderElection"
	checkShutdown = "shutdown"
	checkSynced   = "sched-handler-sync"
)

// serveOpsPort serves the operators' endpoints as kube-scheduler does, until ctx ends.
func (e *env) serveOpsPort(ctx context.Context, port *secureport.Port) error {
	bounded := rpc.Bound(port.Listener(), rpc.Bounds{Name: "operators", All: e.Connections, Each: e.OfOneAddress, Paced: true, Metrics: e.measured.common})
	cfg := e.opsConfig()
	cfg.Healthz = e.ops.elects
	cfg.Checks = func() []rpc.Check { return e.ops.checksInPlace(ctx) }
	path, slis, observe := secureport.SLIs()
	cfg.More[path] = slis
	cfg.ObserveHealth = func(r *http.Request, endpoint string, c rpc.Check) {
		observe(r.Context(), endpoint, c.Name, c.Err == nil)
	}
	return e.servePort(ctx, port, bounded, cfg)
}

// servePort serves what cfg says at an open port, of which l is the listener, to those who may, until ctx ends.
func (c *Common) servePort(ctx context.Context, port *secureport.Port, l net.Listener, cfg rpc.OpsConfig) error {
	port.Log = slog.New(rpc.LibraryLog(c.Log))
	opened := make(chan error, 1)
	go func() { opened <- port.Open(ctx) }() // it ends with the API server's answer, or the process
	select {
	case <-ctx.Done():
		return l.Close()
	case err := <-opened:
		if err != nil {
			_ = l.Close() // the error before is the one to tell
			return err
		}
	}
	c.Log.Info("serving metrics and readiness", "address", l.Addr().String(), "tls", true, "guarded", true)
	cfg.Name, cfg.Structured, cfg.Streams = secureport.Component, secureport.Structured(c.Flags), port.Streams()
	cfg.AdmitCaller, cfg.Open = port.Admit, port.IsOpen
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		port.Run(ctx)
		return nil
	})
	g.Go(func() error { return rpc.ServeOps(ctx, tls.NewListener(l, port.TLS()), cfg) })
	return g.Wait()
}

// checkPeers is why a process with peers is not ready while it waits for so many of them that etcd can begin.
const checkPeers = "etcd-peers"

var errFewPeers = errors.New("a majority of the peers' etcds is not there yet")

// serveEarly serves the operators' endpoints while etcd waits for others, until stop is called: that may take longer than a kubelet gives what is not alive. What there is to measure comes later.
func (c *Common) serveEarly(ctx context.Context) (stop func(), err error) {
	port, err := c.OpsPort.Listen()
	if port == nil || err != nil {
		return func() {}, err
	}
	ctx, end := context.WithCancel(ctx)
	served := make(chan struct{})
	started := time.Now()
	go func() {
		defer close(served)
		err := c.servePort(ctx, port, rpc.Bound(port.Listener(), rpc.Bounds{Name: "operators", All: c.Connections, Each: c.OfOneAddress, Paced: true}), rpc.OpsConfig{
			Log: c.Log, Metrics: prometheus.NewRegistry(), Flags: c.Flags,
			Checks: func() []rpc.Check { return []rpc.Check{{Name: checkPeers, Err: errFewPeers}} },
			Status: func() [][2]string { return [][2]string{{"Started", started.UTC().Format(time.UnixDate)}} },
		})
		if err != nil && ctx.Err() == nil {
			c.Log.Warn("metrics and readiness are not served before etcd", "err", err)
		}
	}()
	return func() {
		end()
		<-served
		c.OpsPort.Serving.Listener = nil // it listens anew
	}, nil
}

// errEnding is why a process that ends is not ready.
var errEnding = errors.New("process is shutting down")

// elects has kube-scheduler's check of its election, if there is one. A Lease that is held and not renewed is not acted upon, for Berth's claim on it ends by Berth's own clock; but if nobody even tries it,
// the process stands still, and is to be begun anew.
func (o *operations) elects() []rpc.Check {
	if !o.shares {
		return nil
	}
	check := rpc.Check{Name: checkElection}
	for _, m := range o.members {
		if m.elects != nil {
			check.Err = errors.Join(check.Err, m.elects())
		}
	}
	return []rpc.Check{check}
}

// checksInPlace are kube-scheduler's checks, and one of each member. Who stands by, for another scheduler holds the Lease, is as ready as a kube-scheduler
// that stands by. What has been followed once is synced, as with kube-scheduler; whether it still is, the member's check says.
func (o *operations) checksInPlace(ctx context.Context) []rpc.Check {
	shutdown, synced := rpc.Check{Name: checkShutdown}, rpc.Check{Name: checkSynced}
	if ctx.Err() != nil {
		shutdown.Err = errEnding
	}
	var members []rpc.Check
	for _, m := range o.members {
		does := m.available
		if does == nil {
			does = m.ready
		}
		err := does()
		members = append(members, rpc.Check{Name: m.name, Err: err})
		if m.role.role != coord.RoleBinder {
			continue
		}
		if err == nil {
			o.synced.Store(true)
		}
		if !o.synced.Load() {
			synced.Err = err
		}
	}
	return slices.Concat(o.elects(), []rpc.Check{shutdown, synced}, members)
}
