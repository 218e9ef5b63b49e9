package cluster_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// contents are all nodes by index, what is known of each pod by id, and all objects by name.
type contents struct {
	nodes   map[cluster.NodeIndex]cluster.Node
	pods    map[cluster.PodID]contentsPod
	objects map[cluster.ObjectKey]cluster.Object
}

type contentsPod struct {
	pod    cluster.Pod
	phase  cluster.Phase
	class  *cluster.Class
	labels *cluster.Labels
}

func contentsOf(st *cluster.State) contents {
	c := contents{make(map[cluster.NodeIndex]cluster.Node), make(map[cluster.PodID]contentsPod), make(map[cluster.ObjectKey]cluster.Object)}
	for i := range cluster.NodeIndex(st.Nodes.Len()) {
		if st.Nodes.Live.Has(i) {
			c.nodes[i] = st.Node(i)
		}
	}
	for id, row := range st.Pods() {
		c.pods[id] = contentsPod{row.Pod, row.Phase, st.Class(row.Class), st.Labels(row.Labels)}
	}
	for d := range st.Objects() {
		c.objects[d.Object.Key()] = d.Object
	}
	return c
}

func TestStateRemembersWhatTheLastDeltaHasChanged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		walk(t, contentsOf, func(st *cluster.State, d cluster.Delta, before contents) {
			var node cluster.Node
			var pod contentsPod
			var object cluster.Object
			switch d := d.(type) {
			case cluster.NodeSet:
				node = before.nodes[d.Index]
			case cluster.NodeRemoved:
				node = before.nodes[d.Index]
			case cluster.PodSet:
				pod = before.pods[d.ID]
			case cluster.PodNominated:
				pod = before.pods[d.ID]
			case cluster.PreemptionStarted:
				pod = before.pods[d.ID]
			case cluster.PreemptionEnded:
				pod = before.pods[d.ID]
			case cluster.PodAssumed:
				pod = before.pods[d.ID]
			case cluster.PodBound:
				pod = before.pods[d.ID]
			case cluster.PodForgotten:
				pod = before.pods[d.ID]
			case cluster.PodRemoved:
				pod = before.pods[d.ID]
			case cluster.ObjectSet:
				object = before.objects[d.Object.Key()]
			case cluster.ObjectRemoved:
				object = before.objects[d.ObjectKey]
			}
			got := st.Before()
			if diff := cmp.Diff(node, got.Node); diff != "" {
				t.Fatalf("node before %+v (-want +got):\n%s", d, diff)
			}
			if diff := cmp.Diff(pod.pod, got.Pod.Pod); diff != "" || got.Pod.Phase != pod.phase {
				t.Fatalf("pod before %+v: %v, want %v (-want +got):\n%s", d, got.Pod.Phase, pod.phase, diff)
			}
			if got.Object != object {
				t.Fatalf("object before %+v: %+v, want %+v", d, got.Object, object)
			}
			if got.Class != pod.class || got.Labels != pod.labels {
				t.Fatalf("class and labels before %+v: %p and %p, want %p and %p", d, got.Class, got.Labels, pod.class, pod.labels)
			}
		})
	})
}
