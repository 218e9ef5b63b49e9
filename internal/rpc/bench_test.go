package rpc_test

import (
	"context"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"github.com/berth-scheduler/berth/internal/rpc"
)

// BenchmarkUnaryCall measures one empty call: bare is gRPC alone, full is what this package makes of it, tls is that over TLS.
func BenchmarkUnaryCall(b *testing.B) {
	b.Run("net=tcp/tls", func(b *testing.B) {
		ca := newIssuer(b)
		server := tlsOf(b, ca.give(b.TempDir(), "binder", ca), false)
		r := startBinder(b, server, new(atomic.Int64))
		callOften(b, client(b, tlsOf(b, ca.give(b.TempDir(), "queue", ca), false), r.address))
	})
	for name, network := range map[string]rpc.Network{"net=tcp": rpc.TCP(), "net=memory": rpc.Memory()} {
		b.Run(name+"/bare", func(b *testing.B) {
			l, err := network.Listen(anyAddress(network))
			if err != nil {
				b.Fatal(err)
			}
			server := grpc.NewServer()
			testgrpc.RegisterTestServiceServer(server, &service{})
			served := make(chan error, 1)
			go func() { served <- server.Serve(l) }()
			conn, err := network.Dial(l.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			callOften(b, conn)
			_ = conn.Close()
			server.Stop()
			<-served
		})
		b.Run(name+"/full", func(b *testing.B) {
			cfg := rpc.Config{Net: network}
			l, err := network.Listen(anyAddress(network))
			if err != nil {
				b.Fatal(err)
			}
			server := rpc.NewServer(cfg, "bench")
			testgrpc.RegisterTestServiceServer(server.Registrar(), &service{})
			ctx, cancel := context.WithCancel(b.Context())
			served := make(chan error, 1)
			go func() { served <- server.Serve(ctx, l) }()
			clients := rpc.NewClients(cfg)
			conn, err := clients.Conn(l.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			callOften(b, conn)
			_ = clients.Close()
			cancel()
			<-served
		})
	}
}

func callOften(b *testing.B, conn *grpc.ClientConn) {
	client := testgrpc.NewTestServiceClient(conn)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.EmptyCall(b.Context(), &testgrpc.Empty{}); err != nil {
			b.Fatal(err)
		}
	}
}
