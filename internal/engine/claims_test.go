package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
)

// lackTexts says what a node lacks for a pod, in words.
func (w *storage) lackTexts(e *Evaluator, id cluster.PodID, i cluster.NodeIndex) (out []string) {
	lacks, _ := e.Shortfall(w.st, id, i)
	for k := range lacks {
		out = append(out, lacks[k].Plugin+": "+lacks[k].Text(Blocker{}))
	}
	return out
}

// A verdict has one reason of one plugin, or two. What a node lacks is all of it, by claim.
func TestANodeLacksSomethingForEachClaimThatItHasNothingFor(t *testing.T) {
	w, e := newStorage(t, 2), NewEvaluator(EvaluatorConfig{})
	w.late("local", noProvisioner, nil)
	w.free("small", "local", 5<<30, "a", nil)
	w.waiting("data", "local", 10<<30, nil)
	w.bound("logs", func(_ *cluster.PersistentVolumeClaim, v *cluster.PersistentVolume) {
		v.HasAffinity, v.Affinity = true, inZoneTerm("b")
	})
	w.bound("far", inZone("b"))
	w.set(&cluster.CSINode{Name: "n0", Drivers: []cluster.NodeDriver{{Name: "csi", Limited: true, Limit: 1}}})
	id := w.pod("p", "", 0, nil, claims("data", "logs", "far")...)
	want := []string{
		"NodeVolumeLimits: claims logs and far: 2 more volumes of the driver csi would be attached to it, which takes 1 and has 0",
		"VolumeBinding: claim logs: volume pv-logs can be reached only where topology.kubernetes.io/zone=b",
		"VolumeBinding: claim data: no volume of class local with 10Gi is free that can be reached from it; the largest has 5Gi; the class provisions none",
		"VolumeZone: claim far: volume pv-far is only where topology.kubernetes.io/zone=b",
	}
	if diff := gocmp.Diff(want, w.lackTexts(e, id, 0)); diff != "" {
		t.Errorf("n0 (-want +got):\n%s", diff)
	}
	want = []string{strings.Replace(want[2], "; the largest has 5Gi", "", 1)}
	if diff := gocmp.Diff(want, w.lackTexts(e, id, 1)); diff != "" {
		t.Errorf("n1 (-want +got):\n%s", diff)
	}
}

// drawStorage is a cluster of four nodes with claims in all states, volumes, room and limits, and pods some of which are placed.
func drawStorage(t *rapid.T) (*storage, []cluster.PodID) {
	n := func(label string, n int) int { return rapid.IntRange(0, n-1).Draw(t, label) }
	w := newStorage(t, 4)
	w.late("late", rapid.SampledFrom([]string{"csi", noProvisioner}).Draw(t, "by"), nil)
	w.late("other", noProvisioner, nil)
	w.set(&cluster.StorageClass{Name: "now", Provisioner: "csi", Mode: cluster.BindImmediately}, &cluster.CSIDriver{Name: "csi", StorageCapacity: n("counted", 2) == 0})
	for k := range 4 {
		w.set(&cluster.CSINode{Name: fmt.Sprint("n", k), Migrated: []string{"aws"}, Drivers: []cluster.NodeDriver{{Name: "csi", Limited: n("limited", 4) > 0, Limit: int32(n("limit", 3))}}})
	}
	names := []string{"b0", "b1", "b2", "c0", "c1", "c2"}
	for _, name := range names[:3] {
		if n("there", 12) == 0 {
			continue
		}
		w.bound(name, func(c *cluster.PersistentVolumeClaim, v *cluster.PersistentVolume) {
			zone := rapid.SampledFrom([]string{"a", "b", "nowhere"}).Draw(t, "bound in")
			switch n("where", 5) {
			case 0:
				v.HasAffinity, v.Affinity = true, inZoneTerm(zone)
			case 1:
				inZone(zone)(c, v)
			case 2:
				v.Driver, v.Handle = "", ""
				v.Migration = cluster.Migration{Plugin: "aws", Driver: "csi", Handle: "h-" + name}
				v.HasMigratedAffinity, v.MigratedAffinity = true, inZoneTerm(zone)
			}
			if n("alone", 5) == 0 {
				c.AccessModes = []string{readWriteOncePod}
			}
			switch n("odd", 20) {
			case 0:
				c.Lost = true
			case 1:
				c.Deleting = true
			case 2:
				c.Volume = "gone"
			case 3:
				c.Volume, c.Bound, c.Class = "", false, "now"
			}
		})
	}
	var ids []cluster.PodID
	for k := range 6 {
		by := claims(rapid.SliceOfNDistinct(rapid.SampledFrom(names), 1, 4, rapid.ID[string]).Draw(t, "claims")...)
		var disks []cluster.Disk
		if n("disk", 4) == 0 {
			disks = []cluster.Disk{{Kind: cluster.DiskGCE, ID: rapid.SampledFrom([]string{"d", "e"}).Draw(t, "disk id")}}
		}
		node := ""
		if k < 3 {
			node = fmt.Sprint("n", n("node", 3))
		}
		ids = append(ids, w.pod(fmt.Sprint("p", k), node, int32(n("priority", 2)), disks, by...))
	}
	if n("nominated", 3) == 0 {
		w.apply(cluster.PodNominated{ID: ids[5], Node: "n1"})
	}
	for range n("steps", 25) {
		_ = w.st.Apply(supplyOp(t, w)) // what does not fit changes nothing
	}
	return w, ids
}

// TestANodeLacksSomethingOfEveryVolumePluginThatAloneRejectsIt asks each plugin alone, and each claim alone: a pod that has no other.
func TestANodeLacksSomethingOfEveryVolumePluginThatAloneRejectsIt(t *testing.T) {
	seen := make(map[string]int)
	clustertest.CheckUntil(t, clustertest.Unseen(seen,
		ReasonVolumeAffinity, ReasonNoVolume, ReasonNoStorage, ReasonClaimsUnbound, ReasonVolumeLimit, ReasonVolumeZone, ReasonDiskConflict, ReasonClaimConflict,
	), func(t *rapid.T) {
		w, ids := drawStorage(t)
		st, e := w.st, NewEvaluator(EvaluatorConfig{Parallelism: 1})
		all, profile := make(map[cluster.PodID][][]Lack), st.Settings
		for _, id := range ids {
			row := st.Pod(id)
			if row.Placed() {
				continue
			}
			s := SubjectOf(&row.Pod)
			states := make(map[string]ClaimState)
			for _, c := range ClaimsOf(st, id) {
				states[c.Name] = c.State
			}
			for i := range cluster.NodeIndex(st.Nodes.Len()) {
				got, _ := e.Shortfall(st, id, i)
				v, _ := e.Node(st, s, selfOn(st, id, i), i)
				if v.Feasible() != (len(got) == 0) {
					t.Fatalf("pod %d on node %d: verdict %x, lacks %+v", id, i, v, got)
				}
				for _, want := range e.Explain(st, s, v, i) {
					if !slices.ContainsFunc(got, func(l Lack) bool { return l.Plugin == want.Plugin && l.Reason == want.Reason }) {
						t.Fatalf("pod %d on node %d: %+v is not among the lacks %+v", id, i, want, got)
					}
				}
				for _, l := range got {
					seen[l.Reason]++
					if l.Of == nil {
						continue
					}
					for _, name := range l.Of.Claims {
						if _, of := states[name]; !of {
							t.Fatalf("pod %d: claim %q is none of its, which are %v", id, name, states)
						}
					}
					if of := l.Of; of.Class != "" && of.Volume == "" && of.Most >= of.Wanted {
						t.Fatalf("pod %d on node %d: there is enough: %+v", id, i, of)
					}
					if l.Reason == ReasonVolumeLimit && (l.Of.New == 0 || l.Of.Attached+l.Of.New <= l.Of.Limit) {
						t.Fatalf("pod %d on node %d: there is room: %+v", id, i, l.Of)
					}
				}
				all[id] = append(all[id], got)
			}
			refuses := false
			for _, state := range states {
				refuses = refuses || state.Refuses()
			}
			if refused := decidedByVolumes(e, st, s); refused != refuses {
				t.Fatalf("pod %d: refused at once is %v, its claims are %v", id, refused, states)
			}
			if refuses {
				delete(all, id)
			}
		}
		for _, plugin := range DefaultProfile("").Filters {
			if PluginOf(plugin).resolve == nil {
				continue
			}
			w.apply(only(st, plugin))
			alone := NewEvaluator(EvaluatorConfig{Parallelism: 1})
			for id, lacks := range all {
				for i := range lacks {
					v, _ := alone.Node(st, SubjectOf(&st.Pod(id).Pod), selfOn(st, id, cluster.NodeIndex(i)), cluster.NodeIndex(i))
					if has := slices.ContainsFunc(lacks[i], func(l Lack) bool { return l.Plugin == plugin }); has == v.Feasible() {
						t.Fatalf("pod %d on node %d: %s alone says %x, lacks %+v", id, i, plugin, v, lacks[i])
					}
				}
			}
			w.apply(cluster.SettingsSet{Settings: profile})
		}
	})
}

// Of several claims, each is told the largest volume that it could have, of what the others leave, and whether one is large enough but not as it wants it.
func TestAClaimIsToldTheLargestVolumeThatIsAsItWantsIt(t *testing.T) {
	w, e := newStorage(t, 1), NewEvaluator(EvaluatorConfig{})
	w.late("late", noProvisioner, nil)
	fast := func(v *cluster.PersistentVolume) { v.Labels = []cluster.Label{{Key: "kind", Value: "fast"}} }
	for k, size := range []int64{3, 5} {
		w.free(fmt.Sprint("fast", k), "late", size, "", fast)
	}
	shared := func(v *cluster.PersistentVolume) { v.AccessModes = []string{"ReadOnlyMany"} }
	for k, size := range []int64{4, 7, 12} {
		w.free(fmt.Sprint("shared", k), "late", size, "", shared)
	}
	selects := func(c *cluster.PersistentVolumeClaim) {
		c.Selector.Requirements = []cluster.Requirement{{Key: "kind", Operator: "In", Values: []string{"fast"}}}
	}
	shares := func(c *cluster.PersistentVolumeClaim) { c.AccessModes = []string{"ReadOnlyMany"} }
	w.waiting("a", "late", 10, selects)
	w.waiting("b", "late", 11, selects)
	w.waiting("c", "late", 12, shares) // it gets one
	w.waiting("d", "late", 13, shares)
	id := w.pod("p", "", 0, nil, claims("a", "b", "c", "d")...)
	lacks, _ := e.Shortfall(w.st, id, 0)
	got := make(map[string]string)
	for _, l := range lacks {
		got[l.Of.Claims[0]] = fmt.Sprint(l.Of.Most, l.Of.Unlike)
	}
	want := map[string]string{"a": "5 false", "b": "5 false", "d": "7 false"} // c has taken what was large enough
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("the largest, and whether another is large enough (-want +got):\n%s", diff)
	}
	w.free("more", "late", 12, "", shared)
	lacks, _ = e.Shortfall(w.st, id, 0)
	for _, l := range lacks {
		if l.Of.Unlike != (l.Of.Wanted <= 12) {
			t.Errorf("%s of 4 claims: one that is large enough is not as it wants it: %v", l.Of.Claims, l.Of.Unlike)
		}
	}
}

// A survey ends between two nodes, of a pod that has many claims, with what it is told there.
func TestASurveyEndsBetweenNodes(t *testing.T) {
	w, e := newStorage(t, 8), NewEvaluator(EvaluatorConfig{})
	w.late("late", noProvisioner, nil)
	var names []string
	for k := range 64 {
		names = append(names, fmt.Sprint("c", k))
		w.waiting(names[k], "late", 1, nil)
	}
	id, enough, visited := w.pod("p", "", 0, nil, claims(names...)...), errors.New("enough"), 0
	_, _, err := e.Survey(w.st, id, func() error {
		if visited == 3 {
			return enough
		}
		return nil
	}, func(cluster.NodeIndex, []Lack) { visited++ })
	if !errors.Is(err, enough) || visited != 3 {
		t.Errorf("after %d nodes: %v, want that it ends after 3", visited, err)
	}
}

// Of a volume only labels of nodes are compared: a term that is about their names admits all.
func TestATermWithoutLabelsHoldsEverywhere(t *testing.T) {
	label := cluster.NodeSelectorTerm{Expressions: []cluster.Requirement{{Key: "zone", Operator: "In", Values: []string{"a"}}}}
	field := cluster.NodeSelectorTerm{Fields: []cluster.Requirement{{Key: "metadata.name", Operator: "In", Values: []string{"n0"}}}}
	for want, terms := range map[string][]cluster.NodeSelectorTerm{"where zone=a": {label}, "": {label, field}, "nowhere": {{}}} {
		if got := WhereText(terms); got != want {
			t.Errorf("%+v is said as %q, want %q", terms, got, want)
		}
	}
}

// A volume may have thousands of terms and values. What is said of them is bounded.
func TestOfManyPlacesOfAVolumeSomeAreSaid(t *testing.T) {
	values := func(n int, long string) (out []string) {
		for k := range n {
			out = append(out, fmt.Sprintf("n%d%s", k, long))
		}
		return out
	}
	in := func(n int, long string) cluster.Requirement {
		return cluster.Requirement{Key: "host", Operator: "In", Values: values(n, long)}
	}
	times := func(n int, r cluster.Requirement) (terms []cluster.NodeSelectorTerm) {
		for range n {
			terms = append(terms, cluster.NodeSelectorTerm{Expressions: []cluster.Requirement{r}})
		}
		return terms
	}
	for want, terms := range map[string][]cluster.NodeSelectorTerm{
		"where host in (n0, n1, n2, n3)":                       times(1, in(4, "")),
		"where host in (n0, n1, n2 and 2 more)":                times(1, in(5, "")),
		"where host in (n0, n1, n2 and 1997 more)":             times(1, in(2000, "")),
		"where host=n0 or host=n0 or host=n0 or host=n0":       times(4, in(1, "")),
		"where host=n0 or host=n0 or host=n0 or one of 2 more": times(5, in(1, "")),
		"":                                    append(times(9, in(1, "")), cluster.NodeSelectorTerm{Fields: []cluster.Requirement{in(1, "")}}),
		"where a, a, a, a":                    {{Expressions: slices.Repeat([]cluster.Requirement{{Key: "a", Operator: "Exists"}}, 4)}},
		"where a, a, a and 2 more conditions": {{Expressions: slices.Repeat([]cluster.Requirement{{Key: "a", Operator: "Exists"}}, 5)}},
	} {
		if got := WhereText(terms); got != want {
			t.Errorf("said is %q, want %q", got, want)
		}
	}
	if got := WhereText(times(3, in(3, strings.Repeat("ü", 5000)))); len(got) > 1<<10 || !utf8.ValidString(got) || !strings.HasSuffix(got, "…") {
		t.Errorf("%d bytes are said", len(got))
	}
}

// Volumes that can be reached from the same nodes are compared with a node once. Each claim is told of its own.
func TestVolumesOfTheSamePlaceAreToldEach(t *testing.T) {
	w, e := newStorage(t, 4), NewEvaluator(EvaluatorConfig{})
	for k, zone := range []string{"b", "a", "b"} {
		w.bound(fmt.Sprint("c", k), func(_ *cluster.PersistentVolumeClaim, v *cluster.PersistentVolume) {
			v.Driver, v.HasAffinity, v.Affinity = "", true, inZoneTerm(zone)
		})
	}
	id := w.pod("p", "", 0, nil, claims("c0", "c1", "c0", "c2")...)
	for i := range cluster.NodeIndex(4) {
		zone, _ := cluster.ValueOf(w.st.Node(i).Labels, "topology.kubernetes.io/zone")
		want := map[string][]string{"a": {"c0 pv-c0", "c2 pv-c2"}, "b": {"c1 pv-c1"}}[zone]
		lacks, _ := e.Shortfall(w.st, id, i)
		var got []string
		for _, l := range lacks {
			got = append(got, l.Of.Claims[0]+" "+l.Of.Volume)
		}
		if !slices.Equal(got, want) {
			t.Errorf("a node of zone %q: %v are out of reach, want %v", zone, got, want)
		}
	}
}

// A claim for which a volume is provisioned for a node gets none of those that there are: they are not told.
func TestAClaimThatHasItsNodeIsToldNoVolumes(t *testing.T) {
	w, e := newStorage(t, 2), NewEvaluator(EvaluatorConfig{})
	w.late("late", "csi", func(c *cluster.StorageClass) { c.Topologies = inZoneTerm("b") })
	w.free("v", "late", 5, "", nil)
	w.waiting("c", "late", 6, func(c *cluster.PersistentVolumeClaim) { c.HasSelectedNode, c.SelectedNode = true, "n0" })
	lacks, _ := e.Shortfall(w.st, w.pod("p", "", 0, nil, claims("c")...), 0)
	if len(lacks) != 1 || lacks[0].Of.Most != -1 || lacks[0].Of.Unlike || !lacks[0].Of.NotThere {
		t.Errorf("%+v, want only that none is provisioned there", lacks)
	}
}
