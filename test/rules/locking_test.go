package rules

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// locking finds out, by reading a program, which locks may be taken while which others are held. It does not run anything, so what no test
// does counts too.
//
// A lock is a variable or a field of type sync.Mutex or sync.RWMutex. A field is one lock, however many values have it: all shards have the
// same. A call of an interface's method may be of every type of the program that implements the interface. A call of a function value may be
// of every function that is assigned to that variable anywhere; only what a caller hands in as an argument is told from what others hand in.
// So it may find what never happens, and misses little: functions that are kept in values of an interface, what other modules call back
// later, and what a server does for an RPC while its caller holds a lock.
type locking struct {
	set  *token.FileSet
	info *types.Info

	named    []types.Type                // that are declared in the program and are no interfaces
	typeOf   map[*types.Var]string       // of fields: the type that has them
	all      []any                       // functions, as they are declared: *types.Func, or *ast.FuncLit
	bodies   map[any]*ast.BlockStmt      // of functions
	around   map[any]any                 // of function literals: the function around
	deferred map[any]bool                // function literals that are read where they are deferred
	takesIn  map[*types.Var]any          // of parameters that are functions: whose they are
	results  map[any]*types.Var          // of functions: what they return, if it is functions
	points   map[*types.Var]map[any]bool // which functions a variable may be
	grown    bool                        // there is more to be known than before

	sites map[any][]site
	takes map[any]map[*types.Var]any // by function, the locks that are taken while its caller waits, each with the function it calls for that
	needs map[any]map[need]bool      // by function, which parameters of its own, and of those around it, it calls
	found map[nesting]string

	wrong []string // locks that are not taken and released in one function
}

// site is a place in a function where a lock is taken, or something called.
type site struct {
	held  []*types.Var
	takes *types.Var
	calls any // a function, or a parameter
	given func(parameter *types.Var) []any
	at    token.Pos
}

// need says that a parameter is called, while a lock is held if it is not nil.
type need struct{ parameter, under *types.Var }

// nesting is a lock that may be taken while another is held.
type nesting struct{ outer, inner string }

// sourcePackage is a package whose source is read.
type sourcePackage struct {
	path  string
	files []*ast.File
}

// berth is the locking of the program berth: of its own packages, but for generated ones. Of all others it knows the types.
var berth = sync.OnceValues(func() (*locking, error) {
	dir, err := root()
	if err != nil {
		return nil, err
	}
	out, err := run(dir, "go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles", "./cmd/berth")
	if err != nil {
		return nil, err
	}
	set, exports, own := token.NewFileSet(), make(map[string]string), []sourcePackage(nil)
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath, Dir, Export string
			GoFiles                 []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if !prefixed(p.ImportPath, module) || prefixed(p.ImportPath, module+"/internal/gen") {
			exports[p.ImportPath] = p.Export
			continue
		}
		of := sourcePackage{path: p.ImportPath}
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			of.files = append(of.files, f)
		}
		own = append(own, of)
	}
	return readLocking(set, own, importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }))
})

// readLocking reads packages, each behind those that it imports.
func readLocking(set *token.FileSet, packages []sourcePackage, others types.Importer) (*locking, error) {
	l := &locking{
		set: set,
		info: &types.Info{
			Types: make(map[ast.Expr]types.TypeAndValue), Defs: make(map[*ast.Ident]types.Object), Uses: make(map[*ast.Ident]types.Object),
			Selections: make(map[*ast.SelectorExpr]*types.Selection),
		},
		typeOf: make(map[*types.Var]string), bodies: make(map[any]*ast.BlockStmt), around: make(map[any]any), deferred: make(map[any]bool),
		takesIn: make(map[*types.Var]any), results: make(map[any]*types.Var), points: make(map[*types.Var]map[any]bool),
		sites: make(map[any][]site), takes: make(map[any]map[*types.Var]any), needs: make(map[any]map[need]bool), found: make(map[nesting]string),
	}
	known := make(map[string]*types.Package)
	config := types.Config{Importer: importerFunc(func(path string) (*types.Package, error) {
		if p := known[path]; p != nil {
			return p, nil
		}
		return others.Import(path)
	})}
	for _, p := range packages {
		checked, err := config.Check(p.path, set, p.files, l.info)
		if err != nil {
			return nil, err
		}
		known[p.path] = checked
		l.declare(checked, p.files)
	}
	// 1. Which functions variables may be: until nothing is added any more.
	for l.grown = true; l.grown; {
		l.grown = false
		for _, p := range packages {
			for _, f := range p.files {
				l.flow(f)
			}
		}
	}
	// 2. What each function does by itself.
	for _, f := range l.all {
		if !l.deferred[f] {
			l.read(f)
		}
	}
	// 3. And by those that it calls.
	for l.grown = true; l.grown; {
		l.grown = false
		for _, f := range l.all {
			for _, s := range l.sites[f] {
				if s.takes != nil {
					l.take(f, s, s.held, s.takes, nil)
				} else {
					l.call(f, s, s.held, nil)
				}
			}
		}
	}
	return l, nil
}

// call adds that a function calls another, or a parameter, while locks are held: the last of a chain, in which each calls the next, that
// begins with what is called at a site.
func (l *locking) call(f any, s site, held []*types.Var, chain []any) {
	if chain == nil {
		chain = []any{s.calls}
	}
	what := chain[len(chain)-1]
	next := func(held []*types.Var, g any) {
		if !slices.Contains(chain, g) {
			l.call(f, s, held, append(slices.Clip(chain), g))
		}
	}
	if parameter, ok := what.(*types.Var); ok {
		if l.within(f, l.takesIn[parameter]) { // whoever calls that function says what it is
			for _, lock := range append([]*types.Var{nil}, held...) {
				l.grown = add(l.needs, f, need{parameter, lock}) || l.grown
			}
			return
		}
		for g := range l.points[parameter] {
			next(held, g)
		}
		return
	}
	for lock := range l.takes[what] {
		l.take(f, s, held, lock, what)
	}
	for n := range l.needs[what] {
		under := held
		if n.under != nil {
			under = append(slices.Clip(held), n.under)
		}
		switch {
		case l.takesIn[n.parameter] != what:
			next(under, n.parameter)
		case len(chain) == 1 && s.given != nil:
			for _, g := range s.given(n.parameter) {
				next(under, g)
			}
		default:
			for g := range l.points[n.parameter] {
				next(under, g)
			}
		}
	}
}

// take adds that a lock is taken while others are held, by something that the function calls if by is not nil.
func (l *locking) take(f any, s site, held []*types.Var, lock *types.Var, by any) {
	if l.takes[f] == nil {
		l.takes[f] = make(map[*types.Var]any)
	}
	if _, known := l.takes[f][lock]; !known {
		l.takes[f][lock], l.grown = by, true
	}
	for _, outer := range held {
		if n := (nesting{l.name(outer), l.name(lock)}); l.found[n] == "" {
			l.found[n] = l.position(s.at)
			for ; by != nil; by = l.takes[by][lock] {
				l.found[n] += ", " + l.functionName(by)
			}
		}
	}
}

// within reports whether a function is another, or a literal in it.
func (l *locking) within(f, outer any) bool {
	for ; f != nil; f = l.around[f] {
		if f == outer {
			return true
		}
	}
	return false
}

type importerFunc func(path string) (*types.Package, error)

func (f importerFunc) Import(path string) (*types.Package, error) { return f(path) }

func add[K, V comparable](to map[K]map[V]bool, k K, v V) (fresh bool) {
	if to[k] == nil {
		to[k] = make(map[V]bool)
	}
	fresh = !to[k][v]
	to[k][v] = true
	return fresh
}

// declare notes what a package declares.
func (l *locking) declare(p *types.Package, files []*ast.File) {
	for _, name := range p.Scope().Names() {
		if of, ok := p.Scope().Lookup(name).(*types.TypeName); ok && !of.IsAlias() && !types.IsInterface(of.Type()) {
			l.named = append(l.named, of.Type())
			if s, ok := of.Type().Underlying().(*types.Struct); ok {
				for f := range s.Fields() {
					l.typeOf[f] = p.Name() + "." + name
				}
			}
		}
	}
	for _, f := range files {
		var around []any
		inspect(f, func(n ast.Node) {
			switch n := n.(type) {
			case *ast.FuncDecl:
				around = append(around, l.info.Defs[n.Name])
				if n.Body != nil {
					l.function(l.info.Defs[n.Name], n.Body, l.info.Defs[n.Name].Type())
				}
			case *ast.FuncLit:
				if len(around) > 0 {
					l.around[n] = around[len(around)-1]
				}
				around = append(around, n)
				l.function(n, n.Body, l.info.TypeOf(n))
			case *ast.DeferStmt:
				l.deferred[n.Call.Fun] = true
			}
		}, func(n ast.Node) {
			switch n.(type) {
			case *ast.FuncDecl, *ast.FuncLit:
				around = around[:len(around)-1]
			}
		})
	}
}

// inspect visits all nodes, each before and behind those in it.
func inspect(root ast.Node, before, behind func(ast.Node)) {
	var nodes []ast.Node
	ast.Inspect(root, func(n ast.Node) bool {
		if n == nil {
			behind(nodes[len(nodes)-1])
			nodes = nodes[:len(nodes)-1]
			return true
		}
		nodes = append(nodes, n)
		before(n)
		return true
	})
}

func (l *locking) function(f any, body *ast.BlockStmt, of types.Type) {
	l.all = append(l.all, f)
	l.bodies[f] = body
	for parameter := range of.(*types.Signature).Params().Variables() {
		if _, ok := parameter.Type().Underlying().(*types.Signature); ok {
			l.takesIn[parameter] = f
		}
	}
	for result := range of.(*types.Signature).Results().Variables() {
		if calls(result.Type()) && l.results[f] == nil {
			l.results[f] = types.NewVar(body.Pos(), nil, "result", result.Type())
		}
	}
}

// calls reports whether values of a type are functions, or hold some that are reached without a field's name.
func calls(t types.Type) bool {
	switch t := t.Underlying().(type) {
	case *types.Signature:
		return true
	case *types.Slice:
		return calls(t.Elem())
	case *types.Array:
		return calls(t.Elem())
	case *types.Map:
		return calls(t.Elem())
	case *types.Chan:
		return calls(t.Elem())
	case *types.Pointer:
		_, direct := t.Elem().Underlying().(*types.Signature)
		return direct
	}
	return false
}

// flow notes which functions are assigned to which variables.
func (l *locking) flow(root ast.Node) {
	var within []any // the functions around
	inspect(root, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.FuncDecl:
			within = append(within, l.info.Defs[n.Name])
		case *ast.FuncLit:
			within = append(within, n)
		case *ast.AssignStmt:
			for k, to := range n.Lhs {
				l.assign(l.variable(to), n.Rhs[min(k, len(n.Rhs)-1)])
			}
		case *ast.ValueSpec:
			for k, to := range n.Names {
				if len(n.Values) > 0 {
					l.assign(l.variable(to), n.Values[min(k, len(n.Values)-1)])
				}
			}
		case *ast.RangeStmt:
			for _, to := range []ast.Expr{n.Key, n.Value} {
				if to != nil {
					l.assign(l.variable(to), n.X)
				}
			}
		case *ast.SendStmt:
			l.assign(l.variable(n.Chan), n.Value)
		case *ast.ReturnStmt:
			for _, result := range n.Results {
				l.assign(l.results[within[len(within)-1]], result)
			}
		case *ast.CompositeLit:
			l.flowFields(n)
		case *ast.CallExpr:
			for _, f := range l.functions(n.Fun) {
				for parameter, argument := range l.arguments(n, f) {
					l.assign(parameter, argument)
				}
			}
		}
	}, func(n ast.Node) {
		switch n.(type) {
		case *ast.FuncDecl, *ast.FuncLit:
			within = within[:len(within)-1]
		}
	})
}

func (l *locking) flowFields(n *ast.CompositeLit) {
	s, ok := deref(l.info.TypeOf(n)).Underlying().(*types.Struct)
	if !ok {
		return
	}
	for k, value := range n.Elts {
		if pair, ok := value.(*ast.KeyValueExpr); ok {
			l.assign(l.variable(pair.Key), pair.Value)
		} else {
			l.assign(s.Field(k).Origin(), value)
		}
	}
}

func deref(t types.Type) types.Type {
	if p, ok := t.Underlying().(*types.Pointer); ok {
		return p.Elem()
	}
	return t
}

// arguments returns what a call of a function gives for its parameters.
func (l *locking) arguments(call *ast.CallExpr, f any) iter.Seq2[*types.Var, ast.Expr] {
	return func(yield func(*types.Var, ast.Expr) bool) {
		var of *types.Signature
		switch f := f.(type) {
		case *types.Func:
			of = f.Signature()
		case *ast.FuncLit:
			of = l.info.TypeOf(f).(*types.Signature)
		}
		for k, argument := range call.Args {
			if n := of.Params().Len(); n == 0 || !yield(of.Params().At(min(k, n-1)), argument) {
				return
			}
		}
	}
}

func (l *locking) assign(to *types.Var, from ast.Expr) {
	if to == nil || !calls(to.Type()) && !isTypeParam(to.Type()) {
		return
	}
	for _, f := range l.functions(from) {
		l.grown = add(l.points, to, f) || l.grown
	}
}

func isTypeParam(t types.Type) bool { _, ok := t.(*types.TypeParam); return ok }

// variable returns what an expression that something is assigned to is, or a part of; nil if that is nothing that has a name.
func (l *locking) variable(e ast.Expr) *types.Var {
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		of, ok := l.info.Defs[e].(*types.Var)
		if !ok {
			of, ok = l.info.Uses[e].(*types.Var)
		}
		if ok {
			return of.Origin()
		}
	case *ast.SelectorExpr:
		return l.variable(e.Sel)
	case *ast.IndexExpr:
		return l.variable(e.X)
	case *ast.StarExpr:
		return l.variable(e.X)
	}
	return nil
}

// functions returns which functions the value of an expression may be, or have.
func (l *locking) functions(e ast.Expr) []any {
	switch e := ast.Unparen(e).(type) {
	case *ast.FuncLit:
		return []any{e}
	case *ast.Ident:
		if f, ok := l.info.Uses[e].(*types.Func); ok {
			return []any{f.Origin()}
		}
	case *ast.SelectorExpr:
		if f, ok := l.info.Uses[e.Sel].(*types.Func); ok {
			return l.methods(e, f)
		}
	case *ast.IndexExpr:
		return l.functions(e.X)
	case *ast.SliceExpr:
		return l.functions(e.X)
	case *ast.StarExpr:
		return l.functions(e.X)
	case *ast.UnaryExpr:
		return l.functions(e.X)
	case *ast.CompositeLit:
		var all []any
		for _, value := range e.Elts {
			if pair, ok := value.(*ast.KeyValueExpr); ok {
				value = pair.Value
			}
			if of := l.info.TypeOf(value); of != nil && calls(of) {
				all = append(all, l.functions(value)...)
			}
		}
		return all
	case *ast.CallExpr:
		var all []any
		if l.converts(e) {
			for _, argument := range e.Args { // a conversion, or append
				if t := l.info.TypeOf(argument); t != nil && calls(t) {
					all = append(all, l.functions(argument)...)
				}
			}
			return all
		}
		for _, f := range l.functions(e.Fun) {
			all = slices.AppendSeq(all, maps.Keys(l.points[l.results[f]]))
		}
		return all
	}
	return slices.Collect(maps.Keys(l.points[l.variable(e)]))
}

// converts reports whether a call is a conversion, or of what the language has itself.
func (l *locking) converts(call *ast.CallExpr) bool {
	of := l.info.Types[call.Fun]
	return of.IsType() || of.IsBuiltin()
}

// methods returns which functions are meant by the name of one: those of all types, if it is of an interface.
func (l *locking) methods(e *ast.SelectorExpr, f *types.Func) []any {
	selection := l.info.Selections[e]
	if selection == nil || f.Signature().Recv() == nil || !types.IsInterface(f.Signature().Recv().Type()) {
		return []any{f.Origin()}
	}
	of := f.Signature().Recv().Type().Underlying().(*types.Interface) // which may be embedded
	if whole, ok := selection.Recv().Underlying().(*types.Interface); ok {
		of = whole
	}
	var all []any
	for _, t := range l.named {
		if !types.Implements(t, of) {
			if t = types.NewPointer(t); !types.Implements(t, of) {
				continue
			}
		}
		m, _, _ := types.LookupFieldOrMethod(t, true, f.Pkg(), f.Name())
		all = append(all, m.(*types.Func).Origin())
	}
	return all
}

// meant is like functions, but of a parameter it returns the parameter: its callers are looked at one by one.
func (l *locking) meant(e ast.Expr) []any {
	if parameter := l.variable(ast.Unparen(e)); parameter != nil && l.takesIn[parameter] != nil {
		return []any{parameter}
	}
	return l.functions(e)
}

// reading reads one function, statement by statement.
type reading struct {
	*locking
	of       any
	released map[*types.Var]bool // by what is deferred
	breaks   []*held             // where loops, switches and selects end by a break
}

// held is what is held at a place in a function.
type held struct {
	locks []*types.Var
	here  bool // the place can be reached
}

func (h held) with(lock *types.Var) held {
	return held{append(slices.Clip(h.locks), lock), h.here}
}

func (h held) without(lock *types.Var) held {
	return held{slices.DeleteFunc(slices.Clone(h.locks), func(l *types.Var) bool { return l == lock }), h.here}
}

// or is what may be held where two ways meet.
func (h held) or(other held) held {
	switch {
	case !h.here:
		return other
	case !other.here:
		return h
	}
	for _, lock := range other.locks {
		if !slices.Contains(h.locks, lock) {
			h = h.with(lock)
		}
	}
	return h
}

func (l *locking) read(f any) {
	r, body := &reading{locking: l, of: f, released: make(map[*types.Var]bool)}, l.bodies[f]
	r.leave(r.block(body.List, held{here: true}), body.Rbrace)
}

// leave checks that nothing is held where a function ends but what is released by then.
func (r *reading) leave(h held, at token.Pos) {
	if !h.here {
		return
	}
	for _, lock := range h.locks {
		if !r.released[lock] {
			r.complain(at, "%s is held where the function ends", r.name(lock))
		}
	}
}

func (r *reading) complain(at token.Pos, format string, args ...any) {
	r.wrong = append(r.wrong, fmt.Sprintf("%s: %s", r.position(at), fmt.Sprintf(format, args...)))
}

func (r *reading) block(list []ast.Stmt, h held) held {
	for _, s := range list {
		h = r.statement(s, h)
	}
	return h
}

func (r *reading) statement(s ast.Stmt, h held) held {
	if !h.here {
		return h // nobody gets here: the program has no goto
	}
	switch s := s.(type) {
	case *ast.BlockStmt:
		return r.block(s.List, h)
	case *ast.LabeledStmt:
		return r.statement(s.Stmt, h)
	case *ast.ReturnStmt:
		h = r.expressions(s, h)
		r.leave(h, s.Pos())
		return held{}
	case *ast.BranchStmt:
		if s.Tok == token.BREAK && s.Label == nil && len(r.breaks) > 0 {
			end := r.breaks[len(r.breaks)-1]
			*end = end.or(h)
		}
		return held{}
	case *ast.DeferStmt:
		if lit, ok := s.Call.Fun.(*ast.FuncLit); ok {
			r.readDeferred(lit, h)
			return h
		}
		if lock, op := r.operation(s.Call); lock != nil {
			if isUnlock(op) {
				r.released[lock] = true
			}
			return h
		}
		return r.expressions(s.Call, h)
	case *ast.GoStmt:
		for _, argument := range s.Call.Args {
			h = r.expressions(argument, h)
		}
		return h
	case *ast.IfStmt:
		h = r.optional(s.Init, h)
		h = r.expressions(s.Cond, h)
		then, otherwise := r.block(s.Body.List, h), h
		if s.Else != nil {
			otherwise = r.statement(s.Else, h)
		}
		return then.or(otherwise)
	case *ast.ForStmt:
		h = r.optional(s.Init, h)
		if s.Cond != nil {
			h = r.expressions(s.Cond, h)
		}
		return r.loop(h, s.Cond != nil, func() held {
			return r.optional(s.Post, r.block(s.Body.List, h))
		})
	case *ast.RangeStmt:
		h = r.expressions(s.X, h)
		if _, ok := r.info.TypeOf(s.X).Underlying().(*types.Signature); ok {
			r.called(r.meant(s.X), s.X.Pos(), h, nil)
		}
		return r.loop(h, true, func() held { return r.block(s.Body.List, h) })
	case *ast.SwitchStmt:
		h = r.optional(s.Init, h)
		if s.Tag != nil {
			h = r.expressions(s.Tag, h)
		}
		return r.clauses(s.Body, h)
	case *ast.TypeSwitchStmt:
		return r.clauses(s.Body, r.optional(s.Assign, r.optional(s.Init, h)))
	case *ast.SelectStmt:
		return r.clauses(s.Body, h)
	case *ast.ExprStmt:
		h = r.expressions(s.X, h)
		if call, ok := s.X.(*ast.CallExpr); ok {
			if f, ok := call.Fun.(*ast.Ident); ok && f.Name == "panic" {
				return held{}
			}
		}
		return h
	}
	return r.expressions(s, h)
}

func (r *reading) optional(s ast.Stmt, h held) held {
	if s == nil {
		return h
	}
	return r.statement(s, h)
}

// loop reads the body of a loop, which may be skipped unless it has no condition.
func (r *reading) loop(h held, skipped bool, body func() held) held {
	end := &held{}
	if skipped {
		*end = h
	}
	r.breaks = append(r.breaks, end)
	last := body()
	r.breaks = r.breaks[:len(r.breaks)-1]
	if skipped {
		return end.or(last)
	}
	return *end
}

func (r *reading) clauses(body *ast.BlockStmt, h held) held {
	end := &held{}
	r.breaks = append(r.breaks, end)
	complete, isSelect := false, false
	for _, clause := range body.List {
		from := h
		var list []ast.Stmt
		switch clause := clause.(type) {
		case *ast.CaseClause:
			for _, e := range clause.List {
				from = r.expressions(e, from)
			}
			complete, list = complete || clause.List == nil, clause.Body
		case *ast.CommClause:
			isSelect, from, list = true, r.optional(clause.Comm, from), clause.Body
		}
		last := r.block(list, from)
		*end = end.or(last)
	}
	r.breaks = r.breaks[:len(r.breaks)-1]
	if !complete && !isSelect {
		*end = end.or(h)
	}
	return *end
}

// readDeferred reads a function literal that is deferred, as if it came here: it runs while what is held here is held, unless that is
// released before, and may release it.
func (r *reading) readDeferred(lit *ast.FuncLit, h held) {
	inner := &reading{locking: r.locking, of: r.of, released: r.released}
	ast.Inspect(lit.Body, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if lock, op := r.operation(call); lock != nil && isUnlock(op) {
				r.released[lock] = true
			}
		}
		_, nested := n.(*ast.FuncLit)
		return !nested
	})
	inner.block(lit.Body.List, h)
}

func isUnlock(op string) bool { return op == "Unlock" || op == "RUnlock" }

// expressions reads the calls in a statement without others in it, or an expression, from the inside to the outside.
func (r *reading) expressions(n ast.Node, h held) held {
	var visit func(n ast.Node)
	visit = func(n ast.Node) {
		ast.Inspect(n, func(c ast.Node) bool {
			switch c := c.(type) {
			case *ast.FuncLit:
				return false
			case *ast.CallExpr:
				if c == n {
					return true
				}
				visit(c)
				return false
			}
			return true
		})
		if call, ok := n.(*ast.CallExpr); ok {
			h = r.callOf(call, h)
		}
	}
	visit(n)
	return h
}

// later are functions of other modules that call what they are given when their caller does not wait.
var later = []string{"Go", "AfterFunc", "AddCleanup", "OnceFunc", "WithContextDialer"}

func (r *reading) callOf(call *ast.CallExpr, h held) held {
	if lock, op := r.operation(call); lock != nil {
		switch {
		case isUnlock(op):
			if !slices.Contains(h.locks, lock) {
				r.complain(call.Pos(), "%s is released where it is not held", r.name(lock))
			}
			return h.without(lock)
		case op == "Lock" || op == "RLock":
			r.sites[r.of] = append(r.sites[r.of], site{held: h.locks, takes: lock, at: call.Pos()})
			return h.with(lock)
		}
		return h
	}
	if r.converts(call) {
		return h
	}
	targets := r.meant(call.Fun)
	for _, f := range targets {
		r.called([]any{f}, call.Pos(), h, func(parameter *types.Var) (given []any) {
			for p, argument := range r.arguments(call, f) {
				if p == parameter {
					given = append(given, r.meant(argument)...)
				}
			}
			return given
		})
		if of, ok := f.(*types.Func); ok && r.bodies[f] == nil && !slices.Contains(later, of.Name()) {
			for _, argument := range call.Args {
				if t := r.info.TypeOf(argument); t != nil && calls(t) {
					r.called(r.meant(argument), argument.Pos(), h, nil)
				}
			}
		}
	}
	return h
}

// called notes that functions are called.
func (r *reading) called(functions []any, at token.Pos, h held, given func(*types.Var) []any) {
	for _, f := range functions {
		r.sites[r.of] = append(r.sites[r.of], site{held: h.locks, calls: f, given: given, at: at})
	}
}

// operation returns the lock that a call is a method of, and which; nil if it is none.
func (l *locking) operation(call *ast.CallExpr) (*types.Var, string) {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return nil, ""
	}
	f, ok := l.info.Uses[sel.Sel].(*types.Func)
	if !ok || f.Pkg() == nil || f.Pkg().Path() != "sync" || f.Signature().Recv() == nil {
		return nil, ""
	}
	switch deref(f.Signature().Recv().Type()).String() {
	case "sync.Mutex", "sync.RWMutex":
	default:
		return nil, ""
	}
	if path := l.info.Selections[sel].Index(); len(path) > 1 { // it is embedded
		of := deref(l.info.TypeOf(sel.X))
		var field *types.Var
		for _, k := range path[:len(path)-1] {
			field = of.Underlying().(*types.Struct).Field(k)
			of = deref(field.Type())
		}
		return field.Origin(), f.Name()
	}
	return l.variable(sel.X), f.Name()
}

// name returns what a lock is called: package.type.field.
func (l *locking) name(lock *types.Var) string {
	if of := l.typeOf[lock]; of != "" {
		return of + "." + lock.Name()
	}
	return lock.Pkg().Name() + "." + lock.Name()
}

func (l *locking) position(at token.Pos) string {
	p := l.set.Position(at)
	dir, file := filepath.Split(p.Filename)
	return fmt.Sprintf("%s/%s:%d", filepath.Base(dir), file, p.Line)
}

func (l *locking) functionName(f any) string {
	switch f := f.(type) {
	case *types.Func:
		return strings.ReplaceAll(f.FullName(), module+"/", "")
	case *ast.FuncLit:
		return l.position(f.Pos())
	}
	return ""
}
