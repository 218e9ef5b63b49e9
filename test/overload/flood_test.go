package overload

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	filterv1 "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/test/berthtest"
)

const (
	callers     = 600 // of each kind, all at once: twice what one method lets run and wait
	callsOfEach = 2   // of each caller, one after the other, whatever it is told
	connections = 4   // to each process
	tries       = 10  // of a call, for whose answer the caller was too slow
)

// flood makes many more calls than are answered at a time, and fails the test if one of them gets another answer than OK, or
// RESOURCE_EXHAUSTED with a reason and when to come back.
func (r *run) flood() {
	r.t.Helper()
	calls := r.calls()
	outcomes := make(map[string]map[codes.Code]int)
	var slowest time.Duration
	var again int
	var mu sync.Mutex
	var calling sync.WaitGroup
	began := time.Now()
	for name := range calls {
		outcomes[name] = map[codes.Code]int{} // all before the first call is under way
	}
	for name, call := range calls {
		for i := range callers {
			calling.Go(func() {
				for range callsOfEach {
					var err error
					var took time.Duration
					for try := 1; ; try++ {
						ctx, cancel := context.WithTimeout(context.Background(), *within)
						start := time.Now()
						err = call(ctx, i)
						took = time.Since(start)
						cancel()
						if !tooSlow(err) || try == tries {
							break
						}
						mu.Lock()
						again++
						mu.Unlock()
					}
					mu.Lock()
					outcomes[name][status.Code(err)]++
					slowest = max(slowest, took)
					mu.Unlock()
					if wrong := refusal(err); wrong != "" {
						r.t.Errorf("%s: %s", name, wrong)
					}
				}
			})
		}
	}
	calling.Wait()
	refused := 0
	for _, name := range slices.Sorted(maps.Keys(outcomes)) {
		r.say("%-14s %v", name, outcomes[name])
		refused += outcomes[name][codes.ResourceExhausted]
		if outcomes[name][codes.OK] == 0 {
			r.t.Errorf("%s: no call was answered", name)
		}
	}
	if refused == 0 {
		r.t.Error("no call was refused: this was no flood")
	}
	r.say("%d calls in %.1f s, %d refused, the slowest took %.2f s; %d were made again", len(calls)*callers*callsOfEach, time.Since(began).Seconds(), refused,
		slowest.Seconds(), again)
}

// tooSlow reports whether the caller was: its request did not come in time, or the server has ended a connection on which nothing was read for
// long. All callers are one process here, which gets no time for so long where others are busy.
func tooSlow(err error) bool {
	return rpc.ReasonOf(err) == rpc.ReasonSlowRequest || status.Code(err) == codes.Unavailable && rpc.ReasonOf(err) == ""
}

// refusal says what is wrong with an answer to a call that is in order.
func refusal(err error) string {
	switch status.Code(err) {
	case codes.OK:
		return ""
	case codes.ResourceExhausted:
		if _, asked := rpc.RetryAfter(err); !asked || rpc.ReasonOf(err) == "" {
			return fmt.Sprintf("refused without a reason or when to come back: %v", err)
		}
		return ""
	}
	return err.Error()
}

// calls are one call of each kind, which an idle Berth answers.
func (r *run) calls() map[string]func(ctx context.Context, caller int) error {
	r.t.Helper()
	s, err := r.client.GetStatus(r.context(), &schedulingv1.GetStatusRequest{})
	if err != nil {
		r.t.Fatal(err)
	}
	address := r.addresses()
	gateway, binder, filter, queue := r.dial(address["gateway-0"]), r.dial(address["binder-0"]), r.dial(address["filter-worker-0"]), r.dial(address["queue-0"])
	watching, cancel := context.WithCancel(r.context())
	defer cancel()
	var revision int64 // of the claim of shard 0
	for _, owner := range <-r.etcd.WatchShards(watching) {
		if owner.Shard == 0 {
			revision = owner.Revision
		}
	}
	version := &logv1.Version{Epoch: s.GetVersion().GetEpoch(), Seq: s.GetVersion().GetSeq()}
	public := func(caller int) schedulingv1.SchedulingServiceClient {
		return schedulingv1.NewSchedulingServiceClient(gateway[caller%connections])
	}
	return map[string]func(ctx context.Context, caller int) error{
		"ListPods": func(ctx context.Context, caller int) error {
			_, err := public(caller).ListPods(ctx, &schedulingv1.ListPodsRequest{PageSize: 500, PendingOnly: true})
			return err
		},
		"GetPod": func(ctx context.Context, caller int) error {
			_, err := public(caller).GetPod(ctx, &schedulingv1.GetPodRequest{Name: podName(rand.IntN(r.pods))})
			return err
		},
		"GetStatus": func(ctx context.Context, caller int) error {
			_, err := public(caller).GetStatus(ctx, &schedulingv1.GetStatusRequest{})
			return err
		},
		"Apply": func(ctx context.Context, caller int) error {
			_, err := public(caller).Apply(ctx, &schedulingv1.ApplyRequest{Manifests: pod(r.pods+caller, 0), DryRun: true})
			return err
		},
		"Commit": func(ctx context.Context, caller int) error { // of a pod that is gone
			_, err := binderv1.NewBinderServiceClient(binder[caller%connections]).Commit(ctx, &binderv1.CommitRequest{
				ShardRevision: revision, Version: version,
				Pods: []*binderv1.PodAttempt{{Uid: "gone", Attempt: 1, SubjectIndex: -1}},
			})
			return err
		},
		"Filter": func(ctx context.Context, caller int) error {
			_, err := filterv1.NewFilterServiceClient(filter[caller%connections]).Filter(ctx, &filterv1.FilterRequest{
				MinVersion: version, End: math.MaxInt32, Subjects: []*filterv1.Subject{{Class: int32(1 + caller%classes)}},
			})
			return err
		},
		"ListPending": func(ctx context.Context, caller int) error {
			_, err := queuev1.NewQueueServiceClient(queue[caller%connections]).ListPending(ctx, &queuev1.ListPendingRequest{PageSize: 500})
			return err
		},
	}
}

// leaveUnread has clients ask the gateway and a queue for pages and read none, until they are refused for that. It fails the test
// if another client is not answered meanwhile.
func (r *run) leaveUnread() {
	r.t.Helper()
	window := []grpc.DialOption{grpc.WithStaticStreamWindowSize(64 << 10), grpc.WithStaticConnWindowSize(64 << 10)}
	address := r.addresses()
	for _, page := range []struct {
		of, method      string
		request, answer proto.Message
	}{
		{"gateway-0", schedulingv1.SchedulingService_ListPods_FullMethodName, &schedulingv1.ListPodsRequest{PageSize: 500}, &schedulingv1.ListPodsResponse{}},
		{"queue-0", queuev1.QueueService_ListPending_FullMethodName, &queuev1.ListPendingRequest{PageSize: 500}, &queuev1.ListPendingResponse{}},
	} {
		for _, conn := range r.dial(address[page.of], window...)[:connections-1] { // that leaves a share of the bound
			defer conn.Close()
			asked := 0
			berthtest.Await(r.t, *within, "a client that reads nothing to be refused", func(ctx context.Context) error {
				for range 20 {
					stream, err := conn.NewStream(r.context(), &grpc.StreamDesc{ServerStreams: true}, page.method)
					if err != nil {
						return err
					}
					if err := errors.Join(stream.SendMsg(page.request), stream.CloseSend()); err != nil {
						return err
					}
					asked++
				}
				err := conn.Invoke(ctx, page.method, page.request, page.answer)
				if status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "not read") {
					return nil
				}
				return fmt.Errorf("asked %d times: %v", asked, err)
			})
			r.say("%s refused a client that had asked %d times and read nothing", page.of, asked)
		}
		other := rpc.RetryRefused(r.dial(address[page.of])[0])
		if err := other.Invoke(r.context(), page.method, page.request, page.answer); err != nil {
			r.t.Errorf("%s, beside clients that read nothing: %v", page.method, err)
		}
	}
}

// addresses returns where each member listens.
func (r *run) addresses() map[string]string {
	r.t.Helper()
	s, err := r.client.GetStatus(r.context(), &schedulingv1.GetStatusRequest{})
	if err != nil {
		r.t.Fatal(err)
	}
	address := map[string]string{}
	for _, m := range s.GetMembers() {
		address[m.GetId()] = m.GetAddress()
	}
	return address
}

func (r *run) dial(address string, opts ...grpc.DialOption) []*grpc.ClientConn {
	r.t.Helper()
	conns := make([]*grpc.ClientConn, connections)
	for i := range conns {
		conn, err := grpc.NewClient(address, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
		if err != nil {
			r.t.Fatal(err)
		}
		r.t.Cleanup(func() { _ = conn.Close() })
		conns[i] = conn
	}
	return conns
}
