package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// modulePath is the path of the module in dir.
func modulePath(dir string) (string, error) {
	data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return "", err
	}
	m := regexp.MustCompile(`(?m)^module (\S+)$`).FindSubmatch(data)
	if m == nil {
		return "", fmt.Errorf("%s/go.mod names no module", dir)
	}
	return string(m[1]), nil
}

// checkModulePath refuses a path that the go command would not take, or that would need more than a new name.
func checkModulePath(module string) error {
	first, _, _ := strings.Cut(module, "/")
	for _, element := range strings.Split(module, "/") {
		if !regexp.MustCompile(`^[A-Za-z0-9_~-]([A-Za-z0-9_.~-]*[A-Za-z0-9_~-])?$`).MatchString(element) {
			return fmt.Errorf("%q is no module path: element %q", module, element)
		}
	}
	switch {
	case !fetchable(module) || regexp.MustCompile(`[^a-z0-9.-]`).MatchString(first) || first[0] == '-':
		return fmt.Errorf("%q is no path to fetch: it has to begin with a host's name, as in example.com/%[1]s", module)
	case regexp.MustCompile(`^v[0-9]+$`).MatchString(path.Base(module)):
		return fmt.Errorf("%q ends in a major version: a release of that version has to come first", module)
	}
	return nil
}

// fetchable reports whether the go command can fetch a module of that path: the first element is a host's name.
func fetchable(module string) bool {
	first, _, _ := strings.Cut(module, "/")
	return strings.Contains(first, ".")
}

// rename gives the tree another module path: both modules and the tools' one, their requirements, every import, and
// where a text names a package. The command, the folders and the data of queues keep their names. It returns how many
// files have changed.
func rename(ctx context.Context, root, module string) (changed int, err error) {
	if err := checkModulePath(module); err != nil {
		return 0, err
	}
	return renameTo(ctx, root, module)
}

func renameTo(ctx context.Context, root, module string) (changed int, err error) {
	old, err := modulePath(root)
	if err != nil {
		return 0, err
	}
	if old == module {
		return 0, nil
	}
	all, err := files(root)
	if err != nil {
		return 0, err
	}
	n := newNames(old, all)
	if n.pattern.MatchString(`"` + module + `/"`) {
		return 0, fmt.Errorf("%q would be a package of %s: choose another name", module, old)
	}
	for _, name := range all {
		file := filepath.Join(root, name)
		data, ok, err := text(file)
		if err != nil {
			return changed, err
		}
		if !ok {
			continue
		}
		before := string(data)
		after := n.replace(before, module)
		if path.Base(name) == "go.mod" {
			after = moduleLines(after, old, module)
		}
		if after == before {
			continue
		}
		info, err := os.Stat(file)
		if err != nil {
			return changed, err
		}
		if err := os.WriteFile(file, []byte(after), info.Mode()); err != nil {
			return changed, err
		}
		changed++
		if path.Base(name) == "go.mod" {
			// Requirements are in the order of their paths.
			if _, err := goCommand(ctx, filepath.Dir(file), nil, "mod", "edit", "-fmt"); err != nil {
				return changed, err
			}
		}
	}
	return changed, errors.Join(n.left(root, all)...)
}

// moduleLines renames in the lines of a go.mod: module, require, replace.
func moduleLines(text, old, module string) string {
	line := regexp.MustCompile(`(?m)^(module |require |replace |\t)` + regexp.QuoteMeta(old) + `(/\S+)?( |$)`)
	return line.ReplaceAllString(text, "${1}"+strings.ReplaceAll(module, "$", "$$")+"${2}${3}")
}

// names finds a module path in texts. It finds the path in the name of a package, as in fdbfifo/layer. It finds the
// path in quotes with a slash at its end ("fdbfifo/"), as in a program that looks at import paths. It also finds the
// path after flags of tools: -local of goimports, and -require and -replace of go mod edit.
type names struct {
	old     string
	pattern *regexp.Regexp
}

// newNames looks for a module path with a folder of the tree behind it: the path may be an ordinary word, too, such as
// the name of the command.
func newNames(old string, files []string) *names {
	var folders []string
	for _, file := range files {
		if folder, _, ok := strings.Cut(file, "/"); ok && folder[0] != '.' {
			folders = append(folders, regexp.QuoteMeta(folder))
		}
	}
	slices.Sort(folders)
	quoted := regexp.QuoteMeta(old)
	return &names{old: old, pattern: regexp.MustCompile(
		`(-local[ =]|-require=|-replace=)` + quoted + `()\b` + `|` +
			`(^|[^\w./~-])` + quoted + `(/(?:` + strings.Join(slices.Compact(folders), "|") + `)\b|/")`)}
}

// replace names another module instead.
func (n *names) replace(text, module string) string {
	// A match takes the character before the path, so that the next path may begin right behind one only the next time.
	for range 2 {
		text = n.pattern.ReplaceAllStringFunc(text, func(match string) string {
			return strings.Replace(match, n.old, module, 1)
		})
	}
	return text
}

// left is an error for each file that still names the old path.
func (n *names) left(root string, files []string) (all []error) {
	for _, name := range files {
		data, ok, err := text(filepath.Join(root, name))
		if err != nil {
			all = append(all, err)
			continue
		}
		if found := n.pattern.Find(data); ok && found != nil {
			all = append(all, fmt.Errorf("%s still names %q", name, strings.TrimSpace(string(found))))
		}
	}
	return all
}
