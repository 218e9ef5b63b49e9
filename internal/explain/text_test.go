package explain

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

var rewrite = flag.Bool("rewrite", false, "write the texts of testdata anew")

// town is a small cluster to explain pods of.
type town struct {
	t  *testing.T
	st *cluster.State
}

const podClass, filler cluster.ClassID = 1, 2

func newTown(t *testing.T, nodes ...cluster.Node) town {
	st := cluster.New(cluster.Version{Epoch: 41})
	apply(t, st, cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Seed: 3, Profiles: []cluster.Profile{engine.DefaultProfile("default-scheduler")}}})
	for k, set := range labelSets {
		apply(t, st, cluster.LabelsDefined{ID: cluster.LabelsID(k + 1), Set: set})
	}
	apply(t, st, cluster.ClassDefined{ID: filler, Spec: cluster.ClassSpec{
		SchedulerName: "default-scheduler", Requests: []cluster.Quantity{quantity("cpu", 1500), quantity("memory", 3<<30)}, NonZeroCPU: 1500, NonZeroMemory: 3 << 30,
		HostPorts: []cluster.HostPort{{IP: "0.0.0.0", Protocol: "TCP", Port: 8080}},
	}})
	for k, n := range nodes {
		apply(t, st, cluster.NodeSet{Index: cluster.NodeIndex(k), Node: n})
	}
	return town{t, st}
}

// house is a node of 4 CPUs and 8 GiB in a zone.
func house(name, inZone string, taints ...cluster.Taint) cluster.Node {
	return cluster.Node{
		Name: name, Allocatable: []cluster.Quantity{quantity("cpu", 4000), quantity("memory", 8<<30), quantity("pods", 110)}, Taints: taints,
		Labels: []cluster.Label{{Key: "disk", Value: "hdd"}, {Key: hostname, Value: name}, {Key: zone, Value: inZone}},
	}
}

// fill puts pods of default on nodes; their priority is -10 and their labels app=web.
func (w town) fill(nodes ...string) {
	for _, node := range nodes {
		id := w.st.FreePod()
		name := "web-" + string(rune('a'+id))
		apply(w.t, w.st, cluster.PodSet{ID: id, Pod: cluster.Pod{
			UID: name, Namespace: "default", Name: name, Class: filler, Labels: 1, Priority: -10, NodeName: node,
		}})
	}
}

// explain adds a pending pod that asks for so much, and explains it.
func (w town) explain(cpu, memory int64, change func(*cluster.ClassSpec, *cluster.Pod)) string {
	spec := fleetSpec(cpu, memory)
	pod := cluster.Pod{UID: "shop", Namespace: "default", Name: "shop", Class: podClass, Labels: 1, NeverPreempts: true}
	if change != nil {
		change(&spec, &pod)
	}
	id := w.st.FreePod()
	apply(w.t, w.st, cluster.ClassDefined{ID: podClass, Spec: spec}, cluster.PodSet{ID: id, Pod: pod})
	return Text(explained(w.t, w.st, id))
}

func TestTexts(t *testing.T) {
	texts := map[string]func(t *testing.T) string{
		"resources": func(t *testing.T) string {
			w := newTown(t, house("node-1", "a"), house("node-2", "b"), house("node-3", "b", cluster.Taint{Key: "gpu", Value: "a100", Effect: "NoSchedule"}))
			w.fill("node-1", "node-1", "node-2")
			return w.explain(3000, 6<<30, nil)
		},
		"preempt": func(t *testing.T) string {
			w := newTown(t, house("node-1", "a"), house("node-2", "b"))
			w.fill("node-1", "node-1", "node-2")
			apply(t, w.st, cluster.ObjectSet{Object: &cluster.Budget{Namespace: "default", Name: "web", Selector: selects("web")}})
			return w.explain(4000, 1<<30, func(_ *cluster.ClassSpec, p *cluster.Pod) { p.NeverPreempts = false })
		},
		"affinity": func(t *testing.T) string {
			ssd := house("node-3", "b")
			ssd.Labels[0].Value, ssd.Unschedulable = "ssd", true
			w := newTown(t, house("node-1", "a"), house("node-2", "b"), ssd)
			return w.explain(1000, 1<<30, func(s *cluster.ClassSpec, _ *cluster.Pod) {
				s.NodeSelector = []cluster.Label{{Key: "disk", Value: "ssd"}}
				s.HasRequired, s.Required = true, []cluster.NodeSelectorTerm{{Expressions: []cluster.Requirement{{Key: zone, Operator: "In", Values: []string{"b", "c"}}}}}
			})
		},
		"others": func(t *testing.T) string {
			w := newTown(t, house("node-1", "a"), house("node-2", "b"), house("node-3", "b"))
			w.fill("node-1", "node-2")
			return w.explain(500, 1<<30, func(s *cluster.ClassSpec, _ *cluster.Pod) {
				s.HostPorts = []cluster.HostPort{{IP: "0.0.0.0", Protocol: "TCP", Port: 8080}}
				s.AntiAffinity = []cluster.PodTerm{term(zone, "web")}
				s.Spread = []cluster.SpreadConstraint{{TopologyKey: zone, MaxSkew: 1, MinDomains: 3, Hard: true, Selector: selects("web")}}
				s.Features = []string{"Swap"}
			})
		},
		"preempting": func(t *testing.T) string {
			w := newTown(t, house("node-1", "a"))
			w.fill("node-1", "node-1")
			w.explain(3000, 1<<30, func(_ *cluster.ClassSpec, p *cluster.Pod) { p.NeverPreempts = false })
			apply(t, w.st, cluster.PreemptionStarted{ID: 2, Node: 0, Victims: []cluster.PodID{0}})
			return Text(explained(t, w.st, 2))
		},
		"elsewhere": func(t *testing.T) string {
			w := newTown(t, house("node-1", "a"))
			return w.explain(1000, 1<<30, func(s *cluster.ClassSpec, p *cluster.Pod) { s.SchedulerName, p.NodeName = "other-scheduler", "node-1" })
		},
		"required-node": func(t *testing.T) string {
			w := newTown(t, house("node-1", "a"), house("node-2", "b"))
			w.fill("node-1", "node-1")
			return w.explain(2000, 1<<30, func(_ *cluster.ClassSpec, p *cluster.Pod) { p.RequiredNode = "node-1" })
		},
		"fits": func(t *testing.T) string {
			w := newTown(t, house("node-1", "a"), house("node-2", "b"), house("node-3", "c", cluster.Taint{Key: "spot", Effect: "PreferNoSchedule"}))
			w.fill("node-1")
			return w.explain(1000, 1<<30, nil)
		},
		"placed": func(t *testing.T) string {
			w := newTown(t, house("node-1", "a"), house("node-2", "b"), house("node-3", "c", cluster.Taint{Key: "spot", Effect: "PreferNoSchedule"}))
			w.fill("node-1")
			return w.explain(1000, 1<<30, func(_ *cluster.ClassSpec, p *cluster.Pod) { p.NodeName = "node-1" })
		},
		"moved": func(t *testing.T) string {
			w := newTown(t, house("node-1", "a", cluster.Taint{Key: "gpu", Value: "a100", Effect: "NoSchedule"}), house("node-2", "b"))
			return w.explain(1000, 1<<30, func(_ *cluster.ClassSpec, p *cluster.Pod) { p.NodeName = "node-1" })
		},
		"gated": func(t *testing.T) string {
			w := newTown(t, house("node-1", "a"))
			return w.explain(1000, 1<<30, func(_ *cluster.ClassSpec, p *cluster.Pod) {
				p.Gates = []string{"example.com/quota", "example.com/review"}
			})
		},
		"scheduler": func(t *testing.T) string {
			w := newTown(t, house("node-1", "a"))
			return w.explain(1000, 1<<30, func(s *cluster.ClassSpec, _ *cluster.Pod) { s.SchedulerName = "other-scheduler" })
		},
		"unsupported": func(t *testing.T) string {
			w := newTown(t, house("node-1", "a"))
			return w.explain(1000, 1<<30, func(s *cluster.ClassSpec, _ *cluster.Pod) {
				s.Unsupported, s.UnsupportedPlugin = "Berth does not judge resource claims yet", "DynamicResources"
			})
		},
		"devices": func(t *testing.T) string {
			w := newTown(t, house("node-1", "a"))
			return w.explain(1000, 1<<30, func(s *cluster.ClassSpec, _ *cluster.Pod) {
				s.Requests = append(s.Requests, cluster.Quantity{Name: "example.com/gpu", Value: 1})
			})
		},
		"empty": func(t *testing.T) string { return newTown(t).explain(1000, 1<<30, nil) },
	}
	for name, of := range storageTowns {
		texts[name] = func(t *testing.T) string {
			w, id := of(t)
			return Text(explained(t, w.st, id))
		}
	}
	for name, text := range texts {
		t.Run(name, func(t *testing.T) {
			got, file := text(t), filepath.Join("testdata", name+".txt")
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := gocmp.Diff(string(want), got); diff != "" {
				t.Errorf("%s (-want +got); run with -rewrite if it is right:\n%s", file, diff)
			}
		})
	}
}

// A placed pod may be of a class that Berth cannot judge: whichever plugin that is about, its reason is told.
func TestWhyAPlacedPodCannotBeJudgedIsTold(t *testing.T) {
	for _, plugin := range []string{
		engine.TaintToleration, engine.NodeAffinity, engine.NodePorts, engine.NodeResourcesFit, engine.PodTopologySpread, engine.InterPodAffinity,
		engine.NodeDeclaredFeatures, "VolumeBinding",
	} {
		w := newTown(t, house("a", "z1"))
		got := w.explain(100, 1<<20, func(spec *cluster.ClassSpec, pod *cluster.Pod) {
			spec.Unsupported, spec.UnsupportedPlugin, pod.NodeName = "it cannot be told", plugin, "a"
		})
		if !strings.Contains(got, "it cannot be told") {
			t.Errorf("of %s:\n%s", plugin, got)
		}
	}
}

func in(key string, values ...string) cluster.Requirement {
	return cluster.Requirement{Key: key, Operator: "In", Values: values}
}

func TestWhatIsDroppedIsToldByWhereItStands(t *testing.T) {
	ofZones := func(terms ...[]cluster.Requirement) func(*cluster.ClassSpec, *cluster.Pod) {
		return func(s *cluster.ClassSpec, _ *cluster.Pod) {
			s.HasRequired = true
			for _, expressions := range terms {
				s.Required = append(s.Required, cluster.NodeSelectorTerm{Expressions: expressions})
			}
		}
	}
	for _, test := range []struct {
		name, want string
		change     func(*cluster.ClassSpec, *cluster.Pod)
	}{
		{"the only condition of the only term", "Drop its required node affinity (zone=a).", ofZones([]cluster.Requirement{in("zone", "a")})},
		{"the only condition of one of two terms", "Drop its required node affinity, all 2 terms of it.", ofZones([]cluster.Requirement{in("zone", "a")}, []cluster.Requirement{in("zone", "b")})},
		{"one condition of the only term", "Drop disk=ssd from its required node affinity.", ofZones([]cluster.Requirement{in("zone", "c"), in("disk", "ssd")})},
		{
			"one condition of one of two terms", "Drop disk=ssd from term 2 of its required node affinity.",
			ofZones([]cluster.Requirement{in("zone", "a"), in("disk", "ssd")}, []cluster.Requirement{in("zone", "c"), in("disk", "ssd")}),
		},
		{"the node selector", "Drop disk=floppy from its node selector.", func(s *cluster.ClassSpec, _ *cluster.Pod) {
			s.NodeSelector = []cluster.Label{{Key: "disk", Value: "floppy"}}
		}},
		{"both", "Drop disk=floppy from its node selector, and disk=ssd from its required node affinity.", func(s *cluster.ClassSpec, p *cluster.Pod) {
			s.NodeSelector = []cluster.Label{{Key: "disk", Value: "floppy"}}
			ofZones([]cluster.Requirement{in("zone", "c"), in("disk", "ssd")})(s, p)
		}},
		{"both, of which one goes whole", "Drop disk=floppy from its node selector, and its required node affinity (zone=a).", func(s *cluster.ClassSpec, p *cluster.Pod) {
			s.NodeSelector = []cluster.Label{{Key: "disk", Value: "floppy"}}
			ofZones([]cluster.Requirement{in("zone", "a")})(s, p)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			node := house("node-1", "c")
			for k := range node.Labels {
				if node.Labels[k].Key == zone {
					node.Labels[k].Key = "zone"
				}
			}
			if got := newTown(t, node).explain(1000, 1<<30, test.change); !strings.Contains(got, ". "+test.want+" Then it fits node-1.\n") {
				t.Errorf("want %q:\n%s", test.want, got)
			}
		})
	}
}

func TestAPendingPodThatIsBeingDeletedIsNotSaidToWait(t *testing.T) {
	for name, cpu := range map[string]int64{"it would fit": 1000, "it would fit nowhere": 1_000_000} {
		t.Run(name, func(t *testing.T) {
			w := newTown(t, house("node-1", "a"))
			got := w.explain(cpu, 1<<30, func(_ *cluster.ClassSpec, p *cluster.Pod) { p.Deleting, p.Gates = true, []string{"example.com/quota"} })
			if headline, _, _ := strings.Cut(got, "\n"); headline != "default/shop is not tried: it is being deleted." {
				t.Error(headline)
			}
			if strings.Contains(got, "would help") || strings.Contains(got, "single change") {
				t.Errorf("changes are told:\n%s", got)
			}
		})
	}
}
