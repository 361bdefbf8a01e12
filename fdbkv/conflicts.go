package fdbkv

import (
	"context"
	"fmt"

	"fdbfifo/kv"
)

// FoundationDB's special keys that list a transaction's own conflict ranges as boundaries: the value at a key is
// "1" if the keys from there to the next boundary are in the set, else "0".
const (
	readConflictKeys  = "\xff\xff/transaction/read_conflict_range/"
	writeConflictKeys = "\xff\xff/transaction/write_conflict_range/"
)

// ConflictRanges implements kv.ConflictReporter. It waits for reads still in flight. A versionstamped key, whose
// place is not known before the commit, is listed as the range in which it may come to lie.
func (t *tx) ConflictRanges(ctx context.Context) (read, write []kv.KeyRange, err error) {
	r, w := t.boundaries(readConflictKeys), t.boundaries(writeConflictKeys)
	rows, err := r.Wait(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the read conflict ranges: %w", err)
	}
	read = between(rows, readConflictKeys)
	if rows, err = w.Wait(ctx); err != nil {
		return nil, nil, fmt.Errorf("reading the write conflict ranges: %w", err)
	}
	return read, between(rows, writeConflictKeys), nil
}

func (t *tx) boundaries(keys string) kv.Future[[]kv.KV] {
	r := kv.KeyRange{Begin: []byte(keys), End: []byte(keys + "\xff\xff")}
	return t.GetRange(r.Selectors(), kv.RangeOptions{})
}

// between returns the ranges that the boundaries enclose. A range without a beginning begins at the empty key, one
// without an end ends with the keys.
func between(boundaries []kv.KV, keys string) []kv.KeyRange {
	var ranges []kv.KeyRange
	open := kv.KeyRange{Begin: []byte{}}
	inside := len(boundaries) > 0 && string(boundaries[0].Value) == "0"
	for _, b := range boundaries {
		key := b.Key[len(keys):]
		switch in := string(b.Value) == "1"; {
		case in && !inside:
			open.Begin = key
		case !in && inside:
			ranges = append(ranges, kv.KeyRange{Begin: open.Begin, End: key})
		}
		inside = string(b.Value) == "1"
	}
	if inside {
		ranges = append(ranges, kv.KeyRange{Begin: open.Begin, End: []byte("\xff\xff")})
	}
	return ranges
}
