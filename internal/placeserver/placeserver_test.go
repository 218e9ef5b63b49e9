package placeserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// asking is a stream of requests, which ends when there are no more.
type asking struct {
	grpc.ServerStream
	ctx      context.Context
	requests chan *pluginv1.PlaceRequest
	answers  chan *pluginv1.PlaceResponse
}

func (a *asking) Context() context.Context { return a.ctx }

func (a *asking) Send(response *pluginv1.PlaceResponse) error {
	a.answers <- response
	return nil
}

func (a *asking) Recv() (*pluginv1.PlaceRequest, error) {
	if r, ok := <-a.requests; ok {
		return r, nil
	}
	return nil, io.EOF
}

// silent takes all steps, and notes which objects it is shown.
type silent struct{ steps []string }

func (s *silent) Tell([]*pluginv1.Profile) error { return nil }

func (s *silent) Takes(string, pluginv1.Step) bool { return true }

func (s *silent) Keep(told *pluginv1.Placement) any { return string(told.GetObject()) }

func (s *silent) Take(step *Step, _ func(time.Duration)) (*pluginv1.Rejection, error) {
	s.steps = append(s.steps, fmt.Sprintf("%v of %s, %q", step.Kind, step.Placement.Of, step.Placement.Told.GetObject()))
	return nil, nil
}

// Of a stream that has ended, nothing is kept, and while it lasts, nothing of a pod but what the taker keeps.
func TestNothingIsKeptThatNobodyNeeds(t *testing.T) {
	var server Server
	taker := new(silent)
	from := &asking{ctx: t.Context(), requests: make(chan *pluginv1.PlaceRequest), answers: make(chan *pluginv1.PlaceResponse, 1)}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(from, taker) }()
	from.requests <- &pluginv1.PlaceRequest{Id: 1}
	from.requests <- &pluginv1.PlaceRequest{Id: 2, Step: pluginv1.Step_STEP_RESERVE, Placement: &pluginv1.Placement{Uid: "u", Namespace: "n", Name: "p", Node: "a", Object: []byte("the object")}}
	<-from.answers
	close(from.requests)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if n := len(server.streams); n != 0 {
		t.Errorf("%d streams are kept", n)
	}
	if got, want := strings.Join(taker.steps, "; "), `STEP_RESERVE of the object, ""; STEP_UNRESERVE of the object, ""`; got != want {
		t.Errorf("steps: %s, want %s", got, want)
	}
}

func TestAStreamHasABoundedNumberOfPlacements(t *testing.T) {
	p := &stream{taker: new(silent), ctx: t.Context(), lanes: make(map[string]*lane)}
	for i := range maxPlacements {
		p.lanes[fmt.Sprint(i)] = nil
	}
	err := p.sort(&pluginv1.PlaceRequest{Step: pluginv1.Step_STEP_RESERVE, Placement: &pluginv1.Placement{Uid: "one more"}})
	if err == nil || !strings.Contains(err.Error(), "there are 100000, as many as may be") {
		t.Errorf("one more: %v", err)
	}
}

// A stream that has ended and taken all back has nothing of a pod, even if its time is up.
func TestWhatIsTakenBackIsNotLeft(t *testing.T) {
	over, end := context.WithCancel(t.Context())
	end()
	p := &stream{ctx: over, ended: over, ending: make(chan struct{}), lanes: map[string]*lane{"u": {gone: make(chan struct{})}}}
	close(p.ending)
	close(p.lanes["u"].gone)
	server := Server{streams: map[*stream]bool{p: true}}
	for range 100 { // what is there at once is taken in any order
		if err := server.left(t.Context(), "u"); err != nil {
			t.Fatal(err)
		}
	}
}

// Who waits for an earlier stream ends with the placement, whether that one's steps have ended or not.
func TestWhoWaitsForAnEarlierStreamMayEnd(t *testing.T) {
	over, end := context.WithCancel(t.Context())
	end()
	ctx, giveBack := context.WithCancelCause(t.Context())
	giveBack(errGivenBack)
	for _, ends := range []bool{false, true} {
		p := &stream{ctx: over, ended: t.Context(), ending: make(chan struct{}), lanes: map[string]*lane{"u": {gone: make(chan struct{})}}}
		if ends {
			close(p.ending)
		}
		server := Server{streams: map[*stream]bool{p: true}}
		for range 100 { // in any order, too
			if err := server.left(ctx, "u"); !errors.Is(err, errGivenBack) {
				t.Fatalf("ends %v: %v, want %v", ends, err, errGivenBack)
			}
		}
	}
}
