package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// pkg is what "go list -json" says of a package; a package's tests are packages of their own.
type pkg struct {
	ImportPath string
	Dir        string
	Standard   bool
	DepOnly    bool
	GoFiles    []string
	CgoFiles   []string
	ImportMap  map[string]string
	Error      *struct{ Err string }
}

// check type-checks the packages of the module in dir, tests included, and returns the type errors found. Text of a
// file may be replaced through overlay, by absolute path.
func check(dir string, overlay map[string]string) ([]error, error) {
	listed, err := list(dir)
	if err != nil {
		return nil, err
	}
	c := &checker{fset: token.NewFileSet(), overlay: overlay, done: map[string]*types.Package{"unsafe": types.Unsafe}}
	// Dependencies come before their dependants.
	for _, p := range listed {
		if p.ImportPath == "unsafe" || p.generated() {
			continue
		}
		if err := c.pkg(p); err != nil {
			return nil, err
		}
	}
	return c.errs, nil
}

// list asks the go command for the module's packages and all they import. It wants to know of cgo's files, which it
// lists without a C compiler.
func list(dir string) ([]*pkg, error) {
	cmd := exec.Command("go", "list", "-deps", "-test", "-json=ImportPath,Dir,Standard,DepOnly,GoFiles,CgoFiles,ImportMap,Error", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, stderr.Bytes())
	}
	var packages []*pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		p := &pkg{}
		switch err := d.Decode(p); {
		case errors.Is(err, io.EOF):
			return packages, nil
		case err != nil:
			return nil, fmt.Errorf("go list: %w", err)
		case p.Error != nil:
			return nil, fmt.Errorf("go list: %s: %s", p.ImportPath, p.Error.Err)
		}
		packages = append(packages, p)
	}
}

// generated reports whether p is the main package that "go test" writes for a test.
func (p *pkg) generated() bool { return filepath.Ext(p.ImportPath) == ".test" }

// checker type-checks packages in the order of their imports.
type checker struct {
	fset    *token.FileSet
	overlay map[string]string
	done    map[string]*types.Package
	errs    []error
}

func (c *checker) pkg(p *pkg) error {
	var files []*ast.File
	for _, name := range append(p.GoFiles, p.CgoFiles...) {
		if !filepath.IsAbs(name) {
			name = filepath.Join(p.Dir, name)
		}
		var text any // nil: parser reads the file
		if t, ok := c.overlay[name]; ok {
			text = t
		}
		file, err := parser.ParseFile(c.fset, name, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, file)
	}
	config := types.Config{
		Importer: importer{c, p.ImportMap},
		Sizes:    types.SizesFor("gc", runtime.GOARCH),
		// In a file that imports "C", every use of it is taken on trust.
		FakeImportC: true,
		// Of dependencies only the declarations matter.
		IgnoreFuncBodies: p.DepOnly,
		Error: func(err error) {
			if !p.Standard {
				c.errs = append(c.errs, err)
			}
		},
	}
	// The error is the first of those that config.Error has collected.
	checked, _ := config.Check(p.ImportPath, c.fset, files, nil)
	c.done[p.ImportPath] = checked
	return nil
}

// importer finds the imports of one package among those checked before it.
type importer struct {
	*checker
	names map[string]string // vendored packages, and variants of packages built for a test
}

func (i importer) Import(path string) (*types.Package, error) {
	if actual, ok := i.names[path]; ok {
		path = actual
	}
	if p := i.done[path]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("package %s is not among the dependencies listed", path)
}
