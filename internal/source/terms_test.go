package source_test

import (
	"fmt"
	"testing"

	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/source"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ofTerms returns a pod with so many terms in each of its lists.
func ofTerms(near, apart, preferredNear, preferredApart int) *v1.Pod {
	terms := func(n int) (out []v1.PodAffinityTerm) {
		for k := range n {
			out = append(out, v1.PodAffinityTerm{TopologyKey: fmt.Sprint("key-", k), LabelSelector: &metav1.LabelSelector{}})
		}
		return out
	}
	weighted := func(n int) (out []v1.WeightedPodAffinityTerm) {
		for _, t := range terms(n) {
			out = append(out, v1.WeightedPodAffinityTerm{Weight: 1, PodAffinityTerm: t})
		}
		return out
	}
	return &v1.Pod{Spec: v1.PodSpec{Affinity: &v1.Affinity{
		PodAffinity: &v1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: terms(near), PreferredDuringSchedulingIgnoredDuringExecution: weighted(preferredNear),
		},
		PodAntiAffinity: &v1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: terms(apart), PreferredDuringSchedulingIgnoredDuringExecution: weighted(preferredApart),
		},
	}}}
}

func TestAPodOfMoreAffinityTermsThan256IsUnsupportedAndSoManyOfThemCount(t *testing.T) {
	for _, test := range []struct {
		has, counts [4]int // required affinity, required anti-affinity, preferred affinity, preferred anti-affinity
		why         string
	}{
		{[4]int{64, 64, 64, 64}, [4]int{64, 64, 64, 64}, ""},
		{[4]int{0, 256, 0, 0}, [4]int{0, 256, 0, 0}, ""},
		{[4]int{64, 64, 64, 65}, [4]int{64, 64, 64, 64}, "Berth judges at most 256 affinity terms per pod, and the pod has 257"},
		{[4]int{250, 10, 10, 1}, [4]int{246, 10, 0, 0}, "Berth judges at most 256 affinity terms per pod, and the pod has 271"}, // those first that keep others away
		{[4]int{0, 20_000, 0, 7}, [4]int{0, 256, 0, 0}, "Berth judges at most 256 affinity terms per pod, and the pod has 20007"},
	} {
		class := source.ReducePod(ofTerms(test.has[0], test.has[1], test.has[2], test.has[3])).Class
		counts := [4]int{len(class.Affinity), len(class.AntiAffinity), len(class.PreferredAffinity), len(class.PreferredAntiAffinity)}
		if counts != test.counts || class.Unsupported != test.why {
			t.Errorf("of %v terms count %v, and it is unsupported for %q, want %v and %q", test.has, counts, class.Unsupported, test.counts, test.why)
		}
		if test.why != "" && class.UnsupportedPlugin != engine.InterPodAffinity {
			t.Errorf("%v terms: unsupported by %s", test.has, class.UnsupportedPlugin)
		}
	}
}
