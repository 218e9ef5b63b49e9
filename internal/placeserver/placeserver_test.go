package placeserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/pluginproto"
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

// served has a stream served that says whether it hears of activations. end waits until it has ended.
func (a *asking) served(t *testing.T, server *Server, hears bool) (end func()) {
	t.Helper()
	a.ctx, a.requests, a.answers = t.Context(), make(chan *pluginv1.PlaceRequest), make(chan *pluginv1.PlaceResponse)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(a, new(silent)) }()
	a.requests <- &pluginv1.PlaceRequest{Id: 1, HearsActivates: hears}
	return func() {
		close(a.requests)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// heard returns the pods of the next response that has some to be activated.
func (a *asking) heard(t *testing.T) []string {
	t.Helper()
	response := <-a.answers
	if response.GetId() != 0 {
		t.Errorf("it answers request %d", response.GetId())
	}
	uids := response.GetActivates()
	for _, uid := range response.GetWakes() {
		uids = append(uids, "wakes "+uid)
	}
	slices.Sort(uids)
	return uids
}

// Pods that are to be activated are heard of on each stream that hears of them, once, and on the next one if there is none.
func TestActivationsAreHeardOf(t *testing.T) {
	var server Server
	server.Activate("early", "early", "", "\xff", strings.Repeat("u", 254))
	first, second := new(asking), new(asking)
	endFirst := first.served(t, &server, true)
	if got := first.heard(t); !slices.Equal(got, []string{"early"}) {
		t.Errorf("behind the beginning of a stream, %q are heard of", got)
	}
	endSecond := second.served(t, &server, true)
	server.Activate("a", "b")
	for _, stream := range []*asking{first, second} {
		if got := stream.heard(t); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("%q are heard of", got)
		}
	}
	endFirst()
	endSecond()
	server.Wake("woken", "late")
	server.Activate("late")
	server.Wake("late")
	deaf := new(asking)
	endDeaf := deaf.served(t, &server, false)
	deaf.requests <- &pluginv1.PlaceRequest{Id: 2, Step: pluginv1.Step_STEP_RESERVE, Placement: &pluginv1.Placement{Uid: "u", Namespace: "n", Name: "p", Node: "a"}}
	if got := <-deaf.answers; got.GetId() != 2 || len(got.GetActivates()) > 0 {
		t.Errorf("who does not hear hears %v", got)
	}
	endDeaf()
	last := new(asking)
	endLast := last.served(t, &server, true)
	if got := last.heard(t); !slices.Equal(got, []string{"late", "wakes woken"}) {
		t.Errorf("behind a stream that does not hear, %q are heard of", got)
	}
	endLast()
}

// However many there are, a response has no more than it may, and no more are kept than maxActivations.
func TestActivationsAreBounded(t *testing.T) {
	var server Server
	for i := range maxActivations + 7 {
		server.Activate(fmt.Sprint(i))
	}
	stream := new(asking)
	end := stream.served(t, &server, true)
	heard := make(map[string]bool)
	for len(heard) < maxActivations {
		uids := stream.heard(t)
		if len(uids) > pluginproto.MaxActivates {
			t.Fatalf("%d in a response", len(uids))
		}
		for _, uid := range uids {
			heard[uid] = true
		}
	}
	server.Activate("one more")
	if got := stream.heard(t); !slices.Equal(got, []string{"one more"}) {
		t.Errorf("behind all that are kept, %q are heard of", got)
	}
	end()
}
