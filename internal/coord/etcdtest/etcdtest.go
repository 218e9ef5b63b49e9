// Package etcdtest runs a real etcd in a process of its own, for tests that need to kill, pause or restart it.
// The etcd is kubetest's: built from the module's own requirements, once per version.
// It talks to etcd over plain HTTP only; use package coord for everything else.
package etcdtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

const (
	buildTimeout = 10 * time.Minute
	startTimeout = 5 * time.Minute
	startTries   = 3 // a free port can be taken by another process before etcd listens on it
)

// Process is a member of an etcd. It is killed when the test ends.
// Its methods are for the test's own goroutine; they fail the test when they cannot do what they say.
type Process struct {
	t       testing.TB
	binary  string
	name    string
	dir     string
	client  string // host:port
	peer    string
	cluster string // name=URL of all members, by commas
	flags   []string

	cmd    *exec.Cmd
	exited chan struct{} // closed when cmd has been waited for
	output *buffer
}

// Start starts an etcd of one member, see StartCluster.
func Start(t testing.TB, flags ...string) *Process {
	t.Helper()
	return StartCluster(t, 1, flags...)[0]
}

// StartCluster builds etcd if needed, starts n members on free loopback ports, with flags of etcd besides those it needs for that,
// and waits until all are healthy.
func StartCluster(t testing.TB, n int, flags ...string) []*Process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	built, err := kubetest.Build(ctx, kubetest.Etcd)
	if err != nil {
		t.Fatal(err)
	}
	binary := built[kubetest.Etcd]
	for try := 1; ; try++ {
		var members []*Process
		var cluster []string
		for i := range n {
			p := &Process{t: t, binary: binary, name: fmt.Sprintf("test-%d", i), dir: t.TempDir(), client: freeAddress(t), peer: freeAddress(t), flags: flags}
			t.Cleanup(p.kill)
			members = append(members, p)
			cluster = append(cluster, p.name+"=http://"+p.peer)
		}
		var err error
		for _, p := range members {
			p.cluster = strings.Join(cluster, ",")
			err = errors.Join(err, p.start())
		}
		for _, p := range members {
			if err == nil {
				err = p.awaitHealth()
			}
		}
		if err == nil {
			return members
		}
		for _, p := range members {
			p.kill()
			if try == startTries {
				t.Errorf("output of %s:\n%s", p.name, p.output)
			}
		}
		if try == startTries {
			t.Fatalf("start etcd: %v", err)
		}
	}
}

// Endpoints returns where clients connect; it does not change over restarts.
func (p *Process) Endpoints() []string { return []string{p.client} }

// Dir returns the data directory, which is etcd's own while it runs.
func (p *Process) Dir() string { return filepath.Join(p.dir, "data") }

// Cluster returns the names of all members with their peer URLs, as etcd's --initial-cluster has them.
func (p *Process) Cluster() string { return p.cluster }

// Kill ends the process at once, paused or not, and waits for it. The data stays.
func (p *Process) Kill() {
	p.t.Helper()
	p.kill()
}

// Pause stops the process where it is; its connections stay open and nothing answers when Pause has returned.
func (p *Process) Pause() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	if err := awaitStopped(p.cmd.Process.Pid); err != nil {
		p.t.Fatalf("wait for etcd to stop: %v", err)
	}
}

// Continue lets a paused process go on.
func (p *Process) Continue() {
	p.t.Helper()
	p.signal(syscall.SIGCONT)
}

// Restart kills the process if it runs, starts it again on its data and waits until it is healthy.
func (p *Process) Restart() {
	p.t.Helper()
	p.kill()
	err := p.start()
	if err == nil {
		err = p.awaitHealth()
	}
	if err != nil {
		p.t.Fatalf("restart etcd: %v\n%s", err, p.output)
	}
}

func (p *Process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("send %v to etcd: %v", s, err)
	}
}

func (p *Process) kill() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill() // the only error is that it has already exited
	<-p.exited
	p.cmd = nil
}

// start starts the process and does not wait until it is healthy.
func (p *Process) start() error {
	p.output = &buffer{}
	cmd := exec.Command(p.binary, append([]string{
		"--name=" + p.name, "--data-dir=" + p.Dir(), "--log-level=warn",
		"--listen-client-urls=http://" + p.client, "--advertise-client-urls=http://" + p.client,
		"--listen-peer-urls=http://" + p.peer, "--initial-advertise-peer-urls=http://" + p.peer,
		"--initial-cluster=" + p.cluster,
		"--heartbeat-interval=50", "--election-timeout=500",
		"--unsafe-no-fsync", // the tests kill the process, not the machine
	}, p.flags...)...)
	cmd.Stdout, cmd.Stderr = p.output, p.output
	started := make(chan error, 1)
	exited := make(chan struct{})
	go func() {
		// The kernel ends etcd together with the thread that started it, so that a test binary that is killed leaves
		// none behind; the thread has to stay for as long.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(exited)
		dieWithParent(cmd)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in its output
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	p.cmd, p.exited = cmd, exited
	return nil
}

func (p *Process) awaitHealth() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true}
	client := &http.Client{Transport: transport, Timeout: 2 * time.Second}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	last := fmt.Errorf("not asked yet")
	for {
		select {
		case <-tick.C:
		case <-p.exited:
			return fmt.Errorf("etcd has exited")
		case <-ctx.Done():
			return fmt.Errorf("etcd is not healthy after %v: %w", startTimeout, last)
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.client+"/health", nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			last = err
			continue
		}
		body, err := io.ReadAll(io.LimitReader(response.Body, 1024))
		response.Body.Close()
		if err == nil && response.StatusCode == http.StatusOK {
			return nil
		}
		last = fmt.Errorf("%s: %s", response.Status, body)
	}
}

func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("find a free port: %v", err)
	}
	defer l.Close()
	return l.Addr().String()
}

// buffer keeps the last output of a process; it may be written and read at the same time.
type buffer struct {
	mu   sync.Mutex
	text []byte
}

const maxOutput = 64 << 10

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text = append(b.text, p...)
	if extra := len(b.text) - maxOutput; extra > 0 {
		b.text = append(b.text[:0], b.text[extra:]...)
	}
	return len(p), nil
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.text)
}
