// Package cli holds the client commands of berth and of kubectl berth: what people ask Berth, and what they see of the answers.
// The commands are thin clients of the gateway's public API: what they print is what it says.
//
// The package reads no environment, and does not start or stop anything.
package cli

import (
	"cmp"
	"context"
	"errors"
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
	Program       string    // how people call the program, in examples and advice; "" means berth
	Version       string    // of the program; "" means that it is not known
	Revision      string    // the commit that the program was built from; "" means that it is not known
	Kubernetes    string    // the release of Kubernetes whose kube-scheduler the program decides as; "" means that it is not told
	DefaultServer string    // address of the gateway unless --server says otherwise; "" means 127.0.0.1:7070, if Find is nil
	In            io.Reader // what "-" reads; required for it
	Out           io.Writer // where answers go; required
	Err           io.Writer // where notices go, such as progress; nil discards

	// Dial returns a connection to a gateway, and what closes it. nil means TCP.
	Dial func(address string) (conn grpc.ClientConnInterface, closeConn func() error, err error)
	// Find returns the gateway of the cluster that its user works with, for commands without --server; nil: DefaultServer.
	Find func(ctx context.Context) (Gateway, error)
	// Offline answers as a gateway would of a cluster that objects describe; nil: there is no --from.
	Offline func(ctx context.Context, objects []byte) (Gateway, error)
	// Namespace is where pods are unless --namespace says otherwise; nil means default.
	Namespace func() (string, error)
	// Screen is the size of the terminal that Out is, in characters; nil, or not ok: Out is no terminal.
	Screen func() (width, height int, ok bool)
	// Now is the time that ages are counted from; nil means time.Now.
	Now func() time.Time
}

// Gateway is a connection to a gateway.
type Gateway struct {
	Name  string // what errors call it, after "the gateway at"
	Conn  grpc.ClientConnInterface
	Close func() error
}

// Commands returns the commands, to be added to a root. A command that could not do all it was asked to returns an error
// in plain words, which may have several lines; nothing else than the error has to be printed.
func Commands(opt Options) []*cobra.Command {
	opt.Program = cmp.Or(opt.Program, "berth")
	if opt.DefaultServer == "" && opt.Find == nil {
		opt.DefaultServer = "127.0.0.1:7070"
	}
	if opt.Err == nil {
		opt.Err = io.Discard
	}
	if opt.Dial == nil {
		opt.Dial = dialTCP
	}
	if opt.Namespace == nil {
		opt.Namespace = func() (string, error) { return "default", nil }
	}
	if opt.Screen == nil {
		opt.Screen = func() (int, int, bool) { return 0, 0, false }
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	return []*cobra.Command{
		whyCommand(opt), scoresCommand(opt), whatIfCommand(opt), capacityCommand(opt), compareCommand(opt),
		getCommand(opt), nodesCommand(opt), queueCommand(opt), workersCommand(opt), topCommand(opt), watchCommand(opt),
		applyCommand(opt), deleteCommand(opt), drainCommand(opt), versionCommand(opt),
	}
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
	from    string // a file with objects; "": there is a server
	timeout time.Duration
}

func (c *connection) add(cmd *cobra.Command, opt Options) {
	usage := "address of Berth's gateway (gRPC)"
	if opt.DefaultServer == "" {
		usage += " (default: that of the kubeconfig's cluster, through its API server)"
	}
	cmd.Flags().StringVar(&c.server, "server", opt.DefaultServer, usage)
	cmd.Flags().DurationVar(&c.timeout, "timeout", 30*time.Second, "how long one request may take")
	cmd.SilenceUsage = true // the usage is no answer to "not found"
}

// addOffline adds the flag of commands that a file can answer.
func (c *connection) addOffline(cmd *cobra.Command, opt Options) {
	if opt.Offline != nil {
		cmd.Flags().StringVar(&c.from, "from", "", `answer from a file instead of a server, as "kubectl get nodes,pods,namespaces,services,replicationcontrollers,replicasets,statefulsets,poddisruptionbudgets,persistentvolumes,persistentvolumeclaims,storageclasses,csinodes,csidrivers,csistoragecapacities,volumeattachments -A -o json" writes it; "-" for standard input`)
	}
}

func (c *connection) open(ctx context.Context, opt Options) (*session, error) {
	if c.timeout <= 0 {
		return nil, fmt.Errorf("--timeout %v is not positive", c.timeout)
	}
	g, err := c.gateway(ctx, opt)
	if err != nil {
		return nil, err
	}
	return &session{
		SchedulingServiceClient: schedulingv1.NewSchedulingServiceClient(rpc.RetryRefused(g.Conn)),
		server:                  g.Name, timeout: c.timeout, close: g.Close,
	}, nil
}

func (c *connection) gateway(ctx context.Context, opt Options) (Gateway, error) {
	switch {
	case c.from != "":
		objects, err := readFile(c.from, opt.In)
		if err != nil {
			return Gateway{}, err
		}
		g, err := opt.Offline(ctx, []byte(objects))
		if err != nil {
			return Gateway{}, fmt.Errorf("--from %s: %w", c.from, err)
		}
		return g, nil
	case c.server == "" && opt.Find != nil:
		return opt.Find(ctx)
	case c.server == "":
		return Gateway{}, errors.New("--server is empty")
	}
	conn, closeConn, err := opt.Dial(c.server)
	return Gateway{Name: c.server, Conn: conn, Close: closeConn}, err
}

// request is the context of one request.
func (s *session) request(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.timeout)
}

// with opens a session for as long as run takes.
func (c *connection) with(ctx context.Context, opt Options, run func(*session) error) error {
	s, err := c.open(ctx, opt)
	if err != nil {
		return err
	}
	err = run(s)
	if closing := s.close(); err == nil && closing != nil {
		return fmt.Errorf("close connection to %s: %w", s.server, closing)
	}
	return err
}

// ask makes one request.
func ask[Req, Res any](ctx context.Context, s *session, call func(context.Context, Req, ...grpc.CallOption) (Res, error), request Req) (Res, error) {
	ctx, cancel := s.request(ctx)
	defer cancel()
	response, err := call(ctx, request)
	return response, s.plain(err)
}

// namespaceFlag is --namespace of commands about one namespace.
type namespaceFlag struct{ value string }

func (n *namespaceFlag) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&n.value, "namespace", "n", "", "namespace of the pod (default: default, or that of the kubeconfig's context)")
}

// get returns what the flag says, or what holds without it.
func (n *namespaceFlag) get(opt Options) (string, error) {
	if n.value != "" {
		return n.value, nil
	}
	return opt.Namespace()
}
