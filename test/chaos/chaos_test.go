package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/test/berthtest"
)

// TestMain lets the test binary be the process of the plugin services.
func TestMain(m *testing.M) {
	if is, err := asPlugin(os.Args); is {
		if err != nil {
			fmt.Fprintln(os.Stderr, pluginCommand+":", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestBerthSurvivesAFewFaults is a short run of what make chaos does: binders that are killed, lose their lease and are
// paused past it, a worker that is killed, an API server that answers too late, and plugin services that lie.
func TestBerthSurvivesAFewFaults(t *testing.T) {
	survives(t, config{
		count: 6, source: sourceKube,
		only: []Kind{doKill + " " + roleBinder, leaseRevoke, doPause + " " + roleBinder, doKill + " " + roleFilter, apiLate, pluginLie},
	})
}

// TestBerthSurvivesAFewFaultsOnItsLocalSourceWithTLS is the same without an API server, with certificates that are replaced, and plugin services that are killed.
func TestBerthSurvivesAFewFaultsOnItsLocalSourceWithTLS(t *testing.T) {
	survives(t, config{
		count: 5, source: sourceLocal, tls: true,
		only: []Kind{doKill + " " + roleBinder, certRenew, cutBinderEtcd, killHolding, pluginKill},
	})
}

// TestNoVolumeIsTwoClaimsThroughKills: the active binder is killed between the record of what it has chosen for claims, the write to volumes and claims, and
// the bind, and once its writes arrive when it is dead.
func TestNoVolumeIsTwoClaimsThroughKills(t *testing.T) {
	survives(t, config{count: 4, source: sourceKube, only: []Kind{killRecorded, killWritten, killPrepared, killWriting}})
}

// TestNoCardIsTwoPodsThroughKills: Yoda is killed, also while binds with the cards that it has given are on their way, the active binder is killed, and a card vanishes and comes back.
func TestNoCardIsTwoPodsThroughKills(t *testing.T) {
	survives(t, config{
		count: 4, source: sourceKube, yoda: yodaBinary(t), crd: filepath.Join("..", "..", "deploy", "kustomize", "components", "yoda", "crd.yaml"),
		only: []Kind{yodaHolding, yodaKill, killActive, cardVanishes},
	})
}

// yodaBinary builds berth-yoda, which is of another module.
func yodaBinary(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "berth-yoda")
	build := exec.Command("go", "build", "-C", filepath.Join("..", "..", "plugins", "yoda"), "-o", path, "./cmd/berth-yoda")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as it ships
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build berth-yoda: %v\n%s", err, out)
	}
	return path
}

// logShown is how much of the log of a process that has ended by itself is shown, in bytes.
const logShown = 4 << 10

// survives does a short run, which must show no violation.
func survives(t *testing.T, cfg config) {
	t.Helper()
	cfg.seed, cfg.settle, cfg.rate, cfg.berth, cfg.dir = 1, time.Minute, 8, berthtest.Binary(t), filepath.Join(t.TempDir(), "run")
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
	for _, e := range entries {
		if e.Exit != nil && !e.Exit.Asked && t.Failed() {
			log, err := os.ReadFile(filepath.Join(cfg.dir, e.Exit.Name+".log"))
			t.Logf("%s, whose log ends with (%v):\n%s", e.Exit.Name, err, log[max(0, len(log)-logShown):])
		}
	}
	s := Summarize(entries)
	if s.Terms < 2 || s.Scheduled < 100 || s.Seated < 10 || s.Injected-s.Failed < 4 {
		t.Errorf("%d terms, %d pods scheduled, %d of them seated, and %d faults: want at least one failover, 100 pods, 10 and 4 faults", s.Terms, s.Scheduled, s.Seated, s.Injected-s.Failed)
	}
	if s.Gangs < 5 {
		t.Errorf("%d gangs placed, want 5", s.Gangs)
	}
	if cfg.cards() && s.Carded < 10 {
		t.Errorf("%d pods with cards bound, want 10", s.Carded)
	}
	s.print(t.Output(), nil)
}
