package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

// Times of the daemon.
const (
	daemonStart = 30 * time.Second
	daemonStop  = 30 * time.Second
)

// daemon is a Docker daemon in network, mount and process namespaces of its own. Its bridges and packet filters are there,
// and ports that containers publish on the loopback address are published on that of its network namespace. All of it ends with the
// process that holds the namespaces, but for cgroups, which stop removes.
type daemon struct {
	proc   *kubetest.Process // unshare, the parent of dockerd
	pid    string            // of dockerd
	socket string
	cgroup string // name of the one that all others are in
}

// startDaemon starts a daemon with its state in dir, and waits until it answers.
func startDaemon(ctx context.Context, dir string) (*daemon, error) {
	d := &daemon{socket: "unix://" + filepath.Join(dir, "docker.sock"), cgroup: filepath.Base(dir)}
	var err error
	d.proc, err = kubetest.StartProcess("dockerd", filepath.Join(dir, "dockerd.log"),
		"unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "--",
		"sh", "-c", `ip link set lo up && exec dockerd "$@"`, "dockerd",
		"--host="+d.socket, "--data-root="+filepath.Join(dir, "data"), "--exec-root="+filepath.Join(dir, "exec"),
		"--pidfile="+filepath.Join(dir, "dockerd.pid"), "--bridge=none", "--cgroup-parent=/"+d.cgroup, "--log-level=warn")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, daemonStart)
	defer cancel()
	err = await(ctx, "the Docker daemon to answer", func(ctx context.Context) error {
		select {
		case <-d.proc.Done():
			return fatal{fmt.Errorf("it ended: %w", d.proc.Err())}
		default:
		}
		_, err := d.docker(ctx, "info")
		return err
	})
	if err == nil {
		// unshare has one child: the daemon.
		var children []byte
		children, err = os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", d.proc.PID()))
		d.pid = string(bytes.TrimSpace(children))
	}
	if err != nil {
		d.proc.Kill()
		err = fmt.Errorf("start a Docker daemon: nothing has been tested: %w\n%s", err, d.proc.LogTail(4<<10))
		return nil, errors.Join(err, d.removeCgroups())
	}
	return d, nil
}

// stop ends the daemon, and all that is left of its containers.
func (d *daemon) stop() (err error) {
	defer func() {
		d.proc.Kill()
		err = errors.Join(err, d.removeCgroups())
	}()
	if _, err := command(context.Background(), nil, "", "kill", "-TERM", d.pid); err != nil {
		return fmt.Errorf("stop the Docker daemon: %w", err)
	}
	select {
	case <-d.proc.Done():
		return nil
	case <-time.After(daemonStop):
		return fmt.Errorf("stop the Docker daemon: it runs %v after SIGTERM\n%s", daemonStop, d.proc.LogTail(4<<10))
	}
}

// removeCgroups removes what the daemon and its containers were in. There are no processes in it any more.
func (d *daemon) removeCgroups() error {
	var errs []error
	for _, root := range cgroupRoots() {
		var folders []string
		err := filepath.WalkDir(filepath.Join(root, d.cgroup), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				folders = append(folders, path)
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, folder := range slices.Backward(folders) { // the inner ones first
			errs = append(errs, os.Remove(folder))
		}
	}
	return errors.Join(errs...)
}

// environment is that of Docker's clients. Debian's come first: they and the daemon can build with BuildKit without a plugin.
func (d *daemon) environment(more ...string) []string {
	return append(append(os.Environ(), "PATH=/usr/bin:"+os.Getenv("PATH"), "DOCKER_HOST="+d.socket, "DOCKER_BUILDKIT=1", "COMPOSE_DOCKER_CLI_BUILD=1"), more...)
}

// docker runs a command of docker and returns its output, trimmed.
func (d *daemon) docker(ctx context.Context, args ...string) (string, error) {
	return command(ctx, d.environment(), "", "docker", args...)
}

// inside runs a command in the daemon's network and process namespaces.
func (d *daemon) inside(ctx context.Context, stdin string, args ...string) (string, error) {
	return command(ctx, nil, stdin, "nsenter", append([]string{"--target=" + d.pid, "--net", "--pid", "--"}, args...)...)
}

// command runs a program and returns its output, trimmed. Environment nil is this process'.
func command(ctx context.Context, environment []string, stdin, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = environment
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, errs.Bytes())
	}
	return strings.TrimSpace(out.String()), nil
}
