package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
)

// decidedByVolumes reports whether what the volumes of pods are decides on all nodes at once, or may.
func decidedByVolumes(e *Evaluator, st *cluster.State, s Subject) (decided bool) {
	e.withFilters(st, s, func(c *evaluation) {
		decided = c.failing.own != nil || c.relation.volumes != nil && c.relation.volumes.refusal != ""
	})
	return decided
}

// storage is a cluster with volumes, whose pods are of the class of that many disks.
type storage struct {
	t  fataler
	st *cluster.State
}

// newStorage returns one with nodes n0, n1 and so on, of zones a and b in turns, to each of which two volumes of the driver "csi" can be
// attached.
func newStorage(t fataler, nodes int) *storage {
	w := &storage{t, cluster.New(cluster.Version{Epoch: 1})}
	w.apply(cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{DefaultProfile("default")}}}, cluster.NamespaceSet{Name: "shop"})
	for i := range nodes {
		name, zone := fmt.Sprint("n", i), string("ab"[i%2])
		w.apply(cluster.NodeSet{Index: cluster.NodeIndex(i), Node: cluster.Node{
			Name: name, Labels: []cluster.Label{{Key: "kubernetes.io/hostname", Value: name}, {Key: "topology.kubernetes.io/zone", Value: zone}},
			Allocatable: append(requests(64000, 64000), quantity("pods", 110)),
		}})
		w.set(&cluster.CSINode{Name: name, Drivers: []cluster.NodeDriver{{Name: "csi", Limited: true, Limit: 2}}, Migrated: []string{"aws"}})
	}
	return w
}

func (w *storage) apply(deltas ...cluster.Delta) { apply(w.t, w.st, deltas...) }

func (w *storage) set(objects ...cluster.Object) {
	for _, o := range objects {
		w.apply(cluster.ObjectSet{Object: o})
	}
}

// bound sets a claim that is bound to a volume of its own.
func (w *storage) bound(claim string, edit func(*cluster.PersistentVolumeClaim, *cluster.PersistentVolume)) {
	c := &cluster.PersistentVolumeClaim{Namespace: "shop", Name: claim, Volume: "pv-" + claim, Bound: true}
	v := &cluster.PersistentVolume{Name: c.Volume, Driver: "csi", Handle: "h-" + claim}
	if edit != nil {
		edit(c, v)
	}
	w.set(v, c)
}

// pod sets a pod of a class with disks and of claims, on a node if that is not "", and returns its id.
func (w *storage) pod(name, node string, priority int32, disks []cluster.Disk, claims ...cluster.PodClaim) cluster.PodID {
	spec := cluster.ClassSpec{SchedulerName: "default", Disks: disks}
	class := cluster.ClassID(-1)
	for _, c := range w.st.Classes() {
		if gocmp.Equal(c.Spec, spec, cmpopts.EquateEmpty()) {
			class = c.ID
		}
	}
	if class < 0 {
		class = cluster.ClassID(w.st.Version().Seq)
		w.apply(cluster.ClassDefined{ID: class, Spec: spec})
	}
	pod := cluster.Pod{UID: "uid-" + name, Namespace: "shop", Name: name, Class: class, Priority: priority, NodeName: node}
	if len(claims) > 0 {
		pod.Labels = cluster.LabelsID(w.st.Version().Seq + 1)
		w.apply(cluster.LabelsDefined{ID: pod.Labels, Set: cluster.LabelSet{Namespace: "shop", Claims: claims}})
	}
	id := w.st.FreePod()
	w.apply(cluster.PodSet{ID: id, Pod: pod})
	return id
}

func claims(names ...string) (out []cluster.PodClaim) {
	for _, name := range names {
		out = append(out, cluster.PodClaim{Name: name})
	}
	return out
}

// says returns what is said of each node, in order; "" of one that is feasible.
func (w *storage) says(e *Evaluator, id cluster.PodID) (out []string) {
	s := SubjectOf(&w.st.Pod(id).Pod)
	for i := range cluster.NodeIndex(w.st.Nodes.Len()) {
		v, _ := e.Node(w.st, s, cluster.NoPod, i)
		text := ""
		for _, why := range e.Explain(w.st, s, v, i) {
			text = why.Plugin + ": " + why.Reason
			if !why.Unresolvable {
				text += " (resolvable)"
			}
		}
		out = append(out, text)
	}
	return out
}

func TestVolumesKeepPodsOffNodes(t *testing.T) {
	in := func(zone string) []cluster.NodeSelectorTerm {
		return []cluster.NodeSelectorTerm{{Expressions: []cluster.Requirement{{Key: "topology.kubernetes.io/zone", Operator: "In", Values: []string{zone}}}}}
	}
	class := func(name, mode string) *cluster.StorageClass {
		return &cluster.StorageClass{Name: name, Provisioner: "csi", Mode: mode}
	}
	const (
		disk     = "VolumeRestrictions: node(s) had no available disk (resolvable)"
		inUse    = "VolumeRestrictions: node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod (resolvable)"
		limit    = "NodeVolumeLimits: node(s) exceed max volume count (resolvable)"
		affinity = "VolumeBinding: node(s) didn't match PersistentVolume's node affinity"
		zone     = "VolumeZone: node(s) had no available volume zone"
	)
	of := func(kind, id string, readOnly bool, monitors ...string) []cluster.Disk {
		return []cluster.Disk{{Kind: kind, ID: id, ReadOnly: readOnly, Monitors: monitors}}
	}
	for _, tt := range []struct {
		name   string
		world  func(w *storage)
		disks  []cluster.Disk
		claims []cluster.PodClaim
		want   []string // of n0, in zone a, and n1
	}{
		{"a disk in use", func(w *storage) { w.pod("other", "n0", 0, of(cluster.DiskGCE, "d", true)) }, of(cluster.DiskGCE, "d", false), nil, []string{disk, ""}},
		{"a disk that all read", func(w *storage) { w.pod("other", "n0", 0, of(cluster.DiskGCE, "d", true)) }, of(cluster.DiskGCE, "d", true), nil, []string{"", ""}},
		{"an image by one of its monitors", func(w *storage) { w.pod("other", "n0", 0, of(cluster.DiskRBD, "d", false, "a", "b")) },
			of(cluster.DiskRBD, "d", true, "b", "c"), nil, []string{disk, ""}},
		{"an image by other monitors", func(w *storage) { w.pod("other", "n0", 0, of(cluster.DiskRBD, "d", false, "a")) },
			of(cluster.DiskRBD, "d", false, "b"), nil, []string{"", ""}},
		{"a claim of one pod, in use elsewhere", func(w *storage) {
			w.bound("c", func(c *cluster.PersistentVolumeClaim, _ *cluster.PersistentVolume) {
				c.AccessModes = []string{"ReadWriteOncePod"}
			})
			w.pod("other", "n0", 0, nil, claims("c")...)
		}, nil, claims("c"), []string{inUse, inUse}},
		{"no room for another volume", func(w *storage) {
			w.bound("c", nil)
			w.bound("x", nil)
			w.bound("y", nil)
			w.pod("other", "n0", 0, nil, claims("x", "y")...)
		}, nil, claims("c"), []string{limit, ""}},
		{"a volume that is there", func(w *storage) {
			w.bound("c", nil)
			w.bound("x", nil)
			w.pod("other", "n0", 0, nil, claims("x", "c")...)
		}, nil, claims("c"), []string{"", ""}},
		{"room that an attachment takes", func(w *storage) {
			w.bound("c", nil)
			for _, name := range []string{"x", "y"} {
				w.bound(name, nil)
				w.set(&cluster.VolumeAttachment{Name: name, Attacher: "csi", Node: "n1", Volume: "pv-" + name})
			}
		}, nil, claims("c"), []string{"", limit}},
		{"two claims of one volume", func(w *storage) {
			for _, name := range []string{"c", "d", "x"} {
				w.bound(name, func(_ *cluster.PersistentVolumeClaim, v *cluster.PersistentVolume) {
					if name != "x" {
						v.Handle = "shared"
					}
				})
			}
			w.pod("other", "n0", 0, nil, claims("x")...)
		}, nil, claims("c", "d"), []string{"", ""}},
		{"a CSINode that is not told", func(w *storage) { w.bound("c", nil); w.set(&cluster.CSINode{Name: "n0", Untold: "large"}) },
			nil, claims("c"), []string{"NodeVolumeLimits: " + ReasonUntoldLimits, ""}},
		{"a pod whose volumes cannot be counted", func(w *storage) {
			w.bound("c", nil)
			w.pod("other", "n0", 0, nil, cluster.PodClaim{})
		}, nil, claims("c"), []string{"NodeVolumeLimits: " + ReasonUncountedVolumes, ""}},
		{"the same, where nobody counts", func(w *storage) {
			w.bound("c", func(_ *cluster.PersistentVolumeClaim, v *cluster.PersistentVolume) { v.Driver, v.Handle = "", "" })
			w.pod("other", "n0", 0, nil, cluster.PodClaim{})
		}, nil, claims("c"), []string{"", ""}},
		{"a volume's affinity", func(w *storage) {
			w.bound("c", func(_ *cluster.PersistentVolumeClaim, v *cluster.PersistentVolume) {
				v.HasAffinity, v.Affinity = true, in("a")
			})
		}, nil, claims("c"), []string{"", affinity}},
		{"that of what it is to CSI", func(w *storage) {
			w.bound("c", func(_ *cluster.PersistentVolumeClaim, v *cluster.PersistentVolume) {
				v.Driver, v.Migration.Plugin, v.HasAffinity, v.Affinity, v.HasMigratedAffinity, v.MigratedAffinity = "", "aws", true, in("a"), true, in("b")
			})
			w.set(&cluster.CSINode{Name: "n1"})
		}, nil, claims("c"), []string{affinity, affinity}},
		{"a zone", func(w *storage) {
			w.bound("c", func(_ *cluster.PersistentVolumeClaim, v *cluster.PersistentVolume) {
				v.Labels = []cluster.Label{{Key: "failure-domain.beta.kubernetes.io/zone", Value: "b__c"}}
			})
		}, nil, claims("c"), []string{zone, ""}},
		{"a label that names no zone", func(w *storage) {
			w.bound("c", func(_ *cluster.PersistentVolumeClaim, v *cluster.PersistentVolume) {
				v.Labels = []cluster.Label{{Key: "topology.kubernetes.io/zone", Value: "b__"}}
			})
		}, nil, claims("c"), []string{"", ""}},
		{"no such claim", nil, nil, claims("c"), []string{`VolumeRestrictions: persistentvolumeclaim "c" not found`}},
		{"no such claim of an ephemeral volume", nil, nil, []cluster.PodClaim{{Name: "c", Ephemeral: true, PodUID: "uid-judged"}},
			[]string{`VolumeBinding: waiting for ephemeral volume controller to create the persistentvolumeclaim "c"`}},
		{"a claim of another pod", func(w *storage) { w.bound("c", nil) }, nil, []cluster.PodClaim{{Name: "c", Ephemeral: true, PodUID: "uid-judged"}},
			[]string{"VolumeBinding: PVC shop/c was not created for pod shop/judged (pod is not owner)"}},
		{"a claim that is going", func(w *storage) {
			w.bound("c", func(c *cluster.PersistentVolumeClaim, _ *cluster.PersistentVolume) { c.Deleting = true })
		}, nil, claims("c"), []string{`VolumeBinding: persistentvolumeclaim "c" is being deleted`}},
		{"a claim that is lost", func(w *storage) {
			w.bound("c", func(c *cluster.PersistentVolumeClaim, _ *cluster.PersistentVolume) { c.Lost = true })
		}, nil, claims("c"), []string{`VolumeBinding: persistentvolumeclaim "c" bound to non-existent persistentvolume "pv-c"`}},
		{"a claim that is to be bound", func(w *storage) {
			w.set(class("now", cluster.BindImmediately), &cluster.PersistentVolumeClaim{Namespace: "shop", Name: "c", Class: "now"})
		}, nil, claims("c"), []string{"VolumeBinding: pod has unbound immediate PersistentVolumeClaims"}},
		{"a claim that waits", func(w *storage) {
			w.set(class("late", cluster.BindToFirstConsumer), &cluster.PersistentVolumeClaim{Namespace: "shop", Name: "c", Class: "late"})
		}, nil, claims("c"), []string{"", ""}},
		{"a class that does not say when", func(w *storage) {
			w.set(class("odd", ""), &cluster.PersistentVolumeClaim{Namespace: "shop", Name: "c", Class: "odd"})
		}, nil, claims("c"), []string{`VolumeBinding: VolumeBindingMode not set for StorageClass "odd"`}},
		{"no such volume", func(w *storage) {
			w.set(&cluster.PersistentVolumeClaim{Namespace: "shop", Name: "c", Volume: "v", Bound: true})
		}, nil, claims("c"), []string{`VolumeZone: persistentvolume "v" not found`}},
		{"no such volume, of an ephemeral volume", func(w *storage) {
			w.set(&cluster.PersistentVolumeClaim{Namespace: "shop", Name: "c", Volume: "v", Bound: true, Owner: "uid-judged"})
		}, nil, []cluster.PodClaim{{Name: "c", Ephemeral: true, PodUID: "uid-judged"}}, []string{"VolumeBinding: " + ReasonVolumeMissing}},
		{"a disk that CSI has no name for, on one node", func(w *storage) {
			w.apply(cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.CSINodeKind, Name: "n1"}})
		},
			[]cluster.Disk{{Migration: cluster.Migration{Plugin: "aws", Error: "no name"}}}, nil, []string{"NodeVolumeLimits: no name"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newStorage(t, 2)
			if tt.world != nil {
				tt.world(w)
			}
			id := w.pod("judged", "", 0, tt.disks, tt.claims...)
			if len(tt.want) == 1 {
				tt.want = append(tt.want, tt.want[0])
			}
			if diff := gocmp.Diff(tt.want, w.says(NewEvaluator(EvaluatorConfig{}), id)); diff != "" {
				t.Errorf("n0 and n1 (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatIsSaidOfAClaimIsSaidOfAllNodesAtOnce(t *testing.T) {
	w, e := newStorage(t, 3), NewEvaluator(EvaluatorConfig{})
	row := w.st.Pod(w.pod("p", "", 0, nil, claims("c")...))
	nodes, why := e.AnswersOf(w.st, 0).Unschedulable()
	if got, want := FitMessage(nodes, why), `0/3 nodes are available: persistentvolumeclaim "c" not found.`; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	pod := row.Pod
	pod.RequiredNode = "gone"
	w.apply(cluster.PodSet{ID: 0, Pod: pod})
	nodes, why = e.AnswersOf(w.st, 0).Unschedulable()
	if got, want := FitMessage(nodes, why), `0/3 nodes are available: persistentvolumeclaim "c" not found.`; got != want {
		t.Errorf("of a pod that requires a node that is gone: %s\nwant %s", got, want)
	}
}

func TestPodsWhoseVolumesComeToTheSameHaveOneSignature(t *testing.T) {
	w, e := newStorage(t, 3), NewEvaluator(EvaluatorConfig{})
	signatures := make(map[Signature]int)
	plain := w.pod("plain", "", 0, nil)
	for k := range 1000 {
		name := fmt.Sprint("c-", k)
		w.bound(name, nil)
		signatures[e.Signature(w.st, SubjectOf(&w.st.Pod(w.pod(name, "", 0, nil, claims(name)...)).Pod))]++
	}
	if len(signatures) != 1 || signatures[e.Signature(w.st, SubjectOf(&w.st.Pod(plain).Pod))] != 0 {
		t.Errorf("%d signatures of a StatefulSet's pods, want one that is not that of pods without claims", len(signatures))
	}
	one, two := w.pod("one", "", 0, nil, claims("none-1")...), w.pod("two", "", 0, nil, claims("none-2")...)
	if e.Signature(w.st, SubjectOf(&w.st.Pod(one).Pod)) == e.Signature(w.st, SubjectOf(&w.st.Pod(two).Pod)) {
		t.Error("pods of which different texts are said have one signature")
	}
	if says := w.says(e, two); !strings.Contains(says[0], `"none-2"`) {
		t.Errorf("of the second is said %q", says[0])
	}
	shared := w.pod("uses", "n0", 0, nil, claims("c-7")...)
	if again := w.pod("again", "", 0, nil, claims("c-7")...); signatures[e.Signature(w.st, SubjectOf(&w.st.Pod(again).Pod))] != 0 {
		t.Error("a volume that is attached counts as one that is not")
	} else if w.apply(cluster.PodRemoved{ID: shared}); signatures[e.Signature(w.st, SubjectOf(&w.st.Pod(again).Pod))] == 0 {
		t.Error("a volume that is not attached any more counts as one that is")
	}
}

// batch makes a Placer of one set of candidates, those of the first pod.
func (w *storage) batch(e *Evaluator, first cluster.PodID) *Placer {
	s := SubjectOf(&w.st.Pod(first).Pod)
	f, _ := e.Filter(w.st, s, everything(w.st))
	groups, _ := e.Score(w.st, s, everything(w.st), f.Eligible, 100)
	return NewPlacer(e, w.st, w.st.Version().Seq, []Candidates{{Subject: s, Groups: groups}})
}

func TestABatchOfAStatefulSetIsPlacedAtOnceAsFarAsVolumesCanBeAttached(t *testing.T) {
	w, e := newStorage(t, 3), NewEvaluator(EvaluatorConfig{})
	var ids []cluster.PodID
	for k := range 8 {
		name := fmt.Sprint("c-", k)
		w.bound(name, nil)
		ids = append(ids, w.pod(name, "", 0, nil, claims(name)...))
	}
	p, on := w.batch(NewEvaluator(EvaluatorConfig{}), ids[0]), make(map[cluster.NodeIndex]int)
	p.e = e
	for k, id := range ids {
		node, placement := p.Choose(id, 0)
		want := Placed
		if k >= 6 {
			want = NoFit // two on each node
		}
		if placement != want {
			t.Fatalf("pod %d: %v, want %v", k, placement, want)
		}
		if placement == Placed {
			on[node]++
			w.apply(cluster.PodAssumed{ID: id, Node: node, Attempt: 1})
		}
	}
	if diff := gocmp.Diff(map[cluster.NodeIndex]int{0: 2, 1: 2, 2: 2}, on); diff != "" {
		t.Errorf("pods by node (-want +got):\n%s", diff)
	}
}

func TestAClaimOfOnePodIsGivenToOneOfABatch(t *testing.T) {
	w, e := newStorage(t, 3), NewEvaluator(EvaluatorConfig{})
	w.bound("c", func(c *cluster.PersistentVolumeClaim, _ *cluster.PersistentVolume) {
		c.AccessModes = []string{"ReadWriteOncePod"}
	})
	first, second := w.pod("first", "", 0, nil, claims("c")...), w.pod("second", "", 0, nil, claims("c")...)
	p := w.batch(e, first)
	node, placement := p.Choose(first, 0)
	if placement != Placed {
		t.Fatalf("the first: %v", placement)
	}
	w.apply(cluster.PodAssumed{ID: first, Node: node, Attempt: 1})
	if _, placement := p.Choose(second, 0); placement != NoFit {
		t.Fatalf("the second: %v, want no fit, which does not keep those behind it", placement)
	}
	if _, placement := w.batch(e, second).Choose(second, 0); placement != NoFit {
		t.Errorf("the second, alone: %v", placement)
	}
}

// Two pods share a claim that nobody has used before: when the first is placed, it is in use, and the second of another signature.
func TestPodsThatShareAClaimAreOfOneBatch(t *testing.T) {
	for _, tt := range []struct{ full, apart bool }{{}, {full: true}, {apart: true}} {
		w, e := newStorage(t, 3), NewEvaluator(EvaluatorConfig{})
		w.apply(cluster.ClassDefined{ID: 900, Spec: cluster.ClassSpec{SchedulerName: "default", AntiAffinity: []cluster.PodTerm{{
			TopologyKey: "topology.kubernetes.io/zone", Namespaces: []string{"other"}, NamespaceSelector: cluster.LabelSelector{Nothing: true},
		}}}})
		var ids []cluster.PodID
		for k := range 3 {
			shared, own := fmt.Sprint("shared-", k), fmt.Sprint("own-", k)
			w.bound(shared, nil)
			w.bound(own, nil)
			ids = append(ids, w.pod(shared+" 1", "", 0, nil, claims(shared, own)...), w.pod(shared+" 2", "", 0, nil, claims(shared, own)...))
		}
		if tt.apart { // pods on other nodes decide too
			for _, id := range ids {
				pod := w.st.Pod(id).Pod
				pod.Class = 900
				w.apply(cluster.PodSet{ID: id, Pod: pod})
			}
			if w.batch(e, ids[0]); e.evaluations[e.Signature(w.st, SubjectOf(&w.st.Pod(ids[0]).Pod))].topology == nil {
				t.Fatal("pods on other nodes do not matter")
			}
		}
		if !tt.full {
			for i := range 3 {
				w.set(&cluster.CSINode{Name: fmt.Sprint("n", i), Drivers: []cluster.NodeDriver{{Name: "csi", Limited: true, Limit: 100}}})
			}
		}
		p := w.batch(NewEvaluator(EvaluatorConfig{}), ids[0])
		p.e = e
		for k, id := range ids {
			want := w.batch(NewEvaluator(EvaluatorConfig{}), id)
			best, _ := want.Choose(id, 0)
			node, placement := p.Choose(id, 0)
			if placement != Placed || node != best {
				t.Fatalf("%+v, pod %d: %v on %d, want %d", tt, k, placement, node, best)
			}
			w.apply(cluster.PodAssumed{ID: id, Node: node, Attempt: 1})
		}
	}
}

func TestCandidatesServePodsWhoseClaimHasComeIntoUseSinceTheyWereFound(t *testing.T) {
	w, e := newStorage(t, 3), NewEvaluator(EvaluatorConfig{})
	w.bound("c", nil)
	w.bound("x", nil)
	id, other := w.pod("p", "", 0, nil, claims("c")...), w.pod("other", "", 0, nil, claims("c", "x")...)
	w.set(&cluster.CSINode{Name: "n1", Drivers: []cluster.NodeDriver{{Name: "csi", Limited: true}}})
	w.set(&cluster.CSINode{Name: "n2", Drivers: []cluster.NodeDriver{{Name: "csi", Limited: true}}})
	p := w.batch(NewEvaluator(EvaluatorConfig{}), id)
	p.e = e
	w.apply(cluster.PodAssumed{ID: other, Node: 0, Attempt: 1})
	if node, placement := p.Choose(id, 0); placement != Placed || node != 0 {
		t.Errorf("%v on %d, want n0, which is full, but has the volume", placement, node)
	}
}

// A claim that is in use when candidates are found, and by another pod then.
func TestCandidatesOfAVolumeThatIsInUseProveNothingOfOneThatIsNot(t *testing.T) {
	w, e := newStorage(t, 3), NewEvaluator(EvaluatorConfig{})
	w.bound("c", nil)
	w.bound("d", nil)
	w.pod("user", "n0", 0, nil, claims("c")...)
	id, other := w.pod("p", "", 0, nil, claims("c")...), w.pod("other", "", 0, nil, claims("d")...)
	p := w.batch(e, id)
	if _, placement := p.Choose(other, 0); placement != Retry {
		t.Errorf("before the first: %v", placement)
	}
	if _, placement := p.Choose(id, 0); placement != Placed {
		t.Errorf("the first: %v", placement)
	}
	if _, placement := p.Choose(other, 0); placement != Retry {
		t.Errorf("behind the first: %v", placement)
	}
}

func TestCandidatesOfVolumesThatHaveMovedProveNothing(t *testing.T) {
	w, e := newStorage(t, 3), NewEvaluator(EvaluatorConfig{})
	to := func(zone string) func(*cluster.PersistentVolumeClaim, *cluster.PersistentVolume) {
		return func(_ *cluster.PersistentVolumeClaim, v *cluster.PersistentVolume) {
			v.Labels = []cluster.Label{{Key: "topology.kubernetes.io/zone", Value: zone}}
		}
	}
	w.bound("c", to("a"))
	id := w.pod("p", "", 0, nil, claims("c")...)
	p := w.batch(NewEvaluator(EvaluatorConfig{}), id)
	p.e = e
	w.bound("c", to("b"))
	if node, placement := p.Choose(id, 0); placement != Retry {
		t.Errorf("%v on %d, want retry: n1 was no candidate", placement, node)
	}
}

// manyClaims puts that many pods with 256 claims each on n0, to which all their volumes can be attached and no more, and returns a pod with as
// many claims as that which may take their place.
func manyClaims(w *storage, pods, wants int) cluster.PodID {
	for p := range pods {
		var names []string
		for k := range 256 {
			names = append(names, fmt.Sprintf("c-%d-%d", p, k))
			w.bound(names[k], nil)
		}
		w.pod(fmt.Sprint("placed-", p), "n0", 0, nil, claims(names...)...)
	}
	w.set(&cluster.CSINode{Name: "n0", Drivers: []cluster.NodeDriver{{Name: "csi", Limited: true, Limit: int32(pods * 256)}}})
	var names []string
	for k := range wants {
		names = append(names, fmt.Sprint("mine-", k))
		w.bound(names[k], nil)
	}
	return w.pod("judged", "", 10, nil, claims(names...)...)
}

func TestADryRunFindsOutOnceWhatAPodUses(t *testing.T) {
	w, e := newStorage(t, 2), NewEvaluator(EvaluatorConfig{Parallelism: 1})
	const pods = 40
	id := manyClaims(w, pods, 256)
	found, _ := e.DryRun(w.st, id, everything(w.st), 10)
	if len(found.Candidates) != 1 || len(found.Candidates[0].Victims) != 1 {
		t.Errorf("candidates %+v, want n0 without one pod", found.Candidates)
	}
	labels := w.st.Labels(w.st.Pod(0).Labels)
	once := testing.AllocsPerRun(10, func() { w.st.PodVolumes(nil, labels) })
	// Each goes, and comes back, and one goes again.
	if n := testing.AllocsPerRun(10, func() { e.DryRunNode(w.st, id, 0) }); n > 1.9*once*pods {
		t.Errorf("a dry run allocates %v times, which is what it takes to find out %v times what one of %d pods uses", n, n/once, pods)
	}
}

// BenchmarkBoundVolume judges 5,000 nodes by each filter for a pod that nobody has asked about before: of a claim that is bound to a volume of one node, or to one of any.
func BenchmarkBoundVolume(b *testing.B) {
	const nodes = 5000
	for _, of := range []string{"one node", "any node"} {
		b.Run("of="+strings.ReplaceAll(of, " ", "-"), func(b *testing.B) {
			w := newStorage(b, nodes)
			w.bound("c", func(_ *cluster.PersistentVolumeClaim, v *cluster.PersistentVolume) {
				if v.HasAffinity = of == "one node"; v.HasAffinity {
					v.Affinity = []cluster.NodeSelectorTerm{{Expressions: []cluster.Requirement{{Key: "kubernetes.io/hostname", Operator: "In", Values: []string{"n7"}}}}}
				}
			})
			s := SubjectOf(&w.st.Pod(w.pod("p", "", 0, nil, claims("c")...)).Pod)
			for b.Loop() {
				f, _ := NewEvaluator(EvaluatorConfig{Parallelism: 1}).Filter(w.st, s, everything(w.st))
				if (f.FeasibleCount == 1) != (of == "one node") {
					b.Fatalf("%d nodes are feasible", f.FeasibleCount)
				}
			}
		})
	}
}

func BenchmarkDryRunOfPodsWithManyClaims(b *testing.B) {
	w, e := newStorage(b, 2), NewEvaluator(EvaluatorConfig{Parallelism: 1})
	id := manyClaims(w, 109, 1)
	for b.Loop() {
		if _, ok := e.DryRunNode(w.st, id, 0); !ok {
			b.Fatal("no candidate")
		}
	}
}

// nominate nominates that many pods with 255 claims each to n0, n1 and so on.
func (w *storage) nominate(pods int) {
	for p := range pods {
		var names []string
		for k := range 255 {
			names = append(names, fmt.Sprintf("c-%d-%d", p, k))
			w.bound(names[k], nil)
		}
		id := w.pod(fmt.Sprint("nominated-", p), "", 10, nil, claims(names...)...)
		w.apply(cluster.PodNominated{ID: id, Node: fmt.Sprint("n", p)})
	}
}

func TestHoweverManyVolumesNominatedPodsWouldUseOthersAreOfOneSignature(t *testing.T) {
	w, e := newStorage(t, 20), NewEvaluator(EvaluatorConfig{})
	w.nominate(20)
	signatures := make(map[Signature]bool)
	var id cluster.PodID
	for k := range 10 {
		name := fmt.Sprint("mine-", k)
		w.bound(name, nil)
		id = w.pod(name, "", 0, nil, claims(name)...)
		signatures[e.Signature(w.st, SubjectOf(&w.st.Pod(id).Pod))] = true
	}
	if len(signatures) != 1 {
		t.Errorf("%d signatures, want 1: none of their volumes is a nominee's", len(signatures))
	}
	shares := w.pod("shares", "", 0, nil, claims("c-3-7")...)
	if signatures[e.Signature(w.st, SubjectOf(&w.st.Pod(shares).Pod))] {
		t.Error("a volume that a nominee would use counts as one that nobody would")
	}
}

func TestAChangeOfAnyVolumeDoesNotHaveThoseOfNomineesReadAgain(t *testing.T) {
	w, e := newStorage(t, 16), NewEvaluator(EvaluatorConfig{})
	w.nominate(16)
	w.bound("mine", nil)
	s := SubjectOf(&w.st.Pod(w.pod("mine", "", 0, nil, claims("mine")...)).Pod)
	e.Filter(w.st, s, everything(w.st))
	claim := &cluster.PersistentVolumeClaim{Namespace: "x", Name: "any"}
	w.set(claim)
	if n := testing.AllocsPerRun(100, func() {
		w.set(claim)
		e.Filter(w.st, s, everything(w.st))
	}); n > 50 {
		t.Errorf("a change and a question allocate %v times, with 16 nominees of 255 claims", n)
	}
}

func TestWhatAClaimOfANomineeComesToIsSeenAtItsNode(t *testing.T) {
	w, e := newStorage(t, 2), NewEvaluator(EvaluatorConfig{})
	w.bound("mine", nil)
	w.bound("a", nil)
	id := w.pod("nominee", "", 10, nil, claims("a", "b")...)
	w.apply(cluster.PodNominated{ID: id, Node: "n0"})
	judged := w.pod("judged", "", 0, nil, claims("mine")...)
	s := SubjectOf(&w.st.Pod(judged).Pod)
	feasible := func() int {
		f, _ := e.Filter(w.st, s, everything(w.st))
		return int(f.FeasibleCount)
	}
	if n := feasible(); n != 2 {
		t.Fatalf("%d nodes are feasible, want 2: the nominee has one volume", n)
	}
	w.bound("b", nil)
	if n := feasible(); n != 1 {
		t.Errorf("%d nodes are feasible, want n1: the nominee has two volumes now", n)
	}
	w.bound("b", func(_ *cluster.PersistentVolumeClaim, v *cluster.PersistentVolume) { v.Handle = "h-mine" })
	if n := feasible(); n != 2 {
		t.Errorf("%d nodes are feasible, want 2: the nominee has the volume of the pod", n)
	}
}

// countedOnce reports whether a pod has a claim that only one pod can use and several do. As in kube-scheduler, each of these that goes makes
// up for one that is in use, and all of them count as one.
func (w *storage) countedOnce(id cluster.PodID) bool {
	l := w.st.Labels(w.st.Pod(id).Labels)
	return l != nil && slices.ContainsFunc(l.Claims, func(c cluster.PodClaim) bool {
		return slices.Contains(w.st.PersistentVolumeClaim("shop", c.Name).AccessModes, "ReadWriteOncePod") && w.st.ClaimUsers("shop", c.Name) > 1
	})
}

// slowly judges a node by the rules, read one by one: what VolumeRestrictions, NodeVolumeLimits, VolumeBinding and VolumeZone say of pods
// with claims that are bound and usable, and nobody nominated. It returns the plugin.
func (w *storage) slowly(id cluster.PodID, i cluster.NodeIndex) string {
	st, pod := w.st, w.st.Pod(id)
	mine, name := st.Class(pod.Class).Spec.Disks, st.Nodes.Spec[i].Name
	var wants []cluster.PodClaim
	if l := st.Labels(pod.Labels); l != nil {
		wants = l.Claims
	}
	for _, other := range st.PodsOn(i) {
		for _, a := range mine {
			for _, b := range st.Class(other.Class).Spec.Disks {
				if a.Kind != "" && a.Kind == b.Kind && a.ID == b.ID && a.Pool == b.Pool && (!a.ReadOnly || !b.ReadOnly) &&
					(a.Kind != cluster.DiskRBD || slices.ContainsFunc(a.Monitors, func(m string) bool { return slices.Contains(b.Monitors, m) })) {
					return VolumeRestrictions
				}
			}
		}
	}
	for _, c := range wants {
		if slices.Contains(st.PersistentVolumeClaim("shop", c.Name).AccessModes, "ReadWriteOncePod") && st.ClaimUsers("shop", c.Name) > 0 {
			return VolumeRestrictions
		}
	}
	volumes := func(pod *cluster.PodRow) map[string]bool {
		out := make(map[string]bool)
		if l := st.Labels(pod.Labels); l != nil {
			for _, c := range l.Claims {
				v := st.PersistentVolume(st.PersistentVolumeClaim("shop", c.Name).Volume)
				out[v.Driver+"/"+v.Handle] = true
			}
		}
		return out
	}
	if node := st.CSINode(name); node != nil {
		attached, fresh := make(map[string]bool), volumes(pod)
		for _, other := range st.PodsOn(i) {
			for v := range volumes(other) {
				attached[v] = true
				delete(fresh, v)
			}
		}
		for a := range st.VolumeAttachments() {
			if a.Node == name {
				attached[a.Attacher+"/"+st.PersistentVolume(a.Volume).Handle] = true
			}
		}
		for _, d := range node.Drivers {
			count := func(of map[string]bool) (n int32) {
				for v := range of {
					if strings.HasPrefix(v, d.Name+"/") {
						n++
					}
				}
				return n
			}
			if n := count(fresh); d.Limited && n > 0 && count(attached)+n > d.Limit {
				return NodeVolumeLimits
			}
		}
	}
	zone := string("ab"[int(i)%2])
	for _, c := range wants {
		if v := st.PersistentVolume(st.PersistentVolumeClaim("shop", c.Name).Volume); v.HasAffinity && v.Affinity[0].Expressions[0].Values[0] != zone {
			return VolumeBinding
		}
	}
	for _, c := range wants {
		if z, has := cluster.ValueOf(st.PersistentVolume(st.PersistentVolumeClaim("shop", c.Name).Volume).Labels, "topology.kubernetes.io/zone"); has && z != zone {
			return VolumeZone
		}
	}
	return ""
}

func TestVolumesAreJudgedAsByTheRulesReadOneByOne(t *testing.T) {
	said := make(map[string]int)
	const candidates = "candidates"
	clustertest.CheckUntil(t, clustertest.Unseen(said, "", VolumeRestrictions, NodeVolumeLimits, VolumeBinding, VolumeZone, candidates), func(t *rapid.T) {
		w := newStorage(t, rapid.IntRange(1, 4).Draw(t, "nodes"))
		if rapid.Bool().Draw(t, "preemption sees volumes") {
			w.seesVolumes()
		}
		e := NewEvaluator(EvaluatorConfig{Parallelism: 1})
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		names := []string{"c0", "c1", "c2", "c3", "c4"}
		one := func(of []string) string { return of[rng.IntN(len(of))] }
		bind := func(name string) {
			w.bound(name, func(c *cluster.PersistentVolumeClaim, v *cluster.PersistentVolume) {
				v.Driver, v.Handle = one([]string{"csi", "csi", "other"}), one([]string{"h0", "h1", "h2", "h3"})
				if rng.IntN(4) == 0 {
					c.AccessModes = []string{"ReadWriteOncePod"}
				}
				if zone := one([]string{"a", "b"}); rng.IntN(6) == 0 {
					v.Labels = []cluster.Label{{Key: "topology.kubernetes.io/zone", Value: zone}}
				} else if rng.IntN(6) == 0 {
					v.HasAffinity, v.Affinity = true, []cluster.NodeSelectorTerm{{Expressions: []cluster.Requirement{{Key: "topology.kubernetes.io/zone", Operator: "In", Values: []string{zone}}}}}
				}
			})
		}
		for _, name := range names {
			bind(name)
		}
		pods := 0
		add := func(node string) cluster.PodID {
			var disks []cluster.Disk
			var wants []cluster.PodClaim
			first := rng.IntN(len(names))
			for k := range rng.IntN(3) {
				wants = append(wants, cluster.PodClaim{Name: names[(first+k)%len(names)]})
			}
			if rng.IntN(4) == 0 {
				disks = append(disks, cluster.Disk{Kind: one([]string{cluster.DiskGCE, cluster.DiskRBD}), ID: one([]string{"d", "e"}), ReadOnly: rng.IntN(2) == 0, Monitors: []string{one([]string{"m", "n"})}})
			}
			pods++
			priority := int32(rng.IntN(2))
			if node == "" {
				priority = 1
			}
			return w.pod(fmt.Sprint("p-", pods), node, priority, disks, wants...)
		}
		node := func() string { return w.st.Nodes.Spec[rng.IntN(w.st.Nodes.Len())].Name }
		var judged []cluster.PodID
		for range 4 {
			judged = append(judged, add(""))
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch rng.IntN(6) {
			case 0, 1:
				add(node())
			case 2:
				for id, row := range w.st.Pods() {
					if row.Placed() && rng.IntN(3) == 0 {
						w.apply(cluster.PodRemoved{ID: id})
						break
					}
				}
			case 3:
				bind(one(names))
			case 4:
				w.set(&cluster.CSINode{Name: node(), Drivers: []cluster.NodeDriver{{Name: "csi", Limited: rng.IntN(4) > 0, Limit: int32(rng.IntN(3))}}})
			case 5:
				w.set(&cluster.VolumeAttachment{Name: one(names), Attacher: "csi", Node: node(), Volume: "pv-" + one(names)})
			}
			for _, id := range judged {
				s := SubjectOf(&w.st.Pod(id).Pod)
				f, _ := e.Filter(w.st, s, everything(w.st))
				for i := range cluster.NodeIndex(w.st.Nodes.Len()) {
					want, got := w.slowly(id, i), ""
					v, _ := e.Node(w.st, s, cluster.NoPod, i)
					for _, why := range e.Explain(w.st, s, v, i) {
						got = why.Plugin
					}
					if said[want]++; want != got || f.Eligible.Has(i) != (want == "") {
						t.Fatalf("pod %d on n%d: %q, eligible %v, want %q", id, i, got, f.Eligible.Has(i), want)
					}
				}
			}
			// What has to go for a pod, by removing it.
			id := judged[rng.IntN(len(judged))]
			if rng.IntN(5) > 0 || w.countedOnce(id) {
				continue
			}
			found, _ := e.DryRun(w.st, id, everything(w.st), 100)
			want := 0
			for i := range cluster.NodeIndex(w.st.Nodes.Len()) {
				slow, _ := slowDryRun(t, w.st, id, i)
				if slow == nil {
					continue
				}
				want++
				if !slices.ContainsFunc(found.Candidates, func(p Preemption) bool { return gocmp.Equal(p, *slow, cmpopts.EquateEmpty()) }) {
					t.Fatalf("pod %d: candidates %+v, want %+v", id, found.Candidates, *slow)
				}
			}
			if said[candidates] += want; want != len(found.Candidates) {
				t.Fatalf("pod %d: candidates %+v, want %d", id, found.Candidates, want)
			}
		}
	})
}

func TestANomineeOfTheSameVolumeLeavesTheVerdictToWhatElseFailsBesideIt(t *testing.T) {
	w, e := newStorage(t, 1), NewEvaluator(EvaluatorConfig{})
	w.bound("c", nil)
	w.set(&cluster.CSINode{Name: "n0", Drivers: []cluster.NodeDriver{{Name: "csi", Limited: true}}})
	nominee := w.st.Pod(w.pod("nominee", "", 9, nil, claims("c")...)).Pod
	nominee.Nominated = "n0"
	w.apply(cluster.PodSet{ID: 0, Pod: nominee})
	near := cluster.ClassSpec{SchedulerName: "default", Affinity: []cluster.PodTerm{{TopologyKey: "topology.kubernetes.io/zone", Namespaces: []string{"other"}, NamespaceSelector: cluster.LabelSelector{Nothing: true}}}}
	w.apply(cluster.ClassDefined{ID: 900, Spec: near})
	pod := w.st.Pod(w.pod("judged", "", 0, nil, claims("c")...)).Pod
	pod.Class = 900
	w.apply(cluster.PodSet{ID: 1, Pod: pod})
	if diff := gocmp.Diff([]string{"InterPodAffinity: " + ReasonAffinity}, w.says(e, 1)); diff != "" {
		t.Errorf("beside the nominee its volume is not new (-want +got):\n%s", diff)
	}
}
