package embedded

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"fdbfifo/kv"
)

// A frame is its length without these four bytes, big-endian; a byte that says its kind; and its fields: numbers as
// varints, strings with their length before them. The reader checks the whole frame before it acts on any of it.

// frameKind says what a frame is.
type frameKind byte

const (
	// From a client.
	frameHello   frameKind = 1  // magic, protocol version, client id
	frameOpen    frameKind = 2  // snapshot; read version, 0 = the newest
	frameRelease frameKind = 3  // snapshot
	frameGet     frameKind = 4  // request; snapshot, key
	frameScan    frameKind = 5  // request; snapshot, begin, end, flags, rows wanted or 0
	frameCommit  frameKind = 6  // request; read version, reads, writes, mutations
	frameWatch   frameKind = 7  // watch; key, presence, baseline
	frameUnwatch frameKind = 8  // watch
	frameWelcome frameKind = 16 // protocol version
	// From the server; the first field is what it answers.
	frameOpened    frameKind = 17 // read version
	frameValue     frameKind = 18 // presence, value
	frameRows      frameKind = 19 // 1 if there may be more, number, keys and values
	frameCommitted frameKind = 20 // version, index; see also toldStored
	frameFired     frameKind = 21 // code, 0 = the value has changed
	frameFailed    frameKind = 22 // code, text
)

const (
	protocolMagic   = "fdbfifo"
	protocolVersion = 1

	frameHead = 4
	// maxFrame is the length of the largest commit: FoundationDB counts more for each key than a frame has.
	maxFrame = kv.MaxTransactionSize + 1<<12
	// maxHello is the length of the longest frame of a handshake.
	maxHello = 64
	// grownFrame is the size up to which a reader keeps its buffer.
	grownFrame = 64 << 10
)

// toldStored stands in the place of a commit's number. The frame then tells the version of the newest commit in the
// file, of any process. The server sends it before a snapshot that has this commit, and at its own end. Clients of
// earlier releases ignore the frame, because the numbers of their commits begin at 1.
const toldStored = 0

const (
	scanReverse  = 1
	scanKeysOnly = 2
)

// errFrame says that the peer does not speak the protocol.
var errFrame = errors.New("embedded: malformed frame")

func appendFrame(b []byte, kind frameKind, fields func(b []byte) []byte) []byte {
	at := len(b)
	b = fields(append(b, 0, 0, 0, 0, byte(kind)))
	binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-frameHead))
	return b
}

func appendNumbers(b []byte, numbers ...uint64) []byte {
	for _, n := range numbers {
		b = binary.AppendUvarint(b, n)
	}
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendValue(b []byte, v value) []byte {
	if !v.present {
		return append(b, 0)
	}
	return appendText(append(b, 1), v.data)
}

func appendRanges(b []byte, ranges []keyRange) []byte {
	b = binary.AppendUvarint(b, uint64(len(ranges)))
	for _, r := range ranges {
		b = appendText(appendText(b, r.begin), r.end)
	}
	return b
}

// frameReader reads frames, each of at most limit bytes.
type frameReader struct {
	r     io.Reader
	limit int
	buf   []byte // of at most grownFrame bytes
}

func (f *frameReader) next() (frameKind, fields, error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(f.r, head[:]); err != nil {
		return 0, fields{}, err
	}
	n := int(binary.BigEndian.Uint32(head[:]))
	if n < 1 || n > f.limit {
		return 0, fields{}, fmt.Errorf("%w: %d bytes", errFrame, n)
	}
	s, err := f.read(n)
	if err != nil {
		return 0, fields{}, err
	}
	return frameKind(s[0]), fields{rest: s[1:]}, nil
}

// read reads n bytes. The result shares nothing with the reader's buffer, which stays small. A large frame is copied
// only when it must grow. It grows with the bytes that have arrived, so a length alone takes no memory.
func (f *frameReader) read(n int) (string, error) {
	if step := min(n, grownFrame); cap(f.buf) < step {
		f.buf = make([]byte, step)
	}
	if n <= cap(f.buf) {
		_, err := io.ReadFull(f.r, f.buf[:n])
		return string(f.buf[:n]), err
	}
	all := new(strings.Builder)
	for all.Len() < n {
		step := f.buf[:min(n-all.Len(), cap(f.buf))]
		if _, err := io.ReadFull(f.r, step); err != nil {
			return "", err
		}
		if all.Cap()-all.Len() < len(step) {
			grown := new(strings.Builder)
			grown.Grow(min(n, max(len(step), 4*all.Len())))
			grown.WriteString(all.String())
			all = grown
		}
		all.Write(step)
	}
	return all.String(), nil
}

// fields takes a frame's fields off its front. A field keeps the whole frame in memory.
type fields struct {
	rest string
	bad  bool
}

func (f *fields) number() uint64 {
	var n uint64
	for i := range len(f.rest) {
		b := f.rest[i]
		if i == 9 && b > 1 || i > 9 {
			break
		}
		n |= uint64(b&0x7f) << (7 * i)
		if b < 0x80 {
			f.rest = f.rest[i+1:]
			return n
		}
	}
	f.fail()
	return 0
}

func (f *fields) fail() { f.bad, f.rest = true, "" }

// count reads the number of the elements that follow, of at least size bytes each.
func (f *fields) count(size int) int {
	n := f.number()
	if n > uint64(len(f.rest)/size) {
		f.fail()
		return 0
	}
	return int(n)
}

// version is a number that is a version.
func (f *fields) version() int64 {
	n := f.number()
	if n > 1<<62 {
		f.fail()
	}
	return int64(n)
}

func (f *fields) text() string {
	n := f.count(1)
	s := f.rest[:n]
	f.rest = f.rest[n:]
	return s
}

func (f *fields) byte() byte {
	if f.rest == "" {
		f.fail()
		return 0
	}
	b := f.rest[0]
	f.rest = f.rest[1:]
	return b
}

func (f *fields) value() value {
	switch f.byte() {
	case 0:
		return value{}
	case 1:
		return value{f.text(), true}
	}
	f.fail()
	return value{}
}

// elements reads the number of the elements that follow. A commit counts at least overhead bytes for each, even if it
// takes fewer here. So a number that no commit can have is refused before memory is taken for it.
func (f *fields) elements(size, overhead int) int {
	n := f.count(size)
	if n > kv.MaxTransactionSize/overhead {
		f.fail()
		return 0
	}
	return n
}

func (f *fields) ranges() []keyRange {
	n := f.elements(2, rangeOverhead)
	if n == 0 {
		return nil
	}
	out := make([]keyRange, n)
	for i := range out {
		out[i] = keyRange{f.text(), f.text()}
	}
	return out
}

// end returns an error if a field was malformed, or if bytes are left.
func (f *fields) end() error {
	if f.bad || f.rest != "" {
		return fmt.Errorf("%w: fields", errFrame)
	}
	return nil
}

func appendCommit(b []byte, c *commit) []byte {
	b = appendNumbers(b, uint64(c.readVersion))
	b = appendRanges(appendRanges(b, c.reads), c.writes)
	b = appendNumbers(b, uint64(len(c.mutations)))
	for _, m := range c.mutations {
		b = appendText(appendText(append(b, byte(m.kind)), m.key), m.value)
	}
	return b
}

// commit reads a commit. It makes all checks that a transaction makes, because no later step checks the commit of a
// client.
func (f *fields) commit() (*commit, error) {
	c := &commit{version: noVersion, done: make(chan struct{}), bytes: len(f.rest)}
	c.readVersion = f.version()
	c.reads, c.writes = f.ranges(), f.ranges()
	if n := f.elements(3, mutationOverhead); n > 0 {
		c.mutations = make([]mutation, n)
	}
	for i := range c.mutations {
		c.mutations[i] = mutation{kv.MutationType(f.byte()), f.text(), f.text()}
	}
	if err := f.end(); err != nil {
		return nil, err
	}
	for _, ranges := range [][]keyRange{c.reads, c.writes} {
		for _, r := range ranges {
			if r.empty() || r.end > maxKey+"\x00" || len(r.begin) > maxReadKey+1 || len(r.end) > maxReadKey+2 {
				return nil, fmt.Errorf("%w: conflict range", errFrame)
			}
		}
	}
	for _, m := range c.mutations {
		if !m.valid() {
			return nil, fmt.Errorf("%w: mutation %d", errFrame, m.kind)
		}
	}
	size := c.size()
	if c.readOnly() || size > kv.MaxTransactionSize {
		return nil, fmt.Errorf("%w: commit of %d bytes", errFrame, size)
	}
	c.bytes = max(c.bytes, int(size)) // a small mutation takes more in memory than in the frame
	detach(c.writes)
	return c, nil
}

// detach gives the ranges memory of their own. The conflict history keeps the written ranges long after the commit.
// They must not keep the frame with all its values in memory.
func detach(ranges []keyRange) {
	n := 0
	for _, r := range ranges {
		n += len(r.begin) + len(r.end)
	}
	var own strings.Builder
	own.Grow(n)
	for _, r := range ranges {
		own.WriteString(r.begin)
		own.WriteString(r.end)
	}
	rest := own.String()
	for i, r := range ranges {
		ranges[i].begin, rest = rest[:len(r.begin)], rest[len(r.begin):]
		ranges[i].end, rest = rest[:len(r.end)], rest[len(r.end):]
	}
}

// valid reports whether a transaction can have made the mutation.
func (m *mutation) valid() bool {
	if m.kind == opClear {
		return m.key < m.value && m.value <= maxKey && len(m.key) <= maxReadKey+1 && len(m.value) <= maxReadKey+2
	}
	if m.key >= maxKey || len(m.key) > kv.MaxKeySize || len(m.value) > kv.MaxValueSize {
		return false
	}
	switch {
	case m.kind == kv.SetVersionstampedKey:
		_, ok := stampOffset(m.key)
		return ok
	case m.kind == kv.SetVersionstampedValue:
		_, ok := stampOffset(m.value)
		return ok
	}
	return m.kind == opSet || isAtomic(m.kind)
}
