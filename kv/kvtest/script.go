package kvtest

import (
	"strconv"
	"strings"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

// run executes the statements of a script, separated by ";", and awaits each read before the next statement. It
// returns the error of the first read that fails. Keys stand under the test's prefix.
//
//	get k               range b e [limit n] [reverse]     key SELECTOR k
//	set k [v]           clear k                           clearrange b e
//	add k               stampvalue k                      stampkey k
//	readconflict b [e]  writeconflict b [e]               watch k
//	noconflict          (leaves out the write conflict range of the next write)
//
// A read verb preceded by "snapshot" reads at snapshot. SELECTOR is llt, lle, fgt or fge, "+n" or "-n" added to it.
func (s *space) run(tx kv.Tx, script string) error {
	for _, line := range strings.Split(script, ";") {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if err := s.statement(tx, words); err != nil {
			return err
		}
	}
	return nil
}

func (s *space) statement(tx kv.Tx, words []string) error {
	read := kv.ReadTx(tx)
	if words[0] == "snapshot" {
		read, words = tx.Snapshot(), words[1:]
	}
	arg := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		return ""
	}
	k := s.key(arg(1))
	var err error
	switch words[0] {
	case "get":
		_, err = read.Get(k).Wait(s.ctx)
	case "key":
		_, err = read.GetKey(s.selector(arg(1), arg(2))).Wait(s.ctx)
	case "range":
		_, err = read.GetRange(s.keys(arg(1), arg(2)).Selectors(), rangeOptions(s, words[3:])).Wait(s.ctx)
	case "set":
		value := arg(2)
		if value == "" {
			value = "new"
		}
		tx.Set(k, []byte(value))
	case "clear":
		tx.Clear(k)
	case "clearrange":
		tx.ClearRange(s.keys(arg(1), arg(2)))
	case "add":
		tx.Atomic(kv.Add, k, []byte{1})
	case "stampvalue":
		tx.Atomic(kv.SetVersionstampedValue, k, stampTemplate("", ""))
	case "stampkey":
		tx.Atomic(kv.SetVersionstampedKey, stampTemplate(string(k), ""), []byte("stamped"))
	case "readconflict":
		require.NoError(s.T, tx.AddReadConflictRange(s.keyOrRange(words)))
	case "writeconflict":
		require.NoError(s.T, tx.AddWriteConflictRange(s.keyOrRange(words)))
	case "watch":
		f := tx.Watch(k)
		s.test.Cleanup(f.Cancel)
	case "noconflict":
		tx.NextWriteNoConflict()
	default:
		require.Fail(s.T, "script", "unknown verb %q", words[0])
	}
	return err
}

func (s *space) keyOrRange(words []string) kv.KeyRange {
	if len(words) == 3 {
		return s.keys(words[1], words[2])
	}
	return kv.SingleKey(s.key(words[1]))
}

// selector builds a selector from its script form, for instance "fge+2".
func (s *space) selector(form, k string) kv.KeySelector {
	base := map[string]kv.KeySelector{
		"llt": kv.LastLessThan(s.key(k)),
		"lle": kv.LastLessOrEqual(s.key(k)),
		"fgt": kv.FirstGreaterThan(s.key(k)),
		"fge": kv.FirstGreaterOrEqual(s.key(k)),
	}
	require.GreaterOrEqual(s.T, len(form), 3)
	sel, ok := base[form[:3]]
	require.True(s.T, ok, "selector %q", form)
	if len(form) > 3 {
		n, err := strconv.Atoi(form[3:])
		require.NoError(s.T, err)
		sel.Offset += n
	}
	return sel
}

func rangeOptions(s *space, words []string) kv.RangeOptions {
	var o kv.RangeOptions
	for i, w := range words {
		switch w {
		case "reverse":
			o.Reverse = true
		case "limit":
			n, err := strconv.Atoi(words[i+1])
			require.NoError(s.T, err)
			o.Limit = n
		}
	}
	return o
}

// stampTemplate returns before, ten bytes for the stamp, after, and the offset suffix of a versionstamped operation.
func stampTemplate(before, after string) []byte {
	n := len(before)
	t := append([]byte(before), make([]byte, 10)...)
	t = append(t, after...)
	return append(t, byte(n), byte(n>>8), byte(n>>16), byte(n>>24))
}
