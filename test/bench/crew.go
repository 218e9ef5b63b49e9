package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/kubetest"
)

// crew is a Berth under measurement: "berth all", or an etcd and a process of each role. Its methods are for one goroutine.
type crew struct {
	cfg       config
	dir       string
	processes bool // each role in one
	etcd      *kubetest.Process
	endpoint  string        // etcd's
	etcdCPU   time.Duration // what etcd had used before the roles started

	environment []string // of the roles' processes, as NAME=value, besides this one's

	began   time.Time // when the first role's process was about to start
	roles   []*kubetest.Process
	ops     map[string]string // by role, where its process serves metrics, readiness and profiles
	metrics string            // of these, the binder's
	gateway string            // where the public API is

	ended  chan struct{} // closed when a role's process ends
	ending sync.Once
	waits  sync.WaitGroup // the goroutines that wait for processes
}

// newCrew returns a crew with its state and logs in dir, without roles.
func newCrew(ctx context.Context, cfg config, processes bool, dir string) (*crew, error) {
	c := &crew{cfg: cfg, dir: dir, processes: processes, ops: map[string]string{}, ended: make(chan struct{})}
	if processes {
		var err error
		if c.etcd, c.endpoint, err = startEtcd(ctx, dir, c.cores("etcd")); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// store calls use with a client of the crew's etcd. If etcd is a part of berth all, it runs in this process meanwhile, and no
// role may.
func (c *crew) store(ctx context.Context, use func(context.Context, *coord.Client) error) error {
	if c.etcd != nil {
		return withClient(ctx, []string{c.endpoint}, use)
	}
	// Where berth all has it, below --data-dir.
	etcd, err := coord.StartEmbedded(ctx, coord.EmbeddedConfig{Dir: filepath.Join(c.dir, "data", "etcd"), UnsafeNoFsync: true})
	if err != nil {
		return err
	}
	err = withClient(ctx, etcd.Endpoints(), use)
	if closed := etcd.Close(); err == nil {
		err = closed
	}
	return err
}

func withClient(ctx context.Context, endpoints []string, use func(context.Context, *coord.Client) error) error {
	client, err := coord.Connect(coord.Config{Endpoints: endpoints, RequestTimeout: time.Minute})
	if err != nil {
		return err
	}
	err = use(ctx, client)
	if closed := client.Close(); err == nil {
		err = closed
	}
	return err
}

// start starts the roles.
func (c *crew) start() error {
	commands, err := c.commands()
	if err != nil {
		return err
	}
	if c.etcd != nil {
		used, err := c.etcd.Usage()
		if err != nil {
			return err
		}
		c.etcdCPU = used.CPU
	}
	c.began = time.Now()
	for _, argv := range commands {
		role := argv[1]
		argv = slices.Concat(c.cores(role), []string{"env"}, c.environment, argv)
		p, err := kubetest.StartProcess(role, filepath.Join(c.dir, role+".log"), argv...)
		if err != nil {
			return err
		}
		c.roles = append(c.roles, p)
		c.waits.Go(func() {
			<-p.Done()
			c.ending.Do(func() { close(c.ended) })
		})
	}
	return nil
}

// cores is what a command line begins with that keeps a process to its cores.
func (c *crew) cores(process string) []string {
	switch {
	case !c.cfg.apart:
		return nil
	case process == "gateway":
		return []string{"taskset", "--cpu-list", strconv.Itoa(lastCore())}
	}
	return []string{"taskset", "--cpu-list", fmt.Sprintf("0-%d", lastCore()-1)}
}

func lastCore() int { return runtime.NumCPU() - 1 }

// stepAside keeps this program to the last core.
func stepAside() error {
	out, err := exec.Command("taskset", "--all-tasks", "--cpu-list", "--pid", strconv.Itoa(lastCore()), strconv.Itoa(os.Getpid())).CombinedOutput()
	if err != nil {
		return fmt.Errorf("keep to the last core: %w: %s", err, out)
	}
	return nil
}

// commands returns the command lines of the roles.
func (c *crew) commands() ([][]string, error) {
	ports, err := kubetest.FreePorts(6)
	if err != nil {
		return nil, err
	}
	address := func(port int) string { return "127.0.0.1:" + ports[port] }
	binder := []string{"--source", "local", "--seed", strconv.FormatUint(c.cfg.seed, 10)}
	command := func(port int, role string, flags ...string) []string {
		c.ops[role] = address(port)
		argv := []string{c.cfg.berth, role, "--metrics-listen", address(port)}
		if c.cfg.profile != "" {
			argv = append(argv, "--profiling")
		}
		return append(argv, flags...)
	}
	c.metrics, c.gateway = address(0), address(5)
	if !c.processes {
		return [][]string{command(0, "all", slices.Concat(binder,
			[]string{"--data-dir", filepath.Join(c.dir, "data"), "--listen", c.gateway, "--http-listen", ""})...)}, nil
	}
	etcd := []string{"--etcd-endpoints", c.endpoint, "--listen", "127.0.0.1:0"}
	return [][]string{
		command(0, "binder", slices.Concat(etcd, binder)...),
		command(1, "queue", etcd...),
		command(2, "filter-worker", etcd...),
		command(3, "score-worker", etcd...),
		command(4, "gateway", "--etcd-endpoints", c.endpoint, "--listen", c.gateway, "--http-listen", ""),
	}, nil
}

// usage returns what the processes of the roles have used since their start, by name, and etcd since then.
func (c *crew) usage() (map[string]kubetest.Usage, error) {
	all := make(map[string]kubetest.Usage, len(c.roles)+1)
	for _, p := range c.roles {
		used, err := p.Usage()
		if err != nil {
			return nil, err
		}
		all[p.Name()] = used
	}
	if c.etcd != nil {
		used, err := c.etcd.Usage()
		if err != nil {
			return nil, err
		}
		used.CPU -= c.etcdCPU
		all["etcd"] = used
	}
	return all, nil
}

// cpu returns what all processes have used since the roles started.
func (c *crew) cpu() (time.Duration, error) {
	used, err := c.usage()
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, u := range used {
		sum += u.CPU
	}
	return sum, nil
}

// whyEnded says which processes of roles have ended.
func (c *crew) whyEnded() error {
	var all []error
	for _, p := range c.roles {
		select {
		case <-p.Done():
			all = append(all, fmt.Errorf("berth %s has ended: %w", p.Name(), cmp.Or(p.Err(), errEnded)))
		default:
		}
	}
	return errors.Join(all...)
}

// logTails returns the last that the roles wrote.
func (c *crew) logTails() string {
	var b strings.Builder
	for _, p := range c.roles {
		fmt.Fprintf(&b, "--- berth %s\n%s", p.Name(), p.LogTail(2000))
	}
	return b.String()
}

// stop ends the roles, the last started first. It may be called again.
func (c *crew) stop() {
	for _, p := range slices.Backward(c.roles) {
		p.Stop()
	}
	c.waits.Wait()
}

// close ends the roles and etcd.
func (c *crew) close() {
	c.stop()
	if c.etcd != nil {
		c.etcd.Stop()
	}
}
