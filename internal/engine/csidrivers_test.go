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

// gated changes all profiles.
func (w *storage) gated(edit func(*cluster.Profile)) {
	s := w.st.Settings
	s.Profiles = slices.Clone(s.Profiles)
	for k := range s.Profiles {
		edit(&s.Profiles[k])
	}
	w.apply(cluster.SettingsSet{Settings: s})
}

func scaling(p *cluster.Profile)   { p.VolumeLimitScaling = true }
func requiring(p *cluster.Profile) { p.RequireCSIDrivers = true }

// remove takes objects away.
func (w *storage) remove(objects ...cluster.Object) {
	for _, o := range objects {
		w.apply(cluster.ObjectRemoved{ObjectKey: o.Key()})
	}
}

// wantsDriver is the CSIDriver of one that keeps its volumes off nodes without it.
func wantsDriver(name string) *cluster.CSIDriver {
	return &cluster.CSIDriver{Name: name, PreventPodSchedulingIfMissing: true}
}

func noDriver(name string) string {
	return "NodeVolumeLimits: " + name + ReasonNoDriver + " (resolvable)"
}

func TestVolumesKeepOffNodesWithoutTheirDriver(t *testing.T) {
	const limit = "NodeVolumeLimits: " + ReasonVolumeLimit + " (resolvable)"
	ebs := cluster.Disk{Migration: cluster.Migration{Plugin: "aws", Driver: "csi", Handle: "disk"}}
	migrated := func(_ *cluster.PersistentVolumeClaim, v *cluster.PersistentVolume) {
		v.Driver, v.Handle, v.Migration = "", "", cluster.Migration{Plugin: "aws", Driver: "csi", Handle: "h-c"}
	}
	late := func(provisioner string) func(*storage) {
		return func(w *storage) {
			w.set(&cluster.StorageClass{Name: "late", Provisioner: provisioner, Mode: cluster.BindToFirstConsumer},
				&cluster.PersistentVolumeClaim{Namespace: "shop", Name: "c", Class: "late"})
		}
	}
	bound := func(w *storage) { w.bound("c", nil) }
	optsIn := func(w *storage) { w.set(wantsDriver("csi")) }
	bare := func(w *storage) { w.remove(&cluster.CSINode{Name: "n1"}) }              // n1 has no CSINode
	empty := func(w *storage) { w.set(&cluster.CSINode{Name: "n1"}) }                // n1 has none of the drivers
	other := func(w *storage) { w.bound("d", other); w.set(wantsDriver("another")) } // a second claim, whose driver is nowhere
	for _, tt := range []struct {
		name   string
		world  []func(*storage)
		disks  []cluster.Disk
		claims []cluster.PodClaim
		want   map[string][]string // of n0, which has the driver, and n1, by what is on: "", "scaling", "requiring"
	}{
		{"a driver that asks for it", []func(*storage){bound, optsIn, empty}, nil, claims("c"),
			map[string][]string{"": {"", ""}, "scaling": {"", noDriver("csi")}, "requiring": {"", noDriver("csi")}}},
		{"on a node without a CSINode", []func(*storage){bound, optsIn, bare}, nil, claims("c"),
			map[string][]string{"": {"", ""}, "scaling": {"", noDriver("csi")}, "requiring": {"", noDriver("csi")}}},
		{"a driver that does not ask", []func(*storage){bound, empty, func(w *storage) { w.set(&cluster.CSIDriver{Name: "csi"}) }}, nil, claims("c"),
			map[string][]string{"": {"", ""}, "scaling": {"", ""}, "requiring": {"", noDriver("csi")}}},
		{"a driver without a CSIDriver", []func(*storage){bound, bare}, nil, claims("c"),
			map[string][]string{"": {"", ""}, "scaling": {"", ""}, "requiring": {"", noDriver("csi")}}},
		{"a volume that is to be provisioned", []func(*storage){late("csi"), optsIn, bare}, nil, claims("c"),
			map[string][]string{"": {"", ""}, "scaling": {"", noDriver("csi")}, "requiring": {"", noDriver("csi")}}},
		{"by what may be no CSI driver", []func(*storage){late("rancher.io/local-path"), bare}, nil, claims("c"),
			map[string][]string{"": {"", ""}, "scaling": {"", ""}, "requiring": {"", ""}}},
		{"by a CSI driver that does not ask", []func(*storage){late("csi"), empty, func(w *storage) { w.set(&cluster.CSIDriver{Name: "csi"}) }}, nil, claims("c"),
			map[string][]string{"": {"", ""}, "scaling": {"", ""}, "requiring": {"", noDriver("csi")}}},
		{"an in-tree volume where its plugin is replaced", []func(*storage){func(w *storage) { w.bound("c", migrated) }, optsIn, empty}, nil, claims("c"),
			map[string][]string{"": {"", ""}, "scaling": {"", noDriver("csi")}, "requiring": {"", noDriver("csi")}}},
		{"an in-tree volume where nobody knows", []func(*storage){func(w *storage) { w.bound("c", migrated) }, optsIn, bare}, nil, claims("c"),
			map[string][]string{"": {"", ""}, "scaling": {"", ""}, "requiring": {"", noDriver("csi")}}},
		{"the same and one of the driver's own", []func(*storage){func(w *storage) { w.bound("c", migrated); w.bound("d", nil) }, optsIn, bare}, nil, claims("c", "d"),
			map[string][]string{"": {"", ""}, "scaling": {"", noDriver("csi")}, "requiring": {"", noDriver("csi")}}},
		{"an inline disk", []func(*storage){optsIn, empty}, []cluster.Disk{ebs}, nil,
			map[string][]string{"": {"", ""}, "scaling": {"", noDriver("csi")}, "requiring": {"", noDriver("csi")}}},
		{"an inline disk where nobody knows", []func(*storage){optsIn, bare}, []cluster.Disk{ebs}, nil,
			map[string][]string{"": {"", ""}, "scaling": {"", ""}, "requiring": {"", noDriver("csi")}}},
		{"of several drivers the first", []func(*storage){bound, other, optsIn, empty}, nil, claims("c", "d"),
			map[string][]string{"": {"", ""}, "scaling": {noDriver("another"), noDriver("another")}, "requiring": {noDriver("another"), noDriver("another")}}},
		{"of several drivers the one that is not there", []func(*storage){bound, other, optsIn, empty, func(w *storage) {
			w.set(&cluster.CSINode{Name: "n1", Drivers: []cluster.NodeDriver{{Name: "another"}}})
		}}, nil, claims("c", "d"),
			map[string][]string{"": {"", ""}, "scaling": {noDriver("another"), noDriver("csi")}, "requiring": {noDriver("another"), noDriver("csi")}}},
		{"before limits are read", []func(*storage){bound, other, func(w *storage) {
			w.bound("x", nil)
			w.bound("y", nil)
			w.pod("full", "n0", 0, nil, claims("x", "y")...)
		}}, nil, claims("c", "d"),
			map[string][]string{"": {limit, ""}, "scaling": {noDriver("another"), noDriver("another")}, "requiring": {noDriver("another"), noDriver("another")}}},
		{"no volumes of CSI", []func(*storage){optsIn, bare, func(w *storage) {
			w.bound("c", func(_ *cluster.PersistentVolumeClaim, v *cluster.PersistentVolume) { v.Driver, v.Handle = "", "" })
		}}, nil, claims("c"), map[string][]string{"": {"", ""}, "scaling": {"", ""}, "requiring": {"", ""}}},
	} {
		for on, edit := range map[string]func(*cluster.Profile){"": func(*cluster.Profile) {}, "scaling": scaling, "requiring": requiring} {
			t.Run(fmt.Sprintf("%s/%s", tt.name, on), func(t *testing.T) {
				w := newStorage(t, 2)
				for _, world := range tt.world {
					world(w)
				}
				w.gated(edit)
				id := w.pod("judged", "", 0, tt.disks, tt.claims...)
				if diff := gocmp.Diff(tt.want[on], w.says(NewEvaluator(EvaluatorConfig{}), id)); diff != "" {
					t.Errorf("n0 and n1 (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// other makes a volume one of the driver "another".
func other(_ *cluster.PersistentVolumeClaim, v *cluster.PersistentVolume) { v.Driver = "another" }

func TestWhatIsSaidOfMissingDriversIsCountedByDriver(t *testing.T) {
	w, e := newStorage(t, 70), NewEvaluator(EvaluatorConfig{})
	w.gated(scaling)
	w.bound("c", nil)
	w.bound("d", other)
	w.set(wantsDriver("csi"), wantsDriver("another"))
	for i := range 30 { // these have only one of the drivers, and not the first
		w.set(&cluster.CSINode{Name: fmt.Sprint("n", i), Drivers: []cluster.NodeDriver{{Name: "another"}}})
	}
	id := w.pod("judged", "", 0, nil, claims("c", "d")...)
	nodes, why := e.AnswersOf(w.st, id).Unschedulable()
	want := "0/70 nodes are available: 30 csi CSI driver is not installed on the node, 40 another CSI driver is not installed on the node."
	if got := FitMessage(nodes, why); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	w.pod("small", "n3", -1, nil)
	d, _ := e.DryRun(w.st, id, everything(w.st), 1)
	if d.Count > 0 {
		t.Errorf("pods would have to go for a driver that does not come: %+v", d)
	}
	if !slices.ContainsFunc(d.Verdicts, func(v VerdictCount) bool { return v.Reason == "csi"+ReasonNoDriver && v.Count == 1 }) {
		t.Errorf("of the node whose pods would go: %+v", d.Verdicts)
	}
}

func TestWhatANodeWithoutTheDriverLacksIsToldWithTheClaims(t *testing.T) {
	w, e := newStorage(t, 1), NewEvaluator(EvaluatorConfig{})
	w.gated(requiring)
	w.bound("c", other)
	w.bound("d", nil)
	for _, name := range []string{"x", "y"} {
		w.bound(name, nil)
	}
	w.pod("full", "n0", 0, nil, claims("x", "y")...)
	id := w.pod("judged", "", 0, nil, claims("c", "d")...)
	lacks, _ := e.Shortfall(w.st, id, 0)
	var texts []string
	for k := range lacks {
		texts = append(texts, lacks[k].Text(Blocker{}))
	}
	want := []string{
		"claim c: the CSI driver another is not installed there, as far as its CSINode tells",
		"claim d: 1 more volume of the driver csi would be attached to it, which takes 2 and has 2",
	}
	if diff := gocmp.Diff(want, texts); diff != "" {
		t.Errorf("lacks (-want +got):\n%s", diff)
	}
	for want, reasons := range map[string][]string{
		"does not have the CSI driver of its volumes":                                {"a" + ReasonNoDriver, "b" + ReasonNoDriver},
		"has no room for its volumes or does not have the CSI driver of its volumes": {"a" + ReasonNoDriver, ReasonVolumeLimit},
		"has no room for its volumes":                                                {ReasonVolumeLimit},
	} {
		r := Rejection{Plugin: NodeVolumeLimits, Nodes: 1}
		for _, reason := range reasons {
			r.Reasons = append(r.Reasons, VerdictCount{Reason: reason})
		}
		if got := r.Short(); got != want {
			t.Errorf("%v: %q, want %q", reasons, got, want)
		}
	}
}

// TestDriversAreJudgedAsIfNothingWereKnown: whatever becomes of CSIDrivers, CSINodes and volumes, pods are judged as by one who has never seen them.
func TestDriversAreJudgedAsIfNothingWereKnown(t *testing.T) {
	refused, feasible := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		one := func(what string, from ...string) string { return rapid.SampledFrom(from).Draw(t, what) }
		w, e := newStorage(t, 3), NewEvaluator(EvaluatorConfig{})
		on := rapid.IntRange(1, 3).Draw(t, "on")
		w.gated(func(p *cluster.Profile) { p.VolumeLimitScaling, p.RequireCSIDrivers = on&1 > 0, on&2 > 0 })
		w.set(&cluster.StorageClass{Name: "late", Provisioner: "csi", Mode: cluster.BindToFirstConsumer},
			&cluster.PersistentVolumeClaim{Namespace: "shop", Name: "late", Class: "late"})
		w.bound("c", nil)
		w.bound("d", other)
		ids := []cluster.PodID{
			w.pod("c", "", 0, nil, claims("c")...), w.pod("both", "", 0, nil, claims("d", "c")...), w.pod("late", "", 0, nil, claims("late")...),
			w.pod("disk", "", 0, []cluster.Disk{{Migration: cluster.Migration{Plugin: "aws", Driver: "csi", Handle: "disk"}}}),
		}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			driver, node := one("driver", "csi", "another"), one("node", "n0", "n1", "n2")
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0, 1:
				w.set(&cluster.CSIDriver{Name: driver, PreventPodSchedulingIfMissing: rapid.Bool().Draw(t, "asks")})
			case 2:
				_ = w.st.Apply(cluster.ObjectRemoved{ObjectKey: wantsDriver(driver).Key()}) // it may be gone already
			case 3:
				_ = w.st.Apply(cluster.ObjectRemoved{ObjectKey: (&cluster.CSINode{Name: node}).Key()})
			case 4:
				w.set(&cluster.CSINode{Name: node, Drivers: []cluster.NodeDriver{{Name: driver}}, Migrated: []string{"aws"}})
			case 5:
				w.bound(one("claim", "c", "d"), func(_ *cluster.PersistentVolumeClaim, v *cluster.PersistentVolume) { v.Driver = driver })
			}
			for _, id := range ids {
				got := w.says(e, id)
				if diff := gocmp.Diff(w.says(NewEvaluator(EvaluatorConfig{}), id), got); diff != "" {
					t.Fatalf("pod %d (-new +old):\n%s", id, diff)
				}
				for _, says := range got {
					switch {
					case says == "":
						feasible++
					case strings.Contains(says, ReasonNoDriver):
						refused++
					}
				}
			}
		}
	})
	if refused == 0 || feasible == 0 {
		t.Errorf("%d nodes were refused for their drivers, %d feasible", refused, feasible)
	}
}

func TestADriverThatIsNotAskedForIsInNoSignature(t *testing.T) {
	w, e := newStorage(t, 1), NewEvaluator(EvaluatorConfig{})
	w.gated(scaling)
	w.bound("c", nil)
	s := SubjectOf(&w.st.Pod(w.pod("p", "", 0, nil, claims("c")...)).Pod)
	before := e.Signature(w.st, s)
	w.set(&cluster.CSIDriver{Name: "csi"})
	if e.Signature(w.st, s) != before {
		t.Error("a CSIDriver that does not ask for its driver changes the signature")
	}
	w.set(wantsDriver("csi"))
	if e.Signature(w.st, s) == before {
		t.Error("one that does, does not")
	}
}
