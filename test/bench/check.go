package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

// problems returns a sentence for each thing that is wrong with what is stored after a run, in which want pods were to be
// placed: each once, on a node that exists, within what it has, and where its constraints let it be. It puts the pods on their nodes.
func (s stored) problems(want int) []string {
	var problems []string
	placed := map[string]bool{} // by uid
	for i := range s.pods {
		pod := &s.pods[i]
		at, ok := s.placements[string(pod.UID)]
		if !ok {
			continue
		}
		placed[string(pod.UID)] = true
		if at.Namespace != pod.Namespace || at.Name != pod.Name {
			problems = append(problems, fmt.Sprintf("pod %s/%s: its placement says %s/%s", pod.Namespace, pod.Name, at.Namespace, at.Name))
		}
		pod.Spec.NodeName = at.Node
	}
	for _, uid := range slices.Sorted(maps.Keys(s.placements)) {
		if at := s.placements[uid]; !placed[uid] {
			problems = append(problems, fmt.Sprintf("placement of %s/%s on %s: there is no pod with the uid %s", at.Namespace, at.Name, at.Node, uid))
		}
	}
	if len(placed) != want || len(s.pods) != want {
		problems = append(problems, fmt.Sprintf("%d of %d pods have a placement; there should be %d", len(placed), len(s.pods), want))
	}
	return append(problems, kubetest.Judge(s.nodes, s.pods).Problems()...)
}
