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
)

// packedExamples has an example for each name of the key table whose value is a tuple, and the types of its elements by
// the table, in order. "…" stands for any further elements.
var packedExamples = map[string]struct {
	value    []byte
	elements string
}{
	nameLock: {
		heldBy(holding{
			kind: kindClaim, token: 7, owner: "w", endMS: 9, items: []delivered{{index: 1, random: uuid.Max}},
			sinceMS: 2, beat: uuid.Max,
		}, &mark{kind: markPause, who: "ann", reason: "why", sinceMS: 3}).pack(),
		"int tuple(string string string int) tuple(string int string int int uuid int) int uuid",
	},
	nameReady:    {packInt(3), "int"},
	nameTimer:    {packTimer(kindHead, 5), "string int"},
	nameBeat:     {beat{dueMS: 5, owner: "w", ended: true}.pack(), "int string int"},
	namePace:     {pace{us: 1, part: 0, of: 1}.pack(), "int int int"},
	nameAttempt:  {attempt{count: 1, deliveredMS: 1}.pack(), "int int int string int"},
	nameRequest:  {request{owner: "w"}.pack(), "string int int"},
	nameGrant:    {packInt(3), "int"},
	nameDedup:    {remembered{id: ID{Group: "g"}}.pack(), "string int uuid int int"},
	namePurged:   {purgeNote{}.pack(), "int int"},
	nameRepeat:   {repeat{claims: []claimRef{{"g", 1}}}.pack(), "int string int"},
	nameReceipt:  {packReceipt(moment{nowMS: 5, clock: 7}, 1), "int int int"},
	nameCursor:   {(&progress{position: position{from: []byte("x")}}).pack(), "uuid bytes int"},
	nameReader:   {(&reader{owner: "w"}).pack(), "uuid string int"},
	nameArchived: {(&archiveEntry{group: "g", items: []delivered{{}}}).pack(), "int string int uuid int"},
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
	for _, kind := range []kind{kindClaim, kindGrant, kindDelay} {
		require.Contains(t, table, `"`+string(kind)+`"`)
	}
	for _, mark := range []markKind{markPause, markHalt} {
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
