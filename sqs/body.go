package sqs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/schemas"

	"fdbfifo/internal/doors"
)

const (
	// maxBody bounds a request that sends messages: a batch of 1 MiB whose bytes are escaped, with attributes in
	// base64.
	maxBody = 8 << 20 // bytes
	// maxOther bounds all other requests.
	maxOther = 256 << 10 // bytes
	// freeBody is the size of a body that every connection may hold. Requests with a larger body share bodyMemory.
	freeBody = 8 << 10 // bytes
	// bodyMemory bounds the larger bodies together. Those from one remote address have half of it. The values that are
	// decoded from a body take a few times as much.
	bodyMemory = 32 << 20 // bytes
	// patience is how long a request without a verified signature may keep another one waiting.
	patience = doors.Patience
	// memoryIn is how long a request waits for memory before it is refused.
	memoryIn = 10 * time.Second
	// A body must come within bodyGrace, and a second more for each leastRate bytes that have come, and within
	// bodyTimeout.
	bodyGrace = 5 * time.Second
	leastRate = 16 << 10 // bytes
	// refusedIn is how long the server reads and discards the rest of a request that it has refused for its header.
	refusedIn = time.Second
)

// bodyLimit is how long the body of a request may be, in bytes.
func bodyLimit(action string) int64 {
	if strings.HasPrefix(action, "SendMessage") {
		return maxBody
	}
	return maxOther
}

func tooLarge(limit int64) error {
	return refuse(http.StatusRequestEntityTooLarge, "RequestEntityTooLargeException", "RequestEntityTooLarge",
		"Request size exceeded the limit of %d bytes.", limit)
}

// readBody reads the whole body, up to the limit. The request keeps memory for it until the request is answered.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request, c *call) ([]byte, error) {
	limit := int64(maxBody) // the Query protocol may have the action in the body
	if c.json {
		limit = bodyLimit(c.action)
	}
	if r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	control := http.NewResponseController(w)
	p := &pacedBody{r: http.MaxBytesReader(w, r.Body, limit), deadline: func(t time.Time) {
		_ = control.SetReadDeadline(t) // without a connection, as in a test, there is none to set
	}}
	size := r.ContentLength
	if size < 0 {
		size = limit
	}
	if size > freeBody {
		var err error
		h := &share{address: c.address, size: size, deadline: p.deadline}
		if c.memory, err = s.memory.take(r.Context(), h); err != nil {
			return nil, err
		}
		p.memory = c.memory
	}
	var text bytes.Buffer
	if r.ContentLength > 0 {
		text.Grow(int(size) + bytes.MinRead)
	}
	c.reading, p.begun = true, time.Now()
	_, err := text.ReadFrom(p)
	var beyond *http.MaxBytesError
	switch {
	case errors.As(err, &beyond):
		return nil, tooLarge(limit)
	case err == nil && p.until(time.Time{}, true):
		return text.Bytes(), nil
	case c.memory.gaveWay():
		return nil, busy()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, refuse(http.StatusRequestTimeout, "RequestTimeoutException", "RequestTimeout",
			"The body of the request came too slowly.")
	}
	return nil, malformed(errors.New("the body ended early"))
}

// pacedBody is a body that must come at leastRate.
type pacedBody struct {
	r        io.Reader
	deadline func(t time.Time)
	memory   *share // nil if it needs none
	begun    time.Time
	got      int64 // bytes
}

func (p *pacedBody) Read(b []byte) (int, error) {
	within := min(bodyGrace+time.Duration(p.got)*time.Second/leastRate, bodyTimeout)
	p.until(p.begun.Add(within), false)
	n, err := p.r.Read(b)
	p.got += int64(n)
	return n, err
}

// until sets the deadline of reading. It returns false if the request has given way to another. With whole set the
// request does not give way any more.
func (p *pacedBody) until(t time.Time, whole bool) bool {
	if p.memory != nil {
		return p.memory.until(t, whole)
	}
	p.deadline(t)
	return true
}

// addressOf returns the remote address of a request. For IPv6 it returns the network, because one client has a whole
// network.
func addressOf(r *http.Request) string {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	address := at.Addr().Unmap()
	if !address.Is6() {
		return address.String()
	}
	network, _ := address.WithZone("").Prefix(64) // 64 bits are not too many for IPv6
	return network.String()
}

// memory is the memory for the bodies of requests, or for answers. Each body takes its part before it is read, and
// keeps it until the request is answered. If none is left, the newest request is served first, as in the line of a
// queue's long polls. A body whose reading takes longer than patience gives way, as does an answer of which the client
// reads nothing for that long.
type memory struct {
	most    int64 // bytes; one remote address has half of them
	mu      sync.Mutex
	taken   map[string]int64 // bytes by remote address; guarded by mu
	total   int64            // bytes; guarded by mu
	holders []*share         // the oldest first; guarded by mu
	waiting []*share         // the newest last; guarded by mu
}

// share is one request's part of the memory.
type share struct {
	of       *memory
	address  string
	size     int64 // bytes
	granted  chan struct{}
	deadline func(t time.Time) // of reading the body, or of writing the answer
	short    func()            // called if the memory is not there at once; may be nil

	begun   time.Time // of reading the body, or of writing a part of the answer; guarded by of.mu
	whole   bool      // it is neither read nor written, and does not give way; guarded by of.mu
	evicted bool      // it gave way; guarded by of.mu
}

// take waits for a part of the memory, and returns it. The caller must release the share.
func (m *memory) take(ctx context.Context, h *share) (*share, error) {
	h.of, h.granted = m, make(chan struct{})
	m.mu.Lock()
	m.waiting = append(m.waiting, h)
	m.grant()
	m.mu.Unlock()
	select {
	case <-h.granted:
		return h, nil
	default:
		if h.short != nil {
			h.short()
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, memoryIn, busy())
	defer cancel()
	again := time.NewTicker(patience / 20)
	defer again.Stop()
	for {
		select {
		case <-h.granted:
			return h, nil
		case <-again.C:
			m.makeRoom(h)
		case <-ctx.Done():
			h.release()
			return nil, context.Cause(ctx)
		}
	}
}

func busy() error {
	return fail(schemas.RequestThrottled, "The server has too many large requests and answers now. Try again.")
}

// grant gives memory to waiting requests. A request whose address has used up its part waits for another request of the
// address. All others wait for the first in line. The caller must hold m.mu.
func (m *memory) grant() {
	for i := len(m.waiting) - 1; i >= 0; i-- {
		h := m.waiting[i]
		if m.taken[h.address]+h.size > m.most/2 {
			continue
		}
		if m.total+h.size > m.most {
			return
		}
		m.waiting = slices.Delete(m.waiting, i, i+1)
		m.taken[h.address] += h.size
		m.total += h.size
		m.holders = append(m.holders, h)
		h.begun = time.Now()
		close(h.granted)
	}
}

// makeRoom ends the reading of bodies that have been coming for too long, the oldest first, until there is room for
// one that waits.
func (m *memory) makeRoom(h *share) {
	m.mu.Lock()
	defer m.mu.Unlock()
	address, all := m.taken[h.address]+h.size-m.most/2, m.total+h.size-m.most // bytes too many
	for _, other := range m.holders {
		if all <= 0 && address <= 0 {
			return
		}
		same := other.address == h.address
		if other.whole || all <= 0 && !same || !other.evicted && time.Since(other.begun) < patience {
			continue
		}
		if !other.evicted {
			other.evicted = true
			other.deadline(time.Unix(1, 0))
		}
		all -= other.size // it is about to release them
		if same {
			address -= other.size
		}
	}
}

// until is pacedBody.until.
func (h *share) until(t time.Time, whole bool) bool {
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	if h.evicted {
		return false
	}
	h.whole = whole
	h.deadline(t)
	return true
}

// gaveWay reports whether the request has given way to another. A request without a share has not.
func (h *share) gaveWay() bool {
	if h == nil {
		return false
	}
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	return h.evicted
}

// resize changes how much memory the request has. It does not wait: an answer can turn out to be larger.
func (h *share) resize(size int64) {
	m := h.of
	m.mu.Lock()
	defer m.mu.Unlock()
	m.total += size - h.size
	m.taken[h.address] += size - h.size
	h.size = size
	m.grant()
}

// writing says that a part of the answer is about to be written. It returns false if the request has given way to
// another.
func (h *share) writing() bool {
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	h.begun, h.whole = time.Now(), false
	return !h.evicted
}

// release gives the memory back. It does nothing if h is nil.
func (h *share) release() {
	if h == nil {
		return
	}
	m := h.of
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.Index(m.waiting, h); i >= 0 {
		m.waiting = slices.Delete(m.waiting, i, i+1)
	}
	if i := slices.Index(m.holders, h); i >= 0 {
		m.holders = slices.Delete(m.holders, i, i+1)
		m.total -= h.size
		m.taken[h.address] -= h.size
		if !slices.ContainsFunc(m.holders, func(other *share) bool { return other.address == h.address }) {
			delete(m.taken, h.address)
		}
	}
	m.grant()
}
