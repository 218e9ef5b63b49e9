package rules

import (
	"go/ast"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/engine"
)

const (
	engineDir   = "internal/engine"
	pluginTable = engineDir + "/plugins.go"
)

// alsoFields are plugins' names that fields of the Kubernetes API have too. Of these an identifier names the plugin only if it stands
// alone in the engine's package, or is chosen from it.
var alsoFields = []string{"NodeName", "NodeAffinity", "SchedulingGates"}

// Files that name plugins all the same, and why.
var namesPlugins = []struct{ file, reason string }{
	{"internal/wire/answers.go", "two scores have fields of the proto that are called after their plugins; later ones go by their place"},
	{"internal/config/defaults.go", "the types of kube-scheduler's API for arguments have the plugins' names; what they mean is there, not in the pure engine"},
	{"internal/config/validate_args.go", "as above"},
	{"internal/config/profile.go", "as above"},
	{"internal/config/convert.go", "what old configurations meant is the past: no new plugin has one, and the texts tell people what became of it"},
	{"internal/config/convert_plugins.go", "as above"},
	{"cmd/berth/cluster_flags.go", "two flags are arguments of one plugin, by their type in kube-scheduler's API"},
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
