package oracle

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1defaults "k8s.io/kubernetes/pkg/apis/core/v1"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/manifest"
	"github.com/berth-scheduler/berth/internal/source"
)

// A pod of a manifest, without an API server, asks for the same as one that the API server has filled in.
func TestManifestsAreFilledInAsByTheAPIServer(t *testing.T) {
	compared := 0
	rapid.Check(t, func(t *rapid.T) {
		written := named(drawSpec(t, 3), "p")
		written.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
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
		want := written.DeepCopy()
		corev1defaults.SetObjectDefaults_Pod(want)
		if diff := cmp.Diff(source.ReducePod(want), source.ReducePod(objects[0].Pod)); diff != "" {
			t.Fatalf("%s\nthe pod is read otherwise (-API server +manifest):\n%s", text, diff)
		}
	})
	t.Logf("%d pods compared", compared)
	if compared == 0 {
		t.Error("no pod was valid")
	}
}
