package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/kubetest"
)

// startEtcd starts an etcd that waits for the disk, as in production, and returns it when it serves, with its endpoint. Its
// command line begins with what is given.
func startEtcd(ctx context.Context, dir string, before []string) (*kubetest.Process, string, error) {
	programs, err := kubetest.Build(ctx, kubetest.Etcd)
	if err != nil {
		return nil, "", err
	}
	ports, err := kubetest.FreePorts(2)
	if err != nil {
		return nil, "", err
	}
	client, peer := "http://127.0.0.1:"+ports[0], "http://127.0.0.1:"+ports[1]
	p, err := kubetest.StartProcess("etcd", filepath.Join(dir, "etcd.log"), append(before, programs[kubetest.Etcd],
		"--data-dir", filepath.Join(dir, "etcd"), "--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer,
		"--quota-backend-bytes", strconv.Itoa(8<<30), "--log-level", "warn")...)
	if err != nil {
		return nil, "", err
	}
	err = withClient(ctx, []string{client}, func(ctx context.Context, etcd *coord.Client) error {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		return await(ctx, p.Done(), "etcd to serve", etcd.Ready)
	})
	if err != nil {
		err = fmt.Errorf("start etcd: %w\n%s", err, p.LogTail(2000))
		p.Kill()
		return nil, "", err
	}
	return p, client, nil
}
