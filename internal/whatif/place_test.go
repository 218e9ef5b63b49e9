package whatif

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/ingest"
	"github.com/berth-scheduler/berth/internal/source"
)

func settings() cluster.Settings {
	return cluster.Settings{Shards: 1, Seed: 5, Profiles: []cluster.Profile{engine.DefaultProfile("default-scheduler")}}
}

// sandbox returns one that has been told events.
func sandbox(t interface{ Fatal(...any) }, events ...source.Event) *Sandbox {
	st := cluster.New(start)
	if err := st.Apply(cluster.SettingsSet{Settings: settings()}); err != nil {
		t.Fatal(err)
	}
	fold := ingest.New(st, st.Apply)
	for _, e := range events {
		if err := fold.Observe(e); err != nil {
			t.Fatal(err)
		}
	}
	return New(st, engine.EvaluatorConfig{})
}

// try has ask succeed.
func try(t testing.TB, s *Sandbox, ask func(*World) error) {
	t.Helper()
	if err := s.Try(t.Context(), ask); err != nil {
		t.Fatal(err)
	}
}

func setNode(n cluster.Node) source.Event { return source.Event{Kind: source.NodeSet, Node: n} }
func setPod(p source.Pod) source.Event    { return source.Event{Kind: source.PodSet, Pod: p} }

// aNode returns a node of a zone with so many milli-CPU, and room for 10 pods.
func aNode(name, zone string, cpu int64) cluster.Node {
	return cluster.Node{
		Name:        name,
		Labels:      []cluster.Label{{Key: "kubernetes.io/hostname", Value: name}, {Key: zoneLabel, Value: zone}},
		Allocatable: []cluster.Quantity{{Name: "cpu", Value: cpu}, {Name: "memory", Value: 16 << 30}, {Name: "pods", Value: 10}},
	}
}

// aPod returns a pending pod that asks for so many milli-CPU.
func aPod(name string, cpu int64) source.Pod {
	asks := []cluster.Quantity{{Name: "cpu", Value: cpu}}
	return source.Pod{
		Pod: cluster.Pod{UID: name, Namespace: "default", Name: name},
		Class: cluster.ClassSpec{
			SchedulerName: "default-scheduler", Requests: asks, ScoreRequests: asks, NonZeroCPU: cpu, NonZeroMemory: 200 << 20,
		},
		Labels: cluster.LabelSet{Namespace: "default", Labels: []cluster.Label{{Key: "app", Value: "web"}}},
	}
}

func on(p source.Pod, node string) source.Pod {
	p.NodeName = node
	return p
}

func prior(p source.Pod, priority int32) source.Pod {
	p.Priority = priority
	return p
}

func web() cluster.LabelSelector {
	return cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "app", Operator: "In", Values: []string{"web"}}}}
}

// randomEvents are some nodes and pods, placed and pending, that matter to each other.
func randomEvents(intn clustertest.Intn) (events []source.Event, pending []source.Pod) {
	nodes := 1 + intn(9)
	for k := range nodes {
		n := aNode(fmt.Sprintf("n%d", k), fmt.Sprintf("z%d", intn(3)), int64(500*(1+intn(4))))
		n.Unschedulable = intn(8) == 0
		if intn(5) == 0 {
			n.Taints = []cluster.Taint{{Key: "k", Effect: []string{"NoSchedule", "PreferNoSchedule"}[intn(2)]}}
		}
		events = append(events, setNode(n))
	}
	for k := range intn(30) {
		p := randomPod(intn, fmt.Sprintf("p%02d", k))
		if intn(3) == 0 {
			events = append(events, setPod(on(p, fmt.Sprintf("n%d", intn(nodes)))))
		} else {
			pending = append(pending, p)
		}
	}
	return events, pending
}

func randomPod(intn clustertest.Intn, name string) source.Pod {
	p := prior(aPod(name, int64(100*(1+intn(5)))), int32(intn(3)))
	p.Created = int64(intn(5))
	p.Labels.Labels = []cluster.Label{{Key: "app", Value: []string{"web", "db"}[intn(2)]}}
	term := cluster.PodTerm{TopologyKey: []string{zoneLabel, "kubernetes.io/hostname"}[intn(2)], Namespaces: []string{"default"}, Selector: web()}
	switch intn(12) {
	case 0:
		p.Class.AntiAffinity = []cluster.PodTerm{term}
	case 1:
		p.Class.Affinity = []cluster.PodTerm{term}
	case 2:
		p.Class.PreferredAffinity = []cluster.WeightedPodTerm{{Weight: 10, Term: term}}
	case 3:
		p.Class.Spread = []cluster.SpreadConstraint{{TopologyKey: zoneLabel, MaxSkew: 1, MinDomains: 1, Hard: true, HonorAffinity: true, Selector: web()}}
	case 4:
		p.Class.HostPorts = []cluster.HostPort{{IP: "0.0.0.0", Protocol: "TCP", Port: 80}}
	case 5:
		p.Class.Tolerations = []cluster.Toleration{{Operator: "Exists"}}
	case 6:
		p.RequiredNode = fmt.Sprintf("n%d", intn(4))
	case 7:
		p.Gates = []string{"gate"}
	case 8:
		p.Nominated = fmt.Sprintf("n%d", intn(4))
	}
	p.NeverPreempts = intn(6) == 0
	return p
}

// oneByOne places pods without any memory: each on a sandbox that is new.
func oneByOne(t *rapid.T, w *World, pods []cluster.PodID) map[string]string {
	where := make(map[string]string)
	for round := true; round; {
		round = false
		for _, id := range pods {
			row := w.State().Pod(id)
			if row == nil || row.Placed() {
				continue
			}
			fresh := New(w.State(), engine.EvaluatorConfig{})
			node := ""
			err := fresh.Try(t.Context(), func(w *World) error {
				outcomes, err := Place(w, []cluster.PodID{id}, PlaceOptions{})
				if err == nil && outcomes[0].Outcome == Placed {
					node = outcomes[0].Node
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if node != "" {
				round = true
				if err := w.assume(id, w.State().Nodes.ByName(node)); err != nil {
					t.Fatal(err)
				}
			}
			where[row.Name] = node
		}
	}
	return where
}

func TestPodsThatArePlacedTogetherGoWhereTheyWouldOneByOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		events, pending := randomEvents(draws(t))
		s := sandbox(t, events...)
		var together, apart map[string]string
		for _, way := range []func(w *World, pods []cluster.PodID) error{
			func(w *World, pods []cluster.PodID) error {
				outcomes, err := Place(w, pods, PlaceOptions{})
				together = make(map[string]string)
				for _, o := range outcomes {
					together[o.Name] = o.Node
				}
				return err
			},
			func(w *World, pods []cluster.PodID) error { apart = oneByOne(t, w, pods); return nil },
		} {
			err := s.Try(t.Context(), func(w *World) error {
				for _, p := range pending {
					if _, err := w.AddPod(p); err != nil {
						return err
					}
				}
				return way(w, Pending(w))
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(apart, together); diff != "" {
			t.Fatalf("(-one by one +together):\n%s", diff)
		}
	})
}

// A nominated pod holds room where it may not go. When it has gone elsewhere, pods before it that lacked the room are tried again.
func TestRoomThatANominatedPodLeavesIsTaken(t *testing.T) {
	taken := on(aPod("there", 800), "a")
	first := prior(aPod("first", 200), 0)
	first.Class.NodeSelector = []cluster.Label{{Key: "kubernetes.io/hostname", Value: "a"}}
	first.Created = 1
	nominated := aPod("nominated", 500)
	nominated.Nominated, nominated.Created = "a", 2
	s := sandbox(t, setNode(aNode("a", "z", 1000)), setNode(aNode("b", "z", 1000)), setPod(taken), setPod(first), setPod(nominated))
	try(t, s, func(w *World) error {
		outcomes, err := Place(w, Pending(w), PlaceOptions{})
		got := make(map[string]string)
		for _, o := range outcomes {
			got[o.Name] = o.Node
		}
		if diff := cmp.Diff(map[string]string{"first": "a", "nominated": "b"}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		return err
	})
}

// Room that a pod resigns because it fits nowhere, whoever is evicted, is taken by the pods before it too.
func TestRoomThatAPodResignsIsTaken(t *testing.T) {
	first := aPod("first", 700)
	first.Created = 1
	nominated := aPod("nominated", 900)
	nominated.Nominated, nominated.Created, nominated.Class.NodeSelector = "a", 2, []cluster.Label{{Key: "nowhere", Value: "yes"}}
	s := sandbox(t, setNode(aNode("a", "z", 1000)), setPod(first), setPod(nominated))
	try(t, s, func(w *World) error {
		outcomes, err := Place(w, Pending(w), PlaceOptions{Preempt: true})
		if err == nil && (outcomes[0].Name != "first" || outcomes[0].Node != "a") {
			t.Errorf("%s is on %q", outcomes[0].Name, outcomes[0].Node)
		}
		return err
	})
}

// What is said of a pod holds for where it is in the end, and nothing is overcommitted.
func TestOutcomesAreWhatIsInTheWorld(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		events, pending := randomEvents(draws(t))
		s := sandbox(t, events...)
		before, digest := clustertest.Dump(s.state), s.state.Digest()
		err := s.Try(t.Context(), func(w *World) error {
			for _, p := range pending {
				if _, err := w.AddPod(p); err != nil {
					return err
				}
			}
			outcomes, err := Place(w, Pending(w), PlaceOptions{Preempt: true})
			if err != nil {
				return err
			}
			gone := make(map[string]bool)
			for _, o := range outcomes {
				for _, v := range o.Victims {
					gone[v.UID] = true
				}
			}
			for _, o := range outcomes {
				id, there := w.State().PodByUID(o.UID)
				if there == (o.Outcome == Evicted) || there == gone[o.UID] {
					t.Fatalf("%s is %v; there: %v; a victim: %v", o.Name, o.Outcome, there, gone[o.UID])
				}
				if there && w.State().Pod(id).NodeName != o.Node {
					t.Fatalf("%s is said to be on %q and is on %q", o.Name, o.Node, w.State().Pod(id).NodeName)
				}
				if o.Outcome == Unplaced && o.Message == "" || o.Outcome == Preempts && len(o.Victims) == 0 {
					t.Fatalf("%+v says nothing", o)
				}
			}
			return clustertest.Recompute(w.State())
		})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, clustertest.Dump(s.state)); diff != "" || digest != s.state.Digest() {
			t.Fatalf("the sandbox (-before +after):\n%s", diff)
		}
	})
}

func TestPreemptorTakesTheRoomOfTheLeastImportantPods(t *testing.T) {
	s := sandbox(t,
		setNode(aNode("a", "z", 1000)), setNode(aNode("b", "z", 1000)),
		setPod(on(prior(aPod("high", 900), 5), "a")), setPod(on(prior(aPod("low", 900), 1), "b")),
		source.Event{Kind: source.ObjectSet, Object: &cluster.Budget{Namespace: "default", Name: "budget", Selector: web()}})
	for range 2 { // the second time on what is remembered of the first
		try(t, s, func(w *World) error {
			id, err := w.AddPod(prior(aPod("p", 500), 9))
			if err != nil {
				return err
			}
			want := []PodOutcome{{
				Pod: id, UID: "p", Namespace: "default", Name: "p", Outcome: Preempts, Node: "b",
				Victims: []Victim{{Pod: 1, UID: "low", Namespace: "default", Name: "low", Node: "b", Priority: 1, Protected: []string{"budget"}}},
			}}
			got, err := Place(w, []cluster.PodID{id}, PlaceOptions{Preempt: true})
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			return err
		})
		try(t, s, func(w *World) error {
			id, err := w.AddPod(prior(aPod("p", 500), 9))
			if err != nil {
				return err
			}
			got, err := Place(w, []cluster.PodID{id}, PlaceOptions{})
			if want := "0/2 nodes are available: 2 Insufficient cpu."; got[0].Outcome != Unplaced || got[0].Message != want {
				t.Errorf("without preemption: %v, %q, want %q", got[0].Outcome, got[0].Message, want)
			}
			return err
		})
	}
}

func TestPodThatWantsOneBehindItIsPlacedInTheEnd(t *testing.T) {
	first := prior(aPod("first", 100), 9)
	first.Labels.Labels = nil
	first.Class.Affinity = []cluster.PodTerm{{TopologyKey: zoneLabel, Namespaces: []string{"default"}, Selector: web()}}
	gated := aPod("gated", 100)
	gated.Gates = []string{"wait"}
	other := aPod("other", 100)
	other.Class.SchedulerName = "somebody-else"
	s := sandbox(t, setNode(aNode("a", "z", 1000)), setPod(first), setPod(aPod("second", 100)), setPod(gated), setPod(other))
	try(t, s, func(w *World) error {
		got, err := Place(w, Pending(w), PlaceOptions{})
		outcomes := make(map[string]Outcome)
		for _, o := range got {
			outcomes[o.Name] = o.Outcome
		}
		want := map[string]Outcome{"first": Placed, "second": Placed, "gated": Gated, "other": NotOurs}
		if diff := cmp.Diff(want, outcomes); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		return err
	})
}

func TestPodsThatAreLeftToAnotherSchedulerAreNotTried(t *testing.T) {
	st := cluster.New(start)
	all := settings()
	if err := st.Apply(cluster.SettingsSet{Settings: all.Yielding([]string{all.Profiles[0].SchedulerName}, "kube-scheduler_1")}); err != nil {
		t.Fatal(err)
	}
	fold := ingest.New(st, st.Apply)
	for _, e := range []source.Event{setNode(aNode("a", "z", 1000)), setPod(aPod("theirs", 100))} {
		if err := fold.Observe(e); err != nil {
			t.Fatal(err)
		}
	}
	try(t, New(st, engine.EvaluatorConfig{}), func(w *World) error {
		got, err := Place(w, Pending(w), PlaceOptions{})
		if err != nil || len(got) != 1 || got[0].Outcome != Yielded || got[0].Message != "kube-scheduler_1" {
			t.Errorf("%+v, %v, want one that is yielded to kube-scheduler_1", got, err)
		}
		room, err := Capacity(w, aPod("more", 100), 5)
		if err != nil || room.Pods != 0 || room.AtLeast || !strings.Contains(room.Message, "kube-scheduler_1") {
			t.Errorf("%+v, %v, want no room because of kube-scheduler_1", room, err)
		}
		return err
	})
}
