//go:build extenders

package extenders

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// The schedulers.
const (
	theirs = "kube-scheduler"
	ours   = "berth"
)

// auditBindings has an API server write down who binds pods.
const auditBindings = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    verbs: [create]
    resources: [{group: "", resources: [pods/binding]}]
  - level: None
`

// scene is a cluster and an extender.
type scene struct {
	nodes []*corev1.Node
	pods  []*corev1.Pod // in the order in which they are to be tried
	// differs are pods that Berth places otherwise than kube-scheduler, as docs/coming-from-kube-scheduler.md says, and where.
	differs map[string]string
	// extender starts the extender for a cluster and returns its URL.
	extender func(t *testing.T, cp *kubetest.ControlPlane) string
	// config is its entry in the configuration, URL standing for its address.
	config string
	binds  bool
	shows  func(*corev1.Pod) string // what the extender has written into a pod that it has bound; nil: nothing
}

// stored makes a scene's objects and returns the control plane, stopped.
func (s *scene) stored(t *testing.T) *kubetest.ControlPlane {
	t.Helper()
	cp := kubetest.StartT(t, kubetest.Options{})
	for i := range s.pods {
		if _, err := cp.Client().SchedulingV1().PriorityClasses().Create(t.Context(), &schedulingv1.PriorityClass{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("turn-%03d", i)}, Value: int32(1000 - i),
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		s.pods[i].Spec.PriorityClassName = fmt.Sprintf("turn-%03d", i)
	}
	if err := cp.CreateNodes(t.Context(), len(s.nodes), func(i int) *corev1.Node { return s.nodes[i] }); err != nil {
		t.Fatal(err)
	}
	for _, pod := range s.pods {
		berthtest.Await(t, berthtest.Patience, "a pod to be made", func(ctx context.Context) error {
			_, err := cp.Client().CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, pod, metav1.CreateOptions{})
			if err != nil && !apierrors.IsForbidden(err) { // the API server may not have seen the class of its priority yet
				t.Fatal(err)
			}
			return err
		})
	}
	cp.Stop()
	return cp
}

// run is a scheduler at work on a copy of a scene's cluster.
type run struct {
	who   string
	cp    *kubetest.ControlPlane
	proxy *proxy
	url   string // of the proxy
	log   string // its file
	audit string // the file with who has bound pods
}

// start starts a scheduler, kube-scheduler or Berth, with an extender of its own, on a copy of a cluster. All ends with the test.
func (s *scene) start(t *testing.T, who string, like *kubetest.ControlPlane) *run {
	t.Helper()
	dir := t.TempDir()
	policy, config := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "config.yaml")
	r := &run{who: who, log: filepath.Join(dir, who+".log"), audit: filepath.Join(dir, "audit.log")}
	if err := os.WriteFile(policy, []byte(auditBindings), 0o600); err != nil {
		t.Fatal(err)
	}
	r.cp = kubetest.StartT(t, kubetest.Options{Like: like, APIServerFlags: []string{
		"--audit-policy-file=" + policy, "--audit-log-path=" + r.audit, "--audit-log-mode=blocking",
	}})
	r.proxy = &proxy{extender: s.extender(t, r.cp), binds: s.binds}
	r.url = r.proxy.serve(t)
	if err := os.WriteFile(config, fmt.Appendf(nil, `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: %q}
leaderElection: {leaderElect: false}
parallelism: 1
extenders:
- %s
`, r.cp.Kubeconfig(), strings.ReplaceAll(s.config, "URL", r.url)), 0o600); err != nil {
		t.Fatal(err)
	}
	var args []string
	switch who {
	case theirs:
		programs, err := kubetest.Build(t.Context(), kubetest.KubeScheduler)
		if err != nil {
			t.Fatal(err)
		}
		args = []string{programs[kubetest.KubeScheduler], "--config", config, "--secure-port", "0", "--vmodule=schedule_one=10", "--feature-gates=WatchListClient=false"}
	case ours:
		args = []string{"env", "KUBE_FEATURE_WatchListClient=false", berthtest.Binary(t), "all", "--config", config, "--kubeconfig", r.cp.Kubeconfig(),
			"--data-dir", filepath.Join(dir, "berth"), "--listen", "127.0.0.1:0", "--http-listen", "", "--shards", "1"}
	}
	startProcess(t, who, r.log, args...)
	return r
}

// startProcess starts a process that ends with the test, which shows the end of its log if it fails.
func startProcess(t *testing.T, name, log string, args ...string) {
	t.Helper()
	p, err := kubetest.StartProcess(name, log, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill() // gpushare ends in no other way
		if t.Failed() {
			t.Logf("%s:\n%s", name, p.LogTail(6<<10))
		}
	})
}

// pods returns the pods of the cluster by name.
func (r *run) pods(ctx context.Context) (map[string]*corev1.Pod, error) {
	list, err := r.cp.Client().CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := make(map[string]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		out[list.Items[i].Name] = &list.Items[i]
	}
	return out, nil
}

// settled waits until each pod has a node or has been told why it has none, and returns them by name.
func (r *run) settled(t *testing.T) (pods map[string]*corev1.Pod) {
	t.Helper()
	berthtest.Await(t, berthtest.Patience, r.who+" to have tried each pod", func(ctx context.Context) (err error) {
		if pods, err = r.pods(ctx); err != nil {
			return err
		}
		for name, pod := range pods {
			if pod.Spec.NodeName == "" && whyNot(pod) == "" {
				return fmt.Errorf("pod %s has no node", name)
			}
		}
		return nil
	})
	return pods
}

// whyNot is what a pod without a node is told.
func whyNot(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c.Reason + ": " + c.Message
		}
	}
	return ""
}

// binders returns the user agents that have bound each pod that has a node.
func (r *run) binders(t *testing.T) (by map[string][]string) {
	t.Helper()
	berthtest.Await(t, berthtest.Patience, "the audit log to have who has bound the pods", func(ctx context.Context) (err error) {
		pods, err := r.pods(ctx)
		if err != nil {
			return err
		}
		if by, err = r.audited(); err != nil {
			t.Fatal(err)
		}
		for name, pod := range pods {
			if pod.Spec.NodeName != "" && len(by[name]) == 0 {
				return fmt.Errorf("%s is bound by nobody", name)
			}
		}
		return nil
	})
	return by
}

// audited returns what the audit log has so far.
func (r *run) audited() (map[string][]string, error) {
	log, err := os.ReadFile(r.audit)
	if err != nil {
		return nil, err
	}
	by := make(map[string][]string)
	for line := range strings.Lines(string(log)) {
		if !strings.HasSuffix(line, "\n") { // it is being written
			break
		}
		var event struct {
			UserAgent      string
			ObjectRef      struct{ Name string }
			ResponseStatus struct{ Code int }
		}
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			return nil, fmt.Errorf("%s: %w", line, err)
		}
		if event.ResponseStatus.Code == http.StatusCreated {
			agent, _, _ := strings.Cut(event.UserAgent, "/")
			by[event.ObjectRef.Name] = append(by[event.ObjectRef.Name], agent)
		}
	}
	return by, nil
}

var total = regexp.MustCompile(`"Calculated node's final score for pod" pod="default/([^"]+)" node="([^"]+)" score=(\d+)`)

// totals returns what kube-scheduler says that nodes have scored for a pod when it was last tried, by pod and node.
func (r *run) totals(t *testing.T) map[string]map[string]int {
	t.Helper()
	log, err := os.ReadFile(r.log)
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]map[string]int)
	for _, m := range total.FindAllStringSubmatch(string(log), -1) {
		if out[m[1]] == nil {
			out[m[1]] = make(map[string]int)
		}
		if out[m[1]][m[2]], err = strconv.Atoi(m[3]); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// node returns a node that is ready, of so many CPUs and GiB.
func node(name string, cpus, memory int, change func(*corev1.Node)) *corev1.Node {
	n := kubetest.PlainNode(0)
	n.Name = name
	n.Labels = map[string]string{corev1.LabelHostname: name}
	n.Status.Capacity = corev1.ResourceList{
		corev1.ResourceCPU: *resource.NewQuantity(int64(cpus), resource.DecimalSI), corev1.ResourceMemory: *resource.NewQuantity(int64(memory)<<30, resource.BinarySI),
		corev1.ResourcePods: resource.MustParse("110"),
	}
	change(n)
	n.Status.Allocatable = n.Status.Capacity
	return n
}

// pod returns a pod that requests so much CPU and memory.
func pod(name, cpu, memory string, change func(*corev1.Pod)) *corev1.Pod {
	p := kubetest.PlainPod(0)
	p.Name = name
	p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{}
	change(p)
	return p
}
