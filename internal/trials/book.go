package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// entry is one run of a suite.
type entry struct {
	Code       string // of the program, see codeOf
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
	file   *os.File
	old    []entry // of earlier calls
	new    []entry // of this call
}

// openBook reads the book of a kind of trial in a folder, and continues it.
func openBook(folder, kind string) (*book, error) {
	if err := os.MkdirAll(filepath.Join(folder, "failed"), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(folder, kind+".jsonl"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	b := &book{folder: folder, file: f}
	whole := true
	for lines := bufio.NewReader(f); ; {
		line, err := lines.ReadBytes('\n')
		var e entry
		// A line that a killed call left half is no run.
		if json.Unmarshal(line, &e) == nil {
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
	if len(e.Failed) > 0 {
		suite := strings.NewReplacer("/", "-", " ", "-").Replace(e.Suite)
		name := fmt.Sprintf("%s-%d-%s.log", suite, e.Seed, e.At.UTC().Format("20060102-150405.000000000"))
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
	return slices.ContainsFunc(b.new, func(e entry) bool { return len(e.Failed) > 0 })
}

// runs returns what all calls have seen of the present code of the suites of a name.
func (b *book) runs(all []*suite, name string) (runs []entry) {
	codes := map[string]bool{}
	for _, s := range all {
		if s.name == name {
			codes[s.code] = true
		}
	}
	for _, e := range slices.Concat(b.old, b.new) {
		if e.Suite == name && codes[e.Code] {
			runs = append(runs, e)
		}
	}
	return runs
}

// table prints what all calls have seen of the present code of each suite, and each test that failed.
func (b *book) table(out io.Writer, all []*suite) {
	fmt.Fprintf(out, "\nbooks in %s\n", b.folder)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "suite\truns\tminutes\toperations\tfailures")
	var failed []string
	for i, s := range all {
		if slices.ContainsFunc(all[:i], func(o *suite) bool { return o.name == s.name }) {
			continue // another program of the same suite
		}
		seconds, done, failures := 0.0, 0, 0
		runs, times, first := b.runs(all, s.name), map[string]int{}, map[string]entry{}
		for _, e := range runs {
			seconds, done = seconds+e.Seconds, done+e.Operations
			failures += min(len(e.Failed), 1)
			for _, test := range e.Failed {
				if times[test]++; times[test] == 1 {
					first[test] = e
				}
			}
		}
		fmt.Fprintf(w, "%s\t%d\t%.1f\t%d\t%d\n", s.name, len(runs), seconds/60, done, failures)
		for _, test := range slices.Sorted(maps.Keys(times)) {
			failed = append(failed, fmt.Sprintf("FAILED: %s %s: %d runs, %d failures, first SEED=%d, log: %s\n",
				s.name, test, len(runs), times[test], first[test].Seed, first[test].Log))
		}
	}
	w.Flush()
	fmt.Fprintf(out, "%s%d tests failed\n", strings.Join(failed, ""), len(failed))
}

// codeOf names the code that a compiled test program tries: the program itself, and the test data of its package. Runs
// of two commits count together if their programs are the same, whatever else differs between them.
func codeOf(program, folder string) (string, error) {
	h := sha256.New()
	add := func(path string) error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(h, f)
		return err
	}
	if err := add(program); err != nil {
		return "", err
	}
	data := filepath.Join(folder, "testdata")
	err := filepath.WalkDir(data, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case path == data && errors.Is(err, fs.ErrNotExist):
			return fs.SkipAll
		case err != nil || !entry.Type().IsRegular():
			return err
		}
		fmt.Fprintf(h, "\n%s\n", strings.TrimPrefix(path, data))
		return add(path)
	})
	return hex.EncodeToString(h.Sum(nil))[:12], err
}
