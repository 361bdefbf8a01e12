package main

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"os"
	"reflect"
	"slices"
	"strings"

	"fdbfifo/internal/lint"
)

// figures is what the tool prints.
type figures struct {
	Files         int `json:"files"`
	Lines         int `json:"lines"`
	Uses          int `json:"uses"`           // pairs of files of which the first uses the second
	FolderEntries int `json:"folder_entries"` // files and folders, tests too
	UpwardPairs   int `json:"upward_pairs"`   // see upwards
	LargestCycle  int `json:"largest_cycle"`  // files, see largestCycle
	MethodsAbove  int `json:"methods_above_floor"`
	KindQuestions int `json:"kind_questions"`
	LockWriters   int `json:"lock_writers"`
	TimerWriters  int `json:"timer_writers"`
	QueueMethods  int `json:"queue_methods"`
	Exported      int `json:"exported_identifiers"`
	LongestFunc   int `json:"longest_function"` // lines, from func to the closing brace
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
	cycle     []string
	above     []token.Pos // methods
	kinds     []token.Pos // questions about the kind of the queue
	functions []function  // the longest first
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
	s.cycle, s.above = largestCycle(s.uses), methodsAbove(s.p, s.heights)
	s.kinds = kindQuestions(s.p, filesOn(table, settingsFloor))
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	s.figures = figures{
		Files: len(names), Lines: lines, Uses: len(s.uses), FolderEntries: len(entries),
		UpwardPairs: len(s.upward), LargestCycle: len(s.cycle), MethodsAbove: len(s.above), KindQuestions: len(s.kinds),
		LockWriters: len(s.locks), TimerWriters: len(s.timers), QueueMethods: methods, Exported: exported(s.p.Types),
		LongestFunc: s.functions[0].lines,
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
	var b strings.Builder
	for _, l := range f.lines() {
		fmt.Fprintf(&b, "%s %v\n", l.name, l.value)
	}
	return b.String()
}

// figure is one of the figures, by the name that it has in JSON.
type figure struct {
	name  string
	value float64
}

// lines returns the figures in their order.
func (f figures) lines() (all []figure) {
	v := reflect.ValueOf(f)
	for i := range v.NumField() {
		value := v.Field(i).Convert(reflect.TypeFor[float64]()).Float()
		all = append(all, figure{v.Type().Field(i).Tag.Get("json"), value})
	}
	return all
}
