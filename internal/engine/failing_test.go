package engine

import (
	"fmt"
	"math"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// TestAPodOfWhichAPluginFailsOnTheNodeThatItIsNominatedToFitsNowhere: where the pod itself is counted as one that is there, the disk that it would
// share with itself is what refuses the node.
func TestAPodOfWhichAPluginFailsOnTheNodeThatItIsNominatedToFitsNowhere(t *testing.T) {
	w, e := newStorage(t, 2), NewEvaluator(EvaluatorConfig{})
	w.apply(cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.CSINodeKind, Name: "n0"}})
	id := w.pod("p", "", 0, []cluster.Disk{{Kind: cluster.DiskEBS, ID: "none", Migration: cluster.Migration{Plugin: "aws", Error: "no name"}}})
	pod := w.st.Pod(id).Pod
	pod.Nominated = "n1"
	w.apply(cluster.PodSet{ID: id, Pod: pod})
	if node, placement := w.batch(e, id).Choose(id, 0); placement != NoFit {
		t.Errorf("%v on %d, want no fit", placement, node)
	}
	nodes, why := e.AnswersOf(w.st, id).Unschedulable()
	if got, want := FitMessage(nodes, why), "0/2 nodes are available: 2 no name."; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	pod.Nominated = "n0" // where volumes are not counted
	w.apply(cluster.PodSet{ID: id, Pod: pod})
	if node, placement := w.batch(e, id).Choose(id, 0); placement != Placed || node != 0 {
		t.Errorf("%v on %d, want placed on n0", placement, node)
	}
}

// TestAPluginDoesNotFailForAPodThatOnlyItsOwnNominationLetsItJudge has a pod with a disk and a claim of which nobody knows where it can be used. On n1 the
// disk would be one volume too many, but to whoever counts a pod with it as one that is there: to that it is no new one.
func TestAPluginDoesNotFailForAPodThatOnlyItsOwnNominationLetsItJudge(t *testing.T) {
	const fails = "0/2 nodes are available: could not translate pv: no."
	for _, tt := range []struct {
		name      string
		counted   bool     // n0 has a CSINode, and is as full as n1
		nominated []string // to n1: the claims of the pod, which is the first, and of others of its class
		message   string   // "": it is placed on n0
	}{
		{"alone", false, []string{"c"}, ""},
		{"alone, no other node", true, []string{"c"}, "0/2 nodes are available: 2 node(s) exceed max volume count."},
		{"beside one like it", false, []string{"c", "c"}, fails},
		{"two like it", false, []string{"", "c", "c"}, fails},
		{"only one of its class, of another signature", false, []string{"", "other"}, fails},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, e := newStorage(t, 2), NewEvaluator(EvaluatorConfig{})
			for _, node := range []string{"n0", "n1"} {
				for k := range 2 {
					claim := fmt.Sprint("theirs-", node, k)
					w.bound(claim, nil)
					w.pod(claim, node, 0, nil, claims(claim)...)
				}
			}
			if !tt.counted {
				w.apply(cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.CSINodeKind, Name: "n0"}})
			}
			for claim, why := range map[string]string{"c": "no", "other": "nor that"} {
				w.bound(claim, func(_ *cluster.PersistentVolumeClaim, v *cluster.PersistentVolume) {
					v.Driver, v.Handle, v.Migration = "", "", cluster.Migration{Plugin: "aws", Error: why}
				})
			}
			disk := cluster.Disk{Kind: cluster.DiskGCE, ID: "d", ReadOnly: true, Migration: cluster.Migration{Plugin: "aws", Driver: "csi", Handle: "d"}}
			id := w.pod("judged", "", 0, []cluster.Disk{disk}, claims("c")...)
			for k, claim := range tt.nominated {
				switch {
				case claim == "":
				case k == 0:
					w.apply(cluster.PodNominated{ID: id, Node: "n1"})
				default:
					w.apply(cluster.PodNominated{ID: w.pod(fmt.Sprint("beside-", k), "", 0, []cluster.Disk{disk}, claims(claim)...), Node: "n1"})
				}
			}
			node, placement := w.batch(e, id).Choose(id, 0)
			if tt.message == "" {
				if placement != Placed || node != 0 {
					t.Errorf("%v on %d, want placed on n0", placement, node)
				}
				return
			}
			if placement != NoFit {
				t.Errorf("%v on %d, want no fit", placement, node)
			}
			if nodes, why := e.AnswersOf(w.st, id).Unschedulable(); FitMessage(nodes, why) != tt.message {
				t.Errorf("%q, want %q", FitMessage(nodes, why), tt.message)
			}
		})
	}
}

// TestAPluginFailsOnlyWhereNoFilterBeforeItRefuses has a pod with a disk that CSI has no name for, which matters on n1 alone, where a pod is that
// it keeps away from.
func TestAPluginFailsOnlyWhereNoFilterBeforeItRefuses(t *testing.T) {
	const fails = NodeVolumeLimits + ": no name"
	for _, tt := range []struct {
		name   string
		first  bool // InterPodAffinity runs before NodeVolumeLimits
		beside []string
	}{
		{"behind", false, []string{fails, fails}},
		{"before", true, []string{"", InterPodAffinity + ": " + ReasonAntiAffinity + " (resolvable)"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, e := newStorage(t, 2), NewEvaluator(EvaluatorConfig{})
			profile := DefaultProfile("default")
			if tt.first {
				profile.Filters = slices.DeleteFunc(profile.Filters, func(name string) bool { return name == InterPodAffinity })
				profile.Filters = append([]string{InterPodAffinity}, profile.Filters...)
			}
			labels := cluster.LabelsDefined{ID: 900, Set: cluster.LabelSet{Namespace: "shop", Labels: []cluster.Label{{Key: "app", Value: "noisy"}}}}
			w.apply(
				cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{profile}}},
				cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.CSINodeKind, Name: "n0"}},
				labels, cluster.ClassDefined{ID: 900, Spec: cluster.ClassSpec{
					SchedulerName: "default", Disks: []cluster.Disk{{Migration: cluster.Migration{Plugin: "aws", Error: "no name"}}},
					AntiAffinity: []cluster.PodTerm{{
						TopologyKey: "kubernetes.io/hostname", Namespaces: []string{"shop"}, NamespaceSelector: cluster.LabelSelector{Nothing: true},
						Selector: cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "app", Operator: "In", Values: []string{"noisy"}}}},
					}},
				}},
			)
			noisy := w.pod("noisy", "n1", 0, nil)
			pod := w.st.Pod(noisy).Pod
			pod.Labels = 900
			id := w.pod("judged", "", 0, nil)
			judged := w.st.Pod(id).Pod
			judged.Class = 900
			w.apply(cluster.PodSet{ID: noisy, Pod: pod}, cluster.PodSet{ID: id, Pod: judged})
			check := func(when string, want []string) {
				t.Helper()
				if diff := gocmp.Diff(want, w.says(e, id)); diff != "" {
					t.Errorf("%s n0 and n1 (-want +got):\n%s", when, diff)
				}
				f, _ := e.Filter(w.st, SubjectOf(&judged), everything(w.st))
				if got := int(f.FeasibleCount); got > 0 != (want[0] == "") {
					t.Errorf("%s %d nodes are feasible", when, got)
				}
			}
			check("beside the other:", tt.beside)
			w.apply(cluster.PodRemoved{ID: noisy})
			check("once that is gone:", []string{fails, fails})
			w.apply(cluster.ClassDefined{ID: pod.Class, Spec: cluster.ClassSpec{SchedulerName: "default"}}, labels, cluster.PodSet{ID: noisy, Pod: pod})
			check("when it is back:", tt.beside)
		})
	}
}

// retiring is a world of two nodes with a pod of which a plugin fails on n1, unless retired has said that NodeAffinity refuses that one.
func retiring(t *testing.T, antiAffinity ...cluster.PodTerm) (w *storage, id cluster.PodID, retired func(bool)) {
	w = newStorage(t, 2)
	disk := cluster.Disk{Kind: cluster.DiskEBS, ID: "d", Migration: cluster.Migration{Plugin: "aws", Error: "no name"}}
	w.apply(
		cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.CSINodeKind, Name: "n0"}},
		cluster.ClassDefined{ID: 900, Spec: cluster.ClassSpec{
			SchedulerName: "default", Disks: []cluster.Disk{disk}, AntiAffinity: antiAffinity,
			HasRequired: true, Required: []cluster.NodeSelectorTerm{{Expressions: []cluster.Requirement{{Key: "retired", Operator: "DoesNotExist"}}}},
		}},
	)
	id = w.pod("judged", "", 1, nil)
	pod := w.st.Pod(id).Pod
	pod.Class = 900
	w.apply(cluster.PodSet{ID: id, Pod: pod})
	n1 := w.st.Node(1)
	return w, id, func(is bool) {
		node := n1
		if is {
			node.Labels = append(slices.Clone(n1.Labels), cluster.Label{Key: "retired"})
		}
		w.apply(cluster.NodeSet{Index: 1, Node: node})
	}
}

// TestDryRunsUnderAPluginThatFailsAreForgottenWithIt has a pod for which room can be made on n0 as soon as its plugin does not fail on n1 any more.
// What changes that also has the class compiled anew: the first node has the label then.
func TestDryRunsUnderAPluginThatFailsAreForgottenWithIt(t *testing.T) {
	w, id, retired := retiring(t)
	e := NewEvaluator(EvaluatorConfig{})
	low := w.pod("low", "n0", 0, []cluster.Disk{{Kind: cluster.DiskEBS, ID: "d"}})
	if found, _ := e.DryRun(w.st, id, everything(w.st), 9); len(found.Candidates) > 0 {
		t.Fatalf("%+v, want no candidate as long as a plugin fails on n1", found.Candidates)
	}
	retired(true)
	want := []Preemption{{Node: 0, Victims: []cluster.PodID{low}, PrioritySum: 1 << 31, EarliestStart: math.MaxInt64}}
	found, _ := e.DryRun(w.st, id, everything(w.st), 9)
	if diff := gocmp.Diff(want, found.Candidates); diff != "" {
		t.Errorf("once n1 is refused by NodeAffinity (-want +got):\n%s", diff)
	}
}

// TestAPluginThatFailsOnOneNodeMakesAllImpossibleWhateverWasCounted has a pod that keeps away from others, so that nodes are counted by topology
// profile: n0, which has not changed, was feasible.
func TestAPluginThatFailsOnOneNodeMakesAllImpossibleWhateverWasCounted(t *testing.T) {
	w, id, retired := retiring(t, nobody)
	e, s := NewEvaluator(EvaluatorConfig{}), SubjectOf(&w.st.Pod(id).Pod)
	for _, is := range []bool{true, false, true} {
		if retired(is); e.Possible(w.st, s, cluster.NoNode) != is {
			t.Errorf("n1 retired %v: possible is %v", is, !is)
		}
	}
}

// TestAPodThatRequiresANodePreemptsThereThoughAPluginFailsElsewhere: kube-scheduler looks at no other node.
func TestAPodThatRequiresANodePreemptsThereThoughAPluginFailsElsewhere(t *testing.T) {
	w, id, _ := retiring(t)
	e := NewEvaluator(EvaluatorConfig{})
	low := w.pod("low", "n0", 0, []cluster.Disk{{Kind: cluster.DiskEBS, ID: "d"}})
	other := w.pod("other", "", 1, nil) // of the same class and priority, requires nothing
	pod := w.st.Pod(id).Pod
	free := w.st.Pod(other).Pod
	free.Class = pod.Class
	pod.RequiredNode = "n0"
	w.apply(cluster.PodSet{ID: id, Pod: pod}, cluster.PodSet{ID: other, Pod: free})
	for range 2 { // each beside what is remembered for the other
		if found, _ := e.DryRun(w.st, other, everything(w.st), 9); len(found.Candidates) > 0 {
			t.Errorf("%+v for a pod that requires no node, want no candidate", found.Candidates)
		}
		found, _ := e.DryRun(w.st, id, everything(w.st), 9)
		if len(found.Candidates) != 1 || found.Candidates[0].Node != 0 || !slices.Equal(found.Candidates[0].Victims, []cluster.PodID{low}) {
			t.Errorf("%+v, want pod %d to go from n0", found.Candidates, low)
		}
		if _, ok := e.DryRunNode(w.st, id, 0); !ok {
			t.Error("n0 alone is no candidate")
		}
		if !e.Preemptable(w.st, SubjectOf(&pod), id, 0) {
			t.Error("the pod could not preempt on n0")
		}
	}
	lacks, _ := e.Shortfall(w.st, id, 0)
	if len(lacks) != 1 || lacks[0].Plugin != VolumeRestrictions {
		t.Errorf("n0 lacks %+v, want what VolumeRestrictions says", lacks)
	}
}

// TestWhyAPluginFailsIsSaidAsItIsNow has VolumeBinding fail before NodeVolumeLimits, once it does.
func TestWhyAPluginFailsIsSaidAsItIsNow(t *testing.T) {
	w, e := newStorage(t, 2), NewEvaluator(EvaluatorConfig{})
	profile := DefaultProfile("default")
	profile.Filters = slices.DeleteFunc(profile.Filters, func(name string) bool { return name == NodeVolumeLimits })
	profile.Filters = append(profile.Filters, NodeVolumeLimits)
	w.apply(cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{profile}}})
	w.bound("c", func(_ *cluster.PersistentVolumeClaim, v *cluster.PersistentVolume) {
		v.Driver, v.Handle, v.Migration = "", "", cluster.Migration{Plugin: "ebs", Error: "no"}
	})
	id := w.pod("judged", "", 0, []cluster.Disk{{Migration: cluster.Migration{Plugin: "aws", Error: "no name"}}}, claims("c")...)
	const limits, binding = NodeVolumeLimits + ": no name", VolumeBinding + ": could not translate pv: no"
	for _, tt := range []struct {
		migrated []string
		want     string
	}{{[]string{"aws"}, limits}, {[]string{"aws", "ebs"}, binding}, {[]string{"aws"}, limits}} {
		w.set(&cluster.CSINode{Name: "n0", Migrated: tt.migrated})
		if got := w.says(e, id); !slices.Equal(got, []string{tt.want, tt.want}) {
			t.Errorf("replaced %v: %q, want %q of both", tt.migrated, got, tt.want)
		}
	}
}

// TestANominatedPodEvictsNobodyWhereAPluginFailsElsewhere: kube-scheduler tries the nominated node first, and then comes to the other one.
func TestANominatedPodEvictsNobodyWhereAPluginFailsElsewhere(t *testing.T) {
	w, id, _ := retiring(t)
	e := NewEvaluator(EvaluatorConfig{})
	w.pod("low", "n0", 0, []cluster.Disk{{Kind: cluster.DiskEBS, ID: "d"}})
	w.apply(cluster.PodNominated{ID: id, Node: "n0"})
	if found, _ := e.DryRun(w.st, id, everything(w.st), 9); len(found.Candidates) > 0 {
		t.Errorf("%+v, want no candidate", found.Candidates)
	}
	if found, ok := e.DryRunNode(w.st, id, 0); ok {
		t.Errorf("n0 alone: %+v, want no candidate", found)
	}
}

// TestAPodThatRequiresAMissingNodeIsNotToldWhereAPluginFails: it would never come to that node.
func TestAPodThatRequiresAMissingNodeIsNotToldWhereAPluginFails(t *testing.T) {
	w, id, _ := retiring(t)
	e := NewEvaluator(EvaluatorConfig{})
	pod := w.st.Pod(id).Pod
	pod.RequiredNode = "gone"
	w.apply(cluster.PodSet{ID: id, Pod: pod})
	s, _, _ := e.Survey(w.st, id, nil, func(cluster.NodeIndex, []Lack) {})
	if len(s.Rejections) != 1 || s.Rejections[0].Plugin != NodeAffinity || s.Rejections[0].Nodes != 2 {
		t.Errorf("%+v, want both nodes rejected by NodeAffinity", s.Rejections)
	}
}
