package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// usualOld is the older commit if none is named.
const usualOld = "20272d7"

// errNoCommit: the repository, such as a shallow clone, does not have the usual older commit.
var errNoCommit = errors.New("the older commit is not in this repository (git fetch --unshallow brings the history)")

// versions are the paths of the two commands.
type versions struct{ old, new string }

// build builds the commands of the older commit and of the working tree.
func build(ctx context.Context, commit, scratch string) (v versions, err error) {
	if err := find(ctx, commit); err != nil {
		return v, err
	}
	source := filepath.Join(scratch, "source")
	if err := extract(ctx, commit, source); err != nil {
		return v, err
	}
	v = versions{old: filepath.Join(scratch, "old"), new: filepath.Join(scratch, "new")}
	for path, dir := range map[string]string{v.old: source, v.new: "."} {
		c := exec.CommandContext(ctx, "go", "build", "-o", path, "./cmd/fdbfifo")
		c.Dir = dir
		if out, err := c.CombinedOutput(); err != nil {
			return v, fmt.Errorf("build in %s: %w\n%s", dir, err, out)
		}
	}
	return v, nil
}

// find returns errNoCommit if git says that the repository does not have the usual older commit. Any other failure, and
// a commit that was named wrongly, is an error.
func find(ctx context.Context, commit string) error {
	known := exec.CommandContext(ctx, "git", "rev-parse", "--verify", "--quiet", commit+"^{commit}")
	var stderr strings.Builder
	known.Stderr = &stderr
	err := known.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case commit == usualOld && errors.As(err, &exit) && exit.ExitCode() == 1: // 128 = git has failed
		return fmt.Errorf("%w: %q", errNoCommit, commit)
	}
	return fmt.Errorf("find the commit %q: git rev-parse: %w: %s", commit, err, &stderr)
}

// extract writes the files of a commit into a folder.
func extract(ctx context.Context, commit, folder string) error {
	c := exec.CommandContext(ctx, "git", "archive", "--format=tar", commit)
	var stderr strings.Builder
	c.Stderr = &stderr
	archive, err := c.Output()
	if err != nil {
		return fmt.Errorf("git archive: %w: %s", err, &stderr)
	}
	for files := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		if header.Typeflag != tar.TypeReg {
			continue // folders are made for their files, and no package needs a link
		}
		path := filepath.Join(folder, filepath.FromSlash(header.Name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		text, err := io.ReadAll(files)
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
}
