package main

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

// skipped are what lies in the tree and is no part of it.
var skipped = []string{".git", "bin"}

// files returns the files of the tree below root, as slash-separated paths. Symbolic links are among them: a link of
// fdbkv/layertest leads to a test of the layer.
func files(root string) (all []string, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir() && d.Name() == "node_modules": // what npm has installed for a test
			return filepath.SkipDir
		case slices.Contains(skipped, name):
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil // .git of a second work tree is a file
		case d.Type().IsRegular() || d.Type()&fs.ModeSymlink != 0:
			all = append(all, filepath.ToSlash(name))
		}
		return nil
	})
	return all, err
}

// copyTree copies the tree, links as links.
func copyTree(from, to string) error {
	all, err := files(from)
	if err != nil {
		return err
	}
	for _, name := range all {
		source, target := filepath.Join(from, name), filepath.Join(to, name)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		info, err := os.Lstat(source)
		if err != nil {
			return err
		}
		if info.Mode().IsRegular() {
			err = copyFile(source, target, info.Mode())
		} else {
			var link string
			if link, err = os.Readlink(source); err == nil {
				err = os.Symlink(link, target)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to string, mode fs.FileMode) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, mode)
}

// text returns a file's text. ok is false if the file is a link, or no text.
func text(path string) (data []byte, ok bool, err error) {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() {
		return nil, false, err
	}
	data, err = os.ReadFile(path)
	return data, utf8.Valid(data) && !bytes.ContainsRune(data, 0), err
}

// goCommand runs the go command in dir, with env added to the environment, and returns what it prints.
func goCommand(ctx context.Context, dir string, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s%s", strings.Join(args, " "), err, &stderr, out)
	}
	return string(out), nil
}
