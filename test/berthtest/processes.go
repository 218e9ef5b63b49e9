package berthtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/coord/etcdtest"
	"github.com/berth-scheduler/berth/internal/kubetest"
)

// Binary builds cmd/berth, once per test binary, and returns its path.
func Binary(t testing.TB) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var build = sync.OnceValues(func() (string, error) {
	mod, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the module's root: %w", err)
	}
	root := filepath.Dir(strings.TrimSpace(string(mod)))
	path := filepath.Join(root, ".bin", "test", "berth")
	cmd := exec.Command("go", "build", "-C", root, "-o", path, "./cmd/berth")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as it ships, so that its packages are compiled once
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build berth: %w\n%s", err, out)
	}
	return path, nil
})

// Crew says how many processes of each role to start.
type Crew struct {
	Binders, Queues, FilterWorkers, ScoreWorkers int
	Kubeconfig                                   string // the kube source; "" is the local one
	Shards                                       int
	LeaseTTL                                     time.Duration // 0 means 2 s
	Profiling                                    bool          // every process serves metrics and profiles; see Ops
}

// Processes is a Berth whose roles are separate processes.
type Processes struct {
	*Berth
	Etcd *etcdtest.Process
	// ByID are the running and the ended processes: binder-0, queue-0, filter-worker-0, score-worker-0, gateway-0 …
	ByID map[string]*kubetest.Process

	t         testing.TB
	binary    string
	dir       string
	crew      Crew
	grpc, web string
}

// StartProcesses starts an etcd, the crew and one gateway, each in a process of its own, and waits until they are ready.
func StartProcesses(t testing.TB, crew Crew) *Processes {
	t.Helper()
	p := NewProcesses(t, crew)
	for role, n := range map[string]int{"binder": crew.Binders, "queue": crew.Queues, "filter-worker": crew.FilterWorkers, "score-worker": crew.ScoreWorkers} {
		for i := range n {
			p.Start(role, i)
		}
	}
	p.Start("gateway", 0)
	p.AwaitReady()
	return p
}

// NewProcesses starts only the etcd; Start starts the others, in any order.
func NewProcesses(t testing.TB, crew Crew) *Processes {
	t.Helper()
	if crew.LeaseTTL == 0 {
		crew.LeaseTTL = 2 * time.Second
	}
	ports, err := kubetest.FreePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	p := &Processes{
		t: t, binary: Binary(t), dir: t.TempDir(), crew: crew, ByID: make(map[string]*kubetest.Process),
		Etcd: etcdtest.Start(t), grpc: "127.0.0.1:" + ports[0], web: "127.0.0.1:" + ports[1],
	}
	p.Berth = &Berth{t: t, GRPCAddress: p.grpc, HTTPAddress: p.web}
	p.connect()
	t.Cleanup(func() {
		p.Conn.Close()
		for id, proc := range p.ByID {
			proc.Stop()
			if t.Failed() {
				t.Logf("%s:\n%s", id, proc.LogTail(4<<10))
			}
		}
	})
	return p
}

// Start starts one process of a role. Its id is the role and the number.
func (p *Processes) Start(role string, number int) *kubetest.Process {
	p.t.Helper()
	id := fmt.Sprintf("%s-%d", role, number)
	args := []string{p.binary, role, "--id", id, "--etcd-endpoints", strings.Join(p.Etcd.Endpoints(), ","), "--lease-ttl", p.crew.LeaseTTL.String()}
	if p.crew.Profiling {
		args = append(args, "--metrics-listen", "127.0.0.1:0", "--profiling")
	}
	switch role {
	case "gateway":
		args = append(args, "--listen", p.grpc, "--http-listen", p.web)
	case "binder":
		args = append(args, "--shards", fmt.Sprint(max(p.crew.Shards, 1)))
		if p.crew.Kubeconfig != "" {
			args = append(args, "--kubeconfig", p.crew.Kubeconfig)
		}
	}
	proc, err := kubetest.StartProcess(id, filepath.Join(p.dir, id+".log"), args...)
	if err != nil {
		p.t.Fatal(err)
	}
	p.ByID[id] = proc
	return proc
}

// Log returns what a process has written.
func (p *Processes) Log(id string) string {
	b, err := os.ReadFile(filepath.Join(p.dir, id+".log"))
	if err != nil {
		p.t.Fatal(err)
	}
	return string(b)
}

// Ops returns where a process of a crew with profiling serves its metrics and profiles.
func (p *Processes) Ops(id string) string {
	_, after, found := strings.Cut(p.Log(id), `msg="serving metrics and readiness" address=`)
	if !found {
		p.t.Fatalf("%s has not said where it serves metrics", id)
	}
	return strings.Fields(after)[0]
}

// Leader waits until there is an active binder that is not the given one, and returns its id.
func (p *Processes) Leader(not string) string {
	p.t.Helper()
	leader := ""
	Await(p.t, Patience, "an active binder", func(ctx context.Context) error {
		s, err := p.status(ctx)
		if err != nil {
			return err
		}
		if leader = s.GetLeader(); leader == "" || leader == not {
			return fmt.Errorf("the leader is %q", leader)
		}
		return nil
	})
	return leader
}
