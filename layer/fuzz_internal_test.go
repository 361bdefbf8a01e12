package layer

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv/tuple"
	"fdbfifo/layer/internal/rec"
)

// TestEveryRowIsFuzzed: the fuzz tests of package rec, and those here, leave out no kind of row.
func TestEveryRowIsFuzzed(t *testing.T) {
	elsewhere := map[string]string{
		nameItem: "FuzzEnvelope", nameState: "FuzzState", nameMeta: "FuzzConfig, and kinds of their own",
		nameNamed: "as request", nameReady: "integer", nameGrant: "integer", namePart: "any bytes", nameWake: "count",
		nameMark: "no bytes", nameLane: "no bytes", nameOpen: "integer", nameKept: "integer",
		nameDue: "as of a timer", nameHeld: "as of a timer", nameHold: "as of a lock",
		nameByLane: "as request",
	}
	for _, name := range KeyNames() {
		corpus, err := filepath.Glob("internal/rec/testdata/fuzz/FuzzStored/" + name + "*")
		require.NoError(t, err)
		require.True(t, len(corpus) > 0 || elsewhere[name] != "", name)
	}
}

// FuzzState: the state of a group is refused with ErrCorrupt, or is neither empty nor larger than MaxStateSize.
func FuzzState(f *testing.F) {
	f.Fuzz(func(t *testing.T, state []byte) {
		if err := checkStoredState([]byte("key"), state); err != nil {
			require.ErrorIs(t, err, ErrCorrupt)
			return
		}
		require.True(t, 0 < len(state) && len(state) <= MaxStateSize)
	})
}

// rebuild makes the key again from the result of parse.
func (s subspace) rebuild(p parsedKey) []byte {
	switch p.name {
	case nameMeta:
		return s.meta(p.field)
	case nameItem, nameAttempt, nameDead, nameArchive:
		return s.itemKey(p.name, p.itemID(), 0)
	case namePart:
		return s.part(p.itemID(), int(p.n))
	case nameLock, nameMark:
		return s.ofLane(p.name, p.lane, 0)
	case nameState, namePace, namePurged:
		return s.startGroup(p.name, p.group, 0)
	case nameHold:
		return s.hold(p.itemID())
	case nameReady: // the shard may be one of another number of shards
		return tuple.Append(s.start(nameReady, 0), p.n, p.index, p.group)
	case nameTimer:
		return s.timerAt(p.n, p.index, p.group)
	case nameArchived:
		return s.archived(rec.Completion{Place: p.index, Index: p.n, Random: p.id})
	case nameDedup:
		if p.scope == scopeGroup {
			return s.dedupKey(true, p.group, p.field)
		}
		return s.dedupKey(false, "", p.field)
	case nameNamed:
		return s.named(p.lane, p.id)
	case nameRequest:
		return s.request(p.index, p.id)
	case nameGrant:
		return s.grant(p.id, p.lane)
	case nameReceipt:
		return s.receipt(p.id)
	case nameWake:
		return s.wake(p.id)
	case nameRepeat:
		return s.repeat(p.field)
	case nameCount:
		return s.count(p.field, p.index)
	}
	return nil
}

// FuzzKey: a key is refused or says all that it is made of, and the ranges of its name and of its group hold it.
func FuzzKey(f *testing.F) {
	prefix := tuple.Tuple{"p"}.Pack()
	s := newSubspace(prefix, "q")
	f.Fuzz(func(t *testing.T, rest []byte) {
		key := append(bytes.Clone(s.prefix), rest...)
		p, err := s.parse(key)
		d, ok, described := Describe(prefix, key, nil)
		if len(rest) == 0 || rest[0] == 0xff { // behind a zero byte, that goes on with the queue's name
			require.Error(t, err)
			return
		}
		require.True(t, ok)
		if err != nil {
			require.ErrorIs(t, described, ErrCorrupt)
			return
		}
		require.NoError(t, described)
		require.Equal(t, string(key), string(s.rebuild(p)))
		require.Equal(t, Description{Queue: "q", Name: p.name, Key: d.Key}, d)
		require.NotEmpty(t, d.Key)
		section, ok := Section(prefix, "q", p.name)
		require.True(t, ok && section.Contains(key))
		all := WholeSection(prefix, "q")
		require.True(t, all.Contains(key))
		if of, ok := GroupSection(prefix, "q", p.name, p.group); ok {
			require.True(t, of.Contains(key))
			other, _ := GroupSection(prefix, "q", p.name, p.group+"\x00")
			require.False(t, other.Contains(key))
		}
		if p.name == nameItem {
			again, err := s.parseItem(key, p.group, s.items(p.group))
			require.NoError(t, err)
			require.Equal(t, p, again)
		}
	})
}

// FuzzDescribe: any pair below any prefix is put into words or refused.
func FuzzDescribe(f *testing.F) {
	f.Fuzz(func(t *testing.T, prefix, key, value []byte) {
		_, ok, err := Describe(prefix, key, value)
		if err != nil {
			require.True(t, ok)
			var unknown *UnknownSettingError
			require.True(t, errors.Is(err, ErrCorrupt) || errors.As(err, &unknown), "%v", err)
		}
	})
}

// FuzzParseID: a text is refused, or is the text of the id except for upper-case letters.
func FuzzParseID(f *testing.F) {
	f.Fuzz(func(t *testing.T, text string) {
		id, err := ParseID(text)
		if err != nil {
			require.ErrorIs(t, err, ErrInvalidID)
			return
		}
		random, rest, _ := strings.Cut(text, "@")
		require.Equal(t, strings.ToLower(random)+"@"+rest, id.String())
		again, err := ParseID(id.String())
		require.NoError(t, err)
		require.Equal(t, id, again)
	})
}

// FuzzConfig: a document is refused or is the configuration that it is written as, setting by setting.
func FuzzConfig(f *testing.F) {
	f.Fuzz(func(t *testing.T, document string) {
		var c Config
		if json.Unmarshal([]byte(document), &c) != nil {
			return
		}
		if _, err := c.withDefaults(); err != nil {
			var limit *LimitError
			var value *ValueError
			require.True(t, errors.As(err, &limit) || errors.As(err, &value), "%v", err)
		}
		written, err := json.Marshal(c)
		require.NoError(t, err)
		var again Config
		require.NoError(t, json.Unmarshal(written, &again), "%s", written)
		if c.MaxAttempts == 0 {
			c.MaxAttempts = defaultMaxAttempts // written as a number, because 0 is written for Unlimited
		}
		require.Equal(t, c, again, "%s", written)
		complete, err := c.withDefaults()
		if err != nil {
			return
		}
		n := int64(complete.Shards)
		for _, shards := range []shardCounts{
			{read: n, write: n}, {read: n, write: n, earlier: []int64{1, 4}}, {read: n, write: 1, earlier: []int64{1}},
		} {
			stored := storedConfig{config: complete, version: 3, incarnation: uuid.Max, shards: shards}
			packed, err := stored.pack()
			require.NoError(t, err)
			read, err := unpackConfig(nil, packed)
			require.NoError(t, err)
			require.Equal(t, stored, read, "a default is no default of its own")
		}
	})
}

// FuzzSetting: a text of a setting is refused or reads back from how it is shown.
func FuzzSetting(f *testing.F) {
	f.Fuzz(func(t *testing.T, name, text string) {
		var c Config
		if err := c.Set(name, text); err != nil {
			var unknown *UnknownSettingError
			var value *ValueError
			require.True(t, errors.As(err, &unknown) || errors.As(err, &value), "%v", err)
			require.Equal(t, Config{}, c)
			return
		}
		shown, err := c.Setting(name)
		require.NoError(t, err)
		var again Config
		require.NoError(t, again.Set(name, shown), "%q", shown)
		require.Equal(t, c, again)
		if d, err := time.ParseDuration(text); err == nil && d != 0 && !reflect.DeepEqual(c, Config{}) {
			if back, err := time.ParseDuration(shown); err == nil {
				require.Equal(t, d, back)
			}
		}
	})
}
