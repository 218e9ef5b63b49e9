package plugintest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// stream is one of Judge.
type stream struct {
	judge   grpc.BidiStreamingClient[pluginv1.JudgeRequest, pluginv1.JudgeResponse]
	last    int64 // request
	timeout time.Duration
	most    bounds
	cause   func() error
	cancel  context.CancelCauseFunc
}

var errSlow = errors.New("no answer in time")

func (s *suite) open(ctx context.Context) (*stream, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	judge, err := s.client.Judge(ctx)
	if err != nil {
		cancel(nil)
		return nil, fmt.Errorf("open a stream: %w", err)
	}
	return &stream{judge: judge, timeout: s.timeout, most: s.most, cause: func() error { return context.Cause(ctx) }, cancel: cancel}, nil
}

// close ends the stream, whatever is still to come.
func (c *stream) close() { c.cancel(nil) }

// bounded calls a function that waits for the other side, and ends the stream if that takes too long.
func (c *stream) bounded(what string, call func() error) error {
	timer := time.AfterFunc(c.timeout, func() { c.cancel(errSlow) })
	defer timer.Stop()
	err := call()
	switch {
	case err == nil:
		return nil
	case errors.Is(c.cause(), errSlow):
		return fmt.Errorf("%s: not done within %v", what, c.timeout)
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%s: the stream has ended", what)
	}
	return fmt.Errorf("%s: %w", what, err)
}

func (c *stream) send(req *pluginv1.JudgeRequest) error {
	c.last++
	req.Id = c.last
	return c.bounded(fmt.Sprintf("send request %d", req.Id), func() error {
		err := c.judge.Send(req)
		if errors.Is(err, io.EOF) { // why, Recv knows
			_, err = c.judge.Recv()
		}
		return err
	})
}

// receive returns the answers to a request, one for each question.
func (c *stream) receive(req *pluginv1.JudgeRequest) ([]*pluginv1.Answer, error) {
	var resp *pluginv1.JudgeResponse
	err := c.bounded(fmt.Sprintf("answer request %d", req.GetId()), func() (err error) {
		resp, err = c.judge.Recv()
		return err
	})
	if err != nil {
		return nil, err
	}
	if resp.GetId() != req.GetId() {
		return nil, fmt.Errorf("the response to request %d has id %d", req.GetId(), resp.GetId())
	}
	if got, want := len(resp.GetAnswers()), len(req.GetQuestions()); got != want {
		return nil, fmt.Errorf("request %d has %d questions, and got %d answers", req.GetId(), want, got)
	}
	return resp.GetAnswers(), nil
}

func (c *stream) ask(req *pluginv1.JudgeRequest) ([]*pluginv1.Answer, error) {
	if err := c.send(req); err != nil {
		return nil, err
	}
	return c.receive(req)
}

// judged asks, and returns what the answers say of each node of each question.
func (c *stream) judged(req *pluginv1.JudgeRequest) ([]string, error) {
	answers, err := c.ask(req)
	if err != nil {
		return nil, err
	}
	var out []string
	for i, answer := range answers {
		read, err := c.most.read(req.GetQuestions()[i], answer)
		if err != nil {
			return nil, fmt.Errorf("request %d, question %d: %w", req.GetId(), i, err)
		}
		out = append(out, read...)
	}
	return out, nil
}

// bounds are the most that plugins may score a node, by name.
type bounds map[string]int32

// canRun is what is said of a node that is not refused.
const canRun = "can run it"

// read returns what an answer says of each node of its question, in words.
func (most bounds) read(q *pluginv1.Question, a *pluginv1.Answer) ([]string, error) {
	if a.GetError() != "" {
		return nil, fmt.Errorf("it could not be answered: %s", a.GetError())
	}
	if err := errors.Join(checkVerdicts(q, a), most.checkScores(q, a)); err != nil {
		return nil, err
	}
	out := make([]string, len(q.GetNodes()))
	for i := range out {
		if len(a.GetVerdicts()) > 0 && a.GetVerdicts()[i] > 0 {
			r := a.GetRefusals()[a.GetVerdicts()[i]-1]
			out[i] = fmt.Sprintf("refused by %s: %s", r.GetPlugin(), r.GetReason())
			if r.GetUnresolvable() {
				out[i] += " (unresolvable)"
			}
			continue
		}
		out[i] = canRun
		for k, plugin := range q.GetScores() {
			out[i] += fmt.Sprintf(", %s scores it %d", plugin, a.GetScores()[k].GetScores()[i])
		}
	}
	return out, nil
}

// checkVerdicts says what is wrong with the verdicts of an answer, unless it is an error.
func checkVerdicts(q *pluginv1.Question, a *pluginv1.Answer) error {
	if a.GetError() != "" {
		return nil
	}
	if got, want := len(a.GetVerdicts()), len(q.GetNodes()); got != 0 && got != want {
		return fmt.Errorf("%d verdicts on %d nodes: want as many, or none", got, want)
	}
	if got := len(a.GetRefusals()); got > maxRefusals {
		return fmt.Errorf("%d refusals: want at most %d", got, maxRefusals)
	}
	for i, verdict := range a.GetVerdicts() {
		if int(verdict) > len(a.GetRefusals()) {
			return fmt.Errorf("the verdict on node %d of the question is %d, and there are %d refusals: they are counted from 1", i, verdict, len(a.GetRefusals()))
		}
	}
	return nil
}

// checkScores says what is wrong with the scores of an answer, unless it is an error.
func (most bounds) checkScores(q *pluginv1.Question, a *pluginv1.Answer) error {
	if a.GetError() != "" {
		return nil
	}
	if got, want := len(a.GetScores()), len(q.GetScores()); got != want {
		return fmt.Errorf("scores of %d plugins: want those of %d", got, want)
	}
	for k, plugin := range q.GetScores() {
		scores := a.GetScores()[k].GetScores()
		if got, want := len(scores), len(q.GetNodes()); got != want {
			return fmt.Errorf("plugin %s: %d scores of %d nodes: want one each", plugin, got, want)
		}
		for i, score := range scores {
			if refused := i < len(a.GetVerdicts()) && a.GetVerdicts()[i] > 0; !refused && (score < 0 || score > most[plugin]) {
				return fmt.Errorf("plugin %s: the score of node %d of the question is %d: want 0 to %d", plugin, i, score, most[plugin])
			}
		}
	}
	return nil
}

// node is a node with pods.
type node struct {
	sample int            // which it is
	pods   map[string]int // by UID, what they are: pods of the sample
}

// state is what a stream has been told: nodes, and all kinds of the sample.
type state struct {
	suite       *suite
	nodes       map[int32]node
	kind, first int32 // ids of the first kind, and of the first node
}

// begin returns a request that tells a new stream everything, with questions about it. Nodes and kinds get ids one after the other.
func (s *suite) begin(nodes []node, kind, first int32, q asked) (*state, *pluginv1.JudgeRequest) {
	st := &state{suite: s, nodes: make(map[int32]node), kind: kind, first: first}
	req := &pluginv1.JudgeRequest{Profiles: s.profiles(), TellsAnnotations: true}
	for i := range s.sample.pods {
		k := s.sample.kind(i)
		k.Id = kind + int32(i)
		req.Kinds = append(req.Kinds, k)
	}
	for i, n := range nodes {
		id := first + int32(i)
		st.nodes[id] = n
		req.Nodes = append(req.Nodes, st.tell(id, true, slices.Sorted(maps.Keys(n.pods)), nil))
	}
	req.Questions = st.questions(q)
	return st, req
}

// tell returns how a node is told as it is now, with what it is itself or without, and which pods have come and gone.
func (st *state) tell(id int32, spec bool, added, removed []string) *pluginv1.Node {
	s, n := st.suite, st.nodes[id]
	told := &pluginv1.Node{Id: id, Requested: make(map[string]int64), PodCount: int32(len(n.pods))}
	if spec {
		told.Spec = s.sample.spec(n.sample)
	}
	for _, kind := range n.pods {
		for name, amount := range s.requested[kind] {
			told.Requested[name] += amount
		}
	}
	if s.needsPods {
		for _, uid := range added {
			told.Added = append(told.Added, &pluginv1.PlacedPod{Uid: uid, Name: uid, Kind: st.kind + int32(n.pods[uid])})
		}
		told.Removed = removed
	}
	return told
}

// asked are plugins that are asked.
type asked struct{ filters, scores []string }

// questions asks about all nodes, once for each kind.
func (st *state) questions(q asked) []*pluginv1.Question {
	var out []*pluginv1.Question
	for i := range st.suite.sample.pods {
		out = append(out, &pluginv1.Question{Kind: st.kind + int32(i), Filters: q.filters, Scores: q.scores, Nodes: slices.Sorted(maps.Keys(st.nodes))})
	}
	return out
}
