package layer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// Description says in words what a key-value pair of a queue is, for people who look at the database itself.
type Description struct {
	Queue string
	Name  string // the name in the key, e.g. "lock"; see the key table
	Key   string // what the key stands for
	Value string // what the value says; "" if none was given
}

// Describe puts a pair into words. key is below prefix, the prefix given to Open; value is nil if only the key is
// known. ok is false if key is no key of a queue under prefix. An error wraps ErrCorrupt: key or value is malformed;
// the description still holds the readable part.
func Describe(prefix, key, value []byte) (d Description, ok bool, err error) {
	s, queue, ok := queueOf(prefix, key)
	if !ok {
		return d, false, nil
	}
	d.Queue = queue
	p, err := s.parse(key)
	d.Name = p.name
	if err != nil {
		return d, true, wrap("describe", err)
	}
	words, known := descriptions[p.name]
	if !known {
		return d, true, nil
	}
	d.Key = words.key(p)
	if value == nil {
		return d, true, nil
	}
	d.Value, err = words.value(key, value)
	return d, true, wrap("describe", err)
}

// queueOf finds the queue to which key belongs.
func queueOf(prefix, key []byte) (s subspace, queue string, ok bool) {
	if len(key) < len(prefix) || string(key[:len(prefix)]) != string(prefix) {
		return s, "", false
	}
	queue, rest, err := tuple.DecodeString(key[len(prefix):])
	if err != nil || len(rest) == 0 {
		return s, "", false
	}
	return newSubspace(prefix, queue), queue, true
}

// KeyNames returns the names accepted by Section, in order.
func KeyNames() []string {
	names := make([]string, 0, len(descriptions))
	for name := range descriptions {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Section returns the range of a queue's keys with the given name, or of all the queue's keys if name is "". ok is
// false if no key has the name.
func Section(prefix []byte, queue, name string) (r kv.KeyRange, ok bool) {
	s := newSubspace(prefix, queue)
	if name == "" {
		return s.all(), true
	}
	_, ok = descriptions[name]
	return s.section(name), ok
}

// GroupSection is Section for one group. ok is also false if the group does not come first in the keys of the name,
// because then no range holds the group alone.
func GroupSection(prefix []byte, queue, name, group string) (r kv.KeyRange, ok bool) {
	s := newSubspace(prefix, queue)
	switch descriptions[name].group {
	case groupIsKey:
		return kv.SingleKey(s.startGroup(name, group, 0)), true
	case groupFirst:
		return below(s.startGroup(name, group, 1)), true
	}
	return r, false
}

// groupPlace is the position of the group in a key.
type groupPlace int

const (
	groupElsewhere groupPlace = iota // behind something else, or not at all
	groupFirst                       // right behind the name, with more behind it
	groupIsKey                       // right behind the name, and nothing else
)

// description says how to put the pairs of one name into words.
type description struct {
	group groupPlace
	key   func(p parsedKey) string
	value func(key, value []byte) (string, error)
}

// descriptions has a row for each name known to parse, and never changes.
var descriptions = map[string]description{
	nameMeta: {
		key:   func(p parsedKey) string { return "setting " + strconv.Quote(p.field) },
		value: describeMeta,
	},
	nameItem: {
		group: groupFirst,
		key:   func(p parsedKey) string { return "item " + itemWords(p) },
		value: describeItem,
	},
	namePart: {
		group: groupFirst,
		key: func(p parsedKey) string {
			return fmt.Sprintf("continuation %d of the body of item %s", p.n, itemWords(p))
		},
		value: func(_, value []byte) (string, error) { return fmt.Sprintf("%d bytes", len(value)), nil },
	},
	nameLock: {
		group: groupIsKey,
		key:   func(p parsedKey) string { return "lock of group " + strconv.Quote(p.group) },
		value: describeLock,
	},
	nameMark: {
		group: groupIsKey,
		key:   func(p parsedKey) string { return "note that group " + strconv.Quote(p.group) + " is paused or halted" },
		value: func(key, value []byte) (string, error) { return "the lock says why", checkMarkKey(key, value) },
	},
	nameState: {
		group: groupIsKey,
		key:   func(p parsedKey) string { return "state of group " + strconv.Quote(p.group) },
		value: describeState,
	},
	namePace: {
		group: groupIsKey,
		key:   func(p parsedKey) string { return "pace of group " + strconv.Quote(p.group) },
		value: describePace,
	},
	nameReady: {
		key: func(p parsedKey) string {
			return fmt.Sprintf("ready hint of group %q, its head has index %d", p.group, p.index)
		},
		value: describeReady,
	},
	nameTimer: {
		key: func(p parsedKey) string {
			return fmt.Sprintf("timer of group %q, due %s", p.group, timeWords(p.index))
		},
		value: describeTimer,
	},
	nameAttempt: {
		group: groupFirst,
		key:   func(p parsedKey) string { return "failed deliveries of item " + itemWords(p) },
		value: describeAttempt,
	},
	nameDead: {
		group: groupFirst,
		key:   func(p parsedKey) string { return "dead letter " + itemWords(p) },
		value: describeDead,
	},
	nameDedup: {
		key: func(p parsedKey) string {
			if p.scope == DedupInGroup.String() {
				return fmt.Sprintf("what is remembered of dedup id %q in group %q", p.field, p.group)
			}
			return fmt.Sprintf("what is remembered of dedup id %q", p.field)
		},
		value: describeDedup,
	},
	namePurged: {
		group: groupIsKey,
		key:   func(p parsedKey) string { return fmt.Sprintf("the last purge of group %q", p.group) },
		value: describePurged,
	},
	nameArchive: {
		group: groupFirst,
		key:   func(p parsedKey) string { return "archived item " + itemWords(p) },
		value: describeArchived,
	},
	nameArchived: {
		key: func(p parsedKey) string {
			return fmt.Sprintf("what one ack at %d has finished, from %d of random %s on", p.index, p.n, p.id)
		},
		value: describeArchiveEntry,
	},
	nameRequest: {
		key: func(p parsedKey) string {
			return fmt.Sprintf("request of a handle whose receives wait, since %d, random %s", p.index, p.id)
		},
		value: describeRequest,
	},
	nameGrant: {
		key:   func(p parsedKey) string { return fmt.Sprintf("grant of group %q to the request of %s", p.group, p.id) },
		value: func(key, value []byte) (string, error) { n, err := describeInt(key, value); return "token " + n, err },
	},
	nameWake: {
		key:   func(p parsedKey) string { return "wake key of the request of " + p.id.String() },
		value: describeCount,
	},
	nameRepeat: {
		key: func(p parsedKey) string {
			return "what the receive with id " + strconv.Quote(p.field) + " was given"
		},
		value: describeRepeat,
	},
	nameReceipt: {
		key:   func(p parsedKey) string { return "receipt of transaction " + p.id.String() },
		value: describeReceipt,
	},
	nameCount: {
		key:   func(p parsedKey) string { return fmt.Sprintf("counter %q, slot %d", p.field, p.index) },
		value: describeCount,
	},
}

func itemWords(p parsedKey) string {
	return fmt.Sprintf("%d of group %q, id %s", p.index, p.group, p.itemID())
}

func describeMeta(key, value []byte) (string, error) {
	if bytes.HasSuffix(key, tuple.AppendString(nil, metaPaused)) {
		m, err := unpackPause(key, value)
		if err != nil {
			return "", err
		}
		return m.words(), nil
	}
	if bytes.HasSuffix(key, tuple.AppendString(nil, metaSweptTo)) ||
		bytes.HasSuffix(key, tuple.AppendString(nil, metaSweptDead)) {
		last, err := unpackSweptTo(key, value)
		return tuple.Printable(last), err
	}
	if bytes.HasSuffix(key, tuple.AppendString(nil, metaPurged)) {
		return describePurged(key, value)
	}
	if bytes.HasSuffix(key, tuple.AppendString(nil, metaSwept)) {
		note, err := unpackSweepNote(key, value)
		return "the last sweep began " + timeWords(note.begunMS), err
	}
	if !bytes.HasSuffix(key, tuple.AppendString(nil, metaConfig)) {
		return describeInt(key, value)
	}
	stored, err := unpackConfig(key, value)
	if err != nil {
		return "", err
	}
	document, err := json.Marshal(stored.config)
	return fmt.Sprintf("version %d of incarnation %s: %s", stored.version, stored.incarnation, document), err
}

func describeDedup(key, value []byte) (string, error) {
	r, err := unpackRemembered(key, value)
	if err != nil {
		return "", err
	}
	until := "until " + timeWords(r.untilMS)
	if r.untilMS == 0 {
		until = "while it is in the queue"
	}
	return fmt.Sprintf("message %s, %s", r.id, until), nil
}

func describePurged(key, value []byte) (string, error) {
	note, err := unpackPurged(key, value)
	return fmt.Sprintf("at %s, clock %d", timeWords(note.ms), note.clock), err
}

func describeInt(key, value []byte) (string, error) {
	n, err := unpackInt(key, value)
	return strconv.FormatInt(n, 10), err
}

// describedBody is how much of a body is shown, describedItems how many items of a lock.
const (
	describedBody  = 80 // bytes
	describedItems = 3
)

func describeItem(key, value []byte) (string, error) {
	e, body, err := openEnvelope(value)
	if err != nil {
		return "", corrupt(key, err)
	}
	s := "enqueued " + timeWords(e.enqueuedMS)
	if e.dueMS > 0 {
		s += ", not to be delivered before " + timeWords(e.dueMS)
	}
	if e.dedupID != "" {
		s += ", dedup id " + strconv.Quote(e.dedupID)
	}
	if headers, ok := nestedHeaders(e.headers).(tuple.Tuple); ok {
		s += ", headers " + headers.String()
	}
	s += ", body of " + countWords(max(len(body), int(e.size)), "byte")
	if e.parts > 0 {
		s += fmt.Sprintf(", %d of them here and the rest in %s", len(body), countWords(int(e.parts), "part"))
	}
	if len(body) == 0 {
		return s, nil
	}
	return s + ": " + bodyWords(body), nil
}

// bodyWords shows the beginning of a body.
func bodyWords(body []byte) string {
	if len(body) > describedBody {
		return strconv.Quote(string(body[:describedBody])) + "…"
	}
	return strconv.Quote(string(body))
}

func describeState(key, value []byte) (string, error) {
	return countWords(len(value), "byte") + ": " + bodyWords(value), checkStoredState(key, value)
}

func describePace(key, value []byte) (string, error) {
	used, err := unpackPace(key, value)
	if err != nil {
		return "", err
	}
	return "its rate is used up to " + timeWords(used.us/1000), nil
}

func describeLock(key, value []byte) (string, error) {
	r, err := unpackRecord(key, value)
	if err != nil {
		return "", err
	}
	h := r.holding()
	if h == nil {
		return r.mark.words(), nil
	}
	switch h.kind {
	case kindGrant:
		return fmt.Sprintf("kept for the request of %s until %s", h.owner, timeWords(h.endMS)), nil
	case kindDelay, kindHead:
		return fmt.Sprintf("held by nobody, a retry waits until %s", timeWords(h.endMS)), nil
	case kindClaim:
	}
	var indexes []string
	for _, d := range h.items[:min(describedItems, len(h.items))] {
		indexes = append(indexes, strconv.FormatInt(d.index, 10))
	}
	if more := len(h.items) - len(indexes); more > 0 {
		indexes = append(indexes, fmt.Sprintf("%d more", more))
	}
	then := ""
	if r.mark != nil {
		then = "; when that ends, " + r.mark.words()
	}
	return fmt.Sprintf("%s: held by %q under token %d until %s, %s delivered and not acked: %s%s",
		h.kind, h.owner, h.token,
		timeWords(h.endMS), countWords(len(h.items), "item"), strings.Join(indexes, ", "), then), nil
}

func (m *mark) words() string {
	return fmt.Sprintf("%s by %q since %s: %q", m.public().Status, m.who, timeWords(m.sinceMS), m.reason)
}

func describeRequest(key, value []byte) (string, error) {
	r, err := unpackRequest(key, value)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("of %q, wants %s, counts as dead after %s", r.owner, countWords(int(r.wants), "group"),
		timeWords(r.deadlineMS)), nil
}

func describeReady(key, value []byte) (string, error) {
	if len(value) == 0 {
		return "failed deliveries of the head: none", nil
	}
	n, err := unpackInt(key, value)
	return fmt.Sprintf("failed deliveries of the head: %d", n), err
}

func describeTimer(key, value []byte) (string, error) {
	kind, head, err := unpackTimer(key, value)
	if err != nil {
		return "", err
	}
	what := kind
	switch kind {
	case kindClaim:
		what = "a lease ends then"
	case kindDelay:
		what = "the delay of a retry ends then"
	case kindHead:
		what = "its first message may be delivered then"
	case kindGrant:
		what = "a grant that was not accepted ends then"
	}
	return fmt.Sprintf("%s; the group's head had index %d", what, head), nil
}

func describeAttempt(key, value []byte) (string, error) {
	a, err := unpackAttempt(key, value)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d, the first at %s, the last at %s: %q",
		a.count, timeWords(a.firstMS), timeWords(a.lastMS), a.lastErr), nil
}

func describeDead(key, value []byte) (string, error) {
	d, err := unpackDead(key, value)
	if err != nil {
		return "", err
	}
	item, err := describeItem(key, d.item)
	return fmt.Sprintf("dead-lettered at %s: %q, %d failed deliveries, the first at %s, the last at %s: %q; %s",
		timeWords(d.deadMS), d.reason, d.attempts, timeWords(d.firstMS), timeWords(d.lastMS), d.lastErr, item), err
}

func describeRepeat(key, value []byte) (string, error) {
	r, err := unpackRepeat(key, value)
	words := make([]string, len(r.claims))
	for i, c := range r.claims {
		words[i] = fmt.Sprintf("group %q under token %d", c.group, c.token)
	}
	return "at " + timeWords(r.ms) + ": " + strings.Join(words, ", "), err
}

func describeArchived(key, value []byte) (string, error) {
	a, err := unpackArchived(key, value)
	if err != nil {
		return "", err
	}
	item, err := describeItem(key, a.item)
	return "completed " + timeWords(a.completedMS) + "; " + item, err
}

func describeArchiveEntry(key, value []byte) (string, error) {
	e, err := unpackArchiveEntry(key, value)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("completed %s, %s of group %q, the first is %s", timeWords(e.completedMS),
		countWords(len(e.items), "item"), e.group, e.items[0].id(e.group)), nil
}

func describeReceipt(key, value []byte) (string, error) {
	ms, result, err := unpackReceipt(key, value)
	return fmt.Sprintf("committed, written at %s, result %s", timeWords(ms), result), err
}

func describeCount(key, value []byte) (string, error) {
	n, err := unpackCount(key, value)
	return strconv.FormatInt(n, 10), err
}
