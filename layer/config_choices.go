package layer

import "time"

// DedupBy is what makes two messages duplicates.
type DedupBy int

// What messages are told apart by.
const (
	// DedupByID: by Message.DedupID; messages without a dedup id are never duplicates.
	DedupByID DedupBy = iota
	// DedupByContent: by Message.DedupID, or by the SHA-256 of the body if there is no dedup id.
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
	DedupForPending                 // while the message is in the queue, or a dead letter
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

// OnFailure is what becomes of an item which has failed for good: MaxAttempts times, or because of a rejection. The
// transaction which counts the last attempt decides: the nack, or the claim which meets the expired lease.
type OnFailure int

// The policies.
const (
	// DeadLetterItem moves the item to the dead letters, and the group goes on with the next.
	DeadLetterItem OnFailure = iota
	// HaltGroup stops the group: order is kept, and other groups run on.
	HaltGroup
	// Block tries the item for ever, even a rejected item.
	Block
)

var onFailureNames = []string{"dead_letter", "halt_group", "block"}

func (f OnFailure) String() string { return nameOf(f, onFailureNames) }

// Values of MaxAttempts.
const (
	// DefaultMaxAttempts, with the default waits between them, are tried within about a quarter of an hour.
	DefaultMaxAttempts = 25
	// Unlimited: an item is tried until it succeeds.
	Unlimited = -1
)

// maxMaxAttempts bounds MaxAttempts: more is a slip, or means no limit.
const maxMaxAttempts = 1_000_000

// OnExpiry is what becomes of an item which has waited longer than the queue's Retention.
type OnExpiry int

// The choices.
const (
	// DropExpired removes the item for good.
	DropExpired OnExpiry = iota
	// DeadLetterExpired moves the item to the dead letters.
	DeadLetterExpired
)

var onExpiryNames = []string{"drop", "dead_letter"}

func (o OnExpiry) String() string { return nameOf(o, onExpiryNames) }

// The limits of Retention, if not 0.
const (
	MinRetention = time.Second
	MaxRetention = 10 * 365 * 24 * time.Hour
)

func checkRetention(what string, d time.Duration) error {
	if d != 0 && d < MinRetention {
		return durationLimit(what, d, MinRetention, MaxRetention)
	}
	return nil
}

// Schedule says where a group takes its place among the ready groups when a claim ends and leaves items, or when its
// lease, its delay or the delay of its head ends.
type Schedule int

// The schedules.
const (
	// OldestHead puts the group by the age of its head: the queue as a whole is worked off by age.
	OldestHead Schedule = iota
	// RoundRobin puts the group at the back: a deep group, or groups which fail all the time, cannot starve the others,
	// even with a single worker. The place of a lease or delay which has ended is that of its end.
	RoundRobin
)

// scheduleNames are the schedules' names in a configuration.
var scheduleNames = []string{"oldest_head", "round_robin"}

func (s Schedule) String() string { return nameOf(s, scheduleNames) }

// LeasePer is what has a lease of its own.
type LeasePer int

// The choices.
const (
	// LeasePerClaim: a claim keeps its whole group from others, under one lease.
	LeasePerClaim LeasePer = iota
	// LeasePerItem: each message in hand has a claim, a lease and a token of its own (Claim.Hold). A group is
	// delivered from its head up to the first message in somebody's hands: no message is in two hands, and none is
	// delivered while one before it is in hand.
	LeasePerItem
)

var leasePerNames = []string{"claim", "item"}

func (p LeasePer) String() string { return nameOf(p, leasePerNames) }
