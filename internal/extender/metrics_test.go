package extender

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-scheduler/berth/internal/logtest"
)

// Servers have bounds of their own: it is told before they are met, once, and again when requests have become twice as large.
func TestCallsAreMeasuredAndLargeRequestsTold(t *testing.T) {
	var log logtest.Buffer
	registry := prometheus.NewRegistry()
	observe, err := NewObserver(registry, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	for _, bytes := range []int{1000, 8<<20 - 1, 8 << 20, 9 << 20, 16 << 20} {
		observe(Call{Extender: "http://a", Verb: Filter, Took: time.Second, RequestBytes: bytes})
	}
	observe(Call{Extender: "http://b", Verb: Bind, RequestBytes: 10, Err: errors.New("no")})
	if got := strings.Count(log.String(), "requests to an extender are large"); got != 2 {
		t.Errorf("told %d times, want twice:\n%s", got, log.String())
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if n := len(f.GetMetric()); f.GetName() == "berth_extender_call_seconds" && n != 2 || len(families) != 2 {
			t.Errorf("%s: %d series of %d metrics, want those of the one that has answered and of the one that has not", f.GetName(), n, len(families))
		}
	}
}

func TestASetSaysWhatItsExtendersTake(t *testing.T) {
	seconds := func(n time.Duration) metav1.Duration { return metav1.Duration{Duration: n * time.Second} }
	set := newSet(t,
		configv1.Extender{URLPrefix: "http://a", FilterVerb: "f", PrioritizeVerb: "p", Weight: 1, HTTPTimeout: seconds(2), NodeCacheCapable: true},
		configv1.Extender{URLPrefix: "http://b", FilterVerb: "f", HTTPTimeout: seconds(3), Ignorable: true},
		configv1.Extender{URLPrefix: "http://c", PrioritizeVerb: "p", Weight: 1, NodeCacheCapable: true},
	)
	// The one that may be ignored is the last.
	for in, want := range map[Interest]time.Duration{0: 0, 1: 4 * time.Second, 2: 5 * time.Second, 4: 3 * time.Second, 7: 10 * time.Second} {
		if got := set.Longest(in); got != want {
			t.Errorf("%b take %v, want %v", in, got, want)
		}
		if got := set.Full(in); got != (in&4 != 0) {
			t.Errorf("%b are sent nodes in full: %v", in, got)
		}
	}
	if got := slices.Collect(Interest(0b1000_0000_0101).Each()); !slices.Equal(got, []int{0, 2, 11}) {
		t.Errorf("each: %v", got)
	}
	if _, err := New(Config{Extenders: slices.Repeat([]configv1.Extender{{URLPrefix: "http://a"}}, MaxExtenders+1)}); err == nil || err.Error() != "extenders: 65, want at most 64" {
		t.Errorf("too many: %v", err)
	}
}
