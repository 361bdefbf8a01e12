package embedded

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

func sampleCommit() *commit {
	return &commit{
		readVersion: 12345678,
		reads:       []keyRange{{"a", "a\x00"}, {"b", "c"}},
		writes:      []keyRange{{"", maxKey}},
		mutations: []mutation{
			{opSet, "", "value"}, {opClear, "a", "b"}, {kv.Add, "k", "\x01"}, {opSet, "empty", ""},
			{kv.SetVersionstampedKey, "0123456789\x00\x00\x00\x00", "v"},
			{kv.SetVersionstampedValue, "s", "0123456789\x00\x00\x00\x00"},
		},
	}
}

// numbered is a frame whose first field is a number.
func numbered(kind frameKind, id uint64, more func(b []byte) []byte) []byte {
	return appendFrame(nil, kind, func(b []byte) []byte { return more(appendNumbers(b, id)) })
}

// A commit that is written to a frame is read from it unchanged.
func TestCommitFrame(t *testing.T) {
	c := sampleCommit()
	f := fields{rest: string(appendCommit(nil, c))}
	got, err := f.commit()
	require.NoError(t, err)
	require.Equal(t, c.readVersion, got.readVersion)
	require.Equal(t, c.reads, got.reads)
	require.Equal(t, c.writes, got.writes)
	require.Equal(t, c.mutations, got.mutations)
}

// A commit that no transaction makes is refused.
func TestCommitFrameRefused(t *testing.T) {
	long := string(make([]byte, kv.MaxKeySize+1))
	for name, spoil := range map[string]func(c *commit){
		"key outside":        func(c *commit) { c.mutations[0].key = maxKey },
		"long key":           func(c *commit) { c.mutations[0].key = long },
		"long value":         func(c *commit) { c.mutations[0].value = string(make([]byte, kv.MaxValueSize+1)) },
		"inverted clear":     func(c *commit) { c.mutations[1].value = "" },
		"clear outside":      func(c *commit) { c.mutations[1].value = "\xff\x00" },
		"unknown operation":  func(c *commit) { c.mutations[2].kind = 99 },
		"stamp outside key":  func(c *commit) { c.mutations[4].key = "0123456789\x01\x00\x00\x00" },
		"no stamp's offset":  func(c *commit) { c.mutations[5].value = "abc" },
		"empty read range":   func(c *commit) { c.reads[0].end = "a" },
		"write range beyond": func(c *commit) { c.writes[0].end = "\xff\xff" },
		"nothing":            func(c *commit) { c.writes, c.mutations = nil, nil },
		"too large": func(c *commit) {
			for range 101 {
				c.mutations = append(c.mutations, mutation{opSet, "k", string(make([]byte, kv.MaxValueSize))})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := sampleCommit()
			spoil(c)
			f := fields{rest: string(appendCommit(nil, c))}
			_, err := f.commit()
			require.ErrorIs(t, err, errFrame)
		})
	}
}

// A length alone takes no memory, and one above the limit is refused at once.
func TestFrameLength(t *testing.T) {
	r := frameReader{r: bytes.NewReader([]byte{0x7f, 0xff, 0xff, 0xff, 1}), limit: maxFrame}
	_, _, err := r.next()
	require.ErrorIs(t, err, errFrame)
	r = frameReader{r: bytes.NewReader([]byte{0, 0x80, 0, 0, 1, 2, 3}), limit: maxFrame}
	_, _, err = r.next()
	require.Error(t, err)
	require.LessOrEqual(t, cap(r.buf), grownFrame)
}

// A server and a client understand or refuse all bytes of a socket. Nothing panics, nothing hangs.
func FuzzFrames(f *testing.F) {
	frames := func(kind frameKind, b ...byte) []byte {
		return appendFrame(nil, kind, func(out []byte) []byte { return append(out, b...) })
	}
	sample := appendCommit(appendNumbers(nil, 3), sampleCommit())
	f.Add(append(frames(frameOpen, 1, 0), frames(frameGet, 2, 1, 1, 'a')...))
	f.Add(append(frames(frameOpen, 1, 0), frames(frameScan, 2, 1, 0, 1, 'z', 0, 3)...))
	f.Add(frames(frameCommit, sample...))
	f.Add(append(frames(frameWatch, 1, 1, 'a', 1, 1, 'b'), frames(frameUnwatch, 1)...))
	f.Add(append(frames(frameOpened, 1, 9), frames(frameCommitted, 2, 9, 0)...))
	f.Add(append(frames(frameFailed, 1, 9, 1, 'x'), frames(frameFired, 2, 0)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		db := OpenMemory(Options{})
		defer db.Close()
		s := newSession(db.local.Load(), nopConn{})
		c := &conn{
			Conn: nopConn{}, link: newLink(db, nil), out: newOutbox(nopConn{}, 0), ended: make(chan struct{}),
			calls: map[uint64]*call{1: {done: make(chan struct{})}}, commits: map[uint64]*commit{},
			watches: map[uint64]*watch{}, numbers: map[*watch]uint64{},
		}
		c.commits[2] = &commit{done: make(chan struct{})}
		server := frameReader{r: bytes.NewReader(data), limit: maxFrame}
		for kind, f, err := server.next(); err == nil; kind, f, err = server.next() {
			if s.handle(kind, f) != nil {
				break
			}
		}
		for _, v := range s.snapshots {
			s.engine.release(v.snapshot)
		}
		client := frameReader{r: bytes.NewReader(data), limit: maxFrame}
		for kind, f, err := client.next(); err == nil; kind, f, err = client.next() {
			if c.take(kind, f) != nil {
				break
			}
		}
	})
}

// nopConn is a connection without a peer.
type nopConn struct{ net.Conn }

func (nopConn) Write(b []byte) (int, error)      { return len(b), nil }
func (nopConn) Close() error                     { return nil }
func (nopConn) SetWriteDeadline(time.Time) error { return nil }

// A client that sends nonsense, or nothing, is cut off. The others continue.
func TestNonsenseIsCutOff(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" && runtime.GOOS != "darwin" {
		t.Skip("no socket here")
	}
	path := t.TempDir()
	db, err := OpenDisk(path, Options{})
	require.NoError(t, err)
	defer db.Close()
	info, err := os.Stat(filepath.Join(path, socketName))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	hello := appendFrame(nil, frameHello, func(b []byte) []byte {
		return append(appendNumbers(appendText(b, protocolMagic), protocolVersion), make([]byte, len(clientID{}))...)
	})
	cut := func(name string, greet bool, send []byte) {
		c, err := net.Dial("unix", filepath.Join(path, socketName))
		require.NoError(t, err)
		defer c.Close()
		require.NoError(t, c.SetDeadline(time.Now().Add(12*handshakeLimit)))
		r := frameReader{r: c, limit: maxFrame}
		if greet {
			_, err = c.Write(hello)
			require.NoError(t, err)
			kind, _, err := r.next()
			require.NoError(t, err)
			require.Equal(t, frameWelcome, kind)
		}
		_, err = c.Write(send)
		require.NoError(t, err)
		for err == nil {
			_, _, err = r.next()
		}
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, name)
	}
	cut("text", false, []byte("GET / HTTP/1.1\r\n\r\n"))
	cut("another protocol", false, appendFrame(nil, frameHello, func(b []byte) []byte {
		return appendNumbers(appendText(b, protocolMagic), 99)
	}))
	cut("unknown kind", true, []byte{0, 0, 0, 2, 99, 1})
	cut("too long", true, []byte{0xff, 0, 0, 0})
	cut("no such commit", true, appendFrame(nil, frameCommit, func(b []byte) []byte { return append(b, 1, 2, 3) }))
	if !testing.Short() {
		cut("silence", false, nil)
	}
	other, err := OpenDisk(path, Options{})
	require.NoError(t, err)
	require.NoError(t, other.Close())
}

// TestDocumentedBounds: docs/guarantees.md has the bounds of a client of a folder's socket.
func TestDocumentedBounds(t *testing.T) {
	text, err := os.ReadFile("../../docs/guarantees.md")
	require.NoError(t, err)
	for _, bound := range []string{
		fmt.Sprintf("| a frame | %d,%03d,%03d bytes |", maxFrame/1_000_000, maxFrame/1000%1000, maxFrame%1000),
		fmt.Sprintf("| unread answers | %d MiB |", maxUnread>>20),
		fmt.Sprintf("| commits in flight | %d MiB |", maxCommitting>>20),
		fmt.Sprintf("| watches | %d,%03d |", maxFarWatches/1000, maxFarWatches%1000),
	} {
		require.Contains(t, string(text), bound)
	}
}
