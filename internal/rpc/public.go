package rpc

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// ReasonSlowRequest is the reason of calls whose request did not come in time: DEADLINE_EXCEEDED.
const ReasonSlowRequest Reason = "SLOW_REQUEST"

// Guard lets in the callers of a server that is open to people. It is safe for concurrent use.
type Guard interface {
	// Admit is asked before anything of a request is read. It returns a context that says who calls ([WithCaller]), if that is
	// known, or an error of [Error]: also where the caller may make no call of this method, whatever its request. A call that is
	// [Counted] has been counted already.
	Admit(ctx context.Context, method string) (context.Context, error)
	// Permit says whether the caller that Admit has found may make this call, as far as its request decides that. The request is nil for streams.
	Permit(ctx context.Context, method string, request any) error
}

// The bounds of a server that is open to people.
const (
	publicStreams = 100 // of a connection, calls and streams
	// publicHeaderBytes are of a call: a token has 16 KiB at most, and the baggage of a trace 8, which leaves 2 KiB for the rest. What gRPC does not understand it repeats,
	// in up to four bytes for one, in headers, which no flow control holds back.
	publicHeaderBytes = 26 << 10
	// publicWindow is how much of a request the transport takes before somebody reads it: the least there is. It is the same for
	// all of a connection's life, so that nobody widens it by being far away.
	publicWindow = 64 << 10
	publicIdle   = 2 * time.Minute // how long a connection may be without a call

	// Reading is bounded in number, since each request may be as large as the limit: it is at its end that one knows.
	readAtOnce  = 16
	readWaiting = 512
	readFor     = 10 * time.Second // how long a request may take to come, after its turn to be read has
	// Of those that nobody has let in, for health is open to all. Its requests are a packet each, and come with the call.
	strangersRead    = 64
	strangersWaiting = 128
	strangersReadFor = 250 * time.Millisecond
	healthBytes      = 1 << 10 // of a request
	// heldLimit is how many bytes of requests are held that have been read and not been answered, of heldFrom bytes and more each.
	heldLimit = 64 << 20
	heldFrom  = 16 << 10

	publicFollowing = 1100 // streams at once: WatchPlacements, which has a bound of its own
	publicHealth    = 100  // of health, which strangers may follow
	publicTalking   = 16   // streams at once whose clients say more than one thing: reflection

	// reviewEvery is how often it is asked again whether who has a stream may have it, which has no end of its own.
	reviewEvery = 30 * time.Second

	// refusalPause is how long a refusal waits at least that costs its caller nothing: who has all streams of a connection waiting asks no
	// more often than that.
	refusalPause = 100 * time.Millisecond
)

// WithPublic makes a server one that is open to people and strangers. Nothing of a request is read before the guard has admitted
// its caller; nil admits everyone. Callers share all bounds ([Share]): those that the guard knows by their names, others by
// their addresses. Connections have few streams and small windows, and a trace's parent does not say whether it is sampled.
func WithPublic(guard Guard) Option {
	return func(o *options) { o.public, o.guard = true, guard }
}

// WithForwarding makes a public server one that only this process can reach, on behalf of people: it tells them apart by what
// [Forward] says, and lets the one connection have more streams than all that it may forward.
func WithForwarding() Option { return func(o *options) { o.forwarding = true } }

// WithReview sets how often the guard is asked again about a stream that is open; by default it is every 30 s.
func WithReview(every time.Duration) Option { return func(o *options) { o.reviewEvery = every } }

// public is what a server does that is open to people.
//
// gRPC reads the message of a unary call, whatever its size, before it calls anybody who could refuse it. That of a stream it
// leaves to the handler. So unary methods are registered as streams of one message each way, which on the wire is the same.
type public struct {
	guard      Guard   // nil: everyone is admitted
	members    members // nil without TLS
	turns      *Turns  // nil: nobody waits for one
	forwarding bool
	largest    int                         // bytes of a request
	review     time.Duration               // between two reviews of a stream
	outer      grpc.UnaryServerInterceptor // before the request is read
	inner      grpc.UnaryServerInterceptor // behind that

	known, strangers   *Gate  // of those that read
	held               *Share // bytes of requests
	following, talking *Share // streams
	health             *Share // those of health
	readers            sync.WaitGroup
}

func newPublic(o *options, members members, turns *Turns, outer, inner grpc.UnaryServerInterceptor) *public {
	return &public{
		guard: o.guard, members: members, turns: turns, forwarding: o.forwarding, largest: o.requestLimit, review: o.reviewEvery, outer: outer, inner: inner,
		known: newGate(readAtOnce, readWaiting, methodBusyFor), strangers: newGate(strangersRead, strangersWaiting, methodBusyFor),
		held: NewShare(heldLimit, 0), following: NewShare(publicFollowing, 0), talking: NewShare(publicTalking, 0),
		health: NewShare(publicHealth, 0),
	}
}

// healthService is open to strangers, whatever the guard says.
const healthService = "/grpc.health.v1.Health/"

// admit returns the context of a call whose caller is known, at least by address.
func (p *public) admit(ctx context.Context, method string) (context.Context, error) {
	ctx = WithTurns(WithCaller(ctx, addressOfCall(ctx, p.forwarding)), p.turns)
	if p.forwarding {
		ctx = takeCounted(ctx)
	}
	if p.guard != nil {
		admitted, err := p.guard.Admit(ctx, method)
		if err != nil {
			Pause(err)
			return nil, err
		}
		ctx = admitted
	}
	if !strings.HasPrefix(method, healthService) {
		Vouch(ctx, CallerOf(ctx))
	}
	return ctx, nil
}

func (p *public) permit(ctx context.Context, method string, request any) error {
	if p.guard == nil {
		return nil
	}
	err := p.guard.Permit(ctx, method, request)
	Pause(err)
	return err
}

// Pause holds up those who are refused, so that to ask in vain is not the cheapest thing to do. It does not end with the call: who
// gives up calls at once, as fast as it can, would be refused as fast.
func Pause(err error) {
	switch status.Code(err) {
	case codes.Unauthenticated, codes.ResourceExhausted:
		PauseAlways()
	}
}

// PauseAlways is [Pause] for who is refused with whatever error: it lasts 100 ms, and up to as long again by chance. Who asks many times at once is not answered
// many times at once, which everybody would wait behind.
func PauseAlways() { time.Sleep(refusalPause + rand.N(refusalPause)) }

// unary serves a unary method that has been registered as a stream.
func (p *public) unary(srv any, stream grpc.ServerStream, info *grpc.UnaryServerInfo, method grpc.MethodHandler) error {
	answer, err := p.outer(stream.Context(), nil, info, func(ctx context.Context, _ any) (any, error) {
		ctx, err := p.admit(ctx, info.FullMethod)
		if err != nil {
			return nil, err
		}
		giveBack := func() {}
		defer func() { giveBack() }()
		read := func(request any) error {
			if err := p.read(ctx, withRequests(stream, info.FullMethod, p.largest, true), info.FullMethod, request); err != nil {
				return err
			}
			giveBack, err = p.hold(ctx, request)
			return err
		}
		return method(srv, ctx, read, func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if err := p.permit(ctx, info.FullMethod, request); err != nil {
				return nil, err
			}
			answer, err := p.inner(ctx, request, info, handler)
			Pause(err)
			return answer, err
		})
	})
	if err != nil {
		return err
	}
	return stream.SendMsg(answer)
}

// read reads the only message of a call, when it is its caller's turn.
func (p *public) read(ctx context.Context, stream grpc.ServerStream, method string, request any) error {
	gate, limit := p.known, readFor
	// Roles ask whether their own process serves.
	ofHealth := strings.HasPrefix(method, healthService)
	if ofHealth && !p.members.call(ctx) {
		gate, limit = p.strangers, strangersReadFor
	}
	leave, err := gate.Enter(ctx)
	if err != nil {
		Pause(err)
		return err
	}
	err = readWithin(ctx, &p.readers, limit, stream, request)
	leave()
	if ofHealth && err != nil { // which costs strangers nothing
		PauseAlways()
	}
	return err
}

// hold counts a large request for as long as it is in memory.
func (p *public) hold(ctx context.Context, request any) (giveBack func(), err error) {
	message, ok := request.(proto.Message)
	if !ok {
		return func() {}, nil
	}
	size := proto.Size(message)
	if size < heldFrom {
		return func() {}, nil
	}
	caller := CallerOf(ctx)
	if !p.held.Take(caller, size) {
		err := Exhausted(ReasonQueueFull, methodBusyFor, "a request of %d bytes: too many others are not answered yet", size)
		Pause(err)
		return func() {}, err
	}
	return func() { p.held.Give(caller, size) }, nil
}

// stream is the innermost interceptor of what is a stream.
func (p *public) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, err := p.admit(stream.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	if err := p.permit(ctx, info.FullMethod, nil); err != nil {
		return err
	}
	share := p.following
	switch {
	case strings.HasPrefix(info.FullMethod, healthService):
		share = p.health
	case info.IsClientStream:
		share = p.talking
	}
	caller := CallerOf(ctx)
	if !share.Take(caller, 1) {
		err := Exhausted(ReasonQueueFull, time.Second, "too many streams are open")
		Pause(err)
		return err
	}
	defer share.Give(caller, 1)
	// gRPC compresses each message for who compresses its request: no rate bounds how many there are. This only fails when the call is over.
	_ = grpc.SetSendCompressor(stream.Context(), encoding.Identity)
	if p.guard == nil || share == p.health {
		return handler(srv, &publicStream{ServerStream: stream, ctx: ctx, public: p, method: info.FullMethod, once: !info.IsClientStream})
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	p.readers.Go(func() { p.reviewAgain(ctx, stream.Context(), info.FullMethod, end) })
	err = handler(srv, &publicStream{ServerStream: stream, ctx: ctx, public: p, method: info.FullMethod, once: !info.IsClientStream})
	if cause := context.Cause(ctx); refused(cause) {
		return cause
	}
	return err
}

// reviewAgain asks the guard again, for as long as a stream is open, and ends it when its caller may not have it any more: whose token
// has been taken back, or right. That it cannot be found out now ends nothing.
func (p *public) reviewAgain(ctx, asked context.Context, method string, end context.CancelCauseFunc) {
	ticker := time.NewTicker(p.review)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		// The stream was counted when it began.
		admitted, err := p.guard.Admit(WithCounted(WithCaller(asked, addressOfCall(asked, p.forwarding))), method)
		if err == nil {
			err = p.guard.Permit(admitted, method, nil)
		}
		if refused(err) {
			end(err)
			return
		}
	}
}

// refused reports whether an error says that a caller may not call, rather than that this is not known.
func refused(err error) bool {
	code := status.Code(err)
	return code == codes.Unauthenticated || code == codes.PermissionDenied
}

// publicStream reads its request as unary calls do.
type publicStream struct {
	grpc.ServerStream
	ctx    context.Context
	public *public
	method string
	once   bool // there is one message to read
	heard  bool // one of several has come
}

func (s *publicStream) Context() context.Context { return s.ctx }

func (s *publicStream) RecvMsg(request any) error {
	if !s.once {
		return s.hear(request)
	}
	return s.public.read(s.ctx, s.ServerStream, s.method, request)
}

// hear reads the next of several messages. It ends with the stream's context, which may end before the call does, by a review: whoever
// says nothing would not be found out. What it leaves behind then ends with the call. Each message counts for its caller's rate, the first
// one with the call.
func (s *publicStream) hear(request any) error {
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	done := make(chan error, 1)
	s.public.readers.Go(func() { done <- s.ServerStream.RecvMsg(request) })
	select {
	case err := <-done:
		if err == nil && s.heard {
			_, err = s.public.admit(s.ServerStream.Context(), s.method)
		}
		s.heard = true
		return err
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
}
