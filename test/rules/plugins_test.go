package rules

import (
	"encoding/json"
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/engine"
)

const (
	engineDir   = "internal/engine"
	pluginTable = engineDir + "/plugins.go"
)

// alsoFields are plugins' names that fields and types of the Kubernetes API have too, or begin with. Of these an identifier names the plugin only if it stands
// alone in the engine's package, or is chosen from it.
var alsoFields = []string{"NodeName", "NodeAffinity", "SchedulingGates", "VolumeBinding"}

// Files that name plugins all the same, and why.
var namesPlugins = []struct{ file, reason string }{
	{"internal/wire/answers.go", "two scores have fields of the proto that are called after their plugins; later ones go by their place"},
	{"internal/config/defaults.go", "the types of kube-scheduler's API for arguments have the plugins' names; what they mean is there, not in the pure engine"},
	{"internal/config/validate_args.go", "as above"},
	{"internal/config/profile.go", "as above"},
	{"internal/config/convert.go", "what old configurations meant is the past: no new plugin has one, and the texts tell people what became of it"},
	{"internal/config/convert_plugins.go", "as above"},
	{"internal/config/gates.go", "feature gates of kube-scheduler have plugins' names"},
	{"internal/command/cluster_flags.go", "two flags are arguments of one plugin, by their type in kube-scheduler's API"},
}

// descriptors returns the file of the engine where each plugin is described, by the plugin's name, and what constants and variables each
// of those files declares for itself.
func descriptors(t *testing.T) (fileOf map[string]string, declares map[string]string) {
	t.Helper()
	fileOf, declares = make(map[string]string), make(map[string]string)
	for _, p := range must(t, packages) {
		if p.Path != engineDir {
			continue
		}
		set, parsed := p.parse(t)
		for _, f := range parsed {
			file := engineDir + "/" + filepath.Base(set.Position(f.Package).Filename)
			consts, own, described := make(map[string]string), []string(nil), false
			ast.Inspect(f, func(n ast.Node) bool {
				spec, ok := n.(*ast.ValueSpec)
				if !ok {
					_, isFunc := n.(*ast.FuncDecl)
					return !isFunc // what is declared in functions is nobody else's
				}
				for k, name := range spec.Names {
					own = append(own, name.Name)
					if k >= len(spec.Values) {
						continue
					}
					switch v := spec.Values[k].(type) {
					case *ast.BasicLit:
						consts[name.Name], _ = strconv.Unquote(v.Value)
					case *ast.CompositeLit:
						if typ, ok := v.Type.(*ast.Ident); ok && typ.Name == "Descriptor" {
							fileOf[nameIn(v, consts)], described = file, true
						}
					}
				}
				return true
			})
			for _, name := range own {
				if described {
					declares[name] = file
				}
			}
		}
	}
	return fileOf, declares
}

// nameIn returns the Name of a descriptor.
func nameIn(lit *ast.CompositeLit, consts map[string]string) string {
	for _, e := range lit.Elts {
		pair, ok := e.(*ast.KeyValueExpr)
		if !ok || pair.Key.(*ast.Ident).Name != "Name" {
			continue
		}
		if text, ok := pair.Value.(*ast.BasicLit); ok {
			name, _ := strconv.Unquote(text.Value)
			return name
		}
		return consts[pair.Value.(*ast.Ident).Name]
	}
	return ""
}

// What Berth knows of a plugin is in one file, and one row of one table says that there is one: who adds a plugin need not look for places.
func TestAPluginIsNamedInItsFileAndTheTableOnly(t *testing.T) {
	fileOf, declares := descriptors(t)
	for _, p := range engine.Plugins() {
		if fileOf[p.Name] == "" {
			t.Errorf("%s has a row in %s, and no descriptor", p.Name, pluginTable)
		}
	}
	if len(fileOf) != len(engine.Plugins()) {
		t.Errorf("%d descriptors and %d rows", len(fileOf), len(engine.Plugins()))
	}
	excused := make(map[string]int)
	for _, p := range must(t, packages) {
		if p.within("internal/gen", "test", "internal/kubetest", "internal/cluster/clustertest", "internal/source/sourcetest") {
			continue // generated, or test code
		}
		set, parsed := p.parse(t)
		for _, f := range parsed {
			file := p.Path + "/" + filepath.Base(set.Position(f.Package).Filename)
			if file == pluginTable {
				continue
			}
			namedPlugins(f, p.Path == engineDir, fileOf, declares, func(of, what string, at token.Pos) {
				switch {
				case of == file:
				case slices.ContainsFunc(namesPlugins, func(row struct{ file, reason string }) bool { return row.file == file }):
					excused[file]++
				default:
					t.Errorf("%s: %s names a plugin that is described in %s: what is known of it belongs there", set.Position(at), what, of)
				}
			})
		}
	}
	for _, row := range namesPlugins {
		if excused[row.file] == 0 {
			t.Errorf("%s names no plugin: it needs no exception", row.file)
		}
	}
}

// namedPlugins calls found for whatever names a plugin in a file: a string, an identifier, or a constant or variable of the plugin's file;
// of is that file.
func namedPlugins(f *ast.File, inEngine bool, fileOf, declares map[string]string, found func(of, what string, at token.Pos)) {
	member := make(map[*ast.Ident]bool) // fields, methods, and what is chosen from packages
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			member[n.Sel] = true
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok {
				member[key] = true
			}
		case *ast.Field:
			for _, name := range n.Names {
				member[name] = true
			}
		case *ast.BasicLit:
			text, err := strconv.Unquote(n.Value)
			for name, of := range fileOf {
				if n.Kind == token.STRING && err == nil && regexp.MustCompile(`\b`+name+`\b`).MatchString(text) {
					found(of, n.Value, n.Pos())
				}
			}
		case *ast.Ident:
			for name, of := range fileOf {
				whole := strings.Contains(n.Name, name) || strings.HasPrefix(n.Name, strings.ToLower(name[:1])+name[1:])
				if whole && (!slices.Contains(alsoFields, name) || inEngine && !member[n]) {
					found(of, n.Name, n.Pos())
				}
			}
			if of := declares[n.Name]; of != "" && inEngine && !member[n] && n.Obj == nil {
				found(of, n.Name, n.Pos())
			}
		}
		return true
	})
	uses(f, module+"/"+engineDir, func(name string, at token.Pos) {
		if of := declares[name]; of != "" {
			found(of, "engine."+name, at)
		}
	})
}

// What CONTRIBUTING.md says is done, literally, and nothing else: its file and its row make the plugin filter and score, with a text, a metric,
// a hint and an explanation.
func TestAPluginIsAddedAsThePageSays(t *testing.T) {
	page := readFile(t, "CONTRIBUTING.md")
	page = page[strings.Index(page, "## Add a plugin"):]
	block := func(language string) string {
		_, rest, found := strings.Cut(page, "```"+language+"\n")
		text, _, ended := strings.Cut(rest, "```")
		if !found || !ended {
			t.Fatalf("CONTRIBUTING.md: no block of %s under \"Add a plugin\"", language)
		}
		return text
	}
	context, added, _ := strings.Cut(strings.TrimPrefix(block("diff"), " "), "\n+")
	table := readFile(t, pluginTable)
	if strings.Count(table, context+"\n") != 1 {
		t.Fatalf("%s does not have %q once", pluginTable, context)
	}
	dir := t.TempDir()
	replace := make(map[string]string)
	overlay := func(name, text string) {
		at := filepath.Join(dir, strconv.Itoa(len(replace)))
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(rootDir(t), name)] = at
	}
	overlay(engineDir+"/quietnodes.go", block("go"))
	overlay(pluginTable, strings.Replace(table, context+"\n", context+"\n"+added, 1))
	overlay("services/madeup/main.go", readFile(t, "test/rules/testdata/madeup/main.go"))
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := run(rootDir(t), "go", "run", "-overlay", file, "./services/madeup")
	if err != nil {
		t.Fatal(err)
	}
	want := `filter: 0 feasible: 0/1 nodes are available: 1 node(s) were quiet.
metric: QuietNodes
explanation: 1 is quiet; the node is quiet
hint: unschedulable
hint: backoff
score: other 100
score: silent 0
more: 100
`
	if diff := cmp.Diff(want, string(out)); diff != "" {
		t.Errorf("what it does (-want +got):\n%s", diff)
	}
}

// The pages tell the plugins of the table that filter or score, in its order, before what else they say of them.
func TestPagesListThePluginsOfTheTable(t *testing.T) {
	var want []string
	name := make(map[string]bool)
	for _, p := range engine.Plugins() {
		if name[p.Name] = true; !p.Unbuilt && (p.RunsAt("filter") || p.RunsAt("score")) {
			want = append(want, p.Name)
		}
	}
	for _, page := range []string{"README.md", "docs/coming-from-kube-scheduler.md"} {
		var got []string
		for line := range strings.Lines(readFile(t, page)) {
			if !strings.Contains(line, "| "+want[0]+",") {
				continue
			}
			line, _, _ = strings.Cut(line, ": ")
			for _, word := range regexp.MustCompile(`\w+`).FindAllString(line, -1) {
				if name[word] {
					got = append(got, word)
				}
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-table +page):\n%s", page, diff)
		}
	}
}
