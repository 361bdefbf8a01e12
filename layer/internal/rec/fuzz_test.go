package rec

import (
	"bytes"
	"maps"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv/tuple"
)

// Every decoder of stored bytes refuses what it is given, with ErrCorrupt, or gives it back byte for byte when it is
// encoded again: two values that differ never mean the same, and nothing behind a value is passed over.

// FuzzEnvelope: the value of an item.
func FuzzEnvelope(f *testing.F) {
	f.Fuzz(func(t *testing.T, value []byte) {
		e, body, err := OpenEnvelope(value)
		if err != nil {
			require.ErrorIs(t, err, ErrCorrupt)
			return
		}
		require.Equal(t, string(value), string(append(e.Append(nil), body...)))
	})
}

// FuzzMessage: a message of any size is laid out in values that are not too large, and is read back whole.
func FuzzMessage(f *testing.F) {
	f.Fuzz(func(t *testing.T, body []byte, repeat uint16, name, text, dedupID string, enqueuedMS, dueMS int64) {
		body = bytes.Repeat(body, 1+int(repeat))
		if len(body) > MaxBody || len(name)+len(text) > 16<<10 || len(dedupID) > 256 || dueMS < 0 {
			return
		}
		sent := Envelope{EnqueuedMS: enqueuedMS, DedupID: dedupID, DueMS: dueMS}
		if name != "" {
			sent.Headers = map[string]string{name: text, text: name}
		}
		value, parts := LayOut(nil, sent, body)
		for _, v := range append([][]byte{value}, parts...) {
			require.LessOrEqual(t, len(v), MaxInline)
		}
		e, inline, err := OpenEnvelope(value)
		require.NoError(t, err)
		require.Equal(t, string(body), string(inline)+string(bytes.Join(parts, nil)))
		require.True(t, maps.Equal(sent.Headers, e.Headers), "%v, %v", sent.Headers, e.Headers)
		sent.Headers, sent.Size, sent.Parts = e.Headers, e.Size, int64(len(parts))
		require.Equal(t, sent, e)
	})
}

// stored has, for each kind of value, what decodes one and encodes it again.
var stored = map[string]func(key, value []byte) ([]byte, error){
	"lock": func(key, value []byte) ([]byte, error) {
		l, err := UnpackRecord(key, value)
		if err != nil {
			return nil, err
		}
		return l.Pack(), nil
	},
	"timer": func(key, value []byte) ([]byte, error) {
		kind, head, err := UnpackTimer(key, value)
		return PackTimer(kind, head), err
	},
	"beat": func(key, value []byte) ([]byte, error) {
		b, err := UnpackBeat(key, value)
		return b.Pack(), err
	},
	"attempt": func(key, value []byte) ([]byte, error) {
		a, err := UnpackAttempt(key, value)
		return a.Pack(), err
	},
	"dead": func(key, value []byte) ([]byte, error) {
		d, err := UnpackDeadLetter(key, value)
		if err != nil {
			return nil, err
		}
		return d.Pack(), nil
	},
	"archive": func(key, value []byte) ([]byte, error) {
		a, err := UnpackArchived(key, value)
		if err != nil {
			return nil, err
		}
		return a.Pack(), nil
	},
	"archived": func(key, value []byte) ([]byte, error) {
		e, err := UnpackArchiveEntry(key, value)
		if err != nil {
			return nil, err
		}
		return e.Pack(), nil
	},
	"request": func(key, value []byte) ([]byte, error) {
		r, err := UnpackRequest(key, value)
		return r.Pack(), err
	},
	"dedup": func(key, value []byte) ([]byte, error) {
		r, err := UnpackDedupEntry(key, value)
		return r.Pack(), err
	},
	"purged": func(key, value []byte) ([]byte, error) {
		n, err := UnpackInstant(key, value)
		return n.Pack(), err
	},
	"pace": func(key, value []byte) ([]byte, error) {
		p, err := UnpackPace(key, value)
		return p.Pack(), err
	},
	"repeat": func(key, value []byte) ([]byte, error) {
		r, err := UnpackRepeat(key, value)
		return r.Pack(), err
	},
	"integer": func(key, value []byte) ([]byte, error) {
		n, err := UnpackInt(key, value)
		return PackInt(n), err
	},
	"pause": func(key, value []byte) ([]byte, error) {
		m, err := UnpackPause(key, value)
		if err != nil || m == nil {
			return value, err
		}
		return m.PackPause(), nil
	},
	"sweep": func(key, value []byte) ([]byte, error) {
		n, err := UnpackSweepNote(key, value)
		return n.Pack(), err
	},
	"swept-to": func(key, value []byte) ([]byte, error) {
		last, err := UnpackKey(key, value)
		return PackKey(last), err
	},
	"count": func(key, value []byte) ([]byte, error) {
		n, err := UnpackCount(key, value)
		return PackCount(n), err
	},
	"change": func(key, value []byte) ([]byte, error) {
		ms, all, err := UnpackChanges(key, value)
		row := tuple.AppendInt(nil, ms)
		for _, c := range all {
			one := Changes{Kind: c.Kind, Group: c.Group, N: c.N}
			if c.Kind == ChangePurge {
				row = one.AppendPurge(row)
				continue
			}
			one.Items = []Item{{Index: c.Index, Random: c.Random, Facets: c.Facets}}
			one.Was = []string{c.Was}
			row = one.AppendItem(row, 0)
		}
		return row, err
	},
	"cursor": func(key, value []byte) ([]byte, error) {
		p, err := UnpackCursor(key, value)
		return p.Pack(), err
	},
	"reader": func(key, value []byte) ([]byte, error) {
		r, err := UnpackReader(key, value)
		return r.Pack(), err
	},
	"receipt": func(key, value []byte) ([]byte, error) {
		r, err := UnpackReceipt(key, value)
		return append(tuple.AppendInt(nil, r.WrittenMS), r.Rest.Pack()...), err
	},
}

// TestEveryValueIsFuzzed: each kind of value has entries in the corpus.
func TestEveryValueIsFuzzed(t *testing.T) {
	for kind := range stored {
		corpus, err := filepath.Glob("testdata/fuzz/FuzzStored/" + kind + "*")
		require.NoError(t, err)
		require.NotEmpty(t, corpus, kind)
	}
}

// FuzzStored: the values of all other rows.
func FuzzStored(f *testing.F) {
	f.Fuzz(func(t *testing.T, kind string, value []byte) {
		recode := stored[kind]
		if recode == nil {
			return
		}
		again, err := recode([]byte("key"), value)
		if err != nil {
			require.ErrorIs(t, err, ErrCorrupt)
			return
		}
		require.Equal(t, string(value), string(again))
	})
}
