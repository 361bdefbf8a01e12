package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// elsewhere is what a look for queues under any prefix has found.
type elsewhere struct {
	places []foundPlace
	// paths are the paths of directories by their prefixes.
	paths map[string]string
	// cut says that the look ended before all was seen.
	cut bool
	// failed is why the time of the look was not enough; nil = there is no error to tell.
	failed error
}

// foundPlace is a prefix that has queues.
type foundPlace struct {
	prefix []byte
	queues []string
}

// A look for other queues ends after this many reads or this time. It reads one key after the other.
const (
	lookReads = 2000
	lookTime  = 3 * time.Second
	// lookWidth is the most branches of one place that the look follows. A place with more branches holds data, not
	// prefixes.
	lookWidth = 200
	// lookPart is the reads of one transaction, so that no transaction becomes too old.
	lookPart = 100
)

// lookElsewhere looks for queues under any prefix. It reads only keys, and only where the keys branch. From a key it
// jumps behind all keys with the same beginning, up to the end of an element of the tuple. Later it looks into these
// branches, those with the shorter beginnings first.
func lookElsewhere(ctx context.Context, db kv.DB) (elsewhere, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	l := &look{next: []branch{{end: []byte{0xfe}}}, found: make(map[string][]string), reads: lookReads}
	var e elsewhere
	for len(l.next) > 0 && l.reads > 0 {
		_, err := kv.Run(ctx, db, kv.TxOptions{Call: "look elsewhere"}, func(tx kv.Tx, _ kv.Attempt) error {
			return l.part(ctx, tx.Snapshot())
		})
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			e.failed = err
			break
		}
		if err != nil {
			return elsewhere{}, err
		}
	}
	e.cut = l.cut || len(l.next) > 0
	for prefix, queues := range l.found {
		slices.Sort(queues)
		e.places = append(e.places, foundPlace{[]byte(prefix), queues})
	}
	slices.SortFunc(e.places, func(a, b foundPlace) int { return bytes.Compare(a.prefix, b.prefix) })
	if len(e.places) == 0 {
		return e, nil
	}
	_, err := kv.Run(ctx, db, kv.TxOptions{Call: "look elsewhere"}, func(tx kv.Tx, _ kv.Attempt) (err error) {
		e.paths, err = directoryPaths(ctx, tx.Snapshot())
		return err
	})
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = nil
	}
	return e, err
}

// look is the state of a look for other queues. The state stays valid if an attempt of a transaction fails, because it
// holds only keys that were found.
type look struct {
	next  []branch
	found map[string][]string // queues by prefix
	reads int                 // that are left
	cut   bool
}

// branch is a range of keys that begin alike.
type branch struct {
	prefix, begin, end []byte
	children           int // that were seen
}

// part looks at as many keys as go into a transaction.
func (l *look) part(ctx context.Context, tx kv.ReadTx) error {
	for n := 0; n < lookPart && len(l.next) > 0 && l.reads > 0; n++ {
		l.reads--
		at := &l.next[0]
		key, err := tx.GetKey(kv.FirstGreaterOrEqual(at.begin)).Wait(ctx)
		if err != nil {
			return err
		}
		if bytes.Compare(key, at.end) >= 0 {
			l.next = l.next[1:]
			continue
		}
		begin, name, isQueue, err := l.queueOf(ctx, tx, key)
		if err != nil {
			return err
		}
		if isQueue {
			if p := string(begin); !slices.Contains(l.found[p], name) {
				l.found[p] = append(l.found[p], name)
			}
			at.begin = layer.WholeSection(begin, name).End
			continue
		}
		all := kv.PrefixRange(key[:len(at.prefix)+l.step(at, key[len(at.prefix):])])
		at.begin = all.End
		if len(all.Begin) < len(key) {
			below := branch{prefix: all.Begin, begin: all.Begin, end: all.End}
			if bytes.Equal(key, all.Begin) {
				below.begin = kv.KeyAfter(key)
			}
			l.next = append(l.next, below)
		}
	}
	return nil
}

// step returns how many bytes of rest a key must share so that the look passes over it. rest follows the prefix of at.
// It is a whole element of the tuple, or less if there are very many.
func (l *look) step(at *branch, rest []byte) int {
	n := elementLength(rest)
	at.children++
	for _, wide := range []struct{ children, step int }{{lookWidth, 2}, {2 * lookWidth, 1}} {
		if at.children > wide.children && n > wide.step {
			l.cut, n = true, wide.step
		}
	}
	return n
}

// queueOf returns the queue that has the key, if there is one. In the key, the name of the queue comes before a word
// that all keys of a queue have. queueOf then reads the queue's own keys to see whether the queue exists.
func (l *look) queueOf(ctx context.Context, tx kv.ReadTx, key []byte) (prefix []byte, name string, ok bool, err error) {
	for begin := range key {
		if key[begin] != stringCode {
			continue
		}
		name, rest, err := tuple.DecodeString(key[begin:])
		if err != nil || len(rest) == 0 {
			continue
		}
		kind, _, err := tuple.DecodeString(rest)
		if err != nil || !slices.Contains(layer.KeyNames(), kind) {
			continue
		}
		l.reads--
		format := tuple.Append(slices.Clone(key[:begin]), name, "meta", "format")
		v, err := tx.Get(format).Wait(ctx)
		if err != nil {
			return nil, "", false, err
		}
		if v != nil {
			return key[:begin:begin], name, true, nil
		}
	}
	return nil, "", false, nil
}

// stringCode is the first byte of a string in a tuple.
const stringCode = 0x02

// elementLength is the length of the tuple's element that b begins with, or 1 if it begins with none.
func elementLength(b []byte) int {
	var rest []byte
	var err error
	switch code := b[0]; {
	case code == 0x01:
		_, rest, err = tuple.DecodeBytes(b)
	case code == stringCode:
		_, rest, err = tuple.DecodeString(b)
	case code >= 0x0c && code <= 0x1c:
		if _, rest, err = tuple.DecodeInt(b); err != nil {
			_, rest, err = tuple.DecodeUint(b)
		}
	case code == 0x30:
		_, rest, err = tuple.DecodeUUID(b)
	case code == 0x33:
		_, rest, err = tuple.DecodeVersionstamp(b)
	default:
		return 1
	}
	if err != nil {
		return 1
	}
	return len(b) - len(rest)
}

// The most places, and the most queues of a place, that are shown.
const (
	shownPlaces = 10
	shownQueues = 5
)

// others returns the places except the one at prefix.
func (e elsewhere) others(prefix []byte) []foundPlace {
	return slices.DeleteFunc(slices.Clone(e.places), func(p foundPlace) bool { return bytes.Equal(p.prefix, prefix) })
}

// errCut says that a list is not the whole.
var errCut = errors.New("not all keys were read, so there may be more queues: give --prefix")

// incomplete returns an error that says why all was not seen, if cut is set.
func (e elsewhere) incomplete() error {
	switch {
	case !e.cut:
		return nil
	case e.failed == nil:
		return errCut
	case kv.Code(e.failed) == 0:
		return fmt.Errorf("not all keys were read, so there may be more queues: no answer within %s", lookTime)
	}
	return fmt.Errorf("not all keys were read in %s, so there may be more queues: %w", lookTime, e.failed)
}

// hint names the places except that of s, as flags of the command; "" if there are none.
func (e elsewhere) hint(s *session) string {
	others := e.others(s.prefix())
	if len(others) == 0 {
		return ""
	}
	var text strings.Builder
	text.WriteString("\n  There are queues under these prefixes too:")
	for i, p := range others {
		if i == shownPlaces {
			text.WriteString("\n    and " + commas(int64(len(others)-i)) + " more: " + s.program() + " queues --all")
			return text.String()
		}
		text.WriteString("\n    " + placeFlag(p.prefix, e.paths) + "  " + names(p.queues, shownQueues))
	}
	if e.cut {
		text.WriteString("\n    and perhaps more: not all keys were looked at")
	}
	return text.String()
}

// names lists up to shown names.
func names(all []string, shown int) string {
	var list []string
	for _, name := range all[:min(shown, len(all))] {
		list = append(list, display(name))
	}
	text := strings.Join(list, ", ")
	if len(all) > shown {
		text += " and " + commas(int64(len(all)-shown)) + " more"
	}
	return text
}
