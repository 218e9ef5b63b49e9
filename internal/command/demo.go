package command

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/berth-scheduler/berth/internal/demo"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/roles"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// errDemoOver ends a demo that has shown everything.
var errDemoOver = errors.New("demo over")

func demoCommand() *cobra.Command {
	var f commonFlags
	var cl clusterFlags
	var o roles.AllOptions
	var exit bool
	c := &cobra.Command{
		Use:   "demo",
		Short: "Run every role on a generated GPU fleet, show what is placed, and keep serving",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(f.finish("demo", false), f.tls.allows("--http-listen", o.HTTPListen), cl.finish(cmd.Context(), cmd.Flags()), checkBatch(o.Queue)); err != nil {
				return err
			}
			if cl.cluster.Source != "local" || len(f.common.EtcdEndpoints) > 0 {
				return errors.New("demo: it makes a cluster of its own: --source=kube, --kubeconfig and --etcd-endpoints do not go with it")
			}
			if f.tls.roles.Cert != "" {
				return errors.New("demo: it serves on this machine only: --tls-cert does not go with it")
			}
			o.Cluster = cl.cluster
			return f.run(cmd.Context(), "demo", func(ctx context.Context) error { return runDemo(ctx, f.common, o, exit) })
		},
	}
	fs := c.Flags()
	f.add(fs, "127.0.0.1:7070")
	cl.add(fs)
	section(fs, publicSection, func(fs *pflag.FlagSet) { addHTTP(fs, &o.Public) })
	section(fs, partsSection, func(fs *pflag.FlagSet) { addBatch(fs, &o.Queue) })
	fs.BoolVar(&exit, "exit", false, "end after the summary instead of serving on")
	if err := fs.Set("log-level", "error"); err != nil {
		panic(err) // the flag is added above
	}
	return c
}

// runDemo runs all roles on an etcd that lives as long as the demo, and the demo against them.
func runDemo(ctx context.Context, c roles.Common, o roles.AllOptions, exit bool) error {
	dir, err := os.MkdirTemp("", "berth-demo-")
	if err != nil {
		return fmt.Errorf("make a directory for the demo's etcd: %w", err)
	}
	defer os.RemoveAll(dir)
	o.DataDir = dir
	useThreads(minThreads)
	serving := make(chan [2]string, 1)
	o.Serving = func(grpcAddress, httpAddress string) { serving <- [2]string{grpcAddress, httpAddress} }

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return roles.All(ctx, c, o) })
	g.Go(func() error {
		var at [2]string
		select {
		case at = <-serving:
		case <-ctx.Done():
			return nil
		}
		clients := rpc.NewClients(rpc.Config{Net: rpc.TCP(), Log: c.Log})
		defer clients.Close()
		conn, err := clients.Conn(at[0])
		if err != nil {
			return err
		}
		err = demo.Run(ctx, demo.Options{
			Client: schedulingv1.NewSchedulingServiceClient(conn), Out: os.Stdout, Seed: o.Settings.Seed, Terminal: isTerminal(os.Stdout),
		})
		if err != nil || exit {
			if err != nil {
				return fmt.Errorf("demo: %w", err)
			}
			return errDemoOver
		}
		fmt.Printf("\nserving   gRPC on %s, a page on http://%s/ and JSON on http://%[2]s/v1/status, until interrupted\n", at[0], at[1])
		fmt.Printf("try       berth why POD; berth get pods -A --pending; berth get status; berth whatif --help\n")
		return nil
	})
	if err := g.Wait(); err != errDemoOver {
		return err
	}
	return nil
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
