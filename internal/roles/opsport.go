package roles

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"slices"

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
	l := rpc.Bound(port.Listener(), rpc.Bounds{Name: "operators", All: e.Connections, Each: e.OfOneAddress, Paced: true, Metrics: e.measured.common})
	port.Log = slog.New(rpc.LibraryLog(e.Log))
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
	e.Log.Info("serving metrics and readiness", "address", l.Addr().String(), "tls", true, "guarded", true)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		port.Run(ctx)
		return nil
	})
	g.Go(func() error {
		cfg := e.opsConfig()
		cfg.Name, cfg.Structured, cfg.Streams = secureport.Component, secureport.Structured(e.Flags), port.Streams()
		cfg.AdmitCaller, cfg.Open = port.Admit, port.IsOpen
		path, slis, observe := secureport.SLIs()
		cfg.More[path] = slis
		cfg.ObserveHealth = func(r *http.Request, endpoint string, c rpc.Check) {
			observe(r.Context(), endpoint, c.Name, c.Err == nil)
		}
		cfg.Healthz = e.ops.elects
		cfg.Checks = func() []rpc.Check { return e.ops.checksInPlace(ctx) }
		return rpc.ServeOps(ctx, tls.NewListener(l, port.TLS()), cfg)
	})
	return g.Wait()
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
