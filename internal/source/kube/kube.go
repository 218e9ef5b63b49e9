package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-scheduler/berth/internal/source"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	defaultTimeout = 10 * time.Second
	dialTimeout    = 5 * time.Second
	keepAlive      = 30 * time.Second
)

// Config says which cluster, for which schedulers, and how hard it may be worked. Only SchedulerNames is required.
type Config struct {
	// Kubeconfig is the path of a kubeconfig file. "" means the service account of the pod this process runs in.
	Kubeconfig string
	// Master is the URL of the API server, instead of that of the kubeconfig; "" means that one.
	Master string
	// SchedulerNames are the spec.schedulerName of the pods to be scheduled.
	SchedulerNames []string
	// Coscheduling are those whose pods are in groups by their label, too; nil: none.
	Coscheduling source.Coscheduling
	// QPS and Burst limit the requests of each lane (binds, volumes, events, conditions, preemptions) by itself. QPS 0 means no
	// limit; Burst 0 means QPS.
	QPS   float32
	Burst int
	// RequestTimeout bounds every request but watches; 0 means 10 s.
	RequestTimeout time.Duration
	// Instance is who reports events, reportingInstance; "" means the host's name.
	Instance string
	// Interest returns the extenders that a pod without a node interests, for source.Pod.Extenders; nil: there are none.
	Interest func(*v1.Pod) uint64
	// KeepNodes says to keep nodes in full, for Node, and KeepPods which pods, for LastPod; nil: none.
	KeepNodes bool
	KeepPods  func(*v1.Pod) bool
	// TouchedNodes says to tell of nodes of which something has changed that only extenders read: source.Event.Touched.
	TouchedNodes bool
	Log          *slog.Logger          // nil means no log
	Metrics      prometheus.Registerer // nil means none
	Now          func() time.Time      // for the times of events and conditions; nil means time.Now
}

// withDefaults checks the configuration and fills in what is not said.
func (cfg Config) withDefaults() (Config, error) {
	if len(cfg.SchedulerNames) == 0 {
		return cfg, errors.New("no scheduler names are given, at least one is needed")
	}
	for i, name := range cfg.SchedulerNames {
		if name == "" {
			return cfg, fmt.Errorf("scheduler name %d is empty", i)
		}
	}
	switch {
	case cfg.QPS < 0:
		return cfg, fmt.Errorf("requests per second: %v is negative", cfg.QPS)
	case cfg.Burst < 0:
		return cfg, fmt.Errorf("burst: %d is negative", cfg.Burst)
	case cfg.RequestTimeout < 0:
		return cfg, fmt.Errorf("request timeout: %v is negative", cfg.RequestTimeout)
	}
	if cfg.Burst == 0 {
		cfg.Burst = max(1, int(cfg.QPS))
	}
	cfg.RequestTimeout = cmp.Or(cfg.RequestTimeout, defaultTimeout)
	if cfg.Instance == "" {
		host, err := os.Hostname()
		if err != nil {
			return cfg, fmt.Errorf("find the name of this host for events: %w", err)
		}
		cfg.Instance = host
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return cfg, nil
}

// lane is a stream of writes with connections and a rate limit of its own.
type lane struct {
	kubernetes.Interface
	name string // in metrics
}

// Source is a cluster behind an API server. Watch runs at most once at a time.
type Source struct {
	cfg        Config
	host       string // the API server's, for people
	schedulers map[string]bool

	binds, volumes, events, conditions lane
	preemptions                        lane       // evictions and nominations
	reads                              lane       // without a rate limit
	scrapes                            lane       // likewise, of all pods
	resources                          []resource // what Watch follows, in the order in which Ready looks
	series                             *series
	lastEvent                          atomic.Int64 // makes the names of events different
	nodeChanges                        atomic.Uint64
	latency                            *prometheus.HistogramVec

	mu      sync.Mutex
	mirrors map[string]*mirror  // by resource: what the running Watch has seen; empty before the first
	pending map[string]error    // by resource: what Watch waits for
	said    map[string][]string // by resource: what has been logged of that, since it was not waited for
	lacking map[string]bool     // the resources that cannot be read, and are not waited for
}

var _ source.Source = (*Source)(nil)

// New returns the cluster that cfg names. It does not connect: that is Watch's to do, and Ready says how it goes.
// An error names the field of cfg, or the file, that makes no sense.
func New(cfg Config) (*Source, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("kubernetes source: %w", err)
	}
	base, err := restConfig(cfg.Master, cfg.Kubeconfig)
	if err != nil {
		return nil, err
	}
	s := &Source{
		cfg:        cfg,
		host:       base.Host,
		schedulers: map[string]bool{},
		series:     newSeries(),
		mirrors:    map[string]*mirror{},
		lacking:    map[string]bool{},
		said:       map[string][]string{},
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "berth_kube_request_duration_seconds",
			Help:    "How long writes to the API server took, by lane (bind, volume, event, condition, preemption) and HTTP status: 0 for none; of those that HTTP does not know, 4xx and 5xx by the hundred, other for the rest.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}, []string{"lane", "code"}),
	}
	for _, name := range cfg.SchedulerNames {
		s.schedulers[name] = true
	}
	for name, l := range map[string]*lane{
		"bind": &s.binds, "volume": &s.volumes, "event": &s.events, "condition": &s.conditions, "preemption": &s.preemptions,
	} {
		client, err := newClient(base, cfg.QPS, cfg.Burst)
		if err != nil {
			return nil, err
		}
		*l = lane{client, name}
	}
	reads, err := newClient(base, 0, 0)
	if err != nil {
		return nil, err
	}
	s.reads = lane{reads, "read"}
	scrapes, err := newClient(base, 0, 0) // what is long goes beside what others wait for
	if err != nil {
		return nil, err
	}
	s.scrapes = lane{scrapes, "scrape"}
	var groups dynamic.Interface
	if len(cfg.Coscheduling) > 0 {
		if groups, err = newDynamicClient(base); err != nil {
			return nil, err
		}
	}
	s.resources = followed(reads, groups, podKind(s.schedulers, cfg.Coscheduling, cfg.Interest, cfg.KeepPods), nodeKind(cfg.KeepNodes, cfg.TouchedNodes))
	s.start()
	if cfg.Metrics != nil {
		if err := cfg.Metrics.Register(s.latency); err != nil {
			return nil, fmt.Errorf("register metrics of the kubernetes source: %w", err)
		}
	}
	return s, nil
}

func restConfig(master, kubeconfig string) (*rest.Config, error) {
	if master == "" && kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("read the service account of this pod: %w", err)
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags(master, kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", kubeconfig, err)
	}
	return config, nil
}

// newClient returns a client with connections and a rate limit of its own; qps 0 means no limit.
func newClient(base *rest.Config, qps float32, burst int) (kubernetes.Interface, error) {
	config := clientConfig(base)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	if qps > 0 {
		config.QPS, config.Burst = qps, burst
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", base.Host, err)
	}
	return client, nil
}

// newDynamicClient returns a client for custom resources, with connections of its own.
func newDynamicClient(base *rest.Config) (dynamic.Interface, error) {
	client, err := dynamic.NewForConfig(clientConfig(base))
	if err != nil {
		return nil, fmt.Errorf("make a client for custom resources of %s: %w", base.Host, err)
	}
	return client, nil
}

// clientConfig returns base for a client with connections of its own, and without a rate limit.
func clientConfig(base *rest.Config) *rest.Config {
	config := rest.CopyConfig(base)
	rest.AddUserAgent(config, "berth")
	config.QPS = -1
	// client-go shares connections between clients whose configurations look alike; a dialer of its own sets one apart.
	config.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext
	return config
}

// Name returns "kube".
func (s *Source) Name() string { return "kube" }

// MaxBatch returns 1: each binding is a request, and none waits for the answer to another.
func (s *Source) MaxBatch() int { return 1 }

// Fenced returns false: the API server knows nothing of terms.
func (s *Source) Fenced() bool { return false }

// Ready says which resources Watch is not following at the moment, and why.
func (s *Source) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.resources {
		if err := s.pending[r.name]; err != nil {
			return fmt.Errorf("waiting for the API server at %s: %s: %w", s.host, r.name, err)
		}
	}
	return nil
}

// start makes all resources wait to be listed.
func (s *Source) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending, s.said = map[string]error{}, map[string][]string{}
	for _, r := range s.resources {
		s.pending[r.name] = errors.New("not listed yet")
	}
}

// mostSaid is how many different errors of a resource are remembered that have been logged: a turn of a reflector may have three.
const mostSaid = 4

// causeOf returns what an error says that stays the same from one try to the next: requests differ.
func causeOf(err error) string {
	if call := (*url.Error)(nil); errors.As(err, &call) {
		return call.Err.Error()
	}
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return status.Status().Message
	}
	return err.Error()
}

// waitFor notes what a resource is waited for because of; nil: it is not.
func (s *Source) waitFor(resource string, err error) {
	s.mu.Lock()
	before, said := s.pending[resource], s.said[resource]
	s.pending[resource] = err
	isNew := false
	if err == nil {
		delete(s.said, resource)
	} else if text := causeOf(err); !slices.Contains(said, text) {
		isNew, s.said[resource] = true, append(said[max(0, len(said)+1-mostSaid):], text)
	}
	s.mu.Unlock()
	switch {
	case isNew:
		s.cfg.Log.Warn("API server not answering, still trying", "resource", resource, "host", s.host, "err", err)
	case err == nil && before != nil:
		s.cfg.Log.Info("following the API server", "resource", resource, "host", s.host)
	}
}

// lacks notes that a resource cannot be read, and that nobody waits for it.
func (s *Source) lacks(resource string, rare bool, err error) {
	s.mu.Lock()
	before, known := s.pending[resource], s.lacking[resource]
	s.pending[resource], s.lacking[resource] = nil, true
	delete(s.said, resource)
	s.mu.Unlock()
	if before != nil || !known {
		level := slog.LevelWarn
		if rare && apierrors.IsNotFound(err) { // which is as usual
			level = slog.LevelInfo
		}
		s.cfg.Log.Log(context.Background(), level, "resource cannot be read, and is looked for now and then: pods that need it wait", "resource", resource, "host", s.host, "err", err)
	}
}

// serves notes that it can be read.
func (s *Source) serves(resource string) {
	s.mu.Lock()
	lacked := s.lacking[resource]
	delete(s.lacking, resource)
	s.mu.Unlock()
	if lacked {
		s.cfg.Log.Info("resource can be read", "resource", resource, "host", s.host)
	}
}

// awaitsNeeded reports whether something is waited for without which nothing is placed.
func (s *Source) awaitsNeeded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.resources, func(r resource) bool { return r.needed && s.pending[r.name] != nil })
}

// lackedBefore reports whether a resource could not be read when that was tried last.
func (s *Source) lackedBefore(resource string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lacking[resource]
}

// Lookup reads the pod from the API server, which answers with the newest state there is.
func (s *Source) Lookup(ctx context.Context, namespace, name string) (uid, node string, found bool, err error) {
	pod, err := s.get(ctx, s.reads, namespace, name)
	if err != nil || pod == nil {
		return "", "", false, err
	}
	return string(pod.UID), pod.Spec.NodeName, true, nil
}

// Pod reads a pod from the API server, in full and as new as there is, nil if there is none of the name.
func (s *Source) Pod(ctx context.Context, namespace, name string) (*v1.Pod, error) {
	return s.get(ctx, s.reads, namespace, name)
}

// Node returns a node as the running Watch has seen it last, if nodes are kept. Nobody may change it; as long as the node is the same, it is too. Nil: there
// is none.
func (s *Source) Node(name string) *v1.Node {
	if nodes := s.mirrorOf(nodesResource); nodes != nil {
		if is := nodes.get(types.NamespacedName{Name: name}); is != nil {
			return is.node
		}
	}
	return nil
}

// NodeChanges counts the changes of what Node returns: as long as it is what it was before, all nodes are.
func (s *Source) NodeChanges() uint64 { return s.nodeChanges.Load() }

// LastPod returns a pod as the running Watch has seen it last, without managedFields, if pods are kept, and it is told. Nobody may change it. Nil: there is none.
func (s *Source) LastPod(namespace, name string) *v1.Pod {
	if pods := s.watched(); pods != nil {
		if is := pods.get(types.NamespacedName{Namespace: namespace, Name: name}); is != nil {
			return is.pod
		}
	}
	return nil
}

// watched returns the pods that the running Watch has seen, nil before the first.
func (s *Source) watched() *mirror { return s.mirrorOf(podsResource) }

// mirrorOf returns what the running Watch has seen of a resource, nil before the first.
func (s *Source) mirrorOf(resource string) *mirror {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mirrors[resource]
}

// request returns the context of one request.
func (s *Source) request(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.cfg.RequestTimeout)
}

// observe records how long a write of a lane took.
func (s *Source) observe(l lane, began time.Time, err error) {
	s.latency.WithLabelValues(l.name, statusCode(err)).Observe(time.Since(began).Seconds())
}
