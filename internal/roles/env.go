package roles

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	goruntime "runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/berth-scheduler/berth/internal/certs"
	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/member"
	"github.com/berth-scheduler/berth/internal/replica"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/secureport"
	"github.com/berth-scheduler/berth/internal/trace"
)

// Common is what every role needs to be told.
type Common struct {
	ID            string          // the member's id; several roles of one process append their role
	Listen        string          // where to serve: host:port; port 0 picks one
	Advertise     string          // host, or host:port, under which others reach it; "" means Listen's
	EtcdEndpoints []string        // required but for All, which embeds an etcd when it is empty
	embedded      *coord.Embedded // that one
	peer          *certs.Source   // who this process is to others that have it too; nil: none has
	EtcdPrefix    string          // of all keys; "" means /berth/
	EtcdOwned     bool            // etcd is this Berth's alone, as an embedded one is: it may be compacted, and ask who its users are
	EtcdLook      time.Duration   // how often etcd is asked how full it is; 0 means 10 s
	OpsListen     string          // where to serve the operators' endpoints over HTTP, with TLS if there is any; "" means nowhere
	OpsAccess     Access          // who may get them
	// OpsPort is, in kube-scheduler's place, where and to whom the operators' endpoints are served, instead of both of these. Nil: Berth is in its own.
	OpsPort *secureport.Options
	// DisabledMetrics are the names of metrics that are not served.
	DisabledMetrics []string
	Profiling       bool // and /debug/pprof/, and /debug/flags/v
	// ContentionProfiling says that the profiles tell of goroutines that wait for each other, if they are served.
	ContentionProfiling bool
	// SetVerbosity sets how much the process logs; nil: it cannot be set.
	SetVerbosity func(value string) (string, error)
	Flags        map[string]string // what the process was told, for /flagz; nothing secret
	TLS          certs.Files       // who this process is, and the authorities of all others; the zero value is plaintext
	EtcdTLS      certs.Files       // of https endpoints; the zero value is the system's authorities and no client certificate
	LeaseTTL     time.Duration
	Connections  int             // at a time of each listener that people may reach; 0 means rpc.DefaultConnections
	OfOneAddress int             // of these; 0 means rpc.DefaultConnectionsOfOne
	Trace        *trace.Provider // nil: none
	Log          *slog.Logger
}

// env is what the roles of one process share.
type env struct {
	Common
	net      rpc.Network
	certs    *certs.Source // nil: plaintext
	rpc      rpc.Config
	clients  *rpc.Clients
	coord    *coord.Client
	measured *memberMetrics
	hosted   sync.Map      // measures, by the scheduler name of the profile, or the name of the service behind hostedService
	etcd     *certs.Source // nil: plaintext, or the system's authorities
	ops      *operations   // complete before serving begins
	filling  *etcdWatch    // of processes with binders or gateways, otherwise nil
	drain    func()        // begins the end of the process; nil: several roles share it
}

// peersRequest bounds requests to an etcd of several embedded ones: what was under way to the one that led, and died, is lost, and asked again.
const peersRequest = 2 * time.Second

// withEnv connects what roles share, runs them, and closes it after them. The role is the one that others know the process by.
func withEnv(ctx context.Context, c Common, role coord.Role, network rpc.Network, run func(ctx context.Context, e *env, g *errgroup.Group) error) error {
	if len(c.EtcdEndpoints) == 0 && c.embedded == nil {
		return errors.New("etcd endpoints: none; name at least one")
	}
	if c.Profiling && c.ContentionProfiling {
		goruntime.SetBlockProfileRate(1) // as kube-scheduler does
	}
	measured := newMemberMetrics()
	measured.disabled = c.DisabledMetrics
	measured.common.MustRegister(buildInfo(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if c.OpsPort != nil {
		measured.libraries = inPlaceMetrics
		measured.common.MustRegister(kubeBuildInfo(), collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(collectors.MetricsAll)))
	} else {
		measured.common.MustRegister(collectors.NewGoCollector())
	}
	e := &env{Common: c, net: network, measured: measured, ops: newOperations(c)}
	var err error
	if c.TLS != (certs.Files{}) {
		if e.certs, err = certs.Open(c.TLS, string(role), c.Log); err != nil {
			return fmt.Errorf("read TLS files: %w", err)
		}
	}
	e.rpc = rpc.Config{Net: network, Log: c.Log, Metrics: measured.common, Trace: c.Trace.TracerProvider(), Turns: rpc.NewTurns(0)}
	if network == rpc.TCP() {
		e.rpc.TLS = e.tls(role)
	}
	e.clients = rpc.NewClients(e.rpc)
	defer e.clients.Close()
	etcd := coord.Config{Endpoints: c.EtcdEndpoints, Embedded: c.embedded, Prefix: c.EtcdPrefix, Role: role, Log: c.Log}
	if c.embedded != nil {
		etcd.Role = "" // it has no users
	}
	if c.peer != nil {
		etcd.RequestTimeout = peersRequest
	}
	if c.EtcdTLS != (certs.Files{}) {
		if e.etcd, err = certs.Open(c.EtcdTLS, "", c.Log); err != nil {
			return fmt.Errorf("read TLS files of etcd: %w", err)
		}
		etcd.Credentials = e.etcd.Credentials()
	}
	if e.coord, err = coord.Connect(etcd); err != nil {
		return err
	}
	defer e.coord.Close()

	if err := registerExpiry(measured.common, e.certs, e.etcd, c.peer); err != nil {
		return err
	}

	ctx, end := context.WithCancel(ctx)
	defer end()
	if network == rpc.TCP() { // the process has one role
		e.drain = func() {
			c.Log.Info("asked to drain", "id", c.ID)
			end()
		}
	}
	var port *secureport.Port
	if c.OpsPort != nil {
		if port, err = c.OpsPort.Listen(); err != nil {
			return fmt.Errorf("listen for operators: %w", err)
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	if err := run(ctx, e, g); err != nil {
		g.Go(func() error { return err })
		if port != nil {
			_ = port.Listener().Close() // the error before is the one to tell
		}
	} else if port != nil {
		g.Go(func() error { return e.serveOpsPort(ctx, port) })
	} else if c.OpsListen != "" {
		g.Go(func() error { return e.serveOps(ctx) })
	}
	return g.Wait()
}

// tls returns how a server of a role, and the clients of its process, prove who they are; nil without certificates.
func (e *env) tls(server coord.Role) *rpc.TLS {
	if e.certs == nil {
		return nil
	}
	return &rpc.TLS{
		Server: e.certs.Server(server == coord.RoleGateway), // people call it, without certificates
		Client: credentials.NewTLS(e.certs.Client()),
		Role:   certs.PeerRole, Servers: serversOf(),
	}
}

// metrics is where one member registers its metrics.
func (e *env) metrics(id string) prometheus.Registerer { return e.measured.of(id) }

// newReplica starts a replica that follows the active binder.
func (e *env) newReplica(ctx context.Context, g *errgroup.Group) (*replica.Replica, error) {
	r, err := replica.New(replica.Config{
		Member: e.ID, Leaders: e.coord, Conns: e.clients, Log: e.Log, Metrics: e.measured.common,
	})
	if err != nil {
		return nil, err
	}
	if err := registerShards(e.measured.common, r); err != nil {
		return nil, err
	}
	g.Go(func() error { return r.Run(ctx) })
	return r, nil
}

// role is one role of a process, as others see it.
type role struct {
	role     coord.Role
	id       string
	address  string // as advertised
	listener net.Listener
	register func(grpc.ServiceRegistrar)
	ready    func() error
	// available returns why the member does not do its part, which may be to stand by; nil means it is as ready.
	available func() error
	// elects is kube-scheduler's check of its election, of a binder that shares names; nil: there is none.
	elects  func() error
	version func() cluster.Version
	head    func() cluster.Version
	digest  func() uint64
	options []rpc.Option
}

// listen opens the role's listener.
func (e *env) listen(r *role, address string) error {
	l, err := e.net.Listen(address)
	if err != nil {
		return fmt.Errorf("listen for %s: %w", r.role, err)
	}
	if e.Advertise != "" {
		address = e.Advertise
	}
	r.address = e.net.Advertise(l, address)
	if r.role == coord.RoleGateway { // which people call
		r.listener = e.bound(l, string(r.role))
	} else {
		r.listener = e.boundInner(l, string(r.role))
	}
	return nil
}

// innerConnections is how many connections other roles may have to one: thousands of workers follow a binder, and all of them may be
// behind one address.
const innerConnections = 4096

// boundInner bounds the connections of a listener for other roles. They show certificates; where they cannot, nobody knows which
// of them is one, and those that are there stay.
func (e *env) boundInner(l net.Listener, name string) net.Listener {
	if l.Addr().Network() != "tcp" {
		return l
	}
	return rpc.Bound(l, rpc.Bounds{Name: name, All: max(innerConnections, e.Connections), Each: -1, Keep: e.certs == nil, Metrics: e.measured.common})
}

// bound bounds the connections of a listener for people. In memory there is nobody else.
func (e *env) bound(l net.Listener, name string) net.Listener {
	if l.Addr().Network() != "tcp" {
		return l
	}
	return rpc.Bound(l, rpc.Bounds{Name: name, All: e.Connections, Each: e.OfOneAddress, Metrics: e.measured.common})
}

// listenHTTP listens for people who speak HTTP, at an address of TCP.
func (e *env) listenHTTP(address, name string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	l = rpc.Bound(l, rpc.Bounds{Name: name, All: e.Connections, Each: e.OfOneAddress, Paced: true, Metrics: e.measured.common})
	if e.certs != nil {
		l = tls.NewListener(l, e.certs.Server(true)) // kubelets probe without a certificate, and people show tokens
	}
	return l, nil
}

// follows fills in what a role with a replica says of itself.
func (r *role) follows(rep *replica.Replica) {
	r.version, r.head, r.digest = rep.Version, rep.Head, rep.Digest
}

// serve serves the role until ctx ends, and keeps it registered as a member and its health true.
func (e *env) serve(ctx context.Context, g *errgroup.Group, r role) error {
	m, err := member.New(member.Config{
		ID: r.id, Role: string(r.role), Version: r.version, Head: r.head, Digest: r.digest, Ready: r.ready, Available: r.available,
		Drain: e.drain, Build: member.Build(), Started: e.ops.started,
	})
	if err != nil {
		return err
	}
	server := rpc.NewServer(e.rpc, string(r.role), append(r.options, rpc.WithCallers(callersAt(r.role)))...)
	r.register(server.Registrar())
	m.Register(server.Registrar())
	e.ops.add(&r)
	if err := registerReady(e.metrics(r.id), &r); err != nil {
		return err
	}
	e.Log.Info("serving", "role", r.role, "id", r.id, "address", r.address)
	g.Go(func() error { return server.Serve(ctx, r.listener) })
	g.Go(func() error { return e.keepHealth(ctx, server.Health(), r) })
	g.Go(func() error { return e.keepRegistered(ctx, r) })
	return nil
}

// availableService is the name, in gRPC health, under which a role says that it does its part: that is what a rollout waits
// for. A binder that stands by is available but not ready.
const availableService = "available"

// keepHealth publishes readiness by gRPC health, and whether the role is available.
func (e *env) keepHealth(ctx context.Context, h *rpc.Health, r role) error {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	var last string
	for {
		err := r.ready()
		why := ""
		if err != nil {
			why = err.Error()
		}
		h.Set("", err == nil, why)
		available := err
		if r.available != nil {
			available = r.available()
		}
		unavailable := ""
		if available != nil {
			unavailable = available.Error()
		}
		h.Set(availableService, available == nil, unavailable)
		if why != last {
			if err == nil {
				e.Log.Info("ready", "id", r.id)
			} else {
				e.Log.Info("not ready", "id", r.id, "why", why)
			}
			last = why
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// keepRegistered holds the member's key under a lease, and takes a new lease whenever one is lost.
func (e *env) keepRegistered(ctx context.Context, r role) error {
	for ctx.Err() == nil {
		s, err := e.coord.NewSession(ctx, e.LeaseTTL)
		if err != nil {
			continue // only when ctx ends
		}
		err = s.Register(ctx, coord.Member{Role: r.role, ID: r.id, Address: r.address})
		if err == nil {
			select {
			case <-ctx.Done():
			case <-s.Done():
				e.Log.Warn("membership lease lost, registering again", "id", r.id)
			}
		} else if ctx.Err() == nil {
			e.Log.Warn("member not registered, trying again", "id", r.id, "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		if err := s.Close(closing); err != nil {
			e.Log.Warn("session not closed; its lease will expire", "id", r.id, "err", err)
		}
		cancel()
	}
	return nil
}
