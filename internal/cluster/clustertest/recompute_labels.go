package clustertest

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// recomputeLabels compares how many pods each label set has.
func recomputeLabels(st *cluster.State, pods map[cluster.LabelsID]int) error {
	for _, l := range st.LabelSets() {
		if l.Pods != pods[l.ID] {
			return fmt.Errorf("label set %d has %d pods, want %d", l.ID, l.Pods, pods[l.ID])
		}
		if st.Labels(l.ID) != l {
			return fmt.Errorf("label set %d is not found by its id", l.ID)
		}
	}
	for id := range pods {
		if (st.Labels(id) == nil) != (id == cluster.NoLabels) {
			return fmt.Errorf("label set %d of %d pods: %+v", id, pods[id], st.Labels(id))
		}
	}
	return nil
}

// recomputeKeys compares which label keys nodes have.
func recomputeKeys(st *cluster.State) error {
	want := make(map[cluster.Symbol]bool)
	for _, labels := range st.Nodes.Labels {
		for _, l := range labels {
			want[l.Key] = true
		}
	}
	for key := range cluster.Symbol(st.Symbols.Len()) {
		if got := st.Nodes.HasKey(key); got != want[key] {
			return fmt.Errorf("some node has the label %s: %v, want %v", st.Symbols.Text(key), got, want[key])
		}
	}
	return nil
}

// recomputeTerms compares which classes have pod affinity or anti-affinity terms.
func recomputeTerms(st *cluster.State) error {
	var want []cluster.ClassID
	for _, c := range st.Classes() {
		s := &c.Spec
		if s.Affinity != nil || s.AntiAffinity != nil || s.PreferredAffinity != nil || s.PreferredAntiAffinity != nil {
			want = append(want, c.ID)
		}
	}
	if got := st.TermClasses(); !slices.Equal(got, want) {
		return fmt.Errorf("classes with terms: %v, want %v", got, want)
	}
	return nil
}

// recomputeNominations compares which pods are nominated to which nodes.
func recomputeNominations(st *cluster.State) error {
	want := make(map[string][]cluster.PodID)
	for id, p := range st.Pods() { // by id
		if p.Phase == cluster.Pending && p.Nominated != "" {
			want[p.Nominated] = append(want[p.Nominated], id)
		}
	}
	names := slices.Sorted(st.NominatedNodes())
	if !slices.Equal(names, slices.Sorted(maps.Keys(want))) || st.Nominations() != len(want) {
		return fmt.Errorf("%d nominations, to %v, want %v", st.Nominations(), names, want)
	}
	for _, name := range names {
		if got := st.NominatedOn(name); !slices.Equal(got, want[name]) {
			return fmt.Errorf("nominated to %s: %v, want %v", name, got, want[name])
		}
	}
	return nil
}

// recomputeServices compares the services of each namespace with the services there are, and each with what its name
// leads to.
func recomputeServices(st *cluster.State) error {
	want := make(map[string]int) // services by namespace
	for d := range st.Snapshot() {
		s, ok := d.(cluster.SelectorSet)
		if !ok {
			continue
		}
		if got, known := st.Selector(s.Kind, s.Namespace, s.Name); !known || !reflect.DeepEqual(got, s.Selector) {
			return fmt.Errorf("selector of %s %s/%s: %+v, %v, want %+v", s.Kind, s.Namespace, s.Name, got, known, s.Selector)
		}
		if s.Kind == cluster.KindService {
			want[s.Namespace]++
		}
	}
	for _, namespace := range namespaces {
		got := 0
		for name, s := range st.Services(namespace) {
			got++
			if byName, known := st.Selector(cluster.KindService, namespace, name); !known || !reflect.DeepEqual(byName, s) {
				return fmt.Errorf("service %s/%s: %+v, by name %+v, %v", namespace, name, s, byName, known)
			}
		}
		if got != want[namespace] {
			return fmt.Errorf("namespace %s has %d services, want %d", namespace, got, want[namespace])
		}
	}
	return nil
}
