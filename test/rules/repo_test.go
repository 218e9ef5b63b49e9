package rules

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// module is the path of the main module.
const module = "github.com/berth-scheduler/berth"

// goPackage is what go list says of a package; Path is relative to the module.
type goPackage struct {
	Path                                    string
	Dir                                     string
	GoFiles, TestGoFiles, XTestGoFiles      []string
	IgnoredGoFiles                          []string
	Imports, TestImports, XTestImports, All []string // All: the three before
	Deps                                    []string // everything imported, directly or not, but by tests
}

// within reports whether the package is one of the trees, such as "internal/source" or "cmd".
func (p *goPackage) within(trees ...string) bool {
	return slices.ContainsFunc(trees, func(tree string) bool { return p.Path == tree || strings.HasPrefix(p.Path, tree+"/") })
}

// root returns the directory of the main module.
var root = sync.OnceValues(func() (string, error) {
	out, err := run("", "go", "list", "-m", "-f", "{{.Dir}}", module)
	return strings.TrimSpace(string(out)), err
})

// packages returns all packages of the main module.
var packages = sync.OnceValues(func() ([]goPackage, error) {
	dir, err := root()
	if err != nil {
		return nil, err
	}
	out, err := run(dir, "go", "list", "-e", "-json=ImportPath,Dir,GoFiles,IgnoredGoFiles,TestGoFiles,XTestGoFiles,Imports,TestImports,XTestImports,Deps", "./...")
	if err != nil {
		return nil, err
	}
	var all []goPackage
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath string
			goPackage
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		p.Path = strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		p.goPackage.All = slices.Concat(p.Imports, p.TestImports, p.XTestImports)
		all = append(all, p.goPackage)
	}
})

// files returns the paths of all files that are or could be committed, relative to the root.
var files = sync.OnceValues(func() ([]string, error) {
	dir, err := root()
	if err != nil {
		return nil, err
	}
	out, err := run(dir, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return nil, err
	}
	var there []string
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		if info, err := os.Lstat(filepath.Join(dir, name)); err == nil && info.Mode().IsRegular() {
			there = append(there, name)
		}
	}
	return there, nil
})

func run(dir, name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, errors.New(strings.Join(cmd.Args, " ") + ": " + err.Error() + "\n" + string(exit.Stderr))
	}
	return out, err
}

// must fails the test unless what was asked of the repository was answered with something.
func must[T any](t *testing.T, get func() ([]T, error)) []T {
	t.Helper()
	got, err := get()
	if err != nil {
		t.Fatal(err)
	}
	if len(got) == 0 {
		t.Fatal("found nothing to check")
	}
	return got
}

func rootDir(t *testing.T) string {
	t.Helper()
	dir, err := root()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(rootDir(t), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// parse returns the syntax of the package's files that are no tests.
func (p *goPackage) parse(t *testing.T) (*token.FileSet, []*ast.File) {
	t.Helper()
	return parseFiles(t, p.Dir, slices.Concat(p.GoFiles, p.IgnoredGoFiles))
}

func parseFiles(t *testing.T, dir string, names []string) (*token.FileSet, []*ast.File) {
	t.Helper()
	set := token.NewFileSet()
	var parsed []*ast.File
	for _, name := range names {
		f, err := parser.ParseFile(set, filepath.Join(dir, name), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, f)
	}
	return set, parsed
}

// uses calls found for each use of an exported name of a package, such as "time.Now", by the name it is imported under.
func uses(f *ast.File, importPath string, found func(name string, at token.Pos)) {
	local := ""
	for _, i := range f.Imports {
		if strings.Trim(i.Path.Value, `"`) == importPath {
			local = importPath[strings.LastIndex(importPath, "/")+1:]
			if i.Name != nil {
				local = i.Name.Name
			}
		}
	}
	if local == "" {
		return
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == local {
				found(s.Sel.Name, s.Pos())
			}
		}
		return true
	})
}
