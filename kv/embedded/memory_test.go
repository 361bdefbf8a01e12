//go:build linux || darwin

package embedded

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

// largestCommits returns commits of nearly 10 MB that a client may send, by their kind of content.
func largestCommits() map[string][]byte {
	const size = kv.MaxTransactionSize - 1<<16
	frame := func(fields []byte) []byte {
		return numbered(frameCommit, 1, func(b []byte) []byte { return append(b, fields...) })
	}
	large := &commit{writes: []keyRange{{"k", "l"}}}
	for n := size / kv.MaxValueSize; n > 0; n-- {
		m := mutation{opSet, fmt.Sprintf("k%d", n), string(make([]byte, kv.MaxValueSize))}
		large.mutations = append(large.mutations, m)
	}
	many := &commit{writes: []keyRange{{"k", "l"}}}
	for n := range size / (mutationOverhead + 8) {
		many.mutations = append(many.mutations, mutation{opSet, fmt.Sprintf("k%07d", n), ""})
	}
	// Things of no bytes: a commit counts more for each than it has here.
	nothings := func(counts ...uint64) []byte {
		return append(appendNumbers(nil, counts...), make([]byte, size)...)
	}
	return map[string][]byte{
		"large values":   frame(appendCommit(nil, large)),
		"many mutations": frame(appendCommit(nil, many)),
		"no reads":       frame(nothings(1, size/2)),
		"no writes":      frame(nothings(1, 0, size/2)),
		"no mutations":   frame(nothings(1, 0, 0, size/3)),
	}
}

// takeIn reads a frame as a session does, and its commit.
func takeIn(frame []byte) (*commit, error) {
	kind, f, err := (&frameReader{r: bytes.NewReader(frame), limit: maxFrame}).next()
	if err != nil || kind != frameCommit {
		return nil, fmt.Errorf("kind %d: %w", kind, err)
	}
	f.number()
	return f.commit()
}

// TestCommitFrameMemory: what a server allocates to take in a commit is at most twice what the largest commit is; also
// if a client claims that there are millions of things in it.
func TestCommitFrameMemory(t *testing.T) {
	for name, frame := range largestCommits() {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			c, err := takeIn(frame)
			runtime.ReadMemStats(&after)
			if name == "large values" || name == "many mutations" {
				require.NoError(t, err)
				require.NotEmpty(t, c.mutations)
			} else {
				require.ErrorIs(t, err, errFrame)
			}
			allocated := after.TotalAlloc - before.TotalAlloc
			t.Logf("%d bytes of a frame: %d bytes allocated", len(frame), allocated)
			require.Less(t, allocated, uint64(2*kv.MaxTransactionSize))
		})
	}
}

// TestWrittenKeepsNoValues: what is remembered of commits, to find the conflicts of later ones, is their keys and not
// their values. This holds for the commits of a client, and for those of the process itself.
func TestWrittenKeepsNoValues(t *testing.T) {
	const commits, size = 1000, 90_000
	// requireForgotten calls commit for each commit of a value of that size under the key a.
	requireForgotten := func(t *testing.T, db *DB, commit func(id uint64)) {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for id := range uint64(commits) {
			commit(id + 1)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		kept := int64(after.HeapAlloc) - int64(before.HeapAlloc)
		t.Logf("%d bytes kept of %d", kept, commits*size)
		require.Less(t, kept, int64(commits*size/10))
		require.Len(t, look(t, db, "a"), size)
	}
	t.Run("client", func(t *testing.T) {
		path := t.TempDir()
		server := openHere(t, path, Options{})
		c := rawPeer(t, path, true)
		r := frameReader{r: c, limit: maxFrame}
		requireForgotten(t, server, func(id uint64) {
			m := &commit{
				writes:    []keyRange{{"a", "b"}},
				mutations: []mutation{{opSet, "a", string(make([]byte, size))}},
			}
			_, err := c.Write(numbered(frameCommit, id, func(b []byte) []byte { return appendCommit(b, m) }))
			require.NoError(t, err)
			kind, _, err := r.next()
			require.NoError(t, err)
			require.Equal(t, frameCommitted, kind)
		})
	})
	t.Run("process itself", func(t *testing.T) {
		db := OpenMemory(Options{})
		defer func() { require.NoError(t, db.Close()) }()
		value := string(make([]byte, size))
		requireForgotten(t, db, func(uint64) { change(t, db, "a", value) })
	})
}

// BenchmarkCommitFrame is what a server does to take in a commit of 10 MB, before the store has it.
func BenchmarkCommitFrame(b *testing.B) {
	frame := largestCommits()["large values"]
	b.SetBytes(int64(len(frame)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := takeIn(frame); err != nil && err != io.EOF {
			b.Fatal(err)
		}
	}
}
