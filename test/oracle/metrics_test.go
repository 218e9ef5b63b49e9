package oracle

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	_ "k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

// upstreamMetrics returns the names of all metrics that kube-scheduler has registered when it serves them, those of its own, and of the libraries that its main package imports. A registry tells
// only of those that have a value; the others are in what it keeps to find that a name is there already.
func upstreamMetrics(t *testing.T) (names []string) {
	t.Helper()
	metrics.Register()
	registry := reflect.ValueOf(legacyregistry.DefaultGatherer).Elem().FieldByName("PromRegistry").Elem().Elem()
	for _, name := range registry.FieldByName("dimHashesByName").MapKeys() {
		names = append(names, name.String())
	}
	slices.Sort(names)
	if len(names) < 100 {
		t.Fatalf("kube-scheduler has %d metrics: its registry is another one", len(names))
	}
	return names
}

// docs/metrics.md says of every metric that kube-scheduler has that Berth has it too, or why not, and says neither of what kube-scheduler does not have.
func TestThePageOfMetricsSaysOfEachOfKubeSchedulersWhatBecomesOfIt(t *testing.T) {
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	matched := make(map[string]int) // names of rows, and beginnings of names with a star
	for section := range strings.SplitSeq(string(page), "\n## ") {
		if !strings.HasPrefix(section, "Those that kube-scheduler has too") && !strings.HasPrefix(section, "Those of kube-scheduler that Berth does not have") {
			continue
		}
		for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*`) \\|").FindAllStringSubmatch(section, -1) {
			for name := range strings.SplitSeq(row[1], ", ") {
				name = strings.Trim(name, "`")
				if _, twice := matched[name]; twice {
					t.Errorf("%s has two rows", name)
				}
				matched[name] = 0
			}
		}
	}
	behindGates := []string{ // which are off, and so not registered
		"scheduler_async_api_call_execution_total", "scheduler_async_api_call_execution_duration_seconds", "scheduler_pending_async_api_calls",
		"scheduler_podgroup_schedule_attempts_total", "scheduler_podgroup_scheduling_attempt_duration_seconds", "scheduler_podgroup_scheduling_algorithm_duration_seconds",
	}
	for _, name := range slices.Concat(upstreamMetrics(t), behindGates) {
		var rows []string
		for row := range matched {
			if begins, is := strings.CutSuffix(row, "*"); row == name || is && strings.HasPrefix(name, begins) {
				rows = append(rows, row)
				matched[row]++
			}
		}
		if len(rows) != 1 {
			t.Errorf("%s: %d rows say what becomes of it: %v", name, len(rows), rows)
		}
	}
	for row, n := range matched {
		if n == 0 {
			t.Errorf("%s: kube-scheduler has no such metric", row)
		}
	}
}
