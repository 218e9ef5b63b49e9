package plugin

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/berth-scheduler/berth/internal/certs"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

var one = []Plugin{{Name: "F", Filter: refusing("no")}}

// describes returns the error of both RPCs, which must have the same code.
func describes(t *testing.T, client pluginv1.PluginServiceClient) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	_, err := client.Describe(ctx, &pluginv1.DescribeRequest{})
	stream, judgeErr := client.Judge(ctx)
	if judgeErr == nil {
		_ = stream.Send(&pluginv1.JudgeRequest{Id: 1})
		_, judgeErr = stream.Recv()
	}
	if status.Code(err) != status.Code(judgeErr) {
		t.Errorf("Describe: %v, Judge: %v", err, judgeErr)
	}
	return err
}

func TestOfBerthsRolesOnlyBindersAndOperatorsMayAskOverTLS(t *testing.T) {
	dir := t.TempDir()
	makeCerts := func(dir string) {
		t.Helper()
		_, err := certs.Make(certs.Request{Dir: dir, Roles: []string{"plugin", "binder", "operator", "filter-worker"}, Now: time.Now(), CALife: time.Hour, Life: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
	}
	makeCerts(dir)
	makeCerts(filepath.Join(dir, "others"))
	files := func(dir, role string) certs.Files {
		return certs.Files{Cert: filepath.Join(dir, role+".crt"), Key: filepath.Join(dir, role+".key"), CA: filepath.Join(dir, "ca.crt")}
	}
	unnamed := issue(t, dir)
	address := serve(t, Config{Plugins: one, TLS: TLSFiles(files(dir, "plugin"))}).address
	as := func(files certs.Files) error {
		t.Helper()
		source, err := certs.Open(files, "", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return describes(t, dial(t, address, grpc.WithTransportCredentials(credentials.NewTLS(source.Client()))))
	}
	for _, tt := range []struct {
		who  string
		err  error
		want codes.Code
	}{
		{"a binder", as(files(dir, "binder")), codes.OK},
		{"an operator", as(files(dir, "operator")), codes.OK},
		{"a filter-worker", as(files(dir, "filter-worker")), codes.PermissionDenied},
		{"another plugin", as(files(dir, "plugin")), codes.PermissionDenied},
		{"somebody who is no role of Berth", as(unnamed), codes.OK},
		{"a binder of another authority, which takes ours for its own", as(certs.Files{
			Cert: filepath.Join(dir, "others", "binder.crt"), Key: filepath.Join(dir, "others", "binder.key"), CA: filepath.Join(dir, "ca.crt"),
		}), codes.Unavailable},
		{"nobody", describes(t, dial(t, address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})))), codes.Unavailable},
		{"plaintext", describes(t, dial(t, address)), codes.Unavailable},
	} {
		if status.Code(tt.err) != tt.want {
			t.Errorf("%s: %v, want %v", tt.who, tt.err, tt.want)
		}
	}
}

// issue makes a key pair that names no role, by the authority in a directory.
func issue(t *testing.T, dir string) certs.Files {
	t.Helper()
	ca, err := tls.LoadX509KeyPair(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, ca.Leaf, key.Public(), ca.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	files := certs.Files{Cert: filepath.Join(dir, "unnamed.crt"), Key: filepath.Join(dir, "unnamed.key"), CA: filepath.Join(dir, "ca.crt")}
	for name, block := range map[string]*pem.Block{files.Cert: {Type: "CERTIFICATE", Bytes: cert}, files.Key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

func TestWhatCannotBeServedIsSaid(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for want, cfg := range map[string]Config{
		"want all three":                  {Listen: "127.0.0.1:0", TLS: TLSFiles{Cert: "a", Key: "b"}},
		"no such file":                    {Listen: "127.0.0.1:0", TLS: TLSFiles{Cert: "a", Key: "b", CA: "c"}},
		"is not a loopback address":       {Listen: "0.0.0.0:0"},
		"missing port":                    {Listen: "127.0.0.1"},
		"address already in use":          {Listen: l.Addr().String()},
		"bind: no such file or directory": {Listen: "unix:///no/such/directory/socket"},
	} {
		cfg.Plugins = one
		if err := Serve(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Serve: %v, want an error with %q", err, want)
		}
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := Serve(ended, Config{Plugins: one, Listen: "0.0.0.0:0", InsecurePlaintext: true}); err != nil {
		t.Errorf("Serve in plaintext to all, as asked: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Serve(t.Context(), Config{Plugins: one, Listener: l}); err == nil || !strings.Contains(err.Error(), "serve plugins on 127.0.0.1") {
		t.Errorf("Serve on a listener that is broken: %v", err)
	}
}

func TestASocketThatIsLeftIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plugin.sock")
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false) // as if its process had been killed
	if _, err := listen("unix://" + path); err == nil {
		t.Error("a socket that somebody listens on was replaced")
	}
	if err := left.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := listen("unix://" + path)
	if err != nil {
		t.Fatal(err)
	}
	serve(t, Config{Plugins: one, Listener: l})
	if err := describes(t, dial(t, "unix://"+path)); err != nil {
		t.Error(err)
	}
}

func TestServeEndsWithItsContextAndWaitsForPlugins(t *testing.T) {
	called, finish, finished := make(chan struct{}), make(chan struct{}), make(chan struct{})
	server := serve(t, Config{Plugins: []Plugin{{Name: "Slow", Filter: func(ctx context.Context, _ *Kind, _ *Node) (*Refusal, error) {
		close(called)
		<-ctx.Done()
		<-finish
		close(finished)
		return nil, nil
	}}}})
	s := open(t, dial(t, server.address))
	req := three([]string{"Slow"}, nil)
	req.Id, req.Questions[0].Nodes = 1, []int32{1}
	if err := s.client.Send(req); err != nil {
		t.Fatal(err)
	}
	<-called
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		server.stop()
	}()
	if _, err := s.client.Recv(); status.Code(err) != codes.Unavailable && status.Code(err) != codes.Canceled {
		t.Errorf("the stream of a server that stops ended with %v", err)
	}
	close(finish)
	<-stopped
	select {
	case <-finished:
	default:
		t.Error("Serve returned while a plugin was at work")
	}
}

func TestPluginsCanBeAddedToAServerOfOnesOwn(t *testing.T) {
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	if err := Register(server, nil, one...); err != nil {
		t.Fatal(err)
	}
	if err := Register(server, nil); err == nil {
		t.Error("no plugins were registered")
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	client := dial(t, "passthrough:///x", grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err := describes(t, client); err != nil {
		t.Error(err)
	}
	server.Stop()
	<-served
}

// Berth says where a process is to serve that it runs, and asks there without TLS.
func TestAProcessThatBerthRunsServesWhereItSays(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	for _, tt := range []struct {
		socket string
		cfg    Config
		want   string // the address, or the beginning of the error
	}{
		{"", Config{}, "the Listen of Config: want host:port, or unix:///path"},
		{socket, Config{}, "unix://" + socket},
		{socket, Config{Listen: "127.0.0.1:0", TLS: TLSFiles{Cert: "c"}}, "127.0.0.1:0"},
		{socket, Config{TLS: TLSFiles{Cert: "c"}}, "the TLS of Config: Berth, which runs the process, asks on the socket"},
	} {
		t.Setenv("BERTH_PLUGIN_SOCKET", tt.socket)
		address, err := tt.cfg.address()
		if err != nil {
			address = err.Error()
		}
		if !strings.HasPrefix(address, tt.want) {
			t.Errorf("with BERTH_PLUGIN_SOCKET=%s, %+v serves at %s, want %s", tt.socket, tt.cfg, address, tt.want)
		}
	}
}

func TestWhoIsNotReadyDescribesNothingYet(t *testing.T) {
	ready := make(chan struct{})
	client := dial(t, serve(t, Config{Plugins: one, Ready: ready}).address)
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	if got, err := client.Describe(ctx, &pluginv1.DescribeRequest{}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("before: %v, %v", got, err)
	}
	close(ready)
	if got, err := client.Describe(ctx, &pluginv1.DescribeRequest{}); err != nil || len(got.GetPlugins()) != 1 {
		t.Errorf("behind it: %v, %v", got, err)
	}
}
