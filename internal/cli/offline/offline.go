// Package offline answers questions about a cluster that a file describes: without a server, without a cluster.
//
// The answers are those that Berth would give in that state, with its default configuration: they come from the same functions
// as the gateway's.
package offline

import (
	"context"
	"errors"
	"sync"

	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-scheduler/berth/internal/answer"
	"github.com/berth-scheduler/berth/internal/cli"
	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/internal/engine"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/whatif"
)

// address is where the service is in its own network.
const address = "the file"

// Open returns a connection to what answers of the cluster that objects describe, as whatif.FromObjects reads them.
func Open(ctx context.Context, objects []byte) (cli.Gateway, error) {
	completed, err := config.Complete(&configv1.KubeSchedulerConfiguration{}, config.Options{})
	if err != nil {
		return cli.Gateway{}, err
	}
	box, err := whatif.FromObjects(objects, cluster.Settings{
		Shards: 1, Profiles: completed.Profiles, InitialBackoffSeconds: *completed.Config.PodInitialBackoffSeconds,
		MaxBackoffSeconds: *completed.Config.PodMaxBackoffSeconds,
	}, engine.EvaluatorConfig{})
	if err != nil {
		return cli.Gateway{}, err
	}
	cfg := rpc.Config{Net: rpc.Memory()}
	listener, err := cfg.Net.Listen(address)
	if err != nil {
		return cli.Gateway{}, err
	}
	server := rpc.NewServer(cfg, "file")
	schedulingv1.RegisterSchedulingServiceServer(server.Registrar(), &service{box: box})
	serving, stop := context.WithCancel(context.WithoutCancel(ctx)) // until it is closed
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(serving, listener) }()
	clients := rpc.NewClients(cfg)
	closeAll := func() error {
		stop()
		return errors.Join(clients.Close(), <-ended)
	}
	conn, err := clients.Conn(address)
	if err != nil {
		return cli.Gateway{}, errors.Join(err, closeAll())
	}
	return cli.Gateway{Name: address, Conn: conn, Close: closeAll}, nil
}

// service answers what is tried on a sandbox. Its methods are safe for concurrent use.
type service struct {
	schedulingv1.UnimplementedSchedulingServiceServer
	mu  sync.Mutex // a sandbox is for one at a time
	box *whatif.Sandbox
}

func (s *service) ExplainPod(ctx context.Context, req *schedulingv1.ExplainPodRequest) (*schedulingv1.ExplainPodResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pod, err := answer.Find(ctx, s.box, req.GetNamespace(), req.GetName())
	if err != nil {
		return nil, err
	}
	return answer.Explain(ctx, s.box, pod, req, answer.MayKnow{Pods: true, Claims: true})
}

func (s *service) WhatIf(ctx context.Context, req *schedulingv1.WhatIfRequest) (*schedulingv1.WhatIfResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return answer.WhatIf(ctx, s.box, req, true)
}

func (s *service) GetCapacity(ctx context.Context, req *schedulingv1.GetCapacityRequest) (*schedulingv1.GetCapacityResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return answer.Capacity(ctx, s.box, req)
}

func (s *service) Compare(ctx context.Context, req *schedulingv1.CompareRequest) (*schedulingv1.CompareResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return answer.Compare(ctx, s.box, req, true)
}
