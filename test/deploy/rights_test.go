package deploy

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
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

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-scheduler/berth/internal/certs"
	gocluster "github.com/berth-scheduler/berth/internal/cluster"
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
	all := of(objects, "ClusterRole")
	for name, o := range of(objects, "Role") {
		if all[name] != nil {
			t.Fatalf("there are a Role and a ClusterRole named %s", name)
		}
		all[name] = o
	}
	for name, o := range all {
		var role rbacv1.ClusterRole // a Role has the same rules
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
	for _, kind := range []string{"ClusterRoleBinding", "RoleBinding"} {
		for _, o := range of(objects, kind) {
			var binding rbacv1.ClusterRoleBinding
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &binding); err != nil {
				t.Fatal(err)
			}
			for _, s := range binding.Subjects {
				if s.Kind == rbacv1.ServiceAccountKind {
					accounts[s.Name] = append(accounts[s.Name], roles[binding.RoleRef.Name]...)
				}
			}
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
		"--feature-gates=WatchList=false,GenericWorkload=true", // clients fall back to lists, as with older API servers
		"--runtime-config=scheduling.k8s.io/v1alpha2=true",
	}})

	// 1. Every object, strictly, and a pod of every workload under the namespace's Pod Security.
	for _, overlay := range overlays {
		objects := kustomize(t, overlay)
		c.apply(t, objects...)
		if got := c.makesPods(t, objects); got != 7 {
			t.Errorf("%s: there are %d workloads, want etcd with its job, and five roles", overlay, got)
		}
		// It would have gone away by now: what a Job runs cannot be changed.
		if err := c.Client().BatchV1().Jobs(namespace).Delete(within(t), "etcd-init", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}); err != nil {
			t.Fatal(err)
		}
	}
	monitors := podMonitors(t, render(t, monitored))
	for _, o := range of(render(t, monitored), "PodMonitor") {
		c.apply(t, o)
	}
	if t.Failed() {
		t.FailNow()
	}

	// 2. Berth with the command lines of the manifests, and a token of the binder's account.
	objects := kustomize(t, "default-scheduler")
	b := startBerth(t, c, objects)
	b.awaitReady(t)
	b.scrape(t, monitors["berth"].Spec)
	b.helmTest(t)

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
		p.Spec.SchedulerName, p.Spec.PriorityClassName = corev1.DefaultSchedulerName, priorityClass
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
	if _, err := client.SchedulingV1alpha2().PodGroups("default").Create(within(t), &schedulingv1alpha2.PodGroup{
		ObjectMeta: metav1.ObjectMeta{Name: "pair"},
		Spec: schedulingv1alpha2.PodGroupSpec{SchedulingPolicy: schedulingv1alpha2.PodGroupSchedulingPolicy{
			Gang: &schedulingv1alpha2.GangSchedulingPolicy{MinCount: 2},
		}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pair-0", "pair-1"} {
		p := pod(name, "10m", "")
		p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("pair")}
		create(p)
	}
	bound("pair-1")
	// People may ask the gateway what RBAC lets them, and nobody else may.
	for _, name := range []string{"reader", "scraper", "stranger"} {
		if _, err := client.CoreV1().ServiceAccounts("default").Create(within(t), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	c.mayGet(t, "reader", "/berth/status")
	c.mayGet(t, "scraper", "/metrics")
	if err := b.status(within(t), c.token(t, "default", "reader")); err != nil {
		t.Errorf("the reader: %v", err)
	}
	if err := b.status(within(t), c.token(t, "default", "stranger")); err == nil || !strings.Contains(err.Error(), "may not") {
		t.Errorf("the stranger: %v, want an error that says what it may not", err)
	}
	for path, want := range map[string]map[string]string{
		"/metrics": {"scraper": "200 OK", "reader": "403 Forbidden", "": "401 Unauthorized"},
		"/configz": {"scraper": "403 Forbidden", "stranger": "403 Forbidden"},
	} {
		for account, want := range want {
			token := ""
			if account != "" {
				token = c.token(t, "default", account)
			}
			if got := ask(within(t), b.client(t, "", "gateway"), "https://"+b.metrics["gateway"]+path, token); got != want {
				t.Errorf("%q gets %s of the gateway: %s, want %s", account, path, got, want)
			}
		}
	}
	c.setLateClasses(t)
	await(t, "the binder to have used all its rights", func(ctx context.Context) error {
		// A pod that somebody else binds at the same time is a conflict, after which the binder looks at the pod.
		name := fmt.Sprintf("race-%d", time.Now().UnixNano())
		create(pod(name, "10m", ""))
		_ = client.CoreV1().Pods("default").Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Target: corev1.ObjectReference{Kind: "Node", Name: "node-00000"},
		}, metav1.CreateOptions{}) // whoever comes first
		// So is a volume, or a claim, that somebody else writes while it is bound.
		if err := c.raceForVolumes(ctx, pod("with-claims-"+name, "10m", "")); err != nil {
			return err
		}
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
// seldom to wait for. It follows PodGroups of Coscheduling, too.
func (c *cluster) repeatReport(t *testing.T, pod string) {
	t.Helper()
	var later atomic.Int64 // nanoseconds
	s, err := kube.New(kube.Config{
		Kubeconfig: c.kubeconfigOf(t, namespace, "berth-binder"), SchedulerNames: []string{corev1.DefaultSchedulerName},
		Now:          func() time.Time { return time.Now().Add(time.Duration(later.Load())) },
		Coscheduling: map[string]bool{corev1.DefaultSchedulerName: true}, // as no configuration here has it
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.ServeCoscheduling(within(t)); err != nil {
		t.Fatal(err)
	}
	r := sourcetest.Record(t, s).Synced()
	if err := c.CreateCoschedulingGroup(within(t), "default", "group", 2); err != nil {
		t.Fatal(err)
	}
	key := gocluster.ObjectKey{Kind: gocluster.PodGroupKind, Namespace: "default", Name: gocluster.CoschedulingGroup("group")}
	r.Await("a PodGroup of Coscheduling, by a watch", func(v sourcetest.View) bool { return v.Objects[key] != nil })
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

// mayGet lets a service account of the default namespace get a path, and waits until the API server knows.
func (c *cluster) mayGet(t *testing.T, account, path string) {
	t.Helper()
	rbac := c.Client().RbacV1()
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "of-" + account},
		Rules:      []rbacv1.PolicyRule{{NonResourceURLs: []string{path}, Verbs: []string{"get"}}},
	}
	if _, err := rbac.ClusterRoles().Create(within(t), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: account}},
	}
	if _, err := rbac.ClusterRoleBindings().Create(within(t), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:                  "system:serviceaccount:default:" + account,
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: "get"},
	}}
	await(t, account+" to be allowed "+path, func(ctx context.Context) error {
		said, err := c.Client().AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err == nil && !said.Status.Allowed {
			err = errors.New("not allowed: " + said.Status.Reason)
		}
		return err
	})
}

// lacks returns an error that names what of want is not in have.
func lacks(want, have []right) error {
	missing := slices.DeleteFunc(slices.Clone(want), func(r right) bool { return slices.Contains(have, r) })
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("%q", missing)
}

// makesPods creates a pod of each workload's template, as its controller would, in a dry run. It returns how many workloads there are.
func (c *cluster) makesPods(t *testing.T, objects []*unstructured.Unstructured) (workloads int) {
	t.Helper()
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
	return workloads
}

// berth is every role as a process, with the command line of its Deployment.
type berth struct {
	binary  string
	dir     string // with the certificates
	server  string // the gateway's address
	roles   map[string]*kubetest.Process
	ready   map[string][]string // the command of the readiness probe, by role
	live    map[string]string   // the URL of the liveness probe
	metrics map[string]string   // where operators and scrapers are answered
}

func startBerth(t *testing.T, c *cluster, objects []*unstructured.Unstructured) *berth {
	t.Helper()
	dir := t.TempDir()
	b := &berth{
		binary: filepath.Join(dir, "berth"), dir: dir, roles: map[string]*kubetest.Process{},
		ready: map[string][]string{}, live: map[string]string{}, metrics: map[string]string{},
	}
	buildBerth(t, b.binary)
	deployments := of(objects, "Deployment")
	names := slices.Sorted(maps.Keys(deployments))
	b.makeCertificates(t, objects)
	etcd := b.startEtcd(t, of(objects, "StatefulSet")["etcd"])
	defer b.initEtcd(t, of(objects, "Job")["etcd-init"], etcd) // roles that run already are not disturbed
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
		replace := append(append(b.secret(name), filesOf(t, objects, spec)...), "$(POD_NAME)", name+"-0", "$(POD_IP)", "127.0.0.1", "$(ETCD_ENDPOINTS)", etcd, "/berth", b.binary)
		at := make(map[string]string) // addresses by the names of ports
		for i, p := range spec.Containers[0].Ports {
			at[p.Name] = "127.0.0.1:" + ports[i]
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
			kubeconfig := c.kubeconfigOf(t, namespace, spec.ServiceAccountName)
			for _, flag := range map[string][]string{"binder": {"kubeconfig"}, "gateway": {"authentication-kubeconfig", "metrics-authentication-kubeconfig"}}[name] {
				args = append(args, "--"+flag+"="+kubeconfig)
			}
		}
		if name == "binder" {
			args = append(args, "--pod-max-in-unschedulable-pods-duration=1s") // so that a report comes again
		}
		for _, arg := range spec.Containers[0].ReadinessProbe.Exec.Command {
			b.ready[name] = append(b.ready[name], as.Replace(arg))
		}
		live := spec.Containers[0].LivenessProbe.HTTPGet
		b.live[name] = strings.ToLower(string(live.Scheme)) + "://" + at[live.Port.StrVal] + live.Path
		b.metrics[name] = at["metrics"]
		if name == "gateway" {
			b.server = at["grpc"]
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

// buildBerth builds berth as a file.
func buildBerth(t *testing.T, file string) {
	t.Helper()
	buildIn(t, "../..", "./cmd/berth", file)
}

// buildIn builds a program of a module as a file.
func buildIn(t *testing.T, module, program, file string) {
	t.Helper()
	build := exec.Command("go", "build", "-C", module, "-o", file, program)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", program, err, out)
	}
}

// makeCertificates makes what cert-manager would: a key pair for each Certificate, with the names that it says. Those that people and
// clients of etcd know by host have the address besides.
func (b *berth) makeCertificates(t *testing.T, objects []*unstructured.Unstructured) {
	t.Helper()
	for name, o := range of(objects, "Certificate") {
		spec := o.Object["spec"].(map[string]any)
		role := spec["commonName"].(string)
		if isCA, _ := spec["isCA"].(bool); isCA {
			continue
		}
		if diff := cmp.Diff(spec["uris"], []any{"spiffe://berth/" + role}); diff != "" || spec["secretName"] != "berth-"+role+"-tls" {
			t.Errorf("%s is of %q, with the secret %v: %s", name, role, spec["secretName"], diff)
		}
		hosts, _, err := unstructured.NestedStringSlice(spec, "dnsNames")
		if err != nil {
			t.Fatal(err)
		}
		if role == "gateway" || role == "etcd" {
			hosts = append(hosts, "127.0.0.1")
		}
		if _, err := certs.Make(certs.Request{
			Dir: b.dir, Roles: []string{role}, Hosts: hosts, Known: []string{role}, Callers: []string{role}, Now: time.Now(), CALife: time.Hour, Life: time.Hour,
		}); err != nil {
			t.Fatal(err)
		}
	}
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
		if got := ask(ctx, http.DefaultClient, "http://127.0.0.1:"+ports[2]+probe.Path, ""); got != "200 OK" {
			return errors.New(got)
		}
		return nil
	})
	// That a stranger is refused is the certificate's doing: the authority is known here. Who may read metrics is one to etcd. A role is
	// a client and no more: as a peer it would have all that etcd has, whatever etcd's users may do.
	const none, bad, ok = "certificate required", "bad certificate", "200 OK"
	for owner, want := range map[string]struct{ client, peer string }{
		"": {none, none}, "metrics": {bad, bad}, "operator": {bad, bad}, "etcd": {ok, ok},
		"binder": {ok, bad}, "queue": {ok, bad}, "filter-worker": {ok, bad}, "score-worker": {ok, bad}, "gateway": {ok, bad},
	} {
		for url, want := range map[string]string{client + "/version": want.client, peer + "/version": want.peer, peer + "/members": want.peer} {
			if got := ask(within(t), b.client(t, owner, "127.0.0.1"), url, ""); !strings.Contains(got, want) {
				t.Errorf("the certificate of %q gets %s: %s, want %s", owner, url, got, want)
			}
		}
	}
	return client
}

// initEtcd runs the job that says who may write what in etcd, twice, as it is run again with each version.
func (b *berth) initEtcd(t *testing.T, object *unstructured.Unstructured, etcd string) {
	t.Helper()
	var job batchv1.Job
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &job); err != nil {
		t.Fatal(err)
	}
	as := strings.NewReplacer(b.secret("etcd")...)
	var args []string
	for _, arg := range job.Spec.Template.Spec.Containers[0].Args {
		if strings.HasPrefix(arg, "--etcd-endpoints=") {
			arg = "--etcd-endpoints=" + etcd
		}
		args = append(args, as.Replace(arg))
	}
	for _, want := range []string{"authentication switched on\n", ""} {
		cmd := exec.CommandContext(within(t), b.binary, args...)
		var log strings.Builder
		cmd.Stderr = &log
		out, err := cmd.Output()
		if err != nil || !strings.HasSuffix(string(out), want) || want == "" && len(out) > 0 {
			t.Fatalf("%v: %v\n%s%s", args, err, out, log.String())
		}
	}
}

// client returns a client that trusts Berth's authority and shows a certificate of an identity, or none. It wants servers to be known
// by a name.
func (b *berth) client(t *testing.T, identity, server string) *http.Client {
	t.Helper()
	ca, err := os.ReadFile(filepath.Join(b.dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: server}
	config.RootCAs.AppendCertsFromPEM(ca)
	if identity != "" {
		pair, err := tls.LoadX509KeyPair(filepath.Join(b.dir, identity+".crt"), filepath.Join(b.dir, identity+".key"))
		if err != nil {
			t.Fatal(err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
}

// ask returns the status that a URL answers with, or why it does not. The token may be empty.
func ask(ctx context.Context, client *http.Client, url, token string) string {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err.Error()
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	if err != nil {
		return err.Error()
	}
	response.Body.Close()
	return response.Status
}

// awaitReady waits until the probes of every Deployment succeed.
func (b *berth) awaitReady(t *testing.T) {
	t.Helper()
	// As the kubelet asks: without a certificate, and whatever the server's is.
	kubelet := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	for name, probe := range b.ready {
		await(t, name+" to be ready", func(ctx context.Context) error {
			out, err := exec.CommandContext(ctx, probe[0], probe[1:]...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%v: %w: %s", probe, err, out)
			}
			return nil
		})
		if got := ask(within(t), kubelet, b.live[name], ""); got != "200 OK" {
			t.Errorf("the liveness probe of %s, %s: %s", name, b.live[name], got)
		}
	}
}

// podMonitors returns the PodMonitors by name. What their kind does not have is an error: the API server of the test would take it.
func podMonitors(t *testing.T, objects []*unstructured.Unstructured) map[string]*monitoringv1.PodMonitor {
	t.Helper()
	monitors := make(map[string]*monitoringv1.PodMonitor)
	for name, o := range of(objects, "PodMonitor") {
		monitors[name] = new(monitoringv1.PodMonitor)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, monitors[name], true); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if len(monitors[name].Spec.PodMetricsEndpoints) != 1 {
			t.Fatalf("%s has %d endpoints, want one", name, len(monitors[name].Spec.PodMetricsEndpoints))
		}
	}
	return monitors
}

// scrape asks every role for its metrics as a PodMonitor says, and for what the same certificate may not get; the operator's may.
func (b *berth) scrape(t *testing.T, monitor monitoringv1.PodMonitorSpec) {
	t.Helper()
	endpoint := monitor.PodMetricsEndpoints[0]
	config := endpoint.TLSConfig
	from := config.CA.Secret.Name
	if config.Cert.Secret.Name != from || config.KeySecret.Name != from || config.CA.Secret.Key != "ca.crt" || config.Cert.Secret.Key != "tls.crt" || config.KeySecret.Key != "tls.key" {
		t.Errorf("the keys are not those of one secret that cert-manager makes: %+v", config)
	}
	identity := strings.TrimSuffix(strings.TrimPrefix(from, "berth-"), "-tls")
	selector, err := metav1.LabelSelectorAsSelector(&monitor.Selector)
	if err != nil {
		t.Fatal(err)
	}
	if *endpoint.Port != "metrics" || selector.Matches(labels.Set{"app.kubernetes.io/part-of": "berth", "app.kubernetes.io/name": "etcd"}) {
		t.Errorf("port %s, selector %v: etcd's port of that name has no TLS", *endpoint.Port, selector)
	}
	scraper, operator := b.client(t, identity, *config.ServerName), b.client(t, "operator", *config.ServerName)
	for name, address := range b.metrics {
		if !selector.Matches(labels.Set{"app.kubernetes.io/part-of": "berth", "app.kubernetes.io/name": name}) {
			t.Errorf("%s is not selected by %v", name, selector)
		}
		url := endpoint.Scheme.String() + "://" + address
		for _, c := range []struct {
			client     *http.Client
			path, want string
		}{{scraper, "/metrics", "200 OK"}, {scraper, "/configz", "403 Forbidden"}, {operator, "/configz", "200 OK"}} {
			if got := ask(within(t), c.client, url+c.path, ""); got != c.want {
				t.Errorf("get %s of %s: %s, want %s", c.path, name, got, c.want)
			}
		}
	}
}

// helmTest runs what helm test has a pod run, with the certificate that it mounts.
func (b *berth) helmTest(t *testing.T) {
	t.Helper()
	r, err := helmAll(1, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range of(r.hooks, "Pod") {
		var pod corev1.Pod
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, &pod, true); err != nil {
			t.Fatal(err)
		}
		owner := ""
		for _, v := range pod.Spec.Volumes {
			owner = strings.TrimSuffix(strings.TrimPrefix(v.Secret.SecretName, "berth-"), "-tls")
		}
		as := strings.NewReplacer(append(b.secret(owner), "gateway.berth.svc:7070", b.server)...)
		args := make([]string, 0, len(pod.Spec.Containers[0].Args))
		for _, arg := range pod.Spec.Containers[0].Args {
			args = append(args, as.Replace(arg))
		}
		out, err := exec.CommandContext(within(t), b.binary, args...).CombinedOutput()
		if want := map[string]string{"test-ready": "SERVING\n", "test-placed": "berth version"}[name]; err != nil || want == "" || !strings.HasPrefix(string(out), want) {
			t.Errorf("%s, %q: %v, %s, want %q", name, args, err, out, want)
		}
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

// The classes of claims that wait for a consumer: volumes of the one are there, and of the other provisioned.
const (
	thereClass = "there"
	madeClass  = "made"
)

func (c *cluster) setLateClasses(t *testing.T) {
	t.Helper()
	for class, provisioner := range map[string]string{thereClass: "kubernetes.io/no-provisioner", madeClass: "csi.example.com"} {
		_, err := c.Client().StorageV1().StorageClasses().Create(within(t), &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: provisioner, VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// raceForVolumes makes a pod with a claim of each class, and a volume, and then writes to these again and again, as they are bound.
func (c *cluster) raceForVolumes(ctx context.Context, pod *corev1.Pod) error {
	core, once := c.Client().CoreV1(), []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	pv, err := core.PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: once, StorageClassName: thereClass,
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/v"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	pv.Status.Phase = corev1.VolumeAvailable
	if _, err := core.PersistentVolumes().UpdateStatus(ctx, pv, metav1.UpdateOptions{}); err != nil {
		return err
	}
	for _, class := range []string{thereClass, madeClass} {
		claim := &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name + class},
			Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: &class, AccessModes: once, Resources: corev1.VolumeResourceRequirements{Requests: size}},
		}
		if _, err := core.PersistentVolumeClaims("default").Create(ctx, claim, metav1.CreateOptions{}); err != nil {
			return err
		}
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: class, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
		}})
	}
	if _, err := core.Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return err
	}
	for i := range 200 {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"a":"%d"}}}`, i)
		_, err := core.PersistentVolumes().Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err == nil {
			_, err = core.PersistentVolumeClaims("default").Patch(ctx, pod.Name+madeClass, types.MergePatchType, patch, metav1.PatchOptions{})
		}
		if err != nil {
			return err
		}
	}
	return nil
}
