package binder

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"

	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/pluginhost"
	"github.com/berth-scheduler/berth/internal/rpc"
)

const (
	// passingAtOnce is how many streams about what might be there are at a time, and passingWaiting how many wait for one to end. A gateway has one for each service.
	passingAtOnce, passingWaiting = 64, 64
	// passingFor is how long one lasts at most: longer than any question may take.
	passingFor = 5 * time.Minute
)

// GetPluginServices implements BinderService.
func (s *Service) GetPluginServices(context.Context, *binderv1.GetPluginServicesRequest) (*binderv1.GetPluginServicesResponse, error) {
	if _, err := s.active(); err != nil {
		return nil, err
	}
	out := new(binderv1.GetPluginServicesResponse)
	for _, p := range s.passages() {
		is := p.Service()
		told := &binderv1.PluginServiceUse{Name: is.Name, TimeoutMilliseconds: is.Timeout.Milliseconds(), Objects: is.Objects, Ignorable: is.Ignorable}
		for _, plugin := range is.Plugins {
			told.Plugins = append(told.Plugins, plugin.Name)
		}
		out.Services = append(out.Services, told)
	}
	return out, nil
}

// DescribePluginService implements BinderService.
func (s *Service) DescribePluginService(ctx context.Context, req *binderv1.DescribePluginServiceRequest) (*binderv1.DescribePluginServiceResponse, error) {
	if _, err := s.active(); err != nil {
		return nil, err
	}
	p, err := s.passage(req.GetService())
	if err != nil {
		return nil, err
	}
	described, err := p.Describe(ctx)
	if err != nil {
		return nil, err
	}
	return &binderv1.DescribePluginServiceResponse{Description: described}, nil
}

// JudgeHypothetical implements BinderService.
func (s *Service) JudgeHypothetical(stream binderv1.BinderService_JudgeHypotheticalServer) error {
	t, err := s.active()
	if err != nil {
		return err
	}
	ctx, done := t.within(stream.Context())
	defer done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ctx, late := context.WithTimeout(ctx, passingFor)
	defer late()
	leave, err := s.passing.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	p, err := s.passage(first.GetService())
	if err != nil {
		return err
	}
	to, err := p.Judge(ctx)
	if err != nil {
		return err
	}
	go func() { // it ends with the stream, which ends when this returns
		err := passOn(first, stream.Recv, func(r *binderv1.JudgeHypotheticalRequest) error {
			if r.GetRequest() == nil {
				return rpc.Invalid(rpc.Violation{Field: "request", Description: "it is missing"})
			}
			if err := to.Complete(r.GetRequest(), func(like *corev1.Pod) (*corev1.Pod, error) { return t.podLike(ctx, like) }); err != nil {
				return err
			}
			return to.Send(r.GetRequest())
		})
		if errors.Is(err, io.EOF) {
			err = to.CloseSend()
		}
		if err != nil {
			cancel(err)
		}
	}()
	for {
		response, err := to.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && rpc.ReasonOf(context.Cause(ctx)) != "":
			return context.Cause(ctx)
		case err != nil && stream.Context().Err() == nil && ctx.Err() != nil:
			return rpc.Error(codes.Unavailable, "ENDED", "the stream has ended: %v", context.Cause(ctx))
		case err != nil:
			return err
		}
		if err := stream.Send(&binderv1.JudgeHypotheticalResponse{Response: response}); err != nil {
			return err
		}
	}
}

// passOn sends a request, and those that come behind it, until there is no more, or sending fails; io.EOF says that there is no more, or that who is sent them has ended.
func passOn[T any](r T, receive func() (T, error), send func(T) error) (err error) {
	for err == nil {
		if err = send(r); err == nil {
			r, err = receive()
		}
	}
	return err
}

// passages returns those of the plugin services that may be asked about what might be.
func (s *Service) passages() []pluginhost.Passage {
	if s.cfg.Plugins == nil {
		return nil
	}
	return s.cfg.Plugins.Passages()
}

func (s *Service) passage(name string) (pluginhost.Passage, error) {
	all := s.passages()
	k := slices.IndexFunc(all, func(p pluginhost.Passage) bool { return p.Service().Name == name })
	if k < 0 {
		return pluginhost.Passage{}, rpc.Error(codes.NotFound, "NO_SUCH_SERVICE", "there is no plugin service %q to ask", name)
	}
	return all[k], nil
}

// podLike returns the pod of the cluster that another one stands for, as services are sent it; nil if there is none.
func (t *term) podLike(ctx context.Context, like *corev1.Pod) (*corev1.Pod, error) {
	if last := t.extenders.objects.LastPod(like.Namespace, like.Name); last != nil && last.UID == like.UID {
		return last, nil
	}
	pod, err := t.object(ctx, like.Namespace, like.Name)
	if err != nil || pod == nil || pod.UID != like.UID {
		return nil, err
	}
	pod.ManagedFields = nil
	return pod, nil
}
