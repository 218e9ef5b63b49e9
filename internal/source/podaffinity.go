package source

import (
	"fmt"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	v1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
)

// reducePodAffinity fills the class's pod affinity and anti-affinity. If a selector cannot be parsed the class is
// unsupported, and the list it stands in empty: of a pod that is placed the other lists still count, as in kube-scheduler.
func reducePodAffinity(pod *v1.Pod, class *cluster.ClassSpec) {
	affinity := pod.Spec.Affinity
	if affinity == nil {
		return
	}
	var errs []error
	terms := func(list string, in []v1.PodAffinityTerm) []cluster.PodTerm {
		out, err := podTerms(pod, in)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", list, err))
		}
		return out
	}
	weighted := func(list string, in []v1.WeightedPodAffinityTerm) []cluster.WeightedPodTerm {
		out, err := weightedPodTerms(pod, in)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", list, err))
		}
		return out
	}
	near, apart := affinity.PodAffinity, affinity.PodAntiAffinity
	if near == nil {
		near = &v1.PodAffinity{}
	}
	if apart == nil {
		apart = &v1.PodAntiAffinity{}
	}
	class.Affinity = terms("requiredAffinityTerms", near.RequiredDuringSchedulingIgnoredDuringExecution)
	class.AntiAffinity = terms("requiredAntiAffinityTerms", apart.RequiredDuringSchedulingIgnoredDuringExecution)
	class.PreferredAffinity = weighted("preferredAffinityTerms", near.PreferredDuringSchedulingIgnoredDuringExecution)
	class.PreferredAntiAffinity = weighted("preferredAntiAffinityTerms", apart.PreferredDuringSchedulingIgnoredDuringExecution)
	if err := utilerrors.NewAggregate(errs); err != nil {
		refuse(class, engine.PodTerms, "parsing pod: "+err.Error())
	}
}

func podTerms(pod *v1.Pod, terms []v1.PodAffinityTerm) ([]cluster.PodTerm, error) {
	var out []cluster.PodTerm
	for i := range terms {
		term, err := podTerm(pod, &terms[i])
		if err != nil {
			return nil, err
		}
		out = append(out, term)
	}
	return out, nil
}

func weightedPodTerms(pod *v1.Pod, terms []v1.WeightedPodAffinityTerm) ([]cluster.WeightedPodTerm, error) {
	var out []cluster.WeightedPodTerm
	for i := range terms {
		term, err := podTerm(pod, &terms[i].PodAffinityTerm)
		if err != nil {
			return nil, err
		}
		out = append(out, cluster.WeightedPodTerm{Weight: terms[i].Weight, Term: term})
	}
	return out, nil
}

// podTerm reads a term without its matchLabelKeys and mismatchLabelKeys: when a pod is created the API server merges them
// into the selector.
func podTerm(pod *v1.Pod, term *v1.PodAffinityTerm) (cluster.PodTerm, error) {
	selector, err := reduceLabelSelector(term.LabelSelector)
	if err != nil {
		return cluster.PodTerm{}, err
	}
	namespaceSelector, err := reduceLabelSelector(term.NamespaceSelector)
	if err != nil {
		return cluster.PodTerm{}, err
	}
	namespaces := slices.Clone(term.Namespaces)
	if len(namespaces) == 0 && term.NamespaceSelector == nil {
		namespaces = []string{pod.Namespace}
	}
	slices.Sort(namespaces)
	return cluster.PodTerm{
		TopologyKey:       term.TopologyKey,
		Namespaces:        slices.Compact(namespaces),
		NamespaceSelector: namespaceSelector,
		Selector:          selector,
	}, nil
}
