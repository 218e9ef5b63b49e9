package queue_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/services/queue"
)

func TestPendingPodsArePagedByNamespaceAndName(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 3) // without workers: nothing is popped
	q, _ := w.queueMember("q1")
	var want []string
	for k := range 25 {
		namespace := string(rune('a' + k%3))
		name := fmt.Sprintf("p%02d", k)
		w.ledger.pod(name, int64(100+k), func(p *cluster.Pod, _ *cluster.ClassSpec) { p.Namespace = namespace })
		want = append(want, namespace+"/"+name)
	}
	slices.Sort(want)
	until(t, "all are held", func() bool { return len(pending(t, q)) == 25 })
	var got []string
	var sizes []int
	token := ""
	for {
		response, err := q.ListPending(t.Context(), &queuev1.ListPendingRequest{PageSize: 10, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range response.GetPods() {
			got = append(got, p.GetNamespace()+"/"+p.GetName())
		}
		sizes = append(sizes, len(response.GetPods()))
		if token = response.GetNextPageToken(); token == "" {
			break
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
	if want := []int{10, 10, 5}; !slices.Equal(sizes, want) {
		t.Errorf("pages of %v pods, want %v", sizes, want)
	}
}

func TestPositionCountsThePodsAhead(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	q, _ := w.queueMember("q1")
	for k, priority := range []int32{0, 5, 0, 9} {
		w.ledger.pod(fmt.Sprintf("p%d", k), 100, func(p *cluster.Pod, _ *cluster.ClassSpec) { p.Priority = priority })
	}
	until(t, "all are held", func() bool { return len(pending(t, q)) == 4 })
	got := map[string]int32{}
	for name, p := range pending(t, q) {
		got[name] = p.GetPosition()
	}
	if diff := cmp.Diff(map[string]int32{"p3": 0, "p1": 1, "p0": 2, "p2": 3}, got); diff != "" {
		t.Errorf("positions (-want +got):\n%s", diff)
	}

	// Who they are is told to who asks, at most of 10 pods.
	uids := slices.Concat([]string{"uid-p2"}, slices.Repeat([]string{"uid-p1"}, 10))
	for _, asked := range []bool{false, true} {
		response, err := q.GetPending(t.Context(), &queuev1.GetPendingRequest{Uids: uids, Ahead: asked})
		if err != nil {
			t.Fatal(err)
		}
		var told []string
		for k, p := range response.GetPods() {
			for _, a := range p.GetAhead() {
				told = append(told, fmt.Sprintf("%d: %d of %d, %s", k, a.GetPods(), a.GetPriority(), a.GetName()))
			}
		}
		var want []string
		if asked {
			want = []string{"0: 1 of 9, p3", "0: 1 of 5, p1", "0: 1 of 0, p0"}
			for k := 1; k < 10; k++ {
				want = append(want, fmt.Sprintf("%d: 1 of 9, p3", k))
			}
		}
		if diff := cmp.Diff(want, told); diff != "" {
			t.Errorf("asked %v, who is ahead (-want +got):\n%s", asked, diff)
		}
	}
}

func TestGetPendingAnswersInRequestOrderAndLeavesOutTheUnknown(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 2)
	q, _ := w.queueMember("q1")
	for k := range 4 {
		w.ledger.pod(fmt.Sprintf("p%d", k), int64(100+k), nil)
	}
	until(t, "all are held", func() bool { return len(pending(t, q)) == 4 })
	response, err := q.GetPending(t.Context(), &queuev1.GetPendingRequest{Uids: []string{"uid-p3", "uid-x", "uid-p0"}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range response.GetPods() {
		got = append(got, p.GetName())
	}
	if want := []string{"p3", "p0"}; !slices.Equal(got, want) {
		t.Errorf("pods %v, want %v", got, want)
	}
}

func TestBadRequestsAreAnsweredWithTheirFields(t *testing.T) {
	q, err := queue.New(queue.Config{
		ID: "q1", Replica: newLedger(1), Evaluator: engine.NewEvaluator(engine.EvaluatorConfig{}), Coord: newEtcd(),
		NewSession: newWorld(t, 1).noSession, Clients: rpc.NewClients(rpc.Config{}),
	})
	if err != nil {
		t.Fatal(err)
	}
	list := func(r *queuev1.ListPendingRequest) error { _, err := q.ListPending(t.Context(), r); return err }
	get := func(uids ...string) error {
		_, err := q.GetPending(t.Context(), &queuev1.GetPendingRequest{Uids: uids})
		return err
	}
	activate := func(uids ...string) error {
		_, err := q.Activate(t.Context(), &queuev1.ActivateRequest{Uids: uids})
		return err
	}
	for name, c := range map[string]struct {
		err    error
		fields []string
	}{
		"negative page":     {list(&queuev1.ListPendingRequest{PageSize: -1}), []string{"page_size"}},
		"token of nothing":  {list(&queuev1.ListPendingRequest{PageToken: "!"}), []string{"page_token"}},
		"token of two":      {list(&queuev1.ListPendingRequest{PageToken: "YWI"}), []string{"page_token"}},
		"both":              {list(&queuev1.ListPendingRequest{PageSize: -1, PageToken: "!"}), []string{"page_size", "page_token"}},
		"too many uids":     {get(slices.Repeat([]string{"u"}, 1001)...), []string{"uids"}},
		"an empty uid":      {get("a", ""), []string{"uids[1]"}},
		"activate too many": {activate(slices.Repeat([]string{"u"}, 1001)...), []string{"uids"}},
		"activate nobody":   {activate(""), []string{"uids[0]"}},
		"nothing is asked":  {get(), nil},
		"a page of default": {list(&queuev1.ListPendingRequest{}), nil},
	} {
		t.Run(name, func(t *testing.T) {
			var fields []string
			for _, v := range rpc.Violations(c.err) {
				fields = append(fields, v.Field)
			}
			want := codes.OK
			if c.fields != nil {
				want = codes.InvalidArgument
			}
			if !slices.Equal(fields, c.fields) || status.Code(c.err) != want {
				t.Errorf("%v with fields %v, want %v with %v", status.Code(c.err), fields, want, c.fields)
			}
		})
	}
}

func TestActivateTriesPodsAgainAndLeavesOutTheUnknown(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 4)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 100)
	for k := range 4 {
		w.ledger.pod(fmt.Sprintf("p%d", k), int64(500+k), nil)
	}
	w.ledger.pod("gated", 10, func(p *cluster.Pod, _ *cluster.ClassSpec) { p.Gates = []string{"wait"} })
	q, _ := w.queueMember("q1")
	for k := range 4 {
		untilState(t, q, fmt.Sprintf("p%d", k), queuev1.State_STATE_UNSCHEDULABLE)
	}
	untilState(t, q, "gated", queuev1.State_STATE_GATED)
	response, err := q.Activate(t.Context(), &queuev1.ActivateRequest{Uids: []string{"uid-p3", "uid-x", "uid-gated", "uid-p1"}})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"uid-p3", "uid-p1"}; !slices.Equal(response.GetUids(), want) {
		t.Errorf("activated %v, want %v", response.GetUids(), want)
	}
	for name, want := range map[string]int32{"p0": 1, "p1": 2, "p2": 1, "p3": 2} {
		until(t, fmt.Sprintf("%s has been tried %d times", name, want), func() bool {
			p := pending(t, q)[name]
			return p.GetState() == queuev1.State_STATE_UNSCHEDULABLE && p.GetAttempts() == want
		})
	}
}

func TestConfigThatMakesNoSenseIsRefused(t *testing.T) {
	good := queue.Config{
		ID: "q1", Replica: newLedger(1), Evaluator: engine.NewEvaluator(engine.EvaluatorConfig{}), Coord: newEtcd(),
		NewSession: newWorld(t, 1).noSession, Clients: rpc.NewClients(rpc.Config{}),
	}
	for name, spoil := range map[string]func(*queue.Config){
		"no id":           func(c *queue.Config) { c.ID = "" },
		"no replica":      func(c *queue.Config) { c.Replica = nil },
		"too large batch": func(c *queue.Config) { c.BatchSize = 1001 },
		"negative time":   func(c *queue.Config) { c.WorkerTimeout = -1 },
	} {
		bad := good
		spoil(&bad)
		if _, err := queue.New(bad); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := queue.New(good); err != nil {
		t.Error(err)
	}
}
