package rules

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// prefixed reports whether an import path is the package prefix or below it.
func prefixed(path, prefix string) bool { return path == prefix || strings.HasPrefix(path, prefix+"/") }

func TestImportsStayWhereTheyBelong(t *testing.T) {
	laws := []struct {
		imports string   // what may be imported
		only    []string // by packages in these trees, and by nobody else
		tests   bool     // by tests of other packages too
		reason  string
		but     string // what may be imported by all
	}{
		{"k8s.io/client-go", []string{"internal/source", "internal/kubetest", "cmd/kubectl-berth", "test", "internal/extender", "internal/doctor", "app"}, false,
			"the binder's source is the only one who talks to an API server, but for people's kubeconfig and port-forward, and what they ask before the swap; extenders are given its TLS settings, and compiled-in plugins how to reach it", "k8s.io/client-go/tools/metrics"},
		{"k8s.io/client-go/tools/metrics", []string{"internal/source/kube", "internal/roles"}, false,
			"how requests to an API server are measured is for who makes them, and for the test that lists all metrics of a role", ""},
		{"k8s.io/cli-runtime", []string{"cmd/kubectl-berth", "internal/cli"}, false,
			"it is what kubectl's flags and printers are made of: no server has any", ""},
		{"go.etcd.io", []string{"internal/coord", "test/scenarios", "test/soak"}, false, // the latter two do what an administrator of etcd does: read the past, restore
			"what fencing needs of etcd must be right in one place", ""},
		{"k8s.io/kubernetes", nil, false,
			"it would choose the versions of everything else; it has a module of its own", ""},
		{module + "/internal", []string{"app", "cmd", "gateway", "internal", "plugin", "services", "test"}, true,
			"examples are what others write, who cannot import it", ""},
		{module + "/internal/roles", []string{"internal/command", "test"}, false,
			"roles are assembled, they do not assemble each other", ""},
		{module + "/internal/kubetest", []string{"internal/kubetest", "internal/coord/etcdtest", "test"}, true,
			"it is test code", ""},
		{module + "/test", []string{"test"}, true,
			"it is test code", ""},
		{module + "/internal/cli", []string{"cmd", "internal/command", "internal/cli"}, false,
			"it is the client, not a part of a server", ""},
		{module + "/internal/source/kube", []string{"internal/roles", "internal/source/kube", "test"}, false,
			"everybody else knows sources by their interface", ""},
		{module + "/services", []string{"internal/roles", "services"}, false,
			"services are reached through generated clients", ""},
		{"github.com/spf13", []string{"app", "cmd", "internal/command", "internal/cli"}, false,
			"flags belong to commands", ""},
		{"flag", []string{"cmd", "internal/command", "test", "examples"}, true,
			"flags belong to commands, and to golden files of tests", ""},
		{"log", nil, true,
			"loggers are values: log/slog", "log/slog"},
	}
	for _, law := range laws {
		t.Run(law.imports, func(t *testing.T) {
			for _, p := range must(t, packages) {
				imports := p.All
				if law.tests {
					imports = p.Imports
				}
				for _, path := range imports {
					if prefixed(path, law.imports) && path != law.but && !p.within(law.only...) {
						t.Errorf("%s imports %s: %s", p.Path, path, law.reason)
					}
				}
			}
		})
	}
}

func TestServicesNeverImportEachOther(t *testing.T) {
	seen := 0
	for _, p := range must(t, packages) {
		if !p.within("services", "gateway") {
			continue
		}
		seen++
		for _, path := range p.Imports { // a test may use the real neighbour instead of a fake
			path = strings.TrimPrefix(path, module+"/")
			if (prefixed(path, "services") || path == "gateway") && !p.within(path) && !prefixed(path, p.Path) {
				t.Errorf("%s imports %s: services meet through generated clients only, so that each can be a process", p.Path, path)
			}
		}
	}
	if seen < 5 {
		t.Errorf("found %d services, want at least 5", seen)
	}
}

func TestThePureCoreStaysPure(t *testing.T) {
	laws := []struct {
		tree    string
		deps    []string // not even indirectly
		imports []string // not directly
		reason  string
	}{
		{"internal/cluster", []string{"google.golang.org", "k8s.io/client-go", "go.etcd.io"}, []string{"context", "log/slog", "net", "os", "sync", "time"},
			"a state is a function of its deltas: no clock, no I/O, no goroutine"},
		{"internal/engine", []string{"google.golang.org", "k8s.io/client-go", "go.etcd.io"}, []string{"context", "log/slog", "net", "os", "time"},
			"an evaluation is a function of the state: no clock, no I/O"},
		{"services/queue/pending", []string{"google.golang.org/grpc", "k8s.io/client-go", "go.etcd.io"}, []string{"context", "log/slog", "net", "os", "sync"},
			"a queue is a function of the log and of the outcomes it is told: no I/O, no goroutine, and time is an argument, so that scenarios decide it"},
	}
	clock := []string{"Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick", "Sleep"}
	for _, law := range laws {
		t.Run(law.tree, func(t *testing.T) {
			seen := false
			for _, p := range must(t, packages) {
				if !p.within(law.tree) {
					continue
				}
				seen = true
				for _, path := range p.Deps {
					if slices.ContainsFunc(law.deps, func(bad string) bool { return prefixed(path, bad) }) {
						t.Errorf("%s depends on %s: %s", p.Path, path, law.reason)
					}
				}
				for _, path := range p.Imports {
					if slices.Contains(law.imports, path) {
						t.Errorf("%s imports %s: %s", p.Path, path, law.reason)
					}
				}
				set, parsed := p.parse(t)
				for _, f := range parsed {
					uses(f, "time", func(name string, at token.Pos) {
						if slices.Contains(clock, name) {
							t.Errorf("%s: time.%s: %s", set.Position(at), name, law.reason)
						}
					})
					if !slices.Contains(law.imports, "sync") {
						continue
					}
					ast.Inspect(f, func(n ast.Node) bool {
						if g, ok := n.(*ast.GoStmt); ok {
							t.Errorf("%s: a goroutine: %s", set.Position(g.Pos()), law.reason)
						}
						return true
					})
				}
			}
			if !seen {
				t.Errorf("there is no %s", law.tree)
			}
		})
	}
}

func TestCallsStayWhereTheyBelong(t *testing.T) {
	laws := []struct {
		importPath string
		names      []string
		only       []string // packages in these trees
		reason     string
	}{
		{"google.golang.org/grpc", []string{"NewServer", "NewClient", "Dial", "DialContext"}, []string{"internal/rpc", "internal/gen", "test", "plugin"},
			"deadlines, retries, limits, logs and metrics are the same for all because one package sets them; a plugin is no process of Berth, and its author compiles no more than it needs"},
		{"os", []string{"Getenv", "LookupEnv"}, []string{"app", "cmd", "examples/plugin-go", "internal/command", "plugin", "test"},
			"the environment is an input of a command, and a value from there on; a plugin is told in it where to serve, if Berth runs it"},
		{"os", []string{"Environ"}, []string{"cmd", "internal/command", "test", "internal/kubetest"},
			"as above; kubetest hands it to the go command, and internal/command to plugins that are compiled in"},
		{"os", []string{"Exit"}, []string{"app", "cmd", "test", "examples"},
			"only a main ends the process, and app is what mains are made of"},
		{"log/slog", []string{"Default", "SetDefault", "Debug", "Info", "Warn", "Error"}, nil,
			"loggers are values"},
		{"github.com/prometheus/client_golang/prometheus", []string{"MustRegister", "Register", "DefaultRegisterer", "DefaultGatherer"}, nil,
			"registries are values: several roles share a process"},
		{"github.com/prometheus/client_golang/prometheus/promauto", []string{"NewCounter", "NewCounterVec", "NewGauge", "NewGaugeVec", "NewHistogram", "NewHistogramVec"}, nil,
			"registries are values: several roles share a process"},
		{module + "/internal/cluster", []string{"AddObjectKind"}, []string{"internal/cluster/clustertest"},
			"one table says what kinds of objects there are; only tests add to it"},
	}
	for _, law := range laws {
		t.Run(law.importPath+" "+law.names[0], func(t *testing.T) {
			for _, p := range must(t, packages) {
				if p.within(law.only...) {
					continue
				}
				set, parsed := p.parse(t)
				for _, f := range parsed {
					uses(f, law.importPath, func(name string, at token.Pos) {
						if slices.Contains(law.names, name) {
							t.Errorf("%s: %s.%s: %s", set.Position(at), law.importPath, name, law.reason)
						}
					})
				}
			}
		})
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	const least = 20 // characters after the package's name
	for _, p := range must(t, packages) {
		if p.within("internal/gen") {
			continue // generated
		}
		set, parsed := p.parse(t)
		if len(parsed) == 0 {
			set, parsed = parseFiles(t, p.Dir, slices.Concat(p.TestGoFiles, p.XTestGoFiles))
		}
		var with []string
		for _, f := range parsed {
			if f.Doc == nil {
				continue
			}
			with = append(with, set.Position(f.Package).Filename)
			if text := f.Doc.Text(); !says(f, text) || len(text) < len(f.Name.Name)+least {
				t.Errorf("%s: the package comment begins %.40q; want \"Package %s …\", \"Command …\" or its name, and what it is for", with[len(with)-1], text, f.Name.Name)
			}
		}
		if len(with) != 1 {
			t.Errorf("%s has %d package comments, want one: a reader looks for it first: %v", p.Path, len(with), with)
		}
	}
}

// says reports whether a package comment begins as godoc expects it.
func says(f *ast.File, text string) bool {
	if f.Name.Name == "main" {
		first, _, _ := strings.Cut(text, " ")
		return first == "Command" || first != "" && first[0] >= 'A' && first[0] <= 'Z'
	}
	return strings.HasPrefix(text, "Package "+f.Name.Name+" ")
}
