package source

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
)

func TestEveryKindOfObjectsHasAReduction(t *testing.T) {
	for _, kind := range cluster.ObjectKinds() {
		if !kind.OfKubernetes() {
			continue
		}
		r, ok := Reductions[kind.String()]
		if !ok {
			t.Errorf("%v has none", kind)
			continue
		}
		want := Event{Kind: ObjectGone, Key: cluster.ObjectKey{Kind: kind, Namespace: "a", Name: "b"}}
		if got := r.Gone("a", "b"); got.Kind != want.Kind || got.Key != want.Key {
			t.Errorf("the end of a %v is told as %+v", kind, got)
		}
	}
}

func TestAReductionTellsObjectsOfItsTypeThatAreToBeTold(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "a", Name: "b"}
	budget := Reductions["PodDisruptionBudget"].Reduce(&policyv1.PodDisruptionBudget{ObjectMeta: meta})
	if budget == nil || budget().Kind != ObjectSet || budget().Object.Key() != (cluster.ObjectKey{Kind: cluster.BudgetKind, Namespace: "a", Name: "b"}) {
		t.Error("a budget is not told")
	}
	service := &v1.Service{ObjectMeta: meta}
	if Reductions[cluster.KindService].Reduce(service) != nil {
		t.Error("a service without a selector is told")
	}
	service.Spec.Selector = map[string]string{"app": "web"}
	if tell := Reductions[cluster.KindService].Reduce(service); tell == nil || tell().Kind != SelectorSet || tell().Selector.Name != "b" {
		t.Error("a service is not told")
	}
	for kind, r := range Reductions {
		if r.Reduce(&v1.Pod{}) != nil {
			t.Errorf("a pod is told as a %s", kind)
		}
	}
}
