package layer

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"fdbfifo/layer/internal/advice"
	"fdbfifo/layer/internal/rec"
)

// Config has the settings of a queue. They are stored in the database and apply to every handle. Configure changes them
// while the queue is in use, and every handle follows within a second. A field of zero means its default, which is
// filled in before storing. Create and Configure check the limits: *LimitError, *ValueError, ErrInvalidUTF8 for the
// name of a facet, and ErrOptions for settings that do not go together.
//
// As JSON, and in the database, a Config is an object with a member for each setting, see Settings. Durations are texts
// there, such as "30s". If a member is unknown to this version, reading fails with an *UnknownSettingError.
type Config struct {
	// Shards is the number of key ranges over which the ready hints and the timers are spread, 1 to 64; 0 = 1.
	// With one range groups are delivered strictly by age. With more ranges several storage teams of the cluster can
	// share the queue's load, but each receive reads the hints of all ranges, in parallel. A receive that finds no hint
	// reads the timers of all ranges. Configure can raise the number while the queue is in use, never lower it.
	Shards int
	// RoundRobin says at which place among the ready groups a group waits when it becomes ready again. Examples: a
	// claim ends and leaves items, a lease expires, a delay ends. false = by the age of its head, so the oldest
	// messages of the queue come first. true = at the back. So neither a deep group nor groups that fail again and
	// again can starve the others, even with a single worker. After a lease or a delay the place of the group is the
	// time at which that ended.
	RoundRobin bool
	// Lease is the lease of a claim if its receive sets no ReceiveOptions.Lease: MinLease to MaxLease; 0 = 30 s.
	Lease time.Duration
	// Delay is the delay of a message that sets none: 0 to MaxDelay; 0 = no delay. A change applies to messages that
	// are enqueued later. Messages already enqueued keep their times, unless RetroactiveDelay is set.
	Delay time.Duration
	// RetroactiveDelay makes a change of Delay apply to the messages in the queue, too. A message without a delay of
	// its own is due when the present Delay has passed since its enqueue, also if it was delivered before and waits
	// again. A change writes only the configuration, however many messages wait, and every handle follows within a
	// second. A receive that looks for due groups reads one more range. For Retention, messages of which a change ends
	// the delay have waited only since then. You can set it while the queue is in use: messages delayed before keep
	// their times. You cannot unset it.
	RetroactiveDelay bool
	// DedupByContent makes messages with the same body duplicates, if they have no dedup id: their id is the SHA-256 of
	// the body. false = messages without a dedup id are never duplicates.
	DedupByContent bool
	// DedupInGroup looks for duplicates in the same group. false = in the whole queue: a duplicate may be of another
	// group.
	DedupInGroup bool
	// DedupForPending remembers a message while it is in the queue, or a dead letter. false = for DedupWindow from its
	// enqueue on. A change of DedupForPending or DedupWindow applies to messages that are enqueued later. But an id
	// that is remembered for more than five minutes beyond a shorter window ends with the shorter one. And if the
	// window becomes longer by more than five minutes, an id that no sweep has cleared yet lasts for the longer one.
	DedupForPending bool
	// DedupWindow is the window, from the first message on: 1 s to 30 days; 0 = 5 minutes.
	DedupWindow time.Duration
	// MaxWaiting is how many messages a group may have, also in flight, up to 100,000; 0 = any number. If an
	// enqueue would exceed the bound, none of its messages is enqueued (*FullError). Concurrent enqueues do not see
	// each other, so together they may exceed the bound.
	MaxWaiting int
	// GroupRequired refuses messages without a group (ErrNoGroup). Otherwise they are all one group, the group "", and
	// are handled one after the other.
	GroupRequired bool
	// MaxRate bounds how many deliveries of a group may start in a time, redeliveries included; none = any number.
	// Unused rate is saved for a second, or for the time of one item if that is longer. So over any time T at most rate
	// × T deliveries start, plus those of one second. Example: 10/s allows 610 in a minute. A claim gets at most one
	// second's items, and at least one item. See Configure.
	MaxRate Rate
	// MaxRateTotal bounds the same for all groups of the queue together, over all handles; none = any number. A handle
	// draws a portion of the rate, at most for half a second, and may use the portion for a second. So over any time T
	// at most rate × (T + 1 s) deliveries start, plus those of one second, or one. If the handle dies or does not use
	// its portion, the portion is lost. Claims of different groups do not conflict because of this setting.
	MaxRateTotal Rate
	// Retry says how long a group waits after its head has failed, unless the nack sets a delay.
	Retry RetryPolicy
	// MaxAttempts is the number of failed deliveries after which an item has failed for good, up to 1,000,000; 0 = 25.
	// Unlimited means never: an item that cannot be handled then holds up its group without end. As text, and in JSON,
	// 0 means Unlimited. A lease that expires counts the last attempt only if the item was delivered alone: see
	// Receive.
	MaxAttempts int
	// OnFailure says what happens to an item that has failed for good.
	OnFailure OnFailure
	// Retention is how long an item may wait in its group, 1 s to 10 years; 0 = without limit. Items in
	// flight are not touched.
	Retention time.Duration
	// Archive is how long acked and taken items stay in the archive, 0 to 10 years; 0 = no archive. A sweep then
	// clears the items of an earlier archive.
	Archive time.Duration
	// DeadLetterExpired moves an item that is past its retention to the dead letters. false = removes it for good.
	DeadLetterExpired bool
	// Changes is how long the queue's changes are kept for subscriptions, 1 s to 10 years; 0 = no changes are written,
	// and a sweep clears the earlier ones. See Subscribe.
	Changes time.Duration
	// DeadRetention is how long dead letters stay, 1 s to 10 years; 0 = until they are redriven or
	// discarded. A sweep discards older letters, so a letter stays until the next sweep. A change applies to all
	// letters.
	DeadRetention time.Duration
	// Facets are the headers by which items can be received (ReceiveOptions.Where), at most 4. Every message
	// must have each of them, with a value of 1 to MaxFacetSize bytes. None = whole groups only. Names that begin with
	// "fdbfifo-" are refused. Facets and Views are fixed at creation.
	Facets []string
	// Views are the sets of facets by which items can be received, at most 3, and "*" for whole groups. Example:
	// "*; state; state,region". Views must not be empty if there are Facets.
	Views string
	// Unordered allows receives of any free items, in addition to receives of whole groups: see
	// ReceiveOptions.Unordered. It costs one more key per message. Fixed at creation. Unordered must not be set with
	// Facets, MaxRate or HaltGroup.
	Unordered bool
	// LeasePerItem gives each message in flight a claim, a lease and a token of its own (Claim.Hold). A group is
	// delivered from its head up to the first message in flight. No message has two holders. No receive gets a message
	// if one before it was in flight already. false = a claim keeps its whole group from others, under one lease. Fixed
	// at creation. LeasePerItem must not be set with Facets, Unordered, MaxRate or HaltGroup.
	LeasePerItem bool
	// Fair makes receives take turns among the Shards instead of taking groups by age. So a deep backlog in one shard
	// does not hold up messages in another. It is for messages that name a tenant, see Message.Tenant. Within a shard
	// the oldest group comes first. With one shard it changes nothing.
	Fair bool
}

// settingShards is the name of a setting that can only be raised. Ensure with Options.Mend does not change it.
const settingShards = "shards"

// settings has a row for each setting, in the order of lists and of the stored document. No code may change the slice.
//
// To add a setting, add a field to Config, a row here, and what CONTRIBUTING.md lists.
var settings = []setting{
	intSetting(settingShards, func(c *Config) *int { return &c.Shards }, 1, 1, maxShards,
		"key ranges of the ready hints and timers; can be raised, not lowered"),
	eitherSetting("schedule", func(c *Config) *bool { return &c.RoundRobin }, "oldest_head", "round_robin",
		"where a group takes its place when a claim on it ends"),
	durationSetting("lease", func(c *Config) *time.Duration { return &c.Lease }, defaultLease, MinLease, MaxLease,
		"how long a claim lasts unless it says otherwise or is extended"),
	durationSetting("delay", func(c *Config) *time.Duration { return &c.Delay }, 0, 0, MaxDelay,
		"how long a message is delayed that names no delay of its own"),
	boolSetting("retroactive_delay", func(c *Config) *bool { return &c.RetroactiveDelay },
		"a change of delay holds for the messages in the queue, too").leftOut().neverTakenBack("true"),
	intSetting("max_waiting", func(c *Config) *int { return &c.MaxWaiting }, 0, 0, maxWaitingLimit,
		"messages that a group may have, about; 0 = any number"),
	boolSetting("group_required", func(c *Config) *bool { return &c.GroupRequired },
		"messages without a group are refused"),
	rateSetting("max_rate", func(c *Config) *Rate { return &c.MaxRate },
		"items of a group that may start their delivery in a time; 0 = any number"),
	rateSetting("max_rate_total", func(c *Config) *Rate { return &c.MaxRateTotal },
		"the same for all groups of the queue together; 0 = any number"),
	eitherSetting("dedup_by", func(c *Config) *bool { return &c.DedupByContent }, "id", "content",
		"duplicates have the same dedup id, or else the same body"),
	eitherSetting("dedup_scope", func(c *Config) *bool { return &c.DedupInGroup }, scopeQueue, scopeGroup,
		"where duplicates are looked for"),
	eitherSetting("dedup_for", func(c *Config) *bool { return &c.DedupForPending }, "window", "pending",
		"how long that holds: for the window, or while the first is there"),
	durationSetting("dedup_window", func(c *Config) *time.Duration { return &c.DedupWindow }, defaultDedupWindow,
		minDedupWindow, maxDedupWindow,
		"how long a message is remembered from its enqueue on"),
	choiceSetting("retry", func(c *Config) *RetryKind { return &c.Retry.Kind }, retryNames,
		"how the wait after a failed delivery grows with the failures"),
	durationSetting("retry_base", func(c *Config) *time.Duration { return &c.Retry.Base }, defaultRetryBase,
		minRetry, MaxDelay,
		"the wait after the first failure"),
	durationSetting("retry_max", func(c *Config) *time.Duration { return &c.Retry.Max }, defaultRetryMax,
		minRetry, MaxDelay,
		"the longest wait that an exponential one grows to"),
	attemptsSetting("max_attempts", func(c *Config) *int { return &c.MaxAttempts },
		"failed deliveries after which an item has failed for good; 0 = never"),
	choiceSetting("on_failure", func(c *Config) *OnFailure { return &c.OnFailure }, onFailureNames,
		"what becomes of an item that has failed for good"),
	durationSetting("retention", func(c *Config) *time.Duration { return &c.Retention }, 0, 0, maxRetention,
		"how long an item may wait, 1s or more; 0 = for ever"),
	eitherSetting("on_expiry", func(c *Config) *bool { return &c.DeadLetterExpired }, "drop", "dead_letter",
		"what becomes of one that has waited longer"),
	durationSetting("archive", func(c *Config) *time.Duration { return &c.Archive }, 0, 0, maxRetention,
		"how long what is finished is kept in the archive; 0 = not at all"),
	durationSetting("changes", func(c *Config) *time.Duration { return &c.Changes }, 0, 0, maxRetention,
		"how long changes are kept for subscriptions, 1s or more; 0 = none are written"),
	durationSetting("dead_retention", func(c *Config) *time.Duration { return &c.DeadRetention }, 0, 0, maxRetention,
		"how long dead letters are kept, 1s or more; 0 = for ever"),
	facetsSetting("headers by which items can be received").fixedAtCreation(),
	viewsSetting("what templates may name, as *; state; state,region").fixedAtCreation(),
	unorderedSetting("items can be received one by one, out of order, too").fixedAtCreation(),
	leasePerSetting("what has a lease of its own: a claim of a group, or each item in flight").fixedAtCreation(),
	boolSetting("fair", func(c *Config) *bool { return &c.Fair },
		"receives take turns among the shards, and so among tenants").leftOut(),
}

// copied returns a deep copy of c.
func (c Config) copied() Config {
	c.Facets = slices.Clone(c.Facets)
	return c
}

// withDefaults returns a copy of c with each zero field set to its default, and with Views in one form (settleViews).
// It checks the limits: *LimitError, *ValueError, ErrInvalidUTF8 for the name of a facet, or ErrOptions for settings
// that do not go together.
func (c Config) withDefaults() (Config, error) {
	c = c.copied() // the caller's may change
	if c.Retry.Max == 0 {
		c.Retry.Max = max(defaultRetryMax, c.Retry.Base)
	}
	for _, s := range settings {
		if err := s.settle(&c); err != nil {
			return c, err
		}
	}
	for _, kept := range []struct {
		what string
		d    time.Duration
	}{{"retention", c.Retention}, {"changes", c.Changes}, {"dead_retention", c.DeadRetention}} {
		if err := checkRetention(kept.what, kept.d); err != nil {
			return c, err
		}
	}
	if c.Retry.Max < c.Retry.Base {
		return c, durationLimit("retry_max", c.Retry.Max, c.Retry.Base, MaxDelay)
	}
	return c, nil
}

// changedFrom returns an error if c must not replace the stored configuration old. Both must come from withDefaults.
// *ValueError: c changes a setting that is fixed at creation, or unsets RetroactiveDelay. *LimitError: c has fewer
// shards. With fewer shards no handle would read the hints in the last ones.
func (c Config) changedFrom(old Config) error {
	if c.Shards < old.Shards {
		return &LimitError{What: settingShards, Got: int64(c.Shards), Min: int64(old.Shards), Max: maxShards}
	}
	for _, s := range settings {
		stored, wanted := s.text(&old), s.text(&c)
		if why := s.keeps(stored); why != "" && wanted != stored {
			return &ValueError{What: s.name, Got: wanted, Allowed: fmt.Sprintf("%q, %s", stored, why)}
		}
	}
	return nil
}

// Setting describes a setting of a Config, for people: see Settings.
type Setting struct {
	Name    string
	Allowed string // what its text may be
	Help    string
	Fixed   bool // the value is fixed when the queue is created
}

// Settings lists the settings of a Config. The slice belongs to the caller.
func Settings() []Setting {
	all := make([]Setting, len(settings))
	for i, s := range settings {
		all[i] = Setting{Name: s.name, Allowed: s.allowed, Help: s.help, Fixed: s.fixed}
	}
	return all
}

// Setting returns the text of the named setting. Errors: *UnknownSettingError.
func (c Config) Setting(name string) (string, error) {
	s, err := settingNamed(name)
	if err != nil {
		return "", wrap("setting", err)
	}
	return s.text(&c), nil
}

// Set sets the named setting from its text. The limits are checked later, when the configuration is stored. Errors:
// *UnknownSettingError, and *ValueError for a text that cannot be read. After an error c is unchanged.
func (c *Config) Set(name, text string) error {
	s, err := settingNamed(name)
	if err != nil {
		return wrap("set", err)
	}
	changed := *c
	if err := s.parse(&changed, text); err != nil {
		return wrap("set", err)
	}
	*c = changed
	return nil
}

// MarshalJSON writes the settings as one object, in the order of Settings. Some settings are left out while they have
// their defaults, so that earlier versions of this library can read the configuration.
func (c Config) MarshalJSON() ([]byte, error) {
	members := make([]string, 0, len(settings))
	for _, s := range settings {
		if s.sparse && s.isDefault(&c) {
			continue
		}
		value, err := json.Marshal(s.value(&c))
		if err != nil {
			return nil, wrap("configuration", fmt.Errorf("setting %s: %w", s.name, err))
		}
		members = append(members, fmt.Sprintf("%q:%s", s.name, value))
	}
	return []byte("{" + strings.Join(members, ",") + "}"), nil
}

// UnmarshalJSON reads the output of MarshalJSON. A setting without a member gets the zero value, which means its
// default. Errors: *UnknownSettingError, *ValueError, and ErrOptions for text that is not such an object. After an
// error c may be changed.
func (c *Config) UnmarshalJSON(data []byte) error { return wrap("configuration", c.unmarshal(data)) }

// unmarshal is UnmarshalJSON, and its errors do not name the call.
func (c *Config) unmarshal(data []byte) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(data, &members); err != nil {
		return fmt.Errorf("%w: %w", ErrOptions, err)
	}
	*c = Config{}
	for _, s := range settings {
		raw, ok := members[s.name]
		if !ok {
			continue
		}
		delete(members, s.name)
		text := string(raw)
		if raw[0] == '"' {
			if err := json.Unmarshal(raw, &text); err != nil {
				return fmt.Errorf("%w: setting %s: %w", ErrOptions, s.name, err)
			}
		}
		if err := s.parse(c, text); err != nil {
			return err
		}
	}
	return unknownSettings(members)
}

// readConfig reads a stored document, the JSON text in the field config of meta, and sets defaults. An
// *UnknownSettingError means that a later version of this library has written the document. Any other error is
// ErrCorrupt. key is for its text.
func readConfig(key []byte, document string) (Config, error) {
	var c Config
	err := c.unmarshal([]byte(document))
	if err == nil {
		c, err = c.withDefaults()
	}
	var unknown *UnknownSettingError
	if err != nil && !errors.As(err, &unknown) {
		err = rec.Corrupt(key, err)
	}
	return c, err
}

// The texts of the setting dedup_scope, which are in keys too.
const scopeQueue, scopeGroup = "queue", "group"

// Limits of de-duplication.
const (
	defaultDedupWindow = 5 * time.Minute
	minDedupWindow     = time.Second
	maxDedupWindow     = 30 * 24 * time.Hour
)

// OnFailure says what happens to an item that has failed for good: it has failed MaxAttempts times, or was rejected.
// The transaction that counts the last attempt carries this out. Examples: the nack, or the claim that finds the
// expired lease.
type OnFailure int

// The policies.
const (
	// DeadLetterItem moves the item to the dead letters, and the group continues with the next item.
	DeadLetterItem OnFailure = iota
	// HaltGroup stops the group until it is resumed. Other groups continue.
	HaltGroup
	// Block tries the item again without end, even a rejected item.
	Block
)

var onFailureNames = []string{"dead_letter", "halt_group", "block"}

func (f OnFailure) String() string { return nameOf(f, onFailureNames) }

// Values of MaxAttempts.
const (
	// defaultMaxAttempts, with the default waits between them, are tried within about twelve minutes.
	defaultMaxAttempts = 25
	// Unlimited: an item is tried until it succeeds.
	Unlimited = -1
)

// maxMaxAttempts bounds MaxAttempts. A larger number is probably an error: for no limit there is Unlimited.
const maxMaxAttempts = 1_000_000

// The limits of Retention, if not 0.
const (
	minRetention = time.Second
	maxRetention = 10 * 365 * 24 * time.Hour
)

// checkRetention returns a *LimitError for a duration between 0 (not set) and minRetention. The upper limit is checked
// with the setting. what is the name of the setting.
func checkRetention(what string, d time.Duration) error {
	if d != 0 && d < minRetention {
		return durationLimit(what, d, minRetention, maxRetention)
	}
	return nil
}

// retro returns how the queue delays the messages that have no delay of their own: see type retro.
func (c Config) retro() retro { return retro{on: c.RetroactiveDelay, delayMS: c.Delay.Milliseconds()} }

// retro says how a queue delays the messages that have no delay of their own. An item is stored with DueMS, the time
// (ms) before which it must not be delivered; 0 = no time. In a queue without retroactive delay the enqueue stores the
// time in DueMS, and 0 means no delay.
//
// In a queue with retroactive delay 0 means that the message is due when the queue's present delay has passed since its
// enqueue. Example: message 7 was enqueued at 12:00 with a delay of 1 h. At 12:10 the delay becomes 5 min: message 7 is
// due. A message that must be due at once, whatever the delay is, has the time of its enqueue as its DueMS.
//
// A group with such a delayed head has no holding, and a timer leads to it, as to every delayed head. Its due time is
// not known, because the delay may change. So the timer's key has sinceBase + the time of the enqueue, and a receive
// reads these timers up to now minus the delay. Therefore a change of the delay writes only the configuration, however
// many messages wait.
type retro struct {
	on      bool  // Config.RetroactiveDelay
	delayMS int64 // Config.Delay
}

// sinceBase marks, in the key of a timer, the time of an enqueue: it is added to that time. All other times are far
// below it.
const sinceBase = 1 << 50 // ms

// dueOf returns when (ms) a timer is due that has timingMS in its key: timingMS itself, or the time of the enqueue in
// it plus the present delay.
func (r retro) dueOf(timingMS int64) int64 {
	if timingMS < sinceBase {
		return timingMS
	}
	return timingMS - sinceBase + r.delayMS
}

// begunMS returns the time of the latest enqueue whose delay is over at nowMS.
func (r retro) begunMS(nowMS int64) int64 { return max(nowMS-r.delayMS, 0) }

// span is a range of the times in the keys of timers, both ends included.
type span struct{ fromMS, toMS int64 }

// times returns the times that the timers of the queue can have. The first span has the times at which groups are due.
// With retroactive delay a second span has the times of enqueues.
func (r retro) times() []span {
	if !r.on {
		return []span{{0, math.MaxInt64 - 1}}
	}
	return []span{{0, sinceBase - 1}, {sinceBase, 2 * sinceBase}}
}

// dueBy returns the times of the timers that are due at nowMS. The spans are those of times, cut off at nowMS.
func (r retro) dueBy(nowMS int64) []span {
	all := r.times()
	all[0].toMS = nowMS
	for i := range all[1:] {
		all[1+i].toMS = sinceBase + r.begunMS(nowMS)
	}
	return all
}

// dueAfter returns the times of the timers that are due after nowMS: the rest of the spans of dueBy.
func (r retro) dueAfter(nowMS int64) []span {
	all := r.times()
	for i, due := range r.dueBy(nowMS) {
		all[i].fromMS = due.toMS + 1
	}
	return all
}

// dueSooner returns the times of the timers that are due at nowMS by this delay, and were not by an earlier one (was).
// There are none if the delay has not become shorter.
func (r retro) dueSooner(was retro, nowMS int64) []span {
	all := r.dueBy(nowMS)[1:]
	if was.on && r.delayMS >= was.delayMS {
		return nil
	}
	for i := range all {
		if was.on {
			all[i].fromMS = sinceBase + was.begunMS(nowMS) + 1
		}
	}
	return all
}

// isShorter reports whether messages that wait are due earlier by this delay than by an earlier one (was).
func (r retro) isShorter(was retro) bool { return was.on && r.delayMS < was.delayMS }

// decides reports whether the queue's present delay decides when the item is due.
func (r retro) decides(e *rec.Envelope) bool { return r.on && e.DueMS == 0 }

// fixed returns the DueMS of a message that is enqueued at nowMS with no delay of its own: the end of the queue's delay
// if the enqueue fixes that, or else 0.
func (r retro) fixed(nowMS int64) int64 {
	if r.on || r.delayMS == 0 {
		return 0
	}
	return nowMS + r.delayMS
}

// due returns the earliest delivery time (ms) of an item, by the queue's present delay; 0 = the message is not delayed.
func (r retro) due(e *rec.Envelope) int64 {
	if e.DueMS > 0 || !r.on || r.delayMS == 0 {
		return e.DueMS
	}
	return e.EnqueuedMS + r.delayMS
}

// deliverAt returns Item.DeliverAt: the earliest delivery, or the zero time if the message is not delayed. It may be
// before the enqueue, if the process that rescheduled the message has another clock.
func (r retro) deliverAt(e *rec.Envelope) time.Time {
	due := r.due(e)
	if due == 0 || r.on && due == r.own(e.EnqueuedMS) {
		return time.Time{}
	}
	return fromMillis(due)
}

// timing returns the time in the key of the timer that leads to a head until it is due: DueMS, or, if the queue's
// present delay decides, sinceBase + the time of the enqueue. 0 = the item has no delay, and no such timer. With
// retroactive delay the result is not 0 even if the present delay is 0, because a timer by a longer delay may still be
// there.
func (r retro) timing(e *rec.Envelope) int64 {
	if e.DueMS > 0 || !r.on {
		return e.DueMS
	}
	return sinceBase + e.EnqueuedMS
}

// own returns the DueMS of a message that must be delivered at once. nowMS is the time of its enqueue, or later.
func (r retro) own(nowMS int64) int64 {
	if r.on {
		return nowMS
	}
	return 0
}

// Rate is a number of items in a time. The zero value means that there is no limit.
//
// As text, also in a configuration, a Rate is "10/s", "100/m", "5/h" or "3/10s". The zero value is "0".
type Rate struct {
	Count int           // 1 to 1,000,000
	Per   time.Duration // 1 s to 24 h, in whole milliseconds
}

// Limits of a rate.
const (
	maxRateCount = 1_000_000
	minRatePer   = time.Second
	maxRatePer   = 24 * time.Hour
)

// rateUnits are the units which may stand without a number: "10/s" means 10 per 1s.
var rateUnits = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}

// rateAllowed says what the text of a rate may be.
const rateAllowed = "COUNT/TIME, as 10/s or 3/10s; 0"

// ParseRate reads the text of a rate. Limits are not checked. Errors: *ValueError.
func ParseRate(text string) (Rate, error) {
	if text == "0" {
		return Rate{}, nil
	}
	bad := wrap("parse rate", &ValueError{What: "rate", Got: text, Allowed: rateAllowed})
	count, per, ok := strings.Cut(text, "/")
	n, err := strconv.Atoi(count)
	if !ok || err != nil {
		return Rate{}, bad
	}
	d, ok := rateUnits[per]
	if !ok {
		if d, err = time.ParseDuration(per); err != nil {
			return Rate{}, bad
		}
	}
	return Rate{Count: n, Per: d}, nil
}

// String returns the text that ParseRate reads: "10/s", "3/10s", or "0" if there is no rate.
func (r Rate) String() string {
	if r == (Rate{}) {
		return "0"
	}
	per := durationText(r.Per)
	for unit, d := range rateUnits {
		if r.Per == d {
			per = unit
		}
	}
	return strconv.Itoa(r.Count) + "/" + per
}

// isNone reports whether there is no limit.
func (r Rate) isNone() bool { return r == Rate{} }

// check returns the error for a rate outside its limits. name is the name of the setting.
func (r Rate) check(name string) error {
	switch {
	case r.isNone():
		return nil
	case r.Count < 1 || r.Count > maxRateCount:
		return &LimitError{What: name, Unit: "items", Got: int64(r.Count), Min: 1, Max: maxRateCount}
	case r.Per < minRatePer || r.Per > maxRatePer:
		return durationLimit("time of "+name, r.Per, minRatePer, maxRatePer)
	case r.Per%time.Millisecond != 0:
		return &ValueError{What: "time of " + name, Got: r.Per.String(), Allowed: "whole milliseconds"}
	}
	return nil
}

// known returns the rate in the form that package advice needs. That package computes how much of a rate is left.
func (r Rate) known() advice.Rate {
	return advice.Rate{Count: int64(r.Count), PerMS: r.Per.Milliseconds(), Burst: r.burst()}
}

// burst returns how many items may start at once: those of one second, at least one.
func (r Rate) burst() int64 { return max(1, int64(r.Count)*int64(time.Second)/int64(r.Per)) }

// rateSetting describes a setting whose field is a rate; the default is none.
func rateSetting(name string, field func(*Config) *Rate, help string) setting {
	s := setting{name: name, allowed: rateAllowed, help: help}
	s.value = func(c *Config) any { return field(c).String() }
	s.parse = func(c *Config, text string) error {
		r, err := ParseRate(text)
		if err != nil {
			return &ValueError{What: name, Got: text, Allowed: s.allowed}
		}
		*field(c) = r
		return nil
	}
	s.settle = func(c *Config) error { return field(c).check(name) }
	return s
}

// RetryPolicy says how long a group waits after its head has failed. In that time workers handle other groups.
type RetryPolicy struct {
	Kind RetryKind
	// Base is the wait after the first failure: 1 ms to MaxDelay; 0 = 0.1 s.
	Base time.Duration
	// Max is the longest wait of RetryExponential: Base to MaxDelay; 0 = 1 minute, or Base if longer.
	Max time.Duration
}

// RetryKind says how the wait grows with the failures of an item.
type RetryKind int

// The kinds.
const (
	// RetryExponential doubles the wait with each failure, from Base to Max. Each wait is random, between half of that
	// and all of it. Otherwise groups that fail together would all be tried again together.
	RetryExponential RetryKind = iota
	// RetryConstant waits for Base each time.
	RetryConstant
	// RetryAtOnce does not wait. The group keeps its place before younger groups. So with as many such groups as there
	// are goroutines of workers, younger groups wait until these fail no more. With RoundRobin they are served in
	// between.
	RetryAtOnce
)

var retryNames = []string{"exponential", "constant", "at_once"}

func (k RetryKind) String() string { return nameOf(k, retryNames) }

// Defaults and limits of a retry policy.
const (
	defaultRetryBase = 100 * time.Millisecond
	defaultRetryMax  = time.Minute
	minRetry         = time.Millisecond
)

// delay returns how long a group waits after the given number of failures of its head, 1 or more. random is in [0, 1),
// and decides where an exponential wait lies between its half and its whole.
func (p RetryPolicy) delay(failures int, random float64) time.Duration {
	switch p.Kind {
	case RetryAtOnce:
		return 0
	case RetryConstant:
		return p.Base
	}
	d := p.Base
	for ; failures > 1 && d < p.Max; failures-- {
		d *= 2
	}
	d = min(d, p.Max)
	return d/2 + time.Duration(random*float64(d-d/2))
}

// withFixed returns c, the configuration that Ensure wants to store, with the stored values of the settings that Ensure
// must not change: see setting.mendable.
func (c Config) withFixed(stored Config) Config {
	for _, s := range settings {
		if text := s.text(&stored); !s.mendable(text) {
			_ = s.parse(&c, text) // no error: the stored value was read by parse
		}
	}
	return c
}
