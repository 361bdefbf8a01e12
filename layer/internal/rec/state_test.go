package rec

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// TestConditions: a holding lasts until its end, and a claim by heartbeat beyond it. Receives pass over a group whose
// condition keeps it.
func TestConditions(t *testing.T) {
	held := func(kind Kind) *Record { return HeldBy(Holding{Kind: kind, EndMS: 10}, nil) }
	byBeat := HeldBy(Holding{Kind: KindClaim, EndMS: 10, Beat: uuid.UUID{1}}, nil)
	for _, tt := range []struct {
		record *Record
		nowMS  int64
		want   Condition
		keeps  bool
	}{
		{nil, 9, Unheld, false},
		{held(KindClaim), 9, Claimed, true},
		{held(KindClaim), 10, Lapsed, false},
		{byBeat, 10, Claimed, true},
		{held(KindGrant), 9, Granted, true},
		{held(KindGrant), 10, Over, false},
		{held(KindDelay), 9, Delayed, true},
		{held(KindDelay), 10, Over, false},
		{held(KindClaim).WithMark(&Mark{Kind: MarkPause}), 9, Claimed, true},
		{held(KindDelay).WithMark(&Mark{Kind: MarkHalt}), 9, Marked, true},
	} {
		got := tt.record.At(tt.nowMS)
		require.Equal(t, tt.want, got, "%+v", tt)
		require.Equal(t, tt.keeps, got.Keeps(), "%+v", tt)
	}
}

// TestSteps: what steps says of tokens and marks.
func TestSteps(t *testing.T) {
	claim := func(token int64, m *Mark) *Record {
		return HeldBy(Holding{Kind: KindClaim, Token: token}, m)
	}
	pause := &Mark{Kind: MarkPause}
	require.NoError(t, Step(claim(5, nil), claim(6, nil)))
	require.ErrorContains(t, Step(claim(5, nil), claim(4, nil)), "token 4 after 5")
	require.ErrorIs(t, Step(claim(5, pause), nil), ErrStep, "a mark is forgotten")
	require.NoError(t, Step(claim(5, pause), claim(5, nil).WithoutHolding(pause)))
	require.ErrorIs(t, Step(claim(5, nil).WithoutHolding(pause), claim(6, nil)), ErrStep, "a paused group is claimed")
	require.ErrorIs(t, Step(nil, HeldBy(Holding{Kind: KindDelay}, nil)), ErrStep, "a delay of what nobody held")
	require.NoError(t, Step(Unreadable, nil))
}

// TestStepsAreDocumented: docs/design/states.md has a row for each state, with each state that may follow.
func TestStepsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/design/states.md")
	require.NoError(t, err)
	for from, tos := range steps {
		row := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(string(from)) + ` \| (.*) \|$`).FindSubmatch(text)
		require.NotNil(t, row, "no row for %s", from)
		follows := regexp.MustCompile(` ?\([^)]*\)`).ReplaceAllString(string(row[1]), "")
		for _, to := range tos {
			require.Contains(t, ", "+follows+",", ", "+string(to)+",", "from %s", from)
		}
	}
}

// TestCut: a stored text has at most MaxErrorText bytes and is UTF-8, whatever the text of the error.
func TestCut(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "short": 5, "\xff": 3, strings.Repeat("x", MaxErrorText+1): MaxErrorText,
		strings.Repeat("\xffa", MaxErrorText/2): MaxErrorText, strings.Repeat("€", MaxErrorText): MaxErrorText - 1,
		strings.Repeat("x", MaxErrorText-1) + "€":                                  MaxErrorText - 1,
		strings.Repeat("\xff", MaxErrorText/2) + strings.Repeat("€", MaxErrorText): MaxErrorText - 1,
	} {
		cut := Cut(text)
		require.Len(t, cut, want)
		require.True(t, utf8.ValidString(cut))
		require.True(t, strings.HasPrefix(strings.ToValidUTF8(text, "\uFFFD"), cut))
	}
}

// TestPlainEnvelope: the head of a message without headers costs no memory: every enqueue of such a message packs one.
func TestPlainEnvelope(t *testing.T) {
	dst := make([]byte, 0, 16)
	require.Zero(t, testing.AllocsPerRun(100, func() { dst = Envelope{EnqueuedMS: 1_700_000_000_000}.Append(dst[:0]) }))
}
