package layer

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"fdbfifo/layer/internal/rec"
)

// Message is what a producer enqueues. The queue keeps no reference to the message: body, headers and slice are the
// caller's again when Enqueue has returned, also if its context has ended and the outcome is unknown.
type Message struct {
	// Group is the ordering key: messages of a group are delivered in order, to one holder at a time. "" is the default
	// group. At most MaxGroupSize bytes of UTF-8.
	Group string
	// Alone gives the message a group of its own, under a random name: the message waits for no other message, and no
	// other message waits. Messages without a group, by contrast, are one group, which one worker at a time handles.
	// Sent.ID has the name of the group. Not with Group, nor where duplicates are looked for within groups
	// (DedupInGroup) if the message has a dedup id.
	Alone bool
	// Tenant is the owner of a message that is alone: with Config.Fair tenants do not hold up each other. Only with
	// Alone. The messages of a tenant lie in one of the queue's shards. Two tenants have the same shard with a chance
	// of 1 in Config.Shards. The tenant is not stored. "" = in any shard. At most MaxGroupSize bytes.
	Tenant string
	// Body is at most MaxBodySize bytes, and may be empty.
	Body []byte
	// Headers travel with the body, at most MaxHeadersSize bytes of names and values together, besides ReplayHeader.
	Headers map[string]string
	// DedupID, if not empty, makes the message a duplicate of an earlier message with the same DedupID. A duplicate is
	// not enqueued again. See Config.DedupWindow. At most MaxDedupIDSize bytes of UTF-8. With Config.DedupByContent a
	// message without an id gets one: "sha256:" and the SHA-256 of its body in hexadecimal.
	//
	// A program that moves a message out of another queue must look at Sent.Duplicate before it commits: a duplicate
	// would then be in neither queue. With a new random id the message is never a duplicate, whatever the queue's
	// configuration.
	DedupID string
	// Delay is how long the message is delayed after the enqueue: 0 to MaxDelay; 0 = the queue's delay. Messages behind
	// a delayed message of the group wait, too, because order is kept.
	Delay time.Duration
	// DeliverAt, if not zero, is the earliest delivery time, rounded up to the millisecond; at most MaxDelay from now.
	// With a time in the past the message is not delayed. Not with Delay.
	DeliverAt time.Time
	// AtOnce: the message is not delayed, whatever the queue's delay. Not with Delay or DeliverAt.
	AtOnce bool
	// JoinWhenDue lets the message join the tail of its group when it is due, by Delay or DeliverAt. Until then no
	// message of the group waits for it. It waits in a group of its own, which Sent.ID has: the name is that of Group
	// and the time, for example "order-7 (until 2027-01-31T08:00:00.000Z)". Calls that look for the message, cancel or
	// change it, and lists of groups, know it by this group. Messages of a group join in the order of their times.
	//
	// A receive or take that names no group moves the message when it is due; those that name Group do not. Its ID then
	// has another group and index, and the same Random, and the time of its enqueue is that of the move. Subscriptions
	// are told then that it was enqueued. MaxWaiting does not count it, nor refuse it when it joins. Reschedule refuses
	// it.
	//
	// Not with Alone or BehindAll, nor in a queue with facets or unordered consumers; of Group at most MaxGroupSize
	// less 33 bytes. A message that is due at once is in its group from the start. All processes that use the queue
	// must know JoinWhenDue: one that does not finds the message unreadable.
	JoinWhenDue bool
	// BehindAll puts the message behind every message of its group that was committed before it, whatever the
	// enqueueing transaction has read before. The price is that the transaction conflicts, and so runs again, if
	// another message comes to the group in that time. It is for EnqueueTx. Enqueue needs no such option, see there.
	BehindAll bool
}

// A message with JoinWhenDue waits in the waiting group of its group and its time: see join.go.

// A waiting group has the name of the group that its messages join, and behind it joinTime: the time at which they are
// due. joinMark is the beginning of joinTime, which all waiting groups of a group have in common.
const (
	joinTime = joinMark + "2006-01-02T15:04:05.000Z)"
	joinMark = " (until "
)

// waitingGroup returns the name of the group in which a message waits that joins group at dueMS. Example: "order-7
// (until 2027-01-31T08:00:00.000Z)".
func waitingGroup(group string, dueMS int64) string {
	return group + fromMillis(dueMS).UTC().Format(joinTime)
}

// joinedFrom returns the group that the messages of a waiting group join. ok is false if the name is not that of a
// waiting group.
func joinedFrom(waiting string) (group string, ok bool) {
	n := len(waiting) - len(joinTime)
	if n < 0 {
		return "", false
	}
	_, err := time.Parse(joinTime, waiting[n:])
	return waiting[:n], err == nil
}

// checkJoin returns ErrOptions for a message with JoinWhenDue and options that do not go with it, and a *LimitError if
// there is no room for the time in the name of its waiting group.
func checkJoin(m *Message) error {
	switch {
	case !m.JoinWhenDue:
		return nil
	case m.Alone, m.BehindAll:
		return fmt.Errorf("%w: JoinWhenDue, and alone or behind all", ErrOptions)
	case m.Delay == 0 && m.DeliverAt.IsZero():
		return fmt.Errorf("%w: JoinWhenDue goes with Delay or DeliverAt", ErrOptions)
	case len(m.Group) > MaxGroupSize-len(joinTime):
		return &LimitError{
			What: "group of a message that joins when due", Unit: "bytes", Got: int64(len(m.Group)),
			Max: MaxGroupSize - int64(len(joinTime)),
		}
	}
	return nil
}

// joins says which group a message of an enqueue joins later, and when; the zero value = it is in its group from the
// start.
type joins struct {
	group string
	dueMS int64
}

// joinsWhenDue returns which group the message joins, and when, if it has JoinWhenDue. A message that is due now is in
// its group from the start: the result is zero.
func joinsWhenDue(m *Message, nowMS int64) joins {
	dueMS := nowMS + m.Delay.Milliseconds()
	if !m.DeliverAt.IsZero() {
		dueMS = millis(m.DeliverAt.Add(time.Millisecond - 1))
	}
	if !m.JoinWhenDue || dueMS <= nowMS {
		return joins{}
	}
	return joins{group: m.Group, dueMS: dueMS}
}

// OnlyGroup returns a pointer to name, for options and filters which a group may limit ("" is a group, too).
func OnlyGroup(name string) *string { return &name }

// ID names one message for good: the place (group, index) and 16 random bytes.
type ID struct {
	Group  string
	Index  int64
	Random uuid.UUID
}

// String returns the id as text, which ParseID reads: random "@" index "." group.
func (id ID) String() string {
	return id.Random.String() + "@" + strconv.FormatInt(id.Index, 10) + "." + id.Group
}

// ReplayHeader is the header of a replayed message: the id of the archived item which the message repeats.
const ReplayHeader = "fdbfifo-replay-of"

// maxIDText is the length of the longest text of an id: a random, "@", an index, "." and a group.
const maxIDText = 36 + 1 + 19 + 1 + MaxGroupSize

// ParseID reads the text of an id. The hexadecimal digits may also be capital letters, which String does not write. Any
// other text gives an error which wraps ErrInvalidID.
func ParseID(s string) (ID, error) {
	id, err := parseID(s)
	return id, wrap("parse id", err)
}

// parseID is ParseID, and its error does not name the call.
func parseID(s string) (ID, error) {
	random, rest, ok := strings.Cut(s, "@")
	index, group, ok2 := strings.Cut(rest, ".")
	if !ok || !ok2 || len(random) != 36 {
		return ID{}, fmt.Errorf("%w: %.200q is not UUID@INDEX.GROUP", ErrInvalidID, s)
	}
	u, err := uuid.Parse(random)
	if err != nil {
		return ID{}, fmt.Errorf("%w: %.200q: %w", ErrInvalidID, s, err)
	}
	n, err := strconv.ParseInt(index, 10, 64)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != index {
		return ID{}, fmt.Errorf("%w: %.200q has no index", ErrInvalidID, s)
	}
	if err := checkGroup(group); err != nil {
		return ID{}, fmt.Errorf("%w: %w", ErrInvalidID, err)
	}
	return ID{Group: group, Index: n, Random: u}, nil
}

// checkID returns ErrInvalidID for an ID which no message can have.
func checkID(id ID) error {
	if err := checkGroup(id.Group); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidID, err)
	}
	if id.Index < 0 || id.Random == uuid.Nil {
		return fmt.Errorf("%w: %s", ErrInvalidID, id)
	}
	return nil
}

// Item is a message in the queue, as delivered or peeked at. The item belongs to the caller.
type Item struct {
	ID       ID
	Body     []byte
	Headers  map[string]string // nil if there are none
	Enqueued time.Time         // by the producer's clock, to the millisecond
	// DeliverAt is the earliest delivery time; zero if the message was never delayed.
	DeliverAt time.Time
	DedupID   string // the dedup id in use; "sha256:…" if made from the body; "" = none
	// Attempts is how often a delivery of this item has failed before, as far as the claim knows. The attempt record is
	// exact, and decides. Attempts may be too small after a rare race of two enqueues, or if dead letters were redriven
	// to their places before the item.
	Attempts int
	// FirstDelivered is when the item was first delivered, by the receiver's clock: exact to the millisecond if that
	// delivery failed, or is this one. Deliveries that count no attempt are not recorded (a Release, or a delivery
	// behind the item that was tried). FirstDelivered is then the first failed delivery, or this one. It begins again
	// after a redrive or a Replace. It is zero in an item that was not delivered, and in one that you look at before a
	// delivery has failed.
	FirstDelivered time.Time
	// LastFailed is when the last failed delivery ended, by the clock of the process that counted the failure; zero if
	// no delivery has failed.
	LastFailed time.Time
}

// message returns the message which the item was made of: for an edit, or to enqueue the item in another place. The
// headers are a copy, and the body is the item's.
func (i *Item) message() Message {
	m := Message{
		Group: i.ID.Group, Body: i.Body, Headers: maps.Clone(i.Headers), DedupID: i.DedupID, DeliverAt: i.DeliverAt,
	}
	if m.Headers == nil {
		m.Headers = make(map[string]string)
	}
	return m
}

// keeps returns ErrOptions if m, the message of item i as an edit or an advance leaves it, has changed more than body
// and headers.
func (m *Message) keeps(i *Item) error {
	switch {
	case m.Alone:
		return fmt.Errorf("%w: an edit cannot move a message to a group of its own", ErrOptions)
	case m.Group != i.ID.Group:
		return fmt.Errorf("%w: an edit cannot move a message to group %q", ErrOptions, m.Group)
	case m.DedupID != i.DedupID:
		return fmt.Errorf("%w: an edit cannot change the dedup id, to %q", ErrOptions, m.DedupID)
	case m.BehindAll:
		return fmt.Errorf("%w: an edit cannot change a message's place", ErrOptions)
	case m.Delay != 0 || m.AtOnce || m.JoinWhenDue || !m.DeliverAt.Equal(i.DeliverAt):
		return fmt.Errorf("%w: an edit cannot change when a message is delivered", ErrOptions)
	}
	return nil
}

// Check returns the error that Enqueue would return for the message in any queue: *LimitError, ErrInvalidUTF8 or
// ErrOptions. It compares DeliverAt with the clock of this process. A queue may still refuse the message for its
// configuration: for a missing group (GroupRequired), a missing facet, JoinWhenDue in a queue with facets or unordered
// consumers, or a message that is alone and has a dedup id (DedupInGroup).
func (m *Message) Check() error {
	if err := m.checkDeliverAt(time.Now()); err != nil {
		return err
	}
	_, err := m.check()
	return err
}

// checkDeliverAt returns a *LimitError for a delivery time more than MaxDelay from now.
func (m *Message) checkDeliverAt(now time.Time) error {
	if left := m.DeliverAt.Sub(now); !m.DeliverAt.IsZero() && left > MaxDelay {
		return checkDelay(left)
	}
	return nil
}

// check returns the error for a message that no queue accepts, apart from checkDeliverAt, or else the size of its body
// and headers in bytes.
func (m *Message) check() (int, error) {
	if err := checkGroup(m.Group); err != nil {
		return 0, err
	}
	if m.Alone && m.Group != "" {
		return 0, fmt.Errorf("%w: alone, and in group %q", ErrOptions, m.Group)
	}
	switch {
	case m.Tenant != "" && !m.Alone:
		return 0, fmt.Errorf("%w: tenant %q of a message that is not alone", ErrOptions, m.Tenant)
	case len(m.Tenant) > MaxGroupSize:
		return 0, &LimitError{What: "tenant", Unit: "bytes", Got: int64(len(m.Tenant)), Max: MaxGroupSize}
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
	if err := checkJoin(m); err != nil {
		return 0, err
	}
	headers := 0
	for name, value := range m.Headers {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return 0, fmt.Errorf("%w: header %q", ErrInvalidUTF8, name)
		}
		if name != ReplayHeader || len(value) > maxIDText { // a replay adds it to headers that may have no room left
			headers += len(name) + len(value)
		}
	}
	if headers > MaxHeadersSize {
		return 0, &LimitError{What: "headers", Unit: "bytes", Got: int64(headers), Max: MaxHeadersSize}
	}
	return len(m.Body) + headers, nil
}

// checkDedupID returns the error for a dedup id that is too long (*LimitError) or not valid UTF-8.
func checkDedupID(id string) error {
	if len(id) > MaxDedupIDSize {
		return &LimitError{What: "dedup id", Unit: "bytes", Got: int64(len(id)), Min: 1, Max: MaxDedupIDSize}
	}
	if !utf8.ValidString(id) {
		return fmt.Errorf("%w: dedup id %q", ErrInvalidUTF8, id)
	}
	return nil
}

// Sent is the result for one message of an enqueue.
type Sent struct {
	// ID is the message's own. For a duplicate it is the ID of the earlier message, which may have been acked since.
	ID ID
	// Duplicate: not enqueued, because an earlier message (perhaps of this batch) has the same dedup id.
	Duplicate bool
}

// Follows says what happens to an item after a failed attempt, or after a claim that was given back.
type Follows string

// The outcomes.
const (
	FollowsRetry      Follows = "retry"        // the item is delivered again
	FollowsDeadLetter Follows = "dead letter"  // the item has failed for good and was taken aside
	FollowsHalt       Follows = "group halted" // the item has failed for good, and its group is stopped
	FollowsRelease    Follows = "given back"   // no attempt counts: the item is delivered again
	FollowsUnknown    Follows = "unknown"      // perhaps nothing was committed, and the lease expires
)

// failedBefore sets Attempts, FirstDelivered and LastFailed from the attempt record of the item (the key attempt).
// Times that the record does not have stay as they are.
func (i *Item) failedBefore(record rec.Attempt) {
	if i.Attempts = record.Count; record.DeliveredMS > 0 {
		i.FirstDelivered = fromMillis(record.DeliveredMS)
	}
	if record.Count > 0 {
		i.LastFailed = fromMillis(record.LastMS)
	}
}
