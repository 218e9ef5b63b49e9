package integration

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/schedulerplugins/scheduler"
)

// module is the module whose tests run.
const module = "sigs.k8s.io/scheduler-plugins"

// patience is after which a test of scheduler-plugins hangs.
const patience = 30 * time.Minute

// nowhere keeps tests from an etcd that is there by chance: they start one of their own if there is none.
const nowhere = "KUBE_INTEGRATION_ETCD_URL=http://127.0.0.1:1"

// podGroupStates is what 1.36 asks of listers, and the tests' own one does not have.
const podGroupStates = `package util

import fwk "k8s.io/kube-scheduler/framework"

func (*fakeSharedLister) PodGroupStates() fwk.PodGroupStateLister { return nil }
`

// upstream are tests of others, built.
type upstream struct {
	dir     string // where they run
	program string
	assets  string   // where the programs of a control plane are
	berth   []string // the environment with which they start a Berth with the plugins
	sure    bool     // all pass with kube-scheduler
}

// build builds the tests of scheduler-plugins. It copies the module, since files in the module cache cannot be replaced, and builds what it has in test/integration. Of what is copied, one line is changed: utils.go, by which all tests start their
// scheduler, imports package scheduler of this module in place of kube-scheduler's.
func build(t *testing.T) *upstream {
	t.Helper()
	dir := t.TempDir()
	from, to := goTool(t, "list", "-m", "-f", "{{.Dir}}", module), filepath.Join(dir, "scheduler-plugins")
	for _, part := range []string{"apis", "pkg", "test", "manifests/crds"} {
		if err := os.CopyFS(filepath.Join(to, part), os.DirFS(filepath.Join(from, part))); err != nil {
			t.Fatal(err)
		}
	}
	// These are links, which are not published.
	for _, kind := range []string{"appgroup", "capacityscheduling", "coscheduling", "networktopology", "noderesourcetopology"} {
		write(t, filepath.Join(to, "manifests/crds", kind+".yaml"), read(t, filepath.Join(from, "manifests", kind, "crd.yaml")))
	}
	write(t, filepath.Join(to, "go.mod"), read(t, filepath.Join(from, "go.mod")))
	write(t, filepath.Join(to, "test/util/podgroupstates.go"), []byte(podGroupStates))
	u := &upstream{dir: filepath.Join(to, "test/integration"), program: filepath.Join(dir, "integration.test")}
	for file := range left {
		if err := os.Remove(filepath.Join(u.dir, file)); err != nil {
			t.Fatal(err)
		}
	}
	utils := filepath.Join(u.dir, "utils.go")
	text, theirs := read(t, utils), []byte(`"k8s.io/kubernetes/pkg/scheduler"`)
	if n := bytes.Count(text, theirs); n != 1 {
		t.Fatalf("utils.go imports kube-scheduler %d times", n)
	}
	write(t, utils, bytes.Replace(text, theirs, []byte(`"github.com/berth-scheduler/berth/test/schedulerplugins/scheduler"`), 1))

	// This module, with the copy.
	mod, modfile := goTool(t, "env", "GOMOD"), filepath.Join(dir, "go.mod")
	write(t, modfile, fmt.Appendf(read(t, mod), "\nreplace %s => %s\n", module, to))
	write(t, filepath.Join(dir, "go.sum"), read(t, strings.TrimSuffix(mod, "mod")+"sum"))
	goTool(t, "test", "-c", "-vet=off", "-modfile", modfile, "-o", u.program, module+"/test/integration")
	berth := filepath.Join(dir, "berth")
	goTool(t, "test", "-c", "-o", berth, "..")
	u.berth = []string{scheduler.Program + "=" + berth}
	u.assets = buildAssets(t)
	return u
}

// buildAssets returns where the programs of a control plane are.
func buildAssets(t *testing.T) string {
	t.Helper()
	programs, err := kubetest.Build(t.Context(), kubetest.Etcd, kubetest.APIServer)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Dir(programs[kubetest.APIServer])
}

// tests returns the names of the tests, in their order.
func (u *upstream) tests(t *testing.T) []string {
	t.Helper()
	out := u.execute(t, nil, "-test.list=.")
	names := regexp.MustCompile(`(?m)^Test\w+$`).FindAllString(out, -1)
	if len(names) == 0 {
		t.Fatalf("there are no tests:\n%s", out)
	}
	return names
}

// outcomes are those of a test and of all within it, by name.
type outcomes map[string]string

const passes, fails, none = "passes", "FAILS", "-"

func (o outcomes) of(name string) string {
	if o[name] == "" {
		return none
	}
	return o[name]
}

func namesOf(all ...outcomes) (names []string) {
	for _, o := range all {
		names = slices.AppendSeq(names, maps.Keys(o))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

var outcomeLine = regexp.MustCompile(`(?m)^ *--- (PASS|FAIL): (\S+) \([0-9.]+s\)$`)

// run runs one test, with an API server of its own, and a scheduler by what the environment says besides. It returns what the test has said, too.
func (u *upstream) run(t *testing.T, test string, env ...string) (outcomes, string) {
	t.Helper()
	said := u.execute(t, env, "-test.v", "-test.run=^"+test+"$", "-test.timeout="+patience.String())
	became := outcomes{test: fails} // if it says nothing, as when another one ends the process
	for _, line := range outcomeLine.FindAllStringSubmatch(said, -1) {
		became[line[2]] = map[string]string{"PASS": passes, "FAIL": fails}[line[1]]
	}
	return became, said
}

// differs returns what Berth has otherwise.
func differs(said string) (all []string) {
	for line := range strings.Lines(said) {
		if what, ok := strings.CutPrefix(strings.TrimSpace(line), scheduler.Differs); ok && !slices.Contains(all, what) {
			all = append(all, what)
		}
	}
	return all
}

// execute runs the tests' program, and returns what it says. How it ends is in that.
func (u *upstream) execute(t *testing.T, env []string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience+time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "run") // short, for there are sockets in it
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	defer endAll(dir)
	cmd := exec.CommandContext(ctx, u.program, args...)
	cmd.Dir, cmd.Env = u.dir, append(append(os.Environ(), "KUBEBUILDER_ASSETS="+u.assets, "PATH="+u.assets+":"+os.Getenv("PATH"), nowhere, "TMPDIR="+dir), env...)
	var out bytes.Buffer
	cmd.Stdout = &out // what kube-scheduler logs goes elsewhere
	if err := cmd.Run(); err != nil {
		fmt.Fprintf(&out, "the process: %v\n", err)
	}
	return out.String()
}

// endAll ends the control plane that has its files in a directory: one that the tests' program has left behind, as it does when it panics.
func endAll(dir string) {
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range commands {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if text, _ := os.ReadFile(file); err == nil && bytes.Contains(text, []byte(dir+"/")) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

func goTool(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, &said)
	}
	return strings.TrimSpace(string(out))
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func write(t *testing.T, file string, text []byte) {
	t.Helper()
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
}
