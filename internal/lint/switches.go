package lint

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
)

// Switches finds each switch over a closed set that leaves a member out: a set is a named type of this module with at
// least two constants in the package of the type. A default does not stand for a member. Two names of one value are one
// member; an unexported constant is a member in the package of the type only. root is the folder of the module.
func (p *Package) Switches(root string) []Finding {
	var found []Finding
	for _, f := range p.Files {
		for _, d := range f.Decls {
			ast.Inspect(d, func(n ast.Node) bool {
				s, ok := n.(*ast.SwitchStmt)
				if !ok || s.Tag == nil {
					return true
				}
				if set, missing := p.missing(s); len(missing) > 0 {
					path := p.Fset.Position(s.Pos()).Filename
					if rel, err := filepath.Rel(root, path); err == nil {
						path = filepath.ToSlash(rel)
					}
					names := strings.Join(missing, ", ")
					found = append(found, Finding{
						Text:  fmt.Sprintf("%s %s: switch over %s without %s", path, Name(d), set, names),
						Where: fmt.Sprintf("%s:%d: add a case for %s", path, p.Line(s.Pos()), names),
					})
				}
				return true
			})
		}
	}
	return found
}

// missing is the name of the set that s switches over, and the members without a case.
func (p *Package) missing(s *ast.SwitchStmt) (set string, names []string) {
	named, ok := types.Unalias(p.Info.TypeOf(s.Tag)).(*types.Named)
	if !ok || named.Obj().Pkg() == nil || !strings.HasPrefix(named.Obj().Pkg().Path()+"/", Module) {
		return "", nil
	}
	members := membersOf(named, p.Types)
	if len(members) < 2 {
		return "", nil
	}
	covered := map[string]bool{}
	for _, clause := range s.Body.List {
		for _, e := range clause.(*ast.CaseClause).List {
			if v := p.Info.Types[e].Value; v != nil {
				covered[v.ExactString()] = true
			}
		}
	}
	for _, m := range members {
		if key := m.Val().ExactString(); !covered[key] {
			covered[key] = true
			names = append(names, m.Name())
		}
	}
	return named.Obj().Name(), names
}

// membersOf is the constants of the type that the package from can name, in the order of their values.
func membersOf(named *types.Named, from *types.Package) []*types.Const {
	of := named.Obj().Pkg()
	var members []*types.Const
	for _, name := range of.Scope().Names() {
		c, ok := of.Scope().Lookup(name).(*types.Const)
		if ok && types.Identical(c.Type(), named) && (c.Exported() || of == from) {
			members = append(members, c)
		}
	}
	slices.SortStableFunc(members, func(a, b *types.Const) int {
		if a.Val().Kind() == constant.Int && b.Val().Kind() == constant.Int {
			x, _ := constant.Int64Val(a.Val())
			y, _ := constant.Int64Val(b.Val())
			return int(x - y)
		}
		return strings.Compare(a.Val().ExactString(), b.Val().ExactString())
	})
	return members
}

// Name is the name of a function, with the type of its receiver if there is one; of other declarations, the keyword.
func Name(d ast.Decl) string {
	f, ok := d.(*ast.FuncDecl)
	if !ok {
		return d.(*ast.GenDecl).Tok.String()
	}
	if f.Recv == nil {
		return f.Name.Name
	}
	t := f.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	switch generic := t.(type) {
	case *ast.IndexExpr:
		t = generic.X
	case *ast.IndexListExpr:
		t = generic.X
	}
	return t.(*ast.Ident).Name + "." + f.Name.Name
}
