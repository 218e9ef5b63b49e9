package system

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

var (
	shadowNodes = flag.Int("shadow-nodes", 300, "nodes of the cluster that is followed")
	shadowPods  = flag.Int("shadow-pods", 600, "pods that kube-scheduler places meanwhile")
)

// auditAll has an API server write down who does what.
const auditAll = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
`

// mixedPod is the pod number i of many kinds: plain ones, of several sizes, such that spread over zones or hosts, keep away from each other, want to be near others, prefer nodes, tolerate taints, or
// have priorities.
func mixedPod(i int) *corev1.Pod {
	pod := kubetest.PlainPod(i)
	app := fmt.Sprintf("app-%d", i/100)
	pod.Labels = map[string]string{"app": app}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	term := func(key string) corev1.PodAffinityTerm {
		return corev1.PodAffinityTerm{LabelSelector: selector, TopologyKey: key}
	}
	requests := pod.Spec.Containers[0].Resources.Requests
	switch i / 100 % 8 {
	case 0:
		requests[corev1.ResourceCPU] = resource.MustParse(fmt.Sprintf("%dm", 50+i%7*50))
	case 1:
		pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: selector}}
	case 2:
		pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 2, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: selector}}
	case 3:
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term(corev1.LabelHostname)}}}
	case 4:
		pod.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 50, PodAffinityTerm: term(corev1.LabelTopologyZone)}}}}
	case 5:
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
			Weight: 30, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{kubetest.ZoneName(i % 3)}}}},
		}}}}
	case 6:
		pod.Spec.Tolerations = []corev1.Toleration{{Key: "some", Operator: corev1.TolerationOpExists}}
	case 7:
		requests[corev1.ResourceMemory] = resource.MustParse(fmt.Sprintf("%dMi", 100+i%5*300))
	}
	return pod
}

// TestTheShadowExplainsWhatKubeSchedulerDoes follows a real kube-scheduler, with rights to read alone, while it places pods of many kinds, and pods that fit nowhere. It explains what it sees, and
// writes nothing.
func TestTheShadowExplainsWhatKubeSchedulerDoes(t *testing.T) {
	const patience = 10 * time.Minute
	dir := t.TempDir()
	policy, audit := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	if err := os.WriteFile(policy, []byte(auditAll), 0o600); err != nil {
		t.Fatal(err)
	}
	cp := kubetest.StartT(t, kubetest.Options{Authorization: "RBAC", APIServerFlags: []string{"--audit-policy-file=" + policy, "--audit-log-path=" + audit, "--audit-log-mode=blocking"}})
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	// 1. Who follows may read what is placed, and what by.
	_, err := cp.Client().RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "shadow"}, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{"", "apps", "policy", "storage.k8s.io", "scheduling.k8s.io"}, Verbs: []string{"get", "list", "watch"}, Resources: []string{
			"nodes", "namespaces", "pods", "services", "replicationcontrollers", "replicasets", "statefulsets", "poddisruptionbudgets", "persistentvolumes", "persistentvolumeclaims",
			"storageclasses", "csinodes", "csidrivers", "csistoragecapacities", "volumeattachments", "podgroups",
		},
	}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = cp.Client().RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "shadow"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "shadow"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "shadow"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	as := with(t, cp.Kubeconfig(), "    token:", "    as: shadow\n    token:")
	if err := cp.CreateNodes(ctx, *shadowNodes, func(i int) *corev1.Node {
		node := kubetest.PlainNode(i)
		if i%20 == 0 {
			node.Spec.Taints = []corev1.Taint{{Key: "some", Value: "thing", Effect: corev1.TaintEffectNoSchedule}}
		}
		return node
	}); err != nil {
		t.Fatal(err)
	}
	scheduler, err := kubetest.StartProcess(theirs, filepath.Join(dir, "kube-scheduler.log"), kubeScheduler(t), "--kubeconfig", cp.Kubeconfig(), "--secure-port=0", "--kube-api-qps=1000", "--kube-api-burst=1000")
	if err != nil {
		t.Fatal(err)
	}
	defer scheduler.Stop()

	// 2. It is followed from when the cluster has been read.
	out, err := os.Create(filepath.Join(dir, "shadow.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	var log, peoplesLog strings.Builder
	cmd := exec.CommandContext(ctx, berthtest.Binary(t), "shadow", "--kubeconfig", as, "--every=1s", "-o", "json")
	cmd.Stdout, cmd.Stderr = out, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel() // which ends both, so that nobody writes any more
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("shadow:\n%s", &log)
		}
	}()
	var text strings.Builder
	people := exec.CommandContext(ctx, berthtest.Binary(t), "shadow", "--kubeconfig", as, "--every=1h", "--log-level=error")
	people.Stdout, people.Stderr = &text, &peoplesLog
	if err := people.Start(); err != nil {
		t.Fatal(err)
	}
	type report struct {
		Bound, Explained, Unknown, Unseen, Better, Elsewhere, Nowhere, Places, Same, Equal, OtherOrder, Sampled int
		Examples                                                                                                map[string][]map[string]any
		Waited, Choosing                                                                                        map[string]float64
	}
	read := func() (r report, err error) {
		text, err := os.ReadFile(out.Name())
		if err != nil {
			return r, err
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		if lines[len(lines)-1] == "" {
			return r, errors.New("it has said nothing yet")
		}
		return r, json.Unmarshal([]byte(lines[len(lines)-1]), &r)
	}
	berthtest.Await(t, patience, "the first report", func(context.Context) error { _, err := read(); return err })
	if err := cp.CreatePods(ctx, *shadowPods, mixedPod); err != nil {
		t.Fatal(err)
	}
	large := kubetest.PlainPod(*shadowPods)
	large.Name = "too-large"
	large.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("100")
	if err := cp.CreatePods(ctx, 1, func(int) *corev1.Pod { return large }); err != nil {
		t.Fatal(err)
	}
	berthtest.Await(t, patience, "all binds to be looked at", func(context.Context) error {
		r, err := read()
		if err == nil && r.Bound+r.Unseen < *shadowPods {
			err = fmt.Errorf("%d are, and %d were not seen before", r.Bound, r.Unseen)
		}
		return err
	})
	for _, c := range []*exec.Cmd{cmd, people} {
		if err := c.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if err := c.Wait(); err != nil {
			t.Errorf("shadow: %v", err)
		}
	}
	r, err := read()
	if err != nil {
		t.Fatal(err)
	}

	// 3. What it says, and what it did.
	t.Logf("%s", &text)
	if !strings.Contains(text.String(), "pods were bound on") || !strings.Contains(text.String(), "Berth would have taken the same node") {
		t.Error("that is no report")
	}
	// A watch that the API server ends, as it does where it has too much to do, misses pods that come and are bound meanwhile.
	if r.Bound+r.Unseen != *shadowPods || r.Unknown != 0 || r.Bound < *shadowPods/4 {
		t.Errorf("%d binds were looked at, of %d nothing can be said, and %d were not seen before, of %d", r.Bound, r.Unknown, r.Unseen, *shadowPods)
	}
	// What binds take that were in flight is bounded in the shadow, by 2 s, and not on a machine that is busy: the 99.9 % are of a quiet one, and of many pods.
	least := 0.9
	if *shadowPods >= 10_000 {
		least = 0.999
	}
	if float64(r.Explained) < least*float64(r.Bound) {
		t.Errorf("%d of %d are explained, want %v", r.Explained, r.Bound, least)
	}
	if r.Elsewhere+r.Nowhere > 0 {
		t.Errorf("Berth would not have put %d pods where they are: %v %v", r.Elsewhere+r.Nowhere, r.Examples["elsewhere"], r.Examples["nowhere"])
	}
	if r.Places != 0 {
		t.Errorf("a pod that fits nowhere would have been placed: %v", r.Examples["places"])
	}
	if r.Waited["max"] <= 0 || r.Choosing["max"] <= 0 {
		t.Errorf("it took no time: %v, %v", r.Waited, r.Choosing)
	}
	audited, err := os.ReadFile(audit)
	if err != nil {
		t.Fatal(err)
	}
	reads := 0
	for line := range strings.Lines(string(audited)) {
		var event struct {
			Verb             string
			RequestURI       string
			ImpersonatedUser *struct{ Username string }
			ResponseStatus   struct{ Code int }
		}
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatal(err)
		}
		if event.ImpersonatedUser == nil || event.ImpersonatedUser.Username != "shadow" {
			continue
		}
		unserved := event.ResponseStatus.Code == http.StatusNotFound && strings.Contains(event.RequestURI, "/podgroups?") // as by most API servers
		if event.Verb != "list" && event.Verb != "watch" && event.Verb != "get" || event.ResponseStatus.Code >= http.StatusBadRequest && !unserved {
			t.Errorf("it was answered %d to %s %s", event.ResponseStatus.Code, event.Verb, event.RequestURI)
		}
		reads++
	}
	if reads == 0 {
		t.Error("nothing is in the audit log of who follows")
	}
}
