package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/measure"
)

// made returns a run in which 100 pods were bound, so many per second.
func made(workload, contender string, run int, perSecond float64) result {
	return result{
		workload: workload, contender: contender, run: run, nodes: 7, pods: 100, bound: 100,
		binding: time.Duration(100 / perSecond * float64(time.Second)), total: 10 * time.Second, eventLag: 1500 * time.Millisecond,
		writes: writes{binds: 100, events: 50}, usedNodes: 7, fewest: 3, most: 12,
		usage: []processUsage{{"p", kubetest.Usage{CPU: time.Duration(perSecond * float64(time.Millisecond)), PeakRSS: 64 << 20}}},
	}
}

// rows returns what is printed, each line as its cells joined by single spaces.
func rows(t *testing.T, results []result) []string {
	t.Helper()
	var out strings.Builder
	if err := printReport(&out, "here", results, false); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(out.String()) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return lines
}

func wantRows(t *testing.T, lines []string, want ...string) {
	t.Helper()
	printed := map[string]bool{}
	for _, line := range lines {
		printed[line] = true
	}
	for _, row := range want {
		if !printed[row] {
			t.Errorf("no row %q in\n%s", row, strings.Join(lines, "\n"))
		}
	}
}

func TestTableHasARowForEachWorkloadAndContender(t *testing.T) {
	slow, fast := []float64{10, 30, 20}, []float64{100, 90, 20}
	var results []result
	for i := range slow {
		results = append(results, made(plain, kubeScheduler, i+1, slow[i]), made(plain, "fast", i+1, fast[i]), made("affinity", "fast", i+1, 5))
	}
	results[1].problems = []string{"something"}
	lines := rows(t, results)
	wantRows(t, lines,
		"here",
		"plain kube-scheduler 7 100 20 (10-30) - 10 0.20 (0.10-0.30) - 64 1.50 1.5 ok",
		// Ratios are those of one repetition: 10, 3 and 1.
		"plain fast 7 100 90 (20-100) 3.00 (1.00-10.00) 10 0.90 (0.20-1.00) 3.00 (1.00-10.00) 64 1.50 1.5 1 of 3 wrong",
		"affinity fast 7 100 5 - 10 0.05 - 64 1.50 1.5 ok",
		"plain fast 100 1.00 0.50 0.00 0.00 0 0 7 3-12 0",
		"plain fast p 0.1 (0.0-0.1) 64.0",
		"plain, fast, run 1: something",
	)
}

func TestOneRunShowsFiguresWithoutSpread(t *testing.T) {
	lines := rows(t, []result{made(plain, kubeScheduler, 1, 50)})
	wantRows(t, lines, "plain kube-scheduler 7 100 50 - 10 0.50 - 64 1.50 1.5 ok")
	r := made(plain, kubeScheduler, 2, 50)
	want := "plain, kube-scheduler, run 2, nodes 7, pods 100, pods/s 50, from start 10, ms/pod 0.50, peak MB 64, writes/pod 1.50, events s 1.5, check ok, " +
		"bound 100, bind 1.00, event 0.50, status 0.00, other 0.00, refused 0, repeated 0, used nodes 7, zones 3-12, broken 0"
	if diff := cmp.Diff(want, r.line()); diff != "" {
		t.Errorf("line (-want +got):\n%s", diff)
	}
}

func TestLateRunShowsHowFarItCame(t *testing.T) {
	late := made(plain, kubeScheduler, 1, 50)
	late.pods, late.late, late.eventLag = 1000, "not done within 5m0s", -1
	none := made(plain, "none", 1, 50)
	none.late, none.bound, none.binding, none.usage = "not done within 5m0s", 0, 0, nil
	lines := rows(t, []result{late, none})
	wantRows(t, lines,
		"plain kube-scheduler 7 1000 50 - 10 0.50 - 64 1.50 - 1 of 1 late", // per bound pod
		"plain none 7 100 - - - - - 0 - 1.5 1 of 1 late",
		"plain, kube-scheduler, run 1: not done within 5m0s",
	)
}

func TestTablesInMarkdown(t *testing.T) {
	var out strings.Builder
	if err := printReport(&out, "here", []result{made(plain, kubeScheduler, 1, 50), made(plain, "fast", 1, 100)}, true); err != nil {
		t.Fatal(err)
	}
	want := `here
| workload | contender | nodes | pods | pods/s | ratio | from start | ms/pod | CPU ratio | peak MB | writes/pod | events s | check |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| plain | kube-scheduler | 7 | 100 | 50 | - | 10 | 0.50 | - | 64 | 1.50 | 1.5 | ok |
| plain | fast | 7 | 100 | 100 | 2.00 | 10 | 1.00 | 2.00 | 64 | 1.50 | 1.5 | ok |
`
	if got := out.String(); !strings.HasPrefix(got, want) {
		t.Errorf("Markdown (-want +got):\n%s", cmp.Diff(want, got))
	}
}

func TestScriptsHaveTablesWithRatios(t *testing.T) {
	last := time.Unix(1000, 0)
	var results []result
	for i, factor := range []float64{1, 2} {
		run := i + 1
		storm := made("storm", "a", run, 40*factor)
		storm.storm = &stormFigures{hopeless: 7, lastBound: last, idle: 0.0123,
			Failures: kubetest.Failures{LastCondition: last.Add(1500 * time.Millisecond), LastEvent: last.Add(-2 * time.Second)}}
		before, gatedRun := made("gated-baseline", "a", run, 10), made("gated", "a", run, 10)
		before.gated, gatedRun.gated = &gatedFigures{events: 100, eventCPU: 2 * time.Second}, &gatedFigures{events: 100, eventCPU: 3 * time.Second}
		preempting := made("preemption", "a", run, 10)
		preempting.preemption = &preemptionFigures{kubetest.PreemptionReport{Victims: 5, Priorities: map[int32]int{200: 2 * run, 100: 3}, Protected: make([]kubetest.Protected, 1)}}
		slow, fast := made("churn", kubeScheduler, run, 10), made("churn", "a", run, 10)
		slow.churn = &churnFigures{created: 200, deleted: 190, updated: 499, kept: 0.95, latency: measure.Sample{10, 20, 30}, cpu: 4 * time.Second}
		fast.churn = &churnFigures{created: 200, deleted: 200, updated: 500, kept: 1, latency: measure.Sample{5, 6, 6 * factor}, cpu: time.Second}
		again := made("restart", "a", run, 20)
		again.restart = &restartFigures{bound: 1000}
		null, claiming := made("volumes-csi", nullBinder, run, 30*factor), made("volumes-csi", berthAll, run, 20)
		null.volumes, claiming.volumes = &volumesFigures{bound: 10, claims: 110, attached: 2}, &volumesFigures{bound: 10, claims: 110, attached: 2 + run}
		results = append(results, made("storm-baseline", "a", run, 50*factor), storm, before, gatedRun, preempting, slow, fast, again, null, claiming,
			made("volumes-csi", berthBefore, run, 40))
	}
	alone := made("storm", "b", 1, 10)
	alone.storm = &stormFigures{lastBound: last} // nothing was told
	failed := made("churn", "b", 1, 10)
	failed.problems = []string{"ended"} // before the window
	results = append(results, alone, failed)
	wantRows(t, rows(t, results),
		"storm a 60 (40-80) 0.80 7 1.5 -2.0 0.012",
		"storm b 10 - 0 - - 0.000",
		"gated-baseline a 100 2.00 20000 - 10.0",
		"gated a 100 3.00 30000 1.50 10.0",
		"preemption a 100 10.0 5 1 3×100 3 (2-4)×200",
		"churn kube-scheduler 20.0 30.0 - 4.00 - 200 190 499 95",
		"churn a 6.0 9.0 (6.0-12.0) 0.30 (0.20-0.40) 1.00 0.25 200 200 500 100",
		"restart a 1000 5.0 10.0 0.0 64",
		"volumes-csi null - 10 110 2",
		"volumes-csi berth-all 0.50 (0.33-0.67) 10 110 4 (3-4)",
		"volumes-csi berth-before 40 0.50 0.40 0.50",
	)
}

func TestHeaderSaysWhatWasMeasuredOnWhat(t *testing.T) {
	cfg := config{seed: 5, repetitions: 3, nodeCPU: 4, classes: 16, kubeQPS: 5000}
	got := header(cfg, map[string]string{kubetest.APIServer: "v1.2.3", kubetest.Etcd: "v4.5.6"}, "abc-dirty")
	for _, want := range []string{measure.Machine(), "Kubernetes v1.2.3, etcd v4.5.6, berth abc-dirty", "seed 5, 3 repetitions"} {
		if !strings.Contains(got, want) {
			t.Errorf("header does not say %q:\n%s", want, got)
		}
	}
	if got := header(cfg, nil, ""); !strings.Contains(got, "of no known commit") {
		t.Errorf("header without a commit:\n%s", got)
	}
}

func TestResultsAreGroupedInTheOrderOfTheRuns(t *testing.T) {
	var results []result
	for run := 1; run <= 2; run++ {
		for _, w := range []string{"b", "a"} {
			for _, c := range []string{"y", "x"} {
				results = append(results, result{workload: w, contender: c, run: run})
			}
		}
	}
	var got []string
	for _, g := range summarize(results) {
		got = append(got, fmt.Sprint(g[0].workload, g[0].contender, g[0].run, g[1].run))
	}
	if diff := cmp.Diff([]string{"by1 2", "bx1 2", "ay1 2", "ax1 2"}, got); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
}
