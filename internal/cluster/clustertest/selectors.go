package clustertest

import (
	"reflect"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// LabelSet returns a random label set.
func LabelSet(intn Intn) cluster.LabelSet {
	set := cluster.LabelSet{Namespace: pick(intn, namespaces), Labels: labels(intn)}
	if intn.one(3) {
		set.Controller = cluster.Controller{Kind: pick(intn, kinds[1:]), Name: pick(intn, selectors)}
	}
	if intn.one(2) {
		fill(intn, reflect.ValueOf(&set.Claims).Elem())
	}
	return set
}

// labelsOf returns a label set of the namespace that st has, or NoLabels.
func labelsOf(intn Intn, st *cluster.State, namespace string) cluster.LabelsID {
	ids := []cluster.LabelsID{cluster.NoLabels}
	for _, l := range st.LabelSets() {
		if l.Namespace == namespace {
			ids = append(ids, l.ID)
		}
	}
	return pick(intn, ids)
}

// Selector returns a random label selector.
func Selector(intn Intn) cluster.LabelSelector {
	s := cluster.LabelSelector{Nothing: intn.one(6)}
	for _, key := range some(intn, 2, labelKeys) {
		r := cluster.Requirement{Key: key, Operator: pick(intn, []string{"In", "NotIn", "Exists", "DoesNotExist"})}
		if r.Operator == "In" || r.Operator == "NotIn" {
			r.Values = []string{"a", "b", ""}[intn(3):]
		}
		s.Requirements = append(s.Requirements, r)
	}
	return s
}

func podTerms(intn Intn) []cluster.PodTerm {
	var out []cluster.PodTerm
	for range intn(3) {
		t := cluster.PodTerm{
			TopologyKey: pick(intn, labelKeys), Namespaces: some(intn, 2, namespaces),
			NamespaceSelector: cluster.LabelSelector{Nothing: true}, Selector: Selector(intn),
		}
		if intn.one(3) {
			t.NamespaceSelector = Selector(intn)
		}
		out = append(out, t)
	}
	return out
}

func weightedPodTerms(intn Intn) []cluster.WeightedPodTerm {
	var out []cluster.WeightedPodTerm
	for _, t := range podTerms(intn) {
		out = append(out, cluster.WeightedPodTerm{Weight: int32(1 + intn(100)), Term: t})
	}
	return out
}

// terms gives a class pod affinity and anti-affinity, or none after all.
func terms(intn Intn, c *cluster.ClassSpec) {
	c.Affinity, c.AntiAffinity = podTerms(intn), podTerms(intn)
	c.PreferredAffinity, c.PreferredAntiAffinity = weightedPodTerms(intn), weightedPodTerms(intn)
}

func spread(intn Intn) []cluster.SpreadConstraint {
	var out []cluster.SpreadConstraint
	for range intn(3) {
		out = append(out, cluster.SpreadConstraint{
			TopologyKey: pick(intn, labelKeys), MaxSkew: int32(1 + intn(3)), MinDomains: int32(1 + intn(3)), Hard: intn.one(2),
			HonorAffinity: intn.one(2), HonorTaints: intn.one(2), Selector: Selector(intn),
		})
	}
	return out
}
