package roles

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	memberv1 "github.com/berth-scheduler/berth/internal/gen/berth/member/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// Without certificates a role cannot be told from anybody else, who may be a stranger where people need tokens.
func TestWhereThereAreTokensAndNoCertificatesNobodyIsAMember(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte("t,ann,write\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	e := &env{measured: newMemberMetrics()}
	guard, err := e.newGuard(Access{By: AccessTokens, TokenFile: file}, "public")
	if err != nil {
		t.Fatal(err)
	}
	cfg := rpc.Config{Net: rpc.Memory()}
	l, err := cfg.Net.Listen("gateway")
	if err != nil {
		t.Fatal(err)
	}
	server := rpc.NewServer(cfg, "gateway", guarded(guard))
	memberv1.RegisterMemberServiceServer(server.Registrar(), memberv1.UnimplementedMemberServiceServer{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, l) }()
	clients := rpc.NewClients(cfg)
	defer func() {
		_ = clients.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	conn, err := clients.Conn("gateway")
	if err != nil {
		t.Fatal(err)
	}
	for _, with := range []context.Context{ctx, metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer t")} {
		if _, err := memberv1.NewMemberServiceClient(conn).GetMember(with, &memberv1.GetMemberRequest{}); status.Code(err) != codes.Unauthenticated {
			t.Errorf("GetMember: %v, want UNAUTHENTICATED", err)
		}
		if _, err := memberv1.NewMemberServiceClient(conn).Drain(with, &memberv1.DrainRequest{}); status.Code(err) != codes.Unauthenticated {
			t.Errorf("Drain: %v, want UNAUTHENTICATED", err)
		}
		if _, err := grpc_health_v1.NewHealthClient(conn).Check(with, &grpc_health_v1.HealthCheckRequest{}); err != nil {
			t.Errorf("health: %v", err)
		}
	}
}
