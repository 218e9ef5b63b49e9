package roles

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	clientmetrics "k8s.io/client-go/tools/metrics"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/extender"
	"github.com/berth-scheduler/berth/internal/pluginhost"
	"github.com/berth-scheduler/berth/internal/replica"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/source/kube"
	"github.com/berth-scheduler/berth/services/binder"
	"github.com/berth-scheduler/berth/services/queue"
)

var rewrite = flag.Bool("rewrite", false, "write the list of metrics into docs/metrics.md")

// notOurs are kube-scheduler's metrics that Berth does not have.
var notOurs = []struct{ names, why string }{
	{"scheduler_batch_attempts_total scheduler_batch_cache_flushed_total scheduler_get_node_hint_duration_seconds scheduler_store_schedule_results_duration_seconds",
		"kube-scheduler's opportunistic batching, which its default configuration never uses. Berth's batches are `berth_queue_batch_size`"},
	{"scheduler_plugin_execution_duration_seconds scheduler_plugin_evaluation_total",
		"of compiled-in plugins they are at `/metrics/plugins/PROFILE`; what a service measures that Berth runs is at `/metrics/plugins/service/NAME`. A plugin of Berth's own is a few instructions per node of a column, not a call that could be timed. Calls to plugin services are `berth_plugin_service_call_seconds`"},
	{"scheduler_queueing_hint_execution_duration_seconds scheduler_event_handling_duration_seconds scheduler_inflight_events",
		"unschedulable pods are judged per signature, many changes at a time, before the shard pops"},
	{"scheduler_goroutines",
		"there are no goroutines per pod; what is under way is `berth_binder_lane_depth`"},
	{"scheduler_async_api_call_execution_total scheduler_async_api_call_execution_duration_seconds scheduler_pending_async_api_calls",
		"kube-scheduler has them behind a feature gate that is off. Writes are `berth_kube_request_duration_seconds`"},
	{"scheduler_resourceclaim_creates_total scheduler_dra_bindingconditions_allocations_total scheduler_dra_bindingconditions_wait_duration_seconds",
		"DynamicResources is not built"},
	{"scheduler_volume_binder_cache_requests_total",
		"kube-scheduler's VolumeBinding has a cache of its own of what it has assumed of volumes and claims, and counts what is done to it. Berth has no such cache: what was chosen is in the ledger"},
	{"authenticated_user_requests authentication_attempts authentication_duration_seconds authorization_attempts_total authorization_duration_seconds",
		"who asks is found out as in kube-scheduler, but not by the handlers of an API server, which count that"},
	{"informer_*", "Berth follows the API server without informers"},
	{"version_info", "Berth does as one release, whatever versions are emulated"},
	{"cardinality_enforcement_unexpected_categorizations_total disabled_metrics_total hidden_metrics_total registered_metrics_total",
		"they are about kube-scheduler's own registry of metrics"},
	{"aggregator_* apiserver_admission_* apiserver_audit_* apiserver_egress_* apiserver_encryption_* apiserver_envelope_* apiserver_mutating_* apiserver_storage_* apiserver_validating_* apiserver_validation_* grpc_client_* konnectivity_*",
		"they are of an API server, of which kube-scheduler has the code but uses nothing: what it serves of them is zero. Berth's own `grpc_client_*` are of its RPCs"},
}

// kubeMetrics are all that kube-scheduler 1.36 has under its own prefix.
var kubeMetrics = strings.Fields(`
	schedule_attempts_total scheduling_attempt_duration_seconds scheduling_algorithm_duration_seconds
	event_handling_duration_seconds preemption_victims preemption_attempts_total pending_pods inflight_events goroutines
	pod_scheduling_sli_duration_seconds pod_scheduling_attempts pod_scheduled_after_flush_total
	framework_extension_point_duration_seconds plugin_execution_duration_seconds queueing_hint_execution_duration_seconds
	queue_incoming_pods_total permit_wait_duration_seconds cache_size unschedulable_pods plugin_evaluation_total
	preemption_goroutines_duration_seconds preemption_goroutines_execution_total batch_attempts_total
	batch_cache_flushed_total get_node_hint_duration_seconds store_schedule_results_duration_seconds
	async_api_call_execution_total async_api_call_execution_duration_seconds pending_async_api_calls
	resourceclaim_creates_total dra_bindingconditions_allocations_total dra_bindingconditions_wait_duration_seconds
	podgroup_schedule_attempts_total podgroup_scheduling_attempt_duration_seconds
	podgroup_scheduling_algorithm_duration_seconds volume_binder_cache_requests_total volume_scheduling_stage_error_total`)

// ofLibraries are what is served in kube-scheduler's place of what Kubernetes' libraries measure, and of the process.
var ofLibraries = []struct{ name, meaning string }{
	{"apiserver_client_certificate_expiration_seconds", "How long the certificates that callers show last still."},
	{"apiserver_delegated_authn_*", "Questions to the API server of who callers are."},
	{"apiserver_webhooks_x509_*", "Certificates of the API server that are as Go does not take them any more."},
	{"authentication_token_cache_*", "What is remembered of callers' tokens."},
	{"workqueue_*", "What keeps certificates and authorities up to date."},
	{"go_*", "Go's runtime, as much of it as kube-scheduler tells; other roles tell less."},
	{"process_*", "The process. Every role has it."},
}

// recorder is a registry that remembers what each role registers.
type recorder struct {
	t    *testing.T
	role string
	prometheus.Registerer
	metrics map[string]*described // by name
}

// described is a metric as it is registered.
type described struct {
	name, help, kind string
	labels, roles    []string
	buckets          []float64
}

func (r *recorder) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}

func (r *recorder) Register(c prometheus.Collector) error {
	registry := prometheus.NewRegistry()
	if err := registry.Register(c); err != nil {
		return err
	}
	descs := make(chan *prometheus.Desc, 100)
	c.Describe(descs)
	close(descs)
	named := make(map[string]*dto.MetricFamily)
	for d := range descs {
		f := r.touch(c, d)
		named[f.GetName()] = f
	}
	families, err := registry.Gather()
	if err != nil {
		r.t.Errorf("gather what %s registers: %v", r.role, err)
	}
	for _, f := range families {
		named[f.GetName()] = f
	}
	for _, f := range named {
		r.note(f)
	}
	return nil
}

// descriptor matches what a prometheus.Desc says of itself.
var descriptor = regexp.MustCompile(`^Desc{fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*"), constLabels: {}, variableLabels: {(.*)}}$`)

// touch makes a collector with labels have a metric. It returns what the descriptor says, as a gauge, which is what those
// are that have nothing to count while nothing runs.
func (r *recorder) touch(c prometheus.Collector, d *prometheus.Desc) *dto.MetricFamily {
	parts := descriptor.FindStringSubmatch(d.String())
	if parts == nil {
		r.t.Fatalf("unexpected %v", d)
	}
	name, err1 := strconv.Unquote(parts[1])
	help, err2 := strconv.Unquote(parts[2])
	if err := errors.Join(err1, err2); err != nil {
		r.t.Fatal(err)
	}
	labels := strings.FieldsFunc(parts[3], func(r rune) bool { return r == ',' })
	slices.Sort(labels)
	values := make([]string, len(labels))
	switch vec := c.(type) {
	case *prometheus.CounterVec:
		vec.WithLabelValues(values...)
	case *prometheus.GaugeVec:
		vec.WithLabelValues(values...)
	case *prometheus.HistogramVec:
		vec.WithLabelValues(values...)
	}
	gauge := &dto.Metric{Gauge: &dto.Gauge{Value: new(float64)}}
	for k := range labels {
		gauge.Label = append(gauge.Label, &dto.LabelPair{Name: &labels[k], Value: &values[k]})
	}
	kind := dto.MetricType_GAUGE
	return &dto.MetricFamily{Name: &name, Help: &help, Type: &kind, Metric: []*dto.Metric{gauge}}
}

func (r *recorder) note(f *dto.MetricFamily) {
	d := r.metrics[f.GetName()]
	if d == nil {
		lints := !strings.HasPrefix(f.GetName(), "rest_client_") // which are as they are
		d = &described{name: f.GetName(), help: strings.TrimPrefix(f.GetHelp(), "[ALPHA] "), kind: strings.ToLower(f.GetType().String())}
		for _, l := range f.Metric[0].Label {
			d.labels = append(d.labels, l.GetName())
		}
		for _, b := range f.Metric[0].GetHistogram().GetBucket() {
			d.buckets = append(d.buckets, b.GetUpperBound())
		}
		r.metrics[f.GetName()] = d
		problems, err := promlint.NewWithMetricFamilies([]*dto.MetricFamily{f}).Lint()
		if err != nil {
			r.t.Error(err)
		}
		for _, p := range problems {
			if !lints {
				break
			}
			r.t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	if !slices.Contains(d.roles, r.role) {
		d.roles = append(d.roles, r.role)
	}
}

// touchClientMetrics has all that client-go measures have a value.
func touchClientMetrics() {
	ctx, at := context.Background(), url.URL{Host: "h"}
	clientmetrics.RequestLatency.Observe(ctx, "GET", at, 0)
	clientmetrics.RateLimiterLatency.Observe(ctx, "GET", at, 0)
	clientmetrics.RequestSize.Observe(ctx, "GET", "h", 0)
	clientmetrics.ResponseSize.Observe(ctx, "GET", "h", 0)
	clientmetrics.RequestResult.Increment(ctx, "200", "GET", "h")
	clientmetrics.RequestRetry.IncrementRetry(ctx, "200", "GET", "h")
	clientmetrics.ExecPluginCalls.Increment(0, "no_error")
	clientmetrics.TransportCreateCalls.Increment("hit")
	clientmetrics.TransportCAReloads.Increment("success", "first")
	clientmetrics.TransportCacheGCCalls.Increment("deleted")
}

func TestWhatIsServedInPlaceIsWhatThePageSays(t *testing.T) {
	var said kube.LibraryMetrics
	for _, l := range ofLibraries {
		if l.name != "go_*" && l.name != "process_*" { // Berth's own registry has those
			said = append(said, l.name)
		}
	}
	if diff := cmp.Diff(slices.Concat(kube.ClientMetrics, said), inPlaceMetrics); diff != "" {
		t.Errorf("(-page +gathered):\n%s", diff)
	}
}

// metricsOfAllRoles makes every role, without running it.
func metricsOfAllRoles(t *testing.T) map[string]*described {
	r := &recorder{t: t, metrics: make(map[string]*described)}
	as := func(role string) *recorder { r.role = role; return r }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	log := slog.New(slog.DiscardHandler)
	client, err := coord.Connect(coord.Config{Endpoints: []string{"http://127.0.0.1:1"}, Log: log})
	must(err)
	defer client.Close()
	clients := rpc.NewClients(rpc.Config{Net: rpc.Memory(), Log: log})
	defer clients.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	must(os.WriteFile(kubeconfig, []byte(`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c}}],
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]}`), 0o600))

	cluster := cluster.Settings{Shards: 1, Profiles: []cluster.Profile{engine.DefaultProfile("default-scheduler")}}
	src, err := kube.New(kube.Config{Kubeconfig: kubeconfig, SchedulerNames: []string{"default-scheduler"}, Metrics: as("binder")})
	must(err)
	lease, err := src.Lease(kube.LeaseConfig{Namespace: "n", Name: "l", Duration: 3 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: time.Second})
	must(err)
	_, err = pluginhost.New(pluginhost.Config{Log: log, Metrics: as("binder")})
	must(err)
	_, err = extender.NewObserver(as("binder"), log)
	must(err)
	_, err = binder.New(binder.Config{
		ID: "b", Address: "b", Coord: client, Source: src, Settings: cluster, Log: log, Metrics: as("binder"),
		Lease: lease, SharedNames: []string{"default-scheduler"},
	})
	must(err)
	rep, err := replica.New(replica.Config{Member: "r", Leaders: client, Conns: clients, Log: log, Metrics: as("every role with a replica")})
	must(err)
	_, err = queue.New(queue.Config{
		ID: "q", Replica: rep, Evaluator: engine.NewEvaluator(engine.EvaluatorConfig{}), Coord: client, Clients: clients,
		NewSession: func(context.Context) (queue.Session, error) { return nil, nil }, Log: log, Metrics: as("queue"),
	})
	must(err)
	must(as("every role").Register(buildInfo()))
	must(as("in kube-scheduler's place").Register(kubeBuildInfo()))
	touchClientMetrics()
	families, err := kube.ClientMetrics.Gather()
	must(err)
	for _, f := range families {
		as("who asks an API server").note(f)
	}
	must(as("binder").Register(gatesEnabled(new(config.Options).Gates())))
	must(registerReady(as("every role"), &role{role: coord.RoleQueue, ready: func() error { return nil }}))
	must(registerShards(as("every role with a replica"), rep))
	must(registerExpiry(as("every role"), nil, nil, nil))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	defer listener.Close()
	rpc.Bound(listener, rpc.Bounds{Name: "http", Metrics: as("every role")})
	must(registerStale(as("every role"), "operators", func() bool { return false }))
	for _, role := range []string{"binder", "gateway"} {
		must(new(etcdWatch).register(as(role)))
	}
	return r.metrics
}

// ofGPUs are what processes serve that are no roles. Their own modules hold them against what they register.
const ofGPUs = `
## Those of GPUs

Yoda serves its metrics at ` + "`/metrics`" + ` of its own ` + "`--metrics-listen`" + `, beside each binder: all of them know of cards and nodes, and only that of the active binder gives cards. So take the maximum over processes of what is known, and the sum of what is done.

| name | type | labels | process | meaning |
| --- | --- | --- | --- | --- |
| ` + "`berth_scv_cards`" + ` | gauge | health | collector | Cards of the node, by health. |
| ` + "`berth_scv_reading_seconds`" + ` | histogram, 9 buckets from 0.001 to 65.536 |  | collector | How long readings took that have ended. |
| ` + "`berth_scv_readings_total`" + ` | counter | result | collector | Readings of the cards, by result: ok, absent (there is no driver), failed, or late (after the driver's timeout, if at all). |
| ` + "`berth_scv_seconds_since_write`" + ` | gauge |  | collector | Seconds since the resource was last written, or since the beginning. |
| ` + "`berth_scv_writes_total`" + ` | counter | result | collector | Writes of the resource, by result: ok or failed. |
| ` + "`berth_scv_xids_total`" + ` | counter | critical, xid | collector | Errors that the driver has told of, by their number (XID), and whether they make a card unhealthy. |
| ` + "`yoda_awaited_pods`" + ` | gauge |  | Yoda | Pods of which it is not known which cards they have, so that their nodes give none. |
| ` + "`yoda_cards`" + ` | gauge | model, state | Yoda | Cards, by model, and by state: free, shared (pods have parts of it), taken, unhealthy, stale (its collector is silent), disputed (pods have more of it than there is), or withheld (its node gives none). |
| ` + "`yoda_conflicts`" + ` | gauge |  | Yoda | Cards of which pods have more than there is. |
| ` + "`yoda_grants_total`" + ` | counter | result | Yoda | Pods that were to get cards, by result: given, again (what stands was told anew), refused, or failed. |
| ` + "`yoda_nodes`" + ` | gauge | state | Yoda | Nodes, by state: good, stale (its collector is silent), no_collector, device_plugin or dra (somebody else gives its cards), or awaited (it is not known which cards a pod has there). |
| ` + "`yoda_reservations`" + ` | gauge |  | Yoda | Placements that cards are reserved for. |
| ` + "`yoda_synced`" + ` | gauge |  | Yoda | Whether it has read the cluster: 1 or 0. Until then it gives no cards. |
| ` + "`yoda_unsettled`" + ` | gauge |  | Yoda | Reservations that have ended, and of whose pods it is not known yet whether they were bound. Their cards are kept. |
| ` + "`yoda_wakes_total`" + ` | counter |  | Yoda | Times that pods which wait for cards were had tried again. |
`

// page renders docs/metrics.md.
func page(metrics map[string]*described) string {
	var b strings.Builder
	table := func(kubes bool) {
		b.WriteString("| name | type | labels | role | meaning |\n| --- | --- | --- | --- | --- |\n")
		for _, name := range slices.Sorted(func(yield func(string) bool) {
			for name := range metrics {
				if is := isKubes(name) || strings.HasPrefix(name, "kubernetes_") || strings.HasPrefix(name, "rest_client_"); is == kubes && !yield(name) {
					return
				}
			}
		}) {
			d := metrics[name]
			kind := d.kind
			if n := len(d.buckets); n > 1 {
				kind += fmt.Sprintf(", %d buckets from %g to %g", n, d.buckets[0], d.buckets[n-1])
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", d.name, kind, strings.Join(d.labels, ", "), strings.Join(d.roles, ", "), d.help)
		}
	}
	b.WriteString(`# Metrics

Every role serves its metrics at ` + "`/metrics`" + ` of ` + "`--metrics-listen`" + `. A test holds this page against what the roles register:
` + "`go test ./internal/roles -run Metrics`" + `; with ` + "`-rewrite`" + ` it writes the page.

## Those that kube-scheduler has too

They have kube-scheduler's names, labels, buckets and meaning, and no other label: dashboards and alerts go on working when they
sum over the processes. Each role serves what it knows. That each of kube-scheduler 1.36 has its row, here or in the last table, is held against kube-scheduler's
code: ` + "`cd test/oracle && go test . -run TestThePageOfMetricsSaysOfEachOfKubeSchedulersWhatBecomesOfIt`" + `. At ` + "`/metrics/resources`" + ` of the active binder there are ` + "`kube_pod_resource_request`" + ` and ` + "`kube_pod_resource_limit`" + `, and at
` + "`/metrics/slis`" + `, in kube-scheduler's place, ` + "`kubernetes_healthcheck`" + ` and ` + "`kubernetes_healthchecks_total`" + `.

`)
	table(true)
	b.WriteString("\nIn kube-scheduler's place there is, besides, what Kubernetes' libraries measure of what Berth has them do:\n\n| names | meaning |\n| --- | --- |\n")
	for _, l := range ofLibraries {
		fmt.Fprintf(&b, "| `%s` | %s |\n", l.name, l.meaning)
	}
	b.WriteString("\n## Berth's own\n\nThose of a member carry a label `member` besides, since a process may run several.\n\n")
	table(false)
	b.WriteString("\nBesides, every process serves `go_*`, `process_*`, and `grpc_server_*` and `grpc_client_*` of its RPCs.\n" + ofGPUs + "\n## Those of kube-scheduler that Berth does not have\n\n| name | why |\n| --- | --- |\n")
	for _, n := range notOurs {
		fmt.Fprintf(&b, "| `%s` | %s |\n", strings.Join(strings.Fields(n.names), "`, `"), n.why)
	}
	return b.String()
}

func TestMetricsAreThoseOfThePage(t *testing.T) {
	const file = "../../docs/metrics.md"
	metrics := metricsOfAllRoles(t)
	got := page(metrics)
	if *rewrite {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s (-page +registered); run with -rewrite if it is right:\n%s", file, diff)
	}
}

func TestEveryMetricOfKubeSchedulerIsThereOrSaidNotToBe(t *testing.T) {
	metrics := metricsOfAllRoles(t)
	left := make(map[string]bool)
	for _, n := range notOurs {
		for _, name := range strings.Fields(n.names) {
			if isKubes(name) {
				left[name] = true
			}
		}
	}
	for _, name := range kubeMetrics {
		name = kubePrefixes[0] + name
		if (metrics[name] != nil) == left[name] {
			t.Errorf("%s: registered %v, said not to be there %v", name, metrics[name] != nil, left[name])
		}
		delete(left, name)
	}
	for name := range left {
		t.Errorf("%s is said not to be there, but kube-scheduler does not have it", name)
	}
	for name := range metrics {
		if short, ok := strings.CutPrefix(name, kubePrefixes[0]); ok && !slices.Contains(kubeMetrics, short) {
			t.Errorf("%s is none of kube-scheduler's: Berth's own begin with berth_", name)
		}
	}
}
