package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/roles"
)

// commonFlags are the flags of every role.
type commonFlags struct {
	common              roles.Common
	logFormat, logLevel string
}

func (f *commonFlags) add(fs *pflag.FlagSet, listen string) {
	fs.StringVar(&f.common.ID, "id", "", "the member's id; must be unique (default: the role, the host's name and a random suffix)")
	fs.StringVar(&f.common.Listen, "listen", listen, "where to serve gRPC, as host:port; port 0 picks a free one")
	fs.StringVar(&f.common.Advertise, "advertise", "", "the host, or host:port, under which other roles reach this one (default: that of --listen)")
	fs.StringSliceVar(&f.common.EtcdEndpoints, "etcd-endpoints", nil, "etcd's client URLs")
	fs.StringVar(&f.common.EtcdPrefix, "etcd-prefix", "/berth/", "under which all keys in etcd are")
	fs.StringVar(&f.common.OpsListen, "metrics-listen", "", "where to serve /metrics, /livez and /readyz over HTTP, as host:port (default: nowhere)")
	fs.DurationVar(&f.common.LeaseTTL, "lease-ttl", 5*time.Second, "how long a role that fell silent keeps what it holds; 1s to 1m")
	fs.StringVar(&f.logFormat, "log-format", "text", "text or json")
	fs.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
}

// finish checks the flags and fills in what depends on the machine.
func (f *commonFlags) finish(role string, needEtcd bool) error {
	if f.common.ID == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("--id is not set, and there is no host name to make one of: %w", err)
		}
		var suffix [3]byte
		rand.Read(suffix[:])
		f.common.ID = fmt.Sprintf("%s-%s-%s", role, host, hex.EncodeToString(suffix[:]))
	}
	if strings.ContainsAny(f.common.ID, "/ \t\n") {
		return fmt.Errorf("--id: %q: must not contain slashes or spaces", f.common.ID)
	}
	if needEtcd && len(f.common.EtcdEndpoints) == 0 {
		return errors.New("--etcd-endpoints: required: name the etcd that all roles share, such as http://127.0.0.1:2379")
	}
	if ttl := f.common.LeaseTTL; ttl < time.Second || ttl > time.Minute {
		return fmt.Errorf("--lease-ttl: %v: want 1s to 1m", ttl)
	}
	return nil
}

// clusterFlags are the flags of binders.
type clusterFlags struct {
	cluster       roles.Cluster
	schedulerName string
	strategy      string
	shape         []string
	fitResources  []string
	shards        int32
	seed          uint64
}

func (f *clusterFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.cluster.Source, "source", "", "where the cluster comes from: kube (an API server) or local (manifests kept in etcd) (default: kube if --kubeconfig is given, else local)")
	fs.StringVar(&f.cluster.Kubeconfig, "kubeconfig", "", "how to reach the API server; with --source=kube and no kubeconfig, the service account of the pod Berth runs in")
	fs.Float32Var(&f.cluster.KubeQPS, "kube-qps", 5000, "requests per second to the API server, for binds; events and conditions have their own")
	fs.IntVar(&f.cluster.KubeBurst, "kube-burst", 5000, "burst of the same")
	fs.StringVar(&f.schedulerName, "scheduler-name", "default-scheduler", "spec.schedulerName of the pods to schedule")
	fs.StringVar(&f.strategy, "fit-strategy", cluster.LeastAllocated, "how NodeResourcesFit scores: LeastAllocated, MostAllocated or RequestedToCapacityRatio")
	fs.StringSliceVar(&f.shape, "fit-shape", []string{"0:0", "100:10"}, "the function of RequestedToCapacityRatio, as utilization:score points")
	fs.StringSliceVar(&f.fitResources, "fit-resources", []string{"cpu:1", "memory:1"}, "what NodeResourcesFit scores, as resource:weight")
	fs.Int32Var(&f.shards, "shards", 4, "parts the queue is cut into, 1 to 256")
	fs.Uint64Var(&f.seed, "seed", 0, "of the order in which nodes of equal score are preferred")
}

// finish checks the flags and makes the settings of them.
func (f *clusterFlags) finish() error {
	if f.cluster.Source == "" {
		f.cluster.Source = "local"
		if f.cluster.Kubeconfig != "" {
			f.cluster.Source = "kube"
		}
	}
	switch {
	case f.cluster.Source != "kube" && f.cluster.Source != "local":
		return fmt.Errorf("--source: %q: want kube or local", f.cluster.Source)
	case f.cluster.Source == "local" && f.cluster.Kubeconfig != "":
		return errors.New("--source=local and --kubeconfig exclude each other")
	case f.shards < 1 || f.shards > 256:
		return fmt.Errorf("--shards: %d: want 1 to 256", f.shards)
	case f.schedulerName == "":
		return errors.New("--scheduler-name: must not be empty")
	case f.cluster.KubeQPS <= 0 || f.cluster.KubeBurst <= 0:
		return errors.New("--kube-qps and --kube-burst: must be above 0")
	}
	profile := cluster.DefaultProfile(f.schedulerName)
	switch f.strategy {
	case cluster.LeastAllocated, cluster.MostAllocated:
	case cluster.RequestedToCapacityRatio:
		shape, err := parseShape(f.shape)
		if err != nil {
			return err
		}
		profile.Shape = shape
	default:
		return fmt.Errorf("--fit-strategy: %q: want LeastAllocated, MostAllocated or RequestedToCapacityRatio", f.strategy)
	}
	profile.FitStrategy = f.strategy
	var err error
	if profile.FitResources, err = parseWeights(f.fitResources); err != nil {
		return err
	}
	f.cluster.Settings = cluster.Settings{Shards: f.shards, Seed: f.seed, Profiles: []cluster.Profile{profile}}
	return nil
}

func parseWeights(items []string) ([]cluster.PluginWeight, error) {
	var out []cluster.PluginWeight
	seen := make(map[string]bool)
	for _, item := range items {
		cut := strings.LastIndex(item, ":")
		var w cluster.PluginWeight
		if cut > 0 {
			w.Name = item[:cut]
			if _, err := fmt.Sscanf(item[cut+1:], "%d", &w.Weight); err != nil {
				w.Weight = 0
			}
		}
		if w.Weight < 1 || w.Weight > 100 || seen[w.Name] {
			return nil, fmt.Errorf("--fit-resources: %q: want resource:weight, each resource once, weights 1 to 100", item)
		}
		seen[w.Name] = true
		out = append(out, w)
	}
	if len(out) == 0 {
		return nil, errors.New("--fit-resources: must not be empty")
	}
	return out, nil
}

func parseShape(items []string) ([]cluster.ShapePoint, error) {
	var out []cluster.ShapePoint
	for _, item := range items {
		var p cluster.ShapePoint
		n, err := fmt.Sscanf(item, "%d:%d", &p.Utilization, &p.Score)
		increasing := len(out) == 0 || p.Utilization > out[len(out)-1].Utilization
		if err != nil || n != 2 || p.Utilization < 0 || p.Utilization > 100 || p.Score < 0 || p.Score > 10 || !increasing {
			return nil, fmt.Errorf("--fit-shape: %q: want utilization:score with utilizations 0 to 100, increasing, and scores 0 to 10", item)
		}
		out = append(out, p)
	}
	if len(out) == 0 {
		return nil, errors.New("--fit-shape: must not be empty")
	}
	return out, nil
}

func defaultDataDir() string {
	if dir, err := os.UserHomeDir(); err == nil {
		return filepath.Join(dir, ".berth")
	}
	return "berth-data"
}

// addHTTP adds the flag of the JSON API.
func addHTTP(fs *pflag.FlagSet, p *roles.Public) {
	fs.StringVar(&p.HTTPListen, "http-listen", "127.0.0.1:7080", "where to serve the public API as JSON over HTTP; empty: nowhere")
}

func addBatch(fs *pflag.FlagSet, q *roles.Queue) {
	fs.IntVar(&q.BatchSize, "batch-size", 256, "pods a shard attempts at once, 1 to 10000")
}

func checkBatch(q roles.Queue) error {
	if q.BatchSize < 1 || q.BatchSize > 10_000 {
		return fmt.Errorf("--batch-size: %d: want 1 to 10000", q.BatchSize)
	}
	return nil
}

func allCommand() *cobra.Command {
	var f commonFlags
	var cl clusterFlags
	var o roles.AllOptions
	c := &cobra.Command{
		Use:   "all",
		Short: "Run every role in this process; without --etcd-endpoints, an etcd too",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(f.finish("berth", false), cl.finish(), checkBatch(o.Queue)); err != nil {
				return err
			}
			if o.Queues < 1 || o.FilterWorkers < 1 || o.ScoreWorkers < 1 {
				return errors.New("--queues, --filter-workers and --score-workers: want at least 1 each")
			}
			o.Cluster = cl.cluster
			return f.run(cmd.Context(), "all", func(ctx context.Context) error { return roles.All(ctx, f.common, o) })
		},
	}
	fs := c.Flags()
	f.add(fs, "127.0.0.1:7070")
	cl.add(fs)
	addHTTP(fs, &o.Public)
	addBatch(fs, &o.Queue)
	fs.StringVar(&o.DataDir, "data-dir", defaultDataDir(), "where the embedded etcd keeps its data")
	fs.IntVar(&o.Queues, "queues", 1, "queue members")
	fs.IntVar(&o.FilterWorkers, "filter-workers", 1, "filter-workers")
	fs.IntVar(&o.ScoreWorkers, "score-workers", 1, "score-workers")
	return c
}

// roleCommand is a command that runs one role in a process of its own.
func roleCommand(name, short, listen string, extra func(*pflag.FlagSet), check func() error, run func(context.Context, roles.Common) error) *cobra.Command {
	var f commonFlags
	c := &cobra.Command{
		Use:   name,
		Short: short,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(f.finish(name, true), check()); err != nil {
				return err
			}
			return f.run(cmd.Context(), name, func(ctx context.Context) error { return run(ctx, f.common) })
		},
	}
	f.add(c.Flags(), listen)
	extra(c.Flags())
	return c
}

func binderCommand() *cobra.Command {
	var cl clusterFlags
	return roleCommand("binder", "Run a binder: the one that is elected owns the ledger", "127.0.0.1:0", cl.add, cl.finish,
		func(ctx context.Context, c roles.Common) error { return roles.Binder(ctx, c, cl.cluster) })
}

func queueCommand() *cobra.Command {
	var q roles.Queue
	return roleCommand("queue", "Run a queue member: it holds shards of the queue and drives their cycles", "127.0.0.1:0",
		func(fs *pflag.FlagSet) { addBatch(fs, &q) }, func() error { return checkBatch(q) },
		func(ctx context.Context, c roles.Common) error { return roles.QueueMember(ctx, c, q) })
}

func filterWorkerCommand() *cobra.Command {
	return roleCommand("filter-worker", "Run a filter-worker: it tells which nodes can run a class", "127.0.0.1:0", func(*pflag.FlagSet) {}, func() error { return nil }, roles.FilterWorker)
}

func scoreWorkerCommand() *cobra.Command {
	return roleCommand("score-worker", "Run a score-worker: it tells which of them are best", "127.0.0.1:0", func(*pflag.FlagSet) {}, func() error { return nil }, roles.ScoreWorker)
}

func gatewayCommand() *cobra.Command {
	var p roles.Public
	return roleCommand("gateway", "Run a gateway: it serves the public API", "127.0.0.1:7070",
		func(fs *pflag.FlagSet) { addHTTP(fs, &p) }, func() error { return nil },
		func(ctx context.Context, c roles.Common) error { return roles.Gateway(ctx, c, p) })
}
