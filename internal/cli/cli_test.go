package cli_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/berth-scheduler/berth/internal/cli"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var now = time.Date(2026, 1, 2, 15, 0, 0, 0, time.UTC)

// gateway answers like a gateway of a small cluster.
type gateway struct {
	schedulingv1.UnimplementedSchedulingServiceServer
	mu      sync.Mutex
	applied []*schedulingv1.ApplyRequest
	deleted []string
	err     error // what Apply answers

	asked asked       // by why, scores, whatif, capacity and compare
	idle  bool        // the queue is empty
	away  atomic.Bool // GetQueue has no answer

	drained atomic.Pointer[schedulingv1.DrainMemberRequest]
	after   func(*schedulingv1.GetStatusResponse) error // what becomes of the status once a member drains; nil: nothing
}

func pods() []*schedulingv1.Pod {
	requests := []*schedulingv1.Resource{{Name: "cpu", Value: 1500}, {Name: "memory", Value: 1 << 30}, {Name: "nvidia.com/gpu", Value: 1}}
	return []*schedulingv1.Pod{
		{
			Namespace: "default", Name: "train-0", Uid: "u0", State: schedulingv1.PodState_POD_STATE_UNSCHEDULABLE, Attempts: 3, Shard: 1,
			Since: timestamppb.New(now.Add(-90 * time.Second)), Requests: requests, Priority: 10,
			Message: "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
		},
		{
			Namespace: "default", Name: "train-1", Uid: "u1", State: schedulingv1.PodState_POD_STATE_GATED, Gates: []string{"quota"},
			Since: timestamppb.New(now.Add(-50 * time.Hour)), Requests: requests,
		},
		{
			Namespace: "default", Name: "web-\x1b[31m", Uid: "u2", State: schedulingv1.PodState_POD_STATE_ACTIVE, Position: 4, Shard: 0,
			Since: timestamppb.New(now.Add(-5 * time.Minute)),
		},
		{Namespace: "shop", Name: "web-1", Uid: "u3", State: schedulingv1.PodState_POD_STATE_BOUND, Node: "node-a", Attempts: 1, Shard: -1, Class: 2},
		{Namespace: "shop", Name: "web-2", Uid: "u4", Shard: -1},
	}
}

func nodes() []*schedulingv1.Node {
	return []*schedulingv1.Node{
		{
			Name: "node-a", PodCount: 1, Labels: map[string]string{"zone": "a", "arch": "amd64"},
			Allocatable: []*schedulingv1.Resource{
				{Name: "cpu", Value: 8000}, {Name: "ephemeral-storage", Value: 100 << 30}, {Name: "memory", Value: 16 << 30},
				{Name: "nvidia.com/gpu", Value: 2}, {Name: "pods", Value: 110},
			},
			Requested: []*schedulingv1.Resource{{Name: "cpu", Value: 1500}, {Name: "memory", Value: 512<<20 + 1}},
		},
		{Name: "node-b", Unschedulable: true, Taints: []string{"gpu=yes:NoSchedule"}},
	}
}

// ListPods answers one pod a page.
func (g *gateway) ListPods(_ context.Context, req *schedulingv1.ListPodsRequest) (*schedulingv1.ListPodsResponse, error) {
	var matching []*schedulingv1.Pod
	for _, p := range pods() {
		if (req.GetNamespace() == "" || p.GetNamespace() == req.GetNamespace()) && (req.GetNode() == "" || p.GetNode() == req.GetNode()) &&
			(!req.GetPendingOnly() || p.GetNode() == "") {
			matching = append(matching, p)
		}
	}
	response := &schedulingv1.ListPodsResponse{Version: &schedulingv1.Version{Epoch: 7, Seq: 42}}
	at := len(req.GetPageToken())
	if at < len(matching) {
		response.Pods = matching[at : at+1]
	}
	if at+1 < len(matching) {
		response.NextPageToken = req.GetPageToken() + "x"
	}
	return response, nil
}

func (g *gateway) GetPod(_ context.Context, req *schedulingv1.GetPodRequest) (*schedulingv1.GetPodResponse, error) {
	for _, p := range pods() {
		if p.GetNamespace() == req.GetNamespace() && p.GetName() == req.GetName() {
			return &schedulingv1.GetPodResponse{Pod: p}, nil
		}
	}
	return nil, rpc.Error(codes.NotFound, rpc.ReasonNotFound, "pod %s/%s not found", req.GetNamespace(), req.GetName())
}

func (g *gateway) ListNodes(context.Context, *schedulingv1.ListNodesRequest) (*schedulingv1.ListNodesResponse, error) {
	return &schedulingv1.ListNodesResponse{Nodes: nodes()}, nil
}

func (g *gateway) GetNode(_ context.Context, req *schedulingv1.GetNodeRequest) (*schedulingv1.GetNodeResponse, error) {
	if req.GetName() != "node-a" {
		return nil, rpc.Error(codes.NotFound, rpc.ReasonNotFound, "node %s not found", req.GetName())
	}
	return &schedulingv1.GetNodeResponse{Node: nodes()[0]}, nil
}

func (g *gateway) GetStatus(context.Context, *schedulingv1.GetStatusRequest) (*schedulingv1.GetStatusResponse, error) {
	version := &schedulingv1.Version{Epoch: 7, Seq: 42}
	started := timestamppb.New(now.Add(-5 * time.Hour))
	response := &schedulingv1.GetStatusResponse{
		Version: version, Leader: "binder-0", AgeMillis: 250, Source: "local", Nodes: 2, Build: "v1.2.2",
		Pods: &schedulingv1.PodCounts{Pending: 4, Bound: 1},
		Etcd: &schedulingv1.Etcd{SizeBytes: 24 << 20, InUseBytes: 9 << 20, QuotaBytes: 2 << 30},
		Members: []*schedulingv1.Member{
			{Role: "binder", Id: "binder-0", Address: "10.0.0.1:7100", Version: version, Ready: true, Build: "v1.2.2", Started: started},
			{Role: "filter-worker", Id: "f-0", Address: "10.0.0.3:7100", Version: version, Lag: 3, Ready: true, Range: &schedulingv1.NodeRange{End: 512}, Build: "v1.2.2", Started: started},
			{Role: "filter-worker", Id: "f-1", Address: "10.0.0.4:7100", Version: version, Ready: true, Range: &schedulingv1.NodeRange{First: 512, End: 1003}, Build: "v1.1.0", Started: started},
			{Role: "queue", Id: "q-0", Address: "10.0.0.2:7100", Lag: -1, NotReadyBecause: "it does not answer: connection refused"},
		},
		Shards: []*schedulingv1.Shard{
			{Shard: 0, Owner: "q-0"}, {Shard: 1, Owner: "q-1", Depth: &schedulingv1.QueueDepth{Gated: 1, Unschedulable: 12}}, {Shard: 2},
		},
	}
	if g.after != nil && g.drained.Load() != nil {
		return response, g.after(response)
	}
	return response, nil
}

func (g *gateway) Apply(_ context.Context, req *schedulingv1.ApplyRequest) (*schedulingv1.ApplyResponse, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return nil, g.err
	}
	g.applied = append(g.applied, req)
	return &schedulingv1.ApplyResponse{Objects: []*schedulingv1.Applied{
		{Kind: "Node", Name: fmt.Sprintf("n-%d", len(g.applied)), Result: "created"},
		{Kind: "Pod", Namespace: "shop", Name: "web", Result: "unchanged"},
	}}, nil
}

func (g *gateway) Delete(_ context.Context, req *schedulingv1.DeleteRequest) (*schedulingv1.DeleteResponse, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if strings.HasPrefix(req.GetName(), "missing") {
		return nil, rpc.Error(codes.NotFound, rpc.ReasonNotFound, "%s %s not found", req.GetKind(), req.GetName())
	}
	g.deleted = append(g.deleted, req.GetKind()+" "+req.GetNamespace()+"/"+req.GetName())
	return &schedulingv1.DeleteResponse{}, nil
}

func (g *gateway) WatchPlacements(req *schedulingv1.WatchPlacementsRequest, stream grpc.ServerStreamingServer[schedulingv1.WatchPlacementsResponse]) error {
	seq := req.GetFrom().GetSeq()
	for i, m := range []*schedulingv1.WatchPlacementsResponse{
		{Pod: "shop/web-1", Uid: "u3", Node: "node-a", Placed: true},
		{},
		{Pod: "shop/web-1", Uid: "u3", Node: "node-a"},
	} {
		m.Version = &schedulingv1.Version{Epoch: 7, Seq: seq + int64(i) + 1}
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return rpc.Error(codes.OutOfRange, rpc.ReasonLogCompacted, "list the pods, and watch from the version listed")
}

// harness runs commands against a gateway.
type harness struct {
	t       *testing.T
	clients *rpc.Clients
	stop    func() // ends the gateway
	screen  func() (width, height int, ok bool)
}

func start(t *testing.T, g *gateway) *harness {
	t.Helper()
	config := rpc.Config{Net: rpc.Memory()}
	server := rpc.NewServer(config, "gateway", rpc.WithRequestLimit(rpc.PublicRequestLimit), rpc.WithPublic(nil))
	schedulingv1.RegisterSchedulingServiceServer(server.Registrar(), g)
	l, err := config.Net.Listen("berth")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, l) }()
	h := &harness{t: t, clients: rpc.NewClients(config), stop: cancel}
	t.Cleanup(func() {
		cancel()
		if err := h.clients.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return h
}

// run returns what a command prints: answers, notices and its error.
func (h *harness) run(stdin string, args ...string) (out, notices string, err error) {
	h.t.Helper()
	var stdout, stderr bytes.Buffer
	root := &cobra.Command{Use: "berth", SilenceErrors: true}
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	root.AddCommand(cli.Commands(cli.Options{
		Version: "v1.2.3", Revision: "abc1234", Kubernetes: "1.36", DefaultServer: "berth", In: strings.NewReader(stdin), Out: &stdout, Err: &stderr,
		Now: func() time.Time { return now }, Screen: h.screen,
		Dial: func(address string) (grpc.ClientConnInterface, func() error, error) {
			conn, err := h.clients.Conn(address)
			return conn, func() error { return nil }, err
		},
	})...)
	root.SetArgs(args)
	ctx, cancel := context.WithTimeout(h.t.Context(), 5*time.Minute)
	defer cancel()
	err = root.ExecuteContext(ctx)
	return stdout.String(), stderr.String(), err
}

// words splits a command line at its spaces; "" is an empty word.
func words(line string) []string {
	all := strings.Fields(line)
	for i, word := range all {
		if word == `""` {
			all[i] = ""
		}
	}
	return all
}

// golden compares what commands print with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *rewrite {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got), -rewrite to accept:\n%s", path, diff)
	}
}

func TestAnswersLookLikeTheGoldenFiles(t *testing.T) {
	h := start(t, &gateway{})
	for _, test := range []struct{ name, args string }{
		{"pods", "get pods"},
		{"pods-all-wide", "get pods -A -o wide"},
		{"pods-of-node", "get po -n shop --node node-a"},
		{"pods-pending-yaml", "get pods -n shop --pending -o yaml"},
		{"pods-none", "get pods -n empty"},
		{"pod-json", "get pod web-1 -n shop -o json"},
		{"nodes", "get nodes"},
		{"nodes-wide", "get nodes -o wide"},
		{"node-yaml", "get node node-a -o yaml"},
		{"status", "get status"},
		{"status-json", "get status -o json"},
		{"watch", "watch --from 7/42"},
		{"not-found", "get pod nope"},
		{"bad-output", "get pods -o xml"},
		{"bad-kind", "get services"},
		{"bad-flags", "get nodes -A"},
		{"bad-names", "get pods web-1 -A"},
		{"bad-version", "watch --from yesterday"},
		{"no-file", "apply"},
		{"delete-nothing", "delete pod"},
		{"delete-kind", "delete deployment x"},
		{"no-server", "get status --server elsewhere"},
		{"pods-name", "get pods -A -o name"},
		{"pods-jsonpath", "get pods -A -o jsonpath={.pods[?(@.state==\"POD_STATE_BOUND\")].name}"},
		{"nodes-short", "nodes"},
		{"node-name", "nodes node-a -o name"},
		{"why", "why train-0"},
		{"why-wide", "why train-0 -o wide"},
		{"why-json", "why train-0 -o json"},
		{"why-yaml", "why web-1 -n shop -o yaml"},
		{"why-jsonpath", "why train-0 -o jsonpath={.suggestions[*].text}"},
		{"why-name", "why train-0 -o name"},
		{"why-placed", "why web-1 -n shop"},
		{"why-gated", "why train-1"},
		{"why-gang", "why gang-0"},
		{"why-none", "why nope"},
		{"why-nothing", "why"},
		{"why-slash", "why shop/web-1"},
		{"why-bad-path", "why train-0 -o jsonpath={.suggestions["},
		{"why-no-path", "why train-0 -o jsonpath="},
		{"why-wrong-path", "why train-0 -o jsonpath={.suggestion}"},
		{"why-busy", "why busy --timeout 5s"},
		{"why-forbidden", "why secret"},
		{"why-anonymous", "why anonymous"},
		{"why-broken", "why broken"},
		{"why-loading", "why loading"},
		{"scores", "scores web-1 -n shop"},
		{"scores-wide", "scores web-1 -n shop -o wide"},
		{"scores-none", "scores train-0"},
		{"whatif", "whatif -f testdata/web.yaml --times 7 --add-nodes like=node-a"},
		{"whatif-wide", "whatif --pending -o wide"},
		{"whatif-summary", "whatif --pending --summary"},
		{"whatif-name", "whatif --pending -o name"},
		{"whatif-no-pods", "whatif --cordon node-a"},
		{"whatif-nothing", "whatif"},
		{"whatif-invalid", "whatif --cordon nope"},
		{"whatif-times", "whatif --pending --times 3"},
		{"whatif-drain", "whatif drain node-c"},
		{"whatif-drain-what", "whatif drain"},
		{"whatif-label", "whatif --label node-a:disk"},
		{"whatif-add", "whatif --add-nodes count=3"},
		{"whatif-add-count", "whatif --add-nodes like=node-a,count=none"},
		{"capacity", "capacity web-1 -n shop"},
		{"capacity-group", "capacity podgroup/train -n ml"},
		{"capacity-limit", "capacity -f testdata/web.yaml --limit 5"},
		{"capacity-what", "capacity"},
		{"capacity-name", "capacity web-1 -o name"},
		{"compare", "compare --with testdata/binpack.yaml --everything"},
		{"compare-what", "compare"},
		{"compare-both", "compare --with a --everything -f b"},
		{"queue", "queue"},
		{"queue-name", "queue -o name"},
		{"queue-jsonpath", "queue -o jsonpath={.priorities[0].pending}"},
		{"workers", "workers"},
		{"workers-wide", "workers -o wide"},
		{"workers-name", "workers -o name"},
		{"top", "top"},
		{"top-every", "top --every 1ms"},
		{"help-whatif", "whatif --help"},
		{"drain-nothing", "drain-worker"},
		{"drain-none", "drain-worker f-7"},
		{"drain-negative", "drain-worker f-0 --wait -1s"},
		{"drain-last", "drain-worker queue/q-0"},
		{"drain-shared", "drain-worker f-1"},
		{"drain-silent", "drain-worker queue/q-0 --force"},
		{"help-drain", "drain-worker --help"},
		{"complete-members", "__complete drain-worker f-"},
		{"complete-pods", "__complete why tr"},
		{"complete-pods-elsewhere", "__complete scores --namespace shop w"},
		{"complete-nodes", "__complete whatif drain node-"},
		{"complete-get", "__complete get node n"},
		{"complete-resource", `__complete get ""`},
		{"complete-output", `__complete queue -o ""`},
		{"complete-all", `__complete why ""`},
		{"complete-away", "__complete why --server elsewhere tr"},
	} {
		t.Run(test.name, func(t *testing.T) {
			out, notices, err := h.run("", words(test.args)...)
			text := "$ berth " + test.args + "\n" + out
			if notices != "" {
				text += "--- notices\n" + notices
			}
			if err != nil {
				text += "--- error\n" + err.Error() + "\n"
			}
			golden(t, test.name, text)
		})
	}
}
