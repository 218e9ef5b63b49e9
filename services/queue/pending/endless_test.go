package pending

import (
	"fmt"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// TestALookEndsThoughPodsAreRejectedAmidIt has a look under way at many nodes, and a pod, each time of its own group, that is rejected for every ten
// steps of it: it is asked about on no node. What is noted for another pod meanwhile is looked at next.
func TestALookEndsThoughPodsAreRejectedAmidIt(t *testing.T) {
	const nodes = 20
	for _, tt := range []struct {
		name      string
		crossNode bool
		claims    []string
		unlike    bool // the pods are of classes of their own
		own       bool // they require a node
	}{
		{name: "pods without claims", unlike: true},
		{name: "pods with claims", claims: []string{"missing"}},
		{name: "pods with claims, of many kinds", claims: []string{"missing"}, unlike: true},
		{name: "pods to which other nodes matter", crossNode: true, unlike: true},
		{name: "pods with claims to which other nodes matter", crossNode: true, claims: []string{"missing"}, unlike: true},
		{name: "pods that require a node", own: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newVolumeWorld(t)
			w.look = func(*Queue, *cluster.State) {}
			for k := range nodes {
				w.node(fmt.Sprint("n", k), "a", 100)
			}
			w.node("last", "a", 100)
			w.set(&cluster.PersistentVolume{Name: "pv", Capacity: 1, HasClaim: true, Claim: cluster.ClaimReference{Namespace: "default", Name: "good"}})
			w.set(&cluster.PersistentVolumeClaim{Namespace: "default", Name: "good", Volume: "pv", Bound: true})
			rejected := 0
			reject := func() {
				for _, a := range w.queue.Pop(w.now, 100) {
					w.queue.Reject(w.now, w.st, a, Diagnosis{
						Version: w.st.Version(), Verdicts: []engine.VerdictCount{{Plugin: engine.NodeName}}, CrossNode: tt.crossNode && a.UID != "other",
					})
				}
			}
			another := func() {
				rejected++
				class := cluster.ClassID(0)
				if tt.unlike {
					class = cluster.ClassID(100 + rejected)
					w.apply(cluster.ClassDefined{ID: class, Spec: cpuClass(5000 + int64(rejected))})
				}
				pod := cluster.Pod{
					UID: fmt.Sprint(rejected), Name: fmt.Sprint(rejected), Namespace: "default", Class: class, Priority: 5, Created: w.now.UnixNano(),
					Labels: w.labels(fmt.Sprint(rejected), tt.claims...),
				}
				if tt.own {
					pod.RequiredNode = fmt.Sprint("n", rejected%nodes)
				}
				w.apply(cluster.PodSet{ID: w.st.FreePod(), Pod: pod})
				reject()
			}
			var claims []string
			if len(tt.claims) > 0 {
				claims = []string{"good"}
			}
			other := w.pod("other", 1, 5, "", claims...)
			reject()
			for range 5 {
				another()
			}
			w.now = w.now.Add(time.Minute)
			w.queue.Recheck(w.now, w.st)
			for k := range nodes {
				w.node(fmt.Sprint("n", k), "a", 101)
			}
			w.queue.RecheckUntil(w.now, w.st, steps) // a look has begun
			w.node("last", "a", 1000)                // noted for the next one
			parts := 0
			for ; w.placeOf(other) == Unschedulable; parts++ {
				if parts > 5000 {
					t.Fatalf("%d pods were rejected, and what has happened to another is not looked at", rejected)
				}
				if parts%10 == 0 {
					another()
				}
				w.queue.RecheckUntil(w.now, w.st, steps)
			}
		})
	}
}
