package system

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/emptypb"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// secured is a Berth of separate processes that talk over TLS, with certificates by berth certs.
type secured struct {
	*berthtest.Processes
	t     *testing.T
	certs string // the directory
	json  string // where the gateway serves JSON
}

// startSecured starts one process of each role and waits until they are ready.
func startSecured(t *testing.T) *secured {
	t.Helper()
	s := &secured{Processes: berthtest.NewProcesses(t, berthtest.Crew{}), t: t, certs: filepath.Join(t.TempDir(), "certs")}
	ports, err := kubetest.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	s.json = "127.0.0.1:" + ports[0]
	s.makeCerts()
	for _, role := range []string{"binder", "queue", "filter-worker", "score-worker", "gateway"} {
		s.start(role)
	}
	s.Conn.Close() // it speaks plaintext
	s.Conn = s.dial(s.GRPCAddress, "")
	s.SchedulingServiceClient = schedulingv1.NewSchedulingServiceClient(s.Conn)
	s.AwaitReady()
	return s
}

// makeCerts makes key pairs for all roles, and one for etcd, who is nobody's caller.
func (s *secured) makeCerts() {
	s.t.Helper()
	out, err := exec.Command(berthtest.Binary(s.t), "certs", "--dir", s.certs, "--role", "binder,queue,filter-worker,score-worker,gateway,etcd").CombinedOutput()
	if err != nil {
		s.t.Fatalf("berth certs: %v\n%s", err, out)
	}
}

func (s *secured) file(name string) string { return filepath.Join(s.certs, name) }

func (s *secured) start(role string) {
	s.t.Helper()
	args := []string{berthtest.Binary(s.t), role, "--id", role, "--etcd-endpoints", strings.Join(s.Etcd.Endpoints(), ","), "--lease-ttl", "2s",
		"--tls-cert", s.file(role + ".crt"), "--tls-key", s.file(role + ".key"), "--tls-ca", s.file("ca.crt")}
	if role == "gateway" {
		args = append(args, "--listen", s.GRPCAddress, "--http-listen", s.json)
	}
	proc, err := kubetest.StartProcess(role, filepath.Join(filepath.Dir(s.certs), role+".log"), args...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.ByID[role] = proc
}

// roots returns the authorities to trust.
func (s *secured) roots() *x509.CertPool {
	s.t.Helper()
	ca, err := os.ReadFile(s.file("ca.crt"))
	if err != nil {
		s.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	return pool
}

// dial connects with the certificate of a role, or with none, and checks the server's authority only.
func (s *secured) dial(address, role string) *grpc.ClientConn {
	s.t.Helper()
	roots := s.roots()
	cfg := &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(state tls.ConnectionState) error {
		_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots})
		return err
	}}
	if role != "" {
		pair, err := tls.LoadX509KeyPair(s.file(role+".crt"), s.file(role+".key"))
		if err != nil {
			s.t.Fatal(err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	return conn
}

// members returns the address of each role.
func (s *secured) members() map[string]string {
	s.t.Helper()
	answer, err := s.GetStatus(s.Context(), &schedulingv1.GetStatusRequest{})
	if err != nil {
		s.t.Fatal(err)
	}
	at := make(map[string]string)
	for _, m := range answer.GetMembers() {
		at[m.GetRole()] = m.GetAddress()
	}
	if len(at) != 5 {
		s.t.Fatalf("members %v, want one of each role", at)
	}
	return at
}

// methods asks a server by reflection for the RPCs it has.
func (s *secured) methods(conn *grpc.ClientConn) (all []protoreflect.MethodDescriptor) {
	s.t.Helper()
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(s.Context())
	if err == nil {
		err = stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}})
	}
	if err != nil {
		s.t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, service := range answer.GetListServicesResponse().GetService() {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service.GetName()))
		if err != nil {
			s.t.Fatal(err)
		}
		methods := d.(protoreflect.ServiceDescriptor).Methods()
		for i := range methods.Len() {
			all = append(all, methods.Get(i))
		}
	}
	if len(all) < 5 {
		s.t.Fatalf("reflection shows %d RPCs: %v", len(all), all)
	}
	return all
}

func fullName(m protoreflect.MethodDescriptor) string {
	return "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
}

// call makes a call with an empty request, and returns its first answer's error.
func (s *secured) call(conn *grpc.ClientConn, m protoreflect.MethodDescriptor) error {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if !m.IsStreamingClient() && !m.IsStreamingServer() {
		return conn.Invoke(ctx, fullName(m), &emptypb.Empty{}, &emptypb.Empty{})
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: m.IsStreamingClient(), ServerStreams: m.IsStreamingServer()}, fullName(m))
	if err == nil {
		err = stream.SendMsg(&emptypb.Empty{})
	}
	if err == nil {
		err = stream.CloseSend()
	}
	if err != nil && !errors.Is(err, io.EOF) { // the reason is behind it
		return err
	}
	if err := stream.RecvMsg(&emptypb.Empty{}); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

func TestOverTLSPodsAreScheduledAndEveryRPCRefusesWhoHasNoBusinessThere(t *testing.T) {
	s := startSecured(t)
	s.Apply(berthtest.Nodes(5)...)
	s.Apply(plainPods(0, 50)...)
	s.AwaitDecided(50)
	if got := len(s.Placements()); got != 50 {
		t.Fatalf("%d of 50 pods placed", got)
	}

	// open is what needs no certificate.
	open := func(role, method string) bool {
		return strings.HasPrefix(method, "/grpc.health.") ||
			role == "gateway" && (strings.HasPrefix(method, "/berth.scheduling.") || strings.HasPrefix(method, "/grpc.reflection."))
	}
	refused := 0
	for role, address := range s.members() {
		knows := s.dial(address, "gateway")
		worker, nobody, anonymous := s.dial(address, "score-worker"), s.dial(address, "etcd"), s.dial(address, "")
		for _, m := range s.methods(knows) {
			method := fullName(m)
			if open(role, method) {
				continue
			}
			// 1. No certificate: only the gateway lets it connect.
			err := s.call(anonymous, m)
			if role == "gateway" && (status.Code(err) != codes.Unauthenticated || rpc.ReasonOf(err) != rpc.ReasonNoIdentity) ||
				role != "gateway" && status.Code(err) != codes.Unavailable {
				t.Errorf("%s at a %s, without a certificate: %v", method, role, err)
			}
			if strings.HasPrefix(method, "/grpc.reflection.") {
				continue // for every role
			}
			// 2. A role that calls nobody.
			if err := s.call(nobody, m); status.Code(err) != codes.PermissionDenied || rpc.ReasonOf(err) != rpc.ReasonWrongRole {
				t.Errorf("%s at a %s, by etcd: %v, want PERMISSION_DENIED, %s", method, role, err, rpc.ReasonWrongRole)
			}
			// 3. A role that calls one RPC.
			err = s.call(worker, m)
			if want := method != "/berth.log.v1.LogService/Follow"; (rpc.ReasonOf(err) == rpc.ReasonWrongRole) != want {
				t.Errorf("%s at a %s, by a score-worker: %v; want it refused: %v", method, role, err, want)
			}
			refused++
		}
	}
	if refused < 15 {
		t.Errorf("%d RPCs refused, want all that are not public", refused)
	}
}

func TestPeopleReachASecuredGatewayByItsHostName(t *testing.T) {
	s := startSecured(t)
	berth := berthtest.Binary(t)
	run := func(args ...string) (string, error) {
		out, err := exec.Command(berth, append(args, "--timeout", "5s")...).CombinedOutput()
		return string(out), err
	}
	if out, err := run("get", "status", "--server", s.GRPCAddress, "--tls-ca", s.file("ca.crt")); err != nil || !strings.Contains(out, "binder") {
		t.Errorf("berth get status: %v\n%s", err, out)
	}
	if out, err := run("get", "status", "--server", s.GRPCAddress); err == nil {
		t.Errorf("berth get status in plaintext succeeds:\n%s", out)
	}
	for role, address := range s.members() {
		out, err := run("health", "--address", address,
			"--tls-cert", s.file("etcd.crt"), "--tls-key", s.file("etcd.key"), "--tls-ca", s.file("ca.crt"))
		if err != nil {
			t.Errorf("berth health of the %s: %v\n%s", role, err, out)
		}
		// Inner roles have no host names, so that none of them can pass for the gateway.
		out, err = run("get", "status", "--server", address,
			"--tls-cert", s.file("gateway.crt"), "--tls-key", s.file("gateway.key"), "--tls-ca", s.file("ca.crt"))
		if (err == nil) != (role == "gateway") {
			t.Errorf("berth get status of the %s: %v\n%s", role, err, out)
		}
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.roots()}, ForceAttemptHTTP2: true}, Timeout: 5 * time.Minute}
	defer client.CloseIdleConnections()
	answer, err := client.Get("https://" + s.json + "/v1/status")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK || answer.ProtoMajor != 2 {
		t.Errorf("JSON: %s over %s, want 200 over HTTP/2", answer.Status, answer.Proto)
	}
}

func TestAllRolesInOneProcessServePeopleOverTLS(t *testing.T) {
	ports, err := kubetest.FreePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	dir, berth := t.TempDir(), berthtest.Binary(t)
	file := func(name string) string { return filepath.Join(dir, name) }
	if out, err := exec.Command(berth, "certs", "--dir", dir, "--role", "gateway").CombinedOutput(); err != nil {
		t.Fatalf("berth certs: %v\n%s", err, out)
	}
	address := "127.0.0.1:" + ports[0]
	proc, err := kubetest.StartProcess("all", file("log"), berth, "all", "--data-dir", file("data"),
		"--listen", address, "--http-listen", "127.0.0.1:"+ports[1],
		"--tls-cert", file("gateway.crt"), "--tls-key", file("gateway.key"), "--tls-ca", file("ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Stop()
	berthtest.Await(t, berthtest.Patience, "berth all to answer over TLS", func(context.Context) error {
		out, err := exec.Command(berth, "get", "status", "--server", address, "--tls-ca", file("ca.crt"), "--timeout", "5s").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "score-worker") {
			return fmt.Errorf("berth get status: %w\n%s", err, out)
		}
		return nil
	})
	if out, err := exec.Command(berth, "get", "status", "--server", address, "--timeout", "5s").CombinedOutput(); err == nil {
		t.Errorf("in plaintext it answers too:\n%s", out)
	}
}

func TestCertificatesAreRenewedWhilePodsAreScheduled(t *testing.T) {
	s := startSecured(t)
	s.Apply(berthtest.Nodes(10)...)
	serial := func(address string) string {
		conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: s.roots()})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	first := serial(s.GRPCAddress)
	s.Apply(plainPods(0, 300)...)
	s.makeCerts()
	s.Apply(plainPods(300, 600)...)
	for _, address := range []string{s.GRPCAddress, s.json} {
		berthtest.Await(t, berthtest.Patience, "the new certificate at "+address, func(context.Context) error {
			if serial(address) == first {
				return fmt.Errorf("still the first")
			}
			return nil
		})
	}
	// A worker with a new certificate meets members that began with old ones.
	s.ByID["filter-worker"].Kill()
	s.start("filter-worker")
	s.Apply(plainPods(600, 800)...)
	s.AwaitDecided(800)
	if got := len(s.Placements()); got != 800 {
		t.Errorf("%d of 800 pods placed", got)
	}
}
