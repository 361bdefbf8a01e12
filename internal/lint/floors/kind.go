package main

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"fdbfifo/internal/lint"
)

// The questions about the kind of a queue, as layer asks them now. If you give a question another form, add the form:
// TestKindNames finds only a name that is gone.
var (
	// kindPackage is the package inside layer that knows the kind of a queue. Each of its functions and methods with a
	// bool as its only result is a question.
	kindPackage = "lanes"
	// kindAnswers are functions and methods of kindPackage that return a bool alone and are no questions, because they
	// say what must be done, in every kind of queue. An answer that is true for exactly the queues of a question is
	// that question, and must not stand here.
	kindAnswers = []string{
		"lanes.Plan.ClaimsItems", "lanes.Plan.DeliversAny", "lanes.Plan.Intersect", "lanes.Plan.JoinsAnywhere",
		"lanes.Plan.KeepsHints", "lanes.Plan.MeetsHolds", "lanes.Plan.NeedsHint",
	}
	// kindFunctions, of layer or of other packages inside it, ask for the kind of the queue, or of a lane or a holding
	// that only some queues have.
	kindFunctions = []string{"rec.Holding.ByBeat"}
	// kindFlags are fields of type bool that say what a queue is.
	kindFlags = []string{"retro.on", "Config.Unordered", "Config.RetroactiveDelay", "Config.Fair"}
	// kindValues are other fields that say it, and methods. One is asked by a comparison, and by its length.
	kindValues = []string{"Config.Facets", "Config.LeasePerItem", "lanes.Plan.Facets"}
)

// kindQuestions lists the places in the code that ask which kind of queue this is. A queue is plain or with facets,
// with unordered receives, with a lease for each item, fair, or with retroactive delay. A place may also ask whether a
// lane or a holding is of a sort that only some kinds have. A place is
//
//   - a mention of a function or method of kindPackage that returns a bool alone, except kindAnswers;
//   - an assignment from a call of one that returns more and a bool, if it drops everything except the bool;
//   - a mention of one of kindFunctions, as a rule a call;
//   - a read of one of kindFlags, unless the value is only copied to a field of a literal;
//   - a comparison of one of kindValues with anything, or the length of one.
//
// Two questions in one condition are two places. These are not counted:
//
// - the code of kindPackage, and of the functions that answer the questions (kindFunctions);
//
// - the files of the floor of the settings, which say which settings may be combined;
//
// - the question whether one receive has a template or is unordered, which that receive chooses.
func kindQuestions(p *lint.Package, settings []string) []token.Pos {
	k := &kinds{p: p, owners: fieldOwners(p.Types)}
	var places []token.Pos
	for _, f := range p.Files {
		if slices.Contains(settings, p.File(f.Pos())) {
			continue
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && k.isHome(fn) {
				continue
			}
			ast.Inspect(d, func(n ast.Node) bool {
				if at := k.asks(n); at.IsValid() {
					places = append(places, at)
				}
				return true
			})
		}
	}
	return places
}

// kinds finds the questions of a package.
type kinds struct {
	p      *lint.Package
	owners map[types.Object]string
}

// isHome reports whether a function is one of the questions itself.
func (k *kinds) isHome(fn *ast.FuncDecl) bool { return slices.Contains(kindFunctions, k.name(fn.Name)) }

// isQuestion reports whether an identifier names a function or method that is a question.
func (k *kinds) isQuestion(ident *ast.Ident) bool {
	name := k.name(ident)
	if slices.Contains(kindFunctions, name) {
		return true
	}
	return !slices.Contains(kindAnswers, name) && k.resultsUpToBool(ident) == 1
}

// resultsUpToBool returns how many results a function or method of kindPackage has, if the last is a bool; otherwise 0.
func (k *kinds) resultsUpToBool(ident *ast.Ident) int {
	f, ok := k.p.Info.Uses[ident].(*types.Func)
	if !ok || !strings.HasPrefix(k.name(ident), kindPackage+".") {
		return 0
	}
	results := f.Signature().Results()
	if n := results.Len(); n > 0 && types.Identical(results.At(n-1).Type(), types.Typ[types.Bool]) {
		return n
	}
	return 0
}

// dropsAnswer reports whether an assignment keeps nothing except the bool of a function of kindPackage.
func (k *kinds) dropsAnswer(n *ast.AssignStmt) bool {
	call, ok := ast.Unparen(n.Rhs[0]).(*ast.CallExpr)
	if !ok || len(n.Lhs) < 2 {
		return false
	}
	s, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr)
	return ok && k.resultsUpToBool(s.Sel) == len(n.Lhs) &&
		!slices.ContainsFunc(n.Lhs[:len(n.Lhs)-1], func(e ast.Expr) bool { return !isBlank(e) })
}

func isBlank(e ast.Expr) bool {
	ident, ok := e.(*ast.Ident)
	return ok && ident.Name == "_"
}

// name returns the definition that an identifier names, as Type.field, Type.method or function; "" = a definition of
// another package. The name of a function or method of a package inside this one begins with that package.
func (k *kinds) name(ident *ast.Ident) string {
	object := k.p.Info.ObjectOf(ident)
	if object == nil {
		return ""
	}
	object = origin(object)
	of := object.Pkg()
	switch {
	case isDefinition(object, k.p.Types):
		return nameOf(object, k.owners)
	case of != nil && strings.HasPrefix(of.Path(), k.p.Types.Path()+"/internal/") && isDefinition(object, of):
		return of.Name() + "." + nameOf(object, nil)
	}
	return ""
}

// asks returns where n asks, if n is a question.
func (k *kinds) asks(n ast.Node) (at token.Pos) {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		if compares(n.Op) && (k.isValue(n.X) || k.isValue(n.Y)) {
			return n.OpPos
		}
	case *ast.AssignStmt:
		if k.dropsAnswer(n) {
			return n.TokPos
		}
	case *ast.CallExpr:
		if len(n.Args) == 1 && k.isBuiltin(n.Fun, "len") && k.isValue(n.Args[0]) {
			return n.Pos()
		}
	case *ast.Ident:
		if k.p.Info.Uses[n] == nil {
			return token.NoPos
		}
		if k.isQuestion(n) || slices.Contains(kindFlags, k.name(n)) && !k.copied(n) {
			return n.Pos()
		}
	}
	return token.NoPos
}

func compares(op token.Token) bool { return op == token.EQL || op == token.NEQ }

// copied reports whether a flag is the name or the value of a literal's field, or is written.
func (k *kinds) copied(flag *ast.Ident) bool {
	found := false
	for _, f := range k.p.Files {
		if f.FileStart > flag.Pos() || flag.Pos() >= f.FileEnd {
			continue
		}
		is := func(e ast.Expr) bool {
			if s, ok := ast.Unparen(e).(*ast.SelectorExpr); ok {
				return s.Sel == flag
			}
			return e == flag
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.KeyValueExpr:
				found = found || is(n.Key) || is(n.Value)
			case *ast.AssignStmt:
				found = found || slices.ContainsFunc(n.Lhs, is)
			case *ast.UnaryExpr:
				found = found || n.Op == token.AND && is(n.X)
			}
			return !found
		})
	}
	return found
}

func (k *kinds) isValue(e ast.Expr) bool {
	e = ast.Unparen(e)
	if call, ok := e.(*ast.CallExpr); ok {
		e = ast.Unparen(call.Fun)
	}
	s, ok := e.(*ast.SelectorExpr)
	return ok && slices.Contains(kindValues, k.name(s.Sel))
}

func (k *kinds) isBuiltin(e ast.Expr, name string) bool {
	ident, ok := e.(*ast.Ident)
	return ok && ident.Name == name && k.p.Info.Types[e].IsBuiltin()
}
