package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// logKeys are the keys of all log lines, each with what its value is: one key per meaning, so that lines of different roles can
// be found by one query. Besides them there is trace_id, which internal/trace adds.
var logKeys = map[string]string{
	"err":               "the error",
	"reason":            "why, as a value of a fixed set or a sentence",
	"why":               "why not, as an error or a sentence",
	"pod":               "namespace and name",
	"podGroup":          "namespace and name of a PodGroup",
	"scheduledPods":     "how many of a PodGroup an attempt has placed",
	"unschedulablePods": "how many it has not",
	"errorPods":         "how many it has failed for",
	"uid":               "of a pod",
	"pods":              "how many",
	"scheduler":         "spec.schedulerName of pods, one or several",
	"preemptor":         "namespace and name of the pod that others go for",
	"victim":            "namespace and name of a pod that goes",
	"event":             "by which a pod comes to a queue, as kube-scheduler names it",
	"queue":             "that a pod comes to: active, backoff or unschedulable",
	"attempt":           "its number",
	"result":            "of an attempt",
	"try":               "its number",
	"node":              "its name",
	"object":            "kind, namespace and name of one of the API server",
	"nodes":             "how many",
	"shard":             "its number",
	"shards":            "how many",
	"stage":             "of a cycle",
	"reports":           "how many",
	"lane":              "of the binder's writes",
	"service":           "a plugin service, by its name",
	"adopted":           "placements that were taken over",
	"epoch":             "of the log",
	"version":           "of the log",
	"had":               "the version that a follower had",
	"digest":            "of the ledger",
	"role":              "of a member",
	"build":             "what a process was built from: a version, or a commit",
	"commit":            "of the repository that it was built in",
	"gogc":              "what the environment tells Go",
	"gomaxprocs":        "the same",
	"gotraceback":       "the same",
	"id":                "of this member",
	"member":            "id of another one",
	"binder":            "id of the active one",
	"follower":          "id of a member",
	"address":           "where a server listens or is reached",
	"client":            "its address",
	"bytes":             "how many",
	"calls":             "how many",
	"cuts":              "how many",
	"line":              "of a library's own log, as it is",
	"lines":             "how many",
	"grpc":              "address of the public API",
	"http":              "address of the public API as JSON, and of the page",
	"tls":               "whether there is any",
	"guarded":           "whether callers must prove who they are",
	"key":               "in etcd",
	"prefix":            "of keys in etcd",
	"revision":          "of etcd",
	"lease":             "of etcd, or a Lease of the API server",
	"ttl":               "of a lease",
	"left":              "how long a lease lasts still",
	"endpoint":          "of etcd",
	"silent":            "the endpoint of etcd that gives no answer",
	"used":              "the endpoint of etcd that is asked from now on",
	"raft_term":         "of etcd",
	"resource":          "of the API server",
	"host":              "of the API server",
	"extender":          "its urlPrefix",
	"plugin":            "its name",
	"stack":             "of a goroutine that panicked",
	"what":              "is waited or asked for",
	"for":               "how long it has lasted",
	"after":             "how long was waited",
	"file":              "its path, or those of several",
	"note":              "on a configuration",
	"omitted":           "how many lines of the same place were left out before it",
}

func TestLogLinesHaveFixedKeys(t *testing.T) {
	used := make(map[string]bool)
	for _, p := range must(t, packages) {
		if p.within("test", "internal/kubetest") {
			continue
		}
		set, parsed := p.parse(t)
		for _, f := range parsed {
			for key, at := range keysOf(f) {
				used[key] = true
				if logKeys[key] == "" {
					t.Errorf("%s: the key %q is none of the fixed ones", set.Position(at), key)
				}
			}
		}
	}
	for key := range logKeys {
		if !used[key] {
			t.Errorf("no log line has the key %q", key)
		}
	}
}

// reservedKeys are what formats of lines write themselves: those of JSON as Kubernetes' components have it, in which "err" is an error's, and those of log/slog. An attribute of such a
// name would be a second one in the line, of which parsers keep either.
var reservedKeys = []string{"ts", "caller", "v", "msg", "logger", "level", "errorVerbose", "stacktrace", "time", "source"}

func TestNoLogLineHasAKeyOfItsFormat(t *testing.T) {
	seen := make(map[string]bool)
	for _, name := range must(t, files) { // those of all modules
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "test/") || strings.Contains(name, "/gen/") {
			continue
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, filepath.Join(rootDir(t), name), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		keys := keysOf(f)
		ast.Inspect(f, func(n ast.Node) bool { // attributes that are put together first
			if list, ok := n.(*ast.CompositeLit); ok && len(list.Elts)%2 == 0 {
				if of, ok := list.Type.(*ast.ArrayType); ok && of.Len == nil {
					if is, ok := of.Elt.(*ast.Ident); ok && is.Name == "any" {
						for i := 0; i < len(list.Elts); i += 2 {
							keys[text(list.Elts[i])] = list.Elts[i].Pos()
						}
					}
				}
			}
			return true
		})
		for key, at := range keys {
			seen[key] = true
			if slices.Contains(reservedKeys, key) {
				t.Errorf("%s: the key %q is the format's own", set.Position(at), key)
			}
		}
	}
	for _, key := range []string{"pod", "err", "in_use", "omitted"} { // of a call, of a list, of an attribute
		if !seen[key] {
			t.Errorf("no line with the key %q was found", key)
		}
	}
}

// What logs a line for a pod at verbosity 0 is bounded: a broken controller makes pods as fast as it likes.
func TestWhatLogsLinesForPodsBoundsThem(t *testing.T) {
	bounds := make(map[string]bool)
	for _, p := range must(t, packages) {
		_, parsed := p.parse(t)
		for _, f := range parsed {
			ast.Inspect(f, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					if f, ok := call.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Bounded" {
						if of, ok := f.X.(*ast.Ident); ok && of.Name == "logs" {
							bounds[p.Path] = true
						}
					}
				}
				return true
			})
		}
	}
	for _, path := range []string{"services/binder", "services/queue", "internal/extender", "internal/pluginhost", "internal/source/local"} {
		if !bounds[path] {
			t.Errorf("%s logs by no logger of logs.Bounded", path)
		}
	}
}

// keysOf returns the literal keys that a file gives to log lines and loggers: the second, fourth … argument of a call such as
// log.Info("message", "key", value), the first, third … of log.With, and the first of slog.String and the like.
func keysOf(f *ast.File) map[string]token.Pos {
	keys := make(map[string]token.Pos)
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		args := call.Args
		switch {
		case slices.Contains([]string{"Debug", "Info", "Warn", "Error"}, method.Sel.Name) && len(args) > 0 && text(args[0]) != "":
			args = args[1:]
		case method.Sel.Name == "Log" && len(args) > 2 && text(args[2]) != "": // behind a context and a level
			args = args[3:]
		case method.Sel.Name == "With" && len(args) > 0 && text(args[0]) != "":
		case makesAttribute(method) && len(args) > 0 && text(args[0]) != "":
			args = args[:1]
		default:
			return true
		}
		for len(args) > 0 {
			key := text(args[0])
			if key == "" { // a slog.Attr
				args = args[1:]
				continue
			}
			keys[key] = args[0].Pos()
			args = args[min(2, len(args)):]
		}
		return true
	})
	return keys
}

// makesAttribute reports whether a function makes an attribute of a key and a value.
func makesAttribute(f *ast.SelectorExpr) bool {
	of, ok := f.X.(*ast.Ident)
	return ok && of.Name == "slog" && slices.Contains([]string{"Any", "Bool", "Duration", "Float64", "Group", "GroupAttrs", "Int", "Int64", "String", "Time", "Uint64"}, f.Sel.Name)
}

// text returns the value of a string literal, "" of anything else.
func text(e ast.Expr) string {
	if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
		if s, err := strconv.Unquote(lit.Value); err == nil {
			return s
		}
	}
	return ""
}
