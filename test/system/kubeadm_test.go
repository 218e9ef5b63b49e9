package system

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// release is the release of Kubernetes whose kubeadm is run.
const release = "v1.36.3"

// kubeadm is a folder where kubeadm has written what it writes to /etc/kubernetes.
type kubeadm struct {
	t       *testing.T
	program string
	dir     string
}

func newKubeadm(t *testing.T) *kubeadm {
	t.Helper()
	programs, err := kubetest.Build(t.Context(), kubetest.Kubeadm)
	if err != nil {
		t.Fatal(err)
	}
	return &kubeadm{t: t, program: programs[kubetest.Kubeadm], dir: t.TempDir()}
}

// run runs kubeadm, which writes to the folder.
func (k *kubeadm) run(args ...string) {
	k.t.Helper()
	cmd := exec.CommandContext(k.t.Context(), k.program, append(args, "--cert-dir="+k.path("pki"))...)
	cmd.Env = append(os.Environ(), "KUBEADM_INIT_DRYRUN_DIR="+k.dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		k.t.Fatalf("kubeadm %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func (k *kubeadm) path(name string) string { return filepath.Join(k.dir, name) }

// plane makes an authority for callers, and returns what an API server needs to know of it.
func (k *kubeadm) plane() kubetest.Options {
	k.t.Helper()
	k.run("init", "phase", "certs", "ca", "--kubernetes-version="+release)
	return kubetest.Options{Authorization: "RBAC", APIServerFlags: []string{"--client-ca-file=" + k.path("pki/ca.crt")}}
}

// kubeconfig makes scheduler.conf, of an API server that has made its own certificate.
func (k *kubeadm) kubeconfig(cp *kubetest.ControlPlane) {
	k.t.Helper()
	k.run("init", "phase", "kubeconfig", "scheduler", "--kubernetes-version="+release, "--kubeconfig-dir="+k.dir, "--apiserver-advertise-address=192.0.2.1") // it takes none of loopback
	theirs, err := clientcmd.LoadFromFile(cp.Kubeconfig())
	if err != nil {
		k.t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(k.path("scheduler.conf"))
	if err != nil {
		k.t.Fatal(err)
	}
	for _, cluster := range config.Clusters {
		cluster.CertificateAuthorityData, cluster.CertificateAuthority = nil, theirs.Clusters["kubetest"].CertificateAuthority
		cluster.Server = cp.URL()
	}
	if err := clientcmd.WriteToFile(*config, k.path("scheduler.conf")); err != nil {
		k.t.Fatal(err)
	}
}

// staticPod returns kube-scheduler's static pod, as kubeadm writes it.
func (k *kubeadm) staticPod() *corev1.Pod {
	k.t.Helper()
	k.run("init", "phase", "control-plane", "scheduler", "--dry-run", "--kubernetes-version="+release)
	text, err := os.ReadFile(k.path("kube-scheduler.yaml"))
	if err != nil {
		k.t.Fatal(err)
	}
	pod := new(corev1.Pod)
	if err := yaml.UnmarshalStrict(text, pod); err != nil {
		k.t.Fatal(err)
	}
	return pod
}

// command returns the command of the pod with another program, and with the folder in the place of /etc/kubernetes.
func (k *kubeadm) command(pod *corev1.Pod, program string) []string {
	k.t.Helper()
	command := append([]string{program}, pod.Spec.Containers[0].Command[1:]...)
	for i, arg := range command {
		command[i] = strings.Replace(arg, "/etc/kubernetes", k.dir, 1)
	}
	return command
}

// asKubeScheduler returns the path of a program that is called kube-scheduler, and is Berth.
func asKubeScheduler(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kube-scheduler")
	if err := os.Symlink(berthtest.Binary(t), path); err != nil {
		t.Fatal(err)
	}
	return path
}

// probe asks as a kubelet does, which verifies no certificate.
func probe(ctx context.Context, p *corev1.Probe, port string) error {
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	get := p.HTTPGet
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s://%s:%s%s", strings.ToLower(string(get.Scheme)), get.Host, port, get.Path), nil)
	if err != nil {
		return err
	}
	response, err := client.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, bytes.TrimSpace(text))
	}
	return err
}

// TestKubeadmsStaticPodIsBerthsToo has kube-scheduler and Berth take turns in the static pod that kubeadm makes for kube-scheduler, of which only the program is
// changed, and the port, since other tests run on this machine: with kube-scheduler's user and rights, and nothing on disk.
func TestKubeadmsStaticPodIsBerthsToo(t *testing.T) {
	k := newKubeadm(t)
	pod := k.staticPod()
	container := &pod.Spec.Containers[0]
	ports, err := kubetest.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	const patience = 3 * time.Minute
	ready := func(ctx context.Context) error {
		for what, p := range map[string]*corev1.Probe{"startup": container.StartupProbe, "liveness": container.LivenessProbe, "readiness": container.ReadinessProbe} {
			if err := probe(ctx, p, ports[0]); err != nil {
				return fmt.Errorf("the %s probe fails: %w", what, err)
			}
		}
		return nil
	}
	takeTurns(t, swapping{
		plane: k.plane(), alone: true, ends: []string{"kill", "stop", "stop", "kill"},
		commands: func(cp *kubetest.ControlPlane, _ string) map[string][]string {
			k.kubeconfig(cp)
			port := "--secure-port=" + ports[0]
			return map[string][]string{
				theirs: append(k.command(pod, kubeScheduler(t)), port, "--kube-api-qps=1000", "--kube-api-burst=1000"),
				ours:   append(k.command(pod, asKubeScheduler(t)), port),
			}
		},
		begun: func(who string) { berthtest.Await(t, patience, who+" to pass its probes", ready) },
	})
}
