package sim

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"slices"

	"fdbfifo/kv/tuple"
)

// recordPrefix begins the keys of the records; the versionstamp follows.
const recordPrefix = "R"

type writeKind int64

const (
	wrote writeKind = iota
	cleared
	clearedRange // from key up to, without, value
	stamped      // under a versionstamp; key is as SetVersionstampedKey takes it
)

type write struct {
	kind       writeKind
	key, value []byte
}

// record is what one transaction did, written by itself.
type record struct {
	step             int // of the driver, when the commit was sent
	who, tx, attempt int
	rv               int64 // its read version
	nowMS            int64 // by the handle's clock, when the commit was sent
	begunMS          int64 // by the handle's clock, when the attempt began
	atMS             int64 // by the world's clock, when the commit was sent
	writes           []write

	stamp   [10]byte // of the commit: from the key
	version int64    // of the commit: from the key
	order   int      // among all
	// from and to are the steps between which it was applied.
	from, to int
}

// largeValue is how large a value is of which the record keeps the digest: it has one value's room for all.
const largeValue = 400

// largeRecord is how large a record is of which the database has only the digest.
const largeRecord = 50_000

// pack puts large values aside, under their digests, and so it does with a large record.
func (r record) pack(large map[string][]byte) []byte {
	t := tuple.Tuple{int64(r.step), int64(r.who), int64(r.tx), int64(r.attempt), r.rv, r.nowMS, r.begunMS, r.atMS}
	for _, w := range r.writes {
		if len(w.value) < largeValue {
			t = append(t, int64(w.kind), w.key, w.value)
			continue
		}
		t = append(t, int64(w.kind), w.key, putAside(large, w.value))
	}
	b := t.Pack()
	if len(b) < largeRecord {
		return b
	}
	return tuple.Tuple{putAside(large, b)}.Pack()
}

// putAside keeps a value under its digest, and returns the digest.
func putAside(large map[string][]byte, value []byte) (name string) {
	sum := sha256.Sum256(value)
	name = hex.EncodeToString(sum[:])
	large[name] = value
	return name
}

func unpackRecord(b []byte, large map[string][]byte) (record, error) {
	t, err := tuple.Unpack(b)
	if err != nil {
		return record{}, fmt.Errorf("sim: record: %w", err)
	}
	if len(t) == 1 {
		name, _ := t[0].(string)
		return unpackRecord(large[name], large)
	}
	n := func(i int) int { v, _ := t[i].(int64); return int(v) }
	r := record{step: n(0), who: n(1), tx: n(2), attempt: n(3), rv: int64(n(4)), nowMS: int64(n(5)), begunMS: int64(n(6))}
	r.atMS = int64(n(7))
	for i := 8; i+2 < len(t); i += 3 {
		key, _ := t[i+1].([]byte)
		value, _ := t[i+2].([]byte)
		if name, aside := t[i+2].(string); aside {
			value = large[name]
		}
		r.writes = append(r.writes, write{writeKind(n(i)), key, value})
	}
	return r, nil
}

// digest returns a digest of the writes that does not depend on the order of writes of different keys.
func digest(ws []write) uint64 {
	sorted := slices.Clone(ws)
	slices.SortStableFunc(sorted, func(a, b write) int { return bytes.Compare(a.key, b.key) })
	h := fnv.New64a()
	for _, w := range sorted {
		h.Write([]byte{byte(w.kind)})
		switch {
		case bytes.HasPrefix(w.key, []byte(keyFor("cursor"))):
			w.value = nil // it names a row of changes, whose number counts those of the whole process
		case bytes.HasPrefix(w.key, []byte(keyFor("change"))):
			w.key = nil // its key has the same number
		}
		h.Write(w.key)
		h.Write([]byte{0xff})
		value, _, _ := bytes.Cut(w.value, []byte("goroutine ")) // the stack of a handler that panicked names its own
		h.Write(value)
	}
	return h.Sum64()
}
