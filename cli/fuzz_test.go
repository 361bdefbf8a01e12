package cli

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// drainSource reads a source to its end, or to its first error, which names a line.
func drainSource(t *testing.T, in io.Reader, o sourceOptions) (msgs []layer.Message, err error) {
	src, err := newSource(in, o)
	last := 0
	for err == nil {
		var m layer.Message
		var line int
		if m, line, err = src.next(); err == nil {
			require.Greater(t, line, last)
			last = line
			msgs = append(msgs, m)
		}
	}
	if errors.Is(err, io.EOF) {
		return msgs, nil
	}
	var fault *inputError
	require.ErrorAs(t, err, &fault)
	require.Positive(t, fault.Line)
	return msgs, err
}

// FuzzCSV: a CSV input is refused with the line of its fault, or each message is a record of it. The records come in
// order, and the fields are those that encoding/csv finds. Written out again, the records give the same messages.
func FuzzCSV(f *testing.F) {
	f.Fuzz(func(t *testing.T, text string) {
		o := sourceOptions{format: "csv", groupField: "g", dedupField: "id"}
		msgs, err := drainSource(t, strings.NewReader(text), o)
		rest := text
		var again strings.Builder
		header := csvHeader(text)
		again.WriteString(header + "\r\n")
		for _, m := range msgs {
			at := strings.Index(rest, string(m.Body))
			require.GreaterOrEqual(t, at, 0)
			rest = rest[at+len(m.Body):]
			r := csv.NewReader(strings.NewReader(header + "\r\n" + string(m.Body) + "\r\n"))
			all, err := r.ReadAll()
			require.NoError(t, err)
			require.Len(t, all, 2)
			found := map[string]string{}
			for i := len(all[0]) - 1; i >= 0; i-- { // of two columns of one name the first
				found[all[0][i]] = all[1][i]
			}
			require.Equal(t, found["g"], m.Group)
			require.Equal(t, found["id"], m.DedupID)
			again.WriteString(string(m.Body) + "\r\n")
		}
		if err != nil || len(msgs) == 0 {
			return
		}
		same, err := drainSource(t, strings.NewReader(again.String()), o)
		require.NoError(t, err)
		require.Equal(t, msgs, same)
	})
}

// csvHeader is the first record of text as it stands, if it has one.
func csvHeader(text string) string {
	text = strings.TrimPrefix(text, "\ufeff")
	r := csv.NewReader(strings.NewReader(text))
	if _, err := r.Read(); err != nil {
		return ""
	}
	return string(trimRecord([]byte(text[:r.InputOffset()])))
}

// FuzzJSON: the same for an object on each line. Group and dedup id are the fields of the object.
func FuzzJSON(f *testing.F) {
	f.Fuzz(func(t *testing.T, text string) {
		o := sourceOptions{format: "jsonl", groupField: "g", dedupField: "id"}
		msgs, err := drainSource(t, strings.NewReader(text), o)
		rest := strings.TrimPrefix(text, "\ufeff")
		var again strings.Builder
		for _, m := range msgs {
			at := strings.Index(rest, string(m.Body))
			require.GreaterOrEqual(t, at, 0)
			require.Empty(t, strings.TrimSpace(rest[:at]), "nothing is passed over")
			rest = rest[at+len(m.Body):]
			var object map[string]any
			d := json.NewDecoder(bytes.NewReader(m.Body))
			d.UseNumber()
			require.NoError(t, d.Decode(&object))
			require.Equal(t, m.Group, textOf(object["g"]))
			require.Equal(t, m.DedupID, textOf(object["id"]))
			again.Write(append(m.Body, '\n'))
		}
		if err != nil {
			return
		}
		require.Empty(t, strings.TrimSpace(rest), "nothing is passed over")
		same, err := drainSource(t, strings.NewReader(again.String()), o)
		require.NoError(t, err)
		require.Equal(t, msgs, same)
	})
}

// textOf is a value of a JSON object as text.
func textOf(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	case bool:
		if v {
			return "true"
		}
		return "false"
	}
	return "neither text nor number nor boolean"
}

// FuzzDecode: the command refuses a line or decodes it, and the other form that it prints decodes to the same.
func FuzzDecode(f *testing.F) {
	f.Fuzz(func(t *testing.T, text string) {
		for _, asJSON := range []bool{false, true} {
			var out bytes.Buffer
			s := &session{stdout: &out, json: asJSON}
			if err := s.decode(prefix(), text); err != nil {
				continue
			}
			require.NotEmpty(t, out.String())
			if asJSON {
				var d jsonDecoded
				require.NoError(t, json.Unmarshal(out.Bytes(), &d))
				parts, err := tuple.Parse(d.Parts)
				require.NoError(t, err)
				require.Equal(t, d.Key, tuple.Printable(parts.Pack()))
			}
		}
		if parts, err := tuple.Parse(text); err == nil {
			var out bytes.Buffer
			require.NoError(t, (&session{stdout: &out}).decode(prefix(), text))
			key, err := tuple.ParsePrintable(strings.TrimSuffix(out.String(), "\n"))
			require.NoError(t, err)
			require.Equal(t, parts.Pack(), key)
		}
	})
}

// FuzzPair: a line of fdbcli is read as the pair that it shows, and a key's range as one word for each end.
func FuzzPair(f *testing.F) {
	f.Fuzz(func(t *testing.T, key, value []byte) {
		token := fdbcliToken(key)
		require.NotContains(t, token, " ")
		back, err := tuple.ParsePrintable(token)
		require.NoError(t, err)
		require.Equal(t, string(key), string(back))
		if bytes.Contains(key, []byte("' is `")) {
			return // is not understood, and says so
		}
		l, err := readLine("`" + tuple.Printable(key) + "' is `" + tuple.Printable(value) + "'")
		require.NoError(t, err)
		require.Equal(t, string(key), string(l.key))
		require.Equal(t, string(value), string(l.value))
		require.NotNil(t, l.value)
	})
}
