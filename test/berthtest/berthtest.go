// Package berthtest runs whole Berths for tests: in this process (Start), or as separate processes (StartProcesses).
// Both end with the test and fail it when something is left behind.
package berthtest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/internal/engine"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/roles"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/trace"
)

// Options say what to start. The zero value is one of each role, on an empty cluster of the local source.
type Options struct {
	Nodes                               int                      // nodes to create, node-0000 and so on, 8 CPU, 32 GiB and 110 pods each
	Queues, FilterWorkers, ScoreWorkers int                      // 0 means 1
	Shards                              int32                    // 0 means 1
	Seed                                uint64                   // of ties
	Profiles                            []cluster.Profile        // nil means the default one
	BindTimeouts                        map[string]time.Duration // how long pods wait for their claims, by scheduler name; 10 min of one that is not there
	Coscheduling                        map[string]bool          // scheduler names whose pods are in groups by their label too
	Extenders                           []configv1.Extender      // with Kubeconfig only
	PluginServices                      []config.PluginService   // that have plugins of Profiles
	PreemptionSeesVolumes               bool
	ReserveForGroups                    time.Duration // for how long a gang waits before room is reserved for it; 0: none is
	BatchSize                           int           // 0 means the default
	MinRange                            int           // nodes of the smallest range; 0 means the default
	DataDir                             string        // of the embedded etcd; "" means one of the test
	Kubeconfig                          string        // use the kube source
	EtcdEndpoints                       []string
	EtcdOwned                           bool          // it is this Berth's alone
	EtcdLook                            time.Duration // how often it is asked how full it is; 0 means the default
	LeaseTTL                            time.Duration // 0 means 5 s
	OpsListen                           string        // where to serve /metrics; "" means nowhere
	Trace                               *trace.Provider
	Log                                 *slog.Logger // nil means that of the test
	Net                                 rpc.Network  // between the roles, each at t-ROLE-NUMBER; nil means memory of their own
}

// Berth is a running Berth, seen through its public API.
type Berth struct {
	schedulingv1.SchedulingServiceClient
	Conn        *grpc.ClientConn
	GRPCAddress string
	HTTPAddress string
	t           testing.TB
	stop        func()
}

// Patience is how long tests wait for what must come, and how long one call may take. It is for hangs only: how fast a
// machine is that does other things too, is no fact about Berth.
const Patience = 5 * time.Minute

// Context returns a context for calls that must not outlive Patience.
func (b *Berth) Context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	b.t.Cleanup(cancel)
	return ctx
}

// Start runs every role in this process and waits until it is ready.
func Start(t testing.TB, o Options) *Berth {
	t.Helper()
	if o.DataDir == "" {
		o.DataDir = t.TempDir()
	}
	ctx, cancel := context.WithCancel(context.Background())
	serving, ended := make(chan [2]string, 1), make(chan error, 1)
	if o.Profiles == nil {
		o.Profiles = []cluster.Profile{engine.DefaultProfile("default-scheduler")}
	}
	settings := cluster.Settings{Shards: max(o.Shards, 1), Seed: o.Seed, Profiles: o.Profiles, PreemptionSeesVolumes: o.PreemptionSeesVolumes}
	source := "local"
	if o.Kubeconfig != "" {
		source = "kube"
	}
	common := roles.Common{
		ID: "t", Listen: "127.0.0.1:0", EtcdEndpoints: o.EtcdEndpoints, EtcdOwned: o.EtcdOwned, EtcdLook: o.EtcdLook, OpsListen: o.OpsListen, LeaseTTL: o.LeaseTTL,
		Trace: o.Trace,
		Log:   slog.New(slog.NewTextHandler(testWriter{t}, nil)),
	}
	if o.Log != nil { // a fuzz target must not log while it runs
		common.Log = o.Log
	}
	if common.LeaseTTL == 0 {
		common.LeaseTTL = 5 * time.Second
	}
	go func() {
		ended <- roles.All(ctx, common, roles.AllOptions{
			Cluster: roles.Cluster{Source: source, Kubeconfig: o.Kubeconfig, KubeQPS: 5000, KubeBurst: 5000, Settings: settings, BindTimeouts: o.BindTimeouts, Coscheduling: o.Coscheduling, Extenders: o.Extenders, PluginServices: o.PluginServices, ReserveForGroups: o.ReserveForGroups},
			Public:  roles.Public{HTTPListen: "127.0.0.1:0"},
			Queue:   roles.Queue{BatchSize: o.BatchSize},
			DataDir: o.DataDir, UnsafeNoFsync: true, Net: o.Net,
			Queues: o.Queues, FilterWorkers: o.FilterWorkers, ScoreWorkers: o.ScoreWorkers,
			Serving: func(g, h string) { serving <- [2]string{g, h} },
		})
	}()
	b := &Berth{t: t}
	b.stop = func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("Berth ended with: %v", err)
			}
		case <-time.After(Patience):
			t.Errorf("Berth did not end within %v of being told to", Patience)
		}
	}
	select {
	case at := <-serving:
		b.GRPCAddress, b.HTTPAddress = at[0], at[1]
	case err := <-ended:
		cancel()
		t.Fatalf("Berth did not start: %v", err)
	}
	t.Cleanup(b.Stop)
	b.connect()
	b.AwaitReady()
	if o.Nodes > 0 {
		b.Apply(Nodes(o.Nodes)...)
	}
	return b
}

// connect makes the client.
func (b *Berth) connect() {
	conn, err := grpc.NewClient(b.GRPCAddress, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.t.Fatal(err)
	}
	b.Conn, b.SchedulingServiceClient = conn, schedulingv1.NewSchedulingServiceClient(conn)
}

// Stop ends this Berth before the test ends. It may be called again.
func (b *Berth) Stop() {
	if b.stop == nil {
		return
	}
	b.Conn.Close()
	b.stop()
	b.stop = nil
}

func (b *Berth) status(ctx context.Context) (*schedulingv1.GetStatusResponse, error) {
	return b.GetStatus(ctx, &schedulingv1.GetStatusRequest{})
}

// AwaitReady waits until there is an active binder, a loaded gateway and an owner for every shard.
func (b *Berth) AwaitReady() {
	b.t.Helper()
	Await(b.t, Patience, "Berth to be ready", func(ctx context.Context) error {
		s, err := b.status(ctx)
		if err != nil {
			return err
		}
		if s.GetLeader() == "" || len(s.GetShards()) == 0 {
			return fmt.Errorf("no leader or no shards: %v", s)
		}
		for _, shard := range s.GetShards() {
			if shard.GetOwner() == "" {
				return fmt.Errorf("shard %d has no owner", shard.GetShard())
			}
		}
		for _, m := range s.GetMembers() {
			if !m.GetReady() && m.GetRole() != "binder" {
				return fmt.Errorf("%s is not ready: %s", m.GetId(), m.GetNotReadyBecause())
			}
		}
		return nil
	})
}

// Apply applies manifests, in calls that are not too large.
func (b *Berth) Apply(manifests ...string) {
	b.t.Helper()
	for len(manifests) > 0 {
		n := min(len(manifests), 400)
		if _, err := b.SchedulingServiceClient.Apply(b.Context(), &schedulingv1.ApplyRequest{Manifests: strings.Join(manifests[:n], "\n---\n")}); err != nil {
			b.t.Fatalf("apply: %v", err)
		}
		manifests = manifests[n:]
	}
}

// AwaitDecided waits until there are n pods and each is bound or unschedulable.
func (b *Berth) AwaitDecided(n int) {
	b.t.Helper()
	Await(b.t, Patience, fmt.Sprintf("%d pods to be decided", n), func(ctx context.Context) error {
		s, err := b.status(ctx)
		if err != nil {
			return err
		}
		unschedulable := 0
		for _, shard := range s.GetShards() {
			unschedulable += int(shard.GetDepth().GetUnschedulable())
		}
		if c := s.GetPods(); int(c.GetBound())+unschedulable != n || int(c.GetBound()+c.GetAssumed()+c.GetPending()) != n {
			return fmt.Errorf("%v and %d unschedulable", c, unschedulable)
		}
		return nil
	})
}

// Pods returns all pods by namespace/name.
func (b *Berth) Pods() map[string]*schedulingv1.Pod {
	b.t.Helper()
	out := make(map[string]*schedulingv1.Pod)
	for token := ""; ; {
		page, err := b.ListPods(b.Context(), &schedulingv1.ListPodsRequest{PageSize: 1000, PageToken: token})
		if err != nil {
			b.t.Fatalf("list pods: %v", err)
		}
		for _, p := range page.GetPods() {
			out[p.GetNamespace()+"/"+p.GetName()] = p
		}
		if token = page.GetNextPageToken(); token == "" {
			return out
		}
	}
}

// Placements returns where each placed pod is.
func (b *Berth) Placements() map[string]string {
	b.t.Helper()
	out := make(map[string]string)
	for name, p := range b.Pods() {
		if p.GetNode() != "" {
			out[name] = p.GetNode()
		}
	}
	return out
}

// CheckCapacity fails the test if a node's pods ask for more than it has.
func (b *Berth) CheckCapacity() {
	b.t.Helper()
	for token := ""; ; {
		page, err := b.ListNodes(b.Context(), &schedulingv1.ListNodesRequest{PageSize: 1000, PageToken: token})
		if err != nil {
			b.t.Fatalf("list nodes: %v", err)
		}
		for _, n := range page.GetNodes() {
			have := map[string]int64{}
			for _, q := range n.GetAllocatable() {
				have[q.GetName()] = q.GetValue()
			}
			for _, q := range n.GetRequested() {
				if q.GetValue() > have[q.GetName()] {
					b.t.Errorf("node %s: %d of %s requested, %d allocatable", n.GetName(), q.GetValue(), q.GetName(), have[q.GetName()])
				}
			}
			if int64(n.GetPodCount()) > have["pods"] {
				b.t.Errorf("node %s: %d pods, %d allowed", n.GetName(), n.GetPodCount(), have["pods"])
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			return
		}
	}
}

// Await polls until ok returns nil, and fails the test with its last error after the limit.
func Await(t testing.TB, limit time.Duration, what string, ok func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		call, cancel := context.WithTimeout(ctx, time.Minute) // of one try
		err := ok(call)
		cancel()
		if err == nil {
			return
		}
		if ctx.Err() == nil && status.Code(err) != codes.DeadlineExceeded || last == nil { // that time is up says nothing
			last = err
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waited %v for %s: %v", limit, what, last)
		case <-tick.C:
		}
	}
}

// Nodes returns n node manifests.
func Nodes(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = Node(fmt.Sprintf("node-%04d", i), "8", "32Gi")
	}
	return out
}

// Node returns the manifest of a node.
func Node(name, cpu, memory string) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Node, metadata: {name: %s, labels: {kubernetes.io/hostname: %s}}, status: {allocatable: {cpu: %q, memory: %s, pods: "110"}}}`, name, name, cpu, memory)
}

// Pod returns the manifest of a pod in namespace default; spec, in YAML flow style, adds to it: "priority: 5, ".
func Pod(name, cpu, memory, spec string) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {%scontainers: [{name: c, image: i, resources: {requests: {cpu: %q, memory: %s}}}]}}`, name, spec, cpu, memory)
}

// testWriter hands log lines to the test's log.
type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}
