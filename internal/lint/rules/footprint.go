package main

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

const footprintFile = "layer/layertest/testdata/footprints.txt"

const footprintsHead = `# What each operation reads and writes, in numbers

Written by ` + "`make rules`" + `; do not edit. It is a digest of
[footprints.txt](../layer/layertest/testdata/footprints.txt), which names every key: what ` + "`TestFootprints`" + `
([footprint_test.go](../layer/layertest/footprint_test.go)) has recorded of each operation in several cases.

How to read it: a row is an operation, *cases* are those recorded of it, and 2–5 is from the least of them to the
most. A case is one call alone on a small queue (one or two groups, a few items), with all its transactions. *Reads*
are of keys and of ranges, and those at snapshot conflict with nothing. *Conflict ranges* are what the engine makes of
all that and of the ranges added by hand: a write of another transaction within a range read, committed in between,
makes this one fail and run again; so two operations exclude each other where a range read of one meets a range
written of the other. In nearly every case are two read ranges, the key that a drop writes and the handle's own
receipt, and two or three written ones, its receipts and a counter that nobody reads with a conflict.
[guarantees.md](guarantees.md) has what must conflict and what must not, and ` + "`TestConflicts`" + ` tries the pairs.

| operation | key reads: conflict | snapshot | range reads: conflict | snapshot |` +
	` conflict ranges: read | write | mutations | cases |
|---|--:|--:|--:|--:|--:|--:|--:|---|
`

// operations are those whose name is not the first word of their cases' names.
var operations = []string{
	"ack-and-receive", "dead-letters", "force-release", "retry-now", "set-group-state", "set-state",
}

// columns of the digest, in their order.
const (
	keyConflict = iota
	keySnapshot
	rangeConflict
	rangeSnapshot
	readRanges
	writeRanges
	mutations
	columns
)

// operation is a row: the least and the most of each column over its cases.
type operation struct {
	name        string
	least, most [columns]int
	cases       []string
}

// footprintsPage is docs/footprints.md.
func footprintsPage(root fs.FS) (string, error) {
	text, err := fs.ReadFile(root, footprintFile)
	if err != nil {
		return "", err
	}
	var all []*operation
	for block := range strings.SplitSeq(string(text), "\n\n") {
		name, lines, ok := strings.Cut(strings.TrimSpace(block), "\n----\n")
		if !ok {
			continue // the file's head
		}
		n, err := counted(lines)
		if err != nil {
			return "", fmt.Errorf("%s: %s: %w", footprintFile, name, err)
		}
		verb, of := operationOf(name)
		i := slices.IndexFunc(all, func(o *operation) bool { return o.name == verb })
		if i < 0 {
			i = len(all)
			all = append(all, &operation{name: verb, least: n, most: n})
		}
		all[i].add(n, of)
	}
	if len(all) == 0 {
		return "", fmt.Errorf("%s: there is nothing in it", footprintFile)
	}
	var out strings.Builder
	out.WriteString(footprintsHead)
	for _, o := range all {
		fmt.Fprintf(&out, "| %s |", o.name)
		for i := range columns {
			fmt.Fprintf(&out, " %s |", span(o.least[i], o.most[i]))
		}
		fmt.Fprintf(&out, " %s |\n", strings.Join(o.cases, ", "))
	}
	return out.String(), nil
}

// operationOf splits a case's name.
func operationOf(name string) (verb, of string) {
	for _, o := range operations {
		if rest, ok := strings.CutPrefix(name, o); ok {
			return o, strings.TrimPrefix(rest, "-")
		}
	}
	verb, of, _ = strings.Cut(name, "-")
	return verb, of
}

func (o *operation) add(n [columns]int, of string) {
	for i := range n {
		o.least[i], o.most[i] = min(o.least[i], n[i]), max(o.most[i], n[i])
	}
	if of == "" {
		of = "plain"
	}
	o.cases = append(o.cases, of)
}

func span(least, most int) string {
	if least == most {
		return fmt.Sprint(least)
	}
	return fmt.Sprintf("%d–%d", least, most)
}

// counted counts the lines of a case. Its last line, which the test has counted by itself, has to say the same.
func counted(text string) (n [columns]int, err error) {
	lines := strings.Split(text, "\n")
	last := len(lines) - 1
	for _, line := range lines[:last] {
		words := strings.Fields(line)
		snapshot := 0
		if strings.Contains(line, " snapshot") {
			snapshot = 1
		}
		switch what := words[0] + " " + words[1]; {
		case what == "read range":
			n[rangeConflict+snapshot]++
		case words[0] == "read":
			n[keyConflict+snapshot]++
		case what == "= read":
			n[readRanges]++
		case what == "= write":
			n[writeRanges]++
		case words[0] == "conflict-read" || words[0] == "conflict-write":
		default:
			n[mutations]++
		}
	}
	want := fmt.Sprintf("%d key reads, %d range reads, %d mutations",
		n[keyConflict]+n[keySnapshot], n[rangeConflict]+n[rangeSnapshot], n[mutations])
	if lines[last] != want {
		return n, fmt.Errorf("counted %s, and it says %q", want, lines[last])
	}
	return n, nil
}
