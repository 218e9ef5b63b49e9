package rpc

import (
	"context"
	"net"
	"strings"

	"google.golang.org/grpc"
)

// Outside returns the network of servers that are none of Berth's: host:port, or unix:// and the path of a socket. Over TLS they are known as serverName, or by their host if it
// is "". Nobody listens on it.
func Outside(serverName string) Network { return outside{serverName: serverName} }

// OutsideBy is [Outside] of a server whose addresses come and go: dial connects to it, and the address by which it is dialled is only a name.
func OutsideBy(serverName string, dial func(context.Context) (net.Conn, error)) Network {
	return outside{serverName: serverName, by: dial}
}

type outside struct {
	tcp
	serverName string
	by         func(context.Context) (net.Conn, error) // nil: the address says where it is
}

func (o outside) Dial(address string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	if o.serverName != "" {
		opts = append(opts, grpc.WithAuthority(o.serverName))
	}
	if o.by != nil {
		return dial(address, func(ctx context.Context, _ string) (net.Conn, error) { return o.by(ctx) }, opts)
	}
	if _, ok := strings.CutPrefix(address, "unix://"); !ok {
		return o.tcp.Dial(address, opts...)
	}
	return dial(address, func(ctx context.Context, address string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(address, "unix://"))
	}, append([]grpc.DialOption{grpc.WithAuthority("localhost")}, opts...))
}
