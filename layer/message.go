package layer

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// Message is what a producer enqueues. The queue keeps no reference to it.
type Message struct {
	// Group is the ordering key: messages of a group are delivered in order, to one holder at a time.
	// "" is the default group. At most MaxGroupSize bytes of UTF-8.
	Group string
	// Body is at most MaxBodySize bytes; it may be empty.
	Body []byte
	// Headers travel with the body, at most MaxHeadersSize bytes of names and values together.
	Headers map[string]string
	// DedupID, if not empty, makes it a duplicate of an earlier message with the same one: it is not enqueued again. See
	// Config.DedupFor. At most MaxDedupIDSize bytes of UTF-8.
	DedupID string
	// Delay is for how long it is delayed, from its enqueue on: 0 to MaxDelay; 0 = the queue's. Whatever is behind it in
	// its group waits too: order is kept.
	Delay time.Duration
	// DeliverAt, if not zero, is when it may be delivered, rounded up to the millisecond; at most MaxDelay from now. If
	// that has passed it is not delayed. Not with Delay.
	DeliverAt time.Time
	// AtOnce: it is not delayed, whatever the queue's delay is. Not with Delay or DeliverAt.
	AtOnce bool
}

// OnlyGroup returns a pointer to name, for the options and filters that may be limited to one group ("" is a group, too).
func OnlyGroup(name string) *string { return &name }

// ID names one message for good: its place (group, index) and 16 random bytes.
type ID struct {
	Group  string
	Index  int64
	Random uuid.UUID
}

// String returns the id as text, which ParseID reads: random "@" index "." group.
func (id ID) String() string {
	return id.Random.String() + "@" + strconv.FormatInt(id.Index, 10) + "." + id.Group
}

// ParseID reads the text of an id; anything else is an error that wraps ErrInvalidID.
func ParseID(s string) (ID, error) {
	id, err := parseID(s)
	return id, wrap("parse id", err)
}

func parseID(s string) (ID, error) {
	random, rest, ok := strings.Cut(s, "@")
	index, group, ok2 := strings.Cut(rest, ".")
	if !ok || !ok2 || len(random) != 36 {
		return ID{}, fmt.Errorf("%w: %q is not UUID@INDEX.GROUP", ErrInvalidID, s)
	}
	u, err := uuid.Parse(random)
	if err != nil {
		return ID{}, fmt.Errorf("%w: %q: %w", ErrInvalidID, s, err)
	}
	n, err := strconv.ParseInt(index, 10, 64)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != index {
		return ID{}, fmt.Errorf("%w: %q has no index", ErrInvalidID, s)
	}
	if err := checkGroup(group); err != nil {
		return ID{}, fmt.Errorf("%w: %w", ErrInvalidID, err)
	}
	return ID{Group: group, Index: n, Random: u}, nil
}

// checkID refuses what cannot be the id of any message.
func checkID(id ID) error {
	if err := checkGroup(id.Group); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidID, err)
	}
	if id.Index < 0 || id.Random == uuid.Nil {
		return fmt.Errorf("%w: %s", ErrInvalidID, id)
	}
	return nil
}

// Item is a message in the queue, as delivered or peeked at. It belongs to the caller.
type Item struct {
	ID       ID
	Body     []byte
	Headers  map[string]string // nil if there are none
	Enqueued time.Time         // by the producer's clock, to the millisecond
	// DeliverAt is before when it is not delivered; zero if it was never delayed.
	DeliverAt time.Time
	DedupID   string // that it went by; "sha256:…" if that was its body's; "" = none
	// Attempts is how often a delivery of this item has failed before, as far as the claim knows: it is exact
	// in the attempt record, which decides, and may be too small here after a rare race of two enqueues, or if dead
	// letters were redriven to their places before it.
	Attempts int
}

// message is what the item was made of, for an edit.
func (i *Item) message() Message {
	m := Message{
		Group: i.ID.Group, Body: i.Body, Headers: maps.Clone(i.Headers), DedupID: i.DedupID, DeliverAt: i.DeliverAt,
	}
	if m.Headers == nil {
		m.Headers = make(map[string]string)
	}
	return m
}

// keeps refuses an edit of i that would change more than body and headers.
func (m *Message) keeps(i *Item) error {
	switch {
	case m.Group != i.ID.Group:
		return fmt.Errorf("%w: an edit cannot move a message to group %q", ErrOptions, m.Group)
	case m.DedupID != i.DedupID:
		return fmt.Errorf("%w: an edit cannot change the dedup id, to %q", ErrOptions, m.DedupID)
	case m.Delay != 0 || m.AtOnce || !m.DeliverAt.Equal(i.DeliverAt):
		return fmt.Errorf("%w: an edit cannot change when a message is delivered", ErrOptions)
	}
	return nil
}

// check validates m and returns the size of its body and headers.
func (m *Message) check() (int, error) {
	if err := checkGroup(m.Group); err != nil {
		return 0, err
	}
	if len(m.Body) > MaxBodySize {
		return 0, &LimitError{What: "body", Unit: "bytes", Got: int64(len(m.Body)), Max: MaxBodySize}
	}
	if err := checkDedupID(m.DedupID); err != nil {
		return 0, err
	}
	if err := checkDelay(m.Delay); err != nil {
		return 0, err
	}
	if m.Delay != 0 && !m.DeliverAt.IsZero() || m.AtOnce && (m.Delay != 0 || !m.DeliverAt.IsZero()) {
		return 0, fmt.Errorf("%w: of Delay, DeliverAt and AtOnce only one", ErrOptions)
	}
	headers := 0
	for name, value := range m.Headers {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return 0, fmt.Errorf("%w: header %q", ErrInvalidUTF8, name)
		}
		headers += len(name) + len(value)
	}
	if headers > MaxHeadersSize {
		return 0, &LimitError{What: "headers", Unit: "bytes", Got: int64(headers), Max: MaxHeadersSize}
	}
	return len(m.Body) + headers, nil
}

func checkDedupID(id string) error {
	if len(id) > MaxDedupIDSize {
		return &LimitError{What: "dedup id", Unit: "bytes", Got: int64(len(id)), Min: 1, Max: MaxDedupIDSize}
	}
	if !utf8.ValidString(id) {
		return fmt.Errorf("%w: dedup id %q", ErrInvalidUTF8, id)
	}
	return nil
}
