package main

import (
	"archive/zip"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"
)

// release is a version of a module, in a folder.
type release struct {
	module, version string
	dir             string // with its go.mod
	license         string // a file to put in as LICENSE if the folder has none
}

// publish adds the release to the proxy in a folder: what GOPROXY=file://FOLDER serves. See "go help goproxy"; the
// layout of a zip is in the reference of Go modules.
func (r release) publish(proxy string) error {
	versions := filepath.Join(proxy, escape(r.module), "@v")
	if err := os.MkdirAll(versions, 0o755); err != nil {
		return err
	}
	mod, err := os.ReadFile(filepath.Join(r.dir, "go.mod"))
	if err != nil {
		return err
	}
	info := fmt.Sprintf(`{"Version":%q,"Time":%q}`, r.version, time.Now().UTC().Format(time.RFC3339))
	for name, content := range map[string]string{
		"list": r.version + "\n", r.version + ".info": info, r.version + ".mod": string(mod),
	} {
		if err := os.WriteFile(filepath.Join(versions, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return r.zip(filepath.Join(versions, r.version+".zip"))
}

// zip packs the module's files: each lies below MODULE@VERSION/. Links and modules inside the folder are left out.
func (r release) zip(target string) (err error) {
	names, err := r.files()
	if err != nil {
		return err
	}
	file, err := os.Create(target)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	w := zip.NewWriter(file)
	for _, name := range names {
		if err := r.add(w, filepath.Join(r.dir, name), name); err != nil {
			return err
		}
	}
	if r.license != "" && !slices.Contains(names, "LICENSE") {
		if err := r.add(w, r.license, "LICENSE"); err != nil {
			return err
		}
	}
	return w.Close()
}

func (r release) add(w *zip.Writer, file, name string) error {
	from, err := os.Open(file)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := w.Create(r.module + "@" + r.version + "/" + name)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return err
}

// files returns what belongs to the module.
func (r release) files() ([]string, error) {
	all, err := files(r.dir)
	if err != nil {
		return nil, err
	}
	var inside []string // folders of modules inside
	for _, name := range all {
		if path.Base(name) == "go.mod" && name != "go.mod" {
			inside = append(inside, path.Dir(name)+"/")
		}
	}
	var own []string
	for _, name := range all {
		if slices.ContainsFunc(inside, func(folder string) bool { return strings.HasPrefix(name, folder) }) {
			continue
		}
		if info, err := os.Lstat(filepath.Join(r.dir, name)); err != nil {
			return nil, err
		} else if info.Mode().IsRegular() {
			own = append(own, name)
		}
	}
	return own, nil
}

// escape writes a module path for a file system that does not tell upper from lower case: "!a" is A.
func escape(module string) string {
	var s strings.Builder
	for _, r := range module {
		if unicode.IsUpper(r) {
			s.WriteByte('!')
		}
		s.WriteRune(unicode.ToLower(r))
	}
	return s.String()
}
