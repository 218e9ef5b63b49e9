package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// late sets a class whose claims wait for a consumer; edit may be nil.
func (w *storage) late(name, provisioner string, edit func(*cluster.StorageClass)) {
	c := &cluster.StorageClass{Name: name, Provisioner: provisioner, Mode: cluster.BindToFirstConsumer}
	if edit != nil {
		edit(c)
	}
	w.set(c)
}

// waiting sets a claim of a class that waits for a consumer, and asks for so many bytes; edit may be nil.
func (w *storage) waiting(name, class string, request int64, edit func(*cluster.PersistentVolumeClaim)) {
	c := &cluster.PersistentVolumeClaim{
		Namespace: "shop", Name: name, UID: "uid-" + name, Class: class, HasRequest: true, Request: request, AccessModes: []string{"ReadWriteOnce"}, Mode: "Filesystem",
	}
	if edit != nil {
		edit(c)
	}
	w.set(c)
}

// free sets a volume that is nobody's, in a zone unless that is ""; edit may be nil.
func (w *storage) free(name, class string, capacity int64, zone string, edit func(*cluster.PersistentVolume)) {
	v := &cluster.PersistentVolume{
		Name: name, Class: class, Capacity: capacity, AccessModes: []string{"ReadWriteOnce"}, Mode: "Filesystem", Available: true,
	}
	if zone != "" {
		v.HasAffinity = true
		v.Affinity = []cluster.NodeSelectorTerm{{Expressions: []cluster.Requirement{{Key: "topology.kubernetes.io/zone", Operator: "In", Values: []string{zone}}}}}
	}
	if edit != nil {
		edit(v)
	}
	w.set(v)
}

func inZoneTerm(zone string) []cluster.NodeSelectorTerm {
	return []cluster.NodeSelectorTerm{{Expressions: []cluster.Requirement{{Key: "topology.kubernetes.io/zone", Operator: "In", Values: []string{zone}}}}}
}

// chosen says what the claims of a pod get on each node.
func (w *storage) chosen(e *Evaluator, id cluster.PodID) (out []string) {
	s := SubjectOf(&w.st.Pod(id).Pod)
	for i := range cluster.NodeIndex(w.st.Nodes.Len()) {
		v, _ := e.Node(w.st, s, cluster.NoPod, i)
		choices, ok := e.ChooseVolumes(w.st, s, i, nil)
		if ok != v.Feasible() {
			w.t.Fatalf("node %d: volumes are chosen: %v, feasible %v", i, ok, v.Feasible())
		}
		text := ""
		for _, c := range choices {
			text += fmt.Sprintf("%s=%s ", c.Claim, c.Volume)
			if c.UID != "uid-"+c.Claim {
				w.t.Fatalf("claim %+v has another UID", c)
			}
		}
		if !ok {
			for _, why := range e.Explain(w.st, s, v, i) {
				text += why.Reason + "; "
			}
		}
		out = append(out, text)
	}
	return out
}

func TestClaimsThatWaitGetWhatKubeSchedulerWouldFind(t *testing.T) {
	const static = noProvisioner
	no := ReasonNoVolume + "; "
	tests := []struct {
		name   string
		set    func(*storage)
		claims []string
		want   []string // on n0, in zone a, and n1, in zone b
	}{
		{"nothing there", func(w *storage) {
			w.late("late", static, nil)
			w.waiting("c", "late", 5, nil)
		}, []string{"c"}, []string{no, no}},
		{"it is provisioned", func(w *storage) {
			w.late("late", "csi", nil)
			w.waiting("c", "late", 5, nil)
		}, []string{"c"}, []string{"c= ", "c= "}},
		{"provisioned in one zone only", func(w *storage) {
			w.late("late", "csi", func(c *cluster.StorageClass) { c.Topologies = inZoneTerm("b") })
			w.waiting("c", "late", 5, nil)
		}, []string{"c"}, []string{no, "c= "}},
		{"a volume in one zone, which comes before one that is provisioned", func(w *storage) {
			w.late("late", "csi", nil)
			w.free("v", "late", 5, "a", nil)
			w.waiting("c", "late", 5, nil)
		}, []string{"c"}, []string{"c=v ", "c= "}},
		{"the smallest that is large enough, of these one for fewer nodes, of these the first by name", func(w *storage) {
			w.late("late", static, nil)
			for k, size := range []int64{4, 9, 6, 6, 6, 6} {
				w.free(fmt.Sprint("v", k), "late", size, string("ab"[k%2]), nil)
			}
			w.free("v0a", "late", 6, "", nil)
			w.waiting("c", "late", 5, nil)
		}, []string{"c"}, []string{"c=v2 ", "c=v3 "}},
		{"claims in the order of what they ask for", func(w *storage) {
			w.late("late", static, nil)
			w.free("small", "late", 5, "a", nil)
			w.free("large", "late", 50, "a", nil)
			w.waiting("much", "late", 6, nil)
			w.waiting("little", "late", 1, nil)
		}, []string{"much", "little"}, []string{"little=small much=large ", no}},
		{"one volume for two claims", func(w *storage) {
			w.late("late", static, nil)
			w.free("v", "late", 5, "", nil)
			w.waiting("c", "late", 5, nil)
			w.waiting("d", "late", 5, nil)
		}, []string{"c", "d"}, []string{no, no}},
		{"one volume for two claims, of which the other is provisioned", func(w *storage) {
			w.late("late", "csi", nil)
			w.free("v", "late", 5, "b", nil)
			w.waiting("c", "late", 5, nil)
			w.waiting("d", "late", 5, nil)
		}, []string{"c", "d"}, []string{"c= d= ", "c=v d= "}},
		{"volumes that are not as they are wanted", func(w *storage) {
			w.late("late", static, nil)
			w.late("other", static, nil)
			w.free("v0", "other", 5, "", nil)
			w.free("v1", "late", 4, "", nil)
			w.free("v2", "late", 5, "", func(v *cluster.PersistentVolume) { v.Mode = "Block" })
			w.free("v3", "late", 5, "", func(v *cluster.PersistentVolume) { v.AccessModes = []string{"ReadOnlyMany"} })
			w.free("v4", "late", 5, "", func(v *cluster.PersistentVolume) { v.AttributesClass = "gold" })
			w.free("v5", "late", 5, "", func(v *cluster.PersistentVolume) { v.Available = false })
			w.free("v6", "late", 5, "", func(v *cluster.PersistentVolume) { v.Deleting = true })
			w.free("v7", "late", 5, "", func(v *cluster.PersistentVolume) {
				v.HasClaim, v.Claim = true, cluster.ClaimReference{Namespace: "shop", Name: "d"}
			})
			w.waiting("c", "late", 5, nil)
		}, []string{"c"}, []string{no, no}},
		{"a selector", func(w *storage) {
			w.late("late", static, nil)
			w.free("v0", "late", 5, "", nil)
			w.free("v1", "late", 6, "", func(v *cluster.PersistentVolume) { v.Labels = []cluster.Label{{Key: "kind", Value: "fast"}} })
			w.waiting("c", "late", 5, func(c *cluster.PersistentVolumeClaim) {
				c.Selector.Requirements = []cluster.Requirement{{Key: "kind", Operator: "In", Values: []string{"fast"}}}
			})
		}, []string{"c"}, []string{"c=v1 ", "c=v1 "}},
		{"a volume that is kept for the claim, though there is a smaller one", func(w *storage) {
			w.late("late", "csi", nil)
			w.free("v0", "late", 5, "", nil)
			w.free("v1", "late", 50, "b", func(v *cluster.PersistentVolume) {
				v.HasClaim, v.Claim = true, cluster.ClaimReference{Namespace: "shop", Name: "c"}
			})
			w.waiting("c", "late", 5, nil)
		}, []string{"c"}, []string{"c= ", "c=v1 "}}, // kube-scheduler looks for no other, but has one provisioned
		{"a volume that was the claim's of another UID", func(w *storage) {
			w.late("late", static, nil)
			w.free("v", "late", 5, "", func(v *cluster.PersistentVolume) {
				v.HasClaim, v.Claim = true, cluster.ClaimReference{Namespace: "shop", Name: "c", UID: "older"}
			})
			w.waiting("c", "late", 5, nil)
		}, []string{"c"}, []string{no, no}},
		{"a claim that has a node", func(w *storage) {
			w.late("late", "csi", nil)
			w.free("v", "late", 5, "", nil)
			w.waiting("c", "late", 5, func(c *cluster.PersistentVolumeClaim) { c.HasSelectedNode, c.SelectedNode = true, "n1" })
		}, []string{"c"}, []string{no, "c= "}},
		{"room in one zone", func(w *storage) {
			w.late("late", "csi", nil)
			w.set(&cluster.CSIDriver{Name: "csi", StorageCapacity: true})
			for zone, limit := range map[string]int64{"a": 4, "b": 5} {
				w.set(&cluster.CSIStorageCapacity{Namespace: "kube-system", Name: zone, Class: "late", HasLimit: true, Limit: limit, Topology: cluster.LabelSelector{
					Requirements: inZoneTerm(zone)[0].Expressions,
				}})
			}
			w.waiting("c", "late", 5, nil)
		}, []string{"c"}, []string{ReasonNoStorage + "; ", "c= "}},
		{"room that a driver does not ask for", func(w *storage) {
			w.late("late", "csi", nil)
			w.set(&cluster.CSIDriver{Name: "csi"})
			w.waiting("c", "late", 5, nil)
		}, []string{"c"}, []string{"c= ", "c= "}},
		{"claims of which some select what there is not", func(w *storage) {
			w.late("late", "roomy", nil)
			for _, name := range []string{"v0", "v1"} {
				w.free(name, "late", 5, "", nil)
			}
			w.waiting("a", "late", 1, func(c *cluster.PersistentVolumeClaim) {
				c.Selector.Requirements = []cluster.Requirement{{Key: "kind", Operator: "In", Values: []string{"fast"}}}
			})
			w.waiting("b", "late", 1, func(c *cluster.PersistentVolumeClaim) { c.AccessModes = []string{"ReadOnlyMany"} })
			w.waiting("c", "late", 1, func(c *cluster.PersistentVolumeClaim) { c.AttributesClass = "gold" })
			w.waiting("d", "late", 2, nil)
			w.waiting("e", "late", 2, nil)
		}, []string{"a", "b", "c", "d", "e"}, []string{"a= b= c= d=v0 e=v1 ", "a= b= c= d=v0 e=v1 "}},
		{"room of two classes", func(w *storage) {
			w.late("late", "roomy", nil)
			w.late("later", "roomy", nil)
			w.set(&cluster.CSIDriver{Name: "roomy", StorageCapacity: true})
			for class, zone := range map[string]string{"late": "a", "later": "b"} {
				w.set(&cluster.CSIStorageCapacity{Namespace: "kube-system", Name: class, Class: class, HasLimit: true, Limit: 6, Topology: cluster.LabelSelector{
					Requirements: inZoneTerm(zone)[0].Expressions,
				}})
			}
			w.set(&cluster.CSIStorageCapacity{Namespace: "kube-system", Name: "everywhere", Class: "late", HasLimit: true, Limit: 5})
			w.waiting("a", "late", 5, nil)
			w.waiting("b", "late", 6, nil)
			w.waiting("c", "later", 1, nil)
		}, []string{"a", "b", "c"}, []string{ReasonNoStorage + "; ", ReasonNoStorage + "; "}},
		{"two reasons", func(w *storage) {
			w.bound("b", func(_ *cluster.PersistentVolumeClaim, v *cluster.PersistentVolume) {
				v.HasAffinity, v.Affinity = true, inZoneTerm("b")
			})
			w.late("late", static, nil)
			w.free("v", "late", 5, "b", nil)
			w.waiting("c", "late", 5, nil)
		}, []string{"b", "c"}, []string{no + ReasonVolumeAffinity + "; ", "c=v "}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w, e := newStorage(t, 2), NewEvaluator(EvaluatorConfig{})
			tt.set(w)
			id := w.pod("judged", "", 0, nil, claims(tt.claims...)...)
			if diff := gocmp.Diff(tt.want, w.chosen(e, id)); diff != "" {
				t.Errorf("on n0 and n1 (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatHasBeenChosenForOnePodIsNotForAnother(t *testing.T) {
	w, e := newStorage(t, 2), NewEvaluator(EvaluatorConfig{})
	w.late("late", noProvisioner, nil)
	w.late("made", "csi", nil)
	w.free("v0", "late", 5, "", nil)
	w.free("v1", "late", 6, "a", nil)
	for _, name := range []string{"c", "d"} {
		w.waiting(name, "late", 5, nil)
	}
	w.waiting("m", "made", 5, nil)
	one := w.pod("one", "", 0, nil, claims("c", "m")...)
	two := w.pod("two", "", 0, nil, claims("d")...)
	same := w.pod("same", "", 0, nil, claims("m", "c")...)
	check := func(when string, id cluster.PodID, want ...string) {
		t.Helper()
		if diff := gocmp.Diff(want, w.chosen(e, id)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	check("before", two, "d=v0 ", "d=v0 ")
	assume := func(id cluster.PodID, node cluster.NodeIndex) {
		t.Helper()
		choices, ok := e.ChooseVolumes(w.st, SubjectOf(&w.st.Pod(id).Pod), node, nil)
		if !ok {
			t.Fatalf("pod %d does not fit on %d", id, node)
		}
		w.apply(cluster.PodAssumed{ID: id, Node: node, Attempt: 1, Volumes: choices})
	}
	assume(one, 1)
	check("when v0 is taken", two, "d=v1 ", ReasonNoVolume+"; ")
	check("one that shares both claims", same, ReasonNoVolume+"; ", "m= c=v0 ")
	assume(same, 1)
	w.apply(cluster.PodForgotten{ID: one})
	check("as long as the other is there", two, "d=v1 ", ReasonNoVolume+"; ")
	w.apply(cluster.PodForgotten{ID: same})
	check("when both have given it back", two, "d=v0 ", "d=v0 ")
	// A claim of the same name is another one.
	assume(one, 0)
	w.waiting("m", "made", 5, func(c *cluster.PersistentVolumeClaim) { c.UID = "uid-m-2" })
	if choices, ok := e.ChooseVolumes(w.st, SubjectOf(&w.st.Pod(same).Pod), 1, nil); !ok || !slices.Contains(choices, cluster.VolumeChoice{Claim: "m", UID: "uid-m-2"}) {
		t.Errorf("%v, %v: a claim that has come anew waits for the node of the one before", choices, ok)
	}
}

// TestPodsOfAStatefulSetAreOfOneSignature: what their claims ask for counts, and not what these are called.
func TestPodsOfAStatefulSetAreOfOneSignature(t *testing.T) {
	w, e := newStorage(t, 2), NewEvaluator(EvaluatorConfig{})
	w.late("late", "csi", nil)
	signatures := make(map[Signature]bool)
	for k := range 5 {
		name := fmt.Sprint("c-", k)
		w.waiting(name, "late", 5, nil)
		signatures[e.Signature(w.st, SubjectOf(&w.st.Pod(w.pod(name, "", 0, nil, claims(name)...)).Pod))] = true
	}
	if len(signatures) != 1 {
		t.Errorf("%d signatures, want one", len(signatures))
	}
}

// TestNodesChangeOnlyWithWhatMattersOfTheirVolumes counts the nodes that have to be judged again.
func TestNodesChangeOnlyWithWhatMattersOfTheirVolumes(t *testing.T) {
	w := newStorage(t, 4) // n0 and n2 in zone a, n1 and n3 in zone b
	w.late("late", "csi", nil)
	w.set(&cluster.CSIDriver{Name: "csi", StorageCapacity: true})
	for k := range 8 {
		w.free(fmt.Sprint("v", k), "late", int64(k), "a", nil)
	}
	room := func(limit int64) *cluster.CSIStorageCapacity {
		return &cluster.CSIStorageCapacity{Namespace: "s", Name: "b", Class: "late", HasLimit: true, Limit: limit, Topology: cluster.LabelSelector{
			Requirements: inZoneTerm("b")[0].Expressions,
		}}
	}
	w.set(room(100))
	for _, name := range []string{"c", "d"} {
		w.waiting(name, "late", 5, nil)
	}
	w.waiting("e", "late", 7, nil)
	id := w.pod("two", "", 0, nil, claims("c", "d")...)
	w.apply(cluster.SettingsSet{Settings: w.st.Settings}) // so that what follows is of the journal alone
	w.st.Restore(w.st.Version())
	for _, tt := range []struct {
		name string
		d    cluster.Delta
		want []cluster.NodeIndex
	}{
		{"a volume goes that is too small for all", cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.PersistentVolumeKind, Name: "v4"}}, nil},
		{"the last but two goes", cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.PersistentVolumeKind, Name: "v5"}}, nil},
		{"the last but one goes", cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.PersistentVolumeKind, Name: "v6"}}, []cluster.NodeIndex{0, 2}},
		{"room shrinks, but is more than anybody asks for", cluster.ObjectSet{Object: room(8)}, nil},
		{"room for the largest claim is gone", cluster.ObjectSet{Object: room(6)}, []cluster.NodeIndex{1, 3}},
		{"room for all is gone", cluster.ObjectSet{Object: room(4)}, []cluster.NodeIndex{1, 3}},
		{"there is even less", cluster.ObjectSet{Object: room(1)}, nil},
		{"a volume is promised", cluster.PodAssumed{ID: id, Node: 1, Volumes: []cluster.VolumeChoice{{Claim: "c", UID: "uid-c", Volume: "v7"}}}, []cluster.NodeIndex{0, 1, 2}},
	} {
		before := w.st.Version().Seq
		w.apply(tt.d)
		var got []cluster.NodeIndex
		w.st.Nodes.ChangedSince(before, cluster.Range{End: cluster.MaxIndex}, func(i cluster.NodeIndex) { got = append(got, i) })
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: nodes %v count as changed, want %v", tt.name, got, tt.want)
		}
	}
}

// Where claims select volumes by labels, or volumes differ, those that are alike stand for each other.
func TestAVolumeBesideWhichThereAreOthersLikeItMattersForNoNode(t *testing.T) {
	for name, odd := range map[string]func(*storage){
		"claims select by labels": func(w *storage) {
			w.waiting("s", "late", 5, func(c *cluster.PersistentVolumeClaim) {
				c.Selector.Requirements = []cluster.Requirement{{Key: "kind", Operator: "In", Values: []string{"fast"}}}
			})
		},
		"volumes differ": func(w *storage) {
			w.free("z", "late", 9, "a", func(v *cluster.PersistentVolume) { v.AccessModes = nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newStorage(t, 4) // n0 and n2 in zone a
			w.late("late", noProvisioner, nil)
			for k := range 6 {
				w.free(fmt.Sprint("v", k), "late", 5, "a", nil)
			}
			w.free("w", "late", 6, "a", nil) // it does not count: v5 may be what keeps it for a claim of 6
			w.waiting("c", "late", 5, nil)
			w.waiting("d", "late", 5, nil)
			w.pod("two", "", 0, nil, claims("c", "d")...)
			odd(w)
			var got [][]cluster.NodeIndex
			for k := range 6 {
				before := w.st.Version().Seq
				w.apply(cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.PersistentVolumeKind, Name: fmt.Sprint("v", k)}})
				var changed []cluster.NodeIndex
				w.st.Nodes.ChangedSince(before, cluster.Range{End: cluster.MaxIndex}, func(i cluster.NodeIndex) { changed = append(changed, i) })
				got = append(got, changed)
			}
			want := [][]cluster.NodeIndex{nil, nil, nil, nil, {0, 2}, {0, 2}} // the last two: one other is left, or none, and a pod has two claims
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("nodes that count as changed (-want +got):\n%s", diff)
			}
		})
	}
}

// A volume with other labels stands for none that claims select.
func TestAVolumeThatClaimsSelectMattersThoughThereAreOthersThatTheyDoNot(t *testing.T) {
	w := newStorage(t, 4) // n0 and n2 in zone a
	w.late("late", noProvisioner, nil)
	for k := range 4 {
		w.free(fmt.Sprint("v", k), "late", 5, "a", func(v *cluster.PersistentVolume) {
			v.Labels = []cluster.Label{{Key: "kind", Value: "slow"}}
			if k == 1 {
				v.Labels = []cluster.Label{{Key: "kind", Value: "fast"}}
			}
		})
	}
	w.waiting("c", "late", 5, func(c *cluster.PersistentVolumeClaim) {
		c.Selector.Requirements = []cluster.Requirement{{Key: "kind", Operator: "In", Values: []string{"fast"}}}
	})
	w.pod("one", "", 0, nil, claims("c")...)
	for k, want := range [][]cluster.NodeIndex{nil, {0, 2}, nil} {
		before := w.st.Version().Seq
		w.apply(cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.PersistentVolumeKind, Name: fmt.Sprint("v", k)}})
		var got []cluster.NodeIndex
		w.st.Nodes.ChangedSince(before, cluster.Range{End: cluster.MaxIndex}, func(i cluster.NodeIndex) { got = append(got, i) })
		if !slices.Equal(got, want) {
			t.Errorf("without v%d nodes %v count as changed, want %v", k, got, want)
		}
	}
}

// Were it by name that a claim gets one of several that will do, it would get another one's only volume as soon as the one before it in the alphabet
// is gone, though there are others like that one.
func TestAClaimGetsAVolumeThatIsLikeTheOneThatIsGone(t *testing.T) {
	for _, only := range []string{"ReadOnlyMany", "ReadWriteMany"} {
		w, e := newStorage(t, 2), NewEvaluator(EvaluatorConfig{})
		w.late("late", noProvisioner, nil)
		for k := range 4 {
			w.free(fmt.Sprint("v", k), "late", 5, "", func(v *cluster.PersistentVolume) {
				if k == 1 {
					v.AccessModes = []string{only}
				}
			})
		}
		w.waiting("any", "late", 4, func(c *cluster.PersistentVolumeClaim) { c.AccessModes = nil })
		w.waiting("only", "late", 5, func(c *cluster.PersistentVolumeClaim) { c.AccessModes = []string{only} })
		id := w.pod("two", "", 0, nil, claims("any", "only")...)
		judge := func(e *Evaluator) any {
			found, _ := e.Filter(w.st, SubjectOf(&w.st.Pod(id).Pod), everything(w.st))
			return found
		}
		judge(e)
		w.apply(cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.PersistentVolumeKind, Name: "v0"}})
		if diff := gocmp.Diff(judge(NewEvaluator(EvaluatorConfig{})), judge(e)); diff != "" {
			t.Errorf("%s, without v0 (-anew +kept):\n%s", only, diff)
		}
	}
}

// What was found of a claim before its class was made anew is not taken for true of one that asks for the same.
func TestAClassThatIsMadeAnewHasItsNodesJudgedAnew(t *testing.T) {
	w, e := newStorage(t, 2), NewEvaluator(EvaluatorConfig{})
	w.late("late", noProvisioner, nil)
	w.waiting("c", "late", 5, nil)
	id := w.pod("p", "", 0, nil, claims("c")...)
	feasible := func(e *Evaluator) int32 {
		found, _ := e.Filter(w.st, SubjectOf(&w.st.Pod(id).Pod), everything(w.st))
		return found.FeasibleCount
	}
	if n := feasible(e); n != 0 {
		t.Fatalf("%d nodes are feasible without a volume", n)
	}
	w.apply(cluster.ObjectRemoved{ObjectKey: (&cluster.PersistentVolumeClaim{Namespace: "shop", Name: "c"}).Key()})
	w.apply(cluster.ObjectRemoved{ObjectKey: (&cluster.StorageClass{Name: "late"}).Key()})
	w.late("late", noProvisioner, nil)
	w.free("v", "late", 5, "", nil)
	w.waiting("c", "late", 5, nil)
	if n := feasible(e); n != 2 {
		t.Errorf("%d nodes are feasible with a volume for both", n)
	}
}

// supplyOp draws a change of what claims that wait can get.
func supplyOp(t *rapid.T, w *storage) cluster.Delta {
	one := func(what string, from ...string) string { return rapid.SampledFrom(from).Draw(t, what) }
	n := func(what string, most int) int { return rapid.IntRange(0, most).Draw(t, what) }
	set := func(o cluster.Object) cluster.Delta { return cluster.ObjectSet{Object: o} }
	gone := n("gone", 3) == 0
	switch n("of", 9) {
	case 0, 1, 2, 3:
		v := &cluster.PersistentVolume{
			Name: fmt.Sprint("v", n("volume", 11)), Class: one("class", "late", "late", "late", "other"), Capacity: rapid.SampledFrom([]int64{0, 1, 2, 2, 2, 2, 3, 4}).Draw(t, "capacity"),
			AccessModes: []string{"ReadWriteOnce"}, Mode: "Filesystem", Available: true,
		}
		if gone {
			return cluster.ObjectRemoved{ObjectKey: v.Key()}
		}
		if zone := one("zone", "a", "a", "a", "b", ""); zone != "" {
			v.HasAffinity, v.Affinity = true, inZoneTerm(zone)
		}
		switch n("odd", 7) {
		case 0:
			v.AccessModes = nil
		case 1:
			v.Labels = []cluster.Label{{Key: "kind", Value: "fast"}}
		case 2:
			v.HasClaim, v.Claim = true, cluster.ClaimReference{Namespace: "shop", Name: one("claim", "c0", "c1", "c2")}
		}
		return set(v)
	case 4, 5:
		c := &cluster.CSIStorageCapacity{
			Namespace: "s", Name: one("room", "r0", "r1"), Class: one("class", "late", "other"), HasLimit: true, Limit: int64(n("limit", 5)), Capacity: int64(n("capacity", 8)),
		}
		if gone {
			return cluster.ObjectRemoved{ObjectKey: c.Key()}
		}
		if zone := one("zone", "a", "b", ""); zone != "" {
			c.Topology.Requirements = inZoneTerm(zone)[0].Expressions
		}
		return set(c)
	case 6, 7:
		c := &cluster.PersistentVolumeClaim{
			Namespace: "shop", Name: one("claim", "c0", "c1", "c2"), Class: one("class", "late", "late", "other"), HasRequest: true, Request: int64(n("request", 4)),
			AccessModes: []string{"ReadWriteOnce"}, Mode: "Filesystem",
		}
		c.UID = "uid-" + c.Name
		if gone && n("claim gone", 2) == 0 {
			return cluster.ObjectRemoved{ObjectKey: c.Key()}
		}
		switch n("odd", 7) {
		case 0:
			c.AccessModes = nil
		case 1:
			c.Selector.Requirements = []cluster.Requirement{{Key: "kind", Operator: "In", Values: []string{"fast"}}}
		case 2:
			c.Volume = "v0" // which need not be its
		}
		return set(c)
	case 8:
		c := &cluster.StorageClass{Name: one("class", "late", "other"), Provisioner: one("by", "csi", noProvisioner), Mode: cluster.BindToFirstConsumer}
		if gone && n("class gone", 2) == 0 {
			return cluster.ObjectRemoved{ObjectKey: c.Key()}
		}
		return set(c)
	}
	id := rapid.SampledFrom([]cluster.PodID{0, 1, 2, 3}).Draw(t, "pod")
	switch row := w.st.Pod(id); {
	case row == nil:
		return cluster.SettingsSet{Settings: w.st.Settings}
	case row.Placed():
		return cluster.PodForgotten{ID: id}
	}
	node := cluster.NodeIndex(n("node", 3))
	choices, ok := NewEvaluator(EvaluatorConfig{}).ChooseVolumes(w.st, SubjectOf(&w.st.Pod(id).Pod), node, nil)
	if !ok {
		return cluster.SettingsSet{Settings: w.st.Settings}
	}
	return cluster.PodAssumed{ID: id, Node: node, Attempt: 1, Volumes: choices}
}

// TestClaimsThatWaitAreJudgedAsIfNothingWereKnown: whatever becomes of volumes, room, claims and other pods, nodes that do not count as changed are
// judged as before, also for a pod like one that has left meanwhile, and what is chosen can be promised.
func TestClaimsThatWaitAreJudgedAsIfNothingWereKnown(t *testing.T) {
	feasible, refused, chosen, back, scores := 0, 0, 0, 0, make(map[int32]int)
	rapid.Check(t, func(t *rapid.T) {
		w, e := newStorage(t, 4), NewEvaluator(EvaluatorConfig{})
		if rapid.Bool().Draw(t, "scored") {
			w.gated(scoring)
		}
		w.late("late", rapid.SampledFrom([]string{"csi", noProvisioner}).Draw(t, "by"), nil)
		w.late("other", noProvisioner, nil)
		w.set(&cluster.CSIDriver{Name: "csi", StorageCapacity: true})
		pods := [][]string{{"c0"}, {"c1"}, {"c2", "c0"}, {"c1", "c2", "c0"}}
		come := func(k int) { // with a label set of its own, which has left with it
			w.pod("p-"+strings.Join(pods[k], "-"), "", 0, nil, claims(pods[k]...)...)
		}
		for k := range pods {
			come(k)
		}
		w.pod("of the class", "", 0, nil) // so that it stays
		fast := []cluster.Label{{Key: "kind", Value: "fast"}}
		for k := range rapid.IntRange(0, 8).Draw(t, "volumes at first") { // alike, or nearly
			capacity, zone, labels, modes := int64(2), "a", []cluster.Label{{Key: "kind", Value: "slow"}}, []string{"ReadWriteOnce"}
			switch rapid.IntRange(0, 7).Draw(t, "odd") {
			case 0:
				capacity = 3
			case 1:
				zone = ""
			case 2, 3:
				labels = fast
			case 4:
				modes = nil
			}
			w.free(fmt.Sprint("v", k), "late", capacity, zone, func(v *cluster.PersistentVolume) { v.Labels, v.AccessModes = labels, modes })
		}
		for k := range 3 {
			selects, modes := rapid.Bool().Draw(t, "selects"), rapid.SampledFrom([][]string{{"ReadWriteOnce"}, nil}).Draw(t, "modes")
			w.waiting(fmt.Sprint("c", k), "late", rapid.Int64Range(1, 3).Draw(t, "request"), func(c *cluster.PersistentVolumeClaim) {
				if c.AccessModes = modes; selects {
					c.Selector.Requirements = []cluster.Requirement{{Key: "kind", Operator: "In", Values: []string{"fast"}}}
				}
			})
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			k := rapid.IntRange(0, 3*len(pods)).Draw(t, "comes or leaves")
			if k >= len(pods) {
				w.apply(supplyOp(t, w))
			} else if id, there := w.st.PodByUID("uid-p-" + strings.Join(pods[k], "-")); there {
				w.apply(cluster.PodRemoved{ID: id})
			} else {
				come(k)
				back++
			}
			for id := range w.st.Pods() {
				s := SubjectOf(&w.st.Pod(id).Pod)
				got, _ := e.Filter(w.st, s, everything(w.st))
				want, _ := NewEvaluator(EvaluatorConfig{}).Filter(w.st, s, everything(w.st))
				if diff := gocmp.Diff(want, got); diff != "" {
					t.Fatalf("pod %d (-anew +kept):\n%s", id, diff)
				}
				groups, _ := e.Score(w.st, s, everything(w.st), got.Eligible, 100)
				anew, _ := NewEvaluator(EvaluatorConfig{}).Score(w.st, s, everything(w.st), got.Eligible, 100)
				if diff := gocmp.Diff(anew, groups); diff != "" {
					t.Fatalf("pod %d is scored (-anew +kept):\n%s", id, diff)
				}
				for _, g := range groups {
					for _, n := range g.Nodes {
						scores[n.Scores[PluginOf(VolumeBinding).place]]++
					}
				}
				for i, text := range w.says(e, id) {
					choices, ok := e.ChooseVolumes(w.st, SubjectOf(&w.st.Pod(id).Pod), cluster.NodeIndex(i), nil)
					if ok {
						feasible++
						chosen += len(choices)
						if why := w.st.CanPromise("shop", w.st.Node(cluster.NodeIndex(i)).Name, choices); why != "" {
							t.Fatalf("pod %d on node %d: %v cannot be promised: %s", id, i, choices, why)
						}
					} else {
						refused++
					}
					if ok && strings.HasPrefix(text, VolumeBinding) {
						t.Fatalf("pod %d on node %d: %v, though %q", id, i, choices, text)
					}
				}
			}
		}
	})
	if feasible == 0 || refused == 0 || chosen == 0 || back == 0 || len(scores) < 5 || scores[NotScored] == 0 {
		t.Errorf("%d feasible, %d not, %d claims chosen for, %d pods come back, scores %v", feasible, refused, chosen, back, scores)
	}
}

// What was found of a pod with many claims is not taken for true of one like it that comes when it has gone, though what has changed meanwhile could
// not have mattered for any that was there.
func TestAPodThatComesBackIsJudgedByTheVolumesThatThereAreThen(t *testing.T) {
	more, fewer := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		w, e := newStorage(t, 4), NewEvaluator(EvaluatorConfig{})
		w.late("late", noProvisioner, nil)
		w.pod("of the class", "", 0, nil) // so that it stays
		const most = 4
		volumes := 0
		for k := range most {
			w.waiting(fmt.Sprint("c", k), "late", 2, nil)
		}
		was := make(map[int]int32) // nodes on which a pod of so many claims fits
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			k, name := 1+rapid.IntRange(0, most-1).Draw(t, "claims"), ""
			switch name = fmt.Sprint("p", k); rapid.IntRange(0, 9).Draw(t, "of") {
			case 0, 1, 2:
				if _, there := w.st.PodByUID("uid-" + name); !there {
					var of []string
					for c := range k {
						of = append(of, fmt.Sprint("c", c))
					}
					w.pod(name, "", 0, nil, claims(of...)...)
				}
			case 3, 4:
				if id, ok := w.st.PodByUID("uid-" + name); ok {
					w.apply(cluster.PodRemoved{ID: id})
				}
			case 5:
				w.waiting(fmt.Sprint("c", k-1), "late", 2, func(c *cluster.PersistentVolumeClaim) {
					c.Volume = rapid.SampledFrom([]string{"", "", "none"}).Draw(t, "bound to")
				})
			case 6, 7:
				for range rapid.IntRange(1, 3).Draw(t, "come") {
					volumes++
					w.free(fmt.Sprint("v", volumes), "late", rapid.Int64Range(2, 3).Draw(t, "capacity"), "a", func(v *cluster.PersistentVolume) {
						if rapid.IntRange(0, 19).Draw(t, "odd") == 0 {
							v.AccessModes = nil // from then on volumes of the class differ
						}
					})
				}
			default:
				for range min(volumes, rapid.IntRange(1, 3).Draw(t, "go")) {
					w.apply(cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.PersistentVolumeKind, Name: fmt.Sprint("v", volumes)}})
					volumes--
				}
			}
			for id, row := range w.st.Pods() {
				got, _ := e.Filter(w.st, SubjectOf(&row.Pod), everything(w.st))
				want, _ := NewEvaluator(EvaluatorConfig{}).Filter(w.st, SubjectOf(&row.Pod), everything(w.st))
				if diff := gocmp.Diff(want, got); diff != "" {
					t.Fatalf("pod %d (-anew +kept):\n%s", id, diff)
				}
				if labels := w.st.Labels(row.Labels); labels != nil {
					if n := len(labels.Claims); want.FeasibleCount > was[n] {
						more++
					} else if want.FeasibleCount < was[n] {
						fewer++
					}
					was[len(labels.Claims)] = want.FeasibleCount
				}
			}
		}
	})
	if more == 0 || fewer == 0 {
		t.Errorf("more nodes are feasible than before %d times, and fewer %d times", more, fewer)
	}
}

// TestABatchTakesAVolumeOnce: the pods of one commit are placed as if each had come after the others were assumed, with their volumes.
func TestABatchTakesAVolumeOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, e := newStorage(t, 6), NewEvaluator(EvaluatorConfig{})
		w.late("late", noProvisioner, nil)
		for k := range rapid.IntRange(0, 5).Draw(t, "volumes") {
			w.free(fmt.Sprint("v", k), "late", rapid.Int64Range(4, 6).Draw(t, "capacity"), rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "zone"), nil)
		}
		var pods []cluster.PodID
		for k := range rapid.IntRange(1, 6).Draw(t, "pods") {
			name := fmt.Sprint("c", k)
			w.waiting(name, "late", 5, nil)
			pods = append(pods, w.pod(name, "", 0, nil, claims(name)...))
		}
		apart := w.st.Clone()
		s := SubjectOf(&w.st.Pod(pods[0]).Pod)
		nodes := cluster.Range{End: cluster.NodeIndex(w.st.Nodes.Len())}
		found, _ := e.Filter(w.st, s, nodes)
		groups, _ := e.Score(w.st, s, nodes, found.Eligible, len(pods)+16)
		place := func(e *Evaluator, st *cluster.State, p *Placer, id cluster.PodID, index int) string {
			node, placement := p.Choose(id, index)
			if placement != Placed {
				return placement.String()
			}
			s := SubjectOf(&st.Pod(id).Pod)
			choices, ok := e.ChooseVolumes(st, s, node, nil)
			if !ok {
				t.Fatalf("pod %d is placed on %d, where there is no volume for it", id, node)
			}
			apply(t, st, cluster.PodAssumed{ID: id, Node: node, Attempt: 1, Volumes: choices})
			return fmt.Sprint(st.Nodes.Spec[node].Name, choices)
		}
		batch := NewPlacer(e, w.st, w.st.Version().Seq, []Candidates{{s, groups}})
		for _, id := range pods {
			got := place(e, w.st, batch, id, 0)
			if got == Retry.String() {
				return // it ends the batch
			}
			fresh := NewEvaluator(EvaluatorConfig{})
			s := SubjectOf(&apart.Pod(id).Pod)
			found, _ := fresh.Filter(apart, s, nodes)
			groups, _ := fresh.Score(apart, s, nodes, found.Eligible, 16)
			if want := place(fresh, apart, NewPlacer(fresh, apart, apart.Version().Seq, []Candidates{{s, groups}}), id, 0); got != want && want != Retry.String() {
				t.Fatalf("pod %d: %s in the batch, %s by itself", id, got, want)
			}
		}
	})
}

// TestAProfileThatDoesNotFilterByVolumesChoosesNone: kube-scheduler reserves what its filter has found.
func TestAProfileThatDoesNotFilterByVolumesChoosesNone(t *testing.T) {
	w, e := newStorage(t, 2), NewEvaluator(EvaluatorConfig{})
	profile := DefaultProfile("default")
	profile.Filters = slices.DeleteFunc(slices.Clone(profile.Filters), func(name string) bool { return name == VolumeBinding })
	w.apply(cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{profile}}})
	w.late("late", noProvisioner, nil)
	w.waiting("c", "late", 5, nil)
	id := w.pod("p", "", 0, nil, claims("c")...)
	if choices, ok := e.ChooseVolumes(w.st, SubjectOf(&w.st.Pod(id).Pod), 0, nil); !ok || len(choices) > 0 {
		t.Errorf("%v, %v", choices, ok)
	}
}
