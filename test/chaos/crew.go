package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

// The roles of Berth, as the binary calls them.
const (
	roleBinder  = "binder"
	roleQueue   = "queue"
	roleFilter  = "filter-worker"
	roleScore   = "score-worker"
	roleGateway = "gateway"
)

// headcount is a role and how many members have it.
type headcount struct {
	role string
	n    int
}

// size is how many members there are of each role. Of workers and queues there is one more, which runs only while a
// fault adds it.
var size = []headcount{{roleBinder, 2}, {roleQueue, 2}, {roleFilter, 3}, {roleScore, 2}, {roleGateway, 2}}

// member is a process of Berth, running or not.
type member struct {
	id, role         string
	listen, announce string            // where it serves, and the proxy in front of that
	ops              string            // where it serves its metrics
	proc             *kubetest.Process // nil while it does not run
}

// crew is Berth. Its methods may be called concurrently; two calls about the same member must not be.
type crew struct {
	berth, older string // binaries; older may be empty
	dir          string
	cluster      []string // the flags of binders that say where the cluster comes from
	etcd         []string // the proxies in front of etcd
	leaseTTL     time.Duration
	network      *Network
	record       *Recorder
	ids          *identities  // nil: no TLS
	http         *http.Client // reads metrics

	mu      sync.Mutex
	members map[string]*member
	asked   map[*kubetest.Process]ending // processes that the harness ends
	waits   sync.WaitGroup
}

// ending is how the harness ends a process.
type ending int

const (
	notEnding ending = iota
	killing
	draining
)

func memberID(role string, i int) string { return fmt.Sprintf("%s-%d", role, i) }

// enlist makes a member and its proxy.
func (c *crew) enlist(role string, i int) error {
	ports, err := kubetest.FreePorts(2)
	if err != nil {
		return err
	}
	if err := c.ids.enlist(memberID(role, i), role); err != nil {
		return err
	}
	m := &member{id: memberID(role, i), role: role, listen: "127.0.0.1:" + ports[0], ops: "127.0.0.1:" + ports[1]}
	if m.announce, err = c.network.Front(m.id, m.listen); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.members[m.id] = m
	return nil
}

// start starts a member that does not run.
func (c *crew) start(id string) error { return c.startOf(c.berth, id) }

// startOf starts a member that does not run, of one of the binaries.
func (c *crew) startOf(binary, id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.members[id]
	if m == nil || m.proc != nil {
		return fmt.Errorf("start %s: it is unknown, or runs", id)
	}
	args := []string{
		binary, m.role, "--id", id, "--listen", m.listen, "--advertise", m.announce, "--metrics-listen", m.ops,
		"--etcd-endpoints", strings.Join(c.etcd, ","), "--lease-ttl", c.leaseTTL.String(),
	}
	args = append(args, c.ids.flags(id)...)
	switch m.role {
	case roleBinder:
		args = append(args, c.cluster...)
	case roleGateway:
		args = append(args, "--http-listen", "")
	}
	p, err := kubetest.StartProcess(id, c.log(id), args...)
	if err != nil {
		return err
	}
	m.proc = p
	c.network.Is(id, p.PID())
	c.waits.Go(func() { c.await(id, p) })
	return nil
}

// log returns the path of a member's log.
func (c *crew) log(id string) string { return filepath.Join(c.dir, id+".log") }

// await records the end of a process.
func (c *crew) await(id string, p *kubetest.Process) {
	err := p.Err()
	c.mu.Lock()
	asked := c.asked[p]
	c.mu.Unlock()
	exit := &Exit{Name: id, Asked: asked != notEnding}
	if err != nil && asked != killing {
		exit.Error = err.Error()
	}
	c.record.Add(Entry{Exit: exit})
}

// take returns the process of a member that runs. If it is to end, the member is without one from then on.
func (c *crew) take(id string, how ending) (*kubetest.Process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.members[id]
	if m == nil || m.proc == nil {
		return nil, fmt.Errorf("%s does not run", id)
	}
	p := m.proc
	if how != notEnding {
		// What a process has used is not known after its end; of one that has ended by itself it is missing.
		if used, err := p.Usage(); err == nil {
			c.record.Add(Entry{Usage: &Usage{Name: id, CPU: used.CPU, Peak: used.PeakRSS}})
		}
		c.asked[p] = how
		m.proc = nil
	}
	return p, nil
}

// kill ends a member as a power cut does.
func (c *crew) kill(id string) error {
	p, err := c.take(id, killing)
	if err != nil {
		return err
	}
	p.Kill()
	return nil
}

// drain asks a member to end, and waits for that. If it has to be killed, or ends with an error, its exit says so.
func (c *crew) drain(id string) error {
	p, err := c.take(id, draining)
	if err != nil {
		return err
	}
	p.Stop()
	return nil
}

// replace drains the members of a role that run, one after the other, and starts each again, of a binary.
func (c *crew) replace(ctx context.Context, role, binary string) error {
	var failed error
	for _, id := range c.having(role) {
		if c.drain(id) != nil { // it does not run
			continue
		}
		failed = errors.Join(failed, c.startOf(binary, id))
		sleep(ctx, betweenReplaced)
	}
	return failed
}

// betweenReplaced is how long after one member the next is replaced.
const betweenReplaced = time.Second

// metric returns the sum of a member's metrics whose names, with labels, begin so.
func (c *crew) metric(ctx context.Context, id, name string) (float64, error) {
	c.mu.Lock()
	m := c.members[id]
	c.mu.Unlock()
	if m == nil {
		return 0, fmt.Errorf("read metrics of %s: it is unknown", id)
	}
	ctx, cancel := context.WithTimeout(ctx, metricsLimit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.ids.scheme()+m.ops+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	answer, err := c.http.Do(request)
	if err != nil {
		return 0, fmt.Errorf("read metrics of %s: %w", id, err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(answer.Status)
	}
	if err != nil {
		return 0, fmt.Errorf("read metrics of %s: %w", id, err)
	}
	return sumOf(string(text), name), nil
}

const metricsLimit = 2 * time.Second

// sumOf returns the sum of the metrics in Prometheus' text format whose names, with labels, begin so.
func sumOf(text, name string) float64 {
	var sum float64
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, name) {
			continue
		}
		if v, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64); err == nil {
			sum += v
		}
	}
	return sum
}

// having returns the members of a role, in their order.
func (c *crew) having(role string) []string {
	return c.which(func(m *member) bool { return m.role == role })
}

// runningOf returns the members of a role that run, in their order.
func (c *crew) runningOf(role string) []string {
	return c.which(func(m *member) bool { return m.role == role && m.proc != nil })
}

// listening returns where the members of a role serve, themselves and not their proxies.
func (c *crew) listening(role string) []string {
	var out []string
	for _, id := range c.having(role) {
		c.mu.Lock()
		out = append(out, c.members[id].listen)
		c.mu.Unlock()
	}
	return out
}

// running returns the members that run, in their order.
func (c *crew) running() []string {
	return c.which(func(m *member) bool { return m.proc != nil })
}

func (c *crew) which(is func(*member) bool) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ids []string
	for id, m := range c.members {
		if is(m) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// stop ends all members.
func (c *crew) stop() {
	for _, id := range c.running() {
		_ = c.kill(id) // an error means that it does not run
	}
	c.waits.Wait()
}
