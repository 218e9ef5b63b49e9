package rules

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/reflect/protoreflect"
	"sigs.k8s.io/yaml"
)

var rewrite = flag.Bool("rewrite", false, "write docs/api.md")

const (
	apiPage = "docs/api.md"
	httpMap = "proto/berth/scheduling/v1/http.yaml"
)

var (
	// publicFiles are the protos of the public API, in the order of the page.
	publicFiles = []string{
		"berth/scheduling/v1/scheduling.proto",
		"berth/scheduling/v1/explain.proto",
		"berth/scheduling/v1/whatif.proto",
		"berth/scheduling/v1/view.proto",
		"berth/scheduling/v1/model.proto",
	}
	// innerFiles are those that the roles talk by among themselves.
	innerFiles = []string{
		"berth/log/v1/log.proto",
		"berth/binder/v1/binder.proto",
		"berth/queue/v1/queue.proto",
		"berth/filter/v1/filter.proto",
		"berth/score/v1/score.proto",
		"berth/member/v1/member.proto",
	}
	// pluginFiles are those by which Berth asks others.
	pluginFiles = []string{"berth/plugin/v1/plugin.proto"}
)

func TestTheAPIReferenceIsThatOfTheProtos(t *testing.T) {
	got := renderAPI(t)
	if *rewrite {
		if err := os.WriteFile(filepath.Join(rootDir(t), apiPage), []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, have := strings.Split(readFile(t, apiPage), "\n"), strings.Split(got, "\n")
	for i := range max(len(want), len(have)) {
		if i >= len(want) || i >= len(have) || want[i] != have[i] {
			t.Fatalf("%s:%d is not what the protos say; run with -rewrite", apiPage, i+1)
		}
	}
}

func TestTheAPIReferenceHasEveryProto(t *testing.T) {
	listed := make(map[string]bool)
	for _, name := range slices.Concat(publicFiles, innerFiles, pluginFiles) {
		listed["proto/"+name] = true
	}
	for _, name := range must(t, files) {
		if strings.HasSuffix(name, ".proto") && !listed[name] {
			t.Errorf("%s is in neither list of this test", name)
		}
	}
}

// apiReference renders docs/api.md from the protos and their comments.
type apiReference struct {
	t     *testing.T
	paths map[string]string // by RPC: its method and path over HTTP
	out   strings.Builder
}

// protos compiles protos, with their comments.
func protos(t *testing.T, names []string) []protoreflect.FileDescriptor {
	t.Helper()
	c := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{filepath.Join(rootDir(t), "proto")}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	compiled, err := c.Compile(t.Context(), names...)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]protoreflect.FileDescriptor, len(compiled))
	for k := range compiled {
		out[k] = compiled[k]
	}
	return out
}

func renderAPI(t *testing.T) string {
	r := &apiReference{t: t, paths: httpPaths(t)}
	public := protos(t, publicFiles)
	r.out.WriteString(`# API

What a gateway answers, by gRPC at ` + "`--listen`" + ` and as JSON at ` + "`--http-listen`" + `. A test holds this page against
[the protos](../proto/berth/scheduling/v1): ` + "`go test ./test/rules -run APIReference`" + `; with ` + "`-rewrite`" + ` it writes the page.

JSON names fields in lowerCamelCase, and 64-bit integers are strings, as protobuf's JSON has it. Of a GET, what the path does not
name are parameters of the query. Errors have a code and a reason: see [ARCHITECTURE.md](../ARCHITECTURE.md#errors).
[security.md](security.md#people) says who may call what.

`)
	for _, fd := range public {
		for i := range fd.Services().Len() {
			r.service(fd.Services().Get(i))
		}
	}
	r.out.WriteString("## Messages\n\n")
	for _, fd := range public {
		for i := range fd.Messages().Len() {
			r.message(fd.Messages().Get(i))
		}
		for i := range fd.Enums().Len() {
			r.enum(fd.Enums().Get(i))
		}
	}
	r.out.WriteString("## Plugins\n\nThese are served by [plugins](plugins.md), and Berth is who asks.\n\n")
	r.rpcs(pluginFiles)
	r.out.WriteString("\n## Inner services\n\nBy these the roles talk to each other. They change from release to release, and nobody else is let in.\n\n")
	r.rpcs(innerFiles)
	return r.out.String()
}

// rpcs writes a table of what the services of some files do.
func (r *apiReference) rpcs(names []string) {
	r.out.WriteString("| RPC | does |\n| --- | --- |\n")
	for _, fd := range protos(r.t, names) {
		for i := range fd.Services().Len() {
			s := fd.Services().Get(i)
			for k := range s.Methods().Len() {
				m := s.Methods().Get(k)
				text, _ := split(r.say(m))
				fmt.Fprintf(&r.out, "| [%s.%s](../proto/%s) | %s |\n", s.Name(), m.Name(), fd.Path(), escape(text))
			}
		}
	}
}

// say returns the lines of the comment of a thing, which has to have one.
func (r *apiReference) say(d protoreflect.Descriptor) []string {
	comment := strings.TrimSpace(d.ParentFile().SourceLocations().ByDescriptor(d).LeadingComments)
	if comment == "" {
		r.t.Errorf("%s has no comment above it", d.FullName())
	}
	lines := strings.Split(comment, "\n")
	for k := range lines {
		lines[k] = strings.TrimSpace(lines[k])
	}
	return lines
}

func (r *apiReference) service(s protoreflect.ServiceDescriptor) {
	text, _ := split(r.say(s))
	fmt.Fprintf(&r.out, "## %s\n\n`%s`. %s\n\n| RPC | HTTP |\n| --- | --- |\n", s.Name(), s.FullName(), text)
	for i := range s.Methods().Len() {
		m := s.Methods().Get(i)
		path := r.paths[string(m.FullName())]
		if path == "" {
			r.t.Errorf("%s has no %s", httpMap, m.FullName())
		}
		fmt.Fprintf(&r.out, "| [%s](#%s) | `%s` |\n", m.Name(), strings.ToLower(string(m.Name())), path)
	}
	for i := range s.Methods().Len() {
		m := s.Methods().Get(i)
		text, errors := split(r.say(m))
		stream := ""
		if m.IsStreamingServer() {
			stream = "a stream of "
		}
		fmt.Fprintf(&r.out, "\n### %s\n\n%s\n\nTakes %s, returns %s%s.\n", m.Name(), text, linkTo(m.Input()), stream, linkTo(m.Output()))
		for k, line := range errors {
			if k == 0 {
				r.out.WriteString("\n")
			}
			code, why, _ := strings.Cut(line, ": ")
			fmt.Fprintf(&r.out, "- `%s`: %s\n", code, why)
		}
	}
	r.out.WriteString("\n")
}

func (r *apiReference) message(m protoreflect.MessageDescriptor) {
	text, _ := split(r.say(m))
	fmt.Fprintf(&r.out, "### %s\n\n%s\n\n", m.Name(), text)
	if m.Fields().Len() == 0 {
		return
	}
	r.out.WriteString("| field | type | meaning |\n| --- | --- | --- |\n")
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		text := strings.Join(r.say(f), " ")
		if one := f.ContainingOneof(); one != nil && !one.IsSynthetic() {
			text = "One of `" + string(one.Name()) + "`. " + text
		}
		fmt.Fprintf(&r.out, "| `%s` | %s | %s |\n", f.Name(), typeOf(f), escape(text))
	}
	r.out.WriteString("\n")
	if m.Messages().Len() > 0 && !m.Messages().Get(0).IsMapEntry() || m.Enums().Len() > 0 {
		r.t.Errorf("%s has types within: the page does not show them", m.FullName())
	}
}

func (r *apiReference) enum(e protoreflect.EnumDescriptor) {
	text, _ := split(r.say(e))
	fmt.Fprintf(&r.out, "### %s\n\n%s\n\n| value | number | meaning |\n| --- | ---: | --- |\n", e.Name(), text)
	for i := range e.Values().Len() {
		v := e.Values().Get(i)
		fmt.Fprintf(&r.out, "| `%s` | %d | %s |\n", v.Name(), v.Number(), escape(strings.Join(r.say(v), " ")))
	}
	r.out.WriteString("\n")
}

func typeOf(f protoreflect.FieldDescriptor) string {
	switch {
	case f.IsMap():
		return fmt.Sprintf("map of %s to %s", typeOf(f.MapKey()), typeOf(f.MapValue()))
	case f.IsList():
		return "list of " + elementOf(f)
	case f.HasOptionalKeyword():
		return "optional " + elementOf(f)
	}
	return elementOf(f)
}

func elementOf(f protoreflect.FieldDescriptor) string {
	switch {
	case f.Enum() != nil:
		return linkTo(f.Enum())
	case f.Message() != nil:
		return linkTo(f.Message())
	}
	return f.Kind().String()
}

// linkTo links to a type, unless it is one of protobuf's own.
func linkTo(d protoreflect.Descriptor) string {
	if d.ParentFile().Package() != "berth.scheduling.v1" {
		return "`" + string(d.FullName()) + "`"
	}
	return fmt.Sprintf("[%s](#%s)", d.Name(), strings.ToLower(string(d.Name())))
}

func escape(cell string) string { return strings.ReplaceAll(cell, "|", `\|`) }

var errorLine = regexp.MustCompile(`^[A-Z_]{5,}: `)

// split parts a comment into its text, and what it says of each error.
func split(comment []string) (text string, errors []string) {
	for _, line := range comment {
		switch {
		case errorLine.MatchString(line):
			errors = append(errors, line)
		case len(errors) > 0:
			errors[len(errors)-1] += " " + line
		case text == "":
			text = line
		default:
			text += " " + line
		}
	}
	return text, errors
}

// httpPaths returns how each RPC is served over HTTP.
func httpPaths(t *testing.T) map[string]string {
	t.Helper()
	var service struct {
		HTTP struct {
			Rules []struct{ Selector, Get, Post string }
		}
	}
	if err := yaml.Unmarshal([]byte(readFile(t, httpMap)), &service); err != nil {
		t.Fatal(err)
	}
	paths := make(map[string]string)
	for _, rule := range service.HTTP.Rules {
		switch {
		case rule.Get != "":
			paths[rule.Selector] = "GET " + rule.Get
		case rule.Post != "":
			paths[rule.Selector] = "POST " + rule.Post
		}
	}
	return paths
}
