package oracle

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// plain is a node with room, and one image of a size.
func plain(name string, imageBytes int64) *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: v1.NodeStatus{
			Allocatable: v1.ResourceList{"cpu": resource.MustParse("8"), "memory": resource.MustParse("8Gi"), "pods": resource.MustParse("110")},
			Images:      []v1.ContainerImage{{Names: []string{"app:1"}, SizeBytes: imageBytes}},
		},
	}
}

func TestAnImageThatHasGrownCountsAsItIs(t *testing.T) {
	fewer(t, 10)
	check(t, func(t *rapid.T) {
		w := drawWorld(t, 3, new(tally))
		sizes := rapid.SliceOfN(rapid.SampledFrom([]int64{300 << 20, 50 << 20, 900 << 20}), 1, 3).Draw(t, "sizes")
		pod := named(&v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default"},
			Spec:       v1.PodSpec{SchedulerName: v1.DefaultSchedulerName, Containers: []v1.Container{{Name: "c", Image: "app:1"}}},
		}, "p")
		id := w.enter(pod)
		for _, size := range sizes { // of the same image of the same node
			w.setNode(plain("n0", size), 0)
			w.compare(id, []cluster.Range{{First: 0, End: cluster.NodeIndex(w.state.Nodes.Len())}})
		}
	})
}
