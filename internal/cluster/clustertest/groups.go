package clustertest

import (
	"fmt"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// recomputeGroups compares who names which group, and how many of them are placed, with the pods themselves.
func recomputeGroups(st *cluster.State) error {
	pods, placed, preempting := make(map[cluster.GroupKey][]cluster.PodID), make(map[cluster.GroupKey]int), make(map[cluster.GroupKey]bool)
	for id, row := range st.Pods() {
		key, ok := cluster.GroupOf(&row.Pod)
		if !ok {
			continue
		}
		pods[key] = append(pods[key], id)
		if row.Placed() {
			placed[key]++
		}
		preempting[key] = preempting[key] || row.Preempting
	}
	if n := st.Groups(); n != len(pods) {
		return fmt.Errorf("%d groups, want %d", n, len(pods))
	}
	for key, want := range pods {
		if got := slices.Sorted(slices.Values(st.GroupPods(key))); !slices.Equal(got, want) || st.GroupPlaced(key) != placed[key] {
			return fmt.Errorf("group %v has pods %v, %d of them placed, want %v and %d", key, got, st.GroupPlaced(key), want, placed[key])
		}
		if got := st.GroupPreempting(key); got != preempting[key] {
			return fmt.Errorf("group %v is preempting %v, want %v", key, got, preempting[key])
		}
	}
	return nil
}
