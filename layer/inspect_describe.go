package layer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/rec"
)

// Keys have their names in the table of subspace.go. This file has words for each of them: descriptions has a function
// for the key and one for the value, by the name. The functions read no key of the database: they get keys and values,
// and return text.
//
// A lane is a whole group, the part of a group that a template matches, the free items of a group, or a single item. A
// lane has a name, see package lanes, and that of a whole group is the group.

// Description says in words what a key-value pair of a queue is, for people who look at the database itself.
type Description struct {
	Queue string
	Name  string // the name in the key, e.g. "lock"; see the key table
	Key   string // what the key stands for
	Value string // what the value says; "" if none was given
}

// Describe puts a pair into words. key is below prefix, the prefix given to Open; value is nil if only the key is
// known. ok is false if key is no key of a queue under prefix. An error wraps ErrCorrupt if key or value is malformed.
// It is a *UnknownSettingError if a later version has written the configuration. The description still holds the
// readable part.
func Describe(prefix, key, value []byte) (d Description, ok bool, err error) {
	s, queue, ok := queueOf(prefix, key)
	if !ok {
		return d, false, nil
	}
	d.Queue = queue
	p, err := s.parseForm(key)
	d.Name = p.name
	if err != nil {
		return d, true, wrap("describe", err)
	}
	words := descriptions[p.name]
	d.Key = words.key(p)
	if value == nil {
		return d, true, nil
	}
	d.Value, err = words.value(key, value)
	return d, true, wrap("describe", err)
}

// queueOf finds the queue to which key belongs: its name is the first element behind prefix. ok is false if key is no
// key of a queue under prefix.
func queueOf(prefix, key []byte) (s subspace, queue string, ok bool) {
	if len(key) < len(prefix) || string(key[:len(prefix)]) != string(prefix) {
		return s, "", false
	}
	queue, rest, err := tuple.DecodeString(key[len(prefix):])
	if err != nil || len(rest) == 0 {
		return s, "", false
	}
	s = newSubspace(prefix, queue)
	s.plan = describedPlan
	return s, queue, true
}

// describedPlan lets Describe take apart the timers of all queues, those of claims of single items too. Describe does
// not read the configuration, so it cannot know which queue has them.
var describedPlan = lanes.New(lanes.Settings{PerItem: true})

// KeyNames returns the names accepted by Section, in order.
func KeyNames() []string { return slices.Sorted(maps.Keys(descriptions)) }

// Section returns the range of a queue's keys with the given name, one of KeyNames. ok is false, and the range empty,
// if no key has the name. WholeSection returns the range of all.
func Section(prefix []byte, queue, name string) (r kv.KeyRange, ok bool) {
	if _, ok = descriptions[name]; !ok {
		return r, false
	}
	return newSubspace(prefix, queue).section(name), true
}

// WholeSection returns the range of all keys of a queue.
func WholeSection(prefix []byte, queue string) kv.KeyRange { return newSubspace(prefix, queue).all() }

// GroupSection returns the range of a queue's keys with the given name that are of one group. ok is false if no key has
// the name, or if the keys of the name are not stored by group, because then no range holds the group alone. It is also
// false for reqgroup.
func GroupSection(prefix []byte, queue, name, group string) (r kv.KeyRange, ok bool) {
	s := newSubspace(prefix, queue)
	switch descriptions[name].group {
	case groupIsKey:
		return kv.SingleKey(s.startGroup(name, group, 0)), true
	case groupThenLane:
		return s.withLanes(name, group), true
	case groupFirst:
		return s.below(s.startGroup(name, group, 1)), true
	}
	return r, false
}

// groupPlace is the position of the group in a key.
type groupPlace int

const (
	groupElsewhere groupPlace = iota // behind something else, or not at all; also that of reqgroup
	groupFirst                       // right behind the name, with more behind it
	groupIsKey                       // right behind the name, and nothing else
	groupThenLane                    // right behind the name, and nothing else or a lane of the group
)

// description says how to put the pairs of one name into words.
type description struct {
	group groupPlace                              // where a key of this name has the group
	key   func(p parsedKey) string                // the words for a key
	value func(key, value []byte) (string, error) // an error: the value has not the form of its key
}

// descriptions has a row for each name known to parse, and never changes. Check, a purge by force and a sweep also use
// the functions for values, to find values that have not the form of their key.
var descriptions = map[string]description{
	nameMeta: {
		key:   func(p parsedKey) string { return "setting " + strconv.Quote(p.field) },
		value: describeMeta,
	},
	nameItem: {groupFirst, ofItem("item"), describeItem},
	namePart: {
		group: groupFirst,
		key: func(p parsedKey) string {
			return fmt.Sprintf("continuation %d of the body of item %s", p.n, itemWords(p.itemID()))
		},
		value: func(_, value []byte) (string, error) { return fmt.Sprintf("%d bytes", len(value)), nil },
	},
	nameLock: {
		groupThenLane, func(p parsedKey) string { return "lock of " + laneWords(p.lane) },
		words(rec.UnpackRecord, recordWords),
	},
	nameHold: {
		groupFirst, func(p parsedKey) string { return "hold of item " + itemWords(p.itemID()) },
		words(rec.UnpackRecord, recordWords),
	},
	nameMark: {groupThenLane, func(p parsedKey) string {
		return "note that " + laneWords(p.lane) + " is paused or halted"
	}, func(key, value []byte) (string, error) { return "the lock says why", rec.CheckEmpty(key, value) }},
	nameState: {groupIsKey, ofGroup("state of group"), func(key, value []byte) (string, error) {
		return countWords(len(value), "byte") + ": " + bodyWords(value), checkStoredState(key, value)
	}},
	namePace: {groupIsKey, ofGroup("pace of group"), paceWords},
	nameReady: {
		key: func(p parsedKey) string {
			return fmt.Sprintf("ready hint of group %q, its head has index %d", p.group, p.index)
		},
		value: describeHint,
	},
	nameBeat: {
		key: func(p parsedKey) string { return "heartbeat " + p.id.String() + " of a handle" },
		value: words(rec.UnpackBeat, func(b rec.Beat) string {
			if b.Ended {
				return fmt.Sprintf("the claims by heartbeat of %q are being ended, since it was due at %s",
					b.Owner, timeWords(b.DueMS))
			}
			return fmt.Sprintf("the claims by heartbeat of %q last until %s, unless it is moved",
				b.Owner, timeWords(b.DueMS))
		}),
	},
	nameHeld: {
		key: func(p parsedKey) string {
			return fmt.Sprintf("claim of group %q by heartbeat %s", p.group, p.id)
		},
		value: describeTimer,
	},
	nameTimer: {
		key: func(p parsedKey) string {
			if p.id != uuid.Nil {
				return fmt.Sprintf("timer of heartbeat %s, due %s", p.id, timeWords(p.index))
			}
			return timerWords(p)
		},
		value: describeTimer,
	},
	nameLane: {
		group: groupFirst,
		key: func(p parsedKey) string {
			return "item " + itemWords(p.itemID()) + ", as one of a lane: " + laneWords(p.lane)
		},
		value: func(key, value []byte) (string, error) { return "nothing more", rec.CheckEmpty(key, value) },
	},
	nameOpen: {
		key: func(p parsedKey) string {
			return fmt.Sprintf("ready hint of %s, its head has index %d", laneWords(p.lane), p.index)
		},
		value: describeHint,
	},
	nameDue: {key: timerWords, value: describeTimer},
	nameKept: {
		group: groupFirst,
		key: func(p parsedKey) string {
			return fmt.Sprintf("ready hint of %s, put aside while %s is locked", laneWords(p.lane), laneWords(p.holder))
		},
		value: describeHint,
	},
	nameAttempt: {groupFirst, ofItem("failed deliveries of item"), words(rec.UnpackAttempt, func(a rec.Attempt) string {
		return fmt.Sprintf("%d, the first at %s, the last at %s: %q",
			a.Count, timeWords(a.FirstMS), timeWords(a.LastMS), a.LastError)
	})},
	nameDead: {groupFirst, ofItem("dead letter"), describeDead},
	nameDedup: {
		key: func(p parsedKey) string {
			if p.scope == scopeGroup {
				return fmt.Sprintf("what is remembered of dedup id %q in group %q", p.field, p.group)
			}
			return fmt.Sprintf("what is remembered of dedup id %q", p.field)
		},
		value: words(rec.UnpackDedupEntry, func(r rec.DedupEntry) string {
			if r.UntilMS == 0 {
				return fmt.Sprintf("message %s, while it is in the queue", rememberedID(r))
			}
			return fmt.Sprintf("message %s, until %s", rememberedID(r), timeWords(r.UntilMS))
		}),
	},
	namePurged:  {groupIsKey, ofGroup("the last purge of group"), instantWords},
	nameArchive: {groupFirst, ofItem("archived item"), describeArchived},
	nameArchived: {
		key: func(p parsedKey) string {
			return fmt.Sprintf("what one ack at %d has finished, from %d of random %s on", p.index, p.n, p.id)
		},
		value: words(rec.UnpackArchiveEntry, func(e *rec.ArchiveEntry) string {
			return fmt.Sprintf("completed %s, %s of group %q, the first is %s", timeWords(e.CompletedMS),
				countWords(len(e.Items), "item"), e.Group, idOf(e.Items[0], e.Group))
		}),
	},
	nameRequest: {
		key: func(p parsedKey) string {
			return fmt.Sprintf("request of a handle whose receives wait, since %d, random %s", p.index, p.id)
		},
		value: words(rec.UnpackRequest, func(r rec.Request) string {
			return fmt.Sprintf("of %q, wants %s, counts as dead after %s", r.Owner, countWords(int(r.Wants), "group"),
				timeWords(r.DeadlineMS))
		}),
	},
	nameNamed: {
		key: func(p parsedKey) string {
			return fmt.Sprintf("request of a handle whose receives wait for %s, random %s", laneWords(p.lane), p.id)
		},
		value: words(rec.UnpackRequest, func(r rec.Request) string {
			return fmt.Sprintf("of %q, counts as dead after %s", r.Owner, timeWords(r.DeadlineMS))
		}),
	},
	nameByLane: {
		key: func(p parsedKey) string {
			_, values := lanes.SplitWhere(p.where)
			return fmt.Sprintf("request of a handle whose receives wait for lanes with %s, since %s, random %s",
				strings.Join(values, ", "), timeWords(p.index), p.id)
		},
		value: words(rec.UnpackRequest, func(r rec.Request) string {
			return fmt.Sprintf("of %q, wants %s, counts as dead after %s", r.Owner, countWords(int(r.Wants), "lane"),
				timeWords(r.DeadlineMS))
		}),
	},
	nameGrant: {
		key: func(p parsedKey) string {
			return fmt.Sprintf("grant of %s to the request of %s", laneWords(p.lane), p.id)
		},
		value: func(key, value []byte) (string, error) { n, err := intWords(key, value); return "token " + n, err },
	},
	nameWake: {
		key: func(p parsedKey) string {
			if p.id == uuid.Nil {
				return "wake key of all requests for groups, for lanes and by templates"
			}
			return "wake key of the request of " + p.id.String()
		},
		value: words(rec.UnpackCount, decimal),
	},
	nameRepeat: {
		key: func(p parsedKey) string {
			return "what the receive with id " + strconv.Quote(p.field) + " was given"
		},
		value: words(rec.UnpackRepeat, func(r rec.Repeat) string {
			claims := make([]string, len(r.Claims))
			for i, c := range r.Claims {
				claims[i] = fmt.Sprintf("group %q under token %d", lanes.GroupOf(c.Lane), c.Token)
			}
			return "at " + timeWords(r.AtMS) + ": " + strings.Join(claims, ", ")
		}),
	},
	nameReceipt: {
		key: func(p parsedKey) string { return "receipt of transaction " + p.id.String() },
		value: func(key, value []byte) (string, error) {
			r, err := rec.UnpackReceipt(key, value)
			return "committed, written at " + timeWords(r.WrittenMS), err
		},
	},
	nameChange: {
		key: func(p parsedKey) string {
			return fmt.Sprintf("changes committed at %s, row %d", p.stamp, p.n)
		},
		value: func(key, value []byte) (string, error) {
			all, err := unpackChanges(key, value)
			first := make([]string, 0, describedItems)
			for _, c := range all[:min(len(all), describedItems)] {
				first = append(first, fmt.Sprintf("%s %s", c.Kind, c.ID))
			}
			return fmt.Sprintf("%s: %s", countWords(len(all), "change"), strings.Join(first, ", ")), err
		},
	},
	nameCursor: {
		key: func(p parsedKey) string { return "place of subscription " + strconv.Quote(p.field) },
		value: words(rec.UnpackCursor, func(p rec.Cursor) string {
			return fmt.Sprintf("from %s on, %d changes of it done, token %s", tuple.Printable(p.From), p.Done, p.Token)
		}),
	},
	nameReader: {
		key: func(p parsedKey) string { return "holder of subscription " + strconv.Quote(p.field) },
		value: words(rec.UnpackReader, func(r rec.Reader) string {
			return fmt.Sprintf("%q until %s, token %s", r.Owner, timeWords(r.EndMS), r.Token)
		}),
	},
	nameCount: {
		key:   func(p parsedKey) string { return fmt.Sprintf("counter %q, slot %d", p.field, p.index) },
		value: words(rec.UnpackCount, decimal),
	},
}

// words returns a function for description.value: it reads a value by unpack, and says the result by say.
func words[T any](
	unpack func(key, value []byte) (T, error), say func(v T) string,
) func(key, value []byte) (string, error) {
	return func(key, value []byte) (string, error) {
		v, err := unpack(key, value)
		if err != nil {
			return "", err
		}
		return say(v), nil
	}
}

var (
	intWords  = words(rec.UnpackInt, decimal)
	paceWords = words(rec.UnpackPace, func(used rec.Pace) string {
		return "its rate is used up to " + timeWords(used.US/1000)
	})
	instantWords = words(rec.UnpackInstant, func(n rec.Instant) string {
		return fmt.Sprintf("at %s, clock %d", timeWords(n.AtMS), n.Clock)
	})
	// metaWords has the fields of meta whose value is not a tuple of one number.
	metaWords = map[string]func(key, value []byte) (string, error){
		metaPaused:    words(rec.UnpackPause, markWords),
		metaSweptTo:   words(rec.UnpackKey, tuple.Printable),
		metaPurged:    instantWords,
		metaEased:     instantWords,
		metaPace:      paceWords,
		metaMissed:    words(rec.UnpackKey, tuple.Printable),
		metaSweptDead: words(rec.UnpackKey, tuple.Printable),
		metaChanged:   words(rec.UnpackCount, decimal),
		metaSwept: words(rec.UnpackSweepNote, func(n rec.SweepNote) string {
			return "the last sweep began " + timeWords(n.BegunMS)
		}),
		metaConfig: func(key, value []byte) (string, error) {
			stored, err := unpackConfig(key, value)
			if err != nil {
				return "", err
			}
			document, err := json.Marshal(stored.config)
			return fmt.Sprintf("version %d of incarnation %s: %s", stored.version, stored.incarnation, document), err
		},
	}
)

// describeMeta says the value of a field of meta. It finds the field at the end of the key. A field that metaWords does
// not have is a tuple of one number.
func describeMeta(key, value []byte) (string, error) {
	for name, say := range metaWords {
		if bytes.HasSuffix(key, tuple.AppendString(nil, name)) {
			return say(key, value)
		}
	}
	return intWords(key, value)
}

// decimal returns the digits of n.
func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// ofGroup returns a function for description.key that says what, and the group.
func ofGroup(what string) func(p parsedKey) string {
	return func(p parsedKey) string { return what + " " + strconv.Quote(p.group) }
}

// ofItem returns a function for description.key that says what, and the item.
func ofItem(what string) func(p parsedKey) string {
	return func(p parsedKey) string { return what + " " + itemWords(p.itemID()) }
}

// itemWords names an item by its index, group and id.
func itemWords(id ID) string { return fmt.Sprintf("%d of group %q, id %s", id.Index, id.Group, id) }

// timerWords puts the key of a timer of a lane into words: its lane, and when it is due. A time from sinceBase on is
// that of an enqueue, see type retro.
func timerWords(p parsedKey) string {
	if p.index >= sinceBase {
		return fmt.Sprintf("timer of %s, due when the queue's delay is over since %s",
			laneWords(p.lane), timeWords(p.index-sinceBase))
	}
	return fmt.Sprintf("timer of %s, due %s", laneWords(p.lane), timeWords(p.index))
}

// describedBody is how much of a body is shown, describedItems how many items of a lock, or changes of a row.
const (
	describedBody  = 80 // bytes
	describedItems = 3
)

// describeItem says the value of an item: its times, its dedup id, its headers, and the beginning of its body.
func describeItem(key, value []byte) (string, error) {
	e, body, err := rec.OpenEnvelope(value)
	if err != nil {
		return "", rec.Corrupt(key, err)
	}
	s := "enqueued " + timeWords(e.EnqueuedMS)
	if e.DueMS > 0 {
		s += ", not to be delivered before " + timeWords(e.DueMS)
	}
	if e.DedupID != "" {
		s += ", dedup id " + strconv.Quote(e.DedupID)
	}
	if headers, ok := rec.NestedHeaders(e.Headers).(tuple.Tuple); ok {
		s += ", headers " + headers.String()
	}
	s += ", body of " + countWords(max(len(body), int(e.Size)), "byte")
	if e.Parts > 0 {
		s += fmt.Sprintf(", %d of them here and the rest in %s", len(body), countWords(int(e.Parts), "part"))
	}
	if len(body) == 0 {
		return s, nil
	}
	return s + ": " + bodyWords(body), nil
}

// bodyWords returns the beginning of a body, up to describedBody bytes, in quotes.
func bodyWords(body []byte) string {
	if len(body) > describedBody {
		return strconv.Quote(string(body[:describedBody])) + "…"
	}
	return strconv.Quote(string(body))
}

// recordWords says the value of a lock or hold: the claim, with its first items, or the grant or delay, and the mark.
func recordWords(r *rec.Record) string {
	h := r.Holding()
	if h == nil {
		return markWords(r.Mark())
	}
	switch h.Kind {
	case rec.KindGrant:
		return fmt.Sprintf("kept for the request of %s until %s", h.Owner, timeWords(h.EndMS))
	case rec.KindDelay, rec.KindHead, rec.KindBeat:
		return "held by nobody, a retry waits until " + timeWords(h.EndMS)
	case rec.KindClaim:
	}
	var indexes []string
	for _, d := range h.Items[:min(describedItems, len(h.Items))] {
		indexes = append(indexes, strconv.FormatInt(d.Index, 10))
	}
	if more := len(h.Items) - len(indexes); more > 0 {
		indexes = append(indexes, fmt.Sprintf("%d more", more))
	}
	then := ""
	if r.Mark() != nil {
		then = "; when that ends, " + markWords(r.Mark())
	}
	until := "until " + timeWords(h.EndMS)
	if h.ByBeat() {
		until = "by heartbeat " + h.Beat.String()
	}
	return fmt.Sprintf("%s: held by %q under token %d %s, %s delivered and not acked: %s%s",
		h.Kind, h.Owner, h.Token,
		until, countWords(len(h.Items), "item"), strings.Join(indexes, ", "), then)
}

// markWords says a pause or a halt: by whom, since when, and why.
func markWords(m *rec.Mark) string {
	status := "paused"
	if m.Kind == rec.MarkHalt {
		status = "halted"
	}
	return fmt.Sprintf("%s by %q since %s: %q", status, m.By, timeWords(m.SinceMS), m.Reason)
}

// timerEnds has, for each kind of a timer except that of a beat, words for the event at its time.
var timerEnds = map[rec.Kind]string{
	rec.KindClaim: "a lease ends then",
	rec.KindDelay: "the delay of a retry ends then",
	rec.KindHead:  "its first message may be delivered then",
	rec.KindGrant: "a grant that was not accepted ends then",
}

// describeTimer says the value of a timer, or of a key held: which kind of event comes at its time.
func describeTimer(key, value []byte) (string, error) {
	kind, head, err := rec.UnpackTimer(key, value)
	if err != nil {
		return "", err
	}
	if kind == rec.KindBeat {
		return "the handle's claims by heartbeat end then, unless the handle lives", nil
	}
	return fmt.Sprintf("%s; the group's head had index %d", cmp.Or(timerEnds[kind], string(kind)), head), nil
}

// describeDead says the value of a dead letter: when and why it has failed for good, and then its item.
func describeDead(key, value []byte) (string, error) {
	d, err := rec.UnpackDeadLetter(key, value)
	if err != nil {
		return "", err
	}
	item, err := describeItem(key, d.Item)
	return fmt.Sprintf("dead-lettered at %s: %q, %d failed deliveries, the first at %s, the last at %s: %q; %s",
		timeWords(d.DeadMS), d.Reason, d.Attempts, timeWords(d.FirstMS), timeWords(d.LastMS), d.LastError, item), err
}

// describeArchived says the value of an archived item: when it was finished, and then the item.
func describeArchived(key, value []byte) (string, error) {
	a, err := rec.UnpackArchived(key, value)
	if err != nil {
		return "", err
	}
	item, err := describeItem(key, a.Item)
	return "completed " + timeWords(a.CompletedMS) + "; " + item, err
}

// describeHint says the value of a hint: how often the head of the lane had failed when the hint was written. 1 may
// also mean that this was not known (unread).
func describeHint(key, value []byte) (string, error) {
	if len(value) == 0 {
		return "failed deliveries of the head: none", nil
	}
	n, err := intWords(key, value)
	if n == "1" {
		n += ", or not known"
	}
	return "failed deliveries of the head: " + n, err
}

// laneWords names a lane for people: the group, the values of a view, or the item.
func laneWords(lane string) string {
	group, where := lanes.Split(lane)
	text := "group " + strconv.Quote(group)
	if where == "" {
		return text
	}
	if where == lanes.Free {
		return "the free items of " + text
	}
	if id, ok := holdOf(lane); ok {
		return "item " + itemWords(id)
	}
	view, values := lanes.SplitWhere(where)
	return fmt.Sprintf("%s with %s in view %d", text, strings.Join(values, ", "), view)
}
