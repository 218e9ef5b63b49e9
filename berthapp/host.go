package berthapp

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/berth-scheduler/berth/internal/command"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/placeserver"
	"github.com/berth-scheduler/berth/internal/pluginproto"
)

const (
	// hungFor is how long plugins may go on when nobody waits any more for what they say: then they hang, and so does everybody who comes next.
	hungFor = 5 * time.Second
	// madeWithin is how long plugins may take to be made, and to read the cluster.
	madeWithin = 5 * time.Minute
	// garbagePercent is how much garbage there may be, of what is not, as long as there is memory: nearly all that an answer needs is garbage once it is given.
	garbagePercent = 300
	// muchMemory is with how much: the limit on Go's memory leaves little for all else where there is less.
	muchMemory = 1 << 30
	// hungCode is the exit code of a process whose plugins hang.
	hungCode = 3
)

// hostFlags are those of the command that runs plugins.
type hostFlags struct {
	config, kubeconfig, profile, socket, metrics string

	timeout  time.Duration
	memory   int64
	describe bool
}

// hostCommand is the command by which Berth runs the plugins of a profile, in a process of its own.
func hostCommand(p *plugins) *cobra.Command {
	var f hostFlags
	c := &cobra.Command{
		Use: "plugin-host", Short: "Run the compiled-in plugins of a profile: Berth does that itself", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			klog.LogToStderr(true)
			if f.memory > 0 {
				debug.SetMemoryLimit(f.memory - f.memory/10) // not all memory is Go's
				if _, set := os.LookupEnv("GOGC"); !set && f.memory >= muchMemory {
					debug.SetGCPercent(garbagePercent)
				}
			}
			cfg, err := p.load(f.config, f.kubeconfig)
			if err != nil {
				return err
			}
			if f.describe {
				out := os.NewFile(command.DescribedFile, "described") // what plugins write goes elsewhere
				return errors.Join(json.NewEncoder(out).Encode(p.describe(cmd.Context(), cfg)), out.Close())
			}
			ctx, stop := context.WithCancelCause(cmd.Context())
			defer stop(nil)
			go func() { // it ends with its parent, however that ends
				_, _ = io.Copy(io.Discard, cmd.InOrStdin())
				stop(nil)
				time.Sleep(hungFor)
				os.Exit(hungCode)
			}()
			l, err := listen(f.socket)
			if err != nil {
				return err
			}
			if f.metrics != "" {
				end, err := serveMetrics(f.metrics)
				if err != nil {
					return err
				}
				defer end()
				defer context.AfterFunc(ctx, end)()
			}
			return p.serve(ctx, cfg, f.profile, f.timeout, l)
		},
	}
	fs := c.Flags()
	fs.StringVar(&f.config, "config", "", "the KubeSchedulerConfiguration")
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "how to reach the API server")
	fs.StringVar(&f.profile, "profile", "", "the scheduler name of the profile")
	fs.StringVar(&f.socket, "socket", "", "where to serve")
	fs.StringVar(&f.metrics, "metrics-socket", "", "where to serve what is measured")
	fs.DurationVar(&f.timeout, "timeout", 5*time.Second, "how long an answer may take")
	fs.Int64Var(&f.memory, "memory", 0, "how many bytes of memory the process may have")
	logs := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(logs)
	for _, name := range []string{"v", "vmodule"} {
		fs.AddGoFlag(logs.Lookup(name))
	}
	fs.BoolVar(&f.describe, "describe", false, "make the plugins of all profiles, say what they are, and end")
	return c
}

// listen listens on a socket for nobody but this user.
func listen(socket string) (net.Listener, error) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) { // that of a process before, which was killed
		return nil, err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// describe makes the plugins of all profiles.
func (p *plugins) describe(ctx context.Context, cfg *loaded) command.Described {
	out := command.Described{Points: make(map[string][]string), Errors: make(map[string]string)}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for i := range cfg.Profiles {
		profile := p.stripped(&cfg.Profiles[i])
		if !p.uses(profile) {
			continue
		}
		made, err := p.newProfile(ctx, cfg, profile)
		if err != nil {
			out.Errors[profile.SchedulerName] = err.Error()
		}
		for name, plugin := range made {
			out.Points[name] = pointsOf(plugin)
		}
	}
	return out
}

// serve serves the plugins of a profile until ctx ends. It does from the start, and says that they are being made until they are.
func (p *plugins) serve(ctx context.Context, cfg *loaded, schedulerName string, timeout time.Duration, l net.Listener) error {
	h := &host{timeout: timeout, turn: make(chan struct{}, 1)}
	server := grpc.NewServer(grpc.WaitForHandlers(true), grpc.MaxRecvMsgSize(pluginproto.MaxRequestBytes), grpc.MaxSendMsgSize(pluginproto.MaxRequestBytes))
	pluginv1.RegisterPluginServiceServer(server, h)
	healthv1.RegisterHealthServer(server, health.NewServer())
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	var profile *profile
	defer func() {
		server.Stop() // what plugins have reserved is taken back
		if profile != nil {
			profile.close()
		}
	}()
	made := time.AfterFunc(madeWithin, func() {
		hangs(fmt.Sprintf("they have not been made, or have not read the cluster, within %v", madeWithin))
	})
	profile, err := p.start(ctx, cfg, schedulerName, &h.placing, timeout)
	made.Stop()
	if err != nil {
		return err
	}
	h.profile.Store(profile)
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
		return nil
	}
}

// host serves berth.plugin.v1.
type host struct {
	pluginv1.UnimplementedPluginServiceServer
	timeout time.Duration
	profile atomic.Pointer[profile] // nil: it is being made
	turn    chan struct{}           // who has put something in has the turn: one stream of questions at a time, for plugins see one state of the cluster
	placing placeserver.Server
}

var errMaking = status.Error(codes.Unavailable, "the plugins are being made, and read the cluster")

// Describe says which plugins the profile has. Each depends on the pod itself and on all of the cluster, as in kube-scheduler.
func (h *host) Describe(context.Context, *pluginv1.DescribeRequest) (*pluginv1.DescribeResponse, error) {
	profile := h.profile.Load()
	if profile == nil {
		return nil, errMaking
	}
	out := &pluginv1.DescribeResponse{Activates: true}
	for _, name := range profile.names {
		out.Plugins = append(out.Plugins, &pluginv1.PluginDescription{
			Name: name, Filters: true, Scores: true, Normalization: pluginv1.Normalization_NORMALIZATION_OWN,
			Depends:  &pluginv1.Dependencies{Requested: true, Pods: true, Objects: true, Pod: true, Cluster: true},
			Reserves: true, Permits: true, PreBinds: true, PostBinds: true, PostFilters: true, Binds: true, PreEnqueues: true, QueueSorts: true, // where each runs, Berth has been told
		})
	}
	return out, nil
}

// Judge answers by what has been told on the stream.
func (h *host) Judge(stream pluginv1.PluginService_JudgeServer) error {
	profile := h.profile.Load()
	if profile == nil {
		return errMaking
	}
	ctx := stream.Context()
	select {
	case h.turn <- struct{}{}:
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
	defer func() { <-h.turn }()
	w, err := newWorld(ctx, profile, h.timeout)
	if err != nil {
		return err
	}
	defer w.close()
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		response, err := h.answer(ctx, w, request)
		if err != nil {
			return err
		}
		if err := stream.Send(response); err != nil {
			return err
		}
	}
}

// answer answers a request.
func (h *host) answer(ctx context.Context, w *world, request *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error) {
	leave, err := w.profile.enterCycle(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	defer watch(ctx)()
	return w.answer(ctx, request)
}

// watch looks after plugins until done: if they do not come to an end though nobody waits for them any more, the process ends, and says where they are.
func watch(ctx context.Context) (done func()) {
	over := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		wait := time.NewTimer(hungFor)
		defer wait.Stop()
		select {
		case <-over:
		case <-wait.C:
			hangs(fmt.Sprintf("nobody has waited for %v for what they say", hungFor))
		}
	})
	return func() { stop(); close(over) }
}

// hangs ends the process, whose plugins hang, and says where they are.
func hangs(why string) {
	stacks := make([]byte, 256<<10)
	stacks = stacks[:runtime.Stack(stacks, true)]
	fmt.Fprintf(os.Stderr, "plugins hang: %s. Goroutines:\n%s\n", why, stacks)
	os.Exit(hungCode)
}
