package cluster_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
)

// whereabouts is the node that each pod is on, and the one that it is nominated to while it is pending; and what is attached to each
// node, or would be.
type whereabouts struct {
	pods     map[cluster.PodID][]cluster.NodeIndex
	attached []attached
	nominees map[cluster.PodID]string // what each would use
	supply   []map[any]bool           // what claims that wait for a consumer can get on each node
	sets     map[string][]int         // how many of them pods have, by class: see cluster.DemandOf
	unserved map[string]bool          // the resources that cannot be read
}

type attached struct {
	volumes []cluster.Attachment
	failing int
}

func whereaboutsOf(st *cluster.State) whereabouts {
	w := whereabouts{pods: make(map[cluster.PodID][]cluster.NodeIndex), unserved: make(map[string]bool)}
	for o := range st.Objects() {
		if u, ok := o.Object.(*cluster.Unserved); ok {
			w.unserved[u.Name] = true
		}
	}
	for id, p := range st.Pods() {
		w.pods[id] = podNodes(st, p)
	}
	for i := range cluster.NodeIndex(st.Nodes.Len()) {
		volumes, failing := clustertest.Attached(st, i)
		w.attached = append(w.attached, attached{volumes, failing})
	}
	w.nominees, _ = clustertest.NomineeVolumes(st)
	w.supply = supplyOf(st)
	w.sets = readDemand(st).Sets
	return w
}

// supplyOf returns the volumes and capacities that each node finds.
func supplyOf(st *cluster.State) (out []map[any]bool) {
	for i := range cluster.NodeIndex(st.Nodes.Len()) {
		found := make(map[any]bool)
		for _, class := range []string{"a", "b"} {
			for sh := range st.FreeVolumes(class, i) {
				for _, v := range sh.Volumes {
					found[v] = true
				}
			}
			for c := range st.StorageCapacities(class, i) {
				found[c] = true
			}
		}
		out = append(out, found)
	}
	return out
}

// touchedBySupply returns the nodes that count as changed, and may, because they find something else than before, or what they find has a class again,
// or more of it is asked for at once.
func touchedBySupply(st *cluster.State, d cluster.Delta, before whereabouts) (nodes []cluster.NodeIndex) {
	set, _ := d.(cluster.ObjectSet)
	_, class := set.Object.(*cluster.StorageClass)
	for asked, sets := range readDemand(st).Sets {
		class = class || len(sets) > max(1, len(before.sets[asked]))
	}
	for i, is := range supplyOf(st) {
		if st.Nodes.Modified[i] == st.Version().Seq && i < len(before.supply) && (class && len(is) > 0 || !maps.Equal(is, before.supply[i])) {
			nodes = append(nodes, cluster.NodeIndex(i))
		}
	}
	return nodes
}

func podNodes(st *cluster.State, p *cluster.PodRow) []cluster.NodeIndex {
	nodes := []cluster.NodeIndex{p.Node}
	if p.Phase == cluster.Pending && p.Nominated != "" {
		nodes = append(nodes, st.Nodes.ByName(p.Nominated))
	}
	return nodes
}

// touched returns the indexes that d changes, NoNode among them: of a pod, where it was and is, and where it was and is
// nominated to.
func touched(st *cluster.State, d cluster.Delta, before whereabouts) []cluster.NodeIndex {
	var id cluster.PodID
	switch d := d.(type) {
	case cluster.NodeSet:
		return []cluster.NodeIndex{d.Index}
	case cluster.NodeRemoved:
		return []cluster.NodeIndex{d.Index}
	case cluster.PodSet:
		id = d.ID
	case cluster.PodAssumed:
		id = d.ID
	case cluster.PodForgotten:
		id = d.ID
	case cluster.PodNominated:
		id = d.ID
	case cluster.PreemptionStarted:
		id = d.ID
	case cluster.PreemptionEnded:
		var nodes []cluster.NodeIndex
		for _, spared := range d.Spared {
			if p := st.Pod(spared); p != nil {
				nodes = append(nodes, p.Node)
			}
		}
		return nodes
	case cluster.PodRemoved:
		return before.pods[d.ID]
	case cluster.ObjectSet:
		return touchedByObject(st, d.Object.Key(), before)
	case cluster.ObjectRemoved:
		return touchedByObject(st, d.ObjectKey, before)
	default:
		return nil
	}
	return append(podNodes(st, st.Pod(id)), before.pods[id]...)
}

// touchedByObject returns the nodes of which an object says something: that of a CSINode, and those to which others are attached then, or
// would be by pods that are nominated there.
func touchedByObject(st *cluster.State, key cluster.ObjectKey, before whereabouts) (nodes []cluster.NodeIndex) {
	if key.Kind == cluster.CSINodeKind {
		nodes = append(nodes, st.Nodes.ByName(key.Name))
	}
	if before.unserved[key.Name] && key.Kind == cluster.UnservedKind && st.Unserved(key.Name) == nil { // it can be read again
		for i := range cluster.NodeIndex(st.Nodes.Len()) {
			if st.Nodes.Live.Has(i) {
				nodes = append(nodes, i)
			}
		}
	}
	for i, was := range before.attached {
		if volumes, failing := clustertest.Attached(st, cluster.NodeIndex(i)); failing != was.failing || !slices.Equal(volumes, was.volumes) {
			nodes = append(nodes, cluster.NodeIndex(i))
		}
	}
	nominees, _ := clustertest.NomineeVolumes(st)
	for id, is := range nominees {
		if is != before.nominees[id] {
			nodes = append(nodes, st.Nodes.ByName(st.Pod(id).Nominated))
		}
	}
	return nodes
}

func TestChangedSinceReportsExactlyTheChangedNodes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		changed := make(map[cluster.NodeIndex]cluster.Seq) // when each was last changed
		walk(t, whereaboutsOf, func(st *cluster.State, d cluster.Delta, before whereabouts) {
			for _, i := range append(touched(st, d, before), touchedBySupply(st, d, before)...) {
				if i != cluster.NoNode {
					changed[i] = st.Version().Seq
				}
			}
			since := cluster.Seq(rapid.IntRange(0, int(st.Version().Seq)).Draw(t, "since"))
			first := cluster.NodeIndex(rapid.IntRange(0, st.Nodes.Len()+64).Draw(t, "first"))
			r := cluster.Range{First: first, End: first + cluster.NodeIndex(rapid.IntRange(0, st.Nodes.Len()+64).Draw(t, "len"))}
			var got, want []cluster.NodeIndex
			st.Nodes.ChangedSince(since, r, func(i cluster.NodeIndex) { got = append(got, i) })
			for i := r.First; i < r.End; i++ {
				if changed[i] > since {
					want = append(want, i)
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("after %+v, changed since %d within %v: %v, want %v", d, since, r, got, want)
			}
		})
	})
}

// marks are the seqs that a state keeps of its last changes, and what they are of.
type marks struct {
	spec                 []cluster.Seq
	namespaces, terms    cluster.Seq
	keysModified         cluster.Seq
	keys                 map[string]bool // that some node has
	selectors            map[string]cluster.Seq
	termClasses          []cluster.ClassID
	classPods, labelPods map[int32]int

	volumeObjects, volumeUses, volumes cluster.Seq
	objects                            map[cluster.ObjectKey]bool
	uses                               string // who uses claims, on how many nodes volumes are used, and what has been chosen
}

func marksOf(st *cluster.State) marks {
	m := marks{
		spec: slices.Clone(st.Nodes.SpecModified), namespaces: st.NamespacesModified, terms: st.TermsModified,
		selectors: make(map[string]cluster.Seq), termClasses: slices.Clone(st.TermClasses()),
		classPods: make(map[int32]int), labelPods: make(map[int32]int), keysModified: st.KeysModified, keys: make(map[string]bool),
	}
	m.volumeObjects, m.volumeUses, m.volumes = st.VolumeObjectsModified(), st.VolumeUsesModified(), st.VolumesModified()
	m.uses, m.objects = clustertest.Uses(st), make(map[cluster.ObjectKey]bool)
	for id := range st.Pods() {
		if chosen := st.Chosen(id); len(chosen) > 0 {
			m.uses += fmt.Sprintln(id, chosen)
		}
	}
	for o := range st.Objects() {
		m.objects[o.Object.Key()] = true
	}
	for i := range st.Nodes.Labels {
		for _, l := range st.Nodes.Labels[i] {
			m.keys[st.Symbols.Text(l.Key)] = true
		}
	}
	for _, namespace := range []string{"default", "dev", "prod", "never-seen"} {
		m.selectors[namespace] = st.SelectorsModified(namespace)
	}
	for _, c := range st.Classes() {
		m.classPods[int32(c.ID)] = c.Pods
	}
	for _, l := range st.LabelSets() {
		m.labelPods[int32(l.ID)] = l.Pods
	}
	return m
}

// isOfVolumes reports whether a delta changes an object that volumes are made of.
func isOfVolumes(d cluster.Delta, before map[cluster.ObjectKey]bool) bool {
	of := func(key cluster.ObjectKey) bool {
		return key.Kind.OfVolumes() || key.Kind == cluster.UnservedKind
	}
	switch d := d.(type) {
	case cluster.ObjectSet:
		return of(d.Object.Key())
	case cluster.ObjectRemoved:
		return of(d.ObjectKey) && before[d.ObjectKey]
	}
	return false
}

func movesPods(d cluster.Delta) bool {
	switch d.(type) {
	case cluster.PodSet, cluster.PodAssumed, cluster.PodForgotten, cluster.PodRemoved, cluster.NodeSet, cluster.NodeRemoved,
		cluster.PodNominated, cluster.PreemptionStarted:
		return true
	}
	return false
}

func TestMarksMoveOnlyWithWhatTheyAreOf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		known := make(map[[3]string]bool) // services and controllers
		walk(t, marksOf, func(st *cluster.State, d cluster.Delta, want marks) {
			now := st.Version().Seq
			want.spec = append(want.spec, make([]cluster.Seq, st.Nodes.Len()-len(want.spec))...)
			switch d := d.(type) {
			case cluster.NodeSet:
				want.spec[d.Index] = now
			case cluster.NodeRemoved:
				want.spec[d.Index] = now
			case cluster.NamespaceSet, cluster.NamespaceRemoved:
				want.namespaces = now
			case cluster.SelectorSet:
				want.selectors[d.Namespace] = now
				known[[3]string{d.Kind, d.Namespace, d.Name}] = true
			case cluster.SelectorRemoved:
				if key := [3]string{d.Kind, d.Namespace, d.Name}; known[key] {
					want.selectors[d.Namespace] = now
					delete(known, key)
				}
			}
			if !slices.Equal(want.termClasses, st.TermClasses()) {
				want.terms = now
			}
			got := marksOf(st)
			if isOfVolumes(d, want.objects) {
				want.volumeObjects = now
			}
			if want.uses != got.uses {
				want.volumeUses = now
			} else if movesPods(d) {
				want.volumeUses = got.volumeUses // a pod that is set again leaves and comes back
			}
			if !maps.Equal(want.keys, got.keys) {
				want.keysModified = now
			}
			for _, m := range []struct {
				of        string
				want, got any
			}{
				{"specs of nodes", want.spec, got.spec},
				{"namespaces", want.namespaces, got.namespaces},
				{"keys of nodes", want.keysModified, got.keysModified},
				{"classes with terms", want.terms, got.terms},
				{"selectors", want.selectors, got.selectors},
				{"what volumes are made of", want.volumeObjects, got.volumeObjects},
				{"who uses volumes", want.volumeUses, got.volumeUses},
				{"volumes", max(want.volumeObjects, want.volumeUses), got.volumes},
			} {
				if diff := cmp.Diff(m.want, m.got); diff != "" {
					t.Fatalf("%s last changed, after %+v (-want +got):\n%s", m.of, d, diff)
				}
			}
		})
	})
}

func TestClassesAndLabelSetsGoWithTheirLastPod(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		walk(t, marksOf, func(st *cluster.State, d cluster.Delta, before marks) {
			for id, pods := range before.classPods {
				if c := st.Class(cluster.ClassID(id)); (c == nil || c.Pods == 0) && pods > 0 != (c == nil) {
					t.Fatalf("class %d had %d pods, and is %+v after %+v", id, pods, c, d)
				}
			}
			for id, pods := range before.labelPods {
				if l := st.Labels(cluster.LabelsID(id)); (l == nil || l.Pods == 0) && pods > 0 != (l == nil) {
					t.Fatalf("label set %d had %d pods, and is %+v after %+v", id, pods, l, d)
				}
			}
		})
	})
}

// apply applies deltas, all of which must be good.
func apply(t testing.TB, st *cluster.State, deltas ...cluster.Delta) {
	t.Helper()
	for _, d := range deltas {
		if err := st.Apply(d); err != nil {
			t.Fatalf("Apply(%+v): %v", d, err)
		}
	}
}

// What selectors see of a pod, and where it is nominated to, is in no column of a node, and yet decides what fits there; so does whether all can be read.
func TestAChangeOfAPodThatSelectorsOrFiltersSeeTouchesItsNodes(t *testing.T) {
	pod := func(change func(*cluster.Pod)) cluster.PodSet {
		p := cluster.Pod{UID: "p", Class: 1, Labels: 1}
		change(&p)
		return cluster.PodSet{ID: 0, Pod: p}
	}
	unchanged := func(*cluster.Pod) {}
	onA := func(p *cluster.Pod) { p.NodeName = "a" }
	toA := func(p *cluster.Pod) { p.Nominated = "a" }
	unserved := &cluster.Unserved{Name: "csinodes"}
	for _, c := range []struct {
		name   string
		before []cluster.Delta
		change cluster.Delta
		want   []cluster.NodeIndex // a is 0, b is 1
	}{
		{"new labels of a bound pod", []cluster.Delta{pod(onA)}, pod(func(p *cluster.Pod) { p.NodeName, p.Labels = "a", 2 }), []cluster.NodeIndex{0}},
		{"no labels any more", []cluster.Delta{pod(onA)}, pod(func(p *cluster.Pod) { p.NodeName, p.Labels = "a", cluster.NoLabels }), []cluster.NodeIndex{0}},
		{"deletion of a bound pod", []cluster.Delta{pod(onA)}, pod(func(p *cluster.Pod) { p.NodeName, p.Deleting = "a", true }), []cluster.NodeIndex{0}},
		{
			"deletion of an assumed pod", []cluster.Delta{pod(unchanged), cluster.PodAssumed{ID: 0, Node: 0, Attempt: 1}},
			pod(func(p *cluster.Pod) { p.Deleting = true }), []cluster.NodeIndex{0},
		},
		{"deletion of a pending pod", []cluster.Delta{pod(unchanged)}, pod(func(p *cluster.Pod) { p.Deleting = true }), nil},
		{"nomination", []cluster.Delta{pod(unchanged)}, pod(toA), []cluster.NodeIndex{0}},
		{"nomination to another node", []cluster.Delta{pod(toA)}, pod(func(p *cluster.Pod) { p.Nominated = "b" }), []cluster.NodeIndex{0, 1}},
		{"nomination to a node that is not known", []cluster.Delta{pod(toA)}, pod(func(p *cluster.Pod) { p.Nominated = "c" }), []cluster.NodeIndex{0}},
		{"end of a nomination", []cluster.Delta{pod(toA)}, pod(unchanged), []cluster.NodeIndex{0}},
		{"priority of a nominated pod", []cluster.Delta{pod(toA)}, pod(func(p *cluster.Pod) { p.Nominated, p.Priority = "a", 7 }), []cluster.NodeIndex{0}},
		{"the nominated pod is placed elsewhere", []cluster.Delta{pod(toA)}, cluster.PodAssumed{ID: 0, Node: 1, Attempt: 1}, []cluster.NodeIndex{0, 1}},
		{
			"the nominated pod is pending again", []cluster.Delta{pod(toA), cluster.PodAssumed{ID: 0, Node: 1, Attempt: 1}},
			cluster.PodForgotten{ID: 0}, []cluster.NodeIndex{0, 1},
		},
		{"the nominated pod goes", []cluster.Delta{pod(toA)}, cluster.PodRemoved{ID: 0}, []cluster.NodeIndex{0}},
		{"nomination of a bound pod", []cluster.Delta{pod(onA)}, pod(func(p *cluster.Pod) { p.NodeName, p.Nominated = "a", "b" }), []cluster.NodeIndex{0}},
		{"a resource that cannot be read", nil, cluster.ObjectSet{Object: unserved}, nil},
		{"and why is another reason now", []cluster.Delta{cluster.ObjectSet{Object: unserved}}, cluster.ObjectSet{Object: &cluster.Unserved{Name: "csinodes", Why: "so"}}, nil},
		{"and can be again", []cluster.Delta{cluster.ObjectSet{Object: unserved}}, cluster.ObjectRemoved{ObjectKey: unserved.Key()}, []cluster.NodeIndex{0, 1}},
		{"and always could be", nil, cluster.ObjectRemoved{ObjectKey: unserved.Key()}, nil},
		{"a selector", nil, cluster.SelectorSet{Kind: cluster.KindService, Namespace: "default", Name: "web"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := cluster.New(start)
			apply(t, st,
				cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "a"}}, cluster.NodeSet{Index: 1, Node: cluster.Node{Name: "b"}},
				cluster.ClassDefined{ID: 1}, cluster.LabelsDefined{ID: 1}, cluster.LabelsDefined{ID: 2})
			specs := slices.Clone(st.Nodes.SpecModified)
			apply(t, st, c.before...)
			before := st.Version().Seq
			apply(t, st, c.change)
			var got []cluster.NodeIndex
			st.Nodes.ChangedSince(before, cluster.Range{End: 1000}, func(i cluster.NodeIndex) { got = append(got, i) })
			if !slices.Equal(got, c.want) {
				t.Errorf("changed: %v, want %v", got, c.want)
			}
			if !slices.Equal(st.Nodes.SpecModified, specs) {
				t.Errorf("specs count as changed at %v, want %v", st.Nodes.SpecModified, specs)
			}
		})
	}
}

func TestEverythingCountsAsChangedAtTheRestoredSnapshot(t *testing.T) {
	st := cluster.New(start)
	apply(t, st,
		cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "a"}}, cluster.NodeSet{Index: 130, Node: cluster.Node{Name: "b"}}, cluster.NamespaceSet{Name: "x"},
		cluster.SelectorSet{Kind: cluster.KindReplicaSet, Namespace: "x", Name: "web"}, cluster.SelectorSet{Kind: cluster.KindService, Namespace: "y", Name: "web"},
		cluster.SelectorRemoved{Kind: cluster.KindService, Namespace: "y", Name: "web"})
	other := restored(t, st)
	for since, want := range map[cluster.Seq]int{5: 131, 6: 0} {
		n := 0
		other.Nodes.ChangedSince(since, cluster.Range{End: 1000}, func(cluster.NodeIndex) { n++ })
		if n != want {
			t.Errorf("changed since %d: %d indexes, want %d", since, n, want)
		}
	}
	got := map[string]cluster.Seq{
		"images": other.ImagesModified, "keys of nodes": other.KeysModified, "namespaces": other.NamespacesModified, "classes with terms": other.TermsModified,
		"a node's spec": other.Nodes.SpecModified[130], "selectors of x": other.SelectorsModified("x"),
		"who uses volumes": other.VolumeUsesModified(), "volumes": other.VolumesModified(),
		"selectors of y, which are gone": other.SelectorsModified("y"),
	}
	for of, seq := range got {
		if seq != 6 {
			t.Errorf("%s count as changed at %d, want 6", of, seq)
		}
	}
	apply(t, other, cluster.SelectorSet{Kind: cluster.KindService, Namespace: "y", Name: "web"})
	if x, y := other.SelectorsModified("x"), other.SelectorsModified("y"); x != 6 || y != 7 {
		t.Errorf("behind the snapshot selectors of x count as changed at %d and of y at %d, want 6 and 7", x, y)
	}
}

// The API server copies the zone and the region of a node to each pod that is bound there: that changes the node for selectors, and for nobody else.
func TestLabelsThatAPodGetsOfItsNodeAreNoOtherPods(t *testing.T) {
	const zone, region = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
	label := func(pairs ...string) (out []cluster.Label) {
		for i := 0; i < len(pairs); i += 2 {
			out = append(out, cluster.Label{Key: pairs[i], Value: pairs[i+1]})
		}
		return out
	}
	sets := []cluster.LabelSet{
		{Labels: label("app", "web")},
		{Labels: label("app", "web", region, "r", zone, "z")},
		{Labels: label("app", "web", zone, "z")},
		{Labels: label("app", "web", zone, "y")},
		{Labels: label("app", "db", zone, "z")},
		{Labels: label("app", "web", "rack", "7")},
		{Labels: label(zone, "z")},
		{Labels: label("app", "web", zone, "z"), Controller: cluster.Controller{Kind: cluster.KindReplicaSet, Name: "web"}},
		{Labels: label("app", "web", zone, "z"), Claims: []cluster.PodClaim{{Name: "data"}}},
	}
	for _, tt := range []struct {
		name   string
		was    cluster.LabelsID
		change func(*cluster.Pod)
		alike  bool
	}{
		{"its zone and region", 1, func(p *cluster.Pod) { p.Labels = 2 }, true},
		{"its zone", 1, func(p *cluster.Pod) { p.Labels = 3 }, true},
		{"not its zone any more", 3, func(p *cluster.Pod) { p.Labels = 1 }, true},
		{"the zone of others", 1, func(p *cluster.Pod) { p.Labels = 4 }, false},
		{"its zone instead of the one of others", 4, func(p *cluster.Pod) { p.Labels = 3 }, false},
		{"another label besides", 1, func(p *cluster.Pod) { p.Labels = 5 }, false},
		{"another label that the node has", 1, func(p *cluster.Pod) { p.Labels = 6 }, false},
		{"it had none", cluster.NoLabels, func(p *cluster.Pod) { p.Labels = 7 }, true},
		{"none any more", 7, func(p *cluster.Pod) { p.Labels = cluster.NoLabels }, true},
		{"another controller", 3, func(p *cluster.Pod) { p.Labels = 8 }, false},
		{"a claim", 3, func(p *cluster.Pod) { p.Labels = 9 }, false},
		{"no claim any more", 9, func(p *cluster.Pod) { p.Labels = 3 }, false},
		{"it starts", 1, func(p *cluster.Pod) { p.Started = 7 }, true},
		{"it is being deleted", 1, func(p *cluster.Pod) { p.Deleting = true }, true},
		{"its zone, and another class", 1, func(p *cluster.Pod) { p.Labels, p.Class = 3, 2 }, false},
		{"its zone, and another priority", 1, func(p *cluster.Pod) { p.Labels, p.Priority = 3, 7 }, false},
		{"its zone, on another node", 1, func(p *cluster.Pod) { p.Labels, p.NodeName = 3, "b" }, false},
	} {
		for _, assumed := range []bool{false, true} {
			st := cluster.New(start)
			apply(t, st, cluster.NodeSet{Index: 0, Node: cluster.Node{Name: "a", Labels: label("rack", "7", region, "r", zone, "z")}}, cluster.NodeSet{Index: 1, Node: cluster.Node{Name: "b"}},
				cluster.ClassDefined{ID: 1}, cluster.ClassDefined{ID: 2})
			for k, set := range sets {
				apply(t, st, cluster.LabelsDefined{ID: cluster.LabelsID(k + 1), Set: set})
			}
			pod := cluster.Pod{UID: "p", Class: 1, Labels: tt.was, NodeName: "a"}
			if assumed {
				pod.NodeName = ""
			}
			apply(t, st, cluster.PodSet{ID: 0, Pod: pod})
			if assumed {
				apply(t, st, cluster.PodAssumed{ID: 0, Node: 0, Attempt: 1})
			}
			before := st.Version().Seq
			pod.NodeName = "a"
			tt.change(&pod)
			apply(t, st, cluster.PodSet{ID: 0, Pod: pod})
			if st.Nodes.Modified[0] != before+1 {
				t.Errorf("%s: node a has changed at %d, want %d", tt.name, st.Nodes.Modified[0], before+1)
			}
			if alike := st.Nodes.PodsModified[0] <= before; alike != tt.alike {
				t.Errorf("%s (assumed before: %v): the pod is the same: %v, want %v", tt.name, assumed, alike, tt.alike)
			}
			apply(t, st, cluster.PodRemoved{ID: 0})
			if now := st.Version().Seq; max(st.Nodes.PodsModified[0], st.Nodes.PodsModified[1]) != now {
				t.Errorf("%s: it is gone, and no node has changed", tt.name)
			}
		}
	}
}
