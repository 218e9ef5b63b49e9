package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/certs"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/placeserver"
	"github.com/berth-scheduler/berth/internal/pluginenv"
	"github.com/berth-scheduler/berth/internal/pluginproto"
)

// Config is what a process with plugins needs.
type Config struct {
	// Plugins are those of the process, 1 to 64.
	Plugins []Plugin
	// Listen is where to serve, as host:port, or unix:///path for a socket in a directory that only Berth and the plugin can enter. Required, unless Listener is set, or Berth
	// runs the process, as run of a plugin service has it: then "" is the socket that BERTH_PLUGIN_SOCKET names, without TLS.
	Listen string
	// Listener is used instead, and closed.
	Listener net.Listener
	// TLS is how the process proves who it is, and knows who asks. None: plaintext.
	TLS TLSFiles
	// InsecurePlaintext serves without TLS on addresses that are not loopback: whoever reaches them can ask, and whoever is on the way there can say where pods go.
	InsecurePlaintext bool
	// Activator has Berth try pods that wait, and ask about nodes again that have changed for the plugins. It is of one Serve at a time. nil: there is none.
	Activator *Activator
	// Ready is closed when the plugins can answer. Until then Berth is told that they cannot yet: if one of them sorts the queue, pods that come wait, and nobody is told; those that are in the queue already, and where none sorts, fail as if the process were away, also those that need nothing of what is missing. So what takes long is to be given up some time. nil: they can.
	Ready <-chan struct{}
	// Log is where panics of plugins go, with their stacks. nil discards.
	Log *slog.Logger
}

// TLSFiles names PEM files for mutual TLS: all three, or none. They are read again when they change. Callers need a certificate of one of the authorities. With Berth's own authority,
// whose certificates name a role, only binders may ask, and operators, who try plugins out; who has another one for this says with it who may.
type TLSFiles struct {
	Cert, Key string // of this process
	CA        string // the authorities that callers' certificates are signed by
}

// callers are the roles of Berth that may ask.
var callers = []string{"binder", "operator"}

const (
	// Whoever is gone without a word is found out within a minute, so that what it told is not kept.
	pingEvery, pingWait = 30 * time.Second, 10 * time.Second
	// maxStreams of one connection. A binder has one of questions and one of placements, and others while it begins anew.
	maxStreams = 100
)

// Serve answers Berth until ctx ends, and then returns nil: open streams are cut, which Berth begins anew at whoever serves the plugins next, and what was reserved on them is taken back. It returns when
// all functions of plugins have. An error says what is wrong with cfg, or that the listener broke.
func Serve(ctx context.Context, cfg Config) error {
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(pluginproto.MaxRequestBytes),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingEvery, Timeout: pingWait}),
		grpc.WaitForHandlers(true),
	}
	service, err := newService(cfg.Log, cfg.Plugins)
	if err != nil {
		return err
	}
	service.ready = cfg.Ready
	if cfg.Activator != nil {
		service.placing, service.describe.Activates = &cfg.Activator.server, true
	}
	if cfg.TLS != (TLSFiles{}) {
		if cfg.TLS.Cert == "" || cfg.TLS.Key == "" || cfg.TLS.CA == "" {
			return errors.New("the Cert, Key and CA of TLS: want all three, or none for plaintext")
		}
		source, err := certs.Open(certs.Files(cfg.TLS), "", service.log)
		if err != nil {
			return err
		}
		options = append(options, grpc.Creds(credentials.NewTLS(source.Server(false))))
		service.allow = allow
	}
	l := cfg.Listener
	if l == nil {
		address, err := cfg.address()
		if err != nil {
			return err
		}
		if l, err = listen(address); err != nil {
			return err
		}
	}
	if at, ok := l.Addr().(*net.TCPAddr); ok && !at.IP.IsLoopback() && service.allow == nil && !cfg.InsecurePlaintext {
		return errors.Join(fmt.Errorf("%s is not a loopback address, and there is no TLS: give TLS, or InsecurePlaintext", at), l.Close())
	}

	server := grpc.NewServer(options...)
	pluginv1.RegisterPluginServiceServer(server, service)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	service.log.Info("serving plugins", "address", l.Addr().String(), "tls", service.allow != nil)
	select {
	case err = <-served:
		err = fmt.Errorf("serve plugins on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	server.Stop()
	if err == nil {
		<-served
	}
	return err
}

// address returns where to serve.
func (c *Config) address() (string, error) {
	switch socket := os.Getenv(pluginenv.Socket); {
	case c.Listen != "":
		return c.Listen, nil
	case socket == "":
		return "", fmt.Errorf("the Listen of Config: want host:port, or unix:///path: %s, by which Berth says where a process is to serve that it runs itself, is not set", pluginenv.Socket)
	case c.TLS != (TLSFiles{}):
		return "", fmt.Errorf("the TLS of Config: Berth, which runs the process, asks on the socket that %s names without it: give none", pluginenv.Socket)
	default:
		return "unix://" + socket, nil
	}
}

// listen opens a host:port, or unix:///path. A socket that nobody listens on any more is replaced.
func listen(address string) (net.Listener, error) {
	path, ok := strings.CutPrefix(address, "unix://")
	if !ok {
		return net.Listen("tcp", address)
	}
	l, err := net.Listen("unix", path)
	if errors.Is(err, syscall.EADDRINUSE) {
		if conn, dialErr := net.Dial("unix", path); dialErr == nil {
			return nil, errors.Join(err, conn.Close())
		} else if errors.Is(dialErr, syscall.ECONNREFUSED) && os.Remove(path) == nil {
			return net.Listen("unix", path)
		}
	}
	return l, err
}

// allow refuses callers whose certificate names a role of Berth that may not ask.
func allow(ctx context.Context) error {
	role := ""
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			role = certs.PeerRole(info.State)
		}
	}
	if role != "" && !slices.Contains(callers, role) {
		return status.Errorf(codes.PermissionDenied, "the certificate is of role %q: want one of %v", role, callers)
	}
	return nil
}

// Register adds plugins to a server of one's own. It must take requests of 16 MiB; whoever reaches it can ask. Serve sees to all that. A log of nil discards.
func Register(server grpc.ServiceRegistrar, log *slog.Logger, plugins ...Plugin) error {
	service, err := newService(log, plugins)
	if err != nil {
		return err
	}
	pluginv1.RegisterPluginServiceServer(server, service)
	return nil
}

// service answers any number of streams, each by what was told on it.
type service struct {
	pluginv1.UnimplementedPluginServiceServer
	describe *pluginv1.DescribeResponse
	plugins  map[string]*Plugin
	allow    func(context.Context) error // nil: everybody
	ready    <-chan struct{}             // nil: it is
	log      *slog.Logger

	placing *placeserver.Server
}

func newService(log *slog.Logger, plugins []Plugin) (*service, error) {
	if err := check(plugins); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &service{describe: &pluginv1.DescribeResponse{Orders: true}, plugins: make(map[string]*Plugin), log: log, placing: new(placeserver.Server)}
	for _, p := range plugins {
		s.plugins[p.Name] = &p
		s.describe.Plugins = append(s.describe.Plugins, &pluginv1.PluginDescription{
			Name: p.Name, Filters: p.Filter != nil, Scores: p.Score != nil, Normalization: pluginv1.Normalization(p.Normalization),
			Depends: &pluginv1.Dependencies{
				Requested: p.Depends.Requested, Pods: p.Depends.Pods, Objects: p.Depends.Objects, Pod: p.Depends.Pod, Milliseconds: p.Depends.Holds.Milliseconds(), Annotations: p.Depends.Annotations,
			},
			Reserves: p.Reserve != nil, Permits: p.Permit != nil, PreBinds: p.PreBind != nil, PostBinds: p.PostBind != nil, PostFilters: p.PostFilter != nil, Binds: p.Bind != nil,
			PreEnqueues: p.PreEnqueue != nil, QueueSorts: p.SortKey != nil,
		})
	}
	return s, nil
}

// Describe says which plugins there are.
func (s *service) Describe(ctx context.Context, _ *pluginv1.DescribeRequest) (*pluginv1.DescribeResponse, error) {
	if s.allow != nil {
		if err := s.allow(ctx); err != nil {
			return nil, err
		}
	}
	if s.ready != nil {
		select {
		case <-s.ready:
		default:
			return nil, status.Error(codes.FailedPrecondition, "the plugins are not ready yet")
		}
	}
	return s.describe, nil
}

// tells returns what is wrong if a binder does not tell annotations, on which some plugin depends: that there are none is not what it would be told.
func (s *service) tells(annotations bool) error {
	for _, p := range s.describe.GetPlugins() {
		if p.GetDepends().GetAnnotations() && !annotations {
			return status.Errorf(codes.FailedPrecondition, "plugin %s depends on annotations of pods, and the binder is of a release that tells none: upgrade it first", p.GetName())
		}
	}
	return nil
}

// Judge answers one stream.
func (s *service) Judge(stream pluginv1.PluginService_JudgeServer) error {
	ctx := stream.Context()
	if s.allow != nil {
		if err := s.allow(ctx); err != nil {
			return err
		}
	}
	told := newSession(s.plugins)
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if req.GetId() == 1 {
			if err := s.tells(req.GetTellsAnnotations()); err != nil {
				return err
			}
		}
		if behind := req.GetBehind(); behind != nil {
			if err := s.placing.Behind(ctx, behind.GetStream(), behind.GetId()); err != nil {
				return err
			}
		}
		if err := told.fold(req); err != nil {
			return err
		}
		resp := &pluginv1.JudgeResponse{Id: req.GetId()}
		for i, asked := range req.GetQuestions() {
			q, err := told.question(i, asked)
			if err != nil {
				return err
			}
			resp.Answers = append(resp.Answers, q.answer(ctx, s.log))
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}
