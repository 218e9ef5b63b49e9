// Package cli holds the client commands of berth: apply, delete, get and watch. They are thin clients of the gateway's public
// API: what they print is what it says.
//
// The package reads no environment, and does not start or stop anything.
package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// Options is what the commands need of the process they run in.
type Options struct {
	DefaultServer string    // address of the gateway unless --server says otherwise; "" means 127.0.0.1:7070
	In            io.Reader // what "-" reads; required for it
	Out           io.Writer // where answers go; required
	Err           io.Writer // where notices go, such as progress; nil discards

	// Dial returns a connection to a gateway, and what closes it. nil means TCP.
	Dial func(address string) (conn grpc.ClientConnInterface, closeConn func() error, err error)
	// Now is the time that ages are counted from; nil means time.Now.
	Now func() time.Time
}

// Commands returns the commands, to be added to a root. A command that could not do all it was asked to returns an error
// in plain words, which may have several lines; nothing else than the error has to be printed.
func Commands(opt Options) []*cobra.Command {
	if opt.DefaultServer == "" {
		opt.DefaultServer = "127.0.0.1:7070"
	}
	if opt.Err == nil {
		opt.Err = io.Discard
	}
	if opt.Dial == nil {
		opt.Dial = dialTCP
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	return []*cobra.Command{applyCommand(opt), deleteCommand(opt), getCommand(opt), watchCommand(opt)}
}

func dialTCP(address string) (grpc.ClientConnInterface, func() error, error) {
	clients := rpc.NewClients(rpc.Config{})
	conn, err := clients.Conn(address)
	if err != nil {
		return nil, nil, err
	}
	return conn, clients.Close, nil
}

// session is a connection to a gateway for the time of one command.
type session struct {
	schedulingv1.SchedulingServiceClient
	server  string
	timeout time.Duration // of each request
	close   func() error
}

// connection is the flags about the server, which every command has.
type connection struct {
	server  string
	timeout time.Duration
}

func (c *connection) add(cmd *cobra.Command, opt Options) {
	cmd.Flags().StringVar(&c.server, "server", opt.DefaultServer, "address of Berth's gateway (gRPC)")
	cmd.Flags().DurationVar(&c.timeout, "timeout", 30*time.Second, "how long one request may take")
	cmd.SilenceUsage = true // the usage is no answer to "not found"
}

func (c *connection) open(opt Options) (*session, error) {
	if c.server == "" {
		return nil, fmt.Errorf("--server is empty")
	}
	if c.timeout <= 0 {
		return nil, fmt.Errorf("--timeout %v is not positive", c.timeout)
	}
	conn, closeConn, err := opt.Dial(c.server)
	if err != nil {
		return nil, err
	}
	return &session{
		SchedulingServiceClient: schedulingv1.NewSchedulingServiceClient(conn),
		server:                  c.server, timeout: c.timeout, close: closeConn,
	}, nil
}

// request is the context of one request.
func (s *session) request(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.timeout)
}

// with opens a session for as long as run takes.
func (c *connection) with(opt Options, run func(*session) error) error {
	s, err := c.open(opt)
	if err != nil {
		return err
	}
	err = run(s)
	if closing := s.close(); err == nil && closing != nil {
		return fmt.Errorf("close connection to %s: %w", c.server, closing)
	}
	return err
}
