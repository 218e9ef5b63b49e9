package oracle

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// kube-scheduler's own unit tests have tables of cases. They are in no package that can be imported, and nothing of them is copied:
// the tests are run as they are in the module, all of a package, with methods of the plugin, and of the binder of volumes, wrapped: each call
// tells what it has been given and what it has said. As nothing in the module cache can be overlaid, the go command is made to see the
// plugin's package in this module for the time of the run.

// line is what a test has told: that it has begun (Point is testBegins), or a call.
type line struct {
	Test, Point string
	text        []byte
}

const testBegins = "test"

// runUpstreamsTests builds and runs the tests of the plugins, once, and returns what they have told, in order, by plugin.
var runUpstreamsTests = sync.OnceValues(func() (map[string][]line, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	tmp, err := os.MkdirTemp("", "berth-oracle-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	if err := buildUpstreamsTests(ctx, tmp); err != nil {
		return nil, err
	}
	told := make([][]line, len(upstreamTables))
	all, ctx := errgroup.WithContext(ctx)
	for k := range upstreamTables {
		all.Go(func() (err error) {
			told[k], err = upstreamTables[k].run(ctx, tmp)
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return nil, err
	}
	out := make(map[string][]line)
	for k := range upstreamTables {
		out[upstreamTables[k].plugin] = told[k]
	}
	return out, nil
})

// told returns what the tests of a plugin have told.
func (table *upstreamTable) told(t *testing.T) []line {
	t.Helper()
	all, err := runUpstreamsTests()
	if err != nil {
		t.Fatal(err)
	}
	return all[table.plugin]
}

// read returns a line as what it is.
func read[T any](t *testing.T, l line) *T {
	t.Helper()
	out := new(T)
	if err := json.Unmarshal(l.text, out); err != nil {
		t.Fatalf("%s: %v: %s", l.Test, err, l.text)
	}
	return out
}

// buildUpstreamsTests builds the tests of the plugins, with recorders, into a folder.
func buildUpstreamsTests(ctx context.Context, tmp string) error {
	module, err := run(ctx, ".", nil, "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	// 1. The plugins' packages, as they are, but for a recorder.
	replaced := make(map[string]string)
	var packages []string
	for k := range upstreamTables {
		table := &upstreamTables[k]
		packages = append(packages, "./upstream/"+table.dir)
		files, err := filepath.Glob(filepath.Join(strings.TrimSpace(module), "pkg/scheduler/framework/plugins", table.dir, "*.go"))
		if err != nil {
			return err
		}
		texts, err := table.wrap(files)
		if err != nil {
			return err
		}
		for name, text := range texts {
			here, err := filepath.Abs(filepath.Join("upstream", table.dir, name))
			if err != nil {
				return err
			}
			there := filepath.Join(tmp, table.dir+"_"+name+".txt")
			if err := os.WriteFile(there, text, 0o600); err != nil {
				return err
			}
			replaced[here] = there
		}
	}
	// 2. The programs.
	return buildOverlaid(ctx, tmp, replaced, packages...)
}

// buildOverlaid builds the tests of packages into a folder, with files that are elsewhere.
func buildOverlaid(ctx context.Context, tmp string, elsewhere map[string]string, packages ...string) error {
	overlay, err := json.Marshal(map[string]any{"Replace": elsewhere})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tmp, "overlay.json"), overlay, 0o600); err != nil {
		return err
	}
	// Tests of others may need modules that are not in go.mod.
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(tmp, name), text, 0o600); err != nil {
			return err
		}
	}
	args := []string{
		"test", "-c", "-vet=off", "-ldflags=-s -w", "-o", tmp + "/", "-modfile=" + filepath.Join(tmp, "go.mod"), "-mod=mod",
		"-overlay=" + filepath.Join(tmp, "overlay.json"),
	}
	_, err = run(ctx, ".", nil, "go", append(args, packages...)...)
	return err
}

// run runs the tests of a plugin and returns what they tell. Some of upstream's tests wait for a moment that may be too short on a busy machine: they
// are run again, once.
func (table *upstreamTable) run(ctx context.Context, tmp string) (out []line, err error) {
	for range 2 {
		file := filepath.Join(tmp, table.dir+".calls")
		if err := os.RemoveAll(file); err != nil {
			return nil, err
		}
		if _, err = run(ctx, tmp, []string{"BERTH_CALLS=" + file}, filepath.Join(tmp, table.dir+".test")); err != nil {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for b := range bytes.Lines(text) {
			l := line{text: b}
			if err := json.Unmarshal(b, &l); err != nil {
				return nil, fmt.Errorf("%w: %s", err, b)
			}
			out = append(out, l)
		}
		return out, nil
	}
	return nil, err
}

// run runs a command in a directory and returns what it prints.
func run(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var out, failed bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &failed
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %v: %w\n%s%s", name, args, err, &out, &failed)
	}
	return out.String(), nil
}

// testFunction finds the functions that are a test.
var testFunction = regexp.MustCompile(`func(?: Test\w+)?\(t \*testing\.T\) \{`)

// hintMethod finds the methods that are a queueing hint.
var hintMethod = regexp.MustCompile(`func \(pl \*\w+\) (isSchedulableAfter\w+)\(logger klog\.Logger, pod \*v1\.Pod, oldObj, newObj interface\{\}\)`)

// wrap returns the files of the plugin's package, by name: its methods are wrapped, each test says that it begins, and there is a recorder.
func (table *upstreamTable) wrap(files []string) (map[string][]byte, error) {
	out := make(map[string][]byte)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		name := filepath.Base(file)
		if strings.HasSuffix(name, "_test.go") {
			text = testFunction.ReplaceAll(text, []byte("$0 berthTestBegins(t);"))
		}
		out[name] = text
	}
	// rename gives a method of a receiver another name.
	rename := func(file, receiver, method string) error {
		head := "func " + receiver + " "
		if bytes.Count(out[file], []byte(head+method+"(")) != 1 {
			return fmt.Errorf("%s has no method %s to wrap", file, method)
		}
		out[file] = bytes.Replace(out[file], []byte(head+method+"("), []byte(head+"unrecorded"+method+"("), 1)
		return nil
	}
	receiver := fmt.Sprintf("(pl *%s)", table.receiver)
	for _, method := range []string{"PreFilter", "Filter"} {
		if err := rename(table.file, receiver, method); err != nil {
			return nil, err
		}
	}
	var hints []string
	for _, found := range hintMethod.FindAllSubmatch(out[table.file], -1) {
		hints = append(hints, string(found[1]))
	}
	if len(hints) != table.hints {
		return nil, fmt.Errorf("%s has the hints %v, there were %d", table.file, hints, table.hints)
	}
	out[table.file] = fmt.Appendf(out[table.file], wrappers, table.receiver)
	for _, hint := range hints {
		if err := rename(table.file, receiver, hint); err != nil {
			return nil, err
		}
		out[table.file] = fmt.Appendf(out[table.file], hintWrapper, table.receiver, hint)
	}
	out["berth_recorder_test.go"] = fmt.Appendf(nil, recorder, table.dir, table.receiver, strings.Join(table.objects, ", "),
		cmp.Or(table.cluster, "nil"), cmp.Or(table.gate, "false"))
	if !table.binds {
		return out, nil
	}
	for _, method := range binderMethods {
		if err := rename(binderFile, "(b *volumeBinder)", method); err != nil {
			return nil, err
		}
	}
	if err := rename(table.file, receiver, "Score"); err != nil {
		return nil, err
	}
	built := []byte("scorer = buildScorerFunction(shape)\n")
	if bytes.Count(out[table.file], built) != 1 {
		return nil, fmt.Errorf("%s does not build a scorer of a shape", table.file)
	}
	out[table.file] = bytes.Replace(out[table.file], built, append(built, "recordShape(args.Shape)\n"...), 1)
	out[table.file] = append(out[table.file], scoreWrapper...)
	out[binderFile] = append(out[binderFile], binderWrappers...)
	out["berth_binder_recorder_test.go"] = []byte(binderRecorder)
	return out, nil
}
