package system

import (
	"bytes"
	"context"
	"crypto/tls"
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

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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

// TestThreeStaticPodsPlaceEachPodOnce has Berth in the static pods of three control-plane nodes, with nothing on disk: all are ready, one places, and when that one is killed, or stops for
// longer than the Lease lasts, another goes on. Only the ports are changed, since the three are on one machine.
func TestThreeStaticPodsPlaceEachPodOnce(t *testing.T) {
	threeStaticPods(t, threePods{ends: []string{"kill", "stop", "pause"}})
}

// TestThreeStaticPodsWithPeersAreOneBerth has the same with a folder on each node, and the three as peers. One that has lost its folder takes its place again.
func TestThreeStaticPodsWithPeersAreOneBerth(t *testing.T) {
	pairs, err := kubetest.FreePairs(3)
	if err != nil {
		t.Fatal(err)
	}
	peers := make([]string, len(pairs))
	for i, port := range pairs {
		peers[i] = "127.0.0.1:" + port
	}
	dir := t.TempDir()
	certs := filepath.Join(dir, "certs")
	if out, err := exec.CommandContext(t.Context(), berthtest.Binary(t), "certs", "--dir", certs, "--role", "peer", "--host", "127.0.0.1").CombinedOutput(); err != nil {
		t.Fatalf("berth certs: %v\n%s", err, out)
	}
	data := func(i int) string { return filepath.Join(dir, fmt.Sprintf("data-%d", i)) }
	threeStaticPods(t, threePods{
		ends: []string{"kill", "stop", "pause", "lose"}, majority: true,
		args: func(i int) []string {
			return []string{
				"--data-dir=" + data(i), "--peers=" + strings.Join(peers, ","), "--peer-address=" + peers[i],
				"--peer-cert=" + filepath.Join(certs, "peer.crt"), "--peer-key=" + filepath.Join(certs, "peer.key"), "--peer-ca=" + filepath.Join(certs, "ca.crt"),
			}
		},
		lose: func(i int) error { return os.RemoveAll(data(i)) },
	})
}

// threePods say what three static pods are given besides, and how those of them end that place pods: as kill and stop say, pause, and lose, which is kill and the loss of what lose takes away.
type threePods struct {
	ends     []string
	majority bool // one alone does nothing but say that it is alive
	args     func(i int) []string
	lose     func(i int) error
}

// threeStaticPods has the one of three static pods of Berth that places pods end, in several ways, with pods arriving, and says after how long another has placed them.
func threeStaticPods(t *testing.T, how threePods) {
	const (
		perTurn  = 60
		patience = 5 * time.Minute
	)
	k := newKubeadm(t)
	pod := k.staticPod()
	cp := kubetest.StartT(t, k.plane())
	k.kubeconfig(cp)
	ctx, cancel := context.WithTimeout(t.Context(), 8*patience)
	defer cancel()
	pods := perTurn
	for _, end := range how.ends {
		pods += perTurn
		if end == "pause" { // whose pods of the next turn come when the process is back
			pods += perTurn
		}
	}
	if err := cp.CreateNodes(ctx, pods/4+1, kubetest.PlainNode); err != nil { // which are full at the end: room that is given away twice shows
		t.Fatal(err)
	}
	watcher, err := kubetest.Watch(ctx, cp.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	seen := &turns{bound: make(map[string]int64)}
	seen.follow(t, cp)

	ports, err := kubetest.FreePorts(3)
	if err != nil {
		t.Fatal(err)
	}
	program, dir, started := asKubeScheduler(t), t.TempDir(), 0
	ready := func(i int, p *kubetest.Process) {
		t.Helper()
		berthtest.Await(t, patience, p.Name()+" to be ready", func(ctx context.Context) error { return probe(ctx, pod.Spec.Containers[0].ReadinessProbe, ports[i]) })
	}
	start := func(i int) *kubetest.Process {
		t.Helper()
		started++
		command := append(k.command(pod, program), "--secure-port="+ports[i])
		if how.args != nil {
			command = append(command, how.args(i)...)
		}
		p, err := kubetest.StartProcess(fmt.Sprintf("berth-%d", i), filepath.Join(dir, fmt.Sprintf("%d.log", started)), command...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			p.Kill()
			if t.Failed() {
				t.Logf("%s:\n%s", p.Name(), p.LogTail(6<<10))
			}
		})
		return p
	}
	begin := func(i int) *kubetest.Process {
		t.Helper()
		p := start(i)
		ready(i, p)
		return p
	}
	processes := []*kubetest.Process{start(0)} // none of which may need another to be ready first
	if how.majority {                          // nor to be alive: kubelets end what is not
		for what, p := range map[string]*corev1.Probe{"startup": pod.Spec.Containers[0].StartupProbe, "liveness": pod.Spec.Containers[0].LivenessProbe} {
			berthtest.Await(t, patience, "one alone to pass its "+what+" probe", func(ctx context.Context) error { return probe(ctx, p, ports[0]) })
		}
		if probe(ctx, pod.Spec.Containers[0].ReadinessProbe, ports[0]) == nil {
			t.Error("one alone is ready, though etcd has no majority")
		}
	}
	processes = append(processes, start(1), start(2))
	for i, p := range processes {
		ready(i, p)
	}
	// leader returns which process holds the Lease: each says so itself, to those who may know.
	leader := func() int {
		t.Helper()
		found := -1
		berthtest.Await(t, patience, "one process to hold the Lease", func(ctx context.Context) error {
			found = -1
			for i, p := range processes {
				if p == nil {
					continue
				}
				if leads, err := k.leads(ctx, ports[i]); err != nil {
					return err
				} else if leads && found >= 0 {
					if still, err := k.leads(ctx, ports[found]); err == nil && still { // it did before the other one did, and does
						t.Fatalf("%d and %d say that they hold the Lease", found, i)
					}
					found = i
				} else if leads {
					found = i
				}
			}
			if found < 0 {
				return errors.New("none does")
			}
			return nil
		})
		return found
	}
	turn := 0
	create := func() {
		t.Helper()
		if err := cp.CreatePods(ctx, perTurn, func(i int) *corev1.Pod {
			p := kubetest.PlainPod(turn*perTurn + i)
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("1")
			return p
		}); err != nil {
			t.Fatal(err)
		}
		turn++
	}
	placed := func() {
		t.Helper()
		berthtest.Await(t, patience, fmt.Sprintf("%d pods to be bound", turn*perTurn), func(context.Context) error {
			if got := seen.count(); got < turn*perTurn {
				return fmt.Errorf("%d are", got)
			}
			return nil
		})
	}

	create()
	placed()
	for _, end := range how.ends {
		i := leader()
		p := processes[i]
		create() // while it places these, or before
		at := time.Now()
		switch end {
		case "pause":
			if err := p.Pause(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = p.Resume() }() // it may have ended
		case "kill", "lose":
			p.Kill()
		default:
			p.Stop()
		}
		processes[i] = nil
		placed()
		t.Logf("%s: the pods that were created then are bound after %v", end, time.Since(at).Round(100*time.Millisecond))
		switch end {
		case "pause":
			create() // which wait when it is back
			if err := p.Resume(); err != nil {
				t.Fatal(err)
			}
			processes[i] = p
			placed()
		case "lose":
			if err := how.lose(i); err != nil {
				t.Fatal(err)
			}
			fallthrough
		default:
			processes[i] = begin(i)
		}
		leader() // one alone, also when all are back
	}
	checkCluster(t, cp)
	if twice := watcher.BoundTwice(); len(twice) > 0 {
		t.Errorf("bound twice: %v", twice)
	}
	for i, p := range processes {
		ready(i, p)
	}
}

// leads reports whether a process says that it holds the Lease.
func (k *kubeadm) leads(ctx context.Context, port string) (bool, error) {
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://127.0.0.1:"+port+"/metrics", nil)
	if err != nil {
		return false, err
	}
	r.Header.Set("Authorization", "Bearer berth-test-admin")
	response, err := client.Do(r)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("/metrics: %s: %s", response.Status, bytes.TrimSpace(text))
	}
	return strings.Contains(string(text), "leader_election_master_status{name=\"kube-scheduler\"} 1\n"), err
}
