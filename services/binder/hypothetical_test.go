package binder

import (
	"context"
	"io"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/plugin"
)

// questions is a stream on which a test asks.
type questions struct {
	grpc.ServerStream
	ctx context.Context
	in  chan *binderv1.JudgeHypotheticalRequest
	out chan *pluginv1.JudgeResponse
}

func (q *questions) Context() context.Context { return q.ctx }

func (q *questions) Recv() (*binderv1.JudgeHypotheticalRequest, error) {
	select {
	case r, open := <-q.in:
		if !open {
			return nil, io.EOF
		}
		return r, nil
	case <-q.ctx.Done():
		return nil, context.Cause(q.ctx)
	}
}

func (q *questions) Send(r *binderv1.JudgeHypotheticalResponse) error {
	q.out <- r.GetResponse()
	return nil
}

// What is asked about what might be is passed on as it is, and has no part in what the binder asks itself; what makes no sense is refused.
func TestQuestionsAboutWhatMightBeArePassedOn(t *testing.T) {
	src, c := newFakeSource(), newChoosy(t, plugin.Dependencies{Pods: true})
	for _, name := range []string{"a", "b"} {
		src.setNode(node(name, 4000))
	}
	for _, name := range []string{"p", "q"} {
		src.setPod(forChoosy(pod(name, 1000)))
	}
	b := start(t, startEtcd(t), src, withChoosy(t, c))
	b.active()
	if got := b.ask(b.question(1, "p")); got != "assumed on a" && got != "assumed on b" {
		t.Fatalf("p: %s", got)
	}
	c.calls()

	services, err := b.GetPluginServices(t.Context(), &binderv1.GetPluginServicesRequest{})
	if err != nil || len(services.GetServices()) != 1 || services.GetServices()[0].GetName() != "s" {
		t.Fatalf("the services are %v, %v", services, err)
	}
	described, err := b.DescribePluginService(t.Context(), &binderv1.DescribePluginServiceRequest{Service: "s"})
	if err != nil || described.GetDescription().GetPlugins()[0].GetName() != "Choosy" {
		t.Errorf("it is described by %v, %v", described, err)
	}
	if _, err := b.DescribePluginService(t.Context(), &binderv1.DescribePluginServiceRequest{Service: "other"}); status.Code(err) != codes.NotFound {
		t.Errorf("another one: %v", err)
	}

	ask := func(requests ...*binderv1.JudgeHypotheticalRequest) ([]*pluginv1.JudgeResponse, error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		q := &questions{ctx: ctx, in: make(chan *binderv1.JudgeHypotheticalRequest, len(requests)), out: make(chan *pluginv1.JudgeResponse, len(requests))}
		for _, r := range requests {
			q.in <- r
		}
		close(q.in)
		err := b.JudgeHypothetical(q)
		close(q.out)
		var out []*pluginv1.JudgeResponse
		for r := range q.out {
			out = append(out, r)
		}
		return out, err
	}
	question := &pluginv1.JudgeRequest{
		Id: 1, Kinds: []*pluginv1.Kind{{Id: 5, SchedulerName: "choosy"}}, Nodes: []*pluginv1.Node{{Id: 9, Spec: &pluginv1.NodeSpec{Name: "made-up"}, Added: []*pluginv1.PlacedPod{{Uid: "u", Kind: 5, Hypothetical: true}}}},
		Questions: []*pluginv1.Question{{Kind: 5, Filters: []string{"Choosy"}, Nodes: []int32{9}}},
	}
	answers, err := ask(&binderv1.JudgeHypotheticalRequest{Service: "s", Request: question})
	if err != nil || len(answers) != 1 || answers[0].GetId() != 1 || len(answers[0].GetAnswers()) != 1 {
		t.Errorf("the answers are %v, %v", answers, err)
	}
	if got := c.calls(); len(got) != 1 || got[0] != "made-up" {
		t.Errorf("the service was asked about %v, want the node that is made up", got)
	}
	for name, wrong := range map[string]struct {
		request *binderv1.JudgeHypotheticalRequest
		code    codes.Code
	}{
		"no service":   {&binderv1.JudgeHypotheticalRequest{Request: question}, codes.NotFound},
		"no request":   {&binderv1.JudgeHypotheticalRequest{Service: "s"}, codes.InvalidArgument},
		"not in order": {&binderv1.JudgeHypotheticalRequest{Service: "s", Request: &pluginv1.JudgeRequest{Id: 3}}, codes.InvalidArgument},
	} {
		if answers, err := ask(wrong.request); status.Code(err) != wrong.code || len(answers) > 0 {
			t.Errorf("%s: %v, %v", name, answers, err)
		}
	}

	// The binder goes on with what it has told, and knows.
	if got := b.ask(b.question(1, "q")); got != "assumed on a" && got != "assumed on b" {
		t.Errorf("q: %s", got)
	}
	if got := c.calls(); len(got) > 1 {
		t.Errorf("the service was asked about %v, want the node of the last pod at most", got)
	}
}
