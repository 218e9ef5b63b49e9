package main

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/test/berthtest"
)

// TestBerthSurvivesAFewFaults is a short run of what make chaos does: binders that are killed, lose their lease and are
// paused past it, a worker that is killed, and an API server that answers too late.
func TestBerthSurvivesAFewFaults(t *testing.T) {
	cfg := config{
		seed: 1, duration: 30 * time.Second, settle: time.Minute, rate: 8, berth: berthtest.Binary(t), dir: filepath.Join(t.TempDir(), "run"),
		only: []Kind{doKill + " " + roleBinder, leaseRevoke, doPause + " " + roleBinder, doKill + " " + roleFilter, apiLate},
	}
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	if err := run(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	entries, err := ReadHistory(filepath.Join(cfg.dir, historyFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range Check(entries) {
		t.Error(v)
	}
	s := Summarize(entries)
	if s.Terms < 2 || s.Scheduled < 100 || s.Injected-s.Failed < 4 {
		t.Errorf("%d terms, %d pods scheduled and %d faults: want at least one failover, 100 pods and 4 faults", s.Terms, s.Scheduled, s.Injected-s.Failed)
	}
	s.print(t.Output(), nil)
}
