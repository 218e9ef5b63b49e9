package extender

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

func TestASetSaysHowLongItsExtendersTakeForAPreemption(t *testing.T) {
	preempts := func(seconds time.Duration) configv1.Extender {
		return configv1.Extender{URLPrefix: "http://x", PreemptVerb: "p", HTTPTimeout: metav1.Duration{Duration: seconds * time.Second}}
	}
	filters := preempts(7)
	filters.PreemptVerb, filters.FilterVerb = "", "f"
	set := newSet(t, preempts(2), filters, preempts(3))
	for in, want := range map[Interest]time.Duration{0: 0, 1: 2 * time.Second, 2: 0, 5: 5 * time.Second, 7: 5 * time.Second} {
		if got := set.LongestPreempt(in); got != want {
			t.Errorf("%b take %v, want %v", in, got, want)
		}
	}
}
