package lint

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
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Module is what the import paths of this module begin with.
const Module = "fdbfifo/"

// Package is a package with its types. The tests of the package are no part of it.
type Package struct {
	Dir   string
	Path  string
	Fset  *token.FileSet
	Files []*ast.File // of the default build
	Other []*ast.File // of other builds: parsed, without types
	Types *types.Package
	Info  *types.Info
}

// listed is what go list says of a package.
type listed struct {
	Dir, ImportPath, Export string
	GoFiles, IgnoredGoFiles []string
	DepOnly                 bool
}

// Load type-checks the packages that the pattern names, as go list understands the pattern in the folder dir.
// Imports come from the export data of the build cache.
func Load(dir, pattern string) ([]*Package, error) {
	cmd := exec.Command("go", "list", "-export", "-deps",
		"-json=Dir,ImportPath,Export,GoFiles,IgnoredGoFiles,DepOnly", pattern)
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s in %s: %w: %s", pattern, dir, err, &stderr)
	}
	var named []listed
	exports := map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var l listed
		if err := d.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list %s: %w", pattern, err)
		}
		exports[l.ImportPath] = l.Export
		if !l.DepOnly {
			named = append(named, l)
		}
	}
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc",
		func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	var all []*Package
	for _, l := range named {
		p, err := l.load(fset, imports)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

func (l *listed) load(fset *token.FileSet, imports types.Importer) (*Package, error) {
	// For go test, which keeps a result until something changes that the test has opened: a new file is in the folder.
	if _, err := os.ReadDir(l.Dir); err != nil {
		return nil, err
	}
	files, err := parse(fset, l.Dir, l.GoFiles)
	if err != nil {
		return nil, err
	}
	other := slices.DeleteFunc(slices.Clone(l.IgnoredGoFiles), func(name string) bool {
		return strings.HasSuffix(name, "_test.go")
	})
	p, err := check(fset, imports, l.ImportPath, files)
	if err != nil {
		return nil, err
	}
	p.Dir = l.Dir
	p.Other, err = parse(fset, l.Dir, other)
	return p, err
}

func parse(fset *token.FileSet, dir string, names []string) ([]*ast.File, error) {
	var files []*ast.File
	for _, name := range names {
		f, err := parser.ParseFile(fset, filepath.Join(dir, name), nil,
			parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

func check(fset *token.FileSet, imports types.Importer, path string, files []*ast.File) (*Package, error) {
	p := &Package{Path: path, Fset: fset, Files: files, Info: &types.Info{
		Types:      map[ast.Expr]types.TypeAndValue{},
		Defs:       map[*ast.Ident]types.Object{},
		Uses:       map[*ast.Ident]types.Object{},
		Selections: map[*ast.SelectorExpr]*types.Selection{},
	}}
	var err error
	p.Types, err = (&types.Config{Importer: imports}).Check(path, fset, files, p.Info)
	return p, err
}

// File is the base name of the file that holds pos.
func (p *Package) File(pos token.Pos) string { return filepath.Base(p.Fset.Position(pos).Filename) }

// Line is the line of pos.
func (p *Package) Line(pos token.Pos) int { return p.Fset.Position(pos).Line }

// Place is file:line of pos, the file by its base name.
func (p *Package) Place(pos token.Pos) string { return fmt.Sprintf("%s:%d", p.File(pos), p.Line(pos)) }
