package roles

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/child"
	"github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/internal/coord"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/pluginenv"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// longestSocket is how long the path of a socket may be.
const longestSocket = 100

// newSocketDir makes a directory for sockets, which is nobody else's. Whoever makes it removes it.
func newSocketDir() (string, error) {
	dir, err := os.MkdirTemp("", "berth-plugins-")
	if err != nil {
		return "", fmt.Errorf("make a directory for sockets: %w", err)
	}
	return dir, nil
}

// makeSocketDir makes a directory for sockets again, if it is gone. What is there instead may be somebody else's, who would read and answer what plugins are asked: that is an error.
func makeSocketDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	is, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !is.IsDir() || is.Mode().Perm()&0o077 != 0 || !coord.OwnedByThisUser(is) {
		return fmt.Errorf("the directory for sockets, %s, is not the one that was made, or open to others: want a directory of this user's only", dir)
	}
	return nil
}

// socketsIn returns where in a directory a process serves its plugins, and where it serves what it measures.
func socketsIn(dir string, n int) (socket, metrics string, err error) {
	socket, metrics = filepath.Join(dir, fmt.Sprintf("%d.sock", n)), filepath.Join(dir, fmt.Sprintf("%d.m", n))
	if max(len(socket), len(metrics)) > longestSocket {
		return "", "", fmt.Errorf("the directory of temporary files, %s, has too long a path for a socket", os.TempDir())
	}
	return socket, metrics, nil
}

// idle reports whether Berth would run or serve a service of which no profile uses a plugin.
func (c *Cluster) idle(s *config.PluginService) bool {
	var names []string
	for _, p := range s.Plugins {
		names = append(names, p.Name)
	}
	for i := range c.Settings.Profiles {
		p := &c.Settings.Profiles[i]
		if usesAny(p, c.PluginSteps[p.SchedulerName], names) {
			return false
		}
	}
	return s.Run != nil || s.InProcess
}

// runService runs a service in a process of its own, in g until ctx ends, and returns the connection to it, which clients has. All profiles use the same process. One that panics, hangs or leaks harms only those who ask it.
func (e *env) runService(ctx context.Context, g *errgroup.Group, clients *rpc.Clients, s *config.PluginService, cl *Cluster) (grpc.ClientConnInterface, error) {
	if _, err := exec.LookPath(s.Run.Command[0]); err != nil {
		return nil, fmt.Errorf("run.command: %w", err)
	}
	dir, err := newSocketDir()
	if err != nil {
		return nil, err
	}
	process, conn, err := e.serviceProcess(clients, s, cl, dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	g.Go(func() error {
		defer os.RemoveAll(dir)
		child.Run(ctx, process)
		return nil
	})
	return conn, nil
}

// serviceProcess is the process of a service, with its sockets in a directory.
func (e *env) serviceProcess(clients *rpc.Clients, s *config.PluginService, cl *Cluster, dir string) (child.Config, *grpc.ClientConn, error) {
	socket, metrics, err := socketsIn(dir, 0)
	if err != nil {
		return child.Config{}, nil, err
	}
	env := append(slices.Clip(cl.PluginEnvironment), pluginenv.Socket+"="+socket, pluginenv.MetricsSocket+"="+metrics,
		fmt.Sprintf("GOMEMLIMIT=%d", s.Run.Memory-s.Run.Memory/10)) // not all memory is Go's
	if cl.Kubeconfig != "" {
		file, err := filepath.Abs(cl.Kubeconfig)
		if err != nil {
			return child.Config{}, nil, err
		}
		env = append(env, pluginenv.Kubeconfig+"="+file)
	}
	conn, err := clients.Conn("unix://" + socket)
	if err != nil {
		return child.Config{}, nil, err
	}
	e.hosted.Store(hostedService+s.Name, newHosted(metrics))
	return child.Config{
		Path: s.Run.Command[0], Args: s.Run.Command[1:], Env: env, Memory: s.Run.Memory, Log: e.Log.With("service", s.Name), Alive: alive(conn),
		Prepare: func() error { // each time: who tidies up temporary files may have taken the directory away, and a process that was killed has left its sockets
			if err := makeSocketDir(dir); err != nil {
				return err
			}
			for _, socket := range []string{socket, metrics} {
				if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
					return err
				}
			}
			return nil
		},
	}, conn, nil
}

// alive asks a service whether it lives: whatever it answers, it does, but that it is not there, or not yet.
func alive(conn grpc.ClientConnInterface) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := pluginv1.NewPluginServiceClient(conn).Describe(ctx, &pluginv1.DescribeRequest{})
		switch status.Code(err) {
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
			return err
		}
		return nil
	}
}
