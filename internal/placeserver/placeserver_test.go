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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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

func (s *silent) Tell(*pluginv1.PlaceRequest) error { return nil }

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

// asks has somebody else say whether pods may be tried, and takes other steps in their turns.
type asks struct {
	silent
	take func(*Step) (*pluginv1.Rejection, error)
}

func (a *asks) Take(step *Step, waits func(time.Duration)) (*pluginv1.Rejection, error) {
	if step.Kind == pluginv1.Step_STEP_PRE_ENQUEUE {
		return a.take(step)
	}
	_, done, err := step.Context()
	if err != nil {
		return nil, err
	}
	defer done()
	return a.silent.Take(step, waits)
}

// enters is a request whether a pod may be tried.
func enters(id int64, uid string) *pluginv1.PlaceRequest {
	return &pluginv1.PlaceRequest{Id: id, Step: pluginv1.Step_STEP_PRE_ENQUEUE, Plugins: []string{"A"}, Placement: &pluginv1.Placement{Uid: uid, Namespace: "n", Name: "p"}}
}

// serveAsking serves a stream that has begun. Ended says how it has ended.
func serveAsking(t *testing.T, taker Taker) (from *asking, ended chan error) {
	t.Helper()
	from = &asking{ctx: t.Context(), requests: make(chan *pluginv1.PlaceRequest), answers: make(chan *pluginv1.PlaceResponse, MaxEntering)}
	ended = make(chan error, 1)
	go func() { ended <- new(Server).Serve(from, taker) }()
	from.requests <- &pluginv1.PlaceRequest{Id: 1}
	return from, ended
}

// Whether a pod may be tried is said beside a placement of it, and changes nothing of that. It ends with the stream alone.
func TestWhetherAPodMayBeTriedIsNoStepOfItsPlacement(t *testing.T) {
	began := make(chan *Placement)
	taker := &asks{take: func(step *Step) (*pluginv1.Rejection, error) {
		ctx, done, err := step.Context()
		if err != nil {
			return nil, err
		}
		defer done()
		began <- step.Placement
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}}
	from, ended := serveAsking(t, taker)
	from.requests <- &pluginv1.PlaceRequest{Id: 2, Step: pluginv1.Step_STEP_RESERVE, Placement: &pluginv1.Placement{Uid: "u", Namespace: "n", Name: "p", Node: "a", Object: []byte("the placed")}}
	<-from.answers
	asked := enters(3, "u")
	asked.Placement.Object = []byte("the one that comes")
	from.requests <- asked
	of := <-began
	if of.Of != "the one that comes" || of.Told.GetNode() != "" || of.Told.GetObject() != nil {
		t.Errorf("it is asked about %v, of which %v is kept", of.Told, of.Of)
	}
	for id, step := range []pluginv1.Step{pluginv1.Step_STEP_PRE_BIND, pluginv1.Step_STEP_UNRESERVE, pluginv1.Step_STEP_RESERVE} {
		from.requests <- &pluginv1.PlaceRequest{Id: int64(id) + 4, Step: step, Placement: &pluginv1.Placement{Uid: "u", Namespace: "n", Name: "p", Node: "a", Object: []byte("again")}}
		if got := <-from.answers; got.GetId() != int64(id)+4 || got.GetError() != "" {
			t.Errorf("answer %v, want to request %d", got, id+4)
		}
	}
	if err := of.Context().Err(); err != nil {
		t.Errorf("what is asked about a pod ends with its placement: %v", err)
	}
	close(from.requests)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if why := context.Cause(of.Context()); !errors.Is(why, errStreamEnded) {
		t.Errorf("it has ended with %v, want %v", why, errStreamEnded)
	}
	if got, want := strings.Join(taker.steps, "; "), `STEP_RESERVE of the placed, ""; STEP_PRE_BIND of the placed, ""; STEP_UNRESERVE of the placed, ""; STEP_RESERVE of again, ""; STEP_UNRESERVE of again, ""`; got != want {
		t.Errorf("steps: %s, want %s", got, want)
	}
}

// A pod that is gated leaves nothing behind, and can be asked about as soon as it is answered.
func TestNothingIsKeptOfPodsThatMayNotBeTried(t *testing.T) {
	var of []*Placement
	taker := &asks{take: func(step *Step) (*pluginv1.Rejection, error) {
		of = append(of, step.Placement)
		return &pluginv1.Rejection{Plugin: "A", Reason: "not yet"}, nil
	}}
	from, ended := serveAsking(t, taker)
	for id := range int64(3) {
		from.requests <- enters(id+2, "u")
		if got := <-from.answers; got.GetId() != id+2 || got.GetRejection().GetReason() != "not yet" {
			t.Errorf("answer: %v", got)
		}
	}
	close(from.requests)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if len(taker.steps) > 0 {
		t.Errorf("steps: %q", taker.steps)
	}
	for i, is := range of {
		if is.Context().Err() == nil || slices.Contains(of[:i], is) {
			t.Errorf("time %d: its placement is one that there was, or goes on", i)
		}
	}
}

// What makes no sense about pods that may be tried, or not, ends the stream.
func TestRequestsWhetherPodsMayBeTriedAreChecked(t *testing.T) {
	onANode := enters(2, "u")
	onANode.Placement.Node = "a"
	nowhere := enters(2, "u")
	nowhere.Step = pluginv1.Step_STEP_RESERVE
	many := make([]*pluginv1.PlaceRequest, MaxEntering+1)
	for i := range many {
		many[i] = enters(int64(i)+2, fmt.Sprint(i))
	}
	for want, requests := range map[string][]*pluginv1.PlaceRequest{
		"placement.node: want none":                                                      {onANode},
		"placement.node: want one":                                                       {nowhere},
		`placement.uid: that is asked of pod "u" already`:                                {enters(2, "u"), enters(3, "v"), enters(4, "u")},
		"step: it is asked about 4096 pods whether they may be tried, as many as may be": many,
	} {
		t.Run(want, func(t *testing.T) {
			from, ended := serveAsking(t, &asks{take: func(step *Step) (*pluginv1.Rejection, error) {
				<-step.Placement.Context().Done()
				return nil, nil
			}})
			for _, r := range requests {
				from.requests <- r
			}
			if err := <-ended; status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), want) {
				t.Errorf("it ends with %v, want %q", err, want)
			}
		})
	}
}

// Pods that come take no turns from those that are placed, and have no more of their own than there are.
func TestPodsThatComeDoNotHoldUpThoseThatArePlaced(t *testing.T) {
	began := make(chan func(), 2*AtOnce)
	taker := &asks{take: func(step *Step) (*pluginv1.Rejection, error) {
		_, done, err := step.Context()
		if err != nil {
			return nil, err
		}
		defer done()
		end := make(chan struct{})
		began <- func() { close(end) }
		<-end
		return nil, nil
	}}
	from, ended := serveAsking(t, taker)
	for i := range int64(AtOnce + 1) {
		from.requests <- enters(i+2, fmt.Sprint(i))
	}
	var ends []func()
	for range AtOnce {
		ends = append(ends, <-began)
	}
	from.requests <- &pluginv1.PlaceRequest{Id: AtOnce + 3, Step: pluginv1.Step_STEP_RESERVE, Placement: &pluginv1.Placement{Uid: "0", Namespace: "n", Name: "p", Node: "a"}}
	if got := <-from.answers; got.GetId() != AtOnce+3 {
		t.Errorf("request %d is answered first", got.GetId())
	}
	if len(began) > 0 {
		t.Errorf("more than %d are asked about at a time", AtOnce)
	}
	for _, end := range ends {
		end()
	}
	(<-began)()
	for range AtOnce + 1 {
		<-from.answers
	}
	close(from.requests)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// hearing has a stream served that hears of changes, and of activations, or not. end waits until it has ended.
func (a *asking) hearing(t *testing.T, server *Server, changes, activates bool) (end func()) {
	t.Helper()
	a.ctx, a.requests, a.answers = t.Context(), make(chan *pluginv1.PlaceRequest), make(chan *pluginv1.PlaceResponse)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(a, new(silent)) }()
	a.requests <- &pluginv1.PlaceRequest{Id: 1, HearsChanges: changes, HearsActivates: activates}
	return func() {
		close(a.requests)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// says returns what a response says, in words.
func says(r *pluginv1.PlaceResponse) string {
	slices.Sort(r.Changes)
	return fmt.Sprint(r.GetId(), " ", r.GetChanges(), r.GetAllChanged(), r.GetActivates(), r.GetWakes())
}

// Nodes that have changed are heard of on each stream that hears of them, before pods that are worth trying and before what is answered; a stream that begins behind that hears that all have.
func TestChangesAreHeardOf(t *testing.T) {
	var server Server
	fresh, later, deaf, half := new(asking), new(asking), new(asking), new(asking)
	endFresh := fresh.hearing(t, &server, true, true)
	server.Changed()
	server.Changed("b", "a", "b", "", "\xff", strings.Repeat("n", 254))
	if got, want := says(<-fresh.answers), "0 [a b] false [] []"; got != want {
		t.Errorf("heard %s, want %s", got, want)
	}
	endLater := later.hearing(t, &server, true, true)
	if got, want := says(<-later.answers), "0 [] true [] []"; got != want {
		t.Errorf("a stream that begins behind that hears %s, want %s", got, want)
	}
	endHalf := half.hearing(t, &server, true, false)
	if got, want := says(<-half.answers), "0 [] true [] []"; got != want {
		t.Errorf("one that hears of no pods hears %s, want %s", got, want)
	}
	endDeaf := deaf.hearing(t, &server, false, true)
	server.Changed("c")
	server.Activate("u")
	for _, stream := range []*asking{fresh, later} {
		var all string
		for range 2 { // or in one
			if all += says(<-stream.answers); strings.Contains(all, "[u]") {
				break
			}
		}
		if c, u := strings.Index(all, "[c]"), strings.Index(all, "[u]"); c < 0 || u < c {
			t.Errorf("heard %s", all)
		}
	}
	if got, want := says(<-deaf.answers), "0 [] false [u] []"; got != want {
		t.Errorf("one that hears of no changes hears %s, want %s", got, want)
	}
	if got, want := says(<-half.answers), "0 [c] false [] []"; got != want {
		t.Errorf("one that hears of no pods hears %s, want %s", got, want)
	}
	for _, end := range []func(){endFresh, endLater, endDeaf, endHalf} {
		end()
	}
	server.Changed("d")
	server.Wake("v")
	last := new(asking)
	endLast := last.hearing(t, &server, true, true)
	if got, want := says(<-last.answers), "0 [] true [u] [v]"; got != want { // u is left of the one that hears of no pods
		t.Errorf("with what was said without a stream it hears %s, want %s", got, want)
	}
	endLast()
}

// Whoever says that a node has changed, and then that a pod is worth trying, or answers, is heard in this order, however many there are.
func TestChangesComeFirst(t *testing.T) {
	for _, tt := range []struct {
		what  string
		nodes int
		want  string
	}{
		{"a few", 3, "3"},
		{"more than in a response", 2500, "1000 1000 500"},
		{"as many as are kept", maxChanges, strings.TrimSpace(strings.Repeat("1000 ", 100))},
		{"more than are kept", maxChanges + 1, "all"},
	} {
		a, names := newActivations(), make([]string, tt.nodes)
		for i := range names {
			names[i] = fmt.Sprint("n", i)
		}
		a.add([]string{"u"}, false)
		a.change(names)
		a.add([]string{"v"}, true)
		var got []string
		for last := false; !last; {
			<-a.more
			r := a.next(true, true)
			if last = len(a.nodes) == 0; last != (len(r.GetActivates())+len(r.GetWakes()) == 2) {
				t.Errorf("%s: with %d nodes left, it says %v", tt.what, len(a.nodes), says(r))
			}
			if r.GetAllChanged() {
				got = append(got, "all")
			} else {
				got = append(got, fmt.Sprint(len(r.GetChanges())))
			}
		}
		if r := a.next(true, true); r != nil {
			t.Errorf("%s: and then, %v", tt.what, says(r))
		}
		if got := strings.Join(got, " "); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.what, got, tt.want)
		}
	}
	answers := new(asking)
	var server Server
	end := answers.hearing(t, &server, true, true)
	defer end()
	for k := range int64(50) {
		server.Changed("n")
		answers.requests <- &pluginv1.PlaceRequest{Id: k + 2, Step: pluginv1.Step_STEP_UNRESERVE, Placement: &pluginv1.Placement{Uid: fmt.Sprint(k), Namespace: "n", Name: "p", Node: "a"}}
		if got, want := says(<-answers.answers), "0 [n] false [] []"; got != want {
			t.Errorf("heard %s, want %s", got, want)
		}
		if got, want := says(<-answers.answers), fmt.Sprint(k+2, " [] false [] []"); got != want {
			t.Errorf("heard %s, want %s", got, want)
		}
	}
}
