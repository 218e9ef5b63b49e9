package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

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
