package layer

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"fdbfifo/layer/internal/rec"
)

// Limits and defaults. Most limits are checked before a transaction begins. A call over a limit fails with a
// *LimitError, whose What names the value.
const (
	// MaxGroupSize bounds a group's name, because the name is in every key of the group (FoundationDB's own limit for a
	// key is 10,000 bytes, and keys over 1 kB are slow).
	MaxGroupSize = 1024 // bytes of UTF-8
	// maxQueueNameSize bounds a queue's name, for the same reason.
	maxQueueNameSize = 256 // bytes of UTF-8
	// maxPrefixSize bounds the prefix that is given to Create and Open, for the same reason.
	maxPrefixSize = 1024 // bytes
	// MaxHeadersSize bounds the headers of a message: names and values together.
	MaxHeadersSize = 16 << 10 // bytes
	// MaxBodySize bounds a message's body. An enqueue then needs less than half of the 10 MB that a transaction may
	// have.
	MaxBodySize = 4 << 20 // bytes
	// maxSubscriptionSize bounds the name of a subscription.
	maxSubscriptionSize = 256 // bytes of UTF-8
	// MaxDedupIDSize bounds a dedup id, because the id is in a key and in the item.
	MaxDedupIDSize = 256 // bytes of UTF-8
	// maxReceiveIDSize bounds the id of a receive, because the id is in a key.
	maxReceiveIDSize = 128 // bytes of UTF-8
	// MaxStateSize bounds a group's state (FoundationDB's limit for a value is 100,000 bytes).
	MaxStateSize = 90_000 // bytes
	// MaxBatch bounds the messages of an enqueue and the items of a receive.
	MaxBatch = 1000
	// MaxBatchSize bounds the bodies and headers of one enqueue together.
	MaxBatchSize = 4 << 20 // bytes
	// maxEnqueueSize bounds the bodies, headers and keys which an enqueue adds to its transaction. The counters and
	// wakes have the rest of the 10,000,000 bytes.
	maxEnqueueSize = 9_000_000 // bytes by FoundationDB's count, of 10,000,000

	// MinLease and MaxLease bound a lease. With a lease below a second a single slow commit could lose the claim.
	MinLease = time.Second
	MaxLease = 12 * time.Hour
	// MaxDelay bounds the delay of a message and of a retry.
	MaxDelay = 30 * 24 * time.Hour

	// maxWaitingLimit bounds Config.MaxWaiting, because the database passes over as many keys of the group in an
	// enqueue, to find the item that would be one too many (readOverflow).
	maxWaitingLimit = 100_000

	// MaxWait bounds the wait of a receive.
	MaxWait = time.Hour
	// minPoll bounds Options.Poll. A time whose unit was forgotten is a few nanoseconds, and a handle that polls so
	// often would read without a pause.
	minPoll = time.Millisecond
	// maxShards bounds the shards of ready hints and timers, because a receive reads all shards.
	maxShards = 64

	// defaultLease is the lease of a queue whose configuration names none.
	defaultLease = 30 * time.Second
	// DefaultMax is the number of items of a receive which names no Max.
	DefaultMax = 10
	// defaultMaxBytes bounds the bodies of a receive which names no bound; a larger first item is delivered alone.
	defaultMaxBytes = 1 << 20 // bytes
)

// The stored forms must have these limits too: otherwise the package does not compile.
var (
	_ [MaxBodySize]struct{} = [rec.MaxBody]struct{}{}
	_ [maxShards]struct{}   = [rec.MaxShards]struct{}{}
)

// checkGroup returns the error for a name that no group can have: *LimitError for its size, ErrInvalidUTF8.
func checkGroup(group string) error { return checkText("group", group, MaxGroupSize) }

// checkText returns the error for a text that is longer than most bytes (*LimitError), or no UTF-8 (ErrInvalidUTF8).
// what is the name of the value.
func checkText(what, text string, most int64) error {
	if err := checkSize(what, len(text), most); err != nil {
		return err
	}
	if !utf8.ValidString(text) {
		return fmt.Errorf("%w: %s %q", ErrInvalidUTF8, what, text)
	}
	return nil
}

// checkSize returns a *LimitError for a value of more than most bytes. what is its name.
func checkSize(what string, size int, most int64) error {
	if int64(size) > most {
		return &LimitError{What: what, Unit: "bytes", Got: int64(size), Max: most}
	}
	return nil
}

// checkQueueName returns the error for a name that no queue can have: ErrNoQueueName, *LimitError for its size,
// ErrInvalidUTF8.
func checkQueueName(name string) error {
	if name == "" {
		return ErrNoQueueName
	}
	return checkText("queue name", name, maxQueueNameSize)
}

// checkPrefix returns a *LimitError for a prefix that is too long to begin the keys of a queue.
func checkPrefix(prefix []byte) error { return checkSize("prefix", len(prefix), maxPrefixSize) }

// checkSubscription returns the error for a name that no subscription can have: it must be valid UTF-8, with 1 to
// maxSubscriptionSize bytes.
func checkSubscription(name string) error {
	if !utf8.ValidString(name) {
		return fmt.Errorf("subscription: %w", ErrInvalidUTF8)
	}
	if n := len(name); n < 1 || n > maxSubscriptionSize {
		return &LimitError{What: "subscription", Unit: "bytes", Got: int64(n), Min: 1, Max: maxSubscriptionSize}
	}
	return nil
}

// checkLease returns a *LimitError for the lease of a claim outside MinLease to MaxLease. 0 is allowed, and stands for
// the queue's lease.
func checkLease(d time.Duration) error {
	if d == 0 {
		return nil
	}
	if d < MinLease || d > MaxLease {
		return durationLimit("lease", d, MinLease, MaxLease)
	}
	return nil
}

// checkDelay returns a *LimitError for a delay outside 0 to MaxDelay.
func checkDelay(d time.Duration) error {
	if d < 0 || d > MaxDelay {
		return durationLimit("delay", d, 0, MaxDelay)
	}
	return nil
}

// noLimit, as LimitError.Max, stands for an upper limit that is not set.
const noLimit = int64(math.MaxInt64)

// checkState returns a *LimitError for the state of a group that is too large.
func checkState(state []byte) error { return checkSize("state", len(state), MaxStateSize) }

// checkByReason returns the error for the name of an operator and the reason of an action, which the queue would store:
// *LimitError for their sizes, ErrInvalidUTF8.
func checkByReason(by, reason string) error {
	if err := checkSize("by", len(by), maxQueueNameSize); err != nil {
		return err
	}
	if err := checkSize("reason", len(reason), rec.MaxErrorText); err != nil {
		return err
	}
	if !utf8.ValidString(by) || !utf8.ValidString(reason) {
		return fmt.Errorf("%w: by %q, reason %q", ErrInvalidUTF8, by, reason)
	}
	return nil
}

// archiveClaimBytes bounds the values of a claim's items if the queue has an archive: the ack writes all values again,
// in one transaction.
const archiveClaimBytes = 4 << 20

// endTimeout bounds work that must continue after the caller's context has ended. Example: the handle returns claims
// that no caller has got.
const endTimeout = 10 * time.Second

// millis returns a time in the form in which the database has it: milliseconds since 1970.
func millis(t time.Time) int64 { return t.UnixMilli() }

func fromMillis(ms int64) time.Time { return time.UnixMilli(ms) }

// timeWords returns a stored time as text, in UTC.
func timeWords(ms int64) string { return fromMillis(ms).UTC().Format("2006-01-02 15:04:05.000 UTC") }

// countWords returns a number with a noun: "1 item", "2 items".
func countWords(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// durationText is d.String() without trailing zeros: "2m" for "2m0s".
func durationText(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// nameOf returns the name of v: the text at the place v in names. If there is none, it returns the number v as text.
func nameOf[T ~int](v T, names []string) string {
	if v < 0 || int(v) >= len(names) {
		return strconv.Itoa(int(v))
	}
	return names[v]
}
