package command

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berth-scheduler/berth/internal/roles"
)

// commonFlags are the flags of every role.
type commonFlags struct {
	common roles.Common
	all    *pflag.FlagSet
	tls    tlsFlags
	log    LogFlags
}

func (f *commonFlags) add(fs *pflag.FlagSet, listen string) {
	f.all = fs
	section(fs, memberSection, func(fs *pflag.FlagSet) { f.addMember(fs, listen) })
	section(fs, etcdSection, func(fs *pflag.FlagSet) {
		addEtcd(fs, &f.common)
		f.tls.addEtcd(fs)
	})
	section(fs, tlsSection, f.tls.add)
	section(fs, opsSection, func(fs *pflag.FlagSet) { addOps(fs, &f.common) })
	section(fs, logSection, f.log.Add)
}

// addMember adds the flags of who the member is, and where it serves.
func (f *commonFlags) addMember(fs *pflag.FlagSet, listen string) {
	addIdentity(fs, &f.common)
	fs.StringVar(&f.common.Listen, "listen", listen, "where to serve gRPC, as host:port; port 0 picks a free one")
	fs.StringVar(&f.common.Advertise, "advertise", "", "the host, or host:port, under which other roles reach this one (default: that of --listen, or this machine's name if that is all interfaces)")
}

// addIdentity adds those of who it is.
func addIdentity(fs *pflag.FlagSet, c *roles.Common) {
	fs.StringVar(&c.ID, "id", "", "the member's id; must be unique (default: the role, the host's name and a random suffix)")
	fs.DurationVar(&c.LeaseTTL, "lease-ttl", 5*time.Second, "how long a role that fell silent keeps what it holds; 1s to 1m")
}

// addEtcd adds the flags of where etcd is, and whose.
func addEtcd(fs *pflag.FlagSet, c *roles.Common) {
	fs.StringSliceVar(&c.EtcdEndpoints, "etcd-endpoints", nil, "etcd's client URLs: https://host:port, or on this machine http://127.0.0.1:port or unix:///path")
	fs.StringVar(&c.EtcdPrefix, "etcd-prefix", "/berth/", "under which all keys in etcd are")
	fs.BoolVar(&c.EtcdOwned, "etcd-owned", false, "etcd is this Berth's alone: the active binder compacts it, if it has no users. Another's is only looked at")
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
	if host, _, err := net.SplitHostPort(f.common.Listen); f.common.Advertise == "" && err == nil && isUnspecified(host) {
		if f.common.Advertise, err = os.Hostname(); err != nil {
			return fmt.Errorf("--listen names all interfaces, --advertise is not set, and there is no host name: %w", err)
		}
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
	f.common.TLS, f.common.EtcdTLS, f.common.Flags = f.tls.roles, f.tls.etcd, flagValues(f.all)
	return cmp.Or(f.tls.finish(f.common.EtcdEndpoints), f.tls.allows("--listen", f.common.Listen), f.tls.allows("--advertise", f.common.Advertise),
		f.tls.allows("--metrics-listen", f.common.OpsListen), checkOps(&f.common))
}

// isUnspecified reports whether a host to listen on stands for all interfaces.
func isUnspecified(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}

func defaultDataDir() string {
	if dir, err := os.UserHomeDir(); err == nil {
		return filepath.Join(dir, ".berth")
	}
	return "berth-data"
}

// addHTTP adds the flag of the JSON API.
func addHTTP(fs *pflag.FlagSet, p *roles.Public) {
	fs.StringVar(&p.HTTPListen, "http-listen", "127.0.0.1:7080", "where to serve the page, and the public API as JSON, over HTTP; empty: nowhere")
	fs.StringSliceVar(&p.AllowedHosts, "allowed-hosts", nil, "names under which that is asked for, besides addresses, localhost, that of --http-listen and of --advertise, and those in the certificate")
}

func addBatch(fs *pflag.FlagSet, q *roles.Queue) {
	fs.IntVar(&q.BatchSize, "batch-size", 256, "pods a shard attempts at once, 1 to 1000")
}

func checkBatch(q roles.Queue) error {
	if q.BatchSize < 1 || q.BatchSize > 1000 {
		return fmt.Errorf("--batch-size: %d: want 1 to 1000", q.BatchSize)
	}
	return nil
}

func allCommand(in *CompiledIn) *cobra.Command {
	var f commonFlags
	cl := clusterFlags{compiledIn: compiledInFlags{in: in}}
	var o roles.AllOptions
	var peers peerFlags
	c := &cobra.Command{
		Use:   "all",
		Short: "Run every role in this process; without --etcd-endpoints, an etcd too",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(f.finish("berth", false), f.tls.allows("--http-listen", o.HTTPListen),
				checkAccess(&o.Access, f.common.Listen, o.HTTPListen), cl.finish(cmd.Context(), cmd.Flags()), checkBatch(o.Queue)); err != nil {
				return err
			}
			if cl.writeTo != "" {
				return cl.write()
			}
			if err := checkParts(o); err != nil {
				return err
			}
			var err error
			if o.Peers, err = peers.of(o.DataDir, f.common.EtcdEndpoints); err != nil {
				return err
			}
			o.Cluster = cl.cluster
			cl.profile(&f.common)
			return f.run(cmd.Context(), "all", func(ctx context.Context) error {
				cl.logNotes(f.common.Log)
				useThreads(minThreads)
				return roles.All(ctx, f.common, o)
			})
		},
	}
	fs := c.Flags()
	f.add(fs, "127.0.0.1:7070")
	cl.add(fs)
	cl.addConfig(fs)
	section(fs, publicSection, func(fs *pflag.FlagSet) {
		addHTTP(fs, &o.Public)
		addAccess(fs, &o.Access)
	})
	section(fs, etcdSection, func(fs *pflag.FlagSet) {
		fs.StringVar(&o.DataDir, "data-dir", defaultDataDir(), "where the embedded etcd keeps its data")
	})
	section(fs, peersSection, peers.add)
	section(fs, partsSection, func(fs *pflag.FlagSet) { addParts(fs, &o) })
	return c
}

// addParts adds the flags of how many of each role a process has.
func addParts(fs *pflag.FlagSet, o *roles.AllOptions) {
	addBatch(fs, &o.Queue)
	fs.IntVar(&o.Queues, "queues", 1, "queue members")
	fs.IntVar(&o.FilterWorkers, "filter-workers", 1, "filter-workers")
	fs.IntVar(&o.ScoreWorkers, "score-workers", 1, "score-workers")
}

func checkParts(o roles.AllOptions) error {
	if o.Queues < 1 || o.FilterWorkers < 1 || o.ScoreWorkers < 1 {
		return errors.New("--queues, --filter-workers and --score-workers: want at least 1 each")
	}
	return nil
}

// roleCommand is a command that runs one role in a process of its own.
type roleCommand struct {
	name, short string
	listen      string                   // the default of --listen; "" means 127.0.0.1:0
	flags       func(*pflag.FlagSet)     // adds those of this role; nil: there are none
	check       func(*commonFlags) error // says what is wrong with them; nil: nothing
	run         func(context.Context, roles.Common) error
}

func (r roleCommand) command() *cobra.Command {
	var f commonFlags
	c := &cobra.Command{
		Use:   r.name,
		Short: r.short,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := f.finish(r.name, true)
			if r.check != nil {
				err = errors.Join(err, r.check(&f))
			}
			if err != nil {
				return err
			}
			return f.run(cmd.Context(), r.name, func(ctx context.Context) error { return r.run(ctx, f.common) })
		},
	}
	f.add(c.Flags(), cmp.Or(r.listen, "127.0.0.1:0"))
	if r.flags != nil {
		r.flags(c.Flags())
	}
	return c
}

func binderCommand(in *CompiledIn) *cobra.Command {
	var f commonFlags
	cl := clusterFlags{compiledIn: compiledInFlags{in: in}}
	c := &cobra.Command{
		Use:   "binder",
		Short: "Run a binder: the one that is elected owns the ledger",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(f.finish("binder", cl.writeTo == ""), cl.finish(cmd.Context(), cmd.Flags())); err != nil {
				return err
			}
			if cl.writeTo != "" {
				return cl.write()
			}
			cl.profile(&f.common)
			return f.run(cmd.Context(), "binder", func(ctx context.Context) error {
				cl.logNotes(f.common.Log)
				return roles.Binder(ctx, f.common, cl.cluster)
			})
		},
	}
	f.add(c.Flags(), "127.0.0.1:0")
	cl.add(c.Flags())
	cl.addConfig(c.Flags())
	return c
}

func queueCommand() *cobra.Command {
	var q roles.Queue
	return roleCommand{
		name:  "queue",
		short: "Run a queue member: it holds shards of the queue and drives their cycles",
		flags: func(fs *pflag.FlagSet) {
			section(fs, partsSection, func(fs *pflag.FlagSet) { addBatch(fs, &q) })
		},
		check: func(*commonFlags) error { return checkBatch(q) },
		run:   func(ctx context.Context, c roles.Common) error { return roles.QueueMember(ctx, c, q) },
	}.command()
}

func filterWorkerCommand() *cobra.Command {
	return roleCommand{name: "filter-worker", short: "Run a filter-worker: it tells which nodes can run a class", run: roles.FilterWorker}.command()
}

func scoreWorkerCommand() *cobra.Command {
	return roleCommand{name: "score-worker", short: "Run a score-worker: it tells which of them are best", run: roles.ScoreWorker}.command()
}

func gatewayCommand() *cobra.Command {
	var p roles.Public
	return roleCommand{
		name:   "gateway",
		short:  "Run a gateway: it serves the public API",
		listen: "127.0.0.1:7070",
		flags: func(fs *pflag.FlagSet) {
			section(fs, publicSection, func(fs *pflag.FlagSet) {
				addHTTP(fs, &p)
				addAccess(fs, &p.Access)
			})
		},
		check: func(f *commonFlags) error {
			return errors.Join(f.tls.allows("--http-listen", p.HTTPListen), checkAccess(&p.Access, f.common.Listen, p.HTTPListen))
		},
		run: func(ctx context.Context, c roles.Common) error {
			useThreads(runtime.NumCPU() + spareThreads)
			floor := heapFloor()
			defer runtime.KeepAlive(floor)
			return roles.Gateway(ctx, c, p)
		},
	}.command()
}
