package engine

import (
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// scoring has VolumeBinding score, by kube-scheduler's default shape.
func scoring(p *cluster.Profile) {
	p.StorageShape = []cluster.ShapePoint{{Utilization: 0, Score: 10}, {Utilization: 100, Score: 0}}
	p.Weights = append(p.Weights[:len(p.Weights):len(p.Weights)], cluster.PluginWeight{Name: VolumeBinding, Weight: 1})
}

func TestNodesAreScoredByTheStorageThatClaimsTake(t *testing.T) {
	room := func(name, class, zone string, limit, capacity int64) *cluster.CSIStorageCapacity {
		c := &cluster.CSIStorageCapacity{Namespace: "s", Name: name, Class: class, HasLimit: true, Limit: limit, Capacity: capacity}
		c.Topology.Requirements = inZoneTerm(zone)[0].Expressions
		return c
	}
	for _, tt := range []struct {
		name  string
		world func(*storage)
		want  []int32 // of n0, in zone a, and n1, in zone b; NotScored if nothing waits
	}{
		{"the volumes that they get", func(w *storage) {
			w.free("small", "late", 40, "a", nil)
			w.free("large", "late", 100, "b", nil)
		}, []int32{75, 90}},
		{"of two classes the mean", func(w *storage) {
			w.free("v", "late", 40, "", nil)
			w.free("w", "other", 20, "a", nil)
			w.free("x", "other", 40, "b", nil)
			w.waiting("d", "other", 20, nil)
		}, []int32{38, 63}}, // 75 and 0, 75 and 50
		{"classes are what the field says, and not an annotation", func(w *storage) {
			w.free("v", "late", 40, "a", nil)
			w.free("w", "other", 20, "a", func(v *cluster.PersistentVolume) { v.HasFieldClass, v.FieldClass = true, "late" })
			w.free("x", "late", 40, "b", func(v *cluster.PersistentVolume) { v.HasFieldClass, v.FieldClass = true, "" })
			w.free("y", "other", 20, "b", nil)
			w.waiting("d", "other", 20, nil)
		}, []int32{50, 38}}, // 30 of 60; 75 and 0
		{"the room for volumes that are made", func(w *storage) {
			w.set(room("a", "late", "a", 20, 20), room("b", "late", "b", 20, 200))
		}, []int32{50, 95}},
		{"of several the most room", func(w *storage) {
			w.set(room("a", "late", "a", 20, 20), room("b", "late", "b", 20, 200), room("c", "late", "a", 20, 100), room("d", "late", "a", 9, 1000))
		}, []int32{90, 95}},
		{"two claims share the room", func(w *storage) {
			w.set(room("a", "late", "a", 20, 100), room("b", "late", "b", 20, 200))
			w.waiting("d", "late", 20, nil)
		}, []int32{70, 85}},
		{"room counts only where there is no volume", func(w *storage) {
			w.set(room("a", "late", "a", 20, 100), room("b", "late", "b", 20, 100))
			w.free("v", "late", 40, "a", nil)
			w.waiting("d", "late", 20, nil)
		}, []int32{75, 70}},
		{"room that is not told", func(w *storage) {
			w.set(room("a", "late", "a", 20, 0), room("b", "late", "b", 20, 10))
		}, []int32{0, 0}},
		{"no claim that waits", func(w *storage) { w.bound("c", nil) }, []int32{NotScored, NotScored}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, e := newStorage(t, 2), NewEvaluator(EvaluatorConfig{})
			w.gated(scoring)
			w.late("late", "csi", nil)
			w.late("other", noProvisioner, nil)
			w.set(&cluster.CSIDriver{Name: "csi", StorageCapacity: true})
			w.waiting("c", "late", 10, nil)
			tt.world(w)
			use := claims("c")
			if w.st.PersistentVolumeClaim("shop", "d") != nil {
				use = claims("d", "c")
			}
			s := SubjectOf(&w.st.Pod(w.pod("p", "", 0, nil, use...)).Pod)
			f, _ := e.Filter(w.st, s, everything(w.st))
			groups, _ := e.Score(w.st, s, everything(w.st), f.Eligible, 10)
			got := []int32{-2, -2}
			for _, g := range groups {
				for _, n := range g.Nodes {
					got[n.Node] = n.Scores[PluginOf(VolumeBinding).place]
				}
			}
			for i := range got {
				if got[i] != tt.want[i] {
					t.Errorf("scores %v, want %v", got, tt.want)
					break
				}
			}
		})
	}
}

// TestNodesAreScoredAnewWhenTheStorageThatClaimsWouldTakeChanges, though whether there is any does not.
func TestNodesAreScoredAnewWhenTheStorageThatClaimsWouldTakeChanges(t *testing.T) {
	w, e := newStorage(t, 1), NewEvaluator(EvaluatorConfig{})
	w.gated(scoring)
	w.late("late", "csi", nil)
	w.set(&cluster.CSIDriver{Name: "csi", StorageCapacity: true})
	w.waiting("c", "late", 10, nil)
	s := SubjectOf(&w.st.Pod(w.pod("p", "", 0, nil, claims("c")...)).Pod)
	room := func(capacity int64) *cluster.CSIStorageCapacity {
		return &cluster.CSIStorageCapacity{Namespace: "s", Name: "room", Class: "late", HasLimit: true, Limit: 20, Capacity: capacity}
	}
	scored := func(what string, want int32) {
		t.Helper()
		f, _ := e.Filter(w.st, s, everything(w.st))
		groups, _ := e.Score(w.st, s, everything(w.st), f.Eligible, 10)
		if len(groups) != 1 || groups[0].Nodes[0].Scores[PluginOf(VolumeBinding).place] != want {
			t.Fatalf("%s: groups %+v, want one with the score %d", what, groups, want)
		}
	}
	w.set(room(20))
	scored("room for 20", 50)
	w.set(room(200))
	scored("room for 200", 95)
	w.set(room(100))
	scored("room for 100", 90)
	w.free("b", "late", 40, "", nil)
	scored("a volume of 40", 75)
	w.free("a", "late", 20, "", nil)
	scored("one of 20 besides", 50)
	w.remove(&cluster.PersistentVolume{Name: "a"})
	scored("without it", 75)
}
