package deploy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

// installPage is where each command of a block that is marked "sh run" is one that this package runs.
const installPage = "../../docs/install.md"

// kubernetes is the release of the programs that are run.
const kubernetes = "v1.36.3"

// command is a line of such a block, and what it is to print, if the page says that.
type command struct{ line, prints string }

// commandsOf returns the commands of a page, in order.
func commandsOf(t *testing.T, page string) (commands []command) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?ms)^ *```sh run$(.*?)^ *```$").FindAllStringSubmatch(string(text), -1) {
		for line := range strings.Lines(block[1]) {
			line, prints, _ := strings.Cut(strings.TrimSpace(line), "    # ")
			if line != "" {
				commands = append(commands, command{line, prints})
			}
		}
	}
	return commands
}

// site is a control-plane node without a kubelet: an API server, and what kubeadm writes to /etc/kubernetes.
type site struct {
	*cluster
	etc  string // in the place of /etc/kubernetes
	work string // where commands run: as the top of the repository, as far as they read it
	bin  string // the programs that they call
	// kubeconfig is what they reach the API server by.
	kubeconfig string
}

func newSite(t *testing.T) *site {
	t.Helper()
	programs, err := kubetest.Build(within(t), kubetest.Kubeadm, kubetest.Kubectl, kubetest.KubeScheduler)
	if err != nil {
		t.Fatal(err)
	}
	helm, err := kubetest.Build(t.Context(), kubetest.Helm) // minutes, the first time
	if err != nil {
		t.Fatal(err)
	}
	s := &site{etc: t.TempDir(), work: t.TempDir(), bin: t.TempDir()}
	buildBerth(t, filepath.Join(s.bin, "berth"))
	for name, program := range map[string]string{
		"kubeadm": programs[kubetest.Kubeadm], "kubectl": programs[kubetest.Kubectl], "kube-scheduler": programs[kubetest.KubeScheduler], "helm": helm[kubetest.Helm],
	} {
		if err := os.Symlink(program, filepath.Join(s.bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	deploy, err := filepath.Abs(deployDir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(deploy, filepath.Join(s.work, "deploy")); err != nil {
		t.Fatal(err)
	}
	kubeadm := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(within(t), filepath.Join(s.bin, "kubeadm"), append(args, "--kubernetes-version="+kubernetes, "--cert-dir="+filepath.Join(s.etc, "pki"))...)
		cmd.Env = append(os.Environ(), "KUBEADM_INIT_DRYRUN_DIR="+filepath.Join(s.etc, "manifests"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("kubeadm %q: %v\n%s", args, err, out)
		}
	}
	if err := os.Mkdir(filepath.Join(s.etc, "manifests"), 0o755); err != nil {
		t.Fatal(err)
	}
	kubeadm("init", "phase", "certs", "ca")
	s.cluster = startCluster(t, kubetest.Options{Authorization: "RBAC", APIServerFlags: []string{"--client-ca-file=" + filepath.Join(s.etc, "pki", "ca.crt")}})
	s.kubeconfig = s.named(t)
	kubeadm("init", "phase", "kubeconfig", "scheduler", "--kubeconfig-dir="+s.etc, "--apiserver-advertise-address=192.0.2.1") // it takes none of loopback
	kubeadm("init", "phase", "control-plane", "scheduler", "--dry-run")
	theirs, err := clientcmd.LoadFromFile(s.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(s.path("scheduler.conf"))
	if err != nil {
		t.Fatal(err)
	}
	for _, to := range config.Clusters {
		to.CertificateAuthorityData, to.CertificateAuthority, to.Server = nil, theirs.Clusters["kubetest"].CertificateAuthority, s.URL()
	}
	if err := clientcmd.WriteToFile(*config, s.path("scheduler.conf")); err != nil {
		t.Fatal(err)
	}
	await(t, "the kinds of others to be served", func(context.Context) error {
		s.discover(t)
		for kind, in := range foreign {
			if _, err := s.mapper.RESTMapping(in.WithKind(kind).GroupKind(), in.Version); err != nil {
				return err
			}
		}
		return nil
	})
	return s
}

// named serves the API server under the version that it has, and returns a kubeconfig for that: it is built without knowing it, and Helm asks it whether
// it is new enough for a chart.
func (s *site) named(t *testing.T) (kubeconfig string) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	to, err := url.Parse(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Transport: transport, FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/version" {
			major, rest, _ := strings.Cut(strings.TrimPrefix(kubernetes, "v"), ".")
			minor, _, _ := strings.Cut(rest, ".")
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(version.Info{Major: major, Minor: minor, GitVersion: kubernetes})
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	as := clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"named": {Server: server.URL}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"named": {}}, Contexts: map[string]*clientcmdapi.Context{"named": {Cluster: "named", AuthInfo: "named"}},
		CurrentContext: "named",
	}
	if err := clientcmd.WriteToFile(as, kubeconfig); err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

func (s *site) path(name string) string { return filepath.Join(s.etc, name) }

// run runs a line of a shell, and returns what it has printed.
func (s *site) run(t *testing.T, line string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := exec.CommandContext(within(t), "bash", "-euo", "pipefail", "-c", strings.ReplaceAll(line, "/etc/kubernetes", s.etc))
	cmd.Dir = s.work
	cmd.Env = append(os.Environ(), "PATH="+s.bin+":"+os.Getenv("PATH"), "HOME="+s.work, "KUBECONFIG="+s.kubeconfig)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

func TestTheCommandsOfTheInstallPageRun(t *testing.T) {
	s := newSite(t)
	if err := s.CreateNodes(within(t), 1, kubetest.PlainNode); err != nil {
		t.Fatal(err)
	}
	if out, errs, err := s.run(t, "helm lint deploy/helm/berth --strict"); err != nil {
		t.Errorf("helm lint: %v\n%s%s", err, out, errs)
	}
	ran := 0
	before := map[string]func(){
		// The API server looks after policies once a second.
		"kubectl --namespace shop run try": func() { s.awaitAssigned(t) },
		// What the page says of the old kube-scheduler until then, of the one with both names, and of the renamed one.
		"mv /etc/kubernetes/kube-scheduler.yaml.own": func() {
			s.schedules(t, "the kube-scheduler of kubeadm", s.staticPod(t), corev1.DefaultSchedulerName, "kube-scheduler")
		},
		"cp deploy/own-scheduler/kubeadm.yaml": func() {
			for _, name := range []string{corev1.DefaultSchedulerName, "kube-scheduler"} {
				s.schedules(t, "the kube-scheduler with both names", s.staticPod(t), name, "berth")
			}
			s.holds(t, "kube-scheduler")
		},
		"mv /etc/kubernetes/kube-scheduler.yaml.before": func() {
			s.schedules(t, "the renamed kube-scheduler", s.staticPod(t), "kube-scheduler", corev1.DefaultSchedulerName)
			s.holds(t, "berth-own-scheduler")
		},
	}
	after := map[string]func(){
		"kubectl label namespace cert-manager berth.dev/own-scheduler=true":                                       func() { s.ownScheduler(t) },
		"kubectl delete namespace berth":                                                                          func() { s.finalize(t, namespace) }, // which a controller would
		"helm upgrade berth deploy/helm/berth --namespace berth --reset-then-reuse-values --set assignNamespaces": func() { s.neverAssigned(t) },
		"helm install berth deploy/helm/berth --namespace berth --set image":                                      func() { s.takesPods(t) },
	}
	hook := func(hooks map[string]func(), line string) {
		for prefix, do := range hooks {
			if strings.HasPrefix(line, prefix) {
				do()
				delete(hooks, prefix)
			}
		}
	}
	for _, c := range commandsOf(t, installPage) {
		hook(before, c.line)
		out, errs, err := s.run(t, c.line)
		if err != nil {
			t.Fatalf("%s: %v\n%s%s", c.line, err, out, errs)
		}
		if c.prints != "" && strings.TrimSpace(out) != c.prints {
			t.Errorf("%s prints %q, and the page says %q", c.line, out, c.prints)
		}
		t.Logf("%s\n%s", c.line, strings.TrimSpace(out))
		ran++
		hook(after, c.line)
	}
	for _, hooks := range []map[string]func(){before, after} {
		for prefix := range hooks {
			t.Errorf("the page has no command %s…", prefix)
		}
	}
	if ran < 30 {
		t.Errorf("ran %d commands, want at least 30", ran)
	}
	s.schedules(t, "the kube-scheduler of kubeadm, back", s.staticPod(t), corev1.DefaultSchedulerName, "kube-scheduler")
	s.schedules(t, "the renamed kube-scheduler of k3s with SQLite", s.k3sScheduler(t), "kube-scheduler", corev1.DefaultSchedulerName)
	s.schedules(t, "Berth as the service of k3s", s.k3sService(t), corev1.DefaultSchedulerName, "kube-scheduler")
}

// Chart and program are of one release of Helm.
func TestTheHelmThatIsRunIsTheOneWhoseLibraryRenders(t *testing.T) {
	versions, err := kubetest.Versions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	library, err := exec.CommandContext(within(t), "go", "list", "-m", "-f", "{{.Version}}", "helm.sh/helm/v3").Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(string(library)); got != versions[kubetest.Helm] {
		t.Errorf("the library is %s, and the program %s", got, versions[kubetest.Helm])
	}
}

// create makes a pod, for a dry run or in earnest, and returns it as the API server took it.
func (s *site) create(ctx context.Context, namespace, name, scheduler string, o metav1.CreateOptions) (*corev1.Pod, error) {
	pod := kubetest.PlainPod(0)
	pod.Name, pod.GenerateName, pod.Namespace = name, "", namespace
	pod.Spec.SchedulerName = scheduler
	return s.Client().CoreV1().Pods(namespace).Create(ctx, pod, o)
}

// awaitAssigned waits until pods of a labelled namespace are Berth's.
func (s *site) awaitAssigned(t *testing.T) {
	t.Helper()
	await(t, "the policy to count", func(ctx context.Context) error {
		pod, err := s.create(ctx, "shop", "probe", "", metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && pod.Spec.SchedulerName != "berth" {
			err = fmt.Errorf("its pods are %s's", pod.Spec.SchedulerName)
		}
		return err
	})
	// Pods that name a scheduler stay its, and so do those that have a node.
	pod, err := s.create(within(t), "shop", "probe", "other", metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil || pod.Spec.SchedulerName != "other" {
		t.Errorf("a pod that names another scheduler is %s's, %v", pod.Spec.SchedulerName, err)
	}
	claiming := kubetest.PlainPod(0)
	claiming.Name, claiming.GenerateName, claiming.Namespace, claiming.Spec.SchedulerName = "probe", "", "shop", ""
	claiming.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("gpu")}}
	pod, err = s.Client().CoreV1().Pods("shop").Create(within(t), claiming, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil || pod.Spec.SchedulerName != corev1.DefaultSchedulerName || len(pod.Spec.ResourceClaims) != 1 {
		t.Errorf("a pod with a resource claim, which Berth does not place, is %s's with %v, %v", pod.Spec.SchedulerName, pod.Spec.ResourceClaims, err)
	}
}

// neverAssigned labels the namespaces whose pods are never to be Berth's, and another one by which it is seen that the policy counts.
func (s *site) neverAssigned(t *testing.T) {
	t.Helper()
	for _, name := range []string{"shop", namespace, metav1.NamespaceSystem} {
		if _, err := s.Client().CoreV1().Namespaces().Patch(within(t), name, applyPatch, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q,"labels":{"berth.dev/schedule":"true"}}}`, name),
			metav1.PatchOptions{FieldManager: "never-assigned", Force: new(true)}); err != nil {
			t.Fatal(err)
		}
	}
	s.awaitAssigned(t)
	for _, name := range []string{namespace, metav1.NamespaceSystem} {
		pod, err := s.restricted(within(t), name)
		if err != nil {
			t.Errorf("a pod of %s is refused: %v", name, err)
		} else if pod.Spec.SchedulerName != corev1.DefaultSchedulerName {
			t.Errorf("pods of %s are %s's: after a loss of Berth none of them would be placed", name, pod.Spec.SchedulerName)
		}
	}
	for _, name := range []string{"shop", metav1.NamespaceSystem} {
		if _, err := s.Client().CoreV1().Namespaces().Patch(within(t), name, applyPatch, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, name),
			metav1.PatchOptions{FieldManager: "never-assigned", Force: new(true)}); err != nil {
			t.Fatal(err)
		}
	}
}

// ownScheduler fails unless pods of kube-system and of labelled namespaces that name no scheduler are the renamed kube-scheduler's, and no others.
func (s *site) ownScheduler(t *testing.T) {
	t.Helper()
	for _, c := range []struct{ namespace, names, want string }{
		{metav1.NamespaceSystem, "", "kube-scheduler"},
		{"cert-manager", "", "kube-scheduler"},
		{"cert-manager", "berth", "berth"},
		{"default", "", corev1.DefaultSchedulerName},
	} {
		await(t, "a pod of "+c.namespace+" that names "+c.names, func(ctx context.Context) error {
			pod, err := s.create(ctx, c.namespace, "probe", c.names, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err == nil && pod.Spec.SchedulerName != c.want {
				err = fmt.Errorf("it is %s's, want %s", pod.Spec.SchedulerName, c.want)
			}
			return err
		})
	}
}

// restricted makes, in a dry run, a pod that the strictest Pod Security takes, and that names no scheduler.
func (s *site) restricted(ctx context.Context, namespace string) (*corev1.Pod, error) {
	pod := kubetest.PlainPod(0)
	pod.Name, pod.GenerateName, pod.Namespace, pod.Spec.SchedulerName = "probe", "", namespace, ""
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}
	for i := range pod.Spec.Containers {
		pod.Spec.Containers[i].SecurityContext = &corev1.SecurityContext{AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}
	}
	return s.Client().CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

// takesPods fails unless the namespace takes a pod of each workload that is there, and those of helm test.
func (s *site) takesPods(t *testing.T) {
	t.Helper()
	r, err := helmAll(1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.makesPods(t, r.objects); got != 7 {
		t.Errorf("there are %d workloads, want 7", got)
	}
	s.apply(t, r.hooks...)
	for name, o := range of(r.hooks, "Pod") {
		if err := s.Client().CoreV1().Pods(o.GetNamespace()).Delete(within(t), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
	if len(r.hooks) != 3 {
		t.Errorf("there are %d objects of helm test, want two pods and their policy", len(r.hooks))
	}
}

// finalize ends a namespace of which nothing is left.
func (s *site) finalize(t *testing.T, name string) {
	t.Helper()
	ns, err := s.Client().CoreV1().Namespaces().Get(within(t), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ns.Spec.Finalizers = nil
	if _, err := s.Client().CoreV1().Namespaces().Finalize(within(t), ns, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// staticPod returns the command of kube-scheduler's static pod, as the files in /etc/kubernetes are now.
func (s *site) staticPod(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(s.path("manifests/kube-scheduler.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	pod := new(corev1.Pod)
	if err := yaml.UnmarshalStrict(text, pod); err != nil {
		t.Fatal(err)
	}
	c := pod.Spec.Containers[0]
	for _, arg := range c.Command {
		// What it reads is mounted, and from where it is.
		if _, file, found := strings.Cut(arg, "="); found && strings.HasPrefix(file, "/etc/kubernetes/") {
			if !mounted(pod, file) {
				t.Errorf("the static pod does not mount what it reads: %s", arg)
			}
		}
	}
	return s.on(t, c.Command)
}

// mounted reports whether the first container of a pod has a file of the host at the same path.
func mounted(pod *corev1.Pod, file string) bool {
	for _, m := range pod.Spec.Containers[0].VolumeMounts {
		for _, v := range pod.Spec.Volumes {
			if m.MountPath == file && m.Name == v.Name && v.HostPath != nil && v.HostPath.Path == file {
				return true
			}
		}
	}
	return false
}

// on returns a command with the paths of this site, with a copy of each file that it names.
func (s *site) on(t *testing.T, command []string) []string {
	t.Helper()
	conf := s.path("scheduler.conf")
	here := strings.NewReplacer("/etc/kubernetes", s.etc, "/var/lib/rancher/k3s/server/cred/scheduler.kubeconfig", conf)
	var args []string
	for _, arg := range command {
		arg = here.Replace(arg)
		if file, found := strings.CutPrefix(arg, "--config="); found {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			arg = "--config=" + filepath.Join(t.TempDir(), "config.yaml")
			if err := os.WriteFile(strings.TrimPrefix(arg, "--config="), []byte(here.Replace(string(text))), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		args = append(args, arg)
	}
	args[0] = filepath.Join(s.bin, filepath.Base(args[0]))
	return args
}

// k3sScheduler returns kube-scheduler's command in a server of k3s' with SQLite, which has the configuration of the page.
func (s *site) k3sScheduler(t *testing.T) []string {
	t.Helper()
	conf := "/var/lib/rancher/k3s/server/cred/scheduler.kubeconfig"
	return s.on(t, []string{
		"kube-scheduler", "--authentication-kubeconfig=" + conf, "--authorization-kubeconfig=" + conf, "--bind-address=127.0.0.1", "--kubeconfig=" + conf,
		"--leader-elect=false", "--profiling=false", "--config=" + filepath.Join(deployDir, "k3s", "own-scheduler.yaml"),
	})
}

// k3sService returns the command of the service of Berth for k3s.
func (s *site) k3sService(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(deployDir, "k3s", "berth.service"))
	if err != nil {
		t.Fatal(err)
	}
	_, line, found := strings.Cut(string(text), "\nExecStart=")
	if !found {
		t.Fatal("the service starts nothing")
	}
	line, _, _ = strings.Cut(line, "\n")
	return s.on(t, strings.Fields(line))
}

// schedules runs a scheduler until it has placed a pod of one name, and fails if it places one of another name that was there before.
func (s *site) schedules(t *testing.T, who string, command []string, name, not string) {
	t.Helper()
	ports, err := kubetest.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range []string{not, name} { // in this order: it has seen the other one when it places this
		if _, err := s.create(within(t), "default", "of-"+of, of, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	log := filepath.Join(t.TempDir(), "log")
	p, err := kubetest.StartProcess(who, log, append(command, "--secure-port="+ports[0])...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		p.Stop()
		if t.Failed() {
			t.Logf("%s, %q:\n%s", who, command, p.LogTail(4<<10))
		}
	}()
	node := func(ctx context.Context, of string) (string, error) {
		pod, err := s.Client().CoreV1().Pods("default").Get(ctx, "of-"+of, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		return pod.Spec.NodeName, nil
	}
	await(t, who+" to place a pod of "+name, func(ctx context.Context) error {
		at, err := node(ctx, name)
		if err == nil && at == "" {
			err = errors.New("it has no node")
		}
		return err
	})
	if at, err := node(within(t), not); err != nil || at != "" {
		t.Errorf("%s has placed a pod of %s on %q, %v", who, not, at, err)
	}
	for _, of := range []string{name, not} {
		err := s.Client().CoreV1().Pods("default").Delete(within(t), "of-"+of, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
}

// holds fails unless somebody has held a Lease of kube-system's.
func (s *site) holds(t *testing.T, name string) {
	t.Helper()
	lease, err := s.Client().CoordinationV1().Leases(metav1.NamespaceSystem).Get(within(t), name, metav1.GetOptions{})
	if err != nil || lease.Spec.AcquireTime == nil {
		t.Errorf("nobody has held the Lease %s: %v", name, err)
	}
}
