package roles

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-scheduler/berth/gateway"
	"github.com/berth-scheduler/berth/internal/access"
	"github.com/berth-scheduler/berth/internal/certs"
	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/internal/member"
	"github.com/berth-scheduler/berth/internal/replica"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// operations is what a process says of itself to operators.
type operations struct {
	started time.Time
	members []named
	config  map[string]any // of /configz, by component
	own     map[string]any // of it, Berth's own settings, by what they are of
	shares  bool           // scheduler names with others, by a Lease
	// resources tells what pods request, of a binder with an API server; nil: there is none.
	resources http.Handler
	synced    atomic.Bool // the cluster has been followed, in kube-scheduler's place
}

// named is a member under the name of its check: its role, with a number from the second of a role on.
type named struct {
	name string
	*role
}

// The components of /configz.
const (
	configOfScheduler = "componentconfig" // kube-scheduler's name for it
	configOfBerth     = "berth.dev"
)

func newOperations(c Common) *operations {
	own := map[string]any{"process": map[string]any{
		"id": c.ID, "etcdPrefix": c.EtcdPrefix, "leaseTTL": c.LeaseTTL.String(), "profiling": c.Profiling, "tls": c.TLS.Cert != "",
	}}
	return &operations{started: time.Now(), own: own, config: map[string]any{configOfBerth: own}}
}

// add makes a member part of readiness and status.
func (o *operations) add(r *role) {
	n := 0
	for _, m := range o.members {
		if m.role.role == r.role {
			n++
		}
	}
	name := string(r.role)
	if n > 0 {
		name = fmt.Sprintf("%s-%d", name, n)
	}
	o.members = append(o.members, named{name, r})
}

// sayBinder makes a binder's configuration part of what /configz says.
func (o *operations) sayBinder(cl Cluster) {
	if cl.Config != nil {
		o.config[configOfScheduler] = cl.Config
	}
	o.own["binder"] = map[string]any{
		"source": cl.Source, "kubeQPS": cl.KubeQPS, "kubeBurst": cl.KubeBurst, "shards": cl.Settings.Shards, "seed": cl.Settings.Seed,
		"maxUnschedulableSeconds": cl.Settings.MaxUnschedulableSeconds, "preemptionSeesVolumes": cl.Settings.PreemptionSeesVolumes,
	}
	if cl.Election != nil {
		o.shares = true
		o.own["binder"].(map[string]any)["sharedNames"] = cl.Election.Names
	}
	if len(cl.PluginServices) > 0 {
		o.own["binder"].(map[string]any)["pluginServices"] = withoutArguments(cl.PluginServices)
	}
}

// withoutArguments returns plugin services with the programs that Berth runs, and without their arguments: secrets may be among these.
func withoutArguments(services []config.PluginService) []config.PluginService {
	services = slices.Clone(services)
	for i := range services {
		if run := services[i].Run; run != nil {
			services[i].Run = &config.PluginRun{Command: run.Command[:1], Memory: run.Memory}
		}
	}
	return services
}

// sayGateway does the same for a gateway. Files of tokens are named, never read.
func (o *operations) sayGateway(p Public) {
	o.own["gateway"] = map[string]any{
		"authenticate": p.Access.By, "tokenFile": p.Access.TokenFile, "callerQPS": p.Access.Rate, "callerBurst": p.Access.Burst, "http": p.HTTPListen,
		"allowedHosts": p.AllowedHosts, "audiences": p.Access.Audiences,
	}
}

func (o *operations) checks() []rpc.Check {
	checks := make([]rpc.Check, len(o.members))
	for i, m := range o.members {
		checks[i] = rpc.Check{Name: m.name, Err: m.ready()}
	}
	return checks
}

// status is what /statusz says, as of now.
func (o *operations) status(now time.Time) [][2]string {
	build, revision := cmp.Or(member.Build(), "unknown"), cmp.Or(member.Revision(), "unknown")
	lines := [][2]string{
		{"Started", o.started.UTC().Format(time.UnixDate)}, {"Up", now.Sub(o.started).Truncate(time.Second).String()},
		{"Go version", runtime.Version()}, {"Binary version", build}, {"Revision", revision},
	}
	for _, m := range o.members {
		state := "ready"
		if err := m.ready(); err != nil {
			state = "not ready: " + err.Error()
		}
		v := m.version()
		lines = append(lines, [2]string{"Member " + m.name, fmt.Sprintf("id %s, at %s, epoch %d, version %v, head %v, %s", m.id, m.address, v.Epoch, v, m.head(), state)})
	}
	return lines
}

// serveOps serves the operators' endpoints until ctx ends.
func (e *env) serveOps(ctx context.Context) error {
	admit, err := e.admitOps()
	if err != nil {
		return fmt.Errorf("guard the operators' endpoints: %w", err)
	}
	l, err := e.listenHTTP(e.OpsListen, "operators")
	if err != nil {
		return fmt.Errorf("listen for operators: %w", err)
	}
	e.Log.Info("serving metrics and readiness", "address", l.Addr().String(), "tls", e.certs != nil, "guarded", admit != nil)
	cfg := e.opsConfig()
	if at, ok := l.Addr().(*net.TCPAddr); admit == nil && !(ok && at.IP.IsLoopback()) { // what each pod requests is not for everybody
		delete(cfg.More, podResourcesPath)
	}
	cfg.Checks, cfg.Admit, cfg.AllowedHost = e.ops.checks, admit, e.opsHost
	return rpc.ServeOps(ctx, l, cfg)
}

// opsConfig is what the operators' endpoints say, to whomever.
func (e *env) opsConfig() rpc.OpsConfig {
	more := make(map[string]http.Handler)
	if e.ops.resources != nil {
		more[podResourcesPath] = e.ops.resources
	}
	return rpc.OpsConfig{
		More: more, Log: e.Log, Metrics: e.measured, Config: e.ops.config, Flags: e.Flags, Status: func() [][2]string { return e.ops.status(time.Now()) },
		Profiling: e.Profiling, SetVerbosity: e.SetVerbosity, PluginMetrics: e.pluginMetrics,
	}
}

// opsHost reports whether the operators' endpoints may be asked for by a name: those of the JSON listener, and names that nobody can
// have in the DNS of all, where a page of somebody else's would be: without a dot, as in compose, or of a cluster's own services.
func (e *env) opsHost(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host != "" && !strings.Contains(host, ".") {
		return true
	}
	for _, end := range []string{".svc", ".cluster.local", ".internal", ".local"} {
		if strings.HasSuffix(host, end) {
			return true
		}
	}
	return gateway.AllowedHost(func() []string { return e.hosts(Public{HTTPListen: e.OpsListen}) })(host)
}

// admitOps returns what lets in callers of the operators' endpoints; nil lets in everyone.
func (e *env) admitOps() (func(*http.Request) error, error) {
	if e.OpsAccess.By == AccessNone || e.OpsAccess.By == "" && e.certs == nil {
		return nil, nil
	}
	guard, err := e.newGuard(e.OpsAccess, "operators")
	if err != nil {
		return nil, err
	}
	return access.Paths{Guard: guard}.Admit, nil
}

// readiness tells whether a member is ready.
type readiness struct {
	desc *prometheus.Desc
	of   *role
}

func registerReady(to prometheus.Registerer, r *role) error {
	return to.Register(&readiness{prometheus.NewDesc("berth_member_ready",
		"Whether the member is ready, by its role: 1 or 0. Of binders, the active one is.", []string{"role"}, nil), r})
}

func (m *readiness) Describe(out chan<- *prometheus.Desc) { out <- m.desc }

func (m *readiness) Collect(out chan<- prometheus.Metric) {
	value := 1.0
	if m.of.ready() != nil {
		value = 0
	}
	out <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, value, string(m.of.role))
}

// registerShards registers how many shards there are, as a replica knows.
func registerShards(to prometheus.Registerer, r *replica.Replica) error {
	return to.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "berth_replica_shards", Help: "Number of shards that the queue is cut into, as the log says; 0 before the first snapshot.",
	}, func() (shards float64) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = r.Read(ctx, cluster.Version{}, func(st *cluster.State) error { // fails without a snapshot
			shards = float64(st.Settings.Shards)
			return nil
		})
		return shards
	}))
}

// staleness tells whether the file of tokens of a listener's callers cannot be used as it is now.
type staleness struct {
	desc     *prometheus.Desc
	listener string
	stale    func() bool
}

func registerStale(to prometheus.Registerer, listener string, stale func() bool) error {
	return to.Register(&staleness{prometheus.NewDesc("berth_token_file_unusable",
		"Whether the file of tokens has changed and cannot be used, so that those of before hold, by listener: 1 or 0.", []string{"listener"}, nil), listener, stale})
}

func (s *staleness) Describe(out chan<- *prometheus.Desc) { out <- s.desc }

func (s *staleness) Collect(out chan<- prometheus.Metric) {
	value := 0.0
	if s.stale() {
		value = 1
	}
	out <- prometheus.MustNewConstMetric(s.desc, prometheus.GaugeValue, value, s.listener)
}

// expiry tells when certificates end.
type expiry struct {
	desc              *prometheus.Desc
	roles, etcd, peer *certs.Source // nil: none
}

// registerExpiry registers when certificates end: those for other roles, for etcd, and for peers.
func registerExpiry(to prometheus.Registerer, roles, etcd, peer *certs.Source) error {
	return to.Register(&expiry{prometheus.NewDesc("berth_certificate_expiry_timestamp_seconds",
		"When a certificate ends, in seconds since 1970: the process's own, the last authority of roles, and the same two towards etcd, and towards peers.",
		[]string{"certificate"}, nil), roles, etcd, peer})
}

func (e *expiry) Describe(out chan<- *prometheus.Desc) { out <- e.desc }

func (e *expiry) Collect(out chan<- prometheus.Metric) {
	for prefix, source := range map[string]*certs.Source{"": e.roles, "etcd-": e.etcd, "peer-": e.peer} {
		if source == nil {
			continue
		}
		own, authorities := source.Until()
		for name, at := range map[string]time.Time{"own": own, "authorities": authorities} {
			if !at.IsZero() {
				out <- prometheus.MustNewConstMetric(e.desc, prometheus.GaugeValue, float64(at.Unix()), prefix+name)
			}
		}
	}
}
