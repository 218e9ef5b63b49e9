package rpc_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/berth-scheduler/berth/internal/certs"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// across is a network of two processes: what listens is in one, and what dials in the other.
type across struct{ there, here *rpc.Peers }

func newAcross(t *testing.T) across {
	ca := newIssuer(t)
	return across{newPeers(t, ca.give(t.TempDir(), "peer", ca)), newPeers(t, ca.give(t.TempDir(), "peer", ca))}
}

// newPeers returns the network of one process, until the test ends.
func newPeers(t *testing.T, files certs.Files) *rpc.Peers {
	t.Helper()
	identity, err := certs.Open(files, "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := rpc.NewPeers(rpc.PeersConfig{
		Listener: l, Address: l.Addr().String(), Server: identity.Server(false), Client: identity.Client(),
		Admit: func(state tls.ConnectionState) error {
			if role := certs.PeerRole(state); role != "peer" {
				return fmt.Errorf("it is a %s", role)
			}
			return nil
		},
	})
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (a across) Listen(address string) (net.Listener, error) {
	_, name, found := strings.Cut(address, "/")
	if !found {
		name = address
	}
	l, err := a.there.Listen(name)
	if err != nil {
		return nil, err
	}
	return atPeer{l, a.there.Advertise(l, "")}, nil
}

func (a across) Dial(address string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	return a.here.Dial(address, opts...)
}

func (a across) Advertise(l net.Listener, _ string) string { return l.Addr().String() }

// atPeer is a listener whose address is what others dial.
type atPeer struct {
	net.Listener
	address string
}

func (l atPeer) Addr() net.Addr { return &net.UnixAddr{Name: l.address, Net: "peers"} }

func TestPeersReachThemselvesInMemory(t *testing.T) {
	ca := newIssuer(t)
	p := newPeers(t, ca.give(t.TempDir(), "peer", ca))
	r := start(t, p, &service{})
	if _, err := r.client.EmptyCall(within(t, patience), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Listen("a/b"); err == nil {
		t.Error("a name with a slash is taken")
	}
}

// TestOnlyPeersAreLetIn has others try at both ends: of another authority, of another role, and without a certificate.
func TestOnlyPeersAreLetIn(t *testing.T) {
	ours, others := newIssuer(t), newIssuer(t)
	peer := newPeers(t, ours.give(t.TempDir(), "peer", ours))
	l, err := peer.Listen("a")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	address := peer.Advertise(l, "")
	for name, files := range map[string]certs.Files{
		"another authority": others.give(t.TempDir(), "peer", ours),
		"another role":      ours.give(t.TempDir(), "queue", ours),
		"no certificate":    ours.give(t.TempDir(), "", ours),
	} {
		t.Run(name, func(t *testing.T) {
			stranger := newPeers(t, files)
			if conn, err := stranger.Connect(within(t, patience), address); err == nil {
				conn.Close()
				t.Error("it was let in")
			}
			theirs, err := stranger.Listen("a")
			if err != nil {
				t.Fatal(err)
			}
			defer theirs.Close()
			if conn, err := peer.Connect(within(t, patience), stranger.Advertise(theirs, "")); err == nil {
				conn.Close()
				t.Error("it was taken for a peer")
			}
		})
	}
	accepted := make(chan error, 1)
	go func() {
		_, err := l.Accept()
		accepted <- err
	}()
	if conn, err := peer.Connect(within(t, patience), strings.TrimSuffix(address, "a")+"b"); err == nil || !strings.Contains(err.Error(), "nobody listens") {
		t.Errorf("connect to a name that nobody has: %v, %v", conn, err)
	}
	if conn, err := peer.Connect(within(t, patience), strings.TrimSuffix(address, "/a")); err == nil {
		conn.Close()
		t.Error("connected to no name")
	}
	l.Close()
	if err := receive(t, accepted, "Accept to end"); err == nil {
		t.Error("somebody was accepted")
	}
}

// TestWhoSaysNothingKeepsNobodyOut has more connections than handshakes are let in at a time say nothing.
func TestWhoSaysNothingKeepsNobodyOut(t *testing.T) {
	a := newAcross(t)
	l, err := a.there.Listen("a")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	address := a.there.Advertise(l, "")
	host, _, _ := strings.Cut(address, "/")
	for range 100 {
		conn, err := net.Dial("tcp", host)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	eventually(t, "a peer to be let in", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		conn, err := a.here.Connect(ctx, address)
		if err != nil {
			return false
		}
		in, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		in.Close()
		conn.Close()
		return true
	})
}
