package kube

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/source/sourcetest"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// granted reads the role and the binding that are deployed.
func granted(t *testing.T) (role rbacv1.ClusterRole, binding rbacv1.ClusterRoleBinding) {
	t.Helper()
	text, err := os.ReadFile("../../../deploy/kustomize/base/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var into any
		switch {
		case strings.Contains(document, "\nkind: ClusterRole\n"):
			into = &role
		case strings.Contains(document, "\nkind: ClusterRoleBinding\n"):
			into = &binding
		default:
			continue
		}
		if err := yaml.UnmarshalStrict([]byte(document), into); err != nil {
			t.Fatal(err)
		}
	}
	return role, binding
}

// as returns the path of a kubeconfig whose user acts as the subject of a binding.
func (c *testCluster) as(t *testing.T, binding rbacv1.ClusterRoleBinding) string {
	t.Helper()
	text, err := os.ReadFile(c.plane.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	account := "system:serviceaccount:" + binding.Subjects[0].Namespace + ":" + binding.Subjects[0].Name
	path := filepath.Join(t.TempDir(), "kubeconfig")
	changed := strings.Replace(string(text), "    token:", "    as: "+account+"\n    token:", 1)
	if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTheDeployedRoleIsEnoughAndWhatItLacksIsWaitedFor(t *testing.T) {
	plane := kubetest.StartT(t, kubetest.Options{Authorization: "RBAC"})
	c := &testCluster{plane: plane, client: plane.Client()}
	role, binding := granted(t)
	rules := role.Rules
	role.Rules = slices.DeleteFunc(slices.Clone(rules), func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "statefulsets") })
	if len(role.Rules) != len(rules)-1 {
		t.Fatalf("%d of %d rules are about stateful sets, want one", len(rules)-len(role.Rules), len(rules))
	}
	roles := c.client.RbacV1().ClusterRoles()
	less, err := roles.Create(within(t), &role, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.RbacV1().ClusterRoleBindings().Create(within(t), &binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.SetNode(t, sourcetest.Node("one"))
	uid := c.SetPod(t, sourcetest.Pod("p"))
	c.SetBudget(t, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "b"}})

	cfg := c.config()
	cfg.Kubeconfig = c.as(t, binding)
	s := newSource(t, cfg)
	r := sourcetest.Record(t, s)
	awaitUnready(t, s, "replicasets", "forbidden")
	r.View(func(v sourcetest.View) {
		if v.Synced {
			t.Error("Synced was told without replica sets and stateful sets")
		}
	})

	less.Rules = rules
	if _, err := roles.Update(within(t), less, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.Synced()
	awaitReady(t, s)
	r.View(func(v sourcetest.View) {
		if v.Budget("default", "b") == nil {
			t.Error("the budget was not told")
		}
	})
	if err := s.Unschedulable(within(t), source.Report{UID: uid, Namespace: "default", Name: "p", Reason: "Unschedulable", Message: "m"}); err != nil {
		t.Error(err)
	}
	if err := s.Nominate(within(t), source.Nomination{UID: uid, Namespace: "default", Name: "p", Node: "one"}); err != nil {
		t.Error(err)
	}
	b := source.Binding{UID: uid, Namespace: "default", Name: "p", Node: "one"}
	if out := s.Bind(within(t), coord.Cond{}, []source.Binding{b}); out[0].Result != source.BindDone {
		t.Errorf("Bind: %+v", out[0])
	}
	if err := s.Scheduled(within(t), b); err != nil {
		t.Error(err)
	}
	if _, node, _, err := s.Lookup(within(t), "default", "p"); node != "one" || err != nil {
		t.Errorf("Lookup: on %q, %v", node, err)
	}
	e := source.Eviction{UID: uid, Namespace: "default", Name: "p", Node: "one", PreemptorUID: "u", PreemptorNamespace: "default", PreemptorName: "q", PreemptorScheduler: "berth"}
	if err := s.Evict(within(t), coord.Cond{}, e); err != nil {
		t.Error(err)
	}
	if pod := c.pod(t, "default", "p"); pod.DeletionTimestamp == nil {
		t.Error("the pod was not deleted")
	}
	if err := s.Preempted(within(t), e); err != nil {
		t.Error(err)
	}
}
