package rpcs

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	_ "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	_ "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
	_ "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
	_ "github.com/berth-scheduler/berth/internal/gen/berth/member/v1"
	_ "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	_ "github.com/berth-scheduler/berth/internal/gen/berth/score/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/test/berthtest"
)

func FuzzGetStatusRPC(f *testing.F)       { fuzz(f, "GetStatus") }
func FuzzListPodsRPC(f *testing.F)        { fuzz(f, "ListPods") }
func FuzzGetPodRPC(f *testing.F)          { fuzz(f, "GetPod") }
func FuzzListNodesRPC(f *testing.F)       { fuzz(f, "ListNodes") }
func FuzzGetNodeRPC(f *testing.F)         { fuzz(f, "GetNode") }
func FuzzWatchPlacementsRPC(f *testing.F) { fuzz(f, "WatchPlacements") }
func FuzzApplyRPC(f *testing.F)           { fuzz(f, "Apply") }
func FuzzDeleteRPC(f *testing.F)          { fuzz(f, "Delete") }
func FuzzExplainPodRPC(f *testing.F)      { fuzz(f, "ExplainPod") }
func FuzzWhatIfRPC(f *testing.F)          { fuzz(f, "WhatIf") }
func FuzzGetCapacityRPC(f *testing.F)     { fuzz(f, "GetCapacity") }
func FuzzCompareRPC(f *testing.F)         { fuzz(f, "Compare") }
func FuzzGetMapRPC(f *testing.F)          { fuzz(f, "GetMap") }
func FuzzGetQueueRPC(f *testing.F)        { fuzz(f, "GetQueue") }
func FuzzDrainMemberRPC(f *testing.F)     { fuzz(f, "DrainMember") }

func FuzzCommitRPC(f *testing.F)                { fuzz(f, "Commit") }
func FuzzAskRPC(f *testing.F)                   { fuzz(f, "Ask") }
func FuzzAskPreemptRPC(f *testing.F)            { fuzz(f, "AskPreempt") }
func FuzzAskPostFilterRPC(f *testing.F)         { fuzz(f, "AskPostFilter") }
func FuzzAskPreEnqueueRPC(f *testing.F)         { fuzz(f, "AskPreEnqueue") }
func FuzzGetPluginServicesRPC(f *testing.F)     { fuzz(f, "GetPluginServices") }
func FuzzDescribePluginServiceRPC(f *testing.F) { fuzz(f, "DescribePluginService") }
func FuzzJudgeHypotheticalRPC(f *testing.F)     { fuzz(f, "JudgeHypothetical") }
func FuzzReportRPC(f *testing.F)                { fuzz(f, "Report") }
func FuzzPlaceGroupRPC(f *testing.F)            { fuzz(f, "PlaceGroup") }
func FuzzPreemptRPC(f *testing.F)               { fuzz(f, "Preempt") }
func FuzzFilterRPC(f *testing.F)                { fuzz(f, "Filter") }
func FuzzDryRunPreemptionRPC(f *testing.F)      { fuzz(f, "DryRunPreemption") }
func FuzzScoreRPC(f *testing.F)                 { fuzz(f, "Score") }
func FuzzFollowRPC(f *testing.F)                { fuzz(f, "Follow") }
func FuzzGetMemberRPC(f *testing.F)             { fuzz(f, "GetMember") }
func FuzzDrainRPC(f *testing.F)                 { fuzz(f, "Drain") }
func FuzzListPendingRPC(f *testing.F)           { fuzz(f, "ListPending") }
func FuzzGetPendingRPC(f *testing.F)            { fuzz(f, "GetPending") }
func FuzzGetShardsRPC(f *testing.F)             { fuzz(f, "GetShards") }
func FuzzWatchPriorityFloorsRPC(f *testing.F)   { fuzz(f, "WatchPriorityFloors") }
func FuzzActivateRPC(f *testing.F)              { fuzz(f, "Activate") }

// servedBy is who of a Berth in one process serves a package's service; the public API has an address of its own.
var servedBy = map[protoreflect.FullName]string{
	"berth.binder.v1": "t-binder-0", "berth.log.v1": "t-binder-0", "berth.filter.v1": "t-filter-0", "berth.score.v1": "t-score-0",
	"berth.queue.v1": "t-queue-0", "berth.member.v1": "t-queue-0", "berth.scheduling.v1": "",
}

// methods returns all RPCs of all roles by name.
func methods() map[string]protoreflect.MethodDescriptor {
	out := make(map[string]protoreflect.MethodDescriptor)
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		if file.Package() == "berth.plugin.v1" { // others serve it
			return true
		}
		for i := range file.Services().Len() {
			for k := range file.Services().Get(i).Methods().Len() {
				if m := file.Services().Get(i).Methods().Get(k); strings.HasPrefix(string(file.Package()), "berth.") {
					name := string(m.Name())
					if out[name] != nil {
						name = string(m.FullName())
					}
					out[name] = m
				}
			}
		}
		return true
	})
	return out
}

// TestEveryRPCHasATarget: make fuzz finds targets by their functions, which nobody but a person writes.
func TestEveryRPCHasATarget(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "rpcs_test.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	targets := make(map[string]bool)
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || !strings.HasPrefix(f.Name.Name, "Fuzz") {
			continue
		}
		call := f.Body.List[0].(*ast.ExprStmt).X.(*ast.CallExpr)
		name := strings.Trim(call.Args[1].(*ast.BasicLit).Value, `"`)
		if f.Name.Name != "Fuzz"+name+"RPC" {
			t.Errorf("%s asks %s", f.Name.Name, name)
		}
		targets[name] = true
	}
	for name, m := range methods() {
		if !targets[name] {
			t.Errorf("%s has no target", m.FullName())
		}
		if _, known := servedBy[m.ParentFile().Package()]; !known {
			t.Errorf("nobody is known to serve %s", m.FullName())
		}
	}
}

// raw is a codec that sends bytes as they are.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}
func (raw) Name() string { return "proto" }

// fuzz sends what the fuzzer makes to an RPC. It must be answered in time, with what a caller can do something about, and Berth
// must answer the next.
func fuzz(f *testing.F, name string) {
	method := methods()[name]
	if method == nil {
		f.Fatalf("there is no RPC %s", name)
	}
	f.Add(false, []byte{})
	f.Add(false, []byte("\xff\xff\xff\xff"))
	f.Add(true, []byte{})
	for k := range byte(5) {
		seed := make([]byte, 64)
		for i := range seed {
			seed[i] = byte(i*int(2*k+3)) % 31
		}
		f.Add(true, seed)
	}

	network := rpc.Memory()
	b := berthtest.Start(f, berthtest.Options{Nodes: 3, Net: network, Log: slog.New(slog.DiscardHandler)})
	b.Apply(berthtest.Pod("small", "1", "1Gi", ""), berthtest.Pod("large", "100", "1Gi", ""))
	b.AwaitDecided(2)
	var conn grpc.ClientConnInterface = b.Conn
	if member := servedBy[method.ParentFile().Package()]; member != "" {
		clients := rpc.NewClients(rpc.Config{Net: network})
		f.Cleanup(func() {
			if err := clients.Close(); err != nil {
				f.Error(err)
			}
		})
		inner, err := clients.Conn(member)
		if err != nil {
			f.Fatal(err)
		}
		conn = inner
	}
	path := fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
	f.Fuzz(func(t *testing.T, filled bool, data []byte) {
		if filled {
			var err error
			if data, err = proto.Marshal(message(method.Input(), data)); err != nil {
				t.Fatal(err)
			}
		}
		decodes := proto.Unmarshal(data, dynamicpb.NewMessage(method.Input())) == nil
		ctx, cancel := context.WithTimeout(t.Context(), berthtest.Patience)
		defer cancel()
		err := call(ctx, conn, path, method.IsStreamingServer(), data)
		switch code := status.Code(err); {
		case ctx.Err() != nil:
			t.Fatalf("no answer within %v", berthtest.Patience)
		case !decodes && code == codes.Internal: // so gRPC answers what is no message
		case code == codes.Internal || code == codes.Unknown || code == codes.DataLoss || code == codes.Unimplemented:
			t.Errorf("%v", err)
		case code == codes.InvalidArgument && len(rpc.Violations(err)) == 0:
			t.Errorf("%v: want a field", err)
		}
		if _, err := b.GetStatus(t.Context(), &schedulingv1.GetStatusRequest{}); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}

// call makes one call with these bytes. Of a stream it reads the first message, if one comes soon.
func call(ctx context.Context, conn grpc.ClientConnInterface, path string, stream bool, data []byte) error {
	var answer []byte
	if !stream {
		return conn.Invoke(ctx, path, &data, &answer, grpc.ForceCodec(raw{}))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, path, grpc.ForceCodec(raw{}))
	if err != nil {
		return err
	}
	if err := s.SendMsg(&data); err != nil {
		return err
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- s.RecvMsg(&answer) }()
	select {
	case err := <-ended:
		return err
	case <-time.After(50 * time.Millisecond): // one that has nothing to say is fine
		cancel()
		<-ended
		return nil
	}
}
