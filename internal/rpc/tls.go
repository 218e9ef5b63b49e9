package rpc

import (
	"context"
	"crypto/tls"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// TLS is how the servers and clients of a process prove who they are, and what they let their peers do. A peer is known
// by its role. All of it is checked before a request leaves, and before a handler gets one.
type TLS struct {
	// Server is the configuration of servers.
	Server *tls.Config
	// Client is that of clients. It verifies servers by itself, since addresses are not names.
	Client credentials.TransportCredentials
	// Role returns the role in a peer's certificate, and "" if it has none.
	Role func(tls.ConnectionState) string
	// Servers has the roles that may serve each RPC, by full method name. Clients refuse to call others, with
	// UNAVAILABLE: another address may be right. nil means that every server will do.
	Servers map[string][]string
}

// Callers are the roles that may call an RPC.
type Callers []string

// Anyone may call, with a certificate or without.
var Anyone = Callers{""}

// WithCallers says who may call what, by full method name, where [Config.TLS] is set. What is not there is refused.
func WithCallers(callers map[string]Callers) Option {
	return func(o *options) { o.callers = callers }
}

// access refuses calls that their callers may not make.
type access struct {
	role    func(tls.ConnectionState) string
	callers map[string]Callers
	pauses  bool // refusals take their time, as all do where strangers call
}

// check returns UNAUTHENTICATED for callers whose certificate names no role, and PERMISSION_DENIED for wrong ones.
func (a *access) check(ctx context.Context, method string) error {
	callers := a.callers[method]
	if slices.Contains(callers, "") {
		return nil
	}
	role := ""
	if p, ok := peer.FromContext(ctx); ok {
		role = roleOf(p.AuthInfo, a.role)
	}
	switch {
	case role == "":
		err := Error(codes.Unauthenticated, ReasonNoIdentity, "%s: want a client certificate that names a role of Berth", method)
		if a.pauses {
			Pause(err)
		}
		return err
	case !slices.Contains(callers, role):
		return Error(codes.PermissionDenied, ReasonWrongRole, "%s: a %s may not call it", method, role)
	}
	return nil
}

func roleOf(info credentials.AuthInfo, role func(tls.ConnectionState) string) string {
	if info, ok := info.(credentials.TLSInfo); ok {
		return role(info.State)
	}
	return ""
}

func (a *access) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := a.check(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (a *access) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if err := a.check(stream.Context(), info.FullMethod); err != nil {
		return err
	}
	return handler(srv, stream)
}

// serverCheck is asked by gRPC before each call, when the connection is chosen and nothing has been sent: the earliest
// moment at which both the method and the server's certificate are known.
type serverCheck struct{ *TLS }

// GetRequestMetadata adds nothing to the request.
func (c serverCheck) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	info, _ := credentials.RequestInfoFromContext(ctx)
	role := roleOf(info.AuthInfo, c.Role)
	if !slices.Contains(c.Servers[info.Method], role) {
		return nil, Error(codes.Unavailable, ReasonWrongRole, "%s: the server is a %s", info.Method, role)
	}
	return nil, nil
}

func (c serverCheck) RequireTransportSecurity() bool { return true }
