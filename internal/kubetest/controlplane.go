package kubetest

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// adminToken is the bearer token of the only user, a member of system:masters.
const adminToken = "berth-test-admin"

// Options says how a control plane differs from the default one. The zero value is good for most tests.
type Options struct {
	// Program is the API server, as Build knows it. Empty means APIServer; an older one is built the first time, which takes minutes.
	Program string
	// Authorization is the API server's --authorization-mode. Empty means AlwaysAllow.
	Authorization string
	// APIServerFlags are added to the API server's command line, after the others; the last of a repeated flag counts.
	APIServerFlags []string
	// Like is a control plane that has been stopped: this one begins with what it has stored, to the byte, with the same uids, resource versions and
	// times. Nil: with nothing.
	Like *ControlPlane
}

// PodGroups are flags of an API server of Kubernetes 1.36 that serves PodGroups, and lets pods name theirs. The first is one of kube-scheduler too.
var PodGroups = []string{
	"--feature-gates=GenericWorkload=true,GangScheduling=true,TopologyAwareWorkloadScheduling=true,WorkloadAwarePreemption=true",
	"--runtime-config=scheduling.k8s.io/v1alpha2=true",
}

// ControlPlane is a running etcd and kube-apiserver. Its methods may be called concurrently, except those that stop and
// start things.
type ControlPlane struct {
	dir    string
	opts   Options
	bin    string // the API server's program
	port   string // empty until the first start has found one
	etcd   *EtcdServer
	api    *Process
	client *kubernetes.Clientset
}

// Start builds what is missing, starts etcd and kube-apiserver on free loopback ports with their state and logs in dir,
// which must be empty or new, and returns when the API server is ready and the namespace default exists. Ctx bounds the
// start only; Stop ends both.
func Start(ctx context.Context, dir string, o Options) (*ControlPlane, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("start control plane: %w", err)
	}
	program := cmp.Or(o.Program, APIServer)
	bin, err := Build(ctx, Etcd, program)
	if err != nil {
		return nil, err
	}
	c := &ControlPlane{dir: dir, opts: o, bin: bin[program]}
	if err := c.writeCredentials(); err != nil {
		return nil, fmt.Errorf("write credentials: %w", err)
	}
	var like *EtcdServer
	if o.Like != nil {
		like = o.Like.etcd
	}
	if c.etcd, err = startEtcd(ctx, filepath.Join(dir, "etcd"), like); err != nil {
		return nil, err
	}
	err = onFreePorts(1, func(ports []string) (*Process, error) {
		c.port = ports[0]
		var err error
		c.api, err = c.startAPIServer(ctx)
		return c.api, err
	})
	if err != nil {
		c.etcd.Stop()
		return nil, err
	}
	return c, nil
}

// StartT is Start for a test: it fails the test on error, stops the control plane when the test ends, and shows the
// end of the servers' logs if the test failed.
func StartT(t testing.TB, o Options) *ControlPlane {
	t.Helper()
	began := time.Now()
	if _, err := Build(t.Context(), Etcd, cmp.Or(o.Program, APIServer)); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Logf("built the control plane in %v; it is cached now", took.Round(time.Second))
	}
	c, err := Start(t.Context(), t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Stop()
		if t.Failed() {
			t.Logf("end of the servers' logs:\n%s", c.LogTails())
		}
	})
	return c
}

// Kubeconfig returns the path of a kubeconfig file whose user may do everything.
func (c *ControlPlane) Kubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

// URL returns where the API server listens.
func (c *ControlPlane) URL() string { return "https://127.0.0.1:" + c.port }

// Client returns a client of the API server, as NewClient makes it.
func (c *ControlPlane) Client() *kubernetes.Clientset { return c.client }

// APIServer returns the API server's process: another one after each StartAPIServer.
func (c *ControlPlane) APIServer() *Process { return c.api }

// Etcd returns the API server's etcd.
func (c *ControlPlane) Etcd() *EtcdServer { return c.etcd }

// StopAPIServer ends the API server as an operator would; etcd and what it stores stay.
func (c *ControlPlane) StopAPIServer() { c.api.Stop() }

// StartAPIServer starts a stopped API server again, at the same URL, and returns when it is ready.
func (c *ControlPlane) StartAPIServer() error {
	if !c.api.ended() {
		return errors.New("start kube-apiserver: it is running")
	}
	api, err := c.startAPIServer(context.Background())
	if api != nil {
		c.api = api
	}
	if err != nil {
		c.api.Kill()
	}
	return err
}

// PauseAPIServer stops the API server from answering without closing its connections, until ResumeAPIServer.
func (c *ControlPlane) PauseAPIServer() error { return c.api.Pause() }

// ResumeAPIServer undoes PauseAPIServer.
func (c *ControlPlane) ResumeAPIServer() error { return c.api.Resume() }

// Stop ends both servers at once. What they stored is left in the directory.
func (c *ControlPlane) Stop() {
	c.api.Kill()
	c.etcd.Stop()
}

// LogTails returns the ends of the logs of both servers.
func (c *ControlPlane) LogTails() string {
	return fmt.Sprintf("etcd:\n%s\nkube-apiserver:\n%s", c.etcd.proc.LogTail(2048), c.api.LogTail(4096))
}

// startAPIServer starts the API server on c.port and waits until it serves. If it returns both a process and an error,
// the process is the caller's to kill.
func (c *ControlPlane) startAPIServer(ctx context.Context) (*Process, error) {
	if err := c.writeKubeconfig(); err != nil {
		return nil, fmt.Errorf("write kubeconfig: %w", err)
	}
	authorization := c.opts.Authorization
	if authorization == "" {
		authorization = "AlwaysAllow"
	}
	key := filepath.Join(c.dir, "sa.key")
	args := append([]string{c.bin,
		"--etcd-servers", c.etcd.Endpoint(),
		"--secure-port", c.port, "--bind-address", "127.0.0.1",
		// A machine without a network has only the loopback address, which the kubernetes service cannot have as its
		// endpoint; nothing here reads that service.
		"--advertise-address", "127.0.0.1", "--endpoint-reconciler-type", "none",
		"--cert-dir", filepath.Join(c.dir, "certs"),
		"--service-account-issuer", "https://kubernetes.default.svc",
		"--service-account-key-file", key, "--service-account-signing-key-file", key,
		"--service-cluster-ip-range", "10.96.0.0/16",
		"--token-auth-file", filepath.Join(c.dir, "tokens.csv"),
		"--authorization-mode", authorization,
		// No controller makes the service account that ServiceAccount asks each pod to have, or removes the not-ready
		// taint that TaintNodesByCondition puts on each new node.
		"--disable-admission-plugins", "ServiceAccount,TaintNodesByCondition",
		// What is tested and measured are the schedulers: the server shall not throttle them.
		"--max-requests-inflight", "4000", "--max-mutating-requests-inflight", "4000", "--enable-priority-and-fairness=false",
	}, c.opts.APIServerFlags...)
	proc, err := StartProcess(APIServer, filepath.Join(c.dir, "kube-apiserver-"+c.port+".log"), args...)
	if err != nil {
		return nil, err
	}
	return proc, awaitReady(ctx, proc, func() error {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		// The certificate authority in the kubeconfig is the file that the API server writes before it listens.
		client, err := NewClient(c.Kubeconfig())
		if err != nil {
			return err
		}
		if _, err := client.RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err != nil {
			return err
		}
		// A controller inside the API server makes the namespace, sometimes after it is ready.
		if _, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{}); err != nil {
			return err
		}
		c.client = client
		return nil
	})
}

// writeCredentials makes the key that signs service account tokens, and the list of users.
func (c *ControlPlane) writeCredentials() error {
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return err
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	block := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	if err := os.WriteFile(filepath.Join(c.dir, "sa.key"), pem.EncodeToMemory(block), 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.dir, "tokens.csv"), []byte(adminToken+",admin,admin,system:masters\n"), 0o600)
}

// writeKubeconfig writes the file that Kubeconfig names.
func (c *ControlPlane) writeKubeconfig() error {
	return os.WriteFile(c.Kubeconfig(), fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: kubetest
  cluster:
    server: %s
    certificate-authority: %s
users:
- name: admin
  user:
    token: %s
contexts:
- name: admin
  context:
    cluster: kubetest
    user: admin
current-context: admin
`, c.URL(), filepath.Join(c.dir, "certs", "apiserver.crt"), adminToken), 0o600)
}

// NewClient returns a client that speaks protobuf and does not limit its own rate.
func NewClient(kubeconfig string) (*kubernetes.Clientset, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return client, nil
}
