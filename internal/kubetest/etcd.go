package kubetest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// EtcdServer is a running etcd of one member, on loopback, without durability against a crash of the machine.
type EtcdServer struct {
	proc     *Process
	endpoint string
	data     string // its directory
}

// StartEtcd starts an etcd with its state and log in dir, which must be empty or new, and returns when it serves.
// Ctx bounds the start only; Stop ends the server.
func StartEtcd(ctx context.Context, dir string) (*EtcdServer, error) { return startEtcd(ctx, dir, nil) }

// startEtcd is StartEtcd with a copy of what another has stored, which has been stopped, unless like is nil: the same keys at the same revisions.
func startEtcd(ctx context.Context, dir string, like *EtcdServer) (*EtcdServer, error) {
	bin, err := Build(ctx, Etcd)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make etcd directory: %w", err)
	}
	var server *EtcdServer
	err = onFreePorts(2, func(ports []string) (*Process, error) {
		client, peer := "http://127.0.0.1:"+ports[0], "http://127.0.0.1:"+ports[1]
		data := filepath.Join(dir, "data-"+ports[0])
		if like != nil {
			if !like.proc.ended() {
				return nil, errors.New("copy the state of an etcd: it is running")
			}
			if err := os.CopyFS(data, os.DirFS(like.data)); err != nil {
				return nil, fmt.Errorf("copy the state of an etcd: %w", err)
			}
		}
		// The log is new with each attempt: it is searched for the reason of a failure.
		proc, err := StartProcess("etcd", filepath.Join(dir, "etcd-"+ports[0]+".log"), bin[Etcd],
			"--data-dir", data,
			"--listen-client-urls", client, "--advertise-client-urls", client,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer,
			"--unsafe-no-fsync", "--quota-backend-bytes", strconv.Itoa(8<<30), "--log-level", "warn")
		if err != nil {
			return nil, err
		}
		server = &EtcdServer{proc: proc, endpoint: client, data: data}
		return proc, awaitReady(ctx, proc, func() error { return GetOK(ctx, client+"/health") })
	})
	if err != nil {
		return nil, err
	}
	return server, nil
}

// Endpoint returns the URL that clients connect to.
func (e *EtcdServer) Endpoint() string { return e.endpoint }

// Process returns the process, to read its usage, pause it or kill it.
func (e *EtcdServer) Process() *Process { return e.proc }

// Stop ends the server. What it stored is left in its directory.
func (e *EtcdServer) Stop() { e.proc.Kill() }

// GetOK returns nil if a URL answers 200, within 5 s.
func GetOK(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("get %s: %s", url, resp.Status)
	}
	return nil
}

const (
	requestTimeout = 5 * time.Second       // of one probe
	readyTimeout   = 5 * time.Minute       // of a start; it takes 1 to 3 s on an idle machine
	readyPoll      = 50 * time.Millisecond // between probes
	portAttempts   = 5
)

// awaitReady returns when ready returns nil, or with an error when proc ends, after 90 s, or when ctx ends.
func awaitReady(ctx context.Context, proc *Process, ready func() error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		err := ready()
		// Asked after the probe: what answered may be another process that has the port.
		if proc.ended() {
			return fmt.Errorf("start %s: %w: %v\n%s", proc.name, errEnded, proc.Err(), proc.LogTail(4096))
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w; last: %v\n%s", proc.name, ctx.Err(), err, proc.LogTail(4096))
		case <-proc.Done():
		case <-tick.C:
		}
	}
}

// onFreePorts calls start with n ports until the process it starts has them: one may be taken between the choice and its use.
func onFreePorts(n int, start func(ports []string) (*Process, error)) error {
	for attempt := 1; ; attempt++ {
		ports, err := FreePorts(n)
		if err != nil {
			return err
		}
		proc, err := start(ports)
		if err == nil {
			return nil
		}
		if proc == nil {
			return err
		}
		proc.Kill()
		if attempt == portAttempts || !strings.Contains(proc.LogTail(64<<10), "address already in use") {
			return err
		}
	}
}
