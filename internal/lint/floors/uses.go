package main

import (
	"cmp"
	"fmt"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"fdbfifo/internal/lint"
)

// definition is a package-level name, a method or a field that a file uses.
type definition struct {
	name  string
	at    token.Pos
	first token.Pos // where the file mentions the definition first
	count int
}

// use is an ordered pair of files: from mentions what stands in to.
type use struct {
	from, to    string
	definitions []*definition // the most mentioned first
}

// usesOf lists the pairs of files, sorted.
func usesOf(p *lint.Package) []use {
	type pair struct{ from, to string }
	pairs := map[pair]map[types.Object]*definition{}
	owners := fieldOwners(p.Types)
	for ident, object := range p.Info.Uses {
		object = origin(object)
		if !isDefinition(object, p.Types) {
			continue
		}
		k := pair{p.File(ident.Pos()), p.File(object.Pos())}
		if k.from == k.to {
			continue
		}
		if pairs[k] == nil {
			pairs[k] = map[types.Object]*definition{}
		}
		d := pairs[k][object]
		if d == nil {
			d = &definition{name: nameOf(object, owners), at: object.Pos(), first: ident.Pos()}
			pairs[k][object] = d
		}
		d.first = min(d.first, ident.Pos())
		d.count++
	}
	var all []use
	for k, objects := range pairs {
		u := use{from: k.from, to: k.to}
		for _, d := range objects {
			u.definitions = append(u.definitions, d)
		}
		slices.SortFunc(u.definitions, func(a, b *definition) int {
			return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.first, b.first))
		})
		all = append(all, u)
	}
	slices.SortFunc(all, func(a, b use) int { return strings.Compare(a.String(), b.String()) })
	return all
}

func (u use) String() string { return u.from + " -> " + u.to }

// details is up to three of the definitions used, a line each.
func (u use) details(p *lint.Package) []string {
	var lines []string
	for _, d := range u.definitions[:min(3, len(u.definitions))] {
		times := ""
		if d.count > 1 {
			times = fmt.Sprintf(", %d times", d.count)
		}
		lines = append(lines, fmt.Sprintf("%s: %s (%s)%s", p.Place(d.first), d.name, p.Place(d.at), times))
	}
	if more := len(u.definitions) - len(lines); more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return lines
}

// upwards is the uses that run from a lower floor to a higher one.
func upwards(uses []use, heights map[string]int) []use {
	return slices.DeleteFunc(slices.Clone(uses), func(u use) bool { return heights[u.from] >= heights[u.to] })
}

// origin is the declared object behind one of an instantiated type or function.
func origin(object types.Object) types.Object {
	switch o := object.(type) {
	case *types.Var:
		return o.Origin()
	case *types.Func:
		return o.Origin()
	}
	return object
}

func isDefinition(object types.Object, in *types.Package) bool {
	if object.Pkg() != in {
		return false
	}
	switch o := object.(type) {
	case *types.Var:
		return o.IsField() || o.Parent() == in.Scope()
	case *types.Func:
		return true
	}
	return object.Parent() == in.Scope()
}

// fieldOwners names the type of each field of a package-level struct.
func fieldOwners(p *types.Package) map[types.Object]string {
	owners := map[types.Object]string{}
	for _, name := range p.Scope().Names() {
		object, ok := p.Scope().Lookup(name).(*types.TypeName)
		if !ok {
			continue
		}
		if s, ok := object.Type().Underlying().(*types.Struct); ok {
			for field := range s.Fields() {
				owners[field] = name
			}
		}
	}
	return owners
}

func nameOf(object types.Object, owners map[types.Object]string) string {
	if owner := owners[object]; owner != "" {
		return owner + "." + object.Name()
	}
	f, ok := object.(*types.Func)
	if !ok || f.Signature().Recv() == nil {
		return object.Name()
	}
	t := f.Signature().Recv().Type()
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	if named, ok := t.(*types.Named); ok {
		return named.Obj().Name() + "." + object.Name()
	}
	return object.Name()
}
