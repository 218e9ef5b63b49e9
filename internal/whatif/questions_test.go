package whatif

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/source"
)

// Capacity is what Place would place, and the next one is stopped by the same.
func TestCapacityIsHowManyCanBePlaced(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		intn := draws(t)
		events, pending := randomEvents(intn)
		for _, p := range pending {
			if p.Nominated != "" {
				events = append(events, setPod(p))
			}
		}
		s := sandbox(t, events...)
		pod := randomPod(intn, "more")
		pod.Nominated, pod.Gates = "", nil
		limit := 1 + intn(60)
		err := s.Try(t.Context(), func(w *World) error {
			var want Room
			for want.Message == "" && want.Pods < limit {
				err := w.Try(func() error {
					var ids []cluster.PodID
					for k := range want.Pods + 1 {
						p := pod
						p.UID = fmt.Sprint("more-", k)
						id, err := w.AddPod(p)
						if err != nil {
							return err
						}
						ids = append(ids, id)
					}
					outcomes, err := Place(w, ids, PlaceOptions{})
					if err != nil {
						return err
					}
					if last := outcomes[want.Pods]; last.Outcome == Placed {
						want.Pods++
					} else {
						want.Nodes, want.Verdicts, want.Message = last.Nodes, last.Verdicts, last.Message
					}
					return nil
				})
				if err != nil {
					return err
				}
			}
			want.AtLeast = want.Message == ""
			got, err := Capacity(w, pod, limit)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("of %+v, at most %d (-placed +counted):\n%s", pod, limit, diff)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

func TestPodsThatShareAClaimFitUpToWhatTheClaimAllows(t *testing.T) {
	for mode, want := range map[string]int{"ReadWriteMany": 6, "ReadWriteOncePod": 1} {
		object := func(o cluster.Object) source.Event { return source.Event{Kind: source.ObjectSet, Object: o} }
		limited := func(node string) source.Event {
			return object(&cluster.CSINode{Name: node, Drivers: []cluster.NodeDriver{{Name: "csi", Limited: true, Limit: 1}}})
		}
		s := sandbox(t, setNode(aNode("a", "z", 300)), setNode(aNode("b", "z", 300)), limited("a"), limited("b"),
			object(&cluster.PersistentVolume{Name: "v", Driver: "csi", Handle: "h"}),
			object(&cluster.PersistentVolumeClaim{Namespace: "default", Name: "c", Volume: "v", Bound: true, AccessModes: []string{mode}}))
		try(t, s, func(w *World) error {
			pod := aPod("more", 100)
			pod.Labels.Claims = []cluster.PodClaim{{Name: "c"}}
			got, err := Capacity(w, pod, 100)
			if got.Pods != want || got.AtLeast {
				t.Errorf("%s: %+v, want %d", mode, got, want)
			}
			return err
		})
	}
}

func TestCapacityCountsAMillion(t *testing.T) {
	big := aNode("a", "z", 1_000_000_000)
	big.Allocatable[2].Value = 10_000_000
	s := sandbox(t, setNode(big))
	try(t, s, func(w *World) error {
		small := aPod("p", 1)
		small.Class.Requests = small.Class.Requests[:1]
		got, err := Capacity(w, small, MaxCapacity)
		if got.Pods != MaxCapacity || !got.AtLeast {
			t.Errorf("%+v", got)
		}
		if _, err := Capacity(w, small, MaxCapacity+1); !errors.Is(err, ErrTooMuch) {
			t.Errorf("a limit that is too large: %v", err)
		}
		return err
	})
}

func TestDrainedPodsGoElsewhereButThoseOfTheirNode(t *testing.T) {
	daemon := on(aPod("daemon", 100), "a")
	daemon.RequiredNode = "a"
	mirror := on(aPod("kube-proxy-a", 100), "a")
	mirror.Class.Tolerations = []cluster.Toleration{{Operator: "Exists", Effect: "NoExecute"}}
	large := on(prior(aPod("large", 900), 3), "a")
	s := sandbox(t,
		setNode(aNode("a", "z", 2000)), setNode(aNode("b", "z", 500)),
		setPod(daemon), setPod(mirror), setPod(large), setPod(on(aPod("web-1", 200), "a")), setPod(on(aPod("web-2", 200), "a")),
		source.Event{Kind: source.ObjectSet, Object: &cluster.Budget{Namespace: "default", Name: "budget", Selector: web(), Allowed: 2}})
	try(t, s, func(w *World) error {
		got, err := Drain(w, []string{"a"}, PlaceOptions{})
		if err != nil {
			return err
		}
		type move struct{ Name, To, Message, Protected string }
		var moves []move
		for _, m := range got.Moved {
			moves = append(moves, move{m.Name, m.Node, m.Message, fmt.Sprint(m.Protected)})
		}
		none := "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable."
		want := []move{{"large", "", none, "[]"}, {"web-1", "b", "", "[]"}, {"web-2", "b", "", "[budget]"}}
		if diff := cmp.Diff(want, moves); diff != "" {
			t.Errorf("moved (-want +got):\n%s", diff)
		}
		stays := map[string]string{}
		for _, stay := range got.Stays {
			stays[stay.Name] = stay.Why
		}
		if diff := cmp.Diff(map[string]string{"daemon": staysDaemon, "kube-proxy-a": staysMirror}, stays); diff != "" {
			t.Errorf("stays (-want +got):\n%s", diff)
		}
		return nil
	})
	try(t, s, func(w *World) error {
		if _, err := Drain(w, []string{"c"}, PlaceOptions{}); err == nil {
			t.Error("a node that is not there is drained")
		}
		return nil
	})
}

func TestADrainLeavesAPodThatIsBeingDeletedToItsDeletion(t *testing.T) {
	going := on(aPod("going", 100), "a")
	going.Deleting = true
	s := sandbox(t, setNode(aNode("a", "z", 2000)), setNode(aNode("b", "z", 2000)), setPod(going), setPod(on(aPod("web", 100), "a")),
		source.Event{Kind: source.ObjectSet, Object: &cluster.Budget{Namespace: "default", Name: "budget", Selector: web(), Allowed: 1}})
	try(t, s, func(w *World) error {
		got, err := Drain(w, []string{"a"}, PlaceOptions{})
		if err != nil {
			return err
		}
		if len(got.Moved) != 1 || got.Moved[0].Name != "web" || got.Moved[0].Node != "b" || len(got.Moved[0].Protected) > 0 {
			t.Errorf("moved: %+v, want web alone, which its budget allows", got.Moved)
		}
		if len(got.Stays) != 1 || got.Stays[0].Name != "going" || got.Stays[0].Why != "it is being deleted" {
			t.Errorf("stays: %+v, want the pod that is being deleted", got.Stays)
		}
		return nil
	})
}

func TestSettingsThatPackPodsAreToldFromThoseThatSpreadThem(t *testing.T) {
	packing := settings()
	packing.Profiles = []cluster.Profile{engine.DefaultProfile("default-scheduler")}
	packing.Profiles[0].FitStrategy = cluster.MostAllocated
	packing.Profiles[0].Weights = []cluster.PluginWeight{{Name: engine.NodeResourcesFit, Weight: 1}}
	var events []source.Event
	for k := range 4 {
		events = append(events, setNode(aNode(fmt.Sprint("n", k), fmt.Sprint("z", k%2), 1000)))
	}
	for k := range 4 {
		events = append(events, setPod(on(aPod(fmt.Sprint("p", k), 200), fmt.Sprint("n", k))))
	}
	s := sandbox(t, events...)
	try(t, s, func(w *World) error {
		got, err := Compare(w, settings(), packing, Everything(w), PlaceOptions{})
		if err != nil {
			return err
		}
		use := func(u Usage) string {
			return fmt.Sprintf("%d pods, spread %d, %+v", u.Pods, u.Spread(), u.Resources[0])
		}
		want := []string{
			"4 pods, spread 0, {Name:cpu Allocatable:4000 Requested:800 MeanPermille:200 MaxPermille:200}",
			"4 pods, spread 4, {Name:cpu Allocatable:4000 Requested:800 MeanPermille:200 MaxPermille:800}",
		}
		if diff := cmp.Diff(want, []string{use(got.A), use(got.B)}); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if got.Moved != 3 || got.Same != 1 || got.OnlyA+got.OnlyB != 0 || len(got.Differ) != 3 {
			t.Errorf("%+v", got)
		}
		return nil
	})
}

func TestNodesThatChangeMakeRoom(t *testing.T) {
	pod := aPod("p", 800)
	pod.Class.NodeSelector = []cluster.Label{{Key: "disk", Value: "ssd"}}
	s := sandbox(t, setNode(aNode("a", "z", 1000)), setNode(aNode("b", "z", 1000)), setPod(pod))
	for name, c := range map[string]struct {
		change func(*World) error
		want   string
	}{
		"nothing":          {func(*World) error { return nil }, ""},
		"a label":          {func(w *World) error { return w.Label("b", "disk", "ssd") }, "b"},
		"a label and none": {func(w *World) error { return errors.Join(w.Label("b", "disk", "ssd"), w.Unlabel("b", "disk")) }, ""},
		"cordoned": {func(w *World) error {
			return errors.Join(w.Label("b", "disk", "ssd"), w.Label("a", "disk", "ssd"), w.Cordon("b", true))
		}, "a"},
		"removed": {func(w *World) error {
			return errors.Join(w.Label("b", "disk", "ssd"), w.Label("a", "disk", "ssd"), w.RemoveNode("a"))
		}, "b"},
		"a new node": {func(w *World) error {
			n := aNode("c", "z", 900)
			n.Labels = append(n.Labels, cluster.Label{Key: "disk", Value: "ssd"})
			return w.SetNode(n)
		}, "c"},
	} {
		try(t, s, func(w *World) error {
			if err := c.change(w); err != nil {
				return err
			}
			got, err := Place(w, Pending(w), PlaceOptions{})
			if err == nil && got[0].Node != c.want {
				t.Errorf("%s: the pod goes to %q, want %q", name, got[0].Node, c.want)
			}
			return err
		})
	}
}

func TestAConfigurationSetsTheProfiles(t *testing.T) {
	was := settings()
	st := sandbox(t).state
	got, notes, err := Configured(st, []byte(`
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
podMaxBackoffSeconds: 7
profiles:
- pluginConfig:
  - {name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}}}
`))
	if err != nil || len(notes) != 0 {
		t.Fatal(err, notes)
	}
	if got.Profiles[0].FitStrategy != cluster.MostAllocated || got.MaxBackoffSeconds != 7 || got.Seed != was.Seed || got.Shards != was.Shards {
		t.Errorf("%+v", got)
	}
	if _, _, err := Configured(st, []byte("kind: Pod")); err == nil {
		t.Error("a pod is a configuration")
	}
}

// Pods are put into Coscheduling's groups when they come, so another configuration changes nothing of that, which is said.
func TestAConfigurationChangesNoGroupsOfCoscheduling(t *testing.T) {
	const head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
	const with = "profiles: [{plugins: {multiPoint: {enabled: [{name: Coscheduling}]}, queueSort: {enabled: [{name: Coscheduling}], disabled: [{name: \"*\"}]}}}]\n"
	grouped := aPod("p", 100)
	grouped.Group = cluster.CoschedulingGroup("train")
	none, some := sandbox(t, setPod(aPod("p", 100))).state, sandbox(t, setPod(grouped)).state
	for what, c := range map[string]struct {
		st            *cluster.State
		configuration string
		says          bool
	}{"neither has it": {none, head, false}, "one that adds it": {none, head + with, true}, "one that takes it away": {some, head, true}, "both": {some, head + with, true}} {
		_, notes, err := Configured(c.st, []byte(c.configuration))
		if err != nil || slices.Contains(notes, GroupsStay) != c.says {
			t.Errorf("%s: %q, %v; want that groups stay: %v", what, notes, err, c.says)
		}
	}
}

// Nobody but binders knows which plugin services there are: a gateway knows what the present profiles have of them.
func TestAConfigurationMayHaveThePluginsOfServicesThatThePresentOneHas(t *testing.T) {
	was := settings()
	was.Profiles[0].Filters = append(slices.Clone(was.Profiles[0].Filters), "GPUModel")
	st := sandbox(t).state
	if err := st.Apply(cluster.SettingsSet{Settings: was}); err != nil {
		t.Fatal(err)
	}
	const head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
	got, notes, err := Configured(st, []byte(head+"profiles: [{plugins: {multiPoint: {enabled: [{name: GPUModel, weight: 3}]}}, pluginConfig: [{name: GPUModel, args: {a: b}}]}]"))
	if err != nil || len(notes) != 0 {
		t.Fatal(err, notes)
	}
	if p := got.Profiles[0]; p.Filters[len(p.Filters)-1] != "GPUModel" || p.Weights[len(p.Weights)-1] != (cluster.PluginWeight{Name: "GPUModel", Weight: 3}) {
		t.Errorf("%+v", p)
	}
	if _, _, err := Configured(st, []byte(head+"profiles: [{plugins: {filter: {enabled: [{name: Licences}]}}}]")); err == nil || !strings.Contains(err.Error(), `"Licences": does not exist`) {
		t.Errorf("with another plugin: %v", err)
	}
}

// Room that is nominated to others is taken for whom a commit takes it from: pods of the same priority or a lower one.
func TestRoomThatIsNominatedToOthersIsTakenForPodsOfNoHigherPriority(t *testing.T) {
	object := func(o cluster.Object) source.Event { return source.Event{Kind: source.ObjectSet, Object: o} }
	nominated := prior(aPod("nominated", 800), 10)
	nominated.Nominated = "a"
	nominated.Labels.Claims = []cluster.PodClaim{{Name: "theirs"}}
	s := sandbox(t, setNode(aNode("a", "z", 1000)), setPod(nominated),
		object(&cluster.CSINode{Name: "a", Drivers: []cluster.NodeDriver{{Name: "csi", Limited: true, Limit: 1}}}),
		object(&cluster.PersistentVolume{Name: "v", Driver: "csi", Handle: "theirs"}),
		object(&cluster.PersistentVolumeClaim{Namespace: "default", Name: "theirs", Volume: "v", Bound: true}),
		object(&cluster.PersistentVolume{Name: "w", Driver: "csi", Handle: "own"}),
		object(&cluster.PersistentVolumeClaim{Namespace: "default", Name: "own", Volume: "w", Bound: true}))
	for _, tt := range []struct {
		name     string
		pod      source.Pod
		requires bool
		claim    string
		want     bool
	}{
		{name: "lower", pod: prior(aPod("p", 500), 9)},
		{name: "equal", pod: prior(aPod("p", 500), 10)},
		{name: "equal, and requires the node", pod: prior(aPod("p", 500), 10), requires: true},
		{name: "higher", pod: prior(aPod("p", 500), 11), want: true},
		{name: "what is left", pod: prior(aPod("p", 200), 10), want: true},
		{name: "a volume beside the nominated pod's", pod: prior(aPod("p", 100), 10), claim: "own"},
		{name: "a volume, higher", pod: prior(aPod("p", 100), 11), claim: "own", want: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := tt.pod
			if tt.requires {
				pod.RequiredNode = "a"
			}
			if tt.claim != "" {
				pod.Labels.Claims = []cluster.PodClaim{{Name: tt.claim}}
			}
			try(t, s, func(w *World) error {
				got, err := Capacity(w, pod, 1)
				if (got.Pods > 0) != tt.want {
					t.Errorf("there is room for %d: %s", got.Pods, got.Message)
				}
				return err
			})
			try(t, s, func(w *World) error {
				id, err := w.AddPod(pod)
				if err != nil {
					return err
				}
				outcomes, err := Place(w, []cluster.PodID{id}, PlaceOptions{})
				if err == nil && (outcomes[0].Outcome == Placed) != tt.want {
					t.Errorf("alone: %v: %s", outcomes[0].Outcome, outcomes[0].Message)
				}
				return err
			})
			try(t, s, func(w *World) error { // both are asked about, whose turn is whose
				id, err := w.AddPod(pod)
				if err != nil {
					return err
				}
				theirs, _ := w.State().PodByUID("nominated")
				outcomes, err := Place(w, []cluster.PodID{id, theirs}, PlaceOptions{})
				if err == nil && (outcomes[0].Outcome == Placed) != tt.want {
					t.Errorf("both: %v: %s", outcomes[0].Outcome, outcomes[0].Message)
				}
				return err
			})
		})
	}
}
