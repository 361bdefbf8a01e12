package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"fdbfifo/internal/bench"
)

// plotBench measures receives by each number of claimers. It writes the drawing to path, an SVG, and the figures to a
// Markdown table in the same folder, with a description of the machine.
func (s *session) plotBench(ctx context.Context, sizes bench.Sizes, path string) error {
	if !strings.HasSuffix(path, ".svg") {
		return usagef("--plot wants a file whose name ends in .svg, not %q", path)
	}
	name, _ := s.engineParts()
	all, err := bench.Sweep(ctx, bench.Env{Open: s.openBenchSpace}, sizes)
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", errInterrupted, err)
		}
		return err
	}
	machine := fmt.Sprintf("engine %s, %d cores, %s/%s, %s", name, runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
	date := s.app.Now().UTC().Format(time.DateOnly)
	var svg, table bytes.Buffer
	if err := bench.WriteSVG(&svg, all, machine+", "+date); err != nil {
		return err
	}
	fmt.Fprintf(&table, "# Claimers\n\nClaim + ack of %d ready groups by claimers with a handle each, in batches of 10 items of one group.\n\n", sizes.ReadyGroups)
	fmt.Fprintf(&table, "- machine: %s\n- date: %s\n- command: `fdbfifo bench --engine %s --plot %s`\n\n", machine, date, name, filepath.Base(path))
	fmt.Fprintf(&table, "![plot](%s)\n\n", filepath.Base(path))
	if err := bench.WriteMarkdown(&table, all); err != nil {
		return err
	}
	if err := replaceFile(path, svg.Bytes()); err != nil {
		return err
	}
	return replaceFile(strings.TrimSuffix(path, ".svg")+".md", table.Bytes())
}

// replaceFile makes a file, or puts a new one in its place. It does not write to a file that a link at path leads to.
func replaceFile(path string, text []byte) error {
	path, _, err := trusted(path)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".fdbfifo-*")
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	err = errors.Join(err, file.Chmod(0o644), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}
