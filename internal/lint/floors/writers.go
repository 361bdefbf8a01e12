package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"

	"fdbfifo/internal/lint"
)

const kvPath = lint.Module + "kv"

// writes is the methods of kv.Tx that write, and the argument of each that says where.
var writes = map[string]int{"Set": 0, "Clear": 0, "ClearRange": 0, "Atomic": 1}

// inFunc is a field as one function sees the field.
type inFunc struct {
	fn    *ast.FuncDecl
	field types.Object
}

// trace follows the keys of one row of the key table from where they are made.
type trace struct {
	p      *lint.Package
	name   string
	makers map[types.Object]bool // the method of the key table, and functions that return what that makes
	vars   map[types.Object]bool // variables and parameters that hold such a key
	fields map[inFunc]bool
	grown  bool
}

// keyWriters lists the places that write a key made by the key table's method of that name. The method is known by its
// result, []byte. A key is followed through variables; through a field within a function; into a parameter that all
// callers give such a key, or that is named for one (lockKey); out of a function that returns one; and into a range.
func keyWriters(p *lint.Package, name string) ([]token.Pos, error) {
	t := &trace{p: p, name: name, makers: map[types.Object]bool{}, vars: map[types.Object]bool{}, fields: map[inFunc]bool{}}
	for _, object := range p.Info.Defs {
		switch o := object.(type) {
		case *types.Func:
			if s := o.Signature(); o.Name() == name && s.Recv() != nil && s.Results().Len() == 1 && isBytes(s.Results().At(0)) {
				t.makers[o] = true
			}
		case *types.Var:
			if o.Name() == name+"Key" && !o.IsField() && isBytes(o) {
				t.vars[o] = true
			}
		}
	}
	if len(t.makers) == 0 {
		return nil, fmt.Errorf("no key table: no method %s returns []byte", name)
	}
	for t.grown = true; t.grown; {
		t.grown = false
		t.eachFunc(t.assignments)
		t.parameters()
	}
	var places []token.Pos
	t.eachFunc(func(fn *ast.FuncDecl) {
		ast.Inspect(fn, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && t.isWrite(fn, call) {
				places = append(places, call.Pos())
			}
			return true
		})
	})
	return places, nil
}

func isBytes(v *types.Var) bool {
	return types.Identical(v.Type(), types.NewSlice(types.Typ[types.Byte]))
}

func (t *trace) eachFunc(do func(fn *ast.FuncDecl)) {
	for _, f := range t.p.Files {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				do(fn)
			}
		}
	}
}

func (t *trace) isWrite(fn *ast.FuncDecl, call *ast.CallExpr) bool {
	callee := t.callee(call)
	if callee == nil || callee.Pkg() == nil || callee.Pkg().Path() != kvPath {
		return false
	}
	argument, ok := writes[callee.Name()]
	return ok && callee.Signature().Recv() != nil && t.carries(fn, call.Args[argument])
}

// callee is the function or method that is called, or nil if that is known only when it runs.
func (t *trace) callee(call *ast.CallExpr) *types.Func {
	var ident *ast.Ident
	switch f := ast.Unparen(call.Fun).(type) {
	case *ast.Ident:
		ident = f
	case *ast.SelectorExpr:
		ident = f.Sel
	default:
		return nil
	}
	f, ok := t.p.Info.Uses[ident].(*types.Func)
	if !ok {
		return nil
	}
	return f.Origin()
}

// carries reports whether e is such a key, or a range with one for an end.
func (t *trace) carries(fn *ast.FuncDecl, e ast.Expr) bool {
	carries := func(e ast.Expr) bool { return t.carries(fn, e) }
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		return t.vars[t.p.Info.ObjectOf(e)]
	case *ast.SelectorExpr:
		return t.fields[inFunc{fn, t.p.Info.ObjectOf(e.Sel)}]
	case *ast.KeyValueExpr:
		return t.carries(fn, e.Value)
	case *ast.CompositeLit:
		return slices.ContainsFunc(e.Elts, carries)
	case *ast.CallExpr:
		callee := t.callee(e)
		if callee == nil {
			return false
		}
		ofKV := callee.Pkg() != nil && callee.Pkg().Path() == kvPath && callee.Signature().Recv() == nil
		return t.makers[callee] || ofKV && slices.ContainsFunc(e.Args, carries)
	}
	return false
}

// assignments marks what a function assigns such a key to, and the function itself if the key is its first result.
func (t *trace) assignments(fn *ast.FuncDecl) {
	var end token.Pos // of the function literals so far, whose results are not those of fn
	ast.Inspect(fn, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			end = max(end, n.End())
		case *ast.AssignStmt:
			t.assign(fn, n.Lhs, n.Rhs)
		case *ast.ValueSpec:
			var names []ast.Expr
			for _, name := range n.Names {
				names = append(names, name)
			}
			t.assign(fn, names, n.Values)
		case *ast.ReturnStmt:
			if n.Pos() >= end && len(n.Results) > 0 && t.carries(fn, n.Results[0]) {
				t.mark(t.makers, t.p.Info.Defs[fn.Name])
			}
		}
		return true
	})
}

func (t *trace) assign(fn *ast.FuncDecl, to, from []ast.Expr) {
	if len(to) != len(from) {
		return
	}
	for i := range to {
		if !t.carries(fn, from[i]) {
			continue
		}
		switch v := ast.Unparen(to[i]).(type) {
		case *ast.Ident:
			if v.Name != "_" {
				t.mark(t.vars, t.p.Info.ObjectOf(v))
			}
		case *ast.SelectorExpr:
			if k := (inFunc{fn, t.p.Info.ObjectOf(v.Sel)}); !t.fields[k] {
				t.fields[k], t.grown = true, true
			}
		}
	}
}

func (t *trace) mark(in map[types.Object]bool, object types.Object) {
	if !in[object] {
		in[object], t.grown = true, true
	}
}

// parameters marks those that every call gives such a key.
func (t *trace) parameters() {
	always := map[types.Object]bool{}
	t.eachFunc(func(fn *ast.FuncDecl) {
		ast.Inspect(fn, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			callee := t.callee(call)
			if callee == nil || callee.Pkg() != t.p.Types || callee.Signature().Variadic() {
				return true
			}
			params := callee.Signature().Params()
			for i := range min(len(call.Args), params.Len()) {
				given := t.carries(fn, call.Args[i])
				if before, seen := always[params.At(i)]; seen {
					given = given && before
				}
				always[params.At(i)] = given
			}
			return true
		})
	})
	for param, is := range always {
		if is {
			t.mark(t.vars, param)
		}
	}
}
