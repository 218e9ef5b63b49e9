package kube

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
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

// TestWhatNobodyHasToHaveIsNotWaitedFor has the role lack what stateful sets and classes of storage need, and then pods.
func TestWhatNobodyHasToHaveIsNotWaitedFor(t *testing.T) {
	plane := kubetest.StartT(t, kubetest.Options{Authorization: "RBAC", APIServerFlags: kubetest.PodGroups})
	c := &testCluster{plane: plane, client: plane.Client()}
	role, binding := granted(t)
	rules := role.Rules
	roles := c.client.RbacV1().ClusterRoles()
	lacks := func(r *rbacv1.ClusterRole, resource string) {
		t.Helper()
		n := len(r.Rules)
		if r.Rules = slices.DeleteFunc(slices.Clone(r.Rules), func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, resource) }); len(r.Rules) == n {
			t.Fatalf("no rule is about %s", resource)
		}
	}
	lacks(&role, "statefulsets")
	lacks(&role, "storageclasses")
	made, err := roles.Create(within(t), &role, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.RbacV1().ClusterRoleBindings().Create(within(t), &binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.SetNode(t, sourcetest.Node("one"))
	cfg := c.config()
	cfg.Kubeconfig = c.as(t, binding)
	s := newSource(t, cfg)
	r := sourcetest.Record(t, s)
	r.Synced()
	awaitReady(t, s)
	unserved := func(v sourcetest.View) (names []string) {
		for key := range v.Objects {
			if key.Kind == cluster.UnservedKind {
				names = append(names, key.Name)
			}
		}
		slices.Sort(names)
		return names
	}
	r.View(func(v sourcetest.View) {
		want := []string{"csidrivers", "csinodes", "csistoragecapacities", "replicasets", "statefulsets", "storageclasses", "volumeattachments"}
		if got := unserved(v); !slices.Equal(got, want) {
			t.Errorf("told as not served are %v, want %v", got, want)
		}
	})
	lease, err := s.Lease(LeaseConfig{Namespace: "kube-system", Name: "a", Duration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.CatchUp(within(t)); err != nil {
		t.Errorf("catch up without all that there is: %v", err)
	}

	made.Rules = rules
	if made, err = roles.Update(within(t), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.Await("all to be served", func(v sourcetest.View) bool { return len(unserved(v)) == 0 })

	// Without pods there is nothing to place, and Synced would be a lie.
	lacks(made, "pods")
	if _, err = roles.Update(within(t), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitUnready(t, newWatched(t, cfg), "pods", "forbidden")
}

// newWatched returns a source that is watched until the test ends.
func newWatched(t *testing.T, cfg Config) *Source {
	t.Helper()
	s := newSource(t, cfg)
	sourcetest.Record(t, s)
	return s
}

func TestTheDeployedRoleIsEnoughAndWhatItLacksIsWaitedFor(t *testing.T) {
	plane := kubetest.StartT(t, kubetest.Options{Authorization: "RBAC", APIServerFlags: kubetest.PodGroups})
	c := &testCluster{plane: plane, client: plane.Client()}
	role, binding := granted(t)
	rules := role.Rules
	role.Rules = slices.DeleteFunc(slices.Clone(rules), func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "namespaces") })
	if len(role.Rules) != len(rules)-1 {
		t.Fatalf("%d of %d rules are about namespaces, want one", len(rules)-len(role.Rules), len(rules))
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
	awaitUnready(t, s, "nodes", "forbidden")
	r.View(func(v sourcetest.View) {
		if v.Synced {
			t.Error("Synced was told without nodes and namespaces")
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
