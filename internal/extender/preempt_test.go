package extender

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

// Two bytes of an answer may be a victim that takes forty here.
func TestVictimsHaveABound(t *testing.T) {
	for n, want := range map[int]string{
		mostVictims:     `null for a victim`,
		mostVictims + 1: fmt.Sprintf("answers with more than %d victims", mostVictims),
	} {
		server := serve(t, answers(`{"NodeNameToMetaVictims":{"a":{"Pods":[null`+strings.Repeat(`,null`, n-1)+`]}}}`))
		h := newSet(t, configv1.Extender{URLPrefix: server.URL, PreemptVerb: "preempt", NodeCacheCapable: true, HTTPTimeout: patient})
		_, err := h.Preempt(hangs(t), NewPod(testPod("p")), victimsOn("a"), onNodes)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d victims: %v, want an error with %q", n, err, want)
		}
	}
}

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
