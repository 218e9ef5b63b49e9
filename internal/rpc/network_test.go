package rpc_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/rpc"
)

func TestPeerThatStartsLateOrAgainIsReached(t *testing.T) {
	onEach(t, func(t *testing.T, network rpc.Network) {
		l, err := network.Listen(anyAddress(network))
		if err != nil {
			t.Fatal(err)
		}
		address := l.Addr().String()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		cfg := rpc.Config{Net: network}
		clients := rpc.NewClients(cfg)
		defer clients.Close()
		conn, err := clients.Conn(address)
		if err != nil {
			t.Fatal(err)
		}
		client := testgrpc.NewTestServiceClient(conn)
		for range 2 {
			began := time.Now()
			if _, err := client.EmptyCall(within(t, patience), &testgrpc.Empty{}); status.Code(err) != codes.Unavailable || time.Since(began) > patience/2 {
				t.Fatalf("call while nobody listens: %v after %v, want UNAVAILABLE at once", err, time.Since(began))
			}
			l, err := network.Listen(address)
			if err != nil {
				t.Fatal(err)
			}
			server := rpc.NewServer(cfg, "tester")
			testgrpc.RegisterTestServiceServer(server.Registrar(), &service{})
			ctx, cancel := context.WithCancel(t.Context())
			served := make(chan error, 1)
			go func() { served <- server.Serve(ctx, l) }()
			eventually(t, "the peer to be reached", func() bool {
				_, err := client.EmptyCall(within(t, patience), &testgrpc.Empty{})
				return err == nil
			})
			cancel()
			if err := receive(t, served, "Serve to return"); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestMemoryNamesAreTakenUntilTheirListenerCloses(t *testing.T) {
	network := rpc.Memory()
	first, err := network.Listen("binder")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := network.Listen("binder"); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("second listener on one name: %v", err)
	}
	if other, err := rpc.Memory().Listen("binder"); err != nil {
		t.Errorf("the same name on another network: %v", err)
	} else if err := other.Close(); err != nil {
		t.Error(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := network.Listen("binder")
	if err != nil {
		t.Fatalf("listen again after close: %v", err)
	}
	if err := first.Close(); err != nil { // closing twice must not free the name of its successor
		t.Fatal(err)
	}
	if _, err := network.Listen("binder"); err == nil {
		t.Error("the old listener freed the name of the new one")
	}
	names := map[string]bool{}
	for range 3 {
		l, err := network.Listen("")
		if err != nil {
			t.Fatal(err)
		}
		names[network.Advertise(l, "ignored")] = true
		defer l.Close()
	}
	if len(names) != 3 || names[""] {
		t.Errorf("unnamed listeners got %v", names)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}

type fixedListener struct {
	net.Listener
	address string
}

func (l fixedListener) Addr() net.Addr {
	a, err := net.ResolveTCPAddr("tcp", l.address)
	if err != nil {
		panic(err)
	}
	return a
}

func TestTCPAdvertisesTheHostThatOthersKnow(t *testing.T) {
	for _, c := range []struct{ listens, given, want string }{
		{"127.0.0.1:7101", "", "127.0.0.1:7101"},
		{"10.0.0.7:7101", "", "10.0.0.7:7101"},
		{"[::]:7101", "", "127.0.0.1:7101"},
		{"0.0.0.0:7101", "", "127.0.0.1:7101"},
		{"[::]:7101", "binder-0.berth", "binder-0.berth:7101"},
		{"[::]:7101", "binder-0.berth:0", "binder-0.berth:7101"},
		{"[::]:7101", "10.0.0.7:443", "10.0.0.7:443"},
		{"[::]:7101", ":443", "127.0.0.1:443"},
		{"[::]:7101", "fd00::7", "[fd00::7]:7101"},
		{"[::]:7101", "[fd00::7]", "[fd00::7]:7101"},
		{"[::1]:7101", "", "[::1]:7101"},
	} {
		if got := rpc.TCP().Advertise(fixedListener{address: c.listens}, c.given); got != c.want {
			t.Errorf("a listener on %s, given %q, advertises %s, want %s", c.listens, c.given, got, c.want)
		}
	}
}

func TestListenOnATakenPortFails(t *testing.T) {
	l, err := rpc.TCP().Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := rpc.TCP().Listen(l.Addr().String()); err == nil || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("got %v, want an error that names the address", err)
	}
}
