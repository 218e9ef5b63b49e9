package pending

import (
	"fmt"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

func TestRDNomineeCrossNode(t *testing.T) {
	for _, cross := range []bool{false, true} {
		w := newVolumeWorldOf(t, evaluating{engine.NewEvaluator(engine.EvaluatorConfig{Parallelism: 1})})
		w.node("n1", "a", 1000)
		w.set(&cluster.CSINode{Name: "n1", Drivers: []cluster.NodeDriver{{Name: "driver", Limited: true, Limit: 2}}})
		for _, name := range []string{"one", "two", "three"} {
			w.set(&cluster.PersistentVolume{Name: name, Driver: "driver", Handle: name})
			w.set(&cluster.PersistentVolumeClaim{Namespace: "default", Name: name, Volume: name, Bound: true})
		}
		w.pod("there", 0, 9, "n1", "one")
		nominated := w.pod("nominated", 0, 9, "", "two")
		w.apply(cluster.PodNominated{ID: nominated, Node: "n1"})
		class := cluster.ClassID(0)
		if cross {
			spec := cpuClass(200)
			spec.AntiAffinity = []cluster.PodTerm{{TopologyKey: topologyZone, Namespaces: []string{"nobody"}, Selector: cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "of", Operator: "In", Values: []string{"x"}}}}}}
			w.apply(cluster.ClassDefined{ID: 7, Spec: spec})
			class = 7
		}
		id := w.pod("waits", class, 5, "", "three")
		for _, a := range w.queue.Pop(w.now, 10) {
			w.reject(a, w.st.Version(), engine.NodeVolumeLimits)
		}
		w.now = w.now.Add(time.Minute)
		t.Log("cross", w.queue.pods[id].crossNode, w.placeOf(id))
		w.set(&cluster.PersistentVolumeClaim{Namespace: "default", Name: "two", Volume: "one", Bound: true})
		if got := w.placeOf(id); got != Active {
			t.Errorf("cross %v: feasible %v, but %v", cross, w.helped(id), got)
		}
	}
}

func TestRDBare(t *testing.T) {
	w := newVolumeWorld(t)
	w.look = func(*Queue, *cluster.State) {}
	const classes, nodes = 200, 500
	for k := range classes {
		c := cluster.ClassID(10 + k)
		w.apply(cluster.ClassDefined{ID: c, Spec: cpuClass(int64(2000 + k))})
		w.pod(fmt.Sprint("p", k), c, 5, "", fmt.Sprint("claim", k))
	}
	for k := range nodes {
		w.node(fmt.Sprint("n", k), "a", 100)
	}
	for _, a := range w.queue.Pop(w.now, 10000) {
		w.reject(a, w.st.Version(), engine.NodeResourcesFit)
	}
	w.now = w.now.Add(time.Minute)
	w.queue.Recheck(w.now, w.st)
	for k := range nodes {
		w.node(fmt.Sprint("n", k), "a", 101)
	}
	most := 0
	for !w.queue.RecheckUntil(w.now, w.st, func() bool { return true }) {
		if l := w.queue.lookingAside; l != nil {
			most = max(most, len(l.bare))
		}
	}
	t.Logf("%d answers kept, of %d classes and %d nodes", most, classes, nodes)
}
