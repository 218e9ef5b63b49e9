package rules

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// lockOrder is the file whose comment says in which order locks are taken.
const lockOrder = "internal/roles/doc.go"

// disorder returns what is wrong with how locks are taken, if they are to be taken in an order.
func (l *locking) disorder(order []string) (wrong []string) {
	nests := make(map[string]bool)
	for n, where := range l.found {
		nests[n.outer], nests[n.inner] = true, true
		outer, inner := slices.Index(order, n.outer), slices.Index(order, n.inner)
		switch {
		case outer < 0 || inner < 0:
			wrong = append(wrong, fmt.Sprintf("%s is taken under %s, and has no place in the order, or that has none: %s", n.inner, n.outer, where))
		case outer >= inner:
			wrong = append(wrong, fmt.Sprintf("%s is taken under %s, which comes behind it: %s", n.inner, n.outer, where))
		}
	}
	for _, lock := range order {
		if !nests[lock] {
			wrong = append(wrong, fmt.Sprintf("%s has a place in the order, and is never held together with another", lock))
		}
	}
	slices.Sort(wrong)
	return wrong
}

func TestLocksAreTakenInOneOrder(t *testing.T) {
	l, err := berth()
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, row := range regexp.MustCompile(`(?m)^//\t(\S+)\s+\S`).FindAllStringSubmatch(readFile(t, lockOrder), -1) {
		order = append(order, row[1])
	}
	if len(order) < 10 {
		t.Fatalf("%s has an order of %d locks, want at least 10", lockOrder, len(order))
	}
	for _, wrong := range l.disorder(order) {
		t.Errorf("%s; the order is in %s", wrong, lockOrder)
	}
}

func TestALockIsReleasedByTheFunctionThatTakesIt(t *testing.T) {
	l, err := berth()
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range l.wrong {
		t.Errorf("%s: who reads one of the two functions does not know what is held", wrong)
	}
}

// TestTheLawsOfLocksFindWhatTheyForbid: each of these takes b under a in its own way, or the like.
func TestTheLawsOfLocksFindWhatTheyForbid(t *testing.T) {
	const head = `package p
import "sync"
type A struct{ mu sync.Mutex; told func(); then []func(); by taker }
type B struct{ mu sync.RWMutex }
type E struct{ sync.Mutex }
type taker interface{ take() }
func (b *B) take() { b.mu.RLock(); defer b.mu.RUnlock() }
func (a *A) with(f func()) { a.mu.Lock(); defer a.mu.Unlock(); f() }
func (a *A) inside(f func()) { a.with(func() { f() }) }
func (a *A) twice(f func()) { f(); f() }
func each(all []func(), f func(func())) { for _, one := range all { f(one) } }
`
	for _, tt := range []struct{ name, code, nests, wrong string }{
		{"directly", `func f(a *A, b *B) { a.mu.Lock(); defer a.mu.Unlock(); b.mu.Lock(); b.mu.Unlock() }`, "A.mu B.mu", ""},
		{"by a call", `func f(a *A, b *B) { a.mu.Lock(); b.take(); a.mu.Unlock() }`, "A.mu B.mu", ""},
		{"behind it", `func f(a *A, b *B) { a.mu.Lock(); a.mu.Unlock(); b.take() }`, "", ""},
		{"in another goroutine", `func f(a *A, b *B) { a.mu.Lock(); go b.take(); a.mu.Unlock() }`, "", ""},
		{"by an interface", `func f(a *A) { a.mu.Lock(); a.by.take(); a.mu.Unlock() }`, "A.mu B.mu", ""},
		{"by a field", `func f(a *A, b *B) { a.told = b.take; a.mu.Lock(); a.told(); a.mu.Unlock() }`, "A.mu B.mu", ""},
		{"by a field of a literal", `func f(b *B) { a := A{told: func() { b.take() }}; a.mu.Lock(); a.told(); a.mu.Unlock() }`, "A.mu B.mu", ""},
		{"by a list", `func f(a *A, b *B) { a.then = append(a.then, b.take); a.mu.Lock(); each(a.then, func(f func()) { f() }); a.mu.Unlock() }`, "A.mu B.mu", ""},
		{"by an argument", `func f(a *A, b *B) { a.with(func() { b.take() }) }`, "A.mu B.mu", ""},
		{"by an argument of an argument", `func f(a *A, b *B) { a.inside(b.take) }`, "A.mu B.mu", ""},
		{"by an argument to another module", `func f(a *A, b *B, o *sync.Once) { a.mu.Lock(); o.Do(b.take); a.mu.Unlock() }`, "A.mu B.mu", ""},
		{"by what a function returns", `func g(b *B) func() { return b.take }; func f(a *A, b *B) { a.mu.Lock(); g(b)(); a.mu.Unlock() }`, "A.mu B.mu", ""},
		{"by an argument to somebody else", `func f(a *A, b *B) { a.twice(b.take); a.with(func() { a.twice(func() {}) }) }`, "", ""},
		{"when a function ends", `func f(a *A, b *B) { a.mu.Lock(); defer a.mu.Unlock(); defer b.take() }`, "A.mu B.mu", ""},
		{"when a function has ended", `func f(a *A, b *B) { defer b.take(); a.mu.Lock(); defer a.mu.Unlock() }`, "", ""},
		{"on one of two ways", `func f(a *A, b *B, x bool) { a.mu.Lock(); if x { a.mu.Unlock(); return }; b.take(); a.mu.Unlock() }`, "A.mu B.mu", ""},
		{"on no way", `func f(a *A, b *B, x bool) { a.mu.Lock(); if x { a.mu.Unlock(); b.take(); return }; a.mu.Unlock() }`, "", ""},
		{"behind a loop", `func f(a *A, b *B) { for { a.mu.Lock(); if a.by == nil { break }; a.mu.Unlock() }; b.take(); a.mu.Unlock() }`, "A.mu B.mu", ""},
		{"twice the same", `func f(a, c *A) { a.mu.Lock(); c.with(func() {}); a.mu.Unlock() }`, "A.mu A.mu", ""},
		{"embedded", `func f(a *A, e *E) { e.Lock(); defer e.Unlock(); a.with(func() {}) }`, "E.Mutex A.mu", ""},
		{"not released", `func f(a *A) { a.mu.Lock() }`, "", "is held where the function ends"},
		{"not released on one way", `func f(a *A, x bool) { a.mu.Lock(); if x { return }; a.mu.Unlock() }`, "", "is held where the function ends"},
		{"released by another", `func f(a *A) { a.mu.Unlock() }`, "", "is released where it is not held"},
		{"released by what is deferred", `func f(a *A) { a.mu.Lock(); defer func() { a.mu.Unlock() }() }`, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			set := token.NewFileSet()
			f, err := parser.ParseFile(set, "p.go", head+tt.code, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			l, err := readLocking(set, []sourcePackage{{"p", []*ast.File{f}}}, importer.ForCompiler(set, "source", nil))
			if err != nil {
				t.Fatal(err)
			}
			var nests []string
			for n := range maps.Keys(l.found) {
				nests = append(nests, strings.ReplaceAll(n.outer+" "+n.inner, "p.", ""))
			}
			slices.Sort(nests)
			if got := strings.Join(nests, ", "); got != tt.nests {
				t.Errorf("%s nest, want %q", got, tt.nests)
			}
			if got := strings.Join(l.wrong, "; "); !strings.Contains(got, tt.wrong) || got != "" && tt.wrong == "" {
				t.Errorf("wrong is %q, want %q", got, tt.wrong)
			}
		})
	}
}
