package rules

import (
	"go/ast"
	"go/token"
	"strings"
	"testing"
)

// RESOURCE_EXHAUSTED tells a caller to come back later. Only rpc.Exhausted makes it, which insists on a reason and on a
// time; everybody else may only compare with it.
func TestNobodyIsRefusedWithoutBeingToldWhenToComeBack(t *testing.T) {
	made, asked := 0, 0
	for _, p := range must(t, packages) {
		if strings.HasPrefix(p.Path, "test/") || strings.HasPrefix(p.Path, "internal/gen/") {
			continue
		}
		set, parsed := p.parse(t)
		for _, f := range parsed {
			compared := map[token.Pos]bool{}
			var within *ast.FuncDecl
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.FuncDecl:
					within = n
				case *ast.CaseClause:
					for _, e := range n.List {
						compared[e.Pos()] = true
					}
				case *ast.BinaryExpr:
					compared[n.X.Pos()], compared[n.Y.Pos()] = true, true
				case *ast.CallExpr:
					if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Exhausted" {
						asked++
					}
				case *ast.SelectorExpr:
					x, ok := n.X.(*ast.Ident)
					switch {
					case !ok || x.Name != "codes" || n.Sel.Name != "ResourceExhausted" || compared[n.Pos()]:
					case p.Path == "internal/rpc" && within != nil && within.Name.Name == "Exhausted":
						made++
					default:
						t.Errorf("%s: codes.ResourceExhausted: rpc.Exhausted is how to refuse a call", set.Position(n.Pos()))
					}
				}
				return true
			})
		}
	}
	if made != 1 || asked < 5 {
		t.Errorf("found %d places that make the code and %d that ask for it, want 1 and at least 5", made, asked)
	}
}
