package oracle

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/apis/core"
	corev1defaults "k8s.io/kubernetes/pkg/apis/core/v1"
	podregistry "k8s.io/kubernetes/pkg/registry/core/pod"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/manifest"
	"github.com/berth-scheduler/berth/internal/source"
)

// created returns a pod as the API server stores it when somebody has written it so.
func created(t *rapid.T, written *v1.Pod) *v1.Pod {
	defaulted := written.DeepCopy()
	corev1defaults.SetObjectDefaults_Pod(defaulted)
	var stored core.Pod
	if err := corev1defaults.Convert_v1_Pod_To_core_Pod(defaulted, &stored, nil); err != nil {
		t.Fatalf("convert the pod: %v", err)
	}
	podregistry.Strategy.PrepareForCreate(t.Context(), &stored)
	out := new(v1.Pod)
	if err := corev1defaults.Convert_core_Pod_To_v1_Pod(&stored, out, nil); err != nil {
		t.Fatalf("convert the pod: %v", err)
	}
	return out
}

// A pod of a manifest, without an API server, asks for the same as one that the API server has created.
func TestManifestsAreFilledInAsByTheAPIServer(t *testing.T) {
	compared := 0
	check(t, func(t *rapid.T) {
		written := named(drawSpec(t, 3), "p")
		written.TypeMeta, written.UID = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ""
		for _, containers := range [][]v1.Container{written.Spec.InitContainers, written.Spec.Containers} {
			for i := range containers {
				containers[i].Image = "app:1"
			}
		}
		text, err := json.Marshal(written)
		if err != nil {
			t.Fatalf("print the pod: %v", err)
		}
		objects, err := manifest.Parse(text)
		if err != nil {
			return // what the API server would refuse too
		}
		compared++
		if diff := cmp.Diff(source.ReducePod(created(t, written)), source.ReducePod(objects[0].Pod)); diff != "" {
			t.Fatalf("%s\nthe pod is read otherwise (-API server +manifest):\n%s", text, diff)
		}
	})
	t.Logf("%d pods compared", compared)
	if compared == 0 {
		t.Error("no pod was valid")
	}
}
