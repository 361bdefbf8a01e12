package main

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"math"
	"slices"

	"fdbfifo/internal/lint"
)

// figures is what the tool prints.
type figures struct {
	Files           int     `json:"files"`
	Lines           int     `json:"lines"`
	Uses            int     `json:"uses"`
	Upward          int     `json:"upward"`
	LockWriters     int     `json:"lock_writers"`
	TimerWriters    int     `json:"timer_writers"`
	QueueMethods    int     `json:"queue_methods"`
	LongestFunction int     `json:"longest_function"`
	Pronouns        float64 `json:"comment_pronouns_per_1000"` // with one decimal
}

// function is a declared function or method and how many lines it takes, from func to its closing brace.
type function struct {
	name  string
	at    token.Pos
	lines int
}

// survey is what is known of a package.
type survey struct {
	p         *lint.Package
	heights   map[string]int
	uses      []use
	upward    []use
	locks     []token.Pos
	timers    []token.Pos
	functions []function // the longest first
	comments  []prose
	figures   figures
}

// look surveys the package in dir.
func look(dir string, table []floor) (*survey, error) {
	all, err := lint.Load(dir, ".")
	if err != nil {
		return nil, err
	}
	if len(all) != 1 {
		return nil, errors.New("no package in " + dir)
	}
	s := &survey{p: all[0]}
	var names []string
	lines := 0
	for _, f := range filesOf(s.p) {
		names = append(names, s.p.File(f.Pos()))
		lines += s.p.Fset.File(f.Pos()).LineCount()
	}
	if s.heights, err = floorsOf(table, names); err != nil {
		return nil, err
	}
	if s.locks, err = keyWriters(s.p, "lock"); err != nil {
		return nil, err
	}
	if s.timers, err = keyWriters(s.p, "timer"); err != nil {
		return nil, err
	}
	methods, err := queueMethods(s.p.Types)
	if err != nil {
		return nil, err
	}
	s.uses, s.functions = usesOf(s.p), functionsOf(s.p)
	s.upward = upwards(s.uses, s.heights)
	comments, total := commentsOf(s.p)
	s.comments = comments
	s.figures = figures{
		Files: len(names), Lines: lines, Uses: len(s.uses), Upward: len(s.upward),
		LockWriters: len(s.locks), TimerWriters: len(s.timers), QueueMethods: methods,
		LongestFunction: s.functions[0].lines, Pronouns: math.Round(10*total.rate()) / 10,
	}
	return s, nil
}

// filesOf is the files of every build.
func filesOf(p *lint.Package) []*ast.File { return slices.Concat(p.Files, p.Other) }

// queueMethods counts the exported methods of *Queue, those of embedded fields too.
func queueMethods(p *types.Package) (int, error) {
	queue, ok := p.Scope().Lookup("Queue").(*types.TypeName)
	if !ok {
		return 0, errors.New("no type Queue")
	}
	n := 0
	for method := range types.NewMethodSet(types.NewPointer(queue.Type())).Methods() {
		if method.Obj().Exported() {
			n++
		}
	}
	return n, nil
}

// functionsOf lists the functions of every build, the longest first.
func functionsOf(p *lint.Package) []function {
	var all []function
	for _, f := range filesOf(p) {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				all = append(all, function{lint.Name(fn), fn.Type.Func, p.Line(fn.End()) - p.Line(fn.Type.Func) + 1})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b function) int { return cmp.Compare(b.lines, a.lines) })
	return all
}

func (f figures) String() string {
	return fmt.Sprintf("files %d\nlines %d\nuses %d\nupward %d\nlock_writers %d\ntimer_writers %d\nqueue_methods %d\n"+
		"longest_function %d\ncomment_pronouns_per_1000 %.1f\n", f.Files, f.Lines, f.Uses, f.Upward, f.LockWriters,
		f.TimerWriters, f.QueueMethods, f.LongestFunction, f.Pronouns)
}
