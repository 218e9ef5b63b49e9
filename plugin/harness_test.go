package plugin

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const hang = 2 * time.Minute // after which a test says that something hangs

// server is one that serves until the test ends.
type server struct {
	address string
	log     *locked
	stop    func() // and waits
}

// locked is a buffer that a server writes to while a test may read.
type locked struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func serve(t *testing.T, cfg Config) *server {
	t.Helper()
	if cfg.Listener == nil {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		cfg.Listener = l
	}
	s := &server{address: cfg.Listener.Addr().String(), log: new(locked)}
	cfg.Log = slog.New(slog.NewTextHandler(s.log, nil))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, cfg) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(s.stop)
	return s
}

// dial returns a client, in plaintext unless it is told otherwise.
func dial(t *testing.T, target string, options ...grpc.DialOption) pluginv1.PluginServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(target, append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return pluginv1.NewPluginServiceClient(conn)
}

// stream is one of Judge.
type stream struct {
	t      *testing.T
	client grpc.BidiStreamingClient[pluginv1.JudgeRequest, pluginv1.JudgeResponse]
	last   int64
	cancel context.CancelFunc
}

func open(t *testing.T, client pluginv1.PluginServiceClient) *stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	t.Cleanup(cancel)
	judge, err := client.Judge(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return &stream{t: t, client: judge, cancel: cancel}
}

// start serves plugins, and opens a stream.
func start(t *testing.T, plugins ...Plugin) *stream {
	t.Helper()
	return open(t, dial(t, serve(t, Config{Plugins: plugins}).address))
}

// try sends a request, whose id it sets unless there is one.
func (s *stream) try(req *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error) {
	s.t.Helper()
	s.last++
	if req.Id == 0 {
		req.Id = s.last
	}
	if err := s.client.Send(req); err != nil {
		s.t.Fatal(err)
	}
	return s.client.Recv()
}

// ask returns the answers to a request.
func (s *stream) ask(req *pluginv1.JudgeRequest) []*pluginv1.Answer {
	s.t.Helper()
	resp, err := s.try(req)
	if err != nil {
		s.t.Fatal(err)
	}
	if resp.GetId() != req.GetId() || len(resp.GetAnswers()) != len(req.GetQuestions()) {
		s.t.Fatalf("request %d with %d questions got response %d with %d answers", req.GetId(), len(req.GetQuestions()), resp.GetId(), len(resp.GetAnswers()))
	}
	return resp.GetAnswers()
}

// node is a new one.
func node(id int32, name string) *pluginv1.Node {
	return &pluginv1.Node{Id: id, Spec: &pluginv1.NodeSpec{Name: name}}
}
