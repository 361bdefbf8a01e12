package embedded

import (
	"bytes"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// hostile is the connection of a client that sends any bytes, and reads all answers.
type hostile struct {
	net.Conn
	sends    []byte
	frames   int
	commits  map[uint64]*commit // the well-formed commits that it sends, by number
	rest     []byte             // the bytes of sends that were not yet read
	mu       sync.Mutex         // guards the fields below
	answered []byte
}

// script makes frames of fuzzed bytes: a kind, a length, and as many bytes of fields. The remaining bytes are sent
// unchanged. It ends before a commit whose number another one had, because a client cannot tell their answers apart.
func script(data []byte) *hostile {
	h := &hostile{commits: map[uint64]*commit{}}
	for len(data) >= 2 && data[0] != 0xff {
		n := min(int(data[1]), len(data)-2)
		h.sends = appendFrame(h.sends, frameKind(data[0]), func(b []byte) []byte { return append(b, data[2:2+n]...) })
		data = data[2+n:]
	}
	h.sends = append(h.sends, data...)
	in := bytes.NewReader(h.sends)
	r := frameReader{r: in, limit: maxFrame}
	for from := 0; ; from = len(h.sends) - in.Len() {
		kind, f, err := r.next()
		if err != nil {
			break
		}
		h.frames++
		if kind != frameCommit {
			continue
		}
		id := f.number()
		if h.commits[id] != nil {
			h.sends = h.sends[:from]
			break
		}
		if h.commits[id], err = f.commit(); err != nil {
			delete(h.commits, id)
			break
		}
	}
	h.rest = h.sends
	return h
}

func (h *hostile) Read(b []byte) (int, error) {
	if len(h.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(b, h.rest)
	h.rest = h.rest[n:]
	return n, nil
}

func (h *hostile) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answered = append(h.answered, b...)
	return len(b), nil
}

func (h *hostile) Close() error                     { return nil }
func (h *hostile) SetWriteDeadline(time.Time) error { return nil }

// told are the commits that the client was told of, in order.
func (h *hostile) told(t *testing.T) (all []*commit) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	r := frameReader{r: bytes.NewReader(h.answered), limit: maxFrame}
	for {
		kind, f, err := r.next()
		if err != nil {
			require.ErrorIs(t, err, io.EOF)
			return all
		}
		if kind != frameCommitted {
			continue
		}
		id := f.number()
		if id == toldStored {
			continue
		}
		m := h.commits[id]
		require.NotNil(t, m, "a commit that was not sent")
		m.version, m.index = f.version(), uint16(f.number())
		require.NoError(t, f.end())
		all = append(all, m)
	}
}

// piped starts a session for a client that keeps to the protocol. It returns the client's end, and a channel that is
// closed when the session is over.
func piped(e *engine) (c net.Conn, over <-chan struct{}) {
	c, at := net.Pipe()
	s, ended := newSession(e, at), make(chan struct{})
	go func() {
		defer close(ended)
		s.run()
	}()
	return c, ended
}

// nextAnswer returns the next frame that answers a request.
func nextAnswer(t *testing.T, r *frameReader) (frameKind, fields) {
	t.Helper()
	for {
		kind, f, err := r.next()
		require.NoError(t, err)
		if told := f; kind != frameCommitted || told.number() != toldStored {
			return kind, f
		}
	}
}

// reads asks for a key at the newest version, as a well-behaved client does, and requires the answer.
func reads(t *testing.T, c net.Conn, snapshot uint64, key string) string {
	t.Helper()
	r := frameReader{r: c, limit: maxFrame}
	ask := func(kind, answer frameKind, id uint64, more func(b []byte) []byte) fields {
		_, err := c.Write(numbered(kind, id, more))
		require.NoError(t, err)
		got, f := nextAnswer(t, &r)
		require.Equal(t, answer, got)
		require.Equal(t, id, f.number())
		return f
	}
	ask(frameOpen, frameOpened, snapshot, func(b []byte) []byte { return appendNumbers(b, 0) })
	get := func(b []byte) []byte { return appendText(appendNumbers(b, snapshot), key) }
	f := ask(frameGet, frameValue, snapshot+1, get)
	v := f.value()
	require.NoError(t, f.end())
	_, err := c.Write(numbered(frameRelease, snapshot, func(b []byte) []byte { return b }))
	require.NoError(t, err)
	ask(frameGet, frameFailed, snapshot+2, get) // it is released by now
	return v.data
}

// contentsOf are all pairs of a store.
func contentsOf(t *testing.T, s store) map[string]string {
	t.Helper()
	v, err := s.snapshot()
	require.NoError(t, err)
	defer v.close()
	all := map[string]string{}
	require.NoError(t, v.ascend(keyRange{}, false, func(key, value string) bool {
		all[key] = value
		return true
	}))
	return all
}

// FuzzSession: a client sends any frames in any order, and breaks off anywhere. The server survives and answers other
// clients. Its memory stays in proportion to the bytes sent, and it releases all that the client held. Exactly the
// commits that it has confirmed to the client have happened.
func FuzzSession(f *testing.F) {
	frame := func(kind frameKind, b ...byte) []byte { return append([]byte{byte(kind), byte(len(b))}, b...) }
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	set := appendCommit(nil, &commit{
		writes: []keyRange{{"a", "a\x00"}}, mutations: []mutation{{opSet, "a", "1"}},
	})
	read := appendCommit(nil, &commit{
		readVersion: firstVersion, reads: []keyRange{{"a", "b"}}, writes: []keyRange{{"a", "b"}},
		mutations: []mutation{{opClear, "a", "b"}},
	})
	sample := appendCommit(nil, sampleCommit())
	open := frame(frameOpen, 1, 0)
	f.Add(join(frame(frameCommit, set...), open, frame(frameGet, 2, 1, 1, 'a'), frame(frameCommit, read...)))
	f.Add(join(open, open, frame(frameCommit, set...)))
	f.Add(join(open, frame(frameScan, 2, 1, 0, 1, 0xfe, 0, 0), frame(frameRelease, 1), frame(frameGet, 3, 1, 1, 'a')))
	watch := frame(frameWatch, 1, 1, 'a', 0)
	f.Add(join(watch, frame(frameCommit, set...), frame(frameUnwatch, 1), frame(frameUnwatch, 9)))
	f.Add(join(watch, watch))
	f.Add(join(frame(frameCommit, sample...), frame(frameCommit, set...), []byte{0xff, 0xff, 0xff, 0xff, 6, 1}))
	f.Add(join(frame(frameHello), frame(frameCommit, set...)))
	f.Add(join(frame(frameCommit, 1, 0xff, 0xff, 0xff, 0xff, 0x0f), frame(frameCommit, set...)))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<16 {
			return
		}
		h := script(data)
		db := OpenMemory(Options{})
		e := db.local.Load()
		honest, honestOver := piped(e)
		require.Empty(t, reads(t, honest, 1, "a"))

		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		newSession(e, h).run()
		runtime.ReadMemStats(&after)
		most := uint64(1<<20 + 64*len(h.sends) + h.frames*h.frames*1024)
		took := after.TotalAlloc - before.TotalAlloc
		require.LessOrEqual(t, took, most, "%d bytes in %d frames", len(h.sends), h.frames)
		require.Zero(t, db.Usage().Transactions)
		e.watches.mu.Lock()
		require.Zero(t, e.watches.keys.Len())
		e.watches.mu.Unlock()

		want := newMemStore()
		for _, c := range h.told(t) {
			c.resolveStamps()
			require.NoError(t, want.apply(c.version, c.mutations))
		}
		stored := contentsOf(t, e.store)
		require.Equal(t, contentsOf(t, want), stored, "what the client was told")
		require.Equal(t, stored["a"], reads(t, honest, 11, "a"), "another client")
		require.NoError(t, honest.Close())
		<-honestOver
		require.NoError(t, db.Close())
	})
}
