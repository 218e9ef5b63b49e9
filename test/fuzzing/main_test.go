package main

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// sample is a module with a target that fails when it is shown a certain byte, and one that never does.
const sample = `package sample

import "testing"

func FuzzGood(f *testing.F) {
	f.Add([]byte("a"))
	f.Fuzz(func(t *testing.T, data []byte) {})
}

func FuzzBadRPC(f *testing.F) {
	f.Add([]byte("a"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 0 && data[0] != 'a' {
			t.Error("found")
		}
	})
}

type helper struct{}

func (helper) FuzzNothing(f *testing.F) {}
`

// write makes a module of the sample below a repository whose root is a module too.
func write(t *testing.T) config {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module root\n\ngo 1.26\n", "root.go": "package root\n",
		"nested/go.mod": "module sample\n\ngo 1.26\n", "nested/sample_test.go": sample,
		".hidden/go.mod": "not read", "testdata/go.mod": "not read",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return config{
		root: root, state: filepath.Join(root, ".bin"), decoders: 2 * time.Second, rpcs: time.Hour, parallel: 1, run: regexp.MustCompile(""),
	}
}

func TestTargetsOfNestedModulesAreFoundAndHelpersAreNone(t *testing.T) {
	cfg := write(t)
	targets, err := discover(t.Context(), cfg.root)
	if err != nil {
		t.Fatal(err)
	}
	if len(targets) != 2 || targets[0].String() != "sample.FuzzBadRPC" || targets[1].String() != "sample.FuzzGood" {
		t.Errorf("targets: %v", targets)
	}
}

func TestATargetGetsItsTimeOnceAndWhatFailsIsTold(t *testing.T) {
	cfg := write(t)
	var out strings.Builder
	err := run(t.Context(), cfg, &out)
	if err == nil || err.Error() != "1 of 2 targets failed" {
		t.Errorf("first run: %v\n%s", err, out.String())
	}
	failing := regexp.MustCompile(`sample\.FuzzBadRPC +\S+ +\d+ +\d+ +(testdata/fuzz/FuzzBadRPC/\w+)\n`).FindStringSubmatch(out.String())
	if failing == nil {
		t.Fatalf("the table does not name the input that failed:\n%s", out.String())
	}
	if _, err := os.Stat(filepath.Join(cfg.root, "nested", failing[1])); err != nil {
		t.Error(err)
	}
	if !regexp.MustCompile(`sample\.FuzzGood +2s +[1-9]\d* +\d+ +0\n`).MatchString(out.String()) {
		t.Errorf("the table does not tell of the good one:\n%s", out.String())
	}

	out.Reset()
	if err := run(t.Context(), cfg, &out); err == nil || !strings.Contains(out.String(), "sample.FuzzGood: has had its time") {
		t.Errorf("second run: %v\n%s", err, out.String())
	}
}

func TestAnInterruptedRunGoesOnWhereItWas(t *testing.T) {
	cfg := write(t)
	cfg.run, cfg.decoders = regexp.MustCompile("FuzzGood"), time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	interrupt := &onText{text: "new interesting", then: cancel}
	if err := run(ctx, cfg, interrupt); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Fatalf("interrupted run: %v\n%s", err, interrupt.all.String())
	}
	s, err := readState(filepath.Join(cfg.state, "state.json"), false)
	if err != nil {
		t.Fatal(err)
	}
	before := *s.of(target{path: "sample", name: "FuzzGood"})
	if before.Execs == 0 {
		t.Fatalf("nothing was kept: %+v", before)
	}
	cfg.decoders = before.took() + 2*time.Second
	var out strings.Builder
	if err := run(t.Context(), cfg, &out); err != nil || !strings.Contains(out.String(), "sample.FuzzGood: 2s") {
		t.Errorf("the second run does not go on: %v\n%s", err, out.String())
	}
	if s, err = readState(s.file, false); err != nil || s.of(target{path: "sample", name: "FuzzGood"}).Execs <= before.Execs {
		t.Errorf("state: %v, %+v, want more executions than %d", err, s.Tasks, before.Execs)
	}
}

// onText does something when a text has been written.
type onText struct {
	all  strings.Builder
	text string
	then func()
}

func (w *onText) Write(b []byte) (int, error) {
	w.all.Write(b)
	if strings.Contains(w.all.String(), w.text) {
		w.then()
	}
	return len(b), nil
}
