package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// entry is one run of a suite.
type entry struct {
	Code       string // of the tree, see codeOf
	Suite      string
	Seed       uint64 `json:",omitempty"`
	At         time.Time
	Seconds    float64
	Operations int      `json:",omitempty"`
	Failed     []string `json:",omitempty"` // the tests that failed, or the suite
	Log        string   `json:",omitempty"` // of a failed run
}

// book has the runs of all calls, one line of JSON each.
type book struct {
	folder string
	code   string
	file   *os.File
	old    []entry // of earlier calls, of the same code
	new    []entry // of this call
}

// openBook reads the book of a kind of trial in a folder, and continues it.
func openBook(folder, kind, code string) (*book, error) {
	if err := os.MkdirAll(filepath.Join(folder, "failed"), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(folder, kind+".jsonl"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	b := &book{folder: folder, code: code, file: f}
	whole := true
	for lines := bufio.NewReader(f); ; {
		line, err := lines.ReadBytes('\n')
		var e entry
		// A line that a killed call left half is no run.
		if json.Unmarshal(line, &e) == nil && e.Code == code {
			b.old = append(b.old, e)
		}
		if err != nil {
			whole = len(line) == 0
			break
		}
	}
	if !whole {
		_, err = f.Write([]byte{'\n'})
	}
	return b, err
}

func (b *book) close() { b.file.Close() }

// add writes a run into the book. log is kept if the run failed.
func (b *book) add(e entry, log []byte) error {
	e.Code = b.code
	if len(e.Failed) > 0 {
		name := fmt.Sprintf("%s-%d-%s.log", e.Suite, e.Seed, e.At.UTC().Format("20060102-150405.000000000"))
		e.Log = filepath.Join(b.folder, "failed", name)
		if err := os.WriteFile(e.Log, log, 0o644); err != nil {
			return err
		}
	}
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if _, err = b.file.Write(append(line, '\n')); err != nil {
		return err
	}
	b.new = append(b.new, e)
	return nil
}

// failed tells whether a run of this call failed.
func (b *book) failed() bool {
	for _, e := range b.new {
		if len(e.Failed) > 0 {
			return true
		}
	}
	return false
}

// codeOf names the code that is tried: what the tree has apart from documents and this command. Commits that change
// only these are tried together. A tree with changes that are not committed has a code of its own.
func codeOf(ctx context.Context) (string, error) {
	list, err := exec.CommandContext(ctx, "git", "ls-tree", "-r", "--full-tree", "HEAD").Output()
	if err != nil {
		return "", fmt.Errorf("git ls-tree: %w", err)
	}
	others := []string{"diff", "HEAD", "--", ":/", ":!/internal/trials", ":!/*.md", ":!/*.png"}
	changed, err := exec.CommandContext(ctx, "git", others...).Output()
	if err != nil {
		return "", fmt.Errorf("git diff: %w", err)
	}
	h := sha256.New()
	for line := range strings.Lines(string(list)) {
		_, name, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if !strings.HasSuffix(name, ".md") && !strings.HasSuffix(name, ".png") &&
			!strings.HasPrefix(name, "internal/trials/") {
			io.WriteString(h, line)
		}
	}
	h.Write(changed)
	return hex.EncodeToString(h.Sum(nil))[:12], nil
}
