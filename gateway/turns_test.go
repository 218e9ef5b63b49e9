package gateway_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/berth-scheduler/berth/gateway"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/manifest"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/source/local"
	"github.com/berth-scheduler/berth/test/bubble"
)

// gone returns the context of a call whose client has left: it gets a turn at once, or not at all.
func gone(t *testing.T) context.Context {
	ctx, leave := context.WithCancel(t.Context())
	leave()
	return ctx
}

// hold takes a turn for somebody.
func hold(t *testing.T, turns *rpc.Turns) *rpc.Turn {
	t.Helper()
	turn, err := rpc.TakeTurn(rpc.WithTurns(rpc.WithCaller(gone(t), "somebody"), turns))
	if err != nil {
		t.Errorf("there is no free turn: %v", err)
	}
	return turn
}

func TestTheClusterIsReadInTurns(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, small()...)))
	turns := rpc.NewTurns(1)
	for what, call := range map[string]func(context.Context) error{
		"a list": func(ctx context.Context) error {
			_, err := b.service.ListPods(ctx, &schedulingv1.ListPodsRequest{})
			return err
		},
		"a node": func(ctx context.Context) error {
			_, err := b.service.GetNode(ctx, &schedulingv1.GetNodeRequest{Name: "node-00"})
			return err
		},
		"a question": func(ctx context.Context) error {
			_, err := b.service.GetCapacity(ctx, &schedulingv1.GetCapacityRequest{Name: "pod-0001"})
			return err
		},
	} {
		held := hold(t, turns)
		reads := 0
		b.ledger.afterRead = func() { reads++ }
		if err := call(rpc.WithTurns(gone(t), turns)); !errors.Is(err, context.Canceled) || reads != 0 {
			t.Errorf("%s, while another has the turn: %v, after %d reads; want that it waited until its client had left", what, err, reads)
		}
		held.End()
		if err := call(rpc.WithTurns(t.Context(), turns)); err != nil {
			t.Errorf("%s, once the turn is free: %v", what, err)
		}
		hold(t, turns).End() // it was given back
	}
}

func TestALongQuestionLetsOthersHaveATurn(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, small()...)))
	turns := rpc.NewTurns(1)
	ctx, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	b.ledger.afterRead = func() { // it has the turn
		go func() {
			defer close(done)
			turn, err := rpc.TakeTurn(rpc.WithTurns(rpc.WithCaller(t.Context(), "somebody"), turns))
			if err != nil {
				t.Error(err)
			}
			end()
			turn.End()
		}()
	}
	_, err := b.service.WhatIf(rpc.WithTurns(rpc.WithCaller(ctx, "long"), turns), &schedulingv1.WhatIfRequest{
		Manifests: `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`, Times: 10_000, SummaryOnly: true,
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the question: %v, want that another's turn, which ends it, came before its end", err)
	}
	<-done
}

// callee is a connection whose calls are answered by a function.
type callee func(response any) error

func (c callee) Invoke(_ context.Context, _ string, _, response any, _ ...grpc.CallOption) error {
	return c(response)
}

func (c callee) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "there are no streams")
}

// reader is a client that is told what was written.
type reader struct {
	*httptest.ResponseRecorder
	told func()
}

func (r reader) Write(b []byte) (int, error) {
	r.told()
	return r.ResponseRecorder.Write(b)
}

func TestJSONIsDecodedAndEncodedInTurns(t *testing.T) {
	turns := rpc.NewTurns(1)
	calls := 0
	answer, written := func() {}, func() {} // what happens before the call is answered, and when something is written
	handler, err := gateway.Handler(callee(func(response any) error {
		calls++
		answer()
		proto.Merge(response.(proto.Message), &schedulingv1.GetCapacityResponse{Fit: 7})
		return nil
	}), gateway.HTTPConfig{Turns: turns})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(ctx context.Context) (code int) {
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/capacity", strings.NewReader(`{"name":"pod"}`))
		r.Header.Set("Content-Type", "application/json")
		w := reader{httptest.NewRecorder(), written}
		handler.ServeHTTP(w, r)
		return w.Code
	}
	// 1. Decoding waits.
	held := hold(t, turns)
	if code := ask(gone(t)); code == http.StatusOK || calls != 0 {
		t.Errorf("while another has the turn: %d, after %d calls", code, calls)
	}
	held.End()
	// 2. The call does not have the turn, and encoding waits for it.
	ctx, leave := context.WithCancel(t.Context())
	answer = func() { held = hold(t, turns); leave() }
	if code := ask(ctx); code == http.StatusOK || calls != 1 {
		t.Errorf("encoded while another has the turn: %d, after %d calls", code, calls)
	}
	held.End()
	// 3. Else it is answered. Who does not read the answer holds up nobody.
	answer = func() {}
	written = func() { hold(t, turns).End() }
	if code := ask(t.Context()); code != http.StatusOK || calls != 2 {
		t.Errorf("once the turn is free: %d, after %d calls", code, calls)
	}
	hold(t, turns).End()
}

// turnless is a store that finds a turn free whenever it is asked.
type turnless struct {
	*objects
	t     *testing.T
	turns *rpc.Turns
}

func (s turnless) Apply(ctx context.Context, all []manifest.Object, dryRun bool) ([]local.Applied, error) {
	hold(s.t, s.turns).End()
	return s.objects.Apply(ctx, all, dryRun)
}

func TestManifestsAreReadInATurnAndWrittenWithoutOne(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l, turns := &ledger{state: from(t, "local")}, rpc.NewTurns(1)
		store := turnless{&objects{}, t, turns}
		clients := rpc.NewClients(rpc.Config{Net: rpc.Memory()})
		defer clients.Close()
		service, err := gateway.New(gateway.Config{Replica: l, Coord: &cast{}, Conns: clients, Manifests: store})
		if err != nil {
			t.Fatal(err)
		}
		apply := func(ctx context.Context) error {
			_, err := service.Apply(rpc.WithTurns(rpc.WithCaller(ctx, "ann"), turns), &schedulingv1.ApplyRequest{Manifests: twoPods})
			return err
		}
		// Somebody waits while the cluster is read, and has the next turn until the caller is gone.
		ctx, leave := context.WithCancel(t.Context())
		release := make(chan struct{})
		l.afterRead = func() {
			go func() {
				turn, err := rpc.TakeTurn(rpc.WithTurns(rpc.WithCaller(t.Context(), "somebody"), turns))
				if err != nil {
					t.Error(err)
				}
				leave()
				<-release
				turn.End()
			}()
			synctest.Wait()
		}
		if err := apply(ctx); !errors.Is(err, context.Canceled) || len(store.applied) > 0 {
			t.Errorf("while another has the turn: %v, with %v", err, store.applied)
		}
		close(release)
		synctest.Wait()
		// Its caller may leave while they are read, too.
		ctx, leave = context.WithCancel(t.Context())
		l.afterRead = leave
		if err := apply(ctx); !errors.Is(err, context.Canceled) || len(store.applied) > 0 {
			t.Errorf("its caller has left: %v, with %v", err, store.applied)
		}
		if err := apply(t.Context()); err != nil || len(store.applied) != 2 {
			t.Errorf("once the turn is free: %v, with %v", err, store.applied)
		}
		hold(t, turns).End()
	})
}

func TestAMapOfWhereAPodFitsEndsWithItsCall(t *testing.T) {
	b := start(t, withState(stateOf(t, 7, small()...)))
	ctx, leave := context.WithCancel(t.Context())
	b.ledger.afterRead = leave // it has been looked for, and is tried then
	if _, err := b.service.GetMap(ctx, &schedulingv1.GetMapRequest{Pod: "pod-0002"}); !errors.Is(err, context.Canceled) {
		t.Errorf("its caller has left: %v", err)
	}
	if m, err := b.service.GetMap(t.Context(), &schedulingv1.GetMapRequest{Pod: "pod-0002"}); err != nil || m.GetNodes() != 2 {
		t.Errorf("another caller: %v, %v", m, err)
	}
}
