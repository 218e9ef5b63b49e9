package roles

import (
	"context"
	"crypto/tls"
	"errors"

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
func (e *env) serveOpsPort(ctx context.Context) error {
	port, err := e.OpsPort.Open(ctx)
	if err != nil || port == nil {
		return err
	}
	l := rpc.Bound(port.Listener(), rpc.Bounds{Name: "operators", All: e.Connections, Each: e.OfOneAddress, Paced: true, Metrics: e.measured.common})
	e.Log.Info("serving metrics and readiness", "address", l.Addr().String(), "tls", true, "guarded", true)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		port.Run(ctx)
		return nil
	})
	g.Go(func() error {
		cfg := e.opsConfig()
		cfg.Name, cfg.Structured, cfg.Streams = secureport.Component, secureport.Structured(e.Flags), port.Streams()
		cfg.Admit, cfg.Open = port.Admit, port.Open
		cfg.Healthz = func() []rpc.Check { return []rpc.Check{{Name: checkElection}} }
		cfg.Checks = func() []rpc.Check { return e.ops.checksInPlace(ctx) }
		return rpc.ServeOps(ctx, tls.NewListener(l, port.TLS()), cfg)
	})
	return g.Wait()
}

// errEnding is why a process that ends is not ready.
var errEnding = errors.New("process is shutting down")

// checksInPlace are kube-scheduler's checks, and one of each member. Who stands by, for another scheduler holds the Lease, is as ready as a kube-scheduler
// that stands by. There is none of a Lease that is held and not renewed: Berth's claim on it ends by Berth's own clock.
func (o *operations) checksInPlace(ctx context.Context) []rpc.Check {
	checks := []rpc.Check{{Name: checkElection}, {Name: checkShutdown}, {Name: checkSynced}}
	if ctx.Err() != nil {
		checks[1].Err = errEnding
	}
	for _, m := range o.members {
		does := m.available
		if does == nil {
			does = m.ready
		}
		err := does()
		checks = append(checks, rpc.Check{Name: m.name, Err: err})
		if m.role.role == coord.RoleBinder && err != nil {
			checks[2].Err = err
		}
	}
	return checks
}
