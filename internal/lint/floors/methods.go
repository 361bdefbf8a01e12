package main

import (
	"go/ast"
	"go/token"
	"go/types"

	"fdbfifo/internal/lint"
)

// methodsAbove lists the methods that stand on a higher floor than the type on which they hang. The upward pairs do not
// show them: the type's file does not mention the method, and still the type cannot be understood, or moved, alone.
func methodsAbove(p *lint.Package, heights map[string]int) []token.Pos {
	var places []token.Pos
	for _, f := range p.Files {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv == nil {
				continue
			}
			of := receiver(p, fn)
			if of != nil && heights[p.File(of.Pos())] < heights[p.File(fn.Pos())] {
				places = append(places, fn.Name.Pos())
			}
		}
	}
	return places
}

// receiver returns the type on which a method hangs.
func receiver(p *lint.Package, fn *ast.FuncDecl) *types.TypeName {
	method, ok := p.Info.Defs[fn.Name].(*types.Func)
	if !ok {
		return nil
	}
	t := method.Signature().Recv().Type()
	if pointer, ok := t.(*types.Pointer); ok {
		t = pointer.Elem()
	}
	named, ok := t.(*types.Named)
	if !ok {
		return nil
	}
	return named.Obj()
}

// exported counts the exported identifiers of a package: constants, variables, functions and types, and the exported
// methods of the types. Fields count with their struct.
func exported(p *types.Package) (n int) {
	for _, name := range p.Scope().Names() {
		object := p.Scope().Lookup(name)
		if !object.Exported() {
			continue
		}
		n++
		if t, ok := object.Type().(*types.Named); ok && t.Obj() == object {
			for method := range t.Methods() {
				if method.Exported() {
					n++
				}
			}
		}
	}
	return n
}
