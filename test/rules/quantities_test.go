package rules

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strings"
	"testing"
)

// harmless are methods of resource.Quantity that look at its sign, or copy it, and write out no digits.
var harmless = []string{"Sign", "IsZero", "DeepCopy"}

// summed are functions of component-helpers that compute with the quantities of a pod.
var summed = []string{"PodRequests", "PodLimits", "AggregateContainerRequests", "AggregateContainerLimits"}

// computing returns where a program computes with a resource.Quantity: it calls a method, or names it. What libraries do with quantities by
// themselves, as when an object is encoded or compared, it does not see, but for summed.
func (l *locking) computing() map[token.Pos]string {
	found := make(map[token.Pos]string)
	for id, object := range l.info.Uses {
		f, ok := object.(*types.Func)
		if !ok || f.Pkg() == nil {
			continue
		}
		switch receiver := f.Signature().Recv(); {
		case receiver == nil:
			if f.Pkg().Path() == "k8s.io/component-helpers/resource" && slices.Contains(summed, f.Name()) {
				found[id.Pos()] = f.Name()
			}
		case strings.TrimPrefix(receiver.Type().String(), "*") == "k8s.io/apimachinery/pkg/api/resource.Quantity" && !slices.Contains(harmless, f.Name()):
			found[id.Pos()] = f.Name()
		}
	}
	return found
}

func TestQuantitiesAreComputedWithInOnePlace(t *testing.T) {
	l, err := berth()
	if err != nil {
		t.Fatal(err)
	}
	const words = "/internal/engine/words.go" // makes quantities of numbers, to print these
	within := 0
	for at, what := range l.computing() {
		switch file := l.set.Position(at).Filename; {
		case strings.Contains(file, "/internal/quantity/"):
			within++
		case !strings.HasSuffix(file, words):
			t.Errorf("%v: %s of a resource.Quantity may take hours if it is somebody else's: ask internal/quantity", l.set.Position(at), what)
		}
	}
	if within < 10 {
		t.Errorf("internal/quantity computes in %d places, want 10 at least: does this law see them?", within)
	}
}

func TestTheLawOfQuantitiesFindsWhatItForbids(t *testing.T) {
	set := token.NewFileSet()
	var program []sourcePackage
	for _, p := range []struct{ path, code string }{
		{"k8s.io/apimachinery/pkg/api/resource", `package resource
type Quantity struct{}
func (q *Quantity) Sign() int; func (q *Quantity) Cmp(Quantity) int; func (q *Quantity) Add(Quantity); func (q Quantity) String() string
func (q *Quantity) MilliValue() int64; func (q *Quantity) Value() int64; func (q Quantity) DeepCopy() Quantity`},
		{"k8s.io/component-helpers/resource", `package helper
func PodRequests(); func IsPodLevelRequestsSet()`},
		{"p", `package p
import "k8s.io/apimachinery/pkg/api/resource"
import helper "k8s.io/component-helpers/resource"
type list map[string]resource.Quantity
func (l list) CPU() *resource.Quantity { q := l["cpu"]; return &q }
type other struct{ resource.Quantity }
func harmless(q resource.Quantity) bool { return q.Sign() < 0 || q.DeepCopy() == q }
func compares(q *resource.Quantity) int { return q.Cmp(*q) }
func embeds(o other) int64 { return o.Value() }
func returned(l list) int64 { return l.CPU().MilliValue() }
func later(q resource.Quantity) func() string { return q.String }
var named = (*resource.Quantity).Add
func helps() { helper.PodRequests(); helper.IsPodLevelRequestsSet() }`},
	} {
		f, err := parser.ParseFile(set, p.path+".go", p.code, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		program = append(program, sourcePackage{p.path, []*ast.File{f}})
	}
	l, err := readLocking(set, program, importer.ForCompiler(set, "source", nil))
	if err != nil {
		t.Fatal(err)
	}
	found := l.computing()
	var got []string
	for _, at := range slices.Sorted(maps.Keys(found)) {
		got = append(got, found[at])
	}
	if want := "Cmp Value MilliValue String Add PodRequests"; strings.Join(got, " ") != want {
		t.Errorf("%v, want %s", got, want)
	}
}
