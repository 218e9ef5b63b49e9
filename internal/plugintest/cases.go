package plugintest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// few nodes show what is wrong, and many how long it takes.
const few, many = 12, 5000

// testCase is what is expected, and how it is found out.
type testCase struct {
	want  string
	about about
	run   func(s *suite, ctx context.Context) (note string, err error)
}

// about is what a case is about.
type about int

const (
	questions about = iota // answers to them
	compared               // answers with others: plugins whose answers depend on what Berth does not know of are left out
	steps                  // of placements
	gates                  // whether pods may be tried
	sorts                  // where they belong in the queue
)

// cases are all but Describe, in the order in which they are tried: the plainest first.
var cases = []testCase{
	{"each request gets one response with its id, in order", questions, (*suite).responses},
	{"each question gets one answer, in order", questions, (*suite).answers},
	{"verdicts are none, or one for each node, and name a refusal or 0", questions, (*suite).verdicts},
	{"refusals name a filter of the question, and a reason of 1 KiB at most", questions, (*suite).refusals},
	{"scores are one for each node, from 0 to 100, or to 2147483647 where Berth normalises them, of each plugin that is asked", questions, (*suite).scores},
	{"what is asked again is answered as before", compared, (*suite).again},
	{"filters and scores are asked in the order of the question, and no others", compared, (*suite).order},
	{"the id of a forgotten node is another's, in the same request", compared, (*suite).reusedNodes},
	{"the id of a forgotten kind is another's, in the same request, and a kind that is told again is what it is now", compared, (*suite).reusedKinds},
	{"a node that is told without spec is what it was", compared, (*suite).keptSpec},
	{"pods come to nodes, and leave", compared, (*suite).pods},
	{"a stream that breaks off leaves nothing to the next one", compared, (*suite).broken},
	{"several streams at a time know nothing of each other", compared, (*suite).streams},
	{"whether a pod may be tried is answered by its id, and a rejection is of a plugin that was asked", gates, (*suite).entering},
	{"where a pod belongs in the queue is answered by its id, and is of no order", sorts, (*suite).sorted},
	{"each step of a placement is answered by its id, and a rejection is of a plugin that was asked", steps, (*suite).eachStep},
	{"what takes a placement back ends what is under way for it, which is answered first", steps, (*suite).takenBack},
	{"what was chosen for a pod stands when it is reserved again", steps, (*suite).chosen},
	{"steps of a placement do not wait for those of others", steps, (*suite).apart},
	{"what was never reserved is taken back, or bound, all the same", steps, (*suite).unknown},
	{"a stream of placements that is cut is taken back, and begins anew", steps, (*suite).cutOff},
	{"several streams of placements at a time know nothing of each other", steps, (*suite).streamsOfPlacements},
	{"a request of 16 MiB is taken", questions, (*suite).large},
	{fmt.Sprintf("%d nodes are answered in time", many), questions, (*suite).many},
}

// responses sends several requests before it looks at the first response. One has no questions.
func (s *suite) responses(ctx context.Context) (string, error) {
	c, err := s.open(ctx)
	if err != nil {
		return "", err
	}
	defer c.close()
	st, first := s.begin(s.nodes(0, few), 1, 1, s.all)
	requests := []*pluginv1.JudgeRequest{first, {Questions: st.questions(s.all)}, {}, {Questions: st.questions(s.all)[:1]}}
	for _, req := range requests {
		if err := c.send(req); err != nil {
			return "", err
		}
	}
	for _, req := range requests {
		if _, err := c.receive(req); err != nil {
			return "", err
		}
	}
	return "", nil
}

// asked asks questions of several sizes, in one request.
func (s *suite) askedOnce(ctx context.Context) ([]*pluginv1.Question, []*pluginv1.Answer, error) {
	c, err := s.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer c.close()
	_, req := s.begin(s.nodes(0, 2*few), 1, 1, s.all)
	kind := req.Questions[0].Kind
	req.Questions = append(req.Questions,
		&pluginv1.Question{Kind: kind, Filters: s.all.filters, Scores: s.all.scores},
		&pluginv1.Question{Kind: kind, Filters: s.all.filters, Nodes: []int32{3}},
		&pluginv1.Question{Kind: kind, Scores: s.all.scores, Nodes: []int32{3, 2, 1}})
	answers, err := c.ask(req)
	return req.Questions, answers, err
}

// each checks every answer to such questions.
func (s *suite) each(ctx context.Context, check func(*pluginv1.Question, *pluginv1.Answer) error) (string, error) {
	questions, answers, err := s.askedOnce(ctx)
	if err != nil {
		return "", err
	}
	for i, answer := range answers {
		if err := check(questions[i], answer); err != nil {
			return "", fmt.Errorf("question %d: %w", i, err)
		}
	}
	return "", nil
}

func (s *suite) answers(ctx context.Context) (string, error) {
	return s.each(ctx, func(_ *pluginv1.Question, a *pluginv1.Answer) error {
		if a.GetError() != "" {
			return fmt.Errorf("it could not be answered: %w", errors.Join(errors.New(a.GetError()), text("the error", a.GetError())))
		}
		return nil
	})
}

func (s *suite) verdicts(ctx context.Context) (string, error) { return s.each(ctx, checkVerdicts) }

func (s *suite) refusals(ctx context.Context) (string, error) {
	return s.each(ctx, func(q *pluginv1.Question, a *pluginv1.Answer) error {
		for i, r := range a.GetRefusals() {
			if !slices.Contains(q.GetFilters(), r.GetPlugin()) {
				return fmt.Errorf("refusal %d is of plugin %q: want one of the question's filters, which are %q", i, r.GetPlugin(), q.GetFilters())
			}
			if err := text(fmt.Sprintf("the reason of refusal %d", i), r.GetReason()); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *suite) scores(ctx context.Context) (string, error) { return s.each(ctx, s.most.checkScores) }

// again asks the same in the same request, in the next one, with the nodes the other way round, and a new stream.
func (s *suite) again(ctx context.Context) (string, error) {
	c, err := s.open(ctx)
	if err != nil {
		return "", err
	}
	defer c.close()
	nodes := s.nodes(0, 2*few)
	st, req := s.begin(nodes, 1, 1, s.steady)
	once := len(req.Questions) * len(nodes)
	req.Questions = append(req.Questions, st.questions(s.steady)...)
	got, err := c.judged(req)
	if err != nil {
		return "", err
	}
	if err := s.equal(got[once:], got[:once], nodes, "the same question before it in the request"); err != nil {
		return "", err
	}
	turned := &pluginv1.JudgeRequest{Questions: st.questions(s.steady)}
	for _, q := range turned.Questions {
		slices.Reverse(q.Nodes)
	}
	back, err := c.judged(turned)
	if err != nil {
		return "", err
	}
	for part := range slices.Chunk(back, len(nodes)) {
		slices.Reverse(part)
	}
	if err := s.equal(back, got[:once], nodes, "the same question in the request before"); err != nil {
		return "", err
	}
	if err := s.same(ctx, got[:once], nodes); err != nil {
		return "", err
	}
	if slices.Equal(got[:len(nodes)], slices.Repeat(got[:1], len(nodes))) && slices.Equal(got[:once], slices.Repeat(got[:len(nodes)], once/len(nodes))) {
		return fmt.Sprintf("of all nodes and pods was said: %q. So what is compared here shows little: give nodes and pods with --objects of which different things are said", got[0]), nil
	}
	return "", nil
}

// order asks each plugin alone, and then all of them in one order and in the other.
func (s *suite) order(ctx context.Context) (string, error) {
	c, err := s.open(ctx)
	if err != nil {
		return "", err
	}
	defer c.close()
	nodes := s.nodes(0, 2*few)
	st, req := s.begin(nodes, 1, 1, asked{})
	for _, filter := range s.steady.filters {
		req.Questions = append(req.Questions, st.questions(asked{filters: []string{filter}})...)
	}
	for _, score := range s.steady.scores {
		req.Questions = append(req.Questions, st.questions(asked{scores: []string{score}})...)
	}
	alone, err := c.judged(req)
	if err != nil {
		return "", err
	}
	once := len(nodes) * len(s.sample.pods)
	if i := slices.IndexFunc(alone[:once], func(said string) bool { return said != canRun }); i >= 0 {
		return "", fmt.Errorf("nobody is asked, and a node %q", alone[i])
	}
	said := make(map[string][]string) // by plugin, of each pod and node
	for i, plugin := range slices.Concat(s.steady.filters, s.steady.scores) {
		said[fmt.Sprint(i < len(s.steady.filters), plugin)] = alone[(i+1)*once : (i+2)*once]
	}
	for _, reversed := range []bool{false, true} {
		q := asked{slices.Clone(s.steady.filters), slices.Clone(s.steady.scores)}
		if reversed {
			slices.Reverse(q.filters)
			slices.Reverse(q.scores)
		}
		want := make([]string, once)
		for i := range want {
			want[i] = canRun
			for _, score := range q.scores {
				want[i] += strings.TrimPrefix(said[fmt.Sprint(false, score)][i], canRun)
			}
			for _, filter := range slices.Backward(q.filters) {
				if verdict := said[fmt.Sprint(true, filter)][i]; verdict != canRun {
					want[i] = verdict
				}
			}
		}
		got, err := c.judged(&pluginv1.JudgeRequest{Questions: st.questions(q)})
		if err != nil {
			return "", err
		}
		if err := s.equal(got, want, nodes, fmt.Sprintf("who is asked alone, filters %q and scores %q,", q.filters, q.scores)); err != nil {
			return "", err
		}
	}
	return "", nil
}

// reusedNodes gives all ids to other nodes, in two steps: half of them, and then all.
func (s *suite) reusedNodes(ctx context.Context) (string, error) {
	c, err := s.open(ctx)
	if err != nil {
		return "", err
	}
	defer c.close()
	nodes := s.nodes(0, few)
	st, req := s.begin(nodes, 1, 1, s.steady)
	if _, err := c.judged(req); err != nil {
		return "", err
	}
	for _, changed := range []int{few / 2, few} {
		others := s.nodes(few+changed, changed)
		req := &pluginv1.JudgeRequest{}
		for i, n := range others {
			id := st.first + int32(i)
			nodes[i], st.nodes[id] = n, n
			req.ForgottenNodes = append(req.ForgottenNodes, id)
			req.Nodes = append(req.Nodes, st.tell(id, true, slices.Sorted(maps.Keys(n.pods)), nil))
		}
		req.Questions = st.questions(s.steady)
		got, err := c.judged(req)
		if err != nil {
			return "", err
		}
		if err := s.same(ctx, got, nodes); err != nil {
			return "", err
		}
	}
	return "", nil
}

// reusedKinds turns the kinds round by telling each again, then back by forgetting them in the same request, and then forgets them in one and tells them in the next.
func (s *suite) reusedKinds(ctx context.Context) (string, error) {
	c, err := s.open(ctx)
	if err != nil {
		return "", err
	}
	defer c.close()
	nodes := s.nodes(0, few)
	for i := range nodes {
		nodes[i].pods = nil // they would be of kinds that are forgotten
	}
	st, req := s.begin(nodes, 1, 1, s.steady)
	want, err := c.judged(req)
	if err != nil {
		return "", err
	}
	// Whoever asks about a kind with its id turned round has to get what was said of the other one.
	turned := &pluginv1.JudgeRequest{Questions: st.questions(s.steady)}
	for i := range s.sample.pods {
		k := s.sample.kind(len(s.sample.pods) - 1 - i)
		k.Id = st.kind + int32(i)
		turned.Kinds = append(turned.Kinds, k)
	}
	var other []string
	for part := range slices.Chunk(want, len(nodes)) {
		other = slices.Concat(part, other)
	}
	got, err := c.judged(turned)
	if err != nil {
		return "", err
	}
	if err := s.equal(got, other, nodes, "with the kinds told again, the other way round, the question before"); err != nil {
		return "", err
	}
	forget := &pluginv1.JudgeRequest{}
	for i := range s.sample.pods {
		forget.ForgottenKinds = append(forget.ForgottenKinds, st.kind+int32(i))
	}
	if got, err = c.judged(&pluginv1.JudgeRequest{ForgottenKinds: forget.ForgottenKinds, Kinds: req.Kinds, Questions: req.Questions}); err != nil {
		return "", err
	}
	if err := s.equal(got, want, nodes, "the first question, of the same kinds,"); err != nil {
		return "", err
	}
	if _, err := c.ask(forget); err != nil {
		return "", err
	}
	if got, err = c.judged(&pluginv1.JudgeRequest{Kinds: req.Kinds, Questions: req.Questions}); err != nil {
		return "", err
	}
	return "", s.equal(got, want, nodes, "the first question, of the same kinds,")
}

// keptSpec tells nodes again, without what they are themselves.
func (s *suite) keptSpec(ctx context.Context) (string, error) {
	c, err := s.open(ctx)
	if err != nil {
		return "", err
	}
	defer c.close()
	nodes := s.nodes(0, few)
	st, req := s.begin(nodes, 1, 1, s.steady)
	if _, err := c.judged(req); err != nil {
		return "", err
	}
	req = &pluginv1.JudgeRequest{Questions: st.questions(s.steady)}
	for id := range st.nodes {
		req.Nodes = append(req.Nodes, st.tell(id, false, nil, nil))
	}
	got, err := c.judged(req)
	if err != nil {
		return "", err
	}
	return "", s.same(ctx, got, nodes)
}

// pods has pods of each node leave, and others come, and come back as pods of another kind.
func (s *suite) pods(ctx context.Context) (string, error) {
	c, err := s.open(ctx)
	if err != nil {
		return "", err
	}
	defer c.close()
	nodes := s.nodes(0, few)
	st, req := s.begin(nodes, 1, 1, s.steady)
	if _, err := c.judged(req); err != nil {
		return "", err
	}
	for round := range 3 {
		req := &pluginv1.JudgeRequest{Questions: st.questions(s.steady)}
		for i, n := range nodes {
			var added, removed []string
			for k, uid := range slices.Sorted(maps.Keys(n.pods)) {
				if (k+round)%2 == 0 {
					removed = append(removed, uid)
					delete(n.pods, uid)
				}
			}
			for k := range (i + round) % 4 {
				uid := fmt.Sprintf("new-%d-%d-%d", round, i, k)
				if k < len(removed) && round == 2 {
					uid = removed[k]
				}
				added = append(added, uid)
				n.pods[uid] = k % len(s.sample.pods)
			}
			req.Nodes = append(req.Nodes, st.tell(st.first+int32(i), false, added, removed))
		}
		got, err := c.judged(req)
		if err != nil {
			return "", err
		}
		if err := s.same(ctx, got, nodes); err != nil {
			return "", err
		}
	}
	return "", nil
}

// broken ends streams while they are asked, and begins others with other nodes by the same ids.
func (s *suite) broken(ctx context.Context) (string, error) {
	for i := range 3 {
		broken, err := s.open(ctx)
		if err != nil {
			return "", err
		}
		_, req := s.begin(s.nodes(few*i, few), 1, 1, s.steady)
		err = broken.send(req)
		if err == nil && i > 0 {
			_, err = broken.receive(req)
		}
		broken.close()
		if err != nil {
			return "", err
		}
		c, err := s.open(ctx)
		if err != nil {
			return "", err
		}
		nodes := s.nodes(few*i+5, few)
		_, req = s.begin(nodes, 1, 1, s.steady)
		got, err := c.judged(req)
		c.close()
		if err != nil {
			return "", fmt.Errorf("the next stream: %w", err)
		}
		if err := s.same(ctx, got, nodes); err != nil {
			return "", fmt.Errorf("the next stream: %w", err)
		}
	}
	return "", nil
}

// streams asks on several, all at once, twice, with other nodes by the same ids.
func (s *suite) streams(ctx context.Context) (string, error) {
	const streams = 4
	opened := make([]*stream, streams)
	nodes, answers, errs := make([][]node, streams), make([][]string, streams), make([]error, streams)
	states := make([]*state, streams)
	for k := range opened {
		var err error
		if opened[k], err = s.open(ctx); err != nil {
			return "", err
		}
		defer opened[k].close()
		nodes[k] = s.nodes(5*k, few)
	}
	for round := range 2 {
		var asking sync.WaitGroup
		for k, c := range opened {
			asking.Go(func() {
				var req *pluginv1.JudgeRequest
				if round == 0 {
					states[k], req = s.begin(nodes[k], 1, 1, s.steady)
				} else {
					req = &pluginv1.JudgeRequest{Questions: states[k].questions(s.steady)}
				}
				answers[k], errs[k] = c.judged(req)
			})
		}
		asking.Wait()
		for k := range opened {
			if errs[k] != nil {
				return "", fmt.Errorf("stream %d of %d: %w", k+1, streams, errs[k])
			}
			if err := s.same(ctx, answers[k], nodes[k]); err != nil {
				return "", fmt.Errorf("stream %d of %d: %w", k+1, streams, err)
			}
		}
	}
	return "", nil
}

// large tells of nodes with many labels, so many that the request is as large as any can be.
func (s *suite) large(ctx context.Context) (string, error) {
	c, err := s.open(ctx)
	if err != nil {
		return "", err
	}
	defer c.close()
	_, req := s.begin(s.nodes(0, few), 1, 1, s.all)
	const value, around = 63, 8 // bytes, of a label's value, and of what is around it and its key
	labels := make(map[string]string)
	maps.Copy(labels, req.Nodes[0].Spec.Labels)
	req.Nodes[0].Spec.Labels = labels
	for size := proto.Size(req); size < maxRequestBytes-1<<10; {
		key := fmt.Sprint("example.com/padding-", len(labels))
		labels[key] = strings.Repeat("x", value)
		size += len(key) + value + around
	}
	answers, err := c.ask(req)
	if err != nil {
		return "", err
	}
	for _, a := range answers {
		if a.GetError() != "" {
			return "", fmt.Errorf("it could not be answered: %s", a.GetError())
		}
	}
	return "", nil
}

// many asks about as many nodes as large clusters have, and then again, when one has changed.
func (s *suite) many(ctx context.Context) (string, error) {
	c, err := s.open(ctx)
	if err != nil {
		return "", err
	}
	defer c.close()
	st, req := s.begin(s.nodes(0, many), 1, 1, s.all)
	req.Questions = req.Questions[:1]
	begun := time.Now()
	if _, err := c.judged(req); err != nil {
		return "", err
	}
	told := time.Since(begun)
	req = &pluginv1.JudgeRequest{Nodes: []*pluginv1.Node{st.tell(1, false, nil, nil)}, Questions: req.Questions}
	begun = time.Now()
	if _, err := c.judged(req); err != nil {
		return "", err
	}
	asked := time.Since(begun)
	perNode := func(d time.Duration) string { return fmt.Sprintf("%.1f us a node", float64(d.Microseconds())/many) }
	return fmt.Sprintf("told and asked about in %v, %s; asked about again in %v, %s", told.Round(time.Millisecond), perNode(told), asked.Round(100*time.Microsecond), perNode(asked)), nil
}
