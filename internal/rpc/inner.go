package rpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"
)

// The bounds of a server that is for other roles.
const (
	// streamRequestBytes is the largest request of a stream, also of people's where there are several: they are questions, and what is large
	// is told to unary methods.
	streamRequestBytes = 64 << 10
	// A request that nobody has read yet takes no more of memory than a stream's window; what is being read has the room that it says
	// it needs at once. The window of a connection holds nothing, since gRPC opens it again whatever is read.
	innerWindow     = 64 << 10
	innerConnWindow = 1 << 20

	// innerReadFor is how long a request may take to come, and to be decoded, whose caller gives it longer, or has set no deadline: one of
	// 64 MiB does at half a MiB per second.
	innerReadFor = 2 * time.Minute

	// Of calls and streams by those whose certificate names no role of Berth's, and who may ask for health only.
	strangersStreams = 16  // of a connection
	strangersOpen    = 128 // of all; those of one name have half at most
)

// inner is what a server does that is for other roles. Like one that is open to people it registers unary methods as streams, so
// that nothing is read of a call that its caller may not make: see [public].
type inner struct {
	outer   grpc.UnaryServerInterceptor // before the request is read
	gates   grpc.UnaryServerInterceptor // behind that
	members members                     // nil without TLS
	readers sync.WaitGroup
}

// unary serves a unary method that has been registered as a stream.
func (n *inner) unary(srv any, stream grpc.ServerStream, info *grpc.UnaryServerInfo, method grpc.MethodHandler) error {
	answer, err := n.outer(stream.Context(), nil, info, func(ctx context.Context, _ any) (any, error) {
		limit := innerReadFor
		stream := stream
		if strings.HasPrefix(info.FullMethod, healthService) {
			limit = readFor
			if n.members != nil && !n.members.call(ctx) {
				limit = strangersReadFor
			}
			stream = withRequests(stream, info.FullMethod, 0, false)
		}
		read := func(request any) error { return missing(stream.RecvMsg(request)) }
		if end, ok := stream.Context().Deadline(); !ok || time.Until(end) > limit { // else the call's own end is early enough
			read = func(request any) error { return readWithin(ctx, &n.readers, limit, stream, request) }
		}
		return method(srv, ctx, read, n.gates)
	})
	if err != nil {
		return err
	}
	return stream.SendMsg(answer)
}

// readWithin reads a message, for so long. Only the end of the call ends the reading of one that does not come: readers waits for it.
func readWithin(ctx context.Context, readers *sync.WaitGroup, limit time.Duration, stream grpc.ServerStream, request any) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	done := make(chan error, 1)
	readers.Go(func() { done <- stream.RecvMsg(request) })
	select {
	case err := <-done:
		return missing(err)
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return Error(codes.DeadlineExceeded, ReasonSlowRequest, "the request did not come within %v", limit)
	}
}

// withRequests returns a stream whose messages have so many bytes at most, and those that ask for health [healthBytes]; counted ones have
// [publicElements] at most, but for health. No limit means that gRPC reads them, but for health.
func withRequests(stream grpc.ServerStream, method string, limit int, counted bool) grpc.ServerStream {
	if strings.HasPrefix(method, healthService) {
		limit, counted = healthBytes, false
	}
	if raw, ok := grpc.ServerTransportStreamFromContext(stream.Context()).(rawStream); ok && limit > 0 {
		return &requests{ServerStream: stream, raw: raw, limit: limit, counted: counted}
	}
	return stream
}

// boundRequests is the outermost interceptor of streams: messages are read behind those that count them. Larger are the limits of methods with larger ones.
func boundRequests(limit int, counted bool, larger map[string]int) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		limit := limit
		if info.IsClientStream {
			limit = min(limit, streamRequestBytes)
		}
		if of, ok := larger[info.FullMethod]; ok {
			limit = of
		}
		return handler(srv, withRequests(stream, info.FullMethod, limit, counted))
	}
}

// rawStream is what gRPC reads messages from: the length that one says it has, then its bytes.
type rawStream interface {
	ReadMessageHeader(header []byte) error
	Read(n int) (mem.BufferSlice, error)
	RecvCompress() string
}

// readAtATime is how many bytes of a request are in the frames of HTTP/2 that they came in, besides a window. gRPC keeps each frame by
// itself, whatever is in it, until all of a read is there: one of a byte takes forty.
const readAtATime = 64 << 10

// requests refuses a message by the length that it says it has, before it comes, and makes room for it as it comes. gRPC has one limit
// for all methods of a server, and keeps a message in frames until all of it is there.
type requests struct {
	grpc.ServerStream
	raw     rawStream
	limit   int
	counted bool
}

// RecvMsg implements grpc.ServerStream.
func (s *requests) RecvMsg(request any) error {
	message, ok := request.(proto.Message)
	if !ok {
		return fmt.Errorf("read a request: %T is no message", request)
	}
	var header [5]byte // whether it is compressed, and its length
	if err := s.raw.ReadMessageHeader(header[:]); err != nil {
		return endOf(err)
	}
	length := int64(binary.BigEndian.Uint32(header[1:]))
	if length > int64(s.limit) {
		return s.tooLarge(length)
	}
	data, err := s.body(int(length))
	if err == nil && header[0] != 0 {
		data, err = s.decompressed(data)
	}
	if err != nil {
		return err
	}
	if s.counted {
		left := publicElements
		if field := countElements(message.ProtoReflect().Descriptor(), data, &left); field != "" {
			return Invalid(Violation{Field: field, Description: fmt.Sprintf("too many: a request has at most %d elements", publicElements)})
		}
	}
	if err := proto.Unmarshal(data, message); err != nil {
		return Invalid(Violation{Field: "request", Description: "it cannot be decoded"})
	}
	return nil
}

// body reads so many bytes.
func (s *requests) body(length int) ([]byte, error) {
	var data []byte
	for len(data) < length {
		part, err := s.raw.Read(min(length-len(data), readAtATime))
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, endOf(err)
		}
		if free := cap(data) - len(data); free < part.Len() {
			grown := make([]byte, len(data), min(length, max(2*cap(data), part.Len())))
			copy(grown, data)
			data = grown
		}
		for _, buffer := range part {
			data = append(data, buffer.ReadOnlyData()...)
		}
		part.Free()
	}
	return data, nil
}

// decompressed returns what a message was before it was compressed.
func (s *requests) decompressed(data []byte) ([]byte, error) {
	compressor := encoding.GetCompressor(s.raw.RecvCompress())
	if compressor == nil {
		return nil, status.Errorf(codes.Unimplemented, "requests cannot be compressed by %q here", s.raw.RecvCompress())
	}
	from, err := compressor.Decompress(bytes.NewReader(data))
	if err == nil {
		data, err = io.ReadAll(io.LimitReader(from, int64(s.limit)+1))
	}
	if err != nil {
		return nil, Invalid(Violation{Field: "request", Description: "it cannot be decompressed"})
	}
	if len(data) > s.limit {
		return nil, s.tooLarge(int64(len(data)))
	}
	return data, nil
}

func (s *requests) tooLarge(length int64) error {
	return Error(codes.InvalidArgument, ReasonTooLarge, "the request has %d bytes or more; none of this method has more than %d", length, s.limit)
}

// missing says what the end of a stream means where there is one message to read.
func missing(err error) error {
	if errors.Is(err, io.EOF) {
		return Invalid(Violation{Field: "request", Description: "it is missing"})
	}
	return err
}

// endOf says what the end of a stream means to who reads a message: io.EOF that there is none.
func endOf(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return Invalid(Violation{Field: "request", Description: "it ends too early"})
	}
	return err
}

// RoleOf returns the role that the certificate of a call's caller names, "" if it names none, or there are no certificates.
func RoleOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		if address, ok := p.Addr.(clientAddr); ok { // it is one of a Server's
			return address.conn.role
		}
	}
	return ""
}

// members are the roles of Berth: those that may serve or call something besides what anybody may call. nil: there are no certificates.
type members map[string]bool

func newMembers(t *TLS, callers map[string]Callers) members {
	m := make(members)
	for _, of := range callers {
		for _, role := range of {
			m[role] = true
		}
	}
	for _, of := range t.Servers {
		for _, role := range of {
			m[role] = true
		}
	}
	delete(m, "") // anyone
	return m
}

func (m members) has(role string) bool { return m[role] }

// call reports whether a call is that of a role.
func (m members) call(ctx context.Context) bool { return m[RoleOf(ctx)] }

// strangers bounds how many calls and streams those have open whose certificates name no role of Berth's.
type strangers struct {
	members members
	open    *Share // by what their certificates name
}

// refusedKey is of a call's context: why the call is refused.
type refusedKey struct{}

// tap is asked when a call begins, before there is room for any of its messages. It takes the call's place, or says in its context that
// there is none, and [refuseTapped] refuses it: where a tap itself refuses a call, gRPC leaves the timer of its deadline, which may be
// centuries away, and holds the connection by it.
func (s *strangers) tap(ctx context.Context, _ *tap.Info) (context.Context, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ctx, nil
	}
	conn := p.Addr.(clientAddr).conn // see unreadCredentials
	if s.members.has(conn.role) {
		return ctx, nil
	}
	if conn.open.Add(1) > strangersStreams {
		conn.open.Add(-1)
		return context.WithValue(ctx, refusedKey{}, errManyStreams(strangersStreams)), nil
	}
	who := "certificate of " + conn.role // not "", who may have everything
	if !s.open.Take(who, 1) {
		conn.open.Add(-1)
		return context.WithValue(ctx, refusedKey{}, errManyStreams(strangersOpen)), nil
	}
	context.AfterFunc(ctx, func() { // which ends with the call
		s.open.Give(who, 1)
		conn.open.Add(-1)
	})
	return ctx, nil
}

// refuseTapped refuses the calls that the tap had no place for.
func refuseTapped(next grpc.StreamHandler) grpc.StreamHandler {
	return func(srv any, stream grpc.ServerStream) error {
		if err, ok := stream.Context().Value(refusedKey{}).(error); ok {
			return err
		}
		return next(srv, stream)
	}
}

// front is in front of all that is done for a call. gRPC asks no interceptor about a method that streams nothing, so the [registrar] puts
// it before those that are registered as streams, and [only] before the others.
func front(handler grpc.StreamHandler) grpc.StreamHandler {
	return countHandlers(refuseTapped(handler))
}

// refuseUnknown answers calls of methods that there are none of. gRPC itself would repeat the name, in headers, which no flow control
// holds back, and in up to nine bytes for one.
func refuseUnknown(pauses bool) grpc.StreamHandler {
	return func(any, grpc.ServerStream) error {
		if pauses { // which costs strangers nothing
			PauseAlways()
		}
		return status.Error(codes.Unimplemented, "there is no such method here")
	}
}

func errManyStreams(limit int) error {
	return Exhausted(ReasonQueueFull, time.Second, "too many calls are open: of those whose certificates name no role, %d at most", limit)
}

// only applies interceptors to streams, behind [front], and not to what is registered as one. A call of a method that there is none of has
// no srv, and meets none of them but front: they would tell logs and metrics a name that a stranger has made.
func only(interceptors []grpc.StreamServerInterceptor) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		switch {
		case srv == nil:
			return front(handler)(srv, stream)
		case !info.IsServerStream && !info.IsClientStream:
			return handler(srv, stream)
		}
		for _, intercept := range slices.Backward(interceptors) {
			next := handler
			handler = func(srv any, stream grpc.ServerStream) error { return intercept(srv, stream, info, next) }
		}
		return front(handler)(srv, stream)
	}
}

// chainUnary makes one interceptor of several, outermost first.
func chainUnary(interceptors []grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		for _, intercept := range slices.Backward(interceptors) {
			next := handler
			handler = func(ctx context.Context, request any) (any, error) { return intercept(ctx, request, info, next) }
		}
		return handler(ctx, request)
	}
}

// unaryAsStream serves a unary method as a stream of one message each way, which on the wire is the same.
type unaryAsStream func(srv any, stream grpc.ServerStream, info *grpc.UnaryServerInfo, method grpc.MethodHandler) error

// registrar registers unary methods as streams.
type registrar struct {
	grpc  *grpc.Server
	unary unaryAsStream
}

// RegisterService implements grpc.ServiceRegistrar.
func (r registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	streams := slices.Clone(desc.Streams)
	for _, m := range desc.Methods {
		info := &grpc.UnaryServerInfo{Server: impl, FullMethod: "/" + desc.ServiceName + "/" + m.MethodName}
		streams = append(streams, grpc.StreamDesc{StreamName: m.MethodName, Handler: front(func(srv any, stream grpc.ServerStream) error {
			return r.unary(srv, stream, info, m.Handler)
		})})
	}
	r.grpc.RegisterService(&grpc.ServiceDesc{
		ServiceName: desc.ServiceName, HandlerType: desc.HandlerType, Streams: streams, Metadata: desc.Metadata,
	}, impl)
}
