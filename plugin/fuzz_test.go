package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// FuzzRequests sends two requests: each is answered, with what can be sent, or refused as invalid.
func FuzzRequests(f *testing.F) {
	encoded := func(req *pluginv1.JudgeRequest) []byte {
		text, err := proto.Marshal(req)
		if err != nil {
			f.Fatal(err)
		}
		return text
	}
	first := three([]string{"F"}, []string{"S"})
	first.Id, first.Nodes[0].Added = 1, []*pluginv1.PlacedPod{{Uid: "u", Name: "p", Kind: 1}}
	first.Kinds[0].Object, first.Nodes[0].Spec.Object = []byte(`{"metadata":{"labels":{"a":"b"}}}`), []byte(`{"spec":{"podCIDR":"x"}}`)
	first.Profiles = []*pluginv1.Profile{{SchedulerName: "gpu", Arguments: []*pluginv1.PluginArguments{{Plugin: "F", Json: []byte("{}")}}}}
	second := &pluginv1.JudgeRequest{
		Id: 2, ForgottenNodes: []int32{2}, Nodes: []*pluginv1.Node{{Id: 1, Removed: []string{"u"}}, node(2, "d")}, Questions: first.Questions,
	}
	f.Add(encoded(first), encoded(second))
	looks := func(kind *Kind, node *Node) string {
		said := fmt.Sprint(node.Name, node.Labels, len(node.Pods), kind.Labels)
		if pod, err := kind.Pod(); err != nil {
			said += err.Error()
		} else {
			said += fmt.Sprint(pod.Labels)
		}
		if object, err := node.Object(); err != nil {
			said += err.Error()
		} else {
			said += object.Spec.PodCIDR
		}
		return said
	}
	filter := Plugin{Name: "F", Filter: func(_ context.Context, kind *Kind, node *Node) (*Refusal, error) {
		return &Refusal{Reason: looks(kind, node)}, nil
	}}
	filter.Configure = func(json.RawMessage) (Plugin, error) { return filter, nil }
	service, err := newService(nil, []Plugin{filter, {Name: "S", Score: func(_ context.Context, kind *Kind, node *Node) (int64, error) {
		return int64(len(looks(kind, node)) % 101), nil
	}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, one, two []byte) {
		told := newSession(service.plugins)
		for _, text := range [][]byte{one, two} {
			req := &pluginv1.JudgeRequest{}
			if proto.Unmarshal(text, req) != nil {
				return // gRPC refuses it
			}
			err := told.fold(req)
			resp := &pluginv1.JudgeResponse{}
			for i := 0; err == nil && i < len(req.GetQuestions()); i++ {
				var q *question
				if q, err = told.question(i, req.GetQuestions()[i]); err == nil {
					resp.Answers = append(resp.Answers, q.answer(t.Context(), service.log))
				}
			}
			if err != nil {
				if status.Code(err) != codes.InvalidArgument {
					t.Errorf("%v: want INVALID_ARGUMENT", err)
				}
				return
			}
			if _, err := proto.Marshal(resp); err != nil {
				t.Errorf("an answer cannot be sent: %v", err)
			}
		}
	})
}

// placeSeries is a stream on which requests come one after the other, without anybody waiting for answers.
type placeSeries struct {
	grpc.ServerStream
	ctx      context.Context
	requests [][]byte
	bound    bool  // something is said to be
	wrong    error // with what is answered; the writer's
}

func (s *placeSeries) Context() context.Context { return s.ctx }

func (s *placeSeries) Recv() (*pluginv1.PlaceRequest, error) {
	if len(s.requests) == 0 {
		return nil, io.EOF
	}
	req := &pluginv1.PlaceRequest{}
	if proto.Unmarshal(s.requests[0], req) != nil {
		return nil, io.EOF // gRPC refuses it
	}
	s.requests = s.requests[1:]
	s.bound = s.bound || req.GetStep() == postBind
	if req.GetStep() == unreserve {
		req.Plugins = []string{"A"} // who is not told has not taken it back
	}
	return req, nil
}

func (s *placeSeries) Send(resp *pluginv1.PlaceResponse) error {
	if _, err := proto.Marshal(resp); err != nil {
		s.wrong = err
	}
	return nil
}

// FuzzSteps sends some requests: each is answered with what can be sent, or refused, and what has been reserved, and is not bound, is taken back when the stream has ended.
func FuzzSteps(f *testing.F) {
	encoded := func(step pluginv1.Step, uid string) []byte {
		told := placed(uid)
		if step == preEnqueue {
			told.Node = ""
		}
		told.Object = []byte(`{"metadata":{"labels":{"a":"b"}}}`)
		id := map[pluginv1.Step]int64{reserve: 2, unreserve: 3, permit: 4, preEnqueue: 3}[step]
		text, err := proto.Marshal(&pluginv1.PlaceRequest{Id: id, Placement: told, Step: step, Plugins: []string{"A"}})
		if err != nil {
			f.Fatal(err)
		}
		return text
	}
	first, err := proto.Marshal(&pluginv1.PlaceRequest{Id: 1, TellsAnnotations: true})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(first, encoded(reserve, "u"), encoded(unreserve, "u"), encoded(permit, "u"))
	f.Add(first, encoded(reserve, "u"), encoded(unreserve, "v"), encoded(permit, "u"))
	f.Add(first, encoded(reserve, "u"), encoded(preEnqueue, "u"), encoded(permit, "u"))
	var mu sync.Mutex
	held := make(map[*Placement]bool)
	note := func(p *Placement, is bool) {
		mu.Lock()
		defer mu.Unlock()
		if held[p] = is; !is {
			delete(held, p)
		}
	}
	service, err := newService(nil, []Plugin{{
		Name: "A",
		Reserve: func(_ context.Context, p *Placement) (*Rejection, error) {
			_, err := p.Pod()
			note(p, true)
			return nil, err
		},
		Unreserve: func(_ context.Context, p *Placement) { note(p, false) },
		PreEnqueue: func(_ context.Context, p *Placement) (*Rejection, error) {
			_, err := p.Pod()
			return &Rejection{Reason: p.Name}, err
		},
		Permit: func(_ context.Context, p *Placement) (Permission, error) {
			p.Reject(p.Name)
			return Permission{}, nil
		},
	}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, one, two, three, four []byte) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &placeSeries{ctx: ctx, requests: [][]byte{one, two, three, four}}
		err := errors.Join(service.Place(s), s.wrong)
		if err != nil && status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: want INVALID_ARGUMENT", err)
		}
		mu.Lock()
		defer mu.Unlock()
		for p := range held {
			if !s.bound {
				t.Errorf("%+v is reserved still", p)
			}
			delete(held, p)
		}
	})
}
