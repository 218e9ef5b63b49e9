package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/berth-scheduler/berth/internal/certs"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
)

func TestMain(m *testing.M) {
	// A closed connection of spdystream waits up to ten minutes for somebody to ask how it ended.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/moby/spdystream.(*Connection).shutdown"))
}

// berthGateway is a gateway that wants the token "s3cret", if it wants any.
type berthGateway struct {
	schedulingv1.UnimplementedSchedulingServiceServer
	wants string
}

func (g *berthGateway) GetStatus(ctx context.Context, _ *schedulingv1.GetStatusRequest) (*schedulingv1.GetStatusResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	if got := strings.Join(md.Get("authorization"), ","); got != g.wants {
		return nil, rpc.Error(codes.Unauthenticated, "NO_TOKEN", "%q was shown", got)
	}
	return &schedulingv1.GetStatusResponse{Source: "kube", Leader: "binder-0"}, nil
}

// serve makes a gateway serve on a free port until the test ends, with TLS if there is a directory with certificates.
func serve(t *testing.T, g *berthGateway, dir string) (port int) {
	t.Helper()
	cfg := rpc.Config{Net: rpc.TCP()}
	options := []rpc.Option{}
	if dir != "" {
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "gateway.crt"), filepath.Join(dir, "gateway.key"))
		if err != nil {
			t.Fatal(err)
		}
		cfg.TLS = &rpc.TLS{Server: &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}}, Role: certs.PeerRole}
		options = append(options, rpc.WithCallers(map[string]rpc.Callers{schedulingv1.SchedulingService_GetStatus_FullMethodName: rpc.Anyone}))
	}
	server := rpc.NewServer(cfg, "gateway", options...)
	schedulingv1.RegisterSchedulingServiceServer(server.Registrar(), g)
	listener, err := cfg.Net.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().(*net.TCPAddr).Port
}

// apiServer is as much of an API server, and of the kubelet behind it, as finding and reaching a pod takes.
type apiServer struct {
	*httptest.Server
	pods  []v1.Pod
	list  error // what it answers instead of pods
	reach error // what it answers to a port-forward

	mu      sync.Mutex
	reached []string        // the pods that were forwarded to
	streams sync.WaitGroup  // that are being copied
	conns   []io.Closer     // upgraded connections
	tokens  map[string]bool // that were shown
}

func newAPIServer(t *testing.T, pods ...v1.Pod) *apiServer {
	a := &apiServer{pods: pods, tokens: make(map[string]bool)}
	a.Server = httptest.NewTLSServer(a)
	t.Cleanup(func() {
		a.mu.Lock()
		for _, c := range a.conns {
			_ = c.Close() // it may be closed already
		}
		a.mu.Unlock()
		a.Close()
		a.streams.Wait()
	})
	return a
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.tokens[r.Header.Get("Authorization")] = true
	a.mu.Unlock()
	name, forwarding := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/api/v1/namespaces/berth/pods/"), "/portforward")
	switch {
	case forwarding && a.reach != nil:
		refuse(w, a.reach)
	case forwarding && r.Header.Get("Upgrade") == "websocket":
		http.Error(w, "only SPDY is spoken here", http.StatusForbidden)
	case forwarding:
		a.forward(w, r, name)
	case a.list != nil:
		refuse(w, a.list)
	case r.URL.Path == "/api/v1/namespaces/berth/pods" && r.URL.Query().Get("labelSelector") == gatewayLabels:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: a.pods}) // who asked sees it
	default:
		http.Error(w, "what is "+r.URL.String()+"?", http.StatusNotFound)
	}
}

func refuse(w http.ResponseWriter, err error) {
	st := err.(apierrors.APIStatus).Status()
	st.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(st.Code))
	_ = json.NewEncoder(w).Encode(st) // who asked sees it
}

// forward does what a kubelet does: pairs of streams, one for data and one for errors, with a port.
func (a *apiServer) forward(w http.ResponseWriter, r *http.Request, pod string) {
	if _, err := httpstream.Handshake(r, w, []string{"portforward.k8s.io"}); err != nil {
		return
	}
	var faults httpstream.Stream // they come one behind the other: that for faults, then that for data
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		if s.Headers().Get(v1.StreamType) == v1.StreamTypeError {
			faults = s
			return nil
		}
		of := faults
		a.streams.Go(func() { copyToPort(s, of) })
		return nil
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reached = append(a.reached, pod)
	if conn != nil {
		a.conns = append(a.conns, conn)
	}
}

func copyToPort(data, faults httpstream.Stream) {
	defer func() { _ = faults.Close() }() // the other side has it all, or is gone
	target, err := net.Dial("tcp", "127.0.0.1:"+data.Headers().Get(v1.PortHeader))
	if err != nil {
		_, _ = fmt.Fprintf(faults, "error forwarding port %s to pod: %v", data.Headers().Get(v1.PortHeader), err) // as above
		_ = data.Reset()
		return
	}
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.Copy(target, data); _ = target.Close() }) // ends when either side does
	both.Go(func() { _, _ = io.Copy(data, target); _ = data.Reset() })
	both.Wait()
}

func (a *apiServer) seen() (reached []string, tokens map[string]bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reached, a.tokens
}

// kubeconfig writes a kubeconfig of this server, with a token if there is one.
func (a *apiServer) kubeconfig(t *testing.T, token string) string {
	t.Helper()
	return a.kubeconfigOf(t, &clientcmdapi.AuthInfo{Token: token})
}

// kubeconfigOf is kubeconfig for a user who is known by anything.
func (a *apiServer) kubeconfigOf(t *testing.T, user *clientcmdapi.AuthInfo) string {
	t.Helper()
	config := clientcmdapi.NewConfig()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate().Raw})
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: a.URL, CertificateAuthorityData: ca}
	config.AuthInfos["u"] = user
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u", Namespace: "shop"}
	config.CurrentContext = "x"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

func gatewayPodNamed(name string, port int, isReady bool, args ...string) v1.Pod {
	condition := v1.PodCondition{Type: v1.PodReady, Status: v1.ConditionFalse}
	if isReady {
		condition.Status = v1.ConditionTrue
	}
	return v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "berth"},
		Spec: v1.PodSpec{Containers: []v1.Container{
			{Name: "proxy", Ports: []v1.ContainerPort{{Name: "http", ContainerPort: 1}}},
			{Name: "gateway", Args: append([]string{"gateway"}, args...), Ports: []v1.ContainerPort{{Name: "metrics", ContainerPort: 2}, {Name: "grpc", ContainerPort: int32(port)}}},
		}},
		Status: v1.PodStatus{Conditions: []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue}, condition}},
	}
}

// run runs a command line with an environment, and returns what it wrote.
func run(t *testing.T, env map[string]string, args ...string) (string, error) {
	t.Helper()
	var out, notices bytes.Buffer
	root := command(func(key string) string { return env[key] }, strings.NewReader(""), &out, &notices)
	root.SetArgs(args)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	err := root.ExecuteContext(ctx)
	return out.String() + notices.String(), err
}

func makeCerts(t *testing.T, hosts ...string) string {
	t.Helper()
	dir := t.TempDir()
	_, err := certs.Make(certs.Request{Dir: dir, Roles: []string{"gateway"}, Known: []string{"gateway"}, Hosts: hosts, CALife: time.Hour, Life: time.Hour, Now: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

var secured = []string{"--tls-cert=/tls/tls.crt", "--authenticate=kubernetes"}

func TestTheGatewayOfTheKubeconfigsClusterAnswersThroughItsAPIServer(t *testing.T) {
	dir := makeCerts(t, "gateway.berth.svc")
	port := serve(t, &berthGateway{wants: "Bearer s3cret"}, dir)
	a := newAPIServer(t, gatewayPodNamed("gateway-b", port, true, secured...), gatewayPodNamed("gateway-a", port, false, secured...),
		gatewayPodNamed("gateway-c", port, true, secured...))
	file := a.kubeconfig(t, "s3cret")
	for name, args := range map[string][]string{
		"the API server's word for who it is": nil,
		"the authorities":                     {"--tls-ca", filepath.Join(dir, "ca.crt")},
	} {
		out, err := run(t, nil, append([]string{"get", "status", "--kubeconfig", file, "-o", "jsonpath={.leader}"}, args...)...)
		if err != nil || out != "binder-0\n" {
			t.Errorf("with %s: %q, %v", name, out, err)
		}
	}
	reached, _ := a.seen()
	if strings.Join(reached, " ") != "gateway-b gateway-b" {
		t.Errorf("reached %v, want the first that is ready, each time", reached)
	}
}

func TestAGatewayWithACertificateOfSomebodyElseIsNotTalkedTo(t *testing.T) {
	port := serve(t, &berthGateway{wants: "Bearer s3cret"}, makeCerts(t, "gateway.berth.svc"))
	a := newAPIServer(t, gatewayPodNamed("gateway-a", port, true, secured...))
	other := filepath.Join(makeCerts(t, "gateway.berth.svc"), "ca.crt")
	if out, err := run(t, map[string]string{"BERTH_TLS_CA": other}, "get", "status", "--kubeconfig", a.kubeconfig(t, "s3cret")); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("%q, %v; want that its certificate is not trusted", out, err)
	}
}

func TestTheKubeconfigsTokenIsShownToNobodyWhoDoesNotKnowCallersByIt(t *testing.T) {
	dir := makeCerts(t, "gateway.berth.svc")
	for want, args := range map[string][]string{
		"":              {"--tls-cert=/tls/tls.crt", "--authenticate=tokens", "--token-file=/tokens"},
		"Bearer s3cret": secured,
	} {
		a := newAPIServer(t, gatewayPodNamed("gateway-a", serve(t, &berthGateway{wants: want}, dir), true, args...))
		file := a.kubeconfig(t, "s3cret")
		if out, err := run(t, nil, "get", "status", "--kubeconfig", file); err != nil {
			t.Errorf("%v: %q, %v; want that %q is shown", args, out, err, want)
		}
		if _, tokens := a.seen(); !tokens["Bearer s3cret"] {
			t.Errorf("the API server saw %v", tokens)
		}
	}
	plain := newAPIServer(t, gatewayPodNamed("gateway-a", serve(t, &berthGateway{}, ""), true, "--authenticate=none"))
	if out, err := run(t, nil, "get", "status", "--kubeconfig", plain.kubeconfig(t, "s3cret")); err != nil {
		t.Errorf("plaintext: %q, %v", out, err)
	}
}

func TestATokenForTheGatewayComesBeforeTheKubeconfigs(t *testing.T) {
	a := newAPIServer(t, gatewayPodNamed("gateway-a", serve(t, &berthGateway{wants: "Bearer mine"}, makeCerts(t)), true, secured...))
	if out, err := run(t, map[string]string{"BERTH_TOKEN": "mine"}, "get", "status", "--kubeconfig", a.kubeconfig(t, "s3cret")); err != nil {
		t.Errorf("%q, %v", out, err)
	}
}

func TestAUserWithoutATokenIsToldSo(t *testing.T) {
	a := newAPIServer(t, gatewayPodNamed("gateway-a", serve(t, &berthGateway{wants: "Bearer s3cret"}, makeCerts(t)), true, secured...))
	_, err := run(t, nil, "get", "status", "--kubeconfig", a.kubeconfig(t, ""))
	for _, want := range []string{"the kubeconfig's user has none", "--token-file", "kubectl create token"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// login is a user whom a program knows: it writes a token, and notes that it was called.
func login(t *testing.T, token string) (user *clientcmdapi.AuthInfo, called string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "login")
	called = program + ".called"
	script := fmt.Sprintf("#!/bin/sh\necho called >>%s\necho '{\"apiVersion\": \"client.authentication.k8s.io/v1\", \"kind\": \"ExecCredential\", \"status\": {\"token\": \"%s\"}}'\n", called, token)
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return &clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{
		APIVersion: "client.authentication.k8s.io/v1", Command: program, InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
	}}, called
}

// idToken is a token of an OpenID provider, that nobody has signed, and which ends then.
func idToken(end time.Time) string {
	part := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	return part(`{"alg":"none"}`) + "." + part(fmt.Sprintf(`{"sub":"ann","exp":%d}`, end.Unix())) + "." + part("s")
}

func TestAUserIsKnownByAProgramOrAnAuthProviderAsToKubectl(t *testing.T) {
	dir := makeCerts(t, "gateway.berth.svc")
	valid, renewed := idToken(time.Now().Add(time.Hour)), idToken(time.Now().Add(2*time.Hour))
	// It gives another token for one that has ended.
	var provider *httptest.Server
	provider = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/token" && r.FormValue("refresh_token") == "again" {
			_, _ = fmt.Fprintf(w, `{"access_token": "a", "token_type": "Bearer", "id_token": %q, "refresh_token": "again"}`, renewed) // who asked sees it
			return
		}
		_, _ = fmt.Fprintf(w, `{"issuer": %q, "token_endpoint": %q}`, provider.URL, provider.URL+"/token")
	}))
	t.Cleanup(provider.Close)
	ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: provider.Certificate().Raw}))
	oidc := func(token string) *clientcmdapi.AuthInfo {
		return &clientcmdapi.AuthInfo{AuthProvider: &clientcmdapi.AuthProviderConfig{Name: "oidc", Config: map[string]string{
			"idp-issuer-url": provider.URL, "client-id": "berth", "idp-certificate-authority-data": ca, "id-token": token, "refresh-token": "again",
		}}}
	}
	program, called := login(t, "s3cret")
	for _, c := range []struct {
		name string
		user *clientcmdapi.AuthInfo
		want string
	}{
		{"a program", program, "s3cret"},
		{"an OpenID provider", oidc(valid), valid},
		{"an OpenID provider whose token has ended", oidc(idToken(time.Now().Add(-time.Hour))), renewed},
	} {
		a := newAPIServer(t, gatewayPodNamed("gateway-a", serve(t, &berthGateway{wants: "Bearer " + c.want}, dir), true, secured...))
		out, err := run(t, nil, "get", "status", "--kubeconfig", a.kubeconfigOf(t, c.user), "-o", "jsonpath={.leader}")
		if err != nil || out != "binder-0\n" {
			t.Errorf("%s: %q, %v", c.name, out, err)
		}
		if _, tokens := a.seen(); len(tokens) != 1 || !tokens["Bearer "+c.want] {
			t.Errorf("%s: the API server saw %v, want the user's token alone", c.name, tokens)
		}
	}
	if _, err := os.Stat(called); err != nil {
		t.Errorf("the program was not called: %v", err)
	}
}

func TestWhatIsInTheWayOfTheGatewayIsSaidWithWhatToDo(t *testing.T) {
	forbidden := func(what string) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: what}, "", fmt.Errorf("ann may not"))
	}
	down := gatewayPodNamed("gateway-a", 1, false)
	leaving := gatewayPodNamed("gateway-b", 1, true)
	leaving.DeletionTimestamp, leaving.Finalizers = &metav1.Time{Time: time.Now()}, []string{"x"}
	strange := gatewayPodNamed("gateway-a", 1, true)
	strange.Spec.Containers = strange.Spec.Containers[:1]
	for _, tt := range []struct {
		name   string
		change func(*apiServer)
		want   []string
	}{
		{"no pod", func(a *apiServer) { a.pods = nil }, []string{"there is no pod", "namespace berth", "--berth-namespace", "--server"}},
		{"none ready", func(a *apiServer) { a.pods = []v1.Pod{down, leaving} }, []string{"none of the gateway's 2 pods is ready", "kubectl -n berth get pods -l " + gatewayLabels}},
		{"no port", func(a *apiServer) { a.pods = []v1.Pod{strange} }, []string{"pod berth/gateway-a has no port named grpc", "--server"}},
		{"may not list", func(a *apiServer) { a.list = forbidden("pods") }, []string{"ann may not", "permission to list pods in namespace berth", "--server"}},
		{"may not forward", func(a *apiServer) { a.reach = forbidden("pods/portforward") }, []string{"reach pod berth/gateway-a", "ann may not", "--server"}},
		{"nobody serves", func(*apiServer) {}, []string{"no answer from the gateway at pod berth/gateway-a", "error forwarding port 1 to pod", "connection refused"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := newAPIServer(t, gatewayPodNamed("gateway-a", 1, true))
			tt.change(a)
			out, err := run(t, nil, "queue", "--kubeconfig", a.kubeconfig(t, "s3cret"), "--timeout", "2s")
			for _, want := range tt.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%q, %v, want %q", out, err, want)
				}
			}
		})
	}
}

func TestWithoutAClusterTheErrorSaysHowToNameOne(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	t.Setenv("KUBECONFIG", none) // that of the machine is none of the test's business
	t.Setenv("HOME", t.TempDir())
	for args, want := range map[string]string{
		"queue": "no kubeconfig", "queue --kubeconfig " + none: none, "queue --context none": "none",
	} {
		if out, err := run(t, nil, strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--server") {
			t.Errorf("%s: %q, %v, want %q and --server", args, out, err, want)
		}
	}
}

func TestAServerIsReachedWithoutACluster(t *testing.T) {
	address := fmt.Sprintf("127.0.0.1:%d", serve(t, &berthGateway{wants: "Bearer mine"}, ""))
	env := map[string]string{"BERTH_TOKEN": "mine"}
	if out, err := run(t, env, "get", "status", "--server", address, "-o", "jsonpath={.source}"); err != nil || out != "kube\n" {
		t.Errorf("--server: %q, %v", out, err)
	}
	env["BERTH_SERVER"] = address
	if out, err := run(t, env, "get", "status", "-o", "jsonpath={.source}"); err != nil || out != "kube\n" {
		t.Errorf("BERTH_SERVER: %q, %v", out, err)
	}
	env["BERTH_SERVER"] = "gateway.example:7070"
	if out, err := run(t, env, "get", "status"); err == nil || !strings.Contains(err.Error(), "a token needs TLS") {
		t.Errorf("a token in plaintext to another machine: %q, %v", out, err)
	}
}

func TestThePluginCallsItselfAsPeopleDo(t *testing.T) {
	out, err := run(t, nil, "whatif", "--help")
	if err != nil || !strings.Contains(out, "kubectl berth whatif drain node-3") || !strings.Contains(out, "--from") || strings.Contains(out, "kubectl-berth ") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := run(t, nil, "completion", "bash"); err != nil || !strings.Contains(out, "__complete") {
		t.Errorf("completion: %v, %d bytes", err, len(out))
	}
}
