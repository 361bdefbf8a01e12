package layer

import "time"

// DedupBy is what makes two messages duplicates.
type DedupBy int

// What messages are told apart by.
const (
	// DedupByID: by Message.DedupID; messages without one are never duplicates.
	DedupByID DedupBy = iota
	// DedupByContent: by Message.DedupID, or by the SHA-256 of the body if there is none.
	DedupByContent
)

var (
	dedupByNames    = []string{"id", "content"}
	dedupScopeNames = []string{"queue", "group"}
	dedupForNames   = []string{"window", "pending"}
)

// DedupScope is among which messages duplicates are looked for.
type DedupScope int

// The scopes.
const (
	DedupInQueue DedupScope = iota // of the whole queue: a duplicate may be of another group
	DedupInGroup                   // of the same group
)

// DedupFor is for how long a message is remembered.
type DedupFor int

// For how long.
const (
	DedupForWindow  DedupFor = iota // for Config.DedupWindow from its enqueue on
	DedupForPending                 // while it is in the queue, or a dead letter
)

func (d DedupBy) String() string { return nameOf(d, dedupByNames) }

func (d DedupScope) String() string { return nameOf(d, dedupScopeNames) }

func (d DedupFor) String() string { return nameOf(d, dedupForNames) }

// Limits of de-duplication.
const (
	// MaxDedupIDSize bounds a dedup id, which stands in a key and in the item.
	MaxDedupIDSize     = 256 // bytes of UTF-8
	DefaultDedupWindow = 5 * time.Minute
	MinDedupWindow     = time.Second
	MaxDedupWindow     = 30 * 24 * time.Hour
)

// OnFailure is what becomes of an item that has failed for good: MaxAttempts times, or because it was rejected. It is
// decided in the transaction that counts the last attempt: that of the nack, or of the claimer that meets the lease
// run out.
type OnFailure int

// The policies.
const (
	// DeadLetterItem moves the item to the dead letters, and the group goes on with the next.
	DeadLetterItem OnFailure = iota
	// HaltGroup stops the group: order is kept, and other groups run on.
	HaltGroup
	// Block goes on trying for ever, also what was rejected.
	Block
)

var onFailureNames = []string{"dead_letter", "halt_group", "block"}

func (f OnFailure) String() string { return nameOf(f, onFailureNames) }

// maxMaxAttempts bounds MaxAttempts: more is a slip, or means no limit.
const maxMaxAttempts = 1_000_000

// OnExpiry is what becomes of an item that has waited longer than the queue's Retention.
type OnExpiry int

// The choices.
const (
	// DropExpired removes it for good.
	DropExpired OnExpiry = iota
	// DeadLetterExpired moves it to the dead letters.
	DeadLetterExpired
)

var onExpiryNames = []string{"drop", "dead_letter"}

func (o OnExpiry) String() string { return nameOf(o, onExpiryNames) }

// The limits of Retention, if it is not 0.
const (
	MinRetention = time.Second
	MaxRetention = 10 * 365 * 24 * time.Hour
)

func checkRetention(d time.Duration) error {
	if d != 0 && d < MinRetention {
		return durationLimit("retention", d, MinRetention, MaxRetention)
	}
	return nil
}

// Schedule says where a group takes its place among the ready ones when a claim on it ends and leaves items.
type Schedule int

// The schedules.
const (
	// OldestHead puts it by the age of its head: the queue as a whole is worked off by age.
	OldestHead Schedule = iota
	// RoundRobin puts it at the back: one deep group cannot starve the others, even with a single worker.
	RoundRobin
)

// scheduleNames are the schedules' names in a configuration.
var scheduleNames = []string{"oldest_head", "round_robin"}

func (s Schedule) String() string { return nameOf(s, scheduleNames) }
