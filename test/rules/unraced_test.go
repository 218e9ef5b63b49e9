package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// startsGoroutine returns whether a file starts a goroutine: by a go statement, a method that is called Go, as those of
// WaitGroups and errgroups, a timer's function, or tests that run in parallel. What benchmarks start does not count: no test runs them.
func startsGoroutine(f *ast.File) (found bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			return !strings.HasPrefix(n.Name.Name, "Benchmark")
		case *ast.GoStmt:
			found = true
		case *ast.CallExpr:
			if s, ok := n.Fun.(*ast.SelectorExpr); ok && (s.Sel.Name == "Go" || s.Sel.Name == "Parallel" || s.Sel.Name == "AfterFunc") {
				found = true
			}
		}
		return !found
	})
	return found
}

// makefileWords returns the words of a variable of the Makefile.
func makefileWords(t *testing.T, name string) []string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + name + `\s*:=((?:.*\\\n)*.*)$`).FindStringSubmatch(readFile(t, "Makefile"))
	if m == nil {
		t.Fatalf("the Makefile has no variable %s", name)
	}
	return strings.Fields(strings.ReplaceAll(m[1], "\\\n", " "))
}

// TestWhatIsTestedWithoutTheRaceDetectorStartsNoGoroutine: make test runs the tests of pure packages without it, in a fifth of
// the time.
func TestWhatIsTestedWithoutTheRaceDetectorStartsNoGoroutine(t *testing.T) {
	all, err := packages()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range makefileWords(t, "PURE") {
		path = strings.TrimPrefix(path, "./")
		at := slices.IndexFunc(all, func(p goPackage) bool { return p.Path == path })
		if at < 0 {
			t.Errorf("PURE in the Makefile has %s, which is no package", path)
			continue
		}
		p := all[at]
		for _, name := range slices.Concat(p.GoFiles, p.TestGoFiles, p.XTestGoFiles) {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			if startsGoroutine(f) {
				t.Errorf("%s/%s starts a goroutine: take the package out of PURE in the Makefile", path, name)
			}
		}
	}
}

// TestWhatIsTestedWithoutTheRaceDetectorHasNoBerthInItsProcess, or is pure: but for BULK, which is to be one package.
func TestWhatIsTestedWithoutTheRaceDetectorHasNoBerthInItsProcess(t *testing.T) {
	if bulk := makefileWords(t, "BULK"); len(bulk) != 1 {
		t.Errorf("BULK in the Makefile has %q, want one package: what is in it is tested with the race detector by others", bulk)
	}
	all, err := packages()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range makefileWords(t, "PROCESSES") {
		path = strings.TrimPrefix(path, "./")
		at := slices.IndexFunc(all, func(p goPackage) bool { return p.Path == path })
		if at < 0 {
			t.Errorf("PROCESSES in the Makefile has %s, which is no package", path)
			continue
		}
		p := all[at]
		for _, name := range slices.Concat(p.GoFiles, p.TestGoFiles, p.XTestGoFiles) {
			if m := regexp.MustCompile(`\b(berthtest\.Start|roles\.All)\(`).FindString(readFile(t, filepath.Join(path, name))); m != "" {
				t.Errorf("%s/%s has %s: take the package out of PROCESSES in the Makefile", path, name, m)
			}
		}
	}
}

// TestSlowTestsWithoutTheRaceDetectorAreRunAndStartNoGoroutine: CI leaves those of SLOW out where it has the race detector, by their names wherever they are, and runs those of SLOW_IN without it.
func TestSlowTestsWithoutTheRaceDetectorAreRunAndStartNoGoroutine(t *testing.T) {
	slow, in := makefileWords(t, "SLOW"), makefileWords(t, "SLOW_IN")
	all, err := packages()
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]int)
	for _, p := range all {
		for _, name := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range f.Decls {
				test, ok := d.(*ast.FuncDecl)
				if !ok || !slices.Contains(slow, test.Name.Name) {
					continue
				}
				found[test.Name.Name]++
				if !slices.Contains(in, "./"+p.Path) {
					t.Errorf("%s is in %s, which SLOW_IN does not have: it is never run in CI", test.Name.Name, p.Path)
				}
				if startsGoroutine(&ast.File{Name: f.Name, Decls: []ast.Decl{test}}) {
					t.Errorf("%s starts a goroutine: take it out of SLOW in the Makefile", test.Name.Name)
				}
			}
		}
	}
	for _, name := range slow {
		if found[name] != 1 {
			t.Errorf("there are %d tests %s, which SLOW in the Makefile names; want one", found[name], name)
		}
	}
}

func TestTheLawOfGoroutinesFindsWhatStartsThem(t *testing.T) {
	for code, want := range map[string]bool{
		`func f() { go f() }`:                       true,
		`func f(wg *sync.WaitGroup) { wg.Go(f) }`:   true,
		`func f(t *testing.T) { t.Parallel() }`:     true,
		`func f() { time.AfterFunc(1, f) }`:         true,
		`func f() { defer f(); g.Gone(); Go := 1 }`: false,
		`func BenchmarkF(b *testing.B) { go f() }`:  false,
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "p.go", "package p\n"+code, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if got := startsGoroutine(f); got != want {
			t.Errorf("%s starts a goroutine: %v, want %v", code, got, want)
		}
	}
}

// TestCITestsWithTheRaceDetector: who works on the project tests without it, in half of the time.
func TestCITestsWithTheRaceDetector(t *testing.T) {
	if !regexp.MustCompile(`(?m)^export .*\bRACE=1\b`).MatchString(readFile(t, ".ci/run")) {
		t.Error(".ci/run does not export RACE=1")
	}
	if !regexp.MustCompile(`(?m)^\s*go test \$\(if \$\(RACE\),-race[ )]`).MatchString(readFile(t, "Makefile")) {
		t.Error("the Makefile tests nothing with -race if there is RACE")
	}
}
