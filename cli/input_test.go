package cli

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

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
