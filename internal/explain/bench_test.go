package explain

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/whatif"
)

// fleet is a cluster of nodes in 10 zones, three of four of 16 CPUs, the others of 32 and with a taint, each with 8 pods of 20
// deployments of priority 0. What is free is 4 CPUs at most.
func fleet(b *testing.B, nodes int) *cluster.State {
	st := cluster.New(cluster.Version{Epoch: 1})
	profile := engine.DefaultProfile("default-scheduler")
	apply(b, st, cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Seed: 42, Profiles: []cluster.Profile{profile}}})
	for k := range 20 {
		app := cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "app", Operator: "In", Values: []string{fmt.Sprint(k)}}}}
		controller := cluster.Controller{Kind: cluster.KindReplicaSet, Name: fmt.Sprint(k)}
		apply(b, st,
			cluster.SelectorSet{Kind: cluster.KindReplicaSet, Namespace: "default", Name: controller.Name, Selector: app},
			cluster.LabelsDefined{ID: cluster.LabelsID(k + 1), Set: cluster.LabelSet{
				Namespace: "default", Labels: []cluster.Label{{Key: "app", Value: fmt.Sprint(k)}}, Controller: controller,
			}},
			cluster.ClassDefined{ID: cluster.ClassID(k + 1), Spec: fleetSpec(int64(1500+k), 2<<30)})
	}
	for i := range nodes {
		n := cluster.Node{
			Name:        fmt.Sprintf("node-%d", i),
			Allocatable: []cluster.Quantity{quantity("cpu", 16000), quantity("memory", 64<<30), quantity("pods", 110)},
			Labels: []cluster.Label{
				{Key: hostname, Value: fmt.Sprintf("node-%d", i)}, {Key: "pool", Value: fmt.Sprint(i % 4)}, {Key: zone, Value: fmt.Sprintf("z%d", i%10)},
			},
		}
		if i%4 == 3 {
			n.Allocatable[0].Value, n.Taints = 32000, []cluster.Taint{{Key: "gpu", Value: "a", Effect: "NoSchedule"}}
		}
		apply(b, st, cluster.NodeSet{Index: cluster.NodeIndex(i), Node: n})
		for k := range 8 {
			id := i*8 + k
			kind := (i*7 + k) % 20
			apply(b, st, cluster.PodSet{ID: cluster.PodID(id), Pod: cluster.Pod{
				UID: fmt.Sprint(id), Namespace: "default", Name: fmt.Sprintf("pod-%d", id), Class: cluster.ClassID(kind + 1), Labels: cluster.LabelsID(kind + 1),
				NodeName: n.Name,
			}})
		}
	}
	return st
}

func fleetSpec(cpu, memory int64) cluster.ClassSpec {
	requests := []cluster.Quantity{quantity("cpu", cpu), quantity("memory", memory)}
	return cluster.ClassSpec{
		SchedulerName: "default-scheduler", Requests: requests, ScoreRequests: requests, NonZeroCPU: cpu, NonZeroMemory: memory, ImageContainers: 1,
	}
}

// BenchmarkExplain explains one pod again and again, on a sandbox that has been asked about it before. Each case has a pod of its
// own. First is what the first explanation costs.
func BenchmarkExplain(b *testing.B) {
	large := fleetSpec(6000, 2<<30)
	cases := []struct {
		name     string
		priority int32
		labels   cluster.LabelsID // 2 are those of app=1
		spec     func(s *cluster.ClassSpec)
	}{
		{"fits", 0, 2, func(s *cluster.ClassSpec) { *s = fleetSpec(1000, 1<<30) }},
		{"resources", 0, 2, func(*cluster.ClassSpec) {}},
		{"preempts", 10, 2, func(*cluster.ClassSpec) {}},
		{"selector", 0, 2, func(s *cluster.ClassSpec) {
			*s = fleetSpec(1000, 1<<30)
			s.NodeSelector = []cluster.Label{{Key: "pool", Value: "x"}}
		}},
		{"antiAffinity", 0, 3, func(s *cluster.ClassSpec) {
			*s = fleetSpec(1000, 1<<30)
			s.AntiAffinity = []cluster.PodTerm{{TopologyKey: zone, Namespaces: []string{"default"}, NamespaceSelector: cluster.LabelSelector{Nothing: true}, Selector: selects("2")}}
		}},
		{"spread", 0, 2, func(s *cluster.ClassSpec) {
			s.Spread = []cluster.SpreadConstraint{{TopologyKey: zone, MaxSkew: 1, MinDomains: 1, Hard: true, HonorAffinity: true, Selector: selects("1")}}
		}},
	}
	for _, nodes := range []int{5000, 100000} {
		st := fleet(b, nodes)
		var pods []cluster.PodID
		for k, c := range cases {
			spec := large
			c.spec(&spec)
			id, class := st.FreePod(), cluster.ClassID(100+k)
			apply(b, st, cluster.ClassDefined{ID: class, Spec: spec}, cluster.PodSet{ID: id, Pod: cluster.Pod{
				UID: c.name, Namespace: "default", Name: c.name, Class: class, Labels: c.labels, Priority: c.priority,
			}})
			pods = append(pods, id)
		}
		cases := append(slices.Clone(cases), cases[0])
		cases[len(cases)-1].name = "placed"
		pods = append(pods, 12345)
		s := whatif.New(st, engine.EvaluatorConfig{Parallelism: 1})
		for k, c := range cases {
			b.Run(fmt.Sprintf("nodes=%d/%s", nodes, c.name), func(b *testing.B) {
				b.ReportAllocs()
				explain := func() Explanation {
					x, err := Explain(b.Context(), s, pods[k])
					if err != nil {
						b.Fatal(err)
					}
					return x
				}
				began := time.Now()
				explain()
				first := time.Since(began)
				var took []time.Duration
				for b.Loop() {
					began := time.Now()
					explain()
					took = append(took, time.Since(began))
				}
				slices.Sort(took)
				b.ReportMetric(float64(first.Microseconds())/1000, "first-ms")
				b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
			})
		}
	}
}
