package engine

import (
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// inZone says that a volume is in a zone.
func inZone(zone string) func(*cluster.PersistentVolumeClaim, *cluster.PersistentVolume) {
	return func(_ *cluster.PersistentVolumeClaim, v *cluster.PersistentVolume) {
		v.Labels = []cluster.Label{{Key: "topology.kubernetes.io/zone", Value: zone}}
	}
}

// relate makes a pod one of a class to which pods on other nodes matter.
func (w *storage) relate(id cluster.PodID, antiAffinity cluster.PodTerm) {
	class := cluster.ClassID(w.st.Version().Seq)
	w.apply(cluster.ClassDefined{ID: class, Spec: cluster.ClassSpec{SchedulerName: "default", AntiAffinity: []cluster.PodTerm{antiAffinity}}})
	pod := w.st.Pod(id).Pod
	pod.Class = class
	w.apply(cluster.PodSet{ID: id, Pod: pod})
}

// nobody is a term about no pod.
var nobody = cluster.PodTerm{TopologyKey: "topology.kubernetes.io/zone", Namespaces: []string{"other"}, NamespaceSelector: cluster.LabelSelector{Nothing: true}}

// brokenWhere has the claim bound to a volume that kube-scheduler cannot judge on nodes whose CSINode says that its plugin is replaced: these.
func (w *storage) brokenWhere(claim string, nodes ...string) {
	for i := range w.st.Nodes.Len() {
		w.set(&cluster.CSINode{Name: w.st.Nodes.Spec[i].Name})
	}
	for _, name := range nodes {
		w.set(&cluster.CSINode{Name: name, Migrated: []string{"ebs"}})
	}
	w.bound(claim, func(_ *cluster.PersistentVolumeClaim, v *cluster.PersistentVolume) {
		v.Driver, v.Handle, v.Migration = "", "", cluster.Migration{Plugin: "ebs", Error: "no"}
	})
}

func TestWhatChangesAboutVolumesBetweenTwoPodsOfABatchIsSeen(t *testing.T) {
	tests := []struct {
		name   string
		before func(*storage) // and the pods have the claim "c"
		amid   func(*storage)
		want   Placement
		node   cluster.NodeIndex // if it is placed
	}{
		{name: "nothing", want: Placed, node: 2},
		{name: "the volume moves", amid: func(w *storage) { w.bound("c", inZone("b")) }, want: Retry},
		{name: "the claim names another volume", amid: func(w *storage) {
			w.bound("other", inZone("b"))
			w.set(&cluster.PersistentVolumeClaim{Namespace: "shop", Name: "c", Volume: "pv-other", Bound: true})
		}, want: Retry},
		{name: "the claim goes", amid: func(w *storage) {
			w.apply(cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.PersistentVolumeClaimKind, Namespace: "shop", Name: "c"}})
		}, want: NoFit},
		{name: "the volume goes", amid: func(w *storage) {
			w.apply(cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.PersistentVolumeKind, Name: "pv-c"}})
		}, want: NoFit},
		{name: "the claim is lost", amid: func(w *storage) {
			w.set(&cluster.PersistentVolumeClaim{Namespace: "shop", Name: "c", Volume: "pv-c", Lost: true})
		}, want: NoFit},
		{name: "the claim is another pod's alone", amid: func(w *storage) {
			w.set(&cluster.PersistentVolumeClaim{Namespace: "shop", Name: "c", Volume: "pv-c", Bound: true, AccessModes: []string{"ReadWriteOncePod"}})
		}, want: NoFit}, // the first one's
		{name: "fewer volumes can be attached", amid: func(w *storage) {
			for _, n := range []string{"n0", "n2"} {
				w.set(&cluster.CSINode{Name: n, Drivers: []cluster.NodeDriver{{Name: "csi", Limited: true}}})
			}
		}, want: Placed, node: 0}, // where the volume is
		{name: "a volume is attached by others", before: func(w *storage) {
			for _, n := range []string{"n0", "n2"} {
				w.set(&cluster.CSINode{Name: n, Drivers: []cluster.NodeDriver{{Name: "csi", Limited: true, Limit: 1}}})
			}
		}, amid: func(w *storage) {
			w.set(&cluster.PersistentVolume{Name: "x", Driver: "csi", Handle: "x"}, &cluster.VolumeAttachment{Name: "x", Node: "n2", Attacher: "csi", Volume: "x"})
		}, want: Placed, node: 0},
		{name: "the plugin of the volume is replaced where that cannot be judged", before: func(w *storage) { w.brokenWhere("c") },
			amid: func(w *storage) { w.set(&cluster.CSINode{Name: "n1", Migrated: []string{"ebs"}}) }, want: NoFit},
	}
	for _, related := range []bool{false, true} {
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				w, e := newStorage(t, 3), NewEvaluator(EvaluatorConfig{})
				taint := []cluster.Taint{{Key: "t", Effect: "PreferNoSchedule"}}
				node := w.st.Node(2) // of a group of its own, and not the best as long as n0 is empty
				node.Taints = taint
				w.apply(cluster.NodeSet{Index: 2, Node: node})
				if w.bound("c", inZone("a")); tt.before != nil {
					tt.before(w)
				}
				first, second := w.pod("first", "", 0, nil, claims("c")...), w.pod("second", "", 0, nil, claims("c")...)
				if related {
					w.relate(first, nobody)
					pod := w.st.Pod(second).Pod
					pod.Class = w.st.Pod(first).Class
					w.apply(cluster.PodSet{ID: second, Pod: pod})
				}
				p := w.batch(e, first)
				node0, placement := p.Choose(first, 0)
				if placement != Placed || node0 == 2 {
					t.Fatalf("the first: %v on n%d", placement, node0)
				}
				w.apply(cluster.PodAssumed{ID: first, Node: node0, Attempt: 1})
				if tt.amid != nil {
					tt.amid(w)
				}
				got, placement := p.Choose(second, 0)
				fresh, now := w.batch(NewEvaluator(EvaluatorConfig{}), second).Choose(second, 0)
				switch {
				case tt.amid == nil && (placement != Placed || got != fresh):
					t.Errorf("%v on n%d, and from anew n%d", placement, got, fresh)
				case tt.amid != nil && placement != tt.want:
					t.Errorf("%v on n%d, want %v; from anew %v on n%d", placement, got, tt.want, now, fresh)
				case placement != Retry && (placement != now || got != fresh):
					t.Errorf("%v on n%d, from anew %v on n%d", placement, got, now, fresh)
				}
			})
		}
	}
}

// Candidates without a group say that no node was feasible, of the volumes as they were then.
func TestThatNoNodeWasFeasibleProvesNothingWhenVolumesComeToSomethingElse(t *testing.T) {
	tests := []struct {
		name   string
		before func(*storage)
		since  func(*storage)
	}{
		{"the volume moves", func(w *storage) { w.bound("c", inZone("nowhere")) }, func(w *storage) { w.bound("c", inZone("a")) }},
		{"the claim comes", func(*storage) {}, func(w *storage) { w.bound("c", nil) }},
		{"the claim is bound", func(w *storage) {
			w.bound("c", nil)
			w.set(&cluster.PersistentVolumeClaim{Namespace: "shop", Name: "c"})
		}, func(w *storage) { w.bound("c", nil) }},
		{"who has it alone goes", func(w *storage) {
			w.bound("c", func(c *cluster.PersistentVolumeClaim, _ *cluster.PersistentVolume) {
				c.AccessModes = []string{"ReadWriteOncePod"}
			})
			w.pod("user", "n0", 0, nil, claims("c")...)
		}, func(w *storage) {
			id, _ := w.st.PodByUID("uid-user")
			w.apply(cluster.PodRemoved{ID: id})
		}},
		{"the node goes on which a plugin failed", func(w *storage) { w.brokenWhere("c", "n1") }, func(w *storage) { w.apply(cluster.NodeRemoved{Index: 1}) }},
		{"the plugin fails nowhere any more", func(w *storage) { w.brokenWhere("c", "n1") }, func(w *storage) { w.brokenWhere("c") }},
	}
	for _, tt := range tests {
		for _, related := range []bool{false, true} {
			t.Run(tt.name, func(t *testing.T) {
				w, e := newStorage(t, 3), NewEvaluator(EvaluatorConfig{})
				tt.before(w)
				id := w.pod("p", "", 0, nil, claims("c")...)
				if related {
					w.relate(id, nobody)
				}
				p := w.batch(NewEvaluator(EvaluatorConfig{}), id)
				p.e = e
				if _, placement := p.Choose(id, 0); placement != NoFit {
					t.Fatalf("as it was: %v", placement)
				}
				p = w.batch(NewEvaluator(EvaluatorConfig{}), id)
				p.e = e
				tt.since(w)
				if node, placement := p.Choose(id, 0); placement != Retry {
					t.Errorf("%v on %d, want retry", placement, node)
				}
			})
		}
	}
}

// Candidates were found for a pod whose volume is reached from nowhere. Once that is gone, nobody knows any more what its volumes came to, and the candidates are not
// for pods whose volumes come to nothing.
func TestCandidatesOfAPodThatIsGoneProveNothing(t *testing.T) {
	for _, gone := range []bool{false, true} {
		w, e := newStorage(t, 3), NewEvaluator(EvaluatorConfig{})
		w.bound("c", inZone("nowhere"))
		w.bound("free", func(_ *cluster.PersistentVolumeClaim, v *cluster.PersistentVolume) { v.Driver, v.Handle = "", "" })
		first, second := w.pod("first", "", 0, nil, claims("c")...), w.pod("second", "", 0, nil, claims("free")...)
		p := w.batch(e, first)
		if gone {
			w.apply(cluster.PodRemoved{ID: first})
		}
		if node, got := p.Choose(second, 0); got != Retry {
			t.Errorf("gone: %v: the pod is %v on node %d, want %v", gone, got, node, Retry)
		}
	}
}
