package oracle

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/berth-scheduler/berth/internal/logs"
)

// logLine is what a program logs somewhere: at a verbosity, or as an error.
type logLine struct {
	at   string
	keys []string
}

const asError = "as an error"

// goFiles calls with for each file of Go in a folder, or below it, that is no test.
func goFiles(t *testing.T, folder string, with func(set *token.FileSet, f *ast.File)) {
	t.Helper()
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, path, nil, 0)
		if err == nil {
			with(set, f)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func literal(e ast.Expr) string {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return ""
	}
	text, err := strconv.Unquote(lit.Value)
	if err != nil {
		return ""
	}
	return text
}

// keysOf returns the keys of a line, of which the arguments behind its message are given.
func keysOf(args []ast.Expr) (keys []string) {
	for len(args) > 0 {
		key := literal(args[0])
		if key == "" { // an attribute that is one argument
			args = args[1:]
			continue
		}
		keys = append(keys, key)
		args = args[min(2, len(args)):]
	}
	return keys
}

// theirLines are what kube-scheduler logs, by its message.
func theirLines(t *testing.T) map[string][]logLine {
	t.Helper()
	dir, err := run(t.Context(), "", nil, "go", "list", "-f", "{{.Dir}}", "k8s.io/kubernetes/pkg/scheduler")
	if err != nil {
		t.Fatalf("where kube-scheduler's source is: %v", err)
	}
	lines := make(map[string][]logLine)
	goFiles(t, strings.TrimSpace(dir), func(_ *token.FileSet, f *ast.File) {
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			args, at := call.Args, ""
			switch method.Sel.Name {
			case "Info":
				at = "at 0"
				if v, ok := method.X.(*ast.CallExpr); ok && len(v.Args) == 1 {
					if f, ok := v.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "V" {
						at = "at " + v.Args[0].(*ast.BasicLit).Value
					}
				}
			case "Error":
				at, args = asError, args[min(1, len(args)):]
			case "HandleErrorWithContext", "HandleErrorWithLogger":
				at, args = asError, args[min(2, len(args)):]
			}
			if at != "" && len(args) > 0 && literal(args[0]) != "" {
				lines[literal(args[0])] = append(lines[literal(args[0])], logLine{at, keysOf(args[1:])})
			}
			return true
		})
	})
	return lines
}

// verbosities are what Berth calls them.
var verbosities = map[string]int{"Failures": logs.Failures, "Outcomes": logs.Outcomes, "Attempts": logs.Attempts, "Debug": logs.Debug, "Moves": logs.Moves}

// verbosityIn returns the verbosity that a statement asks for with logs.V, if it does so itself, or in what an if begins with.
func verbosityIn(s ast.Stmt) string {
	if is, ok := s.(*ast.IfStmt); ok {
		s = is.Init
	}
	assign, ok := s.(*ast.AssignStmt)
	if !ok || len(assign.Rhs) != 1 {
		return ""
	}
	call, ok := assign.Rhs[0].(*ast.CallExpr)
	if !ok || len(call.Args) != 2 {
		return ""
	}
	if f, ok := call.Fun.(*ast.SelectorExpr); !ok || f.Sel.Name != "V" {
		return ""
	}
	v, ok := verbosities[call.Args[1].(*ast.SelectorExpr).Sel.Name]
	if !ok {
		return ""
	}
	return fmt.Sprint("at ", v)
}

// verbosityAt returns the verbosity that was asked for last where a call is, which is behind the nodes that it is in.
func verbosityAt(in []ast.Node) string {
	for i := len(in) - 2; i >= 0; i-- {
		var before []ast.Stmt
		switch n := in[i].(type) {
		case *ast.IfStmt:
			before = []ast.Stmt{n}
		case *ast.BlockStmt:
			before = n.List
		case *ast.CaseClause:
			before = n.Body
		}
		for _, s := range slices.Backward(before) {
			if s.Pos() > in[i+1].Pos() {
				continue
			}
			if at := verbosityIn(s); at != "" {
				return at
			}
		}
	}
	return "at 0"
}

// What kube-scheduler logs of pods and nodes, Berth does in the same words, which people search for, at the same verbosity. Its own lines begin with small letters.
func TestLinesAboutPodsAreKubeSchedulers(t *testing.T) {
	theirs := theirLines(t)
	without := []string{"evaluatedNodes", "feasibleNodes"} // which one batch has many of
	same := make(map[string]bool)
	for _, service := range []string{"binder", "queue"} {
		goFiles(t, filepath.Join("..", "..", "services", service), func(set *token.FileSet, f *ast.File) {
			var in []ast.Node
			ast.Inspect(f, func(n ast.Node) bool {
				if n == nil {
					in = in[:len(in)-1]
					return true
				}
				in = append(in, n)
				call, ok := n.(*ast.CallExpr)
				if !ok || len(call.Args) == 0 {
					return true
				}
				method, ok := call.Fun.(*ast.SelectorExpr)
				message := literal(call.Args[0])
				if !ok || message == "" || !slices.Contains([]string{"Debug", "Info", "Warn", "Error"}, method.Sel.Name) {
					return true
				}
				is, known := theirs[message]
				if !known && !unicode.IsUpper([]rune(message)[0]) {
					return true
				}
				got := logLine{verbosityAt(in), keysOf(call.Args[1:])}
				if method.Sel.Name != "Info" {
					got.at = asError
				}
				if !slices.ContainsFunc(is, func(want logLine) bool {
					return want.at == got.at && !slices.ContainsFunc(want.keys, func(key string) bool { return !slices.Contains(got.keys, key) && !slices.Contains(without, key) })
				}) {
					t.Errorf("%s: %q is logged %s with %q, by kube-scheduler: %v", set.Position(call.Pos()), message, got.at, got.keys, is)
				}
				same[message] = true
				return true
			})
		})
	}
	if len(same) < 16 {
		t.Errorf("%d messages are kube-scheduler's, want 16 at least: %v", len(same), same)
	}
}
