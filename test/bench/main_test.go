package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/test/berthtest"
)

// runSmall runs a workload at a size that takes seconds, on the real program.
func runSmall(t *testing.T, name string, nodes, pods int, berth string) result {
	t.Helper()
	t.Setenv("TMPDIR", t.TempDir())
	w, err := named(t, name, 5000).sized(nodes, pods)
	if err != nil {
		t.Fatal(err)
	}
	r, err := run(t.Context(), config{berth: berth, seed: 1, timeout: time.Minute}, w)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestPodsOfABurstAreCountedAsTheyAreBound(t *testing.T) {
	r := runSmall(t, "restart-local", 20, 100, berthtest.Binary(t))
	if len(r.problems) > 0 {
		t.Fatalf("problems = %q", r.problems)
	}
	if r.binds.done != 100 {
		t.Errorf("%d binds, want the 100 of pods that were not placed yet", r.binds.done)
	}
	for _, f := range []figure{decisions, firstBind, cpuSeconds, peakMB} {
		if r.figures[f] <= 0 {
			t.Errorf("%s = %v", f, r.figures[f])
		}
	}
	// The kernel counts CPU in hundredths of a second; so few pods may take less.
	if cpu, measured := r.figures[cpuMicros]; !measured || cpu < 0 {
		t.Errorf("%s = %v, measured: %t", cpuMicros, cpu, measured)
	}
	if left, err := filepath.Glob(filepath.Join(os.TempDir(), "*")); err != nil || len(left) > 0 {
		t.Errorf("a good run left %v behind (%v)", left, err)
	}
}

func TestPodsThatComeOneByOneAreTimedOverSeparateProcesses(t *testing.T) {
	r := runSmall(t, "latency", 20, 5, berthtest.Binary(t))
	if len(r.problems) > 0 {
		t.Fatalf("problems = %q", r.problems)
	}
	for _, f := range []figure{p50, p50FromCall, p50Assumed} { // what is assumed comes by another stream than what is bound, and may come later
		if r.figures[f] <= 0 {
			t.Errorf("%s = %v", f, r.figures[f])
		}
	}
	if r.figures[p50FromCall] <= r.figures[p50] || r.figures[p99] < r.figures[p50] {
		t.Errorf("figures that cannot be: %v", r.figures)
	}
	if len(r.usage) != 6 || r.usage["etcd"].PeakRSS == 0 || r.usage["queue"].CPU == 0 {
		t.Errorf("usage = %v, want that of etcd and five roles", r.usage)
	}
}

func TestABerthThatEndsIsAWrongRun(t *testing.T) {
	quitter := filepath.Join(t.TempDir(), "berth")
	if err := os.WriteFile(quitter, []byte("#!/bin/sh\necho enough\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	r := runSmall(t, "plain", 2, 3, quitter)
	got := strings.Join(r.problems, "; ")
	if !strings.Contains(got, "berth all has ended: exit status 3") || !strings.Contains(got, "0 of 3 pods have a placement") {
		t.Errorf("problems = %q, want the end and the pods", got)
	}
	if _, there := r.figures[decisions]; there {
		t.Errorf("a rate without binds: %v", r.figures)
	}
}
