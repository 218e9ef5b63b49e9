package whatif

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/source"
)

// TestAsManyMoreGangsFitAsArePlacedOneAfterTheOther compares with a model without memory: each group comes to a copy of the state that those before it have left, and is placed there.
func TestAsManyMoreGangsFitAsArePlacedOneAfterTheOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		intn := draws(t)
		var events []source.Event
		for k := range 1 + intn(6) {
			events = append(events, setNode(inRack(fmt.Sprint("n", k), string(rune('a'+intn(3))), int64(500*(1+intn(8))))))
		}
		for k := range intn(4) {
			events = append(events, setPod(on(aPod(fmt.Sprint("there", k), 500), "n0")))
		}
		group := cluster.PodGroup{Namespace: "default", Name: "g", Gang: intn(4) > 0}
		var pods []source.Pod
		for k := range 1 + intn(5) {
			p := ofGroup(randomPod(intn, fmt.Sprint("p", k)), "g")
			p.Gates, p.Nominated = nil, ""
			pods = append(pods, p)
		}
		if group.Gang {
			group.MinCount = int32(1 + intn(len(pods)))
		}
		if intn(2) == 0 {
			group.Topology = []string{rackKey}
		}
		limit := 1 + intn(12)

		// The model.
		fit, domains, why := 0, map[string]int{}, ""
		for st := sandbox(t, events...).state; fit < limit && why == ""; {
			s := New(st, engine.EvaluatorConfig{})
			if err := s.Try(t.Context(), func(w *World) error {
				another := group
				another.Name = fmt.Sprint("another-", fit)
				if err := w.SetObject(&another); err != nil {
					return err
				}
				var ids []cluster.PodID
				for _, p := range pods {
					p.UID, p.Group, p.Created = fmt.Sprint(p.Name, " ", fit), another.Name, 0
					id, err := w.AddPod(p)
					if err != nil {
						return err
					}
					ids = append(ids, id)
				}
				out, err := PlaceGroup(w, groupKey(another.Name), ids)
				if err != nil {
					return err
				}
				if !out.Placed || !group.Gang && out.Fit < len(pods) {
					why = "it does not fit"
					return nil
				}
				fit++
				if out.Domain != "" {
					domains[out.Domain]++
				}
				st = w.State().Clone()
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}

		s := sandbox(t, events...)
		before := s.state.Digest()
		if err := s.Try(t.Context(), func(w *World) error {
			room, err := GroupCapacity(w, &group, pods, limit)
			if room.Groups != fit || room.AtLeast != (why == "") || !maps.Equal(room.Domains, domains) {
				t.Errorf("%d fit, at least %v, in %v; one after the other %d are placed, in %v", room.Groups, room.AtLeast, room.Domains, fit, domains)
			}
			if (room.Message == "") != (why == "") {
				t.Errorf("%q is said of the next one", room.Message)
			}
			if w.State().Digest() != before {
				t.Error("the world is not as it was")
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	})
}

func TestHowManyMoreGangsFitAndWhatStopsTheNextOne(t *testing.T) {
	pods := func(n int, cpu int64) (out []source.Pod) {
		for k := range n {
			out = append(out, ofGroup(aPod(fmt.Sprint("p", k), cpu), "g"))
		}
		return out
	}
	racks := []source.Event{setNode(inRack("a1", "a", 5000)), setNode(inRack("b1", "b", 2000)), setNode(inRack("b2", "b", 2000)), setNode(inRack("c1", "c", 1000))}
	gang := func(minCount int32, topology ...string) cluster.PodGroup {
		return cluster.PodGroup{Namespace: "default", Name: "g", Gang: true, MinCount: minCount, Topology: topology}
	}
	other := pods(2, 100)
	other[1].Class.SchedulerName = "other"
	for _, test := range []struct {
		name    string
		group   cluster.PodGroup
		pods    []source.Pod
		limit   int
		fit     int
		atLeast bool
		domains string
		why     string
	}{
		{"anywhere", gang(3), pods(3, 1000), 100, 3, false, "map[]", "0/4 nodes are available: 4 Insufficient cpu. pod group is unschedulable: 1 of at least 3 pods fit"},
		{"in racks", gang(2, rackKey), pods(2, 1000), 100, 4, false, "map[a:2 b:2]", "0/4 nodes are available: 1 node(s) of other domains, 3 Insufficient cpu. 0/3 placements are available, the best: pod group is unschedulable: 1 of at least 2 pods fit in a"},
		{"with fewer than there are", gang(2, rackKey), pods(5, 1000), 100, 2, false, "map[a:1 b:1]", ""},
		{"no more than are asked for", gang(2, rackKey), pods(2, 1000), 3, 3, true, "map[a:1 b:2]", ""},
		{"no gang: all of its pods", cluster.PodGroup{Namespace: "default", Name: "g"}, pods(4, 1000), 100, 2, false, "map[]", "0/4 nodes are available: 4 Insufficient cpu. 2 of its 4 pods fit"},
		{"it has too few pods", gang(3), pods(2, 1000), 100, 0, false, "map[]", "the PodGroup g wants at least 3 pods, and has 2"},
		{"it has no pods", cluster.PodGroup{Namespace: "default", Name: "g"}, nil, 100, 0, false, "map[]", "the PodGroup g has no pods"},
		{"it cannot be told", cluster.PodGroup{Namespace: "default", Name: "g", Untold: "it is too large"}, pods(1, 1000), 100, 0, false, "map[]", "it is too large"},
		{"of two schedulers", gang(2), other, 100, 0, false, "map[]", `all pods in a single pod group should have the same .spec.schedulerName set, got: "default-scheduler" and "other"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			try(t, sandbox(t, racks...), func(w *World) error {
				room, err := GroupCapacity(w, &test.group, test.pods, test.limit)
				if room.Groups != test.fit || room.AtLeast != test.atLeast || fmt.Sprint(room.Domains) != test.domains || test.why != "" && room.Message != test.why {
					t.Errorf("%d fit, at least %v, in %v: %q; want %d, %v, %s: %q", room.Groups, room.AtLeast, room.Domains, room.Message, test.fit, test.atLeast, test.domains, test.why)
				}
				return err
			})
		})
	}
}

func TestAQuestionAboutGangsHasBounds(t *testing.T) {
	big := aNode("a", "z", 1_000_000_000)
	big.Allocatable[2].Value = 10_000_000
	group := cluster.PodGroup{Namespace: "default", Name: "g", Gang: true, MinCount: 3}
	three := []source.Pod{ofGroup(aPod("p", 1), "g"), ofGroup(aPod("q", 1), "g"), ofGroup(aPod("r", 1), "g")}
	try(t, sandbox(t, setNode(big)), func(w *World) error {
		room, err := GroupCapacity(w, &group, three, MaxCapacity)
		if room.Groups != maxCapacityPlaced/3 || !room.AtLeast {
			t.Errorf("%d fit, at least %v; want as many as have 10,000 pods", room.Groups, room.AtLeast)
		}
		if _, err := GroupCapacity(w, &group, three, MaxCapacity+1); !errors.Is(err, ErrTooMuch) {
			t.Errorf("a limit that is too large: %v", err)
		}
		if _, err := GroupCapacity(w, &group, make([]source.Pod, maxCapacityPlaced+1), 1); !errors.Is(err, ErrTooMuch) {
			t.Errorf("a group that is too large: %v", err)
		}
		if _, err := GroupCapacity(w, &group, []source.Pod{three[0], three[1], three[0]}, 1); err == nil || !strings.Contains(err.Error(), "it is there twice") {
			t.Errorf("a pod that is there twice: %v", err)
		}
		return err
	})
}

// TestGroupsThatBerthDoesNotPlaceAreNotPlacedHere has room for a gang of a profile with a filter of others that nobody is asked about, and one of two schedulers.
func TestGroupsThatBerthDoesNotPlaceAreNotPlacedHere(t *testing.T) {
	st := sandbox(t, setNode(aNode("n1", "z", 7000)), setGroup(cluster.PodGroup{Name: "g", Gang: true, MinCount: 2}), setGroup(cluster.PodGroup{Name: "h", Gang: true, MinCount: 2})).state
	own, asked := engine.DefaultProfile("default-scheduler"), engine.DefaultProfile("asked")
	asked.Filters = append(slices.Clone(asked.Filters), "GPUModel")
	if err := st.Apply(cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{own, asked}}}); err != nil {
		t.Fatal(err)
	}
	pod := func(name, group, scheduler string) source.Pod {
		p := ofGroup(aPod(name, 100), group)
		p.Class.SchedulerName = scheduler
		return p
	}
	const mixed = `all pods in a single pod group should have the same .spec.schedulerName set, got: "default-scheduler" and "asked"`
	for group, test := range map[string]struct {
		pods []source.Pod
		why  string
	}{
		"g": {[]source.Pod{pod("a", "g", "asked"), pod("b", "g", "asked")}, GroupOthersAsked},
		"h": {[]source.Pod{pod("c", "h", "default-scheduler"), pod("d", "h", "asked")}, mixed},
	} {
		try(t, New(st, engine.EvaluatorConfig{}), func(w *World) error {
			room, err := GroupCapacity(w, st.PodGroup(groupKey(group)), test.pods, 10)
			if err != nil || room.Groups != 0 || room.Message != test.why {
				t.Errorf("%s: there is room for %d, %q, %v; want %q", group, room.Groups, room.Message, err, test.why)
			}
			var ids []cluster.PodID
			for _, p := range test.pods {
				id, err := w.AddPod(p)
				if err != nil {
					return err
				}
				ids = append(ids, id)
			}
			out, err := Place(w, ids, PlaceOptions{})
			for _, o := range out {
				if o.Outcome != Unplaced || o.Message != test.why {
					t.Errorf("%s is %v, %q; want %q", o.Name, o.Outcome, o.Message, test.why)
				}
			}
			return err
		})
	}
}

func TestAGroupThatIsTooLargeIsNotCopied(t *testing.T) {
	st := sandbox(t, setGroup(cluster.PodGroup{Name: "g"}), setPod(ofGroup(aPod("p", 1), "g"))).state
	one := st.Pod(0)
	for k := range cluster.PodID(maxCapacityPlaced) {
		pod := one.Pod
		pod.UID, pod.Name = fmt.Sprint("u", k), fmt.Sprint("q", k)
		if err := st.Apply(cluster.PodSet{ID: 1 + k, Pod: pod}); err != nil {
			t.Fatal(err)
		}
	}
	try(t, New(st, engine.EvaluatorConfig{}), func(w *World) error {
		if _, pods, err := w.GroupAsItIs(groupKey("g")); !errors.Is(err, ErrTooMuch) || pods != nil {
			t.Errorf("%d pods, %v; want that 10,001 are too many", len(pods), err)
		}
		return nil
	})
}

func TestAnExistingGroupIsAskedAboutWithThePodsThatItHas(t *testing.T) {
	gone := ofGroup(aPod("gone", 1000), "g")
	gone.Deleting = true
	events := []source.Event{
		setNode(aNode("n1", "z", 7000)), setGroup(cluster.PodGroup{Name: "g", Gang: true, MinCount: 3}),
		setPod(on(ofGroup(aPod("p0", 1000), "g"), "n1")), setPod(prior(ofGroup(aPod("p1", 1000), "g"), 5)), setPod(prior(ofGroup(aPod("p2", 1000), "g"), 7)), setPod(gone),
	}
	try(t, sandbox(t, events...), func(w *World) error {
		group, pods, err := w.GroupAsItIs(groupKey("g"))
		if err != nil || group.MinCount != 3 || len(pods) != 3 || pods[0].Name != "p2" {
			t.Errorf("%+v with %d pods, want the group with its three, that of the highest priority first", group, len(pods))
		}
		if group, _, err := w.GroupAsItIs(groupKey("h")); group != nil || err != nil {
			t.Errorf("there is a group h, %v", err)
		}
		room, err := GroupCapacity(w, group, pods, 10)
		if room.Groups != 2 {
			t.Errorf("%d more fit, want 2: 6 of 7 CPUs are free", room.Groups)
		}
		return err
	})
}

// TestEachGroupHasClaimsOfItsOwn has volumes for five claims, so two groups of two pods with one each fit.
func TestEachGroupHasClaimsOfItsOwn(t *testing.T) {
	events := []source.Event{
		setNode(aNode("n1", "z", 100_000)), setGroup(cluster.PodGroup{Name: "g", Gang: true, MinCount: 2}),
		setObject(&cluster.StorageClass{Name: "late", Provisioner: "kubernetes.io/no-provisioner", Mode: cluster.BindToFirstConsumer}),
	}
	for k := range 5 {
		events = append(events, setObject(&cluster.PersistentVolume{Name: fmt.Sprint("v", k), Class: "late", Capacity: 5, Mode: "Filesystem", Available: true}))
	}
	var pods []source.Pod
	for k := range 2 {
		name := fmt.Sprint("web-", k)
		p := ofGroup(aPod(name, 100), "g")
		p.Labels.Controller = cluster.Controller{Kind: cluster.KindStatefulSet, Name: "web"}
		p.Labels.Claims = []cluster.PodClaim{{Name: "data-" + name}}
		pods = append(pods, p)
		events = append(events, setObject(&cluster.PersistentVolumeClaim{Namespace: "default", Name: "data-" + name, UID: name, Class: "late", HasRequest: true, Request: 3, Mode: "Filesystem"}))
	}
	try(t, sandbox(t, events...), func(w *World) error {
		room, err := GroupCapacity(w, w.State().PodGroup(groupKey("g")), pods, 10)
		if room.Groups != 2 || room.AtLeast {
			t.Errorf("%d fit (%s), want 2", room.Groups, room.Message)
		}
		return err
	})
}

func TestAWorkloadWithAPodGroupIsThatGroup(t *testing.T) {
	const group = "---\napiVersion: scheduling.k8s.io/v1alpha2\nkind: PodGroup\nmetadata: {name: train, namespace: ml}\nspec: {schedulingPolicy: {gang: {minCount: 2}}}\n"
	job := func(namespace, group string) string {
		return "---\napiVersion: batch/v1\nkind: Job\nmetadata: {name: train, namespace: " + namespace + "}\nspec: {parallelism: 3, completions: 3, template: {spec: {schedulingGroup: {podGroupName: " + group + "}, restartPolicy: Never, containers: [{name: c, image: i}]}}}\n"
	}
	for name, test := range map[string]struct{ manifests, want string }{
		"a group and its pods":    {group + job("ml", "train"), "ml/train 3"},
		"no group":                {job("ml", "train"), "none 3"},
		"a pod of another one":    {group + job("ml", "other"), `pod ml/train-0: spec.schedulingGroup.podGroupName is "other": want all pods to be of the PodGroup ml/train`},
		"of another namespace":    {group + job("default", "train"), `pod default/train-0: spec.schedulingGroup.podGroupName is "train": want all pods to be of the PodGroup ml/train`},
		"two groups":              {group + strings.ReplaceAll(group, "train", "other"), "there are two PodGroups, ml/train and ml/other: give one"},
		"a group that is invalid": {strings.Replace(group, "minCount: 2", "minCount: 0", 1), "must be at least 1"},
	} {
		load, err := ReadWorkload(t.Context(), []byte(test.manifests), 1, 100)
		var is *cluster.PodGroup
		if err == nil {
			is, err = load.Group()
		}
		got := fmt.Sprint("none ", len(load.Pods))
		if is != nil {
			got = fmt.Sprintf("%s/%s %d", is.Namespace, is.Name, len(load.Pods))
		}
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, test.want) {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
	// Questions that schedule pods take groups along.
	load, err := ReadWorkload(t.Context(), []byte(group+job("ml", "train")), 1, 100)
	if err != nil {
		t.Fatal(err)
	}
	try(t, sandbox(t, setNode(aNode("n1", "z", 4000))), func(w *World) error {
		ids, err := w.Add(load)
		if err != nil {
			return err
		}
		out, err := Place(w, ids, PlaceOptions{})
		if slices.ContainsFunc(out, func(o PodOutcome) bool { return o.Outcome != Placed }) {
			t.Errorf("%+v, want all to be placed", out)
		}
		return err
	})
}

// TestWhatHasBeenCountedIsToldWhenTheTimeIsUp has time for some of 32 groups, but for the first in any case.
func TestWhatHasBeenCountedIsToldWhenTheTimeIsUp(t *testing.T) {
	group := cluster.PodGroup{Namespace: "default", Name: "g", Gang: true, MinCount: 3, Topology: []string{rackKey}}
	var three []source.Pod
	for k := range 3 {
		three = append(three, ofGroup(aPod(fmt.Sprint("p", k), 100), "g"))
	}
	var events []source.Event
	for k := range 10 {
		events = append(events, setNode(inRack(fmt.Sprint("n", k), fmt.Sprint("rack", k/5), 1000)))
	}
	s := sandbox(t, events...)
	before := s.state.Digest()
	for _, test := range []struct {
		parts      int // for how many there is time
		least, fit int
		atLeast    bool
	}{{0, 1, 1, true}, {200, 2, 31, true}, {1_000_000, 32, 32, false}} {
		parts := 0
		ctx := WithEnough(t.Context(), func() bool { parts++; return parts > test.parts })
		if err := s.Try(ctx, func(w *World) error {
			room, err := GroupCapacity(w, &group, three, 100)
			counted := 0
			for _, n := range room.Domains {
				counted += n
			}
			if room.Groups < test.least || room.Groups > test.fit || room.AtLeast != test.atLeast || counted != room.Groups {
				t.Errorf("with time for %d parts %d fit, at least %v, %d in domains; want %d to %d, %v", test.parts, room.Groups, room.AtLeast, counted, test.least, test.fit, test.atLeast)
			}
			if w.State().Digest() != before || w.Context() != ctx {
				t.Error("the world is not as it was")
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	if err := s.Try(WithEnough(gone, func() bool { cancel(); return true }), func(w *World) error {
		_, err := GroupCapacity(w, &group, three, 100)
		return err
	}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that the question has ended", err)
	}
}
