package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

func tableOf(t *testing.T, results []result, markdown bool) []string {
	t.Helper()
	var out strings.Builder
	if err := printTable(&out, "header", results, markdown); err != nil {
		t.Fatal(err)
	}
	return strings.Split(out.String(), "\n")
}

func TestRowsShowWhatIsAskedBesideTheMedianOfAllRuns(t *testing.T) {
	fast := workload{name: "fast", nodes: 3, pods: 40, targets: []target{{decisions, 100}, {perNodeKB, 1.5}, {p50, 0}}}
	of := func(w workload, figures map[figure]float64, problems ...string) result {
		return result{workload: w, figures: figures, problems: problems}
	}
	results := []result{
		of(fast, map[figure]float64{decisions: 90, perNodeKB: 2, p50: 1, cpuMicros: 7}),
		of(workload{name: "small", targets: []target{{peakMB, 300}}}, map[figure]float64{peakMB: 299}, "a pod is lost"),
		of(fast, map[figure]float64{decisions: 110, perNodeKB: 1, p50: 1, cpuMicros: 9}),
		of(fast, map[figure]float64{decisions: 101, perNodeKB: 1.6, p50: 1, cpuMicros: 8}),
		of(workload{name: "none", targets: []target{{p99, 10}}}, nil),
	}
	want := [][]string{
		{"fast", "3", "40", "decisions/s", "100", "101 (90-110)", "yes", "3", "-", "-", "8 (7-9)", "-", "ok"},
		{"", "", "", "KB/node", "1.5", "1.60 (1.00-2.00)", "no", "", "", "", "", "", ""},
		{"", "", "", "p50 ms", "", "1.00 (1.00-1.00)", "", "", "", "", "", "", ""},
		{"small", "0", "0", "peak MB", "300", "299", "yes", "1", "-", "-", "-", "299", "1 wrong"},
		{"none", "0", "0", "p99 ms", "10", "-", "no", "1", "-", "-", "-", "-", "ok"},
	}
	if diff := cmp.Diff(want, rowsOf(results)[1:]); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	lines := tableOf(t, results, false)
	if lines[0] != "header" || len(lines[2]) != len(lines[3]) || !strings.Contains(strings.Join(lines, "\n"), "small: a pod is lost") {
		t.Errorf("the table:\n%s", strings.Join(lines, "\n"))
	}
	markdown := tableOf(t, results, true)
	if want := "| fast | 3 | 40 | decisions/s | 100 | 101 (90-110) | yes | 3 | - | - | 8 (7-9) | - | ok |"; markdown[4] != want {
		t.Errorf("in Markdown: %q, want %q", markdown[4], want)
	}
	if n := strings.Count(markdown[2], "|"); n != strings.Count(markdown[3], "|") || n != strings.Count(markdown[4], "|") {
		t.Errorf("the rows of the Markdown table differ in their columns:\n%s", strings.Join(markdown, "\n"))
	}
}

func TestMemoryPerNodeIsThatOfTheRoleWithMost(t *testing.T) {
	mb := func(n int64) kubetest.Usage { return kubetest.Usage{PeakRSS: n << 20} }
	r := result{workload: workload{nodes: 1024}, figures: map[figure]float64{}, usage: map[string]kubetest.Usage{"etcd": mb(900), "queue": mb(12), "binder": mb(15)}}
	r.measureUsage(map[string]kubetest.Usage{"etcd": mb(10), "queue": mb(5), "binder": mb(10)})
	if got := r.figures[perNodeKB]; got != 7 {
		t.Errorf("KB/node = %v, want the queue's 7 MB over 1024 nodes", got)
	}
	if got := r.figures[peakMB]; got != 927 {
		t.Errorf("peak MB = %v, want the sum of all processes", got)
	}
	if got := r.byProcess(); !strings.Contains(got, "binder 0.0 s, 15 MB, 5.00 KB/node; etcd 0.0 s, 900 MB; queue") {
		t.Errorf("by process: %s", got)
	}
}
