package rpc

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strconv"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

type callerKey struct{}

// WithCaller returns a context of a call by caller: what its share of a server is reckoned by. Servers that are open to people set
// it, to the address, and then to the user where that is known.
func WithCaller(ctx context.Context, caller string) context.Context {
	return context.WithValue(ctx, callerKey{}, caller)
}

// CallerOf returns who makes a call, "" if it is one of Berth's own.
func CallerOf(ctx context.Context) string {
	caller, _ := ctx.Value(callerKey{}).(string)
	return caller
}

// AddressOf returns what tells apart callers who are not known otherwise: of an IPv4 address all of it, of an IPv6 address the
// network of 64 bits, since whoever has one address there has all. It is "" for what is no address on a network.
func AddressOf(address net.Addr) string {
	if address == nil {
		return ""
	}
	host, _, err := net.SplitHostPort(address.String())
	if err != nil {
		return ""
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return ""
	}
	ip = ip.Unmap().WithZone("")
	if ip.Is4() {
		return ip.String()
	}
	network, _ := ip.Prefix(64) // of 128 bits there always is one
	return network.String()
}

// forwardedHeader says, on a connection inside the process, from which address a call has come.
const forwardedHeader = "berth-forwarded-for"

// Forward returns a context of calls that are made for somebody at an address, to a server that takes this process's word for it
// ([WithForwarding]).
func Forward(ctx context.Context, address string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, forwardedHeader, address, countedHeader, strconv.FormatBool(Counted(ctx)))
}

// countedHeader says, on a connection inside the process, whether a call has been counted for its caller's rate.
const countedHeader = "berth-counted"

type countedKey struct{}

// WithCounted returns a context of what has been counted for its caller's rate, before its body was read: calls that are forwarded for it
// ([Forward]) are not counted again.
func WithCounted(ctx context.Context) context.Context {
	return context.WithValue(ctx, countedKey{}, true)
}

// Counted reports whether a call has been counted already.
func Counted(ctx context.Context) bool {
	counted, _ := ctx.Value(countedKey{}).(bool)
	return counted
}

// takeCounted takes the process's own word for whether a call has been counted.
func takeCounted(ctx context.Context) context.Context {
	values := metadata.ValueFromIncomingContext(ctx, countedHeader)
	if len(values) > 0 && values[len(values)-1] == "true" {
		return WithCounted(ctx)
	}
	return ctx
}

// addressOfCall returns from which address a call comes.
func addressOfCall(ctx context.Context, forwarded bool) string {
	if forwarded {
		// The last one is the process's own: what came before, a client may have sent.
		if values := metadata.ValueFromIncomingContext(ctx, forwardedHeader); len(values) > 0 {
			return values[len(values)-1]
		}
		return ""
	}
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	return AddressOf(p.Addr)
}

// AddressOfRequest is AddressOf the client of an HTTP request.
func AddressOfRequest(r *http.Request) string { return AddressOf(remote(r.RemoteAddr)) }

// remote is an address as HTTP tells it.
type remote string

func (remote) Network() string  { return "tcp" }
func (r remote) String() string { return string(r) }
