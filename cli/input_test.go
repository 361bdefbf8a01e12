package cli

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf16"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// collect reads a source to its end, or to its first error.
func collect(text string, o sourceOptions) (bodies []string, err error) {
	// One byte at a time: what is held back between two reads must not matter.
	src, err := newSource(iotest.OneByteReader(strings.NewReader(text)), o)
	if err != nil {
		return nil, err
	}
	for {
		m, _, err := src.next()
		if errors.Is(err, io.EOF) {
			return bodies, nil
		}
		if err != nil {
			return bodies, err
		}
		bodies = append(bodies, m.Group+"|"+string(m.Body))
	}
}

// The body of a message is the record as it stands in the file, whatever its line ends, quotes, blank lines,
// byte order mark, or the lack of a last line end.
func TestRecordsAsTheyStand(t *testing.T) {
	csv := sourceOptions{format: "csv", groupField: "g"}
	for _, text := range []string{
		"g,v\na,1\nb,\"x\ny\"\n",
		"g,v\r\na,1\r\n\r\nb,\"x\ny\"",
		"\ufeffg,v\n\n\na,1\nb,\"x\ny\"\n\n",
	} {
		bodies, err := collect(text, csv)
		require.NoError(t, err)
		require.Equal(t, []string{"a|a,1", "b|b,\"x\ny\""}, bodies)
	}
	bodies, err := collect("{\"g\":\"a\"}\r\n\n  {\"g\":true}", sourceOptions{format: "jsonl", groupField: "g"})
	require.NoError(t, err)
	require.Equal(t, []string{`a|{"g":"a"}`, `true|{"g":true}`}, bodies)
}

// wide is a text in UTF-16.
func wide(text string, order binary.AppendByteOrder, mark bool) string {
	var b []byte
	if mark {
		text = "\ufeff" + text
	}
	for _, unit := range utf16.Encode([]rune(text)) {
		b = order.AppendUint16(b, unit)
	}
	return string(b)
}

// TestInputIsRecognised: a byte order mark is no part of a text. UTF-16, and the line ends of an old Macintosh, are
// named in each input, whatever it is for: none is read as one long line, or as nothing at all.
func TestInputIsRecognised(t *testing.T) {
	t.Parallel()
	inputs := map[string]string{"csv": "g,v\na,1\nb,2\n", "jsonl": "{\"g\":\"a\"}\n{\"g\":\"b\"}\n"}
	for format, text := range inputs {
		o := sourceOptions{format: format, groupField: "g"}
		want, err := collect(text, o)
		require.NoError(t, err)
		require.Len(t, want, 2)
		got, err := collect("\ufeff"+text, o)
		require.NoError(t, err)
		require.Equal(t, want, got)
		for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
			for _, mark := range []bool{true, false} {
				_, err := collect(wide(text, order, mark), o)
				require.ErrorIs(t, err, errWide)
			}
		}
		// Some records are longer than a message may be, so the line ends must be looked for before the length counts.
		long := strings.Repeat(strings.ReplaceAll(text, "\n", "\r"), 3<<20/len(text))
		_, err = collect(long+long, o)
		require.ErrorIs(t, err, errLineEnds, format)
		_, err = collect("\x00\x00\xfe\xff"+text, o)
		require.ErrorIs(t, err, errWide)
		for _, end := range []string{"\r", "\r\r\n"} {
			o := o
			if format == "csv" {
				o.groupField = ""
			}
			_, err = collect(strings.ReplaceAll(text, "\n", end), o)
			if format == "jsonl" && end == "\r\r\n" {
				require.NoError(t, err) // blanks around an object
				continue
			}
			require.ErrorIs(t, err, errLineEnds, "%s %q", format, end)
		}
	}
	// Without a mark, and with no Latin letter at the begin.
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		for _, end := range []string{"\n", "\r\n"} {
			_, err := collect(wide("город,v"+end+"a,1"+end, order, false), sourceOptions{format: "csv"})
			require.ErrorIs(t, err, errWide)
		}
	}
	got, err := collect("g,v\na,\"x\ry\"\n", sourceOptions{format: "csv", groupField: "g"})
	require.NoError(t, err)
	require.Equal(t, []string{"a|a,\"x\ry\""}, got, "between quotation marks it belongs to the field")
	_, err = collect("one\na\rb\n", sourceOptions{format: "csv"})
	require.ErrorIs(t, err, errLineEnds)
}

// TestOtherTextsAreRecognised: the same for claims, keys, lists of queues, secrets and keys of the database.
func TestOtherTextsAreRecognised(t *testing.T) {
	t.Parallel()
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	app, q := onMemory(t, 1)
	var claim bytes.Buffer
	require.NoError(t, app.Run(t.Context(), []string{"receive"}, nil, &claim, io.Discard))
	for _, args := range [][]string{{"extend", file("\ufeff" + claim.String())}, {"ack"}} {
		in := strings.NewReader("\ufeff" + claim.String())
		require.NoError(t, app.Run(t.Context(), args, in, io.Discard, io.Discard))
	}
	requireGivenBack(t, q, 0)
	var out bytes.Buffer
	in := strings.NewReader("\ufeff(\"a\", 1)\n")
	require.NoError(t, app.Run(t.Context(), []string{"decode"}, in, &out, io.Discard))
	require.Contains(t, out.String(), "x02a")
	keys, err := readKeys(file("\ufeffkey secret\n"))
	require.NoError(t, err)
	require.Contains(t, keys, "key")
	queues, err := readQueues(file("\ufeff[]"))
	require.NoError(t, err)
	require.Empty(t, queues)
	secret, err := readSecret(file("\ufeff0123456789abcdef\n"))
	require.NoError(t, err)
	require.Equal(t, "0123456789abcdef", string(secret))
	for _, args := range [][]string{{"ack"}, {"nack"}, {"extend"}, {"decode"}} {
		var stderr bytes.Buffer
		in := strings.NewReader(wide(claim.String(), binary.LittleEndian, true))
		require.Error(t, app.Run(t.Context(), args, in, io.Discard, &stderr))
		require.Contains(t, stderr.String(), errWide.Error(), "%q", args)
	}
	utf16 := file(wide("key secret\n", binary.LittleEndian, true))
	_, err = readKeys(utf16)
	require.ErrorIs(t, err, errWide)
	_, err = readQueues(utf16)
	require.ErrorIs(t, err, errWide)
	_, err = readSecret(utf16)
	require.ErrorIs(t, err, errWide)
}

// TestFileIsCheckedByItsQueue: a record that only this queue refuses, or only with these flags, ends the enqueue of a
// file before anything is enqueued. With --partial the records before it are enqueued. The error names its line.
func TestFileIsCheckedByItsQueue(t *testing.T) {
	t.Parallel()
	const bad = 550 // of 600 records, more than one transaction takes
	for name, test := range map[string]struct {
		config    layer.Config
		flags     []string
		good, bad string // records
	}{
		"facet": {
			layer.Config{Facets: []string{"state"}, Views: "*; state"}, []string{"--header-field", "state"},
			`{"state":"NEW"}`, `{"state":""}`,
		},
		"group": {
			layer.Config{}, []string{"--group-field", "g", "--delay", "1h", "--join-when-due"},
			`{"g":"a"}`, `{"g":"` + strings.Repeat("a", layer.MaxGroupSize) + `"}`,
		},
		"dedup id": {
			layer.Config{DedupInGroup: true}, []string{"--alone", "--dedup-field", "id"}, `{"id":""}`, `{"id":"1"}`,
		},
	} {
		for flag, left := range map[string]int64{"--partial=false": 0, "--partial": bad - 1} {
			app, _ := onMemory(t, 0)
			db, err := app.Engines["disk"](t.Context(), EngineOptions{})
			require.NoError(t, err)
			q, err := layer.Create(t.Context(), db, prefix(), "checked", layer.Options{Config: test.config})
			require.NoError(t, err)
			var in strings.Builder
			for line := 1; line <= 600; line++ {
				if line == bad {
					in.WriteString(test.bad + "\n")
				} else {
					in.WriteString(test.good + "\n")
				}
			}
			var stderr bytes.Buffer
			args := []string{"enqueue", "--queue", "checked", "--file", "-", "--format", "jsonl", flag}
			args = append(args, test.flags...)
			err = app.Run(t.Context(), args, strings.NewReader(in.String()), io.Discard, &stderr)
			require.Equal(t, ExitFailed, ExitCode(err), "%s: %s", name, &stderr)
			require.Contains(t, stderr.String(), fmt.Sprintf("stdin: line %d: ", bad), name)
			require.Contains(t, stderr.String(), were(left)+" enqueued", name)
			st, err := q.Stats(t.Context(), layer.StatsOptions{})
			require.NoError(t, err)
			require.Equal(t, left, st.Depth, "%s %s", name, flag)
			require.NoError(t, q.Close(t.Context()))
		}
	}
}

// TestNothingIsTold: an input without a message is told, in words, and not by a figure alone.
func TestNothingIsTold(t *testing.T) {
	t.Parallel()
	app, _ := onMemory(t, 0)
	for format, texts := range map[string][]string{"csv": {"g,v\n", "g", "g\r"}, "jsonl": {"", "\n \r\n", "\ufeff"}} {
		for _, text := range texts {
			for _, flag := range []string{"--partial", "--partial=false", "--ids", "--json"} {
				var stderr bytes.Buffer
				args := []string{"enqueue", "--file", "-", "--format", format, flag}
				err := app.Run(t.Context(), args, strings.NewReader(text), io.Discard, &stderr)
				require.NoError(t, err, "%q: %s", text, &stderr)
				require.Contains(t, stderr.String(), "stdin has no messages: "+nothingIn[format], "%q", text)
			}
		}
	}
}

// TestSlowStreamIsNotHeldBack: the first record of a stream is read before the second comes, however short it is.
func TestSlowStreamIsNotHeldBack(t *testing.T) {
	t.Parallel()
	in, out := io.Pipe()
	defer in.Close()
	go io.WriteString(out, "{}\n")
	src, err := newSource(in, sourceOptions{format: "jsonl"})
	require.NoError(t, err)
	m, _, err := src.next()
	require.NoError(t, err)
	require.Equal(t, "{}", string(m.Body))
}

// TestFieldsHaveOneMeaning: a field that a flag names says one thing. Two fields of its name, and half of a character,
// which a decoder would replace, are refused: otherwise the message would go to another group, or be the duplicate of
// another message. The rest of a line is the body, and may have both.
func TestFieldsHaveOneMeaning(t *testing.T) {
	t.Parallel()
	jsonl := sourceOptions{format: "jsonl", groupField: "g", headerFields: []headerField{{"h", "h"}}}
	for _, text := range []string{
		`{"g":"a\ud83d"}`, `{"g":"a","h":"\ude00b"}`, `{"g":"a","g":"b"}`, `{"h":1,"g":"a","h":1}`,
		`{"\u0067":"a","g":"b"}`,
	} {
		_, err := collect("{\"g\":\"x\"}\n"+text+"\n", jsonl)
		var fault *inputError
		require.ErrorAs(t, err, &fault, text)
		require.Equal(t, 2, fault.Line)
	}
	for _, text := range []string{
		`{"g":"a","v":"\ud83d"}`, `{"g":"a","v":1,"v":{"g":2,"g":3}}`, `{"g":"a\ud83d\ude00","h":null}`,
	} {
		bodies, err := collect(text, jsonl)
		require.NoError(t, err, text)
		require.Len(t, bodies, 1)
	}
	csv := sourceOptions{format: "csv", groupField: "g"}
	_, err := collect("g,v,g\na,1,b\n", csv)
	require.ErrorContains(t, err, `line 1: the column "g" is there twice`)
	_, err = collect("g,v,v\na,1,b\n", csv)
	require.NoError(t, err)
}

// A record that breaks a limit is named by the line where it begins, before any of it is enqueued, and a record
// without an end does not take the rest of the file into memory.
func TestRecordsOverLimits(t *testing.T) {
	csv := sourceOptions{format: "csv", groupField: "g"}
	jsonl := sourceOptions{format: "jsonl", groupField: "g"}
	huge := strings.Repeat("x", layer.MaxBodySize+1)
	var limit *layer.LimitError
	for _, test := range []struct {
		name string
		text string
		o    sourceOptions
		line int
		is   any
	}{
		{"long group", "g\na\n" + strings.Repeat("x", layer.MaxGroupSize+1), csv, 3, &limit},
		{"invalid group", "g\na\n\xff\xfe\n", csv, 3, layer.ErrInvalidUTF8},
		{"invalid JSON line", "{\"g\":\"a\"}\n{\"g\":\"\xff\"}\n", jsonl, 2, layer.ErrInvalidUTF8},
		{"large body", "g,v\na,1\nb," + huge[:layer.MaxBodySize] + "\nc,3\n", csv, 3, &limit},
		{"open quote", "g,v\na,1\nb,\"" + huge + huge, csv, 3, errLongRecord},
		{"long JSON line", "{\"g\":\"a\"}\n{\"g\":\"" + huge + huge, jsonl, 2, errLongRecord},
	} {
		t.Run(test.name, func(t *testing.T) {
			bodies, err := collect(test.text, test.o)
			var fault *inputError
			require.ErrorAs(t, err, &fault)
			require.Equal(t, test.line, fault.Line)
			if sentinel, ok := test.is.(error); ok {
				require.ErrorIs(t, err, sentinel)
			} else {
				require.ErrorAs(t, err, test.is)
			}
			require.Len(t, bodies, test.line-1-strings.Count(test.o.format, "csv"), "what stands before it is good")
		})
	}
}
