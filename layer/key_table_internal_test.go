package layer

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv/tuple"
	"fdbfifo/layer/internal/rec"
)

// packedExamples has an example for each name of the key table whose value is a tuple, and the types of its elements by
// the table, in order. "…" stands for any further elements.
var packedExamples = map[string]struct {
	value    []byte
	elements string
}{
	nameLock: {
		rec.HeldBy(rec.Holding{
			Kind: rec.KindClaim, Token: 7, Owner: "w", EndMS: 9, Items: []rec.Item{{Index: 1, Random: uuid.Max}},
			SinceMS: 2, Beat: uuid.Max,
		}, &rec.Mark{Kind: rec.MarkPause, By: "ann", Reason: "why", SinceMS: 3}).Pack(),
		"int tuple(string string string int) tuple(string int string int int uuid int) int uuid",
	},
	nameReady:    {rec.PackInt(3), "int"},
	nameTimer:    {rec.PackTimer(rec.KindHead, 5), "string int"},
	nameBeat:     {rec.Beat{DueMS: 5, Owner: "w", Ended: true}.Pack(), "int string int"},
	namePace:     {rec.Pace{US: 1, Part: 0, Of: 1}.Pack(), "int int int"},
	nameAttempt:  {rec.Attempt{Count: 1, DeliveredMS: 1}.Pack(), "int int int string int"},
	nameRequest:  {rec.Request{Owner: "w"}.Pack(), "string int int"},
	nameGrant:    {rec.PackInt(3), "int"},
	nameDedup:    {rec.DedupEntry{Group: "g"}.Pack(), "string int uuid int int"},
	namePurged:   {rec.Instant{}.Pack(), "int int"},
	nameRepeat:   {rec.Repeat{Claims: []rec.ClaimRef{{Lane: "g", Token: 1}}}.Pack(), "int string int"},
	nameReceipt:  {rec.PackReceipt(5, 1, 7), "int int int"},
	nameCursor:   {(&rec.Cursor{Position: rec.Position{From: []byte("x")}}).Pack(), "uuid bytes int"},
	nameReader:   {(&rec.Reader{Owner: "w"}).Pack(), "uuid string int"},
	nameArchived: {(&rec.ArchiveEntry{Group: "g", Items: []rec.Item{{}}}).Pack(), "int string int uuid int"},
}

// TestKeyTable: the key table has a row for each name, and the values that it calls tuples are.
func TestKeyTable(t *testing.T) {
	source, err := os.ReadFile("subspace.go")
	require.NoError(t, err)
	table, _, _ := strings.Cut(string(source), "\nconst (")
	rows := regexp.MustCompile(`(?m)^//\t([a-z]+) +\("([a-z]+)"`).FindAllStringSubmatch(table, -1)
	var names []string
	for _, row := range rows {
		require.Equal(t, row[1], row[2])
		names = append(names, row[1])
	}
	for _, name := range KeyNames() {
		require.Contains(t, names, name)
	}
	for _, name := range names {
		require.True(t, slices.Contains(KeyNames(), name), "%s is no name of a key", name)
	}
	for name, example := range packedExamples {
		parsed, err := tuple.Unpack(example.value)
		require.NoError(t, err)
		require.Equal(t, example.elements, strings.Join(kindsOf(parsed), " "), name)
	}
	for _, kind := range []rec.Kind{rec.KindClaim, rec.KindGrant, rec.KindDelay} {
		require.Contains(t, table, `"`+string(kind)+`"`)
	}
	for _, mark := range []rec.MarkKind{rec.MarkPause, rec.MarkHalt} {
		require.Contains(t, table, `"`+string(mark)+`"`)
	}
}

// kindsOf names the kinds of a tuple's elements.
func kindsOf(elements tuple.Tuple) (kinds []string) {
	for _, e := range elements {
		switch e := e.(type) {
		case int64:
			kinds = append(kinds, "int")
		case string:
			kinds = append(kinds, "string")
		case []byte:
			kinds = append(kinds, "bytes")
		case uuid.UUID:
			kinds = append(kinds, "uuid")
		case tuple.Tuple:
			kinds = append(kinds, "tuple("+strings.Join(kindsOf(e), " ")+")")
		default:
			kinds = append(kinds, "other")
		}
	}
	return kinds
}
