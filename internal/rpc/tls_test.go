package rpc_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/certs"
	"github.com/berth-scheduler/berth/internal/logtest"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// The test service is one of binders, and for queues.
var (
	binderCallers = rpc.WithCallers(map[string]rpc.Callers{
		testgrpc.TestService_EmptyCall_FullMethodName:           {"queue"},
		testgrpc.TestService_UnaryCall_FullMethodName:           {"queue"},
		testgrpc.TestService_StreamingOutputCall_FullMethodName: {"queue"},
		healthgrpc.Health_Check_FullMethodName:                  rpc.Anyone,
		healthgrpc.Health_Watch_FullMethodName:                  rpc.Anyone,
	})
	servers = map[string][]string{
		testgrpc.TestService_EmptyCall_FullMethodName:           {"binder"},
		testgrpc.TestService_UnaryCall_FullMethodName:           {"binder"},
		testgrpc.TestService_StreamingOutputCall_FullMethodName: {"binder"},
		healthgrpc.Health_Check_FullMethodName:                  {"binder", "queue"},
		healthgrpc.Health_Watch_FullMethodName:                  {"binder", "queue"},
	}
)

// issuer makes certificates that hold for an hour.
type issuer struct {
	*certs.Authority
	t testing.TB
}

func newIssuer(t testing.TB) issuer {
	t.Helper()
	a, err := certs.NewAuthority(time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return issuer{a, t}
}

// give writes files of a role into a directory: a key pair, unless the role is "", and the authorities to trust.
func (i issuer) give(dir, role string, trust ...issuer) certs.Files {
	i.t.Helper()
	files := certs.Files{CA: filepath.Join(dir, "ca.crt")}
	var all []byte
	for _, a := range trust {
		cert, _, err := a.PEM()
		if err != nil {
			i.t.Fatal(err)
		}
		all = append(all, cert...)
	}
	i.write(files.CA, all)
	if role != "" {
		cert, key, err := i.Issue(role, nil, time.Now(), time.Hour)
		if err != nil {
			i.t.Fatal(err)
		}
		files.Cert, files.Key = filepath.Join(dir, "role.crt"), filepath.Join(dir, "role.key")
		i.write(files.Cert, cert)
		i.write(files.Key, key)
	}
	return files
}

func (i issuer) write(name string, data []byte) {
	i.t.Helper()
	if err := os.WriteFile(name, data, 0o600); err != nil {
		i.t.Fatal(err)
	}
}

// tlsOf returns the TLS of a process with these files.
func tlsOf(t testing.TB, files certs.Files, anyone bool) *rpc.TLS {
	t.Helper()
	source, err := certs.Open(files, "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return &rpc.TLS{Server: source.Server(anyone), Client: credentials.NewTLS(source.Client()), Role: certs.PeerRole, Servers: servers}
}

// startBinder serves the test service; calls counts what reaches a handler.
func startBinder(t testing.TB, own *rpc.TLS, calls *atomic.Int64) *running {
	t.Helper()
	logs := &logtest.Buffer{}
	cfg := rpc.Config{Net: rpc.TCP(), Log: slog.New(slog.NewTextHandler(logs, nil)), Metrics: prometheus.NewRegistry(), TLS: own}
	return startWith(t, cfg, logs, &service{
		unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
			calls.Add(1)
			p, _ := peer.FromContext(ctx) // the answer is who signed the caller's certificate
			cert := p.AuthInfo.(credentials.TLSInfo).State.PeerCertificates[0]
			return &testgrpc.SimpleResponse{Username: hex.EncodeToString(cert.AuthorityKeyId)}, nil
		},
		stream: func(*testgrpc.StreamingOutputCallRequest, output) error {
			calls.Add(1)
			return nil
		},
	}, binderCallers)
}

// client returns a connection to a server.
func client(t testing.TB, own *rpc.TLS, address string) *grpc.ClientConn {
	t.Helper()
	clients := rpc.NewClients(rpc.Config{TLS: own})
	t.Cleanup(func() { clients.Close() })
	conn, err := clients.Conn(address)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// callBoth makes a unary call and a stream, and returns how they ended.
func callBoth(t *testing.T, conn *grpc.ClientConn) map[string]error {
	t.Helper()
	c := testgrpc.NewTestServiceClient(conn)
	_, unary := c.UnaryCall(within(t, patience), &testgrpc.SimpleRequest{})
	stream, err := c.StreamingOutputCall(within(t, patience), &testgrpc.StreamingOutputCallRequest{})
	if err == nil {
		if _, err = stream.Recv(); err != nil && strings.Contains(err.Error(), "EOF") {
			err = nil
		}
	}
	return map[string]error{"unary": unary, "stream": err}
}

func TestOverTLSEachCallIsForTheRightRolesOnBothSides(t *testing.T) {
	ca, foreign := newIssuer(t), newIssuer(t)
	for _, tt := range []struct {
		what           string
		server, client certs.Files
		anyone         bool // may connect to the server
		code           codes.Code
		reason         rpc.Reason
		message        string
	}{
		{"the right ones", ca.give(t.TempDir(), "binder", ca), ca.give(t.TempDir(), "queue", ca), false, codes.OK, "", ""},
		{"caller of a wrong role", ca.give(t.TempDir(), "binder", ca), ca.give(t.TempDir(), "score-worker", ca), false,
			codes.PermissionDenied, rpc.ReasonWrongRole, "a score-worker may not call it"},
		{"caller with a certificate that names no role", ca.give(t.TempDir(), "binder", ca), nameless(t, ca), false,
			codes.Unauthenticated, rpc.ReasonNoIdentity, "want a client certificate"},
		{"caller without a certificate", ca.give(t.TempDir(), "binder", ca), ca.give(t.TempDir(), "", ca), false,
			codes.Unavailable, "", ""},
		{"caller without a certificate where anyone may connect", ca.give(t.TempDir(), "binder", ca), ca.give(t.TempDir(), "", ca), true,
			codes.Unauthenticated, rpc.ReasonNoIdentity, "want a client certificate"},
		{"caller of another authority", ca.give(t.TempDir(), "binder", ca), foreign.give(t.TempDir(), "queue", ca), false,
			codes.Unavailable, "", ""},
		{"server of another authority", foreign.give(t.TempDir(), "binder", ca), ca.give(t.TempDir(), "queue", ca), false,
			codes.Unavailable, "", "unknown authority"},
		{"server of a wrong role", ca.give(t.TempDir(), "queue", ca), ca.give(t.TempDir(), "queue", ca), false,
			codes.Unavailable, rpc.ReasonWrongRole, "the server is a queue"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			var calls atomic.Int64
			r := startBinder(t, tlsOf(t, tt.server, tt.anyone), &calls)
			conn := client(t, tlsOf(t, tt.client, false), r.address)
			for kind, err := range callBoth(t, conn) {
				if status.Code(err) != tt.code || rpc.ReasonOf(err) != tt.reason || tt.message != "" && !strings.Contains(err.Error(), tt.message) {
					t.Errorf("%s: %v, reason %q; want %v, %q, %q", kind, err, rpc.ReasonOf(err), tt.code, tt.reason, tt.message)
				}
			}
			if n := calls.Load(); (n > 0) != (tt.code == codes.OK) {
				t.Errorf("%d calls reached the handler", n)
			}
			if tt.code == codes.PermissionDenied {
				if n := metric(t, r.cfg.Metrics, "grpc_server_handled_total", map[string]string{"grpc_code": "PermissionDenied"}); n != 2 {
					t.Errorf("%v refused calls counted, want 2", n)
				}
			}
			// Whoever can connect may ask for health.
			_, err := healthgrpc.NewHealthClient(conn).Check(within(t, patience), &healthgrpc.HealthCheckRequest{})
			connects := rpc.ReasonOf(callBoth(t, conn)["unary"]) != "" || tt.code == codes.OK
			if (err == nil) != connects {
				t.Errorf("health: %v; the caller connects: %v", err, connects)
			}
		})
	}
}

// nameless returns the files of a certificate whose URI names no role.
func nameless(t *testing.T, ca issuer) certs.Files {
	files := ca.give(t.TempDir(), "x", ca)
	cert, key, err := ca.Issue("", nil, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	ca.write(files.Cert, cert)
	ca.write(files.Key, key)
	return files
}

func TestWhatHasNoEntryIsRefused(t *testing.T) {
	ca := newIssuer(t)
	files := ca.give(t.TempDir(), "binder", ca)
	logs := &logtest.Buffer{}
	r := startWith(t, rpc.Config{Net: rpc.TCP(), Metrics: prometheus.NewRegistry(), TLS: tlsOf(t, files, false)}, logs, &service{})
	own := tlsOf(t, ca.give(t.TempDir(), "queue", ca), false)
	if err := callBoth(t, client(t, own, r.address))["unary"]; status.Code(err) != codes.PermissionDenied {
		t.Errorf("a server without callers answers %v, want PERMISSION_DENIED", err)
	}
	own.Servers = map[string][]string{}
	if err := callBoth(t, client(t, own, r.address))["unary"]; rpc.ReasonOf(err) != rpc.ReasonWrongRole || status.Code(err) != codes.Unavailable {
		t.Errorf("a client that knows no server of a call makes it: %v", err)
	}
}

func TestPlaintextAndTLSDoNotMix(t *testing.T) {
	ca := newIssuer(t)
	var calls atomic.Int64
	r := startBinder(t, tlsOf(t, ca.give(t.TempDir(), "binder", ca), true), &calls)
	if err := callBoth(t, client(t, nil, r.address))["unary"]; status.Code(err) != codes.Unavailable {
		t.Errorf("a plaintext client of a TLS server: %v, want UNAVAILABLE", err)
	}
	plain := start(t, rpc.TCP(), &service{})
	if err := callBoth(t, client(t, tlsOf(t, ca.give(t.TempDir(), "queue", ca), false), plain.address))["unary"]; status.Code(err) != codes.Unavailable {
		t.Errorf("a TLS client of a plaintext server: %v, want UNAVAILABLE", err)
	}
	if n := calls.Load(); n > 0 {
		t.Errorf("%d calls reached the handler", n)
	}
}

func TestAllCertificatesAreReplacedUnderTrafficAndNoCallFails(t *testing.T) {
	old, next := newIssuer(t), newIssuer(t)
	serverDir, clientDir := t.TempDir(), t.TempDir()
	server := tlsOf(t, old.give(serverDir, "binder", old), false)
	own := tlsOf(t, old.give(clientDir, "queue", old), false)
	var calls atomic.Int64
	r := startBinder(t, server, &calls)

	// Traffic on one connection that lasts, and on one that is new each time.
	ctx, cancel := context.WithCancel(context.Background())
	failed := make(chan error, 1)
	var signers sync.Map // of the certificates that new connections have shown
	done := make(chan struct{})
	go func() {
		defer close(done)
		lasting := rpc.NewClients(rpc.Config{TLS: own})
		defer lasting.Close()
		for ctx.Err() == nil {
			fresh := rpc.NewClients(rpc.Config{TLS: own})
			for _, clients := range []*rpc.Clients{lasting, fresh} {
				conn, err := clients.Conn(r.address)
				if err == nil {
					var answer *testgrpc.SimpleResponse
					answer, err = testgrpc.NewTestServiceClient(conn).UnaryCall(ctx, &testgrpc.SimpleRequest{})
					signers.Store(answer.GetUsername(), true)
				}
				if err != nil && ctx.Err() == nil {
					select {
					case failed <- err:
					default:
					}
				}
			}
			fresh.Close()
		}
	}()
	defer func() { cancel(); <-done }()

	// accepts waits until the server takes, or refuses, a caller whose certificate is from an issuer.
	accepts := func(by issuer, want bool) {
		t.Helper()
		files := by.give(t.TempDir(), "queue", old, next)
		eventually(t, fmt.Sprintf("callers of that authority to be accepted: %v", want), func() bool {
			clients := rpc.NewClients(rpc.Config{TLS: tlsOf(t, files, false)})
			defer clients.Close()
			conn, err := clients.Conn(r.address)
			if err != nil {
				t.Fatal(err)
			}
			_, err = testgrpc.NewTestServiceClient(conn).UnaryCall(within(t, patience), &testgrpc.SimpleRequest{})
			return (err == nil) == want
		})
	}
	accepts(next, false)
	shown := func() (n int) {
		signers.Range(func(signer, _ any) bool {
			if signer != "" {
				n++
			}
			return true
		})
		return n
	}
	eventually(t, "traffic", func() bool { return shown() == 1 })
	// 1. Everybody trusts both authorities.
	old.give(clientDir, "queue", old, next)
	old.give(serverDir, "binder", old, next)
	accepts(next, true)
	// 2. Key pairs of the new one.
	next.give(clientDir, "queue", old, next)
	eventually(t, "the client to show its new certificate", func() bool { return shown() == 2 })
	// 3. Nobody trusts the old one.
	next.give(serverDir, "binder", next)
	accepts(old, false)
	accepts(next, true)
	before := calls.Load()
	eventually(t, "more calls", func() bool { return calls.Load() > before+10 })
	select {
	case err := <-failed:
		t.Errorf("a call failed meanwhile: %v", err)
	default:
	}
}

// A follower is there for days. Its certificate, and not a call, says that it is one.
func TestStrangersDoNotDriveOutWhoHasShownACertificate(t *testing.T) {
	ca := newIssuer(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	limited := rpc.Bound(l, rpc.Bounds{Name: "test", All: 3, Each: -1})
	ctx, cancel := context.WithCancel(t.Context())
	server := rpc.NewServer(rpc.Config{TLS: tlsOf(t, ca.give(t.TempDir(), "binder", ca), false)}, "tester", binderCallers)
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, limited) }()
	t.Cleanup(func() {
		cancel()
		if err := receive(t, done, "Serve to return"); err != nil {
			t.Error(err)
		}
	})
	config := tlsOf(t, ca.give(t.TempDir(), "queue", ca), false).Client
	raw := connect(t, "127.0.0.2", l.Addr().String())
	follower, _, err := config.ClientHandshake(within(t, patience), "member.berth.internal", raw)
	if err != nil {
		t.Fatal(err)
	}
	// The server's first frames come when its side of the handshake is over.
	if _, err := follower.Read(make([]byte, 9)); err != nil {
		t.Fatal(err)
	}
	var strangers []net.Conn
	for i := range 6 {
		strangers = append(strangers, connect(t, fmt.Sprint("127.0.0.", 3+i), l.Addr().String()))
	}
	for _, stranger := range strangers[:4] {
		isClosed(t, stranger)
	}
	if _, err := follower.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00" +
		"\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678")); err != nil {
		t.Fatal(err)
	}
	var read []byte
	for buffer := make([]byte, 1024); !strings.Contains(string(read), "12345678"); {
		_ = raw.SetReadDeadline(time.Now().Add(patience))
		n, err := follower.Read(buffer)
		if err != nil {
			t.Fatalf("the follower's connection, which strangers came after: %v", err)
		}
		read = append(read, buffer[:n]...)
	}
}

// A process that cannot say that it serves is ended.
func TestStrangersDoNotHoldUpTheHealthCheckOfTheProcessItself(t *testing.T) {
	ca := newIssuer(t)
	own := tlsOf(t, ca.give(t.TempDir(), "binder", ca), true)
	logs := &logtest.Buffer{}
	r := startWith(t, rpc.Config{Net: rpc.TCP(), Log: slog.New(slog.NewTextHandler(logs, nil)), Metrics: prometheus.NewRegistry(), TLS: own}, logs,
		&service{}, binderCallers, rpc.WithPublic(nil))
	stranger := tlsOf(t, ca.give(t.TempDir(), "", ca), true)
	ctx, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	for range 4 {
		conn := client(t, stranger, r.address)
		for range 60 {
			asking.Go(func() { // a request that never comes, again and again
				for ctx.Err() == nil {
					stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, healthgrpc.Health_Check_FullMethodName)
					if err == nil {
						_ = stream.RecvMsg(&healthgrpc.HealthCheckResponse{})
					}
				}
			})
		}
	}
	eventually(t, "the places of strangers to be taken", func() bool { reading, waiting := r.server.StrangersReading(); return reading >= 32 && waiting >= 32 })
	probe := healthgrpc.NewHealthClient(client(t, own, r.address))
	for range 20 {
		if _, err := probe.Check(within(t, patience), &healthgrpc.HealthCheckRequest{}); err != nil {
			t.Fatalf("with the certificate of a role: %v", err)
		}
	}
	name := strings.Repeat("x", 2000)
	if _, err := probe.Check(within(t, patience), &healthgrpc.HealthCheckRequest{Service: name}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a long name: %v, want INVALID_ARGUMENT", err)
	}
}
