package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/pluginhost"
)

// Plugin services are asked by way of the active binder, which has the connections to them.

// Find implements whatif.Plugins.
func (s *Service) Find(ctx context.Context) ([]pluginhost.Service, error) {
	_, leader, _ := s.peers.all()
	if leader.Address == "" {
		return nil, errors.New("no binder is active")
	}
	conn, err := s.cfg.Conns.Conn(leader.Address)
	if err != nil {
		return nil, err
	}
	client := binderv1.NewBinderServiceClient(conn)
	ctx, cancel := context.WithTimeout(ctx, s.cfg.PeerTimeout)
	defer cancel()
	told, err := client.GetPluginServices(ctx, &binderv1.GetPluginServicesRequest{})
	if err != nil {
		return nil, fmt.Errorf("%s: %s", status.Code(err), status.Convert(err).Message())
	}
	var services []pluginhost.Service
	for _, is := range told.GetServices() {
		service := pluginhost.Service{
			Name: is.GetName(), Conn: &passage{client, is.GetName()}, Timeout: time.Duration(is.GetTimeoutMilliseconds()) * time.Millisecond, Objects: is.GetObjects(), Ignorable: is.GetIgnorable(),
		}
		for _, name := range is.GetPlugins() {
			service.Plugins = append(service.Plugins, pluginhost.Plugin{Name: name})
		}
		services = append(services, service)
	}
	return services, nil
}

// passage is a connection to a plugin service by way of the binder. It has the calls that pods are judged by.
type passage struct {
	binder  binderv1.BinderServiceClient
	service string
}

// Invoke implements grpc.ClientConnInterface.
func (p *passage) Invoke(ctx context.Context, method string, _, reply any, opts ...grpc.CallOption) error {
	out, is := reply.(*pluginv1.DescribeResponse)
	if !is {
		return status.Errorf(codes.Unimplemented, "%s is not passed on", method)
	}
	described, err := p.binder.DescribePluginService(ctx, &binderv1.DescribePluginServiceRequest{Service: p.service}, opts...)
	if err == nil {
		proto.Merge(out, described.GetDescription())
	}
	return err
}

// NewStream implements grpc.ClientConnInterface.
func (p *passage) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if method != pluginv1.PluginService_Judge_FullMethodName {
		return nil, status.Errorf(codes.Unimplemented, "%s is not passed on", method)
	}
	stream, err := p.binder.JudgeHypothetical(ctx, opts...)
	if err != nil {
		return nil, err
	}
	return &passing{stream, p.service}, nil
}

// passing is a stream of such a connection.
type passing struct {
	binderv1.BinderService_JudgeHypotheticalClient
	service string // until it has been said
}

// SendMsg implements grpc.ClientStream.
func (p *passing) SendMsg(m any) error {
	request, is := m.(*pluginv1.JudgeRequest)
	if !is {
		return status.Errorf(codes.Internal, "%T is no request", m)
	}
	service := p.service
	p.service = ""
	return p.Send(&binderv1.JudgeHypotheticalRequest{Service: service, Request: request})
}

// RecvMsg implements grpc.ClientStream.
func (p *passing) RecvMsg(m any) error {
	out, is := m.(*pluginv1.JudgeResponse)
	if !is {
		return status.Errorf(codes.Internal, "%T is no response", m)
	}
	response, err := p.Recv()
	if err == nil {
		proto.Merge(out, response.GetResponse())
	}
	return err
}
