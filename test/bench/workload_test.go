package main

import (
	"slices"
	"strings"
	"testing"
)

func TestCommandLineThatMakesNoSenseIsRefused(t *testing.T) {
	for args, want := range map[string]string{
		"--nodes -1":                  "--nodes: -1 is negative",
		"--pods -1":                   "--pods: -1 is negative",
		"--repetitions 0":             "--repetitions: 0 is not positive",
		"--timeout 0s":                "--timeout: 0s is not positive",
		"--workload plain,":           `--workload: no workload ""; there are plain, classes,`,
		"--workload plain more":       `unexpected argument "more"`,
		"--workload plain --nodes 10": "--pods: 50000 pods of workload plain, and 0 placed ones, on 10 nodes, which surely have room for 800",
		"--workload anti-affinity --nodes 10 --pods 10": "surely have room for 9",
		"--workload anti-affinity --nodes 1":            "surely have room for 0",
		"--workload affinity --nodes 19 --pods 81":      "surely have room for 80",
		"--workload spread-hard --nodes 19 --pods 801":  "surely have room for 800",
	} {
		if _, err := parseFlags(strings.Fields(args)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error about %s", args, err, want)
		}
	}
}

func TestWorkloadsThatTakeMinutesRunOnlyWhenTheyAreNamed(t *testing.T) {
	names := func(args ...string) []string {
		cfg, err := parseFlags(args)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, w := range cfg.workloads {
			out = append(out, w.name)
		}
		return out
	}
	all := names("--workload", "all")
	if !slices.Contains(all, "plain-1m") || len(names()) != len(all)-14 || slices.Contains(names(), "plain-1m") {
		t.Errorf("by default %q, with all %q", names(), all)
	}
	if got := names("--workload", "plain-1m,plain"); !slices.Equal(got, []string{"plain-1m", "plain"}) {
		t.Errorf("two that are named: %q", got)
	}
}

func TestSizesAreTheWorkloadsUnlessTheCommandLineSays(t *testing.T) {
	for _, tt := range []struct {
		args                string
		nodes, pods, placed int
	}{
		{"--workload plain", 5000, 50_000, 0},
		{"--workload affinity", 5000, 40_000, 0}, // 500 nodes of 80 pods
		{"--workload anti-affinity --nodes 7", 7, 6, 0},
		{"--workload restart-local", 5000, 100, 140_000},
		{"--workload restart-local --nodes 10 --pods 3", 10, 3, 280},
	} {
		cfg, err := parseFlags(strings.Fields(tt.args))
		if err != nil {
			t.Fatalf("%s: %v", tt.args, err)
		}
		if w := cfg.workloads[0]; w.nodes != tt.nodes || w.pods != tt.pods || w.placed != tt.placed {
			t.Errorf("%s: %d nodes, %d pods, %d placed, want %d, %d, %d", tt.args, w.nodes, w.pods, w.placed, tt.nodes, tt.pods, tt.placed)
		}
	}
	if cfg, err := parseFlags([]string{"--profile", "dir"}); err != nil || cfg.repetitions != 1 {
		t.Errorf("with profiles: %d repetitions, %v, want one", cfg.repetitions, err)
	}
}

func TestClassesDifferAndComeInTurns(t *testing.T) {
	w := named(t, "classes", 10)
	pods, err := w.podObjects(0, 200)
	if err != nil {
		t.Fatal(err)
	}
	requests := map[string]int{}
	for _, o := range pods {
		requests[o.Pod.Spec.Containers[0].Resources.Requests.Cpu().String()]++
	}
	for r, n := range requests {
		if n != 2 {
			t.Errorf("%d of 200 pods request %s", n, r)
		}
	}
	if len(requests) != 100 || pods[0].Pod.Spec.Containers[0].Resources.Requests.Cpu().Equal(*pods[1].Pod.Spec.Containers[0].Resources.Requests.Cpu()) {
		t.Errorf("%d classes, want 100, and neighbours of different ones", len(requests))
	}
}
