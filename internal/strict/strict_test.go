package strict

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

type inner struct {
	Name string
	Raw  json.RawMessage `json:",omitempty"`
}

type embedded struct{ Inner []*inner }

type outer struct {
	embedded
	Text string            `json:"text"`
	Map  map[string]inner  `json:"map"`
	Tags map[string]string `json:"tags"`
	Any  any
	Own  own
}

// own decodes itself.
type own struct{ got string }

func (o *own) UnmarshalJSON(b []byte) error { o.got = string(b); return nil }

// TestWhole: a text of which a decoder would replace a character is told from all others, so two texts that are
// different stay different.
func TestWhole(t *testing.T) {
	for text, whole := range map[string]bool{
		`{"a":"b"}`: true, `"\u00e9"`: true, `"\ud83d\ude00"`: true, `"\\ud83d"`: true, `"\n\\"`: true,
		`"\\\ud83d\ude00"`: true, `"\ud83d"`: false, `"a\ud83dx"`: false, `"\ude00\ud83d"`: false,
		`"\ud83d\ud83d\ude00"`: false, `"\\\ud83d"`: false,
		"\"\xff\"": false, `"\ud83d\n\ude00"`: false, `"\`: true, `"\ud8`: true,
	} {
		require.Equal(t, whole, Whole([]byte(text)), text)
		var decoded string
		if json.Unmarshal([]byte(text), &decoded) == nil {
			require.Equal(t, whole, !strings.Contains(decoded, "\ufffd"), text)
		}
	}
}

// TestOneMeaning: a member has one meaning at each depth, in a struct, a map, a list and a raw text. A name in a map
// may differ from another name, or from a field, in case.
func TestOneMeaning(t *testing.T) {
	for _, text := range []string{
		`{"text": "a", "text": "a"}`, `{"text": "a", "te\u0078t": "b"}`, `{"Text": "a"}`, `{"text": "a", "TEXT": "b"}`,
		`{"Inner": [{"Name": "a"}, {"Name": "a", "Name": "b"}]}`, `{"Inner": [{"name": "a"}]}`, `{"inner": []}`,
		`{"map": {"a": {"Name": "a"}, "a": {}}}`, `{"map": {"a": {"name": "a"}}}`, `{"Inner": [{"ra\u0057": 1}]}`,
		`{"Inner": [{"Raw": {"b": [{"a": 1, "a": 1}]}}]}`, `{"Any": [[{"a": {"b": 1, "b": 2}}]]}`,
		`{"Own": {"a": 1, "a": 2}}`, `{"unknown": {"a": 1, "a": 2}}`, `{"tags": {"\ud800": "", "\ud801": ""}}`,
		`{"teẍt": 1, "te\u1e8dt": 2}`, "{\"tags\": {\"\xff\": \"\", \"\xfe\": \"\"}}", `{"text": "a"} {}`, `{`, ``,
	} {
		v := outer{Text: "before"}
		require.Error(t, Unmarshal([]byte(text), &v), text)
		require.Equal(t, outer{Text: "before"}, v, text)
		require.Error(t, UnmarshalKnown([]byte(text), &v), text)
	}
	for _, text := range []string{
		`{"text": "\"a\": {"}`, `{"Inner": [{"Name": "\\"}, null, {}], "map": {"Text": {}, "text": {"Name": "a"}}}`,
		`{"tags": {"a": "1", "A": "2", "Text": "3", "Name": "", "tags": ""}, "Any": {"text": 1, "Text": [-1e5, true]}}`,
		` { "Own" : { "a" : [ ] , "A" : { } } , "Inner" : [ { "Raw" : { "name" : 1 , "Name" : 2 } } ] } `, `null`, `{}`,
	} {
		var got, gotKnown, want outer
		require.NoError(t, json.Unmarshal([]byte(text), &want))
		require.NoError(t, Unmarshal([]byte(text), &got), text)
		require.NoError(t, UnmarshalKnown([]byte(text), &gotKnown), text)
		require.Equal(t, want, got)
		require.Equal(t, want, gotKnown)
	}
	var v outer
	require.NoError(t, Unmarshal([]byte(`{"unknown": 1}`), &v))
	require.Error(t, UnmarshalKnown([]byte(`{"text": "a", "unknown": 1}`), &v))
	require.Equal(t, "a", v.Text)
}

// FuzzUnmarshal: what Unmarshal accepts it reads as json.Unmarshal does, and it accepts nothing else.
func FuzzUnmarshal(f *testing.F) {
	for _, text := range []string{`{"text":"a","map":{"a":{"Name":"b"}}}`, `[1,{"a":"\\\""}]`, `"\u0061"`, `-1e3`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var got, want any
		if Unmarshal(text, &got) != nil {
			return
		}
		require.NoError(t, json.Unmarshal(text, &want))
		require.Equal(t, want, got)
	})
}
