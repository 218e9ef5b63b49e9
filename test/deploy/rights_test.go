package deploy

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-scheduler/berth/internal/certs"
	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/source/kube"
	"github.com/berth-scheduler/berth/internal/source/sourcetest"
)

const (
	namespace  = "berth"
	applyPatch = types.ApplyPatchType
)

// auditPolicy writes down what service accounts of Berth ask for.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    userGroups: ["system:serviceaccounts:berth"]
  - level: None
`

// right is a verb on a resource, as "create pods/binding".
type right string

func rightOf(verb, group, resource, subresource string) right {
	if group != "" {
		resource += "." + group
	}
	if subresource != "" {
		resource += "/" + subresource
	}
	return right(verb + " " + resource)
}

// granted returns the rights of service accounts, by name, and fails where a role has a wildcard.
func granted(t *testing.T, objects []*unstructured.Unstructured) map[string][]right {
	t.Helper()
	roles := make(map[string][]right)
	for name, o := range of(objects, "ClusterRole") {
		var role rbacv1.ClusterRole
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &role); err != nil {
			t.Fatal(err)
		}
		for _, rule := range role.Rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						if group == "*" || resource == "*" || verb == "*" {
							t.Errorf("%s has a wildcard", name)
						}
						resource, subresource, _ := strings.Cut(resource, "/")
						roles[name] = append(roles[name], rightOf(verb, group, resource, subresource))
					}
				}
			}
		}
		slices.Sort(roles[name])
	}
	accounts := make(map[string][]right)
	for _, o := range of(objects, "ClusterRoleBinding") {
		var binding rbacv1.ClusterRoleBinding
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &binding); err != nil {
			t.Fatal(err)
		}
		for _, s := range binding.Subjects {
			accounts[s.Name] = append(accounts[s.Name], roles[binding.RoleRef.Name]...)
		}
	}
	return accounts
}

// used reads the audit log: the rights that each service account has used, and what was refused to it.
func used(log string) (rights map[string][]right, refused []string, err error) {
	f, err := os.Open(log)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	rights = make(map[string][]right)
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event struct {
			Verb       string `json:"verb"`
			RequestURI string `json:"requestURI"`
			User       struct {
				Username string `json:"username"`
			} `json:"user"`
			ObjectRef *struct {
				Resource    string `json:"resource"`
				APIGroup    string `json:"apiGroup"`
				Subresource string `json:"subresource"`
			} `json:"objectRef"`
			ResponseStatus struct {
				Code int `json:"code"`
			} `json:"responseStatus"`
		}
		if json.Unmarshal(lines.Bytes(), &event) != nil {
			break // the last line, half written
		}
		account, ours := strings.CutPrefix(event.User.Username, "system:serviceaccount:"+namespace+":")
		if !ours {
			continue
		}
		if event.ObjectRef == nil {
			rights[account] = append(rights[account], right(event.Verb+" "+event.RequestURI))
			continue
		}
		r := rightOf(event.Verb, event.ObjectRef.APIGroup, event.ObjectRef.Resource, event.ObjectRef.Subresource)
		if event.ResponseStatus.Code == 403 {
			refused = append(refused, account+": "+string(r))
		}
		rights[account] = append(rights[account], r)
	}
	for account := range rights {
		slices.Sort(rights[account])
		rights[account] = slices.Compact(rights[account])
	}
	return rights, refused, nil
}

func TestAnAPIServerTakesEveryObjectAndBerthUsesExactlyTheRightsThatTheyGive(t *testing.T) {
	dir := t.TempDir()
	policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	c := startCluster(t, kubetest.Options{Authorization: "RBAC", APIServerFlags: []string{
		"--audit-policy-file=" + policy, "--audit-log-path=" + log, "--audit-log-mode=blocking",
		"--feature-gates=WatchList=false", // clients fall back to lists, as with older API servers
	}})

	// 1. Every object, strictly, and a pod of every workload under the namespace's Pod Security.
	for _, overlay := range overlays {
		objects := kustomize(t, overlay)
		c.apply(t, objects...)
		c.makesPods(t, objects)
	}
	if t.Failed() {
		t.FailNow()
	}

	// 2. Berth with the command lines of the manifests, and a token of the binder's account.
	objects := kustomize(t, "second-scheduler")
	b := startBerth(t, c, objects)
	b.awaitReady(t)

	// 3. All that a binder does: place, report, report again, preempt with a budget, and lose a race.
	client := c.Client()
	if err := c.CreateNodes(within(t), 4, kubetest.PlainNode); err != nil {
		t.Fatal(err)
	}
	if _, err := client.PolicyV1().PodDisruptionBudgets("default").Create(within(t), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "b"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.SchedulingV1().PriorityClasses().Create(within(t), &schedulingv1.PriorityClass{
		ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 1000,
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := func(name, cpu, priorityClass string) *corev1.Pod {
		p := kubetest.PlainPod(0)
		p.Name, p.GenerateName, p.Namespace = name, "", "default"
		p.Spec.SchedulerName, p.Spec.PriorityClassName = "berth", priorityClass
		p.Spec.TerminationGracePeriodSeconds = new(int64(0)) // no kubelet ends it
		p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse(cpu)
		return p
	}
	create := func(p *corev1.Pod) {
		t.Helper()
		if _, err := client.CoreV1().Pods("default").Create(within(t), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	bound := func(name string) {
		t.Helper()
		await(t, name+" to be bound", func(ctx context.Context) error {
			p, err := client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
			if err == nil && p.Spec.NodeName == "" {
				err = fmt.Errorf("it has no node; conditions %v", p.Status.Conditions)
			}
			return err
		})
	}
	for i := range 4 { // fill the nodes
		name := fmt.Sprintf("low-%d", i)
		create(pod(name, "3", ""))
		bound(name)
	}
	create(pod("huge", "100", "")) // fits nowhere, and is tried again and again
	create(pod("high", "3", "high"))
	bound("high")
	c.repeatReport(t, "huge")
	// People may ask the gateway what RBAC lets them, and nobody else may.
	for _, name := range []string{"reader", "stranger"} {
		if _, err := client.CoreV1().ServiceAccounts("default").Create(within(t), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	c.mayAskForStatus(t, "reader")
	if err := b.status(within(t), c.token(t, "default", "reader")); err != nil {
		t.Errorf("the reader: %v", err)
	}
	if err := b.status(within(t), c.token(t, "default", "stranger")); err == nil || !strings.Contains(err.Error(), "may not") {
		t.Errorf("the stranger: %v, want an error that says what it may not", err)
	}
	await(t, "the binder to have used all its rights", func(ctx context.Context) error {
		// A pod that somebody else binds at the same time is a conflict, after which the binder looks at the pod.
		name := fmt.Sprintf("race-%d", time.Now().UnixNano())
		create(pod(name, "10m", ""))
		_ = client.CoreV1().Pods("default").Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Target: corev1.ObjectReference{Kind: "Node", Name: "node-00000"},
		}, metav1.CreateOptions{}) // whoever comes first
		rights, _, err := used(log)
		if err != nil {
			return err
		}
		return lacks(granted(t, objects)["berth-binder"], rights["berth-binder"])
	})

	// 4. The sets are equal, and nothing was refused.
	b.stop()
	rights, refused, err := used(log)
	if err != nil {
		t.Fatal(err)
	}
	given := granted(t, objects)
	for account := range given {
		if err := lacks(given[account], rights[account]); err != nil {
			t.Errorf("%s may do what it never does: %v", account, err)
		}
	}
	for account := range rights {
		if err := lacks(rights[account], given[account]); err != nil {
			t.Errorf("%s does what it may not: %v", account, err)
		}
	}
	if len(refused) > 0 {
		t.Errorf("refused: %v", refused)
	}
	t.Logf("used: %v", rights)
}

// repeatReport reports a pod twice, six minutes apart, as the binder: an event is counted up every five minutes, which is too
// seldom to wait for.
func (c *cluster) repeatReport(t *testing.T, pod string) {
	t.Helper()
	var later atomic.Int64 // nanoseconds
	s, err := kube.New(kube.Config{
		Kubeconfig: c.kubeconfigOf(t, namespace, "berth-binder"), SchedulerNames: []string{"berth"},
		Now: func() time.Time { return time.Now().Add(time.Duration(later.Load())) },
	})
	if err != nil {
		t.Fatal(err)
	}
	sourcetest.Record(t, s).Synced()
	p, err := c.Client().CoreV1().Pods("default").Get(within(t), pod, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r := source.Report{UID: string(p.UID), Namespace: "default", Name: pod, Reason: corev1.PodReasonUnschedulable, Message: "it is huge"}
		if err := s.Unschedulable(within(t), r); err != nil {
			t.Error(err)
		}
		later.Add(int64(6 * time.Minute))
	}
}

// mayAskForStatus lets a service account of the default namespace ask a gateway for its status, which is a path to RBAC.
func (c *cluster) mayAskForStatus(t *testing.T, account string) {
	t.Helper()
	rbac := c.Client().RbacV1()
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "asks-for-status"},
		Rules:      []rbacv1.PolicyRule{{NonResourceURLs: []string{"/berth/status"}, Verbs: []string{"get"}}},
	}
	if _, err := rbac.ClusterRoles().Create(within(t), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: account + "-asks-for-status"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: account}},
	}
	if _, err := rbac.ClusterRoleBindings().Create(within(t), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// lacks returns an error that names what of want is not in have.
func lacks(want, have []right) error {
	missing := slices.DeleteFunc(slices.Clone(want), func(r right) bool { return slices.Contains(have, r) })
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("%q", missing)
}

// makesPods creates a pod of each workload's template, as its controller would, in a dry run.
func (c *cluster) makesPods(t *testing.T, objects []*unstructured.Unstructured) {
	t.Helper()
	workloads := 0
	for _, o := range objects {
		template, found, err := unstructured.NestedMap(o.Object, "spec", "template")
		if err != nil || !found {
			continue
		}
		workloads++
		var made corev1.PodTemplateSpec
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(template, &made); err != nil {
			t.Fatal(err)
		}
		pod := &corev1.Pod{ObjectMeta: made.ObjectMeta, Spec: made.Spec}
		pod.Namespace, pod.GenerateName = namespace, o.GetName()+"-"
		for _, claim := range pod.Spec.Containers[0].VolumeMounts {
			if claim.Name == "data" { // which the StatefulSet's claim becomes
				pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "data"})
			}
		}
		_, err = c.Client().CoreV1().Pods(namespace).Create(within(t), pod, metav1.CreateOptions{
			DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict,
		})
		if err != nil {
			t.Errorf("a pod of %s is refused: %v", o.GetName(), err)
		}
	}
	if workloads != 6 {
		t.Errorf("there are %d workloads, want etcd and five roles", workloads)
	}
}

// berth is every role as a process, with the command line of its Deployment.
type berth struct {
	binary string
	dir    string // with the certificates
	server string // the gateway's address
	roles  map[string]*kubetest.Process
	probes map[string][]string
}

func startBerth(t *testing.T, c *cluster, objects []*unstructured.Unstructured) *berth {
	t.Helper()
	dir := t.TempDir()
	b := &berth{binary: filepath.Join(dir, "berth"), dir: dir, roles: map[string]*kubetest.Process{}, probes: map[string][]string{}}
	build := exec.Command("go", "build", "-C", "../..", "-o", b.binary, "./cmd/berth")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build berth: %v\n%s", err, out)
	}
	deployments := of(objects, "Deployment")
	names := slices.Sorted(maps.Keys(deployments))
	if _, err := certs.Make(certs.Request{
		Dir: dir, Roles: append([]string{"etcd"}, names...), Hosts: []string{"127.0.0.1"}, Known: []string{"etcd", "gateway"},
		Now: time.Now(), CALife: time.Hour, Life: time.Hour,
	}); err != nil {
		t.Fatal(err)
	}
	etcd := b.startEtcd(t, of(objects, "StatefulSet")["etcd"])
	t.Cleanup(b.stop)
	for _, name := range names {
		var d appsv1.Deployment
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(deployments[name].Object, &d); err != nil {
			t.Fatal(err)
		}
		spec := d.Spec.Template.Spec
		ports, err := kubetest.FreePorts(3)
		if err != nil {
			t.Fatal(err)
		}
		// What the kubelet and a network would do: variables, the mounted secret, addresses.
		replace := append(b.secret(name), "$(POD_NAME)", name+"-0", "$(POD_IP)", "127.0.0.1", "$(ETCD_ENDPOINTS)", etcd, "/berth", b.binary)
		for i, p := range spec.Containers[0].Ports {
			replace = append(replace, fmt.Sprintf("0.0.0.0:%d", p.ContainerPort), "127.0.0.1:"+ports[i], fmt.Sprintf("127.0.0.1:%d", p.ContainerPort), "127.0.0.1:"+ports[i])
		}
		for _, e := range spec.Containers[0].Env {
			if e.Value != "" {
				replace = append(replace, "$("+e.Name+")", e.Value)
			}
		}
		as := strings.NewReplacer(replace...)
		args := []string{b.binary}
		for _, arg := range spec.Containers[0].Args {
			args = append(args, as.Replace(arg))
		}
		if *spec.AutomountServiceAccountToken {
			args = append(args, map[string]string{"binder": "--kubeconfig=", "gateway": "--authentication-kubeconfig="}[name]+
				c.kubeconfigOf(t, namespace, spec.ServiceAccountName))
		}
		if name == "binder" {
			args = append(args, "--pod-max-in-unschedulable-pods-duration=1s") // so that a report comes again
		}
		for _, arg := range spec.Containers[0].ReadinessProbe.Exec.Command {
			b.probes[name] = append(b.probes[name], as.Replace(arg))
		}
		if name == "gateway" {
			b.server = as.Replace("127.0.0.1:7070")
		}
		proc, err := kubetest.StartProcess(name, filepath.Join(dir, name+".log"), args...)
		if err != nil {
			t.Fatal(err)
		}
		b.roles[name] = proc
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%s:\n%s", name, proc.LogTail(4<<10))
			}
		})
	}
	return b
}

// secret is where a workload's mounted certificates are, as pairs of a path in its container and one here.
func (b *berth) secret(name string) []string {
	return []string{
		"/tls/ca.crt", filepath.Join(b.dir, "ca.crt"),
		"/tls/tls.crt", filepath.Join(b.dir, name+".crt"), "/tls/tls.key", filepath.Join(b.dir, name+".key"),
	}
}

// startEtcd starts one member of etcd with the command line of its StatefulSet, but for where it is and who its peers are,
// waits until its readiness probe succeeds, and returns its endpoint. It does not answer clients without a certificate.
func (b *berth) startEtcd(t *testing.T, object *unstructured.Unstructured) string {
	t.Helper()
	var set appsv1.StatefulSet
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &set); err != nil {
		t.Fatal(err)
	}
	programs, err := kubetest.Build(within(t), kubetest.Etcd)
	if err != nil {
		t.Fatal(err)
	}
	ports, err := kubetest.FreePorts(3)
	if err != nil {
		t.Fatal(err)
	}
	const host = "etcd-0.etcd.berth.svc"
	client, peer := "https://127.0.0.1:"+ports[0], "https://127.0.0.1:"+ports[1]
	as := strings.NewReplacer(append(b.secret("etcd"), "/var/lib/etcd", filepath.Join(b.dir, "etcd"),
		"https://0.0.0.0:2379", client, "https://"+host+":2379", client,
		"https://0.0.0.0:2380", peer, "https://"+host+":2380", peer, "http://0.0.0.0:2381", "http://127.0.0.1:"+ports[2])...)
	container := set.Spec.Template.Spec.Containers[0]
	args := []string{programs[container.Command[0]]}
	for _, arg := range container.Args {
		// The name is put in first, as the kubelet does, so that the addresses that have it in them are found.
		arg = as.Replace(strings.ReplaceAll(arg, "$(POD_NAME)", "etcd-0"))
		if cluster, ok := strings.CutPrefix(arg, "--initial-cluster="); ok {
			arg, _, _ = strings.Cut("--initial-cluster="+cluster, ",") // itself alone
		}
		args = append(args, arg)
	}
	proc, err := kubetest.StartProcess("etcd", filepath.Join(b.dir, "etcd.log"), args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		proc.Stop()
		if t.Failed() {
			t.Logf("etcd:\n%s", proc.LogTail(4<<10))
		}
	})
	probe := container.ReadinessProbe.HTTPGet
	await(t, "etcd to be ready", func(ctx context.Context) error {
		return get(ctx, http.DefaultClient, "http://127.0.0.1:"+ports[2]+probe.Path)
	})
	// That a stranger is refused is the certificate's doing: the authority is known here.
	ca, err := os.ReadFile(filepath.Join(b.dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(ca)
	stranger := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authorities}}}
	if err := get(within(t), stranger, client+"/version"); err == nil || !strings.Contains(err.Error(), "certificate required") {
		t.Errorf("a client without a certificate: %v, want to be refused for that", err)
	}
	return client
}

// get reports an error unless url answers 200.
func get(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("get %s: %s", url, response.Status)
	}
	return nil
}

// awaitReady waits until the readiness probe of every Deployment succeeds.
func (b *berth) awaitReady(t *testing.T) {
	t.Helper()
	for name, probe := range b.probes {
		await(t, name+" to be ready", func(ctx context.Context) error {
			out, err := exec.CommandContext(ctx, probe[0], probe[1:]...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%v: %w: %s", probe, err, out)
			}
			return nil
		})
	}
}

// stop ends every role. It may be called again.
func (b *berth) stop() {
	for _, p := range b.roles {
		p.Stop()
	}
}

// kubeconfigOf returns the path of a kubeconfig with a token of a service account.
func (c *cluster) kubeconfigOf(t *testing.T, namespace, account string) string {
	t.Helper()
	token := c.token(t, namespace, account)
	admin, err := os.ReadFile(c.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(admin)) {
		if at := strings.Index(line, "token:"); at >= 0 {
			line = line[:at] + "token: " + token + "\n"
		}
		lines = append(lines, line)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// token returns a token of a service account.
func (c *cluster) token(t *testing.T, namespace, account string) string {
	t.Helper()
	made, err := c.Client().CoreV1().ServiceAccounts(namespace).CreateToken(within(t), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made.Status.Token
}

// status asks the gateway for its status, as the owner of a token.
func (b *berth) status(ctx context.Context, token string) error {
	cmd := exec.CommandContext(ctx, b.binary, "get", "status", "--server="+b.server, "--tls-ca="+filepath.Join(b.dir, "ca.crt"))
	cmd.Env = append(os.Environ(), "BERTH_TOKEN="+token)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("get status: %w: %s", err, out)
	}
	return nil
}
