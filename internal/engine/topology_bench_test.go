package engine

import (
	"fmt"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// crossNodeClasses are pods of app=web that care about each other.
func crossNodeClasses() map[string]cluster.ClassSpec {
	web := cluster.LabelSelector{Requirements: []cluster.Requirement{{Key: "app", Operator: "In", Values: []string{"web"}}}}
	near := func(key string) cluster.PodTerm {
		return cluster.PodTerm{TopologyKey: key, Namespaces: []string{"default"}, NamespaceSelector: cluster.LabelSelector{Nothing: true}, Selector: web}
	}
	spread := func(key string, skew int32, hard bool) cluster.SpreadConstraint {
		return cluster.SpreadConstraint{TopologyKey: key, MaxSkew: skew, MinDomains: 1, Hard: hard, HonorAffinity: true, Selector: web}
	}
	const zone = "topology.kubernetes.io/zone"
	return map[string]cluster.ClassSpec{
		"antiAffinity/hostname":  {AntiAffinity: []cluster.PodTerm{near(hostname)}},
		"affinity/zone":          {Affinity: []cluster.PodTerm{near(zone)}},
		"preferredAffinity/zone": {PreferredAffinity: []cluster.WeightedPodTerm{{Weight: 1, Term: near(zone)}}},
		"spread/hard/zone":       {Spread: []cluster.SpreadConstraint{spread(zone, 1, true)}},
		"spread/soft/zone":       {Spread: []cluster.SpreadConstraint{spread(zone, 1, false)}},
		"spread/soft/default":    {Spread: []cluster.SpreadConstraint{spread(hostname, 3, false), spread(zone, 5, false)}},
	}
}

// BenchmarkPlaceCrossNode is BenchmarkPlace with 5,000 nodes in 10 zones, of pods that care about each other.
func BenchmarkPlaceCrossNode(b *testing.B) {
	const nodes, size, labels = 5000, 256, cluster.LabelsID(1)
	for name, spec := range crossNodeClasses() {
		spec.Requests, spec.ScoreRequests = requests(100, 500<<20), requests(100, 500<<20)
		spec.NonZeroCPU, spec.NonZeroMemory = 100, 500<<20
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			st := cluster.New(cluster.Version{Epoch: 1})
			web := cluster.LabelSet{Namespace: "default", Labels: []cluster.Label{{Key: "app", Value: "web"}}}
			apply(b, st, cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Seed: 42}},
				cluster.ClassDefined{ID: testClass, Spec: spec}, cluster.LabelsDefined{ID: labels, Set: web})
			for i := range nodes {
				apply(b, st, cluster.NodeSet{Index: cluster.NodeIndex(i), Node: cluster.Node{
					Name: fmt.Sprintf("node-%d", i), Allocatable: requests(32000, 128<<30, quantity("pods", 110)),
					Labels: []cluster.Label{
						{Key: hostname, Value: fmt.Sprintf("node-%d", i)}, {Key: "topology.kubernetes.io/zone", Value: fmt.Sprintf("z%d", i%10)},
					},
				}})
			}
			var pods [size]cluster.PodID
			for k := range pods {
				pods[k] = st.FreePod()
				apply(b, st, cluster.PodSet{ID: pods[k], Pod: cluster.Pod{UID: fmt.Sprint(k), Class: testClass, Labels: labels}})
			}
			e, binder := NewEvaluator(EvaluatorConfig{Parallelism: 1}), NewEvaluator(EvaluatorConfig{Parallelism: 1})
			subject := Subject{Class: testClass, Labels: labels}
			var p *Placer
			placed := 0
			for k := size; b.Loop(); k++ {
				if k == size {
					b.StopTimer()
					for _, id := range pods {
						if st.Pod(id).Phase == cluster.Assumed {
							apply(b, st, cluster.PodForgotten{ID: id})
						}
					}
					f, _ := e.Filter(st, subject, everything(st))
					groups, _ := e.Score(st, subject, everything(st), f.Eligible, size)
					p, k = NewPlacer(binder, st, st.Version().Seq, []Candidates{{subject, groups}}), 0
					b.StartTimer()
				}
				if node, placement := p.Place(0); placement == Placed {
					placed++
					apply(b, st, cluster.PodAssumed{ID: pods[k], Node: node, Attempt: 1})
				}
			}
			if placed != b.N {
				b.Errorf("placed %d of %d pods", placed, b.N)
			}
		})
	}
}
