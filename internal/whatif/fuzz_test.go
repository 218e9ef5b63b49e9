package whatif

import (
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
	"github.com/berth-scheduler/berth/internal/engine"
)

// FuzzFromObjects: a cluster that a file describes is whole, and whoever waits in it can be placed or told why not.
func FuzzFromObjects(f *testing.F) {
	f.Add([]byte(fromKubectl))
	f.Add([]byte("apiVersion: v1\nkind: Node\nmetadata: {name: a}\nstatus: {allocatable: {cpu: 1, pods: 5}}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i, ports: [{hostPort: 80}]}]}"))
	f.Add([]byte(`{"kind":"PodList","items":[{"metadata":{"name":"p"},"spec":{"topologySpreadConstraints":[{"maxSkew":1,"topologyKey":"z","whenUnsatisfiable":"DoNotSchedule","labelSelector":{}}]}}]}`))
	f.Add([]byte(`{"kind":"Node","metadata":{"name":"x"},"status":{"allocatable":{"cpu":"1.e-30000000","cpu":"e30000000"}}}`))
	f.Add([]byte(`{"kind":"Node","metadata":{"name":"x"},"status":{"allocatable":{"cpu":"1\u0065-30000000","memory":"1e-3\u0030000000"}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := FromObjects(data, settings(), engine.EvaluatorConfig{})
		if err != nil {
			return
		}
		if err := clustertest.Recompute(s.state); err != nil {
			t.Fatalf("the state is not whole: %v", err)
		}
		digest := s.state.Digest()
		try(t, s, func(w *World) error {
			outcomes, err := Place(w, Pending(w), PlaceOptions{Preempt: true})
			for _, o := range outcomes {
				if (o.Outcome == Placed) != (o.Node != "") {
					t.Errorf("%+v", o)
				}
			}
			return err
		})
		if got := s.state.Digest(); got != digest {
			t.Errorf("what was tried was not undone: digest %x, want %x", got, digest)
		}
	})
}

// FuzzReadWorkload: no more pods than are allowed come of a workload, all pending and of different names, and they can be added.
func FuzzReadWorkload(f *testing.F) {
	f.Add([]byte("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {replicas: 3, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}"), 2)
	f.Add([]byte(`{"kind":"List","items":[{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}]}`), 1)
	f.Add([]byte(`{"kind":"Job","metadata":{"name":"j"},"spec":{"parallelism":4,"completions":2,"template":{"spec":{"containers":[{"name":"c","image":"i"}]}}}}`), -1)
	f.Add([]byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}],"overhead":{"cpu":"1.e-30000000","cpu":"e30000000"}}}`), 1)
	f.Add([]byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}],"overhead":{"cpu":"1\u0065-30000000","memory":"1e-3\u0030000000"}}}`), 1)
	f.Fuzz(func(t *testing.T, data []byte, times int) {
		const limit = 100
		load, err := ReadWorkload(t.Context(), data, times, limit)
		if err != nil {
			return
		}
		if len(load.Pods) > limit {
			t.Fatalf("%d pods, want at most %d", len(load.Pods), limit)
		}
		for _, p := range load.Pods {
			if p.Nominated != "" || p.Name == "" || p.Namespace == "" {
				t.Fatalf("pod %+v", p)
			}
		}
		s := sandbox(t, setNode(aNode("a", "z", 2000)))
		err = s.Try(t.Context(), func(w *World) error {
			ids, err := w.Add(load)
			if err != nil {
				return nil // two pods of one name
			}
			_, err = Place(w, ids, PlaceOptions{})
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}
