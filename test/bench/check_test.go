package main

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// placedOn returns what is stored when pods of a workload are on the nodes of the numbers.
func placedOn(t *testing.T, w workload, on ...int) stored {
	t.Helper()
	nodes, err := w.nodeObjects()
	if err != nil {
		t.Fatal(err)
	}
	pods, err := w.podObjects(0, len(on))
	if err != nil {
		t.Fatal(err)
	}
	s := stored{placements: map[string]placement{}}
	for _, o := range nodes {
		s.nodes = append(s.nodes, *o.Node)
	}
	for i, o := range pods {
		o.Pod.UID = types.UID(fmt.Sprint("uid-", i))
		s.pods = append(s.pods, *o.Pod)
		s.placements[string(o.Pod.UID)] = placement{Namespace: "default", Name: o.Pod.Name, Node: nodeName(on[i])}
	}
	return s
}

func named(t *testing.T, name string, nodes int) workload {
	t.Helper()
	chosen, err := workloadsNamed(name)
	if err != nil {
		t.Fatal(err)
	}
	w := chosen[0]
	w.nodes = nodes
	return w
}

func TestWrongPlacementsAreFound(t *testing.T) {
	full := make([]int, 81) // of 100m each, on a node of 8 CPUs
	for _, tt := range []struct {
		name     string
		workload string
		on       []int
		spoil    func(*stored)
		want     []string // what the sentences contain, in order; none: nothing is wrong
	}{
		{"pods that fit", "plain", []int{0, 0, 1, 5}, nil, nil},
		{"a node that is full", "plain", full[:80], nil, nil},
		{"one pod more than a node has CPUs for", "plain", full, nil, []string{"node node-0000000: 8100m of cpu requested, 8 allocatable"}},
		{"a node that does not exist", "plain", []int{20}, nil, []string{"bound to node-0000020, which does not exist"}},
		{"a pod without a placement", "plain", []int{0, 1}, func(s *stored) { delete(s.placements, "uid-1") },
			[]string{"1 of 2 pods have a placement; there should be 2"}},
		{"a pod that is gone", "plain", []int{0, 1}, func(s *stored) { s.pods = s.pods[:1] },
			[]string{"there is no pod with the uid uid-1", "1 of 1 pods have a placement; there should be 2"}},
		{"a pod more, without a placement", "plain", []int{0, 1}, func(s *stored) { s.pods = append(s.pods, *s.pods[0].DeepCopy()); s.pods[2].UID = "uid-2" },
			[]string{"2 of 3 pods have a placement; there should be 2"}},
		{"the placement of another pod", "plain", []int{0}, func(s *stored) {
			p := s.placements["uid-0"]
			p.Name = "other"
			s.placements["uid-0"] = p
		}, []string{"its placement says default/other"}},
		{"zones with as many pods each, and one more", "spread-hard", []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 19}, nil, nil},
		{"two more in a zone than in another", "spread-hard", []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 19, 9}, nil, []string{"against its topology spread"}},
		{"all in one zone", "affinity", []int{3, 13, 3}, nil, nil},
		{"one in another zone", "affinity", []int{3, 13, 4}, nil, []string{"against its pod affinity"}},
		{"one on each host", "anti-affinity", []int{3, 13, 4}, nil, nil},
		{"two on a host", "anti-affinity", []int{3, 13, 3}, nil, []string{"against its pod anti-affinity", "against its pod anti-affinity"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := placedOn(t, named(t, tt.workload, 20), tt.on...)
			if tt.spoil != nil {
				tt.spoil(&s)
			}
			got := s.problems(len(tt.on))
			if len(got) != len(tt.want) {
				t.Fatalf("problems = %q, want %q", got, tt.want)
			}
			for i, want := range tt.want {
				if !strings.Contains(got[i], want) {
					t.Errorf("problem %d = %q, want %q", i, got[i], want)
				}
			}
		})
	}
}
