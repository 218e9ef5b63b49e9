package command

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/berth-scheduler/berth/internal/certs"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// healthCommand asks a role, or anything else that speaks the gRPC health protocol, whether it serves. It is the health
// check of containers: the image holds nothing else that could ask.
func healthCommand() *cobra.Command {
	var address, service string
	var files certs.Files
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "health",
		Short: "Ask a server by the gRPC health protocol whether it serves, and fail if it does not",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timeout <= 0 {
				return fmt.Errorf("--timeout: %v: want more than 0", timeout)
			}
			cfg, err := asRole(files)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			clients := rpc.NewClients(cfg)
			defer clients.Close()
			return checkHealth(ctx, clients, address, service, cmd.OutOrStdout())
		},
	}
	c.Flags().StringVar(&address, "address", "127.0.0.1:7070", "where the server listens, as host:port")
	c.Flags().StringVar(&service, "service", "", `what to ask about: nothing for "ready", or "available", which a binder that stands by is too`)
	addTLS(c.Flags(), &files)
	c.Flags().DurationVar(&timeout, "timeout", 3*time.Second, "how long to wait for the answer")
	return c
}

// checkHealth writes the answer to out, and returns an error unless it is SERVING.
func checkHealth(ctx context.Context, clients *rpc.Clients, address, service string, out io.Writer) error {
	conn, err := clients.Conn(address)
	if err != nil {
		return fmt.Errorf("--address: %w", err)
	}
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
	if err != nil {
		return fmt.Errorf("ask %s for its health: %w", address, err)
	}
	if answer.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		return fmt.Errorf("%s is %v", address, answer.GetStatus())
	}
	_, err = fmt.Fprintln(out, answer.GetStatus())
	return err
}
